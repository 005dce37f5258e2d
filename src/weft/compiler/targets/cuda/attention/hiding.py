"""What hides or drops single weights of attention: masks in memory, and the bits of dropout.

Both are the same for all kernels but for where a thread's weights lie. A mask of truth values and
dropout become bits of a register, one for each weight of the thread, while products run; a mask of
numbers is added to the scores when they are there.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from weft.compiler.targets.cuda.attention.description import AttentionSpec
from weft.compiler.targets.cuda.ptx_writer import Kernel, Value, at, braces
from weft.compiler.targets.cuda.warpgroup import unpacked_pair
from weft.ops.random_bits import DRAW, philox_rounds

__all__ = ["MaskReader", "WordSource", "bit_is_set", "hide_unseen", "keep_threshold"]

_BYTES = {"bool": 1, "bfloat16": 2, "float16": 2, "float32": 4}


def keep_threshold(kept: float) -> int:
    """A weight stays where its random word is below this: `word >> 8 < kept · 2²⁴`, as floats.

    >>> hex(keep_threshold(0.5))
    '0x80000000'
    """
    return math.ceil(float(np.float32(kept)) * 2**24) << 8


def bit_is_set(bits: Value, place: int) -> Value:
    """The predicate that a bit is set."""
    return (bits & (1 << place)).differs(0)


def hide_unseen(kernel: Kernel, scores: Sequence[Value], seen_bits: Sequence[Value]) -> None:
    """Scores of keys that a query does not see become -∞: those whose bits are not set."""
    for number, score in enumerate(scores):
        j, h, t = number // 4, number // 2 % 2, number % 2
        seen = bit_is_set(seen_bits[h], 2 * j + t)
        kernel.do("selp.f32", score, score, float("-inf"), seen)


class MaskReader:
    """Reads the mask of a head, [queries, keys], of which each axis may have stride 0."""

    def __init__(self, kernel: Kernel, spec: AttentionSpec) -> None:
        self.kernel, self.spec = kernel, spec
        self.item = _BYTES[spec.mask]
        self.pointer = kernel.parameter("mask")
        names = ("mask_batch_stride", "mask_head_stride", "mask_row_stride")
        self.strides = [kernel.parameter(name) for name in names]

    def head_address(self, batch: Value, head: Value) -> Value:
        """Where the mask of a head begins."""
        kernel = self.kernel
        index = kernel.let("u64", "mul.wide.u32", batch, self.strides[0])
        index = index + kernel.let("u64", "mul.wide.u32", head, self.strides[1])
        return self.pointer + index * self.item

    def element_address(self, start: Value, row: Value, column: Value) -> Value:
        """Where the element of a query and a key lies."""
        kernel = self.kernel
        index = kernel.let("u64", "mul.wide.u32", row, self.strides[2])
        index = index + kernel.let("u64", "cvt.u64.u32", column)
        return start + index * self.item

    def truth(self, address: Value, offset: int, when: Value | None = None) -> Value:
        """A truth value, 0 or 1; 0 where it is not read."""
        return self._load("u8", address, offset, when)

    def truth_pair(self, address: Value, offset: int, when: Value | None = None) -> Value:
        """Two neighbouring truth values as bits 0 and 1."""
        both = self._load("u16", address, offset, when)
        return (both | (both >> 7)) & 3

    def _load(self, kind: str, address: Value, offset: int, when: Value | None) -> Value:
        kernel = self.kernel
        if when is None:
            return kernel.let("u32", f"ld.global.nc.{kind}", at(address, offset))
        value = kernel.variable("u32", 0)
        kernel.do(f"ld.global.nc.{kind}", value, at(address, offset), when=when)
        return value

    def sixteen_truths(self, address: Value, offset: int, when: Value | None = None) -> Value:
        """Sixteen neighbouring truth values as bits 0 to 15; zeros where they are not read."""
        kernel = self.kernel
        words = [kernel.variable("u32", 0) for _ in range(4)]
        kernel.do("ld.global.nc.v4.u32", braces(words), at(address, offset), when=when)
        bits = kernel.variable("u32", 0, "truths")
        for place, word in enumerate(words):
            # Bytes b₀ to b₃, each 0 or 1, are bits 24 to 27 of the product.
            nibble = ((word * 0x01020408) >> 24) & 15
            kernel.assign(bits, bits | (nibble << (4 * place)))
        return bits

    def number(self, address: Value, offset: int, when: Value | None = None) -> Value:
        """A number, as float32; 0 where it is not read."""
        kernel, dtype = self.kernel, self.spec.mask
        if dtype == "float32":
            value = kernel.variable("f32", 0.0)
            kernel.do("ld.global.nc.f32", value, at(address, offset), when=when)
            return value
        half = kernel.variable("b16", 0)
        kernel.do("ld.global.nc.b16", half, at(address, offset), when=when)
        if dtype == "float16":
            return kernel.let("f32", "cvt.f32.f16", half)
        return kernel.let("f32", "mov.b32", braces([kernel.variable("b16", 0), half]))

    def number_pair(
        self, address: Value, offset: int, when: Value | None = None
    ) -> Sequence[Value]:
        """Two neighbouring numbers; each by itself where they do not lie at a place for two."""
        kernel, dtype = self.kernel, self.spec.mask
        if self.spec.aligned == 1:
            return [self.number(address, offset + self.item * t, when) for t in (0, 1)]
        if dtype == "float32":
            pair = [kernel.variable("f32", 0.0) for _ in (0, 1)]
            kernel.do("ld.global.nc.v2.f32", braces(pair), at(address, offset), when=when)
            return pair
        word = kernel.variable("b32", 0)
        kernel.do("ld.global.nc.b32", word, at(address, offset), when=when)
        return self.pair_numbers(word)

    def pair_numbers(self, pair: Value) -> list[Value]:
        """The two numbers of a pair of 16 bits each."""
        return unpacked_pair(self.kernel, self.spec.mask, pair)


class WordSource:
    """The random words of dropout: those that `random_bits` has for the matrix of weights."""

    def __init__(self, kernel: Kernel) -> None:
        self.kernel = kernel
        key, data = kernel.parameter("key"), kernel.parameter("data")
        self.key = [kernel.let("u32", "ld.global.u32", at(key, 4 * k)) for k in (0, 1)]
        self.data = [kernel.let("u32", "ld.global.u32", at(data, 4 * k)) for k in (0, 1)]

    def block(self, number: Value) -> list[Value]:
        """The four words of a block, for four neighbouring weights."""
        kernel = self.kernel
        counter: list[Value] = [
            number, kernel.variable("u32", DRAW << 16), self.data[0], self.data[1],
        ]  # fmt: skip
        low, high = self.key
        for multipliers, (first_step, second_step) in philox_rounds():
            a, b, c, d = counter
            first, second = (
                [kernel.let("u32", f"mul.{half}.u32", x, factor) for half in ("hi", "lo")]
                for x, factor in zip((a, c), multipliers, strict=True)
            )
            counter = [
                second[0] ^ b ^ (low + first_step), second[1],
                first[0] ^ d ^ (high + second_step), first[1],
            ]  # fmt: skip
        return counter

    def kept_nibble(self, number: Value, kept: float) -> Value:
        """Which of the four weights of a block stay, as bits 0 to 3."""
        kernel, nibble = self.kernel, self.kernel.variable("u32", 0, "nibble")
        for place, word in enumerate(self.block(number)):
            stays = word < keep_threshold(kept)
            kernel.do("or.b32", nibble, nibble, 1 << place, when=stays)
        return nibble
