"""Shapes: tuples of dimensions, each an integer or a symbolic `Dim` (see dimensions.py).

Requirements between sizes are collected by a `Unifier`, with the place that made each of them.

>>> from weft.core.shapes import broadcast_shapes, size, symbol
>>> batch = symbol("batch")
>>> size((batch + 1, 2))
2*batch + 2
>>> broadcast_shapes("add", [(batch, 1), (784,)], {})
(batch, 784)
"""

from __future__ import annotations

import math
import operator
from collections.abc import Iterable, Mapping, Sequence
from itertools import islice
from typing import NoReturn, TypeAlias

from weft.core.dimension_text import parse_dim
from weft.core.dimensions import (
    Dim,
    Dimension,
    DimensionLike,
    divide,
    is_negative,
    substitute,
    symbol,
    symbols_in,
)
from weft.core.errors import ArgumentTypeError, AxisError, ShapeError, WeftError, short_repr
from weft.core.innermost import Innermost
from weft.core.locations import Location, user_location
from weft.core.records import frozen

__all__ = [
    "Binding", "ContradictionError", "Dim", "Dimension", "DimensionLike", "Shape", "Unifier",
    "broadcast_shapes", "check_shape", "equal", "is_static", "match_size", "mismatch",
    "normalize_axes", "normalize_axis", "parse_dim", "require_equal", "size", "substitute",
    "symbol",
]  # fmt: skip

Shape: TypeAlias = tuple[Dimension, ...]

# --- unification -------------------------------------------------------------------------------


@frozen
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


class Unifier(Innermost):
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
        super().__init__()
        self.bindings: dict[str, Binding] = {}
        self.at: Location | None = None

    def resolve(self, dim: Dimension) -> Dimension:
        """The dimension with every known symbol replaced, through all bindings."""
        while known := symbols_in(dim) & self.bindings.keys():
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
        """The bindings that decide these dimensions, followed through to the last.

        Of dimensions that are numbers by now, those that may have been a symbol before.
        """
        bindings: dict[str, Binding] = {}
        pending = [name for dim in dims for name in sorted(symbols_in(dim))]
        for name in pending:  # grows while it is walked
            if name in self.bindings and name not in bindings:
                bindings[name] = self.bindings[name]
                pending += sorted(symbols_in(bindings[name].value))
        return list(bindings.values()) or [b for b in self.bindings.values() if b.value in dims]


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
    unifier: Unifier | None = Unifier.innermost.get()
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
        return _resolve_dimension(a)
    raise mismatch(op, a, b, what=what, expected=expected, got=got, fix=fix)


def match_size(pattern: Dimension, dim: Dimension, known: dict[str, Dimension]) -> bool:
    """Whether a size fits a pattern; a symbol of the pattern may become known by it.

    >>> known = {"n": symbol("time")}
    >>> match_size(symbol("n") + 2 * symbol("m"), symbol("time") + 6, known), known
    (True, {'n': time, 'm': 3})
    """
    unknown = symbols_in(pattern) - known.keys()
    if len(unknown) > 1:
        # Several symbols have many solutions; where sizes are alike, each being itself is one.
        known |= {name: symbol(name) for name in unknown} if pattern == dim else {}
        return pattern == dim
    for name in unknown:
        value = _solve_pattern(pattern, dim, name, known)
        if value is None or is_negative(value):
            return False
        if not equal(substitute(pattern, {**known, name: value}), dim):
            return False
        known[name] = value
    return equal(substitute(pattern, known), dim)


def _solve_pattern(
    pattern: Dimension, dim: Dimension, name: str, known: Mapping[str, Dimension]
) -> Dimension | None:
    """The value that a symbol must have, in a pattern that is linear in it."""
    rest, one, two = [substitute(pattern, {**known, name: n}) for n in (0, 1, 2)]
    slope = one - rest
    return (dim - rest) // slope if slope != 0 and two == rest + 2 * slope else None


def _resolve_dimension(dim: Dimension) -> Dimension:
    unifier: Unifier | None = Unifier.innermost.get()
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
        value, remainder = divide(-rest if coefficient > 0 else rest, abs(coefficient))
        if remainder == 0 and name not in symbols_in(rest) and _can_be_size(value):
            return name, value
    return None


def _can_be_size(dim: Dimension) -> bool:
    return not is_negative(dim - 1)


def mismatch(
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
    unifier: Unifier | None = Unifier.innermost.get()
    causes = unifier.causes(a, b) if unifier else []
    difference = _resolve_dimension(a) - _resolve_dimension(b)
    differ = isinstance(difference, int) or is_negative(difference) or is_negative(-difference)
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
    if type(shape) is int and 0 <= shape <= _TOO_MANY:
        return (shape,)
    if type(shape) is tuple and len(shape) < 5:  # most shapes: up to four sizes below 2**14
        for dim in shape:
            if type(dim) is not int or dim >> 14:
                break
        else:
            return shape
    single = _integer(shape)
    if single is not None:
        return _check_count(op, (_check_dimension(op, single, shape),), shape)
    is_single = isinstance(shape, str) or getattr(shape, "ndim", 1) == 0
    if is_single or not isinstance(shape, Iterable):
        _refuse_shape(op, shape, f"{type(shape).__name__} is not a shape")
    # What is endless is refused by its first ones.
    dims = shape if type(shape) in (tuple, list) else islice(shape, MOST_AXES + 1)
    return _check_count(op, tuple([_check_dimension(op, dim, shape) for dim in dims]), shape)


def _check_count(op: str, found: Shape, shape: object) -> Shape:
    """The shape, if a tensor can have so many axes and elements."""
    known = [dim for dim in found if isinstance(dim, int) and dim]
    if len(found) > MOST_AXES or math.prod(known) > _TOO_MANY:
        raise ShapeError(
            op,
            "no tensor has this shape",
            expected=f"at most {MOST_AXES} axes, and a number of elements that memory can hold",
            got={"shape": short_repr(shape)},
            fix="write the sizes that are meant",
        )
    return found


def check_size(op: str, name: str, value: object) -> Dimension:
    """One dimension, given as the argument `name`.

    >>> check_size("linspace", "num", 3)
    3
    """
    size = _integer(value)
    if size is None or (isinstance(size, int) and not 0 <= size <= _TOO_MANY):
        kind = ArgumentTypeError if size is None else ShapeError
        raise kind(
            op,
            f"{name} is not a number of elements",
            expected="an integer of at least 0",
            got={name: short_repr(value)},
            fix=f"{name}=10",
        )
    return size


def _check_dimension(op: str, dim: object, shape: object) -> Dimension:
    value = _integer(dim)
    if value is None:
        _refuse_shape(op, shape, f"{short_repr(dim)} is not an integer")
    if (isinstance(value, int) and value < 0) or is_negative(value):
        raise ShapeError(
            op,
            "a dimension is negative",
            expected="dimensions of at least 0",
            got={"shape": shape},
            fix=f"write the size that is meant in place of {value}",
        )
    if isinstance(value, int) and value >= _TOO_LARGE:
        raise ShapeError(
            op,
            "a dimension is too large for any memory",
            expected="dimensions below 2**63",
            got={"shape": shape},
            fix=f"write the size that is meant in place of {value}",
        )
    return value


_TOO_LARGE = 2**63
_TOO_MANY = 2**59
"""More elements than NumPy can count the bytes of."""
MOST_AXES = 64


def _integer(value: object) -> Dimension | None:
    """The value as a dimension where Python would take it for an index, a 0-d tensor too."""
    if isinstance(value, (int, Dim)):
        return None if isinstance(value, bool) else value
    try:
        return operator.index(value)  # type: ignore[arg-type]
    except (TypeError, ValueError, IndexError):
        return None


def _refuse_shape(op: str, shape: object, problem: str) -> NoReturn:
    raise ArgumentTypeError(
        op,
        problem,
        expected="an integer or a sequence of integers",
        got={"shape": short_repr(shape)},
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
            result = _resolve_dimension(result)
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
    return mismatch(
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
        raise _axis_error(op, f"axis {short_repr(axis)} is not an integer", axis, ndim, got)
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
    kind = type(axis)
    if kind is int and 0 <= axis < ndim:  # type: ignore[operator]
        return (axis,)  # type: ignore[return-value]
    if kind is not tuple and (isinstance(axis, str) or not isinstance(axis, Sequence)):
        return (normalize_axis(op, axis, ndim, got),)
    axes = tuple(
        [
            item if type(item) is int and 0 <= item < ndim else normalize_axis(op, item, ndim, got)
            for item in axis  # type: ignore[attr-defined]
        ]
    )
    if len(set(axes)) != len(axes):
        repeated = next(item for item in axes if axes.count(item) > 1)
        raise _axis_error(op, f"axis {repeated} is named twice", axis, ndim, got)
    return axes


def _axis_error(
    op: str, problem: str, axis: object, ndim: int, got: Mapping[str, object]
) -> WeftError:
    listed = list(axis) if isinstance(axis, Sequence) else []
    if ndim and listed and all(isinstance(item, int) for item in listed):
        unique = tuple(dict.fromkeys(item % ndim for item in listed))
        fix = f"name each axis once: axis={unique}"
    elif ndim:
        fix = "axis=0" if ndim == 1 else f"pick one, for example the last: axis={ndim - 1}"
    else:
        fix = "leave axis out: there is only one element"
    expected = f"an integer from {-ndim} to {ndim - 1}" if ndim else "no axis: there is none"
    return AxisError(op, problem, expected=expected, got={**got, "axis": short_repr(axis)}, fix=fix)
