"""Graphs made from graphs: what derivatives and batching of control flow are built of.

A primitive that holds graphs is differentiated and batched by running its graphs under `jvp`,
`vjp` or `vmap` and recording that run as a new graph. Derived graphs are remembered by the
structure of the graph they come from, so a loop that is traced anew derives nothing twice.

>>> import numpy as np
>>> from weft.core.types import spec
>>> from weft.ops.control import closed_graph, run
>>> from weft.ops.elementary import sin
>>> graph = closed_graph(lambda x: [sin(x)], [spec("float32")])
>>> run(graph, (np.float32(0.0),))[0].item()
0.0
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache, partial, wraps
from itertools import accumulate
from typing import Any, TypeVar, cast

import numpy as np

from weft.core.errors import ArgumentError
from weft.core.shapes import Dimension, equal
from weft.core.types import TensorType
from weft.ir.abstract import AbstractTrace
from weft.ir.batching import to_front, vmap
from weft.ir.dispatch import OBSERVERS, active_trace
from weft.ir.forward import jvp
from weft.ir.graph import Atom, Graph, GraphNode, Variable
from weft.ir.places import TRANSFER
from weft.ir.reverse import or_zeros, vjp
from weft.ir.tensor import Tensor, traces
from weft.ir.tracing import interpret, trace
from weft.ir.walking import graphs_of, is_pure, replace_node

__all__: list[str] = []

Array = np.ndarray[Any, Any]
Marks = tuple[bool, ...]
"""Which of some values move with a derivative's direction, or have a batch axis."""
T = TypeVar("T")
Derived = TypeVar("Derived", bound=Callable[..., Any])


def remember(derive: Derived) -> Derived:
    """Keep what is derived from graphs, for each mesh axis that a batch stands for."""

    @lru_cache(maxsize=512)
    def derive_over(axis_name: str | None, *arguments: Any, **options: Any) -> Any:
        return derive(*arguments, **options)

    @wraps(derive)
    def look_up(*arguments: Any, **options: Any) -> Any:
        return derive_over(traces.axis_name, *arguments, **options)

    return cast(Derived, look_up)


def run(graph: Graph, arrays: Iterable[Array]) -> tuple[Array, ...]:
    """The outputs of a graph on arrays, each node by its reference."""
    values: dict[Variable, Array] = dict(zip(graph.inputs, arrays, strict=True))

    def read(atom: Atom) -> Array:
        return values[atom] if isinstance(atom, Variable) else atom.value

    with np.errstate(all="ignore"):
        for node in graph.nodes:
            result = node.primitive.reference(*map(read, node.operands), **node.params)
            results = result if node.primitive.multiple else (result,)
            for observe in OBSERVERS:
                arrays = list(map(read, node.operands))
                observe(node.primitive, arrays, results, node.location)
            values.update(zip(node.results, map(np.asarray, results), strict=True))
    return tuple(map(read, graph.outputs))


def closed_graph(f: Callable[..., Sequence[Tensor]], types: Sequence[TensorType]) -> Graph:
    """The graph of a function that closes over nothing but concrete tensors."""
    return trace(f, types).closed_graph()


def select_marked(values: Iterable[T], marks: Iterable[bool]) -> list[T]:
    """The values that are marked."""
    return [value for value, mark in zip(values, marks, strict=True) if mark]


def place_marked(values: Iterable[T], marks: Iterable[bool]) -> list[T | None]:
    """The values at the marked places, None at the others: undoes `select_marked`."""
    rest = iter(values)
    return [next(rest) if mark else None for mark in marks]


def union(*marks: Marks) -> Marks:
    """The marks that any of several has."""
    return tuple(any(column) for column in zip(*marks, strict=True))


def inexact_marks(values: Iterable[Tensor | TensorType]) -> Marks:
    """Which values have derivatives."""
    return tuple(value.dtype.is_inexact for value in values)


def settle(step: Callable[[Marks], Marks], marks: Marks) -> Marks:
    """The smallest marks from these on that a step of a loop adds nothing to."""
    while (grown := union(marks, step(marks))) != marks:
        marks = grown
    return marks


def split_by_counts(values: Sequence[T], counts: Sequence[int]) -> list[Sequence[T]]:
    """The values in groups of so many each."""
    ends = list(accumulate(counts))
    return [values[end - count : end] for end, count in zip(ends, counts, strict=True)]


# --- effects -----------------------------------------------------------------------------------


def silent_graph(graph: Graph) -> Graph:
    """The graph without nodes that only have an effect: a derivative must not print again."""
    return graph if shows_nothing(graph) else _without_shown_nodes(graph)


def shows_nothing(graph: Graph) -> bool:
    """Whether a run of a graph is not seen from outside; a move to another device is not."""
    return all(
        node.primitive.name == TRANSFER
        or (not node.primitive.impure and all(map(shows_nothing, graphs_of(node))))
        for node in graph.nodes
    )


@remember
def _without_shown_nodes(graph: Graph) -> Graph:
    read = {atom for node in graph.nodes for atom in node.operands} | set(graph.outputs)
    effects_only = [n for n in graph.nodes if n.primitive.impure and read.isdisjoint(n.results)]
    nodes = [_silent_node(node) for node in graph.nodes if node not in effects_only]
    return Graph(graph.inputs, tuple(nodes), graph.outputs, graph.name)


def _silent_node(node: GraphNode) -> GraphNode:
    if is_pure(node):
        return node
    return replace_node(node, params={k: _silent_value(v) for k, v in node.params.items()})


def _silent_value(value: Any) -> Any:
    if isinstance(value, Graph):
        return silent_graph(value)
    return tuple(map(_silent_value, value)) if isinstance(value, tuple) else value


# --- forward mode ------------------------------------------------------------------------------


def tangent_outputs(
    graph: Graph, primals: Sequence[Tensor], tangents: Iterable[Tensor], moving: Marks
) -> tuple[list[Tensor], list[Tensor | None]]:
    """Outputs and their tangents, given the tangents of the inputs that move."""
    return jvp(partial(interpret, silent_graph(graph)), primals, place_marked(tangents, moving))


@remember
def moving_outputs(graph: Graph, moving: Marks) -> Marks:
    """Which outputs move when these inputs do."""
    space = AbstractTrace()
    with active_trace(space):
        primals = [space.tensor(kind) for kind in graph.input_types]
        tangents = [space.tensor(kind) for kind in select_marked(graph.input_types, moving)]
        _, output_tangents = tangent_outputs(graph, primals, tangents, moving)
    return tuple(each is not None for each in output_tangents)


@remember
def tangent_graph(graph: Graph, moving: Marks, wanted: Marks) -> Graph:
    """Inputs and tangents of those that move, to the tangents of the wanted outputs."""
    count = len(moving)

    def tangents(*values: Tensor) -> list[Tensor]:
        outputs, output_tangents = tangent_outputs(graph, values[:count], values[count:], moving)
        return or_zeros(select_marked(output_tangents, wanted), select_marked(outputs, wanted))

    return closed_graph(tangents, [*graph.input_types, *select_marked(graph.input_types, moving)])


# --- reverse mode ------------------------------------------------------------------------------


def input_cotangents(
    graph: Graph, inputs: Sequence[Tensor], cotangents: Iterable[Tensor], wanted: Marks
) -> list[Tensor]:
    """Cotangents of the wanted inputs, given those of the outputs that have derivatives."""

    def outputs(*varying: Tensor) -> tuple[Tensor, ...]:
        rest = iter(varying)
        arguments = [next(rest) if w else x for x, w in zip(inputs, wanted, strict=True)]
        return interpret(silent_graph(graph), *arguments)

    varying = select_marked(inputs, wanted)
    _, pullback = vjp(outputs, *varying)
    return or_zeros(pullback(place_marked(cotangents, inexact_marks(graph.output_types))), varying)


@remember
def cotangent_graph(graph: Graph, wanted: Marks) -> Graph:
    """Inputs and cotangents of the outputs, to the cotangents of the wanted inputs."""
    count = len(wanted)
    outputs = graph.output_types
    return closed_graph(
        lambda *values: input_cotangents(graph, values[:count], values[count:], wanted),
        [*graph.input_types, *select_marked(outputs, inexact_marks(outputs))],
    )


# --- batching ----------------------------------------------------------------------------------


def _batch_type(size: Dimension, kind: TensorType, mark: bool) -> TensorType:
    return kind.with_shape((size, *kind.shape)) if mark else kind


def batched_interpretation(
    graph: Graph, size: Dimension, inputs: Sequence[Tensor], marks: Marks
) -> list[tuple[Tensor, int | None]]:
    """Outputs with their batch axes, given inputs of which the marked have one in front."""
    axes = [0 if mark else None for mark in marks]
    return vmap(partial(interpret, graph), size, inputs, axes, traces.axis_name)


@remember
def batched_outputs(graph: Graph, marks: Marks, size: Dimension) -> Marks:
    """Which outputs have a batch axis when these inputs do."""
    space = AbstractTrace()
    with active_trace(space):
        pairs = zip(graph.input_types, marks, strict=True)
        inputs = [space.tensor(_batch_type(size, kind, mark)) for kind, mark in pairs]
        outputs_with_axes = batched_interpretation(graph, size, inputs, marks)
    return tuple(axis is not None for _, axis in outputs_with_axes)


@remember
def batched_graph(graph: Graph, size: Dimension, marks: Marks, wanted: Marks) -> Graph:
    """The graph over a batch: marked inputs have, and wanted outputs get, the batch axis first."""

    def outputs(*inputs: Tensor) -> list[Tensor]:
        outputs_with_axes = batched_interpretation(graph, size, inputs, marks)
        return [
            to_front(size, tensor, axis) if want else tensor
            for (tensor, axis), want in zip(outputs_with_axes, wanted, strict=True)
        ]

    pairs = zip(graph.input_types, marks, strict=True)
    return closed_graph(outputs, [_batch_type(size, kind, mark) for kind, mark in pairs])


# --- types -------------------------------------------------------------------------------------


def require_types(
    op: str, what: str, wanted: Sequence[TensorType], given: Sequence[TensorType]
) -> None:
    """Refuse types that differ in number, dtype or shape from the ones a graph was made for."""
    if len(wanted) != len(given):
        raise ArgumentError(
            op,
            f"{what}: {len(given)} values for {len(wanted)} places",
            expected=f"{len(wanted)} values: {list(wanted)}",
            got={"values": list(given)},
            fix="pass one operand for each input of the graph",
        )
    for position, (a, b) in enumerate(zip(wanted, given, strict=True)):
        if not same_type(a, b):
            raise ArgumentError(
                op,
                f"{what}: value {position} has another type than its place",
                expected=str(a),
                got={"value": b},
                fix="trace the function again on operands of these types",
            )


def same_type(a: TensorType, b: TensorType) -> bool:
    """Whether two types agree in dtype and, in every size, in shape."""
    return (
        a.dtype is b.dtype
        and a.ndim == b.ndim
        and all(equal(x, y) for x, y in zip(a.shape, b.shape, strict=True))
    )
