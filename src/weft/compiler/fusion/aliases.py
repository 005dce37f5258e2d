"""Values that lie in another's memory: a node whose result is its operand, seen otherwise.

>>> import weft as wf
>>> graph = wf.ir.trace(lambda x: x.reshape(2, 3) + 1, wf.spec("float32", (6,)))
>>> [shares_memory(node) for node in graph.nodes]
[True, False]
"""

from __future__ import annotations

from weft.ir.graph import Atom, Graph, GraphNode, Variable
from weft.ir.kinds import Movement
from weft.ops.conversion import of_parts
from weft.ops.movement import concatenate, reshape


def shares_memory(node: GraphNode) -> bool:
    """Whether a node's result lies where its operand does: nothing is computed."""
    kind = node.primitive.kind
    return (isinstance(kind, Movement) and kind.is_alias) or is_general_reshape(node)


def aliases_of(graph: Graph) -> dict[Variable, Atom]:
    """The values that lie in another's memory, and the other one.

    The parts of complex numbers are joined in the memory of these, which may be an output.
    """
    joins = {node.results[0] for node in graph.nodes if node.primitive is concatenate}
    aliases: dict[Variable, Atom] = {}
    for node in graph.nodes:
        if shares_memory(node):
            operand, result = node.operands[0], node.results[0]
            if node.primitive is of_parts and isinstance(operand, Variable) and operand in joins:
                aliases[operand] = result
            else:
                aliases[result] = operand
    return aliases


def is_general_reshape(node: GraphNode) -> bool:
    """Whether a node is a reshape that does more than add or remove axes of size 1."""
    if node.primitive is not reshape:
        return False
    before, after = node.operands[0].type.shape, node.params["shape"]
    return [d for d in before if d != 1] != [d for d in after if d != 1]
