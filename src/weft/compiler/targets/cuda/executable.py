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
from threading import RLock
from time import perf_counter_ns
from typing import Any
from weakref import finalize

import numpy as np

from weft.compiler.plan.launch import Sizes, Value, bytes_of, static_shape
from weft.compiler.plan.program_plan import ProgramPlan, read_sizes, symbols_of
from weft.compiler.targets.cuda.array import CudaArray, compute_stream
from weft.compiler.targets.cuda.binding import Binding
from weft.compiler.targets.cuda.code import Code
from weft.compiler.targets.cuda.device import Event, Stream
from weft.compiler.targets.cuda.faults import fault_pages
from weft.compiler.targets.cuda.graphs import ExecutableGraph, capture_graph
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
        inputs = [a if type(a) is CudaArray else upload_number(self.stream, a) for a in arrays]
        # the copy of a number of the host is shared by all programs, and stays as it is
        donated = [pair for pair in donated if type(arrays[pair[1]]) is CudaArray]
        with _lock:
            self.stream.device.make_current()
            sizes = read_sizes(self.plan.graph, inputs) if self._symbols else {}
            outputs = self._bind(sizes).run(inputs, donated, reused)
        if finished is not None:
            finished += outputs
        return outputs

    def _bind(self, sizes: Sizes) -> BoundProgram:
        key = tuple([sizes[name] for name in self._symbols])
        bound = self._bound.get(key)
        if bound is None:
            bound = self._bound[key] = BoundProgram(self, sizes)
            if len(self._bound) > BOUND:
                self._bound.popitem(last=False)
        else:
            self._bound.move_to_end(key)
        return bound

    def recycle(self, array: Array) -> None:
        """See `Executable`: the stream keeps memory by size, whoever had it."""

    def share_memory(self) -> None:
        """See `Executable`: all programs of a card take memory from its stream for each run."""

    def release(self) -> None:
        """See `Executable`."""
        with _lock:
            self._bound.clear()
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
    """A program for one set of sizes."""

    def __init__(self, program: CudaExecutable, sizes: Sizes) -> None:
        self.plan, self.stream, self.sizes = program.plan, program.stream, sizes
        self._constants = program._constants
        taken: list[int] = []
        pages = fault_pages(program.ordinal)

        def cell_of(node: Any) -> int:
            taken.append(pages.take(node))
            return taken[-1]

        self.binding = Binding(self.plan, sizes, program.code, self.stream, cell_of)
        finalize(self, pages.give, taken).atexit = False
        self._checks = bool(taken)
        self._pages = pages
        self._describe_outputs()
        spare = len(self.binding.cells) - 1  # inputs that no launch reads have no slot
        slots = [self.plan.slots.get(variable, spare) for variable in self.plan.graph.inputs]
        self._input_slots = np.array(slots, np.int64)
        self._repeats: OrderedDict[bytes, int | ExecutableGraph] = OrderedDict()
        """By the bytes of all cells: how often they were seen, or the graph that was made."""
        self._constant_slots = [
            (binding, slot, self._constants.array(literal))
            for binding in self.binding.every_binding()
            for slot, literal in binding.literals
        ]
        for binding, slot, array in self._constant_slots:
            binding.cells[slot] = array.pointer

    def _describe_outputs(self) -> None:
        """Sort the outputs: those that launches write, and those that lie where others do."""
        plan, sizes = self.plan, self.sizes
        inputs = {variable: place for place, variable in enumerate(plan.graph.inputs)}
        written: dict[Value, int] = {}
        self._own: list[tuple[int, Any, tuple[int, ...], int]] = []
        """Of outputs with memory of their own: position, dtype, shape and bytes."""
        self._shared: list[tuple[int, Any, tuple[int, ...], str, Any]] = []
        """Of the others: position, dtype, shape, and which input, output or constant they are."""
        self._writer: dict[int, int] = {}
        """For each output the one whose memory it lies in."""
        slots: list[int] = []
        for position, atom in enumerate(plan.graph.outputs):
            root = plan.root(atom)
            dtype, shape = atom.type.dtype.numpy, static_shape(atom.type.shape, sizes)
            if root in inputs:
                self._shared.append((position, dtype, shape, "input", inputs[root]))
            elif isinstance(root, Literal):
                constant = self._constants.array(root)
                self._shared.append((position, dtype, shape, "constant", constant))
            elif root in written:
                self._shared.append((position, dtype, shape, "output", written[root]))
                self._writer[position] = written[root]
            else:
                written[root] = self._writer[position] = position
                self._own.append((position, dtype, shape, bytes_of(atom.type, sizes)))
                slots.append(plan.slots[root])
        self._own_slots = np.array(slots, np.int64)

    def run(
        self,
        inputs: list[CudaArray],
        donated: Sequence[Donation],
        reused: Sequence[Reuse],
    ) -> list[CudaArray]:
        """The outputs, as soon as all launches are on the stream."""
        if self._checks:
            self._pages.raise_first()
        stream, cells = self.stream, self.binding.cells
        if inputs:
            cells[self._input_slots] = [array.pointer for array in inputs]
        given = {self._writer[output]: inputs[place].memory for output, place in donated}
        for output, spare in reused:
            array: Any = spare
            given[output] = array.memory
        outputs: list[Any] = [None] * len(self.plan.graph.outputs)
        pointers: list[int] = []
        for position, dtype, shape, size in self._own:
            memory = given.get(position) if given else None
            output_array = CudaArray(memory or stream.allocate(size), dtype, shape)
            outputs[position] = output_array
            pointers.append(output_array.pointer)
        if pointers:
            cells[self._own_slots] = pointers
        for position, dtype, shape, kind, which in self._shared:
            held = {"input": inputs, "output": outputs}
            base = which if kind == "constant" else held[kind][which]
            outputs[position] = base.view(shape, dtype)
        required = self.binding.required_bytes
        arena = stream.allocate(required) if required else None
        self.binding.place(0 if arena is None else arena.pointer)
        self._launch()
        return outputs

    def _launch(self) -> None:
        binding, stream = self.binding, self.stream
        if OBSERVERS:
            self._launch_observed()
            return
        if not binding.is_static or binding.count < FEW_LAUNCHES:
            binding.launch()
            return
        key = binding.addresses()
        known = self._repeats.get(key, 0)
        if isinstance(known, ExecutableGraph):
            self._repeats.move_to_end(key)
            known(stream)
            return
        self._repeats[key] = known + 1
        if known < REPEATED:
            binding.launch()
        else:
            self._repeats[key] = graph = self._capture()
            graph(stream)
        while len(self._repeats) > GRAPHS:
            self._repeats.popitem(last=False)

    def _capture(self) -> ExecutableGraph:
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
