"""Processes that `mpiexec` started, joined by Open MPI through mpi4py: the engine for processors.

Large sums go in pieces and in place: one call over 64 MB takes four times as long as the same
bytes in pieces of 1 to 4 MB, because the library makes a new scratch buffer for each large call.
MPI has no bfloat16 and rounds float16 at each step, so both are summed in float32.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np

import weft as wf
from weft.collectives import Pairs, Reduce, group_cells
from weft.distributed.engines.engine import LostProcess, receivers, reduce_arrays, widen_for_sum

__all__ = ["PIECE", "MpiEngine", "mpi_world"]

Array = np.ndarray[Any, Any]
PIECE = 1 << 21
"""Bytes of one call of a sum."""


def mpi_world() -> MpiEngine:
    """The engine of all processes that `mpiexec` started together."""
    return MpiEngine(_load_mpi(), None)


def _load_mpi() -> Any:
    # A call that waits for another process gives its core to whoever computes: where processes have
    # no more cores than they compute with, that is the other process, or this one's own program.
    os.environ.setdefault("OMPI_MCA_mpi_yield_when_idle", "1")
    try:
        return import_module("mpi4py.MPI")
    except (ImportError, RuntimeError) as error:
        raise wf.UnsupportedError(
            "distributed.init",
            "the engine for processors is not installed",
            expected="mpi4py and a library of MPI",
            got={"engine": "mpi"},
            note=str(error),
            fix='pip install "weft[mpi]"',
        ) from error


class MpiEngine:
    """A communicator of MPI."""

    name = "mpi"
    ends_waits = False

    def __init__(self, mpi: Any, communicator: Any) -> None:
        self._mpi = mpi
        self.communicator = mpi.COMM_WORLD.Dup() if communicator is None else communicator
        self.communicator.Set_errhandler(mpi.ERRORS_RETURN)
        self._operations = {"sum": mpi.SUM, "max": mpi.MAX, "min": mpi.MIN}
        self._rank: int = self.communicator.Get_rank()
        self._size: int = self.communicator.Get_size()
        self._sent: list[tuple[Any, Array]] = []
        """Messages under way, with what they are read from."""

    @property
    def rank(self) -> int:
        """See `Communicator`."""
        return self._rank

    @property
    def size(self) -> int:
        """See `Communicator`."""
        return self._size

    def _call(self, name: str, *arguments: Any, **options: Any) -> Any:
        """Call a method of the communicator; an error of MPI says that a process is lost."""
        try:
            return getattr(self.communicator, name)(*arguments, **options)
        except self._mpi.Exception as error:
            raise LostProcess(error.Get_error_string()) from error

    def all_reduce(self, array: Array, reduce: Reduce) -> Array:
        """See `Communicator`."""
        result = _plain_numbers(array)
        result = result.copy() if np.shares_memory(result, array) else result
        flat, operation = result.reshape(-1), self._operations[reduce]
        step = max(PIECE // result.itemsize, 1)
        for start in range(0, flat.size, step):
            piece = flat[start : start + step]
            self._call("Allreduce", self._mpi.IN_PLACE, piece, op=operation)
        return result.astype(array.dtype, copy=False)

    def largest(self, words: Array) -> Array:
        """See `Engine`: by the call that compiled programs compare by, which no other one meets."""
        result = np.empty_like(words)
        request = self._call("Iallreduce", words, result, op=self._mpi.MAX)
        try:
            request.Wait()
        except self._mpi.Exception as error:
            raise LostProcess(error.Get_error_string()) from error
        return result

    def all_gather(self, array: Array) -> Array:
        """See `Communicator`."""
        result = np.empty((self._size, *array.shape), array.dtype)
        self._call("Allgather", _bytes_of(array), _bytes_of(result))
        return result

    def reduce_scatter(self, blocks: Array) -> Array:
        """See `Communicator`.

        Blocks are exchanged and added here, in the order of ranks: the library's own way took six
        times as long.
        """
        received = self.all_to_all(np.ascontiguousarray(widen_for_sum(blocks)))
        return reduce_arrays(list(received), "sum").astype(blocks.dtype, copy=False)

    def all_to_all(self, blocks: Array) -> Array:
        """See `Communicator`."""
        result = np.empty_like(blocks)
        self._call("Alltoall", _bytes_of(blocks), _bytes_of(result))
        return result

    def broadcast(self, array: Array, root: int) -> Array:
        """See `Communicator`."""
        result = array.copy()
        self._call("Bcast", _bytes_of(result), root=root)
        return result

    def permute(self, array: Array, pairs: Pairs) -> Array:
        """See `Communicator`."""
        target, source = receivers(pairs, self._rank)
        nobody = self._mpi.PROC_NULL
        result = np.zeros_like(array)
        self._call(
            "Sendrecv",
            _bytes_of(array),
            dest=nobody if target is None else target,
            recvbuf=_bytes_of(result),
            source=nobody if source is None else source,
        )
        return result

    def barrier(self) -> None:
        """See `Engine`."""
        self._call("Barrier")

    def send(self, data: Array, target: int, tag: int) -> None:
        """See `Engine`."""
        try:
            self._sent = [(request, held) for request, held in self._sent if not request.Test()]
        except self._mpi.Exception as error:
            raise LostProcess(error.Get_error_string()) from error
        self._sent.append((self._call("Isend", data, dest=target, tag=tag), data))

    def receive(self, source: int, tag: int) -> Array:
        """See `Engine`."""
        status = self._mpi.Status()
        message = self._call("Mprobe", source, tag, status)
        result = np.empty(status.Get_count(self._mpi.BYTE), np.uint8)
        try:
            message.Recv(result)
        except self._mpi.Exception as error:
            raise LostProcess(error.Get_error_string()) from error
        return result

    def subgroup(self, ranks: Sequence[int]) -> MpiEngine:
        """See `Engine`."""
        part = self._call("Split", min(ranks), list(ranks).index(self._rank))
        return MpiEngine(self._mpi, part)

    def interrupt(self) -> None:
        """See `Engine`."""
        self.communicator.Revoke()

    def survivors(self) -> MpiEngine:
        """The engine of the processes that are left, after some were lost."""
        self.interrupt()
        left = self.communicator.Shrink()
        return MpiEngine(self._mpi, left)

    def native_words(self) -> dict[int, int] | None:
        """What compiled programs call this engine by; None where the library is not found."""
        functions = {
            group_cells.FUNCTION: "MPI_Allreduce",
            group_cells.GATHER: "MPI_Allgather",
            group_cells.EXCHANGE: "MPI_Alltoall",
            group_cells.COMBINE: "MPI_Reduce_local",
            group_cells.BROADCAST: "MPI_Bcast",
            group_cells.PASS: "MPI_Sendrecv",
            group_cells.ISSUE: "MPI_Iallreduce",
            group_cells.TEST: "MPI_Test",
        }
        addresses = {place: _library_function(name) for place, name in functions.items()}
        if None in addresses.values():
            return None
        mpi, handle = self._mpi, self._mpi._handleof
        names = {"float32": "FLOAT", "float64": "DOUBLE", "complex64": "C_FLOAT_COMPLEX",
                 "complex128": "C_DOUBLE_COMPLEX"}  # fmt: skip
        kinds = [getattr(mpi, names.get(t, f"{t.upper()}_T")) for t in group_cells.TYPES]
        operations = [self._operations[reduce] for reduce in group_cells.OPERATIONS]
        words = {
            **{place: address for place, address in addresses.items() if address is not None},
            group_cells.COMMUNICATOR: handle(self.communicator),
            group_cells.IN_PLACE: int(mpi.IN_PLACE),
            group_cells.RANK: self._rank,
            group_cells.NOBODY: int(mpi.PROC_NULL),
        }
        words |= {group_cells.FIRST_TYPE + i: handle(kind) for i, kind in enumerate(kinds)}
        first = group_cells.FIRST_OPERATION
        return words | {first + i: handle(each) for i, each in enumerate(operations)}

    def error_text(self, code: int) -> str:
        """What a code means that a native call has returned."""
        return str(self._mpi.Get_error_string(code))

    def close(self) -> None:
        """See `Engine`; the library itself ends with the process."""
        if self.communicator != self._mpi.COMM_NULL and not self._mpi.Is_finalized():
            self.communicator.Free()


def _library_function(name: str) -> int | None:
    """The address of a function of the library that mpi4py has loaded."""
    try:
        maps = Path("/proc/self/maps").read_text(encoding="utf-8")
    except OSError:
        return None
    for line in maps.splitlines():
        path = line.split(maxsplit=5)[-1]
        if "/libmpi.so" in path:
            function = getattr(ctypes.CDLL(path), name)
            return ctypes.cast(function, ctypes.c_void_p).value
    return None


def _plain_numbers(array: Array) -> Array:
    """The array in a dtype that MPI can add and compare."""
    if array.dtype == np.bool_:
        return array.view(np.uint8)
    return widen_for_sum(array)


def _bytes_of(array: Array) -> Array:
    """The bytes of a contiguous array, for what is moved and not computed with."""
    return array.reshape(-1).view(np.uint8)
