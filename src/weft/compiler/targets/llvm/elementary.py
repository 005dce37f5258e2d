"""Elementary functions, written in the scalar vocabulary itself.

`expand` replaces each function by arithmetic that is the same for one lane and for many. In float32
the frequent functions are polynomials, within 1.5 ulp over the whole range (erfc 1.6, powers 2),
and so are exp, log and tanh of float64. Others of float32 are computed in float64, by expressions
(`double_functions.py`) where there are some; the rest calls the C library in double precision. In
float32 erf and tanh have sixteen polynomials each and erfc has eight, see `piecewise`.
Coefficients: N. Juffa's published single precision functions (log, sin, cos), and polynomials of
our own by Remez's exchange, in 40 digits (mpmath), weighted for the relative error and rounded;
`tests/compiler/test_math.py` measures each.

Four nodes are private to this target: `call`, a function of the C library; `rarely`, a call made
only if some lane needs it; `scale`, a number times a power of two; and `lookup`, one of 8 or 16
numbers. All but the calls give the same bits however wide the vectors are.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import reduce

from weft.compiler.targets.llvm.bell import with_bell_of_half_root, with_erfc_of_half_root
from weft.compiler.targets.llvm.piecewise import ERF, ERFC, PLACES, TANH, Pieces
from weft.core.dtypes import (
    DType,
    bfloat16,
    float16,
    float32,
    float64,
    int32,
    int64,
    uint16,
    uint32,
)
from weft.ir.scalars import (
    Scalar,
    absolute,
    bitcast,
    cast,
    const,
    equal,
    fma,
    less,
    node,
    nodes_in_order,
    not_equal,
    or_,
    select,
    sqrt,
    trunc,
)

INFINITY, NAN = math.inf, math.nan
Function = Callable[..., Scalar]


def polynomial(x: Scalar, *coefficients: float) -> Scalar:
    """Horner's scheme with fused steps; the highest power comes first."""
    total: Scalar = const(coefficients[0], x.dtype)
    for coefficient in coefficients[1:]:
        total = fma(total, x, const(coefficient, x.dtype))
    return total


def _halved_polynomial(x: Scalar, coefficients: Sequence[Scalar]) -> Scalar:
    """The even powers beside the odd ones, in half the steps; the lowest power comes first.

    For expressions so long that a processor waits for the steps of a few of them.
    """
    square = x * x
    even, odd = (
        reduce(lambda total, c: fma(total, square, c), reversed(coefficients[first::2]))
        for first in (0, 1)
    )
    return fma(odd, x, even)


def _bits(x: Scalar) -> Scalar:
    return bitcast(x, int32 if x.dtype is float32 else int64)


def _float(bits: Scalar) -> Scalar:
    return bitcast(bits, float32 if bits.dtype is int32 else float64)


def with_sign_of(x: Scalar, magnitude: Scalar) -> Scalar:
    """A number that is not negative, with the sign of another."""
    least = -(1 << (x.dtype.bits - 1))
    return _float(or_(_bits(magnitude), _bits(x) & least))


def _keep_negative_zero(x: Scalar, value: Scalar) -> Scalar:
    """A function's value, but at -0.0, which x - x³ would lose, the same."""
    return select(equal(x, 0.0), x, value)


def _power_of_two(exponent: Scalar) -> Scalar:
    """2 to an integer, of a normal float32 or float64."""
    bias, place = (127, 23) if exponent.dtype is int32 else (1023, 52)
    return _float((exponent + bias) << place)


# --- exponentials --------------------------------------------------------------------------------

_SHIFTS = {
    float32: (12582912.0, 0x4B400000),  # 1.5·2²³: what is added to it is rounded to an integer
    float64: (6755399441055744.0, 0x4338000000000000),  # 1.5·2⁵²
}
"""A number whose last place is worth 1, and its bits."""
_LN2 = {
    float32: (0.693145752, 1.42860677e-6),
    float64: (6.93147180369123816490e-1, 1.90821492927058770002e-10),
}
"""log 2 in two parts, the first so short that its product with an exponent is exact."""
_EXP = {
    float32: (1.38131451e-3, 8.36941884e-3, 4.16684568e-2, 1.66665148e-1, 4.99999931e-1),
    float64: (
        2.499996083000273e-8, 2.763037789814365e-7, 2.755758735412816e-6, 2.4801492764987718e-5,
        1.9841269504757597e-4, 1.3888888943920364e-3, 8.333333333495622e-3, 4.16666666665292e-2,
        1.666666666666641e-1, 5.000000000000011e-1,
    ),
}  # fmt: skip
_EXP2 = (
    1.53533410e-4, 1.33989002e-3, 9.61843761e-3, 5.55033241e-2, 2.40226479e-1, 6.93147203e-1,
)  # fmt: skip
_EXPM1 = (1.98461219e-4, 1.39416190e-3, 8.33339130e-3, 4.16663493e-2, 1.66666664e-1, 0.5)
_TANH = (
    -1.607123263549704e-5, 7.714163874278033e-5, -2.285618157127221e-4, 5.863153563623751e-4,
    -1.4549585163786034e-3, 3.5919891033089446e-3, -8.863220993875546e-3, 2.1869487575424985e-2,
    -5.39682539312384e-2, 1.333333333326203e-1, -3.3333333333332854e-1,
)  # fmt: skip


def _exponent(x: Scalar, scale: float) -> tuple[Scalar, Scalar]:
    """x·scale rounded to an integer: as a float, and as an integer."""
    shift, bits = _SHIFTS[x.dtype]
    moved = fma(x, const(scale, x.dtype), const(shift, x.dtype))
    return moved - shift, _bits(moved) - bits


def _reduce_exponent(x: Scalar) -> tuple[Scalar, Scalar, Scalar]:
    """x less the nearest multiple of log 2; and which multiple: as a float, and as an integer."""
    whole, exponent = _exponent(x, 1.4426950408889634)
    high, low = _LN2[x.dtype]
    rest = fma(whole, const(-high, x.dtype), x)
    return fma(whole, const(-low, x.dtype), rest), whole, exponent


def _clamp(x: Scalar, low: float, high: float) -> Scalar:
    """x within bounds; a NaN stays one."""
    x = select(less(x, low), low, x)
    return select(less(high, x), high, x)


def _scale_by_power(x: Scalar, whole: Scalar, exponent: Scalar) -> Scalar:
    """x·2ᵉ, rounded once, so that the results may be subnormal or infinite."""
    if x.dtype is float32:
        return node("scale", float32, (x, whole))
    half = exponent >> 1
    return x * _power_of_two(half) * _power_of_two(exponent - half)


def _exp(x: Scalar) -> Scalar:
    low, high = (-104.0, 89.0) if x.dtype is float32 else (-746.0, 710.0)
    rest, whole, exponent = _reduce_exponent(_clamp(x, low, high))
    return _scale_by_power(polynomial(rest, *_EXP[x.dtype], 1.0, 1.0), whole, exponent)


def _exp2(x: Scalar) -> Scalar:
    x = _clamp(x, -150.0, 129.0)
    whole, exponent = _exponent(x, 1.0)
    return _scale_by_power(polynomial(x - whole, *_EXP2, 1.0), whole, exponent)


def _expm1(x: Scalar) -> Scalar:
    rest, _, exponent = _reduce_exponent(_clamp(x, -20.0, 89.0))
    tail = polynomial(rest, *_EXPM1)
    series = fma(tail * rest, rest, rest)
    scale = _power_of_two(exponent - 1)  # half of it, as 2¹²⁸ is too great
    value = fma(series, scale, scale - 0.5) * 2.0
    return _keep_negative_zero(x, select(equal(exponent, 0), series, value))


def _tanh_of_double(x: Scalar) -> Scalar:
    size = absolute(x)
    square = x * x
    near = polynomial(square, *_TANH)
    near = fma(near * square, size, size)
    far = 1.0 - 2.0 / (_exp(size + size) + 1.0)
    return with_sign_of(x, select(less(size, 0.625), near, far))


# --- logarithms ----------------------------------------------------------------------------------


def _log(x: Scalar) -> Scalar:
    tiny = less(x, 1.17549435e-38)
    scaled = select(tiny, x * 8388608.0, x)
    bits = _bits(scaled)
    exponent = (bits - 0x3F2AAAAB) & -0x800000
    m = _float(bits - exponent) - 1.0
    whole = fma(
        cast(exponent, float32),
        const(1.19209290e-7, float32),
        select(tiny, const(-23.0, float32), 0.0),
    )
    return _log_special(x, fma(whole, const(0.693147182, float32), _log_near_one(m)))


def _log_near_one(m: Scalar) -> Scalar:
    """log(1 + m) for m from -1/3 to 1/3."""
    s = m * m
    r = polynomial(s, -0.130310059, -0.121483512, -0.166846126, -0.249996200)
    t = polynomial(s, 0.140869141, 0.139814854, 0.200120345)
    r = fma(t, m, r)
    r = fma(r, m, const(0.333331972, m.dtype))
    r = fma(r, m, const(-0.5, m.dtype))
    return fma(r, s, m)


_LOG = (
    1.4796261114045747e-1, 1.531402117018948e-1, 1.8183565402873952e-1, 2.2222198553931352e-1,
    2.857142874255989e-1, 3.9999999999413977e-1, 6.666666666666734e-1,
)  # fmt: skip


def _log_of_double(x: Scalar) -> Scalar:
    """log of x = 2ᵏ·(1 + m), by the series in m/(2 + m) that fdlibm has."""
    tiny = less(x, 2.2250738585072014e-308)
    bits = _bits(select(tiny, x * 2.0**54, x))
    exponent = (bits - 0x3FE6A09E667F3BCD) & -0x10000000000000  # 1 + m from √½ to √2
    m = _float(bits - exponent) - 1.0
    whole = cast(exponent >> 52, float64) - select(tiny, const(54.0, float64), 0.0)
    high, low = _LN2[float64]
    ratio = m / (m + 2.0)
    square = ratio * ratio
    half = m * m * 0.5
    curve = fma(ratio, fma(polynomial(square, *_LOG), square, half), whole * low)
    return _log_special(x, fma(whole, const(high, float64), m - (half - curve)))


def _log_special(x: Scalar, value: Scalar) -> Scalar:
    """A logarithm's value at 0, at infinity, and of what has none."""
    value = select(less(x, INFINITY), value, x + x)
    return select(
        less(0.0, x), value, select(equal(x, 0.0), const(-INFINITY, x.dtype), NAN) + x * 0.0
    )


def _log1p(x: Scalar) -> Scalar:
    near = 1.0 + x
    lost = (x - (near - 1.0)) / near
    small = less(absolute(lost), INFINITY)  # not where 1 + x is 0, infinite or NaN
    value = _log(near) + select(small, lost, 0.0)
    return select(less(absolute(x), 1e-8), x, value)


def _log2_in_double(x: Scalar) -> Scalar:
    """log₂ of a positive normal float64, to about 40 bits: (m - 1)/(m + 1) as a series."""
    bits = _bits(x)
    exponent = (bits - 0x3FE5555555555555) & -0x10000000000000
    m = _float(bits - exponent)
    ratio = (m - 1.0) / (m + 1.0)
    s = ratio * ratio
    odd = [2.0 / (math.log(2.0) * k) for k in range(17, 0, -2)]
    return fma(polynomial(s, *odd), ratio, cast(exponent >> 52, float64))


def _exp2_in_double(x: Scalar) -> Scalar:
    """2ˣ to about 35 bits, for |x| up to 1000."""
    whole, exponent = _exponent(x, 1.0)
    series = [math.log(2.0) ** k / math.factorial(k) for k in range(10, -1, -1)]
    return polynomial(x - whole, *series) * _power_of_two(exponent)


def _logarithm(factor: float) -> Function:
    """A logarithm of another base, by way of double precision."""

    def logarithm(x: Scalar) -> Scalar:
        value = _log2_in_double(cast(x, float64))
        return _log_special(x, cast(value * factor if factor != 1.0 else value, float32))

    return logarithm


def _power(x: Scalar, y: Scalar) -> Scalar:
    product = _log2_in_double(cast(absolute(x), float64)) * cast(y, float64)
    magnitude = cast(_exp2_in_double(_clamp(product, -200.0, 200.0)), float32)
    return power_at_edges(x, y, magnitude)


def power_at_edges(x: Scalar, y: Scalar, magnitude: Scalar) -> Scalar:
    """x to the power y, of which the size is known unless one of them is 0, infinite or NaN."""
    size = absolute(x)
    grows = equal(less(1.0, size), less(0.0, y))
    edge = or_(equal(size, 0.0), equal(size, INFINITY)) | equal(absolute(y), INFINITY)
    magnitude = select(edge, select(grows, const(INFINITY, x.dtype), 0.0), magnitude)
    magnitude = select(equal(size, 1.0), 1.0, magnitude)
    whole = equal(y, trunc(y))
    halved = y * 0.5
    odd = whole & not_equal(halved, trunc(halved))
    signed = select(odd, with_sign_of(x, magnitude), magnitude)
    # a negative number has no power that is not whole; those of 0 and infinity have no sign
    lawless = less(x, 0.0) & less(-INFINITY, x) & ~whole
    value = select(lawless, NAN, signed)
    value = select(or_(not_equal(x, x), not_equal(y, y)), x + y, value)
    return select(or_(equal(y, 0.0), equal(x, 1.0)), 1.0, value)


# --- the error function --------------------------------------------------------------------------


def lookup(table: tuple[float, ...], place: Scalar) -> Scalar:
    """One of 8 or 16 numbers, by the last bits of an int32."""
    return node("lookup", float32, (place,), tuple(const(x, float32).detail for x in table))


def _in_pieces(pieces: Pieces, scale: float, a: Scalar) -> tuple[Scalar, Scalar, Scalar]:
    """A function in pieces: of its piece the first coefficient, t, and the rest over t."""
    place = _bits(fma(a, const(scale, float32), const(1.0, float32))) >> PLACES[len(pieces[0])]
    centre, first, *others = (lookup(row, place) for row in pieces)
    t = a - centre  # exact, as they are near each other
    return first, t, _halved_polynomial(t, others)


def _odd_in_pieces(pieces: Pieces, scale: float, most: float) -> Function:
    """A function that is almost the identity near 0, and constant from some number on."""

    def function(x: Scalar) -> Scalar:
        size = absolute(x)
        first, t, rest = _in_pieces(pieces, scale, select(less(most, size), most, size))
        # in the first piece there is 0 in place of t
        return with_sign_of(x, fma(t, rest, select(less(first, t), t, first)))

    return function


def _erfc(x: Scalar) -> Scalar:
    size = absolute(x)
    far = _erfc_of_size(select(less(10.1, size), 10.1, size))
    return select(less(x, 0.0), 2.0 - far, far)


def _erfc_of_size(x: Scalar) -> Scalar:
    """erfc of what is not negative: (f₀ + p)·(1 + g)·2ᵉ, where exp(-x²) is (1 + g)·2ᵉ.

    The square of x is followed by what its rounding lost, and f₀ is added last.
    """
    square = x * x
    # the last bits of `moved` are e + 64 + 127, those of 2 to e + 64: always a normal number
    shift = _SHIFTS[float32][0] + 64.0 + 127.0
    moved = fma(-square, const(1.4426950408889634, float32), const(shift, float32))
    whole = moved - shift
    high, low = _LN2[float32]
    rest = fma(whole, const(-high, float32), -square)  # exact
    near = rest + fma(whole, const(-low, float32), fma(-x, x, square))
    curve = _halved_polynomial(near, [const(c, float32) for c in reversed(_EXP[float32])])
    g = fma(near * near, curve, near)
    first, t, slope = _in_pieces(ERFC, 1.48, x)
    p = t * slope
    power = _float(_bits(moved) << 23)
    return (first + fma(first, g, fma(p, g, p))) * power * 2.0**-64  # rounded once


# --- circular functions --------------------------------------------------------------------------

_FAR = 48000.0
"""From here on reducing by π/2 in three parts loses too much."""


def _circular_function(name: str, quarter: int) -> Function:
    def sine_or_cosine(x: Scalar) -> Scalar:
        whole, quadrant = _exponent(x, 0.636619747)
        rest = fma(whole, const(-1.57079601, float32), x)
        rest = fma(whole, const(-3.13916473e-7, float32), rest)
        rest = fma(whole, const(-5.39030253e-15, float32), rest)
        quadrant = quadrant + quarter
        value = select(equal(quadrant & 1, 0), _sine(rest), _cosine(rest))
        near = _float(_bits(value) ^ ((quadrant & 2) << 30))
        return call_rarely(~less(absolute(x), _FAR), name, x, otherwise=near)

    return sine_or_cosine


def _sine(x: Scalar) -> Scalar:
    s = x * x
    r = polynomial(s, 2.86567956e-6, -1.98559923e-4, 8.33338592e-3, -1.66666672e-1)
    return _keep_negative_zero(x, fma(r, x * s, x))


def _cosine(x: Scalar) -> Scalar:
    return polynomial(x * x, 2.44677067e-5, -1.38877297e-3, 4.16666567e-2, -0.5, 1.0)


# --- the C library -------------------------------------------------------------------------------


def call(name: str, *operands: Scalar) -> Scalar:
    """A function of the C library, in double precision."""
    dtype = operands[0].dtype
    value = node("call", float64, tuple(cast(x, float64) for x in operands), name)
    return cast(value, dtype)


def call_rarely(condition: Scalar, name: str, *operands: Scalar, otherwise: Scalar) -> Scalar:
    """A function of the C library in lanes where a condition holds, called only if one does."""
    return node("rarely", otherwise.dtype, (condition, *operands, otherwise), name)


LIBRARY = {
    "exp": "exp", "exp2": "exp2", "expm1": "expm1", "log": "log", "log2": "log2",
    "log10": "log10", "log1p": "log1p", "sin": "sin", "cos": "cos", "tan": "tan", "asin": "asin",
    "acos": "acos", "atan": "atan", "atan2": "atan2", "sinh": "sinh", "cosh": "cosh",
    "tanh": "tanh", "asinh": "asinh", "acosh": "acosh", "atanh": "atanh", "cbrt": "cbrt",
    "hypot": "hypot", "power": "pow", "erf": "erf", "erfc": "erfc", "lgamma": "lgamma",
}  # fmt: skip
"""The instructions that the C library has functions for, and their names there."""

SINGLE: dict[str, Function] = {
    "exp": with_bell_of_half_root(_exp),
    "exp2": _exp2,
    "expm1": _expm1,
    "tanh": _odd_in_pieces(TANH, 1.65, 9.05),
    "log": _log,
    "log1p": _log1p,
    "log2": _logarithm(1.0),
    "log10": _logarithm(math.log10(2.0)),
    "power": _power,
    "erf": _odd_in_pieces(ERF, 3.8, 3.94),
    "erfc": with_erfc_of_half_root(_erfc),
    "sin": _circular_function("sin", 0),
    "cos": _circular_function("cos", 1),
}
"""The functions of float32 that are polynomials."""

DOUBLE: dict[str, Function] = {"exp": _exp, "log": _log_of_double, "tanh": _tanh_of_double}
"""The functions of float64 that are polynomials."""


# --- casts of 16-bit floats ----------------------------------------------------------------------


def _from_short(x: Scalar, half: bool) -> Scalar:
    """A 16-bit float as a float32."""
    if x.dtype is bfloat16:
        return bitcast(cast(bitcast(x, uint16), uint32) << 16, float32)
    return node("cast", float32, (x,)) if half else _from_half(x)


def _from_half(x: Scalar) -> Scalar:
    bits = cast(bitcast(x, uint16), uint32)
    shifted = (bits & 0x7FFF) << 13
    value = bitcast(bitcast(shifted, float32) * 2.0**112, uint32)
    value = select(less(bits & 0x7FFF, 0x7C00), value, shifted | 0x7F800000)
    return bitcast(value | ((bits & 0x8000) << 16), float32)


def _to_short(x: Scalar, dtype: DType, half: bool) -> Scalar:
    """A number as a 16-bit float, rounded once; bfloat16 by way of float32, as ml_dtypes does."""
    if x.dtype is float64 and dtype is float16:
        x = _rounded_to_odd(x)
    x = cast(x, float32)
    if dtype is float16:
        return node("cast", float16, (x,)) if half else _to_half(x)
    bits = bitcast(x, uint32)
    rounded = (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16
    kept = select(not_equal(x, x), (bits >> 16) | 0x40, rounded)
    return bitcast(cast(kept, uint16), bfloat16)


def _to_half(x: Scalar) -> Scalar:
    size = absolute(x)
    bits = bitcast(size, uint32)
    normal = (bits + 0xFFF + ((bits >> 13) & 1) - (112 << 23)) >> 13
    tiny = bitcast(size + 0.5, uint32) - 0x3F000000
    value = select(less(size, 2.0**-14), tiny, normal)
    value = select(less(size, 65520.0), value, 0x7C00)
    value = select(not_equal(x, x), 0x7E00, value)
    return bitcast(cast(value | ((bitcast(x, uint32) >> 16) & 0x8000), uint16), float16)


def _rounded_to_odd(x: Scalar) -> Scalar:
    """A float64 as a float32 that rounds on to float16 as the float64 would."""
    near = cast(x, float32)
    back = cast(near, float64)
    bits = _bits(near)
    below = select(less(absolute(x), absolute(back)), bits - 1, bits)
    return select(not_equal(back, x) & equal(x, x), _float(below | 1), near)


# --- expansion -----------------------------------------------------------------------------------


class Expander:
    """Rewrites expressions into what the table of instructions holds; remembers what is done."""

    def __init__(
        self,
        half: bool,
        single: Mapping[str, Function] = SINGLE,
        double: Mapping[str, Function] = DOUBLE,
    ) -> None:
        self._half = half
        self._rules = {float32: single, float64: double}
        self._done: dict[Scalar, Scalar] = {}

    def __call__(self, x: Scalar) -> Scalar:
        """The expression without elementary functions."""
        for each in nodes_in_order(x) if x not in self._done else ():
            if each not in self._done:
                self._done[each] = self._expand_node(each)
        return self._done[x]

    def _expand_node(self, x: Scalar) -> Scalar:
        args = tuple(self._done[arg] for arg in x.args)
        if x.op == "cast":
            return self._cast(args[0], x.dtype)
        rule = self._rules.get(x.dtype, {}).get(x.op)
        if rule is not None:
            return rule(*args)
        if x.op == "hypot" and x.dtype is float32:
            return _hypot(*args)
        if x.op in LIBRARY:
            return call(LIBRARY[x.op], *args)
        if x.op == "fmod" and x.dtype.is_floating:
            return call("fmod", *args)
        return x if args == x.args else node(x.op, x.dtype, args, x.detail)

    def _cast(self, x: Scalar, dtype: DType) -> Scalar:
        if x.dtype in (float16, bfloat16):
            x = _from_short(x, self._half)
        if dtype in (float16, bfloat16):
            return _to_short(x, dtype, self._half)
        return cast(x, dtype)


def _hypot(x: Scalar, y: Scalar) -> Scalar:
    wide, high = cast(x, float64), cast(y, float64)
    value = cast(sqrt(fma(wide, wide, high * high)), float32)
    endless = or_(equal(absolute(x), INFINITY), equal(absolute(y), INFINITY))
    return select(endless, INFINITY, value)
