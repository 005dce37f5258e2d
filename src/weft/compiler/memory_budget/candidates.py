"""Choices of what to drop that are easy to weigh, of which the cheapest is taken.

The values that are made before the peak are cut into segments, of a few lengths; what is carried
over a cut is kept. For each length values are dropped one after the other, those first that take
least time to compute again for the bytes that they free, whatever made them.

>>> import weft as wf
>>> from weft.compiler.memory_budget.model import Flow
>>> from weft.compiler.targets.limits import Limits
>>> def f(x, w):
...     for _ in range(12):
...         x = wf.sin(x @ w)
...     return x.sum()
>>> flow = Flow(wf.ir.trace(wf.grad(f), *[wf.spec("float32", (64, 64))] * 2), Limits())
>>> choices = DropChoices(flow)
>>> chosen, smallest = choices.cheapest_choice(200_000), choices.smallest_choice
>>> flow.weigh(frozenset()).peak, chosen.peak, smallest.peak
(212992, 196608, 147456)
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice

from weft.compiler.memory_budget.model import Flow, Weight
from weft.ir.graph import Variable

__all__ = ["DropChoices"]

LENGTHS = 16
"""How many lengths of segments there are. These numbers say how far is searched, not what a machine
is good at; what it costs to compute again comes from `Rates`."""
SHORTER = 1.4
"""How many times as many segments there are of a length than of the one before."""
APART = 3
"""Of how many lengths one is tried first, before those beside the best."""
NEAREST, FARTHEST = 0.6, 1.5
"""Between which parts of its length a segment may end, where least is carried over."""
PRUNED, PATIENCE = 48, 8
"""How many units may turn out not to be worth dropping, and how many in a row that are."""
SMALL = 8
"""How many times as large as what it is made from a value is for that to be kept for it."""


class DropChoices:
    """The choices for one peak: for each length of segments an order to drop values in."""

    def __init__(self, flow: Flow) -> None:
        self.flow = flow
        self._bounds = list(self._lengths())
        self._made: dict[int, DropOrder] = {}

    def _lengths(self) -> Iterator[int]:
        """The bytes of a segment's values, from half of all to a few of them."""
        total = sum(self.flow.bytes[v] for v in self.flow.needed_late)
        most = max(2, len(self.flow.needed_late))
        counts = dict.fromkeys(round(2 * SHORTER**power) for power in range(LENGTHS))
        yield from [total // count for count in counts if count <= most]

    def _drop_order(self, number: int) -> DropOrder:
        if number not in self._made:
            self._made[number] = DropOrder(self.flow, self._bounds[number])
        return self._made[number]

    def cheapest_choice(self, target: float) -> Weight | None:
        """Of the choices that fit, the one that costs least."""

        def rank(number: int) -> tuple[float, ...]:
            order = self._drop_order(number)
            found = order.first_fitting_step(target)
            return (1.0, order.lowest_step.peak) if found is None else (0.0, found.cost, found.peak)

        best = self._best_length(rank)
        found = None if best is None else self._drop_order(best).first_fitting_step(target)
        return (
            None
            if best is None or found is None
            else self._drop_order(best).prune_choice(found, target)
        )

    def _best_length(self, rank: Callable[[int], tuple[float, ...]]) -> int | None:
        """The number of the length of least rank, looked for among a few, then beside the best."""
        ranks = {number: rank(number) for number in range(0, len(self._bounds), APART)}
        while ranks:
            best = min(ranks, key=lambda number: ranks[number])
            beside = {best - 1, best + 1} & {*range(len(self._bounds))} - ranks.keys()
            if not beside:
                return best
            ranks.update({number: rank(number) for number in beside})
        return None

    @property
    def smallest_choice(self) -> Weight:
        """The choice that needs least memory."""
        best = self._best_length(lambda number: (self._drop_order(number).lowest_step.peak,))
        nothing = self.flow.weigh(frozenset())
        return (
            nothing
            if best is None
            else min(nothing, self._drop_order(best).lowest_step, key=_peak_and_cost)
        )


def _peak_and_cost(weight: Weight) -> tuple[float, float]:
    return weight.peak, weight.cost


class DropOrder:
    """Steps of dropping more and more, where what is carried over the cuts is kept."""

    def __init__(self, flow: Flow, bound: int) -> None:
        cuts = list(_cuts(flow, bound))
        self.flow, self.kept = flow.anchor_places(cuts)
        self.candidates = [v for v in self.flow.candidates if v not in self.kept]
        self._order: dict[Variable, None] = {}
        self.steps = [0]
        """How many values of the order are dropped at each step."""
        self._dense = self._by_density()
        self.ends = [self._climb(self._dense)]
        """The numbers of the steps that may be the lowest."""
        self.ends.append(self._climb(_segments(self.flow, self.candidates, cuts)))
        self.known: dict[int, Weight] = {}

    def weigh(self, number: int) -> Weight:
        """The weight of a step, found once."""
        if number not in self.known:
            dropped = frozenset(islice(self._order, self.steps[number]))
            self.known[number] = self.flow.weigh(dropped)
        return self.known[number]

    @property
    def lowest_step(self) -> Weight:
        """The weight of the lowest step."""
        return min(map(self.weigh, self.ends), key=_peak_and_cost)

    def first_fitting_step(self, target: float) -> Weight | None:
        """The first step that fits, by halving: each step drops more than the one before."""
        high = next((end for end in self.ends if self.weigh(end).peak <= target), -1)
        if high < 0:
            return None
        low = 0
        while low < high:
            middle = (low + high) // 2
            if self.weigh(middle).peak <= target:
                high = middle
            else:
                low = middle + 1
        return self.weigh(high)

    def prune_choice(self, weight: Weight, target: float) -> Weight:
        """The choice without the values that need not be dropped for it to fit.

        What is made last before the peak is read first behind it: it lives there either way.
        """
        units = [unit for unit in self._dense if weight.dropped.issuperset(unit)]
        made = self.flow.made
        failed = 0
        for unit in sorted(units, key=lambda unit: -max(made[v] for v in unit))[:PRUNED]:
            less = self.flow.weigh(weight.dropped.difference(unit))
            if less.peak <= target and less.cost < weight.cost:
                weight, failed = less, 0
            elif (failed := failed + 1) > PATIENCE:
                break
        return weight

    def _climb(self, additions: Iterable[Sequence[Variable]]) -> int:
        """Add a step for each addition to what is dropped; the number of the last."""
        for more in additions:
            self._order.update(dict.fromkeys(more))
            if len(self._order) > self.steps[-1]:
                self.steps.append(len(self._order))
        return len(self.steps) - 1

    def _by_density(self) -> list[list[Variable]]:
        """What is dropped together, what takes least time for its bytes first.

        Of equal ones the first made come first: when they are computed again, the memory of later
        ones is free.
        """
        dense = [(self._density(unit), unit) for unit in self._units()]
        return [unit for density, unit in sorted(dense, key=lambda each: each[0]) if density >= 0]

    def _units(self) -> list[list[Variable]]:
        """Values that something behind the peak reads, with all that is computed only for them.

        Those that are made from the same such value, as the parts of a product are, are together.
        """
        allowed, late = set(self.candidates), self.flow.needed_late
        unit_of: dict[Variable, dict[Variable, None]] = {}
        for value in [v for v in self.candidates if v in late]:
            unit = unit_of[value] = {value: None}
            stack = [value]
            while stack:
                for source in self.flow.sources(stack.pop()):
                    is_large = SMALL * self.flow.bytes[source] > self.flow.bytes[value]
                    if not is_large or source in late or source not in allowed:
                        continue
                    known = unit_of.get(source)
                    if known is None:
                        stack.append(source)
                        unit[source] = None
                        unit_of[source] = unit
                    elif known is not unit:
                        known.update(unit)
                        unit_of.update(dict.fromkeys(unit, known))
                        unit = known
        return [list(unit) for unit in {id(unit): unit for unit in unit_of.values()}.values()]

    def _density(self, unit: Sequence[Variable]) -> float:
        """Seconds for each byte that is free when a unit is dropped; below 0 if none is."""
        flow, late = self.flow, self.flow.needed_late
        sources = {s for v in unit for s in flow.sources(v)} - {*unit}
        held = [s for s in sources if s not in late and s not in self.kept]
        saved = sum(flow.bytes[v] for v in unit if v in late) - sum(flow.bytes[s] for s in held)
        return sum(flow.costs[v] for v in unit) / saved if saved > 0 else -1.0


def _cuts(flow: Flow, bound: int) -> Iterator[int]:
    """Places before the peak, each where least is carried over, about a bound of bytes apart."""
    sizes: dict[int, int] = {}
    for value in flow.needed_late:
        sizes[flow.made[value]] = sizes.get(flow.made[value], 0) + flow.bytes[value]
    passed, best = 0, (0, 0, -1, 0)
    for place in range(flow.start):
        passed += sizes.get(place, 0)
        if passed >= NEAREST * bound:
            found = (flow.widths[place], abs(passed - bound), place, passed)
            best = found if best[2] < 0 else min(best, found)
        if passed >= FARTHEST * bound:
            yield best[2]
            passed, best = passed - best[3], (0, 0, -1, 0)


def _segments(flow: Flow, values: Iterable[Variable], cuts: Sequence[int]) -> list[list[Variable]]:
    """The values between each two cuts."""
    segments: list[list[Variable]] = [[] for _ in range(len(cuts) + 1)]
    number = 0
    for value in values:
        while number < len(cuts) and flow.made[value] > cuts[number]:
            number += 1
        segments[number].append(value)
    return segments
