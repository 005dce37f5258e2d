"""A Weft graph written into a block, node by node, by the rules.

What a recogniser knows as one high operator is written as that; nodes that nothing needs then are
left out.

>>> import weft as wf
>>> from weft.onnx.exporting import export  # enters the rules
>>> from weft.onnx.exporting.blocks import write_nodes
>>> from weft.onnx.exporting.writing import Model
>>> graph = wf.ir.trace(lambda x: wf.sin(x) + x, wf.spec("float32", (3,)))
>>> model = Model()
>>> model.root.values[graph.inputs[0]] = "x"
>>> write_nodes(model.root, graph)
>>> [(node.operator, node.inputs) for node in model.root.block.nodes]
[('Sin', ('x',)), ('Add', ('sin', 'x'))]
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

import weft as wf
from weft.onnx.exporting import rules
from weft.onnx.exporting.cleaning import clean_graph
from weft.onnx.exporting.writing import Writer

__all__ = ["RECOGNISERS", "Match", "inline", "write_nodes"]


class Match(NamedTuple):
    """Nodes that are one operator: what they read, and how it is written from the values read."""

    reads: tuple[Any, ...]
    write: Callable[[Writer, Any, Sequence[str]], str | Sequence[str]]


RECOGNISERS: list[Callable[[Writer, Any], dict[Any, Match]]] = []
"""Each finds, in a graph, the nodes whose results are those of one higher operator."""


def write_nodes(writer: Writer, graph: Any) -> None:
    """Write all nodes of a graph whose inputs have values already."""
    for node in graph.nodes:
        writer.makers.update(dict.fromkeys(node.results, node))
    matches: dict[Any, Match] = {}
    for recogniser in RECOGNISERS:
        matches = {**recogniser(writer, graph), **matches}
    live = _live_nodes(graph, matches)
    read = {atom for node in live for atom in _reads(node, matches)} | set(graph.outputs)
    writer.unread.update(each for node in live for each in node.results if each not in read)
    for node in live:
        _write_node(writer, node, matches.get(node))


def _live_nodes(graph: Any, matches: dict[Any, Match]) -> list[Any]:
    """The nodes that are needed, given what each match reads."""
    needed, live = set(graph.outputs), []
    for node in reversed(graph.nodes):
        if needed.isdisjoint(node.results) and not node.primitive.impure:
            continue
        live.append(node)
        needed.update(_reads(node, matches))
    return live[::-1]


def _reads(node: Any, matches: dict[Any, Match]) -> Sequence[Any]:
    return matches[node].reads if node in matches else node.operands


def _write_node(writer: Writer, node: Any, match: Match | None) -> None:
    before = writer.place, writer.scope, writer.origin
    if node.location is not None and not writer.within_node:
        writer.place, writer.scope = str(node.location), _scope(node.location.module)
        writer.origin = node
    try:
        results = _results(writer, node, match)
    except wf.UnsupportedError:
        raise
    except wf.Unsupported as missing:
        raise _refusal(writer, node, missing) from None
    finally:
        writer.place, writer.scope, writer.origin = before
    names = (results,) if isinstance(results, str) else tuple(results)
    writer.values.update(zip(node.results, names, strict=True))


def _results(writer: Writer, node: Any, match: Match | None) -> str | Sequence[str]:
    kinds = [result.type for result in node.results]
    if kinds and all(_is_empty(kind) for kind in kinds):  # which runtimes often refuse to compute
        return [writer.model.constant(np.zeros(k.shape, k.dtype.numpy)) for k in kinds]
    if match is not None:
        return match.write(
            writer, node, ["" if atom is None else writer.value(atom) for atom in match.reads]
        )
    written = rules.RULES.get(node.primitive.name)
    if written is None:
        raise wf.Unsupported(f"no rule says how {node.primitive.name} is written")
    if isinstance(written, wf.Unsupported):
        raise written
    for atom in (*node.operands, *node.results):
        if atom.type.dtype.is_complex:
            raise wf.Unsupported("ONNX operators have no complex numbers")
    return written(writer, node, *[writer.value(atom) for atom in node.operands])


def _is_empty(kind: wf.TensorType) -> bool:
    """Whether a value is known to have no elements, and of which shape."""
    sizes = [dim for dim in kind.shape if isinstance(dim, int)]
    return len(sizes) == kind.ndim and 0 in sizes and not kind.dtype.is_complex


def _refusal(writer: Writer, node: Any, missing: wf.Unsupported) -> wf.UnsupportedError:
    origin = writer.origin or node
    operands = {f"x{i + 1}": atom.type for i, atom in enumerate(node.operands)}
    error = wf.UnsupportedError(
        "onnx.export",
        f"{node.primitive.name} cannot be written: {missing.reason}",
        expected="operations that ONNX has, or that can be made of them",
        got=operands,
        fix="leave this part out of what is exported, or compute it from other operations",
        at=origin.location,
    )
    error.reason = missing.reason
    return error


def _scope(module: str) -> str:
    """The path of modules as a node's name says it: /GPT/blocks.0/attention."""
    return f"/{module.replace('·', '.').replace(' ', '')}" if module else ""


def inline(writer: Writer, graph: Any, operands: Sequence[str]) -> Sequence[str]:
    """The values of the outputs of a graph that is written at the place of a node."""
    graph = clean_graph(graph)
    values = dict(zip(graph.inputs, operands, strict=True))
    inner = writer.sharing_writer(values)
    write_nodes(inner, graph)
    return [inner.value(atom) for atom in graph.outputs]


rules.INLINE.append(inline)
