"""What a training was: a row of numbers for each epoch.

>>> history = History([{"epoch": 1, "loss": 2.0}, {"epoch": 2, "loss": 1.0}])
>>> history["loss"], history.last["loss"]
([2.0, 1.0], 1.0)
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from weft.train.names import unknown
from weft.train.plots import plot

__all__ = ["History"]


class History:
    """The rows of all epochs; `history["loss"]` is a column, `plot` draws some.

    >>> history = History([{"epoch": 1, "loss": 0.5}, {"epoch": 2, "loss": 0.25}])
    >>> history["loss"], history.last["epoch"]
    ([0.5, 0.25], 2)
    """

    def __init__(self, rows: Iterable[Mapping[str, Any]] = ()) -> None:
        self.rows: list[dict[str, Any]] = [dict(row) for row in rows]

    @property
    def last(self) -> dict[str, Any]:
        """The last epoch's row, empty before there is one."""
        return self.rows[-1] if self.rows else {}

    def plot(self, path: str | os.PathLike[str], keys: Iterable[str] | None = None) -> Path:
        """Draw columns over the epochs, the losses unless told otherwise, into a PNG file."""
        return plot(self, path, keys)

    def __getitem__(self, name: str) -> list[Any]:
        values = [row[name] for row in self.rows if name in row]
        if not values:
            names = dict.fromkeys(key for row in self.rows for key in row)
            raise unknown("train.History", "column", name, names)
        return values

    def __len__(self) -> int:
        return len(self.rows)

    def __iter__(self) -> Iterator[dict[str, Any]]:
        return iter(self.rows)

    def __repr__(self) -> str:
        shown = {k: v for k, v in self.last.items() if isinstance(v, (int, float))}
        numbers = ", ".join(f"{name}={value:.4g}" for name, value in shown.items())
        return f"History({len(self)} epochs; {numbers})"
