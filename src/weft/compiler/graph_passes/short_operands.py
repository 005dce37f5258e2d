"""Operands of products before they were converted to wider integers.

Sums of products of 8-bit integers are the same whether operands are converted first or multiplied
as they are with wide sums. A target that does the latter looks through conversions, and through
movement that may as well come before them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from weft.core.dtypes import bfloat16, float16, int8, int32, int64, uint8
from weft.ir.graph import Atom, GraphNode, Literal, Variable
from weft.ir.walking import keeps_elements
from weft.ops.conversion import convert


class ShortOperands:
    """Finds the short operands of a product; `before` are the nodes that move them."""

    def __init__(self, producer: Mapping[Variable, GraphNode]) -> None:
        self.producer = producer
        self.before: list[GraphNode] = []

    def short_operand(self, atom: Atom) -> Atom | None:
        """An operand before it was converted; None if it was no short one."""
        dtype = atom.type.dtype
        if dtype in (bfloat16, float16, int8):
            return atom
        if dtype not in (int32, int64):
            return None
        if isinstance(atom, Literal):
            return _narrow_literal(atom)
        node = self.producer.get(atom)
        if node is None:
            return None
        if node.primitive is convert:
            source = node.operands[0]
            return source if source.type.dtype in (int8, uint8) else None
        if not keeps_elements(node):  # which may as well be moved before they are converted
            return None
        before = self.short_operand(node.operands[0])
        return None if before is None else self.move_operand(before, node)

    def move_operand(self, source: Atom, node: GraphNode) -> Variable:
        """What a movement makes of an operand before it was converted."""
        result = Variable(replace(node.results[0].type, dtype=source.type.dtype))
        self.before.append(replace(node, operands=(source,), results=(result,)))
        return result


def _narrow_literal(atom: Literal) -> Literal | None:
    """A constant of integers in 8 bits, if they fit."""
    value = np.asarray(atom.value)
    narrow = value.astype(np.int8)
    return Literal(narrow) if np.array_equal(narrow, value) else None
