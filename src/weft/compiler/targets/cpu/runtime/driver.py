"""The driver: one native function that runs a whole program.

A program is a table of calls. Each names a function with a kernel's signature, the slots whose
addresses are its buffers, its sizes, and how many iterations it has; long ones are divided over the
pool. The driver stops at the first call that reports an error in the error slot.

It also stops where a signal has come whose handler raises. After long calls, and every few short
ones, it looks at the clock, and every fifth of a second it lets the interpreter handle signals, in
the one thread that does so.

>>> from weft.compiler.targets.cpu.runtime.driver import FIELDS
>>> FIELDS
('function', 'slots', 'count', 'sizes', 'extent', 'grain')
"""

from __future__ import annotations

import ctypes
import threading
import time
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any, NamedTuple, Protocol

import numpy as np

from weft.compiler.targets.cpu.cache.kernels import text_addresses
from weft.core.forks import in_child

Array = np.ndarray[Any, Any]

FIELDS = ("function", "slots", "count", "sizes", "extent", "grain")
"""The columns of the table of calls, each an int64."""


class Run(NamedTuple):
    """One run of a program: its tables, what the driver is given, and the arrays in and out."""

    tables: Any
    sizes: Mapping[str, int]
    given: tuple[int, ...]
    inputs: Sequence[Array]
    made: Sequence[Array]
    donated: Sequence[tuple[int, int]]


class Watcher(Protocol):
    """Runs programs in the driver's place; see `profiling` and `checking`."""

    every_launch: bool
    """Whether launches whose results are there from an earlier run are run all the same."""

    def __call__(self, program: Any, run: Run, /) -> int:
        """Run a program; how many of its launches were made."""


WATCHERS: list[Watcher] = []
"""The last one runs all programs."""

EVERY = 16
"""After how many short calls the driver looks at the clock: a power of 2."""
STEPS = 64
"""After how many steps a loop does so: these may be shorter than a look."""
INTERVAL = 200
"""After how many milliseconds it lets the interpreter handle signals: that takes its lock."""
INTERRUPTED, UNANSWERED = 2, 3
"""What is in the error slot after a signal, and after a call back to Python that did not end."""
WATCH = (
    "clock", "self", "ensure", "check", "fetch", "release", "thread", "held", "kind", "raised",
    "trace",
)  # fmt: skip
"""What the driver knows of the interpreter: functions, the thread that handles signals, whether
they must wait (`held`), and what a handler has raised."""


def _load_word(name: str) -> str:
    place = WATCH.index(name)
    return (
        f"%{name}.at = getelementptr i64, ptr %watch, i64 {place}\n"
        f"  %{name} = load i64, ptr %{name}.at"
    )


_LOOK = f"""
@watch = internal global ptr null
@last = internal global i64 0

define void @"weft.set_watch"(ptr %table) {{
  store ptr %table, ptr @watch
  ret void
}}

define void @"weft.look"(ptr %error) noinline cold {{
entry:
  %time = alloca [2 x i64]
  %watch = load ptr, ptr @watch
  %none = icmp eq ptr %watch, null
  br i1 %none, label %done, label %ask
ask:
  {_load_word("self")}
  {_load_word("thread")}
  {_load_word("held")}
  {_load_word("clock")}
  %self.of = inttoptr i64 %self to ptr
  %own = call i64 %self.of()
  %is_other = icmp ne i64 %own, %thread
  %is_held = icmp ne i64 %held, 0
  %not = or i1 %is_other, %is_held
  br i1 %not, label %done, label %measure
measure:
  %clock.of = inttoptr i64 %clock to ptr
  call i32 %clock.of(i32 {time.CLOCK_MONOTONIC}, ptr %time)
  %seconds = load i64, ptr %time
  %rest.at = getelementptr i64, ptr %time, i64 1
  %rest = load i64, ptr %rest.at
  %thousand = mul i64 %seconds, 1000
  %more = sdiv i64 %rest, 1000000
  %now = add i64 %thousand, %more
  %last = load i64, ptr @last
  %passed = sub i64 %now, %last
  %is_early = icmp slt i64 %passed, {INTERVAL}
  br i1 %is_early, label %done, label %handle
handle:
  store i64 %now, ptr @last
  {_load_word("ensure")}
  {_load_word("check")}
  {_load_word("fetch")}
  {_load_word("release")}
  %ensure.of = inttoptr i64 %ensure to ptr
  %check.of = inttoptr i64 %check to ptr
  %fetch.of = inttoptr i64 %fetch to ptr
  %release.of = inttoptr i64 %release to ptr
  %state = call i32 %ensure.of()
  %answer = call i32 %check.of()
  %is_fine = icmp eq i32 %answer, 0
  br i1 %is_fine, label %go_on, label %stop
stop:
  %kind.at = getelementptr i64, ptr %watch, i64 {WATCH.index("kind")}
  %raised.at = getelementptr i64, ptr %watch, i64 {WATCH.index("raised")}
  %trace.at = getelementptr i64, ptr %watch, i64 {WATCH.index("trace")}
  call void %fetch.of(ptr %kind.at, ptr %raised.at, ptr %trace.at)
  store i32 {INTERRUPTED}, ptr %error
  br label %go_on
go_on:
  call void %release.of(i32 %state)
  br label %done
done:
  ret void
}}

define void @"weft.guarded"(ptr %buffers, ptr %sizes, i64 %begin, i64 %end) {{
  %count = load i64, ptr %sizes
  %error.at = getelementptr ptr, ptr %buffers, i64 %count
  %error = load ptr, ptr %error.at
  %place.at = getelementptr ptr, ptr %error.at, i64 1
  %place = load ptr, ptr %place.at
  %function = load ptr, ptr %place
  store i32 {UNANSWERED}, ptr %error
  call void %function(ptr %buffers, ptr %sizes, i64 %begin, i64 %end)
  ret void
}}
"""

_EXECUTE = """
define i64 @"weft.execute"(ptr %calls, i64 %count, ptr %addresses, ptr %error, ptr %parallel_for) {
entry:
  %any = icmp sgt i64 %count, 0
  br i1 %any, label %measure, label %done

measure:
  %m = phi i64 [0, %entry], [%m.next, %measure]
  %most = phi i64 [1, %entry], [%most.next, %measure]
  %m.row = mul i64 %m, 6
  %m.place = add i64 %m.row, 2
  %m.at = getelementptr i64, ptr %calls, i64 %m.place
  %m.count = load i64, ptr %m.at
  %larger = icmp sgt i64 %m.count, %most
  %most.next = select i1 %larger, i64 %m.count, i64 %most
  %m.next = add i64 %m, 1
  %unmeasured = icmp slt i64 %m.next, %count
  br i1 %unmeasured, label %measure, label %start

start:
  %buffers = alloca ptr, i64 %most.next, align 8
  br label %call

call:
  %i = phi i64 [0, %start], [%next, %on]
  %row = mul i64 %i, 6
  %function.at = getelementptr i64, ptr %calls, i64 %row
  %function = load ptr, ptr %function.at
  %slots.at = getelementptr i64, ptr %function.at, i64 1
  %slots = load ptr, ptr %slots.at
  %many.at = getelementptr i64, ptr %function.at, i64 2
  %many = load i64, ptr %many.at
  %sizes.at = getelementptr i64, ptr %function.at, i64 3
  %sizes = load ptr, ptr %sizes.at
  %extent.at = getelementptr i64, ptr %function.at, i64 4
  %extent = load i64, ptr %extent.at
  %grain.at = getelementptr i64, ptr %function.at, i64 5
  %grain = load i64, ptr %grain.at
  %some = icmp sgt i64 %many, 0
  br i1 %some, label %fill, label %run

fill:
  %k = phi i64 [0, %call], [%k.next, %fill]
  %slot.at = getelementptr i64, ptr %slots, i64 %k
  %slot = load i64, ptr %slot.at
  %address.at = getelementptr ptr, ptr %addresses, i64 %slot
  %address = load ptr, ptr %address.at
  %buffer.at = getelementptr ptr, ptr %buffers, i64 %k
  store ptr %address, ptr %buffer.at
  %k.next = add i64 %k, 1
  %more = icmp slt i64 %k.next, %many
  br i1 %more, label %fill, label %run

run:
  %long = icmp sgt i64 %extent, %grain
  br i1 %long, label %divided, label %whole

divided:
  call void %parallel_for(ptr %function, ptr %buffers, ptr %sizes, i64 %extent, i64 %grain)
  br label %after

whole:
  call void %function(ptr %buffers, ptr %sizes, i64 0, i64 %extent)
  br label %after

after:
  %failed = load i32, ptr %error
  %fine = icmp eq i32 %failed, 0
  %next = add i64 %i, 1
  %rest = icmp slt i64 %next, %count
  br i1 %fine, label %counted, label %done

counted:
  %low = and i64 %next, MASK
  %is_due = icmp eq i64 %low, 0
  %is_looked = or i1 %is_due, %long
  br i1 %is_looked, label %looked, label %on

looked:
  call void @"weft.look"(ptr %error)
  %now = load i32, ptr %error
  %undisturbed = icmp eq i32 %now, 0
  br i1 %undisturbed, label %on, label %done

on:
  br i1 %rest, label %call, label %done

done:
  %end = phi i64 [0, %entry], [%next, %after], [%next, %looked], [%next, %on]
  ret i64 %end
}
"""
SOURCE = _LOOK + _EXECUTE.replace("MASK", str(EVERY - 1))


@cache
def _functions() -> dict[str, int]:
    """The functions of the module, which knows the interpreter from then on."""
    found = text_addresses(SOURCE, ["execute", "guarded", "look", "set_watch"])
    here = ctypes.CDLL(None)
    for name, function in zip(WATCH, ("clock_gettime", "pthread_self"), strict=False):
        _watch[name].value = _address(getattr(here, function))
    for name, function in _INTERPRETER.items():
        _watch[name].value = _address(getattr(ctypes.pythonapi, function))
    _watch["thread"].value = threading.main_thread().ident or 0
    ctypes.CFUNCTYPE(None, ctypes.c_void_p)(found["set_watch"])(ctypes.addressof(_table))
    return found


_table = (ctypes.c_int64 * len(WATCH))()
_watch = {name: ctypes.c_int64.from_buffer(_table, 8 * place) for place, name in enumerate(WATCH)}
_INTERPRETER = {
    "ensure": "PyGILState_Ensure", "check": "PyErr_CheckSignals", "fetch": "PyErr_Fetch",
    "release": "PyGILState_Release",
}  # fmt: skip


def _address(function: Any) -> int:
    return int(ctypes.cast(function, ctypes.c_void_p).value or 0)


def _begin_in_child() -> None:
    """The thread that is left handles signals."""
    _watch["thread"].value = threading.get_ident()
    _watch["held"].value = 0


in_child(_begin_in_child)


def execute_address() -> int:
    """The address of the driver."""
    return _functions()["execute"]


def look_address() -> int:
    """The address of what handles signals from time to time, given the error slot."""
    return _functions()["look"]


def guarded_address() -> int:
    """The address of what calls back to Python, and knows if that did not end."""
    return _functions()["guarded"]


def handles_signals() -> bool:
    """Whether this thread is the one in which the interpreter handles signals."""
    return bool(threading.get_ident() == _watch["thread"].value)


HELD = _watch["held"]
"""While its value is not 0, the driver does not stop for signals; for that thread alone."""


def interruption() -> BaseException:
    """What the handler of a signal has raised, after which the driver stopped."""
    restore = ctypes.pythonapi.PyErr_Restore
    restore.argtypes, restore.restype = [ctypes.c_void_p] * 3, None
    held = [_watch[name].value or None for name in ("kind", "raised", "trace")]
    for name in ("kind", "raised", "trace"):
        _watch[name].value = 0
    try:
        restore(*held)
    except BaseException as error:
        return error
    return KeyboardInterrupt()


@cache
def execute() -> Any:
    """The driver, for Python to call."""
    pointer, count = ctypes.c_void_p, ctypes.c_int64
    return ctypes.CFUNCTYPE(count, pointer, count, *[pointer] * 3)(execute_address())
