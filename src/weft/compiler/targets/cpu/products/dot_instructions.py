"""Products of short elements by the machine's dot instructions: two or four terms at a time.

An instruction takes *words* of 32 bits, each two terms of bfloat16 or four of 8 bits, and adds the
words' dot products to sums of float32 or int32; of other 16-bit floats a word is one term, widened
while it is packed. Everything else is as in products of float32: a
register tile, blocks, panels. Right operands are packed: word by word of terms, columns side by
side. Left operands are read as they lie if their rows are whole words, and packed alike otherwise.

Of integers the instruction multiplies unsigned left ones by signed right ones. Signed left ones
have 128 added, which flips their highest bit; what that adds to a sum depends on the column only,
and the first row of a packed panel takes it away.

>>> from weft.core.dtypes import bfloat16
>>> source(words_of(bfloat16, bfloat16)).count("define internal void @tile_")
12
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache

from weft.compiler.targets.cpu.cache.kernels import text_addresses
from weft.compiler.targets.cpu.llvm.ir_builder import KERNEL, IRBuilder
from weft.compiler.targets.cpu.llvm.ir_types import Type
from weft.compiler.targets.cpu.products.dot_packing import (
    COLUMNS,
    FLIP,
    LANES,
    Words,
    masked_moves,
    pack_plain,
    pack_turned,
    words_of,
)
from weft.compiler.targets.cpu.products.tiles import Tile, mask_lines, right_lines, stored_lines
from weft.core.dtypes import float32, int8, int32

__all__ = ["ENTRIES", "TABLE", "functions", "source", "words_of"]

ENTRIES = ("rows", "columns", "pack_plain", "pack_turned")
HEIGHTS, WIDTHS = (6, 4, 2, 1), (4, 2, 1)
"""The rows, and vectors, of the tiles that make up all sizes."""
TABLE = (
    "rows", "columns", "words", "row_step", "word_step", "a_item", "a_rows", "a_panel", "b_item",
    "b_panel", "depth", "block",
)  # fmt: skip
"""What `rows` and `columns` are given beside their buffers, in words.

row_step, word_step, a_item: how far apart neighbours, and products, are in the left operand;
a_rows, a_panel: how many rows a panel of it has, and how far apart panels are; b_item, b_panel: the
same for the right operand; depth, block: how many words and rows are multiplied at a time.
"""


@cache
def functions(words: Words) -> dict[str, int]:
    """The addresses of the functions for products of such words."""
    return text_addresses(source(words), ENTRIES)


def source(words: Words) -> str:
    """The text of the module."""
    tiles = (_tile(words, rows, vectors) for rows in HEIGHTS for vectors in WIDTHS)
    parts = [*tiles, _block(), _by_rows(), _by_columns(), pack_plain(words), pack_turned(words)]
    return "\n".join([*_declared(words), *parts, ""])


def _declared(words: Words) -> Iterator[str]:
    yield "declare void @llvm.prefetch.p0(ptr, i32, i32, i32)"
    yield "declare i64 @llvm.smin.i64(i64, i64)"
    yield "declare i64 @llvm.smax.i64(i64, i64)"
    kinds = {("i32", LANES), (words.element, LANES * words.terms)}
    if words.total is float32:
        kinds.add(("float", LANES))
        yield "declare <16 x float> @llvm.fma.v16f32(<16 x float>, <16 x float>, <16 x float>)"
        given = "<16 x float>, <32 x bfloat>, <32 x bfloat>"
        yield f"declare <16 x float> @llvm.x86.avx512bf16.dpbf16ps.512({given})"
    else:
        given = "<16 x i32>, <16 x i32>, <16 x i32>"
        yield f"declare <16 x i32> @llvm.x86.avx512.vpdpbusd.512({given})"
    for element, lanes in sorted(kinds):
        yield from masked_moves(element, lanes)


# --- tiles ---------------------------------------------------------------------------------------


def _tile(words: Words, rows: int, vectors: int) -> str:
    """A function `(a, row step, word step, b, c, c step, words, add, columns)`.

    As in `tiles`: some rows of the result by some vectors, stored or added to what is there.
    """
    tile, kind = _sums(words), Type(words.total, LANES)
    sums = [(i, j) for i in range(rows) for j in range(vectors)]
    start = [f"%first{j}" if words.lead else "zeroinitializer" for j in range(vectors)]
    lines = [
        f"define internal void @tile_{rows}_{vectors}(ptr %a, i64 %rs, i64 %ts, ptr %b, ptr %c,"
        " i64 %ldc, i64 %terms, i1 %add, i64 %columns) nounwind noinline {",
        "entry:",
        *mask_lines(tile),
        *(line for i in range(rows) for line in _strip(i)),
        f"  %ahead.off = mul i64 %rs, {rows}",
        "  %ahead = getelementptr i32, ptr %a, i64 %ahead.off",
        *(line for j in range(vectors if words.lead else 0) for line in _first(j)),
        f"  %row.0 = getelementptr i32, ptr %b, i64 {words.lead * COLUMNS}",
        "  %any = icmp sgt i64 %terms, 0",
        "  br i1 %any, label %loop, label %summed",
        "loop:",
        "  %t = phi i64 [0, %entry], [%t.next, %loop]",
        "  %at = phi i64 [0, %entry], [%at.next, %loop]",
        "  %row = phi ptr [%row.0, %entry], [%row.next, %loop]",
        *(f"  %s{i}.{j} = phi {kind.text} [{start[j]}, %entry], [%s{i}.{j}.next, %loop]"
          for i, j in sums),
        *right_lines(tile, kind, vectors),
        *(line for i in range(rows) for line in _multiplied(words, i, vectors)),
        f"  %soon.off = mul i64 %t, {rows * 4}",
        "  %soon = getelementptr i8, ptr %ahead, i64 %soon.off",
        "  call void @llvm.prefetch.p0(ptr %soon, i32 0, i32 3, i32 1)",
        "  %t.next = add nuw nsw i64 %t, 1",
        "  %at.next = add i64 %at, %ts",
        f"  %row.next = getelementptr i32, ptr %row, i64 {COLUMNS}",
        "  %more = icmp slt i64 %t.next, %terms",
        "  br i1 %more, label %loop, label %summed",
        "summed:",
        *(f"  %r{i}.{j} = phi {kind.text} [{start[j]}, %entry], [%s{i}.{j}.next, %loop]"
          for i, j in sums),
        *stored_lines(tile, kind, rows, vectors),
        "  ret void",
        "}",
    ]  # fmt: skip
    return "\n".join(lines)


def _sums(words: Words) -> Tile:
    """The tile of sums."""
    return Tile(words.total, HEIGHTS[0], WIDTHS[0], LANES, masked=True, fused=True)


def _strip(i: int) -> list[str]:
    """Where a row of the left operand, and of the result, begins."""
    return [
        f"  %a.off{i} = mul i64 %rs, {i}",
        f"  %a{i} = getelementptr i32, ptr %a, i64 %a.off{i}",
        f"  %c.off{i} = mul i64 %ldc, {i}",
        f"  %c{i} = getelementptr i32, ptr %c, i64 %c.off{i}",
    ]


def _first(j: int) -> list[str]:
    """What sums of integers begin with, unless others have begun."""
    return [
        f"  %first.at{j} = getelementptr i32, ptr %b, i64 {j * LANES}",
        f"  %first.there{j} = load <16 x i32>, ptr %first.at{j}, align 4",
        f"  %first{j} = select i1 %add, <16 x i32> zeroinitializer, <16 x i32> %first.there{j}",
    ]


def _multiplied(words: Words, i: int, vectors: int) -> Iterator[str]:
    """One row of a tile: a word of the left operand times the vectors of the right one."""
    yield f"  %x{i}.at = getelementptr i32, ptr %a{i}, i64 %at"
    yield f"  %x{i}.one = load i32, ptr %x{i}.at, align 1"
    yield f"  %x{i}.in = insertelement <16 x i32> poison, i32 %x{i}.one, i64 0"
    yield (
        f"  %x{i}.all = shufflevector <16 x i32> %x{i}.in, <16 x i32> poison, "
        "<16 x i32> zeroinitializer"
    )
    if words.total is int32:
        flip = FLIP if words.left is int8 else 0
        yield f"  %x{i} = xor <16 x i32> %x{i}.all, splat (i32 {flip})"
        for j in range(vectors):
            given = f"<16 x i32> %s{i}.{j}, <16 x i32> %x{i}, <16 x i32> %b{j}"
            yield f"  %s{i}.{j}.next = call <16 x i32> @llvm.x86.avx512.vpdpbusd.512({given})"
        return
    if words.terms == 1:
        yield f"  %x{i} = bitcast <16 x i32> %x{i}.all to <16 x float>"
        for j in range(vectors):
            given = f"<16 x float> %x{i}, <16 x float> %b{j}, <16 x float> %s{i}.{j}"
            yield f"  %s{i}.{j}.next = call <16 x float> @llvm.fma.v16f32({given})"
        return
    yield f"  %x{i} = bitcast <16 x i32> %x{i}.all to <32 x bfloat>"
    for j in range(vectors):
        yield f"  %y{i}.{j} = bitcast <16 x float> %b{j} to <32 x bfloat>"
        given = f"<16 x float> %s{i}.{j}, <32 x bfloat> %x{i}, <32 x bfloat> %y{i}.{j}"
        yield f"  %s{i}.{j}.next = call <16 x float> @llvm.x86.avx512bf16.dpbf16ps.512({given})"


# --- blocks --------------------------------------------------------------------------------------


def _block() -> str:
    """A function that makes some rows and columns of a product."""
    given = ("ptr %a", "ptr %b", "ptr %c", "ptr %sizes", "i64 %rows", "i64 %from", "i64 %to")
    out = IRBuilder("block", given)
    columns, words, row_step, word_step = (out.number("%sizes", place) for place in range(1, 5))
    panel_step, depth = (out.number("%sizes", TABLE.index(n)) for n in ("b_panel", "depth"))
    with out.loop(0, out.most(words, 1), depth) as t:
        now = out.least(out.sub(words, t), depth)
        add = out.test("sgt", t, 0)
        a = out.at("i32", "%a", out.mul(t, word_step))
        b = out.at("i32", "%b", out.mul(t, COLUMNS))
        with out.loop("%from", "%to", COLUMNS) as column:
            panel = out.at("i32", b, out.mul(out.div(column, COLUMNS), panel_step))
            left = out.least(out.sub("%to", column), COLUMNS)
            done = "0"
            for width in WIDTHS:
                rest = out.sub(out.sub(left, done), (width - 1) * LANES)
                fits = out.test("sgt", rest, 0)
                with out.when(fits):
                    tail = f"i64 {columns}, i64 {now}, i1 {add}, i64 {out.least(rest, LANES)})"
                    c = out.at("i32", "%c", out.add(column, done))
                    head = f"i64 {row_step}, i64 {word_step}, ptr {out.at('i32', panel, done)}"
                    _heights(out, width, a, row_step, head, c, columns, tail)
                done = out.add(done, out.put(f"select i1 {fits}, i64 {width * LANES}, i64 0"))
    return out.definition


def _heights(
    out: IRBuilder,
    width: int,
    a: str,
    row_step: str,
    head: str,
    c: str,
    columns: str,
    tail: str,
) -> None:
    """All rows of a block, in tiles of one width."""
    begin = "0"
    for height in HEIGHTS:
        count = out.div(out.sub("%rows", begin), height)
        end = out.add(begin, out.mul(count, height))
        with out.loop(begin, end, height) as i:
            own, to = out.at("i32", a, out.mul(i, row_step)), out.at("i32", c, out.mul(i, columns))
            out.do(f"call void @tile_{height}_{width}(ptr {own}, {head}, ptr {to}, {tail}")
        begin = end


def _by_rows() -> str:
    """The function that makes some rows of a stack of products."""
    out = IRBuilder("rows", KERNEL, public=True)
    a, b, c = (out.buffer(place) for place in range(3))
    number = {name: out.number("%sizes", place) for place, name in enumerate(TABLE)}
    row = out.variable("%begin")
    with out.repeat():
        now = row.value
        out.leave_unless(out.test("slt", now, "%end"))
        item, inside = out.div(now, number["rows"]), out.rem(now, number["rows"])
        panel, within = out.div(inside, number["a_rows"]), out.rem(inside, number["a_rows"])
        own = out.least(out.sub(number["rows"], inside), out.sub(number["a_rows"], within))
        count = out.least(out.least(own, out.sub("%end", now)), number["block"])
        start = out.at("i32", a, out.mul(item, number["a_item"]))
        start = out.at("i32", start, out.mul(panel, number["a_panel"]))
        start = out.at("i32", start, out.mul(within, number["row_step"]))
        right = out.at("i32", b, out.mul(item, number["b_item"]))
        to = out.at("i32", c, out.mul(now, number["columns"]))
        out.do(
            f"call void @block(ptr {start}, ptr {right}, ptr {to}, ptr %sizes, i64 {count}, i64 0,"
            f" i64 {number['columns']})"
        )
        row.value = out.add(now, count)
    return out.definition


def _by_columns() -> str:
    """The function that makes some panels of columns of products with few rows."""
    out = IRBuilder("columns", KERNEL, public=True)
    a, b, c = (out.buffer(place) for place in range(3))
    number = {name: out.number("%sizes", place) for place, name in enumerate(TABLE)}
    panels = out.div(out.add(number["columns"], COLUMNS - 1), COLUMNS)
    with out.loop("%begin", "%end") as p:
        item, place = out.div(p, panels), out.rem(p, panels)
        first = out.mul(place, COLUMNS)
        end = out.least(out.add(first, COLUMNS), number["columns"])
        left = out.at("i32", a, out.mul(item, number["a_item"]))
        right = out.at("i32", b, out.mul(item, number["b_item"]))
        size = out.mul(number["rows"], number["columns"])
        to = out.at("i32", c, out.mul(item, size))
        out.do(
            f"call void @block(ptr {left}, ptr {right}, ptr {to}, ptr %sizes,"
            f" i64 {number['rows']}, i64 {first}, i64 {end})"
        )
    return out.definition
