"""Data sets as HTML, which notebooks show: how many items there are, and the first ones.

>>> from weft.data import ArrayDataset
>>> "3 items" in ArrayDataset([1.0, 2.0, 3.0])._repr_html_()
True
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

import weft as wf
from weft.notebook import block, table

__all__ = ["dataset_html"]

SHOWN = 5
"""How many items are shown."""
LONGEST = 60
"""The most characters of a value."""


def dataset_html(dataset: Any) -> str:
    """The first items of a data set, a column for each part; items are taken, as training does."""
    count = len(dataset)
    caption = f"{type(dataset).__name__}: {count:,} items"
    items = [_named_parts(dataset[number]) for number in range(min(count, SHOWN))]
    names = list(dict.fromkeys(name for item in items for name in item))
    rows = [[number, *(item.get(name, "") for name in names)] for number, item in enumerate(items)]
    return block(table(["", *names], rows, caption))


def _named_parts(item: Any) -> dict[str, str]:
    if isinstance(item, Mapping):
        return {str(key): _value_text(value) for key, value in item.items()}
    if isinstance(item, tuple):
        fields = getattr(item, "_fields", range(len(item)))
        return {str(key): _value_text(value) for key, value in zip(fields, item, strict=True)}
    return {"item": _value_text(item)}


def _value_text(value: Any) -> str:
    """A small value itself, of a large array its type."""
    if isinstance(value, (np.ndarray, wf.Tensor)) and value.ndim:
        kind = f"{value.dtype}{list(value.shape)}"
        small = np.array2string(np.asarray(value), precision=4, separator=", ", threshold=8)
        return f"{kind} {' '.join(small.split())}"[:LONGEST] if value.size <= 8 else kind
    return str(value)[:LONGEST]
