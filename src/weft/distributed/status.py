"""What each process of a job is doing, where all processes on its host can read it.

A process writes the number, name and line of the operation it is in to its place in one small
file in memory, which takes about a microsecond. Who waits too long reads the places of the others
and says which one is late, in what, and at which line.
"""

from __future__ import annotations

import json
import mmap
import os
import time
from collections.abc import Collection
from pathlib import Path
from typing import NamedTuple

__all__ = ["DONE", "STATUS", "Doing", "StatusBoard"]

STATUS = "status"
"""The name of the file in the job's folder."""
DONE = "done-"
"""What names of files begin with that processes leave there when they end in order."""
SLOT = 1024
"""Bytes of a process's place."""


class Doing(NamedTuple):
    """What a process does: its operation's number, since when, its name and line, and an error."""

    number: int
    since: float
    operation: str
    line: str
    error: str = ""

    def __str__(self) -> str:
        if self.error:
            return f"ended with {self.error}"
        place = f" at {self.line}" if self.line else ""
        return f"operation {self.number}: {self.operation}{place}"


class StatusBoard:
    """The places of all processes of a job on one host."""

    def __init__(self, folder: str | os.PathLike[str], size: int) -> None:
        self._folder = Path(folder)
        path = self._folder / STATUS
        self._folder.mkdir(parents=True, exist_ok=True)
        handle = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
        try:
            if os.fstat(handle).st_size < size * SLOT:
                os.ftruncate(handle, size * SLOT)
            self._memory = mmap.mmap(handle, size * SLOT)
        finally:
            os.close(handle)
        self._size = size

    def write(self, rank: int, doing: Doing) -> None:
        """Say what a process does now."""
        text = json.dumps(doing).encode()
        while len(text) >= SLOT:  # an error may be long
            doing = doing._replace(error=doing.error[: len(doing.error) // 2], line="")
            text = json.dumps(doing).encode()
        self._memory[rank * SLOT : rank * SLOT + len(text) + 1] = text + b"\n"

    def read(self, rank: int) -> Doing | None:
        """What a process wrote last; None where it wrote nothing, or is writing just now."""
        text = bytes(self._memory[rank * SLOT : (rank + 1) * SLOT]).split(b"\n", 1)[0]
        try:
            return Doing(*json.loads(text))
        except (ValueError, TypeError):
            return None

    def report(self, rank: int) -> list[str]:
        """A line for each other process that is known of, the one furthest back first."""
        known = [(other, self.read(other)) for other in range(self._size) if other != rank]
        now = time.time()
        ordered = sorted(
            ((other, doing) for other, doing in known if doing is not None),
            key=lambda pair: (not pair[1].error, pair[1].number),
        )
        return [f"rank {other}: {doing}, {now - doing.since:.1f} s ago" for other, doing in ordered]

    def are_done(self, ranks: Collection[int]) -> list[int]:
        """Those of some processes that have ended in order."""
        return [rank for rank in ranks if (self._folder / f"{DONE}{rank}").exists()]

    def close(self) -> None:
        """Give the memory back; the file stays until the launcher removes its folder."""
        self._memory.close()
