"""What a program will allocate, known before anything runs.

>>> import weft as wf
>>> graph = wf.ir.trace(lambda x: (x @ x) @ x, wf.spec("float32", (64, 64)))
>>> report = wf.explain(graph).memory
>>> report.inputs, report.arena, report.outputs
(16384, 16384, 16384)
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from weft.compiler.costs import Sizes, bytes_of
from weft.compiler.program import Program
from weft.core.locations import Location
from weft.ir.graph import Literal, Variable
from weft.ir.printing import name_variables
from weft.runtime.arena import readable

__all__ = ["LiveValue", "MemoryReport", "memory_report"]

LISTED = 8
"""How many of the largest values a report lists."""
BAR = 40


@dataclass(frozen=True, slots=True)
class LiveValue:
    """A value in the arena: from which call to which it lives, by position."""

    name: str
    type: str
    bytes: int
    first: int
    last: int
    at: Location | None

    def __str__(self) -> str:
        where = "" if self.at is None else f"   {str(self.at).partition(', in ')[0]}"
        return f"{readable(self.bytes):>10}  {self.name}: {self.type}{where}"


@dataclass(frozen=True, slots=True)
class MemoryReport:
    """Bytes, by what they are for.

    inputs: what the caller holds already; outputs: what it gets; constants: parts of the program;
    arena: values in between, by lifetime; temporary: what the largest call by reference makes.
    timeline: the live bytes of the arena at each call; largest: where most bytes live together.
    """

    inputs: int
    outputs: int
    constants: int
    arena: int
    temporary: int
    calls: tuple[str, ...]
    timeline: tuple[int, ...]
    values: tuple[LiveValue, ...]

    @property
    def peak(self) -> int:
        """All memory that a run needs at once."""
        return self.inputs + self.constants + self.allocated

    @property
    def allocated(self) -> int:
        """The part of it that a first run allocates."""
        return self.outputs + self.arena + self.temporary

    @property
    def largest(self) -> list[LiveValue]:
        """The values that live where most bytes do, the largest first."""
        if not self.timeline:
            return []
        busiest = self.timeline.index(max(self.timeline))
        live = [value for value in self.values if value.first <= busiest <= value.last]
        return sorted(live, key=lambda value: -value.bytes)

    def __str__(self) -> str:
        return "\n".join(self._lines())

    def _lines(self) -> Iterator[str]:
        yield f"peak {readable(self.peak)}"
        for name in ("inputs", "outputs", "constants", "arena", "temporary"):
            yield f"  {name:<10} {readable(getattr(self, name)):>10}"
        if self.largest:
            yield "the largest values that live together in the arena"
            yield from [f"  {value}" for value in self.largest[:LISTED]]
        if self.timeline:
            yield "live bytes at each call"
            yield from self._chart()

    def _chart(self) -> Iterator[str]:
        most = max(self.timeline) or 1
        for name, live in zip(self.calls, self.timeline, strict=False):
            yield f"  {name:<12} {'#' * round(BAR * live / most):<{BAR}} {readable(live):>10}"


def memory_report(program: Program, sizes: Sizes) -> MemoryReport:
    """What a run of a program with these sizes needs."""
    graph, plan = program.graph, program._planner.at(sizes)
    values = {str(slot): value for value, slot in program._slots.items()}
    given = set(graph.inputs)
    made = {program._root(atom) for atom in graph.outputs} - given
    outputs = [value for value in made if isinstance(value, Variable)]
    constants = [value for value in program._slots if isinstance(value, Literal)]
    timeline = plan.timeline()
    return MemoryReport(
        sum(bytes_of(kind, sizes) for kind in graph.input_types),
        sum(bytes_of(value.type, sizes) for value in outputs),
        sum(value.value.nbytes for value in constants),
        plan.peak,
        _temporary(program, sizes),
        tuple(call.name for call in program.calls),
        (*timeline, *[0] * (len(program.calls) - len(timeline))),
        tuple(_live_values(program, values, sizes)),
    )


def _live_values(
    program: Program, values: dict[str, Variable | Literal], sizes: Sizes
) -> Iterator[LiveValue]:
    names = name_variables(program.graph)
    producer = {result: node for node in program.graph.nodes for result in node.results}
    plan = program._planner.at(sizes)
    for buffer in plan.buffers:
        value = values[buffer.name]
        assert isinstance(value, Variable)
        at = producer[value].location if value in producer else None
        size = plan.sizes[buffer.name]
        yield LiveValue(names[value], str(value.type), size, buffer.first, buffer.last, at)


def _temporary(program: Program, sizes: Sizes) -> int:
    """What the largest call by reference makes before it is copied to its place."""
    called = [call for call in program.calls if call.node is not None]
    made = [sum(bytes_of(value.type, sizes) for value in call.writes) for call in called]
    return max(made, default=0)
