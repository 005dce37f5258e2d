"""Elementary functions on a card: those of the LLVM target, but where a card has better ways.

A card has no vectors to look numbers up in and no C library. So exp, tanh, erf and erfc of float32
take its instruction for powers of two, within a few ulp; and what the LLVM target calls the C
library for is called in `library`, which is written in the scalar vocabulary, too. All other
functions are the LLVM target's expressions, and give its bits.

A value that is rounded to 16 bits next, or multiplied and then rounded, has shorter functions: an
error of 2⁻¹⁶ beside the 2⁻⁹ or 2⁻¹² of the rounding. They keep such kernels at the memory's speed.
"""

from __future__ import annotations

from weft.compiler.targets.llvm.elementary import (
    LIBRARY,
    Expander,
    Function,
    polynomial,
    with_sign_of,
)
from weft.compiler.targets.llvm.instructions import TABLE
from weft.core.dtypes import DType, bfloat16, float16, float32, int32
from weft.core.errors import Unsupported
from weft.ir.scalars import (
    INSTRUCTIONS,
    Scalar,
    absolute,
    bitcast,
    const,
    fma,
    is_const,
    less,
    maximum,
    minimum,
    node,
    select,
)

_LOG2_E = (1.4426950216293335, 1.9259629911266175e-8)
"""1 / log 2 in two parts, the first a float32."""
_SHIFT, _SHIFT_BITS = 12582912.0, 0x4B400000
"""1.5·2²³, and its bits: what is added to it is rounded to a whole number, in its last bits."""
_TANH = (
    -5.905878264456987e-3, 2.0805394276976585e-2, -5.3786687552928925e-2, 1.3331958651542664e-1,
    -3.3333298563957214e-1,
)  # fmt: skip
"""(tanh x - x) / x³ in x², for |x| up to 0.6; within 2⁻²⁸ of tanh x."""
_ERF_NEAR = (
    -5.96761703e-4, 4.99119423e-3, -2.67681349e-2, 1.12819925e-1, -3.76125336e-1, 1.28379166e-1,
)  # fmt: skip
"""(erf x - x) / x in x², for |x| up to 0.927."""
_ERFC = (
    -4.01139259e-4, -1.23075210e-3, 1.31355342e-3, 8.63227434e-3, -8.05991981e-3, -5.42046614e-2,
    1.64055392e-1, -1.66031361e-1, -9.27639827e-2, 2.76978403e-1,
)  # fmt: skip
"""(1 + 2x)·exp(x²)·erfc x - 1 in (x - 2)/(x + 2), for x ≥ 0."""
SHORT_ERFC = (
    0.14425307512283325, -0.47331148386001587, 0.3572792410850525, 0.23145121335983276,
    0.37395596504211426, 0.36638039350509644,
)  # fmt: skip
"""exp(x²)·erfc x / t in t = 1/(1 + 0.65·x), for x ≥ 0; within 2⁻¹⁶."""


def _power_of_two(x: Scalar) -> Scalar:
    return node("power_of_two", float32, (x,))


def _reciprocal(x: Scalar) -> Scalar:
    return node("reciprocal", float32, (x,))


def _exponential(x: Scalar) -> Scalar:
    """exp x as 2ᵗ·2ᶠ with t whole; f has what x is beyond the greatest and least t."""
    high, low = (const(part, float32) for part in _LOG2_E)
    moved = fma(x, high, const(_SHIFT, float32))
    moved = minimum(maximum(moved, _SHIFT - 150.0), _SHIFT + 127.0)
    part = fma(x, low, fma(x, high, _SHIFT - moved))
    # where 2ᵗ is no normal number it is 2⁶⁴ times as much, and the product 2⁻⁶⁴ times
    is_tiny = less(moved, _SHIFT - 125.0)
    more = select(is_tiny, const(127 + 64, int32), 127)
    power = bitcast((bitcast(moved, int32) - _SHIFT_BITS + more) << 23, float32)
    return _power_of_two(part) * power * select(is_tiny, const(2.0**-64, float32), 1.0)


def _tanh(x: Scalar) -> Scalar:
    size = absolute(x)
    square = x * x
    near = fma(polynomial(square, *_TANH) * square, size, size)
    # beyond 20 the power is so large that 1 is left
    power = _power_of_two(minimum(size, 20.0) * (2.0 * 1.4426950408889634))
    far = fma(_reciprocal(power + 1.0), const(-2.0, float32), const(1.0, float32))
    return with_sign_of(x, select(less(size, 0.6), near, far))


def _half_of_tanh_and_one(x: Scalar) -> Scalar:
    """(tanh x + 1)/2, which is 1/(1 + exp(-2x)): no digits are lost where tanh is near -1."""
    return _reciprocal(1.0 + _power_of_two(x * (-2.0 * 1.4426950408889634)))


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
    return select(less(absolute(x), 0.927734375), near, with_sign_of(x, far))


def _erfc(x: Scalar) -> Scalar:
    """N. Juffa's erfc of float32: a polynomial in (|x| - 2)/(|x| + 2), over 1 + 2|x|, by exp."""
    size = minimum(absolute(x), 10.1)  # where it is 0
    inverse = _reciprocal(size + 2.0)
    q = fma(inverse, const(-4.0, float32), const(1.0, float32))
    rest = fma(-size, q, fma(q + 1.0, const(-2.0, float32), size))
    q = fma(inverse, rest, q)
    curve = polynomial(q, *_ERFC)
    inverse = _reciprocal(fma(size, const(2.0, float32), const(1.0, float32)))
    q = fma(curve, inverse, inverse)
    half = fma(q, -size, const(0.5, float32))
    q = fma(fma(half, const(2.0, float32), curve - q), inverse, q)
    square = size * size
    power = _exponential(-square)
    lost = fma(-size, size, square)  # what rounding the square has lost
    value = fma(q, power, q * power * lost)
    return select(less(x, 0.0), 2.0 - value, value)


def _short_exponential(x: Scalar) -> Scalar:
    """exp x within 2⁻¹⁶; what is below 2⁻¹²⁶ is 0."""
    return _power_of_two(x * 1.4426950408889634)


def _short_erfc(x: Scalar) -> Scalar:
    """erfc x within 2⁻¹⁶: exp(-x²) by a polynomial in 1/(1 + 0.65·|x|)."""
    size = absolute(x)
    t = _reciprocal(fma(size, const(0.65, float32), const(1.0, float32)))
    value = polynomial(t, *SHORT_ERFC) * t * _power_of_two(x * x * -1.4426950408889634)
    return select(less(x, 0.0), 2.0 - value, value)


SINGLE: dict[str, Function] = {"exp": _exponential, "tanh": _tanh, "erf": _erf, "erfc": _erfc}
"""The functions of float32 that take instructions of the card."""
SHORT: dict[str, Function] = {"exp": _short_exponential, "erfc": _short_erfc}
"""Functions whose results are rounded to 16 bits before anything is added to them."""
PASSING = frozenset({"multiply", "negative", "select"})
"""Instructions whose relative error is no greater than that of their operands together."""
_DEEPEST = 64
"""The instructions in a row that are followed from a cast to 16 bits."""

_missing = {*INSTRUCTIONS} - {*TABLE, *LIBRARY, *SINGLE}
if _missing:
    raise Unsupported(f"cards have no form of {', '.join(sorted(_missing))}")


class DeviceExpander(Expander):
    """Rewrites expressions into what a card has instructions or functions for."""

    def __init__(self) -> None:
        super().__init__(half=True)
        self._short: dict[Scalar, Scalar] = {}

    def _expand_node(self, x: Scalar) -> Scalar:
        if x.op == "cast" and x.dtype in (bfloat16, float16) and x.args[0].dtype is float32:
            return self._cast(self._rounded_next(x.args[0], 0), x.dtype)
        rule = SINGLE.get(x.op) if x.dtype is float32 else None
        if rule is not None:
            return rule(*(self._done[arg] for arg in x.args))
        angle = angle_of_half_tanh(x)
        return (
            super()._expand_node(x) if angle is None else _half_of_tanh_and_one(self._done[angle])
        )

    def _rounded_next(self, x: Scalar, depth: int) -> Scalar:
        """A float32 that is rounded to 16 bits next: with no more digits than that needs."""
        if x not in self._short:
            self._short[x] = self._shorten(x, depth)
        return self._short[x]

    def _shorten(self, x: Scalar, depth: int) -> Scalar:
        if x.dtype is not float32 or depth > _DEEPEST or angle_of_half_tanh(x) is not None:
            return self._done[x]
        if x.op in SHORT:
            return SHORT[x.op](self._done[x.args[0]])
        if x.op == "divide":
            top = self._rounded_next(x.args[0], depth + 1)
            return node("divide", float32, (top, self._done[x.args[1]]), "short")
        if x.op in PASSING:
            args = tuple(self._rounded_next(arg, depth + 1) for arg in x.args)
            return node(x.op, float32, args)
        return self._done[x]

    def _cast(self, x: Scalar, dtype: DType) -> Scalar:
        if x.dtype is bfloat16 and dtype is not bfloat16:
            return super()._cast(node("cast", float32, (x,)), dtype)
        if dtype is not bfloat16 or x.dtype is bfloat16:
            return super()._cast(x, dtype)
        return node("cast", bfloat16, (super()._cast(x, float32),))


def angle_of_half_tanh(x: Scalar) -> Scalar | None:
    """The u of (tanh u + 1)·0.5, which activations are made of; None if it is not that."""
    if x.op != "multiply" or x.dtype is not float32 or not is_const(x.args[1], 0.5):
        return None
    total = x.args[0]
    if total.op != "add" or total.args[0].op != "tanh" or not is_const(total.args[1], 1.0):
        return None
    return total.args[0].args[0]
