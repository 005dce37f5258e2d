"""erfc and the bell curve of x·√½, as the normal distribution and GELU have them, computed from x.

To multiply x by √½ first would round it, and far out erfc changes by that error a hundred times
over. So erfc(x·√½) is exp(-x²/2)·P(x)/Q(x), whose coefficients are all positive: nothing cancels,
and nothing has to be looked up. `scripts/fit_functions.py` finds them. The derivative of GELU has
the exponential by itself, too: it is the same expression, so that kernels compute it once.

>>> from weft.ir.scalars import Buffer, const, index
>>> x = Buffer("x", float32)[index("i")]
>>> factor_of_half_root(x * const(-(0.5**0.5), float32)) == (x, -1)
True
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import reduce

from weft.core.dtypes import float32, int32
from weft.ir.scalars import Scalar, absolute, bitcast, const, fma, less, select

_HALF_ROOT = const(math.sqrt(0.5), float32).detail
_FARTHEST = 14.5
"""From here on both functions are 0 in float32."""
_NUMERATOR = (1.0, 0.875993192, 0.366027892, 0.0811172202, 0.00821042527)
_DENOMINATOR = (1.0, 1.67387819, 1.2015847, 0.468886644, 0.101671904, 0.0102901198)
"""exp(x²/2)·erfc(x·√½) for x from 0 to 14.35, within 2⁻²⁶; the lowest power comes first."""
_EXP = (0.499999931, 0.166665148, 0.0416684568, 0.00836941884, 0.00138131451)
"""(exp(x) - 1 - x)/x² for |x| ≤ log(2)/2."""
_LN2_HIGH, _LN2_LOW = 0.693145752, 1.42860677e-6
_SHIFT = 12582912.0 + 64.0 + 127.0
"""What is added to it is rounded to an integer e; its last bits are then e + 64 + 127."""


def factor_of_half_root(x: Scalar) -> tuple[Scalar, int] | None:
    """The y of y·√½ or -y·√½, and the sign; None for any other expression."""
    if x.dtype is not float32 or x.op != "multiply" or x.args[1].op != "const":
        return None
    factor = x.args[1].detail
    return (x.args[0], 1 if factor > 0 else -1) if abs(factor) == _HALF_ROOT else None


def with_erfc_of_half_root(erfc: Callable[[Scalar], Scalar]) -> Callable[[Scalar], Scalar]:
    """erfc, but for y·√½ computed from y."""

    def function(x: Scalar) -> Scalar:
        found = factor_of_half_root(x)
        if found is None:
            return erfc(x)
        y, sign = found
        size = _clamped_size(y)
        above, power = _bell_parts(size)
        ratio = _series(size, _NUMERATOR) / _series(size, _DENOMINATOR)
        far = fma(ratio, above, ratio) * power * 2.0**-64
        return select(less(y, 0.0) if sign > 0 else less(0.0, y), 2.0 - far, far)

    return function


def with_bell_of_half_root(exp: Callable[[Scalar], Scalar]) -> Callable[[Scalar], Scalar]:
    """exp, but for -(y·√½)² computed from y."""

    def function(x: Scalar) -> Scalar:
        square = x.args[0] if x.op == "negative" else None
        is_square = square is not None and square.op == "multiply"
        if square is None or not is_square or square.args[0] is not square.args[1]:
            return exp(x)
        found = factor_of_half_root(square.args[0])
        if found is None:
            return exp(x)
        above, power = _bell_parts(_clamped_size(found[0]))
        return fma(above, power, power) * 2.0**-64

    return function


def _clamped_size(y: Scalar) -> Scalar:
    size = absolute(y)
    return select(less(_FARTHEST, size), _FARTHEST, size)


def _bell_parts(size: Scalar) -> tuple[Scalar, Scalar]:
    """g and 2⁶⁴⁺ᵉ, where exp(-size²/2) is (1 + g)·2ᵉ; the rounding of the square is undone."""
    halved = size * 0.5
    half = halved * size
    moved = fma(half, const(-1.0 / math.log(2.0), float32), const(_SHIFT, float32))
    whole = moved - _SHIFT
    rest = fma(whole, const(-_LN2_HIGH, float32), -half)  # exact
    near = rest + fma(whole, const(-_LN2_LOW, float32), fma(-halved, size, half))
    g = fma(near * near, _series(near, _EXP), near)
    return g, bitcast(bitcast(moved, int32) << 23, float32)


def _series(x: Scalar, coefficients: tuple[float, ...]) -> Scalar:
    """A polynomial; the lowest power comes first."""
    constants = [const(each, float32) for each in reversed(coefficients)]
    return reduce(lambda total, each: fma(total, x, each), constants)
