"""Masks and dropout of scores whose rows are queries and whose columns are keys.

So they lie in the forward pass: register `4 j + 2 h + t` of a thread is the score of query `row +
8 h` and of key `column + 8 j + t`, counted from where its tile and its part begin.
"""

from __future__ import annotations

from weft.compiler.targets.cuda.attention.description import AttentionSpec
from weft.compiler.targets.cuda.attention.hiding import (
    MaskReader,
    WordSource,
    bit_is_set,
    hide_unseen,
)
from weft.compiler.targets.cuda.ptx_writer import Kernel, Value, at, braces
from weft.compiler.targets.cuda.warpgroup import Thread

__all__ = ["HiddenScores"]


class HiddenScores:
    """Which scores of a thread are hidden or dropped: one bit for each, in a register for each h.

    sizes: heads, queries and keys of all.
    """

    def __init__(
        self,
        kernel: Kernel,
        spec: AttentionSpec,
        place: Thread,
        part_keys: int,
        sizes: tuple[Value, Value, Value],
    ) -> None:
        self.kernel, self.spec, self.place = kernel, spec, place
        self.part_keys = part_keys
        self.heads, self.queries, self.keys = sizes
        self.seen_bits = kernel.registers("u32", "seen", 2)
        self.kept_bits = kernel.registers("u32", "kept", 2)
        if spec.mask:
            self.mask = MaskReader(kernel, spec)
            self.mask_rows = kernel.registers("u64", "mask_row", 2)
        if spec.drops:
            self.words = WordSource(kernel)
            self.blocks = kernel.registers("u32", "block", 2)

    def begin(self, first_row: Value, batch: Value, head: Value) -> None:
        """Where the rows of this thread lie in the mask, and in the sequence of random words."""
        kernel = self.kernel
        for h in (0, 1):
            row = (first_row + self.place.row + 8 * h).minimum(self.queries - 1)
            if self.spec.mask:
                start = self.mask.head_address(batch, head)
                place = self.mask.element_address(start, row, self.place.column)
                kernel.assign(self.mask_rows[h], place)
            if self.spec.drops:
                line = (batch * self.heads + head) * self.queries + row
                kernel.assign(self.blocks[h], line * (self.keys >> 2))

    def read(self, start: Value) -> None:
        """Read truth values of the mask, and draw the bits of dropout, from a key on."""
        kernel = self.kernel
        if self.spec.mask == "bool" and self.spec.aligned == 16:
            self._read_wide_truth(start)
        elif self.spec.mask == "bool":
            is_whole = start + self.part_keys <= self.keys
            left = kernel.let("s32", "sub.s32", self.keys - self.place.column, start)
            with kernel.when(is_whole):
                self._read_truth(start, None)
            with kernel.when(~is_whole):
                self._read_truth(start, left)
        if self.spec.drops:
            self._draw_bits(start)

    def _read_truth(self, start: Value, left: Value | None) -> None:
        """The bits of the mask; `left` keys from the thread's column on are there, or all."""
        kernel = self.kernel
        for h in (0, 1):
            row = kernel.address(self.mask_rows[h], start, self.mask.item)
            bits = self.seen_bits[h]
            kernel.assign(bits, 0)
            for j in range(self.part_keys // 8):
                if self.spec.aligned == 2:
                    exists = None if left is None else left > 8 * j
                    pair = self.mask.truth_pair(row, 8 * j, exists)
                    kernel.assign(bits, bits | (pair << (2 * j)))
                    continue
                for t in (0, 1):
                    exists = None if left is None else left > 8 * j + t
                    flag = self.mask.truth(row, 8 * j + t, exists)
                    kernel.assign(bits, bits | (flag << (2 * j + t)))

    def _read_wide_truth(self, start: Value) -> None:
        """The bits of the mask: of four lanes that share a row each reads a quarter, and all share.

        A thread needs columns 8 j + 2 quad + t, of which four j are in a quarter of 32.
        """
        kernel, quad = self.kernel, self.place.column >> 1
        share = self.part_keys // 4
        for h in (0, 1):
            # From the thread's column to that of its quarter.
            first = quad * share
            place = kernel.address(self.mask_rows[h], start + first, 1)
            place = place - kernel.let("u64", "cvt.u64.u32", self.place.column)
            mine = kernel.variable("u32", 0, "quarter")
            for piece in range(share // 16):
                exists = start + first + 16 * piece < self.keys
                bits = self.mask.sixteen_truths(place, 16 * piece, exists)
                kernel.assign(mine, mine | (bits << (16 * piece)))
            seen = self.seen_bits[h]
            kernel.assign(seen, 0)
            for lane in range(4):
                source = (self.place.lane & 28) + lane
                quarter = kernel.let("u32", "shfl.sync.idx.b32", mine, source, 31, -1)
                quarter = quarter >> (quad * 2)
                for j in range(share // 8):
                    both = (quarter >> (8 * j)) & 3
                    kernel.assign(seen, seen | (both << (2 * (lane * share // 8 + j))))

    def _draw_bits(self, start: Value) -> None:
        """The bits of dropout: two lanes share blocks of four keys, and each draws half of them."""
        kernel = self.kernel
        quad = self.place.column >> 1
        odd = quad & 1
        is_odd = odd.equals(1)
        for h in (0, 1):
            kernel.assign(self.kept_bits[h], 0)
        inside = (start >> 2) + (quad >> 1) + odd * 2
        pair = kernel.variable("u32", 0, "pair")
        with kernel.loop("draw") as loop:
            loop.stop_if(pair.equals(self.part_keys // 16))
            for h in (0, 1):
                number = self.blocks[h] + inside + pair * 4
                mine = self.words.kept_nibble(number, self.spec.kept)
                other = kernel.let("u32", "shfl.sync.bfly.b32", mine, 1, 31, -1)
                nibbles = kernel.select(is_odd, other, mine), kernel.select(is_odd, mine, other)
                both = [(nibble >> (odd * 2)) & 3 for nibble in nibbles]
                four = (both[0] | (both[1] << 2)) << (pair * 4)
                kernel.assign(self.kept_bits[h], self.kept_bits[h] | four)
            kernel.assign(pair, pair + 1)

    def add_mask(self, start: Value, scores: list[Value]) -> None:
        """Scores become score · scale + mask, where a mask is added."""
        if not self.spec.adds:
            return
        if self.spec.aligned == 8:
            self._add_wide_numbers(scores, start)
            return
        kernel = self.kernel
        is_whole = start + self.part_keys <= self.keys
        left = kernel.let("s32", "sub.s32", self.keys - self.place.column, start)
        with kernel.when(is_whole):
            self._add_numbers(scores, start, None)
        with kernel.when(~is_whole):
            self._add_numbers(scores, start, left)

    def _add_numbers(self, scores: list[Value], start: Value, left: Value | None) -> None:
        """Scores become score · scale + mask."""
        kernel, item = self.kernel, self.mask.item
        for h in (0, 1):
            row = kernel.address(self.mask_rows[h], start, item)
            for j in range(self.part_keys // 8):
                if left is None or self.spec.aligned == 2:
                    exists = None if left is None else left > 8 * j
                    numbers = self.mask.number_pair(row, 8 * j * item, exists)
                else:
                    numbers = [
                        self.mask.number(row, (8 * j + t) * item, left > 8 * j + t) for t in (0, 1)
                    ]
                for t in (0, 1):
                    score = scores[4 * j + 2 * h + t]
                    kernel.do("fma.rn.f32", score, score, self.spec.factor, numbers[t])

    def _add_wide_numbers(self, scores: list[Value], start: Value) -> None:
        """The same for 16-bit masks: a lane reads eight neighbours, and four lanes exchange them.

        Of 32 columns lane `quad` reads those of step j = quad as four pairs, one for each lane.
        """
        kernel, quad = self.kernel, self.place.column >> 1
        for h in (0, 1):
            place = kernel.address(self.mask_rows[h], start + self.place.column * 3, 2)
            for group in range(self.part_keys // 32):
                exists = start + quad * 8 + 32 * group < self.keys
                pairs = [kernel.variable("b32", 0) for _ in range(4)]
                at_group = at(place, 64 * group)
                kernel.do("ld.global.nc.v4.b32", braces(pairs), at_group, when=exists)
                for j, pair in enumerate(self._transposed_pairs(pairs, quad)):
                    numbers = self.mask.pair_numbers(pair)
                    for t in (0, 1):
                        score = scores[4 * (4 * group + j) + 2 * h + t]
                        kernel.do("fma.rn.f32", score, score, self.spec.factor, numbers[t])

    def _transposed_pairs(self, pairs: list[Value], quad: Value) -> list[Value]:
        """From register k of lane i of four: register i of lane k."""
        kernel, found = self.kernel, list(pairs)
        for bit in (1, 2):
            is_upper = (quad & bit).differs(0)
            for low in (k for k in range(4) if not k & bit):
                high = low | bit
                sent = kernel.select(is_upper, found[low], found[high], "b32")
                other = kernel.let("b32", "shfl.sync.bfly.b32", sent, bit, 31, -1)
                found[low], found[high] = (
                    kernel.select(is_upper, other, found[low], "b32"),
                    kernel.select(is_upper, found[high], other, "b32"),
                )
        return found

    def hide(self, scores: list[Value]) -> None:
        """Scores of keys that a query does not see become -∞."""
        if self.spec.mask == "bool":
            hide_unseen(self.kernel, scores, self.seen_bits)

    def kept_pair(self, pair: list[Value], j: int, h: int) -> list[Value]:
        """Two neighbouring weights after dropout, to be divided by `kept` at the end."""
        stays = [bit_is_set(self.kept_bits[h], 2 * j + t) for t in (0, 1)]
        return [self.kernel.select(stays[t], pair[t], 0.0, "f32") for t in (0, 1)]
