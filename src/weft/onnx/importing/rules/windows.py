"""Operators over windows of the spatial axes: convolution, its transpose, pooling."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

import weft as wf
from weft.onnx.importing.reading import Array
from weft.onnx.importing.registry import rule
from weft.onnx.importing.rules.integer_products import integer_convolution, origin_of
from weft.onnx.importing.running import Call

Tensor = wf.Tensor
Pairs = list[tuple[Any, Any]]
CONVOLUTIONS: dict[int, Any] = {1: wf.conv1d, 2: wf.conv2d, 3: wf.conv3d}
TRANSPOSES: dict[int, Any] = {
    1: wf.conv_transpose1d,
    2: wf.conv_transpose2d,
    3: wf.conv_transpose3d,
}
MAXIMA: dict[int, Any] = {1: wf.max_pool1d, 2: wf.max_pool2d, 3: wf.max_pool3d}


class Window(NamedTuple):
    """The windows over the spatial axes of [N, C, *spatial]."""

    kernel: tuple[int, ...]
    strides: tuple[int, ...]
    dilations: tuple[int, ...]
    pads: Pairs
    """Elements that count as padding, before and after each axis."""
    extra: tuple[int, ...]
    """More behind each axis, so that a last window that starts inside is whole."""

    @property
    def needs_no_extra(self) -> bool:
        """Whether nothing is needed but the padding."""
        return not any(self.extra)


def window_of(call: Call, spatial: Sequence[Any], kernel: Sequence[int]) -> Window:
    """The windows that a node's attributes describe."""
    rank = len(spatial)
    strides = tuple(call.get("strides") or [1] * rank)
    dilations = tuple(call.get("dilations") or [1] * rank)
    widths = [d * (k - 1) + 1 for k, d in zip(kernel, dilations, strict=True)]
    if len(strides) != rank or min((*strides, *dilations, *kernel), default=1) < 1:
        raise ValueError(f"kernel {kernel}, strides {strides}, dilations {dilations}")
    pads = _pads(call, spatial, widths, strides)
    call.check_room([abs(low) + abs(high) + 1 for low, high in pads])
    call.check_room(kernel)
    extra = [0] * rank
    if call.get("ceil_mode"):
        extra = [
            _extra(size + low + high - width, size + low, stride)
            for size, (low, high), width, stride in zip(spatial, pads, widths, strides, strict=True)
        ]
    return Window(tuple(kernel), strides, dilations, pads, tuple(extra))


def _extra(rest: int, inside: int, stride: int) -> int:
    """How much is missing for a last window; one that would start in the padding is left out."""
    count = -(-rest // stride)
    if count * stride >= inside:
        count -= 1
    return max(count * stride - rest, 0)


def _pads(call: Call, spatial: Sequence[Any], widths: Sequence[int], strides: Any) -> Pairs:
    rank = len(spatial)
    mode = call.get("auto_pad", "NOTSET")
    if mode == "VALID":
        return [(0, 0)] * rank
    if mode in ("SAME_UPPER", "SAME_LOWER"):
        pairs = []
        for size, width, stride in zip(spatial, widths, strides, strict=True):
            total = width - 1 if stride == 1 else _same_padding(call, size, width, stride)
            half = total // 2
            pairs.append((half, total - half) if mode == "SAME_UPPER" else (total - half, half))
        return pairs
    pads = call.get("pads") or [0] * (2 * rank)
    if len(pads) != 2 * rank:
        raise ValueError(f"pads {pads} for {rank} spatial axes")
    return list(zip(pads[:rank], pads[rank:], strict=True))


def _same_padding(call: Call, size: Any, width: int, stride: int) -> int:
    if not isinstance(size, int):
        raise call.refuse("auto_pad with a stride needs sizes that are known")
    return max((-(-size // stride) - 1) * stride + width - size, 0)


def pad_spatial(x: Tensor, window: Window, value: Any) -> Tensor:
    """The input with all its padding, by a number."""
    pairs = [
        (low, high + more) for (low, high), more in zip(window.pads, window.extra, strict=True)
    ]
    if not any(map(any, pairs)):
        return x
    return wf.pad(x, [(0, 0)] * (x.ndim - len(pairs)) + pairs, constant_values=value)


def crop_or_pad(x: Tensor, pads: Pairs) -> Tensor:
    """The spatial axes made larger by zeros, or smaller where a width is negative."""
    key: list[Any] = [slice(None)] * (x.ndim - len(pads))
    sizes = x.shape[x.ndim - len(pads) :]
    for size, (low, high) in zip(sizes, pads, strict=True):
        key.append(slice(max(-low, 0), size - max(-high, 0)))
    positive = [(max(low, 0), max(high, 0)) for low, high in pads]
    x = x[tuple(key)]
    if any(map(any, positive)):
        x = wf.pad(x, [(0, 0)] * (x.ndim - len(pads)) + positive)
    return x


# --- convolution ---------------------------------------------------------------------------------


def convolve(call: Call, x: Tensor, weight: Tensor, bias: Tensor | None) -> Any:
    """The convolution that a node describes."""
    rank = x.ndim - 2
    if rank not in CONVOLUTIONS:
        raise call.refuse(f"convolutions over {rank} axes")
    window = window_of(call, x.shape[2:], [int(size) for size in weight.shape[2:]])
    if any(low < 0 or high < 0 for low, high in window.pads):
        x, window = crop_or_pad(x, window.pads), window._replace(pads=[(0, 0)] * rank)
    return CONVOLUTIONS[rank](
        x, weight, bias, window.strides, window.pads, window.dilations, call["group"]
    )


@rule("Conv")
def convolution(call: Call, x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Any:
    """The convolution of [N, C, *spatial] with a weight [M, C/group, *kernel]."""
    whole = integer_convolution(call, origin_of(call, x), origin_of(call, weight), convolve)
    if whole is None:
        return convolve(call, x, weight, bias)
    return whole if bias is None else whole + bias.reshape((-1, *[1] * (x.ndim - 2)))


@rule("ConvTranspose")
def transposed_convolution(
    call: Call, x: Tensor, weight: Tensor, bias: Tensor | None = None
) -> Tensor:
    """The transpose of a convolution, with a weight [C, M/group, *kernel]."""
    rank = x.ndim - 2
    if rank not in TRANSPOSES:
        raise call.refuse(f"convolutions over {rank} axes")
    kernel = [int(size) for size in weight.shape[2:]]
    strides = tuple(call.get("strides") or [1] * rank)
    dilations = tuple(call.get("dilations") or [1] * rank)
    more = list(call.get("output_padding") or [0] * rank)
    full = TRANSPOSES[rank](x, weight, None, strides, 0, 0, call["group"], dilations)
    wholes = [
        (size - 1) * stride + dilation * (k - 1) + 1
        for size, stride, dilation, k in zip(x.shape[2:], strides, dilations, kernel, strict=True)
    ]
    pads = _transpose_pads(call, x.shape[2:], wholes, strides, more)
    # What lies beyond all windows is zero; padding is cut off.
    widths = [(-low, extra - high) for (low, high), extra in zip(pads, more, strict=True)]
    call.check_room([w + a + b for w, (a, b) in zip(wholes, widths, strict=True)])
    out = crop_or_pad(full, widths)
    return out if bias is None else out + bias.reshape((-1, *[1] * rank))


def _transpose_pads(
    call: Call, spatial: Sequence[Any], wholes: list[Any], strides: Any, more: list[int]
) -> Pairs:
    """What is cut off before and after each axis."""
    mode, shape = call.get("auto_pad", "NOTSET"), call.get("output_shape")
    rank = len(spatial)
    if shape is None and mode in ("SAME_UPPER", "SAME_LOWER"):
        shape = [size * stride for size, stride in zip(spatial, strides, strict=True)]
    if shape is None:
        pads = call.get("pads") or [0] * (2 * rank)
        pads = [0] * (2 * rank) if mode == "VALID" else pads
        return list(zip(pads[:rank], pads[rank:], strict=True))
    pairs = []
    for whole, extra, size in zip(wholes, more, shape[-rank:], strict=True):
        total = whole + extra - size
        half = total // 2
        pairs.append((half, total - half) if mode == "SAME_UPPER" else (total - half, half))
    return pairs


# --- pooling -------------------------------------------------------------------------------------


def lowest_number(x: Tensor) -> Any:
    """The number that every other one of its type exceeds."""
    return float("-inf") if x.dtype.is_floating else int(wf.iinfo(x.dtype).min)


@rule("MaxPool")
def max_pool(call: Call, x: Tensor) -> tuple[Tensor, ...]:
    """The largest element of each window, and its place in the whole value."""
    rank = x.ndim - 2
    if rank not in MAXIMA:
        raise call.refuse(f"pooling over {rank} axes")
    window = window_of(call, x.shape[2:], call["kernel_shape"])
    pool = MAXIMA[rank]
    inside = all(
        max(low, high) * 2 <= k for k, (low, high) in zip(window.kernel, window.pads, strict=True)
    )
    if window.needs_no_extra and inside and not call.wants(1):
        return (pool(x, window.kernel, window.strides, window.pads, window.dilations),)
    padded = pad_spatial(x, window, lowest_number(x))
    if not call.wants(1):
        return (pool(padded, window.kernel, window.strides, 0, window.dilations),)
    values, places = pool(
        padded, window.kernel, window.strides, 0, window.dilations, return_indices=True
    )
    return values, _whole_places(call, x, padded, window, places)


def _whole_places(call: Call, x: Tensor, padded: Tensor, window: Window, places: Tensor) -> Tensor:
    """Places in a padded plane as places in the whole value."""
    coordinates = []
    for size, (low, _) in reversed(list(zip(padded.shape[2:], window.pads, strict=True))):
        coordinates.append(places % size - low)
        places = places // size
    coordinates.reverse()
    pairs = list(zip(coordinates, x.shape[2:], strict=True))
    pairs = list(reversed(pairs)) if call.get("storage_order") else pairs
    flat = wf.zeros(places.shape, dtype="int64")
    for coordinate, size in pairs:
        flat = flat * size + coordinate
    planes = wf.arange(x.shape[0] * x.shape[1]).reshape((*x.shape[:2], *[1] * (x.ndim - 2)))
    return flat + planes * math.prod(x.shape[2:], start=1)


@rule("MaxUnpool", known=(2,))
def max_unpool(call: Call, x: Tensor, places: Tensor, shape: Array | None = None) -> Tensor:
    """Elements put back to the places that a pooling took them from."""
    rank = x.ndim - 2
    kernel = call["kernel_shape"]
    strides = call.get("strides") or [1] * rank
    pads = call.get("pads") or [0] * (2 * rank)
    sizes = [
        (size - 1) * stride + k - pads[i] - pads[i + rank]
        for i, (size, stride, k) in enumerate(zip(x.shape[2:], strides, kernel, strict=True))
    ]
    inner = (*x.shape[:2], *sizes)
    call.check_room(inner)
    canvas = wf.zeros((math.prod(inner, start=1),), dtype=x.dtype)
    out = wf.scatter(canvas, 0, places.reshape((-1,)), x.reshape((-1,))).reshape(inner)
    if shape is None:
        return out
    call.check_room(shape.tolist())
    behind = [(0, new - old) for new, old in zip(shape.tolist(), inner, strict=True)]
    return wf.pad(out, behind)


def window_sums(x: Tensor, window: Window) -> Any:
    """The sum of each window of a value that has all its padding."""
    rank = len(window.kernel)
    planes = x.reshape((-1, 1, *x.shape[2:]))
    ones = wf.ones((1, 1, *window.kernel), dtype=x.dtype)
    sums = CONVOLUTIONS[rank](planes, ones, None, window.strides, 0, window.dilations)
    return sums.reshape((*x.shape[:2], *sums.shape[2:]))


@rule("AveragePool")
def average_pool(call: Call, x: Tensor) -> Any:
    """The mean of each window; padding counts where the node says so."""
    rank = x.ndim - 2
    if rank not in CONVOLUTIONS:
        raise call.refuse(f"pooling over {rank} axes")
    window = window_of(call, x.shape[2:], call["kernel_shape"])
    sums = window_sums(pad_spatial(x, window, 0), window)
    ones = wf.ones((1, 1, *x.shape[2:]), dtype=x.dtype)
    if call.get("count_include_pad"):
        inner = window._replace(extra=(0,) * rank)
        outer = window._replace(pads=[(0, 0)] * rank)
        counted = pad_spatial(pad_spatial(ones, inner, 1), outer, 0)
    else:
        counted = pad_spatial(ones, window, 0)
    return sums / window_sums(counted, window)


@rule("LpPool")
def lp_pool(call: Call, x: Tensor) -> Tensor:
    """The p-norm of each window."""
    if x.ndim - 2 not in CONVOLUTIONS:
        raise call.refuse(f"pooling over {x.ndim - 2} axes")
    window = window_of(call, x.shape[2:], call["kernel_shape"])
    order = call["p"]
    powers = wf.pow(wf.abs(pad_spatial(x, window, 0)), order)
    return wf.pow(window_sums(powers, window), 1.0 / order)


def _spatial_axes(x: Tensor) -> tuple[int, ...]:
    return tuple(range(2, x.ndim))


@rule("GlobalAveragePool")
def global_average(call: Call, x: Tensor) -> Tensor:
    """The mean of each channel."""
    return wf.mean(x, axis=_spatial_axes(x), keepdims=True)


@rule("GlobalMaxPool")
def global_maximum(call: Call, x: Tensor) -> Tensor:
    """The largest element of each channel."""
    return wf.max(x, axis=_spatial_axes(x), keepdims=True)


@rule("GlobalLpPool")
def global_norm(call: Call, x: Tensor) -> Tensor:
    """The p-norm of each channel."""
    powers = wf.pow(wf.abs(x), call["p"])
    return wf.pow(wf.sum(powers, axis=_spatial_axes(x), keepdims=True), 1.0 / call["p"])


@rule("Col2Im", known=(1, 2))
def columns_to_image(call: Call, x: Tensor, image: Array, block: Array) -> Tensor:
    """Columns of windows added up to the image they were cut from."""
    sizes, kernel = image.tolist(), block.tolist()
    call.check_room([*x.shape[:1], *sizes])
    window = window_of(call, sizes, kernel)
    counts = [
        (size + low + high - d * (k - 1) - 1) // s + 1
        for size, (low, high), d, k, s in zip(
            sizes, window.pads, window.dilations, kernel, window.strides, strict=True
        )
    ]
    if not 0 < math.prod(kernel) <= int(x.shape[1]):
        raise ValueError(f"a kernel {kernel} for {x.shape[1]} rows")
    channels = x.shape[1] // math.prod(kernel)
    columns = x.reshape((x.shape[0], channels, *kernel, *counts))
    padded = [size + low + high for size, (low, high) in zip(sizes, window.pads, strict=True)]
    out = wf.zeros((x.shape[0], channels, *padded), dtype=x.dtype)
    for place in np.ndindex(*kernel):  # each element of the kernel touches one grid of places
        key: list[Any] = [slice(None), slice(None)]
        for offset, count, d, s in zip(
            place, counts, window.dilations, window.strides, strict=True
        ):
            first = offset * d
            key.append(slice(first, first + (count - 1) * s + 1, s))
        out = out + _place_in_zeros(columns[(slice(None), slice(None), *place)], key, out.shape)
    return crop_or_pad(out, [(-low, -high) for low, high in window.pads])


def _place_in_zeros(x: Tensor, key: list[Any], shape: tuple[Any, ...]) -> Tensor:
    """A value in zeros of a larger shape, at the places of a key."""
    canvas = wf.zeros(shape, dtype=x.dtype)
    canvas[tuple(key)] = x
    return canvas
