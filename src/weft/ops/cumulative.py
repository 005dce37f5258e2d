"""Cumulative forms: running results along one axis, from the front or from the back.

They rest on one linear recurrence, y[k] = a[k]·y[k-1] + b[k]: it is the derivative of the running
product and of the running logarithm of a sum, needs no division, and is closed under derivatives.

>>> import weft as wf
>>> wf.cumulative_sum(wf.tensor([1.0, 2.0, 3.0])).tolist()
[1.0, 3.0, 6.0]
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from weft.core.dtypes import INDEX
from weft.core.errors import AxisError, DTypeError, ShapeError
from weft.core.shapes import Dimension
from weft.core.shapes import equal as equal_sizes
from weft.core.types import TensorType
from weft.ir.batching import move_axis, to_front
from weft.ir.derivatives import OperandDerivative, constant, linear, tangent
from weft.ir.dispatch import apply
from weft.ir.kinds import DEAR, Cumulative
from weft.ir.primitive import Mistake, Primitive, Sample
from weft.ir.tensor import Tensor
from weft.ops.arithmetic import conj
from weft.ops.comparison import equal
from weft.ops.elementary import exp
from weft.ops.movement import pad, slice_
from weft.ops.operands import DTYPE_CLASSES, wrong_dtype
from weft.ops.selection import where

__all__: list[str] = []

Array = np.ndarray[Any, Any]


def _check_axis(op: str, x: TensorType, axis: int) -> None:
    if not 0 <= axis < x.ndim:
        raise AxisError(
            op,
            f"axis {axis} is out of range",
            expected=f"an axis from 0 to {x.ndim - 1}" if x.ndim else "a tensor with an axis",
            got={"x": x, "axis": axis},
            fix="axis=0" if x.ndim else "give x an axis: x.reshape(1)",
        )


def cumulative(
    name: str,
    *,
    doc: str,
    reference: Callable[..., Any],
    derivative: OperandDerivative,
    dtypes: str,
    result: Callable[[TensorType], TensorType] = lambda x: x,
    more_samples: Sequence[Sample] = (),
) -> Primitive:
    """Define a primitive that keeps the shape and runs along one axis, in either direction."""
    allowed = frozenset(DTYPE_CLASSES[dtypes])

    def type_rule(x: TensorType, axis: int, reverse: bool) -> TensorType:
        if x.dtype not in allowed:
            raise wrong_dtype(name, dtypes, {"x": x})
        _check_axis(name, x, axis)
        return result(x)

    def batch(
        size: Dimension,
        operands: tuple[Tensor, ...],
        places: tuple[int, ...],
        /,
        axis: int,
        reverse: bool,
    ) -> tuple[Tensor, int]:
        front = move_axis(operands[0], places[0], 0)
        return apply(primitive, front, axis=axis + 1, reverse=reverse), 0

    primitive = Primitive(
        name,
        doc,
        kind=Cumulative(),
        type_rule=type_rule,
        reference=reference,
        derivatives=[derivative],
        batch=batch,
        samples=lambda: [*_samples(), *more_samples],
        mistakes=lambda: [
            Mistake((np.float32(1),), {"axis": 0, "reverse": False}, AxisError, "out of range"),
            Mistake((np.ones(3, bool),), {"axis": 0, "reverse": False}, DTypeError, "not defined"),
        ],
    )
    return primitive


def _samples() -> list[Sample]:
    square = np.array([[0.5, -1.25, 2], [1.5, 0.75, -0.5]], np.float32)
    return [
        Sample((square,), {"axis": 0, "reverse": False}),
        Sample((square,), {"axis": 1, "reverse": True}),
        Sample((square[:, :0],), {"axis": 1, "reverse": False}),
        Sample((square[0],), {"axis": 0, "reverse": False}),
    ]


def _running_reference(ufunc: np.ufunc) -> Callable[..., Array]:
    """A reference by a running ufunc; floats run in double precision and are rounded once."""

    def reference(x: Array, axis: int, reverse: bool) -> Array:
        wide = x.astype(_IN_DOUBLE.get(x.dtype, x.dtype), copy=False)
        ordered = np.flip(wide, axis) if reverse else wide
        out = ufunc.accumulate(ordered, axis=axis, dtype=wide.dtype)
        return (np.flip(out, axis) if reverse else out).astype(x.dtype, copy=False)

    return reference


_IN_DOUBLE = {
    dtype.numpy: np.dtype(np.complex128 if dtype.is_complex else np.float64)
    for dtype in DTYPE_CLASSES["inexact"]
}


def is_narrow(dtype: np.dtype[Any]) -> bool:
    """Whether this is a 16-bit float, which is computed with in float32."""
    return dtype.itemsize == 2 and dtype.kind not in "iu"


cumulative_sum: Primitive = cumulative(
    "cumulative_sum",
    doc="The sum of each element and all before it, or after it in reverse.",
    reference=_running_reference(np.add),
    derivative=linear(
        lambda ct, x, axis, reverse: apply(cumulative_sum, ct, axis=axis, reverse=not reverse)
    ),
    dtypes="number",
)


def shift_by_one(x: Tensor, axis: int, reverse: bool, first: float) -> Tensor:
    """The tensor moved on by one place along an axis, with a constant in the first place."""
    # One more element in front, and the last one cut off; the other way round in reverse.
    sides = (0, 1, 0) if reverse else (1, 0, 0)
    padding = tuple([sides if each == axis else (0, 0, 0) for each in range(x.ndim)])
    longer = apply(pad, x, padding=padding, value=first)
    starts = tuple([int(reverse and each == axis) for each in range(x.ndim)])
    stops = tuple([dim + start for dim, start in zip(x.shape, starts, strict=True)])
    return apply(slice_, longer, starts=starts, stops=stops, strides=(1,) * x.ndim)


def _recurrence_type(a: TensorType, b: TensorType, axis: int, reverse: bool) -> TensorType:
    name = "linear_recurrence"
    if a.dtype is not b.dtype or a.dtype not in DTYPE_CLASSES["number"]:
        raise wrong_dtype(name, "number", {"a": a, "b": b})
    _check_axis(name, a, axis)
    if a.ndim != b.ndim or not all(map(equal_sizes, a.shape, b.shape)):
        raise ShapeError(
            name,
            "factors and terms have different shapes",
            expected="a.shape == b.shape",
            got={"a": a, "b": b},
            fix="broadcast both to one shape: wf.broadcast_arrays(a, b)",
        )
    return a


def _recurrence(a: Array, b: Array, axis: int, reverse: bool) -> Array:
    factors, terms = np.moveaxis(a, axis, 0), np.moveaxis(b, axis, 0)
    out = np.array(terms)
    count = len(out)
    for step in range(1, count):
        here = count - 1 - step if reverse else step
        out[here] += factors[here] * out[here + 1 if reverse else here - 1]
    return np.moveaxis(out, 0, axis)


def _recurrence_cotangent(ct: Tensor, a: Tensor, b: Tensor, axis: int, reverse: bool) -> Tensor:
    """The adjoint runs the other way: c[k] = ct[k] + conj(a[k+1])·c[k+1]."""
    factors = conj(a) if a.dtype.is_complex else a
    next_factors = shift_by_one(factors, axis, not reverse, 0)
    return apply(linear_recurrence, next_factors, ct, axis=axis, reverse=not reverse)


def _batch_recurrence(
    size: Dimension,
    operands: tuple[Tensor, ...],
    places: tuple[int | None, ...],
    /,
    axis: int,
    reverse: bool,
) -> tuple[Tensor, int]:
    a, b = (to_front(size, x, place) for x, place in zip(operands, places, strict=True))
    return apply(linear_recurrence, a, b, axis=axis + 1, reverse=reverse), 0


def _recurrence_samples() -> list[Sample]:
    a = np.array([[0.5, -1.25, 2], [1.5, 0, -0.5]], np.float32)
    b = np.array([[1, 0.25, -1], [0.5, 2, 1.5]], np.float32)
    return [
        Sample((a, b), {"axis": 1, "reverse": False}),
        Sample((a, b), {"axis": 0, "reverse": True}),
        Sample((a[:, :0], b[:, :0]), {"axis": 1, "reverse": False}),
        Sample(((a + 1j * b).astype(np.complex64), (b - 1j * a).astype(np.complex64)),
               {"axis": 1, "reverse": False}),
    ]  # fmt: skip


linear_recurrence: Primitive = Primitive(
    "linear_recurrence",
    "y[k] = a[k]·y[k-1] + b[k] along an axis, from y[-1] = 0; with y[k+1] in reverse.",
    kind=Cumulative(),
    cost=DEAR,
    type_rule=_recurrence_type,
    reference=_recurrence,
    derivatives=[
        tangent(
            lambda t, out, a, b, axis, reverse: apply(
                linear_recurrence,
                a,
                t * shift_by_one(out, axis, reverse, 0),
                axis=axis,
                reverse=reverse,
            )
        ),
        linear(_recurrence_cotangent),
    ],
    batch=_batch_recurrence,
    samples=_recurrence_samples,
    mistakes=lambda: [
        Mistake(
            (np.ones((2, 3), np.float32), np.ones(3, np.float32)),
            {"axis": 0, "reverse": False},
            ShapeError,
            "different shapes",
        )
    ],
)

cumulative_prod = cumulative(
    "cumulative_prod",
    doc="The product of each element and all before it, or after it in reverse.",
    reference=_running_reference(np.multiply),
    derivative=tangent(
        lambda t, out, x, axis, reverse: apply(
            linear_recurrence,
            x,
            t * shift_by_one(out, axis, reverse, 1),
            axis=axis,
            reverse=reverse,
        )
    ),
    dtypes="number",
    more_samples=[
        Sample((np.array([2, 0, 3, 0, 0.5], np.float32),), {"axis": 0, "reverse": False}),
        Sample((np.array([1 + 2j, 0, 0.5 - 1j], np.complex64),), {"axis": 0, "reverse": True}),
    ],
)


def _log_sums_tangent(t: Tensor, out: Tensor, x: Tensor, axis: int, reverse: bool) -> Tensor:
    """dout[k] = exp(out[k-1] - out[k]) · dout[k-1] + exp(x[k] - out[k]) · t[k]."""
    before = shift_by_one(out, axis, reverse, -float("inf"))
    level = where(equal(out, -float("inf")), 0.0, out)
    fading, weight = exp(before - level), exp(x - level)
    return apply(linear_recurrence, fading, t * weight, axis=axis, reverse=reverse)


cumulative_logsumexp = cumulative(
    "cumulative_logsumexp",
    doc="The logarithm of the sum of exponentials of each element and all before it.",
    reference=_running_reference(np.logaddexp),
    derivative=tangent(_log_sums_tangent),
    dtypes="float",
)


def _position_so_far(extreme: np.ufunc) -> Callable[..., Array]:
    """Where the extreme of all elements so far stands; among equals the latest, as in PyTorch."""
    running = _running_reference(extreme)

    def reference(x: Array, axis: int, reverse: bool) -> Array:
        best = running(x, axis, reverse)
        here = (x == best) | (x != x)
        count = x.shape[axis]
        places = np.arange(count).reshape(-1, *[1] * (x.ndim - axis - 1))
        if reverse:
            return _running_reference(np.minimum)(np.where(here, places, count), axis, True)
        return _running_reference(np.maximum)(np.where(here, places, 0), axis, False)

    return reference


def _positions(name: str, doc: str, extreme: np.ufunc) -> Primitive:
    return cumulative(
        name,
        doc=doc,
        reference=_position_so_far(extreme),
        derivative=constant("a position has no derivative"),
        dtypes="real",
        result=lambda x: x.with_dtype(INDEX),
    )


cumulative_argmax = _positions(
    "cumulative_argmax", "The position of the largest element so far along an axis.", np.maximum
)
cumulative_argmin = _positions(
    "cumulative_argmin", "The position of the smallest element so far along an axis.", np.minimum
)
