"""A section of a program: the calls that one graph becomes, their memory, their tables.

A program is a section of its own; the bodies of loops and the branches of choices are sections
inside it, without memory of their own: what they need is scratch memory of the call they belong to.

>>> import weft as wf
>>> from weft.compiler.plan.control_flow import control_call
>>> graph = wf.ir.trace(lambda x: wf.sort(wf.exp(x), axis=1) * 2, wf.spec("float32", (3, 3)))
>>> section = Section(graph, Context(control_call))
>>> [call.name for call in section.calls], section.planner.at({}).peak
(['k0', 'sort', 'k1'], 320)
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Collection, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from weft.compiler.fusion.grouping import Group, Single, Step, group, shares_memory
from weft.compiler.lowering.group_reuse import Signature
from weft.compiler.lowering.groups import Lowered, context_of, is_lowered, lower
from weft.compiler.lowering.node_reuse import Repeats
from weft.compiler.plan.in_place import is_pinned, launches, places, reused
from weft.compiler.plan.launch import (
    ROW,
    STEP,
    Call,
    Sizes,
    Value,
    byte_count,
    continue_joins,
    in_order,
    kernel_call,
    node_calls,
    one,
    static,
    substitute_all,
)
from weft.compiler.plan.row_fusion import chained
from weft.compiler.targets.cpu.cache.kernels import Code, begin, compiled
from weft.compiler.targets.cpu.cache.symbols import origin
from weft.compiler.targets.cpu.products.forms import arranged
from weft.compiler.targets.cpu.products.low_precision import shortened
from weft.compiler.targets.cpu.runtime.driver import FIELDS, guarded_address
from weft.compiler.targets.cpu.runtime.thread_pool import thread_pool
from weft.core.shapes import substitute
from weft.ir.graph import Atom, Graph, GraphNode, Literal, Variable
from weft.ir.sizes import resolve_graph
from weft.runtime.memory import Lifetime, MemoryPlan, Planner

Array = np.ndarray[Any, Any]
Kernel = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64)


@dataclass(slots=True)
class Tables:
    """What a section needs to run with one set of sizes."""

    calls: Array
    addresses: Array
    planned: Array
    """The slots in the section's memory, and where in it."""
    offsets: Array
    keep: list[Array]
    plan: MemoryPlan
    given: tuple[int, ...]
    """What the driver is called with."""
    nested: dict[int, tuple[Array, list[Tables]]]
    """For each call with sections inside: how far it came, and their tables."""
    base: int = 0
    """Where the memory was when the addresses were written."""

    shapes: dict[Variable, tuple[int, ...]] = field(default_factory=dict)
    """Shapes as numbers, once they have been asked for."""
    outputs: list[tuple[int, tuple[int, ...], Any]] = field(default_factory=list)
    """The slot, shape and dtype of each output, once they have been asked for."""

    def shape(self, variable: Variable, sizes: Sizes) -> tuple[int, ...]:
        """The shape of a value, which the sizes are those of these tables of."""
        found = self.shapes.get(variable)
        if found is None:
            found = self.shapes[variable] = static(variable.type.shape, sizes)
        return found

    def cell(self, slot: int) -> int:
        """Where the address of a slot is kept."""
        return int(self.addresses.ctypes.data) + 8 * slot

    def given_after(self, skipped: int) -> tuple[int, ...]:
        """What the driver is called with to leave out the first calls."""
        calls, count, *rest = self.given
        return calls + 8 * len(FIELDS) * skipped, count - skipped, *rest


@dataclass(slots=True)
class Context:
    """What all sections of one program share."""

    control: Callable[[GraphNode, Context], Call | None]
    """Makes the call of a node that holds graphs; None for any other node."""
    error: Array = field(default_factory=lambda: np.zeros(1, np.int32))
    failure: BaseException | None = None
    """What a call back into Python has raised."""
    sizes: Sizes = field(default_factory=dict)
    """The sizes of the run that is under way."""
    kernels: int = 0
    """How many kernels have a name."""
    written: Written = field(default_factory=lambda: Written())
    dry: bool = False
    """Whether kernels are written only, which is enough to plan memory; see `Section.finish`."""


@dataclass(slots=True)
class Written:
    """The kernels that were written so far, of groups and of nodes; programs may share them."""

    groups: dict[Hashable, tuple[Lowered, Signature]] = field(default_factory=dict)
    nodes: Repeats = field(default_factory=Repeats)
    numbers: dict[str, int] = field(default_factory=dict)
    """What stands for the address of a kernel, by digest, until it is compiled."""

    def number(self, digest: str) -> int:
        """A number that is the address of nothing."""
        return self.numbers.setdefault(digest, -1 - len(self.numbers))


class Section:
    """A graph as calls. Where its outputs are `held`, they lie in its own memory to the end.

    The inputs at the positions `fixed` stay the same: at each step where the section is a `step` of
    a loop, else from run to run. What is made of them alone, such as a packed operand of a product,
    is made by the first `once` calls, at the start.
    """

    def __init__(
        self,
        graph: Graph,
        context: Context,
        *,
        held: bool = False,
        fixed: Collection[int] = (),
        step: bool = False,
    ) -> None:
        self.graph = arranged(shortened(graph))
        self.context = context
        self.base = _bases(self.graph)
        self.steps = group(self.graph, is_lowered)
        self.own: list[Lowered] = []
        self._own_calls: list[Call] = []
        """The calls of these kernels, in their order."""
        self._code: list[Code] = []
        self._callbacks: list[Any] = []
        self._chunk = STEP if step else ROW
        first, rest = self._parted(self._calls(), fixed)
        start = self._in_launches(first, [value for call in rest for value in call.values])
        self.once = len(start)
        self.calls = [*start, *self._in_launches(rest)]
        self.slots = self._assign_slots()
        self.planner = Planner(self._lifetimes(held))

    @property
    def inner(self) -> list[Section]:
        """The sections inside: bodies of loops, branches of choices."""
        return [s for call in self.calls if call.nested for s in call.nested.sections]

    @property
    def lowered(self) -> list[Lowered]:
        """The generated kernels, those of the sections inside included."""
        return [*self.own, *[each for section in self.inner for each in section.lowered]]

    @property
    def calls_blas(self) -> bool:
        """Whether any call is one of the BLAS, here or in the sections inside."""
        names = [origin(call.function) for call in self.every_call()]
        return any(name is not None and name[0] == "blas" for name in names)

    def every_call(self) -> Iterator[Call]:
        """The calls with those that they are made of, and those of the sections inside."""
        for call in self.calls:
            yield from call.parts()
        for section in self.inner:
            yield from section.every_call()

    # --- building ----------------------------------------------------------------------------

    def _calls(self) -> list[Call]:
        written = self.context.written
        context = replace(context_of(self.graph, self.steps), made=written.groups)
        drafts: list[tuple[Step, Sequence[Lowered]]] = []
        error = Literal(self.context.error)
        for step in self.steps:
            lowered: Sequence[Lowered]
            if isinstance(step, Group):
                lowered = [lower(step, context, f"k{self.context.kernels}")]
            else:
                lowered = written.nodes.kernels(step.node, context.producer, error)
            self.context.kernels += len(lowered)
            self.own += lowered
            if not self.context.dry:
                begin([each.kernel for each in lowered])
            drafts.append((step, lowered))
        calls = [call for step, lowered in drafts for call in self._calls_of(step, lowered)]
        continue_joins(calls)
        if not self.context.dry:
            self._compile()
        return calls

    def _compile(self) -> None:
        """Compile the kernels, and let the calls know where they are."""
        self._code = compiled([each.kernel for each in self.own])
        for call, code in zip(self._own_calls, self._code, strict=True):
            call.function = code.address

    def finish(self) -> None:
        """Compile what was only written, so that the section can be run."""
        if len(self._code) < len(self.own):
            begin([each.kernel for each in self.lowered])
            self._compile()
        for section in self.inner:
            section.finish()
        self.context.written = Written()  # which is needed no more

    def _calls_of(self, step: Step, lowered: Sequence[Lowered]) -> list[Call]:
        if lowered:
            number = self.context.written.number
            own = [
                kernel_call(step, each, number(each.kernel.digest), self._chunk) for each in lowered
            ]
            self._own_calls += own
            return in_order(own, lowered)
        assert isinstance(step, Single)
        if shares_memory(step.node):
            return []
        found = node_calls(step.node, self.context.error)
        if found is None:
            made = self.context.control(step.node, self.context)
            found = [made or self._reference_call(step.node)]
        return found

    def _in_launches(self, calls: list[Call], wanted: Sequence[Value] = ()) -> list[Call]:
        """Calls as they are launched; others read what is wanted."""
        chains = chained(calls, (*self.graph.outputs, *wanted), self.graph, self.root)
        return launches(chains, self.graph, self.root)

    def _parted(self, calls: list[Call], fixed: Collection[int]) -> tuple[list[Call], list[Call]]:
        """The calls that read nothing but fixed inputs, and the others."""
        known: set[Value] = {self.graph.inputs[position] for position in fixed}
        outputs = {self.root(v) for v in self.graph.outputs}
        outputs |= {self.root(v) for call in calls for v in call.updates}  # begun anew each time
        first: list[Call] = []
        for call in calls if fixed else ():
            writes = {self.root(v) for v in call.writes}
            read = {self.root(v) for v in call.values} - writes
            changes = any(isinstance(v, Variable) and v not in known for v in read)
            if not changes and outputs.isdisjoint(writes) and not is_pinned(call):
                known |= writes
                first.append(call)
        early = set(map(id, first))
        return first, [call for call in calls if id(call) not in early]

    def _reference_call(self, node: GraphNode) -> Call:
        """A call back into Python, for a primitive without a lowering."""

        def call(buffers: int, sizes: int, begin: int, end: int) -> None:
            try:
                self._refer(node, buffers)
                self.context.error[0] = 0  # a signal may end this before it begins
            except BaseException as error:  # must not pass through native code
                self.context.failure = error
                self.context.error[0] = 1

        callback = Kernel(call)
        self._callbacks.append(callback)
        address = ctypes.cast(callback, ctypes.c_void_p).value
        shown = (*node.operands, *node.results)
        given = (Literal(self.context.error), Literal(np.array([address], np.int64)))
        return Call(
            node.primitive.name, guarded_address(), (*shown, *given), node.results,
            lambda sizes: [len(shown)], one, one, node,
        )  # fmt: skip

    def _refer(self, node: GraphNode, buffers: int) -> None:
        pointers = (ctypes.c_void_p * (len(node.operands) + len(node.results))).from_address(
            buffers
        )
        sizes = self.context.sizes
        arrays = [
            _view(pointer or 0, value, sizes)
            for pointer, value in zip(pointers, (*node.operands, *node.results), strict=True)
        ]
        count = len(node.operands)
        with np.errstate(all="ignore"):
            found = node.primitive.reference(*arrays[:count], **_bound(node.params, sizes))
        results = found if node.primitive.multiple else (found,)
        for array, result in zip(arrays[count:], results, strict=True):
            np.copyto(array, result)

    # --- memory ------------------------------------------------------------------------------

    def _assign_slots(self) -> dict[Value, int]:
        slots: dict[Value, int] = {}
        everything: list[Value] = [*self.graph.inputs]
        everything += [value for call in self.calls for value in call.values]
        everything += list(self.graph.outputs)
        for value in everything:
            slots.setdefault(self.root(value), len(slots))
        return slots

    def root(self, value: Value) -> Value:
        """The value whose memory a value shares."""
        while isinstance(value, Variable) and value in self.base:
            value = self.base[value]
        return value

    def slot(self, value: Value) -> int:
        """Where the address of a value is kept."""
        return self.slots[self.root(value)]

    def _lifetimes(self, held: bool) -> list[Lifetime]:
        """Values in the section's memory: neither inputs, nor constants, nor others' outputs."""
        outputs = {self.root(v) for v in self.graph.outputs}
        outside = {*self.graph.inputs, *(() if held else outputs)}
        made = {self.root(v) for call in self.calls[: self.once] for v in call.writes}
        read = {self.root(v) for call in self.calls[self.once :] for v in call.values}
        kept = outputs | (made & read)
        first: dict[Variable, int] = {}
        last: dict[Variable, int] = {}
        for position, call in enumerate(self.calls):
            for value in call.values:
                root = self.root(value)
                if isinstance(root, Variable) and root not in outside:
                    first.setdefault(root, position)
                    last[root] = len(self.calls) if root in kept else position
        scratch = {call.nested.scratch: call.nested.bytes for call in self.calls if call.nested}
        taken = reused(places(self.calls, self.root), first.__contains__)
        return [
            Lifetime(
                str(self.slots[v]),
                scratch.get(v) or byte_count(v.type),
                first[v],
                last[v],
                str(self.slots[taken[v]]) if v in taken else None,
            )
            for v in first
        ]

    # --- tables ------------------------------------------------------------------------------

    def tables(self, sizes: Sizes, extra: int = 0) -> Tables:
        """The tables for some sizes; `extra` slots stand behind those of the section."""
        plan = self.planner.at(sizes)
        addresses = np.zeros(len(self.slots) + extra + 1, np.int64)
        keep: list[Array] = []
        for value, slot in self.slots.items():
            if isinstance(value, Literal):
                constant = np.ascontiguousarray(value.value)
                keep.append(constant)
                addresses[slot] = constant.ctypes.data
        calls = np.zeros((max(1, len(self.calls)), len(FIELDS)), np.int64)
        given = (
            calls.ctypes.data, len(self.calls), addresses.ctypes.data,
            self.context.error.ctypes.data, thread_pool().address,
        )  # fmt: skip
        planned = np.array([int(name) for name in plan.offsets], np.int64)
        offsets = np.array(list(plan.offsets.values()), np.int64)
        made = Tables(calls, addresses, planned, offsets, keep, plan, given, {})
        for position, call in enumerate(self.calls):
            calls[position] = self._row(position, call, sizes, made)
        return made

    def _row(self, position: int, call: Call, sizes: Sizes, made: Tables) -> tuple[int, ...]:
        """What the driver is told of one call."""
        slots = np.array([self.slot(v) for v in call.values] or [0], np.int64)
        numbers = np.array(self._numbers(position, call, sizes, made) or [0], np.int64)
        made.keep += [slots, numbers]
        return (
            call.function, slots.ctypes.data, len(call.values), numbers.ctypes.data,
            call.extent(sizes), max(1, call.grain(sizes)),
        )  # fmt: skip

    def _numbers(self, position: int, call: Call, sizes: Sizes, made: Tables) -> list[int]:
        if call.nested is None:
            return call.sizes(sizes)
        inner = [s.tables(sizes, len(s.graph.outputs)) for s in call.nested.sections]
        reached = np.zeros(3, np.int64)
        made.keep.append(reached)
        made.nested[position] = reached, inner
        return call.nested.numbers(sizes, inner, reached, made.keep)

    # --- errors ------------------------------------------------------------------------------

    def failed(self, tables: Tables, ended: int) -> BaseException:
        """What went wrong in the last of so many calls."""
        failure, self.context.failure = self.context.failure, None
        return failure or self._refused(tables, ended - 1)

    def _refused(self, tables: Tables, position: int) -> BaseException:
        """What the reference says of operands that a kernel has found wrong."""
        call = self.calls[position]
        if call.nested is not None:
            reached, inner = tables.nested[position]
            section, ended = int(reached[0]), int(reached[1])
            if section >= 0:
                within = call.nested.sections[section]
                return within._refused(inner[section], within.once + ended - 1)
        node = call.checked
        if call.report is not None:
            return call.report()
        if node is not None:
            slots = [self.slot(v) for v in (*node.operands, *node.results)]
            buffers = tables.addresses[slots]
            try:
                self._refer(node, buffers.ctypes.data)
            except Exception as error:
                return error
        return RuntimeError(f"the kernel {call.name} reported an error")


def _bases(graph: Graph) -> dict[Variable, Atom]:
    """Values that share the memory of another: reshapes of stored values, and barriers."""
    return {node.results[0]: node.operands[0] for node in graph.nodes if shares_memory(node)}


def _bound(params: Mapping[str, Any], sizes: Sizes) -> dict[str, Any]:
    return {key: _bound_value(value, sizes) for key, value in params.items()}


def _bound_value(value: Any, sizes: Sizes) -> Any:
    if isinstance(value, tuple):
        return tuple(_bound_value(each, sizes) for each in value)
    if isinstance(value, Graph):
        return resolve_graph(value, lambda dim: substitute(dim, dict(sizes)))
    return substitute_all(value, sizes) if hasattr(value, "symbols") else value


def _view(address: int, value: Value, sizes: Sizes) -> Array:
    if isinstance(value, Literal):
        return value.value
    shape, dtype = static(value.type.shape, sizes), value.type.dtype.numpy
    count = int(np.prod(shape, dtype=np.int64)) * dtype.itemsize
    if count == 0:
        return np.empty(shape, dtype)
    memory = memoryview((ctypes.c_char * count).from_address(address)).cast("B")
    array: Array = np.frombuffer(memory, dtype).reshape(shape)
    return array
