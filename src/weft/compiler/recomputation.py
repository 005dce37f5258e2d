"""Recomputation: a program that fits a budget of memory, by computing values twice.

`fitted` chooses what to drop. The values that are made before the peak are cut into segments, of a
few lengths; what is carried over a cut is kept. In each length values are dropped in a fixed
order: first those that are cheap to make from what is kept anyway, then all that are cheap, segment
by segment, then products and convolutions whose bytes are worth it, then all. Of the choices whose
model (retention.py) fits, the one that costs least is compiled, and its real plan is the judge.

>>> import weft as wf
>>> def loss(x, w):
...     for _ in range(12):
...         x = wf.tanh(x @ w)
...     return x.sum()
>>> x, w = wf.ones((512, 16)), wf.ones((16, 16))
>>> needed = wf.jit(wf.grad(loss)).memory(x, w).peak
>>> step = wf.jit(wf.grad(loss), memory=int(0.6 * needed))
>>> step.memory(x, w).peak <= 0.6 * needed
True
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

from weft.compiler.costs import bytes_of
from weft.compiler.kernels import disk, environment
from weft.compiler.memory_report import LiveValue, MemoryReport, Recomputed
from weft.compiler.pipeline import optimize
from weft.compiler.retention import Flow, Weight, prompt, recomputing, released, values_again
from weft.compiler.stored import sources
from weft.core.errors import ArgumentError, ArgumentTypeError
from weft.ir.graph import Graph, Variable
from weft.runtime.arena import OutOfMemoryError, readable
from weft.runtime.cache import entry_key

__all__ = ["Fit", "fitted", "parse_bytes"]

ROUNDS = 8
"""How often the peak, once lowered, is looked for again: a program may have several."""
ATTEMPTS = 5
"""How many choices are compiled for one peak, to find one whose real plan fits."""
HOPELESS = 1.25
"""How many times a budget the model's bytes are where the program need not be asked as it is."""
LENGTHS = 16
"""How many lengths of segments are tried."""
SHORTER = 1.4
"""How many times as many segments there are of a length than of the one before."""
NEAREST, FARTHEST = 0.6, 1.5
"""Between which parts of its length a segment may end, where least is carried over."""
NAMED = 6
"""How many of the values that stay an error names."""
_UNITS = {
    "": 1, "b": 1, "bytes": 1, "kb": 10**3, "mb": 10**6, "gb": 10**9, "tb": 10**12,
    "kib": 2**10, "mib": 2**20, "gib": 2**30, "tib": 2**40,
}  # fmt: skip
_AMOUNT = re.compile(r"\s*(\d+(?:\.\d*)?|\.\d+)\s*([a-z]*)\s*", re.IGNORECASE)

Judge = Callable[[Graph], MemoryReport]
"""Compiles a graph, and says what it will allocate."""


def parse_bytes(op: str, amount: object) -> int:
    """An amount of memory as a number of bytes: a number, or text such as "300MB" or "1.5GiB".

    >>> parse_bytes("jit", "300MB"), parse_bytes("jit", "1.5 GiB"), parse_bytes("jit", 1000)
    (300000000, 1610612736, 1000)
    """
    if isinstance(amount, bool) or not isinstance(amount, (int, str)):
        raise ArgumentTypeError(
            op,
            "an amount of memory is a number of bytes, or text",
            expected='a number, or text such as "300MB" or "1.5GiB"',
            got={"memory": amount},
            fix='memory="8GB"',
        )
    found = _AMOUNT.fullmatch(str(amount))
    if found is None or found[2].lower() not in _UNITS:
        raise ArgumentError(
            op,
            "this is no amount of memory",
            expected='a number with a unit: "300MB", "8GB", "1.5GiB"',
            got={"memory": amount},
            fix='memory="8GB"',
        )
    return int(float(found[1]) * _UNITS[found[2].lower()])


@dataclass(frozen=True, slots=True)
class Fit:
    """A graph that fits a budget, and what is computed again in it."""

    graph: Graph
    recomputed: tuple[Recomputed, ...] = ()


def fitted(graph: Graph, budget: int, judge: Judge) -> Fit:
    """The graph, optimised, with as much computed again as a budget in bytes asks for.

    What was chosen is kept on disk, so that a later process does not choose again.
    """
    graph = optimize(graph)
    asked = f"{graph.digest()} in {budget}"
    key = entry_key(asked.encode(), "recomputation", sources(), *environment())
    known = disk().get(key)
    if known is not None:
        fit = _followed(graph, json.loads(known))
        if judge(fit.graph).peak <= budget:
            return fit
    fit, choices = _chosen(graph, budget, judge)
    disk().put(key, json.dumps(choices).encode())
    return fit


Choice = tuple[int, list[int], list[int]]


def _followed(graph: Graph, choices: Sequence[Choice]) -> Fit:
    """The graph after choices that were made before, round by round."""
    fit = Fit(released(Flow(graph)) if choices else graph)
    for start, anchors, dropped in choices:
        fit = Fit(prompt(Flow(fit.graph)), fit.recomputed)
        made = [value for node in fit.graph.nodes for value in node.results]
        flow = Flow(fit.graph, frozenset(made[number] for number in anchors), start)
        fit = _applied(fit, flow, frozenset(made[number] for number in dropped))
    return fit


def _numbered(flow: Flow, dropped: frozenset[Variable]) -> Choice:
    """A choice in numbers: the peak, and which of all results are anchors, and are dropped."""
    made = [value for node in flow.graph.nodes for value in node.results]
    anchors = [number for number, value in enumerate(made) if value in flow.anchors]
    return flow.start, anchors, [number for number, value in enumerate(made) if value in dropped]


def _applied(fit: Fit, flow: Flow, dropped: frozenset[Variable]) -> Fit:
    again = [_recomputed(flow, value) for value in values_again(flow, dropped)]
    return Fit(recomputing(flow, dropped), (*fit.recomputed, *again))


def _recomputed(flow: Flow, value: Variable) -> Recomputed:
    node = flow.producer[value]
    size = bytes_of(value.type, {})
    return Recomputed(node.primitive.name, str(value.type), size, node.location)


def _chosen(graph: Graph, budget: int, judge: Judge) -> tuple[Fit, list[Choice]]:
    """What fits, and the choices that lead to it; an error if nothing does."""
    choices: list[Choice] = []
    flow = Flow(graph)
    fit, report = Fit(graph), None
    if flow.weigh(frozenset()).peak <= HOPELESS * budget:
        report = judge(graph)
    if report is None or report.peak > budget:
        fit = Fit(released(flow))
        report = judge(fit.graph) if report is None or fit.graph is not graph else report
    best = fit, report
    for _ in range(ROUNDS):
        if report.peak <= budget:
            return fit, choices
        found = _lowered(Flow(prompt(Flow(fit.graph))), budget, report, judge)
        if found is None:
            break
        (weight, report), flow = found, found[0].flow
        choices.append(_numbered(flow, weight.dropped))
        fit = _applied(fit, flow, weight.dropped)
        best = min(best, (fit, report), key=lambda each: each[1].peak)
    if report.peak > budget:
        raise _too_large(best[1], budget, best[0])
    return fit, choices


def _lowered(
    flow: Flow, budget: int, report: MemoryReport, judge: Judge
) -> tuple[Weight, MemoryReport] | None:
    """What to drop for a program to fit, or else to come nearest; None if nothing helps.

    The model and the real plan differ by what is packed, fused and reordered: where a choice turns
    out too large, the next one aims lower by as much.
    """
    plans = _Plans(flow)
    allowed = budget - (report.peak - report.arena)
    target = allowed * flow.weigh(frozenset()).peak / max(1, report.arena)
    best: tuple[Weight, MemoryReport] | None = None
    tried: set[frozenset[Variable]] = set()
    for _ in range(ATTEMPTS):
        chosen = plans.cheapest(target) or plans.smallest
        if chosen.dropped in tried or not chosen.dropped:
            break
        tried.add(chosen.dropped)
        made = judge(recomputing(chosen.flow, chosen.dropped))
        if flow.others > target:  # of several hills this was one
            return chosen, made
        if made.peak < (best[1] if best else report).peak:
            best = chosen, made
        if made.peak <= budget or allowed <= 0:
            break
        target = min(target, chosen.peak) * 0.99 * min(1.0, allowed / max(1, made.arena))
    return best


# --- choices -------------------------------------------------------------------------------------


class _Plans:
    """The choices for one peak: for each length of segments a list of steps, to be gone so far."""

    def __init__(self, flow: Flow) -> None:
        self.flow = flow
        self.ladders = [_Ladder(flow, bound) for bound in self._bounds()]

    def _bounds(self) -> Iterator[int]:
        """The bytes of a segment's values, from half of all to a few of them."""
        total = sum(self.flow.bytes[v] for v in self.flow.needed_late)
        most = max(2, len(self.flow.needed_late))
        counts = dict.fromkeys(round(2 * SHORTER**power) for power in range(LENGTHS))
        yield from [total // count for count in counts if count <= most]

    def cheapest(self, target: float) -> Weight | None:
        """Of the choices that fit, the one that costs least."""
        fitting = [w for ladder in self.ladders if (w := ladder.first(target)) is not None]
        return min(fitting, key=lambda weight: (weight.cost, weight.peak), default=None)

    @property
    def smallest(self) -> Weight:
        """The choice that needs least memory."""
        ends = [ladder.weigh(end) for ladder in self.ladders for end in ladder.ends]
        nothing = self.flow.weigh(frozenset())
        return min([nothing, *ends], key=lambda weight: (weight.peak, weight.cost))


class _Ladder:
    """Steps of dropping more and more, where what is carried over the cuts is kept."""

    def __init__(self, flow: Flow, bound: int) -> None:
        cuts = list(_cuts(flow, bound))
        self.flow, kept = flow.anchored(cuts)
        self.candidates = [v for v in self.flow.candidates if v not in kept]
        self.segments = _segments(self.flow, self.candidates, cuts)
        self.steps = [frozenset[Variable]()]
        self.ends = [self._climb(more) for more in self._stages()]
        """The numbers of the steps at which a kind of value has been dropped as a whole."""
        self.known: dict[int, Weight] = {}

    def weigh(self, number: int) -> Weight:
        """The weight of a step, found once."""
        if number not in self.known:
            self.known[number] = self.flow.weigh(self.steps[number])
        return self.known[number]

    def first(self, target: float) -> Weight | None:
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

    def _climb(self, additions: Iterable[Sequence[Variable]]) -> int:
        """Add a step for each addition to what is dropped; the number of the last."""
        for more in additions:
            if not self.steps[-1].issuperset(more):
                self.steps.append(self.steps[-1] | set(more))
        return len(self.steps) - 1

    def _stages(self) -> Iterator[list[list[Variable]]]:
        """What is dropped, kind by kind, what is cheap first."""
        dear = self.flow.dear
        yield self._alone([v for v in self.candidates if v not in dear])
        yield [[v for v in segment if v not in dear] for segment in self.segments]
        yield self._alone([v for v in self.candidates if v in dear])
        yield self.segments

    def _alone(self, values: Iterable[Variable]) -> list[list[Variable]]:
        """Values that can be dropped for themselves, those that save most for their cost first."""
        worth = {v: self._saved(v) / self.flow.costs[v] for v in values if self._saved(v) > 0}
        return [[v] for v in sorted(worth, key=lambda v: -worth[v])]

    def _saved(self, value: Variable) -> int:
        """The bytes that are free if a value is dropped, and what it is made from is kept."""
        flow = self.flow
        if value not in flow.needed_late:
            return 0
        extended = [v for v in flow.sources(value) if v not in flow.needed_late]
        return flow.bytes[value] - sum(flow.bytes[v] for v in extended)


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


# --- errors --------------------------------------------------------------------------------------


def _too_large(report: MemoryReport, budget: int, fit: Fit) -> OutOfMemoryError:
    over = report.peak - budget
    again = "everything computed again that helps" if fit.recomputed else "nothing to recompute"
    fixed = {
        name: readable(size)
        for name in ("inputs", "outputs", "constants", "temporary")
        if (size := getattr(report, name))
    }
    stays = {value.name: _place(value) for value in report.largest[:NAMED]}
    at = next((value.at for value in report.largest if value.at is not None), None)
    outside = report.peak - report.arena
    return OutOfMemoryError(
        "jit",
        f"the program needs {readable(report.peak)}, {readable(over)} more than it was given, "
        f"with {again}",
        expected=f"at most {readable(budget)}",
        got={**fixed, "arena": readable(report.arena), **stays},
        note="the largest values that stay"
        if outside < budget
        else f"arguments, state and results alone are {readable(outside)}",
        fix=f'memory="{_rounded(report.peak)}", a smaller batch, or 16-bit floats',
        at=at,
    )


def _place(value: LiveValue) -> str:
    """The size of a value, its type, and the line that it comes from."""
    where = "" if value.at is None else f" from {str(value.at).partition(', in ')[0]}"
    return f"{readable(value.bytes)}, {value.type}{where}"


def _rounded(size: int) -> str:
    """An amount that is at least as large, as people write it."""
    unit, name = (10**6, "MB") if size >= 10**7 else (10**3, "kB")
    return f"{-(-size // unit)}{name}"
