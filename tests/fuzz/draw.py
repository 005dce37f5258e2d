"""Random choices: numbers, axes, and operands among the values that are there."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

LARGEST = 40_000
"""The most elements of a value, but for few programs."""


class NoOperand(Exception):
    """No value fits; another family is taken."""


@dataclass(frozen=True, slots=True)
class Value:
    """A value that is there: its name, and what is known of it."""

    name: str
    kind: str
    shape: tuple[int, ...]
    most: float
    dtype: str

    @property
    def ndim(self) -> int:
        return len(self.shape)

    @property
    def size(self) -> int:
        return int(np.prod(self.shape))


@dataclass(slots=True)
class Draw:
    """Random choices among the values that are there."""

    rng: np.random.Generator
    values: list[Value]
    largest: int = LARGEST
    bodies: dict[str, tuple[str, ...]] = field(default_factory=dict)
    """Functions that loops may call again, by name."""
    counter: int = 0
    is_alone: bool = True
    """Whether nobody else asks the global generator while the program runs."""

    def one_of(self, options: Sequence[Any]) -> Any:
        """An option."""
        return options[int(self.rng.integers(len(options)))]

    def chance(self, probability: float) -> bool:
        """True as often as that."""
        return bool(self.rng.random() < probability)

    def value(
        self,
        kind: str = "f",
        least: int = 0,
        most: int = 6,
        where: Callable[[Value], bool] = lambda v: True,
    ) -> Value:
        """A value of a kind (float, signed, unsigned, boolean, complex) and of so many axes."""
        found = [v for v in self.values if v.kind in kind and least <= v.ndim <= most and where(v)]
        if not found:
            raise NoOperand
        recent = found[-3:] if self.chance(0.5) else found
        return recent[int(self.rng.integers(len(recent)))]

    def axis(self, v: Value) -> int:
        """An axis, from the front or from the back."""
        if v.ndim == 0:
            raise NoOperand
        axis = int(self.rng.integers(v.ndim))
        return axis - v.ndim if self.chance(0.3) else axis

    def axes(self, v: Value) -> str:
        """Some axes as text: none, one, several, or all."""
        if v.ndim == 0 or self.chance(0.2):
            return "None"
        if v.ndim == 1 or self.chance(0.6):
            return str(self.axis(v))
        count = int(self.rng.integers(1, v.ndim + 1))
        return str(tuple(sorted(int(a) for a in self.rng.permutation(v.ndim)[:count])))

    def index(self, v: Value, axis: int) -> str:
        """Whole numbers of one axis that are places along an axis of a value."""
        size = f"{v.name}.shape[{axis}]"
        if v.shape[axis] == 0:
            raise NoOperand
        found = [x for x in self.values if x.kind in "iu" and x.ndim == 1]
        if found and self.chance(0.7):
            return f"wf.remainder({self.one_of(found).name}, {size}).astype(wf.int64)"
        count = self.one_of([size, "3", "1", "0", f"{size} + 2"])
        return f"wf.remainder(wf.arange({count}) * 7 + 1, {size})"

    def like(self, v: Value, kind: str | None = None) -> Value:
        """A value that broadcasts with another one; often the same."""
        fits = [
            x
            for x in self.values
            if x.kind in (kind or v.kind)
            and (kind is not None or x.dtype == v.dtype or self.chance(0.2))
            and _broadcasts(x.shape, v.shape, self.largest)
        ]
        if not fits:
            raise NoOperand
        near = [x for x in fits if x.shape == v.shape]
        return self.one_of(near if near and self.chance(0.6) else fits)


def _broadcasts(a: tuple[int, ...], b: tuple[int, ...], largest: int) -> bool:
    try:
        return int(np.prod(np.broadcast_shapes(a, b))) <= largest
    except ValueError:
        return False
