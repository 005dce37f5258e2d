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
from dataclasses import dataclass
from functools import cache, lru_cache
from typing import Any

import numpy as np

from weft.compiler.targets.cpu.cache.kernels import text_addresses
from weft.compiler.targets.cpu.cache.symbols import finder, remembered
from weft.compiler.targets.cpu.runtime.thread_pool import thread_pool
from weft.core.dtypes import DType, from_numpy
from weft.core.errors import ArgumentError, DTypeError
from weft.core.locations import Location
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
_HEAD = 5
"""Words of a table before the rows: kernel, pool, operands, results, attributes."""

_SOURCE = f"""
%Buffer = type {{ ptr, i32, i32, ptr, ptr }}
%Attribute = type {{ ptr, ptr, i64, i64 }}
%Context = type {{ i32, i32, ptr, ptr, ptr, ptr, ptr, ptr, ptr }}

define internal void @run_body(ptr %user, ptr %body, i64 %begin, i64 %end) {{
  call void %body(ptr %user, i64 %begin, i64 %end)
  ret void
}}

define internal void @parallel_for(
    ptr %context, i64 %extent, i64 %grain, ptr %body, ptr %user) {{
  %pool.at = getelementptr %Context, ptr %context, i64 0, i32 5
  %pool = load ptr, ptr %pool.at
  call void %pool(ptr @run_body, ptr %user, ptr %body, i64 %extent, i64 %grain)
  ret void
}}

define internal i32 @fail(ptr %context, ptr %text) {{
entry:
  %message.at = getelementptr %Context, ptr %context, i64 0, i32 6
  %message = load ptr, ptr %message.at
  %pair = cmpxchg ptr %message, i64 0, i64 1 acq_rel monotonic
  %is_first = extractvalue {{ i64, i1 }} %pair, 1
  %is_text = icmp ne ptr %text, null
  %is_copied = and i1 %is_first, %is_text
  br i1 %is_copied, label %copy, label %done
copy:
  %i = phi i64 [0, %entry], [%next, %go]
  %from = getelementptr i8, ptr %text, i64 %i
  %letter = load i8, ptr %from
  %place = add i64 %i, {_TEXT_AT}
  %to = getelementptr i8, ptr %message, i64 %place
  store i8 %letter, ptr %to
  %next = add i64 %i, 1
  %is_end = icmp eq i8 %letter, 0
  br i1 %is_end, label %done, label %go
go:
  %is_room = icmp slt i64 %next, {MESSAGE - _TEXT_AT - 1}
  br i1 %is_room, label %copy, label %done
done:
  ret i32 1
}}

define void @"weft.foreign"(ptr %buffers, ptr %table, i64 %begin, i64 %end) {{
entry:
  %kernel = load ptr, ptr %table
  %pool.word = getelementptr i64, ptr %table, i64 1
  %pool = load ptr, ptr %pool.word
  %operands.word = getelementptr i64, ptr %table, i64 2
  %operands = load i64, ptr %operands.word
  %results.word = getelementptr i64, ptr %table, i64 3
  %results = load i64, ptr %results.word
  %attributes.word = getelementptr i64, ptr %table, i64 4
  %attributes = load i64, ptr %attributes.word
  %count = add i64 %operands, %results
  %room = add i64 %count, 1
  %slots = alloca %Buffer, i64 %room, align 16
  %many = add i64 %attributes, 1
  %rows = alloca %Attribute, i64 %many, align 16
  %context = alloca %Context, align 16
  %data.at = getelementptr ptr, ptr %buffers, i64 %count
  %data = load ptr, ptr %data.at
  %error.at = getelementptr ptr, ptr %data.at, i64 1
  %error = load ptr, ptr %error.at
  %message.at = getelementptr ptr, ptr %data.at, i64 2
  %message = load ptr, ptr %message.at
  call void @llvm.memset.p0.i64(ptr %message, i8 0, i64 {MESSAGE}, i1 false)
  br label %buffer

buffer:
  %b = phi i64 [0, %entry], [%b.next, %describe]
  %b.more = icmp slt i64 %b, %count
  br i1 %b.more, label %describe, label %attribute

describe:
  %b.words = mul i64 %b, 4
  %b.start = add i64 %b.words, {_HEAD}
  %b.row = getelementptr i64, ptr %table, i64 %b.start
  %b.dtype = load i64, ptr %b.row
  %b.rank.at = getelementptr i64, ptr %b.row, i64 1
  %b.rank = load i64, ptr %b.rank.at
  %b.shape.at = getelementptr i64, ptr %b.row, i64 2
  %b.shape = load i64, ptr %b.shape.at
  %b.strides.at = getelementptr i64, ptr %b.row, i64 3
  %b.strides = load i64, ptr %b.strides.at
  %b.from = getelementptr ptr, ptr %buffers, i64 %b
  %b.data = load ptr, ptr %b.from
  %b.slot = getelementptr %Buffer, ptr %slots, i64 %b
  store ptr %b.data, ptr %b.slot
  %b.slot1 = getelementptr %Buffer, ptr %b.slot, i64 0, i32 1
  %b.dtype32 = trunc i64 %b.dtype to i32
  store i32 %b.dtype32, ptr %b.slot1
  %b.slot2 = getelementptr %Buffer, ptr %b.slot, i64 0, i32 2
  %b.rank32 = trunc i64 %b.rank to i32
  store i32 %b.rank32, ptr %b.slot2
  %b.slot3 = getelementptr %Buffer, ptr %b.slot, i64 0, i32 3
  %b.shape.ptr = getelementptr i64, ptr %table, i64 %b.shape
  store ptr %b.shape.ptr, ptr %b.slot3
  %b.slot4 = getelementptr %Buffer, ptr %b.slot, i64 0, i32 4
  %b.strides.ptr = getelementptr i64, ptr %table, i64 %b.strides
  store ptr %b.strides.ptr, ptr %b.slot4
  %b.next = add i64 %b, 1
  br label %buffer

attribute:
  %a = phi i64 [0, %buffer], [%a.next, %note]
  %a.more = icmp slt i64 %a, %attributes
  br i1 %a.more, label %note, label %run

note:
  %a.place = add i64 %a, %count
  %a.words = mul i64 %a.place, 4
  %a.start = add i64 %a.words, {_HEAD}
  %a.row = getelementptr i64, ptr %table, i64 %a.start
  %a.name = load i64, ptr %a.row
  %a.data.at = getelementptr i64, ptr %a.row, i64 1
  %a.data = load i64, ptr %a.data.at
  %a.count.at = getelementptr i64, ptr %a.row, i64 2
  %a.count = load i64, ptr %a.count.at
  %a.kind.at = getelementptr i64, ptr %a.row, i64 3
  %a.kind = load i64, ptr %a.kind.at
  %a.slot = getelementptr %Attribute, ptr %rows, i64 %a
  %a.name.ptr = getelementptr i8, ptr %data, i64 %a.name
  store ptr %a.name.ptr, ptr %a.slot
  %a.slot1 = getelementptr %Attribute, ptr %a.slot, i64 0, i32 1
  %a.data.ptr = getelementptr i8, ptr %data, i64 %a.data
  store ptr %a.data.ptr, ptr %a.slot1
  %a.slot2 = getelementptr %Attribute, ptr %a.slot, i64 0, i32 2
  store i64 %a.count, ptr %a.slot2
  %a.slot3 = getelementptr %Attribute, ptr %a.slot, i64 0, i32 3
  store i64 %a.kind, ptr %a.slot3
  %a.next = add i64 %a, 1
  br label %attribute

run:
  call void @llvm.memset.p0.i64(ptr %context, i8 0, i64 64, i1 false)
  store i32 {ABI}, ptr %context
  %c1 = getelementptr %Context, ptr %context, i64 0, i32 1
  %attributes32 = trunc i64 %attributes to i32
  store i32 %attributes32, ptr %c1
  %c2 = getelementptr %Context, ptr %context, i64 0, i32 2
  store ptr %rows, ptr %c2
  %c3 = getelementptr %Context, ptr %context, i64 0, i32 3
  store ptr @parallel_for, ptr %c3
  %c4 = getelementptr %Context, ptr %context, i64 0, i32 4
  store ptr @fail, ptr %c4
  %c5 = getelementptr %Context, ptr %context, i64 0, i32 5
  store ptr %pool, ptr %c5
  %c6 = getelementptr %Context, ptr %context, i64 0, i32 6
  store ptr %message, ptr %c6
  %written = getelementptr %Buffer, ptr %slots, i64 %operands
  %code = call i32 %kernel(ptr %context, ptr %slots, ptr %written)
  %noted = load atomic i64, ptr %message acquire, align 8
  %code64 = sext i32 %code to i64
  %code.at = getelementptr i64, ptr %message, i64 1
  store i64 %code64, ptr %code.at
  %either = or i64 %noted, %code64
  %failed = icmp ne i64 %either, 0
  br i1 %failed, label %report, label %done

report:
  store i32 1, ptr %error
  br label %done

done:
  ret void
}}

declare void @llvm.memset.p0.i64(ptr, i8, i64, i1)
"""

_Kernel = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64)


@cache
def foreign_address() -> int:
    """The address of the function that calls a library's."""
    return text_addresses(_SOURCE, ["foreign"])["foreign"]


finder("library", find_again)
finder("foreign", foreign_address)


@dataclass(frozen=True, slots=True, eq=False)
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
            raise self._wrong(types)
        return found

    def _wrong(self, types: Sequence[TensorType]) -> DTypeError:
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
            (name, kind, *_packed(params[name], kind)) for name, kind in self.attributes.items()
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
        _foreign()(places.ctypes.data, table.ctypes.data, 0, 1)
        if error.any():
            raise failure(self.name, message, types)
        return results


@cache
def _foreign() -> Callable[[int, int, int, int], None]:
    return _Kernel(foreign_address())


@lru_cache(maxsize=1024)
def _laid_out(
    native: Native, types: Types, kinds: Types, attributes: tuple[Attribute, ...]
) -> tuple[Array, Array]:
    """The table and the attributes of eager calls on operands of some types."""
    call = Layout(native, native.kernel(types), len(types), attributes)
    numbers = call.numbers([_shaped(kind) for kind in (*types, *kinds)])
    return np.array(numbers, np.int64), call.data


class Layout:
    """What one call of a library's function is given beside its buffers."""

    def __init__(
        self, native: Native, kernel: int, operands: int, attributes: Sequence[Attribute]
    ) -> None:
        self.native, self.kernel, self.operands = native, kernel, operands
        self.rows, self.data = attribute_rows(attributes)
        self.message = np.zeros(MESSAGE, np.uint8)

    def numbers(self, buffers: Sequence[Shaped]) -> list[int]:
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
        begin = _appended(data, name.encode() + b"\0")
        rows.append((begin, _appended(data, values + b"\0" * 8), count, kind))
    return rows, np.frombuffer(bytes(data or bytes(8)), np.uint8).copy()


def _appended(data: bytearray, part: bytes) -> int:
    """Where a part begins that is added at a multiple of eight bytes."""
    begin = len(data)
    data += part + bytes(-len(part) % 8)
    return begin


def _packed(value: Any, kind: int) -> tuple[int, bytes]:
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


def _shaped(kind: TensorType) -> Shaped:
    return kind.dtype, tuple(int(dim) for dim in kind.shape)


def _type_of(array: Array) -> TensorType:
    return TensorType(from_numpy(array.dtype), array.shape)


def kernel_of_library(address: int, path: str, digest: str, symbol: str) -> int:
    """The address, which stored programs find again in the same library."""
    return remembered(address, "library", path, digest, symbol)
