"""Graphs: typed, immutable programs in single-assignment form.

A graph is inputs, nodes in an order that can be run, and outputs. A node's operands are results of
earlier nodes, inputs, or constants; its parameters may hold graphs. Each node remembers the
user's line.

>>> import weft as wf
>>> print(wf.trace(lambda x: x * 2.0, wf.spec("float32", (3,))))
graph(a: f32[3]) {
  b: f32[3] = mul(a, 2.0)
  return b
}
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from weft.core.dtypes import from_numpy
from weft.core.locations import Location
from weft.core.types import TensorType
from weft.ir.primitive import Primitive


@dataclass(frozen=True, slots=True, eq=False)
class Variable:
    """A value in a graph: an input or a result. Compared by identity; its name is for readers."""

    type: TensorType
    name: str = ""


@dataclass(frozen=True, slots=True, eq=False)
class Literal:
    """A constant in a graph."""

    value: np.ndarray[Any, Any]

    @property
    def type(self) -> TensorType:
        """The constant's dtype and shape."""
        return TensorType(from_numpy(self.value.dtype), self.value.shape)


Atom = Variable | Literal


@dataclass(frozen=True, slots=True, eq=False)
class GraphNode:
    """One operation of a graph."""

    primitive: Primitive
    operands: tuple[Atom, ...]
    params: dict[str, Any]
    results: tuple[Variable, ...]
    location: Location | None = None


@dataclass(frozen=True, slots=True)
class Graph:
    """A program: what goes in, what is done, what comes out.

    Two graphs are equal when they are the same program up to names and locations.
    """

    inputs: tuple[Variable, ...]
    nodes: tuple[GraphNode, ...]
    outputs: tuple[Atom, ...]
    name: str = field(default="", compare=False)

    def __str__(self) -> str:
        return PRINTER[0](self)

    __repr__ = __str__

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Graph) and structure(self) == structure(other)

    def __hash__(self) -> int:
        return hash(self.digest())

    def digest(self) -> str:
        """The structural hash: equal for equal programs, in every process."""
        return hashlib.sha256(structure(self).encode()).hexdigest()

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
                yield from graphs_in(value)


PRINTER: list[Any] = [lambda graph: f"graph of {len(graph.nodes)} nodes"]
"""The text form, filled in by text.py."""


def graphs_in(value: Any) -> Iterator[Graph]:
    """The graphs in a parameter."""
    if isinstance(value, Graph):
        yield value
    elif isinstance(value, (tuple, list)):
        for each in value:
            yield from graphs_in(each)


def structure(graph: Graph) -> str:
    """The program as canonical text: variables numbered in order, no names, no locations."""
    numbers: dict[Variable, int] = {}
    lines = [",".join(_declare(variable, numbers) for variable in graph.inputs)]
    for node in graph.nodes:
        operands = ",".join(_refer(atom, numbers) for atom in node.operands)
        params = ",".join(f"{key}={_param(node.params[key])}" for key in sorted(node.params))
        results = ",".join(_declare(variable, numbers) for variable in node.results)
        lines.append(f"{results}={node.primitive.name}({operands};{params})")
    lines.append(",".join(_refer(atom, numbers) for atom in graph.outputs))
    return "\n".join(lines)


def _declare(variable: Variable, numbers: dict[Variable, int]) -> str:
    numbers[variable] = len(numbers)
    return f"{numbers[variable]}:{variable.type}"


def _refer(atom: Atom, numbers: dict[Variable, int]) -> str:
    if isinstance(atom, Variable):
        return str(numbers[atom])
    data = hashlib.sha256(np.ascontiguousarray(atom.value).tobytes()).hexdigest()
    return f"{atom.type}#{data}"


def _param(value: Any) -> str:
    if isinstance(value, Graph):
        return "{" + structure(value) + "}"
    if isinstance(value, (tuple, list)):
        return "(" + ",".join(_param(each) for each in value) + ")"
    return repr(value)
