"""Programs run in child processes, so that a crash ends a child and not the search.

A child prints one line of JSON when it begins a program and one when it has ended it. Where it dies
or says nothing for too long, the program it was at is what failed; a new child goes on behind it.
"""

from __future__ import annotations

import json
import os
import queue
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Generator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
SECONDS = 120.0
"""How long one program may take; of its own time, where it waits for a processor."""
BATCH = 200
"""How many programs a child runs: what it has compiled takes memory."""
LAST_WORDS = 300
"""How many characters are kept of what a child that dies has said."""
PAUSE = 2.0
"""Seconds until a child that could not be started is tried again."""
ON_CARD = ("cuda", "cuda-eager")
"""The ways whose tensors live on a card."""
ENVIRONMENT = {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
"""Libraries have one thread in each child: there are about as many children as cores."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of one program: what failed, what was reached, and how it was run."""

    seed: int
    failure: str | None
    reached: Counter[str] = field(default_factory=Counter)
    """What was reached since the last program of that child."""
    ways: tuple[str, ...] = ()
    """The ways that were compared with eager mode."""


def search(
    seeds: Sequence[int],
    workers: int,
    ways: Sequence[str],
    until: float,
    coverage: bool = False,
    threads: int = 0,
    cache: Path | None = None,
) -> Generator[Outcome]:
    """What becomes of each program, until a time; who has seen enough closes the search.

    threads: of each child; 0 for as many as there are cores. cache: where compiled code is kept,
    if not for this search alone.
    """
    with tempfile.TemporaryDirectory(prefix="weft-fuzz-", ignore_cleanup_errors=True) as folder:
        command = [sys.executable, "-m", "tests.fuzz", "--child", "--ways", ",".join(ways)]
        command += ["--threads", str(threads), *(["--coverage"] if coverage else [])]
        work = _Search(seeds, command, until, Path(folder), cache or Path(folder, "cache"))
        threads = [
            threading.Thread(target=work.serve, args=(number,), daemon=True)
            for number in range(workers)
        ]
        for thread in threads:
            thread.start()
        try:
            running = len(threads)
            while running:
                outcome = work.outcomes.get()
                if outcome is None:
                    running -= 1
                else:
                    yield outcome
        finally:
            work.stop.set()
            for thread in threads:
                thread.join()


class _Search:
    """Batches of programs that wait for a worker, and what came of those that did not."""

    def __init__(
        self, seeds: Sequence[int], command: Sequence[str], until: float, folder: Path, cache: Path
    ) -> None:
        self.command, self.until, self.folder, self.cache = command, until, folder, cache
        self.stop = threading.Event()
        self.waiting: queue.SimpleQueue[list[int]] = queue.SimpleQueue()
        for start in range(0, len(seeds), BATCH):
            self.waiting.put(list(seeds[start : start + BATCH]))
        self.outcomes: queue.SimpleQueue[Outcome | None] = queue.SimpleQueue()
        """One None for each worker that has ended."""

    def is_over(self) -> bool:
        return self.stop.is_set() or time.monotonic() > self.until

    def serve(self, number: int) -> None:
        """Run batches, one after the other; what goes wrong with a child ends no worker."""
        try:
            while not self.is_over():
                seeds = self.waiting.get_nowait()
                while seeds and not self.is_over():
                    try:
                        seeds = self.run_child(seeds, self.folder / f"worker-{number}.txt")
                    except OSError as error:  # no memory or no process left, for a moment
                        print(f"worker {number}: {error}", file=sys.stderr, flush=True)
                        self.stop.wait(PAUSE)
        except queue.Empty:
            pass
        finally:
            self.outcomes.put(None)

    def run_child(self, seeds: list[int], log: Path) -> list[int]:
        """Run some programs in a new child; those that are left when it dies."""
        with (
            log.open("w", encoding="utf-8") as words,
            subprocess.Popen(
                self.command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=words,
                text=True, cwd=ROOT,
                env={**ENVIRONMENT, **os.environ, "WEFT_CACHE": str(self.cache)},
            ) as child,
        ):  # fmt: skip
            lines: queue.SimpleQueue[str] = queue.SimpleQueue()
            reader = threading.Thread(target=_read, args=(child, lines))
            reader.start()
            try:
                _tell(child, seeds)
                left, now = self.follow(seeds, lines, child)
            finally:
                alive = child.poll() is None
                child.kill()
                code = child.wait()
                reader.join()
        if left and not self.is_over():
            at = left[0] if now is None else now  # it may not even have begun
            left.remove(at)
            said = log.read_text(encoding="utf-8", errors="replace")[-LAST_WORDS:].strip()
            what = "does not end" if alive else f"the process ends with {code}"
            self.outcomes.put(Outcome(at, f"jit: {what}" + (f" ({said})" if said else "")))
        return left

    def follow(
        self, seeds: Sequence[int], lines: queue.SimpleQueue[str], child: subprocess.Popen[str]
    ) -> tuple[list[int], int | None]:
        """The programs that are left when a child ends, and the one it was at."""
        left, now = list(seeds), None
        while left and not self.is_over():
            message = self.next_message(lines, child)
            if message is None:
                break
            if "begins" in message:
                now = message["begins"]
                continue
            left.remove(message["ends"])
            reached, ways = Counter(message.get("reached", {})), tuple(message["ways"])
            self.outcomes.put(Outcome(message["ends"], message["failure"], reached, ways))
            now = None
        return left, now

    def next_message(
        self, lines: queue.SimpleQueue[str], child: subprocess.Popen[str]
    ) -> dict[str, Any] | None:
        """The next line of a child; None where it has died, takes too long, or time is over."""
        begun, (computed, _) = time.monotonic(), _processor_time(child.pid)
        while not self.is_over():
            spent, is_waiting = _processor_time(child.pid)
            is_late = time.monotonic() - begun > SECONDS
            if is_late and not (is_waiting and spent - computed < SECONDS):
                return None
            try:
                found: dict[str, Any] = json.loads(lines.get(timeout=0.5))
                return found
            except queue.Empty:
                if child.poll() is not None and lines.empty():
                    return None
            except json.JSONDecodeError:  # it died in the middle of a line
                return None
        return None


def _processor_time(pid: int) -> tuple[float, bool]:
    """The seconds a process has computed, and whether it would go on if it had a processor."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text(encoding="ascii").rpartition(")")[2].split()
    except OSError:  # it has ended, or this system does not say
        return 0.0, False
    ticks = int(fields[11]) + int(fields[12])
    return ticks / os.sysconf("SC_CLK_TCK"), fields[0] == "R"


def _tell(child: subprocess.Popen[str], seeds: Sequence[int]) -> None:
    """Give a child its programs."""
    assert child.stdin is not None
    try:
        child.stdin.write(json.dumps(seeds) + "\n")
        child.stdin.flush()
    except BrokenPipeError:  # it has died already, which is seen when it says nothing
        pass


def _read(child: subprocess.Popen[str], lines: queue.SimpleQueue[str]) -> None:
    assert child.stdout is not None
    for line in child.stdout:
        lines.put(line)
