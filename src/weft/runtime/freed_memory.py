"""Memory that is freed stays with the process, for the arrays of the next step.

The C library takes arrays of some megabytes from the system one by one, or gives the end of its
heap back when a step's arrays are freed. The next step then meets every page for the first time,
and the system clears each: that takes ten times as long as an element-wise function of the array.
So what is freed is kept, up to a bound; the most that a process holds at a time is the same.

`WEFT_KEEP_FREED=off` leaves the C library as it is, and so do its own variables where they are set.

>>> is_left_alone({"WEFT_KEEP_FREED": "off"}), is_left_alone({"MALLOC_TRIM_THRESHOLD_": "0"})
(True, True)
>>> is_left_alone({"HOME": "/"})
False
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Mapping
from functools import cache

from weft.core.settings import OFF

VARIABLE = "WEFT_KEEP_FREED"
KEPT = 1 << 30
"""The bytes at the end of the heap that are kept."""
FROM_HEAP = 32 << 20
"""The bytes of an array up to which it is taken from the heap: the most that the C library allows,
and what its own bound grows to."""

_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3
"""The names of the two bounds in malloc.h."""
_CHOSEN = ("MALLOC_TRIM_THRESHOLD_", "MALLOC_MMAP_THRESHOLD_", "MALLOC_TOP_PAD_", "GLIBC_TUNABLES")
"""The variables by which users choose the bounds themselves."""


@cache
def keep_freed_memory() -> bool:
    """Let the C library keep what is freed, from now on; False where it is left as it is."""
    if is_left_alone(os.environ):
        return False
    try:
        change = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError, TypeError):  # another C library
        return False
    return bool(change(_MMAP_THRESHOLD, FROM_HEAP)) and bool(change(_TRIM_THRESHOLD, KEPT))


def is_left_alone(environment: Mapping[str, str]) -> bool:
    """Whether the environment asks that the C library's own bounds stay."""
    is_off = environment.get(VARIABLE, "on").lower() in OFF
    return is_off or any(name in environment for name in _CHOSEN)
