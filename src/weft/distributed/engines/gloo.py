"""Processes joined by gloo through xoscar: no launcher stands between them, and calls time out.

Processes meet in a folder that all of them see. A group is made anew, under a new name, whenever
its members change: after a loss the survivors make the next one. bfloat16 is summed in float32.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import Any

import numpy as np

import weft as wf
from weft.collectives import Pairs, Reduce
from weft.distributed.engines.engine import LostProcess, receivers, reduce_arrays, widen_for_sum

__all__ = ["GlooEngine", "gloo_world"]

Array = np.ndarray[Any, Any]
_TYPES = {
    "int8": "glooInt8", "uint8": "glooUint8", "int32": "glooInt32", "uint32": "glooUint32",
    "int64": "glooInt64", "uint64": "glooUint64", "float32": "glooFloat32",
    "float64": "glooFloat64",
}  # fmt: skip
"""The dtypes that gloo adds and compares."""


def gloo_world(
    rank: int, size: int, folder: str, timeout: float, name: str = "world"
) -> GlooEngine:
    """The engine of `size` processes that meet in a folder."""
    try:
        from xoscar.collective import xoscar_pygloo
    except ImportError as error:
        raise wf.UnsupportedError(
            "distributed.init",
            "the engine without a launcher is not installed",
            expected="xoscar, which brings gloo along",
            got={"engine": "gloo"},
            note=str(error),
            fix='pip install "weft[elastic]"',
        ) from error
    return GlooEngine(xoscar_pygloo, rank, size, folder, timeout, name)


class GlooEngine:
    """A context of gloo."""

    name = "gloo"

    def __init__(
        self, gloo: Any, rank: int, size: int, folder: str, timeout: float, group: str
    ) -> None:
        self._gloo, self._rank, self._size = gloo, rank, size
        self._folder, self._timeout, self._group = folder, timeout, group
        self._sender: ThreadPoolExecutor | None = None
        os.makedirs(folder, exist_ok=True)
        store = gloo.rendezvous.PrefixStore(group, gloo.rendezvous.FileStore(folder))
        device = gloo.transport.tcp.CreateDevice(gloo.transport.tcp.attr("localhost"))
        self._context = gloo.rendezvous.Context(rank, size)
        self._context.setTimeout(timedelta(seconds=timeout))
        self._call(self._context.connectFullMesh, store, device)

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
        wide = np.ascontiguousarray(wide)
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

    def send(self, data: Array, target: int, tag: int) -> None:
        """See `Engine`; a thread sends, because gloo's own call waits for the receiver."""
        if self._sender is None:
            self._sender = ThreadPoolExecutor(1, "weft-send")
        self._sender.submit(self._send_now, data, target, tag)

    def _send_now(self, data: Array, target: int, tag: int) -> None:
        byte = self._gloo.GlooDataType_t.glooUint8
        length = np.array([data.size], np.int64)
        for part, place in ((length.view(np.uint8), 2 * tag), (data, 2 * tag + 1)):
            if part.size:
                self._gloo.send(
                    self._context, part.ctypes.data, part.size, byte, peer=target, tag=place
                )

    def receive(self, source: int, tag: int) -> Array:
        """See `Engine`."""
        length = np.zeros(1, np.int64)
        self._receive_into(length.view(np.uint8), source, 2 * tag)
        result = np.empty(int(length[0]), np.uint8)
        if result.size:
            self._receive_into(result, source, 2 * tag + 1)
        return result

    def _receive_into(self, buffer: Array, source: int, tag: int) -> None:
        byte = self._gloo.GlooDataType_t.glooUint8
        place, size = buffer.ctypes.data, buffer.size
        self._call(self._gloo.recv, self._context, place, size, byte, peer=source, tag=tag)

    def subgroup(self, ranks: Sequence[int]) -> GlooEngine:
        """See `Engine`."""
        name = f"{self._group}.{'-'.join(map(str, ranks))}"
        place = list(ranks).index(self._rank)
        return GlooEngine(self._gloo, place, len(ranks), self._folder, self._timeout, name)

    def close(self) -> None:
        """See `Engine`."""
        self._context.closeConnections()
