"""A program for one set of sizes on a card: what each run does before and after its launches.

The addresses of inputs, of outputs and of a run's memory are the words that a run is given; all
cells follow from them. So they are the key of a graph, and where all launches are records, one
native call writes the cells and puts the launches on the stream.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence
from operator import attrgetter
from struct import Struct
from typing import Any, Protocol
from weakref import finalize

import numpy as np

from weft.compiler.plan.launch import Sizes, Value, static_shape
from weft.compiler.plan.program_plan import ProgramPlan
from weft.compiler.targets.cuda.array import ArrayKind, CudaArray, array_kind, new_array
from weft.compiler.targets.cuda.device import (
    CURRENT,
    Memory,
    SizePool,
    Stream,
    hold_quick_calls,
    rounded_size,
    take_memory,
)
from weft.compiler.targets.cuda.driver import LAST_PROGRAM
from weft.compiler.targets.cuda.faults import FaultPages
from weft.compiler.targets.cuda.graphs import ExecutableGraph, Graph, capture_graph
from weft.compiler.targets.cuda.launcher import (
    FAULT,
    LONG,
    MOST_WORDS,
    NativeRun,
    Record,
    check_fault,
    set_cell,
    word_call,
)
from weft.compiler.targets.target import Donation, Observer, Reuse
from weft.core.records import frozen
from weft.ir.graph import Literal

Array = np.ndarray[Any, Any]
GRAPHS = 4
"""How many CUDA graphs are kept for one set of sizes, each for some addresses."""
REPEATED = 1
"""Runs with the same addresses after which a graph is made of the next."""
_NAMED = 6
"""How many operations are named where a kernel faults."""
FEW_LAUNCHES = 3
"""A program of fewer launches gains nothing by a graph."""
QUICK_LAUNCHES = 4
"""A program of more launches gains more by a graph than by a quick call."""
pointer_of = attrgetter("pointer")


Slow = Callable[[Sequence[CudaArray]], Sequence[CudaArray]]
"""Computes the outputs of a program."""
OBSERVERS: list[Observer] = []
"""What is told of every run; see `watched_launches`."""


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


@frozen
class OutputPlace:
    """Where an output lies: in memory of its own, or in that of an input, output or constant.

    which: the slot of memory of its own, or the position of the other.
    """

    where: str
    which: int
    dtype: np.dtype[Any]
    shape: tuple[int, ...]


@frozen
class Interface:
    """What a run knows of a program beside its launches."""

    inputs: tuple[int | None, ...]
    """The slot of each input; None for one that no launch reads."""
    outputs: tuple[OutputPlace, ...]
    constants: tuple[Literal, ...]
    """Those that are outputs."""


def program_interface(plan: ProgramPlan, sizes: Sizes) -> Interface:
    """The interface of a plan for some sizes."""
    inputs = {variable: place for place, variable in enumerate(plan.graph.inputs)}
    written: dict[Value, int] = {}
    constants: list[Literal] = []
    outputs: list[OutputPlace] = []
    for position, atom in enumerate(plan.graph.outputs):
        root = plan.root(atom)
        kind = atom.type.dtype.numpy, static_shape(atom.type.shape, sizes)
        if root in inputs:
            outputs.append(OutputPlace("input", inputs[root], *kind))
        elif isinstance(root, Literal):
            constants.append(root)
            outputs.append(OutputPlace("constant", len(constants) - 1, *kind))
        elif root in written:
            outputs.append(OutputPlace("output", written[root], *kind))
        else:
            written[root] = position
            outputs.append(OutputPlace("own", plan.slots[root], *kind))
    slots = tuple([plan.slots.get(variable) for variable in plan.graph.inputs])
    return Interface(slots, tuple(outputs), tuple(constants))


def program_text(plan: ProgramPlan) -> str:
    """What a plan computes, in a few words: its first operations, with the user's line of one."""
    nodes = [node for node in plan.graph.nodes if node.location is not None] or plan.graph.nodes
    names = [*dict.fromkeys(node.primitive.name for node in plan.graph.nodes)]
    more = "" if len(names) <= _NAMED else f" and {len(names) - _NAMED} more"
    at = f" at {nodes[0].location}" if nodes and nodes[0].location is not None else ""
    return f"{len(plan.launches)} launches of {', '.join(names[:_NAMED])}{more}{at}"


class Launches(Protocol):
    """The launches of a program, bound to cells: of a plan, or as they were stored."""

    cells: Array
    """The address of each value, by its slot; the last is for what nobody reads."""
    is_static: bool
    count: int

    @property
    def required_bytes(self) -> int:
        """The memory of a run."""

    def constant_cells(self) -> Sequence[tuple[Array, int, Literal]]:
        """Constants, with the cells and the slot that hold the address of each."""

    def cell_at(self, slot: int) -> int:
        """The address of the cell of a slot."""

    def place(self, base: int) -> None:
        """Say where the memory of the run is."""

    def placement_records(self, base: int) -> list[Record]:
        """What says the same natively: the memory of the run is at the address in a cell."""

    def all_records(self) -> Sequence[Record] | None:
        """All launches as records; None where the host decides something in between."""

    def launch(self) -> None:
        """Put all launches on the stream."""

    def branching_graph(self) -> Graph | None:
        """The launches with the order that their memory needs; None where they are not kernels."""


class BoundProgram:
    """A program for one set of sizes.

    faults: the cells in which launches report them. observed: what puts the launches on the stream
    while somebody watches them. plan: what is computed, for those who ask.
    """

    def __init__(
        self,
        stream: Stream,
        launches: Launches,
        interface: Interface,
        constants: Constants,
        faults: tuple[FaultPages, list[int]],
        observed: Callable[[], None],
        plan: Callable[[], ProgramPlan],
    ) -> None:
        self._described = lambda: program_text(plan())
        self.stream, self.launches, self.interface = stream, launches, interface
        self._constants, self._observed = constants, observed
        self._pages, self.fault_cells = faults
        finalize(self, self._pages.give, self.fault_cells).atexit = False
        self._checks = NativeRun(self.stream, [check_fault(cell) for cell in self.fault_cells])
        self._describe_outputs()
        spare = len(launches.cells) - 1  # inputs that no launch reads have no slot
        slots = [spare if slot is None else slot for slot in interface.inputs]
        self._input_slots = np.array(slots, np.int64)
        self._repeats: OrderedDict[bytes, int | ExecutableGraph] = OrderedDict()
        """By the words of a run: how often they were seen, or the graph that was made."""
        for cells, slot, literal in launches.constant_cells():
            cells[slot] = constants.array(literal).pointer
        self._required = launches.required_bytes
        self._required_pool = stream.arena.pool(rounded_size(self._required))
        self._outputs = len(interface.outputs)
        count = len(slots) + len(self._own) + bool(self._required)
        self._pack = Struct(f"{count}Q").pack
        self._words: Any = np.zeros(max(1, count), np.uint64)
        self._view = self._words.data.cast("B")[: 8 * count]
        self._native = self._native_run(slots)
        is_short = self._native is not None and len(self._native.records) < LONG
        self._word_call = word_call(count) if is_short and 0 < count <= MOST_WORDS else None
        self._may_repeat = launches.is_static and launches.count >= FEW_LAUNCHES

    def _native_run(self, input_slots: Sequence[int]) -> NativeRun | None:
        """The whole run as records; None where the host decides something in between."""
        launched, words = self.launches.all_records(), self._words.ctypes.data
        if launched is None:
            return None
        slots = [*input_slots, *self._own_slots.tolist()]
        records = list(self._checks.records)
        records += [set_cell(self.launches.cell_at(s), words + 8 * k) for k, s in enumerate(slots)]
        if self._required:
            records += self.launches.placement_records(words + 8 * len(slots))
        return NativeRun(self.stream, [*records, *launched], words)

    def _describe_outputs(self) -> None:
        """Sort the outputs: those that launches write, and those that lie where others do."""
        ordinal = self.stream.device.ordinal
        self._own: list[tuple[int, ArrayKind, SizePool]] = []
        """Of outputs with memory of their own: position, kind and where memory is taken."""
        self._shared: list[tuple[int, ArrayKind, str, Any]] = []
        """Of the others: position, kind, and which input, output or constant they are."""
        self._writer: dict[int, int] = {}
        """For each output the one whose memory it lies in."""
        slots: list[int] = []
        for position, place in enumerate(self.interface.outputs):
            kind = array_kind(ordinal, place.dtype, place.shape)
            if place.where == "own":
                self._writer[position] = position
                pool = self.stream.arena.pool(rounded_size(kind.nbytes))
                self._own.append((position, kind, pool))
                slots.append(place.which)
            elif place.where == "constant":
                constant = self._constants.array(self.interface.constants[place.which])
                self._shared.append((position, kind, "constant", constant))
            else:
                self._shared.append((position, kind, place.where, place.which))
                if place.where == "output":
                    self._writer[position] = place.which
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
        for position, kind, pool in self._own:
            array = given.get(position) if given else None
            if array is None:
                array = new_array(take_memory(stream, kind.nbytes, pool), kind)
            elif array.kind is not kind or array.base is not None:
                array = new_array(array.memory, kind)
            outputs[position] = array
            words.append(array.pointer)
        for position, kind, where, which in self._shared:
            held = {"input": inputs, "output": outputs}
            base = which if where == "constant" else held[where][which]
            outputs[position] = new_array(base.memory, kind, base.base or base)
        if self._required:
            memory = Memory(stream, self._required, self._required_pool)
            words.append(memory.pointer)
        self._launch(words)
        return outputs

    def _launch(self, words: list[int]) -> None:
        LAST_PROGRAM[0] = self._described
        if OBSERVERS:
            self._raise_faults()
            with hold_quick_calls():
                self._write_cells(words)
                self._observed()
            return
        key = self._pack(*words)
        if self._may_repeat and self._launch_graph(key, words):
            return
        native = self._native
        if native is None:
            self._raise_faults()
            self._write_cells(words)
            self.launches.launch()
            return
        code = self._call_native(key, words)
        while code == FAULT:
            self._pages.raise_first()
            code = self._call_native(key, words)
        if code:
            raise native.error(code)

    def _call_native(self, key: bytes, words: list[int]) -> int:
        """Write the words of a run and put its launches on the stream: the driver's result.

        What may be called without the lock (`quick_call`) writes words in the native call.
        """
        native = self._native
        assert native is not None
        if self._word_call is not None:
            return self._word_call(native.address, *words)
        self._view[:] = key
        return native.call(native.address)

    def quick_call(self, slow: Slow) -> Slow | None:
        """What computes the outputs of a program of few launches; None for other programs.

        Its inputs are arrays of the kinds that the program was bound for. All that changes from
        call to call is in one native call, which holds Python's lock: there is nothing to wait for.
        `slow` is called where somebody watches, and where that call does not succeed. What is
        returned holds this program: an executable lets go of those for sizes of long ago, and with
        them would go the tables and cells that the native call reads.
        """
        native, call = self._native, self._word_call
        if native is None or call is None or self.launches.count > QUICK_LAUNCHES:
            return None
        if self._shared:
            return self._quick_view(slow) if self._outputs == 1 else None
        if self._outputs > 1 or self._required:
            return self._quick_outputs(slow, call, native.address)
        (_, kind, pool), address, stream = self._own[0], native.address, self.stream
        context, nbytes = stream.device.context, kind.nbytes

        def compute(arrays: Sequence[CudaArray]) -> Sequence[CudaArray]:
            if OBSERVERS or getattr(CURRENT, "context", None) != context:
                return slow(arrays)
            LAST_PROGRAM[0] = self._described
            memory = take_memory(stream, nbytes, pool)
            if call(address, *map(pointer_of, arrays), memory.pointer):
                return slow(arrays)
            return (new_array(memory, kind),)

        return compute

    def _quick_outputs(self, slow: Slow, call: Callable[..., int], address: int) -> Slow:
        """The same for several outputs, and for programs that need memory of their own."""
        context = self.stream.device.context
        stream, own = self.stream, [(kind, pool) for _, kind, pool in self._own]
        room = self._required_pool if self._required else None

        def compute(arrays: Sequence[CudaArray]) -> Sequence[CudaArray]:
            if OBSERVERS or getattr(CURRENT, "context", None) != context:
                return slow(arrays)
            LAST_PROGRAM[0] = self._described
            outputs = [
                new_array(take_memory(stream, kind.nbytes, pool), kind) for kind, pool in own
            ]
            words = [*map(pointer_of, arrays), *map(pointer_of, outputs)]
            if room is None:
                failed = call(address, *words)
            else:  # what comes later on the stream may use it again
                at = room.take()
                failed = call(address, *words, at)
                room.give(at)
            return slow(arrays) if failed else outputs

        return compute

    def _quick_view(self, slow: Slow) -> Slow | None:
        """What gives an input in another shape; None where anything is launched for it."""
        ((_, kind, where, which),) = self._shared
        if where != "input" or self.launches.count or self.fault_cells:
            return None

        def compute(arrays: Sequence[CudaArray]) -> Sequence[CudaArray]:
            if OBSERVERS:
                return slow(arrays)
            base = arrays[which]
            return (new_array(base.memory, kind, base.base or base),)

        return compute

    def _raise_faults(self) -> None:
        """Raise what kernels of earlier runs of this program have reported."""
        if self._checks.records and self._checks.call(self._checks.address):
            self._pages.raise_first()

    def _write_cells(self, words: list[int]) -> None:
        """Write the addresses of values to their cells."""
        inputs, cells = len(self._input_slots), self.launches.cells
        cells[self._input_slots] = words[:inputs]
        cells[self._own_slots] = words[inputs : inputs + len(self._own)]
        self.launches.place(words[-1] if self._required else 0)

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
            with hold_quick_calls():
                self._write_cells(words)
                self._repeats[key] = graph = self._capture()
            graph(self.stream)
        while len(self._repeats) > GRAPHS:
            self._repeats.popitem(last=False)
        return known >= REPEATED

    def forget_graphs(self) -> None:
        """Let go of all graphs; they are made again when their runs are."""
        self._repeats.clear()

    def _capture(self) -> ExecutableGraph:
        """The graph of a run whose addresses are in the cells."""
        branching = self.launches.branching_graph()
        if branching is not None:
            return branching.instantiate()
        with capture_graph(self.stream) as graphs:
            self.launches.launch()
        return graphs[0].instantiate()
