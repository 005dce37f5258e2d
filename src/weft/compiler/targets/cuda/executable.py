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
from functools import partial
from itertools import pairwise
from time import perf_counter_ns
from typing import Any

import numpy as np

from weft.compiler.plan.launch import Sizes
from weft.compiler.plan.program_plan import ProgramPlan, read_sizes, symbols_of
from weft.compiler.targets.cuda.array import ArrayKind, CudaArray, compute_stream, upload_array
from weft.compiler.targets.cuda.binding import Binding
from weft.compiler.targets.cuda.bound_program import (
    OBSERVERS,
    BoundProgram,
    Constants,
    Slow,
    program_interface,
)
from weft.compiler.targets.cuda.code import Code
from weft.compiler.targets.cuda.device import RUN_LOCK, Event, Stream
from weft.compiler.targets.cuda.faults import fault_pages
from weft.compiler.targets.target import Donation, Observer, Reuse, Span
from weft.ir.graph import GraphNode

Array = Any
BOUND = 16
"""How many sets of sizes a program keeps its launches for."""
SMALL = 16
"""Bytes of numbers from the host up to which their copy on the card is kept."""


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
        with RUN_LOCK:
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
            bound = self._bound[key] = self._bind_sizes(sizes)
            if len(self._bound) > BOUND:
                self._bound.popitem(last=False)
                self._by_kinds.clear()
        else:
            self._bound.move_to_end(key)
        if len(self._by_kinds) >= BOUND:
            self._by_kinds.clear()
        self._by_kinds[tuple([a.kind for a in inputs]) if self._symbols else ()] = bound
        return bound

    def _bind_sizes(self, sizes: Sizes) -> BoundProgram:
        pages, taken = fault_pages(self.ordinal), list[int]()

        def cell_of(node: GraphNode) -> int:
            taken.append(pages.take(lambda: node))
            return taken[-1]

        binding = Binding(self.plan, sizes, self.code, self.stream, cell_of, is_outer=True)
        plan, interface = self.plan, program_interface(self.plan, sizes)
        given = self.stream, binding, interface, self._constants, (pages, taken)
        return BoundProgram(*given, partial(_launch_observed, binding), lambda: plan)

    def quick_call(self, arrays: Sequence[Any]) -> Slow | None:
        """What runs the program on arrays of the same kinds with little work; None for no such.

        See `BoundProgram`. It is there after a run on such arrays.
        """
        if any(type(array) is not CudaArray for array in arrays):
            return None
        bound = self._by_kinds.get(tuple([a.kind for a in arrays]) if self._symbols else ())
        return None if bound is None else bound.quick_call(self.run)

    def bound_statically(self) -> BoundProgram | None:
        """The program with its sizes; None where they depend on inputs."""
        return None if self._symbols else self._by_kinds.get(()) or self._bind([])

    def recycle(self, array: Array) -> None:
        """See `Executable`: the stream keeps memory by size, whoever had it."""

    def share_memory(self) -> None:
        """See `Executable`: all programs of a card take memory from its stream for each run."""

    def release(self) -> None:
        """See `Executable`."""
        with RUN_LOCK:
            self._bound.clear()
            self._by_kinds.clear()
            self.stream.arena.release()


def _launch_observed(binding: Binding) -> None:
    """Put the launches on the stream one by one, with an event behind each."""
    stream = binding.stream
    start = Event(stream.device)
    start.record(stream)
    start.synchronize()
    zero = perf_counter_ns()
    marks = [start]
    for _ in binding.steps():
        mark = Event(stream.device)
        mark.record(stream)
        marks.append(mark)
    stream.synchronize()
    times = [zero + int(mark.milliseconds_since(start) * 1e6) for mark in marks]
    spans: list[Span] = list(pairwise(times))
    for observe in OBSERVERS:
        observe(binding.plan, binding.sizes, spans)


_numbers: OrderedDict[tuple[int, Any, tuple[int, ...], bytes], CudaArray] = OrderedDict()
"""Single numbers of the host that are on a card already."""
NUMBERS = 1024
"""How many of them are kept."""


def upload_number(stream: Stream, array: np.ndarray[Any, Any]) -> CudaArray:
    """An array of the host on the card; single numbers are copied once."""
    if array.nbytes > SMALL:
        return upload_array(stream, array)
    key = stream.device.ordinal, array.dtype, array.shape, array.tobytes()
    with RUN_LOCK:
        known = _numbers.get(key)
        if known is None:
            known = _numbers[key] = upload_array(stream, array)
            if len(_numbers) > NUMBERS:
                _numbers.popitem(last=False)
    return known
