"""The steps of optimisers, as operators of the training domain."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import weft as wf
from weft.onnx.importing.registry import rule
from weft.onnx.importing.running import Call

Tensor = wf.Tensor
DOMAIN = "ai.onnx.preview.training"


def _columns(values: tuple[Tensor, ...], count: int) -> list[tuple[Tensor, ...]]:
    """Tensors, then their gradients, then their states: one tuple for each tensor."""
    each = len(values) // count
    rows = [values[i * each : (i + 1) * each] for i in range(count)]
    return list(zip(*rows, strict=True))


def _gather(updates: Sequence[tuple[Tensor, ...]]) -> tuple[Tensor, ...]:
    return tuple(each for row in zip(*updates, strict=True) for each in row)


@rule("Adagrad", domain=DOMAIN)
def adagrad(call: Call, rate: Tensor, step: Tensor, *values: Tensor) -> tuple[Tensor, ...]:
    """A step of Adagrad."""
    pace = rate / (1 + step.astype(rate.dtype) * call["decay_factor"])
    updates = []
    for x, gradient, total in _columns(values, 3):
        slope = call["norm_coefficient"] * x + gradient
        new = total + slope * slope
        moved = x - pace * slope / (wf.sqrt(new) + call["epsilon"])
        updates.append((moved.astype(x.dtype), new.astype(total.dtype)))
    return _gather(updates)


@rule("Adam", domain=DOMAIN)
def adam(call: Call, rate: Tensor, step: Tensor, *values: Tensor) -> tuple[Tensor, ...]:
    """A step of Adam."""
    alpha, beta = call["alpha"], call["beta"]
    t = step.astype(rate.dtype)
    corrected = rate * wf.sqrt(1 - wf.pow(beta, t)) / (1 - wf.pow(alpha, t))
    pace = wf.where(step > 0, corrected, rate)
    updates = []
    for x, gradient, first, second in _columns(values, 4):
        slope = call["norm_coefficient"] * x + gradient
        mean = alpha * first + (1 - alpha) * slope
        square = beta * second + (1 - beta) * slope * slope
        moved = x - pace * (mean / (wf.sqrt(square) + call["epsilon"]))
        updates.append(((1 - call["norm_coefficient_post"]) * moved, mean, square))
    return _gather(updates)


@rule("Momentum", domain=DOMAIN)
def momentum(call: Call, rate: Tensor, step: Tensor, *values: Tensor) -> tuple[Tensor, ...]:
    """A step of gradient descent with momentum, plain or Nesterov's."""
    alpha = call["alpha"]
    beta: Any = wf.where(step > 0, call["beta"], 1.0)
    updates = []
    for x, gradient, velocity in _columns(values, 3):
        slope = call["norm_coefficient"] * x + gradient
        new = alpha * velocity + beta.astype(x.dtype) * slope
        direction = new if call["mode"] == "standard" else slope + alpha * new
        updates.append((x - rate * direction, new))
    return _gather(updates)
