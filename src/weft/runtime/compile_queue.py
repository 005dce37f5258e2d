"""Work beside the caller's thread: LLVM, which needs no interpreter, and files to be written.

Threads do what is submitted, in order, and end when nothing is left; what may be done `later` waits
for all else. Whoever asks for a result that nobody has begun with computes it himself, so nothing
waits for its own turn, and a system without threads is only slower. A process that ends, or is
copied by a fork, finishes the work first; what the last objects of an interpreter that is ending
ask for is done without threads, as Python 3.11 would wait for ever for one to start.

>>> task = BACKGROUND.submit(lambda: 6 * 7)
>>> task.result()
42
"""

from __future__ import annotations

import os
import sys
from collections import deque
from collections.abc import Callable
from threading import Condition, RLock, Thread, current_thread, main_thread
from typing import Any, Generic, TypeVar

T = TypeVar("T")

MOST = 4
"""How many threads there are at most."""
SWITCH_SECONDS = 1e-4
"""How long the interpreter may be asked for in vain: LLVM's thread needs it between two calls."""


def run_shielded(work: Callable[[], T]) -> T:
    """What some work returns, done where no signal is handled.

    A signal whose handler raises ends Python code at any place. LLVM's objects, which then have two
    owners or none, do not bear that. So they are worked with in other threads than the one that
    handles signals; that one waits, and may be interrupted. What has begun is then finished all the
    same.
    """
    if current_thread() is not main_thread() or sys.is_finalizing():
        return work()
    results: list[T] = []
    errors: list[BaseException] = []

    def run() -> None:
        try:
            results.append(work())
        except BaseException as error:  # it belongs to who waits
            errors.append(error)

    thread = Thread(target=run, name="weft-shielded")
    try:
        thread.start()
    except RuntimeError:  # no threads here, or the interpreter is ending
        return work()
    thread.join()
    if errors:
        raise errors[0]
    return results[0]


class Task(Generic[T]):
    """Something to be computed once, by the thread of the queue or by who asks first."""

    __slots__ = ("_error", "_home", "_value", "_work", "is_done")

    def __init__(self, work: Callable[[], T], home: Background) -> None:
        self._work: Callable[[], T] | None = work
        self._home = home
        self._value: T | None = None
        self._error: BaseException | None = None
        self.is_done = False

    def result(self) -> T:
        """The result of the work; raises the error that the work raised."""
        if not self.is_done:
            self.run()
            self._home.wait_for(lambda: self.is_done)
        if self._error is not None:
            raise self._error
        return self._value  # type: ignore[return-value]

    def run(self) -> None:
        """Do the work, if nobody has begun with it."""
        work = self._home.take(self)
        if work is None:
            return
        try:
            self._value = work()
        except BaseException as error:  # it belongs to who asks for the result
            self._error = error
        self._home.note_done(self)

    def take_work(self) -> Callable[[], T] | None:
        """The work, which is given away once."""
        work, self._work = self._work, None
        return work


class Background:
    """A queue, and threads that are there while something is in it."""

    def __init__(self, most: int) -> None:
        self._most = most
        # A signal that is handled inside of a condition's own `with` would leave its lock held for
        # ever: that is Python code. The lock's is not, so the lock itself is entered.
        self._lock = RLock()
        self._changed = Condition(self._lock)
        self._first: deque[Task[Any]] = deque()
        self._later: deque[Task[Any]] = deque()
        self._threads: set[Thread] = set()
        self.needed: list[Any] = []
        """Locks that the work needs: a process is copied while nobody holds them."""
        self._interval = 0.0
        """The interpreter's own switching interval, while the threads have a shorter one."""

    def submit(self, work: Callable[[], T], *, later: bool = False) -> Task[T]:
        """Have something computed; `later` when nothing else is to be done."""
        task = Task(work, self)
        with self._lock:
            (self._later if later else self._first).append(task)
            if len(self._threads) < self._most:
                self._start()
        return task

    def finish(self) -> None:
        """Wait until everything is done."""
        self.wait_for(lambda: not self._threads)

    def wait_for(self, is_so: Callable[[], bool]) -> None:
        """Wait until something is so that the thread brings about."""
        with self._lock:
            self._changed.wait_for(is_so)

    def take(self, task: Task[T]) -> Callable[[], T] | None:
        """The work of a task, for one caller."""
        with self._lock:
            return task.take_work()

    def note_done(self, task: Task[Any]) -> None:
        """Mark a task as done and wake those who wait."""
        with self._lock:
            task.is_done = True
            self._changed.notify_all()

    def _start(self) -> None:
        if sys.is_finalizing():  # a thread would wait for the interpreter, and this one for it
            return
        thread = Thread(target=self._run, name="weft-compiler")
        if not self._threads:
            self._interval = sys.getswitchinterval()
        try:
            thread.start()
        except RuntimeError:  # no threads here, or the interpreter is ending
            return
        self._threads.add(thread)
        sys.setswitchinterval(min(self._interval, SWITCH_SECONDS))

    def _run(self) -> None:
        while (task := self._next_task()) is not None:
            task.run()

    def _next_task(self) -> Task[Any] | None:
        with self._lock:
            if self._first or self._later:
                return (self._first or self._later).popleft()
            self._threads.discard(current_thread())
            if not self._threads:
                sys.setswitchinterval(self._interval)
                self._changed.notify_all()
            return None

    def before_fork(self) -> None:
        """Finish, and let nothing begin: a child has no copy of the thread."""
        if current_thread() in self._threads:
            return
        self._changed.acquire()
        self._changed.wait_for(lambda: not self._threads)
        for lock in self.needed:
            lock.acquire()

    def after_fork(self) -> None:
        """Release the locks that were taken before a fork."""
        if current_thread() not in self._threads:
            for lock in reversed(self.needed):
                lock.release()
            self._changed.release()


BACKGROUND = Background(max(1, min(MOST, (os.cpu_count() or 1) - 1)))
"""The one queue; who waits for it works, too, so it leaves a core to him."""


def finished_task(value: T) -> Task[T]:
    """A task whose result is known."""
    task = Task(lambda: value, BACKGROUND)
    task.run()
    return task


if hasattr(os, "register_at_fork"):
    os.register_at_fork(
        before=BACKGROUND.before_fork,
        after_in_parent=BACKGROUND.after_fork,
        after_in_child=BACKGROUND.after_fork,
    )
