"""Arrays in shared memory: how batches travel from worker processes, and datasets to them.

A tree is divided into its arrays, which are written side by side into one segment, and a skeleton
that says where each one lies, which is small and is sent through a pipe. The process that owns the
loader owns every segment: a worker may make a segment only under a name that the owner has given
it beforehand, so that the owner can remove it even when the worker was killed in between.

>>> import numpy as np
>>> from weft.data.shared import lay_out, read_from, write_into
>>> layout = lay_out({"x": np.arange(3), "name": "a"})
>>> memory = bytearray(layout.size)
>>> write_into(memory, layout)
>>> read_from(memory, layout.skeleton)
{'x': array([0, 1, 2]), 'name': 'a'}
"""

from __future__ import annotations

import os
import pickle
import secrets
from collections.abc import Mapping
from contextlib import suppress
from multiprocessing import shared_memory
from multiprocessing.shared_memory import SharedMemory
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

import weft as wf

_ALIGNMENT = 64
_SLACK = 1.25
"""How much larger than needed a segment is made, so that batches that vary still fit."""


class Placed(NamedTuple):
    """In a skeleton: an array that lies in the segment."""

    offset: int
    dtype: np.dtype[Any]
    shape: tuple[int, ...]


class Layout(NamedTuple):
    """A tree divided for sending: the skeleton, the place of each array, and the bytes in all."""

    skeleton: Any
    arrays: list[tuple[int, npt.NDArray[Any]]]
    size: int


def lay_out(tree: Any) -> Layout:
    """Give each array of a tree its place in a segment; arrays of objects stay in the skeleton."""
    arrays: list[tuple[int, npt.NDArray[Any]]] = []
    size = 0

    def divide(part: Any) -> Any:
        nonlocal size
        if isinstance(part, np.ndarray | wf.Tensor):
            array = np.asarray(part)
            if array.dtype.hasobject:
                return array
            offset, size = size, size + _aligned_size(array.nbytes)
            arrays.append((offset, array))
            return Placed(offset, array.dtype, array.shape)
        return _rebuild_container(part, divide)

    skeleton = divide(tree)
    return Layout(skeleton, arrays, size)


def write_into(memory: Any, layout: Layout) -> None:
    """Copy the arrays to their places."""
    for offset, array in layout.arrays:
        np.ndarray(array.shape, array.dtype, memory, offset)[...] = array


def read_from(memory: Any, skeleton: Any) -> Any:
    """The tree again, with copies of its arrays: the segment may be used for another batch."""

    def join(part: Any) -> Any:
        if isinstance(part, Placed):
            return np.ndarray(part.shape, part.dtype, memory, part.offset).copy()
        return _rebuild_container(part, join)

    return join(skeleton)


class Offer(NamedTuple):
    """A slot as a worker sees it: its segment, and the name for a larger one."""

    slot: int
    name: str | None
    size: int
    next_name: str


class Slot:
    """One place for a batch on its way, as the owner sees it; its segment grows when needed."""

    def __init__(self, prefix: str, number: int) -> None:
        self._number = number
        self._prefix = f"{prefix}-{number}-"
        self._generation = 0
        self._memory: SharedMemory | None = None

    @property
    def offer(self) -> Offer:
        """The description of this slot that is sent to a worker."""
        name, size = (self._memory.name, self._memory.size) if self._memory else (None, 0)
        return Offer(self._number, name, size, f"{self._prefix}{self._generation}")

    def take(self, name: str, skeleton: Any) -> Any:
        """The batch that a worker wrote, read from the segment that it used."""
        if self._memory is None or self._memory.name != name:
            # The batch did not fit: the worker made a larger segment, which replaces this one.
            larger = SharedMemory(name)
            self.remove()
            self._memory = larger
            self._generation += 1
        return read_from(self._memory.buf, skeleton)

    def remove(self) -> None:
        """Give the segment back to the system."""
        if self._memory is not None:
            _remove(self._memory)
            self._memory = None

    def remove_all(self) -> None:
        """Remove the segment, and a larger one that a killed worker may have made unannounced."""
        self.remove()
        name = f"{self._prefix}{self._generation}"
        with suppress(FileNotFoundError):
            try:
                _remove(SharedMemory(name))
            except ValueError:  # it ended between making the segment and giving it a size
                vars(shared_memory)["_posixshmem"].shm_unlink(f"/{name}")


class Desk:
    """The slots as a worker sees them: segments it has opened, by slot."""

    def __init__(self) -> None:
        self._open: dict[int, SharedMemory] = {}

    def put(self, tree: Any, offer: Offer) -> tuple[str, Any]:
        """Write a batch; returns the segment's name and the skeleton."""
        layout = lay_out(tree)
        memory = self._memory(offer, layout.size)
        write_into(memory.buf, layout)
        return memory.name, layout.skeleton

    def _memory(self, offer: Offer, size: int) -> SharedMemory:
        if offer.name is None or offer.size < size:
            self._replace(
                offer.slot, _create_memory(offer.next_name, int(size * _SLACK) + _ALIGNMENT)
            )
        elif offer.slot not in self._open or self._open[offer.slot].name != offer.name:
            self._replace(offer.slot, SharedMemory(offer.name))
        return self._open[offer.slot]

    def _replace(self, slot: int, memory: SharedMemory) -> None:
        old = self._open.pop(slot, None)
        if old is not None:
            old.close()
        self._open[slot] = memory


class Parcel:
    """An object pickled once for all workers; its arrays lie in one segment that they share.

    The arrays that a worker gets are views of that segment and cannot be written to.
    """

    def __init__(self, prefix: str, value: Any) -> None:
        # Protocol 5 gives the memory of arrays apart, so that it is copied once, to the segment.
        buffers: list[pickle.PickleBuffer] = []
        self.data = pickle.dumps(value, protocol=5, buffer_callback=buffers.append)
        arrays = [np.frombuffer(buffer.raw(), np.uint8) for buffer in buffers]
        layout = lay_out(arrays)
        self.places: list[Placed] = layout.skeleton
        self.name = f"{prefix}-data"
        self._memory: SharedMemory | None = None
        if layout.size:
            self._memory = _create_memory(self.name, layout.size)
            write_into(self._memory.buf, layout)

    def label(self) -> tuple[bytes, str | None, list[Placed]]:
        """The bytes, the segment's name and the places that `open_parcel` needs."""
        return self.data, self.name if self._memory else None, self.places

    def remove(self) -> None:
        """Give the segment back to the system; who has opened it keeps it."""
        if self._memory is not None:
            _remove(self._memory)
            self._memory = None


def open_parcel(data: bytes, name: str | None, places: list[Placed]) -> tuple[Any, Any]:
    """The object, and the segment that must stay open as long as it is used."""
    if name is None:
        return pickle.loads(data, buffers=[b""] * len(places)), None
    memory = SharedMemory(name)
    view = memoryview(memory.buf or b"").toreadonly()
    buffers = [view[place.offset : place.offset + place.shape[0]] for place in places]
    return pickle.loads(data, buffers=buffers), memory


def new_prefix() -> str:
    """A name for the segments of one pool: short, for systems that allow 31 characters."""
    return f"weft{os.getpid()}{secrets.token_hex(3)}"


def _create_memory(name: str, size: int) -> SharedMemory:
    try:
        return SharedMemory(name, create=True, size=size)
    except FileExistsError:  # left by a batch that failed while it was being written
        _remove(SharedMemory(name))
        return SharedMemory(name, create=True, size=size)


def _remove(memory: SharedMemory) -> None:
    with suppress(BufferError):
        memory.close()
    with suppress(FileNotFoundError):
        memory.unlink()


def _rebuild_container(part: Any, convert: Any) -> Any:
    if isinstance(part, Mapping):
        return {key: convert(value) for key, value in part.items()}
    if isinstance(part, tuple) and hasattr(part, "_make"):
        return type(part)._make([convert(value) for value in part])
    if isinstance(part, tuple | list):
        return type(part)([convert(value) for value in part])
    return part


def _aligned_size(size: int) -> int:
    return -(-size // _ALIGNMENT) * _ALIGNMENT
