"""Folding: what depends on nothing but constants is computed now, if it is small.

A tensor whose elements are all one number stays a number with a shape (`full`), however large: what
is computed from such tensors element by element is computed once. In operations that broadcast it
becomes the bare number. `iota` is kept as it is: in a fused kernel it costs nothing.

>>> import weft as wf
>>> graph = wf.ir.trace(lambda x: x * (wf.ones((2, 3)) + 1), wf.spec("float32", (2, 3)))
>>> print(fold_constants(graph))  # doctest: +ELLIPSIS
graph(a: f32[2, 3]) {
  b: f32[2, 3] = multiply(a, 2.0)...
  return b
}
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np

from weft.core.shapes import Dim, is_static
from weft.ir.graph import Atom, Graph, GraphNode, Literal
from weft.ir.kinds import Elementwise, Movement, Reduction
from weft.ir.primitive import Primitive
from weft.ir.walking import Tally, Walk, is_pure, replace_node
from weft.ops.movement import full

__all__ = ["fold_constants"]

Array = np.ndarray[Any, Any]
SMALL = 1024
"""The most elements that a constant computed by the compiler may have, so that programs stay
small on any machine."""
_CHEAP = 1 << 22
"""The most elements that are read to compute one: a bound on the compiler's own work."""
_EXACT = 1 << 24
"""Whole numbers below this are added without rounding in every float that reductions use."""


def fold_constants(graph: Graph, tally: Tally | None = None) -> Graph:
    """The graph with what is known before it runs written into it."""
    return _Fold(graph, tally).run()


class _Fold(Walk):
    """Computes nodes whose operands are known, node by node."""

    def visit(self, node: GraphNode) -> Sequence[Atom] | None:
        numbers = [self.uniform(atom) for atom in node.operands]
        if node.operands and all(number is None for number in numbers):
            folded = self.from_constants(node)
        else:
            folded = self.from_numbers(node, numbers)
        if folded is not None:
            self.tally[node.primitive.name] += 1
        return folded

    def from_numbers(
        self, node: GraphNode, numbers: Sequence[Array | None]
    ) -> Sequence[Atom] | None:
        """One number from operands that are one number each, or bare numbers for some."""
        kind = node.results[0].type
        if node.primitive is full:
            return None if kind.shape else [Literal(np.asarray(_evaluate_node(node, [])[0]))]
        rule = _number_rule(node.primitive)
        known = [number for number in numbers if number is not None]
        if rule is not None and known and len(known) == len(numbers):
            value = _attempt(rule, node, known)
            if value is not None:
                return [self.constant(np.asarray(value), kind, node)]
        return self.from_constants(node) or self.with_numbers(node, numbers)

    def from_constants(self, node: GraphNode) -> Sequence[Atom] | None:
        """Small results of constants."""
        constants = [atom.value for atom in node.operands if isinstance(atom, Literal)]
        if not constants or len(constants) < len(node.operands):
            return None
        if not is_pure(node) or not _is_small(node):
            return None
        values = _attempt(_evaluate_node, node, constants)
        return None if values is None else [Literal(np.asarray(value)) for value in values]

    def with_numbers(
        self, node: GraphNode, numbers: Sequence[Array | None]
    ) -> Sequence[Atom] | None:
        """The same operation on bare numbers, where other operands give the shape."""
        if not node.primitive.broadcasts:
            return None
        pairs = zip(node.operands, numbers, strict=True)
        bare = [a if n is None or a.type.ndim == 0 else Literal(n) for a, n in pairs]
        if all(map(operator.is_, bare, node.operands)):
            return None
        kind = node.primitive.type_rule(*[atom.type for atom in bare], **node.params)
        same = kind == node.results[0].type
        return self.put(replace_node(node, operands=tuple(bare))) if same else None


def _evaluate_node(node: GraphNode, arrays: Sequence[Array]) -> tuple[Array, ...]:
    """The results of a node on constants, by its reference."""
    result = node.primitive.reference(*arrays, **node.params)
    return result if node.primitive.multiple else (result,)


def _attempt(rule: Callable[..., Any], *arguments: Any) -> Any:
    """What a rule gives; None where it fails, which the program itself will then do."""
    try:
        with np.errstate(all="ignore"):
            return rule(*arguments)
    except Exception:
        return None


def _is_small(node: GraphNode) -> bool:
    kinds = [result.type for result in node.results]
    if not all(is_static(kind.shape) for kind in kinds) or _is_open(node.params.values()):
        return False
    read = sum(int(atom.type.size) for atom in node.operands)
    return read <= _CHEAP and all(int(kind.size) <= SMALL for kind in kinds)


def _is_open(params: Iterable[Any]) -> bool:
    """Whether parameters hold sizes that are not known, or graphs that may run for long."""
    return any(
        isinstance(value, (Dim, Graph)) or (isinstance(value, (tuple, list)) and _is_open(value))
        for value in params
    )


# --- numbers that stand for whole tensors ------------------------------------------------------


def _pointwise(node: GraphNode, numbers: Sequence[Array]) -> Array | None:
    return _evaluate_node(node, numbers)[0]


def _equal_number(node: GraphNode, numbers: Sequence[Array]) -> Array | None:
    """One of some equal numbers, where there is at least one."""
    shape = node.operands[0].type.shape
    sizes = [shape[axis] for axis in node.params["axes"]]
    return numbers[0] if all(isinstance(size, int) and size > 0 for size in sizes) else None


def _common_number(node: GraphNode, numbers: Sequence[Array]) -> Array | None:
    """The one number of all operands, and of what fills gaps, where they are equal to the bit."""
    kind, found = node.primitive.kind, list(numbers)
    if isinstance(kind, Movement) and kind.fill is not None:
        found.append(np.array(kind.fill(node.params), numbers[0].dtype))
    return found[0] if len({number.tobytes() for number in found}) == 1 else None


def _sum_of_equal(node: GraphNode, numbers: Sequence[Array]) -> Array | None:
    """The sum of equal numbers, where every order of adding them gives the same."""
    kind, value = node.operands[0].type, numbers[0]
    sizes = [kind.shape[axis] for axis in node.params["axes"]]
    if not is_static(tuple(sizes)) or kind.dtype.is_complex:
        return None
    total = value.item() * math.prod(map(int, sizes))
    if kind.dtype.is_integer:
        bits = total & ((1 << kind.dtype.bits) - 1)
        return np.array(bits, f"u{kind.dtype.itemsize}").view(kind.dtype.numpy)
    whole = float(value).is_integer() and abs(total) < _EXACT and total != 0
    rounded = np.array(total, value.dtype)
    return rounded if whole and rounded.item() == total else None


def _number_rule(primitive: Primitive) -> Callable[[GraphNode, Sequence[Array]], Any] | None:
    """What a primitive makes of operands whose elements are all equal; None where nothing known."""
    kind = primitive.kind
    if primitive.impure:
        return None
    if isinstance(kind, Elementwise):
        return _pointwise
    if isinstance(kind, Movement):
        return _common_number
    if not isinstance(kind, Reduction) or primitive.lower is not None:
        return None
    if kind.is_idempotent:
        return _equal_number
    return _sum_of_equal if kind.combine == "add" else None
