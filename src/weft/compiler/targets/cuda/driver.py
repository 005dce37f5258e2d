"""The NVIDIA driver as one table of functions, and one way to call them.

The driver (`libcuda.so.1`) comes with the card; nothing else of CUDA is needed. Each function that
is used stands in `SIGNATURES`, and every call goes through `Driver.__call__`, which turns a result
that is not success into an error that names the call, the result and what to do. A machine without
a driver or a card imports all of this and computes on its CPU.

>>> isinstance(is_available(), bool)
True
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from copy import copy
from ctypes import (
    POINTER,
    byref,
    c_char_p,
    c_float,
    c_int,
    c_size_t,
    c_ubyte,
    c_uint,
    c_uint64,
    c_ushort,
    c_void_p,
)
from typing import Any

from weft.core.errors import DeviceError, OutOfMemoryError, WeftError
from weft.core.locations import user_location
from weft.core.once import made_once

LIBRARIES = ("libcuda.so.1", "libcuda.so", "nvcuda.dll")
"""The names of the driver's library, the first that is there is taken."""
OLDEST_DRIVER = 12_000
"""The first driver that reads the PTX that is written here: CUDA 12.0, release 525."""
OLDEST_CARD = (8, 0)
"""The first compute capability that code is made for: Ampere."""

_OUT = c_void_p
"""A place that the driver writes a handle or a number to."""
_DIMENSIONS = (c_uint,) * 6
_MEMORY_TYPE = 2
"""The attribute of an address: whose memory it is; 0 or a refusal for what is not the driver's."""

SIGNATURES: dict[str, tuple[Any, ...]] = {
    # the driver and its devices
    "cuInit": (c_uint,),
    "cuDriverGetVersion": (_OUT,),
    "cuGetErrorName": (c_int, POINTER(c_char_p)),
    "cuGetErrorString": (c_int, POINTER(c_char_p)),
    "cuDeviceGetCount": (_OUT,),
    "cuDeviceGet": (_OUT, c_int),
    "cuDeviceGetName": (c_char_p, c_int, c_int),
    "cuDeviceGetAttribute": (_OUT, c_int, c_int),
    "cuDeviceTotalMem_v2": (_OUT, c_int),
    "cuDevicePrimaryCtxRetain": (_OUT, c_int),
    "cuDevicePrimaryCtxRelease_v2": (c_int,),
    "cuCtxSetCurrent": (c_void_p,),
    "cuCtxSynchronize": (),
    # memory
    "cuMemGetInfo_v2": (_OUT, _OUT),
    "cuDeviceGetDefaultMemPool": (_OUT, c_int),
    "cuMemPoolSetAttribute": (c_void_p, c_int, c_void_p),
    "cuMemPoolGetAttribute": (c_void_p, c_int, c_void_p),
    "cuMemPoolTrimTo": (c_void_p, c_size_t),
    "cuMemAllocAsync": (_OUT, c_size_t, c_void_p),
    "cuMemFreeAsync": (c_uint64, c_void_p),
    "cuPointerGetAttribute": (_OUT, c_int, c_uint64),
    "cuMemHostAlloc": (_OUT, c_size_t, c_uint),
    "cuMemFreeHost": (c_void_p,),
    "cuMemcpyHtoDAsync_v2": (c_uint64, c_void_p, c_size_t, c_void_p),
    "cuMemcpyDtoHAsync_v2": (c_void_p, c_uint64, c_size_t, c_void_p),
    "cuMemcpyDtoDAsync_v2": (c_uint64, c_uint64, c_size_t, c_void_p),
    "cuMemsetD8Async": (c_uint64, c_ubyte, c_size_t, c_void_p),
    "cuMemsetD16Async": (c_uint64, c_ushort, c_size_t, c_void_p),
    "cuMemsetD32Async": (c_uint64, c_uint, c_size_t, c_void_p),
    # streams and events
    "cuStreamCreate": (_OUT, c_uint),
    "cuStreamDestroy_v2": (c_void_p,),
    "cuStreamSynchronize": (c_void_p,),
    "cuStreamWaitEvent": (c_void_p, c_void_p, c_uint),
    "cuStreamBeginCapture_v2": (c_void_p, c_int),
    "cuStreamEndCapture": (c_void_p, _OUT),
    "cuEventCreate": (_OUT, c_uint),
    "cuEventDestroy_v2": (c_void_p,),
    "cuEventRecord": (c_void_p, c_void_p),
    "cuEventSynchronize": (c_void_p,),
    "cuEventElapsedTime": (POINTER(c_float), c_void_p, c_void_p),
    # code
    "cuLinkCreate_v2": (c_uint, c_void_p, c_void_p, _OUT),
    "cuLinkAddData_v2": (
        c_void_p, c_int, c_void_p, c_size_t, c_char_p, c_uint, c_void_p, c_void_p,
    ),
    "cuLinkComplete": (c_void_p, _OUT, _OUT),
    "cuLinkDestroy": (c_void_p,),
    "cuModuleLoadData": (_OUT, c_void_p),
    "cuModuleUnload": (c_void_p,),
    "cuModuleGetFunction": (_OUT, c_void_p, c_char_p),
    "cuFuncGetAttribute": (_OUT, c_int, c_void_p),
    "cuFuncSetAttribute": (c_void_p, c_int, c_int),
    "cuLaunchKernel": (c_void_p, *_DIMENSIONS, c_uint, c_void_p, c_void_p, c_void_p),
    "cuTensorMapEncodeTiled": (
        c_void_p, c_int, c_uint, c_uint64, c_void_p, c_void_p, c_void_p, c_void_p,
        c_int, c_int, c_int, c_int,
    ),
    "cuTensorMapEncodeIm2col": (
        c_void_p, c_int, c_uint, c_uint64, c_void_p, c_void_p, c_void_p, c_void_p, c_uint, c_uint,
        c_void_p, c_int, c_int, c_int, c_int,
    ),
    # graphs
    "cuGraphCreate": (_OUT, c_uint),
    "cuGraphDestroy": (c_void_p,),
    "cuGraphGetNodes": (c_void_p, c_void_p, _OUT),
    "cuGraphAddKernelNode_v2": (_OUT, c_void_p, c_void_p, c_size_t, c_void_p),
    "cuGraphInstantiateWithFlags": (_OUT, c_void_p, c_uint64),
    "cuGraphExecKernelNodeSetParams_v2": (c_void_p, c_void_p, c_void_p),
    "cuGraphExecDestroy": (c_void_p,),
    "cuGraphLaunch": (c_void_p, c_void_p),
}  # fmt: skip
"""Every function of the driver that is called: the types of its arguments; each returns a code."""

NEWER = frozenset({"cuTensorMapEncodeTiled", "cuTensorMapEncodeIm2col"})
"""Functions that only newer cards need: a driver without them is refused when one is called."""

OUT_OF_MEMORY, NO_DEVICE = 2, 100
_FAULTS = frozenset({700, 702, 708, 709, 710, 714, 715, 716, 717, 718, 719, 720})
"""Results after which the context is lost: addresses outside memory, traps, launches cut short."""
LAST_PROGRAM: list[Callable[[], str]] = [lambda: "none"]
"""What says which program was put on a card last: the first suspect where a kernel faults."""
_FIXES = {
    1: "this is a mistake of Weft's: please report the call with its operands",
    OUT_OF_MEMORY: "free tensors, use a smaller batch, or wf.jit(memory=...) with a budget",
    3: "cards cannot be used in a child after fork: start it with multiprocessing's 'spawn'",
    NO_DEVICE: "compute on the CPU, or look at `nvidia-smi` and CUDA_VISIBLE_DEVICES",
    218: "this is a mistake of Weft's: please report it with the log above",
    701: "this is a mistake of Weft's: a launch wants more threads or memory than a block has",
    802: "wait until the system has brought its cards up: `nvidia-smi` shows them",
    803: "the driver's library and kernel module differ: restart the machine",
    804: "the driver is too old for this card: install a newer one",
}
"""What to do about results by code; others say what the driver says."""


class Driver:
    """The functions of a loaded library. `driver("cuInit", 0)` calls one, and raises its error."""

    def __init__(self, library: Any) -> None:
        self._functions: dict[str, Any] = {}
        self._addresses: dict[tuple[str, ...], Any] = {}
        for name, types in SIGNATURES.items():
            function = getattr(library, name, None)
            if function is None and name not in NEWER:
                raise _old_driver(f"it has no {name}")
            if function is not None:
                function.argtypes, function.restype = types, c_int
                self._functions[name] = function

    def __call__(self, name: str, *arguments: Any, log: str = "") -> None:
        """Call a function; an error where it does not succeed, with `log` in it."""
        code = self.function(name)(*arguments)
        if code != 0:
            raise self.error(name, code, log)

    def function(self, name: str) -> Any:
        """A function of the library, which returns a code: for calls that are made often."""
        function = self._functions.get(name)
        if function is None:
            raise _old_driver(f"it has no {name}")
        return function

    def addresses(self, names: tuple[str, ...]) -> int:
        """Where the addresses of some functions stand, for native code; 0 for one not there."""
        table = self._addresses.get(names)
        if table is None:
            known = [self._functions.get(name) for name in names]
            given = [0 if each is None else ctypes.cast(each, c_void_p).value for each in known]
            table = self._addresses[names] = (c_void_p * len(names))(*given)
        return ctypes.addressof(table)

    def handle(self, name: str, *arguments: Any) -> int:
        """Call a function whose first argument is a place for a handle; the handle."""
        place = c_void_p()
        self(name, byref(place), *arguments)
        return place.value or 0

    def number(self, name: str, *arguments: Any) -> int:
        """Call a function whose first argument is a place for an int; the number."""
        place = c_int()
        self(name, byref(place), *arguments)
        return place.value

    def is_pinned(self, address: int) -> bool:
        """Whether memory of the host is known to the driver, which then copies it by itself."""
        kind = c_uint()
        code = self.function("cuPointerGetAttribute")(byref(kind), _MEMORY_TYPE, address)
        return code == 0 and kind.value != 0

    def error(self, name: str, code: int, log: str = "") -> WeftError:
        """The error of a result that is not success."""
        named, said = self._text("cuGetErrorName", code), self._text("cuGetErrorString", code)
        kind: type[WeftError] = OutOfMemoryError if code == OUT_OF_MEMORY else DeviceError
        fix = _FIXES.get(code, f"the driver says: {said}" if said else "restart the process")
        got = {"result": f"{named or 'unknown'} ({code})"}
        if code in _FAULTS:
            got["last program"] = LAST_PROGRAM[0]()
            fix = (
                "a kernel before this call failed, and the card's context is lost: "
                "restart the process; WEFT_CHECK=memory finds the kernel on the CPU"
            )
        return kind(
            name,
            f"the NVIDIA driver refused a call: {said or 'unknown'}" + (f"\n{log}" if log else ""),
            expected="CUDA_SUCCESS",
            got=got,
            fix=fix,
        )

    def _text(self, name: str, code: int) -> str:
        place = c_char_p()
        found = self._functions[name](code, byref(place)) == 0
        return (place.value or b"").decode(errors="replace") if found else ""

    @property
    def version(self) -> int:
        """The CUDA version that the driver knows: 12040 is 12.4."""
        return self.number("cuDriverGetVersion")


def open_driver(library: Any) -> Driver:
    """A library's functions, after the checks that it is new enough and has a card."""
    driver = Driver(library)
    if driver.version < OLDEST_DRIVER:
        raise _old_driver(f"it knows CUDA {_version_text(driver.version)}")
    driver("cuInit", 0)
    if driver.number("cuDeviceGetCount") == 0:
        raise driver.error("cuDeviceGetCount", NO_DEVICE)
    return driver


@made_once
def _opened_driver() -> Driver | WeftError:
    """The driver of this machine, or why there is none; looked for once."""
    for name in LIBRARIES:
        try:
            library = ctypes.CDLL(name)
        except OSError:
            continue
        try:
            return open_driver(library)
        except WeftError as error:
            return error
    return DeviceError(
        "cuda",
        "this machine has no NVIDIA driver",
        expected=f"one of the libraries {', '.join(LIBRARIES)}",
        got={"found": "none"},
        fix="install NVIDIA's driver (525 or later), or compute on the CPU: device='cpu'",
    )


def load_driver() -> Driver:
    """The driver of this machine; a DeviceError says why there is none."""
    opened = _opened_driver()
    if isinstance(opened, WeftError):
        # made for the first line that asked, it names the one that asks now
        raise copy(opened).located(user_location())
    return opened


def is_available() -> bool:
    """Whether there are a driver and a card that programs can run on."""
    return isinstance(_opened_driver(), Driver)


def _old_driver(found: str) -> DeviceError:
    return DeviceError(
        "cuda",
        "the NVIDIA driver is too old",
        expected=f"a driver for CUDA {_version_text(OLDEST_DRIVER)} or later: release 525",
        got={"driver": found},
        fix="install a newer driver from nvidia.com, or compute on the CPU: device='cpu'",
    )


def _version_text(version: int) -> str:
    return f"{version // 1000}.{version % 1000 // 10}"
