"""What this machine, or these processes, really do: the numbers that plans are made with.

    weft plan model.py:net --input 256x784 --devices 4 --measure

All processes compute at once, so that cores which they share count as they will in training. A
link is measured by sums over all processes: few bytes for the latency, many for the bandwidth.

>>> from weft.distributed.measuring import fit_line
>>> fit_line([(0.0, 2.0), (100.0, 4.0), (200.0, 6.0)])
(2.0, 50.0)
"""

from __future__ import annotations

import json
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

import weft as wf
from weft.collectives import all_reduce, find_group
from weft.distributed.process_group import gather_objects, init, is_initialized, world
from weft.files import write_text
from weft.sharding import Costs

__all__ = ["fit_line", "main", "measure_costs", "read_costs"]

SUMS = (1 << 8, 1 << 12, 1 << 16, 1 << 20, 1 << 22)
"""Bytes of the sums that a link is measured by."""
COLLECTIVES = 4
"""How many collectives, one after the other, are one repetition."""
STRETCH = 0.1
"""Seconds of work in one stretch: longer than a turn on a core that is shared."""
PRODUCT, ELEMENTS = 384, 1 << 21
"""The size of the matrices, and of the vectors, that work is measured by."""


def measure_costs(mesh_axis: str = "world", repeats: int = 7) -> Costs:
    """The costs of this process's work and of a mesh axis; the same on all processes.

    Each is a median over repetitions, and the mean over processes.

    >>> import weft as wf
    >>> wf.distributed.init()
    >>> wf.distributed.measure_costs(repeats=1).flops > 1e6
    True
    >>> wf.distributed.shutdown()
    """
    own = (*_measure_work(repeats), *_measure_link(mesh_axis, repeats))
    rows = gather_objects(own)
    flops, memory, overhead, latency, bandwidth = (
        statistics.fmean(column) for column in zip(*rows, strict=True)
    )
    return Costs(bandwidth, latency, flops, memory, overhead)


def _measure_work(repeats: int) -> tuple[float, float, float]:
    """Operations of products and bytes of memory per second, and seconds to start a program."""
    matrix = wf.ones((PRODUCT, PRODUCT))
    product = _seconds_of(wf.jit(lambda x: x @ x), matrix, repeats)
    vector = wf.ones((ELEMENTS,))
    copied = _seconds_of(wf.jit(lambda x: x * 2 + 1), vector, repeats)
    start = _seconds_of(wf.jit(lambda x: x + 1), wf.ones((8,)), repeats)
    flops = 2 * PRODUCT**3 / max(product - start, 1e-9)
    return flops, 8 * ELEMENTS / max(copied - start, 1e-9), start


def _seconds_of_sum(
    function: Callable[[wf.Tensor], wf.Tensor], x: wf.Tensor, repeats: int
) -> float:
    """The time of a collective, of several one after the other.

    The median of repetitions: one in which a process lost its core counts as one.
    """
    function(x).numpy()
    spans = []
    for _ in range(repeats):
        world().barrier()
        begin = time.perf_counter()
        for _ in range(COLLECTIVES):
            function(x).numpy()
        spans.append((time.perf_counter() - begin) / COLLECTIVES)
    return statistics.median(spans)


def _measure_link(mesh_axis: str, repeats: int) -> tuple[float, float]:
    """Seconds before a collective's first byte, and bytes per second that this process sends."""
    size = find_group("measure_costs", mesh_axis).size if is_initialized() else 1
    if size == 1:
        return Costs().latency, Costs().bandwidth
    compiled = wf.jit(lambda x: all_reduce(x, mesh_axis))
    points = []
    for count in SUMS:
        seconds = _seconds_of_sum(compiled, wf.ones((count // 4,)), repeats)
        points.append((2 * (size - 1) / size * count, seconds))
    latency = min(seconds for _, seconds in points[:2])
    _, bandwidth = fit_line(points)
    return latency, bandwidth


def _seconds_of(function: Callable[[wf.Tensor], wf.Tensor], x: wf.Tensor, repeats: int) -> float:
    """The time of a call, of many one after the other in all processes together.

    So a process that has to wait for its turn on a core does so here, too.
    """
    function(x).numpy()
    spans = []
    for _ in range(repeats):
        if is_initialized() and world().size > 1:
            world().barrier()
        begin, calls = time.perf_counter(), 0
        while calls < 2 or time.perf_counter() - begin < STRETCH:
            function(x).numpy()
            calls += 1
        spans.append((time.perf_counter() - begin) / calls)
    return statistics.median(spans)


def fit_line(points: Sequence[tuple[float, float]]) -> tuple[float, float]:
    """Seconds at no bytes, and bytes per second, of the line through points of bytes and seconds.

    Points count by their share of the seconds, so that small ones are not lost among large ones.
    """
    x, y = np.array(points, np.float64).T
    weight = 1 / np.maximum(y, 1e-9)
    matrix = np.stack([weight, weight * x], axis=1)
    (start, slope), *_ = np.linalg.lstsq(matrix, weight * y, rcond=None)
    return float(round(max(start, 0.0), 12)), float(round(1 / max(slope, 1e-15), 3))


def read_costs(path: str | Path) -> Costs:
    """Costs from a file that `weft plan --measure` has written."""
    text = Path(path).read_text(encoding="utf-8")
    numbers: dict[str, Any] = json.loads(text)
    return Costs(**numbers)


def main(arguments: Sequence[str]) -> None:
    """Measure in the processes of a job, and have the first one write what was found."""
    init()
    found = measure_costs()
    if world().rank == 0:
        write_text("plan", Path(arguments[0]), json.dumps(asdict(found)))


if __name__ == "__main__":
    main(sys.argv[1:])
