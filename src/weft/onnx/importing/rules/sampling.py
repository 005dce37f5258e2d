"""Reading at places that are data: grids, deformed windows, regions; and choosing boxes."""

from __future__ import annotations

import math
from itertools import product
from typing import Any

import numpy as np

import weft as wf
from weft.onnx.importing.reading import Array
from weft.onnx.importing.registry import rule
from weft.onnx.importing.rules.windows import window_of
from weft.onnx.importing.running import Call

Tensor = wf.Tensor
CUBIC = -0.75


def read_pixels(x: Tensor, places: list[Tensor]) -> Tensor:
    """Elements of [N, C, *spatial] at whole places of shape [N, *out]: [N, C, *out]."""
    n, c = x.shape[:2]
    flat = wf.zeros(places[0].shape, dtype="int64")
    for place, size in zip(places, x.shape[2:], strict=True):
        flat = flat * size + place.astype("int64")
    out = flat.shape[1:]
    count = math.prod(out, start=1)
    source = x.reshape((n, c, math.prod(x.shape[2:], start=1)))
    rows = wf.broadcast_to(flat.reshape((n, 1, count)), (n, c, count))
    return wf.gather(source, 2, rows).reshape((n, c, *out))


def _reflect(x: Tensor, low: float, high: float) -> Tensor:
    """Places mirrored at two borders until they lie between them."""
    span = high - low
    if span <= 0:
        return wf.zeros_like(x)
    away = wf.abs(x - low)
    turns = wf.floor(away / span)
    rest = away - turns * span
    is_even = wf.equal(turns - 2 * wf.floor(turns / 2), 0)
    return wf.where(is_even, rest + low, high - rest)


def _fetch(x: Tensor, places: list[Tensor], padding: str, borders: list[Any]) -> Tensor:
    """Elements at whole places, some of which are outside."""
    inside, held = None, []
    for place, size, (low, high) in zip(places, x.shape[2:], borders, strict=True):
        if padding == "reflection":
            place = wf.clip(wf.trunc(_reflect(place, low, high)), 0, size - 1)
        own = wf.logical_and(place >= 0, place <= size - 1)
        inside = own if inside is None else wf.logical_and(inside, own)
        held.append(wf.clip(place, 0, size - 1))
    values = read_pixels(x, held)
    if padding != "zeros":
        return values
    assert inside is not None
    return wf.where(wf.expand_dims(inside, axis=1), values, 0.0)


def _cubic_weights(t: Tensor) -> list[Tensor]:
    a = CUBIC
    outer = [((a * (u + 1) - 5 * a) * (u + 1) + 8 * a) * (u + 1) - 4 * a for u in (t, 1 - t)]
    inner = [((a + 2) * u - (a + 3)) * u * u + 1 for u in (t, 1 - t)]
    return [outer[0], inner[0], inner[1], outer[1]]


def sample(x: Tensor, where: list[Tensor], mode: str, padding: str, borders: list[Any]) -> Tensor:
    """Values of [N, C, *spatial] between its elements, at places [N, *out]: [N, C, *out]."""
    if mode == "nearest":
        return _fetch(x, [wf.round(each) for each in where], padding, borders)
    taps = range(2) if mode == "linear" else range(-1, 3)
    bases = [wf.floor(each) for each in where]
    shares = []
    for place, base in zip(where, bases, strict=True):
        t = place - base
        shares.append([1 - t, t] if mode == "linear" else _cubic_weights(t))
    total = None
    for corner in product(range(len(taps)), repeat=len(where)):
        places = [base + float(taps[i]) for base, i in zip(bases, corner, strict=True)]
        weight = shares[0][corner[0]]
        for axis in range(1, len(where)):
            weight = weight * shares[axis][corner[axis]]
        part = _fetch(x, places, padding, borders) * wf.expand_dims(weight, axis=1)
        total = part if total is None else total + part
    assert total is not None
    return total.astype(x.dtype)


@rule("GridSample")
def grid_sample(call: Call, x: Tensor, grid: Tensor) -> Tensor:
    """Values at places that a grid gives between -1 and 1, the last axis first."""
    sizes: tuple[Any, ...] = x.shape[2:]
    aligned = bool(call["align_corners"])
    mode = {"bilinear": "linear", "bicubic": "cubic"}.get(call["mode"], call["mode"])
    padding = call["padding_mode"]
    borders = [(0.0, size - 1.0) if aligned else (-0.5, size - 0.5) for size in sizes]
    where = []
    for axis, size in enumerate(sizes):
        n = grid[..., len(sizes) - 1 - axis]
        place = (n + 1) / 2 * (size - 1) if aligned else ((n + 1) * size - 1) / 2
        place = wf.round(place) if mode == "nearest" else place
        if padding == "border":
            place = wf.clip(place, 0.0, size - 1.0)
        elif padding == "reflection":
            place = _reflect(place, *borders[axis])
        where.append(place)
    return sample(x, where, mode, padding, borders)


@rule("DeformConv")
def deformed_convolution(
    call: Call,
    x: Tensor,
    weight: Tensor,
    offset: Tensor,
    bias: Tensor | None = None,
    mask: Tensor | None = None,
) -> Tensor:
    """A convolution whose windows read at places that are moved by offsets."""
    if x.ndim != 4:
        raise call.refuse(f"deformed windows over {x.ndim - 2} axes")
    kh, kw = (int(size) for size in weight.shape[2:])
    window = window_of(call, x.shape[2:], (kh, kw))
    groups, moved = call["group"], call["offset_group"]
    n, c = x.shape[:2]
    oh, ow = offset.shape[2:]
    offsets = offset.reshape((n, moved, kh, kw, 2, oh, ow))
    masks = None if mask is None else mask.reshape((n, moved, kh, kw, oh, ow))
    per = c // moved
    parts = []
    for group in range(moved):
        own = x[:, group * per : (group + 1) * per]
        where = []
        for axis, (count, taps) in enumerate(((oh, kh), (ow, kw))):
            first = wf.arange(count) * window.strides[axis] - window.pads[axis][0]
            inner = wf.arange(taps) * window.dilations[axis]
            shape = ((1, taps, 1, 1, 1), (1, 1, taps, 1, 1))[axis]
            outer = ((1, 1, 1, count, 1), (1, 1, 1, 1, count))[axis]
            base = (first.reshape(outer) + inner.reshape(shape)).astype(x.dtype)
            where.append(base + offsets[:, group, :, :, axis])
        values = sample(own, where, "linear", "zeros", [(0, 0), (0, 0)])
        parts.append(values if masks is None else values * masks[:, group][:, None])
    columns = wf.concat(parts, axis=1)  # [n, c, kh, kw, oh, ow]
    columns = columns.reshape((n, groups, -1, oh * ow))
    matrix = weight.reshape((groups, weight.shape[0] // groups, -1))
    out = wf.einsum("gok,ngkp->ngop", matrix, columns).reshape((n, weight.shape[0], oh, ow))
    return out if bias is None else out + bias.reshape((-1, 1, 1))


# --- regions and boxes ---------------------------------------------------------------------------


@rule("RoiAlign")
def align_regions(call: Call, x: Tensor, rois: Tensor, batch: Tensor) -> Tensor:
    """Regions of pictures as grids of a fixed size, each cell from samples inside of it."""
    half = call.get("coordinate_transformation_mode", "output_half_pixel") == "half_pixel"
    height, width = call["output_height"], call["output_width"]
    ratio = call["sampling_ratio"]
    scaled = rois * call["spatial_scale"] - (0.5 if half else 0.0)
    extents = scaled[:, 2:] - scaled[:, :2]
    extents = extents if half else wf.maximum(extents, 1.0)
    if ratio <= 0:  # as many samples as the region has pixels, which is data
        known = call.known_array(extents, "the number of samples of a region")
        wide = np.maximum(np.ceil(known / np.array([width, height])), 1).astype(int)
        per = {tuple(row) for row in wide.tolist()}
        if len(per) > 1:
            rows = [
                _align_with_samples(
                    call, x, scaled[i : i + 1], extents[i : i + 1], batch[i : i + 1], row
                )
                for i, row in enumerate(wide.tolist())
            ]
            return wf.concat(rows, axis=0)
        samples = per.pop() if per else (1, 1)
    else:
        samples = ratio, ratio
    call.check_room([rois.shape[0], x.shape[1], height * samples[1], width * samples[0]])
    return _align_with_samples(call, x, scaled, extents, batch, samples)


def _align_with_samples(
    call: Call, x: Tensor, scaled: Tensor, extents: Tensor, batch: Tensor, samples: Any
) -> Tensor:
    sizes = call["output_width"], call["output_height"]
    lines = []
    for axis in (1, 0):  # y, then x
        count, per = sizes[axis], int(samples[axis])
        steps = (wf.arange(count * per).astype(x.dtype) + 0.5) / per
        size = extents[:, axis] / count
        lines.append(scaled[:, axis][:, None] + steps[None] * size[:, None])
    # [regions, rows, columns]: where each sample lies
    shape = (scaled.shape[0], lines[0].shape[1], lines[1].shape[1])
    y = wf.broadcast_to(lines[0][:, :, None], shape)
    across = wf.broadcast_to(lines[1][:, None, :], shape)
    source = wf.take(x, batch.astype("int64"), axis=0)
    height, width = (int(size) for size in x.shape[2:])
    outside = (y < -1.0) | (y > height) | (across < -1.0) | (across > width)
    y, across = wf.clip(y, 0.0, height - 1.0), wf.clip(across, 0.0, width - 1.0)
    rows, columns = sizes[1], sizes[0]
    cells = (source.shape[0], x.shape[1], rows, int(samples[1]), columns, int(samples[0]))
    if call["mode"] == "avg":
        values = sample(source, [y, across], "linear", "border", [(0, 0), (0, 0)])
        values = wf.where(outside[:, None], 0.0, values)
        return wf.mean(values.reshape(cells), axis=(3, 5))
    return wf.max(_largest_corner(source, y, across, outside).reshape(cells), axis=(3, 5))


def _largest_corner(x: Tensor, y: Tensor, across: Tensor, outside: Tensor) -> Tensor:
    """The largest of the four weighted neighbours of each place."""
    best = None
    floors = wf.floor(y), wf.floor(across)
    shares = y - floors[0], across - floors[1]
    for dy, dx in product((0, 1), repeat=2):
        weight = (shares[0] if dy else 1 - shares[0]) * (shares[1] if dx else 1 - shares[1])
        places = [floors[0] + float(dy), floors[1] + float(dx)]
        part = _fetch(x, places, "border", [(0, 0), (0, 0)]) * weight[:, None]
        best = part if best is None else wf.maximum(best, part)
    return wf.where(outside[:, None], 0.0, best)


@rule("NonMaxSuppression", known=(2, 3, 4))
def choose_boxes(
    call: Call,
    boxes: Tensor,
    scores: Tensor,
    most: Array | None = None,
    overlap: Array | None = None,
    least: Array | None = None,
) -> Array:
    """The boxes of the highest scores that do not overlap: [chosen, (batch, class, box)]."""
    corners = _corners(call.known_array(boxes, "which boxes are chosen"), call["center_point_box"])
    rated = call.known_array(scores, "which boxes are chosen")
    count = 0 if most is None else int(most.reshape(-1)[0])
    limit = 0.0 if overlap is None else float(overlap.reshape(-1)[0])
    chosen: list[tuple[int, int, int]] = []
    for n in range(rated.shape[0]):
        for kind in range(rated.shape[1]):
            order = np.argsort(-rated[n, kind], kind="stable")
            if least is not None:
                order = order[rated[n, kind][order] > float(least.reshape(-1)[0])]
            kept: list[int] = []
            for place in order.tolist():
                if len(kept) >= count:
                    break
                if not kept or float(_overlaps(corners[n, place], corners[n, kept]).max()) <= limit:
                    kept.append(place)
            chosen += [(n, kind, place) for place in kept]
    return np.array(chosen, np.int64).reshape(-1, 3)


def _corners(boxes: Array, centred: int) -> Array:
    """Boxes as (y low, x low, y high, x high)."""
    if centred:
        x, y, width, height = np.moveaxis(boxes, -1, 0)
        parts = [y - height / 2, x - width / 2, y + height / 2, x + width / 2]
        return np.stack(parts, axis=-1)
    low = np.minimum(boxes[..., :2], boxes[..., 2:])
    return np.concatenate([low, np.maximum(boxes[..., :2], boxes[..., 2:])], axis=-1)


def _overlaps(box: Array, others: Array) -> Array:
    """The shared area over the joint area, with each of several boxes."""
    shared = np.prod(
        np.maximum(np.minimum(box[2:], others[:, 2:]) - np.maximum(box[:2], others[:, :2]), 0),
        axis=-1,
    )
    joint = np.prod(box[2:] - box[:2]) + np.prod(others[:, 2:] - others[:, :2], axis=-1) - shared
    return np.where(joint > 0, shared / np.where(joint > 0, joint, 1), 0.0)
