"""Windows: reductions over a window that slides along the last axes.

`window`, `strides`, `padding` and `dilation` have one entry for each of the last axes; the axes
before them are batch axes. Padding counts as nothing: 0 in a sum, no candidate for a maximum.

>>> import weft as wf
>>> wf.max_pool1d(wf.tensor([[[1.0, 3.0, 2.0, 0.0]]]), 2).tolist()
[[[3.0, 2.0]]]
"""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from typing import Any

import numpy as np

from weft.core.dtypes import INDEX
from weft.core.errors import ArgumentError, ShapeError
from weft.core.shapes import Dimension, Shape, require_equal, size
from weft.core.types import TensorType
from weft.ir.batching import move_axis
from weft.ir.derivatives import constant, linear, tangent
from weft.ir.dispatch import apply
from weft.ir.kinds import Search, Window
from weft.ir.numerics import maximum
from weft.ir.primitive import Mistake, Primitive, Sample
from weft.ir.tensor import Tensor
from weft.ops import sharding_rules as shardings
from weft.ops.convolution import (
    Padding,
    check_windows,
    crop_padding,
    pad_array,
    positions,
    window_counts,
)
from weft.ops.cumulative import is_narrow
from weft.ops.indexing import along_front, gather
from weft.ops.movement import reshape
from weft.ops.operands import DTYPE_CLASSES, wrong_dtype

__all__: list[str] = []

Array = np.ndarray[Any, Any]
Sizes = tuple[int, ...]


def _counts(
    op: str,
    x: TensorType,
    spatial: Shape,
    window: Sizes,
    strides: Sizes,
    padding: Padding,
    dilation: Sizes,
) -> Shape:
    got: dict[str, object] = {"x": x, "window": window, "stride": strides, "padding": padding}
    if not window or len(window) > x.ndim:
        raise ShapeError(
            op,
            "the window has more axes than the tensor",
            expected="a window for one or more of the last axes of x",
            got=got,
            fix="give x axes for batch and channels: [batch, channels, *spatial]",
        )
    return check_windows(op, got, spatial, window, strides, padding, dilation)


def _check_dtype(op: str, allowed: str, x: TensorType) -> None:
    if x.dtype not in DTYPE_CLASSES[allowed]:
        raise wrong_dtype(op, allowed, {"x": x})


def _batch(primitive_of: Callable[[], Primitive]) -> Callable[..., tuple[Tensor, int]]:
    """The batch axis is one more axis in front."""

    def batch(
        size: Dimension, operands: tuple[Tensor, ...], places: tuple[int, ...], /, **params: Any
    ) -> tuple[Tensor, int]:
        return apply(primitive_of(), move_axis(operands[0], places[0], 0), **params), 0

    return batch


_CASES: tuple[tuple[tuple[int, ...], dict[str, Any]], ...] = (
    ((2, 5), {"window": (2,), "strides": (1,), "padding": ((0, 0),), "dilation": (1,)}),
    ((7,), {"window": (3,), "strides": (2,), "padding": ((1, 2),), "dilation": (2,)}),
    (
        (2, 4, 5),
        {"window": (2, 3), "strides": (2, 1), "padding": ((0, 0), (1, 1)), "dilation": (1, 1)},
    ),
    (
        (3, 2, 3),
        {
            "window": (2, 1, 2),
            "strides": (1, 1, 2),
            "padding": ((0, 1), (0, 0), (0, 0)),
            "dilation": (1, 1, 1),
        },
    ),
    ((0, 3), {"window": (2,), "strides": (1,), "padding": ((0, 0),), "dilation": (1,)}),
)


def _samples(derivative: bool = True) -> list[Sample]:
    return [
        Sample((_scrambled_sample(shape),), params, derivative=derivative)
        for shape, params in _CASES
    ]


def _scrambled_sample(shape: tuple[int, ...]) -> Array:
    """Distinct values in no order, far enough apart for finite differences."""
    count = prod(shape)
    return (np.arange(count) * 7 % 61 / 8 - 2).astype(np.float32).reshape(shape)


def _mistakes() -> list[Mistake]:
    x = np.ones((2, 4), np.float32)
    plain = {"window": (2,), "strides": (2,), "padding": ((0, 0),), "dilation": (1,)}
    return [
        Mistake((x,), {**plain, "window": (5,)}, ShapeError, "larger than the padded input"),
        Mistake((x,), {**plain, "strides": (0,)}, ArgumentError, "must be positive"),
        Mistake((x,), {**plain, "strides": (1, 1)}, ArgumentError, "one entry per spatial axis"),
        Mistake((x[0, 0],), plain, ShapeError, "more axes than the tensor"),
    ]


# --- sums --------------------------------------------------------------------------------------


def _sum_type(
    x: TensorType, window: Sizes, strides: Sizes, padding: Padding, dilation: Sizes
) -> TensorType:
    _check_dtype("window_sum", "number", x)
    lead = x.ndim - len(window)
    spatial = x.shape[max(lead, 0) :]
    counts = _counts("window_sum", x, spatial, window, strides, padding, dilation)
    return x.with_shape((*x.shape[:lead], *counts))


def _window_sum(
    x: Array, window: Sizes, strides: Sizes, padding: Padding, dilation: Sizes
) -> Array:
    lead = x.ndim - len(window)
    counts = window_counts(x.shape[lead:], window, strides, padding, dilation)
    wide = pad_array(x.astype(np.float32) if is_narrow(x.dtype) else x, padding)
    out = np.zeros((*x.shape[:lead], *counts), wide.dtype)
    # One element of the window at a time, for all windows at once: slices [..., *counts].
    for _, place in positions(window, counts, strides, dilation):
        out += wide[place]
    return out.astype(x.dtype, copy=False)


def _spread_type(
    y: TensorType,
    spatial: Shape,
    window: Sizes,
    strides: Sizes,
    padding: Padding,
    dilation: Sizes,
) -> TensorType:
    op = "window_spread"
    _check_dtype(op, "number", y)
    lead = y.ndim - len(window)
    counts = _counts(op, y, spatial, window, strides, padding, dilation)
    for dim, wanted in zip(y.shape[lead:], counts, strict=True):
        require_equal(
            op,
            dim,
            wanted,
            expected="one element for each window",
            got={"y": y, "spatial": spatial},
            fix=f"use y with sizes {counts} along its last axes",
            what="y is not a sum over these windows",
        )
    return y.with_shape((*y.shape[:lead], *spatial))


def _spread_windows(
    y: Array, spatial: Sizes, window: Sizes, strides: Sizes, padding: Padding, dilation: Sizes
) -> Array:
    lead = y.ndim - len(window)
    wide = y.astype(np.float32) if is_narrow(y.dtype) else y
    full = [d + low + high for d, (low, high) in zip(spatial, padding, strict=True)]
    out = np.zeros((*y.shape[:lead], *full), wide.dtype)
    for _, place in positions(window, y.shape[lead:], strides, dilation):
        out[place] += wide
    return crop_padding(out, spatial, padding).astype(y.dtype, copy=False)


def _spread_samples() -> list[Sample]:
    samples = []
    for shape, params in _CASES:
        spatial = shape[len(shape) - len(params["window"]) :]
        counts = window_counts(spatial, **params)
        y = _scrambled_sample((*shape[: len(shape) - len(spatial)], *counts))
        samples.append(Sample((y,), {"spatial": spatial, **params}))
    return samples


window_sum: Primitive = Primitive(
    "window_sum",
    "The sum over each window along the last axes.",
    kind=Window("add"),
    sharding=shardings.before_windows,
    type_rule=_sum_type,
    reference=_window_sum,
    derivatives=[
        linear(
            lambda ct, x, window, **rest: apply(
                window_spread, ct, spatial=x.shape[x.ndim - len(window) :], window=window, **rest
            )
        )
    ],
    batch=_batch(lambda: window_sum),
    samples=_samples,
    mistakes=_mistakes,
)

window_spread: Primitive = Primitive(
    "window_spread",
    "The transpose of window_sum: each element added to all places of its window.",
    kind=Window(None),
    sharding=shardings.before_windows,
    type_rule=_spread_type,
    reference=_spread_windows,
    derivatives=[linear(lambda ct, y, spatial, **rest: apply(window_sum, ct, **rest))],
    batch=_batch(lambda: window_spread),
    samples=_spread_samples,
)


# --- maxima ------------------------------------------------------------------------------------


def _max_type(op: str) -> Callable[..., TensorType]:
    def type_rule(
        x: TensorType, window: Sizes, strides: Sizes, padding: Padding, dilation: Sizes
    ) -> TensorType:
        _check_dtype(op, "real", x)
        lead = x.ndim - len(window)
        spatial = x.shape[max(lead, 0) :]
        counts = _counts(op, x, spatial, window, strides, padding, dilation)
        kind = x if op == "window_max" else x.with_dtype(INDEX)
        return kind.with_shape((*x.shape[:lead], *counts))

    return type_rule


def _lowest_value(dtype: np.dtype[Any]) -> Any:
    return np.iinfo(dtype).min if dtype.kind in "iu" else -np.inf


def _window_max(
    x: Array, window: Sizes, strides: Sizes, padding: Padding, dilation: Sizes
) -> Array:
    lead = x.ndim - len(window)
    counts = window_counts(x.shape[lead:], window, strides, padding, dilation)
    lowest = _lowest_value(x.dtype)
    around = pad_array(x, padding, lowest)
    out = np.full((*x.shape[:lead], *counts), lowest, x.dtype)
    for _, place in positions(window, counts, strides, dilation):
        out = maximum(out, around[place])
    return out


def _window_argmax(
    x: Array, window: Sizes, strides: Sizes, padding: Padding, dilation: Sizes
) -> Array:
    """Walks the window's elements in order and keeps the first that none exceeds; -1 is padding."""
    lead = x.ndim - len(window)
    counts = window_counts(x.shape[lead:], window, strides, padding, dilation)
    wide = x.astype(np.float32) if is_narrow(x.dtype) else x
    padded = pad_array(wide, padding, _lowest_value(wide.dtype))
    # The number of each element, [*spatial], with -1 for padding.
    numbers = pad_array(np.arange(prod(x.shape[lead:])).reshape(x.shape[lead:]), padding, -1)
    best = np.full((*x.shape[:lead], *counts), _lowest_value(wide.dtype), wide.dtype)
    out = np.full(best.shape, -1, np.int64)
    for _, place in positions(window, counts, strides, dilation):
        value, index = padded[place], numbers[place]
        # NaN exceeds all numbers, and the first NaN stays.
        better = (value > best) | ((value != value) & (best == best))
        # The first real element wins over padding, even where it is as low as padding.
        better |= (out < 0) & (index >= 0)
        np.copyto(best, value, where=better)
        np.copyto(out, index, where=better)
    return out


def window_pick(x: Tensor, index: Tensor, spatial: int) -> Tensor:
    """The elements of x whose numbers, counted through its last `spatial` axes, are given."""
    lead = x.ndim - spatial
    rows, area = size(x.shape[:lead]), size(x.shape[lead:])
    flat = apply(reshape, x, shape=(rows, area))
    places = apply(reshape, index, shape=(rows, size(index.shape[lead:])))  # [rows, windows]
    picked = apply(gather, flat, along_front(places), places, axes=(0, 1))
    return apply(reshape, picked, shape=index.shape)


def _max_tangent(t: Tensor, out: Tensor, x: Tensor, window: Sizes, **params: Any) -> Tensor:
    """The tangent of the element that is the largest; of the first one where several are."""
    index = apply(window_argmax, x, window=window, **params)
    return window_pick(t, index, len(window))


window_max: Primitive = Primitive(
    "window_max",
    "The largest element of each window along the last axes; the first has the derivative.",
    kind=Window("maximum"),
    sharding=shardings.before_windows,
    type_rule=_max_type("window_max"),
    reference=_window_max,
    derivatives=[tangent(_max_tangent)],
    batch=_batch(lambda: window_max),
    samples=_samples,
    mistakes=_mistakes,
)

window_argmax: Primitive = Primitive(
    "window_argmax",
    "Where each window's first largest element stands, counted through the last axes.",
    kind=Search(),
    sharding=shardings.before_windows,
    type_rule=_max_type("window_argmax"),
    reference=_window_argmax,
    derivatives=[constant("a place has no derivative")],
    batch=_batch(lambda: window_argmax),
    samples=lambda: _samples(derivative=False),
    mistakes=_mistakes,
)
