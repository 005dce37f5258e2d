"""Between which numbers a value must lie, where that can be told from the graph alone.

A range is what holds for all inputs. Most values may be anything; those that come from a relu, an
absolute value, a square or an exponential may not.

>>> import weft as wf
>>> from weft.tools.ranges import ranges_of
>>> graph = wf.ir.trace(lambda x: 1 + wf.relu(x), wf.spec("float32", (3,)))
>>> ranges_of(graph)[graph.outputs[0]]
Range(low=1.0, high=inf, reached=True)
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from math import inf, isnan
from typing import Any

import numpy as np

import weft as wf

__all__ = ["ANYTHING", "Range", "range_of", "ranges_of"]


@dataclass(frozen=True, slots=True)
class Range:
    """From `low` to `high`; `reached`: whether `low` itself occurs, for all that is known."""

    low: float = -inf
    high: float = inf
    reached: bool = True

    @property
    def is_known(self) -> bool:
        """Whether it says anything."""
        return self.low > -inf or self.high < inf

    @property
    def constant(self) -> float | None:
        """The one number in it, if there is only one."""
        return self.low if self.low == self.high else None


ANYTHING = Range()
POSITIVE = Range(0.0, inf, reached=False)
NOT_NEGATIVE = Range(0.0, inf)
TINY = 5e-324

Rule = Callable[[Sequence[Range], dict[str, Any]], Range]


def ranges_of(graph: wf.ir.Graph) -> dict[Any, Range]:
    """The range of each value of a graph."""
    found: dict[Any, Range] = dict.fromkeys(graph.inputs, ANYTHING)
    same = _squares(graph)
    for node in graph.nodes:
        ranges = [range_of(atom, found) for atom in node.operands]
        rule = RULES.get(node.primitive.name)
        result = ANYTHING
        if node in same:
            result = NOT_NEGATIVE
        elif rule is not None and not node.results[0].type.dtype.is_complex:
            result = rule(ranges, node.params)
        found.update((each, result) for each in node.results)
    for atom in graph.outputs:
        found.setdefault(atom, range_of(atom, found))
    return found


def _squares(graph: wf.ir.Graph) -> set[Any]:
    """Products of a value with itself."""
    return {
        node
        for node in graph.nodes
        if node.primitive.name == "multiply" and node.operands[0] is node.operands[1]
    }


def range_of(atom: Any, found: dict[Any, Range]) -> Range:
    """The range of a value, or of a constant."""
    if atom in found:
        return found[atom]
    value = getattr(atom, "value", None)
    if value is None or value.size == 0 or value.dtype.kind not in "biuf":
        return ANYTHING
    low, high = float(np.min(value)), float(np.max(value))
    return ANYTHING if isnan(low) or isnan(high) else Range(low, high)


def _same(ranges: Sequence[Range], params: dict[str, Any]) -> Range:
    return ranges[0]


def _add(ranges: Sequence[Range], params: dict[str, Any]) -> Range:
    a, b = ranges
    return Range(a.low + b.low, a.high + b.high, a.reached and b.reached)


def _negative(ranges: Sequence[Range], params: dict[str, Any]) -> Range:
    return Range(-ranges[0].high, -ranges[0].low)


def _subtract(ranges: Sequence[Range], params: dict[str, Any]) -> Range:
    return _add([ranges[0], _negative([ranges[1]], params)], params)


def _multiply(ranges: Sequence[Range], params: dict[str, Any]) -> Range:
    a, b = ranges
    ends = [_product(x, y) for x in (a.low, a.high) for y in (b.low, b.high)]
    return Range(min(ends), max(ends), a.reached or b.reached)


def _product(x: float, y: float) -> float:
    return 0.0 if 0.0 in (x, y) else x * y


def _divide(ranges: Sequence[Range], params: dict[str, Any]) -> Range:
    a, b = ranges
    if b.constant not in (None, 0.0):
        return replace(_multiply([a, Range(1 / b.low, 1 / b.low)], params), reached=a.reached)
    return Range(0.0, inf, a.reached) if a.low >= 0 and b.low >= 0 else ANYTHING


def _sum(ranges: Sequence[Range], params: dict[str, Any]) -> Range:
    """The sign stays; a sum of what is never quite zero is not tiny all at once."""
    low = max(0.0, ranges[0].low) if ranges[0].low >= 0 else -inf
    high = 0.0 if ranges[0].high <= 0 else inf
    return Range(TINY, high) if low == 0.0 and not ranges[0].reached else Range(low, high)


def _maximum(ranges: Sequence[Range], params: dict[str, Any]) -> Range:
    return Range(max(r.low for r in ranges), max(r.high for r in ranges))


def _minimum(ranges: Sequence[Range], params: dict[str, Any]) -> Range:
    return Range(min(r.low for r in ranges), min(r.high for r in ranges))


def _clip(ranges: Sequence[Range], params: dict[str, Any]) -> Range:
    if len(ranges) != 3:
        return ANYTHING
    return _minimum([_maximum(ranges[:2], params), ranges[2]], params)


def _relu(ranges: Sequence[Range], params: dict[str, Any]) -> Range:
    return Range(max(0.0, ranges[0].low), max(0.0, ranges[0].high))


def _absolute(ranges: Sequence[Range], params: dict[str, Any]) -> Range:
    r = ranges[0]
    low = 0.0 if r.low <= 0 <= r.high else min(abs(r.low), abs(r.high))
    return Range(low, max(abs(r.low), abs(r.high)))


def _square(ranges: Sequence[Range], params: dict[str, Any]) -> Range:
    r = _absolute(ranges, params)
    return Range(r.low**2, r.high**2 if r.high < 1e150 else inf)


def _root(ranges: Sequence[Range], params: dict[str, Any]) -> Range:
    r = ranges[0]
    return Range(max(r.low, 0.0) ** 0.5, max(r.high, 0.0) ** 0.5, r.reached)


def _where(ranges: Sequence[Range], params: dict[str, Any]) -> Range:
    chosen = ranges[1:]
    if (mask := ranges[0].constant) is not None:
        return chosen[0] if mask else chosen[1]
    return Range(min(r.low for r in chosen), max(r.high for r in chosen))


def _full(ranges: Sequence[Range], params: dict[str, Any]) -> Range:
    value = params.get("value")
    return Range(value, value) if isinstance(value, (int, float)) else ANYTHING


def _power(ranges: Sequence[Range], params: dict[str, Any]) -> Range:
    exponent = params.get("exponent", params.get("n"))
    even = isinstance(exponent, int) and exponent % 2 == 0 and exponent > 0
    return NOT_NEGATIVE if even else ANYTHING


def _fixed(range_: Range) -> Rule:
    return lambda ranges, params: range_


def _compared(sure: Callable[[Range, Range], bool], never: Callable[[Range, Range], bool]) -> Rule:
    """A comparison: 1 where it always holds, 0 where it never does."""

    def rule(ranges: Sequence[Range], params: dict[str, Any]) -> Range:
        a, b = ranges
        if sure(a, b):
            return Range(1.0, 1.0)
        return Range(0.0, 0.0) if never(a, b) else Range(0.0, 1.0)

    return rule


def _converted(ranges: Sequence[Range], params: dict[str, Any]) -> Range:
    """Whether something is counted is not known from its range: truth values become anything."""
    r = ranges[0]
    return ANYTHING if (r.low, r.high) == (0.0, 1.0) and r.reached else r


RULES: dict[str, Rule] = {
    **dict.fromkeys(
        ["reshape", "broadcast_to", "transpose", "stop_gradient", "slice", "flip", "gather",
         "reduce_max", "reduce_min", "window_max", "sort", "barrier"],
        _same,
    ),
    "add": _add, "subtract": _subtract, "negative": _negative, "multiply": _multiply,
    "divide": _divide, "maximum": _maximum, "minimum": _minimum, "clip": _clip, "relu": _relu,
    "abs": _absolute, "square": _square, "sqrt": _root, "where": _where, "full": _full,
    "integer_pow": _power, "reduce_sum": _sum, "window_sum": _sum, "convert": _converted,
    "exp": _fixed(POSITIVE), "exp2": _fixed(POSITIVE),
    "sigmoid": _fixed(Range(0.0, 1.0, reached=False)),
    "tanh": _fixed(Range(-1.0, 1.0)), "sin": _fixed(Range(-1.0, 1.0)),
    "cos": _fixed(Range(-1.0, 1.0)), "erf": _fixed(Range(-1.0, 1.0)),
    "greater": _compared(lambda a, b: a.low > b.high, lambda a, b: a.high <= b.low),
    "greater_equal": _compared(lambda a, b: a.low >= b.high, lambda a, b: a.high < b.low),
    "less": _compared(lambda a, b: a.high < b.low, lambda a, b: a.low >= b.high),
    "less_equal": _compared(lambda a, b: a.high <= b.low, lambda a, b: a.low > b.high),
}  # fmt: skip
"""What is known of a result from the ranges of the operands."""
