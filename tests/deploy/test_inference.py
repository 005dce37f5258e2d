"""A prepared network is smaller, computes the same, and leaves the network as it was."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import weft as wf
from weft import nn
from weft.models.resnet import BasicBlock


def shaken(net: Any) -> Any:
    """A network whose running statistics are not those of the start."""
    for _, each in net.named_modules():
        if isinstance(each, (nn.BatchNorm1d, nn.BatchNorm2d)):
            each.running_mean.copy_(wf.random.normal(each.running_mean.shape) * 0.1)
            each.running_var.copy_(wf.random.uniform(each.running_var.shape) + 0.5)
    return net


def test_batch_norms_of_a_residual_network_are_folded() -> None:
    net = shaken(wf.models.ResNet(BasicBlock, (1, 1), 5, small=True, widths=(4, 8)))
    x = wf.random.normal((2, 3, 8, 8))
    prepared = wf.prepare_inference(net, x)
    assert prepared.folded["layer2.0.downsample.1"] == "layer2.0.downsample.0"
    assert len(prepared.folded) == 6
    assert not any(isinstance(each, nn.BatchNorm2d) for _, each in prepared.module.named_modules())
    net.eval()
    np.testing.assert_allclose(prepared(x).numpy(), net(x).detach().numpy(), atol=1e-5)


def test_a_linear_layer_takes_a_batch_norm_in_and_dropouts_go() -> None:
    net = shaken(
        nn.Sequential(nn.Linear(4, 6, bias=False), nn.BatchNorm1d(6), nn.Dropout(0.5), nn.ReLU())
    )
    prepared = wf.prepare_inference(net, wf.spec("float32", ("batch", 4)))
    assert (prepared.folded, prepared.removed) == ({"1": "0"}, ["2"])
    assert prepared.largest < 1e-5
    assert prepared.parameters == (36, 30)
    assert "1 is part of 0" in str(prepared)
    assert net.training
    assert isinstance(net[1], nn.BatchNorm1d)
    assert not any(each.requires_grad for each in prepared.module.parameters())


def test_what_something_else_reads_is_not_folded() -> None:
    class Both(nn.Module):
        def __init__(self) -> None:
            self.layer, self.norm = nn.Linear(4, 6), nn.BatchNorm1d(6)

        def forward(self, x: wf.Tensor) -> wf.Tensor:
            y = self.layer(x)
            return self.norm(y) + y

    class Twice(nn.Module):
        def __init__(self) -> None:
            self.layer, self.norm = nn.Linear(6, 6), nn.BatchNorm1d(6)

        def forward(self, x: wf.Tensor) -> Any:
            return self.norm(self.layer(self.norm(self.layer(x))))

    assert wf.prepare_inference(shaken(Both()), wf.ones((2, 4))).folded == {}
    assert wf.prepare_inference(shaken(Twice()), wf.ones((2, 6))).folded == {}


def test_a_function_is_refused() -> None:
    with pytest.raises(wf.ArgumentTypeError, match="this is no module"):
        wf.prepare_inference(wf.sin, wf.ones(3))
