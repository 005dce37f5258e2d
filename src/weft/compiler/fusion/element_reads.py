"""How one element of a value is computed: from which elements of which stored values.

`Reading` follows a value back through the nodes that are written into their readers, and turns
movement into arithmetic on indices. What becomes of loads, numbers and operations is decided by
the subclass: `Accesses` collects the loads, the lowering builds scalar expressions.

>>> from weft.compiler.fusion.affine_index import Affine
>>> aligned((Affine.variable(0), Affine.variable(1)), (1, 5), (4, 5))
(0, i1)
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Generic, TypeVar

from weft.compiler.fusion.affine_index import Affine
from weft.core.shapes import Dimension, Shape
from weft.ir.graph import Atom, GraphNode, Literal, Variable

T = TypeVar("T")
Index = tuple[Affine, ...]
Condition = tuple[Affine, Dimension]
"""An index and a bound: the condition that the index is not below 0 and below the bound."""
Loads = frozenset[tuple[Atom, Index]]
"""Which elements of stored values and of constants are read."""


class Reading(Generic[T]):
    """Follows values back to what is stored."""

    def __init__(self, producer: dict[Variable, GraphNode], stored: set[Variable]) -> None:
        self.producer = producer
        self.stored = stored
        self._known: dict[tuple[Atom, Index], T] = {}

    def load(self, variable: Variable, index: Index) -> T:
        """One element of a stored value."""
        raise NotImplementedError

    def literal(self, literal: Literal, index: Index) -> T:
        """One element of a constant."""
        raise NotImplementedError

    def number(self, value: Any, node: GraphNode) -> T:
        """A number of the node's dtype."""
        raise NotImplementedError

    def position(self, index: Affine, node: GraphNode) -> T:
        """An index as a number of the node's dtype."""
        raise NotImplementedError

    def operation(self, node: GraphNode, operands: list[T]) -> T:
        """An element-wise operation on elements."""
        raise NotImplementedError

    def choice(self, conditions: Sequence[Condition], inside: T, outside: T) -> T:
        """One of two elements: the first where all conditions hold."""
        raise NotImplementedError

    def only_where(self, conditions: Sequence[Condition], element: T) -> T:
        """An element that nobody uses, and that is not read, where a condition does not hold."""
        raise NotImplementedError

    def at(self, atom: Atom, index: Index) -> T:
        """One element of a value."""
        key = (atom, index)
        if key not in self._known:
            self._known[key] = self._read(atom, index)
        return self._known[key]

    def _read(self, atom: Atom, index: Index) -> T:
        if isinstance(atom, Literal):
            return self.literal(atom, index)
        if atom in self.stored or atom not in self.producer:
            return self.load(atom, index)
        return self.of_node(self.producer[atom], index)

    def of_node(self, node: GraphNode, index: Index) -> T:
        """One element of a node's result, computed."""
        rule = MOVEMENT.get(node.primitive.name)
        if rule is not None:
            return rule(self, node, index)  # type: ignore[no-any-return]
        shape = node.results[0].type.shape
        operands = [
            self.at(operand, aligned(index, operand.type.shape, shape)) for operand in node.operands
        ]
        return self.operation(node, operands)


class Accesses(Reading[Loads]):
    """Collects which elements of stored values an element is computed from."""

    def load(self, variable: Variable, index: Index) -> Loads:
        """The element itself."""
        return frozenset([(variable, index)])

    def literal(self, literal: Literal, index: Index) -> Loads:
        """The element of an array; a number is read from nowhere."""
        return frozenset([(literal, index)] if literal.value.ndim else [])

    def number(self, value: Any, node: GraphNode) -> Loads:
        """Nothing that is stored."""
        return frozenset()

    def position(self, index: Affine, node: GraphNode) -> Loads:
        """Nothing that is stored."""
        return frozenset()

    def operation(self, node: GraphNode, operands: list[Loads]) -> Loads:
        """What all operands are computed from."""
        return frozenset().union(*operands)

    def choice(
        self,
        conditions: Sequence[Condition],
        inside: Loads,
        outside: Loads,
    ) -> Loads:
        """What either is computed from."""
        return inside | outside

    def only_where(self, conditions: Sequence[Condition], element: Loads) -> Loads:
        """What it is computed from."""
        return element


def aligned(index: Index, operand: Shape, result: Shape) -> Index:
    """The index of a broadcast operand's element that goes into an element of the result."""
    extra = len(result) - len(operand)
    return tuple(
        Affine() if dim == 1 and result[axis + extra] != 1 else index[axis + extra]
        for axis, dim in enumerate(operand)
    )


def _transpose(reading: Reading[Any], node: GraphNode, index: Index) -> Any:
    order = node.params["order"]
    turned = [Affine()] * len(order)
    for place, axis in enumerate(order):
        turned[axis] = index[place]
    return reading.at(node.operands[0], tuple(turned))


def _broadcast(reading: Reading[Any], node: GraphNode, index: Index) -> Any:
    operand = node.operands[0]
    return reading.at(operand, aligned(index, operand.type.shape, node.params["shape"]))


def _reshape(reading: Reading[Any], node: GraphNode, index: Index) -> Any:
    """Only axes of size 1 come and go; other reshapes are not written into their readers."""
    operand = node.operands[0]
    kept = [i for i, dim in zip(index, node.params["shape"], strict=True) if dim != 1]
    places = iter(kept)
    return reading.at(
        operand, tuple(Affine() if dim == 1 else next(places) for dim in operand.type.shape)
    )


def _slice(reading: Reading[Any], node: GraphNode, index: Index) -> Any:
    starts, strides = node.params["starts"], node.params["strides"]
    moved = [i * stride + start for i, start, stride in zip(index, starts, strides, strict=True)]
    return reading.at(node.operands[0], tuple(moved))


def _flip(reading: Reading[Any], node: GraphNode, index: Index) -> Any:
    operand = node.operands[0]
    axes = node.params["axes"]
    turned = [
        i * -1 + (operand.type.shape[axis] - 1) if axis in axes else i
        for axis, i in enumerate(index)
    ]
    return reading.at(operand, tuple(turned))


def _pad(reading: Reading[Any], node: GraphNode, index: Index) -> Any:
    operand = node.operands[0]
    moved = [i + -low for i, (low, _, _) in zip(index, node.params["padding"], strict=True)]
    conditions = [
        (i, dim)
        for i, dim, sides in zip(moved, operand.type.shape, node.params["padding"], strict=True)
        if sides != (0, 0, 0)
    ]
    inside = reading.at(operand, tuple(moved))
    return reading.choice(conditions, inside, reading.number(node.params["value"], node))


def _concatenate(reading: Reading[Any], node: GraphNode, index: Index) -> Any:
    axis = node.params["axis"]
    end = node.results[0].type.shape[axis]
    found: Any = None
    for operand in reversed(node.operands):
        extent = operand.type.shape[axis]
        start = end - extent
        moved = (*index[:axis], index[axis] + -start, *index[axis + 1 :])
        element, within = reading.at(operand, moved), [(moved[axis], extent)]
        # the last part is what is left over: elsewhere its index is out of bounds
        found = (
            reading.only_where(within, element)
            if found is None
            else reading.choice(within, element, found)
        )
        end = start
    return found


def _same(reading: Reading[Any], node: GraphNode, index: Index) -> Any:
    return reading.at(node.operands[0], index)


MOVEMENT: dict[str, Callable[[Reading[Any], GraphNode, Index], Any]] = {
    "transpose": _transpose,
    "broadcast_to": _broadcast,
    "reshape": _reshape,
    "slice": _slice,
    "flip": _flip,
    "pad": _pad,
    "concatenate": _concatenate,
    "stop_gradient": _same,
    "barrier": _same,
    "full": lambda reading, node, index: reading.number(node.params["value"], node),
    "iota": lambda reading, node, index: reading.position(index[node.params["axis"]], node),
}
"""How movement becomes arithmetic on indices."""
