r"""Charts of what was logged: without a dependency, or by matplotlib where it is installed.

>>> import tempfile, pathlib
>>> path = pathlib.Path(tempfile.mkdtemp()) / "loss.png"
>>> _ = plot({"loss": [1.0, 0.5, 0.25], "val_loss": [1.1, 0.7, 0.6]}, path)
>>> path.read_bytes()[:4]
b'\x89PNG'
"""

from __future__ import annotations

import io
import math
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

import weft as wf
from weft.data.optional import require
from weft.files import write_bytes
from weft.train.names import unknown
from weft.train.png import Canvas, Colour, encode

__all__ = ["plot"]

COLOURS: tuple[Colour, ...] = (
    (31, 119, 180), (214, 90, 20), (44, 140, 44), (148, 103, 189), (190, 30, 45), (110, 80, 60),
)  # fmt: skip
GREY: Colour = (215, 215, 215)
INK: Colour = (60, 60, 60)
LEFT, RIGHT, TOP, BOTTOM = 84, 16, 34, 40
GLYPH = 8
"""The width of a character, in pixels."""


class Curve(NamedTuple):
    """A named line through points."""

    name: str
    xs: list[float]
    ys: list[float]


def plot(
    history: Any,
    path: str | os.PathLike[str],
    keys: Iterable[str] | None = None,
    *,
    size: tuple[int, int] = (720, 440),
) -> Path:
    """Draw numbers over epochs (or over their places in lists); the file that was written.

    `history` is what `fit` returned, a list of rows, or a mapping from names to numbers or to
    pairs of places and numbers. Without `keys`, all losses are drawn. The file's ending
    says what is written: .png, .svg, and with matplotlib .pdf or .jpg.

    >>> import os, tempfile, weft as wf
    >>> path = os.path.join(tempfile.mkdtemp(), "loss.png")
    >>> wf.train.plot({"loss": [2.0, 1.0, 0.5]}, path).name
    'loss.png'
    """
    chosen = _choose_curves(curves_of(history), keys)
    target = Path(path)
    write_bytes("plot", target, _file_bytes(chosen, target, size))
    return target


def _file_bytes(curves: Sequence[Curve], target: Path, size: tuple[int, int]) -> bytes:
    """A chart in the form that a file's ending names."""
    ending = target.suffix.lower()
    drawer = DRAWERS.get(ending)
    if drawer is not None and find_spec("matplotlib") is None:
        return drawer(curves, size)
    if ending in (*DRAWERS, ".pdf", ".jpg", ".jpeg"):
        return _matplotlib_bytes(curves, ending, size)
    raise wf.ArgumentError(
        "train.plot",
        f"files ending in {target.suffix!r} are not written",
        expected=".png or .svg; .pdf and .jpg where matplotlib is installed",
        got={"path": str(target)},
        fix=f'"{target.stem or "loss"}.png"',
    )


def _png_bytes(curves: Sequence[Curve], size: tuple[int, int]) -> bytes:
    return encode(chart(curves, size).pixels)


DRAWERS: dict[str, Callable[[Sequence[Curve], tuple[int, int]], bytes]] = {".png": _png_bytes}
"""What draws without a dependency, by ending; svg_chart.py adds its own."""


def _matplotlib_bytes(curves: Sequence[Curve], ending: str, size: tuple[int, int]) -> bytes:
    """A chart drawn by matplotlib, without a window."""
    figures = require("matplotlib.figure", "matplotlib", "train.plot", extra="plot")
    figure = figures.Figure(figsize=(size[0] / 100, size[1] / 100), dpi=100, layout="constrained")
    axes = figure.subplots()
    for number, curve in enumerate(curves):
        colour = [channel / 255 for channel in COLOURS[number % len(COLOURS)]]
        marker = "o" if len(curve.xs) == 1 else ""
        axes.plot(curve.xs, curve.ys, label=curve.name, color=colour, marker=marker)
    axes.grid(alpha=0.3)
    if curves:
        axes.legend()
    if all(x.is_integer() for curve in curves for x in curve.xs):
        axes.xaxis.get_major_locator().set_params(integer=True)
    file = io.BytesIO()
    figure.savefig(file, format=ending[1:])
    return file.getvalue()


def curves_of(history: Any) -> list[Curve]:
    """The curves in a history.

    >>> curves_of([{"epoch": 1, "loss": 2.0}, {"epoch": 2, "loss": 1.0}])
    [Curve(name='loss', xs=[1.0, 2.0], ys=[2.0, 1.0])]
    """
    rows = getattr(history, "rows", history)
    if isinstance(rows, Mapping):
        return [_curve(name, values) for name, values in rows.items()]
    names = [key for row in rows for key in row if key not in ("epoch", "step")]
    return [_column(rows, name) for name in dict.fromkeys(names)]


def _curve(name: str, values: Sequence[Any]) -> Curve:
    pairs = [v if isinstance(v, (tuple, list)) else (i, v) for i, v in enumerate(values, 1)]
    return Curve(name, [float(x) for x, _ in pairs], [float(y) for _, y in pairs])


def _column(rows: Sequence[Mapping[str, Any]], name: str) -> Curve:
    points = [
        (float(row.get("epoch", number)), float(row[name]))
        for number, row in enumerate(rows, 1)
        if isinstance(row.get(name), (int, float))
    ]
    return Curve(name, [x for x, _ in points], [y for _, y in points])


def _choose_curves(curves: list[Curve], keys: Iterable[str] | None) -> list[Curve]:
    by_name = {curve.name: curve for curve in curves if curve.ys}
    if keys is None:
        losses = [curve for name, curve in by_name.items() if "loss" in name]
        keys = [curve.name for curve in losses or by_name.values()]
    for key in keys:
        if key not in by_name:
            raise unknown("train.plot", "curve", key, by_name)
    return [by_name[key] for key in keys]


def chart(curves: Sequence[Curve], size: tuple[int, int]) -> Canvas:
    """A chart with axes, numbers on them, and the curves' names in their colours."""
    width, height = size
    if width < 200 or height < 150:
        raise wf.ArgumentError(
            "train.plot",
            "the chart is too small for its numbers",
            expected="at least 200 by 150 pixels",
            got={"size": size},
            fix="size=(720, 440)",
        )
    canvas = Canvas(width, height)
    x_range = value_range([x for curve in curves for x in curve.xs], margin=0.0)
    y_range = value_range([y for curve in curves for y in curve.ys], margin=0.05)
    right, bottom = width - RIGHT, height - BOTTOM
    for tick in ticks(*y_range, 6):
        y = round(scale_between(tick, y_range, bottom, TOP))
        canvas.line(LEFT, y, right, y, GREY)
        label = f"{tick:g}"
        canvas.text(LEFT - 8 - GLYPH * len(label), y - 5, label, INK)
    whole = all(x.is_integer() for curve in curves for x in curve.xs)  # epochs and steps are
    for tick in ticks(*x_range, 8, least=1.0 if whole else 0.0):
        x = round(scale_between(tick, x_range, LEFT, right))
        canvas.line(x, bottom, x, bottom + 4, INK)
        canvas.text(x - GLYPH * len(f"{tick:g}") // 2, bottom + 10, f"{tick:g}", INK)
    canvas.line(LEFT, TOP, LEFT, bottom, INK)
    canvas.line(LEFT, bottom, right, bottom, INK)
    _draw(canvas, curves, (x_range, y_range), (right, bottom))
    return canvas


def _draw(
    canvas: Canvas,
    curves: Sequence[Curve],
    ranges: tuple[tuple[float, float], tuple[float, float]],
    corner: tuple[int, int],
) -> None:
    """The curves, with gaps where a number is not finite, and their names above."""
    place = LEFT
    for number, curve in enumerate(curves):
        colour = COLOURS[number % len(COLOURS)]
        canvas.text(place, 12, curve.name, colour)
        place += GLYPH * (len(curve.name) + 2)
        points = [
            (
                scale_between(x, ranges[0], LEFT, corner[0]),
                scale_between(y, ranges[1], corner[1], TOP),
            )
            for x, y in zip(curve.xs, curve.ys, strict=True)
        ]
        for (x0, y0), (x1, y1) in zip(points, points[1:] or points, strict=False):
            if math.isfinite(y0) and math.isfinite(y1):
                canvas.line(x0, y0, x1, y1, colour, thickness=2)


def scale_between(value: float, limits: tuple[float, float], start: float, end: float) -> float:
    """Where a value lies between two places, as it lies between its limits."""
    low, high = limits
    return start + (value - low) / (high - low) * (end - start)


def value_range(values: Sequence[float], margin: float) -> tuple[float, float]:
    """The least and the largest of numbers that are finite, with a margin."""
    finite = [value for value in values if math.isfinite(value)]
    low, high = min(finite, default=0.0), max(finite, default=1.0)
    if low == high:  # a rate of 0.001 is not read as 0 where its axis goes to half of it
        spare = abs(low) / 2 or 0.5
        low, high = low - spare, high + spare
    spare = (high - low) * margin
    return low - spare, high + spare


def ticks(low: float, high: float, count: int, least: float = 0.0) -> list[float]:
    """Round numbers between two, about as many as asked for, at least so far apart.

    >>> ticks(0.0, 1.0, 5)
    [0.0, 0.2, 0.4, 0.6, 0.8, 1.0]
    >>> ticks(1.0, 3.0, 8, least=1.0)
    [1.0, 2.0, 3.0]
    """
    rough = (high - low) / count
    power = 10.0 ** math.floor(math.log10(rough))
    step = max(least, next(power * f for f in (1, 2, 5, 10) if power * f >= rough * 0.999))
    first = math.ceil(low / step - 1e-9)
    last = math.floor(high / step + 1e-9)
    return [float(np.round(i * step, 12)) for i in range(first, last + 1)]
