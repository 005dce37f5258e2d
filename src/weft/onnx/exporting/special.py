"""Special functions that ONNX has no operators for, as short programs in float64.

A smooth factor is a polynomial through Weft's own values (Chebyshev's points), so that no table of
numbers is written here: the error functions are what Weft computes, to the last digits.

>>> from weft.onnx.exporting.rules import RULES
>>> "erfc" in RULES, "lgamma" in RULES
(True, True)
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import numpy as np

import weft as wf
from weft.onnx.exporting.rules import in_double, program, refuse

Array = np.ndarray[Any, Any]


def _through_double(function: Callable[..., wf.Tensor]) -> Callable[[wf.Tensor], wf.Tensor]:
    """A function of a float64, and of how many digits are wanted, for the other dtypes too."""

    def call_in_double(x: wf.Tensor) -> wf.Tensor:
        is_double = x.dtype is wf.float64
        return function(x.astype(wf.float64), is_double).astype(x.dtype)

    return call_in_double


def _polynomial(coefficients: Sequence[float], x: wf.Tensor) -> Any:
    """By Horner's rule, the highest power first."""
    total: Any = coefficients[0]
    for coefficient in coefficients[1:]:
        total = total * x + coefficient
    return total


def _interpolate(values: Callable[[Array], Array], degree: int) -> tuple[float, ...]:
    """The polynomial through values at Chebyshev's points from -1 to 1, its highest power first."""
    chebyshev: Any = np.polynomial.chebyshev
    powers = chebyshev.cheb2poly(chebyshev.chebinterpolate(values, degree))
    return tuple(float(each) for each in powers[::-1])


# --- the error function --------------------------------------------------------------------------

_NEAR, _TURN, _FAR, _SERIES_FROM = 0.5, 3.75, 30.0, 10.0


@cache
def _near_factor(is_double: bool) -> tuple[float, ...]:
    """The polynomial erf(x) / x of 2x²/_NEAR² - 1."""

    def values(t: Array) -> Array:
        x = _NEAR * np.sqrt((t + 1) / 2)
        quotient: Array = wf.erf(wf.asarray(x)).numpy() / x
        return quotient

    return _interpolate(values, 11 if is_double else 5)


@cache
def _tail_factor(is_double: bool) -> tuple[float, ...]:
    """The polynomial (1 + 2y) · exp(y²) · erfc(y) of (y - _TURN) / (y + _TURN)."""

    def values(t: Array) -> Array:
        y = _TURN * (1 + t) / (1 - t)
        near = np.minimum(y, _SERIES_FROM)
        scaled = wf.erfc(wf.asarray(near)).numpy() * _exp_of_square(near, 1.0, np)
        far, term, total = np.maximum(y, _SERIES_FROM), np.ones_like(y), np.ones_like(y)
        for n in range(1, 24):
            term = term * (1 - 2 * n) / (2 * far**2)
            total = total + term
        series = total / (far * math.sqrt(math.pi))
        return np.asarray((1 + 2 * y) * np.where(y < _SERIES_FROM, scaled, series))

    return _interpolate(values, 28 if is_double else 14)


def _exp_of_square(y: Any, sign: float, functions: Any = wf) -> Any:
    """exp(sign · y²) in two factors, the exponent of the first of them exact."""
    coarse = functions.floor(y * 16.0) / 16.0
    rest = (y - coarse) * (y + coarse)
    return functions.exp(coarse * coarse * sign) * functions.exp(rest * sign)


def _tail(y: wf.Tensor, is_double: bool) -> wf.Tensor:
    """The complement of erf for numbers of at least 0."""
    y = wf.minimum(y, _FAR)
    factor = _polynomial(_tail_factor(is_double), (y - _TURN) / (y + _TURN))
    tail: wf.Tensor = factor / (1.0 + 2.0 * y) * _exp_of_square(y, -1.0)
    return tail


def _small_erf(x: wf.Tensor, is_double: bool) -> wf.Tensor:
    """erf where |x| is at most `_NEAR`."""
    product: wf.Tensor = x * _polynomial(_near_factor(is_double), x * x * (2.0 / _NEAR**2) - 1.0)
    return product


def _erf(x: wf.Tensor, is_double: bool = True) -> wf.Tensor:
    size = wf.abs(x)
    far = wf.sign(x) * (1.0 - _tail(size, is_double))
    return wf.where(size <= _NEAR, _small_erf(x, is_double), far)


def _erfc(x: wf.Tensor, is_double: bool) -> wf.Tensor:
    size = wf.abs(x)
    tail = _tail(size, is_double)
    far = wf.where(x < 0, 2.0 - tail, tail)
    return wf.where(size <= _NEAR, 1.0 - _small_erf(x, is_double), far) if is_double else far


def _erfinv(p: wf.Tensor, is_double: bool) -> wf.Tensor:
    """S. Winitzki's formula, then steps of Halley's method."""
    depth = -wf.log((1.0 - p) * (1.0 + p))
    b = 2.0 / (math.pi * 0.147) - depth / 2.0
    size = wf.sqrt(wf.maximum(wf.sqrt(b * b + depth / 0.147) - b, 0.0))
    target = wf.abs(p)
    for _ in range(2 if is_double else 1):
        near, far = _small_erf(size, is_double) - target, (1.0 - target) - _tail(size, is_double)
        error = wf.where(target < 0.5, near, far)  # where size is less than 1/2 as well
        step = error * (math.sqrt(math.pi) / 2.0) * wf.exp(size * size)
        size = size - step / (1.0 + size * step)
    beyond = wf.where(wf.equal(target, 1.0), wf.inf, wf.nan)
    return wf.sign(p) * wf.where(target < 1.0, size, beyond)


in_double("erf")(_erf)
program("erfc")(_through_double(_erfc))
program("erfinv")(_through_double(_erfinv))


# --- the gamma function --------------------------------------------------------------------------

_SHIFT = 8
"""From here on Stirling's series has all digits of float64; less is moved up by recurrence."""
_BERNOULLI = (1 / 6, -1 / 30, 1 / 42, -1 / 30, 5 / 66, -691 / 2730, 7 / 6)
_NUMBERED = tuple(reversed(tuple(enumerate(_BERNOULLI, 1))))
_STIRLING = tuple(number / (2 * k * (2 * k - 1)) for k, number in _NUMBERED)
_DIGAMMA = tuple(number / (2 * k) for k, number in _NUMBERED)


def _lgamma(x: wf.Tensor, is_double: bool) -> wf.Tensor:
    """The logarithm of |Γ(x)|, by reflection for negative numbers."""
    mirrored = wf.where(x < 0, 1.0 - x, x)
    is_small = mirrored < _SHIFT
    z = wf.where(is_small, mirrored + _SHIFT, mirrored)
    series = (z - 0.5) * wf.log(z) - z + 0.5 * math.log(2.0 * math.pi)
    value = series + _polynomial(_STIRLING, 1.0 / (z * z)) / z
    rising = mirrored
    for step in range(1, _SHIFT):
        rising = rising * (mirrored + step)
    value = value - wf.log(wf.where(is_small, rising, 1.0))
    value = wf.where(wf.equal(mirrored, wf.inf), wf.inf, value)
    apart = wf.abs(x - wf.round(x))
    reflected = math.log(math.pi) - wf.log(wf.sin(apart * math.pi)) - value
    has_pole = wf.equal(apart, 0) | wf.equal(x, -wf.inf)
    return wf.where(x < 0, wf.where(has_pole, wf.inf, reflected), value)


def _digamma(x: wf.Tensor, is_double: bool) -> wf.Tensor:
    """The derivative of `_lgamma`."""
    mirrored = wf.where(x < 0, 1.0 - x, x)
    is_small = mirrored < _SHIFT
    z = wf.where(is_small, mirrored + _SHIFT, mirrored)
    inverse = 1.0 / (z * z)
    value = wf.log(z) - 0.5 / z - _polynomial(_DIGAMMA, inverse) * inverse
    falling = 1.0 / mirrored
    for step in range(1, _SHIFT):
        falling = falling + 1.0 / (mirrored + step)
    value = value - wf.where(is_small, falling, 0.0)
    apart = x - wf.round(x)
    reflected = value - math.pi / wf.tan(apart * math.pi)
    return wf.where(x < 0, wf.where(wf.equal(apart, 0), wf.nan, reflected), value)


program("lgamma")(_through_double(_lgamma))
program("digamma")(_through_double(_digamma))


# --- no short program ----------------------------------------------------------------------------

_NO_OPERATOR = "ONNX has no operator for it, and its series are long"
refuse("polygamma", _NO_OPERATOR)
refuse("i0e", _NO_OPERATOR)
refuse("i1e", _NO_OPERATOR)
refuse("gamma_slope", _NO_OPERATOR)
refuse("gamma_by_concentration", _NO_OPERATOR)
