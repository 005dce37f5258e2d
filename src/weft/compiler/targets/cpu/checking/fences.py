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
from weft.compiler.targets.llvm.ir_builder import NULL, IRBuilder, Struct, module_text
from weft.core.errors import UnsupportedError
from weft.core.once import made_once

Array = np.ndarray[Any, Any]

PAGE = mmap.PAGESIZE
FENCE = 1 << 20
"""Bytes without rights on either side of a buffer; nothing but addresses is used up by them."""
MOST = 1 << 16
"""How many buffers there may be at once."""
_TABLE = Struct("i64 count, i64 faults, i64 address, ptr old")
HEAD = len(_TABLE.names)
"""Numbers before the ranges of the buffers in the table: count, faults, address, old action."""
_RANGE = Struct("i64 low, i64 high")
_ADDRESS_AT = 16
"""Where in what a signal's handler is told the address is that was touched, in bytes."""
_SEGV = 11
_SIGINFO, _NODEFER, _ONSTACK = 4, 0x40000000, 0x08000000
_NO_RIGHTS, _READ_WRITE = 0, 3
_PRIVATE, _ANONYMOUS, _NORESERVE = 2, 0x20, 0x4000


def _watch_faults() -> IRBuilder:
    """`watch_faults(table)`: from now on the handler knows the buffers."""
    out = IRBuilder("watch_faults", ("ptr %table",), public=True, may_unwind=True)
    out.store(out.parameters[0], "@table")
    return out


def _fault() -> IRBuilder:
    """`fault(signal, info, context)`: count a fault in a buffer, and open the page.

    A fault in no buffer is left to whoever saw to faults before: the instruction is tried again.
    """
    given = ("i32 %signal", "ptr %info", "ptr %context")
    out = IRBuilder("fault", given, public=True, may_unwind=True)
    address = out.load("i64", out.at("i8", out.parameters[1], _ADDRESS_AT))
    start = out.load("ptr", "@table")
    table, ranges = out.record(_TABLE, start), out.at("i64", start, HEAD)
    with out.loop(0, table["count"]) as i:
        low, high = out.record(_RANGE, ranges, i).all("low", "high")
        is_inside = out.combine(
            "and", out.test("uge", address, low), out.test("ult", address, high)
        )
        with out.when(is_inside):
            faults, first = table["faults"], table["address"]
            table["faults"] = out.add(faults, 1)
            table["address"] = out.select(out.test("eq", faults, 0), address, first)
            page = out.convert("inttoptr", out.combine("and", address, -PAGE), "ptr")
            out.call("mprotect", page, PAGE, f"i32 {_READ_WRITE}", result="i32")
            out.give()
    out.call("sigaction", f"i32 {_SEGV}", table["old"], NULL, result="i32")
    return out


def source() -> str:
    """The text of the module."""
    return module_text("@table = global ptr null", _watch_faults(), _fault())


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
    return text_addresses(source(), ["watch_faults", "fault"])


@made_once
def _table() -> Array:
    """What `fault` reads and writes; see `HEAD`."""
    table = np.zeros(HEAD + 2 * MOST, np.int64)
    ctypes.CFUNCTYPE(None, ctypes.c_void_p)(_native()["watch_faults"])(table.ctypes.data)
    return table


@made_once
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
            data[:] = self.pattern_bytes(size)
        self._buffers.append(made)
        return made

    def pattern_bytes(self, size: int) -> Array:
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
            return self.pattern_bytes(buffer.zone.size)
        return self.pattern_bytes(buffer.zone.size + buffer.data.size)[buffer.data.size :]

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
