"""Shared libraries of kernels: loaded once, checked against the version of the interface.

The interface is include/weft_kernel.h. The structures here are those of its shape rules; what a
kernel itself is given is laid out by compiler/targets/cpu/runtime/library_kernels.py.

>>> from weft.runtime.libraries import ABI, HEADER
>>> f"WEFT_KERNEL_ABI {ABI}" in HEADER.read_text(encoding="utf-8")
True
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Sequence
from hashlib import sha256
from pathlib import Path
from threading import Lock

from weft.core.capsules import capsule_pointer
from weft.core.dtypes import DTYPES, DType
from weft.core.errors import ArgumentError, NameUnknownError
from weft.core.forks import renew_in_children
from weft.core.types import TensorType

ABI = 1
"""The version of the interface; WEFT_KERNEL_ABI in the header."""
MAX_RANK = 16
"""The most axes that a shape rule sees; WEFT_MAX_RANK in the header."""
HEADER = Path(__file__).parents[1] / "include" / "weft_kernel.h"
CAPSULE = f"weft_kernel_{ABI}"
"""The name of capsules that hold the address of a kernel."""


def dtype_number(dtype: DType) -> int:
    """The number of a dtype in the header's `weft_dtype`, which counts them in their order."""
    return DTYPES.index(dtype)


class Library:
    """A shared library of kernels, known by where it lies and by its content."""

    def __init__(self, path: Path, digest: str, handle: ctypes.CDLL) -> None:
        self.path, self.digest, self._handle = path, digest, handle

    def __repr__(self) -> str:
        return f"<library {self.path.name}>"

    def symbol(self, name: str) -> int:
        """The address of a function; refused with the reason where there is none."""
        address = self.find(name)
        if address is None:
            raise NameUnknownError(
                "library",
                f"the library has no function {name!r}",
                expected="a function that is exported under that name, without name mangling",
                got={"library": str(self.path), "symbol": name},
                fix=f"write it as WEFT_EXPORT int {name}(weft_context *context, ...)",
            )
        return address

    def find(self, name: str) -> int | None:
        """The address of a function; None where there is none."""
        try:
            return ctypes.cast(getattr(self._handle, name), ctypes.c_void_p).value
        except AttributeError:
            return None


_loaded: dict[Path, Library] = {}
_lock = renew_in_children(Lock())


def load_library(path: str | os.PathLike[str]) -> Library:
    """Load a shared library of kernels that was built with `weft_kernel.h`.

    >>> import weft as wf
    >>> wf.custom.load_library("nowhere.so")  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    weft.core.errors.ArgumentError: load_library: there is no such file
    ...
    """
    place = Path(path).expanduser().resolve()
    if not place.is_file():
        raise _library_error("there is no such file", place, "the path of a shared library",
                       "build it first: cc -shared -fPIC -o libkernels.so kernels.c")  # fmt: skip
    digest = sha256(place.read_bytes()).hexdigest()
    with _lock:
        known = _loaded.get(place)
        if known is None:
            known = _loaded[place] = _open_library(place, digest)
    if known.digest != digest:
        raise _library_error("the file has changed since it was loaded", place,
                       "the library that this process has loaded",
                       "build it under another name, or start a new process")  # fmt: skip
    return known


def _open_library(place: Path, digest: str) -> Library:
    try:
        handle = ctypes.CDLL(str(place))
    except OSError as error:
        raise _library_error("the file is no library that can be loaded", place,
                       "a shared library for this machine", "build it with -shared -fPIC",
                       note=str(error)) from None  # fmt: skip
    library = Library(place, digest, handle)
    if library.find("weft_kernel_abi") is None:
        raise _library_error("the library does not say which interface it was built for", place,
                       f"the interface of version {ABI}",
                       "write WEFT_KERNEL_LIBRARY in one of its files")  # fmt: skip
    version = int(handle.weft_kernel_abi())
    if version != ABI:
        raise _library_error("the library was built for another version of the interface", place,
                       f"version {ABI}", f"build it again with {HEADER.name} of this version",
                       note=f"version {version}")  # fmt: skip
    return library


def _library_error(
    problem: str, place: Path, expected: str, fix: str, note: str = ""
) -> ArgumentError:
    got = {"path": str(place)}
    return ArgumentError("load_library", problem, expected=expected, got=got, fix=fix, note=note)


def find_again(path: str, digest: str, symbol: str) -> int | None:
    """The address of a function in a library as it was; None where that is not to be had."""
    try:
        library = load_library(path)
    except ArgumentError:
        return None
    return library.find(symbol) if library.digest == digest else None


def capsule_address(capsule: object) -> int | None:
    """The address that a capsule named `CAPSULE` holds; None for anything else."""
    name, api = CAPSULE.encode(), ctypes.pythonapi
    api.PyCapsule_IsValid.argtypes = [ctypes.py_object, ctypes.c_char_p]
    if not api.PyCapsule_IsValid(capsule, name):
        return None
    address: int | None = capsule_pointer(capsule, name)
    return address


# --- shape rules -------------------------------------------------------------------------------


class _Type(ctypes.Structure):
    _fields_ = (
        ("dtype", ctypes.c_int32),
        ("rank", ctypes.c_int32),
        ("shape", ctypes.c_int64 * MAX_RANK),
    )


class _Attribute(ctypes.Structure):
    _fields_ = (
        ("name", ctypes.c_char_p),
        ("data", ctypes.c_void_p),
        ("count", ctypes.c_int64),
        ("kind", ctypes.c_int64),
    )


_Fail = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_char_p)


class _Context(ctypes.Structure):
    _fields_ = (
        ("abi", ctypes.c_int32),
        ("attribute_count", ctypes.c_int32),
        ("attributes", ctypes.POINTER(_Attribute)),
        ("parallel_for", ctypes.c_void_p),
        ("fail", _Fail),
        ("reserved", ctypes.c_void_p * 4),
    )


_ShapeRule = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p)
Attribute = tuple[str, int, int, bytes]
"""A name, the kind of its values, how many they are, and the values."""


def shapes_by_rule(
    address: int, types: Sequence[TensorType], results: int, attributes: Sequence[Attribute]
) -> list[TensorType] | str:
    """The types that a shape rule of a library gives; its message where it fails."""
    messages: list[str] = []

    def fail(_: int, message: bytes | None) -> int:
        messages.append((message or b"").decode(errors="replace"))
        return 1

    held = [ctypes.create_string_buffer(data, len(data) + 8) for *_, data in attributes]
    rows = (_Attribute * max(1, len(attributes)))(*[
        _Attribute(name.encode(), ctypes.addressof(data), count, kind)
        for (name, kind, count, _), data in zip(attributes, held, strict=True)
    ])  # fmt: skip
    context = _Context(ABI, len(attributes), rows, None, _Fail(fail))
    given = (_Type * max(1, len(types)))(*map(_type, types))
    result_types = (_Type * results)(*[_Type(-1, -1) for _ in range(results)])
    code = _ShapeRule(address)(*map(ctypes.addressof, (context, given, result_types)))
    if code or messages:
        return messages[0] if messages else f"the shape rule returned {code}"
    known = [0 <= each.dtype < len(DTYPES) and 0 <= each.rank <= MAX_RANK for each in result_types]
    if not all(known) or any(size < 0 for each in result_types for size in each.shape[: each.rank]):
        return "the shape rule does not fill in dtype, rank and shape of each result"
    return [TensorType(DTYPES[each.dtype], tuple(each.shape[: each.rank])) for each in result_types]


def _type(kind: TensorType) -> _Type:
    shape = (ctypes.c_int64 * MAX_RANK)(*[int(dim) for dim in kind.shape])
    return _Type(dtype_number(kind.dtype), kind.ndim, shape)
