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

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache

from weft.compiler.targets.cpu.cache.kernels import text_addresses
from weft.compiler.targets.cpu.cache.symbols import finder, remember_address
from weft.compiler.targets.cpu.runtime.driver import STEPS
from weft.compiler.targets.llvm.ir_builder import (
    KERNEL,
    NULL,
    IRBuilder,
    Record,
    Struct,
    module_text,
)

_LOOP = Struct(
    "ptr execute, ptr look, ptr reached, ptr body, ptr body_start, ptr condition,"
    "ptr condition_start, ptr answer, i64 limit, i64 parity, i64 scratch, ptr bindings,"
    "i64 binding_count, i64 moving_count, ptr kept, i64 kept_count, ptr carries, i64 carry_count,"
    "ptr copies, i64 copy_count"
)
LOOP = _LOOP.names
"""What `run_loop` is given. The limit is -1 where there is none; the answer is a cell, or 0."""

_CHOICE = Struct(
    "ptr execute, ptr reached, ptr error, i64 kind, ptr branches, i64 branch_count, i64 rows"
)
"""What `run_branch` and `run_rows` are given: their index is the first buffer, of such a kind."""

_BRANCH = Struct("ptr record, ptr bindings, i64 binding_count, ptr copies, i64 copy_count")
"""A row of the table of branches. In `run_rows`, copies are from a cell to a buffer, row by row."""

_RECORD = Struct("ptr calls, i64 count, ptr addresses, ptr error, ptr pool")
_BINDING = Struct("ptr cell, i64 buffer, i64 offset, i64 step")
_CARRY = Struct("ptr cell, ptr other, ptr target, i64 first, i64 last, i64 spare, i64 size")
_KEPT = Struct("i64 first, i64 last, i64 size")
_COPY = Struct("ptr source, ptr target, i64 size")
_COPY_ROW = Struct("ptr source, i64 target, i64 size")

Functions = dict[str, IRBuilder]


# --- rows of tables ------------------------------------------------------------------------------


@contextmanager
def _for_each(
    known: Functions, name: str, row: Struct, *given: str
) -> Iterator[tuple[IRBuilder, Record]]:
    """A function that does something for each row of a table."""
    out = IRBuilder(name, (*given, "ptr %rows", "i64 %count"), may_unwind=True)
    known[name] = out
    rows, count = out.parameters[-2:]
    with out.loop(0, count) as i:
        yield out, out.record(row, rows, i)


def _move(out: IRBuilder, target: str, source: str, size: str) -> None:
    """Copy a value, unless it is there already."""
    is_there = out.test("eq", source, target)
    out.copy(target, source, out.select(is_there, 0, size))


def _functions_of_rows() -> Functions:
    known: Functions = {}
    with _for_each(known, "bind", _BINDING, "ptr %buffers") as (out, row):
        cell, buffer, offset = row.all("cell", "buffer", "offset")
        out.store(out.at("i8", out.buffer(buffer), offset), cell)
    with _for_each(known, "advance", _BINDING) as (out, row):
        cell, step = row.all("cell", "step")
        out.store(out.at("i8", out.load("ptr", cell), step), cell)
    with _for_each(known, "start", _KEPT, "ptr %buffers") as (out, row):
        first, last, size = row.all("first", "last", "size")
        source, target = out.buffer(first), out.buffer(last)
        _move(out, target, source, size)
    given = ("ptr %buffers", "ptr %scratch", "i1 %starts", "i1 %spares")
    with _for_each(known, "turn", _CARRY, *given) as (out, row):
        _, scratch, starts, spares, *_ = out.parameters
        cell, other, target, first, last, spare, _ = row.all(*_CARRY.names)
        current = out.select(starts, out.buffer(first), out.load("ptr", target))
        out.store(current, cell)
        out.store(current, other)
        out.store(out.select(spares, out.at("i8", scratch, spare), out.buffer(last)), target)
    with _for_each(known, "settle", _CARRY, "ptr %buffers") as (out, row):
        cell, last, size = row.all("cell", "last", "size")
        current = out.load("ptr", cell)
        _move(out, out.buffer(last), current, size)
    with _for_each(known, "copy", _COPY) as (out, row):
        source, target, size = row.all(*_COPY.names)
        out.copy(out.load("ptr", target), out.load("ptr", source), size)
    with _for_each(known, "copy_row", _COPY_ROW, "ptr %buffers", "i64 %number") as (out, row):
        source, target, size = row.all(*_COPY_ROW.names)
        skipped = out.mul(out.parameters[1], size)
        place = out.at("i8", out.buffer(target), skipped)
        out.copy(place, out.at("i8", out.load("ptr", source), skipped), size)
    return known


# --- sections ------------------------------------------------------------------------------------


def _run_section() -> IRBuilder:
    """`run_section(execute, reached, number, record)`: whether a section ran without an error.

    Else `reached` is told its number, and how many of its calls were made.
    """
    given = ("ptr %execute", "ptr %reached", "i64 %number", "ptr %record")
    out = IRBuilder("run_section", given, result="i1", may_unwind=True)
    execute, reached, number, record = out.parameters
    calls, count, addresses, error, pool = out.record(_RECORD, record).all(*_RECORD.names)
    ended = out.call(execute, calls, count, addresses, error, pool, result="i64")
    is_fine = out.test("eq", out.load("i32", error), 0)
    with out.unless(is_fine):
        out.store(number, reached)
        out.store(ended, out.at("i64", reached, 1))
    out.give(is_fine)
    return out


def _run_loop(known: Functions) -> IRBuilder:
    """`run_loop(...)`: run the body as often as the limit and the condition say."""
    out = IRBuilder("run_loop", KERNEL, public=True, may_unwind=True)
    buffers, sizes, _, _ = out.parameters
    table = dict(zip(LOOP, out.record(_LOOP, sizes).all(*LOOP), strict=True))
    scratch, answer = out.buffer(table["scratch"]), table["answer"]
    carries = table["carries"], table["carry_count"]

    def run(number: int, name: str) -> str:
        given = table["execute"], table["reached"], number, table[name]
        return out.call(known["run_section"], *given)

    is_asked = out.test("ne", answer, NULL)
    out.call(known["bind"], buffers, table["bindings"], table["binding_count"])
    out.call(known["start"], buffers, table["kept"], table["kept_count"])
    with out.when(out.test("ne", table["limit"], 0)):
        run(0, "body_start")
        with out.when(is_asked):
            run(1, "condition_start")
    iteration = out.variable(0)
    with out.repeat():
        now = iteration.value
        is_first = out.test("eq", now, 0)
        is_odd = out.convert("trunc", out.add(now, table["parity"]), "i1")
        out.call(known["turn"], buffers, scratch, is_first, is_odd, *carries)
        out.leave_unless(out.test("ne", now, table["limit"]))
        with out.when(is_asked):
            with out.unless(run(1, "condition")):
                out.give()
            holds = out.test("ne", out.load("i8", out.load("ptr", answer)), 0)
            out.leave_unless(holds)
        with out.unless(run(0, "body")):
            out.give()
        out.call(known["copy"], table["copies"], table["copy_count"])
        out.call(known["advance"], table["bindings"], table["moving_count"])
        iteration.value = out.add(now, 1)
        is_due = out.test("eq", out.combine("and", iteration.value, STEPS - 1), 0)
        with out.when(is_due):
            error = out.record(_RECORD, table["body"])["error"]
            out.call(table["look"], error)
            with out.when(out.test("ne", out.load("i32", error), 0)):
                out.give()
    out.call(known["settle"], buffers, *carries)
    return out


# --- choices -------------------------------------------------------------------------------------

_INDICES = {
    2: ("zext", "i8"), 3: ("sext", "i8"), 4: ("zext", "i16"), 5: ("sext", "i16"),
    8: ("zext", "i32"), 9: ("sext", "i32"),
}  # fmt: skip
"""How an index of each kind becomes one of 64 bits; the other kinds have these."""


def _index_at() -> IRBuilder:
    """`index_at(index, place, kind)`: an index as a number of 64 bits.

    One without a sign that is too large for one with a sign is negative, so it is refused.
    """
    given = ("ptr %index", "i64 %place", "i64 %kind")
    out = IRBuilder("index_at", given, result="i64", may_unwind=True)
    index, place, kind = out.parameters
    for number, (how, narrow) in _INDICES.items():
        with out.when(out.test("eq", kind, number)):
            out.give(out.convert(how, out.load(narrow, out.at(narrow, index, place)), "i64"))
    out.give(out.number(index, place))
    return out


def _refuse(out: IRBuilder, table: Record) -> None:
    """Report an index that no branch has."""
    error, reached = table.all("error", "reached")
    out.store(1, error, "i32")
    out.store(-1, reached)
    out.give()


def _begin_choice(name: str) -> tuple[IRBuilder, Record, str]:
    """A function that is given a choice: its table, and the index."""
    out = IRBuilder(name, KERNEL, public=True, may_unwind=True)
    buffers, sizes, _, _ = out.parameters
    return out, out.record(_CHOICE, sizes), out.load("ptr", buffers)


def _run_chosen(out: IRBuilder, known: Functions, table: Record, number: str) -> Record:
    """Run one branch, and return where it fails; its row of the table."""
    branch = out.record(_BRANCH, table["branches"], number)
    bindings, count, record = branch.all("bindings", "binding_count", "record")
    out.call(known["bind"], out.parameters[0], bindings, count)
    given = table["execute"], table["reached"], number, record
    with out.unless(out.call(known["run_section"], *given)):
        out.give()
    return branch


def _run_branch(known: Functions) -> IRBuilder:
    """`run_branch(...)`: run the branch that the index says."""
    out, table, index = _begin_choice("run_branch")
    number = out.call(known["index_at"], index, 0, table["kind"])
    with out.unless(out.test("ult", number, table["branch_count"])):
        _refuse(out, table)
    branch = _run_chosen(out, known, table, number)
    out.call(known["copy"], *branch.all("copies", "copy_count"))
    return out


def _run_rows(known: Functions) -> IRBuilder:
    """`run_rows(...)`: run every branch on all rows, and take from each the rows that chose it."""
    out, table, index = _begin_choice("run_rows")
    kind, branch_count, rows = table.all("kind", "branch_count", "rows")
    with out.loop(0, rows) as row:
        number = out.call(known["index_at"], index, row, kind)
        with out.unless(out.test("ult", number, branch_count)):
            _refuse(out, table)
    with out.loop(0, branch_count) as number:
        branch = _run_chosen(out, known, table, number)
        copies, copy_count = branch.all("copies", "copy_count")
        with out.loop(0, rows) as row:
            chosen = out.call(known["index_at"], index, row, kind)
            with out.when(out.test("eq", chosen, number)):
                out.call(known["copy_row"], out.parameters[0], row, copies, copy_count)
    return out


def source() -> str:
    """The text of the module."""
    known = _functions_of_rows() | {"run_section": _run_section(), "index_at": _index_at()}
    entries = [make(known) for make in (_run_loop, _run_branch, _run_rows)]
    return module_text(*known.values(), *entries)


@cache
def functions() -> dict[str, int]:
    """The addresses of `run_loop`, `run_branch` and `run_rows`."""
    return text_addresses(source(), ("run_loop", "run_branch", "run_rows"))


def address(name: str) -> int:
    """The address of one of them, which a stored program finds again by its name."""
    return remember_address(functions()[name], "control", name)


finder("control", address)
