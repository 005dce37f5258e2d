"""How the gradient of a convolution's weights is cut: its sums are long, its results few.

The sum over all places is cut into parts, which blocks of the card compute side by side and store;
what brings the gradients into the order of the weights adds them up. Nobody waits for a part.

>>> weight_gradient_cut(Sizes(64, 576, 401408), 132)
Cut(tile=(64, 192), parts=44)
"""

from __future__ import annotations

from math import ceil

from weft.compiler.targets.cuda.products.description import Sizes
from weft.core.records import frozen

_TILES = ((128, 256), (192, 192), (128, 192), (128, 128), (128, 64), (64, 256), (64, 192),
          (64, 128), (64, 64))  # fmt: skip
_STEP = 64
"""Places that one step multiplies."""
_FEWEST_STEPS = 4
_BYTES_PER_CYCLE = 62
_END_CYCLES = 2500
_ADDED_PER_CYCLE = 4000
"""Bytes of parts that the card adds up in a cycle."""


@frozen(slots=False)
class Cut:
    """The tiles of a product, and into how many parts its sums are cut."""

    tile: tuple[int, int]
    parts: int


def weight_gradient_cut(sizes: Sizes, multiprocessors: int, parts: int | None = None) -> Cut:
    """The cut with the least estimate in cycles; with as many parts as are given, if they are."""
    cuts = [
        Cut(tile, parts or _part_count(sizes, tile, multiprocessors))
        for tile in _TILES
    ]  # fmt: skip
    return min(cuts, key=lambda cut: _estimated_cycles(sizes, cut, multiprocessors))


def _tiles(sizes: Sizes, tile: tuple[int, int]) -> int:
    return ceil(sizes.m / tile[0]) * ceil(sizes.n / tile[1])


def steps_of_part(places: int, parts: int) -> int:
    """Steps of each part but the last, which may have fewer."""
    return ceil(ceil(places / _STEP) / parts)


def _part_count(sizes: Sizes, tile: tuple[int, int], multiprocessors: int) -> int:
    """As many as run at once, each of some steps; none is empty."""
    steps = ceil(sizes.k / _STEP)
    wanted = max(1, min(multiprocessors // _tiles(sizes, tile), steps // _FEWEST_STEPS))
    return ceil(steps / steps_of_part(sizes.k, wanted))


def _estimated_cycles(sizes: Sizes, cut: Cut, multiprocessors: int) -> float:
    rows, columns = cut.tile
    step = max(rows * columns / 29, (rows + columns) * 128 / _BYTES_PER_CYCLE)
    waves = ceil(_tiles(sizes, cut.tile) * cut.parts / multiprocessors)
    added = cut.parts * sizes.m * sizes.n * 8 / _ADDED_PER_CYCLE
    end = _END_CYCLES + rows * columns * 4 / 40
    return waves * (steps_of_part(sizes.k, cut.parts) * step + end) + added
