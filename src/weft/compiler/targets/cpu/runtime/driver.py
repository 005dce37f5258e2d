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
from weft.compiler.targets.cpu.cache.symbols import finder
from weft.compiler.targets.llvm.ir_builder import (
    KERNEL,
    NULL,
    IRBuilder,
    Struct,
    module_text,
)
from weft.core.forks import in_child

Array = np.ndarray[Any, Any]

_CALL = Struct("ptr function, ptr slots, i64 count, ptr sizes, i64 extent, i64 grain")
FIELDS = _CALL.names
"""The columns of the table of calls, each an int64."""


class Run(NamedTuple):
    """One run of a program: its tables, what the driver is given, and the arrays in and out."""

    tables: Any
    sizes: Mapping[str, int]
    given: tuple[int, ...]
    inputs: Sequence[Array]
    made: Sequence[Array]
    written: Sequence[tuple[int, Array]]
    """Outputs that are written to arrays that were there before, and those arrays."""


class Watcher(Protocol):
    """Runs programs in the driver's place; see `launch_timing` and `checking`."""

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
WATCH_RECORD = Struct(
    "ptr clock, ptr self, ptr ensure, ptr check, ptr fetch, ptr release, i64 thread, i64 held,"
    "i64 kind, i64 raised, i64 trace"
)
WATCH = WATCH_RECORD.names
"""What the driver knows of the interpreter: functions, the thread that handles signals, whether
they must wait (`held`), and what a handler has raised."""


def _set_watch() -> IRBuilder:
    """`set_watch(table)`: from now on the driver knows the interpreter."""
    out = IRBuilder("set_watch", ("ptr %table",), public=True, may_unwind=True)
    out.store(out.parameters[0], "@watch")
    return out


def _look() -> IRBuilder:
    """`look(error)`: let the interpreter handle signals, if it is time and this is the thread."""
    out = IRBuilder(
        "look", ("ptr %error",), public=True, may_unwind=True, attributes="noinline cold"
    )
    time_now, watch = out.room("[2 x i64]"), out.load("ptr", "@watch")
    with out.when(out.test("eq", watch, NULL)):
        out.give()
    table = out.record(WATCH_RECORD, watch)
    own_thread, thread, held, clock = table.all("self", "thread", "held", "clock")
    is_other = out.test("ne", out.call(own_thread, result="i64"), thread)
    with out.when(out.combine("or", is_other, out.test("ne", held, 0))):
        out.give()
    out.call(clock, f"i32 {time.CLOCK_MONOTONIC}", time_now, result="i32")
    seconds, nanoseconds = out.number(time_now, 0), out.number(time_now, 1)
    now = out.add(out.mul(seconds, 1000), out.div(nanoseconds, 1_000_000))
    with out.when(out.test("slt", out.sub(now, out.load("i64", "@last")), INTERVAL)):
        out.give()
    out.store(now, "@last")
    ensure, check, fetch, release = table.all("ensure", "check", "fetch", "release")
    state = out.call(ensure, result="i32")
    with out.when(out.test("ne", out.call(check, result="i32"), 0)):
        out.call(fetch, *(table.address(name) for name in ("kind", "raised", "trace")))
        out.store(INTERRUPTED, out.parameters[0], "i32")
    out.call(release, state)
    return out


def _guarded_call() -> IRBuilder:
    """`guarded(...)`: call back to Python; behind the buffers are the error slot and the function.

    The error slot holds `UNANSWERED` until the function has come back and written to it.
    """
    out = IRBuilder("guarded", KERNEL, public=True, may_unwind=True)
    buffers, sizes, begin, end = out.parameters
    behind = out.at("ptr", buffers, out.load("i64", sizes))
    error, place = out.pointer(behind, 0), out.pointer(behind, 1)
    function = out.load("ptr", place)
    out.store(UNANSWERED, error, "i32")
    out.call(function, buffers, sizes, begin, end)
    return out


def _execute(look: IRBuilder) -> IRBuilder:
    """`execute(calls, count, addresses, error, parallel_for)`: how many calls were made."""
    names = ("ptr %calls", "i64 %count", "ptr %addresses", "ptr %error", "ptr %parallel_for")
    out = IRBuilder("execute", names, public=True, result="i64", may_unwind=True)
    calls, count, addresses, error, parallel_for = out.parameters
    most = out.variable(1)
    with out.loop(0, count) as i:
        most.value = out.most(out.record(_CALL, calls, i)["count"], most.value)
    buffers = out.room("ptr", most.value)
    with out.loop(0, count) as i:
        call = out.record(_CALL, calls, i)
        function, slots, many, sizes, extent, grain = call.all(*FIELDS)
        with out.loop(0, many) as k:
            address = out.pointer(addresses, out.number(slots, k))
            out.store(address, out.at("ptr", buffers, k))
        is_long = out.test("sgt", extent, grain)
        with out.choose(is_long) as (divided, whole):
            with divided:
                out.call(parallel_for, function, buffers, sizes, extent, grain)
            with whole:
                out.call(function, buffers, sizes, 0, extent)
        ended = out.add(i, 1)
        with out.when(out.test("ne", out.load("i32", error), 0)):
            out.give(ended)
        is_due = out.test("eq", out.combine("and", ended, EVERY - 1), 0)
        with out.when(out.combine("or", is_due, is_long)):
            out.call(look, error)
            with out.when(out.test("ne", out.load("i32", error), 0)):
                out.give(ended)
    out.give(count)
    return out


def source() -> str:
    """The text of the module."""
    look = _look()
    variables = "@watch = internal global ptr null\n@last = internal global i64 0"
    return module_text(variables, _set_watch(), look, _guarded_call(), _execute(look))


@cache
def _functions() -> dict[str, int]:
    """The functions of the module, which knows the interpreter from then on."""
    found = text_addresses(source(), ["execute", "guarded", "look", "set_watch"])
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


def watch_address() -> int:
    """The address of what the driver knows of the interpreter, a `WATCH_RECORD`."""
    _functions()
    return ctypes.addressof(_table)


def look_address() -> int:
    """The address of what handles signals from time to time, given the error slot."""
    return _functions()["look"]


def guarded_address() -> int:
    """The address of what calls back to Python, and knows if that did not end."""
    return _functions()["guarded"]


finder("reference", guarded_address)


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
