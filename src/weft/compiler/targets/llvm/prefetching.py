"""What the loops of a row fetch ahead: the next row's operands, and the lines that get results.

The first loop over a row waits for memory, and so does the one that stores the results, as a line
is read before a part of it is written; the loop with most arithmetic in between leaves the memory
idle. So that loop asks for both. To ask is no access: beyond the last row nothing happens.

>>> from weft.core.dtypes import float32
>>> from weft.ir.loops import Accumulate, Update
>>> from weft.ir.scalars import const, exp, index, local
>>> x, y, s = Buffer("x", float32), Buffer("y", float32, "write"), Buffer("s", float32, "scratch")
>>> i, j, n = index("i"), index("j"), const(64, INDEX)
>>> total = Accumulate(j, n, (Update(local("t", float32), "add", s[j]),))
>>> first = For(j, n, (Store(s, j, exp(x[i * 64 + j])),), "vector")
>>> last = For(j, n, (Store(y, i * 64 + j, s[j] / local("t", float32)),), "vector")
>>> row = For(i, n, (first, total, last), "parallel")
>>> loop, touches = plan_prefetch(row, lambda loop: 30 if loop is first else 3)
>>> loop is first, [(each.buffer.name, str(each.offset), each.writes) for each in touches]
(True, [('x', 'i * 64 + j + 64', False), ('y', 'i * 64 + j', True)])
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import NamedTuple

from weft.core.dtypes import INDEX
from weft.ir.loops import For, Store, expressions, has_loops, walk
from weft.ir.scalars import Buffer, Scalar, coefficient, const, is_const, nodes_in_order

_HEAVY = 16
"""Instructions of a vector loop's body from which on memory may be asked for beside them."""


class Touch(NamedTuple):
    """Memory that is asked for: an element's line, to read it or to write it."""

    buffer: Buffer
    offset: Scalar
    writes: bool


def plan_prefetch(row: For, work: Callable[[For], int]) -> tuple[For, tuple[Touch, ...]] | None:
    """The vector loop of a row that fetches ahead, and what; None where there is none."""
    loops = [s for s in row.body if isinstance(s, For) and s.is_vector and not has_loops(s.body)]
    heavy = max(loops, key=work, default=None)
    if heavy is None or len(row.body) < 2 or work(heavy) < _HEAVY:
        return None
    touches = (*_operands(row, heavy), *_results(row, heavy))
    return (heavy, touches) if touches else None


def _operands(row: For, heavy: For) -> list[Touch]:
    """What the next row reads and this one does not."""
    roots = [x for s in walk(row.body) for x in expressions(s)]
    loads = [x for x in nodes_in_order(*roots) if x.op == "load" and len(x.args) == 1]
    found = {(x.detail, x.args[0]): None for x in loads if x.detail.access != "scratch"}
    touches = []
    for buffer, offset in _places_along(found, row, heavy):
        step = coefficient(offset, row.index)
        if step is not None and not is_const(step, 0):
            touches.append(Touch(buffer, offset + step, False))
    return touches


def _results(row: For, heavy: For) -> list[Touch]:
    """What later loops of this row store."""
    later = row.body[row.body.index(heavy) + 1 :]
    stores = [s for s in walk(later) if isinstance(s, Store) and s.where is None]
    found = {(s.buffer, s.offset): None for s in stores if s.buffer.access != "scratch"}
    return [Touch(buffer, offset, True) for buffer, offset in _places_along(found, row, heavy)]


def _places_along(
    places: Iterable[tuple[Buffer, Scalar]], row: For, heavy: For
) -> list[tuple[Buffer, Scalar]]:
    """The places that lie side by side for the loop's own index, and depend on no other loop."""
    known, one = {row.index, heavy.index}, const(1, INDEX)
    return [
        (buffer, offset)
        for buffer, offset in places
        if heavy.index in offset.variables
        and offset.variables <= known
        and coefficient(offset, heavy.index) is one
    ]
