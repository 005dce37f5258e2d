"""Predicted against measured step times: do plans rank choices as they really are.

    python benchmarks/plans.py

For 2, 4 and 8 processes of this machine the costs are measured first. Then steps of two networks
are run with every way of a plan (data parallel, state divided, tensors split along `model`, their
mixtures) and with pipelines, and the times are compared with those that the plan had predicted.
What counts is Spearman's rank correlation over all configurations.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

import weft as wf
from weft.distributed import measuring, read_costs

HERE = Path(__file__).resolve()
NETWORKS = {"wide": (256, 1024, 3), "deep": (128, 256, 8)}
"""The width of inputs, that of hidden layers, and how many of those there are."""
ROWS = 128


def network(name: str) -> Any:
    """A multilayer perceptron, the same in all processes."""
    wf.random.seed(0)
    width, hidden, count = NETWORKS[name]
    layers: list[Any] = [wf.nn.Linear(width, hidden), wf.nn.Tanh()]
    for _ in range(count):
        layers += [wf.nn.Linear(hidden, hidden), wf.nn.Tanh()]
    return wf.nn.Sequential(*layers, wf.nn.Linear(hidden, 16))


def batch(name: str) -> tuple[wf.Tensor, wf.Tensor]:
    """The global batch."""
    x = np.random.default_rng(0).normal(size=(ROWS, NETWORKS[name][0])).astype(np.float32)
    return wf.tensor(x), wf.zeros((ROWS, 16))


def train_step(net: Any, optimizer: Any, x: wf.Tensor, y: wf.Tensor) -> wf.Tensor:
    """One step."""
    loss = ((net(x) - y) ** 2).mean()
    optimizer.minimize(loss)
    return loss


def choices_of(name: str, devices: int, costs: wf.distributed.Costs) -> list[Any]:
    """Ways to divide a step over so many processes, in an order that all processes share."""
    net, (x, y) = network(name), batch(name)
    optimizer = wf.optim.Adam(net.parameters(), lr=1e-3)
    found = wf.distributed.plan(train_step, net, optimizer, x, y, devices=devices, costs=costs)
    pipelines = wf.distributed.plan_pipeline(net, x, devices=devices, costs=costs)
    ways = sorted(found.choices, key=lambda each: (str(each.mesh), each.state))
    wanted = [
        each
        for each in sorted(pipelines.choices, key=lambda each: (str(each.mesh), each.state))
        if each.mesh.axes["stage"] in (2, 4)
        and each.pipeline["micro_batches"] <= 8
        and not each.pipeline["recompute"]
    ]
    return [*ways[:: max(len(ways) // 3, 1)][:3], *wanted[:: max(len(wanted) // 2, 1)][:2]]


def spans_of(step: Callable[[], Any], repeats: int) -> list[float]:
    """The times of steps, begun by all processes together."""
    spans = []
    for _ in range(repeats):
        wf.distributed.barrier()
        begin = time.perf_counter()
        step()
        wf.distributed.barrier()
        spans.append(time.perf_counter() - begin)
    return spans


def step_of(name: str, choice: Any) -> Callable[[], Any]:
    """The step of a choice, in the processes of this job."""
    net, (x, y) = network(name), batch(name)
    if choice.pipeline is None:
        wf.distributed.bind_axes(choice.mesh.axes)
        optimizer = wf.optim.Adam(net.parameters(), lr=1e-3)
        divided = wf.distributed.partition(train_step, choice.mesh, choice.placements)
        divided.scatter(net, optimizer, x, y)
        return lambda: divided(net, optimizer, x, y).item()
    axes = choice.mesh.axes
    wf.distributed.bind_axes(axes)
    pipeline = wf.distributed.Pipeline(net, wf.nn.functional.mse_loss, **choice.pipeline)
    optimizer = wf.optim.Adam(pipeline.parameters(), lr=1e-3)
    pipeline.share(optimizer, data_axis="data")
    place = int(wf.distributed.axis_index("data").item())
    own = slice(place, None, axes["data"])
    inputs, targets = x[own], y[own]

    def step() -> None:
        pipeline.step(inputs, targets)
        optimizer.step()
        optimizer.zero_grad()

    return step


def work(options: argparse.Namespace) -> None:
    """One process of a job: run all choices, and have the first process write their times."""
    wf.distributed.init(timeout=120)
    devices, costs = wf.distributed.world_size(), read_costs(options.costs)
    names = options.networks.split(",")
    choices = [(name, each) for name in names for each in choices_of(name, devices, costs)]
    steps = [step_of(name, choice) for name, choice in choices]
    spans: list[list[float]] = [[] for _ in steps]
    for turn in range(options.rounds + 1):  # in turns, because the machine has other work, too
        for (_, choice), step, kept in zip(choices, steps, spans, strict=True):
            wf.distributed.bind_axes(choice.mesh.axes)
            measured = spans_of(step, options.repeats if turn else 1)
            kept += measured if turn else []  # the first one compiles
    rows = []
    for (name, choice), kept in zip(choices, spans, strict=True):
        axes = " x ".join(f"{axis} {size}" for axis, size in choice.mesh.axes.items())
        text = f"{name}, {devices} processes, {axes}, {choice.state}"
        rows.append((text, choice.simulated.seconds, statistics.median(kept)))
    if wf.distributed.rank() == 0:
        Path(options.worker).write_text(json.dumps(rows), encoding="utf-8")


def launch(count: int, script: Path, *words: str) -> None:
    """Run a script in so many processes."""
    command = [sys.executable, "-m", "weft.cli", "launch", "-n", str(count), "--threads", "1"]
    patient = {**os.environ, "OMPI_MCA_mpi_yield_when_idle": "1"}
    subprocess.run([*command, str(script), *words], check=True, env=patient)


def rank_correlation(first: list[float], second: list[float]) -> float:
    """Spearman's: the correlation of the ranks.

    >>> rank_correlation([1.0, 2.0, 9.0], [3.0, 4.0, 5.0])
    1.0
    """
    ranks = [np.argsort(np.argsort(values)) for values in (first, second)]
    return round(float(np.corrcoef(*ranks)[0, 1]), 6)


def main() -> None:
    """Measure costs and steps, and print the comparison."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--processes", default="2,4,8")
    parser.add_argument("--networks", default="wide,deep")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", help="write the numbers here, too")
    parser.add_argument("--costs")
    parser.add_argument("--worker")
    options = parser.parse_args()
    if options.worker:
        work(options)
        return
    rows: list[tuple[str, float, float]] = []
    with tempfile.TemporaryDirectory() as folder:
        for count in map(int, options.processes.split(",")):
            costs, output = Path(folder) / f"costs-{count}", Path(folder) / f"rows-{count}"
            launch(count, Path(measuring.__file__), str(costs))
            print(f"{count} processes: {read_costs(costs)}", flush=True)
            words = ["--worker", str(output), "--costs", str(costs)]
            words += ["--networks", options.networks, "--repeats", str(options.repeats)]
            words += ["--rounds", str(options.rounds)]
            launch(count, HERE, *words)
            rows += json.loads(output.read_text(encoding="utf-8"))
    for text, predicted, measured in sorted(rows, key=lambda row: row[2]):
        print(f"{predicted * 1e3:9.2f} ms predicted {measured * 1e3:9.2f} ms measured  {text}")
    predicted, measured = [row[1] for row in rows], [row[2] for row in rows]
    ratio = statistics.median(m / p for p, m in zip(predicted, measured, strict=True))
    print(f"{len(rows)} configurations, rank correlation "
          f"{rank_correlation(predicted, measured):.3f}, median of measured over predicted "
          f"{ratio:.2f}")  # fmt: skip
    if options.json:
        names = ("configuration", "predicted_seconds", "measured_seconds")
        table = [dict(zip(names, row, strict=True)) for row in rows]
        Path(options.json).write_text(json.dumps(table, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
