"""Tiles of attention's backward pass, and where they lie in shared memory."""

from __future__ import annotations

from weft.compiler.targets.cuda.attention.description import AttentionSpec
from weft.compiler.targets.cuda.warpgroup import ROW_BYTES, Ring

__all__ = ["HALF_TILE", "KEYS", "STAGES", "BackwardMemory", "tile_queries"]

KEYS = 128  # of a block
STAGES = 2  # tiles of queries in flight
HALF_TILE = 64 * 64  # numbers of a queries' gradient that one consumer makes at a time


def tile_queries(spec: AttentionSpec) -> int:
    """Queries of one tile: two halves of 64 × 64 numbers of their gradients."""
    return 2 * HALF_TILE // spec.head


class BackwardMemory:
    """Where in a block's shared memory what lies."""

    def __init__(self, spec: AttentionSpec) -> None:
        queries = tile_queries(spec)
        self.keys = 0
        self.key_bytes = KEYS * ROW_BYTES * spec.chunks
        self.values = self.key_bytes
        self.tile_bytes = queries * ROW_BYTES * spec.chunks
        self.queries = 2 * self.key_bytes
        self.cotangents = self.queries + STAGES * self.tile_bytes
        # Cotangents of scores, twice: rows of keys, chunks of 64 queries.
        self.score_chunk = KEYS * ROW_BYTES
        self.score_bytes = self.score_chunk * (queries // 64)
        self.scores = self.cotangents + STAGES * self.tile_bytes
        self.halves = self.scores + 2 * self.score_bytes
        # Logs of sums and row sums of the tile's queries.
        self.row_bytes = 4 * queries
        self.rows = self.halves + 2 * 4 * HALF_TILE
        self.query_ring = self.rows + STAGES * 2 * self.row_bytes
        self.cotangent_ring = self.query_ring + Ring.barrier_bytes(STAGES)
        self.key_ring = self.cotangent_ring + Ring.barrier_bytes(STAGES)
        self.half_full = self.key_ring + Ring.barrier_bytes(1)
        self.half_empty = self.half_full + 16
        self.size = self.half_empty + 16
