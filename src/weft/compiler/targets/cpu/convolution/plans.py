"""Plans of direct convolutions: how they are cut into blocks, and the tables of their products.

Channels are the last axis of x and y. All numbers of spatial axes become three; the first of them
is cut into blocks of rows, the last is contiguous. A block has so many places that what its
windows see stays in cache beside a panel of weights.

>>> sizes = Sizes(4, 1, 8, 16, (6, 6), (6, 6), (3, 3), (1, 1), (1, 1), (1, 1))
>>> plan = forward(sizes, 64)
>>> plan.rows, plan.at_once, plan.frame
(6, 1, (8, 1, 8))
"""

from __future__ import annotations

from itertools import product
from math import prod
from typing import Any

import numpy as np

from weft.compiler.lowering.convolution_sizes import Sizes
from weft.core.records import frozen
from weft.core.shapes import Dimension

Array = np.ndarray[Any, Any]
PLACES, TERMS = 128, 256
"""About how many places a block has, where they are rows of products, and where they are terms."""
TASKS = 8
"""How many tasks there should be at least."""
TOGETHER = 8
"""The most images of a block where their number is not known. Each block reads all weights, and the
last one may have fewer images."""
FEW = 24
"""Places that a block has at least where one more is made for another thread."""
LONG = 64 * 1024
"""Elements of a line up to which the only spatial axis is not cut."""
DEPTH = 1024
"""Terms that are multiplied at a time."""
PARTIAL = 8 << 20
"""Bytes of partial sums of weights."""
Three = tuple[int, int, int]


@frozen
class Phase:
    """Places whose windows have the same terms: `count` rows of `rest` places in an image."""

    count: int
    rest: int
    rows: Array
    terms: Array


@frozen
class Plan:
    """How a convolution is cut. at_once: images of a block; rows: of an image; blocks: of one."""

    at_once: int
    rows: int
    blocks: int
    step: int
    pixel: int
    low: Three
    frame: Three
    area: Three
    phases: tuple[Phase, ...]
    y_step: int
    parts: int
    whole: bool
    """Whether all blocks are of one size."""

    def head(self, images: int) -> list[int]:
        """What copying a frame is told."""
        image = prod(self.area) * self.pixel
        return [
            images, self.at_once, self.blocks, self.rows, self.step, image, self.pixel, *self.low,
            *self.frame, *self.area,
        ]  # fmt: skip


def _triple(values: tuple[int, ...], fill: int, line: bool) -> Three:
    """One, two or three spatial entries as three; one of a `line` is the innermost."""
    if len(values) == 1:
        return (fill, fill, values[0]) if line else (values[0], fill, fill)
    return (values[0], fill, values[1]) if len(values) == 2 else (values[0], values[1], values[2])


@frozen
class _SpatialSizes:
    """The sizes of a convolution as if it had three spatial axes: depth, rows, columns."""

    area: Three
    counts: Three
    kernel: Three
    strides: Three
    dilation: Three
    low: Three


def _spatial_sizes(s: Sizes) -> _SpatialSizes:
    line = len(s.area) == 1 and s.area[0] * s.groups * max(s.channels, s.outputs) <= LONG
    return _SpatialSizes(
        _triple(s.area, 1, line), _triple(s.counts, 1, line), _triple(s.kernel, 1, line),
        _triple(s.strides, 1, line), _triple(s.dilation, 1, line), _triple(s.low, 0, line),
    )  # fmt: skip


def cut_blocks(
    images: Dimension, count: int, rest: int, wanted: int, tasks: int = TASKS
) -> tuple[int, int]:
    """Rows of a block, and images: about `wanted` places, but so many blocks at least.

    count: rows of an image, rest: places in one of them.
    """
    rows = min(count, max(1, wanted // max(1, rest)))
    # a number that divides the rows, unless that leaves less than half of them
    rows = next(r for r in range(rows, 0, -1) if count % r == 0 or r <= max(1, rows // 2))
    if rows < count:
        return rows, 1
    fitting = max(1, wanted // max(1, rest * count))  # whole images that a block has room for
    if not isinstance(images, int):
        return rows, min(fitting, TOGETHER)
    together = min(fitting, max(1, images // tasks))  # with enough blocks for all threads
    smallest = together // 2 + 1
    return rows, next(n for n in range(together, 0, -1) if images % n == 0 or n <= smallest)


def _shared_rows(rows: int, count: int, rest: int) -> int:
    """Rows of a block where all rows would be one, which keeps all threads but one waiting."""
    halves = [-(-count // blocks) for blocks in (4, 2)] if rows == count else []
    return next((fewer for fewer in halves if fewer * rest >= FEW), rows)


def _offsets(at: tuple[Array, ...], sizes: tuple[int, ...]) -> Array:
    """Where a place is among the elements of an array."""
    total = at[0]
    for each, size in zip(at[1:], sizes[1:], strict=True):
        total = total * size + each
    return total


def _grid(*counts: int) -> tuple[Array, ...]:
    """All places of a box, in order."""
    return tuple(each.reshape(-1) for each in np.indices(counts, np.int64))


def pairs(a: Array, b: Array) -> Array:
    """Two tables as one: an entry of each in turn."""
    return np.stack([a, b], axis=1).reshape(-1)


def _panel_parts(images: Dimension, at_once: int, blocks: int, panels: int) -> int:
    """Into how many parts panels are cut, where there are few blocks."""
    if isinstance(images, int):
        tasks = -(-images // at_once) * blocks
    else:  # where images lie together, all of them may be in one block
        tasks = blocks if at_once > 1 else TASKS
    return 1 if tasks >= TASKS else max(1, min(panels, TASKS // max(1, tasks)))


def forward(s: Sizes, width: int) -> Plan:
    """The plan of a convolution; `width`: columns of a panel."""
    a = _spatial_sizes(s)
    rest = a.counts[1] * a.counts[2]
    rows, at_once = cut_blocks(s.images, a.counts[0], rest, PLACES)
    if s.images == 1 and s.outputs * s.groups <= width:
        rows = _shared_rows(rows, a.counts[0], rest)
    pixel, outputs = s.groups * s.channels, s.groups * s.outputs
    frame, row_offsets, places, terms = _window_tables(s, a, at_once, rows)
    blocks = -(-a.counts[0] // rows)
    panels = -(-s.outputs // width) * s.groups
    phase = Phase(
        a.counts[0], rest, pairs(row_offsets, places * outputs),
        pairs(terms, np.arange(len(terms)) * width),
    )  # fmt: skip
    parts = _panel_parts(s.images, at_once, blocks, panels)
    whole = a.counts[0] % rows == 0 and (at_once == 1 or s.images % at_once == 0)
    return Plan(
        at_once, rows, blocks, a.strides[0], pixel, a.low, frame, a.area, (phase,),
        rest * outputs, parts, whole,
    )  # fmt: skip


def _window_tables(
    s: Sizes, a: _SpatialSizes, at_once: int, rows: int
) -> tuple[Three, Array, Array, Array]:
    """The frame of a block, and offsets: of windows in it, of places in y, of taps in a window."""
    pixel, frame = s.groups * s.channels, _forward_frame(a, rows)
    windows = _window_starts(a, at_once, rows, frame, pixel)
    places = _offsets(_grid(at_once, rows, *a.counts[1:]), (1, a.counts[0], *a.counts[1:]))
    c, *tap = _grid(s.channels, *a.kernel)
    return frame, windows, places, _tap_offsets(a, tap, frame, pixel) + c


def _forward_frame(a: _SpatialSizes, rows: int) -> Three:
    counts = (rows, *a.counts[1:])
    first, second, third = (
        (n - 1) * s + (k - 1) * d + 1
        for n, s, k, d in zip(counts, a.strides, a.kernel, a.dilation, strict=True)
    )
    return first, second, third


def _window_starts(a: _SpatialSizes, at_once: int, rows: int, frame: Three, pixel: int) -> Array:
    """Where in the frame the windows of a block begin."""
    image, *place = _grid(at_once, rows, *a.counts[1:])
    moved = tuple(q * step for q, step in zip(place, a.strides, strict=True))
    return _offsets((image, *moved), (1, *frame)) * pixel


def _tap_offsets(a: _SpatialSizes, tap: list[Array], frame: Three, pixel: int) -> Array:
    moved = tuple(k * d for k, d in zip(tap, a.dilation, strict=True))
    return _offsets(moved, frame) * pixel


# --- the gradient of the input -------------------------------------------------------------------


def backward(s: Sizes, width: int) -> Plan:
    """The plan of the gradient of the input, which has a phase for each place in a stride."""
    a = _spatial_sizes(s)
    steps = [_axis_steps(a, axis) for axis in range(3)]
    lowest = [min(e for phase in each for _, e in phase) for each in steps]
    spans = [
        max(e for phase in each for _, e in phase) - low + 1
        for each, low in zip(steps, lowest, strict=True)
    ]
    counts = [-(-dim // stride) for dim, stride in zip(a.area, a.strides, strict=True)]
    rest = counts[1] * counts[2] * prod(a.strides)
    rows, at_once = cut_blocks(s.images, counts[0], rest, PLACES * 2)
    frame = (rows - 1 + spans[0], counts[1] - 1 + spans[1], counts[2] - 1 + spans[2])
    pixel, channels = s.groups * s.outputs, s.groups * s.channels
    panels = -(-s.channels // width)
    blocks = -(-counts[0] // rows)
    choices = product(*[range(stride) for stride in a.strides])
    phases = tuple(
        _phase(s, a, (at_once, rows), frame, taps, lowest, which, (panels, width), zone)
        for which in choices
        for zone, taps in _zones(a, steps, which, rows if blocks == 1 else 0)
    )
    whole = a.area[0] == rows * blocks * a.strides[0]
    whole = whole and (at_once == 1 or s.images % at_once == 0)
    low = (-lowest[0], -lowest[1], -lowest[2])
    return Plan(
        at_once, rows, blocks, 1, pixel, low, frame, a.counts, phases,
        a.strides[0] * a.area[1] * a.area[2] * channels,
        _panel_parts(s.images, at_once, blocks, panels * s.groups), whole,
    )  # fmt: skip


def _axis_steps(a: _SpatialSizes, axis: int) -> list[list[tuple[int, int]]]:
    """For each phase along an axis the taps that reach it, and how far their y is."""
    stride, gap, low = a.strides[axis], a.dilation[axis], a.low[axis]
    return [
        [
            (k, (phase + low - k * gap) // stride)
            for k in range(a.kernel[axis])
            if (phase + low - k * gap) % stride == 0
        ]
        for phase in range(stride)
    ]


Steps = list[list[tuple[int, int]]]
"""For each axis the taps of a phase, and how far their y is."""


def _zones(
    a: _SpatialSizes, steps: list[list[list[tuple[int, int]]]], which: tuple[int, ...], rows: int
) -> list[tuple[range, Steps]]:
    """Rows of a phase, and their taps: without those that see padding alone, if rows are known."""
    taps = [each[phase] for each, phase in zip(steps, which, strict=True)]
    many = max(0, -(-(a.area[0] - which[0]) // a.strides[0]))
    if not rows:
        return [(range(many), taps)]
    zones: list[tuple[range, Steps]] = []
    for q in range(many):
        seen = [(k, e) for k, e in taps[0] if 0 <= q + e < a.counts[0]]
        if zones and zones[-1][1][0] == seen:
            zones[-1] = (range(zones[-1][0].start, q + 1), zones[-1][1])
        else:
            zones.append((range(q, q + 1), [seen, *taps[1:]]))
    return zones


def _phase(
    s: Sizes,
    a: _SpatialSizes,
    block: tuple[int, int],
    frame: Three,
    steps: Steps,
    lowest: list[int],
    which: tuple[int, ...],
    panels: tuple[int, int],
    zone: range,
) -> Phase:
    """The tables of one phase; `panels` of the weights: how many, and how wide."""
    pixel, channels = s.groups * s.outputs, s.groups * s.channels
    many = [
        max(0, -(-(dim - phase) // stride))
        for dim, phase, stride in zip(a.area[1:], which[1:], a.strides[1:], strict=True)
    ]
    image, *place = _grid(block[0], min(block[1], len(zone)), *many)
    place[0] = place[0] + zone.start
    seen = _offsets((image, *place), (1, *frame)) * pixel
    moved = [q * t + p for q, t, p in zip(place, a.strides, which, strict=True)]
    target = _offsets((image, *moved), (1, *a.area)) * channels
    taps = list(product(*steps))
    number = np.array([_flat([k for k, _ in tap], a.kernel) for tap in taps], np.int64)
    ends = [[e - low for (_, e), low in zip(tap, lowest, strict=True)] for tap in taps]
    far = np.array([_flat(end, frame) for end in ends], np.int64)
    o = np.repeat(np.arange(s.outputs), len(taps))
    terms = np.tile(far * pixel, s.outputs) + o
    weights = (o * (panels[0] * s.taps) + np.tile(number, s.outputs)) * panels[1]
    return Phase(len(zone), many[0] * many[1], pairs(seen, target), pairs(terms, weights))


def _flat(place: list[int], sizes: Three) -> int:
    return (place[0] * sizes[1] + place[1]) * sizes[2] + place[2]


# --- the gradient of the weights -----------------------------------------------------------------


@frozen
class WeightPlan:
    """The plan of the gradient of the weights: splits of the blocks times slices of the rows."""

    plan: Plan
    splits: int
    slices: int
    rows: Array
    terms: Array


def weights(s: Sizes) -> WeightPlan:
    """Taps and channels are rows, places are terms; what splits have added up is added at last."""
    a = _spatial_sizes(s)
    rest = a.counts[1] * a.counts[2]
    rows, at_once = cut_blocks(s.images, a.counts[0], rest, TERMS)
    pixel, outputs = s.groups * s.channels, s.groups * s.outputs
    frame, seen, places, row_offsets = _window_tables(s, a, at_once, rows)
    blocks = -(-a.counts[0] // rows)
    plan = Plan(
        at_once, rows, blocks, a.strides[0], pixel, a.low, frame, a.area, (), a.counts[0], 1, True,
    )  # fmt: skip
    splits, slices = _shares(s, blocks if isinstance(s.images, int) else 1, at_once)
    own = np.arange(len(row_offsets)) * s.outputs
    return WeightPlan(plan, splits, slices, pairs(row_offsets, own), pairs(seen, places * outputs))


def _shares(s: Sizes, blocks: int, at_once: int) -> tuple[int, int]:
    size = s.groups * s.channels * s.taps * s.outputs * 4
    images = -(-s.images // at_once) if isinstance(s.images, int) else TASKS
    splits = max(1, min(TASKS, images * blocks, PARTIAL // max(1, size)))
    rows = s.channels * s.taps
    return splits, max(1, min(-(-TASKS // splits), rows // 24))
