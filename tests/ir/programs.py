"""Small graphs, made at random and by hand, that the tests of the IR share."""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import strategies as st

import weft as wf
from weft.core.dtypes import DTYPES, DType
from weft.core.shapes import symbol
from weft.core.types import TensorType
from weft.ir.graph import Atom, Graph, GraphNode, Literal, Variable
from weft.ir.primitive import PRIMITIVES, Primitive, Sample

VECTOR = wf.spec("float32", (3,))


def variable(*shape: Any, dtype: str = "float32") -> Variable:
    return Variable(wf.spec(dtype, shape))


def node(name: str, *operands: Atom, **params: Any) -> GraphNode:
    """A correct node: its results have the types that the rule gives."""
    ruled = PRIMITIVES[name].type_rule(*[atom.type for atom in operands], **params)
    kinds = ruled if isinstance(ruled, tuple) else (ruled,)
    return GraphNode(PRIMITIVES[name], operands, params, tuple(map(Variable, kinds)))


def holding(**params: Any) -> Graph:
    """A graph of one node with parameters of any kind, for the text form alone."""
    result = variable(3)
    only = GraphNode(PRIMITIVES["sin"], (), params, (result,))
    return Graph((), (only,), (result,))


def sample_graph(primitive: Primitive, sample: Sample) -> Graph:
    """The graph of a primitive's sample call."""
    inputs = [Variable(Literal(np.asarray(each)).type) for each in sample.operands]
    only = node(primitive.name, *inputs, **sample.params)
    return Graph(tuple(inputs), (only,), only.results)


# --- strategies --------------------------------------------------------------------------------


@st.composite
def arrays(draw: st.DrawFn) -> np.ndarray[Any, Any]:
    """Arrays of all dtypes, of up to three axes, of any bits."""
    dtype: DType = draw(st.sampled_from(DTYPES))
    shape = tuple(draw(st.lists(st.integers(0, 4), max_size=3)))
    count = int(np.prod(shape)) * dtype.itemsize
    if dtype.kind == "bool":
        return np.array(
            draw(st.lists(st.booleans(), min_size=count, max_size=count)), bool
        ).reshape(shape)
    if draw(st.booleans()):
        data = draw(st.binary(min_size=count, max_size=count))
        return np.frombuffer(data, dtype.numpy).reshape(shape)
    values = draw(st.lists(st.integers(0, 100), min_size=count, max_size=count))
    with np.errstate(all="ignore"):
        return (np.array(values[: int(np.prod(shape))]) / 8).astype(dtype.numpy).reshape(shape)


n, time = symbol("n"), symbol("time")
dimensions = st.sampled_from([0, 1, 7, n, n + 1, 2 * n * time, (n - 1) // 2 + 3, n // time])
types = st.builds(TensorType, st.sampled_from(DTYPES), st.lists(dimensions, max_size=3).map(tuple))
numbers = st.one_of(st.integers(), st.floats(allow_nan=False), st.complex_numbers(allow_nan=False))
leaves = st.one_of(
    st.none(), st.booleans(), numbers, st.text(), st.sampled_from(DTYPES), types, dimensions
)
params = st.recursive(leaves, lambda inner: st.lists(inner, max_size=3).map(tuple), max_leaves=6)

unary = st.sampled_from(["sin", "exp", "negative", "tanh"])
binary = st.sampled_from(["add", "multiply", "maximum"])


@st.composite
def graphs(draw: st.DrawFn) -> Graph:
    """Correct programs over vectors: constants, inputs, nodes in a random order of use."""
    inputs = [Variable(VECTOR) for _ in range(draw(st.integers(0, 3)))]
    known: list[Atom] = [*inputs, Literal(np.array([1.0, -2.5, 0.1], np.float32))]
    nodes = []
    for _ in range(draw(st.integers(0, 6))):
        pick = st.sampled_from(known)
        if draw(st.booleans()):
            made = node(draw(unary), draw(pick))
        else:
            made = node(draw(binary), draw(pick), draw(pick))
        nodes.append(made)
        known += made.results
    outputs = draw(st.lists(st.sampled_from(known), max_size=3))
    return Graph(tuple(inputs), tuple(nodes), tuple(outputs))
