"""The length of a step: a line search for the strong Wolfe conditions.

A point is good when the loss fell enough, f(t) ≤ f(0) + c₁ t f'(0), and its slope is flat enough,
|f'(t)| ≤ −c₂ f'(0) (Nocedal and Wright, 2006, algorithms 3.5 and 3.6, with cubic interpolation).

>>> from weft.optim.line_search import Point, strong_wolfe
>>> def parabola(t): return Point(t, (t - 3.0) ** 2, 2 * (t - 3.0), None)
>>> found, evaluations = strong_wolfe(parabola, parabola(0.0), 1.0, 1e-9, 25)
>>> found.size, evaluations
(1.0, 1)
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

ENOUGH_FALL = 1e-4
ENOUGH_FLATNESS = 0.9


class Point(NamedTuple):
    """A place on the line: how far along, the loss and the slope there, and the gradient."""

    size: float
    loss: float
    slope: float
    gradient: Any


Evaluate = Callable[[float], Point]


def strong_wolfe(
    evaluate: Evaluate, start: Point, size: float, tolerance: float, limit: int
) -> tuple[Point, int]:
    """A good point on the line, or the best one found, and how many points were evaluated."""
    before, point = start, evaluate(size)
    used = 1
    while used <= limit:
        rises = used > 2 and point.loss >= before.loss
        # The loss has not fallen enough, or rises again: a good point lies before this one.
        if not _falls(start, point) or rises or point.slope >= 0:
            if _falls(start, point) and not rises and _is_flat(start, point):
                return point, used
            return _zoom(evaluate, start, before, point, tolerance, limit, used)
        if _is_flat(start, point):
            return point, used
        # Still going down: further on, to where the cubic through both points is lowest.
        least = point.size + 0.01 * (point.size - before.size)
        further = cubic_minimum(before, point, least, point.size * 10)
        before, point = point, evaluate(further)
        used += 1
    return min(start, point, key=_loss), used


def _zoom(
    evaluate: Evaluate,
    start: Point,
    one: Point,
    other: Point,
    tolerance: float,
    limit: int,
    used: int,
) -> tuple[Point, int]:
    """Narrow an interval that holds a good point; `low` is its end with the lower loss."""
    low, high = (one, other) if one.loss <= other.loss else (other, one)
    slow = False
    while used <= limit and abs(high.size - low.size) >= tolerance:
        size, slow = _step_inside(one, other, slow)
        point = evaluate(size)
        used += 1
        if not _falls(start, point) or point.loss >= low.loss:
            high = point
            low, high = (low, high) if low.loss <= high.loss else (high, low)
        else:
            if _is_flat(start, point):
                return point, used
            # The loss falls from the new point away from `high`: the minimum is on that side.
            if point.slope * (high.size - low.size) >= 0:
                high = low
            low = point
        one, other = low, high
    return low, used


def _step_inside(one: Point, other: Point, slow: bool) -> tuple[float, bool]:
    """The next place within an interval, and whether it is near one of the ends.

    A tenth of the interval is kept from an end if the last place was near one too (`slow`): else
    the interval might shrink from one side only.
    """
    least, most = sorted((one.size, other.size))
    size = cubic_minimum(one, other, least, most)
    margin = 0.1 * (most - least)
    if min(most - size, size - least) >= margin:
        return size, False
    if slow or size >= most or size <= least:
        near_top = abs(size - most) < abs(size - least)
        return (most - margin if near_top else least + margin), False
    return size, True


def cubic_minimum(a: Point, b: Point, least: float, most: float) -> float:
    """Where the cubic through two points with their slopes is lowest, within bounds.

    >>> cubic_minimum(Point(0.0, 1.0, -2.0, None), Point(2.0, 1.0, 2.0, None), 0.0, 2.0)
    1.0
    """
    if a.size > b.size:
        a, b = b, a
    if a.size == b.size:
        return (least + most) / 2
    slope = a.slope + b.slope - 3 * (a.loss - b.loss) / (a.size - b.size)
    square = slope * slope - a.slope * b.slope
    if not square >= 0:
        return (least + most) / 2
    root = math.sqrt(square)
    width = b.slope - a.slope + 2 * root
    if width == 0:
        return (least + most) / 2
    lowest = b.size - (b.size - a.size) * ((b.slope + root - slope) / width)
    return min(max(lowest, least), most)


def _falls(start: Point, point: Point) -> bool:
    """Armijo's condition: the loss has fallen by a share of what the first slope promises."""
    return point.loss <= start.loss + ENOUGH_FALL * point.size * start.slope


def _is_flat(start: Point, point: Point) -> bool:
    """The strong curvature condition of Wolfe: the slope is a fraction of that at the start."""
    return abs(point.slope) <= -ENOUGH_FLATNESS * start.slope


def _loss(point: Point) -> float:
    return point.loss
