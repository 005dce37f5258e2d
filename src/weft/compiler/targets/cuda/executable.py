"""What runs a plan on a card: its launches bound to addresses once for each set of sizes.

A kernel's parameters are cells of one table: an address for each value of the plan, and numbers
that depend on sizes. A run writes the addresses of its inputs, outputs and memory into the cells
and puts the launches on the stream; what repeats with the same addresses becomes a CUDA graph, one
call for all launches. The host waits only where control flow or a reference needs values.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import pairwise
from struct import Struct
from threading import RLock
from time import perf_counter_ns
from typing import Any
from weakref import finalize

import numpy as np

from weft.compiler.plan.launch import Sizes, Value, static_shape
from weft.compiler.plan.program_plan import ProgramPlan, read_sizes, symbols_of
from weft.compiler.targets.cuda.array import (
    ArrayKind,
    CudaArray,
    array_kind,
    compute_stream,
    new_array,
)
from weft.compiler.targets.cuda.binding import Binding
from weft.compiler.targets.cuda.code import Code
from weft.compiler.targets.cuda.device import Event, Memory, Stream, rounded_size
from weft.compiler.targets.cuda.faults import fault_pages
from weft.compiler.targets.cuda.graphs import ExecutableGraph, capture_graph
from weft.compiler.targets.cuda.launcher import FAULT, NativeRun, check_fault, set_cell
from weft.compiler.targets.target import Donation, Observer, Reuse, Span
from weft.core.forks import wait_at_fork
from weft.ir.graph import Literal

Array = Any
BOUND = 16
"""How many sets of sizes a program keeps its launches for."""
GRAPHS = 4
"""How many CUDA graphs are kept for one set of sizes, each for some addresses."""
REPEATED = 1
"""Runs with the same addresses after which a graph is made of the next."""
FEW_LAUNCHES = 3
"""A program of fewer launches gains nothing by a graph."""
SMALL = 16
"""Bytes of numbers from the host up to which their copy on the card is kept."""
OBSERVERS: list[Observer] = []
"""What is told of every run; see `watched_launches`."""
_lock = RLock()
"""Cells are written, and launches put on the stream, by one thread at a time."""
wait_at_fork(_lock)


@contextmanager
def watched_launches(observe: Observer) -> Iterator[None]:
    """See `Target`: inside, every launch is timed by events of the card."""
    OBSERVERS.append(observe)
    try:
        yield
    finally:
        OBSERVERS.remove(observe)


class CudaExecutable:
    """A plan on one card."""

    def __init__(self, plan: ProgramPlan, ordinal: int) -> None:
        self.plan, self.ordinal = plan, ordinal
        self.stream: Stream = compute_stream(ordinal)
        self.stream.device.make_current()
        self.code = Code(plan.kernels, self.stream.device)
        self._constants = Constants(self.stream)
        self._symbols = symbols_of(plan.graph)
        self._bound: OrderedDict[tuple[int, ...], BoundProgram] = OrderedDict()
        self._by_kinds: dict[tuple[ArrayKind, ...], BoundProgram] = {}
        """The same by the kinds of inputs, where sizes depend on them."""

    @property
    def donations(self) -> Mapping[int, tuple[int, ...]]:
        """See `Executable`."""
        return self.plan.donations

    @property
    def settled_outputs(self) -> Collection[int]:
        """See `Executable`."""
        return self.plan.settled_outputs

    def run(
        self,
        arrays: Sequence[Array],
        donated: Sequence[Donation] = (),
        finished: list[Array] | None = None,
        reused: Sequence[Reuse] = (),
    ) -> list[Array]:
        """See `Executable`; inputs of the host are copied to the card first."""
        inputs: list[Any] = [
            a if type(a) is CudaArray else upload_number(self.stream, a) for a in arrays
        ]
        if donated:  # the copy of a number of the host is shared by all programs, and stays
            donated = [pair for pair in donated if type(arrays[pair[1]]) is CudaArray]
        with _lock:
            self.stream.device.make_current()
            bound = self._by_kinds.get(tuple([a.kind for a in inputs]) if self._symbols else ())
            if bound is None:
                bound = self._bind(inputs)
            outputs = bound.run(inputs, donated, reused)
        if finished is not None:
            finished += outputs
        return outputs

    def _bind(self, inputs: Sequence[Any]) -> BoundProgram:
        """The program for the sizes of some inputs, which are then known by their kinds."""
        sizes = read_sizes(self.plan.graph, inputs) if self._symbols else {}
        key = tuple([sizes[name] for name in self._symbols])
        bound = self._bound.get(key)
        if bound is None:
            bound = self._bound[key] = BoundProgram(self, sizes)
            if len(self._bound) > BOUND:
                self._bound.popitem(last=False)
                self._by_kinds.clear()
        else:
            self._bound.move_to_end(key)
        if len(self._by_kinds) >= BOUND:
            self._by_kinds.clear()
        self._by_kinds[tuple([a.kind for a in inputs]) if self._symbols else ()] = bound
        return bound

    def recycle(self, array: Array) -> None:
        """See `Executable`: the stream keeps memory by size, whoever had it."""

    def share_memory(self) -> None:
        """See `Executable`: all programs of a card take memory from its stream for each run."""

    def release(self) -> None:
        """See `Executable`."""
        with _lock:
            self._bound.clear()
            self._by_kinds.clear()
            self.stream.arena.release()


class Constants:
    """The constants of a program on the card."""

    def __init__(self, stream: Stream) -> None:
        self._stream = stream
        self._memory: dict[int, tuple[Literal, CudaArray]] = {}

    def array(self, literal: Literal) -> CudaArray:
        """A constant, copied to the card once."""
        known = self._memory.get(id(literal))
        if known is None:
            value = np.ascontiguousarray(literal.value)
            memory = self._stream.allocate(value.nbytes)
            self._stream.upload(memory, value)
            known = literal, CudaArray(memory, value.dtype, value.shape)
            self._memory[id(literal)] = known
        return known[1]


_numbers: OrderedDict[tuple[int, Any, tuple[int, ...], bytes], CudaArray] = OrderedDict()
"""Single numbers of the host that are on a card already."""
NUMBERS = 1024
"""How many of them are kept."""


def upload_number(stream: Stream, array: np.ndarray[Any, Any]) -> CudaArray:
    """An array of the host on the card; single numbers are copied once."""
    if array.nbytes > SMALL:
        return _upload(stream, array)
    key = stream.device.ordinal, array.dtype, array.shape, array.tobytes()
    with _lock:
        known = _numbers.get(key)
        if known is None:
            known = _numbers[key] = _upload(stream, array)
            if len(_numbers) > NUMBERS:
                _numbers.popitem(last=False)
    return known


def _upload(stream: Stream, array: np.ndarray[Any, Any]) -> CudaArray:
    stream.device.make_current()
    memory = stream.allocate(array.nbytes)
    stream.upload(memory, array)
    return CudaArray(memory, array.dtype, array.shape)


class BoundProgram:
    """A program for one set of sizes.

    The addresses of inputs, of outputs and of a run's memory are the words that a run is given; all
    cells follow from them. So they are the key of a graph, and where all launches are records, one
    native call writes the cells and puts the launches on the stream.
    """

    def __init__(self, program: CudaExecutable, sizes: Sizes) -> None:
        self.plan, self.stream, self.sizes = program.plan, program.stream, sizes
        self._constants, self._ordinal = program._constants, program.ordinal
        taken: list[int] = []
        self._pages = pages = fault_pages(program.ordinal)

        def cell_of(node: Any) -> int:
            taken.append(pages.take(node))
            return taken[-1]

        given = self.plan, sizes, program.code, self.stream, cell_of
        self.binding = Binding(*given, is_outer=True)
        finalize(self, pages.give, taken).atexit = False
        self._checks = NativeRun(self.stream, [check_fault(cell) for cell in taken])
        self._describe_outputs()
        spare = len(self.binding.cells) - 1  # inputs that no launch reads have no slot
        slots = [self.plan.slots.get(variable, spare) for variable in self.plan.graph.inputs]
        self._input_slots = np.array(slots, np.int64)
        self._repeats: OrderedDict[bytes, int | ExecutableGraph] = OrderedDict()
        """By the words of a run: how often they were seen, or the graph that was made."""
        for binding in self.binding.every_binding():
            for slot, literal in binding.literals:
                binding.cells[slot] = self._constants.array(literal).pointer
        self._required = self.binding.required_bytes
        self._required_size = rounded_size(self._required)
        self._outputs = len(self.plan.graph.outputs)
        count = len(slots) + len(self._own) + bool(self._required)
        self._pack = Struct(f"{count}Q").pack
        self._words: Any = np.zeros(max(1, count), np.uint64)
        self._view = self._words.data.cast("B")[: 8 * count]
        self._native = self._native_run(slots)
        self._may_repeat = self.binding.is_static and self.binding.count >= FEW_LAUNCHES

    def _native_run(self, input_slots: Sequence[int]) -> NativeRun | None:
        """The whole run as records; None where the host decides something in between."""
        merged, words = self.binding.merged, self._words.ctypes.data
        if len(merged) > 1 or not all(isinstance(run, NativeRun) for run in merged):
            return None
        slots = [*input_slots, *self._own_slots.tolist()]
        records = list(self._checks.records)
        records += [set_cell(self.binding.cell_at(s), words + 8 * k) for k, s in enumerate(slots)]
        if self._required:
            records += self.binding.placement_records(words + 8 * len(slots))
        launches = [record for run in merged for record in run.records]  # type: ignore[attr-defined]
        return NativeRun(self.stream, [*records, *launches])

    def _describe_outputs(self) -> None:
        """Sort the outputs: those that launches write, and those that lie where others do."""
        plan, sizes = self.plan, self.sizes
        inputs = {variable: place for place, variable in enumerate(plan.graph.inputs)}
        written: dict[Value, int] = {}
        self._own: list[tuple[int, ArrayKind, int]] = []
        """Of outputs with memory of their own: position, kind and size in memory."""
        self._shared: list[tuple[int, ArrayKind, str, Any]] = []
        """Of the others: position, kind, and which input, output or constant they are."""
        self._writer: dict[int, int] = {}
        """For each output the one whose memory it lies in."""
        slots: list[int] = []
        for position, atom in enumerate(plan.graph.outputs):
            root = plan.root(atom)
            shape = static_shape(atom.type.shape, sizes)
            kind = array_kind(self._ordinal, atom.type.dtype.numpy, shape)
            if root in inputs:
                self._shared.append((position, kind, "input", inputs[root]))
            elif isinstance(root, Literal):
                constant = self._constants.array(root)
                self._shared.append((position, kind, "constant", constant))
            elif root in written:
                self._shared.append((position, kind, "output", written[root]))
                self._writer[position] = written[root]
            else:
                written[root] = self._writer[position] = position
                self._own.append((position, kind, rounded_size(kind.nbytes)))
                slots.append(plan.slots[root])
        self._own_slots = np.array(slots, np.int64)

    def run(
        self,
        inputs: list[CudaArray],
        donated: Sequence[Donation],
        reused: Sequence[Reuse],
    ) -> list[CudaArray]:
        """The outputs, as soon as all launches are on the stream."""
        stream = self.stream
        words = [array.pointer for array in inputs]
        outputs: list[Any] = [None] * self._outputs
        given: dict[int, Any] = {}
        if donated:
            given = {self._writer[output]: inputs[place] for output, place in donated}
        if reused:
            given.update(reused)
        for position, kind, size in self._own:
            array = given.get(position) if given else None
            if array is None:
                array = new_array(Memory(stream, kind.nbytes, size), kind)
            elif array.kind is not kind or array.base is not None:
                array = new_array(array.memory, kind)
            outputs[position] = array
            words.append(array.pointer)
        for position, kind, where, which in self._shared:
            held = {"input": inputs, "output": outputs}
            base = which if where == "constant" else held[where][which]
            outputs[position] = new_array(base.memory, kind, base.base or base)
        if self._required:
            memory = Memory(stream, self._required, self._required_size)
            words.append(memory.pointer)
        self._launch(words)
        return outputs

    def _launch(self, words: list[int]) -> None:
        if OBSERVERS:
            self._raise_faults()
            self._write_cells(words)
            self._launch_observed()
            return
        key = self._pack(*words)
        if self._may_repeat and self._launch_graph(key, words):
            return
        native = self._native
        if native is None:
            self._raise_faults()
            self._write_cells(words)
            self.binding.launch()
            return
        self._view[:] = key
        code = native.call(native.address)
        while code == FAULT:
            self._pages.raise_first()
            code = native.call(native.address)
        if code:
            raise native.error(code)

    def _raise_faults(self) -> None:
        """Raise what kernels of earlier runs of this program have reported."""
        if self._checks.records and self._checks.call(self._checks.address):
            self._pages.raise_first()

    def _write_cells(self, words: list[int]) -> None:
        """Write the addresses of values to their cells."""
        inputs, cells = len(self._input_slots), self.binding.cells
        cells[self._input_slots] = words[:inputs]
        cells[self._own_slots] = words[inputs : inputs + len(self._own)]
        self.binding.place(words[-1] if self._required else 0)

    def _launch_graph(self, key: bytes, words: list[int]) -> bool:
        """Launch the graph of what was seen before, made when it is seen again; False for none."""
        known = self._repeats.get(key, 0)
        if isinstance(known, ExecutableGraph):
            self._raise_faults()
            self._repeats.move_to_end(key)
            known(self.stream)
            return True
        self._repeats[key] = known + 1
        if known >= REPEATED:
            self._raise_faults()
            self._write_cells(words)
            self._repeats[key] = graph = self._capture()
            graph(self.stream)
        while len(self._repeats) > GRAPHS:
            self._repeats.popitem(last=False)
        return known >= REPEATED

    def _capture(self) -> ExecutableGraph:
        """The graph of a run whose addresses are in the cells."""
        branching = self.binding.branching_graph()
        if branching is not None:
            return branching.instantiate()
        with capture_graph(self.stream) as graphs:
            self.binding.launch()
        return graphs[0].instantiate()

    def _launch_observed(self) -> None:
        device = self.stream.device
        start = Event(device)
        start.record(self.stream)
        start.synchronize()
        zero = perf_counter_ns()
        marks = [start]
        for _ in self.binding.steps():
            mark = Event(device)
            mark.record(self.stream)
            marks.append(mark)
        self.stream.synchronize()
        times = [zero + int(mark.milliseconds_since(start) * 1e6) for mark in marks]
        spans: list[Span] = list(pairwise(times))
        for observe in OBSERVERS:
            observe(self.plan, self.sizes, spans)
