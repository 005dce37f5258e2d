"""Collectives in the form that engines have: along the first axis, of numbers that they can add.

An engine moves blocks that lie one behind the other. So an axis is turned to the front before a
collective and back behind it, which fusion makes part of other kernels where it can. Sums of 16-bit
floats are those of float32, rounded once, as the reference has them.

>>> import weft as wf
>>> from weft.ir.dispatch import apply
>>> over = {"mesh_axis": "data", "size": 2, "stacked": False, "axis": 1}
>>> gather = lambda x: apply(wf.ir.PRIMITIVES["all_gather"], x, **over)
>>> after = move_collective_axes(wf.ir.trace(gather, wf.spec("float32", (3, 4))))
>>> [node.primitive.name for node in after.nodes]
['transpose', 'all_gather', 'transpose']
"""

from __future__ import annotations

from collections.abc import Sequence

from weft.core.dtypes import bool_, float32, uint8
from weft.core.types import TensorType
from weft.ir.graph import Atom, Graph, GraphNode
from weft.ir.kinds import Collective
from weft.ir.walking import Tally, Walk
from weft.ops.collectives import (
    REDUCERS,
    exchange_parts,
    gather_shards,
    reduce_shards,
    scatter_sum,
)
from weft.ops.conversion import convert
from weft.ops.cumulative import is_narrow
from weft.ops.movement import reshape, transpose
from weft.ops.movement_backs import inverse

__all__ = ["move_collective_axes"]


def move_collective_axes(graph: Graph, tally: Tally | None = None) -> Graph:
    """The graph with collectives along first axes, of dtypes that engines add."""
    return _FirstAxes(graph, tally).run()


class _FirstAxes(Walk):
    """Turns the operands of collectives, and their results back."""

    def visit(self, node: GraphNode) -> Sequence[Atom] | None:
        """See `Walk`."""
        params = node.params
        is_own = isinstance(node.primitive.kind, Collective) and not params.get("stacked", True)
        if not is_own or params["size"] == 1:
            return None
        replaced: Atom | None = None
        if node.primitive in (*REDUCERS.values(), scatter_sum, reduce_shards):
            replaced = self._widen(node)
        if replaced is None and node.primitive in (gather_shards, scatter_sum):
            replaced = self._turn(node)
        if replaced is None and node.primitive is exchange_parts:
            replaced = self._turn_exchange(node)
        if replaced is None:
            return None
        self.tally[node.primitive.name] += 1
        return [replaced]

    def _widen(self, node: GraphNode) -> Atom | None:
        """A reduction of numbers that engines have none of, of wider ones."""
        (x,), dtype = node.operands, node.operands[0].type.dtype
        wider = float32 if is_narrow(dtype.numpy) else uint8 if dtype == bool_ else None
        if wider is None:
            return None
        wide = self.make(convert, x, like=node, dtype=wider)
        reduced = self.make(node.primitive, wide, like=node, **node.params)
        return self.make(convert, reduced, like=node, dtype=dtype)

    def _turn(self, node: GraphNode) -> Atom | None:
        """A gathering or scattering along the first axis, between two turns."""
        (x,), axis = node.operands, node.params["axis"]
        if axis == 0:
            return None
        order = (axis, *[other for other in range(x.type.ndim) if other != axis])
        turned = self.make(transpose, x, like=node, order=order)
        result = self.make(node.primitive, turned, like=node, **{**node.params, "axis": 0})
        return self.make(transpose, result, like=node, order=inverse(order))

    def _turn_exchange(self, node: GraphNode) -> Atom | None:
        """An exchange of blocks along the first axis, which are then joined along another one."""
        (x,), params = node.operands, node.params
        split, joined, count = params["split_axis"], params["concat_axis"], params["size"]
        if split == joined == 0:
            return None
        order = (split, *[other for other in range(x.type.ndim) if other != split])
        turned = self.make(transpose, x, like=node, order=order)
        first = {**params, "split_axis": 0, "concat_axis": 0}
        moved = self.make(node.primitive, turned, like=node, **first)
        whole, *rest = moved.type.shape
        blocks = self.make(reshape, moved, like=node, shape=(count, whole // count, *rest))
        # axes of a shard as they were, and that of processes in front of the one they are joined by
        places = [1 + place for place in inverse(order)]
        places.insert(joined, 0)
        parted = self.make(transpose, blocks, like=node, order=tuple(places))
        kind = node.results[0].type
        assert isinstance(kind, TensorType)
        return self.make(reshape, parted, like=node, shape=kind.shape)
