"""The machine's limits: FLOP/s from registers on all threads, and bytes/s of a large copy."""

from __future__ import annotations

import ctypes
import os
import platform
import time
from collections.abc import Callable
from pathlib import Path
from threading import Thread
from typing import Any

import numpy as np

from suite.task import Step

SUMS = 16
"""Independent sums: more than the latency of a fused operation times its units."""
NAMED = 8
"""How many kernels a profile names."""


def processor_name() -> str:
    """The processor, as it calls itself."""
    information = Path("/proc/cpuinfo")
    lines = information.read_text(encoding="utf-8").splitlines() if information.exists() else []
    models = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return models[0] if models else platform.machine()


def limits(quick: bool) -> dict[str, float]:
    """Measured peak of float32 operations and of memory, with the threads of the benchmark."""
    threads = int(os.environ["OMP_NUM_THREADS"])
    return {
        "flops": max(_flops(threads, 1 << 20 if quick else 1 << 24) for _ in range(5)),
        "bytes": max(_bytes(threads, 1 << 20 if quick else 1 << 25) for _ in range(5)),
        "threads": threads,
    }


def kernels(step: Step | None, calls: int) -> dict[str, Any]:
    """The kernels of Weft's compiled programs that take the most time, with their shares."""
    import weft as wf

    assert step is not None
    with wf.tools.profile() as profile:
        for _ in range(calls):
            step()
    total = profile.seconds or 1.0
    rows = [
        {
            "name": row.name,
            "fused": row.fused[:60],
            "calls": row.calls // calls,
            "share": row.seconds / total,
            "gflops": row.rate,
            "gbytes": row.bandwidth,
        }
        for row in profile.rows[:NAMED]
    ]
    return {"seconds": total / calls, "gaps": profile.gaps / calls, "kernels": rows}


def _flops(threads: int, count: int) -> float:
    width, engine = _engine()
    address = engine.get_function_address("burn")
    kind = ctypes.CFUNCTYPE(ctypes.c_float, ctypes.c_int64, ctypes.c_float, ctypes.c_float)
    burn = kind(address)
    seconds = _together(threads, lambda _: burn(count, 0.5, 1.0))
    return sum(2.0 * width * SUMS * count / each for each in seconds)


def _bytes(threads: int, size: int) -> float:
    arrays = [(np.ones(size, np.float32), np.zeros(size, np.float32)) for _ in range(threads)]
    seconds = _together(threads, lambda number: np.copyto(arrays[number][1], arrays[number][0]))
    return sum(2.0 * 4 * size / each for each in seconds)


def _together(threads: int, work: Callable[[int], Any]) -> list[float]:
    """Processor seconds of each thread, all at once; the work lets go of the interpreter's lock.

    Time of the processor, so that a busy machine does not look like a slow one.
    """
    seconds: list[float] = []

    def timed(number: int) -> None:
        start = time.thread_time()
        work(number)
        seconds.append(time.thread_time() - start)

    pool = [Thread(target=timed, args=(number,)) for number in range(threads)]
    for thread in pool:
        thread.start()
    for thread in pool:
        thread.join()
    return seconds


def _engine() -> tuple[int, Any]:
    """The elements of a vector, and machine code of a loop that stays in registers."""
    import llvmlite.binding as llvm

    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    features = llvm.get_host_cpu_features()
    width = 16 if features.get("avx512f") else 8 if features.get("avx2") else 4
    module = llvm.parse_assembly(_loop(width))
    target = llvm.Target.from_default_triple()
    machine = target.create_target_machine(
        cpu=llvm.get_host_cpu_name(), features=features.flatten(), opt=2
    )
    engine = llvm.create_mcjit_compiler(module, machine)
    engine.finalize_object()
    return width, engine


def _loop(width: int) -> str:
    """s ← a s + b for all sums, n times, as LLVM's text."""
    vector = f"<{width} x float>"
    name = f"@llvm.fmuladd.v{width}f32"
    sums = range(SUMS)
    starts = [f"  %s{i} = phi {vector} [ %a, %entry ], [ %t{i}, %loop ]" for i in sums]
    steps = [
        f"  %t{i} = call {vector} {name}({vector} %s{i}, {vector} %a, {vector} %b)" for i in sums
    ]
    totals = [f"  %u{i + 1} = fadd {vector} %u{i}, %t{i}" for i in sums]
    return "\n".join(
        [
            f"declare {vector} {name}({vector}, {vector}, {vector})",
            "define float @burn(i64 %n, float %x, float %y) {",
            "entry:",
            *(_spread(vector, source, to) for source, to in (("x", "a"), ("y", "b"))),
            "  br label %loop",
            "loop:",
            "  %i = phi i64 [ 0, %entry ], [ %next, %loop ]",
            *starts,
            *steps,
            "  %next = add i64 %i, 1",
            "  %more = icmp slt i64 %next, %n",
            "  br i1 %more, label %loop, label %done",
            "done:",
            f"  %u0 = fadd {vector} %a, %b",
            *totals,
            f"  %out = extractelement {vector} %u{SUMS}, i32 0",
            "  ret float %out",
            "}",
        ]
    )


def _spread(vector: str, source: str, to: str) -> str:
    """A scalar in all places of a vector."""
    zeros = vector.replace("float", "i32")
    return (
        f"  %{to}0 = insertelement {vector} undef, float %{source}, i32 0\n"
        f"  %{to} = shufflevector {vector} %{to}0, {vector} undef, {zeros} zeroinitializer"
    )
