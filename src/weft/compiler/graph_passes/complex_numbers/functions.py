"""Quotients, powers and elementary functions of complex numbers, of their parts.

Formulas are those that lose no digits (Smith's quotient; Kahan, Branch cuts for complex elementary
functions, 1987). Where a part is infinite or not a number, a result may be NaN where C's library
knows a limit; what is finite agrees.
"""

from __future__ import annotations

import math

from weft.compiler.graph_passes.complex_numbers.parts import Parts, stands_for, times
from weft.ir.reverse import filled_like
from weft.ir.tensor import Tensor
from weft.ops.arithmetic import abs as size
from weft.ops.arithmetic import copysign, hypot, maximum, minimum, negative, square
from weft.ops.comparison import equal, isinf, less, less_equal
from weft.ops.elementary import (
    atan2,
    cos,
    cosh,
    exp,
    expm1,
    log,
    log1p,
    sin,
    sinh,
    sqrt,
)
from weft.ops.logic import logical_and
from weft.ops.selection import where

FAR = 22.0
"""Where the hyperbolic tangent is 1 to the last digit of a double."""


def _zero_or_product(factor: Tensor, x: Tensor) -> Tensor:
    """factor · x, and x where x is zero, also where the factor is infinite."""
    return where(equal(x, 0.0), x, factor * x)


# --- quotients and powers ------------------------------------------------------------------------


@stands_for("divide")
def _divide(z: Parts, w: Parts) -> Parts:
    """Smith's quotient: the smaller part of the divisor is measured by the larger one."""
    is_wide = less_equal(size(w.imag), size(w.real))
    larger, smaller = where(is_wide, w.real, w.imag), where(is_wide, w.imag, w.real)
    # By zero, both parts are divided by zero.
    ratio = where(equal(larger, 0.0), 0.0, smaller / larger)
    divisor = larger + smaller * ratio
    first, second = where(is_wide, z.real, z.imag), where(is_wide, z.imag, z.real)
    imag = (second - first * ratio) / divisor
    return Parts((first + second * ratio) / divisor, where(is_wide, imag, negative(imag)))


def _reciprocal(z: Parts) -> Parts:
    one = filled_like(z.real, 1)
    return _divide(Parts(one, filled_like(z.real, 0)), z)


@stands_for("reciprocal_or_zero")
def _reciprocal_or_zero(z: Parts) -> Parts:
    is_zero = logical_and(equal(z.real, 0.0), equal(z.imag, 0.0))
    inverse = _reciprocal(Parts(where(is_zero, 1.0, z.real), z.imag))
    return Parts(where(is_zero, z.real, inverse.real), where(is_zero, z.imag, inverse.imag))


@stands_for("integer_pow")
def _integer_power(z: Parts, exponent: int) -> Parts:
    """By squaring."""
    if exponent < 0:
        return _reciprocal(_integer_power(z, -exponent))
    if exponent == 0:
        return Parts(filled_like(z.real, 1), filled_like(z.real, 0))
    if exponent == 1:
        return z
    half = _integer_power(z, exponent // 2)
    whole = times(half, half)
    return times(whole, z) if exponent % 2 else whole


@stands_for("sqrt")
def _sqrt(z: Parts) -> Parts:
    """With t = sqrt((|x| + |z|) / 2): t + i y/2t to the right of zero, |y|/2t ± i t to its left."""
    larger = sqrt((size(z.real) + hypot(z.real, z.imag)) * 0.5)
    smaller = size(z.imag) / where(equal(larger, 0.0), 1.0, larger * 2.0)
    is_right = less_equal(0.0, z.real)
    real, imag = where(is_right, larger, smaller), where(is_right, smaller, larger)
    is_far = isinf(z.imag)
    far = size(z.imag)
    return Parts(where(is_far, far, real), copysign(where(is_far, far, imag), z.imag))


@stands_for("rsqrt")
def _rsqrt(z: Parts) -> Parts:
    return _reciprocal(_sqrt(z))


# --- exponentials and logarithms -----------------------------------------------------------------


def _exponential(z: Parts) -> Parts:
    length = exp(z.real)
    return Parts(length * cos(z.imag), _zero_or_product(length, sin(z.imag)))


def _scale(z: Parts, factor: float) -> Parts:
    return Parts(z.real * factor, z.imag * factor)


stands_for("exp")(_exponential)


@stands_for("exp2")
def _exp2(z: Parts) -> Parts:
    return _exponential(_scale(z, math.log(2.0)))


@stands_for("expm1")
def _expm1(z: Parts) -> Parts:
    """(eˣ - 1) cos y - 2 sin²(y/2), which is exact near 0."""
    real = expm1(z.real) * cos(z.imag) - 2.0 * square(sin(z.imag * 0.5))
    return Parts(real, _zero_or_product(exp(z.real), sin(z.imag)))


@stands_for("log")
def _logarithm(z: Parts) -> Parts:
    """log |z|, near 1 of what |z|² is more than 1, and the angle."""
    larger = maximum(size(z.real), size(z.imag))
    smaller = minimum(size(z.real), size(z.imag))
    length = hypot(z.real, z.imag)
    is_near = logical_and(less(0.5, length), less(length, 2.0))
    excess = (larger - 1.0) * (larger + 1.0) + square(smaller)
    near = log1p(where(is_near, excess, 0.0)) * 0.5
    return Parts(where(is_near, near, log(length)), atan2(z.imag, z.real))


@stands_for("log1p")
def _log1p(z: Parts) -> Parts:
    """As of 1 + z, whose |1 + z|² is more than 1 by x (2 + x) + y²."""
    length = hypot(z.real + 1.0, z.imag)
    is_near = logical_and(less(0.5, length), less(length, 2.0))
    excess = z.real * (z.real + 2.0) + square(z.imag)
    near = log1p(where(is_near, excess, 0.0)) * 0.5
    return Parts(where(is_near, near, log(length)), atan2(z.imag, z.real + 1.0))


@stands_for("log2")
def _log2(z: Parts) -> Parts:
    return _scale(_logarithm(z), 1 / math.log(2.0))


@stands_for("log10")
def _log10(z: Parts) -> Parts:
    return _scale(_logarithm(z), 1 / math.log(10.0))


@stands_for("pow")
def _power(z: Parts, w: Parts) -> Parts:
    """exp(w log z); 0 has the powers 0 to the right of zero, 1 for the exponent 0, else NaN."""
    is_zero = logical_and(equal(z.real, 0.0), equal(z.imag, 0.0))
    is_nothing = logical_and(equal(w.real, 0.0), equal(w.imag, 0.0))
    power = _exponential(times(w, _logarithm(Parts(where(is_zero, 1.0, z.real), z.imag))))
    of_zero = where(less(0.0, w.real), 0.0, math.nan)
    real = where(is_nothing, 1.0, where(is_zero, of_zero, power.real))
    return Parts(real, where(is_nothing, 0.0, where(is_zero, of_zero, power.imag)))


# --- angles --------------------------------------------------------------------------------------


@stands_for("sin")
def _sin(z: Parts) -> Parts:
    return Parts(_zero_or_product(cosh(z.imag), sin(z.real)), cos(z.real) * sinh(z.imag))


@stands_for("cos")
def _cos(z: Parts) -> Parts:
    return Parts(cos(z.real) * cosh(z.imag), negative(_zero_or_product(sinh(z.imag), sin(z.real))))


@stands_for("sinh")
def _sinh(z: Parts) -> Parts:
    return Parts(sinh(z.real) * cos(z.imag), _zero_or_product(cosh(z.real), sin(z.imag)))


@stands_for("cosh")
def _cosh(z: Parts) -> Parts:
    return Parts(cosh(z.real) * cos(z.imag), _zero_or_product(sinh(z.real), sin(z.imag)))


@stands_for("tanh")
def _tanh(z: Parts) -> Parts:
    """With s = sinh x and c = cos y: (s cosh x + i c sin y) / (s² + c²); far away ±1 and little."""
    is_far = less(FAR, size(z.real))
    near = where(is_far, 0.0, z.real)
    s, c = sinh(near), cos(z.imag)
    divisor = square(s) + square(c)
    little = 4.0 * c * sin(z.imag) * exp(-2.0 * size(z.real))
    return Parts(
        where(is_far, copysign(filled_like(s, 1), z.real), s * cosh(near) / divisor),
        where(is_far, little, c * sin(z.imag) / divisor),
    )


@stands_for("tan")
def _tan(z: Parts) -> Parts:
    """tan z = -i tanh(iz)."""
    turned = _tanh(Parts(negative(z.imag), z.real))
    return Parts(turned.imag, negative(turned.real))
