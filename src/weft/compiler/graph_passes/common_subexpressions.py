"""Common subexpressions: what is computed twice from the same operands is computed once.

What must not be merged says so: behind a `barrier` things are computed again on purpose. Random
bits are a function of their key, so equal keys are one node.

>>> import weft as wf
>>> graph = wf.ir.trace(lambda x: wf.sin(x) + wf.sin(x), wf.spec("float32", (3,)))
>>> print(merge_common_subexpressions(graph))  # doctest: +ELLIPSIS
graph(a: f32[3]) {
  b: f32[3] = sin(a)...
  c: f32[3] = add(b, b)...
  return c
}
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Any

from weft.ir.graph import Atom, Graph, GraphNode, Literal, Variable
from weft.ir.walking import Tally, Walk, is_pure

__all__ = ["merge_common_subexpressions"]

_COMPARED = 1 << 20
"""The most bytes of a constant that are compared with others: a bound on the compiler's work."""


def merge_common_subexpressions(graph: Graph, tally: Tally | None = None) -> Graph:
    """The graph in which no two nodes do the same."""
    return _Merge(graph, tally).run()


class _Merge(Walk):
    """Lets nodes that compute the same as an earlier one stand for it."""

    def __init__(self, graph: Graph, tally: Tally | None = None) -> None:
        super().__init__(graph, tally)
        self.known: dict[Hashable, tuple[Variable, ...]] = {}

    def visit(self, node: GraphNode) -> Sequence[Atom] | None:
        if not is_pure(node):
            return None
        earlier = self.known.setdefault(_key(node), node.results)
        if earlier is node.results:
            return None
        self.tally[node.primitive.name] += 1
        return earlier


def _key(node: GraphNode) -> Hashable:
    """Equal for nodes that give the same results."""
    operands = [a if type(a) is Variable else _literal_key(a) for a in node.operands]
    if node.primitive.commutative:
        operands.sort(key=hash)
    params = [(name, _param_key(node.params[name])) for name in sorted(node.params)]
    return node.primitive, tuple(operands), tuple(params)


def _literal_key(atom: Atom) -> Hashable:
    assert isinstance(atom, Literal)
    value = atom.value
    same = id(value) if value.nbytes > _COMPARED else value.tobytes()
    return value.dtype, value.shape, same


def _param_key(value: Any) -> Hashable:
    """A parameter by type and value; floats by their text, so that -0.0 is not 0.0."""
    if isinstance(value, (tuple, list)):
        return tuple([_param_key(each) for each in value])
    if isinstance(value, (float, complex)):
        return type(value), repr(value)
    key: Hashable = value
    return key
