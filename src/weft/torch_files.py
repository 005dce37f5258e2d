"""Files that `torch.save` wrote: their tensors, read without PyTorch, and no code is run from them.

Such a file is a zip archive of a pickle and of the elements of each storage. A pickle is a program;
here it can name the few constructors in `ALLOWED`, which are functions of this file that check what
they are given, and nothing else. What it makes may hold tensors, numbers, text, None, and dicts,
lists and tuples of them. Sizes are checked against the file before memory is taken.

    tree = wf.load("model.pt")
    net.load_state_dict(tree)
"""

from __future__ import annotations

import io
import pickle
import pickletools
import zipfile
from collections.abc import Callable
from math import prod
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from weft.core import dtypes
from weft.core.dtypes import DType
from weft.core.errors import ArgumentError, UnsupportedError, WeftError
from weft.core.files import damaged
from weft.core.records import frozen
from weft.ir.tensor import wrap

__all__ = ["is_torch_file", "read_torch_file"]

Array = np.ndarray[Any, Any]
ZIP, TAR, OLD_PICKLE = b"PK\x03\x04", b"ustar", b"\x80\x02\x8a\x0a"
"""How an archive begins, what a tar has at byte 257, how files of before version 1.6 begin."""
DEEPEST = 200
STORAGES: dict[str, DType] = {
    "FloatStorage": dtypes.float32,
    "DoubleStorage": dtypes.float64,
    "HalfStorage": dtypes.float16,
    "BFloat16Storage": dtypes.bfloat16,
    "LongStorage": dtypes.int64,
    "IntStorage": dtypes.int32,
    "ShortStorage": dtypes.int16,
    "CharStorage": dtypes.int8,
    "ByteStorage": dtypes.uint8,
    "BoolStorage": dtypes.bool_,
    "ComplexFloatStorage": dtypes.complex64,
    "ComplexDoubleStorage": dtypes.complex128,
}
"""PyTorch's storages, and the dtypes of their elements."""


def is_torch_file(file: BinaryIO) -> bool:
    """Whether a file is one of PyTorch's, of any age; the position stays."""
    start = file.tell()
    head = file.read(262)
    file.seek(start)
    return head.startswith((ZIP, OLD_PICKLE)) or head[257:262] == TAR


def read_torch_file(path: Path, file: BinaryIO, size: int) -> Any:
    """The tree that `torch.save` wrote, with tensors of Weft."""
    if not file.read(4).startswith(ZIP):
        raise UnsupportedError(
            "load",
            "a file in PyTorch's format from before version 1.6",
            expected="a zip archive, as torch.save writes since then",
            got={"path": str(path)},
            fix="write it anew with PyTorch: torch.save(torch.load(path), path)",
        )
    try:
        with zipfile.ZipFile(file) as archive:
            return _read_archive(path, archive, size)
    except WeftError:
        raise
    except (
        zipfile.BadZipFile, pickle.UnpicklingError, EOFError, LookupError, AttributeError,
        ValueError, TypeError, NotImplementedError, OverflowError, RecursionError, AssertionError,
    ) as error:  # fmt: skip
        reason = f"{type(error).__name__}: {str(error)[:80]}; is it another format?"
        raise _damaged_archive(path, reason) from None


def _damaged_archive(path: Path, reason: str) -> ArgumentError:
    return damaged("load", path, reason, "a whole file, as torch.save wrote it")


def _read_archive(path: Path, archive: zipfile.ZipFile, size: int) -> Any:
    entries = archive.infolist()
    names = {entry.filename for entry in entries}
    roots = [name.removesuffix("data.pkl") for name in names if name.endswith("/data.pkl")]
    if len(roots) != 1 or len(names) != len(entries):
        raise _damaged_archive(path, "it is an archive, but not one of torch.save's")
    if any(name.startswith(f"{roots[0]}code/") for name in names):
        raise UnsupportedError(
            "load",
            "a TorchScript program, which is code",
            expected="a state dictionary",
            got={"path": str(path)},
            fix="save the weights in PyTorch: torch.save(module.state_dict(), path)",
        )
    packed = any(entry.compress_type != zipfile.ZIP_STORED for entry in entries)
    if packed or sum(entry.file_size for entry in entries) > size:
        raise _damaged_archive(path, "its parts are packed, or share their bytes")
    order = archive.read(f"{roots[0]}byteorder") if f"{roots[0]}byteorder" in names else b"little"
    reader = _Reader(path, archive, roots[0], order == b"big")
    return _check_tree(path, reader.load(), {}, 0)


class _Sealed:
    """What a pickle may hold and pass on, and cannot change: it has no state to be given."""

    __slots__ = ()

    def __setstate__(self, state: object) -> None:
        raise ValueError("a pickle that changes what it was given")


@frozen
class _Storage(_Sealed):
    """The elements that tensors are views of."""

    elements: Array
    dtype: DType


@frozen
class _Array(_Sealed):
    """A tensor that was read, until the whole tree is known to be data."""

    elements: Array


@frozen
class _Name(_Sealed):
    """What a name in a pickle stands for: an element type, or a constructor to call."""

    meaning: Any

    def __call__(self, *args: Any) -> Any:
        if not callable(self.meaning):
            raise ValueError("a pickle that calls what is no constructor")
        return self.meaning(*args)


class _Dictionary(dict[Any, Any]):
    """Stands for `collections.OrderedDict`; the notes that PyTorch attaches to it are dropped."""

    def __setstate__(self, state: object) -> None:
        """Take no attributes."""


class _Reader(pickle.Unpickler):
    """Follows a pickle that may only name what is in `ALLOWED`."""

    def __init__(self, path: Path, archive: zipfile.ZipFile, root: str, is_big: bool) -> None:
        program = archive.read(f"{root}data.pkl")
        _check_memory(program)
        super().__init__(io.BytesIO(program))
        self.path, self.archive, self.root, self.is_big = path, archive, root, is_big
        self.storages: dict[str, _Storage] = {}

    def find_class(self, module: str, name: str) -> Any:
        """What a name in the pickle stands for: a constructor of this file, or a refusal."""
        full = f"{module}.{name}"
        if full in ALLOWED:
            return _Name(ALLOWED[full])
        if module in ("torch", "torch.storage") and name in STORAGES:
            return _Name(STORAGES[name])
        raise UnsupportedError(
            "load",
            f"the file holds a {full}, which is neither a tensor nor plain data",
            expected="tensors, numbers, text, and dicts, lists and tuples of them",
            got={"path": str(self.path)},
            fix="save the weights in PyTorch: torch.save(model.state_dict(), path)",
        )

    def persistent_load(self, key: Any) -> _Storage:
        """The elements of a storage: ("storage", its class, its name, its device, its length)."""
        kind, named, name, _, count = key
        dtype = named.meaning if isinstance(named, _Name) else None
        if kind != "storage" or not isinstance(dtype, DType) or type(name) is not str:
            raise ValueError("a storage without a name and an element type")
        if name not in self.storages:
            data = self.archive.read(f"{self.root}data/{name}")
            elements = np.frombuffer(data, dtype.numpy)
            self.storages[name] = _Storage(elements.byteswap() if self.is_big else elements, dtype)
        storage = self.storages[name]
        if storage.dtype is not dtype or len(storage.elements) != count:
            raise ValueError(f"the storage {name} has another length or element type than is said")
        return storage


def _check_memory(program: bytes) -> None:
    """Refuse a pickle that asks for more places to remember values at than it can have values."""
    for opcode, argument, _ in pickletools.genops(program):
        if "PUT" in opcode.name and int(argument or 0) > len(program):
            raise ValueError("a pickle that remembers more than it holds")


def _array(storage: Any, offset: Any, shape: Any, strides: Any, *_: Any) -> _Array:
    """A view of a storage, with memory of its own."""
    numbers = (offset, *shape, *strides)
    fits = isinstance(storage, _Storage) and len(shape) == len(strides) <= 64
    if not fits or not all(type(each) is int and each >= 0 for each in numbers):
        raise ValueError("a tensor that is no view of a storage")
    elements = storage.elements
    if prod(shape) == 0:
        return _Array(np.empty(shape, elements.dtype))
    last = offset + sum((dim - 1) * step for dim, step in zip(shape, strides, strict=True))
    if last >= len(elements) or prod(shape) > len(elements):
        raise ValueError("a tensor that reaches beyond its storage")
    width = elements.itemsize
    view = np.lib.stride_tricks.as_strided(
        elements[offset:], shape, [step * width for step in strides], writeable=False
    )
    return _Array(np.array(view, order="C"))


def _parameter(tensor: Any, *_: Any) -> Any:
    """A parameter is its tensor."""
    return tensor


ALLOWED: dict[str, Callable[..., Any]] = {
    "collections.OrderedDict": _Dictionary,
    "torch._utils._rebuild_tensor_v2": _array,
    "torch._utils._rebuild_parameter": _parameter,
    "torch._utils._rebuild_parameter_with_state": _parameter,
    "torch.Size": tuple,
}
"""What a pickle may name, and what is called in its place."""


def _check_tree(path: Path, node: Any, seen: dict[int, Any], depth: int) -> Any:
    """The tree in plain containers; what is no data is refused. Shared parts stay shared."""
    if depth > DEEPEST:
        raise _damaged_archive(path, f"it is nested more than {DEEPEST} deep, or holds itself")
    if node is None or type(node) in (bool, int, float, str):
        return node
    if id(node) in seen:
        return seen[id(node)]
    if isinstance(node, _Array):
        plain: Any = wrap(node.elements)
    elif isinstance(node, dict) and all(type(key) in (str, int) for key in node):
        plain = {key: _check_tree(path, each, seen, depth + 1) for key, each in node.items()}
    elif type(node) in (list, tuple):
        plain = type(node)([_check_tree(path, each, seen, depth + 1) for each in node])
    else:
        raise UnsupportedError(
            "load",
            f"the file holds a {type(node).__name__}, which is neither a tensor nor plain data",
            expected="tensors, numbers, text, and dicts, lists and tuples of them",
            got={"path": str(path)},
            fix="save a state dictionary in PyTorch: torch.save(model.state_dict(), path)",
        )
    seen[id(node)] = plain
    return plain
