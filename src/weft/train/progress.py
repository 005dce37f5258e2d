"""Progress: a bar in a terminal, plain lines elsewhere; loss, speed and remaining time.

>>> duration(3725)
'1:02:05'
>>> duration(5)
'0:05'
"""

from __future__ import annotations

import math
import os
import sys
import time
from collections.abc import Mapping
from importlib import import_module
from importlib.util import find_spec
from typing import Any, TextIO

from weft.train.callbacks import Callback

__all__ = ["Progress"]

REDRAW = 0.1
"""Seconds between two drawings of the bar."""
LINE = 30.0
"""Seconds between two lines inside of an epoch, where there is no terminal."""
WIDTH = 24


class Progress(Callback):
    """Shows how far the training is: by `rich` in a terminal if installed, else by itself.

    >>> import io
    >>> import weft as wf
    >>> quiet = wf.train.Progress(stream=io.StringIO())
    """

    writes = True

    def __init__(self, stream: TextIO | None = None) -> None:
        self.stream = stream
        self.display: Any = None

    def on_fit_begin(self, trainer: Any) -> None:
        """Choose lines, or a bar where the output is a terminal."""
        stream = self.stream or sys.stdout
        # a launcher puts a rank before each line, and may give a process a terminal of its own
        if not stream.isatty() or "WEFT_JOB_FOLDER" in os.environ:
            self.display = Lines(stream)
        else:
            self.display = RichBar(stream) if find_spec("rich") else Bar(stream)
        strategy = trainer.strategy
        if strategy.chosen is not None and trainer.step == 0:
            table = "" if strategy.plan is None else f"{strategy.plan}\n"
            stream.write(f"{strategy.chosen}\n{table}")

    def on_epoch_begin(self, trainer: Any) -> None:
        """Begin a bar, from where a resumed run begins."""
        self.display.begin(trainer)

    def on_step_end(self, trainer: Any) -> None:
        """Show the progress after a step."""
        self.display.note_step(trainer)
        self.display.move(trainer)

    def on_epoch_end(self, trainer: Any) -> None:
        """Write the epoch's numbers."""
        self.display.end(trainer)

    def on_fit_end(self, trainer: Any) -> None:
        """Leave the terminal as it was."""
        if self.display is not None:
            self.display.close(trainer)


class Lines:
    """A line for each epoch, and one in a while inside of a long one."""

    def __init__(self, stream: TextIO) -> None:
        self.stream = stream
        self.start = self.last = self.warm = time.perf_counter()
        self.first = self.cold = 0

    def begin(self, trainer: Any) -> None:
        """Note when the epoch begins."""
        self.start = self.last = self.warm = time.perf_counter()
        self.first = self.cold = trainer.batches

    def note_step(self, trainer: Any) -> None:
        """After the first step, which compiles, begin to measure the speed."""
        if trainer.batches == self.first + 1:
            self.warm, self.cold = time.perf_counter(), trainer.batches

    def move(self, trainer: Any) -> None:
        """Write a line if the last is long ago."""
        if time.perf_counter() - self.last > LINE:
            self.last = time.perf_counter()
            self._write(self.status(trainer))

    def end(self, trainer: Any) -> None:
        """Write the epoch's line."""
        seconds = time.perf_counter() - self.start
        spent = f"{duration(seconds)}, {self.speed(trainer):.4g} batches/s"
        self._write(f"epoch {_epoch_text(trainer)}  {spent}  {numbers_text(trainer.row)}")

    def close(self, trainer: Any) -> None:
        """Say why it stopped early."""
        if trainer.stopped:
            self._write(f"stopped: {trainer.stopped}")

    def speed(self, trainer: Any) -> float:
        """Batches in a second, in this epoch, but for its first; 0 while it is not known."""
        done: int = trainer.batches - self.cold
        if done or trainer.batches == self.first:
            return done / max(time.perf_counter() - self.warm, 1e-9)
        return 1 / max(self.warm - self.start, 1e-9) if trainer.row else 0.0

    def status(self, trainer: Any) -> str:
        """How far an epoch is."""
        total, speed = trainer.total_batches, self.speed(trainer)
        place = f"{trainer.batches}/{total}" if total else f"{trainer.batches}"
        left = f", {duration(remaining_seconds(trainer, speed))} left" if total and speed else ""
        spent = f"{place}  {speed:.4g} batches/s{left}" if speed else place
        return f"epoch {_epoch_text(trainer)}  {spent}  loss {trainer.mean_loss:.4g}"

    def _write(self, line: str) -> None:
        self.stream.write(line + "\n")
        self.stream.flush()


class Bar(Lines):
    """A bar that is drawn over itself in one line of a terminal."""

    def move(self, trainer: Any) -> None:
        """Draw the bar."""
        now = time.perf_counter()
        if now - self.last > REDRAW:
            self.last = now
            total = trainer.total_batches
            done = round(WIDTH * trainer.batches / total) if total else 0
            bar = "━" * done + "╌" * (WIDTH - done)
            self.stream.write(f"\r\033[K{bar} {self.status(trainer)}")
            self.stream.flush()

    def _write(self, line: str) -> None:
        super()._write(f"\r\033[K{line}")


class RichBar(Lines):
    """The bar of the package `rich`."""

    def __init__(self, stream: TextIO) -> None:
        super().__init__(stream)
        rich = import_module("rich.progress")
        self.console = import_module("rich.console").Console(file=stream)
        text = rich.TextColumn("{task.description}", markup=False)
        columns = (rich.SpinnerColumn(), rich.BarColumn(), text)
        self.bar = rich.Progress(*columns, console=self.console, transient=True)
        self.task: Any = None

    def begin(self, trainer: Any) -> None:
        """Begin a bar."""
        super().begin(trainer)
        self.task = self.bar.add_task("", total=trainer.total_batches or None)
        self.bar.start()

    def move(self, trainer: Any) -> None:
        """Move the bar."""
        now = time.perf_counter()
        if now - self.last > REDRAW:
            self.last = now
            self.bar.update(self.task, completed=trainer.batches, description=self.status(trainer))

    def end(self, trainer: Any) -> None:
        """Replace the bar by the epoch's line."""
        self._remove()
        super().end(trainer)

    def close(self, trainer: Any) -> None:
        """Leave the terminal as it was."""
        self._remove()
        super().close(trainer)

    def _remove(self) -> None:
        if self.task is not None:
            self.bar.stop()
            self.bar.remove_task(self.task)
            self.task = None

    def _write(self, line: str) -> None:
        self.console.print(line, markup=False, highlight=False, soft_wrap=True)


def remaining_seconds(trainer: Any, speed: float) -> float:
    """The seconds that all remaining epochs will take at this speed."""
    epochs = trainer.total_epochs - trainer.epoch - 1
    batches: int = trainer.total_batches * (epochs + 1) - trainer.batches
    return batches / speed


def numbers_text(row: Mapping[str, Any]) -> str:
    """The numbers of a row, but for those that stand elsewhere.

    >>> numbers_text({"epoch": 1, "step": 10, "loss": 0.51234, "val_accuracy": 0.975})
    'loss 0.5123  val_accuracy 0.975'
    """
    left_out = ("epoch", "step", "seconds")
    shown = {k: v for k, v in row.items() if k not in left_out and isinstance(v, (int, float))}
    return "  ".join(f"{name} {value:.4g}" for name, value in shown.items())


def duration(seconds: float) -> str:
    """Hours, minutes and seconds."""
    if not math.isfinite(seconds):
        return "?"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"


def _epoch_text(trainer: Any) -> str:
    running = min(trainer.epoch + 1, trainer.total_epochs) if not trainer.row else trainer.epoch
    return f"{running}/{trainer.total_epochs}"
