"""The memory plan and the arena: nothing overlaps, little is lost, everything is counted."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import combinations, pairwise
from pathlib import Path
from threading import Thread
from time import thread_time

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.quiet import wait_for_quiet

import weft as wf
from weft.core import host_memory
from weft.core.dimensions import Dim, symbol
from weft.core.errors import GraphError, OutOfMemoryError
from weft.core.host_memory import available_memory
from weft.core.locations import Location
from weft.runtime import arena as arena_module
from weft.runtime.arena import LARGE, WASTED, Arena, Block, account, allocate
from weft.runtime.memory import ALIGNMENT, Lifetime, MemoryPlan, Planner, plan


@st.composite
def lifetimes(draw: st.DrawFn) -> list[Lifetime]:
    """Buffers, some of which ask for the place of an earlier one."""
    n = symbol("n")
    found: list[Lifetime] = []
    for index in range(draw(st.integers(0, 25))):
        first = draw(st.integers(0, 12))
        last = first + draw(st.integers(0, 8))
        size: int | Dim = draw(st.sampled_from([0, 1, 64, 100, 4096, 50_000, 4 * n, n * n, 64 * n]))
        operand = draw(st.sampled_from([None, *[buffer.name for buffer in found]]))
        found.append(Lifetime(f"b{index}", size, first, last, operand))
    return found


def live_together(a: Lifetime, b: Lifetime) -> bool:
    return a.first <= b.last and b.first <= a.last


def check(result: MemoryPlan) -> None:
    """No two buffers overlap in time and place, but for results in their operands' places."""
    place = result.offsets
    assert all(offset % ALIGNMENT == 0 for offset in place.values())
    assert all(place[b.name] + result.sizes[b.name] <= result.peak for b in result.buffers)
    for a, b in combinations(result.buffers, 2):
        apart = (
            place[a.name] + result.sizes[a.name] <= place[b.name]
            or place[b.name] + result.sizes[b.name] <= place[a.name]
        )
        if live_together(a, b) and not apart and result.sizes[a.name] and result.sizes[b.name]:
            result_name, operand = (a, b) if result.reused.get(a.name) == b.name else (b, a)
            assert result.reused.get(result_name.name) == operand.name
            assert operand.last == result_name.first
            assert result.sizes[a.name] == result.sizes[b.name]
            assert place[a.name] == place[b.name]
    assert result.lower_bound <= result.peak


@given(lifetimes(), st.integers(1, 300))
def test_no_two_live_buffers_overlap(buffers: list[Lifetime], n: int) -> None:
    check(plan(buffers, {"n": n}))


@given(lifetimes(), st.lists(st.integers(1, 300), min_size=2, max_size=5))
def test_a_planner_gives_sound_plans_at_each_size(buffers: list[Lifetime], ns: list[int]) -> None:
    planner = Planner(buffers)
    for n in ns:
        result = planner.plan_for({"n": n})
        check(result)
        assert planner.plan_for({"n": n}) is result
        assert result.peak <= 1.5 * plan(buffers, {"n": n}).peak


@given(lifetimes(), st.integers(1, 300))
def test_reuse_never_raises_what_must_live_at_once(buffers: list[Lifetime], n: int) -> None:
    without = [Lifetime(b.name, b.size, b.first, b.last) for b in buffers]
    assert plan(buffers, {"n": n}).lower_bound <= plan(without, {"n": n}).lower_bound


def random_buffers(rng: np.random.Generator, count: int, longest: int) -> list[Lifetime]:
    sizes = np.where(
        rng.random(count) < 0.5,
        2 ** rng.uniform(6, 24, count),
        rng.choice([1 << 20, 1 << 22, 3 << 20], count),
    )
    first = rng.integers(0, count, count)
    last = first + rng.integers(0, longest, count)
    return [Lifetime(f"b{i}", int(sizes[i]), int(first[i]), int(last[i])) for i in range(count)]


def test_the_peak_is_close_to_the_lower_bound(rng: np.random.Generator) -> None:
    ratios = []
    for count in (3, 10, 20, 50, 100):
        for longest in (3, 10, count):
            for _ in range(8):
                result = plan(random_buffers(rng, count, longest))
                ratios.append(result.peak / result.lower_bound)
    assert max(ratios) <= 1.2
    assert np.median(ratios) == 1.0


def training_step(layers: int, size: int | Dim) -> list[Lifetime]:
    """Activations kept until the way back, with scratch on both ways."""
    end = 4 * layers
    buffers = []
    for i in range(layers):
        buffers.append(Lifetime(f"scratch{i}", size, 2 * i, 2 * i + 1))
        buffers.append(Lifetime(f"kept{i}", size, 2 * i + 1, end - 2 * i))
        buffers.append(Lifetime(f"gradient{i}", size, end - 2 * i - 1, end - 2 * i + 1))
    return buffers


def test_a_training_step_has_no_gaps() -> None:
    result = plan(training_step(50, 4096))
    assert result.peak == result.lower_bound


def test_a_chain_takes_two_places() -> None:
    chain = [Lifetime(f"x{i}", 1000, i, i + 1) for i in range(20)]
    assert plan(chain).peak == 2 * 1024


def test_a_chain_of_results_in_place_takes_one() -> None:
    chain = [Lifetime(f"x{i}", 1000, i, i + 1, f"x{i - 1}" if i else None) for i in range(20)]
    result = plan(chain)
    assert result.peak == 1024
    assert result.timeline() == (1024,) * 21
    check(result)


@pytest.mark.parametrize(
    ("operand", "result"),
    [
        (Lifetime("x", 64, 0, 2), Lifetime("y", 64, 1, 3, "x")),  # x is still needed
        (Lifetime("x", 64, 0, 1), Lifetime("y", 128, 1, 3, "x")),  # y is larger
        (Lifetime("x", 64, 0, 1), Lifetime("y", 32, 1, 3, "x")),  # elements would not line up
        (Lifetime("x", 64, 1, 1), Lifetime("y", 64, 1, 3, "x")),  # both are written there
    ],
)
def test_a_hint_that_does_not_hold_is_not_followed(operand: Lifetime, result: Lifetime) -> None:
    made = plan([operand, result])
    assert made.reused == {}
    assert made.offsets["x"] != made.offsets["y"]


def test_a_place_is_taken_over_once() -> None:
    buffers = [Lifetime("x", 64, 0, 1), *[Lifetime(n, 64, 1, 2, "x") for n in "ab"]]
    result = plan(buffers)
    assert result.reused == {"a": "x"}
    assert result.peak == 128


def test_the_timeline_and_the_largest_are_those_of_the_peak() -> None:
    buffers = [
        Lifetime("early", 64_000, 0, 0),
        Lifetime("big", 64_000, 1, 2),
        Lifetime("small", 640, 2, 3),
        Lifetime("middle", 6400, 2, 2),
    ]
    result = plan(buffers)
    assert result.timeline() == (64_000, 64_000, 71_040, 640)
    assert [buffer.name for buffer in result.largest_live(2)] == ["big", "middle"]


def test_nothing_needs_nothing() -> None:
    result = plan([])
    assert (result.peak, result.lower_bound, result.timeline()) == (0, 0, ())
    assert result.largest_live() == []
    assert plan([Lifetime("x", 0, 0, 3)]).peak == 0


def test_sizes_may_be_functions_and_expressions() -> None:
    n = symbol("n")
    buffers = [Lifetime("x", 4 * n, 0, 1), Lifetime("y", lambda sizes: sizes["n"] ** 2, 1, 2)]
    result = plan(buffers, {"n": 10})
    assert result.sizes == {"x": 40, "y": 100}
    assert result.peak == 64 + 128


MISUSES: list[tuple[Sequence[Lifetime], str]] = [
    ([Lifetime("x", 4, 0, 1)] * 2, "two buffers have the same name"),
    ([Lifetime("x", 4, 2, 1)], "x does not live from first to last"),
    ([Lifetime("x", 4, -1, 1)], "x does not live from first to last"),
    ([Lifetime("x", 4, 0, 1, "y")], "x reuses a buffer that is not there"),
    ([Lifetime("x", -4, 0, 1)], "a size came out negative: -4"),
    ([Lifetime("x", 4 * symbol("n"), 0, 1)], "the size of n is not known"),
]


@pytest.mark.parametrize(("buffers", "problem"), MISUSES)
def test_what_cannot_be_planned_is_refused(buffers: Sequence[Lifetime], problem: str) -> None:
    with pytest.raises(GraphError) as caught:
        plan(buffers)
    assert (caught.value.op, caught.value.problem) == ("plan", problem)


def test_a_new_size_costs_milliseconds() -> None:
    planner = Planner(training_step(100, 4 * symbol("n")))
    planner.plan_for({"n": 1})
    planner.plan_for({"n": 2})
    seconds = []
    for n in range(3, 12):
        start = thread_time()
        planner.plan_for({"n": n})
        seconds.append(thread_time() - start)
    assert min(seconds) < 0.02


def test_only_so_many_plans_are_remembered() -> None:
    planner = Planner([Lifetime("x", 4 * symbol("n"), 0, 1)])
    for n in range(1, 400):
        assert planner.plan_for({"n": n}).sizes == {"x": 4 * n}
    assert len(planner._plans) <= 256


# The arena.


def needing(size: int) -> MemoryPlan:
    return plan([Lifetime("x", size, 0, 1, at=Location("train.py", 41, "forward"))])


def test_what_is_allocated_is_what_was_predicted() -> None:
    wait_for_quiet()
    needed = plan(training_step(10, 5000))
    arena = Arena()
    before = account.current
    account.reset()
    for _ in range(3):
        block = arena.take(needed)
        assert block.address % ALIGNMENT == 0
        block.memory[:] = 1
        arena.give(block)
    assert account.peak - before == needed.peak
    assert account.current - before == needed.peak


def test_memory_is_freed_with_the_program() -> None:
    wait_for_quiet()
    before = account.current
    arena = Arena()
    arena.give(arena.take(needing(1 << 20)))
    view = arena.take(needing(1 << 20)).memory[:100]
    del arena
    wait_for_quiet()
    assert account.current == before + (1 << 20)  # a view keeps its memory
    del view
    wait_for_quiet()
    assert account.current == before


def test_a_block_is_used_again_unless_it_is_too_small() -> None:
    arena = Arena()

    def taken_and_given(size: int) -> Block:
        block = arena.take(needing(size))
        arena.give(block)
        return block

    small = taken_and_given(1000)
    assert taken_and_given(10) is small
    larger = taken_and_given(5000)
    assert larger.size == 5056
    assert taken_and_given(1000) is larger
    arena.release()
    assert taken_and_given(1000).size == 1024


def test_two_calls_at_once_get_two_blocks() -> None:
    arena = Arena()
    a, b = arena.take(needing(64)), arena.take(needing(64))
    assert a.address != b.address


def test_threads_do_not_share_a_block() -> None:
    arena, wrong = Arena(), []

    def call(number: int) -> None:
        for _ in range(200):
            block = arena.take(needing(256))
            block.memory[:] = number
            if not (block.memory == number).all():
                wrong.append(number)
            arena.give(block)

    threads = [Thread(target=call, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


def test_a_limit_names_the_largest_values_and_their_lines() -> None:
    with pytest.raises(OutOfMemoryError) as caught:
        Arena(limit=1000).take(needing(5_000_000))
    error = caught.value
    assert isinstance(error, MemoryError)
    assert error.problem == "the program needs 5.0 MB at once, and was given 1.0 kB"
    assert error.got == "x: 5.0 MB (train.py:41, in forward)"
    assert error.at == Location("train.py", 41, "forward")


def test_more_than_the_machine_has_is_refused_before_it_is_touched() -> None:
    with pytest.raises(OutOfMemoryError, match="can have"):
        Arena().take(needing(1 << 60))


def test_a_refused_allocation_is_the_same_error(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(size: int) -> None:
        raise MemoryError

    monkeypatch.setattr(arena_module, "allocate", refuse)
    with pytest.raises(OutOfMemoryError, match="can have"):
        Arena().take(needing(64))


def test_a_containers_limit_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    texts = {"/sys/fs/cgroup/memory.max": "5000\n", "/sys/fs/cgroup/memory.current": "2000\n"}
    monkeypatch.setattr(host_memory, "_text", lambda path: texts.get(path, ""))
    assert available_memory() == 3000
    texts["/sys/fs/cgroup/memory.max"] = "max\n"
    assert available_memory() is None


@pytest.mark.parametrize(
    "make",
    [
        lambda: wf.arange(1 << 26),
        lambda: wf.ones((1 << 13, 1 << 13)),
        lambda: wf.random.normal((1 << 26,)),
        lambda: wf.tensor(range(1 << 26)),
        lambda: wf.asarray(range(1 << 26, 0, -1)),
    ],
)
def test_values_of_a_shape_ask_for_room_where_the_system_promises_too_much(
    make: Callable[[], wf.Tensor], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(host_memory, "available_memory", lambda: 1 << 27)
    with pytest.raises(OutOfMemoryError, match="not enough memory"):
        make()


def test_a_view_of_many_elements_needs_no_room(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host_memory, "available_memory", lambda: 1 << 20)
    assert wf.broadcast_to(wf.ones(1), (1 << 20, 1 << 20)).shape == (1 << 20, 1 << 20)


def test_allocations_do_not_overlap() -> None:
    blocks = sorted([allocate(100) for _ in range(50)], key=lambda block: block.address)
    assert all(a.address + 100 <= b.address for a, b in pairwise(blocks))


def test_a_large_block_that_only_small_plans_take_goes_back() -> None:
    arena = Arena()
    large, small = (plan([Lifetime("x", size, 0, 0)]) for size in (LARGE, 4096))
    arena.give(arena.take(large))
    sizes = []
    for _ in range(WASTED + 1):
        block = arena.take(small)
        sizes.append(block.size)
        arena.give(block)
    assert sizes == [LARGE] * (WASTED - 1) + [4096] * 2
    for _ in range(3):  # where both sizes come in turns, the large one stays
        for needed in (large, *[small] * (WASTED - 1)):
            block = arena.take(needed)
            assert block.size == LARGE
            arena.give(block)


def test_a_result_in_its_operands_place_is_counted_once_among_the_largest() -> None:
    chain = [Lifetime("x", 4096, 0, 1), Lifetime("y", 4096, 1, 2, reuses="x"),
             Lifetime("z", 64, 1, 1)]  # fmt: skip
    made = plan(chain)
    assert [each.name for each in made.largest_live()] == ["x", "z"]
    assert sum(made.sizes[each.name] for each in made.largest_live()) <= made.peak
