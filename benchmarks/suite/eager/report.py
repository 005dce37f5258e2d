"""The tables of the eager mode: times, ratios to PyTorch, memory, and the first step."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from suite.eager import functions, workload
from suite.frameworks import EAGER
from suite.measuring import Row, differences
from suite.report import Line, aligned, ratio

MEMORY_AIM = 1.1
"""Weft's memory at most, as a multiple of PyTorch's."""
FIRST_AIMS = {"cold": 2.0, "warm": 0.3}
"""Seconds of Weft's first step, with an empty cache folder and with a full one."""


def digest(name: str, row: Row) -> dict[str, Any]:
    """What is written about a row: times, the ratio, its aim, and how far values are apart."""
    case = workload(name)
    found = ratio(row, "wall", case.rivals)
    kept = ("wall", "processor", "calls", "error")
    return {
        "times": {n: {key: a[key] for key in kept if key in a} for n, a in row.items()},
        "ratio": found,
        "processor_ratio": ratio(row, "processor", case.rivals),
        "aim": case.aim,
        "met": None if found is None or case.aim is None else found <= case.aim,
        "differences": differences(row),
        "tolerance": case.tolerance,
    }


def times_table(rows: Mapping[str, Mapping[str, Any]]) -> str:
    """One line for each digest: best times with their spread, and Weft's ratio to PyTorch."""
    present = [n for n in EAGER if any(n in row["times"] for row in rows.values())]
    titles = [EAGER[name].title for name in present]
    lines: list[Line] = [["µs, best ± spread", *titles, "cpu ratio", "ratio", "aim", ""]]
    for name, row in rows.items():
        cells = [_time_cell(row["times"].get(framework)) for framework in present]
        verdict = {True: "met", False: "missed", None: ""}[row["met"]]
        aim = "" if row["aim"] is None else f"≤ {row['aim']:.1f}"
        ratios = [_ratio_cell(row[key]) for key in ("processor_ratio", "ratio")]
        lines.append([workload(name).title, *cells, *ratios, aim, verdict])
    return aligned(lines)


def ratio_table(rows: Mapping[str, Mapping[str, Any]]) -> str:
    """Weft's ratios to PyTorch: a line for each function and direction, a column for each size.

    By the wall clock, and behind it by the processor's time.
    """
    found = {functions.parts(name): row for name, row in rows.items()}
    sizes = sorted({size for _, size, _ in found})
    lines: list[Line] = [["Weft / PyTorch (cpu)", *map(functions.label, sizes)]]
    for name, backward in dict.fromkeys((name, backward) for name, _, backward in found):
        cells = [_ratio_cells(found.get((name, size, backward))) for size in sizes]
        lines.append([f"{name}{', both ways' if backward else ''}", *cells])
    return aligned(lines)


def memory_digest(states: Mapping[str, Mapping[str, Any]]) -> dict[str, float]:
    """Weft's memory as a multiple of PyTorch's: the process's peak, and what is above the import.

    The import of a library takes what a step does not need, so the aim is for the rest.
    """
    if any("peak_bytes" not in states.get(name, {}) for name in ("weft", "torch")):
        return {}
    own, other = states["weft"], states["torch"]
    above = [state["peak_bytes"] - state["import_bytes"] for state in (own, other)]
    return {"peak": own["peak_bytes"] / other["peak_bytes"], "above_import": above[0] / above[1]}


def memory_table(memory: Mapping[str, Mapping[str, Mapping[str, Any]]]) -> str:
    """Peak resident memory of a few steps, each framework in a process of its own."""
    head = ["memory of a step, MB", "framework", "import", "peak", "above import"]
    lines: list[Line] = [[*head, "ratio of peaks", "ratio above import", "aim"]]
    for name, states in memory.items():
        found = memory_digest(states)
        for framework, state in states.items():
            start = [workload(name).title, EAGER[framework].title]
            if "error" in state:
                lines.append([*start, state["error"][:60], *[""] * 5])
                continue
            sizes = [state["import_bytes"], state["peak_bytes"]]
            cells = [f"{size / 1e6:.0f}" for size in (*sizes, sizes[1] - sizes[0])]
            ratios = [_ratio_cell(found.get(key)) for key in ("peak", "above_import")]
            own = framework == "weft"
            cells += [*ratios, f"≤ {MEMORY_AIM:.1f}"] if own else [""] * 3
            lines.append([*start, *cells])
    return aligned(lines)


def first_table(first: Mapping[str, Mapping[str, Mapping[str, Any]]]) -> str:
    """The first step in a fresh process, with an empty cache folder and with a full one."""
    head = ["first step, seconds", "framework", "caches", "import", "build"]
    lines: list[Line] = [[*head, "first step", "its cpu time", "aim"]]
    for name, frameworks in first.items():
        for framework, states in frameworks.items():
            start = [workload(name).title, EAGER[framework].title]
            if "error" in states:
                lines.append([*start, states["error"][:60], *[""] * 5])
                continue
            for caches, state in states.items():
                parts = ("import", "build", "first", "first_processor")
                cells = [f"{state[f'{part}_seconds']:.3f}" for part in parts]
                aim = f"≤ {FIRST_AIMS[caches]:.1f}" if framework == "weft" else ""
                lines.append([*start, caches, *cells, aim])
    return aligned(lines)


def _time_cell(answer: Mapping[str, Any] | None) -> str:
    if answer is None:
        return "–"
    if "wall" not in answer:
        return "failed"
    return f"{answer['wall']['best'] * 1e6:.1f} ±{100 * answer['wall']['spread']:3.0f} %"


def _ratio_cells(row: Mapping[str, Any] | None) -> str:
    if row is None or row["ratio"] is None:
        return "–"
    return f"{_ratio_cell(row['ratio'])} ({_ratio_cell(row['processor_ratio'])})"


def _ratio_cell(value: float | None) -> str:
    return "–" if value is None else f"{value:.2f}"
