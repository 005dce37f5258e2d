"""Masks that attention computes itself: no matrix of queries × keys where less says the same.

A sliding window, a bias that falls with distance, equal documents: each is computed from rows and
columns, element by element. The graph that does it becomes a parameter of the primitive, which
evaluates it where it needs a score.

>>> import weft as wf
>>> kind = wf.spec("float32", (2, 256, 16))
>>> near = lambda: abs(wf.arange(256)[:, None] - wf.arange(256)) < 32
>>> attend = lambda q, k, v: wf.scaled_dot_product_attention(q, k, v, near())
>>> graph = wf.ir.trace(attend, *[kind] * 3)
>>> from weft.compiler.pipeline import optimize
>>> from weft.compiler.targets.target import target_named
>>> [node.primitive.name for node in optimize(graph, target_named("cpu")).nodes]
['iota', 'reshape', 'computed_attention']
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from weft.compiler.lowering.groups import is_lowered
from weft.core.dtypes import float32
from weft.core.errors import Unsupported
from weft.core.shapes import Shape
from weft.core.types import TensorType
from weft.ir.graph import Atom, Graph, GraphNode, Literal, Variable
from weft.ir.primitive import Primitive, Sample
from weft.ir.tensor import wrap
from weft.ir.tracing import interpret, trace
from weft.ops.attention import attention, attention_gradient
from weft.ops.comparison import less_equal

__all__ = ["COMPUTED", "computed_attention", "computed_attention_gradient", "computed_mask"]

Array = np.ndarray[Any, Any]
MOVED = ("broadcast_to", "reshape")
"""What only gives a value more axes in front, or of size 1."""


# --- which masks ---------------------------------------------------------------------------------


def computed_mask(
    mask: Atom, makers: dict[Variable, GraphNode], most: int
) -> tuple[Graph, tuple[Atom, ...]] | None:
    """The graph, of `most` operations, that makes a mask of less than itself, and of what."""
    if not isinstance(mask, Variable) or not _is_matrix(mask.type.shape):
        return None
    found = _Extract(makers, most)
    result = found.atom(mask)
    if result is None or not isinstance(result, Variable):
        return None
    return Graph(tuple(found.inputs.values()), tuple(found.nodes), (result,)), tuple(found.inputs)


def _is_matrix(shape: Shape) -> bool:
    return len(shape) >= 2 and shape[-1] != 1 and shape[-2] != 1


class _Extract:
    """Copies the nodes that make a mask, down to values that are no matrices."""

    def __init__(self, makers: dict[Variable, GraphNode], most: int) -> None:
        self.makers, self.most = makers, most
        self.inputs: dict[Atom, Variable] = {}
        self.nodes: list[GraphNode] = []
        self.known: dict[Variable, Atom] = {}

    def atom(self, atom: Atom) -> Atom | None:
        """The value in the new graph; None where it cannot be made of less."""
        if isinstance(atom, Literal):
            return None if _is_matrix(atom.type.shape) else self.leaf(atom)
        if atom not in self.known:
            found = self.node(atom) if _is_matrix(atom.type.shape) else self.leaf(atom)
            if found is None:
                return None
            self.known[atom] = found
        return self.known[atom]

    def leaf(self, atom: Atom) -> Atom:
        """A number as it is, anything else as an input."""
        if isinstance(atom, Literal) and atom.value.ndim == 0:
            return atom
        return self.inputs.setdefault(atom, Variable(atom.type))

    def node(self, variable: Variable) -> Atom | None:
        """The result of a copied node."""
        node = self.makers.get(variable)
        if node is None or len(self.nodes) >= self.most or not _is_inlined(node):
            return None
        operands = [self.atom(each) for each in node.operands]
        if any(each is None for each in operands):
            return None
        result = Variable(variable.type)
        made = GraphNode(node.primitive, tuple(operands), node.params, (result,), node.location)  # type: ignore[arg-type]
        self.nodes.append(made)
        return result


def _is_inlined(node: GraphNode) -> bool:
    """Whether an element follows from elements at the same place, counted from the last axis."""
    name, shape = node.primitive.name, node.results[0].type.shape
    if name == "iota":
        return bool(node.params["axis"] >= len(shape) - 2)
    if name in MOVED:
        before = node.operands[0].type.shape
        return name == "broadcast_to" or _without_leading_ones(before) == _without_leading_ones(
            shape
        )
    return name == "full" or (is_lowered(node) and (node.primitive.broadcasts or name == "convert"))


def _without_leading_ones(shape: Shape) -> Shape:
    """A shape without the axes of size 1 in front."""
    lead = next((place for place, dim in enumerate(shape) if dim != 1), len(shape))
    return shape[lead:]


# --- the primitives ------------------------------------------------------------------------------


_REASON = Unsupported("it stands in compiled programs only, after derivatives and batching")


def _with_mask(operands: Sequence[Any], masking: Graph, count: int, mask: Any) -> list[Any]:
    """Operands with a mask in place of what it is made of."""
    return [*operands[:count], mask, *operands[count + len(masking.inputs) :]]


def _type_rule(primitive: Primitive, count: int) -> Any:
    def rule(*operands: TensorType, masking: Graph, **params: Any) -> Any:
        mask = masking.outputs[0].type
        return primitive.type_rule(*_with_mask(operands, masking, count, mask), **params)

    return rule


def _reference(primitive: Primitive, count: int) -> Any:
    def reference(*operands: Array, masking: Graph, **params: Any) -> Any:
        given = operands[count : count + len(masking.inputs)]
        (mask,) = interpret(masking, *[wrap(each) for each in given])
        found = _with_mask(operands, masking, count, np.asarray(mask.numpy()))
        return primitive.reference(*found, **params)

    return reference


def _samples(primitive: Primitive, count: int) -> list[Sample]:
    """The samples without a mask, with one that compares numbers of queries with those of keys."""
    samples = []
    for each in primitive.samples():
        queries, keys = each.operands[0].shape[-2], each.operands[1].shape[-2]
        if len(each.operands) > count or each.operands[0].dtype != np.float32 or not keys:
            continue
        rows = np.arange(queries, dtype=np.float32)[:, None]
        columns = np.arange(keys, dtype=np.float32)
        kinds = [TensorType(float32, x.shape) for x in (rows, columns)]
        masking = trace(lambda i, j: (less_equal(j, i + 1.0),), kinds).closed_graph()
        operands = (*each.operands, rows, columns)
        params = {**each.params, "masking": masking, "guarded": True}
        samples.append(Sample(operands, params, derivative=False))
    return samples


def _computed_mask_primitive(primitive: Primitive, count: int) -> Primitive:
    return Primitive(
        f"computed_{primitive.name}",
        f"What {primitive.name} is, with a mask that a graph computes of fewer numbers.",
        kind=primitive.kind,
        type_rule=_type_rule(primitive, count),
        reference=_reference(primitive, count),
        derivatives=_REASON,
        batch=_REASON,
        samples=lambda: _samples(primitive, count),
        multiple=True,
    )


computed_attention: Primitive = _computed_mask_primitive(attention, 3)
computed_attention_gradient: Primitive = _computed_mask_primitive(attention_gradient, 6)

COMPUTED: dict[Primitive, tuple[Primitive, int]] = {
    attention: (computed_attention, 3),
    attention_gradient: (computed_attention_gradient, 6),
}
"""For each primitive, the one that computes its mask, and which operand the mask is."""
