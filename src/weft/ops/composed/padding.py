"""Padding: a tensor made larger at its edges, by a constant or by its own elements.

>>> import weft as wf
>>> wf.pad(wf.tensor([1, 2, 3]), 2, mode="reflect").tolist()
[3, 2, 1, 2, 3, 2, 1]
"""

from __future__ import annotations

from typing import Any, NoReturn

import numpy as np

from weft.core.dimensions import is_zero
from weft.core.errors import ArgumentError, ShapeError
from weft.core.shapes import Dim, Dimension, Shape
from weft.ir.dispatch import apply
from weft.ir.eager import unit
from weft.ir.remembered_calls import remember_host_calls
from weft.ir.tensor import Tensor
from weft.ops import movement
from weft.ops.composed.manipulation import broadcast_known, cut_axis
from weft.ops.movement import is_below
from weft.ops.operands import Operand, alias, as_tensor, convert_to

__all__ = ["pad"]

MODES = ("constant", "reflect", "edge", "symmetric", "wrap")
Widths = list[tuple[Dimension, Dimension]]


def pad(x: Operand, pad_width: Any, mode: str = "constant", *, constant_values: Any = 0) -> Tensor:
    """The tensor with elements added before and after each axis.

    `pad_width` is one width for all edges, a pair (before, after) for all axes, or a pair for each
    axis. The modes are NumPy's: "constant", "reflect" (the edge not repeated), "symmetric" (the
    edge repeated), "edge" and "wrap". `constant_values` is one number or 0-d tensor.

    >>> import weft as wf
    >>> wf.pad(wf.tensor([1.0, 2.0]), (1, 2)).tolist()
    [0.0, 1.0, 2.0, 0.0, 0.0]
    >>> wf.pad(wf.tensor([1, 2, 3]), 1, mode="symmetric").tolist()
    [1, 1, 2, 3, 3]
    """
    if mode == "constant":
        return _pad_constant(x, pad_width, constant_values)
    x = as_tensor("pad", x)
    widths = _widths(x, pad_width)
    if mode not in MODES:
        raise ArgumentError(
            "pad",
            "unknown mode",
            expected=", ".join(f'"{name}"' for name in MODES),
            got={"mode": repr(mode)},
            fix='mode="constant"',
        )
    return _pad_with_elements(x, widths, mode)


@unit
def _pad_with_elements(x: Tensor, widths: Widths, mode: str) -> Tensor:
    for axis, (low, high) in enumerate(widths):
        x = _pad_axis(x, axis, low, high, mode)
    return alias(x)


def _widths(x: Tensor, pad_width: Any) -> Widths:
    """A pair of widths for each axis."""
    if _is_width(pad_width):
        return [(pad_width, pad_width)] * x.ndim
    if isinstance(pad_width, (np.ndarray, Tensor)):
        pad_width = pad_width.tolist()
    entries = list(pad_width) if isinstance(pad_width, (tuple, list)) else _refuse(x, pad_width)
    if len(entries) == 2 and all(map(_is_width, entries)):
        return [(entries[0], entries[1])] * x.ndim
    pairs = [_pair(x, entry, pad_width) for entry in entries]
    if len(pairs) == 1:
        pairs = pairs * x.ndim
    return pairs if len(pairs) == x.ndim else _refuse(x, pad_width)


def _is_width(value: object) -> bool:
    return isinstance(value, Dim) or (isinstance(value, (int, np.integer)) and int(value) >= 0)


def _pair(x: Tensor, entry: Any, pad_width: Any) -> tuple[Dimension, Dimension]:
    if _is_width(entry):
        return entry, entry
    if isinstance(entry, (tuple, list)) and len(entry) in (1, 2) and all(map(_is_width, entry)):
        return entry[0], entry[-1]
    return _refuse(x, pad_width)


def _refuse(x: Tensor, pad_width: Any) -> NoReturn:
    pairs = ", ".join(["(1, 1)"] * x.ndim)
    raise ArgumentError(
        "pad",
        "the widths do not fit the tensor",
        expected=f"integers of at least 0: one, a pair, or a pair for each of {x.ndim} axes",
        got={"x": x, "pad_width": pad_width},
        fix=f"pad_width=[{pairs}]",
    )


@remember_host_calls
def _pad_constant(x: Operand, pad_width: Any, value: Any) -> Tensor:
    x = as_tensor("pad", x)
    widths = _widths(x, pad_width)
    if isinstance(value, (Tensor, np.ndarray)):
        return _pad_tensor(x, widths, convert_to(as_tensor("pad", value), x.dtype))
    padding = tuple([(low, high, 0) for low, high in widths])
    return apply(movement.pad, x, padding=padding, value=value)


def _pad_tensor(x: Tensor, widths: Widths, value: Tensor) -> Tensor:
    """Padding by a number that is itself data, and may need a derivative."""
    if value.ndim:
        raise ShapeError(
            "pad",
            "constant_values has axes",
            expected="one number",
            got={"x": x, "constant_values": value},
            fix="pad the axes one after the other, each with its own number",
        )
    shape: Shape = tuple([low + d + high for d, (low, high) in zip(x.shape, widths, strict=True)])
    starts = tuple([low for low, _ in widths])
    canvas = broadcast_known(value, shape)
    return apply(movement.update_slice, canvas, x, starts=starts, strides=(1,) * x.ndim)


def _pad_axis(x: Tensor, axis: int, low: Dimension, high: Dimension, mode: str) -> Tensor:
    """One axis padded, in steps: one step can repeat at most the elements there are."""
    dim = x.shape[axis]
    if low == high == 0:
        return x
    if is_zero(dim):
        raise ShapeError(
            "pad",
            f"axis {axis} has no elements to repeat",
            expected=f'at least one element along an axis padded by mode="{mode}"',
            got={"x": x},
            fix='mode="constant"',
        )
    if mode == "edge" or (mode == "reflect" and is_zero(dim - 1)):
        return _pad_edge(x, axis, low, high)
    limit = dim - 1 if mode == "reflect" else dim
    while low != 0:
        step = limit if is_below(limit, low) else low
        x = apply(movement.concatenate, _leading_part(x, axis, step, dim, mode), x, axis=axis)
        low = low - step
    while high != 0:
        step = limit if is_below(limit, high) else high
        x = apply(movement.concatenate, x, _trailing_part(x, axis, step, dim, mode), axis=axis)
        high = high - step
    return x


def _pad_edge(x: Tensor, axis: int, low: Dimension, high: Dimension) -> Tensor:
    dim = x.shape[axis]
    parts = [
        _repeat_edge(cut_axis(x, axis, 0, 1), axis, low),
        x,
        _repeat_edge(cut_axis(x, axis, dim - 1, dim), axis, high),
    ]
    return apply(movement.concatenate, *parts, axis=axis)


def _repeat_edge(x: Tensor, axis: int, count: Dimension) -> Tensor:
    return broadcast_known(x, (*x.shape[:axis], count, *x.shape[axis + 1 :]))


def _leading_part(x: Tensor, axis: int, step: Dimension, period: Dimension, mode: str) -> Tensor:
    """What comes before the first element; the first one starts a period."""
    if mode == "wrap":
        return cut_axis(x, axis, period - step, period)
    skipped = 1 if mode == "reflect" else 0
    return apply(movement.flip, cut_axis(x, axis, skipped, skipped + step), axes=(axis,))


def _trailing_part(x: Tensor, axis: int, step: Dimension, period: Dimension, mode: str) -> Tensor:
    """What comes after the last element; elements before it repeat by periods."""
    dim = x.shape[axis]
    if mode == "wrap":
        return cut_axis(x, axis, dim - period, dim - period + step)
    last = dim - 1 if mode == "reflect" else dim
    return apply(movement.flip, cut_axis(x, axis, last - step, last), axes=(axis,))
