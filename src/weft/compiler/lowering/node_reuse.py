"""Nodes that are written once: of equal nodes, such as those of a network's layers, the first is.

The kernel of a node depends on its primitive, parameters and types, and on numbers among its
operands. Where its writer has looked at nothing else, equal nodes have the same kernel.

>>> import numpy as np
>>> import weft as wf
>>> from weft.ir.graph import Literal
>>> f = lambda x: wf.cumsum(wf.cumsum(x, axis=1), axis=1)
>>> first, second = wf.ir.trace(f, wf.spec("float32", (4, 8))).nodes
>>> known, error = Repeats(), Literal(np.zeros(1, np.int32))
>>> write = lambda node: known.kernels(node, {}, error, LoweringLimits())[0]
>>> one, other = write(first), write(second)
>>> one.kernel is other.kernel, one.written == first.results, other.written == second.results
(True, True, True)
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping
from dataclasses import replace
from typing import Any

from weft.compiler.lowering.group_reuse import rename_values
from weft.compiler.lowering.nodes import NodeKernel, single_kernels
from weft.compiler.targets.limits import LoweringLimits
from weft.core.dtypes import DType
from weft.core.shapes import Dim
from weft.ir.graph import GraphNode, Literal, Variable

Kernels = tuple[NodeKernel, ...]
NUMBERS = (int, float, str, Dim, DType, type(None))
"""What parameters are made of that are told apart by how they are written."""


class _WatchedProducers(Mapping[Variable, GraphNode]):
    """The nodes that make a node's operands, and whether its writer has asked for one of them."""

    def __init__(self, producers: Mapping[Variable, GraphNode]) -> None:
        self._producers = producers
        self.was_asked = False

    def __getitem__(self, variable: Variable) -> GraphNode:
        self.was_asked = True
        return self._producers[variable]

    def __iter__(self) -> Iterator[Variable]:
        self.was_asked = True
        return iter(self._producers)

    def __len__(self) -> int:
        return len(self._producers)


class Repeats:
    """The kernels of nodes, and which of them were written for equal ones; for one target."""

    def __init__(self) -> None:
        self._known: dict[Hashable, tuple[GraphNode, Literal, Kernels]] = {}

    def kernels(
        self,
        node: GraphNode,
        producers: Mapping[Variable, GraphNode],
        error: Literal,
        limits: LoweringLimits,
    ) -> Kernels:
        """The kernels that compute a node; see `single_kernels`."""
        key = _key(node)
        if key in self._known:
            return _kernels_for_equal_node(*self._known[key], node, error)
        watched = _WatchedProducers(producers)
        kernels = single_kernels(node, watched, error, limits)
        # a writer that has seen a producer has written for that one, not for all equal nodes
        if key is not None and kernels and not watched.was_asked:
            self._known[key] = node, error, kernels
        return kernels


def _key(node: GraphNode) -> Hashable | None:
    """What a node's kernels depend on; None where that cannot be told."""
    params = tuple(node.params.values())
    if not _is_plain(params) or any(isinstance(atom, Literal) for atom in node.operands):
        return None
    first = {atom: place for place, atom in reversed(list(enumerate(node.operands)))}
    return (
        node.primitive,
        repr(node.params),  # as text, since -0.0 equals 0.0 and True equals 1
        tuple(first[atom] for atom in node.operands),
        tuple(atom.type for atom in (*node.operands, *node.results)),
    )


def _is_plain(value: object) -> bool:
    if isinstance(value, tuple):
        return all(map(_is_plain, value))
    return isinstance(value, NUMBERS)


def _kernels_for_equal_node(
    known: GraphNode, reported: Literal, kernels: Kernels, node: GraphNode, error: Literal
) -> Kernels:
    """What was written for one node, for an equal one."""
    old = (*known.operands, *known.results, reported)
    names: dict[Any, Any] = dict(zip(old, (*node.operands, *node.results, error), strict=True))

    def renamed_value(value: Any) -> Any:
        if value not in names:  # memory that the node's kernels share
            names[value] = Variable(value.type) if isinstance(value, Variable) else value
        return names[value]

    return tuple(
        replace(
            rename_values(each, renamed_value),
            copied=None
            if each.copied is None
            else (renamed_value(each.copied[0]), renamed_value(each.copied[1])),
        )
        for each in kernels
    )
