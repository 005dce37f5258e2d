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
from typing import Any

from weft.ir.graph import Graph, GraphNode, graphs_in
from weft.ir.walking import Tally, graphs_of, holds_graphs, is_pure, replace_node
from weft.ops.control import Marks, marked, settle, union
from weft.ops.identity import barrier

__all__ = ["remove_dead_code"]


def remove_dead_code(graph: Graph, tally: Tally | None = None) -> Graph:
    """The graph without what no output needs; its inputs stay."""
    kept, _ = _needed(graph, (True,) * len(graph.outputs), Counter() if tally is None else tally)
    same = len(kept) == len(graph.nodes) and all(map(is_, kept, graph.nodes))
    return graph if same else Graph(graph.inputs, tuple(kept), graph.outputs, graph.name)


def _needed(graph: Graph, outputs: Marks, tally: Tally) -> tuple[list[GraphNode], Marks]:
    """The nodes that some outputs need, trimmed themselves, and which inputs they read."""
    needed = set(marked(graph.outputs, outputs))
    kept: list[GraphNode] = []
    for node in reversed(graph.nodes):
        if needed.isdisjoint(node.results) and not _has_effect(node):
            tally[node.primitive.name] += 1
            continue
        if graphs_of(node):
            used = tuple([result in needed for result in node.results])
            # What stays for its effect keeps a result: nodes are told apart by their results.
            node = _trimmed(node, used if any(used) else (True, *used[1:]), tally)
        kept.append(node)
        needed.update(node.operands)
    return kept[::-1], tuple([variable in needed for variable in graph.inputs])


def _has_effect(node: GraphNode) -> bool:
    """Whether a node does something beside its results, which holding values apart is not."""
    return node.primitive is not barrier and not is_pure(node)


def _trimmed(node: GraphNode, used: Marks, tally: Tally) -> GraphNode:
    """A node that holds graphs without what nothing uses."""
    trim = _TRIM.get(node.primitive.name)
    if trim is not None:
        trimmed = trim(node, used, tally)
        fewer = len(node.operands) - len(trimmed.operands)
        tally["operands"] += fewer
        if fewer or len(trimmed.results) < len(node.results):
            node = trimmed
    for key, value in node.params.items():
        if holds_graphs(value):
            clean = _cleaned(value, tally)
            if not all(map(is_, graphs_in(clean), graphs_in(value))):
                node = replace_node(node, params={**node.params, key: clean})
    return node


def _cleaned(value: Any, tally: Tally) -> Any:
    if isinstance(value, Graph):
        return remove_dead_code(value, tally)
    return tuple([_cleaned(each, tally) for each in value])


def _reads(graph: Graph, outputs: Marks) -> Marks:
    """Which inputs some outputs need."""
    return _needed(graph, outputs, Counter())[1]


def _restricted(graph: Graph, inputs: Marks, outputs: Marks) -> Graph:
    """The graph with some of its inputs and outputs."""
    kept, _ = _needed(graph, outputs, Counter())
    chosen = tuple(marked(graph.outputs, outputs))
    return Graph(tuple(marked(graph.inputs, inputs)), tuple(kept), chosen, graph.name)


def _trim_switch(node: GraphNode, used: Marks, tally: Tally) -> GraphNode:
    branches: Sequence[Graph] = node.params["branches"]
    read = union(*[_reads(branch, used) for branch in branches])
    graphs = tuple([_restricted(branch, read, used) for branch in branches])
    return replace_node(
        node,
        operands=(node.operands[0], *marked(node.operands[1:], read)),
        params={**node.params, "branches": graphs},
        results=tuple(marked(node.results, used)),
    )


def _trim_scan(node: GraphNode, used: Marks, tally: Tally) -> GraphNode:
    graph, consts, count = (node.params[key] for key in ("graph", "num_consts", "num_carry"))
    stacked = used[count:]
    held = slice(consts, consts + count)
    carry = settle(lambda marks: _reads(graph, marks + stacked)[held], used[:count])
    read = _reads(graph, carry + stacked)
    inputs = (*read[:consts], *carry, *read[held.stop :])
    sizes = {"num_consts": sum(read[:consts]), "num_carry": sum(carry)}
    return replace_node(
        node,
        operands=tuple(marked(node.operands, inputs)),
        params={**node.params, **sizes, "graph": _restricted(graph, inputs, carry + stacked)},
        results=tuple(marked(node.results, carry + stacked)),
    )


def _trim_while(node: GraphNode, used: Marks, tally: Tally) -> GraphNode:
    condition, body, consts = (node.params[key] for key in ("cond", "body", "num_consts"))
    asked = _reads(condition, (True,))
    carry = settle(lambda marks: _reads(body, marks)[consts:], union(used, asked[consts:]))
    read = union(asked, _reads(body, carry))
    inputs = (*read[:consts], *carry)
    graphs = {
        "cond": _restricted(condition, inputs, (True,)),
        "body": _restricted(body, inputs, carry),
    }
    return replace_node(
        node,
        operands=tuple(marked(node.operands, inputs)),
        params={**node.params, **graphs, "num_consts": sum(read[:consts])},
        results=tuple(marked(node.results, carry)),
    )


_TRIM: dict[str, Callable[[GraphNode, Marks, Tally], GraphNode]] = {
    "switch": _trim_switch,
    "scan": _trim_scan,
    "while": _trim_while,
}
