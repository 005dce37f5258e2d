"""Schedules against closed formulas and PyTorch's; as numbers, as tensors, compiled."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import weft as wf
from weft.optim import schedules as s

CLOSED: list[tuple[s.Schedule, Callable[[int], float]]] = [
    (s.Constant(0.1), lambda t: 0.1),
    (s.Step(0.1, every=3, factor=0.5), lambda t: 0.1 * 0.5 ** (t // 3)),
    (
        s.MultiStep(0.1, milestones=(2, 7), factor=0.5),
        lambda t: 0.1 * 0.5 ** ((t >= 2) + (t >= 7)),
    ),
    (s.Exponential(0.1, factor=0.9), lambda t: 0.1 * 0.9**t),
    (s.Linear(0.1, 0.02, steps=8), lambda t: 0.1 + (0.02 - 0.1) * min(t / 8, 1)),
    (
        s.Polynomial(0.1, steps=10, power=2, end=0.01),
        lambda t: 0.01 + 0.09 * (1 - min(t / 10, 1)) ** 2,
    ),
    (
        s.Cosine(0.1, steps=10, end=0.01),
        lambda t: 0.01 + 0.09 * (1 + math.cos(math.pi * min(t / 10, 1))) / 2,
    ),
    (
        s.CosineRestarts(0.1, steps=4),
        lambda t: 0.1 * (1 + math.cos(math.pi * (t % 4) / 4)) / 2,
    ),
    (s.Lambda(0.1, lambda step: 1 / (1 + step)), lambda t: 0.1 / (1 + t)),
    (
        s.Cyclic(0.1, 0.3, steps=4, down=2, shrink=0.5),
        lambda t: 0.1 + 0.2 * 0.5 ** (t // 6) * (t % 6 / 4 if t % 6 <= 4 else 1 - (t % 6 - 4) / 2),
    ),
    (
        s.Warmup(s.Exponential(0.2, 0.9), steps=5, start=0.1),
        lambda t: 0.2 * (0.1 + 0.9 * t / 5) if t < 5 else 0.2 * 0.9 ** (t - 5),
    ),
    (
        s.Sequential((s.Constant(0.3), s.Linear(0.2, 0.0, 4), s.Constant(0.7)), (3, 9)),
        lambda t: 0.3 if t < 3 else 0.2 * (1 - min((t - 3) / 4, 1)) if t < 9 else 0.7,
    ),
]
closed = pytest.mark.parametrize(
    ("schedule", "formula"), CLOSED, ids=[type(each[0]).__name__ for each in CLOSED]
)


@closed
def test_a_schedule_is_its_formula(schedule: s.Schedule, formula: Callable[[int], float]) -> None:
    for t in range(20):
        assert schedule(t) == pytest.approx(formula(t), rel=1e-9, abs=1e-12)
        assert schedule(wf.tensor(t)).item() == pytest.approx(formula(t), rel=2e-5, abs=1e-7)


@closed
def test_a_schedule_runs_from_the_counter_without_compiling_again(
    schedule: s.Schedule, formula: Callable[[int], float]
) -> None:
    w = wf.tensor([0.0], requires_grad=True)
    optimizer = wf.optim.SGD([w], lr=schedule)

    @wf.jit
    def step(w: wf.Tensor, optimizer: Any) -> None:
        optimizer.minimize(w.sum())

    expected = 0.0
    for t in range(12):
        step(w, optimizer)
        expected -= formula(t)
        assert w.item() == pytest.approx(expected, rel=1e-4, abs=1e-6)
    assert len(step.compilations) == 1


def torch_cases(torch: Any) -> list[tuple[s.Schedule, Callable[[Any], Any]]]:
    of = torch.optim.lr_scheduler
    return [
        (s.Step(0.1, 3, 0.5), lambda o: of.StepLR(o, 3, 0.5)),
        (s.MultiStep(0.1, (2, 7), 0.5), lambda o: of.MultiStepLR(o, [2, 7], 0.5)),
        (s.Exponential(0.1, 0.9), lambda o: of.ExponentialLR(o, 0.9)),
        (s.Linear(0.05, 0.1, 6), lambda o: of.LinearLR(o, 0.5, 1.0, 6)),
        (s.Polynomial(0.1, 10, 2.0), lambda o: of.PolynomialLR(o, 10, 2.0)),
        (s.CosineRestarts(0.1, 3, 2), lambda o: of.CosineAnnealingWarmRestarts(o, 3, 2)),
        (s.OneCycle(0.1, 24), lambda o: of.OneCycleLR(o, 0.1, 24)),
        (s.Lambda(0.1, lambda t: 0.9**t), lambda o: of.LambdaLR(o, lambda t: 0.9**t)),
        (s.Cyclic(0.1, 0.5, 3), lambda o: of.CyclicLR(o, 0.1, 0.5, 3, cycle_momentum=False)),
        (
            s.Cyclic(0.1, 0.5, 3, down=5, shrink=0.5),
            lambda o: of.CyclicLR(o, 0.1, 0.5, 3, 5, "triangular2", cycle_momentum=False),
        ),
        (
            s.Cyclic(0.1, 0.5, 3, factor=0.9),
            lambda o: of.CyclicLR(
                o, 0.1, 0.5, 3, mode="exp_range", gamma=0.9, cycle_momentum=False
            ),
        ),
        (
            s.OneCycle(0.1, 24, rise=0.5, begin=10, finish=100),
            lambda o: of.OneCycleLR(o, 0.1, 24, pct_start=0.5, div_factor=10, final_div_factor=100),
        ),
    ]


def test_schedules_are_those_of_torch() -> None:
    torch = pytest.importorskip("torch")
    for schedule, make in torch_cases(torch):
        optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=0.1)
        scheduler = make(optimizer)
        for t in range(22):
            assert schedule(t) == pytest.approx(optimizer.param_groups[0]["lr"], rel=1e-6), schedule
            optimizer.step()
            scheduler.step()


def test_restarts_begin_where_the_last_cycle_ends() -> None:
    schedule = s.CosineRestarts(1.0, steps=3, times=2)
    for begin in (0, 3, 9, 21, 45, 93, 189):
        assert schedule(begin) == pytest.approx(1.0)
        assert schedule(wf.tensor(begin)).item() == pytest.approx(1.0, abs=1e-4)


def test_a_one_cycle_rises_and_falls() -> None:
    schedule = s.OneCycle(1.0, steps=100)
    rates = [schedule(t) for t in range(100)]
    assert rates[0] == pytest.approx(1 / 25)
    assert np.argmax(rates) == 29
    assert rates[99] == pytest.approx(1 / 25 / 1e4)
    assert s.OneCycle(1.0, steps=10, rise=0.0)(0) == pytest.approx(1.0)


@pytest.mark.parametrize("compiled", [False, True], ids=["eager", "compiled"])
def test_a_scheduler_writes_the_rates_of_all_groups(compiled: bool) -> None:
    a, b = (wf.tensor([1.0], requires_grad=True) for _ in range(2))
    optimizer = wf.optim.SGD([{"params": [a]}, {"params": [b], "lr": 0.05}], lr=0.1)
    scheduler = s.Scheduler(optimizer, s.Exponential(0.1, 0.5))

    def advance(scheduler: Any) -> None:
        scheduler.step()

    run = wf.jit(advance) if compiled else advance
    run(scheduler)
    run(scheduler)
    rates = [group["lr"].item() for group in optimizer.groups]
    assert rates == pytest.approx([0.025, 0.0125])
    if compiled:
        assert len(run.compilations) == 1


def test_a_scheduler_drives_momentum_and_resumes() -> None:
    w = wf.tensor([1.0], requires_grad=True)
    optimizer = wf.optim.SGD([w], lr=0.1, momentum=0.9)
    scheduler = s.Scheduler(optimizer, s.Linear(0.9, 0.5, 4), option="momentum")
    for _ in range(2):
        scheduler.step()
    assert optimizer.groups[0]["momentum"].item() == pytest.approx(0.7)
    again = s.Scheduler(wf.optim.SGD([w], momentum=0.9), s.Linear(0.9, 0.5, 4), option="momentum")
    again.load_state_dict(scheduler.state_dict())
    assert again.optimizer.groups[0]["momentum"].item() == pytest.approx(0.7)


METRICS = [5.0, 4.0, 4.1, 4.2, 4.3, 3.0, 3.0, 3.0, 3.0, 3.0, 3.0, 3.0, 2.9999, 2.0, 2.0, 2.0, 2.0]


@pytest.mark.parametrize("cooldown", [0, 2])
def test_a_plateau_is_that_of_torch(cooldown: int) -> None:
    torch = pytest.importorskip("torch")
    theirs = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=0.1)
    judge = torch.optim.lr_scheduler.ReduceLROnPlateau(
        theirs, factor=0.5, patience=1, cooldown=cooldown, min_lr=0.01
    )
    optimizer = wf.optim.SGD([wf.tensor([1.0], requires_grad=True)], lr=0.1)
    plateau = s.Plateau(optimizer, factor=0.5, patience=1, cooldown=cooldown, least=0.01)
    for metric in METRICS:
        judge.step(metric)
        plateau.step(metric)
        assert optimizer.lr.item() == pytest.approx(theirs.param_groups[0]["lr"])


def test_a_plateau_compiles_and_resumes() -> None:
    def make() -> Any:
        optimizer = wf.optim.SGD([wf.tensor([1.0], requires_grad=True)], lr=0.5)
        return s.Plateau(optimizer, factor=0.5, patience=1)

    plateau = make()
    judge = wf.jit(lambda plateau, metric: plateau.step(metric))
    for metric in (3.0, 2.0, 2.0):
        judge(plateau, wf.tensor(metric))
    again = make()
    again.load_state_dict(plateau.state_dict())
    again.step(2.0)
    assert len(judge.compilations) == 1
    assert plateau.optimizer.lr.item() == 0.5
    assert again.optimizer.lr.item() == 0.25


def test_a_schedule_given_later_takes_over() -> None:
    w = wf.tensor([0.0], requires_grad=True)
    optimizer = wf.optim.SGD([w], lr=1.0)
    optimizer.lr = s.Constant(0.5)
    optimizer.minimize(w.sum())
    assert w.item() == -0.5
    optimizer.lr = 0.25
    optimizer.minimize(w.sum())
    assert w.item() == -0.75


@pytest.mark.parametrize(
    ("make", "field"),
    [
        (lambda: s.Constant(-1.0), "lr"),
        (lambda: s.Cosine(0.1, steps=0), "steps"),
        (lambda: s.OneCycle(0.1, 10, rise=2.0), "rise"),
        (lambda: s.Sequential((s.Constant(0.1),), (3,)), "milestones"),
        (lambda: s.CosineRestarts(0.1, 3, times=0), "times"),
    ],
)
def test_impossible_schedules_are_refused(make: Callable[[], Any], field: str) -> None:
    with pytest.raises(wf.ArgumentError) as caught:
        make()
    assert field in caught.value.expected or field in caught.value.problem
