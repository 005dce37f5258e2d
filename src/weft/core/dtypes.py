"""Element types, and what two of them make together.

A `DType` is a singleton, compared by identity. Promotion follows the Array API standard within a
kind, and goes to the wider kind across kinds (bool < integer < float < complex) without widening:
int64 with float32 gives float32. Python scalars are weak: they never widen a tensor's dtype.

>>> from weft.core.dtypes import float32, int64, promote, result_type
>>> promote("add", int64, float32)
weft.float32
>>> result_type("mul", [int64, 2.5])
weft.float32
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any, Literal

import ml_dtypes
import numpy as np

from weft.core.errors import DTypeError
from weft.core.names import nearest_name
from weft.core.records import frozen

Kind = Literal["bool", "signed", "unsigned", "float", "complex"]


@frozen(eq=False)
class DType:
    """One element type: its name, its short name in types (`f32`), its NumPy form."""

    name: str
    short: str
    kind: Kind
    bits: int
    numpy: np.dtype[Any]
    is_integer: bool
    """Whether this is a signed or unsigned integer type."""
    is_floating: bool
    """Whether this is a real floating-point type."""
    is_complex: bool
    """Whether this is a complex type."""
    is_inexact: bool
    """Whether this type has derivatives: floating-point or complex."""

    def __repr__(self) -> str:
        return f"weft.{self.name}"

    def __str__(self) -> str:
        return self.short

    def __reduce__(self) -> tuple[object, ...]:
        return as_dtype, (self.name,)

    @property
    def itemsize(self) -> int:
        """Bytes of one element."""
        return self.numpy.itemsize


def _dtype(name: str, short: str, kind: Kind, bits: int, form: Any) -> DType:
    # Asked on every eager operation, so these are answered once.
    integer, real, complex_ = kind in ("signed", "unsigned"), kind == "float", kind == "complex"
    return DType(name, short, kind, bits, np.dtype(form), integer, real, complex_, real or complex_)


bool_ = _dtype("bool", "bool", "bool", 8, np.bool_)
int8 = _dtype("int8", "i8", "signed", 8, np.int8)
int16 = _dtype("int16", "i16", "signed", 16, np.int16)
int32 = _dtype("int32", "i32", "signed", 32, np.int32)
int64 = _dtype("int64", "i64", "signed", 64, np.int64)
uint8 = _dtype("uint8", "u8", "unsigned", 8, np.uint8)
uint16 = _dtype("uint16", "u16", "unsigned", 16, np.uint16)
uint32 = _dtype("uint32", "u32", "unsigned", 32, np.uint32)
uint64 = _dtype("uint64", "u64", "unsigned", 64, np.uint64)
float16 = _dtype("float16", "f16", "float", 16, np.float16)
bfloat16 = _dtype("bfloat16", "bf16", "float", 16, ml_dtypes.bfloat16)
float32 = _dtype("float32", "f32", "float", 32, np.float32)
float64 = _dtype("float64", "f64", "float", 64, np.float64)
complex64 = _dtype("complex64", "c64", "complex", 64, np.complex64)
complex128 = _dtype("complex128", "c128", "complex", 128, np.complex128)

DTYPES: tuple[DType, ...] = (
    bool_, int8, int16, int32, int64, uint8, uint16, uint32, uint64,
    float16, bfloat16, float32, float64, complex64, complex128,
)  # fmt: skip
DEFAULT_INTEGER = int64
DEFAULT_FLOAT = float32
DEFAULT_COMPLEX = complex64
INDEX = int64

BY_NUMPY: dict[np.dtype[Any], DType] = {dtype.numpy: dtype for dtype in DTYPES}
_BY_NAME: dict[str, DType] = {name: d for d in DTYPES for name in (d.name, d.short)}
_BY_PYTHON: dict[object, DType] = {
    bool: bool_,
    int: DEFAULT_INTEGER,
    float: DEFAULT_FLOAT,
    complex: DEFAULT_COMPLEX,
}
_RANK: dict[Kind, int] = {"bool": 0, "signed": 1, "unsigned": 1, "float": 2, "complex": 3}


def as_dtype(value: object) -> DType:
    """The dtype that a dtype, a name, a NumPy dtype or a Python scalar type stands for.

    >>> as_dtype("bfloat16"), as_dtype(np.int8), as_dtype(float)
    (weft.bfloat16, weft.int8, weft.float32)
    """
    if isinstance(value, DType):
        return value
    if isinstance(value, str):
        dtype = _BY_NAME.get(value)
    else:
        dtype = _BY_PYTHON.get(value) if isinstance(value, type) else None
    return dtype if dtype is not None else _from_foreign(value)


def _from_foreign(value: object) -> DType:
    try:
        return BY_NUMPY[np.dtype(value if value is not None else object)]  # type: ignore[call-overload]
    except (TypeError, KeyError, ValueError, SyntaxError, Warning):
        meant = nearest_name(str(value), [d.name for d in DTYPES]) or DEFAULT_FLOAT.name
        raise DTypeError(
            "dtype",
            "unknown element type",
            expected="one of " + ", ".join(d.name for d in DTYPES),
            got={"dtype": repr(value)},
            fix=f'dtype="{meant}"',
        ) from None


def from_numpy(dtype: np.dtype[Any]) -> DType:
    """Our dtype for a NumPy dtype; KeyError if there is none."""
    known_dtype = BY_NUMPY.get(dtype)
    return known_dtype if known_dtype is not None else BY_NUMPY[dtype.newbyteorder("=")]


@cache
def promote(op: str, a: DType, b: DType) -> DType:
    """The dtype that operands of dtypes `a` and `b` are converted to."""
    if a is b:
        return a
    if _RANK[a.kind] != _RANK[b.kind]:
        return _promote_across_kinds(a, b)
    joined = _promote_within_kind(a, b)
    if joined is None:
        raise DTypeError(
            op,
            "dtypes do not promote to a common one",
            expected="integer dtypes with a common wider integer",
            got={"a": a, "b": b},
            fix=f'convert one side first, for example x.astype("{int64.name}")',
        )
    return joined


def _promote_across_kinds(a: DType, b: DType) -> DType:
    low, high = (a, b) if _RANK[a.kind] < _RANK[b.kind] else (b, a)
    wide_float = low.kind == "float" and low.bits == 64
    return complex128 if high.kind == "complex" and wide_float else high


def _promote_within_kind(a: DType, b: DType) -> DType | None:
    if a.kind == b.kind and a.bits != b.bits:
        return a if a.bits > b.bits else b
    if a.kind == "float":  # float16 with bfloat16
        return float32
    unsigned, signed = (a, b) if a.kind == "unsigned" else (b, a)
    if signed.bits > unsigned.bits:
        return signed
    return next((d for d in DTYPES if d.kind == "signed" and d.bits == 2 * unsigned.bits), None)


def promote_scalar(dtype: DType, scalar: bool | int | float | complex) -> DType:
    """The dtype that a tensor of `dtype` and a weak Python scalar make."""
    kind = type(scalar)
    if kind is bool or (kind is int and dtype is not bool_):
        return dtype
    if isinstance(scalar, complex):
        if dtype.is_complex:
            return dtype
        return complex128 if dtype is float64 else DEFAULT_COMPLEX
    if isinstance(scalar, float):
        return dtype if dtype.is_inexact else DEFAULT_FLOAT
    return DEFAULT_INTEGER if dtype is bool_ else dtype


def result_type(op: str, operands: Sequence[DType | bool | int | float | complex]) -> DType:
    """The common dtype of dtypes and weak Python scalars."""
    dtypes = [operand for operand in operands if isinstance(operand, DType)]
    scalars = [operand for operand in operands if not isinstance(operand, DType)]
    if not dtypes:
        dtypes = [_BY_PYTHON[type(scalar)] for scalar in scalars]
    joined = dtypes[0]
    for dtype in dtypes[1:]:
        joined = promote(op, joined, dtype)
    for scalar in scalars:
        joined = promote_scalar(joined, scalar)
    return joined


def real_of(dtype: DType) -> DType:
    """The dtype of a complex number's parts; a real dtype is its own."""
    return {complex64: float32, complex128: float64}.get(dtype, dtype)


def complex_of(dtype: DType) -> DType:
    """The complex dtype whose parts have this dtype; complex64 for 16-bit floats."""
    return dtype if dtype.is_complex else complex128 if dtype is float64 else complex64
