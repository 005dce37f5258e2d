"""Taking in what the rest of Python holds: numbers, nested lists, arrays, buffers, DLPack.

>>> from weft.ops.composed.ingestion import ingest
>>> ingest("asarray", [1.5, 2.5], None)[0].type
f32[2]
"""

from __future__ import annotations

import array as arrays
from collections.abc import Iterator, Sequence
from typing import Any, NoReturn

import numpy as np

from weft.core import dtypes
from weft.core.arrays import EXCHANGES, is_concrete, is_host
from weft.core.devices import as_device
from weft.core.dtypes import DType
from weft.core.errors import (
    ArgumentError,
    ArgumentTypeError,
    DeviceError,
    DTypeError,
    OutOfMemoryError,
    ShapeError,
    WeftError,
    short_repr,
)
from weft.core.host_memory import fits_memory
from weft.core.trees import endless_tree_error
from weft.ir.dispatch import apply
from weft.ir.tensor import Tensor, grad_mode, wrap
from weft.ops.dlpack import CUDA_KIND, import_array
from weft.ops.movement import concatenate, reshape
from weft.ops.operands import array_tensor, convert_to, promote_operands, span
from weft.ops.placement import to_device

__all__ = ["from_dlpack"]

Array = np.ndarray[Any, Any]
Ingested = tuple[Tensor, bool]
"""A tensor, and whether it shares memory with what it was made of."""
_BUFFERS = (bytes, bytearray, memoryview, arrays.array)
_RANGE_BYTES = 8
"""Bytes of each number of a range, before they are converted."""
_CPU_KINDS = (1, 3, 13)
"""DLPack's numbers of devices whose memory the CPU reads: its own, and pinned memory."""


def ingest(op: str, obj: Any, dtype: DType | None) -> Ingested:
    """A tensor of what was given, in the dtype asked for or the one that fits it."""
    if isinstance(obj, Tensor):
        return convert_to(obj, dtype or obj.dtype), dtype is None or obj.dtype is dtype
    if type(obj) in (bool, int, float, complex):
        return wrap(_array_of_numbers(op, obj, dtype)), False
    if isinstance(obj, (list, tuple, range)):
        if isinstance(obj, range) and not fits_memory(_RANGE_BYTES * _length(obj)):
            raise _too_large(op, obj)
        try:
            return _of_sequence(op, obj, dtype), False
        except RecursionError:
            raise endless_tree_error(op, obj) from None
        except MemoryError:
            raise _too_large(op, obj) from None
    elsewhere = obj if is_concrete(obj) and not is_host(obj) else _device_array(op, obj)
    if elsewhere is not None:
        tensor = wrap(elsewhere)
        return convert_to(tensor, dtype or tensor.dtype), dtype is None or tensor.dtype is dtype
    return _of_array(op, _foreign_array(op, obj), dtype)


def _length(numbers: range) -> int:
    """How many numbers a range has; `len` refuses those beyond 64 bits."""
    return max(0, -((numbers.start - numbers.stop) // numbers.step))


def _device_array(op: str, obj: Any) -> Any:
    """The array of an object in the memory of a card; None for all that the host reads."""
    if isinstance(obj, (np.ndarray, np.generic, *_BUFFERS)):
        return None
    place = _dlpack_device(obj) if hasattr(obj, "__dlpack__") else None
    is_described = place is None and hasattr(obj, "__cuda_array_interface__")
    if not is_described and (place is None or place[0] != CUDA_KIND):
        return None
    ordinal = 0 if place is None else place[1]
    try:
        as_device(f"cuda:{ordinal}")  # the first card that is found brings the exchange
    except DeviceError:  # without a card of our own: the host's refusal names the fix
        return None
    exchange = EXCHANGES["cuda"]
    try:
        if is_described:
            return exchange.import_interface(obj)
        return exchange.import_array(obj, ordinal)
    except (BufferError, RuntimeError, TypeError, ValueError) as error:
        raise _not_handed_out(op, obj, error, "x.detach().contiguous()") from None


def _too_large(op: str, obj: Any) -> OutOfMemoryError:
    return OutOfMemoryError(
        op,
        "there is not enough memory for a tensor of this",
        expected="elements that fit into the memory",
        got={"obj": obj},
        fix="make it in parts",
    )


# --- arrays of other libraries -----------------------------------------------------------------


def _foreign_array(op: str, obj: Any) -> Array:
    """The array behind an object of another library, on its own memory where that can be."""
    if isinstance(obj, (np.ndarray, np.generic)):
        return np.asarray(obj)
    if isinstance(obj, _BUFFERS):
        return np.asarray(memoryview(obj))
    if hasattr(obj, "__dlpack__"):
        return _through_dlpack(op, obj)
    if hasattr(obj, "__array__") or hasattr(obj, "__array_interface__"):
        try:
            return np.asarray(obj)
        except (ValueError, TypeError) as error:
            raise DTypeError(
                op,
                f"{type(obj).__name__} does not give an array of itself",
                expected="an object whose __array__ returns a NumPy array",
                got={"obj": type(obj).__name__},
                note=str(error),
                fix="list the elements: wf.tensor([1.0, 2.0])",
            ) from error
    raise ArgumentTypeError(
        op,
        f"no tensor can be made of {type(obj).__name__}",
        expected="a tensor, an array, a number, or nested lists of these",
        got={"obj": obj},
        fix="list the elements: wf.tensor([1.0, 2.0])",
    )


def _of_array(op: str, array: Array, dtype: DType | None) -> Ingested:
    tensor = array_tensor(op, array)
    value = tensor._value
    if dtype is None or tensor.dtype is dtype:
        return tensor, np.may_share_memory(value, array) or array.size == 0
    if dtype.is_integer and tensor.dtype.is_inexact and not np.isfinite(value).all():
        raise _range_error(op, array, dtype)
    return convert_to(tensor, dtype), False


def from_dlpack(x: Any, /, *, device: Any = None, copy: bool | None = None) -> Tensor:
    """A tensor on the memory of another library's array, through DLPack.

    >>> import numpy as np, weft as wf
    >>> wf.from_dlpack(np.array([1.0, 2.0])).dtype
    weft.float64
    """
    taken = _taken_through_dlpack(x, copy)
    return taken if device is None else to_device(taken, device)


def _taken_through_dlpack(x: Any, copy: bool | None) -> Tensor:
    if isinstance(x, Tensor):
        value = x._value
        taken = value.copy() if copy and is_host(value) else value
        return wrap(taken, x._node if grad_mode.enabled else None)
    if not hasattr(x, "__dlpack__"):
        raise ArgumentTypeError(
            "from_dlpack",
            f"{type(x).__name__} does not speak DLPack",
            expected="an object with __dlpack__ and __dlpack_device__",
            got={"x": x},
            fix="use wf.asarray(x)",
        )
    elsewhere = _device_array("from_dlpack", x)
    if elsewhere is not None:
        return wrap(elsewhere.copy() if copy else elsewhere)
    array = _through_dlpack("from_dlpack", x)
    return array_tensor("from_dlpack", array.copy() if copy else array)


def _through_dlpack(op: str, obj: Any) -> Array:
    device = _dlpack_device(obj)
    if device is None or device[0] not in _CPU_KINDS:
        raise DeviceError(
            op,
            "the array is on a device that the CPU cannot reach",
            expected="memory of the CPU",
            got={"x": type(obj).__name__, "device": device},
            fix="copy it to the CPU first, for example x.cpu()",
        )
    try:
        return import_array(obj)
    except (BufferError, RuntimeError, TypeError, ValueError) as error:
        raise _not_handed_out(op, obj, error, "x.detach().float()") from None


def _not_handed_out(op: str, obj: Any, error: Exception, example: str) -> DTypeError:
    return DTypeError(
        op,
        "the other library does not hand this array out",
        expected="an array whose dtype NumPy has, with no derivative recorded",
        got={"x": obj},
        note=str(error).splitlines()[0] if str(error) else "",
        fix=f"convert or detach it first, for example {example}",
    )


def _dlpack_device(obj: Any) -> tuple[int, int] | None:
    """Kind and number of an array's device; None where DLPack has no name for it."""
    try:
        kind, number = obj.__dlpack_device__()
    except (BufferError, RuntimeError, TypeError, ValueError):
        return None
    return int(kind), int(number)


# --- numbers and lists -------------------------------------------------------------------------


def _of_sequence(op: str, obj: Any, dtype: DType | None) -> Tensor:
    tensors = [leaf for leaf in _leaves(obj) if isinstance(leaf, Tensor)]
    if not tensors:
        return wrap(_array_of_numbers(op, obj, dtype))
    stacked_tensor = _stack_nested(op, obj, "obj", _floats_dtype(tensors, dtype))
    return stacked_tensor if dtype is None else convert_to(stacked_tensor, dtype)


def _floats_dtype(tensors: Sequence[Tensor], dtype: DType | None) -> DType | None:
    """The dtype of floats among tensors: that of the result where it has more than the default."""
    given = [x.dtype for x in tensors] if dtype is None else [dtype]
    is_wide = any(d in (dtypes.float64, dtypes.complex128) for d in given)
    return dtypes.float64 if is_wide else None


def _leaves(obj: Any) -> Iterator[Any]:
    if isinstance(obj, (list, tuple)):
        for each in obj:
            if isinstance(each, (list, tuple)):
                yield from _leaves(each)
            else:
                yield each


def _stack_nested(op: str, obj: Any, path: str, floats: DType | None) -> Tensor:
    """Nested lists with tensors among their leaves, joined along new axes."""
    if not isinstance(obj, (list, tuple)):
        wide = {float: floats, complex: floats and dtypes.complex128}.get(type(obj))
        return ingest(op, obj, wide)[0]
    parts = [_stack_nested(op, each, f"{path}[{i}]", floats) for i, each in enumerate(obj)]
    for i, part in enumerate(parts):
        if part.shape != parts[0].shape:
            _refuse_ragged(op, f"{path}[{i}]", part.shape, parts[0].shape)
    parts = list(promote_operands(op, parts))
    rows = [apply(reshape, part, shape=(1, *part.shape)) for part in parts]
    return apply(concatenate, *rows, axis=0)


def _array_of_numbers(op: str, obj: Any, dtype: DType | None) -> Array:
    """Python numbers by NumPy, with our default dtypes, and our errors in place of NumPy's."""
    try:
        with np.errstate(all="ignore"):
            array = np.array(obj, None if dtype is None else dtype.numpy)
    except (ValueError, TypeError, OverflowError) as error:
        _refuse(op, obj, dtype, error)
    return array if dtype is not None else _default(op, obj, array)


def _default(op: str, obj: Any, found: Array) -> Array:
    """An array of Python numbers in their default dtype; arrays in lists keep theirs."""
    kind = found.dtype.kind
    if kind in "OUSMmV" and found.dtype != dtypes.bfloat16.numpy:
        _refuse(op, obj, None, None)
    first = next(_leaves([obj]), None) if found.size else None
    if isinstance(first, (np.ndarray, np.generic)):
        return found
    whole = kind == "u" or (kind == "f" and found.size and np.abs(found).max() >= 2.0**63)
    if whole and all(type(leaf) in (int, bool) for leaf in _leaves([obj])):
        raise _range_error(op, obj, dtypes.DEFAULT_INTEGER)
    default = {"f": dtypes.DEFAULT_FLOAT, "c": dtypes.DEFAULT_COMPLEX}.get(kind)
    with np.errstate(all="ignore"):
        return found if default is None else found.astype(default.numpy)


def _refuse(op: str, obj: Any, dtype: DType | None, error: Exception | None) -> NoReturn:
    """The error for a list that NumPy makes no array of: ragged, not numbers, or too large."""
    _check_ragged(op, obj, "obj")
    strange = [leaf for leaf in _leaves([obj]) if not _is_number(leaf)]
    if strange:
        raise ArgumentTypeError(
            op,
            f"{type(strange[0]).__name__} is not a number",
            expected="numbers, arrays, or nested lists of these",
            got={"element": short_repr(strange[0])},
            fix="leave it out, or encode it as a number first",
        )
    raise _range_error(op, obj, dtype or dtypes.DEFAULT_INTEGER) from error


def _is_number(value: Any) -> bool:
    return isinstance(value, (bool, int, float, complex, np.generic, np.ndarray, range)) or hasattr(
        value, "__array__"
    )


def _check_ragged(op: str, obj: Any, path: str) -> tuple[int, ...]:
    """The shape of nested lists, or the error that names the first odd one."""
    if not isinstance(obj, (list, tuple)):
        return tuple(getattr(obj, "shape", ()))
    shapes = [_check_ragged(op, each, f"{path}[{i}]") for i, each in enumerate(obj)]
    for i, shape in enumerate(shapes):
        if shape != shapes[0]:
            _refuse_ragged(op, f"{path}[{i}]", shape, shapes[0])
    return (len(obj), *shapes[0]) if shapes else (0,)


def _refuse_ragged(op: str, path: str, shape: Any, first: Any) -> NoReturn:
    raise ShapeError(
        op,
        "the nested lists are ragged",
        expected=f"parts of shape {list(first)} everywhere, as the first",
        got={path: f"shape {list(shape)}"},
        fix=f"give {path} the shape {list(first)}, or pad the lists to equal lengths",
    )


def _range_error(op: str, obj: Any, dtype: DType) -> WeftError:
    kind = DTypeError if dtype.is_integer else ArgumentError
    return kind(
        op,
        f"a number does not fit {dtype.name}",
        expected=f"numbers that {dtype.name} can hold"
        + (f": {span(dtype)}" if dtype.is_integer else ""),
        got={"obj": obj, "dtype": dtype},
        fix='choose a wider dtype: dtype="int64" or dtype="float32"'
        if dtype.is_integer
        else "take the real parts",
    )
