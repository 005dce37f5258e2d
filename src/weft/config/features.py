"""Features: how the columns of a table become numbers and rows of one table of vectors.

What is learned from data (means, boundaries, vocabularies) is learned from the training rows alone,
and can be saved as JSON. All categories share one table of vectors: each family of them has its own
rows of it, of which the first stands for missing cells. A feature that shares with another uses
the rows of that one.

>>> import numpy as np
>>> from weft.config.features import FeatureSpace
>>> settings = {"city": {"kind": "category", "columns": ["city"], "hash": 10, "share": ""}}
>>> space = FeatureSpace(settings).fit({"city": np.array(["Bern", "Ulm", ""])})
>>> space.rows, space.arrays({"city": np.array(["Bern", ""])})["ids"][1].tolist()
(11, [0])
"""

from __future__ import annotations

import hashlib
import re
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Self

import numpy as np
import numpy.typing as npt

import weft as wf
from weft.train.names import unknown

__all__ = ["FeatureSpace", "Sequence", "column_names"]

Array = npt.NDArray[Any]
Columns = Mapping[str, Array]
JOINT = "\x1f"
"""What stands between the cells of a cross."""
_RANGE = re.compile(r"(.*?)(\d+)\.\.\1(\d+)")


@dataclass(frozen=True)
class Sequence:
    """A feature of several ids: its length, how they are pooled, and what attends to them."""

    name: str
    length: int
    pooling: str
    target: str


@dataclass
class FeatureSpace:
    """Features by name, as `[features]` of a configuration has them, and what was learned."""

    settings: Mapping[str, Mapping[str, Any]]
    learned: dict[str, Any] = field(default_factory=dict)
    starts: dict[str, int] = field(default_factory=dict)
    rows: int = 0

    def __post_init__(self) -> None:
        self.settings = dict(_single_columns(self.settings))
        for name, feature in self.settings.items():
            self._check_share(name, feature)

    def _check_share(self, name: str, feature: Mapping[str, Any]) -> None:
        share = feature.get("share")
        if not share:
            return
        others = [
            other
            for other in self._ids()
            if not self.settings[other].get("share") and self.settings[other]["kind"] != "bucket"
        ]
        if share not in others:
            where = f"config: features.{name}.share"
            raise unknown(where, "feature with rows of its own", share, others)

    # --- what there is ---------------------------------------------------------------------------

    @property
    def numbers(self) -> list[str]:
        """The features that are numbers themselves, in the order of their columns."""
        return [name for name, each in self.settings.items() if each["kind"] == "number"]

    @property
    def categories(self) -> list[str]:
        """The features of one id: categories, buckets and crosses."""
        kinds = ("category", "bucket", "cross")
        return [name for name, each in self.settings.items() if each["kind"] in kinds]

    @property
    def sequences(self) -> list[Sequence]:
        """The features of several ids."""
        return [
            Sequence(name, each["length"], each["pooling"], each["target"])
            for name, each in self.settings.items()
            if each["kind"] == "sequence"
        ]

    def _ids(self) -> list[str]:
        return [*self.categories, *(each.name for each in self.sequences)]

    def text_columns(self) -> list[str]:
        """The columns that are read as text."""
        kinds = ("category", "cross", "sequence")
        chosen = [each["columns"] for each in self.settings.values() if each["kind"] in kinds]
        return list(dict.fromkeys(name for columns in chosen for name in columns))

    def number_columns(self) -> list[str]:
        """The columns that are read as numbers."""
        kinds = ("number", "bucket")
        return [each["columns"][0] for each in self.settings.values() if each["kind"] in kinds]

    # --- learning from data ----------------------------------------------------------------------

    def fit(self, columns: Columns) -> Self:
        """Learn means, boundaries and vocabularies, and give each family of ids its rows."""
        for name, feature in self.settings.items():
            self.learned[name] = self._learn(name, feature, columns)
        self._place_rows()
        return self

    def _learn(self, name: str, feature: Mapping[str, Any], columns: Columns) -> Any:
        kind = feature["kind"]
        if kind == "number":
            return _scale_of(feature, columns[f"number:{feature['columns'][0]}"])
        if kind == "bucket":
            return _boundaries(feature, columns[f"number:{feature['columns'][0]}"])
        if feature.get("share") or feature.get("hash"):
            return None
        family = [name, *(o for o, each in self.settings.items() if each.get("share") == name)]
        counts: Counter[str] = Counter()
        for each in family:
            counts.update(_all_cells(self.settings[each], columns))
        counts.pop("", None)
        least = feature["least"]
        return sorted(cell for cell, count in counts.items() if count >= least)

    def _place_rows(self) -> None:
        self.rows = 0
        for name in self._ids():
            feature = self.settings[name]
            if not feature.get("share"):
                self.starts[name] = self.rows
                self.rows += self._family_rows(name, feature)

    def _family_rows(self, name: str, feature: Mapping[str, Any]) -> int:
        """Rows of a family: one for missing cells, one for unknown ones where there are any."""
        if feature["kind"] == "bucket":
            return len(self.learned[name]) + 2
        return int(feature["hash"]) + 1 if feature["hash"] else len(self.learned[name]) + 2

    def state(self) -> dict[str, Any]:
        """What was learned, as JSON has it."""
        return {"learned": self.learned, "starts": self.starts, "rows": self.rows}

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Take what was learned before."""
        self.learned, self.starts = dict(state["learned"]), dict(state["starts"])
        self.rows = state["rows"]

    # --- using it --------------------------------------------------------------------------------

    def arrays(self, columns: Columns) -> dict[str, Array]:
        """`dense` float32 [rows, numbers], `ids` [rows, categories], and each sequence's ids."""
        arrays: dict[str, Array] = {}
        if self.numbers:
            scaled = [self._number(name, columns) for name in self.numbers]
            arrays["dense"] = np.stack(scaled, axis=1).astype(np.float32)
        if self.categories:
            ids = [self._category(name, columns) for name in self.categories]
            arrays["ids"] = np.stack(ids, axis=1)
        for sequence in self.sequences:
            arrays[sequence.name] = self._sequence(sequence, columns)
        return arrays

    def _number(self, name: str, columns: Columns) -> Array:
        feature, (middle, spread) = self.settings[name], self.learned[name]
        values = _transformed_values(feature, columns[f"number:{feature['columns'][0]}"])
        return np.where(np.isnan(values), 0.0, (values - middle) / spread)

    def _category(self, name: str, columns: Columns) -> Array:
        feature = self.settings[name]
        if feature["kind"] == "bucket":
            values = columns[f"number:{feature['columns'][0]}"]
            found = np.searchsorted(np.array(self.learned[name]), values, side="right") + 1
            return self.starts[name] + np.where(np.isnan(values), 0, found).astype(np.int64)
        return self._rows_of(name, _cells(feature, columns))

    def _rows_of(self, name: str, cells: Array) -> Array:
        """The rows of the table of vectors for cells: the first of a family for missing ones."""
        family = self.settings[name].get("share") or name
        feature = self.settings[family]
        unique, inverse = np.unique(cells, return_inverse=True)
        if feature["hash"]:
            places = [_hashed_row(family, cell, feature["hash"]) for cell in unique.tolist()]
        else:
            known = {cell: number + 2 for number, cell in enumerate(self.learned[family])}
            places = [known.get(cell, 1) if cell else 0 for cell in unique.tolist()]
        return self.starts[family] + np.array(places, np.int64)[inverse.reshape(cells.shape)]

    def _sequence(self, sequence: Sequence, columns: Columns) -> Array:
        """Ids [rows, length]: the last of each cell, and the row of missing cells behind them."""
        feature = self.settings[sequence.name]
        cells = np.full((len(columns[feature["columns"][0]]), sequence.length), "", object)
        for row, items in enumerate(_items(feature, columns)):
            kept = items[-sequence.length :]
            cells[row, : len(kept)] = kept
        return self._rows_of(sequence.name, cells.astype(np.str_))

    def missing_row(self, name: str) -> int:
        """The row that stands for a missing cell of a feature, and for padding."""
        return self.starts[self.settings[name].get("share") or name]


def column_names(columns: str | Iterable[str]) -> list[str]:
    """Names of columns, with ranges written out.

    >>> column_names("I1..I3"), column_names(["a", "C9..C10"])
    (['I1', 'I2', 'I3'], ['a', 'C9', 'C10'])
    """
    names = []
    for text in [columns] if isinstance(columns, str) else columns:
        match = _RANGE.fullmatch(text)
        if match:
            numbers = range(int(match[2]), int(match[3]) + 1)
            names += [f"{match[1]}{number}" for number in numbers]
        else:
            names.append(text)
    return names


def _single_columns(settings: Mapping[str, Any]) -> Iterable[tuple[str, dict[str, Any]]]:
    """Features by name; one over several columns is one for each, under the column's name."""
    for name, feature in settings.items():
        columns = column_names(feature["columns"] or [name])
        if feature["kind"] == "cross" or len(columns) == 1:
            yield name, {**feature, "columns": columns}
        else:
            for column in columns:
                yield column, {**feature, "columns": [column]}


def _transformed_values(feature: Mapping[str, Any], values: Array) -> Array:
    if feature["transform"] == "log":
        return np.log1p(np.maximum(values, 0.0))
    return values


def _scale_of(feature: Mapping[str, Any], values: Array) -> list[float]:
    """What is subtracted from a number and what it is divided by."""
    values = _transformed_values(feature, values)
    values = values[np.isfinite(values)]
    if feature["scale"] == "none" or not values.size:
        return [0.0, 1.0]
    if feature["scale"] == "range":
        low, high = float(values.min()), float(values.max())
        return [low, high - low or 1.0]
    return [float(values.mean()), float(values.std()) or 1.0]


def _boundaries(feature: Mapping[str, Any], values: Array) -> list[float]:
    """The boundaries of buckets, as given, or such that each holds as many of the rows."""
    if feature["boundaries"]:
        return sorted(feature["boundaries"])
    values = values[np.isfinite(values)]
    if not values.size:
        return []
    inner = np.linspace(0, 1, feature["count"] + 1)[1:-1]
    return sorted(set(np.quantile(values, inner).tolist()))


def _cells(feature: Mapping[str, Any], columns: Columns) -> Array:
    """The cells of a category; those of a cross are joined, and missing if one of them is."""
    first, *others = (columns[name].astype(np.str_) for name in feature["columns"])
    for other in others:
        gap = (first == "") | (other == "")
        first = np.where(gap, "", np.char.add(np.char.add(first, JOINT), other))
    return first


def _items(feature: Mapping[str, Any], columns: Columns) -> Iterable[list[str]]:
    """The items of each cell of a sequence."""
    for cell in columns[feature["columns"][0]].tolist():
        yield [item for item in str(cell).split(feature["separator"]) if item]


def _all_cells(feature: Mapping[str, Any], columns: Columns) -> Iterable[str]:
    if feature["kind"] == "sequence":
        for items in _items(feature, columns):
            yield from items
    else:
        yield from _cells(feature, columns).tolist()


def _hashed_row(family: str, cell: str, count: int) -> int:
    """A row from 1 to `count` for a cell, the same on every machine; 0 for a missing one."""
    if not cell:
        return 0
    digest = hashlib.blake2b(f"{family}{JOINT}{cell}".encode(), digest_size=8).digest()
    return 1 + int.from_bytes(digest, "little") % count


def no_ids(space: FeatureSpace, model: str) -> wf.WeftError:
    """The error for a recommender without anything that has a vector."""
    return wf.ArgumentError(
        "config",
        f"the model {model} has no feature with vectors",
        expected="at least one feature of kind category, bucket, cross or sequence",
        got={"features": ", ".join(space.settings) or "none"},
        fix='[features.user] kind = "category", hash = 10000',
    )
