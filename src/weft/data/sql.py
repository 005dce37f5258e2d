"""Rows of a database, through any connection that speaks Python's DB-API.

A database may return rows in any order unless the query says ORDER BY; and without a fixed order
neither resuming nor several workers can be exact. So a query that lacks it draws a warning.

>>> import sqlite3
>>> from weft.data import read_sql
>>> connection = sqlite3.connect(":memory:")
>>> _ = connection.execute("CREATE TABLE flowers (size REAL, kind INTEGER)")
>>> _ = connection.executemany("INSERT INTO flowers VALUES (?, ?)", [(1.5, 0), (2.5, 1)])
>>> read_sql(connection, "SELECT size, kind FROM flowers ORDER BY size")["size"].tolist()
[1.5, 2.5]
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from typing import Any

import numpy as np
import numpy.typing as npt

import weft as wf
from weft.data.dataset import check_count
from weft.data.stream import IterableDataset
from weft.data.tables import text_array

_ORDERED = re.compile(r"\border\s+by\b", re.IGNORECASE)


class SQLRows(IterableDataset):
    """The rows of a query as dictionaries, fetched a few at a time.

    `connect` is a function that opens a connection, so that each pass, and each worker process, has
    its own; an open connection is taken too, for use without workers.

    >>> import sqlite3
    >>> from weft.data import SQLRows
    >>> connection = sqlite3.connect(":memory:")
    >>> rows = SQLRows(connection, "SELECT 1 AS x UNION SELECT 2 ORDER BY x")
    >>> list(rows.map(lambda row: row["x"]))
    [1, 2]
    """

    def __init__(
        self,
        connect: Callable[[], Any] | Any,
        query: str,
        parameters: Sequence[Any] = (),
        *,
        fetch: int = 1024,
    ) -> None:
        self.connect = connect
        self.query = query
        self.parameters = tuple(parameters)
        self.fetch = check_count("SQLRows", "fetch", fetch)
        _advise_order(query)

    def __iter__(self) -> Iterator[dict[str, Any]]:
        if hasattr(self.connect, "cursor"):
            yield from self._rows(self.connect)
            return
        with closing(self.connect()) as connection:
            yield from self._rows(connection)

    def _rows(self, connection: Any) -> Iterator[dict[str, Any]]:
        with closing(_execute_query(connection, self.query, self.parameters)) as cursor:
            names = [column[0] for column in cursor.description]
            while rows := cursor.fetchmany(self.fetch):
                for row in rows:
                    yield dict(zip(names, row, strict=True))


def read_sql(
    connection: Any, query: str, parameters: Sequence[Any] = ()
) -> dict[str, npt.NDArray[Any]]:
    """All rows of a query at once, as arrays by column; for `ArrayDataset`."""
    _advise_order(query)
    with closing(_execute_query(connection, query, tuple(parameters))) as cursor:
        names = [column[0] for column in cursor.description]
        columns = list(zip(*cursor.fetchall(), strict=True)) or [()] * len(names)
    return {name: _column(name, values) for name, values in zip(names, columns, strict=True)}


def _execute_query(connection: Any, query: str, parameters: tuple[Any, ...]) -> Any:
    cursor = connection.cursor()
    try:
        cursor.execute(query, parameters)
    except Exception as error:
        error.add_note(f"in the query: {query}")
        raise
    if cursor.description is None:
        raise wf.ArgumentError(
            "read_sql",
            "the query returns no rows",
            expected="a query that selects",
            got={"query": query},
            fix='"SELECT ... FROM ... ORDER BY ..."',
        )
    return cursor


def _column(name: str, values: Sequence[Any]) -> npt.NDArray[Any]:
    if None in values:
        if not all(isinstance(value, int | float | None) for value in values):
            raise wf.ArgumentError(
                "read_sql",
                f"column {name} has empty cells that are not numbers",
                expected="numbers, or cells that are all filled",
                got={"row": values.index(None)},
                fix=f"say what stands for them: COALESCE({name}, '')",
            )
        return np.array([np.nan if value is None else value for value in values], np.float64)
    if values and all(isinstance(value, str) for value in values):
        return text_array("read_sql", name, values)
    return np.array(values)


def _advise_order(query: str) -> None:
    if not _ORDERED.search(query):
        warnings.warn(
            f"the query has no ORDER BY, so the order of its rows may change: {query}",
            UserWarning,
            stacklevel=3,
        )
