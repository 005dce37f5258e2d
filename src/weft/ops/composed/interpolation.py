"""Resizing the spatial axes of [N, C, *spatial], in PyTorch's meaning.

>>> import weft as wf
>>> wf.interpolate(wf.tensor([[[1.0, 2.0]]]), size=4).tolist()
[[[1.0, 1.0, 2.0, 2.0]]]
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from weft.core.errors import ArgumentError, ShapeError
from weft.core.shapes import is_static
from weft.ir.batching import move_axis
from weft.ir.constants import place_beside
from weft.ir.dispatch import apply
from weft.ir.eager import unit
from weft.ir.tensor import Tensor, wrap
from weft.ops.composed.convolutions import per_axis
from weft.ops.composed.manipulation import repeat
from weft.ops.composed.pooling import (
    adaptive_avg_pool1d,
    adaptive_avg_pool2d,
    adaptive_avg_pool3d,
)
from weft.ops.indexing import gather
from weft.ops.movement import reshape
from weft.ops.operands import alias, allowed_dtype, as_tensor, convert_to, room

__all__ = ["interpolate"]

Array = np.ndarray[Any, Any]
_SMOOTH = {"linear": 1, "bicubic": 2, "bilinear": 2, "trilinear": 3}
"""Modes whose elements are means of neighbours, and for how many axes they are."""
_CUBIC = -0.75
"""The slope of the cubic kernel at 1, as PyTorch and OpenCV have it (Keys, 1981)."""
_AREA = (adaptive_avg_pool1d, adaptive_avg_pool2d, adaptive_avg_pool3d)


@unit
def interpolate(
    x: Any,
    size: int | Sequence[int] | None = None,
    scale_factor: float | Sequence[float] | None = None,
    mode: str = "nearest",
    align_corners: bool = False,
) -> Tensor:
    """The tensor with its spatial axes resized, to `size` or by `scale_factor`.

    mode: "nearest", "nearest-exact", "linear" (one axis), "bilinear" or "bicubic" (two),
    "trilinear" (three) or "area". With `align_corners` the first and last elements stay where they
    are; without, the elements are cells whose outer edges stay.

    >>> import weft as wf
    >>> x = wf.tensor([[[0.0, 2.0]]])
    >>> wf.interpolate(x, size=3, mode="linear", align_corners=True).tolist()
    [[[0.0, 1.0, 2.0]]]
    """
    tensor = as_tensor("interpolate", x)
    rank = tensor.ndim - 2
    doubled = _doublings(tensor, rank, size, scale_factor) if mode == "nearest" else None
    if doubled is not None:
        return _repeat_places(tensor, doubled)
    _check(tensor, rank, mode, align_corners)
    spatial = [int(dim) for dim in tensor.shape[2:]]
    sizes, ratios = _sizes(tensor, spatial, size, scale_factor, rank)
    if mode == "area":
        return _AREA[rank - 1](tensor, tuple(sizes))
    if mode in _SMOOTH:
        dtype = allowed_dtype("interpolate", tensor.dtype, "inexact", (tensor,))
        tensor = convert_to(tensor, dtype)
    out = alias(tensor)
    for i, (dim, count, ratio) in enumerate(zip(spatial, sizes, ratios, strict=True)):
        shift = 0.5 if mode == "nearest-exact" else 0.0
        with room("interpolate", {"x": tensor, "size": tuple(sizes)}):
            if mode in _SMOOTH:
                places = _places_between(dim, count, ratio, align_corners)
            else:
                places = _nearest_places(dim, count, ratio, shift)
        if mode == "bicubic":
            out = _cubic(out, i + 2, places, dim)
        elif mode in _SMOOTH:
            out = _linear(out, i + 2, np.maximum(places, 0.0), dim)
        else:
            out = _take_places(out, i + 2, places)
    return out


def _doublings(x: Tensor, rank: int, size: Any, scale_factor: Any) -> list[int] | None:
    """How many times the elements of axes of unknown size are repeated; None where that is not all.

    Powers of two are exact in float32, in which other sizes are counted.
    """
    if is_static(x.shape[2:]) or size is not None or not 1 <= rank <= 3:
        return None
    given = scale_factor if isinstance(scale_factor, (tuple, list)) else (scale_factor,) * rank
    fits = len(given) == rank and all(factor in (1, 2, 4, 8, 16) for factor in given)
    return [*map(int, given)] if fits else None


def _repeat_places(x: Tensor, times: Sequence[int]) -> Tensor:
    """Each element so many times along the spatial axes; its gradient is a sum."""
    out = alias(x)
    for axis, count in enumerate(times, start=2):
        out = repeat(out, count, axis=axis) if count > 1 else out
    return out


def _check(x: Tensor, rank: int, mode: str, align_corners: bool) -> None:
    if not 1 <= rank <= 3 or not is_static(x.shape[2:]) or 0 in x.shape[2:]:
        raise ShapeError(
            "interpolate",
            "the input does not have one to three spatial axes of known size",
            expected="[batch, channels, *spatial] with elements along each spatial axis",
            got={"x": x},
            fix="add axes for batch and channels: x[None, None]",
        )
    modes = ["nearest", "nearest-exact", "area"]
    modes += [smooth for smooth, axes in _SMOOTH.items() if axes == rank]
    if mode not in modes or (align_corners and mode not in _SMOOTH):
        raise ArgumentError(
            "interpolate",
            f"{mode!r} is not a mode for {rank} spatial axes"
            if mode not in modes
            else f"align_corners has no meaning for {mode!r}",
            expected="one of " + ", ".join(map(repr, modes)),
            got={"x": x, "mode": repr(mode), "align_corners": align_corners},
            fix=f'mode="{modes[-1]}"',
        )


def _sizes(
    x: Tensor, spatial: list[int], size: Any, scale_factor: Any, rank: int
) -> tuple[list[int], list[float]]:
    """The new sizes, and along each axis how many old elements one new element is long."""
    if (size is None) == (scale_factor is None):
        raise ArgumentError(
            "interpolate",
            "exactly one of size and scale_factor is needed",
            expected="size or scale_factor",
            got={"x": x, "size": size, "scale_factor": scale_factor},
            fix="scale_factor=2.0",
        )
    if size is not None:
        sizes = list(per_axis("interpolate", "size", size, rank))
        return sizes, [dim / count for dim, count in zip(spatial, sizes, strict=True)]
    given = scale_factor if isinstance(scale_factor, (tuple, list)) else (scale_factor,) * rank
    counts = [int(dim * factor) for dim, factor in zip(spatial, given, strict=False)]
    sizes = list(per_axis("interpolate", "scale_factor", counts, rank))
    return sizes, [1.0 / factor for factor in given]


def _nearest_places(dim: int, count: int, ratio: float, shift: float) -> Array:
    """For each new element the old one that it copies; in float32, as PyTorch counts."""
    places = np.floor((np.arange(count, dtype=np.float32) + np.float32(shift)) * np.float32(ratio))
    return np.asarray(np.minimum(places, dim - 1), np.int64)


def _places_between(dim: int, count: int, ratio: float, align_corners: bool) -> Array:
    """Where the new elements lie among the old ones; the first may lie before all of them."""
    if align_corners:
        step = (dim - 1) / (count - 1) if count > 1 else 0.0
        return np.arange(count) * step
    # The centre of new cell i in old cells, less the half cell by which centres are shifted.
    return np.asarray((np.arange(count) + 0.5) * ratio - 0.5)


def _take_places(x: Tensor, axis: int, places: Array) -> Tensor:
    if len(places) == x.shape[axis] and bool(np.all(places == np.arange(len(places)))):
        return x
    times = len(places) // x.shape[axis]
    if times and np.array_equal(places, np.arange(len(places)) // times):
        return repeat(x, times, axis=axis)  # its gradient is a sum, and not one of places
    return move_axis(apply(gather, x, place_beside(wrap(places), x), axes=(axis,)), 0, axis)


def _linear(x: Tensor, axis: int, places: Array, dim: int) -> Tensor:
    """Each new element as a mean of its two neighbours, weighted by how near they are."""
    low = np.minimum(np.floor(places).astype(np.int64), dim - 1)
    share = _shares(places - low, x, axis)
    before, after = _take_places(x, axis, low), _take_places(x, axis, np.minimum(low + 1, dim - 1))
    return before * (1.0 - share) + after * share


def _cubic(x: Tensor, axis: int, places: Array, dim: int) -> Tensor:
    """Each new element from its four neighbours; beyond an end, the element there counts again."""
    low = np.floor(places).astype(np.int64)
    t = places - low
    # by how far each neighbour is away: one and two elements at most
    near = [((_CUBIC + 2) * d - (_CUBIC + 3)) * d * d + 1 for d in (t, 1 - t)]
    far = [((_CUBIC * d - 5 * _CUBIC) * d + 8 * _CUBIC) * d - 4 * _CUBIC for d in (1 + t, 2 - t)]
    parts = [
        _take_places(x, axis, np.clip(low + step, 0, dim - 1)) * _shares(share, x, axis)
        for step, share in zip((-1, 0, 1, 2), (far[0], *near, far[1]), strict=True)
    ]
    return parts[0] + parts[1] + parts[2] + parts[3]


def _shares(shares: Array, x: Tensor, axis: int) -> Tensor:
    """[count, 1, …, 1], to broadcast with the axes behind the one that is resized."""
    shape = (len(shares), *[1] * (x.ndim - axis - 1))
    return apply(reshape, convert_to(wrap(shares), x.dtype), shape=shape)
