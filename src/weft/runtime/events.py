"""Events: what ran when on which thread, in a ring that native code can write too.

A record is four 64-bit words: name, start and end in nanoseconds, thread. Writers claim places by
counting `head` up; when the ring is full the oldest records go. Names are numbers given by `name`.

>>> from weft.runtime.events import Events
>>> events = Events(capacity=4)
>>> events.record(events.name("matmul"), 1000, 3500, thread=0)
>>> events.records()
[Event(name='matmul', start=1000, end=3500, thread=0)]
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from threading import Lock, get_native_id
from time import perf_counter_ns
from typing import NamedTuple

import numpy as np

from weft.core.errors import ArgumentError
from weft.core.files import write_text
from weft.core.forks import renewed

RECORD_WORDS = 4


class Event(NamedTuple):
    """One record: nanoseconds of `time.perf_counter_ns`."""

    name: str
    start: int
    end: int
    thread: int


class Events:
    """A ring of the latest `capacity` records; the capacity is a power of two.

    Native code adds 1 to the word at `head_address` atomically, takes the old value modulo the
    capacity as its place, and writes its words at `address + 32 * place`.
    """

    def __init__(self, capacity: int = 1 << 16) -> None:
        if capacity < 1 or capacity & (capacity - 1):
            raise ArgumentError(
                "Events",
                "the capacity is not a power of two",
                expected="1, 2, 4, 8, …",
                got={"capacity": capacity},
                fix=f"Events(capacity={1 << max(capacity, 1).bit_length()})",
            )
        self.capacity = capacity
        self._ring = np.zeros((capacity, RECORD_WORDS), np.int64)
        self._head = np.zeros(1, np.int64)
        self.address = self._ring.ctypes.data
        self.head_address = self._head.ctypes.data
        self._names: list[str] = []
        self._numbers: dict[str, int] = {}
        self._lock = renewed(Lock())

    def name(self, text: str) -> int:
        """The number that stands for this name in records."""
        with self._lock:
            if text not in self._numbers:
                self._numbers[text] = len(self._names)
                self._names.append(text)
            return self._numbers[text]

    def record(self, name: int, start: int, end: int, thread: int | None = None) -> None:
        """Add a record; the thread is the calling one unless it is given."""
        with self._lock:
            place = int(self._head[0]) % self.capacity
            self._head[0] += 1
        self._ring[place] = name, start, end, get_native_id() if thread is None else thread

    @contextmanager
    def measured(self, name: str) -> Iterator[None]:
        """Record the time that a `with` block takes."""
        number, start = self.name(name), perf_counter_ns()
        try:
            yield
        finally:
            self.record(number, start, perf_counter_ns())

    def clear(self) -> None:
        """Forget all records; names keep their numbers."""
        self._head[0] = 0

    def dropped(self) -> int:
        """How many records have been overwritten by later ones."""
        return max(0, int(self._head[0]) - self.capacity)

    def records(self) -> list[Event]:
        """The records that are left, in the order of their starts."""
        rows = self._ring[: min(int(self._head[0]), self.capacity)].tolist()
        events = [Event(self._names[row[0]], *row[1:]) for row in rows]
        return sorted(events, key=lambda event: (event.start, -event.end))

    def write_chrome_trace(self, path: str | os.PathLike[str]) -> None:
        """Write the records as a file that Perfetto and chrome://tracing open."""
        process = os.getpid()
        # Their unit is the microsecond, as a fraction where need be.
        events = [
            {
                "name": event.name,
                "ph": "X",
                "ts": event.start / 1000,
                "dur": (event.end - event.start) / 1000,
                "pid": process,
                "tid": event.thread,
            }
            for event in self.records()
        ]
        text = json.dumps({"traceEvents": events, "displayTimeUnit": "ns"})
        write_text("write_chrome_trace", path, text)
