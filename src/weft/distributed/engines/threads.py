"""Threads of one process as a group: for tests, and for a world of one process.

>>> from weft.distributed.engines.threads import run_threads
>>> run_threads(lambda group: int(group.all_reduce(np.array(group.rank), "sum")), 3)
[3, 3, 3]
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import numpy as np

from weft.collectives import Pairs, Reduce
from weft.distributed.engines.engine import LostProcess, receivers, reduce_arrays

__all__ = ["ThreadEngine", "run_threads", "thread_engines"]

Array = np.ndarray[Any, Any]
Result = TypeVar("Result")


class _Meeting:
    """Where the threads of a group meet: a barrier, a place for each, and groups made of them."""

    def __init__(self, size: int, timeout: float) -> None:
        self.timeout = timeout
        self.barrier = threading.Barrier(size, timeout=timeout)
        self.places: list[Any] = [None] * size
        self.parts: dict[tuple[int, ...], _Meeting] = {}
        self.lock = threading.Lock()
        self.sent: dict[tuple[int, int, int], deque[Array]] = {}
        """Messages under way, by sender, receiver and tag."""
        self.is_sent = threading.Condition()


class ThreadEngine:
    """One thread's view of a group of threads."""

    name = "threads"
    ends_waits = False

    def __init__(self, meeting: _Meeting, rank: int) -> None:
        self._meeting, self._rank = meeting, rank

    @property
    def rank(self) -> int:
        """See `Communicator`."""
        return self._rank

    @property
    def size(self) -> int:
        """See `Communicator`."""
        return len(self._meeting.places)

    def _exchange(self, value: Any) -> list[Any]:
        """What all threads brought, in the order of ranks."""
        self._meeting.places[self._rank] = value
        self.barrier()
        brought = list(self._meeting.places)
        self.barrier()
        return brought

    def barrier(self) -> None:
        """See `Engine`."""
        try:
            self._meeting.barrier.wait()
        except threading.BrokenBarrierError:
            raise LostProcess("a thread of the group ended, or is late") from None

    def all_reduce(self, array: Array, reduce: Reduce) -> Array:
        """See `Communicator`."""
        brought = self._exchange(array.copy())
        # A compiled program brings elements without their shape.
        return reduce_arrays([other.reshape(array.shape) for other in brought], reduce)

    def largest(self, words: Array) -> Array:
        """See `Engine`."""
        return self.all_reduce(words, "max")

    def all_gather(self, array: Array) -> Array:
        """See `Communicator`."""
        return np.stack(self._exchange(array.copy()))

    def reduce_scatter(self, blocks: Array) -> Array:
        """See `Communicator`."""
        return reduce_arrays([b[self._rank] for b in self._exchange(blocks.copy())], "sum")

    def all_to_all(self, blocks: Array) -> Array:
        """See `Communicator`."""
        return np.stack([sent[self._rank] for sent in self._exchange(blocks.copy())])

    def broadcast(self, array: Array, root: int) -> Array:
        """See `Communicator`."""
        return np.array(self._exchange(array.copy())[root])

    def permute(self, array: Array, pairs: Pairs) -> Array:
        """See `Communicator`."""
        _, source = receivers(pairs, self._rank)
        brought = self._exchange(array.copy())
        return np.zeros_like(array) if source is None else np.array(brought[source])

    def send(self, data: Array, target: int, tag: int) -> None:
        """See `Engine`."""
        meeting = self._meeting
        with meeting.is_sent:
            meeting.sent.setdefault((self._rank, target, tag), deque()).append(data.copy())
            meeting.is_sent.notify_all()

    def receive(self, source: int, tag: int) -> Array:
        """See `Engine`."""
        meeting, key = self._meeting, (source, self._rank, tag)
        with meeting.is_sent:
            arrives = meeting.is_sent.wait_for(
                lambda: meeting.sent.get(key) or meeting.barrier.broken, meeting.timeout
            )
            if not arrives or not meeting.sent.get(key):
                raise LostProcess("a thread of the group ended, or is late")
            return meeting.sent[key].popleft()

    def subgroup(self, ranks: Sequence[int]) -> ThreadEngine:
        """See `Engine`."""
        key = tuple(ranks)
        with self._meeting.lock:
            new = _Meeting(len(key), self._meeting.timeout)
            part = self._meeting.parts.setdefault(key, new)
        return ThreadEngine(part, key.index(self._rank))

    def interrupt(self) -> None:
        """See `Engine`."""
        self.close()

    def close(self) -> None:
        """See `Engine`."""
        self._meeting.barrier.abort()
        for part in (self._meeting, *self._meeting.parts.values()):
            part.barrier.abort()
            with part.is_sent:
                part.is_sent.notify_all()


def thread_engines(size: int, timeout: float = 20.0) -> list[ThreadEngine]:
    """The engines of all threads of a new group."""
    meeting = _Meeting(size, timeout)
    return [ThreadEngine(meeting, rank) for rank in range(size)]


def run_threads(
    f: Callable[[ThreadEngine], Result], size: int, timeout: float = 20.0
) -> list[Result]:
    """Run a function in `size` threads, each with its engine; the results by rank.

    Where a thread fails, the others are woken, and the first error is raised here.
    """
    engines = thread_engines(size, timeout)
    results: list[Any] = [None] * size
    errors: list[BaseException] = []

    def run_rank(engine: ThreadEngine) -> None:
        try:
            results[engine.rank] = f(engine)
        except BaseException as error:
            errors.append(error)
            engine.close()

    threads = [threading.Thread(target=run_rank, args=(engine,)) for engine in engines]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]
    return results
