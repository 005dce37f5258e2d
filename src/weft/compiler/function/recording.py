"""Tracing a whole call: arguments, closed-over tensors, and all state that the call writes.

While the function runs, the handles it was given hold traced values, in this thread alone
(`ir/lifting.py`). A handle that holds another value afterwards, or another gradient, is state: its
new value is an output of the graph, and is written back after each run. Handles from outside that
the function writes to are found as they are written to; those it only reads are inputs, read anew
at each call.

>>> import weft as wf
>>> from weft.compiler.function.recording import record
>>> w, x = wf.tensor(1.0), wf.tensor(3.0)
>>> def step():
...     w.copy_(w + x)
...     return w * 2
>>> recording = record([x], step)
>>> len(recording.graph.inputs), len(recording.graph.outputs), w.item()
(2, 2, 1.0)
"""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable, Sequence, Set
from dataclasses import dataclass
from typing import Any

from weft.compiler.plan.device_plan import spans_devices
from weft.compiler.targets.target import target_of
from weft.core import trees
from weft.core.arrays import CONCRETE, is_host
from weft.core.devices import CPU, Device
from weft.core.dimensions import symbols_in
from weft.core.records import frozen
from weft.core.scopes import scopes
from weft.core.trees import LEAF, TreeStructure
from weft.core.types import TensorType
from weft.ir.autocast import AUTOCAST
from weft.ir.dispatch import active_trace
from weft.ir.graph import Atom, Graph, Literal, Variable
from weft.ir.lifting import Lifting, here, lift
from weft.ir.reverse import recording
from weft.ir.tape import Leaf, Node, Projection
from weft.ir.tensor import Tensor, Traced, grad_mode, traces, wrap
from weft.ir.tracing import GraphTrace, place_of, substitute
from weft.ir.walking import without_dead_nodes
from weft.ops.random_bits import GENERATOR
from weft.runtime.no_gc import pause_collection


@frozen(eq=False)
class Source:
    """Where an input comes from at each call; `is_same_place` tells whether two are one place.

    An argument by position, a handle outside (its last value stands in when it is gone), or, with
    neither, the counter that this thread draws from: the global generator's, or that of a function
    which is being traced around the call. `gradient`: not the handle's value but its grad's.
    """

    argument: int | None = None
    handle: weakref.ref[Tensor] | None = None
    last: Any = None
    gradient: bool = False

    def owner(self, arguments: Sequence[Tensor]) -> Tensor | None:
        """The handle that holds the input, if there is one."""
        if self.argument is not None:
            return arguments[self.argument]
        if self.handle is not None:
            return self.handle()
        return GENERATOR.current()

    @property
    def is_counter(self) -> bool:
        """Whether it is the counter of the generator."""
        return self.argument is None and self.handle is None

    def is_same_place(self, other: Source) -> bool:
        """Whether both are the same place; weak references would compare what they refer to."""
        places = (self.argument, self.gradient), (other.argument, other.gradient)
        return places[0] == places[1] and self.handle is other.handle

    def held_tensor(self) -> Tensor | None:
        """What a handle outside holds; None when it is gone."""
        owner = None if self.handle is None else self.handle()
        return owner._grad if owner is not None and self.gradient else owner

    def read(self, arguments: Sequence[Tensor]) -> Tensor:
        """The input in this call."""
        owner = self.owner(arguments)
        if owner is None:
            return wrap(self.last)
        if not self.gradient:
            return owner
        assert owner._grad is not None
        return owner._grad


@dataclass(slots=True)
class Held:
    """A handle in the trace, and what it held at the beginning of the call.

    It is held weakly: one that the function made, wrote to and let go of is no state.
    """

    handle: weakref.ref[Tensor]
    source: Source
    start: Any
    start_grad: Any


@frozen
class Write:
    """State that a call writes: a handle's value or gradient. Without an output it is cleared."""

    source: Source
    output: int | None


@frozen
class Output:
    """A result that is an output of the graph, by position."""

    position: int


@frozen
class Recording:
    """A traced call: its graph, where its inputs come from, and what becomes of its outputs."""

    graph: Graph
    sources: tuple[Source, ...]
    results: tuple[Any, ...]
    structure: TreeStructure
    writes: tuple[Write, ...]
    differentiable: bool
    """Whether a derivative of some result may be asked for after the call."""
    gradients: frozenset[int] = frozenset()
    """The arguments for which it matters whether they had a gradient before the call."""
    places: tuple[Device | None, ...] = ()
    """The device of each input, where the program has parts on several; else nothing."""

    def rebuild(self, outputs: Sequence[Tensor]) -> Any:
        """The value of the call, given the outputs of its graph."""
        leaves = [outputs[r.position] if isinstance(r, Output) else r for r in self.results]
        return leaves[0] if self.structure is LEAF else trees.unflatten(self.structure, leaves)


class StateTrace(GraphTrace):
    """Records a call with the state that it reads and writes."""

    name = "jit"
    adopts = True
    spans_devices = True

    def __init__(self) -> None:
        super().__init__()
        self.held: dict[int, Held] = {}
        self.inputs: list[tuple[Variable, Source]] = []
        self.read_gradients: set[int] = set()
        """Arguments whose gradient was looked at before it was replaced."""
        self.written_gradients: set[int] = set()
        """Handles whose gradient was replaced."""

    def touch_gradient(self, handle: Tensor, written: bool) -> None:
        """See `Trace`."""
        held = self._held_of(handle)
        if held is None or id(handle) in self.written_gradients:
            return
        if written:
            self.written_gradients.add(id(handle))
        elif held.source.argument is not None:
            self.read_gradients.add(held.source.argument)

    def lift(self, handle: Tensor, kind: TensorType, source: Source) -> None:
        """Put a traced value of a type, and a traced gradient, into a handle."""
        if self._held_of(handle) is not None:
            return
        place = argument_place(handle)
        lift(handle)
        handle._value = self.input(kind, source, place)
        node = handle._node
        if node is not None:
            handle._node = leaf = Leaf(handle)
            leaf.hooks = [*node.hooks] if type(node) is Leaf and node.hooks else None
        if handle._grad is not None:
            of_gradient = Source(source.argument, source.handle, gradient=True)
            handle._grad = wrap(self.input(kind, of_gradient, place))
        self._hold(handle, source)

    def input(self, kind: TensorType, source: Source, place: Device | None = None) -> Any:
        """A traced value that is an input of the graph, on some device or beside any."""
        variable = Variable(kind)
        if place is not None:
            self.places[variable] = place
        self.inputs.append((variable, source))
        return self.tensor(variable)._value

    def adopt(self, handle: Tensor) -> None:
        """A handle from outside is about to be written to: it becomes state."""
        if self._held_of(handle) is not None:
            lift(handle)  # it may have been adopted in a block that has ended
        elif not isinstance(handle._value, Traced):
            self._capture(handle)
            lift(handle)
            self._hold(handle, outside_source(handle))

    def _hold(self, handle: Tensor, source: Source) -> None:
        grad = None if handle._grad is None else handle._grad._value
        self.held[id(handle)] = Held(weakref.ref(handle), source, handle._value, grad)
        self.written_gradients.discard(id(handle))

    def _held_of(self, handle: Tensor) -> Held | None:
        """What is known of a handle; another may have had its number, and be gone."""
        held = self.held.get(id(handle))
        return held if held is not None and held.handle() is handle else None

    def _is_literal(self, tensor: Tensor) -> bool:
        """Never at once: a number may be state. What nobody holds afterwards is a constant."""
        return False

    def _capture(self, tensor: Tensor) -> Variable:
        count = len(self.captures)
        variable = super()._capture(tensor)
        if len(self.captures) > count:
            # What the function itself has put into a handle is a constant: no handle holds it.
            owner = wrap(tensor._value) if self._is_replaced(tensor) else tensor
            self.inputs.append((variable, outside_source(owner)))
        return variable

    def _is_replaced(self, handle: Tensor) -> bool:
        """Whether the call has put another value into a handle than it held at the beginning."""
        held = self._held_of(handle)
        return held is not None and handle._value is not held.start


def argument_place(handle: Tensor) -> Device | None:
    """Where an argument is; None where there is one device, and for single numbers of the host.

    Arrays of the host are constants of the program that calls this one, where another does.
    """
    if len(CONCRETE) == 1 or (not handle.shape and is_host(handle._value)):
        return None
    place, is_called_by_program = place_of(handle), len(traces.recording) > 1
    if place is None and is_host(handle._value) and not is_called_by_program:
        return CPU
    return place


def outside_source(handle: Tensor) -> Source:
    """The source of a tensor that the function closes over."""
    return Source(handle=weakref.ref(handle), last=handle._value)


def record(
    arguments: Sequence[Tensor],
    call: Callable[[], Any],
    types: Sequence[TensorType] | None = None,
    device: Device = CPU,
) -> Recording:
    """Trace one call, in which these handles are the arguments, of their own or of given types."""
    kinds = [handle.type for handle in arguments] if types is None else types
    trace = StateTrace()
    trace.device = device
    target_of(device).start()
    before = [*traces.stack], traces.recording, traces.keeper, here.table, here.block
    gradients = grad_mode.enabled, grad_mode.stopped
    modes = scopes.module, scopes.phase, GENERATOR.here.counter
    autocast = AUTOCAST.get()
    paused = pause_collection()
    try:
        with active_trace(trace), Lifting():
            for position, (handle, kind) in enumerate(zip(arguments, kinds, strict=True)):
                trace.lift(handle, kind, Source(position))
            start = trace.input(GENERATOR.counter.type, Source())
            with GENERATOR.use_counter(wrap(start)) as counter:
                results, structure = trees.flatten(call())
            drawn = counter._value if counter._value is not start else None
            return _finish(trace, results, structure, drawn)
    finally:
        # A signal may come at any call, also where a block that ends is about to tidy up. There is
        # none between plain assignments, so that this thread is out of the trace in any case.
        traces.stack, traces.recording, traces.keeper, here.table, here.block = before
        grad_mode.enabled, grad_mode.stopped = gradients
        scopes.module, scopes.phase, GENERATOR.here.counter = modes
        if paused:
            gc.enable()
        AUTOCAST.set(autocast)


def _finish(
    trace: StateTrace, results: Sequence[Any], structure: TreeStructure, drawn: Any
) -> Recording:
    outputs: list[Atom] = []

    def put(value: Any) -> int:
        outputs.append(trace.atom(wrap(value)))
        return len(outputs) - 1

    shown = tuple(Output(put(r._value)) if isinstance(r, Tensor) else r for r in results)
    with recording(False, asked=True):  # what is written has no history in any case
        writes = [
            write
            for held in trace.held.values()
            for write in _writes_to_handle(held, put, trace.written_gradients)
        ]
    if drawn is not None:
        writes.append(Write(Source(), put(drawn)))
    graph, sources = _used_graph(trace, outputs)
    differentiable = any(_is_differentiable(result) for result in results)
    looked_at = frozenset(trace.read_gradients)
    placed = tuple([trace.places.get(variable) for variable in graph.inputs])
    places = placed if spans_devices(graph, placed, trace.device) else ()
    return Recording(
        graph, sources, shown, structure, tuple(writes), differentiable, looked_at, places
    )


def _writes_to_handle(held: Held, put: Callable[[Any], int], replaced: Set[int]) -> list[Write]:
    """What the call changed in one handle; its gradient also where it was cleared already."""
    found: list[Write] = []
    handle, source = held.handle(), held.source
    if handle is None:
        return found
    if handle._value is not held.start:
        found.append(Write(source, put(handle._value)))
    after = None if handle._grad is None else handle._grad._value
    if id(handle) in replaced or after is not held.start_grad:
        of_gradient = Source(source.argument, source.handle, gradient=True)
        found.append(Write(of_gradient, None if after is None else put(after)))
    return found


def _used_graph(trace: StateTrace, outputs: Sequence[Atom]) -> tuple[Graph, tuple[Source, ...]]:
    """The graph with only those inputs that it reads and that somebody still holds.

    An input of which only the size counts stays, too, if no other one says that size.
    """
    everything = tuple(variable for variable, _ in trace.inputs)
    graph = without_dead_nodes(Graph(everything, tuple(trace.nodes), tuple(outputs)))
    read = {atom for node in graph.nodes for atom in node.operands} | set(graph.outputs)
    said = {name for variable in everything if variable in read for name in _symbols(variable)}
    for variable in everything:
        if not said.issuperset(_symbols(variable)):
            said |= _symbols(variable)
            read.add(variable)
    used = [(variable, source) for variable, source in trace.inputs if variable in read]
    known = {v: Literal(s.last) for v, s in used if s.handle is not None and s.handle() is None}
    kept = [(variable, source) for variable, source in used if variable not in known]
    inputs = tuple(variable for variable, _ in kept)
    return substitute(graph, known, inputs), tuple(source for _, source in kept)


def _symbols(variable: Variable) -> frozenset[str]:
    """The symbols in the shape of a value."""
    return frozenset[str]().union(*map(symbols_in, variable.type.shape))


def _is_differentiable(result: Any) -> bool:
    node = result._node if isinstance(result, Tensor) else None
    if isinstance(node, Projection):
        node = node.parents[0]
    return node is not None and not (type(node) is Node and node.values is None)
