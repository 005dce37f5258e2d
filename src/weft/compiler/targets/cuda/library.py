"""The functions of float64 that the C library has and a card has not.

They are written in the scalar vocabulary, after fdlibm (Sun Microsystems, 1993) where coefficients
have many digits, and become functions of the module that calls them; each is within a few units in
the last place (`lgamma` near its zeros: of 1). A remainder, and the reduction of great angles, are
loops and long integers, and stand here in LLVM's language. Nothing in them is for cards alone, so
tests run them on the CPU.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from functools import cache

from weft.compiler.targets.cuda.arithmetic import FMOD, REDUCED, reduced_table
from weft.compiler.targets.cuda.values import DeviceValues
from weft.compiler.targets.llvm.double_functions import (
    IN_DOUBLE,
    ascending_polynomial,
    cosine_near,
    expm1,
    log1p,
    signed_value,
    sine_near,
)
from weft.compiler.targets.llvm.elementary import (
    DOUBLE,
    INFINITY,
    LIBRARY,
    NAN,
    polynomial,
    power_at_edges,
)
from weft.compiler.targets.llvm.ir_builder import Function
from weft.compiler.targets.llvm.machine import Machine
from weft.core.dtypes import float64, int64, uint64
from weft.core.errors import Unsupported
from weft.ir.scalars import (
    Scalar,
    absolute,
    bitcast,
    cast,
    const,
    equal,
    fma,
    less,
    local,
    maximum,
    minimum,
    node,
    not_equal,
    or_,
    rint,
    select,
    sqrt,
    trunc,
)

Rule = Callable[..., Scalar]
exp, log = DOUBLE["exp"], DOUBLE["log"]
_LN2, _LOG2_E, _LOG10_E = math.log(2.0), 1.0 / math.log(2.0), math.log10(math.e)


def _power_of_two(exponent: Scalar) -> Scalar:
    """2 to an int64, in two factors, so that it may be subnormal."""
    half = exponent >> 1
    first, second = (bitcast((e + 1023) << 52, float64) for e in (half, exponent - half))
    return first * second


# --- exponentials and logarithms -----------------------------------------------------------------


def _exp2(x: Scalar) -> Scalar:
    near = minimum(maximum(x, -1100.0), 1100.0)
    whole = rint(near)
    return exp((near - whole) * _LN2) * _scale(whole)


def _scale(whole: Scalar) -> Scalar:
    """2 to a whole number from -1100 to 1100."""
    exponent = minimum(maximum(cast(whole, int64), -1100), 1100)
    return _power_of_two(exponent)


def _power_and_mantissa(x: Scalar) -> tuple[Scalar, Scalar]:
    """x > 0 as 2ᵏ·m with m from √½ to √2: k as a float, and m."""
    tiny = less(x, 2.2250738585072014e-308)
    bits = bitcast(select(tiny, x * 2.0**54, x), int64)
    exponent = (bits - 0x3FE6A09E667F3BCD) & -0x10000000000000
    whole = cast(exponent >> 52, float64) - select(tiny, const(54.0, float64), 0.0)
    return whole, bitcast(bits - exponent, float64)


def _logarithm_at_edges(x: Scalar, value: Scalar) -> Scalar:
    """A logarithm's value at 0, at infinity, and of what has none."""
    value = select(less(x, INFINITY), value, x + x)
    below = select(equal(x, 0.0), const(-INFINITY, float64), NAN)
    return select(less(0.0, x), value, below + x * 0.0)


def _logarithm(per_power: float, factor: float) -> Rule:
    def logarithm(x: Scalar) -> Scalar:
        whole, m = _power_and_mantissa(x)
        return _logarithm_at_edges(x, fma(whole, const(per_power, float64), log(m) * factor))

    return logarithm


def _pow(x: Scalar, y: Scalar) -> Scalar:
    """exp2(y·log₂ x) with the logarithm in two parts, as its error is multiplied by y."""
    whole, m = _power_and_mantissa(absolute(x))
    high, low = _log2_in_parts(m)
    top = whole + high
    rest = (whole - top) + high + low
    # y·(top + rest): what rounding loses of the first product is kept
    product = y * top
    lost = fma(y, top, -product) + y * rest
    nearest = rint(minimum(maximum(product, -1100.0), 1100.0))
    part = (product - nearest) + select(less(absolute(lost), INFINITY), lost, 0.0)
    magnitude = exp(minimum(maximum(part, -1100.0), 1100.0) * _LN2) * _scale(nearest)
    return power_at_edges(x, y, magnitude)


def _log2_in_parts(m: Scalar) -> tuple[Scalar, Scalar]:
    """log₂ m for m from √½ to √2, as a sum: s = (m - 1)/(m + 1), and what its rounding loses."""
    above, below = m - 1.0, m + 1.0
    s = above / below
    lost = (fma(-s, below, above) - s * (m - (below - 1.0))) / below
    square = s * s
    curve = polynomial(square, *[2.0 * _LOG2_E / k for k in range(23, 1, -2)]) * square * s
    double, factor_low = 2.0 * _LOG2_E, 2.0355273740931033e-17 * 2.0
    high = s * double
    low = fma(s, const(double, float64), -high) + s * factor_low + lost * double
    return high, low + curve


# --- circular functions --------------------------------------------------------------------------

_FAR = 2.0**20
"""From here on angles are reduced by `REDUCED`, with as many digits of π as they need."""


def _reduce_angle(x: Scalar) -> tuple[Scalar, Scalar]:
    """The angle beyond the nearest multiple of π/2, and which multiple it is, modulo 4."""
    whole = rint(minimum(maximum(x, -_FAR), _FAR) * (2.0 / math.pi))
    rest = fma(whole, const(-1.5707963267948966, float64), x)
    rest = fma(whole, const(-6.123233995736766e-17, float64), rest)
    rest = select(equal(whole, 0.0), x, rest)  # with the sign of 0
    far = ~less(absolute(x), _FAR)
    rest = node("rarely", float64, (far, x, rest), "reduced_rest")
    quadrant = node("rarely", float64, (far, x, whole), "reduced_quadrant")
    return rest, cast(quadrant, int64)


def _circular_function(quarter: int) -> Rule:
    def function_of_angle(x: Scalar) -> Scalar:
        rest, quadrant = _reduce_angle(x)
        quadrant = quadrant + quarter
        value = select(equal(quadrant & 1, 0), sine_near(rest), cosine_near(rest))
        return select(equal(quadrant & 2, 0), value, -value)

    return function_of_angle


def _tan(x: Scalar) -> Scalar:
    rest, quadrant = _reduce_angle(x)
    sine, cosine = sine_near(rest), cosine_near(rest)
    even = equal(quadrant & 1, 0)
    return select(even, sine, -cosine) / select(even, cosine, sine)


# --- roots ---------------------------------------------------------------------------------------


def _hypot(x: Scalar, y: Scalar) -> Scalar:
    a, b = absolute(x), absolute(y)
    larger, smaller = select(less(a, b), b, a), select(less(a, b), a, b)
    ratio = select(less(0.0, larger), smaller / larger, 0.0)
    value = larger * sqrt(fma(ratio, ratio, const(1.0, float64)))
    endless = or_(equal(a, INFINITY), equal(b, INFINITY))
    strange = or_(not_equal(x, x), not_equal(y, y))
    return select(endless, INFINITY, select(strange, x + y, value))


# --- the error and gamma functions ---------------------------------------------------------------

_ERF_TOP = (
    1.28379167095512558561e-01, -3.25042107247001499370e-01, -2.84817495755985104766e-02,
    -5.77027029648944159157e-03, -2.37630166566501626084e-05,
)  # fmt: skip
_ERF_BELOW = (
    1.0, 3.97917223959155352819e-01, 6.50222499887672944485e-02, 5.08130628187576562776e-03,
    1.32494738004321644526e-04, -3.96022827877536812320e-06,
)  # fmt: skip
_ERF_ONE = 8.45062911510467529297e-01
_ONE_TOP = (
    -2.36211856075265944077e-03, 4.14856118683748331666e-01, -3.72207876035701323847e-01,
    3.18346619901161753674e-01, -1.10894694282396677476e-01, 3.54783043256182359371e-02,
    -2.16637559486879084300e-03,
)  # fmt: skip
_ONE_BELOW = (
    1.0, 1.06420880400844228286e-01, 5.40397917702171048937e-01, 7.18286544141962662868e-02,
    1.26171219808761642112e-01, 1.36370839120290507362e-02, 1.19844998467991074170e-02,
)  # fmt: skip
_MIDDLE_TOP = (
    -9.86494403484714822705e-03, -6.93858572707181764372e-01, -1.05586262253232909814e01,
    -6.23753324503260060396e01, -1.62396669462573470355e02, -1.84605092906711035994e02,
    -8.12874355063065934246e01, -9.81432934416914548592e00,
)  # fmt: skip
_MIDDLE_BELOW = (
    1.0, 1.96512716674392571292e01, 1.37657754143519042600e02, 4.34565877475229228821e02,
    6.45387271733267880336e02, 4.29008140027567833386e02, 1.08635005541779435134e02,
    6.57024977031928170135e00, -6.04244152148580987438e-02,
)  # fmt: skip
_OUTER_TOP = (
    -9.86494292470009928597e-03, -7.99283237680523006574e-01, -1.77579549177547519889e01,
    -1.60636384855821916062e02, -6.37566443368389627722e02, -1.02509513161107724954e03,
    -4.83519191608651397019e02,
)  # fmt: skip
_OUTER_BELOW = (
    1.0, 3.03380607434824582924e01, 3.25792512996573918826e02, 1.53672958608443695994e03,
    3.19985821950859553908e03, 2.55305040643316442583e03, 4.74528541206955367215e02,
    -2.24409524465858183362e01,
)  # fmt: skip
_GAMMA = (
    57.1562356658629235, -59.5979603554754912, 14.1360979747417471, -0.491913816097620199,
    0.339946499848118887e-4, 0.465236289270485756e-4, -0.983744753048795646e-4,
    0.158088703224912494e-3, -0.210264441724104883e-3, 0.217439618115212643e-3,
    -0.164318106536763890e-3, 0.844182239838527433e-4, -0.261908384015814087e-4,
    0.368991826595316234e-5,
)  # fmt: skip
"""Lanczos' series for the gamma function, with g = 671/128."""


def _ratio(x: Scalar, top: tuple[float, ...], below: tuple[float, ...]) -> Scalar:
    return ascending_polynomial(x, *top) / ascending_polynomial(x, *below)


def _erfc_far(size: Scalar) -> Scalar:
    """erfc of 1.25 and more; exp(-x²) in two factors, whose first operand has no rounding."""
    s = 1.0 / (size * size)
    is_middle = less(size, 1.0 / 0.35)
    ratio = select(
        is_middle, _ratio(s, _MIDDLE_TOP, _MIDDLE_BELOW), _ratio(s, _OUTER_TOP, _OUTER_BELOW)
    )
    z = bitcast(bitcast(size, uint64) & 0xFFFFFFFF00000000, float64)
    return exp(fma(-z, z, const(-0.5625, float64))) * exp((z - size) * (z + size) + ratio) / size


def _erf_parts(x: Scalar) -> tuple[Scalar, Scalar, Scalar, Scalar]:
    """|x|; (erf x - x)/x near 0; erf near 1 less a constant; and erfc far out."""
    size = absolute(x)
    square = minimum(size, 1.0) * minimum(size, 1.0)
    near = _ratio(square, _ERF_TOP, _ERF_BELOW)
    one = _ratio(minimum(size, 2.0) - 1.0, _ONE_TOP, _ONE_BELOW)
    return size, near, one, _erfc_far(minimum(maximum(size, 1.25), 28.0))


def _erf(x: Scalar) -> Scalar:
    size, near, one, far = _erf_parts(x)
    outer = select(less(size, 1.25), _ERF_ONE + one, 1.0 - far)
    return select(less(size, 0.84375), fma(x, near, x), signed_value(x, outer))


def _erfc(x: Scalar) -> Scalar:
    size, near, one, far = _erf_parts(x)
    inner = select(less(x, 0.25), 1.0 - fma(x, near, x), 0.5 - fma(x, near, x - 0.5))
    is_left = less(x, 0.0)
    middle = select(is_left, 1.0 + (_ERF_ONE + one), (1.0 - _ERF_ONE) - one)
    outer = select(is_left, 2.0 - far, select(less(size, 28.0), far, 0.0))
    value = select(less(size, 0.84375), inner, select(less(size, 1.25), middle, outer))
    return select(not_equal(x, x), x, value)


def _lgamma(x: Scalar) -> Scalar:
    """Lanczos' series, and Euler's reflection below ½."""
    is_left = less(x, 0.5)
    z = select(is_left, 1.0 - x, x)
    series = const(0.999999999999997092, float64)
    for number, coefficient in enumerate(_GAMMA):
        series = series + coefficient / (z + float(number))
    shifted = z + (671.0 / 128.0 - 1.0)
    right = (z - 0.5) * log(shifted) - shifted + log(2.5066282746310005 * series)
    right = select(less(z, INFINITY), right, z)
    sine = absolute(_sine_of_half_turns(x))
    left = log(math.pi / sine) - right
    left = select(less(absolute(x), 1e-280), -log(absolute(x)), left)
    pole = is_left & equal(x, trunc(x))
    value = select(pole, INFINITY, select(is_left, left, right))
    return select(equal(absolute(x), INFINITY), INFINITY, select(not_equal(x, x), x, value))


def _sine_of_half_turns(x: Scalar) -> Scalar:
    """sin(π·x), exact in its zeros."""
    rest = x - rint(x)
    angle = rest * math.pi
    quarter = less(absolute(rest), 0.25)
    other = (0.5 - absolute(rest)) * math.pi
    return select(quarter, sine_near(angle), cosine_near(other))


FUNCTIONS: dict[str, Rule] = {
    **IN_DOUBLE,
    "exp": exp, "exp2": _exp2, "expm1": expm1, "log": log, "log2": _logarithm(1.0, _LOG2_E),
    "log10": _logarithm(math.log10(2.0), _LOG10_E), "log1p": log1p, "sin": _circular_function(0),
    "cos": _circular_function(1), "tan": _tan, "tanh": DOUBLE["tanh"], "hypot": _hypot,
    "pow": _pow, "erf": _erf, "erfc": _erfc, "lgamma": _lgamma,
}  # fmt: skip
"""The functions that are expressions, under their names in the C library."""
BY_HAND = {"fmod": FMOD, "reduced_rest": REDUCED, "reduced_quadrant": REDUCED}
"""The functions that are written in LLVM's language."""

_missing = {*LIBRARY.values(), "fmod"} - {*FUNCTIONS, *BY_HAND}
if _missing:
    raise Unsupported(f"the library of cards has no {', '.join(sorted(_missing))}")


def definitions(called: Iterable[str], machine: Machine) -> list[str]:
    """The text of functions, and of what they call, for a module that calls them."""
    pending, found = sorted(called), dict[str, list[str]]()
    while pending:
        name = pending.pop()
        if name in found:
            continue
        if name in BY_HAND:
            found[name] = []
            continue
        found[name], more = _function_lines(name, machine)
        pending += more
    text = [line for name in sorted(found) for line in found[name]]
    by_hand = {BY_HAND[name] for name in found if name in BY_HAND}
    if REDUCED in by_hand:
        text.append(reduced_table())
    return [*text, *sorted(by_hand)]


@cache
def _function_lines(name: str, machine: Machine) -> tuple[list[str], list[str]]:
    """The lines of a function, and the names of those that it calls."""
    rule, function = FUNCTIONS[name], Function()
    arity = 2 if name in ("atan2", "hypot", "pow") else 1
    values = DeviceValues(machine, function)
    operands = [local(f"x{k}", float64) for k in range(arity)]
    for k, operand in enumerate(operands):
        values.define(operand, (f"%x{k}",))
    result = values.value(values.expand(rule(*operands))).names[0]
    given = ", ".join(f"double %x{k}" for k in range(arity))
    head = f"define internal double @{name}({given}) nounwind {{"
    lines = [head, "entry:", *values.leave(), f"  ret double {result}", "}"]
    return lines, sorted(each for each, _, _ in function.externals)
