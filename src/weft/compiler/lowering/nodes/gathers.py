"""Kernels that read at places that are data: `gather` and `dynamic_slice`.

Rows of the result are divided over threads. An index that is out of range reads nothing and is
reported; the reference then says what is wrong.

>>> import weft as wf
>>> wf.jit(lambda x, i: x[i])(wf.tensor([1.0, 2.0, 3.0]), wf.tensor([2, 0])).tolist()
[3.0, 1.0]
"""

from __future__ import annotations

from weft.compiler.lowering.builder import ZERO, Draft, SingleKernel, kernel_of, nest
from weft.compiler.lowering.nodes.places import places
from weft.core.shapes import Shape, size
from weft.ir import scalars
from weft.ir.loops import Let, Statement, Store
from weft.ir.scalars import Scalar


@kernel_of("gather")
def gather(draft: Draft) -> SingleKernel:
    """Index shape, then the axes that are not indexed."""
    kept = [a for a in range(len(draft.shape(0))) if a not in draft.params["axes"]]
    count = len(draft.shape(1))
    found = places(draft, 1, draft.strides(-1)[:count])
    inner, (source, target) = draft.walk(
        "r",
        tuple(draft.shape(0)[axis] for axis in kept),
        [draft.strides(0)[axis] for axis in kept],
        draft.strides(-1)[count:],
    )
    if inner and found.fits is not None:
        inner[0] = (inner[0][0], scalars.select(found.fits, inner[0][1], ZERO))
    guard = None if inner else found.fits
    value = scalars.load(draft.operands[0], found.base + source, guard)
    store = Store(draft.result, found.row + target, value)
    body = (*found.read, *nest(inner, (store,), parallel=False))
    return draft.kernel(nest(found.loops, body, vector=False), size(draft.shape(-1)))


@kernel_of("dynamic_slice")
def dynamic_slice(draft: Draft) -> SingleKernel:
    """The box of a fixed size at starts that are data, moved to lie inside x."""
    starts, read = box_starts(draft, 1, draft.shape(-1))
    loops, (source, target) = draft.walk("i", draft.shape(-1), draft.strides(0), draft.strides(-1))
    base = draft.offset(starts, draft.strides(0))
    store = Store(draft.result, target, draft.operands[0][base + source])
    return draft.kernel((*read, *nest(loops, (store,))), size(draft.shape(-1)))


def box_starts(draft: Draft, first: int, sizes: Shape) -> tuple[list[Scalar], list[Statement]]:
    """Where a box begins along each axis of operand 0, moved to lie inside; and what reads it."""
    starts: list[Scalar] = []
    read: list[Statement] = []
    for axis, (dim, part) in enumerate(zip(draft.shape(0), sizes, strict=True)):
        start = draft.operands[first + axis][0]
        room = draft.extent(dim - part)
        moved = scalars.maximum(scalars.minimum(start, room), ZERO)
        local = scalars.local(f"start{axis}", moved.dtype)
        read.append(Let(local, moved))
        starts.append(local)
    return starts, read
