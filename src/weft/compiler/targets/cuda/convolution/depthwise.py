"""Convolutions of each channel alone, channels last: loops over places with channels as neighbours.

There is no sum over channels, so there is no product of matrices. Weights are turned first, so that
those of a tap lie side by side; all of a window's taps are written out. The gradient of the weights
is made in parts, one for each line of places, which are then added up.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from math import prod

from weft.compiler.lowering.builder import all_conditions, is_within
from weft.compiler.plan.launch import Launch, Value
from weft.compiler.targets.cuda.convolution.sizes import (
    FORWARD,
    WEIGHT_GRADIENT,
    ConvolutionSizes,
    direction_of,
    sizes_of,
)
from weft.compiler.targets.cuda.convolution.windows import weights_from_rows
from weft.compiler.targets.cuda.loop_nests import loop_launch, loop_nest, row_major_offset
from weft.core.dtypes import INDEX, float32
from weft.core.types import TensorType
from weft.ir import scalars
from weft.ir.graph import GraphNode, Variable
from weft.ir.loops import Accumulate, Kernel, Let, Statement, Store, Update
from weft.ir.scalars import Buffer, Scalar, const

MOST_TAPS = 49
"""Taps up to which a window is written out."""
Place = tuple[list[Scalar], Scalar | None]
"""Where a tap is along each axis, and whether that is inside; None: it always is."""


def is_depthwise(node: GraphNode) -> bool:
    """Whether each channel of a convolution has one output, and windows have few taps."""
    weights = node.results[0] if "kernel" in node.params else node.operands[1]
    outputs, channels, *kernel = weights.type.shape
    groups = node.params["groups"]
    return (
        groups > 1 and outputs == groups and channels == 1 and prod(map(int, kernel)) <= MOST_TAPS
    )


def depthwise_launches(node: GraphNode) -> list[Launch]:
    """The launches of a convolution of each channel alone, or of a gradient of one."""
    sizes, direction = sizes_of(node), direction_of(node)
    a, b = node.operands
    result = node.results[0]
    if direction == WEIGHT_GRADIENT:
        return _weight_gradient(sizes, a, b, result)
    turn, weights = _turned_weights(sizes, b)
    return [turn, _sums(sizes, a, weights, result, is_forward=direction == FORWARD)]


def _turned_weights(sizes: ConvolutionSizes, w: Value) -> tuple[Launch, Variable]:
    """Weights [C, taps] as [taps, C] in float32, and what turns them."""
    turned = Variable(TensorType(float32, (sizes.taps, sizes.channels)))
    source, target = Buffer("w", w.type.dtype), Buffer("out", float32, "write")
    tap, channel = scalars.index("t"), scalars.index("c")
    value = scalars.cast(source[channel * sizes.taps + tap], float32)
    store = Store(target, tap * sizes.channels + channel, value)
    loops = [(tap, sizes.taps), (channel, sizes.channels)]
    kernel = Kernel("turned weights", (source, target), (), loop_nest(loops, (store,)))
    return loop_launch(kernel, (w, turned), turned), turned


def _sums(
    sizes: ConvolutionSizes, a: Value, weights: Variable, result: Variable, *, is_forward: bool
) -> Launch:
    """Each place's sum over the taps of its window, or over the windows that see it."""
    given, held = Buffer("a", a.type.dtype), Buffer("weights", float32)
    target = Buffer("out", result.type.dtype, "write")
    reads, makes = (sizes.size, sizes.out) if is_forward else (sizes.out, sizes.size)
    image, channel = scalars.index("n"), scalars.index("c")
    at = [scalars.index(f"p{axis}") for axis in range(len(makes))]
    total: Scalar = const(0.0, float32)
    body: list[Statement] = []
    for number, tap in enumerate(product(*map(range, sizes.kernel))):
        place, inside = _tap_place(sizes, at, tap) if is_forward else _window(sizes, at, tap)
        offset = row_major_offset([image, *place, channel], [sizes.images, *reads, sizes.channels])
        value = scalars.cast(scalars.load(given, offset, inside), float32)
        so_far = scalars.local(f"total{number}", float32)
        body.append(Let(so_far, total + value * held[channel + number * sizes.channels]))
        total = so_far
    shape = [sizes.images, *makes, sizes.channels]
    store = Store(
        target, row_major_offset([image, *at, channel], shape), scalars.cast(total, target.dtype)
    )
    loops = list(zip([image, *at, channel], shape, strict=True))
    kernel = Kernel("depthwise", (given, held, target), (), loop_nest(loops, (*body, store)))
    return loop_launch(kernel, (a, weights, result), result)


def _tap_place(sizes: ConvolutionSizes, at: list[Scalar], tap: tuple[int, ...]) -> Place:
    """Where in the image a tap of a window is."""
    places, conditions = [], []
    for axis, (place, k) in enumerate(zip(at, tap, strict=True)):
        stride, first = sizes.strides[axis], k * sizes.dilation[axis] - sizes.low[axis]
        last = (sizes.out[axis] - 1) * stride + first
        places.append(place * stride + first)
        if first < 0 or last >= sizes.size[axis]:
            conditions.append(is_within(places[-1], const(sizes.size[axis], INDEX)))
    return places, all_conditions(conditions)


def _window(sizes: ConvolutionSizes, at: list[Scalar], tap: tuple[int, ...]) -> Place:
    """Which window sees a place of the image by a tap."""
    places, conditions = [], []
    for axis, (place, k) in enumerate(zip(at, tap, strict=True)):
        stride = sizes.strides[axis]
        start = place + (sizes.low[axis] - k * sizes.dilation[axis])
        window = start // stride if stride > 1 else start
        if stride > 1:
            conditions.append(scalars.equal(window * stride, start))
        conditions.append(is_within(window, const(sizes.out[axis], INDEX)))
        places.append(window)
    return places, all_conditions(conditions)


def _weight_gradient(sizes: ConvolutionSizes, x: Value, y: Value, dw: Variable) -> list[Launch]:
    """Sums over each line of places, for all taps; then over all lines."""
    image, given = Buffer("x", x.type.dtype), Buffer("y", y.type.dtype)
    target = Buffer("out", float32, "write")
    *outer, last = sizes.out
    number, channel, along = scalars.index("n"), scalars.index("c"), scalars.index("l")
    lines = [scalars.index(f"p{axis}") for axis in range(len(outer))]
    at = [*lines, along]
    own = row_major_offset(
        [number, *at, channel], [sizes.images, *sizes.out, sizes.channels]
    )  # fmt: skip
    cotangent = scalars.cast(given[own], float32)
    updates: list[Update] = []
    stores: list[Statement] = []
    part = row_major_offset([number, *lines], [sizes.images, *outer])
    for count, tap in enumerate(product(*map(range, sizes.kernel))):
        place, inside = _tap_place(sizes, at, tap)
        shape = [sizes.images, *sizes.size, sizes.channels]
        offset = row_major_offset([number, *place, channel], shape)
        value = scalars.cast(scalars.load(image, offset, inside), float32)
        total = scalars.local(f"t{count}", float32)
        updates.append(Update(total, "add", value * cotangent))
        stores.append(Store(target, (part * sizes.taps + count) * sizes.channels + channel, total))
    body = (Accumulate(along, const(last, INDEX), tuple(updates)), *stores)
    loops = [(number, sizes.images), *zip(lines, outer, strict=True), (channel, sizes.channels)]
    kernel = Kernel("depthwise sums", (image, given, target), (), loop_nest(loops, body))
    parts = Variable(
        TensorType(float32, (sizes.images * prod(outer), 1, sizes.taps * sizes.channels))
    )
    whole = replace(sizes, outputs=1)
    return [
        loop_launch(kernel, (x, y, parts), parts),
        weights_from_rows(whole, parts, dw, sizes.channels),
    ]
