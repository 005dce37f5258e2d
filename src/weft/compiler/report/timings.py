"""Timings: when each call of each compiled program began and ended, taken by native code.

A small native function calls the driver for one call at a time and asks the clock before and
after, so that no Python runs between two kernels while they are measured either.

>>> import weft as wf
>>> f = wf.jit(lambda x: wf.sort(wf.exp(x), axis=1))
>>> with wf.timings() as calls:
...     _ = f(wf.ones((8, 8)))
>>> [(call.kernel.name, call.kernel.primitives, call.seconds > 0) for call in calls]
[('k0', ['exp'], True), ('sort', ['sort'], True)]
"""

from __future__ import annotations

import ctypes
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from threading import get_native_id
from typing import Any

import numpy as np

from weft.compiler.report.explain import KernelReport, kernel_reports
from weft.compiler.targets.cpu.engine import load_text
from weft.compiler.targets.cpu.runtime.driver import FIELDS, WATCHERS, Run, execute_address
from weft.compiler.targets.cpu.runtime.program import Program
from weft.compiler.targets.llvm.ir_builder import IRBuilder, Struct, module_text
from weft.core.records import frozen

__all__ = ["TimedCall", "timings"]


@frozen
class TimedCall:
    """One call of a kernel: which run of which program, from when to when, in nanoseconds."""

    kernel: KernelReport
    program: int
    run: int
    start: int
    end: int
    thread: int

    @property
    def seconds(self) -> float:
        """How long it took."""
        return (self.end - self.start) / 1e9


@contextmanager
def timings() -> Iterator[list[TimedCall]]:
    """Time every call of compiled programs inside; times are those of `time.perf_counter_ns`."""
    found: list[TimedCall] = []
    watch = _Watch(found)
    WATCHERS.append(watch)
    try:
        yield found
    finally:
        WATCHERS.remove(watch)


class _Watch:
    """Runs programs and appends the times of their calls."""

    every_launch = True

    def __init__(self, found: list[TimedCall]) -> None:
        self.found = found
        self.runs = 0
        self.known: dict[tuple[int, tuple[tuple[str, int], ...]], list[KernelReport]] = {}
        self.programs: list[Program] = []  # held, so that an identity is not used twice

    def __call__(self, program: Program, run: Run) -> int:
        """Run a program; how many of its calls were made."""
        kernels = self._kernels(program, run.sizes)
        times = np.zeros((max(1, len(kernels)), 2, 2), np.int64)  # begin and end: seconds, rest
        ended = int(_timed()(*run.given, execute_address(), _clock(), times.ctypes.data))
        shift = time.perf_counter_ns() - time.clock_gettime_ns(time.CLOCK_MONOTONIC)
        spans = (times[..., 0] * 1_000_000_000 + times[..., 1] + shift).tolist()
        number, thread = self.programs.index(program), get_native_id()
        for kernel, (start, end) in zip(kernels[:ended], spans, strict=False):
            self.found.append(TimedCall(kernel, number, self.runs, start, end, thread))
        self.runs += 1
        return ended

    def _kernels(self, program: Program, sizes: Mapping[str, int]) -> list[KernelReport]:
        key = id(program), tuple(sorted(sizes.items()))
        if key not in self.known:
            self.known[key] = kernel_reports(program.plan, sizes)
            if program not in self.programs:
                self.programs.append(program)
        return self.known[key]


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
def _timed() -> Any:
    signature = ctypes.CFUNCTYPE(
        ctypes.c_int64, ctypes.c_void_p, ctypes.c_int64, *[ctypes.c_void_p] * 6
    )
    return signature(load_text(source(), "weft.execute_timed"))


@cache
def _clock() -> int:
    address = ctypes.cast(ctypes.CDLL(None).clock_gettime, ctypes.c_void_p).value
    assert address is not None
    return address
