"""What a card has instructions for beside the LLVM target's table, for one lane or many.

>>> from weft.compiler.llvm.writing import Function
>>> from weft.core.dtypes import bfloat16, float32
>>> lines = Lines(Function())
>>> device_cast(lines, Type(float32), Type(bfloat16), "%x"), lines.text
('%v1', ['  %v0 = fptrunc float %x to bfloat', '  %v1 = bitcast bfloat %v0 to i16'])
"""

from __future__ import annotations

from collections.abc import Sequence

from weft.compiler.llvm.instructions import cast
from weft.compiler.llvm.writing import Lines, Type, widened
from weft.core.dtypes import bfloat16, float32
from weft.ir.scalars import Scalar

APPROXIMATE = {
    "power_of_two": "ex2.approx.ftz.f32",  # within 2⁻²²; its operand is no greater than 1
    "reciprocal": "rcp.approx.f32",  # within 1 ulp
}
"""Nodes of this target's own: functions of float32 that are one instruction."""


def device_cast(lines: Lines, source: Type, target: Type, x: str) -> str:
    """A number in another dtype; bfloat16 by the card's own rounding, which is to nearest even."""
    if target.dtype is not bfloat16 or source.dtype is not float32:
        return cast(lines, source, target, x)
    short = widened("bfloat", source.width)
    rounded = lines.put(f"fptrunc {source.text} {x} to {short}")
    return lines.put(f"bitcast {short} {rounded} to {target.text}")


def device_instruction(
    lines: Lines, x: Scalar, kind: Type, operands: Sequence[str]
) -> str | None:
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
