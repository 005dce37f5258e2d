"""Attention whose heads stay where a product wrote them, and whose results lie as the next wants.

Heads are cut out of a product's columns and moved to the front, and moved back behind attention:
copies of all queries, keys and values. The kernels take any strides, so the movement and the node
become one `call`, whose launch binds views of whole values.

>>> import weft as wf
>>> def f(x):
...     q, k, v = [x[:, :, 2 * n : 2 * n + 2].transpose(0, 2, 1, 3) for n in range(3)]
...     return wf.scaled_dot_product_attention(q, k, v).transpose(0, 2, 1, 3)
>>> from weft.compiler.pipeline import optimize
>>> from weft.compiler.targets.target import target_named
>>> graph = wf.ir.trace(f, wf.spec("bfloat16", (1, 128, 6, 64)))
>>> graph = view_heads(optimize(graph, target_named("cuda")))
>>> [node.primitive.name for node in graph.nodes]
['call']
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from weft.compiler.plan.launch import Launch, Value
from weft.compiler.targets.cuda.attention.binding import attention_launch, is_attention
from weft.compiler.targets.cuda.binding import BINDERS, Binding, Run, binder
from weft.compiler.targets.cuda.views import View, view_of
from weft.core.types import TensorType
from weft.ir.graph import Atom, Graph, GraphNode, Variable
from weft.ir.kinds import Elementwise
from weft.ir.walking import Tally, without_dead_nodes
from weft.ops.attention import attention, attention_gradient
from weft.ops.control_call import call
from weft.ops.movement import concatenate, reshape, slice_, transpose

__all__ = ["is_viewed", "view_heads", "viewed_launch"]

FRONT = (0, 2, 1, 3)
"""Heads before places; the same order brings them back."""
_VIEWED = {attention: (0, 1, 2), attention_gradient: (0, 1, 2, 4)}
"""The operands that are read by heads: queries, keys, values, and the cotangent."""


def view_heads(graph: Graph, tally: Tally | None = None) -> Graph:
    """The graph with attention that reads and writes heads where they are."""
    if not any(node.primitive in _VIEWED for node in graph.nodes):
        return graph
    work = _Heads(graph)
    for node in graph.nodes:
        is_one = node.primitive in _VIEWED and is_attention(node)
        if is_one and work.view(node) and tally is not None:
            tally["heads in place"] += 1
    return work.result() if work.changed else graph


class _Heads:
    """A graph while its attention is changed."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.makers = {result: node for node in graph.nodes for result in node.results}
        self.users: dict[Atom, list[GraphNode]] = {}
        for node in graph.nodes:
            for atom in dict.fromkeys(node.operands):
                self.users.setdefault(atom, []).append(node)
        self.replaced: dict[GraphNode, list[GraphNode]] = {}
        """By the nodes that go: what stands in their place."""
        self.changed = False

    def view(self, node: GraphNode) -> bool:
        """Join a node with the movement around it; False where there is none."""
        if any(node.operands[place].type.ndim != 4 for place in _VIEWED[node.primitive]):
            return False
        if not all(isinstance(atom, Variable) for atom in node.operands):
            return False
        if not all(isinstance(dim, int) for atom in node.operands for dim in atom.type.shape):
            return False  # views have strides of known sizes
        inner: list[GraphNode] = []
        operands: dict[Atom, None] = {}
        for place, atom in enumerate(node.operands):
            way = self._way_to(atom) if place in _VIEWED[node.primitive] else []
            inner += [each for each in way if each not in inner]
            operands[way[0].operands[0] if way else atom] = None
        joined, turned = self._join_of_results(node), self._turns_of_results(node)
        moved = joined or turned
        if not inner and not moved:
            return False
        kept = [r for r in node.results if not any(r in each.operands for each in moved)]
        outputs = [each.results[0] for each in (joined[-1:] or turned)]
        results = [*outputs, *kept]
        given = [atom for atom in operands if isinstance(atom, Variable)]
        copied = _copied_graph(given, [*inner, node, *moved], results)
        fused = GraphNode(call, tuple(given), {"graph": copied}, tuple(results), node.location)
        # results in the old order of axes, for those who read them otherwise
        turned_back = [] if joined else [
            GraphNode(transpose, each.results, {"order": FRONT}, (result,), node.location)
            for each in turned for result in node.results if result in each.operands
        ]  # fmt: skip
        self.replaced[node] = [fused, *turned_back]
        for each in moved:
            self.replaced[each] = []
        self.changed = True
        return True

    def _way_to(self, atom: Atom) -> list[GraphNode]:
        """The movement from a whole value to an operand: a part of it, then heads first."""
        turn = self.makers.get(atom) if isinstance(atom, Variable) else None
        if turn is None or turn.primitive is not transpose or turn.params["order"] != FRONT:
            return []
        source = turn.operands[0]
        part = self.makers.get(source) if isinstance(source, Variable) else None
        if part is not None and part.primitive is slice_ and _is_part_of_heads(part):
            return [part, turn]
        return [turn] if isinstance(source, Variable) else []

    def _turns_of_results(self, node: GraphNode) -> list[GraphNode]:
        """The transposes that bring results back, one for each result that has one."""
        found = []
        for result in node.results:
            turns = [
                each
                for each in self.users.get(result, ())
                if each.primitive is transpose and each.params["order"] == FRONT
            ]
            if turns and result not in self.graph.outputs:
                found.append(turns[0])
        return found

    def _join_of_results(self, node: GraphNode) -> list[GraphNode]:
        """Transposes of all results and the join of these, if nothing else reads them."""
        turns = self._turns_of_results(node)
        if node.primitive is not attention_gradient or len(turns) != len(node.results):
            return []
        results = [turn.results[0] for turn in turns]
        joins = self.users.get(results[0], ())
        if len(joins) != 1 or joins[0].primitive is not concatenate:
            return []
        [join] = joins
        if join.params["axis"] != 2 or list(join.operands) != results:
            return []
        alone = all(len(self.users[r]) == 1 for r in (*node.results, *results))
        read = self.graph.outputs
        return [*turns, join] if alone and not any(r in read for r in results) else []

    def result(self) -> Graph:
        """The graph in an order that can be run, without movement that nobody needs any more."""
        nodes = [each for node in self.graph.nodes for each in self.replaced.get(node, [node])]
        graph = Graph(self.graph.inputs, tuple(nodes), self.graph.outputs, self.graph.name)
        return without_dead_nodes(_with_reshapes_last(graph))


def _is_part_of_heads(node: GraphNode) -> bool:
    """Whether a slice takes some heads whole: of [batch, places, heads, head]."""
    shape, params = node.operands[0].type.shape, node.params
    whole = [
        params["starts"][axis] == 0 and params["stops"][axis] == shape[axis] for axis in (0, 1, 3)
    ]
    static = all(isinstance(dim, int) for dim in shape)
    return static and all(whole) and set(params["strides"]) == {1}


def _copied_graph(
    operands: Sequence[Variable], nodes: Sequence[GraphNode], outputs: Sequence[Variable]
) -> Graph:
    """A graph of its own, with variables of its own."""
    renamed: dict[Atom, Variable] = {each: Variable(each.type, each.name) for each in operands}
    copies = []
    for node in nodes:
        results = tuple(Variable(result.type, result.name) for result in node.results)
        given = tuple(renamed.get(atom, atom) for atom in node.operands)
        copies.append(GraphNode(node.primitive, given, node.params, results, node.location))
        renamed |= dict(zip(node.results, results, strict=True))
    inputs = tuple(renamed[each] for each in operands)
    return Graph(inputs, tuple(copies), tuple(renamed[each] for each in outputs))


def _with_reshapes_last(graph: Graph) -> Graph:
    """The graph where what is read as heads is computed before its columns become heads.

    A bias is then added to rows of a product, which the product's own kernel does.
    """
    makers = {result: node for node in graph.nodes for result in node.results}
    read = {atom for node in graph.nodes if node.primitive is call for atom in node.operands}
    nodes: list[GraphNode] = []
    for node in graph.nodes:
        nodes += _with_reshape_last(node, makers) if set(node.results) & read else [node]
    return Graph(graph.inputs, tuple(nodes), graph.outputs, graph.name)


def _with_reshape_last(node: GraphNode, makers: dict[Variable, GraphNode]) -> list[GraphNode]:
    """f(reshape(x), y) as reshape(f(x, reshape(y))), where y has numbers for columns alone."""
    kind = node.results[0].type
    if not isinstance(node.primitive.kind, Elementwise) or node.primitive.multiple:
        return [node]
    if len(kind.shape) != 4:  # what another function of the card reads
        return [node]
    rows, columns = kind.shape[:2], kind.shape[2:]
    flat = (*rows, columns[0] * columns[1])
    added: list[GraphNode] = []
    operands: list[Atom] = []
    for atom in node.operands:
        made = makers.get(atom) if isinstance(atom, Variable) else None
        if made is not None and made.primitive is reshape and made.operands[0].type.shape == flat:
            operands.append(made.operands[0])
        elif atom.type.shape == columns and isinstance(atom, Variable):
            line = Variable(TensorType(atom.type.dtype, flat[2:]))
            added.append(GraphNode(reshape, (atom,), {"shape": flat[2:]}, (line,), node.location))
            operands.append(line)
        elif atom.type.shape == ():
            operands.append(atom)
        else:
            return [node]
    if not any(atom.type.shape == flat for atom in operands):
        return [node]
    whole = Variable(kind.with_shape(flat))
    added.append(GraphNode(node.primitive, tuple(operands), node.params, (whole,), node.location))
    return [
        *added,
        GraphNode(reshape, (whole,), {"shape": kind.shape}, node.results, node.location),
    ]


# --- launches -------------------------------------------------------------------------------------


def is_viewed(node: GraphNode) -> bool:
    """Whether a node is attention with movement around it."""
    return node.primitive is call and any(
        each.primitive in _VIEWED for each in node.params["graph"].nodes
    )


def viewed_launch(node: GraphNode) -> Launch:
    """The launch of attention with movement around it."""
    graph: Graph = node.params["graph"]
    [inner] = [each for each in graph.nodes if each.primitive in _VIEWED]
    plain = attention_launch(inner)
    assert isinstance(plain.kernel, tuple)
    return replace(
        plain,
        kernel=("viewed", *plain.kernel),
        values=(*node.operands, *node.results),
        writes=node.results,
        computes=graph,
    )


@binder("viewed")
def bind_viewed(binding: Binding, launch: Launch) -> Run:
    """What runs attention on views of the launch's values."""
    graph = launch.computes
    assert graph is not None
    known: dict[Atom, Value] = dict(
        zip((*graph.inputs, *graph.outputs), launch.values, strict=True)
    )
    [inner] = [each for each in graph.nodes if each.primitive in _VIEWED]
    for node in graph.nodes:
        if node.primitive is slice_:
            start, whole = node.params["starts"][2], known[node.operands[0]]
            known[node.results[0]] = view_of(whole, node.results[0].type.shape, 2, start)
        elif node.primitive is transpose and node.operands[0] not in inner.results:
            known[node.results[0]] = _view(known[node.operands[0]]).with_axes(FRONT)
        elif node.primitive is concatenate:
            start = 0
            for operand in node.operands:
                whole = known[node.results[0]]
                known[operand] = view_of(whole, operand.type.shape, 2, start)
                start += int(operand.type.shape[2])
    for node in graph.nodes:
        if node.primitive is transpose and node.operands[0] in inner.results:
            known[node.operands[0]] = _view(known[node.results[0]]).with_axes(FRONT)
    values = tuple(known[atom] for atom in (*inner.operands, *inner.results))
    plain = replace(attention_launch(inner), values=values)
    assert isinstance(plain.kernel, tuple)
    return BINDERS[plain.kernel[0]](binding, plain)


def _view(value: Value) -> View:
    return value if isinstance(value, View) else view_of(value, value.type.shape)
