"""Functions of float64 that are the same for one lane and for many, after fdlibm (Sun, 1993).

Each is within a few units in the last place of float64. A float32 that is computed so is rounded
once, to the nearest but for a hair: on a processor that takes a fifth of what calling the C library
for each number does.

>>> sorted(IN_DOUBLE)[:4]
['acos', 'acosh', 'asin', 'asinh']
"""

from __future__ import annotations

import math

from weft.compiler.targets.llvm.elementary import (
    DOUBLE,
    INFINITY,
    NAN,
    Function,
    call_rarely,
    polynomial,
    with_sign_of,
)
from weft.core.dtypes import float32, float64, int64
from weft.ir.scalars import (
    Scalar,
    absolute,
    and_,
    bitcast,
    cast,
    const,
    equal,
    fma,
    less,
    maximum,
    minimum,
    not_equal,
    or_,
    rint,
    select,
    sqrt,
    trunc,
)

exp, log = DOUBLE["exp"], DOUBLE["log"]
_LN2 = math.log(2.0)


def with_magnitude(x: Scalar, magnitude: Scalar) -> Scalar:
    """The magnitude of one number with the sign of another, which comes first."""
    return with_sign_of(x, absolute(magnitude))


def ascending_polynomial(x: Scalar, *coefficients: float) -> Scalar:
    """A polynomial whose lowest power comes first."""
    return polynomial(x, *reversed(coefficients))


# --- exponentials and logarithms -----------------------------------------------------------------


def expm1(x: Scalar) -> Scalar:
    """eˣ - 1: a series near 0."""
    series = [1.0 / math.factorial(k) for k in range(15, 1, -1)]
    near = fma(polynomial(x, *series) * x, x, x)
    return select(less(absolute(x), 0.35), select(equal(x, 0.0), x, near), exp(x) - 1.0)


def log1p(x: Scalar) -> Scalar:
    """log(1 + x), with what rounding the sum has lost."""
    near = 1.0 + x
    lost = (x - (near - 1.0)) / near
    value = log(near) + select(less(absolute(lost), INFINITY), lost, 0.0)
    return select(less(absolute(x), 1e-17), x, value)


# --- circular functions --------------------------------------------------------------------------

NEAR = 2.0**20
"""Up to here angles are reduced by π/2 in two parts."""
_SINE = (
    -1.66666666666666324348e-01, 8.33333333332248946124e-03, -1.98412698298579493134e-04,
    2.75573137070700676789e-06, -2.50507602534068634195e-08, 1.58969099521155010221e-10,
)  # fmt: skip
_COSINE = (
    4.16666666666666019037e-02, -1.38888888888741095749e-03, 2.48015872894767294178e-05,
    -2.75573143513906633035e-07, 2.08757232129817482790e-09, -1.13596475577881948265e-11,
)  # fmt: skip


def sine_near(x: Scalar) -> Scalar:
    """The sine of an angle up to π/4."""
    square = x * x
    return select(equal(x, 0.0), x, fma(ascending_polynomial(square, *_SINE), square * x, x))


def cosine_near(x: Scalar) -> Scalar:
    """The cosine of an angle up to π/4."""
    square = x * x
    half = square * 0.5
    top = 1.0 - half
    return top + ((1.0 - top) - half + ascending_polynomial(square, *_COSINE) * square * square)


def _tan(x: Scalar) -> Scalar:
    """The tangent of angles up to `NEAR`."""
    whole = rint(minimum(maximum(x, -NEAR), NEAR) * (2.0 / math.pi))
    rest = fma(whole, const(-_HALF_PI[0], float64), x)
    rest = fma(whole, const(-_HALF_PI[1], float64), rest)
    rest = select(equal(whole, 0.0), x, rest)  # with the sign of 0
    sine, cosine = sine_near(rest), cosine_near(rest)
    even = equal(cast(whole, int64) & 1, 0)
    return select(even, sine, -cosine) / select(even, cosine, sine)


# --- inverse circular functions ------------------------------------------------------------------

_ASIN_TOP = (
    1.66666666666666657415e-01, -3.25565818622400915405e-01, 2.01212532134862925881e-01,
    -4.00555345006794114027e-02, 7.91534994289814532176e-04, 3.47933107596021167570e-05,
)  # fmt: skip
_ASIN_BELOW = (
    1.0, -2.40339491173441421878e00, 2.02094576023350569471e00, -6.88283971605453293030e-01,
    7.70381505559019352791e-02,
)  # fmt: skip
_ATAN = (
    3.33333333333329318027e-01, -1.99999999998764832476e-01, 1.42857142725034663711e-01,
    -1.11111104054623557880e-01, 9.09088713343650656196e-02, -7.69187620504482999495e-02,
    6.66107313738753120669e-02, -5.83357013379057348645e-02, 4.97687799461593236017e-02,
    -3.65315727442169155270e-02, 1.62858201153657823623e-02,
)  # fmt: skip
_HALF_PI = (1.5707963267948966, 6.123233995736766e-17)


def _asin_near(x: Scalar, square: Scalar) -> Scalar:
    ratio = (
        square
        * ascending_polynomial(square, *_ASIN_TOP)
        / ascending_polynomial(square, *_ASIN_BELOW)
    )
    return fma(x, ratio, x)


def _asin_parts(x: Scalar) -> tuple[Scalar, Scalar, Scalar]:
    """Whether |x| < ½; the arc sine of x where it is; and that of √((1 - |x|)/2)."""
    size = absolute(x)
    small = (1.0 - size) * 0.5
    return less(size, 0.5), _asin_near(x, x * x), _asin_near(sqrt(small), small)


def _asin(x: Scalar) -> Scalar:
    is_near, near, rest = _asin_parts(x)
    far = _HALF_PI[0] - (2.0 * rest - _HALF_PI[1])
    return select(is_near, near, with_magnitude(x, far) + x * 0.0)


def _acos(x: Scalar) -> Scalar:
    is_near, near, rest = _asin_parts(x)
    middle = _HALF_PI[0] - (near - _HALF_PI[1])
    below = 2.0 * (_HALF_PI[0] - (rest - _HALF_PI[1]))
    return select(is_near, middle, select(less(x, 0.0), below, 2.0 * rest))


def _atan(x: Scalar) -> Scalar:
    """The angle by one of four known ones: atan a + atan((x - a)/(1 + a·x))."""
    size = absolute(x)
    top, below = size, const(1.0, float64)
    high, low = const(0.0, float64), const(0.0, float64)
    for start, middle, angle, rest in (
        (0.4375, 0.5, 4.63647609000806093515e-01, 2.26987774529616870924e-17),
        (0.6875, 1.0, 7.85398163397448278999e-01, 3.06161699786838301793e-17),
        (1.1875, 1.5, 9.82793723247329054082e-01, 1.39033110312309984516e-17),
    ):
        is_beyond = ~less(size, start)
        top = select(is_beyond, size - middle, top)
        below = select(is_beyond, fma(size, const(middle, float64), const(1.0, float64)), below)
        high, low = select(is_beyond, angle, high), select(is_beyond, rest, low)
    is_far = ~less(size, 2.4375)
    top, below = select(is_far, -1.0, top), select(is_far, size, below)
    high, low = select(is_far, _HALF_PI[0], high), select(is_far, _HALF_PI[1], low)
    t = top / below
    square = t * t
    curve = t * square * ascending_polynomial(square, *_ATAN)
    return signed_value(x, high - ((curve - low) - t))


def signed_value(x: Scalar, angle: Scalar) -> Scalar:
    """The value of an odd function from that of |x|; NaN of NaN."""
    return select(not_equal(x, x), x, with_magnitude(x, angle))


def _atan2(y: Scalar, x: Scalar) -> Scalar:
    """The angle of a point; its signs of zero say on which side of an axis it is."""
    both = equal(absolute(x), INFINITY) & equal(absolute(y), INFINITY)
    ratio = select(both, 1.0, absolute(y) / absolute(x))
    ratio = select(equal(y, 0.0) & equal(x, 0.0), 0.0, ratio)
    angle = _atan(ratio)
    is_left = less(bitcast(x, int64), 0)
    left = math.pi - (angle - 1.2246467991473532e-16)
    found = with_magnitude(y, select(is_left, left, angle))
    return select(or_(not_equal(x, x), not_equal(y, y)), x + y, found)


# --- hyperbolic functions ------------------------------------------------------------------------


def _sinh(x: Scalar) -> Scalar:
    size = absolute(x)
    t = expm1(minimum(size, 22.0))
    near = 0.5 * (t + t / (t + 1.0))
    root = exp(0.5 * size)
    return signed_value(x, select(less(size, 22.0), near, 0.5 * root * root))


def _cosh(x: Scalar) -> Scalar:
    root = exp(0.5 * absolute(x))
    near = exp(minimum(absolute(x), 22.0))
    far = 0.5 * root * root
    return select(less(absolute(x), 22.0), fma(near, const(0.5, float64), 0.5 / near), far)


def _asinh(x: Scalar) -> Scalar:
    size = absolute(x)
    square = minimum(size, 2.0**28) * minimum(size, 2.0**28)
    near = log1p(size + square / (1.0 + sqrt(1.0 + square)))
    return signed_value(x, select(less(size, 2.0**28), near, log(size) + _LN2))


def _acosh(x: Scalar) -> Scalar:
    t = x - 1.0
    near = log1p(t + sqrt(t * 2.0 + t * t))
    far = log(absolute(x)) + _LN2
    return select(less(x, 1.0), NAN, select(less(x, 2.0**28), near, far))


def _atanh(x: Scalar) -> Scalar:
    size = absolute(x)
    return signed_value(x, 0.5 * log1p(2.0 * size / (1.0 - size)))


# --- roots ---------------------------------------------------------------------------------------


def _cbrt(x: Scalar) -> Scalar:
    """A third of the exponent, and then Newton's steps."""
    size = absolute(x)
    tiny = less(size, 1e-290)
    scaled = select(tiny, size * 2.0**162, size)
    root = bitcast(bitcast(scaled, int64) // 3 + 0x2A9F789310000000, float64)
    for _ in range(4):
        root = root - (root - scaled / (root * root)) * (1.0 / 3.0)
    root = select(tiny, root * 2.0**-54, root)
    plain = or_(equal(x, 0.0), ~less(size, INFINITY))
    return select(plain, x, with_magnitude(x, root))


IN_DOUBLE: dict[str, Function] = {
    "asin": _asin, "acos": _acos, "atan": _atan, "atan2": _atan2, "sinh": _sinh, "cosh": _cosh,
    "asinh": _asinh, "acosh": _acosh, "atanh": _atanh, "cbrt": _cbrt,
}  # fmt: skip
"""The functions under the names of their instructions."""


def _round_result(rule: Function) -> Function:
    """A function of float64 as one of float32."""
    return lambda *operands: cast(rule(*[cast(each, float64) for each in operands]), float32)


def _tan_of_any(x: Scalar) -> Scalar:
    return call_rarely(~less(absolute(x), NEAR), "tan", x, otherwise=_round_result(_tan)(x))


_WHOLE = {float32: 2.0**23, float64: 2.0**52}
"""Quotients from here on are whole numbers, rounded."""


def _fmod(x: Scalar, y: Scalar) -> Scalar:
    """What a quotient leaves that is cut to a whole number, exactly.

    The rest is a multiple of the last digit of y and at most as large as y, so that the fused step
    does not round it. A quotient that was rounded up to a whole number is one too many.
    """
    quotient = x / y
    rest = fma(-trunc(quotient), y, x)
    is_beyond = and_(not_equal(rest, 0), not_equal(less(rest, 0), less(x, 0)))
    rest = select(is_beyond, rest + with_magnitude(x, y), rest)
    near = select(less(absolute(x), absolute(y)), x, with_magnitude(x, rest))
    return call_rarely(~less(absolute(quotient), _WHOLE[x.dtype]), "fmod", x, y, otherwise=near)


ROUNDED: dict[str, Function] = {
    **{name: _round_result(rule) for name, rule in IN_DOUBLE.items()},
    "tan": _tan_of_any,
    "fmod": _fmod,
}
"""Functions of float32 that are computed in float64, or with fused steps."""

FUSED: dict[str, Function] = {"fmod": _fmod}
"""Functions of float64 with fused steps."""
