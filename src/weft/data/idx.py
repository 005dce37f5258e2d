"""IDX files, the form in which MNIST and its relatives come, plain or gzipped.

>>> import os, struct, tempfile
>>> from weft.data import read_idx
>>> path = os.path.join(tempfile.mkdtemp(), "labels-idx1-ubyte")
>>> with open(path, "wb") as file: _ = file.write(struct.pack(">BBBBI3B", 0, 0, 8, 1, 3, 7, 2, 1))
>>> read_idx(path).tolist()
[7, 2, 1]
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

import weft as wf
from weft.data.dataset import ArrayDataset
from weft.files import read_bytes, unpack_gzip

_DTYPES = {8: ">u1", 9: ">i1", 11: ">i2", 12: ">i4", 13: ">f4", 14: ">f8"}


def read_idx(path: str | Path) -> npt.NDArray[Any]:
    """The array in an IDX file; a name that ends in .gz is decompressed."""
    packed = Path(path).suffix == ".gz"
    raw = unpack_gzip("read_idx", path) if packed else read_bytes("read_idx", path)
    if len(raw) < 4 or raw[:2] != b"\0\0" or raw[2] not in _DTYPES:
        raise _format_error(path, "the file is not in IDX format", raw[:4])
    dtype, rank = np.dtype(_DTYPES[raw[2]]), raw[3]
    start = 4 + 4 * rank
    shape = np.frombuffer(raw[4:start], ">u4", count=min(rank, len(raw[4:start]) // 4)).tolist()
    if len(shape) != rank or len(raw) != start + math.prod(shape) * dtype.itemsize:
        raise _format_error(path, "the file has another length than it says", shape)
    try:
        values = np.frombuffer(raw, dtype, offset=min(start, len(raw))).reshape(shape)
    except ValueError as error:
        raise _format_error(path, f"no array has this shape: {error}", shape) from None
    return values.astype(dtype.newbyteorder("="))


def from_idx(images: str | Path, labels: str | Path) -> ArrayDataset:
    """Pairs (image, label) of two IDX files: float32[1, height, width] from 0 to 1, and int64."""
    pixels, numbers = read_idx(images), read_idx(labels)
    if pixels.ndim != 3 or numbers.ndim != 1:
        raise wf.ShapeError(
            "from_idx",
            "these are not images and their labels",
            expected="images of shape [n, height, width], and n labels",
            got={str(images): pixels.shape, str(labels): numbers.shape},
            fix='from_idx("train-images-idx3-ubyte.gz", "train-labels-idx1-ubyte.gz")',
        )
    scaled = pixels.astype(np.float32) / np.float32(255)
    return ArrayDataset(scaled[:, None], numbers.astype(np.int64))


def _format_error(path: str | Path, problem: str, found: object) -> wf.WeftError:
    return wf.ArgumentError(
        "read_idx",
        problem,
        expected="two zero bytes, a type, a rank, the shape, then as many numbers",
        got={"file": str(path), "found": found},
        fix="get the file again, and compare its checksum",
    )
