"""Whether containers still hold the very same objects: what is remembered of them is then valid.

>>> layers, names = [object(), object()], {"a": 1.0}
>>> before = Contents([layers, names])
>>> before.is_unchanged()
True
>>> layers.reverse()
>>> before.is_unchanged()
False
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import chain
from operator import is_
from typing import Any

Container = list[Any] | dict[Any, Any]
Held = tuple[Container, list[Any]]
"""A container and what it holds; of a dictionary each key and, behind it, its value."""
QUICKER: list[Callable[[list[Held]], Callable[[], bool]]] = []
"""Makes a native check of such containers, where the compiler has put one; see fastcall."""


class ChangeCount:
    """How often something was changed, in a slot that native code can look at."""

    __slots__ = ("count",)

    def __init__(self) -> None:
        self.count = 0


class Contents:
    """What some containers hold now. It is compared by identity: an equal object is another one."""

    __slots__ = ("_check", "_containers", "_held", "_lengths", "_views")

    def __init__(self, containers: Iterable[Container] = ()) -> None:
        self._containers: list[Container] = []
        self._views: list[Any] = []
        self._lengths: list[int] = []
        self._held: list[Any] = []
        self._check: Callable[[], bool] | None = None
        for container in containers:
            self.add(container)

    def add(self, container: Container) -> None:
        """Look at one more container from now on; of a dictionary at its keys and its values."""
        views: list[Any] = [container]
        if isinstance(container, dict):
            views = [container.keys(), container.values()]
        contents = [list(view) for view in views]
        self._containers.append(container)
        self._views += views
        self._lengths += map(len, contents)
        self._held += chain.from_iterable(contents)
        self._check = None

    def is_unchanged(self) -> bool:
        """Whether each container holds the same objects in the same order."""
        if QUICKER:
            if self._check is None:
                self._check = QUICKER[0](self.by_container())
            return self._check()
        views = self._views
        try:
            return [*map(len, views)] == self._lengths and all(
                map(is_, chain.from_iterable(views), self._held)
            )
        except RuntimeError:  # another thread changes one of them at this moment
            return False

    def by_container(self) -> list[Held]:
        """The containers, each with the objects it held."""
        held, lengths = iter(self._held), iter(self._lengths)
        pairs: list[Held] = []
        for container in self._containers:
            first = [next(held) for _ in range(next(lengths))]
            if isinstance(container, dict):
                values = [next(held) for _ in range(next(lengths))]
                first = [*chain.from_iterable(zip(first, values, strict=True))]
            pairs.append((container, first))
        return pairs
