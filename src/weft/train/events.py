"""TensorBoard's event files, written by hand: records, checksums and messages, no dependency.

A file is a list of records (length, its checksum, data, its checksum; the checksums are masked
CRC-32C); the data is an `Event` message in the wire form of Protocol Buffers.

>>> import tempfile, pathlib
>>> folder = pathlib.Path(tempfile.mkdtemp())
>>> with EventWriter(folder) as writer:
...     writer.scalar("loss", 0.5, step=1)
>>> [path.name.split(".")[2] for path in folder.iterdir()]
['tfevents']
"""

from __future__ import annotations

import os
import socket
import struct
import time
from collections.abc import Iterable, Mapping, Sequence
from itertools import count
from pathlib import Path
from typing import Any, NamedTuple, Self

import numpy as np

from weft.train.png import encode

__all__ = ["EventWriter", "GraphEntry", "crc32c"]

_NUMBERS = count()


def _table() -> list[int]:
    """One remainder for each byte, by the reflected polynomial of Castagnoli."""
    rows = []
    for byte in range(256):
        value = byte
        for _ in range(8):
            value = (value >> 1) ^ (0x82F63B78 if value & 1 else 0)
        rows.append(value)
    return rows


_TABLE = _table()


def crc32c(data: bytes) -> int:
    """The CRC-32C of some bytes.

    >>> hex(crc32c(b"123456789"))
    '0xe3069283'
    """
    value = 0xFFFFFFFF
    for byte in data:
        value = (value >> 8) ^ _TABLE[(value ^ byte) & 0xFF]
    return value ^ 0xFFFFFFFF


def record(data: bytes) -> bytes:
    """A record of a file: what TensorFlow calls TFRecord.

    >>> record(b"abc")[:8].hex()
    '0300000000000000'
    """
    length = struct.pack("<Q", len(data))
    return length + _masked_checksum(length) + data + _masked_checksum(data)


def _masked_checksum(data: bytes) -> bytes:
    value = crc32c(data)
    return struct.pack("<I", (((value >> 15) | (value << 17)) + 0xA282EAD8) & 0xFFFFFFFF)


# --- messages: a field is its number and kind, then its value ----------------------------------


def _varint(value: int) -> bytes:
    value &= (1 << 64) - 1
    parts = bytearray()
    while value > 0x7F:
        parts.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*parts, value])


def _integer(field: int, value: int) -> bytes:
    return _varint(field << 3) + _varint(value)


def _double_field(field: int, value: float) -> bytes:
    return _varint(field << 3 | 1) + struct.pack("<d", value)


def _float(field: int, value: float) -> bytes:
    return _varint(field << 3 | 5) + np.float32(value).tobytes()


def _bytes(field: int, value: bytes) -> bytes:
    return _varint(field << 3 | 2) + _varint(len(value)) + value


def _text(field: int, value: str) -> bytes:
    return _bytes(field, value.encode())


def _doubles(field: int, values: Any) -> bytes:
    return _bytes(field, np.asarray(values, "<f8").tobytes())


class GraphEntry(NamedTuple):
    """A node of a graph: its inputs are names, with `:1` behind them for a second result."""

    name: str
    operation: str
    inputs: Sequence[str] = ()
    device: str = ""
    attributes: Mapping[str, str] = {}
    shapes: Sequence[Sequence[int]] = ()
    """The shapes of its results; a size that is not known is -1."""


def _node(entry: GraphEntry) -> bytes:
    """A `NodeDef` message."""
    parts = [_text(1, entry.name), _text(2, entry.operation)]
    parts += [_text(3, each) for each in entry.inputs]
    parts += [_text(4, entry.device)] if entry.device else []
    parts += [_attribute(key, _text(2, value)) for key, value in entry.attributes.items()]
    shapes = b"".join(_bytes(7, _shape(shape)) for shape in entry.shapes)
    parts.append(_attribute("_output_shapes", _bytes(1, shapes)))
    return b"".join(parts)


def _attribute(key: str, value: bytes) -> bytes:
    return _bytes(5, _text(1, key) + _bytes(2, value))


def _shape(shape: Sequence[int]) -> bytes:
    return b"".join(_bytes(2, _integer(1, size)) for size in shape)


class EventWriter:
    """Writes one event file into a folder; every event is flushed, so a live TensorBoard sees it.

    `purge_step` tells TensorBoard to forget what an interrupted run wrote from that step on.
    """

    def __init__(self, folder: str | os.PathLike[str], purge_step: int | None = None) -> None:
        self.folder = Path(folder)
        self.folder.mkdir(parents=True, exist_ok=True)
        unique = f"{time.time():.6f}.{socket.gethostname()}.{os.getpid()}.{next(_NUMBERS)}"
        self.path = self.folder / f"events.out.tfevents.{unique}"
        self._file = self.path.open("ab")
        self._write(_text(3, "brain.Event:2"), step=None)
        if purge_step is not None:
            start_of_session = _bytes(7, _integer(1, 1))
            self._write(start_of_session, step=purge_step)

    def scalar(self, tag: str, value: float, step: int) -> None:
        """One point of a curve."""
        self._value(tag, _float(2, value), step)

    def histogram(self, tag: str, values: Any, step: int, bins: int = 30) -> None:
        """How values are distributed; those that are not finite are left out."""
        array = np.asarray(values, np.float64).reshape(-1)
        array = array[np.isfinite(array)]
        if array.size == 0:
            return
        counts, edges = np.histogram(array, bins)
        message = b"".join(
            [
                _double_field(1, array.min()),
                _double_field(2, array.max()),
                _double_field(3, array.size),
                _double_field(4, array.sum()),
                _double_field(5, float(array @ array)),
                _doubles(6, edges[1:]),
                _doubles(7, counts),
            ]
        )
        self._value(tag, _bytes(5, message), step)

    def text(self, tag: str, text: str, step: int) -> None:
        """Some text, which TensorBoard reads as Markdown."""
        metadata = _bytes(9, _bytes(1, _text(1, "text")))
        string_tensor = _integer(1, 7) + _bytes(2, _bytes(2, _integer(1, 1))) + _text(8, text)
        self._value(tag, metadata + _bytes(8, string_tensor), step)

    def image(self, tag: str, pixels: Any, step: int) -> None:
        """A picture: uint8 or floats from 0 to 1; [height, width] or [height, width, 3]."""
        array = as_pixels(pixels)
        height, width = array.shape[:2]
        colours = 1 if array.ndim == 2 else array.shape[2]
        sizes = _integer(1, height) + _integer(2, width) + _integer(3, colours)
        self._value(tag, _bytes(4, sizes + _bytes(4, encode(array))), step)

    def graph(self, nodes: Iterable[GraphEntry]) -> None:
        """A graph, which TensorBoard's graph tab draws; slashes in names make it collapsible."""
        definition = b"".join(_bytes(1, _node(each)) for each in nodes)
        versions = _bytes(4, _integer(1, 22))
        self._write(_bytes(4, definition + versions), step=None)

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def _value(self, tag: str, message: bytes, step: int) -> None:
        self._write(_bytes(5, _bytes(1, _text(1, tag) + message)), step)

    def _write(self, message: bytes, step: int | None) -> None:
        event = (
            _double_field(1, time.time()) + (b"" if step is None else _integer(2, step)) + message
        )
        self._file.write(record(event))
        self._file.flush()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def as_pixels(values: Any) -> np.ndarray[Any, np.dtype[np.uint8]]:
    """Bytes for pixels: floats from 0 to 1 become 0 to 255.

    >>> as_pixels([[0.0, 1.0]]).tolist()
    [[0, 255]]
    """
    array = np.asarray(values)
    if array.dtype.kind == "f":
        array = np.rint(np.nan_to_num(array).clip(0, 1) * 255)
    return array.astype(np.uint8)
