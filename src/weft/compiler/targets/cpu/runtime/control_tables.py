"""What the native functions of loops and choices are given, from the tables of the plans inside.

A scan, a while loop or a switch is one call of a native function (native_control_flow.py), which
binds the addresses of the plans inside, runs their launches by the driver, and copies what must be
copied: no Python runs between two steps of a loop. An output that a step computes is written where
it is wanted.

>>> import numpy as np
>>> import weft as wf
>>> from weft.compiler.targets.cpu.target import compile_program
>>> sums = lambda xs: wf.scan(lambda total, x: (total + x, total * 2), 0.0, xs)[1]
>>> program = compile_program(wf.ir.trace(sums, wf.spec("float32", (3,))))
>>> program.run([np.ones(3, np.float32)])[0].tolist()
[0.0, 2.0, 4.0]
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from weft.compiler.plan.control_flow import Choice, Loop
from weft.compiler.plan.launch import Sizes, bytes_of, substitute_all
from weft.compiler.plan.program_plan import ProgramPlan
from weft.compiler.targets.cpu.runtime.driver import execute_address, look_address
from weft.compiler.targets.cpu.runtime.native_control_flow import address
from weft.core.records import frozen
from weft.ir.graph import Variable

if TYPE_CHECKING:
    from weft.compiler.targets.cpu.runtime.tables import Tables

Array = np.ndarray[Any, Any]
Rows = list[tuple[int, ...]]


def control_address(form: Loop | Choice) -> int:
    """The native function that runs a loop or a choice."""
    if isinstance(form, Loop):
        return address("run_loop")
    return address("run_rows" if form.rows else "run_branch")


def control_numbers(
    form: Loop | Choice,
    tables: Sequence[Tables],
    sizes: Sizes,
    reached: Array,
    error: Array,
    keep: list[Array],
) -> list[int]:
    """What the native function is given; `reached` is where it says how far it came.

    Arrays that must live as long as the numbers are appended to `keep`.
    """
    if isinstance(form, Loop):
        return _LoopTables(form, tables, sizes).loop_numbers(reached, keep)
    return _ChoiceTables(form, tables, sizes).choice_numbers(reached, error, keep)


# --- loops ---------------------------------------------------------------------------------------


@frozen
class _LoopTables:
    """A loop, and the tables of its plans."""

    loop: Loop
    tables: Sequence[Tables]
    sizes: Sizes

    def loop_numbers(self, reached: Array, keep: list[Array]) -> list[int]:
        """The numbers that `run_loop` is given."""
        loop, tables, (body, *others) = self.loop, self.tables, self.loop.plans
        targets, copies = _targets(body, tables[0], self.sizes)
        bindings = self._bindings(targets)
        moving = sum(1 for row in bindings if row[3])
        limit = loop.limit(self.sizes)
        answer = 0
        condition = (0, 0)
        if others:
            answer = tables[1].cell(others[0].slot(others[0].graph.outputs[0]))
            condition = _records(others[0], tables[1], keep)
        return [
            execute_address(),
            look_address(),
            reached.ctypes.data,
            *_records(body, tables[0], keep),
            *condition,
            answer,
            limit,
            0 if others else limit - 1,
            len(loop.node.operands) + len(loop.node.results),
            *_table(bindings, keep),
            moving,
            *_table(self._starts(), keep),
            *_table(self._carries(targets, reached), keep),
            *_table(copies, keep),
        ]

    def _bindings(self, targets: list[int]) -> Rows:
        """Constants, xs and ys, and what lies in scratch memory; first those that move."""
        loop = self.loop
        scratch = len(loop.node.operands) + len(loop.node.results)
        rows: Rows = [*self._moving_bindings(targets)]
        starts = loop.plan_places(self.sizes)
        for plan, table, start in zip(loop.plans, self.tables, starts, strict=False):
            for place, variable in enumerate(plan.graph.inputs[: loop.num_consts]):
                rows.append((table.cell(plan.slots[variable]), place, 0, 0))
            rows += _planned_bindings(table, scratch, start)
            rows += [
                (table.cell(plan.slots[plan.graph.inputs[loop.num_consts + number]]), *there)
                for number, there in self._bindings_in_place()
            ]
        rows += [(targets[number], *there) for number, there in self._bindings_in_place()]
        return sorted(rows, key=lambda row: row[3] == 0)

    def _bindings_in_place(self) -> Iterator[tuple[int, tuple[int, int, int]]]:
        """The carries that stay, and the rest of a binding to where they are."""
        for number in self.loop.kept_carries:
            yield number, (len(self.loop.node.operands) + number, 0, 0)

    def _starts(self) -> Rows:
        """From where each carry that stays begins to where it stays, and its bytes."""
        loop, kinds = self.loop, self.loop.plans[0].graph.output_types
        last = len(loop.node.operands)
        return [
            (loop.num_consts + n, last + n, bytes_of(kinds[n], self.sizes))
            for n in loop.kept_carries
        ]

    def _moving_bindings(self, targets: list[int]) -> Iterator[tuple[int, ...]]:
        """What moves on with each step: xs and ys."""
        loop, body, table = self.loop, self.loop.plans[0], self.tables[0]
        held = loop.num_consts + loop.num_carry
        last = loop.limit(self.sizes) - 1
        xs = [table.cell(body.slots[variable]) for variable in body.graph.inputs[held:]]
        kinds = [*body.graph.input_types[held:], *body.graph.output_types[loop.num_carry :]]
        first_y = len(loop.node.operands) + loop.num_carry
        buffers = [*range(held, held + len(xs)), *range(first_y, first_y + len(kinds) - len(xs))]
        cells = [*xs, *targets[loop.num_carry :]]
        for cell, buffer, kind in zip(cells, buffers, kinds, strict=True):
            step = bytes_of(kind, self.sizes)
            offset, step = (last * step, -step) if loop.reverse else (0, step)
            yield cell, buffer, offset, step

    def _carries(self, targets: list[int], reached: Array) -> Rows:
        """The carries that lie in two places in turns."""
        loop, sizes = self.loop, self.sizes
        spares = loop.spare_places(sizes)
        kinds = loop.plans[0].graph.output_types
        unused = int(reached.ctypes.data) + 16
        rows: Rows = []
        for place in range(loop.num_carry):
            if place in loop.kept_carries:
                continue
            first = loop.num_consts + place
            cells = [
                table.cell(plan.slots[plan.graph.inputs[first]])
                for plan, table in zip(loop.plans, self.tables, strict=True)
            ]
            cell, other = cells if len(cells) > 1 else (cells[0], unused)
            last = len(loop.node.operands) + place
            size = bytes_of(kinds[place], sizes)
            rows.append((cell, other, targets[place], first, last, spares[place], size))
        return rows


# --- choices -------------------------------------------------------------------------------------


@frozen
class _ChoiceTables:
    """A choice, and the tables of its branches."""

    choice: Choice
    tables: Sequence[Tables]
    sizes: Sizes

    def choice_numbers(self, reached: Array, error: Array, keep: list[Array]) -> list[int]:
        """The numbers that `run_branch` or `run_rows` is given."""
        index = self.choice.node.operands[0].type
        pairs = zip(self.choice.plans, self.tables, strict=True)
        branches: Rows = [self._branch(plan, table, keep) for plan, table in pairs]
        return [
            execute_address(),
            reached.ctypes.data,
            error.ctypes.data,
            index.dtype.itemsize * 2 + (index.dtype.numpy.kind == "i"),
            *_table(branches, keep),
            substitute_all(index.size, self.sizes),
        ]

    def _branch(self, plan: ProgramPlan, table: Tables, keep: list[Array]) -> tuple[int, ...]:
        """The row of a branch: its record, its bindings and its copies."""
        node = self.choice.node
        count = len(node.operands)
        rows: Rows = [
            (table.cell(plan.slots[variable]), place + 1, 0, 0)
            for place, variable in enumerate(plan.graph.inputs)
        ]
        rows += _planned_bindings(table, count + len(node.results))
        if self.choice.rows:
            copies = self._by_row(plan, table)
        else:
            targets, copies = _targets(plan, table, self.sizes)
            rows += [(cell, count + place, 0, 0) for place, cell in enumerate(targets)]
        return _keep_numbers(table.given, keep), *_table(rows, keep), *_table(copies, keep)

    def _by_row(self, plan: ProgramPlan, table: Tables) -> Rows:
        """From where each output is to the result it is for, and the bytes of a row."""
        node, sizes = self.choice.node, self.sizes
        rows = max(1, substitute_all(node.operands[0].type.size, sizes))
        first = len(node.operands)
        return [
            (table.cell(plan.slot(atom)), first + place, bytes_of(atom.type, sizes) // rows)
            for place, atom in enumerate(plan.graph.outputs)
        ]


# --- tables ------------------------------------------------------------------------------------


def _targets(plan: ProgramPlan, table: Tables, sizes: Sizes) -> tuple[list[int], Rows]:
    """The cell that says where each output goes, and copies of those that are not made there.

    A value that the plan computes is written where its first output goes. Inputs, constants
    and further outputs with the same value are copied; their cells stand behind the slots.
    """
    cells: list[int] = []
    copies: Rows = []
    taken = {plan.root(variable) for variable in plan.graph.inputs}
    for place, atom in enumerate(plan.graph.outputs):
        root = plan.root(atom)
        cell = table.cell(plan.slots[root])
        if isinstance(root, Variable) and root not in taken:
            taken.add(root)
            cells.append(cell)
        else:
            cells.append(table.cell(len(plan.slots) + place))
            copies.append((cell, cells[-1], bytes_of(atom.type, sizes)))
    return cells, copies


def _records(plan: ProgramPlan, table: Tables, keep: list[Array]) -> tuple[int, int]:
    """What the driver is given for a step of a plan, and for what is done once before."""
    calls, _, *rest = table.given
    step = _keep_numbers(table.given_after(plan.once), keep)
    return step, _keep_numbers([calls, plan.once, *rest], keep)


def _planned_bindings(table: Tables, scratch: int, start: int = 0) -> Rows:
    """The bindings of what lies in scratch memory, from a place on."""
    places = zip(table.planned.tolist(), table.offsets.tolist(), strict=True)
    return [(table.cell(slot), scratch, start + offset, 0) for slot, offset in places]


def _table(rows: Rows, keep: list[Array]) -> tuple[int, int]:
    """Rows as an array that is kept: its address, and how many there are."""
    return _keep_numbers([number for row in rows for number in row], keep), len(rows)


def _keep_numbers(numbers: Sequence[int], keep: list[Array]) -> int:
    array = np.array([*numbers, 0], np.int64)
    keep.append(array)
    return int(array.ctypes.data)
