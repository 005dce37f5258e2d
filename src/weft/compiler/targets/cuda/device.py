"""Cards, and what happens on them in order: contexts, streams, events and memory.

A `Device` is a card with its primary context, which other CUDA libraries of the process share.
Work is put on a `Stream` and runs later, in order; `Event`s measure it and join streams. Memory is
stream-ordered: it may be used on its stream as soon as it is allocated, and is free again for what
is put on the stream after it is dropped. Each stream keeps what is freed, by size.

A thread may capture a stream into a graph. What others put on it meanwhile would become a part of
the graph, and a wait for the stream would end the capture. So everything here that puts work on a
stream, allocations among it, holds `RUN_LOCK`, as a capture does; waiting is done for an event,
without the lock.
"""

from __future__ import annotations

import ctypes
import gc
import sys
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from ctypes import byref, c_float, c_int, c_size_t, c_uint64, c_void_p
from functools import cached_property
from heapq import heappop, heappush
from threading import RLock, local
from typing import Any
from weakref import finalize

import numpy as np

from weft.compiler.targets.cuda.driver import OLDEST_CARD, Driver, load_driver
from weft.core.errors import ArgumentError, DeviceError, OutOfMemoryError
from weft.core.forks import wait_at_fork
from weft.core.once import made_once
from weft.core.records import frozen

Array = np.ndarray[Any, Any]

_ATTRIBUTES = {
    "multiprocessors": 16,
    "major": 75,
    "minor": 76,
    "shared_bytes": 97,  # of one block, where a kernel asks for it
    "threads_of_multiprocessor": 39,
    "level_2_bytes": 38,
    "has_pools": 115,
}
"""The attributes of a device that are asked for, by the driver's numbers."""
_RELEASE_THRESHOLD, _RESERVED, _USED, _USED_HIGH = 4, 5, 7, 8
"""Attributes of a pool of memory."""
_NON_BLOCKING = 1
"""A stream that does not wait for the default stream of other libraries."""
_NO_TIMING = 2
_FILLS = {1: "cuMemsetD8Async", 2: "cuMemsetD16Async", 4: "cuMemsetD32Async"}
"""What writes so many bytes again and again."""
CURRENT = local()
"""The context that the calls of a thread go to, as `context`; none before the first."""
ALIGNMENT = 16
"""What kernels take the addresses of buffers to be multiples of: they read whole vectors."""
RUN_LOCK = RLock()
"""Cells are written, and work put on a stream, by one thread at a time."""
wait_at_fork(RUN_LOCK)
HELD: Array = np.zeros(1, np.int32)
"""How often `hold_quick_calls` is entered."""
EXPLAIN: list[Callable[[int, int, OutOfMemoryError], OutOfMemoryError]] = []
"""Makes the error for bytes that a card does not have: of the card's number, the bytes, and the
driver's error; see array.py."""


class Device:
    """One card. `device(0)` is the first; devices are made once."""

    def __init__(self, driver: Driver, ordinal: int) -> None:
        self.driver, self.ordinal = driver, ordinal
        self.handle = driver.number("cuDeviceGet", ordinal)
        self._check_age()
        self.context = driver.handle("cuDevicePrimaryCtxRetain", self.handle)
        self.make_current()
        self.pool = driver.handle("cuDeviceGetDefaultMemPool", self.handle)
        # what is freed stays with the process: giving it back costs a wait for the device
        everything = c_uint64(2**64 - 1)
        driver("cuMemPoolSetAttribute", self.pool, _RELEASE_THRESHOLD, byref(everything))

    def __repr__(self) -> str:
        return f"<cuda:{self.ordinal} {self.name}>"

    def _check_age(self) -> None:
        if self.capability < OLDEST_CARD:
            raise DeviceError(
                "cuda",
                "the card is too old",
                expected="compute capability {}.{} or later".format(*OLDEST_CARD),
                got={"card": f"{self.name}, {self.capability[0]}.{self.capability[1]}"},
                fix="use another card with CUDA_VISIBLE_DEVICES, or compute on the CPU",
            )

    def make_current(self) -> None:
        """Make the calls of this thread go to this card."""
        if not self.is_current():
            self.driver("cuCtxSetCurrent", self.context)
            CURRENT.context = self.context

    def is_current(self) -> bool:
        """Whether the calls of this thread go to this card."""
        return getattr(CURRENT, "context", None) == self.context

    def attribute(self, name: str) -> int:
        """A number that the driver knows of the card; see `_ATTRIBUTES`."""
        return self.driver.number("cuDeviceGetAttribute", _ATTRIBUTES[name], self.handle)

    @cached_property
    def name(self) -> str:
        """As in `NVIDIA H200`."""
        text = ctypes.create_string_buffer(256)
        self.driver("cuDeviceGetName", text, len(text), self.handle)
        return text.value.decode()

    @cached_property
    def capability(self) -> tuple[int, int]:
        """The compute capability: (9, 0) is Hopper's."""
        return self.attribute("major"), self.attribute("minor")

    @cached_property
    def multiprocessors(self) -> int:
        """How many multiprocessors the card has."""
        return self.attribute("multiprocessors")

    @cached_property
    def shared_bytes(self) -> int:
        """The most shared memory that a block may ask for."""
        return self.attribute("shared_bytes")

    def synchronize(self) -> None:
        """Wait for all that was put on the card; errors of kernels appear here."""
        self.make_current()
        with RUN_LOCK:  # a wait for all streams would end a capture
            self.driver("cuCtxSynchronize")

    def memory_stats(self) -> MemoryStats:
        """How many bytes there are, are free, and are the pool's."""
        self.make_current()
        free, total = c_size_t(), c_size_t()
        self.driver("cuMemGetInfo_v2", byref(free), byref(total))
        used, most, reserved = (self._pool_number(k) for k in (_USED, _USED_HIGH, _RESERVED))
        return MemoryStats(total.value, free.value, reserved, used, most)

    def _pool_number(self, attribute: int) -> int:
        place = c_uint64()
        self.driver("cuMemPoolGetAttribute", self.pool, attribute, byref(place))
        return place.value

    def release_memory(self) -> None:
        """Give memory that nothing uses back to the system, after a wait for the device."""
        self.synchronize()
        self.driver("cuMemPoolTrimTo", self.pool, 0)


@frozen
class MemoryStats:
    """Bytes: of the card, free on it, held by the pool, of these in use now and at most."""

    total: int
    free: int
    reserved: int
    used: int
    peak: int


@made_once
def device(ordinal: int = 0) -> Device:
    """The card of a number; a DeviceError where there is none."""
    driver = load_driver()
    count = driver.number("cuDeviceGetCount")
    if not 0 <= ordinal < count:
        raise ArgumentError(
            "cuda",
            f"there is no card number {ordinal}",
            expected=f"a number from 0 to {count - 1}",
            got={"ordinal": ordinal},
            fix="device='cuda:0', or look at CUDA_VISIBLE_DEVICES",
        )
    return Device(driver, ordinal)


def device_count() -> int:
    """How many cards there are; 0 without a driver."""
    try:
        return load_driver().number("cuDeviceGetCount")
    except DeviceError:
        return 0


class Stream:
    """Work in order, beside the work of other streams."""

    def __init__(self, device: Device) -> None:
        device.make_current()
        self.device, self.driver = device, device.driver
        self.handle = self.driver.handle("cuStreamCreate", _NON_BLOCKING)
        self.arena = Arena(self.driver, self.handle, device.ordinal)
        self._idle_events: list[Event] = []
        finalize(self, _end, self.driver, self.arena, self.handle).atexit = False

    def synchronize(self) -> None:
        """Wait until all that was put on the stream is done."""
        self.device.make_current()
        try:  # another thread may take the last one at any moment
            event = self._idle_events.pop()
        except IndexError:
            event = Event(self.device, timed=False)
        event.record(self)
        event.synchronize()
        self._idle_events.append(event)

    def wait(self, event: Event) -> None:
        """What is put on the stream from now on begins after an event."""
        with RUN_LOCK:
            self.driver("cuStreamWaitEvent", self.handle, event.handle, 0)

    def allocate(self, count: int) -> Memory:
        """Bytes that are this stream's from now on."""
        return Memory(self, count)

    def upload(self, memory: Memory, source: Array) -> None:
        """Copy an array to the device; from pinned memory the copy runs beside the CPU.

        Other memory was read when this returns: the driver copies through memory of its own.
        """
        data = np.ascontiguousarray(source)
        if data.nbytes:
            with RUN_LOCK:
                self.driver(
                    "cuMemcpyHtoDAsync_v2", memory.pointer, data.ctypes.data, data.nbytes,
                    self.handle,
                )  # fmt: skip

    def download(self, target: Array, memory: Memory | PartOfMemory) -> None:
        """Copy to a contiguous array; it is whole after `synchronize`."""
        if target.nbytes:
            with RUN_LOCK:
                self.driver(
                    "cuMemcpyDtoHAsync_v2", target.ctypes.data, memory.pointer, target.nbytes,
                    self.handle,
                )  # fmt: skip

    def copy(self, target: Memory, source: Memory | PartOfMemory, count: int) -> None:
        """Copy bytes on the device."""
        with RUN_LOCK:
            self.driver("cuMemcpyDtoDAsync_v2", target.pointer, source.pointer, count, self.handle)

    def fill(self, memory: Memory, pattern: bytes, count: int) -> None:
        """Write one, two or four bytes again and again, up to a number of bytes."""
        name, word = _FILLS[len(pattern)], int.from_bytes(pattern, sys.byteorder)
        with RUN_LOCK:
            self.driver(name, memory.pointer, word, count // len(pattern), self.handle)


class Event:
    """A point in the work of a stream; with `timed`, the time between two can be read."""

    def __init__(self, device: Device, timed: bool = True) -> None:
        device.make_current()
        self.driver = device.driver
        self.handle = self.driver.handle("cuEventCreate", 0 if timed else _NO_TIMING)
        finalize(self, destroy, self.driver, "cuEventDestroy_v2", self.handle)

    def record(self, stream: Stream) -> None:
        """Stand for all that is on the stream now."""
        with RUN_LOCK:
            self.driver("cuEventRecord", self.handle, stream.handle)

    def synchronize(self) -> None:
        """Wait until that is done."""
        self.driver("cuEventSynchronize", self.handle)

    def milliseconds_since(self, start: Event) -> float:
        """The time between two events that are done."""
        place = c_float()
        self.driver("cuEventElapsedTime", byref(place), start.handle, self.handle)
        return place.value


class Memory:
    """Bytes on the device; dropped, they are free for later work of their stream."""

    __slots__ = ("_pool", "count", "pointer", "stream")

    def __init__(self, stream: Stream, count: int, pool: SizePool | None = None) -> None:
        """`pool` is that of the rounded size, where it is known."""
        self.stream, self.count = stream, count
        self._pool = stream.arena.pool(rounded_size(count)) if pool is None else pool
        self.pointer = self._pool.take()

    def __del__(self) -> None:
        if hasattr(self, "pointer"):  # else there was none left for it
            self._pool.give(self.pointer)


def take_memory(stream: Stream, count: int, pool: SizePool) -> Memory:
    """Memory from a pool of its stream: with less work than the class itself has."""
    memory = _new_memory(Memory)
    memory.stream, memory.count, memory._pool = stream, count, pool
    memory.pointer = pool.take()
    return memory


_new_memory = Memory.__new__


class PartOfMemory:
    """A stretch of other memory, which it keeps."""

    __slots__ = ("count", "pointer", "stream", "whole")

    def __init__(self, whole: Memory | PartOfMemory, start: int, count: int) -> None:
        self.whole, self.count = whole, count
        self.stream: Stream = whole.stream
        self.pointer: int = whole.pointer + start


class SizePool:
    """Free memory of one size: the addresses are a heap.

    Of several the one of the lowest address is taken: a program that is run again and again then
    finds its values in the same places, and may become a graph.
    """

    __slots__ = ("_arena", "free", "size")

    def __init__(self, arena: Arena, size: int) -> None:
        self._arena, self.size = arena, size
        self.free: list[int] = []

    def take(self) -> int:
        """The address of free memory, which is the driver's where there is none."""
        arena, size = self._arena, self.size
        arena.used += size
        if arena.used > arena.peak:
            arena.peak = arena.used
        return heappop(self.free) if self.free else arena.allocate(size)

    def give(
        self,
        address: int,
        push: Callable[[list[int], int], None] = heappush,  # modules may be gone at the end
    ) -> None:
        """Memory that was taken is free."""
        self._arena.used -= self.size
        push(self.free, address)


class Arena:
    """Memory of one stream that is free, by size: the driver's own pool costs 8 µs a time.

    What is dropped may be in use by work that is on the stream already, and is given to work that
    comes after it there. What no size fits is taken from the driver; when there is none left, all
    that is free goes back first.
    """

    def __init__(self, driver: Driver, stream: int, ordinal: int) -> None:
        self._driver, self._stream, self._ordinal = driver, stream, ordinal
        self._pools: dict[int, SizePool] = {}
        self.used = self.peak = 0

    def pool(self, size: int) -> SizePool:
        """The memory of one size, which `rounded_size` gives."""
        known = self._pools.get(size)
        return self._pools.setdefault(size, SizePool(self, size)) if known is None else known

    def take(self, size: int) -> int:
        """The address of so many bytes, a size that `rounded_size` gives."""
        return self.pool(size).take()

    def give(self, size: int, address: int) -> None:
        """Memory that was taken for so many bytes is free."""
        self.pool(size).give(address)

    def allocate(self, size: int) -> int:
        """Memory of the driver's, which is counted as used already."""
        with RUN_LOCK:  # in a capture, the address would be known to the graph alone
            return self._allocate_or_release(size)

    def _allocate_or_release(self, size: int) -> int:
        try:
            return self._allocate(size)
        except OutOfMemoryError as error:
            refused = error
        self.used -= size
        try:
            for free in (self.release, self._release_garbage):
                free()
                try:
                    address = self._allocate(size)
                except OutOfMemoryError as error:
                    refused = error
                else:
                    self.used += size
                    return address
            raise EXPLAIN[0](self._ordinal, size, refused) if EXPLAIN else refused
        finally:
            del refused  # which holds this call, and so all that its callers hold

    def _release_garbage(self) -> None:
        """Give back, too, what only objects hold that hold each other: a model that was let go of.

        Python looks for these by their number, and knows nothing of a card's memory.
        """
        gc.collect()
        self.release()

    def release(self) -> None:
        """Give what is free back to the driver, after the work that may use it."""
        with RUN_LOCK:
            for pool in [*self._pools.values()]:  # another thread may ask for a new size
                with suppress(IndexError):  # or take the last that is free
                    while True:
                        self._driver("cuMemFreeAsync", pool.free.pop(), self._stream)
            self._driver("cuStreamSynchronize", self._stream)

    def _allocate(self, size: int) -> int:
        place = c_uint64()
        self._driver("cuMemAllocAsync", byref(place), size, self._stream)
        return place.value


def rounded_size(count: int) -> int:
    """The size that memory for so many bytes has: at most an eighth more, or 512 bytes.

    >>> rounded_size(0), rounded_size(513), rounded_size(9_000_000)
    (512, 1024, 9437184)
    """
    step = max(512, 1 << max(0, count.bit_length() - 4))
    return max(1, -(-count // step)) * step


def _end(driver: Driver, arena: Arena, handle: int) -> None:
    """Give a stream's memory back, and then the stream."""
    with suppress(DeviceError):  # the context is lost, and all memory with it
        arena.release()
    destroy(driver, "cuStreamDestroy_v2", handle)


@contextmanager
def hold_quick_calls() -> Iterator[None]:
    """Inside, what runs without the lock does nothing, and comes back for the lock.

    Who holds it captures a stream, where other work would become part of a graph, or fills cells
    and reads them in several steps, between which another thread would write its own.
    """
    HELD[0] += 1
    try:
        yield
    finally:
        HELD[0] -= 1
        while not HELD[0] and _dropped:
            destroy(*_dropped.popleft())


_dropped: deque[tuple[Driver, str, int]] = deque()
"""Handles that nobody holds any more, since a capture began."""


def destroy(driver: Driver, name: str, handle: int) -> None:
    """What is done with a handle that nobody holds any more.

    Objects are dropped at any time. A thread that captures a stream must not unload code or free
    pinned memory, which may wait for the card: this would end the capture. A driver that refuses it
    has lost the context, of which the call that follows tells.
    """
    if HELD[0]:
        _dropped.append((driver, name, handle))
    else:
        driver.function(name)(handle)


class PinnedMemory:
    """Bytes of the host that the card copies from and to by itself."""

    def __init__(self, device: Device, count: int) -> None:
        device.make_current()
        self.count = count
        self.pointer = device.driver.handle("cuMemHostAlloc", max(count, 1), 0)
        finalize(self, destroy, device.driver, "cuMemFreeHost", self.pointer).atexit = False

    def array(self, dtype: Any, shape: tuple[int, ...]) -> Array:
        """The bytes as an array, which keeps them."""
        whole: Any = (ctypes.c_byte * self.count).from_address(self.pointer)
        whole._memory = self
        count = int(np.prod(shape, dtype=np.int64))
        found: Array = np.frombuffer(whole, np.dtype(dtype), count)
        return found.reshape(shape)


def handles(values: Iterator[int] | list[int]) -> Any:
    """An array of handles, as the driver takes them."""
    given = list(values)
    return (c_void_p * max(1, len(given)))(*given)


def integer_attribute(driver: Driver, function: int, attribute: int) -> int:
    """A number that the driver knows of a loaded function."""
    place = c_int()
    driver("cuFuncGetAttribute", byref(place), attribute, function)
    return place.value
