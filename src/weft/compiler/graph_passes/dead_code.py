"""Dead code: what no output needs is not computed.

Control flow loses the results that nothing uses, the operands that its graphs do not read, and
what a loop carries only for its own sake. What has an effect stays.

>>> import weft as wf
>>> graph = wf.ir.trace(lambda x: wf.cond(x.sum() > 0, lambda y, z: (y, z), lambda y, z: (z, y),
...                                       x, wf.sin(x))[0], wf.spec("float32", (3,)))
>>> len(remove_dead_code(graph).nodes[-1].results)
1
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from operator import is_
from typing import Any, NamedTuple

from weft.ir.graph import Graph, GraphNode, graphs_in
from weft.ir.primitive import Primitive
from weft.ir.walking import Tally, graphs_of, holds_graphs, is_pure, replace_node
from weft.ops.control import Marks, select_marked, settle, union
from weft.ops.control_branch import switch
from weft.ops.control_loop import scan, while_
from weft.ops.identity import barrier

__all__ = ["remove_dead_code"]


def remove_dead_code(graph: Graph, tally: Tally | None = None) -> Graph:
    """The graph without what no output needs; its inputs stay."""
    trimming = _Trimming()
    found = trimming.clean_graph(graph)
    if tally is not None:
        tally.update(trimming.needs_of(graph, (True,) * len(graph.outputs)).removed)
    return found


class _Needed(NamedTuple):
    """What some outputs of a graph need: nodes, trimmed themselves, and inputs; and the rest."""

    nodes: list[GraphNode]
    inputs: Marks
    removed: Tally


class _Trimming:
    """One run of the pass: what was found of a graph inside of others is found once."""

    def __init__(self) -> None:
        self._known: dict[tuple[int, Marks], tuple[Graph, _Needed]] = {}

    def needs_of(self, graph: Graph, outputs: Marks) -> _Needed:
        """What some outputs need, remembered: graphs inside of graphs are asked for many times."""
        key = id(graph), outputs
        if key not in self._known:
            self._known[key] = graph, self._find_needs(graph, outputs)
        return self._known[key][1]

    def _find_needs(self, graph: Graph, outputs: Marks) -> _Needed:
        needed = set(select_marked(graph.outputs, outputs))
        kept: list[GraphNode] = []
        removed: Tally = Counter()
        for node in reversed(graph.nodes):
            if needed.isdisjoint(node.results) and not _has_effect(node):
                removed[node.primitive.name] += 1
                continue
            if graphs_of(node):
                used = tuple([result in needed for result in node.results])
                # What stays for its effect keeps a result: nodes are told apart by their results.
                node = self._trim_node(node, used if any(used) else (True, *used[1:]), removed)
            kept.append(node)
            needed.update(node.operands)
        return _Needed(kept[::-1], tuple([v in needed for v in graph.inputs]), removed)

    def clean_graph(self, graph: Graph) -> Graph:
        """The graph without what no output needs."""
        kept = self.needs_of(graph, (True,) * len(graph.outputs)).nodes
        same = len(kept) == len(graph.nodes) and all(map(is_, kept, graph.nodes))
        return graph if same else Graph(graph.inputs, tuple(kept), graph.outputs, graph.name)

    def _trim_node(self, node: GraphNode, used: Marks, removed: Tally) -> GraphNode:
        """A node that holds graphs without what nothing uses."""
        trim = _TRIM.get(node.primitive)
        if trim is not None:
            trimmed = trim(self, node, used)
            fewer = len(node.operands) - len(trimmed.operands)
            removed["operands"] += fewer
            if fewer or len(trimmed.results) < len(node.results):
                node = trimmed
        for key, value in node.params.items():
            if holds_graphs(value):
                clean = self._clean_parameter(value, removed)
                if not all(map(is_, graphs_in(clean), graphs_in(value))):
                    node = replace_node(node, params={**node.params, key: clean})
        return node

    def _clean_parameter(self, value: Any, removed: Tally) -> Any:
        if isinstance(value, Graph):
            removed.update(self.needs_of(value, (True,) * len(value.outputs)).removed)
            return self.clean_graph(value)
        return tuple([self._clean_parameter(each, removed) for each in value])

    def reads(self, graph: Graph, outputs: Marks) -> Marks:
        """Which inputs some outputs need."""
        return self.needs_of(graph, outputs).inputs

    def restrict_graph(self, graph: Graph, inputs: Marks, outputs: Marks) -> Graph:
        """The graph with some of its inputs and outputs."""
        kept = self.needs_of(graph, outputs).nodes
        chosen = tuple(select_marked(graph.outputs, outputs))
        return Graph(tuple(select_marked(graph.inputs, inputs)), tuple(kept), chosen, graph.name)


def _has_effect(node: GraphNode) -> bool:
    """Whether a node does something beside its results, which holding values apart is not."""
    return node.primitive is not barrier and not is_pure(node)


_Trim = Callable[[_Trimming, GraphNode, Marks], GraphNode]
_TRIM: dict[Primitive, _Trim] = {}


def _trims(primitive: Primitive) -> Callable[[_Trim], _Trim]:
    """Say how a primitive that holds graphs loses what nothing uses."""

    def register(trim: _Trim) -> _Trim:
        _TRIM[primitive] = trim
        return trim

    return register


@_trims(switch)
def _trim_switch(trimming: _Trimming, node: GraphNode, used: Marks) -> GraphNode:
    branches: Sequence[Graph] = node.params["branches"]
    read = union(*[trimming.reads(branch, used) for branch in branches])
    graphs = tuple([trimming.restrict_graph(branch, read, used) for branch in branches])
    return replace_node(
        node,
        operands=(node.operands[0], *select_marked(node.operands[1:], read)),
        params={**node.params, "branches": graphs},
        results=tuple(select_marked(node.results, used)),
    )


@_trims(scan)
def _trim_scan(trimming: _Trimming, node: GraphNode, used: Marks) -> GraphNode:
    graph, consts, count = (node.params[key] for key in ("graph", "num_consts", "num_carry"))
    stacked = used[count:]
    held = slice(consts, consts + count)
    carry = settle(lambda marks: trimming.reads(graph, marks + stacked)[held], used[:count])
    read = trimming.reads(graph, carry + stacked)
    inputs = (*read[:consts], *carry, *read[held.stop :])
    sizes = {"num_consts": sum(read[:consts]), "num_carry": sum(carry)}
    return replace_node(
        node,
        operands=tuple(select_marked(node.operands, inputs)),
        params={
            **node.params,
            **sizes,
            "graph": trimming.restrict_graph(graph, inputs, carry + stacked),
        },
        results=tuple(select_marked(node.results, carry + stacked)),
    )


@_trims(while_)
def _trim_while(trimming: _Trimming, node: GraphNode, used: Marks) -> GraphNode:
    condition, body, consts = (node.params[key] for key in ("cond", "body", "num_consts"))
    asked = trimming.reads(condition, (True,))
    carry = settle(lambda marks: trimming.reads(body, marks)[consts:], union(used, asked[consts:]))
    read = union(asked, trimming.reads(body, carry))
    inputs = (*read[:consts], *carry)
    graphs = {
        "cond": trimming.restrict_graph(condition, inputs, (True,)),
        "body": trimming.restrict_graph(body, inputs, carry),
    }
    return replace_node(
        node,
        operands=tuple(select_marked(node.operands, inputs)),
        params={**node.params, **graphs, "num_consts": sum(read[:consts])},
        results=tuple(select_marked(node.results, carry)),
    )
