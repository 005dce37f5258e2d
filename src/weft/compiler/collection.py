"""No garbage collection while a program is traced and compiled.

Graphs, kernels and their text are many objects that stay until the program is made: looking through
all of them, and through all modules, for cycles takes a fifth of the time in which a large stored
program starts, and frees next to nothing.

>>> import gc
>>> with no_collection:
...     gc.isenabled()
False
"""

from __future__ import annotations

import gc
from threading import Lock


class _NoCollection:
    """A `with` block that may be entered again, also by other threads; the last puts it back."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._depth = 0
        self._was_on = False

    def __enter__(self) -> None:
        with self._lock:
            if self._depth == 0:
                self._was_on = gc.isenabled()
                gc.disable()
            self._depth += 1

    def __exit__(self, *raised: object) -> None:
        with self._lock:
            self._depth -= 1
            if self._depth == 0 and self._was_on:
                gc.enable()


no_collection = _NoCollection()
