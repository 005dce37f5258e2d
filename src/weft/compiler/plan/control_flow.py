"""Control flow in compiled programs: loops and choices as calls that run sections.

A scan, a while loop or a switch is one call of a native function (native_control_flow.py), which
binds the addresses of its sections, runs their calls by the driver, and copies what must be copied:
no Python runs between two steps of a loop. A carry lies in two places in turns, of which the last
one is the result, or stays in that one place where a step may change it there; an output that a
step computes is written where it is wanted.

>>> import numpy as np
>>> import weft as wf
>>> from weft.compiler.targets.cpu.runtime.program import Program
>>> sums = lambda xs: wf.scan(lambda total, x: (total + x, total * 2), 0.0, xs)[1]
>>> program = Program(wf.ir.trace(sums, wf.spec("float32", (3,))))
>>> [call.name for call in program.calls], program.run([np.ones(3, np.float32)])[0].tolist()
(['scan'], [0.0, 2.0, 4.0])
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from weft.compiler.plan.in_place import replacing
from weft.compiler.plan.launch import Call, Nested, Sizes, bytes_of, one, substitute_all
from weft.compiler.plan.program_plan import Context, Section, Tables
from weft.compiler.targets.cpu.runtime.driver import execute_address, look_address
from weft.compiler.targets.cpu.runtime.native_control_flow import address
from weft.core.dtypes import uint8
from weft.core.types import TensorType
from weft.ir.graph import GraphNode, Variable
from weft.runtime.memory import ALIGNMENT

Array = np.ndarray[Any, Any]
Rows = list[tuple[int, ...]]


def control_call(node: GraphNode, context: Context) -> Call | None:
    """The call of a node that holds graphs; None for any other node."""
    make = _CONTROL.get(node.primitive.name)
    return None if make is None else make(node, context)


def _call(
    node: GraphNode,
    function: str,
    plan: _Plan,
    in_place: tuple[tuple[Variable, Variable], ...] = (),
) -> Call:
    nested = Nested(
        node, plan.sections, Variable(TensorType(uint8, (0,))), plan.bytes, plan.numbers, plan.steps
    )
    values = (*node.operands, *node.results, nested.scratch)
    name = node.primitive.name
    start = address(function)
    return Call(
        name, start, values, node.results, _none, one, one, checked=node, nested=nested,
        in_place=in_place,
    )  # fmt: skip


@dataclass(slots=True)
class _Plan:
    """What a call is made from: its sections, and how their tables become its numbers."""

    sections: tuple[Section, ...]
    bytes: Callable[[Sizes], int]
    numbers: Callable[[Sizes, Sequence[Tables], Array, list[Array]], list[int]]
    steps: Callable[[Sizes], int]


# --- loops -------------------------------------------------------------------------------------


@dataclass
class _Loop:
    """A loop: its sections (the body, and the condition if it has one), and what goes in and out.

    Operands are constants, carry and xs; results are carry and ys; the scratch memory is last.
    """

    node: GraphNode
    sections: tuple[Section, ...]
    num_consts: int
    num_carry: int
    limit: Callable[[Sizes], int]
    reverse: bool = False

    @cached_property
    def kept(self) -> list[int]:
        """The carries that a step may change where they are."""
        return [number for number, _ in staying(self.node, self.sections[0])]

    @property
    def in_place(self) -> tuple[tuple[Variable, Variable], ...]:
        """Results that may take the place of what their carries begin with."""
        operands = [self.node.operands[self.num_consts + number] for number in self.kept]
        pairs = zip([self.node.results[number] for number in self.kept], operands, strict=True)
        return tuple((result, atom) for result, atom in pairs if isinstance(atom, Variable))

    def bytes(self, sizes: Sizes) -> int:
        """The scratch memory: that of the sections, and the spare places of the carry."""
        return self._carry_bytes(sizes, self._held(sizes))[-1]

    def _held(self, sizes: Sizes) -> int:
        return max(section.planner.at(sizes).peak for section in self.sections)

    def _carry_bytes(self, sizes: Sizes, start: int) -> list[int]:
        """Where the spare places begin, and where the last one ends."""
        places = [start]
        for number, kind in enumerate(self.sections[0].graph.output_types[: self.num_carry]):
            spare = 0 if number in self.kept else _aligned(bytes_of(kind, sizes))
            places.append(places[-1] + spare)
        return places

    def numbers(
        self, sizes: Sizes, tables: Sequence[Tables], reached: Array, keep: list[Array]
    ) -> list[int]:
        """The numbers that `run_loop` is given."""
        targets, copies = _targets(self.sections[0], tables[0], sizes)
        bindings = self._bindings(sizes, tables, targets)
        moving = sum(1 for row in bindings if row[3])
        limit = self.limit(sizes)
        other = tables[1] if len(tables) > 1 else None
        answer = 0
        if other is not None:
            condition = self.sections[1]
            answer = other.cell(condition.slot(condition.graph.outputs[0]))
        return [
            execute_address(),
            look_address(),
            reached.ctypes.data,
            *_records(self.sections[0], tables[0], keep),
            *((0, 0) if other is None else _records(self.sections[1], other, keep)),
            answer,
            limit,
            limit - 1 if other is None else 0,
            len(self.node.operands) + len(self.node.results),
            *_table(bindings, keep),
            moving,
            *_table(self._starts(sizes), keep),
            *_table(self._carries(sizes, tables, targets, reached), keep),
            *_table(copies, keep),
        ]

    def _bindings(self, sizes: Sizes, tables: Sequence[Tables], targets: list[int]) -> Rows:
        """Constants, xs and ys, and what lies in scratch memory; first those that move."""
        scratch = len(self.node.operands) + len(self.node.results)
        rows: Rows = [*self._moving(sizes, tables[0], targets)]
        for section, table in zip(self.sections, tables, strict=True):
            for place, variable in enumerate(section.graph.inputs[: self.num_consts]):
                rows.append((table.cell(section.slots[variable]), place, 0, 0))
            rows += _planned(table, scratch)
            rows += [
                (table.cell(section.slots[section.graph.inputs[self.num_consts + number]]), *there)
                for number, there in self._there()
            ]
        rows += [(targets[number], *there) for number, there in self._there()]
        return sorted(rows, key=lambda row: row[3] == 0)

    def _there(self) -> Iterator[tuple[int, tuple[int, int, int]]]:
        """The carries that stay, and the rest of a binding to where they are."""
        for number in self.kept:
            yield number, (len(self.node.operands) + number, 0, 0)

    def _starts(self, sizes: Sizes) -> Rows:
        kinds = self.sections[0].graph.output_types
        last = len(self.node.operands)
        return [(self.num_consts + n, last + n, bytes_of(kinds[n], sizes)) for n in self.kept]

    def _moving(self, sizes: Sizes, table: Tables, targets: list[int]) -> Iterator[tuple[int, ...]]:
        """What moves on with each step: xs and ys."""
        body, held = self.sections[0], self.num_consts + self.num_carry
        last = self.limit(sizes) - 1
        xs = [table.cell(body.slots[variable]) for variable in body.graph.inputs[held:]]
        kinds = [*body.graph.input_types[held:], *body.graph.output_types[self.num_carry :]]
        first_y = len(self.node.operands) + self.num_carry
        buffers = [*range(held, held + len(xs)), *range(first_y, first_y + len(kinds) - len(xs))]
        cells = [*xs, *targets[self.num_carry :]]
        for cell, buffer, kind in zip(cells, buffers, kinds, strict=True):
            step = bytes_of(kind, sizes)
            offset, step = (last * step, -step) if self.reverse else (0, step)
            yield cell, buffer, offset, step

    def _carries(
        self, sizes: Sizes, tables: Sequence[Tables], targets: list[int], reached: Array
    ) -> Rows:
        spares = self._carry_bytes(sizes, self._held(sizes))
        kinds = self.sections[0].graph.output_types
        unused = int(reached.ctypes.data) + 16
        rows: Rows = []
        for place in range(self.num_carry):
            if place in self.kept:
                continue
            first = self.num_consts + place
            cells = [
                table.cell(section.slots[section.graph.inputs[first]])
                for section, table in zip(self.sections, tables, strict=True)
            ]
            cell, other = cells if len(cells) > 1 else (cells[0], unused)
            last = len(self.node.operands) + place
            size = bytes_of(kinds[place], sizes)
            rows.append((cell, other, targets[place], first, last, spares[place], size))
        return rows


def staying(node: GraphNode, body: Section) -> list[tuple[int, int]]:
    """The carries that a step of a loop may change where they are: as output and as input."""
    if node.primitive.name not in ("scan", "while"):
        return []
    first, found = node.params["num_consts"], replacing(body.calls, body.graph, body.root)
    count = node.params.get("num_carry", len(node.results))
    return [(n, first + n) for n in range(count) if first + n in found.get(n, ())]


def _scan(node: GraphNode, context: Context) -> Call:
    params = node.params

    def length(sizes: Sizes) -> int:
        return substitute_all(params["length"], sizes)

    loop = _Loop(
        node,
        (Section(params["graph"], context, fixed=range(params["num_consts"]), step=True),),
        params["num_consts"],
        params["num_carry"],
        length,
        params["reverse"],
    )
    plan = _Plan(loop.sections, loop.bytes, loop.numbers, length)
    return _call(node, "run_loop", plan, loop.in_place)


def _while(node: GraphNode, context: Context) -> Call:
    params = node.params
    most = -1 if params["max_steps"] is None else params["max_steps"]
    fixed = range(params["num_consts"])
    sections = (
        Section(params["body"], context, fixed=fixed, step=True),
        Section(params["cond"], context, held=True, fixed=fixed, step=True),
    )
    loop = _Loop(node, sections, params["num_consts"], len(node.results), lambda sizes: most)
    return _call(node, "run_loop", _Plan(sections, loop.bytes, loop.numbers, one), loop.in_place)


# --- choices -----------------------------------------------------------------------------------


@dataclass(slots=True)
class _Choice:
    """A choice of a section by an index, which is the first operand; `rows`: for each row."""

    node: GraphNode
    sections: tuple[Section, ...]
    rows: int

    def bytes(self, sizes: Sizes) -> int:
        """The scratch memory: one branch after the other lies in it."""
        return max(section.planner.at(sizes).peak for section in self.sections)

    def numbers(
        self, sizes: Sizes, tables: Sequence[Tables], reached: Array, keep: list[Array]
    ) -> list[int]:
        """The numbers that `run_branch` or `run_rows` is given."""
        index = self.node.operands[0].type
        pairs = zip(self.sections, tables, strict=True)
        branches: Rows = [self._branch(section, table, sizes, keep) for section, table in pairs]
        return [
            execute_address(),
            reached.ctypes.data,
            self.sections[0].context.error.ctypes.data,
            index.dtype.itemsize * 2 + (index.dtype.numpy.kind == "i"),
            *_table(branches, keep),
            substitute_all(index.size, sizes),
        ]

    def _branch(
        self, section: Section, table: Tables, sizes: Sizes, keep: list[Array]
    ) -> tuple[int, ...]:
        """The row of a branch: its record, its bindings and its copies."""
        count = len(self.node.operands)
        rows: Rows = [
            (table.cell(section.slots[variable]), place + 1, 0, 0)
            for place, variable in enumerate(section.graph.inputs)
        ]
        rows += _planned(table, count + len(self.node.results))
        if self.rows:
            copies = self._by_row(section, table, sizes)
        else:
            targets, copies = _targets(section, table, sizes)
            rows += [(cell, count + place, 0, 0) for place, cell in enumerate(targets)]
        return _kept(table.given, keep), *_table(rows, keep), *_table(copies, keep)

    def _by_row(self, section: Section, table: Tables, sizes: Sizes) -> Rows:
        """From where each output is to the result it is for, and the bytes of a row."""
        rows = max(1, substitute_all(self.node.operands[0].type.size, sizes))
        first = len(self.node.operands)
        return [
            (table.cell(section.slot(atom)), first + place, bytes_of(atom.type, sizes) // rows)
            for place, atom in enumerate(section.graph.outputs)
        ]


def _switch(node: GraphNode, context: Context) -> Call:
    rows = node.params["rows"]
    branches = node.params["branches"]
    sections = tuple(Section(branch, context, held=rows > 0) for branch in branches)
    choice = _Choice(node, sections, rows)
    plan = _Plan(sections, choice.bytes, choice.numbers, one)
    return _call(node, "run_rows" if rows else "run_branch", plan)


_CONTROL: dict[str, Callable[[GraphNode, Context], Call]] = {
    "scan": _scan,
    "switch": _switch,
    "while": _while,
}


# --- tables ------------------------------------------------------------------------------------


def _targets(section: Section, table: Tables, sizes: Sizes) -> tuple[list[int], Rows]:
    """The cell that says where each output goes, and copies of those that are not made there.

    A value that the section computes is written where its first output goes. Inputs, constants
    and further outputs with the same value are copied; their cells stand behind the slots.
    """
    cells: list[int] = []
    copies: Rows = []
    taken = {section.root(variable) for variable in section.graph.inputs}
    for place, atom in enumerate(section.graph.outputs):
        root = section.root(atom)
        cell = table.cell(section.slots[root])
        if isinstance(root, Variable) and root not in taken:
            taken.add(root)
            cells.append(cell)
        else:
            cells.append(table.cell(len(section.slots) + place))
            copies.append((cell, cells[-1], bytes_of(atom.type, sizes)))
    return cells, copies


def _records(section: Section, table: Tables, keep: list[Array]) -> tuple[int, int]:
    """What the driver is given for a step of a section, and for what is done once before."""
    calls, _, *rest = table.given
    step = _kept(table.given_after(section.once), keep)
    return step, _kept([calls, section.once, *rest], keep)


def _planned(table: Tables, scratch: int) -> Rows:
    """The bindings of what lies in scratch memory."""
    places = zip(table.planned.tolist(), table.offsets.tolist(), strict=True)
    return [(table.cell(slot), scratch, offset, 0) for slot, offset in places]


def _table(rows: Rows, keep: list[Array]) -> tuple[int, int]:
    """Rows as an array that is kept: its address, and how many there are."""
    return _kept([number for row in rows for number in row], keep), len(rows)


def _kept(numbers: Sequence[int], keep: list[Array]) -> int:
    array = np.array([*numbers, 0], np.int64)
    keep.append(array)
    return int(array.ctypes.data)


def _aligned(size: int) -> int:
    return -(-size // ALIGNMENT) * ALIGNMENT


def _none(sizes: Sizes) -> list[int]:
    return []
