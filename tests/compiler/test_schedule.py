"""The schedule: grouped launches, order, results in their operands' places, and donated state."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given, settings
from tests.laws import Arguments
from tests.laws import Program as Drawn
from tests.test_laws import programs

import weft as wf
from weft.compiler.plan import horizontal_fusion, planning
from weft.compiler.plan.horizontal_fusion import _chunks_at_once, chunk_count
from weft.compiler.plan.launch import Kind
from weft.compiler.plan.launch import Launch as PlanLaunch
from weft.compiler.plan.schedule import SLACK, TOLERATED, Launch, Task, peak, schedule
from weft.compiler.targets.cpu.runtime.grouped_launch import table
from weft.compiler.targets.cpu.target import CPU, compile_program
from weft.core import trees
from weft.core.types import TensorType
from weft.ir.graph import Variable

LARGE = CPU.limits.plan.filling_chunks

Array = np.ndarray[Any, Any]
ODD = [(7, 13), (13,), (129,), (1,), (3, 5, 2), (1000, 33), (33,), (17, 31), (64, 64), (5, 1)]


@pytest.fixture(autouse=True)
def threads() -> Iterator[None]:
    before = wf.get_num_threads()
    yield
    wf.set_num_threads(before)


class Adam:
    """An optimiser by its formulas, to be compiled, and beside it the same with NumPy."""

    def __init__(self, shapes: list[tuple[int, ...]], seed: int = 0) -> None:
        rng = np.random.default_rng(seed)
        self.start = [rng.normal(size=shape).astype(np.float32) for shape in shapes]
        self.weights = [wf.tensor(array.copy(), requires_grad=True) for array in self.start]
        self.first = [wf.zeros(shape) for shape in shapes]
        self.second = [wf.zeros(shape) for shape in shapes]
        self.count = wf.tensor(0.0)

    @property
    def state(self) -> tuple[Any, ...]:
        return self.weights, self.first, self.second, self.count

    @staticmethod
    def update(weights: Any, first: Any, second: Any, count: Any) -> None:
        with wf.no_grad():
            count += 1.0
            for p, m, v in zip(weights, first, second, strict=True):
                m.copy_(m * 0.9 + p.grad * 0.1)
                v.copy_(v * 0.999 + p.grad * p.grad * 0.001)
                p -= 0.01 * (m / (1 - 0.9**count)) / (wf.sqrt(v / (1 - 0.999**count)) + 1e-8)
                p.grad = None

    def expected(self, steps: int) -> list[Array]:
        """The weights after some steps on the loss `sum(p**2) + sum(p)`."""
        found = []
        for p in [array.astype(np.float64) for array in self.start]:
            m, v = np.zeros_like(p), np.zeros_like(p)
            for t in range(1, steps + 1):
                g = 2 * p + 1
                m, v = m * 0.9 + g * 0.1, v * 0.999 + g * g * 0.001
                p = p - 0.01 * (m / (1 - 0.9**t)) / (np.sqrt(v / (1 - 0.999**t)) + 1e-8)
            found.append(p)
        return found


def adam_step(weights: Any, first: Any, second: Any, count: Any) -> wf.Tensor:
    loss = wf.tensor(0.0)
    for p in weights:
        loss = loss + (p * p + p).sum()
    loss.backward()
    Adam.update(weights, first, second, count)
    return loss


# --- the schedule alone --------------------------------------------------------------------------


def test_independent_calls_are_one_launch_and_others_wait() -> None:
    tasks = [Task((), ("a",)), Task((), ("b",)), Task(("a", "b"), ("c",)), Task(("c",), ("d",))]
    sizes = dict.fromkeys("abcd", 64)
    assert schedule(tasks, sizes, LARGE) == [(0, 1), (2,), (3,)]


def test_large_calls_stay_alone() -> None:
    tasks = [Task((), ("a",)), Task((), ("b",), work=1000.0), Task((), ("c",))]
    assert schedule(tasks, dict.fromkeys("abc", 1), LARGE) == [(0, 2), (1,)]


def test_updates_go_last_as_one_and_after_what_may_fail() -> None:
    tasks = [
        Task((), ("gradient",)),
        Task(("gradient", "w"), ("new w",), replaces={"w": 8}),
        Task((), ("other gradient",), joins=False, pinned=True),
        Task(("other gradient", "u"), ("new u",), replaces={"u": 8}),
    ]
    assert schedule(tasks, {"gradient": 8, "other gradient": 8}, LARGE) == [(0,), (2,), (1, 3)]


def test_preparations_come_first_and_what_only_updates_wait_for_last() -> None:
    tasks = [
        Task(("w",), ("short w",)),
        Task(("x", "short w"), ("y",), joins=False),
        Task(("u",), ("short u",), work=1000.0),
        Task(("y", "short u"), ("parts",), joins=False),
        Task(("parts",), ("sums",)),
        Task(("sums",), ("gradient",)),
        Task(("y",), ("other parts",), joins=False),
        Task(("other parts",), ("other gradient",)),
        Task(("gradient", "w"), ("new w",), work=1000.0, replaces={"w": 8}),
        Task(("other gradient", "u"), ("new u",), replaces={"u": 8}),
    ]
    sizes = {
        value: 8 for task in tasks for value in task.writes if not str(value).startswith("new")
    }
    gathered = [(0, 2), (1,), (3,), (6,), (4, 7), (5,), (8, 9)]
    assert schedule(tasks, sizes, LARGE, float("inf"), 8) == gathered
    assert (4, 7) not in schedule(tasks, sizes, LARGE, float("inf"), 7)
    held = {**sizes, "parts": 1 << 30, "y": 1 << 30, "other parts": 1 << 30}
    assert (4, 7) not in schedule(tasks, held, LARGE, float("inf"), 1 << 40)


def test_updates_that_need_not_wait_for_the_last_large_launch_do_not() -> None:
    tasks = [
        Task((), ("y",), joins=False),
        Task(("y",), ("gradient",), joins=False),
        Task(("y",), ("parts",), joins=False),
        Task(("y",), ("short gradient",)),
        Task(("parts",), ("other gradient",)),
        Task(("gradient", "w"), ("new w",), replaces={"w": 8}),
        Task(("other gradient", "u"), ("new u",), replaces={"u": 8}),
        Task(("short gradient", "v"), ("new v",), replaces={"v": 8}),
    ]
    sizes = {
        value: 8 for task in tasks for value in task.writes if not str(value).startswith("new")
    }
    body: list[Launch] = [(0,), (1,), (2,), (3, 4)]
    apart = schedule(tasks, sizes, LARGE, side_by_side=8)
    assert apart == [*body, (5, 7), (6,)]
    together = [*body, (5, 6, 7)]
    assert schedule(tasks, sizes, LARGE) == together
    assert schedule(tasks, sizes, LARGE, side_by_side=5) == together  # of five launches


def test_what_frees_more_than_it_takes_comes_first_where_that_lowers_the_peak() -> None:
    large = {"a": 1000, "b": 1000, "c": 1000}
    tasks = [
        Task((), ("a",), joins=False),
        Task((), ("b",), joins=False),
        Task((), ("c",), joins=False),
        *[Task((v,), (f"sum of {v}",), joins=False) for v in "abc"],
        Task(tuple(f"sum of {v}" for v in "abc"), ("out",), joins=False),
    ]
    sizes = large | {f"sum of {v}": 8 for v in "abc"}
    found = schedule(tasks, sizes, LARGE)
    assert found == [(0,), (3,), (1,), (4,), (2,), (5,), (6,)]
    assert peak(found, tasks, sizes) < peak([(n,) for n in range(7)], tasks, sizes) / 2


def test_effects_keep_their_order() -> None:
    tasks = [
        Task((), ("a",), joins=False),
        Task(("a",), (), joins=False, pinned=True),
        Task((), ("b",), joins=False, pinned=True),
        Task(("b",), (), joins=False, pinned=True),
    ]
    order = [launch[0] for launch in schedule(tasks, {"a": 10, "b": 1000}, LARGE)]
    assert [number for number in order if number in (1, 2, 3)] == [1, 2, 3]


@st.composite
def graphs(draw: st.DrawFn) -> list[Task]:
    tasks: list[Task] = []
    for number in range(draw(st.integers(1, 25))):
        reads = draw(st.lists(st.integers(0, number - 1), max_size=3)) if number else []
        pinned = draw(st.booleans()) and draw(st.booleans())
        work = draw(st.sampled_from([0.1, 1.0, 500.0]))
        state = {f"state {number}": 1 << 30} if draw(st.booleans()) and not pinned else {}
        tasks.append(Task((*{*reads}, *state), (number,), work, not pinned, pinned, state))
    return tasks


@pytest.mark.slow
@given(
    graphs(),
    st.lists(st.integers(0, 1000), min_size=25, max_size=25),
    st.sampled_from([0, 1 << 24]),
    st.sampled_from([0, 8, 1 << 10]),
)
def test_every_schedule_can_be_run_and_needs_no_more_memory(
    tasks: list[Task], bytes_: list[int], gathered: int, side_by_side: int
) -> None:
    read = {value for task in tasks for value in task.reads}
    sizes = {value: bytes_[value] << 16 for value in range(len(tasks)) if value in read}
    limits = LARGE, float("inf") if gathered else None, gathered, side_by_side
    found = schedule(tasks, sizes, *limits)  # type: ignore[arg-type]
    assert sorted(number for launch in found for number in launch) == [*range(len(tasks))]
    done: set[Any] = {value for task in tasks for value in task.replaces}
    for launch in found:
        assert all(value in done for number in launch for value in tasks[number].reads)
        done.update(value for number in launch for value in tasks[number].writes)
    pinned = [number for launch in found for number in launch if tasks[number].pinned]
    assert pinned == sorted(pinned)
    plain: list[Launch] = [(number,) for number in range(len(tasks))]
    limit = peak(plain, tasks, sizes) * TOLERATED + SLACK  # type: ignore[arg-type]
    assert peak(found, tasks, sizes) <= limit  # type: ignore[arg-type]
    assert schedule(tasks, sizes, *limits) == found  # type: ignore[arg-type]


def member(buffers: int, numbers: list[int], extent: int, grain: int) -> PlanLaunch:
    values = tuple(Variable(TensorType(wf.float32, (1,))) for _ in range(buffers))
    return PlanLaunch(
        Kind.LOOP, "k", ("k",), values, (), lambda _: numbers, lambda _: extent, lambda _: grain
    )


def test_the_table_of_a_grouped_launch_has_the_borders_its_members_have_alone() -> None:
    members = [member(2, [5], 10, 4), member(3, [6, 7], 0, 4), member(1, [], 4, 4)]
    assert [chunk_count(each, {}) for each in members] == [3, 0, 1]
    rows = table(members, {}, lambda each: (1, each.numbers({})))
    assert rows[0] == 3
    assert [rows[1 + 6 * row + 5] for row in range(3)] == [0, 3, 3]
    assert [rows[1 + 6 * row + 1] for row in range(3)] == [0, 2, 5]
    assert rows[-3:] == [5, 6, 7]
    assert _chunks_at_once([member(1, [], 1, 1000)] * 50, {}) == 50
    assert _chunks_at_once([member(1, [], 4000, 1000)] * 50, {}) == 1


# --- grouped launches -----------------------------------------------------------------------------


def test_an_adam_step_over_many_odd_parameters_has_one_launch_of_updates() -> None:
    adam = Adam([*ODD, *ODD])
    report = wf.jit(adam_step).explain(*adam.state)
    updates = [kernel for kernel in report.kernels if "sqrt" in kernel.primitives]
    assert len(updates) == 1
    assert updates[0].primitives.count("sqrt") == len(adam.weights)
    several = [member for member in updates[0].members if "sqrt" in member.primitives]
    assert len(several) == len(adam.weights)
    assert f"×{len(adam.weights) - 2}" in str(report)  # all but those of one element


def test_kernels_that_differ_in_sizes_only_share_their_code() -> None:
    shapes = [shape for shape in ODD if shape not in ((1,), (5, 1))]
    program = wf.jit(adam_step).program(*Adam(shapes).state)
    updates = [k.kernel for k in program.plan.every_lowered if len(k.written) == 3]
    assert len(updates) == len(shapes)
    assert len({kernel.digest for kernel in updates}) == 1


def test_adam_compiled_is_adam() -> None:
    adam = Adam(ODD)
    step = wf.jit(adam_step)
    for _ in range(5):
        step(*adam.state)
    for found, wanted in zip(adam.weights, adam.expected(5), strict=True):
        np.testing.assert_allclose(found.detach().numpy(), wanted, rtol=2e-5, atol=2e-6)


def test_a_grouped_launch_of_different_kernels_gives_what_each_gives(
    rng: np.random.Generator,
) -> None:
    def f(x: wf.Tensor, y: wf.Tensor, z: wf.Tensor) -> tuple[wf.Tensor, ...]:
        return wf.exp(x), y.sum(axis=0), wf.softmax(z), z @ z.T, x * 3.0, y[::2, 1:]

    shapes = ((33,), (50, 70), (9, 31))
    arrays = [rng.normal(size=shape).astype(np.float32) for shape in shapes]
    tensors = [wf.asarray(array) for array in arrays]
    program = compile_program(wf.ir.trace(f, *tensors))
    mixed = [{member.identity for member in call.members} for call in program.plan.launches]
    assert sum(len(functions) > 1 for functions in mixed) >= 2
    for found, wanted in zip(program.run(arrays), f(*tensors), strict=True):
        np.testing.assert_allclose(found, wanted.numpy(), rtol=1e-5, atol=1e-5)


def test_empty_members_of_a_grouped_launch_do_no_harm() -> None:
    shapes = ((0, 3), (5,), (0,), (4, 4), (2, 0))
    program = compile_program(wf.ir.trace(lambda *xs: [x * 2 for x in xs], *map(wf.zeros, shapes)))
    assert len(program.plan.launches) == 1
    arrays = [np.full(shape, 3, np.float32) for shape in shapes]
    for array, found in zip(arrays, program.run(arrays), strict=True):
        np.testing.assert_array_equal(found, array * 2)


def test_grouped_launches_of_sizes_that_are_symbols() -> None:
    @wf.jit
    def f(x: wf.Tensor, y: wf.Tensor) -> tuple[wf.Tensor, wf.Tensor]:
        return x * 2 + 1, y - 1

    for size in (3, 1000, 77, 40_000):
        x, y = wf.ones(size), wf.ones((2, size))
        np.testing.assert_array_equal(f(x, y)[0].numpy(), np.full(size, 3))
        np.testing.assert_array_equal(f(x, y)[1].numpy(), np.zeros((2, size)))
    assert len(f.compilations) == 2


def test_a_sum_over_a_symbol_that_no_stored_value_has_is_scheduled() -> None:
    f = wf.jit(lambda x: wf.sum(wf.arange(x.shape[0]) * 2))
    for size in (2, 5, 3, 900):
        assert int(f(wf.ones(size))) == size * (size - 1)
    assert len(f.compilations) == 2


@pytest.mark.parametrize("threads", [1, 2, 3])
def test_bits_do_not_depend_on_threads(threads: int) -> None:
    shapes = [(300, 257), (257,), (70_000,), (31, 7), (512, 100)]
    found = []
    for count in (1, threads):
        wf.set_num_threads(count)
        adam = Adam(shapes)
        step = wf.jit(adam_step)
        losses = [step(*adam.state).numpy().tobytes() for _ in range(3)]
        found.append([*losses, *[w.detach().numpy().tobytes() for w in adam.weights]])
    assert found[0] == found[1]


@pytest.mark.slow
def test_a_kernel_of_very_many_operands_runs(rng: np.random.Generator) -> None:
    arrays = [rng.normal(size=(3,)).astype(np.float32) for _ in range(400)]
    tensors = [wf.asarray(array) for array in arrays]
    joined = wf.jit(lambda xs: (wf.concat(xs), [x * 2 for x in xs]))(tensors)
    np.testing.assert_array_equal(joined[0].numpy(), np.concatenate(arrays))
    for found, array in zip(joined[1], arrays, strict=True):
        np.testing.assert_array_equal(found.numpy(), array * 2)


# --- in place ------------------------------------------------------------------------------------


def reused(f: Any, *kinds: Any) -> dict[str, str]:
    return dict(compile_program(wf.ir.trace(f, *kinds)).plan.planner.plan_for({}).reused)


def test_an_element_wise_result_takes_its_operands_place() -> None:
    kind = wf.spec("float32", (64, 64))
    for f in (wf.exp, wf.softmax):
        assert len(reused(lambda x, f=f: wf.cumsum(f(wf.cumsum(x, axis=0)), axis=1), kind)) == 1


@pytest.mark.parametrize(
    "f",
    [
        lambda y: wf.cumsum(y.T * 2, axis=1),
        lambda y: wf.cumsum(wf.flip(y, axis=0), axis=1),
        lambda y: wf.cumsum(y * wf.flip(y, axis=1), axis=1),
        lambda y: wf.cumsum(wf.exp(y), axis=1) + wf.sort(y),
        lambda y: wf.cumsum(y - y[:1], axis=1),
        lambda y: wf.cumsum(y.astype("float64"), axis=1).astype("float32"),
        lambda y: wf.cumsum(wf.softmax(y) + wf.flip(y, axis=1), axis=1),
    ],
)
def test_what_is_read_elsewhere_or_later_is_left_alone(f: Any, rng: np.random.Generator) -> None:
    def whole(x: wf.Tensor) -> wf.Tensor:
        return f(wf.cumsum(x, axis=0))

    assert reused(whole, wf.spec("float32", (64, 64))) == {}
    x = wf.asarray(rng.normal(size=(64, 64)).astype(np.float32))
    np.testing.assert_allclose(wf.jit(whole)(x).numpy(), whole(x).numpy(), rtol=1e-4, atol=1e-3)


def test_two_results_that_read_one_operand_are_right(rng: np.random.Generator) -> None:
    def f(x: wf.Tensor) -> wf.Tensor:
        y = wf.cumsum(x, axis=0)
        return (wf.sin(y) @ x) + (wf.cos(y) @ x)

    x = wf.asarray(rng.normal(size=(40, 40)).astype(np.float32))
    np.testing.assert_allclose(wf.jit(f)(x).numpy(), f(x).numpy(), rtol=1e-4, atol=1e-4)


def bits(drawn: tuple[Drawn, Arguments]) -> list[bytes]:
    f, xs = drawn
    arrays = [x.detach().numpy() for x in trees.leaves(xs)]
    program = compile_program(wf.ir.trace(f, *xs))
    return [found.tobytes() for found in program.run(arrays)]


@pytest.mark.slow
@settings(max_examples=60)
@given(programs())
def test_neither_places_nor_order_change_a_bit_on_random_programs(
    drawn: tuple[Drawn, Arguments],
) -> None:
    found = bits(drawn)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(planning, "places", lambda calls, root: {})
        patch.setattr(
            horizontal_fusion,
            "schedule",
            lambda tasks, *limits: [(n,) for n in range(len(tasks))],
        )
        assert bits(drawn) == found


# --- donation ------------------------------------------------------------------------------------


@wf.jit
def decay(w: wf.Tensor, x: wf.Tensor) -> wf.Tensor:
    loss = (w * x).sum()
    w -= 0.5 * x
    return loss


def weight(size: int = 3000) -> wf.Tensor:
    return wf.tensor(np.arange(size, dtype=np.float32))


@pytest.fixture
def written_in_place() -> Iterator[None]:
    """State is written in place, whatever the tests are told about that."""
    with wf.settings.changed(in_place_updates=True):
        yield


def place(x: wf.Tensor) -> int:
    return int(x._value.__array_interface__["data"][0])


@pytest.mark.usefixtures("written_in_place")
def test_state_that_nobody_else_holds_is_written_in_place() -> None:
    w, x = weight(), wf.ones(3000)
    decay(w, x)
    before = place(w)
    for _ in range(3):
        decay(w, x)
        assert place(w) == before
    np.testing.assert_array_equal(w.numpy(), np.arange(3000) - 2)
    np.testing.assert_array_equal(x.numpy(), np.ones(3000))


HOLDERS: dict[str, Any] = {
    "an array": np.asarray,
    "a part of an array": lambda w: w.numpy()[10:20],
    "a detached tensor": lambda w: w.detach(),
    "another handle": lambda w: wf.asarray(w.numpy()),
    "an export": lambda w: np.from_dlpack(w),
    "a view": lambda w: w.reshape(30, 100),
    "a list of arrays": lambda w: [w.numpy()],
    "a view of memory": lambda w: memoryview(w.numpy()),
}


@pytest.mark.parametrize("name", sorted(HOLDERS))
def test_what_a_user_holds_of_the_old_state_keeps_its_value(name: str) -> None:
    w, x = weight(), wf.ones(3000)
    decay(w, x)
    held = HOLDERS[name](w)
    first = held[0] if isinstance(held, list) else held
    before = np.array(first.numpy() if isinstance(first, wf.Tensor) else first)
    for _ in range(2):
        decay(w, x)
        after = first.numpy() if isinstance(first, wf.Tensor) else np.asarray(first)
        np.testing.assert_array_equal(after, before)
    np.testing.assert_array_equal(w.numpy(), np.arange(3000) - 1.5)


def test_an_array_given_by_the_user_keeps_its_value() -> None:
    mine = np.arange(3000, dtype=np.float32)
    w = wf.asarray(mine)
    decay(w, wf.ones(3000))
    np.testing.assert_array_equal(mine, np.arange(3000))
    np.testing.assert_array_equal(w.numpy(), np.arange(3000) - 0.5)


def test_one_tensor_given_twice_is_read_before_it_is_written() -> None:
    @wf.jit
    def f(w: wf.Tensor, x: wf.Tensor) -> wf.Tensor:
        w += 1.0
        return (x * 2.0).sum()

    assert f(weight(4), weight(4)).item() == 12.0
    w = weight(4)
    for _ in range(3):
        before = w.numpy().copy()
        f(w, w)
        assert w.numpy().tolist() in ((before + 1).tolist(), before.tolist())
    x = wf.asarray(w.numpy())  # another handle on the same array
    start = w.numpy().copy()
    assert f(w, x).item() == pytest.approx(2 * start.sum())
    np.testing.assert_array_equal(x.numpy(), start)


def test_a_state_whose_old_value_is_a_result_is_not_overwritten() -> None:
    @wf.jit
    def f(w: wf.Tensor) -> wf.Tensor:
        old = w * 1.0
        w += 1.0
        return old

    @wf.jit
    def g(w: wf.Tensor) -> wf.Tensor:
        old = w.detach()
        w += 1.0
        return old

    for step in (f, g):
        w = weight(2000)
        for _ in range(3):
            before = w.numpy().copy()
            np.testing.assert_array_equal(step(w).numpy(), before)
            np.testing.assert_array_equal(w.numpy(), before + 1)


def test_gradients_that_are_kept_keep_their_values() -> None:
    @wf.jit
    def f(w: wf.Tensor, x: wf.Tensor) -> wf.Tensor:
        loss = (w * w * x).sum()
        loss.backward()
        with wf.no_grad():
            w -= 0.1 * w.grad
        return loss

    w, x = wf.tensor(np.ones(2000, np.float32), requires_grad=True), wf.ones(2000)
    f(w, x)
    held = w.grad
    assert held is not None
    before = held.numpy().copy()
    for _ in range(3):
        f(w, x)
    np.testing.assert_array_equal(held.numpy(), before)
    expected, total = 1.0, 0.0
    for _ in range(4):
        total += 2 * expected
        expected -= 0.1 * total
    np.testing.assert_allclose(w.detach().numpy(), np.full(2000, expected), rtol=1e-5)


@pytest.mark.usefixtures("written_in_place")
def test_gradients_that_nobody_holds_stay_in_one_place() -> None:
    @wf.jit
    def f(w: wf.Tensor) -> None:
        w.grad = None
        (w * w).sum().backward()

    w = wf.tensor(np.ones(3000, np.float32), requires_grad=True)
    places = []
    for _ in range(6):
        f(w)
        assert w.grad is not None
        places.append(place(w.grad))
    assert len({*places}) == 1
    np.testing.assert_array_equal(w.grad.numpy(), np.full(3000, 2))
    kept = w.grad.numpy()
    with wf.no_grad():
        w.copy_(w.detach() * 3)
    for _ in range(3):
        f(w)
    np.testing.assert_array_equal(kept, np.full(3000, 2))


def test_an_exception_leaves_the_state_as_it_was() -> None:
    @wf.jit
    def f(w: wf.Tensor, index: wf.Tensor) -> wf.Tensor:
        w += 1.0
        return w[index]

    w = weight(2000)
    f(w, wf.tensor([1, 2]))
    before = w.numpy().copy()
    with pytest.raises(wf.WeftError):
        f(w, wf.tensor([1, 5000]))
    np.testing.assert_array_equal(w.numpy(), before)
    f(w, wf.tensor([1, 2]))
    np.testing.assert_array_equal(w.numpy(), before + 1)


def test_a_callback_that_fails_leaves_the_state_as_it_was() -> None:
    @wf.jit
    def f(w: wf.Tensor, a: wf.Tensor) -> wf.Tensor:
        w += 1.0
        return wf.linalg.inv(a) * w.sum()

    w, good = weight(2000), wf.eye(2)
    f(w, good)
    before = w.numpy().copy()
    with pytest.raises(wf.ArgumentError, match="singular"):
        f(w, wf.zeros((2, 2)))
    np.testing.assert_array_equal(w.numpy(), before)


def test_state_survives_nan_mode() -> None:
    @wf.jit
    def f(w: wf.Tensor, x: wf.Tensor) -> wf.Tensor:
        w -= wf.log(x)
        return w.sum()

    w = weight(2000)
    f(w, wf.ones(2000))
    before = w.numpy().copy()
    with wf.debug.nans(), pytest.raises(wf.NanError):
        f(w, wf.full(2000, -1.0))
    np.testing.assert_array_equal(w.numpy(), before)


@pytest.mark.usefixtures("written_in_place")
def test_the_predicted_memory_knows_what_is_donated() -> None:
    report = decay.memory(weight(), wf.ones(3000))
    assert report.donated == 12_000
    assert report.outputs == 4
    assert report.peak == report.inputs + report.constants + report.outputs + report.arena


@pytest.mark.usefixtures("written_in_place")
def test_steps_do_not_hold_the_state_twice() -> None:
    adam = Adam([(200, 300), (300,), (300, 100)])
    step = wf.jit(adam_step)
    step(*adam.state)
    arrays = [place(x) for x in trees.leaves(adam.state) if x.size > 1]
    for _ in range(3):
        step(*adam.state)
    assert [place(x) for x in trees.leaves(adam.state) if x.size > 1] == arrays
    program = step.program(*adam.state)
    assert not [array for spare in program._spare.values() for array in spare]
