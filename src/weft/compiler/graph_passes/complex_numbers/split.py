"""The pass that writes complex numbers as pairs of real ones, and where parts lie in memory.

First every primitive with a rule becomes one of parts; see parts.py. When all passes are done, a
part that is read of a whole number is every second element of its memory, and a whole number that
is made of parts is stored so.

>>> import weft as wf
>>> graph = wf.ir.trace(lambda z: wf.conj(z), wf.spec("complex64", (3,)))
>>> [node.primitive.name for node in split_complex(graph).nodes]
['real', 'imag', 'negative', 'complex']
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from weft.compiler.fusion.aliases import is_general_reshape
from weft.compiler.graph_passes.complex_numbers import functions as functions
from weft.compiler.graph_passes.complex_numbers.parts import Part, Parts, Rule, rule_of
from weft.ir.graph import Atom, Graph, GraphNode, Literal
from weft.ir.kinds import Movement
from weft.ir.tensor import Tensor
from weft.ir.tracing import trace
from weft.ir.walking import Tally, Walk
from weft.ops.arithmetic import complex_, imag, real
from weft.ops.conversion import as_parts, of_parts
from weft.ops.elementary import integer_pow
from weft.ops.movement import broadcast_to, concatenate, reshape, slice_

__all__ = ["place_parts", "split_complex"]

LARGE_POWER = 100
"""Below this NumPy multiplies for powers with whole exponents; from here on it takes logarithms."""


def split_complex(graph: Graph, tally: Tally | None = None) -> Graph:
    """The graph with real nodes in place of complex ones, where a rule says which."""
    return _Split(graph, tally).run()


class _Split(Walk):
    """Writes nodes in terms of parts; what joins and takes apart again is left out at once."""

    def __init__(self, graph: Graph, tally: Tally | None = None) -> None:
        super().__init__(graph, tally)
        self.parts: dict[tuple[Atom, str], Atom] = {}
        """The parts that were read of whole numbers, by name."""

    def visit(self, node: GraphNode) -> Sequence[Atom] | None:
        if node.primitive.name in ("real", "imag"):
            return self.part(node)
        values = (*node.operands, *node.results)
        if not any(atom.type.dtype.is_complex for atom in values) or self.is_kept(node):
            return None
        node = self.with_whole_exponent(node)
        rule = rule_of(node.primitive)
        if rule is None:
            return None
        self.tally[node.primitive.name] += 1
        return self.splice(_graph_of_parts(node, rule), node.operands)

    def with_whole_exponent(self, node: GraphNode) -> GraphNode:
        """The node, or, of a power with one small whole exponent, the one that multiplies."""
        if node.primitive.name != "pow":
            return node
        base, exponent = node.operands
        number = self.uniform(exponent)
        if number is None or base.type.shape != node.results[0].type.shape:
            return node
        whole = complex(number)
        if whole.imag != 0 or not whole.real.is_integer() or abs(whole.real) >= LARGE_POWER:
            return node
        params = {"exponent": int(whole.real)}
        return GraphNode(integer_pow, (base,), params, node.results, node.location)

    def part(self, node: GraphNode) -> Sequence[Atom] | None:
        """The part that a number was made of, or one that was read before."""
        (whole,) = node.operands
        maker = self.maker(whole)
        if maker is not None and maker.primitive.name == "complex":
            part = maker.operands[node.primitive.name == "imag"]
            return [part] if part.type.shape == whole.type.shape else None
        known = self.parts.setdefault((whole, node.primitive.name), node.results[0])
        return None if known is node.results[0] else [known]

    def is_kept(self, node: GraphNode) -> bool:
        """Whether a node moves whole numbers: what lies otherwise in no memory, or elsewhere."""
        if not node.operands:
            return not isinstance(node.primitive.kind, Movement) or node.primitive.kind.fill is None
        if node.primitive.name == "transfer":
            return True
        maker = self.maker(node.operands[0])
        is_made = maker is not None and maker.primitive.name == "complex"
        return is_general_reshape(node) and not is_made


def _graph_of_parts(node: GraphNode, rule: Rule) -> Graph:
    """What stands for a node."""

    def f(*operands: Tensor) -> list[Tensor]:
        parts = [Parts(real(x), imag(x)) if x.dtype.is_complex else x for x in operands]
        result: Part = rule(*parts, **node.params)
        return [complex_(*result) if isinstance(result, Parts) else result]

    return trace(f, [atom.type for atom in node.operands]).closed_graph()


# --- memory --------------------------------------------------------------------------------------


def place_parts(graph: Graph, tally: Tally | None = None) -> Graph:
    """The graph with parts of complex numbers read and written where they lie in memory."""
    return _Place(graph, tally).run()


class _Place(Walk):
    """Reads of parts as slices, and what parts are made to as joins."""

    def __init__(self, graph: Graph, tally: Tally | None = None) -> None:
        super().__init__(graph, tally)
        self.parts: dict[Atom, Atom] = {}
        """Of complex values their memory as real numbers."""

    def visit(self, node: GraphNode) -> Sequence[Atom] | None:
        name = node.primitive.name
        if name == "complex":
            self.tally["stored"] += 1
            return [self.join_parts(node)]
        if name not in ("real", "imag"):
            return None
        self.tally["read"] += 1
        return [self.part(node, int(name == "imag"))]

    def part(self, node: GraphNode, number: int) -> Atom:
        """Every second number, from the first or the second one on."""
        (whole,) = node.operands
        if isinstance(whole, Literal):
            return Literal(np.ascontiguousarray((whole.value.real, whole.value.imag)[number]))
        shape = whole.type.shape
        if whole not in self.parts:
            self.parts[whole] = self.make(as_parts, whole, like=node)
        bounds = {
            "starts": (*[0] * len(shape), number),
            "stops": (*shape, number + 1),
            "strides": (1,) * (len(shape) + 1),
        }
        column = self.make(slice_, self.parts[whole], like=node, **bounds)
        return self.make(reshape, column, like=node, shape=shape)

    def join_parts(self, node: GraphNode) -> Atom:
        """Both parts of each number, one after the other."""
        shape = node.results[0].type.shape
        parts = []
        for part in node.operands:
            if part.type.shape != shape:
                part = self.make(broadcast_to, part, like=node, shape=shape)
            parts.append(self.make(reshape, part, like=node, shape=(*shape, 1)))
        both = self.make(concatenate, *parts, like=node, axis=len(shape))
        return self.make(of_parts, both, like=node)
