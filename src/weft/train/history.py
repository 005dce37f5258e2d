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

from weft.notebook import block, opening, table
from weft.train.names import unknown
from weft.train.plots import curves_of, plot
from weft.train.svg_chart import svg_chart

__all__ = ["History"]

SHOWN = 20
"""The most epochs of a table in a notebook."""


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
        """Draw columns over the epochs, the losses unless told otherwise; see `wf.train.plot`."""
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

    def _repr_html_(self) -> str:
        """Losses and the other numbers as charts, and a table of the last epochs."""
        curves = [curve for curve in curves_of(self) if curve.ys and curve.name != "seconds"]
        losses = [curve for curve in curves if "loss" in curve.name]
        others = [curve for curve in curves if "loss" not in curve.name]
        charts = [svg_chart(group) for group in (losses, others) if group]
        names = list(dict.fromkeys(name for row in self.rows for name in row))
        rows = [[_cell_text(row.get(name, "")) for name in names] for row in self.rows[-SHOWN:]]
        return block(*charts, opening(repr(self), table(names, rows)))

    def __repr__(self) -> str:
        shown = {k: v for k, v in self.last.items() if isinstance(v, (int, float))}
        numbers = ", ".join(f"{name}={value:.4g}" for name, value in shown.items())
        return f"History({len(self)} epochs; {numbers})"


def _cell_text(value: Any) -> str:
    return f"{value:.5g}" if isinstance(value, float) else str(value)
