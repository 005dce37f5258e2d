"""Special functions of one element, for the compiler: the references' formulas as expressions.

Like the references they work in double precision, whatever the dtype.

>>> from weft.core.dtypes import float64
>>> from weft.ir.scalars import local
>>> digamma(local("x", float64)).dtype
weft.float64
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import wraps

from weft.core.dtypes import float64
from weft.ir.scalar_functions import copysign
from weft.ir.scalars import (
    Scalar,
    absolute,
    cast,
    const,
    divide,
    equal,
    erf,
    erfc,
    exp,
    less,
    log,
    maximum,
    rint,
    select,
    sqrt,
    tan,
)
from weft.ops.special_series import BERNOULLI, polynomial

__all__: list[str] = []


def _in_double(function: Callable[[Scalar], Scalar]) -> Callable[[Scalar], Scalar]:
    """The function of a float64, for the other dtypes too."""

    @wraps(function)
    def through_double(x: Scalar) -> Scalar:
        return cast(function(cast(x, float64)), x.dtype)

    return through_double


_BEND = 6.25
"""Where the second polynomial begins, whose variable is the root: it goes on to 1 - 2⁻²⁴."""
_NEAR_ZERO = (
    1.2156391424248338e-12, -1.2395857528826527e-11, -3.3079049730380135e-11,
    1.03129355420951e-09, -4.276791000730697e-09, -2.8903412083072948e-08,
    4.2417674868226655e-07, -1.3661002905238657e-06, -1.3884071855802407e-05,
    0.00018673528976515013, -0.0007407009940656072, -0.006033671549411352,
    0.24015818197397482, 1.6536545627513206,
)  # fmt: skip
_NEAR_ONE = (
    -4.0567979238370865e-05, 8.148804724928828e-05, 1.9680564674561556e-05,
    -0.0003613308609529151, 0.0009544877919222519, -0.001686866412127489,
    0.002491301653586313, -0.0037513415201864296, 0.005370920046583409,
    1.0052589712694127, 3.0838856104640637,
)  # fmt: skip


def erfinv(p: Scalar) -> Scalar:
    """The x with erf(x) = p; of dtypes with fewer digits than float64 by two polynomials."""
    return _erfinv_of_double(p) if p.dtype is float64 else _erfinv_in_pieces(p)


@_in_double
def _erfinv_in_pieces(p: Scalar) -> Scalar:
    """x / p as a function of -log(1 - p²), fitted by Chebyshev's to 1e-10 (M. Giles's form)."""
    depth = -log((1.0 - p) * (1.0 + p))
    near: Scalar = polynomial(_NEAR_ZERO, depth - _BEND / 2.0)
    far: Scalar = polynomial(_NEAR_ONE, sqrt(depth) - 3.25)
    value = select(less(depth, _BEND), near, far) * p
    return select(equal(absolute(p), 1.0), p * math.inf, value)


@_in_double
def _erfinv_of_double(p: Scalar) -> Scalar:
    """S. Winitzki's formula, then three steps of Halley's method."""
    depth = -log((1.0 - p) * (1.0 + p))
    b = 2.0 / (math.pi * 0.147) - depth / 2.0
    size = sqrt(maximum(sqrt(b * b + depth / 0.147) - b, 0.0))
    target = absolute(p)
    for _ in range(3):
        error = select(less(target, 0.5), erf(size) - target, (1.0 - target) - erfc(size))
        step = error * (math.sqrt(math.pi) / 2.0) * exp(size * size)
        size = size - step / (1.0 + size * step)
    beyond = select(equal(target, 1.0), const(math.inf, float64), math.nan)
    return copysign(select(less(target, 1.0), size, beyond), p)


_DIGAMMA = (*(-n / (2 * k) for k, n in reversed([*enumerate(BERNOULLI, 1)])), 0.0)


@_in_double
def digamma(x: Scalar) -> Scalar:
    """The derivative of log Γ, by reflection for negative numbers."""
    negative = less(x, 0.0)
    value = _digamma_positive(select(negative, 1.0 - x, x))
    apart = x - rint(x)
    mirrored = value - divide(math.pi, tan(apart * math.pi))
    return select(negative, select(equal(apart, 0.0), math.nan, mirrored), value)


def _digamma_positive(x: Scalar) -> Scalar:
    """Up to 10 by recurrence, then by its asymptotic series."""
    total = const(0.0, float64)
    for _ in range(10):
        small = less(x, 10.0)
        total = select(small, total - 1.0 / x, total)
        x = select(small, x + 1.0, x)
    series: Scalar = polynomial(_DIGAMMA, 1.0 / (x * x))
    return total + log(x) - 0.5 / x + series
