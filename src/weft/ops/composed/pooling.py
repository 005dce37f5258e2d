"""Pooling over windows of [N, C, *spatial], and pooling to a given size.

>>> import weft as wf
>>> wf.avg_pool1d(wf.tensor([[[1.0, 3.0, 5.0, 7.0]]]), 2).tolist()
[[[2.0, 6.0]]]
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from weft.core.errors import ArgumentError
from weft.core.shapes import Dimension, is_static
from weft.ir.batching import move_axis
from weft.ir.constants import place_beside
from weft.ir.dispatch import apply
from weft.ir.eager import unit
from weft.ir.tensor import Tensor, wrap
from weft.ops.composed.convolutions import (
    Sizes,
    per_axis,
    sides,
    with_batch_axis,
    without_batch_axis,
)
from weft.ops.composed.manipulation import reshape_known
from weft.ops.composed.statistics import mean
from weft.ops.convolution import Padding
from weft.ops.indexing import gather
from weft.ops.movement import broadcast_to
from weft.ops.operands import alias, allowed_dtype, apply_as, as_tensor, convert_to, widen_sums
from weft.ops.reduction import reduce_max, reduce_sum
from weft.ops.selection import where
from weft.ops.windows import window_argmax, window_max, window_pick, window_sum

__all__ = [
    "adaptive_avg_pool1d", "adaptive_avg_pool2d", "adaptive_avg_pool3d", "adaptive_max_pool1d",
    "adaptive_max_pool2d", "adaptive_max_pool3d", "avg_pool1d", "avg_pool2d", "avg_pool3d",
    "max_pool1d", "max_pool2d", "max_pool3d",
]  # fmt: skip


# --- arguments ---------------------------------------------------------------------------------


def _window(
    op: str,
    rank: int,
    x: Tensor,
    kernel_size: Sizes,
    stride: Sizes | None,
    padding: Any,
    dilation: Sizes,
    ceil_mode: bool,
) -> dict[str, Any]:
    """The parameters of a window primitive; no stride means one window's width."""
    window = per_axis(op, "kernel_size", kernel_size, rank)
    strides = window if stride is None else per_axis(op, "stride", stride, rank)
    around = sides(op, padding, rank)
    dilations = per_axis(op, "dilation", dilation, rank)
    for width, step, (low, high) in zip(window, dilations, around, strict=True):
        if max(low, high) > (step * (width - 1) + 1) // 2:
            raise ArgumentError(
                op,
                "padding is more than half of the window",
                expected="padding <= kernel_size / 2",
                got={"padding": padding, "kernel_size": kernel_size},
                fix="pad the input first: wf.pad(x, ...)",
            )
    if ceil_mode:
        around = _ceil_padding(x.shape[-rank:], window, strides, around, dilations)
    return {"window": window, "strides": strides, "padding": around, "dilation": dilations}


def _ceil_padding(
    spatial: tuple[Dimension, ...],
    window: tuple[int, ...],
    strides: tuple[int, ...],
    around: Padding,
    dilation: tuple[int, ...],
) -> Padding:
    """More padding behind, so that a last window that starts inside is not left out."""
    more = []
    for dim, width, stride, (low, high), step in zip(
        spatial, window, strides, around, dilation, strict=True
    ):
        rest = dim + low + high - step * (width - 1) - 1
        count = -(-rest // stride) + 1
        if (count - 1) * stride >= dim + low:
            count = count - 1
        more.append((low, high + max(int((count - 1) * stride - rest), 0)))
    return tuple(more)


# --- maxima ------------------------------------------------------------------------------------


def _max_pool(
    op: str,
    rank: int,
    x: Any,
    kernel_size: Sizes,
    stride: Sizes | None,
    padding: Any,
    dilation: Sizes,
    ceil_mode: bool,
    return_indices: bool,
) -> Any:
    tensor, added = with_batch_axis(op, as_tensor(op, x), rank)
    params = _window(op, rank, tensor, kernel_size, stride, padding, dilation, ceil_mode)
    if not return_indices:
        return without_batch_axis(apply_as(op, window_max, tensor, **params), added)
    indices = apply_as(op, window_argmax, tensor, **params)
    return without_batch_axis(window_pick(tensor, indices, rank), added), without_batch_axis(
        indices, added
    )


@unit
def max_pool1d(
    x: Any,
    kernel_size: Sizes,
    stride: Sizes | None = None,
    padding: Sizes = 0,
    dilation: Sizes = 1,
    ceil_mode: bool = False,
    return_indices: bool = False,
) -> Any:
    """The largest element of each window of [N, C, L]; the stride is the window's width by default.

    Padding is never chosen. Of equal elements the first has the derivative. `return_indices` also
    gives where they stand, counted through the spatial axes.

    >>> import weft as wf
    >>> wf.max_pool1d(wf.tensor([[[1.0, 3.0, 2.0, 0.0]]]), 3, stride=1).tolist()
    [[[3.0, 3.0]]]
    """
    op = "max_pool1d"
    return _max_pool(op, 1, x, kernel_size, stride, padding, dilation, ceil_mode, return_indices)


@unit
def max_pool2d(
    x: Any,
    kernel_size: Sizes,
    stride: Sizes | None = None,
    padding: Sizes = 0,
    dilation: Sizes = 1,
    ceil_mode: bool = False,
    return_indices: bool = False,
) -> Any:
    """The largest element of each window of [N, C, H, W]; see `max_pool1d`.

    >>> import weft as wf
    >>> wf.max_pool2d(wf.tensor([[[[1.0, 2.0], [4.0, 3.0]]]]), 2).tolist()
    [[[[4.0]]]]
    """
    op = "max_pool2d"
    return _max_pool(op, 2, x, kernel_size, stride, padding, dilation, ceil_mode, return_indices)


@unit
def max_pool3d(
    x: Any,
    kernel_size: Sizes,
    stride: Sizes | None = None,
    padding: Sizes = 0,
    dilation: Sizes = 1,
    ceil_mode: bool = False,
    return_indices: bool = False,
) -> Any:
    """The largest element of each window of [N, C, D, H, W]; see `max_pool1d`.

    >>> import weft as wf
    >>> wf.max_pool3d(wf.ones((1, 2, 4, 4, 4)), 2).shape
    (1, 2, 2, 2, 2)
    """
    op = "max_pool3d"
    return _max_pool(op, 3, x, kernel_size, stride, padding, dilation, ceil_mode, return_indices)


# --- means -------------------------------------------------------------------------------------


def _avg_pool(
    op: str,
    rank: int,
    x: Any,
    kernel_size: Sizes,
    stride: Sizes | None,
    padding: Any,
    ceil_mode: bool,
    count_include_pad: bool,
) -> Tensor:
    tensor, added = with_batch_axis(op, _inexact_operand(op, x), rank)
    params = _window(op, rank, tensor, kernel_size, stride, padding, 1, ceil_mode)
    wide = widen_sums(tensor)
    total: Tensor = apply_as(op, window_sum, wide, **params)
    given_padding = sides(op, padding, rank)
    # All windows have as many elements, unless ceil_mode has added padding that never counts.
    all_full = params["padding"] == given_padding
    if all_full and (count_include_pad or not any(map(any, given_padding))):
        means = total / float(np.prod(params["window"]))
    else:
        counting_padding = given_padding if count_include_pad else ((0, 0),) * rank
        means = total / _counts(wide, counting_padding, params)
    return without_batch_axis(convert_to(means, tensor.dtype), added)


def _counts(x: Tensor, counting_padding: Padding, params: dict[str, Any]) -> Tensor:
    """How many elements each window has, [*out]; some of the padding counts as elements.

    The count is the sum over a window of ones, where the padding that counts is one too.
    """
    spatial = x.shape[-len(counting_padding) :]
    sizes = zip(spatial, counting_padding, strict=True)
    padded_shape = tuple([d + low + high for d, (low, high) in sizes])
    one = convert_to(place_beside(wrap(np.ones((1,) * len(padded_shape), np.float32)), x), x.dtype)
    ones = apply(broadcast_to, one, shape=padded_shape)
    rest = tuple(
        [
            (low - a, high - b)
            for (low, high), (a, b) in zip(params["padding"], counting_padding, strict=True)
        ]
    )
    return apply(window_sum, ones, **{**params, "padding": rest})


def _inexact_operand(op: str, x: Any) -> Tensor:
    tensor = as_tensor(op, x)
    return convert_to(tensor, allowed_dtype(op, tensor.dtype, "inexact", (tensor,)))


@unit
def avg_pool1d(
    x: Any,
    kernel_size: Sizes,
    stride: Sizes | None = None,
    padding: Sizes = 0,
    ceil_mode: bool = False,
    count_include_pad: bool = True,
) -> Tensor:
    """The mean of each window of [N, C, L]; the stride is the window's width by default.

    Padding counts as zeros, or not at all without `count_include_pad`.

    >>> import weft as wf
    >>> wf.avg_pool1d(wf.tensor([[[2.0, 4.0]]]), 2, padding=1).tolist()
    [[[1.0, 2.0]]]
    """
    op = "avg_pool1d"
    return _avg_pool(op, 1, x, kernel_size, stride, padding, ceil_mode, count_include_pad)


@unit
def avg_pool2d(
    x: Any,
    kernel_size: Sizes,
    stride: Sizes | None = None,
    padding: Sizes = 0,
    ceil_mode: bool = False,
    count_include_pad: bool = True,
) -> Tensor:
    """The mean of each window of [N, C, H, W]; see `avg_pool1d`.

    >>> import weft as wf
    >>> wf.avg_pool2d(wf.tensor([[[[1.0, 2.0], [4.0, 3.0]]]]), 2).tolist()
    [[[[2.5]]]]
    """
    op = "avg_pool2d"
    return _avg_pool(op, 2, x, kernel_size, stride, padding, ceil_mode, count_include_pad)


@unit
def avg_pool3d(
    x: Any,
    kernel_size: Sizes,
    stride: Sizes | None = None,
    padding: Sizes = 0,
    ceil_mode: bool = False,
    count_include_pad: bool = True,
) -> Tensor:
    """The mean of each window of [N, C, D, H, W]; see `avg_pool1d`.

    >>> import weft as wf
    >>> wf.avg_pool3d(wf.ones((1, 1, 2, 2, 2)), 2).tolist()
    [[[[[1.0]]]]]
    """
    op = "avg_pool3d"
    return _avg_pool(op, 3, x, kernel_size, stride, padding, ceil_mode, count_include_pad)


# --- to a given size ---------------------------------------------------------------------------


def _bounds(dim: int, count: int) -> list[tuple[int, int]]:
    """The stretches of an axis that pooling to `count` elements takes, as in PyTorch."""
    return [(i * dim // count, -(-(i + 1) * dim // count)) for i in range(count)]


def _adaptive_sizes(
    op: str, rank: int, x: Any, output_size: Any
) -> tuple[Tensor, list[Dimension], bool]:
    tensor, added = with_batch_axis(op, as_tensor(op, x), rank)
    several = isinstance(output_size, (tuple, list))
    entries = tuple(output_size) if several else (output_size,) * rank
    spatial = tensor.shape[2:]
    known = [dim if isinstance(dim, int) else 1 for dim in spatial]
    sizes = [dim if entry is None else entry for entry, dim in zip(entries, known, strict=False)]
    per_axis(op, "output_size", tuple(sizes), rank)
    wanted = [dim if entry is None else entry for entry, dim in zip(entries, spatial, strict=True)]
    # an axis of any size can be left as it is, or pooled as a whole
    fits = [is_static((d,)) or n in (d, 1) for d, n in zip(spatial, wanted, strict=True)]
    if not all(fits) or 0 in spatial:
        raise ArgumentError(
            op,
            "the spatial sizes are not known numbers of at least 1",
            expected="spatial axes with elements, of fixed size",
            got={"x": tensor},
            fix="pool before the sizes become symbols, or use wf.mean over the spatial axes",
        )
    return tensor, wanted, added


def _adaptive_avg(op: str, rank: int, x: Any, output_size: Any) -> Tensor:
    tensor, sizes, added = _adaptive_sizes(op, rank, _inexact_operand(op, x), output_size)
    dims = tensor.shape[2:]
    if not is_static(dims) or any(int(d) % int(n) for d, n in zip(dims, sizes, strict=True)):
        single = tuple([axis for axis, count in enumerate(sizes, start=2) if count == 1])
        means = mean(widen_sums(tensor), axis=single, keepdims=True)
        for axis, count in enumerate(sizes, start=2):
            means = _mean_stretches(means, axis, count)
        tensor = convert_to(means, tensor.dtype)
    elif list(dims) != sizes:
        windows = [int(dim) // int(n) for dim, n in zip(dims, sizes, strict=True)]
        tensor = _mean_windows(tensor, [*map(int, sizes)], windows)
    return without_batch_axis(alias(tensor), added)


def _mean_windows(x: Tensor, counts: Sequence[int], windows: Sequence[int]) -> Tensor:
    """Means over windows that lie side by side and leave nothing over."""
    wide, axes = widen_sums(x), tuple(range(2, x.ndim))
    if max(counts) == 1:
        total = reshape_known(apply(reduce_sum, wide, axes=axes), (*x.shape[:2], *counts))
    else:
        params = _window("adaptive_avg_pool", len(axes), x, tuple(windows), None, 0, 1, False)
        total = apply(window_sum, wide, **params)
    return convert_to(total / float(np.prod(windows)), x.dtype)


def _mean_stretches(x: Tensor, axis: int, count: Dimension) -> Tensor:
    """Means over stretches of one axis; of short stretches what was repeated is left out.

    A product with a matrix of weights would bring a NaN to stretches that do not hold it.
    """
    if x.shape[axis] == count:
        return x
    dim, count = int(x.shape[axis]), int(count)
    lengths = np.array([stop - start for start, stop in _bounds(dim, count)])
    rest = (1,) * (x.ndim - 1)
    stretches = _stretches(x, axis, count)
    width = int(stretches.shape[1])
    if lengths.min() < width:
        is_inside = (np.arange(width) < lengths[:, None]).reshape(count, width, *rest)
        inside = place_beside(wrap(is_inside), x)
        stretches = where(inside, stretches, 0.0)
    divisors = convert_to(wrap(lengths.reshape(count, *rest)), x.dtype)
    means = apply(reduce_sum, stretches, axes=(1,)) / place_beside(divisors, x)
    return move_axis(means, 0, axis)


def _adaptive_max(op: str, rank: int, x: Any, output_size: Any) -> Tensor:
    tensor, sizes, added = _adaptive_sizes(op, rank, x, output_size)
    for axis, count in enumerate(sizes, start=2):
        tensor = _largest_of_stretches(tensor, axis, count)
    return without_batch_axis(alias(tensor), added)


def _largest_of_stretches(x: Tensor, axis: int, count: Dimension) -> Tensor:
    """Maxima over stretches of one axis."""
    if x.shape[axis] == count:
        return x
    if count == 1:
        shape = (*x.shape[:axis], 1, *x.shape[axis + 1 :])
        return reshape_known(apply(reduce_max, x, axes=(axis,)), shape)
    stretches = _stretches(x, axis, int(count))
    return move_axis(apply(reduce_max, stretches, axes=(1,)), 0, axis)


def _stretches(x: Tensor, axis: int, count: int) -> Tensor:
    """The stretches of one axis, all as wide as the widest, as axes in front of the others.

    Short stretches repeat their last element.
    """
    bounds = _bounds(int(x.shape[axis]), count)
    width = max(stop - start for start, stop in bounds)
    places = np.array([[min(a + k, b - 1) for k in range(width)] for a, b in bounds], np.int64)
    return apply(gather, x, place_beside(wrap(places), x), axes=(axis,))


@unit
def adaptive_avg_pool1d(x: Any, output_size: Any) -> Tensor:
    """The means of as many stretches of equal or nearly equal length as asked for.

    >>> import weft as wf
    >>> wf.adaptive_avg_pool1d(wf.tensor([[[1.0, 2.0, 3.0]]]), 2).tolist()
    [[[1.5, 2.5]]]
    """
    return _adaptive_avg("adaptive_avg_pool1d", 1, x, output_size)


@unit
def adaptive_avg_pool2d(x: Any, output_size: Any) -> Tensor:
    """The means of a grid of rectangles; None leaves an axis as it is.

    >>> import weft as wf
    >>> wf.adaptive_avg_pool2d(wf.tensor([[[[1.0, 2.0], [4.0, 3.0]]]]), 1).tolist()
    [[[[2.5]]]]
    """
    return _adaptive_avg("adaptive_avg_pool2d", 2, x, output_size)


@unit
def adaptive_avg_pool3d(x: Any, output_size: Any) -> Tensor:
    """The means of a grid of boxes; None leaves an axis as it is.

    >>> import weft as wf
    >>> wf.adaptive_avg_pool3d(wf.ones((1, 1, 4, 5, 6)), (2, None, 3)).shape
    (1, 1, 2, 5, 3)
    """
    return _adaptive_avg("adaptive_avg_pool3d", 3, x, output_size)


@unit
def adaptive_max_pool1d(x: Any, output_size: Any) -> Tensor:
    """The largest elements of as many stretches as asked for.

    >>> import weft as wf
    >>> wf.adaptive_max_pool1d(wf.tensor([[[1.0, 5.0, 3.0]]]), 2).tolist()
    [[[5.0, 5.0]]]
    """
    return _adaptive_max("adaptive_max_pool1d", 1, x, output_size)


@unit
def adaptive_max_pool2d(x: Any, output_size: Any) -> Tensor:
    """The largest elements of a grid of rectangles; None leaves an axis as it is.

    >>> import weft as wf
    >>> wf.adaptive_max_pool2d(wf.tensor([[[[1.0, 2.0], [4.0, 3.0]]]]), 1).tolist()
    [[[[4.0]]]]
    """
    return _adaptive_max("adaptive_max_pool2d", 2, x, output_size)


@unit
def adaptive_max_pool3d(x: Any, output_size: Any) -> Tensor:
    """The largest elements of a grid of boxes; None leaves an axis as it is.

    >>> import weft as wf
    >>> wf.adaptive_max_pool3d(wf.ones((1, 1, 4, 4, 4)), 2).shape
    (1, 1, 2, 2, 2)
    """
    return _adaptive_max("adaptive_max_pool3d", 3, x, output_size)
