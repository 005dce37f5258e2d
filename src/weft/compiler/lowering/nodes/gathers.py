"""Kernels that read at places that are data: `gather` and `dynamic_slice`.

Rows of the result are divided over threads. An index that is out of range reads nothing and is
reported; the reference then says what is wrong.

>>> import weft as wf
>>> wf.jit(lambda x, i: x[i])(wf.tensor([1.0, 2.0, 3.0]), wf.tensor([2, 0])).tolist()
[3.0, 1.0]
"""

from __future__ import annotations

from weft.compiler.lowering.builder import ZERO, KernelBuilder, NodeKernel, kernel_of, nest
from weft.compiler.lowering.nodes.places import places
from weft.core.shapes import Shape, size
from weft.ir import scalars
from weft.ir.loops import Let, Statement, Store
from weft.ir.scalars import Scalar


@kernel_of("gather")
def gather(builder: KernelBuilder) -> NodeKernel:
    """Index shape, then the axes that are not indexed."""
    kept = [a for a in range(len(builder.shape(0))) if a not in builder.params["axes"]]
    count = len(builder.shape(1))
    found = places(builder, 1, builder.strides(-1)[:count])
    inner, (source, target) = builder.walk(
        "r",
        tuple(builder.shape(0)[axis] for axis in kept),
        [builder.strides(0)[axis] for axis in kept],
        builder.strides(-1)[count:],
    )
    if inner and found.fits is not None:
        inner[0] = (inner[0][0], scalars.select(found.fits, inner[0][1], ZERO))
    guard = None if inner else found.fits
    value = scalars.load(builder.operands[0], found.base + source, guard)
    store = Store(builder.result, found.row + target, value)
    body = (*found.read, *nest(inner, (store,), parallel=False))
    return builder.kernel(nest(found.loops, body, vector=False), size(builder.shape(-1)))


@kernel_of("dynamic_slice")
def dynamic_slice(builder: KernelBuilder) -> NodeKernel:
    """The box of a fixed size at starts that are data, moved to lie inside x."""
    starts, read = box_starts(builder, 1, builder.shape(-1))
    loops, (source, target) = builder.walk(
        "i", builder.shape(-1), builder.strides(0), builder.strides(-1)
    )
    base = builder.offset(starts, builder.strides(0))
    store = Store(builder.result, target, builder.operands[0][base + source])
    return builder.kernel((*read, *nest(loops, (store,))), size(builder.shape(-1)))


def box_starts(
    builder: KernelBuilder, first: int, sizes: Shape
) -> tuple[list[Scalar], list[Statement]]:
    """Where a box begins along each axis of operand 0, moved to lie inside; and what reads it."""
    starts: list[Scalar] = []
    read: list[Statement] = []
    for axis, (dim, part) in enumerate(zip(builder.shape(0), sizes, strict=True)):
        start = builder.operands[first + axis][0]
        room = builder.extent(dim - part)
        moved = scalars.maximum(scalars.minimum(start, room), ZERO)
        local = scalars.local(f"start{axis}", moved.dtype)
        read.append(Let(local, moved))
        starts.append(local)
    return starts, read
