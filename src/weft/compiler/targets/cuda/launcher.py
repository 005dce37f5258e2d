"""Launches without Python between them: a table of records that one native call works through.

A launch from Python costs some microseconds more than the driver takes for it. Here launches,
copies and tensor maps are records of one table, and a short native function goes through it and
calls the driver by address. It is LLVM's code for this machine, made once for a process.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from functools import cache
from itertools import groupby
from typing import Any

import llvmlite.binding as llvm
import numpy as np

from weft.compiler.targets.cuda.device import CAPTURED, Stream
from weft.compiler.targets.cuda.modules import KernelNodeParameters

Array = np.ndarray[Any, Any]
Record = tuple[int, ...]
"""What is to be done, and up to seven numbers that say with what."""
SET, LAUNCH, COPY, FILL, ENCODE, ENCODE_WINDOWS, CHECK = range(7)
"""The kinds of records; see the functions below, which make them."""
WORDS = 8
"""How many words a record has."""
_HEAD = 6
"""Words before the records: the functions, the stream, how many there are, which one failed, where
the words of a run are written, and where it is said whether a stream is being captured."""
CALLED = (
    "cuLaunchKernel",
    "cuMemcpyDtoDAsync_v2",
    "cuMemsetD8Async",
    "cuTensorMapEncodeTiled",
    "cuTensorMapEncodeIm2col",
)
"""The driver's functions that records call."""
FAULT = -1
"""The result where a kernel of an earlier run has reported a fault."""
BUSY = -2
"""The result where a stream is being captured, so that nothing may be put on it."""
LONG = 16
"""From how many records on other threads of Python go on meanwhile."""
MOST_WORDS = 8
"""How many words of a run may be given with the call."""


def set_cell(target: int, source: int, offset: int = 0) -> Record:
    """Write the number in one cell, and an offset more, to another cell."""
    return SET, target, source, offset


def launch_kernel(function: int, blocks: int, threads: int, shared: int, parameters: int) -> Record:
    """Launch a function with the parameters that a table of addresses names."""
    return LAUNCH, function, blocks, threads, shared, parameters


def kernel_node(record: Record) -> KernelNodeParameters:
    """The launch of a record as a node of a graph."""
    _, function, blocks, threads, shared, parameters = record
    return KernelNodeParameters(function, blocks, 1, 1, threads, 1, 1, shared, parameters)


def copy_bytes(target: int, source: int, count: int) -> Record:
    """Copy bytes between the addresses in two cells, unless these are the same."""
    return COPY, target, source, count


def fill_bytes(target: int, byte: int, count: int) -> Record:
    """Set bytes from the address in a cell on."""
    return FILL, target, byte, count


def encode_map(cell: int, encoded: int, arguments: int) -> Record:
    """Encode a tensor map for the address in a cell, if `encoded` holds another one.

    `arguments` is where the driver's eleven other arguments stand, a word each.
    """
    return ENCODE, cell, encoded, arguments


def encode_windows(cell: int, encoded: int, arguments: int) -> Record:
    """The same of a map of windows, which has fourteen other arguments."""
    return ENCODE_WINDOWS, cell, encoded, arguments


def check_fault(cell: int) -> Record:
    """End with `FAULT` where a kernel has written to a cell of faults."""
    return CHECK, cell


_TEXT = """
define i32 @weft_cuda_run(ptr %table) {
entry:
  %functions = load ptr, ptr %table
  %stream.at = getelementptr i64, ptr %table, i64 1
  %stream = load ptr, ptr %stream.at
  %count.at = getelementptr i64, ptr %table, i64 2
  %count = load i64, ptr %count.at
  %failed.at = getelementptr i64, ptr %table, i64 3
  %records = getelementptr i64, ptr %table, i64 6
  br label %head

head:
  %n = phi i64 [0, %entry], [%next, %after]
  %going = icmp ult i64 %n, %count
  br i1 %going, label %body, label %success

body:
  %word = mul i64 %n, 8
  %record = getelementptr i64, ptr %records, i64 %word
  %kind = load i64, ptr %record
  %a.at = getelementptr i64, ptr %record, i64 1
  %a = load i64, ptr %a.at
  %b.at = getelementptr i64, ptr %record, i64 2
  %b = load i64, ptr %b.at
  %c.at = getelementptr i64, ptr %record, i64 3
  %c = load i64, ptr %c.at
  %a.ptr = inttoptr i64 %a to ptr
  %b.ptr = inttoptr i64 %b to ptr
  %c.ptr = inttoptr i64 %c to ptr
  switch i64 %kind, label %check [i64 0, label %set i64 1, label %launch i64 2, label %copy
                                  i64 3, label %fill i64 4, label %encode
                                  i64 5, label %windows]

set:
  %source = load i64, ptr %b.ptr
  %sum = add i64 %source, %c
  store i64 %sum, ptr %a.ptr
  br label %after

launch:
  %blocks = trunc i64 %b to i32
  %threads = trunc i64 %c to i32
  %d.at = getelementptr i64, ptr %record, i64 4
  %d = load i64, ptr %d.at
  %shared = trunc i64 %d to i32
  %parameters.at = getelementptr i64, ptr %record, i64 5
  %parameters = load ptr, ptr %parameters.at
  %launch.function = load ptr, ptr %functions
  %launch.code = call i32 %launch.function(ptr %a.ptr, i32 %blocks, i32 1, i32 1, i32 %threads,
      i32 1, i32 1, i32 %shared, ptr %stream, ptr %parameters, ptr null)
  br label %judge

copy:
  %copy.to = load i64, ptr %a.ptr
  %copy.from = load i64, ptr %b.ptr
  %there = icmp eq i64 %copy.to, %copy.from
  br i1 %there, label %after, label %copy.call

copy.call:
  %copy.at = getelementptr ptr, ptr %functions, i64 1
  %copy.function = load ptr, ptr %copy.at
  %copy.code = call i32 %copy.function(i64 %copy.to, i64 %copy.from, i64 %c, ptr %stream)
  br label %judge

fill:
  %fill.to = load i64, ptr %a.ptr
  %byte = trunc i64 %b to i8
  %fill.at = getelementptr ptr, ptr %functions, i64 2
  %fill.function = load ptr, ptr %fill.at
  %fill.code = call i32 %fill.function(i64 %fill.to, i8 zeroext %byte, i64 %c, ptr %stream)
  br label %judge

encode:
  %address = load i64, ptr %a.ptr
  %encoded = load i64, ptr %b.ptr
  %same = icmp eq i64 %address, %encoded
  br i1 %same, label %after, label %encode.call

encode.call:
  %encode.at = getelementptr ptr, ptr %functions, i64 3
  %encode.function = load ptr, ptr %encode.at
<arguments>
  %encode.code = call i32 %encode.function(ptr %p0, i32 %n1, i32 %n2, i64 %address, ptr %p3,
      ptr %p4, ptr %p5, ptr %p6, i32 %n7, i32 %n8, i32 %n9, i32 %n10)
  %encode.failed = icmp ne i32 %encode.code, 0
  br i1 %encode.failed, label %judge, label %encode.keep

encode.keep:
  store i64 %address, ptr %b.ptr
  br label %after

windows:
  %windows.address = load i64, ptr %a.ptr
  %windows.encoded = load i64, ptr %b.ptr
  %windows.same = icmp eq i64 %windows.address, %windows.encoded
  br i1 %windows.same, label %after, label %windows.call

windows.call:
  %windows.at = getelementptr ptr, ptr %functions, i64 4
  %windows.function = load ptr, ptr %windows.at
<window arguments>
  %windows.code = call i32 %windows.function(ptr %xp0, i32 %xn1, i32 %xn2, i64 %windows.address,
      ptr %xp3, ptr %xp4, ptr %xp5, ptr %xp6, i32 %xn7, i32 %xn8, ptr %xp9, i32 %xn10, i32 %xn11,
      i32 %xn12, i32 %xn13)
  %windows.failed = icmp ne i32 %windows.code, 0
  br i1 %windows.failed, label %judge, label %windows.keep

windows.keep:
  store i64 %windows.address, ptr %b.ptr
  br label %after

check:
  %fault = load i32, ptr %a.ptr
  %fine = icmp eq i32 %fault, 0
  br i1 %fine, label %after, label %failure

judge:
  %code = phi i32 [%launch.code, %launch], [%copy.code, %copy.call], [%fill.code, %fill],
                  [%encode.code, %encode.call], [%windows.code, %windows.call]
  %bad = icmp ne i32 %code, 0
  br i1 %bad, label %failure, label %after

after:
  %next = add i64 %n, 1
  br label %head

failure:
  %result = phi i32 [-1, %check], [%code, %judge]
  store i64 %n, ptr %failed.at
  ret i32 %result

success:
  ret i32 0
}
"""


def _module_text() -> str:
    """The native function, with the loads of a tensor map's arguments written out."""
    text = _TEXT.replace("<arguments>", _argument_loads("", 11, {0, 3, 4, 5, 6}))
    text = text.replace("<window arguments>", _argument_loads("x", 14, {0, 3, 4, 5, 6, 9}))
    return text + "".join(map(_word_call_text, range(1, MOST_WORDS + 1)))


def _word_call_text(count: int) -> str:
    """The native function that first writes so many words of a run, unless a stream is captured.

    Python's lock is held all the while, so that no other thread writes in between.
    """
    given = ", ".join(f"i64 %w{k}" for k in range(count))
    stores = [
        f"  %p{k} = getelementptr i64, ptr %words, i64 {k}\n  store i64 %w{k}, ptr %p{k}"
        for k in range(count)
    ]
    return f"""
define i32 @weft_cuda_run_{count}(ptr %table, {given}) {{
entry:
  %captured.at = getelementptr i64, ptr %table, i64 5
  %captured.ptr = load ptr, ptr %captured.at
  %captured = load i32, ptr %captured.ptr
  %busy = icmp ne i32 %captured, 0
  br i1 %busy, label %leave, label %write
leave:
  ret i32 {BUSY}
write:
  %words.at = getelementptr i64, ptr %table, i64 4
  %words = load ptr, ptr %words.at
{chr(10).join(stores)}
  %code = call i32 @weft_cuda_run(ptr %table)
  ret i32 %code
}}
"""


def _argument_loads(prefix: str, count: int, pointers: set[int]) -> str:
    """Loads of so many arguments, some of which are pointers; names begin with a prefix."""
    lines = []
    for place in range(count):
        lines.append(f"  %{prefix}q{place} = getelementptr i64, ptr %c.ptr, i64 {place}")
        kind, name = ("ptr", "p") if place in pointers else ("i64", "w")
        lines.append(f"  %{prefix}{name}{place} = load {kind}, ptr %{prefix}q{place}")
        if name == "w":
            lines.append(f"  %{prefix}n{place} = trunc i64 %{prefix}w{place} to i32")
    return "\n".join(lines)


@cache
def _native_functions() -> tuple[dict[str, int], Any]:
    """The addresses of the native functions, and what keeps them there."""
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    names = ["weft_cuda_run", *[f"weft_cuda_run_{n}" for n in range(1, MOST_WORDS + 1)]]
    builder = llvm.JITLibraryBuilder().add_ir(_module_text())
    for name in names:
        builder.export_symbol(name)
    compiler = llvm.create_lljit_compiler(use_jit_link=True)
    library = builder.link(compiler, "weft_cuda_launcher")
    return {name: library[name] for name in names}, (library, compiler)


@cache
def native_calls() -> tuple[Callable[[int], int], Callable[[int], int]]:
    """What works through a table at an address: holding Python's lock, and without it."""
    address = _native_functions()[0]["weft_cuda_run"]
    held = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.c_void_p)(address)
    without = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p)(address)
    return held, without


@cache
def word_call(count: int) -> Callable[..., int]:
    """What writes so many words of a run, and works through a table at an address.

    It holds Python's lock. Its result is `BUSY` where nothing was done.
    """
    kinds = [ctypes.c_void_p, *[ctypes.c_uint64] * count]
    function = ctypes.PYFUNCTYPE(ctypes.c_int, *kinds)
    return function(_native_functions()[0][f"weft_cuda_run_{count}"])


class NativeRun:
    """Records in order; a call works through them. `words`: where the words of a run stand."""

    __slots__ = ("_stream", "_table", "address", "call", "records")

    def __init__(self, stream: Stream, records: Sequence[Record], words: int = 0) -> None:
        self.records, self._stream = tuple(records), stream
        table: Array = np.zeros(_HEAD + WORDS * len(self.records), np.int64)
        table[:3] = stream.driver.addresses(CALLED), stream.handle, len(self.records)
        table[4:_HEAD] = words, CAPTURED.ctypes.data
        for place, record in enumerate(self.records):
            start = _HEAD + WORDS * place
            table[start : start + len(record)] = record
        self._table, self.address = table, int(table.ctypes.data)
        self.call = native_calls()[len(self.records) >= LONG]
        """Works through the table at `address`, and gives the driver's result."""

    def followed_by(self, *others: NativeRun) -> NativeRun:
        """One run of these records and those of others."""
        records = [record for run in (self, *others) for record in run.records]
        return NativeRun(self._stream, records)

    def __call__(self) -> None:
        """Do what the records say; the driver's error where it refuses something."""
        code = self.call(self.address)
        if code:
            raise self.error(code)

    def error(self, code: int) -> Exception:
        """The error of a result that is not success."""
        kind = self.records[int(self._table[3])][0]
        return self._stream.driver.error(CALLED[kind - LAUNCH], code)


Run = Callable[[], None]
"""Puts some work on the stream."""


def merge_runs(runs: Sequence[Run]) -> list[Run]:
    """The same work with fewer calls: what follows each other as records is one run."""
    merged: list[Run] = []
    for is_native, group in groupby(runs, lambda run: isinstance(run, NativeRun)):
        members: list[Any] = list(group)
        merged += [members[0].followed_by(*members[1:])] if is_native else members
    return merged
