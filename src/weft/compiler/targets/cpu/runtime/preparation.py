"""Preparation: what a program makes of inputs that stay the same is made once.

A weight is packed for its product, transposed, or transformed for a convolution by calls that come
first in a program. They need not run again while the inputs that they read are the same arrays, and
nobody has written to them.

>>> import numpy as np
>>> weight = np.ones(3)
>>> preparation = Preparation((1,))
>>> preparation.holds("tables", [np.ones(2), weight])
False
>>> preparation.note_run("tables", [None, weight])
>>> preparation.holds("tables", [np.zeros(2), weight]), preparation.holds("tables", [None, None])
(True, False)
>>> from weft.core.sharing import notify_change
>>> notify_change(weight)
>>> preparation.holds("tables", [np.zeros(2), weight])
False
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from weakref import ref

from weft.core.sharing import watch

__all__ = ["Preparation"]


class Preparation:
    """For which tables, and which arrays at some positions, the first calls have been run."""

    __slots__ = ("__weakref__", "_arrays", "_notice", "_tables", "fixed")

    def __init__(self, fixed: Sequence[int]) -> None:
        self.fixed = tuple(fixed)
        self._tables: Any = None
        self._arrays: list[int] = []
        alone = ref(self)

        def notice() -> None:
            held = alone()
            if held is not None:
                held.forget()

        self._notice = notice

    def holds(self, tables: Any, inputs: Sequence[Any]) -> bool:
        """Whether they need not run."""
        return self._tables is tables and self._arrays == [id(inputs[n]) for n in self.fixed]

    def note_run(self, tables: Any, inputs: Sequence[Any]) -> None:
        """Note that they have been run, unless an array may change without notice."""
        self.forget()
        arrays = [inputs[n] for n in self.fixed]
        watched = [watch(array, self._notice) for array in arrays]
        if all(watched):
            self._tables, self._arrays = tables, [*map(id, arrays)]

    def forget(self) -> None:
        """Have them run at the next call."""
        self._tables, self._arrays = None, []
