"""Whether anybody else holds an object, by the interpreter's count of references.

An interpreter's own count includes what the question itself holds, and interpreters differ in
that. So the function that asks is first asked about an object that only a list holds: the number
it then gives is what is its own, whatever it is. Both times it is the same code that runs. Where
the numbers do not add up, everything counts as held elsewhere.

>>> held = [object(), object()]
>>> another = held[1]
>>> held_beside(held, (0, 1), 0), held_beside(held, (0, 1), 1)
([0], [1])
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from typing import Any

_count = getattr(sys, "getrefcount", lambda held: 0)
_own = [0]
"""What `_count` says in `held_beside` of an object that nobody but the list holds."""
_MOST = 64
"""More references than the question itself holds in any interpreter."""
_NEVER = -(1 << 60)
"""A number that no count comes to."""


def held_beside(held: list[Any], places: Iterable[int], others: int) -> list[int]:
    """The places of a list whose object has `others` references besides the list's own."""
    wanted = _own[0] + others
    return [place for place in places if _count(held[place]) == wanted]


def calibrate() -> bool:
    """Measure how many references the query itself adds; False if they cannot be counted."""
    _own[0] = 0
    alone = [object()]
    _own[0] = next((n for n in range(1, _MOST) if held_beside(alone, (0,), n)), _NEVER)
    others = [*alone, *alone]
    if held_beside(alone, (0,), 2) and not held_beside(alone, (0,), 0):
        others.clear()
        if held_beside(alone, (0,), 0):
            return True
    _own[0] = _NEVER
    return False


calibrate()
