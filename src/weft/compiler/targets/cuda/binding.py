"""A plan bound to a table of cells: for one set of sizes, launches whose parameters are cells.

Memory of a run is one piece: first what the plan has laid out, then a place for what a launch needs
while it runs (partial sums, scratch memory), which all launches share, then what loops hold.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from ctypes import c_void_p
from itertools import accumulate
from typing import Any

import numpy as np

from weft.compiler.plan.launch import (
    Kind,
    Launch,
    Sizes,
    Value,
    bound_params,
    bytes_of,
    static_shape,
)
from weft.compiler.plan.program_plan import ProgramPlan
from weft.compiler.targets.cuda.code import Code, compiled_result
from weft.compiler.targets.cuda.device import Stream
from weft.compiler.targets.cuda.emit import scratch_bytes
from weft.compiler.targets.cuda.graphs import Graph, Span, dependencies
from weft.compiler.targets.cuda.grouped_kernels import (
    Group,
    GroupedLaunch,
    join_launches,
    layout_in_group,
)
from weft.compiler.targets.cuda.launcher import (
    ENCODE,
    LAUNCH,
    SET,
    NativeRun,
    Record,
    copy_bytes,
    fill_bytes,
    kernel_node,
    launch_kernel,
    merge_runs,
    set_cell,
)
from weft.compiler.targets.cuda.launcher import (
    Run as Run,
)
from weft.compiler.targets.cuda.modules import Function
from weft.compiler.targets.cuda.schedule import scratch_of_all
from weft.core.errors import UnsupportedError
from weft.core.records import frozen
from weft.ir.graph import GraphNode, Literal
from weft.ir.loops import Kernel, evaluate
from weft.runtime.memory import MemoryPlan

Array = np.ndarray[Any, Any]
CellOf = Callable[[GraphNode], int]
"""The address of a cell in which a launch of a node reports a fault."""
Binder = Callable[["Binding", Launch], Run]
BINDERS: dict[str, Binder] = {}
"""What binds launches of the target's own functions, by the first word of their symbol."""
ALIGNMENT = 256
_CELL = 8
"""Bytes of a cell."""


MOST_BLOCKS = 1 << 31
"""One more than the blocks of a grid, whose number launches pass as 32 bits."""
OWN_WORKSPACES = 32 << 20
"""Bytes of workspaces up to which each launch has one of its own, so that some may run at once."""
OWN_MEMORY = 32 << 20
"""Bytes of all values of a program up to which each has memory of its own, likewise."""
MOST_BRANCHING = 256
"""Launches up to which a graph has branches; those of larger programs fill a card by themselves."""


@frozen
class Touched:
    """What a launch touches: values by slot, with bytes and whether it writes them, and its own."""

    slots: Mapping[int, tuple[int, bool]]
    workspace: tuple[int, int]
    counters: tuple[int, int]


@frozen
class Region:
    """Memory of the host that records refer to, and which words of it are pointers to others."""

    start: int
    size: int
    pointers: Sequence[int] = ()
    is_cleared: bool = False
    """Whether a copy in another process begins with all bits set: it holds nothing for it."""

    @staticmethod
    def of_array(array: Array, pointers: Sequence[int] = (), is_cleared: bool = False) -> Region:
        """That of an array."""
        return Region(int(array.ctypes.data), array.nbytes, pointers, is_cleared)


def binder(word: str) -> Callable[[Binder], Binder]:
    """Say what binds the launches whose symbol begins with a word."""

    def register(bind: Binder) -> Binder:
        BINDERS[word] = bind
        return bind

    return register


def in_order(runs: Sequence[Run]) -> Run:
    """What puts some launches on the stream, one after the other."""
    native = [run for run in runs if isinstance(run, NativeRun)]
    if native and len(native) == len(runs):
        return native[0].followed_by(*native[1:])

    def run_all() -> None:
        for run in runs:
            run()

    return run_all


def aligned_size(count: int) -> int:
    """A number of bytes, rounded up to where the next piece of memory may begin."""
    return -(-count // ALIGNMENT) * ALIGNMENT


def layout_of(memory: MemoryPlan, may_spread: bool) -> tuple[Mapping[str, int], int]:
    """Where each value of a plan lies, and the bytes of all.

    Small ones may lie beside each other for good: none then waits until another is not needed.
    """
    ends = [0, *accumulate(map(aligned_size, memory.sizes.values()))]
    if not may_spread or ends[-1] > OWN_MEMORY:
        return memory.offsets, aligned_size(memory.peak)
    return dict(zip(memory.sizes, ends, strict=False)), ends[-1]


def branching_graph(
    stream: Stream,
    launches: Sequence[Sequence[Record]],
    touched: Sequence[Touched],
    cells: Array,
    workspace: int,
) -> Graph | None:
    """Launches with the order that the memory needs which they touch.

    None where there are too many, or where some are no kernels. Everything is where the cells say.
    """
    kinds = {record[0] for records in launches for record in records}
    if not kinds <= {LAUNCH, SET, ENCODE} or len(launches) > MOST_BRANCHING:
        return None
    NativeRun(stream, [r for records in launches for r in records if r[0] != LAUNCH])()
    graph = Graph(stream.device)
    last: list[list[int]] = []
    """For each launch the nodes that others wait for."""
    edges = dependencies([_spans(each, cells, workspace) for each in touched])
    for records, earlier in zip(launches, edges, strict=True):
        after = [node for each in earlier for node in last[each]]
        for record in records:
            if record[0] == LAUNCH:
                after = [graph.add_kernel(kernel_node(record), after)]
        last.append(after)
    return graph


def _spans(touched: Touched, cells: Array, workspace: int) -> list[Span]:
    """The memory that a launch touches in a run."""
    spans = []
    for slot, (size, is_written) in touched.slots.items():
        start = int(cells[slot])
        spans.append(Span(start, start + size, is_written))
    first, end = touched.workspace
    if end > first:
        spans.append(Span(workspace + first, workspace + end, True))
    if touched.counters[1]:
        spans.append(Span(*touched.counters, True))
    return spans


class Binding:
    """The launches of a plan for some sizes, and cells with the addresses of its values."""

    def __init__(
        self,
        plan: ProgramPlan,
        sizes: Sizes,
        code: Code,
        stream: Stream,
        cell_of: CellOf,
        is_outer: bool = False,
    ) -> None:
        self.plan, self.sizes, self.code, self.stream = plan, sizes, code, stream
        self.cell_of = cell_of
        count = max(plan.slots.values(), default=-1) + 1
        self.cells: Array = np.zeros(count + 1, np.uint64)
        """The address of each value, by its slot; the last is for what nobody reads."""
        self.literals = [
            (slot, value)
            for value, slot in plan.slots.items()
            if isinstance(value, Literal) and value is not plan.error
        ]
        offsets, self.peak = layout_of(plan.planner.plan_for(sizes), is_outer)
        places = [(int(name), offset) for name, offset in offsets.items()]
        self._slots = np.array([slot for slot, _ in places], np.int64)
        self._offsets = np.array([offset for _, offset in places], np.uint64)
        self.workspace_bytes = 0
        """What the launch that needs most uses while it runs."""
        self.held_bytes = 0
        """What loops hold from step to step."""
        self.is_static = True
        """Whether the host decides nothing while it runs, so that it may become a graph."""
        self.count = 0
        """How many launches there are, as far as they are known."""
        self.inner: list[Binding] = []
        self._start = 0
        """Where the workspace of the launch that is being bound begins."""
        self._own_workspace = self._own_counters = (0, 0)
        """Of that launch: where its workspace begins and ends, and its part of the counters."""
        self.touched: list[Touched] = []
        self._counters = 0
        """Bytes of counters that launches have."""
        self._workspace_cells: dict[int, Array] = {}
        """By offset: cells with addresses of memory that launches use while they run."""
        self.workspace = self.held = self._base = -1
        """Where that memory begins in this run, and that of loops."""
        self._held: list[Any] = []
        self.functions: dict[int, Function] = {}
        """The functions that are launched, by handle."""
        self.fault_words: list[int] = []
        """Addresses of cells that hold the address of a cell of faults, in the order taken."""
        self.counter_words: dict[int, int] = {}
        """By the address of a cell that holds an address among the counters: where it is there."""
        self._groups = {
            launch: self._begin_groups(launch)
            for launch in plan.launches
            if launch.kind is Kind.GROUPED
        }
        """Of launches that are several: those that are joined, and the others."""
        self._runs = [self._bind_outer(launch) for launch in plan.launches]
        self.merged = merge_runs(self._runs)
        """The same launches in as few calls as possible."""

    # --- memory ----------------------------------------------------------------------------------

    @property
    def required_bytes(self) -> int:
        """The memory of a run."""
        return self.peak + self.workspace_bytes + self.held_bytes

    def place(self, base: int) -> None:
        """Say where the memory of the run is."""
        self.place_parts(base, base + self.peak, base + self.peak + self.workspace_bytes)

    def place_parts(self, base: int, workspace: int, held: int) -> None:
        """Say where its values, the workspace and the memory of loops are."""
        if base != self._base:
            self.cells[self._slots] = self._offsets + np.uint64(base)
            self._base = base
        if workspace != self.workspace:
            for offset, cell in self._workspace_cells.items():
                cell[0] = workspace + offset
        self.workspace, self.held = workspace, held

    def placement_records(self, base: int) -> list[Record]:
        """What says the same natively: the memory of the run is at the address in a cell."""
        records = [
            set_cell(self.cell_at(int(slot)), base, int(offset))
            for slot, offset in zip(self._slots, self._offsets, strict=True)
        ]
        for offset, cell in self._workspace_cells.items():
            records.append(set_cell(cell.ctypes.data, base, self.peak + offset))
        return records

    def address(self, value: Value) -> int:
        """Where a value is, in this run."""
        return int(self.cells[self.plan.slot(value)])

    def addresses(self) -> bytes:
        """What tells two runs apart: where everything is."""
        return self.cells.tobytes() + b"%d" % self.workspace

    def constant_cells(self) -> list[tuple[Array, int, Literal]]:
        """Constants, with the cells and the slot that hold the address of each."""
        return [
            (b.cells, slot, literal) for b in self.every_binding() for slot, literal in b.literals
        ]

    def all_records(self) -> Sequence[Record] | None:
        """All launches as records; None where the host decides something in between."""
        if len(self.merged) > 1 or not all(isinstance(run, NativeRun) for run in self.merged):
            return None
        return [record for run in self.merged for record in run.records]  # type: ignore[attr-defined]

    def every_binding(self) -> Iterator[Binding]:
        """The binding, and those of the plans inside."""
        yield self
        for each in self.inner:
            yield from each.every_binding()

    def hold(self, count: int) -> int:
        """Room for so many bytes in the memory of loops: the offset."""
        offset = self.held_bytes
        self.held_bytes += aligned_size(count)
        return offset

    # --- runs ------------------------------------------------------------------------------------

    def launch(self) -> None:
        """Put all launches on the stream."""
        for run in self.merged:
            run()

    def steps(self) -> Iterator[None]:
        """Put the launches on the stream one by one."""
        for run in self._runs:
            run()
            yield

    def _bind_outer(self, launch: Launch) -> Run:
        """What runs a launch of the plan, with a workspace of its own while all are small."""
        self._start = self.workspace_bytes if self.workspace_bytes < OWN_WORKSPACES else 0
        self._own_workspace = self._own_counters = (0, 0)
        run = self._bind(launch)
        slots: dict[int, tuple[int, bool]] = {}
        written = {*launch.writes, *launch.updates}
        values = [v for v in {*launch.values, *written} if v is not self.plan.error]
        for value in values if isinstance(run, NativeRun) else ():
            root, slot = self.plan.root(value), self.plan.slot(value)
            size = max(bytes_of(root.type, self.sizes), bytes_of(value.type, self.sizes))
            known = slots.get(slot, (0, False))
            slots[slot] = max(size, known[0]), known[1] or value in written
        self.touched.append(Touched(slots, self._own_workspace, self._own_counters))
        return run

    def _bind(self, launch: Launch) -> Run:
        if launch.kind is Kind.GROUPED:
            return self._bind_group(launch)
        if launch.stages:
            return in_order([self._bind(part) for part in launch.stages])
        if launch.nested is not None:
            return BINDERS["control"](self, launch)
        if launch.node is not None:
            return self._bind_reference(launch.node)
        if launch.kind is Kind.COPY:
            return self._bind_copy(launch)
        if isinstance(launch.kernel, Kernel):
            return self._bind_kernel(launch, launch.kernel)
        found = BINDERS.get(launch.kernel[0])
        if found is not None:
            return found(self, launch)
        raise UnsupportedError(
            "cuda",
            f"the launch {launch.name} is a function of another target",
            expected="a plan that was made for a card",
            got={"launch": launch.name, "made for": self.plan.target.name},
            fix="plan_program(graph, CUDA)",
        )

    def cell(self, launch: Launch, value: Value) -> int:
        """The address of the cell that holds the address of a value of a launch."""
        if value is self.plan.error:
            node = launch.checked or launch.node
            assert node is not None
            cell = self.number(self.cell_of(node))
            self.fault_words.append(cell)
            return cell
        return self.cell_at(self.plan.slot(value))

    def cell_at(self, slot: int) -> int:
        """The address of the cell of a slot."""
        return int(self.cells.ctypes.data) + _CELL * slot

    def number(self, value: int) -> int:
        """The address of a cell of its own, which holds a number."""
        cell = np.array([value], np.int64)
        self._held.append(cell)
        return int(cell.ctypes.data)

    def keep(self, thing: Any) -> None:
        """Hold what launches refer to by address."""
        self._held.append(thing)

    def memory_regions(self) -> Iterator[Region]:
        """All memory of the host that records refer to."""
        yield Region.of_array(self.cells)
        for cell in self._workspace_cells.values():
            yield Region.of_array(cell)
        for thing in self._held:
            if isinstance(thing, np.ndarray):
                yield Region.of_array(thing)
            elif isinstance(thing, ctypes.Array):
                yield Region(ctypes.addressof(thing), ctypes.sizeof(thing), range(len(thing)))
            else:
                yield from thing.memory_regions()

    def workspace_places(self) -> dict[int, int]:
        """By the offset of a piece of the workspace: the address of the cell for its address."""
        return {at: int(cell.ctypes.data) for at, cell in self._workspace_cells.items()}

    def value_places(self) -> tuple[list[int], list[int]]:
        """The slots of values that the plan has laid out, and where they lie in the memory."""
        return self._slots.tolist(), self._offsets.tolist()

    def workspace_cell(self, before: int, count: int) -> int:
        """The address of a cell with the address of `count` bytes, behind others of the launch."""
        place = self._start + before
        cell = self._workspace_cells.setdefault(place, np.zeros(1, np.uint64))
        end = aligned_size(place + count)
        self.workspace_bytes = max(self.workspace_bytes, end)
        self._own_workspace = self._start, max(end, self._own_workspace[1])
        return int(cell.ctypes.data)

    def counter_cell(self, address: int, room: int, count: int, *, is_alone: bool = False) -> int:
        """The address of a cell with that of `count` bytes of zeros, of `room` at an address.

        Launches have zeros of their own as long as there are some, so that they need no order; one
        that `is_alone` touches all of them, and waits for all others that have some.
        """
        size = aligned_size(count)
        if self._counters + size > room:
            self._counters = 0
        place, self._counters = address + self._counters, self._counters + size
        first, end = self._own_counters
        # the second of two pieces may have begun anew, before the first
        self._own_counters = min(first or place, place), max(end, place + size)
        if is_alone:
            self._own_counters = address, address + room
        cell = self.number(place)
        self.counter_words[cell] = place - address
        return cell

    def kernel_run(
        self, function: Function, blocks: int, threads: int, table: Sequence[int]
    ) -> Run:
        """What launches a function with the parameters at these addresses."""
        if not 0 < blocks < MOST_BLOCKS:
            raise UnsupportedError(
                "cuda",
                "a launch has more blocks than a card counts",
                expected=f"from 1 to {MOST_BLOCKS - 1} blocks",
                got={"function": function.name, "blocks": blocks},
                fix="compute on parts of the tensor, one after the other",
            )
        parameters = (c_void_p * max(1, len(table)))(*table)
        self._held.append(parameters)
        self.count += 1
        self.functions[function.handle] = function
        place = ctypes.addressof(parameters)
        return self.native_run(
            launch_kernel(function.handle, blocks, threads, function.shared, place)
        )

    def native_run(self, *records: Record) -> Run:
        """What works through some records."""
        return NativeRun(self.stream, records)

    def fill_run(self, value: Value, byte: int, count: int) -> Run:
        """What sets so many bytes of a value."""
        self.count += 1
        return self.native_run(fill_bytes(self.cell_at(self.plan.slot(value)), byte, count))

    def _bind_kernel(self, launch: Launch, kernel: Kernel) -> Run:
        code = self.code.code_of(kernel)
        sizes = dict(zip(code.sizes, launch.numbers(self.sizes), strict=True))
        own = [self.cell(launch, value) for value in launch.values[: len(kernel.buffers)]]
        used = 0
        for buffer, count in code.parts.between:
            size = aligned_size(max(0, evaluate(count, sizes)) * buffer.dtype.itemsize)
            own.append(self.workspace_cell(used, size))
            used += size
        runs: list[Run] = []
        for plan, function in zip(code.schedules, code.functions, strict=True):
            blocks = plan.blocks(sizes)
            if blocks == 0:
                continue
            table = [*own, *[self.number(sizes[name]) for name in plan.kernel.sizes]]
            if scratch_bytes(plan) is None:
                table.append(self.workspace_cell(used, scratch_of_all(plan, sizes)))
            runs.append(self.kernel_run(function, blocks, plan.block, table))
        return in_order(runs)

    def _begin_groups(
        self, launch: Launch
    ) -> tuple[list[tuple[Group, Future[Function]]], list[Launch]]:
        """The members of a launch as few launches, which begin to be compiled; and those alone."""
        joined: list[GroupedLaunch] = []
        alone: list[Launch] = []
        numbers: dict[int, int] = {}
        for member in launch.members:
            kernel = member.kernel
            plan = layout_in_group(kernel) if isinstance(kernel, Kernel) else None
            if plan is None:
                alone.append(member)
                continue
            sizes = dict(zip(plan.kernel.sizes, member.numbers(self.sizes), strict=True))
            for size in sizes.values():
                if size not in numbers:
                    numbers[size] = self.number(size)
            values = member.values[: len(plan.kernel.buffers)]
            cells = tuple([self.cell(member, value) for value in values])
            if plan.blocks(sizes):
                given = tuple([numbers[size] for size in sizes.values()])
                joined.append(GroupedLaunch(plan, cells, given, plan.blocks(sizes)))
        groups = [(each, self.code.begin_group(each.kernel)) for each in join_launches(joined)]
        return groups, alone

    def _bind_group(self, launch: Launch) -> Run:
        """Launches that wait for nothing of each other, as few as they can be."""
        groups, alone = self._groups[launch]
        runs = [self._bind(member) for member in alone]
        for group, function in groups:
            table = [*group.cells, *map(self.number, group.starts)]
            runs.append(
                self.kernel_run(compiled_result(function), group.blocks, group.threads, table)
            )
        return in_order(runs)

    def _bind_copy(self, launch: Launch) -> Run:
        source, target = launch.values[:2]
        count = bytes_of(target.type, self.sizes)
        self.count += 1
        to, origin = (self.cell_at(self.plan.slot(value)) for value in (target, source))
        return self.native_run(*([copy_bytes(to, origin, count)] if count else []))

    def copy(self, target: int, source: int, count: int) -> None:
        """Copy bytes on the card, unless they are there."""
        if count and target != source:
            self.stream.driver("cuMemcpyDtoDAsync_v2", target, source, count, self.stream.handle)

    # --- graphs ----------------------------------------------------------------------------------

    def branching_graph(self) -> Graph | None:
        """The launches with the order that their memory needs; None where they are not kernels.

        Everything is where the cells say now.
        """
        if self.inner or not all(isinstance(run, NativeRun) for run in self._runs):
            return None
        return branching_graph(self.stream, self.launch_records(), self.touched, self.cells,
                               self.workspace)  # fmt: skip

    def launch_records(self) -> list[tuple[Record, ...]]:
        """The records of each launch, where all of them are such."""
        return [run.records for run in self._runs if isinstance(run, NativeRun)]

    # --- values of the host ----------------------------------------------------------------------

    def download(self, value: Value) -> Array:
        """The value on the host, once it is computed."""
        return self.download_from(self.address(value), value)

    def download_from(self, address: int, value: Value) -> Array:
        """A value of a type that lies at an address, on the host."""
        shape = static_shape(value.type.shape, self.sizes)
        host: Array = np.empty(shape, value.type.dtype.numpy)
        if host.nbytes:
            self.stream.driver(
                "cuMemcpyDtoHAsync_v2", host.ctypes.data, address, host.nbytes, self.stream.handle
            )
            self.stream.synchronize()
        return host

    def upload(self, value: Value, array: Array) -> None:
        """Give a value the elements of an array of the host."""
        data = np.ascontiguousarray(array, value.type.dtype.numpy)
        if data.nbytes:
            self.stream.driver(
                "cuMemcpyHtoDAsync_v2", self.address(value), data.ctypes.data, data.nbytes,
                self.stream.handle,
            )  # fmt: skip
            self.stream.synchronize()

    def _bind_reference(self, node: GraphNode) -> Run:
        """A call of the primitive's reference, on copies of its operands in the host's memory."""
        self.is_static = False
        params = bound_params(node, self.sizes)

        def run() -> None:
            operands = [
                atom.value if isinstance(atom, Literal) else self.download(atom)
                for atom in node.operands
            ]
            with np.errstate(all="ignore"):
                found = node.primitive.reference(*operands, **params)
            results = found if node.primitive.multiple else (found,)
            for result, array in zip(node.results, results, strict=True):
                if self.plan.root(result) in self.plan.slots:
                    self.upload(result, array)

        return run
