"""Questions about element types, and what the library can do (Array API standard 2024.12).

>>> import weft as wf
>>> wf.isdtype(wf.float32, "real floating")
True
"""

from __future__ import annotations

import math
from typing import Any

import ml_dtypes
import numpy as np

from weft.core import dtypes
from weft.core.devices import CPU, DEVICES, Device, as_device
from weft.core.dtypes import DType, as_dtype, promote, real_of
from weft.core.errors import ArgumentError, ArgumentTypeError, DTypeError
from weft.core.records import frozen
from weft.ir.tensor import Tensor
from weft.ops.operands import as_tensor

__all__ = [
    "can_cast", "e", "finfo", "iinfo", "inf", "isdtype", "nan", "newaxis", "pi", "result_type",
]  # fmt: skip

e = math.e
inf = math.inf
nan = math.nan
newaxis = None
pi = math.pi

STANDARD_VERSIONS = ("2021.12", "2022.12", "2023.12", "2024.12", "2025.12")

_KINDS: dict[str, frozenset[str]] = {
    "bool": frozenset({"bool"}),
    "signed integer": frozenset({"signed"}),
    "unsigned integer": frozenset({"unsigned"}),
    "integral": frozenset({"signed", "unsigned"}),
    "real floating": frozenset({"float"}),
    "complex floating": frozenset({"complex"}),
    "numeric": frozenset({"signed", "unsigned", "float", "complex"}),
}


@frozen
class FloatInfo:
    """The limits of a floating-point dtype; for a complex one, of its parts."""

    bits: int
    eps: float
    max: float
    min: float
    smallest_normal: float
    dtype: DType


@frozen
class IntegerInfo:
    """The limits of an integer dtype."""

    bits: int
    max: int
    min: int
    dtype: DType


def _dtype_of(value: Any) -> DType:
    return value.dtype if isinstance(value, Tensor) else _array_dtype(value)


def _array_dtype(value: Any) -> DType:
    is_array = isinstance(value, (np.ndarray, np.generic))
    return as_tensor("dtype", value).dtype if is_array else as_dtype(value)


def finfo(type: Any, /) -> FloatInfo:
    """The limits of a floating-point dtype, or of a tensor's.

    >>> finfo("float32").eps
    1.1920928955078125e-07
    """
    dtype = real_of(_dtype_of(type))
    if not dtype.is_floating:
        raise _wrong_kind("finfo", dtype, "a floating-point or complex dtype", "wf.iinfo")
    info: Any = ml_dtypes.finfo(dtype.numpy)  # type: ignore[no-untyped-call]
    return FloatInfo(
        bits=dtype.bits,
        eps=float(info.eps),
        max=float(info.max),
        min=float(info.min),
        smallest_normal=float(info.smallest_normal),
        dtype=dtype,
    )


def iinfo(type: Any, /) -> IntegerInfo:
    """The limits of an integer dtype, or of a tensor's.

    >>> iinfo("int8").max
    127
    """
    dtype = _dtype_of(type)
    if not dtype.is_integer:
        raise _wrong_kind("iinfo", dtype, "an integer dtype", "wf.finfo")
    info = np.iinfo(dtype.numpy)
    return IntegerInfo(dtype.bits, int(info.max), int(info.min), dtype)


def _wrong_kind(op: str, dtype: DType, expected: str, other: str) -> DTypeError:
    return DTypeError(
        op,
        f"{dtype.name} has no limits of this kind",
        expected=expected,
        got={"type": dtype},
        fix=f'use {other}("{dtype.name}")' if dtype is not dtypes.bool_ else f'{op}("int8")',
    )


def isdtype(dtype: Any, kind: Any) -> bool:
    """Whether a dtype is of a kind: a dtype, a name of several, or a tuple of these.

    >>> isdtype("int8", "integral"), isdtype("int8", ("bool", "real floating"))
    (True, False)
    """
    given = as_dtype(dtype)
    if isinstance(kind, tuple):
        return any(isdtype(given, each) for each in kind)
    if isinstance(kind, str) and kind in _KINDS:
        return given.kind in _KINDS[kind]
    if isinstance(kind, str):
        raise ArgumentError(
            "isdtype",
            f"no kind is called {kind!r}",
            expected="one of " + ", ".join(_KINDS) + ", a dtype, or a tuple of these",
            got={"kind": kind},
            fix='ask, for example, isdtype(dtype, "real floating")',
        )
    return given is as_dtype(kind)


def can_cast(from_: Any, to: Any, /) -> bool:
    """Whether promotion would turn one dtype, or a tensor's, into another.

    >>> can_cast("int8", "int32"), can_cast("float64", "float32")
    (True, False)
    """
    target = as_dtype(to)
    try:
        return promote("can_cast", _dtype_of(from_), target) is target
    except DTypeError:
        return False


def result_type(*arrays_and_dtypes: Any) -> DType:
    """The dtype that tensors, dtypes and Python scalars are promoted to together.

    >>> result_type("int64", "float32"), result_type("float16", 2.5)
    (weft.float32, weft.float16)
    """
    if not arrays_and_dtypes:
        raise ArgumentTypeError(
            "result_type",
            "nothing to promote",
            expected="at least one tensor or dtype",
            got={"arguments": arrays_and_dtypes},
            fix="pass the tensors: wf.result_type(x, y)",
        )
    scalars = (bool, int, float, complex)
    kinds = [x if type(x) in scalars else _dtype_of(x) for x in arrays_and_dtypes]
    return dtypes.result_type("result_type", kinds)


class NamespaceInfo:
    """What `__array_namespace_info__()` gives: capabilities, devices and dtypes.

    >>> NamespaceInfo().default_dtypes()["real floating"]
    weft.float32
    """

    def capabilities(self) -> dict[str, bool | int | None]:
        """What the library can do that the standard leaves open."""
        return {
            "boolean indexing": True,
            "data-dependent shapes": True,
            "max dimensions": 64,
        }

    def default_device(self) -> Device:
        """Where tensors are made when no device is named."""
        return CPU

    def devices(self) -> tuple[Device, ...]:
        """All devices."""
        return tuple(DEVICES.values())

    def default_dtypes(self, *, device: Any = None) -> dict[str, DType]:
        """The dtypes that Python numbers get."""
        as_device(device)
        return {
            "real floating": dtypes.DEFAULT_FLOAT,
            "complex floating": dtypes.DEFAULT_COMPLEX,
            "integral": dtypes.DEFAULT_INTEGER,
            "indexing": dtypes.INDEX,
        }

    def dtypes(self, *, device: Any = None, kind: Any = None) -> dict[str, DType]:
        """The dtypes of a kind by name, as in `isdtype`; all those of the standard without one."""
        as_device(device)
        standard = [d for d in dtypes.DTYPES if d not in (dtypes.float16, dtypes.bfloat16)]
        return {d.name: d for d in standard if kind is None or isdtype(d, kind)}


def namespace_info() -> NamespaceInfo:
    """What the library can do; the Array API's `__array_namespace_info__`.

    >>> namespace_info().default_device()
    device('cpu')
    """
    return NamespaceInfo()
