"""Native functions that Python calls as its own: some nanoseconds, where `ctypes` takes hundreds.

A call of a small program spends most of its time on the way: telling whether modules hold what they
held, writing the addresses of arrays to a table, starting the driver. Each is one function here, in
the form of the interpreter's own ones. They ask the interpreter through its stable interface, or
read fields whose places were looked up (`array_fields.py`). Elsewhere Python does it.

>>> import numpy as np
>>> from weft.runtime.object_words import END, LIST
>>> held = [1.5, "a"]
>>> table = np.array([LIST, id(held), 2, *map(id, held), END])
>>> entries().same(table), held.append(2), entries().same(table)
(True, None, False)
"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np

from weft.compiler.targets.cpu.cache.kernels import text_addresses
from weft.compiler.targets.cpu.runtime.array_fields import Fields, fields
from weft.compiler.targets.cpu.runtime.word_comparison import COMPARED_BY, compare_function
from weft.compiler.targets.llvm.ir_builder import IRBuilder, Struct, module_text
from weft.core.records import frozen
from weft.core.settings import settings

Array = np.ndarray[Any, Any]
_BLOCK = Struct(
    "ptr calls, i64 count, ptr addresses, ptr error, ptr parallel_for, ptr slots, ptr execute,"
    "i64 ended"
)
BLOCK = _BLOCK.names
"""The words of what a launch is given: the driver's arguments, where the addresses of the arrays
stand in its table, the driver, and how far it came."""
_FUNCTIONS = (
    "Py_IncRef", "PyEval_SaveThread", "PyEval_RestoreThread", *COMPARED_BY,
)  # fmt: skip
_OBJECTS = {"True": True, "False": False, "None": None, "ndarray": np.ndarray}
_KNOWN = Struct(", ".join(f"ptr {name}" for name in (*_FUNCTIONS, *_OBJECTS)))
"""What the functions know of the interpreter: its own functions, and some objects."""
_FASTCALL = 0x80
"""The flag of functions that are given their arguments as an array (METH_FASTCALL)."""
_GIVEN = ("ptr %self", "ptr %given", "i64 %count")
"""The parameters of such a function: what it belongs to, the arguments, and how many they are."""


class _EntryBuilder(IRBuilder):
    """The text of a function that Python calls with some objects."""

    def __init__(self, name: str, places: Fields) -> None:
        super().__init__(name, _GIVEN, public=True, result="ptr", may_unwind=True)
        self.places = places
        self.known = self.record(_KNOWN, "@known")

    def field(self, item: str, place: int, kind: str = "ptr") -> str:
        """A field of an object, so many bytes into it."""
        return self.load(kind, self.at("i8", item, place))

    def elements_address(self, array: str) -> str:
        """Where the elements of an array are."""
        return self.field(array, self.places.data)

    def answer(self, item: str) -> None:
        """Return one of the objects that are known; its caller owns a reference."""
        self.call(self.known["Py_IncRef"], item)
        self.give(item)

    def answer_false_unless(self, condition: str) -> None:
        """Return False where a condition does not hold."""
        with self.unless(condition):
            self.answer(self.known["False"])


def _module(places: Fields) -> str:
    """The text of the module, for objects whose fields are at these places."""
    set_up = IRBuilder("set_up", ("ptr %table",), public=True)
    set_up.copy("@known", set_up.parameters[0], 8 * len(_KNOWN.names))
    known = f"@known = internal global {_KNOWN.text} zeroinitializer"
    compare = compare_function(_KNOWN)
    return module_text(
        known, set_up, _launch_function(places), _call_function(places), compare,
        _same_function(places, compare),
    )  # fmt: skip


def _launch_function(places: Fields) -> IRBuilder:
    """`launch(block, *arrays)`; see `Entries`."""
    out = _EntryBuilder("launch", places)
    _, given, count = out.parameters
    block = out.record(_BLOCK, out.elements_address(out.load("ptr", given)))
    addresses, slots = block.all("addresses", "slots")
    array_class = out.known["ndarray"]
    with out.loop(1, count) as i:
        array = out.pointer(given, i)
        out.answer_false_unless(out.test("eq", out.field(array, places.kind), array_class))
        flags = out.field(array, places.flags, "i32")
        out.answer_false_unless(out.test("ne", out.combine("and", flags, 1), 0))  # contiguous
        slot = out.number(slots, out.sub(i, 1))
        out.store(out.elements_address(array), out.at("ptr", addresses, slot))
    calls, many, error, pool, execute = block.all(
        "calls", "count", "error", "parallel_for", "execute"
    )
    out.store(0, error, "i32")
    thread = out.call(out.known["PyEval_SaveThread"], result="ptr")
    ended = out.call(execute, calls, many, addresses, error, pool, result="i64")
    out.call(out.known["PyEval_RestoreThread"], thread)
    block["ended"] = ended
    is_fine = out.test("eq", out.load("i32", error), 0)
    out.answer(out.select(is_fine, *out.known.all("True", "None")))
    return out


def _call_function(places: Fields) -> IRBuilder:
    """`call(block, *arrays)`; see `Entries`."""
    out = _EntryBuilder("call", places)
    _, given, count = out.parameters
    block = out.elements_address(out.load("ptr", given))
    buffers = out.room("ptr", count)
    with out.loop(1, count) as i:
        address = out.elements_address(out.pointer(given, i))
        out.store(address, out.at("ptr", buffers, out.sub(i, 1)))
    thread = out.call(out.known["PyEval_SaveThread"], result="ptr")
    out.call(out.load("ptr", block), buffers, out.at("i64", block, 1), 0, 1)
    out.call(out.known["PyEval_RestoreThread"], thread)
    out.answer(out.known["None"])
    return out


def _same_function(places: Fields, compare: IRBuilder) -> IRBuilder:
    """`same(table)`; see `Entries`."""
    out = _EntryBuilder("same", places)
    words = out.elements_address(out.load("ptr", out.parameters[1]))
    is_same = out.call(compare, words)
    out.answer(out.select(is_same, *out.known.all("True", "False")))
    return out


@frozen
class Entries:
    """The functions that Python calls."""

    launch: Callable[..., bool | None]
    """`launch(block, *arrays)` runs a program: False if an array is none, or not contiguous, and
    nothing was run; None if the program has reported an error."""
    call: Callable[..., None]
    """`call(block, *arrays)` calls the native function whose address the block begins with, which
    has a kernel's signature, with the arrays as they lie and the numbers behind the address."""
    same: Callable[[Array], bool]
    """Whether all is as a table says; see `weft.runtime.object_words`."""


_ENTRIES = ("launch", "call", "same")


class _Method(ctypes.Structure):
    """How a function is described to the interpreter (PyMethodDef)."""

    _fields_ = (
        ("name", ctypes.c_char_p), ("function", ctypes.c_void_p),
        ("flags", ctypes.c_int), ("text", ctypes.c_char_p),
    )  # fmt: skip


_methods: list[_Method] = []
"""They must live as long as the functions that they describe, which is to the end."""


def source() -> str | None:
    """The text of the module; None where the interpreter is another one, or has no global lock.

    There is none either where `wf.settings.fastcall` is off.
    """
    return _source() if settings.fastcall else None


@cache
def _source() -> str | None:
    places = fields()
    return None if places is None or not has_global_lock() else _module(places)


def has_global_lock() -> bool:
    """Whether one thread at a time runs in the interpreter."""
    return bool(getattr(sys, "_is_gil_enabled", lambda: True)())


def entries() -> Entries | None:
    """The functions, made on the first call; None where there are none, or fastcall is off."""
    return _entries() if settings.fastcall else None


@cache
def _entries() -> Entries | None:
    text = _source()
    if text is None:
        return None
    found = text_addresses(text, ("set_up", *_ENTRIES))
    known = [*map(interpreter_address, _FUNCTIONS), *map(id, _OBJECTS.values())]
    table = np.array(known, np.int64)
    ctypes.CFUNCTYPE(None, ctypes.c_void_p)(found["set_up"])(table.ctypes.data)
    return Entries(**{name: native_function(name, found[name]) for name in _ENTRIES})


def interpreter_address(name: str) -> int:
    """The address of one of the interpreter's own functions."""
    return int(ctypes.cast(getattr(ctypes.pythonapi, name), ctypes.c_void_p).value or 0)


@cache
def _method_record(name: str, address: int, flags: int) -> _Method:
    method = _Method(name.encode(), address, flags, None)
    _methods.append(method)
    return method


def native_function(
    name: str, address: int, flags: int = _FASTCALL, owner: Any = None
) -> Callable[..., Any]:
    """A native function as the interpreter's own, which is given what it belongs to first."""
    given = ctypes.py_object, ctypes.c_void_p, ctypes.py_object, ctypes.c_void_p
    make = ctypes.PYFUNCTYPE(*given)(("PyCFunction_NewEx", ctypes.pythonapi))
    method = _method_record(name, address, flags)
    function: Callable[..., Any] = make(ctypes.addressof(method), owner, None)
    return function
