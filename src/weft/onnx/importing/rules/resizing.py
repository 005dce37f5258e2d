"""Resize and Upsample: each axis in turn, by places and weights that are known beforehand."""

from __future__ import annotations

from typing import Any

import numpy as np

import weft as wf
from weft.onnx.importing.reading import Array
from weft.onnx.importing.registry import rule
from weft.onnx.importing.rules.movement import whole_axis
from weft.onnx.importing.running import Call

Tensor = wf.Tensor
FEW = 4
"""Weighted neighbours up to which they are read one by one, rather than by a matrix product."""


def coordinates(call: Call, mode: str, size: int, count: int, scale: float, roi: Any) -> Array:
    """Where each new element lies among the old ones."""
    places = np.arange(count, dtype=np.float64)
    width = scale * size
    if mode == "align_corners":
        return places * (size - 1) / (width - 1) if width != 1 else places * 0
    if mode == "asymmetric":
        return places / scale
    if mode == "tf_crop_and_resize":
        first, last = (float(each) for each in roi)
        if width == 1:
            return places * 0 + (last - first) * (size - 1) / 2 + first * (size - 1)
        return places * (last - first) * (size - 1) / (width - 1) + first * (size - 1)
    if mode == "pytorch_half_pixel" and width == 1:
        return places * 0 - 0.5
    centred = (places + 0.5) / scale - 0.5
    if mode == "half_pixel_symmetric":
        return centred + size / 2 * (1 - count / width)
    if mode in ("half_pixel", "pytorch_half_pixel"):
        return centred
    raise call.refuse(f"the coordinates {mode!r}")


def nearest_places(call: Call, mode: str, where: Array) -> Array:
    """The whole number next to each place."""
    rounded = {
        "round_prefer_floor": lambda: np.ceil(where - 0.5),
        "round_prefer_ceil": lambda: np.floor(where + 0.5),
        "floor": lambda: np.floor(where),
        "ceil": lambda: np.ceil(where),
    }
    if mode not in rounded:
        raise call.refuse(f"rounding by {mode!r}")
    return rounded[mode]().astype(np.int64)


def cubic_weight(distance: Array, a: float) -> Array:
    """Keys' kernel of cubic interpolation."""
    x = np.abs(distance)
    near = (a + 2) * x**3 - (a + 3) * x**2 + 1
    far = a * x**3 - 5 * a * x**2 + 8 * a * x - 4 * a
    return np.where(x <= 1, near, np.where(x < 2, far, 0.0))


def neighbours(call: Call, where: Array, scale: float, size: int) -> tuple[Array, Array]:
    """The old elements that make each new one, and their weights: [count, taps] both."""
    reach = 1 if call["mode"] == "linear" else 2
    shrink = min(scale, 1.0) if call.get("antialias") else 1.0
    start = int(np.floor(-reach / shrink)) + 1
    base = np.ceil(where) - 1
    offsets = np.arange(start, 2 - start)
    distance = (offsets[None] - (where - base)[:, None]) * shrink
    if reach == 1:
        weights = np.clip(1 - np.abs(distance), 0, 1)
    else:
        weights = cubic_weight(distance, call.get("cubic_coeff_a", -0.75))
    places = (base[:, None] + offsets[None]).astype(np.int64)
    if call.get("exclude_outside"):
        weights = np.where((places < 0) | (places >= size), 0.0, weights)
    weights = weights / weights.sum(axis=1, keepdims=True)
    return np.clip(places, 0, size - 1), weights


def _resize_axis(
    call: Call, x: Tensor, axis: int, count: int, scale: float, mode: str, roi: Any
) -> Tensor:
    size = int(x.shape[axis])
    where = coordinates(call, mode, size, count, scale, roi)
    if call["mode"] == "nearest":
        places = nearest_places(call, call.get("nearest_mode", "floor"), where)
        return wf.take(x, wf.asarray(np.clip(places, 0, size - 1)), axis=axis)
    places, weights = neighbours(call, where, scale, size)
    if weights.shape[1] <= FEW:
        shape = (count, *[1] * (x.ndim - axis - 1))
        out = None
        for tap in range(weights.shape[1]):
            share = wf.asarray(weights[:, tap].reshape(shape)).astype(x.dtype)
            part = wf.take(x, wf.asarray(places[:, tap]), axis=axis) * share
            out = part if out is None else out + part
    else:
        matrix = np.zeros((count, size))
        np.add.at(matrix, (np.arange(count)[:, None], places), weights)
        moved = wf.moveaxis(x, axis, -1)
        out = wf.moveaxis(wf.matmul(moved, wf.asarray(matrix.T).astype(x.dtype)), -1, axis)
    assert out is not None
    if mode != "tf_crop_and_resize":
        return out
    outside = ((where < 0) | (where > size - 1)).reshape((count, *[1] * (x.ndim - axis - 1)))
    return wf.where(wf.asarray(outside), call.get("extrapolation_value", 0.0), out)


def _resize(
    call: Call, x: Tensor, scales: Any, sizes: Any, roi: Any, mode: str, axes: list[int]
) -> Tensor:
    source = x
    x = x if x.dtype.is_floating or call["mode"] == "nearest" else x.astype("float32")
    if sizes is not None:
        factors = [new / x.shape[a] if _are_integers(new, x.shape[a]) else 1.0
                   for new, a in zip(sizes, axes, strict=True)]  # fmt: skip
        policy = call.get("keep_aspect_ratio_policy", "stretch")
        if policy != "stretch":
            factor = min(factors) if policy == "not_larger" else max(factors)
            factors = [factor] * len(axes)
            sizes = [int(factor * int(x.shape[a]) + 0.5) for a in axes]
    else:
        factors = [float(each) for each in scales]
        sizes = [
            x.shape[a] if factor == 1.0 else int(factor * int(x.shape[a]))
            for factor, a in zip(factors, axes, strict=True)
        ]
    call.check_room([*sizes, *[size for a, size in enumerate(x.shape) if a not in axes]])
    for number, (axis, size, factor) in enumerate(zip(axes, sizes, factors, strict=True)):
        part = None if roi is None or not len(roi) else (roi[number], roi[number + len(axes)])
        if size == x.shape[axis] and factor == 1.0 and mode != "tf_crop_and_resize":
            continue
        if not isinstance(x.shape[axis], int):
            raise call.refuse("resizing an axis whose size is a symbol")
        x = _resize_axis(call, x, axis, int(size), factor, mode, part)
    return x.astype(source.dtype)


def _are_integers(new: Any, old: Any) -> bool:
    return isinstance(new, int) and isinstance(old, int)


@rule("Resize", since=10, known=(1,))
@rule("Upsample", since=9, known=(1,))
def resize_by_scales(call: Call, x: Tensor, scales: Array) -> Tensor:
    """Axes made larger or smaller by factors."""
    return _resize(call, x, scales.tolist(), None, None, "asymmetric", list(range(x.ndim)))


@rule("Upsample")
def upsample(call: Call, x: Tensor) -> Tensor:
    """Axes made larger by factors that are an attribute."""
    return _resize(call, x, call["scales"], None, None, "asymmetric", list(range(x.ndim)))


@rule("Resize", since=11, known=(1, 2, 3))
def resize(
    call: Call,
    x: Tensor,
    roi: Array | None = None,
    scales: Array | None = None,
    sizes: Array | None = None,
) -> Tensor:
    """Axes made larger or smaller, by factors or to sizes."""
    given = call.get("axes")
    axes = list(range(x.ndim)) if given is None else [whole_axis(a, x.ndim) for a in given]
    new_sizes = None if sizes is None or not sizes.size else sizes.tolist()
    factors = None if scales is None or not scales.size else scales.tolist()
    region = None if roi is None else roi.tolist()
    mode = call["coordinate_transformation_mode"]
    return _resize(call, x, factors, new_sizes, region, mode, axes)
