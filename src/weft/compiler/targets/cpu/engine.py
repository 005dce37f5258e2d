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
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from threading import Condition, RLock, local
from typing import Any

import llvmlite.binding as llvm
import numpy as np

from weft.compiler.targets.cpu.machine import host
from weft.compiler.targets.cpu.runtime.thread_pool import PARALLEL_FOR
from weft.compiler.targets.llvm.elementary import LIBRARY
from weft.compiler.targets.llvm.emit import emit_module, symbol_name
from weft.compiler.targets.llvm.machine import Machine
from weft.core.forks import wait_at_fork
from weft.ir.loops import Kernel
from weft.runtime.compile_queue import run_shielded

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
wait_at_fork(_loaded.lock)


def compile_kernels(
    kernels: Sequence[Kernel], *, width: int | None = None, opt: int = 2
) -> dict[str, int]:
    """Compile kernels; the address of each function, by the kernel's name."""
    return load_object(emit_object(kernels, width=width, opt=opt), [k.name for k in kernels])


def emit_object(kernels: Sequence[Kernel], *, width: int | None = None, opt: int = 2) -> bytes:
    """Compile kernels to the bytes of an object file, which `load_object` takes."""
    machine = host(width)
    with _selection.without_strength_reduction():
        return _object(emit_module(kernels, machine), machine, opt)


def kernel_text(kernel: Kernel) -> str:
    """A kernel as LLVM IR for this machine, which `emit_kernel` takes."""
    return emit_module([kernel], host())


def emit_kernel(text: str) -> bytes:
    """Compile the text of a kernel to the bytes of an object file; nearly all of it is LLVM's."""
    with _selection.without_strength_reduction():
        return _object(text, host(), 2)


def emit_text(source: str) -> bytes:
    """Compile LLVM IR that was written by hand to the bytes of an object file, for this machine."""
    with _selection.with_strength_reduction():
        return _object(source, host(), 2)


def assembly(kernels: Sequence[Kernel]) -> str:
    """The machine's instructions of kernels, to read."""
    machine = host()
    with _selection.without_strength_reduction():
        module = llvm.parse_assembly(emit_module(kernels, machine))
        return str(_target_machine(machine, 2).emit_assembly(module))


def _object(text: str, machine: Machine, opt: int) -> bytes:
    """The object file of a module that needs no passes."""
    return run_shielded(lambda: _emit_object(text, machine, opt))


def _emit_object(text: str, machine: Machine, opt: int) -> bytes:
    """See `_object`; nothing is shared between threads."""
    module = llvm.parse_assembly(text, llvm.create_context())
    target = _target_machine(machine, opt)
    emit = getattr(llvm.ffi.lib.LLVMPY_TargetMachineEmitToMemory, "_cfn", None)
    if emit is None:
        return bytes(target.emit_object(module))
    # llvmlite lets one caller at a time into LLVM. Of this call, which takes nearly all the time,
    # LLVM itself asks only that contexts and target machines are not shared.
    with llvm.ffi.OutputString() as problem:
        memory = emit(target, module, 1, problem)
        if not memory:
            raise RuntimeError(str(problem))
    library = llvm.ffi.lib
    try:
        size = library.LLVMPY_GetBufferSize(memory)
        return ctypes.string_at(library.LLVMPY_GetBufferStart(memory), size)
    finally:
        library.LLVMPY_DisposeMemoryBuffer(memory)


def emit_linked(
    texts: Sequence[str], machine: Machine, kept: Collection[str]
) -> tuple[bytes, tuple[str, ...]]:
    """Modules as one object file for any machine, and the functions that it calls and has not.

    What none of the functions `kept` need is left out. Nothing is loaded into this process.
    """
    llvm.initialize_all_targets()
    llvm.initialize_all_asmprinters()
    with _selection.without_strength_reduction():
        return run_shielded(lambda: _emit_linked(texts, machine, kept))


def _emit_linked(
    texts: Sequence[str], machine: Machine, kept: Collection[str]
) -> tuple[bytes, tuple[str, ...]]:
    target, context = _target_machine(machine, 2), llvm.create_context()
    layout = str(target.target_data)
    head = f'target datalayout = "{layout}"\ntarget triple = "{machine.triple}"\n'
    whole, *others = [llvm.parse_assembly(head + text, context) for text in texts]
    for each in others:
        whole.link_in(each)
    for function in whole.functions:
        if function.name not in kept and not function.is_declaration:
            function.linkage = "internal"
    whole.verify()
    builder = llvm.create_pass_builder(target, llvm.create_pipeline_tuning_options())
    passes = llvm.create_new_module_pass_manager()
    passes.add_global_dead_code_eliminate_pass()
    passes.run(whole, builder)
    called = [f.name for f in whole.functions if f.is_declaration and f.name[:5] != "llvm."]
    return bytes(target.emit_object(whole)), tuple(sorted(called))


def load_object(code: bytes, names: Sequence[str]) -> dict[str, int]:
    """Load an object file into this process for good; the addresses of its functions."""
    addresses, engine = load_for_a_while([code], names)
    _loaded.engines.append(engine)
    return addresses


def load_for_a_while(codes: Sequence[bytes], names: Sequence[str]) -> tuple[dict[str, int], Any]:
    """The addresses of object files' functions, and what keeps them there while it is held.

    Names must differ. Files that are loaded together take a fraction of the time.
    """

    def load() -> tuple[dict[str, int], Any]:
        with _loaded.lock:
            return _link_objects(codes, names)

    return run_shielded(load)


def _link_objects(codes: Sequence[bytes], names: Sequence[str]) -> tuple[dict[str, int], Any]:
    """See `load_for_a_while`: each file in one stretch of memory.

    LLVM's older engine maps code and constants apart, and ends the process where they are more than
    2 GB from each other: where a GPU's driver or much else is mapped. It saves a tenth of the time.
    """
    builder = llvm.JITLibraryBuilder()
    for code in codes:
        builder.add_object_img(code)
    for name, address in _callable_addresses().items():
        builder.import_symbol(name, address)
    for name in names:
        builder.export_symbol(symbol_name(name))
    compiler = llvm.create_lljit_compiler(use_jit_link=True)
    library = builder.link(compiler, "weft")
    return {name: library[symbol_name(name)] for name in names}, (library, compiler)


def load_text(source: str, name: str) -> int:
    """Compile LLVM IR that was written by hand; the address of one of its functions."""

    def load() -> int:
        with _loaded.lock:
            target = llvm.Target.from_triple(host().triple).create_target_machine(
                opt=2, codemodel="large"
            )
            engine = llvm.create_mcjit_compiler(llvm.parse_assembly(source), target)
            engine.finalize_object()
            _loaded.engines.append(engine)
            return int(engine.get_function_address(name))

    return run_shielded(load)


class _Selection:
    """Whether loop strength reduction is among the passes of code generation.

    It takes a quarter of the time and finds nothing to do in kernels, whose values are computed
    once, in the right place. It is an option of the process: kernels are compiled side by side, and
    what wants it waits for them; afterwards it is as it was.
    """

    def __init__(self) -> None:
        self._changed = Condition()
        self._kernels = 0

    @contextmanager
    def without_strength_reduction(self) -> Iterator[None]:
        """Without it."""
        with self._changed:
            self._kernels += 1
            if self._kernels == 1:
                llvm.set_option("weft", "-disable-lsr")
        try:
            yield
        finally:
            with self._changed:
                self._kernels -= 1
                if self._kernels == 0:
                    llvm.set_option("weft", "-disable-lsr=false")
                    self._changed.notify_all()

    @contextmanager
    def with_strength_reduction(self) -> Iterator[None]:
        """With it, alone."""
        with self._changed:
            self._changed.wait_for(lambda: self._kernels == 0)
            yield


_selection = _Selection()
_machines = local()


def _target_machine(machine: Machine, opt: int) -> Any:
    """What generates code in this thread."""
    known: dict[Any, Any] = _machines.__dict__
    if (machine, opt) not in known:
        target = llvm.Target.from_triple(machine.triple)
        known[machine, opt] = target.create_target_machine(
            cpu=machine.processor, features=machine.features, opt=opt,
            reloc="static" if machine.triple.startswith("wasm") else "pic",
            codemodel="small", abiname=machine.abi,
        )  # fmt: skip
    return known[machine, opt]


_CALLED = (
    "fmod", "malloc", "free", "memcpy", "fma", "fmaf", "floor", "floorf", "ceil", "ceilf", "trunc",
    "truncf", "roundeven", "roundevenf",
)  # fmt: skip
"""What code may call beside the elementary functions: on old processors for instructions."""


def _callable_addresses() -> dict[str, int]:
    """The addresses of all functions outside that code may call, by name."""
    parallel_for = llvm.address_of_symbol(PARALLEL_FOR)  # none before there is a pool
    own = {} if parallel_for is None else {PARALLEL_FOR: int(parallel_for)}
    return _library_addresses() | own


@cache
def _library_addresses() -> dict[str, int]:
    library = ctypes.CDLL(None)
    functions = {name: getattr(library, name, None) for name in (*LIBRARY.values(), *_CALLED)}
    addresses = {
        name: ctypes.cast(function, ctypes.c_void_p).value
        for name, function in functions.items()
        if function is not None
    }
    return {name: address for name, address in addresses.items() if address is not None}


def call_kernel(
    address: int, buffers: Sequence[Array], sizes: Sequence[int], begin: int = 0, end: int = 1
) -> None:
    """Run iterations of a kernel on arrays, which must be contiguous and of the right dtype."""
    pointers = (ctypes.c_void_p * max(1, len(buffers)))(*(b.ctypes.data for b in buffers))
    numbers = (ctypes.c_int64 * max(1, len(sizes)))(*sizes)
    _SIGNATURE(address)(ctypes.addressof(pointers), ctypes.addressof(numbers), begin, end)
