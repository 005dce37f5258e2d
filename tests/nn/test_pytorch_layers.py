"""Layers and containers that PyTorch's users expect."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import numpy as np
import pytest

import weft as wf
from weft import nn


def test_a_parameter_list_is_a_list_that_learns() -> None:
    weights = nn.ParameterList([wf.ones(2), nn.Parameter(wf.zeros(3))])
    weights.append(wf.full(1, 5.0))
    assert [name for name, _ in weights.named_parameters()] == ["0", "1", "2"]
    assert len(weights) == 3
    assert all(each.requires_grad for each in weights)
    assert weights[-1].tolist() == [5.0]
    assert [each.shape for each in weights[:2]] == [(2,), (3,)]
    weights[0] = wf.tensor([7.0, 8.0])
    assert weights[0].tolist() == [7.0, 8.0]
    gradient = wf.grad(lambda net: (net[0] * net[0]).sum() + net[2].sum())(weights)
    assert gradient[0].tolist() == [14.0, 16.0]


def test_a_parameter_dict_is_a_dictionary_that_learns() -> None:
    weights = nn.ParameterDict({"scale": wf.ones(2)})
    weights["shift"] = wf.zeros(2)
    assert dict(weights.items()).keys() == {"scale", "shift"}
    assert "scale" in weights
    assert len(weights) == 2
    del weights["shift"]
    assert list(weights) == ["scale"]
    net = nn.Sequential(nn.Linear(2, 2))
    net.extra = weights
    assert "extra.scale" in net.state_dict()
    with pytest.raises(wf.ArgumentError, match="a method of modules"):
        weights["keys"] = wf.ones(1)


LAZY: dict[str, tuple[tuple[Any, ...], tuple[int, ...]]] = {
    "Linear": ((4,), (2, 3)),
    "Conv1d": ((4, 2), (1, 3, 5)),
    "Conv2d": ((4, 2), (1, 3, 5, 5)),
    "Conv3d": ((4, 2), (1, 3, 4, 4, 4)),
    "ConvTranspose1d": ((4, 2), (1, 3, 5)),
    "ConvTranspose2d": ((4, 2), (1, 3, 5, 5)),
    "ConvTranspose3d": ((4, 2), (1, 3, 2, 2, 2)),
    "BatchNorm1d": ((), (4, 3)),
    "BatchNorm2d": ((), (2, 3, 2, 2)),
    "BatchNorm3d": ((), (2, 3, 2, 2, 2)),
}


@pytest.mark.parametrize("name", LAZY)
def test_a_lazy_layer_becomes_the_layer_that_its_input_needs(name: str) -> None:
    args, shape = LAZY[name]
    layer = getattr(nn, f"Lazy{name}")(*args)
    x = wf.tensor(np.random.default_rng(0).normal(size=shape).astype("float32"))
    with pytest.raises(wf.UnsupportedError, match="before it is called"):
        list(layer.parameters())
    y = layer(x)
    ready = getattr(nn, name)(3, *args)
    assert type(layer) is type(ready)
    assert repr(layer) == repr(ready)
    assert list(layer.state_dict()) == list(ready.state_dict())
    ready.load_state_dict(layer.state_dict())
    if "BatchNorm" not in name:
        np.testing.assert_allclose(y.detach().numpy(), ready(x).detach().numpy(), rtol=1e-6)


def test_a_lazy_layer_inside_a_network_waits_for_a_call_that_is_not_compiled() -> None:
    net = nn.Sequential(nn.LazyLinear(4), nn.ReLU(), nn.LazyLinear(2)).eval()
    with pytest.raises(wf.UnsupportedError, match="before it is called"):
        wf.optim.SGD(net.parameters())
    with pytest.raises(wf.UnsupportedError, match="not compiled"):
        wf.jit(lambda net, x: net(x))(net, wf.ones((2, 3)))
    hooked: list[int] = []
    with net[0].register_forward_hook(lambda *_: hooked.append(1)):
        net(wf.ones((2, 3)))
    assert hooked == [1]
    assert not net[0].training
    assert len(list(net.parameters())) == 4
    assert wf.jit(lambda net, x: net(x))(net, wf.ones((2, 3))).shape == (2, 2)
    again = pickle.loads(pickle.dumps(net))
    assert again(wf.ones((2, 3))).tolist() == copy.deepcopy(net)(wf.ones((2, 3))).tolist()


WEIGHTED = {
    "CrossEntropyLoss": ("weight",),
    "NLLLoss": ("weight",),
    "BCELoss": ("weight",),
    "BCEWithLogitsLoss": ("weight", "pos_weight"),
    "MultiLabelSoftMarginLoss": ("weight",),
}


@pytest.mark.parametrize("name", WEIGHTED)
def test_the_weights_of_a_loss_are_saved_with_it(name: str) -> None:
    options = {option: wf.tensor([1.0, 2.0]) for option in WEIGHTED[name]}
    loss = getattr(nn, name)(**options)
    assert list(loss.state_dict()) == list(options)
    other = getattr(nn, name)(**{option: wf.zeros(2) for option in options})
    other.load_state_dict(loss.state_dict())
    assert other.weight.tolist() == [1.0, 2.0]
    assert getattr(nn, name)().state_dict() == {}


def test_a_projected_lstm_keeps_its_state_apart() -> None:
    lstm = nn.LSTM(3, 5, num_layers=2, proj_size=2, batch_first=True)
    y, (h, c) = lstm(wf.ones((4, 6, 3)))
    assert (y.shape, h.shape, c.shape) == ((4, 6, 2), (2, 4, 2), (2, 4, 5))
    assert [n for n in lstm.state_dict() if "hr" in n] == ["weight_hr_l0", "weight_hr_l1"]
    again, _ = wf.jit(lambda net, x: net(x))(lstm, wf.ones((4, 6, 3)))
    np.testing.assert_allclose(again.detach().numpy(), y.detach().numpy(), rtol=1e-5, atol=1e-7)
    with pytest.raises(wf.ArgumentError, match="not smaller"):
        nn.LSTM(3, 5, proj_size=5)
    with pytest.raises(wf.ShapeError, match="does not fit"):
        lstm(wf.ones((4, 6, 3)), (wf.zeros((2, 4, 5)), wf.zeros((2, 4, 5))))


def test_patches_that_do_not_fit_are_refused() -> None:
    F = nn.functional
    with pytest.raises(wf.ArgumentError, match="larger than the image"):
        F.unfold(wf.ones((1, 1, 2, 2)), 3)
    with pytest.raises(wf.ShapeError, match="not the patches"):
        F.fold(wf.ones((1, 4, 5)), (3, 3), 2)
    with pytest.raises(wf.ShapeError, match="does not fit the images"):
        nn.functional.grid_sample(wf.ones((2, 1, 2, 2)), wf.ones((1, 1, 1, 2)))
    assert F.unfold(wf.ones((1, 4, 4)), 2).shape == (4, 9)
    assert F.fold(wf.ones((4, 9)), (4, 4), 2).shape == (1, 4, 4)


BICUBIC = {
    ("zeros", False): [2.1907, 5.2621, -0.16317],
    ("zeros", True): [1.71796, 6.8202, 2.89984],
    ("border", False): [1.87402, 7.52848, 8.072],
    ("border", True): [1.56854, 6.39455, 8.56909],
    ("reflection", False): [1.87402, 7.91441, 7.38899],
    ("reflection", True): [1.6188, 6.82831, 5.68477],
}


@pytest.mark.parametrize(("padding", "corners"), list(BICUBIC))
def test_a_grid_is_read_between_four_neighbours_as_pytorch_reads_it(
    padding: str, corners: bool
) -> None:
    image = wf.tensor([[1.0, 2.0, 4.0, 8.0], [3.0, 1.0, 0.0, 5.0], [2.0, 2.0, 7.0, 1.0]])[
        None, None
    ]
    grid = wf.tensor([[[[-0.5, -0.25], [0.3, 0.9], [1.4, -1.2]]]])

    def read(x: wf.Tensor, at: wf.Tensor) -> wf.Tensor:
        return nn.functional.grid_sample(x, at, "bicubic", padding, corners)

    np.testing.assert_allclose(
        read(image, grid).numpy().reshape(-1), BICUBIC[padding, corners], rtol=2e-5
    )
    inside = wf.tensor([[[[-0.5, -0.25], [0.3, 0.4]]]]).astype("float64")
    wf.testing.check_grads(read, (image.astype("float64"), inside), order=1)


def test_volumes_are_not_read_between_four_neighbours() -> None:
    with pytest.raises(wf.UnsupportedError, match="bilinear"):
        nn.functional.grid_sample(wf.ones((1, 1, 2, 2, 2)), wf.ones((1, 1, 1, 1, 3)), "bicubic")


@pytest.mark.parametrize(("rank", "shape"), [(1, (4, 5)), (2, (4, 5, 5)), (3, (4, 5, 5, 5))])
def test_a_lazy_instance_norm_finds_its_channels_with_and_without_a_batch(
    rank: int, shape: tuple[int, ...]
) -> None:
    for given in (shape, (2, *shape)):
        layer = getattr(wf.nn, f"LazyInstanceNorm{rank}d")(affine=True)
        assert layer(wf.ones(given)).shape == given
        assert type(layer) is getattr(wf.nn, f"InstanceNorm{rank}d")
        assert layer.weight.shape == (4,)
