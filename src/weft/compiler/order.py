"""The order of calls: each as soon as what it reads is there.

A chain stands where its product stood, and may read what is made later; here it waits for that, and
no longer: an update that waited for the end would keep alive what its product reads. What may be
written over an input waits for all others that read the input, so that it can be.

>>> import weft as wf
>>> from weft.compiler.program import Program
>>> def step(x, w, v):
...     return wf.grad(lambda w, v: (wf.tanh(x @ w) @ v).sum(), argnums=(0, 1))(w, v)
>>> program = Program(wf.ir.trace(step, *[wf.spec("float32", (32, 32))] * 3))
>>> len(program.calls) > 2
True
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from heapq import heapify, heappop, heappush
from typing import TYPE_CHECKING

from weft.ir.graph import Literal, Variable

if TYPE_CHECKING:
    from weft.compiler.section import Call

Value = Variable | Literal
Root = Callable[[Value], Value]


def early(calls: Sequence[Call], root: Root) -> list[Call]:
    """The calls in an order in which they can run, otherwise as they are given."""
    makers = {root(v): place for place, call in enumerate(calls) for v in call.writes}
    needs = [_needed(call, place, makers, root) for place, call in enumerate(calls)]
    _keep_effects_in_order(calls, needs)
    patient = _patient(calls, makers, needs, root)
    found = _sorted(patient)
    return [calls[place] for place in (found if len(found) == len(calls) else _sorted(needs))]


def _needed(call: Call, place: int, makers: dict[Value, int], root: Root) -> set[int]:
    return {makers[root(v)] for v in call.values if root(v) in makers} - {place}


def _keep_effects_in_order(calls: Sequence[Call], needs: list[set[int]]) -> None:
    """What has an effect, or may fail, comes after all others of its kind before it."""
    previous: int | None = None
    for place, call in enumerate(calls):
        if call.node is not None or call.checked is not None or call.nested is not None:
            if previous is not None:
                needs[place].add(previous)
            previous = place


def _patient(
    calls: Sequence[Call], makers: dict[Value, int], needs: list[set[int]], root: Root
) -> list[set[int]]:
    """The same, where what may be written over an input waits for its other readers."""
    readers: dict[Value, set[int]] = {}
    for place, call in enumerate(calls):
        for value in call.values:
            readers.setdefault(root(value), set()).add(place)
    replaced = [{root(v) for _, v in call.in_place} - set(makers) for call in calls]
    return [
        needed | {other for value in values for other in readers[value]} - {place}
        for place, (needed, values) in enumerate(zip(needs, replaced, strict=True))
    ]


def _sorted(needs: Sequence[set[int]]) -> list[int]:
    """The places, each behind those it needs; a circle, and what hangs on it, is left out."""
    followers: dict[int, list[int]] = {}
    for place, needed in enumerate(needs):
        for other in needed:
            followers.setdefault(other, []).append(place)
    counts = [len(needed) for needed in needs]
    ready = [place for place, count in enumerate(counts) if count == 0]
    heapify(ready)
    order: list[int] = []
    while ready:
        place = heappop(ready)
        order.append(place)
        for follower in followers.get(place, ()):
            counts[follower] -= 1
            if counts[follower] == 0:
                heappush(ready, follower)
    return order
