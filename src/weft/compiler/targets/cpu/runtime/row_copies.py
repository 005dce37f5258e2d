"""Copies of arrays whose rows lie whole in memory, but apart or in another order.

Heads brought to the front of positions, columns cut from a matrix, a row that is shown many times:
each row is a run of bytes that is read and written by vectors. Rows go in tiles: some that follow
each other in the copy, so that it is written by whole lines of cache, for each of some that follow
each other in the array, so that memory is read straight on. Tiles are divided over the threads.
NumPy goes row by row, on one.

>>> row_form((2, 3, 4), (16, 32, 4), 4)
RowForm(axes=((3, 32, 16), (2, 16, 48)), row=16)
>>> row_form((6, 4), (32, 8), 4) is None  # no two elements of a row lie side by side
True
"""

from __future__ import annotations

from functools import cache
from math import prod

from weft.compiler.targets.cpu.cache.kernels import text_addresses
from weft.compiler.targets.cpu.runtime.thread_pool import thread_pool
from weft.compiler.targets.llvm.ir_builder import (
    KERNEL,
    IRBuilder,
    LocalVariable,
    Record,
    Struct,
    module_text,
)
from weft.core.records import frozen

Axis = tuple[int, int, int]
"""How many rows, and how many bytes apart they are in the array and in the copy."""
MOST_AXES = 4
"""Axes of rows at most, after those that lie in each other are taken together."""
UNITS = (256, 128, 64, 32, 16, 8)
"""Bytes that are copied at a time, in a function for each."""
OVERLAPPING_UNIT = 64
"""Bytes of the largest unit of which a row need not be a multiple: the last one then overlaps."""
WRITTEN = 512
"""Bytes that a tile writes in one place, about: fewer leave lines of cache half-written, and more
are read from too many places."""
TILE, CHUNK = 1 << 13, 1 << 16
"""About how many bytes a tile has, and a thread copies at a time."""
_LOOPS = ", ".join(
    f"i64 blocks{i}, i64 tile{i}, i64 limit{i}, i64 read{i}, i64 write{i}" for i in range(MOST_AXES)
)
_TABLE = Struct(
    f"{_LOOPS}, i64 outer_rows, i64 outer_read, i64 outer_write, i64 inner_rows, i64 inner_read, "
    "i64 inner_write, i64 row, i64 tiles, i64 grain, ptr parallel_for"
)


@frozen
class RowForm:
    """An array as rows of so many bytes, and where they are: the axes as they lie in memory."""

    axes: tuple[Axis, ...]
    row: int

    @property
    def address(self) -> int:
        """The address of the native function, which has a kernel's signature."""
        return _addresses()[f"copy_rows_{self._unit}"]

    @property
    def numbers(self) -> list[int]:
        """What the native function is given."""
        inner = next(axis for axis in self.axes if axis[2] == self.row)
        outer = self.axes[-1]
        wanted = TILE if outer is inner else WRITTEN
        inner_rows = _even_part(inner[0], wanted // self.row)
        outer_rows = _even_part(outer[0], TILE // (inner_rows * self.row))
        tiles = {outer: outer_rows, inner: inner_rows}
        loops = [_loop_numbers(axis, tiles.get(axis, 1)) for axis in self.axes]
        padding = [[1, 1, 0, 0, 0]] * (MOST_AXES - len(loops))
        inside = [outer_rows, *outer[1:], inner_rows, *inner[1:]]
        if outer is inner:
            inside[:3] = [1, 0, 0]
        count = prod([blocks for blocks, *_ in loops])
        grain = max(1, CHUNK // (inside[0] * inner_rows * self.row))
        flat = [number for loop in (*padding, *loops) for number in loop]
        return [*flat, *inside, self.row, count, grain, thread_pool().address]

    @property
    def _unit(self) -> int:
        """The bytes that are copied at a time: the most that fit."""
        return next(
            unit
            for unit in UNITS
            if self.row >= unit and (self.row % unit == 0 or unit <= OVERLAPPING_UNIT)
        )


def _even_part(count: int, most: int) -> int:
    """The size of parts of at most so many, as few parts as can be, that come out evenly."""
    return -(-count // -(-count // max(1, most)))


def _loop_numbers(axis: Axis, tile: int) -> list[int]:
    """The loop over the tiles along an axis; the last one may overlap the one before."""
    count, read, write = axis
    return [-(-count // tile), tile, count - tile, read, write]


def row_form(shape: tuple[int, ...], strides: tuple[int, ...], itemsize: int) -> RowForm | None:
    """The form of an array whose rows lie whole; None where they do not, or are short."""
    row = write = itemsize
    axes: list[Axis] = []
    for count, read in zip(reversed(shape), reversed(strides), strict=True):
        if count == 1:
            continue
        if not axes and read == row:
            row *= count
        elif axes and read == axes[-1][0] * axes[-1][1]:
            inner, inner_read, inner_write = axes[-1]
            axes[-1] = (inner * count, inner_read, inner_write)
        else:
            axes.append((count, read, write))
        write *= count
    if row == itemsize or row < UNITS[-1] or not 0 < len(axes) <= MOST_AXES:
        return None
    return RowForm(tuple(sorted(axes, key=lambda axis: -abs(axis[1]))), row)


@cache
def _addresses() -> dict[str, int]:
    """The native functions by name."""
    ranges = [_copy_tiles(unit) for unit in UNITS]
    whole = [_copy(unit, part) for unit, part in zip(UNITS, ranges, strict=True)]
    return text_addresses(module_text(*ranges, *whole), [f"copy_rows_{unit}" for unit in UNITS])


def _copy(unit: int, copy_tiles: IRBuilder) -> IRBuilder:
    """`copy_rows_64(...)`: all tiles, divided over the threads."""
    out = IRBuilder(f"copy_rows_{unit}", KERNEL, public=True, may_unwind=True)
    buffers, sizes, _, _ = out.parameters
    tiles, grain, parallel_for = out.record(_TABLE, sizes).all("tiles", "grain", "parallel_for")
    with out.choose(out.test("sgt", tiles, grain)) as (divided, undivided):
        with divided:
            out.call(parallel_for, copy_tiles.symbol, buffers, sizes, tiles, grain)
        with undivided:
            out.call(copy_tiles, buffers, sizes, 0, tiles)
    return out


def _copy_tiles(unit: int) -> IRBuilder:
    """`copy_tiles_64(...)`: some tiles, counted along the axes in the order of memory."""
    out = IRBuilder(f"copy_tiles_{unit}", KERNEL, may_unwind=True)
    _, sizes, begin, end = out.parameters
    table = out.record(_TABLE, sizes)
    array, copy = out.buffer(0), out.buffer(1)
    loops = [table.all(*_loop_names(i)) for i in reversed(range(MOST_AXES))]
    places, rest = list[LocalVariable](), begin
    for blocks, *_ in loops:
        places.append(out.variable(out.rem(rest, blocks)))
        rest = out.div(rest, blocks)
    with out.loop(begin, end):
        source, target = array, copy
        for place, (_, tile, limit, read, write) in zip(places, loops, strict=True):
            first = out.least(out.mul(place.value, tile), limit)
            source = out.at("i8", source, out.mul(first, read))
            target = out.at("i8", target, out.mul(first, write))
        _copy_tile(out, unit, table, source, target)
        _count_up(out, places, [blocks for blocks, *_ in loops])
    return out


def _loop_names(place: int) -> list[str]:
    return [f"{name}{place}" for name in ("blocks", "tile", "limit", "read", "write")]


def _copy_tile(out: IRBuilder, unit: int, table: Record, source: str, target: str) -> None:
    """Copy the rows of a tile: inside, those that follow each other in the copy."""
    outer_rows, outer_read, outer_write = table.all("outer_rows", "outer_read", "outer_write")
    inner_rows, inner_read, inner_write = table.all("inner_rows", "inner_read", "inner_write")
    last = out.sub(table["row"], unit)
    outer_from, outer_to = out.variable(source), out.variable(target)
    with out.loop(0, outer_rows):
        read_from, write_to = out.variable(outer_from.value), out.variable(outer_to.value)
        with out.loop(0, inner_rows):
            with out.loop(0, last, unit) as offset:
                _copy_unit(out, unit, read_from.value, write_to.value, offset)
            _copy_unit(out, unit, read_from.value, write_to.value, last)
            read_from.value = out.at("i8", read_from.value, inner_read)
            write_to.value = out.at("i8", write_to.value, inner_write)
        out.variables.remove(read_from)
        out.variables.remove(write_to)
        outer_from.value = out.at("i8", outer_from.value, outer_read)
        outer_to.value = out.at("i8", outer_to.value, outer_write)
    out.variables.remove(outer_from)
    out.variables.remove(outer_to)


def _copy_unit(out: IRBuilder, unit: int, source: str, target: str, offset: str) -> None:
    kind = f"<{unit // 8} x i64>"
    value = out.load(kind, out.at("i8", source, offset), 1)
    out.store(value, out.at("i8", target, offset), align=1)


def _count_up(out: IRBuilder, places: list[LocalVariable], counts: list[str]) -> None:
    """Go to the next place: along the first axis, and where that ends, along the next one."""
    places[0].value = out.add(places[0].value, 1)
    if len(places) > 1:
        with out.when(out.test("eq", places[0].value, counts[0])):
            places[0].value = "0"
            _count_up(out, places[1:], counts[1:])
