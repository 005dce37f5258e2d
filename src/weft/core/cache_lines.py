"""Arrays that begin on a cache line, where vectors are read from one line each.

The system's allocator begins anywhere: three of four vectors of 64 bytes then lie in two lines,
and a product that reads its matrix once from the third cache takes a tenth to a fifth longer.
NumPy lets an array's memory come from another allocator; such an array owns its memory as all do.

>>> empty_on_line((512, 512), "float32").ctypes.data % LINE
0
"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np

from weft.core.arrays import is_host
from weft.core.capsules import capsule_pointer, new_capsule, numpy_function

__all__ = ["LINE", "begins_within_line", "copy_on_line", "empty_on_line"]

Array = np.ndarray[Any, Any]
LINE = 64
"""The bytes of a cache line."""
_LARGE = 1 << 16
"""Fewer bytes are in the innermost caches, where a second line costs little."""
_SET_HANDLER, _GET_HANDLER = 304, 305
"""Where NumPy's table of functions has those that say who allocates (NEP 49)."""
_CAPSULE = b"mem_handler"
_HUGE = 1 << 22
"""The bytes from which NumPy asks for huge pages, as is done here."""
_MADV_HUGEPAGE = 14
_PAGE = 4096


class _Allocator(ctypes.Structure):
    """NumPy's record of an allocator: a word that its functions are given, and the functions."""

    _fields_ = [(name, ctypes.c_void_p) for name in ("ctx", "malloc", "calloc", "realloc", "free")]


class _Handler(ctypes.Structure):
    """An allocator with its name and the version of the record."""

    _fields_ = [
        ("name", ctypes.c_char * 127),
        ("version", ctypes.c_uint8),
        ("allocator", _Allocator),
    ]


def empty_on_line(shape: Any, dtype: Any) -> Array:
    """A new array, not initialised, that begins on a cache line where the system can do that."""
    found = _line_handler()
    if found is None:
        return np.empty(shape, dtype)
    set_handler, handler, advise = found
    before = set_handler(handler)
    try:
        array: Array = np.empty(shape, dtype)
    finally:
        set_handler(before)
    if array.nbytes >= _HUGE:
        start = -(-array.ctypes.data // _PAGE) * _PAGE
        advise(start, array.ctypes.data + array.nbytes - start, _MADV_HUGEPAGE)
    return array


def begins_within_line(value: Any) -> bool:
    """Whether a value is a large array that begins inside of a line, and all that its memory holds.

    Memory of which it is a part, or that a file is mapped to, is there for others, too.
    """
    if not is_host(value) or value.nbytes < _LARGE or value.ctypes.data % LINE == 0:
        return False
    owner = value if value.base is None else value.base
    return is_host(owner) and owner.flags.owndata and owner.nbytes == value.nbytes


def copy_on_line(array: Array) -> Array:
    """A copy without gaps that begins on a cache line."""
    copy = empty_on_line(array.shape, array.dtype)
    copy[...] = array
    return copy


@cache
def _line_handler() -> tuple[Callable[[Any], Any], Any, Callable[..., int]] | None:
    """What sets NumPy's allocator, the one for cache lines, and the system's advice on pages.

    It is NumPy's own with another function for new memory: `aligned_alloc`, which is given the word
    of the record, the size of a line, and the bytes. None on systems whose `free` takes no such
    memory, and where somebody has set an allocator.
    """
    if sys.platform != "linux":
        return None
    get_handler = ctypes.PYFUNCTYPE(ctypes.py_object)(numpy_function(_GET_HANDLER))
    set_handler = ctypes.PYFUNCTYPE(ctypes.py_object, ctypes.py_object)(
        numpy_function(_SET_HANDLER)
    )
    usual = _Handler.from_address(capsule_pointer(get_handler(), _CAPSULE))
    if usual.name != b"default_allocator" or usual.version != 1:
        return None
    own = _Handler.from_buffer_copy(usual)
    system = ctypes.CDLL(None)
    own.name = b"weft_cache_lines"
    own.allocator.ctx = LINE
    own.allocator.malloc = ctypes.cast(system.aligned_alloc, ctypes.c_void_p).value
    # Arrays are freed by the record, the last ones after the interpreter has let go of this module.
    for held in (own, _CAPSULE):
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(held))
    system.madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
    return set_handler, new_capsule(ctypes.addressof(own), _CAPSULE, None), system.madvise
