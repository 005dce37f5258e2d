"""Copies: a result that begins as an operand, and is then changed in places.

A copy is a call of its own, so that it can be left out: where the result has taken the operand's
place, in the program's memory or in the caller's own array, both have one address, and nothing is
done. Only otherwise is the pool called.

>>> import numpy as np
>>> from weft.compiler.targets.cpu.llvm.engine import call_kernel
>>> source, target = np.arange(3.0), np.zeros(3)
>>> call_kernel(copy_address(), [source, target], numbers(24))
>>> target.tolist()
[0.0, 1.0, 2.0]
"""

from __future__ import annotations

from functools import cache

from weft.compiler.targets.cpu.cache.kernels import text_addresses
from weft.compiler.targets.cpu.cache.symbols import finder
from weft.compiler.targets.cpu.runtime.thread_pool import thread_pool

CHUNK = 1 << 20
"""The bytes that a thread copies at a time."""

SOURCE = f"""
declare void @llvm.memcpy.p0.p0.i64(ptr, ptr, i64, i1)
declare i64 @llvm.smin.i64(i64, i64)

define internal void @copy_chunks(ptr %buffers, ptr %sizes, i64 %begin, i64 %end) {{
  %source = load ptr, ptr %buffers
  %target.at = getelementptr ptr, ptr %buffers, i64 1
  %target = load ptr, ptr %target.at
  %bytes = load i64, ptr %sizes
  %from = mul i64 %begin, {CHUNK}
  %until = mul i64 %end, {CHUNK}
  %to = call i64 @llvm.smin.i64(i64 %until, i64 %bytes)
  %length = sub i64 %to, %from
  %first = getelementptr i8, ptr %source, i64 %from
  %place = getelementptr i8, ptr %target, i64 %from
  call void @llvm.memcpy.p0.p0.i64(ptr %place, ptr %first, i64 %length, i1 false)
  ret void
}}

define void @"weft.copy"(ptr %buffers, ptr %sizes, i64 %begin, i64 %end) {{
entry:
  %source = load ptr, ptr %buffers
  %target.at = getelementptr ptr, ptr %buffers, i64 1
  %target = load ptr, ptr %target.at
  %is.there = icmp eq ptr %source, %target
  br i1 %is.there, label %done, label %move
move:
  %chunks.at = getelementptr i64, ptr %sizes, i64 1
  %chunks = load i64, ptr %chunks.at
  %pool.at = getelementptr i64, ptr %sizes, i64 2
  %pool = load ptr, ptr %pool.at
  %is.long = icmp sgt i64 %chunks, 1
  br i1 %is.long, label %divided, label %whole
divided:
  call void %pool(ptr @copy_chunks, ptr %buffers, ptr %sizes, i64 %chunks, i64 1)
  br label %done
whole:
  call void @copy_chunks(ptr %buffers, ptr %sizes, i64 0, i64 %chunks)
  br label %done
done:
  ret void
}}
"""


def numbers(size: int) -> list[int]:
    """What the native function is given for so many bytes."""
    return [size, -(-size // CHUNK), thread_pool().address]


@cache
def copy_address() -> int:
    """The address of the native function, which has a kernel's signature."""
    return text_addresses(SOURCE, ["copy"])["copy"]


finder("copy", copy_address)
