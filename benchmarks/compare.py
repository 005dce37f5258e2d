"""Time Weft beside PyTorch, JAX, Keras and ONNX Runtime, in one run, on the same work.

    make bench                                  # what is installed; PEERS="tensorflow onnxruntime"
    weft bench compare -- --only mlp gpt --rounds 20
    python benchmarks/compare.py --quick        # tiny sizes: does everything still run?
    python benchmarks/compare.py --resume       # what a run that was cut short has not measured

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
from suite.machine import processor_name  # noqa: E402
from suite.plot import picture  # noqa: E402
from suite.processes import WorkerProcess, start_workers  # noqa: E402
from suite.task import CARD  # noqa: E402
from suite.workloads import WORKLOADS  # noqa: E402

STARTED: dict[str, tuple[str, ...]] = {
    "mlp": (),
    "gpt": (),
    "gpt-infer": ("weft", "torch", "onnx"),
}
STARTED_ON_CARD = {"gpt": ("weft", "torch"), "mlp": ("weft", "torch")}
"""The workloads whose first calls and peak memory are measured in fresh processes; of whom, if not
of all."""
CACHES = HERE.parent / "build" / "benchmark-caches"
"""What PyTorch compiled in earlier runs; first calls are measured without it."""


PEERS = ("torch", "torch-compile", "jax")
"""Those whose absence is told; others are measured where they are installed."""


def main() -> None:
    """Measure, print the tables, write JSON and picture."""
    arguments = _arguments()
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[: arguments.threads])
    found = compare(arguments)
    write(found, arguments.output)
    print_report(found, arguments.quick)
    say(f"written: {arguments.output} and {arguments.output.with_suffix('.svg').name}")


def compare(arguments: argparse.Namespace) -> dict[str, Any]:
    """All results, as they are written to JSON; each row as soon as it is there."""
    homes = installed(arguments.python)
    chosen = {n: path for n, path in homes.items() if n in (arguments.frameworks or FRAMEWORKS)}
    for name in arguments.frameworks or PEERS:
        if name not in homes:
            say(f"not installed, left out: {FRAMEWORKS[name].title}")
    found = _begun(arguments)
    names = [name for name in WORKLOADS if _wanted(name, arguments.only)]
    missing = [name for name in names if arguments.only or name not in found["rows"]]
    with ExitStack() as stack:
        caches = Path(stack.enter_context(TemporaryDirectory()))
        workers = _started(chosen, arguments, caches, stack, found) if missing else {}
        for name in missing:
            _measure(name, workers, arguments, found)
            write(found, arguments.output)
    started = STARTED_ON_CARD if CARD else STARTED
    starts = [] if arguments.no_start_up else [name for name in started if name in names]
    for name in starts:
        if arguments.only or name not in found["start_up"]:
            found["start_up"][name] = _start_up(name, chosen, arguments)
            write(found, arguments.output)
    found["load_after"] = os.getloadavg()
    return found


def _begun(arguments: argparse.Namespace) -> dict[str, Any]:
    """An empty result, with what an earlier run wrote if it is to be resumed."""
    found: dict[str, Any] = {
        "machine": {"cpu": processor_name(), "python": platform.python_version(), "card": CARD},
        "settings": {"rounds": arguments.rounds, "quick": arguments.quick},
        "threads": arguments.threads,
        "load_before": os.getloadavg(),
        "started": time.strftime("%Y-%m-%d %H:%M"),
        "frameworks": {},
        "rows": {},
        "conditions": {},
        "profiles": {},
        "start_up": {},
    }
    if not arguments.resume or not arguments.output.exists():
        return found
    earlier = json.loads(arguments.output.read_text(encoding="utf-8"))
    if earlier["settings"]["quick"] != arguments.quick or earlier["threads"] != arguments.threads:
        sys.exit(f"{arguments.output} was measured with other sizes or threads: not resumed")
    kept = ("frameworks", "rows", "conditions", "profiles", "start_up", "limits")
    return found | {key: earlier[key] for key in kept if key in earlier}


def _started(
    chosen: dict[str, Path],
    arguments: argparse.Namespace,
    caches: Path,
    stack: ExitStack,
    found: dict[str, Any],
) -> dict[str, WorkerProcess]:
    fresh = (
        WorkerProcess(
            name,
            interpreter,
            arguments.threads,
            CACHES if FRAMEWORKS[name].module == "torch" else caches,
            arguments.quick,
        )
        for name, interpreter in chosen.items()
    )
    workers = start_workers(fresh, stack, found["frameworks"], say)
    if "weft" in workers and not CARD:
        found["limits"] = workers["weft"].ask("machine")
    return workers


def _measure(
    name: str,
    workers: dict[str, WorkerProcess],
    arguments: argparse.Namespace,
    found: dict[str, Any],
) -> None:
    """One workload: times, values, and Weft's kernels."""
    start, load = time.perf_counter(), os.getloadavg()
    pace = measuring.QUICK if arguments.quick else measuring.Pace()
    row = measuring.measure(name, workers, arguments.rounds, pace, say)
    if not row:
        return
    found["rows"][name] = row
    if CARD:
        for each in [each for each in row if "wall" in row[each]]:
            row[each]["card"] = measuring.peak_of(workers[each])
    elif "wall" in row.get("weft", {}):
        found["profiles"][name] = workers["weft"].ask("profile", calls=3)
    measuring.drop(workers)
    seconds = time.perf_counter() - start
    at = time.strftime("%Y-%m-%d %H:%M")
    found["conditions"][name] = {"at": at, "seconds": seconds, "load": load}
    ratio = report.ratio(row, "wall")
    words = "" if ratio is None else f", Weft takes {ratio:.2f} of {report.best_peer(row, 'wall')}"
    say(f"{name}: {seconds:.0f} s{words} {measuring.agreement(row, WORKLOADS[name].tolerance)}")


def _start_up(
    workload: str, chosen: dict[str, Path], arguments: argparse.Namespace
) -> dict[str, Any]:
    results = {}
    for name, interpreter in chosen.items():
        of_whom = (STARTED_ON_CARD if CARD else STARTED)[workload] or tuple(FRAMEWORKS)
        if name not in of_whom or FRAMEWORKS[name].side not in WORKLOADS[workload].sides:
            continue
        say(f"start of {workload} in {FRAMEWORKS[name].title}")
        start = partial(_fresh, name, interpreter, arguments)
        results[name] = measuring.start_up(workload, start)
    return results


def _fresh(
    name: str, interpreter: Path, arguments: argparse.Namespace, caches: Path
) -> WorkerProcess:
    return WorkerProcess(name, interpreter, arguments.threads, caches, arguments.quick)


def _limits(found: dict[str, Any]) -> dict[str, float] | None:
    limits = found.get("limits")
    return limits if limits and "flops" in limits else None


def print_report(found: dict[str, Any], quick: bool) -> None:
    """The tables, and what is to be said about them."""
    limits = _limits(found)
    print(report.times_table(found["rows"], WORKLOADS, limits, quick))
    if CARD:
        print("\n" + report.card_table(found["rows"], WORKLOADS, quick))
    if found["start_up"]:
        print("\n" + report.start_table(found["start_up"]))
    digests = found["digests"]
    behind = {n: p for n, p in found["profiles"].items() if digests[n]["met"] is False}
    if behind and not quick:
        print("\nwhere Weft's time goes, where an aim is missed:")
        print("\n".join(report.kernel_lines(behind)))
    for name, row in found["rows"].items():
        failed = [f"{FRAMEWORKS[n].title}: {f['error']}" for n, f in row.items() if "error" in f]
        for text in filter(None, [digests[name]["note"], *failed]):
            print(f"{name}: {text}")
    if limits:
        flops, memory = limits["flops"] / 1e9, limits["bytes"] / 1e9
        print(f"\npeak: {flops:.0f} GFLOP/s from registers, {memory:.1f} GB/s copied")
    loads = [" ".join(f"{x:.1f}" for x in found[key]) for key in ("load_before", "load_after")]
    print(f"threads: {found['threads']}; load average before: {loads[0]}, after: {loads[1]}")


def write(found: dict[str, Any], path: Path) -> None:
    """JSON, and beside it the picture."""
    rows, limits, quick = found["rows"], _limits(found), found["settings"]["quick"]
    digests = {n: report.digest(row, WORKLOADS[n], limits, quick) for n, row in rows.items()}
    found["digests"] = digests
    found["start_up_ratios"] = {n: report.start_digest(s) for n, s in found["start_up"].items()}
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


def _cores() -> int:
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Time Weft beside other frameworks.")
    add = parser.add_argument
    add("--only", nargs="+", metavar="NAME", help=f"of {', '.join(WORKLOADS)}; matmul means all")
    add("--frameworks", nargs="+", choices=FRAMEWORKS, help="only these")
    add("--rounds", type=int, default=6, help="turns of each framework per workload")
    add("--quick", action="store_true", help="tiny sizes, to see that everything runs")
    add("--threads", type=int, default=_cores(), help="for every framework")
    add("--python", type=Path, action="append", default=[], help="another environment's python")
    add("--no-start-up", action="store_true", help="without first calls in fresh processes")
    add("--resume", action="store_true", help="keep rows that are in the output, measure others")
    add("--output", type=Path, default=HERE / "results" / "compare.json", help="where it goes")
    return parser.parse_args()


if __name__ == "__main__":
    main()
