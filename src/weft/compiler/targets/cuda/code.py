"""Machine code of a program's kernels: each compiled once for a process, and found on disk later.

A kernel is a module of its own, keyed by the text that is emitted for it. LLVM makes PTX of the
text, and the driver machine code, kernels side by side: both leave Python's lock while they work.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from functools import cache
from os import cpu_count
from threading import Lock

import llvmlite

from weft.compiler.targets.cuda.device import Device
from weft.compiler.targets.cuda.emit import emit_device_module, symbol
from weft.compiler.targets.cuda.machine import card
from weft.compiler.targets.cuda.modules import Function, Module, disk, machine_code
from weft.compiler.targets.cuda.nvptx import text_to_ptx
from weft.compiler.targets.cuda.schedule import Schedule, schedule
from weft.compiler.targets.cuda.splitting import Split, split_kernel
from weft.core.forks import wait_at_fork
from weft.core.records import frozen
from weft.ir.loops import Kernel
from weft.runtime.cache import entry_key

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


class Code:
    """The kernels of one program on a card."""

    def __init__(self, kernels: Sequence[Kernel], device: Device) -> None:
        self._by_digest = {kernel.digest: _future(kernel, device) for kernel in kernels}

    def code_of(self, kernel: Kernel) -> KernelCode:
        """The code of a kernel of the program, once it is there."""
        return self._by_digest[kernel.digest].result()


_known: dict[tuple[int, str], Future[KernelCode]] = {}
"""By card and digest: what is compiled in this process."""


def _future(kernel: Kernel, device: Device) -> Future[KernelCode]:
    key = device.ordinal, kernel.digest
    with _lock:
        known = _known.get(key)
        if known is None:
            known = _known[key] = _pool().submit(_compile, kernel, device)
        return known


@cache
def _pool() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(min(WORKERS, cpu_count() or 1), "weft-cuda-compile")


def begin_kernels(kernels: Sequence[Kernel], device: Device) -> None:
    """Start to compile kernels, beside the caller."""
    for kernel in kernels:
        _future(kernel, device)


def _compile(kernel: Kernel, device: Device) -> KernelCode:
    split = split_kernel(kernel)
    parts = [replace(part, name=f"k{number}") for number, part in enumerate(split.kernels)]
    module = Module(device, compiled_text(device, emit_device_module(parts, card())))
    functions = [module.function(symbol(part.name)) for part in parts]
    whole = Split(tuple(parts), split.between)
    return KernelCode(kernel.sizes, whole, tuple(map(schedule, parts)), tuple(functions))


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
