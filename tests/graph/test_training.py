"""Training in a graph: the classic programs, every optimiser, modules and their state."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import weft as wf
from weft import nn
from weft.data.sets import load_housing


def numbers(shape: tuple[int, ...], seed: int = 0) -> Any:
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


def test_a_linear_regression_finds_the_plane() -> None:
    x_values = numbers((200, 3))
    y_values = x_values @ np.array([1.0, -2.0, 0.5], np.float32) + 0.25
    with wf.Graph() as graph:
        x = wf.placeholder("float32", (None, 3), name="x")
        y = wf.placeholder("float32", (None,), name="y")
        w = wf.Variable(wf.zeros((3,)), name="w")
        b = wf.Variable(0.0, name="b")
        loss = wf.mean((x @ w + b - y) ** 2)
        train = wf.optim.SGD(lr=0.1).minimize(loss)
    with wf.Session(graph) as session:
        steps, value = 0, 1.0
        while value > 1e-6 and steps < 500:
            value = session.run([loss, train], feed_dict={x: x_values, y: y_values})[0].item()
            steps += 1
        assert 20 < steps < 500
        np.testing.assert_allclose(session.run(w).numpy(), [1.0, -2.0, 0.5], atol=5e-3)
        assert session.run(b).item() == pytest.approx(0.25, abs=5e-3)
        assert session.compilations == 1


def test_an_mlp_with_adam_on_housing_prices_is_the_eager_one() -> None:
    train_set, test_set = load_housing()
    centre, spread = train_set.inputs.numpy().mean(0), train_set.inputs.numpy().std(0) + 1e-6
    middle, width = train_set.labels.numpy().mean(), train_set.labels.numpy().std()
    inputs, unseen = [(s.inputs.numpy() - centre) / spread for s in (train_set, test_set)]
    labels, answers = [(s.labels.numpy()[:, None] - middle) / width for s in (train_set, test_set)]
    batches = [
        rows
        for seed in range(12)
        for rows in np.array_split(np.random.default_rng(seed).permutation(len(inputs)), 13)
    ]

    def make() -> nn.Module:
        wf.random.seed(0)
        return wf.models.MLP([inputs.shape[1], 64, 64, 1])

    def r2(guesses: Any) -> float:
        return float(1 - ((guesses - answers) ** 2).sum() / ((answers - answers.mean()) ** 2).sum())

    eager = make()
    optimizer = wf.optim.Adam(eager.parameters(), lr=3e-3)

    @wf.jit
    def step(net: Any, optimizer: Any, x: wf.Tensor, y: wf.Tensor) -> wf.Tensor:
        loss = nn.functional.mse_loss(net(x), y)
        optimizer.minimize(loss)
        return loss

    losses = [
        step(eager, optimizer, *(wf.asarray(v[rows], dtype="float32") for v in (inputs, labels)))
        for rows in batches
    ]
    with wf.Graph() as graph:
        x = wf.placeholder("float32", (None, inputs.shape[1]), name="x")
        y = wf.placeholder("float32", (None, 1), name="y")
        guess = wf.models.MLP([inputs.shape[1], 64, 64, 1])(x)
        loss = nn.functional.mse_loss(guess, y)
        train = wf.optim.Adam(lr=3e-3).minimize(loss)
    with wf.Session(graph) as session:
        for name, value in make().state_dict().items():
            session.load(name, value)
        static = [
            session.run([loss, train], {x: inputs[rows], y: labels[rows]})[0] for rows in batches
        ]
        reached = r2(session.run(guess, {x: unseen}).numpy())
    np.testing.assert_allclose(static[:20], [v.numpy() for v in losses[:20]], rtol=2e-4)
    with wf.no_grad():
        expected = r2(eager(wf.asarray(unseen, dtype="float32")).numpy())
    assert reached > 0.7
    assert reached == pytest.approx(expected, abs=0.03)


OPTIONS = [{}, {"clip_norm": 0.5, "maximize": True}, {"accumulate": 2}, {"precision": "float16"}]
OPTIMIZERS = ["SGD", "Adam", "AdamW", "RMSprop", "Adagrad", "Adadelta", "Lamb", "Lion", "Muon"]


def network() -> nn.Module:
    wf.random.seed(3)
    return nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1))


@pytest.mark.slow
@pytest.mark.parametrize("name", OPTIMIZERS)
@pytest.mark.parametrize("options", OPTIONS, ids=["plain", "clipped", "accumulated", "mixed"])
def test_every_optimizer_does_in_a_graph_what_it_does_eagerly(name: str, options: Any) -> None:
    x_values = numbers((8, 3))
    make = getattr(wf.optim, name)
    eager, static = network(), network()
    optimizer = make(eager.parameters(), lr=0.05, **options)
    for _ in range(4):
        optimizer.minimize(wf.mean(optimizer.mixed(eager)(wf.asarray(x_values)) ** 2))
    with wf.Graph() as graph:
        x = wf.placeholder("float32", (None, 3), name="x")
        staged = make(static.parameters(), lr=0.05, **options)
        train = staged.minimize(wf.mean(staged.mixed(static)(x) ** 2))
    with wf.Session(graph) as session, wf.settings.changed(compiler=name == "Adam"):
        for _ in range(4):
            session.run(train, {x: x_values})
        found = session.run(list(static.parameters()))
    for parameter, value in zip(eager.parameters(), found, strict=True):
        np.testing.assert_allclose(value.numpy(), parameter.detach().numpy(), atol=2e-5)
    untouched = [p.detach().tolist() for p in static.parameters()]
    assert untouched == [p.detach().tolist() for p in network().parameters()]


def test_an_optimizer_without_parameters_takes_what_the_loss_depends_on() -> None:
    with wf.Graph() as graph:
        a = wf.Variable([1.0], name="a")
        wf.Variable([2.0], name="b")
        fixed = wf.Variable([3.0], name="fixed", trainable=False)
        optimizer = wf.optim.Adam(lr=0.1)
        train = optimizer.minimize(wf.sum(a * fixed))
    assert [group.names for group in optimizer.groups] == [("a",)]
    with wf.Session(graph) as session:
        session.run(train)
        assert session.run(a).tolist() == pytest.approx([0.9])
        assert session.run("fixed").tolist() == [3.0]
        assert session.run("Adam/state.a.mean").tolist() == pytest.approx([0.3])


def test_a_variable_that_only_a_function_held_is_trained() -> None:
    def layer(x: wf.Tensor) -> wf.Tensor:
        return x * wf.Variable([2.0], name="hidden")

    with wf.Graph() as graph:
        x = wf.placeholder("float32", (1,), name="x")
        train = wf.optim.SGD(lr=1.0).minimize(wf.sum(layer(x)))
    with wf.Session(graph) as session:
        session.run(train, {x: [0.5]})
        assert session.run("hidden").tolist() == [1.5]


def test_a_schedule_and_a_learning_rate_set_later_count() -> None:
    with wf.Graph() as graph:
        a, b = wf.Variable(0.0, name="a"), wf.Variable(0.0, name="b")
        falling = wf.optim.SGD({"a": a}, lr=wf.optim.schedules.Cosine(1.0, steps=2))
        settable = wf.optim.SGD({"b": b}, lr=1.0)
        first, second = falling.minimize(a * 1.0), settable.minimize(b * 1.0)
    with wf.Session(graph) as session:
        values = []
        for rate in (1.0, 0.25, 0.0):
            settable.lr = rate
            session.run([first, second])
            values.append([v.item() for v in session.run([a, b])])
    np.testing.assert_allclose(values, [[-1.0, -1.0], [-1.5, -1.25], [-1.5, -1.25]], atol=1e-6)


def test_modules_made_inside_and_outside_become_variables_and_keep_their_state() -> None:
    x_values = numbers((16, 3))

    def make() -> nn.Module:
        return nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.ReLU(), nn.Linear(4, 1))

    wf.random.seed(1)
    eager = make()
    state = eager.state_dict()
    outside = make()
    outside.load_state_dict(state)
    with wf.Graph() as graph:
        x = wf.placeholder("float32", (None, 3), name="x")
        inside = make()
        losses = [wf.mean(net(x) ** 2) for net in (inside, outside)]
        trains = [wf.optim.SGD(lr=0.1).minimize(loss) for loss in losses]
        answer = inside.eval()(x)
    names = [variable.name for variable in graph.cells(trainable=True)][:3]
    assert names == ["0.weight", "0.bias", "1.weight"]
    optimizer = wf.optim.SGD(eager.parameters(), lr=0.1)
    for _ in range(3):
        optimizer.minimize(wf.mean(eager(wf.asarray(x_values)) ** 2))
    with wf.Session(graph) as session:
        for name, value in state.items():
            session.load(name, value)
        for _ in range(3):
            session.run(trains, {x: x_values})
        trained, other = session.run([inside, outside])
        guesses = session.run(answer, {x: x_values})
    for net in (trained, other):
        for name, value in net.state_dict().items():
            np.testing.assert_allclose(value.numpy(), eager.state_dict()[name].numpy(), atol=1e-5)
    eager.eval()
    expected = eager(wf.asarray(x_values)).detach()
    np.testing.assert_allclose(guesses.numpy(), expected.numpy(), atol=1e-5)
    assert outside[1].num_batches_tracked.item() == 0  # the module itself is as it was
    assert outside(wf.asarray(x_values)).shape == (16, 1)


def test_what_was_computed_from_a_parameter_outside_follows_it_inside() -> None:
    w = wf.tensor(np.arange(6.0).reshape(2, 3), requires_grad=True)
    scaled = w.T * 2.0
    x_values = np.ones((2, 3))
    with wf.Graph() as graph:
        x = wf.placeholder("float64", (None, 3), name="x")
        loss = wf.sum((x @ scaled) ** 2)
        (slope,) = wf.gradients(loss, [w])
        train = wf.optim.SGD([w], lr=0.001).minimize(loss)
    assert scaled.tolist() == (w.detach().numpy().T * 2).tolist()
    with wf.Session(graph) as session:
        before = session.run(slope, {x: x_values})
        session.run(train, {x: x_values})
        after = session.run(slope, {x: x_values})
    value = w.detach().numpy()
    gradient = 8 * value.sum(1, keepdims=True) * 2 * np.ones((2, 3)) / 2 * 2
    np.testing.assert_allclose(before.numpy(), gradient)
    moved = value - 0.001 * gradient
    np.testing.assert_allclose(
        after.numpy(), 16 * moved.sum(1, keepdims=True) * np.ones((2, 3)), rtol=1e-6
    )


def test_a_loss_that_cannot_be_minimized_is_refused() -> None:
    with wf.Graph():
        x = wf.placeholder("float32", (None,), name="x")
        w = wf.Variable([1.0], name="w")
        with pytest.raises(wf.GradientError, match="none of the variables"):
            wf.optim.SGD(lr=0.1).minimize(wf.sum(x))
        with pytest.raises(wf.GradientError, match="not one real number"):
            wf.optim.SGD(lr=0.1).minimize(x * w)
        with pytest.raises(wf.ArgumentError, match="LBFGS"):
            wf.optim.LBFGS([w]).minimize(wf.sum(w))
    with pytest.raises(wf.ArgumentError, match="given no parameters"):
        wf.optim.SGD(lr=0.1).minimize(wf.tensor(1.0))
    with pytest.raises(wf.ArgumentError, match="given no parameters"):
        wf.optim.SGD(lr=0.1).step()


def test_gradients_serve_eager_tensors_too() -> None:
    w = wf.tensor([1.0, 2.0], requires_grad=True)
    unused = wf.tensor([1.0], requires_grad=True)
    middle = w * 3.0
    y = wf.sum(middle**2)
    by_w, by_middle, nothing = wf.gradients(y, [w, middle, unused])
    assert by_w is not None
    assert by_middle is not None
    assert by_w.tolist() == [18.0, 36.0]
    assert by_middle.tolist() == [6.0, 12.0]
    assert nothing is None
    assert w.grad is None
    (weighed,) = wf.gradients(
        [middle, middle], [w], grad_ys=[wf.tensor([1.0, 0.0]), wf.tensor([0.0, 5.0])]
    )
    assert weighed is not None
    assert weighed.tolist() == [3.0, 15.0]
    with pytest.raises(wf.GradientError, match="no derivative"):
        wf.gradients(wf.tensor(1), [w])
