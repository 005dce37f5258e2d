"""The verifier accepts what tracing makes, and names the node of what it refuses."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from tests.ir.programs import graphs, node, sample_graph, variable

import weft as wf
from weft.core.errors import GraphError, ShapeError
from weft.core.locations import Location
from weft.core.shapes import symbol
from weft.ir.graph import Graph, GraphNode, Literal
from weft.ir.primitive import PRIMITIVES, Primitive
from weft.ir.verify import verify

PLACE = Location("train.py", 41, "forward")


def one(name: str, operands: Any, result: Any, **params: Any) -> Graph:
    """A graph of one node, right or wrong, made at a known place."""
    inputs = tuple([each for each in operands if not isinstance(each, Literal)])
    only = GraphNode(PRIMITIVES[name], tuple(operands), params, (result,), PLACE)
    return Graph(inputs, (only,), (result,))


def refused(graph: Graph) -> GraphError:
    with pytest.raises(GraphError) as caught:
        verify(graph)
    assert caught.value.op == "verify"
    assert caught.value.fix
    return caught.value


@given(graphs())
def test_correct_graphs_are_accepted(graph: Graph) -> None:
    verify(graph)


@pytest.mark.parametrize("primitive", PRIMITIVES.values(), ids=lambda p: p.name)
def test_samples_of_every_primitive_are_accepted(primitive: Primitive) -> None:
    for sample in primitive.samples():
        verify(sample_graph(primitive, sample))


def test_a_result_of_another_type_is_refused_with_its_node_and_line() -> None:
    for wrong in (variable(4), variable(3, dtype="float64"), variable(3, 1)):
        error = refused(one("sin", [variable(3)], wrong))
        assert error.problem == "a result has another type than it should"
        assert error.expected == "f32[3]"
        assert error.got == f"node: b: {wrong.type} = sin(a)   result: {wrong.type}"
        assert error.fix == "declare it as f32[3]"
        assert error.at == PLACE


def test_an_operand_that_is_not_known_is_refused() -> None:
    x = variable(3)
    error = refused(replace(one("sin", [x], variable(3)), inputs=()))
    assert error.problem == "operand 0 is not known"
    assert error.got == "node: a: f32[3] = sin(?)   operand 0: f32[3]"
    assert error.at == PLACE


def test_a_variable_must_be_assigned_before_it_is_used() -> None:
    x = variable(3)
    first = node("sin", x)
    second = node("exp", *first.results)
    verify(Graph((x,), (first, second), second.results))
    assert "operand 0" in refused(Graph((x,), (second, first), second.results)).problem


def test_an_output_that_is_not_known_is_refused() -> None:
    assert refused(Graph((), (), (variable(3),))).problem == "an output is not known"


def test_a_variable_that_is_assigned_twice_is_refused() -> None:
    x = variable(3)
    sine = node("sin", x)
    for graph in (
        Graph((x, x), (), ()),
        Graph((x,), (sine, sine), ()),
        Graph((x,), (replace(sine, results=(x,)),), ()),
    ):
        assert refused(graph).problem == "a variable is assigned twice"


def test_a_wrong_number_of_operands_is_refused() -> None:
    x = variable(3)
    error = refused(one("add", [x], variable(3)))
    assert error.problem == "add has another number of operands"
    assert error.expected == "2 operands"
    error = refused(one("sin", [x, variable(3)], variable(3)))
    assert error.expected == "1 operands"


def test_a_wrong_number_of_results_is_refused() -> None:
    x = variable(3)
    only = GraphNode(PRIMITIVES["sin"], (x,), {}, (variable(3), variable(3)))
    error = refused(Graph((x,), (only,), ()))
    assert error.problem == "sin has another number of results"
    assert error.expected == "1 results: f32[3]"


def test_what_the_rule_refuses_is_refused_in_its_words() -> None:
    error = refused(one("add", [variable(3), variable(4)], variable(3)))
    assert error.problem == "add: shapes do not broadcast"
    assert error.expected == "dimensions equal or 1, from the right"
    assert "c: f32[3] = add(a, b)" in error.got
    assert "axis -1: 3 != 4" in error.note
    assert isinstance(error.__cause__, ShapeError)
    assert error.at == PLACE


def test_parameters_that_the_rule_does_not_take_are_refused() -> None:
    error = refused(one("sin", [variable(3)], variable(3), flavour="sweet"))
    assert error.problem == "sin does not take these operands and parameters"
    assert "flavour" in error.note
    assert "samples()" in error.expected


def test_a_parameter_without_a_text_is_refused() -> None:
    error = refused(one("sin", [variable(3)], variable(3), rule=len))
    assert error.problem == "parameter rule cannot be written"
    assert "rule=?builtin" in error.got


def test_a_constant_that_no_tensor_holds_is_refused() -> None:
    for value in (np.array(["text"]), np.array([None]), 2.5):
        bad: Any = Literal(value)  # type: ignore[arg-type]
        error = refused(Graph((), (), (bad,)))
        assert error.problem == "an output is no constant"


def test_symbolic_sizes_count_as_equal_where_they_can_be() -> None:
    symbolic = variable("n")
    verify(one("add", [symbolic, variable(3)], variable(3)))
    verify(one("add", [symbolic, variable(3)], variable("n")))
    verify(one("add", [symbolic, variable("m")], variable("m")))
    error = refused(one("add", [symbolic, variable("n")], variable(symbol("n") + 1)))
    assert error.expected == "f32[n]"


def test_a_contradiction_between_nodes_is_refused() -> None:
    x, three, four = variable("n"), variable(3), variable(4)
    first, second = node_at(3, x, three), node_at(4, x, four)
    error = refused(Graph((x, three, four), (first, second), ()))
    assert "n = 3 was fixed at train.py:3" in error.note
    assert error.at == Location("train.py", 4, "f")


def node_at(line: int, x: Any, y: Any) -> GraphNode:
    place = Location("train.py", line, "f")
    return GraphNode(PRIMITIVES["add"], (x, y), {}, (variable(line),), place)


def test_graphs_inside_are_verified() -> None:
    def step(carry: Any, x: Any) -> Any:
        return wf.add(carry, x), carry

    kinds = wf.spec("float32", (3,)), wf.spec("float32", (5, 3))
    good = wf.ir.trace(lambda c, xs: wf.scan(step, c, xs), *kinds)
    verify(good)
    (position,) = [
        i for i, each in enumerate(good.nodes) if list(Graph((), (each,), ()).subgraphs())
    ]
    scan = good.nodes[position]
    key = next(k for k, v in scan.params.items() if isinstance(v, Graph))
    inner = scan.params[key]
    broken = replace(inner, inputs=inner.inputs[1:])
    changed = replace(scan, params={**scan.params, key: broken})
    nodes = (*good.nodes[:position], changed, *good.nodes[position + 1 :])
    error = refused(replace(good, nodes=nodes))
    assert error.problem.endswith(f", in {key} of {scan.primitive.name}")
