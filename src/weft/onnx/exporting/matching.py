"""Finding a program inside of a graph: the pattern is the program itself, traced for the types.

A pattern is whatever Weft's own function gives for operands of the types at hand, so that it need
not be kept in step with it. Numbers that may be anything (an epsilon, a slope) are traced as
`HOLES` and read from the graph that is searched.

>>> import weft as wf
>>> from weft.onnx.exporting.matching import Pattern, View
>>> pattern = Pattern.from_program(wf.silu, [wf.spec("float32", (2,))])
>>> graph = wf.ir.trace(lambda x: wf.silu(x + 1) * 2, wf.spec("float32", (2,)))
>>> view = View(graph)
>>> [view.match(pattern, node) is not None for node in graph.nodes]
[False, False, True, False]
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

import weft as wf
from weft.onnx.exporting.cleaning import clean_graph

__all__ = ["HOLES", "Found", "Pattern", "View"]

HOLES = (0.0123456789, 0.0345678912)
"""Numbers that no program has: each stands for one that may be anything."""


@dataclass(frozen=True)
class Found:
    """What the inputs of a pattern are in the graph, and the numbers in its holes."""

    atoms: tuple[Any, ...]
    numbers: tuple[float, ...]


@dataclass(frozen=True)
class Pattern:
    """A traced program and its last node."""

    graph: Any
    makers: dict[Any, Any]
    root: Any

    @classmethod
    def from_program(
        cls, program: Callable[..., Any], types: Sequence[wf.TensorType]
    ) -> Pattern | None:
        """The pattern of a program; None where its result is an operand or a constant."""
        graph = clean_graph(wf.ir.trace(program, *types))
        makers = {result: node for node in graph.nodes for result in node.results}
        root = makers.get(graph.outputs[0])
        return None if root is None else cls(graph, makers, root)


class View:
    """A graph to be searched."""

    def __init__(self, graph: Any) -> None:
        self.graph = graph
        self.makers = {result: node for node in graph.nodes for result in node.results}

    def maker(self, atom: Any, *names: str) -> Any:
        """The node that makes an atom, if it is of one of these primitives."""
        node = self.makers.get(atom) if isinstance(atom, wf.ir.Variable) else None
        return node if node is not None and node.primitive.name in names else None

    def is_zero(self, atom: Any) -> bool:
        """Whether an atom is known to be zeros, also where a part of it was taken."""
        while (moved := self.maker(atom, "reshape") or self.maker(atom, "slice")) is not None:
            atom = moved.operands[0]
        full = self.maker(atom, "full")
        if full is not None:
            return bool(full.params["value"] == 0)
        return isinstance(atom, wf.ir.Literal) and not np.any(atom.value)

    def match(self, pattern: Pattern, node: Any) -> Found | None:
        """What the pattern's inputs are, where a node is its last; None where it is another."""
        bound = _match_node(self, pattern, pattern.root, node, {})
        if bound is None or any(each not in bound for each in pattern.graph.inputs):
            return None
        numbers = tuple(bound.get(hole, hole) for hole in HOLES)
        return Found(tuple(bound[each] for each in pattern.graph.inputs), numbers)


Bound = dict[Any, Any]


def _match_node(view: View, pattern: Pattern, wanted: Any, node: Any, bound: Bound) -> Bound | None:
    if wanted.primitive is not node.primitive or len(wanted.operands) != len(node.operands):
        return None
    if not _same_params(wanted.params, node.params):
        return None
    orders: list[Sequence[Any]] = [node.operands]
    if wanted.primitive.commutative:
        orders.append(node.operands[::-1])
    for operands in orders:
        trial: Bound | None = dict(bound)
        for inner, atom in zip(wanted.operands, operands, strict=True):
            trial = None if trial is None else _match_atom(view, pattern, inner, atom, trial)
        if trial is not None:
            return trial
    return None


def _match_atom(view: View, pattern: Pattern, wanted: Any, atom: Any, bound: Bound) -> Bound | None:
    if isinstance(wanted, wf.ir.Literal):
        return _match_number(wanted.value, atom, bound)
    if wanted in bound:
        return bound if _same_atom(bound[wanted], atom) else None
    maker = pattern.makers.get(wanted)
    if maker is None:  # an input of the pattern
        same_type = str(atom.type) == str(wanted.type)
        return {**bound, wanted: atom} if same_type else None
    node = view.makers.get(atom) if isinstance(atom, wf.ir.Variable) else None
    if node is None or node.results.index(atom) != maker.results.index(wanted):
        return None
    trial = _match_node(view, pattern, maker, node, bound)
    return None if trial is None else {**trial, wanted: atom}


def _match_number(wanted: Any, atom: Any, bound: Bound) -> Bound | None:
    if not isinstance(atom, wf.ir.Literal) or atom.value.dtype != wanted.dtype:
        return None
    if wanted.ndim == 0 and wanted.dtype.kind == "f":
        for hole in HOLES:
            if wanted == wanted.dtype.type(hole):
                if atom.value.ndim or bound.get(hole, float(atom.value)) != float(atom.value):
                    return None
                return {**bound, hole: float(atom.value)}
    return bound if np.array_equal(wanted, atom.value) else None


def _same_atom(a: Any, b: Any) -> bool:
    if isinstance(a, wf.ir.Literal) and isinstance(b, wf.ir.Literal):
        return a.value.dtype == b.value.dtype and np.array_equal(a.value, b.value)
    return a is b


def _same_params(wanted: dict[str, Any], given: dict[str, Any]) -> bool:
    if wanted.keys() != given.keys():
        return False
    return all(_same_param(wanted[name], given[name]) for name in wanted)


def _same_param(wanted: Any, given: Any) -> bool:
    if isinstance(wanted, wf.ir.Graph) or isinstance(given, wf.ir.Graph):
        return bool(wanted == given)
    return repr(wanted) == repr(given)
