"""Programs on disk: launches as records, the memory they refer to, and the code of their kernels.

A program whose launches are all records is nothing but words: records, cells, tables of parameters
and arguments of tensor maps, which refer to each other by address. They are stored as one block, in
which addresses count from its beginning, with the places that hold addresses. What is elsewhere is
numbered: functions, cells of faults, counters. Another process copies the block, adds its address
where one stands, loads the code, and runs: no pass, no lowering, no plan, no binding.

A program of symbolic sizes, one with control flow, or one that calls back into Python is compiled
from its graph each time. What is asked beside running it (the plan, times of launches, which line
has reported a fault) is answered by the program compiled from the graph, when it is asked.
"""

from __future__ import annotations

import ctypes
import json
import struct
from bisect import bisect_right
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import cached_property, partial
from typing import Any

import llvmlite
import numpy as np

from weft.compiler.plan.program_plan import ProgramPlan
from weft.compiler.targets.cuda.array import CudaArray, compute_stream
from weft.compiler.targets.cuda.binding import Binding, Region, Touched, branching_graph
from weft.compiler.targets.cuda.bound_program import (
    OBSERVERS,
    BoundProgram,
    Constants,
    Interface,
    OutputPlace,
    Slow,
)
from weft.compiler.targets.cuda.code import load_modules
from weft.compiler.targets.cuda.device import RUN_LOCK, Device, Stream, device
from weft.compiler.targets.cuda.executable import CudaExecutable, upload_number
from weft.compiler.targets.cuda.faults import fault_pages
from weft.compiler.targets.cuda.graphs import Graph
from weft.compiler.targets.cuda.launcher import (
    COPY,
    ENCODE,
    ENCODE_WINDOWS,
    FILL,
    LAUNCH,
    SET,
    WORDS,
    NativeRun,
    Record,
    set_cell,
)
from weft.compiler.targets.cuda.machine import card
from weft.compiler.targets.cuda.modules import disk
from weft.compiler.targets.cuda.parameters import counters_address
from weft.compiler.targets.target import Donation, Executable, Reuse
from weft.core.dtypes import BY_NUMPY, as_dtype
from weft.core.records import frozen
from weft.ir.graph import GraphNode, Literal
from weft.runtime.cache import entry_key
from weft.runtime.compile_queue import BACKGROUND
from weft.runtime.stamps import program_sources

Array = np.ndarray[Any, Any]
LARGEST = 64 << 20
"""The most bytes that are stored for one program."""
_ALIGNMENT = 64
"""What the driver expects the addresses of tensor maps to be multiples of."""
_WORD = 8
_LENGTH = struct.Struct("<Q")
_POINTERS = {
    SET: (1, 2), LAUNCH: (5,), COPY: (1, 2), FILL: (1,), ENCODE: (1, 2, 3),
    ENCODE_WINDOWS: (1, 2, 3),
}  # fmt: skip
"""Which words of a record are addresses in the block, by its kind."""


def stored_program(digest: str, ordinal: int, compiled: Callable[[], Executable]) -> Executable:
    """The program of a graph's digest: found on disk, or compiled and stored for others."""
    key = entry_key(digest.encode(), "cuda program", *_environment(device(ordinal)))
    known = thaw_program(disk().get(key), ordinal, compiled)
    if known is not None:
        return known
    made = compiled()
    if isinstance(made, CudaExecutable):
        data = freeze_program(made)
        if data is not None:
            BACKGROUND.submit(lambda: disk().put(key, data), later=True)
    return made


def _environment(place: Device) -> tuple[str, ...]:
    """What programs depend on beside their graphs."""
    version = "{}.{} {}".format(*place.capability, place.driver.version)
    card_text = f"{place.name} {place.multiprocessors}"
    return program_sources(), card().processor, llvmlite.__version__, version, card_text


# --- storing -----------------------------------------------------------------------------------


def freeze_program(program: CudaExecutable) -> bytes | None:
    """A program as bytes; None where it is not the kind that is stored."""
    bound = program.bound_statically()
    binding = None if bound is None else bound.launches
    if bound is None or not isinstance(binding, Binding) or not binding.is_static:
        return None
    if binding.inner or binding.all_records() is None:
        return None
    image = _image(binding)
    functions = [binding.functions[handle] for handle in image.functions]
    codes = [*dict.fromkeys(each.module.code for each in functions)]
    literals = [literal for _, _, literal in binding.constant_cells()]
    constants = [np.ascontiguousarray(x.value) for x in (*literals, *bound.interface.constants)]
    slots, offsets = binding.value_places()
    head = {
        "donations": {str(k): v for k, v in program.donations.items()},
        "settled": [*program.settled_outputs],
        "inputs": bound.interface.inputs,
        "outputs": [_output_words(place) for place in bound.interface.outputs],
        "constants": [_array_words(array) for array in constants],
        "constant slots": [slot for _, slot, _ in binding.constant_cells()],
        "slots": slots, "offsets": offsets, "cells": len(binding.cells),
        "memory": [binding.peak, binding.workspace_bytes, binding.held_bytes, binding.count],
        "image": image.head,
        "functions": [[codes.index(f.module.code), f.name, f.shared] for f in functions],
        "touched": [_touched_words(each, program.ordinal) for each in binding.touched],
    }  # fmt: skip
    parts = [image.block, image.records.tobytes(), *codes, *[x.tobytes() for x in constants]]
    text = json.dumps({**head, "lengths": [*map(len, parts)], "codes": len(codes)}).encode()
    data = b"".join([_LENGTH.pack(len(text)), text, *parts])
    return data if len(data) <= LARGEST else None


@frozen
class Image:
    """The words of a program, with addresses that count from the beginning of the block."""

    block: bytes
    records: Array
    functions: list[int]
    """The handle of each function; records have their numbers."""
    head: dict[str, Any]


def _image(binding: Binding) -> Image:
    regions = sorted(binding.memory_regions(), key=lambda region: region.start)
    starts, places, size = [region.start for region in regions], list[int](), 0
    for region in regions:
        places.append(size)
        size += -(-region.size // _ALIGNMENT) * _ALIGNMENT

    def locate(address: int) -> int:
        number = bisect_right(starts, address) - 1
        within = address - starts[number]
        assert 0 <= within < regions[number].size, "a record refers to memory that is not known"
        return places[number] + within

    block, inward = bytearray(size), list[int]()
    for region, place in zip(regions, places, strict=True):
        block[place : place + region.size] = _region_bytes(region)
        for word in region.pointers:
            at = place + _WORD * word
            address = int.from_bytes(block[at : at + _WORD], "little")
            if address:  # a table without parameters has one word all the same
                block[at : at + _WORD] = locate(address).to_bytes(_WORD, "little")
                inward.append(at // _WORD)
    launches = binding.launch_records()
    records, functions = _relocated_records([r for each in launches for r in each], locate)
    head = {
        "inward": inward,
        "launches": [len(each) for each in launches],
        "cells at": locate(int(binding.cells.ctypes.data)),
        "workspace": [[at, locate(cell)] for at, cell in binding.workspace_places().items()],
        "faults": [locate(cell) // _WORD for cell in binding.fault_words],
        "counters": [[locate(c) // _WORD, at] for c, at in binding.counter_words.items()],
    }
    return Image(bytes(block), records, functions, head)


def _region_bytes(region: Region) -> bytes:
    if region.is_cleared:
        return b"\xff" * region.size
    return ctypes.string_at(region.start, region.size)


def _relocated_records(
    records: Sequence[Record], locate: Callable[[int], int]
) -> tuple[Array, list[int]]:
    """Records whose addresses count from the block, and the functions that they number."""
    table: Array = np.zeros((len(records), WORDS), np.int64)
    functions: dict[int, int] = {}
    for row, record in zip(table, records, strict=True):
        row[: len(record)] = record
        for word in _POINTERS[record[0]]:
            row[word] = locate(record[word])
        if record[0] == LAUNCH:
            row[1] = functions.setdefault(record[1], len(functions))
    return table, [*functions]


def _output_words(place: OutputPlace) -> list[Any]:
    return [place.where, place.which, BY_NUMPY[place.dtype].name, list(place.shape)]


def _array_words(array: Array) -> list[Any]:
    return [BY_NUMPY[array.dtype].name, list(array.shape)]


def _touched_words(touched: Touched, ordinal: int) -> list[Any]:
    slots = [[slot, size, written] for slot, (size, written) in touched.slots.items()]
    first, end = touched.counters
    base = counters_address(ordinal) if end else 0
    return [slots, touched.workspace, [first - base, end - base]]


# --- running -----------------------------------------------------------------------------------


class StoredLaunches:
    """Launches as they were stored, at the addresses of this process; see `Launches`."""

    is_static = True

    def __init__(
        self, stream: Stream, head: Mapping[str, Any], parts: Sequence[bytes], faults: list[int]
    ) -> None:
        self._stream, image = stream, head["image"]
        self._peak, self._workspace_bytes, self._held_bytes, self.count = head["memory"]
        self._memory = _aligned_copy(parts[0])
        base = int(self._memory.ctypes.data)
        words = self._memory.view(np.int64)
        words[image["inward"]] += base
        words[image["faults"]] = faults
        for word, at in image["counters"]:
            words[word] = counters_address(stream.device.ordinal) + at
        start = image["cells at"] // _WORD
        self.cells = words[start : start + head["cells"]].view(np.uint64)
        self._slots = np.array(head["slots"], np.int64)
        self._offsets = np.array(head["offsets"], np.uint64)
        self._workspace_cells = [(at, base + cell) for at, cell in image["workspace"]]
        codes = parts[2 : 2 + head["codes"]]
        self._functions = load_modules(stream.device, codes, head["functions"])
        handles = np.array([function.handle for function in self._functions], np.int64)
        self._records = _records_at(parts[1], base, handles)
        self._launches = image["launches"]
        self._touched = head["touched"]
        self._workspace = 0

    @property
    def required_bytes(self) -> int:
        """See `Launches`."""
        total: int = self._peak + self._workspace_bytes + self._held_bytes
        return total

    def constant_cells(self) -> Sequence[tuple[Array, int, Literal]]:
        """See `Launches`: they are written when the program is made."""
        return ()

    def cell_at(self, slot: int) -> int:
        """See `Launches`."""
        return int(self.cells.ctypes.data) + _WORD * slot

    def place(self, base: int) -> None:
        """See `Launches`."""
        self.cells[self._slots] = self._offsets + np.uint64(base)
        self._workspace = base + self._peak
        for at, cell in self._workspace_cells:
            ctypes.c_uint64.from_address(cell).value = self._workspace + at

    def placement_records(self, base: int) -> list[Record]:
        """See `Launches`."""
        pairs = zip(self._slots.tolist(), self._offsets.tolist(), strict=True)
        values = [set_cell(self.cell_at(slot), base, offset) for slot, offset in pairs]
        return values + [
            set_cell(cell, base, self._peak + at) for at, cell in self._workspace_cells
        ]

    def all_records(self) -> Sequence[Record]:
        """See `Launches`."""
        return self._records

    @cached_property
    def _run(self) -> NativeRun:
        return NativeRun(self._stream, self._records)

    def launch(self) -> None:
        """See `Launches`."""
        self._run()

    def branching_graph(self) -> Graph | None:
        """See `Launches`."""
        base = counters_address(self._stream.device.ordinal)
        touched = [
            Touched(
                {slot: (size, written) for slot, size, written in slots},
                tuple(workspace),
                (base + first, base + end) if end else (0, 0),
            )
            for slots, workspace, (first, end) in self._touched
        ]
        ends = np.cumsum(self._launches).tolist()
        launches = [
            self._records[end - count : end]
            for end, count in zip(ends, self._launches, strict=True)
        ]
        return branching_graph(self._stream, launches, touched, self.cells, self._workspace)


def _aligned_copy(data: bytes) -> Array:
    room: Array = np.zeros(len(data) + _ALIGNMENT, np.uint8)
    skipped = -int(room.ctypes.data) % _ALIGNMENT
    block = room[skipped : skipped + len(data)]
    block[:] = np.frombuffer(data, np.uint8)
    return block


def _records_at(data: bytes, base: int, handles: Array) -> list[Record]:
    table = np.frombuffer(data, np.int64).reshape(-1, WORDS).copy()
    for kind, pointers in _POINTERS.items():
        rows = table[:, 0] == kind
        for word in pointers:
            table[rows, word] += base
    launches = table[:, 0] == LAUNCH
    table[launches, 1] = handles[table[launches, 1]]
    lengths = {LAUNCH: 6}
    return [tuple(row[: lengths.get(row[0], 4)]) for row in table.tolist()]


class StoredExecutable:
    """A program that another process has compiled, or this one before; see `Executable`."""

    def __init__(
        self,
        ordinal: int,
        head: Mapping[str, Any],
        parts: Sequence[bytes],
        compiled: Callable[[], Executable],
    ) -> None:
        self.ordinal, self._compiled = ordinal, compiled
        self.stream = compute_stream(ordinal)
        self.stream.device.make_current()
        self.donations: Mapping[int, tuple[int, ...]] = {
            int(output): tuple(inputs) for output, inputs in head["donations"].items()
        }
        self.settled_outputs: Collection[int] = tuple(head["settled"])
        self._bound = self._bind(head, parts)

    def _bind(self, head: Mapping[str, Any], parts: Sequence[bytes]) -> BoundProgram:
        pages, compiled = fault_pages(self.ordinal), self._compiled
        count = len(head["image"]["faults"])
        faults = [pages.take(partial(_checked_node, compiled, n)) for n in range(count)]
        launches = StoredLaunches(self.stream, head, parts, faults)
        literals = [
            Literal(np.frombuffer(data, as_dtype(name).numpy).reshape(shape))
            for (name, shape), data in zip(
                head["constants"], parts[2 + head["codes"] :], strict=True
            )
        ]
        slots, constants = head["constant slots"], Constants(self.stream)
        for slot, literal in zip(slots, literals, strict=False):
            launches.cells[slot] = constants.array(literal).pointer
        outputs = [
            OutputPlace(where, which, as_dtype(name).numpy, tuple(shape))
            for where, which, name, shape in head["outputs"]
        ]
        interface = Interface(tuple(head["inputs"]), tuple(outputs), tuple(literals[len(slots) :]))
        given = self.stream, launches, interface, constants, (pages, faults)
        return BoundProgram(*given, _not_observed, lambda: _plan_of(compiled))

    @property
    def plan(self) -> ProgramPlan:
        """The plan, which is made anew."""
        return _plan_of(self._compiled)

    def run(
        self,
        arrays: Sequence[Any],
        donated: Sequence[Donation] = (),
        finished: list[Any] | None = None,
        reused: Sequence[Reuse] = (),
    ) -> list[Any]:
        """See `Executable`; who watches launches sees those of the program compiled anew."""
        if OBSERVERS:
            return self._compiled().run(arrays, donated, finished, reused)
        inputs: list[Any] = [
            a if type(a) is CudaArray else upload_number(self.stream, a) for a in arrays
        ]
        if donated:
            donated = [pair for pair in donated if type(arrays[pair[1]]) is CudaArray]
        with RUN_LOCK:
            self.stream.device.make_current()
            outputs: list[Any] = self._bound.run(inputs, donated, reused)
        if finished is not None:
            finished += outputs
        return outputs

    def quick_call(self, arrays: Sequence[Any]) -> Slow | None:
        """See `CudaExecutable`."""
        if any(type(array) is not CudaArray for array in arrays):
            return None
        return self._bound.quick_call(self.run)

    def recycle(self, array: Any) -> None:
        """See `Executable`: the stream keeps memory by size, whoever had it."""

    def share_memory(self) -> None:
        """See `Executable`: all programs of a card take memory from its stream for each run."""

    def release(self) -> None:
        """See `Executable`."""
        with RUN_LOCK:
            self._bound.forget_graphs()
            self.stream.arena.release()


def _plan_of(compiled: Callable[[], Executable]) -> ProgramPlan:
    program = compiled()
    assert isinstance(program, CudaExecutable)
    return program.plan


def _not_observed() -> None:
    raise AssertionError("a stored program is compiled anew for those who watch it")


def _checked_node(compiled: Callable[[], Executable], number: int) -> GraphNode:
    """The node of a launch that reports faults, by its number among those of the program."""
    program = compiled()
    assert isinstance(program, CudaExecutable)
    bound = program.bound_statically()
    assert bound is not None
    return fault_pages(program.ordinal).node_at(bound.fault_cells[number])


def thaw_program(
    data: bytes | None, ordinal: int, compiled: Callable[[], Executable]
) -> StoredExecutable | None:
    """The program that was stored as bytes; None for no bytes."""
    if data is None:
        return None
    (size,) = _LENGTH.unpack_from(data)
    place = _LENGTH.size + size
    head = json.loads(data[_LENGTH.size : place])
    parts = []
    for length in head["lengths"]:
        parts.append(data[place : place + length])
        place += length
    return StoredExecutable(ordinal, head, parts, compiled)
