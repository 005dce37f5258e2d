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

from collections.abc import Sequence
from functools import cache

from weft.compiler.targets.cpu.cache.kernels import text_symbols
from weft.compiler.targets.cpu.cache.symbols import Origin
from weft.compiler.targets.cpu.products.dot_packing import (
    COLUMNS,
    FLIP,
    LANES,
    Words,
    dot_of_bytes,
    pack_plain,
    pack_turned,
    words_of,
)
from weft.compiler.targets.cpu.products.tiles import ZEROS, Sums, Tile
from weft.compiler.targets.llvm.ir_builder import KERNEL, IRBuilder, LocalVariable, module_text
from weft.compiler.targets.llvm.ir_types import Type
from weft.core.dtypes import int8, int32

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
def functions(words: Words) -> dict[str, Origin]:
    """The symbols of the functions for products of such words."""
    return text_symbols(source(words), ENTRIES)


def source(words: Words) -> str:
    """The text of the module."""
    tiles = (_tile(words, rows, vectors) for rows in HEIGHTS for vectors in WIDTHS)
    parts = [*tiles, _block(), _by_rows(), _by_columns(), pack_plain(words), pack_turned(words)]
    return module_text(*parts)


# --- tiles ---------------------------------------------------------------------------------------


def _tile(words: Words, rows: int, vectors: int) -> IRBuilder:
    """A function `(a, row step, word step, b, c, c step, words, add, columns)`.

    As in `tiles`: some rows of the result by some vectors, stored or added to what is there.
    """
    given = (
        "ptr %a", "i64 %rs", "i64 %ts", "ptr %b", "ptr %c", "i64 %ldc", "i64 %terms", "i1 %add",
        "i64 %columns",
    )  # fmt: skip
    out = IRBuilder(f"tile_{rows}_{vectors}", given)
    a, row_step, word_step, b, c, c_step, terms, add, columns = out.parameters
    tile = Tile(words.total, HEIGHTS[0], WIDTHS[0], LANES, masked=True, fused=True)
    start = [_first_sum(out, b, add, j) if words.lead else ZEROS for j in range(vectors)]
    sums = Sums(out, tile, rows, columns, start)
    at = sums.v.at
    starts = [(at(a, out.mul(row_step, i)), at(c, out.mul(c_step, i))) for i in range(rows)]
    ahead = at(a, out.mul(row_step, rows))
    with out.when(out.test("sgt", terms, 0)):
        term, offset = out.variable(0), out.variable(0)
        row = out.variable(at(b, words.lead * COLUMNS))
        with out.repeat():
            right = sums.right_vectors(row.value)
            for (left, _), totals in zip(starts, sums.totals, strict=True):
                _multiply(out, words, at(left, offset.value), right, totals)
            out.prefetch(out.at("i8", ahead, out.mul(term.value, rows * 4)))
            term.value = out.count_up(term.value)
            offset.value = out.add(offset.value, word_step)
            row.value = at(row.value, COLUMNS)
            out.again_if(out.test("slt", term.value, terms))
    sums.store([to for _, to in starts], add)
    return out


def _first_sum(out: IRBuilder, b: str, add: str, j: int) -> str:
    """What sums of integers begin with, unless others have begun."""
    there = out.load("<16 x i32>", out.at("i32", b, j * LANES), align=4)
    return out.put(f"select i1 {add}, <16 x i32> zeroinitializer, <16 x i32> {there}", "<16 x i32>")


def _multiply(
    out: IRBuilder, words: Words, place: str, right: Sequence[str], totals: Sequence[LocalVariable]
) -> None:
    """One row of a tile: a word of the left operand times the vectors of the right one."""
    x = out.splat(out.load("i32", place, align=1), Type(int32, LANES))
    if words.total is int32:
        flip = FLIP if words.left is int8 else 0
        x = out.put(f"xor <16 x i32> {x}, splat (i32 {flip})")
    else:
        wide = "<16 x float>" if words.terms == 1 else "<32 x bfloat>"
        x = out.put(f"bitcast <16 x i32> {x} to {wide}")
    for total, y in zip(totals, right, strict=True):
        total.value = _multiply_add(out, words, x, y, total.value)


def _multiply_add(out: IRBuilder, words: Words, x: str, y: str, total: str) -> str:
    """The machine's instruction: dot products of words, added to sums."""
    if words.total is int32:
        return dot_of_bytes(out, total, x, y)
    wide = "<16 x float>"
    if words.terms == 1:
        given = [f"{wide} {each}" for each in (x, y, total)]
        return out.call("llvm.fma.v16f32", *given, result=wide)
    y = out.put(f"bitcast {wide} {y} to <32 x bfloat>")
    given = [f"{wide} {total}", f"<32 x bfloat> {x}", f"<32 x bfloat> {y}"]
    return out.call("llvm.x86.avx512bf16.dpbf16ps.512", *given, result=wide)


# --- blocks --------------------------------------------------------------------------------------


def _block() -> IRBuilder:
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
                done = out.add(done, out.select(fits, width * LANES, 0))
    return out


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


def _by_rows() -> IRBuilder:
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
    return out


def _by_columns() -> IRBuilder:
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
    return out
