"""A traced graph made ready to be written: calls opened, equal nodes merged, dead ones dropped.

>>> import weft as wf
>>> from weft.onnx.exporting.cleaning import clean_graph
>>> graph = wf.ir.trace(lambda x: wf.stop_gradient(wf.sin(x)) + wf.sin(x), wf.spec("float32", ()))
>>> [node.primitive.name for node in clean_graph(graph).nodes]
['sin', 'add']
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import weft as wf

__all__ = ["clean_graph"]

OPENED = ("call", "custom")
PASSED_ON = "stop_gradient"


def clean_graph(graph: Any) -> Any:
    """The same program with fewer nodes, the graphs in its nodes included."""
    walk = _Cleaning()
    walk.renamed = {variable: variable for variable in graph.inputs}
    outputs = walk.add(graph, graph.inputs)
    return _without_dead_nodes(wf.ir.Graph(graph.inputs, tuple(walk.nodes), tuple(outputs)))


class _Cleaning:
    def __init__(self) -> None:
        self.nodes: list[Any] = []
        self.renamed: dict[Any, Any] = {}
        self._known: dict[Any, Any] = {}

    def add(self, graph: Any, operands: Sequence[Any], place: Any = None) -> list[Any]:
        """Add the nodes of a graph on operands; gives the atoms of its outputs."""
        names = dict(zip(graph.inputs, operands, strict=True))

        def read(atom: Any) -> Any:
            return names[atom] if isinstance(atom, wf.ir.Variable) else atom

        for node in graph.nodes:
            atoms = tuple(map(read, node.operands))
            names.update(zip(node.results, self._node(node, atoms, place), strict=True))
        return [read(atom) for atom in graph.outputs]

    def _node(self, node: Any, operands: tuple[Any, ...], place: Any) -> Sequence[Any]:
        location = node.location or place
        if node.primitive.name == PASSED_ON or _keeps_shape(node):
            return operands
        if node.primitive.name in OPENED:
            inner = wf.ir.specialize(node.params["graph"], [atom.type for atom in operands])
            return self.add(inner, operands, location)
        key = _key(node, operands)
        if key is not None and key in self._known:
            known: Sequence[Any] = self._known[key]
            return known
        params = {name: _clean_param(value) for name, value in node.params.items()}
        results = tuple(wf.ir.Variable(each.type, each.name) for each in node.results)
        self.nodes.append(wf.ir.GraphNode(node.primitive, operands, params, results, location))
        if key is not None:
            self._known[key] = results
        return results


def _keeps_shape(node: Any) -> bool:
    """Whether a node gives a value the shape that it has."""
    is_shaping = node.primitive.name in ("broadcast_to", "reshape")
    return is_shaping and str(node.operands[0].type) == str(node.results[0].type)


def _clean_param(value: Any) -> Any:
    if isinstance(value, wf.ir.Graph):
        return clean_graph(value)
    if isinstance(value, tuple) and value and isinstance(value[0], wf.ir.Graph):
        return tuple(map(clean_graph, value))
    return value


def _key(node: Any, operands: Sequence[Any]) -> Any:
    """What equal nodes have in common; None where a node is like no other."""
    if node.primitive.impure or any(isinstance(p, wf.ir.Graph) for p in node.params.values()):
        return None
    atoms = tuple(
        (str(atom.value.dtype), atom.value.shape, atom.value.tobytes())
        if isinstance(atom, wf.ir.Literal) and atom.value.size <= 16
        else id(atom)
        for atom in operands
    )
    return node.primitive.name, atoms, repr(sorted(node.params.items(), key=lambda item: item[0]))


def _without_dead_nodes(graph: Any) -> Any:
    needed, kept = set(graph.outputs), []
    for node in reversed(graph.nodes):
        if node.primitive.impure or not needed.isdisjoint(node.results):
            kept.append(node)
            needed.update(node.operands)
    return wf.ir.Graph(graph.inputs, tuple(reversed(kept)), graph.outputs)
