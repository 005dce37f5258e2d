"""Mixtures of experts: routing, capacity, and experts that lie on several processes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import weft as wf
from weft import distributed

X = np.random.default_rng(0).normal(size=(24, 6)).astype(np.float32)
Y = np.random.default_rng(1).normal(size=(24, 6)).astype(np.float32)


def _layer(**options: Any) -> Any:
    layer = wf.nn.MixtureOfExperts(6, 5, experts=4, **options)
    generator = np.random.default_rng(2)
    with wf.no_grad():
        for parameter in layer.parameters():
            parameter.copy_(wf.tensor(generator.normal(size=parameter.shape).astype(np.float32)))
    return layer


def _by_hand(layer: Any, x: np.ndarray) -> tuple[np.ndarray, int]:
    """The layer, token by token and choice by choice; and how many choices are dropped."""
    weights = {name: p.detach().numpy().astype(np.float64) for name, p in layer.named_parameters()}
    result, dropped = np.zeros(x.shape), 0
    members = len(x) // layer.groups
    for group in range(layer.groups):
        rows = range(group * members, (group + 1) * members)
        scores = x[rows].astype(np.float64) @ weights["router"].T
        odds = np.exp(scores - scores.max(axis=1, keepdims=True))
        odds /= odds.sum(axis=1, keepdims=True)
        order = np.argsort(-odds, axis=1, kind="stable")[:, : layer.k]
        capacity = layer._capacity(members)
        used = np.zeros(layer.experts, int)
        for choice in range(layer.k):
            for place, row in enumerate(rows):
                expert = order[place, choice]
                used[expert] += 1
                if used[expert] > capacity:
                    dropped += 1
                    continue
                total = odds[place, order[place]].sum() if layer.normalize else 1.0
                hidden = x[row] @ weights["weight_in"][expert] + weights["bias_in"][expert]
                out = np.maximum(hidden, 0) @ weights["weight_out"][expert]
                result[row] += odds[place, expert] / total * (out + weights["bias_out"][expert])
    return result, dropped


@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize(
    "options",
    [
        {"capacity_factor": None}, {"capacity_factor": 0.5}, {"capacity_factor": 1.0, "groups": 3},
        {"k": 1, "normalize": False}, {"k": 4, "capacity_factor": 0.75},
    ],
)  # fmt: skip
def test_a_mixture_is_the_sum_of_what_its_experts_give(options: Any, compiled: bool) -> None:
    layer = _layer(activation="relu", **options)
    expected, dropped = _by_hand(layer, X)

    def call(layer: Any, x: wf.Tensor) -> Any:
        return layer(x, return_routing=True)

    result, routing = (wf.jit(call) if compiled else call)(layer, wf.tensor(X))
    np.testing.assert_allclose(result.detach().numpy(), expected, rtol=1e-4, atol=1e-5)
    assert routing.dropped.item() == pytest.approx(dropped / (24 * layer.k), abs=1e-6)
    assert (dropped > 0) == (layer.capacity_factor is not None)
    assert int(routing.counts.sum().item()) == 24 * layer.k


def test_the_balance_is_one_where_experts_are_used_alike_and_more_where_not() -> None:
    layer = wf.nn.MixtureOfExperts(4, 2, experts=4, k=1)
    with wf.no_grad():
        layer.router.copy_(100 * wf.eye(4))
    _, even = layer(wf.eye(4), return_routing=True)
    _, one = layer(wf.eye(4)[:1] + wf.zeros((8, 1)), return_routing=True)
    assert even.balance.item() == pytest.approx(1.0, rel=1e-5)
    assert one.balance.item() == pytest.approx(4.0, rel=1e-5)


@pytest.mark.parametrize("capacity_factor", [None, 0.5])
def test_gradients_of_a_mixture_agree_with_differences(capacity_factor: float | None) -> None:
    layer = _layer(capacity_factor=capacity_factor)

    x, weight = wf.tensor(X[:4].astype(np.float64)), layer.weight_in.detach()
    named = {name: p.detach().astype("float64") for name, p in layer.named_parameters()}

    def g(x: wf.Tensor, weight: wf.Tensor, router: wf.Tensor) -> wf.Tensor:
        given = {**named, "weight_in": weight, "router": router}
        return wf.sin(wf.functional_call(layer, given, x)).sum()

    wf.testing.check_grads(
        g, (x, weight.astype("float64"), named["router"]), order=1, modes=("reverse",)
    )


def _loss(model: Any, x: wf.Tensor, y: wf.Tensor) -> wf.Tensor:
    outputs, routing = model(x, return_routing=True)
    return ((outputs + x - y) ** 2).mean() + 0.01 * routing.balance


@pytest.mark.slow
@pytest.mark.parametrize(("size", "capacity_factor"), [(2, 0.5), (4, 1.0)])
def test_experts_on_processes_compute_and_train_as_on_one(
    size: int, capacity_factor: float | None
) -> None:
    def train(layer: Any, optimizer: Any, x: np.ndarray, y: np.ndarray) -> list[float]:
        step = wf.jit(lambda m, o, x, y: (o.minimize(loss := _loss(m, x, y)), loss)[1])
        return [step(layer, optimizer, wf.tensor(x), wf.tensor(y)).item() for _ in range(3)]

    plain = _layer(capacity_factor=capacity_factor, groups=size)
    optimizer = wf.optim.AdamW(plain.parameters(), lr=0.05, clip_norm=0.1)
    expected_losses = train(plain, optimizer, X, Y)
    expected = {name: p.detach().numpy() for name, p in plain.named_parameters()}

    def run_rank() -> tuple[list[float], dict[str, np.ndarray], tuple[int, ...], Any]:
        layer = distributed.shard_experts(_layer(capacity_factor=capacity_factor))
        shape = layer.weight_in.shape
        optimizer = wf.optim.AdamW(layer.parameters(), lr=0.05, clip_norm=0.1)
        distributed.data_parallel(optimizer)
        own = slice(24 // size * distributed.rank(), 24 // size * (distributed.rank() + 1))
        losses = train(layer, optimizer, X[own], Y[own])
        whole = {name: v.numpy() for name, v in distributed.whole_state(layer).items()}
        return losses, whole, shape, optimizer.state_dict()

    found = distributed.run_threads(run_rank, size)
    assert found[0][2] == (4 // size, 6, 5)
    mean = np.mean([losses for losses, *_ in found], axis=0)
    np.testing.assert_allclose(mean, expected_losses, rtol=1e-5)
    saved = optimizer.state_dict()
    for _, whole, _, state in found:
        for name, value in expected.items():
            np.testing.assert_allclose(whole[name], value, rtol=1e-4, atol=1e-5, err_msg=name)
        for name, value in saved.items():
            if isinstance(value, wf.Tensor):
                assert state[name].shape == value.shape


@pytest.mark.slow
@pytest.mark.parametrize("beside", ["expert", "stage"])
def test_experts_beside_data_parallel_and_in_stages_train_as_on_one_process(
    beside: str, tmp_path: Any
) -> None:
    """Half of the experts on each process: copied along data, or divided along it in a stage."""

    def fit(folder: Any, strategy: Any) -> tuple[list[float], dict[str, np.ndarray]]:
        model = wf.nn.Sequential(_layer(capacity_factor=None), wf.nn.Linear(6, 6))
        with wf.no_grad():
            model[1].weight.copy_(wf.eye(6))
            model[1].bias.copy_(wf.zeros(6))
        if strategy is not None:
            places = ("expert", "data") if beside == "expert" else ("data",)
            distributed.shard_experts(model, *places)
            assert model[0].weight_in.shape == (2, 6, 5)
        optimizer = wf.optim.AdamW(model.parameters(), lr=0.01, clip_norm=0.1)
        trainer = wf.train.Trainer(
            model, "mse_loss", optimizer, strategy=strategy and strategy(), progress=False, seed=0,
            checkpoint_folder=folder,
        )  # fmt: skip
        history = trainer.fit((X[:22], Y[:22]), 2, batch_size=8)
        whole = trainer.strategy.model_state(model)
        return history["loss"], {name: value.numpy() for name, value in whole.items()}

    def find_strategy() -> Any:
        staged = beside == "stage"
        return wf.train.PipelineStrategy(2, micro_batches=2) if staged else "data"

    mesh = {"data": 2, beside: 2}
    found = distributed.run_threads(lambda: fit(tmp_path / "mesh", find_strategy), 4, mesh)
    losses, expected = fit(tmp_path / "one", None)
    for own_losses, whole in found:
        np.testing.assert_allclose(own_losses, losses, rtol=1e-5)
        for name, value in expected.items():
            np.testing.assert_allclose(whole[name], value, rtol=1e-3, atol=1e-4, err_msg=name)


def test_experts_with_copies_are_not_split_further() -> None:
    mesh = {"data": 2, "expert": 2}

    def refuse() -> None:
        layer = distributed.shard_experts(_layer(), "expert", copies="data")
        with pytest.raises(wf.UnsupportedError, match="not split further"):
            distributed.data_parallel(wf.optim.Adam(layer.parameters()), zero=3, mesh_axis="world")

    distributed.run_threads(refuse, 4, mesh)


@pytest.mark.slow
def test_a_trainers_checkpoint_of_divided_experts_is_read_by_one_process(tmp_path: Any) -> None:
    def fit(folder: Any, strategy: str | None, epochs: int) -> dict[str, np.ndarray]:
        model = wf.nn.Sequential(_layer(capacity_factor=None), wf.nn.Linear(6, 6))
        with wf.no_grad():
            model[1].weight.copy_(wf.eye(6))
            model[1].bias.copy_(wf.zeros(6))
        if strategy is not None:
            distributed.shard_experts(model)
        trainer = wf.train.Trainer(
            model, "mse_loss", wf.optim.AdamW(model.parameters(), lr=0.01), strategy=strategy,
            progress=False, seed=0, checkpoint_folder=folder,
        )  # fmt: skip
        trainer.fit((X, Y), epochs, batch_size=8, resume=epochs > 1)
        return {name: v.numpy() for name, v in trainer.strategy.model_state(model).items()}

    distributed.run_threads(lambda: fit(tmp_path / "two", "data", 1), 2)
    resumed = fit(tmp_path / "two", None, 2)
    fit(tmp_path / "one", None, 1)
    expected = fit(tmp_path / "one", None, 2)
    for name, value in expected.items():
        np.testing.assert_allclose(resumed[name], value, rtol=1e-3, atol=1e-4, err_msg=name)


@pytest.mark.parametrize("strategy", ["data", "zero3", "pipeline"])
def test_divided_experts_are_evaluated_on_any_number_of_batches(strategy: str) -> None:
    """They exchange rows, so all processes compute as many batches, each of as many rows."""

    def evaluate() -> tuple[float, float]:
        model = wf.nn.Sequential(_layer(capacity_factor=None), wf.nn.Tanh())
        distributed.shard_experts(model)
        optimizer = wf.optim.SGD(dict(model.named_parameters()), lr=0.1)
        chosen = wf.train.PipelineStrategy(1) if strategy == "pipeline" else strategy
        trainer = wf.train.Trainer(
            model, "mse_loss", optimizer, strategy=chosen, metrics=["mae"], progress=False
        )
        numbers = trainer.evaluate((X[:23], Y[:23]), batch_size=6)  # three rounds: 6 6, 6, 5
        return numbers["loss"], numbers["mae"]

    alone = distributed.run_threads(evaluate, 1)[0]
    for found in distributed.run_threads(evaluate, 2):
        np.testing.assert_allclose(found, alone, rtol=1e-5)


def test_an_optimiser_that_was_made_before_experts_were_divided_is_refused() -> None:
    """With one expert each its state would spread the parameter over those of all."""

    def run_rank() -> None:
        layer = wf.nn.MixtureOfExperts(6, 5, experts=2)
        optimizer = wf.optim.AdamW(layer.parameters())
        distributed.shard_experts(layer)
        distributed.data_parallel(optimizer)

    with pytest.raises(wf.ArgumentError, match="made before its parameters were split"):
        distributed.run_threads(run_rank, 2)


def test_mixtures_that_cannot_be_are_refused() -> None:
    with pytest.raises(wf.ArgumentError, match="no sizes of a mixture"):
        wf.nn.MixtureOfExperts(4, 4, experts=2, k=3)
    with pytest.raises(wf.ShapeError, match="do not divide into groups"):
        _layer(groups=5)(wf.tensor(X))

    def run_rank() -> None:
        with pytest.raises(wf.ShapeError, match="do not divide among the processes"):
            distributed.shard_experts(_layer())
        layer = distributed.shard_experts(wf.nn.MixtureOfExperts(4, 4, experts=3))
        with pytest.raises(wf.ArgumentError, match="another level"):
            distributed.data_parallel(wf.optim.Adam(layer.parameters()), zero=1)

    distributed.run_threads(run_rank, 3)
