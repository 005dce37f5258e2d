"""A driver's library of Python functions: it keeps handles and says what it was asked."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from itertools import count
from typing import Any

from weft.compiler.targets.cuda.driver import SIGNATURES
from weft.compiler.targets.cuda.launcher import CALLED

NAMES = {
    2: b"CUDA_ERROR_OUT_OF_MEMORY",
    100: b"CUDA_ERROR_NO_DEVICE",
    218: b"CUDA_ERROR_INVALID_PTX",
    700: b"CUDA_ERROR_ILLEGAL_ADDRESS",
}
HANDLES = {
    "cuDevicePrimaryCtxRetain", "cuDeviceGetDefaultMemPool", "cuMemAllocAsync", "cuMemHostAlloc",
    "cuStreamCreate", "cuEventCreate", "cuModuleLoadData", "cuModuleGetFunction", "cuGraphCreate",
    "cuGraphAddKernelNode_v2", "cuGraphInstantiateWithFlags",
}  # fmt: skip
"""Functions that write a new handle to their first argument."""
CODE = b"machine code"
UNKNOWN = 999
"""The result of a call that no other one stands for."""


class FakeLibrary:
    """Answers as a driver would: `results` are the codes of calls that do not succeed."""

    def __init__(self, version: int = 13_000, cards: int = 2, major: int = 9) -> None:
        self.numbers = {"cuDriverGetVersion": version, "cuDeviceGetCount": cards, "cuDeviceGet": 0}
        self.attributes = {16: 132, 75: major, 76: 0, 97: 232_448}
        self.results: dict[str, int] = {}
        self.calls: list[tuple[str, tuple[Any, ...]]] = []
        self._handles = count(0x1000, 0x1000)
        self._code = ctypes.create_string_buffer(CODE)
        self.raised: list[BaseException] = []
        """What a function raised that native code called; who asks for the error's text gets it."""
        for name in SIGNATURES:
            function = self._function(name)
            if name in CALLED:
                function._as_parameter_ = self._for_native_code(name, function)  # type: ignore[attr-defined]
            setattr(self, name, function)

    def names(self) -> list[str]:
        """The calls so far."""
        return [name for name, _ in self.calls]

    def _function(self, name: str) -> Callable[..., int]:
        def function(*arguments: Any) -> int:
            self.calls.append((name, arguments))
            code = self.results.get(name, 0)
            if code == 0 or name.startswith("cuGetError"):
                self._answer(name, arguments)
            return code

        return function

    def _for_native_code(self, name: str, function: Callable[..., int]) -> Any:
        """The same function with an address: errors cannot pass through native code."""

        def called(*arguments: Any) -> int:
            try:
                return function(*arguments)
            except BaseException as error:
                self.raised.append(error)
                return UNKNOWN

        return ctypes.CFUNCTYPE(ctypes.c_int, *SIGNATURES[name])(called)

    def _answer(self, name: str, arguments: tuple[Any, ...]) -> None:
        if name == "cuGetErrorName" and self.raised:
            raise self.raised.pop()
        if name in self.numbers:
            arguments[0]._obj.value = self.numbers[name]
        elif name in HANDLES:
            arguments[0]._obj.value = next(self._handles)
        elif name == "cuDeviceGetAttribute":
            arguments[0]._obj.value = self.attributes[arguments[1]]
        elif name == "cuDeviceGetName":
            arguments[0].value = b"Fake Card"
        elif name == "cuGetErrorName":
            arguments[1]._obj.value = NAMES.get(arguments[0], b"CUDA_ERROR_UNKNOWN")
        elif name == "cuGetErrorString":
            arguments[1]._obj.value = b"what the driver says"
        elif name == "cuLinkCreate_v2":
            log = ctypes.cast(arguments[2][2], ctypes.POINTER(ctypes.c_char))
            for place, byte in enumerate(b"ptxas: line 7: bad\0"):
                log[place] = byte
            arguments[3]._obj.value = next(self._handles)
        elif name == "cuLinkComplete":
            arguments[1]._obj.value = ctypes.addressof(self._code)
            arguments[2]._obj.value = len(CODE)
        elif name == "cuStreamEndCapture":
            arguments[1]._obj.value = next(self._handles)
        elif name == "cuEventElapsedTime":
            arguments[0]._obj.value = 1.5
