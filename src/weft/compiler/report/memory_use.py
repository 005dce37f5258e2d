"""What a program will allocate, known before anything runs.

>>> import weft as wf
>>> f = lambda x: wf.cumsum(wf.cumsum(x, axis=0), axis=1)
>>> graph = wf.ir.trace(f, wf.spec("float32", (64, 64)))
>>> report = wf.explain(graph).memory
>>> report.inputs, report.arena, report.outputs
(16384, 16384, 16384)
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from weft.compiler.fusion.costs import Sizes, bytes_of
from weft.compiler.plan.program_plan import ProgramPlan
from weft.compiler.report.notebook import memory_html
from weft.compiler.targets.target import Donation
from weft.core.locations import Location
from weft.core.records import frozen
from weft.ir.graph import GraphNode, Literal, Variable
from weft.ir.printing import name_variables
from weft.runtime.arena import readable_size

__all__ = ["LiveValue", "MemoryReport", "Recomputed", "memory_report"]

LISTED = 8
"""How many of the largest values a report lists; for readers, on any machine."""
BAR = 40
CHARTED = 48
"""The most bars of a chart over a program's calls."""
NAME = 32
"""The most characters of a call's name beside its bar."""


@frozen
class LiveValue:
    """A value in the arena: from which call to which it takes memory of its own, by position."""

    name: str
    type: str
    bytes: int
    first: int
    last: int
    at: Location | None

    def __str__(self) -> str:
        where = "" if self.at is None else f"   {str(self.at).partition(', in ')[0]}"
        return f"{readable_size(self.bytes):>10}  {self.name}: {self.type}{where}"


@frozen
class Recomputed:
    """A value that is computed a second time instead of being kept, to save memory."""

    primitive: str
    type: str
    bytes: int
    at: Location | None

    def __str__(self) -> str:
        where = "" if self.at is None else f"   {str(self.at).partition(', in ')[0]}"
        return f"{readable_size(self.bytes):>10}  {self.primitive}: {self.type}{where}"


@frozen
class MemoryReport:
    """Bytes, by what they are for.

    inputs: what the caller holds already; outputs: what it gets; donated: outputs that take the
    place of state they replace, where nobody else holds it; constants: parts of the program;
    arena: values in between, by lifetime, in memory that is kept from call to call, and shared with
    other compiled functions from 32 MiB on; temporary: what the largest call by reference makes.
    timeline: the live bytes of the arena at each call; largest: where most bytes live together.
    recomputed: values that are computed twice, so that a budget of memory is kept. replaced: the
    gradients of the last call, where the new ones cannot be written over them.
    """

    inputs: int
    outputs: int
    donated: int
    constants: int
    arena: int
    temporary: int
    calls: tuple[str, ...]
    timeline: tuple[int, ...]
    values: tuple[LiveValue, ...]
    recomputed: tuple[Recomputed, ...] = ()
    replaced: int = 0

    @property
    def peak(self) -> int:
        """All memory that a run needs at once."""
        return self.inputs + self.replaced + self.constants + self.allocated

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

    def _repr_html_(self) -> str:
        return memory_html(self)

    def _lines(self) -> Iterator[str]:
        yield f"peak {readable_size(self.peak)}"
        names = ["inputs", "outputs", "donated", "constants", "arena", "temporary"]
        for name in [*names, "replaced"] if self.replaced else names:
            yield f"  {name:<10} {readable_size(getattr(self, name)):>10}"
        if self.largest:
            yield "the largest values that live together in the arena"
            yield from [f"  {value}" for value in self.largest[:LISTED]]
        if self.recomputed:
            total = readable_size(sum(value.bytes for value in self.recomputed))
            yield f"{len(self.recomputed)} values, {total}, are computed again; the largest"
            largest = sorted(self.recomputed, key=lambda value: -value.bytes)
            yield from [f"  {value}" for value in largest[:LISTED]]
        if self.timeline:
            yield "live bytes at each call"
            yield from self._chart()

    def _chart(self) -> Iterator[str]:
        """A bar for each call, or for the busiest one of each stretch of a long program."""
        most = max(self.timeline) or 1
        calls = [*zip(self.timeline, self.calls, strict=False)]
        stretch = -(-len(calls) // CHARTED)
        bars = [max(calls[n : n + stretch]) for n in range(0, len(calls), stretch)]
        if stretch > 1:
            yield f"  the most in each {stretch} of {len(calls)} calls"
        names = [name if len(name) <= NAME else f"{name[: NAME - 1]}…" for _, name in bars]
        width = max(12, *map(len, names))
        for (live, _), name in zip(bars, names, strict=True):
            bar = "#" * round(BAR * live / most)
            yield f"  {name:<{width}} {bar:<{BAR}} {readable_size(live):>10}"


def memory_report(
    plan: ProgramPlan,
    sizes: Sizes,
    donated: Sequence[Donation] = (),
    recomputed: tuple[Recomputed, ...] = (),
    beside: Sequence[int] = (),
) -> MemoryReport:
    """What a run of a program with these sizes needs, if these outputs take their inputs' place.

    beside: outputs that replace what an earlier call has left, which lives until they are there.
    """
    graph, memory = plan.graph, plan.planner.plan_for(sizes)
    values = {str(slot): value for value, slot in plan.slots.items()}
    given = set(graph.inputs)
    replaced = {graph.outputs[output] for output, _ in donated}
    made = {plan.root(atom) for atom in graph.outputs} - given - replaced
    outputs = [value for value in made if isinstance(value, Variable)]
    timeline = memory.timeline()
    return MemoryReport(
        sum(bytes_of(kind, sizes) for kind in graph.input_types),
        sum(bytes_of(value.type, sizes) for value in outputs),
        sum(bytes_of(value.type, sizes) for value in replaced),
        _constants(plan),
        memory.peak,
        _temporary_bytes(plan, sizes),
        tuple(call.name for call in plan.launches),
        (*timeline, *[0] * (len(plan.launches) - len(timeline))),
        tuple(_live_values(plan, values, sizes)),
        recomputed,
        sum(bytes_of(graph.outputs[output].type, sizes) for output in beside),
    )


def _live_values(
    plan: ProgramPlan, values: dict[str, Variable | Literal], sizes: Sizes
) -> Iterator[LiveValue]:
    names = name_variables(plan.graph)
    producer = {result: node for node in plan.graph.nodes for result in node.results}
    inside = {call.nested.scratch: call.nested.node for call in plan.launches if call.nested}
    users = _users(plan, producer)
    memory = plan.planner.plan_for(sizes)
    for buffer in memory.buffers:
        value = values[buffer.name]
        assert isinstance(value, Variable)
        if value in inside:
            name, at = f"inside {inside[value].primitive.name}", inside[value].location
            size, first = memory.sizes[buffer.name], memory.counted_from(buffer)
            yield LiveValue(name, "bytes", size, first, buffer.last, at)
            continue
        node = producer.get(value) or users.get(value)
        at = None if node is None else node.location
        size, first = memory.sizes[buffer.name], memory.counted_from(buffer)
        name = names.get(value, "scratch" if node is None else "packed")
        yield LiveValue(name, str(value.type), size, first, buffer.last, at)


def _users(
    plan: ProgramPlan, producer: Mapping[Variable, GraphNode]
) -> dict[Variable | Literal, GraphNode]:
    """The nodes that values which are in no graph are made for, such as packed operands."""
    found: dict[Variable | Literal, GraphNode] = {}
    for call in [each for launch in plan.launches for each in (launch.members or (launch,))]:
        made = [result for result in call.writes if result in producer]
        for value in {*call.values} - {*call.writes} if made else ():
            found.setdefault(value, producer[made[0]])
    return found


def _temporary_bytes(plan: ProgramPlan, sizes: Sizes) -> int:
    """What the largest call by reference makes before it is copied to its place."""
    called = [call for call in plan.launches if call.node is not None]
    made = [sum(bytes_of(value.type, sizes) for value in call.writes) for call in called]
    return max([*made, *[_temporary_bytes(inner, sizes) for inner in plan.inner_plans]], default=0)


def _constants(plan: ProgramPlan) -> int:
    """The bytes of the constants of a program, those inside of loops and choices included."""
    own = [value.value.nbytes for value in plan.slots if isinstance(value, Literal)]
    return sum(own) + sum(map(_constants, plan.inner_plans))
