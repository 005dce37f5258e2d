"""Sizes that a caller of an exported program chooses: their names, how large each may be.

What a plan computes from sizes in Python must be computed by the program itself. A number is asked
for at every choice of sizes that is allowed, and written as a polynomial that gives just these
values, or as a table where there is none: nothing is assumed of the function.

>>> sizes = SizeRange({"batch": 8})
>>> sizes.count_of(lambda at: 3 * at["batch"] + 1)
Count(terms=(((0,), 1), ((1,), 3)), table=())
>>> sizes.count_of(lambda at: -(-at["batch"] // 4)).table
(1, 1, 1, 1, 2, 2, 2, 2)
>>> sizes.count_of(lambda at: 7)
7
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property
from itertools import product
from typing import Any

import numpy as np
import numpy.typing as npt

from weft.core.dimensions import Floor, guard_holds, symbols_in
from weft.core.errors import ArgumentError, UnsupportedError
from weft.core.guards import Guard
from weft.core.records import frozen
from weft.core.shapes import Dimension

MOST_CHOICES = 4096
"""How many choices of sizes a program may be made for."""
_DEGREE = 2
_SAMPLES = 48
Sizes = Mapping[str, int]
Values = npt.NDArray[np.int64]
"""A number for each choice of sizes."""


@frozen
class Count:
    """A number that depends on sizes: a polynomial (exponents, coefficient), or a table."""

    terms: tuple[tuple[tuple[int, ...], int], ...]
    table: tuple[int, ...] = ()
    """The value for each choice, the last size running fastest; empty for a polynomial."""


@frozen(slots=False)
class SizeRange:
    """The sizes of a program, each from 1 to the largest; without names: none to choose."""

    largest: Mapping[str, int]

    @property
    def names(self) -> tuple[str, ...]:
        """The names, in the order of a call."""
        return tuple(self.largest)

    @cached_property
    def choices(self) -> tuple[dict[str, int], ...]:
        """Every choice of sizes."""
        ranges = [range(1, most + 1) for most in self.largest.values()]
        return tuple(dict(zip(self.largest, each, strict=True)) for each in product(*ranges))

    @cached_property
    def samples(self) -> tuple[dict[str, int], ...]:
        """Some choices, the ends among them."""
        places = np.linspace(0, len(self.choices) - 1, min(_SAMPLES, len(self.choices)))
        ends = product(*[{1, most} for most in self.largest.values()])
        found = [dict(zip(self.largest, each, strict=True)) for each in ends]
        return (*found, *[self.choices[int(place)] for place in places])

    @cached_property
    def values(self) -> dict[str, Values]:
        """Each size for every choice."""
        return {name: np.array([at[name] for at in self.choices]) for name in self.names}

    def values_of(self, dim: Dimension) -> Values:
        """A dimension for every choice.

        >>> import weft as wf
        >>> SizeRange({"n": 5}).values_of((wf.symbol("n") + 1) // 2 * 3).tolist()
        [3, 3, 6, 6, 9]
        """
        if isinstance(dim, int):
            return np.full(len(self.choices), dim, np.int64)
        total = np.zeros(len(self.choices), np.int64)
        for monomial, coefficient in dim.terms:
            term = np.full(len(self.choices), coefficient, np.int64)
            for atom in monomial:
                term *= self._values_of_atom(atom)
            total += term
        return total

    def _values_of_atom(self, atom: str | Floor) -> Values:
        if isinstance(atom, str):
            return self.values[atom]
        return self.values_of(atom.numerator) // self.values_of(atom.denominator)

    def count_of(self, function: Callable[[Sizes], int]) -> int | Count:
        """A number of a plan, as the program computes it."""
        if not self.largest:
            return int(function({}))
        return self.count_of_values(np.array([int(function(each)) for each in self.choices]))

    def count_of_values(self, values: Values) -> int | Count:
        """A number that has these values, one for each choice, as the program computes it."""
        if (values == values[0]).all():
            return int(values[0])
        fitted = self._polynomial(values)
        return Count((), tuple(values.tolist())) if fitted is None else fitted

    def _polynomial(self, values: Values) -> Count | None:
        """The polynomial with whole coefficients that has just these values; None without one."""
        degrees = [min(_DEGREE, most - 1) for most in self.largest.values()]
        exponents = list(product(*[range(degree + 1) for degree in degrees]))
        grid = list(product(*[range(1, degree + 2) for degree in degrees]))
        matrix = [[_power(point, each) for each in exponents] for point in grid]
        right = [values[self._place(point)] for point in grid]
        solved = np.rint(np.linalg.solve(np.array(matrix, float), np.array(right, float)))
        pairs = [(e, int(c)) for e, c in zip(exponents, solved, strict=True) if c]
        sizes = list(self.values.values())
        found = sum(c * _power(sizes, e) for e, c in pairs)
        return Count(tuple(pairs)) if np.array_equal(found, values) else None

    def _place(self, point: Sequence[int]) -> int:
        place = 0
        for size, most in zip(point, self.largest.values(), strict=True):
            place = place * most + size - 1
        return place


class LargestSizes(SizeRange):
    """The largest of each size alone, for what is the same for all choices."""

    @cached_property
    def choices(self) -> tuple[dict[str, int], ...]:
        """The one choice."""
        return (dict(self.largest),)


def _power(point: Sequence[Any], exponents: Sequence[int]) -> Any:
    return math.prod(base**power for base, power in zip(point, exponents, strict=True))


NO_CHOICE = SizeRange({})


def size_range(symbols: Sequence[str], largest: Mapping[str, Any] | None) -> SizeRange:
    """The sizes that arguments have as symbols, each with the largest that is asked for."""
    given = {} if largest is None else dict(largest)
    missing = [name for name in symbols if name not in given]
    unknown = [name for name in given if name not in symbols]
    if missing or unknown or not all(_is_size(each) for each in given.values()):
        named = ", ".join(f'"{name}": 64' for name in symbols)
        raise ArgumentError(
            "export",
            "the largest of each size that is a symbol must be given, and of no other",
            expected=f"sizes={{{named}}}" if symbols else "no sizes: no argument has a symbol",
            got={"symbols": list(symbols), "sizes": given},
            fix=f"wf.export(f, args, folder, sizes={{{named}}})" if symbols else "leave sizes out",
        )
    if math.prod(given.values()) > MOST_CHOICES:
        raise UnsupportedError(
            "export",
            f"the sizes may be chosen in {math.prod(given.values())} ways",
            expected=f"at most {MOST_CHOICES}",
            got={"sizes": given},
            fix="let fewer sizes vary, or by less",
        )
    return SizeRange({name: int(given[name]) for name in symbols})


def _is_size(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 1


def check_guards(guards: Sequence[Guard], sizes: SizeRange) -> None:
    """Refuse a program that was traced for some of the sizes alone."""
    for guard in guards:
        other = next((each for each in sizes.choices if not guard_holds(guard, each)), None)
        if other is not None:
            wanted = {"positive": "> 0", "zero": "== 0"}[guard.relation]
            raise UnsupportedError(
                "export",
                f"the function decides by a size: whether {guard.difference} {wanted}",
                expected="a function that does the same for all sizes from 1 to the largest",
                got={"sizes": other},
                fix="export it once for each case, or write the choice by wf.where or wf.cond",
            )


def symbols_of(shapes: Sequence[Sequence[Dimension]]) -> Iterator[str]:
    """The symbols in shapes, each once, in order."""
    seen: dict[str, None] = {}
    for shape in shapes:
        for dim in shape:
            seen.update(dict.fromkeys(sorted(symbols_in(dim))))
    yield from seen
