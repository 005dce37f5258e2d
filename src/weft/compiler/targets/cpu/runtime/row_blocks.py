"""The native function of chains: all stages run on a block of rows before the next block begins.

Its table holds the stages, the buffers of each, and their own numbers. A buffer is one that the
call is given, or rows of a value in scratch memory, as if the whole value began before them.

>>> address() == address()
True
"""

from __future__ import annotations

from functools import cache

from weft.compiler.plan.launch import Sizes, substitute_all
from weft.compiler.plan.row_fusion import LINE, RowBlocks
from weft.compiler.targets.cpu.cache.kernels import text_addresses
from weft.compiler.targets.cpu.cache.symbols import finder
from weft.compiler.targets.cpu.runtime.grouped_launch import NumbersOf

HEAD, STAGE, ENTRY = 5, 5, 3
"""Numbers at the head of the table, of each stage, and of each buffer."""

SOURCE = f"""
declare ptr @malloc(i64)
declare void @free(ptr)
declare i64 @llvm.smin.i64(i64, i64)

define void @"weft.chain"(ptr %buffers, ptr %table, i64 %begin, i64 %end) nounwind {{
entry:
  %count = load i64, ptr %table
  %rows.at = getelementptr i64, ptr %table, i64 1
  %rows = load i64, ptr %rows.at
  %height.at = getelementptr i64, ptr %table, i64 2
  %height = load i64, ptr %height.at
  %bytes.at = getelementptr i64, ptr %table, i64 3
  %bytes = load i64, ptr %bytes.at
  %entries.at = getelementptr i64, ptr %table, i64 4
  %entries = load i64, ptr %entries.at
  %stages = getelementptr i64, ptr %table, i64 {HEAD}
  %stages.size = mul i64 %count, {STAGE}
  %list = getelementptr i64, ptr %stages, i64 %stages.size
  %pointers = alloca ptr, i64 %entries, align 8
  %more = add i64 %bytes, {2 * LINE}
  %memory = call ptr @malloc(i64 %more)
  %memory.number = ptrtoint ptr %memory to i64
  %memory.up = add i64 %memory.number, {LINE - 1}
  %scratch = and i64 %memory.up, {-LINE}
  br label %block
block:
  %b = phi i64 [%begin, %entry], [%b.next, %block.end]
  %some = icmp slt i64 %b, %end
  br i1 %some, label %fill.start, label %done
fill.start:
  %from = mul i64 %b, %height
  %until = add i64 %from, %height
  %to = call i64 @llvm.smin.i64(i64 %until, i64 %rows)
  br label %fill
fill:
  %e = phi i64 [0, %fill.start], [%e.next, %filled]
  %e.some = icmp slt i64 %e, %entries
  br i1 %e.some, label %one, label %stage
one:
  %e.off = mul i64 %e, {ENTRY}
  %e.at = getelementptr i64, ptr %list, i64 %e.off
  %number = load i64, ptr %e.at
  %target = getelementptr ptr, ptr %pointers, i64 %e
  %is.given = icmp sge i64 %number, 0
  br i1 %is.given, label %given, label %own
given:
  %given.at = getelementptr ptr, ptr %buffers, i64 %number
  %given.pointer = load ptr, ptr %given.at
  store ptr %given.pointer, ptr %target
  br label %filled
own:
  %place.at = getelementptr i64, ptr %e.at, i64 1
  %place = load i64, ptr %place.at
  %wide.at = getelementptr i64, ptr %e.at, i64 2
  %wide = load i64, ptr %wide.at
  %before = mul i64 %from, %wide
  %at = add i64 %scratch, %place
  %shifted = sub i64 %at, %before
  store i64 %shifted, ptr %target
  br label %filled
filled:
  %e.next = add i64 %e, 1
  br label %fill
stage:
  %s = phi i64 [0, %fill], [%s.next, %run]
  %s.some = icmp slt i64 %s, %count
  br i1 %s.some, label %run, label %block.end
run:
  %s.off = mul i64 %s, {STAGE}
  %s.at = getelementptr i64, ptr %stages, i64 %s.off
  %function = load ptr, ptr %s.at
  %first.at = getelementptr i64, ptr %s.at, i64 1
  %first = load i64, ptr %first.at
  %own.buffers = getelementptr ptr, ptr %pointers, i64 %first
  %sizes.at = getelementptr i64, ptr %s.at, i64 2
  %sizes = load i64, ptr %sizes.at
  %own.sizes = getelementptr i64, ptr %table, i64 %sizes
  %many.at = getelementptr i64, ptr %s.at, i64 3
  %many = load i64, ptr %many.at
  %few.at = getelementptr i64, ptr %s.at, i64 4
  %few = load i64, ptr %few.at
  %from.many = mul i64 %from, %many
  %to.many = mul i64 %to, %many
  %own.from = sdiv i64 %from.many, %few
  %own.to = sdiv i64 %to.many, %few
  call void %function(ptr %own.buffers, ptr %own.sizes, i64 %own.from, i64 %own.to)
  %s.next = add i64 %s, 1
  br label %stage
block.end:
  %b.next = add i64 %b, 1
  br label %block
done:
  call void @free(ptr %memory)
  ret void
}}
"""


@cache
def address() -> int:
    """The address of the native function, which has a kernel's signature."""
    return text_addresses(SOURCE, ["chain"])["chain"]


finder("row fusion", address)


def table(blocks: RowBlocks, sizes: Sizes, numbers_of: NumbersOf) -> list[int]:
    """What the native function is given beside the buffers of all stages."""
    height = blocks.height(sizes)
    places, used = blocks.places(sizes, height)
    stages, entries, numbers = list[int](), list[int](), list[int]()
    count = sum(len(operands) for operands in blocks.operands)
    start = HEAD + STAGE * len(blocks.stages) + ENTRY * count
    for stage, operands in zip(blocks.stages, blocks.operands, strict=True):
        function, own = numbers_of(stage.launch)
        many, few = substitute_all(stage.many, sizes), substitute_all(stage.few, sizes)
        stages += [function, len(entries) // ENTRY, start + len(numbers), many, few]
        numbers += own
        for operand in operands:
            entries += [operand, 0, 0] if isinstance(operand, int) else [-1, *places[operand]]
    return [
        len(blocks.stages),
        blocks.rows(sizes),
        height,
        used,
        count,
        *stages,
        *entries,
        *numbers,
    ]
