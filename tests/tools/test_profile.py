"""`wf.tools.profile` and `wf.timings`: each kernel of a compiled program, timed by native code."""

from __future__ import annotations

import itertools
import json
import time
from pathlib import Path

import numpy as np
import pytest

import weft as wf
from weft.compiler.targets.cpu.machine import host
from weft.compiler.targets.cpu.runtime.driver import WATCHERS


def test_each_kernel_is_a_row_with_its_calls_and_costs() -> None:
    fast = wf.jit(lambda x: wf.exp(x @ x) + 1)
    x = wf.ones((64, 64))
    with wf.tools.profile() as profile:
        for _ in range(3):
            fast(x)
    (row,) = profile.rows
    assert (row.name, row.fused, row.calls) == ("dot+k0", "dot, exp, add", 3)
    assert row.flops == 3 * (2 * 64**3 + 2 * 64 * 64)
    assert row.bytes == 3 * 2 * 64 * 64 * 4
    assert row.rate > 0
    assert profile.seconds == pytest.approx(sum(row.seconds for row in profile.rows))
    assert "3 runs, 3 calls" in str(profile)
    assert "GFLOP/s" in str(profile)


def test_results_are_those_of_an_unwatched_run(rng: np.random.Generator) -> None:
    x = wf.asarray(rng.normal(size=(40, 50)).astype(np.float32))
    fast = wf.jit(lambda x: wf.softmax(x @ x.T).sum(axis=0))
    expected = fast(x).numpy()
    with wf.timings():
        np.testing.assert_array_equal(fast(x).numpy(), expected)
    assert WATCHERS == []


def test_times_lie_within_the_block_and_in_order() -> None:
    fast = wf.jit(lambda x: wf.tanh(x @ x) @ x)
    x = wf.ones((32, 32))
    fast(x)
    begin = time.perf_counter_ns()
    with wf.timings() as calls:
        fast(x)
    end = time.perf_counter_ns()
    times = [moment for call in calls for moment in (call.start, call.end)]
    assert times == sorted(times)
    slack = 100_000  # two clocks are compared
    assert begin - slack <= times[0]
    assert times[-1] <= end + slack


def test_no_python_runs_between_kernels() -> None:
    def chain(x: wf.Tensor) -> wf.Tensor:
        for _ in range(50):
            x = wf.tanh(x @ x)
        return x

    fast = wf.jit(chain)
    x = wf.ones((8, 8))
    fast(x)
    with wf.tools.profile() as profile:
        for _ in range(20):
            fast(x)
    pairs = zip(profile.calls, profile.calls[1:], strict=False)
    gaps = [b.start - a.end for a, b in pairs if a.run == b.run]
    moments = [time.perf_counter_ns() for _ in range(100)]
    to_look = min(b - a for a, b in itertools.pairwise(moments))  # slow on some systems
    assert np.median(gaps) < 1000 + 2 * to_look  # nanoseconds; the interpreter's lock takes longer


def test_an_error_in_a_call_comes_out_and_ends_the_run() -> None:
    fast = wf.jit(lambda x: wf.linalg.cholesky(x) + 1)
    with wf.timings() as calls, pytest.raises(wf.WeftError):
        fast(-wf.eye(3))
    assert "cholesky" in [call.kernel for call in calls][-1].primitives
    assert WATCHERS == []


def test_the_trace_is_one_that_perfetto_reads(tmp_path: Path) -> None:
    fast = wf.jit(lambda x: wf.exp(x @ x))
    with wf.tools.profile(tmp_path / "trace.json") as profile:
        fast(wf.ones((4, 4)))
    events = json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    packing = [] if host().masked else ["pack"]  # four columns are no whole vectors
    assert [event["name"] for event in events] == ["program 0", *packing, "dot", "k0"]
    assert all(event["ph"] == "X" and event["dur"] >= 0 for event in events)
    assert events[-2]["args"]["fused"] == ["dot"]
    assert any("test_profile.py" in line for line in events[-1]["args"]["lines"])
    whole, *parts = events
    assert whole["ts"] <= min(part["ts"] for part in parts)
    assert len(profile.calls) == len([*packing, "dot", "k0"])


def test_a_profile_of_nothing_is_empty() -> None:
    with wf.tools.profile() as profile:
        pass
    assert profile.rows == []
    assert profile.gaps == 0
    assert str(profile).startswith("0 runs")
