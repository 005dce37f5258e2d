"""Kernels that read along one axis and write along another, in square tiles.

Row by row, each element that is read lies in another line of cache, and where rows are a power of
two long all of these lines are in one set: a line is gone before its next element is wanted. In a
tile every line is used whole while it is there. The order of elements changes, and nothing else.

>>> from weft.core.dtypes import float32
>>> from weft.ir.loops import Kernel, Store
>>> from weft.ir.scalars import Buffer, const, index
>>> x, y, (i, j) = Buffer("x", float32), Buffer("y", float32, "write"), map(index, "ij")
>>> count = const(40, INDEX)
>>> turned = For(j, count, (Store(y, i * 40 + j, x[j * 40]),), "vector")
>>> (tiled,) = in_tiles((For(i, count, (turned,), "parallel"),), (i, j), 16)
>>> print(Kernel("turn", (x, y), (), (tiled,)))
kernel turn(x: read f32, y: write f32; )
  parallel i.tile < 3
    serial j.tile < 3
      serial i < minimum(16, 40 - i.tile * 16)
        vector j < minimum(16, 40 - j.tile * 16)
          y[(i.tile * 16 + i) * 40 + (j.tile * 16 + j)] = x[(j.tile * 16 + j) * 40]
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from weft.compiler.fusion.grouping import Group
from weft.compiler.fusion.long_sums import substitute_statement
from weft.core.dtypes import INDEX
from weft.core.shapes import size
from weft.ir import scalars
from weft.ir.affine_index import Affine, offset
from weft.ir.loops import For, Statement
from weft.ir.scalars import Scalar


def tiled_loop(group: Group, loops: Sequence[Sequence[int]], tile: int) -> int | None:
    """Which of the merged loops lies along the lines of a large operand that the last one crosses.

    None where there is none, or where a loop is shorter than two tiles.
    """
    if tile == 0 or group.inner or len(loops) < 2:
        return None
    last = loops[-1]
    for root in group.roots:
        for value, index in root.reads:
            count, place = size(value.type.shape), offset(index, value.type.shape)
            if isinstance(count, int) and count < (4 * tile) ** 2:
                continue
            if place.factor(last[-1]) in (0, 1) or _is_short(group, last, 2 * tile):
                continue
            found = _loop_along(place, loops)
            if found is not None and not _is_short(group, loops[found], 2 * tile):
                return found
    return None


def _loop_along(place: Affine, loops: Sequence[Sequence[int]]) -> int | None:
    numbers = range(len(loops) - 1)
    return next((each for each in numbers if place.factor(loops[each][-1]) == 1), None)


def _is_short(group: Group, loops: Sequence[int], least: int) -> bool:
    count = size(group.outer[loop] for loop in loops)
    return isinstance(count, int) and count < least


def in_tiles(
    body: tuple[Statement, ...], pair: tuple[Scalar, Scalar], tile: int
) -> tuple[Statement, ...]:
    """Loops over elements, of which two go in tiles inside of all others, the second in vectors."""
    first, second = pair
    loops: list[For] = []
    while len(body) == 1 and isinstance(body[0], For):
        loops.append(body[0])
        body = body[0].body
    tiles = {loop.index: scalars.index(f"{loop.index.detail}.tile") for loop in loops}
    for index in (first, second):
        here = tiles[index] * tile + index
        body = tuple(substitute_statement(each, index, here) for each in body)
    for index in (second, first):
        (loop,) = [each for each in loops if each.index is index]
        kind = "vector" if index is second else "serial"
        body = (For(index, _rows_of_tile(loop.extent, tiles[index], tile), body, kind),)  # type: ignore[arg-type]
    for loop in reversed(loops):
        if loop.index in (first, second):
            kind = "parallel" if "parallel" in loop.kind else "serial"
            count = (loop.extent + (tile - 1)) // tile
            body = (For(tiles[loop.index], count, body, kind),)  # type: ignore[arg-type]
        else:
            body = (replace(loop, body=body),)
    return body


def _rows_of_tile(extent: Scalar, number: Scalar, tile: int) -> Scalar:
    whole = scalars.const(tile, INDEX)
    if extent.op == "const" and extent.detail % tile == 0:
        return whole
    return scalars.minimum(whole, extent - number * tile)
