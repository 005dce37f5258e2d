"""Rows written and combined at places that are data, over the whole card, in a fixed order.

One team could go over the updates in their order, as a loop does. Instead the updates are brought
into the order of their places first, by a stable sort, so that all updates of a place stand beside
each other in their old order. Where the last update stays, each position looks at the next one and
knows whether it is the last. Where updates are combined, the sorted positions are cut into chunks:
a thread goes over one column of a chunk, and what a chunk adds to a place that began before it is
added in a second launch, chunk after chunk. The order depends on the indices alone, so results have
the same bits on every run. An index out of range is left out and reported.

The sort is a node of its own, so that all scatters with the same indices share it. A running sum of
what is not negative needs none. An order that is sorted again, to know where each element went, is
a scatter to places of which no two are equal.

>>> import weft as wf
>>> kinds = wf.spec("float32", (999, 4)), wf.spec("int64", (500,)), wf.spec("float32", (500, 4))
>>> graph = wf.ir.trace(lambda x, i, u: wf.index_add(x, 0, i, u), *kinds)
>>> [node.primitive.name for node in order_scatters(graph).nodes][-2:]
['argsort', 'call']
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from math import prod
from typing import Any

import numpy as np

from weft.compiler.lowering.nodes.places import counting_axis
from weft.compiler.plan.launch import (
    Kind,
    Launch,
    copy_launch,
    no_numbers,
    one,
    static_shape,
)
from weft.compiler.targets.cuda.binding import Binding, Run, binder
from weft.compiler.targets.cuda.device_text import DeviceBuilder, TextKernel
from weft.compiler.targets.cuda.sorting import Step, bind_steps
from weft.core.dtypes import DType, bool_, int32, int64
from weft.core.records import frozen
from weft.core.shapes import size
from weft.ir.graph import Atom, Graph, GraphNode, Literal, Variable
from weft.ir.kinds import Scatter
from weft.ir.primitive import PRIMITIVES
from weft.ir.walking import Tally, Walk
from weft.ops.control_call import call

__all__ = ["is_ordered_scatter", "order_scatters", "ordered_scatter_launches"]

FEWEST_UPDATES = 256
"""Fewer updates than these are written by a loop."""
FEWEST_BATCHES = 256
"""A loop over so many batches of updates is spread over the card as it is."""
MOST_PLACES = 1 << 31
"""Places are sorted as integers of 32 bits."""
THREADS = 256
CHUNK = 32
"""Sorted positions that a thread combines one after the other."""
AT_ONCE = 8
"""Positions of a chunk whose updates are read before the first of them is combined."""
_NAME = "ordered scatter"
_COMBINED = {
    "add": ("fadd", "add", "add"),
    "multiply": ("fmul", "mul", "mul"),
    "maximum": ("llvm.maximum", "llvm.smax", "llvm.umax"),
    "minimum": ("llvm.minimum", "llvm.smin", "llvm.umin"),
}
"""How floats, signed and unsigned integers are combined."""


# --- the graph -----------------------------------------------------------------------------------


def order_scatters(graph: Graph, tally: Tally | None = None) -> Graph:
    """The graph with scatters that are given the order of their places."""
    return _OrderedScatters(graph, tally).run()


class _OrderedScatters(Walk):
    """Sorts the updates of scatters, so that each row adds its own up in their order."""

    def __init__(self, graph: Graph, tally: Tally | None = None) -> None:
        super().__init__(graph, tally)
        self._orders: dict[tuple[object, ...], Atom] = {}
        """The order of the places that some indices name, by these and the sizes of the axes."""

    def run(self) -> Graph:
        """See `Walk`; what an ordered scatter computes stays as it is."""
        return self.graph if self.graph.name == _NAME else super().run()

    def visit(self, node: GraphNode) -> Sequence[Atom] | None:
        if self._inverts_an_order(node):
            return [self._inverse_order(node)]
        if not self._is_taken(node):
            return None
        _, _, *indices = node.operands
        extra = [] if node.params.get("unique", False) else [self._order_of(node, indices)]
        operands = (*node.operands, *extra)
        renamed = [Variable(atom.type) for atom in operands]
        result = Variable(node.results[0].type)
        inner = GraphNode(
            node.primitive, tuple(renamed[: len(node.operands)]), node.params, (result,),
            node.location,
        )  # fmt: skip
        graph = Graph(tuple(renamed), (inner,), (result,), _NAME)
        results = (Variable(result.type),)
        self.tally["ordered scatters"] += 1
        return self.put(GraphNode(call, operands, {"graph": graph}, results, node.location))

    def _order_of(self, node: GraphNode, indices: Sequence[Atom]) -> Atom:
        """Numbers of updates, in the order of their places."""
        dims = node.operands[0].type.shape[: len(indices)]
        key = (*indices, *dims)
        if key not in self._orders:
            if len(indices) == 1 and indices[0].type.ndim == 1 and self._rises(indices[0]):
                order = self._count_up(node, indices[0])
            else:
                places = self._places(node, indices)
                order = self._apply("argsort", node, places, axis=0, descending=False)
            self._orders[key] = order
        return self._orders[key]

    def _count_up(self, node: GraphNode, like: Atom) -> Atom:
        """0, 1, 2, … as many as a vector has elements."""
        return self._apply("iota", node, shape=like.type.shape, dtype=int64, axis=0)

    def _rises(self, atom: Atom) -> bool:
        """Whether a vector is known to be in order: a running sum of what is not negative."""
        made = self.maker(atom)
        return (
            made is not None
            and made.primitive.name == "cumulative_sum"
            and not made.params["reverse"]
            and self._is_not_negative(made.operands[0])
        )

    def _is_not_negative(self, atom: Atom) -> bool:
        """Whether no element is below zero: truth values, parts side by side, constants."""
        if isinstance(atom, Literal):
            return bool(np.all(np.asarray(atom.value) >= 0))
        made = self.maker(atom)
        if made is None:
            return False
        match made.primitive.name:
            case "convert":
                return made.operands[0].type.dtype is bool_
            case "concatenate" | "reshape":
                return all(self._is_not_negative(each) for each in made.operands)
            case "full":
                return bool(made.params["value"] >= 0)
        return False

    def _inverts_an_order(self, node: GraphNode) -> bool:
        """Whether a node sorts an order: what comes out says where each element went."""
        if node.primitive.name != "argsort" or node.params["descending"]:
            return False
        made, kind = self.maker(node.operands[0]), node.operands[0].type
        is_many = not isinstance(kind.size, int) or FEWEST_UPDATES <= kind.size < MOST_PLACES
        is_order = made is not None and made.primitive.name == "argsort"
        return is_order and kind.ndim == 1 and is_many

    def _inverse_order(self, node: GraphNode) -> Atom:
        """The numbers of places, each written to the place that the order has there."""
        order = node.operands[0]
        numbers = self._count_up(node, order)
        return self._apply("scatter", node, numbers, numbers, order, axes=(0,), unique=True)

    def _places(self, node: GraphNode, indices: Sequence[Atom]) -> Atom:
        """The number of each update's row, -1 where an index is out of range: int32 [updates]."""
        dims = [int(dim) for dim in node.operands[0].type.shape[: len(indices)]]
        row = within = None
        for index, dim in zip(indices, dims, strict=True):
            for name, bound in (("greater_equal", 0), ("less", dim)):
                test = self._apply(name, node, index, _number(bound))
                within = test if within is None else self._apply("logical_and", node, within, test)
            if row is not None:
                index = self._apply(
                    "add", node, self._apply("multiply", node, row, _number(dim)), index
                )
            row = index
        assert row is not None
        assert within is not None
        place = self._apply("where", node, within, row, _number(-1))
        place = self._apply("convert", node, place, dtype=int32)
        return self._apply("reshape", node, place, shape=(size(place.type.shape),))

    def _apply(self, name: str, node: GraphNode, *operands: Atom, **params: Any) -> Atom:
        return self.make(PRIMITIVES[name], *operands, like=node, **params)

    def _is_taken(self, node: GraphNode) -> bool:
        """Whether a node writes enough whole rows, and a loop would not be spread over the card."""
        kind = node.primitive.kind
        if not isinstance(kind, Scatter) or "axes" not in node.params:
            return False
        x, updates, *indices = [atom.type for atom in node.operands]
        axes = node.params["axes"]
        heads = x.shape[: len(axes)]
        if axes != tuple(range(len(axes))) or not all(isinstance(dim, int) for dim in heads):
            return False
        if kind.combine is not None and not _is_combined(kind.combine, x.dtype):
            return False
        if not 0 < prod(int(dim) for dim in heads) < MOST_PLACES or size(updates.shape) == 0:
            return False
        count = size(indices[0].shape)
        if isinstance(count, int) and not FEWEST_UPDATES <= count < MOST_PLACES:
            return False
        return not self._is_batched(node)

    def _is_batched(self, node: GraphNode) -> bool:
        """Whether the first index counts along many batches, each with updates of its own."""
        first = node.operands[2]
        if counting_axis(first, self.makers) != 0:
            return False
        count = first.type.shape[0]
        return not isinstance(count, int) or count >= FEWEST_BATCHES


def _is_combined(combine: str, dtype: DType) -> bool:
    """Whether the kernels combine elements of a dtype."""
    has_arithmetic = dtype.bits >= 32 if dtype.is_floating else dtype.kind in ("signed", "unsigned")
    return combine in _COMBINED and has_arithmetic


def _number(value: int) -> Literal:
    return Literal(np.array(value, np.int64))


# --- launches ------------------------------------------------------------------------------------


def is_ordered_scatter(node: GraphNode) -> bool:
    """Whether a node is a scatter that is given the order of its places."""
    return node.primitive is call and node.params["graph"].name == _NAME


def ordered_scatter_launches(node: GraphNode, error: Literal) -> list[Launch]:
    """The launches of such a scatter: a copy of the table, where it is needed, then the updates."""
    graph: Graph = node.params["graph"]
    [inner] = graph.nodes
    table, *operands = node.operands
    [result] = node.results
    kind = inner.primitive.kind
    assert isinstance(kind, Scatter)
    symbol = "ordered scatter", kind.combine or "last", str(len(inner.params["axes"]))
    update = Launch(
        Kind.LOOP, f"ordered {inner.primitive.name}", symbol, (*operands, result, error),
        (result,), no_numbers, one, one, checked=node, updates=(result,), computes=graph,
    )  # fmt: skip
    return [copy_launch(result, table), update]


@binder("ordered scatter")
def bind_ordered_scatter(binding: Binding, launch: Launch) -> Run:
    """What runs the updates of an ordered scatter."""
    assert isinstance(launch.kernel, tuple)
    combine, axes = launch.kernel[1], int(launch.kernel[2])
    updates, *indices = launch.values[: 1 + axes]
    order, (out, error) = launch.values[1 + axes : -2], launch.values[-2:]
    shape = static_shape(out.type.shape, binding.sizes)
    columns, count = prod(shape[axes:]), prod(static_shape(indices[0].type.shape, binding.sizes))
    names = ["updates", "out", "error", *["order"] * len(order), *map(_index_name, range(axes))]
    values = (updates, out, error, *order, *indices)
    cells = {name: binding.cell(launch, value) for name, value in zip(names, values, strict=True)}
    if not count or not columns:
        return bind_steps(binding, [], cells)
    numbers = (count, columns, *shape[:axes])
    dtype = out.type.dtype
    if combine == "last":
        kernel, numbers = _row_writer(dtype, columns, axes, bool(order), numbers)
        total = count * numbers[1]
        return bind_steps(binding, [Step(kernel, -(-total // THREADS), (*names,), numbers)], cells)
    form = ScatterForm(combine, dtype, axes)
    chunks = -(-count // CHUNK)
    cells["parts"] = binding.workspace_cell(0, chunks * columns * dtype.itemsize)
    blocks = -(-chunks * columns // THREADS)
    steps = [
        Step(kernel, blocks, (*names, "parts"), numbers)
        for kernel in (chunk_kernel(form), crossing_kernel(form))
    ]
    return bind_steps(binding, steps, cells)


def _index_name(number: int) -> str:
    return f"index{number}"


def _row_writer(
    dtype: DType, columns: int, axes: int, is_ordered: bool, numbers: tuple[int, ...]
) -> tuple[TextKernel, tuple[int, ...]]:
    """The kernel that writes rows, in the largest pieces that rows are made of; its numbers."""
    row_bytes = columns * dtype.itemsize
    piece = next(width for width in (16, 8, 4, 2, 1) if row_bytes % width == 0)
    return last_kernel(piece, axes, is_ordered), (numbers[0], row_bytes // piece, *numbers[2:])


# --- kernels -------------------------------------------------------------------------------------


@frozen
class ScatterForm:
    """How updates of a dtype are combined, and how many indices name a place."""

    combine: str
    dtype: DType
    axes: int

    @property
    def kind(self) -> str:
        """The type of an element in LLVM's language."""
        if self.dtype.is_floating:
            return {32: "float", 64: "double"}[self.dtype.bits]
        return f"i{self.dtype.bits}"

    @property
    def instruction(self) -> str:
        """What combines two elements."""
        column = 0 if self.dtype.is_floating else 1 if self.dtype.kind == "signed" else 2
        return _COMBINED[self.combine][column]


class _ScatterBuilder(DeviceBuilder):
    """What the kernels share: a thread has a number, and finds the place of a sorted position."""

    def __init__(self, name: str, axes: int, *, is_ordered: bool, has_parts: bool) -> None:
        indices = [f"ptr %{_index_name(number)}" for number in range(axes)]
        pointers = ["ptr %updates", "ptr %out", "ptr %error", *["ptr %order"] * is_ordered]
        sizes = ["i64 %count", "i64 %columns", *[f"i64 %size{number}" for number in range(axes)]]
        parts = ["ptr %parts"] * has_parts
        super().__init__(name, [*pointers, *indices, *parts, *sizes], THREADS)
        self.axes, self.is_ordered = axes, is_ordered
        number = self.add(self.mul(self.block_number, THREADS), self.thread)
        self.group = self.div(number, "%columns")
        """The position, or the chunk of positions, that the thread works at."""
        self.column = self.rem(number, "%columns")

    def update_at(self, position: str) -> str:
        """The number of the update at a sorted position."""
        return self.number("%order", position) if self.is_ordered else position

    def row_of(self, update: str) -> str:
        """The row that an update is for, -1 where an index is out of range."""
        row, within = "0", "true"
        for number in range(self.axes):
            index = self.number(f"%{_index_name(number)}", update)
            fits = self.test("ult", index, f"%size{number}")  # negative ones are large
            within = self.put(f"and i1 {within}, {fits}", "i1")
            row = self.add(self.mul(row, f"%size{number}"), index)
        return self.select(within, row, -1)

    def row_at(self, position: str) -> str:
        """The row at a sorted position; -2 behind the last."""
        row = self.variable(-2)
        with self.when(self.test("slt", position, "%count")):
            row.value = self.row_of(self.update_at(position))
        found = row.value
        self.variables.remove(row)
        return found

    def report_unless(self, is_valid: str) -> None:
        """Say that an index is out of range; one thread of the row does."""
        is_wrong = self.put(f"xor i1 {is_valid}, true", "i1")
        leads = self.test("eq", self.column, 0)
        with self.when(self.put(f"and i1 {is_wrong}, {leads}", "i1")):
            self.store(1, "%error", "i32")


@cache
def last_kernel(piece: int, axes: int, is_ordered: bool) -> TextKernel:
    """Of all updates of a place the last one is written; pieces of rows have so many bytes."""
    kind = "<4 x i32>" if piece == 16 else f"i{8 * piece}"
    out = _ScatterBuilder(f"write_last_{piece}", axes, is_ordered=is_ordered, has_parts=False)
    with out.when(out.test("slt", out.group, "%count")):
        update = out.update_at(out.group)
        row = out.row_of(update)
        is_valid = out.test("sge", row, 0)
        out.report_unless(is_valid)
        if is_ordered:
            differs = out.test("ne", out.row_at(out.add(out.group, 1)), row)
            is_valid = out.put(f"and i1 {is_valid}, {differs}", "i1")
        with out.when(is_valid):
            source = out.add(out.mul(update, "%columns"), out.column)
            target = out.add(out.mul(row, "%columns"), out.column)
            value = out.load(kind, out.at(kind, "%updates", source))
            out.store(value, out.at(kind, "%out", target), kind)
    return out.kernel()


class _Combiner(_ScatterBuilder):
    """A kernel that combines updates of chunks of sorted positions."""

    def __init__(self, name: str, form: ScatterForm) -> None:
        super().__init__(f"{name}_{form.combine}", form.axes, is_ordered=True, has_parts=True)
        self.form = form
        self.first = self.mul(self.group, CHUNK)
        self.end = self.least(self.add(self.first, CHUNK), "%count")

    def combine_elements(self, a: str, b: str) -> str:
        """Two elements combined."""
        form = self.form
        if form.instruction.startswith("llvm."):
            suffix = f"f{form.dtype.bits}" if form.dtype.is_floating else form.kind
            name = f"{form.instruction}.{suffix}"
            return self.call(name, f"{form.kind} {a}", f"{form.kind} {b}", result=form.kind)
        return self.put(f"{form.instruction} {form.kind} {a}, {b}", form.kind)

    def cell(self, array: str, row: str) -> str:
        """The address of the thread's column in a row of an array."""
        return self.at(self.form.kind, array, self.add(self.mul(row, "%columns"), self.column))

    def element(self, array: str, row: str) -> str:
        """The thread's column of a row of an array."""
        return self.load(self.form.kind, self.cell(array, row))

    def read_position(self, position: str, before: str) -> tuple[str, str, str]:
        """The row at a sorted position, what the table holds there, and the update.

        The table is read where the row is another one than that before; other chunks may be
        writing it elsewhere. Behind the last position the row is -2, and the rest is not used.
        """
        update = self.update_at(self.least(position, self.sub(self.end, 1)))
        exists = self.test("slt", position, self.end)
        row = self.select(exists, self.row_of(update), -2)
        begins, is_valid = self.test("ne", row, before), self.test("sge", row, 0)
        reads = self.put(f"and i1 {begins}, {is_valid}", "i1")
        value_cell = self.cell("%updates", update)
        held_cell = self.choose_cell(reads, self.cell("%out", row), value_cell)
        held, value = (self.load(self.form.kind, cell) for cell in (held_cell, value_cell))
        return row, held, value

    def choose_cell(self, condition: str, one: str, other: str) -> str:
        """One of two addresses."""
        return self.put(f"select i1 {condition}, ptr {one}, ptr {other}", "ptr")

    def store_row(self, row: str, total: str, is_part: str) -> None:
        """Write what was combined for a row: to the table, or to the chunk's row of `parts`."""
        is_valid = self.test("sge", row, 0)
        with self.when(is_valid):
            part, own = self.cell("%parts", self.group), self.cell("%out", row)
            self.store(total, self.choose_cell(is_part, part, own), self.form.kind)
        is_wrong = self.test("eq", row, -1)
        self.report_unless(self.put(f"xor i1 {is_wrong}, true", "i1"))

    def last_chunk_of(self, row: str, chunk: str) -> str:
        """The last chunk that begins with a row, from one that does: in growing steps, and back."""
        last, step = self.variable(chunk), self.variable(1)
        with self.repeat():
            self.leave_unless(self._begins_with(row, self.add(last.value, step.value)))
            last.value = self.add(last.value, step.value)
            step.value = self.mul(step.value, 2)
        with self.repeat():
            self.leave_unless(self.test("sgt", step.value, 0))
            further = self.add(last.value, step.value)
            last.value = self.select(self._begins_with(row, further), further, last.value)
            step.value = self.combine("lshr", step.value, 1)
        return last.value

    def _begins_with(self, row: str, chunk: str) -> str:
        return self.test("eq", self.row_at(self.mul(chunk, CHUNK)), row)


@cache
def chunk_kernel(form: ScatterForm) -> TextKernel:
    """Each thread combines a column of a chunk.

    Rows that begin in the chunk start with what the table holds, and are written there. What the
    chunk has for a row that began before it goes to the chunk's row of `parts`.
    """
    out = _Combiner("combine_chunks", form)
    with out.when(out.test("slt", out.first, "%count")):
        before = out.variable(-2)
        with out.when(out.test("sgt", out.group, 0)):
            before.value = out.row_at(out.sub(out.first, 1))
        row = out.variable(before.value)
        total = out.variable("0.0" if form.dtype.is_floating else "0", form.kind)
        is_part = out.variable("true", "i1")
        for start in range(0, CHUNK, AT_ONCE):
            positions = [out.add(out.first, number) for number in range(start, start + AT_ONCE)]
            reads, last = list[tuple[str, str, str]](), row.value
            for position in positions:
                reads.append(out.read_position(position, last))
                last = reads[-1][0]
            for number, (found, held, value) in enumerate(reads):
                with out.choose(out.test("eq", found, row.value)) as (is_same, is_new):
                    with is_same:
                        # what the chunk begins with has nothing before it to be combined with
                        is_first = start + number == 0
                        total.value = (
                            value if is_first else out.combine_elements(total.value, value)
                        )
                    with is_new:
                        if start + number:
                            out.store_row(row.value, total.value, is_part.value)
                        row.value, is_part.value = found, "false"
                        total.value = out.combine_elements(held, value)
        out.store_row(row.value, total.value, is_part.value)
    return out.kernel()


@cache
def crossing_kernel(form: ScatterForm) -> TextKernel:
    """What chunks have for a row that began before them is added to it, chunk after chunk.

    The thread of the chunk where a row begins does so, and looks for the row's last chunk first.
    """
    out = _Combiner("combine_crossing", form)
    with out.when(out.test("slt", out.end, "%count")):
        row, following = out.row_at(out.sub(out.end, 1)), out.row_at(out.end)
        crosses = out.test("eq", row, following)
        is_valid = out.test("sge", row, 0)
        with out.when(out.put(f"and i1 {crosses}, {is_valid}", "i1")):
            before = out.variable(-2)
            with out.when(out.test("sgt", out.group, 0)):
                before.value = out.row_at(out.sub(out.first, 1))
            with out.when(out.test("ne", before.value, row)):  # else it began before this chunk
                next_chunk = out.add(out.group, 1)
                behind = out.add(out.last_chunk_of(row, next_chunk), 1)
                total = out.variable(out.element("%out", row), form.kind)
                chunk = out.variable(next_chunk)
                with out.groups(chunk, AT_ONCE, behind) as first:
                    chunks = [out.add(first, number) for number in range(AT_ONCE)]
                    for value in [out.element("%parts", each) for each in chunks]:
                        total.value = out.combine_elements(total.value, value)
                with out.loop(chunk.value, behind) as each:
                    total.value = out.combine_elements(total.value, out.element("%parts", each))
                out.store(total.value, out.cell("%out", row), form.kind)
    return out.kernel()
