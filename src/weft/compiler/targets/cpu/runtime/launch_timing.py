"""When each launch of a program began and ended, taken by native code.

A small native function calls the driver for one launch at a time and asks the clock before and
after, so that no Python runs between two launches while they are measured either.

>>> import weft as wf
>>> f, seen = wf.jit(lambda x: wf.sort(wf.exp(x), axis=1)), []
>>> with watched_launches(lambda plan, sizes, spans: seen.append(len(spans))):
...     _ = f(wf.ones((8, 8)))
>>> seen
[2]
"""

from __future__ import annotations

import ctypes
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

import numpy as np

from weft.compiler.targets.cpu.engine import load_text
from weft.compiler.targets.cpu.runtime.driver import FIELDS, WATCHERS, Run, execute_address
from weft.compiler.targets.cpu.runtime.program import Program
from weft.compiler.targets.llvm.ir_builder import IRBuilder, Struct, module_text
from weft.compiler.targets.target import Observer


@contextmanager
def watched_launches(observe: Observer) -> Iterator[None]:
    """See `Target`: inside, every run of a program is timed launch by launch."""
    watch = _Watch(observe)
    WATCHERS.append(watch)
    try:
        yield
    finally:
        WATCHERS.remove(watch)


class _Watch:
    """Runs programs in the driver's place."""

    every_launch = True

    def __init__(self, observe: Observer) -> None:
        self.observe = observe

    def __call__(self, program: Program, run: Run) -> int:
        """Run a program; how many of its launches were made."""
        count = len(program.plan.launches)
        times = np.zeros((max(1, count), 2, 2), np.int64)  # begin and end: seconds, rest
        ended = int(_timed_execution()(*run.given, execute_address(), _clock(), times.ctypes.data))
        shift = time.perf_counter_ns() - time.clock_gettime_ns(time.CLOCK_MONOTONIC)
        spans = (times[..., 0] * 1_000_000_000 + times[..., 1] + shift).tolist()
        self.observe(program.plan, run.sizes, [(start, end) for start, end in spans[:ended]])
        return ended


_SPAN = Struct("[2 x i64] begin, [2 x i64] end")


def source() -> str:
    """The text of `execute_timed`: given what the driver is, the driver, a clock, and the times."""
    pointers = ("addresses", "error", "parallel_for", "execute", "clock", "times")
    given = ("ptr %calls", "i64 %count", *(f"ptr %{name}" for name in pointers))
    out = IRBuilder("execute_timed", given, public=True, result="i64", may_unwind=True)
    calls, count, addresses, error, parallel_for, execute, clock, times = out.parameters
    monotonic = f"i32 {time.CLOCK_MONOTONIC}"
    with out.loop(0, count) as i:
        call, span = out.at("i64", calls, out.mul(i, len(FIELDS))), out.record(_SPAN, times, i)
        out.call(clock, monotonic, span.address("begin"), result="i32")
        out.call(execute, call, 1, addresses, error, parallel_for, result="i64")
        out.call(clock, monotonic, span.address("end"), result="i32")
        with out.when(out.test("ne", out.load("i32", error), 0)):
            out.give(out.add(i, 1))
    out.give(count)
    return module_text(out)


@cache
def _timed_execution() -> Any:
    signature = ctypes.CFUNCTYPE(
        ctypes.c_int64, ctypes.c_void_p, ctypes.c_int64, *[ctypes.c_void_p] * 6
    )
    return signature(load_text(source(), "weft.execute_timed"))


@cache
def _clock() -> int:
    address = ctypes.cast(ctypes.CDLL(None).clock_gettime, ctypes.c_void_p).value
    assert address is not None
    return address
