"""Ensembles: several kernels that do not wait for each other, run as one.

The pool is given one range: the chunks of all members, one member after the other. A chunk's member
is found by its number, and its borders are those that it would have alone, so bits stay the same.

>>> from weft.compiler.targets.cpu.runtime.grouped_launch import Member, chunk_count, table
>>> members = [Member(111, 2, (7,), 100, 40), Member(222, 3, (), 10, 40)]
>>> chunk_count(members), table(members)
(4, [2, 111, 0, 13, 100, 40, 0, 222, 2, 14, 10, 40, 3, 7])
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

from weft.compiler.targets.cpu.cache.kernels import text_addresses
from weft.compiler.targets.cpu.llvm.ir_builder import KERNEL, IRBuilder, Struct, module_text

_ROW = Struct("ptr function, i64 buffer, i64 sizes, i64 extent, i64 grain, i64 chunk")
FIELDS = len(_ROW.names)
"""The columns: function, first buffer, where its sizes are, extent, grain, first chunk."""


def _ensemble() -> IRBuilder:
    """`ensemble(...)`: some chunks of all members; the table has their number, then their rows."""
    out = IRBuilder("ensemble", KERNEL, public=True, may_unwind=True)
    buffers, table, begin, end = out.parameters
    count, rows = out.load("i64", table), out.at("i64", table, 1)
    with out.loop(begin, end) as chunk:
        # Halve the members until one is left: the last that begins at this chunk or before.
        low, high = out.variable(0), out.variable(count)
        with out.repeat():
            width = out.sub(high.value, low.value)
            out.leave_unless(out.test("sgt", width, 1))
            middle = out.add(low.value, out.combine("lshr", width, 1))
            is_before = out.test("sle", out.record(_ROW, rows, middle)["chunk"], chunk)
            low.value = out.select(is_before, middle, low.value)
            high.value = out.select(is_before, high.value, middle)
        row = out.record(_ROW, rows, low.value)
        function, buffer, sizes, extent, grain, first = row.all(*_ROW.names)
        start = out.mul(out.sub(chunk, first), grain)
        stop = out.add(start, out.least(out.sub(extent, start), grain))
        out.call(function, out.at("ptr", buffers, buffer), out.at("i64", table, sizes), start, stop)
    return out


def source() -> str:
    """The text of the module."""
    return module_text(_ensemble())


@dataclass(frozen=True, slots=True)
class Member:
    """A kernel in an ensemble: its function, how many buffers, its sizes, extent and grain."""

    function: int
    buffers: int
    sizes: tuple[int, ...]
    extent: int
    grain: int

    @property
    def chunks(self) -> int:
        """Into how many chunks its range is cut."""
        return -(-self.extent // self.grain)


def chunk_count(members: Sequence[Member]) -> int:
    """The chunks of all members."""
    return sum(member.chunks for member in members)


def chunks_at_once(members: Sequence[Member]) -> int:
    """How many chunks a thread claims: many where they are small, all where one thread will do."""
    work = sum(member.extent / member.grain for member in members)
    return max(1, int(chunk_count(members) / max(work, 1.0)))


def table(members: Sequence[Member]) -> list[int]:
    """What the native function is given as its sizes."""
    rows, numbers = [len(members)], list[int]()
    buffer = chunk = 0
    start = 1 + FIELDS * len(members)
    for member in members:
        rows += [
            member.function, buffer, start + len(numbers), member.extent, member.grain, chunk,
        ]  # fmt: skip
        numbers += member.sizes
        buffer, chunk = buffer + member.buffers, chunk + member.chunks
    return [*rows, *numbers]


@cache
def ensemble_address() -> int:
    """The address of the native function, which has a kernel's signature."""
    return text_addresses(source(), ["ensemble"])["ensemble"]
