"""Loops and choices on a card: the host puts the launches of each step on the stream.

A loop of known length needs no answer from the card, so its steps are put one behind the other, and
may become part of a CUDA graph; a recurrent layer is one kernel. A loop with a condition, and a
choice, wait for the number that decides. A carry lies in two places in turns.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from weft.compiler.plan.control_flow import Choice, Loop
from weft.compiler.plan.launch import Launch, Value, bound_params, bytes_of
from weft.compiler.plan.program_plan import ProgramPlan
from weft.compiler.targets.cuda.binding import ALIGNMENT, Binding, Run, binder
from weft.compiler.targets.cuda.recurrent.binding import recurrent_run
from weft.ir.graph import Literal

VECTOR = 16
"""What kernels expect addresses to be multiples of."""
GRAPH_STEPS = 4096
"""Launches of all steps of a loop up to which they may be part of a graph."""


@binder("control")
def bind_control(outer: Binding, launch: Launch) -> Run:
    """What runs a loop or a choice."""
    assert launch.nested is not None
    form = launch.nested.form
    whole = recurrent_run(outer, launch, form) if isinstance(form, Loop) else None
    if whole is not None:
        return whole
    carried = form.num_carry if isinstance(form, Loop) and len(form.plans) == 1 else 0
    bodies = [Body(outer, plan, launch, carried) for plan in form.plans]
    if isinstance(form, Choice):
        outer.is_static = False
        return _ChoiceRun(outer, form, launch, bodies)
    if len(form.plans) == 2:
        outer.is_static = False
        return _WhileRun(outer, form, launch, bodies)
    return _ScanRun(outer, form, launch, bodies[0])


class Body:
    """A plan inside, with cells of its own; each run says where its inputs and outputs lie."""

    def __init__(self, outer: Binding, plan: ProgramPlan, launch: Launch, carried: int = 0) -> None:
        """`carried` outputs come behind the others when it is said who is written directly."""
        assert launch.nested is not None
        self.outer, self.scratch = outer, launch.nested.scratch
        self.binding = inner = Binding(plan, outer.sizes, outer.code, outer.stream, outer.cell_of)
        self.plan = inner.plan
        outer.inner.append(inner)
        outer.workspace_bytes = max(outer.workspace_bytes, inner.workspace_bytes)
        self._held = outer.hold(inner.held_bytes)
        outer.is_static = outer.is_static and inner.is_static
        self._inputs = [inner.plan.slots.get(v) for v in inner.plan.graph.inputs]
        outputs = inner.plan.graph.outputs
        sources: dict[int, tuple[int | None, Value]] = {}
        seen: set[Value] = set()
        given = set(inner.plan.graph.inputs)
        for position in (*range(carried, len(outputs)), *range(carried)):
            root = inner.plan.root(outputs[position])
            own = not isinstance(root, Literal) and root not in given and root not in seen
            held = (
                str(inner.plan.slots.get(root)) in inner.plan.planner.plan_for(outer.sizes).offsets
            )
            sources[position] = (inner.plan.slots[root] if own and not held else None, root)
            seen.add(root)
        self._sources = [sources[position] for position in range(len(outputs))]
        """For each output the slot that is written for it, or the value that it is a copy of."""
        self.sizes = [bytes_of(atom.type, outer.sizes) for atom in outputs]

    def same_output(self, position: int, others: range) -> int | None:
        """Which of some other outputs is written directly, and is the same value as an output."""
        slot, root = self._sources[position]
        for other in others if slot is None else ():
            if self._sources[other][0] is not None and self._sources[other][1] is root:
                return other
        return None

    def run(self, inputs: list[int], outputs: Sequence[int | None]) -> None:
        """Run it on inputs at some addresses, and write its outputs to others, but for None."""
        inner, outer = self.binding, self.outer
        inner.place_parts(outer.address(self.scratch), outer.workspace, outer.held + self._held)
        for slot, address in zip(self._inputs, inputs, strict=True):
            if slot is not None:
                inner.cells[slot] = address
        for (slot, _), target in zip(self._sources, outputs, strict=True):
            if slot is not None and target is not None:
                inner.cells[slot] = target
        inner.launch()
        for (slot, root), target, size in zip(self._sources, outputs, self.sizes, strict=True):
            if slot is None and target is not None:
                inner.copy(target, inner.address(root), size)


class _ScanRun:
    """A loop of known length: each step takes a row of xs and makes a row of ys."""

    def __init__(self, outer: Binding, loop: Loop, launch: Launch, body: Body) -> None:
        self.outer, self.loop, self.body = outer, loop, body
        self.length = loop.limit(outer.sizes)
        outer.count += max(1, body.binding.count) * self.length
        if outer.count > GRAPH_STEPS:
            outer.is_static = False
        node, consts, carry = loop.node, loop.num_consts, loop.num_carry
        self.constants = node.operands[:consts]
        self.start = node.operands[consts : consts + carry]
        self.xs = node.operands[consts + carry :]
        self.carried, self.ys = node.results[:carry], node.results[carry:]
        self.row_bytes = [
            bytes_of(atom.type, outer.sizes) // max(1, self.length) for atom in self.xs
        ]
        sizes = body.sizes
        self.carry_bytes, self.y_bytes = sizes[:carry], sizes[carry:]
        self.spare = [[outer.hold(size) for size in self.carry_bytes] for _ in range(2)]
        self.x_rows = [_row_place(outer, size) for size in self.row_bytes]
        self.y_rows = [_row_place(outer, size) for size in self.y_bytes]
        rows = range(carry, carry + len(self.y_bytes))
        same = [body.same_output(position, rows) for position in range(carry)]
        self.row_of_carry = [
            None if row is None or self.y_rows[row - carry] is not None else row - carry
            for row in same
        ]
        """For each carry the row of ys that is the same value: the next step reads it there."""

    def __call__(self) -> None:
        outer = self.outer
        constants = [outer.address(atom) for atom in self.constants]
        carry = [outer.address(atom) for atom in self.start]
        xs, ys = ([outer.address(atom) for atom in atoms] for atoms in (self.xs, self.ys))
        order = range(self.length)
        for count, step in enumerate(reversed(order) if self.loop.reverse else order):
            rows = []
            for base, size, place in zip(xs, self.row_bytes, self.x_rows, strict=True):
                rows.append(base + step * size)
                if place is not None:
                    outer.copy(outer.held + place, rows[-1], size)
                    rows[-1] = outer.held + place
            made = [
                base + step * size if place is None else outer.held + place
                for base, size, place in zip(ys, self.y_bytes, self.y_rows, strict=True)
            ]
            spare = [outer.held + place for place in self.spare[count % 2]]
            written = [
                None if row is not None else place
                for row, place in zip(self.row_of_carry, spare, strict=True)
            ]
            self.body.run([*constants, *carry, *rows], [*written, *made])
            for base, size, place, row in zip(ys, self.y_bytes, self.y_rows, made, strict=True):
                if place is not None:
                    outer.copy(base + step * size, row, size)
            carry = [
                place if row is None else made[row]
                for row, place in zip(self.row_of_carry, spare, strict=True)
            ]
        for atom, address, size in zip(self.carried, carry, self.carry_bytes, strict=True):
            outer.copy(outer.address(atom), address, size)


def _row_place(outer: Binding, size: int) -> int | None:
    """Room for a row that does not begin where kernels expect it; None where all rows do."""
    return outer.hold(size) if size % VECTOR else None


class _WhileRun:
    """A loop that asks before each step."""

    def __init__(self, outer: Binding, loop: Loop, launch: Launch, bodies: list[Body]) -> None:
        self.outer, self.loop = outer, loop
        self.body, self.condition = bodies
        self.constants = loop.node.operands[: loop.num_consts]
        self.start = loop.node.operands[loop.num_consts :]
        self.most = loop.limit(outer.sizes)
        self.spare = [[outer.hold(size) for size in self.body.sizes] for _ in range(2)]
        self.answer = outer.hold(ALIGNMENT)

    def __call__(self) -> None:
        outer, step = self.outer, 0
        constants = [outer.address(atom) for atom in self.constants]
        carry = [outer.address(atom) for atom in self.start]
        while step != self.most and self._goes_on(constants, carry):
            following = [outer.held + place for place in self.spare[step % 2]]
            self.body.run([*constants, *carry], following)
            carry = following
            step += 1
        for result, address, size in zip(
            self.loop.node.results, carry, self.body.sizes, strict=True
        ):
            outer.copy(outer.address(result), address, size)

    def _goes_on(self, constants: list[int], carry: list[int]) -> bool:
        answer = self.outer.held + self.answer
        self.condition.run([*constants, *carry], [answer])
        said = self.condition.plan.graph.outputs[0]
        return bool(self.outer.download_from(answer, said))


class _ChoiceRun:
    """One branch, or one for each row."""

    def __init__(self, outer: Binding, choice: Choice, launch: Launch, bodies: list[Body]) -> None:
        self.outer, self.choice, self.bodies = outer, choice, bodies
        self.index, *self.given = choice.node.operands
        self.results = choice.node.results
        self.spare = [outer.hold(size) for size in bodies[0].sizes] if choice.rows else []

    def __call__(self) -> None:
        outer, node = self.outer, self.choice.node
        index = self.index
        host = index.value if isinstance(index, Literal) else outer.download(index)
        numbers = np.asarray(host).reshape(-1).astype(np.int64)
        if np.any((numbers < 0) | (numbers >= len(self.bodies))):
            operands = [
                a.value if isinstance(a, Literal) else outer.download(a) for a in node.operands
            ]
            node.primitive.reference(*operands, **bound_params(node, outer.sizes))
            raise RuntimeError("a choice has no branch of this number")
        given = [outer.address(atom) for atom in self.given]
        results = [outer.address(result) for result in self.results]
        if not self.choice.rows:
            self.bodies[int(numbers[0])].run(given, results)
            return
        spare = [outer.held + place for place in self.spare]
        for number, body in enumerate(self.bodies):
            rows = np.flatnonzero(numbers == number)
            if not len(rows):
                continue
            body.run(given, spare)
            for target, source, size in zip(results, spare, body.sizes, strict=True):
                part = size // len(numbers)
                for row in rows.tolist():
                    outer.copy(target + row * part, source + row * part, part)
