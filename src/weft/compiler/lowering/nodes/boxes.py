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
    KernelBuilder,
    Loop,
    NodeKernel,
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
def update_slice(builder: KernelBuilder) -> NodeKernel:
    """x with a slice replaced."""
    starts = [builder.extent(start) for start in builder.params["starts"]]
    return _lay_over_copy(builder, starts, builder.params["strides"], ())


@kernel_of("dynamic_update_slice")
def dynamic_update_slice(builder: KernelBuilder) -> NodeKernel:
    """x with a box replaced, at starts that are data."""
    starts, read = box_starts(builder, 2, builder.shape(1))
    return _lay_over_copy(builder, starts, (1,) * len(starts), read)


def _lay_over_copy(
    builder: KernelBuilder,
    starts: Sequence[Scalar],
    strides: Sequence[Dimension],
    read: Sequence[Statement],
) -> NodeKernel:
    """Operand 1 laid over a copy of operand 0: only the box is touched."""
    below = uniform(builder.node.operands[0], builder.producers)
    if below is not None:
        return _lay_over_constant(builder, 1, starts, strides, read, below)
    steps = builder.strides(-1)
    apart = [step * stride for step, stride in zip(steps, strides, strict=True)]
    loops, (target, source) = builder.walk("i", builder.shape(1), apart, builder.strides(1))
    at = builder.offset(starts, steps) + target
    store = Store(builder.result, at, builder.operands[1][source])
    return builder.update((*read, *nest(loops, (store,))), size(builder.shape(1)))


@kernel_of("pad")
def pad(builder: KernelBuilder) -> NodeKernel:
    """x among elements of one value, with some between its own."""
    padding = builder.params["padding"]
    starts = [builder.extent(low) for low, _, _ in padding]
    value = np.asarray(builder.params["value"]).astype(builder.result.dtype.numpy).item()
    below = scalars.const(value, builder.result.dtype)
    return _lay_over_constant(
        builder, 0, starts, [between + 1 for _, _, between in padding], (), below
    )


def _lay_over_constant(
    builder: KernelBuilder,
    operand: int,
    starts: Sequence[Scalar],
    strides: Sequence[Dimension],
    read: Sequence[Statement],
    below: Scalar,
) -> NodeKernel:
    """An operand laid over a constant."""
    dims, parts = builder.shape(-1), builder.shape(operand)
    rows: list[Loop] = [
        (scalars.index(f"i{axis}"), builder.extent(dim)) for axis, dim in enumerate(dims[:-1])
    ]
    steps, over = builder.strides(-1), builder.strides(operand)
    row = builder.offset([i for i, _ in rows], steps[:-1])
    meets, source, more = _row_overlap(builder, rows, parts, starts, strides, over)
    if not dims:
        return builder.kernel((*read, Store(builder.result, ZERO, builder.operands[operand][0])), 1)
    column = scalars.index("j")
    at = row + column
    place = row + starts[-1] + column * builder.extent(strides[-1])
    part = builder.extent(parts[-1])
    laid = part if meets is None else scalars.select(meets, part, ZERO)
    body = (
        *more,
        *nest(
            [(column, builder.extent(dims[-1]))],
            (Store(builder.result, at, below),),
            parallel=False,
        ),
        *nest(
            [(column, laid)],
            (Store(builder.result, place, builder.operands[operand][source + column]),),
            parallel=False,
        ),
    )
    return builder.kernel((*read, *nest(rows, body, vector=False)), size(dims))


def _row_overlap(
    builder: KernelBuilder,
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
        step = builder.extent(strides[axis])
        more.append(Let(inside, moved // step))
        conditions.append(is_within(inside, builder.extent(parts[axis])))
        if strides[axis] != 1:
            conditions.append(scalars.equal(inside * step, moved))
        source = source + inside * builder.extent(over[axis])
    return all_conditions(conditions), source, more
