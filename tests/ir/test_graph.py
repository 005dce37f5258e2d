"""Graphs are equal when they are the same program, and so are their hashes, in every process."""

from __future__ import annotations

import pickle
import subprocess
import sys
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from tests.ir.programs import graphs, holding, n, node, variable

import weft as wf
from weft.core.errors import GraphError
from weft.core.locations import Location
from weft.ir.graph import Graph, GraphNode, Literal, Variable
from weft.ir.primitive import PRIMITIVES


def program(primitive: str = "add", dtype: str = "float32", size: int = 3) -> Graph:
    x, y = variable(size, dtype=dtype), variable(size, dtype=dtype)
    only = node(primitive, x, y)
    return Graph((x, y), (only,), only.results)


def renamed(graph: Graph) -> Graph:
    """The same program with other variables, names and locations."""
    fresh: dict[Any, Variable] = {}

    def new(old: Variable) -> Variable:
        return fresh.setdefault(old, Variable(old.type, f"v{len(fresh)}"))

    def put(atoms: Any) -> Any:
        return tuple(
            [new(a) if isinstance(a, Variable) else Literal(a.value.copy()) for a in atoms]
        )

    nodes = [
        GraphNode(each.primitive, put(each.operands), dict(each.params), put(each.results), HERE)
        for each in graph.nodes
    ]
    return Graph(put(graph.inputs), tuple(nodes), put(graph.outputs), "another name")


HERE = Location("train.py", 41, "forward")


@given(graphs())
def test_a_renamed_graph_is_equal_and_hashes_alike(graph: Graph) -> None:
    other = renamed(graph)
    assert other == graph
    assert (other.digest(), hash(other)) == (graph.digest(), hash(graph))


@given(graphs(), graphs())
def test_graphs_hash_alike_exactly_when_they_are_equal(a: Graph, b: Graph) -> None:
    assert (a.digest() == b.digest()) == (a == b)


def test_every_change_of_meaning_changes_the_hash() -> None:
    base = program()
    x, y = base.inputs
    (only,) = base.nodes
    result = only.results[0]
    others = [
        program("subtract"),
        program(dtype="float64"),
        program(size=4),
        Graph((y, x), base.nodes, base.outputs),
        Graph((x,), base.nodes, base.outputs),
        replace(base, outputs=()),
        replace(base, outputs=(result, result)),
        replace(base, outputs=(x,)),
        replace(base, nodes=(replace(only, operands=(x, x)),)),
        replace(base, nodes=(replace(only, operands=(x, Literal(np.zeros(3, np.float32)))),)),
        replace(base, nodes=(replace(only, operands=(x, Literal(np.ones(3, np.float32)))),)),
        replace(base, nodes=(replace(only, operands=(x, Literal(np.zeros(3, np.int32)))),)),
        replace(base, nodes=(replace(only, params={"axis": 0}),)),
    ]
    digests = [graph.digest() for graph in [base, *others]]
    assert len(set(digests)) == len(digests)


VALUES = [
    1, 2, True, 1.0, -0.0, 0.0, "1", "a", "n", None, (), (1,), (1, 2), ((1,), 2), 1j,
    complex(1, -0.0), n, n + 1, (n,), wf.float32, wf.float64,
    wf.spec("float32", (3,)), wf.spec("float32", (n,)),
    float("inf"), program(), program("subtract"), (program(),), "#", "'", '"', "\n", "a, b=1",
]  # fmt: skip


def test_parameters_of_different_values_or_kinds_hash_differently() -> None:
    digests = [holding(key=value).digest() for value in VALUES]
    assert len(set(digests)) == len(digests)
    assert holding(key=1) != holding(other=1)


def test_the_order_of_parameters_and_the_kind_of_sequence_do_not_matter() -> None:
    assert holding(a=1, b=2) == holding(b=2, a=1)
    assert holding(a=(1, 2)) == holding(a=[1, 2])
    assert holding(a=3, b=0.5) == holding(a=np.int64(3), b=np.float64(0.5))


def test_the_bits_of_constants_count() -> None:
    def constant(value: Any) -> Graph:
        return Graph((), (), (Literal(np.asarray(value)),))

    nan, other_nan = np.array([0x7FC00000, 0x7FC00001], np.uint32).view(np.float32)
    assert constant(np.float32(0.0)) != constant(np.float32(-0.0))
    assert constant(nan) != constant(other_nan)
    assert constant(nan) == constant(nan)
    swapped = np.array([1.5, 2.5], ">f4")
    assert constant(swapped) == constant(swapped.astype("<f4"))
    strided = np.arange(12.0).reshape(3, 4).T
    assert constant(strided) == constant(np.ascontiguousarray(strided))


@pytest.mark.slow
def test_the_hash_is_the_same_in_another_process() -> None:
    script = (
        "import weft as wf, numpy as np\n"
        "f = lambda x: wf.add(wf.sin(x), 2.0)\n"
        "print(wf.ir.trace(f, wf.spec('float32', ('n', 3))).digest())"
    )
    runs = {
        subprocess.run(
            [sys.executable, "-c", script],
            capture_output=True,
            text=True,
            check=True,
            env={"PYTHONHASHSEED": seed, "PYTHONPATH": ":".join(filter(None, sys.path))},
        ).stdout
        for seed in ("1", "2")
    }
    here = wf.ir.trace(lambda x: wf.add(wf.sin(x), 2.0), wf.spec("float32", ("n", 3))).digest()
    assert runs == {here + "\n"}


def test_a_parameter_without_a_text_is_refused() -> None:
    with pytest.raises(GraphError) as caught:
        holding(key=object()).digest()
    assert caught.value.op == "graph"
    assert caught.value.problem == "a parameter cannot be written as text"
    assert "graphs" in caught.value.expected
    assert "wf.ir.trace" in caught.value.fix
    assert "?object" in str(holding(key=object()))


def test_a_graph_knows_its_types_and_the_graphs_inside() -> None:
    inner = program()
    outer = holding(branches=(inner, (inner,)), body=inner)
    assert list(outer.subgraphs()) == [inner] * 3
    assert inner.input_types == (wf.spec("float32", (3,)),) * 2
    assert inner.output_types == (wf.spec("float32", (3,)),)


def test_primitives_travel_by_name() -> None:
    sine = PRIMITIVES["sin"]
    assert pickle.loads(pickle.dumps(sine)) is sine
    again = pickle.loads(pickle.dumps(program()))
    assert again == program()
