"""No garbage collection while a program is traced and compiled.

Graphs, kernels and their text are many objects that stay until the program is made: looking through
all of them, and through all modules, for cycles takes a fifth of the time in which a large stored
program starts, and frees next to nothing.

Who pauses it says `if paused: gc.enable()` in a `finally`, not in a `with` block: a signal may come
as the function that ends a block is entered, and a built-in one is not left out.

>>> import gc
>>> paused = pause_collection()
>>> gc.isenabled(), pause_collection()
(False, False)
>>> if paused:
...     gc.enable()
"""

from __future__ import annotations

import gc
from threading import get_ident

from weft.core.forks import in_child

_paused_by = [0]


def pause_collection() -> bool:
    """Turn collection off; whether it was on, and is to be turned on again."""
    was_on = gc.isenabled()
    if was_on:
        _paused_by[0] = get_ident()
        try:
            gc.disable()
        except BaseException:  # a signal
            gc.enable()
            raise
    return was_on


def _forget_other_threads() -> None:
    """A thread that a forked child does not have turns nothing on again."""
    if _paused_by[0] not in (0, get_ident()):
        gc.enable()


in_child(_forget_other_threads)
