"""Between which numbers a value must lie, where that can be told from the graph alone.

A range is what holds for all inputs. Most values may be anything; those that come from a relu, an
absolute value, a square or an exponential may not.

>>> import weft as wf
>>> from weft.tools.ranges import ranges_of
>>> graph = wf.ir.trace(lambda x: 1 + wf.relu(x), wf.spec("float32", (3,)))
>>> ranges_of(graph)[graph.outputs[0]]
Range(low=1.0, high=inf, reached=True)
"""

from __future__ import annotations

from collections.abc import Sequence
from math import isnan
from typing import Any

import numpy as np

import weft as wf

__all__ = ["ANYTHING", "Range", "range_of", "ranges_of"]

kinds = wf.ir.kinds
Range = wf.ir.ranges.Range
ANYTHING = wf.ir.ranges.ANYTHING
MULTIPLY = wf.ir.PRIMITIVES["multiply"]


def ranges_of(graph: wf.ir.Graph) -> dict[Any, Range]:
    """The range of each value of a graph."""
    by_value: dict[Any, Range] = dict.fromkeys(graph.inputs, ANYTHING)
    same = _squares(graph)
    for node in graph.nodes:
        ranges = [range_of(atom, by_value) for atom in node.operands]
        result = wf.ir.ranges.NOT_NEGATIVE if node in same else _bounds(node, ranges)
        by_value.update((each, result) for each in node.results)
    for atom in graph.outputs:
        by_value.setdefault(atom, range_of(atom, by_value))
    return by_value


def _squares(graph: wf.ir.Graph) -> set[Any]:
    """Products of a value with itself."""
    return {
        node
        for node in graph.nodes
        if node.primitive is MULTIPLY and node.operands[0] is node.operands[1]
    }


def range_of(atom: Any, found: dict[Any, Range]) -> Range:
    """The range of a value, or of a constant."""
    if atom in found:
        return found[atom]
    value = getattr(atom, "value", None)
    if value is None or value.size == 0 or value.dtype.kind not in "biuf":
        return ANYTHING
    low, high = float(np.min(value)), float(np.max(value))
    return ANYTHING if isnan(low) or isnan(high) else Range(low, high)


def _bounds(node: wf.ir.GraphNode, ranges: Sequence[Range]) -> Range:
    """What is known of a result from the ranges of the operands, by the kind of operation."""
    kind = node.primitive.kind
    if node.results[0].type.dtype.is_complex:
        return ANYTHING
    if isinstance(kind, kinds.Elementwise):
        return ANYTHING if kind.bounds is None else kind.bounds(ranges, node.params)
    if isinstance(kind, kinds.Movement) and not node.operands and kind.fill is not None:
        number = kind.fill(node.params)
        return Range(number, number) if isinstance(number, (int, float)) else ANYTHING
    if isinstance(kind, kinds.Reduction | kinds.Window) and node.primitive.lower is None:
        return _combined_range(kind.combine, ranges[0])
    if isinstance(kind, kinds.Movement):
        return ranges[0] if kind.fill is None and len(node.operands) == 1 else ANYTHING
    ordered = isinstance(kind, kinds.Sort) and kind.values and len(node.results) == 1
    return ranges[0] if ordered or isinstance(kind, kinds.Gather) else ANYTHING


def _combined_range(combine: str | None, own: Range) -> Range:
    """The range of many elements of one range, combined."""
    if combine in ("maximum", "minimum"):
        return own
    return wf.ir.ranges.of_total([own], {}) if combine == "add" else ANYTHING
