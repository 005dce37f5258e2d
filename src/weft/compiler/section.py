"""A section of a program: the calls that one graph becomes, their memory, their tables.

A program is a section of its own; the bodies of loops and the branches of choices are sections
inside it, without memory of their own: what they need is scratch memory of the call they belong to.

>>> import weft as wf
>>> from weft.compiler.control import control_call
>>> graph = wf.ir.trace(lambda x: (wf.exp(x) @ x) * 2, wf.spec("float32", (3, 3)))
>>> section = Section(graph, Context(control_call))
>>> [call.name for call in section.calls], section.planner.at({}).peak
(['k0', 'dot', 'k1'], 128)
"""

from __future__ import annotations

import ctypes
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from weft.compiler.convolution import calls as convolutions
from weft.compiler.copies import copy_address, numbers
from weft.compiler.driver import FIELDS
from weft.compiler.foreign import Layout, failure, foreign_address
from weft.compiler.grouping import Group, Single, Step, group, shares_memory
from weft.compiler.kernels import compiled
from weft.compiler.launches import is_pinned, launches, places, reused
from weft.compiler.lowering import Lowered, context_of, is_lowered, lower
from weft.compiler.matmul.calls import Piece, pieces
from weft.compiler.matmul.chains import chained
from weft.compiler.origins import origin
from weft.compiler.pool import thread_pool
from weft.compiler.products import PANEL, Product, arranged, product_of
from weft.compiler.singles import SingleKernel, single_kernels
from weft.compiler.singles.sorting import pieces as sort_pieces
from weft.core.dtypes import uint8
from weft.core.shapes import Dimension, Shape, size, substitute
from weft.core.types import TensorType
from weft.ir.graph import Atom, Graph, GraphNode, Literal, Variable
from weft.ir.sizes import resolve_graph
from weft.runtime.memory import Lifetime, MemoryPlan, Planner

Array = np.ndarray[Any, Any]
Sizes = Mapping[str, int]
Value = Variable | Literal

ROW = 32 * 1024
"""About how many element operations one chunk of a divided kernel should be."""
PANEL_CHUNKS = 8.0
"""How many such chunks take as long as a panel of a product."""
Kernel = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64)


@dataclass(slots=True)
class Call:
    """One call of a program: a native function, its buffers, and what depends on the sizes."""

    name: str
    function: int
    values: tuple[Value, ...]
    writes: tuple[Variable, ...]
    sizes: Callable[[Sizes], list[int]]
    extent: Callable[[Sizes], int]
    grain: Callable[[Sizes], int]
    node: GraphNode | None = None
    """The node that is called by reference, if it is."""
    checked: GraphNode | None = None
    """The node whose reference says what is wrong, if the kernel reports that something is."""
    nested: Nested | None = None
    """The sections that the function runs, if it is a loop or a choice."""
    work: Callable[[Sizes], float] | None = None
    """How long it takes, in chunks of element operations; None: it is no part of ensembles."""
    in_place: tuple[tuple[Variable, Variable], ...] = ()
    """Values it stores, and values it reads only where it then stores the former."""
    by_rows: Mapping[Variable, Dimension] = field(default_factory=dict)
    """Values of which an iteration touches its own part only, with the elements of that part."""
    stages: tuple[Call, ...] = ()
    """The calls of a chain, which run one after the other for each block of rows."""
    members: tuple[Call, ...] = ()
    """The calls of an ensemble, which run as one."""

    def parts(self) -> Iterator[Call]:
        """The call, and all that it is made of."""
        yield self
        for part in (*self.stages, *self.members):
            yield from part.parts()

    updates: tuple[Variable, ...] = ()
    """Those of the values it writes that another call has begun: it changes them in places."""
    report: Callable[[], BaseException] | None = None
    """What went wrong, if the function says so itself."""


@dataclass(slots=True)
class Nested:
    """The sections inside a call, and the scratch memory that they share."""

    node: GraphNode
    sections: tuple[Section, ...]
    scratch: Variable
    bytes: Callable[[Sizes], int]
    """How much scratch memory they need."""
    numbers: Callable[[Sizes, Sequence[Tables], Array, list[Array]], list[int]]
    """What the native function is given, from the sections' tables and where it says how far it
    came; arrays that must live as long are appended to the list."""
    steps: Callable[[Sizes], int]
    """How often the sections are run, as far as that is known."""


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


class Section:
    """A graph as calls. Where its outputs are `held`, they lie in its own memory to the end.

    The first `fixed` inputs are the same each time a loop runs the section. What is made of them
    alone, such as a packed operand of a product, is made by the first `once` calls, at the start.
    """

    def __init__(
        self, graph: Graph, context: Context, *, held: bool = False, fixed: int = 0
    ) -> None:
        self.graph = arranged(graph)
        self.context = context
        self.base = _bases(self.graph)
        self.steps = group(self.graph, is_lowered)
        self.own: list[Lowered] = []
        self._callbacks: list[Any] = []
        first, rest = self._parted(self._calls(), fixed)
        start = self._launched(first)
        self.once = len(start)
        self.calls = [*start, *self._launched(rest)]
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
        context = context_of(self.graph)
        drafts: list[tuple[Step, Sequence[Lowered]]] = []
        error = Literal(self.context.error)
        for step in self.steps:
            lowered: Sequence[Lowered]
            if isinstance(step, Group):
                lowered = [lower(step, context, f"k{self.context.kernels}")]
            else:
                lowered = single_kernels(step.node, context.producer, error)
            self.context.kernels += len(lowered)
            self.own += lowered
            drafts.append((step, lowered))
        self._code = compiled([each.kernel for each in self.own])
        addresses = iter([code.address for code in self._code])
        return [
            call for step, lowered in drafts for call in self._calls_of(step, lowered, addresses)
        ]

    def _calls_of(
        self, step: Step, lowered: Sequence[Lowered], addresses: Iterator[int]
    ) -> list[Call]:
        if lowered:
            own = [_kernel_call(step, each, next(addresses)) for each in lowered]
            return _in_order(own, lowered)
        assert isinstance(step, Single)
        if shares_memory(step.node):
            return []
        if step.node.primitive.name == "dot":
            product = product_of(step.node)
            if product is not None:
                return _product_calls(step.node, product)
        convolution = convolutions.pieces(step.node)
        if convolution is not None:
            return [_convolution_call(piece, step.node) for piece in convolution]
        sorting = sort_pieces(step.node)
        if sorting is not None:
            return [_sort_call(piece) for piece in sorting]
        if step.node.primitive.native is not None:
            return [_foreign_call(step.node, self.context.error)]
        made = self.context.control(step.node, self.context)
        return [made or self._reference_call(step.node)]

    def _launched(self, calls: list[Call]) -> list[Call]:
        return launches(chained(calls, self.graph, self.root), self.graph, self.root)

    def _parted(self, calls: list[Call], fixed: int) -> tuple[list[Call], list[Call]]:
        """The calls that read nothing but fixed inputs, and the others."""
        known: set[Value] = set(self.graph.inputs[:fixed])
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
        return first, [call for call in calls if call not in first]

    def _reference_call(self, node: GraphNode) -> Call:
        """A call back into Python, for a primitive without a lowering."""

        def call(buffers: int, sizes: int, begin: int, end: int) -> None:
            try:
                self._refer(node, buffers)
            except BaseException as error:  # must not pass through native code
                self.context.failure = error
                self.context.error[0] = 1

        callback = Kernel(call)
        self._callbacks.append(callback)
        address = ctypes.cast(callback, ctypes.c_void_p).value
        assert address is not None
        values = (*node.operands, *node.results)
        return Call(node.primitive.name, address, values, node.results, _nothing, one, one, node)

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
        kept = {*outputs, *[self.root(v) for call in self.calls[: self.once] for v in call.writes]}
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
                scratch.get(v) or _bytes(v.type),
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


def _kernel_call(step: Step, lowered: Lowered, address: int) -> Call:
    kernel = lowered.kernel
    names = kernel.sizes
    if isinstance(step, Group):
        work = size(step.outer + step.inner)
    else:
        assert isinstance(lowered, SingleKernel)
        work = lowered.work

    def extent(sizes: Sizes) -> int:
        return kernel.iterations({**sizes, **lowered.known})

    def grain(sizes: Sizes) -> int:
        total = max(1, substitute_all(work, sizes))
        return max(1, ROW * max(1, extent(sizes)) // total)

    return Call(
        kernel.name,
        address,
        lowered.values,
        lowered.written,
        lambda sizes: [({**sizes, **lowered.known})[name] for name in names],
        extent,
        grain,
        checked=step.node if isinstance(step, Single) and _is_checked(lowered) else None,
        work=(lambda sizes: substitute_all(work, sizes) / ROW) if isinstance(step, Group) else None,
        in_place=lowered.in_place,
        by_rows=lowered.by_rows,
    )


def _in_order(made: Sequence[Call], kernels: Sequence[Lowered]) -> list[Call]:
    """The calls of one node's kernels: what checks comes first, then copies, then updates."""
    calls: list[Call] = []
    checked: tuple[Variable, ...] = ()
    for call, lowered in zip(made, kernels, strict=True):
        if not call.writes:
            checked = call.writes = (Variable(TensorType(uint8, (0,))),)  # what others wait for
            call.values += checked
        if isinstance(lowered, SingleKernel) and lowered.copied is not None:
            calls.append(_copy_call(*lowered.copied, checked))
            call.updates = call.writes
        calls.append(call)
    return calls


def _copy_call(result: Variable, operand: Value, awaited: tuple[Variable, ...]) -> Call:
    """A copy of an operand, which is left out where the result has taken its place."""
    return Call(
        "copy", copy_address(), (operand, result, *awaited), (result,),
        lambda sizes: numbers(bytes_of(result.type, sizes)), one, one,
        in_place=((result, operand),) if isinstance(operand, Variable) else (),
    )  # fmt: skip


def _foreign_call(node: GraphNode, error: Array) -> Call:
    """The call of a library's function, for a primitive that has one."""
    native, types = node.primitive.native, [atom.type for atom in node.operands]
    layout = Layout(native, native.kernel(types), len(types), native.values(node.params))
    buffers = (*node.operands, *node.results)

    def numbers(sizes: Sizes) -> list[int]:
        return layout.numbers([(v.type.dtype, static(v.type.shape, sizes)) for v in buffers])

    given = (Literal(layout.data), Literal(error), Literal(layout.message))
    return Call(
        node.primitive.name, foreign_address(), (*buffers, *given), node.results, numbers, one, one,
        checked=node, report=lambda: failure(native.name, layout.message, types, node.location),
    )  # fmt: skip


def _is_checked(lowered: Lowered) -> bool:
    return isinstance(lowered, SingleKernel) and lowered.checked


def _product_calls(node: GraphNode, product: Product) -> list[Call]:
    def work(sizes: Sizes) -> float:
        shape = [substitute_all(dim, sizes) for dim in product.shape]
        return PANEL_CHUNKS * math.prod(shape) * 2 / PANEL

    def copying(sizes: Sizes) -> float:
        return substitute_all(node.operands[1].type.size, sizes) / ROW

    return [
        Call(
            each.name, each.function, each.values, each.writes, each.sizes, each.extent, each.grain,
            work=copying if each.name == "pack" else work, by_rows=each.by_rows,
        )
        for each in pieces(node, product)
    ]  # fmt: skip


def _convolution_call(piece: Piece, node: GraphNode) -> Call:
    def work(sizes: Sizes) -> float:
        return PANEL_CHUNKS * convolutions.flops(node, sizes) / PANEL

    def copying(sizes: Sizes) -> float:
        return substitute_all(piece.values[0].type.size, sizes) / ROW

    return Call(
        piece.name, piece.function, piece.values, piece.writes, piece.sizes, piece.extent,
        piece.grain, work=work if piece.name == "conv" else copying, by_rows=piece.by_rows,
    )  # fmt: skip


def _sort_call(piece: Piece) -> Call:
    return Call(
        piece.name, piece.function, piece.values, piece.writes, piece.sizes, piece.extent,
        piece.grain,
    )  # fmt: skip


def substitute_all(dim: Dimension, sizes: Sizes) -> int:
    """A dimension as a number."""
    return int(substitute(dim, dict(sizes)))


def static(shape: Shape, sizes: Sizes) -> tuple[int, ...]:
    """A shape as numbers."""
    return tuple(substitute_all(dim, sizes) for dim in shape)


def bytes_of(kind: TensorType, sizes: Sizes) -> int:
    """How many bytes a value of a type has."""
    return substitute_all(_bytes(kind), sizes)


def _bases(graph: Graph) -> dict[Variable, Atom]:
    """Values that share the memory of another: reshapes of stored values, and barriers."""
    return {node.results[0]: node.operands[0] for node in graph.nodes if shares_memory(node)}


def _bytes(kind: TensorType) -> Dimension:
    return size(kind.shape) * kind.dtype.itemsize


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


def _nothing(sizes: Sizes) -> list[int]:
    return []


def one(sizes: Sizes) -> int:
    """One, whatever the sizes: for calls that are not divided."""
    return 1
