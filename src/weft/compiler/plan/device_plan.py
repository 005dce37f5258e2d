"""A program with parts on several devices: segments of one device each, and transfers between.

Each node is computed where its operands are; `transfer` nodes say where values go. What is made
of no such operand (masks, counts, random bits of the counter) may be anywhere, and is computed by
each segment that reads it. Values have a level: the number of moves before them. All nodes of one
level on one device are one segment, which reads nothing but inputs, lower levels, and itself, so
there are as few segments as moves allow, and those of a level may run beside each other.

>>> import weft as wf
>>> from weft.ops.placement import transfer
>>> move = lambda x: wf.ir.dispatch.apply(transfer, x, device="cuda:0", source="cpu")
>>> graph = wf.ir.trace(lambda x: move(x * 2) + 1, wf.spec("float32", (3,)))
>>> print(device_plan(graph, (CPU,), CPU))
cpu: 1 node
transfer f32[3] from cpu to cuda:0
cuda:0: 1 node
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from weft.compiler.graph_passes.inlining import inline
from weft.core.devices import CPU, Device
from weft.core.records import frozen
from weft.ir.graph import Atom, Graph, GraphNode, Literal, Variable
from weft.ir.kinds import (
    Contraction,
    Cumulative,
    Elementwise,
    Movement,
    Random,
    Reduction,
    Sort,
    Window,
)
from weft.ir.places import TRANSFER, Place, common_place
from weft.ir.walking import Walk, graphs_of, is_pure, replace_node

Places = tuple[Place, ...]
"""Of the inputs of a graph."""
Located = tuple[Atom, Device]
"""A value in the memory of a device."""


def has_transfers(graph: Graph) -> bool:
    """Whether a graph, or one in it, moves values to another device."""
    return any(
        node.primitive.name == TRANSFER or any(map(has_transfers, graphs_of(node)))
        for node in graph.nodes
    )


def spans_devices(graph: Graph, places: Places, device: Device) -> bool:
    """Whether a program that is otherwise for one device has a part on another."""
    return any(place not in (None, device) for place in places) or has_transfers(graph)


def without_transfers(graph: Graph) -> Graph:
    """The graph for one device: what is moved stays where it is."""
    return _Unmoved(graph).run() if has_transfers(graph) else graph


class _Unmoved(Walk):
    def visit(self, node: GraphNode) -> Sequence[Atom] | None:
        return [node.operands[0]] if node.primitive.name == TRANSFER else None


@frozen(eq=False)
class Segment:
    """What is computed on one device in one go: a graph whose values are the whole program's."""

    device: Device
    level: int
    graph: Graph

    def __str__(self) -> str:
        count = len(self.graph.nodes)
        return f"{self.device}: {count} node{'' if count == 1 else 's'}"


@frozen(eq=False)
class Transfer:
    """A value that is copied from the memory of one device to that of another."""

    value: Atom
    source: Device
    device: Device

    def __str__(self) -> str:
        return f"transfer {self.value.type} from {self.source} to {self.device}"


@frozen(eq=False)
class DevicePlan:
    """The steps of a program in order, and where its inputs and outputs are."""

    graph: Graph
    """As recorded."""
    steps: tuple[Segment | Transfer, ...]
    inputs: Places
    outputs: tuple[Located, ...]

    @property
    def segments(self) -> tuple[Segment, ...]:
        """The parts of the program, each on one device."""
        return tuple(step for step in self.steps if isinstance(step, Segment))

    @property
    def transfers(self) -> tuple[Transfer, ...]:
        """What is moved between devices."""
        return tuple(step for step in self.steps if isinstance(step, Transfer))

    def __str__(self) -> str:
        return "\n".join(map(str, self.steps))


def device_plan(graph: Graph, places: Places, device: Device) -> DevicePlan:
    """Divide a graph, given where its inputs are.

    What may be anywhere is returned on `device`; single numbers, which fit beside any, on the host.
    """
    graph = inline(graph)
    division = _Division(graph, places, device)
    segments = division.segments()
    steps: list[Segment | Transfer] = []
    for level in sorted({segment.level for segment in segments}):
        here = [segment for segment in segments if segment.level == level]
        for segment in here:
            steps += division.moves_to(segment.device, segment.graph.inputs)
        # launches on a card do not wait: the host computes beside them
        steps += sorted(here, key=lambda segment: segment.device is CPU)
    for value, place in division.outputs:
        steps += division.moves_to(place, [value])
    return DevicePlan(graph, tuple(steps), places, division.outputs)


class _Division:
    """Where each value of a graph is computed, and at which level."""

    def __init__(self, graph: Graph, places: Places, device: Device) -> None:
        self.graph, self.default = graph, device
        self._roots: dict[Variable, Atom] = {}
        """For what a transfer gives: the value whose elements it has."""
        self._place: dict[Variable, Place] = dict(zip(graph.inputs, places, strict=True))
        self._level: dict[Variable, int] = dict.fromkeys(graph.inputs, 0)
        self._maker: dict[Variable, GraphNode] = {}
        self._segment_nodes: dict[tuple[int, Device], list[GraphNode]] = {}
        self._moved: set[Located] = set()
        self._effects = 0
        """The level of the last node that is seen from outside: their order stays."""
        for node in graph.nodes:
            self._add(node)
        self.outputs = tuple([self._output(atom) for atom in graph.outputs])
        for value, place in self.outputs:
            if self._is_floating(value):
                self._have_part(place)

    def root(self, atom: Atom) -> Atom:
        """The value whose elements an operand has, before all moves."""
        return self._roots.get(atom, atom) if isinstance(atom, Variable) else atom

    def _output(self, atom: Atom) -> Located:
        place = self._place[atom] if isinstance(atom, Variable) else None
        return self.root(atom), place or (self.default if atom.type.shape else CPU)

    def _is_floating(self, value: Atom) -> bool:
        """Whether a value is computed where it is read."""
        return value in self._maker and self._place[value] is None

    def _have_part(self, device: Device) -> None:
        """See to it that something is computed on a device: it will return more."""
        if all(place is not device for _, place in self._segment_nodes):
            self._segment_nodes[0, device] = []

    def _add(self, node: GraphNode) -> None:
        if node.primitive.name == TRANSFER:
            (operand,), (result,) = node.operands, node.results
            self._roots[result] = self.root(operand)
            self._place[result] = Device(node.params["device"])
            self._level[result] = 0  # see `_level_at`
            return
        place = self._place_of(node)
        if place is None and not is_pure(node):
            place = self.default
        for result in node.results:
            self._place[result], self._maker[result] = place, node
        if place is None:
            self._level.update(dict.fromkeys(node.results, 0))
            return
        level = max([self._level_at(atom, place) for atom in node.operands], default=0)
        if not is_pure(node):
            level = self._effects = max(level, self._effects)
        self._level.update(dict.fromkeys(node.results, level))
        self._segment_nodes.setdefault((level, place), []).append(node)

    def _place_of(self, node: GraphNode) -> Place:
        """The device of a node's operands."""
        places = [self._place[a] if isinstance(a, Variable) else None for a in node.operands]
        return common_place(node.primitive.name, node.operands, places)

    def _level_at(self, atom: Atom, device: Device) -> int:
        """The first level at which a device may read a value."""
        root = self.root(atom)
        if isinstance(root, Literal):
            return 0
        home = self._place[root]
        return self._level[root] + (home is not None and home is not device)

    def segments(self) -> list[Segment]:
        """The parts, by level; each with what may be anywhere and is read there."""
        order = {node: number for number, node in enumerate(self.graph.nodes)}
        parts: list[tuple[int, Device, list[GraphNode]]] = []
        for (level, device), own in sorted(self._segment_nodes.items(), key=lambda x: x[0][0]):
            wanted = [atom for node in own for atom in node.operands]
            wanted += [each[0] for each in self._floating_outputs(level, device)]
            nodes = sorted([*own, *self._floating_behind(wanted)], key=order.__getitem__)
            parts.append((level, device, nodes))
        read = self._read_outside(parts)
        return [self._segment(level, device, nodes, read) for level, device, nodes in parts]

    def _floating_outputs(self, level: int, device: Device) -> list[Located]:
        """The outputs that may be computed anywhere, and are computed in a part."""
        first = min(each for each, place in self._segment_nodes if place is device)
        return [
            each
            for each in self.outputs
            if level == first and each[1] is device and self._is_floating(each[0])
        ]

    def _floating_behind(self, atoms: Sequence[Atom]) -> list[GraphNode]:
        """The nodes that compute values which may be anywhere."""
        stack, found = [self.root(atom) for atom in atoms], dict[GraphNode, None]()
        while stack:
            atom = stack.pop()
            node = self._maker.get(atom) if isinstance(atom, Variable) else None
            if node is not None and self._is_floating(node.results[0]) and node not in found:
                found[node] = None
                stack += [self.root(operand) for operand in node.operands]
        return [*found]

    def _read_outside(
        self, parts: Sequence[tuple[int, Device, list[GraphNode]]]
    ) -> Mapping[Atom, int]:
        """How many parts read each value, and one more where it is an output."""
        count: dict[Atom, int] = {}
        for _, _, nodes in parts:
            for atom in {self.root(atom) for node in nodes for atom in node.operands}:
                count[atom] = count.get(atom, 0) + 1
        for value, _ in self.outputs:
            count[value] = count.get(value, 0) + 2  # nobody else need read it
        return count

    def _segment(
        self, level: int, device: Device, nodes: list[GraphNode], read: Mapping[Atom, int]
    ) -> Segment:
        renamed = [
            replace_node(node, operands=tuple(map(self.root, node.operands))) for node in nodes
        ]
        made = {result for node in nodes for result in node.results}
        operands = dict.fromkeys(atom for node in renamed for atom in node.operands)
        inputs = tuple(a for a in operands if isinstance(a, Variable) and a not in made)
        returned = {each[0] for each in self._floating_outputs(level, device)}
        outputs = tuple(
            result
            for node in renamed
            for result in node.results
            if result in returned
            or (self._place[result] is not None and read.get(result, 0) > (result in operands))
        )
        return Segment(device, level, Graph(inputs, tuple(renamed), outputs))

    def moves_to(self, device: Device, values: Sequence[Atom]) -> list[Transfer]:
        """What has to be moved before a device has some values, and was not moved yet."""
        found: list[Transfer] = []
        for value in values:
            home = self._place[value] if isinstance(value, Variable) else None
            if home is None or home is device or (value, device) in self._moved:
                continue
            self._moved.add((value, device))
            found.append(Transfer(value, home, device))
        return found


_SURE = (Elementwise, Movement, Reduction, Contraction, Window, Cumulative, Sort, Random)
"""Kinds of primitives that look at no indices, so that they end without an error."""


def may_fail(graph: Graph) -> bool:
    """Whether a run of a graph may end with an error: it looks at indices, or does more."""
    return not all(isinstance(node.primitive.kind, _SURE) and is_pure(node) for node in graph.nodes)
