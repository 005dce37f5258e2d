"""The page of a sweep: the best value so far, each key against the value, and a table of trials.

One file without scripts and without anything from elsewhere.

>>> from types import SimpleNamespace
>>> trial = SimpleNamespace(number=0, config={"lr": 0.1}, value=0.5, seconds=1.0, failure="")
>>> "<svg" in page_of_trials("run.toml", "val_loss", "min", [trial])
True
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from html import escape
from typing import Any

__all__ = ["page_of_trials"]

WIDTH, HEIGHT, LEFT, BOTTOM, TOP = 320, 190, 52, 26, 10
STYLE = """
:root { color-scheme: light dark; --ink: #222; --faint: #777; --line: #ddd; --card: #fafafa;
  --dot: #2a6fdb; --best: #d9480f; }
@media (prefers-color-scheme: dark) {
  :root { --ink: #ddd; --faint: #999; --line: #3a3a3a; --card: #202020; --dot: #7aa7f0; }
  body { background: #181818; }
}
body { margin: 0 auto; max-width: 72rem; padding: 1rem; color: var(--ink);
  font: 14px/1.45 system-ui, sans-serif; }
h1 { font-size: 1.2rem; } h2 { font-size: 1rem; color: var(--faint); }
.grid { display: grid; grid-template-columns: repeat(auto-fill, minmax(19rem, 1fr)); gap: .8rem; }
figure { margin: 0; padding: .5rem; border: 1px solid var(--line); border-radius: 6px;
  background: var(--card); }
figcaption { font-size: .85rem; overflow-wrap: anywhere; }
svg { width: 100%; height: auto; } svg text { fill: var(--faint); font-size: 10px; }
circle { fill: var(--dot); fill-opacity: .7; } circle.best { fill: var(--best); fill-opacity: 1; }
path { stroke: var(--dot); fill: none; stroke-width: 1.5; } line { stroke: var(--line); }
.scroll { overflow-x: auto; } table { border-collapse: collapse; width: 100%; }
th, td { text-align: left; padding: .25rem .8rem .25rem 0; border-bottom: 1px solid var(--line); }
td.number { font-variant-numeric: tabular-nums; } tr.best td { font-weight: 600; }
"""


def page_of_trials(name: str, monitor: str, mode: str, trials: Sequence[Any]) -> str:
    """The page as text; trials have number, config, value, seconds and failure."""
    sign = -1.0 if mode == "max" else 1.0
    ranked = sorted(trials, key=lambda t: (math.isnan(t.value), sign * t.value, t.number))
    finished = [trial for trial in trials if math.isfinite(trial.value)]
    keys = list(dict.fromkeys(key for trial in trials for key in trial.config))
    best = ranked[0] if ranked and math.isfinite(ranked[0].value) else None
    figures = []
    if best is not None:
        figures.append(_figure("best so far, over trials", _best_curve(finished, sign)))
        figures += [
            _figure(key, _scatter([(t.config[key], t.value, t is best) for t in finished]))
            for key in keys
        ]
    told = f"{len(finished)} of {len(trials)} trials finished"
    if best is not None:
        told += f"; best {monitor} is {best.value:.5g}, of trial {best.number}"
    better = "more" if mode == "max" else "less"
    return (
        f'<!doctype html><html lang="en"><head><meta charset="utf-8">'
        f'<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{escape(name)}: sweep</title><style>{STYLE}</style></head><body>"
        f"<h1>{escape(name)}</h1><p>{escape(told)} ({better} is better).</p>"
        f'<div class="grid">{"".join(figures)}</div><h2>Trials, the best first</h2>'
        f'<div class="scroll">{_table(ranked, keys, monitor, best)}</div></body></html>\n'
    )


def _figure(caption: str, picture: str) -> str:
    return f"<figure><figcaption>{escape(caption)}</figcaption>{picture}</figure>"


def _table(ranked: Sequence[Any], keys: Sequence[str], monitor: str, best: Any) -> str:
    head = "".join(f"<th>{escape(each)}</th>" for each in ["trial", monitor, *keys, "seconds"])
    rows = []
    for trial in ranked:
        value = trial.failure or f"{trial.value:.6g}"
        chosen = [_label(trial.config.get(key, "")) for key in keys]
        cells = [str(trial.number), value, *chosen, f"{trial.seconds:.1f}"]
        kind = ' class="best"' if trial is best else ""
        row = "".join(f'<td class="number">{escape(cell)}</td>' for cell in cells)
        rows.append(f"<tr{kind}>{row}</tr>")
    return f"<table><thead><tr>{head}</tr></thead><tbody>{''.join(rows)}</tbody></table>"


def _label(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def _best_curve(finished: Sequence[Any], sign: float) -> str:
    """A line of the best value after each trial."""
    values: list[float] = []
    for trial in finished:
        values.append(sign * min(sign * trial.value, sign * values[-1] if values else math.inf))
    xs = [float(trial.number) for trial in finished]
    place = _placer(xs, values, log=False)
    points = [place(x, y) for x, y in zip(xs, values, strict=True)]
    path = "M" + " L".join(f"{x:.1f},{y:.1f}" for x, y in points)
    dots = "".join(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="2"/>' for x, y in points)
    return _svg(
        f'<path d="{path}"/>{dots}', [(min(xs), min(xs)), (max(xs), max(xs))], values, place
    )


def _scatter(points: Sequence[tuple[Any, float, bool]]) -> str:
    """A dot for each trial: what was chosen for a key, and the value."""
    is_numbers = all(isinstance(x, (int, float)) and not isinstance(x, bool) for x, _, _ in points)
    if is_numbers:
        xs = [float(x) for x, _, _ in points]
        ticks: list[tuple[float, Any]] = [(min(xs), min(xs)), (max(xs), max(xs))]
    else:
        labels = list(dict.fromkeys(_label(x) for x, _, _ in points))
        xs = [float(labels.index(_label(x))) for x, _, _ in points]
        ticks = [(float(number), label) for number, label in enumerate(labels)]
    log = is_numbers and min(xs) > 0 and max(xs) > 50 * min(xs)
    values = [value for _, value, _ in points]
    place = _placer(xs, values, log)
    dots = []
    for x, (_, value, is_best) in zip(xs, points, strict=True):
        left, top = place(x, value)
        kind = ' class="best"' if is_best else ""
        dots.append(f'<circle cx="{left:.1f}" cy="{top:.1f}" r="{5 if is_best else 3.5}"{kind}/>')
    return _svg("".join(dots), ticks, values, place)


def _placer(xs: Sequence[float], values: Sequence[float], log: bool) -> Any:
    """A function from a choice and a value to a place in the picture."""
    across = [math.log(x) for x in xs] if log else list(xs)
    low_x, high_x, low, high = min(across), max(across), min(values), max(values)

    def place(x: float, value: float) -> tuple[float, float]:
        along = ((math.log(x) if log else x) - low_x) / (high_x - low_x) if high_x > low_x else 0.5
        up = (value - low) / (high - low) if high > low else 0.5
        left = LEFT + 8 + along * (WIDTH - LEFT - 24)
        return left, HEIGHT - BOTTOM - 6 - up * (HEIGHT - BOTTOM - TOP - 12)

    return place


def _svg(
    inside: str, ticks: Sequence[tuple[float, Any]], values: Sequence[float], place: Any
) -> str:
    base = HEIGHT - BOTTOM
    parts = [
        f'<line x1="{LEFT}" y1="{base}" x2="{WIDTH - 8}" y2="{base}"/>',
        f'<line x1="{LEFT}" y1="{TOP}" x2="{LEFT}" y2="{base}"/>',
    ]
    for x, label in dict.fromkeys(ticks):
        left, _ = place(x, values[0])
        anchor = "end" if left > WIDTH - 40 else "middle"
        text = f'<text x="{left:.1f}" y="{base + 14}" text-anchor="{anchor}">'
        parts.append(f"{text}{escape(_label(label))}</text>")
    for value in dict.fromkeys((min(values), max(values))):
        _, top = place(ticks[0][0], value)
        parts.append(f'<text x="{LEFT - 4}" y="{top + 3:.1f}" text-anchor="end">{value:.4g}</text>')
    return f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img">{"".join(parts)}{inside}</svg>'
