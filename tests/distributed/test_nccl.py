"""The engine for cards, on a stand-in for nccl4py: its calls, their arguments and their results.

The stand-in has the signatures of nccl4py 0.6, and refuses what NCCL refuses: other counts, other
dtypes, tensors that are no longer valid. Threads stand for processes, arrays of the host for those
of cards. NCCL itself has never run here on two cards.
"""

from __future__ import annotations

import sys
from contextlib import contextmanager
from enum import IntEnum
from types import ModuleType, SimpleNamespace
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import weft as wf
from weft import distributed
from weft.distributed.engines import nccl as nccl_engine
from weft.distributed.engines.engine import LostProcess
from weft.distributed.engines.nccl import NcclEngine, nccl_world
from weft.distributed.engines.threads import ThreadEngine, run_threads

SIZE = 3
DTYPES = ("int8", "uint8", "int32", "uint32", "int64", "uint64", "float16", "bfloat16",
          "float32", "float64")  # fmt: skip


class NcclInvalid(Exception):
    """As in nccl4py."""


NcclInvalid.__module__ = "nccl.core.typing"


class UniqueId:
    """As in nccl4py: 128 bytes."""

    def __init__(self, data: bytes = b"x" * 128) -> None:
        self.data = data

    def __bytes__(self) -> bytes:
        return self.data

    @staticmethod
    def from_bytes(data: bytes) -> UniqueId:
        """As in nccl4py."""
        assert len(data) == 128
        return UniqueId(bytes(data))


class RedOp(IntEnum):
    """As in nccl4py."""

    SUM = 0
    MAX = 2
    MIN = 3


class ShrinkFlag(IntEnum):
    """As in nccl4py."""

    DEFAULT = 0
    ABORT = 1


class CardObject:
    """cuda.core's device: one that was not made current cannot be waited for."""

    def __init__(self) -> None:
        self.is_current = False

    def set_current(self) -> None:
        """As in cuda.core."""
        self.is_current = True

    def sync(self) -> None:
        """As in cuda.core."""
        if not self.is_current:
            raise RuntimeError("Device 0 is not yet initialized")


class Communicator:
    """nccl4py's communicator, whose ranks are threads that meet in an engine of their own."""

    engine: ThreadEngine
    """Set for each thread before `init`."""

    def __init__(self, engine: ThreadEngine) -> None:
        self.engine, self.nranks, self.is_valid = engine, engine.size, True
        self.device = CardObject()
        self.calls: list[str] = []
        self.grouped: list[Any] | None = None

    def _check(self, name: str, send: Any, receive: Any, counts: tuple[int, int]) -> None:
        if not self.is_valid:
            raise NcclInvalid(f"{name}: the communicator is gone")
        assert send.dtype.name in DTYPES
        assert send.dtype == receive.dtype
        assert (send.size, receive.size) == counts
        self.calls.append(name)

    def allreduce(self, sendbuf: Any, recvbuf: Any, op: RedOp, *, stream: Any = None) -> None:
        """As in nccl4py."""
        self._check("allreduce", sendbuf, recvbuf, (sendbuf.size, sendbuf.size))
        how: Any = {RedOp.SUM: "sum", RedOp.MAX: "max", RedOp.MIN: "min"}[op]
        recvbuf[...] = self.engine.all_reduce(sendbuf, how)

    def allgather(self, sendbuf: Any, recvbuf: Any, *, stream: Any = None) -> None:
        """As in nccl4py."""
        self._check("allgather", sendbuf, recvbuf, (sendbuf.size, self.nranks * sendbuf.size))
        recvbuf[...] = self.engine.all_gather(sendbuf).reshape(recvbuf.shape)

    def reduce_scatter(self, sendbuf: Any, recvbuf: Any, op: RedOp, *, stream: Any = None) -> None:
        """As in nccl4py."""
        assert op is RedOp.SUM
        self._check("reduce_scatter", sendbuf, recvbuf, (self.nranks * recvbuf.size, recvbuf.size))
        blocks = sendbuf.reshape(self.nranks, -1)
        recvbuf[...] = self.engine.reduce_scatter(blocks).reshape(recvbuf.shape)

    def alltoall(self, sendbuf: Any, recvbuf: Any, *, stream: Any = None) -> None:
        """As in nccl4py."""
        self._check("alltoall", sendbuf, recvbuf, (sendbuf.size, sendbuf.size))
        assert sendbuf.size % self.nranks == 0
        blocks = sendbuf.reshape(self.nranks, -1)
        recvbuf[...] = self.engine.all_to_all(blocks).reshape(recvbuf.shape)

    def broadcast(self, sendbuf: Any, recvbuf: Any, root: int, *, stream: Any = None) -> None:
        """As in nccl4py."""
        self._check("broadcast", sendbuf, recvbuf, (recvbuf.size, recvbuf.size))
        recvbuf[...] = self.engine.broadcast(sendbuf, root)

    def send(self, sendbuf: Any, peer: int, *, stream: Any = None) -> None:
        """As in nccl4py."""
        self.calls.append("send")
        self.engine.send(sendbuf.copy(), peer, 77)

    def recv(self, recvbuf: Any, peer: int, *, stream: Any = None) -> None:
        """As in nccl4py."""
        self.calls.append("recv")
        recvbuf[...] = self.engine.receive(peer, 77)

    def split(self, color: int | None = None, key: int = 0) -> Communicator:
        """As in nccl4py."""
        assert color is not None
        pairs = self.engine.all_gather(np.array([color, key, self.engine.rank]))
        ranks = [int(r) for c, _, r in sorted(map(tuple, pairs.tolist())) if c == color]
        return Communicator(self.engine.subgroup(ranks))

    def shrink(self, exclude_ranks: Any = None, config: Any = None, flag: Any = None) -> Any:
        """As in nccl4py."""
        assert flag is ShrinkFlag.ABORT
        left = [r for r in range(self.nranks) if r not in exclude_ranks]
        return Communicator(self.engine.subgroup(left))

    def get_async_error(self) -> int:
        """As in nccl4py."""
        return 0

    def destroy(self) -> None:
        """As in nccl4py."""
        self.is_valid = False


class HostMemory:
    """Arrays of the host in the place of a card's."""

    def upload(self, array: Any) -> Any:
        """See `CardMemory`."""
        return array.copy()

    def download(self, buffer: Any) -> Any:
        """See `CardMemory`."""
        return buffer.copy()


@contextmanager
def _group() -> Any:
    yield


CORE = SimpleNamespace(
    SUM=RedOp.SUM, MAX=RedOp.MAX, MIN=RedOp.MIN, CommShrinkFlag=ShrinkFlag, UniqueId=UniqueId,
    get_unique_id=UniqueId, group=_group, NcclInvalid=NcclInvalid,
)  # fmt: skip


def _engines(f: Any) -> list[Any]:
    """Run a function with the engine of each of three threads, and one for the stand-in itself."""
    inner: dict[int, ThreadEngine] = {}

    def run_rank(host: ThreadEngine) -> Any:
        inner[host.rank] = host.subgroup(list(range(SIZE)))
        return f(NcclEngine(CORE, Communicator(inner[host.rank]), host, HostMemory()))

    return run_threads(run_rank, SIZE)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int64", "bool", "complex64", "int16"])
def test_each_collective_gives_what_threads_give(dtype: str) -> None:
    kind = ml_dtypes.bfloat16 if dtype == "bfloat16" else np.dtype(dtype)
    stack = (np.arange(SIZE * 6) * 5 % 7).reshape(SIZE, 6).astype(kind)

    def each(engine: Any) -> list[np.ndarray]:
        own, blocks = stack[engine.rank], stack[engine.rank].reshape(3, 2)
        found = [
            engine.all_gather(own),
            engine.all_to_all(blocks),
            engine.broadcast(own, 2),
            engine.permute(own, [(0, 1), (1, 2)]),
            engine.largest(np.array([engine.rank])),
        ]
        if dtype != "bool":
            found += [engine.all_reduce(own, "sum"), engine.reduce_scatter(blocks)]
        if dtype != "complex64":
            found += [engine.all_reduce(own, "max"), engine.all_reduce(own[:0], "max")]
        engine.barrier()
        return found

    for found, expected in zip(_engines(each), run_threads(each, SIZE), strict=True):
        for one, other in zip(found, expected, strict=True):
            assert one.dtype == other.dtype
            np.testing.assert_array_equal(one, other)


def test_numbers_that_nccl_knows_go_by_nccl_and_others_by_the_host() -> None:
    def run(engine: Any) -> list[str]:
        engine.all_reduce(np.ones(2, np.float32), "sum")
        engine.all_reduce(np.ones(2, np.complex64), "sum")
        engine.reduce_scatter(np.ones((SIZE, 2), np.int16))
        engine.all_gather(np.ones(2, np.complex64))
        calls: list[str] = engine.communicator.calls
        return calls

    assert _engines(run) == [["allreduce", "allgather"]] * SIZE


def test_a_group_is_split_and_goes_on_without_those_that_were_lost() -> None:
    def run(engine: Any) -> tuple[int, float]:
        part = engine.subgroup([0, 2] if engine.rank != 1 else [1])
        total = float(part.all_reduce(np.array([engine.rank + 1.0]), "sum")[0])
        return part.size, total

    assert _engines(run) == [(2, 4.0), (1, 2.0), (2, 4.0)]


def test_an_error_of_nccl_is_a_lost_process() -> None:
    def run(engine: Any) -> str:
        engine.communicator.is_valid = False
        with pytest.raises(LostProcess) as caught:
            engine.all_reduce(np.ones(2, np.float32), "sum")
        return str(caught.value)

    assert _engines(run) == ["allreduce: the communicator is gone"] * SIZE


def test_the_identifier_of_the_first_process_joins_all(monkeypatch: pytest.MonkeyPatch) -> None:
    package, seen = ModuleType("nccl"), []
    inner: dict[int, Communicator] = {}

    def init(nranks: int, rank: int, unique_id: UniqueId, config: Any = None) -> Any:
        seen.append((nranks, rank, bytes(unique_id)))
        return inner[rank]

    core = ModuleType("nccl.core")
    vars(core).update(vars(CORE), Communicator=SimpleNamespace(init=init))
    vars(package)["core"] = core
    monkeypatch.setitem(sys.modules, "nccl", package)
    monkeypatch.setitem(sys.modules, "nccl.core", core)
    monkeypatch.setattr(nccl_engine, "Card", lambda ordinal: SimpleNamespace(device="cpu"))

    def run_rank(host: ThreadEngine) -> int:
        inner[host.rank] = Communicator(host)
        return nccl_world(host, host.rank, count=SIZE).size

    assert run_threads(run_rank, SIZE) == [SIZE] * SIZE
    assert sorted(seen) == [(SIZE, rank, b"x" * 128) for rank in range(SIZE)]

    def run_crowded(host: ThreadEngine) -> str:
        with pytest.raises(wf.UnsupportedError, match="a card of its own") as caught:
            nccl_world(host, host.rank, count=2)
        return str(caught.value.got)

    assert len({*run_threads(run_crowded, SIZE)}) == 1


def test_a_missing_engine_names_its_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "nccl", None)
    with pytest.raises(wf.UnsupportedError, match="engine for cards is not installed") as caught:
        distributed.init("nccl")
    assert "weft[nccl]" in caught.value.fix
    assert not distributed.is_initialized()
