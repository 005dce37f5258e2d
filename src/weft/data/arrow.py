"""Arrow tables and Parquet files through pyarrow, and the datasets of Hugging Face.

`read_parquet("rows.parquet", columns=["x", "y"])` gives arrays by column for `ArrayDataset`;
`ParquetRows` streams files that are larger than memory; `from_arrow` takes a table in memory, and
`read_arrow` a file in Arrow's own (IPC, Feather) format.

>>> from weft.data.arrow import from_huggingface
>>> from_huggingface([{"text": "a", "label": 1}], columns=["label"])[0]
{'label': 1}
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt

import weft as wf
from weft.data.dataset import Dataset, Indexed, check_count
from weft.data.optional import require
from weft.data.stream import IterableDataset, as_dataset
from weft.data.tables import ROOM, text_array
from weft.files import damaged, open_file, unpacked_limit

Table = dict[str, npt.NDArray[Any]]


def read_parquet(path: str | Path, *, columns: Sequence[str] | None = None) -> Table:
    """A Parquet file as arrays by column; missing numbers become NaN."""
    package = _parquet("read_parquet")
    chosen = None if columns is None else list(columns)
    with open_file("read_parquet", path) as source, _name_file_in_errors("read_parquet", path):
        file = package.ParquetFile(source)
        _check_columns("read_parquet", path, file.schema_arrow.names, columns)
        _check_room("read_parquet", path, source, file.metadata, chosen)
        return from_arrow(file.read(columns=chosen))


def read_arrow(path: str | Path, *, columns: Sequence[str] | None = None) -> Table:
    """A file in Arrow's own format as arrays by column."""
    package = require("pyarrow", "pyarrow", "read_arrow")
    with open_file("read_arrow", path) as source, _name_file_in_errors("read_arrow", path):
        reader = package.ipc.open_file(source)
        _check_columns("read_arrow", path, reader.schema.names, columns)
        table = package.Table.from_batches(_batches(path, source, reader), reader.schema)
        table.validate(full=True)  # what lies in the file is taken as it is, so it is looked at
        return from_arrow(table if columns is None else table.select(list(columns)))


def _batches(path: str | Path, source: BinaryIO, reader: Any) -> Iterator[Any]:
    """The parts of a file, one by one; refused where they exceed the limit for such a file."""
    limit = unpacked_limit(os.fstat(source.fileno()).st_size, ROOM)
    for number in range(reader.num_record_batches):
        batch = reader.get_batch(number)
        limit -= batch.nbytes
        if limit < 0:
            raise _too_large("read_arrow", path, "write the file without compression")
        yield batch


def from_arrow(table: Any) -> Table:
    """An Arrow table (or record batch) as arrays by column, for `ArrayDataset`."""
    return {name: _column(name, table.column(name)) for name in table.schema.names}


def to_arrow(table: Any) -> Any:
    """Arrays by column (also tensors, and rows of more axes) as an Arrow table.

    `datasets.Dataset(wf.data.to_arrow(table))` is a dataset of Hugging Face.
    """
    package = require("pyarrow", "pyarrow", "to_arrow", extra="data")
    return package.table({name: _arrow_column(package, column) for name, column in table.items()})


def _arrow_column(package: Any, column: Any) -> Any:
    """A column; each axis behind the first is a list of one length."""
    array = np.asarray(column)
    flat = package.array(np.ascontiguousarray(array).reshape(-1))
    for size in reversed(array.shape[1:]):
        flat = package.FixedSizeListArray.from_arrays(flat, size)
    return flat


class ParquetRows(IterableDataset):
    """The rows of Parquet files as dictionaries, `fetch` at a time, in the order of the files."""

    def __init__(
        self,
        paths: str | Path | Sequence[str | Path],
        *,
        columns: Sequence[str] | None = None,
        fetch: int = 4096,
    ) -> None:
        self.paths = [Path(paths)] if isinstance(paths, str | Path) else [Path(p) for p in paths]
        self.columns = None if columns is None else list(columns)
        self.fetch = check_count("ParquetRows", "fetch", fetch)

    def __iter__(self) -> Iterator[dict[str, Any]]:
        package = _parquet("ParquetRows")
        for path in self.paths:
            with (
                open_file("ParquetRows", path) as source,
                _name_file_in_errors("ParquetRows", path),
            ):
                file = package.ParquetFile(source)
                _check_columns("ParquetRows", path, file.schema_arrow.names, self.columns)
                for part in file.iter_batches(batch_size=self.fetch, columns=self.columns):
                    yield from _rows(from_arrow(part))


class _Chosen(Indexed):
    """Some columns of a source whose items are dictionaries."""

    def __init__(self, source: Any, columns: Sequence[str]) -> None:
        super().__init__(source)
        self.columns = list(columns)

    def __getitem__(self, index: int, /) -> dict[str, Any]:
        item = self.source[index]
        return {name: item[name] for name in self.columns}


def from_huggingface(
    dataset: Any, *, columns: Sequence[str] | None = None
) -> Dataset | IterableDataset:
    """A `datasets.Dataset` or `IterableDataset` of Hugging Face; items are dictionaries of arrays.

    Anything else with `__len__` and `__getitem__`, or that can be iterated, is taken too.
    """
    names = getattr(dataset, "column_names", None)
    if isinstance(dataset, dict) and isinstance(names, dict):  # of a `DatasetDict`
        raise wf.ArgumentTypeError(
            "from_huggingface",
            "these are several datasets by name",
            expected="one dataset",
            got={"names": ", ".join(map(str, dataset))},
            fix=f"wf.data.from_huggingface(dataset[{next(iter(dataset), 'train')!r}])",
        )
    if names is not None and columns is not None:
        _check_columns("from_huggingface", type(dataset).__name__, names, columns)
    if hasattr(dataset, "with_format"):
        dataset = dataset.with_format("numpy")
    if columns is None:
        return as_dataset(dataset)
    if hasattr(dataset, "select_columns"):
        return as_dataset(dataset.select_columns(list(columns)))
    return _Chosen(dataset, columns)


def _parquet(purpose: str) -> Any:
    return require("pyarrow.parquet", "pyarrow", purpose)


@contextmanager
def _name_file_in_errors(op: str, path: str | Path) -> Iterator[None]:
    """Name the file in errors of pyarrow."""
    try:
        yield
    except (wf.WeftError, GeneratorExit):
        raise
    except Exception as error:  # pyarrow's own errors have no common base
        raise damaged(op, path, f"{type(error).__name__}: {error}") from error


def _check_room(
    op: str, path: str | Path, source: BinaryIO, metadata: Any, chosen: list[str] | None
) -> None:
    """Refuse a few bytes that stand for more than the memory holds."""
    count = metadata.num_columns if chosen is None else len(chosen)
    groups = [metadata.row_group(number) for number in range(metadata.num_row_groups)]
    chunks = [group.column(number) for group in groups for number in range(group.num_columns)]
    sizes = [
        chunk.total_uncompressed_size
        for chunk in chunks
        if chosen is None or chunk.path_in_schema.split(".")[0] in chosen
    ]
    room = max(8 * metadata.num_rows * count, sum(sizes))
    if room > unpacked_limit(os.fstat(source.fileno()).st_size, ROOM):
        raise _too_large(op, path, "read it in parts: wf.data.ParquetRows(path)")


def _too_large(op: str, path: str | Path, fix: str) -> wf.WeftError:
    return damaged(op, path, "it unpacks to far more than its size", "a table that fits", fix)


def _rows(table: Table) -> Iterator[dict[str, Any]]:
    for row in zip(*table.values(), strict=True):
        yield dict(zip(table, row, strict=True))


def _column(name: str, column: Any) -> npt.NDArray[Any]:
    array = column.to_numpy(zero_copy_only=False) if _is_flat(column) else column.to_numpy()
    if array.dtype != object:
        return np.asarray(array)
    if column.null_count:
        raise wf.ArgumentError(
            "from_arrow",
            f"column {name} has missing cells that are not numbers",
            expected="numbers, or cells that are all filled",
            got={"type": str(column.type), "missing": column.null_count},
            fix='fill them first: table.column(name).fill_null("")',
        )
    if isinstance(array[0] if len(array) else "", str):
        return text_array("from_arrow", f"column {name}", array.tolist())
    return _stack_cells(name, array)


def _is_flat(column: Any) -> bool:
    return not hasattr(column, "num_chunks")  # a chunked array has no such choice to make


def _stack_cells(name: str, cells: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Lists of one length as rows; of several lengths they stay objects, to be padded."""
    shapes = {np.shape(cell) for cell in cells}
    if len(shapes) == 1 and not isinstance(cells[0], bytes | dict):
        return np.stack([np.asarray(cell) for cell in cells])
    return cells


def _check_columns(
    op: str, where: object, names: Sequence[str], columns: Sequence[str] | None
) -> None:
    for name in columns or ():
        if name not in names:
            raise wf.ArgumentError(
                op,
                f"there is no column {name!r}",
                expected=f"one of {', '.join(names)}",
                got={"source": str(where), "column": name},
                fix="spell it as in the source",
            )
