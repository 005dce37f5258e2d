"""Learning rates over time: functions of the number of steps made so far.

A schedule can be given as `lr` of an optimiser: it is then evaluated from the optimiser's own
counter, also inside a compiled step, without compiling again. Or `Scheduler` writes its values at
each `step()`, per epoch for example. `Plateau` looks at a metric in place of time.

>>> import weft as wf
>>> from weft.optim import schedules
>>> schedule = schedules.Warmup(schedules.Cosine(0.1, steps=100), steps=10)
>>> schedule(0), round(schedule(5), 4), schedule(10), round(schedule(60), 4), schedule(110)
(0.0, 0.05, 0.1, 0.05, 0.0)
>>> w = wf.tensor([1.0], requires_grad=True)
>>> optimizer = wf.optim.SGD([w], lr=schedule)
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, overload

import weft as wf
from weft.names import explain_all as _explain_all
from weft.names import explain_attributes as _explain_attributes
from weft.names import missing_from as _missing_from
from weft.optim.checks import check_fraction, check_lr, check_positive
from weft.optim.nodes import tree_node

if TYPE_CHECKING:
    from weft.optim.optimizer import Optimizer

__all__ = [
    "Constant", "Cosine", "CosineRestarts", "Cyclic", "Exponential", "Lambda", "Linear",
    "MultiStep", "OneCycle", "Plateau", "Polynomial", "Schedule", "Scheduler", "Sequential", "Step",
    "Warmup",
]  # fmt: skip


@dataclass(frozen=True)
class Schedule:
    """A learning rate as a function of the steps made so far: `schedule(step)`.

    A number gives a number, a tensor gives a tensor; so the same formula runs in Python and inside
    `jit`. A subclass gives `formula`, over tensors.
    """

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if field.name in ("lr", "start", "end"):
                check_lr(type(self).__name__, value, field.name)
            elif field.name in ("steps", "every", "power"):
                check_positive(type(self).__name__, field.name, value)

    @overload
    def __call__(self, step: float) -> float: ...
    @overload
    def __call__(self, step: wf.Tensor) -> wf.Tensor: ...
    def __call__(self, step: float | wf.Tensor) -> float | wf.Tensor:
        """The learning rate after this many steps."""
        if isinstance(step, wf.Tensor):
            is_wide = step.dtype is wf.float64  # as the learning rate of parameters in float64
            return self.formula(step if is_wide else step.astype(wf.float32))
        return float(self.formula(wf.tensor(float(step), dtype=wf.float64)).item())

    def formula(self, step: wf.Tensor) -> wf.Tensor:
        """The learning rate at a step, a floating-point scalar."""
        raise NotImplementedError


@dataclass(frozen=True)
class Constant(Schedule):
    """Always the same: η.

    >>> Constant(0.1)(7)
    0.1
    """

    lr: float

    def formula(self, step: wf.Tensor) -> wf.Tensor:
        """See `Schedule`."""
        return step * 0 + self.lr


@dataclass(frozen=True)
class Step(Schedule):
    """Times `factor` after every so many steps: η γ^⌊t/every⌋.

    >>> [round(Step(0.1, every=10)(t), 4) for t in (9, 10, 25)]
    [0.1, 0.01, 0.001]
    """

    lr: float
    every: int
    factor: float = 0.1

    def formula(self, step: wf.Tensor) -> wf.Tensor:
        """See `Schedule`."""
        return self.lr * wf.pow(self.factor, wf.floor(step / self.every))


@dataclass(frozen=True)
class MultiStep(Schedule):
    """Times `factor` at each milestone that was passed.

    >>> [round(MultiStep(0.1, milestones=(3, 5))(t), 4) for t in (2, 3, 5)]
    [0.1, 0.01, 0.001]
    """

    lr: float
    milestones: tuple[int, ...]
    factor: float = 0.1

    def __post_init__(self) -> None:
        object.__setattr__(self, "milestones", tuple(self.milestones))
        super().__post_init__()

    def formula(self, step: wf.Tensor) -> wf.Tensor:
        """See `Schedule`."""
        rate = step * 0 + self.lr
        for milestone in self.milestones:
            rate = wf.where(step >= milestone, rate * self.factor, rate)
        return rate


@dataclass(frozen=True)
class Exponential(Schedule):
    """Times `factor` in every step: η γᵗ.

    >>> Exponential(0.1, factor=0.5)(2)
    0.025
    """

    lr: float
    factor: float

    def formula(self, step: wf.Tensor) -> wf.Tensor:
        """See `Schedule`."""
        return self.lr * wf.pow(self.factor, step)


@dataclass(frozen=True)
class Linear(Schedule):
    """Along a straight line from `start` to `end`, which is kept.

    >>> [Linear(0.0, 1.0, steps=4)(t) for t in (0, 1, 4, 9)]
    [0.0, 0.25, 1.0, 1.0]
    """

    start: float
    end: float
    steps: int

    def formula(self, step: wf.Tensor) -> wf.Tensor:
        """See `Schedule`."""
        return self.start + (self.end - self.start) * _progress(step, self.steps)


@dataclass(frozen=True)
class Polynomial(Schedule):
    """From `lr` down to `end` by a power: η_end + (η − η_end) (1 − t/T)^power.

    >>> Polynomial(0.1, steps=10, power=2)(5)
    0.025
    """

    lr: float
    steps: int
    power: float = 1.0
    end: float = 0.0

    def formula(self, step: wf.Tensor) -> wf.Tensor:
        """See `Schedule`."""
        rest = 1 - _progress(step, self.steps)
        return self.end + (self.lr - self.end) * rest**self.power


@dataclass(frozen=True)
class Cosine(Schedule):
    """From `lr` down to `end` along half a cosine: η_end + (η − η_end) (1 + cos(π t/T)) / 2.

    >>> [round(Cosine(0.1, steps=4)(t), 4) for t in (0, 1, 2, 4, 9)]
    [0.1, 0.0854, 0.05, 0.0, 0.0]
    """

    lr: float
    steps: int
    end: float = 0.0

    def formula(self, step: wf.Tensor) -> wf.Tensor:
        """See `Schedule`."""
        return _half_cosine(self.lr, self.end, _progress(step, self.steps))


@dataclass(frozen=True)
class CosineRestarts(Schedule):
    """A cosine that begins anew (Loshchilov and Hutter, 2017); each `times` as long as the last.

    >>> [round(CosineRestarts(0.1, steps=2, times=2)(t), 4) for t in (0, 1, 2, 4, 6)]
    [0.1, 0.05, 0.1, 0.05, 0.1]
    """

    lr: float
    steps: int
    times: int = 1
    end: float = 0.0

    def __post_init__(self) -> None:
        super().__post_init__()
        check_positive("CosineRestarts", "times", self.times)

    def formula(self, step: wf.Tensor) -> wf.Tensor:
        """See `Schedule`."""
        return _half_cosine(self.lr, self.end, self._part(step))

    def _part(self, step: wf.Tensor) -> wf.Tensor:
        """How much of the present cycle is over.

        Cycle n begins at T (kⁿ − 1) / (k − 1); the small addition keeps a step that begins a cycle
        from being rounded into the last one.
        """
        if self.times == 1:
            return wf.remainder(step, self.steps) / self.steps
        grown = 1 + step * (self.times - 1) / self.steps
        cycle = wf.floor(wf.log(grown) / math.log(self.times) + 1e-5)
        length = wf.pow(float(self.times), cycle)
        begin = self.steps * (length - 1) / (self.times - 1)
        return (step - begin) / (self.steps * length)


@dataclass(frozen=True)
class Warmup(Schedule):
    """Another schedule after a straight way up: from `start` times its beginning to its beginning.

    >>> [Warmup(Constant(0.5), steps=2)(t) for t in (0, 1, 2)]
    [0.0, 0.25, 0.5]
    """

    schedule: Schedule
    steps: int
    start: float = 0.0

    def formula(self, step: wf.Tensor) -> wf.Tensor:
        """See `Schedule`."""
        rise = self.start + (1 - self.start) * _progress(step, self.steps)
        rest = wf.maximum(step - self.steps, 0.0)
        return rise * self.schedule.formula(rest)


@dataclass(frozen=True)
class Lambda(Schedule):
    """η times a function of the steps made so far, over tensors: η f(t).

    >>> Lambda(0.1, lambda step: 1 / (1 + step))(3)
    0.025
    """

    lr: float
    function: Callable[[wf.Tensor], wf.Tensor]

    def __post_init__(self) -> None:
        if not callable(self.function):
            raise wf.ArgumentTypeError(
                "Lambda",
                "the factor is no function",
                expected="a function from the number of steps to a factor",
                got={"function": self.function},
                fix="Lambda(0.1, lambda step: 0.95**step)",
            )
        super().__post_init__()

    def formula(self, step: wf.Tensor) -> wf.Tensor:
        """See `Schedule`."""
        return self.function(step) * self.lr


@dataclass(frozen=True)
class Cyclic(Schedule):
    """Up and down between two rates, again and again (Smith, 2017).

    steps: how many go up; `down`: how many go down, as many by default. Each cycle's height is
    `shrink` times that of the one before, and `factor` to the power of the step.

    >>> [round(Cyclic(0.0, 1.0, steps=2, shrink=0.5)(t), 4) for t in range(7)]
    [0.0, 0.5, 1.0, 0.5, 0.0, 0.25, 0.5]
    """

    start: float
    end: float
    steps: int
    down: int | None = None
    shrink: float = 1.0
    factor: float = 1.0

    def __post_init__(self) -> None:
        if self.down is not None:
            check_positive("Cyclic", "down", self.down)
        super().__post_init__()

    def formula(self, step: wf.Tensor) -> wf.Tensor:
        """See `Schedule`."""
        down = self.steps if self.down is None else self.down
        cycle = wf.floor(step / (self.steps + down))
        inside = step - cycle * (self.steps + down)
        rising, falling = inside / self.steps, 1 - (inside - self.steps) / down
        height = wf.where(inside <= self.steps, rising, falling)
        scale = wf.pow(self.shrink, cycle) * wf.pow(self.factor, step)
        return self.start + (self.end - self.start) * height * scale


@dataclass(frozen=True)
class OneCycle(Schedule):
    """Up along a cosine to `lr`, then down to next to nothing (Smith and Topin, 2019).

    From lr/`begin` up to lr in the part `rise` of all steps, then down to lr/(`begin` `finish`).

    >>> [round(OneCycle(1.0, steps=10, rise=0.4)(t), 4) for t in (0, 3, 9)]
    [0.04, 1.0, 0.0]
    """

    lr: float
    steps: int
    rise: float = 0.3
    begin: float = 25.0
    finish: float = 1e4

    def __post_init__(self) -> None:
        super().__post_init__()
        check_fraction("OneCycle", "rise", self.rise)

    def formula(self, step: wf.Tensor) -> wf.Tensor:
        """See `Schedule`."""
        first = self.lr / self.begin
        top = max(self.rise * self.steps - 1, 0.0)
        down = wf.clip((step - top) / max(self.steps - 1 - top, 1e-12), 0, 1)
        falling = _half_cosine(self.lr, first / self.finish, down)
        if top == 0:
            return falling
        return wf.where(step < top, _half_cosine(first, self.lr, step / top), falling)


@dataclass(frozen=True)
class Sequential(Schedule):
    """Schedules one after the other; each counts from the milestone at which it begins.

    >>> schedule = Sequential((Constant(0.1), Exponential(1.0, 0.5)), milestones=(2,))
    >>> [schedule(t) for t in (0, 1, 2, 3)]
    [0.1, 0.1, 1.0, 0.5]
    """

    schedules: tuple[Schedule, ...]
    milestones: tuple[int, ...]

    def __post_init__(self) -> None:
        object.__setattr__(self, "schedules", tuple(self.schedules))
        object.__setattr__(self, "milestones", tuple(self.milestones))
        if len(self.schedules) != len(self.milestones) + 1:
            raise wf.ArgumentError(
                "Sequential",
                "the milestones do not fit the schedules",
                expected="one milestone between each two schedules",
                got={"schedules": len(self.schedules), "milestones": self.milestones},
                fix="Sequential((first, second), milestones=(1000,))",
            )

    def formula(self, step: wf.Tensor) -> wf.Tensor:
        """See `Schedule`."""
        rate = self.schedules[0].formula(step)
        for schedule, begin in zip(self.schedules[1:], self.milestones, strict=True):
            rate = wf.where(step < begin, rate, schedule.formula(wf.maximum(step - begin, 0.0)))
        return rate


def _progress(step: wf.Tensor, steps: int) -> wf.Tensor:
    return wf.clip(step / steps, 0, 1)


def _half_cosine(start: float, end: float, progress: wf.Tensor) -> wf.Tensor:
    return end + (start - end) * (1 + wf.cos(math.pi * progress)) / 2


class Scheduler:
    """Writes a schedule's values into an optimiser, one at each `step()`.

    It writes the first value at once. Groups keep the ratios of their learning rates. `option`
    names another setting to be driven, such as "momentum". Works eagerly and inside `jit`.

    >>> import weft as wf
    >>> w = wf.tensor([1.0], requires_grad=True)
    >>> optimizer = wf.optim.SGD([w], lr=0.5)
    >>> scheduler = Scheduler(optimizer, Step(0.5, every=2, factor=0.5))
    >>> for epoch in range(2): scheduler.step()
    >>> optimizer.lr.item()
    0.25
    """

    def __init__(self, optimizer: Optimizer, schedule: Schedule, option: str = "lr") -> None:
        if not isinstance(schedule, Schedule):
            raise _not_a_schedule(schedule)
        self.optimizer = optimizer
        self.schedule = schedule
        self.option = option
        self.epochs = wf.tensor(0)
        handles = [group.handle(option) for group in optimizer.groups]
        first = handles[0].item()
        self._ratios = tuple(h.item() / first if first else 1.0 for h in handles)
        self._write()

    def step(self) -> None:
        """Count one, and write the schedule's value there."""
        self.epochs += 1
        self._write()

    def _write(self) -> None:
        value = self.schedule(self.epochs)
        for group, ratio in zip(self.optimizer.groups, self._ratios, strict=True):
            group.handle(self.option).copy_(value if ratio == 1 else value * ratio)

    def state_dict(self) -> dict[str, Any]:
        """How far the schedule has come."""
        return {"epochs": self.epochs.clone()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from a `state_dict()`."""
        self.epochs.copy_(state["epochs"])
        self._write()

    def __repr__(self) -> str:
        return f"Scheduler({self.schedule!r}, epochs={self.epochs})"


class Plateau:
    """Lowers the learning rate when a metric stops to get better: `plateau.step(loss)`.

    After more than `patience` steps without a metric better than the best by the part `threshold`,
    the rate is multiplied by `factor`, and nothing is counted for `cooldown` steps. All of it is
    tensor code, so that it may stand inside `jit`.

    >>> import weft as wf
    >>> w = wf.tensor([1.0], requires_grad=True)
    >>> optimizer = wf.optim.SGD([w], lr=0.5)
    >>> plateau = Plateau(optimizer, factor=0.5, patience=1)
    >>> for loss in (3.0, 2.0, 2.0, 2.0): plateau.step(loss)
    >>> optimizer.lr.item()
    0.25
    """

    def __init__(
        self,
        optimizer: Optimizer,
        factor: float = 0.1,
        patience: int = 10,
        threshold: float = 1e-4,
        cooldown: int = 0,
        least: float = 0.0,
        mode: str = "min",
    ) -> None:
        check_fraction("Plateau", "factor", factor)
        if mode not in ("min", "max"):
            raise wf.ArgumentError(
                "Plateau",
                "unknown mode",
                expected='"min" or "max"',
                got={"mode": mode},
                fix='mode="min"',
            )
        self.optimizer = optimizer
        self.factor, self.patience, self.threshold = factor, patience, threshold
        self.cooldown, self.least, self.mode = cooldown, least, mode
        self.best = wf.tensor(math.inf if mode == "min" else -math.inf)
        self.waited = wf.tensor(0)
        self.resting = wf.tensor(0)

    def step(self, metric: float | wf.Tensor) -> None:
        """Judge one value of the metric."""
        value = wf.asarray(metric).detach().astype(wf.float32)
        better = self._is_better(value)
        resting = wf.maximum(self.resting - 1, 0)
        waited = wf.where(better | (self.resting > 0), 0, self.waited + 1)
        lower = waited > self.patience
        for group in self.optimizer.groups:
            rate = group.handle("lr")
            rate.copy_(wf.where(lower, wf.maximum(rate * self.factor, self.least), rate))
        self.best.copy_(wf.where(better, value, self.best))
        self.waited.copy_(wf.where(lower, 0, waited))
        self.resting.copy_(wf.where(lower, self.cooldown, resting))

    def _is_better(self, value: wf.Tensor) -> wf.Tensor:
        if self.mode == "min":
            return value < self.best * (1 - self.threshold)
        return value > self.best * (1 + self.threshold)

    def state_dict(self) -> dict[str, Any]:
        """The best metric, and how long ago it was."""
        return {name: getattr(self, name).clone() for name in ("best", "waited", "resting")}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from a `state_dict()`."""
        for name in ("best", "waited", "resting"):
            getattr(self, name).copy_(state[name])

    def __repr__(self) -> str:
        return f"Plateau(factor={self.factor}, patience={self.patience}, best={self.best})"


def _not_a_schedule(schedule: object) -> wf.ArgumentTypeError:
    return wf.ArgumentTypeError(
        "Scheduler",
        "not a schedule",
        expected="an object of wf.optim.schedules",
        got={"schedule": schedule},
        fix="Scheduler(optimizer, wf.optim.schedules.Cosine(1e-3, steps=1000))",
    )


tree_node(Scheduler, ("optimizer", "epochs"))
tree_node(Plateau, ("optimizer", "best", "waited", "resting"))

_explain_all(globals(), __all__)
for _class in (Scheduler, Plateau):
    _explain_attributes(_class, "scheduler")
__getattr__ = _missing_from("wf.optim.schedules", __all__)
