"""How elements are compared when they are sorted: as unsigned integers, with their places below.

An element's *key* has the order of the elements: NaN is the largest, both zeros are one, a
descending order has all bits turned. A word is a key above and the element's place below. No two
words are equal, so any way to sort them is stable.

>>> from weft.core.dtypes import float32
>>> Keys(float32).word, Keys(float32).word_bytes
('i64', 8)
"""

from __future__ import annotations

from functools import cached_property

from weft.compiler.targets.llvm.ir_builder import IRBuilder
from weft.core.dtypes import DType
from weft.core.records import frozen

__all__ = ["MOST", "Keys", "search_line"]

MOST = 1 << 32
"""Places that fit below a key in a word of 64 bits."""
_INFINITY = {"float16": 0x7C00, "bfloat16": 0x7F80, "float32": 0x7F80_0000, "float64": 0x7FF << 52}


@frozen(slots=False)
class Keys:
    """How elements of a dtype are compared, and what words are made of them."""

    dtype: DType
    descending: bool = False
    wide: bool = False
    """Whether places need more than 32 bits."""

    @property
    def kind(self) -> str:
        """The integer type of a key."""
        return f"i{self.dtype.bits}"

    @property
    def place_bits(self) -> int:
        """The bits of a place."""
        return 64 if self.wide or self.dtype.bits > 32 else 32

    @property
    def word(self) -> str:
        """The integer type of a word."""
        return f"i{2 * self.place_bits}"

    @property
    def word_bytes(self) -> int:
        """The bytes of a word."""
        return self.place_bits // 4

    @cached_property
    def bytes(self) -> range:
        """Where the bytes of a key are in a word, the lowest first."""
        return range(self.place_bits, self.place_bits + self.dtype.bits, 8)

    def key(self, out: IRBuilder, pointer: str, place: str) -> str:
        """The key of an element."""
        kind, sign = self.kind, -(1 << self.dtype.bits - 1)
        found = out.put(f"load {kind}, ptr {out.at(kind, pointer, place)}")
        if self.dtype.is_floating:
            found = self._of_float(out, found, sign)
        elif self.dtype.kind == "signed":
            found = out.put(f"xor {kind} {found}, {sign}")
        return out.put(f"xor {kind} {found}, -1") if self.descending else found

    def _of_float(self, out: IRBuilder, bits: str, sign: int) -> str:
        kind = self.kind
        size = out.put(f"and {kind} {bits}, {-sign - 1}")
        is_negative = out.put(f"icmp slt {kind} {bits}, 0")
        below, above = out.put(f"xor {kind} {bits}, -1"), out.put(f"or {kind} {bits}, {sign}")
        key = out.put(f"select i1 {is_negative}, {kind} {below}, {kind} {above}")
        is_zero = out.put(f"icmp eq {kind} {size}, 0")
        key = out.put(f"select i1 {is_zero}, {kind} {sign}, {kind} {key}")
        is_nan = out.put(f"icmp ugt {kind} {size}, {_INFINITY[self.dtype.name]}")
        return out.put(f"select i1 {is_nan}, {kind} -1, {kind} {key}")

    def word_of(self, out: IRBuilder, pointer: str, stride: str, index: str) -> str:
        """The word of an element that stands at a place of a row."""
        key = self.key(out, pointer, out.mul(index, stride))
        wide = out.put(f"zext {self.kind} {key} to {self.word}")
        high = out.put(f"shl {self.word} {wide}, {self.place_bits}")
        place = (
            f"zext i64 {index} to {self.word}" if self.place_bits == 64 else f"add i64 {index}, 0"
        )
        return out.put(f"or {self.word} {high}, {out.put(place)}")

    def place(self, out: IRBuilder, word: str) -> str:
        """The place that a word has below its key."""
        if self.place_bits == 64:
            return out.put(f"trunc {self.word} {word} to i64")
        return out.put(f"and i64 {word}, {MOST - 1}")

    def load(self, out: IRBuilder, pointer: str, place: str | int) -> str:
        """A word of an array."""
        return out.put(f"load {self.word}, ptr {out.at(self.word, pointer, place)}, align 8")

    def store(self, out: IRBuilder, word: str, pointer: str, place: str) -> None:
        """Write a word of an array."""
        out.do(f"store {self.word} {word}, ptr {out.at(self.word, pointer, place)}, align 8")

    def digit(self, out: IRBuilder, word: str, shift: int) -> str:
        """A byte of a word."""
        moved = out.put(f"lshr {self.word} {word}, {shift}")
        low = moved if self.word == "i64" else out.put(f"trunc {self.word} {moved} to i64")
        return out.put(f"and i64 {low}, 255")


def search_line(out: IRBuilder, keys: Keys, line: str, n: str, key: str, side: str) -> str:
    """Where a key would go in a line of n elements in order; each step halves what is left."""
    how = "ult" if side == "left" else "ule"
    low, rest = out.variable(0), out.variable(n)
    with out.repeat():
        out.leave_unless(out.test("sgt", rest.value, 0))
        half = out.combine("lshr", rest.value, 1)
        middle = out.add(low.value, half)
        is_before = out.put(f"icmp {how} {keys.kind} {keys.key(out, line, middle)}, {key}")
        above = out.sub(out.sub(rest.value, half), 1)
        low.value = out.select(is_before, out.add(middle, 1), low.value)
        rest.value = out.select(is_before, above, half)
    return low.value
