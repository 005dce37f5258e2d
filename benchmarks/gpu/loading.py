"""Loads kernels through the driver and times them beside PyTorch's, on the same card.

PyTorch holds the memory and is the rival; the driver is called by ctypes alone. Machine code that
ptxas made before is taken from the folder that WEFT_CUBINS names, under the digest of the text, so
that no time on the card goes into compiling.
"""

from __future__ import annotations

import ctypes
import hashlib
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from weft.compiler.targets.cuda.ptx_writer import Parameter, Pointer, TensorMap

__all__ = ["LoadedKernel", "cubin_name", "measure", "multiprocessors"]

_MAP_TYPES = {"uint8": 0, "float16": 6, "float32": 7, "bfloat16": 9, "tfloat32": 11}
_SHARED_MEMORY_ATTRIBUTE = 8


def _driver() -> Any:
    torch.zeros(1, device="cuda")  # the context that kernels are loaded into
    return ctypes.CDLL("libcuda.so.1")


def cubin_name(text: str) -> str:
    """The file name of a text's machine code."""
    return hashlib.sha256(text.encode()).hexdigest()[:24] + ".cubin"


def _machine_code(text: str) -> bytes:
    folder = os.environ.get("WEFT_CUBINS")
    path = Path(folder, cubin_name(text)) if folder else None
    return path.read_bytes() if path and path.exists() else text.encode()


def multiprocessors() -> int:
    """How many multiprocessors the card has."""
    return torch.cuda.get_device_properties(0).multi_processor_count


class LoadedKernel:
    """A kernel in the driver."""

    def __init__(self, name: str, text: str, threads: int, shared_bytes: int) -> None:
        self.driver = _driver()
        self.threads, self.shared_bytes = threads, shared_bytes
        module, self.function = ctypes.c_void_p(), ctypes.c_void_p()
        log = ctypes.create_string_buffer(8192)
        options = (ctypes.c_int * 2)(5, 6)
        values = (ctypes.c_void_p * 2)(ctypes.addressof(log), 8192)
        code = self.driver.cuModuleLoadDataEx(
            ctypes.byref(module), _machine_code(text), 2, options, values
        )
        if code:
            raise RuntimeError(f"the driver refused {name}: {code} {log.value.decode()}")
        function = ctypes.byref(self.function)
        self._check(self.driver.cuModuleGetFunction(function, module, name.encode()))
        self._check(
            self.driver.cuFuncSetAttribute(self.function, _SHARED_MEMORY_ATTRIBUTE, shared_bytes)
        )

    @staticmethod
    def _check(code: int) -> None:
        if code:
            raise RuntimeError(f"the driver said {code}")

    def launcher(
        self,
        parameters: Sequence[Parameter],
        blocks: int,
        operands: Mapping[str, torch.Tensor],
        words: Mapping[str, int],
    ) -> Callable[[], None]:
        """A function that launches the kernel with these operands."""
        held: list[Any] = [operands]
        addresses = []
        for parameter in parameters:
            if isinstance(parameter, TensorMap):
                storage, address = self._tensor_map(parameter, operands[parameter.name])
                held.append(storage)
                addresses.append(address)
                continue
            if isinstance(parameter, Pointer):
                value: Any = ctypes.c_uint64(operands[parameter.name].data_ptr())
            else:
                value = ctypes.c_uint32(self._word(parameter.name, operands, words))
            held.append(value)
            addresses.append(ctypes.addressof(value))
        array = (ctypes.c_void_p * len(addresses))(*addresses)

        def launch() -> None:
            stream = ctypes.c_void_p(torch.cuda.current_stream().cuda_stream)
            self._check(
                self.driver.cuLaunchKernel(
                    self.function, blocks, 1, 1, self.threads, 1, 1, self.shared_bytes,
                    stream, array, None,
                )
            )  # fmt: skip

        launch.held = held  # type: ignore[attr-defined]
        return launch

    def _word(
        self, name: str, operands: Mapping[str, torch.Tensor], words: Mapping[str, int]
    ) -> int:
        if name in words:
            return words[name]
        for ending, axis in (("_batch_stride", 0), ("_head_stride", 1)):
            if name.endswith(ending):
                return operands[name.removesuffix(ending)].stride(axis)
        return operands[name.removesuffix("_stride")].stride(-2)

    def _tensor_map(self, parameter: TensorMap, tensor: torch.Tensor) -> tuple[Any, int]:
        storage = (ctypes.c_ubyte * 192)()
        address = (ctypes.addressof(storage) + 63) & ~63
        rank = len(parameter.box)
        if tensor.dim() != rank:
            raise ValueError(f"{parameter.name} has {tensor.dim()} axes, its map {rank}")
        sizes = (ctypes.c_uint64 * rank)(*reversed(tensor.shape))
        strides = [stride * tensor.element_size() for stride in reversed(tensor.stride()[:-1])]
        self._check(
            self.driver.cuTensorMapEncodeTiled(
                ctypes.c_void_p(address), _MAP_TYPES[parameter.dtype], rank,
                ctypes.c_void_p(tensor.data_ptr()), sizes, (ctypes.c_uint64 * (rank - 1))(*strides),
                (ctypes.c_uint32 * rank)(*parameter.box), (ctypes.c_uint32 * rank)(*[1] * rank),
                0, 3, 2, 0,
            )
        )  # fmt: skip
        return storage, address


def measure(
    functions: Mapping[str, Callable[[], object]], rounds: int = 30, calls: int = 10
) -> dict[str, float]:
    """The best time of each in µs, in graphs of some calls, replayed in turn."""
    graphs = {}
    for name, function in functions.items():
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for _ in range(3):
                function()
        torch.cuda.current_stream().wait_stream(stream)
        torch.cuda.synchronize()
        graphs[name] = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graphs[name]):
            for _ in range(calls):
                function()
    best = dict.fromkeys(functions, float("inf"))
    for _ in range(rounds):
        for name, graph in graphs.items():
            start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            start.record()
            graph.replay()
            end.record()
            end.synchronize()
            best[name] = min(best[name], start.elapsed_time(end) / calls * 1e3)
    return {name: round(time, 2) for name, time in best.items()}
