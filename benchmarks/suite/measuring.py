"""The order of measurement: workers take turns in rounds, so that noise hits all of them alike."""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from suite.processes import WorkerFailure, WorkerProcess

Row = dict[str, dict[str, Any]]
"""What was found for each framework."""

LONG_STEP = 0.1
"""Seconds from which a step is measured without others before it."""
LONGEST_TURN = 2.0
"""How many times as long as planned a turn may become on a busy machine."""
FEWEST_ROUNDS = 3
LARGEST_TURN = 50
"""Samples of one worker before the next has its turn."""


@dataclass(frozen=True)
class Pace:
    """How long the workers of a row are measured, in seconds.

    turn: of each worker in a round. sample: as many calls as fit in, at least one. limit: after
    which no further round begins, once there were `FEWEST_ROUNDS`.
    """

    turn: float = 0.2
    sample: float = 0.002
    limit: float = math.inf


QUICK = Pace(turn=0.01)


def measure(
    workload: str,
    workers: Mapping[str, WorkerProcess],
    rounds: int,
    pace: Pace,
    say: Callable[[str], None],
    tolerance: float = math.inf,
) -> Row:
    """Times of one workload; a worker that fails has a row that says why.

    Values further apart than the tolerance are a failure.
    """
    row = _prepared(workload, workers, say)
    _refuse_differences(row, tolerance)
    ready = {name: workers[name] for name, answer in row.items() if "error" not in answer}
    samples: dict[str, dict[str, list[float]]] = {n: {"wall": [], "processor": []} for n in ready}
    plans = {n: _plan(w, pace) for n, w in ready.items()}
    last = time.perf_counter() + pace.limit
    for number in range(rounds):
        if number >= FEWEST_ROUNDS and time.perf_counter() > last:
            break
        for name, worker in ready.items():
            answer = _asked(worker, "time", **plans[name], limit=LONGEST_TURN * pace.turn)
            row[name].update({key: text for key, text in answer.items() if key == "error"})
            for clock, values in samples[name].items():
                values += answer.get(clock, [])
    for name in ready:
        row[name].update({clock: summary(v) for clock, v in samples[name].items() if v})
        row[name]["calls"] = plans[name]["calls"]
    return row


def _prepared(
    workload: str, workers: Mapping[str, WorkerProcess], say: Callable[[str], None]
) -> Row:
    """The first values of each side that has the workload."""
    row: Row = {}
    for name, worker in workers.items():
        answer = _asked(worker, "prepare", workload=workload)
        if "absent" not in answer:
            row[name] = answer
            if "error" in answer:
                say(f"  {worker.title}: {answer['error']}")
    return row


def _refuse_differences(row: Row, tolerance: float) -> None:
    """Put an error where values differ from the first side's."""
    for name, difference in differences(row).items():
        if not difference <= tolerance:
            row[name]["error"] = f"values differ by {difference:.1e}, more than {tolerance:.0e}"


def peak_of(worker: WorkerProcess) -> dict[str, Any]:
    """The most memory that two steps of a worker's workload have in use."""
    return _asked(worker, "memory", steps=2)


def drop(workers: Mapping[str, WorkerProcess]) -> None:
    """Let every worker forget its workload."""
    for worker in workers.values():
        _asked(worker, "drop")


def start_up(workload: str, start: Callable[[Path], WorkerProcess]) -> dict[str, Any]:
    """A fresh process with empty caches, and another with what the first one left in them."""
    found: dict[str, Any] = {}
    with TemporaryDirectory() as folder:
        for state in ("cold", "warm"):
            with start(Path(folder)) as worker:
                hello = _asked(worker, "hello")
                prepared = _asked(worker, "prepare", workload=workload)
                if "error" in hello or "first_seconds" not in prepared:
                    return {"error": str(hello.get("error") or prepared)[:400]}
                _asked(worker, "time", samples=3, calls=1)
                kept = ("first_seconds", "first_processor_seconds", "build_seconds")
                found[state] = {**hello, **{key: prepared[key] for key in kept}}
                found[state] |= _asked(worker, "drop")
    return found


def memory(workload: str, start: Callable[[Path], WorkerProcess]) -> dict[str, Any]:
    """The most memory of a few steps in a fresh process, and what the import brought."""
    with TemporaryDirectory() as folder, start(Path(folder)) as worker:
        hello = _asked(worker, "hello")
        prepared = _asked(worker, "prepare", workload=workload, checked=1)
        answer = _asked(worker, "memory", steps=2)
        failed = [each["error"] for each in (hello, prepared, answer) if "error" in each]
        return {"error": failed[0]} if failed else {**hello, **answer}


def differences(row: Row) -> dict[str, float]:
    """How far the values of each side are from the first one's, as a share of the largest."""
    values = {n: np.array(a["values"]) for n, a in row.items() if "values" in a}
    first = next(iter(values.values()), np.zeros(0))
    return {name: _difference(first, found) for name, found in values.items()}


def agreement(row: Row, tolerance: float) -> str:
    """Empty if all sides computed the same values, else who differs, from whom, and by how much."""
    found = differences(row)
    wrong = [f"{n} by {d:.1e}" for n, d in found.items() if not d <= tolerance]
    return f"values differ from {next(iter(found))}'s: " + ", ".join(wrong) if wrong else ""


def _difference(a: np.ndarray, b: np.ndarray) -> float:
    if a.shape != b.shape:
        return math.inf
    return float(np.max(np.abs(a - b)) / max(1e-6, np.max(np.abs(a))))


def summary(values: list[float]) -> dict[str, float]:
    """Best, median, and the distance of the quartiles as a share of the median; in seconds."""
    median = statistics.median(values)
    low, _, high = statistics.quantiles(values, n=4) if len(values) > 1 else (median,) * 3
    spread = (high - low) / median if median else 0.0
    return {"best": min(values), "median": median, "spread": spread, "samples": len(values)}


def _plan(worker: WorkerProcess, pace: Pace) -> dict[str, int]:
    """How a worker's turns are measured: a long step is no faster for a call before it."""
    alone = _asked(worker, "time", samples=1, calls=1, warm=False).get("wall", [1.0])
    step = max(1e-7, min(alone))
    if step < LONG_STEP:  # one sample may have met a busy moment
        step = min([step, *_asked(worker, "time", samples=10, calls=1).get("wall", [])])
    calls = max(1, int(pace.sample / step))
    samples = min(LARGEST_TURN, max(1, int(pace.turn / (step * calls))))
    return {"calls": calls, "samples": samples, "warm": step < LONG_STEP}


def _asked(worker: WorkerProcess, do: str, **request: Any) -> dict[str, Any]:
    try:
        return worker.ask(do, **request)
    except WorkerFailure as error:
        return {"error": str(error)}
