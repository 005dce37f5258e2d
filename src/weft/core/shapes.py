"""Shapes: tuples of dimensions, each an integer or a symbolic `Dim`.

A `Dim` is a polynomial with integer coefficients over symbols and floor quotients, always in normal
form, so that equal dimensions have equal structure and equal text. It is never constant: arithmetic
that comes out constant gives a plain `int`. A symbol stands for an unknown integer of at least 1;
an expression over symbols may be 0.

Requirements between sizes are collected by a `Unifier`, with the place that made each of them.

>>> from weft.core.shapes import broadcast_shapes, parse_dim, size, symbol
>>> batch = symbol("batch")
>>> size((batch + 1, 2))
2*batch + 2
>>> (batch * 4) // 2 - batch - batch
0
>>> parse_dim("floor((batch - 1)/2)") == (batch - 3) // 2 + 1
True
>>> broadcast_shapes("add", [(batch, 1), (784,)], {})
(batch, 784)
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextvars import ContextVar, Token
from dataclasses import dataclass
from functools import cache
from math import gcd
from numbers import Integral
from types import TracebackType
from typing import NoReturn, SupportsIndex, TypeAlias, TypeVar

from weft.core.errors import (
    ArgumentError,
    ArgumentTypeError,
    AxisError,
    GraphError,
    ShapeError,
    TraceError,
    WeftError,
)
from weft.core.locations import Location, user_location

# --- the symbol language -----------------------------------------------------------------------


Result = TypeVar("Result")


def _operator(
    rule: Callable[[Dimension, Dimension], Result],
) -> Callable[[Dim, DimensionLike], Result]:
    """A binary method of `Dim`, which leaves operands that are not integers to the other side."""

    def method(self: Dim, other: DimensionLike) -> Result:
        value = _dimension(other)
        return NotImplemented if value is None else rule(self, value)

    return method


@dataclass(frozen=True, slots=True)
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


@dataclass(frozen=True, slots=True, repr=False)
class Dim:
    """A symbolic dimension. Make one with `symbol` and arithmetic; `==` is equality for all sizes.

    `==` answers False, and does not raise, where two dimensions are equal for some sizes only; an
    order that depends on the sizes is a `TraceError`.

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
    __floordiv__ = _operator(lambda a, b: _floor_divide(a, b))
    __rfloordiv__ = _operator(lambda a, b: _floor_divide(b, a))
    __mod__ = _operator(lambda a, b: a - b * _floor_divide(a, b))
    __rmod__ = _operator(lambda a, b: b - a * _floor_divide(b, a))
    __lt__ = _operator(lambda a, b: _is_positive(b - a, f"{a} < {b}"))
    __gt__ = _operator(lambda a, b: _is_positive(a - b, f"{a} > {b}"))
    __le__ = _operator(lambda a, b: _is_positive(b - a + 1, f"{a} <= {b}"))
    __ge__ = _operator(lambda a, b: _is_positive(a - b + 1, f"{a} >= {b}"))

    def __neg__(self) -> Dimension:
        return _multiply(self, -1)

    def __pos__(self) -> Dim:
        return self

    def __index__(self) -> int:
        raise _undecided(self, f"the value of {self}")

    def __float__(self) -> float:
        raise _undecided(self, f"the value of {self}")

    def __bool__(self) -> bool:
        if _is_negative(self) or _is_negative(-self):
            return True
        raise _undecided(self, f"whether {self} is 0")

    __int__ = __index__

    def __str__(self) -> str:
        return _text(self)

    __repr__ = __str__


Dimension: TypeAlias = int | Dim
DimensionLike: TypeAlias = SupportsIndex | Dim  # an integer of some kind, NumPy's too
Shape: TypeAlias = tuple[Dimension, ...]


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
        factors = [_substitute_atom(atom, mapping) for atom in monomial]
        total = total + size((coefficient, *factors))
    return total


def _substitute_atom(atom: Atom, mapping: Mapping[str, Dimension]) -> Dimension:
    if isinstance(atom, str):
        return mapping[atom] if atom in mapping else symbol(atom)
    below = substitute(atom.denominator, mapping)
    return _floor_divide(substitute(atom.numerator, mapping), below)


def _atom_symbols(atom: Atom) -> frozenset[str]:
    if isinstance(atom, str):
        return frozenset([atom])
    return _symbols(atom.numerator) | _symbols(atom.denominator)


def _symbols(dim: Dimension) -> frozenset[str]:
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


def _floor_divide(a: Dimension, b: Dimension) -> Dimension:
    if isinstance(a, int) and isinstance(b, int):
        return a // b if b else _refuse_zero(a)
    if b == 0:
        _refuse_zero(a)
    if _leading(b) < 0:
        return _floor_divide(-a, -b)
    if isinstance(b, int) and _leading(a) < 0:  # floor(-x/b) = -floor((x + b - 1)/b)
        return -_floor_divide(-a + b - 1, b)
    quotient, remainder = _divide(a, b)
    return quotient + _proper_quotient(remainder, b)


def _leading(dim: Dimension) -> int:
    return dim if isinstance(dim, int) else dim.terms[0][1]


def _divide(a: Dimension, b: Dimension) -> tuple[Dimension, Dimension]:
    """Polynomials q and r with a = b*q + r, as much of a as possible being in q."""
    (lead, scale), pending = _highest(_terms(b)), _terms(a)
    quotient, remainder = Terms(), Terms()
    while pending:
        monomial, coefficient = _highest(pending)
        rest = _without(monomial, lead)
        if rest is None or not coefficient // scale:
            remainder[monomial] = pending.pop(monomial)
            continue
        quotient[rest] = coefficient // scale
        taken = _multiply(_normal({rest: coefficient // scale}), b)
        pending = _terms(_combine(_normal(pending), -1, taken))
        if coefficient % scale:
            remainder[monomial] = pending.pop(monomial)
    return _normal(quotient), _normal(remainder)


def _highest(terms: Terms) -> tuple[Monomial, int]:
    monomial = min(terms, key=_rank)
    return monomial, terms[monomial]


def _without(monomial: Monomial, factor: Monomial) -> Monomial | None:
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
        return _floor_divide(_scale_down(a, common), _scale_down(b, common))
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
    return _floor_divide(atom.numerator + offset * atom.denominator, atom.denominator * b)


# --- order -------------------------------------------------------------------------------------


def _lower(dim: Dimension) -> int | None:
    """A lower bound from every symbol being at least 1; None where there is none."""
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


def _is_negative(dim: Dimension) -> bool:
    lower = _lower(-dim)
    return lower is not None and lower > 0


def _is_positive(difference: Dimension, question: str) -> bool:
    lower = _lower(difference)
    if lower is not None and lower > 0:
        return True
    if _is_negative(difference - 1):
        return False
    raise _undecided(difference, f"whether {question}")


def _undecided(dim: Dimension, wanted: str) -> TraceError:
    names = ", ".join(sorted(_symbols(dim)))
    return TraceError(
        "dimension",
        f"{wanted} depends on {names}, whose size is not known while tracing",
        expected=f"a question with one answer for all sizes of {names} from 1 up",
        got=dict.fromkeys(sorted(_symbols(dim)), "a symbolic dimension"),
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


def parse_dim(text: str) -> Dimension:
    """Read back what `str` of a dimension prints.

    >>> parse_dim("2*batch + 1") == 2 * symbol("batch") + 1
    True
    >>> parse_dim("784")
    784
    """
    return _Parser(text).parse()


class _Parser:
    """A method per rule of the grammar.

    sum = ["-"] product {("+" | "-") product};  product = factor {"*" factor};
    factor = integer | name | "(" sum ")" | "floor(" ["-"] product "/" factor ")"
    """

    def __init__(self, text: str) -> None:
        self.text = text
        self.tokens = re.findall(r"\d+|[^\W\d]\w*|\S", text)[::-1]

    def parse(self) -> Dimension:
        result = self.sum()
        return result if not self.tokens else self.fail()

    def accept(self, *tokens: str) -> str:
        return self.tokens.pop() if self.tokens and self.tokens[-1] in tokens else ""

    def expect(self, token: str) -> None:
        if not self.accept(token):
            self.fail()

    def sum(self) -> Dimension:
        total = self.signed_product()
        while sign := self.accept("+", "-"):
            product = self.product()
            total = total + product if sign == "+" else total - product
        return total

    def signed_product(self) -> Dimension:
        return -self.product() if self.accept("-") else self.product()

    def product(self) -> Dimension:
        result = self.factor()
        while self.accept("*"):
            result = result * self.factor()
        return result

    def factor(self) -> Dimension:
        token = self.tokens.pop() if self.tokens else ""
        if token.isdecimal():
            return int(token)
        if token == "(":
            result = self.sum()
            self.expect(")")
            return result
        if token == "floor" and self.accept("("):
            return self.floor()
        return symbol(token) if token.isidentifier() else self.fail()

    def floor(self) -> Dimension:
        numerator = self.signed_product()
        self.expect("/")
        denominator = self.factor()
        self.expect(")")
        return _floor_divide(numerator, denominator)

    def fail(self) -> NoReturn:
        raise GraphError(
            "parse_dim",
            "this is not a dimension",
            expected="sums and products of integers, names and floor(a/b)",
            got={"text": repr(self.text)},
            fix='parse_dim("2*batch + 1")',
        )


# --- unification -------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Binding:
    """A symbol's value and the place that required it."""

    symbol: str
    value: Dimension
    at: Location | None

    def __str__(self) -> str:
        where = f" at {self.at}" if self.at else ""
        return f"{self.symbol} = {self.value} was fixed{where}"


class ContradictionError(ShapeError):
    """A size that contradicts an earlier requirement; `earlier` is the place that made it."""

    earlier: Location | None = None


class Unifier:
    """Collects what sizes must be equal, while it is entered. The innermost one is in charge.

    `at` overrides the place that requirements are noted under, for code that replays a graph.

    >>> batch, time = symbol("batch"), symbol("time")
    >>> with Unifier() as sizes:
    ...     equal(2 * batch, 64), equal(time, batch), equal(time, 33)
    (True, True, False)
    >>> sizes.resolve_shape((batch, time + 1))
    (32, 33)
    """

    def __init__(self) -> None:
        self.bindings: dict[str, Binding] = {}
        self.at: Location | None = None
        self._tokens: list[Token[Unifier | None]] = []

    def __enter__(self) -> Unifier:
        self._tokens.append(_active.set(self))
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        _active.reset(self._tokens.pop())

    def resolve(self, dim: Dimension) -> Dimension:
        """The dimension with every known symbol replaced, through all bindings."""
        while known := _symbols(dim) & self.bindings.keys():
            dim = substitute(dim, {name: self.bindings[name].value for name in known})
        return dim

    def resolve_shape(self, shape: Shape) -> Shape:
        """The shape with every known symbol replaced."""
        return tuple([self.resolve(dim) for dim in shape])

    def unify(self, a: Dimension, b: Dimension) -> bool:
        """Make two dimensions equal by binding at most one symbol; False where that cannot be."""
        difference = self.resolve(a) - self.resolve(b)
        if isinstance(difference, int):
            return difference == 0
        solution = _solve(difference)
        if solution is None:
            return False
        name, value = solution
        self.bindings[name] = Binding(name, value, self.at or user_location())
        return True

    def causes(self, *dims: Dimension) -> list[Binding]:
        """The bindings that decide these dimensions, followed through to the last."""
        found: dict[str, Binding] = {}
        pending = [name for dim in dims for name in sorted(_symbols(dim))]
        for name in pending:  # grows while it is walked
            if name in self.bindings and name not in found:
                found[name] = self.bindings[name]
                pending += sorted(_symbols(found[name].value))
        return list(found.values())


_active: ContextVar[Unifier | None] = ContextVar("weft_unifier", default=None)


def equal(a: Dimension, b: Dimension) -> bool:
    """Whether two dimensions are equal, or can be made so in the active `Unifier`.

    >>> equal(symbol("batch"), 32)
    False
    >>> with Unifier() as sizes:
    ...     equal(symbol("batch"), 32), sizes.resolve(symbol("batch"))
    (True, 32)
    """
    if a == b:
        return True
    if isinstance(a, int) and isinstance(b, int):
        return False
    unifier = _active.get()
    return unifier is not None and unifier.unify(a, b)


def require_equal(
    op: str,
    a: Dimension,
    b: Dimension,
    *,
    expected: str,
    got: Mapping[str, object],
    fix: str,
    what: str,
) -> Dimension:
    """The one size that two dimensions have; a `ShapeError` with problem `what` if they differ.

    >>> require_equal("matmul", 3, 3, expected="", got={}, fix="", what="inner dimensions differ")
    3
    """
    if equal(a, b):
        return _resolved(a)
    raise _mismatch(op, a, b, what=what, expected=expected, got=got, fix=fix)


def _resolved(dim: Dimension) -> Dimension:
    unifier = _active.get()
    return dim if unifier is None or isinstance(dim, int) else unifier.resolve(dim)


def _solve(difference: Dim) -> tuple[str, Dimension] | None:
    """A symbol and the value for which the difference is 0, where there is exactly one."""
    solvable = [
        (abs(coefficient) != 1, coefficient > 0, name, coefficient)
        for monomial, coefficient in difference.terms
        for name in monomial
        if len(monomial) == 1 and isinstance(name, str)
    ]
    for _, _, name, coefficient in sorted(solvable):
        rest = difference - coefficient * symbol(name)
        value, remainder = _divide(-rest if coefficient > 0 else rest, abs(coefficient))
        if remainder == 0 and name not in _symbols(rest) and _can_be_size(value):
            return name, value
    return None


def _can_be_size(dim: Dimension) -> bool:
    return not _is_negative(dim - 1)


def _mismatch(
    op: str,
    a: Dimension,
    b: Dimension,
    *,
    what: str,
    expected: str,
    got: Mapping[str, object],
    fix: str,
    where: str = "",
) -> ShapeError:
    """The error for two sizes that differ, naming the earlier places that decided them."""
    unifier = _active.get()
    causes = unifier.causes(a, b) if unifier else []
    difference = _resolved(a) - _resolved(b)
    differ = isinstance(difference, int) or _is_negative(difference) or _is_negative(-difference)
    relation = "!=" if differ else "is not known to equal"
    note = "; ".join([f"{where}{a} {relation} {b}", *map(str, causes)])
    kind = ContradictionError if causes else ShapeError
    at = unifier.at if unifier else None
    error = kind(op, what, expected=expected, got=got, fix=fix, note=note, at=at)
    if isinstance(error, ContradictionError):
        error.earlier = causes[-1].at
    return error


# --- shapes ------------------------------------------------------------------------------------


def size(shape: Iterable[Dimension]) -> Dimension:
    """The number of elements.

    >>> size((2, 3)), size((symbol("batch"), 3)), size(())
    (6, 3*batch, 1)
    """
    product: Dimension = 1
    for dim in shape:
        product = product * dim
    return product


def is_static(shape: Shape) -> bool:
    """Whether every dimension is an integer.

    >>> is_static((2, 3)), is_static((symbol("batch"), 3))
    (True, False)
    """
    return all(isinstance(dim, int) for dim in shape)


def check_shape(op: str, shape: object) -> Shape:
    """A shape from a dimension or a sequence of them, with integers of any kind made `int`.

    >>> check_shape("zeros", 3), check_shape("zeros", [2, symbol("batch")])
    ((3,), (2, batch))
    """
    single = _integer(shape)
    if single is not None:
        return (_check_dimension(op, single, shape),)
    if isinstance(shape, str) or not isinstance(shape, Iterable):
        _refuse_shape(op, shape, f"{type(shape).__name__} is not a shape")
    return tuple([_check_dimension(op, dim, shape) for dim in shape])


def _check_dimension(op: str, dim: object, shape: object) -> Dimension:
    value = _integer(dim)
    if value is None:
        _refuse_shape(op, shape, f"{dim!r} is not an integer")
    if (isinstance(value, int) and value < 0) or _is_negative(value):
        raise ShapeError(
            op,
            "a dimension is negative",
            expected="dimensions of at least 0",
            got={"shape": shape},
            fix=f"write the size that is meant in place of {value}",
        )
    return value


def _integer(value: object) -> Dimension | None:
    """The value as a dimension where Python would take it for an index, a 0-d tensor too."""
    if isinstance(value, (int, Dim)):
        return value
    try:
        return operator.index(value)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        return None


def _refuse_shape(op: str, shape: object, problem: str) -> NoReturn:
    raise ArgumentTypeError(
        op,
        problem,
        expected="an integer or a sequence of integers",
        got={"shape": repr(shape)},
        fix="round sizes down with n // 2 or int(n), as in shape=(2, 3)",
    )


def broadcast_shapes(op: str, shapes: Sequence[Shape], got: Mapping[str, object]) -> Shape:
    """The shape that all the shapes broadcast to, by NumPy's rules; `got` names the operands.

    >>> broadcast_shapes("add", [(3, 1), (4,)], {})
    (3, 4)
    """
    first = shapes[0] if shapes else ()
    if all(shape == first for shape in shapes):
        return first
    rank = max(map(len, shapes))
    return tuple([_broadcast_axis(op, axis, shapes, got) for axis in range(-rank, 0)])


def _broadcast_axis(
    op: str, axis: int, shapes: Sequence[Shape], got: Mapping[str, object]
) -> Dimension:
    result: Dimension = 1
    owner = 0
    for index, shape in enumerate(shapes):
        dim = shape[axis] if len(shape) >= -axis else 1
        if dim == result or dim == 1:
            continue
        if result == 1:
            result, owner = dim, index
        elif not equal(result, dim):
            raise _broadcast_error(op, axis, shapes, (owner, index), got)
        else:
            result = _resolved(result)
    return result


def _broadcast_error(
    op: str,
    axis: int,
    shapes: Sequence[Shape],
    pair: tuple[int, int],
    got: Mapping[str, object],
) -> ShapeError:
    operands = got if len(got) == len(shapes) else {f"x{i}": s for i, s in enumerate(shapes)}
    names = list(operands)
    first, second = pair
    return _mismatch(
        op,
        shapes[first][axis],
        shapes[second][axis],
        what="shapes do not broadcast",
        expected="dimensions equal or 1, from the right",
        got=operands,
        fix=_broadcast_fix(axis, (names[first], shapes[first]), (names[second], shapes[second])),
        where=f"axis {axis}: ",
    )


def _broadcast_fix(axis: int, first: tuple[str, Shape], second: tuple[str, Shape]) -> str:
    (_, large), (name, small) = sorted([first, second], key=lambda pair: -len(pair[1]))
    missing = len(large) - len(small)
    if missing and large[: len(small)] == small:
        return f"line {name} up from the left: {name}[{', '.join(['...'] + ['None'] * missing)}]"
    if len(small) > 1 and small == (*large[:-2], *large[:-3:-1]):
        return f"transpose {name}: {name}.mT"
    trail = ", :" * (-axis - 1)
    return f"make {name}.shape[{axis}] {large[axis]}, or 1 to repeat it: {name}[..., :1{trail}]"


# --- axes --------------------------------------------------------------------------------------


def normalize_axis(op: str, axis: object, ndim: int, got: Mapping[str, object]) -> int:
    """An axis counted from 0, from one that may be counted from the end.

    >>> normalize_axis("sum", -1, 3, {})
    2
    """
    index = None if isinstance(axis, bool) else _integer(axis)
    if not isinstance(index, int):
        raise _axis_error(op, f"axis {axis!r} is not an integer", axis, ndim, got)
    if not -ndim <= index < ndim:
        raise _axis_error(op, f"axis {index} is out of range", axis, ndim, got)
    return index % ndim


def normalize_axes(op: str, axis: object, ndim: int, got: Mapping[str, object]) -> tuple[int, ...]:
    """Axes counted from 0, in the order given, from one axis, several, or None for all.

    >>> normalize_axes("sum", None, 2, {}), normalize_axes("sum", (-1, 0), 2, {})
    ((0, 1), (1, 0))
    """
    if axis is None:
        return tuple(range(ndim))
    if isinstance(axis, str) or not isinstance(axis, Sequence):
        return (normalize_axis(op, axis, ndim, got),)
    axes = tuple([normalize_axis(op, item, ndim, got) for item in axis])
    if len(set(axes)) != len(axes):
        repeated = next(item for item in axes if axes.count(item) > 1)
        raise _axis_error(op, f"axis {repeated} is named twice", axis, ndim, got)
    return axes


def _axis_error(
    op: str, problem: str, axis: object, ndim: int, got: Mapping[str, object]
) -> WeftError:
    if isinstance(axis, Sequence) and not isinstance(axis, str):
        unique = tuple(dict.fromkeys(item % ndim for item in axis))
        fix = f"name each axis once: axis={unique}"
    elif ndim:
        fix = "axis=0" if ndim == 1 else f"pick one, for example the last: axis={ndim - 1}"
    else:
        fix = "leave axis out: there is only one element"
    expected = f"an integer from {-ndim} to {ndim - 1}" if ndim else "no axis: there is none"
    return AxisError(op, problem, expected=expected, got={**got, "axis": repr(axis)}, fix=fix)
