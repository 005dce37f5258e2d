"""Kernels of convolutions: blocks of patches in scratch memory, multiplied at once.

A task takes a block of output places, of some images or of some rows of one. It copies what the
kernel's window sees there into scratch memory, so that neighbouring places lie side by side, and
multiplies it with rows of weights, a few at a time, places in vectors. So patches are never in
main memory. The order of every sum depends on sizes only.

>>> import weft as wf
>>> x, w = wf.arange(4.0).reshape(1, 1, 4), wf.ones((1, 1, 2))
>>> wf.jit(wf.conv1d)(x, w).tolist()
[[[1.0, 3.0, 5.0]]]
"""

from __future__ import annotations

from collections.abc import Sequence

from weft.compiler.lowering.builder import (
    KernelBuilder,
    Loop,
    NodeKernel,
    all_conditions,
    compute_dtype,
    is_within,
    kernel_of,
    nest,
    widen_element,
)
from weft.compiler.targets.limits import LoweringLimits
from weft.core.dtypes import INDEX, int64
from weft.core.records import frozen
from weft.core.shapes import Dimension, Shape, size
from weft.ir import scalars
from weft.ir.affine_index import strides as contiguous
from weft.ir.loops import Accumulate, For, Let, Scratch, Statement, Store, Update
from weft.ir.scalars import Buffer, Scalar


@frozen
class Geometry:
    """The sizes of a convolution; with one spatial axis, a first one of size 1 is put before it.

    images, outputs and channels (of each group): how many. area: sizes of x; counts: of y.
    """

    images: Dimension
    groups: int
    outputs: Dimension
    channels: Dimension
    area: Shape
    counts: Shape
    kernel: Shape
    strides: tuple[int, ...]
    dilation: tuple[int, ...]
    low: tuple[int, ...]
    padded: tuple[bool, ...]

    @property
    def places_in_row(self) -> Dimension:
        """Output places in one row, which is all but the first axis."""
        return size(self.counts[1:])

    @property
    def places(self) -> Dimension:
        """Output places in one image."""
        return size(self.counts)

    @property
    def taps(self) -> Dimension:
        """Places in the kernel's window."""
        return size(self.kernel)

    def block(self, places: int, limits: LoweringLimits) -> tuple[int, Dimension]:
        """How many images, and how many rows of each, make about so many places."""
        whole, rest = self.places, self.places_in_row
        if not isinstance(whole, int) or not isinstance(rest, int):
            return 1, 1
        if whole > places:
            return 1, max(1, min(places // max(1, rest), int(self.counts[0])))
        most = places // max(1, whole)
        least = -(-limits.fewest_block_places // max(1, whole))
        if isinstance(self.images, int):
            most = min(most, max(least, self.images // limits.convolution_tasks))
        return max(1, most), max(1, int(self.counts[0]))


def geometry(builder: KernelBuilder, x: int, w: int, y: int) -> Geometry:
    """The sizes of a node whose operands or result x, w and y are."""
    shapes = [builder.shape(each) for each in (x, w, y)]
    params = builder.params
    sides = [(int(low), bool(low or high)) for low, high in params["padding"]]
    lead = (1,) if len(shapes[0]) == 3 else ()
    return Geometry(
        shapes[0][0],
        params["groups"],
        shapes[1][0] // params["groups"],
        shapes[1][1],
        (*lead, *shapes[0][2:]),
        (*lead, *shapes[2][2:]),
        (*lead, *shapes[1][2:]),
        (*lead, *params["strides"]),
        (*lead, *params["dilation"]),
        (*[0 for _ in lead], *[low for low, _ in sides]),
        (*[False for _ in lead], *[any_ for _, any_ in sides]),
    )


class Writer:
    """What the three kernels share: the loops of a block, and places in x and y."""

    def __init__(self, builder: KernelBuilder, x: int, w: int, y: int, blocks: int = 1) -> None:
        """A block has the places of so many usual ones."""
        self.builder, self.limits = builder, builder.limits
        self.sizes = geometry(builder, x, w, y)
        places = blocks * builder.limits.convolution_block_places
        self.images, self.rows = self.sizes.block(places, builder.limits)
        buffers = (*builder.operands, builder.result)
        self.x, self.w, self.y = buffers[x], buffers[w], buffers[y]
        self.dtype = compute_dtype(builder.result.dtype)
        self.group = scalars.index("group")
        self.block = scalars.index("block")
        self.scratch: list[Scratch] = []

    def extent(self, dim: Dimension) -> Scalar:
        """A size as an expression."""
        return self.builder.extent(dim)

    def memory(self, name: str, count: Dimension, dtype: object = None) -> Buffer:
        """Scratch memory of so many elements."""
        buffer = Buffer(name, self.dtype if dtype is None else int64, "scratch")
        self.scratch.append(Scratch(buffer, self.extent(count)))
        return buffer

    @property
    def columns(self) -> Dimension:
        """Output places of a block, and as many more as fill its vectors."""
        return -(-(self.images * self.rows * self.sizes.places_in_row) // 16) * 16

    @property
    def row_blocks(self) -> Scalar:
        """How many blocks the rows of an image are in."""
        return self.extent((self.sizes.counts[0] + (self.rows - 1)) // self.rows)

    @property
    def image_blocks(self) -> Scalar:
        """How many blocks the images are in."""
        return self.extent((self.sizes.images + (self.images - 1)) // self.images)

    def part(self, block: Scalar, many: Dimension, whole: Dimension) -> Scalar:
        """How many of a whole are in one of its blocks."""
        if isinstance(whole, int) and isinstance(many, int) and whole % many == 0:
            return self.extent(many)
        return scalars.minimum(self.extent(many), self.extent(whole) - block * self.extent(many))

    def place_loops(self) -> list[Loop]:
        """Loops over the axes of output places but the first."""
        dims = self.sizes.counts[1:]
        return [(scalars.index(f"j{a}"), self.extent(d)) for a, d in enumerate(dims)]

    def taps(self, prefix: str) -> list[Loop]:
        """Loops over the kernel's window."""
        dims = self.sizes.kernel
        return [(scalars.index(f"{prefix}{a}"), self.extent(d)) for a, d in enumerate(dims)]

    def tap_places(
        self, at: Sequence[Scalar], tap: Sequence[Scalar]
    ) -> tuple[list[Scalar], list[Scalar]]:
        """Where in x a tap of the window at an output place is, and whether that is inside."""
        sizes = self.sizes
        places, conditions = [], []
        for axis, (p, k) in enumerate(zip(at, tap, strict=True)):
            place = p * sizes.strides[axis] + k * sizes.dilation[axis] - sizes.low[axis]
            places.append(place)
            if sizes.padded[axis]:
                conditions.append(is_within(place, self.extent(sizes.area[axis])))
        return places, conditions

    def of_x(self, image: Scalar, channel: Scalar, place: Sequence[Scalar]) -> Scalar:
        """The offset of an element of x; the channel is one of this group."""
        sizes = self.sizes
        steps = contiguous((sizes.images, sizes.groups, sizes.channels, *sizes.area))
        return self.builder.offset([image, self.group, channel, *place], steps)

    def of_y(self, image: Scalar, output: Scalar, place: Scalar) -> Scalar:
        """The offset of an element of y, at a place counted through an image."""
        sizes = self.sizes
        steps = contiguous((sizes.images, sizes.groups, sizes.outputs, sizes.places))
        return self.builder.offset([image, self.group, output, place], steps)

    def single_kernel(self, body: tuple[Statement, ...]) -> NodeKernel:
        """The kernel; its work counts a vector of products as one operation."""
        sizes = self.sizes
        work = sizes.images * sizes.places * sizes.groups * sizes.outputs
        total = work * sizes.channels * sizes.taps
        return self.builder.kernel(body, (total + 15) // 16, tuple(self.scratch))


def products(
    name: str, rows: int, extent: Scalar, left: Sequence[Scalar], right: Scalar, index: Scalar
) -> tuple[Accumulate, list[Scalar]]:
    """Sums of products of several rows with one column, and the locals that hold them."""
    locals_ = [scalars.local(f"{name}{row}", right.dtype) for row in range(rows)]
    updates = [
        Update(sum_, "add", each, times=right)
        if right.dtype.is_floating
        else Update(sum_, "add", each * right)
        for sum_, each in zip(locals_, left, strict=True)
    ]
    return Accumulate(index, extent, tuple(updates)), locals_


def zero_buffer(buffer: Buffer, count: Scalar) -> tuple[Statement, ...]:
    """Memory filled with zeros."""
    i = scalars.index("z")
    return (For(i, count, (Store(buffer, i, scalars.const(0, buffer.dtype)),), "vector"),)


def rows_at_a_time(rows: int, dim: Dimension) -> int:
    """So many rows at a time, or all of fewer."""
    return min(rows, max(1, dim)) if isinstance(dim, int) else rows


# --- conv ----------------------------------------------------------------------------------------


@kernel_of("conv")
def conv(builder: KernelBuilder) -> NodeKernel:
    """Patches of x times weights."""
    return _Forward(builder, 0, 1, -1).kernel()


class _Forward(Writer):
    """Blocks of places are divided over threads; channels are taken in blocks that stay cached."""

    def kernel(self) -> NodeKernel:
        sizes, columns = self.sizes, self.columns
        self.unit = rows_at_a_time(self.limits.accumulated_rows, sizes.outputs)
        self.deep = self._cached_channels()
        self.patches = self.memory("patches", self.deep * sizes.taps * columns)
        rows = -(-sizes.outputs // self.unit) * self.unit
        self.total = self.memory("total", rows * columns)
        self.chunk = scalars.index("chunk")
        chunks = self.extent((sizes.channels + (self.deep - 1)) // self.deep)
        body = (
            *zero_buffer(self.total, self.extent(rows * columns)),
            For(self.chunk, chunks, (*self.pack_patches(), *self.multiply_channels())),
            *self.write_block(),
        )
        groups = nest([(self.group, self.extent(sizes.groups))], body, parallel=False, vector=False)
        image, row = self.image_blocks, self.row_blocks
        lets = (Let(self.at_image, self.block // row), Let(self.at_row, self.block % row))
        return self.single_kernel((For(self.block, image * row, (*lets, *groups), "parallel"),))

    def _cached_channels(self) -> int:
        """How many channels' patches stay cached."""
        each = self.columns * self.sizes.taps
        most = self.limits.patch_elements // max(1, each) if isinstance(each, int) else 1
        return rows_at_a_time(max(1, most), self.sizes.channels)

    at_image = scalars.local("at_image", INDEX)
    at_row = scalars.local("at_row", INDEX)

    def block_loops(self) -> tuple[list[Loop], Scalar, Scalar]:
        """Loops over images and rows of a block; which image, and which row, they are at."""
        n, r = scalars.index("n"), scalars.index("r")
        images = self.part(self.at_image, self.images, self.sizes.images)
        rows = self.part(self.at_row, self.rows, self.sizes.counts[0])
        image = self.at_image * self.images + n
        return [(n, images), (r, rows)], image, self.at_row * self.extent(self.rows) + r

    def pack_patches(self) -> tuple[Statement, ...]:
        """Copy the patches of some channels."""
        sizes = self.sizes
        c, taps, inner = scalars.index("c"), self.taps("k"), self.place_loops()
        loops, image, row = self.block_loops()
        tap = [i for i, _ in taps]
        place, inside = self.tap_places([row, *[i for i, _ in inner]], tap)
        source = self.of_x(image, self.chunk * self.deep + c, place)
        value = scalars.load(self.x, source, all_conditions(inside))
        line = self.builder.offset([c, *tap], contiguous((self.deep, *sizes.kernel)))
        column = self.builder.offset(
            [i for i, _ in (*loops, *inner)],
            contiguous((self.images, self.rows, *sizes.counts[1:])),
        )
        store = Store(self.patches, line * self.extent(self.columns) + column, widen_element(value))
        channels = (c, self.part(self.chunk, self.deep, sizes.channels))
        return nest([channels, *taps, *loops, *inner], (store,), parallel=False)

    def multiply_channels(self) -> tuple[Statement, ...]:
        """Add the products of these channels to all outputs."""
        sizes, unit = self.sizes, self.unit
        o, j, k = scalars.index("o"), scalars.index("j"), scalars.index("k")
        columns = self.extent(self.columns)
        depth = self.part(self.chunk, self.deep, sizes.channels) * self.extent(sizes.taps)
        whole = self.extent(sizes.channels * sizes.taps)
        start = self.chunk * self.extent(self.deep * sizes.taps)
        lets, left = [], []
        for row in range(unit):
            output = scalars.minimum(o * unit + row, self.extent(sizes.outputs) - 1)
            base = scalars.local(f"w{row}", INDEX)
            first = (self.group * self.extent(sizes.outputs) + output) * whole + start
            lets.append(Let(base, first))
            left.append(widen_element(self.w[base + k]))
        sums, found = products("s", unit, depth, left, self.patches[k * columns + j], k)
        stores = []
        for row, local in enumerate(found):
            at = (o * unit + row) * columns + j
            stores.append(Store(self.total, at, self.total[at] + local))
        block = For(j, columns, (sums, *stores), "vector")
        count = self.extent((sizes.outputs + (unit - 1)) // unit)
        return (For(o, count, (*lets, block)),)

    def write_block(self) -> tuple[Statement, ...]:
        """Copy the block into y."""
        sizes = self.sizes
        o, n, q = scalars.index("o"), scalars.index("n"), scalars.index("q")
        rows = self.part(self.at_row, self.rows, sizes.counts[0])
        start = self.at_row * self.extent(self.rows * sizes.places_in_row)
        images = self.part(self.at_image, self.images, sizes.images)
        at = o * self.extent(self.columns) + n * self.extent(self.rows * sizes.places_in_row) + q
        target = self.of_y(self.at_image * self.images + n, o, start + q)
        store = Store(self.y, target, scalars.cast(self.total[at], self.y.dtype))
        loops = [
            (o, self.extent(sizes.outputs)),
            (n, images),
            (q, rows * self.extent(sizes.places_in_row)),
        ]
        return nest(loops, (store,), parallel=False)
