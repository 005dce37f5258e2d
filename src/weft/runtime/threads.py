"""The thread pool's Python half: its threads' lives, how many there are, and what native code sees.

There is one pool, of as many threads as the process may use cores, the calling thread included. The
threads start when a range is first divided, sleep when there is nothing to do, and end with the
interpreter. They are stopped before a fork, and start again on both sides when they are needed.

>>> from weft.runtime.threads import get_num_threads, set_num_threads
>>> before = get_num_threads()
>>> set_num_threads(1)
>>> get_num_threads()
1
>>> set_num_threads(before)
"""

from __future__ import annotations

import atexit
import ctypes
import operator
import os
import sys
from collections.abc import Callable, Mapping
from threading import Lock, Thread, current_thread
from time import perf_counter

from weft.core.errors import ArgumentError, ArgumentTypeError

LARGEST_POOL = 256
"""How many threads there can be."""

SPIN_SECONDS = 200e-6
"""How long a thread without work looks out for some before it sleeps."""

_JOIN_SECONDS = 5.0

Kernel = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64)
"""The C signature of what is divided: `void kernel(buffers, sizes, begin, end)`."""

_ParallelFor = ctypes.CFUNCTYPE(
    None, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64
)
_Procedure = ctypes.CFUNCTYPE(None)
_Counted = ctypes.CFUNCTYPE(None, ctypes.c_int64)


def available_cores() -> int:
    """How many cores this process may run on."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


class Pool:
    """The threads around a native pool, whose functions and variables are given by address.

    `parallel_for(kernel, buffers, sizes, extent, grain)` runs the kernel over [0, extent) in chunks
    of `grain`; `address` is the same function for native callers. It may be called from any
    thread and from inside a kernel: whoever finds the pool busy runs its chunks itself.
    """

    def __init__(self, symbols: Mapping[str, int], threads: int) -> None:
        self.address = symbols["parallel_for"]
        self.parallel_for = _ParallelFor(self.address)
        self._worker = _Counted(symbols["worker"])
        self._stop = _Procedure(symbols["stop"])
        self._initialize = _Procedure(symbols["initialize"])
        self._limit, self._ready, self._workers, self._stopping, self._spins = (
            ctypes.c_int64.from_address(symbols[name])
            for name in ("limit", "ready", "workers", "stopping", "spins")
        )
        self._starter = _Procedure(self._start)  # must live as long as native code may call it
        self._lock = Lock()
        self._threads: list[Thread] = []
        self._has_ended = False
        self._initialize()
        ctypes.c_void_p.from_address(symbols["starter"]).value = ctypes.cast(
            self._starter, ctypes.c_void_p
        ).value
        self._spins.value = _spins(_Counted(symbols["spin"]))
        self._limit.value = threads

    def resize(self, threads: int) -> None:
        """Use this many threads from the next range on."""
        with self._lock:
            self._limit.value = threads
            if len(self._threads) != threads - 1 and not self._has_ended:
                self._end_threads()
                self._ready.value = 0

    def threads(self) -> int:
        """How many threads are running beside the caller's."""
        return len(self._threads)

    def _start(self) -> None:
        """Called by the native side when a range is divided and threads are missing."""
        with self._lock:
            try:
                # Where the interpreter is ending, Python 3.11 waits for ever for a thread to start.
                wanted = 0 if sys.is_finalizing() else self._limit.value - 1
                for index in range(len(self._threads), wanted):
                    self._threads.append(self._start_thread(index))
            except RuntimeError:
                pass  # no more threads to be had: those there are claim all the chunks
            self._workers.value = len(self._threads)
            self._ready.value = 1

    def _start_thread(self, index: int) -> Thread:
        thread = Thread(
            target=self._worker, args=(index,), name=f"weft-worker-{index}", daemon=True
        )
        thread.start()
        return thread

    def _end_threads(self) -> None:
        """Let the threads finish what they have claimed and return. The lock is held."""
        self._stop()
        for thread in self._threads:
            if thread is not current_thread():
                thread.join(_JOIN_SECONDS)
        self._threads.clear()
        self._stopping.value = 0

    def shut_down(self) -> None:
        """End the threads for good; ranges then run on the calling thread.

        Native code would call into the interpreter to start them, which may be gone by then.
        """
        with self._lock:
            self._has_ended = True
            self._end_threads()
            self._ready.value = 1

    def before_fork(self) -> None:
        """Stop: a forked child has only the thread that forked, and a copy of everything else."""
        self._lock.acquire()
        self._end_threads()
        self._ready.value = 1

    def after_fork_in_parent(self) -> None:
        """Let the threads start again when they are needed."""
        self._ready.value = int(self._has_ended)
        self._lock.release()

    def after_fork_in_child(self) -> None:
        """A fresh pool at the same addresses, whatever other threads were doing in the parent."""
        self._lock = Lock()
        self._initialize()


class _State:
    """The one pool and the number of threads, which can be set before there is a pool."""

    pool: Pool | None = None
    threads: int = min(available_cores(), LARGEST_POOL)


def attach(symbols: Mapping[str, int]) -> Pool:
    """Make the process's pool from its native half: once."""
    pool = _State.pool = Pool(symbols, _State.threads)
    atexit.register(pool.shut_down)
    os.register_at_fork(
        before=pool.before_fork,
        after_in_parent=pool.after_fork_in_parent,
        after_in_child=pool.after_fork_in_child,
    )
    return pool


def get_num_threads() -> int:
    """How many threads compiled programs may use, the calling one included.

    >>> get_num_threads() >= 1
    True
    """
    return _State.threads


def set_num_threads(threads: int) -> None:
    """Use this many threads in compiled programs; results do not depend on it.

    >>> before = get_num_threads()
    >>> set_num_threads(2)
    >>> get_num_threads()
    2
    >>> set_num_threads(before)
    """
    count = _check_threads(threads)
    _State.threads = count
    if _State.pool is not None:
        _State.pool.resize(count)


def _check_threads(threads: object) -> int:
    try:
        if isinstance(threads, bool):
            raise TypeError
        count = operator.index(threads)  # type: ignore[arg-type]
    except TypeError:
        raise ArgumentTypeError(
            "set_num_threads",
            "the number of threads is an integer",
            expected="threads: int",
            got={"threads": threads},
            fix=f"wf.set_num_threads({available_cores()})",
        ) from None
    if not 1 <= count <= LARGEST_POOL:
        raise ArgumentError(
            "set_num_threads",
            f"there can be 1 to {LARGEST_POOL} threads",
            expected=f"1 <= threads <= {LARGEST_POOL}",
            got={"threads": count},
            fix=f"wf.set_num_threads({1 if count < 1 else LARGEST_POOL})",
        )
    return count


def _spins(spin: Callable[[int], None]) -> int:
    """How many pauses take `SPIN_SECONDS`: their length differs tenfold between processors."""
    count = 1000
    seconds = min(_seconds(spin, count) for _ in range(5))
    return max(1, int(SPIN_SECONDS / seconds * count))


def _seconds(spin: Callable[[int], None], count: int) -> float:
    start = perf_counter()
    spin(count)
    return perf_counter() - start
