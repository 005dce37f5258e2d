"""A task: what one workload is given on every side, made by NumPy from one seed."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

Arrays = dict[str, np.ndarray]
Step = Callable[[], Any]
"""One repetition of the work; it returns when the work is done."""

SEED = 20
CARD = os.environ.get("BENCHMARK_CARD", "")
"""The device of the comparison on a card; empty in that on the processor."""
DEVICE = CARD or "cpu"


@dataclass
class Task:
    """One workload at its sizes: weights under PyTorch's names and shapes, and the data."""

    training: bool
    compiled: bool
    sizes: Mapping[str, Any]
    weights: Arrays = field(default_factory=dict)
    data: Arrays = field(default_factory=dict)


def sums(arrays: Sequence[np.ndarray]) -> list[float]:
    """A result as a few numbers: itself if it is small, else sums that see every element."""
    (array,) = (np.asarray(array, np.float64).ravel() for array in arrays)
    if array.size <= 128:
        return [float(value) for value in array]
    waves = np.cos(np.arange(array.size) * 0.7)
    return [float(array @ waves), float(np.abs(array).sum())]


@dataclass(frozen=True)
class Workload:
    """What is measured: sizes, inputs, operations, and one function per framework.

    tolerance: the largest relative difference of the values that the sides compute; counted in
    floating-point operations and bytes is what any program must do at least. aim: Weft's time at
    most, as a multiple of the best of the rivals'; without names, of all peers'. digest: what is
    compared of a result, which is one array or several.
    """

    title: str
    sides: Mapping[str, Callable[[Task], Step]]
    sizes: Mapping[str, Any]
    quick: Mapping[str, Any]
    inputs: Callable[[Mapping[str, Any], np.random.Generator], tuple[Arrays, Arrays]]
    flops: Callable[[Mapping[str, Any]], float] = lambda sizes: 0.0
    bytes: Callable[[Mapping[str, Any]], float] = lambda sizes: 0.0
    training: bool = False
    tolerance: float = 1e-3
    aim: float | None = None
    rivals: tuple[str, ...] = ()
    digest: Callable[[Sequence[np.ndarray]], list[float]] = sums

    def task(self, quick: bool, compiled: bool) -> Task:
        """The inputs, the same for every framework."""
        sizes = {**self.sizes, **(self.quick if quick else {})}
        weights, data = self.inputs(sizes, np.random.default_rng(SEED))
        return Task(self.training, compiled, sizes, weights, data)


def normal(rng: np.random.Generator, *shape: int) -> np.ndarray:
    """Normal numbers in float32."""
    return rng.standard_normal(shape, dtype=np.float32)


def draw(shapes: Mapping[str, tuple[int, ...]], rng: np.random.Generator) -> Arrays:
    """Weights: normal with the deviation 1 / √(inputs), norms' scales 1, and biases 0."""
    return {name: _weight(name, shape, rng) for name, shape in shapes.items()}


def _weight(name: str, shape: tuple[int, ...], rng: np.random.Generator) -> np.ndarray:
    if len(shape) > 1:
        return normal(rng, *shape) / np.float32(np.sqrt(np.prod(shape[1:])))
    fill = 1.0 if name.endswith(("weight", "running_var")) else 0.0
    return np.full(shape, fill, np.float32)


def linear_shapes(name: str, inputs: int, outputs: int) -> dict[str, tuple[int, ...]]:
    """The weight and bias of a linear layer."""
    return {f"{name}.weight": (outputs, inputs), f"{name}.bias": (outputs,)}


def training_flops(forward: Iterable[float]) -> float:
    """Three times the forward products, but for the first one's gradient of the data."""
    first, *rest = forward
    return 2 * first + 3 * sum(rest)
