"""The columns that features and targets are made from: files, joins, histories, and made-up rows.

>>> from weft.config.columns import histories
>>> import numpy as np
>>> users, items = np.array(["a", "b", "a", "a"]), np.array(["1", "2", "3", "4"])
>>> histories(users, items, np.array([0.0, 1.0, 2.0, 3.0]), 2).tolist()
['', '', '1', '1|3']
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

import weft as wf
from weft.data import read_csv, read_parquet

__all__ = ["SEPARATOR", "histories", "made_up_clicks", "read_columns", "split_rows"]

Array = npt.NDArray[Any]
Columns = dict[str, Array]
SEPARATOR = "|"
"""What stands between the items of a sequence in a cell, unless said otherwise."""


def read_columns(
    data: Mapping[str, Any], folder: Path, texts: Sequence[str], numbers: Sequence[str], path: str
) -> Columns:
    """The columns of a table that are wanted, as texts and as float64; missing ones "" and NaN."""
    history, join = data.get("history"), data.get("join")
    wanted_texts, wanted_numbers = list(texts), list(numbers)
    if history is not None:
        wanted_texts = [name for name in wanted_texts if name != history["name"]]
        wanted_texts += [history["by"], history["of"]]
        wanted_numbers.append(history["order"])
    if data.get("order"):
        wanted_numbers.append(data["order"])
    if data["source"] == "clicks":
        table = made_up_clicks(data["rows"], data["seed"])
        _check_names("clicks", table, [*wanted_texts, *wanted_numbers])
    else:
        table = _read_table(data, folder, wanted_texts, wanted_numbers, path)
    if join is not None:
        _add_joined(table, join, folder, wanted_texts, wanted_numbers)
    columns = {name: _as_texts(table[name]) for name in wanted_texts}
    columns |= {f"number:{name}": _as_numbers(name, table[name]) for name in wanted_numbers}
    if history is not None:
        columns[history["name"]] = histories(
            columns[history["by"]], columns[history["of"]],
            columns[f"number:{history['order']}"], history["length"],
        )  # fmt: skip
    return columns


def _read_table(
    data: Mapping[str, Any], folder: Path, texts: list[str], numbers: list[str], path: str
) -> Columns:
    """The columns of a file that are wanted; those of a joined file are left for it."""
    join = data.get("join")
    elsewhere = set() if join is None else set(join["columns"])
    wanted = [name for name in dict.fromkeys([*texts, *numbers]) if name not in elsewhere]
    if join is not None and join["on"] not in wanted:
        wanted.append(join["on"])
        texts.append(join["on"])
    return _read_file(folder / path, data["source"], wanted, set(texts), data.get("delimiter", ","))


def _read_file(
    path: Path, source: str, wanted: list[str], texts: set[str], delimiter: str
) -> Columns:
    if source == "parquet":
        return read_parquet(path, columns=wanted)
    dtypes = {name: str if name in texts else np.float64 for name in wanted}
    fill = {name: "" for name in wanted if name in texts}
    try:
        return read_csv(path, columns=wanted, dtypes=dtypes, fill=fill, delimiter=delimiter)
    except wf.ArgumentError as error:
        if not error.problem.startswith("there is no column"):
            raise
        raise wf.ArgumentError(
            "config",
            error.problem,
            expected=error.expected,
            got={"file": path.name},
            fix="name columns of the file: features.NAME.columns, targets.NAME.column; "
            "data.delimiter stands between them",
        ) from None


def _add_joined(
    table: Columns, join: Mapping[str, Any], folder: Path, texts: list[str], numbers: list[str]
) -> None:
    """Add columns of another file, by the key that both have; without a match they are missing."""
    names, key = list(join["columns"]), join["on"]
    is_text = set(texts) - set(numbers)
    other = _read_file(folder / join["path"], "csv", [key, *names], {key, *is_text}, ",")
    keys = _as_texts(table[key])
    rows = {value: number for number, value in enumerate(_as_texts(other[key]).tolist())}
    found = np.array([rows.get(value, -1) for value in keys.tolist()], np.int64)
    for name in names:
        column = other[name]
        gap = np.array([""] if column.dtype.kind == "U" else [np.nan], column.dtype)
        table[name] = np.concatenate([column, gap])[found]  # row -1 is the gap


def _as_texts(column: Array) -> Array:
    """Cells as texts; whole numbers without a point, and missing ones as nothing."""
    if column.dtype.kind == "f":
        cells = ["" if np.isnan(x) else f"{x:.0f}" if x == int(x) else repr(x) for x in
                 column.tolist()]  # fmt: skip
        return np.array(cells, np.str_)
    return column.astype(np.str_)


def _as_numbers(name: str, column: Array) -> Array:
    try:
        return column.astype(np.float64)
    except (TypeError, ValueError):
        raise wf.ArgumentError(
            "config",
            f"column {name!r} holds something else than numbers",
            expected="numbers, which features of kind number and bucket are made from",
            got={name: column[:1].tolist()},
            fix=f'[features.{name}] kind = "category"',
        ) from None


def histories(groups: Array, items: Array, order: Array, length: int) -> Array:
    """For each row, the items of earlier rows of the same group: at most `length`, newest last."""
    earlier: dict[str, list[str]] = {}
    cells = [""] * len(groups)
    for row in np.argsort(order, kind="stable").tolist():
        before = earlier.setdefault(str(groups[row]), [])
        cells[row] = SEPARATOR.join(before[-length:])
        before.append(str(items[row]))
        del before[:-length]
    return np.array(cells, np.str_)


def split_rows(
    columns: Columns, fraction: float, order: str, seed: int
) -> tuple[Columns, Columns | None]:
    """The rows to train on and those to judge by: drawn at random, or the last of an order."""
    count = len(next(iter(columns.values())))
    held_out = round(count * fraction)
    if not 0 < held_out < count:
        return columns, None
    rows = (
        np.argsort(columns[f"number:{order}"], kind="stable")
        if order
        else np.random.default_rng(seed).permutation(count)
    )
    parts = np.sort(rows[:-held_out]), np.sort(rows[-held_out:])
    train, validation = ({name: column[part] for name, column in columns.items()} for part in parts)
    return train, validation


def made_up_clicks(rows: int, seed: int = 0) -> Columns:
    """Clicks that depend on the tastes of users: to try things out without a file.

    Whether a user likes an item depends on how popular it is, and on the product of two hidden
    vectors.

    >>> sorted(made_up_clicks(10))
    ['age', 'click', 'history', 'item', 'price', 'rating', 'shop', 'time', 'user']
    """
    generator = np.random.default_rng(seed)
    users, items, shops = 40, 30, 8
    user, item, shop = (generator.integers(0, size, rows) for size in (users, items, shops))
    tastes, kinds = generator.normal(size=(users, 2)), generator.normal(size=(items, 2))
    price, age = generator.exponential(20.0, rows), generator.integers(12, 80, rows)
    popular = 1.5 * generator.normal(size=items)
    liking = (tastes[user] * kinds[item]).sum(axis=1) + popular[item]
    odds = 1.5 * liking + 0.5 * generator.normal(size=shops)[shop] - 0.01 * price
    click = generator.random(rows) < 1 / (1 + np.exp(-odds))
    names = np.array([f"item{number}" for number in range(items)])
    columns: Columns = {
        "user": np.array([f"user{number}" for number in range(users)])[user],
        "item": names[item],
        "shop": np.array([f"shop{number}" for number in range(shops)])[shop],
        "price": price,
        "age": age.astype(np.float64),
        "time": np.arange(rows, dtype=np.float64),
        "click": click.astype(np.float64),
        "rating": np.clip(np.rint(3 + liking), 1, 5),
    }
    columns["history"] = histories(columns["user"], columns["item"], columns["time"], 10)
    return columns


def _check_names(source: str, table: Columns, wanted: Sequence[str]) -> None:
    for name in wanted:
        if name not in table:
            raise wf.ArgumentError(
                "config",
                f"there is no column {name!r}",
                expected=f"one of {', '.join(table)}",
                got={"source": source},
                fix="spell it as the source does",
            )
