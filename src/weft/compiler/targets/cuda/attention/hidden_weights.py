"""Masks and dropout of weights whose rows are keys and whose columns are queries.

So they lie in the backward pass: register `4 j + 2 h + t` of a thread is the weight of key `row +
8 h` and of query `column + 8 j + t`, counted from where its tile begins.
"""

from __future__ import annotations

from collections.abc import Callable

from weft.compiler.targets.cuda.attention.description import AttentionSpec
from weft.compiler.targets.cuda.attention.hiding import (
    MaskReader,
    WordSource,
    bit_is_set,
    hide_unseen,
)
from weft.compiler.targets.cuda.ptx_writer import Kernel, Value
from weft.compiler.targets.cuda.warpgroup import Thread
from weft.core.records import frozen

__all__ = ["HiddenWeights", "WeightTile"]

Where = tuple[int, int, int]
"""The numbers j, h and t of a weight."""


@frozen(slots=False)
class WeightTile:
    """Which weights a warpgroup holds."""

    first_key: Value
    first_query: Value
    batch: Value
    head: Value


class HiddenWeights:
    """Which weights of a thread are hidden or dropped: one bit for each, in a register for each h.

    extent: the keys and queries of a tile. sizes: heads, queries and keys of all.
    """

    def __init__(
        self,
        kernel: Kernel,
        spec: AttentionSpec,
        place: Thread,
        extent: tuple[int, int],
        sizes: tuple[Value, Value, Value],
    ) -> None:
        self.kernel, self.spec, self.place = kernel, spec, place
        self.tile_keys, self.tile_queries = extent
        self.heads, self.queries, self.keys = sizes
        self.seen_bits = kernel.registers("u32", "seen", 2)
        self.kept_bits = kernel.registers("u32", "kept", 2)
        if spec.mask:
            self.mask = MaskReader(kernel, spec)
        if spec.drops:
            self.words = WordSource(kernel)

    def read(self, where: WeightTile) -> None:
        """Read truth values of the mask, and draw the bits of dropout."""
        if self.spec.mask == "bool" and self.spec.aligned == 16:
            self._read_wide_truth(where)
        elif self.spec.mask == "bool":
            for bits in self.seen_bits:
                self.kernel.assign(bits, 0)
            self._for_each_element(where, self._read_truth)
        if self.spec.drops:
            self._draw_bits(where)

    def _read_truth(self, place: Value, exists: Value | None, number: Where) -> None:
        j, h, t = number
        flag = self.mask.truth(place, 8 * h * self.mask.item, exists)
        # Bit 2 j + t of register h: the order in which a thread holds its weights.
        bits = self.seen_bits[h]
        self.kernel.assign(bits, bits | (flag << (2 * j + t)))

    def add_mask(self, where: WeightTile, scores: list[Value]) -> None:
        """Scores become score · scale + mask, where a mask is added."""
        if not self.spec.adds:
            return

        def add_number(place: Value, exists: Value | None, number: Where) -> None:
            j, h, t = number
            added = self.mask.number(place, 8 * h * self.mask.item, exists)
            score = scores[4 * j + 2 * h + t]
            self.kernel.do("fma.rn.f32", score, score, self.spec.factor, added)

        self._for_each_element(where, add_number)

    def hide(self, scores: list[Value]) -> None:
        """Scores of keys that a query does not see become -∞."""
        if self.spec.mask == "bool":
            hide_unseen(self.kernel, scores, self.seen_bits)

    def with_dropout(
        self, weights: list[Value], backs: list[Value], where: tuple[int, int]
    ) -> tuple[list[Value], list[Value]]:
        """Two weights, to be divided by `kept` at the end, and two cotangents, after dropout."""
        kernel, (j, h) = self.kernel, where
        stays = [bit_is_set(self.kept_bits[h], 2 * j + t) for t in (0, 1)]
        scaled = [back * (1 / self.spec.kept) for back in backs]
        kept, changed = (
            [kernel.select(stay, x, 0.0, "f32") for stay, x in zip(stays, pair, strict=True)]
            for pair in (weights, scaled)
        )
        return kept, changed

    def _for_each_element(
        self, where: WeightTile, write: Callable[[Value, Value | None, Where], None]
    ) -> None:
        """Go over the mask of a thread's weights: places, whether they exist, and j, h and t."""
        kernel, mask = self.kernel, self.mask
        key = where.first_key + self.place.row
        row = where.first_query + self.place.column
        start = mask.head_address(where.batch, where.head)
        corner = mask.element_address(start, row, key)
        step = kernel.let("u64", "mul.wide.u32", mask.strides[2], mask.item)
        whole_keys = where.first_key + self.tile_keys <= self.keys
        is_whole = whole_keys & (where.first_query + self.tile_queries <= self.queries)
        # The code stands here twice: tiles inside of the mask, which are most, ask for no borders.
        for checks in (False, True):
            with kernel.when(~is_whole if checks else is_whole):
                place = kernel.variable("u64", corner, "mask_place")
                for j in range(self.tile_queries // 8):
                    for t in (0, 1):
                        for h in (0, 1):
                            exists = None
                            if checks:
                                inside = row + (8 * j + t) < self.queries
                                exists = inside & (key + 8 * h < self.keys)
                            write(place, exists, (j, h, t))
                        # From query 8 j to 8 j + 1, and from there to 8 (j + 1).
                        distance = step if t == 0 else step * 7
                        kernel.assign(place, place + distance)

    def _read_wide_truth(self, where: WeightTile) -> None:
        """The bits of the mask: a lane reads 16 keys of two queries at a time, and all lanes share.

        A warp has 16 keys. Lane n reads queries 2 n and 2 n + 1 of each 64, as the two halves of a
        register. The queries of step j of a thread are those of lane 4 (j % 8) + quad.
        """
        kernel, lane = self.kernel, self.place.lane
        first_key = where.first_key + (self.place.row - (lane >> 2))
        has_keys = first_key < self.keys
        start = self.mask.head_address(where.batch, where.head)
        pairs = []
        for stretch in range(self.tile_queries // 64):
            pair = kernel.variable("u32", 0, "pair")
            for t in (0, 1):
                query = where.first_query + lane * 2 + (64 * stretch + t)
                exists = has_keys & (query < self.queries)
                place = self.mask.element_address(start, query, first_key)
                bits = self.mask.sixteen_truths(place, 0, exists)
                kernel.assign(pair, pair | (bits << (16 * t)))
            pairs.append(pair)
        quad, key = self.place.column >> 1, lane >> 2
        for bits in self.seen_bits:
            kernel.assign(bits, 0)
        # Each lane takes the bits of its own two queries from the lane that has read them.
        for j in range(self.tile_queries // 8):
            source = quad + 4 * (j % 8)
            both = kernel.let("u32", "shfl.sync.idx.b32", pairs[j // 8], source, 31, -1) >> key
            for h in (0, 1):
                # The lower half is query t = 0, the upper one t = 1; h is 8 keys further.
                two = ((both >> (8 * h)) & 1) | ((both >> (8 * h + 15)) & 2)
                kernel.assign(self.seen_bits[h], self.seen_bits[h] | (two << (2 * j)))

    def _draw_bits(self, where: WeightTile) -> None:
        """The bits of dropout: four lanes hold the keys of a block, and each draws one query's.

        For two steps of eight columns a thread has four queries, m = 2 (j % 2) + t. The lane whose
        key is number m of its four draws the block of query m; then all four share all bits.
        """
        kernel = self.kernel
        member = (self.place.lane >> 2) & 3
        query = where.first_query + self.place.column + (member >> 1) * 8 + (member & 1)
        line = (where.batch * self.heads + where.head) * self.queries + query
        blocks = self.keys >> 2
        first = line * blocks + ((where.first_key + self.place.row) >> 2)
        for bits in self.kept_bits:
            kernel.assign(bits, 0)
        pair = kernel.variable("u32", 0, "pair")
        with kernel.loop("draw") as loop:
            loop.stop_if(pair.equals(self.tile_queries // 16))
            number = first + blocks * 16 * pair
            for h in (0, 1):
                every = self.words.kept_nibble(number + 2 * h, self.spec.kept)
                every = every << (member * 4)
                # Lanes 4 and 8 apart hold the other keys of the block: after two exchanges each
                # has all four nibbles, that of query m at bit 4 m.
                for distance in (4, 8):
                    other = kernel.let("u32", "shfl.sync.bfly.b32", every, distance, 31, -1)
                    every = every | other
                mine = every >> member
                four = mine & 1
                # `mine` has this lane's key of query m at bit 4 m, which goes to bit m.
                for m in (1, 2, 3):
                    four = four | ((mine >> (3 * m)) & (1 << m))
                kernel.assign(self.kept_bits[h], self.kept_bits[h] | (four << (pair * 4)))
            kernel.assign(pair, pair + 1)
