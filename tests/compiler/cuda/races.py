"""Races of an emulated card: accesses of two threads to one place that nothing puts in order.

A kernel's text is given calls that write down every access to memory: the thread, the address, and
how often the thread has waited for its block and for its warp. Two accesses of which one writes are
in order if a wait of both threads lies between them; of threads of different blocks none are. Only
what writes the same value to one place needs no order. Values may be right all the same, here or on
a card, by luck.
"""

from __future__ import annotations

import re
from typing import Any

import numpy as np

from weft.compiler.targets.cuda.machine import WARP

Array = np.ndarray[Any, Any]
MOST_ACCESSES = 1 << 20
"""A launch with more accesses than these is not judged."""
WORDS = 5
"""Words of an access: address, bytes with what it does, the thread, its waits, what is written."""
_count: Array = np.zeros(1, np.int64)
_log: Array = np.zeros((MOST_ACCESSES, WORDS), np.int64)
_waits: Array = np.zeros(1024, np.int64)
"""How often each thread has waited: for its block in the upper half, for its warp in the lower."""
_WRITES, _SHARED = 1, 2
"""What stands beside the bytes of an access: that it writes, that it is a block's own memory."""

# Accesses of a thread to its own variables, and to memory that nobody reads, are left out.
_ASSIGNED = re.compile(r"\s*(%\S+) = (.*)")
_DERIVED = re.compile(r"getelementptr .*?, ptr ([%@][^\s,]+)|phi ptr \[ ?([%@][^\s,]+)")
_LOAD = re.compile(r"\s*%\S+ = load (?P<kind>.*?), ptr (?P<place>[%@][^\s,]+)")
_STORE = re.compile(r"\s*store (?P<kind><[^>]*>|\S+) (?P<value>.*), ptr (?P<place>[%@][^\s,]+)")
_TOUCH = f"""
define internal void @emulated_touch(i32 %thread, ptr %place, i64 %what, i64 %value) {{
  %counter = inttoptr i64 {_count.ctypes.data} to ptr
  %number = atomicrmw add ptr %counter, i64 1 monotonic
  %fits = icmp slt i64 %number, {MOST_ACCESSES}
  br i1 %fits, label %write, label %done
write:
  %start = mul i64 %number, {8 * WORDS}
  %log = inttoptr i64 {_log.ctypes.data} to ptr
  %entry = getelementptr i8, ptr %log, i64 %start
  %address = ptrtoint ptr %place to i64
  %wide = zext i32 %thread to i64
  %table = inttoptr i64 {_waits.ctypes.data} to ptr
  %own = getelementptr i64, ptr %table, i64 %wide
  %waits = load i64, ptr %own
  %second = getelementptr i64, ptr %entry, i64 1
  %third = getelementptr i64, ptr %entry, i64 2
  %fourth = getelementptr i64, ptr %entry, i64 3
  %fifth = getelementptr i64, ptr %entry, i64 4
  store i64 %address, ptr %entry
  store i64 %what, ptr %second
  store i64 %wide, ptr %third
  store i64 %waits, ptr %fourth
  store i64 %value, ptr %fifth
  br label %done
done:
  ret void
}}
"""


def observe_accesses(text: str) -> str:
    """The text of a module whose kernels write down what they touch."""
    lines: list[str] = []
    memory: dict[str, str] = {}
    """What pointers lead to: a thread's own memory, a block's, or that of the card."""
    is_kernel = False
    for line in text.splitlines():
        if line.startswith("define"):
            memory, is_kernel = {}, "i32 %thread" in line
        assigned = _ASSIGNED.match(line)
        if assigned is not None:
            memory[assigned[1]] = _memory_of(assigned[2], memory)
        found = _LOAD.match(line) or _STORE.match(line)
        if found is not None and is_kernel:
            where = _named_memory(found["place"], memory)
            if where != "own":
                lines += _touch(found, where == "block", len(lines))
        lines.append(line)
    return _TOUCH + "\n".join(lines) + "\n"


def _touch(access: re.Match[str], is_shared: bool, number: int) -> list[str]:
    """The lines that write an access down; `number` makes names that nothing else has."""
    kind, written = access["kind"], access.groupdict().get("value")
    what = 8 * _bytes_of(kind) + _SHARED * is_shared + _WRITES * (written is not None)
    lines, value = [], "0"
    if written is not None:
        lines, value = _value_lines(kind, written, f"%touch{number}")
    given = f"i32 %thread, ptr {access['place']}, i64 {what}, i64 {value}"
    return [*lines, f"  call void @emulated_touch({given})"]


def _value_lines(kind: str, value: str, name: str) -> tuple[list[str], str]:
    """The lines that make an int64 of a value; a vector's is the thread: no two are equal."""
    if kind.startswith("<") or kind == "i128":
        return [f"  {name} = zext i32 %thread to i64"], name
    if kind in ("ptr", "i64"):
        return [], "0" if kind == "ptr" else value
    bits = f"i{8 * _bytes_of(kind)}"
    if kind.startswith("i"):
        return [f"  {name} = zext {kind} {value} to i64"], name
    if bits == "i64":
        return [f"  {name} = bitcast {kind} {value} to i64"], name
    own = f"  {name}.bits = bitcast {kind} {value} to {bits}"
    return [own, f"  {name} = zext {bits} {name}.bits to i64"], name


def _memory_of(instruction: str, memory: dict[str, str]) -> str:
    if instruction.startswith("alloca"):
        return "own"
    derived = _DERIVED.match(instruction)
    return "card" if derived is None else _named_memory(derived[1] or derived[2], memory)


def _named_memory(name: str, memory: dict[str, str]) -> str:
    if not name.startswith("@"):
        return memory.get(name, "card")
    return "own" if name == "@nowhere" else "block"


def _bytes_of(kind: str) -> int:
    vector = re.match(r"<(\d+) x (.*)>", kind)
    if vector is not None:
        return int(vector[1]) * _bytes_of(vector[2])
    named = {"ptr": 8, "double": 8, "float": 4, "half": 2, "bfloat": 2}
    return named[kind] if kind in named else -(-int(kind.removeprefix("i")) // 8)


class Accesses:
    """The accesses of a launch, block after block."""

    def __init__(self) -> None:
        self._blocks: list[Array] = []
        self._is_whole = True

    def begin_block(self) -> None:
        """Forget what was written down before."""
        _count[0] = 0
        _waits[:] = 0

    def end_block(self, block: int) -> None:
        """Keep what a block has touched."""
        count = int(_count[0])
        self._is_whole &= count <= MOST_ACCESSES
        rows = _log[: min(count, MOST_ACCESSES)].copy()
        self._blocks.append(np.hstack([rows, np.full((len(rows), 1), block)]))

    def check(self) -> None:
        """Fail where two accesses have no order."""
        rows = np.vstack(self._blocks) if self._blocks else np.zeros((0, WORDS + 1), np.int64)
        if not self._is_whole or not len(rows):
            return
        counts = rows[:, 1] >> 3
        # an access of several bytes is one of each of them
        within = np.arange(int(counts.sum())) - np.repeat(np.cumsum(counts) - counts, counts)
        address = np.repeat(rows[:, 0], counts) + within
        what, thread, waits, value, block = (np.repeat(rows[:, k], counts) for k in range(1, 6))
        writes, is_card = (what & _WRITES) > 0, (what & _SHARED) == 0
        of_block, warp = waits >> 32, thread // WARP
        for name, keys, other, some in (
            ("blocks", (address,), block, is_card),
            ("warps", (address, block, of_block), warp, slice(None)),
            ("threads", (address, block, waits, warp), thread, slice(None)),
        ):
            kept = [key[some] for key in keys]
            _fail_on_conflict(name, kept, other[some], writes[some], value[some])


def _fail_on_conflict(
    name: str, keys: list[Array], other: Array, writes: Array, values: Array
) -> None:
    """Fail where different ones of `other` touch a place under the same keys, and one writes.

    That all of them write one value is no conflict.
    """
    if not len(other):
        return
    order = np.lexsort(tuple(reversed(keys)))
    ordered = [key[order] for key in keys]
    differs = np.zeros(len(order), bool)
    differs[0] = True
    for key in ordered:
        differs[1:] |= key[1:] != key[:-1]
    starts = np.flatnonzero(differs)
    lowest, highest = (
        combine.reduceat(other[order], starts) for combine in (np.minimum, np.maximum)
    )
    least, most = (combine.reduceat(values[order], starts) for combine in (np.minimum, np.maximum))
    is_written = np.logical_or.reduceat(writes[order], starts)
    is_same = np.logical_and.reduceat(writes[order], starts) & (least == most)
    bad = (lowest != highest) & is_written & ~is_same
    if bad.any():
        place = starts[bad][0]
        raise AssertionError(
            f"{int(bad.sum())} bytes are written by one and touched by another of several {name} "
            f"without a wait in between: {int(lowest[bad][0])} and {int(highest[bad][0])} at "
            f"{hex(int(ordered[0][place]))}"
        )


def note_wait(thread: int, is_warp: bool) -> None:
    """Write down that a thread has waited."""
    _waits[thread] += 1 if is_warp else 1 << 32
