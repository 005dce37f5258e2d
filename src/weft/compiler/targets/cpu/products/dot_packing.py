"""Words of 32 bits that hold terms of a product, and the packing of operands into them.

A packed operand is panels of columns (of rows, for a left operand): word by word of terms, the
words of the panel's columns side by side. What is missing of a last word is zeros. A word is as
many terms as an instruction multiplies; 16-bit floats that none multiplies are float32 in words.

>>> from weft.core.dtypes import bfloat16, int8, uint8
>>> words_of(bfloat16, bfloat16).terms, words_of(uint8, int8).total, words_of(int8, uint8)
(2, weft.int32, None)
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from weft.compiler.targets.llvm.ir_builder import KERNEL, IRBuilder
from weft.compiler.targets.llvm.ir_types import steps
from weft.compiler.targets.llvm.machine import Machine
from weft.core.dtypes import DType, bfloat16, float16, float32, int8, int32, uint8
from weft.core.records import frozen

LANES = 16
COLUMNS = 64
"""The columns of a panel of the right operand."""
ROWS = 192
"""The rows of a panel of a left operand that is packed."""
AHEAD = 16
"""How many rows ahead of the one that is packed are fetched."""
FLIP = int.from_bytes(b"\x80\x80\x80\x80", "little", signed=True)
"""The highest bits of four bytes."""


@frozen
class Words:
    """What the dot instruction of two dtypes takes: terms of a word, and the dtype of sums."""

    left: DType
    right: DType
    terms: int
    total: DType

    @property
    def lead(self) -> int:
        """The rows of a packed panel before its words: what sums begin with."""
        return 1 if self.total is int32 else 0

    @property
    def feature(self) -> str:
        """What a machine has that has the instruction."""
        if self.terms == 1:
            return "avx512bw"
        return "avx512vnni" if self.total is int32 else "avx512bf16"

    @property
    def element(self) -> str:
        """The LLVM type of one term before it is packed, as bits."""
        return f"i{self.right.bits}"


def words_of(left: DType, right: DType) -> Words | None:
    """The words of a product of two dtypes; None where no instruction multiplies them."""
    if left is bfloat16 and right is bfloat16:
        return Words(left, right, 2, float32)
    if left in (int8, uint8) and right is int8:
        return Words(left, right, 4, int32)
    return None


def widened_words(left: DType, right: DType) -> Words | None:
    """The words of 16-bit floats that become float32 as they are packed; None for other dtypes.

    A left operand may be float32 already, and is then read as it lies.
    """
    is_short = right in (float16, bfloat16) and left in (right, float32)
    return Words(left, right, 1, float32) if is_short else None


def has_instruction(words: Words, machine: Machine) -> bool:
    """Whether a machine multiplies such words."""
    return machine.width == LANES and machine.has_feature(words.feature)


def dot_of_bytes(out: IRBuilder, total: str, x: str, y: str) -> str:
    """Sums of int32, with the products of four bytes each added: unsigned ones by signed ones."""
    given = [f"<16 x i32> {each}" for each in (total, x, y)]
    return out.call("llvm.x86.avx512.vpdpbusd.512", *given, result="<16 x i32>")


@frozen
class _Panel:
    """Where a panel that is being packed comes from, and where it goes."""

    source: str
    first: str
    """Its first column."""
    wanted: str
    """How many columns it has."""
    to: str
    columns: str
    terms: str
    width: str
    words: str


@contextmanager
def _panels(words: Words, out: IRBuilder) -> Iterator[_Panel]:
    """Go through panels: the source, the packed operand; columns, terms, panels, width, lead."""
    source, packed = out.buffer(0), out.buffer(1)
    columns, terms, panels, width, lead = (out.number("%sizes", place) for place in range(5))
    count = out.div(out.add(terms, words.terms - 1), words.terms)
    size = out.mul(out.add(count, lead), width)
    item_size, ahead = out.mul(columns, terms), out.mul(lead, width)
    with out.loop("%begin", "%end") as p:
        first = out.mul(out.rem(p, panels), width)
        start = out.at(words.element, source, out.mul(out.div(p, panels), item_size))
        begin = out.at("i32", packed, out.mul(p, size))
        to, wanted = out.at("i32", begin, ahead), out.least(out.sub(columns, first), width)
        panel = _Panel(start, first, wanted, to, columns, terms, width, count)
        yield panel
        if words.lead:
            with out.when(out.test("sgt", lead, 0)):
                _store_first_sums(words, out, panel, begin)


def pack_plain(words: Words) -> IRBuilder:
    """The function that packs an operand whose columns lie side by side."""
    out = IRBuilder("pack_plain", KERNEL, public=True)
    with _panels(words, out) as panel:
        whole = out.div(panel.terms, words.terms)
        with out.loop(0, whole) as word:
            _woven_rows(words, out, panel, word, None)
        rest = out.sub(panel.terms, out.mul(whole, words.terms))
        with out.when(out.test("sgt", rest, 0)):
            _woven_rows(words, out, panel, whole, rest)
    return out


def _woven_rows(words: Words, out: IRBuilder, panel: _Panel, word: str, rest: str | None) -> None:
    """Weave the rows of one word of terms; of the last word there may be a `rest` only."""
    group, lanes = words.terms, LANES * words.terms
    start = out.at(words.element, panel.source, panel.first)
    row = out.mul(word, group)
    rows = [
        out.at(words.element, start, out.mul(out.add(row, r), panel.columns)) for r in range(group)
    ]
    line = out.at("i32", panel.to, out.mul(word, panel.width))
    ahead = out.mul(panel.columns, AHEAD)
    with out.loop(0, panel.wanted, lanes) as j:
        mask = _mask(words, out, out.sub(panel.wanted, j))
        loaded = []
        for r, place in enumerate(rows):
            own = mask
            if rest is not None:
                there = out.test("slt", r, rest)
                kind = f"<{lanes} x i1>"
                own = out.put(f"select i1 {there}, {kind} {mask}, {kind} zeroinitializer")
            here = out.at(words.element, place, j)
            loaded.append(_load(words, out, here, own))
            if rest is None:  # rows are far apart: none is fetched because of the one before
                out.prefetch(out.at(words.element, here, ahead))
        for v, vector in enumerate(_interleave_rows(words, out, loaded)):
            target = out.at("i32", out.at("i32", line, j), v * LANES)
            out.do(f"store <16 x i32> {vector}, ptr {target}, align 4")


def _mask(words: Words, out: IRBuilder, count: str) -> str:
    """The first lanes, as many as there are elements."""
    lanes, element = LANES * words.terms, words.element
    kind = f"<{lanes} x {element}>"
    few = out.put(f"trunc i64 {out.least(count, lanes)} to {element}")
    one = out.put(f"insertelement {kind} poison, {element} {few}, i64 0")
    zeros = f"<{lanes} x i32> zeroinitializer"
    every = out.put(f"shufflevector {kind} {one}, {kind} poison, {zeros}")
    return out.put(f"icmp ult {kind} {steps(lanes, element)}, {every}")


def _load(words: Words, out: IRBuilder, place: str, mask: str) -> str:
    lanes = LANES * words.terms
    kind, suffix = f"<{lanes} x {words.element}>", f"v{lanes}{words.element}"
    given = f"ptr {place}", "i32 1", f"<{lanes} x i1> {mask}", f"{kind} zeroinitializer"
    return out.call(f"llvm.masked.load.{suffix}.p0", *given, result=kind)


def _interleave_rows(words: Words, out: IRBuilder, rows: Sequence[str]) -> list[str]:
    """Rows of terms as vectors of words: the n-th terms of all rows, then the next ones."""
    lanes = LANES * words.terms
    kind, made = f"<{lanes} x {words.element}>", list(rows)
    if words.terms == 2:
        made = list(_weave_vectors(out, kind, rows[0], rows[1], lanes, 1))
    elif words.terms == 4:
        pairs = [_weave_vectors(out, kind, rows[i], rows[i + 1], lanes, 1) for i in (0, 2)]
        halves = zip(*pairs, strict=True)
        made = [
            v
            for first, second in halves
            for v in _weave_vectors(out, kind, first, second, lanes, 2)
        ]
    return [_as_words(words, out, vector) for vector in made]


def _as_words(words: Words, out: IRBuilder, vector: str) -> str:
    """A vector of terms as one of words; a single 16-bit float becomes a float32."""
    if words.terms > 1:
        kind = f"<{LANES * words.terms} x {words.element}>"
        return out.put(f"bitcast {kind} {vector} to <16 x i32>")
    if words.right is bfloat16:
        wide = out.put(f"zext <16 x i16> {vector} to <16 x i32>")
        return out.put(f"shl <16 x i32> {wide}, splat (i32 16)")
    half = out.put(f"bitcast <16 x i16> {vector} to <16 x half>")
    wide = out.put(f"fpext <16 x half> {half} to <16 x float>")
    return out.put(f"bitcast <16 x float> {wide} to <16 x i32>")


def _weave_vectors(
    out: IRBuilder, kind: str, first: str, second: str, lanes: int, unit: int
) -> tuple[str, str]:
    """Two vectors that take units of lanes of two vectors in turn."""
    made = []
    for half in range(2):
        order = []
        for place in range(lanes):
            number, inside = divmod(place, unit)
            source = half * lanes // 2 + number // 2 * unit + inside
            order.append(f"i32 {source + (lanes if number % 2 else 0)}")
        text = f"<{lanes} x i32> <{', '.join(order)}>"
        made.append(out.put(f"shufflevector {kind} {first}, {kind} {second}, {text}"))
    return made[0], made[1]


def pack_turned(words: Words) -> IRBuilder:
    """The function that packs an operand whose terms lie side by side: squares of words turn."""
    out = IRBuilder("pack_turned", KERNEL, public=True)
    with _panels(words, out) as panel:
        last = out.sub(panel.columns, 1)
        with out.loop(0, panel.wanted, LANES) as j:
            column = out.add(panel.first, j)
            places = [out.least(out.add(column, i), last) for i in range(LANES)]
            rows = [
                out.at(words.element, panel.source, out.mul(place, panel.terms)) for place in places
            ]
            with out.loop(0, panel.words, LANES) as word:
                _turned_square(words, out, panel, rows, word, j)
    return out


def _turned_square(
    words: Words, out: IRBuilder, panel: _Panel, rows: Sequence[str], word: str, j: str
) -> None:
    kind, term = "<16 x i32>", out.mul(word, words.terms)
    mask = _mask(words, out, out.sub(panel.terms, term))
    loaded = [_load(words, out, out.at(words.element, row, term), mask) for row in rows]
    square = [_as_words(words, out, each) for each in loaded]
    for _ in range(LANES.bit_length() - 1):  # in each round the first half is woven into the second
        pairs = zip(square[: LANES // 2], square[LANES // 2 :], strict=True)
        square = [
            v for first, second in pairs for v in _weave_vectors(out, kind, first, second, LANES, 1)
        ]
    line, count = out.at("i32", panel.to, j), out.sub(panel.words, word)
    all_lanes = "<16 x i1> splat (i1 true), <16 x i1> zeroinitializer"
    for i, vector in enumerate(square):
        there = out.put(f"select i1 {out.test('slt', i, count)}, {all_lanes}")
        place = out.at("i32", line, out.mul(out.add(word, i), panel.width))
        given = f"{kind} {vector}", f"ptr {place}", "i32 4", f"<16 x i1> {there}"
        out.call("llvm.masked.store.v16i32.p0", *given)


def _store_first_sums(words: Words, out: IRBuilder, panel: _Panel, begin: str) -> None:
    """Store what sums begin with: what 128 more in each left element adds, taken away."""
    kind = "<16 x i32>"
    with out.loop(0, panel.wanted, LANES) as j:
        total = out.variable("zeroinitializer", kind)
        with out.loop(0, panel.words if words.left is int8 else 0) as w:
            place = out.at("i32", panel.to, out.add(out.mul(w, panel.width), j))
            word = out.load(kind, place, align=4)
            total.value = dot_of_bytes(out, total.value, f"splat (i32 {FLIP})", word)
        value = out.put(f"sub {kind} zeroinitializer, {total.value}")
        out.store(value, out.at("i32", begin, j), kind, align=4)
