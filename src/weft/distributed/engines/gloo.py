"""Processes joined by gloo through xoscar: no launcher stands between them, and calls time out.

Processes meet in a folder that all of them see, and connect by the names of their hosts. A group is
made anew, under a new name, whenever its members change: after a loss, and where a link is cut,
those that reach each other make the next one. bfloat16 is summed in float32.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Sequence
from datetime import timedelta
from functools import cached_property
from importlib import import_module
from typing import Any, NamedTuple

import numpy as np

import weft as wf
from weft.collectives import Pairs, Reduce
from weft.distributed.engines.engine import LostProcess, receivers, reduce_arrays, widen_for_sum
from weft.distributed.engines.messages import Mailbox
from weft.distributed.membership import Membership

__all__ = ["Generation", "GlooEngine", "Place", "gloo_world", "join_gloo_world"]

Array = np.ndarray[Any, Any]
_TYPES = {
    "int8": "glooInt8", "uint8": "glooUint8", "int32": "glooInt32", "uint32": "glooUint32",
    "int64": "glooInt64", "uint64": "glooUint64", "float32": "glooFloat32",
    "float64": "glooFloat64",
}  # fmt: skip
"""The dtypes that gloo adds and compares."""


CONNECT = 10.0
"""Seconds that the members of a new group have to connect."""


class Place(NamedTuple):
    """Where a process is found: the job's folder, its host, and how long others wait for it."""

    folder: str
    timeout: float
    host: str = "localhost"

    def membership(self, own: int) -> Membership:
        """The view of the job's members that a process has."""
        folder = os.path.join(self.folder, "members")
        return Membership(folder, own, self.timeout, self.host)


def gloo_world(rank: int, size: int, place: Place) -> GlooEngine:
    """The engine of `size` processes that meet in a folder."""
    gloo = _load_gloo()
    generation = Generation(place.membership(rank), 0, list(range(size)))
    return GlooEngine(gloo, rank, size, place, "world", generation)


def join_gloo_world(rank: int, size: int, place: Place, restarts: int) -> GlooEngine:
    """The engine of the group that takes a process in that was started again.

    Its number is one that no process of the job had before.
    """
    gloo = _load_gloo()
    membership = place.membership(rank + restarts * size)
    number, members = membership.join()
    return _engine_of(gloo, Generation(membership, number, members), place)


class Generation(NamedTuple):
    """One group among those that follow each other as members are lost and join."""

    membership: Membership
    number: int
    members: list[int]

    def after(self) -> Generation:
        """The next group, of those that are there."""
        number = self.number + 1
        return Generation(self.membership, number, self.membership.meet(number, self.members))


def _engine_of(gloo: Any, generation: Generation, place: Place) -> GlooEngine:
    """The engine of a generation; where a member is lost before all are connected, of the next."""
    while True:
        members, name = generation.members, f"generation-{generation.number}"
        rank = members.index(generation.membership.own)
        try:
            return GlooEngine(gloo, rank, len(members), place, name, generation)
        except LostProcess:
            generation = generation.after()


def _load_gloo() -> Any:
    try:
        return import_module("xoscar.collective.xoscar_pygloo")
    except ImportError as error:
        raise wf.UnsupportedError(
            "distributed.init",
            "the engine without a launcher is not installed",
            expected="xoscar, which brings gloo along",
            got={"engine": "gloo"},
            note=str(error),
            fix='pip install "weft[elastic]"',
        ) from error


class GlooEngine:
    """A context of gloo."""

    name = "gloo"
    ends_waits = True

    def __init__(
        self,
        gloo: Any,
        rank: int,
        size: int,
        place: Place,
        group: str,
        generation: Generation | None = None,
    ) -> None:
        self._gloo, self._rank, self._size = gloo, rank, size
        self.generation = generation
        self._place, self._group = place, group
        self._subgroups = Counter[str]()
        """How many groups of the same processes were made; each meets at a place of its own."""
        timeout = place.timeout
        os.makedirs(place.folder, exist_ok=True)
        store = gloo.rendezvous.PrefixStore(group, gloo.rendezvous.FileStore(place.folder))
        device = gloo.transport.tcp.CreateDevice(gloo.transport.tcp.attr(place.host))
        self._context = gloo.rendezvous.Context(rank, size)
        is_later = generation is not None and generation.number > 0
        self._context.setTimeout(timedelta(seconds=min(timeout, CONNECT) if is_later else timeout))
        self._call(self._context.connectFullMesh, store, device)
        self._context.setTimeout(timedelta(seconds=timeout))

    @property
    def rank(self) -> int:
        """See `Communicator`."""
        return self._rank

    @property
    def size(self) -> int:
        """See `Communicator`."""
        return self._size

    @staticmethod
    def _call(function: Any, *arguments: Any, **options: Any) -> None:
        try:
            function(*arguments, **options)
        except RuntimeError as error:
            raise LostProcess(str(error)) from error

    def _move(self, function: Any, source: Array, target: Array, size: int, **options: Any) -> None:
        """Call an operation on bytes."""
        kind = self._gloo.GlooDataType_t.glooUint8
        places = (source.ctypes.data, target.ctypes.data, size, kind)
        self._call(function, self._context, *places, **options)

    def all_reduce(self, array: Array, reduce: Reduce) -> Array:
        """See `Communicator`.

        What gloo has no numbers for is gathered and combined here, in the order of ranks.
        """
        wide = array.view(np.uint8) if array.dtype == np.bool_ else widen_for_sum(array)
        kind = _TYPES.get(wide.dtype.name)
        if kind is None or not wide.size:
            return reduce_arrays(list(self.all_gather(array)), reduce)
        wide = np.require(wide, requirements="C")  # which leaves a number without axes one
        result = np.empty_like(wide)
        self._call(
            self._gloo.allreduce,
            self._context,
            wide.ctypes.data,
            result.ctypes.data,
            wide.size,
            getattr(self._gloo.GlooDataType_t, kind),
            getattr(self._gloo.ReduceOp, reduce.upper()),
        )
        return result.astype(array.dtype, copy=False)

    def largest(self, words: Array) -> Array:
        """See `Engine`."""
        return self.all_reduce(words, "max")

    def all_gather(self, array: Array) -> Array:
        """See `Communicator`."""
        result = np.empty((self._size, *array.shape), array.dtype)
        if array.size:
            self._move(self._gloo.allgather, array, result, array.nbytes)
        return result

    def reduce_scatter(self, blocks: Array) -> Array:
        """See `Communicator`; blocks are exchanged and added here, in the order of ranks."""
        return reduce_arrays(list(self.all_to_all(blocks)), "sum")

    def all_to_all(self, blocks: Array) -> Array:
        """See `Communicator`."""
        result = np.empty_like(blocks)
        if blocks.size:
            self._move(self._gloo.all_to_all, blocks, result, blocks.nbytes)
        return result

    def broadcast(self, array: Array, root: int) -> Array:
        """See `Communicator`."""
        result = array.copy()
        if array.size:
            self._move(self._gloo.broadcast, array, result, array.nbytes, root=root)
        return result

    def permute(self, array: Array, pairs: Pairs) -> Array:
        """See `Communicator`.

        gloo has no call that sends and receives at once, so all arrays are exchanged in blocks.
        """
        target, source = receivers(pairs, self._rank)
        blocks = np.zeros((self._size, *array.shape), array.dtype)
        if target is not None:
            blocks[target] = array
        received = self.all_to_all(blocks)
        return np.zeros_like(array) if source is None else received[source]

    def barrier(self) -> None:
        """See `Engine`."""
        self._call(self._gloo.barrier, self._context)

    @cached_property
    def _mailbox(self) -> Mailbox:
        """What messages go by: xoscar's calls wait for the receiver, and keep all threads so."""
        if self._place.host != "localhost":
            raise wf.UnsupportedError(
                "distributed",
                "messages of gloo's processes do not go from host to host",
                expected="processes on one host, or joined by Open MPI",
                got={"host": self._place.host},
                fix="weft launch --engine mpi --hosts one,two train.py",
            )
        return Mailbox(self._place.folder, self._group, self._rank, self._place.timeout)

    def send(self, data: Array, target: int, tag: int) -> None:
        """See `Engine`."""
        self._mailbox.send(data, target, tag)

    def receive(self, source: int, tag: int) -> Array:
        """See `Engine`."""
        return self._mailbox.receive(source, tag)

    def subgroup(self, ranks: Sequence[int]) -> GlooEngine:
        """See `Engine`."""
        numbers = "-".join(map(str, ranks))
        self._subgroups[numbers] += 1
        name = f"{self._group}.{numbers}.{self._subgroups[numbers]}"
        rank, generation = list(ranks).index(self._rank), self.generation
        if generation is not None:
            members = [generation.members[each] for each in ranks]
            generation = generation._replace(members=members)
        return GlooEngine(self._gloo, rank, len(ranks), self._place, name, generation)

    def interrupt(self) -> None:
        """See `Engine`."""
        self.close()  # so that those notice who wait for this process

    def survivors(self) -> GlooEngine:
        """The engine of the processes that are left, and of those that join."""
        assert self.generation is not None
        self.interrupt()
        return _engine_of(self._gloo, self.generation.after(), self._place)

    def close(self) -> None:
        """See `Engine`."""
        self._context.closeConnections()
        if "_mailbox" in self.__dict__:
            self._mailbox.close()
