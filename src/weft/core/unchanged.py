"""Whether containers still hold the very same objects: what is remembered of them is then valid.

>>> layers, names = [object(), object()], {"a": 1.0}
>>> before = Contents([layers, names])
>>> before.unchanged()
True
>>> layers.reverse()
>>> before.unchanged()
False
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import chain
from operator import is_
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]
Container = list[Any] | dict[Any, Any]

END, WORD, DICT, LIST = 0, 1, 2, 3
"""What stands first in each part of a table: nothing more, a word of memory, a container."""
NATIVE: list[Callable[[Array], bool]] = []
"""A native function that goes through such a table, where the compiler has made one."""


class Contents:
    """What some containers hold now. It is compared by identity: an equal object is another one."""

    __slots__ = ("_containers", "_held", "_lengths", "_table", "_views")

    def __init__(self, containers: Iterable[Container] = ()) -> None:
        self._containers: list[Container] = []
        self._views: list[Any] = []
        self._lengths: list[int] = []
        self._held: list[Any] = []
        self._table: Array | None = None
        for container in containers:
            self.add(container)

    def add(self, container: Container) -> None:
        """Look at one more container from now on; of a dictionary at its keys and its values."""
        views: list[Any] = [container]
        if isinstance(container, dict):
            views = [container.keys(), container.values()]
        found = [list(view) for view in views]
        self._containers.append(container)
        self._views += views
        self._lengths += map(len, found)
        self._held += chain.from_iterable(found)
        self._table = None

    def unchanged(self) -> bool:
        """Whether each container holds the same objects in the same order."""
        if NATIVE:
            if self._table is None:
                self._table = self._written()
            return NATIVE[0](self._table)
        views = self._views
        try:
            return [*map(len, views)] == self._lengths and all(
                map(is_, chain.from_iterable(views), self._held)
            )
        except RuntimeError:  # another thread changes one of them at this moment
            return False

    def _written(self) -> Array:
        """The table for the native function: containers, how many they hold, and what."""
        words: list[int] = []
        held, lengths = iter(map(id, self._held)), iter(self._lengths)
        for container in self._containers:
            first = [next(held) for _ in range(next(lengths))]
            if isinstance(container, list):
                words += (LIST, id(container), len(first), *first)
                continue
            second = [next(held) for _ in range(next(lengths))]
            words += (DICT, id(container), len(first))
            words += chain.from_iterable(zip(first, second, strict=True))
        return np.array([*words, END], np.int64)
