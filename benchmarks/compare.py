"""Time Weft beside PyTorch, JAX, Keras and ONNX Runtime, in one run, on the same work.

    make bench                                  # what is installed; PEERS="tensorflow onnxruntime"
    weft bench compare -- --only mlp gpt --rounds 20
    python benchmarks/compare.py --quick        # tiny sizes: does everything still run?

Each framework runs in a process of its own and in the environment where it is installed. They take
turns in short rounds; the best sample is the time reported, the spread says how quiet the machine
was. Weights and data are the same, and the values that come out are compared. `cpu` is the time of
all threads of the process, waiting in a loop included: on a busy machine it is the steadier clock.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys
import time
from collections.abc import Iterable
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))

from suite import measuring, report  # noqa: E402
from suite.frameworks import FRAMEWORKS, installed  # noqa: E402
from suite.plot import picture  # noqa: E402
from suite.processes import WorkerFailure, WorkerProcess  # noqa: E402
from suite.workloads import WORKLOADS  # noqa: E402

STARTED = "mlp", "gpt"
"""The workloads whose first calls and peak memory are measured in fresh processes."""


def main() -> None:
    """Measure, print the tables, write JSON and picture."""
    arguments = _arguments()
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[: arguments.threads])
    found = compare(arguments)
    print_report(found, arguments.quick)
    write(found, arguments.output)
    say(f"written: {arguments.output} and {arguments.output.with_suffix('.svg').name}")


def compare(arguments: argparse.Namespace) -> dict[str, Any]:
    """All results, as they are written to JSON."""
    homes = installed(arguments.python)
    chosen = {n: path for n, path in homes.items() if n in (arguments.frameworks or FRAMEWORKS)}
    found: dict[str, Any] = {
        "machine": {"cpu": _processor(), "python": platform.python_version()},
        "settings": {"rounds": arguments.rounds, "quick": arguments.quick},
        "threads": arguments.threads,
        "load_before": os.getloadavg(),
        "started": time.strftime("%Y-%m-%d %H:%M"),
        "frameworks": {},
        "rows": {},
        "notes": {},
        "profiles": {},
        "start_up": {},
    }
    names = [name for name in WORKLOADS if _wanted(name, arguments.only)]
    with ExitStack() as stack:
        caches = Path(stack.enter_context(TemporaryDirectory()))
        workers = _started(chosen, arguments, caches, stack, found)
        for name in names:
            _measure(name, workers, arguments, found)
            write(found, arguments.output)  # what is there, should the run be cut short
    if not arguments.no_start_up:
        for name in [name for name in STARTED if name in names]:
            found["start_up"][name] = _start_up(name, chosen, arguments)
    found["load_after"] = os.getloadavg()
    return found


def _started(
    chosen: dict[str, Path],
    arguments: argparse.Namespace,
    caches: Path,
    stack: ExitStack,
    found: dict[str, Any],
) -> dict[str, WorkerProcess]:
    workers: dict[str, WorkerProcess] = {}
    for name, interpreter in chosen.items():
        worker = WorkerProcess(name, interpreter, arguments.threads, caches, arguments.quick)
        stack.enter_context(worker)
        try:
            found["frameworks"][name] = worker.ask("hello")
        except WorkerFailure as failure:
            say(f"left out: {failure}")
            continue
        workers[name] = worker
        say(f"{worker.title} {found['frameworks'][name]['version']}")
    if "weft" in workers:
        found["limits"] = workers["weft"].ask("machine")
    return workers


def _measure(
    name: str,
    workers: dict[str, WorkerProcess],
    arguments: argparse.Namespace,
    found: dict[str, Any],
) -> None:
    """One workload: times, whether values agree, and Weft's kernels."""
    say(name)
    row = measuring.measure(name, workers, arguments.rounds, arguments.quick, say)
    if not row:
        return
    row_load = os.getloadavg()[0]
    found["rows"][name] = row
    found["notes"][name] = measuring.agreement(row, WORKLOADS[name].tolerance)
    if "wall" in row.get("weft", {}):
        profile = workers["weft"].ask("profile", calls=3)
        found["profiles"][name] = {**profile, "load": row_load}
    measuring.drop(workers)
    if found["notes"][name]:
        say(f"  {found['notes'][name]}")


def _start_up(
    workload: str, chosen: dict[str, Path], arguments: argparse.Namespace
) -> dict[str, Any]:
    results = {}
    for name, interpreter in chosen.items():
        if FRAMEWORKS[name].side not in WORKLOADS[workload].sides:
            continue
        say(f"start of {workload} in {FRAMEWORKS[name].title}")
        start = partial(_fresh, name, interpreter, arguments)
        results[name] = measuring.start_up(workload, name, start)
    return results


def _fresh(
    name: str, interpreter: Path, arguments: argparse.Namespace, caches: Path
) -> WorkerProcess:
    return WorkerProcess(name, interpreter, arguments.threads, caches, arguments.quick)


def print_report(found: dict[str, Any], quick: bool) -> None:
    """The tables, and what is to be said about them."""
    limits = found.get("limits")
    limits = limits if limits and "flops" in limits else None
    print(report.times_table(found["rows"], WORKLOADS, limits, quick))
    if found["start_up"]:
        print("\n" + report.start_table(found["start_up"]))
    behind = {n: p for n, p in found["profiles"].items() if (_ratio(found, n) or 0) > _aim(n)}
    if behind:
        print("\nwhere Weft's time goes, where an aim is missed:")
        print("\n".join(report.kernel_lines(behind)))
    for name, note in found["notes"].items():
        if note:
            print(f"{name}: {note}")
    if limits:
        flops, memory = limits["flops"] / 1e9, limits["bytes"] / 1e9
        print(f"\npeak: {flops:.0f} GFLOP/s from registers, {memory:.1f} GB/s copied")
    loads = [" ".join(f"{x:.1f}" for x in found[key]) for key in ("load_before", "load_after")]
    print(f"threads: {found['threads']}; load average before: {loads[0]}, after: {loads[1]}")


def _ratio(found: dict[str, Any], name: str) -> float | None:
    return report.ratio(found["rows"][name], "wall")


def _aim(name: str) -> float:
    return WORKLOADS[name].aim or 1.0


def write(found: dict[str, Any], path: Path) -> None:
    """JSON, and beside it the picture."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    versions = (f"{FRAMEWORKS[n].title} {f['version']}" for n, f in found["frameworks"].items())
    load = f"load average at the start {found['load_before'][0]:.1f}"
    machine = f"{found['machine']['cpu']}, {found['threads']} threads, {load}, {found['started']}"
    drawing = picture(found["rows"], WORKLOADS, [machine, ", ".join(versions)])
    path.with_suffix(".svg").write_text(drawing, encoding="utf-8")


def say(text: str) -> None:
    """Progress, beside the report."""
    print(text, file=sys.stderr, flush=True)


def _wanted(name: str, only: Iterable[str] | None) -> bool:
    """Whether a name, or the beginning of it, was asked for."""
    return not only or any(name == part or name.startswith(f"{part}-") for part in only)


def _processor() -> str:
    information = Path("/proc/cpuinfo")
    lines = information.read_text(encoding="utf-8").splitlines() if information.exists() else []
    models = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return models[0] if models else platform.machine()


def _cores() -> int:
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Time Weft beside other frameworks.")
    add = parser.add_argument
    add("--only", nargs="+", metavar="NAME", help=f"of {', '.join(WORKLOADS)}; matmul means all")
    add("--frameworks", nargs="+", choices=FRAMEWORKS, help="only these")
    add("--rounds", type=int, default=10, help="turns of each framework per workload")
    add("--quick", action="store_true", help="tiny sizes, to see that everything runs")
    add("--threads", type=int, default=_cores(), help="for every framework")
    add("--python", type=Path, action="append", default=[], help="another environment's python")
    add("--no-start-up", action="store_true", help="without first calls in fresh processes")
    add("--output", type=Path, default=HERE / "results" / "compare.json", help="where it goes")
    return parser.parse_args()


if __name__ == "__main__":
    main()
