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

from collections.abc import Iterator, Sequence

from weft.compiler.targets.llvm.ir_builder import IRBuilder
from weft.compiler.targets.llvm.ir_vectors import Vectors
from weft.compiler.targets.llvm.machine import Machine
from weft.core.dtypes import DType
from weft.core.records import frozen


@frozen
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
    return Tile(dtype, 6, vectors, lanes, machine.masked, machine.fuses_multiply_add)


def tile_functions(tile: Tile) -> Iterator[IRBuilder]:
    """A function for each size of tile."""
    for rows in tile.heights:
        for vectors in tile.widths:
            yield _tile_function(tile, rows, vectors)


def tile_name(rows: int, vectors: int) -> str:
    """The name of the function of a tile."""
    return f"tile_{rows}_{vectors}"


class Sums:
    """The sums of a register tile, rows by vectors, of which the last may have fewer columns."""

    def __init__(
        self, out: IRBuilder, tile: Tile, rows: int, columns: str, start: Sequence[str]
    ) -> None:
        """columns: how many the last vector has; start: what each vector's sums begin with."""
        self.out, self.v = out, Vectors(out, tile.dtype, tile.lanes, fused=tile.fused)
        mask = self.v.mask(columns)
        self.masks = ["" for _ in start[1:]] + [mask]
        self.read_masks = self.masks if tile.masked else ["" for _ in start]
        self.totals = [[out.variable(each, self.v.kind) for each in start] for _ in range(rows)]

    def places(self, pointer: str) -> list[str]:
        """Where the vectors of a row are."""
        return [self.v.at(pointer, j * self.v.type.width) for j in range(len(self.masks))]

    def right_vectors(self, row: str) -> list[str]:
        """The vectors of the right operand; the last one may reach beyond what there is."""
        pairs = zip(self.places(row), self.read_masks, strict=True)
        return [self.v.load(place, mask) for place, mask in pairs]

    def add_products(self, row: int, place: str, right: Sequence[str]) -> None:
        """Add an element of the left operand times the vectors of the right one."""
        x = self.v.splat(self.out.load(self.v.element, place, self.v.align))
        for total, each in zip(self.totals[row], right, strict=True):
            total.value = self.v.multiply_add(x, each, total.value)

    def store(self, rows: Sequence[str], add: str) -> None:
        """Write the tile, added to what is there or not, the last vector up to the last column."""
        with self.out.when(add):
            for row, totals in zip(rows, self.totals, strict=True):
                for place, mask, total in zip(self.places(row), self.masks, totals, strict=True):
                    total.value = self.v.add(self.v.load(place, mask), total.value)
        for row, totals in zip(rows, self.totals, strict=True):
            for place, mask, total in zip(self.places(row), self.masks, totals, strict=True):
                self.v.store(total.value, place, mask)


ZEROS = "zeroinitializer"


def _tile_function(tile: Tile, rows: int, vectors: int) -> IRBuilder:
    """A function `(a, row step, term step, ahead, b, b step, c, c step, terms, add, columns)`.

    Steps count elements; `ahead` is where the rows of the next tile are in the left operand; `add`
    says whether the tile is added to what is there, and `columns` how many columns of the last
    vector there are.
    """
    given = (
        "ptr %a", "i64 %rs", "i64 %ts", "ptr %ahead", "ptr %b", "i64 %ldb", "ptr %c", "i64 %ldc",
        "i64 %terms", "i1 %add", "i64 %columns",
    )  # fmt: skip
    out = IRBuilder(tile_name(rows, vectors), given)
    a, row_step, term_step, ahead, b, b_step, c, c_step, terms, add, columns = out.parameters
    sums = Sums(out, tile, rows, columns, [ZEROS] * vectors)
    v = sums.v
    starts = [(v.at(a, out.mul(row_step, i)), v.at(c, out.mul(c_step, i))) for i in range(rows)]
    with out.when(out.test("sgt", terms, 0)):
        # They end with this block: a phi node behind it would tie up the registers that count.
        term, offset, row = out.variable(0), out.variable(0), out.variable(b)
        with out.repeat():
            right = sums.right_vectors(row.value)
            for i, (left, _) in enumerate(starts):
                sums.add_products(i, v.at(left, offset.value), right)
            # the rows that follow come from far away when they are read only once
            out.prefetch(out.at("i8", ahead, out.mul(term.value, rows * tile.dtype.itemsize)))
            term.value = out.count_up(term.value)
            offset.value = out.add(offset.value, term_step)
            row.value = v.at(row.value, b_step)
            out.again_if(out.test("slt", term.value, terms))
    sums.store([to for _, to in starts], add)
    return out
