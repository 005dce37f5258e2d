"""Workers seen from the controller: started, asked, and ended."""

from __future__ import annotations

import json
import os
import select
import subprocess
import tempfile
from collections.abc import Callable, Iterable
from contextlib import ExitStack, suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from suite.frameworks import EAGER, FRAMEWORKS
from suite.task import DEVICE

HERE = Path(__file__).parents[1]
PATIENCE = 300.0
"""Seconds after which an answer is no longer waited for."""


_NO_CARD = {"CUDA_VISIBLE_DEVICES": "", "JAX_PLATFORMS": "cpu"}


class WorkerFailure(RuntimeError):
    """A worker that did not answer."""


class WorkerProcess:
    """One framework's process; `ask` sends a request and waits for its answer.

    eager: the workloads of the eager mode, without compilation.
    """

    def __init__(
        self,
        name: str,
        interpreter: Path,
        threads: int,
        caches: Path,
        quick: bool,
        eager: bool = False,
    ) -> None:
        self.name, self.title = name, (EAGER if eager else FRAMEWORKS)[name].title
        flags = ["--quick"] * quick + ["--eager"] * eager
        self._command = [str(interpreter), "-m", "suite.worker", name, *flags]
        self._environment = environment(threads, caches)
        self._log = tempfile.TemporaryFile("w+", encoding="utf-8")  # noqa: SIM115
        self._process = self._started()

    def _started(self) -> subprocess.Popen[str]:
        return subprocess.Popen(
            self._command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            text=True,
            encoding="utf-8",
            env=self._environment,
        )

    @property
    def number(self) -> int:
        """The operating system's number of the process."""
        return self._process.pid

    def ask(self, do: str, **request: Any) -> dict[str, Any]:
        """The answer; a worker that died or is silent raises `WorkerFailure`."""
        if self._process.returncode is not None:  # its failure was told: a new one takes its place
            self._process = self._started()
        given, taken = self._process.stdin, self._process.stdout
        assert given is not None
        assert taken is not None
        with suppress(BrokenPipeError):  # then there is no answer, either
            given.write(json.dumps({"do": do, **request}) + "\n")
            given.flush()
        ready, _, _ = select.select([taken], [], [], PATIENCE)
        line = taken.readline() if ready else ""
        if not line:
            self._kill()  # or a late answer would be taken for the next one's
            raise WorkerFailure(f"{self.title} gave no answer to {do}: {self._last_words()}")
        answer: dict[str, Any] = json.loads(line)
        return answer

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.end()

    def end(self) -> None:
        """Close the pipe, so that the worker ends; end it by force if it does not."""
        if self._process.stdin is not None:
            with suppress(BrokenPipeError):
                self._process.stdin.close()
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(timeout=20)
        self._kill()
        self._log.close()

    def _kill(self) -> None:
        self._process.kill()
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                with suppress(BrokenPipeError):
                    pipe.close()

    def _last_words(self) -> str:
        self._log.seek(0)
        return " | ".join(self._log.read().strip().splitlines()[-4:])


def start_workers(
    workers: Iterable[WorkerProcess],
    stack: ExitStack,
    frameworks: dict[str, Any],
    say: Callable[[str], None],
) -> dict[str, WorkerProcess]:
    """Those of the workers that answer, by name; what they say of themselves is noted."""
    started: dict[str, WorkerProcess] = {}
    for worker in workers:
        stack.enter_context(worker)
        try:
            frameworks[worker.name] = worker.ask("hello")
        except WorkerFailure as failure:
            say(f"left out: {failure}")
            continue
        started[worker.name] = worker
        say(f"{worker.title} {frameworks[worker.name]['version']}")
    return started


def environment(threads: int, caches: Path) -> dict[str, str]:
    """The same number of threads for everyone, one device, caches of compiled code in one place.

    What a framework keeps without being asked (Weft, PyTorch), it keeps there; JAX is asked to.
    Keras and ONNX Runtime keep nothing.
    """
    counts = ("OMP_NUM", "MKL_NUM", "OPENBLAS_NUM", "TF_NUM_INTRAOP", "TF_NUM_INTEROP")
    paths = [str(HERE), os.environ.get("PYTHONPATH", "")]
    return {
        **os.environ,
        **{f"{name}_THREADS": str(threads) for name in counts},
        "PYTHONPATH": os.pathsep.join(filter(None, paths)),
        "PYTHONDONTWRITEBYTECODE": "",  # compiled modules are kept, as users have them
        **({"XLA_PYTHON_CLIENT_PREALLOCATE": "false"} if DEVICE == "cuda" else _NO_CARD),
        "JAX_COMPILATION_CACHE_DIR": str(caches / "jax"),
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
        "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "-1",
        "KERAS_BACKEND": "tensorflow",
        "TF_CPP_MIN_LOG_LEVEL": "3",
        "TORCHINDUCTOR_CACHE_DIR": str(caches / "torch"),
        "TORCHINDUCTOR_FX_GRAPH_CACHE": "1",
        "TRITON_CACHE_DIR": str(caches / "triton"),
        "WEFT_CACHE": str(caches / "weft"),
    }
