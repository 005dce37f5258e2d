"""Tracing: running a Python function to obtain its graph.

Tensors from outside that the function uses (closures) become further inputs, after its arguments,
so a graph never holds another trace's values; small constants are written into the graph.

>>> import weft as wf
>>> wf.ir.trace(wf.sin, wf.spec("float32", ())).output_types
(f32[],)
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from weft.core.arrays import CONCRETE, is_concrete, is_host
from weft.core.devices import CPU, Device
from weft.core.errors import ArgumentError
from weft.core.locations import node_location
from weft.core.records import frozen
from weft.core.scopes import scopes
from weft.core.types import TensorType
from weft.ir.dispatch import active_trace, bind
from weft.ir.graph import Atom, Graph, GraphNode, Literal, Variable
from weft.ir.places import TRANSFER, result_places
from weft.ir.primitive import PRIMITIVES, Primitive
from weft.ir.sizes import specialize
from weft.ir.tensor import Tensor, Trace, Traced, host_array, traces, wrap
from weft.ir.walking import without_dead_nodes


class Staged(Traced):
    """A tensor that stands for a variable of the graph being recorded."""

    __slots__ = ("module", "stopped", "variable")
    variable: Variable
    module: str
    """The module it was computed in; what goes back through it belongs there, too."""
    stopped: bool
    """Whether it was computed under `no_grad`: whoever differentiates the graph must know."""

    @property
    def device(self) -> Device:
        """Where it will be computed; what was made of nothing that is placed may be anywhere."""
        assert isinstance(self.trace, GraphTrace)
        return self.trace.places.get(self.variable, self.trace.device)


class GraphTrace(Trace):
    """Records each primitive as a node."""

    name = "trace"
    stages = True

    def __init__(self) -> None:
        self.nodes: list[GraphNode] = []
        self.captured: list[Tensor] = []
        self.captures: list[Variable] = []
        self._known: dict[tuple[int, int], Variable] = {}
        self._unlinked: dict[Variable, Variable] = {}
        self.places: dict[Variable, Device] = {}
        """Where values are that cannot be anywhere: what was moved, and is computed from it."""

    def tensor(self, variable: Variable) -> Tensor:
        """The tensor that stands for a variable."""
        value = Staged()
        value.trace = self
        value.type = variable.type
        value.variable = variable
        value.module = scopes.module
        value.stopped = self.is_stopping() and variable.type.dtype.is_inexact
        return wrap(value)

    def atom(self, tensor: Tensor) -> Atom:
        """The atom of a tensor in this graph; captured if it comes from outside."""
        value = tensor._value
        if isinstance(value, Staged) and value.trace is self:
            if value.stopped and not self.is_stopping():
                return self._without_derivative(value)
            return value.variable
        if self._is_literal(tensor):
            return Literal(value)
        return self._capture(tensor)

    def _without_derivative(self, value: Staged) -> Variable:
        """A value from inside of `no_grad`, as it is read outside of it."""
        known = self._unlinked.get(value.variable)
        if known is None:
            known = self._unlinked[value.variable] = Variable(value.type)
            stop = PRIMITIVES["stop_gradient"]
            self.nodes.append(GraphNode(stop, (value.variable,), {}, (known,), node_location()))
            if value.variable in self.places:
                self.places[known] = self.places[value.variable]
        return known

    def _is_literal(self, tensor: Tensor) -> bool:
        """Whether a tensor from outside is written into the graph as a number."""
        return is_host(tensor._value) and tensor._value.ndim == 0 and tensor._node is None

    def _capture(self, tensor: Tensor) -> Variable:
        identity = id(tensor._value), id(tensor._node)
        known = self._known.get(identity)
        if known is None:
            known = Variable(tensor.type)
            self._known[identity] = known
            self.captured.append(wrap(tensor._value, tensor._node))
            self.captures.append(known)
            place = place_of(tensor)
            if place is not None:
                self.places[known] = place
        return known

    def process_primitive(
        self, primitive: Primitive, operands: tuple[Tensor, ...], params: dict[str, Any], types: Any
    ) -> Any:
        """See `Trace`."""
        kinds = types if primitive.multiple else (types,)
        results = tuple([Variable(kind) for kind in kinds])
        atoms = tuple([self.atom(operand) for operand in operands])
        if self.places or primitive.name == TRANSFER:
            given = [place_of(operand) for operand in operands]
            placed = result_places(primitive, params, operands, given, len(results))
            for result, place in zip(results, placed, strict=True):
                if place is not None:
                    self.places[result] = place
        self.nodes.append(GraphNode(primitive, atoms, params, results, node_location()))
        if primitive.multiple:
            return tuple(self.tensor(result) for result in results)
        return self.tensor(results[0])


def place_of(tensor: Tensor) -> Device | None:
    """The device that a tensor is on; None for what may be read beside any other.

    That is an array of the host, which becomes a constant or a number of a program, and what is
    traced of such.
    """
    value = tensor._value
    if isinstance(value, Staged):
        assert isinstance(value.trace, GraphTrace)
        return value.trace.places.get(value.variable)
    return value.device if type(value) in CONCRETE and not is_host(value) else None


@frozen
class Closure:
    """A graph whose last inputs are tensors that the traced function closed over."""

    graph: Graph
    captured: tuple[Tensor, ...]

    def closed_graph(self) -> Graph:
        """The graph with concrete captured tensors written in as constants."""
        known = {
            variable: Literal(host_array(tensor, "trace"))
            for variable, tensor in zip(self._captures(), self.captured, strict=True)
            if is_concrete(tensor._value)
        }
        inputs = tuple(variable for variable in self.graph.inputs if variable not in known)
        return substitute(self.graph, known, inputs)

    def _captures(self) -> tuple[Variable, ...]:
        return self.graph.inputs[len(self.graph.inputs) - len(self.captured) :]


def trace(
    f: Callable[..., Sequence[Tensor]],
    types: Sequence[TensorType],
    *,
    whole: bool = False,
    recorder: GraphTrace | None = None,
) -> Closure:
    """The graph of f on arguments of these types; `whole` keeps what no output needs."""
    recorder = GraphTrace() if recorder is None else recorder
    recorder.device = traces.recording[-1].device if traces.recording else traces.device or CPU
    recorder.is_placed = bool(traces.recording) or traces.device is not None
    with active_trace(recorder):
        inputs = [Variable(kind) for kind in types]
        results = f(*[recorder.tensor(variable) for variable in inputs])
        outputs = tuple(recorder.atom(result) for result in results)
    graph = Graph((*inputs, *recorder.captures), tuple(recorder.nodes), outputs)
    return Closure(graph if whole else without_dead_nodes(graph), tuple(recorder.captured))


def substitute(graph: Graph, known: dict[Variable, Literal], inputs: tuple[Variable, ...]) -> Graph:
    """The graph with variables replaced by constants."""
    if not known:
        return Graph(inputs, graph.nodes, graph.outputs, graph.name)

    def put(atoms: tuple[Atom, ...]) -> tuple[Atom, ...]:
        return tuple(
            known.get(atom, atom) if isinstance(atom, Variable) else atom for atom in atoms
        )

    nodes = tuple(
        GraphNode(n.primitive, put(n.operands), n.params, n.results, n.location)
        for n in graph.nodes
    )
    return Graph(inputs, nodes, put(graph.outputs), graph.name)


def interpret(graph: Graph, *arguments: Tensor) -> tuple[Tensor, ...]:
    """Run a graph on tensors, node by node; traced tensors may be among them.

    Symbolic sizes of the graph are those that the arguments have.
    """
    if len(arguments) != len(graph.inputs):
        raise ArgumentError(
            "interpret",
            "not as many tensors as the graph has inputs",
            expected=f"{len(graph.inputs)} tensors: {', '.join(map(str, graph.input_types))}",
            got={f"x{i + 1}": argument for i, argument in enumerate(arguments)},
            fix="pass one tensor for each input, in order",
        )
    graph = specialize(graph, [argument.type for argument in arguments])
    values: dict[Variable, Tensor] = dict(zip(graph.inputs, arguments, strict=True))

    def read(atom: Atom) -> Tensor:
        return values[atom] if isinstance(atom, Variable) else wrap(atom.value)

    for node in graph.nodes:
        result = bind(node.primitive, *map(read, node.operands), **node.params)
        if node.primitive.multiple:
            values.update(zip(node.results, result, strict=True))
        else:
            values[node.results[0]] = result
    return tuple(read(atom) for atom in graph.outputs)
