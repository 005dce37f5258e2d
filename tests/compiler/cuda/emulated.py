"""A card made of the CPU's threads: what kernels do in teams, tried where there is no card.

The text of a kernel is compiled for the CPU, with a card's own instructions replaced: the number of
a thread is an argument, and lanes exchange values and wait for each other in Python. Blocks run one
after the other, as their shared memory is one. It is slow, and for small arrays. Every access to
memory is written down, and two that nothing puts in order are an error (`races`).
"""

from __future__ import annotations

import ctypes
import re
from collections.abc import Sequence
from functools import cache
from threading import Barrier, Thread
from typing import Any

import llvmlite.binding as llvm
import numpy as np
from tests.compiler.cuda.races import Accesses, note_wait, observe_accesses

from weft.compiler.targets.cpu.machine import host
from weft.compiler.targets.cuda.device_text import TextKernel
from weft.compiler.targets.cuda.emit import emit_device_module, scratch_bytes, symbol
from weft.compiler.targets.cuda.machine import WARP
from weft.compiler.targets.cuda.schedule import Schedule, schedule, scratch_of_all
from weft.compiler.targets.cuda.splitting import split_kernel
from weft.ir.loops import Kernel, evaluate

Array = np.ndarray[Any, Any]
PATIENCE = 200.0
"""Seconds after which threads that wait for each other are an error."""
_REPLACED = (
    (r"= external addrspace\(3\) global \[0 x float\]", "= internal global [65536 x float] poison"),
    (r"target datalayout = .*\n", ""),
    (r'target triple = ".*"\n', ""),
    (r"declare .*@llvm\.nvvm\..*\n", ""),
    (r'  call void asm sideeffect "prefetch.*\n', ""),
    (r"define ptx_kernel void @(\S+)\(", r"define void @\1(i32 %thread, i32 %block, "),
    (r" ?addrspace\(\d\)", ""),
    (r"addrspacecast ptr (\S+) to ptr", r"getelementptr i8, ptr \1, i64 0"),
    (r"call i32 @llvm\.nvvm\.read\.ptx\.sreg\.tid\.x\(\)", "add i32 %thread, 0"),
    (r"call i32 @llvm\.nvvm\.read\.ptx\.sreg\.ctaid\.x\(\)", "add i32 %block, 0"),
    (
        r"@llvm\.nvvm\.shfl\.sync\.bfly\.i32\(i32 -1, (i32 \S+), (i32 \d+), i32 31\)",
        r"@emulated_shuffle(i32 %thread, \1, \2)",
    ),
    (r"@llvm\.nvvm\.bar\.warp\.sync\(i32 -1\)", "@emulated_wait(i32 %thread, i32 1)"),
    (
        r"@llvm\.nvvm\.barrier\.cta\.sync\.aligned\.all\(i32 0\)",
        "@emulated_wait(i32 %thread, i32 0)",
    ),
    (r'call float asm "ex2[^"]*", "=f,f"\(', "call float @llvm.exp2.f32("),
    (r'call float asm "rcp[^"]*", "=f,f"\((float \S+)\)', r"fdiv \1"),
    (r"= fptrunc double (\S+) to half", r"= call half @emulated_half(double \1)"),
    (r"= fptrunc double (\S+) to bfloat", r"= call bfloat @emulated_narrow(double \1)"),
    (r"= fptrunc float (\S+) to bfloat", r"= call bfloat @emulated_bfloat(float \1)"),
)
"""What stands in a card's text, and what the CPU has instead."""
_DECLARED = "declare i32 @emulated_shuffle(i32, i32, i32)\ndeclare void @emulated_wait(i32, i32)\n"
# The CPU has no instructions for these; one function that is missing makes all of them null.
_DECLARED += """\
define internal half @emulated_half(double %wide) {
  %float = fptrunc double %wide to float
  %half = fptrunc float %float to half
  ret half %half
}
define internal bfloat @emulated_bfloat(float %wide) {
  %bits = bitcast float %wide to i32
  %shifted = lshr i32 %bits, 16
  %odd = and i32 %shifted, 1
  %even = add i32 %odd, 32767
  %rounded = add i32 %bits, %even
  %is_number = fcmp ord float %wide, %wide
  %kept = select i1 %is_number, i32 %rounded, i32 2143289344
  %upper = lshr i32 %kept, 16
  %short = trunc i32 %upper to i16
  %bfloat = bitcast i16 %short to bfloat
  ret bfloat %bfloat
}
define internal bfloat @emulated_narrow(double %wide) {
  %float = fptrunc double %wide to float
  %bfloat = call bfloat @emulated_bfloat(float %float)
  ret bfloat %bfloat
}
"""
_SHUFFLE = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_int)
_WAIT = ctypes.CFUNCTYPE(None, ctypes.c_int, ctypes.c_int)


class _Block:
    """What the threads of the block that runs do together."""

    def __init__(self, threads: int) -> None:
        self.values = [0] * threads
        self.whole = Barrier(threads, timeout=PATIENCE)
        self.warps = [
            Barrier(min(WARP, threads - start), timeout=PATIENCE)
            for start in range(0, threads, WARP)
        ]

    def shuffle(self, thread: int, value: int, distance: int) -> int:
        """The value of the lane whose number differs in one bit."""
        self.values[thread] = value
        self.warps[thread // WARP].wait()
        found = self.values[thread ^ distance]
        self.warps[thread // WARP].wait()
        return found

    def wait(self, thread: int, is_warp: int) -> None:
        """No thread goes on before all are here."""
        (self.warps[thread // WARP] if is_warp else self.whole).wait()
        note_wait(thread, bool(is_warp))


_running: list[_Block] = []
_shuffle = _SHUFFLE(lambda thread, value, far: _running[-1].shuffle(thread, value, far))
_wait = _WAIT(lambda thread, is_warp: _running[-1].wait(thread, is_warp))


def _reciprocals(text: str) -> str:
    """`fdiv float x` as 1 over x."""
    return re.sub(r"fdiv float (\S+)$", r"fdiv float 1.0, \1", text, flags=re.MULTILINE)


def _compiled(kernel: Kernel) -> tuple[Any, int]:
    return _compiled_text(emit_device_module([kernel]), symbol(kernel.name))


def _compiled_text(text: str, name: str) -> tuple[Any, int]:
    for pattern, instead in _REPLACED:
        text = re.sub(pattern, instead, text)
    llvm.add_symbol("emulated_shuffle", ctypes.cast(_shuffle, ctypes.c_void_p).value)
    llvm.add_symbol("emulated_wait", ctypes.cast(_wait, ctypes.c_void_p).value)
    target = llvm.Target.from_triple(host().triple).create_target_machine(
        cpu=host().processor, features=host().features, opt=1, jit=True
    )
    text = observe_accesses(_DECLARED + _reciprocals(text))
    engine = llvm.create_mcjit_compiler(llvm.parse_assembly(text), target)
    engine.finalize_object()
    return engine, engine.get_function_address(name)


_kept_code = cache(_compiled_text)


def run_text_kernel(kernel: TextKernel, blocks: int, given: Sequence[int]) -> None:
    """Run a kernel in LLVM's language, given the addresses and numbers of its parameters."""
    _, address = _kept_code(kernel.text, kernel.name)
    kinds = [ctypes.c_int64] * len(given)
    function = ctypes.CFUNCTYPE(None, ctypes.c_int, ctypes.c_int, *kinds)(address)
    _run_blocks(function, blocks, kernel.threads, list(given))


def _run_blocks(function: Any, blocks: int, count: int, given: list[int]) -> None:
    """Run blocks one after the other, each of so many threads of the CPU."""
    accesses = Accesses()
    for block in range(blocks):
        accesses.begin_block()
        _running.append(_Block(count))
        threads = [Thread(target=function, args=(thread, block, *given)) for thread in range(count)]
        for each in threads:
            each.start()
        for each in threads:
            each.join()
        done = _running.pop()
        if any(barrier.broken for barrier in (done.whole, *done.warps)):
            raise AssertionError("threads waited for others that did not come")
        accesses.end_block(block)
    accesses.check()


def _launch(plan: Schedule, arrays: Sequence[Array], sizes: dict[str, int]) -> None:
    engine, address = _compiled(plan.kernel)
    pointers = [array.ctypes.data for array in arrays]
    numbers = [sizes[name] for name in plan.kernel.sizes]
    scratch = np.zeros(scratch_of_all(plan, sizes) if scratch_bytes(plan) is None else 0, np.int8)
    given = [*pointers, *numbers, *([scratch.ctypes.data] if scratch.size else [])]
    kinds = [ctypes.c_void_p] * len(pointers) + [ctypes.c_int64] * (len(given) - len(pointers))
    function = ctypes.CFUNCTYPE(None, ctypes.c_int, ctypes.c_int, *kinds)(address)
    _run_blocks(function, plan.blocks(sizes), plan.block, given)
    del engine


def run_emulated(kernel: Kernel, arrays: Sequence[Array], sizes: Sequence[int] = ()) -> list[Array]:
    """Run a kernel's launches on copies of arrays; the copies."""
    named = dict(zip(kernel.sizes, sizes, strict=True))
    parts = split_kernel(kernel)
    between = [
        np.zeros(max(1, evaluate(count, named)), buffer.dtype.numpy)
        for buffer, count in parts.between
    ]
    results = [np.ascontiguousarray(array).copy() for array in arrays]
    for number, part in enumerate(parts.kernels):
        renamed = Kernel(f"part{number}", part.buffers, part.sizes, part.body, part.scratch)
        _launch(schedule(renamed), [*results, *between], named)
    return results
