"""Ensembles: several kernels that do not wait for each other, run as one.

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

NumbersOf = Callable[[Launch], tuple[int, list[int]]]
"""The address of a launch's native function, and the numbers that it is given."""
FIELDS = 6
"""The columns: function, first buffer, where its sizes are, extent, grain, first chunk."""

SOURCE = f"""
define void @"weft.ensemble"(ptr %buffers, ptr %table, i64 %begin, i64 %end) {{
entry:
  %count = load i64, ptr %table
  %rows = getelementptr i64, ptr %table, i64 1
  %any = icmp slt i64 %begin, %end
  br i1 %any, label %chunk, label %done

chunk:
  %i = phi i64 [%begin, %entry], [%following, %found]
  br label %search

search:
  %low = phi i64 [0, %chunk], [%low.next, %narrow]
  %high = phi i64 [%count, %chunk], [%high.next, %narrow]
  %width = sub i64 %high, %low
  %wide = icmp sgt i64 %width, 1
  br i1 %wide, label %narrow, label %found

narrow:
  %half = lshr i64 %width, 1
  %middle = add i64 %low, %half
  %middle.offset = mul i64 %middle, {FIELDS}
  %middle.row = getelementptr i64, ptr %rows, i64 %middle.offset
  %middle.at = getelementptr i64, ptr %middle.row, i64 5
  %middle.first = load i64, ptr %middle.at
  %before = icmp sle i64 %middle.first, %i
  %low.next = select i1 %before, i64 %middle, i64 %low
  %high.next = select i1 %before, i64 %high, i64 %middle
  br label %search

found:
  %offset = mul i64 %low, {FIELDS}
  %row = getelementptr i64, ptr %rows, i64 %offset
  %function = load ptr, ptr %row
  %buffer.at = getelementptr i64, ptr %row, i64 1
  %buffer = load i64, ptr %buffer.at
  %own.buffers = getelementptr ptr, ptr %buffers, i64 %buffer
  %sizes.at = getelementptr i64, ptr %row, i64 2
  %sizes = load i64, ptr %sizes.at
  %own.sizes = getelementptr i64, ptr %table, i64 %sizes
  %extent.at = getelementptr i64, ptr %row, i64 3
  %extent = load i64, ptr %extent.at
  %grain.at = getelementptr i64, ptr %row, i64 4
  %grain = load i64, ptr %grain.at
  %first.at = getelementptr i64, ptr %row, i64 5
  %first = load i64, ptr %first.at
  %number = sub i64 %i, %first
  %from = mul i64 %number, %grain
  %rest = sub i64 %extent, %from
  %short = icmp slt i64 %rest, %grain
  %length = select i1 %short, i64 %rest, i64 %grain
  %until = add i64 %from, %length
  call void %function(ptr %own.buffers, ptr %own.sizes, i64 %from, i64 %until)
  %following = add i64 %i, 1
  %more = icmp slt i64 %following, %end
  br i1 %more, label %chunk, label %done

done:
  ret void
}}
"""


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
def ensemble_address() -> int:
    """The address of the native function, which has a kernel's signature."""
    return text_addresses(SOURCE, ["ensemble"])["ensemble"]


finder("grouped", ensemble_address)
