"""Kernels that lay one tensor over another: `update_slice`, `dynamic_update_slice` and `pad`.

Over one number, each row of the result is first that, and then, where it meets the box, what is
laid over it: no element is asked whether it is inside. Over a tensor, nothing but the box is
written: the rest is a copy, or already there.

>>> import weft as wf
>>> wf.jit(wf.grad(lambda x: x[::2].sum()))(wf.ones(4)).tolist()
[1.0, 0.0, 1.0, 0.0]
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from weft.compiler.lowering.builder import (
    ZERO,
    Draft,
    Loop,
    SingleKernel,
    all_conditions,
    is_within,
    kernel_of,
    nest,
    uniform,
)
from weft.compiler.lowering.nodes.gathers import box_starts
from weft.core.shapes import Dimension, size
from weft.ir import scalars
from weft.ir.loops import Let, Statement, Store
from weft.ir.scalars import Scalar


@kernel_of("update_slice")
def update_slice(draft: Draft) -> SingleKernel:
    """x with a slice replaced."""
    starts = [draft.extent(start) for start in draft.params["starts"]]
    return _lay_over_copy(draft, starts, draft.params["strides"], ())


@kernel_of("dynamic_update_slice")
def dynamic_update_slice(draft: Draft) -> SingleKernel:
    """x with a box replaced, at starts that are data."""
    starts, read = box_starts(draft, 2, draft.shape(1))
    return _lay_over_copy(draft, starts, (1,) * len(starts), read)


def _lay_over_copy(
    draft: Draft, starts: Sequence[Scalar], strides: Sequence[Dimension], read: Sequence[Statement]
) -> SingleKernel:
    """Operand 1 laid over a copy of operand 0: only the box is touched."""
    below = uniform(draft.node.operands[0], draft.producers)
    if below is not None:
        return _lay_over_constant(draft, 1, starts, strides, read, below)
    steps = draft.strides(-1)
    apart = [step * stride for step, stride in zip(steps, strides, strict=True)]
    loops, (target, source) = draft.walk("i", draft.shape(1), apart, draft.strides(1))
    at = draft.offset(starts, steps) + target
    store = Store(draft.result, at, draft.operands[1][source])
    return draft.update((*read, *nest(loops, (store,))), size(draft.shape(1)))


@kernel_of("pad")
def pad(draft: Draft) -> SingleKernel:
    """x among elements of one value, with some between its own."""
    padding = draft.params["padding"]
    starts = [draft.extent(low) for low, _, _ in padding]
    value = np.asarray(draft.params["value"]).astype(draft.result.dtype.numpy).item()
    below = scalars.const(value, draft.result.dtype)
    return _lay_over_constant(
        draft, 0, starts, [between + 1 for _, _, between in padding], (), below
    )


def _lay_over_constant(
    draft: Draft,
    operand: int,
    starts: Sequence[Scalar],
    strides: Sequence[Dimension],
    read: Sequence[Statement],
    below: Scalar,
) -> SingleKernel:
    """An operand laid over a constant."""
    dims, parts = draft.shape(-1), draft.shape(operand)
    rows: list[Loop] = [
        (scalars.index(f"i{axis}"), draft.extent(dim)) for axis, dim in enumerate(dims[:-1])
    ]
    steps, over = draft.strides(-1), draft.strides(operand)
    row = draft.offset([i for i, _ in rows], steps[:-1])
    meets, source, more = _row_overlap(draft, rows, parts, starts, strides, over)
    if not dims:
        return draft.kernel((*read, Store(draft.result, ZERO, draft.operands[operand][0])), 1)
    column = scalars.index("j")
    at = row + column
    place = row + starts[-1] + column * draft.extent(strides[-1])
    part = draft.extent(parts[-1])
    laid = part if meets is None else scalars.select(meets, part, ZERO)
    body = (
        *more,
        *nest(
            [(column, draft.extent(dims[-1]))], (Store(draft.result, at, below),), parallel=False
        ),
        *nest(
            [(column, laid)],
            (Store(draft.result, place, draft.operands[operand][source + column]),),
            parallel=False,
        ),
    )
    return draft.kernel((*read, *nest(rows, body, vector=False)), size(dims))


def _row_overlap(
    draft: Draft,
    rows: Sequence[Loop],
    parts: Sequence[Dimension],
    starts: Sequence[Scalar],
    strides: Sequence[Dimension],
    over: Sequence[Dimension],
) -> tuple[Scalar | None, Scalar, list[Statement]]:
    """Whether a row of the result has elements laid over it, which row they are, and what says."""
    conditions, source, more = [], ZERO, list[Statement]()
    for axis, (index, _) in enumerate(rows):
        moved = index - starts[axis]
        inside = scalars.local(f"n{axis}", moved.dtype)
        step = draft.extent(strides[axis])
        more.append(Let(inside, moved // step))
        conditions.append(is_within(inside, draft.extent(parts[axis])))
        if strides[axis] != 1:
            conditions.append(scalars.equal(inside * step, moved))
        source = source + inside * draft.extent(over[axis])
    return all_conditions(conditions), source, more
