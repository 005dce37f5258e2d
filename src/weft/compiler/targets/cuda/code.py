"""Machine code of a program's kernels: each compiled once for a process, and found on disk later.

A kernel is a module of its own. LLVM makes PTX of the text that is emitted for it, and the driver
machine code, kernels side by side: both leave Python's lock while they work. On disk the code is
found by the kernel itself, so that no text is emitted again, and by its text, which changes less
often than this package.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from copy import copy
from ctypes import c_int64, c_uint64
from dataclasses import replace
from os import cpu_count
from threading import Lock
from typing import Any, TypeVar

import llvmlite

from weft.compiler.lowering.divided_reductions import Split
from weft.compiler.targets.cuda.device import ALIGNMENT, Device, Memory, Stream
from weft.compiler.targets.cuda.device_text import TextKernel
from weft.compiler.targets.cuda.emit import emit_device_module, scratch_bytes, symbol
from weft.compiler.targets.cuda.grouped_kernels import GroupedKernel
from weft.compiler.targets.cuda.machine import card
from weft.compiler.targets.cuda.modules import Function, Launch, Module, disk, machine_code
from weft.compiler.targets.cuda.nvptx import text_to_ptx
from weft.compiler.targets.cuda.schedule import Schedule, schedule, scratch_of_all
from weft.compiler.targets.cuda.splitting import split_kernel
from weft.core.errors import DeviceError, WeftError
from weft.core.forks import wait_at_fork
from weft.core.locations import user_location
from weft.core.once import made_once
from weft.core.records import frozen
from weft.ir.loops import Kernel, evaluate
from weft.runtime.cache import entry_key
from weft.runtime.stamps import program_sources

Compiled = TypeVar("Compiled")
WORKERS = 8
"""Kernels that are compiled side by side, at most."""
_lock = Lock()
wait_at_fork(_lock)


@frozen(eq=False, slots=False)
class KernelCode:
    """A kernel on a card: its parts in order, the memory between them, and their functions.

    Kernels that differ in names alone share their code: `sizes` are the names that it knows.
    """

    sizes: tuple[str, ...]
    parts: Split
    schedules: tuple[Schedule, ...]
    functions: tuple[Function, ...]

    def launches(
        self, stream: Stream, pointers: Sequence[int], sizes: Mapping[str, int]
    ) -> tuple[list[Launch], list[Memory]]:
        """The launches of the kernel by itself on buffers, and memory to be held while they run."""
        if any(pointer % ALIGNMENT for pointer in pointers):
            raise DeviceError(
                "cuda",
                "a buffer begins in the middle of a vector",
                expected=f"addresses that are multiples of {ALIGNMENT}",
                got={"addresses": [hex(pointer) for pointer in pointers]},
                fix="copy the part of a tensor before it is used here: x.copy()",
            )
        held = [
            stream.allocate(max(0, evaluate(count, sizes)) * buffer.dtype.itemsize)
            for buffer, count in self.parts.between
        ]
        buffers = [*pointers, *(memory.pointer for memory in held)]
        launches = []
        for plan, function in zip(self.schedules, self.functions, strict=True):
            operands: list[Any] = [c_uint64(pointer) for pointer in buffers]
            operands += [c_int64(sizes[name]) for name in plan.kernel.sizes]
            if scratch_bytes(plan) is None:
                held.append(stream.allocate(scratch_of_all(plan, sizes)))
                operands.append(c_uint64(held[-1].pointer))
            dimensions = (plan.blocks(sizes), 1, 1), (plan.block, 1, 1)
            if plan.blocks(sizes):
                launches.append(Launch(function, *dimensions, operands))
        return launches, held


class Code:
    """The kernels of one program on a card."""

    def __init__(self, kernels: Sequence[Kernel], device: Device) -> None:
        self._device = device
        begin_kernels(kernels, device)

    def code_of(self, kernel: Kernel) -> KernelCode:
        """The code of a kernel of the program, once it is there."""
        return compiled_result(_future(kernel, self._device))

    def begin_group(self, kernel: GroupedKernel) -> Future[Function]:
        """Start to compile launches that are one, beside the caller: their function."""
        return _pool().submit(_compile_group, kernel, self._device)


def compiled_result(future: Future[Compiled]) -> Compiled:
    """What was compiled beside the caller; an error of it is raised at the user's line."""
    try:
        return future.result()
    except WeftError as error:
        raise copy(error).located(user_location()) from None


_known: dict[tuple[int, str], Future[KernelCode]] = {}
"""By card and digest: what is compiled in this process."""


def _future(kernel: Kernel, device: Device) -> Future[KernelCode]:
    """The code of a kernel; what failed, for want of memory perhaps, is tried anew."""
    key = device.ordinal, kernel.digest
    with _lock:
        known = _known.get(key)
        if known is None or (known.done() and known.exception() is not None):
            known = _known[key] = _pool().submit(_compile, kernel, device)
        return known


@made_once
def _pool() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(min(WORKERS, cpu_count() or 1), "weft-cuda-compile")


def begin_kernels(kernels: Sequence[Kernel], device: Device) -> None:
    """Start to compile kernels, beside the caller."""
    for kernel in kernels:
        _future(kernel, device)


def _compile(kernel: Kernel, device: Device) -> KernelCode:
    split = split_kernel(kernel)
    parts = [replace(part, name=f"k{number}") for number, part in enumerate(split.kernels)]
    module = Module(device, kernel_code(device, kernel, parts))
    functions = [module.function(symbol(part.name)) for part in parts]
    whole = Split(tuple(parts), split.between)
    return KernelCode(kernel.sizes, whole, tuple(map(schedule, parts)), tuple(functions))


def _compile_group(kernel: GroupedKernel, device: Device) -> Function:
    return Module(device, group_code(device, kernel)).function(kernel.name)


def group_code(device: Device, kernel: GroupedKernel) -> bytes:
    """The machine code of launches that are one, from disk where it was compiled before."""
    return compiled_text(device, kernel.text())


def load_modules(
    device: Device, codes: Sequence[bytes], functions: Sequence[tuple[int, str, int]]
) -> list[Function]:
    """Functions of machine code or PTX texts: which of them each is in, its name and its memory.

    Modules are loaded side by side, as the driver takes some time for each.
    """
    begun = [_pool().submit(Module, device, code) for code in codes]
    modules = [compiled_result(each) for each in begun]
    return [modules[code].function(name, shared) for code, name, shared in functions]


def kernel_code(device: Device, kernel: Kernel, parts: Sequence[Kernel]) -> bytes:
    """The machine code of a kernel's parts, from disk where this version has compiled it before."""
    version = "{}.{} {}".format(*device.capability, device.driver.version)
    known_by = program_sources(), card().processor, llvmlite.__version__, version
    key = entry_key(kernel.digest.encode(), "cuda kernel", *known_by)
    known = disk().get(key)
    if known is None:
        known = compiled_text(device, emit_device_module(parts, card()))
        disk().put(key, known)
    return known


def compiled_text(device: Device, text: str) -> bytes:
    """The machine code of a module in LLVM's language, from disk where it was compiled before."""
    capability = "{}.{}".format(*device.capability)
    version = str(device.driver.version)
    key = entry_key(text.encode(), "cuda text", llvmlite.__version__, capability, version)
    known = disk().get(key)
    if known is None:
        known = machine_code(device, text_to_ptx(text, card()))
        disk().put(key, known)
    return known


@made_once
def load_text_kernel(kernel: TextKernel, device: Device) -> Function:
    """The function of a kernel that is written in LLVM's language, on a card."""
    return Module(device, compiled_text(device, kernel.text)).function(
        kernel.name, kernel.shared_bytes
    )
