"""Products that share an operand become one product with the others joined.

Queries, keys and values of attention are three products of one tensor with three matrices. Joined
they are one call, at the price of a copy of the matrices. Generated products do not pack the shared
operand, and run side by side anyway, so that nothing is gained (docs/design/products.md): this is
for targets where it is, and not in the pipeline unless asked for.

>>> import weft as wf
>>> x, w = wf.spec("float32", (64, 8)), wf.spec("float32", (8, 4))
>>> graph = wf.ir.trace(lambda x, a, b: (x @ a, x @ b), x, w, w)
>>> [node.primitive.name for node in merge_products(graph).nodes]
['concatenate', 'dot', 'slice', 'slice']
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass

from weft.core.shapes import is_static
from weft.ir.graph import Atom, Graph, GraphNode, Variable
from weft.ir.walking import Tally, Walk
from weft.ops.contraction import dot, free_axes
from weft.ops.movement import concatenate, slice_

__all__ = ["merge_products"]


def merge_products(graph: Graph, tally: Tally | None = None) -> Graph:
    """The graph with sibling products merged where it pays."""
    return _MergeProducts(graph, tally).run()


@dataclass(frozen=True, slots=True, eq=False)
class Siblings:
    """Products that share the operand at `side`, and whose others can be joined along an axis."""

    side: int
    nodes: tuple[GraphNode, ...]

    @property
    def others(self) -> list[Atom]:
        """The operands that are not shared."""
        return [node.operands[1 - self.side] for node in self.nodes]

    @property
    def pays(self) -> bool:
        """Whether there are several, and joining moves less than the shared operand holds."""
        kinds = [atom.type for atom in (*self.others, self.nodes[0].operands[self.side])]
        if len(self.nodes) < 2 or not all(is_static(kind.shape) for kind in kinds):
            return False
        *joined, shared = [int(kind.size) for kind in kinds]
        return sum(joined) <= shared


class _MergeProducts(Walk):
    """Puts the one product of siblings where the first of them stood."""

    def __init__(self, graph: Graph, tally: Tally | None = None) -> None:
        super().__init__(graph, tally)
        self.groups = {node.results[0]: each for each in _siblings(graph) for node in each.nodes}
        self.merged: dict[Siblings, dict[Variable, Atom]] = {}

    def visit(self, node: GraphNode) -> Sequence[Atom] | None:
        group = self.groups.get(node.results[0])
        if group is None:
            return None
        if group not in self.merged:
            self.tally["products"] += len(group.nodes) - 1
            self.merged[group] = self.parts(group, node)
        return [self.merged[group][node.results[0]]]

    def parts(self, group: Siblings, node: GraphNode) -> dict[Variable, Atom]:
        """Each sibling's part of the product with all the others joined."""
        side, other = group.side, 1 - group.side
        atoms = [self.renamed(atom) for atom in group.others]
        (axis,) = free_axes(atoms[0].type.ndim, node.params["contract"][other])
        joined = self.make(concatenate, *atoms, like=node, axis=axis)
        operands = (node.operands[0], joined) if side == 0 else (joined, node.operands[1])
        whole = self.make(dot, *operands, like=node, **node.params)
        found, start = {}, 0
        for each, atom in zip(group.nodes, atoms, strict=True):
            stop = start + int(atom.type.shape[axis])
            found[each.results[0]] = self.part(whole, node, 0 if side else -1, start, stop)
            start = stop
        return found

    def part(self, whole: Atom, node: GraphNode, axis: int, start: int, stop: int) -> Atom:
        starts, stops = [0] * whole.type.ndim, list(whole.type.shape)
        starts[axis], stops[axis] = start, stop
        bounds = {"starts": tuple(starts), "stops": tuple(stops)}
        return self.make(slice_, whole, like=node, **bounds, strides=(1,) * len(stops))


def _siblings(graph: Graph) -> Iterator[Siblings]:
    """Groups worth merging; a product is in at most one."""
    made: dict[Atom, int] = {
        result: place for place, node in enumerate(graph.nodes) for result in node.results
    }
    found: dict[tuple[int, Hashable], list[tuple[int, GraphNode]]] = {}
    for place, node in enumerate(graph.nodes):
        for side in (0, 1) if node.primitive is dot else ():
            key = _key(node, side)
            if key is not None:
                found.setdefault((side, key), []).append((place, node))
    taken: set[Variable] = set()
    for (side, _), members in found.items():
        first = members[0][0]
        nodes = [
            node
            for _, node in members
            if made.get(node.operands[1 - side], -1) < first and node.results[0] not in taken
        ]
        group = Siblings(side, tuple(nodes))
        if nodes and group.pays:
            taken.update([node.results[0] for node in nodes])
            yield group


def _key(node: GraphNode, side: int) -> Hashable:
    """Equal for products that can be merged, with the operand at `side` shared; None for others."""
    shared, other = node.operands[side], node.operands[1 - side]
    contract, batch = node.params["contract"], node.params["batch"]
    free = free_axes(other.type.ndim, contract[1 - side])
    if batch[0] or len(free) != 1 or not isinstance(shared, Variable):
        return None
    rest = tuple([dim for axis, dim in enumerate(other.type.shape) if axis not in free])
    return shared, contract, rest, free
