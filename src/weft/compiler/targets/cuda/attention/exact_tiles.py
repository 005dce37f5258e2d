"""Tiles of float32 in shared memory and their products: what exact attention is made of.

A block of 16 × 16 threads works on tiles of 64 rows: of a product of two tiles each thread has four
rows and, for every 64 columns, four columns. Tiles lie in shared memory with the summed axis
outermost, so that a thread reads its four rows at once.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Sequence

from weft.compiler.targets.cuda.attention.hiding import keep_threshold
from weft.compiler.targets.cuda.device_text import DeviceBuilder
from weft.compiler.targets.llvm.ir_builder import LocalVariable, Operand
from weft.core.records import frozen
from weft.ops.random_bits import DRAW, philox_rounds

__all__ = ["LOWEST", "ExactSpec", "Sums", "TileBuilder", "float_text"]

_UNROLLED = 4
"""Steps of the summed axis that are written out."""
FOUR = "<4 x float>"
LOWEST = "0xFFF0000000000000"
"""-∞, as LLVM writes it."""
_LOG2_E, _LOG2_E_REST = 1.44269502162933349609375, 1.92596299112661746887e-8
_LEAST_EXPONENT = -104.0
"""Below this, exponentials are zero."""

Sums = list[list[LocalVariable]]
"""A thread's part of a product: four rows, each of four columns for every 64."""


@frozen(slots=False)
class ExactSpec:
    """softmax(q kᵀ scale) v of float32; with `causal`, query i sees keys up to i + offset.

    With `kept` below 1 weights are dropped as `wf.random.dropout` does; keys are a multiple of 4.
    """

    head: int
    causal: bool
    scale: float
    mask: str = ""  # or "bool", "float32"
    guarded: bool = False
    side: int = 16  # threads along each side of a tile
    kept: float = 1.0

    @property
    def drops(self) -> bool:
        """Whether weights are dropped."""
        return self.kept < 1

    @property
    def tile(self) -> int:
        """Rows of a tile: queries or keys."""
        return 4 * self.side

    @property
    def line(self) -> int:
        """Floats from step to step of the summed axis: rows of a tile, and four to skip banks."""
        return self.tile + 4

    @property
    def chunks(self) -> int:
        """Chunks of a tile's columns that a row of a head is."""
        return -(-self.head // self.tile)

    @property
    def row(self) -> int:
        """Floats from row to row of a tile that lies as in memory."""
        return self.tile * self.chunks + 4

    @property
    def across_floats(self) -> int:
        """Floats of a tile with the summed axis outermost."""
        return self.head * self.line

    @property
    def tile_floats(self) -> int:
        """Floats of a tile in either order."""
        return max(self.across_floats, self.tile * self.row)


def float_text(value: float) -> str:
    """A number as LLVM writes float32: the bits of the same number in float64."""
    return f"0x{_bits(value):016X}"


def _bits(value: float) -> int:
    single = struct.unpack("<f", struct.pack("<f", value))[0]
    bits: int = struct.unpack("<Q", struct.pack("<d", single))[0]
    return bits


class TileBuilder(DeviceBuilder):
    """A kernel over tiles; `rows` and `columns` are the thread's first in a tile."""

    def __init__(self, name: str, pointers: Sequence[str], spec: ExactSpec, blocks: int) -> None:
        """`blocks` of them share a multiprocessor, of heads that are one chunk; else one less."""
        self.spec = spec
        more = [*(["mask"] if spec.mask else []), *(["key", "data"] if spec.drops else [])]
        strides = ["mask_batch", "mask_head", "mask_row"] if spec.mask else []
        numbers = ["heads", "group", "queries", "keys", "offset", *strides, "tiles"]
        parameters = [f"ptr %{each}" for each in (*pointers, *more)]
        threads = spec.side * spec.side
        given = [*parameters, *[f"i64 %{each}" for each in numbers]]
        super().__init__(name, given, threads, max(1, blocks + 1 - spec.chunks))
        self.rows = self.mul(self.div(self.thread, spec.side), 4)
        self.columns = self.mul(self.rem(self.thread, spec.side), 4)
        self._words: list[str] = []
        """Of dropout: the key's two words, and those of the data beside it."""
        for name in ("%key", "%data") if spec.drops else ():
            self._words += [self.load("i32", self.at("i32", name, place)) for place in (0, 1)]

    # --- tiles of queries ------------------------------------------------------------------------

    def query_tile(self) -> tuple[str, str, str]:
        """The block's line of queries, the line of keys that it sees, and its first query.

        The last tiles see most keys where attention is causal: they come first.
        """
        tile = self.sub(self.sub("%tiles", 1), self.rem(self.block_number, "%tiles"))
        line = self.div(self.block_number, "%tiles")
        first = self.mul(tile, self.spec.tile)
        return line, self.div(line, "%group"), first

    def end_of_keys(self, first: str) -> str:
        """The number behind the last key that a tile of queries sees."""
        if not self.spec.causal:
            return "%keys"
        return self.least("%keys", self.add(self.add(first, "%offset"), self.spec.tile))

    # --- numbers ---------------------------------------------------------------------------------

    def floats(self, how: str, a: str, b: str) -> str:
        """An instruction of two floats, as `fadd`."""
        return self.put(f"{how} float {a}, {b}", "float")

    def fma(self, a: str, b: str, c: str) -> str:
        """a · b + c, rounded once."""
        text = f"float {a}", f"float {b}", f"float {c}"
        return self.call("llvm.fma.f32", *text, result="float")

    def choose_float(self, condition: str, yes: str, no: str) -> str:
        """One of two floats."""
        return self.put(f"select i1 {condition}, float {yes}, float {no}", "float")

    def all_of(self, *conditions: str) -> str:
        """Whether all conditions hold."""
        found, *others = conditions
        for each in others:
            found = self.put(f"and i1 {found}, {each}", "i1")
        return found

    def exp(self, x: str) -> str:
        """The exponential of a number that is not above zero by much, within 3 ulp; 0 of -∞."""
        high, rest = float_text(_LOG2_E), float_text(_LOG2_E_REST)
        exponent = self.floats("fmul", x, high)
        power = self.put(
            f'call float asm "ex2.approx.ftz.f32 $0, $1;", "=f,f"(float {exponent})', "float"
        )
        # what rounding the exponent has lost, and the rest of log2 e: 2^d is nearly 1 + d ln 2
        lost = self.fma(x, high, self.put(f"fneg float {exponent}", "float"))
        lost = self.floats("fmul", self.fma(x, rest, lost), float_text(math.log(2)))
        power = self.fma(power, lost, power)
        is_zero = self.put(f"fcmp olt float {x}, {float_text(_LEAST_EXPONENT)}", "i1")
        return self.choose_float(is_zero, "0.0", power)

    def log(self, x: str) -> str:
        """The logarithm of a number from 1 on, within 2 ulp; what is no number stays as it is."""
        bits = self.put(f"bitcast float {x} to i32", "i32")
        # x = 2^e · f with f from √½ to √2
        shifted = self.put(f"sub i32 {bits}, {0x3F3504F3}", "i32")
        exponent = self.put(f"ashr i32 {shifted}, 23", "i32")
        scaled = self.put(f"shl i32 {exponent}, 23", "i32")
        fraction = self.put(f"sub i32 {bits}, {scaled}", "i32")
        f = self.put(f"bitcast i32 {fraction} to float", "float")
        s = self.floats("fdiv", self.floats("fsub", f, "1.0"), self.floats("fadd", f, "1.0"))
        square = self.floats("fmul", s, s)
        series = float_text(2 / 9)
        for denominator in (7, 5, 3):
            series = self.fma(series, square, float_text(2 / denominator))
        twice = self.floats("fadd", s, s)
        small = self.fma(self.floats("fmul", s, square), series, twice)
        e = self.put(f"sitofp i32 {exponent} to float", "float")
        found = self.fma(e, float_text(math.log(2)), small)
        is_number = self.put(f"fcmp olt float {x}, 0x7FF0000000000000", "i1")
        return self.choose_float(is_number, found, x)

    def over_row(self, how: str, value: str) -> str:
        """A value of the threads of a row combined, `fadd` or `max`, the same in all."""
        for power in range(self.spec.side.bit_length() - 1):
            distance = 1 << power
            bits = self.put(f"bitcast float {value} to i32", "i32")
            given = f"i32 -1, i32 {bits}, i32 {distance}, i32 31"
            other = self.put(f"call i32 @llvm.nvvm.shfl.sync.bfly.i32({given})", "i32")
            number = self.put(f"bitcast i32 {other} to float", "float")
            value = self.larger(value, number) if how == "max" else self.floats(how, value, number)
        return value

    def larger(self, a: str, b: str) -> str:
        """The larger of two numbers."""
        return self.call("llvm.maxnum.f32", f"float {a}", f"float {b}", result="float")

    # --- shared memory ---------------------------------------------------------------------------

    def load_across(self, target: str, source: str, first: str, limit: str) -> None:
        """A tile with the summed axis outermost: rows from `first` on, zeros from `limit` on."""
        row, unit, units = self.thread, "0", 1
        if self.threads == 4 * self.spec.tile:
            # a warp reads 64 bytes of each of eight rows: few lines of memory, few banks twice
            row = self.add(self.rem(self.thread, 8), self.mul(self.div(self.thread, 32), 8))
            unit, units = self.rem(self.div(self.thread, 8), 4), 4
        line, exists = self._line(source, self.add(first, row), limit)
        with self.loop(self.mul(unit, 4), self.spec.head, 4 * units) as depth:
            four = self._load_or_zero(line, depth, exists)
            for number in range(4):
                value = self.put(f"extractelement {FOUR} {four}, i64 {number}", "float")
                place = self.add(self.mul(self.add(depth, number), self.spec.line), row)
                self.store(value, self.at("float", target, place), "float")

    def load_along(self, target: str, source: str, first: str, limit: str) -> None:
        """A tile as it lies in memory; zeros behind the last row and the last column."""
        units = self.spec.side * self.spec.chunks
        for number in range(self.spec.tile * units // self.threads):
            index = self.add(self.thread, number * self.threads)
            row, column = self.div(index, units), self.mul(self.rem(index, units), 4)
            line, exists = self._line(source, self.add(first, row), limit)
            inside = self.test("slt", column, self.spec.head)
            place = self.least(column, self.spec.head - 4)
            four = self._load_or_zero(line, place, self.all_of(exists, inside))
            cell = self.add(self.mul(row, self.spec.row), column)
            self.store(four, self.at("float", target, cell), FOUR, align=16)

    def _line(self, source: str, row: str, limit: str) -> tuple[str, str]:
        """The address of a row, of the last where there is none, and whether there is one."""
        place = self.least(row, self.sub(limit, 1))
        line = self.at("float", source, self.mul(place, self.spec.head))
        return line, self.test("slt", row, limit)

    def _load_or_zero(self, line: str, place: Operand, exists: str) -> str:
        four = self.load(FOUR, self.at("float", line, place), align=16)
        return self.put(f"select i1 {exists}, {FOUR} {four}, {FOUR} zeroinitializer", FOUR)

    # --- products --------------------------------------------------------------------------------

    def zeros(self, columns: int) -> Sums:
        """Sums that have not begun."""
        return [[self.variable("0.0", "float") for _ in range(columns)] for _ in range(4)]

    def multiply(self, sums: Sums, left: str, right: str, line: int, depth: int) -> None:
        """Add a product: `left` has the lines of a tile, `right` lines of so many floats."""
        chunks = len(sums[0]) // 4
        with self.loop(0, depth, _UNROLLED) as first:
            for number in range(_UNROLLED):
                step = self.add(first, number)
                a = self._four(left, self.add(self.mul(step, self.spec.line), self.rows))
                start = self.add(self.mul(step, line), self.columns)
                b = [
                    x
                    for c in range(chunks)
                    for x in self._four(right, self.add(start, self.spec.tile * c))
                ]
                for x, totals in zip(a, sums, strict=True):
                    for y, total in zip(b, totals, strict=True):
                        total.value = self.fma(x, y, total.value)

    def _four(self, array: str, place: str) -> list[str]:
        four = self.load(FOUR, self.at("float", array, place), align=16)
        return [self.put(f"extractelement {FOUR} {four}, i64 {n}", "float") for n in range(4)]

    def store_turned(self, target: str, values: Sequence[Sequence[str]]) -> None:
        """Write a thread's values with the columns outermost: what the next product sums over."""
        for number, column in enumerate(zip(*values, strict=True)):
            place = self.add(self.mul(self.add(self.columns, number), self.spec.line), self.rows)
            self.store(self.vector(column), self.at("float", target, place), FOUR, align=16)

    def vector(self, values: Sequence[str]) -> str:
        """Four floats as one."""
        four = "poison"
        for number, value in enumerate(values):
            four = self.put(f"insertelement {FOUR} {four}, float {value}, i64 {number}", FOUR)
        return four

    def store_rows(
        self, target: str, first: str, limit: str, rows: Sequence[Sequence[str]]
    ) -> None:
        """Write a thread's part of a result to memory, where its rows and columns exist."""
        for number, values in enumerate(rows):
            row = self.add(self.add(first, self.rows), number)
            for chunk in range(len(values) // 4):
                column = self.add(self.columns, self.spec.tile * chunk)
                exists = self.test("slt", row, limit), self.test("slt", column, self.spec.head)
                with self.when(self.all_of(*exists)):
                    cell = self.add(self.mul(row, self.spec.head), column)
                    four = self.vector(values[4 * chunk : 4 * chunk + 4])
                    self.store(four, self.at("float", target, cell), FOUR, align=16)

    # --- scores ----------------------------------------------------------------------------------

    def line_of(self, array: str, line: str, rows: str) -> str:
        """The address of a head's first row."""
        return self.at("float", array, self.mul(self.mul(line, rows), self.spec.head))

    def score(self, product: str, line: str, query: str, key: str) -> str:
        """The score of a query and a key; -∞ where it is hidden, or there is none."""
        spec = self.spec
        value = self.floats("fmul", product, float_text(spec.scale))
        seen = [self.test("slt", query, "%queries"), self.test("slt", key, "%keys")]
        if spec.causal:
            seen.append(self.test("sle", key, self.add(query, "%offset")))
        if spec.mask:
            cell = self._mask_cell(line, query, key)
            if spec.mask == "bool":
                said = self.load("i8", self.at("i8", "%mask", cell))
                seen.append(self.put(f"icmp ne i8 {said}, 0", "i1"))
            else:
                number = self.load("float", self.at("float", "%mask", cell))
                value = self.floats("fadd", value, number)
        return self.choose_float(self.all_of(*seen), value, LOWEST)

    # --- dropout ---------------------------------------------------------------------------------

    def stays(self, line: str, query: str, key: str) -> list[str]:
        """Whether the weights of a query and of four keys stay; the first is a multiple of 4."""
        row = self.add(self.mul(line, "%queries"), query)
        number = self.add(self.mul(row, self.div("%keys", 4)), self.div(key, 4))
        words = self._random_words(self.put(f"trunc i64 {number} to i32", "i32"))
        limit = keep_threshold(self.spec.kept)
        return [self.put(f"icmp ult i32 {word}, {limit}", "i1") for word in words]

    def _random_words(self, number: str) -> list[str]:
        """The four words of a block, those that `random_bits` has for four neighbours."""
        low, high, *data = self._words
        a, b, c, d = number, str(DRAW << 16), *data
        for factors, steps in philox_rounds():
            first, second = (
                self._wide_product(x, factor) for x, factor in zip((a, c), factors, strict=True)
            )
            keys = [
                self.put(f"add i32 {word}, {step}", "i32")
                for word, step in zip((low, high), steps, strict=True)
            ]
            a, b, c, d = (
                self._three_xored(second[0], b, keys[0]), second[1],
                self._three_xored(first[0], d, keys[1]), first[1],
            )  # fmt: skip
        return [a, b, c, d]

    def _wide_product(self, word: str, factor: int) -> tuple[str, str]:
        """The high and the low half of a product of 32 bits each."""
        whole = self.mul(self.put(f"zext i32 {word} to i64"), factor)
        high = self.combine("lshr", whole, 32)
        return self.put(f"trunc i64 {high} to i32", "i32"), self.put(
            f"trunc i64 {whole} to i32", "i32"
        )

    def _three_xored(self, a: str, b: str, c: str) -> str:
        both = self.put(f"xor i32 {a}, {b}", "i32")
        return self.put(f"xor i32 {both}, {c}", "i32")

    def drop(self, stays: str, value: str) -> str:
        """A weight, or a cotangent, divided by `kept`; 0 where it does not stay."""
        scaled = self.floats("fmul", value, float_text(1 / self.spec.kept))
        return self.choose_float(stays, scaled, "0.0")

    def _mask_cell(self, line: str, query: str, key: str) -> str:
        """The place of a mask's number; the last one behind the end."""
        batch, head = self.div(line, "%heads"), self.rem(line, "%heads")
        row = self.least(query, self.sub("%queries", 1))
        column = self.least(key, self.sub("%keys", 1))
        place = self.add(self.mul(batch, "%mask_batch"), self.mul(head, "%mask_head"))
        return self.add(self.add(place, self.mul(row, "%mask_row")), column)
