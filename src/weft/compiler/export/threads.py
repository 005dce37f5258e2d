"""Threads of an exported program: what cuts a launch into chunks and lets several threads run them.

The pool of an instance lies in its memory. `parallel` publishes a launch by a new number of it and
takes chunks itself; workers watch that number for a while, and then sleep until they are woken. A
worker has scratch memory and a list of buffers of its own. Iterations of a launch are independent,
so results do not depend on who ran which.
"""

from __future__ import annotations

from string import Template

from weft.compiler.export.machines import Platform
from weft.core.errors import ArgumentError, UnsupportedError

POOL_BYTES, RECORD_BYTES = 640, 64
"""The pool itself, and a worker's record behind it."""
MOST_THREADS = 256

_POOL = Template("""\
declare i32 @pthread_create(ptr, ptr, ptr, ptr)
declare i32 @pthread_join(i64, ptr)
declare i32 @pthread_mutex_init(ptr, ptr)
declare i32 @pthread_mutex_lock(ptr)
declare i32 @pthread_mutex_unlock(ptr)
declare i32 @pthread_mutex_destroy(ptr)
declare i32 @pthread_cond_init(ptr, ptr)
declare i32 @pthread_cond_wait(ptr, ptr)
declare i32 @pthread_cond_broadcast(ptr)
declare i32 @pthread_cond_destroy(ptr)
declare i32 @sched_yield()

; launch: its number, stop, function, buffers, how many, numbers, end, grain | next | active,
; workers, sleepers | mutex | condition. What is written often has a line of cache of its own.
%pool = type { i64, i64, ptr, ptr, i64, ptr, i64, i64, [8 x i64], [8 x i64], i64, i64, [6 x i64],
  [16 x i64], [16 x i64] }

define internal void @take_chunks(ptr %pool, ptr %buffers, ptr %cell, ptr %scratch) nounwind {
entry:
  %function_at = getelementptr %pool, ptr %pool, i64 0, i32 2
  %function = load ptr, ptr %function_at
  %numbers_at = getelementptr %pool, ptr %pool, i64 0, i32 5
  %numbers = load ptr, ptr %numbers_at
  %end_at = getelementptr %pool, ptr %pool, i64 0, i32 6
  %end = load i64, ptr %end_at
  %grain_at = getelementptr %pool, ptr %pool, i64 0, i32 7
  %grain = load i64, ptr %grain_at
  %next = getelementptr %pool, ptr %pool, i64 0, i32 8
  br label %chunk
chunk:
  %first = atomicrmw add ptr %next, i64 %grain seq_cst
  %is_left = icmp slt i64 %first, %end
  br i1 %is_left, label %run, label %done
run:
  %behind = add i64 %first, %grain
  %is_whole = icmp slt i64 %behind, %end
  %last = select i1 %is_whole, i64 %behind, i64 %end
  store ptr %scratch, ptr %cell
  call void %function(ptr %buffers, ptr %numbers, i64 %first, i64 %last)
  br label %chunk
done:
  ret void
}

define internal ptr @work(ptr %record) nounwind {
entry:
  %cell = alloca ptr, align 16
  %pointers = alloca ptr, i64 $pointers, align 16
  store ptr %cell, ptr %pointers
  %buffers = getelementptr ptr, ptr %pointers, i64 1
  %pool = load ptr, ptr %record
  %scratch_at = getelementptr i8, ptr %record, i64 8
  %number = getelementptr %pool, ptr %pool, i64 0, i32 0
  %stop = getelementptr %pool, ptr %pool, i64 0, i32 1
  %active = getelementptr %pool, ptr %pool, i64 0, i32 9
  %sleepers = getelementptr %pool, ptr %pool, i64 0, i32 11
  %mutex = getelementptr %pool, ptr %pool, i64 0, i32 13
  %condition = getelementptr %pool, ptr %pool, i64 0, i32 14
  br label %wait
wait:
  %seen = phi i64 [ 0, %entry ], [ %new, %finish ]
  br label %watch
watch:
  %tries = phi i64 [ 0, %wait ], [ %more, %again ]
  %now = load atomic i64, ptr %number seq_cst, align 8
  %is_new = icmp ne i64 %now, %seen
  br i1 %is_new, label %begin, label %again
again:
  %more = add i64 %tries, 1
  %is_tired = icmp sgt i64 %more, $watched
  br i1 %is_tired, label %lie_down, label %watch
lie_down:
  %locked = call i32 @pthread_mutex_lock(ptr %mutex)
  %before = atomicrmw add ptr %sleepers, i64 1 seq_cst
  br label %sleep
sleep:
  %late = load atomic i64, ptr %number seq_cst, align 8
  %is_called = icmp ne i64 %late, %seen
  br i1 %is_called, label %rise, label %nap
nap:
  %woken = call i32 @pthread_cond_wait(ptr %condition, ptr %mutex)
  br label %sleep
rise:
  %after = atomicrmw sub ptr %sleepers, i64 1 seq_cst
  %unlocked = call i32 @pthread_mutex_unlock(ptr %mutex)
  br label %begin
begin:
  %new = load atomic i64, ptr %number seq_cst, align 8
  %stopped = load atomic i64, ptr %stop seq_cst, align 8
  %is_end = icmp ne i64 %stopped, 0
  br i1 %is_end, label %leave, label %copy
copy:
  %scratch = load ptr, ptr %scratch_at
  %list_at = getelementptr %pool, ptr %pool, i64 0, i32 3
  %list = load ptr, ptr %list_at
  %count_at = getelementptr %pool, ptr %pool, i64 0, i32 4
  %count = load i64, ptr %count_at
  br label %next
next:
  %place = phi i64 [ 0, %copy ], [ %following, %move ]
  %is_copied = icmp eq i64 %place, %count
  br i1 %is_copied, label %run, label %move
move:
  %source = getelementptr ptr, ptr %list, i64 %place
  %buffer = load ptr, ptr %source
  %target = getelementptr ptr, ptr %buffers, i64 %place
  store ptr %buffer, ptr %target
  %following = add i64 %place, 1
  br label %next
run:
  call void @take_chunks(ptr %pool, ptr %buffers, ptr %cell, ptr %scratch)
  br label %finish
finish:
  %left = atomicrmw sub ptr %active, i64 1 seq_cst
  br label %wait
leave:
  ret ptr null
}

define internal void @call_workers(ptr %pool) nounwind {
entry:
  %number = getelementptr %pool, ptr %pool, i64 0, i32 0
  %old = atomicrmw add ptr %number, i64 1 seq_cst
  %sleepers = getelementptr %pool, ptr %pool, i64 0, i32 11
  %sleeping = load atomic i64, ptr %sleepers seq_cst, align 8
  %any = icmp ne i64 %sleeping, 0
  br i1 %any, label %wake, label %done
wake:
  %mutex = getelementptr %pool, ptr %pool, i64 0, i32 13
  %condition = getelementptr %pool, ptr %pool, i64 0, i32 14
  %locked = call i32 @pthread_mutex_lock(ptr %mutex)
  %called = call i32 @pthread_cond_broadcast(ptr %condition)
  %unlocked = call i32 @pthread_mutex_unlock(ptr %mutex)
  br label %done
done:
  ret void
}

define internal void @parallel(ptr %pool, ptr %function, ptr %buffers, i64 %count, ptr %numbers,
    i64 %end, i64 %grain) nounwind {
entry:
  %workers_at = getelementptr %pool, ptr %pool, i64 0, i32 10
  %workers = load i64, ptr %workers_at
  %none = icmp eq i64 %workers, 0
  %is_one = icmp sle i64 %end, %grain
  %alone = or i1 %none, %is_one
  br i1 %alone, label %serial, label %publish
serial:
  call void %function(ptr %buffers, ptr %numbers, i64 0, i64 %end)
  ret void
publish:
  %function_at = getelementptr %pool, ptr %pool, i64 0, i32 2
  store ptr %function, ptr %function_at
  %list_at = getelementptr %pool, ptr %pool, i64 0, i32 3
  store ptr %buffers, ptr %list_at
  %count_at = getelementptr %pool, ptr %pool, i64 0, i32 4
  store i64 %count, ptr %count_at
  %numbers_at = getelementptr %pool, ptr %pool, i64 0, i32 5
  store ptr %numbers, ptr %numbers_at
  %end_at = getelementptr %pool, ptr %pool, i64 0, i32 6
  store i64 %end, ptr %end_at
  %grain_at = getelementptr %pool, ptr %pool, i64 0, i32 7
  store i64 %grain, ptr %grain_at
  %next = getelementptr %pool, ptr %pool, i64 0, i32 8
  store i64 0, ptr %next
  %active = getelementptr %pool, ptr %pool, i64 0, i32 9
  store i64 %workers, ptr %active
  call void @call_workers(ptr %pool)
  %cell_at = getelementptr ptr, ptr %buffers, i64 -1
  %cell = load ptr, ptr %cell_at
  %scratch = load ptr, ptr %cell
  call void @take_chunks(ptr %pool, ptr %buffers, ptr %cell, ptr %scratch)
  br label %wait
wait:
  %tries = phi i64 [ 0, %publish ], [ %more, %rest ]
  %left = load atomic i64, ptr %active seq_cst, align 8
  %is_done = icmp eq i64 %left, 0
  br i1 %is_done, label %done, label %watch
watch:
  %more = add i64 %tries, 1
  %is_long = icmp sgt i64 %more, $patient
  br i1 %is_long, label %yield, label %rest
yield:
  %yielded = call i32 @sched_yield()
  br label %rest
rest:
  br label %wait
done:
  ret void
}

define internal void @place_workers(ptr %pool, ptr %scratch, i64 %own) nounwind {
entry:
  br label %next
next:
  %placed = phi i64 [ 0, %entry ], [ %more, %place ]
  %is_last = icmp eq i64 %placed, $workers
  br i1 %is_last, label %done, label %place
place:
  %before = mul i64 %placed, $record
  %at = add i64 %before, $pool
  %record = getelementptr i8, ptr %pool, i64 %at
  %more = add i64 %placed, 1
  %skipped = mul i64 %more, %own
  %first = getelementptr i8, ptr %scratch, i64 %skipped
  %scratch_at = getelementptr i8, ptr %record, i64 8
  store ptr %first, ptr %scratch_at
  br label %next
done:
  ret void
}

define internal void @start_workers(ptr %pool, ptr %scratch) nounwind {
entry:
  %mutex = getelementptr %pool, ptr %pool, i64 0, i32 13
  %condition = getelementptr %pool, ptr %pool, i64 0, i32 14
  %a = call i32 @pthread_mutex_init(ptr %mutex, ptr null)
  %b = call i32 @pthread_cond_init(ptr %condition, ptr null)
  %workers_at = getelementptr %pool, ptr %pool, i64 0, i32 10
  br label %next
next:
  %started = phi i64 [ 0, %entry ], [ %more, %began ]
  store i64 %started, ptr %workers_at
  %is_last = icmp eq i64 %started, $workers
  br i1 %is_last, label %done, label %start
start:
  %before = mul i64 %started, $record
  %at = add i64 %before, $pool
  %record = getelementptr i8, ptr %pool, i64 %at
  store ptr %pool, ptr %record
  %place = add i64 %started, 1
  %skipped = mul i64 %place, $scratch
  %own = getelementptr i8, ptr %scratch, i64 %skipped
  %scratch_at = getelementptr i8, ptr %record, i64 8
  store ptr %own, ptr %scratch_at
  %thread = getelementptr i8, ptr %record, i64 16
  %failed = call i32 @pthread_create(ptr %thread, ptr null, ptr @work, ptr %record)
  %is_bad = icmp ne i32 %failed, 0
  br i1 %is_bad, label %done, label %began
began:
  %more = add i64 %started, 1
  br label %next
done:
  ret void
}

define internal void @stop_workers(ptr %pool) nounwind {
entry:
  %stop = getelementptr %pool, ptr %pool, i64 0, i32 1
  store atomic i64 1, ptr %stop seq_cst, align 8
  call void @call_workers(ptr %pool)
  %workers_at = getelementptr %pool, ptr %pool, i64 0, i32 10
  %workers = load i64, ptr %workers_at
  br label %next
next:
  %joined = phi i64 [ 0, %entry ], [ %more, %join ]
  %is_last = icmp eq i64 %joined, %workers
  br i1 %is_last, label %done, label %join
join:
  %before = mul i64 %joined, $record
  %at = add i64 %before, ${pool}
  %record = getelementptr i8, ptr %pool, i64 %at
  %thread_at = getelementptr i8, ptr %record, i64 16
  %thread = load i64, ptr %thread_at
  %status = call i32 @pthread_join(i64 %thread, ptr null)
  %more = add i64 %joined, 1
  br label %next
done:
  %mutex = getelementptr %pool, ptr %pool, i64 0, i32 13
  %condition = getelementptr %pool, ptr %pool, i64 0, i32 14
  %a = call i32 @pthread_cond_destroy(ptr %condition)
  %b = call i32 @pthread_mutex_destroy(ptr %mutex)
  ret void
}
""")
_WATCHED, _PATIENT = 20_000, 2_000
"""How often a worker looks for a launch before it sleeps, and the caller before it yields."""


def pool_text(threads: int, buffers: int, scratch: int) -> str:
    """The functions of a pool; buffers: the most of a call, scratch: bytes of a thread's own."""
    return _POOL.substitute(
        pointers=buffers + 1, watched=_WATCHED, patient=_PATIENT, workers=threads - 1,
        record=RECORD_BYTES, pool=POOL_BYTES, scratch=scratch,
    )  # fmt: skip


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
