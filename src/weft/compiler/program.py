"""A compiled program: kernels, memory, and one native call.

Every value that is stored has a slot: inputs and outputs are addresses of the caller's arrays,
constants live with the program, and everything else lies in one arena, planned by lifetime.

>>> import numpy as np
>>> import weft as wf
>>> program = Program(wf.ir.trace(lambda x: wf.exp(x) * 2, wf.spec("float32", (3,))))
>>> program.run([np.zeros(3, np.float32)])[0].tolist()
[2.0, 2.0, 2.0]
"""

from __future__ import annotations

import ctypes
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from threading import Lock, get_ident
from typing import Any

import numpy as np

from weft.compiler.driver import FIELDS, WATCHERS, execute_address
from weft.compiler.grouping import Group, Single, Step, group, is_general_reshape
from weft.compiler.kernels import addresses
from weft.compiler.lowering import Lowered, context_of, is_lowered, lower
from weft.compiler.pipeline import optimize
from weft.compiler.pool import thread_pool
from weft.compiler.products import (
    PANEL,
    Product,
    arranged,
    one_thread_each,
    panels,
    product_address,
    product_of,
    product_work,
    table,
)
from weft.compiler.singles import SingleKernel, single_kernel
from weft.core.errors import ShapeError
from weft.core.shapes import Dimension, Shape, match_size, size, substitute
from weft.core.types import TensorType
from weft.ir.graph import Atom, Graph, GraphNode, Literal, Variable
from weft.ops.control import run as run_by_reference
from weft.runtime.arena import Arena, Block
from weft.runtime.memory import Lifetime, MemoryPlan, Planner

Array = np.ndarray[Any, Any]
Sizes = Mapping[str, int]
Value = Variable | Literal

ROW = 32 * 1024
"""About how many element operations one chunk of a divided kernel should be."""
RECYCLED = 4096
"""Bytes from which an array is worth being used again."""
SPARE = 64
"""How many arrays of one type are kept for that."""
BOUND = 32
"""How many sets of sizes a program keeps its tables for."""
Kernel = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64)
Execute = ctypes.CFUNCTYPE(
    ctypes.c_int64,
    ctypes.c_void_p,
    ctypes.c_int64,
    ctypes.c_void_p,
    ctypes.c_void_p,
    ctypes.c_void_p,
)


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


@dataclass(slots=True)
class Tables:
    """What a program needs to run with one set of sizes."""

    calls: Array
    addresses: Array
    planned: Array
    """The slots in the arena, and where in it."""
    offsets: Array
    keep: list[Array]
    plan: MemoryPlan
    shapes: dict[Variable, tuple[int, ...]]
    given: tuple[int, ...]
    """What the driver is called with."""
    base: int = 0
    """Where the arena was when the addresses were written."""


class Program:
    """A graph, compiled."""

    def __init__(self, graph: Graph) -> None:
        self.graph = arranged(optimize(graph))
        self.base = _bases(self.graph)
        self.steps = group(self.graph, is_lowered)
        self.lowered: list[Lowered] = []
        self._failure: BaseException | None = None
        self._error = np.zeros(1, np.int32)
        self._callbacks: list[Any] = []
        self.calls = self._calls()
        self._slots = self._assign_slots()
        self._planner = Planner(self._lifetimes())
        self._tables: OrderedDict[tuple[int, ...], Tables] = OrderedDict()
        self._spare: dict[tuple[tuple[int, ...], np.dtype[Any]], list[Array]] = {}
        self._lock = Lock()
        self._runner: int | None = None
        self._arena = Arena()
        self._block: Block | None = None
        self._has_products = any(call.name == "dot" for call in self.calls)
        self._execute = Execute(execute_address())
        self.symbols = sorted(
            {s for kind in self.graph.input_types for d in kind.shape for s in _symbols(d)}
        )

    # --- building ----------------------------------------------------------------------------

    def _calls(self) -> list[Call]:
        context = context_of(self.graph)
        drafts: list[tuple[Step, Lowered | None]] = []
        for step in self.steps:
            lowered: Lowered | None
            if isinstance(step, Group):
                lowered = lower(step, context, f"k{len(self.lowered)}")
            else:
                lowered = single_kernel(step.node, context.producer, Literal(self._error))
            if lowered is not None:
                self.lowered.append(lowered)
            drafts.append((step, lowered))
        compiled = iter(addresses([each.kernel for each in self.lowered]))
        return [
            call
            for step, lowered in drafts
            if (call := self._call(step, lowered, compiled)) is not None
        ]

    def _call(self, step: Step, lowered: Lowered | None, compiled: Iterator[int]) -> Call | None:
        if lowered is not None:
            return _kernel_call(step, lowered, next(compiled))
        assert isinstance(step, Single)
        if is_general_reshape(step.node):
            return None
        if step.node.primitive.name == "dot":
            product = product_of(step.node)
            if product is not None:
                return _product_call(step.node, product)
        return self._reference_call(step.node)

    def _reference_call(self, node: GraphNode) -> Call:
        """A call back into Python, for a primitive without a lowering."""

        def call(buffers: int, sizes: int, begin: int, end: int) -> None:
            try:
                self._refer(node, buffers)
            except BaseException as error:  # must not pass through native code
                self._failure = error
                self._error[0] = 1

        callback = Kernel(call)
        self._callbacks.append(callback)
        address = ctypes.cast(callback, ctypes.c_void_p).value
        assert address is not None
        values = (*node.operands, *node.results)
        return Call(node.primitive.name, address, values, node.results, _nothing, _one, _one, node)

    def _refer(self, node: GraphNode, buffers: int) -> None:
        pointers = (ctypes.c_void_p * (len(node.operands) + len(node.results))).from_address(
            buffers
        )
        shapes = self._running.shapes
        arrays = [
            _view(pointer or 0, value, shapes)
            for pointer, value in zip(pointers, (*node.operands, *node.results), strict=True)
        ]
        count = len(node.operands)
        with np.errstate(all="ignore"):
            found = node.primitive.reference(*arrays[:count], **_bound(node.params, self._sizes))
        results = found if node.primitive.multiple else (found,)
        for array, result in zip(arrays[count:], results, strict=True):
            np.copyto(array, result)

    def _assign_slots(self) -> dict[Value, int]:
        slots: dict[Value, int] = {}
        everything: list[Value] = [*self.graph.inputs]
        everything += [value for call in self.calls for value in call.values]
        everything += list(self.graph.outputs)
        for value in everything:
            slots.setdefault(self._root(value), len(slots))
        return slots

    def _root(self, value: Value) -> Value:
        """The value whose memory a value shares."""
        while isinstance(value, Variable) and value in self.base:
            value = self.base[value]
        return value

    def _lifetimes(self) -> list[Lifetime]:
        """Values in the arena: neither inputs, nor outputs, nor constants."""
        outside = {self._root(v) for v in (*self.graph.inputs, *self.graph.outputs)}
        first: dict[Variable, int] = {}
        last: dict[Variable, int] = {}
        for position, call in enumerate(self.calls):
            for value in call.values:
                root = self._root(value)
                if isinstance(root, Variable) and root not in outside:
                    first.setdefault(root, position)
                    last[root] = position
        return [Lifetime(str(self._slots[v]), _bytes(v.type), first[v], last[v]) for v in first]

    # --- running -----------------------------------------------------------------------------

    def run(self, arrays: Sequence[Array]) -> list[Array]:
        """The outputs for these inputs."""
        inputs = [a if a.flags.c_contiguous else np.ascontiguousarray(a) for a in arrays]
        if self._runner == get_ident():  # a call back, such as a breakpoint, calls the program
            return list(run_by_reference(self.graph, inputs))
        with self._lock:
            self._runner = get_ident()
            try:
                return self._run(inputs)
            finally:
                self._runner = None

    def _run(self, inputs: list[Array]) -> list[Array]:
        sizes = self._read_sizes(inputs) if self.symbols else _NO_SIZES
        tables = self._tables_for(sizes)
        self._place(tables)
        addresses = tables.addresses
        for position, array in enumerate(inputs):
            addresses[position] = array.__array_interface__["data"][0]
        outputs = self._outputs(inputs, tables)
        self._running, self._sizes = tables, sizes
        self._error[0] = 0
        given = tables.given
        with one_thread_each() if self._has_products else nullcontext():
            ended = WATCHERS[-1](self, sizes, given) if WATCHERS else self._execute(*given)
        if self._error[0]:
            raise self._failed(self.calls[ended - 1])
        return outputs

    def _failed(self, call: Call) -> BaseException:
        failure, self._failure = self._failure, None
        return failure or self._refused(call)

    def _refused(self, call: Call) -> BaseException:
        """What the reference says of operands that a kernel has found wrong."""
        node = call.checked
        if node is not None:
            slots = [self._slots[self._root(v)] for v in (*node.operands, *node.results)]
            buffers = self._running.addresses[slots]
            try:
                self._refer(node, buffers.ctypes.data)
            except Exception as error:
                return error
        return RuntimeError(f"the kernel {call.name} reported an error")

    def _read_sizes(self, inputs: Sequence[Array]) -> dict[str, int]:
        sizes: dict[str, Dimension] = {}
        for position, (array, kind) in enumerate(zip(inputs, self.graph.input_types, strict=True)):
            for actual, dim in zip(array.shape, kind.shape, strict=True):
                if dim is not actual and not match_size(dim, actual, sizes):
                    raise _contradiction(position, array, kind)
        return sizes  # type: ignore[return-value]

    def _tables_for(self, sizes: Sizes) -> Tables:
        key = tuple(sizes[name] for name in self.symbols)
        found = self._tables.get(key)
        if found is None:
            found = self._tables[key] = self._make_tables(sizes)
            if len(self._tables) > BOUND:
                self._tables.popitem(last=False)
        return found

    def _make_tables(self, sizes: Sizes) -> Tables:
        plan = self._planner.at(sizes)
        addresses = np.zeros(max(1, len(self._slots)), np.int64)
        keep: list[Array] = []
        for value, slot in self._slots.items():
            if isinstance(value, Literal):
                constant = np.ascontiguousarray(value.value)
                keep.append(constant)
                addresses[slot] = constant.ctypes.data
        calls = np.zeros((max(1, len(self.calls)), len(FIELDS)), np.int64)
        for row, call in zip(calls, self.calls, strict=False):
            slots = np.array([self._slots[self._root(v)] for v in call.values] or [0], np.int64)
            numbers = np.array(call.sizes(sizes) or [0], np.int64)
            keep += [slots, numbers]
            row[:] = (
                call.function, slots.ctypes.data, len(call.values), numbers.ctypes.data,
                call.extent(sizes), max(1, call.grain(sizes)),
            )  # fmt: skip
        shapes = {v: _static(v.type.shape, sizes) for v in self._variables()}
        given = (
            calls.ctypes.data, len(self.calls), addresses.ctypes.data, self._error.ctypes.data,
            thread_pool().address,
        )  # fmt: skip
        planned = np.array([int(name) for name in plan.offsets], np.int64)
        offsets = np.array(list(plan.offsets.values()), np.int64)
        return Tables(calls, addresses, planned, offsets, keep, plan, shapes, given)

    def _place(self, tables: Tables) -> None:
        """Put the planned values into the program's block of memory, which all sizes share."""
        if self._block is None or self._block.size < tables.plan.peak:
            self._block = None  # it goes before its successor comes
            self._block = self._arena.take(tables.plan)
        if tables.base != self._block.address:
            tables.base = self._block.address
            tables.addresses[tables.planned] = tables.base + tables.offsets

    def release(self) -> None:
        """Free the memory that is kept from run to run."""
        with self._lock:
            self._block = None
            self._tables.clear()
            self._spare.clear()

    def _variables(self) -> list[Variable]:
        found = [*self.graph.inputs, *[v for node in self.graph.nodes for v in node.results]]
        found += [self._root(v) for v in found]  # type: ignore[misc]
        return found

    def recycle(self, array: Array) -> None:
        """Take an array that nobody else holds as memory for an output of a later run.

        State that a program replaces at every run thus alternates between two arrays, and no
        memory is asked of the system.
        """
        if array.nbytes >= RECYCLED and array.base is None and array.flags.c_contiguous:
            spare = self._spare.setdefault((array.shape, array.dtype), [])
            if len(spare) < SPARE:
                spare.append(array)

    def _empty(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
        spare = self._spare.get((shape, dtype))
        return spare.pop() if spare else np.empty(shape, dtype)

    def _outputs(self, inputs: Sequence[Array], tables: Tables) -> list[Array]:
        """Arrays for the outputs; those that share memory, or are inputs, are views."""
        made: dict[Value, Array] = dict(zip(self.graph.inputs, inputs, strict=True))
        outputs = []
        for atom in self.graph.outputs:
            root = self._root(atom)
            if isinstance(root, Literal):
                outputs.append(root.value)
                continue
            if root not in made:
                made[root] = self._empty(tables.shapes[root], root.type.dtype.numpy)
                tables.addresses[self._slots[root]] = made[root].__array_interface__["data"][0]
            assert isinstance(atom, Variable)
            array = made[root]
            outputs.append(array if atom is root else array.reshape(tables.shapes[atom]))
        return outputs


_NO_SIZES: dict[str, int] = {}


def _contradiction(position: int, array: Array, kind: TensorType) -> ShapeError:
    return ShapeError(
        "jit",
        f"input {position} has a size that contradicts the compiled program",
        expected=str(kind),
        got={"input": array},
        fix="call the function again with arguments: it is compiled for their sizes",
    )


def _kernel_call(step: Step, lowered: Lowered, address: int) -> Call:
    kernel = lowered.kernel
    names = kernel.sizes
    if isinstance(step, Group):
        work = size(step.outer + step.inner)
    else:
        assert isinstance(lowered, SingleKernel)
        work = lowered.work

    def grain(sizes: Sizes) -> int:
        extent = max(1, kernel.iterations(sizes))
        total = max(1, substitute_all(work, sizes))
        return max(1, ROW * extent // total)

    return Call(
        kernel.name,
        address,
        lowered.values,
        lowered.written,
        lambda sizes: [sizes[name] for name in names],
        kernel.iterations,
        grain,
        checked=step.node if isinstance(step, Single) else None,
    )


def _product_call(node: GraphNode, product: Product) -> Call:
    def shape(sizes: Sizes) -> list[int]:
        return [substitute_all(dim, sizes) for dim in product.shape]

    return Call(
        "dot",
        product_address(product.dtype),
        (*node.operands, *node.results),
        node.results,
        lambda sizes: table(product, shape(sizes)),
        lambda sizes: shape(sizes)[0] * panels(shape(sizes)),
        lambda sizes: max(1, PANEL // product_work(shape(sizes))),
    )


def substitute_all(dim: Dimension, sizes: Sizes) -> int:
    """A dimension as a number."""
    return int(substitute(dim, dict(sizes)))


def _bases(graph: Graph) -> dict[Variable, Atom]:
    """Values that share the memory of another: reshapes of stored values."""
    return {node.results[0]: node.operands[0] for node in graph.nodes if is_general_reshape(node)}


def _bytes(kind: TensorType) -> Dimension:
    return size(kind.shape) * kind.dtype.itemsize


def _static(shape: Shape, sizes: Sizes) -> tuple[int, ...]:
    return tuple(substitute_all(dim, sizes) for dim in shape)


def _symbols(dim: Dimension) -> frozenset[str]:
    return frozenset() if isinstance(dim, int) else dim.symbols()


def _bound(params: Mapping[str, Any], sizes: Sizes) -> dict[str, Any]:
    return {key: _bound_value(value, sizes) for key, value in params.items()}


def _bound_value(value: Any, sizes: Sizes) -> Any:
    if isinstance(value, tuple):
        return tuple(_bound_value(each, sizes) for each in value)
    return substitute_all(value, sizes) if hasattr(value, "symbols") else value


def _view(address: int, value: Value, shapes: Mapping[Variable, tuple[int, ...]]) -> Array:
    if isinstance(value, Literal):
        return value.value
    shape, dtype = shapes[value], value.type.dtype.numpy
    count = int(np.prod(shape, dtype=np.int64)) * dtype.itemsize
    if count == 0:
        return np.empty(shape, dtype)
    memory = memoryview((ctypes.c_char * count).from_address(address)).cast("B")
    array: Array = np.frombuffer(memory, dtype).reshape(shape)
    return array


def _nothing(sizes: Sizes) -> list[int]:
    return []


def _one(sizes: Sizes) -> int:
    return 1
