"""Targets: what is to be found out, its loss, and how well it was found.

>>> import numpy as np
>>> from weft.config.targets import Targets
>>> settings = {"like": {"column": "rating", "kind": "binary", "at_least": 4.0, "weight": 1.0}}
>>> targets = Targets(settings).fit({"number:rating": np.array([5.0, 3.0])})
>>> targets.array({"number:rating": np.array([4.0, 2.0])}).tolist()
[1.0, 0.0]
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Self

import numpy as np
import numpy.typing as npt

import weft as wf
from weft.nn import functional as F  # noqa: N812
from weft.train import Metric, as_metrics
from weft.train.names import unknown

__all__ = ["Targets"]

Array = npt.NDArray[Any]
Columns = Mapping[str, Array]


@dataclass
class Targets:
    """The targets of a configuration: numbers and yes or no, or one column of classes."""

    settings: Mapping[str, Mapping[str, Any]]
    classes: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        if not self.settings:
            raise wf.ArgumentError(
                "config",
                "there is no target",
                expected="a table [targets.NAME]",
                got={"targets": "none"},
                fix='[targets.click] column = "click"',
            )
        if self.is_classes and len(self.settings) > 1:
            raise wf.ArgumentError(
                "config",
                "a classifier finds one class, and has several targets",
                expected="one table [targets.NAME]",
                got={"targets": ", ".join(self.settings)},
                fix='task = "recommender" has several targets',
            )

    @property
    def is_classes(self) -> bool:
        """Whether the target is a column of classes."""
        return not any("kind" in target for target in self.settings.values())

    def _column(self, name: str) -> str:
        return self.settings[name]["column"] or name

    def text_columns(self) -> list[str]:
        """The columns that are read as text: those of classes."""
        return [self._column(name) for name in self.settings] if self.is_classes else []

    def number_columns(self) -> list[str]:
        """The columns that are read as numbers."""
        return [] if self.is_classes else [self._column(name) for name in self.settings]

    def fit(self, columns: Columns) -> Self:
        """Learn which classes there are."""
        for name in self.text_columns():
            self.classes = sorted({cell for cell in columns[name].tolist() if cell})
        return self

    @property
    def outputs(self) -> int:
        """How many numbers a network gives."""
        return len(self.classes) if self.is_classes else len(self.settings)

    def array(self, columns: Columns) -> Array:
        """int64 [rows] of classes, float32 [rows] of one target, or [rows, targets] of several."""
        if self.is_classes:
            return self._class_numbers(columns)
        each = [self._target(name, columns) for name in self.settings]
        return (each[0] if len(each) == 1 else np.stack(each, axis=1)).astype(np.float32)

    def _class_numbers(self, columns: Columns) -> Array:
        name = next(iter(self.settings))
        numbers = {cell: number for number, cell in enumerate(self.classes)}
        cells = columns[self._column(name)].tolist()
        unseen = next((cell for cell in cells if cell not in numbers), None)
        if unseen is not None:
            raise wf.ArgumentError(
                "config",
                f"column {self._column(name)!r} has a class that no training row has",
                expected=f"one of {', '.join(self.classes[:10])}",
                got={"class": unseen},
                fix="leave such rows out, or give more rows to train on",
            )
        return np.array([numbers[cell] for cell in cells], np.int64)

    def _target(self, name: str, columns: Columns) -> Array:
        target, values = self.settings[name], columns[f"number:{self._column(name)}"]
        if np.isnan(values).any():
            raise wf.ArgumentError(
                "config",
                f"target {name!r} is missing in some rows",
                expected="a number in every row",
                got={"column": self._column(name), "missing": int(np.isnan(values).sum())},
                fix="leave such rows out of the file",
            )
        if target["kind"] == "number":
            return values
        if target["at_least"] is not None:
            return np.asarray(values >= target["at_least"])
        if not np.isin(values, (0.0, 1.0)).all():
            raise wf.ArgumentError(
                "config",
                f"target {name!r} is neither yes nor no",
                expected="0 or 1 in every row, or a number from which on it is a yes",
                got={"column": self._column(name), "values": np.unique(values)[:5].tolist()},
                fix=f"[targets.{name}] at_least = {float(np.median(values)):g}",
            )
        return values

    # --- losses and metrics ----------------------------------------------------------------------

    def loss(self, outputs: wf.Tensor, targets: wf.Tensor) -> wf.Tensor:
        """The loss of a batch: the sum over all targets, each with its weight."""
        if self.is_classes:
            entropy: wf.Tensor = F.cross_entropy(outputs, targets)
            return entropy
        if len(self.settings) == 1:
            return self._one_loss(next(iter(self.settings)), outputs, targets)
        losses = [
            self._one_loss(name, outputs[:, number], targets[:, number])
            for number, name in enumerate(self.settings)
        ]
        return sum(losses[1:], losses[0])

    def _one_loss(self, name: str, outputs: wf.Tensor, targets: wf.Tensor) -> wf.Tensor:
        binary = self.settings[name]["kind"] == "binary"
        measure = F.binary_cross_entropy_with_logits if binary else F.mse_loss
        loss: wf.Tensor = measure(outputs, targets) * self.settings[name]["weight"]
        return loss

    def metrics(self, names: Sequence[str] | None) -> list[Metric]:
        """The metrics of a run: of several targets each its own, named by both."""
        if self.is_classes:
            return as_metrics(["accuracy"] if names is None else names)
        every = [name for each in self.settings.values() for name in _metrics_for(each["kind"])]
        for name in names or ():
            if name not in every:
                raise unknown("config: evaluation.metrics", "metric of these targets", name, every)
        metrics = []
        for number, (target, settings) in enumerate(self.settings.items()):
            fitting = _metrics_for(settings["kind"])
            chosen = fitting[:1] if names is None else [name for name in names if name in fitting]
            for name in chosen:
                alone = len(self.settings) == 1
                metrics.append(as_metrics([name])[0] if alone else _OneTarget(name, target, number))
        return metrics


class _OneTarget(Metric):
    """A metric of one of several targets."""

    def __init__(self, name: str, target: str, number: int) -> None:
        (self.inner,), self.number = as_metrics([name]), number
        self.higher_is_better = self.inner.higher_is_better
        super().__init__(f"{target}_{name}")

    def start(self) -> dict[str, Any]:
        """See `Metric`."""
        return self.inner.start()

    def update(self, outputs: Any, targets: Any) -> None:
        """See `Metric`."""
        self.inner.state = self.state
        self.inner.update(outputs[:, self.number], targets[:, self.number])
        self.state = self.inner.state

    def value(self) -> Any:
        """See `Metric`."""
        self.inner.state = self.state
        return self.inner.value()

    def joined_state(self, states: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        """See `Metric`."""
        return self.inner.joined_state(states)


def _metrics_for(kind: str) -> list[str]:
    """The metrics of a kind of target, the usual one first."""
    binary = ["auc", "accuracy", "f1", "precision", "recall"]
    return binary if kind == "binary" else ["mae", "mse", "r2"]
