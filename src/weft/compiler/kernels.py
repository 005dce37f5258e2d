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
from weft.compiler.llvm.native import emit_object, emit_text, load_object
from weft.compiler.origins import finder, remembered
from weft.ir.loops import Kernel
from weft.runtime.cache import DiskCache, entry_key

VERSION = "3"
"""Changes with the code that is generated for a kernel, so that old entries are not found."""

_known: dict[str, int] = {}
_texts: dict[tuple[str, str], int] = {}
_lock = RLock()


def addresses(kernels: Sequence[Kernel]) -> list[int]:
    """The native function of each kernel."""
    with _lock:
        for kernel in kernels:
            if kernel.digest not in _known:
                _known[kernel.digest] = _loaded(kernel)
    return [_known[kernel.digest] for kernel in kernels]


def _loaded(kernel: Kernel) -> int:
    key = _key(kernel.digest)
    code = disk().get(key)
    if code is None:
        code = emit_object([replace(kernel, name=f"weft_{kernel.digest}")])
        disk().put(key, code)
    return _load(code, kernel.digest)


def text_addresses(source: str, names: Sequence[str]) -> dict[str, int]:
    """The functions of a module that was written by hand, each defined as `weft.name`."""
    key = entry_key(source.encode(), *environment())
    with _lock:
        code = disk().get(key)
        if code is None:
            code = emit_text(source)
            disk().put(key, code)
        found = load_object(code, names)
        for name in names:
            _texts[key, name] = remembered(found[name], "text", key, name)
        return found


def _text_address(key: str, name: str) -> int | None:
    """A function of a module that was compiled before; None if it is not found."""
    with _lock:
        if (key, name) not in _texts:
            code = disk().get(key)
            if code is None:
                return None
            _texts[key, name] = remembered(load_object(code, [name])[name], "text", key, name)
        return _texts[key, name]


def kernel_address(digest: str) -> int | None:
    """The native function of a kernel that was compiled before; None if it is not found."""
    with _lock:
        if digest not in _known:
            code = disk().get(_key(digest))
            if code is None:
                return None
            _known[digest] = _load(code, digest)
    return _known[digest]


def _key(digest: str) -> str:
    return entry_key(digest.encode(), *environment())


def _load(code: bytes, digest: str) -> int:
    name = f"weft_{digest}"
    return remembered(load_object(code, [name])[name], "kernel", digest)


finder("kernel", kernel_address)
finder("text", _text_address)


@cache
def disk() -> DiskCache:
    """The store that all programs share."""
    return DiskCache()


@cache
def environment() -> tuple[str, ...]:
    """What compiled code depends on beside the kernel."""
    machine = host()
    version = ".".join(map(str, llvm.llvm_version_info))
    return (
        VERSION, llvmlite.__version__, version, machine.triple, machine.processor, machine.features,
        str(machine.width),
    )  # fmt: skip
