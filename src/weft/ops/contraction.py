"""Contraction: the general product of two tensors over shared axes.

>>> import weft as wf
>>> (wf.ones((2, 3)) @ wf.ones((3, 4))).shape
(2, 4)
"""

from __future__ import annotations

from typing import Any

import numpy as np

from weft.core.shapes import Dimension, require_equal
from weft.core.types import TensorType
from weft.ir.batching import move_axis
from weft.ir.derivatives import linear
from weft.ir.dispatch import apply, bind
from weft.ir.primitive import Primitive, Sample
from weft.ir.tensor import Tensor
from weft.ops.elementwise import conj
from weft.ops.movement import inverse, transpose

Axes = tuple[tuple[int, ...], tuple[int, ...]]


def free_axes(ndim: int, *taken: tuple[int, ...]) -> tuple[int, ...]:
    """The axes that are in none of the given groups."""
    used = {axis for group in taken for axis in group}
    return tuple(axis for axis in range(ndim) if axis not in used)


def _dot_type(a: TensorType, b: TensorType, contract: Axes, batch: Axes) -> TensorType:
    for left, right in zip((*contract[0], *batch[0]), (*contract[1], *batch[1]), strict=True):
        require_equal(
            "dot",
            a.shape[left],
            b.shape[right],
            expected=f"a.shape[{left}] == b.shape[{right}]",
            got={"a": a, "b": b},
            fix=f"give both sides {a.shape[left]} there, or transpose one of them",
            what=f"axis {left} of a and axis {right} of b",
        )
    shape = tuple(a.shape[axis] for axis in batch[0])
    shape += tuple(a.shape[axis] for axis in free_axes(a.ndim, contract[0], batch[0]))
    shape += tuple(b.shape[axis] for axis in free_axes(b.ndim, contract[1], batch[1]))
    return TensorType(a.dtype, shape)


def _dot(a: Any, b: Any, contract: Axes, batch: Axes) -> Any:
    """One stacked matrix product; 16-bit floats are multiplied in float32."""
    dtype = a.dtype
    if dtype.itemsize == 2 and dtype.kind not in "iu":
        a, b = a.astype(np.float32), b.astype(np.float32)
    free_a = free_axes(a.ndim, contract[0], batch[0])
    free_b = free_axes(b.ndim, contract[1], batch[1])
    stack = [a.shape[axis] for axis in batch[0]]
    rows = [a.shape[axis] for axis in free_a]
    columns = [b.shape[axis] for axis in free_b]
    inner = int(np.prod([a.shape[axis] for axis in contract[0]], dtype=int))
    left = a.transpose(*batch[0], *free_a, *contract[0])
    right = b.transpose(*batch[1], *contract[1], *free_b)
    left = left.reshape(*stack, int(np.prod(rows, dtype=int)), inner)
    right = right.reshape(*stack, inner, int(np.prod(columns, dtype=int)))
    return np.matmul(left, right).reshape(*stack, *rows, *columns).astype(dtype, copy=False)


def _conj(x: Tensor) -> Tensor:
    return conj(x) if x.dtype.is_complex else x


def _back_left(ct: Tensor, a: Tensor, b: Tensor, contract: Axes, batch: Axes) -> Tensor:
    """The cotangent of the left operand: ct times b over b's free axes, axes put back in place."""
    stack = len(batch[0])
    free_a = free_axes(a.ndim, contract[0], batch[0])
    free_b = free_axes(b.ndim, contract[1], batch[1])
    columns = tuple(range(stack + len(free_a), ct.ndim))
    back = bind(
        dot,
        ct,
        _conj(b),
        contract=(columns, free_b),
        batch=(tuple(range(stack)), batch[1]),
    )
    by_right = sorted(range(len(contract[1])), key=contract[1].__getitem__)
    places = (*batch[0], *free_a, *[contract[0][i] for i in by_right])
    return apply(transpose, back, order=inverse(places))


def _back_right(ct: Tensor, a: Tensor, b: Tensor, contract: Axes, batch: Axes) -> Tensor:
    """The same with the sides exchanged."""
    stack = len(batch[0])
    rows = a.ndim - stack - len(contract[0])
    columns = ct.ndim - stack - rows
    order = (
        *range(stack),
        *range(stack + rows, stack + rows + columns),
        *range(stack, stack + rows),
    )
    turned = bind(transpose, ct, order=order)
    return _back_left(turned, b, a, (contract[1], contract[0]), (batch[1], batch[0]))


def _batch_dot(
    size: Dimension,
    operands: tuple[Tensor, ...],
    axes: tuple[int | None, ...],
    contract: Axes,
    batch: Axes,
) -> tuple[Tensor, int]:
    a, b = operands
    left, right = axes
    if left is not None:
        a = move_axis(a, left, 0)
        contract = (tuple(i + 1 for i in contract[0]), contract[1])
        batch = (tuple(i + 1 for i in batch[0]), batch[1])
    if right is not None:
        b = move_axis(b, right, 0)
        contract = (contract[0], tuple(i + 1 for i in contract[1]))
        batch = (batch[0], tuple(i + 1 for i in batch[1]))
    if left is not None and right is not None:
        batch = ((0, *batch[0]), (0, *batch[1]))
        return apply(dot, a, b, contract=contract, batch=batch), 0
    out = bind(dot, a, b, contract=contract, batch=batch)
    return out, len(batch[0]) if left is not None else len(batch[0]) + a.ndim - len(
        batch[0]
    ) - len(contract[0])


def _sample(a: tuple[int, ...], b: tuple[int, ...], contract: Axes, batch: Axes) -> Sample:
    generator = np.random.default_rng(len(a) * 7 + len(b))
    operands = tuple(generator.normal(size=shape).astype(np.float32) for shape in (a, b))
    return Sample(operands, {"contract": contract, "batch": batch})


dot = Primitive(
    "dot",
    "The product of two tensors, summed over pairs of axes, element by element over others.",
    type_rule=_dot_type,
    reference=_dot,
    derivatives=[linear(_back_left), linear(_back_right)],
    batch=_batch_dot,
    samples=lambda: [
        _sample((2, 3), (3, 4), ((1,), (0,)), ((), ())),
        _sample((3,), (3,), ((0,), (0,)), ((), ())),
        _sample((2, 3, 4), (2, 4, 5), ((2,), (1,)), ((0,), (0,))),
        _sample((3, 2, 5, 4), (4, 3, 2), ((3, 0), (0, 1)), ((1,), (2,))),
        _sample((2,), (3,), ((), ()), ((), ())),
        _sample((2, 0), (0, 4), ((1,), (0,)), ((), ())),
    ],
)
