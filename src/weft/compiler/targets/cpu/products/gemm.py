"""The native functions of products: blocks of rows or columns, and the packing of right operands.

A product is a stack of [rows, terms] times [terms, columns]. The left operand is read where it is,
through strides, but for one whose rows lie side by side: of that a block is copied first, in panels
as high as a tile. The right operand is read where it is, or from panels as wide as a tile; it is
packed term by term where terms are its rows, so that this can be part of a fusion that makes them,
else by panels. Each sum runs through its terms in ascending order, `depth` of them at a time:
whatever part of a result a call makes, its elements have the same bits.

>>> from weft.compiler.targets.cpu.machine import host
>>> from weft.core.dtypes import float32
>>> sorted(functions(float32, host()))
['columns', 'pack_plain', 'pack_turned', 'rows']
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from functools import cache

from weft.compiler.targets.cpu.cache.kernels import text_symbols
from weft.compiler.targets.cpu.cache.symbols import Origin
from weft.compiler.targets.cpu.products.tiles import Tile, tile_functions, tile_name, tile_of
from weft.compiler.targets.llvm.ir_builder import (
    KERNEL,
    NULL,
    IRBuilder,
    LocalVariable,
    Operand,
    Struct,
    module_text,
)
from weft.compiler.targets.llvm.ir_types import Type
from weft.compiler.targets.llvm.machine import Machine
from weft.core.dtypes import DType
from weft.core.records import frozen

ENTRIES = ("rows", "columns", "pack_plain", "pack_turned")

_TABLE = Struct(
    "i64 rows, i64 columns, i64 terms, i64 row_step, i64 term_step, i64 a_item, i64 b_item,"
    "i64 b_step, i64 b_panel, i64 depth, i64 block, i64 copied"
)
"""What `rows` and `columns` are given beside their buffers.

row_step, term_step, a_item: how far apart neighbours, and products, are in the left operand;
b_step, b_panel, b_item: the same for terms, panels and products of the right one; depth, block: how
many terms and rows are multiplied at a time; copied: whether blocks of the left operand are copied.
"""
PANEL_GAP = 16
"""Elements between two copied panels: so that their lines fall into different sets of a cache."""
TERMS_AHEAD = 8
"""How many terms before it is copied a term is asked for: each is on a page of its own."""
_PACKING = Struct("i64 columns, i64 terms, i64 panels")


@cache
def functions(dtype: DType, machine: Machine) -> dict[str, Origin]:
    """The symbols of the functions for products of a dtype."""
    return text_symbols(source(tile_of(dtype, machine)), ENTRIES)


def source(tile: Tile) -> str:
    """The text of the module."""
    strips = {width: _strip(tile, width) for width in tile.widths}
    scratch, copy_left = _scratch(tile), _copy_left(tile)
    block = _block(tile, strips, copy_left)
    entries = [_by_rows(tile, block, scratch), _by_columns(tile, block, scratch)]
    packing = [_pack_plain(tile), _pack_turned(tile)]
    parts = [*strips.values(), scratch, copy_left, block, *entries, *packing]
    return module_text(*tile_functions(tile), *parts)


# --- products ------------------------------------------------------------------------------------


def _strip(tile: Tile, width: int) -> IRBuilder:
    """A function that makes all rows of a block, in tiles of one width, the highest first."""
    given = (
        "ptr %a", "i64 %rs", "i64 %ts", "i64 %ps", "ptr %b", "i64 %ldb", "ptr %c", "i64 %ldc",
        "i64 %terms", "i1 %add", "i64 %columns", "i64 %rows",
    )  # fmt: skip
    out = IRBuilder(f"strip_{width}", given)
    element = Type(tile.dtype).text
    a, row_step, term_step, panel_step, b, b_step, c, c_step, *sizes, rows = out.parameters
    row = out.variable(0)
    for height in tile.heights:
        function = f"@{tile_name(height, width)}"
        with out.groups(row, height, rows) as first:
            panel, inside = out.div(first, tile.rows), out.rem(first, tile.rows)
            start = out.add(out.mul(panel, panel_step), out.mul(inside, row_step))
            left = out.at(element, a, start)
            ahead = out.at(element, left, panel_step)
            to = out.at(element, c, out.mul(first, c_step))
            out.call(function, left, row_step, term_step, ahead, b, b_step, to, c_step, *sizes)
    return out


def _copy_left(tile: Tile) -> IRBuilder:
    """A function that copies a block of a left operand whose rows lie side by side.

    The copy has panels of as many rows as a tile, in each panel the rows of a term beside each
    other, so that a tile reads memory in order.
    """
    numbers = ("i64 %ps", "i64 %rows", "i64 %terms")
    out = IRBuilder("copy_left", ("ptr %a", "i64 %ts", "ptr %to", *numbers))
    a, term_step, to, panel_step, rows, terms = out.parameters
    element, size = Type(tile.dtype).text, tile.dtype.itemsize
    panels, rest = out.div(rows, tile.rows), out.rem(rows, tile.rows)
    rest_bytes = out.mul(rest, size)
    with out.loop(0, terms) as t:
        source = out.at(element, a, out.mul(t, term_step))
        later = out.at(element, source, out.mul(term_step, TERMS_AHEAD))
        target = out.at(element, to, out.mul(t, tile.rows))
        with out.loop(0, panels) as panel:  # a copy of a length that is known is a few moves
            place = out.at(element, target, out.mul(panel, panel_step))
            first = out.mul(panel, tile.rows)
            out.copy(place, out.at(element, source, first), tile.rows * size)
            out.prefetch(out.at(element, later, first))
        with out.when(out.test("sgt", rest, 0)):
            place = out.at(element, target, out.mul(panels, panel_step))
            out.copy(place, out.at(element, source, out.mul(panels, tile.rows)), rest_bytes)
    return out


def _block(tile: Tile, strips: Mapping[int, IRBuilder], copy_left: IRBuilder) -> IRBuilder:
    """`block(a, b, c, sizes, rows, from, to, scratch)`: some rows and columns of one product."""
    numbers = ("i64 %rows", "i64 %from", "i64 %to")
    given = ("ptr %a", "ptr %b", "ptr %c", "ptr %sizes", *numbers, "ptr %scratch")
    out = IRBuilder("block", given)
    a, b, c, sizes, rows, first, last, scratch = out.parameters
    element = Type(tile.dtype).text
    table = out.record(_TABLE, sizes)
    columns, inner, row_step, term_step = table.all("columns", "terms", "row_step", "term_step")
    b_step, b_panel, depth = table.all("b_step", "b_panel", "depth")
    is_copied = out.test("ne", table["copied"], 0)
    steps = out.select(is_copied, 1, row_step), out.select(is_copied, tile.rows, term_step)
    term = out.variable(0)
    with out.repeat():
        now = term.value
        terms = out.least(out.sub(inner, now), depth)
        add = out.test("sgt", now, 0)
        left = out.variable(out.at(element, a, out.mul(now, term_step)))
        right = out.at(element, b, out.mul(now, b_step))
        copied_step = out.add(out.mul(terms, tile.rows), PANEL_GAP)
        panel_step = out.select(is_copied, copied_step, out.mul(row_step, tile.rows))
        with out.when(is_copied):
            out.call(copy_left, left.value, term_step, scratch, panel_step, rows, terms)
            left.value = scratch
        column = out.variable(first)
        with out.repeat():
            here = column.value
            out.leave_unless(out.test("slt", here, last))
            inside = out.rem(here, tile.columns)
            panel = out.at(element, right, out.mul(out.div(here, tile.columns), b_panel))
            place = out.at(element, panel, inside), b_step, out.at(element, c, here), columns
            there = out.least(out.sub(last, here), out.sub(tile.columns, inside))
            operands = left.value, *steps, panel_step, *place, terms, add
            column.value = columns  # where no strip fits, which there is none of
            _call_widest(out, tile, strips, there, (operands, rows), (here, column))
        term.value = out.add(now, depth)
        out.again_if(out.test("slt", term.value, inner))
    return out


def _call_widest(
    out: IRBuilder, tile: Tile, strips: Mapping[int, IRBuilder], there: str,
    operands: tuple[Sequence[str], str], column: tuple[str, LocalVariable],
) -> None:  # fmt: skip
    """Call the widest strip of which no vector is without a column, and go on behind it."""
    (given, rows), (here, following) = operands, column
    with ExitStack() as narrower:
        for width, strip in strips.items():
            rest = out.sub(there, (width - 1) * tile.lanes)
            fits, others = narrower.enter_context(out.choose(out.test("sgt", rest, 0)))
            with fits:
                out.call(strip, *given, out.least(rest, tile.lanes), rows)
                following.value = out.add(here, width * tile.lanes)
            narrower.enter_context(others)


def _scratch(tile: Tile) -> IRBuilder:
    """`scratch(buffers, sizes)`: memory for a block of the left operand, if blocks are copied."""
    out = IRBuilder("scratch", KERNEL[:2], result="ptr")
    depth, block, copied = out.record(_TABLE, "%sizes").all("depth", "block", "copied")
    with out.when(out.test("eq", copied, 0)):
        out.give(NULL)
    panels = out.div(out.add(block, tile.rows - 1), tile.rows)
    panel = out.add(out.mul(depth, tile.rows), PANEL_GAP)
    size = out.mul(out.mul(panels, panel), tile.dtype.itemsize)
    out.give(out.call("malloc", size, result="ptr"))
    return out


def _by_rows(tile: Tile, block: IRBuilder, scratch: IRBuilder) -> IRBuilder:
    """`rows(...)`: some rows of a stack of products, in blocks that end where a product does."""
    out = IRBuilder("rows", KERNEL, public=True)
    buffers, sizes, begin, end = out.parameters
    a, b, c = (out.buffer(place) for place in range(3))
    table = out.record(_TABLE, sizes)
    rows, columns, row_step = table.all("rows", "columns", "row_step")
    a_item, b_item, height = table.all("a_item", "b_item", "block")
    element, memory = Type(tile.dtype).text, out.call(scratch, buffers, sizes)
    row = out.variable(begin)
    with out.repeat():
        now = row.value
        out.leave_unless(out.test("slt", now, end))
        item, inside = out.div(now, rows), out.rem(now, rows)
        there = out.least(out.sub(end, now), out.sub(rows, inside))
        count = out.least(there, height)
        start = out.add(out.mul(item, a_item), out.mul(inside, row_step))
        left, right = out.at(element, a, start), out.at(element, b, out.mul(item, b_item))
        to = out.at(element, c, out.mul(now, columns))
        out.call(block, left, right, to, sizes, count, 0, columns, memory)
        row.value = out.add(now, count)
    out.free(memory)
    return out


def _by_columns(tile: Tile, block: IRBuilder, scratch: IRBuilder) -> IRBuilder:
    """`columns(...)`: some panels of columns of a stack of products with few rows."""
    out = IRBuilder("columns", KERNEL, public=True)
    buffers, sizes, begin, end = out.parameters
    a, b, c = (out.buffer(place) for place in range(3))
    table = out.record(_TABLE, sizes)
    rows, columns, a_item, b_item = table.all("rows", "columns", "a_item", "b_item")
    panels = out.div(out.sub(out.add(columns, tile.columns), 1), tile.columns)
    element, memory = Type(tile.dtype).text, out.call(scratch, buffers, sizes)
    with out.loop(begin, end) as panel:
        item, number = out.div(panel, panels), out.rem(panel, panels)
        first = out.mul(number, tile.columns)
        last = out.least(out.add(first, tile.columns), columns)
        left = out.at(element, a, out.mul(item, a_item))
        right = out.at(element, b, out.mul(item, b_item))
        to = out.at(element, c, out.mul(out.mul(item, rows), columns))
        out.call(block, left, right, to, sizes, rows, first, last, memory)
    out.free(memory)
    return out


# --- packing -------------------------------------------------------------------------------------


def _pack_plain(tile: Tile) -> IRBuilder:
    """`pack_plain(...)`: some terms of a stack of right operands, whose rows are terms."""
    out = IRBuilder("pack_plain", KERNEL, public=True)
    _, sizes, begin, end = out.parameters
    b, packed = out.buffer(0), out.buffer(1)
    columns, terms, panels = out.record(_PACKING, sizes).all(*_PACKING.names)
    element, size = Type(tile.dtype).text, tile.dtype.itemsize
    term = out.variable(begin)
    with out.repeat():
        now = term.value
        out.leave_unless(out.test("slt", now, end))
        item, first = out.div(now, terms), out.rem(now, terms)
        count = out.least(out.sub(end, now), out.sub(terms, first))
        source = out.at(element, b, out.mul(now, columns))
        before = out.mul(item, panels)
        with out.loop(0, panels) as panel:
            column = out.mul(panel, tile.columns)
            wanted = out.least(out.sub(columns, column), tile.columns)
            wanted_bytes = out.mul(wanted, size)
            is_whole = out.test("eq", wanted, tile.columns)
            start = out.at(element, source, column)
            place = out.add(out.mul(out.add(before, panel), terms), first)
            to = out.at(element, packed, out.mul(place, tile.columns))
            with out.loop(0, count) as t:
                own = out.at(element, start, out.mul(t, columns))
                target = out.at(element, to, out.mul(t, tile.columns))
                with out.choose(is_whole) as (whole, part):
                    with whole:  # a copy of a length that is known is a few moves
                        out.copy(target, own, tile.columns * size)
                    with part:
                        out.copy(target, own, wanted_bytes)
        term.value = out.add(now, count)
    return out


def _pack_turned(tile: Tile) -> IRBuilder:
    """`pack_turned(...)`: some panels of a stack of right operands, whose rows are columns.

    Squares of a vector's width turn; the last one may overlap the one before. Where there are fewer
    terms than that, elements move one by one. What lies beyond the last column repeats it.
    """
    out = IRBuilder("pack_turned", KERNEL, public=True)
    _, sizes, begin, end = out.parameters
    b, packed = out.buffer(0), out.buffer(1)
    columns, terms, panels = out.record(_PACKING, sizes).all(*_PACKING.names)
    element, lanes = Type(tile.dtype).text, tile.lanes
    item_size, panel_size = out.mul(terms, columns), out.mul(terms, tile.columns)
    with out.loop(begin, end) as panel:
        item, number = out.div(panel, panels), out.rem(panel, panels)
        first = out.mul(number, tile.columns)
        wanted = out.least(out.sub(columns, first), tile.columns)
        source = out.at(element, b, out.mul(item, item_size))
        to = out.at(element, packed, out.mul(panel, panel_size))
        is_long, back = out.test("sge", terms, lanes), out.sub(terms, lanes)
        last = out.sub(columns, 1)
        with out.loop(0, wanted, lanes) as inside:
            column = out.add(first, inside)
            line = _Line(source, column, last, terms, to, inside)
            with out.choose(is_long) as (squares, elements):
                with squares, out.loop(0, terms, lanes) as t:
                    _turn_square(out, tile, line, out.least(t, back))
                with elements, out.loop(0, out.mul(terms, lanes)) as e:
                    term, lane = out.div(e, lanes), out.rem(e, lanes)
                    place = out.add(line.row(out, lane), term)
                    value = out.load(element, out.at(element, source, place))
                    target = out.add(out.mul(term, tile.columns), out.add(inside, lane))
                    out.store(value, out.at(element, to, target))
    return out


@frozen
class _Line:
    """As many columns as a vector has lanes, which are packed together."""

    source: str
    column: str
    last: str
    """The last column that there is."""
    terms: str
    to: str
    inside: str
    """The first of the columns in its panel."""

    def row(self, out: IRBuilder, lane: Operand) -> str:
        """Where the terms of a column begin."""
        return out.mul(out.least(out.add(self.column, lane), self.last), self.terms)


def _turn_square(out: IRBuilder, tile: Tile, line: _Line, term: str) -> None:
    """Turn a square of the right operand."""
    lanes, element = tile.lanes, Type(tile.dtype).text
    kind, align = Type(tile.dtype, lanes).text, tile.dtype.itemsize
    rows = (out.add(line.row(out, i), term) for i in range(lanes))
    vectors = [out.load(kind, out.at(element, line.source, row), align) for row in rows]
    for i, vector in enumerate(turn_vectors(out, kind, vectors)):
        place = out.add(out.mul(out.add(term, i), tile.columns), line.inside)
        out.store(vector, out.at(element, line.to, place), align=align)


def turn_vectors(out: IRBuilder, kind: str, vectors: Sequence[str]) -> Sequence[str]:
    """The columns of a square of vectors: in each round the first half is woven into the second."""
    lanes = len(vectors)
    for _ in range(lanes.bit_length() - 1):
        halves = [(vectors[i // 2], vectors[i // 2 + lanes // 2]) for i in range(lanes)]
        vectors = [
            out.put(f"shufflevector {kind} {a}, {kind} {b}, {_weaving_order(lanes, i % 2)}", kind)
            for i, (a, b) in enumerate(halves)
        ]
    return vectors


def _weaving_order(lanes: int, half: int) -> str:
    """The order that takes lanes of two vectors in turn, from the first or the second half."""
    chosen = [half * lanes // 2 + i // 2 + (lanes if i % 2 else 0) for i in range(lanes)]
    return f"<{lanes} x i32> <" + ", ".join(f"i32 {lane}" for lane in chosen) + ">"
