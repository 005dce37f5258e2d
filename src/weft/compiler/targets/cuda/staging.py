"""Batches on their way to a card: copied beside its work, through pinned memory of the host.

A batch goes to the card on a stream of its own, while the main stream works. Three things are
waited for, each by an event: pinned memory is filled anew only after the copy from it; the main
stream reads a batch only after its copy (`Upload.finish`); and memory of a batch that nobody holds
is used for another one only after the work that read it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from weakref import finalize

import numpy as np

from weft.compiler.targets.cuda.array import CudaArray, compute_stream
from weft.compiler.targets.cuda.device import Event, PinnedMemory, Stream
from weft.compiler.targets.cuda.dlpack import borrow_array, collect_dropped

SLOTS = 2
"""Batches whose copies may be under way at once."""


class Slot:
    """Pinned memory for the arrays of one batch, and the event after which it is free."""

    def __init__(self, stream: Stream) -> None:
        self._device = stream.device
        self.copied = Event(stream.device, timed=False)
        self.is_used = False
        self._buffers: list[PinnedMemory] = []

    def buffer(self, place: int, count: int) -> PinnedMemory:
        """Room for the array at a place in the batch."""
        if place == len(self._buffers):
            self._buffers.append(PinnedMemory(self._device, count))
        elif self._buffers[place].count < count:
            self._buffers[place] = PinnedMemory(self._device, count)
        return self._buffers[place]


class Upload:
    """One batch under way."""

    def __init__(self, stream: Stream, slot: Slot) -> None:
        self._stream, self._slot, self._count = stream, slot, 0

    def add(self, array: np.ndarray[Any, Any]) -> CudaArray:
        """Begin to copy an array; it may be read after `finish`."""
        memory = self._stream.allocate(array.nbytes)
        if array.nbytes:
            pinned = self._slot.buffer(self._count, array.nbytes).array(array.dtype, array.shape)
            self._count += 1
            pinned[...] = array
            self._stream.upload(memory, pinned)
        main = compute_stream(self._stream.device.ordinal)
        held = [memory]
        return borrow_array(main, memory.pointer, array.dtype, array.shape, held.clear)

    def end(self) -> None:
        """All arrays of the batch were added."""
        self._slot.copied.record(self._stream)
        self._slot.is_used = True

    def finish(self) -> None:
        """What the main stream does from now on begins after the copies."""
        compute_stream(self._stream.device.ordinal).wait(self._slot.copied)


class Staging:
    """Uploads to one card, beside its work."""

    def __init__(self, ordinal: int) -> None:
        self._stream = Stream(compute_stream(ordinal).device)
        self._slots = [Slot(self._stream) for _ in range(SLOTS)]
        self._next = 0
        # pinned memory must outlive the copies from it
        finalize(self, _wait_for_copies, self._stream, self._slots).atexit = False

    def begin(self) -> Upload:
        """The upload of another batch; at most `SLOTS` may be begun and not finished."""
        collect_dropped()
        self._stream.device.make_current()
        slot = self._slots[self._next]
        self._next = (self._next + 1) % SLOTS
        if slot.is_used:
            slot.copied.synchronize()
        return Upload(self._stream, slot)


def _wait_for_copies(stream: Stream, slots: Sequence[Slot]) -> None:
    """Wait for all copies from the pinned memory of slots, which is held until then."""
    stream.synchronize()
