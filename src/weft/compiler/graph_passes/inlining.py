"""Inlining: the nodes of a graph in place of the one node that holds it.

A function with a derivative of its own is an ordinary one once all derivatives are taken, and a
branch whose number is known is no branch.

>>> import weft as wf
>>> f = wf.custom_derivative(wf.sin)
>>> f.jvp(lambda primals, tangents: (f(*primals), tangents[0])) and None
>>> print(inline(wf.ir.trace(f, wf.spec("float32", (3,)))))  # doctest: +ELLIPSIS
graph(a: f32[3]) {
  b: f32[3] = sin(a)...
  return b
}
"""

from __future__ import annotations

from collections.abc import Sequence

from weft.ir.graph import Atom, Graph, GraphNode
from weft.ir.sizes import specialize
from weft.ir.walking import Tally, Walk, graphs_of

__all__ = ["inline"]


def inline(graph: Graph, tally: Tally | None = None) -> Graph:
    """The graph without nodes that do nothing but run one graph."""
    return _Inline(graph, tally).run() if any(map(graphs_of, graph.nodes)) else graph


class _Inline(Walk):
    """Puts the nodes of called graphs in the place of calls."""

    def visit(self, node: GraphNode) -> Sequence[Atom] | None:
        if node.primitive.name in ("custom", "call"):
            graph = specialize(node.params["graph"], [atom.type for atom in node.operands])
            return self.splice_and_count(node, graph, node.operands)
        if node.primitive.name == "switch" and node.params["rows"] == 0:
            index = self.uniform(node.operands[0])
            branches = node.params["branches"]
            if index is not None and 0 <= int(index) < len(branches):
                return self.splice_and_count(node, branches[int(index)], node.operands[1:])
        return None

    def splice_and_count(
        self, node: GraphNode, graph: Graph, operands: Sequence[Atom]
    ) -> list[Atom]:
        self.tally[node.primitive.name] += 1
        return self.splice(graph, operands)
