"""A step fits a budget of memory by computing values twice, and gives the same numbers."""

from __future__ import annotations

import re
from collections import OrderedDict
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from tests.quiet import wait_for_quiet

import weft as wf
from weft.compiler.function import program_cache
from weft.compiler.function.recording import outside_source
from weft.compiler.memory_budget import search
from weft.compiler.memory_budget.candidates import DropChoices
from weft.compiler.memory_budget.model import Flow, with_early_updates, with_recomputation
from weft.compiler.memory_budget.search import parse_bytes
from weft.compiler.pipeline import optimize
from weft.compiler.targets.cpu import target as cpu_target
from weft.compiler.targets.cpu.runtime import tables
from weft.compiler.targets.cpu.target import CPU
from weft.core.errors import OutOfMemoryError
from weft.runtime.arena import account
from weft.runtime.cache import DiskCache

pytestmark = pytest.mark.slow

WIDTH, ROWS = 32, 256


def forget_programs() -> None:
    """Have programs of other tests give back their memory now, and not meanwhile."""
    program_cache._executables.clear()
    program_cache._program.cache_clear()
    wait_for_quiet()


def weights(depth: int) -> list[wf.Tensor]:
    wf.random.seed(0)
    return [wf.random.normal((WIDTH, WIDTH)) * 0.1 for _ in range(depth)]


def batch() -> wf.Tensor:
    wf.random.seed(1)
    return wf.random.normal((ROWS, WIDTH))


def loss(ws: list[wf.Tensor], x: wf.Tensor) -> wf.Tensor:
    for w in ws:
        x = x + wf.gelu(wf.nn.functional.layer_norm(x, WIDTH) @ w)
    return (x * x).mean()


def step(ws: list[wf.Tensor], x: wf.Tensor) -> Any:
    value, slopes = wf.value_and_grad(loss)(ws, x)
    return value, [w - 0.01 * d for w, d in zip(ws, slopes, strict=True)]


def budget_for(f: Any, part: float, *args: Any) -> int:
    """What leaves a part of the arena that a function needs unbounded."""
    report = wf.jit(f).memory(*args)
    return int(report.peak - (1 - part) * report.arena)


def same(a: Any, b: Any) -> None:
    for one, other in zip(wf.tree.leaves(a), wf.tree.leaves(b), strict=True):
        np.testing.assert_array_equal(one.detach().numpy(), other.detach().numpy())


@pytest.mark.parametrize("part", [0.8, 0.5, 0.3])
def test_a_step_fits_its_budget_and_gives_the_same_bits(part: float) -> None:
    ws, x = weights(20), batch()
    budget = budget_for(step, part, ws, x)
    bounded = wf.jit(step, memory=budget)
    report = bounded.memory(ws, x)
    assert report.peak <= budget
    assert report.recomputed
    same(bounded(ws, x), wf.jit(step)(ws, x))


def test_the_budget_is_kept_when_it_runs() -> None:
    ws, x = weights(20), batch()
    bounded = wf.jit(step, memory=budget_for(step, 0.4, ws, x))
    allowed = bounded.memory(ws, x).arena
    forget_programs()
    account.reset()
    before = account.current
    bounded(ws, x)
    assert account.peak - before <= allowed


def test_products_are_kept_while_anything_cheaper_will_do() -> None:
    ws, x = weights(20), batch()
    mild = wf.jit(step, memory=budget_for(step, 0.8, ws, x)).memory(ws, x)
    hard = wf.jit(step, memory=budget_for(step, 0.3, ws, x)).memory(ws, x)
    assert "dot" not in {value.primitive for value in mild.recomputed}
    assert "dot" in {value.primitive for value in hard.recomputed}


def test_a_chain_of_four_times_the_depth_fits_the_same_arena() -> None:
    x = batch()
    arena = wf.jit(step).memory(weights(8), x).arena
    long = wf.jit(step).memory(weights(32), x)
    assert long.arena > 3 * arena
    bounded = wf.jit(step, memory=long.peak - long.arena + arena)
    assert bounded.memory(weights(32), x).arena <= arena


def test_what_fits_anyway_is_left_alone() -> None:
    ws, x = weights(3), batch()
    bounded = wf.jit(step, memory="1GB")
    assert bounded.memory(ws, x).recomputed == ()
    assert "barrier" not in str(bounded.explain(ws, x).optimized)


def test_what_cannot_fit_is_an_error_that_says_by_how_much_and_why() -> None:
    ws, x = weights(6), batch()
    bounded = wf.jit(step, memory="100kB")
    with pytest.raises(OutOfMemoryError) as caught:
        bounded(ws, x)
    error = caught.value
    assert isinstance(error, MemoryError)
    assert "more than it was given" in error.problem
    assert "test_recomputation.py" in error.got
    assert error.expected == "at most 100.0 kB"
    assert 'memory="' in error.fix
    assert error.note == "the largest values that stay"
    with pytest.raises(OutOfMemoryError) as hopeless:
        wf.jit(step, memory="50kB")(ws, x)
    assert hopeless.value.note == "arguments, state and results alone are 81.9 kB"
    enough = parse_bytes("jit", error.fix.split('"')[1])
    assert wf.jit(step, memory=enough).memory(ws, x).peak <= enough


def test_each_size_is_fitted_by_itself() -> None:
    def f(x: wf.Tensor, w: wf.Tensor) -> wf.Tensor:
        return wf.grad(lambda x: loss([w] * 12, x))(x)

    w, small, large = weights(1)[0], wf.ones((64, WIDTH)), wf.ones((256, WIDTH))
    bounded = wf.jit(f, memory=budget_for(f, 0.6, large, w))
    assert bounded.memory(small, w).recomputed == ()
    assert bounded.memory(large, w).recomputed
    assert len(bounded.compilations) == 2
    assert "fitted by itself" in bounded.compilations[1].reason


@pytest.fixture
def written_in_place() -> Iterator[None]:
    """State is written in place, whatever the tests are told about that."""
    with wf.settings.changed(in_place_updates=True):
        yield


@pytest.mark.usefixtures("written_in_place")
def test_a_training_step_with_state_fits_and_is_still_donated() -> None:
    def make(memory: int | None) -> tuple[Any, list[wf.Tensor]]:
        ws = [w.requires_grad_() for w in weights(12)]
        optimizer = wf.optim.AdamW(ws, 1e-2)

        def train(x: wf.Tensor) -> wf.Tensor:
            value = loss(ws, x)
            value.backward()
            optimizer.step()
            optimizer.zero_grad()
            return value

        return wf.jit(train, memory=memory), ws

    x = batch()
    free, expected = make(None)
    whole = free.memory(x)
    bounded, found = make(int(whole.peak - 0.5 * whole.arena))
    report = bounded.memory(x)
    assert report.peak <= whole.peak - 0.5 * whole.arena
    assert report.donated == whole.donated > 0
    for _ in range(3):
        assert free(x).item() == bounded(x).item()
    same(found, expected)


def test_a_step_with_several_peaks_fits() -> None:
    def twice(ws: list[wf.Tensor], x: wf.Tensor) -> Any:
        first = wf.grad(loss)(ws, x)
        return wf.grad(loss)([w - 0.1 * d for w, d in zip(ws, first, strict=True)], x)

    ws, x = weights(16), batch()
    budget = budget_for(twice, 0.6, ws, x)
    bounded = wf.jit(twice, memory=budget)
    assert bounded.memory(ws, x).peak <= budget
    same(bounded(ws, x), wf.jit(twice)(ws, x))


def test_random_numbers_come_out_the_same() -> None:
    def dropped(ws: list[wf.Tensor], x: wf.Tensor) -> Any:
        def inner(ws: list[wf.Tensor]) -> wf.Tensor:
            y = x
            for w in ws:
                y = y + wf.nn.functional.dropout(wf.gelu(y @ w), 0.5, training=True)
            return (y * y).mean()

        return wf.value_and_grad(inner)(ws)

    ws, x = weights(10), batch()
    wf.random.seed(5)
    bounded = wf.jit(dropped, memory=budget_for(dropped, 0.5, ws, x))
    assert bounded.memory(ws, x).recomputed
    wf.random.seed(5)
    expected = wf.jit(dropped)(ws, x)
    wf.random.seed(5)
    same(bounded(ws, x), expected)


def test_effects_happen_once(capsys: pytest.CaptureFixture[str]) -> None:
    def printing(ws: list[wf.Tensor], x: wf.Tensor) -> Any:
        def inner(ws: list[wf.Tensor]) -> wf.Tensor:
            y = x
            for w in ws:
                y = y + wf.gelu(y @ w)
                wf.debug.print("mean {}", y.mean())
            return (y * y).mean()

        return wf.value_and_grad(inner)(ws)

    ws, x = weights(10), batch()
    bounded = wf.jit(printing, memory=budget_for(printing, 0.5, ws, x))
    capsys.readouterr()
    bounded(ws, x)
    assert capsys.readouterr().out.count("mean") == 10


def test_a_program_with_a_loop_fits() -> None:
    def looping(ws: list[wf.Tensor], x: wf.Tensor) -> Any:
        def inner(ws: list[wf.Tensor]) -> wf.Tensor:
            y = x
            for w in ws:
                y = y + wf.fori_loop(0, 2, lambda i, z, w=w: wf.tanh(z @ w), y)
                y = y + wf.gelu(y @ w)
            return (y * y).mean()

        return wf.value_and_grad(inner)(ws)

    ws, x = weights(6), batch()
    budget = budget_for(looping, 0.6, ws, x)
    bounded = wf.jit(looping, memory=budget)
    assert bounded.memory(ws, x).peak <= budget
    same(bounded(ws, x), wf.jit(looping)(ws, x))


def test_convolutions_and_norms_of_an_image_network_fit() -> None:
    def make(memory: int | None) -> Any:
        wf.random.seed(0)
        blocks = [
            wf.nn.Sequential(wf.nn.Conv2d(8, 8, 3, padding=1), wf.nn.BatchNorm2d(8), wf.nn.ReLU())
            for _ in range(6)
        ]
        net = wf.nn.Sequential(wf.nn.Conv2d(3, 8, 3, padding=1), *blocks)
        optimizer = wf.optim.SGD(net.parameters(), 0.1, momentum=0.9)

        def train(x: wf.Tensor) -> wf.Tensor:
            value = (net(x) ** 2).mean()
            value.backward()
            optimizer.step()
            optimizer.zero_grad()
            return value

        return wf.jit(train, memory=memory)

    wf.random.seed(2)
    x = wf.random.normal((4, 3, 16, 16))
    free = make(None)
    whole = free.memory(x)
    budget = int(whole.peak - 0.4 * whole.arena)
    bounded = make(budget)
    assert bounded.memory(x).peak <= budget
    for _ in range(3):
        assert bounded(x).item() == pytest.approx(free(x).item(), rel=1e-6)


def test_a_derivative_of_a_bounded_function_is_that_of_the_function() -> None:
    w, x = weights(1)[0], batch()
    bounded = wf.jit(lambda x: loss([w] * 4, x), memory="1GB")
    expected = wf.grad(lambda x: loss([w] * 4, x))(x)
    np.testing.assert_allclose(wf.grad(bounded)(x).numpy(), expected.numpy(), rtol=1e-5, atol=1e-8)


def test_a_report_says_what_is_computed_again() -> None:
    ws, x = weights(12), batch()
    explanation = wf.jit(step, memory=budget_for(step, 0.5, ws, x)).explain(ws, x)
    assert "are computed again" in str(explanation)
    assert "are computed again" in str(explanation.memory)
    assert all(value.at is not None for value in explanation.recomputed)


def test_the_choice_is_found_again_on_disk(tmp_path: Any, monkeypatch: Any) -> None:
    ws, x = weights(12), batch()
    budget = budget_for(step, 0.5, ws, x)
    monkeypatch.setattr(search, "shared_disk", lambda: DiskCache(tmp_path))
    monkeypatch.setattr(search, "_notes", OrderedDict())
    first = wf.jit(step, memory=budget).memory(ws, x)
    monkeypatch.setattr(search, "_notes", OrderedDict())
    monkeypatch.delattr(search, "_Search")
    again = wf.jit(step, memory=budget).memory(ws, x)
    assert first.recomputed == again.recomputed
    assert first.peak == again.peak <= budget


def test_the_rewritten_graph_computes_the_same_by_reference() -> None:
    ws, x = weights(6), batch()
    flow = Flow(optimize(wf.jit(step).graph(ws, x), CPU), CPU.limits)
    made = with_recomputation(flow, frozenset(flow.candidates))
    assert len(made.nodes) > len(flow.graph.nodes)
    inputs = [*ws, x]
    assert [v.type for v in made.inputs] == [each.type for each in inputs]
    same(wf.ir.interpret(made, *inputs), wf.ir.interpret(flow.graph, *inputs))


def test_updates_stand_where_they_are_done_and_compute_the_same() -> None:
    ws, x = weights(6), batch()
    graph = optimize(wf.jit(step).graph(ws, x), CPU)
    flow = Flow(graph, CPU.limits)
    early = with_early_updates(flow)
    assert sorted(map(id, early.nodes)) == sorted(map(id, graph.nodes))
    assert early.nodes != graph.nodes
    same(wf.ir.interpret(early, *ws, x), wf.ir.interpret(graph, *ws, x))
    assert Flow(early, CPU.limits).weigh(frozenset()).peak <= flow.weigh(frozenset()).peak
    again = with_early_updates(Flow(early, CPU.limits))
    assert again is early or again.nodes == early.nodes


def embedding_step(memory: int | None) -> Any:
    """A step with a lookup that may fail, which no state may be written over before."""
    wf.random.seed(0)
    table = wf.random.normal((50, WIDTH)).requires_grad_()
    ws = [w.requires_grad_() for w in weights(10)]
    optimizer = wf.optim.SGD([table, *ws], 0.1, momentum=0.9)

    def train(tokens: wf.Tensor) -> wf.Tensor:
        value = loss(ws, wf.nn.functional.embedding(tokens, table))
        value.backward()
        optimizer.step()
        optimizer.zero_grad()
        return value

    return wf.jit(train, memory=memory)


def test_what_may_fail_is_not_computed_again_so_that_state_is_still_replaced() -> None:
    tokens = wf.random.randint(0, 50, (ROWS,))
    free = embedding_step(None)
    whole = free.memory(tokens)
    bounded = embedding_step(int(whole.peak - 0.4 * whole.arena))
    report = bounded.memory(tokens)
    assert report.outputs == whole.outputs
    assert not any(value.primitive.startswith("gather") for value in report.recomputed)
    for _ in range(2):
        assert free(tokens).item() == bounded(tokens).item()


def test_the_bytes_that_are_allocated_are_those_of_the_report() -> None:
    ws, x = weights(12), batch()
    bounded = wf.jit(step, memory=budget_for(step, 0.5, ws, x))
    arena = bounded.memory(ws, x).arena
    forget_programs()
    account.reset()
    before = account.current
    bounded(ws, x)
    assert account.peak - before == arena


def test_a_scan_of_scans_keeps_less_than_a_scan() -> None:
    w, xs, start = weights(1)[0], wf.ones((64, 16, WIDTH)), wf.zeros((16, WIDTH))

    def whole(w: wf.Tensor, chunk: int) -> wf.Tensor:
        def body(state: wf.Tensor, x: wf.Tensor) -> Any:
            return wf.sin(wf.tanh(state @ w + x)), None

        parts = xs.reshape(64 // chunk, chunk, 16, WIDTH)
        last, _ = wf.scan(lambda state, part: wf.scan(body, state, part), start, parts)
        return (last * last).sum()

    def measured(chunk: int) -> tuple[int, np.ndarray]:
        gradient = wf.jit(wf.grad(lambda w: whole(w, chunk)))
        return gradient.memory(w).arena, gradient(w).numpy()

    (all_at_once, expected), (chunked, found) = measured(64), measured(8)
    assert chunked < 0.5 * all_at_once
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)


def test_states_that_hold_equal_numbers_are_told_apart() -> None:
    one, other = wf.tensor(1.0), wf.tensor(1.0)
    assert outside_source(one).is_same_place(outside_source(one))
    assert not outside_source(one).is_same_place(outside_source(other))
    many, more = wf.ones((3,)), wf.ones((3,))
    assert not outside_source(many).is_same_place(outside_source(more))


@pytest.mark.parametrize(
    ("text", "size"),
    [("300MB", 3 * 10**8), ("1.5GiB", 3 * 2**29), (" 8 gb ", 8 * 10**9), ("64", 64), (7, 7)],
)
def test_amounts_of_memory(text: str | int, size: int) -> None:
    assert parse_bytes("jit", text) == size


@pytest.mark.parametrize("text", ["much", "8XB", "-3MB", "", "1e3MB", "MB"])
def test_what_is_no_amount_of_memory_is_refused(text: str) -> None:
    with pytest.raises(wf.ArgumentError, match="no amount of memory"):
        wf.jit(lambda x: x, memory=text)


@pytest.mark.parametrize("amount", [1.5, True, b"8GB", -1])
def test_other_types_are_refused(amount: Any) -> None:
    with pytest.raises((wf.ArgumentError, wf.ArgumentTypeError)):
        wf.jit(lambda x: x, memory=amount)


# --- the search ----------------------------------------------------------------------------------


def test_nothing_is_compiled_before_a_choice_is_made(monkeypatch: Any) -> None:
    ws, x = weights(9), batch()
    budget = budget_for(step, 0.5, ws, x)

    def refused(*args: Any) -> Any:
        raise AssertionError("a kernel is compiled")

    bounded = wf.jit(step, memory=budget)
    with monkeypatch.context() as patched:
        patched.setattr(tables, "kernel_codes", refused)
        patched.setattr(cpu_target, "begin", refused)
        assert bounded.memory(ws, x).peak <= budget
        with pytest.raises(OutOfMemoryError):
            wf.jit(step, memory=1000).memory(ws, x)
    same(bounded(ws, x), wf.jit(step)(ws, x))


def least_named(f: Any, budget: int, *args: Any) -> int | None:
    """The bytes that are enough, as an error says; None if there is none."""
    try:
        wf.jit(f, memory=budget).memory(*args)
    except OutOfMemoryError as error:
        found = re.search(r'memory="(\d+)(k|M)B"', str(error))
        assert found is not None
        return int(found[1]) * {"k": 10**3, "M": 10**6}[found[2]]
    return None


def recurrent(ws: list[wf.Tensor], x: wf.Tensor) -> Any:
    def one(w: wf.Tensor, xs: wf.Tensor) -> wf.Tensor:
        def row(h: wf.Tensor, x: wf.Tensor) -> Any:
            h = wf.tanh(x + h @ w) * wf.sigmoid(x)
            return h, h

        made: wf.Tensor = wf.scan(row, xs[0], xs)[1]
        return made

    def layers(ws: list[wf.Tensor], x: wf.Tensor) -> wf.Tensor:
        for w in ws:
            x = one(w, x)
        return (x * x).mean()

    value, slopes = wf.value_and_grad(layers)(ws, x)
    return value, [w - 0.01 * d for w, d in zip(ws, slopes, strict=True)]


@pytest.mark.parametrize(("f", "on_disk"), [(step, True), (recurrent, False)])
def test_what_is_said_to_be_enough_is_and_the_least_of_all_that_was_seen(
    f: Any, on_disk: bool, tmp_path: Any, monkeypatch: Any
) -> None:
    store = DiskCache(tmp_path) if on_disk else DiskCache(tmp_path, limit=0)
    monkeypatch.setattr(search, "shared_disk", lambda: store)
    monkeypatch.setattr(search, "_notes", OrderedDict())
    ws = weights(6)
    x = batch() if f is step else wf.random.normal((12, 16, WIDTH))
    seen: list[int] = []
    for part in (0.05, 0.7, 0.2, 0.05):
        budget = budget_for(f, part, ws, x)
        named = least_named(f, budget, ws, x)
        if named is None:
            seen.append(wf.jit(f, memory=budget).memory(ws, x).peak)
        else:
            assert named > budget
            assert least_named(f, named, ws, x) is None
            assert all(named <= peak + 1000 for peak in seen)


def attending(ws: list[wf.Tensor], x: wf.Tensor) -> Any:
    def layers(ws: list[wf.Tensor], x: wf.Tensor) -> wf.Tensor:
        for w in ws:
            heads = wf.permute_dims((x @ w).reshape(2, 64, 3, 4, 8), (2, 0, 3, 1, 4))
            mixed = wf.scaled_dot_product_attention(heads[0], heads[1], heads[2], causal=True)
            x = x + wf.permute_dims(mixed, (0, 2, 1, 3)).reshape(128, 32)
        return (x * x).mean()

    value, slopes = wf.value_and_grad(layers)(ws, x)
    return value, [w - 0.01 * d for w, d in zip(ws, slopes, strict=True)]


def attention_flow(depth: int) -> Flow:
    wf.random.seed(0)
    ws = [wf.random.normal((32, 96)) * 0.1 for _ in range(depth)]
    graph = optimize(wf.jit(attending).graph(ws, wf.random.normal((128, 32))), CPU)
    return Flow(graph, CPU.limits)


def test_parts_of_one_product_are_dropped_together() -> None:
    order = DropChoices(attention_flow(6))._drop_order(0)
    names = [[order.flow.producer[v].primitive.name for v in unit] for unit in order._units()]
    assert ["dot", "reshape", "reshape", "reshape"] in [sorted(unit) for unit in names]


def test_what_takes_least_time_for_its_bytes_is_dropped_first() -> None:
    order = DropChoices(attention_flow(6))._drop_order(0)
    densities = [order._density(unit) for unit in order._dense]
    assert densities == sorted(densities)
    assert densities[0] >= 0
    assert len({round(d * 1e15) for d in densities}) > 2


def test_what_is_read_right_behind_the_peak_is_not_dropped() -> None:
    ws, x = weights(20), batch()
    whole = Flow(optimize(wf.jit(step).graph(ws, x), CPU), CPU.limits)
    flow = Flow(with_early_updates(whole), CPU.limits)
    choices = DropChoices(flow)
    target = 0.5 * flow.weigh(frozenset()).peak
    chosen = choices.cheapest_choice(target)
    assert chosen is not None
    assert chosen.peak <= target
    whole = [
        choices._drop_order(number).first_fitting_step(target)
        for number in range(len(choices._bounds))
    ]
    assert chosen.cost < min(weight.cost for weight in whole if weight is not None)


def test_a_flow_with_anchors_is_the_same_made_from_another_or_alone() -> None:
    ws, x = weights(8), batch()
    flow = Flow(optimize(wf.jit(step).graph(ws, x), CPU), CPU.limits)
    anchored, _ = flow.anchor_places([flow.start // 3, flow.start // 2])
    alone = Flow(flow.graph, CPU.limits, anchored.anchors, flow.start)
    assert anchored.anchors
    assert anchored.readers == alone.readers
    assert anchored.costs == alone.costs
    assert [anchored.sources(v) for v in alone.candidates] == list(
        map(alone.sources, alone.candidates)
    )
