"""One element of each row: picked before what is computed of all, and put back without a table.

Cross entropy looks up the logarithm of one probability in each row. All of them would be stored
for that, and the derivative would add to a table of zeros that large. But an element of what is
computed element by element is computed of the operands' elements alone; and a table of zeros with
one number in each row is a choice by column, which is part of whatever kernel reads it.

>>> import weft as wf
>>> kinds = wf.spec("float32", (4, 9)), wf.spec("int64", (4, 1))
>>> graph = wf.ir.trace(lambda x, i: wf.take_along_axis(wf.exp(x), i, axis=1), *kinds)
>>> [str(node.results[0].type) for node in pick_rows(graph).nodes if node.primitive.name == "exp"]
['f32[4, 1]']
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import numpy as np

from weft.compiler.lowering.nodes.places import counting_axis
from weft.core.dtypes import INDEX
from weft.ir.graph import Atom, Graph, GraphNode, Literal
from weft.ir.kinds import Elementwise, Movement
from weft.ir.primitive import PRIMITIVES
from weft.ir.walking import Tally, Walk
from weft.ops.creation import iota
from weft.ops.indexing import gather, scatter_add
from weft.ops.movement import reshape

__all__ = ["RowPicks", "pick_rows"]

Pick = tuple[Atom, Atom, tuple[object, ...]]
"""The rows and columns of a pick, and the shape of the table it is made from."""


def pick_rows(graph: Graph, tally: Tally | None = None) -> Graph:
    """The graph with elements of rows picked early, and tables of one element a row as choices."""
    return RowPicks(graph, tally).run()


class RowPicks(Walk):
    """Finds lookups of one element in each row of a matrix, and their derivatives."""

    def __init__(self, graph: Graph, tally: Tally | None) -> None:
        super().__init__(graph, tally)
        self.uses = Counter(atom for node in graph.nodes for atom in node.operands)
        self.uses.update(graph.outputs)
        self.checked: set[Pick] = set()
        """The lookups whose indices are looked at, so that none is out of range elsewhere."""
        self.choices: dict[Atom, Atom] = {}
        """Tables that are choices by column now, and what stands in each row."""

    def visit(self, node: GraphNode) -> Sequence[Atom] | None:
        """What stands in place of a node; None where it stays."""
        replacement: Atom | None = None
        if node.primitive is gather and self.is_pick(node):
            self.checked.add((*node.operands[1:], node.operands[0].type.shape))  # type: ignore[arg-type]
            replacement = self.pick_before(node)
        elif node.primitive is scatter_add and self.is_pick(node):
            replacement = self.choice_by_column(node)
        elif node.primitive is PRIMITIVES["reduce_sum"]:
            replacement = self.sum_of_choice(node)
        return None if replacement is None else [replacement]

    def is_pick(self, node: GraphNode) -> bool:
        """Whether a node addresses one element in each row of its first operand, a matrix."""
        shape, indices = node.operands[0].type.shape, node.operands[-2:]
        return (
            node.params["axes"] == (0, 1)
            and len(shape) == 2
            and isinstance(shape[1], int)
            and shape[1] > 1
            and indices[0].type.shape == (shape[0], 1)
            and counting_axis(indices[0], self.makers) == 0
        )

    # --- lookups -----------------------------------------------------------------------------

    def pick_before(self, node: GraphNode) -> Atom | None:
        """An element of what is computed element by element: computed of picked elements."""
        table = node.operands[0]
        producer = self.maker(table)
        if producer is None or not isinstance(producer.primitive.kind, Elementwise):
            return None
        wide = [atom for atom in producer.operands if atom.type.shape == table.type.shape]
        if self.uses[table] > 1 and any(map(self.is_fused, wide)):
            return None
        picked = [self.picked_operand(atom, node) for atom in producer.operands]
        if any(atom is None for atom in picked):
            return None
        self.tally["pick_before"] += 1
        return self.make(producer.primitive, *picked, like=node, **producer.params)  # type: ignore[arg-type]

    def is_fused(self, atom: Atom) -> bool:
        """Whether a value is likely to be in no memory, so that it would be stored to be picked."""
        producer = self.maker(atom)
        while producer is not None and producer.primitive is reshape:  # lies where its operand does
            producer = self.maker(producer.operands[0])
        return producer is not None and isinstance(producer.primitive.kind, Elementwise | Movement)

    def picked_operand(self, atom: Atom, node: GraphNode) -> Atom | None:
        """The elements of an operand that belong to the picked ones; None where it has no rows."""
        table, rows, columns = node.operands
        shape = atom.type.shape
        if shape == table.type.shape:
            atom = self.apart_from_kernels(atom, node)
            return self.make(gather, atom, rows, columns, like=node, axes=(0, 1))
        return atom if shape in ((), (1, 1), (table.type.shape[0], 1)) else None

    def apart_from_kernels(self, atom: Atom, node: GraphNode) -> Atom:
        """A reshaped value behind a barrier, so that it is read where it lies.

        A kernel that reads the reshaped value, too, would store it a second time for the lookup.
        """
        producer = self.maker(atom)
        if (
            producer is None
            or producer.primitive is not reshape
            or self.is_fused(producer.operands[0])
        ):
            return atom
        whole = self.make(PRIMITIVES["barrier"], producer.operands[0], like=node)
        return self.make(reshape, whole, like=node, shape=producer.params["shape"])

    # --- derivatives -------------------------------------------------------------------------

    def choice_by_column(self, node: GraphNode) -> Atom | None:
        """Zeros with one number added in each row: that number where the column is the one."""
        zeros, updates, rows, columns = node.operands
        start, shape = self.uniform(zeros), zeros.type.shape
        is_checked = (rows, columns, shape) in self.checked
        if start is None or start != 0 or np.signbit(start) or not is_checked:
            return None
        line = self.make(iota, like=node, shape=(1, shape[1]), dtype=INDEX, axis=1)
        chosen = self.make(PRIMITIVES["equal"], columns, line, like=node)
        zero = Literal(np.zeros((), zeros.type.dtype.numpy))
        table = self.make(PRIMITIVES["where"], chosen, updates, zero, like=node)
        self.choices[table] = updates
        self.tally["choice_by_column"] += 1
        return table

    def sum_of_choice(self, node: GraphNode) -> Atom | None:
        """A sum over the columns of such a table: the number itself."""
        if node.params["axes"] != (1,):
            return None
        producer = self.maker(node.operands[0])
        negative = PRIMITIVES["negative"]
        is_negative = producer is not None and producer.primitive is negative
        table = producer.operands[0] if producer is not None and is_negative else node.operands[0]
        updates = self.choices.get(table)
        if updates is None:
            return None
        self.tally["sum_of_choice"] += 1
        total = self.make(reshape, updates, like=node, shape=node.results[0].type.shape)
        return self.make(negative, total, like=node) if is_negative else total
