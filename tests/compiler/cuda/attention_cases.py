"""Attention, cross entropy and sorts on a card, real or in the host's memory, beside the CPU."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from tests.compiler.cuda.device_cases import compare, numbers

import weft as wf
from weft.compiler.plan.planning import plan_program
from weft.compiler.targets.cuda.target import CUDA

Array = np.ndarray[Any, Any]


def launch_names(f: Callable[..., Any], *arrays: Array) -> list[str]:
    """The names of a program's launches on a card."""
    plan = plan_program(wf.ir.trace(f, *map(wf.asarray, arrays)), CUDA)
    return [launch.name for launch in plan.every_launch()]


# --- cross entropy -------------------------------------------------------------------------------


def _labels(rows: int, columns: int) -> wf.Tensor:
    """Labels over all columns, the last one among them; one row is ignored."""
    places = (wf.arange(rows) * 997 + columns - 1) % columns
    return wf.where(wf.arange(rows) == rows // 2, -100, places)


def entropy(
    dtype: str, *, weighted: bool = False, **options: Any
) -> Callable[[wf.Tensor], tuple[wf.Tensor, wf.Tensor]]:
    """A cross entropy of logits in 16 bits, and its gradient, about 1 where logits are equal."""

    def loss(x: wf.Tensor) -> wf.Tensor:
        columns = x.shape[1]
        weight = 1 + wf.arange(columns, dtype="float32") % 3 if weighted else None
        logits = x.astype(dtype).astype("float32")
        labels = _labels(x.shape[0], columns)
        return wf.nn.functional.cross_entropy(logits, labels, weight, **options)

    def loss_and_gradient(x: wf.Tensor) -> tuple[wf.Tensor, wf.Tensor]:
        value, gradient = wf.value_and_grad(loss)(x)
        return value, gradient * x.shape[1]

    return loss_and_gradient


ENTROPIES: dict[str, tuple[Callable[..., Any], tuple[int, int], bool]] = {
    "mean": (entropy("bfloat16"), (2, 4096), True),
    "sum of rows of any length": (entropy("float16", reduction="sum"), (3, 5000), True),
    "weights of classes": (entropy("bfloat16", weighted=True), (5, 4104), True),
    "a row at a time": (entropy("bfloat16", reduction="sum"), (2, 60_000), True),
    "smoothing": (entropy("bfloat16", label_smoothing=0.1), (5, 4096), False),
    "few columns": (entropy("bfloat16"), (5, 1024), False),
    "rows of no whole 16 bytes": (entropy("bfloat16"), (3, 4097), False),
}  # fmt: skip
"""Programs, shapes, and whether the plan holds their rows."""


def check_entropy_plan(name: str) -> None:
    """The plan reads logits once where rows are held."""
    f, shape, is_held = ENTROPIES[name]
    names = launch_names(f, numbers(*shape))
    assert ("softmax gradient" in names) == is_held, names


def check_entropy(name: str) -> None:
    """Loss and gradient are the CPU's."""
    f, shape, _ = ENTROPIES[name]
    compare(f, numbers(*shape) * 3, limit=1e-2)
