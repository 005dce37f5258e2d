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
import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from weft.core.capsules import capsule_pointer, new_capsule
from weft.core.dtypes import DTYPES, DType, bfloat16
from weft.core.errors import DeviceError
from weft.core.records import frozen

Array = np.ndarray[Any, Any]
CPU_KIND, CUDA_KIND = 1, 2
VERSION = (1, 0)
_INTEGER, _UNSIGNED, _FLOAT, _BFLOAT, _COMPLEX, _BOOL = 0, 1, 2, 4, 5, 6
"""DLPack's codes of kinds of elements."""
_READ_ONLY = 1
"""The flag of memory that must not be written to."""
_PLAIN, _VERSIONED = b"dltensor", b"dltensor_versioned"
"""The names of capsules, with and without a version; "used_" stands before what was taken."""
_USED = {_PLAIN: b"used_dltensor", _VERSIONED: b"used_dltensor_versioned"}


class _ElementType(ctypes.Structure):
    _fields_ = (("code", ctypes.c_uint8), ("bits", ctypes.c_uint8), ("lanes", ctypes.c_uint16))


class _View(ctypes.Structure):
    _fields_ = (
        ("data", ctypes.c_void_p),
        ("device_kind", ctypes.c_int32),
        ("device_number", ctypes.c_int32),
        ("ndim", ctypes.c_int32),
        ("dtype", _ElementType),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    )


class _Managed(ctypes.Structure):
    """What a capsule called "dltensor" points to."""

    _fields_ = (("view", _View), ("context", ctypes.c_void_p), ("deleter", ctypes.c_void_p))


class _ManagedVersioned(ctypes.Structure):
    """What a capsule called "dltensor_versioned" points to."""

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


def _element_type(capsule: Any) -> _ElementType:
    """The label of a capsule's elements, in place."""
    label: _ElementType = _content(capsule)[0].view.dtype
    return label


def _content(capsule: Any) -> tuple[Any, bytes]:
    """The structure that a capsule points to, and the capsule's name."""
    name = _name_of(capsule)
    structure = _ManagedVersioned if name == _VERSIONED else _Managed
    return structure.from_address(capsule_pointer(capsule, name)), name


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


# --- memory that NumPy does not know -------------------------------------------------------------

_Deleter = ctypes.CFUNCTYPE(None, ctypes.c_void_p)
_set_name = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.py_object, ctypes.c_char_p)(
    ("PyCapsule_SetName", ctypes.pythonapi)
)
# In a destructor the capsule has no references any more, so its address is passed on as a number.
_dying_is = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_char_p)(
    ("PyCapsule_IsValid", ctypes.pythonapi)
)
_dying_pointer = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p, ctypes.c_char_p)(
    ("PyCapsule_GetPointer", ctypes.pythonapi)
)
_handed_out: dict[int, tuple[Any, Callable[[], None]]] = {}
"""By address: a structure that another library holds, and what is called when it lets go."""


def _let_go(address: int) -> None:
    _, release = _handed_out.pop(address)
    release()


def _destroy_capsule(capsule: int) -> None:
    """Let go of what a capsule holds that nobody took."""
    for name in (_PLAIN, _VERSIONED):
        if _dying_is(capsule, name):
            _let_go(_dying_pointer(capsule, name))


_on_release, _on_destruction = _Deleter(_let_go), _Deleter(_destroy_capsule)
"""The two as functions of C, which must exist as long as the process."""


@frozen
class Memory:
    """Memory of some device, as DLPack describes it: elements one after the other."""

    pointer: int
    device: tuple[int, int]
    """The kind of device, and which one."""
    dtype: DType
    shape: tuple[int, ...]


def make_capsule(
    memory: Memory,
    release: Callable[[], None],
    *,
    is_versioned: bool,
    is_read_only: bool,
    destructor: Callable[[int], int],
) -> Any:
    """A capsule of memory; `release` is called once the other side has let go of it.

    destructor: the address of what destroys a capsule, made of the address of what lets go of it.
    """
    managed = _ManagedVersioned() if is_versioned else _Managed()
    sizes = (ctypes.c_int64 * max(1, len(memory.shape)))(*memory.shape)
    steps = (ctypes.c_int64 * max(1, len(memory.shape)))(*_steps(memory.shape))
    view = managed.view
    view.data = memory.pointer
    view.device_kind, view.device_number = memory.device
    view.ndim = len(memory.shape)
    view.dtype = _label_of(memory.dtype)
    view.shape = ctypes.cast(sizes, ctypes.POINTER(ctypes.c_int64))
    view.strides = ctypes.cast(steps, ctypes.POINTER(ctypes.c_int64))
    managed.deleter = ctypes.cast(_on_release, ctypes.c_void_p)
    if is_versioned:
        managed.version[:] = VERSION
        managed.flags = _READ_ONLY if is_read_only else 0
    address = ctypes.addressof(managed)
    _handed_out[address] = (managed, sizes, steps), release
    name = _VERSIONED if is_versioned else _PLAIN
    destroy = destructor(ctypes.cast(_on_destruction, ctypes.c_void_p).value or 0)
    return new_capsule(address, name, ctypes.c_void_p(destroy))


def take_capsule(capsule: Any) -> tuple[Memory, Callable[[], None]]:
    """The memory of a capsule, which is ours now, and what must be called when it is used no more.

    Elements that do not lie one after the other, or are no tensor's, are refused with BufferError;
    the capsule then keeps them.
    """
    managed, name = _content(capsule)
    view = managed.view
    shape = tuple([view.shape[axis] for axis in range(view.ndim)])
    if view.strides:
        steps = tuple([view.strides[axis] for axis in range(view.ndim)])
        wanted = _steps(shape)
        if 0 not in shape and any(
            size > 1 and step != own for size, step, own in zip(shape, steps, wanted, strict=True)
        ):
            raise BufferError("its elements do not lie one after the other")
    label = view.dtype
    dtype = _BY_LABEL.get((label.code, label.bits))
    if dtype is None or label.lanes != 1:
        raise BufferError("no tensor can hold its elements")
    pointer = (view.data or 0) + view.byte_offset
    memory = Memory(pointer, (view.device_kind, view.device_number), dtype, shape)
    _set_name(capsule, _USED[name])
    deleter, address = managed.deleter, ctypes.addressof(managed)

    def release() -> None:
        if deleter:
            _Deleter(deleter)(address)

    return memory, release


def _steps(shape: Sequence[int]) -> list[int]:
    """How many elements lie between neighbours of each axis."""
    return [math.prod(shape[axis + 1 :]) for axis in range(len(shape))]


def _label_of(dtype: DType) -> _ElementType:
    codes = {"bool": _BOOL, "bfloat16": _BFLOAT}
    kinds = {"i": _INTEGER, "u": _UNSIGNED, "f": _FLOAT, "c": _COMPLEX}
    code = codes[dtype.name] if dtype.name in codes else kinds[dtype.numpy.kind]
    return _ElementType(code, 8 * dtype.itemsize, 1)


_BY_LABEL = {(label.code, label.bits): dtype for dtype in DTYPES for label in [_label_of(dtype)]}
