"""Images read at places that are data: sampling grids and the affine maps that make them.

A place is a pair (x, y) or a triple (x, y, z), from -1 at the first edge to 1 at the last. With
`align_corners` the edges are the centres of the outermost elements, without it their outer sides.

>>> import weft as wf
>>> image = wf.tensor([[[[1.0, 2.0], [3.0, 4.0]]]])
>>> grid_sample(image, wf.tensor([[[[0.0, 0.0]]]]), align_corners=True).tolist()
[[[[2.5]]]]
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product

import weft as wf
from weft.eager import unit
from weft.nn.functional.checks import choose

MODES = ("bilinear", "nearest", "bicubic")
PADDING_MODES = ("zeros", "border", "reflection")


@unit
def grid_sample(
    x: wf.Tensor,
    grid: wf.Tensor,
    mode: str = "bilinear",
    padding_mode: str = "zeros",
    align_corners: bool = False,
) -> wf.Tensor:
    """x [N, C, H, W] read at the places of a grid [N, rows, columns, 2]: [N, C, rows, columns].

    Volumes [N, C, D, H, W] are read at triples. mode: "bilinear" between neighbours,
    "bicubic" between four on each axis (of images alone, as PyTorch weighs them), or "nearest".
    padding_mode says what lies outside: "zeros", the "border", or a "reflection" of the inside.

    >>> image = wf.tensor([[[[1.0, 2.0], [3.0, 4.0]]]])
    >>> grid_sample(image, wf.tensor([[[[9.0, 9.0]]]]), padding_mode="border").tolist()
    [[[[4.0]]]]
    """
    choose("grid_sample", "mode", mode, MODES)
    choose("grid_sample", "padding_mode", padding_mode, PADDING_MODES)
    rank = x.ndim - 2
    fits = rank in (2, 3) and grid.ndim == x.ndim and grid.shape[-1] == rank
    if not fits or grid.shape[0] != x.shape[0]:
        raise wf.ShapeError(
            "grid_sample",
            "the grid does not fit the images",
            expected="x: [N, C, H, W] and grid: [N, rows, columns, 2], or both with one axis more",
            got={"x": x, "grid": grid},
            fix="give one grid for each image, and one coordinate for each spatial axis",
        )
    sizes = [int(size) for size in x.shape[2:]]
    # Coordinates come as (x, y), axes as (height, width): the last coordinate is the first axis.
    coordinates = [grid[..., rank - 1 - axis] for axis in range(rank)]
    if mode == "bicubic":
        return _bicubic(x, coordinates, padding_mode, align_corners)
    places = [
        _on_axis(coordinate, size, padding_mode, align_corners)
        for coordinate, size in zip(coordinates, sizes, strict=True)
    ]
    if mode == "nearest":
        return _read(x, [wf.round(place) for place in places], padding_mode)
    total = None
    lows = [wf.stop_gradient(wf.floor(place)) for place in places]
    for corner in product((0, 1), repeat=rank):
        shares = [
            place - low if upper else 1 - (place - low)
            for place, low, upper in zip(places, lows, corner, strict=True)
        ]
        share = shares[0]
        for each in shares[1:]:
            share = share * each
        at = [low + upper for low, upper in zip(lows, corner, strict=True)]
        part = _read(x, at, padding_mode) * wf.expand_dims(share, axis=1).astype(x.dtype)
        total = part if total is None else total + part
    assert total is not None
    return total


def _bicubic(
    x: wf.Tensor, coordinates: Sequence[wf.Tensor], padding_mode: str, align_corners: bool
) -> wf.Tensor:
    """Images read between four neighbours on each axis; each neighbour is padded for itself."""
    if x.ndim != 4:
        raise wf.UnsupportedError(
            "grid_sample",
            "only images are read between four neighbours",
            expected='x: [N, C, H, W] for mode="bicubic"',
            got={"x": x},
            fix='mode="bilinear"',
        )
    sizes = [int(size) for size in x.shape[2:]]
    places = [_open_place(c, n, align_corners) for c, n in zip(coordinates, sizes, strict=True)]
    lows = [wf.stop_gradient(wf.floor(place)) for place in places]
    weights = [_cubic_weights(place - low) for place, low in zip(places, lows, strict=True)]
    total = None
    for corner in product(range(4), repeat=2):
        at = [
            _padded_place(low + (step - 1), size, padding_mode, align_corners)
            for low, step, size in zip(lows, corner, sizes, strict=True)
        ]
        share = weights[0][corner[0]] * weights[1][corner[1]]
        part = _read(x, at, padding_mode) * wf.expand_dims(share, axis=1).astype(x.dtype)
        total = part if total is None else total + part
    assert total is not None
    return total


CUBIC = -0.75
"""The slope of the cubic kernel at 1, as PyTorch and OpenCV have it (Keys, 1981)."""


def _cubic_weights(t: wf.Tensor) -> list[wf.Tensor]:
    """The shares of the four neighbours of a place that lies t behind the second of them."""

    def near_weight(d: wf.Tensor) -> wf.Tensor:  # at a distance up to 1
        return ((CUBIC + 2) * d - (CUBIC + 3)) * d * d + 1

    def far_weight(d: wf.Tensor) -> wf.Tensor:  # at a distance from 1 to 2
        return ((CUBIC * d - 5 * CUBIC) * d + 8 * CUBIC) * d - 4 * CUBIC

    return [far_weight(t + 1), near_weight(t), near_weight(1 - t), far_weight(2 - t)]


def _on_axis(place: wf.Tensor, size: int, padding_mode: str, align_corners: bool) -> wf.Tensor:
    """A coordinate from -1 to 1 as a place on an axis, where 0 is the first element."""
    return _padded_place(_open_place(place, size, align_corners), size, padding_mode, align_corners)


def _open_place(place: wf.Tensor, size: int, align_corners: bool) -> wf.Tensor:
    """A coordinate from -1 to 1 as a place on an axis that goes on at both ends."""
    place = wf.where(wf.isnan(place), -1.0, place)
    return (place + 1) / 2 * (size - 1) if align_corners else ((place + 1) * size - 1) / 2


def _padded_place(place: wf.Tensor, size: int, padding_mode: str, align_corners: bool) -> wf.Tensor:
    """A place moved inside of an axis, unless zeros lie outside."""
    if padding_mode == "reflection":
        place = _reflect(place, 0.0 if align_corners else -0.5, size - 1 if align_corners else size)
    return place if padding_mode == "zeros" else wf.clip(place, 0, size - 1)


def _reflect(place: wf.Tensor, low: float, span: int) -> wf.Tensor:
    """A place folded back at both ends of a stretch until it lies inside."""
    if span == 0:
        return place * 0
    far = wf.abs(place - low)
    turns = wf.stop_gradient(wf.floor(far / span))
    rest = far - turns * span
    return wf.where(wf.equal(turns % 2, 0), rest, span - rest) + low


def _read(x: wf.Tensor, places: Sequence[wf.Tensor], padding_mode: str) -> wf.Tensor:
    """The elements at whole places, [N, C, *grid]; zero outside where the padding says so."""
    sizes = [int(size) for size in x.shape[2:]]
    whole = [
        wf.clip(wf.stop_gradient(place), 0, size - 1).astype("int64")
        for place, size in zip(places, sizes, strict=True)
    ]
    batch = wf.arange(x.shape[0]).reshape(-1, *[1] * (whole[0].ndim - 1))
    channels_last = wf.moveaxis(x, 1, -1)
    found = wf.moveaxis(channels_last[(batch, *whole)], -1, 1)
    if padding_mode != "zeros":
        return found
    inside = wf.ones(whole[0].shape, dtype="bool")
    for place, size in zip(places, sizes, strict=True):
        inside = inside & (place >= 0) & (place <= size - 1)
    return wf.where(wf.expand_dims(inside, axis=1), found, wf.zeros((), dtype=x.dtype))


@unit
def affine_grid(theta: wf.Tensor, size: Sequence[int], align_corners: bool = False) -> wf.Tensor:
    """The grid for `grid_sample` that an affine map gives: theta [N, 2, 3] -> [N, H, W, 2].

    `size` is that of the result, [N, C, H, W]; with theta [N, 3, 4] it is [N, C, D, H, W].

    >>> still = wf.tensor([[[1.0, 0.0, 0.0], [0.0, 1.0, 0.0]]])
    >>> affine_grid(still, (1, 1, 2, 2), align_corners=True)[0, 0].tolist()
    [[-1.0, -1.0], [1.0, -1.0]]
    """
    spatial = tuple(size)[2:]
    rank = len(spatial)
    if rank not in (2, 3) or theta.ndim != 3 or tuple(theta.shape[1:]) != (rank, rank + 1):
        raise wf.ShapeError(
            "affine_grid",
            "the map does not fit the size",
            expected="theta: [N, 2, 3] with a size of 4 numbers, or [N, 3, 4] with 5",
            got={"theta": theta, "size": tuple(size)},
            fix="affine_grid(theta, (1, 3, 32, 32))",
        )
    lines = [_line(count, align_corners, theta.dtype) for count in spatial]
    axes = wf.meshgrid(*lines, indexing="ij")  # one of [*spatial] for each axis
    ones = wf.ones(spatial, dtype=theta.dtype)
    places = wf.stack([*reversed(axes), ones], axis=-1)  # [*spatial, rank + 1]
    flat = wf.reshape(places, (1, -1, rank + 1)) @ wf.matrix_transpose(theta)
    return wf.reshape(flat, (theta.shape[0], *spatial, rank))


def _line(count: int, align_corners: bool, dtype: wf.DType) -> wf.Tensor:
    """The places of the elements of an axis, from -1 to 1."""
    if count == 1:
        return wf.zeros(1, dtype=dtype)
    edge = 1.0 if align_corners else (count - 1) / count
    return wf.linspace(-edge, edge, count, dtype=dtype)
