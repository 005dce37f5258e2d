"""Searches: for the learning rate, for hyper-parameters, and for how sure a result is.

A space maps names to what may be chosen: a list is one of its items, `(low, high)` a number between
them (an integer if both are), `(low, high, "log")` one whose logarithm is uniform.

>>> import weft as wf
>>> space = {"lr": (1e-4, 1e-1, "log"), "width": [16, 32, 64]}
>>> best = wf.train.random_search(lambda c: abs(c["lr"] - 0.01) + c["width"], space, trials=40)[0]
>>> best.config["width"], 16 <= best.value < 16.02
(16, True)
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

import weft as wf
from weft.data import Dataset, Subset
from weft.data.optional import require
from weft.train import batches
from weft.train.plots import plot

__all__ = [
    "LearningRates", "Trial", "cross_validate", "find_lr", "halving_search", "optuna_search",
    "random_search",
]  # fmt: skip

Space = Mapping[str, Any]
Config = dict[str, Any]


@dataclass(frozen=True)
class Trial:
    """A configuration that was tried: its value, lower being better, and with how many epochs."""

    config: Config
    value: float
    epochs: int = 0


def random_search(
    objective: Callable[[Config], float], space: Space, trials: int = 20, seed: int = 0
) -> list[Trial]:
    """Try configurations drawn at random; all trials, the best first. NaN is worst.

    >>> random_search(lambda config: config["x"] ** 2, {"x": [3, -1, 2]}, trials=9)[0].config
    {'x': -1}
    """
    generator = np.random.default_rng(seed)
    configs = [draw("random_search", space, generator) for _ in range(trials)]
    return _rank_trials([Trial(config, float(objective(config))) for config in configs])


def halving_search(
    objective: Callable[[Config, int], float],
    space: Space,
    trials: int = 27,
    epochs: int = 1,
    factor: int = 3,
    seed: int = 0,
) -> list[Trial]:
    """Successive halving: try many for a few epochs, the best of them for `factor` times as many.

    `objective(config, epochs)` is called anew with more epochs for those that stay. All trials of
    the last round come first, then those that fell out earlier.

    >>> result = halving_search(lambda c, epochs: c["x"] ** 2 / epochs, {"x": (-4, 4)}, trials=9)
    >>> result[0].epochs, len(result)
    (9, 9)
    """
    generator = np.random.default_rng(seed)
    configs = [draw("halving_search", space, generator) for _ in range(trials)]
    fallen: list[Trial] = []
    while True:
        tried = _rank_trials([Trial(c, float(objective(c, epochs)), epochs) for c in configs])
        kept = len(tried) // factor
        if kept == 0:
            return [*tried, *reversed(fallen)]
        fallen += reversed(tried[kept:])
        configs = [trial.config for trial in tried[:kept]]
        epochs *= factor


def optuna_search(
    objective: Callable[[Config], float], space: Space, trials: int = 20, seed: int = 0
) -> list[Trial]:
    """Let the package `optuna` choose what to try next; all trials, the best first."""
    optuna = load_optuna("train.optuna_search")
    sampler = optuna.samplers.TPESampler(seed=seed)
    study = optuna.create_study(sampler=sampler)
    finished_trials: list[Trial] = []

    def try_trial(trial: Any) -> float:
        config = {
            name: suggest_value("optuna_search", trial, name, choice)
            for name, choice in space.items()
        }
        finished_trials.append(Trial(config, float(objective(config))))
        return finished_trials[-1].value

    study.optimize(try_trial, n_trials=trials)
    return _rank_trials(finished_trials)


def load_optuna(op: str) -> Any:
    """The package `optuna`, which is optional."""
    optuna = require("optuna", "optuna", op, extra="train")
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    return optuna


def suggest_value(op: str, trial: Any, name: str, choice: Any) -> Any:
    """What a trial of Optuna takes for a name."""
    if isinstance(choice, list):
        return trial.suggest_categorical(name, choice)
    low, high, log = _limits(op, name, choice)
    suggest = trial.suggest_int if _is_integers(low, high) else trial.suggest_float
    return suggest(name, low, high, log=log)


def draw(op: str, space: Space, generator: np.random.Generator) -> Config:
    """One configuration of a space, at random."""
    return {name: _draw_value(op, name, choice, generator) for name, choice in space.items()}


def _draw_value(op: str, name: str, choice: Any, generator: np.random.Generator) -> Any:
    if isinstance(choice, list) and choice:
        return choice[int(generator.integers(len(choice)))]
    low, high, log = _limits(op, name, choice)
    if _is_integers(low, high) and not log:
        return int(generator.integers(low, high + 1))
    if not log:
        return float(generator.uniform(low, high))
    value = math.exp(generator.uniform(math.log(low), math.log(high)))
    return round(value) if _is_integers(low, high) else value


def _is_integers(low: Any, high: Any) -> bool:
    return isinstance(low, int) and isinstance(high, int)


def _limits(op: str, name: str, choice: Any) -> tuple[Any, Any, bool]:
    log = isinstance(choice, tuple) and len(choice) == 3 and choice[2] == "log"
    fits = isinstance(choice, tuple) and (len(choice) == 2 or log) and choice[0] <= choice[1]
    if not fits or (log and choice[0] <= 0):
        raise wf.ArgumentError(
            f"train.{op}",
            f"{name} does not say what may be chosen",
            expected='a list of choices, (low, high), or (low, high, "log") with 0 < low',
            got={name: choice},
            fix=f'{{"{name}": (1e-4, 1e-1, "log")}}',
        )
    return choice[0], choice[1], log


def _rank_trials(trials: Sequence[Trial]) -> list[Trial]:
    return sorted(trials, key=lambda trial: (math.isnan(trial.value), trial.value))


# --- cross-validation --------------------------------------------------------------------------


def cross_validate(
    build: Callable[[], Any],
    data: Any,
    k: int = 5,
    *,
    epochs: int = 1,
    batch_size: int = 32,
    seed: int = 0,
) -> dict[str, Any]:
    """Train k times, each time without another k-th of the data, and judge by that part.

    `build()` makes a new trainer; `data` is a data set or arrays. The result has, for each number
    that `evaluate` gives, its values in the folds, and their mean and standard deviation.

    >>> import weft as wf
    >>> def build():
    ...     wf.random.seed(0)
    ...     model = wf.nn.Linear(1, 1)
    ...     optimizer = wf.optim.SGD(model.parameters(), lr=0.1)
    ...     return wf.train.Trainer(model, wf.nn.functional.mse_loss, optimizer, progress=False)
    >>> x = wf.linspace(-1, 1, 30).reshape(30, 1)
    >>> result = wf.train.cross_validate(build, (x, 2 * x), k=3, epochs=20, batch_size=4)
    >>> len(result["loss"]), result["loss_mean"] < 0.01
    (3, True)
    """
    count = len(data) if isinstance(data, Dataset) else len(data[0])
    if not 2 <= k <= count:
        raise wf.ArgumentError(
            "train.cross_validate",
            "the data cannot be cut into so many parts",
            expected=f"k from 2 to {count}, the number of examples",
            got={"k": k},
            fix=f"k={min(5, count)}",
        )
    rows = []
    for held_out in np.array_split(np.random.default_rng(seed).permutation(count), k):
        others = np.setdiff1d(np.arange(count), held_out)
        trainer = build()
        trainer.fit(_part(data, others), epochs, batch_size=batch_size)
        rows.append(trainer.evaluate(_part(data, np.sort(held_out)), batch_size=batch_size))
    return _summary(rows)


def _part(data: Any, indices: Any) -> Any:
    if isinstance(data, Dataset):
        return Subset(data, indices)
    return tuple(part[wf.asarray(indices) if isinstance(part, wf.Tensor) else indices]
                 for part in data)  # fmt: skip


def _summary(rows: list[dict[str, Any]]) -> dict[str, Any]:
    summary: dict[str, Any] = {name: [row[name] for row in rows] for name in rows[0]}
    for name in rows[0]:
        if isinstance(rows[0][name], float):
            summary[f"{name}_mean"] = float(np.mean(summary[name]))
            summary[f"{name}_std"] = float(np.std(summary[name], ddof=1))
    return summary


# --- the learning rate -------------------------------------------------------------------------


@dataclass(frozen=True)
class LearningRates:
    """The losses at growing learning rates, and a rate to begin with."""

    rates: list[float]
    losses: list[float]
    suggestion: float

    def plot(self, path: str | os.PathLike[str]) -> Path:
        """Draw the loss over the logarithm of the rate into a PNG file."""
        points = [(math.log10(r), loss) for r, loss in zip(self.rates, self.losses, strict=True)]
        return plot({"loss": points}, path)


SMOOTHING = 0.8
DIVERGED = 4.0
"""The loss is given up when it is so many times its best."""


def find_lr(
    trainer: Any,
    data: Any,
    low: float = 1e-6,
    high: float = 1.0,
    steps: int = 100,
    *,
    batch_size: int = 32,
) -> LearningRates:
    """Train with a learning rate that grows from step to step, then put everything back.

    The suggestion is where the smoothed loss falls most steeply over the logarithm of the rate.

    >>> import weft as wf
    >>> wf.random.seed(0)
    >>> x = wf.random.normal((64, 2))
    >>> model = wf.nn.Linear(2, 1)
    >>> trainer = wf.train.Trainer(model, wf.nn.functional.mse_loss,
    ...                            wf.optim.SGD(model.parameters(), lr=0.1))
    >>> found = wf.train.find_lr(trainer, (x, x.sum(axis=1, keepdims=True)), steps=50)
    >>> 1e-4 < found.suggestion < 1.0
    True
    """
    loader = batches.as_loader("find_lr", data, batch_size, shuffle=True, seed=0)
    weights, optimizer = trainer.model.state_dict(), trainer.optimizer.state_dict()
    random, schedules = wf.random.get_state(), [g["schedule"] for g in trainer.optimizer.groups]
    try:
        rates, losses = _sweep_rates(trainer, loader, low, high, steps)
    finally:
        trainer.model.load_state_dict(weights)
        trainer.optimizer.load_state_dict(optimizer)
        for group, schedule in zip(trainer.optimizer.groups, schedules, strict=True):
            group.options["schedule"] = schedule
        wf.random.set_state(random)
    return LearningRates(rates, losses, _steepest_rate(rates, losses))


def _sweep_rates(
    trainer: Any, loader: Any, low: float, high: float, steps: int
) -> tuple[list[float], list[float]]:
    """Learning rates from low to high, even in logarithm, and the smoothed loss at each."""
    rates: list[float] = []
    losses: list[float] = []
    smoothed = math.nan
    for number, batch in zip(range(steps), _endless_batches(loader), strict=False):
        rate = low * (high / low) ** (number / max(steps - 1, 1))
        trainer.optimizer.lr = rate
        loss = trainer.train_on(batch)
        smoothed = loss if number == 0 else SMOOTHING * smoothed + (1 - SMOOTHING) * loss
        if not math.isfinite(smoothed) or smoothed > DIVERGED * min([*losses, smoothed]):
            break
        rates.append(rate)
        losses.append(smoothed)
    return rates, losses


def _endless_batches(loader: Any) -> Iterator[Any]:
    while True:
        yield from batches.batches_of("find_lr", loader)


def _steepest_rate(rates: list[float], losses: list[float]) -> float:
    """The rate at which the loss falls most steeply over the logarithm of the rate."""
    if len(rates) < 3:
        return rates[0] if rates else math.nan
    slopes = np.gradient(np.asarray(losses), np.log(rates))
    return rates[int(np.argmin(slopes))]
