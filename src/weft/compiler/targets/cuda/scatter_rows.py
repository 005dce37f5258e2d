"""Rows added to a table at places that are data, in a fixed order: the gradient of an embedding.

A block owns some rows of the table and some of their columns, and holds them in shared memory. It
goes over all indices, a chunk at a time: who finds an index of the block's rows puts its number
into a list, in ascending order, and then all threads add those rows of updates, a column each. So
every element has its updates added in the order of the indices, whatever runs when, as a loop would
do. An index outside of the table is left out and reported.
"""

from __future__ import annotations

from functools import cache
from math import prod
from typing import Any

from weft.compiler.plan.launch import Kind, Launch, no_numbers, one, static_shape
from weft.compiler.targets.cuda.binding import Binding, Run, binder
from weft.compiler.targets.cuda.parameters import written_kernel_run
from weft.compiler.targets.cuda.ptx_writer import Kernel, Parameter, Pointer, Value, Word, at
from weft.core.dtypes import float32, int64
from weft.core.records import frozen
from weft.ir.graph import GraphNode, Literal
from weft.ir.primitive import PRIMITIVES

THREADS = 256
_WARPS = THREADS // 32
ROWS, COLUMNS = 16, 768
"""Rows and columns of the table that a block holds."""
AT_ONCE = 8
"""Indices that a thread looks at before the block adds what was found: it waits once for all."""
_LIST = ROWS * COLUMNS * 4
_COUNTS = _LIST + 8 * THREADS * AT_ONCE
_BYTES = _COUNTS + 4 * _WARPS * AT_ONCE
"""Where in shared memory the list and the warps' counts begin, and the end: 64 KB."""
FEWEST_UPDATES = 256
"""Fewer updates than these are added by a loop."""


@frozen(slots=False)
class ScatterKernel:
    """The kernel, ready for the driver."""

    name: str
    text: str
    threads: int
    shared_bytes: int
    parameters: tuple[Parameter, ...]


def is_row_scatter(node: GraphNode) -> bool:
    """Whether a node adds whole rows of float32 to a table, at enough places."""
    if node.primitive is not PRIMITIVES["scatter_add"] or node.params["axes"] != (0,):
        return False
    x, updates, index = (atom.type for atom in node.operands)
    shapes = [*x.shape, *updates.shape]
    if x.dtype is not float32 or index.dtype is not int64 or x.ndim < 2:
        return False
    if not all(isinstance(dim, int) for dim in shapes):
        return False
    count = prod(int(dim) for dim in index.shape)
    return count >= FEWEST_UPDATES and min(map(int, shapes), default=0) > 0


def scatter_launch(node: GraphNode, error: Literal) -> Launch:
    """The launch of a scatter of rows."""
    return Launch(
        Kind.LOOP, "scatter rows", ("scatter_rows",), (*node.operands, *node.results, error),
        node.results, no_numbers, one, one, checked=node,
        in_place=tuple((r, x) for r, x in [(node.results[0], node.operands[0])]
                       if not isinstance(x, Literal)),
    )  # fmt: skip


@binder("scatter_rows")
def bind_scatter(binding: Binding, launch: Launch) -> Run:
    """What runs a scatter of rows."""
    names = ("table", "updates", "indices", "out", "error")
    values: dict[str, Any] = dict(zip(names, launch.values, strict=True))
    rows, *rest = static_shape(values["table"].type.shape, binding.sizes)
    count = prod(static_shape(values["indices"].type.shape, binding.sizes))
    columns = prod(rest)
    parts = -(-columns // COLUMNS)
    words = {"rows": rows, "columns": columns, "count": count, "parts": parts}
    blocks = -(-rows // ROWS) * parts
    return written_kernel_run(binding, launch, scatter_kernel(), blocks, (values, {}, words))


@cache
def scatter_kernel() -> ScatterKernel:
    """The kernel; sizes are parameters, so that it is one for all."""
    names = ("table", "updates", "indices", "out", "error")
    words = ("rows", "columns", "count", "parts")
    kernel = Kernel("scatter_rows", [*map(Pointer, names), *map(Word, words)], THREADS)
    _Writer(kernel).write()
    return ScatterKernel(kernel.name, kernel.text(), THREADS, _BYTES, kernel.parameters)


class _Writer:
    def __init__(self, kernel: Kernel) -> None:
        self.kernel = kernel
        self.thread = kernel.special("tid.x")
        self.lane, self.warp = self.thread & 31, self.thread >> 5
        self.shared = kernel.shared_memory()
        self.rows, self.columns, self.count = (
            kernel.parameter(name) for name in ("rows", "columns", "count")
        )
        block, parts = kernel.special("ctaid.x"), kernel.parameter("parts")
        self.first_row = (block // parts) * ROWS
        self.first_column = (block % parts) * COLUMNS
        self.is_first = block.equals(0)

    def write(self) -> None:
        kernel = self.kernel
        self._move_table("table", store=False)
        indices = kernel.parameter("indices")
        start = kernel.variable("u32", 0, "start")
        kernel.do("bar.sync", 0)
        with kernel.loop("chunk") as loop:
            loop.stop_if(start >= self.count)
            total = self._list_matches(indices, start)
            kernel.do("bar.sync", 0)
            self._add_rows(total)
            kernel.do("bar.sync", 0)
            kernel.assign(start, start + THREADS * AT_ONCE)
        self._move_table("out", store=True)

    def _list_matches(self, indices: Value, start: Value) -> Value:
        """Put the chunk's updates of the block's rows into the list, in order; how many."""
        kernel = self.kernel
        numbers = [start + self.thread + THREADS * part for part in range(AT_ONCE)]
        loaded = [kernel.variable("u64", 0, "index") for _ in numbers]
        for number, index in zip(numbers, loaded, strict=True):
            exists = number < self.count
            kernel.do("ld.global.u64", index, at(kernel.address(indices, number, 8)), when=exists)
        found = [self._look_at(*pair) for pair in zip(numbers, loaded, strict=True)]
        leads, counts = self.lane.equals(0), self.shared + _COUNTS
        places: list[Value] = []
        for part, (_, _, matches) in enumerate(found):
            ballot = kernel.let("b32", "vote.sync.ballot.b32", matches, "0xffffffff")
            before = kernel.let("u32", "mov.u32", "%lanemask_lt")
            below = kernel.let("b32", "and.b32", ballot, before)
            places.append(kernel.let("u32", "popc.b32", below))
            count = kernel.let("u32", "popc.b32", ballot)
            cell = at(counts + self.warp * 4, 4 * _WARPS * part)
            kernel.do("st.shared.u32", cell, count, when=leads)
        kernel.do("bar.sync", 0)
        total = kernel.variable("u32", 0, "total")
        is_own = [self.warp.equals(warp) for warp in range(_WARPS)]
        for part, (number, row, matches) in enumerate(found):
            own = kernel.variable("u32", 0, "own")
            for warp in range(_WARPS):
                kernel.assign(own, total, when=is_own[warp])
                count = kernel.let("u32", "ld.shared.u32", at(counts, 4 * (_WARPS * part + warp)))
                kernel.assign(total, total + count)
            entry = self.shared + _LIST + (own + places[part]) * 8
            kernel.do("st.shared.u32", at(entry), number, when=matches)
            kernel.do("st.shared.u32", at(entry, 4), row, when=matches)
        return total

    def _look_at(self, number: Value, index: Value) -> tuple[Value, Value, Value]:
        """An update's number, its row in the block, and whether it is one of the block's."""
        kernel = self.kernel
        exists = number < self.count
        rows = kernel.let("u64", "cvt.u64.u32", self.rows)
        is_wrong = exists & (index >= rows)  # negative numbers are large ones without a sign
        one_block = is_wrong & self.is_first
        kernel.do("st.global.u32", at(kernel.parameter("error")), 1, when=one_block)
        row = kernel.let("u32", "cvt.u32.u64", index) - self.first_row
        return number, row, exists & ~is_wrong & (row < ROWS)

    def _add_rows(self, total: Value) -> None:
        kernel = self.kernel
        updates = kernel.parameter("updates")
        entry = kernel.variable("u32", 0, "entry")
        with kernel.loop("entry") as loop:
            loop.stop_if(entry >= total)
            place = self.shared + _LIST + entry * 8
            number = kernel.let("u32", "ld.shared.u32", at(place))
            row = kernel.let("u32", "ld.shared.u32", at(place, 4))
            offset = kernel.let("u64", "mul.wide.u32", number, self.columns)
            line = updates + offset * 4
            held = self.shared + row * (4 * COLUMNS)
            for step in range(COLUMNS // THREADS):
                inside = self.thread + step * THREADS
                column = self.first_column + inside
                exists = column < self.columns
                value = kernel.variable("f32", 0.0)
                source = kernel.address(line, column, 4)
                kernel.do("ld.global.f32", value, at(source), when=exists)
                cell = held + inside * 4
                before = kernel.let("f32", "ld.shared.f32", at(cell))
                kernel.do("st.shared.f32", at(cell), before + value)
            kernel.assign(entry, entry + 1)

    def _move_table(self, name: str, *, store: bool) -> None:
        """Copy the block's part of the table to shared memory, or back; each thread its columns."""
        kernel, table = self.kernel, self.kernel.parameter(name)
        row = kernel.variable("u32", 0, "row")
        with kernel.loop("row") as loop:
            loop.stop_if(row >= ROWS)
            number = self.first_row + row
            offset = kernel.let("u64", "mul.wide.u32", number, self.columns)
            line = table + offset * 4
            for step in range(COLUMNS // THREADS):
                inside = self.thread + step * THREADS
                column = self.first_column + inside
                exists = (number < self.rows) & (column < self.columns)
                cell = self.shared + row * (4 * COLUMNS) + inside * 4
                place = kernel.address(line, column, 4)
                if store:
                    value = kernel.let("f32", "ld.shared.f32", at(cell))
                    kernel.do("st.global.f32", at(place), value, when=exists)
                else:
                    value = kernel.variable("f32", 0.0)
                    kernel.do("ld.global.f32", value, at(place), when=exists)
                    kernel.do("st.shared.f32", at(cell), value)
            kernel.assign(row, row + 1)
