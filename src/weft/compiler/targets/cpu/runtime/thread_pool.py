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
from threading import Lock

import llvmlite.binding as llvm

from weft.core.forks import renewed
from weft.runtime.compile_queue import shielded
from weft.runtime.threads import LARGEST_POOL, Pool, attach

PARALLEL_FOR = "weft_parallel_for"
"""What native code calls: `void (ptr kernel, ptr buffers, ptr sizes, i64 extent, i64 grain)`."""

_OPEN = 1 << 32

_PAUSES = {
    "x86": ("declare void @llvm.x86.sse2.pause()", "call void @llvm.x86.sse2.pause()"),
    "arm": ("declare void @llvm.aarch64.hint(i32)", "call void @llvm.aarch64.hint(i32 1)"),
}
"""How a waiting core says so to its neighbour; elsewhere it just goes round."""

_ARCHITECTURES = {"x86_64": "x86", "AMD64": "x86", "arm64": "arm", "aarch64": "arm"}

# What two cores write must not share a line of cache: 128 bytes, as lines are fetched in pairs.
_VARIABLES = f"""
%Line = type [16 x i64]
%Slot = type {{ i64, [7 x i64], [64 x i8], [128 x i8] }}
%Job = type {{ ptr, ptr, ptr, i64, i64, i64 }}

@epoch = global %Line zeroinitializer, align 128
@gate = global %Line zeroinitializer, align 128
@next = global %Line zeroinitializer, align 128
@busy = global %Line zeroinitializer, align 128
@job = global %Job zeroinitializer, align 128
@limit = global i64 1, align 128
@ready = global i64 0
@workers = global i64 0
@stopping = global i64 0
@spins = global i64 1000
@starter = global ptr null
@waiting = global i64 0, align 128
@mutex = global [64 x i8] zeroinitializer, align 64
@condition = global [64 x i8] zeroinitializer, align 64
@slots = global [{LARGEST_POOL} x %Slot] zeroinitializer, align 128

declare i32 @pthread_mutex_init(ptr, ptr)
declare i32 @pthread_mutex_lock(ptr)
declare i32 @pthread_mutex_unlock(ptr)
declare i32 @pthread_cond_init(ptr, ptr)
declare i32 @pthread_cond_wait(ptr, ptr)
declare i32 @pthread_cond_signal(ptr)
"""

_CHUNKS = """
define internal void @run_chunk(
    ptr %kernel, ptr %buffers, ptr %sizes, i64 %extent, i64 %grain, i64 %index) {
  %begin = mul i64 %index, %grain
  %rest = sub i64 %extent, %begin
  %is_short = icmp slt i64 %rest, %grain
  %length = select i1 %is_short, i64 %rest, i64 %grain
  %end = add i64 %begin, %length
  call void %kernel(ptr %buffers, ptr %sizes, i64 %begin, i64 %end)
  ret void
}

define internal void @run_all(
    ptr %kernel, ptr %buffers, ptr %sizes, i64 %extent, i64 %grain, i64 %chunks) {
entry:
  br label %loop
loop:
  %index = phi i64 [ 0, %entry ], [ %following, %loop ]
  call void @run_chunk(
      ptr %kernel, ptr %buffers, ptr %sizes, i64 %extent, i64 %grain, i64 %index)
  %following = add i64 %index, 1
  %has_more = icmp slt i64 %following, %chunks
  br i1 %has_more, label %loop, label %done
done:
  ret void
}

define internal void @claim_chunks(
    ptr %kernel, ptr %buffers, ptr %sizes, i64 %extent, i64 %grain, i64 %chunks, i1 %is_caller) {
entry:
  %one = select i1 %is_caller, i64 1, i64 4294967296
  br label %claim
claim:
  %claimed = atomicrmw add ptr @next, i64 %one monotonic
  %first = and i64 %claimed, 4294967295
  %last = lshr i64 %claimed, 32
  %sum = add i64 %first, %last
  %is_left = icmp slt i64 %sum, %chunks
  br i1 %is_left, label %run, label %done
run:
  %rest = sub i64 %chunks, %last
  %back = sub i64 %rest, 1
  %index = select i1 %is_caller, i64 %first, i64 %back
  call void @run_chunk(
      ptr %kernel, ptr %buffers, ptr %sizes, i64 %extent, i64 %grain, i64 %index)
  br label %claim
done:
  ret void
}
"""

_CALLER = f"""
define void @{PARALLEL_FOR}(ptr %kernel, ptr %buffers, ptr %sizes, i64 %extent, i64 %grain) {{
entry:
  %is_empty = icmp sle i64 %extent, 0
  br i1 %is_empty, label %done, label %divide
divide:
  %is_grain = icmp sgt i64 %grain, 0
  %step = select i1 %is_grain, i64 %grain, i64 %extent
  %last = sub i64 %extent, 1
  %borders = udiv i64 %last, %step
  %chunks = add i64 %borders, 1
  %limit = load atomic i64, ptr @limit monotonic, align 8
  %most = sub i64 %limit, 1
  %wanted = call i64 @llvm.smin.i64(i64 %most, i64 %borders)
  %is_single = icmp sle i64 %wanted, 0
  br i1 %is_single, label %alone, label %own
own:
  %exchange = cmpxchg ptr @busy, i64 0, i64 1 acquire monotonic
  %is_owner = extractvalue {{ i64, i1 }} %exchange, 1
  br i1 %is_owner, label %prepare, label %alone
alone:
  call void @run_all(
      ptr %kernel, ptr %buffers, ptr %sizes, i64 %extent, i64 %step, i64 %chunks)
  br label %done
prepare:
  %ready = load atomic i64, ptr @ready acquire, align 8
  %is_ready = icmp ne i64 %ready, 0
  br i1 %is_ready, label %publish, label %start
start:
  %starter = load ptr, ptr @starter
  call void %starter()
  br label %publish
publish:
  store ptr %kernel, ptr @job
  store ptr %buffers, ptr getelementptr (%Job, ptr @job, i64 0, i32 1)
  store ptr %sizes, ptr getelementptr (%Job, ptr @job, i64 0, i32 2)
  store i64 %extent, ptr getelementptr (%Job, ptr @job, i64 0, i32 3)
  store i64 %step, ptr getelementptr (%Job, ptr @job, i64 0, i32 4)
  store i64 %chunks, ptr getelementptr (%Job, ptr @job, i64 0, i32 5)
  store atomic i64 0, ptr @next monotonic, align 8
  store atomic i64 {_OPEN}, ptr @gate release, align 8
  %workers = load atomic i64, ptr @workers monotonic, align 8
  %helpers = call i64 @llvm.smin.i64(i64 %wanted, i64 %workers)
  call void @announce(i64 %helpers)
  call void @claim_chunks(
      ptr %kernel, ptr %buffers, ptr %sizes, i64 %extent, i64 %step, i64 %chunks, i1 true)
  call void @await_workers()
  store atomic i64 0, ptr @busy release, align 8
  br label %done
done:
  ret void
}}

define internal void @announce(i64 %helpers) {{
entry:
  %old = load atomic i64, ptr @epoch monotonic, align 8
  %past = or i64 %old, 65535
  %serial = add i64 %past, 1
  %new = or i64 %serial, %helpers
  store atomic i64 %new, ptr @epoch seq_cst, align 8
  call void @wake(i64 %helpers)
  ret void
}}

define internal void @wake(i64 %count) {{
entry:
  br label %check
check:
  %index = phi i64 [ 0, %entry ], [ %following, %loop ], [ %following, %signal ]
  %is_left = icmp slt i64 %index, %count
  br i1 %is_left, label %loop, label %done
loop:
  %following = add i64 %index, 1
  %slot = getelementptr %Slot, ptr @slots, i64 %index
  %asleep = load atomic i64, ptr %slot seq_cst, align 8
  %is_asleep = icmp ne i64 %asleep, 0
  br i1 %is_asleep, label %signal, label %check
signal:
  %mutex = getelementptr %Slot, ptr %slot, i64 0, i32 2
  %condition = getelementptr %Slot, ptr %slot, i64 0, i32 3
  %locked = call i32 @pthread_mutex_lock(ptr %mutex)
  store atomic i64 0, ptr %slot seq_cst, align 8
  %signalled = call i32 @pthread_cond_signal(ptr %condition)
  %unlocked = call i32 @pthread_mutex_unlock(ptr %mutex)
  br label %check
done:
  ret void
}}

define internal void @await_workers() {{
entry:
  %before = atomicrmw and ptr @gate, i64 {_OPEN - 1} acq_rel
  %spins = load atomic i64, ptr @spins monotonic, align 8
  br label %check
check:
  %count = phi i64 [ 0, %entry ], [ %counted, %spin ]
  %inside = load atomic i64, ptr @gate acquire, align 8
  %is_empty = icmp eq i64 %inside, 0
  br i1 %is_empty, label %done, label %spin
spin:
  call void @pause()
  %counted = add i64 %count, 1
  %is_patient = icmp slt i64 %counted, %spins
  br i1 %is_patient, label %check, label %sleep
sleep:
  %locked = call i32 @pthread_mutex_lock(ptr @mutex)
  store atomic i64 1, ptr @waiting seq_cst, align 8
  br label %recheck
recheck:
  %left = load atomic i64, ptr @gate seq_cst, align 8
  %is_over = icmp eq i64 %left, 0
  br i1 %is_over, label %awake, label %wait
wait:
  %waited = call i32 @pthread_cond_wait(ptr @condition, ptr @mutex)
  br label %recheck
awake:
  store atomic i64 0, ptr @waiting seq_cst, align 8
  %unlocked = call i32 @pthread_mutex_unlock(ptr @mutex)
  br label %done
done:
  ret void
}}

declare i64 @llvm.smin.i64(i64, i64)
"""

_WORKER = f"""
define void @worker(i64 %index) {{
entry:
  %slot = getelementptr %Slot, ptr @slots, i64 %index
  br label %idle
idle:
  %known = phi i64 [ 0, %entry ], [ %epoch, %enter ], [ %epoch, %work ], [ %seen, %sleep ]
  br label %watch
watch:
  %seen = phi i64 [ %known, %idle ], [ %epoch, %skip ], [ %seen, %spin ]
  %count = phi i64 [ 0, %idle ], [ %count, %skip ], [ %counted, %spin ]
  %epoch = load atomic i64, ptr @epoch acquire, align 8
  %is_new = icmp ne i64 %epoch, %seen
  br i1 %is_new, label %skip, label %unchanged
skip:
  %helpers = and i64 %epoch, 65535
  %is_wanted = icmp slt i64 %index, %helpers
  br i1 %is_wanted, label %enter, label %watch
unchanged:
  %stopping = load atomic i64, ptr @stopping acquire, align 8
  %is_over = icmp ne i64 %stopping, 0
  br i1 %is_over, label %done, label %spin
spin:
  call void @pause()
  %counted = add i64 %count, 1
  %spins = load atomic i64, ptr @spins monotonic, align 8
  %is_patient = icmp slt i64 %counted, %spins
  br i1 %is_patient, label %watch, label %sleep
sleep:
  call void @sleep(ptr %slot, i64 %seen)
  br label %idle
enter:
  %is_inside = call i1 @enter_gate()
  br i1 %is_inside, label %work, label %idle
work:
  call void @work_and_leave()
  br label %idle
done:
  ret void
}}

define internal void @sleep(ptr %slot, i64 %seen) {{
entry:
  store atomic i64 1, ptr %slot seq_cst, align 8
  %epoch = load atomic i64, ptr @epoch seq_cst, align 8
  %stopping = load atomic i64, ptr @stopping seq_cst, align 8
  %is_new = icmp ne i64 %epoch, %seen
  %is_stopping = icmp ne i64 %stopping, 0
  %is_called = or i1 %is_new, %is_stopping
  br i1 %is_called, label %stay, label %doze
stay:
  store atomic i64 0, ptr %slot seq_cst, align 8
  br label %done
doze:
  %mutex = getelementptr %Slot, ptr %slot, i64 0, i32 2
  %condition = getelementptr %Slot, ptr %slot, i64 0, i32 3
  %locked = call i32 @pthread_mutex_lock(ptr %mutex)
  br label %check
check:
  %asleep = load atomic i64, ptr %slot seq_cst, align 8
  %is_asleep = icmp ne i64 %asleep, 0
  br i1 %is_asleep, label %wait, label %awake
wait:
  %waited = call i32 @pthread_cond_wait(ptr %condition, ptr %mutex)
  br label %check
awake:
  %unlocked = call i32 @pthread_mutex_unlock(ptr %mutex)
  br label %done
done:
  ret void
}}

define internal i1 @enter_gate() {{
entry:
  %first = load atomic i64, ptr @gate monotonic, align 8
  br label %try
try:
  %state = phi i64 [ %first, %entry ], [ %found, %exchange ]
  %open = and i64 %state, {_OPEN}
  %is_open = icmp ne i64 %open, 0
  br i1 %is_open, label %exchange, label %refused
exchange:
  %entered = add i64 %state, 1
  %pair = cmpxchg ptr @gate, i64 %state, i64 %entered acquire monotonic
  %found = extractvalue {{ i64, i1 }} %pair, 0
  %is_inside = extractvalue {{ i64, i1 }} %pair, 1
  br i1 %is_inside, label %inside, label %try
inside:
  ret i1 true
refused:
  ret i1 false
}}

define internal void @work_and_leave() {{
entry:
  %kernel = load ptr, ptr @job
  %buffers = load ptr, ptr getelementptr (%Job, ptr @job, i64 0, i32 1)
  %sizes = load ptr, ptr getelementptr (%Job, ptr @job, i64 0, i32 2)
  %extent = load i64, ptr getelementptr (%Job, ptr @job, i64 0, i32 3)
  %grain = load i64, ptr getelementptr (%Job, ptr @job, i64 0, i32 4)
  %chunks = load i64, ptr getelementptr (%Job, ptr @job, i64 0, i32 5)
  call void @claim_chunks(
      ptr %kernel, ptr %buffers, ptr %sizes, i64 %extent, i64 %grain, i64 %chunks, i1 false)
  %before = atomicrmw sub ptr @gate, i64 1 seq_cst
  %is_last = icmp eq i64 %before, 1
  br i1 %is_last, label %ask, label %done
ask:
  %waiting = load atomic i64, ptr @waiting seq_cst, align 8
  %is_awaited = icmp ne i64 %waiting, 0
  br i1 %is_awaited, label %signal, label %done
signal:
  %locked = call i32 @pthread_mutex_lock(ptr @mutex)
  %signalled = call i32 @pthread_cond_signal(ptr @condition)
  %unlocked = call i32 @pthread_mutex_unlock(ptr @mutex)
  br label %done
done:
  ret void
}}
"""

_LIFE = f"""
define void @initialize() {{
entry:
  store i64 0, ptr @gate
  store i64 0, ptr @busy
  store i64 0, ptr @workers
  store i64 0, ptr @stopping
  store i64 0, ptr @waiting
  store i64 0, ptr @ready
  %made = call i32 @pthread_mutex_init(ptr @mutex, ptr null)
  %formed = call i32 @pthread_cond_init(ptr @condition, ptr null)
  br label %loop
loop:
  %index = phi i64 [ 0, %entry ], [ %following, %loop ]
  %slot = getelementptr %Slot, ptr @slots, i64 %index
  %mutex = getelementptr %Slot, ptr %slot, i64 0, i32 2
  %condition = getelementptr %Slot, ptr %slot, i64 0, i32 3
  store i64 0, ptr %slot
  %slot_made = call i32 @pthread_mutex_init(ptr %mutex, ptr null)
  %slot_formed = call i32 @pthread_cond_init(ptr %condition, ptr null)
  %following = add i64 %index, 1
  %has_more = icmp slt i64 %following, {LARGEST_POOL}
  br i1 %has_more, label %loop, label %done
done:
  ret void
}}

define void @stop() {{
  store atomic i64 0, ptr @workers seq_cst, align 8
  store atomic i64 1, ptr @stopping seq_cst, align 8
  call void @wake(i64 {LARGEST_POOL})
  ret void
}}

define void @spin(i64 %count) {{
entry:
  br label %loop
loop:
  %index = phi i64 [ 0, %entry ], [ %following, %loop ]
  call void @pause()
  %following = add i64 %index, 1
  %has_more = icmp slt i64 %following, %count
  br i1 %has_more, label %loop, label %done
done:
  ret void
}}
"""

_SYMBOLS = (
    PARALLEL_FOR, "worker", "initialize", "stop", "spin",
    "limit", "ready", "workers", "stopping", "spins", "starter",
)  # fmt: skip

_lock = renewed(Lock())
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


def source(architecture: str) -> str:
    """The pool as LLVM IR for a machine as `platform.machine()` names it."""
    declaration, pause = _PAUSES.get(_ARCHITECTURES.get(architecture, ""), ("", ""))
    function = f"define internal void @pause() alwaysinline {{\n  {pause}\n  ret void\n}}\n"
    return "\n".join([_VARIABLES, declaration, function, _CHUNKS, _CALLER, _WORKER, _LIFE])


def _build() -> Pool:
    symbols = shielded(lambda: _compile(source(platform.machine())))
    llvm.add_symbol(PARALLEL_FOR, symbols[PARALLEL_FOR])
    symbols["parallel_for"] = symbols.pop(PARALLEL_FOR)
    return attach(symbols)


def _compile(text: str) -> dict[str, int]:
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    # Unoptimised: 7 ms instead of 30, and a range costs nanoseconds more.
    machine = llvm.Target.from_default_triple().create_target_machine(opt=0, jit=True)
    module = llvm.parse_assembly(text)
    module.verify()
    engine = llvm.create_mcjit_compiler(module, machine)
    engine.finalize_object()
    symbols = {name: _address(engine, name) for name in _SYMBOLS}
    # Workers may still be inside while the interpreter takes its modules down: never freed.
    engine.detach()
    return symbols


def _address(engine: llvm.ExecutionEngine, name: str) -> int:
    return int(engine.get_function_address(name) or engine.get_global_value_address(name))
