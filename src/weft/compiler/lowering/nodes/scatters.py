"""Kernels that write at places that are data: the `scatter` family.

Updates are written one after the other, in row-major order of the index: the last one stays, and
sums have one order. What is divided over threads is what different updates never share: a batch
that the first index counts along, or the axes that are not indexed.

The indices are checked first, by a kernel of their own; then x is copied, unless the result takes
its place, and then changed where the indices say. So an update costs as much as what it touches.
Where x is one number all over, or sums are collected in another dtype, one kernel does all of it.

>>> import weft as wf
>>> add = wf.jit(lambda x, i: wf.index_add(x, 0, i, wf.ones(3)))
>>> add(wf.zeros(3), wf.tensor([2, 2, 0])).tolist()
[1.0, 0.0, 2.0]
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from weft.compiler.lowering.builder import (
    ZERO,
    KernelBuilder,
    Loop,
    NodeKernel,
    NodeKernels,
    compute_dtype,
    is_short,
    kernel_of,
    nest,
    uniform,
    widen_element,
)
from weft.compiler.lowering.nodes.places import Places, check, places
from weft.core.dtypes import INDEX
from weft.core.records import frozen
from weft.core.shapes import Dimension, size
from weft.ir import scalars
from weft.ir.graph import Literal
from weft.ir.loops import Scratch, Statement, Store
from weft.ir.scalars import Buffer, Scalar

Combine = Callable[[Scalar, Scalar], Scalar]


@kernel_of("scatter")
def scatter(builder: KernelBuilder) -> NodeKernels:
    """Of several updates for one place the last one stays."""
    return _scatter_kernels(builder, lambda old, new: new)


@kernel_of("scatter_add")
def scatter_add(builder: KernelBuilder) -> NodeKernels:
    """All updates for one place are added."""
    if is_short(builder.result.dtype):
        return _at_once(builder, scalars.add)
    return _scatter_kernels(builder, scalars.add)


@kernel_of("scatter_max")
def scatter_max(builder: KernelBuilder) -> NodeKernels:
    """The largest of an element and its updates."""
    return _scatter_kernels(builder, scalars.maximum)


@kernel_of("scatter_min")
def scatter_min(builder: KernelBuilder) -> NodeKernels:
    """The smallest of an element and its updates."""
    return _scatter_kernels(builder, scalars.minimum)


@kernel_of("scatter_multiply")
def scatter_multiply(builder: KernelBuilder) -> NodeKernels:
    """The product of an element and its updates."""
    return _scatter_kernels(builder, scalars.multiply)


@frozen
class _Part:
    """What one iteration of the divided loop takes of x.

    fixed: the axes of x that it stays at one place of, or walks through by `loops`. offset: where
    those lead in x; update: in a row of the updates.
    """

    fixed: Sequence[int]
    loops: list[Loop]
    offset: Scalar
    update: Scalar


def _scatter_kernels(builder: KernelBuilder, combine: Combine) -> NodeKernels:
    """Kernels that check the indices, and change a copy of x."""
    if uniform(builder.node.operands[0], builder.producers) is not None:
        return _at_once(builder, combine)
    rest, rows = _indexed_part(builder)
    guarded = builder.limits.guards_places
    found = places(builder, 2, rows, checked=guarded)
    body = _Updates(builder, combine, found, builder.result).divide_over_threads(rest)
    update = builder.update(body, size(builder.shape(1)))
    if guarded:
        return (update,)
    checked = check(
        KernelBuilder(builder.node, builder.producers, builder.error, builder.limits), 2
    )
    return (update,) if checked is None else (checked, update)


def _at_once(builder: KernelBuilder, combine: Combine) -> NodeKernel:
    """One kernel that begins with x, and writes the updates into it."""
    rest, rows = _indexed_part(builder)
    total = _Total(builder, combine, places(builder, 2, rows))
    work = size(builder.shape(1)) + size(builder.shape(0))
    kernel = builder.kernel(total.divide_over_threads(rest), work, total.scratch)
    base = builder.node.operands[0]
    if isinstance(base, Literal) or uniform(base, builder.producers) is None:
        return kernel
    # x, one number all over, is written here and never read: the result may take its place
    return replace(kernel, in_place=((builder.node.results[0], base),))


def _indexed_part(builder: KernelBuilder) -> tuple[_Part, Sequence[Dimension]]:
    """The part of x that each index leads to, and the strides of such rows in the updates."""
    dims, count = builder.shape(0), len(builder.shape(2))
    kept = [axis for axis in range(len(dims)) if axis not in builder.params["axes"]]
    loops, (offset, update) = builder.walk(
        "r",
        tuple(dims[axis] for axis in kept),
        [builder.strides(0)[axis] for axis in kept],
        builder.strides(1)[count:],
    )
    return _Part(kept, loops, offset, update), builder.strides(1)[:count]


class _Updates:
    """Writes the statements of one scatter into a buffer that holds x already."""

    def __init__(
        self, builder: KernelBuilder, combine: Combine, found: Places, buffer: Buffer
    ) -> None:
        self.builder, self.combine, self.found, self.buffer = builder, combine, found, buffer

    def divide_over_threads(self, rest: _Part) -> tuple[Statement, ...]:
        """The kernel: what no two updates share is divided over threads."""
        batch, loops = self.found.batch, self.found.loops
        if batch is not None:
            step = loops[0][0] * self.builder.extent(self.builder.strides(0)[batch])
            whole = _Part([batch], [], step, ZERO)
            return nest(loops[:1], self.body(whole, rest, loops[1:]), vector=False)
        if rest.loops and self._share_cache_sets(rest):
            element = replace(rest, loops=[])
            return nest(rest.loops, self.body(element, element, loops), vector=False)
        most = self.builder.limits.scatter_block_elements
        if len(rest.loops) == 1 and _is_long(rest.loops[0][1], most):
            block, part = _cut_into_blocks(rest, most)
            return nest([block], self.body(part, part, loops), vector=False)
        if len(rest.loops) > 1:
            part = replace(rest, loops=rest.loops[1:])
            return nest(rest.loops[:1], self.body(part, part, loops), vector=False)
        return self.body(_Part([], [], ZERO, ZERO), rest, loops)

    def _share_cache_sets(self, rest: _Part) -> bool:
        """Whether the elements of a row of updates belong to places of x that evict each other.

        They do where they lie so far apart that they share few sets of the cache: such a row is
        written element by element, each after those of all other rows.
        """
        builder, conflict = self.builder, self.builder.limits.conflict_bytes
        axis = max(axis for axis in rest.fixed if builder.shape(0)[axis] != 1)
        apart, element_bytes = builder.strides(0)[axis], self.buffer.dtype.bits // 8
        return isinstance(apart, int) and conflict > 0 and apart * element_bytes % conflict == 0

    def body(self, whole: _Part, rest: _Part, loops: Sequence[Loop]) -> tuple[Statement, ...]:
        """Write the rows one after the other; none where the index is out of range."""
        found, inner = self.found, list(rest.loops)
        place, guard = found.base + rest.offset, None
        if found.fits is not None and inner:
            inner[0] = (inner[0][0], scalars.select(found.fits, inner[0][1], ZERO))
        elif found.fits is not None:
            guard = found.fits
        old = widen_element(scalars.load(self.buffer, place, guard))
        new = widen_element(self.builder.operands[1][found.row + rest.update])
        value = scalars.cast(self.combine(old, new), self.buffer.dtype)
        row = nest(inner, (Store(self.buffer, place, value, guard),), parallel=False)
        return nest(loops, (*found.read, *row), parallel=False, vector=False)


class _Total(_Updates):
    """Begins with x; 16-bit floats are collected in float32."""

    def __init__(self, builder: KernelBuilder, combine: Combine, found: Places) -> None:
        super().__init__(builder, combine, found, builder.result)
        self.scratch: tuple[Scratch, ...] = ()
        if is_short(builder.result.dtype):
            self.buffer = Buffer("total", compute_dtype(builder.result.dtype), "scratch")
            self.scratch = (Scratch(self.buffer, builder.extent(size(builder.shape(0)))),)

    def body(self, whole: _Part, rest: _Part, loops: Sequence[Loop]) -> tuple[Statement, ...]:
        """Begin with x, and write the updates into it."""
        start = uniform(self.builder.node.operands[0], self.builder.producers)
        begin = self._fill_part(whole, self.buffer, lambda at: self.builder.operands[0][at], start)
        updates = super().body(whole, rest, loops)
        if not self.scratch:
            return (*begin, *updates)
        end = self._fill_part(whole, self.builder.result, lambda at: self.buffer[at], None)
        return (*begin, *updates, *end)

    def _fill_part(
        self, part: _Part, target: Buffer, read: Callable[[Scalar], Scalar], value: Scalar | None
    ) -> tuple[Statement, ...]:
        """Give a part of a buffer the values of another, or one value."""
        builder = self.builder
        axes = [axis for axis in range(len(builder.shape(0))) if axis not in part.fixed]
        dims, steps = builder.shape(0), builder.strides(0)
        heads, (offset,) = builder.walk("h", tuple(dims[a] for a in axes), [steps[a] for a in axes])
        at = offset + part.offset
        store = Store(target, at, scalars.cast(read(at) if value is None else value, target.dtype))
        return nest([*heads, *part.loops], (store,), parallel=False)


def _is_long(extent: Scalar, most: int) -> bool:
    return extent.op != "const" or extent.detail >= most


def _cut_into_blocks(rest: _Part, most: int) -> tuple[Loop, _Part]:
    """A row cut into blocks of so many elements: the loop over them, and one of them."""
    (index, extent), block = rest.loops[0], scalars.index("block")
    start = block * most
    part = (index, scalars.minimum(scalars.const(most, INDEX), extent - start))
    moved = [moved_by(offset, index, start) for offset in (rest.offset, rest.update)]
    return (block, (extent + (most - 1)) // most), _Part(rest.fixed, [part], *moved)


def moved_by(offset: Scalar, index: Scalar, start: Scalar) -> Scalar:
    """An offset with an index that counts from a start on."""
    step = scalars.coefficient(offset, index)
    assert step is not None
    return offset + start * step
