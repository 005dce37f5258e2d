"""Tables: what the driver reads of a plan, for one set of sizes.

A table has a row for each launch: the address of its function, its slots, its numbers. Every value
that is stored has a slot: inputs and outputs are addresses of the caller's arrays, constants live
with the tables, and everything else lies in one arena, planned by lifetime.
"""

from __future__ import annotations

import ctypes
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from weft.compiler.plan.launch import Kind, Launch, Sizes, Value, bound_params, static_shape
from weft.compiler.plan.program_plan import ProgramPlan
from weft.compiler.targets.cpu.cache.kernels import Code, kernel_codes
from weft.compiler.targets.cpu.cache.symbols import found_again
from weft.compiler.targets.cpu.runtime import copies, grouped_launch, row_blocks
from weft.compiler.targets.cpu.runtime.control_tables import control_address, control_numbers
from weft.compiler.targets.cpu.runtime.driver import FIELDS
from weft.compiler.targets.cpu.runtime.thread_pool import thread_pool
from weft.ir.graph import GraphNode, Literal, Variable
from weft.ir.loops import Kernel
from weft.runtime.memory import MemoryPlan

Array = np.ndarray[Any, Any]
Function = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64)
"""The signature of every native function that a launch runs: buffers, numbers, begin, end."""


@dataclass(slots=True)
class Tables:
    """What a plan needs to run with one set of sizes."""

    calls: Array
    addresses: Array
    planned: Array
    """The slots in the plan's memory, and where in it."""
    offsets: Array
    keep: list[Array]
    plan: MemoryPlan
    given: tuple[int, ...]
    """What the driver is called with."""
    nested: dict[int, tuple[Array, list[Tables]]]
    """For each launch with plans inside: how far it came, and their tables."""
    base: int = 0
    """Where the memory was when the addresses were written."""

    shapes: dict[Variable, tuple[int, ...]] = field(default_factory=dict)
    """Shapes as numbers, once they have been asked for."""
    outputs: list[tuple[int, tuple[int, ...], Any]] = field(default_factory=list)
    """The slot, shape and dtype of each output, once they have been asked for."""

    def shape(self, variable: Variable, sizes: Sizes) -> tuple[int, ...]:
        """The shape of a value, which the sizes are those of these tables of."""
        known = self.shapes.get(variable)
        if known is None:
            known = self.shapes[variable] = static_shape(variable.type.shape, sizes)
        return known

    def cell(self, slot: int) -> int:
        """Where the address of a slot is kept."""
        return int(self.addresses.ctypes.data) + 8 * slot

    def given_after(self, skipped: int) -> tuple[int, ...]:
        """What the driver is called with to leave out the first launches."""
        calls, count, *rest = self.given
        return calls + 8 * len(FIELDS) * skipped, count - skipped, *rest


@dataclass(slots=True)
class State:
    """What all tables of one program share, and what its launches report."""

    error: Array = field(default_factory=lambda: np.zeros(1, np.int32))
    failure: BaseException | None = None
    """What a call back into Python has raised."""
    sizes: Sizes = field(default_factory=dict)
    """The sizes of the run that is under way."""


class TableMaker:
    """Makes the tables of a plan and of those inside it, with the addresses of this process."""

    def __init__(self, plan: ProgramPlan, state: State) -> None:
        self.state = state
        kernels = plan.kernels
        self.code: dict[str, Code] = dict(
            zip([kernel.digest for kernel in kernels], kernel_codes(kernels), strict=True)
        )
        self._callbacks: dict[Launch, tuple[Any, Array]] = {}

    def tables(self, plan: ProgramPlan, sizes: Sizes, extra: int = 0) -> Tables:
        """The tables for some sizes; `extra` slots stand behind those of the plan."""
        memory = plan.planner.plan_for(sizes)
        references = [each for each in plan.launches if each.kind is Kind.REFERENCE]
        behind = {each: len(plan.slots) + extra + n for n, each in enumerate(references)}
        addresses = np.zeros(len(plan.slots) + extra + len(references) + 1, np.int64)
        keep: list[Array] = []
        for value, slot in plan.slots.items():
            if isinstance(value, Literal):
                constant = np.ascontiguousarray(value.value)
                array = self.state.error if value is plan.error else constant
                keep.append(array)
                addresses[slot] = array.ctypes.data
        for launch, slot in behind.items():
            addresses[slot] = self.callback(launch).ctypes.data
        calls = np.zeros((max(1, len(plan.launches)), len(FIELDS)), np.int64)
        given = (
            calls.ctypes.data, len(plan.launches), addresses.ctypes.data,
            self.state.error.ctypes.data, thread_pool().address,
        )  # fmt: skip
        planned = np.array([int(name) for name in memory.offsets], np.int64)
        offsets = np.array(list(memory.offsets.values()), np.int64)
        made = Tables(calls, addresses, planned, offsets, keep, memory, given, {})
        for position, launch in enumerate(plan.launches):
            slots = [plan.slot(v) for v in launch.values]
            slots += [behind[launch]] if launch in behind else []
            calls[position] = self._row(position, launch, slots, sizes, made)
        return made

    def _row(
        self, position: int, launch: Launch, slots: Sequence[int], sizes: Sizes, made: Tables
    ) -> tuple[int, ...]:
        """What the driver is told of one launch."""
        own_slots = np.array(slots or [0], np.int64)
        if launch.nested is None:
            address, values = self.numbers_of(launch, sizes)
        else:
            address, values = self._nested_tables(position, launch, sizes, made)
        numbers = np.array(values or [0], np.int64)
        made.keep += [own_slots, numbers]
        return (
            address, own_slots.ctypes.data, len(slots), numbers.ctypes.data,
            launch.extent(sizes), max(1, launch.grain(sizes)),
        )  # fmt: skip

    def numbers_of(self, launch: Launch, sizes: Sizes) -> tuple[int, list[int]]:
        """The address of a launch's function, and the numbers that it is given."""
        address = self.address(launch)
        if launch.blocks is not None:
            return address, row_blocks.table(
                launch.blocks, sizes, lambda stage: self.numbers_of(stage, sizes)
            )
        if launch.members:
            return address, grouped_launch.table(
                launch.members, sizes, lambda member: self.numbers_of(member, sizes)
            )
        numbers = launch.numbers(sizes)
        return address, copies.copy_numbers(*numbers) if launch.kind is Kind.COPY else numbers

    def address(self, launch: Launch) -> int:
        """The address of the function that a launch runs."""
        kernel = launch.kernel
        if isinstance(kernel, Kernel):
            return self.code[kernel.digest].address
        address = found_again(kernel)
        assert address is not None, f"no function {kernel}"
        return address

    def _nested_tables(
        self, position: int, launch: Launch, sizes: Sizes, made: Tables
    ) -> tuple[int, list[int]]:
        assert launch.nested is not None
        plans = launch.nested.plans
        inner = [self.tables(plan, sizes, len(plan.graph.outputs)) for plan in plans]
        reached = np.zeros(3, np.int64)
        made.keep.append(reached)
        made.nested[position] = reached, inner
        numbers = control_numbers(
            launch.nested.form, inner, sizes, reached, self.state.error, made.keep
        )
        return control_address(launch.nested.form), numbers

    # --- calls back into Python ------------------------------------------------------------------

    def callback(self, launch: Launch) -> Array:
        """An array with the address of a function that calls a node's reference."""
        known = self._callbacks.get(launch)
        if known is None:
            known = self._callbacks[launch] = self._make_callback(launch)
        return known[1]

    def _make_callback(self, launch: Launch) -> tuple[Any, Array]:
        node, state = launch.node, self.state
        assert node is not None

        def call(buffers: int, sizes: int, begin: int, end: int) -> None:
            try:
                call_reference(node, buffers, state.sizes)
                state.error[0] = 0  # a signal may end this before it begins
            except BaseException as error:  # must not pass through native code
                state.failure = error
                state.error[0] = 1

        callback = Function(call)
        address = ctypes.cast(callback, ctypes.c_void_p).value
        return callback, np.array([address], np.int64)


def call_reference(node: GraphNode, buffers: int, sizes: Sizes) -> None:
    """Compute a node by its reference, on operands and results at these addresses."""
    values = (*node.operands, *node.results)
    pointers = (ctypes.c_void_p * len(values)).from_address(buffers)
    arrays = [_view(at or 0, value, sizes) for at, value in zip(pointers, values, strict=True)]
    count = len(node.operands)
    with np.errstate(all="ignore"):
        given = node.primitive.reference(*arrays[:count], **bound_params(node, sizes))
    results = given if node.primitive.multiple else (given,)
    for array, result in zip(arrays[count:], results, strict=True):
        np.copyto(array, result)


# --- errors --------------------------------------------------------------------------------------


def refusal(plan: ProgramPlan, tables: Tables, position: int, sizes: Sizes) -> BaseException:
    """What the reference says of operands that a launch has found wrong."""
    launch = plan.launches[position]
    if launch.nested is not None:
        reached, inner = tables.nested[position]
        number, ended = int(reached[0]), int(reached[1])
        if number >= 0:
            within = launch.nested.plans[number]
            return refusal(within, inner[number], within.once + ended - 1, sizes)
    if launch.report is not None:
        return launch.report()
    node = launch.checked
    if node is not None:
        slots = [plan.slot(v) for v in (*node.operands, *node.results)]
        buffers = tables.addresses[slots]
        try:
            call_reference(node, buffers.ctypes.data, sizes)
        except Exception as error:
            return error
    return RuntimeError(f"the kernel {launch.name} reported an error")


def _view(address: int, value: Value, sizes: Sizes) -> Array:
    if isinstance(value, Literal):
        return value.value
    shape, dtype = static_shape(value.type.shape, sizes), value.type.dtype.numpy
    count = math.prod(shape) * dtype.itemsize
    if count == 0:
        return np.empty(shape, dtype)
    memory = (ctypes.c_char * count).from_address(address)
    return np.ndarray(shape, dtype, memory)  # type: ignore[arg-type]
