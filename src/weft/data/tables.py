r"""Tables: CSV files as arrays by column, or as a stream of rows.

The type of a column is found from its cells: whole numbers are int64, other numbers float32, true
and false bool, everything else text. Empty cells and `missing` words become NaN in numbers.

>>> import os, tempfile
>>> from weft.data import read_csv
>>> path = os.path.join(tempfile.mkdtemp(), "houses.csv")
>>> with open(path, "w") as file: _ = file.write("rooms,price,city\n3,1.5,Bern\n4,,Ulm\n")
>>> table = read_csv(path)
>>> table["rooms"].tolist(), table["price"].tolist(), table["city"].tolist()
([3, 4], [1.5, nan], ['Bern', 'Ulm'])
"""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple, TextIO

import numpy as np
import numpy.typing as npt

import weft as wf
from weft.data.dataset import ArrayDataset
from weft.data.stream import IterableDataset
from weft.files import Unpacked, damaged, open_file, unpacked_limit

MISSING = ("", "NA", "N/A", "NaN", "nan", "null", "None", "?")
"""The cells that stand for nothing."""

LONGEST_LINE = 1 << 24
"""The most characters of a line of a table."""
UNPACKED_TEXT = 1 << 24
"""What any packed table may unpack to, however small it is."""
ROOM = 1 << 30
"""What any table may take as arrays, however small it is."""
Table = dict[str, npt.NDArray[Any]]
_BOOLEANS = {"true": True, "false": False}


class Form(NamedTuple):
    """How a CSV file is written."""

    header: bool | Sequence[str] = True
    delimiter: str = ","
    encoding: str = "utf-8-sig"
    missing: Sequence[str] = MISSING
    skip_rows: int = 0


def read_csv(
    path: str | Path,
    *,
    columns: Sequence[str] | None = None,
    dtypes: Mapping[str, Any] | None = None,
    fill: Mapping[str, Any] | None = None,
    header: bool | Sequence[str] = True,
    delimiter: str = ",",
    encoding: str = "utf-8-sig",
    missing: Sequence[str] = MISSING,
    skip_rows: int = 0,
) -> Table:
    """A CSV file, plain or gzipped, as arrays by column name.

    `columns` selects and orders; `dtypes` and `fill` (what stands for a missing cell) are by
    column; `header` is True, False (columns are "0", "1", …) or the names themselves.
    """
    form = Form(header, delimiter, encoding, missing, skip_rows)
    dtypes, fill = dtypes or {}, fill or {}
    if Path(path).suffix == ".gz":  # cells take far more room than their text
        with Unpacked("read_csv", path, UNPACKED_TEXT) as packed:
            packed.check()
    with _open_table(path, form) as (names, rows):
        chosen = _positions(path, names, [*(columns or names), *dtypes, *fill])
        cells = list(zip(*rows, strict=True)) or [()] * len(names)
    table: Table = {}
    for name in columns or names:
        column = _Column(path, name, cells[chosen[name]], form.missing)
        table[name] = column.array(dtypes.get(name), fill.get(name))
    return table


def from_csv(
    path: str | Path, target: str, inputs: Sequence[str] | None = None, **options: Any
) -> ArrayDataset:
    r"""Pairs (inputs, target) of a CSV file: float32[columns] of all the others, or of `inputs`.

    The options are those of `read_csv`.

    >>> import os, tempfile
    >>> from weft.data import from_csv
    >>> path = os.path.join(tempfile.mkdtemp(), "houses.csv")
    >>> with open(path, "w") as file: _ = file.write("rooms,age,price\n3,10,1.5\n4,20,2.5\n")
    >>> from_csv(path, target="price")[1]
    (array([ 4., 20.], dtype=float32), np.float32(2.5))
    """
    table = read_csv(path, columns=None if inputs is None else [*inputs, target], **options)
    _positions(path, list(table), [target])
    chosen = [name for name in table if name != target]
    for name in chosen:
        if table[name].dtype.kind not in "iufb":
            raise _bad_cell(path, name, 0, str(table[name][0]), "a number")
    features = np.stack([table[name].astype(np.float32) for name in chosen], axis=1)
    return ArrayDataset(features, table[target])


class CSVRows(IterableDataset):
    r"""The rows of a CSV file of any size as dictionaries, one after another.

    Cells are text, or what `dtypes` makes of them, by column.

    >>> import os, tempfile
    >>> from weft.data import CSVRows
    >>> path = os.path.join(tempfile.mkdtemp(), "houses.csv")
    >>> with open(path, "w") as file: _ = file.write("rooms,city\n3,Bern\n")
    >>> list(CSVRows(path, dtypes={"rooms": "int64"}))
    [{'rooms': np.int64(3), 'city': 'Bern'}]
    """

    def __init__(
        self,
        path: str | Path,
        *,
        columns: Sequence[str] | None = None,
        dtypes: Mapping[str, Any] | None = None,
        header: bool | Sequence[str] = True,
        delimiter: str = ",",
        encoding: str = "utf-8-sig",
        missing: Sequence[str] = MISSING,
        skip_rows: int = 0,
    ) -> None:
        self.path = Path(path)
        self.columns = columns
        self.dtypes = {name: np.dtype(dtype) for name, dtype in (dtypes or {}).items()}
        self.form = Form(header, delimiter, encoding, missing, skip_rows)

    def __iter__(self) -> Iterator[dict[str, Any]]:
        with _open_table(self.path, self.form) as (names, rows):
            wanted = self.columns or names
            chosen = _positions(self.path, names, [*wanted, *self.dtypes])
            for number, row in enumerate(rows):
                yield {name: self._cell(name, row[chosen[name]], number) for name in wanted}

    def _cell(self, name: str, cell: str, number: int) -> Any:
        dtype = self.dtypes.get(name)
        if dtype is None:
            return cell
        if cell in self.form.missing and dtype.kind in "fc":
            return dtype.type(np.nan)
        try:
            return dtype.type(cell)
        except ValueError as error:
            raise _bad_cell(self.path, name, number, cell, str(dtype)) from error


class _Column(NamedTuple):
    """The cells of one column as text, before their dtype is known."""

    path: str | Path
    name: str
    cells: tuple[str, ...]
    missing: Sequence[str]

    def array(self, dtype: Any, fill: Any) -> npt.NDArray[Any]:
        cells: Sequence[Any] = self.cells
        gaps = self._gaps()
        if fill is not None:
            cells = [str(fill) if gap else cell for cell, gap in zip(cells, gaps, strict=True)]
            gaps = [False] * len(cells)
        if dtype is None:
            return self._infer_array(cells, gaps)
        return self._convert_array(cells, gaps, np.dtype(dtype))

    def _gaps(self) -> list[bool]:
        words = frozenset(self.missing)
        return [cell in words for cell in self.cells]

    def _infer_array(self, cells: Sequence[str], gaps: list[bool]) -> npt.NDArray[Any]:
        lowered = {cell.lower() for cell in cells[:100]}
        if cells and lowered <= _BOOLEANS.keys() and {c.lower() for c in cells} <= _BOOLEANS.keys():
            return np.array([_BOOLEANS[cell.lower()] for cell in cells])
        if not any(gaps):
            try:
                return np.array(cells, np.int64)
            except (ValueError, OverflowError):
                pass
        try:
            return self._cell_numbers(cells, gaps).astype(np.float32)
        except ValueError:
            return text_array("read_csv", f"{self.path}, column {self.name}", cells)

    def _convert_array(
        self, cells: Sequence[str], gaps: list[bool], dtype: np.dtype[Any]
    ) -> npt.NDArray[Any]:
        if dtype.kind in "iub" and any(gaps):
            row = gaps.index(True)
            raise _bad_cell(self.path, self.name, row, cells[row], f"{dtype} (or fill=)")
        try:
            if dtype.kind == "f":
                return self._cell_numbers(cells, gaps).astype(dtype)
            if dtype.kind == "b":
                return np.array([_BOOLEANS[cell.lower()] for cell in cells])
            return np.array(cells, dtype)
        except (ValueError, KeyError, OverflowError) as error:
            row = next(i for i, cell in enumerate(cells) if not _cell_fits(cell, dtype))
            raise _bad_cell(self.path, self.name, row, cells[row], str(dtype)) from error

    def _cell_numbers(self, cells: Sequence[str], gaps: list[bool]) -> npt.NDArray[np.float64]:
        if not any(gaps):
            return np.array(cells, np.float64)
        kept = ["nan" if gap else cell for cell, gap in zip(cells, gaps, strict=True)]
        return np.array(kept, np.float64)


def _cell_fits(cell: str, dtype: np.dtype[Any]) -> bool:
    if dtype.kind == "b":
        return cell.lower() in _BOOLEANS
    try:
        np.array([cell], dtype)
    except (ValueError, OverflowError):
        return False
    return True


@contextmanager
def _open_table(path: str | Path, form: Form) -> Iterator[tuple[list[str], Iterator[list[str]]]]:
    """The names of the columns, and the rows after them, each as long as the names."""
    with _text(Path(path), form.encoding) as file, _name_file_in_errors(path):
        lines = _lines(path, file)
        for _ in range(form.skip_rows):
            next(lines, None)
        reader = csv.reader(lines, delimiter=form.delimiter)
        first = next(reader, None)
        if first is None:
            raise wf.ArgumentError(
                "read_csv",
                "the file is empty",
                expected="a line of names, then rows",
                got={"file": str(path)},
                fix="look at the file",
            )
        before = [] if form.header is True else [first]
        names = _names(form.header, first)
        yield names, _checked_rows(path, names, before, reader, form.skip_rows)


def _text(path: Path, encoding: str) -> TextIO:
    packed = path.suffix == ".gz"
    file: Any = Unpacked("read_csv", path) if packed else open_file("read_csv", path)
    try:
        return io.TextIOWrapper(file, encoding=encoding, newline="")
    except LookupError as error:
        file.close()
        raise damaged("read_csv", path, str(error), "an encoding", 'encoding="utf-8"') from None


def _lines(path: str | Path, file: TextIO) -> Iterator[str]:
    """The lines of a file; one without end is refused."""
    while line := file.readline(LONGEST_LINE):
        if len(line) == LONGEST_LINE:
            raise damaged("read_csv", path, f"a line has more than {LONGEST_LINE} characters")
        yield line


@contextmanager
def _name_file_in_errors(path: str | Path) -> Iterator[None]:
    """Name the file in errors about text that is no table."""
    try:
        yield
    except (UnicodeError, csv.Error) as error:
        told = f"it is no table: {error}"
        raise damaged("read_csv", path, told, fix="give encoding= and delimiter=") from None


def text_array(op: str, source: object, cells: Sequence[str]) -> npt.NDArray[np.str_]:
    """Texts as an array, in which each takes as much room as the longest.

    >>> text_array("read_csv", "a.csv", ["b", "cd"]).dtype
    dtype('<U2')
    """
    longest = max(map(len, cells), default=0)
    if 4 * longest * len(cells) > unpacked_limit(sum(map(len, cells)), ROOM):
        raise wf.ArgumentError(
            op,
            "one text is so long that an array of them does not fit into the memory",
            expected="texts of similar length",
            got={"source": str(source), "texts": len(cells), "longest": longest},
            fix="read row by row (CSVRows, ParquetRows, SQLRows), or leave the column out",
        )
    return np.array(cells, np.str_)


def _names(header: bool | Sequence[str], first: list[str]) -> list[str]:
    if header is True:
        return [name.strip() for name in first]
    return [str(i) for i in range(len(first))] if header is False else list(header)


def _checked_rows(
    path: str | Path, names: list[str], before: list[list[str]], reader: Any, skipped: int
) -> Iterator[list[str]]:
    width = len(names)
    for row in before:
        if len(row) != width:
            raise _bad_row(path, skipped + 1, width, row)
        yield row
    for row in reader:
        if len(row) == width:
            yield row
        elif row:  # an empty line is none
            raise _bad_row(path, skipped + reader.line_num, width, row)


def _positions(path: str | Path, names: list[str], wanted: Sequence[str]) -> dict[str, int]:
    for name in wanted:
        if name not in names:
            raise wf.ArgumentError(
                "read_csv",
                f"there is no column {name!r}",
                expected=f"one of {', '.join(names)}",
                got={"file": str(path), "column": name},
                fix="spell it as in the file's first line, or give the names: header=[...]",
            )
    return {name: names.index(name) for name in wanted}


def _bad_row(path: str | Path, line: int, width: int, row: list[str]) -> wf.WeftError:
    return wf.ShapeError(
        "read_csv",
        f"line {line} has {len(row)} cells",
        expected=f"{width} cells, as in the first line",
        got={"file": str(path), f"line {line}": row},
        fix="mend the line, or give delimiter= or header=",
    )


def _bad_cell(path: str | Path, name: str, row: int, cell: str, wanted: str) -> wf.WeftError:
    return wf.ArgumentError(
        "read_csv",
        f"a cell of column {name!r} is not what it should be",
        expected=wanted,
        got={"file": str(path), f"row {row}": repr(cell)},
        fix="give the column another type (dtypes=), missing words (missing=), or fill=",
    )
