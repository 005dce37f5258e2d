"""Graphs: what is recorded, how it is called, and which operations happen in a run."""

from __future__ import annotations

import numpy as np
import pytest

import weft as wf


def test_operations_inside_a_graph_are_recorded_and_not_computed() -> None:
    with wf.Graph() as graph:
        x = wf.placeholder("float32", (None, 3), name="x")
        y = wf.sum(x * wf.ones((3,)) + wf.random.normal((3,)), axis=1)
    kinds = [operation.kind for operation in graph.operations]
    assert kinds[0] == "placeholder"
    assert {"full", "multiply", "random_bits", "add", "reduce_sum"} <= set(kinds)
    assert str(y.type) == "f32[x_0]"
    assert wf.ones((3,)).tolist() == [1.0, 1.0, 1.0]  # outside, at once


def test_names_are_unique_and_stand_in_scopes() -> None:
    with wf.Graph() as graph:
        a = wf.Variable(1.0, name="w")
        with wf.name_scope("layer"):
            b = wf.Variable(2.0, name="w")
            with wf.name_scope("inner"):
                c = wf.Variable(3.0, name="w")
        with wf.name_scope("layer"):
            d = wf.Variable(4.0, name="w")
        e = wf.Variable(5.0, name="w")
    assert [v.name for v in (a, b, c, d, e)] == [
        "w",
        "layer/w",
        "layer/inner/w",
        "layer_1/w",
        "w_1",
    ]
    assert graph.get_operation_by_name("layer/w").kind == "variable"
    assert graph.get_tensor_by_name("layer/w:0") is b


def test_a_tensor_got_by_name_is_differentiable() -> None:
    with wf.Graph() as graph:
        x = wf.placeholder("float64", (), name="x")
        wf.graph.identity(wf.exp(2 * x), name="y")
    with graph:
        (slope,) = wf.gradients(graph.get_tensor_by_name("y"), [x])
    assert slope is not None
    assert wf.Session(graph).run(slope, {x: 0.5}).item() == pytest.approx(2 * np.e)


def test_the_default_graph_serves_scripts_until_it_is_reset() -> None:
    try:
        x = wf.placeholder("float32", (None,), name="x")
        w = wf.Variable(wf.full((1,), 3.0), name="w")
        y = x * w
        session = wf.Session()
        assert session.run(y, {x: [1.0, 2.0]}).tolist() == [3.0, 6.0]
        assert wf.global_variables()[0] is w
    finally:
        wf.reset_default_graph()
    assert wf.zeros(1).tolist() == [0.0]


def test_a_graph_can_be_entered_again_and_continued() -> None:
    with wf.Graph() as graph:
        x = wf.placeholder("float32", (), name="x")
    with graph.as_default():
        y = x + 1.0
    z = y * 2.0  # its operand says where it belongs
    assert wf.Session(graph).run(z, {x: 4.0}).item() == 10.0


def test_graphs_inside_each_other_stay_apart() -> None:
    with wf.Graph() as outer:
        a = wf.Variable(1.0, name="a")
        with wf.Graph() as inner:
            b = wf.Variable(2.0, name="b")
        c = a + 1.0
    assert [op.name for op in inner.operations] == ["b"]
    assert wf.Session(outer).run(c).item() == 2.0
    assert wf.Session(inner).run(b).item() == 2.0


def test_only_what_is_fetched_is_computed() -> None:
    with wf.Graph() as graph:
        x = wf.placeholder("float32", (), name="x")
        wf.placeholder("float32", (), name="unused")
        count = wf.Variable(0, name="count")
        count.assign_add(1)
        y = x * 2.0
    with wf.Session(graph) as session:
        assert session.run(y, {x: 1.0}).item() == 2.0
        assert session.run(count).item() == 0
    assert [node.primitive.name for node in graph.program(y).nodes] == ["multiply"]


def test_a_control_dependency_happens_before_what_is_made_inside() -> None:
    with wf.Graph() as graph:
        count = wf.Variable(0, name="count")
        before = count + 0
        add = count.assign_add(5)
        with graph.control_dependencies([add]):
            after = count + 0
            again = count.assign_add(10)
        with graph.control_dependencies([again]):
            last = count.read_value()
    with wf.Session(graph) as session:
        values = session.run([before, after, last])
        assert [value.item() for value in values] == [0, 5, 15]
        assert session.run(count).item() == 15
        assert session.run(after).item() == 20  # `again` was not asked for
        assert session.run(count).item() == 20


def test_two_assignments_without_an_order_are_refused() -> None:
    with wf.Graph() as graph:
        count = wf.Variable(0, name="count")
        both = wf.group(count.assign_add(1), count.assign_add(2))
        chained = count.assign(count.assign_add(1) * 10)
    with wf.Session(graph) as session:
        with pytest.raises(wf.GraphError) as caught:
            session.run(both)
        assert caught.value.problem == "count is assigned twice in one run, in no order"
        assert session.run(count).item() == 0
        assert session.run(chained).item() == 10
        assert session.run(count).item() == 10


def test_a_group_does_all_and_gives_nothing() -> None:
    with wf.Graph() as graph:
        a, b = wf.Variable([1.0, 2.0], name="a"), wf.Variable(7, name="b")
        both = wf.group(a.assign(0.5), b.assign_sub(3), name="both")
    with wf.Session(graph) as session:
        assert session.run("both") is None
        assert session.run({"a": a, "b": ["b"]})["b"][0].item() == 4
        assert session.run(a).tolist() == [0.5, 0.5]
    assert both.kind == "group"


def test_variables_begin_with_numbers_random_draws_or_each_other() -> None:
    with wf.Graph() as graph:
        a = wf.Variable(wf.random.normal((4,)), name="a")
        b = wf.Variable(a * 2.0, name="b")
        c = wf.Variable(np.arange(40.0).reshape(4, 10), name="c", trainable=False)
        reset = wf.global_variables_initializer()
    wf.random.seed(1)
    with wf.Session(graph) as session:
        first = session.run([a, b])
        np.testing.assert_allclose(first[1].numpy(), 2 * first[0].numpy())
        assert session.run(c).shape == (4, 10)
        session.run(a.assign(wf.zeros((4,))))
        session.run(reset)
        assert np.abs(session.run(a).numpy()).min() > 0
    wf.random.seed(1)
    with wf.Session(graph) as session:
        assert session.run(a).tolist() == first[0].tolist()
    assert [v is w for v, w in zip(graph.trainable_variables(), (a, b), strict=True)] == [
        True,
        True,
    ]


def test_random_numbers_are_new_in_each_run_and_the_same_after_a_seed() -> None:
    with wf.Graph() as graph:
        x = wf.placeholder("float32", (None,), name="x")
        noise = wf.random.normal((3,))
        kept = wf.random.dropout(x, 0.5)
        both = wf.sum(noise) - wf.sum(noise)

    def runs() -> list[list[float]]:
        wf.random.seed(5)
        with wf.Session(graph) as session:
            drawn = [session.run(noise).tolist() for _ in range(3)]
            masks = [session.run(kept, {x: np.ones(64)}).tolist() for _ in range(2)]
            assert session.run(both).item() == 0.0
        return drawn + masks

    first = runs()
    assert first[0] != first[1] != first[2]
    assert first[3] != first[4]
    assert runs() == first


def test_a_print_happens_when_what_it_shows_is_computed(capfd: pytest.CaptureFixture[str]) -> None:
    with wf.Graph() as graph:
        x = wf.placeholder("float32", (), name="x")
        y = x * 2.0
        wf.debug.print("y is {}", y)
        z = y + 1.0
        other = x - 1.0
    with wf.Session(graph) as session:
        session.run(other, {x: 1.0})
        assert capfd.readouterr().out == ""
        session.run(z, {x: 4.0})
        assert "y is 8" in capfd.readouterr().out


def test_jit_and_vmap_work_inside_a_graph() -> None:
    double = wf.jit(lambda a: a * 2.0)
    with wf.Graph() as graph:
        x = wf.placeholder("float32", (None, 2), name="x")
        y = wf.vmap(lambda row: double(row).sum())(x)
        slope = wf.gradients(y, [x])[0]
    values = wf.Session(graph).run([y, slope], {x: [[1.0, 2.0], [3.0, 4.0]]})
    assert values[0].tolist() == [6.0, 14.0]
    assert values[1].tolist() == [[2.0, 2.0], [2.0, 2.0]]


def test_a_graph_of_a_function_is_like_one_built_by_hand() -> None:
    def f(x: wf.Tensor, w: wf.Tensor) -> wf.Tensor:
        return wf.tanh(x @ w)

    kinds = wf.spec("float32", ("n", 3)), wf.spec("float32", (3, 2))
    traced = wf.ir.trace(f, *kinds)
    with wf.Graph() as built:
        x = wf.placeholder("float32", ("n", 3), name="x")
        w = wf.placeholder("float32", (3, 2), name="w")
        y = f(x, w)
    assert built.program(y, [x, w]) == traced
    graph = wf.Graph.of(traced, names=["x", "w"], values={"w": np.ones((3, 2))})
    with wf.Session(graph) as session:
        (value,) = session.run(graph.outputs, {"x": np.full((5, 3), 0.1)})
    np.testing.assert_allclose(value.numpy(), np.tanh(np.full((5, 2), 0.3)), rtol=1e-6)
    compiled = wf.jit(f).graph(wf.ones((4, 3)), wf.ones((3, 2)))
    with wf.Session(compiled) as session:
        result = session.run(
            session.graph.outputs, {"input_0": np.ones((4, 3)), "input_1": np.ones((3, 2))}
        )
    assert result[0].shape == (4, 2)
    with graph:  # what came from a function can be differentiated and trained
        loss = wf.sum(graph.outputs[0] ** 2)
        train = wf.optim.SGD(lr=0.1).minimize(loss)
    with wf.Session(graph) as session:
        losses = [session.run([loss, train], {"x": np.ones((2, 3))})[0].item() for _ in range(3)]
    assert losses[2] < losses[0]
