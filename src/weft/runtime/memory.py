"""The memory plan: where in one arena each buffer lies, known before anything runs.

A buffer lives from the position that writes it to the last that reads it, both included. Buffers
that live at the same time never overlap, except a result that takes its operand's place. The
plan says how much is needed (`peak`) and how much would be with no gap at all (`lower_bound`).

>>> from weft.runtime.memory import Lifetime, plan
>>> chain = [Lifetime("a", 4096, 0, 1), Lifetime("b", 4096, 1, 2), Lifetime("c", 4096, 2, 3)]
>>> plan(chain).offsets, plan(chain).peak
({'a': 0, 'b': 4096, 'c': 0}, 8192)
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import field
from functools import cached_property
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from weft.core.dimensions import Dim, substitute, symbols_in
from weft.core.errors import GraphError
from weft.core.locations import Location
from weft.core.records import frozen

ALIGNMENT = 64
"""Every buffer starts at a multiple of this: a line of cache, and the widest vector."""

Binding: TypeAlias = Mapping[str, int]
Size: TypeAlias = int | Dim | Callable[[Binding], int]
"""Bytes: known, an expression over symbols, or any function of the symbols' values."""

_Integers: TypeAlias = npt.NDArray[np.int64]

# How far from the lower bound other orders are tried, and how far a kept stacking is given up.
_SEARCHED = 1.02
_STACKED = 1.1
_REMEMBERED = 256


@frozen
class Lifetime:
    """A buffer: its size in bytes, and the first and last position at which it is in use.

    `reuses` names a buffer that this one may take the place of, because the kernel at `first` reads
    each of its elements just before it writes the same one here.
    """

    name: str
    size: Size
    first: int
    last: int
    reuses: str | None = None
    at: Location | None = None


@frozen(slots=False)
class MemoryPlan:
    """The offset of each buffer in the arena, and what the plan costs."""

    buffers: tuple[Lifetime, ...]
    sizes: Mapping[str, int]
    offsets: Mapping[str, int]
    reused: Mapping[str, str] = field(default_factory=dict)
    """Result to operand, for each result that lies in its operand's place."""

    @cached_property
    def peak(self) -> int:
        """How many bytes the arena needs."""
        return max(
            [self.offsets[b.name] + _aligned_size(self.sizes[b.name]) for b in self.buffers] + [0]
        )

    @cached_property
    def lower_bound(self) -> int:
        """The most bytes that live at one position: no plan needs less."""
        return max(self.timeline(), default=0)

    def timeline(self) -> tuple[int, ...]:
        """The live bytes at each position, from 0 to the last."""
        end = max([buffer.last for buffer in self.buffers], default=-1) + 1
        change = np.zeros(end + 1, np.int64)
        for buffer in self.buffers:
            size = _aligned_size(self.sizes[buffer.name])
            change[self.counted_from(buffer)] += size
            change[buffer.last + 1] -= size
        return tuple(np.cumsum(change)[:end].tolist())

    def counted_from(self, buffer: Lifetime) -> int:
        """From which position on it takes memory of its own.

        A result in its operand's place takes nothing more while both live.
        """
        return buffer.first + (buffer.name in self.reused)

    def largest_live(self, count: int = 5) -> list[Lifetime]:
        """The largest buffers that live where most bytes do, the largest first."""
        timeline = self.timeline()
        if not timeline:
            return []
        position = timeline.index(max(timeline))
        live = [b for b in self.buffers if self.counted_from(b) <= position <= b.last]
        return sorted(live, key=lambda buffer: -self.sizes[buffer.name])[:count]


def plan(buffers: Sequence[Lifetime], binding: Binding | None = None) -> MemoryPlan:
    """Place the buffers; sizes that are not integers are taken at this binding of the symbols.

    >>> result = plan([Lifetime("x", 64, 0, 1), Lifetime("y", 64, 1, 2, reuses="x")])
    >>> result.offsets, result.peak, result.reused
    ({'x': 0, 'y': 0}, 64, {'y': 'x'})
    """
    return Planner(buffers).plan_for(binding or {})


class Planner:
    """Plans for one set of buffers at any sizes; the plans for recent sizes are remembered.

    For new sizes the stacking of the last plan is kept and only the offsets are computed again,
    unless that leaves larger gaps than a search would.

    >>> from weft.core.dimensions import symbol
    >>> planner = Planner([Lifetime("x", 4 * symbol("n"), 0, 1)])
    >>> plan = planner.plan_for({"n": 100})
    >>> plan.peak, planner.plan_for({"n": 100}) is plan
    (448, True)
    """

    def __init__(self, buffers: Sequence[Lifetime]) -> None:
        self.buffers = tuple(buffers)
        self._names = [buffer.name for buffer in self.buffers]
        self._places = {name: index for index, name in enumerate(self._names)}
        _check(self.buffers, self._places)
        self._plans: dict[frozenset[tuple[str, int]], MemoryPlan] = {}
        self._stacking: tuple[dict[int, int], _Stacking] | None = None

    def plan_for(self, binding: Binding) -> MemoryPlan:
        """The plan for these values of the symbols."""
        key = frozenset(binding.items())
        plan = self._plans.get(key)
        if plan is None:
            plan = self._plan(binding)
            while len(self._plans) >= _REMEMBERED:
                self._plans.pop(next(iter(self._plans)), None)
            self._plans[key] = plan
        return plan

    def _plan(self, binding: Binding) -> MemoryPlan:
        expressions = {buffer.size for buffer in self.buffers}
        values = {size: _evaluate(size, binding) for size in expressions}
        sizes = [values[buffer.size] for buffer in self.buffers]
        operands = _reused_operands(self.buffers, self._places, sizes)
        blocks = _Blocks.from_buffers(
            self.buffers, [_aligned_size(size) for size in sizes], operands
        )
        offsets = self._offsets(blocks, operands)[blocks.block_of].tolist()
        return MemoryPlan(
            self.buffers,
            dict(zip(self._names, sizes, strict=True)),
            dict(zip(self._names, offsets, strict=True)),
            {self._names[result]: self._names[operand] for result, operand in operands.items()},
        )

    def _offsets(self, blocks: _Blocks, operands: dict[int, int]) -> _Integers:
        known = self._stacking
        if known is not None and known[0] == operands:
            offsets = known[1].offsets(blocks.sizes)
            if int((offsets + blocks.sizes).max(initial=0)) <= blocks.lower_bound() * _STACKED:
                return offsets
        # A search for every binding would cost more than it saves: other sizes keep the stacking
        # of the last search, until that wastes too much, and then are searched for themselves.
        offsets = blocks.place()
        self._stacking = operands, _Stacking(blocks, np.argsort(offsets, kind="stable"))
        return offsets


@frozen
class StackedBlock:
    """A block of memory: the buffers that use it in turns, and the blocks that it may lie on."""

    buffers: tuple[Lifetime, ...]
    below: tuple[int, ...]
    """Blocks that come earlier, by position: it begins where the highest of them ends."""


def stacked_blocks(buffers: Sequence[Lifetime], binding: Binding) -> list[StackedBlock]:
    """The blocks of a plan for these sizes, from the lowest up: enough to place them at any others.

    A block must be as large as the largest of its buffers is then.

    >>> blocks = stacked_blocks([Lifetime("x", 128, 0, 1), Lifetime("y", 64, 1, 2)], {})
    >>> [([buffer.name for buffer in block.buffers], block.below) for block in blocks]
    [(['x'], ()), (['y'], (0,))]
    """
    planned = plan(buffers, binding)
    places = {buffer.name: index for index, buffer in enumerate(buffers)}
    operands = {places[result]: places[operand] for result, operand in planned.reused.items()}
    sizes = [_aligned_size(planned.sizes[buffer.name]) for buffer in buffers]
    blocks = _Blocks.from_buffers(buffers, sizes, operands)
    offsets = np.zeros(len(blocks.sizes), np.int64)
    offsets[blocks.block_of] = [planned.offsets[buffer.name] for buffer in buffers]
    supports = _Stacking(blocks, np.argsort(offsets, kind="stable")).supports
    position = {block: place for place, (block, _) in enumerate(supports)}
    members: list[list[Lifetime]] = [[] for _ in supports]
    for buffer, block in zip(buffers, blocks.block_of.tolist(), strict=True):
        members[position[block]].append(buffer)
    return [
        StackedBlock(tuple(own), tuple(position[block] for block in below))
        for own, (_, below) in zip(members, supports, strict=True)
    ]


def _reused_operands(
    buffers: Sequence[Lifetime], places: Mapping[str, int], sizes: Sequence[int]
) -> dict[int, int]:
    """Result to operand, where a hint holds: the operand ends there, is as large, and is free."""
    taken: dict[int, int] = {}
    given: set[int] = set()
    for index, buffer in enumerate(buffers):
        if buffer.reuses is None:
            continue
        operand = places[buffer.reuses]
        ends_there = buffers[operand].last == buffer.first and buffers[operand].first < buffer.first
        # Of two results that could take an operand's place only the first does: it is overwritten.
        if ends_there and sizes[operand] == sizes[index] and operand not in given:
            taken[index] = operand
            given.add(operand)
    return taken


# --- placing -----------------------------------------------------------------------------------


@frozen(slots=False)
class _Blocks:
    """Blocks of memory: one buffer each, or several that use one place one after the other."""

    sizes: _Integers
    first: _Integers
    last: _Integers
    block_of: _Integers  # for each buffer, its block

    @classmethod
    def from_buffers(
        cls, buffers: Sequence[Lifetime], sizes: Sequence[int], operands: Mapping[int, int]
    ) -> _Blocks:
        """One block for each chain of buffers that take each other's place."""
        roots = [_root(index, operands) for index in range(len(buffers))]
        blocks = {root: block for block, root in enumerate(dict.fromkeys(roots))}
        block_of = np.array([blocks[root] for root in roots], np.int64)
        last = np.zeros(len(blocks), np.int64)
        np.maximum.at(last, block_of, np.array([buffer.last for buffer in buffers], np.int64))
        first = np.array([buffers[root].first for root in blocks], np.int64)
        return cls(np.array([sizes[root] for root in blocks], np.int64), first, last, block_of)

    def place(self) -> _Integers:
        """The offset of each block, by the best of a few greedy orders."""
        bound = self.lower_bound()
        best: _Integers | None = None
        peak = 0
        for order in self._orders():
            offsets = self._place_in(order)
            needed = int((offsets + self.sizes).max(initial=0))
            if best is None or needed < peak:
                best, peak = offsets, needed
            if peak <= bound * _SEARCHED:
                break
        return best if best is not None else np.zeros(0, np.int64)

    def lower_bound(self) -> int:
        """The most bytes that are alive at one position, which no placing can go below."""
        # Sizes are added where live ranges begin and taken off behind their ends.
        change = np.zeros(int(self.last.max(initial=-1)) + 2, np.int64)
        np.add.at(change, self.first, self.sizes)
        np.add.at(change, self.last + 1, -self.sizes)
        return int(np.cumsum(change).max(initial=0))

    def _orders(self) -> Iterator[_Integers]:
        """Orders of placing, the usually best first: large ones early, then by other measures."""
        duration = self.last - self.first + 1
        yield np.lexsort((self.first, -duration, -self.sizes))
        yield np.lexsort((self.first, -self.sizes * duration))
        yield np.lexsort((-self.sizes, -duration))
        yield np.lexsort((-self.sizes, self.first))
        yield np.lexsort((-self.sizes, -self.last))

    def _place_in(self, order: _Integers) -> _Integers:
        """Put each block into the smallest gap that holds it, among those placed before it."""
        offsets = np.zeros(len(order), np.int64)
        placed = _Placed(len(order))
        for block in order.tolist():
            size = int(self.sizes[block])
            if size:
                first, last = int(self.first[block]), int(self.last[block])
                offsets[block] = placed.put(size, first, last)
        return offsets


class _Placed:
    """The blocks placed so far, in the order of their offsets."""

    def __init__(self, capacity: int) -> None:
        self.count = 0
        # [offset, end, first, last] of each
        self.table = np.zeros((4, capacity), np.int64)

    def put(self, size: int, first: int, last: int) -> int:
        """Find a place for a block, put it there, and return its offset."""
        begins, ends, firsts, lasts = self.table[:, : self.count]
        # Only blocks whose live ranges meet this one's are in the way.
        living = np.flatnonzero((firsts <= last) & (lasts >= first))
        offset = _best_gap(begins[living], ends[living], size)
        place = int(np.searchsorted(begins, offset))
        self.table[:, place + 1 : self.count + 1] = self.table[:, place : self.count].copy()
        self.table[:, place] = offset, offset + size, first, last
        self.count += 1
        return offset


def _best_gap(begins: _Integers, ends: _Integers, size: int) -> int:
    """The offset of the smallest gap of at least this size; behind everything if there is none."""
    if not len(begins):
        return 0
    reached = np.maximum.accumulate(ends)  # blocks overlap, so an earlier one may end later
    starts = np.concatenate([[0], reached[:-1]])
    gaps = begins - starts
    gaps[gaps < size] = np.iinfo(np.int64).max
    best = int(np.argmin(gaps))
    return int(starts[best]) if gaps[best] != np.iinfo(np.int64).max else int(reached[-1])


class _Stacking:
    """Which blocks lie on which: enough to compute offsets for other sizes, without a search.

    The blocks keep the order of a plan that was found by a search. Each lies on the highest end of
    the blocks before it that are alive at the same time. Blocks that lie below another of these
    blocks anyway need not be looked at.
    """

    def __init__(self, blocks: _Blocks, order: _Integers) -> None:
        self._blocks = blocks
        self._order = order

    @cached_property
    def supports(self) -> list[tuple[int, list[int]]]:
        """Each block in order, with the blocks that it may lie on; made when first needed."""
        return self._find_supports()

    def offsets(self, sizes: _Integers) -> _Integers:
        """Offsets for these sizes of the blocks."""
        ends = [0] * len(sizes)
        lengths = sizes.tolist()
        for block, below in self.supports:
            ends[block] = max([ends[other] for other in below], default=0) + lengths[block]
        return np.array(ends, np.int64) - sizes

    def _find_supports(self) -> list[tuple[int, list[int]]]:
        first, last = self._blocks.first[self._order], self._blocks.last[self._order]
        supports = []
        for place, block in enumerate(self._order.tolist()):
            below = np.flatnonzero((first[:place] <= last[place]) & (last[:place] >= first[place]))
            direct = []
            while len(below):
                top, below = below[-1], below[:-1]
                direct.append(int(self._order[top]))
                # What lives together with `top` lies below it, and so below this block.
                below = below[(first[below] > last[top]) | (last[below] < first[top])]
            supports.append((block, direct))
        return supports


def _root(index: int, operands: Mapping[int, int]) -> int:
    while index in operands:
        index = operands[index]
    return index


# --- sizes -------------------------------------------------------------------------------------


def _aligned_size(size: int) -> int:
    return -(-size // ALIGNMENT) * ALIGNMENT


def _evaluate(size: Size, binding: Binding) -> int:
    if isinstance(size, Dim):
        value = substitute(size, binding)
        if isinstance(value, Dim):
            raise _unbound_error(size, binding)
    else:
        value = size if isinstance(size, int) else size(binding)
    if value < 0:
        raise _misuse(f"a size came out negative: {size}", "size >= 0", {"size": value})
    return value


def _check(buffers: Sequence[Lifetime], places: Mapping[str, int]) -> None:
    if len(places) != len(buffers):
        raise _misuse("two buffers have the same name", "a name each", {"buffers": len(buffers)})
    for buffer in buffers:
        if not 0 <= buffer.first <= buffer.last:
            raise _misuse(
                f"{buffer.name} does not live from first to last",
                "0 <= first <= last",
                {"first": buffer.first, "last": buffer.last},
            )
        if buffer.reuses is not None and buffer.reuses not in places:
            raise _misuse(
                f"{buffer.name} reuses a buffer that is not there",
                "reuses: the name of a buffer",
                {"reuses": buffer.reuses},
            )


def _unbound_error(size: Dim, binding: Binding) -> GraphError:
    missing = sorted(symbols_in(size) - binding.keys())
    return _misuse(
        f"the size of {', '.join(missing)} is not known",
        f"a binding for {', '.join(missing)}",
        {"size": size, "binding": dict(binding)},
    )


def _misuse(problem: str, expected: str, got: Mapping[str, object]) -> GraphError:
    return GraphError(
        "plan", problem, expected=expected, got=got, fix='Lifetime("x", size=4096, first=0, last=1)'
    )
