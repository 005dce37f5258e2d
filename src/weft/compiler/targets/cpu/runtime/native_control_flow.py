"""The native half of control flow: functions that run sections of a program, called as kernels are.

What they do is in tables of int64, made by control.py. A *cell* is where the address of a slot of a
section is kept; a *record* is what the driver is given for a section. Rows of the tables are

- bindings: cell, buffer, offset, step. The cell is set to the buffer's address plus the offset, and
  moved by the step (in bytes) after each iteration.
- carries: cell, other, target, first, last, spare, size. Before each iteration the cell and the
  other one (of the condition) get what the target had, in the first one the buffer `first`; the
  target gets the buffer `last`, or the spare place in scratch memory, in turns.
- kept: first, last, size: from buffer to buffer, once; a carry that stays where it is.
- copies: source, target, size: from cell to cell, after each iteration.

>>> from weft.compiler.targets.cpu.runtime.native_control_flow import address
>>> address("run_loop") == address("run_loop")
True
"""

from __future__ import annotations

from functools import cache

from weft.compiler.targets.cpu.cache.kernels import text_addresses
from weft.compiler.targets.cpu.cache.symbols import finder, remembered
from weft.compiler.targets.cpu.runtime.driver import STEPS

LOOP = (
    "execute", "look", "reached", "body", "body_start", "condition", "condition_start", "answer",
    "limit", "parity", "scratch", "bindings",
    "binding_count", "moving_count", "kept", "kept_count", "carries", "carry_count", "copies",
    "copy_count",
)  # fmt: skip
"""What `run_loop` is given. The limit is -1 where there is none; the answer is a cell, or 0."""

CHOICE = ("execute", "reached", "error", "kind", "branches", "branch_count", "rows")
"""What `run_branch` and `run_rows` are given: their index is the first buffer, of such a kind."""

BRANCH = ("record", "bindings", "binding_count", "copies", "copy_count")
"""A row of the table of branches. In `run_rows`, copies are from a cell to a buffer, row by row."""


def _fields(table: str, names: tuple[str, ...]) -> str:
    """The numbers of a table, loaded under their names."""
    return "\n".join(
        f"  %{name}.at = getelementptr i64, ptr {table}, i64 {place}\n"
        f"  %{name} = load i64, ptr %{name}.at\n"
        f"  %{name}.ptr = inttoptr i64 %{name} to ptr"
        for place, name in enumerate(names)
    )


def _for_each(name: str, given: str, fields: tuple[str, ...], body: str) -> str:
    """A function that does something for each row of a table."""
    return f"""
define internal void @{name}({given}ptr %rows, i64 %count) {{
entry:
  %any = icmp sgt i64 %count, 0
  br i1 %any, label %each, label %done
each:
  %i = phi i64 [0, %entry], [%next, %each]
  %start = mul i64 %i, {len(fields)}
  %row = getelementptr i64, ptr %rows, i64 %start
{_fields("%row", fields)}
{body}
  %next = add i64 %i, 1
  %more = icmp slt i64 %next, %count
  br i1 %more, label %each, label %done
done:
  ret void
}}
"""


_BINDING = ("cell", "buffer", "offset", "step")
_CARRY = ("cell", "other", "target", "first", "last", "spare", "size")
_START = ("first", "last", "size")
_COPY = ("source", "target", "size")

_ROWS = "\n".join(
    [
        "declare void @llvm.memcpy.p0.p0.i64(ptr, ptr, i64, i1)",
        _for_each("bind", "ptr %buffers, ", _BINDING, """
  %base.at = getelementptr ptr, ptr %buffers, i64 %buffer
  %base = load ptr, ptr %base.at
  %place = getelementptr i8, ptr %base, i64 %offset
  store ptr %place, ptr %cell.ptr"""),
        _for_each("start", "ptr %buffers, ", _START, """
  %first.buffer = getelementptr ptr, ptr %buffers, i64 %first
  %from = load ptr, ptr %first.buffer
  %last.buffer = getelementptr ptr, ptr %buffers, i64 %last
  %to = load ptr, ptr %last.buffer
  %same = icmp eq ptr %from, %to
  %moved = select i1 %same, i64 0, i64 %size
  call void @llvm.memcpy.p0.p0.i64(ptr %to, ptr %from, i64 %moved, i1 false)"""),
        _for_each("advance", "", _BINDING, """
  %before = load ptr, ptr %cell.ptr
  %after = getelementptr i8, ptr %before, i64 %step
  store ptr %after, ptr %cell.ptr"""),
        _for_each("turn", "ptr %buffers, ptr %scratch, i1 %starts, i1 %spares, ", _CARRY, """
  %first.buffer = getelementptr ptr, ptr %buffers, i64 %first
  %start.address = load ptr, ptr %first.buffer
  %made = load ptr, ptr %target.ptr
  %current = select i1 %starts, ptr %start.address, ptr %made
  store ptr %current, ptr %cell.ptr
  store ptr %current, ptr %other.ptr
  %last.buffer = getelementptr ptr, ptr %buffers, i64 %last
  %end.address = load ptr, ptr %last.buffer
  %spare.address = getelementptr i8, ptr %scratch, i64 %spare
  %following = select i1 %spares, ptr %spare.address, ptr %end.address
  store ptr %following, ptr %target.ptr"""),
        _for_each("settle", "ptr %buffers, ", _CARRY, """
  %current = load ptr, ptr %cell.ptr
  %last.buffer = getelementptr ptr, ptr %buffers, i64 %last
  %end.address = load ptr, ptr %last.buffer
  %same = icmp eq ptr %current, %end.address
  %moved = select i1 %same, i64 0, i64 %size
  call void @llvm.memcpy.p0.p0.i64(ptr %end.address, ptr %current, i64 %moved, i1 false)"""),
        _for_each("copy", "", _COPY, """
  %from = load ptr, ptr %source.ptr
  %to = load ptr, ptr %target.ptr
  call void @llvm.memcpy.p0.p0.i64(ptr %to, ptr %from, i64 %size, i1 false)"""),
        _for_each("copy_row", "ptr %buffers, i64 %number, ", _COPY, """
  %from = load ptr, ptr %source.ptr
  %base.at = getelementptr ptr, ptr %buffers, i64 %target
  %base = load ptr, ptr %base.at
  %skipped = mul i64 %number, %size
  %row.from = getelementptr i8, ptr %from, i64 %skipped
  %row.to = getelementptr i8, ptr %base, i64 %skipped
  call void @llvm.memcpy.p0.p0.i64(ptr %row.to, ptr %row.from, i64 %size, i1 false)"""),
    ]
)  # fmt: skip

_SECTION = f"""
define internal i1 @run_section(ptr %execute, ptr %reached, i64 %number, ptr %record) {{
{_fields("%record", ("calls", "count", "addresses", "error", "pool"))}
  %ended = call i64 %execute(ptr %calls.ptr, i64 %count, ptr %addresses.ptr, ptr %error.ptr,
                             ptr %pool.ptr)
  %code = load i32, ptr %error.ptr
  %fine = icmp eq i32 %code, 0
  br i1 %fine, label %done, label %failed
failed:
  store i64 %number, ptr %reached
  %ended.at = getelementptr i64, ptr %reached, i64 1
  store i64 %ended, ptr %ended.at
  br label %done
done:
  ret i1 %fine
}}
"""

_RUN_LOOP = f"""
define void @"weft.run_loop"(ptr %buffers, ptr %sizes, i64 %begin, i64 %end) {{
entry:
{_fields("%sizes", LOOP)}
  %scratch.buffer = getelementptr ptr, ptr %buffers, i64 %scratch
  %scratch.address = load ptr, ptr %scratch.buffer
  %is_asked = icmp ne i64 %answer, 0
  call void @bind(ptr %buffers, ptr %bindings.ptr, i64 %binding_count)
  call void @start(ptr %buffers, ptr %kept.ptr, i64 %kept_count)
  %any = icmp ne i64 %limit, 0
  br i1 %any, label %once, label %head
once:
  call i1 @run_section(ptr %execute.ptr, ptr %reached.ptr, i64 0, ptr %body_start.ptr)
  br i1 %is_asked, label %once_more, label %head
once_more:
  call i1 @run_section(ptr %execute.ptr, ptr %reached.ptr, i64 1, ptr %condition_start.ptr)
  br label %head
head:
  %k = phi i64 [0, %entry], [0, %once], [0, %once_more], [%k.next, %again],
              [%k.next, %looked]
  %starts = icmp eq i64 %k, 0
  %turns = add i64 %k, %parity
  %odd = trunc i64 %turns to i1
  call void @turn(ptr %buffers, ptr %scratch.address, i1 %starts, i1 %odd, ptr %carries.ptr,
                  i64 %carry_count)
  %is_last = icmp eq i64 %k, %limit
  br i1 %is_last, label %finish, label %ask
ask:
  br i1 %is_asked, label %test, label %step
test:
  %tested = call i1 @run_section(ptr %execute.ptr, ptr %reached.ptr, i64 1, ptr %condition.ptr)
  br i1 %tested, label %read, label %done
read:
  %truth.at = load ptr, ptr %answer.ptr
  %truth = load i8, ptr %truth.at
  %holds = icmp ne i8 %truth, 0
  br i1 %holds, label %step, label %finish
step:
  %made = call i1 @run_section(ptr %execute.ptr, ptr %reached.ptr, i64 0, ptr %body.ptr)
  br i1 %made, label %again, label %done
again:
  call void @copy(ptr %copies.ptr, i64 %copy_count)
  call void @advance(ptr %bindings.ptr, i64 %moving_count)
  %k.next = add i64 %k, 1
  %low = and i64 %k.next, {STEPS - 1}
  %is_due = icmp eq i64 %low, 0
  br i1 %is_due, label %looked, label %head
looked:
  %error.at = getelementptr ptr, ptr %body.ptr, i64 3
  %error = load ptr, ptr %error.at
  call void %look.ptr(ptr %error)
  %code = load i32, ptr %error
  %undisturbed = icmp eq i32 %code, 0
  br i1 %undisturbed, label %head, label %done
finish:
  call void @settle(ptr %buffers, ptr %carries.ptr, i64 %carry_count)
  br label %done
done:
  ret void
}}
"""

_INDEX = """
define internal i64 @index_at(ptr %index, i64 %place, i64 %kind) {
  switch i64 %kind, label %signed64 [
    i64 2, label %unsigned8  i64 3, label %signed8
    i64 4, label %unsigned16 i64 5, label %signed16
    i64 8, label %unsigned32 i64 9, label %signed32
  ]
unsigned8:
  %u8.at = getelementptr i8, ptr %index, i64 %place
  %u8 = load i8, ptr %u8.at
  %u8.wide = zext i8 %u8 to i64
  ret i64 %u8.wide
signed8:
  %s8.at = getelementptr i8, ptr %index, i64 %place
  %s8 = load i8, ptr %s8.at
  %s8.wide = sext i8 %s8 to i64
  ret i64 %s8.wide
unsigned16:
  %u16.at = getelementptr i16, ptr %index, i64 %place
  %u16 = load i16, ptr %u16.at
  %u16.wide = zext i16 %u16 to i64
  ret i64 %u16.wide
signed16:
  %s16.at = getelementptr i16, ptr %index, i64 %place
  %s16 = load i16, ptr %s16.at
  %s16.wide = sext i16 %s16 to i64
  ret i64 %s16.wide
unsigned32:
  %u32.at = getelementptr i32, ptr %index, i64 %place
  %u32 = load i32, ptr %u32.at
  %u32.wide = zext i32 %u32 to i64
  ret i64 %u32.wide
signed32:
  %s32.at = getelementptr i32, ptr %index, i64 %place
  %s32 = load i32, ptr %s32.at
  %s32.wide = sext i32 %s32 to i64
  ret i64 %s32.wide
signed64:
  %s64.at = getelementptr i64, ptr %index, i64 %place
  %s64 = load i64, ptr %s64.at
  ret i64 %s64
}

define internal void @refuse(ptr %error, ptr %reached) {
  store i32 1, ptr %error
  store i64 -1, ptr %reached
  ret void
}
"""
"""A number of 64 bits without a sign that is too large for one with a sign is negative: refused."""

_RUN_BRANCH = f"""
define void @"weft.run_branch"(ptr %buffers, ptr %sizes, i64 %begin, i64 %end) {{
entry:
{_fields("%sizes", CHOICE)}
  %index = load ptr, ptr %buffers
  %number = call i64 @index_at(ptr %index, i64 0, i64 %kind)
  %is_known = icmp ult i64 %number, %branch_count
  br i1 %is_known, label %run, label %unknown
unknown:
  call void @refuse(ptr %error.ptr, ptr %reached.ptr)
  ret void
run:
  %start = mul i64 %number, {len(BRANCH)}
  %branch = getelementptr i64, ptr %branches.ptr, i64 %start
{_fields("%branch", BRANCH)}
  call void @bind(ptr %buffers, ptr %bindings.ptr, i64 %binding_count)
  %made = call i1 @run_section(ptr %execute.ptr, ptr %reached.ptr, i64 %number, ptr %record.ptr)
  br i1 %made, label %finish, label %done
finish:
  call void @copy(ptr %copies.ptr, i64 %copy_count)
  br label %done
done:
  ret void
}}
"""

_RUN_ROWS = f"""
define void @"weft.run_rows"(ptr %buffers, ptr %sizes, i64 %begin, i64 %end) {{
entry:
{_fields("%sizes", CHOICE)}
  %index = load ptr, ptr %buffers
  br label %check
check:
  %c = phi i64 [0, %entry], [%c.next, %known]
  %is_checked = icmp eq i64 %c, %rows
  br i1 %is_checked, label %all, label %look
look:
  %found = call i64 @index_at(ptr %index, i64 %c, i64 %kind)
  %is_known = icmp ult i64 %found, %branch_count
  br i1 %is_known, label %known, label %unknown
known:
  %c.next = add i64 %c, 1
  br label %check
unknown:
  call void @refuse(ptr %error.ptr, ptr %reached.ptr)
  ret void
all:
  %number = phi i64 [0, %check], [%number.next, %chosen]
  %is_over = icmp eq i64 %number, %branch_count
  br i1 %is_over, label %done, label %run
run:
  %start = mul i64 %number, {len(BRANCH)}
  %branch = getelementptr i64, ptr %branches.ptr, i64 %start
{_fields("%branch", BRANCH)}
  call void @bind(ptr %buffers, ptr %bindings.ptr, i64 %binding_count)
  %made = call i1 @run_section(ptr %execute.ptr, ptr %reached.ptr, i64 %number, ptr %record.ptr)
  br i1 %made, label %choose, label %done
choose:
  %r = phi i64 [0, %run], [%r.next, %chose]
  %is_end = icmp eq i64 %r, %rows
  br i1 %is_end, label %chosen, label %ask
ask:
  %wanted = call i64 @index_at(ptr %index, i64 %r, i64 %kind)
  %is_wanted = icmp eq i64 %wanted, %number
  br i1 %is_wanted, label %take, label %chose
take:
  call void @copy_row(ptr %buffers, i64 %r, ptr %copies.ptr, i64 %copy_count)
  br label %chose
chose:
  %r.next = add i64 %r, 1
  br label %choose
chosen:
  %number.next = add i64 %number, 1
  br label %all
done:
  ret void
}}
"""

SOURCE = "\n".join([_ROWS, _SECTION, _RUN_LOOP, _INDEX, _RUN_BRANCH, _RUN_ROWS])


@cache
def functions() -> dict[str, int]:
    """The addresses of `run_loop`, `run_branch` and `run_rows`."""
    return text_addresses(SOURCE, ("run_loop", "run_branch", "run_rows"))


def address(name: str) -> int:
    """The address of one of them, which a stored program finds again by its name."""
    return remembered(functions()[name], "control", name)


finder("control", address)
