"""Convolutions of each channel alone, with channels last: plain loops with channels in vectors.

There is no sum over channels, so there is no product of matrices: each place is as many products
as the kernel has taps. Weights are turned first, so that those of one tap lie side by side.

>>> import weft as wf
>>> x, w = wf.arange(8.0).reshape(1, 2, 4), wf.ones((2, 1, 2))
>>> wf.jit(lambda x, w: wf.conv1d(x, w, groups=2))(x, w).tolist()
[[[1.0, 3.0, 5.0], [9.0, 11.0, 13.0]]]
"""

from __future__ import annotations

from itertools import product
from math import prod

from weft.compiler.lowering.builder import (
    KernelBuilder,
    Loop,
    NodeKernel,
    all_conditions,
    is_within,
    kernel_of,
    nest,
)
from weft.compiler.lowering.convolution_sizes import Sizes, node_sizes
from weft.core.dtypes import INDEX
from weft.core.shapes import Dimension
from weft.ir import scalars
from weft.ir.affine_index import strides as contiguous
from weft.ir.loops import Accumulate, For, Let, Scratch, Statement, Store, Update
from weft.ir.scalars import Buffer, Scalar


@kernel_of("conv_last")
def conv_last(builder: KernelBuilder) -> NodeKernel | None:
    """The sum of products of each window, channel by channel."""
    sizes = _depthwise_sizes(builder)
    return None if sizes is None else _Places(builder, sizes).kernel(backward=False)


@kernel_of("conv_last_input_gradient")
def conv_last_input_gradient(builder: KernelBuilder) -> NodeKernel | None:
    """The sum of products of each place with the windows that see it."""
    sizes = _depthwise_sizes(builder)
    return None if sizes is None else _Places(builder, sizes).kernel(backward=True)


@kernel_of("conv_last_weight_gradient")
def conv_last_weight_gradient(builder: KernelBuilder) -> NodeKernel | None:
    """The sums over all places, of all taps in one pass."""
    sizes = _depthwise_sizes(builder)
    return None if sizes is None else _Weights(builder, sizes).kernel()


def _depthwise_sizes(builder: KernelBuilder) -> Sizes | None:
    """The sizes of a convolution of floats, if each channel is alone."""
    sizes = node_sizes(builder.node)
    if sizes is None or not builder.result.dtype.is_floating:
        return None
    return sizes if is_alone(sizes, builder.limits.unrolled_depthwise_taps) else None


def is_alone(sizes: Sizes, most_taps: int) -> bool:
    """Whether each channel has one output, and windows have few taps."""
    return sizes.groups > 1 and sizes.channels == sizes.outputs == 1 and sizes.taps <= most_taps


class _Writer:
    """What the forms share."""

    def __init__(self, builder: KernelBuilder, sizes: Sizes) -> None:
        self.builder, self.sizes = builder, sizes
        self.channel = scalars.index("c")
        self.image = scalars.index("n")
        self.taps = list(product(*[range(dim) for dim in sizes.kernel]))

    def work(self) -> Dimension:
        """Products of all windows."""
        s = self.sizes
        return s.images * (s.groups * prod(s.counts) * s.taps)

    def loops(self, dims: tuple[int, ...]) -> list[Loop]:
        """Loops over the places of an image."""
        return [(scalars.index(f"q{a}"), self.builder.extent(d)) for a, d in enumerate(dims)]

    def element_offset(self, place: list[Scalar], dims: tuple[int, ...]) -> Scalar:
        """The offset of an element at a place."""
        steps = contiguous((self.sizes.images, *dims, self.sizes.groups))
        return self.builder.offset([self.image, *place, self.channel], steps)

    def tap_place(
        self, at: list[Scalar], tap: tuple[int, ...]
    ) -> tuple[list[Scalar], Scalar | None]:
        """Where in x a tap of a window is, and whether that is inside."""
        s = self.sizes
        places, conditions = [], []
        for axis, (q, k) in enumerate(zip(at, tap, strict=True)):
            place = q * s.strides[axis] + (k * s.dilation[axis] - s.low[axis])
            last = (s.counts[axis] - 1) * s.strides[axis] + k * s.dilation[axis] - s.low[axis]
            places.append(place)
            if k * s.dilation[axis] < s.low[axis] or last >= s.area[axis]:
                conditions.append(is_within(place, self.builder.extent(s.area[axis])))
        return places, all_conditions(conditions)

    def window_place(
        self, at: list[Scalar], tap: tuple[int, ...]
    ) -> tuple[list[Scalar], Scalar | None]:
        """Which window sees a place of x by a tap, and whether there is one."""
        s = self.sizes
        places, conditions = [], []
        for axis, (q, k) in enumerate(zip(at, tap, strict=True)):
            moved = q + (s.low[axis] - k * s.dilation[axis])
            stride = scalars.const(s.strides[axis], INDEX)
            places.append(moved // stride if s.strides[axis] > 1 else moved)
            whole = scalars.const(s.counts[axis] * s.strides[axis], INDEX)
            conditions.append(is_within(moved, whole))
            if s.strides[axis] > 1:
                conditions.append(scalars.equal(moved % stride, scalars.const(0, INDEX)))
        return places, all_conditions(conditions)


class _Places(_Writer):
    """A convolution, or the gradient of its input; rows of images are divided over threads."""

    def kernel(self, *, backward: bool) -> NodeKernel:
        s, builder = self.sizes, self.builder
        target, source = (s.area, s.counts) if backward else (s.counts, s.area)
        groups = builder.extent(s.groups)
        turned = Buffer("turned", builder.result.dtype, "scratch")
        k, c = scalars.index("k"), self.channel
        turn = Store(turned, k * groups + c, builder.operands[1][c * s.taps + k])
        fill = For(k, builder.extent(s.taps), (For(c, groups, (turn,), "vector"),))
        # an image and a row of it are one loop, so that there are enough tasks
        row, first = scalars.index("row"), builder.extent(target[0])
        self.image = scalars.local("image", INDEX)
        loops = self.loops(target)
        at = [scalars.local("first", INDEX), *[index for index, _ in loops[1:]]]
        lets = (Let(self.image, row // first), Let(at[0], row % first))
        total: Scalar = scalars.const(0, builder.result.dtype)
        for number, tap in enumerate(self.taps):
            place, inside = self.window_place(at, tap) if backward else self.tap_place(at, tap)
            value = scalars.load(builder.operands[0], self.element_offset(place, source), inside)
            total = total + value * turned[scalars.const(number, INDEX) * groups + c]
        store = Store(builder.result, self.element_offset(at, target), total)
        body = nest([*loops[1:], (c, groups)], (store,), parallel=False)
        outer = For(row, builder.extent(s.images * target[0]), (*lets, fill, *body), "parallel")
        scratch = (Scratch(turned, builder.extent(s.groups * s.taps)),)
        return builder.kernel((outer,), self.work(), scratch)


class _Weights(_Writer):
    """The gradient of the weights; channels are divided over threads."""

    def kernel(self) -> NodeKernel:
        s, builder = self.sizes, self.builder
        x, y = builder.operands
        lanes = builder.limits.vector_lanes  # channels of a task
        block, lane = scalars.index("block"), scalars.index("lane")
        self.channel = block * lanes + lane
        loops = [(self.image, builder.extent(s.images)), *self.loops(s.counts)]
        at = [index for index, _ in loops[1:]]
        given = y[self.element_offset(at, s.counts)]
        values: list[Scalar] = []
        for tap in self.taps:
            place, inside = self.tap_place(at, tap)
            values.append(scalars.load(x, self.element_offset(place, s.area), inside) * given)
        body: tuple[Statement, ...] = ()
        for depth, (index, extent) in enumerate(reversed(loops)):
            names = [scalars.local(f"t{depth}_{k}", given.dtype) for k in range(s.taps)]
            updates = tuple(Update(n, "add", v) for n, v in zip(names, values, strict=True))
            body = (Accumulate(index, extent, updates, body),)
            values = list(names)
        stores = [
            Store(builder.result, self.channel * s.taps + k, value)
            for k, value in enumerate(values)
        ]
        many = scalars.minimum(
            scalars.const(lanes, INDEX), builder.extent(s.groups) - block * lanes
        )
        inner = For(lane, many, (*body, *stores), "vector")
        outer = For(block, builder.extent(-(-s.groups // lanes)), (inner,), "parallel")
        return builder.kernel((outer,), self.work())
