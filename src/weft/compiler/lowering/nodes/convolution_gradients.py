"""Kernels of the gradients of convolutions, in blocks as those of convolutions (convolutions.py).

The gradient of the input is products of weights and cotangents, added to where their patches came
from, one tap of the window after the other. The gradient of the weights has a task for each block
of output and input channels, which goes over all images. Every sum is one task's, in one order.

>>> import weft as wf
>>> gradient = wf.grad(lambda x, w: wf.conv1d(x, w).sum())
>>> wf.jit(gradient)(wf.ones((1, 1, 3)), wf.ones((1, 1, 2))).tolist()
[[[1.0, 2.0, 1.0]]]
"""

from __future__ import annotations

from collections.abc import Sequence

from weft.compiler.lowering.builder import (
    ZERO,
    KernelBuilder,
    Loop,
    NodeKernel,
    all_conditions,
    is_within,
    kernel_of,
    nest,
    widen_element,
)
from weft.compiler.lowering.nodes.convolutions import Writer, products, rows_at_a_time, zero_buffer
from weft.core.dtypes import INDEX
from weft.core.shapes import Dimension, size
from weft.ir import scalars
from weft.ir.affine_index import strides as contiguous
from weft.ir.loops import Accumulate, For, Let, Statement, Store
from weft.ir.scalars import Scalar

# --- the gradient of the input -------------------------------------------------------------------


@kernel_of("conv_input_gradient")
def conv_input_gradient(builder: KernelBuilder) -> NodeKernel:
    """Products of weights and cotangents, added to where their patches came from."""
    return _Backward(builder, -1, 1, 0).kernel()


class _Backward(Writer):
    """Blocks of images are divided over threads; the rows of an image overlap, so they are not."""

    row_block = scalars.index("row_block")
    channel, output = scalars.index("c"), scalars.index("o")

    def kernel(self) -> NodeKernel:
        sizes = self.sizes
        self.unit = rows_at_a_time(self.limits.accumulated_rows, sizes.channels)
        self.cotangents = self.memory("cotangents", sizes.outputs * self.columns)
        # rows a little apart, as a power of two would put all of them into the same sets of cache
        self.pitch = sizes.outputs + 16
        self.turned = self.memory("turned", self.unit * sizes.taps * self.pitch)
        self.products = self.memory("products", self.unit * self.columns)
        self.area = self.images * sizes.channels * size(sizes.area)
        self.total = self.memory("total", self.area)
        channels = self.extent((sizes.channels + (self.unit - 1)) // self.unit)
        body = (
            *zero_buffer(self.total, self.extent(self.area)),
            For(
                self.row_block,
                self.row_blocks,
                (
                    *self.pack_cotangents(),
                    For(self.channel, channels, (*self.weights(), *self.spread_to_taps())),
                ),
            ),
            *self.write_result(),
        )
        groups = nest([(self.group, self.extent(sizes.groups))], body, parallel=False, vector=False)
        return self.single_kernel((For(self.block, self.image_blocks, groups, "parallel"),))

    def loops(self) -> tuple[Loop, Loop]:
        """Loops over the images and the rows of a block."""
        images = self.part(self.block, self.images, self.sizes.images)
        rows = self.part(self.row_block, self.rows, self.sizes.counts[0])
        return (scalars.index("n"), images), (scalars.index("r"), rows)

    def pack_cotangents(self) -> tuple[Statement, ...]:
        """Copy the cotangents of a block, so that its places lie side by side."""
        sizes = self.sizes
        (n, images), (_, rows) = self.loops()
        o, q = self.output, scalars.index("q")
        width = self.extent(self.rows * sizes.places_in_row)
        source = self.of_y(self.block * self.images + n, o, self.row_block * width + q)
        at = o * self.extent(self.columns) + n * width + q
        store = Store(self.cotangents, at, widen_element(self.y[source]))
        loops = [
            (o, self.extent(sizes.outputs)),
            (n, images),
            (q, rows * self.extent(sizes.places_in_row)),
        ]
        return nest(loops, (store,), parallel=False)

    def weights(self) -> tuple[Statement, ...]:
        """Copy the weights of some channels, so that those of one tap lie side by side."""
        sizes = self.sizes
        u, k, o = scalars.index("u"), scalars.index("k"), self.output
        channel = scalars.minimum(self.channel * self.unit + u, self.extent(sizes.channels) - 1)
        source = self.builder.offset(
            [self.group, o, channel, k],
            contiguous((sizes.groups, sizes.outputs, sizes.channels, sizes.taps)),
        )
        at = (k * self.unit + u) * self.extent(self.pitch) + o
        loops = [
            (o, self.extent(sizes.outputs)),
            (u, self.extent(self.unit)),
            (k, self.extent(sizes.taps)),
        ]
        store = Store(self.turned, at, widen_element(self.w[source]))
        return nest(loops, (store,), parallel=False, vector=False)

    def spread_to_taps(self) -> tuple[Statement, ...]:
        """For each tap, multiply and add to what it saw."""
        taps = self.taps("k")
        tap = self.builder.offset([i for i, _ in taps], contiguous(self.sizes.kernel))
        body = (*self.multiply_block(tap), *self.add_tap([i for i, _ in taps]))
        return nest(taps, body, parallel=False, vector=False)

    def multiply_block(self, tap: Scalar) -> tuple[Statement, ...]:
        outputs, columns = self.extent(self.sizes.outputs), self.extent(self.columns)
        j, o = scalars.index("j"), self.output
        left = [
            self.turned[(tap * self.unit + row) * self.extent(self.pitch) + o]
            for row in range(self.unit)
        ]
        sums, found = products("s", self.unit, outputs, left, self.cotangents[o * columns + j], o)
        stores = [Store(self.products, columns * row + j, each) for row, each in enumerate(found)]
        return (For(j, columns, (sums, *stores), "vector"),)

    def add_tap(self, tap: Sequence[Scalar]) -> tuple[Statement, ...]:
        sizes = self.sizes
        u, inner = scalars.index("u"), self.place_loops()
        loops = [*self.loops(), *inner]
        row = self.row_block * self.extent(self.rows) + loops[1][0]
        place, inside = self.tap_places([row, *[i for i, _ in inner]], tap)
        column = self.builder.offset(
            [i for i, _ in loops], contiguous((self.images, self.rows, *sizes.counts[1:]))
        )
        target = self.builder.offset(
            [loops[0][0], self.channel * self.unit + u, *place],
            contiguous((self.images, sizes.channels, *sizes.area)),
        )
        guard = all_conditions(inside)
        old = scalars.load(self.total, target, guard)
        more = self.products[u * self.extent(self.columns) + column]
        units = self.part(self.channel, self.unit, sizes.channels)
        store = Store(self.total, target, old + more, guard)
        return nest([(u, units), *loops], (store,), parallel=False)

    def write_result(self) -> tuple[Statement, ...]:
        """Copy the block into the result."""
        sizes = self.sizes
        (n, images), _ = self.loops()
        q, many = scalars.index("q"), self.extent(sizes.channels * size(sizes.area))
        target = self.of_x(self.block * self.images + n, ZERO, [ZERO] * len(sizes.area)) + q
        store = Store(self.x, target, scalars.cast(self.total[n * many + q], self.x.dtype))
        return nest([(n, images), (q, many)], (store,), parallel=False)


# --- the gradient of the weights -----------------------------------------------------------------


@kernel_of("conv_weight_gradient")
def conv_weight_gradient(builder: KernelBuilder) -> NodeKernel:
    """Products of x and cotangents, summed over all places of all images."""
    return _Weights(builder, 0, -1, 1, blocks=2).kernel()


class _Weights(Writer):
    """A task for each block of output and input channels; outputs are in vectors.

    x is copied with its padding, and the cotangents so that the outputs of one place lie side by
    side. `at` says for each place of a block where in the copy of x its window begins.
    """

    image_block, row_block = scalars.index("image_block"), scalars.index("row_block")
    channel, output = scalars.local("channel", INDEX), scalars.local("output", INDEX)

    def kernel(self) -> NodeKernel:
        sizes = self.sizes
        self.lanes, self.unit = self.limits.vector_lanes, self.limits.accumulators
        self.deep = rows_at_a_time(self.limits.weight_gradient_channels, sizes.channels)
        self.places = self.images * self.rows * sizes.places_in_row
        self.frame = self._frame()
        self.depth = -(-(self.deep * sizes.taps) // self.unit) * self.unit
        self.seen_x = self.memory("seen", self.images * self.deep * size(self.frame))
        self.turned = self.memory("turned", self.places * self.lanes)
        self.at = self.memory("at", self.places, INDEX)
        self.total = self.memory("total", self.depth * self.lanes)
        outputs = self.extent((sizes.outputs + (self.lanes - 1)) // self.lanes)
        channels = self.extent((sizes.channels + (self.deep - 1)) // self.deep)
        group, rest = scalars.local("group", INDEX), self.block % (outputs * channels)
        self.group = group
        body = (
            Let(group, self.block // (outputs * channels)),
            Let(self.output, rest // channels),
            Let(self.channel, rest % channels),
            *zero_buffer(self.total, self.extent(self.depth * self.lanes)),
            *self.place_windows(),
            *nest(
                [(self.image_block, self.image_blocks), (self.row_block, self.row_blocks)],
                (*self.packed_x(), *self.packed_y(), *self.multiply_block()),
                parallel=False,
                vector=False,
            ),
            *self.write_result(),
        )
        count = self.extent(sizes.groups) * outputs * channels
        return self.single_kernel((For(self.block, count, body, "parallel"),))

    def _frame(self) -> tuple[Dimension, ...]:
        """The sizes of what the windows of a block see."""
        sizes = self.sizes
        counts = (self.rows, *sizes.counts[1:])
        return tuple(
            (n - 1) * s + (k - 1) * d + 1
            for n, s, k, d in zip(counts, sizes.strides, sizes.kernel, sizes.dilation, strict=True)
        )

    def place_windows(self) -> tuple[Statement, ...]:
        """Where the window of each place begins."""
        sizes = self.sizes
        n, r, inner = scalars.index("n"), scalars.index("r"), self.place_loops()
        loops = [(n, self.extent(self.images)), (r, self.extent(self.rows)), *inner]
        index = [i for i, _ in loops]
        column = self.builder.offset(index, contiguous((self.images, self.rows, *sizes.counts[1:])))
        place = [n, ZERO, *[i * s for i, s in zip(index[1:], sizes.strides, strict=True)]]
        where = self.builder.offset(place, contiguous((self.images, self.deep, *self.frame)))
        return nest(loops, (Store(self.at, column, where),), parallel=False)

    def packed_x(self) -> tuple[Statement, ...]:
        """Copy what the windows see, with zeros for padding."""
        sizes = self.sizes
        n, c = scalars.index("n"), scalars.index("c")
        loops = [(scalars.index(f"i{a}"), self.extent(d)) for a, d in enumerate(self.frame)]
        starts = [self.row_block * self.extent(self.rows * sizes.strides[0]), *[ZERO] * 9]
        place = [
            i + start - low for (i, _), start, low in zip(loops, starts, sizes.low, strict=False)
        ]
        image, channel = self.image_block * self.images + n, self.channel * self.deep + c
        inside = [
            is_within(p, self.extent(d))
            for p, d, padded, first in zip(
                place, sizes.area, sizes.padded, (True, *[False] * 9), strict=False
            )
            if padded or first
        ]
        inside += [
            scalars.less(image, self.extent(sizes.images)),
            scalars.less(channel, self.extent(sizes.channels)),
        ]
        value = scalars.load(self.x, self.of_x(image, channel, place), all_conditions(inside))
        index = [n, c, *[i for i, _ in loops]]
        at = self.builder.offset(index, contiguous((self.images, self.deep, *self.frame)))
        outer = [(n, self.extent(self.images)), (c, self.extent(self.deep))]
        return nest(
            [*outer, *loops], (Store(self.seen_x, at, widen_element(value)),), parallel=False
        )

    def packed_y(self) -> tuple[Statement, ...]:
        """Copy the cotangents, with zeros where there is no image, row or output."""
        sizes = self.sizes
        n, q, o = scalars.index("n"), scalars.index("q"), scalars.index("o")
        width = self.rows * sizes.places_in_row
        image = self.image_block * self.images + n
        output = self.output * self.lanes + o
        place = self.row_block * self.extent(width) + q
        inside = all_conditions(
            [
                scalars.less(image, self.extent(sizes.images)),
                scalars.less(output, self.extent(sizes.outputs)),
                scalars.less(place, self.extent(sizes.places)),
            ]
        )
        value = scalars.load(self.y, self.of_y(image, output, place), inside)
        store = Store(
            self.turned, (n * self.extent(width) + q) * self.lanes + o, widen_element(value)
        )
        loops = [
            (n, self.extent(self.images)),
            (q, self.extent(width)),
            (o, self.extent(self.lanes)),
        ]
        return nest(loops, (store,), parallel=False)

    def multiply_block(self) -> tuple[Statement, ...]:
        """Add the products of a block to all weights of the task."""
        sizes, unit = self.sizes, self.unit
        b, o, p = scalars.index("b"), scalars.index("o"), scalars.index("p")
        plane, taps = self.extent(size(self.frame)), self.extent(sizes.taps)
        lets: list[Statement] = []
        left = []
        here = scalars.local("here", INDEX)
        for row in range(unit):
            weight = scalars.minimum(b * unit + row, self.extent(self.deep) * taps - 1)
            rest, steps = weight % taps, contiguous(sizes.kernel)
            tap = [
                rest // self.extent(step) % self.extent(dim)
                for step, dim in zip(steps, sizes.kernel, strict=True)
            ]
            moved = [k * d for k, d in zip(tap, sizes.dilation, strict=True)]
            base = scalars.local(f"x{row}", INDEX)
            first = weight // taps * plane + self.builder.offset(moved, contiguous(self.frame))
            lets.append(Let(base, first))
            left.append(self.seen_x[base + here])
        sums, found = products(
            "s", unit, self.extent(self.places), left, self.turned[p * self.lanes + o], p
        )
        sums = Accumulate(sums.index, sums.extent, sums.updates, (Let(here, self.at[p]),))
        stores = []
        for row, each in enumerate(found):
            at = (b * unit + row) * self.lanes + o
            stores.append(Store(self.total, at, self.total[at] + each))
        block = For(o, self.extent(self.lanes), (sums, *stores), "vector")
        return (For(b, self.extent(self.depth // unit), (*lets, block)),)

    def write_result(self) -> tuple[Statement, ...]:
        """Copy the task's weights into the result."""
        sizes = self.sizes
        o, q = scalars.index("o"), scalars.index("q")
        taps = self.extent(sizes.taps)
        outputs = self.part(self.output, self.lanes, sizes.outputs)
        channels = self.part(self.channel, self.deep, sizes.channels)
        index = [self.group, self.output * self.lanes + o, self.channel * self.deep * taps + q]
        steps = contiguous((sizes.groups, sizes.outputs, sizes.channels * sizes.taps))
        value = scalars.cast(self.total[q * self.lanes + o], self.w.dtype)
        store = Store(self.w, self.builder.offset(index, steps), value)
        return nest([(o, outputs), (q, channels * taps)], (store,), parallel=False, vector=False)
