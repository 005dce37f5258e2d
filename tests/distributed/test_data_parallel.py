"""Data parallel training: processes with their shares make the update of the whole batch."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import weft as wf
from weft import distributed
from weft.collectives import bound_groups
from weft.distributed import sharing
from weft.distributed.engines.threads import ThreadEngine, run_threads
from weft.distributed.group import Group, Watch
from weft.models import GPT, GPTConfig

GENERATOR = np.random.default_rng(0)
X = GENERATOR.normal(size=(8, 5)).astype(np.float32)
Y = GENERATOR.normal(size=(8, 3)).astype(np.float32)


def _model() -> Any:
    """A model whose weights do not depend on the generator, which threads share."""
    model = wf.nn.Sequential(wf.nn.Linear(5, 7), wf.nn.Tanh(), wf.nn.Linear(7, 3))
    generator = np.random.default_rng(1)
    with wf.no_grad():
        for parameter in model.parameters():
            parameter.copy_(wf.tensor(generator.normal(size=parameter.shape).astype(np.float32)))
    return model


def _step(model: Any, optimizer: Any, x: wf.Tensor, y: wf.Tensor) -> wf.Tensor:
    loss = ((model(x) - y) ** 2).mean()
    optimizer.minimize(loss)
    return loss


def _train(x: np.ndarray, y: np.ndarray, share: Any = None, **options: Any) -> list[np.ndarray]:
    model = _model()
    optimizer = wf.optim.AdamW(model.parameters(), lr=0.05, **options)
    if share is not None:
        optimizer = share(optimizer)
    step = wf.jit(_step)
    for _ in range(3):
        step(model, optimizer, wf.tensor(x), wf.tensor(y))
    return [parameter.detach().numpy().copy() for parameter in model.parameters()]


@pytest.mark.parametrize(("zero", "clip_norm"), [(0, None), (1, 0.1), (2, None), (2, 0.1)])
def test_two_processes_make_the_updates_of_the_whole_batch(
    zero: int, clip_norm: float | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sharing, "BUCKET", 100)  # several buckets, and a gradient beyond one

    def run_rank(engine: ThreadEngine) -> list[np.ndarray]:
        own = slice(4 * engine.rank, 4 * engine.rank + 4)
        with bound_groups({"data": Group(engine, "data", Watch(engine.rank, 20.0))}):
            share = lambda optimizer: distributed.data_parallel(optimizer, zero=zero)  # noqa: E731
            return _train(X[own], Y[own], share, clip_norm=clip_norm)

    expected = _train(X, Y, clip_norm=clip_norm)
    first, second = run_threads(run_rank, 2)
    for one, other, whole in zip(first, second, expected, strict=True):
        np.testing.assert_array_equal(one, other)
        np.testing.assert_allclose(one, whole, rtol=1e-5, atol=1e-6)


def test_large_gradients_travel_alone_beside_a_bucket_of_small_ones(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(sharing, "BUCKET", 48)
    monkeypatch.setattr(sharing, "ALONE", 40)
    sizes = [3, 10, 4, 12, 5, 6]
    tensors = [wf.zeros(size) for size in sizes]
    assert list(sharing._buckets(tensors)) == [[1], [3], [0, 2, 4], [5]]

    def run_rank(engine: ThreadEngine) -> list[list[float]]:
        with bound_groups({"data": Group(engine, "data", Watch(engine.rank, 20.0))}):
            weights = [wf.full((size,), float(size)).requires_grad_() for size in sizes]
            optimizer = distributed.data_parallel(wf.optim.SGD(weights, lr=1.0), zero=1)
            optimizer.minimize(sum((weight.sum() for weight in weights), wf.tensor(0.0)))
            return [weight.tolist() for weight in weights]

    assert run_threads(run_rank, 2) == [[[size - 1.0] * size for size in sizes]] * 2


def test_the_update_itself_divides_the_sum_of_a_large_gradient() -> None:
    """No launch stands between a sum and the update that reads it."""

    def run_rank(engine: ThreadEngine) -> list[tuple[str, list[tuple[int, ...]]]]:
        with bound_groups({"data": Group(engine, "data", Watch(engine.rank, 20.0))}):
            weight = wf.ones((64, 64, 3, 3)).requires_grad_()
            x = wf.full((64, 64, 3, 3), 1.0 + engine.rank)
            optimizer = distributed.data_parallel(wf.optim.SGD([weight], lr=1.0, momentum=0.9))

            @wf.jit
            def step(weight: wf.Tensor, optimizer: Any, x: wf.Tensor) -> None:
                optimizer.minimize((weight * x).sum())

            step(weight, optimizer, x)
            assert weight[0, 0, 0].tolist() == [-0.5] * 3
            launches = step.explain(weight, optimizer, x).plan.launches
            return [(each.name, [value.type.shape for value in each.writes]) for each in launches]

    launches, _ = run_threads(run_rank, 2)
    place = next(i for i, (name, _) in enumerate(launches) if name == "all_reduce_sum")
    written = [[shape for shape in shapes if shape] for _, shapes in launches[place + 1 :]]
    assert [shapes for shapes in written if shapes] == [[(64, 64, 3, 3)] * 2]


def test_the_state_of_a_split_optimizer_is_a_part_of_each_parameter() -> None:
    def run_rank(engine: ThreadEngine) -> list[tuple[int, ...]]:
        with bound_groups({"data": Group(engine, "data", Watch(engine.rank, 20.0))}):
            weight = wf.tensor(np.ones((3, 5), np.float32), requires_grad=True)
            optimizer = distributed.data_parallel(wf.optim.Adam([weight]), zero=1)
            return [value.shape for value in optimizer.state[0].values()]

    assert run_threads(run_rank, 2) == [[(8,), (8,)]] * 2


def test_parameters_begin_as_those_of_the_first_process() -> None:
    def run_rank(engine: ThreadEngine) -> list[float]:
        with bound_groups({"data": Group(engine, "data", Watch(engine.rank, 20.0))}):
            weight = wf.tensor([float(engine.rank + 7)], requires_grad=True)
            distributed.data_parallel(wf.optim.SGD([weight], lr=0.1))
            return weight.tolist()

    assert run_threads(run_rank, 3) == [[7.0]] * 3


def test_optimizers_that_cannot_be_split_are_refused() -> None:
    weight = wf.tensor(np.ones((3, 5), np.float32), requires_grad=True)
    with pytest.raises(wf.UnsupportedError, match="cannot be split"):
        distributed.data_parallel(wf.optim.Lamb([weight]), zero=1)
    with pytest.raises(wf.ArgumentError, match="no such level"):
        distributed.data_parallel(wf.optim.SGD([weight]), zero=4)


def _refusals(run: Any) -> set[str]:
    """What two processes are told that run something; each of them must be refused."""

    def run_rank() -> str:
        with pytest.raises(wf.ProcessError) as caught:
            run(distributed.rank())
        return f"{caught.value.problem}; {caught.value.got}"

    return set(distributed.run_threads(run_rank, 2))


def test_processes_with_other_optimizers_are_refused() -> None:
    """Otherwise their weights would drift apart, and nobody would say so."""
    weight = lambda: wf.ones(3).requires_grad_()  # noqa: E731
    share = distributed.data_parallel
    (said,) = _refusals(lambda rank: share(wf.optim.SGD([weight()], lr=0.1 + rank)))
    assert "disagree on the optimiser: rank 1 differs" in said
    assert "lr=0.1" in said
    assert "lr=1.1" in said
    (said,) = _refusals(lambda rank: share(wf.optim.SGD([weight()]), zero=rank))
    assert "disagree on what is shared" in said
    (said,) = _refusals(lambda rank: share(wf.optim.SGD([wf.ones(3 + rank).requires_grad_()])))
    assert "disagree on the parameters" in said
    assert "rank 1: f32[4]" in said
    (said,) = _refusals(lambda rank: distributed.LocalSteps(wf.optim.SGD([weight()]), 2 + rank))
    assert "every=3" in said


@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("zero", [0, 1, 2])
def test_gradients_of_other_parameters_are_not_added(zero: int, compiled: bool) -> None:
    """One process has a gradient of one parameter, the other of another one of the same size."""

    def run(rank: int) -> None:
        weights = [wf.ones(3).requires_grad_() for _ in range(3)]
        optimizer = distributed.data_parallel(wf.optim.SGD(weights, lr=1.0), zero=zero)

        def step(weights: Any, optimizer: Any) -> None:
            optimizer.minimize((weights[rank] * weights[2]).sum())

        (wf.jit(step) if compiled else step)(weights, optimizer)

    (said,) = _refusals(run)
    assert "rank 1 differs" in said
    assert "gradients 0, 2" in said
    assert "gradients 1-2" in said


@pytest.mark.parametrize("part", ["the model", "the loss", "the trainer's settings", "the data"])
def test_a_trainer_names_the_process_that_would_train_something_else(part: str) -> None:
    def fit(rank: int) -> None:
        is_other = rank == 1
        units = wf.nn.ReLU() if is_other and part == "the model" else wf.nn.Tanh()
        model = wf.nn.Sequential(wf.nn.Linear(5, 3), units)
        loss = "l1_loss" if is_other and part == "the loss" else "mse_loss"
        accumulate = 2 if is_other and part == "the trainer's settings" else 1
        seed = 1 if is_other and part == "the data" else 0
        dataset = wf.data.ArrayDataset(X, Y)
        loader = wf.data.DataLoader(dataset, batch_size=4, shuffle=True, seed=seed)
        optimizer = wf.optim.SGD(model.parameters(), lr=0.1)
        trainer = wf.train.Trainer(
            model, loss, optimizer, strategy="data", accumulate=accumulate, progress=False
        )
        trainer.fit(loader)

    (said,) = _refusals(fit)
    assert f"processes disagree on {part}: rank 1 differs" in said


def _fit(strategy: Any, folder: Any = None, **options: Any) -> dict[str, Any]:
    """Train by the trainer, with a last batch that does not split evenly."""
    model = _model()
    optimizer = wf.optim.AdamW(model.parameters(), lr=0.05)
    trainer = wf.train.Trainer(
        model, wf.nn.functional.mse_loss, optimizer, metrics=["mae", "r2"], strategy=strategy,
        seed=3, progress=False, checkpoint_folder=folder, **options,
    )  # fmt: skip
    newest = None if folder is None else trainer.checkpoint_folder.latest()
    history = trainer.fit(
        (X[:7], Y[:7]), 2 if newest is None else 3, (X, Y), batch_size=4, resume=newest is not None
    )
    whole = trainer.strategy.model_state(model).values()
    weights = [value.detach().numpy().copy() for value in whole]
    return {"weights": weights, "row": history.rows[-1], "state": optimizer.state_dict()}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("strategy", "options"),
    [
        ("data", {}),
        ("zero1", {"accumulate": 2}),
        ("zero2", {}),
        ("zero3", {}),
        ("zero3", {"accumulate": 2, "clip_norm": 0.5}),
    ],
)
def test_a_trainer_of_two_processes_does_what_one_does(
    strategy: str, options: dict[str, Any]
) -> None:
    expected = _fit(None, **options)
    for found in distributed.run_threads(lambda: _fit(strategy, **options), 2):
        for one, other in zip(found["weights"], expected["weights"], strict=True):
            np.testing.assert_allclose(one, other, rtol=2e-5, atol=2e-6)
        for name in ("loss", "val_loss", "val_mae", "val_r2", "mae", "r2"):
            np.testing.assert_allclose(found["row"][name], expected["row"][name], rtol=1e-4)
        for name, value in expected["state"].items():
            if isinstance(value, wf.Tensor):
                np.testing.assert_allclose(
                    found["state"][name].numpy(), value.numpy(), rtol=1e-4, atol=1e-6
                )


@pytest.mark.parametrize(("strategy", "processes"), [("data", 2), ("zero2", 3), ("data", 6)])
def test_a_batch_with_fewer_rows_than_processes_counts_as_in_one_process(
    strategy: str, processes: int
) -> None:
    def fit(strategy: str | None) -> tuple[list[np.ndarray], dict[str, Any]]:
        model = _model()
        trainer = wf.train.Trainer(
            model, wf.nn.functional.mse_loss, wf.optim.AdamW(model.parameters(), lr=0.05),
            metrics=["mae"], strategy=strategy, seed=3, progress=False, accumulate=2,
        )  # fmt: skip
        history = trainer.fit((X[:5], Y[:5]), 3, batch_size=4)  # batches of 4 and of 1
        return [p.detach().numpy().copy() for p in model.parameters()], history.rows[-1]

    weights, row = fit(None)
    for found, found_row in distributed.run_threads(lambda: fit(strategy), processes):
        for one, other in zip(found, weights, strict=True):
            np.testing.assert_allclose(one, other, rtol=2e-5, atol=2e-6)
        for name in ("loss", "mae"):
            np.testing.assert_allclose(found_row[name], row[name], rtol=1e-4)


@pytest.mark.slow
def test_a_checkpoint_of_two_processes_is_resumed_by_one_and_by_three(tmp_path: Any) -> None:
    folders = [tmp_path / "two", tmp_path / "copy"]
    for folder in folders:
        distributed.run_threads(lambda folder=folder: _fit("zero2", folder), 2)

    def go_on(folder: Any, strategy: str | None) -> list[np.ndarray]:
        weights: list[np.ndarray] = _fit(strategy, folder, checkpoint_every=None)["weights"]
        return weights

    alone = go_on(folders[0], None)
    together = distributed.run_threads(lambda: go_on(folders[1], "zero3"), 3)
    for weights in together:
        for one, other in zip(weights, alone, strict=True):
            np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-6)


def test_a_loss_that_is_no_number_on_one_process_is_told_of_on_all() -> None:
    def run_rank() -> str:
        model = _model()
        trainer = wf.train.Trainer(
            model,
            wf.nn.functional.mse_loss,
            wf.optim.SGD(model.parameters(), lr=0.1),
            strategy="data",
            progress=False,
        )
        x = X.copy()
        x[1] = np.nan  # which is in the part of the second process
        loader = wf.data.DataLoader(wf.data.ArrayDataset(x, Y), batch_size=4)
        with pytest.raises(wf.NanError) as caught:
            trainer.fit(loader)
        return caught.value.problem

    assert (
        distributed.run_threads(run_rank, 2)
        == ["the loss of batch 0 of epoch 1 is NaN on rank 1"] * 2
    )


def test_an_unknown_strategy_is_refused() -> None:
    model = wf.nn.Linear(5, 3)
    with pytest.raises(wf.ArgumentError, match="no such strategy"):
        wf.train.Trainer(model, None, wf.optim.SGD(model.parameters()), strategy="luck")


def _train_split(x: np.ndarray, y: np.ndarray, clip_norm: float | None) -> np.ndarray:
    """Train with the parameters of two of three layers split; what the model then gives."""
    whole = _model()
    blocks = [distributed.shard_parameters(whole[0]), whole[1], whole[2]]
    model = wf.nn.Sequential(*blocks)
    assert [p.shape for p in model.parameters()] == [(18,), (4,), (3, 7), (3,)]
    optimizer = wf.optim.AdamW(model.parameters(), lr=0.05, clip_norm=clip_norm)
    distributed.data_parallel(optimizer, zero=3)
    assert [value.shape for value in optimizer.state[0].values()] == [(18,), (18,)]
    step, batch = wf.jit(_step), (wf.tensor(x), wf.tensor(y))
    for _ in range(3):
        step(model, optimizer, *batch)
    names = [node.primitive.name for node in step.graph(model, optimizer, *batch).nodes]
    assert names.count("reduce_scatter") == 2
    assert names.count("all_gather") == 4  # once more on the way back
    outputs: np.ndarray = model(wf.tensor(X)).detach().numpy()
    return outputs


@pytest.mark.parametrize("clip_norm", [None, 0.1])
def test_split_parameters_are_trained_as_whole_ones(clip_norm: float | None) -> None:
    model = _model()
    optimizer = wf.optim.AdamW(model.parameters(), lr=0.05, clip_norm=clip_norm)
    for _ in range(3):
        _step(model, optimizer, wf.tensor(X), wf.tensor(Y))
    expected = model(wf.tensor(X)).detach().numpy()

    def run_rank() -> np.ndarray:
        own = slice(4 * distributed.rank(), 4 * distributed.rank() + 4)
        return _train_split(X[own], Y[own], clip_norm)

    for found in distributed.run_threads(run_rank, 2):
        np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)


def test_split_parameters_need_their_level() -> None:
    def run_rank() -> None:
        model = distributed.shard_parameters(wf.nn.Linear(3, 2))
        with pytest.raises(wf.ArgumentError, match="another level"):
            distributed.data_parallel(wf.optim.SGD(model.parameters()), zero=1)

    distributed.run_threads(run_rank, 2)


# --- local steps ---------------------------------------------------------------------------------


def test_local_steps_are_those_of_each_process_and_then_their_mean() -> None:
    def train(x: np.ndarray, y: np.ndarray, steps: int) -> tuple[Any, Any]:
        model = _model()
        optimizer = wf.optim.AdamW(model.parameters(), lr=0.05)
        for _ in range(steps):
            _step(model, optimizer, wf.tensor(x), wf.tensor(y))
        return model, optimizer

    own = [train(X[4 * rank : 4 * rank + 4], Y[4 * rank : 4 * rank + 4], 3) for rank in range(2)]
    expected = [
        (first.detach().numpy() + second.detach().numpy()) / 2
        for first, second in zip(own[0][0].parameters(), own[1][0].parameters(), strict=True)
    ]

    def run_rank() -> tuple[list[np.ndarray], list[bool], list[np.ndarray]]:
        rank = distributed.rank()
        model = _model()
        optimizer = wf.optim.AdamW(model.parameters(), lr=0.05)
        local = distributed.LocalSteps(optimizer, every=3)
        x, y = (wf.tensor(part[4 * rank : 4 * rank + 4]) for part in (X, Y))
        taken = []
        for _ in range(3):
            _step(model, optimizer, x, y)
            taken.append(local.step())
        slots = [value.numpy() for state in optimizer.state for value in state.values()]
        return [p.detach().numpy() for p in model.parameters()], taken, slots

    first, second = distributed.run_threads(run_rank, 2)
    assert first[1] == [False, False, True]
    for one, other, value in zip(first[0], second[0], expected, strict=True):
        np.testing.assert_array_equal(one, other)
        np.testing.assert_allclose(one, value, rtol=1e-5, atol=1e-6)
    for one, other in zip(first[2], second[2], strict=True):
        np.testing.assert_array_equal(one, other)


def test_a_trainer_with_local_steps_ends_with_one_model(tmp_path: Any) -> None:
    found = distributed.run_threads(
        lambda: _fit(wf.train.LocalStrategy(every=3), tmp_path / "run", accumulate=2), 2
    )
    for one, other in zip(found[0]["weights"], found[1]["weights"], strict=True):
        np.testing.assert_array_equal(one, other)
    assert found[0]["row"]["val_loss"] == found[1]["row"]["val_loss"]
    with pytest.raises(wf.ArgumentError, match="no number of steps"):
        distributed.run_threads(lambda: _fit(wf.train.LocalStrategy(every=0)), 2)


def test_local_steps_need_gradients_that_are_not_shared() -> None:
    def run_rank() -> None:
        weight = wf.tensor([1.0], requires_grad=True)
        optimizer = distributed.data_parallel(wf.optim.SGD([weight], lr=0.1))
        with pytest.raises(wf.ArgumentError, match="shares its gradients already"):
            distributed.LocalSteps(optimizer, every=2)

    distributed.run_threads(run_rank, 2)


@pytest.mark.slow
def test_a_gpt_with_split_parameters_is_trained_as_a_whole_one() -> None:
    """Its blocks are split one by one, its embeddings, which the head uses too, as one."""
    tokens = np.random.default_rng(3).integers(0, 11, (4, 6))

    def train(is_split: bool, own: slice) -> dict[str, np.ndarray]:
        net = GPT(GPTConfig(vocabulary=11, width=8, layers=2, heads=2, context=8))
        generator = np.random.default_rng(4)
        with wf.no_grad():
            for parameter in net.parameters():
                values = 0.3 * generator.normal(size=parameter.shape)
                parameter.copy_(wf.tensor(values.astype(np.float32)))
        optimizer = wf.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
        called = distributed.shard_model(net, optimizer) if is_split else net
        if is_split:
            distributed.data_parallel(optimizer, zero=3)
        x = wf.tensor(tokens[own])
        for _ in range(2):
            scores = called(x)[:, :-1].reshape(-1, 11)
            optimizer.minimize(wf.nn.functional.cross_entropy(scores, x[:, 1:].reshape(-1)))
        state = distributed.whole_state(net) if is_split else net.state_dict()
        return {name: value.detach().numpy() for name, value in state.items()}

    expected = train(False, slice(None))

    def run_rank() -> dict[str, np.ndarray]:
        return train(True, slice(2 * distributed.rank(), 2 * distributed.rank() + 2))

    for found in distributed.run_threads(run_rank, 2):
        for name, value in expected.items():
            np.testing.assert_allclose(found[name], value, rtol=1e-3, atol=2e-5, err_msg=name)


@pytest.mark.parametrize("other", [{"seed": 1}, {"batch_size": 3}, {"length": 5}], ids=str)
def test_a_loader_that_is_another_on_one_process_is_refused(other: dict[str, int]) -> None:
    """Some rows would be read twice, and others never."""

    def read(different: dict[str, int]) -> list[int]:
        own = {"seed": 0, "batch_size": 2, "length": 8} | (different if distributed.rank() else {})
        data = wf.data.ArrayDataset(np.arange(own["length"]))
        loader = wf.data.DataLoader(data, own["batch_size"], shuffle=True, seed=own["seed"])
        return [int(row) for batch in distributed.share_loader(loader) for row in batch.tolist()]

    with pytest.raises(wf.ProcessError, match="disagree on the data: rank 1 differs"):
        distributed.run_threads(lambda: read(other), 2)
    first, second = distributed.run_threads(lambda: read({}), 2)
    assert sorted(first + second) == list(range(8))


def test_a_training_ends_where_one_process_asks_for_it() -> None:
    """As by its clock; the others would wait for it."""

    class Clock(wf.train.Callback):
        def on_step_end(self, trainer: Any) -> None:
            if distributed.rank() == 1 and trainer.step == 2:
                trainer.stop("time is over")

    def run_rank() -> tuple[int, str]:
        model = _model()
        trainer = wf.train.Trainer(
            model, "mse_loss", wf.optim.SGD(model.parameters(), lr=0.1), strategy="data",
            callbacks=[Clock()], progress=False,
        )  # fmt: skip
        trainer.fit((X, Y), epochs=3, batch_size=2)
        return trainer.epoch, trainer.stopped

    assert distributed.run_threads(run_rank, 2) == [(1, "time is over")] * 2


def test_a_validation_on_one_process_alone_is_refused() -> None:
    def run_rank() -> None:
        model = _model()
        optimizer = wf.optim.SGD(model.parameters(), lr=0.1)
        trainer = wf.train.Trainer(model, "mse_loss", optimizer, strategy="data", progress=False)
        trainer.fit((X, Y), validation=None if distributed.rank() else (X, Y))

    with pytest.raises(wf.ProcessError, match="disagree on the validation: rank 1 differs"):
        distributed.run_threads(run_rank, 2)


@pytest.mark.parametrize("way", ["eager", "jit"])
def test_processes_that_gather_another_modules_parts_are_told_so(way: str) -> None:
    """Of modules of the same shapes one would compute with parts of both."""

    def run_rank() -> None:
        layers = [distributed.shard_parameters(wf.nn.Linear(4, 4)) for _ in range(2)]
        first, second = layers[:: -1 if distributed.rank() else 1]
        call = lambda first, second: second(first(wf.ones((2, 4))))  # noqa: E731
        (wf.jit(call) if way == "jit" else call)(first, second)

    with pytest.raises(wf.ProcessError, match="rank 1 differs") as caught:
        distributed.run_threads(run_rank, 2)
    assert "part 1.0" in caught.value.got
    assert "part 2.0" in caught.value.got


def test_recovery_refuses_state_that_would_be_lost() -> None:
    def refuse(make: Any) -> str:
        with pytest.raises(wf.UnsupportedError) as caught:
            make()
        return caught.value.problem

    def run_rank() -> None:
        split = _model()
        trainer = lambda model, strategy: wf.train.Trainer(  # noqa: E731
            model, "mse_loss", wf.optim.AdamW(model.parameters()), strategy=strategy, recover=True
        )
        assert "lost process had a part" in refuse(lambda: trainer(split, "zero2"))
        assert "does not go on" in refuse(lambda: trainer(_model(), wf.train.LocalStrategy(2)))
        experts = distributed.shard_experts(wf.nn.MixtureOfExperts(5, 8, experts=2))
        assert "lost process had a part" in refuse(lambda: trainer(experts, "data"))
        mesh = wf.train.MeshStrategy(data=2)
        assert "lost process had a part" in refuse(lambda: trainer(_model(), mesh))
        loader = wf.data.DataLoader(wf.data.ArrayDataset(X, Y), batch_size=2)
        recovery = lambda optimizer: distributed.Recovery(split, optimizer, loader)  # noqa: E731
        plain = wf.optim.AdamW(split.parameters())
        assert "is not shared" in refuse(lambda: recovery(plain))
        distributed.bind_axes({"stage": 2})
        layers = wf.nn.Sequential(wf.nn.Linear(5, 4), wf.nn.Linear(4, 3))
        pipeline = distributed.Pipeline(layers, wf.nn.functional.mse_loss)
        stages = pipeline.share(wf.optim.AdamW(pipeline.parameters()))
        assert "with other stages" in refuse(lambda: recovery(stages))

    distributed.run_threads(run_rank, 2)


@pytest.mark.parametrize("strategy", ["data", "pipeline"])
def test_metrics_of_an_epoch_that_is_resumed_count_every_row_once(
    strategy: str, tmp_path: Path
) -> None:
    """A checkpoint in the middle of an epoch holds the counts of all processes, for one of them."""

    class Stop(wf.train.Callback):
        def on_step_end(self, trainer: Any) -> None:
            if trainer.step == 2 and not trainer.history.rows and not is_resumed:
                raise KeyboardInterrupt

    def fit(count: int, folder: Path) -> Any:
        model = _model()
        chosen = wf.train.PipelineStrategy(count) if strategy == "pipeline" else strategy
        loader = wf.data.DataLoader(wf.data.ArrayDataset(X, Y), batch_size=2)
        trainer = wf.train.Trainer(
            model, "mse_loss", wf.optim.SGD(model.parameters(), lr=0.1), strategy=chosen,
            metrics=["mae", "r2"], checkpoint_folder=folder, checkpoint_every=1,
            callbacks=[Stop()], progress=False,
        )  # fmt: skip
        try:
            history = trainer.fit(loader, resume=is_resumed)
        except KeyboardInterrupt:
            return None
        return [float(history[name][0]) for name in ("loss", "mae", "r2")]

    is_resumed = True
    (expected,) = distributed.run_threads(lambda: fit(1, tmp_path / "alone"), 1)
    is_resumed = False
    distributed.run_threads(lambda: fit(2, tmp_path / "two"), 2)
    is_resumed = True
    for numbers in distributed.run_threads(lambda: fit(2, tmp_path / "two"), 2):
        np.testing.assert_allclose(numbers, expected, rtol=1e-5)
