"""References of the special functions, in double precision by NumPy alone.

Each works on a float64 array of any shape and gives one; `in_double` makes it a reference for
every floating-point dtype.

>>> import numpy as np
>>> round(float(erfc(np.array([10.0]))[0]) * 1e45, 9)
2.088487584
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import wraps
from typing import Any

import numpy as np

__all__: list[str] = []

Array = np.ndarray[Any, Any]
BERNOULLI = (
    1 / 6, -1 / 30, 1 / 42, -1 / 30, 5 / 66, -691 / 2730, 7 / 6, -3617 / 510, 43867 / 798,
    -174611 / 330,
)  # fmt: skip
"""The Bernoulli numbers of index 2, 4, 6, …"""


def in_double(function: Callable[..., Array]) -> Callable[..., Array]:
    """The function of float64 arrays, for arrays of any floating-point dtype."""

    @wraps(function)
    def reference(x: Array, **params: Any) -> Array:
        return function(x.astype(np.float64), **params).astype(x.dtype)

    return reference


def polynomial(coefficients: Sequence[float], x: Any) -> Any:
    """Horner's scheme; the highest power comes first."""
    total: Any = coefficients[0]
    for coefficient in coefficients[1:]:
        total = total * x + coefficient
    return total


def _piecewise(x: Array, first: Array, one: Any, other: Any) -> Array:
    """`one` of the elements where `first` is true, `other` of the rest; computed only there."""
    if first.all():
        return np.asarray(one(x))
    out = np.empty(x.shape)
    out[first] = one(x[first])
    rest = ~first
    out[rest] = other(x[rest])
    return out


# --- the error function: W. J. Cody, Rational Chebyshev approximations for the error function,
# --- Mathematics of Computation 23 (1969) --------------------------------------------------------

_NEAR = 0.46875
_NEAR_ABOVE = (
    1.85777706184603153e-1, 3.16112374387056560, 1.13864154151050156e2, 3.77485237685302021e2,
    3.20937758913846947e3,
)  # fmt: skip
_NEAR_BELOW = (
    1.0, 2.36012909523441209e1, 2.44024637934444173e2, 1.28261652607737228e3,
    2.84423683343917062e3,
)  # fmt: skip
_MIDDLE_ABOVE = (
    2.15311535474403846e-8, 5.64188496988670089e-1, 8.88314979438837594, 6.61191906371416295e1,
    2.98635138197400131e2, 8.81952221241769090e2, 1.71204761263407058e3, 2.05107837782607147e3,
    1.23033935479799725e3,
)  # fmt: skip
_MIDDLE_BELOW = (
    1.0, 1.57449261107098347e1, 1.17693950891312499e2, 5.37181101862009858e2,
    1.62138957456669019e3, 3.29079923573345963e3, 4.36261909014324716e3, 3.43936767414372164e3,
    1.23033935480374942e3,
)  # fmt: skip
_FAR_ABOVE = (
    1.63153871373020978e-2, 3.05326634961232344e-1, 3.60344899949804439e-1,
    1.25781726111229246e-1, 1.60837851487422766e-2, 6.58749161529837803e-4,
)  # fmt: skip
_FAR_BELOW = (
    1.0, 2.56852019228982242, 1.87295284992346725, 5.27905102951428412e-1,
    6.05183413124413191e-2, 2.33520497626869185e-3,
)  # fmt: skip


def _erf_near(x: Array) -> Array:
    squared = np.square(x)
    ratio = polynomial(_NEAR_ABOVE, squared) / polynomial(_NEAR_BELOW, squared)
    return np.asarray(x * ratio)


def _erfc_beyond(y: Array) -> Array:
    """erfc of numbers above `_NEAR`; exp(-y²) in two factors, the first of them exact."""
    y = np.minimum(y, 30.0)  # erfc is 0 in double precision from 27 on
    scaled = _piecewise(y, ~(y > 4.0), _erfc_middle, _erfc_far)
    coarse = np.trunc(y * 16.0) / 16.0
    return np.exp(-np.square(coarse)) * np.exp(-(y - coarse) * (y + coarse)) * scaled


def _erfc_middle(y: Array) -> Array:
    return np.asarray(polynomial(_MIDDLE_ABOVE, y) / polynomial(_MIDDLE_BELOW, y))


def _erfc_far(y: Array) -> Array:
    inverse = 1.0 / np.square(y)
    ratio = polynomial(_FAR_ABOVE, inverse) / polynomial(_FAR_BELOW, inverse)
    return np.asarray((1.0 / math.sqrt(math.pi) - inverse * ratio) / y)


def erf(x: Array) -> Array:
    """2/√π times the integral of exp(-t²) from 0 to x."""
    near = np.abs(x) <= _NEAR
    return _piecewise(x, near, _erf_near, lambda x: np.copysign(1.0 - _erfc_beyond(np.abs(x)), x))


def erfc(x: Array) -> Array:
    """1 - erf(x), accurate where that is tiny."""

    def erfc_tail(x: Array) -> Array:
        tail = _erfc_beyond(np.abs(x))
        return np.where(x < 0.0, 2.0 - tail, tail)

    return _piecewise(x, np.abs(x) <= _NEAR, lambda x: 1.0 - _erf_near(x), erfc_tail)


def erfinv(p: Array) -> Array:
    """The x with erf(x) = p: S. Winitzki's formula, then three steps of Halley's method."""
    depth = -np.log((1.0 - p) * (1.0 + p))
    b = 2.0 / (math.pi * 0.147) - depth / 2.0
    size = np.sqrt(np.maximum(np.sqrt(np.square(b) + depth / 0.147) - b, 0.0))
    target = np.abs(p)
    for _ in range(3):
        error = np.where(target < 0.5, erf(size) - target, (1.0 - target) - erfc(size))
        step = error * (math.sqrt(math.pi) / 2.0) * np.exp(np.square(size))
        size = size - step / (1.0 + size * step)
    beyond = np.where(target == 1.0, np.inf, np.nan)
    return np.copysign(np.where(target < 1.0, size, beyond), p)


# --- the gamma function ------------------------------------------------------------------------


def zeta(s: int, q: Any) -> Any:
    """Hurwitz's zeta function, the sum of (q + n)^-s, by Euler's and Maclaurin's formula."""
    total: Any = np.float64(0.0)
    for n in range(12):
        total = total + (q + n) ** -float(s)
    q = q + 12.0
    total = total + q ** (1.0 - s) / (s - 1.0) + 0.5 * q ** -float(s)
    rising = float(s)
    for k, number in enumerate(BERNOULLI, 1):
        total = total + number * rising / math.factorial(2 * k) * q ** (1.0 - s - 2 * k)
        rising *= (s + 2 * k - 1) * (s + 2 * k)
    return total


_AROUND_TWO = (
    *((-1) ** k * float(zeta(k, np.float64(2.0))) / k for k in range(31, 1, -1)),
    1.0 - 0.57721566490153286061,  # less Euler's constant
    0.0,
)
"""The Taylor series of log Γ(2 + z)."""
_DESCENDING = tuple(reversed([*enumerate(BERNOULLI, 1)]))
_STIRLING = tuple(number / (2 * k * (2 * k - 1)) for k, number in _DESCENDING)


def _lgamma_large(x: Array) -> Array:
    """Stirling's series, from 8 on."""
    correction = polynomial(_STIRLING, 1.0 / np.square(x)) / x
    main = (x - 0.5) * np.log(x) - x + 0.5 * math.log(2.0 * math.pi)
    return np.where(x == np.inf, np.inf, main + correction)


def _lgamma_small(x: Array) -> Array:
    """x = z + k with |z| ≤ 1/2, and log Γ(2 + z) from its Taylor series."""
    k = np.floor(x + 0.5)
    above = np.ones(x.shape)
    for i in range(1, 7):
        above = np.where(k - 2.0 >= i, above * (x - i), above)
    below = np.where(k < 2.0, np.abs(x), 1.0) * np.where(k < 1.0, 1.0 + x, 1.0)
    return np.asarray(polynomial(_AROUND_TWO, x - k) + np.log(above) - np.log(below))


def lgamma(x: Array) -> Array:
    """The logarithm of |Γ(x)|, infinite at 0 and the negative whole numbers."""

    def lgamma_positive(x: Array) -> Array:
        return _piecewise(x, x < 8.0, _lgamma_small, _lgamma_large)

    def lgamma_negative(x: Array) -> Array:
        apart = np.abs(x - np.rint(x))
        mirrored = math.log(math.pi) - np.log(np.sin(math.pi * apart)) - lgamma_positive(1.0 - x)
        # whole numbers have no finite value, however large; next to 0 it is that of 1/|x|
        mirrored = np.where(x > -1e-20, -np.log(-x), mirrored)
        return np.where((apart == 0.0) | (x == -np.inf), np.inf, mirrored)

    return _piecewise(x, ~(x < 0.0), lgamma_positive, lgamma_negative)


_DIGAMMA = (*(-number / (2 * k) for k, number in _DESCENDING), 0.0)


def _digamma_positive(x: Array) -> Array:
    total = np.zeros(x.shape)
    for _ in range(10):
        small = x < 10.0
        total = np.where(small, total - 1.0 / x, total)
        x = np.where(small, x + 1.0, x)
    return np.asarray(total + np.log(x) - 0.5 / x + polynomial(_DIGAMMA, 1.0 / np.square(x)))


def digamma(x: Array) -> Array:
    """The derivative of log Γ, not a number at the negative whole numbers."""

    def digamma_negative(x: Array) -> Array:
        apart = x - np.rint(x)
        mirrored = _digamma_positive(1.0 - x) - math.pi / np.tan(math.pi * apart)
        return np.where(apart == 0.0, np.nan, mirrored)

    return _piecewise(x, ~(x < 0.0), _digamma_positive, digamma_negative)


def polygamma(x: Array, order: int) -> Array:
    """The derivative of digamma of an order of at least 1."""
    factor = (-1.0) ** (order + 1) * math.factorial(order)

    def polygamma_negative(x: Array) -> Array:
        slope = _cotangent_derivative(order, x - np.rint(x))
        return np.asarray((-1.0) ** order * factor * zeta(order + 1, 1.0 - x) - math.pi * slope)

    return _piecewise(x, ~(x < 0.0), lambda x: factor * zeta(order + 1, x), polygamma_negative)


def _cotangent_derivative(order: int, x: Array) -> Array:
    """The derivative of cot(πx): with c = cot(πx), each further one is -π(1 + c²)·d/dc."""
    coefficients = np.array([1.0, 0.0])
    for _ in range(order):
        coefficients = -math.pi * np.polymul([1.0, 0.0, 1.0], np.polyder(coefficients))
    return np.asarray(polynomial(list(coefficients), 1.0 / np.tan(math.pi * x)))


# --- modified Bessel functions -----------------------------------------------------------------


def bessel_ie(x: Array, order: int) -> Array:
    """exp(-|x|)·I(x): the power series up to 20, Hankel's expansion from there."""
    size = np.abs(x)
    value = _piecewise(size, size < 20.0, lambda y: _series(y, order), lambda y: _hankel(y, order))
    return value if order == 0 else np.copysign(value, x)


def _series(x: Array, order: int) -> Array:
    quarter = np.square(x / 2.0)
    term = np.exp(-x) * (x / 2.0) ** order / math.factorial(order)
    total = term
    for k in range(1, 70):
        term = term * quarter / (k * (k + order))
        total = total + term
    return np.asarray(total)


def _hankel(x: Array, order: int) -> Array:
    term = np.ones(x.shape)
    total = term
    for k in range(1, 25):
        term = term * ((2 * k - 1) ** 2 - 4 * order**2) / (8.0 * k * x)
        total = total + term
    return np.asarray(total / np.sqrt(2.0 * math.pi * x))
