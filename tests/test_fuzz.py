"""Random programs agree in every way of running them; the search finds faults made on purpose."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.fuzz import coverage, workers
from tests.fuzz.compare import Failure, examine
from tests.fuzz.findings import Findings
from tests.fuzz.generate import generate, scene_name
from tests.fuzz.minimise import minimise
from tests.fuzz.program import Input, Program, Step
from tests.fuzz.run import run, ways_of
from tests.fuzz.scenes import SCENES
from tests.fuzz.sizes import thresholds

import weft as wf
from weft.compiler.targets.cpu.machine import LEVELS, machine_named
from weft.ir.primitive import PRIMITIVES

pytestmark = pytest.mark.slow

PROGRAMS, PARTS = 500, 20
WAYS = ("jit", "native", "again", "checked", "plain", "torch", "cuda")


@pytest.mark.parametrize("part", range(PARTS))
def test_random_programs_agree_in_every_way_of_running_them(part: int) -> None:
    count = PROGRAMS // PARTS
    seeds = range(part * count, (part + 1) * count)
    kept = os.environ["WEFT_CACHE"]  # of this run of tests: all parts share what they compile
    cache = None if kept == "off" else Path(kept, "fuzz")
    found = list(workers.search(seeds, 1, WAYS, time.monotonic() + 3600, cache=cache))
    failures = {each.seed: each.failure for each in found if each.failure is not None}
    print("again: python -m tests.fuzz --minimise SEED")
    assert len(found) == count
    assert not failures


def test_a_program_is_its_seed() -> None:
    assert [generate(seed) for seed in range(5)] == [generate(seed) for seed in range(5)]
    assert len({generate(seed).script for seed in range(20)}) == 20


def test_each_scene_has_programs_that_are_found_by_their_seeds() -> None:
    names = {scene_name(seed) for seed in range(1000)}
    assert names == {each.name for each in SCENES}


def test_the_script_of_a_program_runs() -> None:
    script = generate(4).script
    compile(script, "script", "exec")
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    assert done.stdout


def test_sizes_stand_on_both_sides_of_the_thresholds_of_products() -> None:
    assert {16, 48, 64, 192, 256, 320} <= {*thresholds()}


def test_random_numbers_of_a_program_are_the_same_in_every_way() -> None:
    by_number = "wf.random.normal({0}.shape, dtype='float32', key=wf.random.fold_in(K, I)) * 2"
    by_number = by_number.replace("K", "wf.random.key(3)").replace("I", "wf.sum({0} > 0)")
    program = chain(
        "wf.random.dropout({}, 0.3)",
        by_number,
        "wf.random.gamma(None, wf.abs({}) + 0.5, dtype='float64').astype('float32')",
        "wf.random.permutation({})",
    )
    for transforms in ((), ("gradients",), ("rematerialised", "gradients")):
        assert examine(replace(program, transforms=transforms), ("jit", "checked")) is None


def test_random_numbers_that_differ_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    program = chain("wf.tanh({})", "wf.random.uniform({0}.shape, dtype='float32') + {0}")
    compiled = wf.jit
    later = lambda f: compiled(lambda *xs: (wf.random.bits(), f(*xs))[1])  # noqa: E731
    monkeypatch.setattr(wf, "jit", later)
    failure = examine(program, ("jit",))
    assert failure is not None
    assert (failure.way, failure.what) == ("jit", "differs")


# --- faults made on purpose ----------------------------------------------------------------------


@pytest.fixture
def wrong_sine() -> Iterator[None]:
    """Compiled kernels take the cosine for the sine."""
    sine, cosine = PRIMITIVES["sin"], PRIMITIVES["cos"]
    before = sine.lower
    object.__setattr__(sine, "lower", cosine.lower)
    try:
        yield
    finally:
        object.__setattr__(sine, "lower", before)


def chain(*texts: str) -> Program:
    """A program that applies some functions, one after the other."""
    steps = [
        Step(f"x{n}", (f"x{n} = {text.format(f'x{n - 1}')}",)) for n, text in enumerate(texts, 1)
    ]
    given = Input("x0", "float32", ("A", "B"), 3)
    return Program((("A", 33), ("B", 7)), (given,), tuple(steps), (steps[-1].name, "x2"))


@pytest.mark.usefixtures("wrong_sine")
def test_a_wrong_kernel_is_found_and_made_small() -> None:
    program = chain("wf.tanh({})", "{} * 2", "wf.flip({}, axis=0)", "wf.sin({})", "wf.cos({}) + 1")
    failure = examine(program, ("jit",))
    assert failure is not None
    assert (failure.way, failure.what) == ("jit", "differs")
    small = minimise(program, failure, lambda each: examine(each, ("jit",)))
    assert [step.lines for step in small.steps] == [("x4 = wf.sin(x0)",)]
    assert sum(size for _, size in small.sizes) <= 2


@pytest.mark.usefixtures("wrong_sine")
def test_random_programs_find_a_wrong_kernel() -> None:
    texts = {seed: generate(seed).function() for seed in range(60)}
    # A loop whose condition is wrong need not end.
    using = [s for s, text in texts.items() if "wf.sin(" in text and "while_loop" not in text][:8]
    found = [examine(generate(seed), ("jit",)) for seed in using]
    assert any(failure is not None and failure.way == "jit" for failure in found)


def test_a_crash_is_a_failure_that_is_made_small() -> None:
    script = """
from tests.fuzz.compare import examine
from tests.fuzz.minimise import isolated, minimise
from tests.test_fuzz import chain
end = "{} + __import__('os').kill(__import__('os').getpid(), 11)"
program = chain("wf.tanh({})", "{} * 2", end, "wf.cos({})")
failure = isolated(program, ())
small = minimise(program, failure, lambda each: isolated(each, ()))
print(failure, len(small.steps))
"""
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True, cwd=workers.ROOT
    )
    assert done.stdout.split("\n")[0] == "jit: crashes by SIGSEGV 1"


def test_a_child_that_dies_is_attributed_to_its_program(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WEFT_FUZZ_CRASH", "3")
    found = list(workers.search(range(2, 5), 1, ("jit",), time.monotonic() + 1200))
    failures = {each.seed: each.failure for each in found if each.failure is not None}
    assert [*failures] == [3]
    assert "ends with -11" in failures[3]
    assert len(found) == 3


def test_a_search_ends_in_time_and_leaves_no_process(monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[subprocess.Popen[str]] = []

    class Watched(subprocess.Popen[str]):
        def __init__(self, *args: Any, **options: Any) -> None:
            super().__init__(*args, **options)
            started.append(self)

    monkeypatch.setattr(workers.subprocess, "Popen", Watched)
    begun = time.monotonic()
    found = list(workers.search(range(100_000), 2, ("jit",), begun + 8))
    assert time.monotonic() - begun < 20
    assert not any("does not end" in str(each.failure) for each in found)
    assert len(started) == 2
    assert all(child.returncode is not None for child in started)


def test_a_search_that_is_closed_stops_its_workers() -> None:
    search = workers.search(range(100_000), 1, ("jit",), time.monotonic() + 1200)
    assert next(search).failure is None
    begun = time.monotonic()
    search.close()
    assert time.monotonic() - begun < 20


def test_a_worker_goes_on_where_a_process_cannot_be_started(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    start, refused = subprocess.Popen, [OSError("no process left")]

    def sometimes(*args: Any, **options: Any) -> Any:
        if refused:
            raise refused.pop()
        return start(*args, **options)

    monkeypatch.setattr(workers.subprocess, "Popen", sometimes)
    monkeypatch.setattr(workers, "PAUSE", 0.01)
    found = list(workers.search(range(2), 1, ("jit",), time.monotonic() + 1200))
    assert [each.seed for each in found] == [0, 1]


def test_programs_take_turns_in_the_ways_that_take_long() -> None:
    assert ways_of(10, WAYS) == WAYS
    assert ways_of(4, WAYS) == ("jit", "again", "checked", "plain", "torch", "cuda")
    assert ways_of(5, WAYS) == ("jit", "native", "checked", "plain", "torch", "cuda")
    (outcome,) = workers.search([10], 1, ("jit", "native"), time.monotonic() + 1200)
    assert outcome.ways == ("jit", "native")


def test_what_was_found_is_written_to_a_file(tmp_path: Path) -> None:
    found = Findings(0, 9)
    found.add(workers.Outcome(1, None, Counter({"launch dot": 2}), ("jit", "plain")), 1.0)
    for seed in (2, 3, 4, 5, 6):
        found.add(workers.Outcome(seed, f"jit: differs (at {seed})", ways=("jit",)), 2.0)
    found.add(workers.Outcome(7, "jit: the process ends with -11"), 3.0)
    assert found.first_of_each_kind() == [2, 3, 4, 7]
    assert found.way_of(2, WAYS) == ("jit",)
    assert found.way_of(7, WAYS) == WAYS
    found.scripts[3] = "x" * 1_000_000
    found.write(tmp_path / "deep" / "found.json", True)
    text = (tmp_path / "deep" / "found.json").read_text(encoding="utf-8")
    assert len(text) < 1_000_000
    written = json.loads(text)
    assert (written["programs"], written["failed"]) == (7, 6)
    assert written["ways"] == {"jit": 6, "plain": 1}
    assert written["failures"][0]["seed"] == 3
    assert written["coverage"]["reached"]["launch"][0] == 1


def test_rounding_is_no_failure_and_a_wrong_element_is_one() -> None:
    program = chain("wf.sum({}, axis=0)", "wf.sum({})", "{} * 3", "wf.floor({} * 100)")
    assert examine(program, ()) is None
    assert Failure("jit", "differs", "a").is_like(Failure("jit", "differs", "b"))
    assert not Failure("jit", "differs").is_like(Failure("torch", "differs"))


def test_a_small_error_in_all_elements_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    program = chain("wf.tanh({}) + 1", "wf.exp({})")
    compiled = wf.jit
    wrong = lambda f: compiled(lambda *xs: [y * 1.0001 for y in f(*xs)])  # noqa: E731
    monkeypatch.setattr(wf, "jit", wrong)
    failure = examine(program, ("jit",))
    assert failure is not None
    assert (failure.way, failure.what) == ("jit", "differs")


def test_after_an_error_every_way_draws_on_from_the_same_place() -> None:
    program = chain("wf.random.normal({}.shape)", "wf.reshape({}, (5, 5))")
    counters = []
    for way in ("eager", "jit"):
        assert all(isinstance(result, wf.WeftError) for result in run(program, way))
        counters.append(wf.random.uniform((3,)).tolist())
    assert counters[0] == counters[1]


# --- what is reached -----------------------------------------------------------------------------


def test_branches_and_launches_are_counted() -> None:
    reached: Counter[str] = Counter()
    for outcome in workers.search(range(40, 46), 1, ("jit",), time.monotonic() + 1200, True):
        reached += outcome.reached
    assert reached["launch group"]
    assert any(name.startswith("primitive ") for name in reached)
    known = {*coverage.branches()}
    branches = [name for name in reached if name.startswith("branch ")]
    assert branches
    assert known.issuperset(branches)
    assert "not reached: " in coverage.report(reached)


def test_all_patterns_of_what_is_not_expected_name_something() -> None:
    names = coverage.expected()
    patterns = [*coverage.ELSEWHERE, *[p for need in coverage.NEEDS for p in need.patterns]]
    stale = [p for p in patterns if not any(re.match(p, name) for name in names)]
    assert not stale


def test_what_needs_a_feature_is_not_unreached_where_the_machine_lacks_it() -> None:
    triple = "x86_64-unknown-linux-gnu"
    lesser, greater = (
        machine_named(name, triple, LEVELS[name]) for name in ("x86-64-v3", "x86-64-v4")
    )
    (branch,) = [name for name in coverage.branches() if "wide is not None: true" in name]
    assert coverage.missing_feature(branch, lesser) == "AVX-512"
    assert coverage.missing_feature(branch, greater) is None
    other = branch.replace(": true", ": false")
    assert coverage.missing_feature(other, lesser) is None


def test_several_runs_reach_together_what_each_of_them_reached(tmp_path: Path) -> None:
    file = tmp_path / "reached.json"
    coverage.united(file, Counter({"launch dot": 2}))
    both = coverage.united(file, Counter({"launch dot": 1, "launch pack": 1}))
    assert both == {"launch dot": 3, "launch pack": 1}
    lines = coverage.report(both).splitlines()
    assert "  not reached: launch dot" not in lines
    assert "  not reached: launch group" in lines
