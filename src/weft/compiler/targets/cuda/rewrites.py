"""Rewrites of graphs that pay on cards: large values that a launch would store are not made at all.

- An element that is picked from each row of a value (the label's in a cross entropy) is computed
  from the elements picked of what the value is made of, so that the value need not be stored.
- An update of one element in each row of zeros (the derivative of that) is a comparison of columns
  with the index, which is fused with whatever reads it; where the same indices are picked, too,
  so that they are checked there.
- Sums of 16-bit floats at places that are data are made in float32, and rounded once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from weft.core.dtypes import INDEX, bfloat16, bool_, float16, float32
from weft.core.types import TensorType
from weft.ir.graph import Atom, Graph, GraphNode, Literal, Variable
from weft.ir.kinds import Elementwise
from weft.ir.primitive import PRIMITIVES, Primitive
from weft.ir.tracing import without_dead_nodes
from weft.ir.walking import Tally, is_pure

DEEPEST = 16
"""Operations between a value and what it is made of that are computed for picked elements alone."""


def store_less(graph: Graph, tally: Tally) -> Graph:
    """The graph after all rewrites of this file."""
    return _Rewrites(graph, tally).run()


class _Rewrites:
    def __init__(self, graph: Graph, tally: Tally) -> None:
        self.graph, self.tally = graph, tally
        self.makers = {result: node for node in graph.nodes for result in node.results}
        self.nodes: list[GraphNode] = []
        self.picked = {
            node.operands[1:] for node in graph.nodes if node.primitive is PRIMITIVES["gather"]
        }

    def run(self) -> Graph:
        changed = False
        for node in self.graph.nodes:
            before = len(self.nodes)
            name = self._rewrite(node)
            if name is None:
                del self.nodes[before:]
                self.nodes.append(node)
            else:
                changed = True
                self.tally[name] += 1
        if not changed:
            return self.graph
        graph = Graph(self.graph.inputs, tuple(self.nodes), self.graph.outputs, self.graph.name)
        return without_dead_nodes(graph)

    def _rewrite(self, node: GraphNode) -> str | None:
        """Write other nodes for a node, and say what was done; None where it stays."""
        if node.primitive is PRIMITIVES["gather"] and self._picks_one_of_each_row(node, 1):
            found = self._pick(node.operands[0], node, 0)
            if found is None:
                return None
            self.nodes[-1] = replace(self.nodes[-1], results=node.results)
            return "elements picked before"
        if node.primitive is PRIMITIVES["reduce_sum"] and node.params["axes"] == (1,):
            return "sums of one update" if self._sum_update(node) else None
        if node.primitive is not PRIMITIVES["scatter_add"]:
            return None
        if self._updates_one_of_each_row(node):
            self._compare_columns(node)
            return "updates as comparisons"
        return "wide sums" if self._widen(node) else None

    def _updates_one_of_each_row(self, node: GraphNode) -> bool:
        """Whether one element of each row of zeros is updated, at indices that are checked."""
        return (
            node.primitive is PRIMITIVES["scatter_add"]
            and self._picks_one_of_each_row(node, 2)
            and self._is_zero(node.operands[0])
            and node.operands[2:] in self.picked
        )

    def _sum_update(self, node: GraphNode) -> bool:
        """The sum of a row with one update is that update, or what its sign was changed to."""
        chain: list[GraphNode] = []
        atom = node.operands[0]
        maker = self.makers.get(atom) if isinstance(atom, Variable) else None
        while maker is not None and maker.primitive is PRIMITIVES["negative"]:
            chain.append(maker)
            atom = maker.operands[0]
            maker = self.makers.get(atom) if isinstance(atom, Variable) else None
        if maker is None or not self._updates_one_of_each_row(maker):
            return False
        update: Atom = maker.operands[1]
        for each in chain:
            update = self.make(each.primitive, (update,), update.type, node)
        shape = node.results[0].type.shape
        self.nodes.append(
            GraphNode(
                PRIMITIVES["reshape"], (update,), {"shape": shape}, node.results, node.location
            )
        )
        return True

    def make(
        self, primitive: Primitive, operands: Sequence[Atom], kind: TensorType, node: GraphNode,
        **params: Any,
    ) -> Variable:  # fmt: skip
        """A node of one result, with the place of another in the user's code."""
        result = Variable(kind)
        self.nodes.append(GraphNode(primitive, tuple(operands), params, (result,), node.location))
        return result

    # --- one element of each row -----------------------------------------------------------------

    def _picks_one_of_each_row(self, node: GraphNode, first: int) -> bool:
        """Whether indices are all rows in order, and for each of them one column."""
        x, indices = node.operands[0].type, node.operands[first:]
        if node.params["axes"] != (0, 1) or x.ndim != 2 or len(indices) != 2:
            return False
        return indices[0].type.shape == (x.shape[0], 1) and self._counts_up(indices[0])

    def _counts_up(self, atom: Atom) -> bool:
        """Whether a column counts the rows."""
        node = self.makers.get(atom) if isinstance(atom, Variable) else None
        while node is not None and node.primitive is PRIMITIVES["reshape"]:
            inner = node.operands[0]
            node = self.makers.get(inner) if isinstance(inner, Variable) else None
        return (
            node is not None
            and node.primitive is PRIMITIVES["iota"]
            and node.params["shape"] == (atom.type.shape[0],)
        )

    def _pick(self, atom: Atom, pick: GraphNode, depth: int) -> Atom | None:
        """The picked elements of a value; None where it is not computed element by element."""
        shape = pick.operands[0].type.shape
        maker = self.makers.get(atom) if isinstance(atom, Variable) else None
        is_elementwise = (
            maker is not None
            and isinstance(maker.primitive.kind, Elementwise)
            and is_pure(maker)
            and not maker.primitive.multiple
            and depth < DEEPEST
            and all(each.type.shape in (shape, (), (shape[0], 1)) for each in maker.operands)
        )
        if not is_elementwise:
            if depth == 0:
                return None
            kind = atom.type.with_shape((shape[0], 1))
            return self.make(pick.primitive, (atom, *pick.operands[1:]), kind, pick, **pick.params)
        assert maker is not None
        operands: list[Atom] = []
        for each in maker.operands:
            found = self._pick(each, pick, depth + 1) if each.type.shape == shape else each
            assert found is not None
            operands.append(found)
        kind = maker.results[0].type.with_shape((shape[0], 1))
        return self.make(maker.primitive, operands, kind, pick, **maker.params)

    def _is_zero(self, atom: Atom) -> bool:
        if isinstance(atom, Literal):
            return not np.any(atom.value)
        maker = self.makers.get(atom)
        return (
            maker is not None
            and maker.primitive is PRIMITIVES["full"]
            and maker.params["value"] == 0
        )

    def _compare_columns(self, node: GraphNode) -> None:
        """where(column == index, update, 0), for each row."""
        x, updates, _, index = node.operands
        row = TensorType(INDEX, (1, x.type.shape[1]))
        columns = self.make(PRIMITIVES["iota"], (), row, node, shape=row.shape, dtype=INDEX, axis=1)
        truth = TensorType(bool_, x.type.shape)
        is_there = self.make(PRIMITIVES["equal"], (columns, index), truth, node)
        zero = Literal(np.zeros((), x.type.dtype.numpy))
        self.nodes.append(
            GraphNode(
                PRIMITIVES["where"], (is_there, updates, zero), {}, node.results, node.location
            )
        )

    # --- wide sums -------------------------------------------------------------------------------

    def _widen(self, node: GraphNode) -> bool:
        """A sum of 16-bit floats as one of float32 that is rounded at the end."""
        kind = node.results[0].type
        if kind.dtype not in (bfloat16, float16):
            return False
        convert = PRIMITIVES["convert"]
        wide = [
            self.make(convert, (x,), replace(x.type, dtype=float32), node, dtype=float32)
            for x in node.operands[:2]
        ]
        total = self.make(
            node.primitive, (*wide, *node.operands[2:]), replace(kind, dtype=float32), node,
            **node.params,
        )  # fmt: skip
        self.nodes.append(
            GraphNode(convert, (total,), {"dtype": kind.dtype}, node.results, node.location)
        )
        return True
