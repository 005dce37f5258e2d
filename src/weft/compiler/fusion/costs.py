"""What a node costs: floating-point operations and bytes, from types alone.

An element-wise operation is one per element of its result, a reduction one per element it reads,
a product two per term; moving and choosing cost nothing but bytes.

>>> import weft as wf
>>> graph = wf.ir.trace(lambda a, b: wf.exp(a @ b), *[wf.spec("float32", (4, 4))] * 2)
>>> [operations(node, {}) for node in graph.nodes]
[128, 16]
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from weft.core.errors import ArgumentTypeError
from weft.core.shapes import Dimension, size, substitute
from weft.core.types import TensorType
from weft.ir.graph import Graph, GraphNode

__all__ = ["bytes_of", "flops", "operations"]

Sizes = Mapping[str, int]


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
    return sum(operations(node, sizes) + _inside(node, sizes) for node in graph.nodes)


def _inside(node: GraphNode, sizes: Sizes) -> int:
    """The operations of the graphs that a node holds."""
    held = [param for param in node.params.values() if isinstance(param, Graph)]
    branches = [param for param in node.params.values() if isinstance(param, tuple)]
    held += [each for branch in branches for each in branch if isinstance(each, Graph)]
    costs = [flops(graph, **sizes) for graph in held]
    together = max if node.primitive.name == "switch" else sum
    steps = number(node.params["length"], sizes) if node.primitive.name == "scan" else 1
    return steps * together(costs) if costs else 0


def operations(node: GraphNode, sizes: Sizes) -> int:
    """How many operations on floating-point numbers a node is."""
    kinds = [atom.type for atom in (*node.operands, *node.results)]
    if not any(kind.dtype.is_inexact for kind in kinds):
        return 0
    if node.primitive.broadcasts:
        return number(node.results[0].type.size, sizes)
    rule = _RULES.get(node.primitive.name)
    if rule is None:
        reads = node.primitive.name.startswith(("reduce_", "cumulative_"))
        return number(node.operands[0].type.size, sizes) if reads else 0
    return number(rule(node), sizes)


def bytes_of(kind: TensorType, sizes: Sizes) -> int:
    """How many bytes a value of a type has."""
    return number(kind.size, sizes) * kind.dtype.itemsize


def number(dim: Dimension, sizes: Sizes) -> int:
    """A size, given those of the symbols."""
    return int(substitute(dim, dict(sizes)))


def _product(node: GraphNode) -> Dimension:
    shape = node.operands[0].type.shape
    terms = size(shape[axis] for axis in node.params["contract"][0])
    return 2 * terms * node.results[0].type.size


def _windows(result: TensorType, weight: TensorType) -> Dimension:
    """Two operations for each element of a convolution's result and of a window's weights."""
    return 2 * result.size * size(weight.shape[1:])


def _attention(node: GraphNode, heads: int, values: int) -> Dimension:
    """For each query and key, products over a head and over a value; and an exponential."""
    q, k, v = (atom.type.shape for atom in node.operands[:3])
    return size(q[:-1]) * k[-2] * (2 * heads * q[-1] + 2 * values * v[-1] + 1)


_RULES: dict[str, Callable[[GraphNode], Dimension]] = {
    "attention": lambda n: _attention(n, 1, 1),
    "attention_gradient": lambda n: _attention(n, 3, 2),
    "computed_attention": lambda n: _attention(n, 1, 1),
    "computed_attention_gradient": lambda n: _attention(n, 3, 2),
    "dot": _product,
    "dot_wide": _product,
    "conv": lambda n: _windows(n.results[0].type, n.operands[1].type),
    "conv_input_gradient": lambda n: _windows(n.operands[0].type, n.operands[1].type),
    "conv_weight_gradient": lambda n: _windows(n.operands[1].type, n.results[0].type),
    "conv_last": lambda n: _windows(n.results[0].type, n.operands[1].type),
    "conv_last_input_gradient": lambda n: _windows(n.operands[0].type, n.operands[1].type),
    "conv_last_weight_gradient": lambda n: _windows(n.operands[1].type, n.results[0].type),
}

DEAR = frozenset(_RULES)
"""The primitives that cost many operations for each byte: products, convolutions, attention."""
