"""The layer style: forward, backward and the update, each by hand, beside `.backward()`."""

from __future__ import annotations

import pprint

import numpy as np
import pytest

import weft as wf
from weft import nn
from weft.graph import Model, Net


def test_the_gradients_of_each_layer_are_those_of_backward() -> None:
    wf.random.seed(0)
    layers = [nn.Linear(3, 4), wf.tanh, nn.LayerNorm(4), nn.Linear(4, 2)]
    net = Net(layers)
    model = Model(net, nn.functional.mse_loss, wf.optim.SGD(net.parameters(), lr=0.1))
    x, y = wf.random.normal((5, 3)), wf.random.normal((5, 2))
    loss = model.forward(x, y)
    gradients = model.backward()
    assert [len(layer) for layer in gradients] == [2, 0, 2, 2]
    expected = nn.functional.mse_loss(nn.Sequential(layers[0], nn.Tanh(), *layers[2:])(x), y)
    expected.backward()
    assert loss.item() == pytest.approx(expected.item())
    flat = [gradient for layer in gradients for gradient in layer]
    for parameter, gradient in zip(net.parameters(), flat, strict=True):
        assert parameter.grad is not None
        np.testing.assert_allclose(gradient.numpy(), parameter.grad.numpy(), rtol=1e-5, atol=1e-7)
    before = [p.detach() for p in net.parameters()]
    model.apply_gradients(gradients)
    for old, new, gradient in zip(before, net.parameters(), flat, strict=True):
        np.testing.assert_allclose(new.detach().numpy(), (old - 0.1 * gradient).numpy(), rtol=1e-6)


def test_a_model_learns_exclusive_or() -> None:
    wf.random.seed(0)
    net = Net([nn.Linear(2, 8), wf.tanh, nn.Linear(8, 1)])
    model = Model(net, nn.functional.mse_loss, wf.optim.Adam(net.parameters(), lr=0.05))
    x = wf.tensor([[0.0, 0.0], [0.0, 1.0], [1.0, 0.0], [1.0, 1.0]])
    y = wf.tensor([[0.0], [1.0], [1.0], [0.0]])
    for _ in range(200):
        loss = model.forward(x, y)
        model.apply_gradients(model.backward())
    assert loss.item() < 1e-2
    assert [round(value[0]) for value in net(x).tolist()] == [0, 1, 1, 0]


def test_going_back_without_going_forward_is_refused() -> None:
    net = Net([wf.sin])
    with pytest.raises(wf.GradientError, match="no way back"):
        net.backward(wf.tensor(1.0))
    net.forward(wf.tensor(1.0))
    net.backward(wf.tensor(1.0))
    with pytest.raises(wf.GradientError, match="no way back"):
        net.backward(wf.tensor(1.0))
    with pytest.raises(wf.ArgumentTypeError, match="can be called"):
        Net([3])  # type: ignore[list-item]


def test_a_model_answers_without_a_target() -> None:
    net = Net([nn.Linear(2, 3), wf.tanh])
    model = Model(net, nn.functional.mse_loss, wf.optim.SGD(net.parameters(), lr=0.1))
    x = wf.ones((4, 2))
    assert model.forward(x).tolist() == net.forward(x).tolist()
    with pytest.raises(wf.GradientError):
        model.backward()  # of an answer there is no loss to go back from
    before = model.forward(x, wf.zeros((4, 3))).item()
    model.apply_grad(model.backward())
    assert model.forward(x, wf.zeros((4, 3))).item() < before


def test_a_graph_shows_its_operations() -> None:
    with wf.Graph() as graph:
        x = wf.placeholder("float32", (None, 2), name="x")
        wf.graph.identity(wf.exp(x), name="y")
    lines = repr(graph).splitlines()
    assert lines[0] == f"<Graph of {len(graph.operations)} operations>"
    assert lines[1] == "  <placeholder 'x': f32[x_0, 2]>"
    assert "'y'" in lines[-1]
    assert pprint.pformat(graph) == repr(graph)
