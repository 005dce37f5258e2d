"""Conversions that change nothing, or do in two steps what one step does.

As in `simplify`, elements are kept to the bit unless a rule says otherwise.

>>> import weft as wf
>>> graph = wf.ir.trace(lambda x: x.astype("float64").astype("float32"), wf.spec("float32", (3,)))
>>> print(convert_less.apply(graph))
graph(a: f32[3]) {
  return a
}
"""

from __future__ import annotations

from functools import partial

from weft.core.dtypes import (
    DType,
    bfloat16,
    bool_,
    complex64,
    float16,
    float32,
    float64,
    int8,
    int16,
    int32,
    int64,
    uint8,
    uint16,
    uint32,
)
from weft.core.types import spec
from weft.ir.dispatch import apply
from weft.ir.rewriting import RuleSet
from weft.ir.tensor import Tensor
from weft.ops.arithmetic import complex_, conj, imag, real
from weft.ops.conversion import bits_as, convert
from weft.ops.float8 import E5M2, rounding_cotangent, straight_through
from weft.ops.identity import stopped

__all__ = ["convert_less"]

convert_less = RuleSet("convert_less")
converted = partial(apply, convert)
read_as = partial(apply, bits_as)

_INTEGERS = spec("int32", (2, 3))
_COMPLEX = spec("complex64", (2, 3))
_DIGITS = {"float16": 11, "bfloat16": 8, "float32": 24, "float64": 53}
"""The binary digits of whole numbers that a float holds, each and all."""


@convert_less.rule(lambda x: apply(stopped, x))
def go_on(x: Tensor) -> Tensor:
    """stop_gradient(x) = x, once all derivatives are taken."""
    return x


@convert_less.rule(lambda x, y: apply(straight_through, x, y))
def go_straight(x: Tensor, y: Tensor) -> Tensor:
    """straight_through(x, y) = y, once all derivatives are taken."""
    return y


@convert_less.rule(lambda x, format=E5M2: apply(rounding_cotangent, x, format=format))
def go_on_without_rounding(x: Tensor, format: str) -> Tensor:
    """rounding_cotangent(x) = x, once all derivatives are taken."""
    return x


@convert_less.rule(lambda x, dtype=float32: converted(x, dtype=dtype))
def convert_to_itself(x: Tensor, dtype: DType) -> Tensor | None:
    """A tensor converted to its own dtype is itself."""
    return x if x.dtype is dtype else None


def has_every_value(wide: DType, narrow: DType) -> bool:
    """Whether one dtype has every value of another."""
    if narrow is bool_ or wide is narrow:
        return True
    if wide.is_complex:
        parts = float32 if wide.bits == 64 else float64
        return wide.bits >= narrow.bits if narrow.is_complex else has_every_value(parts, narrow)
    if narrow.is_integer and wide.is_floating:
        return _DIGITS[wide.name] >= narrow.bits - (narrow.kind == "signed") and wide != float16
    if narrow.is_integer and wide.is_integer:
        return wide.bits > narrow.bits and (wide.kind == "signed" or narrow.kind == "unsigned")
    return narrow.is_floating and wide.is_floating and wide.bits > narrow.bits


@convert_less.rule(
    lambda x, first=float64, second=float32: converted(converted(x, dtype=first), dtype=second),
    on=_INTEGERS,
    cases=[
        {"first": first, "second": second}
        for first, second in [
            (int16, int32),
            (uint16, float32),
            (float16, float32),
            (float64, int8),
            (bool_, int32),
            (complex64, float16),
            (float32, bfloat16),
            (float64, uint32),
            (int64, uint8),
        ]
    ],
)
def convert_twice(x: Tensor, first: DType, second: DType) -> Tensor | None:
    """A conversion by way of a wider dtype is one conversion.

    Not from a float to an integer, of which out of range nothing is said.
    """
    if not has_every_value(first, x.dtype):
        return None
    if x.dtype.is_inexact and not (second.is_inexact or second is bool_):
        return None
    if (
        x.dtype.is_integer
        and first.is_inexact
        and second.is_integer
        and not has_every_value(second, x.dtype)
    ):
        return None
    return converted(x, dtype=second)


@convert_less.rule(lambda x, dtype=float32: read_as(x, dtype=dtype))
def bits_as_themselves(x: Tensor, dtype: DType) -> Tensor | None:
    """Bits read as what they are."""
    return x if x.dtype is dtype else None


@convert_less.rule(
    lambda x, first=int32, second=uint32: read_as(read_as(x, dtype=first), dtype=second)
)
def bits_twice(x: Tensor, first: DType, second: DType) -> Tensor:
    """Bits read as one thing and then another are read as the other."""
    return read_as(x, dtype=second)


@convert_less.rule(lambda x: conj(x))
def conjugate_of_real(x: Tensor) -> Tensor | None:
    """A real number is its own conjugate."""
    return None if x.dtype.is_complex else x


@convert_less.rule(lambda x: conj(conj(x)), on=_COMPLEX)
def conjugate_twice(x: Tensor) -> Tensor:
    """The conjugate of the conjugate is the number."""
    return x


@convert_less.rule(lambda x, y: real(complex_(x, y)))
def real_part(x: Tensor, y: Tensor) -> Tensor | None:
    """re(x + iy) = x."""
    return x if x.shape == y.shape else None


@convert_less.rule(lambda x, y: imag(complex_(x, y)))
def imaginary_part(x: Tensor, y: Tensor) -> Tensor | None:
    """im(x + iy) = y."""
    return y if x.shape == y.shape else None


@convert_less.rule(lambda z: complex_(real(z), imag(z)), on=_COMPLEX)
def both_parts(z: Tensor) -> Tensor:
    """re(z) + i·im(z) = z."""
    return z
