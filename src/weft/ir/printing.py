"""The text form of graphs, printed; text.py reads it back.

    graph(a: f32[32, 784], b: f32[784, 10]) {
      c: f32[32, 10] = dot(a, b, contract=((1,), (0,)), batch=((), ()))  # train.py:41
      return c
    }

Variables are named in order. Numbers stand for constants of float32, int64 and bool; a constant of
another type is written behind it, and one that is long or not exact in decimal in hexadecimal.

>>> import numpy as np
>>> from weft.ir.graph import Graph, Literal
>>> print(Graph((), (), (Literal(np.array(2.5, "f4")), Literal(np.array([1, 2], "i1")))))
graph() {
  return 2.5, i8[2] [1, 2]
}
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count, product
from string import ascii_lowercase
from typing import Any

import numpy as np

from weft.core.dtypes import DType, bool_, float32, int64
from weft.core.errors import GraphError
from weft.ir.graph import (
    PRINTER,
    Atom,
    Graph,
    GraphNode,
    Literal,
    Variable,
    complex_text,
    literal_bytes,
    param_text,
)

Names = dict[Variable, str]

READABLE = 16
"""The most elements that a constant is written out with."""

RESERVED = {"graph", "return", "inf", "nan", "infj", "nanj", "bool"}


def print_graph(graph: Graph, indent: str = "", locations: bool = True) -> str:
    """The text of a graph; with the user's lines as comments, or without."""
    names: Names = {}
    fresh = _fresh_names()
    inputs = ", ".join([_declare(variable, names, fresh) for variable in graph.inputs])
    lines = [f"graph({inputs}) {{"]
    for node in graph.nodes:
        comment = _comment(node) if locations else ""
        lines.append(f"{indent}  {_node_text(node, names, fresh, indent + '  ')}{comment}")
    outputs = ", ".join([_atom(atom, names) for atom in graph.outputs])
    lines.append(f"{indent}  return {outputs}" if outputs else f"{indent}  return")
    return "\n".join([*lines, f"{indent}}}"])


PRINTER[0] = print_graph


def name_variables(graph: Graph) -> dict[Variable, str]:
    """The names that the variables of a graph have in its text."""
    fresh = _fresh_names()
    variables = [*graph.inputs, *[result for node in graph.nodes for result in node.results]]
    return {variable: next(fresh) for variable in variables}


def print_node(graph: Graph, node: GraphNode) -> str:
    """The text of one node of a graph, as it stands in the graph's; unknown operands are `?`."""
    names: Names = {}
    fresh = _fresh_names()
    for variable in graph.inputs:
        _declare(variable, names, fresh)
    for earlier in graph.nodes:
        text = _node_text(earlier, names, fresh, "")
        if earlier is node:
            return text
    return _node_text(node, names, fresh, "")


def _fresh_names() -> Iterator[str]:
    for length in count(1):
        for letters in product(ascii_lowercase, repeat=length):
            name = "".join(letters)
            if name not in RESERVED:
                yield name


def _declare(variable: Variable, names: Names, fresh: Iterator[str]) -> str:
    names[variable] = next(fresh)
    return f"{names[variable]}: {variable.type}"


def _node_text(node: GraphNode, names: Names, fresh: Iterator[str], indent: str) -> str:
    operands = [_atom(atom, names) for atom in node.operands]
    params = [f"{key}={_param(value, indent)}" for key, value in node.params.items()]
    results = ", ".join([_declare(variable, names, fresh) for variable in node.results])
    return f"{results} = {node.primitive.name}({', '.join(operands + params)})".lstrip()


def _param(value: Any, indent: str) -> str:
    try:
        return param_text(value, lambda inner: print_graph(inner, indent, locations=False))
    except GraphError:
        return f"?{type(value).__name__}"


def _comment(node: GraphNode) -> str:
    if node.location is None:
        return ""
    place = str(node.location).rpartition(", in ")[0].replace("\n", " ")
    return f"  # {place}"


def _atom(atom: Atom, names: Names) -> str:
    return names.get(atom, "?") if isinstance(atom, Variable) else literal_text(atom)


# --- constants ---------------------------------------------------------------------------------


def literal_text(literal: Literal) -> str:
    """A constant: its numbers where they are few and exact in decimal, else its bytes."""
    kind = literal.type
    elements_text = (
        _nested_text(literal.value, kind.dtype) if literal.value.size <= READABLE else None
    )
    if elements_text is None:
        return f"{kind} 0x{literal_bytes(literal).hex()}"
    if kind.shape:
        return f"{kind} {elements_text}"
    return (
        elements_text
        if kind.dtype in (float32, int64, bool_)
        else f"{kind.dtype.short} {elements_text}"
    )


def _nested_text(value: np.ndarray[Any, Any], dtype: DType) -> str | None:
    if value.ndim == 0:
        return number_text(value, dtype)
    if not value.size:
        return "[]"
    rows = [_nested_text(value[i, ...], dtype) for i in range(len(value))]
    texts = [row for row in rows if row is not None]
    return f"[{', '.join(texts)}]" if len(texts) == len(rows) else None


def number_text(value: np.ndarray[Any, Any], dtype: DType) -> str | None:
    """The shortest decimal that reads back to the same bits; None where none does."""
    number = value.item()
    if not dtype.is_inexact:
        return repr(number)
    exact = complex_text(complex(number)) if dtype.is_complex else repr(float(number))
    short = str(value[()])
    for text in [exact] if dtype.is_complex or short.isdecimal() else [short, exact]:
        read = read_number(text, dtype)
        if read is not None and literal_bytes(Literal(read)) == literal_bytes(Literal(value)):
            return text
    return None


def read_number(text: str, dtype: DType) -> np.ndarray[Any, Any] | None:
    """The element that a number's text stands for; None where the dtype has no such element."""
    if dtype is bool_:
        return np.array(text == "True") if text in ("True", "False") else None
    reader: Any = int if dtype.is_integer else complex if dtype.is_complex else float
    try:
        with np.errstate(all="ignore"):
            return np.array(reader(text), dtype.numpy)
    except (ValueError, OverflowError):
        return None
