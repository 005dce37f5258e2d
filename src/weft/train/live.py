"""Curves that grow while a network trains: a picture in a notebook, characters in a terminal.

>>> for line in text_chart([1.0, 0.5, 0.25], 6, 3).splitlines():
...     print(f"|{line}|")
|       1 ⠑⢄    |
|          ⠈⠢⡀  |
|    0.25    ⠈⠒⢄|
"""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Sequence
from importlib import import_module
from typing import Any, TextIO

from weft.train.callbacks import Callback
from weft.train.plots import Curve
from weft.train.svg_chart import svg_chart

__all__ = ["LiveCurves"]

PAUSE = 0.5
"""Seconds between two drawings."""
_DOTS = ((0x01, 0x02, 0x04, 0x40), (0x08, 0x10, 0x20, 0x80))
"""The bits of Unicode's braille patterns, by column and row."""


class LiveCurves(Callback):
    """Draws the loss of the steps, and losses and `keys` of the epochs, while they come.

    In a notebook it is one picture that is drawn anew. In a terminal the loss of all epochs so far
    is drawn in characters after each epoch; where the output is a file, nothing is drawn.

    >>> import weft as wf
    >>> curves = wf.train.LiveCurves(keys=["val_accuracy"])
    """

    writes = True

    def __init__(self, keys: Sequence[str] = (), stream: TextIO | None = None) -> None:
        self.keys, self.stream = list(keys), stream
        self.steps: list[tuple[float, float]] = []
        self.handle: Any = None
        self.drawn = 0.0

    def on_fit_begin(self, trainer: Any) -> None:
        """Begin a picture, where there is a notebook."""
        self.steps = []
        self.handle = _notebook_display()
        if self.handle is not None:
            self._draw_picture(trainer)

    def on_step_end(self, trainer: Any) -> None:
        """Remember the loss; draw, unless that was a moment ago."""
        self.steps.append((float(trainer.step), trainer.loss))
        if self.handle is not None and time.perf_counter() - self.drawn > PAUSE:
            self._draw_picture(trainer)

    def on_epoch_end(self, trainer: Any) -> None:
        """Draw the epoch, too."""
        stream = self.stream or sys.stdout
        if self.handle is not None:
            self._draw_picture(trainer)
        elif stream.isatty() and len(self.steps) > 1:
            losses = [loss for _, loss in self.steps]
            stream.write(f"loss of {len(losses)} steps\n{text_chart(losses)}\n")
            stream.flush()

    def _draw_picture(self, trainer: Any) -> None:
        """Draw the curves over the one picture of the notebook."""
        self.drawn = time.perf_counter()
        rows = [*trainer.history.rows, *([trainer.row] if trainer.row else [])]
        wanted = ("loss", "val_loss", *self.keys)
        names = [name for name in wanted if any(name in row for row in rows)]
        step = Curve("loss of steps", [x for x, _ in self.steps], [y for _, y in self.steps])
        columns = [
            Curve(name, [float(row["step"]) for row in rows if name in row],
                  [float(row[name]) for row in rows if name in row])
            for name in names
        ]  # fmt: skip
        curves = [curve for curve in (step, *columns) if curve.xs]
        html = import_module("IPython.display").HTML
        self.handle.update(html(svg_chart(curves) if curves else "<i>no step yet</i>"))


def _notebook_display() -> Any:
    """A place for a picture in the notebook that runs this, or None."""
    module = sys.modules.get("IPython")
    shell = None if module is None else module.get_ipython()
    if shell is None or type(shell).__name__ != "ZMQInteractiveShell":
        return None
    display = import_module("IPython.display")
    return display.display(display.HTML(""), display_id=True)


def text_chart(values: Sequence[float], width: int = 60, height: int = 8) -> str:
    """A curve in braille patterns, with its largest and least number beside it."""
    finite = [value for value in values if math.isfinite(value)]
    if not finite:
        return ""
    low, high = min(finite), max(finite)
    dots = [[0] * width for _ in range(height)]
    across, down = 2 * width - 1, 4 * height - 1
    before: tuple[int, int] | None = None
    for place, value in enumerate(values):
        if not math.isfinite(value):
            before = None
            continue
        x = round(across * place / max(len(values) - 1, 1))
        y = round(down * (high - value) / (high - low)) if high > low else down
        for px, py in _line_points(before or (x, y), (x, y)):
            dots[py // 4][px // 2] |= _DOTS[px % 2][py % 4]
        before = x, y
    labels = {0: f"{high:.4g}", height - 1: f"{low:.4g}"}
    return "\n".join(
        f"{labels.get(row, ''):>8} {''.join(chr(0x2800 + dot) for dot in line)}".replace("⠀", " ")
        for row, line in enumerate(dots)
    )


def _line_points(start: tuple[int, int], end: tuple[int, int]) -> list[tuple[int, int]]:
    """The points of a line between two, both included."""
    steps = max(abs(end[0] - start[0]), abs(end[1] - start[1]), 1)
    return [
        (
            round(start[0] + (end[0] - start[0]) * i / steps),
            round(start[1] + (end[1] - start[1]) * i / steps),
        )
        for i in range(steps + 1)
    ]
