"""Overlap: collectives begin as soon as what they send is there, and others run meanwhile.

The launches that a collective needs go first, those of the first collective before those of the
second: so the gradients of the last layers are under way while those of the layers before are
computed. What reads a result waits for it, and updates of parameters, which come after all
collectives anyway, wait for the last one. What is gathered begins one stretch of computing ahead.

Processes make collectives in the same order, which is that of the program. Only those over one mesh
axis are under way at once, and none beside a call of the engine from the program itself.

>>> import weft as wf
>>> from weft.compiler.plan.planning import plan_program
>>> from weft.compiler.targets.cpu.target import CPU
>>> from weft.ir.dispatch import apply
>>> def both(x, y):
...     first = apply(wf.ir.PRIMITIVES["all_reduce_sum"], x, **over)
...     return first * 2, y @ y
>>> over = {"mesh_axis": "an axis of this example", "size": 2, "stacked": False}
>>> kinds = wf.spec("float32", (1 << 15,)), wf.spec("float32", (64, 64))
>>> names = [launch.name for launch in plan_program(wf.ir.trace(both, *kinds), CPU).launches]
>>> names[0], names[-2]
('all_reduce_sum begin', 'all_reduce_sum wait')
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from heapq import heappop, heappush
from itertools import pairwise

from weft.compiler.plan.launch import Kind, Launch, Root, byte_count
from weft.compiler.plan.order import launches_before
from weft.compiler.targets.limits import PlanLimits
from weft.ir.graph import Graph
from weft.ir.kinds import Collective
from weft.ir.walking import has_collectives

__all__ = ["collectives_first", "overlap_collectives"]


def overlap_collectives(
    launches: Sequence[Launch], graph: Graph, root: Root, limits: PlanLimits
) -> list[Launch]:
    """The launches, in an order in which collectives run beside others that do not need them."""
    if not any(launch.halves for launch in launches):
        return list(launches)
    order, _ = collectives_first(launches, graph, root, ahead=True)
    return _Splitting(root, limits.overlapped_bytes).split_launches(order)


def _meets_others(launch: Launch) -> bool:
    """Whether a launch makes a collective, by itself or inside."""
    if launch.nested is not None:
        return any(has_collectives(plan.graph) for plan in launch.nested.plans)
    node = launch.node or launch.checked
    return node is not None and isinstance(node.primitive.kind, Collective)


# --- order ---------------------------------------------------------------------------------------


def collectives_first(
    launches: Sequence[Launch], graph: Graph, root: Root, *, ahead: bool = False
) -> tuple[list[Launch], Collection[Launch]]:
    """The launches, those that the first collective needs first; and those that need the last one.

    It is done before launches are put together, so that none waits for one that comes later, and
    after that, because the schedule may have another order. ahead: what gathers may begin where the
    collectives before it stand.
    """
    if not any(launch.halves for launch in launches):
        return list(launches), ()
    meeting = [_meets_others(launch) for launch in launches]
    needs = launches_before(launches, root)
    for kind in (True, False):  # collectives keep their order, and others with an effect theirs
        fixed = [p for p, each in enumerate(launches) if each.is_pinned and meeting[p] is kind]
        for before, place in pairwise(fixed):
            needs[place].add(before)
    _hold_gathering_back(launches, meeting, needs, ahead)
    ranks, last = _ranks(launches, meeting, needs, graph), sum(meeting)
    counts = [len(needed) for needed in needs]
    followers: dict[int, list[int]] = {}
    for place, needed in enumerate(needs):
        for other in needed:
            followers.setdefault(other, []).append(place)
    ready = [(ranks[place], place) for place, count in enumerate(counts) if count == 0]
    ready.sort()
    order: list[Launch] = []
    while ready:
        _, place = heappop(ready)
        order.append(launches[place])
        for follower in followers.get(place, ()):
            counts[follower] -= 1
            if counts[follower] == 0:
                heappush(ready, (ranks[follower], follower))
    return order, {each for each, rank in zip(launches, ranks, strict=True) if rank == last}


def _hold_gathering_back(
    launches: Sequence[Launch], meeting: Sequence[bool], needs: list[set[int]], ahead: bool
) -> None:
    """Have collectives whose results are larger than their operands wait for what stands before.

    Their operands may be there from the start, as parts of parameters are: all of them at once
    would be what each process keeps a part of.
    """
    computed, before, before_last = -1, -1, -1
    for place, launch in enumerate(launches):
        if not meeting[place]:
            computed = place
            continue
        if not place or not meeting[place - 1]:
            before_last, before = before, computed
        awaited = before_last if ahead else before
        if awaited >= 0 and launch.halves is not None and _grows(launch):
            needs[place].add(awaited)


def _grows(launch: Launch) -> bool:
    given, made = (byte_count(each.type) for each in (launch.values[0], launch.writes[0]))
    return not (isinstance(given, int) and isinstance(made, int)) or made > given


def _ranks(
    launches: Sequence[Launch], meeting: Sequence[bool], needs: Sequence[set[int]], graph: Graph
) -> list[int]:
    """For each launch the number of the first collective that needs it.

    What no collective needs goes last if it needs one, or may be written over an input, which
    others may still read; else it stays behind the launch that it stood behind.
    """
    count = sum(meeting)
    ranks = [count] * len(launches)
    number = count
    for place in reversed(range(len(launches))):
        if meeting[place]:
            number -= 1
            ranks[place] = min(ranks[place], number)
        for other in needs[place]:
            ranks[other] = min(ranks[other], ranks[place])
    inputs = set(graph.inputs)
    is_after = [False] * len(launches)
    latest = 0
    for place, launch in enumerate(launches):
        is_after[place] = any(meeting[other] or is_after[other] for other in needs[place])
        replaces = any(value in inputs for _, value in launch.in_place)
        if ranks[place] < count:
            latest = ranks[place]
        elif not is_after[place] and not replaces:
            ranks[place] = latest
    return ranks


# --- halves --------------------------------------------------------------------------------------


class _Splitting:
    """Collectives under way, as launches are gone through in order."""

    def __init__(self, root: Root, overlapped_bytes: int) -> None:
        self._root, self._overlapped_bytes = root, overlapped_bytes
        self._order: list[Launch | None] = []
        self._begun: list[tuple[Launch, int]] = []
        """Collectives under way, and where they began."""

    def split_launches(self, launches: Sequence[Launch]) -> list[Launch]:
        """The launches, with collectives in halves that others stand between."""
        for launch in launches:
            touched = set(map(self._root, launch.values))
            waited = [
                number
                for number, (begun, _) in enumerate(self._begun, 1)
                if not touched.isdisjoint(map(self._root, begun.writes))
            ]
            self._wait(max(waited, default=0))
            if _meets_others(launch) and not self._may_begin(launch):
                self._wait(len(self._begun))
            if launch.halves is not None and (self._begun or not self._is_small(launch)):
                self._begun.append((launch, len(self._order)))
            self._order.append(launch)
        self._wait(len(self._begun))
        return [launch for launch in self._order if launch is not None]

    def _may_begin(self, launch: Launch) -> bool:
        """Whether a collective may run beside those under way: in halves, over the same axis."""
        axes = {_mesh_axis(begun) for begun, _ in self._begun}
        return launch.halves is not None and axes <= {_mesh_axis(launch)}

    def _is_small(self, launch: Launch) -> bool:
        """Whether a collective begins no overlap."""
        count = byte_count(launch.writes[0].type)
        return isinstance(count, int) and count < self._overlapped_bytes

    def _wait(self, count: int) -> None:
        """Wait for the first collectives under way.

        One that no computation stands behind stays whole, and comes after those that are waited
        for; what began behind it then begins behind it still.
        """
        waited, self._begun = self._begun[:count], self._begun[count:]
        computing = [
            place
            for place, each in enumerate(self._order)
            if each is not None and each.kind is not Kind.COLLECTIVE
        ]
        last = computing[-1] if waited and computing else -1
        for launch, place in waited:
            if place < last and launch.halves is not None:
                self._order[place], waits = launch.halves()
                self._order.append(waits)
        behind = [pair for pair in waited if pair[1] > last]
        for launch, place in behind:
            self._move_to_end(launch, place)
        if behind:
            self._begun = [(each, self._move_to_end(each, place)) for each, place in self._begun]

    def _move_to_end(self, launch: Launch, place: int) -> int:
        """Where a launch stands from now on."""
        self._order[place] = None
        self._order.append(launch)
        return len(self._order) - 1


def _mesh_axis(launch: Launch) -> str:
    assert launch.checked is not None
    return str(launch.checked.params["mesh_axis"])
