"""A compiled call whose derivative may be asked for later: two programs and what lies between.

The forward program also gives what the backward one needs and could not compute again at little
cost. Both are cut from one graph, that of the results and their cotangents: whatever depends on no
cotangent is forward. Of that, the backward program computes cheap things again, and is given the
rest: inputs, results, and saved values. A call is one node of the tape.

>>> import weft as wf
>>> from weft.compiler.function.taped import split_graph
>>> graph = wf.ir.trace(lambda a, b: wf.exp(a @ b), *[wf.spec("float32", (4, 4))] * 2)
>>> [place.kind for place in split_graph(graph, (True, True)).needed]
['input', 'input', 'output', 'cotangent']
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any, Literal, Protocol

import numpy as np

from weft.compiler.function.program_cache import executable, split_executable
from weft.compiler.fusion.costs import usual_bytes
from weft.compiler.graph_passes.common_subexpressions import merge_common_subexpressions
from weft.compiler.graph_passes.dead_code import remove_dead_code
from weft.compiler.graph_passes.loops.lighten import lighten_loops
from weft.compiler.plan.device_plan import Places, device_plan
from weft.compiler.targets.target import Executable, Target, default_target
from weft.core.arrays import CONCRETE
from weft.core.devices import CPU, Device
from weft.core.dimensions import symbols_in
from weft.core.records import frozen
from weft.core.shapes import symbol
from weft.core.types import TensorType
from weft.ir.eager_primitives import contiguous_array
from weft.ir.graph import Atom, Graph, GraphNode, Variable
from weft.ir.kinds import Elementwise, Movement
from weft.ir.primitive import Primitive
from weft.ir.reverse import or_zeros, vjp
from weft.ir.tape import LARGE, Node, Projection, hollow_tensor
from weft.ir.tensor import Tensor, traces, wrap
from weft.ir.tracing import interpret
from weft.ir.walking import is_pure, without_dead_nodes
from weft.ops.control import (
    Marks,
    closed_graph,
    inexact_marks,
    place_marked,
    select_marked,
    silent_graph,
)
from weft.ops.control_call import call
from weft.ops.control_loop import scan

Array = np.ndarray[Any, Any]


@frozen
class Place:
    """What the backward program is given at one place."""

    kind: Literal["input", "output", "saved", "cotangent"]
    position: int


@frozen
class Cut:
    """The two halves of a graph with its derivative."""

    forward: Graph
    """The outputs, then the saved values."""
    backward: Graph
    """The cotangents of the wanted inputs."""
    needed: tuple[Place, ...]
    """What the inputs of the backward graph are."""
    read: Marks
    """Which inputs the derivative reads, where it computes anew whatever it needs."""


@lru_cache(maxsize=512)
def split_graph(graph: Graph, wanted: Marks, target: Target | None = None) -> Cut:
    """Cut a graph with its derivative in two, for these inputs."""
    joint = graph_with_derivative(graph, wanted, target)
    return cut_in_two(joint, len(graph.inputs), len(graph.outputs))


def graph_with_derivative(graph: Graph, wanted: Marks, target: Target | None = None) -> Graph:
    """Inputs and cotangents of the outputs, to the outputs and the cotangents of wanted inputs."""
    joint = _joint(graph, wanted)
    if any(node.primitive is scan for node in joint.nodes):
        joint = _with_one_loop(joint, target or default_target())
    return joint


def cut_in_two(joint: Graph, input_count: int, output_count: int) -> Cut:
    """Cut a graph with its derivative, behind so many inputs and outputs, in two."""
    inputs, cotangents = joint.inputs[:input_count], joint.inputs[input_count:]
    outputs, gradients = joint.outputs[:output_count], joint.outputs[output_count:]
    is_late = _dependants(joint.nodes, cotangents)
    early = [node for node in joint.nodes if not is_late.issuperset(node.results)]
    late = [node for node in joint.nodes if is_late.issuperset(node.results)]
    repeated, saved = _choose(early, late, [*inputs, *outputs], gradients)
    forward = without_dead_nodes(Graph(inputs, tuple(early), (*outputs, *saved)))
    given = {v: Place("saved", len(outputs) + i) for i, v in enumerate(saved)}
    given |= {v: Place("output", i) for i, v in enumerate(outputs) if isinstance(v, Variable)}
    given |= {v: Place("input", i) for i, v in enumerate(inputs)}
    given |= {v: Place("cotangent", i) for i, v in enumerate(cotangents)}
    going_back = without_dead_nodes(Graph((), (*repeated, *late), gradients))
    backward = _closed_over(going_back.nodes, gradients, given)
    needed = tuple(given[variable] for variable in backward.inputs)
    derivative = without_dead_nodes(Graph(joint.inputs, joint.nodes, gradients))
    read = {atom for node in derivative.nodes for atom in node.operands} | set(gradients)
    return Cut(forward, backward, needed, tuple(variable in read for variable in inputs))


def _with_one_loop(joint: Graph, target: Target) -> Graph:
    """The graph of a loop and its derivative, which does not run the steps again.

    A scan's own derivative does. The passes see that the first loop has made the same values, and
    let it keep what is worth it: the sums of an LSTM's gates, say.
    """
    for _ in range(3):  # what a pass has made equal, the next round merges
        lighter = lighten_loops(remove_dead_code(joint), limits=target.limits.passes)
        before, joint = joint, merge_common_subexpressions(lighter)
        if joint is before:
            break
    return joint


def _joint(graph: Graph, wanted: Marks) -> Graph:
    """What `graph_with_derivative` gives, with loops as their derivatives are written."""
    count, kinds = len(graph.inputs), graph.output_types

    def outputs_and_cotangents(*values: Tensor) -> list[Tensor]:
        inputs, cotangents = values[:count], values[count:]

        def outputs(*varying: Tensor) -> Sequence[Tensor]:
            rest = iter(varying)
            arguments = [next(rest) if w else x for x, w in zip(inputs, wanted, strict=True)]
            return interpret(silent_graph(graph), *arguments)

        varying = select_marked(inputs, wanted)
        results, pullback = vjp(outputs, *varying)
        return [
            *results,
            *or_zeros(pullback(place_marked(cotangents, inexact_marks(kinds))), varying),
        ]

    return closed_graph(
        outputs_and_cotangents, [*graph.input_types, *select_marked(kinds, inexact_marks(kinds))]
    )


def _dependants(nodes: Sequence[GraphNode], sources: Sequence[Variable]) -> set[Variable]:
    """All that is computed from some values, and these values."""
    known = set(sources)
    for node in nodes:
        if not known.isdisjoint(node.operands):
            known.update(node.results)
    return known


def _choose(
    early: Sequence[GraphNode],
    late: Sequence[GraphNode],
    held: Sequence[Atom],
    gradients: Sequence[Atom],
) -> tuple[list[GraphNode], list[Variable]]:
    """The early nodes that the backward program repeats, and the values that are saved for it.

    A value that is cheap to compute is computed again where what that takes is no larger than the
    value itself; what is held anyway, inputs and outputs, takes nothing.
    """
    makers = {result: node for node in early for result in node.results}
    cost: dict[Atom, int] = dict.fromkeys(held, 0)
    repeats: set[Variable] = set()
    for node in early:
        again = sum(cost[atom] for atom in set(node.operands) if isinstance(atom, Variable))
        for result in node.results:
            size = usual_bytes(result.type)
            if result in cost:
                continue
            cost[result] = min(size, again) if _is_cheap(node) else size
            if _is_cheap(node) and again <= size:
                repeats.add(result)
    asked = [atom for node in late for atom in node.operands]
    asked += [atom for atom in gradients if atom in makers]
    saved: dict[Variable, None] = {}
    repeated: set[int] = set()
    seen: set[Atom] = set(held)
    while asked:
        atom = asked.pop()
        if atom in seen or atom not in makers:
            continue
        seen.add(atom)
        assert isinstance(atom, Variable)
        if atom in repeats:
            node = makers[atom]
            repeated.add(id(node))
            asked.extend(node.operands)
        else:
            saved[atom] = None
    ordered = [v for node in early for v in node.results if v in saved]
    return [node for node in early if id(node) in repeated], ordered


def _is_cheap(node: GraphNode) -> bool:
    kind = node.primitive.kind
    return isinstance(kind, Elementwise | Movement) and is_pure(node)


def _closed_over(
    nodes: tuple[GraphNode, ...], outputs: Sequence[Atom], given: dict[Any, Place]
) -> Graph:
    """The graph of nodes, whose inputs are those of the given values that it reads.

    A value of which only the size counts is an input, too, if no other one says that size.
    """
    made = {result for node in nodes for result in node.results}
    read = {a for node in nodes for a in node.operands} | set(outputs)
    inputs = [v for v in given if v in read and v not in made]
    said = frozenset[str]().union(*(_sizes_told(v.type) for v in inputs))
    asked = frozenset[str]().union(*(_symbols(v.type) for v in (*made, *inputs)))
    for value in given:
        if not asked <= said and value not in made and not _sizes_told(value.type) <= said:
            said |= _sizes_told(value.type)
            inputs.append(value)
    order = {value: place for place, value in enumerate(given)}
    kinds = {"input": 0, "output": 1, "saved": 2, "cotangent": 3}
    inputs.sort(key=lambda v: (kinds[given[v].kind], order[v]))
    return Graph(tuple(inputs), nodes, tuple(outputs))


def _symbols(kind: TensorType) -> frozenset[str]:
    return frozenset[str]().union(*map(symbols_in, kind.shape))


def _sizes_told(kind: TensorType) -> frozenset[str]:
    """The symbols that are sizes of axes by themselves, so that a shape tells what they are."""
    return frozenset(name for name in _symbols(kind) if symbol(name) in kind.shape)


class GraphDerivative(Protocol):
    """The derivative of a graph that is not found by differentiating it.

    The program of one process of many is such a graph: what others do with its results counts.
    """

    is_silent: bool
    """Whether a run shows nothing beside values."""
    primitive: Primitive
    params: dict[str, Any]
    """The operation that the graph is where it is not a call, and its parameters beside the graph.

    Its rule is for all derivatives inside of transforms and of higher order."""

    def split_graph(self, graph: Graph, wanted: Marks, target: Target | None) -> Cut:
        """The graph with its derivative, in two; see the function."""
        ...


class Taped:
    """The two programs of a graph, for calls in which these inputs have a place on the tape."""

    __slots__ = ("_backward", "_cut", "_device", "_dropped_inputs", "_dropped_outputs", "_forward",
                 "_given", "_inexact", "_inexact_places", "_params", "_places",
                 "_primitive", "_target", "_wanted", "graph")  # fmt: skip

    def __init__(
        self,
        graph: Graph,
        wanted: Marks,
        target: Target | None = None,
        places: Places = (),
        device: Device = CPU,
        derivative: GraphDerivative | None = None,
    ) -> None:
        """`places`: of the inputs, where the graph has parts on several devices; else nothing.

        derivative: what knows it, where it is not that of the graph.
        """
        self.graph, self._target, self._device = graph, target, device
        self._wanted = tuple(
            w and d for w, d in zip(wanted, inexact_marks(graph.input_types), strict=True)
        )
        cut = split_graph if derivative is None else derivative.split_graph
        self._cut = cut(graph, self._wanted, target)
        self._forward = unit_executable(self._cut.forward, target, places, device)
        self._places = self._needed_places(places) if places else ()
        self._backward: Executable | None = None
        shift = len(graph.inputs) - len(graph.outputs)  # what is saved stands behind the inputs
        self._given = [
            (place.kind, place.position + (shift if place.kind == "saved" else 0))
            for place in self._cut.needed
        ]
        """Where on a node what the backward program is given stands."""
        needed = set(self._cut.needed)
        self._dropped_inputs = [
            place
            for place, is_read in enumerate(self._cut.read)
            if not is_read and Place("input", place) not in needed
        ]
        self._dropped_outputs = [
            place for place in range(len(graph.outputs)) if Place("output", place) not in needed
        ]
        self._inexact = inexact_marks(graph.output_types)
        self._inexact_places = [place for place, is_one in enumerate(self._inexact) if is_one]
        self._primitive = call if derivative is None else derivative.primitive
        rule = {} if derivative is None else derivative.params
        self._params = {"graph": graph, "pull": self, **rule}

    def _needed_places(self, places: Places) -> Places:
        """Where what the backward program is given is, in a program on several devices."""
        outputs = device_plan(self._cut.forward, places, self._device).outputs
        results = outputs[: len(self.graph.outputs)]
        inexact_outputs = select_marked(results, inexact_marks(self.graph.output_types))
        return tuple(
            places[place.position]
            if place.kind == "input"
            else (inexact_outputs if place.kind == "cotangent" else outputs)[place.position][1]
            for place in self._cut.needed
        )

    def __call__(self, inputs: Sequence[Tensor], arrays: Sequence[Array]) -> list[Tensor]:
        """The outputs, with one node of the tape behind them."""
        found = run_kept(self._cut.forward, self._forward, arrays)
        results = [wrap(array) for array in found[: len(self.graph.outputs)]]
        self.attach(inputs, arrays, results, found)
        return results

    def quick_forward(self, arrays: Sequence[Array]) -> Any:
        """What computes results and saved values of arrays of these kinds with little work.

        None where the forward program knows no such way; it is there after a run on such arrays.
        """
        find = getattr(self._forward, "quick_call", None)
        return None if find is None else find(arrays)

    def attach(
        self,
        inputs: Sequence[Tensor],
        arrays: Sequence[Array],
        results: Sequence[Tensor],
        found: Sequence[Array],
    ) -> None:
        """Give results, found with what is saved behind them, one node of the tape."""
        count = len(results)
        values, outs = [*arrays, *found[count:]], [*found[:count]]
        for place in self._dropped_inputs:
            values[place] = _without_value(values[place])
        for place in self._dropped_outputs:
            outs[place] = _without_value(outs[place])
        parents = tuple([tensor._node for tensor in inputs])
        node = Node(self._primitive, self._params, tuple(values), parents, tuple(outs))
        for index, result in enumerate(results):
            if self._inexact[index]:
                result._node = Projection(node, index)

    @property
    def count(self) -> int:
        """How many results there are, before the saved values."""
        return len(self.graph.outputs)

    @property
    def saves_nothing(self) -> bool:
        """Whether the way back needs inputs, outputs and cotangents alone."""
        return len(self._cut.forward.outputs) == len(self.graph.outputs)

    def pull(self, node: Node, cotangents: dict[int, Tensor]) -> list[Tensor | None] | None:
        """The cotangents of the operands of a node; None where the general rule must find them."""
        arrays: list[Any] = []
        values, out = node.values, node.out
        assert values is not None
        for kind, position in self._given:
            if kind == "cotangent":
                arrays.append(self._cotangent(node, cotangents, position))
            else:
                arrays.append(out[position] if kind == "output" else values[position])
        if not CONCRETE.issuperset(map(type, arrays)):
            return None
        if self._backward is None:
            graph = self._cut.backward
            self._backward = unit_executable(graph, self._target, self._places, self._device)
        found = iter(self._backward.run([contiguous_array(array) for array in arrays]))
        return [wrap(next(found)) if want else None for want in self._wanted]

    def _cotangent(self, node: Node, cotangents: dict[int, Tensor], position: int) -> Any:
        """A cotangent that the backward program takes, one for each result with derivatives."""
        index = self._inexact_places[position]
        known = cotangents.get(index)
        if known is not None:
            return known._value
        kind = wrap(node.out[index]).type
        return np.zeros(kind.shape, kind.dtype.numpy)


def unit_executable(
    graph: Graph, target: Target | None = None, places: Places = (), device: Device = CPU
) -> Executable:
    """What runs a graph that is one of many in a step, and shares its memory with them."""
    found: Executable
    if places:
        found = split_executable(graph, places, device)
    else:
        found = executable(graph, target=target)
    found.share_memory()
    return found


def run_kept(graph: Graph, program: Executable, arrays: Sequence[Array]) -> Sequence[Array]:
    """Run a program; in a function that will be run again, its results may be kept."""
    if traces.keeper is None:
        return program.run(arrays)
    found: Sequence[Array] = traces.keeper.unit(graph, arrays, lambda: program.run(arrays))
    return found


def _without_value(array: Array) -> Any:
    """What stands for an array that no derivative needs: its type, if it is large."""
    return hollow_tensor(wrap(array).type)._value if array.nbytes >= LARGE else array
