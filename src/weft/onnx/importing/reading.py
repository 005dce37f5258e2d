"""The file: bytes to a `ModelProto`, and its tensors to arrays. Nothing in a file is believed.

Sizes are compared with the bytes that are there before anything is allocated. External data stays
in the model's folder: no absolute paths, no `..`, no links, no bytes beyond the file's end.
"""

from __future__ import annotations

import math
import os
import stat
from dataclasses import dataclass
from functools import cache
from pathlib import Path, PurePosixPath, PureWindowsPath
from typing import Any

import ml_dtypes
import numpy as np

import weft as wf
from weft.data.optional import require
from weft.files import open_file, read_bytes

LARGEST_FILE = 1 << 31
"""Bytes of a model without its external data: what the format's own encoding allows."""
LARGEST_SPARSE = 1 << 28
"""Elements that a sparse tensor may have when it is written out."""

Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Element:
    """One element type of the format: its name, its form in memory, the field of its numbers."""

    name: str
    numpy: np.dtype[Any]
    field: str
    bits: int

    @property
    def is_tensor_type(self) -> bool:
        """Whether tensors have this type; the others are carried by a wider one."""
        return self.name not in NARROW


def _element(name: str, form: Any, field: str, bits: int = 0) -> Element:
    dtype = np.dtype(form)
    return Element(name, dtype, field, bits or dtype.itemsize * 8)


ELEMENTS: dict[int, Element] = {
    1: _element("float32", np.float32, "float_data"),
    2: _element("uint8", np.uint8, "int32_data"),
    3: _element("int8", np.int8, "int32_data"),
    4: _element("uint16", np.uint16, "int32_data"),
    5: _element("int16", np.int16, "int32_data"),
    6: _element("int32", np.int32, "int32_data"),
    7: _element("int64", np.int64, "int64_data"),
    9: _element("bool", np.bool_, "int32_data"),
    10: _element("float16", np.float16, "int32_data"),
    11: _element("float64", np.float64, "double_data"),
    12: _element("uint32", np.uint32, "uint64_data"),
    13: _element("uint64", np.uint64, "uint64_data"),
    14: _element("complex64", np.complex64, "float_data"),
    15: _element("complex128", np.complex128, "double_data"),
    16: _element("bfloat16", ml_dtypes.bfloat16, "int32_data"),
    17: _element("float8e4m3fn", ml_dtypes.float8_e4m3fn, "int32_data"),
    18: _element("float8e4m3fnuz", ml_dtypes.float8_e4m3fnuz, "int32_data"),
    19: _element("float8e5m2", ml_dtypes.float8_e5m2, "int32_data"),
    20: _element("float8e5m2fnuz", ml_dtypes.float8_e5m2fnuz, "int32_data"),
    21: _element("uint4", ml_dtypes.uint4, "int32_data", 4),
    22: _element("int4", ml_dtypes.int4, "int32_data", 4),
    23: _element("float4e2m1", ml_dtypes.float4_e2m1fn, "int32_data", 4),
    24: _element("float8e8m0", ml_dtypes.float8_e8m0fnu, "int32_data"),
}
NARROW = frozenset(ELEMENTS[code].name for code in range(17, 25))
STRING = 8
_BITS_AS_NUMBERS = {"float16": np.uint16, "bfloat16": np.uint16}
"""Types whose numbers stand in an integer field as their bits."""


@cache
def onnx_module(name: str = "onnx") -> Any:
    """A module of the `onnx` package, which only this part of Weft needs."""
    return require(name, "weft[onnx]", "wf.onnx")


def malformed_model(
    problem: str, fix: str = "write the file anew", **got: object
) -> wf.ArgumentError:
    """The error for a model that breaks the rules of the format."""
    return wf.ArgumentError(
        "onnx.load",
        problem,
        expected="a well-formed ONNX model",
        got=got or {"model": "malformed"},
        fix=fix,
    )


def element_of(code: int, what: str) -> Element:
    """The element type of a code; strings and unknown codes are refused."""
    if code == STRING:
        error = wf.UnsupportedError(
            "onnx.load",
            f"{what} holds strings: Weft computes with numbers",
            expected="a model of numbers",
            got={"element type": "string"},
            fix="do the work on text before the model, and cut the model behind it",
        )
        error.reason = "strings: Weft computes with numbers"
        raise error
    if code not in ELEMENTS:
        raise malformed_model(f"{what} has an element type that does not exist", element_type=code)
    return ELEMENTS[code]


# --- the file ------------------------------------------------------------------------------------


def read_model(source: Any) -> tuple[Any, Path | None]:
    """The `ModelProto` of a path, of bytes, or of one that is at hand; and the model's folder."""
    onnx = onnx_module()
    if isinstance(source, onnx.ModelProto):
        return source, None
    if isinstance(source, (bytes, bytearray, memoryview)):
        return _parse(bytes(source), "the bytes"), None
    if not isinstance(source, (str, os.PathLike)):
        raise wf.ArgumentTypeError(
            "onnx.load",
            "this is no model",
            expected="a path, the bytes of a file, or an onnx.ModelProto",
            got={"source": source},
            fix='wf.onnx.load("model.onnx")',
        )
    path = Path(source)
    content = read_bytes("onnx.load", path, LARGEST_FILE)
    return _parse(content, path.name), path.parent


def _parse(content: bytes, what: str) -> Any:
    decode_error = onnx_module("google.protobuf.message").DecodeError
    try:
        model = onnx_module().ModelProto.FromString(content)
    except (decode_error, RecursionError) as error:
        raise malformed_model(
            f"{what} is not an ONNX model: {error}",
            fix="give the path of an .onnx file, whole and not compressed",
            bytes=len(content),
        ) from None
    if not _has_texts(model):
        raise malformed_model(f"{what} has names that are no text", bytes=len(content))
    if not model.HasField("graph") or not model.opset_import:
        raise malformed_model(
            f"{what} is not an ONNX model: it has no graph, or names no version of the operators",
            fix="give the path of an .onnx file",
            bytes=len(content),
        )
    return model


def _has_texts(message: Any) -> bool:
    """Whether all texts of a message are valid; the parser hands others over as bytes."""
    for field, value in message.ListFields():
        if field.type == field.TYPE_MESSAGE:
            repeated = not hasattr(value, "ListFields")
            if not all(map(_has_texts, value if repeated else [value])):
                return False
        elif field.type == field.TYPE_STRING:
            texts = [value] if isinstance(value, (str, bytes)) else value
            if not all(isinstance(each, str) for each in texts):
                return False
    return True


# --- tensors -------------------------------------------------------------------------------------


def read_tensor(proto: Any, folder: Path | None, what: str) -> Array:
    """The array of a `TensorProto`."""
    element = element_of(proto.data_type, what)
    shape = tuple(proto.dims)
    if any(size < 0 for size in shape) or len(shape) > 32:
        raise malformed_model(f"{what} has a shape that cannot be", shape=shape)
    count = math.prod(shape)
    if proto.HasField("segment"):
        raise malformed_model(f"{what} is a part of a tensor, which the format does not define")
    if proto.data_location == 1:
        content = read_external(proto, folder, what, _bytes_of(element, count))
        return _from_bytes(content, element, shape, what)
    if proto.HasField("raw_data"):
        return _from_bytes(proto.raw_data, element, shape, what)
    return _from_numbers(getattr(proto, element.field), element, shape, what)


def _bytes_of(element: Element, count: int) -> int:
    return -(-count * element.bits // 8)


def _from_bytes(content: bytes, element: Element, shape: tuple[int, ...], what: str) -> Array:
    count = math.prod(shape)
    if len(content) != _bytes_of(element, count):
        raise malformed_model(
            f"{what} has {len(content)} bytes, where its shape takes {_bytes_of(element, count)}",
            shape=shape,
        )
    if element.bits == 4:
        return _unpack_halves(np.frombuffer(content, np.uint8), element, shape)
    if element.name == "bool":
        return np.asarray(np.frombuffer(content, np.uint8).reshape(shape) != 0)
    array = np.frombuffer(content, element.numpy.newbyteorder("<"))
    return array.astype(element.numpy, copy=False).reshape(shape)


def _unpack_halves(packed: Array, element: Element, shape: tuple[int, ...]) -> Array:
    """Two numbers of four bits from each byte, the low half first."""
    halves = np.stack([packed & 0xF, packed >> 4], axis=1).reshape(-1)[: math.prod(shape)]
    if element.name == "int4":  # the upper half of a byte gives the sign
        halves = (halves << 4).astype(np.uint8).view(np.int8) >> 4
        return halves.astype(element.numpy).reshape(shape)
    if element.name == "uint4":
        return halves.astype(element.numpy).reshape(shape)
    return halves.view(element.numpy).reshape(shape)


def _from_numbers(numbers: Any, element: Element, shape: tuple[int, ...], what: str) -> Array:
    count = math.prod(shape)
    is_complex = element.numpy.kind == "c"
    packed = element.bits == 4
    expected = count * 2 if is_complex else -(-count // 2) if packed else count
    if len(numbers) != expected:
        raise malformed_model(
            f"{what} has {len(numbers)} numbers, where its shape takes {expected}", shape=shape
        )
    if packed:
        return _unpack_halves(np.array(numbers, np.int64).astype(np.uint8), element, shape)
    if element.name in _BITS_AS_NUMBERS or not element.is_tensor_type:
        form = _BITS_AS_NUMBERS.get(element.name, np.uint8)
        return np.array(numbers, np.int64).astype(form).view(element.numpy).reshape(shape)
    if is_complex:
        parts = np.array(numbers, np.float64).reshape(-1, 2)
        return (parts[:, 0] + 1j * parts[:, 1]).astype(element.numpy).reshape(shape)
    return np.array(numbers).astype(element.numpy).reshape(shape)


def read_sparse(proto: Any, folder: Path | None, what: str) -> Array:
    """The array of a `SparseTensorProto`, written out."""
    shape = tuple(proto.dims)
    if any(size < 0 for size in shape) or math.prod(shape) > LARGEST_SPARSE:
        raise malformed_model(f"{what} is too large to be written out", shape=shape)
    values = read_tensor(proto.values, folder, f"the values of {what}")
    places = read_tensor(proto.indices, folder, f"the indices of {what}")
    if values.ndim != 1 or places.dtype != np.int64 or len(places) != len(values):
        raise malformed_model(f"{what} has indices that do not fit its values", shape=shape)
    if places.ndim == 2 and places.shape[1] == len(shape):
        inside = bool(np.all((places >= 0) & (places < np.array(shape))))
        places = np.ravel_multi_index(tuple(places.T), shape) if inside and len(places) else places
        places = places.reshape(-1) if inside else np.array([-1])
    if places.ndim != 1 or bool(np.any((places < 0) | (places >= max(math.prod(shape), 1)))):
        raise malformed_model(f"{what} has indices outside of its shape", shape=shape)
    dense = np.zeros(math.prod(shape), values.dtype)
    dense[places] = values
    return dense.reshape(shape)


# --- external data -------------------------------------------------------------------------------


def read_external(proto: Any, folder: Path | None, what: str, size: int) -> bytes:
    """The bytes of a tensor that stand in a file beside the model."""
    entries = {entry.key: entry.value for entry in proto.external_data}
    location = entries.get("location", "")
    if folder is None:
        raise malformed_model(
            f"{what} stands in another file, and the model was not read from one",
            fix="give wf.onnx.load the path of the model",
            location=location,
        )
    path = _path_inside(folder, location, what)
    offset, length = _number(entries, "offset", 0, what), _number(entries, "length", size, what)
    try:
        with open_file("onnx.load", path) as file:
            available = os.fstat(file.fileno()).st_size
            if length != size or offset + length > available:
                raise malformed_model(
                    f"{what} takes {size} bytes, which its external file does not have there",
                    location=location,
                    offset=offset,
                    length=length,
                    file_bytes=available,
                )
            file.seek(offset)
            return file.read(length)
    except OSError as error:
        raise malformed_model(
            f"{what} stands in a file that cannot be read: {error.strerror}",
            fix="put the file of external data beside the model",
            location=location,
        ) from None


def _number(entries: dict[str, str], key: str, default: int, what: str) -> int:
    text = entries.get(key, str(default))
    if not (text.isascii() and text.isdigit() and len(text) <= 18):
        raise malformed_model(f"{what} has an external {key} that is no size", value=text)
    return int(text)


def _path_inside(folder: Path, location: str, what: str) -> Path:
    """The path of external data, which must not lead out of the model's folder."""
    parts = PurePosixPath(location).parts
    leads_out = (
        not location
        or "\0" in location
        or "\\" in location
        or ".." in parts
        or PurePosixPath(location).is_absolute()
        or bool(PureWindowsPath(location).drive)
    )
    if not leads_out:
        path = folder
        for part in parts:
            path = path / part
            try:
                leads_out = leads_out or stat.S_ISLNK(os.lstat(path).st_mode)
            except OSError:
                break  # what is not there is told when it is opened
    if leads_out:
        raise malformed_model(
            f"{what} stands in a file outside of the model's folder, or behind a link",
            fix="put the file of external data beside the model, and name it without a folder",
            location=location,
        )
    return folder.joinpath(*parts)
