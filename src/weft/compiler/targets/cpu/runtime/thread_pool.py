"""The native half of the thread pool: threads claim chunks of a range by an atomic counter.

The caller claims from the front and workers from the back, counted in the halves of `@next`: in the
steps of a loop a core sees the same part of an operand again and again, and has it in its cache.

A job is published in `@job` by the one caller that holds `@busy`; any other caller runs its chunks
itself. Workers enter through `@gate`, whose low half counts who is inside; the caller closes it
when no chunk is left, and returns when it is empty. So no worker sees a job change under its hands,
and all that was claimed is finished. Borders of chunks depend on extent and grain alone.

`@epoch` announces a job: a serial number above, the number of workers wanted in its low 16 bits.
A worker that has waited for `@spins` pauses sleeps on its own condition variable. "I am asleep; is
there a job?" and "there is a job; who is asleep?" are sequentially consistent: one sees the other.

>>> from weft.compiler.targets.cpu.runtime.thread_pool import thread_pool
>>> thread_pool() is thread_pool()
True
"""

from __future__ import annotations

import platform
from collections.abc import Iterator
from contextlib import contextmanager
from threading import Lock

import llvmlite.binding as llvm

from weft.compiler.targets.llvm.ir_builder import (
    FALSE,
    NULL,
    TRUE,
    IRBuilder,
    Struct,
    module_text,
)
from weft.core.forks import renew_in_children
from weft.runtime.compile_queue import run_shielded
from weft.runtime.threads import LARGEST_POOL, Pool, attach

PARALLEL_FOR = "weft_parallel_for"
"""What native code calls: `void (ptr kernel, ptr buffers, ptr sizes, i64 extent, i64 grain)`."""

_OPEN = 1 << 32

_LOW = _OPEN - 1
_HELPERS = (1 << 16) - 1
_ARCHITECTURES = {"x86_64": "x86", "AMD64": "x86", "arm64": "arm", "aarch64": "arm"}

_JOB = Struct("ptr kernel, ptr buffers, ptr sizes, i64 extent, i64 grain, i64 chunks")
_SLOT = Struct("i64 asleep, [7 x i64] unused, [64 x i8] mutex, [128 x i8] condition")

# What two cores write must not share a line of cache: 128 bytes, as lines are fetched in pairs.
_VARIABLES = f"""
%Line = type [16 x i64]

@epoch = global %Line zeroinitializer, align 128
@gate = global %Line zeroinitializer, align 128
@next = global %Line zeroinitializer, align 128
@busy = global %Line zeroinitializer, align 128
@job = global {_JOB.text} zeroinitializer, align 128
@limit = global i64 1, align 128
@ready = global i64 0
@workers = global i64 0
@stopping = global i64 0
@spins = global i64 1000
@starter = global ptr null
@waiting = global i64 0, align 128
@mutex = global [64 x i8] zeroinitializer, align 64
@condition = global [64 x i8] zeroinitializer, align 64
@slots = global [{LARGEST_POOL} x {_SLOT.text}] zeroinitializer, align 128
"""
_MUTEX, _CONDITION = "@mutex", "@condition"
_PARAMETERS = ("ptr %kernel", "ptr %buffers", "ptr %sizes", "i64 %extent", "i64 %grain")


def _function(name: str, *parameters: str, result: str = "void") -> IRBuilder:
    return IRBuilder(name, parameters, result=result, may_unwind=True)


def _entry(name: str, *parameters: str) -> IRBuilder:
    return IRBuilder(name, parameters, public=True, may_unwind=True)


def _pause(out: IRBuilder, architecture: str) -> None:
    """Let a waiting core say so to its neighbour; where it has no word for it, it goes round."""
    kind = _ARCHITECTURES.get(architecture)
    if kind == "x86":
        out.call("llvm.x86.sse2.pause")
    elif kind == "arm":
        out.call("llvm.aarch64.hint", "i32 1")


@contextmanager
def _while_locked(out: IRBuilder, mutex: str) -> Iterator[None]:
    """What is done while a mutex is held."""
    out.call("pthread_mutex_lock", mutex, result="i32")
    yield
    out.call("pthread_mutex_unlock", mutex, result="i32")


def _signal(out: IRBuilder, condition: str) -> None:
    out.call("pthread_cond_signal", condition, result="i32")


def _wait_while(out: IRBuilder, condition: str, mutex: str, word: str) -> None:
    """Sleep on a condition variable for as long as a word is not 0. The mutex is held."""
    with out.repeat():
        out.leave_unless(out.test("ne", out.load_atomic(word, "seq_cst"), 0))
        out.call("pthread_cond_wait", condition, mutex, result="i32")


# --- chunks --------------------------------------------------------------------------------------


def _run_chunk() -> IRBuilder:
    out = _function("run_chunk", *_PARAMETERS, "i64 %index")
    kernel, buffers, sizes, extent, grain, index = out.parameters
    begin = out.mul(index, grain)
    end = out.add(begin, out.least(out.sub(extent, begin), grain))
    out.call(kernel, buffers, sizes, begin, end)
    return out


def _run_all(run_chunk: IRBuilder) -> IRBuilder:
    out = _function("run_all", *_PARAMETERS, "i64 %chunks")
    *job, chunks = out.parameters
    with out.loop(0, chunks) as index:
        out.call(run_chunk, *job, index)
    return out


def _claim_chunks(run_chunk: IRBuilder) -> IRBuilder:
    """Claim chunks and run them until none is left: the caller from the front, workers behind."""
    out = _function("claim_chunks", *_PARAMETERS, "i64 %chunks", "i1 %is_caller")
    *job, chunks, is_caller = out.parameters
    one = out.select(is_caller, 1, _OPEN)
    with out.repeat():
        claimed = out.fetch("add", "@next", one, "monotonic")
        first, last = out.combine("and", claimed, _LOW), out.combine("lshr", claimed, 32)
        out.leave_unless(out.test("slt", out.add(first, last), chunks))
        back = out.sub(out.sub(chunks, last), 1)
        out.call(run_chunk, *job, out.select(is_caller, first, back))
    return out


# --- the caller ----------------------------------------------------------------------------------


def _parallel_for(
    run_all: IRBuilder, claim_chunks: IRBuilder, announce: IRBuilder, await_workers: IRBuilder
) -> IRBuilder:
    out = _entry("parallel_for", *_PARAMETERS)
    kernel, buffers, sizes, extent, grain = out.parameters
    with out.when(out.test("sle", extent, 0)):
        out.give()
    step = out.select(out.test("sgt", grain, 0), grain, extent)
    borders = out.combine("udiv", out.sub(extent, 1), step)
    job = kernel, buffers, sizes, extent, step, out.add(borders, 1)
    wanted = out.least(out.sub(out.load_atomic("@limit", "monotonic"), 1), borders)
    with out.when(out.test("sle", wanted, 0)):
        out.call(run_all, *job)
        out.give()
    _, is_owner = out.exchange("@busy", 0, 1, "acquire")
    with out.unless(is_owner):
        out.call(run_all, *job)
        out.give()
    with out.when(out.test("eq", out.load_atomic("@ready", "acquire"), 0)):
        out.call(out.load("ptr", "@starter"))
    published = out.record(_JOB, "@job")
    for name, value in zip(_JOB.names, job, strict=True):
        published[name] = value
    out.store_atomic(0, "@next", "monotonic")
    out.store_atomic(_OPEN, "@gate", "release")
    out.call(announce, out.least(wanted, out.load_atomic("@workers", "monotonic")))
    out.call(claim_chunks, *job, TRUE)
    out.call(await_workers)
    out.store_atomic(0, "@busy", "release")
    return out


def _announce(wake: IRBuilder) -> IRBuilder:
    """Give the job the next serial number, and say how many workers are wanted."""
    out = _function("announce", "i64 %helpers")
    helpers = out.parameters[0]
    past = out.combine("or", out.load_atomic("@epoch", "monotonic"), _HELPERS)
    out.store_atomic(out.combine("or", out.add(past, 1), helpers), "@epoch", "seq_cst")
    out.call(wake, helpers)
    return out


def _wake() -> IRBuilder:
    """Wake those of the first workers that are asleep."""
    out = _function("wake", "i64 %count")
    with out.loop(0, out.parameters[0]) as index:
        slot = out.record(_SLOT, "@slots", index)
        asleep = slot.address("asleep")
        is_asleep = out.test("ne", out.load_atomic(asleep, "seq_cst"), 0)
        with out.when(is_asleep), _while_locked(out, slot.address("mutex")):
            out.store_atomic(0, asleep, "seq_cst")
            _signal(out, slot.address("condition"))
    return out


def _await_workers(architecture: str) -> IRBuilder:
    """Close the gate and wait until nobody is inside."""
    out = _function("await_workers")
    out.fetch("and", "@gate", _LOW, "acq_rel")
    spins, count = out.load_atomic("@spins", "monotonic"), out.variable(0)
    with out.repeat():
        with out.when(out.test("eq", out.load_atomic("@gate", "acquire"), 0)):
            out.give()
        _pause(out, architecture)
        count.value = out.add(count.value, 1)
        out.leave_unless(out.test("slt", count.value, spins))
    with _while_locked(out, _MUTEX):
        out.store_atomic(1, "@waiting", "seq_cst")
        _wait_while(out, _CONDITION, _MUTEX, "@gate")
        out.store_atomic(0, "@waiting", "seq_cst")
    return out


# --- workers -------------------------------------------------------------------------------------


def _worker(
    sleep: IRBuilder, enter_gate: IRBuilder, work_and_leave: IRBuilder, architecture: str
) -> IRBuilder:
    """Watch the epoch: help where this worker is wanted, and sleep after a while without a job."""
    out = _entry("worker", "i64 %index")
    index = out.parameters[0]
    slot = out.at(_SLOT.text, "@slots", index)
    seen, count = out.variable(0), out.variable(0)
    with out.repeat():
        epoch = out.load_atomic("@epoch", "acquire")
        with out.choose(out.test("ne", epoch, seen.value)) as (is_new, is_known):
            with is_new:
                seen.value = epoch
                helpers = out.combine("and", epoch, _HELPERS)
                with out.when(out.test("slt", index, helpers)):
                    with out.when(out.call(enter_gate)):
                        out.call(work_and_leave)
                    count.value = "0"
            with is_known:
                with out.when(out.test("ne", out.load_atomic("@stopping", "acquire"), 0)):
                    out.give()
                _pause(out, architecture)
                count.value = out.add(count.value, 1)
                spins = out.load_atomic("@spins", "monotonic")
                with out.unless(out.test("slt", count.value, spins)):
                    out.call(sleep, slot, seen.value)
                    count.value = "0"
    return out


def _sleep() -> IRBuilder:
    """Sleep until woken, unless there is a job that was not seen, or the pool stops."""
    out = _function("sleep", "ptr %slot", "i64 %seen")
    slot, seen = out.record(_SLOT, out.parameters[0]), out.parameters[1]
    asleep = slot.address("asleep")
    out.store_atomic(1, asleep, "seq_cst")
    epoch = out.load_atomic("@epoch", "seq_cst")
    stopping = out.load_atomic("@stopping", "seq_cst")
    is_new, is_stopping = out.test("ne", epoch, seen), out.test("ne", stopping, 0)
    with out.when(out.combine("or", is_new, is_stopping)):
        out.store_atomic(0, asleep, "seq_cst")
        out.give()
    mutex, condition = slot.address("mutex"), slot.address("condition")
    with _while_locked(out, mutex):
        _wait_while(out, condition, mutex, asleep)
    return out


def _enter_gate() -> IRBuilder:
    """Count this worker in, if the gate is open: whether it is inside."""
    out = _function("enter_gate", result="i1")
    state = out.variable(out.load_atomic("@gate", "monotonic"))
    with out.repeat():
        with out.when(out.test("eq", out.combine("and", state.value, _OPEN), 0)):
            out.give(FALSE)
        entered = out.add(state.value, 1)
        state.value, is_inside = out.exchange("@gate", state.value, entered, "acquire")
        with out.when(is_inside):
            out.give(TRUE)
    return out


def _work_and_leave(claim_chunks: IRBuilder) -> IRBuilder:
    """Help with the job; the last one that leaves wakes the caller, if that one sleeps."""
    out = _function("work_and_leave")
    job = out.record(_JOB, "@job").all(*_JOB.names)
    out.call(claim_chunks, *job, FALSE)
    before = out.fetch("sub", "@gate", 1, "seq_cst")
    with out.when(out.test("eq", before, 1)):
        waiting = out.load_atomic("@waiting", "seq_cst")
        with out.when(out.test("ne", waiting, 0)), _while_locked(out, _MUTEX):
            _signal(out, _CONDITION)
    return out


# --- the life of the pool ------------------------------------------------------------------------


def _initialize() -> IRBuilder:
    out = _entry("initialize")
    for name in ("gate", "busy", "workers", "stopping", "waiting", "ready"):
        out.store(0, f"@{name}")

    def begin(mutex: str, condition: str) -> None:
        out.call("pthread_mutex_init", mutex, NULL, result="i32")
        out.call("pthread_cond_init", condition, NULL, result="i32")

    begin(_MUTEX, _CONDITION)
    with out.loop(0, LARGEST_POOL) as index:
        slot = out.record(_SLOT, "@slots", index)
        slot["asleep"] = 0
        begin(slot.address("mutex"), slot.address("condition"))
    return out


def _stop(wake: IRBuilder) -> IRBuilder:
    out = _entry("stop")
    out.store_atomic(0, "@workers", "seq_cst")
    out.store_atomic(1, "@stopping", "seq_cst")
    out.call(wake, LARGEST_POOL)
    return out


def _spin(architecture: str) -> IRBuilder:
    """Pause so many times, which tells how long that takes."""
    out = _entry("spin", "i64 %count")
    with out.loop(0, out.parameters[0]):
        _pause(out, architecture)
    return out


def source(architecture: str) -> str:
    """The pool as LLVM IR for a machine as `platform.machine()` names it."""
    run_chunk, wake, await_workers = _run_chunk(), _wake(), _await_workers(architecture)
    run_all, claim_chunks = _run_all(run_chunk), _claim_chunks(run_chunk)
    announce, sleep, enter_gate = _announce(wake), _sleep(), _enter_gate()
    work_and_leave = _work_and_leave(claim_chunks)
    entries = (
        _parallel_for(run_all, claim_chunks, announce, await_workers),
        _worker(sleep, enter_gate, work_and_leave, architecture),
        _initialize(), _stop(wake), _spin(architecture),
    )  # fmt: skip
    chunks = (run_chunk, run_all, claim_chunks)
    waiting = (wake, announce, await_workers, sleep, enter_gate, work_and_leave)
    return module_text(_VARIABLES, *chunks, *waiting, *entries)


_FUNCTIONS = ("parallel_for", "worker", "initialize", "stop", "spin")
_VALUES = ("limit", "ready", "workers", "stopping", "spins", "starter")

_lock = renew_in_children(Lock())
_made: list[Pool] = []


def thread_pool() -> Pool:
    """The pool of this process; its native half is compiled on the first call.

    Native code may then call `PARALLEL_FOR` by that name, or by `thread_pool().address`.
    """
    if not _made:
        with _lock:
            if not _made:
                _made.append(_build())
    return _made[0]


def _build() -> Pool:
    symbols = run_shielded(lambda: _compile(source(platform.machine())))
    llvm.add_symbol(PARALLEL_FOR, symbols["parallel_for"])
    return attach(symbols)


def _compile(text: str) -> dict[str, int]:
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    # Unoptimised: 7 ms instead of 30, and a range costs nanoseconds more.
    target = llvm.Target.from_default_triple()
    machine = target.create_target_machine(opt=0, jit=True, codemodel="large")
    module = llvm.parse_assembly(text)
    module.verify()
    engine = llvm.create_mcjit_compiler(module, machine)
    engine.finalize_object()
    symbols = {name: int(engine.get_function_address(f"weft.{name}")) for name in _FUNCTIONS}
    symbols |= {name: int(engine.get_global_value_address(name)) for name in _VALUES}
    # Workers may still be inside while the interpreter takes its modules down: never freed.
    engine.detach()
    return symbols
