"""What statements touch in memory, and what is known of offsets."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import prod

from weft.core.records import frozen
from weft.ir.loops import (
    Accumulate,
    For,
    Let,
    Statement,
    Store,
    expressions,
    has_loops,
    walk,
    written_buffers,
)
from weft.ir.scalars import Buffer, Scalar, coefficient, nodes_in_order


def accesses(body: tuple[Statement, ...]) -> Iterator[tuple[Buffer, Scalar]]:
    """Each buffer that statements touch, with the offset."""
    for statement in walk(body):
        if isinstance(statement, Store):
            yield statement.buffer, statement.offset
        for root in expressions(statement):
            for x in nodes_in_order(root):
                if x.op == "load":
                    yield x.detail, x.args[0]


def buffers_read(body: tuple[Statement, ...]) -> frozenset[Buffer]:
    """The buffers that statements load from."""
    found: frozenset[Buffer] = frozenset()
    for statement in walk(body):
        for root in expressions(statement):
            found |= root.buffers
    return found


def load_offsets(buffer: Buffer, body: tuple[Statement, ...]) -> set[Scalar]:
    """The offsets at which a buffer is read."""
    return {
        x.args[0]
        for statement in walk(body)
        for root in expressions(statement)
        for x in nodes_in_order(root)
        if x.op == "load" and x.detail is buffer
    }


def touches(buffer: Buffer, body: tuple[Statement, ...]) -> bool:
    """Whether statements read or write a buffer."""
    return buffer in written_buffers(body) or buffer in buffers_read(body)


def is_injective(offset: Scalar, loop: For | Accumulate, around: list[For | Accumulate]) -> bool:
    """Whether no two iterations of a loop lead to one offset, by all loops' extents and steps."""
    spans: list[tuple[int, int]] = []
    for each in around:
        step = coefficient(offset, each.index)
        if step is None or step.op != "const" or each.extent.op != "const":
            return False
        if step.detail != 0:
            spans.append((abs(int(step.detail)), max(1, int(each.extent.detail))))
        elif each is loop:
            return False
    if offset.variables - {each.index for each in around}:
        return False
    reach = 0
    for step_size, extent in sorted(spans):
        if step_size <= reach:
            return False
        reach += step_size * (extent - 1)
    return True


# --- who writes ----------------------------------------------------------------------------------


@frozen
class _StoreSite:
    """A store in the body of a team: the loop whose elements its threads share, and those around.

    divided: None where it stands outside of such loops, so that the team's leader writes.
    """

    store: Store
    divided: For | Accumulate | None
    around: tuple[For | Accumulate, ...]


def contested_buffers(body: tuple[Statement, ...], grid: Sequence[For]) -> frozenset[Buffer]:
    """Buffers of which several threads of a team may write one place, one after the other.

    Element h of every loop that a team divides is the same thread's. So a place has one writer if
    all stores that reach it are in such loops at the same offsets, or all outside of them.
    """
    sites: dict[Buffer, list[_StoreSite]] = {}
    for site in _store_sites(body, ()):
        sites.setdefault(site.store.buffer, []).append(site)
    return frozenset(each for each, stores in sites.items() if not _has_one_writer(stores, grid))


def _store_sites(
    body: tuple[Statement, ...], around: tuple[For | Accumulate, ...]
) -> Iterator[_StoreSite]:
    for statement in body:
        if isinstance(statement, Store):
            yield _StoreSite(statement, None, around)
        elif isinstance(statement, For | Accumulate):
            if is_team_loop(statement):
                inside = [each for each in walk(statement.body) if isinstance(each, Store)]
                yield from (_StoreSite(store, statement, around) for store in inside)
            else:
                yield from _store_sites(statement.body, (*around, statement))


def is_team_loop(loop: For | Accumulate) -> bool:
    """Whether the threads of a team divide a loop that all of them come to."""
    return loop.is_vector if isinstance(loop, For) else not has_loops(loop.body)


def _has_one_writer(sites: list[_StoreSite], grid: Sequence[For]) -> bool:
    if all(site.divided is None for site in sites):
        return True
    offsets: dict[int, set[Scalar]] = {}
    for site in sites:
        if site.divided is None:
            return False
        offsets.setdefault(id(site.divided), set()).add(site.store.offset)
    first, *others = offsets.values()
    if any(other != first for other in others):
        return False
    is_once = not others and not any(site.around for site in sites)
    return is_once or all(_stays_with_its_thread(site, grid) for site in sites)


def _stays_with_its_thread(site: _StoreSite, grid: Sequence[For]) -> bool:
    """Whether no two iterations of the loops around a store give one place to different threads."""
    offset, divided = site.store.offset, site.divided
    assert divided is not None
    if offset.buffers:
        return False  # places that are data
    changing = {each.index for each in site.around}
    for each in walk(site.around[:1]):
        if isinstance(each, Let):
            changing.add(each.variable)
        elif isinstance(each, Accumulate):
            changing |= {update.variable for update in each.updates}
    if not offset.variables & changing:
        return True
    inner = [each for each in walk((divided,)) if isinstance(each, For | Accumulate)]
    loops = [*grid, *site.around, *inner]
    return all(is_injective(offset, each, loops) for each in site.around)


def multiple_of(x: Scalar, factor: int) -> bool:
    """Whether a number is known to be a multiple of a power of two.

    >>> from weft.ir.scalars import index
    >>> multiple_of(index("i") * 768 + 256, 16), multiple_of(index("i") * 3, 2)
    (True, False)
    """
    return factor == 1 or _powers_of_two(x) % factor == 0


def _powers_of_two(x: Scalar) -> int:
    """A power of two, up to 16, that a number is a multiple of."""
    if x.op == "const":
        number = int(x.detail)
        return 16 if number == 0 else min(16, number & -number)
    if x.op == "select":
        return min(_powers_of_two(x.args[1]), _powers_of_two(x.args[2]))
    parts = [_powers_of_two(arg) for arg in x.args]
    if x.op in ("add", "subtract", "minimum", "maximum"):
        return min(parts)
    return min(16, prod(parts)) if x.op == "multiply" else 1
