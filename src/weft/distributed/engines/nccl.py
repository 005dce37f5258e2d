"""Processes with a card each, joined by NCCL through nccl4py.

An engine for the host stands beside it: it hands NCCL's identifier around, compares what processes
are about to do, carries messages, and takes what NCCL has no numbers for. Arrays of the host go to
the card, through NCCL, and back.

This engine has never run on two cards: two processes of NCCL cannot share one, and no machine with
two was at hand. Its calls are checked against a stand-in that has nccl4py's signatures (0.6).
"""

from __future__ import annotations

import importlib
import socket
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import numpy as np

import weft as wf
from weft.collectives import Pairs, Reduce
from weft.distributed.engines.engine import Engine, LostProcess, receivers

__all__ = ["Card", "CardMemory", "NcclEngine", "nccl_world"]

Array = np.ndarray[Any, Any]
_TYPES = (
    "int8", "uint8", "int32", "uint32", "int64", "uint64", "float16", "bfloat16", "float32",
    "float64",
)  # fmt: skip
"""The dtypes that NCCL adds and compares."""


class CardMemory(Protocol):
    """Arrays in the memory of one card, which NCCL takes by DLPack."""

    def upload(self, array: Array) -> Any:
        """An array of the host, on the card; it is there when this returns."""

    def download(self, buffer: Any) -> Array:
        """An array of the card, on the host."""


class Card:
    """The memory of one card, as Weft's tensors."""

    def __init__(self, ordinal: int) -> None:
        self.device = f"cuda:{ordinal}"

    def upload(self, array: Array) -> Any:
        """See `CardMemory`."""
        tensor = wf.tensor(array, device=self.device)
        wf.cuda.synchronize(self.device)
        return tensor

    def download(self, buffer: Any) -> Array:
        """See `CardMemory`."""
        array: Array = buffer.numpy()
        return array


def nccl_world(host: Engine, local_rank: int, count: int | None = None) -> NcclEngine:
    """The engine of all processes that a host's engine joins, each with the card of its place."""
    nccl = _load_nccl()
    count = wf.cuda.device_count() if count is None else count
    _check_cards(host, local_rank, count)
    card = Card(local_rank)
    own = bytes(nccl.get_unique_id()) if host.rank == 0 else b""
    length = int(host.broadcast(np.array([len(own)]), 0)[0])
    data = np.zeros(length, np.uint8)
    data[: len(own)] = np.frombuffer(own, np.uint8)
    identifier = nccl.UniqueId.from_bytes(host.broadcast(data, 0).tobytes())
    wf.zeros((1,), device=card.device)  # makes the card the one of this process
    communicator = _call(
        nccl.Communicator.init, nranks=host.size, rank=host.rank, unique_id=identifier
    )
    return NcclEngine(nccl, communicator, host, card)


def _load_nccl() -> Any:
    try:
        return importlib.import_module("nccl.core")  # which the package nccl4py installs
    except (ImportError, RuntimeError, OSError) as error:
        raise wf.UnsupportedError(
            "distributed.init",
            "the engine for cards is not installed",
            expected="nccl4py, and NVIDIA's libraries for the cards of this host",
            got={"engine": "nccl"},
            note=str(error),
            fix='pip install "weft[nccl]", or wf.distributed.init("mpi"): tensors on cards then '
            "pass through the host",
        ) from error


def _check_cards(host: Engine, local_rank: int, count: int) -> None:
    """Refuse a host with fewer cards than processes on all processes, as NCCL would much later."""
    found = host.all_gather(np.array([local_rank, count]))
    missing = [rank for rank, (place, cards) in enumerate(found) if place >= cards]
    if missing:
        place, cards = (int(number) for number in found[missing[0]])
        raise wf.UnsupportedError(
            "distributed.init",
            "each process of NCCL needs a card of its own",
            expected="as many cards on each host as it has processes",
            got={"rank": missing[0], "its place on the host": place, "cards there": cards},
            note=f"seen from {socket.gethostname()}",
            fix=f'start {max(cards, 1)} processes on each host, or wf.distributed.init("mpi")',
        )


def _call(function: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
    """Call a function of nccl4py; an error of its own says that the group is no more."""
    try:
        return function(*arguments, **options)
    except Exception as error:
        if type(error).__module__.partition(".")[0] != "nccl":
            raise
        raise LostProcess(str(error)) from error


class NcclEngine:
    """A communicator of NCCL, and the engine for the host beside it."""

    name = "nccl"
    ends_waits = False

    def __init__(self, nccl: Any, communicator: Any, host: Engine, card: CardMemory) -> None:
        self._nccl, self.communicator, self._host, self._card = nccl, communicator, host, card
        self._operations = {"sum": nccl.SUM, "max": nccl.MAX, "min": nccl.MIN}

    @property
    def rank(self) -> int:
        """See `Communicator`."""
        return self._host.rank

    @property
    def size(self) -> int:
        """See `Communicator`."""
        return self._host.size

    def _takes(self, array: Array) -> bool:
        """Whether NCCL has numbers of this kind, and there are any."""
        return array.size > 0 and array.dtype.name in _TYPES

    def _run(self, name: str, given: Array, result: Array, *options: Any) -> Array:
        """Call a collective from one array to another, and wait for the card."""
        sent, received = self._card.upload(given), self._card.upload(result)
        _call(getattr(self.communicator, name), sent, received, *options)
        self._wait()
        return self._card.download(received).reshape(result.shape)

    def _wait(self) -> None:
        """Return once the card has done what it was given; an error that came meanwhile is told."""
        card = self.communicator.device
        card.set_current()  # the context is Weft's own; its object has to be told of it
        card.sync()
        _call(self.communicator.get_async_error)

    def all_reduce(self, array: Array, reduce: Reduce) -> Array:
        """See `Communicator`."""
        if not self._takes(array):
            return self._host.all_reduce(array, reduce)
        return self._run("allreduce", array, np.empty_like(array), self._operations[reduce])

    def largest(self, words: Array) -> Array:
        """See `Engine`: by the host, which is quick for a few bytes."""
        return self._host.largest(words)

    def all_gather(self, array: Array) -> Array:
        """See `Communicator`."""
        if not array.size:
            return self._host.all_gather(array)
        data = _bytes_of(array)
        rows = self._run("allgather", data, np.empty((self.size, data.size), np.uint8))
        return rows.reshape(-1).view(array.dtype).reshape(self.size, *array.shape)

    def reduce_scatter(self, blocks: Array) -> Array:
        """See `Communicator`."""
        if not self._takes(blocks):
            return self._host.reduce_scatter(blocks)
        return self._run("reduce_scatter", blocks, np.empty_like(blocks[0]), self._nccl.SUM)

    def all_to_all(self, blocks: Array) -> Array:
        """See `Communicator`."""
        if not blocks.size:
            return self._host.all_to_all(blocks)
        data = _bytes_of(blocks)
        moved = self._run("alltoall", data, np.empty_like(data))
        return moved.view(blocks.dtype).reshape(blocks.shape)

    def broadcast(self, array: Array, root: int) -> Array:
        """See `Communicator`."""
        if not array.size:
            return array.copy()
        data = _bytes_of(array)
        moved = self._run("broadcast", data, np.empty_like(data), root)
        return moved.view(array.dtype).reshape(array.shape)

    def permute(self, array: Array, pairs: Pairs) -> Array:
        """See `Communicator`: a send and a receive, in one group so that neither waits."""
        target, source = receivers(pairs, self.rank)
        data = _bytes_of(array)
        if not array.size or (target is None and source is None):
            return np.zeros_like(array)
        sent, received = self._card.upload(data), self._card.upload(np.zeros_like(data))
        with self._nccl.group():
            if target is not None:
                _call(self.communicator.send, sent, target)
            if source is not None:
                _call(self.communicator.recv, received, source)
        self._wait()
        return self._card.download(received).view(array.dtype).reshape(array.shape)

    def barrier(self) -> None:
        """See `Engine`."""
        self._host.barrier()

    def send(self, data: Array, target: int, tag: int) -> None:
        """See `Engine`: by the host, which knows tags."""
        self._host.send(data, target, tag)

    def receive(self, source: int, tag: int) -> Array:
        """See `Engine`."""
        return self._host.receive(source, tag)

    def subgroup(self, ranks: Sequence[int]) -> NcclEngine:
        """See `Engine`."""
        part = self._host.subgroup(ranks)
        color, key = min(ranks), list(ranks).index(self.rank)
        communicator = _call(self.communicator.split, color=color, key=key)
        return NcclEngine(self._nccl, communicator, part, self._card)

    def interrupt(self) -> None:
        """See `Engine`."""
        self.communicator.abort()
        self._host.interrupt()

    def survivors(self) -> NcclEngine:
        """The engine of the processes that are left, after some were lost."""
        before = self.rank
        host: Any = self._host
        left = host.survivors()
        present = {int(rank) for rank in left.all_gather(np.array(before))}
        lost = [rank for rank in range(self.size) if rank not in present]
        communicator = _call(
            self.communicator.shrink, exclude_ranks=lost, flag=self._nccl.CommShrinkFlag.ABORT
        )
        return NcclEngine(self._nccl, communicator, left, self._card)

    def close(self) -> None:
        """See `Engine`."""
        self.communicator.destroy()
        self._host.close()


def _bytes_of(array: Array) -> Array:
    """The bytes of a contiguous array, for what is moved and not computed with."""
    return array.reshape(-1).view(np.uint8)
