"""Updates that touch few elements: what they cost, and that nobody else sees them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import weft as wf
from weft.compiler.plan.order import runnable_order
from weft.compiler.plan.schedule import Task, peak, schedule
from weft.compiler.targets.cpu.cache.program_store import freeze_program, thaw_program
from weft.compiler.targets.cpu.engine import call_kernel
from weft.compiler.targets.cpu.runtime.copies import CHUNK, copy_address, copy_numbers
from weft.compiler.targets.cpu.target import compile_program
from weft.ir.dispatch import bind
from weft.ir.primitive import PRIMITIVES
from weft.models import GPT, GPTConfig, token_step

Array = np.ndarray[Any, Any]
Step = Callable[..., Any]


@pytest.fixture(autouse=True)
def threads() -> Iterator[None]:
    before = wf.get_num_threads()
    yield
    wf.set_num_threads(before)


def address(x: wf.Tensor) -> int:
    return int(x._value.ctypes.data)  # type: ignore[attr-defined]


def table_of(rows: int, width: int = 3, seed: int = 0) -> Array:
    return np.random.default_rng(seed).normal(size=(rows, width)).astype(np.float32)


def copied(report: Any) -> int:
    """The bytes that copies of whole operands read and write."""
    return sum(k.read + k.written for k in report.kernels if k.name == "copy")


@wf.jit
def replace_rows(table: wf.Tensor, index: wf.Tensor, rows: wf.Tensor) -> None:
    table.copy_(wf.index_copy(table, 0, index, rows))


def ran(step: Step, *arguments: Any) -> None:
    """Twice, so that state lies in arrays that the program has made."""
    step(*arguments)
    step(*arguments)


# --- copies --------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [0, 1, 8 * 1000, CHUNK, 3 * CHUNK + 5])
def test_a_copy_copies_every_byte_and_nothing_more(size: int) -> None:
    source = np.random.default_rng(0).integers(0, 255, size + 8).astype(np.uint8)
    target = np.zeros_like(source)
    call_kernel(copy_address(), [source, target], copy_numbers(size))
    np.testing.assert_array_equal(target[:size], source[:size])
    assert not target[size:].any()


def test_state_of_which_few_rows_change_is_not_copied() -> None:
    data = table_of(1000)
    table, index, rows = (
        wf.tensor(data.copy()),
        wf.tensor([7, 3, 7]),
        wf.tensor(table_of(3, seed=1)),
    )
    ran(replace_rows, table, index, rows)
    before = address(table)
    replace_rows(table, index, rows)
    assert address(table) == before
    data[[3, 7]] = rows.numpy()[[1, 2]]
    np.testing.assert_array_equal(table.numpy(), data)


def test_the_bytes_of_an_update_do_not_grow_with_the_table() -> None:
    index, rows = wf.tensor([7, 3, 7]), wf.ones((3, 3))
    costs = []
    for count in (100, 10_000):
        report = replace_rows.explain(wf.zeros((count, 3)), index, rows)
        assert copied(report) == 0
        costs.append(report.bytes)
    assert costs[0] == costs[1] < 500
    assert "nothing, it is there" in str(report)


def test_the_bytes_of_a_row_wise_optimiser_do_not_grow_with_the_table() -> None:
    def step(table: Any, optimizer: Any, index: wf.Tensor) -> wf.Tensor:
        rows = wf.optim.take_rows(table, index)
        loss = (rows * rows).sum()
        loss.backward()
        optimizer.step(rows=[wf.optim.Rows(table, index, rows.grad)])
        return loss

    index = wf.tensor([5, 1, 5, 99])
    costs = []
    for count in (100, 10_000):
        table = wf.tensor(table_of(count)).requires_grad_()
        optimizer = wf.optim.Adam([table], lr=0.1)
        report = wf.jit(step).explain(table, optimizer, index)
        assert not report.references
        assert copied(report) == 0
        costs.append(sum(k.written for k in report.kernels))
    assert costs[0] == costs[1]


def test_a_row_wise_step_compiled_is_the_step_by_reference() -> None:
    found = []
    for compiler in (True, False):
        with wf.settings.changed(compiler=compiler):
            table = wf.tensor(table_of(50)).requires_grad_()
            optimizer = wf.optim.Adam([table], lr=0.1)
            step = wf.jit(_row_step)
            for index in ([5, 1, 5], [0, 49, 49], [5, 2, 3]):
                step(table, optimizer, wf.tensor(index))
            found.append(
                [table.detach().numpy(), *[s.numpy() for s in optimizer.state[0].values()]]
            )
    for one, other in zip(*found, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-6)


def test_an_eager_row_wise_step_writes_into_the_table_that_is_there() -> None:
    """As one compiled unit, like a step without rows: by reference it would copy whole tables."""
    found = []
    for eager in ("native", "reference"):
        with wf.settings.changed(eager=eager):
            table = wf.tensor(table_of(500)).requires_grad_()
            optimizer = wf.optim.Adam([table], lr=0.1)
            places = set()
            for index in ([5, 1, 5], [0, 499, 499], [5, 2, 3], [7, 7, 7]):
                _row_step(table, optimizer, wf.tensor(index))
                places.add(address(table))
            # the first step moves the table into memory that the program made
            assert eager == "reference" or len(places) <= 2
            found.append(
                [table.detach().numpy(), *[s.numpy() for s in optimizer.state[0].values()]]
            )
    for one, other in zip(*found, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-6)


def _row_step(table: Any, optimizer: Any, index: wf.Tensor) -> None:
    rows = wf.optim.take_rows(table, index)
    (rows * rows).sum().backward()
    optimizer.step(rows=[wf.optim.Rows(table, index, rows.grad)])


@pytest.mark.slow
def test_a_token_step_does_not_copy_the_cache() -> None:
    net = GPT(GPTConfig(vocabulary=11, width=16, layers=3, heads=2, context=32)).eval()
    cache, last, key = net.new_cache(1, 32), wf.tensor([1]), wf.random.key(0)
    choice = wf.tensor(1.0), False, None
    with wf.no_grad():
        for _ in range(2):
            last, key = token_step(net, last, cache, key, *choice)
        before = [address(x) for layer in cache for x in (layer.key, layer.value)]
        last, key = token_step(net, last, cache, key, *choice)
        assert [address(x) for layer in cache for x in (layer.key, layer.value)] == before
        assert copied(token_step.explain(net, last, cache, key, *choice)) == 0
    assert [int(layer.length) for layer in cache] == [3, 3, 3]
    assert np.count_nonzero(cache[2].key.numpy().any(axis=(0, 1, 3))) == 3


def test_a_full_cache_is_an_error_that_leaves_it_as_it_is() -> None:
    net = GPT(GPTConfig(vocabulary=11, width=16, layers=2, heads=2, context=32)).eval()
    cache, last, key = net.new_cache(1, 4), wf.tensor([1]), wf.random.key(0)
    choice = wf.tensor(1.0), False, None
    with wf.no_grad():
        for _ in range(4):
            last, key = token_step(net, last, cache, key, *choice)
        before = [x.numpy().copy() for layer in cache for x in layer]
        with pytest.raises(wf.BoundsError):
            token_step(net, last, cache, key, *choice)
    for layer, (k, v, length) in zip(cache, zip(*[iter(before)] * 3, strict=True), strict=True):
        np.testing.assert_array_equal(layer.key.numpy(), k)
        np.testing.assert_array_equal(layer.value.numpy(), v)
        assert int(layer.length) == int(length)


# --- nobody else sees it -------------------------------------------------------------------------


def test_another_handle_of_the_array_keeps_the_old_rows() -> None:
    data = table_of(20)
    table, index, rows = wf.tensor(data.copy()), wf.tensor([4]), wf.zeros((1, 3))
    ran(replace_rows, table, wf.tensor([0]), wf.tensor(data[:1]))
    other = table.detach()
    replace_rows(table, index, rows)
    np.testing.assert_array_equal(other.numpy(), data)
    assert not table.numpy()[4].any()


def test_an_array_of_numpy_keeps_the_old_rows() -> None:
    data = table_of(20)
    table = wf.tensor(data.copy())
    ran(replace_rows, table, wf.tensor([0]), wf.tensor(data[:1]))
    view = table.numpy()[3:6]
    replace_rows(table, wf.tensor([4]), wf.zeros((1, 3)))
    np.testing.assert_array_equal(view, data[3:6])


def test_one_array_given_twice_is_changed_once() -> None:
    @wf.jit
    def step(table: wf.Tensor, same: wf.Tensor, index: wf.Tensor) -> wf.Tensor:
        table.copy_(wf.index_add(table, 0, index, wf.ones((1, 3))))
        return same * 1

    table = wf.tensor(np.zeros((5, 3), np.float32))
    for count in range(1, 4):
        old = step(table, table, wf.tensor([2]))
        np.testing.assert_array_equal(table.numpy()[2], np.full(3, count))
        assert old.numpy()[2, 0] in (count - 1, count)
    other = table.detach()
    kept = step(table, other, wf.tensor([2])).numpy()
    np.testing.assert_array_equal(kept[2], np.full(3, 3))


def test_a_tensor_that_was_given_twice_is_not_taken_for_two_others() -> None:
    difference = wf.jit(lambda x, y: x - y)
    x, y = wf.ones(3), wf.full((3,), 5.0)
    assert difference(x, x).tolist() == [0.0] * 3
    assert difference(x, y).tolist() == [-4.0] * 3
    assert difference(y, y).tolist() == [0.0] * 3
    in_pairs = wf.jit(lambda pair: pair[0] - pair[1])
    assert [in_pairs(pair).tolist()[0] for pair in ((y, y), (x, y), (y, x))] == [0.0, -4.0, 4.0]


def test_an_index_out_of_range_leaves_all_state_as_it_is() -> None:
    @wf.jit
    def step(one: wf.Tensor, count: wf.Tensor, two: wf.Tensor, i: wf.Tensor, j: wf.Tensor) -> None:
        one.copy_(wf.index_copy(one, 0, i, wf.ones((2, 3))))
        count += 1
        two.copy_(wf.index_add(two, 0, j, wf.ones((2, 3))))

    one, two, count = wf.tensor(table_of(9)), wf.tensor(table_of(9, seed=1)), wf.tensor(0.0)
    good, bad = wf.tensor([1, 2]), wf.tensor([3, 9])
    ran(step, one, count, two, good, good)
    before = [x.numpy().copy() for x in (one, two, count)]
    for i, j in ((good, bad), (bad, good), (wf.tensor([0, -10]), good)):
        with pytest.raises(wf.BoundsError):
            step(one, count, two, i, j)
        for x, old in zip((one, two, count), before, strict=True):
            np.testing.assert_array_equal(x.numpy(), old)
    step(one, count, two, good, good)
    assert count.item() == 3
    assert copied(step.explain(one, count, two, good, good)) == 0


def test_the_old_and_the_new_value_can_be_read_in_one_step() -> None:
    @wf.jit
    def step(table: wf.Tensor, index: wf.Tensor) -> wf.Tensor:
        old = table
        new = wf.index_copy(table, 0, index, wf.zeros((1, 3)))
        changed = (wf.exp(new) @ wf.ones((3, 2))).sum() + (new - old * 2).sum()
        table.copy_(new)
        return changed

    data = table_of(30)
    table = wf.tensor(data.copy())
    for row in range(4):
        after = data.copy()
        after[row] = 0
        wanted = np.exp(after).sum() * 2 + (after - data * 2).sum()
        np.testing.assert_allclose(step(table, wf.tensor([row])).item(), wanted, rtol=1e-5)
        np.testing.assert_array_equal(table.numpy(), after)
        data = after


def test_what_reads_the_operand_later_sees_it_unchanged() -> None:
    def f(x: wf.Tensor, i: wf.Tensor) -> tuple[wf.Tensor, ...]:
        a = wf.exp(x)  # in the program's memory
        b = wf.index_add(a, 0, i, wf.ones((2, 3)))
        c = wf.index_copy(b, 0, i, a[:2] * 3)
        return wf.cumulative_sum(b, axis=0), c, wf.cumulative_sum(a, axis=0)

    data, index = table_of(6), np.array([4, 4])
    a = np.exp(data)
    b = a.copy()
    b[4] += 2
    c = b.copy()
    c[4] = a[1] * 3
    found = wf.jit(f)(wf.tensor(data), wf.tensor(index))
    for x, wanted in zip(found, (b.cumsum(axis=0), c, a.cumsum(axis=0)), strict=True):
        np.testing.assert_allclose(x.numpy(), wanted, rtol=1e-5)


def test_values_in_between_are_changed_in_their_place() -> None:
    def f(x: wf.Tensor, i: wf.Tensor) -> wf.Tensor:
        first = wf.index_add(wf.cumulative_sum(x, axis=0), 0, i, wf.ones((2, 50)))
        return wf.cumulative_sum(wf.index_copy(first, 0, i, wf.ones((2, 50))), axis=0)

    program = compile_program(wf.ir.trace(f, wf.spec("float32", (100, 50)), wf.spec("int64", (2,))))
    assert program.plan.planner.plan_for({}).peak < 1.2 * 100 * 50 * 4
    report = wf.explain(program.graph)
    assert copied(report) == 0


def test_an_input_that_stays_the_callers_is_copied() -> None:
    add = wf.jit(lambda x, i: wf.index_add(x, 0, i, wf.ones((1, 3))))
    x = wf.tensor(table_of(5))
    found = add(x, wf.tensor([2]))
    np.testing.assert_array_equal(x.numpy(), table_of(5))
    np.testing.assert_array_equal(found.numpy() - x.numpy() > 0.5, np.arange(5)[:, None] == [2] * 3)


def test_a_constant_is_copied_and_stays() -> None:
    constant = table_of(4)
    add = wf.jit(lambda i: wf.index_add(constant, 0, i, wf.ones((1, 3))))
    for row in (1, 2, 1):
        wanted = table_of(4)
        wanted[row] += 1
        np.testing.assert_array_equal(add(wf.tensor([row])).numpy(), wanted)


def test_each_step_of_a_loop_begins_with_the_operand() -> None:
    def f(x: wf.Tensor, rows: wf.Tensor) -> wf.Tensor:
        def body(total: wf.Tensor, i: wf.Tensor) -> tuple[wf.Tensor, wf.Tensor]:
            changed = wf.index_add(x, 0, wf.reshape(i, (1,)), wf.ones((1, 3)))
            return total + changed, changed

        return wf.scan(body, wf.zeros((4, 3)), rows)[1]

    found = wf.jit(f)(wf.tensor(table_of(4)), wf.tensor([0, 3, 3])).numpy()
    for step, row in zip(found, (0, 3, 3), strict=True):
        wanted = table_of(4)
        wanted[row] += 1
        np.testing.assert_allclose(step, wanted, rtol=1e-6)


def test_a_loop_that_carries_a_table_changes_its_own() -> None:
    def f(x: wf.Tensor, rows: wf.Tensor) -> tuple[wf.Tensor, wf.Tensor]:
        def body(table: wf.Tensor, i: wf.Tensor) -> tuple[wf.Tensor, wf.Tensor]:
            place = wf.reshape(i, (1,))
            return wf.index_add(table, 0, place, wf.ones((1, 3))), wf.take(table, place, axis=0)

        return wf.scan(body, x, rows)

    data = table_of(4)
    x = wf.tensor(data.copy())
    last, seen = wf.jit(f)(x, wf.tensor([0, 3, 3]))
    np.testing.assert_array_equal(x.numpy(), data)
    wanted = data.copy()
    for step, row in enumerate((0, 3, 3)):
        np.testing.assert_allclose(seen.numpy()[step, 0], wanted[row], rtol=1e-6)
        wanted[row] += 1
    np.testing.assert_allclose(last.numpy(), wanted, rtol=1e-6)
    with pytest.raises(wf.BoundsError):
        wf.jit(f)(x, wf.tensor([0, 4]))
    np.testing.assert_array_equal(x.numpy(), data)
    none = wf.tensor(np.zeros(0, np.int64))
    np.testing.assert_array_equal(wf.jit(f)(x, none)[0].numpy(), data)
    (loop,) = wf.jit(f).explain(x, wf.tensor([0, 3, 3])).kernels
    assert [kernel.written for kernel in loop.inner if kernel.name == "copy"] == [0]


def test_a_carry_that_is_read_after_its_change_or_changes_places_is_not_overwritten() -> None:
    def f(a: wf.Tensor, b: wf.Tensor) -> Any:
        def body(carry: Any, _: wf.Tensor) -> Any:
            a, b, c = carry
            changed = wf.index_add(a, 0, wf.tensor([1]), wf.ones((1, 3)))
            return (b, changed, c + wf.cumulative_sum(changed, axis=0)), (changed - a * 2, c)

        return wf.scan(body, (a, b, a), wf.arange(5))

    def by_numpy(a: Array, b: Array) -> Any:
        c, differences, seen = a, [], []
        for _ in range(5):
            changed = a.copy()
            changed[1] += 1
            differences.append(changed - a * 2)
            seen.append(c)
            a, b, c = b, changed, c + changed.cumsum(axis=0)
        return (a, b, c), (np.stack(differences), np.stack(seen))

    one, two = table_of(4), table_of(4, seed=1)
    found = wf.tree.leaves(wf.jit(f)(wf.tensor(one), wf.tensor(two)))
    for x, wanted in zip(found, wf.tree.leaves(by_numpy(one, two)), strict=True):
        np.testing.assert_allclose(x.numpy(), wanted, rtol=1e-5, atol=1e-5)


# --- the same numbers ----------------------------------------------------------------------------

FAMILY = ("scatter", "scatter_add", "scatter_max", "scatter_min")
PLACES: dict[str, tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]] = {
    "rows": ((40, 5), (0,), (30,)),
    "long rows": ((9, 300), (0,), (17,)),
    "columns": ((6, 7, 8), (1,), (4, 3)),
    "single elements": ((5, 6), (0, 1), (50,)),
    "the last axis": ((3, 70), (1,), (200,)),
    "no updates": ((4, 3), (0,), (0,)),
}


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["float32", "float16", "uint8"])
@pytest.mark.parametrize("case", PLACES)
@pytest.mark.parametrize("name", FAMILY)
def test_updates_of_one_place_keep_their_order(name: str, case: str, dtype: str) -> None:
    shape, axes, index = PLACES[case]
    rng = np.random.default_rng(len(case))
    kept = [dim for axis, dim in enumerate(shape) if axis not in axes]
    x = (rng.normal(size=shape) * 8).astype(np.int8).astype(dtype)
    updates = (rng.normal(size=(*index, *kept)) * 8).astype(np.int8).astype(dtype)
    places = [rng.integers(0, shape[axis], index) for axis in axes]
    params = {"axes": axes, "unique": False} if name == "scatter" else {"axes": axes}
    wanted = PRIMITIVES[name].reference(x, updates, *places, **params)
    types = [wf.asarray(a).type for a in (x, updates, *places)]
    program = compile_program(
        wf.ir.trace(lambda *given: bind(PRIMITIVES[name], *given, **params), *types)
    )
    assert all(call.node is None for call in program.plan.launches)
    found = []
    for count in (1, 2, 3):
        wf.set_num_threads(count)
        found.append(program.run([x, updates, *places])[0])
        assert found[-1].tobytes() == found[0].tobytes()
    np.testing.assert_array_equal(found[0], wanted)


@pytest.mark.parametrize("start", [(0, 0), (2, 3), (-5, 100)])
def test_a_box_replaces_nothing_but_itself(start: tuple[int, int]) -> None:
    @wf.jit
    def step(x: wf.Tensor, box: wf.Tensor, i: wf.Tensor, j: wf.Tensor) -> None:
        x.copy_(bind(PRIMITIVES["dynamic_update_slice"], x, box, i, j))

    data, box = table_of(7, 9), table_of(3, 4, seed=1)
    x = wf.tensor(data.copy())
    for _ in range(3):
        step(x, wf.tensor(box), *map(wf.tensor, start))
    i, j = np.clip(start, 0, (4, 5))
    data[i : i + 3, j : j + 4] = box
    np.testing.assert_array_equal(x.numpy(), data)
    assert copied(step.explain(x, wf.tensor(box), *map(wf.tensor, start))) == 0


def test_a_slice_of_state_is_replaced_in_its_place() -> None:
    @wf.jit
    def step(x: wf.Tensor, part: wf.Tensor) -> None:
        x[1:6:2, 3] = part

    x = wf.tensor(table_of(7, 9))
    ran(step, x, wf.ones(3))
    before = address(x)
    step(x, wf.full((3,), 2.0))
    assert address(x) == before
    wanted = table_of(7, 9)
    wanted[1:6:2, 3] = 2
    np.testing.assert_array_equal(x.numpy(), wanted)


def test_tables_of_unknown_sizes() -> None:
    step = wf.jit(lambda t, i, r: wf.index_add(t, 0, i, r))
    for rows, count in ((5, 2), (9, 7), (100, 30), (33, 2)):
        data, index = table_of(rows), np.arange(count) % 4
        wanted = data.copy()
        np.add.at(wanted, index, np.ones((count, 3), np.float32))
        found = step(wf.tensor(data), wf.tensor(index), wf.ones((count, 3)))
        np.testing.assert_allclose(found.numpy(), wanted, rtol=1e-6)


def test_a_stored_program_changes_rows_in_their_place() -> None:
    def f(x: wf.Tensor, i: wf.Tensor, rows: wf.Tensor) -> wf.Tensor:
        return wf.index_copy(x, 0, i, rows)

    kinds = [wf.spec("float32", (8, 3)), wf.spec("int64", (2,)), wf.spec("float32", (2, 3))]
    graph = wf.ir.trace(f, *kinds)
    program = thaw_program(freeze_program(compile_program(graph)), lambda: compile_program(graph))
    assert program is not None
    assert program.donations == {0: (0,)}
    data, rows = table_of(8), table_of(2, seed=1)
    given = data.copy()
    (found,) = program.run([given, np.array([6, 1]), rows], [(0, 0)])
    assert found is given
    data[[6, 1]] = rows
    np.testing.assert_array_equal(found, data)
    with pytest.raises(wf.BoundsError):
        program.run([given, np.array([6, 8]), rows * 2], [(0, 0)])
    np.testing.assert_array_equal(given, data)


# --- order and schedule --------------------------------------------------------------------------


def test_a_value_that_is_changed_takes_memory_once() -> None:
    tasks = [
        Task(("x",), ("y",), joins=False),
        Task(("i", "y"), ("y",), joins=False),
        Task(("y",), ("out",), joins=False),
    ]
    assert schedule(tasks, {"y": 100}, 64.0) == [(0,), (1,), (2,)]
    assert peak([(0,), (1,), (2,)], tasks, {"y": 100}) == 100


def test_copies_wait_for_all_that_may_fail() -> None:
    def f(a: wf.Tensor, b: wf.Tensor, i: wf.Tensor, j: wf.Tensor) -> tuple[wf.Tensor, ...]:
        rows = wf.ones((2, 3))
        return wf.index_copy(a, 0, i, rows), wf.index_add(b, 0, j, wf.take(a, i, axis=0))

    kinds = [wf.spec("float32", (8, 3))] * 2 + [wf.spec("int64", (2,))] * 2
    program = compile_program(wf.ir.trace(f, *kinds))
    names = [call.name for call in program.plan.launches]
    assert names.index("copy") > max(
        names.index("gather"), len(names) - names[::-1].index("check") - 1
    )
    assert program.donations == {0: (0,), 1: (1,)}
    again = runnable_order(program.plan.launches, program.root)
    assert [call.name for call in again] == names
