"""Threads of an exported program: what cuts a launch into chunks and lets several threads run them.

The pool of an instance lies in its memory. `parallel` publishes a launch by a new number of it and
takes chunks itself; workers watch that number for a while, and then sleep until they are woken. A
worker has scratch memory and a list of buffers of its own. Iterations of a launch are independent,
so results do not depend on who ran which.
"""

from __future__ import annotations

from weft.compiler.export.machines import Platform
from weft.compiler.targets.llvm.ir_builder import NULL, IRBuilder, Record, Struct
from weft.core.errors import ArgumentError, UnsupportedError

POOL_BYTES, RECORD_BYTES = 640, 64
"""The pool itself, and a worker's record behind it."""
MOST_THREADS = 256

_ORDER = "seq_cst"
# What is written often has a line of cache of its own.
_POOL = Struct(
    "i64 number, i64 stop, ptr function, ptr buffers, i64 count, ptr numbers, i64 end, i64 grain,"
    "[8 x i64] next, [8 x i64] active, i64 workers, i64 sleepers, [6 x i64] unused,"
    "[16 x i64] mutex, [16 x i64] condition"
)
"""The launch, and its number; the first iteration that nobody has; who is at work, and asleep."""
_WORKER = Struct("ptr pool, ptr scratch, i64 thread")
_WATCHED, _PATIENT = 20_000, 2_000
"""How often a worker looks for a launch before it sleeps, and the caller before it yields."""


# --- a pool's functions --------------------------------------------------------------------------


def _take_chunks() -> IRBuilder:
    """Run chunks of the launch until none is left."""
    out = IRBuilder("take_chunks", ("ptr %pool", "ptr %buffers", "ptr %cell", "ptr %scratch"))
    _, buffers, cell, scratch = out.parameters
    pool = out.record(_POOL, "%pool")
    function, numbers, end, grain = pool.all("function", "numbers", "end", "grain")
    following = pool.address("next")
    with out.repeat():
        first = out.fetch("add", following, grain, _ORDER)
        out.leave_unless(out.test("slt", first, end))
        last = out.least(out.add(first, grain), end)
        out.store(scratch, cell)
        out.call(function, buffers, numbers, first, last)
    return out


def _work(take_chunks: IRBuilder, pointers: int) -> IRBuilder:
    """What a worker's thread runs: it waits for a launch and takes chunks of it, until the end."""
    out = IRBuilder("work", ("ptr %worker",), result="ptr")
    worker = out.record(_WORKER, "%worker")
    cell, list_of_own = out.room("ptr", align=16), out.room("ptr", pointers, align=16)
    out.store(cell, list_of_own)  # kernels find their scratch memory before the first buffer
    buffers = out.at("ptr", list_of_own, 1)
    address = worker["pool"]
    pool = out.record(_POOL, address)
    number, stop = pool.address("number"), pool.address("stop")
    seen = out.variable(0)
    with out.repeat():
        _wait_for_launch(out, pool, number, seen.value)
        seen.value = out.load_atomic(number, _ORDER)
        with out.when(out.test("ne", out.load_atomic(stop, _ORDER), 0)):
            out.give(NULL)
        source, count = pool.all("buffers", "count")
        with out.loop(0, count) as place:
            out.store(out.pointer(source, place), out.at("ptr", buffers, place))
        out.call(take_chunks, address, buffers, cell, worker["scratch"])  # each run places it anew
        out.fetch("sub", pool.address("active"), 1, _ORDER)
    return out


def _wait_for_launch(out: IRBuilder, pool: Record, number: str, seen: str) -> None:
    """Watch the number of the launch for a while, then sleep until it is another one."""
    tries = out.variable(0)
    with out.repeat():
        out.leave_unless(out.test("eq", out.load_atomic(number, _ORDER), seen))
        tries.value = out.add(tries.value, 1)
        with out.when(out.test("sgt", tries.value, _WATCHED)):
            mutex, sleepers = pool.address("mutex"), pool.address("sleepers")
            out.call("pthread_mutex_lock", mutex, result="i32")
            out.fetch("add", sleepers, 1, _ORDER)
            with out.repeat():
                out.leave_unless(out.test("eq", out.load_atomic(number, _ORDER), seen))
                out.call("pthread_cond_wait", pool.address("condition"), mutex, result="i32")
            out.fetch("sub", sleepers, 1, _ORDER)
            out.call("pthread_mutex_unlock", mutex, result="i32")


def _call_workers() -> IRBuilder:
    """Give the launch a new number, and wake those who sleep."""
    out = IRBuilder("call_workers", ("ptr %pool",))
    pool = out.record(_POOL, "%pool")
    out.fetch("add", pool.address("number"), 1, _ORDER)
    sleeping = out.load_atomic(pool.address("sleepers"), _ORDER)
    with out.when(out.test("ne", sleeping, 0)):
        mutex = pool.address("mutex")
        out.call("pthread_mutex_lock", mutex, result="i32")
        out.call("pthread_cond_broadcast", pool.address("condition"), result="i32")
        out.call("pthread_mutex_unlock", mutex, result="i32")
    return out


def _parallel(take_chunks: IRBuilder, call_workers: IRBuilder) -> IRBuilder:
    """Run all iterations of a function, in chunks of a grain, on all threads."""
    launch = "ptr %function, ptr %buffers, i64 %count, ptr %numbers, i64 %end, i64 %grain"
    out = IRBuilder("parallel", ("ptr %pool", *launch.split(", ")))
    address, *given = out.parameters
    function, buffers, _, numbers, end, grain = given
    pool = out.record(_POOL, address)
    workers = pool["workers"]
    is_alone = out.combine("or", out.test("eq", workers, 0), out.test("sle", end, grain))
    with out.when(is_alone):
        out.call(function, buffers, numbers, 0, end)
        out.give()
    names = ("function", "buffers", "count", "numbers", "end", "grain")
    for name, value in zip(names, given, strict=True):
        pool[name] = value
    active = pool.address("active")
    out.store(0, pool.address("next"))
    out.store(workers, active)
    out.call(call_workers, address)
    cell = out.pointer(buffers, -1)
    out.call(take_chunks, address, buffers, cell, out.load("ptr", cell))
    tries = out.variable(0)
    with out.repeat():
        out.leave_unless(out.test("ne", out.load_atomic(active, _ORDER), 0))
        tries.value = out.add(tries.value, 1)
        with out.when(out.test("sgt", tries.value, _PATIENT)):
            out.call("sched_yield", result="i32")
    return out


def _worker_at(out: IRBuilder, place: str) -> Record:
    """The record of a worker, behind the pool."""
    offset = out.add(out.mul(place, RECORD_BYTES), POOL_BYTES)
    return out.record(_WORKER, out.at("i8", "%pool", offset))


def _place_workers(workers: int) -> IRBuilder:
    """Say where the scratch memory of workers is: behind that of the caller, so many bytes each."""
    out = IRBuilder("place_workers", ("ptr %pool", "ptr %scratch", "i64 %own"))
    with out.loop(0, workers) as place:
        skipped = out.mul(out.add(place, 1), "%own")
        _worker_at(out, place)["scratch"] = out.at("i8", "%scratch", skipped)
    return out


def _start_workers(work: IRBuilder, workers: int, scratch_bytes: int) -> IRBuilder:
    """Start as many workers as there can be; where a thread cannot be had, fewer."""
    out = IRBuilder("start_workers", ("ptr %pool", "ptr %scratch"))
    pool = out.record(_POOL, "%pool")
    out.call("pthread_mutex_init", pool.address("mutex"), NULL, result="i32")
    out.call("pthread_cond_init", pool.address("condition"), NULL, result="i32")
    pool["workers"] = 0
    with out.loop(0, workers) as place:
        following = out.add(place, 1)
        worker = _worker_at(out, place)
        worker["pool"] = "%pool"
        worker["scratch"] = out.at("i8", "%scratch", out.mul(following, scratch_bytes))
        thread = worker.address("thread")
        failed = out.call("pthread_create", thread, NULL, work.symbol, worker.pointer, result="i32")
        out.leave_unless(out.test("eq", failed, 0))
        pool["workers"] = following
    return out


def _stop_workers(call_workers: IRBuilder) -> IRBuilder:
    """End all workers, and wait until they have ended."""
    out = IRBuilder("stop_workers", ("ptr %pool",))
    pool = out.record(_POOL, "%pool")
    out.store_atomic(1, pool.address("stop"), _ORDER)
    out.call(call_workers, "%pool")
    with out.loop(0, pool["workers"]) as place:
        out.call("pthread_join", _worker_at(out, place)["thread"], NULL, result="i32")
    out.call("pthread_cond_destroy", pool.address("condition"), result="i32")
    out.call("pthread_mutex_destroy", pool.address("mutex"), result="i32")
    return out


def pool_functions(threads: int, buffers: int, scratch: int) -> list[IRBuilder]:
    """The functions of a pool; buffers: the most of a call, scratch: bytes of a thread's own."""
    take_chunks, call_workers = _take_chunks(), _call_workers()
    work = _work(take_chunks, buffers + 1)
    return [
        take_chunks,
        work,
        call_workers,
        _parallel(take_chunks, call_workers),
        _place_workers(threads - 1),
        _start_workers(work, threads - 1, scratch),
        _stop_workers(call_workers),
    ]


def pool_bytes(threads: int) -> int:
    """The bytes of a pool in an instance; none for one thread."""
    return POOL_BYTES + RECORD_BYTES * (threads - 1) if threads > 1 else 0


def check_threads(threads: object, platform: Platform, target: str, form: str, memory: str) -> None:
    """Refuse a number of threads that is none, and threads where there are none."""
    if (
        isinstance(threads, bool)
        or not isinstance(threads, int)
        or not 1 <= threads <= MOST_THREADS
    ):
        raise ArgumentError(
            "export",
            f"{threads!r} is no number of threads",
            expected=f"a whole number from 1 to {MOST_THREADS}",
            got={"threads": threads},
            fix="threads=4",
        )
    has_threads = "linux" in platform.triple or "apple" in platform.triple
    if threads > 1 and (not has_threads or form == "c" or memory == "static"):
        reason = (
            f"{target} has no pthread" if not has_threads
            else 'form="c" is one thread' if form == "c"
            else 'memory="static" asks nobody for threads'
        )  # fmt: skip
        raise UnsupportedError(
            "export",
            f"the program cannot have {threads} threads: {reason}",
            expected='an object file with memory="heap" for Linux or macOS',
            got={"target": target, "form": form, "memory": memory},
            fix="threads=1; several instances may run in threads of your own",
        )
