"""Kernels by content: each is compiled once, in this process and, through the disk, for others.

>>> from weft.core.dtypes import float32
>>> from weft.ir.loops import For, Kernel, Store
>>> from weft.ir.scalars import Buffer, index, size
>>> x, y, i = Buffer("x", float32), Buffer("y", float32, "write"), index("i")
>>> body = (For(i, size("n"), (Store(y, i, x[i] * 2),), "parallel vector"),)
>>> first, second = (Kernel(name, (x, y), ("n",), body) for name in ("a", "b"))
>>> addresses([first]) == addresses([second])
True
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from threading import RLock

import llvmlite
import llvmlite.binding as llvm

from weft.compiler.llvm.machine import host
from weft.compiler.llvm.native import emit_object, load_object
from weft.ir.loops import Kernel
from weft.runtime.cache import DiskCache, entry_key

VERSION = "3"
"""Changes with the code that is generated for a kernel, so that old entries are not found."""

_known: dict[str, int] = {}
_lock = RLock()


def addresses(kernels: Sequence[Kernel]) -> list[int]:
    """The native function of each kernel."""
    with _lock:
        for kernel in kernels:
            if kernel.digest not in _known:
                _known[kernel.digest] = _loaded(kernel)
    return [_known[kernel.digest] for kernel in kernels]


def _loaded(kernel: Kernel) -> int:
    name = f"weft_{kernel.digest}"
    key = entry_key(kernel.digest.encode(), *_environment())
    code = _disk().get(key)
    if code is None:
        code = emit_object([replace(kernel, name=name)])
        _disk().put(key, code)
    return load_object(code, [name])[name]


@cache
def _disk() -> DiskCache:
    return DiskCache()


@cache
def _environment() -> tuple[str, ...]:
    """What compiled code depends on beside the kernel."""
    machine = host()
    version = ".".join(map(str, llvm.llvm_version_info))
    return (
        VERSION, llvmlite.__version__, version, machine.triple, machine.processor, machine.features,
        str(machine.width),
    )  # fmt: skip
