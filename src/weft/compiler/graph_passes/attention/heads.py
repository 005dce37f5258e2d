"""Movement around attention: heads are split off before anything else, and joined after it.

A projection is [batch, time, heads · head]; attention wants [batch, heads, time, head]. Where the
last axis is split first, bias, slices and the transpose are one kernel, and where it is joined
last, the transposes of three gradients and their concatenation are.

>>> import weft as wf
>>> kind = wf.spec("float32", (2, 128, 64))
>>> def f(x):
...     heads = wf.reshape(wf.tanh(x)[..., :32], (2, 128, 2, 16)).transpose((0, 2, 1, 3))
...     return wf.scaled_dot_product_attention(heads, heads, heads)
>>> from weft.compiler.pipeline import optimize
>>> from weft.compiler.targets.target import target_named
>>> [node.primitive.name for node in optimize(wf.ir.trace(f, kind), target_named("cpu")).nodes]
['reshape', 'tanh', 'slice', 'transpose', 'attention']
"""

from __future__ import annotations

from collections.abc import Sequence

from weft.compiler.graph_passes.attention.masks import COMPUTED
from weft.compiler.lowering.groups import is_lowered
from weft.core.shapes import Dimension, Shape
from weft.ir.graph import Atom, Graph, GraphNode, Literal, Variable
from weft.ir.walking import Tally, Walk
from weft.ops.movement import concatenate, reshape, slice_, transpose

__all__ = ["move_heads"]

ATTENTION = frozenset([*COMPUTED, *[computed for computed, _ in COMPUTED.values()]])


def move_heads(graph: Graph, tally: Tally | None = None) -> Graph:
    """The graph with heads split off before slices and bias, and joined after concatenation."""
    if not any(node.primitive in ATTENTION for node in graph.nodes):
        return graph
    before, graph = graph, _Heads(graph, tally).run()
    while graph is not before:  # past one more operation each time
        before, graph = graph, _Heads(graph, tally).run()
    return graph


class _Heads(Walk):
    """Moves the division into heads up to where attention's operands are computed."""

    def __init__(self, graph: Graph, tally: Tally | None = None) -> None:
        super().__init__(graph, tally)
        self.readers: dict[Atom, list[GraphNode]] = {}
        for node in graph.nodes:
            for atom in dict.fromkeys(node.operands):
                self.readers.setdefault(atom, []).append(node)
        self.outputs = set(graph.outputs)

    def walk_nested(self, graph: Graph) -> Graph:
        return move_heads(graph, self.tally)

    def visit(self, node: GraphNode) -> Sequence[Atom] | None:
        if node.primitive is concatenate:
            return self.join_heads_last(node)
        if node.primitive is not reshape or not self.feeds(node.results[0]):
            return None
        maker = self.maker(node.operands[0])
        if maker is None or _splits(node) is None:
            return None
        made = (
            self.slice_heads(node, maker)
            if maker.primitive is slice_
            else self.split_elementwise(node, maker)
        )
        if made is not None:
            self.tally["heads split off first"] += 1
        return made

    def feeds(self, atom: Atom) -> bool:
        """Whether a value is read by attention alone, through slices and transposes."""
        readers = self.readers.get(atom, [])
        return (
            bool(readers)
            and atom not in self.outputs
            and all(
                each.primitive in ATTENTION
                or (each.primitive in (slice_, transpose) and self.feeds(each.results[0]))
                for each in readers
            )
        )

    def slice_heads(self, node: GraphNode, maker: GraphNode) -> Sequence[Atom] | None:
        """reshape(slice(x)): a slice of heads, where it begins and ends with whole ones."""
        head, x = node.results[0].type.shape[-1], maker.operands[0]
        starts, stops, steps = (maker.params[name] for name in ("starts", "stops", "strides"))
        width = x.type.shape[-1]
        ends = (starts[-1], stops[-1], width)
        if steps[-1] != 1 or not isinstance(head, int) or not head:
            return None
        if not all(isinstance(end, int) and end % head == 0 for end in ends):
            return None
        whole = self.split_heads(x, head, node)
        first, last, _ = (int(end) // head for end in ends)
        made = self.make(
            slice_, whole, like=maker, starts=(*starts[:-1], first, 0),
            stops=(*stops[:-1], last, head), strides=(*steps, 1),
        )  # fmt: skip
        return [made]

    def split_elementwise(self, node: GraphNode, maker: GraphNode) -> Sequence[Atom] | None:
        """reshape(x + y): the sum of both, split, where nothing else wants it."""
        value = maker.results[0]
        head, rank = node.results[0].type.shape[-1], value.type.ndim
        if not maker.primitive.broadcasts or not is_lowered(maker) or self.is_shared(value):
            return None
        width = value.type.shape[-1]
        if any(x.type.ndim and x.type.shape[-1] not in (1, width) for x in maker.operands):
            return None
        operands = []
        for x in maker.operands:
            if x.type.ndim and x.type.shape[-1] == 1 and x.type.ndim < rank:
                return None
            operands.append(self.split_heads(x, head, node) if x.type.ndim else x)
        return [self.make(maker.primitive, *operands, like=maker, **maker.params)]

    def is_shared(self, value: Variable) -> bool:
        """Whether more than one node reads a value."""
        return value in self.outputs or len(self.readers.get(value, [])) != 1

    def split_heads(self, x: Atom, head: Dimension, like: GraphNode) -> Atom:
        """A value with its last axis divided into heads; an axis of size 1 becomes two."""
        *lead, width = x.type.shape
        shape: Shape = (*lead, 1, 1) if width == 1 else (*lead, width // head, head)
        if isinstance(x, Literal):
            return Literal(x.value.reshape([int(dim) for dim in shape]))
        return self.make(reshape, x, like=like, shape=shape)

    def join_heads_last(self, node: GraphNode) -> Sequence[Atom] | None:
        """concatenate(reshape(x), …) along joined heads: the heads concatenated, then joined."""
        makers = [self.maker(atom) for atom in node.operands]
        found = [each for each in makers if each is not None and each.primitive is reshape]
        last = node.results[0].type.ndim - 1
        if len(found) != len(makers) or node.params["axis"] != last:
            return None
        heads = {_joins(each) for each in found}
        moved = [self.maker(each.operands[0]) for each in found]
        if len(heads) != 1 or None in heads or not all(_is_turned(each) for each in moved):
            return None
        whole = self.make(concatenate, *[each.operands[0] for each in found], like=node, axis=last)
        self.tally["heads joined last"] += 1
        return [self.make(reshape, whole, like=node, shape=node.results[0].type.shape)]


def _splits(node: GraphNode) -> Dimension | None:
    """The size of a head, where a reshape divides the last axis into heads."""
    before, after = node.operands[0].type.shape, node.results[0].type.shape
    divides = len(after) == len(before) + 1 and after[:-2] == before[:-1]
    return after[-1] if divides and after[-1] != 0 else None


def _joins(node: GraphNode) -> Dimension | None:
    """The size of a head, where a reshape makes heads one axis."""
    before, after = node.operands[0].type.shape, node.results[0].type.shape
    return before[-1] if len(before) == len(after) + 1 and before[:-2] == after[:-1] else None


def _is_turned(node: GraphNode | None) -> bool:
    return node is not None and node.primitive is transpose
