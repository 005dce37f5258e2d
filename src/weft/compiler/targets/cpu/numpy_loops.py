"""The inner loops of NumPy's functions on matrices and signals, called by address.

`numpy.linalg` and `numpy.fft` end in functions of C that take stacks: addresses, sizes and steps.
A ufunc's object, whose fields are public, says where they are. They hold no lock, take their work
space themselves, and give the bits that NumPy gives. Where one is not found under its name, there
is none, and the caller does without.

>>> (loop := inner_loop("numpy.fft._pocketfft_umath", "fft", "Dd->D")) is None or loop.signature
'(n),()->(m)'
"""

from __future__ import annotations

import ctypes
import re
import sys
from collections.abc import Callable, Sequence
from functools import cache
from importlib import import_module

import numpy as np

from weft.compiler.targets.cpu.cache.symbols import finder, remember_address
from weft.compiler.targets.llvm.ir_builder import IRBuilder
from weft.core.records import frozen

INVALID = 1
"""How C names the floating-point exception that a loop raises where it fails."""


class _UFunc(ctypes.Structure):
    """The first fields of `PyUFuncObject`, as NumPy's headers declare them."""

    _fields_ = (
        ("head", ctypes.c_char * object.__basicsize__),
        ("nin", ctypes.c_int),
        ("nout", ctypes.c_int),
        ("nargs", ctypes.c_int),
        ("identity", ctypes.c_int),
        ("functions", ctypes.POINTER(ctypes.c_void_p)),
        ("data", ctypes.POINTER(ctypes.c_void_p)),
        ("ntypes", ctypes.c_int),
        ("reserved", ctypes.c_int),
        ("name", ctypes.c_char_p),
    )


@frozen
class InnerLoop:
    """A function `(ptr args, ptr dimensions, ptr steps, ptr data)` of NumPy's."""

    function: int
    data: int
    signature: str
    """The axes that operands and results have beside those of the stack, as `(m,n)->(m)`."""


def axes_of(signature: str) -> list[list[str]]:
    """The names of the axes of each operand and result.

    >>> axes_of("(m,n),()->(p)")
    [['m', 'n'], [], ['p']]
    """
    inside = re.findall(r"\(([^)]*)\)", signature)
    return [[name.strip() for name in each.split(",") if name.strip()] for each in inside]


def sizes_of(signature: str) -> list[str]:
    """The axes in the order in which a loop is told their sizes."""
    return list(dict.fromkeys(name for axes in axes_of(signature) for name in axes))


@cache
def inner_loop(module: str, name: str, types: str) -> InnerLoop | None:
    """The loop of a ufunc for types, as `d->dd`; None where it cannot be found."""
    try:
        ufunc = getattr(import_module(module), name, None)
    except ImportError:
        return None
    if not isinstance(ufunc, np.ufunc) or types not in ufunc.types or ufunc.signature is None:
        return None
    if sys.implementation.name != "cpython":
        return None
    seen = _UFunc.from_address(id(ufunc))
    counts = seen.nin, seen.nout, seen.nargs, seen.ntypes
    if counts != (ufunc.nin, ufunc.nout, ufunc.nargs, ufunc.ntypes):
        return None
    if seen.name != ufunc.__name__.encode():
        return None
    place = ufunc.types.index(types)
    function, data = seen.functions[place], seen.data[place] if seen.data else None
    if not function:
        return None
    remember_address(function, "numpy loop", module, name, types)
    if data:
        remember_address(data, "numpy loop data", module, name, types)
    return InnerLoop(function, data or 0, ufunc.signature)


def _field_of(field: str) -> Callable[[str, str, str], int | None]:
    def find(module: str, name: str, types: str) -> int | None:
        loop = inner_loop(module, name, types)
        return None if loop is None else int(getattr(loop, field))

    return find


finder("numpy loop", _field_of("function"))
finder("numpy loop data", _field_of("data"))


@cache
def exception_address(name: str) -> int:
    """Where C's `feclearexcept` or `fetestexcept` is; a loop that fails raises an exception."""
    address = ctypes.cast(getattr(ctypes.CDLL(None), name), ctypes.c_void_p).value
    assert address is not None
    return remember_address(address, "floating-point exceptions", name)


finder("floating-point exceptions", exception_address)


class LoopCall:
    """Writes calls of a loop in a function: its tables once, and what changes before each call.

    sizes: those of the axes. steps: in bytes, those of the stack for each operand and result, then
    those of all their axes.
    """

    def __init__(
        self, out: IRBuilder, loop: tuple[str, str], sizes: Sequence[str], steps: Sequence[str]
    ) -> None:
        self.out, (self.function, self.data) = out, loop
        self.sizes, self.steps = out.room("i64", 1 + len(sizes)), out.room("i64", len(steps))
        self.operands = out.room("ptr", len(steps))
        for place, size in enumerate(sizes):
            out.store(size, out.at("i64", self.sizes, 1 + place))
        for place, step in enumerate(steps):
            out.store(step, out.at("i64", self.steps, place))

    def run(self, operands: Sequence[str], count: str) -> None:
        """Write the call for so many members of the stack, the first of which are given."""
        out = self.out
        for place, operand in enumerate(operands):
            out.store(operand, out.at("ptr", self.operands, place), "ptr")
        out.store(count, self.sizes)
        out.call(self.function, self.operands, self.sizes, self.steps, self.data)


class Exceptions:
    """Writes the questions whether a loop has failed, which says so by an exception."""

    def __init__(self, out: IRBuilder, clear: str, test: str) -> None:
        self.out, self.clear_function, self.test_function = out, clear, test

    def clear(self) -> None:
        """Forget what was before: a loop takes it for a failure of its own."""
        self.out.call(self.clear_function, f"i32 {INVALID}", result="i32")

    def has_failed(self) -> str:
        """Whether a loop has failed since."""
        flags = self.out.call(self.test_function, f"i32 {INVALID}", result="i32")
        return self.out.put(f"icmp ne i32 {flags}, 0", "i1")

    @staticmethod
    def addresses() -> list[int]:
        """The addresses that it is made of."""
        return [exception_address("feclearexcept"), exception_address("fetestexcept")]
