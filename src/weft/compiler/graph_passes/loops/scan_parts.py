"""A scan, taken apart: its inputs with their operands, its nodes, its outputs, to be changed.

>>> import weft as wf
>>> f = lambda h, xs: wf.scan(lambda h, x: (h * x, h), h, xs)
>>> loop = Loop.from_scan(wf.ir.trace(f, wf.spec("float32", ()), wf.spec("float32", (5,))).nodes[0])
>>> len(loop.consts), len(loop.carry), len(loop.xs), len(loop.ys), loop.length
(0, 1, 1, 1, 5)
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from weft.core.shapes import Dimension
from weft.core.types import TensorType
from weft.ir.graph import Atom, Graph, GraphNode, Variable
from weft.ir.kinds import Movement, Reduction
from weft.ir.walking import Walk, is_pure
from weft.ops.contraction import dot
from weft.ops.control_loop import scan

__all__ = ["Carry", "Loop", "is_movable", "is_movement", "needed_nodes"]


@dataclass(slots=True)
class Carry:
    """A value that goes from step to step: as a step gets it, at the start, as a step leaves it."""

    variable: Variable
    start: Atom
    end: Atom


@dataclass(slots=True)
class Loop:
    """A scan whose parts can be changed: inputs with their operands, nodes, and outputs."""

    node: GraphNode
    consts: list[tuple[Variable, Atom]]
    carry: list[Carry]
    xs: list[tuple[Variable, Atom]]
    nodes: list[GraphNode]
    ys: list[Atom]
    makers: dict[Variable, GraphNode] = field(init=False)
    uses: Counter[Atom] = field(init=False)

    @classmethod
    def from_scan(cls, node: GraphNode) -> Loop:
        """The parts of a scan."""
        graph: Graph = node.params["graph"]
        consts, count = node.params["num_consts"], node.params["num_carry"]
        pairs = list(zip(graph.inputs, node.operands, strict=True))
        held = zip(pairs[consts : consts + count], graph.outputs, strict=False)
        carry = [Carry(variable, start, end) for (variable, start), end in held]
        xs, ys = pairs[consts + count :], list(graph.outputs[count:])
        return cls(node, pairs[:consts], carry, xs, list(graph.nodes), ys)

    def __post_init__(self) -> None:
        self.makers = {result: node for node in self.nodes for result in node.results}
        read = [atom for node in self.nodes for atom in node.operands]
        self.uses = Counter([*read, *[each.end for each in self.carry], *self.ys])

    @property
    def length(self) -> Dimension:
        """How many steps there are."""
        return self.node.params["length"]  # type: ignore[no-any-return]

    def rebuild_scan(self) -> GraphNode:
        """The scan of the parts as they are now, without what nothing needs."""
        outputs = (*[each.end for each in self.carry], *self.ys)
        inputs = (
            *[variable for variable, _ in self.consts],
            *[each.variable for each in self.carry],
            *[variable for variable, _ in self.xs],
        )
        operands = (
            *[operand for _, operand in self.consts],
            *[each.start for each in self.carry],
            *[operand for _, operand in self.xs],
        )
        given = set(inputs)
        nodes = [node for node in self.nodes if given.isdisjoint(node.results)]
        params = {
            **self.node.params,
            "graph": Graph(inputs, tuple(needed_nodes(nodes, outputs)), outputs),
            "num_consts": len(self.consts),
            "num_carry": len(self.carry),
        }
        kinds = [each.start.type for each in self.carry] + [
            self.stacked_type(y.type) for y in self.ys
        ]
        results = tuple(Variable(kind) for kind in kinds)
        return GraphNode(scan, operands, params, results, self.node.location)

    def stacked_type(self, kind: TensorType) -> TensorType:
        """The type of all steps' values of a type."""
        return kind.with_shape((self.length, *kind.shape))

    def put(self, walk: Walk) -> tuple[list[Atom], list[Atom]]:
        """Put the scan into a graph: what stands for the carry at the end, and for the outputs."""
        count = len(self.carry)
        results = list(walk.put(self.rebuild_scan()))
        return results[:count], results[count:]

    def needs_more_than(self, results: int) -> bool:
        """Whether so few results are too few: what has an effect is told apart by its results."""
        return not results and not all(map(is_pure, self.nodes))

    def levels(self) -> dict[Atom, int]:
        """On what each value depends: 0 for constants, 1 for xs, 2 for the carry, or any effect."""
        found: dict[Atom, int] = dict.fromkeys([variable for variable, _ in self.consts], 0)
        found.update(dict.fromkeys([variable for variable, _ in self.xs], 1))
        found.update(dict.fromkeys([each.variable for each in self.carry], 2))
        for node in self.nodes:
            own = 0 if is_movable(node) else 2
            level = max([own, *[found.get(atom, 0) for atom in node.operands]])
            found.update(dict.fromkeys(node.results, level))
        return found

    def place(self, atom: Atom) -> tuple[list[Any], int]:
        """Where all steps' values of a variable are found: in xs, or in ys, where it is added."""
        for number, (variable, _) in enumerate(self.xs):
            if variable is atom:
                return self.xs, number
        if atom not in self.ys:
            self.ys.append(atom)
        return self.ys, self.ys.index(atom)


def is_movable(node: GraphNode) -> bool:
    """Whether a node can be done outside of the steps: it has no effect and cannot fail."""
    primitive = node.primitive
    known = isinstance(primitive.kind, Reduction) or primitive is dot or primitive.broadcasts
    return known or is_movement(node)


def is_movement(node: GraphNode) -> bool:
    """Whether a node costs nothing in a fused kernel, so that it stays where it is."""
    kind = node.primitive.kind
    return isinstance(kind, Movement) and kind.read is not None and not node.primitive.impure


def needed_nodes(nodes: Sequence[GraphNode], outputs: Iterable[Atom]) -> list[GraphNode]:
    """The nodes that some outputs need, and those with effects."""
    needed = set(outputs)
    kept = []
    for node in reversed(nodes):
        if not needed.isdisjoint(node.results) or not is_pure(node):
            kept.append(node)
            needed.update(node.operands)
    return kept[::-1]
