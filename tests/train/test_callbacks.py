"""Callbacks, logs and progress: each does what it says, also in a run that was resumed."""

from __future__ import annotations

import csv
import io
import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import weft as wf
from weft.train import Trainer
from weft.train.callbacks import HOOKS


def squared(outputs: wf.Tensor, target: wf.Tensor) -> wf.Tensor:
    return ((outputs - target) ** 2).mean()


def data(count: int = 16) -> tuple[wf.Tensor, wf.Tensor]:
    x = wf.random.normal((count, 2), key=wf.random.key(1))
    return x, x.sum(axis=1, keepdims=True)


def trainer_of(*callbacks: Any, lr: float = 0.1, **options: Any) -> Trainer:
    wf.random.seed(3)
    model = wf.nn.Linear(2, 1)
    optimizer = wf.optim.SGD(model.parameters(), lr=lr)
    options = {"progress": False, **options}
    return Trainer(model, squared, optimizer, callbacks=callbacks, **options)


def scripted(*losses: float) -> wf.train.Callback:
    """Replaces the validation loss by numbers of a script."""

    def replace(trainer: Trainer) -> None:
        trainer.row["val_loss"] = losses[trainer.epoch - 1]

    return wf.train.LambdaCallback(on_epoch_end=replace)


def test_hooks_are_called_in_order() -> None:
    called: list[str] = []
    hooks = {name: lambda trainer, name=name: called.append(name) for name in HOOKS}
    trainer_of(wf.train.LambdaCallback(**hooks)).fit(data(), epochs=2, batch_size=8)
    step = ["on_step_begin", "on_step_end"]
    epoch = ["on_epoch_begin", *step, *step, "on_epoch_end"]
    assert called == ["on_fit_begin", *epoch, *epoch, "on_fit_end"]
    with pytest.raises(wf.NameUnknownError) as caught:
        wf.train.LambdaCallback(on_epoch_ended=print)
    assert caught.value.fix == "write 'on_epoch_end'"


def test_the_end_is_told_where_it_ends_with_an_error() -> None:
    called: list[str] = []

    def fail(trainer: Trainer) -> None:
        raise ZeroDivisionError

    callback = wf.train.LambdaCallback(on_step_end=fail, on_fit_end=lambda t: called.append("end"))
    with pytest.raises(ZeroDivisionError):
        trainer_of(callback).fit(data())
    assert called == ["end"]


def test_training_stops_when_nothing_improves_and_gives_the_best_back() -> None:
    stopping = wf.train.EarlyStopping(patience=2, restore_best=True)
    kept: list[Any] = []
    keep = wf.train.LambdaCallback(
        on_epoch_end=lambda trainer: kept.append(trainer.model.state_dict()["weight"].numpy())
    )
    trainer = trainer_of(scripted(3.0, 1.0, 1.5, 1.2, 0.1), keep, stopping)
    history = trainer.fit(data(), epochs=5)
    assert history["epoch"] == [1, 2, 3, 4]
    assert trainer.stopped == "val_loss was best in epoch 2: 1"
    assert np.array_equal(trainer.model.weight.detach().numpy(), kept[1])


def test_small_improvements_do_not_count_and_higher_may_be_better() -> None:
    trainer = trainer_of(
        scripted(1.0, 0.95, 0.91), wf.train.EarlyStopping(patience=2, min_delta=0.2)
    )
    assert len(trainer.fit(data(), epochs=3)) == 3
    assert trainer.stopped
    rising = wf.train.EarlyStopping("val_loss", patience=1, mode="max")
    assert len(trainer_of(scripted(1.0, 2.0, 3.0), rising).fit(data(), epochs=3)) == 3
    by_metric = wf.train.EarlyStopping("val_r2", patience=1)
    trainer = trainer_of(by_metric, metrics=["r2"])
    assert len(trainer.fit(data(), epochs=3, validation=data())) == 3
    with pytest.raises(wf.NameUnknownError, match="val_los"):
        trainer_of(wf.train.EarlyStopping("val_los")).fit(data(), validation=data())
    with pytest.raises(wf.ArgumentError):
        wf.train.EarlyStopping(mode="lowest")


def test_the_best_checkpoint_is_kept_apart_from_the_last(tmp_path: Path) -> None:
    best = wf.train.BestCheckpoint()
    trainer = trainer_of(scripted(2.0, 1.0, 3.0), best, checkpoint_folder=tmp_path, keep_last=1)
    trainer.fit(data(), epochs=3)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["best-00000002", "step-00000003"]
    trainer.load_checkpoint(kind="best")
    assert trainer.epoch == 2
    with pytest.raises(wf.ArgumentError, match="no folder"):
        trainer_of(wf.train.BestCheckpoint()).fit(data())


def test_a_rate_may_follow_a_function_of_the_epoch() -> None:
    logger = wf.train.LearningRateLogger()
    halving = wf.train.ScheduleCallback(lambda epoch: 0.5**epoch, per="epoch")
    history = trainer_of(halving, logger).fit(data(), epochs=3, batch_size=8)
    assert history["lr"] == [1.0, 0.5, 0.25]
    assert [rate for _, rate in logger.rates] == [1.0, 1.0, 0.5, 0.5, 0.25, 0.25]


def test_a_nan_stops_with_the_line_that_made_it() -> None:
    def loss(outputs: wf.Tensor, target: wf.Tensor) -> wf.Tensor:
        return wf.sqrt(target.sum()) * outputs.mean()  # this line

    x, y = data()
    bad = y * 0 - 1
    trainer = trainer_of(wf.train.StopOnNan())
    trainer.loss_function = loss
    with pytest.raises(wf.NanError) as caught:
        trainer.fit([(x, y * 0 + 1), (x, bad)])
    assert caught.value.op == "sqrt"
    assert caught.value.at is not None
    assert "this line" in caught.value.at.source()
    assert all(math.isfinite(v) for v in trainer.model.weight.detach().numpy().ravel())


def test_a_nan_in_the_data_or_in_the_weights_is_named() -> None:
    x, y = data()
    with pytest.raises(wf.NanError, match=r"the batch holds NaN: batch\[1\]"):
        trainer_of(wf.train.StopOnNan()).fit([(x, y), (x, y * float("nan"))])

    def spoil(trainer: Trainer) -> None:
        state = trainer.model.state_dict()
        trainer.model.load_state_dict({**state, "bias": state["bias"] * float("nan")})

    spoiling = wf.train.LambdaCallback(on_step_end=spoil)
    with pytest.raises(wf.NanError, match="the weights were NaN before this step: bias"):
        trainer_of(spoiling, wf.train.StopOnNan()).fit([(x, y), (x, y)])


def test_logs_go_on_where_a_resumed_run_goes_on(tmp_path: Path) -> None:
    def logs(name: str) -> list[Any]:
        folder = tmp_path / name
        return [wf.train.CSVLogger(folder / "log.csv"), wf.train.JSONLogger(folder / "log.jsonl")]

    def stop(trainer: Trainer) -> None:
        if trainer.step == 5:
            raise KeyboardInterrupt

    options: dict[str, Any] = {"checkpoint_every": 3, "seed": 0}
    whole = trainer_of(*logs("a"), checkpoint_folder=tmp_path / "a" / "run", **options)
    whole.fit(data(), epochs=4, batch_size=8)
    cut = trainer_of(
        *logs("b"), wf.train.LambdaCallback(on_step_end=stop),
        checkpoint_folder=tmp_path / "b" / "run", **options,
    )  # fmt: skip
    with pytest.raises(KeyboardInterrupt):
        cut.fit(data(), epochs=4, batch_size=8)
    resumed = trainer_of(*logs("b"), checkpoint_folder=tmp_path / "b" / "run", **options)
    resumed.fit(data(), epochs=4, batch_size=8, resume=True)

    def lines(name: str) -> list[dict[str, Any]]:
        text = (tmp_path / name / "log.jsonl").read_text(encoding="utf-8")
        rows = [json.loads(line) for line in text.splitlines()]
        return [{k: v for k, v in row.items() if k != "seconds"} for row in rows]

    def rows(name: str) -> list[dict[str, str]]:
        with (tmp_path / name / "log.csv").open(encoding="utf-8") as file:
            return [{k: v for k, v in r.items() if k != "seconds"} for r in csv.DictReader(file)]

    assert lines("a") == lines("b")
    assert [row["step"] for row in lines("a") if "epoch" not in row] == list(range(1, 9))
    assert rows("a") == rows("b")
    assert [row["epoch"] for row in rows("a")] == ["1", "2", "3", "4"]
    assert float(rows("a")[0]["loss"]) == pytest.approx(whole.history["loss"][0])


def test_gradients_are_kept_when_asked_for() -> None:
    seen: list[dict[str, Any]] = []

    def ask(trainer: Trainer) -> None:
        if trainer.step == 1:
            trainer.keep_gradients()

    trainer = trainer_of(
        wf.train.LambdaCallback(
            on_step_begin=ask, on_step_end=lambda trainer: seen.append(trainer.gradients)
        )
    )
    x, y = data()
    trainer.fit([(x, y), (x, y), (x, y)])
    assert [list(gradients) for gradients in seen] == [[], ["weight", "bias"], []]
    fresh = trainer_of()
    fresh.fit([(x, y)])
    squared(fresh.model(x), y).backward()
    np.testing.assert_allclose(
        seen[1]["weight"].numpy(), fresh.model.weight.grad.numpy(), rtol=1e-5
    )


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_plain_lines_where_there_is_no_terminal() -> None:
    stream = io.StringIO()
    trainer = trainer_of(wf.train.Progress(stream))
    trainer.fit(data(), epochs=2, batch_size=8, validation=data())
    first, second = stream.getvalue().splitlines()
    assert first.startswith("epoch 1/2  0:0")
    assert "batches/s" in first
    assert f"loss {trainer.history['loss'][1]:.4g}" in second
    assert "val_loss" in second
    assert "\r" not in stream.getvalue()


def test_a_bar_in_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wf.train.progress, "find_spec", lambda name: None)
    monkeypatch.setattr(wf.train.progress, "REDRAW", 0.0)
    stream = Terminal()
    trainer_of(wf.train.Progress(stream), wf.train.EarlyStopping("loss", 1, mode="max")).fit(
        data(), epochs=3, batch_size=8
    )
    text = stream.getvalue()
    assert "━" in text
    assert "1/2" in text
    assert " left" in text
    assert "stopped: loss was best in epoch 1" in text


def test_rich_draws_the_bar_where_it_is_installed() -> None:
    pytest.importorskip("rich")
    stream = Terminal()
    trainer_of(wf.train.Progress(stream)).fit(data(), epochs=2, batch_size=8)
    assert "epoch 2/2" in stream.getvalue()
    assert "loss" in stream.getvalue()
