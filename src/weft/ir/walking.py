"""Walking a graph: in order, each node kept or replaced.

>>> import weft as wf
>>> class Sines(Walk):
...     def visit(self, node):
...         if node.primitive.name != "cos":
...             return None
...         return [self.make(wf.ir.PRIMITIVES["sin"], *node.operands, like=node)]
>>> print(Sines(wf.ir.trace(wf.cos, wf.spec("float32", (3,)))).run())  # doctest: +ELLIPSIS
graph(a: f32[3]) {
  b: f32[3] = sin(a)...
  return b
}
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np

from weft.core.types import TensorType
from weft.ir.graph import Atom, Graph, GraphNode, Literal, Variable, graphs_in
from weft.ir.kinds import Collective, Movement
from weft.ir.primitive import PRIMITIVES, Primitive

__all__ = [
    "Tally", "Walk", "graphs_of", "has_collectives", "holds_graphs", "is_pure", "keeps_elements",
    "replace_node", "same_atom",
]  # fmt: skip

Array = np.ndarray[Any, Any]
Tally: TypeAlias = "Counter[str]"
"""How often each rewrite was made, by name."""
_SEARCHED = 4096
"""The most elements of a constant that are looked at to see whether they are all equal."""


class Walk:
    """One way through a graph, in order, on which nodes are kept or replaced.

    `visit` says by what: None keeps a node, atoms stand for its results. Graphs in parameters
    are walked first. A walk that replaces nothing returns the graph that it was given.
    """

    def __init__(self, graph: Graph, tally: Tally | None = None) -> None:
        self.graph = graph
        self.tally: Tally = Counter() if tally is None else tally
        self.nodes: list[GraphNode] = []
        self.makers: dict[Variable, GraphNode] = {}
        self.changed = False
        self._renamed: dict[Variable, Atom] = {}
        self._walked: dict[int, Graph] = {}
        self._numbers: dict[Variable, Array | None] = {}

    def visit(self, node: GraphNode) -> Sequence[Atom] | None:
        """The atoms that replace a node's results; its operands have been replaced already."""
        raise NotImplementedError

    def walk_nested(self, graph: Graph) -> Graph:
        """The walk over a graph in a parameter."""
        return type(self)(graph, self.tally).run()

    def run(self) -> Graph:
        """The graph after the walk, without the nodes that nothing needs any more."""
        for node in self.graph.nodes:
            results = node.results
            atoms = self.put(self._renamed_node(node))
            if atoms is not results:
                self._follow(results, atoms)
        if not self.changed:
            return self.graph
        outputs = tuple([self.renamed_atom(atom) for atom in self.graph.outputs])
        return without_dead_nodes(
            Graph(self.graph.inputs, tuple(self.nodes), outputs, self.graph.name)
        )

    def put(self, node: GraphNode) -> Sequence[Atom]:
        """Add a node, or its replacement; gives the atoms of its results."""
        replaced = self.visit(node)
        if replaced is not None:
            self.changed = True
            return replaced
        self.nodes.append(node)
        results = node.results
        for variable in results:
            self.makers[variable] = node
        return results

    def make(self, primitive: Primitive, *operands: Atom, like: GraphNode, **params: Any) -> Atom:
        """The result of a new node at the place of another."""
        kind = primitive.type_rule(*[operand.type for operand in operands], **params)
        assert isinstance(kind, TensorType)
        node = GraphNode(primitive, operands, params, (Variable(kind),), like.location)
        return self.put(node)[0]

    def splice(self, graph: Graph, operands: Sequence[Atom]) -> list[Atom]:
        """The atoms of the outputs of a graph whose nodes are added here."""
        known: dict[Variable, Atom] = dict(zip(graph.inputs, operands, strict=True))

        def read(atom: Atom) -> Atom:
            return known[atom] if isinstance(atom, Variable) else atom

        for inner in graph.nodes:
            results = tuple([Variable(old.type, old.name) for old in inner.results])
            new = replace_node(inner, operands=tuple(map(read, inner.operands)), results=results)
            known.update(zip(inner.results, self.put(new), strict=True))
        return [read(atom) for atom in graph.outputs]

    def renamed_atom(self, atom: Atom) -> Atom:
        """The atom that replaces an atom of the old graph."""
        return self._renamed.get(atom, atom) if isinstance(atom, Variable) else atom

    def maker(self, atom: Atom) -> GraphNode | None:
        """The node that makes an atom; None for an input or a constant."""
        return self.makers.get(atom) if isinstance(atom, Variable) else None

    def uniform(self, atom: Atom) -> Array | None:
        """The one number that all elements of an atom are known to be, without axes."""
        behind: list[Variable] = []
        while isinstance(atom, Variable) and atom not in self._numbers:
            node = self.makers.get(atom)
            if node is None or not keeps_elements(node):
                self._numbers[atom] = None if node is None else _fill_number(node)
                break
            behind.append(atom)
            atom = node.operands[0]
        number = _number(atom.value) if isinstance(atom, Literal) else self._numbers[atom]
        for variable in behind:
            self._numbers[variable] = number
        return number

    def constant(self, value: Array, kind: TensorType, like: GraphNode) -> Atom:
        """An atom of a type, all of whose elements are one number."""
        if not kind.shape:
            return Literal(np.asarray(value))
        params = {"shape": kind.shape, "dtype": kind.dtype, "value": value.item()}
        return self.make(PRIMITIVES["full"], like=like, **params)

    def _follow(self, results: Sequence[Variable], atoms: Sequence[Atom]) -> None:
        for variable, atom in zip(results, atoms, strict=True):
            if atom is not variable:
                self._renamed[variable] = atom

    def _renamed_node(self, node: GraphNode) -> GraphNode:
        """The node with operands renamed and graphs walked."""
        renamed = self._renamed
        if not renamed.keys().isdisjoint(node.operands):
            operands = tuple([self.renamed_atom(atom) for atom in node.operands])
            node = replace_node(node, operands=operands)
        for value in node.params.values():
            if holds_graphs(value):
                return self._with_graphs(node)
        return node

    def _with_graphs(self, node: GraphNode) -> GraphNode:
        for key, value in node.params.items():
            if holds_graphs(value) and (new := self._walk_graphs(value)) is not value:
                self.changed = True
                node = replace_node(node, params={**node.params, key: new})
        return node

    def _walk_graphs(self, value: Any) -> Any:
        if isinstance(value, Graph):
            if id(value) not in self._walked:
                self._walked[id(value)] = self.walk_nested(value)
            return self._walked[id(value)]
        new = tuple([self._walk_graphs(each) for each in value])
        return value if all(a is b for a, b in zip(new, value, strict=True)) else new


def without_dead_nodes(graph: Graph) -> Graph:
    """The graph without pure nodes that no output needs."""
    needed: set[Atom] = set(graph.outputs)
    reversed_nodes: list[GraphNode] = []
    for node in reversed(graph.nodes):
        if not needed.isdisjoint(node.results) or not is_pure(node):
            reversed_nodes.append(node)
            needed.update(node.operands)
    return Graph(graph.inputs, tuple(reversed(reversed_nodes)), graph.outputs, graph.name)


def replace_node(
    node: GraphNode,
    *,
    operands: tuple[Atom, ...] | None = None,
    params: dict[str, Any] | None = None,
    results: tuple[Variable, ...] | None = None,
) -> GraphNode:
    """The node with some of its parts replaced."""
    return GraphNode(
        node.primitive,
        node.operands if operands is None else operands,
        node.params if params is None else params,
        node.results if results is None else results,
        node.location,
    )


def holds_graphs(value: Any) -> bool:
    """Whether a parameter is a graph or graphs."""
    kind = type(value)
    return kind is Graph or (kind is tuple and len(value) > 0 and type(value[0]) is Graph)


def is_pure(node: GraphNode) -> bool:
    """Whether a node is nothing but its results: equal ones may be merged, unused ones dropped."""
    if node.primitive.impure:
        return False
    if not node.params:
        return True
    return all(is_pure(inner) for graph in graphs_of(node) for inner in graph.nodes)


def keeps_elements(node: GraphNode) -> bool:
    """Whether a node's elements are those of its one operand, in other places."""
    kind = node.primitive.kind
    if not isinstance(kind, Movement) or kind.fill is not None or node.primitive.impure:
        return False
    return len(node.operands) == 1


def has_collectives(graph: Graph) -> bool:
    """Whether a graph, or one in it, waits for other processes."""
    return any(
        isinstance(node.primitive.kind, Collective) or any(map(has_collectives, graphs_of(node)))
        for node in graph.nodes
    )


def graphs_of(node: GraphNode) -> list[Graph]:
    """The graphs in a node's parameters."""
    held = [value for value in node.params.values() if holds_graphs(value)]
    return [graph for value in held for graph in graphs_in(value)]


def same_atom(a: Atom, b: Atom) -> bool:
    """Whether two atoms are the same variable, or constants with the same bits."""
    if a is b or isinstance(a, Variable) or isinstance(b, Variable):
        return a is b
    same = a.value.dtype == b.value.dtype and a.value.shape == b.value.shape
    return same and (a.value is b.value or a.value.tobytes() == b.value.tobytes())


def _fill_number(node: GraphNode) -> Array | None:
    """The number that a node makes a tensor of."""
    kind = node.primitive.kind
    if node.operands or not isinstance(kind, Movement) or kind.fill is None:
        return None
    return np.array(kind.fill(node.params), node.params["dtype"].numpy)


def _number(value: Array) -> Array | None:
    """The number that all elements of a constant are, where it is not too long to be looked at."""
    return one_number(value) if value.size <= _SEARCHED else None


def one_number(value: Array) -> Array | None:
    """The number that all elements are, to the bit: -0.0 is not 0.0; None where they differ.

    >>> one_number(np.array([2.0, 2.0]))
    array(2.)
    >>> one_number(np.array([0.0, -0.0])) is None
    True
    """
    if value.ndim == 0:
        return value
    if value.size == 0:
        return None
    flat = np.ascontiguousarray(value).reshape(-1)
    alike = value.size == 1 or (flat.view(np.uint8).reshape(value.size, -1) == _bytes(flat)).all()
    return np.asarray(flat[0]) if alike else None


def _bytes(flat: Array) -> Array:
    """The bytes of the first element."""
    return np.asarray(flat[:1].view(np.uint8))
