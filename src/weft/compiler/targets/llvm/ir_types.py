"""Types and literals in the text of LLVM IR.

A value of a 16-bit float is held as its bits, an i16; a bool as an i1, and in memory as an i8.

>>> from weft.core.dtypes import float32
>>> Type(float32, 4).text, Type(float32, 4).suffix, Type(float32, 4).literal(0.5)
('<4 x float>', 'v4f32', 'splat (float 0x3FE0000000000000)')
"""

from __future__ import annotations

import struct
from functools import cache

from weft.core.dtypes import DType, bool_, float32, float64
from weft.core.records import frozen


def element(dtype: DType) -> str:
    """The LLVM type of one value: float16 is an i16, bool an i1."""
    if dtype is float32:
        return "float"
    if dtype is float64:
        return "double"
    return "i1" if dtype is bool_ else f"i{dtype.bits}"


@frozen
class Type:
    """The LLVM type of `width` lanes of a dtype."""

    dtype: DType
    width: int = 1

    @property
    def text(self) -> str:
        """As in `<16 x float>`."""
        return vector_text(element(self.dtype), self.width)

    @property
    def memory(self) -> str:
        """The type in memory, which differs for bool."""
        return vector_text("i8", self.width) if self.dtype is bool_ else self.text

    @property
    def mask(self) -> str:
        """The type of a condition for each lane."""
        return vector_text("i1", self.width)

    @property
    def suffix(self) -> str:
        """As intrinsics have it: `v16f32`."""
        return overload(element(self.dtype), self.width)

    def literal(self, value: bool | int | float) -> str:
        """A constant in every lane."""
        text = _literal(self.dtype, value)
        return text if self.width == 1 else f"splat ({element(self.dtype)} {text})"


def vector_text(text: str, width: int) -> str:
    """The type of a vector, or of one lane."""
    return text if width == 1 else f"<{width} x {text}>"


def overload(text: str, width: int) -> str:
    """The name of a type in an intrinsic's."""
    name = {"float": "f32", "double": "f64", "ptr": "p0"}.get(text, text)
    return name if width == 1 else f"v{width}{name}"


def _literal(dtype: DType, value: bool | int | float) -> str:
    if dtype is bool_:
        return "true" if value else "false"
    if dtype is float32 or dtype is float64:
        return f"0x{struct.unpack('>Q', struct.pack('>d', value))[0]:016X}"
    if dtype.is_floating:
        return str(int.from_bytes(dtype.numpy.type(value).tobytes(), "little"))
    return str(value)


@cache
def steps(width: int, kind: str = "i64") -> str:
    """The lanes' numbers as a constant: 0, 1, 2 and so on."""
    if width == 1:
        return "0"
    return "<" + ", ".join(f"{kind} {lane}" for lane in range(width)) + ">"
