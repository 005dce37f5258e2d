"""Tiles of attention's backward pass, and where they lie in shared memory.

A block makes the gradients of at most 128 numbers of a head, its *side*: heads of 256 have two. The
side's numbers of keys, values, queries and cotangents have places of their own; those of the other
side, which only scores and the weights' cotangents need, lie beside them.
"""

from __future__ import annotations

from weft.compiler.targets.cuda.attention.description import HEAD_CHUNK, AttentionSpec
from weft.compiler.targets.cuda.warpgroup import ROW_BYTES, Ring

__all__ = ["HALF_TILE", "KEYS", "BackwardMemory", "side_count", "side_numbers", "tile_queries"]

KEYS = 128  # of a block
HALF_TILE = 64 * 64  # numbers of a queries' gradient that one consumer makes at a time
_LARGEST_SIDE = 128  # numbers of a head whose gradients fit into the registers of a block


def side_count(spec: AttentionSpec) -> int:
    """How many blocks share the gradients of the same keys: each has a side of the head."""
    return max(1, spec.head // _LARGEST_SIDE)


def side_numbers(spec: AttentionSpec) -> int:
    """Numbers of a head whose gradients a block makes."""
    return spec.head // side_count(spec)


def tile_queries(spec: AttentionSpec) -> int:
    """Queries of one tile: two halves of 64 × 64 numbers of their gradients on each side."""
    return 2 * HALF_TILE // side_numbers(spec)


class BackwardMemory:
    """Where in a block's shared memory what lies."""

    def __init__(self, spec: AttentionSpec) -> None:
        queries, chunks = tile_queries(spec), side_numbers(spec) // HEAD_CHUNK
        # Keys and values of both sides of a head leave room for one stage of everything.
        is_whole = side_count(spec) == 1
        others = 0 if is_whole else 1
        self.stages = 2 if is_whole else 1  # tiles of queries in flight
        self.score_buffers = 2 if is_whole else 1
        self.pieces = 1 if is_whole else 2  # in which a half tile is handed over
        self.keys = 0
        self.key_bytes = KEYS * ROW_BYTES * chunks
        self.values = self.key_bytes
        self.tile_bytes = queries * ROW_BYTES * chunks
        self.queries = 2 * self.key_bytes
        self.cotangents = self.queries + self.stages * self.tile_bytes
        # Cotangents of scores: rows of keys, chunks of 64 queries.
        self.score_chunk = KEYS * ROW_BYTES
        self.score_bytes = self.score_chunk * (queries // 64)
        self.scores = self.cotangents + self.stages * self.tile_bytes
        self.halves = self.scores + self.score_buffers * self.score_bytes
        self.piece_bytes = 4 * HALF_TILE // self.pieces
        # The other side: keys, values, queries, cotangents.
        self.other_keys = self.halves + 2 * self.piece_bytes
        self.other_values = self.other_keys + others * self.key_bytes
        self.other_queries = self.other_values + others * self.key_bytes
        self.other_cotangents = self.other_queries + others * self.tile_bytes
        # Logs of sums and row sums of the tile's queries.
        self.row_bytes = 4 * queries
        self.rows = self.other_cotangents + others * self.tile_bytes
        self.query_ring = self.rows + self.stages * 2 * self.row_bytes
        self.cotangent_ring = self.query_ring + Ring.barrier_bytes(self.stages)
        self.key_ring = self.cotangent_ring + Ring.barrier_bytes(self.stages)
        self.half_full = self.key_ring + Ring.barrier_bytes(1)
        self.half_empty = self.half_full + 16
        self.other_ring = self.half_empty + 16
        self.size = self.other_ring + others * Ring.barrier_bytes(1)
