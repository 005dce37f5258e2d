"""Sweeps: many runs of one configuration, with other values for some keys.

Every trial has a folder of its own with its settings, checkpoints and result. A sweep that was
interrupted goes on: finished trials are read, and the one that was running is resumed to the bit.
What trial number n of a random or grid search tries depends on the seed and n alone.

>>> import tempfile
>>> from weft.config.sweeping import sweep
>>> report = sweep({
...     "task": "classifier", "data": {"source": "iris"}, "train": {"quiet": True},
...     "sweep": {"folder": tempfile.mkdtemp(), "method": "grid", "monitor": "val_accuracy",
...               "space": {"optimizer.lr": {"choices": [0.0, 0.05]}}},
... })
>>> report.best.config
{'optimizer.lr': 0.05}
"""

from __future__ import annotations

import itertools
import json
import math
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

import weft as wf
from weft.config.documents import Document, key_text
from weft.config.keys import SCHEMA
from weft.config.reading import read_document
from weft.config.running import train_settings
from weft.config.schema import ConfigurationError, Wrong, check
from weft.config.sweep_page import page_of_trials
from weft.files import read_json, write_text
from weft.train import CheckpointFolder
from weft.train.names import unknown
from weft.train.searching import draw, load_optuna, suggest_value

__all__ = ["SweepReport", "SweepTrial", "sweep"]

RESULT, PLAN, PAGE = "result.json", "sweep.json", "index.html"
Config = dict[str, Any]


@dataclass
class SweepTrial:
    """One trial: what was chosen, and what came of it; `value` is NaN where it failed."""

    number: int
    config: Config
    value: float
    numbers: dict[str, Any] = field(default_factory=dict)
    seconds: float = 0.0
    failure: str = ""


@dataclass
class SweepReport:
    """All trials, which number they are judged by, and the page that shows them."""

    trials: list[SweepTrial]
    monitor: str
    mode: str
    page: Path

    @property
    def ranked(self) -> list[SweepTrial]:
        """The trials, the best first; those that failed last."""
        sign = -1.0 if self.mode == "max" else 1.0
        return sorted(self.trials, key=lambda t: (math.isnan(t.value), sign * t.value, t.number))

    @property
    def best(self) -> SweepTrial:
        """The best trial."""
        return self.ranked[0]

    def __str__(self) -> str:
        lines = [f"{len(self.trials)} trials, best by {self.monitor} ({self.mode}):"]
        for trial in self.ranked[:5]:
            chosen = " ".join(f"{key}={_short_text(value)}" for key, value in trial.config.items())
            told = trial.failure or f"{trial.value:.5g}"
            lines.append(f"  trial {trial.number:<4d} {told:<12} {chosen}")
        return "\n".join(lines)


def sweep(
    source: str | Path | Mapping[str, Any],
    overrides: Iterable[str] = (),
    *,
    folder: str | Path | None = None,
    say: Callable[[str], None] = lambda text: None,
) -> SweepReport:
    """Run the trials of a configuration's table `[sweep]`, or those that are left; what came of it.

    `say` is told of every trial. Paths of data are seen from the folder of the file, or `folder`.
    """
    document = read_document(source, overrides)
    settings = check(SCHEMA, document)
    chosen = settings["sweep"]
    if chosen is None or not chosen["space"]:
        raise wf.ArgumentError(
            "config",
            "the file does not say what a sweep may try",
            expected="a table [sweep.space] of keys and what may be chosen for them",
            got={"sweep": "no space" if chosen else "none"},
            fix='[sweep.space] "optimizer.lr" = {low = 1e-4, high = 1e-1, log = true}',
        )
    is_file = not isinstance(source, Mapping)
    home = Path(folder) if folder is not None else Path(source).parent if is_file else Path()  # type: ignore[arg-type]
    name = f"{Path(source).stem}-sweep" if is_file else "sweep"  # type: ignore[arg-type]
    runner = _Sweep(document, settings, home, Path(chosen["folder"] or name))
    return runner.run(say)


class _Sweep:
    """A sweep: its document, what may be chosen, and where its trials are."""

    def __init__(self, document: Document, settings: Config, home: Path, folder: Path) -> None:
        self.document, self.chosen, self.home, self.folder = (
            document, settings["sweep"], home, folder,
        )  # fmt: skip
        self.monitor = self.chosen["monitor"] or settings["evaluation"]["monitor"]
        self.mode = self.chosen["mode"] or _mode_of(self.monitor)
        self.space = {
            key: self._choices(key, choice) for key, choice in self.chosen["space"].items()
        }
        self.trials: list[SweepTrial] = []

    def _choices(self, key: str, choice: Config) -> Any:
        """What may be chosen for a key, as `wf.train.random_search` takes it."""
        low, high = choice["low"], choice["high"]
        if choice["choices"] is not None:
            return list(choice["choices"])
        if low is None or high is None or high < low or (choice["log"] and low <= 0):
            place = ("sweep", "space", key)
            wrong = Wrong(
                place, f"{key_text(place)} does not say what may be chosen",
                "choices = [...], or low and high with low <= high, and 0 < low for log", choice,
                "{low = 1e-4, high = 1e-1, log = true}",
            )  # fmt: skip
            raise ConfigurationError(self.document, [wrong])
        limits = (round(low), round(high)) if choice["whole"] else (low, high)
        return (*limits, "log") if choice["log"] else limits

    def run(self, say: Callable[[str], None]) -> SweepReport:
        """Run what is left."""
        for config in itertools.islice(self._first_configs(), 1):
            check(SCHEMA, self._document(config))  # mistakes in keys are told before anything runs
        self.folder.mkdir(parents=True, exist_ok=True)
        self._check_plan()
        for number in range(self._count()):
            trial = self._finished_trial(number)
            if trial is None:
                config = self._config(number)
                trial = self._run_trial(number, config)
                say(self._trial_text(trial))
            self.trials.append(trial)
            self._write_page()
        return SweepReport(self.trials, self.monitor, self.mode, self.folder / PAGE)

    def _first_configs(self) -> Iterable[Config]:
        generator = np.random.default_rng((self.chosen["seed"], 0))
        yield draw("config", self.space, generator)

    def _count(self) -> int:
        if self.chosen["method"] != "grid":
            return int(self.chosen["trials"])
        for key, choice in self.space.items():
            if not isinstance(choice, list):
                place = ("sweep", "space", key)
                wrong = Wrong(place, f"a grid needs choices for {key}", "choices = [...]", choice,
                              'sweep.method = "random"')  # fmt: skip
                raise ConfigurationError(self.document, [wrong])
        return math.prod(len(choice) for choice in self.space.values())

    def _config(self, number: int) -> Config:
        """What a trial tries."""
        if self.chosen["method"] == "grid":
            values = next(itertools.islice(itertools.product(*self.space.values()), number, None))
            return dict(zip(self.space, values, strict=True))
        if self.chosen["method"] == "random":
            generator = np.random.default_rng((self.chosen["seed"], number))
            return draw("config", self.space, generator)
        return self._optuna_config(number)

    def _optuna_config(self, number: int) -> Config:
        """What Optuna would try next, told of all trials before."""
        optuna = load_optuna("config")
        sampler = optuna.samplers.TPESampler(seed=self.chosen["seed"] + number)
        direction = "maximize" if self.mode == "max" else "minimize"
        study = optuna.create_study(sampler=sampler, direction=direction)
        encoded = {key: _encoded_choices(choice) for key, choice in self.space.items()}
        for done in self.trials:
            if not math.isnan(done.value):
                fixed = optuna.trial.FixedTrial(
                    {key: _encoded_choice(self.space[key], done.config[key]) for key in self.space}
                )
                for key, choice in encoded.items():
                    suggest_value("config", fixed, key, choice)
                study.add_trial(
                    optuna.trial.create_trial(
                        params=fixed.params, distributions=fixed.distributions, value=done.value
                    )
                )
        asked = study.ask()
        suggested = {k: suggest_value("config", asked, k, choice) for k, choice in encoded.items()}
        return {key: _decoded_choice(self.space[key], value) for key, value in suggested.items()}

    def _document(self, config: Config) -> Document:
        """The settings of a trial, before they are checked."""
        document = Document(json.loads(json.dumps(self.document.values)), dict(self.document.lines),
                            self.document.name)  # fmt: skip
        document.values.pop("sweep", None)
        for key, value in config.items():
            document.override(f"{key}={json.dumps(value)}")
        return document

    def _trial_folder(self, number: int) -> Path:
        return self.folder / f"trial-{number:04d}"

    def _finished_trial(self, number: int) -> SweepTrial | None:
        path = self._trial_folder(number) / RESULT
        return SweepTrial(**_with_nan(read_json("config", path))) if path.exists() else None

    def _run_trial(self, number: int, config: Config) -> SweepTrial:
        """Train one trial, or what is left of it, and write down what came of it."""
        folder = self._trial_folder(number)
        folder.mkdir(parents=True, exist_ok=True)
        begun = time.perf_counter()
        trial = SweepTrial(number, config, math.nan)
        try:
            settings = check(SCHEMA, self._document(config))
            settings["train"] |= {"folder": str(folder / "run"), "quiet": True}
            resume = CheckpointFolder(folder / "run").latest() is not None
            result = train_settings(settings, self.home, resume=resume)
            trial.numbers = {k: v for k, v in result.numbers.items() if isinstance(v, (int, float))}
            if self.monitor not in trial.numbers:
                raise unknown("config: sweep.monitor", "number", self.monitor, trial.numbers)
            trial.value = float(trial.numbers[self.monitor])
        except wf.NameUnknownError:
            raise
        except wf.WeftError as error:
            trial.failure = f"{type(error).__name__}: {error.problem}"
        trial.seconds = time.perf_counter() - begun
        write_text("config", folder / RESULT, json.dumps(_without_nan(asdict(trial)), indent=1))
        return trial

    def _trial_text(self, trial: SweepTrial) -> str:
        chosen = " ".join(f"{key}={_short_text(value)}" for key, value in trial.config.items())
        return f"trial {trial.number}: {trial.failure or f'{trial.value:.5g}'}   {chosen}"

    def _check_plan(self) -> None:
        """Refuse to mix two sweeps in one folder; more trials may be asked for."""
        plan = json.loads(
            json.dumps(
                {
                    "space": {key: self.chosen["space"][key] for key in self.space},
                    "method": self.chosen["method"], "seed": self.chosen["seed"],
                    "monitor": self.monitor, "mode": self.mode,
                    "settings": {k: v for k, v in self.document.values.items() if k != "sweep"},
                }
            )
        )  # fmt: skip
        path = self.folder / PLAN
        if path.exists() and (before := read_json("config", path)) != plan:
            changed = [key for key in plan if before.get(key) != plan[key]]
            raise wf.ArgumentError(
                "config",
                f"the folder {self.folder} holds a sweep with other settings",
                expected=", ".join(f"{key} as before" for key in changed),
                got={key: plan[key] for key in changed[:2]},
                fix="begin in another folder: sweep.folder=...",
            )
        write_text("config", path, json.dumps(plan, indent=1))

    def _write_page(self) -> None:
        text = page_of_trials(self.document.name or "sweep", self.monitor, self.mode, self.trials)
        write_text("config", self.folder / PAGE, text)


def _mode_of(monitor: str) -> str:
    """Whether more or less of a number is better: of metrics that is known."""
    name = monitor.removeprefix("val_")
    known = [name, name.rpartition("_")[2]]  # a target's name may stand before the metric's
    for each in known:
        if each in ("accuracy", "auc", "f1", "precision", "recall", "r2", "top_5"):
            return "max"
    return "min"


def _encoded_choices(choice: Any) -> Any:
    """Choices that Optuna can store: lists are written as text."""
    return (
        [_encoded_choice(choice, each) for each in choice] if isinstance(choice, list) else choice
    )


def _encoded_choice(choice: Any, value: Any) -> Any:
    return json.dumps(value) if isinstance(choice, list) else value


def _decoded_choice(choice: Any, value: Any) -> Any:
    return json.loads(value) if isinstance(choice, list) else value


def _short_text(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def _without_nan(trial: Config) -> Config:
    """A trial as JSON has it, where NaN has no word."""
    numbers = {k: v for k, v in trial["numbers"].items() if math.isfinite(v)}
    value = trial["value"] if math.isfinite(trial["value"]) else None
    return {**trial, "numbers": numbers, "value": value}


def _with_nan(trial: Config) -> Config:
    return {**trial, "value": math.nan if trial["value"] is None else trial["value"]}
