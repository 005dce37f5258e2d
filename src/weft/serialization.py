"""Tensors on disk, in the safetensors format: no code is run when a file is read.

A file is eight bytes with the length of a header, the header in JSON, and the raw elements. It is
written beside its place, brought to the disk and then put in place at once: whatever happens, the
path holds the old file or the whole new one. What a file says of itself is checked before memory is
taken for it, so a file that was cut off, changed or made to do harm is refused.

>>> import tempfile, weft as wf
>>> path = tempfile.mkdtemp() + "/model.safetensors"
>>> wf.save({"weight": wf.ones((2, 3)), "steps": 7, "betas": (0.9, 0.99)}, path)
>>> tree = wf.load(path)
>>> tree["weight"].shape, tree["steps"], tree["betas"]
((2, 3), 7, (0.9, 0.99))
"""

from __future__ import annotations

import json
import math
import mmap
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import numpy as np

from weft.core import dtypes
from weft.core.arrays import is_concrete
from weft.core.dtypes import DType
from weft.core.errors import ArgumentError, ArgumentTypeError, UnsupportedError
from weft.core.files import damaged, open_file, parse_json, replacing
from weft.core.trees import map_tree
from weft.ir.tensor import Tensor, host_array, wrap
from weft.ops.composed.creation import asarray
from weft.ops.composed.random_keys import GeneratorState
from weft.ops.placement import to_device
from weft.torch_files import is_torch_file, read_torch_file

__all__ = ["load", "save"]

Array = np.ndarray[Any, Any]
NAMES: dict[DType, str] = {
    dtypes.bool_: "BOOL",
    dtypes.int8: "I8",
    dtypes.int16: "I16",
    dtypes.int32: "I32",
    dtypes.int64: "I64",
    dtypes.uint8: "U8",
    dtypes.uint16: "U16",
    dtypes.uint32: "U32",
    dtypes.uint64: "U64",
    dtypes.float16: "F16",
    dtypes.bfloat16: "BF16",
    dtypes.float32: "F32",
    dtypes.float64: "F64",
}
"""What the format calls the dtypes. Complex ones are written as pairs of real numbers."""
BY_NAME = {name: dtype for dtype, name in NAMES.items()}
LONGEST_HEADER = 1 << 24
"""The most bytes of a header: 16 MiB, which describe over 100,000 tensors."""
DEEPEST = 200
"""How deep a tree may be nested."""
MOST_AXES = 64
TREE = "weft.tree"
COMPLEX = "weft.complex"


class Entry(NamedTuple):
    """One tensor of a file: its dtype, its shape, and where its bytes are."""

    dtype: DType
    shape: tuple[int, ...]
    begin: int
    end: int


def save(
    tree: Any, path: str | os.PathLike[str], metadata: Mapping[str, str] | None = None
) -> None:
    """Write a tree of tensors, numbers and text to a file, all of it or nothing.

    tree: a dict of tensors by name, any nest of dicts, lists and tuples, or what has a
    `state_dict()`. Other programs see the tensors by dotted names. metadata: text by name.

    >>> import os, tempfile, weft as wf
    >>> path = os.path.join(tempfile.mkdtemp(), "state.safetensors")
    >>> wf.save({"step": 3, "weights": [wf.ones(2)]}, path)
    >>> wf.load(path)["step"]
    3
    """
    place = _place("save", path)
    described = tree.state_dict() if hasattr(tree, "state_dict") else tree
    tensors: dict[str, Tensor] = {}
    structure = _describe(described, "", tensors)
    notes = _checked_metadata(metadata)
    if not _is_flat(described):
        notes[TREE] = json.dumps(structure)
    arrays = {name: _array(name, tensor) for name, tensor in tensors.items()}
    if paired := [name for name, array in arrays.items() if array.dtype.kind == "c"]:
        notes[COMPLEX] = json.dumps(paired)
    _write_file(place, {name: _as_real_array(array) for name, array in arrays.items()}, notes)


def load(
    path: str | os.PathLike[str],
    *,
    map_file: bool = False,
    metadata: bool = False,
    device: Any = None,
) -> Any:
    """The tree that a file holds; of a file from elsewhere, its tensors by name.

    Files of `torch.save` (.pt, .pth) are read, too: state dictionaries and what else is tensors,
    numbers and text. No code is run from them, and PyTorch is not needed.

    The tensors are in the host's memory, or on the `device` that is asked for, wherever they were
    when they were saved.

    The file is read at once. `map_file=True` maps it into memory instead, so that only what is used
    is read: for files that nobody writes in place, as the system ends a process that looks where a
    mapped file was cut off. With `metadata=True`, a pair: the tree, and the text that was stored
    with it.

    >>> import os, tempfile, weft as wf
    >>> path = os.path.join(tempfile.mkdtemp(), "weights.safetensors")
    >>> wf.save({"w": wf.tensor([1.0, 2.0])}, path, metadata={"author": "me"})
    >>> tensors, notes = wf.load(path, metadata=True)
    >>> tensors["w"].tolist(), notes["author"]
    ([1.0, 2.0], 'me')
    """
    place = _place("load", path)
    tree, notes = _read_file(place, map_file)
    if device is not None:
        tree = map_tree(lambda x: to_device(x, device) if isinstance(x, Tensor) else x, tree)
    return (tree, notes) if metadata else tree


def _place(op: str, path: Any) -> Path:
    if not isinstance(path, str | os.PathLike):
        raise ArgumentTypeError(
            op,
            "this is no path of a file",
            expected="text, or a pathlib.Path",
            got={"path": path},
            fix='"model.safetensors"',
        )
    return Path(path)


# --- trees ---------------------------------------------------------------------------------------


def _is_flat(tree: Any) -> bool:
    return isinstance(tree, dict) and all(
        isinstance(name, str) and isinstance(value, Tensor) for name, value in tree.items()
    )


def _describe(node: Any, path: str, tensors: dict[str, Tensor], depth: int = 0) -> Any:
    """The structure of a tree as JSON: [kind, content]; its tensors are collected by name."""
    if depth > DEEPEST:
        raise ArgumentError(
            "save",
            f"the tree is nested more than {DEEPEST} deep, or holds itself",
            expected=f"at most {DEEPEST} containers inside each other",
            got={"path": path[:80] + " ..."},
            fix="save a flat dict of tensors by name",
        )
    if isinstance(node, np.ndarray | np.generic):
        node = asarray(node)
    if isinstance(node, Tensor):
        name = _free_name(path or "tensor", tensors)
        tensors[name] = node
        return ["tensor", name]
    if isinstance(node, dict):
        items = [
            [_key(key, path), _describe(v, _join(path, key), tensors, depth + 1)]
            for key, v in node.items()
        ]
        return ["dict", items]
    if isinstance(node, GeneratorState):
        node = tuple(node)  # which `wf.random.set_state` takes as well
    if type(node) in (list, tuple):
        parts = [_describe(v, _join(path, i), tensors, depth + 1) for i, v in enumerate(node)]
        return [type(node).__name__, parts]
    if node is None or type(node) in (bool, int, float, str):
        return ["value", node]
    raise ArgumentTypeError(
        "save",
        "a value that cannot be written to a file",
        expected="tensors, numbers, text, None, and dicts, lists and tuples of them",
        got={path or "tree": node},
        fix="tuple(value), as which it comes back"
        if isinstance(node, tuple)
        else "save a state_dict(), or leave it out",
    )


def _key(key: Any, path: str) -> Any:
    if type(key) not in (str, int):
        raise ArgumentTypeError(
            "save",
            "a name in a dict is neither text nor an integer",
            expected="keys that are str or int",
            got={f"key in {path or 'tree'}": key},
            fix="str(key)",
        )
    return key


def _join(path: str, key: Any) -> str:
    return f"{path}.{key}" if path else str(key)


def _free_name(name: str, taken: Mapping[str, Any]) -> str:
    """The name, marked where another path has it too, as {"a": {"b": ...}, "a.b": ...} does."""
    while name in taken or name == "__metadata__":
        name += "_"
    return name


def _build(structure: Any, tensors: Mapping[str, Tensor], depth: int = 0) -> Any:
    """The tree of a structure that `_describe` wrote, as deep as that allows."""
    kind, content = structure
    if depth > DEEPEST:
        raise ValueError("nested too deep")
    if kind == "tensor":
        return tensors[content]
    if kind == "dict":
        return {key: _build(value, tensors, depth + 1) for key, value in content}
    if kind == "list":
        return [_build(value, tensors, depth + 1) for value in content]
    if kind == "tuple":
        return tuple([_build(value, tensors, depth + 1) for value in content])
    if kind == "value" and (content is None or type(content) in (bool, int, float, str)):
        return content
    raise ValueError(kind)


# --- writing -------------------------------------------------------------------------------------


def _checked_metadata(metadata: Mapping[str, str] | None) -> dict[str, str]:
    if not isinstance(metadata, Mapping | None):
        raise _no_metadata({"metadata": metadata})
    notes: dict[Any, Any] = dict(metadata or {})
    for name, text in notes.items():
        if not isinstance(name, str) or not isinstance(text, str) or name in (TREE, COMPLEX):
            raise _no_metadata({f"metadata[{name!r}]": text})
    return notes


def _no_metadata(got: dict[str, Any]) -> ArgumentTypeError:
    return ArgumentTypeError(
        "save",
        "metadata is text by name",
        expected=f"a dict of str by str, without {TREE} and {COMPLEX}",
        got=got,
        fix="json.dumps(value) makes text of other values",
    )


def _array(name: str, tensor: Tensor) -> Array:
    if not is_concrete(tensor._value):
        raise UnsupportedError(
            "save",
            "a traced tensor has no value to write",
            expected="concrete tensors, outside jit and other transforms",
            got={name: tensor},
            fix="return it from the compiled function, and save the result",
        )
    return host_array(tensor, "save")


def _as_real_array(array: Array) -> Array:
    """Complex numbers as pairs on a new last axis; everything contiguous and little-endian."""
    if array.dtype.kind == "c":
        parts = np.float32 if array.dtype.itemsize == 8 else np.float64
        pairs = np.ascontiguousarray(array).reshape(*array.shape, 1).view(parts)
        return pairs.reshape(*array.shape, 2)
    little = array.dtype.newbyteorder("<") if array.dtype.kind in "iuf" else array.dtype
    return np.ascontiguousarray(array, little).reshape(array.shape)


def _write_file(path: Path, arrays: Mapping[str, Array], notes: Mapping[str, str]) -> None:
    # Wide elements first, so that every tensor is aligned to its elements.
    ordered = sorted(arrays.items(), key=lambda item: (-item[1].dtype.itemsize, item[0]))
    header = _header(ordered, notes)
    if len(header) > LONGEST_HEADER:
        raise ArgumentError(
            "save",
            "there is too much beside the tensors, or too many of them",
            expected=f"names, numbers and text of at most {LONGEST_HEADER} bytes",
            got={"path": str(path), "bytes": len(header)},
            fix="make tensors of long lists: wf.tensor(numbers)",
        )
    with replacing("save", path) as file:
        file.write(header)
        for _, array in ordered:
            file.write(array.reshape(-1).view(np.uint8).data)


def _header(arrays: list[tuple[str, Array]], notes: Mapping[str, str]) -> bytes:
    header: dict[str, Any] = {"__metadata__": dict(notes)} if notes else {}
    end = 0
    for name, array in arrays:
        begin, end = end, end + array.nbytes
        kind = NAMES[dtypes.from_numpy(array.dtype)]
        header[name] = {"dtype": kind, "shape": list(array.shape), "data_offsets": [begin, end]}
    text = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text


# --- reading -------------------------------------------------------------------------------------


def _read_file(path: Path, map_file: bool) -> tuple[Any, dict[str, str]]:
    """The tree of a file, by the kind that it is, and the text that was stored with it."""
    try:
        with open_file("load", path) as file:
            size = os.fstat(file.fileno()).st_size
            if is_torch_file(file):
                return read_torch_file(path, file, size), {}
            tensors, notes = _read_tensors(path, file, size, map_file)
    except OSError as error:
        raise ArgumentError(
            "load",
            f"the file could not be read: {error.strerror or error}",
            expected="a safetensors file",
            got={"path": str(path)},
            fix="check the path",
        ) from None
    except MemoryError:
        raise _damaged_file(path, f"its {size} bytes are more than the memory holds") from None
    try:
        for name in json.loads(notes.get(COMPLEX, "[]")):
            tensors[name] = _join_complex(tensors[name])
        tree = _build(json.loads(notes[TREE]), tensors) if TREE in notes else tensors
    except (KeyError, TypeError, ValueError, AttributeError, RecursionError):
        raise _damaged_file(path, "its own notes about the tree do not fit its tensors") from None
    return tree, {name: text for name, text in notes.items() if name not in (TREE, COMPLEX)}


def _read_tensors(
    path: Path, file: BinaryIO, size: int, map_file: bool
) -> tuple[dict[str, Tensor], dict[str, str]]:
    """The tensors of a file by name, and its notes; all of it checked before memory is taken."""
    entries, notes, start = _read_header(path, file, size)
    if map_file:
        data = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        parts = {name: _map_tensor(data, start, entry) for name, entry in entries.items()}
    else:
        ordered = sorted(entries.items(), key=lambda item: item[1].begin)
        parts = {name: _elements(path, file, entry) for name, entry in ordered}
    return {name: _tensor(parts[name], entry) for name, entry in entries.items()}, notes


def _read_header(
    path: Path, file: BinaryIO, size: int
) -> tuple[dict[str, Entry], dict[str, str], int]:
    """The tensors and notes of a file, and where the elements begin; all of it checked."""
    if size < 8:
        raise _damaged_file(path, f"it has {size} bytes, too few for a header")
    length = int.from_bytes(file.read(8), "little")
    if length > LONGEST_HEADER:
        raise _damaged_file(
            path, f"its header is said to have {length} bytes; is it another format?"
        )
    if 8 + length > size:
        raise _damaged_file(path, f"it ends within its header of {length} bytes")
    text = file.read(length)
    header = parse_json(
        "load", path, text, "a whole safetensors file", "its header", object_pairs_hook=_unique
    )
    if not isinstance(header, dict):
        raise _damaged_file(path, "its header is not a JSON object")
    notes = header.pop("__metadata__", {})
    if not isinstance(notes, dict) or not all(isinstance(text, str) for text in notes.values()):
        raise _damaged_file(path, "its metadata is not text by name")
    entries = {name: _entry(path, name, value) for name, value in header.items()}
    _check_covered(path, entries, size - 8 - length)
    return entries, notes, 8 + length


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    entries = dict(pairs)
    if len(entries) < len(pairs):
        raise ValueError("a name stands twice")
    return entries


def _entry(path: Path, name: str, value: Any) -> Entry:
    try:
        kind, shape, (begin, end) = value["dtype"], value["shape"], value["data_offsets"]
    except (TypeError, KeyError, ValueError):
        raise _damaged_file(
            path, f"the entry of {name!r} has no dtype, shape and offsets"
        ) from None
    if not isinstance(shape, list) or not all(_is_size(n) for n in (*shape, begin, end)):
        raise _damaged_file(path, f"the shape or offsets of {name!r} are not sizes")
    if not isinstance(kind, str) or kind not in BY_NAME:
        raise UnsupportedError(
            "load",
            f"{name!r} has elements of a kind that there is no dtype for",
            expected="one of " + ", ".join(BY_NAME),
            got={"path": str(path), "dtype": kind},
            fix="convert the file with the program that wrote it",
        )
    dtype = BY_NAME[kind]
    if len(shape) > MOST_AXES or not _is_size(math.prod([n or 1 for n in shape]) * dtype.itemsize):
        raise _damaged_file(path, f"{name!r} has a shape that no tensor has")
    if end - begin != math.prod(shape) * dtype.itemsize:
        raise _damaged_file(
            path, f"{name!r} has {end - begin} bytes, which is not its shape's size"
        )
    return Entry(dtype, tuple(shape), begin, end)


def _is_size(value: Any) -> bool:
    return type(value) is int and 0 <= value < 1 << 62


def _check_covered(path: Path, entries: Mapping[str, Entry], size: int) -> None:
    """Every byte belongs to one tensor, as the format asks: nothing is hidden, nothing shared."""
    end = 0
    for name, entry in sorted(entries.items(), key=lambda item: (item[1].begin, item[1].end)):
        if entry.begin != end:
            raise _damaged_file(path, f"the bytes of {name!r} overlap others, or leave a hole")
        end = entry.end
    if end > size:
        raise _damaged_file(path, f"it is cut off: {size} of {end} bytes of elements are there")
    if end < size:
        raise _damaged_file(path, f"{size - end} bytes at its end belong to nothing")


def _elements(path: Path, file: BinaryIO, entry: Entry) -> Array:
    """The bytes of the next tensor, in memory of its own."""
    array = np.empty(entry.end - entry.begin, np.uint8)
    if file.readinto(array.data) != array.size:  # type: ignore[attr-defined]
        raise _damaged_file(path, "it became shorter while it was read")
    return array


def _map_tensor(data: Any, start: int, entry: Entry) -> Array:
    """The bytes of a tensor where they lie in a mapped file."""
    array = np.frombuffer(data, np.uint8, entry.end - entry.begin, start + entry.begin)
    # Kernels want elements where the machine reads them in one go.
    return array.copy() if array.ctypes.data % entry.dtype.itemsize else array


def _tensor(array: Array, entry: Entry) -> Tensor:
    form = entry.dtype.numpy
    stored = form.newbyteorder("<") if form.kind in "iuf" else form
    if form == np.bool_ and array.size and array.max() > 1:
        array = (array != 0).view(np.uint8)
    return wrap(array.view(stored).astype(form, copy=False).reshape(entry.shape))


def _join_complex(pairs: Tensor) -> Tensor:
    array = pairs._value
    wide = np.complex64 if array.dtype == np.float32 else np.complex128
    if array.shape[-1:] != (2,) or array.dtype.kind != "f":
        raise ValueError(array.shape)
    return wrap(np.ascontiguousarray(array).view(wide).reshape(array.shape[:-1]))


def _damaged_file(path: Path, reason: str) -> ArgumentError:
    return damaged(
        "load",
        path,
        reason,
        "a whole safetensors file",
        "take an earlier checkpoint, or copy the file again",
    )
