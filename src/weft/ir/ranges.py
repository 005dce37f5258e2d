"""Ranges: between which numbers values must lie, and what arithmetic makes of them.

The functions here are the `bounds` of element-wise primitives: given the ranges of the operands and
the parameters, the range of the result.

>>> of_sum([Range(0.0, 1.0), Range(2.0, 3.0)], {})
Range(low=2.0, high=4.0, reached=True)
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from math import inf
from typing import Any, Literal, TypeAlias

from weft.core.records import frozen


@frozen
class Range:
    """From `low` to `high`; `reached`: whether `low` itself occurs, for all that is known."""

    low: float = -inf
    high: float = inf
    reached: bool = True

    @property
    def is_known(self) -> bool:
        """Whether the range excludes any number."""
        return self.low > -inf or self.high < inf

    @property
    def constant(self) -> float | None:
        """The one number in it, if there is only one."""
        return self.low if self.low == self.high else None


ANYTHING = Range()
POSITIVE = Range(0.0, inf, reached=False)
NOT_NEGATIVE = Range(0.0, inf)
TINY = 5e-324

Ranges: TypeAlias = Sequence[Range]
Params: TypeAlias = Mapping[str, Any]
Bounds = Callable[[Ranges, Params], Range]
Order = Literal["<", "<=", ">", ">="]


def of_sum(ranges: Ranges, params: Params) -> Range:
    """The range of a sum."""
    a, b = ranges
    return Range(a.low + b.low, a.high + b.high, a.reached and b.reached)


def of_opposite(ranges: Ranges, params: Params) -> Range:
    """The range of -x."""
    return Range(-ranges[0].high, -ranges[0].low)


def of_difference(ranges: Ranges, params: Params) -> Range:
    """The range of a difference."""
    return of_sum([ranges[0], of_opposite([ranges[1]], params)], params)


def of_product(ranges: Ranges, params: Params) -> Range:
    """The range of a product."""
    a, b = ranges
    ends = [_product(x, y) for x in (a.low, a.high) for y in (b.low, b.high)]
    return Range(min(ends), max(ends), a.reached or b.reached)


def _product(x: float, y: float) -> float:
    return 0.0 if 0.0 in (x, y) else x * y


def of_quotient(ranges: Ranges, params: Params) -> Range:
    """The range of a quotient."""
    a, b = ranges
    if b.constant not in (None, 0.0):
        return replace(of_product([a, Range(1 / b.low, 1 / b.low)], params), reached=a.reached)
    return Range(0.0, inf, a.reached) if a.low >= 0 and b.low >= 0 else ANYTHING


def of_total(ranges: Ranges, params: Params) -> Range:
    """The sign stays; a sum of what is never quite zero is not tiny all at once."""
    low = max(0.0, ranges[0].low) if ranges[0].low >= 0 else -inf
    high = 0.0 if ranges[0].high <= 0 else inf
    return Range(TINY, high) if low == 0.0 and not ranges[0].reached else Range(low, high)


def of_maximum(ranges: Ranges, params: Params) -> Range:
    """The range of the greatest of several."""
    return Range(max(r.low for r in ranges), max(r.high for r in ranges))


def of_minimum(ranges: Ranges, params: Params) -> Range:
    """The range of the least of several."""
    return Range(min(r.low for r in ranges), min(r.high for r in ranges))


def of_clip(ranges: Ranges, params: Params) -> Range:
    """The range of a value clipped to two bounds."""
    if len(ranges) != 3:
        return ANYTHING
    return of_minimum([of_maximum(ranges[:2], params), ranges[2]], params)


def of_relu(ranges: Ranges, params: Params) -> Range:
    """The range of max(x, 0)."""
    return Range(max(0.0, ranges[0].low), max(0.0, ranges[0].high))


def of_size(ranges: Ranges, params: Params) -> Range:
    """The range of |x|."""
    r = ranges[0]
    low = 0.0 if r.low <= 0 <= r.high else min(abs(r.low), abs(r.high))
    return Range(low, max(abs(r.low), abs(r.high)))


def of_square(ranges: Ranges, params: Params) -> Range:
    """The range of a square."""
    r = of_size(ranges, params)
    return Range(r.low**2, r.high**2 if r.high < 1e150 else inf)


def of_root(ranges: Ranges, params: Params) -> Range:
    """The range of a square root."""
    r = ranges[0]
    return Range(max(r.low, 0.0) ** 0.5, max(r.high, 0.0) ** 0.5, r.reached)


def of_choice(ranges: Ranges, params: Params) -> Range:
    """Of one of two; of the one that is always taken."""
    both = ranges[1:]
    if (mask := ranges[0].constant) is not None:
        return both[0] if mask else both[1]
    return Range(min(r.low for r in both), max(r.high for r in both))


def of_power(ranges: Ranges, params: Params) -> Range:
    """The range of a power."""
    exponent = params.get("exponent", params.get("n"))
    even = isinstance(exponent, int) and exponent % 2 == 0 and exponent > 0
    return NOT_NEGATIVE if even else ANYTHING


def fixed_bounds(range_: Range) -> Bounds:
    """Of what lies between these numbers, whatever the operand."""
    return lambda ranges, params: range_


def of_comparison(order: Order) -> Bounds:
    """A comparison: 1 where it always holds, 0 where it never does."""
    swapped, strict = order[0] == ">", len(order) == 1

    def bounds(ranges: Ranges, params: Params) -> Range:
        less, more = reversed(ranges) if swapped else ranges
        if less.high < more.low or (not strict and less.high == more.low):
            return Range(1.0, 1.0)
        never = less.low > more.high or (strict and less.low == more.high)
        return Range(0.0, 0.0) if never else Range(0.0, 1.0)

    return bounds


def of_conversion(ranges: Ranges, params: Params) -> Range:
    """Whether something is counted is not known from its range: truth values become anything."""
    r = ranges[0]
    return ANYTHING if (r.low, r.high) == (0.0, 1.0) and r.reached else r
