"""Sums of products: one form for expressions that differ only in how they are written.

An expression over rows is a polynomial: terms, each a number times powers of factors. A factor is a
value that is not looked into, or the sum of a term along rows; what is the same along a row is
taken out of such a sum. So `p · (a - Σ(a · p))` is found however it is spelled.

>>> import weft as wf
>>> kinds = [wf.spec("float32", (3,))] * 2
>>> graph = wf.ir.trace(lambda a, b: (a * b - (b * a) / 2.0, 0.5 * a * b), *kinds)
>>> left, right = (Polynomials(graph, ndim=1).polynomial_of(atom) for atom in graph.outputs)
>>> left == right
True
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

from weft.ir.graph import Atom, Graph, GraphNode, Literal, Variable
from weft.ir.primitive import Primitive, find
from weft.ir.walking import keeps_elements
from weft.ops.movement import broadcast_to, full, reshape
from weft.ops.reduction import reduce_sum

__all__ = ["Polynomial", "Polynomials", "Sum", "factors", "ratio", "variables"]

Factor: TypeAlias = "Variable | Sum"
Term: TypeAlias = frozenset[tuple[Factor, int]]
Polynomial: TypeAlias = dict[Term, float]
MOST = 8
"""Terms beyond which an expression is not looked into: a bound on the compiler's own work."""


class Sum(tuple[Term]):
    """The sum of a term along rows."""

    __slots__ = ()


def factors(*found: tuple[Factor, int]) -> Term:
    """A product of powers."""
    powers: dict[Factor, int] = {}
    for factor, power in found:
        powers[factor] = powers.get(factor, 0) + power
    return frozenset([(factor, power) for factor, power in powers.items() if power])


def variables(term: Term) -> set[Variable]:
    """The variables of a term, in its sums too."""
    found: set[Variable] = set()
    for factor, _ in term:
        found |= variables(factor[0]) if isinstance(factor, Sum) else {factor}
    return found


def ratio(found: Polynomial, wanted: Polynomial) -> float | None:
    """How many times another polynomial one is; None where it is not a multiple."""
    if found.keys() != wanted.keys() or not found:
        return None
    ratios = [found[each] / wanted[each] for each in found]
    near = all(abs(each - ratios[0]) <= 1e-6 * abs(ratios[0]) for each in ratios)
    return ratios[0] if near else None


class Polynomials:
    """The polynomials of values with `ndim` axes, the last of which are the rows.

    `through` says which values stand for others, and `chosen` which are others or 0: their product
    with a condition.
    """

    def __init__(
        self,
        graph: Graph,
        ndim: int,
        through: Callable[[GraphNode], Atom | None] = lambda node: None,
        chosen: Callable[[GraphNode], tuple[Atom, Variable] | None] = lambda node: None,
    ) -> None:
        self.makers = {v: node for node in graph.nodes for v in node.results}
        self.ndim = ndim
        self.through, self.chosen = through, chosen
        self._known: dict[Variable, Polynomial] = {}

    def polynomial_of(self, atom: Atom) -> Polynomial:
        """The polynomial of a value; a variable alone where nothing is known of it."""
        value = uniform(atom, self.makers)
        if value is not None:
            return {factors(): value} if value else {}
        if not isinstance(atom, Variable):
            return {factors((Variable(atom.type), 1)): 1.0}
        if atom not in self._known:
            self._known[atom] = {factors((atom, 1)): 1.0}
            found = self._polynomial_of_node(self.makers[atom]) if atom in self.makers else None
            if found is not None and len(found) <= MOST:
                self._known[atom] = found
        return self._known[atom]

    def _polynomial_of_node(self, node: GraphNode) -> Polynomial | None:
        other = self.through(node)
        if other is not None:
            return self.polynomial_of(other)
        choice = self.chosen(node)
        if choice is not None:
            return _times(self.polynomial_of(choice[0]), {factors((choice[1], 1)): 1.0})
        primitive = node.primitive
        if primitive in _ARITHMETIC and self._has_aligned_operands(node):
            return _ARITHMETIC[primitive](*[self.polynomial_of(each) for each in node.operands])
        if primitive is reduce_sum and self._is_over_rows(node):
            return _sum_along_rows(self.polynomial_of(node.operands[0]), self.ndim)
        if primitive is reshape and _is_column(node):
            return self.polynomial_of(node.operands[0])
        same_rank = node.operands and node.operands[0].type.ndim == node.results[0].type.ndim
        return (
            self.polynomial_of(node.operands[0])
            if primitive is broadcast_to and same_rank
            else None
        )

    def _is_over_rows(self, node: GraphNode) -> bool:
        return node.operands[0].type.ndim == self.ndim and node.params["axes"] == (self.ndim - 1,)

    def _has_aligned_operands(self, node: GraphNode) -> bool:
        """Whether no operand but a number has axes of other meaning than the result's."""
        ndim = node.results[0].type.ndim
        return all(
            each.type.ndim == ndim or uniform(each, self.makers) is not None
            for each in node.operands
        )


def uniform(atom: Atom, makers: dict[Variable, GraphNode]) -> float | None:
    """The real number that all elements of a value are, where that is known."""
    if isinstance(atom, Literal):
        value = atom.value
        if value.size == 0 or value.size > 4096 or value.dtype.kind == "c":
            return None
        return float(value.flat[0]) if (value == value.flat[0]).all() else None
    node = makers.get(atom)
    if node is None or atom.type.dtype.is_complex:
        return None
    if node.primitive is full:
        return float(node.params["value"])
    return uniform(node.operands[0], makers) if keeps_elements(node) else None


def _is_column(node: GraphNode) -> bool:
    """Whether a reshape gives each row a column, or takes it away."""
    before, after = node.operands[0].type.shape, node.results[0].type.shape
    return after == (*before, 1) or before == (*after, 1)


# --- arithmetic ----------------------------------------------------------------------------------


Arithmetic = Callable[..., Polynomial | None]
_ARITHMETIC: dict[Primitive, Arithmetic] = {}


def _stands_for(name: str) -> Callable[[Arithmetic], Arithmetic]:
    """Say what an operation on values is on their polynomials."""

    def register(arithmetic: Arithmetic) -> Arithmetic:
        _ARITHMETIC[find(name)] = arithmetic
        return arithmetic

    return register


@_stands_for("add")
def _plus(x: Polynomial | None, y: Polynomial | None) -> Polynomial | None:
    if x is None or y is None:
        return None
    total = dict(x)
    for term, number in y.items():
        total[term] = total.get(term, 0.0) + number
    return {term: number for term, number in total.items() if number}


@_stands_for("multiply")
def _times(x: Polynomial, y: Polynomial) -> Polynomial | None:
    total: Polynomial | None = {}
    for left, a in x.items():
        for right, b in y.items():
            total = _plus(total, {factors(*left, *right): a * b})
    return total


@_stands_for("negative")
def _negate(x: Polynomial) -> Polynomial | None:
    return _times(x, {factors(): -1.0})


@_stands_for("subtract")
def _minus(x: Polynomial, y: Polynomial) -> Polynomial | None:
    return _plus(x, _negate(y))


@_stands_for("divide")
def _divide_by_term(x: Polynomial, y: Polynomial) -> Polynomial | None:
    if len(y) != 1:
        return None
    ((term, number),) = y.items()
    return _times(x, {frozenset([(factor, -power) for factor, power in term]): 1 / number})


def _sum_along_rows(x: Polynomial, ndim: int) -> Polynomial | None:
    """The sum along rows: what is the same along them stands before it."""
    total: Polynomial | None = {}
    for term, number in x.items():
        outside = [pair for pair in term if _is_constant(pair[0], ndim)]
        inside = factors(*[pair for pair in term if not _is_constant(pair[0], ndim)])
        if not inside:
            return None
        total = _plus(total, {factors(*outside, (Sum((inside,)), 1)): number})
    return total


def _is_constant(factor: Factor, ndim: int) -> bool:
    """Whether a factor is the same along a row."""
    if isinstance(factor, Sum):
        return True
    return factor.type.ndim == ndim and factor.type.shape[-1] == 1
