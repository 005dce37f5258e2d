"""Pruning takes away what it says, and channels that do nothing can go without a difference."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import weft as wf
from weft import nn
from weft.deploy import prune_channels, prune_weights
from weft.models.resnet import BasicBlock

IMAGE = wf.spec("float32", ("batch", 3, 8, 8))
NETS: dict[str, tuple[Callable[[], Any], wf.TensorType]] = {
    "MLP": (lambda: wf.models.MLP([4, 8, 8, 3]), wf.spec("float32", ("batch", 4))),
    "LeNet": (
        lambda: wf.models.LeNet(size=8, padding=2),
        wf.spec("float32", ("batch", 1, 8, 8)),
    ),
    "ResNet": (
        lambda: wf.models.ResNet(BasicBlock, (1, 1), 5, small=True, widths=(4, 8)), IMAGE,
    ),
}  # fmt: skip


def example(kind: wf.TensorType) -> wf.Tensor:
    return wf.random.normal((2, *kind.shape[1:]), key=wf.random.key(4))


@pytest.mark.parametrize("name", NETS)
def test_a_pruned_network_is_smaller_and_runs_and_learns(name: str) -> None:
    make, kind = NETS[name]
    net = make()
    report = prune_channels(net, 0.5, kind)
    assert report.parameters[1] < 0.6 * report.parameters[0]
    assert sum(int(p.size) for p in net.parameters()) == report.parameters[1]
    loss = (net(example(kind)) ** 2).sum()
    loss.backward()
    assert all(p.grad is not None and p.grad.shape == p.shape for p in net.parameters())
    assert "numbers before" in str(report)


@pytest.mark.parametrize("name", ["MLP", "LeNet"])
def test_channels_that_are_zero_go_without_a_difference(name: str) -> None:
    make, kind = NETS[name]
    net = make()
    idle = [each for each in net.named_parameters() if not each[0].startswith(("out", "layers.2"))]
    for _, parameter in idle:  # every second channel gives nothing
        value = parameter.detach().numpy().copy()
        value[::2] = 0.0
        with wf.no_grad():
            parameter.copy_(wf.asarray(value))
    x = example(kind)
    before = net(x).detach().numpy()
    report = prune_channels(net, 0.5, kind, importance=_rows_of_producers)
    assert report.parameters[1] < 0.6 * report.parameters[0]
    np.testing.assert_allclose(net(x).detach().numpy(), before, atol=1e-5)


def _rows_of_producers(rows: Any) -> np.ndarray[Any, Any]:
    """The size of what makes a channel, not of what reads it."""
    own = [each for name, each in rows.items() if name.endswith("[0]")]
    return np.asarray(sum(np.abs(each).sum(axis=1) for each in own))


def test_channels_whose_number_the_code_knows_stay() -> None:
    class Halves(nn.Module):
        def __init__(self) -> None:
            self.first, self.second = nn.Linear(4, 8), nn.Linear(8, 2)

        def forward(self, x: wf.Tensor) -> Any:
            y = wf.reshape(self.first(x), (x.shape[0], 2, 4))
            return self.second(wf.reshape(wf.tanh(y), (x.shape[0], 8)))

    net = Halves()
    report = prune_channels(net, 0.5, wf.spec("float32", ("batch", 4)))
    assert report.kept == {}
    assert net.first.weight.shape == (8, 4)
    norm = nn.Sequential(nn.Conv2d(3, 4, 1), nn.GroupNorm(4, 4), nn.Conv2d(4, 2, 1))
    assert prune_channels(norm, 0.5, IMAGE).kept == {}
    assert norm(wf.ones((1, 3, 8, 8))).shape == (1, 2, 8, 8)


def test_weights_that_are_taken_away_stay_away_while_tuning() -> None:
    net = wf.models.MLP([4, 8, 3])
    report = prune_weights(net, 0.75)
    assert report.parameters == (56, 14)
    optimizer = wf.optim.SGD(net.parameters(), lr=0.1)
    (net(wf.ones((2, 4))) ** 2).sum().backward()
    optimizer.step()
    report.hold(net)
    weights = [p.detach().numpy() for p in net.parameters() if p.ndim > 1]
    assert sum(int(np.count_nonzero(each)) for each in weights) <= 14
    each = prune_weights(wf.models.MLP([4, 8, 3]), 0.5, everywhere=False)
    assert list(each.kept.values()) == [(16, 32), (12, 24)]


@pytest.mark.parametrize("share", [-0.1, 1.0])
def test_a_share_is_from_zero_to_one(share: float) -> None:
    with pytest.raises(wf.ArgumentError, match="not from 0 to 1"):
        prune_weights(wf.models.MLP([4, 3]), share)
