"""Byte pairs: pieces of text joined two by two, the best pair first.

>>> from weft.models.merging import merge_pieces
>>> ranks = {("l", "o"): 0, ("lo", "w"): 1}
>>> merge_pieces(["s", "l", "o", "w"], lambda a, b: ranks.get((a, b)))
['s', 'low']
"""

from __future__ import annotations

from collections.abc import Callable
from heapq import heapify, heappop, heappush
from typing import TypeVar

Piece = TypeVar("Piece", str, bytes)


def merge_pieces(pieces: list[Piece], rank: Callable[[Piece, Piece], float | None]) -> list[Piece]:
    """Pieces, with neighbours joined in the order of rank, lower first, then from the left.

    A heap of pairs and links between neighbours: n pieces take about n log n steps.
    """
    parts: list[Piece | None] = list(pieces)
    after = [*range(1, len(parts)), len(parts)]
    before = list(range(-1, len(parts) - 1))
    heap: list[tuple[float, int, Piece, Piece]] = []

    def offer(left: int, right: int) -> None:
        if left < 0 or right >= len(parts):
            return
        a, b = parts[left], parts[right]
        assert a is not None and b is not None
        pair_rank = rank(a, b)
        if pair_rank is not None:
            heappush(heap, (pair_rank, left, a, b))

    for index in range(len(parts) - 1):
        offer(index, index + 1)
    heapify(heap)
    while heap:
        _, left, a, b = heappop(heap)
        right = after[left]
        if right >= len(parts) or parts[left] != a or parts[right] != b:
            continue  # one of them has been joined meanwhile
        parts[left], parts[right] = a + b, None
        after[left] = after[right]
        if after[left] < len(parts):
            before[after[left]] = left
        offer(before[left], left)
        offer(left, after[left])
    return [part for part in parts if part is not None]
