"""What a program keeps from early to late, and what becomes of memory if it keeps less.

A model of a graph's memory, quick enough to be asked thousands of times: the values that are
written to memory, who reads them, and the bytes that live at each node. At the *peak* the graph is
cut in two. A value from before it that is `dropped` is computed again when something behind it
needs it, from values that are kept, or from other dropped ones that are then computed again too.

>>> import weft as wf
>>> f = lambda x, w: wf.sin(wf.sin(wf.sin(x @ w) @ w) @ w).sum()
>>> flow = Flow(wf.ir.trace(wf.grad(f), *[wf.spec("float32", (64, 64))] * 2), Limits())
>>> flow.weigh(frozenset()).peak, flow.weigh(frozenset(flow.candidates[:1])).peak
(65536, 49152)
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property
from itertools import accumulate

from weft.compiler.fusion.aliases import shares_memory
from weft.compiler.fusion.costs import bytes_of, flops, operations
from weft.compiler.fusion.grouping import why_stored
from weft.compiler.lowering.groups import is_lowered
from weft.compiler.targets.limits import Limits, Rates
from weft.core.records import frozen
from weft.ir.graph import Atom, Graph, GraphNode, Literal, Variable
from weft.ir.kinds import Collective, Contraction, Control, Effect, Gather, Opaque, Scatter
from weft.ir.walking import graphs_of, is_pure, replace_node
from weft.ops.identity import barrier

__all__ = [
    "Flow", "Weight", "release_products", "values_again", "with_early_updates",
    "with_recomputation",
]  # fmt: skip

WAIT = 64
"""After how many nodes an update has waited for something beside its product; of programs, not of
a machine."""


@frozen
class Weight:
    """A choice of values to drop: the most bytes that then live at once, and seconds it costs."""

    flow: Flow
    dropped: frozenset[Variable]
    peak: int
    cost: float


class _Sizes(dict[Variable, int]):
    """The bytes of values, found when they are asked for."""

    def __missing__(self, value: Variable) -> int:
        self[value] = bytes_of(value.type, {})
        return self[value]


class _Seconds(dict[GraphNode, float]):
    """About how long nodes take, found when they are asked for."""

    def __init__(self, rates: Rates) -> None:
        super().__init__()
        self.rates = rates

    def __missing__(self, node: GraphNode) -> float:
        self[node] = _seconds(node, self.rates)
        return self[node]


class _Facts:
    """What is known of a graph without anchors, which all its flows share."""

    def __init__(self, graph: Graph, limits: Limits) -> None:
        nodes = graph.nodes
        self.producer = {v: node for node in nodes for v in node.results}
        self.made = {v: place for place, node in enumerate(nodes) for v in node.results}
        self.shared = {v for node in nodes if shares_memory(node) for v in node.results}
        self.free: set[Atom] = {*graph.inputs, *map(self.owner, graph.outputs)}
        written = why_stored(graph, is_lowered, limits.fusion)
        self.stored = {v for v in written if v in self.producer and v not in self.shared}
        self.sizes, self.seconds = _Sizes(), _Seconds(limits.rates)
        self.safe = max([p for p, node in enumerate(nodes) if _may_fail(node)], default=-1)
        """The last place where something may fail."""

    @cached_property
    def repeatable_nodes(self) -> set[GraphNode]:
        """The nodes that give the same when they are done again, and have no other effect."""
        return {
            node
            for node in self.producer.values()
            if node.primitive is barrier
            or (is_pure(node) and (bool(graphs_of(node)) or not _may_fail(node)))
        }

    def owner(self, atom: Atom) -> Atom:
        """What holds the memory of an atom."""
        while isinstance(atom, Variable) and atom in self.shared:
            atom = self.producer[atom].operands[0]
        return atom


class Flow:
    """The values of an optimised graph that lie in memory, in the order of its nodes.

    Inputs, constants and outputs are there all the time, and cost nothing. Reshapes and barriers
    share the memory of what they read. `anchors` are written to memory too, so that others can be
    computed again from them; with `start` the peak is not looked for, but known; a flow that is
    `like` another of the same graph without anchors is made sooner.
    """

    def __init__(
        self,
        graph: Graph,
        limits: Limits,
        anchors: frozenset[Variable] = frozenset(),
        start: int | None = None,
        like: Flow | None = None,
    ) -> None:
        self.graph, self.limits, self.anchors = graph, limits, anchors
        self._facts: _Facts = _Facts(graph, limits) if like is None else like._facts
        self.producer, self.shared = self._facts.producer, self._facts.shared
        self.free = self._facts.free
        self.made = dict(self._facts.made)
        self.stored = self._facts.stored | anchors
        sizes = self._facts.sizes
        self.bytes = {v: 0 if v in self.free else sizes[v] for v in self.stored}
        self._reads: dict[Variable, tuple[Variable, ...]] = {} if like is None else {**like._reads}
        self._places: dict[int, tuple[int, tuple[Variable, ...]]] = {}
        self.readers = self._readers(like)
        live = self._curve(self._live_ranges()) or [0]
        self.start = live.index(max(live)) if start is None else start
        self.hill = _hill(live, self.start)
        self.others = max([*live[: self.hill.start], *live[self.hill.stop :]], default=0)
        """The most bytes that live at once outside of the hill that is looked at."""

    def _readers(self, like: Flow | None) -> list[tuple[int, tuple[Variable, ...]]]:
        """For each node that writes memory, in order, its place and the stored values it reads.

        Where the flow is like another but for its anchors, only what depends on them is looked at.
        """
        touched: set[Variable] = set(self.anchors)
        self._places = {} if like is None else {**like._places}
        for place, node in enumerate(self.graph.nodes):
            if like is not None and touched.isdisjoint(node.operands):
                if not touched.isdisjoint(node.results):
                    self._places[place] = place, self._reads[node.results[0]]
                continue
            reads = tuple(
                dict.fromkeys([v for atom in node.operands for v in self.stored_reads(atom)])
            )
            self._reads.update(dict.fromkeys(node.results, reads))
            if self.stored.isdisjoint(node.results):
                touched.update(node.results)
            else:
                self._places[place] = self._place_done(place, node, reads), reads
        return sorted(self._places.values(), key=lambda each: each[0])

    def _place_done(self, place: int, node: GraphNode, reads: tuple[Variable, ...]) -> int:
        """Where a node is done.

        An update of state, which makes outputs alone, is done as soon as what it reads is there,
        but not before anything that may fail: it could not be written over the state then.
        """
        if self.free.issuperset(node.results) and is_pure(node):
            ready = max([self.made[v] for v in reads], default=place)
            place = ready if ready > self._facts.safe else place
            self.made.update(dict.fromkeys(node.results, place))
        return place

    def stored_reads(self, atom: Atom) -> Iterable[Variable]:
        """The stored values that are read where an atom is needed."""
        if not isinstance(atom, Variable) or atom not in self.producer:
            return ()
        return (atom,) if atom in self.stored else self._reads[atom]

    def _live_ranges(self) -> list[tuple[int, int, int]]:
        """From where to where each stored value lives, and its bytes."""
        last = {v: self.made[v] for v in self.stored}
        for place, reads in self.readers:
            last.update(dict.fromkeys(reads, place))
        return [(self.made[v], end, self.bytes[v]) for v, end in last.items()]

    def _curve(self, lives: Iterable[tuple[int, int, int]]) -> list[int]:
        """The bytes that live at each node."""
        changes = [0] * (len(self.graph.nodes) + 1)
        for first, last, size in lives:
            changes[first] += size
            changes[last + 1] -= size
        return list(accumulate(changes))[:-1]

    # --- what may be dropped -----------------------------------------------------------------

    @cached_property
    def stored_before_peak(self) -> list[Variable]:
        """The stored values from before the peak, in order."""
        nodes = self.graph.nodes[: self.start]
        return [v for node in nodes for v in node.results if v in self.stored]

    @cached_property
    def needed_late(self) -> set[Variable]:
        """Those of them that something behind the peak reads."""
        late = {v for place, reads in self.readers if place >= self.start for v in reads}
        return {v for v in self.stored_before_peak if v in late and v not in self.free}

    @cached_property
    def candidates(self) -> list[Variable]:
        """Those from the way up to the peak that can be computed again."""
        near = [
            v
            for v in self.stored_before_peak
            if self.made[v] >= self.hill.start and v not in self.free
        ]
        return [v for v in near if self._repeats(v)]

    def _repeats(self, value: Variable) -> bool:
        """Whether a value comes out the same when it is computed again, with no other effect.

        What may fail is not: no state could be written over before it. Loops are, as they are worth
        that, and the plan shows what it costs.
        """
        return self._facts.repeatable_nodes.issuperset(self.expression(value))

    def expression(self, value: Variable) -> list[GraphNode]:
        """The nodes that make a stored value from other stored values."""
        found: dict[GraphNode, None] = {}
        stack: list[Atom] = [value]
        while stack:
            atom = stack.pop()
            node = self.producer.get(atom) if isinstance(atom, Variable) else None
            if node is None or node in found or (atom in self.stored and atom is not value):
                continue
            found[node] = None
            stack.extend(node.operands)
        return list(found)

    def sources(self, value: Variable) -> tuple[Variable, ...]:
        """The stored values that a stored value is made from."""
        return self._reads[value]

    @cached_property
    def costs(self) -> dict[Variable, float]:
        """About how many seconds it takes to compute each candidate again."""
        return {v: self._cost(v) for v in self.candidates}

    def _cost(self, value: Variable) -> float:
        sizes, seconds = self._facts.sizes, self._facts.seconds
        moved = sum([sizes[v] for v in (value, *self._reads[value])])
        return moved / self.limits.rates.memory_bytes + sum(
            [seconds[node] for node in self.expression(value)]
        )

    # --- what dropping does ------------------------------------------------------------------

    def weigh(self, dropped: frozenset[Variable]) -> Weight:
        """What memory and time become if some values are dropped, on the hill of the peak."""
        again = _Again(self, dropped)
        last, lives = again.last, again.clones
        curve = self._curve(
            [
                *[(self.made[v], end, self.bytes[v]) for v, end in last.items()],
                *[(first, end, self.bytes[v]) for v, (first, end) in lives.items()],
            ]
        )
        peak = max(curve[self.hill.start : self.hill.stop], default=0)
        return Weight(self, dropped, peak, sum(self.costs[v] for v in lives))

    # --- cuts --------------------------------------------------------------------------------

    @cached_property
    def _carried_ranges(self) -> dict[Variable, tuple[int, int]]:
        """Where the values are made that nodes before the peak make, and where they read them last.

        Values that are not written to memory are among them, as they could be.
        """
        found: dict[Variable, tuple[int, int]] = {}
        for place, node in enumerate(self.graph.nodes[: self.start]):
            for atom in node.operands:
                owner = self._facts.owner(atom)
                if isinstance(owner, Variable) and owner in found:
                    found[owner] = found[owner][0], place
            if node.operands and not shares_memory(node):
                found.update(dict.fromkeys(node.results, (place, place)))
        return {v: life for v, life in found.items() if v not in self.free}

    def carried_over(self, place: int) -> list[Variable]:
        """The values that nodes before the peak carry over a place, in order."""
        return [v for v, (first, last) in self._carried_ranges.items() if first <= place < last]

    @cached_property
    def widths(self) -> list[int]:
        """The bytes that are carried over each place before the peak."""
        sizes = self._facts.sizes
        lives = [(a, b - 1, sizes[v]) for v, (a, b) in self._carried_ranges.items() if b > a]
        return self._curve(lives)

    def anchor_places(self, places: Iterable[int]) -> tuple[Flow, set[Variable]]:
        """The flow in which all that is carried over some places is stored, and those values."""
        kept = {value for place in places for value in self.carried_over(place)}
        anchors = frozenset(kept - self.stored)
        return Flow(self.graph, self.limits, anchors, self.start, self), kept


def _hill(live: Sequence[int], top: int) -> range:
    """The places around the top, down to valleys behind which it goes up again to twice as much."""
    down, up = _valley(live, range(top, -1, -1)), _valley(live, range(top, len(live)))
    return range(0 if down is None else down, len(live) if up is None else up + 1)


def _valley(live: Sequence[int], way: range) -> int | None:
    lowest: int | None = None
    for place in way:
        if lowest is None or live[place] < live[lowest]:
            lowest = place
        elif live[place] > 2 * live[lowest] + live[way[0]] // 4:
            return lowest
    return None


def _seconds(node: GraphNode, rates: Rates) -> float:
    """About how long a node takes on one core, beside reading and writing memory."""
    kind, count = node.primitive.kind, operations(node, {})
    if isinstance(kind, Contraction) and kind.form == "attention":
        return count / rates.attention_operations / (2 if node.params.get("causal") else 1)
    if graphs_of(node):
        inside = flops(Graph((), (node,), ()))
        return (rates.loop_operations + inside) / rates.product_operations
    is_dear = node.primitive.is_dear
    return count / (rates.product_operations if is_dear else rates.element_operations)


def _may_fail(node: GraphNode) -> bool:
    """Whether a node is called in a way that can end in an error."""
    kind = node.primitive.kind
    if isinstance(kind, Gather | Scatter):
        return kind.checked
    return isinstance(kind, Control | Effect | Collective | Opaque) or bool(graphs_of(node))


class _Again:
    """How long values live, and copies of dropped ones, if some are dropped."""

    def __init__(self, flow: Flow, dropped: frozenset[Variable]) -> None:
        self.flow, self.dropped = flow, dropped
        self.last = {v: flow.made[v] for v in flow.stored}
        self.clones: dict[Variable, tuple[int, int]] = {}
        for place, reads in flow.readers:
            if place < flow.start:
                self.last.update(dict.fromkeys(reads, place))
            else:
                self._read_behind_peak(place, reads)

    def _read_behind_peak(self, place: int, reads: Iterable[Variable]) -> None:
        """A node behind the peak reads values: dropped ones are computed again, if they are not."""
        stack = list(reads)
        while stack:
            value = stack.pop()
            if value not in self.dropped:
                self.last[value] = place
            elif value in self.clones:
                self.clones[value] = self.clones[value][0], place
            else:
                self.clones[value] = place, place
                stack.extend(self.flow.sources(value))


# --- rewriting -----------------------------------------------------------------------------------


def release_products(flow: Flow) -> Graph:
    """The graph in which updates that have to wait do not let their products wait with them.

    A product and the update that it is for are one row fusion, which holds what the product reads.
    Where the update cannot be done at once, a barrier between them keeps only the product's result.
    """
    late: dict[Variable, int] = {}
    others: set[Variable] = set(flow.free)  # type: ignore[arg-type]
    for place, reads in flow.readers:
        late.update(dict.fromkeys(reads, place))
    for node in flow.graph.nodes:
        if not (flow.stored.isdisjoint(node.results) or flow.free.issuperset(node.results)):
            others.update(v for atom in node.operands for v in flow.stored_reads(atom))
    waiting = {
        v
        for v in flow.stored - others
        if isinstance(flow.producer[v].primitive.kind, Contraction)
        and late.get(v, 0) > flow.made[v] + WAIT
    }
    return _fence_values(flow.graph, waiting) if waiting else flow.graph


def with_early_updates(flow: Flow) -> Graph:
    """The graph with updates of state as early as they are done, so that nothing waits for them.

    With an update come the nodes that are part of it, as they are not written to memory.
    """
    nodes = flow.graph.nodes
    keys = list(range(len(nodes)))
    wanted: dict[Atom, int] = {}
    for place in range(len(nodes) - 1, -1, -1):
        node = nodes[place]
        if flow.stored.isdisjoint(node.results):
            keys[place] = min([place, *[wanted.get(v, place) for v in node.results]])
        elif flow.free.issuperset(node.results) and is_pure(node):
            keys[place] = min(place, flow.made[node.results[0]])
        if keys[place] < place:
            for atom in node.operands:
                if isinstance(atom, Variable):
                    wanted[atom] = min(wanted.get(atom, place), keys[place])
    if keys == list(range(len(nodes))):
        return flow.graph
    order = sorted(range(len(nodes)), key=lambda place: (keys[place], place))
    ordered = tuple(nodes[place] for place in order)
    return Graph(flow.graph.inputs, ordered, flow.graph.outputs, flow.graph.name)


def _fence_values(graph: Graph, values: set[Variable]) -> Graph:
    """The graph with a barrier between some values and all that read them."""
    renamed: dict[Atom, Variable] = {}
    nodes: list[GraphNode] = []
    for node in graph.nodes:
        if not renamed.keys().isdisjoint(node.operands):
            operands = tuple(renamed.get(atom, atom) for atom in node.operands)
            node = replace_node(node, operands=operands)
        nodes.append(node)
        for value in [result for result in node.results if result in values]:
            renamed[value] = Variable(value.type, value.name)
            nodes.append(GraphNode(barrier, (value,), {}, (renamed[value],), node.location))
    return Graph(graph.inputs, tuple(nodes), graph.outputs, graph.name)


def with_recomputation(flow: Flow, dropped: frozenset[Variable]) -> Graph:
    """The graph in which dropped values are computed again behind the peak.

    What they are computed from stands behind a barrier, made where the second computation is: so
    equal computations are not merged, and nothing is computed before it is needed.
    """
    return _Rewriting(flow, dropped).run()


class _Rewriting:
    """The state of rewriting one graph."""

    def __init__(self, flow: Flow, dropped: frozenset[Variable]) -> None:
        self.flow, self.dropped = flow, dropped
        self.nodes: list[GraphNode] = []
        self.clones: dict[Atom, Variable] = {}
        self.fences: dict[Atom, Variable] = {}
        self.affected = self._affected_values()

    def _affected_values(self) -> set[Variable]:
        """What is not there behind the peak: dropped values, and expressions that read them."""
        found: set[Variable] = set()
        for node in self.flow.graph.nodes[: self.flow.start]:
            for result in node.results:
                stored = result in self.flow.stored
                if result in self.dropped or (not stored and not found.isdisjoint(node.operands)):
                    found.add(result)
        return found

    def run(self) -> Graph:
        graph, start = self.flow.graph, self.flow.start
        self.nodes = list(graph.nodes[:start])
        for node in graph.nodes[start:]:
            if not self.affected.isdisjoint(node.operands):
                self._compute_again(node)
                operands = tuple(self.clones.get(atom, atom) for atom in node.operands)
                node = replace_node(node, operands=operands)
            self.nodes.append(node)
        return Graph(graph.inputs, tuple(self.nodes), graph.outputs, graph.name)

    def _compute_again(self, node: GraphNode) -> None:
        """Put before a node what it needs and is not there, in the order of the first time."""
        wanted: dict[GraphNode, None] = {}
        stack: list[Atom] = [atom for atom in node.operands if atom in self.affected]
        while stack:
            atom = stack.pop()
            if atom in self.clones or self._is_there(atom):
                continue
            assert isinstance(atom, Variable)
            made = self.flow.producer[atom]
            if made not in wanted:
                wanted[made] = None
                stack.extend(made.operands)
        self.fences = {}
        for each in sorted(wanted, key=lambda n: self.flow.made[n.results[0]]):
            self._clone(each)

    def _is_there(self, atom: Atom) -> bool:
        """Whether a second computation can read an atom: it is kept, or was never computed."""
        if isinstance(atom, Literal) or atom not in self.flow.producer:
            return True
        return atom in self.flow.stored and atom not in self.dropped

    def _clone(self, node: GraphNode) -> None:
        operands = tuple(self._operand(atom) for atom in node.operands)
        results = tuple(Variable(v.type, v.name) for v in node.results)
        self.nodes.append(replace_node(node, operands=operands, results=results))
        pairs = zip(node.results, results, strict=True)
        self.clones.update((old, new) for old, new in pairs if not self._is_there(old))

    def _operand(self, atom: Atom) -> Atom:
        if isinstance(atom, Literal):
            return atom
        return self.clones[atom] if atom in self.clones else self._fence(atom)

    def _fence(self, value: Variable) -> Variable:
        """A kept value behind a barrier of this place."""
        if value not in self.fences:
            self.fences[value] = Variable(value.type, value.name)
            at = self.flow.producer[value].location if value in self.flow.producer else None
            node = GraphNode(barrier, (value,), {}, (self.fences[value],), at)
            self.nodes.append(node)
        return self.fences[value]


def values_again(flow: Flow, dropped: frozenset[Variable]) -> Iterator[Variable]:
    """The values that are computed again, in order."""
    again = _Again(flow, dropped).clones
    yield from sorted(again, key=lambda value: again[value][0])
