"""What native code knows of a group: a cell of words for each mesh axis, read by programs.

A compiled program calls the collectives of the group of its axis by address, with the signatures
of MPI's functions, so that no Python runs between its kernels. Where an engine has no such
function, or a thread stands for a process, the address is that of one here, which asks the group.

>>> cell = cell_of("an axis of this example")
>>> cell.shape, bool(cell[0])
((36,), True)
"""

from __future__ import annotations

import ctypes
import hashlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from threading import get_ident
from typing import Any

import numpy as np

from weft.core.forks import in_child
from weft.ir.groups import (
    BOUND,
    Communicator,
    Reduce,
    find_group,
    process_groups,
    said_around,
)

__all__ = [
    "FIRST_OPERATION", "FIRST_TYPE", "OPERATIONS", "TYPES", "cell_of", "describe_call",
    "failure_of", "has_called", "is_native", "leave_sums", "running_calls", "set_queue",
    "without_queues",
]  # fmt: skip

Array = np.ndarray[Any, Any]
FUNCTION, COMMUNICATOR, IN_PLACE, CHECKS, CODE, STARTED, ENDED, DIGEST = range(8)
QUEUE, ISSUE, TEST = range(20, 23)
SIZE, GATHER, EXCHANGE, COMBINE, BROADCAST, PASS, RANK, NOBODY = range(28, 36)
"""The words of a cell: the function, what it is given as group and for sums in place; whether calls
are compared first; the code of a failure; how many calls began and ended; which one runs; how many
processes there are, 0 where that is not known; and the functions that gather blocks, that exchange
them, that add one array to another, that send one from a process to all, and that pass arrays on,
with the signatures of `MPI_Allgather`, `MPI_Alltoall`, `MPI_Reduce_local`, `MPI_Bcast` and
`MPI_Sendrecv`; which process this is, and the number that stands for none. QUEUE: where calls are
left for the thread that makes them beside computation, 0 without one; ISSUE and TEST begin a sum
and ask whether it is there, as `MPI_Iallreduce` and `MPI_Test` do, 0 where the engine cannot."""
FIRST_TYPE, FIRST_OPERATION, WORDS = 8, 24, 36
TYPES = (
    "float32", "float64", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64",
    "complex64", "complex128",
)  # fmt: skip
"""The dtypes that are summed natively, in the order of their handles in a cell."""
OPERATIONS: tuple[Reduce, ...] = ("sum", "max", "min")
DIFFERENT, OTHER_SIZE = -1, -2
"""The codes of a call that another process did not make, and of one for another group."""

_SIGNATURE = ctypes.CFUNCTYPE(
    ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int, *[ctypes.c_int64] * 3
)
_cells: dict[str, Array] = {}
_queues: dict[str, tuple[Array, Callable[[], None]]] = {}
"""The queue of calls of an axis, and what empties it."""
_descriptions: dict[int, str] = {}
_said: dict[int, str] = {}
"""What calls are for, by the numbers that stand for them."""
_failures: dict[int, BaseException] = {}
"""What a call in Python has raised, by thread."""


def cell_of(mesh_axis: str) -> Array:
    """The cell of an axis, which stays where it is as groups come and go."""
    cell = _cells.get(mesh_axis)
    if cell is None:
        cell = _cells[mesh_axis] = np.zeros(WORDS, np.int64)
        _fill_cell(mesh_axis, process_groups())
    return cell


def _fill_cell(mesh_axis: str, groups: Mapping[str, Communicator]) -> None:
    """Write the functions of an axis's group, or those that ask it in Python."""
    cell = _cells[mesh_axis]
    native_words = getattr(groups.get(mesh_axis), "native_words", None)
    words = native_words() if native_words is not None else None
    if words is None:
        words = {place: _address_of(callback) for place, callback in _callbacks.items()}
        words[COMMUNICATOR] = list(_cells).index(mesh_axis)
        words |= {FIRST_TYPE + place: place for place in range(len(TYPES))}
        words |= {FIRST_OPERATION + place: place for place in range(len(OPERATIONS))}
    cell[:STARTED] = 0
    cell[QUEUE : TEST + 1] = 0
    if words.get(ISSUE) and mesh_axis in _queues:
        cell[QUEUE] = _queues[mesh_axis][0].ctypes.data
    group = groups.get(mesh_axis)
    cell[SIZE] = 0 if group is None else group.size
    cell[RANK], cell[NOBODY] = 0 if group is None else group.rank, -1
    for place, word in words.items():
        cell[place] = word


def _fill_all(groups: Mapping[str, Communicator]) -> None:
    for mesh_axis in _cells:
        _fill_cell(mesh_axis, groups)


BOUND.append(_fill_all)


def set_queue(mesh_axis: str, make: Callable[[], tuple[Array, Callable[[], None]] | None]) -> None:
    """Give an axis a queue of calls that are made beside computation, where it has none.

    make: gives the queue, and what returns once no call is left in it; None if there is no way.
    """
    cell = cell_of(mesh_axis)
    if mesh_axis not in _queues and cell[ISSUE]:
        made = make()
        if made is not None:
            _queues[mesh_axis] = made
            cell[QUEUE] = made[0].ctypes.data


def leave_sums() -> None:
    """Make no call any more that is left in a queue: the program that wanted it has failed."""
    for _, empty in _queues.values():
        empty()


@contextmanager
def without_queues() -> Iterator[None]:
    """Have programs make all calls themselves, where each launch is run by itself."""
    before = [(cell, int(cell[QUEUE])) for cell in _cells.values()]
    for cell, _ in before:
        cell[QUEUE] = 0
    try:
        yield
    finally:
        for cell, queue in before:
            cell[QUEUE] = queue


def _forget_queues() -> None:
    """A forked child has no thread that makes calls."""
    _queues.clear()
    for cell in _cells.values():
        cell[QUEUE] = 0


in_child(_forget_queues)


def _reduce_in_python(
    source: int | None, target: int, count: int, kind: int, operation: int, axis: int
) -> int:
    """The sum of a group in Python; 1 where it fails."""
    try:
        dtype = np.dtype(TYPES[kind])
        result = _array_at(target, count, dtype)
        given = result if source is None else _array_at(source, count, dtype)
        group = find_group("all_reduce", list(_cells)[axis])
        with said_around(group, _said_in(axis)):
            result[:] = group.all_reduce(given, OPERATIONS[operation])
    except BaseException as error:  # must not pass through native code
        _failures[get_ident()] = error
        return 1
    return 0


def _said_in(axis: int) -> str:
    """What the call that runs over an axis is for, where it was said."""
    return _said.get(int(list(_cells.values())[axis][DIGEST]), "")


def _array_at(address: int, count: int, dtype: np.dtype[Any]) -> Array:
    memory = (ctypes.c_char * (count * dtype.itemsize)).from_address(address)
    return np.ndarray((count,), dtype, memory)  # type: ignore[arg-type]


def _move_in_python(name: str) -> Callable[..., int]:
    """The gathering or the exchange of a group's blocks in Python; 1 where it fails."""

    def move(
        source: int, count: int, kind: int, target: int, _count: int, _kind: int, axis: int
    ) -> int:
        try:
            group = find_group(name, list(_cells)[axis])
            dtype = np.dtype(TYPES[kind])
            result = _array_at(target, count * group.size, dtype)
            if name == "all_gather":
                moved = group.all_gather(_array_at(source, count, dtype))
            else:
                blocks = _array_at(source, count * group.size, dtype)
                with said_around(group, _said_in(axis)):
                    moved = group.all_to_all(blocks.reshape(group.size, count))
            result[:] = moved.reshape(-1)
        except BaseException as error:  # must not pass through native code
            _failures[get_ident()] = error
            return 1
        return 0

    return move


def _combine_in_python(source: int, target: int, count: int, kind: int, _operation: int) -> int:
    """One array added to another."""
    dtype = np.dtype(TYPES[kind])
    total = _array_at(target, count, dtype)
    np.add(_array_at(source, count, dtype), total, out=total)
    return 0


def _broadcast_in_python(buffer: int, count: int, kind: int, root: int, axis: int) -> int:
    """The array of one process on all of them; 1 where it fails."""
    try:
        array = _array_at(buffer, count, np.dtype(TYPES[kind]))
        array[:] = find_group("broadcast_shard", list(_cells)[axis]).broadcast(array, root)
    except BaseException as error:  # must not pass through native code
        _failures[get_ident()] = error
        return 1
    return 0


def _pass_in_python(
    source: int, count: int, kind: int, target: int, _tag: int,
    received: int, _count: int, _kind: int, giver: int, _other_tag: int, axis: int, _status: int,
) -> int:  # fmt: skip
    """An array sent to one process, and one received; 1 where it fails.

    Whom others send to is not known here, so all exchange blocks.
    """
    try:
        group, dtype = find_group("permute_shards", list(_cells)[axis]), np.dtype(TYPES[kind])
        blocks = np.zeros((group.size, count), dtype)
        if target >= 0:
            blocks[target] = _array_at(source, count, dtype)
        moved = group.all_to_all(blocks)
        if giver >= 0:
            _array_at(received, count, dtype)[:] = moved[giver]
    except BaseException as error:  # must not pass through native code
        _failures[get_ident()] = error
        return 1
    return 0


_POINTER, _INT, _WORD = ctypes.c_void_p, ctypes.c_int, ctypes.c_int64
_MOVE = ctypes.CFUNCTYPE(_INT, _POINTER, _INT, _WORD, _POINTER, _INT, _WORD, _WORD)
_COMBINE = ctypes.CFUNCTYPE(_INT, _POINTER, _POINTER, _INT, _WORD, _WORD)
_BROADCAST = ctypes.CFUNCTYPE(_INT, _POINTER, _INT, _WORD, _INT, _WORD)
_PASS = ctypes.CFUNCTYPE(
    _INT, _POINTER, _INT, _WORD, _INT, _INT, _POINTER, _INT, _WORD, _INT, _INT, _WORD, _POINTER
)
_callbacks: dict[int, Any] = {
    FUNCTION: _SIGNATURE(_reduce_in_python),
    GATHER: _MOVE(_move_in_python("all_gather")),
    EXCHANGE: _MOVE(_move_in_python("all_to_all")),
    COMBINE: _COMBINE(_combine_in_python),
    BROADCAST: _BROADCAST(_broadcast_in_python),
    PASS: _PASS(_pass_in_python),
}
"""What stands in a cell whose group is asked in Python."""


def _address_of(callback: Any) -> int:
    return int(ctypes.cast(callback, ctypes.c_void_p).value or 0)


def describe_call(text: str, place: str, what: str = "") -> int:
    """The number that stands for a call in native code, of 56 bits; not for its place.

    what: what it is for, which is in the text as well.
    """
    digest = int.from_bytes(hashlib.blake2b(text.encode(), digest_size=7).digest())
    _descriptions[digest] = text + place
    if what:
        _said[digest] = what
    return digest


def running_calls() -> list[tuple[str, int, str]]:
    """The native calls that run now: their axis, number and description."""
    return [
        (mesh_axis, int(cell[STARTED]), _descriptions.get(int(cell[DIGEST]), "a collective"))
        for mesh_axis, cell in list(_cells.items())
        if cell[STARTED] != cell[ENDED]
    ]


def has_called() -> bool:
    """Whether a native call was made along any axis."""
    return any(cell[STARTED] for cell in _cells.values())


def is_native(mesh_axis: str) -> bool:
    """Whether programs call the engine of an axis without Python."""
    return bool(cell_of(mesh_axis)[FUNCTION] != _address_of(_callbacks[FUNCTION]))


def failure_of(mesh_axis: str, description: str) -> BaseException:
    """What went wrong in the last native call over an axis."""
    error = _failures.pop(get_ident(), None)
    if error is not None:
        return error
    group: Any = find_group("all_reduce", mesh_axis)
    failure: BaseException = group.native_failure(int(_cells[mesh_axis][CODE]), description)
    return failure
