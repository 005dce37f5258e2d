"""The next row on its way while a team works on this one: what its threads touch in the cache.

Blocks with sums down columns are few warps with many registers, and a team goes from row to row. It
would wait for memory in each of them. So its lanes ask for the lines of the next row first.
"""

from __future__ import annotations

from collections.abc import Iterator

from weft.compiler.fusion.long_sums import substitute_scalars
from weft.compiler.targets.cuda.machine import WARP
from weft.compiler.targets.cuda.memory_accesses import accesses
from weft.core.dtypes import INDEX
from weft.ir.loops import Accumulate, For, walk, written_buffers
from weft.ir.scalars import Buffer, Scalar, coefficient, const, index, is_const, minimum

LINE = 128
"""Bytes that are brought into the cache at once."""
LANE = index("lane")
"""The number of a thread in its warp, in offsets of `lines_ahead`."""


def lines_ahead(loop: For) -> Iterator[tuple[Buffer, Scalar]]:
    """The places of a loop's next iteration that a lane asks for, each the begin of a line.

    They are of buffers that the loop only reads, along rows that begin anew in each iteration.
    """
    last = const(int(loop.extent.detail) - 1, INDEX)
    following = minimum(loop.index + 1, last)
    written = written_buffers(loop.body)
    found: set[tuple[Buffer, Scalar]] = set()
    for row in walk(loop.body):
        if not isinstance(row, For | Accumulate) or row.extent.op != "const":
            continue
        for buffer, offset in accesses((row,)):
            steps = [coefficient(offset, each) for each in (row.index, loop.index)]
            is_row = steps[0] is not None and is_const(steps[0], 1)
            moves = steps[1] is not None and steps[1].op == "const" and steps[1].detail != 0
            if buffer in written or not is_row or not moves or (buffer, offset) in found:
                continue
            found.add((buffer, offset))
            each = LINE // buffer.dtype.itemsize
            lines = -(-int(row.extent.detail) // each)
            for first in range(0, lines, WARP):
                line = minimum(LANE + first, const(lines - 1, INDEX))
                yield (
                    buffer,
                    substitute_scalars(offset, {row.index: line * each, loop.index: following}),
                )
