"""Index checks that were made before: launches that look at the same indices again cannot fail.

The derivative of a lookup adds to the rows that were looked up: its indices have been found to be
within. Nothing then has to wait for it to be sure that the run succeeds.

>>> import weft as wf
>>> from weft.compiler.plan.planning import plan_program
>>> from weft.compiler.targets.cpu.target import CPU
>>> loss = lambda table, i: (wf.take(table, i, axis=0) ** 2).sum()
>>> kinds = wf.spec("float32", (8, 4)), wf.spec("int64", (99,))
>>> plan = plan_program(wf.ir.trace(wf.grad(loss), *kinds), CPU)
>>> [(launch.name, launch.is_pinned) for launch in plan.launches if launch.checked]
[('gather', True), ('scatter_add', False)]
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from weft.compiler.plan.launch import Launch
from weft.core.shapes import Dimension
from weft.ir.graph import Atom, Graph, GraphNode, Variable
from weft.ir.kinds import Gather, Scatter
from weft.ops.control_call import call

Bounds = frozenset[tuple[Atom, Dimension]]
"""Indices, each with the size that it has to stay below."""


def mark_repeated_checks(launches: Sequence[Launch], graph: Graph) -> list[Launch]:
    """The launches, those marked whose indices a launch that they depend on has checked."""
    repeated = _nodes_with_repeated_checks(launches, graph)
    return [
        replace(launch, is_sure=True) if launch.checked in repeated else launch
        for launch in launches
    ]


def _nodes_with_repeated_checks(launches: Sequence[Launch], graph: Graph) -> set[GraphNode]:
    bounds = {
        launch.checked: _bounds(launch.checked)
        for launch in launches
        if launch.checked is not None and _is_indexed(launch.checked)
    }
    if len(bounds) < 2:
        return set()
    repeated: set[GraphNode] = set()
    behind: dict[Variable, frozenset[GraphNode]] = {}
    """For each value the nodes with checks that it depends on."""
    for node in graph.nodes:
        before = [behind[atom] for atom in node.operands if atom in behind]
        needed = frozenset[GraphNode]().union(*before)
        if node in bounds:
            if bounds[node] <= Bounds().union(*[bounds[other] for other in needed]):
                repeated.add(node)
            needed |= {node}
        if needed:
            behind.update(dict.fromkeys(node.results, needed))
    return repeated


def _is_indexed(node: GraphNode) -> bool:
    """Whether a node reads or writes at indices along `axes` of an operand."""
    inner = _inner_node(node)
    return isinstance(inner.primitive.kind, Gather | Scatter) and "axes" in inner.params


def _bounds(node: GraphNode) -> Bounds:
    inner = _inner_node(node)
    shape, axes = inner.operands[0].type.shape, inner.params["axes"]
    indices, sizes = inner.operands[-len(axes) :], [shape[axis] for axis in axes]
    if node is not inner:
        given = dict(zip(node.params["graph"].inputs, node.operands, strict=True))
        indices = tuple(given[each] for each in indices if isinstance(each, Variable))
    return frozenset(zip(indices, sizes, strict=True))


def _inner_node(node: GraphNode) -> GraphNode:
    """The one node that a target's own form of a node computes; else the node itself."""
    graph: Graph | None = node.params["graph"] if node.primitive is call else None
    nodes = [] if graph is None else list(graph.nodes)
    return nodes[0] if len(nodes) == 1 else node
