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

from weft.compiler.targets.cuda.device import HELD, Stream
from weft.compiler.targets.cuda.modules import KernelNodeParameters
from weft.compiler.targets.llvm.ir_builder import NULL, IRBuilder, Operand, Struct, module_text
from weft.core.once import made_once

Array = np.ndarray[Any, Any]
Record = tuple[int, ...]
"""What is to be done, and up to seven numbers that say with what."""
SET, LAUNCH, COPY, FILL, ENCODE, ENCODE_WINDOWS, CHECK = range(7)
"""The kinds of records; see the functions below, which make them."""
WORDS = 8
"""How many words a record has."""
_TABLE_HEAD = Struct("ptr functions, ptr stream, i64 count, i64 failed, ptr words, ptr held")
_HEAD = len(_TABLE_HEAD.names)
"""Words before the records: the functions, the stream, how many there are, which one failed, where
the words of a run are written, and where it is said whether quick calls are held."""
_NAME = "cuda_run"
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
"""The result where quick calls are held: nothing was done."""
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


# --- the native function -------------------------------------------------------------------------


class _NativeRecord:
    """Writes what is done for the record at hand, and has the driver's result in `code`."""

    def __init__(self, out: IRBuilder, functions: str, stream: str, record: str) -> None:
        self.out, self.functions, self.stream, self.record = out, functions, stream, record
        self.code = out.variable(0, "i32")

    def write(self) -> None:
        """What each kind of records does; the most frequent ones are asked for first."""
        actions = {
            LAUNCH: self._launch, SET: self._set, ENCODE: self._encode,
            ENCODE_WINDOWS: self._encode_windows, COPY: self._copy, FILL: self._fill,
            CHECK: self._check,
        }  # fmt: skip
        self._choose_action(self.out.number(self.record, 0), list(actions.items()))

    def _choose_action(self, kind: str, actions: list[tuple[int, Callable[[], None]]]) -> None:
        (number, write), *others = actions
        if not others:
            write()
            return
        with self.out.choose(self.out.test("eq", kind, number)) as (is_that, is_another):
            with is_that:
                write()
            with is_another:
                self._choose_action(kind, others)

    def _call(self, record_kind: int, *operands: Operand) -> None:
        """Call the function of the driver for a kind of records."""
        function = self.out.pointer(self.functions, record_kind - LAUNCH)
        self.code.value = self.out.call(function, *operands, result="i32")

    def _word(self, place: int, kind: str = "i64") -> str:
        """A word of the record, cut to a narrower type."""
        word = self.out.number(self.record, place)
        return word if kind == "i64" else self.out.convert("trunc", word, kind)

    def _cell(self, place: int) -> str:
        """The address of a cell that the record names."""
        return self.out.pointer(self.record, place)

    def _content(self, place: int) -> str:
        """What a cell holds that the record names."""
        return self.out.load("i64", self._cell(place))

    def _set(self) -> None:
        self.out.store(self.out.add(self._content(2), self._word(3)), self._cell(1))

    def _launch(self) -> None:
        blocks, threads, shared = (self._word(place, "i32") for place in (2, 3, 4))
        function, parameters, one = self._cell(1), self._cell(5), "i32 1"
        self._call(
            LAUNCH, function, blocks, one, one, threads, one, one, shared, self.stream,
            parameters, NULL,
        )  # fmt: skip

    def _copy(self) -> None:
        target, source = self._content(1), self._content(2)
        with self.out.when(self.out.test("ne", target, source)):
            self._call(COPY, target, source, self._word(3), self.stream)

    def _fill(self) -> None:
        byte = self._word(2, "i8")
        self._call(FILL, self._content(1), f"i8 zeroext {byte}", self._word(3), self.stream)

    def _encode(self) -> None:
        self._encode_with(ENCODE, 11, {0, 3, 4, 5, 6})

    def _encode_windows(self) -> None:
        self._encode_with(ENCODE_WINDOWS, 14, {0, 3, 4, 5, 6, 9})

    def _encode_with(self, record_kind: int, count: int, pointers: set[int]) -> None:
        """Encode a map where its address is another one; some of its arguments are pointers."""
        out, address = self.out, self._content(1)
        with out.when(out.test("ne", address, self._content(2))):
            table = self._cell(3)
            arguments = [
                out.pointer(table, place)
                if place in pointers
                else out.convert("trunc", out.number(table, place), "i32")
                for place in range(count)
            ]
            # the driver's order: the map, its dtype and rank, then the address, then the rest
            self._call(record_kind, *arguments[:3], address, *arguments[3:])
            with out.when(out.test("eq", self.code.value, 0)):
                out.store(address, self._cell(2))

    def _check(self) -> None:
        is_fault = self.out.test("ne", self.out.load("i32", self._cell(1)), 0)
        self.code.value = self.out.convert("sext", is_fault, "i32")  # a bit is -1, as FAULT is


def _run_table() -> IRBuilder:
    """Work through the records until one fails: its result, with its number in the head."""
    out = IRBuilder(_NAME, ("ptr %table",), public=True, result="i32", may_unwind=True)
    head = out.record(_TABLE_HEAD, "%table")
    functions, stream, count = head.all("functions", "stream", "count")
    records = out.at("i64", "%table", _HEAD)
    with out.loop(0, count) as place:
        record = _NativeRecord(
            out, functions, stream, out.at("i64", records, out.mul(place, WORDS))
        )
        record.write()
        code = record.code.value
        with out.when(out.test("ne", code, 0)):
            head["failed"] = place
            out.give(code)
    out.give(0)
    return out


def _run_words(run_table: IRBuilder, count: int) -> IRBuilder:
    """Write so many words of a run, and work through the records, unless quick calls are held.

    Python's lock is held all the while, so that no other thread writes in between.
    """
    parameters = "ptr %table", *[f"i64 %word{place}" for place in range(count)]
    name = f"{_NAME}_{count}"
    out = IRBuilder(name, parameters, public=True, result="i32", may_unwind=True)
    table, *given = out.parameters
    held, words = out.record(_TABLE_HEAD, table).all("held", "words")
    with out.when(out.test("ne", out.load("i32", held), 0)):
        out.give(BUSY)
    for place, word in enumerate(given):
        out.store(word, out.at("i64", words, place))
    out.give(out.call(run_table, table, result="i32"))
    return out


@made_once
def _native_functions() -> tuple[list[int], Any]:
    """The addresses of what works through a table, given so many words; and what keeps them."""
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    run_table = _run_table()
    functions = [run_table, *[_run_words(run_table, n) for n in range(1, MOST_WORDS + 1)]]
    symbols = [f"weft.{_NAME}", *[f"weft.{_NAME}_{n}" for n in range(1, MOST_WORDS + 1)]]
    builder = llvm.JITLibraryBuilder().add_ir(module_text(*functions))
    for symbol in symbols:
        builder.export_symbol(symbol)
    compiler = llvm.create_lljit_compiler(use_jit_link=True)
    library = builder.link(compiler, "weft_cuda_launcher")
    return [library[symbol] for symbol in symbols], (library, compiler)


@cache
def native_calls() -> tuple[Callable[[int], int], Callable[[int], int]]:
    """What works through a table at an address: holding Python's lock, and without it."""
    address = _native_functions()[0][0]
    held = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.c_void_p)(address)
    without = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p)(address)
    return held, without


@cache
def word_call(count: int) -> Callable[..., int]:
    """What writes so many words of a run, and works through a table at an address.

    It holds Python's lock. Its result is `BUSY` where nothing was done.
    """
    kinds = [ctypes.c_void_p, *[ctypes.c_uint64] * count]
    return ctypes.PYFUNCTYPE(ctypes.c_int, *kinds)(_native_functions()[0][count])


class NativeRun:
    """Records in order; a call works through them. `words`: where the words of a run stand."""

    __slots__ = ("_stream", "_table", "address", "call", "records")

    def __init__(self, stream: Stream, records: Sequence[Record], words: int = 0) -> None:
        self.records, self._stream = tuple(records), stream
        table: Array = np.zeros(_HEAD + WORDS * len(self.records), np.int64)
        table[:3] = stream.driver.addresses(CALLED), stream.handle, len(self.records)
        table[4:_HEAD] = words, HELD.ctypes.data
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
