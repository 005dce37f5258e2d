"""Elementary functions on a card: those of the LLVM target, but where a card has better ways.

A card has no vectors to look numbers up in and no C library. So exp, tanh and erf of float32 take
its instruction for powers of two, within 2 ulp; and what the LLVM target calls the C library for
is called in `library`, which is written in the scalar vocabulary, too. All other functions are the
LLVM target's expressions, and give its bits.
"""

from __future__ import annotations

from weft.compiler.llvm.mathematics import Expander, Function, polynomial
from weft.core.dtypes import DType, bfloat16, float32, int32, uint32
from weft.ir.scalars import (
    Scalar,
    absolute,
    bitcast,
    cast,
    const,
    fma,
    less,
    maximum,
    minimum,
    node,
    or_,
    select,
)

_LOG2_E = (1.4426950216293335, 1.9259629911266175e-8)
"""1 / log 2 in two parts, the first a float32."""
_SHIFT = 12582912.0
"""1.5·2²³: what is added to it is rounded to a whole number."""
_TANH = (
    -7.78239406645298e-3, 2.140869386494160e-2, -5.394065752625465e-2, 1.333306580781937e-1,
    -3.333332538604736e-1,
)  # fmt: skip
"""(tanh x - x) / x³ in x², for |x| up to 0.6."""
_ERF_NEAR = (
    -5.96761703e-4, 4.99119423e-3, -2.67681349e-2, 1.12819925e-1, -3.76125336e-1, 1.28379166e-1,
)  # fmt: skip
"""(erf x - x) / x in x², for |x| up to 0.927."""


def _power_of_two(x: Scalar) -> Scalar:
    return node("power_of_two", float32, (x,))


def _exponential(x: Scalar) -> Scalar:
    """exp x as 2ᵗ·2ᶠ with t whole, which the last product rounds once."""
    high, low = (const(part, float32) for part in _LOG2_E)
    shifted = fma(x, high, const(_SHIFT, float32))
    # the magnitude of x decides where t ends: f then takes the rest, to infinity and to 0
    whole = minimum(maximum(shifted - _SHIFT, -148.0), 127.0)
    part = fma(x, low, fma(x, high, -whole))
    # two factors, as 2ᵗ may be no normal number: -148 is -74 twice
    exponent = cast(whole, int32)
    half = exponent >> 1
    scaled = _power_of_two(part) * _whole_power(half)
    return scaled * _whole_power(exponent - half)


def _whole_power(exponent: Scalar) -> Scalar:
    return bitcast((exponent + 127) << 23, float32)


def _tanh(x: Scalar) -> Scalar:
    size = absolute(x)
    square = x * x
    near = fma(polynomial(square, *_TANH) * square, size, size)
    # beyond 20 the power is so large that 1 is left
    power = _power_of_two(minimum(size, 20.0) * (2.0 * 1.4426950408889634))
    rest = node("reciprocal", float32, (power + 1.0,))
    far = fma(rest, const(-2.0, float32), const(1.0, float32))
    return _with_sign_of(x, select(less(size, 0.6), near, far))


def _erf(x: Scalar) -> Scalar:
    """N. Juffa's erf of float32, within 1 ulp but for exp."""
    near = fma(polynomial(x * x, *_ERF_NEAR), x, x)
    size = minimum(absolute(x), 4.0)  # where it is 1
    square = size * size
    slope = fma(size, const(-1.72853470e-5, float32), const(3.83197126e-4, float32))
    other = fma(size, const(-3.88396438e-3, float32), const(2.42546219e-2, float32))
    curve = fma(slope, square, other)
    for coefficient in (-1.06777877e-1, -6.34846687e-1, -1.28717512e-1):
        curve = fma(curve, size, const(coefficient, float32))
    far = 1.0 - _exponential(fma(curve, size, -size))
    return select(less(size, 0.927734375), near, _with_sign_of(x, far))


def _with_sign_of(x: Scalar, magnitude: Scalar) -> Scalar:
    sign = bitcast(x, uint32) & 0x80000000
    return bitcast(or_(bitcast(magnitude, uint32), sign), float32)


SINGLE: dict[str, Function] = {"exp": _exponential, "tanh": _tanh, "erf": _erf}
"""The functions of float32 that take instructions of the card."""

class DeviceExpander(Expander):
    """Rewrites expressions into what a card has instructions or functions for."""

    def __init__(self) -> None:
        super().__init__(half=True)

    def _expanded(self, x: Scalar) -> Scalar:
        rule = SINGLE.get(x.op) if x.dtype is float32 else None
        if rule is not None:
            return rule(*(self._done[arg] for arg in x.args))
        return super()._expanded(x)

    def _cast(self, x: Scalar, dtype: DType) -> Scalar:
        if dtype is not bfloat16 or x.dtype is bfloat16:
            return super()._cast(x, dtype)
        wide = super()._cast(x, float32)
        return node("cast", bfloat16, (wide,))
