"""Contraction: the general product of two tensors over shared axes.

Every matrix product, inner product and einsum of the framework is the one primitive `dot`: pairs
of axes are summed over (`contract`) or walked through together (`batch`); the axes that are left
stand behind the batch axes, those of the left operand first.

>>> import weft as wf
>>> (wf.ones((2, 3)) @ wf.ones((3, 4))).shape
(2, 4)
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod
from typing import Any

import numpy as np

from weft.core.arrays import HostArray
from weft.core.errors import AxisError, DTypeError, ShapeError
from weft.core.shapes import Dimension, require_equal, size
from weft.core.types import TensorType
from weft.ir.batching import move_axis
from weft.ir.derivatives import linear
from weft.ir.dispatch import apply, quiet
from weft.ir.kinds import Contraction
from weft.ir.primitive import Mistake, Primitive, Sample
from weft.ir.tape import record
from weft.ir.tensor import Tensor, grad_mode, traces, wrap
from weft.ops import sharding_rules as shardings
from weft.ops.arithmetic import conj
from weft.ops.cumulative import is_narrow
from weft.ops.movement import transpose
from weft.ops.movement_backs import inverse
from weft.ops.operands import DTYPE_CLASSES, wrong_dtype

__all__: list[str] = []

Array = np.ndarray[Any, Any]
Axes = tuple[tuple[int, ...], tuple[int, ...]]
NONE: Axes = ((), ())
ROWS_BY_COLUMNS: Axes = ((1,), (0,))
_NUMBERS = frozenset(DTYPE_CLASSES["number"])
_BLAS = frozenset(np.dtype(kind) for kind in ("f4", "f8", "c8", "c16"))
LONGEST = 16 * 1024
"""Terms that are left to the BLAS at a time: its sums lose digits with their length."""
_PLAIN = {"contract": ROWS_BY_COLUMNS, "batch": NONE}


def free_axes(ndim: int, *taken: tuple[int, ...]) -> tuple[int, ...]:
    """The axes that are in none of the given groups."""
    used = {axis for group in taken for axis in group}
    return tuple([axis for axis in range(ndim) if axis not in used])


def _dot_type(a: TensorType, b: TensorType, contract: Axes, batch: Axes) -> TensorType:
    if a.dtype is not b.dtype or a.dtype not in _NUMBERS:
        raise wrong_dtype("dot", "number", {"a": a, "b": b})
    _check_pairs(a, b, contract, batch)
    for left, right in zip(contract[0] + batch[0], contract[1] + batch[1], strict=True):
        if a.shape[left] != b.shape[right]:
            require_equal(
                "dot",
                a.shape[left],
                b.shape[right],
                expected=f"a.shape[{left}] == b.shape[{right}]",
                got={"a": a, "b": b},
                fix=f"give both sides {a.shape[left]} there, or transpose one of them",
                what="paired dimensions differ",
            )
    shape = [a.shape[axis] for axis in batch[0]]
    shape += [a.shape[axis] for axis in free_axes(a.ndim, contract[0], batch[0])]
    shape += [b.shape[axis] for axis in free_axes(b.ndim, contract[1], batch[1])]
    return TensorType(a.dtype, tuple(shape))


def _check_pairs(a: TensorType, b: TensorType, contract: Axes, batch: Axes) -> None:
    paired = len(contract[0]) == len(contract[1]) and len(batch[0]) == len(batch[1])
    for side, operand in enumerate((a, b)):
        axes = contract[side] + batch[side]
        there = all(0 <= axis < operand.ndim for axis in axes)
        if not paired or not there or len(set(axes)) != len(axes):
            raise AxisError(
                "dot",
                "axes do not pair up",
                expected="as many axes of a as of b, each there and named once",
                got={"a": a, "b": b, "contract": contract, "batch": batch},
                fix="contract=((1,), (0,)), batch=((), ())",
            )


def _dot(a: Array, b: Array, contract: Axes, batch: Axes) -> Any:
    """One (stacked) matrix product, on views wherever the axes allow it."""
    if is_narrow(a.dtype):
        wide = _dot(a.astype(np.float32), b.astype(np.float32), contract, batch)
        return np.asarray(wide).astype(a.dtype)
    if contract == ROWS_BY_COLUMNS and not batch[0] and a.ndim == 2 and b.ndim == 2:
        return _product(a, b)
    free_a = free_axes(a.ndim, contract[0], batch[0])
    free_b = free_axes(b.ndim, contract[1], batch[1])
    if not contract[0]:
        left = a.transpose(*batch[0], *free_a)
        return left[(..., *[None] * len(free_b))] * _with_gap(b, batch[1], free_b, len(free_a))
    pairs = sorted(zip(*contract, strict=True))
    left = _matrices(a, batch[0], free_a, [pair[0] for pair in pairs])
    right = _matrices(b, batch[1], free_b, [pair[1] for pair in pairs])
    out = _product(left, right.swapaxes(-1, -2))
    shape = [a.shape[axis] for axis in (*batch[0], *free_a)]
    return out.reshape([*shape, *[b.shape[axis] for axis in free_b]])


def _product(left: Array, right: Array) -> Any:
    """The (stacked) matrix product; a long one in blocks of terms, which are added in double."""
    terms = left.shape[-1]
    if terms <= 2 * LONGEST or left.dtype.kind in "iu":
        return np.matmul(left, right)
    total: Any = 0.0
    for start in range(0, terms, LONGEST):
        block = slice(start, start + LONGEST)
        total = total + np.matmul(left[..., block], right[..., block, :])
        total = total.astype(np.result_type(total, np.float64), copy=False)
    return total.astype(left.dtype)


def _with_gap(b: Array, batch: Sequence[int], free: Sequence[int], gap: int) -> Array:
    """The right operand with axes of size 1 where the left one's free axes are."""
    batch_first = b.transpose(*batch, *free)
    stack = len(batch)
    shape = [*batch_first.shape[:stack], *[1] * gap, *batch_first.shape[stack:]]
    return batch_first.reshape(shape)


def _matrices(
    x: Array, batch: Sequence[int], free: Sequence[int], contract: Sequence[int]
) -> Array:
    """The operand as [*batch, free, contract]: a view, unless groups of axes are interleaved."""
    stack = [x.shape[axis] for axis in batch]
    rows = prod([x.shape[axis] for axis in free])
    columns = prod([x.shape[axis] for axis in contract])
    if len(free) > 0 and contract[0] < free[0]:  # then the contracted axes lie outside
        contract_first = x.transpose(*batch, *contract, *free)
        return contract_first.reshape(*stack, columns, rows).swapaxes(-1, -2)
    return x.transpose(*batch, *free, *contract).reshape(*stack, rows, columns)


def _conj(x: Tensor) -> Tensor:
    return conj(x) if x.dtype.is_complex else x


def _left_cotangent(ct: Tensor, a: Tensor, b: Tensor, contract: Axes, batch: Axes) -> Tensor:
    """The cotangent of the left operand: ct times b over b's free axes."""
    stack = tuple(range(len(batch[0])))
    free_a = free_axes(a.ndim, contract[0], batch[0])
    free_b = free_axes(b.ndim, contract[1], batch[1])
    # ct: [*batch, *free_a, *free_b], so its last axes are b's free ones.
    columns = tuple(range(len(stack) + len(free_a), ct.ndim))
    back = apply(dot, ct, _conj(b), contract=(columns, free_b), batch=(stack, batch[1]))
    # back: [*batch, *free_a, *contracted], the contracted axes in the order in which b has them.
    paired = [left for _, left in sorted(zip(contract[1], contract[0], strict=True))]
    return _place_axes(back, (*batch[0], *free_a, *paired))


def _right_cotangent(ct: Tensor, a: Tensor, b: Tensor, contract: Axes, batch: Axes) -> Tensor:
    """The cotangent of the right operand: a times ct over a's free axes."""
    stack = tuple(range(len(batch[0])))
    free_a = free_axes(a.ndim, contract[0], batch[0])
    free_b = free_axes(b.ndim, contract[1], batch[1])
    rows = tuple(range(len(stack), len(stack) + len(free_a)))
    back = apply(dot, _conj(a), ct, contract=(free_a, rows), batch=(batch[0], stack))
    paired = [right for _, right in sorted(zip(contract[0], contract[1], strict=True))]
    return _place_axes(back, (*batch[1], *paired, *free_b))


def _place_axes(x: Tensor, places: tuple[int, ...]) -> Tensor:
    """Axis i of x put at position places[i]."""
    order = inverse(places)
    return x if order == tuple(range(x.ndim)) else apply(transpose, x, order=order)


def _batch_dot(
    size: Dimension,
    operands: tuple[Tensor, ...],
    axes: tuple[int | None, ...],
    contract: Axes,
    batch: Axes,
) -> tuple[Tensor, int]:
    fronts = [x if i is None else move_axis(x, i, 0) for x, i in zip(operands, axes, strict=True)]
    shifts = [axis is not None for axis in axes]
    contract, batch = _shift_axes(contract, shifts), _shift_axes(batch, shifts)
    if all(shifts):
        batch = ((0, *batch[0]), (0, *batch[1]))
        return apply(dot, *fronts, contract=contract, batch=batch), 0
    # The batch axis of one operand is its first free axis.
    out = apply(dot, *fronts, contract=contract, batch=batch)
    columns = fronts[1].ndim - len(batch[1]) - len(contract[1])
    return out, len(batch[0]) if shifts[0] else out.ndim - columns


def _shift_axes(axes: Axes, by: Sequence[int]) -> Axes:
    return tuple([axis + by[0] for axis in axes[0]]), tuple([axis + by[1] for axis in axes[1]])


def plain_product(x1: Any, x2: Any) -> Tensor | None:
    """The product of two concrete matrices by the shortest way; None where it is not so simple."""
    if type(x1) is not Tensor or type(x2) is not Tensor or traces.keeper is not None:
        return None
    a, b = x1._value, x2._value
    if type(a) is not HostArray or type(b) is not HostArray or a.dtype not in _BLAS:
        return None
    if a.dtype is not b.dtype or not a.ndim == b.ndim == 2 or a.shape[1] != b.shape[0]:
        return None
    if a.shape[1] > 2 * LONGEST:
        return None
    try:
        result = wrap(quiet(np.matmul, a, b))
    except (RuntimeError, MemoryError):  # another thread has the context without warnings, or
        return None  # the way that explains what does not fit
    if grad_mode.enabled and (x1._node is not None or x2._node is not None):
        record(dot, _PLAIN, (x1, x2), result)
    return result


def _sample(
    a: tuple[int, ...], b: tuple[int, ...], contract: Axes, batch: Axes, dtype: str = "float32"
) -> Sample:
    generator = np.random.default_rng(len(a) * 7 + len(b))
    parts = [generator.normal(size=(2, *shape)) * 2 for shape in (a, b)]
    operands = [x[0] + 1j * x[1] if dtype[0] == "c" else x[0] for x in parts]
    return Sample(
        tuple(np.asarray(x).astype(dtype) for x in operands),
        {"contract": contract, "batch": batch},
    )


def _mistakes() -> list[Mistake]:
    a, b = np.ones((2, 3), np.float32), np.ones((4, 5), np.float32)
    return [
        Mistake((a, b), _PLAIN, ShapeError, "paired dimensions differ"),
        Mistake((a, a), {"contract": ((1, 0), (0,)), "batch": NONE}, AxisError, "pair up"),
        Mistake((a, a), {"contract": ((2,), (0,)), "batch": NONE}, AxisError, "pair up"),
        Mistake((a, a.T.astype(int)), _PLAIN, DTypeError, "not defined"),
    ]


def _operations(
    operands: Sequence[TensorType], results: Sequence[TensorType], params: Mapping[str, Any]
) -> Dimension:
    """A multiplication and an addition for each term of each element."""
    terms = size([operands[0].shape[axis] for axis in params["contract"][0]])
    return 2 * terms * results[0].size


dot = Primitive(
    "dot",
    "The product of two tensors, summed over pairs of axes, element by element over others.",
    kind=Contraction(_operations, "product"),
    sharding=shardings.of_dot,
    type_rule=_dot_type,
    reference=_dot,
    derivatives=[linear(_left_cotangent), linear(_right_cotangent)],
    batch=_batch_dot,
    samples=lambda: [
        _sample((2, 3), (3, 4), ROWS_BY_COLUMNS, NONE),
        _sample((3,), (3,), ((0,), (0,)), NONE),
        _sample((2, 3, 4), (2, 4, 5), ((2,), (1,)), ((0,), (0,))),
        _sample((3, 2, 5, 4), (4, 3, 2), ((3, 0), (0, 1)), ((1,), (2,))),
        _sample((2, 4, 3), (4, 2, 5), ((1, 0), (0, 1)), NONE),
        _sample((2, 3), (2, 3), NONE, ((0, 1), (0, 1))),
        _sample((3, 2), (2, 4), NONE, ((1,), (0,))),
        _sample((2, 3), (2, 3), ((1,), (1,)), ((0,), (0,))),
        _sample((2,), (3,), NONE, NONE),
        _sample((), (3,), NONE, NONE),
        _sample((2, 0), (0, 4), ROWS_BY_COLUMNS, NONE),
        _sample((2, 3), (3, 2), ROWS_BY_COLUMNS, NONE, "complex64"),
        _sample((4, 3), (3, 4), ROWS_BY_COLUMNS, ((0,), (1,))),
        _sample((4, 3), (3, 4), ROWS_BY_COLUMNS, ((0,), (1,)), "complex64"),
        _sample((2, 3), (4, 3), ((1,), (1,)), NONE, "int64"),
    ],
    mistakes=_mistakes,
)
