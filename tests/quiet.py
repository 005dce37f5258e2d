"""What else this process does, awaited: memory and time that are then measured are the test's."""

from __future__ import annotations

import gc
import tracemalloc
from collections.abc import Callable

from weft.runtime.compile_queue import BACKGROUND


def wait_for_quiet() -> None:
    """Let what earlier calls have compiled beside them end, and free what only cycles hold."""
    BACKGROUND.finish()
    gc.collect()


def peak_bytes(run: Callable[[], object]) -> int:
    """What is allocated at once by the leanest of three runs.

    The interpreter's own tables, which grow with what other tests leave, grow in one of them.
    """
    wait_for_quiet()
    peaks = []
    for _ in range(3):
        tracemalloc.start()
        try:
            run()
            peaks.append(tracemalloc.get_traced_memory()[1])
        finally:
            tracemalloc.stop()
    return min(peaks)
