"""The strategies of a node: how it can be divided among the devices along one mesh axis.

Most follow from what a definition says for other reasons: its kind, how a movement reads its
operands, which operands it is linear in. The slot `sharding` of a primitive stands in for its kind.
What remains, that every device computes the whole, is always possible, so that no primitive is
wrong for the lack of a rule.

>>> import weft as wf
>>> node = wf.ir.trace(wf.exp, wf.spec("float32", (4, 3))).nodes[0]
>>> [strategy.results for strategy in strategies_of(node, 2)]
[(replicated,), (Split(axis=0),)]
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from weft.core.errors import Unsupported, WeftError
from weft.core.shapes import Shape
from weft.core.types import TensorType
from weft.ir.affine_index import Affine
from weft.ir.derivatives import Additive, Constant, Every, Linear
from weft.ir.graph import Atom, GraphNode, Literal
from weft.ir.kinds import (
    Collective,
    Condition,
    Cumulative,
    Elementwise,
    Index,
    Movement,
    Reduction,
    Search,
    Sort,
)
from weft.ir.primitive import Primitive
from weft.ir.sharding import (
    REPLICATED,
    SUM,
    Strategy,
    local_type,
    replace_size,
    split_axes,
    split_to_terms,
)
from weft.ops.collectives import REDUCERS
from weft.ops.sharding_rules import beside_axes

__all__ = ["AxisReader", "has_rule", "strategies_of", "whole_strategy"]


def strategies_of(node: GraphNode, count: int) -> list[Strategy]:
    """All ways to divide a node among so many devices; the first computes the whole on each."""
    whole = whole_strategy(node)
    by_rule = _strategies_of_kind if node.primitive.sharding is None else _own_strategies
    divided = [
        strategy for strategy in by_rule(node, count) if _strategy_fits(node, strategy, count)
    ]
    return [whole, *divided, *_linear_strategies(node)]


def whole_strategy(node: GraphNode) -> Strategy:
    """Every device computes all of a node."""
    return Strategy(
        (REPLICATED,) * len(node.operands), (REPLICATED,) * len(node.results), is_divided=False
    )


def has_rule(primitive: Primitive) -> bool:
    """Whether a primitive's definition says how it is divided."""
    kind = primitive.kind
    derived = isinstance(
        kind, Elementwise | Reduction | Cumulative | Search | Sort | Collective
    ) or (isinstance(kind, Movement) and kind.read is not None)
    return derived or primitive.sharding is not None


def _own_strategies(node: GraphNode, count: int) -> Iterator[Strategy]:
    rule = node.primitive.sharding
    assert rule is not None
    operands = [atom.type for atom in node.operands]
    yield from rule(operands, [result.type for result in node.results], node.params, count)


def _strategy_fits(node: GraphNode, strategy: Strategy, count: int) -> bool:
    """Whether all axes divide, and parts of the operands give the parts of the results."""
    pairs = [
        *zip([atom.type for atom in node.operands], strategy.operands, strict=True),
        *zip([result.type for result in node.results], strategy.results, strict=True),
    ]
    local = [local_type(whole, placement, count) for whole, placement in pairs]
    if any(part is None for part in local):
        return False
    if strategy.compute is not None:
        return True
    given, wanted = local[: len(node.operands)], local[len(node.operands) :]
    try:
        found: Any = node.primitive.type_rule(*given, **{**node.params, **(strategy.params or {})})
    except WeftError:
        return False
    return list(found if node.primitive.multiple else (found,)) == wanted


# --- by kind -------------------------------------------------------------------------------------


def _strategies_of_kind(node: GraphNode, count: int) -> Iterator[Strategy]:
    kind = node.primitive.kind
    operands = [atom.type for atom in node.operands]
    results = [result.type for result in node.results]
    if isinstance(kind, Elementwise):
        yield from _of_elements(operands, results[0])
    elif isinstance(kind, Reduction):
        yield from beside_axes(operands, results, node.params, count)
        if kind.combine in REDUCERS:
            for axis in node.params["axes"]:
                yield split_to_terms((axis,), kind.combine)
    elif isinstance(kind, Movement):
        yield from _of_movement(node, count)
    elif isinstance(kind, Cumulative | Sort | Search) and "axis" in node.params:
        yield from beside_axes(operands, results, node.params, count)
    elif isinstance(kind, Collective) and operands and not node.params["stacked"]:
        named = [value for name, value in node.params.items() if name.endswith("axis")]
        for axis in range(operands[0].ndim):
            if axis not in named:
                yield split_axes((axis,), (axis,))


def _of_elements(operands: Sequence[TensorType], result: TensorType) -> Iterator[Strategy]:
    """Each axis of the result, with the axes of the operands that are not repeated along it."""
    for axis, size in enumerate(result.shape):
        places = [axis - (result.ndim - x.ndim) for x in operands]
        pairs = zip(operands, places, strict=True)
        yield split_axes(
            [p if p >= 0 and (x.shape[p] != 1 or size == 1) else None for x, p in pairs], (axis,)
        )


def _of_movement(node: GraphNode, count: int) -> Iterator[Strategy]:
    """Axes of the result that are axes of the operands, as the movement's own reader says."""
    kind = node.primitive.kind
    assert isinstance(kind, Movement)
    if kind.read is None or not (kind.reads_if is None or kind.reads_if(node.params)):
        return
    shape = node.results[0].type.shape
    reader = AxisReader()
    kind.read(reader, node, tuple(map(Affine.variable, range(len(shape)))))
    for axis, size in enumerate(shape):
        places = [reader.axis_of(atom, axis, size) for atom in node.operands]
        if axis in reader.bound or _UNKNOWN in places or not isinstance(size, int):
            continue
        changes: dict[str, Any] = {}
        if "shape" in node.params:
            changes["shape"] = replace_size(shape, axis, size // count)
        yield split_axes([place for place in places if place != _UNKNOWN], (axis,), **changes)


_UNKNOWN = -1


class AxisReader:
    """Collects at which indices a movement reads its operands."""

    def __init__(self) -> None:
        self.reads: list[tuple[Atom, Index]] = []
        self.bound: set[int] = set()
        """Axes of the result whose places decide what an element is."""

    def element_at(self, atom: Atom, index: Index) -> None:
        """See `ElementReader`."""
        self.reads.append((atom, index))

    def number(self, value: Any, node: GraphNode) -> None:
        """See `ElementReader`."""

    def position(self, index: Affine, node: GraphNode) -> None:
        """See `ElementReader`."""
        self._bind(index)

    def choice(self, conditions: Sequence[Condition], inside: None, outside: None) -> None:
        """See `ElementReader`."""
        for index, _ in conditions:
            self._bind(index)

    def only_where(self, conditions: Sequence[Condition], element: None) -> None:
        """See `ElementReader`."""
        self.choice(conditions, element, element)

    def _bind(self, index: Affine) -> None:
        self.bound.update(loop for loop, _ in index.terms)

    def axis_of(self, atom: Atom, axis: int, size: Any) -> int | None:
        """The axis of an operand that an axis of the result is; None where it is repeated."""
        found: set[int | None] = set()
        for read, index in self.reads:
            if read is atom:
                found |= {_axis_read(read.type.shape, index, axis, size)}
        return found.pop() if len(found) == 1 else _UNKNOWN


def _axis_read(shape: Shape, index: Index, axis: int, size: Any) -> int | None:
    moved = [place for place, each in enumerate(index) if each.factor(axis) != 0]
    if not moved:
        return None
    alone = len(moved) == 1 and index[moved[0]] == Affine.variable(axis)
    return moved[0] if alone and shape[moved[0]] == size else _UNKNOWN


# --- partial sums through linear operations ------------------------------------------------------


def _linear_strategies(node: GraphNode) -> Iterator[Strategy]:
    """A partial sum stays one through what is linear in it, if nothing else varies there."""
    derivatives = node.primitive.derivatives
    if not isinstance(derivatives, tuple | Every) or isinstance(derivatives, Unsupported):
        return
    if len(node.results) != 1 or not _keeps_precision(node) or not node.operands:
        return
    kinds = [node.primitive.derivative(place) for place in range(len(node.operands))]
    if any(isinstance(kind, Additive) for kind in kinds):
        if all(isinstance(kind, Additive | Constant) for kind in kinds):
            terms = [SUM if isinstance(kind, Additive) else REPLICATED for kind in kinds]
            yield Strategy(tuple(terms), (SUM,), is_divided=False)
        return
    for place, kind in enumerate(kinds):
        others = [(k, atom) for p, (k, atom) in enumerate(zip(kinds, node.operands, strict=True))
                  if p != place]  # fmt: skip
        if isinstance(kind, Linear) and all(_is_harmless(k, atom) for k, atom in others):
            terms = [SUM if p == place else REPLICATED for p in range(len(kinds))]
            yield Strategy(tuple(terms), (SUM,), is_divided=False)


def _is_harmless(kind: Any, atom: Atom) -> bool:
    """Whether an operand beside a partial sum is an index, or a finite number other than zero.

    A product of each term with an infinity, or a quotient by zero, is not that of the sum.
    """
    if isinstance(kind, Constant):
        return True
    return (
        isinstance(atom, Literal)
        and atom.value.ndim == 0
        and bool(np.isfinite(atom.value))
        and bool(atom.value != 0)
    )


def _keeps_precision(node: GraphNode) -> bool:
    """Whether all operands that vary are floats, and the result is as precise."""
    result = node.results[0].type.dtype
    varying = [atom.type.dtype for atom in node.operands if atom.type.dtype.is_inexact]
    return result.is_inexact and all(result.bits >= each.bits for each in varying)
