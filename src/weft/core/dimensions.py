"""Symbolic dimensions: the small language that sizes are written in.

A `Dim` is a polynomial with integer coefficients over symbols and floor quotients, always in normal
form, so that equal dimensions have equal structure and equal text. It is never constant: arithmetic
that comes out constant gives a plain `int`. A symbol stands for an unknown integer of at least 1;
an expression over symbols may be 0. What has no one answer for all sizes is answered for the sizes
of a call, by a guard (guards.py), or refused.

>>> from weft.core.dimensions import symbol
>>> batch = symbol("batch")
>>> (batch * 4) // 2 - batch - batch
0
>>> (batch - 3) // 2 + 1
floor((batch - 1)/2)
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache
from math import gcd
from numbers import Integral, Number
from typing import Any, NoReturn, SupportsIndex, TypeAlias, TypeVar

import numpy as np

from weft.core.errors import ArgumentError, TraceError
from weft.core.guards import Guard, Relation, active_guards, asked_outside
from weft.core.records import frozen

# --- the symbol language -----------------------------------------------------------------------


Result = TypeVar("Result")


def _operator(
    rule: Callable[[Dimension, Dimension], Result],
) -> Callable[[Dim, DimensionLike], Result]:
    """A binary method of `Dim`, which leaves operands that are not numbers to the other side."""

    def method(self: Dim, other: DimensionLike) -> Result:
        value = _dimension(other)
        if value is None and isinstance(other, Number):
            raise _undecided_error(self, f"the value of {self._text()}")
        return NotImplemented if value is None else rule(self, value)

    return method


def _order(
    difference: Callable[[Dimension, Dimension], Dimension], sign: str
) -> Callable[[Dim, DimensionLike], bool]:
    """A comparison of `Dim`, which holds where a difference is positive."""
    compare = _operator(
        lambda a, b: _is_positive(difference(a, b), f"{a} {sign} {b}", guarded=False)
    )
    ask = _operator(lambda a, b: _is_positive(difference(a, b), f"{a} {sign} {b}", guarded=True))

    def method(self: Dim, other: DimensionLike) -> bool:
        return ask(self, other) if asked_outside() else compare(self, other)

    return method


def _by_value(self: Dim, *operands: object) -> NoReturn:
    """A method that no symbolic size has an answer to: the value must be known."""
    raise _undecided_error(self, f"the value of {self._text()}")


@frozen
class Floor:
    """The atom floor(numerator/denominator); both sides are in normal form."""

    numerator: Dimension
    denominator: Dimension

    def __str__(self) -> str:
        above = str(self.numerator)
        below = str(self.denominator)
        above = f"({above})" if _is_sum(self.numerator) else above
        below = below if isinstance(self.denominator, int) or below.isidentifier() else f"({below})"
        return f"floor({above}/{below})"


Atom: TypeAlias = str | Floor
Monomial: TypeAlias = tuple[Atom, ...]  # sorted, with repetition; () is the constant
Terms: TypeAlias = dict[Monomial, int]


@frozen(repr=False, eq=False)
class Dim:
    """A symbolic dimension. Make one with `symbol` and arithmetic.

    A question that has one answer for all sizes is answered, and any other one too while a call is
    traced whose sizes are known: what was traced is then not used for sizes that answer otherwise.
    Elsewhere it is a `TraceError`. The value itself, which `int`, `hash` and `/` need, is not known
    in either case. Code of this library compares by structure.

    >>> time = symbol("time")
    >>> 2 * time + 1, time // 2, time % 2
    (2*time + 1, floor(time/2), time - 2*floor(time/2))
    >>> time >= 1, time == time + 1
    (True, False)
    """

    terms: tuple[tuple[Monomial, int], ...]  # highest degree first, no zero coefficient

    __array_ufunc__ = None  # so that a NumPy integer leaves arithmetic with a Dim to the Dim

    def symbols(self) -> frozenset[str]:
        """The names that the dimension depends on.

        >>> sorted((symbol("n") * symbol("m") // 3).symbols())
        ['m', 'n']
        """
        atoms = [atom for monomial, _ in self.terms for atom in monomial]
        return frozenset[str]().union(*map(_atom_symbols, atoms))

    __add__ = __radd__ = _operator(lambda a, b: _combine(a, 1, b))
    __sub__ = _operator(lambda a, b: _combine(a, -1, b))
    __rsub__ = _operator(lambda a, b: _combine(b, -1, a))
    __mul__ = __rmul__ = _operator(lambda a, b: _multiply(a, b))
    __floordiv__ = _operator(lambda a, b: floor_divide(a, b))
    __rfloordiv__ = _operator(lambda a, b: floor_divide(b, a))
    __mod__ = _operator(lambda a, b: a - b * floor_divide(a, b))
    __rmod__ = _operator(lambda a, b: b - a * floor_divide(b, a))
    __lt__ = _order(lambda a, b: b - a, "<")
    __gt__ = _order(lambda a, b: a - b, ">")
    __le__ = _order(lambda a, b: b - a + 1, "<=")
    __ge__ = _order(lambda a, b: a - b + 1, ">=")

    __divmod__ = _operator(lambda a, b: (a // b, a % b))
    __rdivmod__ = _operator(lambda a, b: (b // a, b % a))

    __index__ = __int__ = __float__ = __complex__ = _by_value
    __truediv__ = __rtruediv__ = __rpow__ = __invert__ = _by_value
    __and__ = __rand__ = __or__ = __ror__ = __xor__ = __rxor__ = _by_value
    __lshift__ = __rlshift__ = __rshift__ = __rrshift__ = _by_value

    def __eq__(self, other: object) -> bool:
        if isinstance(other, Dim) and self.terms == other.terms:
            return True
        if not asked_outside():
            return False if isinstance(other, (Dim, Integral)) else NotImplemented
        if isinstance(other, float) and other.is_integer():
            other = int(other)
        value = _dimension(other)
        if value is not None:
            return _is_zero(self - value, f"{self._text()} == {value}", guarded=True)
        if isinstance(other, np.ndarray):  # which would take a size for no number at all
            _by_value(self)
        return NotImplemented

    def __hash__(self) -> int:
        if asked_outside():  # for a table that has the number, and not the symbol, as a key
            _by_value(self)
        return hash(self.terms)

    def __bool__(self) -> bool:
        return not _is_zero(self, f"{self._text()} == 0", guarded=asked_outside())

    def __neg__(self) -> Dimension:
        return _multiply(self, -1)

    def __pos__(self) -> Dim:
        return self

    def __abs__(self) -> Dimension:
        question = f"{self._text()} >= 0"
        return self if _is_positive(self + 1, question, guarded=asked_outside()) else -self

    def __pow__(self, exponent: object) -> Dimension:
        count = _dimension(exponent)
        if not isinstance(count, int) or count < 0:
            _by_value(self)
        power: Dimension = 1
        for _ in range(count):
            power = power * self
        return power

    def __round__(self, digits: int | None = None) -> Dim:
        return self

    def __trunc__(self) -> Dim:
        return self

    __floor__ = __ceil__ = __trunc__

    def __getattr__(self, name: str) -> Any:
        if hasattr(int, name) and not name.startswith("__"):  # bit_length, to_bytes ...
            _by_value(self)
        raise AttributeError(f"a dimension has no attribute {name!r}", name=name, obj=self)

    def __str__(self) -> str:
        if active_guards(self.symbols()) is not None and asked_outside():
            _by_value(self)  # text may be a name that something is looked up by
        return self._text()

    def __format__(self, specification: str) -> str:
        if specification or (active_guards(self.symbols()) is not None and asked_outside()):
            _by_value(self)
        return self._text()

    __repr__ = __str__

    def _text(self) -> str:
        return _text(self)


Dimension: TypeAlias = int | Dim
DimensionLike: TypeAlias = SupportsIndex | Dim  # an integer of some kind, NumPy's too


def symbol(name: str) -> Dim:
    """The dimension of this name: an integer of at least 1 that is not known yet.

    >>> symbol("batch")
    batch
    """
    if not name.isidentifier():
        raise ArgumentError(
            "symbol",
            "a dimension's name must be an identifier",
            expected="letters, digits and underscores, not starting with a digit",
            got={"name": repr(name)},
            fix='symbol("batch")',
        )
    return Dim((((name,), 1),))


def substitute(dim: Dimension, mapping: Mapping[str, Dimension]) -> Dimension:
    """The dimension with symbols replaced by integers or other dimensions.

    >>> substitute(symbol("time") // 2 + 1, {"time": 7})
    4
    """
    if isinstance(dim, int):
        return dim
    total: Dimension = 0
    for monomial, coefficient in dim.terms:
        term: Dimension = coefficient
        for atom in monomial:
            term = term * _substitute_atom(atom, mapping)
        total = total + term
    return total


def _substitute_atom(atom: Atom, mapping: Mapping[str, Dimension]) -> Dimension:
    if isinstance(atom, str):
        return mapping[atom] if atom in mapping else symbol(atom)
    below = substitute(atom.denominator, mapping)
    return floor_divide(substitute(atom.numerator, mapping), below)


def _atom_symbols(atom: Atom) -> frozenset[str]:
    if isinstance(atom, str):
        return frozenset([atom])
    return symbols_in(atom.numerator) | symbols_in(atom.denominator)


def symbols_in(dim: Dimension) -> frozenset[str]:
    """The names that a dimension depends on; none for an integer."""
    return frozenset() if isinstance(dim, int) else dim.symbols()


# --- arithmetic in normal form -----------------------------------------------------------------


def _dimension(value: object) -> Dimension | None:
    """The value as a dimension, or None where it is neither a Dim nor an integer of some kind."""
    if isinstance(value, (int, Dim)):
        return value
    return int(value) if isinstance(value, Integral) else None


def _terms(dim: Dimension) -> Terms:
    return dict(dim.terms) if isinstance(dim, Dim) else {(): dim} if dim else {}


def _normal(terms: Terms) -> Dimension:
    kept = {monomial: coefficient for monomial, coefficient in terms.items() if coefficient}
    if not kept:
        return 0
    if kept.keys() == {()}:
        return kept[()]
    return Dim(tuple(sorted(kept.items(), key=lambda term: _rank(term[0]))))


def _rank(monomial: Monomial) -> tuple[int, list[tuple[bool, str]]]:
    """Graded lexicographic order: products keep it, which polynomial division rests on."""
    return -len(monomial), [_atom_rank(atom) for atom in monomial]


def _atom_rank(atom: Atom) -> tuple[bool, str]:
    return isinstance(atom, Floor), str(atom)


def _combine(a: Dimension, factor: int, b: Dimension) -> Dimension:
    """The sum a + factor*b."""
    terms = _terms(a)
    for monomial, coefficient in _terms(b).items():
        terms[monomial] = terms.get(monomial, 0) + factor * coefficient
    return _normal(terms)


def _multiply(a: Dimension, b: Dimension) -> Dimension:
    terms: Terms = {}
    for left, p in _terms(a).items():
        for right, q in _terms(b).items():
            monomial = tuple(sorted(left + right, key=_atom_rank))
            terms[monomial] = terms.get(monomial, 0) + p * q
    return _normal(terms)


def floor_divide(a: Dimension, b: Dimension) -> Dimension:
    """The quotient rounded down, in normal form; 0 as a divisor is refused."""
    if isinstance(a, int) and isinstance(b, int):
        return a // b if b else _refuse_zero(a)
    if b == 0:
        _refuse_zero(a)
    if _leading_coefficient(b) < 0:
        return floor_divide(-a, -b)
    if isinstance(b, int) and _leading_coefficient(a) < 0:  # floor(-x/b) = -floor((x + b - 1)/b)
        return -floor_divide(-a + b - 1, b)
    quotient, remainder = divide(a, b)
    return quotient + _proper_quotient(remainder, b)


def _leading_coefficient(dim: Dimension) -> int:
    return dim if isinstance(dim, int) else dim.terms[0][1]


def divide(a: Dimension, b: Dimension) -> tuple[Dimension, Dimension]:
    """Polynomials q and r with a = b*q + r, as much of a as possible being in q."""
    (lead, scale), pending = _highest_term(_terms(b)), _terms(a)
    quotient, remainder = Terms(), Terms()
    while pending:
        monomial, coefficient = _highest_term(pending)
        rest = _divide_monomial(monomial, lead)
        if rest is None or not coefficient // scale:
            remainder[monomial] = pending.pop(monomial)
            continue
        quotient[rest] = coefficient // scale
        taken = _multiply(_normal({rest: coefficient // scale}), b)
        pending = _terms(_combine(_normal(pending), -1, taken))
        if coefficient % scale:
            remainder[monomial] = pending.pop(monomial)
    return _normal(quotient), _normal(remainder)


def _highest_term(terms: Terms) -> tuple[Monomial, int]:
    monomial = min(terms, key=_rank)
    return monomial, terms[monomial]


def _divide_monomial(monomial: Monomial, factor: Monomial) -> Monomial | None:
    """The monomial divided by the factor, or None where it is not a multiple."""
    rest = list(monomial)
    for atom in factor:
        if atom not in rest:
            return None
        rest.remove(atom)
    return tuple(rest)


def _proper_quotient(a: Dimension, b: Dimension) -> Dimension:
    """floor(a/b) as an atom, for an `a` that holds no more multiples of `b`."""
    if isinstance(a, int) and isinstance(b, int):
        return a // b
    if a == 0:
        return 0
    common = _common_factor(a, b)
    if common > 1:
        return floor_divide(_scale_down(a, common), _scale_down(b, common))
    inner = _inner_quotient(a, b)
    if inner is not None:
        return inner
    return Dim((((Floor(a, b),), 1),))


def _common_factor(a: Dimension, b: Dimension) -> int:
    """What cancels; over an integer the constant of `a` needs no divisor: floor rounds it off."""
    above = [c for monomial, c in _terms(a).items() if monomial or not isinstance(b, int)]
    return gcd(*above, *_terms(b).values())


def _scale_down(dim: Dimension, divisor: int) -> Dimension:
    return _normal({monomial: c // divisor for monomial, c in _terms(dim).items()})


def _inner_quotient(a: Dimension, b: Dimension) -> Dimension | None:
    """By the law floor((floor(x/p) + k)/q) = floor((x + k*p)/(p*q)), where `a` is of that form."""
    terms = _terms(a)
    offset = terms.pop((), 0)
    if not isinstance(b, int) or list(terms.values()) != [1]:
        return None
    (monomial,) = terms
    atom = monomial[0]
    if len(monomial) != 1 or isinstance(atom, str) or not isinstance(atom.denominator, int):
        return None
    return floor_divide(atom.numerator + offset * atom.denominator, atom.denominator * b)


# --- order -------------------------------------------------------------------------------------


def _lower(dim: Dimension) -> int | None:
    """A lower bound, given that every symbol is at least 1; None if there is no bound."""
    if isinstance(dim, int):
        return dim
    total = 0
    for monomial, coefficient in dim.terms:
        low = 1
        for atom in monomial:
            low *= 1 if isinstance(atom, str) else _floor_lower(atom)
        if low < 0 or (coefficient < 0 and monomial):
            return _lower_by_quotients(dim)
        total += coefficient * low
    return total


def _floor_lower(atom: Floor) -> int:
    """The lower bound of a floor quotient if it is one of non-negative by positive, else -1."""
    low, below = _lower(atom.numerator), _lower(atom.denominator)
    if low is None or low < 0 or below is None or below < 1:
        return -1
    return low // below if isinstance(atom.denominator, int) else 0


def _lower_by_quotients(dim: Dim) -> int | None:
    """The bound from (x - d + 1)/d <= floor(x/d) <= x/d, for the first such term."""
    for monomial, coefficient in dim.terms:
        atom = monomial[0] if len(monomial) == 1 else ""
        if isinstance(atom, str) or not isinstance(atom.denominator, int):
            continue
        slack = atom.denominator - 1 if coefficient > 0 else 0
        rest = _combine(dim, -1, _normal({monomial: coefficient}))
        bound = _lower(atom.denominator * rest + coefficient * (atom.numerator - slack))
        return None if bound is None else -(-bound // atom.denominator)
    return None


def is_negative(dim: Dimension) -> bool:
    """Whether a dimension is known to be below 0 for all sizes."""
    lower = _lower(-dim)
    return lower is not None and lower > 0


def _is_positive(difference: Dimension, question: str, *, guarded: bool) -> bool:
    known = _known_to_be_positive(difference)
    return _for_this_call(difference, "positive", question, guarded) if known is None else known


def _known_to_be_positive(difference: Dimension) -> bool | None:
    """Whether a difference is above 0 for all sizes; None where that depends on them."""
    lower = _lower(difference)
    if lower is not None and lower > 0:
        return True
    return False if is_negative(difference - 1) else None


def is_positive(dim: Dimension) -> bool:
    """Whether a dimension is above 0: by a guard where a call has the answer, else for all sizes.

    For code of this library that acts upon it.

    >>> is_positive(symbol("n")), is_positive(symbol("n") - 3)
    (True, False)
    """
    known = _known_to_be_positive(dim)
    if known is None and active_guards(symbols_in(dim)) is not None:
        return _for_this_call(dim, "positive", f"{dim} > 0", guarded=True)
    return bool(known)


def _is_zero(difference: Dimension, question: str, *, guarded: bool) -> bool:
    known = _known_to_be_zero(difference)
    return _for_this_call(difference, "zero", question, guarded) if known is None else known


def _known_to_be_zero(difference: Dimension) -> bool | None:
    """Whether a difference is 0 for all sizes; None where that depends on them."""
    if isinstance(difference, int):
        return difference == 0
    return False if is_negative(difference) or is_negative(-difference) else None


def is_zero(dim: Dimension, *, strict: bool = False) -> bool:
    """Whether a dimension is 0: by a guard where a call has the answer, else by structure.

    For code of this library that acts upon it. A graph of unknown sizes is made for the usual case;
    with `strict` there is none, and the question is refused.

    >>> is_zero(symbol("n") - 3), is_zero(0)
    (False, True)
    """
    if isinstance(dim, int):
        return dim == 0
    known = _known_to_be_zero(dim)
    if known is None and (strict or active_guards(symbols_in(dim)) is not None):
        return _for_this_call(dim, "zero", f"{dim} is 0", guarded=True)
    return bool(known)


def _for_this_call(difference: Dimension, relation: Relation, question: str, guarded: bool) -> bool:
    """The answer for the sizes of the call that is traced, which makes it a guard.

    Without a guard, as in a type rule, which has no other answer when it is asked again.
    """
    guards = active_guards(symbols_in(difference)) if guarded else None
    if guards is None or isinstance(difference, int):
        raise _undecided_error(difference, f"whether {question}")
    guard = Guard(difference, relation, _answer(difference, relation, guards.sizes))
    guards.answers[guard] = None
    return guard.answer


def _answer(difference: Dim, relation: Relation, sizes: Mapping[str, int]) -> bool:
    value = substitute(difference, sizes)
    assert isinstance(value, int)
    return value == 0 if relation == "zero" else value > 0


def guard_holds(guard: Guard, sizes: Mapping[str, int]) -> bool:
    """Whether sizes give the answer that a trace was made with."""
    return _answer(guard.difference, guard.relation, sizes) is guard.answer


def _undecided_error(dim: Dimension, wanted: str) -> TraceError:
    names = ", ".join(sorted(symbols_in(dim)))
    return TraceError(
        "dimension",
        f"{wanted} depends on {names}, whose size is not known while tracing",
        expected=f"a question with one answer for all sizes of {names} from 1 up",
        got=dict.fromkeys(sorted(symbols_in(dim)), "a symbolic dimension"),
        fix=f"give {names} a fixed size (static_argnames=, or an integer in wf.spec), "
        f"or decide on the data with wf.where or wf.cond",
    )


def _refuse_zero(a: Dimension) -> NoReturn:
    raise ArgumentError(
        "dimension",
        "division by zero",
        expected="a divisor other than 0",
        got={"dividend": a, "divisor": 0},
        fix="divide by a positive size",
    )


# --- text --------------------------------------------------------------------------------------


def _is_sum(dim: Dimension) -> bool:
    return isinstance(dim, Dim) and len(dim.terms) > 1


@cache
def _text(dim: Dim) -> str:
    pieces = []
    for text, coefficient in _printed_terms(dim):
        sign = "- " if coefficient < 0 else "+ "
        number = str(abs(coefficient)) if abs(coefficient) != 1 or not text else ""
        pieces.append(sign + "*".join(filter(None, [number, text])))
    joined = " ".join(pieces)
    return joined[2:] if joined[0] == "+" else "-" + joined[2:]


def _printed_terms(dim: Dim) -> list[tuple[str, int]]:
    """Text and coefficient of each term; floor((t + 1)/2) - 1 is shown as floor((t - 1)/2)."""
    constant = _terms(dim).get((), 0)
    printed = []
    for monomial, coefficient in dim.terms:
        atom = monomial[0] if len(monomial) == 1 and coefficient == 1 else ""
        if constant < 0 and isinstance(atom, Floor) and _offset(atom):
            inside = atom.numerator + constant * atom.denominator
            printed.append((str(Floor(inside, atom.denominator)), 1))
            constant = 0
        elif monomial:
            printed.append(("*".join(map(str, monomial)), coefficient))
    return printed + ([("", constant)] if constant else [])


def _offset(atom: Floor) -> int:
    """The constant in the numerator over an integer denominator, else 0."""
    return _terms(atom.numerator).get((), 0) if isinstance(atom.denominator, int) else 0
