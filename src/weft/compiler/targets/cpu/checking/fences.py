"""Fenced memory: buffers between pages that may not be touched, filled with a pattern.

A load or store outside of a buffer reaches a page without rights. The system then calls `fault`,
which notes the address, opens the page and lets the program go on, so that the launch that did it
can be named. Bytes of a buffer's own pages that are not its own hold the pattern, and are compared.

>>> import numpy as np
>>> fences = Fences(0x7FF5, at_end=True)
>>> buffer = fences.buffer(12)
>>> buffer.data.view(np.uint16).tolist() == [0x7FF5] * 6, fences.damage()
(True, None)
>>> buffer.zone[-1] = 1  # the byte before its first one
>>> fences.damage()[1]
'was written to 1 byte before its start'
>>> fences.release()
"""

from __future__ import annotations

import ctypes
import mmap
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from threading import RLock
from typing import Any

import numpy as np

from weft.compiler.targets.cpu.cache.kernels import text_addresses
from weft.core.errors import UnsupportedError

Array = np.ndarray[Any, Any]

PAGE = mmap.PAGESIZE
FENCE = 1 << 20
"""Bytes without rights on either side of a buffer; nothing but addresses is used up by them."""
MOST = 1 << 16
"""How many buffers there may be at once."""
HEAD = 4
"""Numbers before the ranges of the buffers in the table: count, faults, address, old action."""
_SEGV = 11
_SIGINFO, _NODEFER, _ONSTACK = 4, 0x40000000, 0x08000000
_NO_RIGHTS, _READ_WRITE = 0, 3
_PRIVATE, _ANONYMOUS, _NORESERVE = 2, 0x20, 0x4000

SOURCE = f"""
declare i32 @mprotect(ptr, i64, i32)
declare i32 @sigaction(i32, ptr, ptr)
@table = global ptr null

define void @"weft.watch_faults"(ptr %table) {{
  store ptr %table, ptr @table
  ret void
}}

define void @"weft.fault"(i32 %signal, ptr %info, ptr %context) {{
entry:
  %address.at = getelementptr i8, ptr %info, i64 16
  %address = load i64, ptr %address.at
  %table = load ptr, ptr @table
  %count = load i64, ptr %table
  br label %head
head:
  %i = phi i64 [0, %entry], [%next, %each]
  %some = icmp slt i64 %i, %count
  br i1 %some, label %each, label %foreign
each:
  %next = add i64 %i, 1
  %pair = mul i64 %i, 2
  %place = add i64 %pair, {HEAD}
  %low.at = getelementptr i64, ptr %table, i64 %place
  %low = load i64, ptr %low.at
  %high.at = getelementptr i64, ptr %low.at, i64 1
  %high = load i64, ptr %high.at
  %above = icmp uge i64 %address, %low
  %below = icmp ult i64 %address, %high
  %inside = and i1 %above, %below
  br i1 %inside, label %own, label %head
own:
  %faults.at = getelementptr i64, ptr %table, i64 1
  %faults = load i64, ptr %faults.at
  %more = add i64 %faults, 1
  store i64 %more, ptr %faults.at
  %is.first = icmp eq i64 %faults, 0
  %first.at = getelementptr i64, ptr %table, i64 2
  %first = load i64, ptr %first.at
  %kept = select i1 %is.first, i64 %address, i64 %first
  store i64 %kept, ptr %first.at
  %page = and i64 %address, {-PAGE}
  %page.at = inttoptr i64 %page to ptr
  call i32 @mprotect(ptr %page.at, i64 {PAGE}, i32 {_READ_WRITE})
  ret void
foreign:
  %old.at = getelementptr i64, ptr %table, i64 3
  %old = load ptr, ptr %old.at
  call i32 @sigaction(i32 {_SEGV}, ptr %old, ptr null)
  ret void
}}
"""
"""A fault in no buffer is left to whoever saw to faults before: the instruction is tried again."""


class _Action(ctypes.Structure):
    """What the C library calls `struct sigaction`."""

    _fields_ = (
        ("handler", ctypes.c_void_p),
        ("mask", ctypes.c_uint64 * 16),
        ("flags", ctypes.c_int),
        ("restorer", ctypes.c_void_p),
    )


@cache
def _library() -> Any:
    if not sys.platform.startswith("linux"):
        raise UnsupportedError(
            "check",
            "memory is checked on Linux only",
            expected="sys.platform == 'linux'",
            got={"platform": sys.platform},
            fix="unset WEFT_CHECK",
        )
    library = ctypes.CDLL(None, use_errno=True)
    library.mmap.restype = ctypes.c_void_p
    library.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long]
    library.mprotect.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
    library.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
    library.sigaction.argtypes = [ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p]
    return library


@cache
def _native() -> dict[str, int]:
    return text_addresses(SOURCE, ["watch_faults", "fault"])


@cache
def _table() -> Array:
    """What `fault` reads and writes; see `HEAD`."""
    table = np.zeros(HEAD + 2 * MOST, np.int64)
    ctypes.CFUNCTYPE(None, ctypes.c_void_p)(_native()["watch_faults"])(table.ctypes.data)
    return table


@cache
def _actions() -> tuple[_Action, _Action]:
    """The action of a fault while memory is checked, and the one that was there before."""
    flags = _SIGINFO | _NODEFER | _ONSTACK
    return _Action(_native()["fault"], (ctypes.c_uint64 * 16)(), flags, None), _Action()


_lock = RLock()


@contextmanager
def noted_faults() -> Iterator[None]:
    """Note faults at fences instead of ending the process; one thread at a time."""
    with _lock:
        table, (own, old), library = _table(), _actions(), _library()
        is_outermost = not table[3]  # a call back into Python may run another program
        if is_outermost:
            library.sigaction(_SEGV, ctypes.byref(own), ctypes.byref(old))
            table[3] = ctypes.addressof(old)
        try:
            yield
        finally:
            if is_outermost:
                library.sigaction(_SEGV, ctypes.byref(old), None)
                table[3] = 0


@dataclass(eq=False, slots=True, repr=False)
class Buffer:
    """A buffer: its bytes, and those of its pages that are not its own."""

    start: int
    """Where its pages and the fences around them begin."""
    total: int
    address: int
    data: Array
    zone: Array
    place: int
    """Where it stands in the table of ranges."""

    def distance(self, address: int) -> str:
        """Where an address outside lies, in words."""
        if address < self.address:
            return f"{_bytes(self.address - address)} before its start"
        return f"{_bytes(address - self.address - self.data.size + 1)} behind its end"


class Fences:
    """Buffers that lie at the end of their pages, or at the start, filled with a 16-bit pattern."""

    def __init__(self, pattern: int, *, at_end: bool) -> None:
        self.pattern, self.at_end = pattern, at_end
        self._buffers: list[Buffer] = []

    def buffer(self, size: int) -> Buffer:
        """A buffer of so many bytes."""
        library, table = _library(), _table()
        pages = max(1, -(-size // PAGE)) * PAGE
        total = pages + 2 * FENCE
        start = library.mmap(None, total, _NO_RIGHTS, _PRIVATE | _ANONYMOUS | _NORESERVE, -1, 0)
        if start in (None, ctypes.c_void_p(-1).value):
            raise MemoryError(f"no memory for a fenced buffer of {size} bytes")
        if library.mprotect(start + FENCE, pages, _READ_WRITE):
            raise MemoryError(f"no rights for a fenced buffer of {size} bytes")
        whole = bytes_at(start + FENCE, pages)
        whole.view(np.uint16)[:] = self.pattern
        place = int(table[0])
        if place == MOST:
            raise MemoryError(f"more than {MOST} fenced buffers at once")
        table[HEAD + 2 * place : HEAD + 2 * place + 2] = start, start + total
        table[0] = place + 1
        first = pages - size if self.at_end else 0
        data = whole[first : first + size]
        zone = whole[:first] if self.at_end else whole[size:]
        made = Buffer(start, total, start + FENCE + first, data, zone, place)
        if self.at_end and first % 2:  # the pattern begins with the first byte of the data
            data[:] = self.filled(size)
        self._buffers.append(made)
        return made

    def filled(self, size: int) -> Array:
        """So many bytes of the pattern."""
        return np.full(size // 2 + 1, self.pattern, np.uint16).view(np.uint8)[:size]

    def damage(self) -> tuple[Buffer, str] | None:
        """A buffer outside of which memory was touched since the last question, and how."""
        table = _table()
        if table[1]:
            address, table[1] = int(table[2]), 0
            for each in self._buffers:
                if each.start <= address < each.start + each.total:
                    _library().mprotect(address & -PAGE, PAGE, _NO_RIGHTS)
                    return each, f"was touched {each.distance(address)}"
        for each in self._buffers:
            wrong = np.flatnonzero(each.zone != self._zone(each))
            if len(wrong):
                first = wrong[-1 if self.at_end else 0]
                where = each.distance(int(each.zone.ctypes.data) + int(first))
                each.zone[:] = self._zone(each)
                return each, f"was written to {where}"
        return None

    def _zone(self, buffer: Buffer) -> Array:
        """What the rest of a buffer's pages should hold."""
        if self.at_end:
            return self.filled(buffer.zone.size)
        return self.filled(buffer.zone.size + buffer.data.size)[buffer.data.size :]

    def release(self) -> None:
        """Give the memory back; the buffers made last are those at the end of the table."""
        library, table = _library(), _table()
        for each in self._buffers:
            library.munmap(each.start, each.total)
            table[HEAD + 2 * each.place : HEAD + 2 * each.place + 2] = 0
        while table[0] and not table[HEAD + 2 * int(table[0]) - 1]:
            table[0] -= 1
        self._buffers.clear()


def bytes_at(address: int, size: int) -> Array:
    """So many bytes of memory, as an array that does not own them."""
    if not size:
        return np.empty(0, np.uint8)
    return np.frombuffer(memoryview((ctypes.c_uint8 * size).from_address(address)), np.uint8)


def _bytes(count: int) -> str:
    return f"{count} byte" if count == 1 else f"{count} bytes"
