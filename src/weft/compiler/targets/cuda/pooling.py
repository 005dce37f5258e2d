"""The gradient of max pooling on a card: which tap of each window is largest, then sums by element.

A loop over windows that adds to elements would have to go one by one. Here the first launch finds
for each window the number of its first largest tap; in the second each element adds up, in the
order of taps, the cotangents of those windows in which it is that tap. Neighbours are channels:
which windows there are is the same for all of them, so they are read as vectors.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product
from math import prod

import numpy as np

from weft.compiler.graph_passes.channels_last_primitives import window_max_gradient
from weft.compiler.lowering.builder import ZERO, all_conditions, is_within, widen_element
from weft.compiler.plan.launch import Launch, Value
from weft.compiler.targets.cuda.loop_nests import (
    loop_launch,
    loop_nest,
    row_major_offset,
)
from weft.core.dtypes import INDEX, bfloat16, float16, float32, int8, int32
from weft.core.records import frozen
from weft.core.types import TensorType
from weft.ir import scalars
from weft.ir.graph import GraphNode, Variable
from weft.ir.loops import Kernel, Let, Statement, Store
from weft.ir.scalars import Buffer, Scalar, const

MOST_TAPS = 64
"""Taps up to which a window is written out."""


def is_pooling_gradient(node: GraphNode) -> bool:
    """Whether a node is the gradient of max pooling of floats, of sizes that are known."""
    if node.primitive is not window_max_gradient:
        return False
    kinds = [atom.type for atom in node.operands]
    dims = [dim for kind in kinds for dim in kind.shape]
    return (
        kinds[0].dtype in (float32, bfloat16, float16)
        and all(isinstance(dim, int) and dim > 0 for dim in dims)
        and prod(node.params["window"]) <= MOST_TAPS
    )


@frozen(slots=False)
class _Windows:
    """How windows lie in the last axes of x."""

    lead: int
    size: tuple[int, ...]
    counts: tuple[int, ...]
    window: tuple[int, ...]
    strides: tuple[int, ...]
    low: tuple[int, ...]
    dilation: tuple[int, ...]

    def is_whole(self, axis: int) -> bool:
        """Whether windows along an axis are its elements, one by one: that of the channels."""
        return (
            self.window[axis] == self.strides[axis] == 1
            and self.low[axis] == 0
            and self.counts[axis] == self.size[axis]
        )


def pooling_gradient_launches(node: GraphNode) -> list[Launch]:
    """The two launches."""
    x, ct = node.operands
    params, rank = node.params, len(node.params["window"])
    shape, counts = (tuple(map(int, atom.type.shape)) for atom in (x, ct))
    windows = _Windows(
        prod(shape[:-rank]), shape[-rank:], counts[-rank:], tuple(params["window"]),
        tuple(params["strides"]), tuple(low for low, _ in params["padding"]),
        tuple(params["dilation"]),
    )  # fmt: skip
    largest = Variable(TensorType(int8, counts))
    return [_largest_taps(windows, x, largest), _sums(windows, ct, largest, node.results[0])]


def _largest_taps(windows: _Windows, x: Value, largest: Variable) -> Launch:
    """The number of each window's first largest tap; NaN exceeds all numbers."""
    source, target = Buffer("x", x.type.dtype), Buffer("out", int8, "write")
    row = scalars.index("n")
    places = [scalars.index(f"p{axis}") for axis in range(len(windows.counts))]
    lowest = const(-np.inf, float32)
    best, found = lowest, const(-1, int32)
    body: list[Statement] = []
    for number, tap in enumerate(product(*map(range, windows.window))):
        at = [
            place * stride + (k * step - low)
            for place, stride, k, step, low in zip(
                places, windows.strides, tap, windows.dilation, windows.low, strict=True
            )
        ]
        inside = all_conditions(
            [
                is_within(a, const(dim, INDEX))
                for axis, (a, dim) in enumerate(zip(at, windows.size, strict=True))
                if not windows.is_whole(axis)
            ]
        )
        offset = row_major_offset([row, *at], [windows.lead, *windows.size])
        loaded = scalars.load(source, offset, inside, scalars.cast(lowest, source.dtype))
        value, where, most = (
            scalars.local(f"{name}{number}", dtype)
            for name, dtype in (("value", float32), ("found", int32), ("best", float32))
        )
        first_nan = scalars.and_(scalars.not_equal(value, value), scalars.equal(best, best))
        better = scalars.or_(scalars.less(best, value), scalars.less(found, const(0, int32)))
        better = scalars.or_(better, first_nan)
        better = better if inside is None else scalars.and_(better, inside)
        body += [
            Let(value, scalars.cast(widen_element(loaded), float32)),
            Let(where, scalars.select(better, const(number, int32), found)),
            Let(most, scalars.select(better, value, best)),
        ]
        best, found = most, where
    own = row_major_offset([row, *places], [windows.lead, *windows.counts])
    body.append(Store(target, own, scalars.cast(found, int8)))
    loops = [(row, windows.lead), *zip(places, windows.counts, strict=True)]
    kernel = Kernel("largest taps", (source, target), (), loop_nest(loops, body))
    return loop_launch(kernel, (x, largest), largest)


def _sums(windows: _Windows, ct: Value, largest: Variable, dx: Variable) -> Launch:
    """Each element's sum of the cotangents of windows whose largest tap it is, in float32."""
    given, taps = Buffer("ct", ct.type.dtype), Buffer("largest", int8)
    target = Buffer("out", dx.type.dtype, "write")
    row = scalars.index("n")
    places = [scalars.index(f"h{axis}") for axis in range(len(windows.size))]
    total: Scalar = const(0.0, float32)
    body: list[Statement] = []
    for number, chosen in enumerate(product(*_windows_of(windows, places))):
        inside = all_conditions([each for window in chosen for each in window.conditions])
        at = [window.place for window in chosen]
        own = row_major_offset([row, *at], [windows.lead, *windows.counts])
        tap = row_major_offset([window.tap for window in chosen], windows.window)
        # Both are read for all channels at once: which of them is the largest tap is asked later.
        found = scalars.cast(scalars.load(taps, own, inside, const(-1, int8)), int32)
        value = scalars.cast(widen_element(scalars.load(given, own, inside)), float32)
        value = scalars.select(
            scalars.equal(found, scalars.cast(tap, int32)), value, const(0.0, float32)
        )
        sum_so_far = scalars.local(f"total{number}", float32)
        body.append(Let(sum_so_far, total + value))
        total = sum_so_far
    place = row_major_offset([row, *places], [windows.lead, *windows.size])
    body.append(Store(target, place, scalars.cast(total, target.dtype)))
    loops = [(row, windows.lead), *zip(places, windows.size, strict=True)]
    kernel = Kernel("sums of windows", (given, taps, target), (), loop_nest(loops, body))
    return loop_launch(kernel, (ct, largest, dx), dx)


@frozen(slots=False)
class _SeenBy:
    """A window that may see an element, along one axis: where it is, as which tap, and if so."""

    place: Scalar
    tap: Scalar
    conditions: tuple[Scalar, ...]


def _windows_of(windows: _Windows, places: Sequence[Scalar]) -> list[list[_SeenBy]]:
    """The windows that may see an element, along each axis, in the order of its taps there."""
    found = []
    for axis, place in enumerate(places):
        if windows.is_whole(axis):
            found.append([_SeenBy(place, ZERO, ())])
            continue
        stride, step = windows.strides[axis], windows.dilation[axis]
        reach = (windows.window[axis] - 1) * step + 1
        start = place + windows.low[axis]
        last = start // stride if stride > 1 else start
        candidates = []
        for back in range(-(-reach // stride)):
            window = last - back
            distance = start - window * stride
            tap = distance // step if step > 1 else distance
            conditions = [is_within(window, const(windows.counts[axis], INDEX))]
            if reach % stride:
                conditions.append(scalars.less(distance, const(reach, INDEX)))
            if step > 1:
                conditions.append(scalars.equal(tap * step, distance))
            candidates.append(_SeenBy(window, tap, tuple(conditions)))
        found.append(candidates)
    return found
