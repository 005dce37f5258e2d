"""Reductions, running forms and statistics, with the signatures of the Array API standard.

Integers of few bits are added and multiplied in 64 bits; means of integers are float32.

>>> import weft as wf
>>> wf.mean(wf.tensor([1.0, 2.0, 6.0])).item()
3.0
"""

from __future__ import annotations

import builtins
from typing import Any

import numpy as np

from weft.core.arrays import is_host
from weft.core.dimensions import is_zero
from weft.core.dtypes import DType, as_dtype, bool_, float64, int64, real_of, uint64
from weft.core.errors import ArgumentError, AxisError
from weft.core.shapes import Dimension, normalize_axes, normalize_axis, size
from weft.ir.constants import beside_operands, place_beside
from weft.ir.dispatch import apply
from weft.ir.eager import unit
from weft.ir.primitive import Primitive
from weft.ir.remembered_calls import remember_calls
from weft.ir.tensor import Tensor
from weft.ops import cumulative, reduction
from weft.ops.arithmetic import ceil, conj, floor, real, square
from weft.ops.comparison import equal, greater, isfinite, isnan, not_equal
from weft.ops.composed.ingestion import ingest
from weft.ops.elementary import exp, log, sqrt
from weft.ops.identity import stop_gradient
from weft.ops.indexing import extent, gather
from weft.ops.movement import concatenate, pad, reshape, slice_, transpose
from weft.ops.operands import (
    alias,
    allowed_dtype,
    as_integer,
    as_number,
    as_tensor,
    convert_to,
    promote_operands,
    widen_sums,
    with_room_for_sums,
    wrong_dtype,
)
from weft.ops.selection import where
from weft.ops.sorting import sort as sorted_along
from weft.ops.sorting import take_along

__all__ = [
    "all", "any", "argmax", "argmin", "average", "cummax", "cummin", "cumulative_logsumexp",
    "cumulative_prod", "cumulative_sum", "diff", "logsumexp", "max", "mean", "median", "min",
    "nanmean", "nansum", "prod", "quantile", "std", "sum", "var",
]  # fmt: skip

Axis = int | tuple[int, ...] | None
Axes = tuple[int, ...]


def _axes(op: str, x: Tensor, axis: Axis) -> Axes:
    return tuple(sorted(normalize_axes(op, axis, x.ndim, {"x": x})))


def _reduce_axes(primitive: Primitive, x: Tensor, axes: Axes, keepdims: bool) -> Tensor:
    out = apply(primitive, x, axes=axes)
    return reduction.keep_reduced(out, x, axes) if keepdims else out


def _inexact_operand(op: str, x: Any) -> Tensor:
    """The operand in a dtype that has fractions: integers as float32."""
    tensor = as_tensor(op, x)
    return convert_to(tensor, allowed_dtype(op, tensor.dtype, "inexact", (tensor,)))


# --- sums and products -------------------------------------------------------------------------


def _accumulator(dtype: DType, wanted: object) -> DType:
    """The dtype that sums of a dtype are accumulated in."""
    if wanted is not None:
        return as_dtype(wanted)
    if dtype.kind == "unsigned":
        return uint64
    return dtype if dtype.is_inexact else int64


@remember_calls
def sum(x: Any, /, *, axis: Axis = None, dtype: Any = None, keepdims: bool = False) -> Tensor:
    """The sum of the elements, all of them or along axes; the sum of no elements is 0.

    Integers are added in 64 bits unless `dtype` says otherwise.

    >>> import weft as wf
    >>> wf.sum(wf.tensor([[1, 2], [3, 4]]), axis=0).tolist()
    [4, 6]
    """
    tensor = as_tensor("sum", x)
    wide = convert_to(tensor, _accumulator(tensor.dtype, dtype))
    return _reduce_axes(reduction.reduce_sum, wide, _axes("sum", tensor, axis), keepdims)


@remember_calls
def prod(x: Any, /, *, axis: Axis = None, dtype: Any = None, keepdims: bool = False) -> Tensor:
    """The product of the elements, all of them or along axes; the product of no elements is 1.

    >>> import weft as wf
    >>> wf.prod(wf.tensor([2.0, 3.0, 4.0])).item()
    24.0
    """
    tensor = as_tensor("prod", x)
    wide = convert_to(tensor, _accumulator(tensor.dtype, dtype))
    return _reduce_axes(reduction.reduce_prod, wide, _axes("prod", tensor, axis), keepdims)


@unit
def nansum(x: Any, /, *, axis: Axis = None, dtype: Any = None, keepdims: bool = False) -> Tensor:
    """The sum of the elements that are not NaN.

    >>> import weft as wf
    >>> wf.nansum(wf.tensor([1.0, float("nan"), 2.0])).item()
    3.0
    """
    tensor = as_tensor("nansum", x)
    if tensor.dtype.is_inexact:
        tensor = where(isnan(tensor), 0.0, tensor)
    return sum(tensor, axis=axis, dtype=dtype, keepdims=keepdims)


# --- extremes and truth ------------------------------------------------------------------------


@remember_calls
def max(x: Any, /, *, axis: Axis = None, keepdims: bool = False) -> Tensor:
    """The largest element, of all or along axes; NaN if there is one among them.

    Equal largest elements share the derivative evenly.

    >>> import weft as wf
    >>> wf.max(wf.tensor([[1.0, 5.0], [4.0, 2.0]]), axis=1).tolist()
    [5.0, 4.0]
    """
    return _extreme("max", reduction.reduce_max, x, axis, keepdims)


@remember_calls
def min(x: Any, /, *, axis: Axis = None, keepdims: bool = False) -> Tensor:
    """The smallest element, of all or along axes; NaN if there is one among them.

    >>> import weft as wf
    >>> wf.min(wf.tensor([[1.0, 5.0], [4.0, 2.0]]), axis=1).tolist()
    [1.0, 2.0]
    """
    return _extreme("min", reduction.reduce_min, x, axis, keepdims)


def _extreme(op: str, primitive: Primitive, x: Any, axis: Axis, keepdims: bool) -> Tensor:
    tensor = as_tensor(op, x)
    if tensor.dtype.is_complex:
        raise wrong_dtype(op, "ordered", {"x": tensor})
    axes = _axes(op, tensor, axis)
    reduction.refuse_empty(op, tensor.type, axes)
    return _reduce_axes(primitive, tensor, axes, keepdims)


def _truth(op: str, x: Any) -> Tensor:
    tensor = as_tensor(op, x)
    return tensor if tensor.dtype is bool_ else not_equal(tensor, 0)


@remember_calls
def any(x: Any, /, *, axis: Axis = None, keepdims: bool = False) -> Tensor:
    """Whether any element is true, that is not 0; false for no elements.

    >>> import weft as wf
    >>> wf.any(wf.tensor([[0, 1], [0, 0]]), axis=1).tolist()
    [True, False]
    """
    tensor = _truth("any", x)
    return _reduce_axes(reduction.reduce_any, tensor, _axes("any", tensor, axis), keepdims)


@remember_calls
def all(x: Any, /, *, axis: Axis = None, keepdims: bool = False) -> Tensor:
    """Whether all elements are true, that is not 0; true for no elements.

    >>> import weft as wf
    >>> wf.all(wf.tensor([[1, 1], [0, 1]]), axis=1).tolist()
    [True, False]
    """
    tensor = _truth("all", x)
    return _reduce_axes(reduction.reduce_all, tensor, _axes("all", tensor, axis), keepdims)


def _position(op: str, primitive: Primitive, x: Any, axis: int | None, keepdims: bool) -> Tensor:
    tensor = as_tensor(op, x)
    if axis is None:
        flat = apply(reshape, tensor, shape=(tensor.size,))
        out = apply(primitive, flat, axis=0)
        return apply(reshape, out, shape=(1,) * tensor.ndim) if keepdims else out
    place = normalize_axis(op, axis, tensor.ndim, {"x": tensor})
    out = apply(primitive, tensor, axis=place)
    return reduction.keep_reduced(out, tensor, (place,)) if keepdims else out


@remember_calls
def argmax(x: Any, /, *, axis: int | None = None, keepdims: bool = False) -> Tensor:
    """The position of the first largest element along an axis, or in row-major order of all.

    >>> import weft as wf
    >>> wf.argmax(wf.tensor([[1.0, 5.0], [4.0, 2.0]]), axis=1).tolist()
    [1, 0]
    """
    return _position("argmax", reduction.argmax_, x, axis, keepdims)


@remember_calls
def argmin(x: Any, /, *, axis: int | None = None, keepdims: bool = False) -> Tensor:
    """The position of the first smallest element along an axis, or in row-major order of all.

    >>> import weft as wf
    >>> wf.argmin(wf.tensor([[1.0, 5.0], [4.0, 2.0]]), axis=1).tolist()
    [0, 1]
    """
    return _position("argmin", reduction.argmin_, x, axis, keepdims)


# --- means and spreads -------------------------------------------------------------------------


def _count(x: Tensor, axes: Axes) -> float | Tensor:
    """How many elements are reduced: a number, or a tensor where sizes are symbols."""
    count = size([x.shape[axis] for axis in axes])
    return float(count) if isinstance(count, int) else convert_to(extent(count), real_of(x.dtype))


def _mean(x: Tensor, axes: Axes, keepdims: bool) -> Tensor:
    return _reduce_axes(reduction.reduce_sum, x, axes, keepdims) / _count(x, axes)


@remember_calls
def mean(x: Any, /, *, axis: Axis = None, keepdims: bool = False) -> Tensor:
    """The arithmetic mean, of all elements or along axes; NaN for no elements.

    >>> import weft as wf
    >>> wf.mean(wf.tensor([[1, 2], [3, 6]]), axis=0).tolist()
    [2.0, 4.0]
    """
    tensor = _inexact_operand("mean", x)
    out = _mean(widen_sums(tensor), _axes("mean", tensor, axis), keepdims)
    return convert_to(out, tensor.dtype)


@unit
def nanmean(x: Any, /, *, axis: Axis = None, keepdims: bool = False) -> Tensor:
    """The mean of the elements that are not NaN.

    >>> import weft as wf
    >>> wf.nanmean(wf.tensor([1.0, float("nan"), 2.0])).item()
    1.5
    """
    tensor = _inexact_operand("nanmean", x)
    wide = widen_sums(tensor)
    there = convert_to(equal(wide, wide), real_of(wide.dtype))
    total = nansum(wide, axis=axis, keepdims=keepdims)
    return convert_to(total / sum(there, axis=axis, keepdims=keepdims), tensor.dtype)


def average(x: Any, /, *, axis: Axis = None, weights: Any = None, keepdims: bool = False) -> Tensor:
    """The mean, each element counted by its weight; weights broadcast against x.

    >>> import weft as wf
    >>> wf.average(wf.tensor([1.0, 4.0]), weights=wf.tensor([3.0, 1.0])).item()
    1.75
    """
    if weights is None:
        return mean(x, axis=axis, keepdims=keepdims)
    given = promote_operands("average", (x, weights), "inexact")
    values, weighing = (widen_sums(each) for each in given)
    products = values * weighing
    spread = weighing + values * 0.0 if weighing.shape != products.shape else weighing
    total = sum(products, axis=axis, keepdims=keepdims)
    return convert_to(total / sum(spread, axis=axis, keepdims=keepdims), given[0].dtype)


def _variance(op: str, x: Any, axis: Axis, correction: float, keepdims: bool) -> Tensor:
    tensor = widen_sums(_inexact_operand(op, x))
    axes = _axes(op, tensor, axis)
    deviation = tensor - _mean(tensor, axes, keepdims=True)
    is_complex = deviation.dtype.is_complex
    squares = real(deviation * conj(deviation)) if is_complex else square(deviation)
    freedom = _count(tensor, axes) - as_number(op, "correction", correction)
    if isinstance(freedom, float):
        freedom = builtins.max(freedom, 0.0)
    return _reduce_axes(reduction.reduce_sum, squares, axes, keepdims) / freedom


@unit
def var(x: Any, /, *, axis: Axis = None, correction: float = 0.0, keepdims: bool = False) -> Tensor:
    """The variance: the mean square deviation from the mean, divided by n - correction.

    >>> import weft as wf
    >>> wf.var(wf.tensor([1.0, 3.0])).item(), wf.var(wf.tensor([1.0, 3.0]), correction=1).item()
    (1.0, 2.0)
    """
    dtype = real_of(_inexact_operand("var", x).dtype)
    return convert_to(_variance("var", x, axis, correction, keepdims), dtype)


@unit
def std(x: Any, /, *, axis: Axis = None, correction: float = 0.0, keepdims: bool = False) -> Tensor:
    """The standard deviation; where it is 0, its derivative is taken as 0.

    >>> import weft as wf
    >>> wf.std(wf.tensor([1.0, 3.0])).item()
    1.0
    """
    dtype = real_of(_inexact_operand("std", x).dtype)
    variance = _variance("std", x, axis, correction, keepdims)
    varies = greater(variance, 0.0)
    root = where(varies, sqrt(where(varies, variance, 1.0)), variance)
    return convert_to(root, dtype)


@unit
def logsumexp(x: Any, /, *, axis: Axis = None, keepdims: bool = False) -> Tensor:
    """The logarithm of the sum of exponentials, without overflow; -inf for no elements.

    Elements of -inf count as nothing, also where all are: the derivative there is 0.

    >>> import weft as wf
    >>> round(wf.logsumexp(wf.tensor([1000.0, 1000.0])).item(), 3)
    1000.693
    """
    tensor = _inexact_operand("logsumexp", x)
    axes = _axes("logsumexp", tensor, axis)
    if builtins.any(is_zero(tensor.shape[each]) for each in axes):
        empty = _reduce_axes(reduction.reduce_sum, tensor, axes, keepdims)
        return empty - float("inf")
    shift = _shift(tensor, axes)
    powers = with_room_for_sums(exp(tensor - shift), axes)
    total = _reduce_axes(reduction.reduce_sum, powers, axes, keepdims=True)
    nothing = equal(total, 0.0)
    logarithm = where(nothing, -float("inf"), log(where(nothing, 1.0, total)))
    out = convert_to(logarithm, tensor.dtype) + shift
    if keepdims:
        return out
    dropped = tuple([dim for place, dim in enumerate(out.shape) if place not in axes])
    return apply(reshape, out, shape=dropped)


def _shift(x: Tensor, axes: Axes) -> Tensor:
    """The largest element along axes, kept, as a constant; 0 where it is infinite or NaN.

    Subtracting it before exponentials avoids overflow and cancels out of the result.
    """
    level = real(x) if x.dtype.is_complex else x
    top = _reduce_axes(reduction.reduce_max, stop_gradient(level), axes, keepdims=True)
    return convert_to(where(isfinite(top), top, 0.0), x.dtype)


# --- order statistics --------------------------------------------------------------------------


@unit
def median(x: Any, /, *, axis: Axis = None, keepdims: bool = False) -> Tensor:
    """The middle element in order, or the mean of the two middle ones; NaN if there is one.

    >>> import weft as wf
    >>> wf.median(wf.tensor([3.0, 1.0, 2.0, 10.0])).item()
    2.5
    """
    half = place_beside(_fractions("median", 0.5), x)
    return _quantiles("median", _inexact_operand("median", x), half, axis, keepdims)


@beside_operands
def quantile(x: Any, q: Any, /, *, axis: Axis = None, keepdims: bool = False) -> Tensor:
    """The value below which a fraction q of the elements lies, interpolated linearly.

    The axes of q stand before those of the result, as in NumPy.

    >>> import weft as wf
    >>> wf.quantile(wf.tensor([0.0, 1.0, 2.0, 3.0]), 0.25).item()
    0.75
    """
    tensor = _inexact_operand("quantile", x)
    fractions = place_beside(_fractions("quantile", q), tensor)
    return _quantiles("quantile", tensor, fractions, axis, keepdims)


@unit
def _quantiles(op: str, tensor: Tensor, fractions: Tensor, axis: Axis, keepdims: bool) -> Tensor:
    axes = _axes(op, tensor, axis)
    reduction.refuse_empty(op, tensor.type, axes)
    line = _line_up(tensor, axes)  # [*rest, count]
    count = line.shape[-1]
    ordered = apply(sorted_along, line, axis=line.ndim - 1, descending=False)
    place = fractions * convert_to(extent(count - 1), float64)
    low, high = _elements_at(ordered, floor(place)), _elements_at(ordered, ceil(place))
    share = _add_trailing_axes(convert_to(place - floor(place), tensor.dtype), line.ndim - 1)
    mixed = where(equal(share, 0.0), low, low * (1.0 - share) + high * share)
    largest = _elements_at(ordered, extent(count - 1))
    out = where(isnan(largest), float("nan"), mixed)
    if keepdims:
        inner = tuple([1 if each in axes else dim for each, dim in enumerate(tensor.shape)])
        out = apply(reshape, out, shape=(*fractions.shape, *inner))
    return out


def _fractions(op: str, q: Any) -> Tensor:
    given = ingest(op, q, float64)[0] if isinstance(q, (list, tuple, float, int)) else q
    fractions = convert_to(as_tensor(op, given, "q"), float64)
    value = fractions._value
    if is_host(value) and not bool(np.all((value >= 0) & (value <= 1))):
        raise ArgumentError(
            op,
            "a fraction is outside 0 to 1",
            expected="0 <= q <= 1",
            got={"q": q},
            fix="divide percentages by 100",
        )
    return fractions


def _line_up(x: Tensor, axes: Axes) -> Tensor:
    """The tensor with some axes merged into one, which is the last."""
    rest = tuple([axis for axis in range(x.ndim) if axis not in axes])
    axes_last = apply(transpose, x, order=(*rest, *axes))
    rest_shape = axes_last.shape[: len(rest)]
    return apply(reshape, axes_last, shape=(*rest_shape, size([x.shape[axis] for axis in axes])))


def _elements_at(ordered: Tensor, place: Tensor) -> Tensor:
    """Elements along the last axis at whole places: [*place, *rest]."""
    return apply(gather, ordered, convert_to(place, int64), axes=(ordered.ndim - 1,))


def _add_trailing_axes(x: Tensor, axes: int) -> Tensor:
    return apply(reshape, x, shape=(*x.shape, *[1] * axes))


# --- running forms -----------------------------------------------------------------------------


def _running_axis(op: str, x: Tensor, axis: int | None) -> int:
    if axis is None and x.ndim != 1:
        raise AxisError(
            op,
            "axis is needed unless the tensor has exactly one axis",
            expected=f"an axis from {-x.ndim} to {x.ndim - 1}" if x.ndim else "a tensor with axes",
            got={"x": x, "axis": axis},
            fix=f"{op}(x, axis=-1)" if x.ndim else f"{op}(x.reshape(1))",
        )
    return normalize_axis(op, 0 if axis is None else axis, x.ndim, {"x": x})


def _cumulate(
    op: str, primitive: Primitive, x: Any, axis: int | None, dtype: Any, initial: float | None
) -> Tensor:
    tensor = as_tensor(op, x)
    place = _running_axis(op, tensor, axis)
    wide = convert_to(tensor, _accumulator(tensor.dtype, dtype))
    out = apply(primitive, wide, axis=place, reverse=False)
    if initial is None:
        return out
    padding = tuple([(int(each == place), 0, 0) for each in range(out.ndim)])
    return apply(pad, out, padding=padding, value=initial)


@remember_calls
def cumulative_sum(
    x: Any, /, *, axis: int | None = None, dtype: Any = None, include_initial: bool = False
) -> Tensor:
    """The sums of each element and all before it; with a 0 in front if `include_initial`.

    >>> import weft as wf
    >>> wf.cumulative_sum(wf.tensor([1, 2, 3]), include_initial=True).tolist()
    [0, 1, 3, 6]
    """
    initial = 0 if include_initial else None
    return _cumulate("cumulative_sum", cumulative.cumulative_sum, x, axis, dtype, initial)


@remember_calls
def cumulative_prod(
    x: Any, /, *, axis: int | None = None, dtype: Any = None, include_initial: bool = False
) -> Tensor:
    """The products of each element and all before it; with a 1 in front if `include_initial`.

    >>> import weft as wf
    >>> wf.cumulative_prod(wf.tensor([1, 2, 3])).tolist()
    [1, 2, 6]
    """
    initial = 1 if include_initial else None
    return _cumulate("cumulative_prod", cumulative.cumulative_prod, x, axis, dtype, initial)


@unit
def cumulative_logsumexp(x: Any, /, *, axis: int | None = None) -> Tensor:
    """The logarithm of the running sum of exponentials, without overflow.

    >>> import weft as wf
    >>> wf.cumulative_logsumexp(wf.tensor([0.0, float("-inf"), 0.0])).numpy().round(3).tolist()
    [0.0, 0.0, 0.6930000185966492]
    """
    tensor = _inexact_operand("cumulative_logsumexp", x)
    place = _running_axis("cumulative_logsumexp", tensor, axis)
    return apply(cumulative.cumulative_logsumexp, tensor, axis=place, reverse=False)


def cummax(x: Any, /, *, axis: int = -1) -> tuple[Tensor, Tensor]:
    """The largest element so far along an axis, and its position.

    >>> import weft as wf
    >>> [part.tolist() for part in wf.cummax(wf.tensor([1.0, 3.0, 2.0]))]
    [[1.0, 3.0, 3.0], [0, 1, 1]]
    """
    return _extreme_so_far("cummax", cumulative.cumulative_argmax, x, axis)


def cummin(x: Any, /, *, axis: int = -1) -> tuple[Tensor, Tensor]:
    """The smallest element so far along an axis, and its position.

    >>> import weft as wf
    >>> [part.tolist() for part in wf.cummin(wf.tensor([2.0, 3.0, 1.0]))]
    [[2.0, 2.0, 1.0], [0, 0, 2]]
    """
    return _extreme_so_far("cummin", cumulative.cumulative_argmin, x, axis)


def _extreme_so_far(op: str, primitive: Primitive, x: Any, axis: int) -> tuple[Tensor, Tensor]:
    tensor = as_tensor(op, x)
    place = normalize_axis(op, axis, tensor.ndim, {"x": tensor})
    indices = apply(primitive, tensor, axis=place, reverse=False)
    return take_along(tensor, indices, place), indices


def diff(
    x: Any, /, *, axis: int = -1, n: int = 1, prepend: Any = None, append: Any = None
) -> Tensor:
    """The differences of neighbours along an axis, taken n times.

    `prepend` and `append` are joined to the tensor first.

    >>> import weft as wf
    >>> wf.diff(wf.tensor([1, 4, 9, 16]), n=2).tolist()
    [2, 2]
    """
    given = [part for part in (prepend, x, append) if part is not None]
    parts = promote_operands("diff", given)
    place = normalize_axis("diff", axis, parts[0].ndim, {"x": parts[0]})
    line = apply(concatenate, *parts, axis=place) if len(parts) > 1 else alias(parts[0])
    n = as_integer("diff", "n", n)
    if n < 0:
        raise ArgumentError(
            "diff",
            "n is negative",
            expected="n >= 0",
            got={"x": line, "n": n},
            fix="use cumulative_sum for the inverse of diff",
        )
    for _ in range(n):
        line = _difference(line, place)
    return line


def _difference(x: Tensor, axis: int) -> Tensor:
    count = x.shape[axis]
    if is_zero(count):
        return x
    after, before = _stretch(x, axis, 1, count), _stretch(x, axis, 0, count - 1)
    return not_equal(after, before) if x.dtype is bool_ else after - before


def _stretch(x: Tensor, axis: int, start: Dimension, stop: Dimension) -> Tensor:
    starts = tuple([start if each == axis else 0 for each in range(x.ndim)])
    stops = tuple([stop if each == axis else dim for each, dim in enumerate(x.shape)])
    return apply(slice_, x, starts=starts, stops=stops, strides=(1,) * x.ndim)
