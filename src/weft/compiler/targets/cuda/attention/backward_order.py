"""The order in which blocks of attention's backward pass take keys, and go over queries.

Units of a head follow each other: pairs of blocks under a causal mask, else one. Every warp of a
block walks in this order, and by it they agree on what each copy, product and sum is of.
"""

from __future__ import annotations

from collections.abc import Callable

from weft.compiler.targets.cuda.attention.backward_memory import KEYS, side_count, tile_queries
from weft.compiler.targets.cuda.attention.description import AttentionSpec
from weft.compiler.targets.cuda.ptx_writer import Kernel, Value
from weft.core.records import frozen

__all__ = ["KeyBlock", "QueryTile", "WorkOrder"]


@frozen(slots=False)
class KeyBlock:
    """128 keys of a head."""

    number: Value
    key_head: Value
    batch: Value
    first_tile: Value  # of queries that see a key
    side: Value | None  # of the head whose gradients are made, where it has two


@frozen(slots=False)
class QueryTile:
    """A tile of queries that a block goes over."""

    number: Value
    head: Value


class WorkOrder:
    """Writes the loops over blocks of keys and tiles of queries."""

    def __init__(self, kernel: Kernel, spec: AttentionSpec) -> None:
        self.kernel, self.spec = kernel, spec
        self.tile, self.sides = tile_queries(spec), side_count(spec)
        self.heads, self.batch = kernel.parameter("heads"), kernel.parameter("batch")
        self.group, self.key_heads = kernel.parameter("group"), kernel.parameter("key_heads")
        self.queries, self.keys = kernel.parameter("queries"), kernel.parameter("keys")
        self.offset = kernel.parameter("offset")

    def count(self) -> None:
        """Write how many tiles and blocks there are."""
        self.tiles = (self.queries + (self.tile - 1)) // self.tile
        self.blocks = (self.keys + (KEYS - 1)) // KEYS

    def for_each_block(self, write: Callable[[KeyBlock], None]) -> None:
        """All blocks of keys of this block of threads, the last of a head first."""
        kernel = self.kernel
        units = (self.blocks + 1) >> 1 if self.spec.causal else self.blocks
        unit = kernel.variable("u32", kernel.special_register("ctaid.x"), "unit")
        step = kernel.special_register("nctaid.x")
        with kernel.loop("unit") as loop:
            every = units * self.key_heads * self.batch
            loop.stop_if(unit >= (every * self.sides if self.sides > 1 else every))
            place, head = unit % units, unit // units
            number = kernel.variable("u32", self.blocks - place - 1, "block")
            if self.spec.causal:
                with kernel.loop("block") as pair:
                    write(self._block(number, head))
                    pair.stop_if(number <= place)
                    kernel.assign(number, place)
            else:
                write(self._block(number, head))
            kernel.assign(unit, unit + step)

    def _block(self, number: Value, head: Value) -> KeyBlock:
        """A block of a head, or of a side of it: both sides of a head run side by side."""
        kernel, side = self.kernel, None
        first = kernel.variable("u32", 0, "first_tile")
        if self.spec.causal:
            start = number * KEYS
            after = (start.maximum(self.offset) - self.offset) // self.tile
            first = after.minimum(self.tiles)
        if self.sides > 1:
            side, head = head % self.sides, head // self.sides
        return KeyBlock(number, head % self.key_heads, head // self.key_heads, first, side)

    def for_each_tile(self, block: KeyBlock, write: Callable[[QueryTile], None]) -> None:
        """All tiles that see the block, for each head that shares its keys."""
        kernel = self.kernel
        count = (self.tiles - block.first_tile) * self.group
        number = kernel.variable("u32", 0, "tile_number")
        with kernel.loop("tile") as loop:
            loop.stop_if(number >= count)
            write(self._tile(block, number))
            kernel.assign(number, number + 1)

    def _tile(self, block: KeyBlock, number: Value) -> QueryTile:
        """A tile by its number in the block's order.

        Without a mask, blocks start at different tiles, so that they do not wait for each other.
        """
        each = self.tiles - block.first_tile
        place, member = number % each, number // each
        head = block.key_head * self.group + member
        if self.spec.causal:
            return QueryTile(place + block.first_tile, head)
        start = block.number * self._stride()
        start = self.kernel.select(start < self.tiles, start, 0)
        return QueryTile((place + start) % self.tiles, head)

    def _stride(self) -> Value:
        """How many tiles lie between the starts of two blocks, without a mask."""
        return (self.tiles + self.blocks - 1) // self.blocks

    def tile_place(self, block: KeyBlock, tile: QueryTile) -> Value:
        """The number of the tile among those of all heads."""
        return (block.batch * self.heads + tile.head) * self.tiles + tile.number

    def half_place(self, block: KeyBlock, tile: QueryTile, half: int) -> Value:
        """The number of a half tile among those of all sides of all heads."""
        number = self.tile_place(block, tile)
        if block.side is not None:
            number = number * self.sides + block.side
        return number * 2 + half

    def turn(self, block: KeyBlock, tile: QueryTile) -> Value:
        """How many blocks add to a tile before this one.

        Under a causal mask the last block that a tile sees is first. Without, it is the block that
        starts at the tile, and then those before it: the order in which blocks come to the tile.
        """
        if self.spec.causal:
            visible = self.keys.minimum((tile.number + 1) * self.tile + self.offset)
            return (visible - 1) // KEYS - block.number
        starts = tile.number // self._stride()
        return (starts + self.blocks - block.number) % self.blocks
