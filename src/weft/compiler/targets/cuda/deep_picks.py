"""Elements of rows picked before all that is computed of them, down to what lies in memory.

`row_picks` goes as far as pays on a processor, where a value that another kernel computes anyway
may as well be stored. On a card a table of logits is worth a dozen operations for each row.

>>> import weft as wf
>>> kinds = wf.spec("bfloat16", (4, 9)), wf.spec("int64", (4, 1))
>>> def f(x, i):
...     y = x.astype("float32") * 2
...     return wf.take_along_axis(wf.exp(y), i, axis=1), y
>>> graph = pick_deeply(wf.ir.trace(f, *kinds))
>>> [str(node.operands[0].type) for node in graph.nodes if node.primitive is gather]
['bf16[4, 9]']
"""

from __future__ import annotations

from collections.abc import Sequence

from weft.compiler.graph_passes.row_picks import RowPicks
from weft.ir.graph import Atom, Graph, GraphNode
from weft.ir.kinds import Elementwise
from weft.ir.walking import Tally, is_pure
from weft.ops.indexing import gather

DEEPEST = 16
"""Operations up to which a picked element is computed again, apart from its row."""


def pick_deeply(graph: Graph, tally: Tally | None = None) -> Graph:
    """The graph with elements of rows picked as early as can be."""
    return _DeepPicks(graph, tally).run()


class _DeepPicks(RowPicks):
    """Picks elements before they are computed from, where most are not asked for."""

    def visit(self, node: GraphNode) -> Sequence[Atom] | None:
        if node.primitive is not gather or not self.is_pick(node):
            return None
        if not self._is_elementwise(node.operands[0], node):
            return None
        self.tally["pick_before"] += 1
        return [self._pick_of(node.operands[0], node, 0)]

    def _pick_of(self, atom: Atom, node: GraphNode, depth: int) -> Atom:
        """The elements of a value that belong to the picked ones."""
        table, rows, columns = node.operands
        if atom.type.shape != table.type.shape:
            return atom
        made = self.maker(atom)
        if made is None or depth >= DEEPEST or not self._is_elementwise(atom, node):
            return self.make(gather, atom, rows, columns, like=node, axes=(0, 1))
        operands = [self._pick_of(each, node, depth + 1) for each in made.operands]
        return self.make(made.primitive, *operands, like=node, **made.params)

    def _is_elementwise(self, atom: Atom, node: GraphNode) -> bool:
        """Whether a value is computed element by element, of values with its rows or of numbers."""
        made, shape = self.maker(atom), node.operands[0].type.shape
        return (
            made is not None
            and isinstance(made.primitive.kind, Elementwise)
            and is_pure(made)
            and not made.primitive.multiple
            and all(each.type.shape in (shape, (), (shape[0], 1)) for each in made.operands)
        )
