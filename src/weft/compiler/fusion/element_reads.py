"""How one element of a value is computed: from which elements of which stored values.

`Reading` follows a value back through the nodes that are written into their readers; movement is
arithmetic on indices, which its kind says (`weft.ops.movement_reads`). What becomes of loads,
numbers and operations is decided by the subclass: `Accesses` collects the loads, the lowering
builds scalar expressions.

>>> import weft as wf
>>> from weft.ir.affine_index import Affine
>>> graph = wf.ir.trace(lambda x: x.T[1:], wf.spec("float32", (2, 3)))
>>> accesses = Accesses({v: node for node in graph.nodes for v in node.results}, set())
>>> [index for _, index in accesses.element_at(graph.outputs[0], (Affine.variable(0), Affine()))]
[(0, i0 + 1)]
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Generic, TypeVar

from weft.ir.affine_index import Affine
from weft.ir.graph import Atom, GraphNode, Literal, Variable
from weft.ir.kinds import Condition, Index, Movement
from weft.ops.movement_reads import align_index

T = TypeVar("T")
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

    def element_at(self, atom: Atom, index: Index) -> T:
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
        kind = node.primitive.kind
        if isinstance(kind, Movement) and kind.read is not None:
            return kind.read(self, node, index)  # type: ignore[no-any-return]
        shape = node.results[0].type.shape
        operands = [
            self.element_at(operand, align_index(index, operand.type.shape, shape))
            for operand in node.operands
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
