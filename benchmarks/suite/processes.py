"""Workers seen from the controller: started, asked, and ended."""

from __future__ import annotations

import json
import os
import select
import subprocess
import tempfile
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from suite.frameworks import FRAMEWORKS

HERE = Path(__file__).parents[1]
PATIENCE = 900.0
"""Seconds after which an answer is no longer waited for."""


class WorkerFailure(RuntimeError):
    """A worker that did not answer."""


class WorkerProcess:
    """One framework's process; `ask` sends a request and waits for its answer."""

    def __init__(
        self, name: str, interpreter: Path, threads: int, caches: Path, quick: bool
    ) -> None:
        self.name, self.title = name, FRAMEWORKS[name].title
        self._log = tempfile.TemporaryFile("w+", encoding="utf-8")  # noqa: SIM115
        self._process = subprocess.Popen(
            [str(interpreter), "-m", "suite.worker", name, *(["--quick"] if quick else [])],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            text=True,
            encoding="utf-8",
            env=environment(threads, caches),
        )

    def ask(self, do: str, **request: Any) -> dict[str, Any]:
        """The answer; a worker that died or is silent raises `WorkerFailure`."""
        given, taken = self._process.stdin, self._process.stdout
        assert given is not None
        assert taken is not None
        try:
            given.write(json.dumps({"do": do, **request}) + "\n")
            given.flush()
            ready, _, _ = select.select([taken], [], [], PATIENCE)
            line = taken.readline() if ready else ""
        except BrokenPipeError:
            line = ""
        if not line:
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
        try:
            self._process.wait(timeout=20)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        if self._process.stdout is not None:
            self._process.stdout.close()
        self._log.close()

    def _last_words(self) -> str:
        self._log.seek(0)
        return " | ".join(self._log.read().strip().splitlines()[-4:])


def environment(threads: int, caches: Path) -> dict[str, str]:
    """The same number of threads for everyone, no GPU, and caches of compiled code in one place."""
    counts = ("OMP_NUM", "MKL_NUM", "OPENBLAS_NUM", "TF_NUM_INTRAOP", "TF_NUM_INTEROP")
    paths = [str(HERE), os.environ.get("PYTHONPATH", "")]
    return {
        **os.environ,
        **{f"{name}_THREADS": str(threads) for name in counts},
        "PYTHONPATH": os.pathsep.join(filter(None, paths)),
        "CUDA_VISIBLE_DEVICES": "",
        "JAX_PLATFORMS": "cpu",
        "JAX_COMPILATION_CACHE_DIR": str(caches / "jax"),
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
        "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "-1",
        "KERAS_BACKEND": "tensorflow",
        "TF_CPP_MIN_LOG_LEVEL": "3",
        "TORCHINDUCTOR_CACHE_DIR": str(caches / "torch"),
        "TORCHINDUCTOR_FX_GRAPH_CACHE": "1",
        "WEFT_CACHE": str(caches / "weft"),
    }
