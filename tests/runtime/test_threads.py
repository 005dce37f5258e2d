"""The thread pool: every chunk once, safe from everywhere, gone when the process ends."""

from __future__ import annotations

import ctypes
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from threading import Thread
from time import perf_counter, process_time, sleep

import llvmlite.binding as llvm
import numpy as np
import pytest
from tests.quiet import wait_for_quiet

from weft.compiler.targets.cpu.runtime.thread_pool import PARALLEL_FOR, source, thread_pool
from weft.core.errors import ArgumentError, ArgumentTypeError
from weft.runtime.threads import Pool, get_num_threads, set_num_threads

# `add` adds 1 to each element; `visit` adds 1 at begin and 1000 at end - 1; `nested` divides each
# of its chunks again.
KERNELS = f"""
declare void @{PARALLEL_FOR}(ptr, ptr, ptr, i64, i64)

define void @add(ptr %buffers, ptr %sizes, i64 %begin, i64 %end) {{
entry:
  br label %loop
loop:
  %index = phi i64 [ %begin, %entry ], [ %following, %loop ]
  %place = getelementptr i64, ptr %buffers, i64 %index
  %old = load i64, ptr %place
  %new = add i64 %old, 1
  store i64 %new, ptr %place
  %following = add i64 %index, 1
  %has_more = icmp slt i64 %following, %end
  br i1 %has_more, label %loop, label %done
done:
  ret void
}}

define void @visit(ptr %buffers, ptr %sizes, i64 %begin, i64 %end) {{
  %first = getelementptr i64, ptr %buffers, i64 %begin
  %a = atomicrmw add ptr %first, i64 1 monotonic
  %last = sub i64 %end, 1
  %place = getelementptr i64, ptr %buffers, i64 %last
  %b = atomicrmw add ptr %place, i64 1000 monotonic
  ret void
}}

define void @nested(ptr %buffers, ptr %sizes, i64 %begin, i64 %end) {{
  %place = getelementptr i64, ptr %buffers, i64 %begin
  %extent = sub i64 %end, %begin
  call void @{PARALLEL_FOR}(ptr @add, ptr %place, ptr null, i64 %extent, i64 3)
  ret void
}}
"""


@pytest.fixture(scope="module")
def pool() -> Pool:
    return thread_pool()


@pytest.fixture(scope="module")
def kernels(pool: Pool) -> dict[str, int]:
    machine = llvm.Target.from_default_triple().create_target_machine(jit=True)
    engine = llvm.create_mcjit_compiler(llvm.parse_assembly(KERNELS), machine)
    engine.finalize_object()
    names = ("add", "visit", "nested")
    addresses = {name: engine.get_function_address(name) for name in names}
    engine.detach()
    return addresses


@pytest.fixture(autouse=True)
def _same_threads_afterwards() -> Iterator[None]:
    before = get_num_threads()
    yield
    set_num_threads(before)


def run(pool: Pool, kernel: int, data: np.ndarray, extent: int, grain: int) -> np.ndarray:
    pool.parallel_for(kernel, data.ctypes.data, None, extent, grain)
    return data


@pytest.mark.parametrize("threads", [1, 2, 3, 8])
@pytest.mark.parametrize(("extent", "grain"), [(1, 1), (7, 3), (1000, 1), (100_000, 333), (5, 9)])
def test_each_element_is_visited_once(
    pool: Pool, kernels: dict[str, int], threads: int, extent: int, grain: int
) -> None:
    set_num_threads(threads)
    for _ in range(20):
        data = np.zeros(extent + 1, np.int64)
        run(pool, kernels["add"], data, extent, grain)
        assert (data[:extent] == 1).all()
        assert data[extent] == 0


@pytest.mark.parametrize("threads", [1, 2, 5])
def test_borders_of_chunks_depend_on_extent_and_grain_alone(
    pool: Pool, kernels: dict[str, int], threads: int
) -> None:
    set_num_threads(threads)
    data = run(pool, kernels["visit"], np.zeros(10, np.int64), 10, 4)
    assert data.tolist() == [1, 0, 0, 1000, 1, 0, 0, 1000, 1, 1000]


@pytest.mark.parametrize("extent", [0, -1, -(2**62)])
def test_an_empty_range_runs_nothing(pool: Pool, kernels: dict[str, int], extent: int) -> None:
    assert run(pool, kernels["add"], np.zeros(1, np.int64), extent, 1)[0] == 0


@pytest.mark.parametrize("grain", [0, -1, 2**62])
def test_a_grain_that_is_no_grain_gives_one_chunk(
    pool: Pool, kernels: dict[str, int], grain: int
) -> None:
    data = run(pool, kernels["visit"], np.zeros(6, np.int64), 6, grain)
    assert data.tolist() == [1, 0, 0, 0, 0, 1000]


def test_a_kernel_may_divide_its_own_chunk(pool: Pool, kernels: dict[str, int]) -> None:
    set_num_threads(3)
    for _ in range(50):
        data = run(pool, kernels["nested"], np.zeros(1000, np.int64), 1000, 100)
        assert (data == 1).all()


def test_several_python_threads_may_call_at_once(pool: Pool, kernels: dict[str, int]) -> None:
    set_num_threads(3)
    arrays = [np.zeros(4096, np.int64) for _ in range(6)]

    def repeat(data: np.ndarray) -> None:
        for _ in range(300):
            run(pool, kernels["add"], data, 4096, 64)

    callers = [Thread(target=repeat, args=(data,)) for data in arrays]
    for caller in callers:
        caller.start()
    for _ in range(10):
        set_num_threads(2)
        set_num_threads(4)
    for caller in callers:
        caller.join()
    assert all((data == 300).all() for data in arrays)


def test_threads_sleep_when_there_is_nothing_to_do(pool: Pool, kernels: dict[str, int]) -> None:
    set_num_threads(4)
    run(pool, kernels["add"], np.zeros(1000, np.int64), 1000, 1)
    wait_for_quiet()
    busy = []
    for _ in range(5):  # in some of them other threads of this process may work
        before = process_time()
        sleep(0.1)
        busy.append(process_time() - before)
    assert min(busy) < 0.03


def test_threads_that_slept_are_woken(pool: Pool, kernels: dict[str, int]) -> None:
    set_num_threads(3)
    for _ in range(30):
        sleep(0.001)
        data = run(pool, kernels["add"], np.zeros(100_000, np.int64), 100_000, 1000)
        assert (data == 1).all()


def test_a_range_costs_microseconds(pool: Pool, kernels: dict[str, int]) -> None:
    set_num_threads(2)
    data = np.zeros(2, np.int64)
    seconds = []
    for _ in range(2000):
        start = perf_counter()
        pool.parallel_for(kernels["add"], data.ctypes.data, None, 2, 1)
        seconds.append(perf_counter() - start)
    assert min(seconds) < 50e-6


def test_the_number_of_threads_takes_effect_with_the_next_range(
    pool: Pool, kernels: dict[str, int]
) -> None:
    for threads in (3, 1, 2, 6, 2):
        set_num_threads(threads)
        run(pool, kernels["add"], np.zeros(100, np.int64), 100, 1)
        assert get_num_threads() == threads
        assert pool.threads() == threads - 1


@pytest.mark.parametrize("threads", [0, -3, 257])
def test_a_number_out_of_range_is_refused(threads: int) -> None:
    before = get_num_threads()
    with pytest.raises(ArgumentError) as caught:
        set_num_threads(threads)
    assert caught.value.op == "set_num_threads"
    assert caught.value.got == f"threads: {threads}"
    assert get_num_threads() == before


@pytest.mark.parametrize("threads", [1.0, "2", None, True])
def test_what_is_no_integer_is_refused(threads: object) -> None:
    with pytest.raises(ArgumentTypeError):
        set_num_threads(threads)  # type: ignore[arg-type]


def test_a_numpy_integer_is_an_integer() -> None:
    set_num_threads(np.int32(2))  # type: ignore[arg-type]
    assert get_num_threads() == 2


def test_without_threads_to_be_had_the_caller_does_the_work(
    pool: Pool, kernels: dict[str, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(thread: Thread) -> None:
        raise RuntimeError("can't start new thread")

    set_num_threads(1)
    monkeypatch.setattr(Thread, "start", refuse)
    set_num_threads(4)
    data = run(pool, kernels["add"], np.zeros(100, np.int64), 100, 1)
    assert pool.threads() == 0
    assert (data == 1).all()


@pytest.mark.parametrize("machine", ["x86_64", "arm64", "riscv64"])
def test_the_source_is_made_for_each_architecture(machine: str) -> None:
    assert ("hint" in source(machine)) == (machine == "arm64")
    llvm.parse_assembly(source(machine)).verify()


# What happens to a process: each in a fresh interpreter, whose kernel is a Python callback.

PROGRAM = """
import os, sys, warnings
import numpy as np
from weft.compiler.targets.cpu.runtime.thread_pool import thread_pool
from weft.runtime.threads import Kernel, get_num_threads, set_num_threads

set_num_threads(3)
data = np.zeros(64, np.int64)

@Kernel
def add(buffers, sizes, begin, end):
    data[begin:end] += 1

def run():
    data[:] = 0
    thread_pool().parallel_for(add, None, None, 64, 4)
    return bool((data == 1).all())

assert run()
assert thread_pool().threads() == 2
"""


def fresh_python(program: str) -> str:
    command = [sys.executable, "-W", "error", "-c", PROGRAM + textwrap.dedent(program)]
    result = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert result.returncode == 0, result.stderr
    assert result.stderr == ""
    return result.stdout


def test_the_interpreter_ends_at_once() -> None:
    assert fresh_python("print('end')") == "end\n"


def test_the_interpreter_ends_while_a_daemon_is_still_computing() -> None:
    fresh_python("""
        import threading, time
        @Kernel
        def busy(buffers, sizes, begin, end):
            time.sleep(0.01)
        def forever():
            while True:
                thread_pool().parallel_for(busy, None, None, 64, 4)
        threading.Thread(target=forever, daemon=True).start()
        time.sleep(0.05)
    """)


def test_the_last_objects_of_an_interpreter_may_compile_and_run() -> None:
    """Where the interpreter is ending no thread starts, and nobody waits for one."""
    output = fresh_python("""
        import weft as wf
        double = wf.jit(lambda x: x * 2)
        x = wf.ones((400, 300))

        class Last:
            def __init__(self, *kept):
                self.kept = kept
            def __del__(self):
                wf, double, x, write = self.kept
                wf.set_num_threads(2)
                product = wf.jit(lambda x: x @ x.T + 1)(double(x))
                write(1, str(product.max().item()).encode())

        last = [Last(wf, double, x, os.write)]
        last.append(last)  # a cycle, which is found after all exit handlers
        del last
    """)
    assert output == "1201.0"


@pytest.mark.slow
def test_ranges_still_run_in_exit_handlers() -> None:
    assert fresh_python("import atexit; atexit.register(lambda: print(run()))") == "True\n"
    program = "import atexit; atexit.unregister(thread_pool().shut_down)\n"
    assert fresh_python(program + "atexit.register(lambda: print(run()))") == "True\n"


def test_a_forked_child_has_a_fresh_pool_and_the_parent_keeps_its_own() -> None:
    output = fresh_python("""
        for _ in range(3):
            child = os.fork()
            if not child:
                ok = run() and thread_pool().threads() == 2
                os._exit(0 if ok else 3)
            assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
            assert run() and thread_pool().threads() == 2
        print("fine")
    """)
    assert output == "fine\n"


def test_a_fork_in_the_middle_of_a_range_leaves_a_working_child() -> None:
    output = fresh_python("""
        import threading, time
        @Kernel
        def slow(buffers, sizes, begin, end):
            time.sleep(0.02)
        caller = threading.Thread(
            target=lambda: thread_pool().parallel_for(slow, None, None, 64, 2))
        caller.start()
        time.sleep(0.03)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the caller itself is a second thread
            child = os.fork()
        if not child:
            os._exit(0 if run() and run() else 3)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        caller.join()
        print(run())
    """)
    assert output == "True\n"


def test_importing_the_pools_python_half_does_not_import_llvm() -> None:
    program = "import sys, weft.runtime.threads; print('llvmlite' in sys.modules)"
    command = [sys.executable, "-c", program]
    result = subprocess.run(command, capture_output=True, text=True, timeout=300, check=True)
    assert result.stdout == "False\n"


def test_a_ctypes_kernel_can_be_divided_too(pool: Pool) -> None:
    set_num_threads(2)
    data = np.zeros(10, np.int64)
    kernel = ctypes.CFUNCTYPE(
        None, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64
    )(lambda buffers, sizes, begin, end: data.__setitem__(slice(begin, end), 1))
    pool.parallel_for(kernel, None, None, 10, 3)
    assert (data == 1).all()
