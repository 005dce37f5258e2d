"""Products of looked-up rows become products of the table, where the table has fewer rows.

Rows of a table of characters, times a matrix, are rows of the table times the matrix: with 65
characters and 2048 tokens the product is 30 times smaller. The gradients likewise: the sum over
tokens of an outer product is one over the table's rows, of what was added up for each of them. Rows
that no token asks for stay out of the sums, whatever stands in them.

>>> import weft as wf
>>> kinds = wf.spec("float32", (8, 4)), wf.spec("int64", (99,)), wf.spec("float32", (4, 6))
>>> graph = wf.ir.trace(lambda table, i, w: wf.take(table, i, axis=0) @ w, *kinds)
>>> after = multiply_tables(graph, limits=PassLimits())
>>> [str(node.results[0].type) for node in after.nodes if node.primitive is dot]
['f32[8, 6]']
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import numpy as np

from weft.compiler.targets.limits import PassLimits
from weft.core.records import frozen
from weft.core.shapes import Shape
from weft.core.types import TensorType
from weft.ir.graph import Atom, Graph, GraphNode
from weft.ir.primitive import PRIMITIVES
from weft.ir.walking import Tally, Walk
from weft.ops.contraction import dot
from weft.ops.indexing import gather, scatter_add
from weft.ops.movement import reshape, transpose
from weft.ops.movement_backs import inverse

__all__ = ["multiply_tables"]


def multiply_tables(graph: Graph, tally: Tally | None = None, *, limits: PassLimits) -> Graph:
    """The graph with products of tables in place of products of their rows, where they are less."""
    return _Lookups(graph, tally, limits.lookups_per_row).run()


@frozen
class Lookup:
    """Rows of a table [rows, features]."""

    table: Atom
    index: Atom

    def is_long(self, times: int) -> bool:
        """Whether rows are looked up so many times, on average."""
        rows, count = self.table.type.shape[0], self.index.type.size
        return isinstance(rows, int) and isinstance(count, int) and times * rows <= count


class _Lookups(Walk):
    """Finds products beside lookups, in both directions of a derivative."""

    def __init__(self, graph: Graph, tally: Tally | None, lookups_per_row: int) -> None:
        super().__init__(graph, tally)
        self.lookups_per_row = lookups_per_row
        self.uses = Counter(atom for node in graph.nodes for atom in node.operands)

    def walk_nested(self, graph: Graph) -> Graph:
        return _Lookups(graph, self.tally, self.lookups_per_row).run()

    def visit(self, node: GraphNode) -> Sequence[Atom] | None:
        replacement: Atom | None = None
        if node.primitive is transpose:
            replacement = self.ordered_rows(node)
        elif node.primitive is dot and not node.params["batch"][0]:
            replacement = self.rows_times_matrix(node) or self.sum_over_rows(node)
        elif node.primitive is scatter_add:
            replacement = self.ordered_updates(node) or self.added_products(node)
        return None if replacement is None else [replacement]

    # --- order -------------------------------------------------------------------------------

    def ordered_rows(self, node: GraphNode) -> Atom | None:
        """Rows in another order are rows at places in that order."""
        rows = self.maker(node.operands[0])
        if rows is None or rows.primitive is not gather:
            return None
        table, *indices = rows.operands
        order = _leading_order(node.params["order"], indices[0].type.ndim)
        if order is None:
            return None
        turned = [self.make(transpose, i, like=node, order=order) for i in indices]
        self.tally["ordered_rows"] += 1
        return self.make(gather, table, *turned, like=node, **rows.params)

    def ordered_updates(self, node: GraphNode) -> Atom | None:
        """Updates in another order are those in their own order, for places in that one."""
        base, updates, *indices = node.operands
        producer = self.maker(updates)
        if producer is None or producer.primitive is not transpose:
            return None
        order = _leading_order(producer.params["order"], indices[0].type.ndim)
        if order is None:
            return None
        turned = [self.make(transpose, i, like=node, order=inverse(order)) for i in indices]
        self.tally["ordered_updates"] += 1
        return self.make(scatter_add, base, producer.operands[0], *turned, like=node, **node.params)

    # --- products ----------------------------------------------------------------------------

    def rows_times_matrix(self, node: GraphNode) -> Atom | None:
        """Rows of a table times a matrix: rows of the product of the table."""
        lookup = self.lookup(node.operands[0])
        rows, matrix = node.operands
        inner, other = node.params["contract"]
        if lookup is None or inner != (rows.type.ndim - 1,):
            return None
        params = {"contract": ((1,), other), "batch": ((), ())}
        product = self.make(dot, lookup.table, matrix, like=node, **params)
        self.tally["rows_times_matrix"] += 1
        return self.make(gather, product, lookup.index, like=node, axes=(0,))

    def sum_over_rows(self, node: GraphNode) -> Atom | None:
        """A sum over all looked-up rows, each times something: one over the table's rows."""
        for side in (0, 1):
            lookup = self.lookup(node.operands[side])
            other, pairs = node.operands[1 - side], node.params["contract"]
            if lookup is None:
                continue
            index = self.index_for(lookup, pairs[side], pairs[1 - side], node)
            if index is None:
                continue
            total = self.add_per_row(lookup.table, other, index, node)
            table = self.zero_unused_rows(lookup.table, lookup.table, index, node)
            operands = (table, total) if side == 0 else (total, table)
            self.tally["sum_over_rows"] += 1
            return self.make(dot, *operands, like=node, contract=((0,), (0,)), batch=((), ()))
        return None

    def index_for(
        self, lookup: Lookup, own: Sequence[int], other: Sequence[int], node: GraphNode
    ) -> Atom | None:
        """The index in the order of the other operand's axes; None unless those lead there."""
        axes = range(lookup.index.type.ndim)
        place = dict(zip(other, own, strict=True))
        if sorted(own) != list(axes) or sorted(other) != list(axes):
            return None
        order = tuple(place[axis] for axis in axes)
        if order == tuple(axes):
            return lookup.index
        return self.make(transpose, lookup.index, like=node, order=order)

    def added_products(self, node: GraphNode) -> Atom | None:
        """Products that are added up for each row: the product of what is added up."""
        base, updates, *indices = node.operands
        producer = self.maker(updates)
        if (
            producer is None
            or producer.primitive is not dot
            or self.uses[updates] > 1
            or len(indices) > 1
        ):
            return None
        left_rows, matrix = producer.operands
        (left, right), batch = producer.params["contract"], producer.params["batch"][0]
        start, lookup = self.uniform(base), Lookup(base, indices[0])
        fits = (
            left == (left_rows.type.ndim - 1,) and left_rows.type.ndim == indices[0].type.ndim + 1
        )
        if not fits or batch or base.type.ndim != 2 or matrix.type.ndim != 2:
            return None
        if (
            node.params["axes"] != (0,)
            or start is None
            or start != 0
            or not lookup.is_long(self.lookups_per_row)
        ):
            return None
        total = self.add_per_row(base, left_rows, indices[0], node)
        params = {"contract": ((1,), right), "batch": ((), ())}
        product = self.make(dot, total, matrix, like=producer, **params)
        self.tally["added_products"] += 1
        return self.zero_unused_rows(product, base, indices[0], node)

    # --- parts -------------------------------------------------------------------------------

    def lookup(self, atom: Atom) -> Lookup | None:
        """The lookup that makes an atom, if it is worth multiplying its table."""
        node = self.maker(atom)
        if node is None or node.primitive is not gather or node.params["axes"] != (0,):
            return None
        lookup = Lookup(*node.operands)
        fits = lookup.table.type.ndim == 2 and lookup.table.type.dtype.is_floating
        return lookup if fits and lookup.is_long(self.lookups_per_row) else None

    def add_per_row(self, table: Atom, updates: Atom, index: Atom, like: GraphNode) -> Atom:
        """What is added up for each row of a table."""
        rest = updates.type.shape[index.type.ndim :]
        zeros = self.zeros(updates.type, (table.type.shape[0], *rest), like)
        return self.make(scatter_add, zeros, updates, index, like=like, axes=(0,))

    def zero_unused_rows(self, value: Atom, table: Atom, index: Atom, like: GraphNode) -> Atom:
        """The rows that are looked up, and 0 in place of others, which may be NaN or infinite."""
        kind, rows = value.type, table.type.shape[0]
        one = self.constant(np.ones((), kind.dtype.numpy), kind.with_shape(index.type.shape), like)
        counts = self.make(
            scatter_add, self.zeros(kind, (rows,), like), one, index, like=like, axes=(0,)
        )
        column = self.make(reshape, counts, like=like, shape=(rows, 1))
        zero = self.zeros(kind, (), like)
        some = self.make(PRIMITIVES["not_equal"], column, zero, like=like)
        return self.make(PRIMITIVES["where"], some, value, zero, like=like)

    def zeros(self, kind: TensorType, shape: Shape, like: GraphNode) -> Atom:
        """Zeros of a type's dtype."""
        return self.constant(np.zeros((), kind.dtype.numpy), kind.with_shape(shape), like)


def _leading_order(order: Sequence[int], count: int) -> tuple[int, ...] | None:
    """The order of the first axes, where only those change places."""
    moves = tuple(order[:count])
    stays = tuple(order[count:]) == tuple(range(count, len(order)))
    return moves if stays and sorted(moves) == list(range(count)) else None
