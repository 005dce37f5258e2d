"""Time the eager mode, without `jit`, beside PyTorch's, in one run, on the same inputs.

    make bench                                      # everything, with memory and first steps
    python benchmarks/eager.py --only gelu gpt --sizes 64K 4M --rounds 20
    python benchmarks/eager.py --only training      # a group: small, functions, training, inference
    python benchmarks/eager.py --weft native        # sets WEFT_EAGER for Weft's process
    python benchmarks/eager.py --memory --only gpt  # peak memory of training steps, only
    python benchmarks/eager.py --first              # the first step in fresh processes, only

Each library runs in a process of its own, with the same number of threads. The values that come out
are compared first: a library whose values differ by more than the workload's tolerance is not
timed. Then the libraries take turns in short rounds, so that whatever else the machine does hits
all of them alike. The best sample is the time reported; the spread says how quiet the machine was.
Small operations are also timed in JAX and NumPy, where these are installed.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys
import time
from collections.abc import Callable, Iterable
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))

from suite import measuring  # noqa: E402
from suite.eager import GROUPS, functions, names, report, workload  # noqa: E402
from suite.frameworks import EAGER, installed  # noqa: E402
from suite.machine import processor_name  # noqa: E402
from suite.processes import WorkerProcess, start_workers  # noqa: E402

FUNCTION_PACE = measuring.Pace(turn=0.03, sample=0.0005, limit=8.0)
NETWORK_PACE = measuring.Pace(turn=0.2, limit=30.0)
QUICK_SIZES = (1 << 10,)
MEASURED_FRESH = {"memory": ("gpt", "resnet"), "first": ("lenet-adam",)}
RESULTS = HERE / "results" / "eager.json"


def main() -> None:
    """Measure, print the tables, and write the results if asked to."""
    arguments = _arguments()
    if arguments.weft:
        os.environ["WEFT_EAGER"] = arguments.weft
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[: arguments.threads])
    present = installed(arguments.python, EAGER)
    homes = {n: home for n, home in present.items() if n in (arguments.frameworks or EAGER)}
    results = _settings(arguments)
    write = partial(_write, results, arguments.output or (RESULTS if arguments.json else None))
    alone = arguments.memory or arguments.first
    if arguments.all or not alone:
        _measure_times(homes, arguments, results, write)
    if arguments.all or arguments.memory:
        _measure_fresh("memory", measuring.memory, homes, arguments, results)
        write()
    if arguments.all or arguments.first:
        _measure_fresh("first", measuring.start_up, homes, arguments, results)
    results["load_after"] = os.getloadavg()
    write()
    _print_report(results)


def _write(results: dict[str, Any], path: Path | None) -> None:
    """Write the results so far, if they are to be written."""
    if path is not None:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")


def _settings(arguments: argparse.Namespace) -> dict[str, Any]:
    """Under what conditions the results arise."""
    return {
        "machine": {"cpu": processor_name(), "python": platform.python_version()},
        "threads": arguments.threads,
        "rounds": arguments.rounds,
        "quick": arguments.quick,
        "weft_eager": os.environ.get("WEFT_EAGER", ""),
        "started": time.strftime("%Y-%m-%d %H:%M"),
        "load_before": os.getloadavg(),
        "frameworks": {},
    }


def _measure_times(
    homes: dict[str, Path],
    arguments: argparse.Namespace,
    results: dict[str, Any],
    write: Callable[[], None],
) -> None:
    """Put the rows of all groups into the results, and write each as soon as it is there."""
    results["groups"] = {}
    with ExitStack() as stack:
        caches = Path(stack.enter_context(TemporaryDirectory()))
        fresh = (_fresh_worker(name, home, arguments, caches) for name, home in homes.items())
        workers = start_workers(fresh, stack, results["frameworks"], say)
        for group, members in names(arguments.sizes).items():
            for name in members:
                if _is_wanted(name, group, arguments.only):
                    rows = results["groups"].setdefault(group, {})
                    rows[name] = _measure_row(name, workers, arguments)
                    write()


def _fresh_worker(
    name: str, interpreter: Path, arguments: argparse.Namespace, caches: Path
) -> WorkerProcess:
    return WorkerProcess(name, interpreter, arguments.threads, caches, arguments.quick, eager=True)


def _measure_row(
    name: str, workers: dict[str, WorkerProcess], arguments: argparse.Namespace
) -> dict[str, Any]:
    """The digest of one workload: values compared, then times in turns."""
    case, start = workload(name), time.perf_counter()
    able = {n: worker for n, worker in workers.items() if EAGER[n].side in case.sides}
    whole = case.training or name.endswith("-infer")
    pace = measuring.QUICK if arguments.quick else NETWORK_PACE if whole else FUNCTION_PACE
    row = measuring.measure(name, able, arguments.rounds, pace, say, case.tolerance)
    measuring.drop(able)
    digest = report.digest(name, row)
    ratio = "" if digest["ratio"] is None else f", Weft takes {digest['ratio']:.2f} of PyTorch's"
    say(f"{name}: {time.perf_counter() - start:.1f} s{ratio}")
    for framework, answer in row.items():
        if "error" in answer:
            say(f"  {EAGER[framework].title}: {answer['error']}")
    return digest


def _measure_fresh(
    section: str,
    measure: Any,
    homes: dict[str, Path],
    arguments: argparse.Namespace,
    results: dict[str, Any],
) -> None:
    """Put into the results what is measured in fresh processes, one for each framework."""
    results[section] = {}
    for name in MEASURED_FRESH[section]:
        if not _is_wanted(name, section, arguments.only):
            continue
        results[section][name] = {
            framework: measure(name, partial(_fresh_worker, framework, homes[framework], arguments))
            for framework in EAGER
            if framework in homes and EAGER[framework].side in workload(name).sides
        }
        say(f"{section} of {name}: done")


def _print_report(results: dict[str, Any]) -> None:
    for group, rows in results.get("groups", {}).items():
        print(f"\n{group}\n{report.times_table(rows)}")
        if group == "functions":
            print(f"\n{report.ratio_table(rows)}")
    if "memory" in results:
        print("\n" + report.memory_table(results["memory"]))
    if "first" in results:
        print("\n" + report.first_table(results["first"]))
    loads = [" ".join(f"{x:.1f}" for x in results[key]) for key in ("load_before", "load_after")]
    mode = f"WEFT_EAGER={results['weft_eager']}; " if results["weft_eager"] else ""
    print(f"\n{mode}threads: {results['threads']}; load average {loads[0]}, then {loads[1]}")


def say(text: str) -> None:
    """Progress, beside the report."""
    print(text, file=sys.stderr, flush=True)


def _is_wanted(name: str, group: str, only: Iterable[str] | None) -> bool:
    """Whether its group, its name, or the beginning of its name was asked for."""
    return not only or any(part in (name, group) or name.startswith(f"{part}-") for part in only)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Time the eager mode beside PyTorch's.")
    add = parser.add_argument
    add("--only", nargs="+", metavar="NAME", help=f"of {', '.join(GROUPS)}, or a workload's name")
    add("--sizes", nargs="+", type=functions.count, help="elements of functions, such as 64K 4M")
    add("--rounds", type=int, default=10, help="turns of each library per workload")
    add("--quick", action="store_true", help="tiny sizes, to see that everything runs")
    add("--threads", type=int, default=2, help="for every library")
    add("--frameworks", nargs="+", choices=EAGER, help="only these")
    add("--python", type=Path, action="append", default=[], help="another environment's python")
    add("--weft", choices=("reference", "native"), help="how Weft runs: sets WEFT_EAGER")
    add("--memory", action="store_true", help="only the peak memory of training steps")
    add("--first", action="store_true", help="only the first step, without and with caches")
    add("--all", action="store_true", help="times, memory and first steps")
    add("--json", action="store_true", help=f"write the results to {RESULTS.name}")
    add("--output", type=Path, help="write them there")
    arguments = parser.parse_args()
    if arguments.sizes is None:
        arguments.sizes = QUICK_SIZES if arguments.quick else functions.SIZES
    return arguments


if __name__ == "__main__":
    main()
