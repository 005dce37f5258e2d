"""Arrays in a card's memory: what a tensor holds that was moved to a card, or computed there.

Elements lie one after the other. An array is there as soon as it exists, for work that comes after
it on the card's stream; the host waits for it only when it reads elements (`to_host`). Two arrays
may share memory: the second then holds the first as its `base`. So a stretch of an array's elements
that begins where kernels read vectors is an array without a launch (`part`). A matrix with its axes
exchanged is a copy that is made when its memory is asked for (`exchange_axes`): products read its
source.
"""

from __future__ import annotations

import gc
import math
from collections.abc import Callable
from functools import cache, lru_cache
from threading import Lock
from typing import Any
from weakref import WeakValueDictionary

import numpy as np

from weft.compiler.targets.cuda.device import (
    ALIGNMENT,
    EXPLAIN,
    RUN_LOCK,
    Memory,
    PartOfMemory,
    Stream,
    device,
)
from weft.compiler.targets.cuda.faults import raise_faults
from weft.core.devices import Device
from weft.core.dtypes import BY_NUMPY
from weft.core.errors import OutOfMemoryError
from weft.core.forks import wait_at_fork
from weft.core.once import made_once
from weft.core.records import frozen
from weft.core.types import TensorType

HostArray = np.ndarray[Any, Any]
_OWNED, _SHARED = 0x0505, 0x0101
"""What NumPy's flags say of an array that owns its memory and may be written to, and of another."""


@frozen
class Flags:
    """The questions about an array's layout that are asked of NumPy's arrays, too."""

    num: int
    c_contiguous: bool = True
    forc: bool = True


_FLAGS = {True: Flags(_OWNED), False: Flags(_SHARED)}


class ArrayKind:
    """What arrays have in common: card, dtype and shape. Equal kinds are one object."""

    __slots__ = (
        "__weakref__", "_layout", "_parts", "device", "dtype", "nbytes", "ordinal", "shape", "size",
    )  # fmt: skip

    def __init__(self, ordinal: int, dtype: np.dtype[Any], shape: tuple[int, ...]) -> None:
        self.ordinal, self.device, self.dtype, self.shape = ordinal, place_of(ordinal), dtype, shape
        self.size = math.prod(shape)
        self.nbytes = self.size * dtype.itemsize
        self._layout: HostArray | None = None
        self._parts: dict[tuple[int, ...], ArrayKind] = {}
        """Kinds of parts, by shape, that would be made anew for each part that is dropped."""

    @property
    def layout(self) -> HostArray:
        """An array of the host of the same shape on no memory: what views of it are, NumPy says.

        Its elements must never be read.
        """
        if self._layout is None:
            self._layout = np.asarray(_Layout(self.dtype.itemsize, self.shape))
        return self._layout

    def stretch(self, shown: HostArray) -> tuple[int, ArrayKind] | None:
        """At which byte the elements begin that a view of the layout shows, and their kind.

        None where they do not lie one after the other.
        """
        if not shown.flags.c_contiguous:
            return None
        first: int = shown.__array_interface__["data"][0]
        return first - _NOWHERE if shown.size else 0, self.with_shape(shown.shape)

    def with_shape(self, shape: tuple[int, ...]) -> ArrayKind:
        """The kind of arrays of another shape."""
        kind = self._parts.get(shape)
        if kind is None:
            if len(self._parts) >= PART_KINDS:
                self._parts.clear()
            kind = self._parts[shape] = array_kind(self.ordinal, self.dtype, shape)
        return kind


class _Layout:
    """What NumPy makes an array of that begins at an address that is never read."""

    def __init__(self, itemsize: int, shape: tuple[int, ...]) -> None:
        self.__array_interface__ = {
            "data": (_NOWHERE, True), "shape": shape, "typestr": f"|V{itemsize}", "version": 3,
        }  # fmt: skip


_NOWHERE = 1 << 46
PART_KINDS = 32
"""How many kinds of parts a kind keeps."""


_kinds: WeakValueDictionary[tuple[int, np.dtype[Any], tuple[int, ...]], ArrayKind]
_kinds = WeakValueDictionary()
_lock = Lock()
wait_at_fork(_lock)


def array_kind(ordinal: int, dtype: np.dtype[Any], shape: tuple[int, ...]) -> ArrayKind:
    """The kind of arrays of a card, which is compared by identity."""
    key = ordinal, dtype, shape
    known = _kinds.get(key)
    if known is None:
        with _lock:
            known = _kinds.setdefault(key, ArrayKind(ordinal, dtype, shape))
    return known


class CudaArray:
    """An array in the memory of a card."""

    __slots__ = ("__weakref__", "base", "kind", "memory", "pointer", "turned_from")

    def __init__(
        self,
        memory: Memory | PartOfMemory,
        dtype: np.dtype[Any],
        shape: tuple[int, ...],
        base: CudaArray | None = None,
    ) -> None:
        self.memory, self.base, self.pointer = memory, base, memory.pointer
        self.turned_from: Turned | None = None
        self.kind = array_kind(memory.stream.device.ordinal, dtype, shape)

    @property
    def device(self) -> Device:
        """The card."""
        return self.kind.device

    @property
    def dtype(self) -> np.dtype[Any]:
        """What NumPy calls the dtype of the elements."""
        return self.kind.dtype

    @property
    def shape(self) -> tuple[int, ...]:
        """The size of each axis."""
        return self.kind.shape

    @property
    def size(self) -> int:
        """The number of elements."""
        return self.kind.size

    @property
    def nbytes(self) -> int:
        """The bytes of all elements."""
        return self.kind.nbytes

    @property
    def ndim(self) -> int:
        """The number of axes."""
        return len(self.kind.shape)

    @property
    def flags(self) -> Flags:
        """How it lies in memory; only one that shares no memory may be written to."""
        return _FLAGS[self.base is None]

    def view(self, shape: tuple[int, ...], dtype: np.dtype[Any] | None = None) -> CudaArray:
        """The same elements in another shape."""
        return CudaArray(self.memory, dtype or self.dtype, shape, self.base or self)

    def part(self, shown: HostArray) -> CudaArray | None:
        """The elements that a view of the kind's `layout` shows; None where there are gaps."""
        stretch = self.kind.stretch(shown)
        return None if stretch is None else self.part_at(*stretch)

    def part_at(self, start: int, kind: ArrayKind) -> CudaArray:
        """The elements from a byte on as an array; a copy where they begin between two vectors."""
        memory, base = self.memory, self.base or self
        if start == 0:
            return new_array(memory, kind, base)
        part = PartOfMemory(memory, start, kind.nbytes)
        if part.pointer % ALIGNMENT == 0:
            return new_array(part, kind, base)
        stream = memory.stream
        stream.device.make_current()
        room = stream.allocate(kind.nbytes)
        stream.copy(room, part, kind.nbytes)
        return new_array(room, kind)

    def exchange_axes(
        self, order: tuple[int, ...], copy: Callable[[CudaArray], CudaArray]
    ) -> CudaArray:
        """The array with its axes in another order, which `copy` makes when memory is asked for.

        It holds this one as its base, and is never written to: products read this one instead.
        """
        array = _new(CudaArray)
        array.kind = self.kind.with_shape(tuple([self.kind.shape[axis] for axis in order]))
        array.base, array.turned_from = self.base or self, (self, order, copy)
        return array

    def __getattr__(self, name: str) -> Any:
        """The memory of an array that was not copied yet; others have theirs from the start."""
        if name not in ("memory", "pointer"):
            raise AttributeError(name)
        turned = self.turned_from
        assert turned is not None
        source, _, copy = turned
        made = copy(source)
        with RUN_LOCK:  # another thread may have made it, and uses it already
            if not self.has_memory():
                self.pointer, self.memory = made.pointer, made.memory
        return object.__getattribute__(self, name)

    def has_memory(self) -> bool:
        """Whether its elements are in memory of the card by now."""
        try:
            object.__getattribute__(self, "memory")
        except AttributeError:
            return False
        return True

    def to_host(self) -> HostArray:
        """A copy in the host's memory, once all work before it is done."""
        stream = self.memory.stream
        stream.device.make_current()
        host: HostArray = np.empty(self.shape, self.dtype)
        stream.download(host, self.memory)
        stream.synchronize()
        raise_faults(stream.device.ordinal)
        return host

    def copy(self) -> CudaArray:
        """The same elements in memory of their own."""
        stream = self.memory.stream
        stream.device.make_current()
        memory = stream.allocate(self.nbytes)
        stream.copy(memory, self.memory, self.nbytes)
        return CudaArray(memory, self.dtype, self.shape)

    def __repr__(self) -> str:
        return f"<array of {self.dtype}{list(self.shape)} on {self.device}>"


Turned = tuple[CudaArray, tuple[int, ...], Callable[[CudaArray], CudaArray]]
"""An array, another order of its axes, and what makes a copy in that order."""
LARGEST = 5
"""How many arrays are named where memory runs out."""


def out_of_memory(ordinal: int, size: int, error: OutOfMemoryError) -> OutOfMemoryError:
    """The error where a card has no room, with the largest arrays that it holds.

    Arrays are looked for among all objects, so that nothing is counted before memory runs out.
    """
    held: dict[int, CudaArray] = {}
    for each in gc.get_objects():
        is_array = type(each) is CudaArray and each.has_memory() and each.nbytes
        if is_array and each.kind.ordinal == ordinal:
            known = held.get(each.pointer)
            if known is None or each.nbytes > known.nbytes:
                held[each.pointer] = each
    arrays = sorted(held.values(), key=lambda each: -each.nbytes)
    texts = [f"{TensorType(BY_NUMPY[x.dtype], x.shape)} ({mebibytes(x.nbytes)})" for x in arrays]
    shown = ", ".join(texts[:LARGEST]) or "none"
    return OutOfMemoryError(
        "cuda",
        f"{place_of(ordinal)} has no room for {mebibytes(size)}",
        expected="as much free memory",
        got={
            "largest tensors": shown,
            "tensors": f"{len(arrays)}, {mebibytes(sum(x.nbytes for x in arrays))} in all",
        },
        note=error.problem,
        fix=error.fix,
    )


def new_array(
    memory: Memory | PartOfMemory, kind: ArrayKind, base: CudaArray | None = None
) -> CudaArray:
    """An array of a known kind: with less work than the class itself has."""
    array = _new(CudaArray)
    array.memory, array.pointer, array.kind, array.base = memory, memory.pointer, kind, base
    array.turned_from = None
    return array


_new = CudaArray.__new__


def mebibytes(count: int) -> str:
    """A number of bytes in words.

    >>> mebibytes(3 << 19)
    '1.5 MiB'
    """
    return f"{count / 2**20:.1f} MiB"


EXPLAIN.append(out_of_memory)


@cache
def place_of(ordinal: int) -> Device:
    """What users call a card."""
    return Device(f"cuda:{ordinal}")


@made_once
def compute_stream(ordinal: int) -> Stream:
    """The stream on which all work of a card is put, in order."""
    return Stream(device(ordinal))


def filler(ordinal: int) -> Callable[[np.dtype[Any], tuple[int, ...], Any], CudaArray | None]:
    """What makes arrays of one value on a card; None for elements that its fills do not know.

    These write up to four bytes again and again.
    """

    def fill(dtype: np.dtype[Any], shape: tuple[int, ...], value: Any) -> CudaArray | None:
        pattern = _pattern(dtype, value, "" if value else repr(value))
        if pattern is None:
            return None
        stream, kind = compute_stream(ordinal), array_kind(ordinal, dtype, shape)
        stream.device.make_current()
        memory = stream.allocate(kind.nbytes)
        if kind.nbytes:
            stream.fill(memory, pattern, kind.nbytes)
        return new_array(memory, kind)

    return fill


@lru_cache(maxsize=256, typed=True)
def _pattern(dtype: np.dtype[Any], value: Any, zero: str) -> bytes | None:
    """The bytes that repeat in elements of one value, at most four; `zero` tells zeros apart."""
    with np.errstate(all="ignore"):
        element = np.full((), value, dtype).tobytes()
    lengths = [n for n in (1, 2, 4) if element == element[:n] * (len(element) // n)]
    return element[: lengths[0]] if lengths else None


def uploader(ordinal: int) -> Callable[[HostArray], CudaArray]:
    """What copies arrays of the host to a card."""

    def upload(array: HostArray) -> CudaArray:
        return upload_array(compute_stream(ordinal), array)

    return upload


def upload_array(stream: Stream, array: HostArray) -> CudaArray:
    """A copy of an array of the host on a card; the array may be changed when this returns."""
    stream.device.make_current()
    memory = stream.allocate(array.nbytes)
    stream.upload(memory, array)
    if array.nbytes and stream.driver.is_pinned(array.ctypes.data):
        stream.synchronize()
    return CudaArray(memory, array.dtype, array.shape)
