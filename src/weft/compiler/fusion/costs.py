"""What a node costs: floating-point operations and bytes, from types alone.

An element-wise operation is one per element of its result, a reduction one per element it reads,
a product two per term; moving and choosing cost nothing but bytes.

>>> import weft as wf
>>> graph = wf.ir.trace(lambda a, b: wf.exp(a @ b), *[wf.spec("float32", (4, 4))] * 2)
>>> [operations(node, {}) for node in graph.nodes]
[128, 16]
"""

from __future__ import annotations

from collections.abc import Mapping

from weft.core.dimensions import symbols_in
from weft.core.errors import ArgumentTypeError
from weft.core.shapes import Dimension, substitute
from weft.core.types import TensorType
from weft.ir.graph import Graph, GraphNode
from weft.ir.kinds import Contraction, Cumulative, Reduction
from weft.ir.sizes import specialize
from weft.ops.control_branch import switch
from weft.ops.control_call import call
from weft.ops.control_loop import scan

__all__ = ["bytes_of", "flops", "operations", "usual_bytes"]

Sizes = Mapping[str, int]

USUAL_SIZE = 64
"""What a size that is not known counts as, where bytes are compared."""


def flops(graph: Graph, **sizes: int) -> int:
    """How many operations on floating-point numbers a graph is, given the sizes of its symbols.

    A scan counts as often as it runs, the other loops once, a choice as its dearest branch.

    >>> import weft as wf
    >>> flops(wf.ir.trace(lambda x: (x * 2).sum(), wf.spec("float32", ("n",))), n=10)
    20
    """
    if not isinstance(graph, Graph):
        raise ArgumentTypeError(
            "flops",
            "this is no graph",
            expected="a graph, such as wf.ir.trace makes",
            got={"graph": graph},
            fix="wf.flops(wf.ir.trace(f, *types))",
        )
    return sum(operations(node, sizes) + _operations_of_graphs(node, sizes) for node in graph.nodes)


def _operations_of_graphs(node: GraphNode, sizes: Sizes) -> int:
    """The operations of the graphs that a node holds."""
    held = [param for param in node.params.values() if isinstance(param, Graph)]
    branches = [param for param in node.params.values() if isinstance(param, tuple)]
    held += [each for branch in branches for each in branch if isinstance(each, Graph)]
    if node.primitive is call:  # its graph may be one for all sizes, with symbols of its own
        held = [specialize(graph, [atom.type for atom in node.operands]) for graph in held]
    costs = [flops(graph, **sizes) for graph in held]
    together = max if node.primitive is switch else sum
    steps = number(node.params["length"], sizes) if node.primitive is scan else 1
    return steps * together(costs) if costs else 0


def operations(node: GraphNode, sizes: Sizes) -> int:
    """How many operations on floating-point numbers a node is."""
    kinds = [atom.type for atom in (*node.operands, *node.results)]
    if not any(kind.dtype.is_inexact for kind in kinds):
        return 0
    if node.primitive.broadcasts:
        return number(node.results[0].type.size, sizes)
    kind = node.primitive.kind
    if isinstance(kind, Contraction):
        operands = [atom.type for atom in node.operands]
        results = [atom.type for atom in node.results]
        return number(kind.operations(operands, results, node.params), sizes)
    reads = isinstance(kind, Reduction | Cumulative)
    return number(node.operands[0].type.size, sizes) if reads else 0


def bytes_of(kind: TensorType, sizes: Sizes) -> int:
    """How many bytes a value of a type has."""
    return number(kind.size, sizes) * kind.dtype.itemsize


def usual_bytes(kind: TensorType) -> int:
    """How many bytes a value of a type has, where every symbol is of a usual size."""
    names = set().union(*map(symbols_in, kind.shape))
    return bytes_of(kind, dict.fromkeys(names, USUAL_SIZE))


def number(dim: Dimension, sizes: Sizes) -> int:
    """A size, given those of the symbols."""
    return int(substitute(dim, dict(sizes)))
