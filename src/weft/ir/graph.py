"""Graphs: typed, immutable programs in single-assignment form.

A graph is inputs, nodes in an order that can be run, and outputs. A node's operands are results of
earlier nodes, inputs, or constants; its parameters may hold graphs. Each node remembers the
user's line.

>>> import weft as wf
>>> print(wf.ir.trace(lambda x: x * 2.0, wf.spec("float32", (3,))))  # doctest: +ELLIPSIS
graph(a: f32[3]) {
  b: f32[3] = multiply(a, 2.0)...
  return b
}
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import field
from typing import Any

import numpy as np

from weft.core.dtypes import DType, from_numpy
from weft.core.errors import GraphError
from weft.core.html import block, opening, preformatted
from weft.core.locations import Location
from weft.core.records import frozen
from weft.core.shapes import Dim
from weft.core.types import TensorType
from weft.ir.primitive import LOCAL, Primitive


@frozen(eq=False)
class Variable:
    """A value in a graph: an input or a result. Compared by identity; its name is for readers."""

    type: TensorType
    name: str = ""


@frozen(eq=False)
class Literal:
    """A constant in a graph."""

    value: np.ndarray[Any, Any]

    @property
    def type(self) -> TensorType:
        """The constant's dtype and shape."""
        return TensorType(from_numpy(self.value.dtype), self.value.shape)


Atom = Variable | Literal


@frozen(eq=False)
class GraphNode:
    """One operation of a graph."""

    primitive: Primitive
    operands: tuple[Atom, ...]
    params: dict[str, Any]
    results: tuple[Variable, ...]
    location: Location | None = None


@frozen
class Graph:
    """A program: what goes in, what is done, what comes out.

    Two graphs are equal when they are the same program up to names and locations.
    """

    inputs: tuple[Variable, ...]
    nodes: tuple[GraphNode, ...]
    outputs: tuple[Atom, ...]
    name: str = field(default="", compare=False)
    _digest: str = field(default="", compare=False, init=False, repr=False)
    """The structural hash, once it was asked for: the tape finds programs by it in every step."""

    def __str__(self) -> str:
        return PRINTER[0](self)

    __repr__ = __str__

    def _repr_html_(self) -> str:
        counts = f"{len(self.inputs)} inputs, {len(self.nodes)} nodes, {len(self.outputs)} outputs"
        return block(opening(counts, preformatted(str(self)), is_open=len(self.nodes) <= 40))

    def __eq__(self, other: object) -> bool:
        return self is other or (isinstance(other, Graph) and self.digest() == other.digest())

    def __hash__(self) -> int:
        return hash(self.digest())

    def digest(self) -> str:
        """The structural hash: equal for equal programs, in every process."""
        if not self._digest:
            found = hashlib.sha256(structure(self).encode()).hexdigest()
            object.__setattr__(self, "_digest", found)
        return self._digest

    @property
    def input_types(self) -> tuple[TensorType, ...]:
        """The types of the inputs."""
        return tuple(variable.type for variable in self.inputs)

    @property
    def output_types(self) -> tuple[TensorType, ...]:
        """The types of the outputs."""
        return tuple(atom.type for atom in self.outputs)

    def subgraphs(self) -> Iterator[Graph]:
        """The graphs that this graph's nodes hold."""
        for node in self.nodes:
            for value in node.params.values():
                if isinstance(value, (Graph, tuple, list)):
                    yield from graphs_in(value)


PRINTER: list[Callable[[Graph], str]] = [lambda graph: f"graph of {len(graph.nodes)} nodes"]
"""The text form, filled in by printing.py."""


def graphs_in(value: Any) -> Iterator[Graph]:
    """The graphs in a parameter."""
    if isinstance(value, Graph):
        yield value
    elif isinstance(value, (tuple, list)):
        for each in value:
            if not isinstance(each, (int, str)):
                yield from graphs_in(each)


def structure(graph: Graph) -> str:
    """The program as canonical text: variables numbered in order, no names, no locations."""
    numbers: dict[Variable, int] = {}
    kinds: dict[TensorType, str] = {}
    lines = [_declare(graph.inputs, numbers, kinds)]
    for node in graph.nodes:
        operands = ",".join([_refer(atom, numbers) for atom in node.operands])
        params = [f"{k}={param_text(v, _nested_structure)}" for k, v in sorted(node.params.items())]
        results = _declare(node.results, numbers, kinds)
        name = node.primitive.name + node.primitive.fingerprint
        lines.append(f"{results}={name}({operands};{','.join(params)})")
    lines.append(",".join([_refer(atom, numbers) for atom in graph.outputs]))
    return "\n".join(lines)


def is_local(node: GraphNode) -> bool:
    """Whether only this process knows how a node, or one that it holds, is computed."""
    if node.primitive.fingerprint.startswith(LOCAL):
        return True
    if not node.params:
        return False
    inner = [graph for value in node.params.values() for graph in graphs_in(value)]
    return any(is_local(each) for graph in inner for each in graph.nodes)


def _declare(
    variables: Sequence[Variable], numbers: dict[Variable, int], kinds: dict[TensorType, str]
) -> str:
    """Number variables; `kinds` are the texts of types so far."""
    parts = []
    for variable in variables:
        number = numbers[variable] = len(numbers)
        kind = variable.type
        text = kinds.get(kind)
        if text is None:
            text = kinds[kind] = str(kind)
        parts.append(f"{number}:{text}")
    return ",".join(parts)


def _refer(atom: Atom, numbers: dict[Variable, int]) -> str:
    if isinstance(atom, Variable):
        return str(numbers[atom]) if atom in numbers else f"?:{atom.type}"
    return f"{atom.type}#{hashlib.sha256(literal_bytes(atom)).hexdigest()}"


def _nested_structure(graph: Graph) -> str:
    return "{" + structure(graph) + "}"


def literal_bytes(literal: Literal) -> bytes:
    """The elements of a constant in order, in little-endian byte order."""
    value = literal.value
    return value.astype(value.dtype.newbyteorder("<"), order="C", copy=False).tobytes()


def param_text(value: Any, nested: Callable[[Graph], str]) -> str:
    """A parameter as text that reads back to an equal one; `nested` writes the graphs in it."""
    if type(value) is int:
        return str(value)
    if isinstance(value, Graph):
        return nested(value)
    if isinstance(value, (tuple, list)):
        inner = ", ".join([param_text(each, nested) for each in value])
        return f"({inner},)" if len(value) == 1 else f"({inner})"
    value = value.item() if isinstance(value, np.generic) else value
    if isinstance(value, DType):
        return value.name
    if isinstance(value, Dim):
        return f"<{value}>"
    if isinstance(value, complex):
        return complex_text(value)
    text = repr(value)
    if type(value) in _PLAIN or isinstance(value, TensorType) or _QUOTED.fullmatch(text):
        return text
    raise GraphError(
        "graph",
        "a parameter cannot be written as text",
        expected="numbers, strings, None, dtypes, dimensions, types, graphs, or tuples of these",
        got={"parameter": value},
        fix="pass a tensor as an operand, a function as a graph: wf.ir.trace(f, *types)",
    )


_PLAIN = (bool, int, float, str, type(None))
_QUOTED = re.compile(r"""'(?:[^'\\\n]|\\.)*'|"(?:[^"\\\n]|\\.)*\"""")


def complex_text(value: complex) -> str:
    """Both parts, so that signs of zeros are kept: 1.0-0.0j."""
    imaginary = repr(value.imag)
    return f"{value.real!r}{'' if imaginary[0] == '-' else '+'}{imaginary}j"
