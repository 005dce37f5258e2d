"""What a forked child must not inherit: locks that threads hold which it does not have.

A child is a copy of one thread. A lock that another thread held at that moment would never be
given back, so each lock here is free in a child, and who has half-made state behind one says how
to begin anew. Where that is not possible, as in LLVM, a fork waits until nobody is inside.

>>> from threading import Lock
>>> lock = renew_in_children(Lock())
>>> lock.acquire(), renew_all(), lock.locked()
(True, None, False)
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from functools import cached_property
from typing import Any, TypeVar
from weakref import WeakSet

Held = TypeVar("Held")

_locks: WeakSet[Any] = WeakSet()
_renewals: list[Callable[[], object]] = []


def renew_in_children(lock: Held) -> Held:
    """A lock of `threading`, which is free in every forked child."""
    _locks.add(lock)
    return lock


def wait_at_fork(lock: Any) -> None:
    """Fork only while no other thread holds this lock, so that what it guards is consistent."""
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(
            before=lock.acquire, after_in_parent=lock.release, after_in_child=lock.release
        )


def in_child(renew: Callable[[], object]) -> None:
    """Have something called first in every forked child, while locks say who held them."""
    _renewals.append(renew)


def renew_all() -> None:
    """Free all registered locks in a forked child, and run what was registered for it."""
    for renew in _renewals:
        renew()
    for lock in list(_locks):
        lock._at_fork_reinit()
    if sys.version_info < (3, 12):  # later ones have no locks
        for lock in _locks_of_properties():
            lock._at_fork_reinit()


def _locks_of_properties() -> list[Any]:
    """The locks of the library's cached properties, each of which is one for all objects."""
    names = [name for name in sys.modules if name.split(".")[0] == "weft"]
    classes = {
        id(each): each
        for name in names
        for each in list(vars(sys.modules[name]).values())
        if isinstance(each, type) and each.__module__.startswith("weft")
    }
    attributes = [held for each in classes.values() for held in list(vars(each).values())]
    properties = [held for held in attributes if isinstance(held, cached_property)]
    return [getattr(each, "lock") for each in properties]  # noqa: B009  newer ones have none


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=renew_all)
