"""Several kernels that do not wait for each other, run as one.

The pool is given one range: the chunks of all members, one member after the other. A chunk's member
is found by its number, and its borders are those that it would have alone, so bits stay the same.

>>> import weft as wf
>>> from weft.compiler.plan.planning import plan_program
>>> from weft.compiler.targets.cpu.target import CPU
>>> kinds = wf.spec("float32", (8,)), wf.spec("float32", (9,))
>>> plan = plan_program(wf.ir.trace(lambda x, y: (x * 2, y * 2), *kinds), CPU)
>>> table(plan.launches[0].members, {}, lambda member: (111, member.numbers({})))
[2, 111, 0, 13, 8, 32768, 0, 111, 2, 14, 9, 32768, 1, 8, 9]
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache

from weft.compiler.plan.horizontal_fusion import chunk_count, chunk_size
from weft.compiler.plan.launch import Launch, Sizes
from weft.compiler.targets.cpu.cache.kernels import text_addresses
from weft.compiler.targets.cpu.cache.symbols import finder
from weft.compiler.targets.llvm.ir_builder import KERNEL, IRBuilder, Struct, module_text

NumbersOf = Callable[[Launch], tuple[int, list[int]]]
"""The address of a launch's native function, and the numbers that it is given."""
_ROW = Struct("ptr function, i64 buffer, i64 sizes, i64 extent, i64 grain, i64 chunk")
FIELDS = len(_ROW.names)
"""The columns: function, first buffer, where its sizes are, extent, grain, first chunk."""


def _run_chunks() -> IRBuilder:
    """`grouped(...)`: some chunks of all members; the table has their number, then their rows."""
    out = IRBuilder("grouped", KERNEL, public=True, may_unwind=True)
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
    return module_text(_run_chunks())


def table(members: Sequence[Launch], sizes: Sizes, numbers_of: NumbersOf) -> list[int]:
    """What the native function is given beside the buffers of all members.

    `numbers_of` gives the address of a member's function, and what that is given.
    """
    rows, numbers = [len(members)], list[int]()
    buffer = chunk = 0
    start = 1 + FIELDS * len(members)
    for member in members:
        address, own = numbers_of(member)
        extent, grain = member.extent(sizes), chunk_size(member, sizes)
        rows += [address, buffer, start + len(numbers), extent, grain, chunk]
        numbers += own
        buffer, chunk = buffer + len(member.values), chunk + chunk_count(member, sizes)
    return [*rows, *numbers]


@cache
def grouped_address() -> int:
    """The address of the native function, which has a kernel's signature."""
    return text_addresses(source(), ["grouped"])["grouped"]


finder("grouped", grouped_address)
