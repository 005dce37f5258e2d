"""Logs: CSV, JSON lines and TensorBoard, which go on where a resumed run goes on.

>>> import weft as wf
>>> callbacks = [wf.train.CSVLogger("log.csv"), wf.train.TensorBoard("runs/first")]
"""

from __future__ import annotations

import csv
import io
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

import weft as wf
from weft.files import open_file, replacing, write_text
from weft.train.callbacks import Callback
from weft.train.events import EventWriter

LONGEST_LINE = 1 << 24

__all__ = ["CSVLogger", "Histograms", "JSONLogger", "TensorBoard"]


class CSVLogger(Callback):
    """A row for each epoch in a CSV file; columns that come later are empty in earlier rows."""

    writes = True

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)

    def on_fit_begin(self, trainer: Any) -> None:
        """Write down what a resumed run did before."""
        self._write([_plain_row(row) for row in trainer.history.rows])

    def on_epoch_end(self, trainer: Any) -> None:
        """Write all rows, so that the header names all columns."""
        self._write([_plain_row(row) for row in [*trainer.history.rows, trainer.row]])

    def _write(self, rows: list[dict[str, Any]]) -> None:
        names = list(dict.fromkeys(name for row in rows for name in row))
        self.path.parent.mkdir(parents=True, exist_ok=True)
        text = io.StringIO(newline="")
        writer = csv.DictWriter(text, names, restval="")
        writer.writeheader()
        writer.writerows(rows)
        write_text("CSVLogger", self.path, text.getvalue())


class JSONLogger(Callback):
    """A line of JSON for every so many steps, and one for each epoch."""

    writes = True

    def __init__(self, path: str | os.PathLike[str], every: int = 1) -> None:
        self.path, self.every = Path(path), every

    def on_fit_begin(self, trainer: Any) -> None:
        """Keep the lines up to the step that the run begins at."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        if not (trainer.step and self.path.exists()):
            write_text("JSONLogger", self.path, "")
            return
        with (
            open_file("JSONLogger", self.path) as before,
            replacing("JSONLogger", self.path) as file,
        ):
            while line := before.readline(LONGEST_LINE):
                if _step_of(line) <= trainer.step:
                    file.write(line.rstrip(b"\n") + b"\n")

    def on_step_end(self, trainer: Any) -> None:
        """Write the step's numbers."""
        if trainer.step % self.every == 0:
            self._append({"step": trainer.step, **trainer.numbers})

    def on_epoch_end(self, trainer: Any) -> None:
        """Write the epoch's row."""
        self._append(trainer.row)

    def _append(self, row: Mapping[str, Any]) -> None:
        with self.path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(_plain_row(row)) + "\n")


class TensorBoard(Callback):
    """Curves for TensorBoard: the loss and learning rate of steps, and all numbers of epochs."""

    writes = True

    def __init__(self, folder: str | os.PathLike[str], every: int = 1) -> None:
        self.folder, self.every = Path(folder), every
        self.writer: EventWriter | None = None

    def on_fit_begin(self, trainer: Any) -> None:
        """Begin a file; rows that an interrupted run wrote after its checkpoint are removed."""
        purge = trainer.step + 1 if trainer.step else None
        self.writer = EventWriter(self.folder, purge)

    def on_step_end(self, trainer: Any) -> None:
        """Write the step's numbers."""
        if trainer.step % self.every == 0:
            for name, value in trainer.numbers.items():
                self._scalar(f"step/{name}", value, trainer.step)

    def on_epoch_end(self, trainer: Any) -> None:
        """Write the epoch's row."""
        for name, value in trainer.row.items():
            if name not in ("epoch", "step"):
                self._scalar(f"epoch/{name}", value, trainer.step)

    def on_fit_end(self, trainer: Any) -> None:
        """Close the file."""
        if self.writer is not None:
            self.writer.close()

    def _scalar(self, tag: str, value: Any, step: int) -> None:
        if self.writer is not None and isinstance(value, (int, float)):
            self.writer.scalar(tag, float(value), step)


class Histograms(Callback):
    """Histograms of weights and gradients for TensorBoard, every so many steps."""

    writes = True

    def __init__(self, folder: str | os.PathLike[str], every: int = 100) -> None:
        self.folder, self.every = Path(folder), every
        self.writer: EventWriter | None = None

    def on_fit_begin(self, trainer: Any) -> None:
        """Begin a file."""
        self.writer = EventWriter(self.folder, trainer.step + 1 if trainer.step else None)

    def on_step_begin(self, trainer: Any) -> None:
        """Ask for the gradients, which the step would forget."""
        if (trainer.step + 1) % self.every == 0:
            trainer.keep_gradients()

    def on_step_end(self, trainer: Any) -> None:
        """Write the histograms."""
        if self.writer is None or not trainer.gradients:
            return
        for name, gradient in trainer.gradients.items():
            self.writer.histogram(f"gradients/{name}", _values(gradient), trainer.step)
        for name, parameter in trainer.model.named_parameters():
            self.writer.histogram(f"weights/{name}", _values(parameter), trainer.step)

    def on_fit_end(self, trainer: Any) -> None:
        """Close the file."""
        if self.writer is not None:
            self.writer.close()


def _values(tensor: wf.Tensor) -> Any:
    return tensor.detach().numpy().astype(np.float64)


def _plain_row(row: Mapping[str, Any]) -> dict[str, Any]:
    """The row with lists for arrays."""
    return {name: _plain_value(value) for name, value in row.items()}


def _plain_value(value: Any) -> Any:
    return value.tolist() if isinstance(value, (np.ndarray, np.generic, wf.Tensor)) else value


def _step_of(line: bytes) -> float:
    """The step in a line; a line that was cut off counts as later than all."""
    try:
        return float(json.loads(line)["step"])
    except (ValueError, KeyError, TypeError, OverflowError, RecursionError):
        return float("inf")
