"""A picture of the ratios: one line per workload, a mark per framework, the best peer at one."""

from __future__ import annotations

import math
from collections.abc import Mapping
from html import escape

from suite.frameworks import FRAMEWORKS
from suite.measuring import Row
from suite.task import Workload

COLOURS = {
    "weft": "#c2410c",
    "torch": "#64748b",
    "torch-compile": "#0f172a",
    "jax": "#2563eb",
    "keras": "#16a34a",
    "keras-xla": "#65a30d",
    "onnx": "#9333ea",
}
LEFT, WIDTH, LINE, TOP, RIGHT = 380, 460, 24, 64, 30
LEAST, MOST = 0.25, 16.0


def picture(rows: Mapping[str, Row], workloads: Mapping[str, Workload], notes: list[str]) -> str:
    """The whole of it, as SVG."""
    bottom = TOP + LINE * len(rows)
    height = bottom + 26 + 14 * len(notes)
    parts = [_legend(rows), *(_grid(value, bottom) for value in (0.25, 0.5, 1, 2, 4, 8, 16))]
    for number, (key, row) in enumerate(rows.items()):
        parts += _line(workloads[key].title, row, TOP + LINE * number + LINE // 2)
    below = height - 6 - 14 * len(notes)
    parts += [
        _text(12, below + 14 * number, note, "start", "#64748b")
        for number, note in enumerate(notes, 1)
    ]
    size = f'width="{LEFT + WIDTH + RIGHT}" height="{height}"'
    font = 'font-family="system-ui, sans-serif" font-size="12"'
    start = f'<svg xmlns="http://www.w3.org/2000/svg" {size} {font}>'
    return "\n".join([start, '<rect width="100%" height="100%" fill="white"/>', *parts, "</svg>\n"])


def _place(value: float) -> float:
    """On a logarithmic axis, cut off at its ends."""
    share = math.log(min(MOST, max(LEAST, value)) / LEAST) / math.log(MOST / LEAST)
    return LEFT + WIDTH * share


def _grid(value: float, bottom: int) -> str:
    x = _place(value)
    style = 'stroke="#0f172a" stroke-width="1.2"' if value == 1 else 'stroke="#e2e8f0"'
    line = f'<line x1="{x:.1f}" x2="{x:.1f}" y1="{TOP - 6}" y2="{bottom}" {style}/>'
    label = {LEAST: f"≤ {value:g}", MOST: f"≥ {value:g}"}.get(value, f"{value:g}")
    return line + _text(x, bottom + 14, label, "middle", "#64748b")


def _line(title: str, row: Row, y: int) -> list[str]:
    times = {name: found["wall"]["best"] for name, found in row.items() if "wall" in found}
    peers = [time for name, time in times.items() if name != "weft"]
    parts = [_text(LEFT - 14, y + 4, title, "end", "#0f172a")]
    if not peers:
        return parts
    order = sorted(times, key=lambda name: name == "weft")  # on top of the others
    return parts + [_mark(name, _place(times[name] / min(peers)), y) for name in order]


def _mark(name: str, x: float, y: float) -> str:
    radius = 6 if name == "weft" else 4
    colour = COLOURS[name]
    title = f"<title>{escape(FRAMEWORKS[name].title)}</title>"
    return f'<circle cx="{x:.1f}" cy="{y}" r="{radius}" fill="{colour}">{title}</circle>'


def _legend(rows: Mapping[str, Row]) -> str:
    names = [name for name in FRAMEWORKS if any(name in row for row in rows.values())]
    parts = [
        _text(12, 18, "Time as a multiple of the best peer's; less is better", "start", "#000")
    ]
    x = 12.0
    for name in names:
        title = FRAMEWORKS[name].title
        parts += [_mark(name, x + 6, 36), _text(x + 16, 40, title, "start", "#0f172a")]
        x += 34 + 6.6 * len(title)
    return "".join(parts)


def _text(x: float, y: float, text: str, anchor: str, colour: str) -> str:
    place = f'x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" fill="{colour}"'
    return f"<text {place}>{escape(text)}</text>"
