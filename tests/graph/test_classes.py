"""The class style: operations as classes, gradients by name, placeholders without a type."""

from __future__ import annotations

import pprint
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import weft as wf
from weft.graph import Node, Operation, Placeholder, RegisterGradient
from weft.graph.classes import GRADIENTS


class add(Operation):  # noqa: N801
    def __init__(self, x: Any, y: Any) -> None:
        super().__init__([x, y])

    def compute(self, x_value: Any, y_value: Any) -> Any:
        return x_value + y_value


class matmul(Operation):  # noqa: N801
    def __init__(self, a: Any, b: Any) -> None:
        super().__init__([a, b])

    def compute(self, a_value: Any, b_value: Any) -> Any:
        return a_value @ b_value


class sigmoid(Operation):  # noqa: N801
    def compute(self, a: Any) -> Any:
        return 1 / (1 + np.exp(-a))


@pytest.fixture(autouse=True)
def no_gradients() -> Iterator[None]:
    before = dict(GRADIENTS)
    GRADIENTS.clear()
    yield
    GRADIENTS.clear()
    GRADIENTS.update(before)


def test_a_perceptron_runs_as_it_is_written_in_the_book() -> None:
    with wf.Graph() as graph:
        x = Placeholder()
        w = wf.Variable([1.0, 1.0], name="w")
        b = wf.Variable(0.0, name="b")
        p = sigmoid(add(matmul(w, x), b))
    session = wf.Session(graph)
    assert session.run(p, {x: [3.0, 2.0]}).item() == pytest.approx(1 / (1 + np.exp(-5)))
    many = session.run(p, feed_dict={x: np.ones((2, 4), np.float32)})
    assert many.shape == (4,)


def test_a_gradient_registered_by_name_is_the_one_that_is_used() -> None:
    @RegisterGradient("sigmoid")
    def _(op: Any, grad: Any) -> Any:
        assert len(op.inputs) == 1
        return 100.0 * grad * op.output * (1 - op.output)

    with wf.Graph() as graph:
        x, w = Placeholder(), wf.Variable(0.5, name="w")
        y = sigmoid(x * w)
        train = wf.optim.SGD(lr=0.01).minimize(y)
    session = wf.Session(graph)
    session.run(train, {x: 2.0})
    s = 1 / (1 + np.exp(-1.0))
    assert session.run(w).item() == pytest.approx(0.5 - 0.01 * 100 * 2 * s * (1 - s), rel=1e-5)


def test_a_gradient_of_a_broadcast_input_is_summed() -> None:
    @RegisterGradient("add")
    def _(op: Any, grad: Any) -> Any:
        return [grad, grad]

    with wf.Graph() as graph:
        x, b = Placeholder(), wf.Variable([0.0, 0.0], name="b")
        loss = np.sum(add(x, b))
        train = wf.optim.SGD(lr=1.0).minimize(loss)
    session = wf.Session(graph)
    session.run(train, {x: np.zeros((5, 2), np.float32)})
    assert session.run(b).tolist() == [-5.0, -5.0]


def test_a_gradient_for_another_number_of_inputs_is_refused() -> None:
    RegisterGradient("add")(lambda op, grad: grad)
    with wf.Graph() as graph:
        x, b = Placeholder(), wf.Variable(0.0, name="b")
        train = wf.optim.SGD(lr=1.0).minimize(add(x, b))
    with pytest.raises(wf.GradientError, match="2 gradients"):
        wf.Session(graph).run(train, {x: 1.0})


def test_training_learns_two_classes_with_batches_of_any_size() -> None:
    generator = np.random.default_rng(0)
    points = generator.normal(size=(60, 2)).astype(np.float32)
    labels = (points.sum(axis=1) > 0).astype(np.float32)
    with wf.Graph() as graph:
        x, y = Placeholder(name="x"), Placeholder(name="y")
        w = wf.Variable([0.1, -0.1], name="w")
        p = sigmoid(matmul(x, w))
        loss = -np.mean(y * np.log(p) + (1 - y) * np.log(1 - p))
        train = wf.optim.Adam(lr=0.1).minimize(loss)
    session = wf.Session(graph)
    first = session.run(loss, {x: points, y: labels}).item()
    for _ in range(15):
        session.run(train, {x: points[:40], y: labels[:40]})
        session.run(train, {x: points[40:], y: labels[40:]})
    assert session.run(loss, {x: points, y: labels}).item() < 0.5 * first


def test_nodes_show_the_calls_that_make_them() -> None:
    x = Placeholder(name="x")
    node = sigmoid(add(x, 2.0) * 3.0)
    assert repr(node) == "sigmoid(multiply(add(x, 2.0), 3.0))"
    assert pprint.pformat(node) == repr(node)
    deep = x
    for _ in range(8):
        deep = add(deep, sigmoid(x))  # type: ignore[assignment]
    assert repr(deep).splitlines()[1] == "  add"
    with wf.Graph() as graph:
        total = wf.Variable(1.0, name="w") * 2.0
    assert "multiply" in pprint.pformat(graph)
    assert isinstance(graph.operation_of(total), Operation)


def test_what_is_not_fed_or_says_nothing_is_told() -> None:
    class silent(Operation):  # noqa: N801
        pass

    with wf.Graph() as graph:
        x, y = Placeholder(name="x"), Placeholder(name="y")
    session = wf.Session(graph)
    with pytest.raises(wf.ArgumentError, match="y is not fed"):
        session.run(x + y, {x: 1.0})
    with pytest.raises(wf.ArgumentError, match="compute"):
        session.run(silent(x), {x: 1.0})


def test_a_placeholder_is_bound_by_its_first_run() -> None:
    with wf.Graph() as graph:
        x = Placeholder()
    session = wf.Session(graph)
    assert x.dtype is None
    assert session.run(x * 2, {x: [1, 2]}).tolist() == [2, 4]
    assert x.dtype is wf.int64
    with pytest.raises(wf.DTypeError, match="first run"):
        session.run(x * 2, {x: [1.5]})
    assert isinstance(Placeholder("float32", (2,)), wf.Tensor)
    wf.reset_default_graph()


def test_the_same_node_is_recorded_once() -> None:
    with wf.Graph() as graph:
        x = Placeholder()
        y = np.exp(x)
        z = y + y
    assert isinstance(z, Node)
    session = wf.Session(graph)
    session.run([z, y], {x: 1.0})
    session.run([z, y], {x: 2.0})
    assert [each.kind for each in graph.operations].count("exp") == 1


def test_expressions_join_nodes_with_variables_arrays_and_numbers() -> None:
    with wf.Graph() as graph:
        x, w = Placeholder(), wf.Variable([2.0, 4.0], name="w")
        cases = {
            "w * x": w * x, "w + x": w + x, "w - x": w - x, "w / x": w / x, "w @ x": w @ x,
            "2 * x": 2 * x, "u * x": np.array([1.0, 3.0], np.float32) * x, "x ** 2": x**2,
            "-x": -x, "x[0]": x[0], "sum": np.sum(x), "maximum": np.maximum(w, x),
            "matmul": np.matmul(w, x), "concatenate": np.concatenate([w, x]),
        }  # fmt: skip
    values = wf.Session(graph).run(list(cases.values()), {x: [1.0, 8.0]})
    expected = [
        [2, 32], [3, 12], [1, -4], [2, 0.5], 34, [2, 16], [1, 24], [1, 64], [-1, -8], 1, 9, [2, 8],
        34, [2, 4, 1, 8],
    ]  # fmt: skip
    assert [value.tolist() for value in values] == expected


def test_functions_and_methods_of_tensors_take_nodes() -> None:
    with wf.Graph() as graph:
        x = Placeholder(name="x")
        y = wf.exp(x)
        z = wf.sum(wf.maximum(2.0, wf.sigmoid(x) * 4), axis=0)
        w = wf.concat([x, wf.relu(-x)]).sum()
        v = wf.nn.functional.softmax(x, axis=-1).max()
    assert (repr(y), repr(wf.relu(x))) == ("exp(x)", "relu(x)")
    session = wf.Session(graph)
    value = np.array([0.0, -1.0, 2.0], np.float32)
    found = session.run([y, z, w, v], {x: value})
    sigmoids = 4 / (1 + np.exp(-value))
    expected = [np.exp(value), np.maximum(2, sigmoids).sum(), 2.0, np.exp(2) / np.exp(value).sum()]
    for result, numbers in zip(found, expected, strict=True):
        np.testing.assert_allclose(result, numbers, rtol=1e-5)


def test_a_loss_of_functions_is_minimised() -> None:
    with wf.Graph() as graph:
        x, w = Placeholder(), wf.Variable([1.0, -2.0], name="w")
        loss = wf.sum(wf.square(wf.tanh(x * w)))
        update = wf.optim.SGD(lr=0.5).minimize(loss)
    session = wf.Session(graph)
    feeds = {x: [1.0, 1.0]}
    losses = [session.run([loss, update], feeds)[0].item() for _ in range(20)]
    assert losses[-1] < 0.1 * losses[0]


def test_a_node_has_no_other_attributes_than_methods_of_tensors() -> None:
    with pytest.raises(AttributeError, match="no attribute 'colour'"):
        _ = Placeholder().colour
    assert not hasattr(Placeholder(), "shape")
