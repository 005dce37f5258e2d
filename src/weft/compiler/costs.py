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

from weft.core.shapes import Dimension, size, substitute
from weft.core.types import TensorType
from weft.ir.graph import GraphNode

__all__ = ["bytes_of", "operations"]

Sizes = Mapping[str, int]


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


_RULES: dict[str, Callable[[GraphNode], Dimension]] = {
    "dot": _product,
    "conv": lambda n: _windows(n.results[0].type, n.operands[1].type),
    "conv_input_gradient": lambda n: _windows(n.operands[0].type, n.operands[1].type),
    "conv_weight_gradient": lambda n: _windows(n.operands[1].type, n.results[0].type),
}
