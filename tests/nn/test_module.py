"""Modules: names, state, modes, hooks, copies, and their use inside transforms."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import numpy as np
import pytest

import weft as wf
from weft import nn


class Net(nn.Module):
    """Parameters at several depths, a buffer, a list, a dictionary, and configuration."""

    def __init__(self) -> None:
        self.scale = nn.Parameter(wf.tensor([2.0]))
        self.body = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2))
        self.extra = [nn.Linear(2, 2), {"head": nn.Linear(2, 1)}]
        self.register_buffer("steps", wf.zeros(()))
        self.register_buffer("scratch", wf.zeros(2), persistent=False)
        self.sizes = [1, 2, 3]

    def forward(self, x: wf.Tensor) -> wf.Tensor:
        self.steps = self.steps + 1
        return self.extra[1]["head"](self.extra[0](self.body(x) * self.scale))


NAMES = [
    "scale", "extra.0.weight", "extra.0.bias", "extra.1.head.weight", "extra.1.head.bias", "steps",
    "body.0.weight", "body.0.bias", "body.2.weight", "body.2.bias",
]  # fmt: skip


@pytest.fixture
def net() -> Net:
    wf.random.seed(0)
    return Net()


@pytest.fixture
def x() -> wf.Tensor:
    return wf.random.normal((5, 3), key=wf.random.key(1))


def test_names_are_dotted_paths_and_transient_buffers_are_not_saved(net: Net) -> None:
    assert list(net.state_dict()) == NAMES
    assert [n for n, _ in net.named_parameters()] == [n for n in NAMES if n != "steps"]
    assert [n for n, _ in net.named_buffers()] == ["steps", "scratch"]
    assert [n for n, _ in net.named_modules()][:3] == ["", "extra.0", "extra.1.head"]
    assert [n for n, _ in net.named_children()] == ["body", "extra.0", "extra.1.head"]


def test_a_frozen_parameter_stays_a_parameter(net: Net, x: wf.Tensor) -> None:
    count = len(list(net.parameters()))
    net.requires_grad_(False)
    assert len(list(net.parameters())) == count
    assert not net(x).requires_grad
    net.requires_grad_()
    assert net(x).requires_grad


def test_a_state_is_a_snapshot_and_comes_back(net: Net, x: wf.Tensor) -> None:
    before, state = net(x).detach().numpy().copy(), net.state_dict()
    with wf.no_grad():
        for parameter in net.parameters():
            parameter += 1.0
    assert not np.allclose(net(x).detach().numpy(), before)
    assert net.load_state_dict(state) == ([], [])
    np.testing.assert_array_equal(net(x).detach().numpy(), before)
    assert net.steps.item() == 2.0  # one of the snapshot, one of the call


def test_loading_tells_all_that_does_not_fit_and_loads_nothing(net: Net) -> None:
    state = net.state_dict()
    state["body.0.wieght"] = state.pop("body.0.weight")
    state["body.2.bias"] = wf.zeros(7)
    del state["scale"]
    before = net.body[2].bias.detach().numpy().copy()
    with pytest.raises(wf.ShapeError) as caught:
        net.load_state_dict(state)
    error = caught.value
    assert "2 missing, 1 unexpected, 1 misshapen" in error.problem
    assert "missing: scale, body.0.weight" in error.got
    assert "body.2.bias [7], not [2]" in error.got
    assert "body.0.wieght -> body.0.weight" in error.fix
    np.testing.assert_array_equal(net.body[2].bias.detach().numpy(), before)


def test_without_strictness_what_does_not_fit_is_returned(net: Net) -> None:
    found = net.load_state_dict({"scale": wf.ones(1), "other": wf.ones(1)}, strict=False)
    assert found.unexpected == ["other"]
    assert found.missing == [name for name in NAMES if name != "scale"]
    assert net.scale.item() == 1.0
    with pytest.raises(wf.ArgumentError):
        net.load_state_dict({"scale": wf.ones(1)})
    with pytest.raises(wf.ArgumentTypeError):
        net.load_state_dict([1])  # type: ignore[arg-type]


def test_loading_arrays_copies_their_memory() -> None:
    layer, array = nn.Linear(2, 1, bias=False), np.ones((1, 2), np.float32)
    layer.load_state_dict({"weight": array})
    array[:] = 7
    assert layer.weight.tolist() == [[1.0, 1.0]]


def test_state_survives_copies_and_pickles(net: Net, x: wf.Tensor) -> None:
    for other in (copy.deepcopy(net), pickle.loads(pickle.dumps(net))):
        np.testing.assert_array_equal(other(x).detach().numpy(), net(x).detach().numpy())
        assert all(p.requires_grad and p.is_leaf for p in other.parameters())
        with wf.no_grad():
            other.scale.copy_(0.0)
        assert net.scale.item() == 2.0


class Tied(nn.Module):
    def __init__(self) -> None:
        self.table = nn.Embedding(4, 3)
        self.head = nn.Linear(3, 4, bias=False)
        self.head.weight = self.table.weight

    def forward(self, index: wf.Tensor) -> wf.Tensor:
        return self.head(self.table(index))


def test_tied_weights_are_one_parameter_and_stay_tied() -> None:
    net, index = Tied(), wf.tensor([0, 1])
    assert [n for n, _ in net.named_parameters()] == ["table.weight"]
    assert list(net.state_dict()) == ["table.weight", "head.weight"]
    gradient = wf.grad(lambda net: net(index).sum())(net)
    assert gradient.table.weight is gradient.head.weight
    net(index).sum().backward()
    np.testing.assert_allclose(
        gradient.head.weight.detach().numpy(), net.table.weight.grad.detach().numpy()
    )
    net.load_state_dict({"table.weight": wf.ones((4, 3))})  # one name is enough
    for other in (net, copy.deepcopy(net)):
        assert other.head.weight is other.table.weight
    assert net.head.weight.tolist()[0] == [1.0, 1.0, 1.0]
    assert net.summary(index).parameters == 12


def test_a_module_used_twice_is_one_module() -> None:
    layer = nn.Linear(2, 2)
    net = nn.Sequential(layer, layer)
    assert len(list(net.parameters())) == 2
    assert list(net.state_dict()) == ["0.weight", "0.bias", "1.weight", "1.bias"]
    rebuilt = wf.tree.map_tree(lambda p: p, net)
    assert rebuilt[0] is rebuilt[1]
    assert rebuilt[0] is not layer


def test_gradients_of_different_parameters_do_not_become_tied() -> None:
    class Sum(nn.Module):
        def __init__(self) -> None:
            self.a, self.b = nn.Parameter(wf.ones(2)), nn.Parameter(wf.ones(2))

    net = Sum()
    gradient = wf.grad(lambda net: (net.a + net.b).sum())(net)
    stepped = wf.tree.map_tree(lambda p, g: p - 0.5 * g, net, gradient)
    assert stepped.a.tolist() == stepped.b.tolist() == [0.5, 0.5]


def test_all_ways_to_a_gradient_agree(net: Net, x: wf.Tensor) -> None:
    def loss(net: Any, x: wf.Tensor) -> wf.Tensor:
        return (net(x) ** 2).sum()

    loss(net, x).backward()
    wanted = {name: p.grad.detach().numpy() for name, p in net.named_parameters()}
    net.zero_grad()
    assert all(p.grad is None for p in net.parameters())
    params = dict(net.named_parameters())
    ways = {
        "grad": dict(wf.grad(loss)(net, x).named_parameters()),
        "jit of grad": dict(wf.jit(wf.grad(loss))(net, x).named_parameters()),
        "functional_call": wf.grad(lambda p: (wf.functional_call(net, p, x) ** 2).sum())(params),
    }
    for way, found in ways.items():
        for name, array in wanted.items():
            np.testing.assert_allclose(
                found[name].detach().numpy(), array, rtol=1e-4, atol=1e-6, err_msg=f"{way}: {name}"
            )


def test_a_compiled_training_step_equals_the_eager_one(net: Net, x: wf.Tensor) -> None:
    def step(net: Any, x: wf.Tensor) -> wf.Tensor:
        loss = (net(x) ** 2).mean()
        net.zero_grad()
        loss.backward()
        with wf.no_grad():
            for parameter in net.parameters():
                parameter -= 0.1 * parameter.grad
        net.zero_grad()
        return loss

    other, compiled = copy.deepcopy(net), wf.jit(step)
    eager = [step(net, x).item() for _ in range(4)]
    assert eager[-1] < eager[0]
    np.testing.assert_allclose([compiled(other, x).item() for _ in range(4)], eager, rtol=1e-4)
    assert len(compiled.compilations) == 1
    assert other.steps.item() == net.steps.item() == 4.0


def test_a_mode_compiles_once_more_and_no_more() -> None:
    net, x = nn.Sequential(nn.Linear(2, 2), nn.Dropout(0.5)), wf.ones((1, 2))
    for compiled in (wf.jit(net), wf.jit(lambda x: net(x)), wf.jit(net.forward)):
        for _ in range(3):
            net.train()
            compiled(x)
            net.eval()
            np.testing.assert_allclose(
                compiled(x).detach().numpy(), net(x).detach().numpy(), rtol=1e-6
            )
        assert len(compiled.compilations) == 2


def test_an_ensemble_is_mapped_over_stacked_modules(x: wf.Tensor) -> None:
    nets = [nn.Linear(3, 2) for _ in range(4)]
    stacked = wf.tree.map_tree(lambda *leaves: wf.stack(list(leaves)), *nets)
    got = wf.vmap(lambda net, x: net(x), in_axes=(0, None))(stacked, x)
    np.testing.assert_allclose(
        got.detach().numpy(), np.stack([n(x).detach().numpy() for n in nets]), rtol=1e-5
    )


def test_gradients_per_example_come_from_vmap_of_functional_call(x: wf.Tensor) -> None:
    net = nn.Linear(3, 1)
    params = dict(net.named_parameters())

    def loss(params: Any, x: wf.Tensor) -> wf.Tensor:
        return wf.functional_call(net, params, x).sum()

    each = wf.vmap(wf.grad(loss), in_axes=(None, 0))(params, x)
    np.testing.assert_allclose(each["weight"][:, 0].detach().numpy(), x.detach().numpy(), rtol=1e-6)


def test_functional_call_takes_nested_names_and_modules_and_refuses_others(net: Net) -> None:
    x = wf.ones((1, 3))
    nested = {"body": {"0": {"weight": wf.zeros((4, 3))}}}
    flat = wf.functional_call(net, {"body.0.weight": wf.zeros((4, 3))}, x)
    assert wf.functional_call(net, nested, x).tolist() == flat.tolist()
    assert wf.functional_call(net, copy.deepcopy(net), x).tolist() == net(x).tolist()
    with pytest.raises(wf.NameUnknownError, match=r"body\.0\.weight"):
        wf.functional_call(net, {"body.0.wieght": wf.zeros((4, 3))}, x)
    with pytest.raises(wf.ShapeError, match="another shape"):
        wf.functional_call(net, {"scale": wf.zeros(3)}, x)
    with pytest.raises(wf.ArgumentTypeError):
        wf.functional_call(net, [wf.zeros(3)], x)


def test_hooks_run_around_forward_also_compiled_until_removed() -> None:
    layer, seen = nn.Identity(), []
    before = layer.register_forward_pre_hook(lambda module, args: (args[0] * 2,))
    after = layer.register_forward_hook(lambda module, args, out: seen.append(args) or out + 1)
    holder = nn.Sequential(nn.Linear(1, 1), layer)
    compiled, x = wf.jit(lambda net, x: net[1](x)), wf.tensor([3.0])
    assert layer(x).tolist() == compiled(holder, x).tolist() == [7.0]
    before.remove()
    assert layer(x).tolist() == compiled(holder, x).tolist() == [4.0]
    with after:
        assert len(seen) == 4
    after.remove()
    assert layer(x).tolist() == compiled(holder, x).tolist() == [3.0]


def test_conversion_keeps_the_handles(net: Net, x: wf.Tensor) -> None:
    handles = list(net.parameters())
    net.to("float64").to("cpu")
    assert all(a is b for a, b in zip(handles, net.parameters(), strict=True))
    assert {p.dtype for p in net.parameters()} == {wf.float64}
    assert net(x.astype("float64")).dtype is wf.float64
    assert nn.BatchNorm1d(2).to("float16").num_batches_tracked.dtype is wf.int64


def test_a_summary_counts_without_computing() -> None:
    net = nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten(),
        nn.Linear(8 * 16 * 16, 10),
    )  # fmt: skip
    table = net.summary(wf.spec("float32", (2, 3, 16, 16)))
    rows = {row.name: row for row in table.rows}
    assert rows["0"].parameters == 8 * 3 * 9 + 8
    assert rows["0"].operations == 2 * (2 * 8 * 16 * 16) * (3 * 9) + 2 * 8 * 16 * 16
    assert rows["4"].operations == 2 * 2 * 2048 * 10 + 20
    assert rows["0"].output == "f32[2, 8, 16, 16]"
    assert rows["0"].memory == 2 * 8 * 16 * 16 * 4
    assert table.parameters == sum(p.size for p in net.parameters())
    assert net[1].num_batches_tracked.item() == 0
    text = str(table)
    assert "Conv2d" in text
    assert f"parameters {table.parameters:,}" in text


def test_a_summary_shows_nested_and_repeated_modules() -> None:
    layer = nn.Linear(2, 2)
    outer = nn.Sequential(nn.Sequential(layer, layer), nn.LSTM(2, 3))
    table = outer.summary(wf.spec("float32", (5, 4, 2)))
    rows = {row.name: row for row in table.rows}
    assert list(rows) == ["", "0", "0.0", "1"]
    assert rows["0.0"].operations == 2 * (2 * 20 * 2 * 2 + 20 * 2)
    assert rows["0"].operations == rows["0.0"].operations
    assert rows["1"].output == "f32[5, 4, 3], f32[1, 4, 3], f32[1, 4, 3]"


def test_representation_is_nested_as_pytorchs(net: Net) -> None:
    assert repr(nn.Sequential(nn.Linear(2, 3, bias=False), nn.ReLU())) == (
        "Sequential(\n  (0): Linear(in_features=2, out_features=3, bias=False)\n  (1): ReLU()\n)"
    )
    assert "(body): Sequential(\n    (0): Linear" in repr(net)


def test_containers_are_lists_and_dictionaries() -> None:
    layers = nn.ModuleList([nn.Linear(1, 1), nn.Linear(1, 2)])
    layers.append(nn.ReLU()).insert(0, nn.Tanh())
    assert [type(m).__name__ for m in layers] == ["Tanh", "Linear", "Linear", "ReLU"]
    del layers[1]
    layers[0] = nn.Identity()
    assert [type(m).__name__ for m in layers[:2]] == ["Identity", "Linear"]
    assert list(layers.state_dict()) == ["1.weight", "1.bias"]
    with pytest.raises(wf.BoundsError):
        layers[3]
    heads = nn.ModuleDict({"a": nn.ReLU()})
    heads["b"] = nn.Tanh()
    del heads["a"]
    assert list(heads) == ["b"]
    assert len(heads) == 1
    assert "a" not in heads
    with pytest.raises(wf.NameUnknownError):
        heads["c"]
    with pytest.raises(wf.ArgumentError):
        heads["forward"] = nn.ReLU()
    with pytest.raises(wf.ArgumentTypeError):
        nn.Sequential(nn.ReLU)


def test_configuration_is_part_of_the_key(net: Net, x: wf.Tensor) -> None:
    compiled = wf.jit(lambda net, x: net(x) * len(net.sizes))
    first = compiled(net, x)
    net.sizes.append(4)
    np.testing.assert_allclose(
        compiled(net, x).detach().numpy(), first.detach().numpy() * 4 / 3, rtol=1e-5
    )
    assert len(compiled.compilations) == 2


def test_a_list_of_numbers_is_seen_to_change_where_all_else_is_fixed() -> None:
    net = nn.Sequential(nn.Linear(1, 1))
    net.sizes = [1]
    before = wf.tree.flatten(net)[1]
    assert wf.tree.flatten(net)[1] == before
    net.sizes.append(2)
    assert wf.tree.flatten(net)[1] != before


def test_mistakes_with_attributes_are_explained(net: Net) -> None:
    with pytest.raises(wf.NameUnknownError, match=r"net\.scale"):
        net.scael
    with pytest.raises(wf.ArgumentTypeError, match="would be replaced"):
        net.scale = wf.zeros(1)
    with pytest.raises(wf.UnsupportedError, match="does not say what it computes"):
        nn.Module()(1)
    with pytest.raises(wf.NameUnknownError, match="relu"):
        nn.Linear(1, 1, activation="rleu")
    assert not hasattr(net, "_private")
    with pytest.raises(wf.NameUnknownError, match=r"wf\.nn\.Linear"):
        nn.Lineer  # type: ignore[attr-defined]


def test_an_activation_of_ones_own_has_a_name() -> None:
    nn.register_activation("test_square", lambda x: x * x)
    layer = nn.Linear(1, 1, activation="test_square")
    layer.load_state_dict({"weight": wf.tensor([[3.0]]), "bias": wf.tensor([0.0])})
    assert layer(wf.tensor([2.0])).tolist() == wf.jit(layer)(wf.tensor([2.0])).tolist() == [36.0]
    with pytest.raises(wf.ArgumentTypeError):
        nn.register_activation("x", 3)


def test_apply_visits_every_module(net: Net) -> None:
    seen: list[str] = []
    assert net.apply(lambda m: seen.append(type(m).__name__)) is net
    assert seen[-1] == "Net"
    assert seen.count("Linear") == 4
