"""Searches find what can be found, and put back what they changed."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import weft as wf
from weft.train import Trainer, Trial


def squared(outputs: wf.Tensor, target: wf.Tensor) -> wf.Tensor:
    return ((outputs - target) ** 2).mean()


def data(count: int = 40) -> tuple[wf.Tensor, wf.Tensor]:
    x = wf.random.normal((count, 2), key=wf.random.key(1))
    return x, x.sum(axis=1, keepdims=True)


def build() -> Trainer:
    wf.random.seed(3)
    model = wf.nn.Linear(2, 1)
    optimizer = wf.optim.SGD(model.parameters(), lr=0.1)
    return Trainer(model, squared, optimizer, metrics=["mae"], progress=False)


SPACE: dict[str, Any] = {
    "rate": (1e-5, 1e-1, "log"), "depth": (2, 4), "drop": (0.0, 0.5), "kind": ["a", "b"],
}  # fmt: skip


def test_drawn_configurations_lie_in_the_space() -> None:
    trials = wf.train.random_search(lambda config: config["rate"], SPACE, trials=200)
    rates = np.array([trial.config["rate"] for trial in trials])
    assert 1e-5 <= rates.min() < 3e-5
    assert 3e-2 < rates.max() <= 1e-1
    assert 0.4 < np.mean(rates < 1e-3) < 0.6
    assert {trial.config["depth"] for trial in trials} == {2, 3, 4}
    assert all(0 <= trial.config["drop"] <= 0.5 for trial in trials)
    assert [trial.value for trial in trials] == sorted(trial.value for trial in trials)
    assert trials == wf.train.random_search(lambda c: c["rate"], SPACE, trials=200)


def test_nan_is_the_worst() -> None:
    found = wf.train.random_search(
        lambda config: math.nan if config["x"] else 1.0, {"x": [False, True]}, trials=8
    )
    assert found[0].value == 1.0
    assert math.isnan(found[-1].value)


def test_halving_spends_more_on_what_is_better() -> None:
    calls: list[tuple[float, int]] = []

    def objective(config: dict[str, Any], epochs: int) -> float:
        calls.append((config["x"], epochs))
        return float(config["x"])

    found = wf.train.halving_search(objective, {"x": (0.0, 1.0)}, trials=9, epochs=2, factor=3)
    assert [epochs for _, epochs in calls] == [2] * 9 + [6] * 3 + [18]
    best = min(x for x, _ in calls)
    assert found[0] == Trial({"x": best}, best, 18)
    assert [trial.epochs for trial in found] == [18, 6, 6, *[2] * 6]
    assert [trial.value for trial in found] == sorted(trial.value for trial in found)


@pytest.mark.parametrize("choice", [(1, 0), (0.0, 1.0, "log"), "abc", (1,), []])
def test_a_senseless_space_is_refused(choice: Any) -> None:
    with pytest.raises(wf.ArgumentError, match="x does not say what may be chosen"):
        wf.train.random_search(lambda config: 0.0, {"x": choice})


def test_optuna_searches_where_it_is_installed() -> None:
    pytest.importorskip("optuna")
    found = wf.train.optuna_search(lambda c: (c["rate"] - 1e-3) ** 2, SPACE, trials=15)
    assert len(found) == 15
    assert 1e-5 <= found[0].config["rate"] <= 1e-1


def test_without_optuna_the_reason_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "optuna", None)
    with pytest.raises(wf.UnsupportedError, match="not installed"):
        wf.train.optuna_search(lambda config: 0.0, {"x": [1]})


@pytest.mark.slow
@pytest.mark.parametrize("as_dataset", [False, True])
def test_cross_validation_judges_every_example_once(as_dataset: bool) -> None:
    x, y = data(17)
    judged: list[Any] = []
    original = Trainer.evaluate

    class Watching(Trainer):
        def evaluate(self, data: Any, *, batch_size: int = 32) -> dict[str, Any]:
            loader = wf.train.batches.as_loader("x", data, 100, shuffle=False, seed=None)
            judged.extend(np.asarray(next(iter(loader))[1].numpy()).ravel().tolist())
            return original(self, data, batch_size=batch_size)

    def watched() -> Trainer:
        trainer = build()
        return Watching(trainer.model, squared, trainer.optimizer, metrics=["mae"], progress=False)

    given = wf.data.ArrayDataset(x, y) if as_dataset else (x, y)
    result = wf.train.cross_validate(watched, given, k=4, epochs=30, batch_size=4)
    assert sorted(judged) == sorted(y.numpy().ravel().tolist())
    assert len(result["mae"]) == 4
    assert result["loss_mean"] == pytest.approx(np.mean(result["loss"]))
    assert result["loss_std"] == pytest.approx(np.std(result["loss"], ddof=1))
    assert result["loss_mean"] < 0.05
    with pytest.raises(wf.ArgumentError, match="so many parts"):
        wf.train.cross_validate(build, given, k=18)


def test_the_rate_finder_finds_a_rate_and_puts_everything_back(tmp_path: Path) -> None:
    trainer = build()
    trainer.optimizer.lr = wf.optim.schedules.Constant(0.3)
    before = trainer.model.state_dict()["weight"].numpy().copy()
    random = wf.random.get_state().counter.item()
    found = wf.train.find_lr(trainer, data(), low=1e-5, high=100.0, steps=60)
    assert np.array_equal(trainer.model.state_dict()["weight"].numpy(), before)
    assert wf.random.get_state().counter.item() == random
    assert trainer.optimizer.lr.item() == pytest.approx(0.3)
    assert trainer.optimizer.groups[0]["schedule"] == wf.optim.schedules.Constant(0.3)
    assert len(found.rates) < 60  # it diverges before 100
    assert 1e-3 < found.suggestion < 2.0
    assert trainer.step == 0
    assert found.plot(tmp_path / "rates.png").exists()
    trainer.optimizer.lr = found.suggestion
    history = trainer.fit(data(), epochs=10)
    assert history["loss"][-1] < 0.2 * history["loss"][0]
