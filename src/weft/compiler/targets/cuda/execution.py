"""Kernels run on a card: compiled once for it, and launched with pointers and sizes.

`run_kernel` runs one on NumPy arrays, for tests; a plan launches `DeviceKernel`s on its own memory.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from ctypes import c_int64, c_uint64
from dataclasses import replace
from typing import Any

import numpy as np

from weft.compiler.targets.cuda.device import Device, Memory, Stream, device
from weft.compiler.targets.cuda.emit import scratch_bytes, symbol
from weft.compiler.targets.cuda.machine import card
from weft.compiler.targets.cuda.modules import Launch, Module, load_ptx
from weft.compiler.targets.cuda.nvptx import kernels_to_ptx
from weft.compiler.targets.cuda.schedule import Schedule, schedule
from weft.compiler.targets.cuda.splitting import Split, split_kernel
from weft.core.errors import DeviceError
from weft.ir.loops import Kernel, evaluate

Array = np.ndarray[Any, Any]
ALIGNMENT = 16
"""What the addresses of buffers are multiples of."""


class DeviceKernel:
    """A kernel of the loop language on one card: one launch, or several in order."""

    def __init__(self, kernel: Kernel, parts: Split, module: Module) -> None:
        self.kernel, self.parts, self.device = kernel, parts, module.device
        self.plans: list[Schedule] = [schedule(part) for part in parts.kernels]
        self.functions = [module.function(symbol(part.name)) for part in parts.kernels]

    def launches(
        self, stream: Stream, pointers: Sequence[int], sizes: Mapping[str, int]
    ) -> tuple[list[Launch], list[Memory]]:
        """The launches for these buffers and sizes, and memory to be held while they run."""
        if any(pointer % ALIGNMENT for pointer in pointers):
            raise DeviceError(
                self.kernel.name,
                "a buffer begins in the middle of a vector",
                expected=f"addresses that are multiples of {ALIGNMENT}",
                got={"addresses": [hex(pointer) for pointer in pointers]},
                fix="copy the part of a tensor before it is used here: x.copy()",
            )
        held = [
            stream.allocate(max(0, evaluate(count, sizes)) * buffer.dtype.itemsize)
            for buffer, count in self.parts.between
        ]
        given = [*pointers, *(memory.pointer for memory in held)]
        found = []
        for plan, function in zip(self.plans, self.functions, strict=True):
            blocks = plan.blocks(sizes)
            if blocks == 0:
                continue
            operands: list[Any] = [c_uint64(pointer) for pointer in given]
            operands += [c_int64(sizes[name]) for name in plan.kernel.sizes]
            if scratch_bytes(plan) is None:
                held.append(stream.allocate(scratch_of_all(plan, sizes)))
                operands.append(c_uint64(held[-1].pointer))
            found.append(Launch(function, (blocks, 1, 1), (plan.block, 1, 1), operands))
        return found, held


def scratch_of_all(plan: Schedule, sizes: Mapping[str, int]) -> int:
    """The bytes of scratch memory of all teams of a launch."""
    each = 0
    for scratch in plan.kernel.scratch:
        count = max(0, evaluate(scratch.count, sizes))
        each += -(-count * scratch.buffer.dtype.itemsize // 16) * 16
    return each * (plan.blocks(sizes) * plan.block // plan.team)


def compile_for(target: Device, kernels: Sequence[Kernel]) -> list[DeviceKernel]:
    """Kernels compiled for a card, in one module; equal ones are compiled once."""
    parts: dict[str, Split] = {}
    for kernel in kernels:
        digest = kernel.digest
        parts.setdefault(digest, _rename_kernels(split_kernel(kernel), digest))
    written = [part for each in parts.values() for part in each.kernels]
    module = load_ptx(target, kernels_to_ptx(written, card()))
    return [DeviceKernel(kernel, parts[kernel.digest], module) for kernel in kernels]


def _rename_kernels(parts: Split, digest: str) -> Split:
    kernels = [replace(part, name=f"{digest}_{k}") for k, part in enumerate(parts.kernels)]
    return Split(tuple(kernels), parts.between)


def run_kernel(
    kernel: Kernel,
    arrays: Sequence[Array],
    sizes: Sequence[int] = (),
    compiled: DeviceKernel | None = None,
) -> list[Array]:
    """Run a kernel on the first card; flat copies of the arrays after it."""
    target = device()
    target.make_current()
    made = compiled or compile_for(target, [kernel])[0]
    stream = Stream(target)
    memories = []
    for array in arrays:
        memory = stream.allocate(array.nbytes)
        stream.upload(memory, array)
        memories.append(memory)
    named = dict(zip(kernel.sizes, sizes, strict=True))
    launches, held = made.launches(stream, [memory.pointer for memory in memories], named)
    for launch in launches:
        launch(stream)
    results = [np.empty_like(np.ascontiguousarray(array)) for array in arrays]
    for result, memory in zip(results, memories, strict=True):
        stream.download(result, memory)
    stream.synchronize()
    del held
    return results
