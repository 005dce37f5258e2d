"""The order of launches: each as soon as what it reads is there.

A row fusion stands where its product stood, and may read what is made later; here it waits for
that, and no longer: an update that waited for the end would keep alive what its product reads. What
may be written over an input waits for all others that read the input, so that it can be.

>>> import weft as wf
>>> from weft.compiler.plan.planning import plan_program
>>> from weft.compiler.targets.cpu.target import CPU
>>> def step(x, w, v):
...     return wf.grad(lambda w, v: (wf.tanh(x @ w) @ v).sum(), argnums=(0, 1))(w, v)
>>> plan = plan_program(wf.ir.trace(step, *[wf.spec("float32", (32, 32))] * 3), CPU)
>>> len(plan.launches) > 2
True
"""

from __future__ import annotations

from collections.abc import Sequence
from heapq import heappop, heappush

from weft.compiler.plan.launch import Kind, Launch, Root, Value


def runnable_order(launches: Sequence[Launch], root: Root) -> list[Launch]:
    """The launches in an order in which they can run, otherwise as they are given."""
    writers = _writers(launches, root)
    needs = launches_before(launches, root)
    _keep_effects_in_order(launches, needs)
    wishes = _possible_wishes(needs, _wishes(launches, writers, root))
    return [launches[place] for place in _sort_places(needs, wishes)]


def _writers(launches: Sequence[Launch], root: Root) -> dict[Value, list[int]]:
    """The places of the launches that write each value."""
    writers: dict[Value, list[int]] = {}
    for place, launch in enumerate(launches):
        for value in launch.writes:
            writers.setdefault(root(value), []).append(place)
    return writers


def launches_before(launches: Sequence[Launch], root: Root) -> list[set[int]]:
    """For each launch the places of those that write what it reads or goes on with."""
    writers = _writers(launches, root)
    return [_needed_launches(each, place, writers, root) for place, each in enumerate(launches)]


def _needed_launches(
    launch: Launch, place: int, writers: dict[Value, list[int]], root: Root
) -> set[int]:
    """Those that write what a launch reads; before one that writes, those that begin that.

    A value that is begun by one launch and changed by another is read by those that follow only.
    """
    found: set[int] = set()
    for value in map(root, launch.values):
        others = writers.get(value, [])
        found |= {other for other in others if place not in others or other < place}
    return found


def _keep_effects_in_order(launches: Sequence[Launch], needs: list[set[int]]) -> None:
    """What has an effect, or may fail, comes after all others of its kind before it."""
    previous: int | None = None
    for place, launch in enumerate(launches):
        if launch.is_pinned:
            if previous is not None:
                needs[place].add(previous)
            previous = place


def _wishes(
    launches: Sequence[Launch], writers: dict[Value, list[int]], root: Root
) -> list[set[int]]:
    """What may be written over an input waits for its other readers, as far as that is possible.

    Of several that may, the last one waits for the others. A copy of an input waits for all that
    may fail, too: after that the input may be changed.
    """
    readers: dict[Value, set[int]] = {}
    for place, launch in enumerate(launches):
        for value in launch.values:
            readers.setdefault(root(value), set()).add(place)
    pinned = {place for place, launch in enumerate(launches) if launch.is_pinned}
    given = [[root(v) for _, v in launch.in_place] for launch in launches]
    replaced = [{value for value in values if value not in writers} for values in given]
    found: list[set[int]] = []
    for place, values in enumerate(replaced):
        wanted = {
            other
            for value in values
            for other in readers[value]
            if other < place or value not in replaced[other]
        }
        if values and launches[place].kind is Kind.COPY:
            wanted |= pinned
        found.append(wanted - {place})
    return found


def _possible_wishes(needs: Sequence[set[int]], wishes: Sequence[set[int]]) -> list[set[int]]:
    """The wishes without those to be behind a launch that needs the one that wishes."""
    bits = {place: 1 << n for n, place in enumerate(p for p, w in enumerate(wishes) if w)}
    if not bits:
        return list(wishes)
    before = [0] * len(needs)  # a bit for each launch with wishes that must come before
    for place in _sort_places(needs, [set() for _ in needs]):
        for other in needs[place]:
            before[place] |= before[other] | bits.get(other, 0)
    return [
        {other for other in wanted if not before[other] & bits[place]}
        for place, wanted in enumerate(wishes)
    ]


def _sort_places(needs: Sequence[set[int]], wishes: Sequence[set[int]]) -> list[int]:
    """The places, each behind those it needs, and those it would like to be behind.

    Where nothing else can go on, the first that has what it needs no longer has wishes.
    """
    waits = _Waits([needed | wanted for needed, wanted in zip(needs, wishes, strict=True)])
    impatient = _Waits(needs)
    order: list[int] = []
    while len(order) < len(needs):
        if not waits.ready:
            while impatient.ready[0] in waits.gone:
                heappop(impatient.ready)
            waits.release(impatient.ready[0])
        place = heappop(waits.ready)
        order.append(place)
        waits.mark_as_run(place)
        impatient.mark_as_run(place)
    return order


class _Waits:
    """Who waits for whom, and who waits no longer."""

    def __init__(self, needs: Sequence[set[int]]) -> None:
        self.followers: dict[int, list[int]] = {}
        for place, needed in enumerate(needs):
            for other in needed:
                self.followers.setdefault(other, []).append(place)
        self.counts = [len(needed) for needed in needs]
        self.ready = [place for place, count in enumerate(self.counts) if count == 0]
        self.gone: set[int] = set()

    def release(self, place: int) -> None:
        """Let one wait no longer."""
        self.counts[place] = 0
        heappush(self.ready, place)

    def mark_as_run(self, place: int) -> None:
        """One has run: those that waited for nothing else are ready."""
        self.gone.add(place)
        for follower in self.followers.get(place, ()):
            self.counts[follower] -= 1
            if self.counts[follower] == 0:
                heappush(self.ready, follower)
