"""Where arrays lie in memory, for many of them in one native call.

NumPy's way to say it makes a dictionary for each array, which takes longer than a small kernel.
So a native function reads the address from the arrays themselves. Where in an array it stands is
not assumed but looked up: in some arrays whose addresses are known. Where that finds nothing, as in
other interpreters, NumPy is asked.

>>> import numpy as np
>>> table, x = np.zeros(2, np.int64), np.ones(3)
>>> given = write_addresses([x, x[::2]], table.ctypes.data)
>>> bool(table[0] == x.ctypes.data), given[0] is x, given[1].flags.c_contiguous
(True, True, True)
"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np

from weft.compiler.kernels import text_addresses

Array = np.ndarray[Any, Any]
Write = Callable[[tuple[Array, ...], int, int, int, type], int]
_NAME = ("addresses",)

SOURCE = """
define i64 @"weft.addresses"(ptr %arrays, ptr %table, ptr %slots, i64 %count, ptr %class) {{
entry:
  %items = getelementptr i8, ptr %arrays, i64 {items}
  %is_plain = icmp eq ptr %slots, null
  br label %head
head:
  %i = phi i64 [0, %entry], [%next, %write]
  %some = icmp slt i64 %i, %count
  br i1 %some, label %look, label %done
look:
  %item.at = getelementptr ptr, ptr %items, i64 %i
  %item = load ptr, ptr %item.at
  %kind.at = getelementptr i8, ptr %item, i64 {kind}
  %kind = load ptr, ptr %kind.at
  %is_array = icmp eq ptr %kind, %class
  br i1 %is_array, label %measure, label %odd
measure:
  %flags.at = getelementptr i8, ptr %item, i64 {flags}
  %flags = load i32, ptr %flags.at
  %contiguous = and i32 %flags, 1
  %is_contiguous = icmp ne i32 %contiguous, 0
  br i1 %is_contiguous, label %read, label %odd
read:
  %data.at = getelementptr i8, ptr %item, i64 {data}
  %data = load i64, ptr %data.at
  br i1 %is_plain, label %write, label %choose
choose:
  %slot.at = getelementptr i64, ptr %slots, i64 %i
  %chosen = load i64, ptr %slot.at
  br label %write
write:
  %slot = phi i64 [%i, %read], [%chosen, %choose]
  %place = getelementptr i64, ptr %table, i64 %slot
  store i64 %data, ptr %place
  %next = add i64 %i, 1
  br label %head
odd:
  ret i64 0
done:
  ret i64 1
}}
"""


@dataclass(frozen=True, slots=True)
class Fields:
    """How many bytes into a tuple its items stand, and into an array its class, data and flags."""

    items: int
    kind: int
    data: int
    flags: int

    @staticmethod
    def found(arrays: Sequence[Array]) -> Fields | None:
        """The places that fit all these arrays, if there is one of each."""
        if sys.implementation.name != "cpython" or not arrays:
            return None
        held, length = tuple(arrays), len(arrays)
        items = [
            at
            for at in range(0, sys.getsizeof(held) - 8 * length + 1, 8)
            if _words(id(held) + at, length) == [id(array) for array in arrays]
        ]
        kind = _places(arrays, ctypes.c_int64, lambda array: id(type(array)))
        data = _places(arrays, ctypes.c_int64, lambda array: array.ctypes.data)
        flags = _places(arrays, ctypes.c_int32, lambda array: array.flags.num)
        if [len(places) for places in (items, kind, data, flags)] != [1, 1, 1, 1]:
            return None
        return Fields(items[0], kind[0], data[0], flags[0])


def _words(address: int, count: int) -> list[int]:
    return list((ctypes.c_int64 * count).from_address(address))


def _places(arrays: Sequence[Array], word: Any, wanted: Callable[[Array], int]) -> list[int]:
    """Where inside each of the arrays a word has the value wanted."""
    size = ctypes.sizeof(word)
    return [
        at
        for at in range(0, np.ndarray.__basicsize__ - size + 1, size)
        if all(word.from_address(id(a) + at).value == wanted(a) for a in arrays)
    ]


@cache
def fields() -> Fields | None:
    """The places in this process; None where they cannot be told."""
    plain = [np.zeros(shape, kind) for shape in ((3,), (2, 5), ()) for kind in ("f4", "i8")]
    return Fields.found([*plain, np.zeros((4, 6))[::2], np.zeros((3, 4)).T, plain[1][1:]])


@cache
def _writer() -> Write | None:
    places = fields()
    if places is None:
        return None
    text = SOURCE.format(items=places.items, kind=places.kind, data=places.data, flags=places.flags)
    given = ctypes.py_object, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64, ctypes.py_object
    # the interpreter stands still while its objects are read
    return ctypes.PYFUNCTYPE(ctypes.c_int64, *given)(text_addresses(text, _NAME)[_NAME[0]])


def write_addresses(arrays: Sequence[Array], table: int, slots: int = 0) -> Sequence[Array]:
    """Write the arrays' addresses to a table; the arrays, copied where they are not contiguous.

    slots: where the numbers are that say which address stands where; 0: one after the other.
    """
    native = _writer()
    if native is not None and native(tuple(arrays), table, slots, len(arrays), np.ndarray):
        return arrays
    return _written(arrays, table, slots)


def _written(arrays: Sequence[Array], table: int, slots: int) -> list[Array]:
    given = [np.ascontiguousarray(a) if not a.flags.c_contiguous else a for a in arrays]
    places = _words(slots, len(given)) if slots else range(len(given))
    for place, array in zip(places, given, strict=True):
        ctypes.c_int64.from_address(table + 8 * place).value = array.__array_interface__["data"][0]
    return given
