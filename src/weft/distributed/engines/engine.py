"""What an engine is: the few operations on arrays that every group of processes is built on.

An engine moves data and adds numbers; it checks nothing. `Group` (group.py) stands in front of it,
compares what processes are about to do, and says who is late or lost.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np

from weft.collectives import Communicator, Pairs, Reduce

__all__ = ["Engine", "LostProcess", "reduce_arrays", "widen_for_sum"]

Array = np.ndarray[Any, Any]


class LostProcess(Exception):
    """An engine noticed that a process of the group is gone, or that the group was given up."""


class Engine(Communicator, Protocol):
    """A communicator that can also be split, and that is closed at the end."""

    name: str
    ends_waits: bool
    """Whether a call that waits too long for another process ends, with `LostProcess`."""

    def barrier(self) -> None:
        """Return once all processes are here."""

    def largest(self, words: Array) -> Array:
        """The largest of all processes' words, place by place: how processes compare."""

    def send(self, data: Array, target: int, tag: int) -> None:
        """Send bytes to one process, and go on at once; nobody may write to them any more."""

    def receive(self, source: int, tag: int) -> Array:
        """The next bytes that a process has sent to this one under a tag; waits for them."""

    def subgroup(self, ranks: Sequence[int]) -> Engine:
        """The engine of some ranks, this one among them; disjoint groups are made at once."""

    def interrupt(self) -> None:
        """Have calls end with `LostProcess` that others of the group are in, or begin later."""

    def close(self) -> None:
        """Give up what the engine holds; no process may use the group any more."""


def widen_for_sum(array: Array) -> Array:
    """16-bit floats as float32, in which engines add and compare them."""
    is_narrow = array.dtype.itemsize == 2 and array.dtype.kind in "fV"
    return array.astype(np.float32) if is_narrow else array


def reduce_arrays(arrays: Sequence[Array], reduce: Reduce) -> Array:
    """Arrays combined in the order of ranks, as the reference of the collectives does."""
    combine = {"sum": np.add, "max": np.maximum, "min": np.minimum}[reduce]
    result = widen_for_sum(arrays[0])
    if result is arrays[0]:
        result = result.copy()
    for other in arrays[1:]:
        combine(result, widen_for_sum(other), out=result)
    return result.astype(arrays[0].dtype, copy=False)


def receivers(pairs: Pairs, rank: int) -> tuple[int | None, int | None]:
    """Whom a rank sends to, and from whom it receives; None for nobody."""
    target = next((b for a, b in pairs if a == rank), None)
    source = next((a for a, b in pairs if b == rank), None)
    return target, source
