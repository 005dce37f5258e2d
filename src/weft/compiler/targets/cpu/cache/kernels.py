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
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import cache
from threading import RLock
from weakref import WeakValueDictionary, finalize

import llvmlite
import llvmlite.binding as llvm

from weft.compiler.targets.cpu.cache.symbols import (
    Origin,
    finder,
    forget_address,
    remember_address,
)
from weft.compiler.targets.cpu.engine import (
    emit_kernel,
    emit_text,
    kernel_text,
    load_for_a_while,
    load_object,
)
from weft.compiler.targets.cpu.machine import host
from weft.core.forks import wait_at_fork
from weft.ir.loops import Kernel
from weft.runtime.cache import entry_key, shared_disk
from weft.runtime.compile_queue import BACKGROUND, Task, finished_task
from weft.runtime.stamps import source_stamp

EMITTER = ("core", "ir", "compiler/targets/llvm")
"""Where the code is that makes machine code of a kernel: entries of other code are not found."""

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
_sources: dict[str, str] = {}
"""The text of modules that launches name functions of, by key."""
_modules: set[str] = set()
"""Keys of modules that are loaded for good."""
_pending: dict[str, Task[bytes]] = {}
"""Object files that nobody has loaded yet, by digest or key."""
_lock = RLock()
wait_at_fork(_lock)
BACKGROUND.needed += [lock for lock in (getattr(llvm.ffi.lib._lock, "_lock", None),) if lock]


def begin(kernels: Iterable[Kernel]) -> None:
    """Start to compile kernels beside the caller, but for those that are there."""
    for kernel in kernels:
        digest = kernel.digest
        with _lock:
            if digest not in _pending and _known.get(digest) is None:
                _pending[digest] = _stored_object(_key(digest)) or _begin_kernel(kernel)


def _begin_kernel(kernel: Kernel) -> Task[bytes]:
    text = kernel_text(replace(kernel, name=f"weft_{kernel.digest}"))
    return _emit_in_background(_key(kernel.digest), lambda: emit_kernel(text))


def _emit_in_background(key: str, emit: Callable[[], bytes]) -> Task[bytes]:
    """An object file that is under way, and then written to disk."""

    def work() -> bytes:
        data = emit()
        BACKGROUND.submit(lambda: shared_disk().put(key, data), later=True)
        return data

    return BACKGROUND.submit(work)


def _stored_object(key: str) -> Task[bytes] | None:
    data = shared_disk().get(key)
    return None if data is None else finished_task(data)


def kernel_codes(kernels: Sequence[Kernel]) -> list[Code]:
    """The machine code of each kernel."""
    begin(kernels)
    with _lock:
        known = _claim_codes([kernel.digest for kernel in kernels])
        return [_keep_recent(digest, known[digest]) for digest in (k.digest for k in kernels)]


def addresses(kernels: Sequence[Kernel]) -> list[int]:
    """The native function of each kernel, for as long as they are recent."""
    return [code.address for code in kernel_codes(kernels)]


def _claim_codes(digests: Iterable[str]) -> dict[str, Code]:
    """The code of digests, which is there or under way; what is new is loaded at once."""
    known = {digest: _known.get(digest) for digest in digests}
    new = {digest: _pending.pop(digest).result() for digest, code in known.items() if code is None}
    return {**known, **_load(new)}  # type: ignore[dict-item]


def codes_of(digests: Sequence[str]) -> list[Code | None]:
    """The machine code of kernels that were compiled before; None for those not found."""
    with _lock:
        for digest in digests:
            if digest not in _pending and _known.get(digest) is None:
                found = _stored_object(_key(digest))
                if found is not None:
                    _pending[digest] = found
        there = [d for d in digests if d in _pending or _known.get(d) is not None]
        known = _claim_codes(there)
        return [_keep_recent(d, known[d]) if d in known else None for d in digests]


def code_of(digest: str) -> Code | None:
    """The machine code of a kernel that was compiled before; None if it is not found."""
    return codes_of([digest])[0]


def _keep_recent(digest: str, code: Code) -> Code:
    """The code, which is the most recent one from now on."""
    _recent[digest] = _known[digest] = code
    _recent.move_to_end(digest)
    while len(_recent) > RECENT:
        _recent.popitem(last=False)
    return code


def _load(objects: Mapping[str, bytes]) -> dict[str, Code]:
    """The code of object files by digest; it stays as long as any of it is held."""
    if not objects:
        return {}
    names = {digest: f"weft_{digest}" for digest in objects}
    places, engine = load_for_a_while(list(objects.values()), list(names.values()))
    return {digest: _code(digest, places[name], engine) for digest, name in names.items()}


def _code(digest: str, address: int, engine: object) -> Code:
    code = Code(remember_address(address, "kernel", digest), engine)
    finalize(code, forget_address, code.address).atexit = False
    return code


def begin_text(source: str) -> None:
    """Start to compile a module that was written by hand, if it is not there."""
    key = entry_key(source.encode(), *environment())
    with _lock:
        if key not in _pending and key not in _modules:
            _pending[key] = _stored_object(key) or _emit_in_background(
                key, lambda: emit_text(source)
            )


def text_addresses(source: str, names: Sequence[str]) -> dict[str, int]:
    """The functions of a module that was written by hand, each defined as `weft.name`."""
    key = entry_key(source.encode(), *environment())
    with _lock:
        under_way = _pending.pop(key, None) or _stored_object(key)
        task = under_way or _emit_in_background(key, lambda: emit_text(source))
        found = load_object(task.result(), names)
        _modules.add(key)
        for name in names:
            _texts[key, name] = remember_address(found[name], "text", key, name)
        return found


def text_symbols(source: str, names: Sequence[str]) -> dict[str, Origin]:
    """What names the functions of a module that was written by hand; nothing is compiled yet."""
    key = entry_key(source.encode(), *environment())
    _sources[key] = source
    return {name: ("text", key, name) for name in names}


def text_of(symbol: Origin) -> tuple[str, str]:
    """The text of the module that a symbol of `text_symbols` is of, and the function's name."""
    return _sources[symbol[1]], symbol[2]


def _text_address(key: str, name: str) -> int | None:
    """A function of a module that was named or compiled before; None if it is not found."""
    with _lock:
        if (key, name) not in _texts:
            if key in _sources:
                return text_addresses(_sources[key], [name])[name]
            code = shared_disk().get(key)
            if code is None:
                return None
            _texts[key, name] = remember_address(load_object(code, [name])[name], "text", key, name)
        return _texts[key, name]


def _kernel_address(digest: str) -> int | None:
    found = code_of(digest)
    return None if found is None else found.address


def _key(digest: str) -> str:
    return entry_key(digest.encode(), *environment())


finder("kernel", _kernel_address)
finder("text", _text_address)


@cache
def environment() -> tuple[str, ...]:
    """What compiled code depends on beside the kernel."""
    machine = host()
    version = ".".join(map(str, llvm.llvm_version_info))
    return (
        source_stamp(*EMITTER), llvmlite.__version__, version, machine.triple, machine.processor,
        machine.features, str(machine.width),
    )  # fmt: skip
