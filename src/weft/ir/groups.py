"""Groups of processes under the names of mesh axes: what collectives run on.

A collective names an axis of a mesh. Whoever starts processes binds a communicator to that name,
for the whole process or for one thread; the collective finds it here when it is computed. So no
operation knows an engine, and no engine an operation.

>>> from weft.ir.groups import group_size
>>> group_size("all_reduce", "nowhere")  # doctest: +ELLIPSIS
Traceback (most recent call last):
    ...
weft.core.errors.ArgumentError: all_reduce: no group of processes is bound to the axis 'nowhere'
...
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, Literal, Protocol

import numpy as np

from weft.core.errors import ArgumentError
from weft.ir.tensor import traces

__all__ = ["Communicator", "Reduce", "bind_groups", "bind_thread_groups", "bound_groups",
           "find_group", "group_size", "process_groups", "said_around",
           "stands_for_process"]  # fmt: skip

Array = np.ndarray[Any, Any]
Reduce = Literal["sum", "max", "min"]
Pairs = Sequence[tuple[int, int]]


class Communicator(Protocol):
    """A group of processes that call the same collectives in the same order.

    Arrays are contiguous arrays of the host. A result is a new array, or memory of the engine that
    nobody else writes to. Blocks stand along a first axis of the group's size. One whose processes
    compare what they are about to do has `saying(what)` as well; see `said_around`.
    """

    @property
    def rank(self) -> int:
        """The number of this process in the group, from 0."""

    @property
    def size(self) -> int:
        """How many processes the group has."""

    def all_reduce(self, array: Array, reduce: Reduce) -> Array:
        """The sum, maximum or minimum of all processes' arrays, element by element."""

    def all_gather(self, array: Array) -> Array:
        """The arrays of all processes: [size, ...]."""

    def reduce_scatter(self, blocks: Array) -> Array:
        """The sum of all processes' blocks for this process: [size, ...] to [...]."""

    def all_to_all(self, blocks: Array) -> Array:
        """Block i goes to process i: [size, ...] to the blocks from all, [size, ...]."""

    def broadcast(self, array: Array, root: int) -> Array:
        """The array of process `root`."""

    def permute(self, array: Array, pairs: Pairs) -> Array:
        """The array of the process that sends to this one; zeros where none does."""


def said_around(group: Communicator, what: str) -> AbstractContextManager[None]:
    """Around an operation: what it is for, the same on all processes of a group that compares."""
    compare = getattr(group, "saying", None)
    return nullcontext() if compare is None else compare(what)


class _ThreadGroups(threading.local):
    """The groups that are bound for this thread alone."""

    bound: Mapping[str, Communicator] = {}


BOUND: list[Callable[[Mapping[str, Communicator]], None]] = []
"""Told of the groups that are bound for the process; see group_cells.py."""
_PROCESS: dict[str, Communicator] = {}
_THREAD = _ThreadGroups()


def bind_groups(groups: Mapping[str, Communicator]) -> None:
    """Bind communicators to names of axes for this process; those bound before are dropped."""
    _PROCESS.clear()
    _PROCESS.update(groups)
    for tell in BOUND:
        tell(groups)


def process_groups() -> Mapping[str, Communicator]:
    """The communicators that are bound for this process."""
    return _PROCESS


def bind_thread_groups(groups: Mapping[str, Communicator]) -> None:
    """Bind communicators to names of axes for this thread alone."""
    _THREAD.bound = dict(groups)


@contextmanager
def bound_groups(groups: Mapping[str, Communicator]) -> Iterator[None]:
    """Bind communicators to names of axes for this thread, inside a `with` block."""
    before = _THREAD.bound
    _THREAD.bound = {**before, **groups}
    try:
        yield
    finally:
        _THREAD.bound = before


def stands_for_process() -> bool:
    """Whether this thread has groups of its own, as a process has."""
    return bool(_THREAD.bound)


def find_group(op: str, mesh_axis: str) -> Communicator:
    """The communicator that is bound to an axis; an error where there is none."""
    group = _THREAD.bound.get(mesh_axis) or _PROCESS.get(mesh_axis)
    if group is None:
        raise ArgumentError(
            op,
            f"no group of processes is bound to the axis {mesh_axis!r}",
            expected="one of " + (", ".join({**_PROCESS, **_THREAD.bound}) or "none: no group yet"),
            got={"axis": mesh_axis},
            fix="wf.distributed.init() in a program started by `weft launch -n 2 train.py`; "
            f'in one process: wf.vmap(f, axis_name="{mesh_axis}")',
        )
    return group


def group_size(op: str, mesh_axis: str) -> int:
    """How many shards an axis has: those of a `vmap` with its name, or processes of its group."""
    for trace in reversed(traces.stack):
        if trace.axis_name == mesh_axis:
            return int(trace.axis_size)
    return find_group(op, mesh_axis).size
