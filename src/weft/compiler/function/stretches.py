"""Movement of elements that needs no launch: a stretch of an operand's memory in another shape.

Axes of size 1, reshapes, slices of the first axes: the result's elements lie one after the other
in the operand's memory. Whether they do, NumPy says, of an array of the same shape on no memory.
Programs copy such results; eager work on devices that know their layout does not.

>>> import weft as wf
>>> graph = wf.ir.trace(lambda x: x[2:4].reshape(-1), wf.spec("float32", (8, 3)))
>>> shown_elements(graph, wf.ones((8, 3)).numpy()).shape
(6,)
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from weft.ir.graph import Graph
from weft.ir.kinds import Movement

Array = np.ndarray[Any, Any]


def stretch_of(
    graph: Graph, arrays: Sequence[Any]
) -> Callable[[Sequence[Any]], Sequence[Any]] | None:
    """What gives the one result of a graph without a launch; None where that cannot be done."""
    if len(arrays) != 1 or not hasattr(arrays[0], "part_at"):
        return None
    shown = shown_elements(graph, arrays[0].kind.layout)
    stretch = None if shown is None else arrays[0].kind.stretch(shown)
    if stretch is None:
        return None
    start, kind = stretch

    def compute(given: Sequence[Any]) -> Sequence[Any]:
        return (given[0].part_at(start, kind),)

    return compute


def shown_elements(graph: Graph, layout: Array) -> Array | None:
    """What the result of a graph shows of its operand, a view; None where it is none.

    Elements are not read.
    """
    (atom,), shown = graph.inputs, layout
    for node in graph.nodes:
        kind = node.primitive.kind
        view = kind.view if isinstance(kind, Movement) else None
        if view is None or node.operands != (atom,) or not _is_static(node.params):
            return None
        if not shown.flags.c_contiguous:
            return None
        shown, (atom,) = view(shown, **node.params), node.results
    is_result = graph.nodes and graph.outputs == (atom,)
    return shown if is_result else None


def _is_static(params: dict[str, Any]) -> bool:
    """Whether all sizes and places are numbers."""
    return all(type(each) is int for value in params.values() for each in value)
