"""Native functions that Python calls as its own: some nanoseconds, where `ctypes` takes hundreds.

A call of a small program spends most of its time on the way: telling whether modules hold what they
held, writing the addresses of arrays to a table, starting the driver. Each is one function here, in
the form of the interpreter's own ones. They ask the interpreter through its stable interface, or
read fields whose places were looked up (`array_fields.py`). Elsewhere Python does it.

>>> import numpy as np
>>> from weft.runtime.object_words import END
>>> held = [1.5, "a"]
>>> table = np.array([LIST, id(held), 2, *map(id, held), END])
>>> entries().same(table), held.append(2), entries().same(table)
(True, None, False)
"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np

from weft.compiler.targets.cpu.cache.kernels import text_addresses
from weft.compiler.targets.cpu.runtime.array_fields import fields
from weft.core.records import frozen
from weft.core.settings import settings
from weft.runtime.object_words import DICT, LIST, WORD

Array = np.ndarray[Any, Any]
BLOCK = ("calls", "count", "addresses", "error", "parallel_for", "slots", "execute", "ended")
"""The words of what a launch is given: the driver's arguments, where the addresses of the arrays
stand in its table, the driver, and how far it came."""
_FUNCTIONS = (
    "Py_IncRef", "PyEval_SaveThread", "PyEval_RestoreThread",
    "PyDict_Size", "PyDict_Next", "PyList_Size", "PyList_GetItem",
)  # fmt: skip
_NAMES = ("set_up", "launch", "same")
_FASTCALL = 0x80
"""The flag of functions that are given their arguments as an array (METH_FASTCALL)."""

# The interpreter's functions by their place in `@known`; True, False, None and the class of arrays.
SOURCE = """
@known = internal global [11 x ptr] zeroinitializer

define void @"weft.set_up"(ptr %table) {{
  call void @llvm.memcpy.p0.p0.i64(ptr @known, ptr %table, i64 88, i1 false)
  ret void
}}

define internal ptr @known_at(i64 %place) alwaysinline {{
  %at = getelementptr ptr, ptr @known, i64 %place
  %found = load ptr, ptr %at
  ret ptr %found
}}

define internal ptr @answer(i64 %place) {{
  %object = call ptr @known_at(i64 %place)
  %count = call ptr @known_at(i64 0)
  call void %count(ptr %object)
  ret ptr %object
}}

define internal ptr @data_of(ptr %array) alwaysinline {{
  %at = getelementptr i8, ptr %array, i64 {data}
  %data = load ptr, ptr %at
  ret ptr %data
}}

define ptr @"weft.launch"(ptr %self, ptr %given, i64 %count) {{
entry:
  %first = load ptr, ptr %given
  %block = call ptr @data_of(ptr %first)
  %addresses.at = getelementptr ptr, ptr %block, i64 2
  %addresses = load ptr, ptr %addresses.at
  %slots.at = getelementptr ptr, ptr %block, i64 5
  %slots = load ptr, ptr %slots.at
  %class = call ptr @known_at(i64 10)
  br label %head
head:
  %i = phi i64 [1, %entry], [%next, %write]
  %some = icmp slt i64 %i, %count
  br i1 %some, label %look, label %run
look:
  %item.at = getelementptr ptr, ptr %given, i64 %i
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
  br i1 %is_contiguous, label %write, label %odd
write:
  %data = call ptr @data_of(ptr %item)
  %before = sub i64 %i, 1
  %slot.at = getelementptr i64, ptr %slots, i64 %before
  %slot = load i64, ptr %slot.at
  %place = getelementptr ptr, ptr %addresses, i64 %slot
  store ptr %data, ptr %place
  %next = add i64 %i, 1
  br label %head
odd:
  %not = call ptr @answer(i64 8)
  ret ptr %not
run:
  %calls = load ptr, ptr %block
  %many.at = getelementptr i64, ptr %block, i64 1
  %many = load i64, ptr %many.at
  %error.at = getelementptr ptr, ptr %block, i64 3
  %error = load ptr, ptr %error.at
  %pool.at = getelementptr ptr, ptr %block, i64 4
  %pool = load ptr, ptr %pool.at
  %execute.at = getelementptr ptr, ptr %block, i64 6
  %execute = load ptr, ptr %execute.at
  store i32 0, ptr %error
  %let_go = call ptr @known_at(i64 1)
  %thread = call ptr %let_go()
  %ended = call i64 %execute(ptr %calls, i64 %many, ptr %addresses, ptr %error, ptr %pool)
  %take_back = call ptr @known_at(i64 2)
  call void %take_back(ptr %thread)
  %ended.at = getelementptr i64, ptr %block, i64 7
  store i64 %ended, ptr %ended.at
  %code = load i32, ptr %error
  %is_fine = icmp eq i32 %code, 0
  %which = select i1 %is_fine, i64 7, i64 9
  %said = call ptr @answer(i64 %which)
  ret ptr %said
}}

define ptr @"weft.same"(ptr %self, ptr %given, i64 %count) {{
entry:
  %position = alloca i64
  %key.found = alloca ptr
  %value.found = alloca ptr
  %first = load ptr, ptr %given
  %table = call ptr @data_of(ptr %first)
  %dict.size = call ptr @known_at(i64 3)
  %dict.next = call ptr @known_at(i64 4)
  %list.size = call ptr @known_at(i64 5)
  %list.item = call ptr @known_at(i64 6)
  br label %head
head:
  %at = phi ptr [%table, %entry], [%after.word, %word], [%d.at, %d.head], [%l.at, %l.head]
  %kind = load i64, ptr %at
  %where.at = getelementptr i64, ptr %at, i64 1
  %many.at = getelementptr i64, ptr %at, i64 2
  %start = getelementptr i64, ptr %at, i64 3
  switch i64 %kind, label %yes [i64 {word}, label %word i64 {dict}, label %d i64 {list}, label %l]
word:
  %where = load ptr, ptr %where.at
  %held = load i64, ptr %where
  %wanted = load i64, ptr %many.at
  %after.word = getelementptr i64, ptr %at, i64 3
  %is_held = icmp eq i64 %held, %wanted
  br i1 %is_held, label %head, label %no
d:
  %d.object = load ptr, ptr %where.at
  %d.many = load i64, ptr %many.at
  %d.size = call i64 %dict.size(ptr %d.object)
  store i64 0, ptr %position
  %d.fits = icmp eq i64 %d.size, %d.many
  br i1 %d.fits, label %d.head, label %no
d.head:
  %d.i = phi i64 [0, %d], [%d.i.next, %d.same]
  %d.at = phi ptr [%start, %d], [%d.at.next, %d.same]
  %d.more = icmp slt i64 %d.i, %d.many
  br i1 %d.more, label %d.look, label %head
d.look:
  %d.found = call i32 %dict.next(
      ptr %d.object, ptr %position, ptr %key.found, ptr %value.found)
  %key = load i64, ptr %key.found
  %key.wanted = load i64, ptr %d.at
  %value = load i64, ptr %value.found
  %value.at = getelementptr i64, ptr %d.at, i64 1
  %value.wanted = load i64, ptr %value.at
  %is_there = icmp ne i32 %d.found, 0
  %key.same = icmp eq i64 %key, %key.wanted
  %value.same = icmp eq i64 %value, %value.wanted
  %both = and i1 %key.same, %value.same
  %all = and i1 %both, %is_there
  br i1 %all, label %d.same, label %no
d.same:
  %d.i.next = add i64 %d.i, 1
  %d.at.next = getelementptr i64, ptr %d.at, i64 2
  br label %d.head
l:
  %l.object = load ptr, ptr %where.at
  %l.many = load i64, ptr %many.at
  %l.size = call i64 %list.size(ptr %l.object)
  %l.fits = icmp eq i64 %l.size, %l.many
  br i1 %l.fits, label %l.head, label %no
l.head:
  %l.i = phi i64 [0, %l], [%l.i.next, %l.same]
  %l.at = phi ptr [%start, %l], [%l.at.next, %l.same]
  %l.more = icmp slt i64 %l.i, %l.many
  br i1 %l.more, label %l.look, label %head
l.look:
  %item = call i64 %list.item(ptr %l.object, i64 %l.i)
  %item.wanted = load i64, ptr %l.at
  %item.same = icmp eq i64 %item, %item.wanted
  br i1 %item.same, label %l.same, label %no
l.same:
  %l.i.next = add i64 %l.i, 1
  %l.at.next = getelementptr i64, ptr %l.at, i64 1
  br label %l.head
yes:
  %positive = call ptr @answer(i64 7)
  ret ptr %positive
no:
  %negative = call ptr @answer(i64 8)
  ret ptr %negative
}}

declare void @llvm.memcpy.p0.p0.i64(ptr, ptr, i64, i1)
"""


@frozen
class Entries:
    """The functions that Python calls."""

    launch: Callable[..., bool | None]
    """`launch(block, *arrays)` runs a program: False if an array is none, or not contiguous, and
    nothing was run; None if the program has reported an error."""
    same: Callable[[Array], bool]
    """Whether all is as a table says; see `weft.runtime.object_words`."""


class _Method(ctypes.Structure):
    """How a function is described to the interpreter (PyMethodDef)."""

    _fields_ = (
        ("name", ctypes.c_char_p), ("function", ctypes.c_void_p),
        ("flags", ctypes.c_int), ("text", ctypes.c_char_p),
    )  # fmt: skip


_methods: list[_Method] = []
"""They must live as long as the functions that they describe, which is to the end."""


def source() -> str | None:
    """The text of the module; None where the interpreter is another one, or has no global lock.

    There is none either where `wf.settings.fastcall` is off.
    """
    return _source() if settings.fastcall else None


@cache
def _source() -> str | None:
    places, locked = fields(), getattr(sys, "_is_gil_enabled", lambda: True)()
    if places is None or not locked:
        return None
    return SOURCE.format(
        data=places.data, kind=places.kind, flags=places.flags, word=WORD, dict=DICT, list=LIST
    )


def entries() -> Entries | None:
    """The functions, made on the first call; None where there are none, or fastcall is off."""
    return _entries() if settings.fastcall else None


@cache
def _entries() -> Entries | None:
    text = _source()
    if text is None:
        return None
    found = text_addresses(text, _NAMES)
    known = [_address(name) for name in _FUNCTIONS]
    known += [id(each) for each in (True, False, None, np.ndarray)]
    table = np.array(known, np.int64)
    ctypes.CFUNCTYPE(None, ctypes.c_void_p)(found["set_up"])(table.ctypes.data)
    return Entries(_function("launch", found["launch"]), _function("same", found["same"]))


def _address(name: str) -> int:
    return int(ctypes.cast(getattr(ctypes.pythonapi, name), ctypes.c_void_p).value or 0)


def _function(name: str, address: int) -> Callable[..., Any]:
    """A native function as the interpreter's own."""
    method = _Method(name.encode(), address, _FASTCALL, None)
    _methods.append(method)
    given = ctypes.py_object, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p
    make = ctypes.PYFUNCTYPE(*given)(("PyCFunction_NewEx", ctypes.pythonapi))
    function: Callable[..., Any] = make(ctypes.addressof(method), None, None)
    return function
