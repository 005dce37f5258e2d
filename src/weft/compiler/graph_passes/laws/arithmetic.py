"""Simplification: laws of arithmetic, powers, choices, logic and comparison.

A law keeps every element as it is, NaN, infinities and the sign of zeros included, unless its rule
says otherwise: `exact=False` (up to rounding) or `signed_zeros=False`. So x + 0.0 stays, since it
makes 0.0 of -0.0; x · 0 and x - x vanish for integers only; and exp(log(x)) stays, since it is NaN
for negative x. log(exp(x)) becomes x, which is what it means where exp(x) overflows, too. Products
of complex numbers keep their ones: (∞ + 0i)·1 is not ∞ + 0i.

>>> import weft as wf
>>> graph = wf.ir.trace(lambda x: -(-x) / 1.0, wf.spec("float32", (3,)))
>>> print(simplify.apply(graph))
graph(a: f32[3]) {
  return a
}
"""

from __future__ import annotations

import math

import numpy as np

from weft.core.dtypes import DType, bool_
from weft.core.types import spec
from weft.ir.dispatch import apply
from weft.ir.kinds import Elementwise
from weft.ir.primitive import PRIMITIVES, Primitive
from weft.ir.rewriting import RuleSet
from weft.ir.tensor import Tensor
from weft.ops.arithmetic import abs as absolute
from weft.ops.arithmetic import maximum, minimum, negative, square
from weft.ops.comparison import equal, greater, less, not_equal
from weft.ops.elementary import exp, exp2, expm1, general_pow, integer_pow, log, log1p, log2, relu
from weft.ops.logic import (
    bitwise_and,
    bitwise_invert,
    bitwise_left_shift,
    bitwise_or,
    bitwise_right_shift,
    bitwise_xor,
    logical_and,
    logical_not,
    logical_or,
)
from weft.ops.movement import full
from weft.ops.selection import clip, where

__all__ = ["simplify"]

simplify = RuleSet("simplify")

_FLOATS = spec("float32", (2, 3))
_INTEGERS = spec("int64", (2, 3))
_TRUTHS = spec("bool", (2, 3))


# --- sums --------------------------------------------------------------------------------------


@simplify.rule(lambda x: x + 0, on=_INTEGERS)
def add_zero(x: Tensor) -> Tensor | None:
    """x + 0 = x, for integers."""
    return x if x.dtype.is_integer else None


@simplify.rule(lambda x: x + -0.0)
def add_minus_zero(x: Tensor) -> Tensor | None:
    """x + -0.0 = x."""
    return x if x.dtype.is_floating else None


@simplify.rule(lambda x: x - 0)
def subtract_zero(x: Tensor) -> Tensor:
    """x - 0 = x."""
    return x


@simplify.rule(lambda x: 0 - x, on=_INTEGERS)
def subtract_from_zero(x: Tensor) -> Tensor | None:
    """0 - x = -x, for integers."""
    return -x if x.dtype.is_integer else None


@simplify.rule(lambda x: x - x, on=_INTEGERS)
def subtract_itself(x: Tensor) -> int | None:
    """x - x = 0, for integers."""
    return 0 if x.dtype.is_integer else None


@simplify.rule(lambda x, y: x + -y)
def add_negative(x: Tensor, y: Tensor) -> Tensor:
    """x + (-y) = x - y."""
    return x - y


@simplify.rule(lambda x, y: x - -y)
def subtract_negative(x: Tensor, y: Tensor) -> Tensor:
    """x - (-y) = x + y."""
    return x + y


def _wrap_integer(value: int, dtype: DType) -> int:
    """An integer as the dtype holds it, which wraps around."""
    return int(np.array(value & ((1 << dtype.bits) - 1), f"u{dtype.itemsize}").view(dtype.numpy))


@simplify.rule(lambda x, c=3, d=5: (x + c) + d, on=_INTEGERS)
def add_constants(x: Tensor, c: int, d: int) -> Tensor | None:
    """(x + c) + d = x + (c + d), for integers."""
    return x + _wrap_integer(c + d, x.dtype) if x.dtype.is_integer else None


@simplify.rule(lambda x, c=3, d=5: (x * c) * d, on=_INTEGERS)
def multiply_constants(x: Tensor, c: int, d: int) -> Tensor | None:
    """(x · c) · d = x · (c · d), for integers."""
    return x * _wrap_integer(c * d, x.dtype) if x.dtype.is_integer else None


# --- products ----------------------------------------------------------------------------------


@simplify.rule(lambda x: x * 1)
def multiply_by_one(x: Tensor) -> Tensor | None:
    """x · 1 = x, for real numbers."""
    return None if x.dtype.is_complex else x


@simplify.rule(lambda x: x * -1)
def multiply_by_minus_one(x: Tensor) -> Tensor | None:
    """x · -1 = -x, for real numbers."""
    return None if x.dtype.is_complex else -x


@simplify.rule(lambda x: x * 0, on=_INTEGERS)
def multiply_by_zero(x: Tensor) -> int | None:
    """x · 0 = 0, for integers."""
    return 0 if x.dtype.is_integer else None


@simplify.rule(lambda x: x / 1)
def divide_by_one(x: Tensor) -> Tensor | None:
    """x / 1 = x, for real numbers."""
    return None if x.dtype.is_complex else x


@simplify.rule(lambda x, c=8.0: x / c, cases=[{"c": c} for c in (-0.25, 2.0**14, 2.0**-14, 3.0)])
def divide_by_power_of_two(x: Tensor, c: float) -> Tensor | None:
    """x / 2ⁿ = x · 2⁻ⁿ, where every float has both."""
    if x.dtype.is_complex or not 2.0**-14 <= abs(c) <= 2.0**14:
        return None
    return x * (1.0 / c) if abs(math.frexp(c)[0]) == 0.5 else None


@simplify.rule(lambda x: negative(negative(x)))
def negative_of_negative(x: Tensor) -> Tensor:
    """-(-x) = x."""
    return x


@simplify.rule(lambda x, c=3.0: -(x * c))
def negative_of_multiple(x: Tensor, c: float) -> Tensor | None:
    """-(x · c) = x · (-c), for floats."""
    return x * -c if x.dtype.is_floating else None


@simplify.rule(lambda x, c=3.0: -x * c)
def multiple_of_negative(x: Tensor, c: float) -> Tensor | None:
    """(-x) · c = x · (-c), for floats."""
    return x * -c if x.dtype.is_floating else None


@simplify.rule(lambda x, y: -x * -y)
def product_of_negatives(x: Tensor, y: Tensor) -> Tensor:
    """(-x) · (-y) = x · y."""
    return x * y


@simplify.rule(lambda x, y: -x / -y)
def quotient_of_negatives(x: Tensor, y: Tensor) -> Tensor | None:
    """(-x) / (-y) = x / y, for real numbers."""
    return None if x.dtype.is_complex else x / y


@simplify.rule(lambda x: x * x)
def multiply_by_itself(x: Tensor) -> Tensor:
    """x · x = x²."""
    return square(x)


@simplify.rule(lambda x: square(-x))
def square_of_negative(x: Tensor) -> Tensor:
    """(-x)² = x²."""
    return square(x)


@simplify.rule(lambda x: square(absolute(x)))
def square_of_absolute(x: Tensor) -> Tensor:
    """|x|² = x², for real numbers."""
    return square(x)


@simplify.rule(lambda x: absolute(-x))
def absolute_of_negative(x: Tensor) -> Tensor | None:
    """|-x| = |x|, for signed numbers."""
    return None if x.dtype.kind == "unsigned" else absolute(x)


@simplify.rule(lambda x: absolute(absolute(x)))
def absolute_of_absolute(x: Tensor) -> Tensor:
    """||x|| = |x|."""
    return absolute(x)


@simplify.rule(lambda x: absolute(square(x)))
def absolute_of_square(x: Tensor) -> Tensor | None:
    """|x²| = x², for floats."""
    return square(x) if x.dtype.is_floating else None


# --- powers, exponentials and roundings --------------------------------------------------------


def _power(x: Tensor, exponent: int) -> Tensor | None:
    """A power by squares; None where it is none, or 16-bit floats would be rounded twice."""
    narrow = x.dtype.is_floating and x.dtype.bits == 16
    if abs(exponent) > 4 or (narrow and not -1 <= exponent <= 2):
        return None
    if exponent < 0:
        power = _power(x, -exponent)
        return None if power is None else 1.0 / power
    if exponent == 0:
        return apply(full, shape=x.shape, dtype=x.dtype, value=1)
    products = {1: lambda: x, 2: lambda: square(x), 3: lambda: square(x) * x}
    return products.get(exponent, lambda: square(square(x)))()


@simplify.rule(
    lambda x, c=2.0: general_pow(x, c),
    exact=False,
    domain=(0.5, 2.0),
    cases=[{"c": c} for c in (0.0, 1.0, 3.0, -1.0)],
)
def small_power(x: Tensor, c: float) -> Tensor | int | None:
    """x^c is a product for whole c from -1 to 3, up to rounding."""
    if x.dtype.is_complex or c not in (0, 1, 2, 3, -1) or (x.dtype.is_integer and c < 0):
        return None
    return _power(x, int(c))


@simplify.rule(
    lambda x, exponent=2: apply(integer_pow, x, exponent=exponent),
    exact=False,
    domain=(0.5, 2.0),
    cases=[{"exponent": exponent} for exponent in (0, 1, 3, 4, -1, -2, -3)],
)
def small_integer_power(x: Tensor, exponent: int) -> Tensor | int | None:
    """xⁿ is a product for n from -4 to 4, up to rounding."""
    return _power(x, exponent)


@simplify.rule(lambda x: log(exp(x)), exact=False)
def log_of_exp(x: Tensor) -> Tensor | None:
    """log(exp(x)) = x, for real numbers; also where exp(x) overflows."""
    return None if x.dtype.is_complex else x


@simplify.rule(lambda x: log2(exp2(x)), exact=False)
def log2_of_exp2(x: Tensor) -> Tensor | None:
    """log₂(2ˣ) = x, for real numbers; also where 2ˣ overflows."""
    return None if x.dtype.is_complex else x


@simplify.rule(lambda x: log1p(expm1(x)), exact=False)
def log1p_of_expm1(x: Tensor) -> Tensor | None:
    """log(1 + (exp(x) - 1)) = x, for real numbers; also where exp(x) overflows."""
    return None if x.dtype.is_complex else x


def _rounding(primitive: Primitive) -> None:
    """Rounding: whole numbers are what they are rounded to."""

    @simplify.rule(lambda x: apply(primitive, x), name=f"{primitive.name}_of_integer", on=_INTEGERS)
    def of_integer(x: Tensor) -> Tensor | None:
        """Whole numbers are their own roundings."""
        return x if x.dtype.is_integer else None

    @simplify.rule(
        lambda x: apply(primitive, apply(primitive, x)),
        name=f"{primitive.name}_of_{primitive.name}",
    )
    def round_once(x: Tensor) -> Tensor:
        """What is rounded once is rounded."""
        return apply(primitive, x)


for _primitive in PRIMITIVES.values():
    if isinstance(_primitive.kind, Elementwise) and _primitive.kind.rounds:
        _rounding(_primitive)


# --- choices -----------------------------------------------------------------------------------


@simplify.rule(lambda x, y: where(np.array(True), x, y))
def choose_always(x: Tensor, y: Tensor) -> Tensor:
    """where(True, x, y) = x."""
    return x


@simplify.rule(lambda x, y: where(np.array(False), x, y))
def choose_never(x: Tensor, y: Tensor) -> Tensor:
    """where(False, x, y) = y."""
    return y


@simplify.rule(lambda c, x: where(c, x, x), on=[_TRUTHS, _FLOATS])
def choose_same(c: Tensor, x: Tensor) -> Tensor:
    """where(c, x, x) = x."""
    return x


@simplify.rule(lambda c, x, y: where(logical_not(c), x, y), on=[_TRUTHS, _FLOATS, _FLOATS])
def choose_if_not(c: Tensor, x: Tensor, y: Tensor) -> Tensor | None:
    """where(not c, x, y) = where(c, y, x)."""
    return where(c, y, x) if c.dtype is bool_ else None


@simplify.rule(lambda c: where(c, True, False), on=_TRUTHS)
def choose_truth(c: Tensor) -> Tensor:
    """where(c, True, False) = c."""
    return c


@simplify.rule(lambda c: where(c, False, True), on=_TRUTHS)
def choose_untruth(c: Tensor) -> Tensor:
    """where(c, False, True) = not c."""
    return logical_not(c)


@simplify.rule(lambda c, x, y, z: where(c, where(c, x, y), z), on=[_TRUTHS, *[_FLOATS] * 3])
def choose_first_twice(c: Tensor, x: Tensor, y: Tensor, z: Tensor) -> Tensor:
    """where(c, where(c, x, y), z) = where(c, x, z)."""
    return where(c, x, z)


@simplify.rule(lambda c, x, y, z: where(c, x, where(c, y, z)), on=[_TRUTHS, *[_FLOATS] * 3])
def choose_last_twice(c: Tensor, x: Tensor, y: Tensor, z: Tensor) -> Tensor:
    """where(c, x, where(c, y, z)) = where(c, x, z)."""
    return where(c, x, z)


@simplify.rule(lambda x: maximum(x, x))
def maximum_of_itself(x: Tensor) -> Tensor:
    """max(x, x) = x."""
    return x


@simplify.rule(lambda x: minimum(x, x))
def minimum_of_itself(x: Tensor) -> Tensor:
    """min(x, x) = x."""
    return x


@simplify.rule(lambda x: relu(relu(x)))
def relu_of_relu(x: Tensor) -> Tensor:
    """relu(relu(x)) = relu(x)."""
    return relu(x)


@simplify.rule(lambda x: clip(x, -math.inf, math.inf))
def clip_to_everything(x: Tensor) -> Tensor:
    """clip(x, -∞, ∞) = x."""
    return x


# --- logic and comparison ----------------------------------------------------------------------


@simplify.rule(lambda x: logical_not(logical_not(x)), on=_TRUTHS)
def not_not(x: Tensor) -> Tensor | None:
    """not not x = x, for truth values."""
    return x if x.dtype is bool_ else None


@simplify.rule(lambda x, y: logical_not(equal(x, y)))
def not_equal_by_not(x: Tensor, y: Tensor) -> Tensor:
    """not (x = y) = (x ≠ y)."""
    return not_equal(x, y)


@simplify.rule(lambda x, y: logical_not(not_equal(x, y)))
def equal_by_not(x: Tensor, y: Tensor) -> Tensor:
    """not (x ≠ y) = (x = y)."""
    return equal(x, y)


@simplify.rule(lambda x: logical_and(x, True), on=_TRUTHS)
def and_true(x: Tensor) -> Tensor:
    """x and True = x."""
    return x


@simplify.rule(lambda x: logical_and(x, False), on=_TRUTHS)
def and_false(x: Tensor) -> bool:
    """x and False = False."""
    return False


@simplify.rule(lambda x: logical_or(x, False), on=_TRUTHS)
def or_false(x: Tensor) -> Tensor:
    """x or False = x."""
    return x


@simplify.rule(lambda x: logical_or(x, True), on=_TRUTHS)
def or_true(x: Tensor) -> bool:
    """x or True = True."""
    return True


@simplify.rule(lambda x: logical_and(x, x), on=_TRUTHS)
def and_itself(x: Tensor) -> Tensor | None:
    """x and x = x, for truth values."""
    return x if x.dtype is bool_ else None


@simplify.rule(lambda x: logical_or(x, x), on=_TRUTHS)
def or_itself(x: Tensor) -> Tensor | None:
    """x or x = x, for truth values."""
    return x if x.dtype is bool_ else None


@simplify.rule(lambda x: bitwise_invert(bitwise_invert(x)), on=_INTEGERS)
def invert_twice(x: Tensor) -> Tensor:
    """~~x = x."""
    return x


@simplify.rule(lambda x: bitwise_and(x, x), on=_INTEGERS)
def bits_and_themselves(x: Tensor) -> Tensor:
    """x & x = x."""
    return x


@simplify.rule(lambda x: bitwise_or(x, x), on=_INTEGERS)
def bits_or_themselves(x: Tensor) -> Tensor:
    """x | x = x."""
    return x


@simplify.rule(lambda x: bitwise_xor(x, x), on=_INTEGERS)
def bits_without_themselves(x: Tensor) -> int:
    """x ^ x = 0."""
    return 0


@simplify.rule(lambda x: bitwise_or(x, 0), on=_INTEGERS)
def bits_or_none(x: Tensor) -> Tensor:
    """x | 0 = x."""
    return x


@simplify.rule(lambda x: bitwise_xor(x, 0), on=_INTEGERS)
def bits_flipped_nowhere(x: Tensor) -> Tensor:
    """x ^ 0 = x."""
    return x


@simplify.rule(lambda x: bitwise_and(x, 0), on=_INTEGERS)
def bits_and_none(x: Tensor) -> int:
    """x & 0 = 0."""
    return 0


@simplify.rule(lambda x: bitwise_left_shift(x, 0), on=_INTEGERS)
def shift_left_by_nothing(x: Tensor) -> Tensor:
    """x << 0 = x."""
    return x


@simplify.rule(lambda x: bitwise_right_shift(x, 0), on=_INTEGERS)
def shift_right_by_nothing(x: Tensor) -> Tensor:
    """x >> 0 = x."""
    return x


@simplify.rule(lambda x: less(x, x))
def less_than_itself(x: Tensor) -> bool:
    """(x < x) = False."""
    return False


@simplify.rule(lambda x: greater(x, x))
def greater_than_itself(x: Tensor) -> bool:
    """(x > x) = False."""
    return False


@simplify.rule(lambda x: equal(x, x), on=_INTEGERS)
def equal_to_itself(x: Tensor) -> bool | None:
    """(x = x) = True, but for NaN."""
    return None if x.dtype.is_inexact else True
