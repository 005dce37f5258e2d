"""What tests that hammer need: how often, many threads at once, and what they raised."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from tests.nightly import NIGHTLY

from weft.runtime.compile_queue import BACKGROUND


def times(count: int) -> int:
    """A fixed count, which is ten times as large in the nightly run."""
    return count * 10 if NIGHTLY else count


@contextmanager
def restless() -> Iterator[None]:
    """Let the interpreter change threads as often as it can inside a `with` block."""
    BACKGROUND.finish()  # which changes the interval and gives back what it has found
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        yield
    finally:
        BACKGROUND.finish()
        sys.setswitchinterval(before)


def at_once(*work: Callable[[], object]) -> None:
    """Run functions in a thread each, begun together; raises what the first that failed raised."""
    failures: list[BaseException] = []
    start = threading.Barrier(len(work))

    def run(function: Callable[[], object]) -> None:
        try:
            start.wait()
            function()
        except BaseException as error:  # it belongs to the thread of the test
            failures.append(error)

    running = [threading.Thread(target=run, args=(each,)) for each in work]
    with restless():
        for thread in running:
            thread.start()
        for thread in running:
            thread.join()
    if failures:
        raise failures[0]
