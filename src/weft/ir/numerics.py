"""Arithmetic that NumPy leaves open, decided: so that eager and compiled programs agree to the bit.

What NumPy gives for these depends on the processor, the layout and the position of an element.

- **The order of zeros.** -0.0 is less than 0.0 in every maximum and minimum (IEEE 754-2019), and
  NaN is the result where it is among the operands. So extremes are the same in any order.
- **Conversions to integers.** Floats are cut towards zero; what is beyond the range becomes the
  nearest number of it, infinities too; NaN becomes 0. Integers wrap around. NaN is a true bool.
- **Long sums** are made of blocks along every axis, so that rounding does not grow with the length.

>>> maximum(np.array([-0.0, 0.0]), np.array([0.0, -0.0])).tolist()
[0.0, 0.0]
>>> convert_numbers(np.array([1e10, -1.9, np.nan, -np.inf]), np.dtype("int8")).tolist()
[127, -1, 0, -128]
"""

from __future__ import annotations

from functools import cache
from math import prod
from typing import Any

import numpy as np

from weft.core.arrays import is_host

Array = np.ndarray[Any, Any]
DType = np.dtype[Any]
_SMALL = 2048
"""Elements up to which counting them is the quickest way to look for a zero."""


# --- the order of zeros ------------------------------------------------------------------------


def maximum(x: Any, y: Any) -> Any:
    """The greater of two numbers, element by element; either may be a Python float."""
    out = np.maximum(x, y)
    return out if _zeros_are_right(out, y) else _with_ordered_zeros(out, x, y, np.logical_and)


def minimum(x: Any, y: Any) -> Any:
    """The lesser of two numbers, element by element; either may be a Python float."""
    out = np.minimum(x, y)
    return out if _zeros_are_right(out, y) else _with_ordered_zeros(out, x, y, np.logical_or)


def _zeros_are_right(out: Any, y: Any) -> bool:
    """Whether no zero can have come of a choice between two."""
    if out.dtype.kind in "biu" or (type(y) is float and y != 0.0):
        return True
    return bool(np.count_nonzero(out) == out.size if out.size < _SMALL else out.all())


def _with_ordered_zeros(out: Any, x: Any, y: Any, is_negative: np.ufunc) -> Any:
    x, y = np.asarray(x, out.dtype), np.asarray(y, out.dtype)
    negative = is_negative(np.signbit(x), np.signbit(y))
    return np.where((x == 0) & (y == 0), _zeros(negative, out.dtype), out)


def _zeros(negative: Any, dtype: DType) -> Any:
    return np.where(negative, dtype.type(-0.0), dtype.type(0.0))


def positive_part(x: Any) -> Any:
    """The greater of each element and 0; no result is -0.0."""
    zero = _zero(x.dtype)
    out = np.maximum(x, zero)
    if out.dtype.kind in "iu":
        return out
    return np.add(out, zero, out=out if is_host(out) else None)


@cache
def _zero(dtype: DType) -> Array:
    return np.zeros((), dtype)


def maximum_over(x: Array, axes: tuple[int, ...]) -> Any:
    """The greatest element over axes."""
    out = np.maximum.reduce(x, axis=axes)
    if _zeros_are_right(out, None):
        return out
    return np.where(out == 0, _zeros(np.signbit(x).all(axis=axes), x.dtype), out)


def minimum_over(x: Array, axes: tuple[int, ...]) -> Any:
    """The least element over axes."""
    out = np.minimum.reduce(x, axis=axes)
    if _zeros_are_right(out, None):
        return out
    return np.where(out == 0, _zeros(np.signbit(x).any(axis=axes), x.dtype), out)


def keep_largest(out: Array, places: Any, rows: Array) -> None:
    """Replace elements by the greatest of them and of the rows for their places."""
    positive = ~np.signbit(out) & (out == 0)
    np.maximum.at(out, places, rows)
    if not _zeros_are_right(out, None):
        np.logical_or.at(positive, places, ~np.signbit(rows) & (rows == 0))
        np.copyto(out, _zeros(~positive, out.dtype), where=out == 0)


def keep_smallest(out: Array, places: Any, rows: Array) -> None:
    """Replace elements by the least of them and of the rows for their places."""
    negative = np.signbit(out) & (out == 0)
    np.minimum.at(out, places, rows)
    if not _zeros_are_right(out, None):
        np.logical_or.at(negative, places, np.signbit(rows) & (rows == 0))
        np.copyto(out, _zeros(negative, out.dtype), where=out == 0)


def sign(x: Any) -> Any:
    """-1, 0 or 1, and NaN of NaN; never -0.0."""
    return np.sign(x) if x.dtype.kind in "biuf" else np.sign(x) + _zero(x.dtype)


# --- conversions -------------------------------------------------------------------------------


def convert_numbers(x: Any, dtype: DType) -> Any:
    """The numbers in another dtype; complex ones stay complex."""
    if dtype.kind in "iu" and x.dtype.kind not in "biu":
        return _to_integers(x, dtype)
    return x.astype(dtype)


def _to_integers(x: Any, dtype: DType) -> Any:
    limits = np.iinfo(dtype)
    wide = x.astype(np.float32) if x.dtype.itemsize == 2 else x
    beyond = wide.dtype.type(2.0 ** (dtype.itemsize * 8 - (dtype.kind == "i")))
    lowest = wide.dtype.type(limits.min)
    inside = (wide >= lowest) & (wide < beyond)
    if inside.all():
        return wide.astype(dtype)
    cut = np.where(inside, wide, wide.dtype.type(0)).astype(dtype)
    cut = np.where(wide >= beyond, dtype.type(limits.max), cut)
    return np.where(wide < lowest, dtype.type(limits.min), cut)


# --- long sums ---------------------------------------------------------------------------------

_BLOCK = 256
"""Terms of a block of a sum that NumPy adds one after the other."""


def total(x: Array, axes: tuple[int, ...]) -> Any:
    """The sum over axes.

    NumPy adds in pairs along contiguous elements only, and one by one along other axes: 2²⁵ ones
    in a column of float32s make 2²⁴ there.
    """
    if x.ndim == 1 and axes and x.flags.c_contiguous:  # as below, with less to look at
        return np.add.reduce(x, dtype=x.dtype)
    count = prod([x.shape[axis] for axis in axes])
    if count <= 2 * _BLOCK or x.dtype.kind in "biu":
        return np.add.reduce(x, axis=axes, dtype=x.dtype)
    if axes[0] == x.ndim - len(axes) and x.flags.c_contiguous:
        return np.add.reduce(x.reshape(*x.shape[: axes[0]], count), axis=-1)
    axis = max(axes, key=lambda each: x.shape[each])
    if x.shape[axis] <= 2 * _BLOCK:
        rest = tuple([each - (each > axis) for each in axes if each != axis])
        return total(np.add.reduce(x, axis=axis), rest)
    blocks = x.shape[axis] // _BLOCK
    whole, left_over = np.split(x, [blocks * _BLOCK], axis=axis)
    parts = whole.reshape(*x.shape[:axis], blocks, _BLOCK, *x.shape[axis + 1 :])
    sums = total(np.add.reduce(parts, axis=axis + 1), axes)
    return sums + total(left_over, axes)
