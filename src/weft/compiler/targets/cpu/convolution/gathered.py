"""The native functions of direct convolutions: products whose operands are found through tables.

A block of output places, of some rows of an image or of several images, is made at a time. What
its windows see is copied into a *frame* in scratch memory, with zeros for padding; then each place
is a row of a product, whose left operand is read in the frame: at the offset of the row plus the
offset of the term, both from tables. So strides, dilation and padding cost nothing in the inner
loop, and no patch is copied. The gradient of the input is the same product with other tables, one
for each phase of the stride; the gradient of the weights has taps as rows and places as terms.

>>> from weft.compiler.targets.cpu.machine import host
>>> from weft.core.dtypes import float32
>>> sorted(functions(float32, host()))
['direct', 'weights', 'winograd', 'winograd_weights']
"""

from __future__ import annotations

from functools import cache

from weft.compiler.targets.cpu.cache.kernels import text_symbols
from weft.compiler.targets.cpu.cache.symbols import Origin
from weft.compiler.targets.cpu.convolution.frames import (
    FRAME,
    frame_bytes,
    frame_function,
    named_numbers,
    place_block,
)
from weft.compiler.targets.cpu.convolution.winograd import winograd_functions
from weft.compiler.targets.cpu.products.tiles import ZEROS, Sums, Tile, tile_of
from weft.compiler.targets.llvm.ir_builder import KERNEL, IRBuilder, Struct, module_text
from weft.compiler.targets.llvm.ir_types import Type
from weft.compiler.targets.llvm.machine import Machine
from weft.core.dtypes import DType

ENTRIES = ("direct", "weights", "winograd", "winograd_weights")
DIRECT = (
    *FRAME, "y_image", "y_step", "groups", "x_group", "w_group", "w_panel", "y_group", "columns",
    "depth", "parts", "phases",
)  # fmt: skip
"""What `direct` is told; each phase follows with `PHASE`, then come the tables."""
PHASE = ("count", "rest", "rows_at", "terms_at", "terms")
WEIGHTS = (
    *FRAME, "y_image", "y_step", "groups", "x_group", "w_group", "y_group", "columns", "y_pixel",
    "splits", "slices", "taps", "rows_at", "terms_at", "rest", "w_size",
)  # fmt: skip
"""What `weights` is told; the tables follow."""
_OFFSETS = Struct("i64 left, i64 other")
"""A row of a table: an offset in the left operand, and one in the result or the right operand."""


@cache
def functions(dtype: DType, machine: Machine) -> dict[str, Origin]:
    """The symbols of the functions for a dtype."""
    return text_symbols(source(tile_of(dtype, machine)), ENTRIES)


def source(tile: Tile) -> str:
    """The text of the module."""
    tiles = [_tile(tile, rows, vectors) for rows in tile.heights for vectors in tile.widths]
    strips = [_strip(tile, vectors) for vectors in tile.widths]
    own = [
        _product(tile),
        frame_function(tile),
        _direct_convolution(tile),
        _weights(tile),
        *winograd_functions(tile),
    ]
    return module_text(*tiles, *strips, *own)


GIVEN = "ptr %a, ptr %rows, ptr %terms, ptr %b, ptr %c"


def _tile(tile: Tile, rows: int, vectors: int) -> IRBuilder:
    """A register tile: `rows` are pairs of offsets of a row in a and in c, `terms` in a and b."""
    given = (*GIVEN.split(", "), "i64 %count", "i1 %add", "i64 %columns")
    out = IRBuilder(f"gather_{rows}_{vectors}", given)
    a, row_table, term_table, b, c, count, add, columns = out.parameters
    sums = Sums(out, tile, rows, columns, [ZEROS] * vectors)
    v, starts = sums.v, list[tuple[str, str]]()
    for i in range(rows):
        left, to = out.record(_OFFSETS, row_table, i).all("left", "other")
        starts.append((v.at(a, left), v.at(c, to)))
    with out.when(out.test("sgt", count, 0)):
        term = out.variable(0)
        with out.repeat():
            offset, right_offset = out.record(_OFFSETS, term_table, term.value).all("left", "other")
            right = sums.right_vectors(v.at(b, right_offset))
            for i, (left, _) in enumerate(starts):
                sums.add_products(i, v.at(left, offset), right)
            term.value = out.count_up(term.value)
            out.again_if(out.test("slt", term.value, count))
    sums.store([to for _, to in starts], add)
    return out


def _strip(tile: Tile, width: int) -> IRBuilder:
    """All rows, in tiles of one width: the highest first, but eight as four and four."""
    parameters = (*GIVEN.split(", "), "i64 %count", "i1 %add", "i64 %columns", "i64 %many")
    out = IRBuilder(f"gathers_{width}", parameters)
    start: str | int = 0
    for height in tile.heights:
        left = out.sub("%many", start)
        whole = out.mul(out.div(left, height), height)
        if height == 6:
            is_eight = out.test("eq", out.rem(left, 6), 2)
            some = out.test("sgt", left, 6)
            less = out.put(f"and i1 {is_eight}, {some}")
            whole = out.sub(whole, out.select(less, 6, 0))
        end = out.add(start, whole)
        with out.loop(start, end, height) as i:
            rows = out.at("[2 x i64]", "%rows", i)
            out.do(
                f"call void @gather_{height}_{width}(ptr %a, ptr {rows}, ptr %terms, ptr %b,"
                " ptr %c, i64 %count, i1 %add, i64 %columns)"
            )
        start = end
    return out


def _product(tile: Tile) -> IRBuilder:
    """All rows by columns [from, to) of a panel: the widest tiles that have no empty vector."""
    element = Type(tile.dtype).text
    parameters = (*GIVEN.split(", "), "i64 %count", "i1 %add", "i64 %many", "i64 %wide")
    out = IRBuilder("gathered", parameters)
    start: str | int = 0
    for width in tile.widths:
        whole = width * tile.lanes
        # the widest tile may end in part of a vector; narrower ones take what is left
        left = out.sub("%wide", start)
        least = (width - 1) * tile.lanes + 1
        number = out.div(out.add(left, whole - least), whole)
        end = out.add(start, out.mul(number, whole))
        with out.loop(start, end, whole) as j:
            room = out.sub(out.sub("%wide", j), (width - 1) * tile.lanes)
            last = out.least(room, tile.lanes)
            b, c = out.at(element, "%b", j), out.at(element, "%c", j)
            shared = ("%a", "%rows", "%terms", b, c, "%count", "%add", last, "%many")
            out.call(f"@gathers_{width}", *shared)
        start = end
    return out


def _direct_convolution(tile: Tile) -> IRBuilder:
    """Iterations are blocks, each in `parts` parts of panels."""
    element = Type(tile.dtype).text
    out = IRBuilder("direct", KERNEL, public=True)
    x, w, y = (out.buffer(place) for place in range(3))
    n = named_numbers(out, DIRECT, " ".join(DIRECT))
    frame, whole = out.memory(frame_bytes(out, tile, n))
    panels = out.div(out.add(n["columns"], tile.columns - 1), tile.columns)
    every = out.mul(panels, n["groups"])
    share = out.div(out.sub(out.add(every, n["parts"]), 1), n["parts"])
    with out.loop("%begin", "%end") as number:
        block, part = out.div(number, n["parts"]), out.rem(number, n["parts"])
        first, many, q, row = place_block(out, n, block)
        out.call("@frame", x, "%sizes", frame, first, many, row, 0, n["pixel"])
        start = out.add(out.mul(first, n["y_image"]), out.mul(q, n["y_step"]))
        from_, to = out.mul(part, share), out.least(out.mul(out.add(part, 1), share), every)
        with out.loop(0, n["phases"]) as phase:
            record = out.at("i64", "%sizes", out.add(out.mul(phase, len(PHASE)), len(DIRECT)))
            count, rest, rows_at, terms_at, terms = (
                out.number(record, place) for place in range(len(PHASE))
            )
            here = out.most(out.least(out.sub(count, q), n["rows"]), 0)
            places = out.mul(out.mul(here, rest), many)
            rows = out.at("i64", "%sizes", rows_at)
            table = out.at("i64", "%sizes", terms_at)
            # one turn at least, so that places without a term become zero
            with out.loop(0, out.most(terms, 1), n["depth"]) as t:
                deep = out.least(out.sub(terms, t), n["depth"])
                add = out.test("sgt", t, 0)
                pairs = out.at("[2 x i64]", table, t)
                with out.loop(from_, to) as each:
                    group, panel = out.div(each, panels), out.rem(each, panels)
                    a = out.at(element, frame, out.mul(group, n["x_group"]))
                    b_off = out.add(out.mul(group, n["w_group"]), out.mul(panel, n["w_panel"]))
                    column = out.mul(panel, tile.columns)
                    c_off = out.add(out.mul(group, n["y_group"]), column)
                    c = out.at(element, y, out.add(start, c_off))
                    wide = out.least(out.sub(n["columns"], column), tile.columns)
                    b = out.at(element, w, b_off)
                    out.call("@gathered", a, rows, pairs, b, c, deep, add, places, wide)
    out.free(whole)
    return out


def _weights(tile: Tile) -> IRBuilder:
    """Iterations are slices of taps and channels, of each split of the blocks."""
    element = Type(tile.dtype).text
    out = IRBuilder("weights", KERNEL, public=True)
    x, y, w = (out.buffer(place) for place in range(3))
    n = named_numbers(out, WEIGHTS, " ".join(WEIGHTS))
    frame, whole = out.memory(frame_bytes(out, tile, n))
    images = out.div(out.sub(out.add(n["images"], n["at_once"]), 1), n["at_once"])
    every = out.mul(images, n["blocks"])
    share = out.div(out.sub(out.add(every, n["splits"]), 1), n["splits"])
    per_slice = out.div(out.sub(out.add(n["taps"], n["slices"]), 1), n["slices"])
    terms = out.at("i64", "%sizes", n["terms_at"])
    with out.loop("%begin", "%end") as number:
        split, piece = out.div(number, n["slices"]), out.rem(number, n["slices"])
        from_ = out.mul(split, share)
        to = out.least(out.add(from_, share), every)
        low = out.mul(piece, per_slice)
        count = out.most(out.least(out.sub(n["taps"], low), per_slice), 0)
        rows = out.at("[2 x i64]", out.at("i64", "%sizes", n["rows_at"]), low)
        target = out.at(element, w, out.mul(split, n["w_size"]))
        with out.loop(from_, out.most(to, out.add(from_, 1))) as block:
            # a split without a block is one of no places, which stores zeros
            is_some = out.test("slt", block, to)
            first, many_there, q, row = place_block(out, n, block)
            many = out.select(is_some, many_there, 0)
            out.call("@frame", x, "%sizes", frame, first, many, row, 0, n["pixel"])
            here = out.least(out.sub(n["y_step"], q), n["rows"])
            places = out.mul(out.mul(here, n["rest"]), many)
            start = out.mul(first, n["y_image"])
            inside = out.mul(out.mul(q, n["rest"]), n["y_pixel"])
            dy = out.at(element, y, out.add(start, inside))
            add = out.test("sgt", block, from_)
            with out.loop(0, n["groups"]) as group:
                a = out.at(element, frame, out.mul(group, n["x_group"]))
                with out.loop(0, n["columns"], tile.columns) as column:
                    b = out.at(element, dy, out.add(out.mul(group, n["y_group"]), column))
                    c = out.at(element, target, out.add(out.mul(group, n["w_group"]), column))
                    wide = out.least(out.sub(n["columns"], column), tile.columns)
                    out.call("@gathered", a, rows, terms, b, c, places, add, count, wide)
    out.free(whole)
    return out
