"""Recomputation: a program that fits a budget of memory, by computing values twice.

`fit_budget` chooses what to drop. A model (model.py) of the program has what each choice costs and
how much memory it leaves; of the choices that are easy to weigh (candidates.py) the cheapest is
taken whose model fits, and drafted: its real plan, for which nothing is compiled, is the judge.

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
from collections import OrderedDict
from collections.abc import Callable, Sequence

from weft.compiler.fusion.costs import bytes_of
from weft.compiler.memory_budget.candidates import DropChoices
from weft.compiler.memory_budget.model import (
    Flow,
    Weight,
    release_products,
    values_again,
    with_early_updates,
    with_recomputation,
)
from weft.compiler.pipeline import optimize
from weft.compiler.report.memory_use import LiveValue, MemoryReport, Recomputed
from weft.compiler.targets.limits import Limits
from weft.compiler.targets.target import Target
from weft.core.errors import ArgumentError, ArgumentTypeError, OutOfMemoryError
from weft.core.records import frozen
from weft.ir.graph import Graph, Variable
from weft.runtime.arena import readable_size
from weft.runtime.cache import entry_key, shared_disk
from weft.runtime.stamps import program_sources

__all__ = ["Fit", "fit_budget", "parse_bytes"]

ROUNDS = 8
"""How often the peak, once lowered, is looked for again: a program may have several. These numbers
say how long is searched, not what a machine is good at."""
ATTEMPTS = 5
"""How many choices are drafted for one peak, to find one whose real plan fits."""
REFINED = 1
"""How many more, once one fits, to find a cheaper one that does."""
USUAL = 0.97
"""What part of a real plan its model usually is."""
CLOSE = 0.95
"""How much of what it may take a plan takes that need not be refined."""
EXPLORED = (0.01, 0.03, 0.1, 0.3)
"""How far up from the least, by the model, choices are drafted before a budget is refused."""
HOPELESS = 1.25
"""How many times a budget the model's bytes are where the program need not be asked as it is."""
NOTES = 64
"""How many choices are remembered beside those on disk."""
NAMED = 6
"""How many of the values that stay an error names."""
_UNITS = {
    "": 1, "b": 1, "bytes": 1, "kb": 10**3, "mb": 10**6, "gb": 10**9, "tb": 10**12,
    "kib": 2**10, "mib": 2**20, "gib": 2**30, "tib": 2**40,
}  # fmt: skip
_AMOUNT = re.compile(r"\s*(\d+(?:\.\d*)?|\.\d+)\s*([a-z]*)\s*", re.IGNORECASE)

Judge = Callable[[Graph], MemoryReport]
"""Drafts the program of a graph, and says what it will allocate."""


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


@frozen
class Fit:
    """A graph that fits a budget, and what is computed again in it."""

    graph: Graph
    recomputed: tuple[Recomputed, ...] = ()


Choice = tuple[int, list[int], list[int]]
"""In numbers: where the peak is, which of all results are anchors, and which are dropped."""
RELEASED: Choice = (-1, [], [])
"""The choice to let updates wait for themselves alone, and drop nothing."""


@frozen
class _Plan:
    """A graph with what it will allocate, the choices that lead to it, and what they cost."""

    fit: Fit
    report: MemoryReport
    choices: tuple[Choice, ...] = ()
    cost: float = 0.0

    @property
    def peak(self) -> int:
        return self.report.peak

    @property
    def bytes_outside_arena(self) -> int:
        """What is not in the arena, and the same whatever is dropped."""
        return self.report.peak - self.report.arena


def fit_budget(graph: Graph, target: Target, budget: int, judge: Judge, outside: int) -> Fit:
    """The graph, optimised, with as much computed again as a budget in bytes asks for.

    `outside` is about what arguments and results take. What was chosen is kept on disk, so that a
    later process does not choose again; so is the plan of a graph that needs least of all that were
    seen, with whatever budget: one that is as large is never refused.
    """
    graph = optimize(graph, target)
    digest = " ".join([graph.digest(), *target.environment()])
    known = _recall_plan(graph, target.limits, f"{digest} in {budget}", judge)
    if known is not None and known.peak <= budget:
        return known.fit
    search = _Search(graph, target.limits, budget, judge, outside)
    found = search.run() or search.lowest_plan()
    least = _least_plan(search, digest)
    if found is None and least.peak <= budget:
        found = least
    if found is None:
        raise _too_large(least.report, budget, least.fit)
    _note(f"{digest} in {budget}", found)
    return found.fit


def _least_plan(search: _Search, digest: str) -> _Plan:
    """Of all plans of a graph that were ever seen, the one that needs least."""
    own = min(search.seen, key=lambda plan: plan.peak)
    peak, choices = _noted_choices(f"least {digest}")
    if choices is not None and peak < own.peak:
        known = _recall_plan(search.graph, search.limits, f"least {digest}", search.judge)
        if known is not None and known.peak < own.peak:
            return known
    if choices is None or peak != own.peak:
        _note(f"least {digest}", own)
    return own


def _recall_plan(graph: Graph, limits: Limits, asked: str, judge: Judge) -> _Plan | None:
    """The plan of choices that were made before."""
    _, choices = _noted_choices(asked)
    if choices is None:
        return None
    fit = _follow_choices(graph, limits, choices)
    return _Plan(fit, judge(fit.graph), tuple(choices))


_notes: OrderedDict[str, tuple[int, Sequence[Choice]]] = OrderedDict()
"""Peaks and choices by what was asked, for where there is no disk."""


def _note(asked: str, plan: _Plan) -> None:
    _notes[asked] = plan.peak, plan.choices
    for old in list(_notes)[:-NOTES]:
        _notes.pop(old, None)
    shared_disk().put(_key(asked), json.dumps(_notes[asked]).encode())


def _noted_choices(asked: str) -> tuple[int, Sequence[Choice] | None]:
    """The peak and the choices that were noted."""
    data = None if asked in _notes else shared_disk().get(_key(asked))
    peak, choices = _notes.get(asked, (0, None)) if data is None else json.loads(data)
    return peak, choices


def _key(asked: str) -> str:
    return entry_key(asked.encode(), "recomputation", program_sources())


def _follow_choices(graph: Graph, limits: Limits, choices: Sequence[Choice]) -> Fit:
    """The graph after choices that were made before, round by round."""
    fit = Fit(release_products(Flow(graph, limits)) if choices else graph)
    for start, anchors, dropped in [choice for choice in choices if choice[0] >= 0]:
        ordered = with_early_updates(Flow(fit.graph, limits))
        made = [value for node in ordered.nodes for value in node.results]
        flow = Flow(ordered, limits, frozenset(made[number] for number in anchors), start)
        fit = _apply_choice(fit, flow, frozenset(made[number] for number in dropped))
    return fit


def _number_choice(flow: Flow, dropped: frozenset[Variable]) -> Choice:
    made = [value for node in flow.graph.nodes for value in node.results]
    anchors = [number for number, value in enumerate(made) if value in flow.anchors]
    return flow.start, anchors, [number for number, value in enumerate(made) if value in dropped]


def _apply_choice(fit: Fit, flow: Flow, dropped: frozenset[Variable]) -> Fit:
    again = [_record_recomputed(flow, value) for value in values_again(flow, dropped)]
    return Fit(with_recomputation(flow, dropped), (*fit.recomputed, *again))


def _record_recomputed(flow: Flow, value: Variable) -> Recomputed:
    node = flow.producer[value]
    size = bytes_of(value.type, {})
    return Recomputed(node.primitive.name, str(value.type), size, node.location)


# --- the search ----------------------------------------------------------------------------------


class _Search:
    """The search for one graph and budget, with all plans that were seen on the way."""

    def __init__(
        self, graph: Graph, limits: Limits, budget: int, judge: Judge, outside: int
    ) -> None:
        self.graph, self.limits, self.budget, self.judge = graph, limits, budget, judge
        self.bytes_outside_arena = outside
        """What arguments and results take: a guess, until a plan is there."""
        self.seen: list[_Plan] = []

    def run(self) -> _Plan | None:
        """The plan that fits; None if none was found."""
        flow = Flow(self.graph, self.limits)
        plan: _Plan | None = None
        if flow.weigh(frozenset()).peak + self.bytes_outside_arena <= HOPELESS * self.budget:
            plan = self.draft_plan(Fit(self.graph))
            if plan.peak <= self.budget:
                return plan
        start = release_products(flow)
        if plan is not None and start is not self.graph:
            plan = self.draft_plan(Fit(start), (RELEASED,))
        return self._descend(Fit(start), plan)

    def _descend(self, fit: Fit, plan: _Plan | None) -> _Plan | None:
        """The plan that fits after some rounds, each of which lowers a peak."""
        for _ in range(ROUNDS):
            if plan is not None and plan.peak <= self.budget:
                return plan
            found = _Round(self, fit if plan is None else plan.fit, plan).lower_peak()
            if found is None:
                return None
            plan = found
        return plan if plan is not None and plan.peak <= self.budget else None

    def lowest_plan(self) -> _Plan | None:
        """The cheapest plan that fits of those that are seen on the way to the least.

        That way is the same whatever the budget, so that what one budget finds others do, too.
        """
        fit = Fit(release_products(Flow(self.graph, self.limits)))
        down = _Search(self.graph, self.limits, 0, self.judge, self.bytes_outside_arena)
        down.seen = self.seen
        down._descend(fit, None)
        _Round(down, fit, None).explore()
        if not self.seen:  # nothing can be dropped
            self.draft_plan(fit, (RELEASED,))
        fitting = [plan for plan in self.seen if plan.peak <= self.budget]
        return min(fitting, key=lambda plan: plan.cost, default=None)

    def draft_plan(self, fit: Fit, choices: tuple[Choice, ...] = (), cost: float = 0.0) -> _Plan:
        """The plan of a graph."""
        plan = _Plan(fit, self.judge(fit.graph), choices, cost)
        self.bytes_outside_arena = plan.bytes_outside_arena
        self.seen.append(plan)
        return plan


class _Round:
    """One peak of a graph, and what is dropped to lower it."""

    def __init__(self, search: _Search, fit: Fit, before: _Plan | None) -> None:
        self.search, self.fit, self.before = search, fit, before
        self.flow = Flow(with_early_updates(Flow(fit.graph, search.limits)), search.limits)
        self.choices = DropChoices(self.flow)
        self._tried: set[frozenset[Variable]] = set()

    def lower_peak(self) -> _Plan | None:
        """The cheapest plan that fits, or else the one that comes nearest; None if nothing helps.

        The model and the real plan differ by what is packed, fused and reordered: where a choice
        turns out too large, the next one aims lower by as much; where it leaves memory unused, the
        next one keeps more.
        """
        budget, best = self.search.budget, self.before
        target, refined = self._target(), 0
        for _ in range(ATTEMPTS):
            weight = self.choices.cheapest_choice(target) or self.choices.smallest_choice
            plan = self._draft_choice(weight)
            if plan is None:
                break
            if self.flow.others > target:  # of several hills this was one
                return plan
            best = min([plan, best] if best else [plan], key=self._rank)
            allowed, arena = budget - plan.bytes_outside_arena, max(1, plan.report.arena)
            if plan.peak <= budget:
                if refined == REFINED or arena > CLOSE * allowed:
                    break
                target, refined = weight.peak * allowed / arena, refined + 1
            elif allowed <= 0 or refined:
                break
            else:
                target = min(target, weight.peak) * 0.99 * min(1.0, allowed / arena)
        return None if best is self.before else best

    def explore(self) -> None:
        """Draft a few choices that drop less than all, one of which may need least."""
        least, most = self.choices.smallest_choice.peak, self.flow.weigh(frozenset()).peak
        for part in EXPLORED:
            weight = self.choices.cheapest_choice(least + part * (most - least))
            if weight is not None:
                self._draft_choice(weight)

    def _rank(self, plan: _Plan) -> tuple[float, float]:
        fits = plan.peak <= self.search.budget
        return (0.0, plan.cost) if fits else (1.0, plan.peak)

    def _target(self) -> float:
        """What the model should have for the plan to fit."""
        allowed = self.search.budget - self.search.bytes_outside_arena
        if self.before is None:
            return allowed * USUAL
        return allowed * self.flow.weigh(frozenset()).peak / max(1, self.before.report.arena)

    def _draft_choice(self, weight: Weight) -> _Plan | None:
        """The plan of a choice; None if it was seen before, or is none."""
        if weight.dropped in self._tried or not weight.dropped:
            return None
        self._tried.add(weight.dropped)
        fit = _apply_choice(self.fit, weight.flow, weight.dropped)
        choices, cost = (self.before.choices, self.before.cost) if self.before else ((), 0.0)
        choices = (*choices, _number_choice(weight.flow, weight.dropped))
        return self.search.draft_plan(fit, choices, cost + weight.cost)


# --- errors --------------------------------------------------------------------------------------


def _too_large(report: MemoryReport, budget: int, fit: Fit) -> OutOfMemoryError:
    over = report.peak - budget
    again = "everything computed again that helps" if fit.recomputed else "nothing to recompute"
    fixed = {
        name: readable_size(size)
        for name in ("inputs", "outputs", "constants", "temporary")
        if (size := getattr(report, name))
    }
    stays = {value.name: _place(value) for value in report.largest[:NAMED]}
    at = next((value.at for value in report.largest if value.at is not None), None)
    outside = report.peak - report.arena
    return OutOfMemoryError(
        "jit",
        f"the program needs {readable_size(report.peak)}, {readable_size(over)} more than it was "
        f"given, with {again}",
        expected=f"at most {readable_size(budget)}",
        got={**fixed, "arena": readable_size(report.arena), **stays},
        note="the largest values that stay"
        if outside < budget
        else f"arguments, state and results alone are {readable_size(outside)}",
        fix=f'memory="{_size_text(report.peak)}", a smaller batch, or 16-bit floats',
        at=at,
    )


def _place(value: LiveValue) -> str:
    """The size of a value, its type, and the line that it comes from."""
    where = "" if value.at is None else f" from {str(value.at).partition(', in ')[0]}"
    return f"{readable_size(value.bytes)}, {value.type}{where}"


def _size_text(size: int) -> str:
    """An amount that is at least as large, as people write it."""
    unit, name = (10**6, "MB") if size >= 10**7 else (10**3, "kB")
    return f"{-(-size // unit)}{name}"
