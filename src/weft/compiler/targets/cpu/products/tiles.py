"""The register tile of a product: some rows of the result by some vectors, held in registers.

One function for each size of tile: it multiplies a strip of the left operand, read through strides,
by a panel of the right one, and stores the tile or adds it to what is there.

>>> from weft.compiler.targets.cpu.machine import host
>>> from weft.core.dtypes import float32
>>> tile = tile_of(float32, host(width=16))
>>> tile.rows, tile.columns
(6, 64)
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from weft.compiler.targets.cpu.llvm.ir_types import Type, steps
from weft.compiler.targets.cpu.machine import Machine
from weft.core.dtypes import DType


@dataclass(frozen=True, slots=True)
class Tile:
    """Rows by vectors of `lanes` elements; `masked`: whether a part of a vector is as quick."""

    dtype: DType
    rows: int
    vectors: int
    lanes: int
    masked: bool
    fused: bool
    """Whether a product and a sum are one instruction."""

    @property
    def columns(self) -> int:
        """The columns of a whole tile, which are those of a packed panel."""
        return self.vectors * self.lanes

    @property
    def heights(self) -> tuple[int, ...]:
        """The rows of the tiles that there are functions for, so that all numbers are made up."""
        return tuple(rows for rows in (6, 4, 2, 1) if rows <= self.rows)

    @property
    def widths(self) -> tuple[int, ...]:
        """The vectors of the tiles that there are functions for."""
        return tuple(count for count in (4, 2, 1) if count <= self.vectors)


def tile_of(dtype: DType, machine: Machine) -> Tile:
    """The tile for a machine: as many sums as registers hold beside a row of the right operand.

    32 registers hold 6 by 4 sums, 4 vectors and an element; 16 registers 6 by 2, 2 and 1.
    """
    lanes = max(1, machine.width * 4 // dtype.itemsize)
    vectors = 4 if machine.registers == 32 else 2
    return Tile(dtype, 6, vectors, lanes, machine.masked, machine.fused)


def tile_functions(tile: Tile) -> Iterator[str]:
    """The text of a function for each size of tile."""
    for rows in tile.heights:
        for vectors in tile.widths:
            yield _tile_function(tile, rows, vectors)


def tile_name(rows: int, vectors: int) -> str:
    """The name of the function of a tile."""
    return f"tile_{rows}_{vectors}"


def _tile_function(tile: Tile, rows: int, vectors: int) -> str:
    """A function `(a, row step, term step, b, b step, c, c step, terms, add, columns)`.

    Steps count elements; `add` says whether the tile is added to what is there, and `columns` how
    many columns of the last vector there are.
    """
    kind, element = Type(tile.dtype, tile.lanes), Type(tile.dtype).text
    sums = [(i, j) for i in range(rows) for j in range(vectors)]
    lines = [
        f"define internal void @{tile_name(rows, vectors)}(ptr %a, i64 %rs, i64 %ts, ptr %b,"
        " i64 %ldb, ptr %c, i64 %ldc, i64 %terms, i1 %add, i64 %columns) nounwind noinline {",
        "entry:",
        *mask_lines(tile),
        *_strips(kind, rows),
        f"  %ahead.off = mul i64 %rs, {rows}",
        f"  %ahead = getelementptr {element}, ptr %a, i64 %ahead.off",
        "  %any = icmp sgt i64 %terms, 0",
        "  br i1 %any, label %loop, label %summed",
        "loop:",
        "  %t = phi i64 [0, %entry], [%t.next, %loop]",
        "  %at = phi i64 [0, %entry], [%at.next, %loop]",
        "  %row = phi ptr [%b, %entry], [%row.next, %loop]",
        *(
            f"  %s{i}.{j} = phi {kind.text} [zeroinitializer, %entry], [%s{i}.{j}.next, %loop]"
            for i, j in sums
        ),
        *right_lines(tile, kind, vectors),
        *(line for i in range(rows) for line in multiplied_lines(tile, kind, i, vectors)),
        # the rows that follow come from far away when they are read only once
        f"  %soon.off = mul i64 %t, {rows * tile.dtype.itemsize}",
        "  %soon = getelementptr i8, ptr %ahead, i64 %soon.off",
        "  call void @llvm.prefetch.p0(ptr %soon, i32 0, i32 3, i32 1)",
        "  %t.next = add nuw nsw i64 %t, 1",
        "  %at.next = add i64 %at, %ts",
        f"  %row.next = getelementptr {element}, ptr %row, i64 %ldb",
        "  %more = icmp slt i64 %t.next, %terms",
        "  br i1 %more, label %loop, label %summed",
        "summed:",
        *(
            f"  %r{i}.{j} = phi {kind.text} [zeroinitializer, %entry], [%s{i}.{j}.next, %loop]"
            for i, j in sums
        ),
        *stored_lines(tile, kind, rows, vectors),
        "  ret void",
        "}",
    ]
    return "\n".join(lines)


def mask_lines(tile: Tile) -> list[str]:
    """The lanes of the last vector that are columns."""
    lanes = tile.lanes
    if lanes == 1:
        return []
    kind = f"<{lanes} x i64>"
    return [
        f"  %one = insertelement {kind} poison, i64 %columns, i64 0",
        f"  %all = shufflevector {kind} %one, {kind} poison, <{lanes} x i32> zeroinitializer",
        f"  %mask = icmp slt {kind} {steps(lanes)}, %all",
    ]


def _strips(kind: Type, rows: int) -> list[str]:
    element = Type(kind.dtype).text
    lines = []
    for i in range(rows):
        lines += [
            f"  %a.off{i} = mul i64 %rs, {i}",
            f"  %a{i} = getelementptr {element}, ptr %a, i64 %a.off{i}",
            f"  %c.off{i} = mul i64 %ldc, {i}",
            f"  %c{i} = getelementptr {element}, ptr %c, i64 %c.off{i}",
        ]
    return lines


def right_lines(tile: Tile, kind: Type, vectors: int) -> list[str]:
    """The vectors of the right operand; the last one may reach beyond what there is."""
    element, align = Type(kind.dtype).text, kind.dtype.itemsize
    lines = []
    for j in range(vectors):
        place = f"%b.at{j}"
        lines.append(f"  {place} = getelementptr {element}, ptr %row, i64 {j * tile.lanes}")
        if tile.masked and j == vectors - 1:
            lines.append(
                f"  %b{j} = call {kind.text} @llvm.masked.load.{kind.suffix}.p0(ptr {place}, "
                f"i32 {align}, {kind.mask} %mask, {kind.text} zeroinitializer)"
            )
        else:
            lines.append(f"  %b{j} = load {kind.text}, ptr {place}, align {align}")
    return lines


def multiplied_lines(tile: Tile, kind: Type, i: int, vectors: int) -> list[str]:
    """One row of the tile: an element of the left operand times the vectors of the right one."""
    element = Type(kind.dtype).text
    lines = [
        f"  %x{i}.at = getelementptr {element}, ptr %a{i}, i64 %at",
        f"  %x{i}.one = load {element}, ptr %x{i}.at, align {kind.dtype.itemsize}",
    ]
    if kind.width > 1:
        lines += [
            f"  %x{i}.in = insertelement {kind.text} poison, {element} %x{i}.one, i64 0",
            f"  %x{i} = shufflevector {kind.text} %x{i}.in, {kind.text} poison, "
            f"<{kind.width} x i32> zeroinitializer",
        ]
    name = f"%x{i}" if kind.width > 1 else f"%x{i}.one"
    for j in range(vectors):
        lines += _sum(tile, kind, name, i, j)
    return lines


def _sum(tile: Tile, kind: Type, x: str, i: int, j: int) -> list[str]:
    """One more term of a sum."""
    if not kind.dtype.is_floating:
        return [
            f"  %p{i}.{j} = mul {kind.text} {x}, %b{j}",
            f"  %s{i}.{j}.next = add {kind.text} %s{i}.{j}, %p{i}.{j}",
        ]
    if not tile.fused:
        return [
            f"  %p{i}.{j} = fmul {kind.text} {x}, %b{j}",
            f"  %s{i}.{j}.next = fadd {kind.text} %s{i}.{j}, %p{i}.{j}",
        ]
    given = ", ".join(f"{kind.text} {name}" for name in (x, f"%b{j}", f"%s{i}.{j}"))
    return [f"  %s{i}.{j}.next = call {kind.text} @llvm.fma.{kind.suffix}({given})"]


def stored_lines(tile: Tile, kind: Type, rows: int, vectors: int) -> list[str]:
    """The tile, added to what is there or not, the last vector up to the last column."""
    lines = ["  br i1 %add, label %added, label %alone", "added:"]
    added = "fadd" if kind.dtype.is_floating else "add"
    for i in range(rows):
        for j in range(vectors):
            lines += _read(tile, kind, i, j, masked=j == vectors - 1)
            lines.append(f"  %n{i}.{j} = {added} {kind.text} %o{i}.{j}, %r{i}.{j}")
    lines += ["  br label %alone", "alone:"]
    lines += [
        f"  %w{i}.{j} = phi {kind.text} [%r{i}.{j}, %summed], [%n{i}.{j}, %added]"
        for i in range(rows)
        for j in range(vectors)
    ]
    for i in range(rows):
        for j in range(vectors):
            lines += _write(tile, kind, i, j, masked=j == vectors - 1)
    return lines


def _place(tile: Tile, kind: Type, i: int, j: int, stem: str) -> str:
    element = Type(kind.dtype).text
    return f"  %{stem}{i}.{j}.at = getelementptr {element}, ptr %c{i}, i64 {j * tile.lanes}"


def _read(tile: Tile, kind: Type, i: int, j: int, *, masked: bool) -> list[str]:
    align = kind.dtype.itemsize
    if not masked or kind.width == 1:
        read = f"load {kind.text}, ptr %o{i}.{j}.at, align {align}"
    else:
        read = (
            f"call {kind.text} @llvm.masked.load.{kind.suffix}.p0(ptr %o{i}.{j}.at, i32 {align}, "
            f"{kind.mask} %mask, {kind.text} zeroinitializer)"
        )
    return [_place(tile, kind, i, j, "o"), f"  %o{i}.{j} = {read}"]


def _write(tile: Tile, kind: Type, i: int, j: int, *, masked: bool) -> list[str]:
    align, value = kind.dtype.itemsize, f"{kind.text} %w{i}.{j}"
    if not masked or kind.width == 1:
        write = f"store {value}, ptr %q{i}.{j}.at, align {align}"
    else:
        write = (
            f"call void @llvm.masked.store.{kind.suffix}.p0({value}, ptr %q{i}.{j}.at, "
            f"i32 {align}, {kind.mask} %mask)"
        )
    return [_place(tile, kind, i, j, "q"), f"  {write}"]
