"""Arrays whose elements may change while they stay the same object, and who must know.

What was computed from an array is worth keeping as long as the array is as it was. Weft's own
arrays change where a program writes a result to the memory of what it replaces: it says so here.
Arrays that belong to others, such as a NumPy array a tensor was made of, may change at any time.

>>> import numpy as np
>>> array, seen = np.ones(3), []
>>> watch(array, lambda: seen.append("changed"))
True
>>> notify_change(array), notify_change(array), seen
(None, None, ['changed'])
>>> note_lending(array), watch(array[:2], lambda: None)
(None, False)
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from weakref import ref

import numpy as np

Array = np.ndarray[Any, Any]
Notice = Callable[[], object]

_lent: dict[int, ref[Array]] = {}
_watched: dict[int, tuple[ref[Array], list[Notice]]] = {}


def note_lending(array: Array) -> None:
    """Note that others may change the elements of an array."""
    key = id(array)
    _lent[key] = ref(array, lambda _: _lent.pop(key, None))


def is_lent(array: Array) -> bool:
    """Whether others may change the elements of an array, or of the one it is a view of."""
    base: Any = array
    while base is not None:
        if id(base) in _lent:
            return True
        base = base.base if isinstance(base, np.ndarray) else None
    return False


def watch(array: Array, notice: Notice) -> bool:
    """Have something called once, when an array changes or is no more; False if it is lent."""
    if is_lent(array):
        return False
    key = id(array)
    if key not in _watched:
        _watched[key] = ref(array, lambda _: _tell(key)), []
    notices = _watched[key][1]
    if notice not in notices:
        notices.append(notice)
    return True


def notify_change(array: Array) -> None:
    """Notify the watchers of an array that its elements have changed."""
    if _watched:
        _tell(id(array))


def _tell(key: int) -> None:
    _, notices = _watched.pop(key, (None, []))
    for notice in notices:
        notice()
