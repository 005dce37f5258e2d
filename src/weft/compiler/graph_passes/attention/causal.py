"""Which comparisons of positions say that a query sees the keys up to its own place.

Positions are counted by `iota` or stand in a constant, and may be shifted, reshaped and broadcast.

>>> import weft as wf
>>> graph = wf.ir.trace(lambda: wf.arange(4)[:, None] + 1 > wf.arange(4)[None, :])
>>> makers = {v: node for node in graph.nodes for v in node.results}
>>> causal_offset(graph.outputs[0], False, makers)
0
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from weft.compiler.graph_passes.attention.polynomials import uniform
from weft.core.records import frozen
from weft.core.shapes import Shape
from weft.ir.graph import Atom, GraphNode, Literal, Variable
from weft.ir.kinds import Elementwise
from weft.ir.primitive import find
from weft.ir.walking import keeps_elements
from weft.ops.conversion import convert
from weft.ops.creation import iota
from weft.ops.movement import broadcast_to, reshape, transpose
from weft.ops.selection import select

__all__ = ["causal_offset"]

ADD, SUBTRACT = find("add"), find("subtract")
EQUAL, NOT_EQUAL = find("equal"), find("not_equal")
LOGICAL_NOT = find("logical_not")
Makers = dict[Variable, GraphNode]
_LARGEST = 1 << 24
"""Elements of a constant that are looked at: a bound on the compiler's own work."""


@frozen
class Line:
    """A number that grows along axes, counted from the last: Σ steps[axis] · position + start."""

    steps: Mapping[int, int]
    start: int

    def plus(self, other: Line, sign: int = 1) -> Line:
        """The sum, or the difference."""
        axes = self.steps.keys() | other.steps.keys()
        steps = {a: self.steps.get(a, 0) + sign * other.steps.get(a, 0) for a in axes}
        return Line({a: s for a, s in steps.items() if s}, self.start + sign * other.start)


def causal_offset(condition: Atom, inverted: bool, makers: Makers) -> int | None:
    """The offset for which key j ≤ query i + offset is the condition; None where it is another.

    inverted: the condition says what is not seen.
    """
    if isinstance(condition, Literal):
        return _of_constant(condition.value, inverted)
    node = makers.get(condition)
    if node is None:
        return None
    primitive, kind = node.primitive, node.primitive.kind
    if primitive is LOGICAL_NOT:
        return causal_offset(node.operands[0], not inverted, makers)
    if primitive in (broadcast_to, convert):
        return causal_offset(node.operands[0], inverted, makers)
    if primitive in (EQUAL, NOT_EQUAL):
        chosen = _condition_of_choice(node, makers)
        return None if chosen is None else causal_offset(chosen[0], chosen[1] ^ inverted, makers)
    if not isinstance(kind, Elementwise) or kind.compares is None:
        return None
    lines = [_line(atom, makers) for atom in node.operands]
    if lines[0] is None or lines[1] is None:
        return None
    larger, strict = int(kind.compares[0] == "<"), len(kind.compares) == 1
    if inverted:  # not (x < y) is y <= x
        larger, strict = 1 - larger, not strict
    gap = lines[larger].plus(lines[1 - larger], -1)  # type: ignore[union-attr, arg-type]
    return gap.start - strict if gap.steps == {-2: 1, -1: -1} else None


def _condition_of_choice(node: GraphNode, makers: Makers) -> tuple[Atom, bool] | None:
    """The condition behind `where(condition, x, y) == z` of numbers, and whether it is inverted."""
    for value, other in (node.operands, node.operands[::-1]):
        choice, wanted = makers.get(value), uniform(other, makers)  # type: ignore[arg-type]
        if wanted is None or choice is None or choice.primitive is not select:
            continue
        same = [uniform(each, makers) == wanted for each in choice.operands[1:]]
        if same[0] != same[1]:
            return choice.operands[0], same[1] ^ (node.primitive is NOT_EQUAL)
    return None


def _of_constant(
    value: np.ndarray[tuple[int, ...], np.dtype[np.bool_]], inverted: bool
) -> int | None:
    if value.ndim < 2 or not 0 < value.size <= _LARGEST or value.dtype != np.bool_:
        return None
    matrix = value.reshape(-1, *value.shape[-2:])
    seen = ~matrix if inverted else matrix
    offset = int(seen[0, 0].sum()) - 1
    rows, columns = value.shape[-2:]
    triangle = np.tri(rows, columns, offset, dtype=bool)
    return offset if (seen == triangle).all() else None


def _line(atom: Atom, makers: Makers) -> Line | None:
    """How a value's elements depend on where they are."""
    if isinstance(atom, Literal):
        return _line_of_constant(atom)
    number = uniform(atom, makers)
    if number is not None:
        return Line({}, int(number)) if number == int(number) else None
    node = makers.get(atom)
    if node is None:
        return None
    primitive, shape = node.primitive, atom.type.shape
    if primitive is iota:
        return Line({node.params["axis"] - len(shape): 1}, 0)
    if primitive in (ADD, SUBTRACT):
        x, y = (_line(each, makers) for each in node.operands)
        return None if x is None or y is None else x.plus(y, 1 if primitive is ADD else -1)
    if primitive is not convert and not keeps_elements(node):
        return None
    inner = _line(node.operands[0], makers)
    return None if inner is None else _move_line(inner, node, shape)


def _move_line(line: Line, node: GraphNode, shape: Shape) -> Line | None:
    primitive, before = node.primitive, node.operands[0].type.shape
    if primitive is reshape:
        if [d for d in before if d != 1] != [d for d in shape if d != 1]:
            return None
        old, new = ([a - len(s) for a, d in enumerate(s) if d != 1] for s in (before, shape))
        places = dict(zip(old, new, strict=True))
    elif primitive is transpose:
        order = node.params["order"]
        places = {axis - len(order): place - len(order) for place, axis in enumerate(order)}
    else:
        return line if primitive in (broadcast_to, convert) else None
    return Line({places[a]: step for a, step in line.steps.items() if a in places}, line.start)


def _line_of_constant(literal: Literal) -> Line | None:
    value = literal.value
    if value.dtype.kind not in "iu" or not 0 < value.size <= _LARGEST:
        return None
    start = int(value.flat[0])
    if (value == start).all():
        return Line({}, start)
    for axis in range(value.ndim):
        along = np.arange(value.shape[axis]).reshape(-1, *[1] * (value.ndim - axis - 1)) + start
        if value.shape[axis] > 1 and (value == along).all():
            return Line({axis - value.ndim: 1}, start)
    return None
