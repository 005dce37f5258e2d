"""Runs read from their folders: what `train.RunLog` wrote, bounded however long it is.

>>> import pathlib, tempfile
>>> read_runs(pathlib.Path(tempfile.mkdtemp()))
[]
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TypeGuard

from weft.files import open_file

RUNS, DEPTH = 200, 4
"""The most runs that are shown, and how many folders deep they are looked for."""
POINTS = 600
"""The most points of a curve; of more, the lowest and the highest of each stretch are kept."""
LONGEST_LINE = 1 << 20
SAMPLES, MESSAGES = 300, 500
"""The most samples and messages of a run; the latest are kept."""

Points = list[tuple[float, float | None]]
Run = dict[str, Any]


def run_folders(root: Path) -> list[Path]:
    """The folders of runs below a folder, or that folder itself."""
    found: list[Path] = []
    level = [root]
    for _ in range(DEPTH):
        found += [folder for folder in level if (folder / "run.json").is_file()]
        inner = [folder for folder in level if not (folder / "run.json").is_file()]
        level = [each for folder in inner for each in _subfolders(folder)]
    return sorted(found)[:RUNS]


def _subfolders(folder: Path) -> list[Path]:
    try:
        return [each for each in folder.iterdir() if each.is_dir() and not each.is_symlink()]
    except OSError:  # one that may not be read is passed over
        return []


def run_name(root: Path, folder: Path) -> str:
    """What a run is called on the page."""
    return folder.relative_to(root).as_posix() if folder != root else folder.name


def read_runs(root: Path) -> list[Run]:
    """All runs below a folder, as the page shows them."""
    return [read_run(folder, run_name(root, folder)) for folder in run_folders(root)]


def read_run(folder: Path, name: str) -> Run:
    """A run: what it is, its curves, the machine's, its samples and messages."""
    run: Run = {"name": name, **_run_description(folder / "run.json")}
    curves: dict[str, Points] = {}
    machine: dict[str, Points] = {}
    samples: list[dict[str, Any]] = []
    messages: list[dict[str, Any]] = []
    for line in _lines(folder / "log.jsonl"):
        step = line.get("step")
        if not _is_number(step):
            continue
        if "sample" in line:
            samples.append(line)
        elif "message" in line:
            messages.append(line)
        elif isinstance(line.get("machine"), dict):
            _add_points(machine, "", step, line["machine"])
        else:
            prefix = "epoch/" if "epoch" in line else "step/"
            _add_points(curves, prefix, step, line)
    run["curves"] = {name: thin_out(points) for name, points in curves.items()}
    run["use"] = {name: thin_out(points) for name, points in machine.items()}
    run["samples"], run["messages"] = samples[-SAMPLES:], messages[-MESSAGES:]
    return run


def _run_description(path: Path) -> dict[str, Any]:
    try:
        with open_file("board", path) as file:
            about = json.loads(file.read(LONGEST_LINE))
    except (OSError, ValueError, RecursionError):
        return {"status": "run.json cannot be read"}
    if not isinstance(about, dict):
        return {"status": "run.json holds no table"}
    return {key: value for key, value in about.items() if key != "name"}


def _lines(path: Path) -> Iterator[dict[str, Any]]:
    """The lines of a log; what was cut off, or is no table, is passed over."""
    try:
        with open_file("board", path) as file:
            while text := file.readline(LONGEST_LINE):
                try:
                    line = json.loads(text)
                except (ValueError, RecursionError):
                    continue
                if isinstance(line, dict):
                    yield line
    except OSError:
        return


def _add_points(
    curves: dict[str, Points], prefix: str, step: float, numbers: dict[str, Any]
) -> None:
    for name, value in numbers.items():
        if name not in ("step", "epoch") and _is_number(value):
            # JSON has no word for what is not finite: the curve has a gap there
            shown = float(value) if math.isfinite(value) else None
            curves.setdefault(prefix + name, []).append((float(step), shown))


def _is_number(value: Any) -> TypeGuard[float]:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def thin_out(points: Points) -> Points:
    """At most `POINTS` points of a curve, the lowest and the highest of each stretch among them.

    >>> long = [(float(i), float(i == 700)) for i in range(2000)]
    >>> len(thin_out(long)) <= POINTS, (700.0, 1.0) in thin_out(long)
    (True, True)
    """
    if len(points) <= POINTS:
        return points
    kept: set[int] = {0, len(points) - 1}
    stretches = POINTS // 2 - 1
    for number in range(stretches):
        begin = number * len(points) // stretches
        end = (number + 1) * len(points) // stretches
        finite = [i for i in range(begin, end) if points[i][1] is not None]
        if finite:
            kept.add(min(finite, key=lambda i: points[i][1] or 0.0))
            kept.add(max(finite, key=lambda i: points[i][1] or 0.0))
    return [points[i] for i in sorted(kept)]
