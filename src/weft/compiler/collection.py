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
from threading import Lock, get_ident

from weft.core.forks import in_child, renewed


class _NoCollection:
    """A `with` block that may be entered again, also by other threads; the last puts it back."""

    def __init__(self) -> None:
        self._lock = renewed(Lock())
        self._inside: list[int] = []
        """The threads that are in the block, each as often as it has entered."""
        self._was_on = False
        in_child(self._forget_other_threads)

    def __enter__(self) -> None:
        with self._lock:
            if not self._inside:
                self._was_on = gc.isenabled()
            try:
                self._inside.append(get_ident())
                gc.disable()
            except BaseException:  # a signal: the block is not entered
                self._inside.remove(get_ident())
                self._allow()
                raise

    def __exit__(self, *raised: object) -> None:
        with self._lock:
            self._inside.remove(get_ident())
            self._allow()

    def _allow(self) -> None:
        if not self._inside and self._was_on:
            gc.enable()

    def _forget_other_threads(self) -> None:
        if self._inside:
            self._inside = [each for each in self._inside if each == get_ident()]
            self._allow()


no_collection = _NoCollection()
