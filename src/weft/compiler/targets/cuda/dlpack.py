"""Memory of cards handed to other libraries and taken from them, by DLPack and its forerunner.

Two libraries work on streams of their own. What is handed out is whole for what the consumer puts
on its stream afterwards, since that stream waits for an event of ours; what is taken is whole for
us, since the producer was told our stream. Memory stays until both sides let go of it, and until
the work that may use it is done. The last reference may be dropped anywhere, even while a graph is
captured, so what is dropped is put on a list, and `collect_dropped` looks after it: each exchange
and each wait for the card calls it.
"""

from __future__ import annotations

import ctypes
from collections import deque
from collections.abc import Callable
from math import prod
from threading import RLock
from typing import Any
from weakref import finalize

import numpy as np
from llvmlite import binding as llvm

from weft.compiler.targets.cuda.array import CudaArray, compute_stream
from weft.compiler.targets.cuda.device import ALIGNMENT, RUN_LOCK, Event, Stream
from weft.core.dtypes import BY_NUMPY, bfloat16
from weft.core.errors import ArgumentError
from weft.core.forks import wait_at_fork
from weft.core.once import made_once
from weft.ops.dlpack import CUDA_KIND, Memory, make_capsule, take_capsule

NO_WAIT, LEGACY = -1, 1
"""Values of `stream=`: nobody waits; the default stream, which the driver knows by this number."""
_INTERFACE = 3
"""The version of `__cuda_array_interface__`."""

_lock = RLock()
wait_at_fork(_lock)
_exported: deque[tuple[CudaArray, int]] = deque()
"""Arrays that other libraries let go of, and the streams whose work may still read them."""
_imported: deque[tuple[int, Callable[[], None]]] = deque()
"""The cards of foreign memory that no tensor holds, and what gives it back."""
_closing: deque[tuple[Event, Callable[[], None]]] = deque()
"""What gives memory back after an event."""


def collect_dropped(*, wait: bool = False) -> None:
    """Look after memory that one side let go of; with `wait` all foreign memory is given back."""
    with _lock:
        while _exported:
            array, reader = _exported.popleft()
            ours = array.memory.stream
            ours.device.make_current()
            if reader == LEGACY:
                _wait_for(ours, reader)
            else:  # a stream that may be gone, or that of another thread
                ours.device.synchronize()
        while _imported:
            ordinal, release = _imported.popleft()
            stream = compute_stream(ordinal)
            event = Event(stream.device, timed=False)
            event.record(stream)
            _closing.append((event, release))
        while _closing and (wait or len(_closing) > 1):  # the last event is likely not done yet
            event, release = _closing.popleft()
            event.synchronize()
            release()


def _wait_for(stream: Stream, other: int) -> None:
    """What comes next on our stream begins after all that is on another, given by its handle."""
    event = Event(stream.device, timed=False)
    with RUN_LOCK:
        stream.driver("cuEventRecord", event.handle, other)
        stream.wait(event)


# --- handing out ---------------------------------------------------------------------------------


def export_array(
    array: CudaArray, stream: Any, max_version: tuple[int, int] | None, copy: bool | None
) -> Any:
    """A capsule of an array, whole for what comes next on the consumer's stream."""
    collect_dropped()
    reader = _reader_stream(stream)
    ours = array.memory.stream
    ours.device.make_current()
    given = array.copy() if copy else mark_shared(array)
    if reader != NO_WAIT:
        event = Event(ours.device, timed=False)
        event.record(ours)
        ours.driver("cuStreamWaitEvent", reader, event.handle, 0)
    place = CUDA_KIND, ours.device.ordinal
    return make_capsule(
        Memory(given.pointer, place, BY_NUMPY[given.dtype], given.shape),
        lambda: _exported.append((given, reader)),
        is_versioned=max_version is not None and max_version[0] >= 1,
        is_read_only=not copy,
        destructor=_error_keeping_destructor,
    )


_DESTRUCTOR = """
define void @weft_destroy_capsule(ptr %capsule) {{
  %kind = alloca ptr
  %value = alloca ptr
  %trace = alloca ptr
  call void inttoptr (i64 {fetch} to ptr)(ptr %kind, ptr %value, ptr %trace)
  call void inttoptr (i64 {let_go} to ptr)(ptr %capsule)
  %k = load ptr, ptr %kind
  %v = load ptr, ptr %value
  %t = load ptr, ptr %trace
  call void inttoptr (i64 {restore} to ptr)(ptr %k, ptr %v, ptr %t)
  ret void
}}
"""


@made_once
def _error_keeping_destructor(let_go: int) -> int:
    """What destroys a capsule, by a function of Python that knows nothing of a raised error.

    A consumer that refuses the memory raises its error and drops the capsule then: Python must not
    run with an error that is raised already, and would lose it.
    """
    functions = {
        name: ctypes.cast(getattr(ctypes.pythonapi, f"PyErr_{name.title()}"), ctypes.c_void_p).value
        for name in ("fetch", "restore")
    }
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    builder = llvm.JITLibraryBuilder().add_ir(_DESTRUCTOR.format(let_go=let_go, **functions))
    compiler = llvm.create_lljit_compiler(use_jit_link=True)
    library = builder.export_symbol("weft_destroy_capsule").link(compiler, "weft_dlpack")
    for each in (library, compiler):  # capsules may be the last that is dropped in a process
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(each))
    address: int = library["weft_destroy_capsule"]
    return address


def _reader_stream(stream: Any) -> int:
    """The handle of a consumer's stream; without one it reads on the default stream."""
    if stream is None:
        return LEGACY
    if isinstance(stream, int) and not isinstance(stream, bool) and stream not in (0, -2):
        return stream
    raise ArgumentError(
        "__dlpack__",
        "this is no stream of a card",
        expected="1 or 2 for the default streams, a handle, or -1 for no waiting; not 0",
        got={"stream": stream},
        fix="x.__dlpack__(stream=1)",
    )


def mark_shared(array: CudaArray) -> CudaArray:
    """The array, whose memory no program writes its results to from now on."""
    if array.base is None:
        array.base = CudaArray(array.memory, array.dtype, array.shape)
    return array


def array_interface(array: CudaArray) -> dict[str, Any] | None:
    """What `__cuda_array_interface__` says of an array; None where it has no word for the dtype."""
    if array.dtype == bfloat16.numpy:
        return None
    collect_dropped()
    mark_shared(array)
    return {
        "shape": array.shape,
        "typestr": array.dtype.str,
        "data": (array.pointer if array.size else 0, False),
        "strides": None,
        "stream": array.memory.stream.handle,
        "version": _INTERFACE,
    }


# --- taking --------------------------------------------------------------------------------------


class ForeignMemory:
    """Memory of another library; dropped, it is given back after the work that reads it."""

    __slots__ = ("__weakref__", "count", "pointer", "stream")

    def __init__(
        self, stream: Stream, pointer: int, count: int, release: Callable[[], None]
    ) -> None:
        self.stream, self.pointer, self.count = stream, pointer, count
        finalize(self, _imported.append, (stream.device.ordinal, release)).atexit = False


def borrow_array(
    stream: Stream,
    pointer: int,
    dtype: np.dtype[Any],
    shape: tuple[int, ...],
    release: Callable[[], None],
) -> CudaArray:
    """An array on memory of others, given back by `release`; it is never written to.

    It is a copy where that begins between two vectors, as kernels read whole ones.
    """
    memory: Any = ForeignMemory(stream, pointer, prod(shape) * dtype.itemsize, release)
    array = CudaArray(memory, dtype, shape)
    return array.view(shape) if pointer % ALIGNMENT == 0 else array.copy()


def import_array(obj: Any, ordinal: int) -> CudaArray:
    """An array on the memory of an object that speaks DLPack; BufferError where that cannot be."""
    collect_dropped()
    stream = compute_stream(ordinal)
    stream.device.make_current()
    try:
        capsule = obj.__dlpack__(stream=stream.handle, max_version=(1, 0))
    except TypeError:  # of a library older than the versions
        capsule = obj.__dlpack__(stream=stream.handle)
    memory, release = take_capsule(capsule)
    if memory.device != (CUDA_KIND, ordinal):
        release()
        raise BufferError(f"it lies on the device {memory.device}, and not where it says")
    return borrow_array(stream, memory.pointer, memory.dtype.numpy, memory.shape, release)


def import_interface(obj: Any) -> CudaArray:
    """An array on the memory of an object with `__cuda_array_interface__`, which is kept."""
    collect_dropped()
    said = obj.__cuda_array_interface__
    shape, dtype = tuple(said["shape"]), np.dtype(said["typestr"])
    steps = [prod(shape[axis + 1 :]) * dtype.itemsize for axis in range(len(shape))]
    if said.get("mask") is not None or dtype not in BY_NUMPY:
        raise BufferError("no tensor can hold its elements")
    if said.get("strides") not in (None, tuple(steps)) and 0 not in shape:
        raise BufferError("its elements do not lie one after the other")
    stream = compute_stream(_ordinal_of(obj))
    stream.device.make_current()
    if said.get("stream") is not None:
        _wait_for(stream, int(said["stream"]))
    held = [obj]
    return borrow_array(stream, int(said["data"][0]), dtype, shape, held.clear)


def _ordinal_of(obj: Any) -> int:
    """The number of the card that an object is on, where it says so; else the first."""
    device = getattr(obj, "device", None)
    for name in ("id", "index"):
        number = getattr(device, name, None)
        if isinstance(number, int):
            return number
    return 0
