"""Whether anybody else holds an object, by the interpreter's count of references.

An interpreter's own count includes what the question itself holds, and interpreters differ in
that. So the function that asks is first asked about an object that only a list holds: the number
it then gives is what is its own, whatever it is. Both times it is the same code that runs. Where
the numbers do not add up, everything counts as held elsewhere.

>>> lone, shared = [object()], [object()]
>>> another = shared[0]
>>> references_beside(lone, (0,)), references_beside(shared, (0,))
([0], [1])
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from typing import Any

_UNKNOWN = 1 << 30
_count = getattr(sys, "getrefcount", lambda held: _UNKNOWN)
_own = [0]
"""What `_count` says in `references_beside` of an object that nobody but the list holds."""


def references_beside(held: list[Any], places: Iterable[int]) -> list[int]:
    """How many references there are to the objects at these places of a list, beside the list's."""
    own = _own[0]
    return [_count(held[place]) - own for place in places]


def calibrate() -> bool:
    """Find out what the question itself holds; False where it cannot be told."""
    _own[0] = 0
    _own[0] = references_beside([object()], (0,))[0]
    held = [object()]
    others = [*held, *held]
    if references_beside(held, (0,)) == [len(others)]:
        others.clear()
        if references_beside(held, (0,)) == [0]:
            return True
    _own[0] = -_UNKNOWN
    return False


calibrate()
