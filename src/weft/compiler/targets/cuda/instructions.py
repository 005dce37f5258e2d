"""What a card has instructions for beside the LLVM target's table, for one lane or many.

>>> from weft.compiler.targets.llvm.ir_builder import Function
>>> from weft.core.dtypes import bfloat16, float32
>>> lines = Lines(Function())
>>> device_cast(lines, Type(float32), Type(bfloat16), "%x"), lines.text
('%v1', ['  %v0 = fptrunc float %x to bfloat', '  %v1 = bitcast bfloat %v0 to i16'])
"""

from __future__ import annotations

from collections.abc import Sequence

from weft.compiler.targets.llvm.instructions import cast
from weft.compiler.targets.llvm.ir_builder import Lines
from weft.compiler.targets.llvm.ir_types import Type, vector_text
from weft.core.dtypes import bfloat16, float32, int32
from weft.ir.scalars import Scalar

APPROXIMATE = {
    "power_of_two": "ex2.approx.ftz.f32",  # within 2⁻²²
    "reciprocal": "rcp.approx.ftz.f32",  # within 1 ulp; of 1 and more
}
"""Nodes of this target's own: functions of float32 that are one instruction."""


def device_cast(lines: Lines, source: Type, target: Type, x: str) -> str:
    """A number in another dtype; bfloat16 by the card's own rounding, which is to nearest even."""
    if source.dtype is bfloat16 and target.dtype is float32:
        return _from_bfloat16(lines, source, target, x)
    if target.dtype is not bfloat16 or source.dtype is not float32:
        return cast(lines, source, target, x)
    short = vector_text("bfloat", source.width)
    rounded = lines.put(f"fptrunc {source.text} {x} to {short}")
    return lines.put(f"bitcast {short} {rounded} to {target.text}")


def _from_bfloat16(lines: Lines, source: Type, target: Type, x: str) -> str:
    """The bits are the upper half of a float32's: of a pair in one word, a shift or a mask each."""
    if source.width == 1:
        wide = lines.put(f"zext i16 {x} to i32")
        bits = lines.put(f"shl i32 {wide}, 16")
        return lines.put(f"bitcast i32 {bits} to float")
    half, words = source.width // 2, Type(int32, source.width)
    pairs = Type(int32, half)
    found = lines.put(f"bitcast {source.text} {x} to {pairs.text}")
    first = lines.put(f"shl {pairs.text} {found}, {pairs.literal(16)}")
    second = lines.put(f"and {pairs.text} {found}, {pairs.literal(-65536)}")
    if half == 1:
        empty = lines.put(f"insertelement {words.text} poison, i32 {first}, i64 0")
        both = lines.put(f"insertelement {words.text} {empty}, i32 {second}, i64 1")
    else:
        order = ", ".join(f"i32 {k // 2 + (k % 2) * half}" for k in range(source.width))
        mask = f"<{source.width} x i32> <{order}>"
        both = lines.put(f"shufflevector {pairs.text} {first}, {pairs.text} {second}, {mask}")
    return lines.put(f"bitcast {words.text} {both} to {target.text}")


_SAFE = (2.0**-100, 2.0**100)
"""Divisors and quotients whose remainders are exact."""


def shared_reciprocal(lines: Lines, divisor: str) -> tuple[str, str]:
    """1 over a float32 that many are divided by, and whether that is a good way to divide."""
    size = lines.put(f"call float @llvm.fabs.f32(float {divisor})")
    least, most = (Type(float32).literal(limit) for limit in _SAFE)
    above = lines.put(f"fcmp ogt float {size}, {least}")
    below = lines.put(f"fcmp olt float {size}, {most}")
    one = Type(float32).literal(1.0)
    inverse = lines.put(f"fdiv float {one}, {divisor}")
    return inverse, lines.put(f"and i1 {above}, {below}")


def divide_by_shared(
    lines: Lines, kind: Type, x: str, divisor: str, shared: tuple[str, ...], short: bool
) -> str:
    """x over a number that is the same for a team: by its reciprocal, and what that leaves over.

    The quotient is rounded as a division is; a short one is not. A divisor near the ends of the
    range is divided by.
    """
    inverse, is_good = shared
    wide_divisor, wide_inverse = lines.splat(divisor, kind), lines.splat(inverse, kind)
    fast, slow, after = (lines.fresh(stem) for stem in ("fast", "slow", "after"))
    lines.do(f"br i1 {is_good}, label %{fast}, label %{slow}")
    lines.label(fast)
    quotient = lines.put(f"fmul {kind.text} {x}, {wide_inverse}")
    found = (
        quotient
        if short
        else _correct_quotient(lines, kind, x, quotient, wide_divisor, wide_inverse)
    )
    lines.do(f"br label %{after}")
    lines.label(slow)
    plain = lines.put(f"fdiv {kind.text} {x}, {wide_divisor}")
    lines.do(f"br label %{after}")
    lines.label(after)
    return lines.put(f"phi {kind.text} [ {found}, %{fast} ], [ {plain}, %{slow} ]")


def _correct_quotient(
    lines: Lines, kind: Type, x: str, quotient: str, divisor: str, inverse: str
) -> str:
    """A quotient with what is left over divided, too; as it is, where it is near infinity."""
    negative = lines.put(f"fneg {kind.text} {quotient}")
    fma = f"call {kind.text} @llvm.fma.{kind.suffix}"
    rest = lines.put(f"{fma}({kind.text} {negative}, {kind.text} {divisor}, {kind.text} {x})")
    better = lines.put(f"{fma}({kind.text} {rest}, {kind.text} {inverse}, {kind.text} {quotient})")
    size = lines.put(f"call {kind.text} @llvm.fabs.{kind.suffix}({kind.text} {quotient})")
    held = lines.put(f"fcmp olt {kind.text} {size}, {kind.literal(_SAFE[1])}")
    return lines.put(f"select {kind.mask} {held}, {kind.text} {better}, {kind.text} {quotient}")


def device_instruction(lines: Lines, x: Scalar, kind: Type, operands: Sequence[str]) -> str | None:
    """An instruction that only a card has; None for all others."""
    word = APPROXIMATE.get(x.op)
    if word is None:
        return None
    if kind.width == 1:
        return _assembly(lines, word, operands[0])
    name = "poison"
    for lane in range(kind.width):
        one = lines.put(f"extractelement {kind.text} {operands[0]}, i64 {lane}")
        found = _assembly(lines, word, one)
        name = lines.put(f"insertelement {kind.text} {name}, float {found}, i64 {lane}")
    return name


def _assembly(lines: Lines, word: str, operand: str) -> str:
    return lines.put(f'call float asm "{word} $0, $1;", "=f,f"(float {operand})')
