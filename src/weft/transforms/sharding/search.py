"""The choice of a strategy for each node of a graph, along one mesh axis.

The seconds of a choice are those of the nodes and of all changes of placement between them. First,
tables say for each value what it costs to have it in each placement, as if the graph were a tree;
from the outputs backward each node takes what is best by these tables for its readers. A second
start goes forward and takes what is best given the nodes before. From both, nodes are looked at
again, backward and forward, given what is before and behind them, while a change of one node, or
of element-wise nodes that hang together, helps. So placements spread in both directions from those
that are given. The better result is as good as any that is one such change away; it need not be the
best of all. All processes search alike: what is added up is added in the order of the graph, never
in that of a set, whose rounding would differ from process to process.

>>> import weft as wf
>>> from weft.ir.sharding import Split
>>> from weft.transforms.sharding.costs import Costs
>>> graph = wf.ir.trace(lambda x: wf.exp(x) * 2.0, wf.spec("float32", (4, 3)))
>>> search = Search(graph, Along("data", 2, Costs()), [Split(0)], [None])
>>> search.placed[graph.outputs[0]]
Split(axis=0)
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from math import inf
from typing import Any, TypeAlias

from weft.core.errors import ShapeError
from weft.core.records import frozen
from weft.ir.graph import Atom, Graph, GraphNode, Variable
from weft.ir.kinds import Control, Elementwise
from weft.ir.primitive import Primitive
from weft.ir.sharding import REPLICATED, Partial, Placement, Split, Strategy, local_type
from weft.ir.walking import graphs_of
from weft.ops.sharding_mark import placement_along, shard_mark
from weft.transforms.sharding.costs import (
    Costs,
    bytes_moved,
    conversions,
    seconds_of_conversions,
)
from weft.transforms.sharding.strategies import strategies_of, whole_strategy

ROUNDS = 12
"""How often the nodes are looked at again, at most."""
REGION = 100
"""The most nodes that are moved together."""
_SLIGHT = 1e-6
"""By which part of the seconds a change of placement counts for more on one side of a node."""
Wants: TypeAlias = "Counter[Placement]"


@frozen
class Along:
    """One axis of a mesh: its name, how many devices it has, and what work and transfers cost."""

    name: str
    count: int
    costs: Costs


@frozen
class Candidate:
    """A strategy of a node, and the seconds that a device computes by it.

    graphs: of control flow, the searches of its graphs by parameter: one, or a tuple of them.
    """

    strategy: Strategy
    seconds: float
    graphs: Mapping[str, Any] | None = None


class Search:
    """The chosen strategies of a graph, and the placements of its values.

    inputs, outputs: their placements. An input without one is placed as its readers like it, an
    output is left as it comes, but never partial.
    """

    def __init__(
        self,
        graph: Graph,
        along: Along,
        inputs: Sequence[Placement | None],
        outputs: Sequence[Placement | None],
    ) -> None:
        self.graph, self.along = graph, along
        self._outputs = outputs
        self._candidates: dict[Any, list[Candidate]] = {}
        self.placed: dict[Variable, Placement] = {}
        self.chosen: dict[GraphNode, Candidate] = {}
        self._wanted: dict[Variable, Wants] = {}
        self._bias = 0.0
        self._makers = {result: node for node in graph.nodes for result in node.results}
        self._readers: dict[Atom, list[GraphNode]] = {}
        for node in graph.nodes:
            for atom in dict.fromkeys(node.operands):
                self._readers.setdefault(atom, []).append(node)
        self._best: tuple[float, Any] = (inf, ({}, {}, {}))
        for choose_first in (self._choose_by_tables, self._choose_forward):
            self._start(inputs, choose_first)
        self.placed, self.chosen, self._wanted = self._best[1]

    def _start(self, inputs: Sequence[Placement | None], choose_first: Callable[[], None]) -> None:
        """Search from one start."""
        graph = self.graph
        self.placed, self.chosen, self._wanted = {}, {}, {}
        self._open: set[Atom] = set()
        self._free: list[Variable] = []
        for variable, placement in zip(graph.inputs, inputs, strict=True):
            self._declare(variable, placement or REPLICATED)
            self._free += [variable] if placement is None else []
        for node in graph.nodes:
            for result in node.results:
                self._declare(result, REPLICATED)
        for atom, placement in zip(graph.outputs, self._outputs, strict=True):
            if placement is None:
                self._open.add(atom)
            elif isinstance(atom, Variable):
                self._wanted[atom][placement] += 1
        choose_first()
        self._improve()

    @property
    def seconds(self) -> float:
        """The seconds of one device's program: computing and changing placements."""
        computed = sum(candidate.seconds for candidate in self.chosen.values())
        return computed + sum(map(self._seconds_of_value, self.placed))

    def changes(self, variable: Variable) -> list[tuple[Placement, Placement]]:
        """The changes of placement that give a value's readers what they want."""
        source, wanted = self.placed[variable], list(self._wanted[variable])
        if variable in self._open and isinstance(source, Partial):
            wanted.append(REPLICATED)
        return conversions(variable.type, source, wanted, self.along.count)

    def placement_of(self, atom: Atom) -> Placement:
        """How an atom is placed where it is made; a constant is replicated."""
        return self.placed[atom] if isinstance(atom, Variable) else REPLICATED

    def output_placement(self, place: int) -> Placement:
        """How an output is handed on."""
        asked = self._outputs[place]
        found = self.placement_of(self.graph.outputs[place])
        if asked is not None:
            return asked
        return REPLICATED if isinstance(found, Partial) else found

    # --- the search ---

    def _declare(self, variable: Variable, placement: Placement) -> None:
        self.placed[variable] = placement
        self._wanted[variable] = Counter()

    def _choose_forward(self) -> None:
        """One way forward: each node as it is best for its operands."""
        for node in self.graph.nodes:
            self._choose(node)

    def _choose_by_tables(self) -> None:
        """One way forward for what placements cost, one back that chooses by it."""
        readers: Counter[Atom] = Counter(self.graph.outputs)
        for node in self.graph.nodes:
            readers.update(set(node.operands))
        tables = {variable: self._table_of_input(variable) for variable in self.graph.inputs}
        for node in self.graph.nodes:
            seconds = [
                (each, each.seconds + self._seconds_above(node, each, tables, readers))
                for each in self.candidates(node)
            ]
            for place, result in enumerate(node.results):
                table = tables[result] = {}
                for candidate, total in seconds:
                    placement = candidate.strategy.results[place]
                    share = total / len(node.results)
                    table[placement] = min(share, table.get(placement, inf))
                self.placed[result] = min(table, key=table.__getitem__)
        for node in reversed(self.graph.nodes):
            candidates = self.candidates(node)
            totals = [
                each.seconds
                + self._seconds_above(node, each, tables, readers)
                + self._seconds_below(node, each)
                for each in candidates
            ]
            best = candidates[totals.index(min(totals))]
            self.chosen[node] = best
            self._count_wants(node, best.strategy, 1)
            self._place_results(node, best.strategy)
        for variable in self._free:
            self._place_input(variable)

    def _table_of_input(self, variable: Variable) -> dict[Placement, float]:
        if variable not in self._free:
            return {self.placed[variable]: 0.0}
        splits = [Split(axis) for axis in range(variable.type.ndim)]
        count = self.along.count
        fitting = [each for each in splits if local_type(variable.type, each, count) is not None]
        return dict.fromkeys([REPLICATED, *fitting], 0.0)

    def _seconds_above(
        self,
        node: GraphNode,
        candidate: Candidate,
        tables: Mapping[Variable, Mapping[Placement, float]],
        readers: Mapping[Atom, int],
    ) -> float:
        """What it costs to have a node's operands as a strategy wants them.

        A value that has several readers is made once: each counts a share. A placement that a
        reader asks for already costs the others nothing.
        """
        total, along = 0.0, self.along
        wanted = zip(node.operands, candidate.strategy.operands, strict=True)
        for atom, placement in dict.fromkeys(wanted):
            if not isinstance(atom, Variable):
                continue
            share, is_paid = 1 / max(readers[atom], 1), placement in self._wanted[atom]
            total += min(
                seconds * share + (0.0 if is_paid else along.costs.transfer(
                    bytes_moved(atom.type, source, placement, along.count)
                ))
                for source, seconds in tables[atom].items()
            )  # fmt: skip
        return total

    def _seconds_below(self, node: GraphNode, candidate: Candidate) -> float:
        self._place_results(node, candidate.strategy)
        return sum(map(self._seconds_of_value, node.results))

    def _improve(self) -> None:
        """Look at all nodes again, against and along the order, while that helps.

        Against the order, changes of placement are moved up to where values come from; along it,
        down to where they are read: a step that costs the same may lead to one that helps.
        """
        nodes = self.graph.nodes
        for number in range(ROUNDS):
            self._bias = _SLIGHT if number % 2 else -_SLIGHT
            changed = [self._choose(node) for node in (nodes if number % 2 else reversed(nodes))]
            changed += [self._place_input(variable) for variable in self._free]
            changed += self._move_regions()
            improved = self._keep_best()
            if not any(changed) or (number > 2 and not improved):
                break
        self._bias = 0.0

    def _keep_best(self) -> bool:
        """Remember the choice if it is the best so far; whether it is."""
        seconds = self.seconds
        if seconds >= self._best[0]:
            return False
        wanted = {variable: wants.copy() for variable, wants in self._wanted.items()}
        self._best = seconds, (self.placed.copy(), self.chosen.copy(), wanted)
        return True

    def _choose(self, node: GraphNode) -> bool:
        """Take the best strategy for a node as things are; whether it is another one."""
        before = self.chosen.get(node)
        if before is not None:
            self._count_wants(node, before.strategy, -1)
        candidates = self.candidates(node)
        if before is not None and before not in candidates:
            candidates = [before, *candidates]
        seconds = [self._seconds_with(node, each) for each in candidates]
        best = min(range(len(candidates)), key=seconds.__getitem__)
        if before is not None and seconds[best] >= seconds[candidates.index(before)]:
            best = candidates.index(before)
        self.chosen[node] = candidates[best]
        self._count_wants(node, candidates[best].strategy, 1)
        self._place_results(node, candidates[best].strategy)
        return candidates[best] is not before

    def _move_regions(self) -> list[bool]:
        """Try for element-wise nodes that hang together to place all of their results alike."""
        looked_at: set[GraphNode] = set()
        changed = []
        for variable in list(self.placed):
            if self._seconds_of_value(variable) > 0:
                region = self._region(variable, looked_at)
                looked_at.update(region)
                if region:
                    changed.append(self._move_region(variable, region))
        return changed

    def _region(self, variable: Variable, looked_at: set[GraphNode]) -> list[GraphNode]:
        """Element-wise nodes that lead to each other through values of one shape."""
        waiting, region, shape = [variable], dict[GraphNode, None](), variable.type.shape
        while waiting and len(region) < REGION:
            value = waiting.pop()
            maker = self._makers.get(value)
            for node in [*([] if maker is None else [maker]), *self._readers.get(value, ())]:
                is_alike = isinstance(node.primitive.kind, Elementwise)
                if not is_alike or node in region or node in looked_at:
                    continue
                if node.results[0].type.shape == shape:
                    region[node] = None
                    beside = [v for v in node.operands if isinstance(v, Variable)]
                    waiting += [v for v in (*node.results, *beside) if v.type.shape == shape]
        return list(region)

    def _move_region(self, variable: Variable, region: Sequence[GraphNode]) -> bool:
        touched = dict.fromkeys(r for node in region for r in node.results)
        atoms = [a for node in region for a in node.operands]
        touched.update(dict.fromkeys(a for a in atoms if isinstance(a, Variable)))
        before = [self.chosen[node] for node in region]
        best, least = before, self._seconds_of(region, touched) * (1 - _SLIGHT)
        splits: list[Placement] = [Split(axis) for axis in range(variable.type.ndim)]
        for placement in [REPLICATED, *splits]:
            moved = [self._candidate_giving(node, placement) for node in region]
            self._exchange(region, moved)
            seconds = self._seconds_of(region, touched)
            if seconds < least:
                best, least = moved, seconds
        self._exchange(region, best)
        return best is not before

    def _candidate_giving(self, node: GraphNode, placement: Placement) -> Candidate:
        """The first strategy of a node that gives a placement; the chosen one where none does."""
        candidates = self.candidates(node)
        fitting = (each for each in candidates if each.strategy.results[0] == placement)
        return next(fitting, self.chosen[node])

    def _seconds_of(self, nodes: Sequence[GraphNode], values: Iterable[Variable]) -> float:
        computed = sum(self.chosen[node].seconds for node in nodes)
        return computed + sum(map(self._seconds_of_value, values))

    def _exchange(self, nodes: Sequence[GraphNode], chosen: Sequence[Candidate]) -> None:
        """Take other strategies for nodes."""
        for node, candidate in zip(nodes, chosen, strict=True):
            self._count_wants(node, self.chosen[node].strategy, -1)
            self.chosen[node] = candidate
            self._count_wants(node, candidate.strategy, 1)
            self._place_results(node, candidate.strategy)

    def _seconds_with(self, node: GraphNode, candidate: Candidate) -> float:
        """The seconds of a node by a strategy, with all values that it reads or makes."""
        self._count_wants(node, candidate.strategy, 1)
        self._place_results(node, candidate.strategy)
        read = dict.fromkeys(atom for atom in node.operands if isinstance(atom, Variable))
        above = sum(map(self._seconds_of_value, read))
        below = sum(map(self._seconds_of_value, node.results))
        self._count_wants(node, candidate.strategy, -1)
        return candidate.seconds + above * (1 + self._bias) + below * (1 - self._bias)

    def _count_wants(self, node: GraphNode, strategy: Strategy, by: int) -> None:
        for atom, placement in zip(node.operands, strategy.operands, strict=True):
            if isinstance(atom, Variable):
                wants = self._wanted[atom]
                wants[placement] += by
                if not wants[placement]:
                    del wants[placement]

    def _place_results(self, node: GraphNode, strategy: Strategy) -> None:
        self.placed.update(zip(node.results, strategy.results, strict=True))

    def _seconds_of_value(self, variable: Variable) -> float:
        source, wanted = self.placed[variable], self._wanted[variable]
        is_open = variable in self._open and isinstance(source, Partial)
        if not is_open and (not wanted or (len(wanted) == 1 and source in wanted)):
            return 0.0
        changes = self.changes(variable)
        if not changes:
            return 0.0
        along = self.along
        return seconds_of_conversions(variable.type, changes, along.count, along.costs)

    def _place_input(self, variable: Variable) -> bool:
        """Place an input as its readers like it best; whether that is new."""
        before = self.placed[variable]
        choices = [before, *[p for p in self._wanted[variable] if not isinstance(p, Partial)]]
        seconds = []
        for placement in choices:
            self.placed[variable] = placement
            seconds.append(self._seconds_of_value(variable))
        # of two that cost the same, the one that is split takes less memory
        best = min(range(len(choices)), key=lambda i: (seconds[i], choices[i] == REPLICATED))
        self.placed[variable] = choices[best]
        return self.placed[variable] != before

    # --- candidates ---

    def candidates(self, node: GraphNode) -> list[Candidate]:
        """The strategies of a node; those of control flow depend on how its operands come."""
        if isinstance(node.primitive.kind, Control):
            given = tuple(map(self.placement_of, node.operands))
            return self._remember((node, given), lambda: self._of_control(node, given))
        return self._remember(node, lambda: self._of_node(node))

    def _remember(self, key: Any, make: Callable[[], list[Candidate]]) -> list[Candidate]:
        if key not in self._candidates:
            self._candidates[key] = make()
        return self._candidates[key]

    def _of_node(self, node: GraphNode) -> list[Candidate]:
        along = self.along
        strategies: Iterable[Strategy] = strategies_of(node, along.count)
        if node.primitive is shard_mark:
            asked = placement_along(node.params, along.name)
            if asked is not None:
                _require_division(node, asked, along)
                strategies = [Strategy((asked,), (asked,), is_divided=asked != REPLICATED)]
        return [
            Candidate(each, along.costs.compute(node, each, along.count)) for each in strategies
        ]

    def _of_control(self, node: GraphNode, given: tuple[Placement, ...]) -> list[Candidate]:
        follow = FOLLOW.get(node.primitive)
        divided = [] if follow is None else follow(self, node, given)
        if divided and _holds_mark(node, self.along.name):
            return divided
        return [Candidate(whole_strategy(node), self._whole_seconds(node)), *divided]

    def _whole_seconds(self, node: GraphNode) -> float:
        """The seconds of control flow whose graphs every device runs as they are."""
        inner = [each for graph in graphs_of(node) for each in graph.nodes]
        return sum(map(self._whole_seconds_of_node, inner)) * steps_of(node)

    def _whole_seconds_of_node(self, node: GraphNode) -> float:
        if isinstance(node.primitive.kind, Control):
            return self._whole_seconds(node)
        return self.along.costs.compute(node, whole_strategy(node), 1)


def _require_division(node: GraphNode, asked: Placement, along: Along) -> None:
    """Refuse a mark on an axis that does not divide: elements beyond whole parts would be lost."""
    kind = node.operands[0].type
    if local_type(kind, asked, along.count) is not None:
        return
    assert isinstance(asked, Split)
    size = kind.shape[asked.axis]
    is_known = isinstance(size, int) and size > 0
    raise ShapeError(
        "shard",
        f"axis {asked.axis} does not divide among {along.count} devices",
        expected=f"a multiple of {along.count} along the mesh axis {along.name!r}",
        got={"x": kind, "axes": node.params["axes"]},
        note=f"{size} % {along.count} = {size % along.count}" if is_known else "",
        fix="pad the axis with wf.pad and mask what was added, or leave the axis whole: None",
        at=node.location,
    )


def steps_of(node: GraphNode) -> int:
    """How often the graphs of a node run, as far as that is known."""
    length = node.params.get("length", 1)
    return length if isinstance(length, int) else 1


def _holds_mark(node: GraphNode, mesh_axis: str) -> bool:
    """Whether a mark inside of control flow places a value along a mesh axis."""
    inner = [each for graph in graphs_of(node) for each in graph.nodes]
    return any(
        (each.primitive is shard_mark and placement_along(each.params, mesh_axis) is not None)
        or _holds_mark(each, mesh_axis)
        for each in inner
    )


Follow: TypeAlias = "Callable[[Search, GraphNode, tuple[Placement, ...]], list[Candidate]]"
FOLLOW: dict[Primitive, Follow] = {}
"""How control flow follows the placements of its operands; control.py fills it in."""
