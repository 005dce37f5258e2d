"""Two functions of float64 that need integers: exact remainders, great angles less π/2s."""

from __future__ import annotations

from weft.compiler.targets.llvm.ir_builder import FALSE, IRBuilder, Operand, module_text

_SIZE = (1 << 63) - 1
"""The bits of a float64 without its sign."""
_INFINITY = 0x7FF << 52
_MANTISSA = (1 << 52) - 1
_HIDDEN_BIT = 1 << 52
_BIAS = 1023
_STEP = 10
"""So many bits of a remainder at a time: with the 53 of a mantissa they fill a word."""
_HALF_PI = "0x3FF921FB54442D18"
_WORDS = 20
"""The words of 2/π that the greatest exponent needs, and two more."""
_PAIR = "{ double, double }"


def _function(name: str, *parameters: str, result: str = "double") -> IRBuilder:
    return IRBuilder(name, parameters, result=result, may_inline=True)


def _size_bits(out: IRBuilder, x: str) -> str:
    """The bits of |x|, which are ordered as the numbers are."""
    return out.combine("and", out.convert("bitcast", x, "i64"), _SIZE)


def _mantissa_and_exponent(out: IRBuilder, bits: str) -> tuple[str, str]:
    """The mantissa m and the biased exponent e of |x| = m·2ᵉ⁻¹⁰⁷⁵, which may be subnormal."""
    field, part = out.combine("lshr", bits, 52), out.combine("and", bits, _MANTISSA)
    is_normal = out.test("ne", field, 0)
    mantissa = out.select(is_normal, out.combine("or", part, _HIDDEN_BIT), part)
    return mantissa, out.select(is_normal, field, 1)


def _power_of_two(out: IRBuilder, exponent: str) -> str:
    """2 to an exponent that a normal number has."""
    return out.convert("bitcast", out.combine("shl", out.add(exponent, _BIAS), 52), "double")


def _fmod() -> IRBuilder:
    """The remainder of a division that cuts towards zero: mantissas as integers, bit by bit."""
    out = _function("fmod", "double %x", "double %y")
    x, y = out.parameters
    size_x, size_y = _size_bits(out, x), _size_bits(out, y)
    is_bad_x = out.test("uge", size_x, _INFINITY)
    is_bad_y = out.combine("or", out.test("ugt", size_y, _INFINITY), out.test("eq", size_y, 0))
    with out.when(out.combine("or", is_bad_x, is_bad_y)):
        product = out.combine("fmul", x, y)
        out.give(out.combine("fdiv", product, product))  # NaN
    with out.when(out.test("ult", size_x, size_y)):
        out.give(x)
    mantissa_x, exponent_x = _mantissa_and_exponent(out, size_x)
    mantissa_y, exponent_y = _mantissa_and_exponent(out, size_y)
    rest = out.variable(out.combine("urem", mantissa_x, mantissa_y))
    bits_left = out.variable(out.sub(exponent_x, exponent_y))
    with out.repeat():
        left = bits_left.value
        out.leave_unless(out.test("sgt", left, 0))
        step = out.select(out.test("slt", left, _STEP), left, _STEP)
        rest.value = out.combine("urem", out.combine("shl", rest.value, step), mantissa_y)
        bits_left.value = out.sub(left, step)
    # In two factors, as the result may be subnormal.
    exponent = out.sub(exponent_y, _BIAS + 52)
    half = out.combine("ashr", exponent, 1)
    first, second = (_power_of_two(out, each) for each in (half, out.sub(exponent, half)))
    number = out.convert("uitofp", rest.value, "double")
    scaled = out.combine("fmul", out.combine("fmul", number, first), second)
    out.give(out.call("llvm.copysign.f64", scaled, x, result="double"))
    return out


def _angle_reduction() -> IRBuilder:
    """Payne and Hanek's reduction of |x| from 2²⁰ on: the angle less quarter turns, and how many.

    x = m·2ᵉ. Of 2/π only those digits matter whose product with 2ᵉ is below 4: three words of them,
    times m, are the quadrant in two bits and then the fraction of it, with more than 60 good bits
    even next to a multiple of π/2.
    """
    out = _function("reduced", "double %x", result=_PAIR)
    (x,) = out.parameters
    bits = out.convert("bitcast", x, "i64")
    size = out.combine("and", bits, _SIZE)
    with out.unless(out.test("ult", size, _INFINITY)):
        _give_pair(out, out.combine("fsub", x, x), "0.0")  # NaN
    quadrant, fraction = _quarter_turns(out, size)
    is_above, angle = _nearest_angle(out, fraction)
    turns = out.add(quadrant, out.convert("zext", is_above, "i64"))
    count = out.convert("uitofp", turns, "double")
    is_left = out.test("slt", bits, 0)
    _give_pair(out, *[out.select(is_left, _negative(out, each), each) for each in (angle, count)])
    return out


def _give_pair(out: IRBuilder, rest: str, quarters: str) -> None:
    first = out.put(f"insertvalue {_PAIR} poison, double {rest}, 0", _PAIR)
    out.give(out.put(f"insertvalue {_PAIR} {first}, double {quarters}, 1", _PAIR))


def _negative(out: IRBuilder, x: str) -> str:
    return out.put(f"fneg double {x}", "double")


def _funnel_shift(out: IRBuilder, how: str, high: str, low: str, by: Operand) -> str:
    """A word of two, shifted to the left by `fshl` or to the right by `fshr`."""
    return out.call(f"llvm.{how}.i64", high, low, by, result="i64")


def _quarter_turns(out: IRBuilder, size: str) -> tuple[str, tuple[str, str]]:
    """x·2/π modulo 4: the quadrant, and its fraction in two words."""
    field, part = out.combine("lshr", size, 52), out.combine("and", size, _MANTISSA)
    mantissa = out.convert("zext", out.combine("or", part, _HIDDEN_BIT), "i128")
    # Digits of 2/π that give whole turns are skipped; where e is too small for that, the product
    # is shifted down by the bits that are lacking.
    first_digit = _BIAS + 54
    skipped = out.sub(field, first_digit)
    is_small = out.test("slt", skipped, 0)
    lacking = out.select(is_small, out.sub(first_digit, field), 0)
    skipped = out.select(is_small, 0, skipped)
    place, bit = out.combine("lshr", skipped, 6), out.combine("and", skipped, 63)
    table = out.at("i64", "@two_over_pi", place)
    words = [out.number(table, k) for k in range(4)]
    digits = [_funnel_shift(out, "fshl", words[k], words[k + 1], bit) for k in range(3)]
    high, middle, low = [out.mul(mantissa, out.convert("zext", x, "i128")) for x in digits]
    # The sum of the three products, each 64 bits below the one before.
    middle_low = out.convert("trunc", middle, "i64")
    second = out.add(middle_low, _upper_word(out, low))
    carry = out.convert("zext", out.test("ult", second, middle_low), "i128")
    total = out.add(out.add(high, out.combine("lshr", middle, 64)), carry)
    first, over = out.convert("trunc", total, "i64"), _upper_word(out, total)
    top = _funnel_shift(out, "fshr", over, first, lacking)
    below = _funnel_shift(out, "fshr", first, second, lacking)
    fraction = _funnel_shift(out, "fshl", top, below, 2), out.combine("shl", below, 2)
    return out.combine("lshr", top, 62), fraction


def _upper_word(out: IRBuilder, x: str) -> str:
    return out.convert("trunc", out.combine("lshr", x, 64), "i64")


def _nearest_angle(out: IRBuilder, fraction: tuple[str, str]) -> tuple[str, str]:
    """A fraction of π/2 as an angle from -π/4 to π/4, and whether that is from the next one."""
    is_above = out.test("slt", fraction[0], 0)
    high, low = (out.select(is_above, out.combine("xor", x, -1), x) for x in fraction)
    # The leading zeros go to the exponent, so that the float64 keeps all its bits.
    zeros = out.call("llvm.ctlz.i64", high, FALSE, result="i64")
    shifted = _funnel_shift(out, "fshl", high, low, out.combine("and", zeros, 63))
    number = out.select(out.test("eq", zeros, 64), low, shifted)
    exponent = out.combine("shl", out.sub(_BIAS - 64, zeros), 52)
    power = out.convert("bitcast", exponent, "double")
    size = out.combine("fmul", out.convert("uitofp", number, "double"), power)
    angle = out.combine("fmul", size, _HALF_PI)
    return is_above, out.select(is_above, _negative(out, angle), angle)


def _part_of_reduced(reduced: IRBuilder, name: str, place: int) -> IRBuilder:
    """One of the two numbers of a reduction."""
    out = _function(name, "double %x")
    both = out.call(reduced, *out.parameters)
    out.give(out.put(f"extractvalue {_PAIR} {both}, {place}", "double"))
    return out


def _reductions() -> str:
    reduced = _angle_reduction()
    parts = enumerate(("reduced_rest", "reduced_quadrant"))
    return module_text(reduced, *[_part_of_reduced(reduced, name, k) for k, name in parts])


def reduced_table() -> str:
    """The digits of 2/π after the point, in words of 64 bits."""
    bits = 64 * _WORDS
    digits = (2 << (2 * bits + 64)) // _pi(bits + 64)  # (2/π)·2ᵇⁱᵗˢ
    words = [(digits >> (bits - 64 * (k + 1))) & (2**64 - 1) for k in range(_WORDS)]
    numbers = ", ".join(f"i64 {word}" for word in words)
    return f"@two_over_pi = internal constant [{_WORDS} x i64] [{numbers}], align 8"


def _pi(bits: int) -> int:
    """π·2ᵇⁱᵗˢ by Machin's formula: 16·atan(1/5) - 4·atan(1/239)."""
    more = bits + 32
    return (16 * _arctangent(5, more) - 4 * _arctangent(239, more)) >> 32


def _arctangent(inverse: int, bits: int) -> int:
    power = total = (1 << bits) // inverse
    number, sign = 3, -1
    while power:
        power //= inverse * inverse
        total += sign * (power // number)
        number, sign = number + 2, -sign
    return total


FMOD = module_text(_fmod())
"""The text of `fmod`."""
REDUCED = _reductions()
"""The text of `reduced_rest` and `reduced_quadrant`, which read `reduced_table`."""
