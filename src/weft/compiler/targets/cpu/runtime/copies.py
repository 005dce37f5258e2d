"""Copies: a result that begins as an operand, and is then changed in places.

A copy is a call of its own, so that it can be left out: where the result has taken the operand's
place, in the program's memory or in the caller's own array, both have one address, and nothing is
done. Only otherwise is the pool called.

>>> import numpy as np
>>> from weft.compiler.targets.cpu.engine import call_kernel
>>> source, target = np.arange(3.0), np.zeros(3)
>>> call_kernel(copy_address(), [source, target], copy_numbers(24))
>>> target.tolist()
[0.0, 1.0, 2.0]
"""

from __future__ import annotations

from functools import cache

from weft.compiler.targets.cpu.cache.kernels import text_addresses
from weft.compiler.targets.cpu.cache.symbols import finder
from weft.compiler.targets.cpu.runtime.thread_pool import thread_pool
from weft.compiler.targets.llvm.ir_builder import KERNEL, IRBuilder, module_text

CHUNK = 1 << 20
"""The bytes that a thread copies at a time."""


def _copy_chunks() -> IRBuilder:
    """`copy_chunks(...)`: some chunks of an array; the last one may be shorter."""
    out = IRBuilder("copy_chunks", KERNEL, may_unwind=True)
    buffers, sizes, begin, end = out.parameters
    source, target, size = out.load("ptr", buffers), out.pointer(buffers, 1), out.load("i64", sizes)
    first = out.mul(begin, CHUNK)
    length = out.sub(out.least(out.mul(end, CHUNK), size), first)
    out.copy(out.at("i8", target, first), out.at("i8", source, first), length)
    return out


def _copy(copy_chunks: IRBuilder) -> IRBuilder:
    """`copy(...)`: the whole array, unless it is there already."""
    out = IRBuilder("copy", KERNEL, public=True, may_unwind=True)
    buffers, sizes, _, _ = out.parameters
    with out.when(out.test("eq", out.load("ptr", buffers), out.pointer(buffers, 1))):
        out.give()
    chunks, parallel_for = out.number(sizes, 1), out.pointer(sizes, 2)
    with out.choose(out.test("sgt", chunks, 1)) as (divided, whole):
        with divided:
            out.call(parallel_for, copy_chunks.symbol, buffers, sizes, chunks, 1)
        with whole:
            out.call(copy_chunks, buffers, sizes, 0, chunks)
    return out


def copy_numbers(size: int) -> list[int]:
    """What the native function is given for so many bytes."""
    return [size, -(-size // CHUNK), thread_pool().address]


@cache
def copy_address() -> int:
    """The address of the native function, which has a kernel's signature."""
    chunks = _copy_chunks()
    return text_addresses(module_text(chunks, _copy(chunks)), ["copy"])["copy"]


finder("copy", copy_address)
