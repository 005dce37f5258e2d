"""Sessions: fetches, feeds, state of their own, programs compiled once, and what is refused."""

from __future__ import annotations

from collections import namedtuple
from typing import Any

import numpy as np
import pytest

import weft as wf

Pair = namedtuple("Pair", ["a", "b"])


@pytest.fixture
def linear() -> Any:
    with wf.Graph() as graph:
        x = wf.placeholder("float32", (None, 2), name="x")
        y = wf.placeholder("int32", (), name="y")
        w = wf.Variable([[1.0], [2.0]], name="w")
        out = wf.graph.identity(x @ w, name="out")
        scaled = out * y.astype("float32")
    return graph, x, y, w, out, scaled


def test_fetches_may_be_any_tree_and_names(linear: Any) -> None:
    graph, x, _, w, out, scaled = linear
    with wf.Session(graph) as session:
        feeds = {x: [[1.0, 1.0]], "y": 2}
        got = session.run({"a": [out, (scaled, "w")], "b": Pair("out:0", w)}, feeds)
        assert got["a"][0].item() == 3.0
        assert got["a"][1][0].item() == 6.0
        assert isinstance(got["b"], Pair)
        assert got["b"].b.tolist() == got["a"][1][1].tolist() == [[1.0], [2.0]]
        assert session.run([], {}) == []


def test_a_fetch_set_is_compiled_once_for_all_sizes(linear: Any) -> None:
    graph, x, _, _, out, _ = linear
    with wf.Session(graph) as session:
        for size in (3, 3, 5, 7, 100, 3):
            got = session.run(out, {x: np.ones((size, 2))})
            assert got.shape == (size, 1)
        assert session.compilations == 2  # the first size, then every size
        assert session.run(out, {x: np.ones((1, 2))}).tolist() == [[3.0]]
        assert session.run(out, {x: np.ones((0, 2))}).shape == (0, 1)
        assert session.compilations == 4  # sizes that broadcast are on their own
        session.run(out, {x: np.ones((11, 2))})
        assert session.compilations == 4
        session.run([out, out], {x: np.ones((3, 2))})
        assert session.compilations == 5


def test_beginning_with_one_row_does_not_compile_for_each_size_later(linear: Any) -> None:
    graph, x, _, _, out, _ = linear
    with wf.Session(graph) as session:
        for size in (1, 2, 3, 4, 5, 1):
            session.run(out, {x: np.ones((size, 2))})
        assert session.compilations == 3


def test_any_tensor_may_be_fed_in_place_of_computing_it(linear: Any) -> None:
    graph, _, y, _, out, scaled = linear
    with wf.Session(graph) as session:
        assert session.run(scaled, {out: [[5.0]], y: 3}).tolist() == [[15.0]]


def test_each_session_has_values_of_its_own(linear: Any) -> None:
    graph, _, _, w, _, _ = linear
    with graph:
        double = w.assign(w * 2.0)
    with wf.Session(graph) as first, wf.Session(graph) as second:
        first.run(double)
        first.run(double)
        second.run(double)
        assert first.run(w).tolist() == [[4.0], [8.0]]
        assert second.run(w).tolist() == [[2.0], [4.0]]
        second.load_state_dict(first.state_dict())
        assert second.run(w).tolist() == [[4.0], [8.0]]
        second.load("w", [[0.0], [1.0]])
        assert second.run(w).tolist() == [[0.0], [1.0]]
        assert first.run(w).tolist() == [[4.0], [8.0]]


def test_values_that_were_fetched_do_not_change_later(linear: Any) -> None:
    graph, _, _, w, _, _ = linear
    with graph:
        double = w.assign(w * 2.0)
    with wf.Session(graph) as session:
        before = session.run(w)
        during = session.run(double)
        for _ in range(3):
            session.run(double)
        assert before.tolist() == [[1.0], [2.0]]
        assert during.tolist() == [[2.0], [4.0]]


def test_a_variable_made_after_the_session_begins_when_it_is_needed(linear: Any) -> None:
    graph, *_ = linear
    with wf.Session(graph) as session, graph:
        late = wf.Variable(7.0, name="late")
        assert session.run(late).item() == 7.0  # also while the graph is being built


def test_results_do_not_depend_on_the_compiler(linear: Any) -> None:
    graph, x, y, _, _, scaled = linear
    feeds = {x: np.random.default_rng(0).normal(size=(6, 2)), y: 3}
    with wf.Session(graph) as session:
        compiled = session.run(scaled, feeds)
        with wf.settings.changed(compiler=False):
            reference = session.run(scaled, feeds)
    np.testing.assert_allclose(compiled.numpy(), reference.numpy(), rtol=1e-6)


# What bad input gets.


def refused(kind: type[wf.WeftError], call: Any) -> wf.WeftError:
    with pytest.raises(kind) as caught:
        call()
    error = caught.value
    assert error.expected
    assert error.fix
    return error


def test_a_placeholder_that_is_not_fed_is_named(linear: Any) -> None:
    graph, x, _, _, _, scaled = linear
    with wf.Session(graph) as session:
        error = refused(wf.ArgumentError, lambda: session.run(scaled, {x: [[1.0, 2.0]]}))
        assert error.problem == "the fetches depend on y, which is not fed"
        error = refused(wf.ArgumentError, lambda: session.run(scaled))
        assert error.problem == "the fetches depend on x, y, which are not fed"
        assert "f32[x_0, 2]" in error.got


def test_a_wrong_shape_or_dtype_names_the_placeholder_what_is_expected_and_what_was_given(
    linear: Any,
) -> None:
    graph, x, y, _, out, scaled = linear
    with wf.Session(graph) as session:
        error = refused(wf.ShapeError, lambda: session.run(out, {x: np.ones((4, 3))}))
        assert error.problem == "x is fed a value of another shape"
        assert error.expected == "x: float32 of shape (None, 2)"
        assert "f32[4, 3]" in error.got
        refused(wf.ShapeError, lambda: session.run(out, {x: [1.0, 2.0]}))
        error = refused(wf.DTypeError, lambda: session.run(scaled, {x: [[1, 2]], y: 2.5}))
        assert error.problem == "y is fed a value of another dtype"
        assert error.expected == "y: int32"
        refused(wf.DTypeError, lambda: session.run(scaled, {x: [[1, 2]], y: 2**40}))
        refused(wf.DTypeError, lambda: session.run(out, {x: [[1j, 2]]}))
        assert session.run(out, {x: np.ones((1, 2), np.int64)}).item() == 3.0


def test_sizes_that_must_be_equal_are_compared_when_they_are_fed() -> None:
    with wf.Graph() as graph:
        a = wf.placeholder("float32", (None,), name="a")
        b = wf.placeholder("float32", (None,), name="b")
        total = a + b
    with wf.Session(graph) as session:
        assert session.run(total, {a: [1.0, 2.0], b: [3.0, 4.0]}).tolist() == [4.0, 6.0]
        error = refused(
            wf.ShapeError, lambda: session.run(total, {a: [1.0, 2.0], b: [1.0, 2.0, 3.0]})
        )
        assert error.problem.startswith("b is fed")
        assert "axis 0 of a: 2" in error.expected


def test_what_belongs_to_another_graph_is_refused(linear: Any) -> None:
    graph, x, *_ = linear
    with wf.Graph() as other:
        z = wf.placeholder("float32", (), name="z")
    with wf.Session(graph) as session:
        refused(wf.GraphError, lambda: session.run(z))
        refused(wf.GraphError, lambda: session.run([], {z: 1.0}))
        refused(wf.GraphError, lambda: session.run(other.get_operation_by_name("z")))
    with graph:
        refused(wf.GraphError, lambda: x + z)


def test_unknown_names_and_things_that_cannot_be_fetched_are_refused(linear: Any) -> None:
    graph, *_ = linear
    with wf.Session(graph) as session:
        error = refused(wf.NameUnknownError, lambda: session.run("outt"))
        assert error.fix == '"out"'
        refused(wf.NameUnknownError, lambda: session.run("out:3"))
        refused(wf.ArgumentTypeError, lambda: session.run(3.0))
        refused(wf.ArgumentError, lambda: session.run("out", {"w": [[1.0], [1.0]]}))
        refused(wf.ArgumentError, lambda: session.load_state_dict({"v": 1.0}))
        refused(wf.GraphError, lambda: session.load("out", 1.0))


def test_a_graph_tensor_that_is_used_at_once_explains_itself(linear: Any) -> None:
    _, x, *_ = linear
    for use in (lambda: bool(x[0, 0] > 0), lambda: x.tolist(), lambda: float(x[0, 0])):
        error = refused(wf.TraceError, use)
        assert error.problem == "a tensor of a graph has no value until a session runs it"
    assert "wf.cond" in refused(wf.TraceError, lambda: bool(x[0, 0] > 0)).fix
    assert refused(wf.TraceError, lambda: x[0, 0].item()).fix == "session.run(x)"


def test_a_closed_session_runs_nothing(linear: Any) -> None:
    graph, _, _, w, _, _ = linear
    with wf.Session(graph) as session:
        pass
    error = refused(wf.ArgumentError, lambda: session.run(w))
    assert error.problem.startswith("the session is closed")


def test_an_initial_value_that_needs_a_feed_is_refused(linear: Any) -> None:
    graph, x, *_ = linear
    with graph:
        error = refused(wf.GraphError, lambda: wf.Variable(x * 2.0))
        assert error.problem == "the initial value depends on a placeholder"


def test_assignments_of_another_shape_or_dtype_are_refused(linear: Any) -> None:
    graph, _, _, w, _, _ = linear
    with graph:
        error = refused(wf.ShapeError, lambda: w.assign(wf.ones((3,))))
        assert error.expected == "w: f32[2, 1]"
        refused(wf.DTypeError, lambda: w.assign(wf.ones((2, 1), dtype="float64")))


def test_assigning_inside_a_branch_is_refused(linear: Any) -> None:
    graph, x, _, w, _, _ = linear
    with graph:
        refused(
            wf.GraphError,
            lambda: wf.cond(wf.sum(x) > 0, lambda v: w.assign(v), lambda v: v, w * 2.0),
        )


def test_a_graph_is_not_built_inside_a_transform() -> None:
    def build(x: wf.Tensor) -> wf.Tensor:
        with wf.Graph():
            return wf.Variable(1.0) * x

    refused(wf.TraceError, lambda: wf.jit(build)(wf.tensor(1.0)))


def test_seeding_while_a_graph_is_built_is_refused() -> None:
    def build() -> None:
        with wf.Graph():
            wf.random.seed(0)

    state = wf.random.get_state()
    try:
        refused(wf.TraceError, build)
    finally:
        wf.random.set_state(state)


def test_a_session_without_a_graph_and_feeds_that_are_no_dictionary_are_refused(
    linear: Any,
) -> None:
    error = refused(wf.ArgumentTypeError, wf.Session)
    assert error.problem == "there is no graph to run"
    refused(wf.ArgumentTypeError, lambda: wf.Session(3))  # type: ignore[arg-type]
    refused(wf.ArgumentTypeError, lambda: wf.Session(linear[0]).run("w", [1, 2]))  # type: ignore[arg-type]
    assert wf.global_variables() == wf.trainable_variables() == []
    with linear[0]:
        refused(wf.ArgumentTypeError, lambda: wf.placeholder("float32", None))
        refused(wf.ArgumentError, lambda: wf.Variable(1.0, name="a b"))
        refused(wf.GraphError, lambda: wf.group(3))
        refused(wf.GraphError, lambda: linear[0].control_dependencies(None).__enter__())
    session = wf.Session(linear[0])
    error = refused(wf.ShapeError, lambda: session.run("out", {"x": [[1.0], [2.0, 3.0]]}))
    assert error.problem == "x is fed lists of which no tensor can be made"
    refused(wf.ArgumentError, lambda: session.load_state_dict(3))
    refused(wf.GraphError, lambda: session.load(3, 1.0))
    refused(wf.NameUnknownError, lambda: linear[0].get_tensor_by_name(3))
    refused(wf.ArgumentTypeError, lambda: wf.Graph.of(3))  # type: ignore[arg-type]
