"""Calls of small programs as one native function, from a user's tensors to a new one.

What a quick call of a program does in Python takes longer than a kernel over 64 K elements: a key
of dtypes and shapes, new arrays, a lock, a handle for the result. A `NativeRun` is one program with
all of that as words of memory: what arrays it takes, what it makes, and tables of its own, so that
it needs no lock. A `Book` has the calls of one function that were made before, by what they were
given; its `recall` finds one and runs it. Whatever is not exactly as noted, it leaves to Python,
which gives the same bits: nothing was run, or what was is dropped.

>>> import numpy as np
>>> import weft as wf
>>> from weft.compiler.targets.cpu.target import compile_program
>>> program = compile_program(wf.ir.trace(lambda x: wf.exp(x) * 2, wf.spec("float32", (3,))))
>>> arrays = [np.zeros(3, np.float32)]
>>> expected, native = program.run(arrays), program.native_run(arrays)
>>> native.run(arrays)[0].tolist(), native.run([np.zeros(4, np.float32)])
([2.0, 2.0, 2.0], None)
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import Any, Protocol

import numpy as np

from weft.compiler.targets.cpu.cache.kernels import text_addresses
from weft.compiler.targets.cpu.runtime.array_fields import fields
from weft.compiler.targets.cpu.runtime.driver import WATCHERS, execute_address, watch_address
from weft.compiler.targets.cpu.runtime.entry_points import (
    has_global_lock,
    interpreter_address,
    native_function,
)
from weft.compiler.targets.cpu.runtime.native_call_text import (
    CALL,
    FUNCTIONS,
    KNOWN,
    MOST_OPERANDS,
    PLACES,
    RUN,
    USUAL,
    module_source,
)
from weft.core import trees
from weft.core.capsules import numpy_function
from weft.core.records import frozen
from weft.core.settings import settings

Array = np.ndarray[Any, Any]
MOST_CALLS = 32
"""How many calls of one function are known natively: they are tried one after the other."""
LARGEST_WORKSPACE = 1 << 20
"""The most bytes that a run takes for what lies between its launches; they are freed after it."""
_NEW_ARRAY = 94
"""Where NumPy's table of functions, which never changes, has `PyArray_NewFromDescr`."""
_ONE_OBJECT, _ANY_ARGUMENTS = 0x8, 0x82
"""The flags of functions that are given one object (METH_O), and any arguments as an array, named
ones behind the others (METH_FASTCALL with METH_KEYWORDS)."""


class Words(np.ndarray[Any, Any]):
    """Numbers that native code reads, and what they are addresses of, which lives as long."""

    kept: Any = None

    @staticmethod
    def from_numbers(numbers: Sequence[int], *kept: Any) -> Words:
        """The numbers in memory of their own."""
        made = np.array(numbers, np.int64).view(Words)
        made.kept = kept
        return made

    @property
    def address(self) -> int:
        """Where they are."""
        return int(self.ctypes.data)


@frozen(eq=False)
class NativeRun:
    """A program for arrays of certain kinds, as one native function."""

    words: Words
    run: Callable[[Sequence[Array]], list[Array] | None]
    """Of a list of arrays the list of results; None where Python is to run it, and for a tuple."""


Kind = tuple[np.dtype[Any], tuple[int, ...]]


@frozen
class ProgramTables:
    """What a program has ready for arrays of certain kinds; see `Tables`."""

    given: tuple[int, ...]
    """What the driver is called with."""
    addresses: Array
    error: int
    """The address of the error slot."""
    slots: Array
    """The slots of what goes in, then of what comes out."""
    planned: Array
    offsets: Array
    workspace: int
    kept: Any
    """What the addresses are of."""


def make_native_run(
    tables: ProgramTables, inputs: Sequence[Kind], outputs: Sequence[Kind]
) -> NativeRun | None:
    """A program as one native function, with tables of its own; None where there is none."""
    found = _functions() if settings.fastcall else None
    is_small = max(len(inputs), len(outputs)) <= MOST_OPERANDS
    if found is None or not is_small or tables.workspace > LARGEST_WORKSPACE:
        return None
    calls, count, _, _, parallel_for = tables.given
    error = Words.from_numbers([0])
    own = Words.from_numbers(tables.addresses.tolist())
    own[own == tables.error] = error.address
    kinds = [
        Words.from_numbers([id(dtype), len(shape), *shape], dtype)
        for dtype, shape in (*inputs, *outputs)
    ]
    table = Words.from_numbers([kind.address for kind in kinds], kinds)
    copied = (tables.slots, tables.planned, tables.offsets)
    slots, planned, offsets = [Words.from_numbers(each.tolist()) for each in copied]
    words = Words.from_numbers(
        [0] * len(RUN.names), error, own, table, slots, planned, offsets, tables.kept
    )
    words[:] = [
        0, id(words), calls, count, own.address, error.address, parallel_for, slots.address,
        len(inputs), len(outputs), table.address, tables.workspace, planned.size, planned.address,
        offsets.address,
    ]  # fmt: skip
    return NativeRun(words, native_function("run_arrays", found["run_arrays"], _ONE_OBJECT, words))


class State(Protocol):
    """State of which a call reads arrays, such as a module's, by what tells that it is as it was.

    is_alive: one number, which is 0 once an object that the words speak of is no more.
    words: see `weft.runtime.object_words`. handles: the addresses of its tensors. arrays: of each
    input of the program the address of the array that it is, or 0 for one given.
    """

    is_alive: Array
    words: Array
    handles: list[int]
    arrays: list[int]


class Book:
    """The calls of one function that are known; see the module."""

    def __init__(self) -> None:
        self._head = Words.from_numbers([0, 0])
        """The call that is tried first, and how many were found."""
        self._calls: list[tuple[Words, Array | None]] = []
        """Each call, and what says that its state is still there."""
        found = _functions()
        assert found is not None
        self.recall = native_function("recall", found["recall"], _ANY_ARGUMENTS, self._head)
        """The result of a call, or None for one that is to go Python's way."""

    @property
    def hits(self) -> int:
        """How many calls were found."""
        return int(self._head[1])

    def add(
        self,
        arguments: Sequence[Any],
        names: Sequence[str],
        run: NativeRun,
        program: Any,
        *,
        is_final: bool = True,
        mode: bool | None = None,
        places: Sequence[int] | None = None,
        state: State | None = None,
    ) -> None:
        """Know a call from now on, by its arguments, the last of which have names.

        Tensors stand for all of their kind; other objects, which must never change, for themselves.
        Some calls are known, and later ones go Python's way. program: what `run` needs alive.
        is_final: whether a call with a place on the tape goes Python's way. mode: whether gradients
        are recorded, if that matters; then tensors must be different ones without gradients.
        places: which inputs the tensors are. state: what is read beside them, which is
        not kept alive.
        """
        if len(self._calls) >= MOST_CALLS:
            self._forget_dead()
        if len(self._calls) >= MOST_CALLS:
            return
        kept = [x for x in arguments if type(x) not in _handle_class and not _has_state(x)]
        objects = Words.from_numbers(
            [*[0 if type(x) in _handle_class else id(x) for x in arguments], 0]
        )
        ids, order = (
            Words.from_numbers([*map(id, names), 0]),
            Words.from_numbers([*(places or range(len(arguments)))]),
        )
        elements, call = settings.eager_elements, Words.from_numbers([0] * len(CALL.names))
        fields_of_call = [
            int(self._head[0]), len(arguments) - len(names), len(names), ids.address,
            objects.address, int(is_final), 0 if mode is None else id(mode), id(elements),
            run.words.address, order.address, 0, 0, 0, 0, 0,
        ]  # fmt: skip
        tables: list[Array] = []
        if state is not None:
            tables = [
                state.is_alive,
                state.words,
                Words.from_numbers(state.handles),
                Words.from_numbers(state.arrays),
            ]
            alive, words, handles, arrays = [each.ctypes.data for each in tables]
            fields_of_call[-5:] = [alive, words, len(state.handles), handles, arrays]
        call[:] = fields_of_call
        call.kept = objects, ids, order, elements, kept, [*names], run, program, tables, state
        self._calls.append((call, None if state is None else state.is_alive))
        self._head[0] = call.address

    def _forget_dead(self) -> None:
        """Forget calls whose state is no more."""
        self._head[0] = 0
        self._calls = [pair for pair in self._calls if pair[1] is None or pair[1][0]]
        for (call, _), following in zip(self._calls[1:], self._calls, strict=False):
            call[0] = following[0].address
        if self._calls:
            self._calls[0][0][0] = 0
            self._head[0] = self._calls[-1][0].address


def _has_state(argument: Any) -> bool:
    """Whether an argument is an object that words tell about, which nothing is to keep alive."""
    parts = trees.take_apart(argument)
    return parts is not None and parts.memory is not None


_handle_class: list[type] = []
"""The class of handles, once books are begun."""


def new_book() -> Book | None:
    """An empty book; None where nothing reads one."""
    return Book() if settings.fastcall and _handle_class and _functions() is not None else None


def begin_books(handle_class: type, usual: Mapping[str, Any], places: Mapping[str, int]) -> None:
    """Say what a handle is, and by which objects it is told that calls are made as usual.

    places: how many bytes into a handle, and into the settings, their attributes stand.
    """
    found = _functions()
    if found is None or _handle_class:
        return
    assert {*usual} == {*USUAL} and {*places} == {*PLACES}
    for held in usual.values():  # native code has their addresses to the end
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(held))
    addresses = {name: id(held) for name, held in usual.items()}
    _set_up(found, addresses | {f"{name}_place": at for name, at in places.items()})
    _handle_class.append(handle_class)


@cache
def _functions() -> dict[str, int] | None:
    """The addresses of the module's functions; None where there are none."""
    places = fields()
    if places is None or not has_global_lock():
        return None
    found = text_addresses(module_source(places), ("set_up", "run_arrays", "recall"))
    _set_up(found, {})
    return found


def _set_up(functions: dict[str, int], usual: Mapping[str, int]) -> None:
    """Tell the module what it knows of this process."""
    known = dict.fromkeys(KNOWN.names, 0)
    known |= {name: interpreter_address(name) for name in FUNCTIONS}
    known |= {
        "new_array": numpy_function(_NEW_ARRAY), "execute": execute_address(),
        "watch": watch_address(), "None": id(None), "True": id(True), "ndarray": id(np.ndarray),
        "watchers": id(WATCHERS),
        "KeyboardInterrupt": id(KeyboardInterrupt),
    }  # fmt: skip
    words = np.array([*{**known, **usual}.values()], np.int64)
    ctypes.CFUNCTYPE(None, ctypes.c_void_p)(functions["set_up"])(words.ctypes.data)
