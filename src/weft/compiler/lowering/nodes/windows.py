"""Kernels of windows that slide along the last axes: sums, maxima, and where those stand.

All taps of a window are written out, neighbouring windows in vectors; windows too large for that
are gone through by loops.

>>> import weft as wf
>>> wf.jit(lambda x: wf.max_pool1d(x, 2))(wf.tensor([[[1.0, 3.0, 2.0, 0.0]]])).tolist()
[[[3.0, 2.0]]]
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import product

import numpy as np

from weft.compiler.lowering.builder import (
    ZERO,
    KernelBuilder,
    Loop,
    NodeKernel,
    all_conditions,
    compute_dtype,
    is_short,
    is_within,
    kernel_of,
    nest,
    widen_element,
)
from weft.core.dtypes import INDEX, DType
from weft.core.shapes import Dimension, Shape, is_static, size
from weft.ir import scalars
from weft.ir.affine_index import strides
from weft.ir.loops import Accumulate, Scratch, Statement, Store, Update
from weft.ir.scalars import Buffer, Combine, Scalar


class _Windows:
    """The loops over windows, and what a tap of one sees."""

    def __init__(self, builder: KernelBuilder, spatial: Shape, counts: Shape) -> None:
        params = builder.params
        self.builder, self.spatial, self.counts = builder, spatial, counts
        self.window: Shape = params["window"]
        self.steps, self.gaps = params["strides"], params["dilation"]
        self.low = [low for low, _ in params["padding"]]
        self.padded = [bool(low or high) for low, high in params["padding"]]
        lead = len(builder.shape(0)) - len(spatial)
        self.lead: Dimension = size(builder.shape(0)[:lead])
        self.row = scalars.index("row")
        self.loops: list[Loop] = [
            (scalars.index(f"j{axis}"), builder.extent(dim)) for axis, dim in enumerate(counts)
        ]
        self.taps: list[Loop] = [
            (scalars.index(f"k{axis}"), builder.extent(dim)) for axis, dim in enumerate(self.window)
        ]

    @property
    def all(self) -> list[Loop]:
        """Loops over everything that goes before the windows, and over the windows."""
        return [(self.row, self.builder.extent(self.lead)), *self.loops]

    def is_small(self) -> bool:
        """Whether a window can be written out."""
        most = self.builder.limits.unrolled_window_taps
        return is_static(self.window) and int(size(self.window)) <= most

    def tap_offset(self, tap: Sequence[Scalar]) -> tuple[Scalar, Scalar | None]:
        """Where a tap of the window is, counted through the last axes; whether it is inside."""
        places, conditions = [], []
        for axis, ((index, _), k) in enumerate(zip(self.loops, tap, strict=True)):
            place = index * self.steps[axis] + k * self.gaps[axis] - self.low[axis]
            places.append(place)
            if self.padded[axis]:
                conditions.append(is_within(place, self.builder.extent(self.spatial[axis])))
        return self.builder.offset(places, strides(self.spatial)), all_conditions(conditions)

    def every_tap(self) -> list[tuple[Scalar, Scalar | None]]:
        """All taps of a window that is written out."""
        taps = product(*[range(int(dim)) for dim in self.window])
        return [self.tap_offset([scalars.const(k, INDEX) for k in tap]) for tap in taps]

    def tap_value(self, place: Scalar, inside: Scalar | None, otherwise: Scalar) -> Scalar:
        """What a tap sees."""
        start = self.row * self.builder.extent(size(self.spatial))
        x = self.builder.operands[0]
        instead = scalars.cast(otherwise, x.dtype)
        return widen_element(scalars.load(x, start + place, inside, instead))

    def window_offset(self) -> Scalar:
        """The place of the window among all windows."""
        index = [self.row, *[i for i, _ in self.loops]]
        return self.builder.offset(index, strides((self.lead, *self.counts)))

    def work(self) -> Dimension:
        """Taps of all windows."""
        return self.lead * size(self.counts) * size(self.window)


def _over_windows(builder: KernelBuilder) -> _Windows:
    count = len(builder.params["window"])
    return _Windows(builder, builder.shape(0)[-count:], builder.shape(-1)[-count:])


def _reduce_windows(
    builder: KernelBuilder,
    combine: Combine,
    function: Callable[[Scalar, Scalar], Scalar],
    start: Scalar,
) -> NodeKernel:
    """One value of each window, of its taps in order."""
    windows = _over_windows(builder)
    body: tuple[Statement, ...] = ()
    if windows.is_small():
        total = start
        for place, inside in windows.every_tap():
            total = function(total, windows.tap_value(place, inside, start))
    else:
        total, body = _accumulate_window(windows, combine, start)
    store = Store(
        builder.result, windows.window_offset(), scalars.cast(total, builder.result.dtype)
    )
    return builder.kernel(nest(windows.all, (*body, store)), windows.work())


def _accumulate_window(
    windows: _Windows, combine: Combine, start: Scalar
) -> tuple[Scalar, tuple[Statement, ...]]:
    """The value of a window that is gone through by loops."""
    place, inside = windows.tap_offset([i for i, _ in windows.taps])
    value = windows.tap_value(place, inside, start)
    body: tuple[Statement, ...] = ()
    for number, (index, extent) in enumerate(reversed(windows.taps)):
        local = scalars.local(f"total{number}", value.dtype)
        body = (Accumulate(index, extent, (Update(local, combine, value),), body),)
        value = local
    return value, body


@kernel_of("window_sum")
def window_sum(builder: KernelBuilder) -> NodeKernel:
    """The sum over each window."""
    zero = scalars.const(0, compute_dtype(builder.result.dtype))
    return _reduce_windows(builder, "add", scalars.add, zero)


@kernel_of("window_max")
def window_max(builder: KernelBuilder) -> NodeKernel:
    """The largest element of each window."""
    return _reduce_windows(
        builder, "maximum", scalars.maximum, _lowest_number(compute_dtype(builder.result.dtype))
    )


def _lowest_number(dtype: DType) -> Scalar:
    lowest = np.iinfo(dtype.numpy).min if dtype.is_integer else -np.inf
    return scalars.const(lowest, dtype)


@kernel_of("window_argmax")
def window_argmax(builder: KernelBuilder) -> NodeKernel | None:
    """Where each window's first largest element stands, or its first NaN."""
    windows = _over_windows(builder)
    if not windows.is_small():
        return None
    best, found = _lowest_number(compute_dtype(builder.operands[0].dtype)), scalars.const(-1, INDEX)
    for place, inside in windows.every_tap():
        value = windows.tap_value(place, inside, best)
        better = scalars.or_(scalars.less(best, value), scalars.less(found, ZERO))
        if value.dtype.is_floating:
            first_nan = scalars.and_(scalars.not_equal(value, value), scalars.equal(best, best))
            better = scalars.or_(better, first_nan)
        if inside is not None:
            better = scalars.and_(better, inside)
        best = scalars.select(better, value, best)
        found = scalars.select(better, place, found)
    store = Store(builder.result, windows.window_offset(), found)
    return builder.kernel(nest(windows.all, (store,)), windows.work())


@kernel_of("window_spread")
def window_spread(builder: KernelBuilder) -> NodeKernel:
    """Each element added to all places of its window; what goes before is divided over threads."""
    count = len(builder.params["window"])
    windows = _Windows(builder, builder.shape(-1)[-count:], builder.shape(0)[-count:])
    area = builder.extent(size(windows.spatial))
    start, total, scratch = windows.row * area, builder.result, list[Scratch]()
    if is_short(builder.result.dtype):
        total = Buffer("total", compute_dtype(builder.result.dtype), "scratch")
        scratch, start = [Scratch(total, area)], ZERO
    place, inside = windows.tap_offset([i for i, _ in windows.taps])
    target = start + place
    value = scalars.load(total, target, inside) + widen_element(
        builder.operands[0][windows.window_offset()]
    )
    i = scalars.index("i")
    body = (
        *nest(
            [(i, area)], (Store(total, start + i, scalars.const(0, total.dtype)),), parallel=False
        ),
        *nest(
            [*windows.taps, *windows.loops],
            (Store(total, target, value, inside),),
            parallel=False,
        ),
    )
    if scratch:
        own = Store(
            builder.result, windows.row * area + i, scalars.cast(total[i], builder.result.dtype)
        )
        body = (*body, *nest([(i, area)], (own,), parallel=False))
    rows = [(windows.row, builder.extent(windows.lead))]
    return builder.kernel(nest(rows, body, vector=False), windows.work(), tuple(scratch))
