"""DLPack: memory handed to other libraries and taken from them, without a copy.

NumPy speaks the protocol for the dtypes it has. A bfloat16 array crosses as one of 16-bit integers
whose label is changed on the way: one byte of the structure that the capsule points to.

>>> import numpy as np
>>> from weft.ops.dlpack import export_capsule
>>> type(export_capsule(np.zeros(2, np.float32), (1, 0), None)).__name__
'PyCapsule'
"""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np

from weft.core.dtypes import bfloat16
from weft.core.errors import DeviceError

Array = np.ndarray[Any, Any]
CPU_KIND = 1
VERSION = (1, 0)
_UNSIGNED, _BFLOAT = 1, 4
"""DLPack's codes of two kinds of elements."""


class _ElementType(ctypes.Structure):
    _fields_ = (("code", ctypes.c_uint8), ("bits", ctypes.c_uint8), ("lanes", ctypes.c_uint16))


class _View(ctypes.Structure):
    _fields_ = (
        ("data", ctypes.c_void_p),
        ("device_kind", ctypes.c_int32),
        ("device_number", ctypes.c_int32),
        ("ndim", ctypes.c_int32),
        ("dtype", _ElementType),
    )


class _Managed(ctypes.Structure):
    """What a capsule called "dltensor" points to, as far as it is read here."""

    _fields_ = (("view", _View),)


class _ManagedVersioned(ctypes.Structure):
    """What a capsule called "dltensor_versioned" points to, as far as it is read here."""

    _fields_ = (
        ("version", ctypes.c_uint32 * 2),
        ("context", ctypes.c_void_p),
        ("deleter", ctypes.c_void_p),
        ("flags", ctypes.c_uint64),
        ("view", _View),
    )


_name_of = ctypes.PYFUNCTYPE(ctypes.c_char_p, ctypes.py_object)(
    ("PyCapsule_GetName", ctypes.pythonapi)
)
_pointer_of = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.py_object, ctypes.c_char_p)(
    ("PyCapsule_GetPointer", ctypes.pythonapi)
)


def _element_type(capsule: Any) -> _ElementType:
    """The label of a capsule's elements, in place."""
    name = _name_of(capsule)
    structure = _ManagedVersioned if name == b"dltensor_versioned" else _Managed
    managed: Any = structure.from_address(_pointer_of(capsule, name))
    label: _ElementType = managed.view.dtype
    return label


def export_capsule(value: Array, max_version: tuple[int, int] | None, copy: bool | None) -> Any:
    """A capsule of an array's memory.

    Whoever knows DLPack 1.0 is told that the memory is read-only; others must leave it alone, and
    get a copy where NumPy itself may not write.
    """
    array = value.view(np.uint16) if value.dtype == bfloat16.numpy else value.view()
    if max_version is not None and max_version[0] >= VERSION[0]:
        array.flags.writeable = False
        capsule = array.__dlpack__(max_version=VERSION, copy=copy)
    else:
        capsule = _writable_array(array, copy).__dlpack__()
    if value.dtype == bfloat16.numpy:
        _element_type(capsule).code = _BFLOAT
    return capsule


def _writable_array(array: Array, copy: bool | None) -> Array:
    if copy or not (array.flags.writeable or copy is False):
        return array.copy()
    if array.flags.writeable:
        return array
    raise DeviceError(
        "__dlpack__",
        "the memory is read-only, which DLPack could not say before version 1.0",
        expected="copy=None, or a consumer of DLPack 1.0 or later",
        got={"copy": copy},
        fix="x.__dlpack__(max_version=(1, 0), copy=False)",
    )


class _Capsule:
    """A capsule as the object with methods that NumPy takes it from."""

    def __init__(self, capsule: Any) -> None:
        self.capsule = capsule

    def __dlpack__(self, **options: Any) -> Any:
        return self.capsule

    def __dlpack_device__(self) -> tuple[int, int]:
        return CPU_KIND, 0


def import_array(obj: Any) -> Array:
    """An array on another library's memory; NumPy's errors are for the caller to translate."""
    try:
        return np.from_dlpack(obj)
    except RuntimeError:
        capsule = obj.__dlpack__()
        label = _element_type(capsule)
        if (label.code, label.bits, label.lanes) != (_BFLOAT, 16, 1):
            raise
    label.code = _UNSIGNED
    return np.from_dlpack(_Capsule(capsule)).view(bfloat16.numpy)
