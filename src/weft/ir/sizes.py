"""Symbolic sizes of graphs: replaced by what is known of them.

>>> from weft.core.shapes import Unifier, equal, symbol
>>> from weft.core.types import spec
>>> from weft.ir.graph import Graph, Variable
>>> x = Variable(spec("float32", ("batch", 3)))
>>> with Unifier() as sizes:
...     equal(symbol("batch"), 32)
True
>>> resolve_graph(Graph((x,), (), (x,)), sizes.resolve).input_types
(f32[32, 3],)
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

from weft.core.dimensions import Dim, Dimension, substitute
from weft.core.errors import ShapeError
from weft.core.shapes import is_static, match_size
from weft.core.types import TensorType
from weft.ir.graph import Atom, Graph, GraphNode, Variable

Sizes: TypeAlias = Callable[[Dimension], Dimension]
"""What is known of sizes: a dimension with its symbols replaced."""


def resolve_type(kind: TensorType, sizes: Sizes) -> TensorType:
    """The type with every known symbol replaced."""
    if is_static(kind.shape):
        return kind
    return kind.with_shape(tuple([sizes(dim) for dim in kind.shape]))


def resolve_graph(graph: Graph, sizes: Sizes) -> Graph:
    """The graph with every known symbol replaced, in types and in parameters."""
    renamed: dict[Variable, Variable] = {}

    def declare(variables: Sequence[Variable]) -> tuple[Variable, ...]:
        for old in variables:
            renamed[old] = Variable(resolve_type(old.type, sizes), old.name)
        return tuple([renamed[old] for old in variables])

    def put(atoms: Sequence[Atom]) -> tuple[Atom, ...]:
        return tuple([renamed[a] if isinstance(a, Variable) else a for a in atoms])

    inputs = declare(graph.inputs)
    nodes = []
    for node in graph.nodes:
        operands = put(node.operands)
        params = {key: _resolve_param(value, sizes) for key, value in node.params.items()}
        results = declare(node.results)
        nodes.append(GraphNode(node.primitive, operands, params, results, node.location))
    return Graph(inputs, tuple(nodes), put(graph.outputs), graph.name)


def _resolve_param(value: Any, sizes: Sizes) -> Any:
    if isinstance(value, Dim):
        return sizes(value)
    if isinstance(value, (tuple, list)):
        return tuple([_resolve_param(each, sizes) for each in value])
    if isinstance(value, TensorType):
        return resolve_type(value, sizes)
    return resolve_graph(value, sizes) if isinstance(value, Graph) else value


def specialize(graph: Graph, types: Sequence[TensorType]) -> Graph:
    """The graph for inputs of these types, which give its symbols their sizes.

    >>> from weft.core.shapes import symbol
    >>> from weft.core.types import spec
    >>> x, y = Variable(spec("float32", ("n",))), Variable(spec("float32", (symbol("n") + 1,)))
    >>> specialize(Graph((x, y), (), (y,)), [spec("float32", (3,)), spec("float32", (4,))])
    graph(a: f32[3], b: f32[4]) {
      return b
    }
    """
    if all(is_static(kind.shape) for kind in graph.input_types):
        return graph
    known: dict[str, Dimension] = {}
    pairs = []
    for number, (wanted, kind) in enumerate(zip(graph.input_types, types, strict=True)):
        if wanted.dtype is not kind.dtype or wanted.ndim != kind.ndim:
            raise _misfit_error(number, wanted, kind, known)
        pairs += [(*sizes, number) for sizes in zip(wanted.shape, kind.shape, strict=True)]
    for pattern, dim, number in sorted(pairs, key=lambda pair: len(str(pair[0]))):  # names first
        if not match_size(pattern, dim, known):
            raise _misfit_error(number, graph.input_types[number], types[number], known)
    return resolve_graph(graph, lambda dim: substitute(dim, known))


def _misfit_error(
    number: int, wanted: TensorType, kind: TensorType, known: dict[str, Dimension]
) -> ShapeError:
    return ShapeError(
        "graph",
        f"argument {number} does not fit the graph's input",
        expected=f"{wanted}",
        got={"argument": kind},
        note=", ".join(f"{name} = {dim}" for name, dim in known.items()),
        fix=f"pass a tensor of type {resolve_type(wanted, lambda dim: substitute(dim, known))}",
    )
