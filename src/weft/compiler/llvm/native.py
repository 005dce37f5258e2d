"""Native code in this process: from kernels to addresses, and to object files and back.

>>> import numpy as np
>>> from weft.core.dtypes import float32
>>> from weft.ir.loops import For, Kernel, Store
>>> from weft.ir.scalars import Buffer, index, size
>>> x, y, i = Buffer("x", float32), Buffer("y", float32, "write"), index("i")
>>> body = (For(i, size("n"), (Store(y, i, x[i] * 2),), "parallel vector"),)
>>> addresses = compile_kernels([Kernel("double", (x, y), ("n",), body)])
>>> source, target = np.array([1, 2, 3], np.float32), np.zeros(3, np.float32)
>>> call_kernel(addresses["double"], [source, target], [3], 0, 3)
>>> target.tolist()
[2.0, 4.0, 6.0]
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from threading import RLock
from typing import Any

import llvmlite.binding as llvm
import numpy as np

from weft.compiler.llvm.emit import emit_module, symbol_name
from weft.compiler.llvm.machine import Machine, host
from weft.compiler.llvm.mathematics import LIBRARY
from weft.ir.loops import Kernel

Array = np.ndarray[Any, Any]
_SIGNATURE = ctypes.CFUNCTYPE(
    None, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64
)


@dataclass
class _Loaded:
    """The code that lives as long as the process does."""

    engines: list[Any] = field(default_factory=list)
    lock: Any = field(default_factory=RLock)


_loaded = _Loaded()


def compile_kernels(
    kernels: Sequence[Kernel], *, width: int | None = None, opt: int = 2
) -> dict[str, int]:
    """Compile kernels; the address of each function, by the kernel's name."""
    return load_object(emit_object(kernels, width=width, opt=opt), [k.name for k in kernels])


def emit_object(kernels: Sequence[Kernel], *, width: int | None = None, opt: int = 2) -> bytes:
    """Compile kernels to the bytes of an object file, which `load_object` takes."""
    machine = host(width)
    with _module(kernels, machine) as module:
        return bytes(_target_machine(machine, opt).emit_object(module))


def emit_text(source: str) -> bytes:
    """Compile LLVM IR that was written by hand to the bytes of an object file, for this machine."""
    with _loaded.lock:
        return bytes(_target_machine(host(), 2).emit_object(llvm.parse_assembly(source)))


def assembly(kernels: Sequence[Kernel], *, width: int | None = None, opt: int = 2) -> str:
    """The machine's instructions of kernels, to read."""
    machine = host(width)
    with _module(kernels, machine) as module:
        return str(_target_machine(machine, opt).emit_assembly(module))


def load_object(code: bytes, names: Sequence[str]) -> dict[str, int]:
    """Load an object file into this process for good; the addresses of its functions."""
    addresses, engine = load_for_a_while(code, names)
    _loaded.engines.append(engine)
    return addresses


def load_for_a_while(code: bytes, names: Sequence[str]) -> tuple[dict[str, int], Any]:
    """The addresses of an object file's functions, and what keeps them there while it is held."""
    with _loaded.lock:
        _add_symbols()
        engine = _engine()
        engine.add_object_file(llvm.ObjectFileRef.from_data(code))
        engine.finalize_object()
        return {name: engine.get_function_address(symbol_name(name)) for name in names}, engine


def load_text(source: str, name: str) -> int:
    """Compile LLVM IR that was written by hand; the address of one of its functions."""
    with _loaded.lock:
        target = llvm.Target.from_triple(host().triple).create_target_machine(opt=2)
        engine = llvm.create_mcjit_compiler(llvm.parse_assembly(source), target)
        engine.finalize_object()
        _loaded.engines.append(engine)
        return int(engine.get_function_address(name))


@contextmanager
def _module(kernels: Sequence[Kernel], machine: Machine) -> Iterator[Any]:
    """Kernels as a module that needs no passes: values are computed once, in the right place.

    Of the passes of LLVM's code generation, loop strength reduction takes a quarter of the time,
    and finds nothing to do. It is an option of the process, so it is put back.
    """
    text = emit_module(kernels, machine)
    with _loaded.lock:
        llvm.set_option("weft", "-disable-lsr")
        try:
            yield llvm.parse_assembly(text)
        finally:
            llvm.set_option("weft", "-disable-lsr=false")


@cache
def _target_machine(machine: Machine, opt: int) -> Any:
    target = llvm.Target.from_triple(machine.triple)
    return target.create_target_machine(
        cpu=machine.processor, features=machine.features, opt=opt, reloc="pic", codemodel="small"
    )


def _engine() -> Any:
    """An engine of its own for each object, so that names do not meet."""
    target = llvm.Target.from_triple(host().triple)
    return llvm.create_mcjit_compiler(llvm.parse_assembly(""), target.create_target_machine())


_CALLED = (
    "fmod", "malloc", "free", "memcpy", "fma", "fmaf", "floor", "floorf", "ceil", "ceilf", "trunc",
    "truncf", "roundeven", "roundevenf",
)  # fmt: skip
"""What code may call beside the elementary functions: on old processors for instructions."""


@cache
def _add_symbols() -> None:
    """Functions of the C library, for the code that calls them."""
    library = ctypes.CDLL(None)
    for name in (*LIBRARY.values(), *_CALLED):
        function = getattr(library, name, None)
        if function is not None:
            llvm.add_symbol(name, ctypes.cast(function, ctypes.c_void_p).value)


def call_kernel(
    address: int, buffers: Sequence[Array], sizes: Sequence[int], begin: int = 0, end: int = 1
) -> None:
    """Run iterations of a kernel on arrays, which must be contiguous and of the right dtype."""
    pointers = (ctypes.c_void_p * max(1, len(buffers)))(*(b.ctypes.data for b in buffers))
    numbers = (ctypes.c_int64 * max(1, len(sizes)))(*sizes)
    _SIGNATURE(address)(ctypes.addressof(pointers), ctypes.addressof(numbers), begin, end)
