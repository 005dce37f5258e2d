"""The thread that makes a program's collectives while the program computes.

A program leaves a call in the queue of its mesh axis (`begin`), goes on with launches that do not
need the result, and waits for the call where one does (`wait`). The thread makes the calls one by
one, in the order in which they were left, which is the same on all processes. What it runs for a
call is the function that the program would have run itself, so the bits are the same.

Before the data, processes meet in a comparison of a few bytes, for which the thread asks from time
to time and sleeps in between: a process that is ahead of others computes on, and spins on no core.

>>> from weft.compiler.targets.cpu.communication_thread import QUEUE
>>> QUEUE.names[-2:]
('hurry', 'calls')
"""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from weft.compiler.targets.llvm.ir_builder import KERNEL, NULL, IRBuilder, Record, Struct
from weft.ir import group_cells

__all__ = ["CALL", "begin", "drain", "make_queue", "meet", "serve", "wait"]

Array = np.ndarray[Any, Any]
ROOM = 256
"""How many calls a queue holds; one more waits for the first."""
SPINS = 32
"""How often the thread asks at once whether all processes are there, before it sleeps."""
SLEEP = 50_000
"""Nanoseconds between two questions after that."""
_SEMAPHORE = "[4 x i64]"
CALL = Struct(
    "ptr function, ptr sizes, i64 ticket, ptr source, ptr target, ptr error, ptr cell, i64 failed"
)
"""A call that is left in a queue. `source` to `cell` are the buffers that its function is given,
`ticket` counts the calls of the queue, from 1."""
QUEUE = Struct(
    f"{_SEMAPHORE} work, {_SEMAPHORE} finished, i64 left, i64 done, i64 seen, i64 broken,"
    f"i64 hurry, [{ROOM} x ptr] calls"
)
"""The calls that were left, made, and known to be made; whether one failed, after which none is
made until the program has noticed; whether the program waits, so that sleeping gains nothing."""
WORDS = 4 + 4 + 5 + ROOM


def begin(functions: Sequence[IRBuilder]) -> IRBuilder:
    """`begin(operand, result, error, cell, call)`: leave a call; without a queue, make it.

    The first of the functions sums in place, so that its operand need not stay as it is.
    """
    out = IRBuilder("begin", KERNEL, public=True, may_unwind=True)
    buffers, sizes, _, _ = out.parameters
    source, target, _, cell, record = (out.pointer(buffers, place) for place in range(5))
    count, item, which = (out.number(sizes, place) for place in (0, 1, 6))
    function = functions[0].symbol
    for number, each in enumerate(functions[1:], 1):
        function = out.select(out.test("eq", which, number), each.symbol, function)
    queue_address = out.pointer(cell, group_cells.QUEUE)
    with out.when(out.test("eq", queue_address, NULL)):
        out.call(f"{function}", buffers, sizes, 0, 1)
        out.give()
    is_sum = out.test("eq", which, 0)
    moved = out.combine("and", is_sum, out.test("ne", source, target))
    with out.when(moved):
        out.copy(target, source, out.mul(count, item))
    queue, call = out.record(QUEUE, queue_address), out.record(CALL, record)
    with out.repeat():
        out.leave_unless(out.test("sge", out.sub(queue["left"], queue["seen"]), ROOM))
        _see_one(out, queue)
    call["function"], call["sizes"], call["cell"] = function, sizes, cell
    call["source"], call["target"] = out.select(is_sum, target, source), target
    call["error"], call["failed"] = call.address("failed"), 0
    left = queue["left"]
    out.store(record, out.at("ptr", queue.address("calls"), out.rem(left, ROOM)))
    call["ticket"] = out.add(left, 1)
    out.store_atomic(out.add(left, 1), queue.address("left"), "release")
    out.call("sem_post", queue.address("work"), result="i32")
    return out


def wait() -> IRBuilder:
    """`wait(result, error, cell, call)`: return once a call is made, with its error if it failed.

    After a failure none of the calls behind it is under way.
    """
    out = IRBuilder("wait", KERNEL, public=True, may_unwind=True)
    error, cell, record = (out.pointer(out.parameters[0], place) for place in (1, 2, 3))
    queue_address = out.pointer(cell, group_cells.QUEUE)
    with out.when(out.test("eq", queue_address, NULL)):
        out.give()
    queue, call = out.record(QUEUE, queue_address), out.record(CALL, record)
    _see_all(out, queue, call["ticket"])
    with out.when(out.test("ne", call["failed"], 0)):
        _see_all(out, queue, queue["left"])
        out.store_atomic(0, queue.address("broken"), "release")
        out.store(1, error, "i32")
    return out


def drain() -> IRBuilder:
    """`drain(queue)`: return once no call is left; those that have not begun are not made."""
    out = IRBuilder("drain", ("ptr %queue",), public=True, may_unwind=True)
    queue = out.record(QUEUE, out.parameters[0])
    out.store_atomic(1, queue.address("broken"), "release")
    _see_all(out, queue, queue["left"])
    out.store_atomic(0, queue.address("broken"), "release")
    return out


def serve() -> IRBuilder:
    """`serve(queue)`: make the calls that are left, one by one, for as long as there is a process.

    A function is given 1 as its first iteration where it runs here, 0 where the program runs it.
    """
    out = IRBuilder("serve", ("ptr %queue",), public=True, may_unwind=True)
    queue = out.record(QUEUE, out.parameters[0])
    with out.repeat():
        _wait_for(out, queue.address("work"))
        done = queue["done"]
        place = out.at("ptr", queue.address("calls"), out.rem(done, ROOM))
        call = out.record(CALL, out.load("ptr", place))
        broken = out.load_atomic(queue.address("broken"), "acquire")
        with out.choose(out.test("eq", broken, 0)) as (whole, skipped):
            with whole:
                out.call(call["function"], call.address("source"), call["sizes"], 1, 2)
                with out.when(out.test("ne", call["failed"], 0)):
                    out.store_atomic(1, queue.address("broken"), "release")
            with skipped:
                call["failed"] = 1
        queue["done"] = out.add(done, 1)
        out.call("sem_post", queue.address("finished"), result="i32")
    return out


def meet(out: IRBuilder, cell: str, is_beside: str, operands: Sequence[str]) -> str:
    """Begin a sum of a few words, and return its code once all processes have met in it.

    In the thread that serves a queue it sleeps between questions, unless the program waits, too.
    """
    request, status, flag = out.room("i64"), out.room("[8 x i64]"), out.room("i32")
    code = out.call(out.pointer(cell, group_cells.ISSUE), *operands, request, result="i32")
    pause = out.room("[2 x i64]")
    out.store(0, pause)
    out.store(SLEEP, out.at("i64", pause, 1))
    result, asked = out.variable(code), out.variable(0)
    queue = out.record(QUEUE, out.pointer(cell, group_cells.QUEUE))
    with out.repeat():
        out.leave_unless(out.test("eq", result.value, "0"))
        test = out.pointer(cell, group_cells.TEST)
        result.value = out.call(test, request, flag, status, result="i32")
        out.leave_unless(out.test("eq", out.load("i32", flag), 0))
        asked.value = out.add(asked.value, 1)
        is_long = out.combine("and", is_beside, out.test("sgt", asked.value, SPINS))
        with out.when(is_long), out.when(out.test("eq", queue["hurry"], 0)):
            out.call("nanosleep", pause, "ptr null", result="i32")
    return result.value


def _see_one(out: IRBuilder, queue: Record) -> None:
    _wait_for(out, queue.address("finished"))
    queue["seen"] = out.add(queue["seen"], 1)


def _see_all(out: IRBuilder, queue: Record, until: str) -> None:
    """Wait until so many calls of a queue are made."""
    out.store_atomic(1, queue.address("hurry"), "release")
    with out.repeat():
        out.leave_unless(out.test("slt", queue["seen"], until))
        _see_one(out, queue)
    out.store_atomic(0, queue.address("hurry"), "release")


def _wait_for(out: IRBuilder, semaphore: str) -> None:
    """Sleep until a semaphore can be taken; a signal does not end it."""
    with out.repeat():
        out.leave_unless(out.test("ne", out.call("sem_wait", semaphore, result="i32"), 0))


def make_queue(serve_address: int, drain_address: int) -> tuple[Array, Callable[[], None]] | None:
    """A queue with its thread, and what empties it; None where the system has no semaphores."""
    library = ctypes.CDLL(None)
    queue = np.zeros(WORDS, np.int64)
    address = queue.ctypes.data
    for place in (0, 4):
        if library.sem_init(ctypes.c_void_p(address + 8 * place), 0, 0):
            return None
    # The thread waits at its words as long as there is a process, and so after the interpreter has
    # let go of all arrays: memory that others have by then could wake it, to calls that are none.
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(queue))
    native = ctypes.CFUNCTYPE(None, ctypes.c_void_p)
    threading.Thread(
        target=native(serve_address), args=(address,), name="weft-communication", daemon=True
    ).start()
    run_drain = native(drain_address)
    return queue, lambda: run_drain(address)
