"""Charts as SVG: the curves of a history with axes, numbers and names, in the page's own fonts.

>>> from weft.train.plots import Curve
>>> svg_chart([Curve("loss", [1.0, 2.0], [0.5, 0.25])], (300, 200))[:4]
'<svg'
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from html import escape

from weft.train.plots import COLOURS, DRAWERS, Curve, scale_between, ticks, value_range

__all__ = ["svg_chart"]

LEFT, RIGHT, TOP, BOTTOM = 56, 12, 26, 26
MOST = 400
"""The most points of a curve; of more, every so many are drawn."""


def svg_chart(curves: Sequence[Curve], size: tuple[int, int] = (480, 260)) -> str:
    """A chart as an SVG element; places where a number is not finite are gaps."""
    width, height = size
    x_range = value_range([x for curve in curves for x in curve.xs], margin=0.0)
    y_range = value_range([y for curve in curves for y in curve.ys], margin=0.05)
    right, bottom = width - RIGHT, height - BOTTOM
    parts = []
    for tick in ticks(*y_range, 5):
        y = scale_between(tick, y_range, bottom, TOP)
        line = f'<line x1="{LEFT}" x2="{right}" y1="{y:.1f}" y2="{y:.1f}"'
        parts.append(f'{line} stroke="currentColor" stroke-opacity=".15"/>')
        parts.append(_text(LEFT - 6, y + 4, f"{tick:g}", "end"))
    whole = all(x.is_integer() for curve in curves for x in curve.xs)
    for tick in ticks(*x_range, 8, least=1.0 if whole else 0.0):
        x = scale_between(tick, x_range, LEFT, right)
        parts.append(_text(x, bottom + 16, f"{tick:g}", "middle"))
    place = float(LEFT)
    for number, curve in enumerate(curves):
        colour = "#{:02x}{:02x}{:02x}".format(*COLOURS[number % len(COLOURS)])
        parts.append(_text(place, 15, curve.name, "start", colour))
        place += 7.2 * (len(curve.name) + 2)
        path = _path(curve, x_range, y_range, (right, bottom))
        parts.append(f'<path d="{path}" fill="none" stroke="{colour}" stroke-width="1.8"/>')
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" '
        f'height="{height}" font-family="system-ui, sans-serif" font-size="12">'
        f"{''.join(parts)}</svg>"
    )


def _path(
    curve: Curve,
    x_range: tuple[float, float],
    y_range: tuple[float, float],
    corner: tuple[int, int],
) -> str:
    """The line through a curve's points; a point alone is a short line."""
    every = -(-len(curve.xs) // MOST)
    words, is_down = [], False
    for x, y in list(zip(curve.xs, curve.ys, strict=True))[::every]:
        if not math.isfinite(y):
            is_down = False
            continue
        left = scale_between(x, x_range, LEFT, corner[0])
        top = scale_between(y, y_range, corner[1], TOP)
        words.append(f"{'L' if is_down else 'M'}{left:.1f},{top:.1f}")
        is_down = True
    if len(words) == 1:
        words.append("h3")
    return " ".join(words)


def _text(x: float, y: float, text: str, anchor: str, colour: str = "currentColor") -> str:
    place = f'x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}"'
    return f'<text {place} fill="{colour}">{escape(text)}</text>'


DRAWERS[".svg"] = lambda curves, size: svg_chart(curves, size).encode("utf-8")
