"""A call: a graph as one operation, evaluated by whoever evaluates graphs best.

The compiler puts its own evaluator in `EVALUATOR`; without it a graph is run node by node.

>>> import weft as wf
>>> from weft.core.types import spec
>>> from weft.ops.control import closed_graph
>>> from weft.ops.control_call import call_graph
>>> graph = closed_graph(lambda x: [wf.sin(x) * 2], [spec("float32")])
>>> call_graph(graph, wf.tensor(0.0))[0].item()
0.0
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from weft.core.shapes import Dimension, is_static
from weft.core.types import TensorType, spec
from weft.ir.batching import move_axis
from weft.ir.derivatives import joint
from weft.ir.dispatch import apply_multiple
from weft.ir.graph import Graph
from weft.ir.kinds import Control
from weft.ir.primitive import Primitive, Sample
from weft.ir.sizes import specialize
from weft.ir.tensor import Tensor
from weft.ops.arithmetic import multiply
from weft.ops.control import (
    Array,
    Marks,
    batched_graph,
    batched_outputs,
    closed_graph,
    cotangent_graph,
    inexact_marks,
    moving_outputs,
    place_marked,
    remember,
    run,
    select_marked,
    tangent_graph,
)
from weft.ops.elementary import sin

__all__: list[str] = []

EVALUATOR: list[Callable[[Graph, Sequence[Array]], Sequence[Array]]] = [run]
"""The last one is in force."""


def _call_type(*operands: TensorType, graph: Graph) -> tuple[TensorType, ...]:
    return specialize(graph, operands).output_types


def _call_jvp(
    primals: Sequence[Tensor], tangents: Sequence[Tensor | None], out: Any, graph: Graph
) -> list[Tensor | None]:
    moving = tuple(tangent is not None for tangent in tangents)
    wanted = moving_outputs(graph, moving)
    if not any(wanted):
        return [None] * len(wanted)
    given = [tangent for tangent in tangents if tangent is not None]
    derived = tangent_graph(graph, moving, wanted)
    return place_marked(apply_multiple(call, *primals, *given, graph=derived), wanted)


def _call_vjp(
    cotangents: Sequence[Tensor | None],
    out: Any,
    primals: Sequence[Tensor],
    wanted: Sequence[bool],
    graph: Graph,
    pull: object = None,
) -> list[Tensor | None]:
    """The derivative as a call of a graph that computes anew what it needs of the forward one.

    pull: what a compiled call has for first derivatives alone, see `ir/reverse.py`. Such a call
    keeps saved values behind its operands, and of operands that the derivative does not read
    only the type.
    """
    primals = primals[: len(graph.inputs)]
    if pull is not None:  # so that no operand is there for its size alone
        graph = specialize(graph, [primal.type for primal in primals])
    asked = tuple(w and d for w, d in zip(wanted, inexact_marks(primals), strict=True))
    given = [cotangent for cotangent in cotangents if cotangent is not None]
    derived, read = _read_inputs(cotangent_graph(graph, asked))
    operands = select_marked([*primals, *given], read)
    return place_marked(apply_multiple(call, *operands, graph=derived), asked)


@remember
def _read_inputs(graph: Graph) -> tuple[Graph, Marks]:
    """A graph without the inputs that it does not read, and which these are not.

    An input of which only the size counts stays.
    """
    read = {atom for node in graph.nodes for atom in node.operands} | set(graph.outputs)
    marks = tuple(v in read or not is_static(v.type.shape) for v in graph.inputs)
    return Graph(tuple(select_marked(graph.inputs, marks)), graph.nodes, graph.outputs), marks


def _batch_call(
    size: Dimension, operands: tuple[Tensor, ...], axes: tuple[int | None, ...], graph: Graph
) -> tuple[tuple[Tensor, ...], list[int | None]]:
    marks = tuple(axis is not None for axis in axes)
    wanted = batched_outputs(graph, marks, size)
    pairs = zip(operands, axes, strict=True)
    fronts = [x if axis is None else move_axis(x, axis, 0) for x, axis in pairs]
    out = apply_multiple(call, *fronts, graph=batched_graph(graph, size, marks, wanted))
    return out, [0 if want else None for want in wanted]


def _samples() -> list[Sample]:
    kinds = [spec("float64", (3,)), spec("float64")]
    graph = closed_graph(lambda x, a: [sin(multiply(x, a)), multiply(x, x)], kinds)
    return [Sample((np.array([0.3, -1.1, 0.8]), np.array(0.7)), {"graph": graph})]


call: Primitive = Primitive(
    "call",
    "The outputs of a graph, as one operation.",
    kind=Control(),
    type_rule=_call_type,
    reference=lambda *arrays, graph: tuple(EVALUATOR[-1](graph, arrays)),
    derivatives=joint(_call_jvp, _call_vjp),
    batch=_batch_call,
    samples=_samples,
    multiple=True,
)


def call_graph(graph: Graph, *operands: Tensor) -> tuple[Tensor, ...]:
    """The outputs of a graph on tensors."""
    return apply_multiple(call, *operands, graph=graph)
