"""Code on a card: PTX made machine code by the driver, loaded, and launched.

Machine code is kept on disk, and loaded from there without compiling; the driver's log stands in
the error where it refuses the text.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from ctypes import addressof, byref, c_int, c_size_t, c_void_p, cast
from typing import Any
from weakref import finalize

from weft.compiler.targets.cuda.device import Device, Stream, destroy, integer_attribute
from weft.core.errors import DeviceError
from weft.core.once import made_once
from weft.runtime.cache import DiskCache, entry_key

Dimensions = tuple[int, int, int]

_INFO_LOG, _INFO_SIZE, _ERROR_LOG, _ERROR_SIZE, _FROM_CONTEXT = 3, 4, 5, 6, 8
"""Options of the driver's compiler."""
_PTX = 1
_LOG_BYTES = 16 * 1024
_SHARED_BYTES, _LOCAL_BYTES, _REGISTERS, _DYNAMIC_SHARED = 1, 3, 4, 8
"""Attributes of a function."""
_FREE_SHARED = 48 * 1024
"""Shared memory that a kernel gets without asking."""


def assemble(device: Device, ptx: str) -> bytes:
    """The machine code of a PTX text for a card."""
    device.make_current()
    driver = device.driver
    logs = [ctypes.create_string_buffer(_LOG_BYTES) for _ in range(2)]
    kinds = (c_int * 5)(_INFO_LOG, _INFO_SIZE, _ERROR_LOG, _ERROR_SIZE, _FROM_CONTEXT)
    given = (c_void_p * 5)(addressof(logs[0]), _LOG_BYTES, addressof(logs[1]), _LOG_BYTES, 0)
    state = c_void_p()
    driver("cuLinkCreate_v2", 5, kinds, given, byref(state))
    try:
        text = ptx.encode() + b"\0"
        try:
            driver("cuLinkAddData_v2", state, _PTX, text, len(text), b"weft", 0, None, None)
            code, size = c_void_p(), c_size_t()
            driver("cuLinkComplete", state, byref(code), byref(size))
        except DeviceError as error:
            raise _compile_error(error, logs[1].value.decode(errors="replace"), ptx) from None
        return ctypes.string_at(code.value or 0, size.value)
    finally:
        driver("cuLinkDestroy", state)


def _compile_error(error: DeviceError, log: str, ptx: str) -> DeviceError:
    """The error with the compiler's log, which names lines of the text."""
    first = ptx.lstrip()[:120].splitlines()
    return DeviceError(
        error.op,
        f"the driver does not compile this PTX\n{log.strip()}",
        expected="PTX for this card and driver",
        got={"result": error.got, "text": " ".join(first)},
        fix="this is a mistake of Weft's: please report it with the log above",
    )


def machine_code(device: Device, ptx: str) -> bytes:
    """The machine code of a PTX text, from disk where it was compiled before.

    It depends on the text, the kind of card and the driver that compiles it.
    """
    capability = "{}.{}".format(*device.capability)
    key = entry_key(ptx.encode(), "cuda", capability, str(device.driver.version))
    found = disk().get(key)
    if found is None:
        found = assemble(device, ptx)
        disk().put(key, found)
    return found


@made_once
def disk() -> DiskCache:
    """Where machine code is kept."""
    return DiskCache()


class Module:
    """Loaded machine code; it stays as long as a function of it is held."""

    def __init__(self, device: Device, code: bytes) -> None:
        device.make_current()
        self.device, self.driver, self.code = device, device.driver, code
        self.handle = self.driver.handle("cuModuleLoadData", code)
        finalize(self, destroy, self.driver, "cuModuleUnload", self.handle).atexit = False

    def function(self, name: str, shared: int = 0) -> Function:
        """A kernel by name, which may ask for so many bytes of shared memory."""
        return Function(self, name, shared)


def load_written_ptx(device: Device, ptx: str) -> Module:
    """Compile and load a PTX text as a whole program; the driver keeps the code in its own cache.

    The driver's linker compiles a text as a part of a program: it then leaves `setmaxnreg` out, by
    which warpgroups share registers unequally, and attention's gradient took 374 µs for 226.
    """
    return Module(device, ptx.encode() + b"\0")


class Function:
    """A kernel that can be launched."""

    def __init__(self, module: Module, name: str, shared: int = 0) -> None:
        self.module, self.driver, self.name = module, module.driver, name
        self.handle = self.driver.handle("cuModuleGetFunction", module.handle, name.encode())
        self.shared = shared
        if shared > _FREE_SHARED:
            self.driver("cuFuncSetAttribute", self.handle, _DYNAMIC_SHARED, shared)

    def resources(self) -> dict[str, int]:
        """Registers of a thread, and bytes of local and of static shared memory."""
        kinds = {"registers": _REGISTERS, "local": _LOCAL_BYTES, "shared": _SHARED_BYTES}
        return {k: integer_attribute(self.driver, self.handle, v) for k, v in kinds.items()}


class Launch:
    """One launch with its operands, made once and run often; operands can be set anew."""

    def __init__(
        self, function: Function, grid: Dimensions, block: Dimensions, operands: Sequence[Any]
    ) -> None:
        self.function, self.grid, self.block = function, grid, block
        self.operands = list(operands)
        """ctypes values, such as c_uint64 for pointers and c_int64 for sizes."""
        self.table = (c_void_p * max(1, len(self.operands)))(*map(addressof, self.operands))
        self._call = function.driver
        self._given = (function.handle, *grid, *block, function.shared)

    def set(self, position: int, value: int) -> None:
        """Give an operand another value, for the launches from now on."""
        self.operands[position].value = value

    def __call__(self, stream: Stream) -> None:
        """Put the launch on a stream."""
        self._call("cuLaunchKernel", *self._given, stream.handle, self.table, None)

    def parameters(self) -> KernelNodeParameters:
        """The launch as a node of a graph."""
        given = self.function.handle, *self.grid, *self.block, self.function.shared
        return KernelNodeParameters(*given, cast(self.table, c_void_p))


class KernelNodeParameters(ctypes.Structure):
    """The driver's CUDA_KERNEL_NODE_PARAMS_v2."""

    _fields_ = (
        ("function", c_void_p),
        *((name, ctypes.c_uint) for name in ("gx", "gy", "gz", "bx", "by", "bz", "shared")),
        ("operands", c_void_p),
        ("extra", c_void_p),
        ("kernel", c_void_p),
        ("context", c_void_p),
    )
