"""Whether containers still hold the very same objects: what is remembered of them is then valid.

>>> layers, names = [object(), object()], {"a": 1.0}
>>> before = Contents([layers, names.keys(), names.values()])
>>> before.unchanged()
True
>>> layers.reverse()
>>> before.unchanged()
False
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import chain
from operator import is_
from typing import Any, Protocol


class View(Protocol):
    """Something with a length and elements in an order, such as a list or `d.values()`."""

    def __len__(self) -> int: ...
    def __iter__(self) -> Any: ...


class Contents:
    """What some containers hold now. It is compared by identity: an equal object is another one."""

    __slots__ = ("_held", "_lengths", "_views")

    def __init__(self, views: Iterable[View] = ()) -> None:
        self._views: list[View] = []
        self._lengths: list[int] = []
        self._held: list[Any] = []
        for view in views:
            self.add(view)

    def add(self, view: View) -> None:
        """Look at one more container from now on."""
        found = list(view)
        self._views.append(view)
        self._lengths.append(len(found))
        self._held += found

    def unchanged(self) -> bool:
        """Whether each container holds the same objects in the same order."""
        views = self._views
        try:
            return [*map(len, views)] == self._lengths and all(
                map(is_, chain.from_iterable(views), self._held)
            )
        except RuntimeError:  # another thread changes one of them at this moment
            return False
