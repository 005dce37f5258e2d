"""Runs for other programs that keep track of them: Weights & Biases, without a network, and MLflow.

Both are optional packages, imported when a run begins.

>>> import weft as wf
>>> callbacks = [wf.train.WandbLogger("digits"), wf.train.MLflowLogger("digits")]
"""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from weft.data.optional import require
from weft.train.callbacks import Callback

__all__ = ["MLflowLogger", "WandbLogger"]


class _Tracker(Callback):
    """What both do: numbers of steps and epochs, as they come, and a mark for how a run ended."""

    writes = True

    def __init__(
        self,
        project: str,
        folder: str | os.PathLike[str],
        name: str = "",
        settings: Mapping[str, Any] | None = None,
        every: int = 1,
    ) -> None:
        self.project, self.folder, self.name = project, Path(folder), name
        self.settings, self.every = dict(settings or {}), every
        self.identity = ""
        """What the run is called there, by which a resumed one goes on."""

    def on_step_end(self, trainer: Any) -> None:
        """Write the step's numbers."""
        if trainer.step % self.every == 0:
            numbers = {f"step/{name}": value for name, value in trainer.numbers.items()}
            self._log(_finite_numbers(numbers), trainer.step)

    def on_epoch_end(self, trainer: Any) -> None:
        """Write the epoch's numbers."""
        row = {name: value for name, value in trainer.row.items() if name != "step"}
        self._log(_finite_numbers(row), trainer.step)

    def _log(self, numbers: dict[str, float], step: int) -> None:
        raise NotImplementedError

    def state_dict(self) -> dict[str, Any]:
        """What the run is called, so that it can go on."""
        return {"identity": self.identity}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on with a run."""
        self.identity = state["identity"]


class WandbLogger(_Tracker):
    """A run for Weights & Biases, in files that `wandb sync` sends; nothing is sent from here.

    The files lie in `folder`, which is `wandb` where the program runs. `mode="online"` sends at
    once.
    """

    def __init__(
        self,
        project: str,
        folder: str | os.PathLike[str] = ".",
        name: str = "",
        settings: Mapping[str, Any] | None = None,
        every: int = 1,
        mode: str = "offline",
    ) -> None:
        super().__init__(project, folder, name, settings, every)
        self.mode = mode
        self.run: Any = None

    def on_fit_begin(self, trainer: Any) -> None:
        """Begin a run, or go on with one."""
        package = require("wandb", "wandb", "train.WandbLogger", extra="wandb")
        self.folder.mkdir(parents=True, exist_ok=True)
        self.run = package.init(
            project=self.project, dir=str(self.folder), name=self.name or None, mode=self.mode,
            config=self.settings, id=self.identity or None, resume="allow",
        )  # fmt: skip
        self.identity = self.run.id

    def _log(self, numbers: dict[str, float], step: int) -> None:
        self.run.log(numbers, step=step)

    def on_fit_end(self, trainer: Any) -> None:
        """Close the files."""
        if self.run is not None:
            self.run.finish()
            self.run = None


class MLflowLogger(_Tracker):
    """A run for MLflow: its settings, and numbers of steps and epochs.

    Runs lie in `folder`, as files; `address` names a server instead, as `http://localhost:5000`.
    """

    def __init__(
        self,
        project: str,
        folder: str | os.PathLike[str] = "mlruns",
        name: str = "",
        settings: Mapping[str, Any] | None = None,
        every: int = 1,
        address: str = "",
    ) -> None:
        super().__init__(project, folder, name, settings, every)
        self.address = address
        self.client: Any = None

    def on_fit_begin(self, trainer: Any) -> None:
        """Begin a run, or go on with one."""
        package = require("mlflow", "mlflow", "train.MLflowLogger", extra="mlflow")
        place = self.address or self.folder.absolute().as_uri()
        if not self.address:  # newer versions want to be told that files are meant
            os.environ.setdefault("MLFLOW_ALLOW_FILE_STORE", "true")
        self.client = package.MlflowClient(tracking_uri=place)
        if not self.identity:
            known = self.client.get_experiment_by_name(self.project)
            experiment = (
                self.client.create_experiment(self.project)
                if known is None
                else known.experiment_id
            )
            tags = {"mlflow.runName": self.name} if self.name else {}
            self.identity = self.client.create_run(experiment, tags=tags).info.run_id
            for key, value in self.settings.items():
                self.client.log_param(self.identity, key, value)

    def _log(self, numbers: dict[str, float], step: int) -> None:
        for name, value in numbers.items():
            self.client.log_metric(self.identity, name, value, step=step)

    def on_fit_end(self, trainer: Any) -> None:
        """Say that the run has ended."""
        if self.client is not None:
            self.client.set_terminated(self.identity)
            self.client = None


def _finite_numbers(row: Mapping[str, Any]) -> dict[str, float]:
    """The numbers of a row that these programs can draw."""
    return {
        name: float(value)
        for name, value in row.items()
        if isinstance(value, (int, float)) and math.isfinite(value)
    }
