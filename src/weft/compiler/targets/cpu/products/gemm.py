"""The native functions of products: blocks of rows or columns, and the packing of right operands.

A product is a stack of [rows, terms] times [terms, columns]. The left operand is read where it is,
through strides, but for one whose rows lie side by side: of that a block is copied first. The right
operand is read where it is, or from panels as wide as a register tile; it is packed term by term
where terms are its rows, so that this can be part of a chain that makes them, else by panels. Each
sum runs through its terms in ascending order, `depth` of them at a time: whatever part of a result
a call makes, its elements have the same bits.

>>> from weft.core.dtypes import float32
>>> sorted(functions(float32))
['columns', 'pack_plain', 'pack_turned', 'rows']
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache

from weft.compiler.targets.cpu.cache.kernels import text_addresses
from weft.compiler.targets.cpu.llvm.ir_types import Type
from weft.compiler.targets.cpu.machine import Machine, host
from weft.compiler.targets.cpu.products.tiles import Tile, tile_functions, tile_name, tile_of
from weft.core.dtypes import DType

ENTRIES = ("rows", "columns", "pack_plain", "pack_turned")

TABLE = (
    "rows", "columns", "terms", "row_step", "term_step", "a_item", "b_item", "b_step", "b_panel",
    "depth", "block", "copied",
)  # fmt: skip
"""What `rows` and `columns` are given beside their buffers.

row_step, term_step, a_item: how far apart neighbours, and products, are in the left operand;
b_step, b_panel, b_item: the same for terms, panels and products of the right one; depth, block: how
many terms and rows are multiplied at a time; copied: whether blocks of the left operand are copied.
"""


@cache
def functions(dtype: DType, machine: Machine | None = None) -> dict[str, int]:
    """The addresses of the functions for products of a dtype."""
    return text_addresses(source(tile_of(dtype, machine or host())), ENTRIES)


def source(tile: Tile) -> str:
    """The text of the module."""
    element, vector = Type(tile.dtype), Type(tile.dtype, tile.lanes)
    names = {
        "T": element.text, "bytes": str(tile.dtype.itemsize), "NR": str(tile.columns),
        "W": str(tile.lanes), "V": vector.text, "panel_bytes": str(_bytes(tile)),
        "fitted": "\n".join(_fitted(tile)), "first": str(tile.widths[0]),
    }  # fmt: skip
    parts = [*tile_functions(tile), *(_strip(tile, width) for width in tile.widths)]
    parts += [_filled(text, names) for text in (BLOCK, BY_ROWS, BY_COLUMNS, PACK_PLAIN)]
    return "\n".join([*_declared(tile), *parts, _pack_turned(tile, names), ""])


def _bytes(tile: Tile) -> int:
    return tile.columns * tile.dtype.itemsize


def _filled(text: str, names: dict[str, str]) -> str:
    for name, value in names.items():
        text = text.replace(f"${name}$", value)
    return text


def _declared(tile: Tile) -> Iterator[str]:
    kind = Type(tile.dtype, tile.lanes)
    yield "declare ptr @malloc(i64)"
    yield "declare void @free(ptr)"
    yield "declare void @llvm.memcpy.p0.p0.i64(ptr, ptr, i64, i1)"
    yield "declare void @llvm.prefetch.p0(ptr, i32, i32, i32)"
    yield "declare i64 @llvm.smin.i64(i64, i64)"
    if kind.dtype.is_floating:
        yield f"declare {kind.text} @llvm.fma.{kind.suffix}({', '.join([kind.text] * 3)})"
    if kind.width > 1:
        given = f"ptr, i32, {kind.mask}, {kind.text}"
        yield f"declare {kind.text} @llvm.masked.load.{kind.suffix}.p0({given})"
        given = f"{kind.text}, ptr, i32, {kind.mask}"
        yield f"declare void @llvm.masked.store.{kind.suffix}.p0({given})"


def _strip(tile: Tile, width: int) -> str:
    """A function that makes all rows of a block, in tiles of one width."""
    name, element = f"strip_{width}", Type(tile.dtype).text
    lines = [
        f"define internal void @{name}(ptr %a, i64 %rs, i64 %ts, ptr %b, i64 %ldb, ptr %c,"
        " i64 %ldc, i64 %terms, i1 %add, i64 %columns, i64 %rows) nounwind noinline {",
        "entry:",
        f"  br label %from{tile.heights[0]}",
    ]
    before = "entry"
    for height, following in zip(tile.heights, [*tile.heights[1:], 0], strict=True):
        start = f"%end{before}" if before != "entry" else "0"
        target = f"from{following}" if following else "done"
        lines += [
            f"from{height}:",
            f"  %i{height} = phi i64 [{start}, %{'from' if before != 'entry' else ''}{before}],"
            f" [%n{height}, %do{height}]",
            f"  %n{height} = add i64 %i{height}, {height}",
            f"  %end{height} = add i64 %i{height}, 0",
            f"  %fits{height} = icmp sle i64 %n{height}, %rows",
            f"  br i1 %fits{height}, label %do{height}, label %{target}",
            f"do{height}:",
            f"  %a.off{height} = mul i64 %i{height}, %rs",
            f"  %a.at{height} = getelementptr {element}, ptr %a, i64 %a.off{height}",
            f"  %c.off{height} = mul i64 %i{height}, %ldc",
            f"  %c.at{height} = getelementptr {element}, ptr %c, i64 %c.off{height}",
            f"  call void @{tile_name(height, width)}(ptr %a.at{height}, i64 %rs, i64 %ts, ptr %b,"
            f" i64 %ldb, ptr %c.at{height}, i64 %ldc, i64 %terms, i1 %add, i64 %columns)",
            f"  br label %from{height}",
        ]
        before = str(height)
    return "\n".join([*lines, "done:", "  ret void", "}"])


def _fitted(tile: Tile) -> Iterator[str]:
    """The branches to the widest tile of which no vector is without a column."""
    given = (
        "ptr %a.now, i64 %rs.now, i64 %ts.now, ptr %b.at, i64 %ldb, ptr %c.at, i64 %n,"
        " i64 %terms, i1 %add"
    )
    for width, following in zip(tile.widths, [*tile.widths[1:], 0], strict=True):
        whole = (width - 1) * tile.lanes
        yield f"try{width}:"
        yield f"  %last{width} = sub i64 %left, {whole}"
        yield f"  %fits{width} = icmp sgt i64 %last{width}, 0"
        yield f"  br i1 %fits{width}, label %go{width}, label %try{following}"
        yield f"go{width}:"
        yield f"  %most{width} = call i64 @llvm.smin.i64(i64 %last{width}, i64 {tile.lanes})"
        yield f"  call void @strip_{width}({given}, i64 %most{width}, i64 %rows)"
        yield f"  %next{width} = add i64 %column, {width * tile.lanes}"
        yield "  br label %made"
    yield "try0:"
    yield "  br label %made"
    yield "made:"
    values = ", ".join(f"[%next{width}, %go{width}]" for width in tile.widths)
    yield f"  %column.next = phi i64 {values}, [%n, %try0]"


BLOCK = """
define internal void @block(ptr %a, ptr %b, ptr %c, ptr %sizes, i64 %rows, i64 %from, i64 %to,
                            ptr %scratch) nounwind {
entry:
  %n.at = getelementptr i64, ptr %sizes, i64 1
  %n = load i64, ptr %n.at
  %k.at = getelementptr i64, ptr %sizes, i64 2
  %k = load i64, ptr %k.at
  %rs.at = getelementptr i64, ptr %sizes, i64 3
  %rs = load i64, ptr %rs.at
  %ts.at = getelementptr i64, ptr %sizes, i64 4
  %ts = load i64, ptr %ts.at
  %ldb.at = getelementptr i64, ptr %sizes, i64 7
  %ldb = load i64, ptr %ldb.at
  %panel.at = getelementptr i64, ptr %sizes, i64 8
  %panel.step = load i64, ptr %panel.at
  %depth.at = getelementptr i64, ptr %sizes, i64 9
  %depth = load i64, ptr %depth.at
  %block.at = getelementptr i64, ptr %sizes, i64 10
  %wide = load i64, ptr %block.at
  %copied.at = getelementptr i64, ptr %sizes, i64 11
  %copied.wide = load i64, ptr %copied.at
  %copied = icmp ne i64 %copied.wide, 0
  %rs.now = select i1 %copied, i64 1, i64 %rs
  %ts.now = select i1 %copied, i64 %wide, i64 %ts
  br label %terms.head
terms.head:
  %t = phi i64 [0, %entry], [%t.next, %terms.end]
  %t.left = sub i64 %k, %t
  %terms = call i64 @llvm.smin.i64(i64 %t.left, i64 %depth)
  %add = icmp sgt i64 %t, 0
  %a.off = mul i64 %t, %ts
  %a.term = getelementptr $T$, ptr %a, i64 %a.off
  %b.off = mul i64 %t, %ldb
  %b.term = getelementptr $T$, ptr %b, i64 %b.off
  %row.bytes = mul i64 %rows, $bytes$
  br i1 %copied, label %copy.head, label %columns.head
copy.head:
  %u = phi i64 [0, %terms.head], [%u.next, %copy]
  %u.some = icmp slt i64 %u, %terms
  br i1 %u.some, label %copy, label %columns.head
copy:
  %from.off = mul i64 %u, %ts
  %from.at = getelementptr $T$, ptr %a.term, i64 %from.off
  %to.off = mul i64 %u, %wide
  %to.at = getelementptr $T$, ptr %scratch, i64 %to.off
  call void @llvm.memcpy.p0.p0.i64(ptr %to.at, ptr %from.at, i64 %row.bytes, i1 false)
  %u.next = add i64 %u, 1
  br label %copy.head
columns.head:
  %a.now = phi ptr [%a.term, %terms.head], [%scratch, %copy.head]
  br label %tile
tile:
  %column = phi i64 [%from, %columns.head], [%column.next, %made]
  %some = icmp slt i64 %column, %to
  br i1 %some, label %panel, label %terms.end
panel:
  %number = sdiv i64 %column, $NR$
  %inside = srem i64 %column, $NR$
  %panel.off = mul i64 %number, %panel.step
  %b.panel = getelementptr $T$, ptr %b.term, i64 %panel.off
  %b.at = getelementptr $T$, ptr %b.panel, i64 %inside
  %c.at = getelementptr $T$, ptr %c, i64 %column
  %wanted = sub i64 %to, %column
  %room = sub i64 $NR$, %inside
  %left = call i64 @llvm.smin.i64(i64 %wanted, i64 %room)
  br label %try$first$
$fitted$
  br label %tile
terms.end:
  %t.next = add i64 %t, %depth
  %more = icmp slt i64 %t.next, %k
  br i1 %more, label %terms.head, label %done
done:
  ret void
}

define internal ptr @scratch(ptr %sizes) nounwind {
entry:
  %depth.at = getelementptr i64, ptr %sizes, i64 9
  %depth = load i64, ptr %depth.at
  %block.at = getelementptr i64, ptr %sizes, i64 10
  %block = load i64, ptr %block.at
  %copied.at = getelementptr i64, ptr %sizes, i64 11
  %copied = load i64, ptr %copied.at
  %some = icmp ne i64 %copied, 0
  br i1 %some, label %yes, label %no
yes:
  %count = mul i64 %depth, %block
  %bytes = mul i64 %count, $bytes$
  %memory = call ptr @malloc(i64 %bytes)
  ret ptr %memory
no:
  ret ptr null
}
"""

BY_ROWS = """
define void @"weft.rows"(ptr %buffers, ptr %sizes, i64 %begin, i64 %end) nounwind {
entry:
  %a = load ptr, ptr %buffers
  %b.at = getelementptr ptr, ptr %buffers, i64 1
  %b = load ptr, ptr %b.at
  %c.at = getelementptr ptr, ptr %buffers, i64 2
  %c = load ptr, ptr %c.at
  %m = load i64, ptr %sizes
  %n.at = getelementptr i64, ptr %sizes, i64 1
  %n = load i64, ptr %n.at
  %rs.at = getelementptr i64, ptr %sizes, i64 3
  %rs = load i64, ptr %rs.at
  %a.item.at = getelementptr i64, ptr %sizes, i64 5
  %a.item = load i64, ptr %a.item.at
  %b.item.at = getelementptr i64, ptr %sizes, i64 6
  %b.item = load i64, ptr %b.item.at
  %block.at = getelementptr i64, ptr %sizes, i64 10
  %block = load i64, ptr %block.at
  %scratch = call ptr @scratch(ptr %sizes)
  br label %head
head:
  %row = phi i64 [%begin, %entry], [%row.next, %make]
  %some = icmp slt i64 %row, %end
  br i1 %some, label %make, label %done
make:
  %item = sdiv i64 %row, %m
  %inside = srem i64 %row, %m
  %left = sub i64 %end, %row
  %own = sub i64 %m, %inside
  %first = call i64 @llvm.smin.i64(i64 %left, i64 %own)
  %count = call i64 @llvm.smin.i64(i64 %first, i64 %block)
  %a.off = mul i64 %item, %a.item
  %a.row = mul i64 %inside, %rs
  %a.all = add i64 %a.off, %a.row
  %a.now = getelementptr $T$, ptr %a, i64 %a.all
  %b.off = mul i64 %item, %b.item
  %b.now = getelementptr $T$, ptr %b, i64 %b.off
  %c.off = mul i64 %row, %n
  %c.now = getelementptr $T$, ptr %c, i64 %c.off
  call void @block(ptr %a.now, ptr %b.now, ptr %c.now, ptr %sizes, i64 %count, i64 0, i64 %n,
                   ptr %scratch)
  %row.next = add i64 %row, %count
  br label %head
done:
  call void @free(ptr %scratch)
  ret void
}
"""

BY_COLUMNS = """
define void @"weft.columns"(ptr %buffers, ptr %sizes, i64 %begin, i64 %end) nounwind {
entry:
  %a = load ptr, ptr %buffers
  %b.at = getelementptr ptr, ptr %buffers, i64 1
  %b = load ptr, ptr %b.at
  %c.at = getelementptr ptr, ptr %buffers, i64 2
  %c = load ptr, ptr %c.at
  %m = load i64, ptr %sizes
  %n.at = getelementptr i64, ptr %sizes, i64 1
  %n = load i64, ptr %n.at
  %a.item.at = getelementptr i64, ptr %sizes, i64 5
  %a.item = load i64, ptr %a.item.at
  %b.item.at = getelementptr i64, ptr %sizes, i64 6
  %b.item = load i64, ptr %b.item.at
  %above = add i64 %n, $NR$
  %above.less = sub i64 %above, 1
  %panels = sdiv i64 %above.less, $NR$
  %scratch = call ptr @scratch(ptr %sizes)
  br label %head
head:
  %p = phi i64 [%begin, %entry], [%p.next, %make]
  %some = icmp slt i64 %p, %end
  br i1 %some, label %make, label %done
make:
  %item = sdiv i64 %p, %panels
  %number = srem i64 %p, %panels
  %from = mul i64 %number, $NR$
  %until = add i64 %from, $NR$
  %to = call i64 @llvm.smin.i64(i64 %until, i64 %n)
  %a.off = mul i64 %item, %a.item
  %a.now = getelementptr $T$, ptr %a, i64 %a.off
  %b.off = mul i64 %item, %b.item
  %b.now = getelementptr $T$, ptr %b, i64 %b.off
  %c.rows = mul i64 %item, %m
  %c.off = mul i64 %c.rows, %n
  %c.now = getelementptr $T$, ptr %c, i64 %c.off
  call void @block(ptr %a.now, ptr %b.now, ptr %c.now, ptr %sizes, i64 %m, i64 %from, i64 %to,
                   ptr %scratch)
  %p.next = add i64 %p, 1
  br label %head
done:
  call void @free(ptr %scratch)
  ret void
}
"""

PACK_PLAIN = """
define void @"weft.pack_plain"(ptr %buffers, ptr %sizes, i64 %begin, i64 %end) nounwind {
entry:
  %b = load ptr, ptr %buffers
  %c.at = getelementptr ptr, ptr %buffers, i64 1
  %packed = load ptr, ptr %c.at
  %n = load i64, ptr %sizes
  %k.at = getelementptr i64, ptr %sizes, i64 1
  %k = load i64, ptr %k.at
  %panels.at = getelementptr i64, ptr %sizes, i64 2
  %panels = load i64, ptr %panels.at
  br label %head
head:
  %r = phi i64 [%begin, %entry], [%r.next, %item.end]
  %some = icmp slt i64 %r, %end
  br i1 %some, label %item, label %done
item:
  %number = sdiv i64 %r, %k
  %first = srem i64 %r, %k
  %left = sub i64 %end, %r
  %own = sub i64 %k, %first
  %count = call i64 @llvm.smin.i64(i64 %left, i64 %own)
  %r.next = add i64 %r, %count
  %b.off = mul i64 %r, %n
  %b.now = getelementptr $T$, ptr %b, i64 %b.off
  %panels.before = mul i64 %number, %panels
  br label %panel
panel:
  %p = phi i64 [0, %item], [%p.next, %panel.end]
  %some.p = icmp slt i64 %p, %panels
  br i1 %some.p, label %make, label %item.end
make:
  %from = mul i64 %p, $NR$
  %room = sub i64 %n, %from
  %wanted = call i64 @llvm.smin.i64(i64 %room, i64 $NR$)
  %bytes = mul i64 %wanted, $bytes$
  %whole = icmp eq i64 %wanted, $NR$
  %source.first = getelementptr $T$, ptr %b.now, i64 %from
  %panels.all = add i64 %panels.before, %p
  %terms.all = mul i64 %panels.all, %k
  %terms.here = add i64 %terms.all, %first
  %to.off = mul i64 %terms.here, $NR$
  %to = getelementptr $T$, ptr %packed, i64 %to.off
  br label %term
term:
  %t = phi i64 [0, %make], [%t.next, %copied]
  %some.t = icmp slt i64 %t, %count
  br i1 %some.t, label %copy, label %panel.end
copy:
  %source.off = mul i64 %t, %n
  %source = getelementptr $T$, ptr %source.first, i64 %source.off
  %target.off = mul i64 %t, $NR$
  %target = getelementptr $T$, ptr %to, i64 %target.off
  br i1 %whole, label %all, label %part
all:
  call void @llvm.memcpy.p0.p0.i64(ptr %target, ptr %source, i64 $panel_bytes$, i1 false)
  br label %copied
part:
  call void @llvm.memcpy.p0.p0.i64(ptr %target, ptr %source, i64 %bytes, i1 false)
  br label %copied
copied:
  %t.next = add i64 %t, 1
  br label %term
panel.end:
  %p.next = add i64 %p, 1
  br label %panel
item.end:
  br label %head
done:
  ret void
}
"""


def _pack_turned(tile: Tile, names: dict[str, str]) -> str:
    """Packing of an operand whose terms lie side by side: squares of a vector's width turn."""
    text = PACK_TURNED.replace("$square$", "\n".join(_square(tile)))
    return _filled(text, names)


PACK_TURNED = """
define void @"weft.pack_turned"(ptr %buffers, ptr %sizes, i64 %begin, i64 %end) nounwind {
entry:
  %b = load ptr, ptr %buffers
  %c.at = getelementptr ptr, ptr %buffers, i64 1
  %packed = load ptr, ptr %c.at
  %n = load i64, ptr %sizes
  %k.at = getelementptr i64, ptr %sizes, i64 1
  %k = load i64, ptr %k.at
  %panels.at = getelementptr i64, ptr %sizes, i64 2
  %panels = load i64, ptr %panels.at
  %kn = mul i64 %k, %n
  %size = mul i64 %k, $NR$
  br label %head
head:
  %p = phi i64 [%begin, %entry], [%p.next, %end.panel]
  %some = icmp slt i64 %p, %end
  br i1 %some, label %make, label %done
make:
  %item = sdiv i64 %p, %panels
  %number = srem i64 %p, %panels
  %from = mul i64 %number, $NR$
  %room = sub i64 %n, %from
  %wanted = call i64 @llvm.smin.i64(i64 %room, i64 $NR$)
  %b.off = mul i64 %item, %kn
  %b.now = getelementptr $T$, ptr %b, i64 %b.off
  %to.off = mul i64 %p, %size
  %to = getelementptr $T$, ptr %packed, i64 %to.off
  %long = icmp sge i64 %k, $W$
  %back = sub i64 %k, $W$
  %last = sub i64 %n, 1
  br label %lane
lane:
  %j = phi i64 [0, %make], [%j.next, %lane.end]
  %some.j = icmp slt i64 %j, %wanted
  br i1 %some.j, label %column, label %end.panel
column:
  %column.0 = add i64 %from, %j
  br i1 %long, label %squares, label %short
squares:
  %t = phi i64 [0, %column], [%t.next, %square]
  %some.t = icmp slt i64 %t, %k
  br i1 %some.t, label %square, label %lane.end
square:
  %at = call i64 @llvm.smin.i64(i64 %t, i64 %back)
$square$
  %t.next = add i64 %t, $W$
  br label %squares
short:
  %e = phi i64 [0, %column], [%e.next, %element]
  %all.e = mul i64 %k, $W$
  %some.e = icmp slt i64 %e, %all.e
  br i1 %some.e, label %element, label %lane.end
element:
  %e.term = sdiv i64 %e, $W$
  %e.lane = srem i64 %e, $W$
  %e.wanted = add i64 %column.0, %e.lane
  %e.column = call i64 @llvm.smin.i64(i64 %e.wanted, i64 %last)
  %e.row = mul i64 %e.column, %k
  %e.off = add i64 %e.row, %e.term
  %e.at = getelementptr $T$, ptr %b.now, i64 %e.off
  %value = load $T$, ptr %e.at
  %e.to = mul i64 %e.term, $NR$
  %e.inside = add i64 %j, %e.lane
  %e.place = add i64 %e.to, %e.inside
  %target = getelementptr $T$, ptr %to, i64 %e.place
  store $T$ %value, ptr %target
  %e.next = add i64 %e, 1
  br label %short
lane.end:
  %j.next = add i64 %j, $W$
  br label %lane
end.panel:
  %p.next = add i64 %p, 1
  br label %head
done:
  ret void
}
"""


def _square(tile: Tile) -> Iterator[str]:
    """Turn a square of vectors: in each round the first half is woven into the second."""
    lanes, element = tile.lanes, Type(tile.dtype).text
    kind, align = Type(tile.dtype, lanes).text, tile.dtype.itemsize
    for i in range(lanes):
        yield f"  %w{i} = add i64 %column.0, {i}"
        yield f"  %y{i} = call i64 @llvm.smin.i64(i64 %w{i}, i64 %last)"
        yield f"  %z{i} = mul i64 %y{i}, %k"
        yield f"  %o{i} = add i64 %z{i}, %at"
        yield f"  %g{i} = getelementptr {element}, ptr %b.now, i64 %o{i}"
        yield f"  %x0.{i} = load {kind}, ptr %g{i}, align {align}"
    rounds = lanes.bit_length() - 1
    for number in range(rounds):
        for i in range(lanes):
            first, second = f"%x{number}.{i // 2}", f"%x{number}.{i // 2 + lanes // 2}"
            order = _woven(lanes, i % 2)
            yield (f"  %x{number + 1}.{i} = shufflevector {kind} {first}, {kind} {second}, {order}")
    for i in range(lanes):
        yield f"  %r{i} = add i64 %at, {i}"
        yield f"  %q{i} = mul i64 %r{i}, {tile.columns}"
        yield f"  %u{i} = add i64 %q{i}, %j"
        yield f"  %v{i} = getelementptr {element}, ptr %to, i64 %u{i}"
        yield f"  store {kind} %x{rounds}.{i}, ptr %v{i}, align {align}"


def _woven(lanes: int, half: int) -> str:
    """The order that takes lanes of two vectors in turn, from the first or the second half."""
    chosen = [half * lanes // 2 + i // 2 + (lanes if i % 2 else 0) for i in range(lanes)]
    return f"<{lanes} x i32> <" + ", ".join(f"i32 {lane}" for lane in chosen) + ">"
