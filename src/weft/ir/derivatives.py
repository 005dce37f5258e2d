"""The kinds of derivative that an operand of a primitive can have.

One derivative per operand is enough for forward mode, reverse mode and any order of both:

- `linear(transpose)`: the result is linear in this operand, the others held fixed. The tangent is
  the primitive itself applied to the operand's tangent; `transpose(ct, *operands, **params)` is
  its adjoint.
- `additive(transpose)`: the result is linear in all additive operands together (a sum, a
  concatenation). The tangent is the primitive applied to all their tangents.
- `tangent(rule)`: `rule(t, out, *operands, **params)` is the tangent of the result, linear in `t`.
- `constant(reason)`: the result does not vary with this operand.

A primitive that holds graphs (control flow) gives both modes for all operands at once: `joint`.

>>> from weft.ir.derivatives import constant
>>> constant("an index has no derivative").reason
'an index has no derivative'
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from weft.core.records import frozen

Rule = Callable[..., Any]


@frozen
class Linear:
    """The result is linear in this operand alone.

    `of_arrays`, where it is there, gives what `transpose` does for an array of the host, the shape
    of the only operand, and the parameters, with less work; or None for another array.
    """

    transpose: Rule
    of_arrays: Rule | None = None


@frozen
class Additive:
    """The result is linear in this and all other additive operands together."""

    transpose: Rule


@frozen
class Tangent:
    """The tangent by rule. `diagonal` rules are their own transpose, element by element."""

    rule: Rule
    diagonal: bool = False


@frozen
class Constant:
    """The result does not vary with this operand, for a reason."""

    reason: str


@frozen
class Joint:
    """Both modes for all operands at once, for primitives that hold graphs.

    `jvp(primals, tangents, out, **params)` takes None for a zero tangent and returns the tangents
    of the results; `vjp(cotangents, out, primals, wanted, **params)` returns one cotangent per
    operand, None where `wanted` is false.
    """

    jvp: Rule
    vjp: Rule


@frozen
class Every:
    """The same kind of derivative for each of a variable number of operands, by position."""

    at: Callable[[int], Linear | Additive | Tangent | Constant]


OperandDerivative = Linear | Additive | Tangent | Constant
Derivatives = Sequence[OperandDerivative] | Every | Joint


def linear(transpose: Rule, *, of_arrays: Rule | None = None) -> Linear:
    """The derivative by an operand that the result is linear in; `transpose` is its adjoint."""
    return Linear(transpose, of_arrays)


def additive(transpose: Rule) -> Additive:
    """The derivative by one of several operands that the result is linear in together."""
    return Additive(transpose)


def tangent(rule: Rule, *, diagonal: bool = False) -> Tangent:
    """The derivative by a rule for the result's tangent, linear in the operand's tangent."""
    return Tangent(rule, diagonal)


def constant(reason: str) -> Constant:
    """The derivative by an operand that the result does not vary with."""
    return Constant(reason)


def every(at: Callable[[int], OperandDerivative]) -> Every:
    """The derivatives by any number of operands; `at(index)` is that of one."""
    return Every(at)


def joint(jvp: Rule, vjp: Rule) -> Joint:
    """The derivatives by all operands at once: one rule for each mode."""
    return Joint(jvp, vjp)
