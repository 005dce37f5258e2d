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

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from threading import RLock
from weakref import WeakValueDictionary, finalize

import llvmlite
import llvmlite.binding as llvm

from weft.compiler.llvm.machine import host
from weft.compiler.llvm.native import emit_object, emit_text, load_for_a_while, load_object
from weft.compiler.origins import finder, forgotten, remembered
from weft.ir.loops import Kernel
from weft.runtime.cache import DiskCache, entry_key

VERSION = "4"
"""Changes with the code that is generated for a kernel, so that old entries are not found."""

RECENT = 1024
"""How many kernels are kept that no program holds any more."""


class Code:
    """A kernel's machine code, which is there as long as somebody holds this."""

    __slots__ = ("__weakref__", "address", "engine")

    def __init__(self, address: int, engine: object) -> None:
        self.address, self.engine = address, engine


_known: WeakValueDictionary[str, Code] = WeakValueDictionary()
_recent: OrderedDict[str, Code] = OrderedDict()
_texts: dict[tuple[str, str], int] = {}
_lock = RLock()


def compiled(kernels: Sequence[Kernel]) -> list[Code]:
    """The machine code of each kernel."""
    with _lock:
        return [_find(kernel.digest) or _make(kernel) for kernel in kernels]


def addresses(kernels: Sequence[Kernel]) -> list[int]:
    """The native function of each kernel, for as long as they are recent."""
    return [code.address for code in compiled(kernels)]


def code_of(digest: str) -> Code | None:
    """The machine code of a kernel that was compiled before; None if it is not found."""
    with _lock:
        return _find(digest)


def _find(digest: str) -> Code | None:
    """The code of a digest, in this process or on disk."""
    found = _known.get(digest)
    if found is None:
        data = disk().get(_key(digest))
        return None if data is None else _load(data, digest)
    return _kept(digest, found)


def _make(kernel: Kernel) -> Code:
    data = emit_object([replace(kernel, name=f"weft_{kernel.digest}")])
    disk().put(_key(kernel.digest), data)
    return _load(data, kernel.digest)


def _kept(digest: str, code: Code) -> Code:
    """The code, which is the most recent one from now on."""
    _recent[digest] = _known[digest] = code
    _recent.move_to_end(digest)
    while len(_recent) > RECENT:
        _recent.popitem(last=False)
    return code


def _load(data: bytes, digest: str) -> Code:
    name = f"weft_{digest}"
    places, engine = load_for_a_while(data, [name])
    code = Code(remembered(places[name], "kernel", digest), engine)
    finalize(code, forgotten, code.address).atexit = False
    return _kept(digest, code)


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


def _kernel_address(digest: str) -> int | None:
    found = code_of(digest)
    return None if found is None else found.address


def _key(digest: str) -> str:
    return entry_key(digest.encode(), *environment())


finder("kernel", _kernel_address)
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
