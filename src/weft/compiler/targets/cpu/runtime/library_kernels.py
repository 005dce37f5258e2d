"""Kernels of shared libraries: how programs and eager calls run functions written in C.

A native function with a kernel's signature lays out what include/weft_kernel.h promises (buffers
with shapes and strides, attributes, a context) on the stack and calls the library's function: no
Python runs between the program and it. What goes wrong is noted in a message, which the program's
error is made of.

>>> from weft.compiler.targets.cpu.runtime.library_kernels import attribute_rows
>>> rows, data = attribute_rows([("axes", 0, 2, bytes(16))])
>>> rows, data.nbytes
([(0, 8, 2, 0)], 32)
"""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Callable, Mapping, Sequence
from functools import cache, lru_cache
from typing import Any

import numpy as np

from weft.compiler.targets.cpu.cache.kernels import text_addresses
from weft.compiler.targets.cpu.cache.symbols import finder, remember_address
from weft.compiler.targets.cpu.runtime.thread_pool import thread_pool
from weft.compiler.targets.llvm.ir_builder import (
    KERNEL,
    NULL,
    IRBuilder,
    Struct,
    module_text,
)
from weft.core.dtypes import DType, from_numpy
from weft.core.errors import ArgumentError, DTypeError
from weft.core.locations import Location
from weft.core.records import frozen
from weft.core.types import TensorType
from weft.runtime.libraries import ABI, Attribute, dtype_number, find_again

Array = np.ndarray[Any, Any]
Shaped = tuple[DType, tuple[int, ...]]
Types = tuple[TensorType, ...]
INTEGERS, REALS, TEXT = range(3)
"""The kinds of attributes, as in the header."""
MESSAGE = 512
"""The bytes of a message: whether there is one, what the kernel returned, and text."""
_TEXT_AT = 16

# The structs of weft_kernel.h.
_BUFFER = Struct("ptr data, i32 dtype, i32 rank, ptr shape, ptr strides")
_ATTRIBUTE = Struct("ptr name, ptr data, i64 count, i64 kind")
_CONTEXT = Struct(
    "i32 abi, i32 attribute_count, ptr attributes, ptr parallel_for, ptr fail, ptr pool,"
    "ptr message, ptr reserved2, ptr reserved3"
)
_CONTEXT_BYTES = 64

# The table of a call: its head, a row for each buffer, a row for each attribute, then numbers.
_TABLE = Struct("ptr kernel, ptr pool, i64 operands, i64 results, i64 attributes")
_HEAD = len(_TABLE.names)
_BUFFER_ROW = Struct("i64 dtype, i64 rank, i64 shape, i64 strides")
_ATTRIBUTE_ROW = Struct("i64 name, i64 data, i64 count, i64 kind")


def _run_body() -> IRBuilder:
    """`run_body(user, body, begin, end)`: one stretch of a library's range, as a kernel."""
    out = IRBuilder(
        "run_body", ("ptr %user", "ptr %body", "i64 %begin", "i64 %end"), may_unwind=True
    )
    user, body, begin, end = out.parameters
    out.call(body, user, begin, end)
    return out


def _parallel_for(run_body: IRBuilder) -> IRBuilder:
    """`parallel_for(context, extent, grain, body, user)`, as the header promises."""
    given = ("ptr %context", "i64 %extent", "i64 %grain", "ptr %body", "ptr %user")
    out = IRBuilder("parallel_for", given, may_unwind=True)
    context, extent, grain, body, user = out.parameters
    pool = out.record(_CONTEXT, context)["pool"]
    out.call(pool, run_body.symbol, user, body, extent, grain)
    return out


def _fail() -> IRBuilder:
    """`fail(context, text)`, as the header promises: the first message is kept, cut to its room."""
    out = IRBuilder("fail", ("ptr %context", "ptr %text"), result="i32", may_unwind=True)
    context, text = out.parameters
    message = out.record(_CONTEXT, context)["message"]
    _, is_first = out.exchange(message, 0, 1, "acq_rel")
    with out.when(out.combine("and", is_first, out.test("ne", text, NULL))):
        target = out.at("i8", message, _TEXT_AT)
        with out.loop(0, MESSAGE - _TEXT_AT - 1) as i:
            letter = out.load("i8", out.at("i8", text, i))
            out.store(letter, out.at("i8", target, i))
            out.leave_unless(out.test("ne", letter, 0))
    out.give(1)
    return out


def _foreign_call(parallel_for: IRBuilder, fail: IRBuilder) -> IRBuilder:
    """`foreign(...)`: call a library's kernel, with what the header promises on the stack.

    Behind the operands and results are the attributes' bytes, the error slot and the message.
    """
    out = IRBuilder("foreign", KERNEL, public=True, may_unwind=True)
    buffers, table, _, _ = out.parameters
    kernel, pool, operands, results, attribute_count = out.record(_TABLE, table).all(*_TABLE.names)
    count = out.add(operands, results)
    slots = out.room(_BUFFER.text, out.add(count, 1), align=16)
    attributes = out.room(_ATTRIBUTE.text, out.add(attribute_count, 1), align=16)
    context = out.record(_CONTEXT, out.room(_CONTEXT.text, align=16))
    behind = out.at("ptr", buffers, count)
    data, error, message = (out.pointer(behind, place) for place in range(3))
    out.clear(message, MESSAGE)
    rows = out.at("i64", table, _HEAD)
    with out.loop(0, count) as i:
        row, buffer = out.record(_BUFFER_ROW, rows, i), out.record(_BUFFER, slots, i)
        buffer["data"] = out.pointer(buffers, i)
        for name in ("dtype", "rank"):
            buffer[name] = out.convert("trunc", row[name], "i32")
        for name in ("shape", "strides"):
            buffer[name] = out.at("i64", table, row[name])
    attribute_rows = out.at(_BUFFER_ROW.text, rows, count)
    with out.loop(0, attribute_count) as i:
        row = out.record(_ATTRIBUTE_ROW, attribute_rows, i)
        attribute = out.record(_ATTRIBUTE, attributes, i)
        for name in ("name", "data"):
            attribute[name] = out.at("i8", data, row[name])
        for name in ("count", "kind"):
            attribute[name] = row[name]
    out.clear(context.pointer, _CONTEXT_BYTES)
    context["abi"] = ABI
    context["attribute_count"] = out.convert("trunc", attribute_count, "i32")
    context["attributes"] = attributes
    context["parallel_for"], context["fail"] = parallel_for.symbol, fail.symbol
    context["pool"], context["message"] = pool, message
    written = out.at(_BUFFER.text, slots, operands)
    code = out.call(kernel, context.pointer, slots, written, result="i32")
    noted, wide = out.load_atomic(message, "acquire"), out.convert("sext", code, "i64")
    out.store(wide, out.at("i64", message, 1))
    with out.when(out.test("ne", out.combine("or", noted, wide), 0)):
        out.store(1, error, "i32")
    return out


_Kernel = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64)


def source() -> str:
    """The text of the module."""
    run_body, fail = _run_body(), _fail()
    parallel_for = _parallel_for(run_body)
    return module_text(run_body, parallel_for, fail, _foreign_call(parallel_for, fail))


@cache
def foreign_address() -> int:
    """The address of the function that calls a library's."""
    return text_addresses(source(), ["foreign"])["foreign"]


finder("library", find_again)
finder("foreign", foreign_address)


@frozen(eq=False)
class Native:
    """The functions of a library that compute one primitive, by the dtypes of its operands.

    A key of one dtype stands for operands that all have it. attributes: the kind of each.
    reference: NumPy code that gives the same, where there is some.
    """

    name: str
    kernels: Mapping[tuple[DType, ...], int]
    attributes: Mapping[str, int]
    reference: Callable[..., Any] | None = None

    def kernel(self, types: Sequence[TensorType]) -> int:
        """The function for operands of these types; refused where there is none."""
        dtypes = tuple(kind.dtype for kind in types)
        found = self.kernels.get(dtypes)
        if found is None and len(set(dtypes)) == 1:
            found = self.kernels.get(dtypes[:1])
        if found is None:
            raise self._dtype_error(types)
        return found

    def _dtype_error(self, types: Sequence[TensorType]) -> DTypeError:
        wanted = [", ".join(dtype.name for dtype in key) for key in self.kernels]
        return DTypeError(
            self.name,
            "there is no kernel for these dtypes",
            expected=" or ".join(wanted),
            got={f"x{i + 1}": kind for i, kind in enumerate(types)},
            fix=f'convert first: x.astype("{next(iter(self.kernels))[0].name}")',
        )

    def values(self, params: Mapping[str, Any]) -> list[Attribute]:
        """The attributes of a call as bytes."""
        return [
            (name, kind, *_pack_attribute(params[name], kind))
            for name, kind in self.attributes.items()
        ]

    def run(
        self, arrays: Sequence[Array], kinds: Sequence[TensorType], params: Mapping[str, Any]
    ) -> list[Array]:
        """The results for some operands, of given types, computed now."""
        operands = [np.asarray(array, order="C") for array in arrays]
        results = [np.empty(kind.shape, kind.dtype.numpy) for kind in kinds]
        types = tuple(_type_of(array) for array in operands)
        table, data = _laid_out(self, types, tuple(kinds), tuple(self.values(params)))
        report = np.zeros(MESSAGE + 8, np.uint8)
        message, error = report[:MESSAGE], report[MESSAGE:]
        held = (*operands, *results, data, error, message)
        places = np.array([array.__array_interface__["data"][0] for array in held], np.int64)
        _foreign_kernel()(places.ctypes.data, table.ctypes.data, 0, 1)
        if error.any():
            raise failure(self.name, message, types)
        return results


@cache
def _foreign_kernel() -> Callable[[int, int, int, int], None]:
    return _Kernel(foreign_address())


@lru_cache(maxsize=1024)
def _laid_out(
    native: Native, types: Types, kinds: Types, attributes: tuple[Attribute, ...]
) -> tuple[Array, Array]:
    """The table and the attributes of eager calls on operands of some types."""
    call = Layout(native, native.kernel(types), len(types), attributes)
    numbers = call.call_table([_shaped_type(kind) for kind in (*types, *kinds)])
    return np.array(numbers, np.int64), call.data


class Layout:
    """What one call of a library's function is given beside its buffers."""

    def __init__(
        self, native: Native, kernel: int, operands: int, attributes: Sequence[Attribute]
    ) -> None:
        self.native, self.kernel, self.operands = native, kernel, operands
        self.rows, self.data = attribute_rows(attributes)
        self.message = np.zeros(MESSAGE, np.uint8)

    def call_table(self, buffers: Sequence[Shaped]) -> list[int]:
        """The table that the native function is given for buffers of these dtypes and shapes."""
        results = len(buffers) - self.operands
        head = [self.kernel, thread_pool().address, self.operands, results, len(self.rows)]
        start = _HEAD + 4 * (len(buffers) + len(self.rows))
        rows: list[int] = []
        numbers: list[int] = []
        for dtype, shape in buffers:
            place = start + len(numbers)
            rows += [dtype_number(dtype), len(shape), place, place + len(shape)]
            numbers += [*shape, *_strides(shape)]
        return [*head, *rows, *[word for row in self.rows for word in row], *numbers]


def failure(
    name: str, message: Array, types: Sequence[TensorType], at: Location | None = None
) -> ArgumentError:
    """The error that a message tells of, in the kernel's words."""
    text = message[_TEXT_AT:].tobytes().partition(b"\0")[0].decode(errors="replace")
    code = int(message[8:_TEXT_AT].view(np.int64)[0])
    return ArgumentError(
        name,
        text or f"the kernel returned {code}",
        expected="operands and attributes that the kernel takes",
        got={f"x{i + 1}": kind for i, kind in enumerate(types)},
        fix=f"see what the kernel of {name} checks",
        note="reported by the kernel",
        at=at,
    )


def attribute_rows(
    attributes: Sequence[Attribute],
) -> tuple[list[tuple[int, int, int, int]], Array]:
    """For each attribute where name and values begin, how many they are, of which kind; and all."""
    data, rows = bytearray(), []
    for name, kind, count, values in attributes:
        begin = _append_part(data, name.encode() + b"\0")
        rows.append((begin, _append_part(data, values + b"\0" * 8), count, kind))
    return rows, np.frombuffer(bytes(data or bytes(8)), np.uint8).copy()


def _append_part(data: bytearray, part: bytes) -> int:
    """Where a part begins that is added at a multiple of eight bytes."""
    begin = len(data)
    data += part + bytes(-len(part) % 8)
    return begin


def _pack_attribute(value: Any, kind: int) -> tuple[int, bytes]:
    """How many values an attribute has, and the values."""
    if kind == TEXT:
        text = value.encode()
        return len(text), text
    values = value if isinstance(value, tuple) else (value,)
    letter = "d" if kind == REALS else "q"
    return len(values), struct.pack(f"={len(values)}{letter}", *values)


def _strides(shape: tuple[int, ...]) -> list[int]:
    strides = [1]
    for dim in reversed(shape[1:]):
        strides.append(strides[-1] * dim)
    return strides[::-1][: len(shape)] if shape else []


def _shaped_type(kind: TensorType) -> Shaped:
    return kind.dtype, tuple(int(dim) for dim in kind.shape)


def _type_of(array: Array) -> TensorType:
    return TensorType(from_numpy(array.dtype), array.shape)


def kernel_of_library(address: int, path: str, digest: str, symbol: str) -> int:
    """The address, which stored programs find again in the same library."""
    return remember_address(address, "library", path, digest, symbol)
