"""The driver: one native function that runs a whole program.

A program is a table of calls. Each names a function with a kernel's signature, the slots whose
addresses are its buffers, its sizes, and how many iterations it has; long ones are divided over the
pool. The driver stops at the first call that reports an error in the error slot.

>>> from weft.compiler.driver import FIELDS
>>> FIELDS
('function', 'slots', 'count', 'sizes', 'extent', 'grain')
"""

from __future__ import annotations

import ctypes
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any, NamedTuple, Protocol

import numpy as np

from weft.compiler.kernels import text_addresses

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

SOURCE = """
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
  %i = phi i64 [0, %start], [%next, %after]
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
  %go = and i1 %fine, %rest
  br i1 %go, label %call, label %done

done:
  %end = phi i64 [0, %entry], [%next, %after]
  ret i64 %end
}
"""


@cache
def execute_address() -> int:
    """The address of the driver."""
    return text_addresses(SOURCE, ["execute"])["execute"]


@cache
def execute() -> Any:
    """The driver, for Python to call."""
    pointer, count = ctypes.c_void_p, ctypes.c_int64
    return ctypes.CFUNCTYPE(count, pointer, count, *[pointer] * 3)(execute_address())
