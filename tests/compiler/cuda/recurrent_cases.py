"""Recurrent layers in programs on a card, real or in the host's memory, beside the CPU."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from tests.compiler.cuda.device_cases import compare, numbers

import weft as wf
from weft.compiler.targets.cuda import control
from weft.compiler.targets.cuda.recurrent import binding

Array = np.ndarray[Any, Any]


def _gradients(layer: Any, items: int) -> Callable[..., Any]:
    """The outputs of a layer, and their gradients by the input and the layer's weights.

    items: how many rows there are, if they have lengths.
    """
    names = [name for name, _ in layer.named_parameters()]
    options = {"lengths": 1 + wf.arange(items) % 7} if items else {}

    def loss(x: wf.Tensor, *weights: wf.Tensor) -> tuple[wf.Tensor, wf.Tensor]:
        y, _ = wf.nn.functional_call(layer, dict(zip(names, weights, strict=True)), x, **options)
        return (y * wf.sin(y * 9)).sum(), y

    places = tuple(range(len(names) + 1))
    return wf.value_and_grad(loss, argnums=places, has_aux=True)


SMALL: dict[str, tuple[Any, tuple[int, int, int], int]] = {
    "long short-term memory": (lambda: wf.nn.LSTM(8, 32), (2, 4, 8), 2),
}
"""Layers, shapes of their inputs, and how many loops are one launch."""
LARGE: dict[str, tuple[Any, tuple[int, int, int], int]] = {
    **SMALL,
    "plain": (lambda: wf.nn.RNN(8, 32), (3, 3, 8), 2),
    "gates": (lambda: wf.nn.GRU(8, 64), (9, 5, 8), 2),
    "two layers": (lambda: wf.nn.LSTM(8, 256, num_layers=2), (50, 64, 8), 4),
    "all of a card": (lambda: wf.nn.LSTM(8, 512), (33, 50, 8), 2),
    "two groups of rows": (lambda: wf.nn.GRU(8, 224), (20, 100, 8), 2),
    "both directions": (lambda: wf.nn.LSTM(8, 32, bidirectional=True), (7, 4, 8), 4),
    "lengths": (lambda: wf.nn.LSTM(8, 64), (9, 40, 8), 2),
    "lengths in both directions": (lambda: wf.nn.GRU(8, 64, bidirectional=True), (7, 5, 8), 4),
    "no bias": (lambda: wf.nn.RNN(8, 64, bias=False, nonlinearity="relu"), (7, 4, 8), 2),
    "too many units": (lambda: wf.nn.LSTM(8, 544), (5, 4, 8), 0),
    "units that do not come out even": (lambda: wf.nn.LSTM(8, 30), (5, 4, 8), 0),
}
"""The same for a card: sizes that take too long where there is none."""


def recorded_runs(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """What each loop that is bound from now on is given as its one launch, or None."""
    found: list[Any] = []
    bind = control.recurrent_run

    def recurrent_run(*given: Any) -> Any:
        found.append(bind(*given))
        return found[-1]

    monkeypatch.setattr(control, "recurrent_run", recurrent_run)
    return found


def check_layer(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A layer and its gradients are the CPU's, in as many launches as said."""
    make, shape, count = LARGE[name]
    wf.random.seed(3)
    layer = make()
    found = recorded_runs(monkeypatch)
    monkeypatch.setattr(binding, "TAKES_LENGTHS", True)
    weights = [each.detach().numpy() for each in layer.parameters()]
    compare(
        _gradients(layer, shape[1] if "lengths" in name else 0),
        numbers(*shape),
        *weights,
        limit=2e-4,
    )
    assert sum(run is not None for run in found) == count
