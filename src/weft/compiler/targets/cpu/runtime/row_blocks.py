"""The native function of row fusions: a block of rows goes through all stages, then the next one.

Its table holds the stages, the buffers of each, and their own numbers. A buffer is one that the
call is given, or rows of a value in scratch memory, as if the whole value began before them.

>>> address() == address()
True
"""

from __future__ import annotations

from functools import cache

from weft.compiler.plan.launch import Sizes, substitute_all
from weft.compiler.plan.row_fusion import RowBlocks
from weft.compiler.targets.cpu.cache.kernels import text_addresses
from weft.compiler.targets.cpu.cache.symbols import finder
from weft.compiler.targets.cpu.runtime.grouped_launch import NumbersOf
from weft.compiler.targets.llvm.ir_builder import (
    KERNEL,
    IRBuilder,
    Record,
    Struct,
    module_text,
)

_HEAD = Struct("i64 stages, i64 rows, i64 height, i64 bytes, i64 entries")
_STAGE = Struct("ptr function, i64 first, i64 sizes, i64 many, i64 few")
_ENTRY = Struct("i64 number, i64 place, i64 width")
HEAD, STAGE, ENTRY = (len(each.names) for each in (_HEAD, _STAGE, _ENTRY))
"""Numbers at the head of the table, of each stage, and of each buffer."""


def _row_blocks() -> IRBuilder:
    """`row_blocks(...)`: some blocks of rows; each goes through all stages."""
    out = IRBuilder("row_blocks", KERNEL, public=True)
    buffers, table, begin, end = out.parameters
    count, rows, height, size, entries = out.record(_HEAD, table).all(*_HEAD.names)
    stages = out.at("i64", table, HEAD)
    pointers = out.room("ptr", entries)
    scratch, memory = out.memory(size)
    with out.loop(begin, end) as block:
        first = out.mul(block, height)
        last = out.least(out.add(first, height), rows)
        with out.loop(0, entries) as i:
            entry = out.record(_ENTRY, out.at(_STAGE.text, stages, count), i)
            _point(out, entry, buffers, scratch, first, out.at("ptr", pointers, i))
        with out.loop(0, count) as i:
            stage = out.record(_STAGE, stages, i)
            function, place, sizes, many, few = stage.all(*_STAGE.names)
            # A stage has `many` iterations of its own for each `few` rows.
            own_first, own_last = (out.div(out.mul(row, many), few) for row in (first, last))
            own = out.at("ptr", pointers, place)
            out.call(function, own, out.at("i64", table, sizes), own_first, own_last)
    out.free(memory)
    return out


def _point(
    out: IRBuilder, entry: Record, buffers: str, scratch: str, first: str, target: str
) -> None:
    """Write the address of a buffer: one that is given, or scratch memory for rows from one on."""
    number = entry["number"]
    with out.choose(out.test("sge", number, 0)) as (given, own):
        with given:
            out.store(out.pointer(buffers, number), target)
        with own:
            place, width = entry["place"], entry["width"]
            start = out.at("i8", scratch, out.sub(place, out.mul(first, width)))
            out.store(start, target)


def source() -> str:
    """The text of the module."""
    return module_text(_row_blocks())


@cache
def address() -> int:
    """The address of the native function, which has a kernel's signature."""
    return text_addresses(source(), ["row_blocks"])["row_blocks"]


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
