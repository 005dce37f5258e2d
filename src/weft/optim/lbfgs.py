"""L-BFGS: steps along a curvature that is learned from the last gradients.

It evaluates the loss as often as it needs to, so `step` takes a closure, and chooses by the values
it sees: it runs eagerly. For small problems without noise it needs the fewest evaluations.

>>> import weft as wf
>>> x = wf.tensor([-1.2, 1.0], requires_grad=True)
>>> optimizer = wf.optim.LBFGS([x], line_search="strong_wolfe", max_iterations=60)
>>> def closure():
...     optimizer.zero_grad()
...     loss = 100 * (x[1] - x[0] ** 2) ** 2 + (1 - x[0]) ** 2
...     loss.backward()
...     return loss
>>> optimizer.step(closure).item() > 20
True
>>> [round(value, 2) for value in x.tolist()]
[1.0, 1.0]
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import weft as wf
from weft.optim.checks import check_count
from weft.optim.groups import Parameters
from weft.optim.line_search import Point, strong_wolfe
from weft.optim.optimizer import Optimizer
from weft.optim.rows import Rows
from weft.optim.rules import Rule
from weft.optim.schedules import Schedule

Closure = Callable[[], wf.Tensor]


@dataclass(eq=False)
class History:
    """The last steps s and changes of the gradient y, oldest first, and where the last step was."""

    steps: list[wf.Tensor]
    changes: list[wf.Tensor]
    gradient: wf.Tensor | None = None
    direction: wf.Tensor | None = None
    size: float = 0.0

    def learn(self, gradient: wf.Tensor, limit: int) -> None:
        """Add the last step and its change of gradient, unless the curvature is not positive."""
        assert self.gradient is not None
        assert self.direction is not None
        change, step = gradient - self.gradient, self.direction * self.size
        if dot(change, step) > 1e-10:
            self.changes = [*self.changes, change][-limit:]
            self.steps = [*self.steps, step][-limit:]

    def descent_direction(self, gradient: wf.Tensor) -> wf.Tensor:
        """−H g by the two loops of Nocedal (1980), where H is the learned inverse Hessian."""
        direction = -gradient
        weights: list[float] = []
        pairs = list(zip(self.steps, self.changes, strict=True))
        # First loop, from the latest pair to the oldest: αᵢ = sᵢᵀ q / yᵢᵀ sᵢ, q ← q − αᵢ yᵢ.
        for step, change in reversed(pairs):
            weights.append(dot(step, direction) / dot(change, step))
            direction = direction - weights[-1] * change
        if pairs:
            # The initial H is γ times the identity, with γ = sᵀ y / yᵀ y of the latest pair.
            step, change = pairs[-1]
            direction = direction * (dot(change, step) / dot(change, change))
        # Second loop, from the oldest to the latest: r ← r + sᵢ (αᵢ − yᵢᵀ r / yᵢᵀ sᵢ).
        for step, change in pairs:
            correction = dot(change, direction) / dot(change, step)
            direction = direction + step * (weights.pop() - correction)
        return direction


class Here(NamedTuple):
    """Where the search stands: the loss and its gradient."""

    loss: float
    gradient: wf.Tensor


class LBFGS(Optimizer):
    """Limited-memory BFGS, with a closure: `optimizer.step(closure)`.

    The closure clears the gradients, computes the loss, calls `backward` and returns the loss. One
    step makes up to `max_iterations` iterations with `max_evaluations` calls of the closure.
    `line_search="strong_wolfe"` finds each step's length; without it the length is `lr`.
    """

    rowwise = False

    def __init__(
        self,
        parameters: Parameters,
        lr: float | wf.Tensor | Schedule = 1.0,
        max_iterations: int = 20,
        max_evaluations: int | None = None,
        tolerance_grad: float = 1e-7,
        tolerance_change: float = 1e-9,
        history: int = 100,
        line_search: str | None = None,
        **unknown: Any,
    ) -> None:
        evaluations = max_iterations * 5 // 4 if max_evaluations is None else max_evaluations
        options = {
            "lr": lr,
            "max_iterations": max_iterations,
            "max_evaluations": max(evaluations, 1),
            "tolerance_grad": tolerance_grad,
            "tolerance_change": tolerance_change,
            "history": history,
            "line_search": line_search,
        }
        for name in ("max_iterations", "history"):
            check_count("LBFGS", name, options[name])
        if line_search not in (None, "strong_wolfe"):
            raise _unknown_search(line_search)
        super().__init__(parameters, options, **unknown)
        self._check_plain()
        self._history = History([], [])

    def slots(self, options: Mapping[str, Any]) -> dict[str, float]:
        """See `Optimizer`; what is kept here is about all parameters together."""
        return {}

    def rule(self, options: Mapping[str, Any]) -> Rule:
        """Unsupported: a step of L-BFGS is not a function of one gradient."""
        raise _needs_closure()

    def step(self, closure: Closure | None = None, *, rows: Sequence[Rows] = ()) -> Any:
        """Search from here; the loss at the beginning is returned."""
        if closure is None or rows:
            raise _needs_closure()
        options = self.groups[0].options
        if (schedule := options["schedule"]) is not None:
            rate = options["lr"]
            rate.set_(schedule(self.steps.astype(rate.dtype)))
        first = self._evaluate(closure)
        here, used = first, 1
        for _ in range(options["max_iterations"]):
            if _largest_magnitude(here.gradient) <= options["tolerance_grad"]:
                break
            before = here
            here, evaluations = self._iterate(closure, here, options["max_evaluations"] - used)
            used += evaluations
            if (
                evaluations == 0
                or used >= options["max_evaluations"]
                or self._has_converged(before, here)
            ):
                break
        return wf.tensor(first.loss, dtype=options["lr"].dtype)

    def _iterate(self, closure: Closure, here: Here, left: int) -> tuple[Here, int]:
        """One step along the learned direction; the calls of the closure it took, 0 at the end."""
        history, options = self._history, self.groups[0].options
        begins = history.gradient is None
        if not begins:
            history.learn(here.gradient, options["history"])
        direction = history.descent_direction(here.gradient)
        history.gradient, history.direction = here.gradient, direction
        size = options["lr"].item()
        if begins:  # nothing is known of the curvature, so the first step is short
            size *= min(1.0, 1.0 / wf.abs(here.gradient).sum().item())
        slope = dot(here.gradient, direction)
        history.size = 0.0
        if slope > -options["tolerance_change"]:  # the direction hardly leads down
            return here, 0
        self._count()
        if options["line_search"] is None:
            history.size = size
            self._move(self._values(), direction, size)
            return self._evaluate(closure), 1
        end, evaluations = self._search(closure, here, slope, size, left)
        history.size = end.size
        return Here(end.loss, end.gradient), evaluations

    def _search(
        self, closure: Closure, here: Here, slope: float, size: float, left: int
    ) -> tuple[Point, int]:
        """The end of the line search, where the parameters then are."""
        origin, direction = self._values(), self._history.direction
        assert direction is not None

        def evaluate(at: float) -> Point:
            self._move(origin, direction, at)
            there = self._evaluate(closure)
            return Point(at, there.loss, dot(there.gradient, direction), there.gradient)

        start = Point(0.0, here.loss, slope, here.gradient)
        tolerance = self.groups[0].options["tolerance_change"] / max(
            _largest_magnitude(direction), 1e-300
        )
        end, evaluations = strong_wolfe(evaluate, start, size, tolerance, max(left, 1))
        self._move(origin, direction, end.size)
        return end, evaluations

    def _has_converged(self, before: Here, here: Here) -> bool:
        """Whether neither the parameters nor the loss change any more."""
        history, tolerance = self._history, self.groups[0].options["tolerance_change"]
        assert history.direction is not None
        moved = _largest_magnitude(history.direction) * abs(history.size)
        return bool(moved <= tolerance) or abs(here.loss - before.loss) < tolerance

    def _evaluate(self, closure: Closure) -> Here:
        with wf.enable_grad():
            loss = closure()
        try:
            value = float(loss.item())
        except wf.TraceError:
            raise _not_compiled() from None
        parts = [
            wf.zeros_like(p).reshape(-1) if p.grad is None else p.grad.reshape(-1)
            for p in self.parameters
        ]
        gradient = wf.concat(parts)
        return Here(-value, -gradient) if self.maximize else Here(value, gradient)

    def _values(self) -> list[wf.Tensor]:
        return [parameter.detach() for parameter in self.parameters]

    def _move(self, origin: Sequence[wf.Tensor], direction: wf.Tensor, size: float) -> None:
        """Put the parameters `size` along the direction from where they began."""
        start = 0
        with wf.no_grad():
            for parameter, value in zip(self.parameters, origin, strict=True):
                part = direction[start : start + int(parameter.size)].reshape(parameter.shape)
                parameter.set_(value + size * part)
                start += int(parameter.size)

    def _count(self) -> None:
        self.steps += 1

    def minimize(self, loss: wf.Tensor) -> None:
        """Refused: the loss must be computed again and again."""
        raise _needs_closure()

    def state_dict(self) -> dict[str, Any]:
        """The state of `Optimizer`, and what the curvature is learned from."""
        history, state = self._history, super().state_dict()
        if history.gradient is not None:
            for name in ("steps", "changes"):
                kept = getattr(history, name)
                state |= {f"history.{name}.{i}": x.clone() for i, x in enumerate(kept)}
            state["history.gradient"] = history.gradient
            state["history.direction"] = history.direction
            state["history.size"] = history.size
        return state

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from a `state_dict()` over the same parameters."""
        own = {name: value for name, value in state.items() if not name.startswith("history.")}
        super().load_state_dict(own)
        count = sum(name.startswith("history.steps.") for name in state)
        self._history = History(
            [state[f"history.steps.{i}"] for i in range(count)],
            [state[f"history.changes.{i}"] for i in range(count)],
            state.get("history.gradient"),
            state.get("history.direction"),
            state.get("history.size", 0.0),
        )

    def _check_plain(self) -> None:
        dtypes = {parameter.dtype for parameter in self.parameters}
        given = (self.clip_norm, self.clip_value, self.precision, self.waiting)
        if len(self.groups) > 1 or len(dtypes) > 1 or any(each is not None for each in given):
            raise wf.UnsupportedError(
                "LBFGS",
                "all parameters are one vector here: one group, one dtype, gradients as they are",
                expected="one group, without clipping, accumulation and mixed precision",
                got={"groups": len(self.groups), "dtypes": [d.name for d in dtypes]},
                fix="wf.optim.LBFGS(net.parameters(), lr=1.0)",
            )


def dot(a: wf.Tensor, b: wf.Tensor) -> float:
    """The scalar product of two vectors."""
    return float((a * b).sum().item())


def _largest_magnitude(x: wf.Tensor) -> float:
    return float(wf.abs(x).max().item())


def _needs_closure() -> wf.ArgumentError:
    return wf.ArgumentError(
        "LBFGS",
        "one gradient is not enough: the loss is computed several times in a step",
        expected="optimizer.step(closure)",
        got={"closure": None},
        fix="def closure(): optimizer.zero_grad(); loss = ...; loss.backward(); return loss",
    )


def _not_compiled() -> wf.UnsupportedError:
    return wf.UnsupportedError(
        "LBFGS",
        "how often the loss is computed depends on its values, which a trace does not have",
        expected="optimizer.step(closure) outside jit",
        got={"closure": "traced by jit"},
        fix="compile what the closure calls: loss = wf.jit(compute_loss)(...)",
    )


def _unknown_search(line_search: Any) -> wf.ArgumentError:
    return wf.ArgumentError(
        "LBFGS",
        "unknown line search",
        expected='"strong_wolfe" or None',
        got={"line_search": line_search},
        fix='line_search="strong_wolfe"',
    )
