"""Data frames of pandas and Polars as arrays by column.

>>> from weft.data import from_frame
>>> from_frame({"x": [1.0, 2.0], "name": ["a", "b"]})["x"].tolist()
[1.0, 2.0]
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

import weft as wf
from weft.data.tables import text_array

__all__ = ["from_frame"]

Table = dict[str, npt.NDArray[Any]]


def from_frame(frame: Any, *, columns: Sequence[str] | None = None) -> Table:
    """A data frame of pandas or Polars, or a dictionary, as arrays by column for `ArrayDataset`.

    Missing numbers become NaN; text, categories and missing text ("") become text. `columns`
    selects and orders.
    """
    names = [str(name) for name in (frame if isinstance(frame, Mapping) else frame.columns)]
    for name in columns or ():
        if name not in names:
            raise wf.ArgumentError(
                "from_frame",
                f"there is no column {name!r}",
                expected=f"one of {', '.join(names)}",
                got={"column": name},
                fix="spell it as in the frame",
            )
    original = dict(zip(names, frame if isinstance(frame, Mapping) else frame.columns, strict=True))
    return {name: _column_array(name, frame[original[name]]) for name in columns or names}


def _column_array(name: str, column: Any) -> npt.NDArray[Any]:
    """A column as an array of numbers, truth values, times or texts."""
    array = np.asarray(column.to_numpy() if hasattr(column, "to_numpy") else column)
    if array.dtype.kind in "biufcMmU":
        return array
    cells = array.tolist()
    gaps = [_is_missing(cell) for cell in cells]
    known = [cell for cell, gap in zip(cells, gaps, strict=True) if not gap]
    if known and all(isinstance(cell, bool) for cell in known) and not any(gaps):
        return np.array(cells, np.bool_)
    if known and all(isinstance(cell, (int, float)) for cell in known):
        return np.array(
            [np.nan if gap else cell for cell, gap in zip(cells, gaps, strict=True)], np.float64
        )
    if all(isinstance(cell, str) for cell in known):
        texts = ["" if gap else cell for cell, gap in zip(cells, gaps, strict=True)]
        return text_array("from_frame", f"column {name}", texts)
    return _stacked_cells(name, cells)


def _is_missing(cell: Any) -> bool:
    """Whether a cell is None, NaN, or pandas's NA, which answers no comparison."""
    if cell is None:
        return True
    is_nan = isinstance(cell, float) and cell != cell
    return is_nan or type(cell).__name__ in ("NAType", "NaTType")


def _stacked_cells(name: str, cells: Sequence[Any]) -> npt.NDArray[Any]:
    """Lists of one length as rows."""
    try:
        return np.stack([np.asarray(cell) for cell in cells])
    except ValueError:
        kinds = sorted({type(cell).__name__ for cell in cells})
        raise wf.ArgumentError(
            "from_frame",
            f"column {name} holds cells that no array can be made of",
            expected="numbers, texts, or lists of one length",
            got={"cells": ", ".join(kinds)},
            fix="leave the column out: from_frame(frame, columns=[...])",
        ) from None
