"""One framework in a process of its own: reads requests as lines of JSON, answers in the same way.

    python -m suite.worker torch --quick

With `--eager` it has the workloads of the eager mode and compiles nothing. A worker sleeps while
others are measured. What a framework prints goes to standard error.
"""

from __future__ import annotations

import argparse
import gc
import importlib
import json
import math
import os
import resource
import sys
import time
import traceback
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, TextIO, cast

from suite.frameworks import EAGER, FRAMEWORKS
from suite.task import DEVICE, Step, Task, Workload


def _jax_has_card(jax: Any) -> bool:
    """Whether JAX computes on a card: one that does not would be measured on the processor."""
    return any(device.platform == "gpu" for device in jax.devices())


CHECKED = 4
"""How many first values are compared with those of the other frameworks."""


class Worker:
    """The current workload, and what can be asked about it."""

    def __init__(self, name: str, quick: bool, eager: bool = False) -> None:
        self.framework, self.quick = (EAGER if eager else FRAMEWORKS)[name], quick
        start = time.perf_counter()
        module = importlib.import_module(self.framework.module)
        self.import_seconds = time.perf_counter() - start
        self.version = str(module.__version__)
        _set_threads(self.framework.module, module)
        if DEVICE != "cpu" and self.framework.module == "torch":
            module.set_default_device(DEVICE)  # models make their places where they compute
        elif DEVICE != "cpu" and self.framework.module == "weft":
            module.settings.device = DEVICE
        if DEVICE == "cuda" and self.framework.module == "jax" and not _jax_has_card(module):
            raise SystemExit("JAX sees no card: install jax[cuda13]")
        self.side: Any = importlib.import_module(f"suite.with_{self.framework.side}")
        self.find_workload = _workload_finder(eager)
        self.step: Step | None = None
        self.task: Task | None = None
        self.workload: Workload | None = None
        gc.collect()
        gc.freeze()  # the libraries' own objects: collections before turns need not visit them

    def hello(self) -> dict[str, Any]:
        """What was loaded, how long it took, and what it brought to memory."""
        return {
            "version": self.version,
            "import_seconds": self.import_seconds,
            "import_bytes": peak_bytes(),
        }

    def prepare(self, workload: str, checked: int = CHECKED) -> dict[str, Any]:
        """Build a workload; the seconds to its first result, and the first values."""
        chosen = self.workload = self.find_workload(workload)
        if self.framework.side not in chosen.sides:
            return {"absent": f"no {workload} for {self.framework.title}"}
        task = self.task = chosen.task(self.quick, self.framework.compiled)
        start = time.perf_counter()
        self.step = chosen.sides[self.framework.side](task)
        built, processor = time.perf_counter(), time.process_time()
        values = [self._value()]
        first, processor = time.perf_counter(), time.process_time() - processor
        values += [self._value() for _ in range(checked - 1)]
        return {
            "build_seconds": built - start,
            "first_seconds": first - built,
            "first_processor_seconds": processor,
            "values": values,
        }

    def time(
        self, samples: int, calls: int, limit: float = math.inf, warm: bool = True
    ) -> dict[str, Any]:
        """Seconds per call: of the wall clock for each sample, of the processor for all together.

        limit: seconds after which no further sample begins, for a machine that is busy. warm: one
        call before, as others had the caches. Linux counts other threads' time in steps of its own
        clock, a few milliseconds: too coarse for a sample.
        """
        step, wait = self.step, getattr(self.side, "wait", lambda: None)
        assert step is not None
        walls = []
        gc.collect()
        gc.disable()
        if warm:
            step()
        wait()
        processor, last = time.process_time(), time.perf_counter() + limit
        while len(walls) < samples and not (walls and time.perf_counter() > last):
            wall = time.perf_counter()
            for _ in range(calls):
                step()
            wait()
            walls.append((time.perf_counter() - wall) / calls)
        processor = time.process_time() - processor
        gc.enable()
        return {"wall": walls, "processor": [processor / (len(walls) * calls)]}

    def drop(self) -> dict[str, Any]:
        """Forget the workload; the most memory that the process has had so far."""
        self.step = self.task = self.workload = None
        gc.collect()
        return {"peak_bytes": peak_bytes()}

    def memory(self, steps: int) -> dict[str, Any]:
        """The most memory during some steps, without the arrays that the weights came from."""
        assert self.step is not None
        assert self.task is not None
        self.task.weights.clear()
        gc.collect()
        if DEVICE != "cpu":
            self.side.reset_peak()
        _reset_peak()
        for _ in range(steps):
            self.step()
        return {"peak_bytes": peak_bytes() if DEVICE == "cpu" else self.side.card_bytes()}

    def machine(self) -> dict[str, Any]:
        """The machine's limits, measured here."""
        return dict(importlib.import_module("suite.machine").limits(self.quick))

    def profile(self, calls: int) -> dict[str, Any]:
        """Which kernels take the time; only Weft can say."""
        return dict(importlib.import_module("suite.machine").kernels(self.step, calls))

    def _value(self) -> list[float]:
        """The result of a step as a few numbers."""
        assert self.step is not None
        assert self.workload is not None
        result = self.step()
        parts = result if isinstance(result, tuple) else (result,)
        return self.workload.digest([self.side.as_numpy(part) for part in parts])


def peak_bytes() -> int:
    """The most memory that the process has had; `getrusage` would count its parent's, too."""
    status = Path("/proc/self/status")
    for line in status.read_text(encoding="utf-8").splitlines() if status.exists() else []:
        if line.startswith("VmHWM"):
            return int(line.split()[1]) * 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def _reset_peak() -> None:
    """Let the system forget the most memory that the process had; Linux does it when asked so."""
    with suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5", encoding="utf-8")


def _workload_finder(eager: bool) -> Callable[[str], Workload]:
    """The function from a name to its workload; an unknown name is a KeyError."""
    if eager:
        return cast(Callable[[str], Workload], importlib.import_module("suite.eager").workload)
    return cast(
        Callable[[str], Workload], importlib.import_module("suite.workloads").WORKLOADS.__getitem__
    )


def _set_threads(name: str, module: Any) -> None:
    threads = int(os.environ["OMP_NUM_THREADS"])
    if name in ("torch", "weft"):
        module.set_num_threads(threads)
    elif name == "keras":
        configuration = importlib.import_module("tensorflow").config.threading
        configuration.set_intra_op_parallelism_threads(threads)


def serve(worker: Worker, requests: TextIO, answers: TextIO) -> None:
    """Answer until the requests end; an exception is an answer, too."""
    for line in requests:
        request = json.loads(line)
        try:
            answer = getattr(worker, request.pop("do"))(**request)
        except Exception as error:
            text = traceback.format_exc(limit=-4)
            answer = {"error": f"{type(error).__name__}: {error}"[:400], "traceback": text}
        answers.write(json.dumps(answer) + "\n")
        answers.flush()


def main() -> None:
    """Keep the pipe to the controller to ourselves; nobody else may print there."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("framework", choices=FRAMEWORKS | EAGER)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--eager", action="store_true")
    arguments = parser.parse_args()
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    worker = Worker(arguments.framework, arguments.quick, arguments.eager)
    serve(worker, sys.stdin, answers)


if __name__ == "__main__":
    main()
