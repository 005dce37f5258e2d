"""How many nodes read a value.

>>> import weft as wf
>>> graph = wf.ir.trace(lambda x: x * x + x, wf.spec("float32", (2,)))
>>> reader_counts(graph)[graph.inputs[0]]
2
"""

from __future__ import annotations

from collections.abc import Mapping

from weft.ir.graph import Graph, GraphNode, Variable
from weft.ops.conversion import convert
from weft.ops.identity import barrier


def reader_counts(graph: Graph) -> dict[Variable, int]:
    """How many nodes read each value that one reads."""
    counts: dict[Variable, int] = {}
    for node in graph.nodes:
        for atom in set(node.operands):
            if isinstance(atom, Variable):
                counts[atom] = counts.get(atom, 0) + 1
    return counts


def further_reader_counts(graph: Graph, readers: Mapping[Variable, int]) -> dict[Variable, int]:
    """How many more nodes read what values are converted to than conversions there are."""
    counts: dict[Variable, int] = {}
    for node in graph.nodes:
        source = node.operands[0] if node.primitive is convert else None
        if isinstance(source, Variable):
            more = max(0, readers.get(node.results[0], 0) - 1)
            counts[source] = counts.get(source, 0) + more
    return counts


def why_read_as_whole(node: GraphNode) -> str:
    """Why a node that is no loop over elements needs what it reads."""
    if node.primitive is barrier:
        return "others are computed again from it"
    return f"{node.primitive.name} reads it as a whole"
