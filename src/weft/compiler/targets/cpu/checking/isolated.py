"""A run of a plan in which every value has fenced memory of its own.

Nothing is planned here: no place is shared, nothing is written in place, loops and choices are run
by Python, step by step. So it is what a planned run must agree with. Two such runs that differ in
what their memory holds before, in where it lies and in how launches are divided must agree, too:
else something was read that nobody had written.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from weft.compiler.plan.control_flow import Nested
from weft.compiler.plan.interpreting import NoSuchBranch, run_control
from weft.compiler.plan.launch import Kind, Launch, Sizes, Value, bytes_of
from weft.compiler.plan.program_plan import ProgramPlan
from weft.compiler.plan.verify import misbehaviour
from weft.compiler.targets.cpu.checking.fences import Buffer, Fences
from weft.compiler.targets.cpu.runtime.tables import Function, TableMaker
from weft.core.records import frozen
from weft.ir.graph import Literal, Variable

Array = np.ndarray[Any, Any]


class Stopped(Exception):
    """A launch has reported an error, as it does for an index that is out of bounds."""


@dataclass(slots=True)
class Answers:
    """What calls back into Python have given, so that they are asked once for all runs."""

    results: list[list[Array]] = field(default_factory=list)
    next: int = 0


@frozen
class Way:
    """How a run differs from others: its memory, and how launches are divided."""

    fences: Fences
    answers: Answers
    divided: bool
    """Whether fused launches run part by part, and chunks from the last one to the first."""


class Isolated:
    """The memory of one plan, and what runs its launches."""

    def __init__(self, plan: ProgramPlan, maker: TableMaker, sizes: Sizes, way: Way) -> None:
        self.plan, self.maker, self.sizes, self.way = plan, maker, sizes, way
        self._buffers: dict[Value, Buffer] = {}
        self._inner: dict[tuple[int, int], Isolated] = {}

    def begin(self, inputs: Sequence[Array]) -> None:
        """Start anew with the bytes of these inputs."""
        for value, buffer in self._buffers.items():
            if isinstance(value, Variable):
                buffer.data[:] = self.way.fences.pattern_bytes(buffer.data.size)
        for variable, given in zip(self.plan.graph.inputs, inputs, strict=True):
            self.bytes_of(variable)[:] = given

    def run(self, inputs: Sequence[Array]) -> list[Array]:
        """The bytes of the outputs."""
        self.begin(inputs)
        for launch in self.plan.launches:
            self.step(launch)
        return [self.bytes_of(atom).copy() for atom in self.plan.graph.outputs]

    def bytes_of(self, value: Value) -> Array:
        """The bytes of a value."""
        return self._buffer(value).data

    def _buffer(self, value: Value) -> Buffer:
        root = self.plan.root(value)
        found = self._buffers.get(root)
        if found is None:
            found = self._buffers[root] = self.way.fences.buffer(bytes_of(root.type, self.sizes))
            if isinstance(root, Literal):
                found.data[:] = np.ascontiguousarray(root.value).reshape(-1).view(np.uint8)
        return found

    def step(self, launch: Launch) -> None:
        """Run a launch, and look whether it has touched what is not its own."""
        if launch.nested is not None:
            self._control(launch, launch.nested)
        elif launch.node is not None:
            self._refer(launch)
        else:
            for part in self._launches_run(launch):
                self._launch(part)
                self._look(part)

    def _launches_run(self, launch: Launch) -> Iterator[Launch]:
        """The launches that are run for a launch."""
        inner = (*launch.stages, *launch.members)
        if self.way.divided and inner:
            for each in inner:
                yield from self._launches_run(each)
        else:
            yield launch

    def _launch(self, launch: Launch) -> None:
        addresses = [self._address(launch, value) for value in launch.values]
        if launch.kind is Kind.REFERENCE:
            addresses.append(int(self.maker.callback(launch).ctypes.data))
        buffers = np.array([*addresses, 0], np.int64)
        address, given = self.maker.numbers_of(launch, self.sizes)
        numbers = np.array(given or [0], np.int64)
        extent, grain = launch.extent(self.sizes), max(1, launch.grain(self.sizes))
        starts = range(0, extent, grain) if self.way.divided and extent > grain else (0,)
        function = Function(address)
        for start in reversed(starts):
            end = min(extent, start + grain) if len(starts) > 1 else extent
            function(buffers.ctypes.data, numbers.ctypes.data, start, end)
            self._stop_at_errors()

    def _address(self, launch: Launch, value: Value) -> int:
        if value is self.plan.error:  # which the launch writes to, as to its message
            return int(self.maker.state.error.ctypes.data)
        if isinstance(value, Literal) and launch.report is not None:
            return int(value.value.ctypes.data)
        return self._buffer(value).address

    def _stop_at_errors(self) -> None:
        if self.maker.state.error[0]:
            raise Stopped

    def _look(self, launch: Launch) -> None:
        damage = self.way.fences.damage()
        if damage is not None:
            buffer, problem = damage
            touched = [v for v in launch.values if self._buffers.get(self.plan.root(v)) is buffer]
            raise misbehaviour(launch, f"{describe_values(launch, touched)} {problem}", self.sizes)

    def _refer(self, launch: Launch) -> None:
        answers = self.way.answers
        if answers.next == len(answers.results):
            self._launch(launch)
            answers.results.append([self.bytes_of(value).copy() for value in launch.writes])
        for value, data in zip(launch.writes, answers.results[answers.next], strict=True):
            self.bytes_of(value)[:] = data
        answers.next += 1

    # --- loops and choices ---------------------------------------------------------------------

    def _isolated_plan(self, launch: Launch, number: int) -> Isolated:
        """What runs a plan inside a launch."""
        assert launch.nested is not None
        key = id(launch), number
        if key not in self._inner:
            self._inner[key] = Isolated(
                launch.nested.plans[number], self.maker, self.sizes, self.way
            )
        return self._inner[key]

    def _control(self, launch: Launch, nested: Nested) -> None:
        """Run a loop or a choice step by step."""
        operands = [self.bytes_of(atom).copy() for atom in nested.node.operands]

        def run(number: int, inputs: list[Array]) -> list[Array]:
            return self._isolated_plan(launch, number).run(inputs)

        try:
            results = run_control(nested.form, operands, self.sizes, run)
        except NoSuchBranch:
            raise Stopped from None
        for result, data in zip(nested.node.results, results, strict=True):
            self.bytes_of(result)[:] = data


def describe_values(launch: Launch, values: Sequence[Value]) -> str:
    """Which of a launch's values these are, in words."""
    if not values:
        return "memory of another launch"
    place = launch.values.index(values[0])
    verb = "writes" if values[0] in launch.writes else "reads"
    return f"value {place} ({values[0].type}), which it {verb},"
