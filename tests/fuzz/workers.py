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
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
SECONDS = 120.0
"""How long one program may take."""
BATCH = 200
"""How many programs a child runs: what it has compiled takes memory."""


def search(
    seeds: Sequence[int], workers: int, ways: Sequence[str], until: float, coverage: bool = False
) -> Iterator[tuple[int, str | None, Counter[str]]]:
    """For each seed what failed, and what was reached since the last program of that child."""
    waiting: queue.SimpleQueue[list[int]] = queue.SimpleQueue()
    for start in range(0, len(seeds), BATCH):
        waiting.put(list(seeds[start : start + BATCH]))
    found: queue.SimpleQueue[Any] = queue.SimpleQueue()
    with tempfile.TemporaryDirectory(prefix="weft-fuzz-") as folder:
        run = lambda: _serve(waiting, found, ways, until, coverage, folder)  # noqa: E731
        threads = [threading.Thread(target=run, daemon=True) for _ in range(workers)]
        for thread in threads:
            thread.start()
        running = len(threads)
        while running:
            item = found.get()
            if item is None:
                running -= 1
            else:
                yield item


def _serve(
    waiting: queue.SimpleQueue[list[int]],
    found: queue.SimpleQueue[Any],
    ways: Sequence[str],
    until: float,
    coverage: bool,
    folder: str,
) -> None:
    try:
        while time.monotonic() < until:
            try:
                seeds = waiting.get_nowait()
            except queue.Empty:
                return
            while seeds and time.monotonic() < until:
                seeds = _child(seeds, found, ways, until, coverage, folder)
    finally:
        found.put(None)


def _child(
    seeds: list[int],
    found: queue.SimpleQueue[Any],
    ways: Sequence[str],
    until: float,
    coverage: bool,
    folder: str,
) -> list[int]:
    """Run some programs in a new child; those that are left when it dies."""
    command = [sys.executable, "-m", "tests.fuzz", "--child", "--ways", ",".join(ways)]
    command += ["--coverage"] if coverage else []
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT,
        env={**os.environ, "WEFT_CACHE": folder},
    ) as child:  # fmt: skip
        assert child.stdin is not None
        child.stdin.write(json.dumps(seeds) + "\n")
        child.stdin.flush()
        lines: queue.SimpleQueue[str] = queue.SimpleQueue()
        reader = threading.Thread(target=_read, args=(child, lines))
        reader.start()
        left, now = _followed(seeds, lines, child, found, until)
        alive = child.poll() is None
        child.kill()
        code = child.wait()
        reader.join()
    if left and time.monotonic() < until:
        at = left[0] if now is None else now  # it may not even have begun
        left.remove(at)
        what = "does not end" if alive else f"the process ends with {code}"
        found.put((at, f"jit: {what}", Counter()))
    return left


def _read(child: subprocess.Popen[str], lines: queue.SimpleQueue[str]) -> None:
    assert child.stdout is not None
    for line in child.stdout:
        lines.put(line)


def _followed(
    seeds: Sequence[int],
    lines: queue.SimpleQueue[str],
    child: subprocess.Popen[str],
    found: queue.SimpleQueue[Any],
    until: float,
) -> tuple[list[int], int | None]:
    """The programs that are left when a child ends, and the one it was at."""
    left, now = list(seeds), None
    while left and time.monotonic() < until:
        line = _next_line(lines, child)
        if line is None:
            break
        message = json.loads(line)
        if "begins" in message:
            now = message["begins"]
            continue
        left.remove(now)
        found.put((now, message["failure"], Counter(message.get("reached", {}))))
        now = None
    return left, now


def _next_line(lines: queue.SimpleQueue[str], child: subprocess.Popen[str]) -> str | None:
    """The next line of a child; None where it has died or takes too long."""
    begun = time.monotonic()
    while time.monotonic() - begun < SECONDS:
        try:
            return lines.get(timeout=0.5)
        except queue.Empty:
            if child.poll() is not None and lines.empty():
                return None
    return None
