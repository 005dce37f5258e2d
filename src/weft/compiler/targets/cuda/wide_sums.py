"""Sums of 16-bit floats at places that are data are made in float32, and rounded once.

A kernel would hold the whole table in float32 as scratch memory, and each team of a card its own.

>>> import weft as wf
>>> kinds = wf.spec("bfloat16", (4, 2)), wf.spec("int64", (3, 2)), wf.spec("bfloat16", (3, 2))
>>> graph = wf.ir.trace(lambda x, i, u: wf.scatter_add(x, 0, i, u), *kinds)
>>> [str(n.results[0].type) for n in widen_sums(graph).nodes if n.primitive is scatter_add]
['f32[4, 2]']
"""

from __future__ import annotations

from collections.abc import Sequence

from weft.core.dtypes import bfloat16, float16, float32
from weft.ir.graph import Atom, Graph, GraphNode
from weft.ir.walking import Tally, Walk
from weft.ops.conversion import convert
from weft.ops.indexing import scatter_add


def widen_sums(graph: Graph, tally: Tally | None = None) -> Graph:
    """The graph with all such sums in float32."""
    return _WideSums(graph, tally).run()


class _WideSums(Walk):
    def visit(self, node: GraphNode) -> Sequence[Atom] | None:
        dtype = node.results[0].type.dtype
        if node.primitive is not scatter_add or dtype not in (bfloat16, float16):
            return None
        x, updates, *indices = node.operands
        wide = [self.make(convert, each, like=node, dtype=float32) for each in (x, updates)]
        total = self.make(scatter_add, *wide, *indices, like=node, **node.params)
        self.tally["wide sums"] += 1
        return [self.make(convert, total, like=node, dtype=dtype)]
