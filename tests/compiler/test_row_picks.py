"""One element of each row: picked before what is computed of all, put back without a table."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import weft as wf
from weft.compiler.graph_passes.row_picks import pick_rows
from weft.compiler.pipeline import optimize
from weft.compiler.plan.planning import plan_program
from weft.compiler.targets.cpu.target import CPU
from weft.ir.graph import Graph

pytestmark = pytest.mark.slow

ROWS, COLUMNS = 6, 300


def numbers(*shape: int) -> wf.Tensor:
    return wf.tensor(np.random.default_rng(7).standard_normal(shape).astype(np.float32))


def labels(count: int = ROWS) -> wf.Tensor:
    return wf.tensor(np.random.default_rng(8).integers(0, COLUMNS, count))


def loss(x: wf.Tensor, y: wf.Tensor) -> wf.Tensor:
    return wf.nn.functional.cross_entropy(x, y)


def traced(f: Callable[..., Any], *operands: wf.Tensor) -> Graph:
    return wf.ir.trace(f, *[x.type for x in operands])


def stored_tables(graph: Graph) -> int:
    """How many matrices as large as the logits a program has in memory, beside its arguments."""
    plan = plan_program(graph, CPU)
    return round(plan.planner.plan_for({}).peak / (4 * ROWS * COLUMNS))


def names(graph: Graph) -> list[str]:
    return [node.primitive.name for node in graph.nodes]


def test_the_loss_of_logits_stores_no_table() -> None:
    assert stored_tables(traced(loss, numbers(ROWS, COLUMNS), labels())) == 0


def test_the_derivative_of_the_loss_is_one_table_in_place_of_the_logits() -> None:
    def f(h: wf.Tensor, w: wf.Tensor, y: wf.Tensor) -> wf.Tensor:
        return loss(h @ w, y)

    graph = traced(
        wf.value_and_grad(f, argnums=(0, 1)), numbers(ROWS, 4), numbers(4, COLUMNS), labels()
    )
    assert "scatter_add" not in names(optimize(graph, CPU))
    plan = plan_program(graph, CPU)
    tables = [v for v in plan.slots if v.type.shape == (ROWS, COLUMNS)]
    places = {plan.planner.plan_for({}).offsets[str(plan.slots[v])] for v in tables}
    assert (len(tables), len(places)) == (2, 1)


@pytest.mark.parametrize("options", [{}, {"ignore_index": 3}, {"label_smoothing": 0.1}])
def test_loss_and_gradients_are_those_of_the_reference(options: dict[str, Any]) -> None:
    def f(x: wf.Tensor, w: wf.Tensor, y: wf.Tensor) -> wf.Tensor:
        return wf.nn.functional.cross_entropy(x @ w, y, **options)

    step = wf.value_and_grad(f, argnums=(0, 1))
    x, w = numbers(ROWS, 4), numbers(4, COLUMNS)
    y = wf.tensor([3, 7, 3, 299, 0, 1])
    with wf.testing.checked_memory():
        value, (dx, dw) = wf.jit(step)(x, w, y)
    with wf.settings.changed(compiler=False):
        wanted, (wanted_x, wanted_w) = wf.jit(step)(x, w, y)
    np.testing.assert_allclose(value.numpy(), wanted.numpy(), rtol=1e-6)
    np.testing.assert_allclose(dx.numpy(), wanted_x.numpy(), rtol=1e-4, atol=1e-7)
    np.testing.assert_allclose(dw.numpy(), wanted_w.numpy(), rtol=1e-4, atol=1e-7)


def test_a_label_out_of_range_is_refused_in_training() -> None:
    step = wf.jit(wf.grad(loss))
    for label in (COLUMNS, -1):
        with pytest.raises(wf.BoundsError):
            step(numbers(ROWS, COLUMNS), wf.tensor([0, 1, 2, 3, 4, label]))


def test_a_derivative_whose_lookup_nobody_needs_still_looks_at_its_indices() -> None:
    def f(x: wf.Tensor, i: wf.Tensor) -> wf.Tensor:
        return wf.take_along_axis(x, i, axis=1).sum()  # its gradient does not need the lookup

    x = numbers(ROWS, COLUMNS)
    graph = optimize(traced(wf.grad(f), x, labels().reshape(ROWS, 1)), CPU)
    assert "scatter_add" in names(graph)
    with pytest.raises(wf.BoundsError):
        wf.jit(wf.grad(f))(x, wf.full((ROWS, 1), COLUMNS, dtype="int64"))


def test_repeated_updates_of_one_place_stay_a_scatter() -> None:
    def f(x: wf.Tensor, i: wf.Tensor) -> wf.Tensor:
        return (wf.take_along_axis(wf.sin(x), i, axis=1) ** 2).sum()

    x = numbers(ROWS, COLUMNS)
    twice = wf.tensor(np.tile([[5, 5]], (ROWS, 1)))  # two in each row
    assert "scatter_add" in names(optimize(traced(wf.grad(f), x, twice), CPU))
    found = wf.jit(wf.grad(f))(x, twice)
    wanted = wf.grad(f)(x, twice)
    np.testing.assert_allclose(found.numpy(), wanted.numpy(), rtol=1e-5, atol=1e-6)


def test_what_others_read_as_well_is_looked_up_where_it_is_stored() -> None:
    def f(x: wf.Tensor, i: wf.Tensor) -> tuple[wf.Tensor, wf.Tensor]:
        values = wf.sin(wf.exp(x))
        return values, wf.take_along_axis(values, i, axis=1)

    x, i = numbers(ROWS, COLUMNS), labels().reshape(ROWS, 1)
    assert names(pick_rows(traced(f, x, i))) == names(traced(f, x, i))


@pytest.mark.parametrize("shape", [(1,), (1, 1), (ROWS, 1), (1, COLUMNS), (COLUMNS,)])
def test_operands_that_are_broadcast_give_the_same_elements(shape: tuple[int, ...]) -> None:
    def f(x: wf.Tensor, other: wf.Tensor, i: wf.Tensor) -> wf.Tensor:
        return wf.take_along_axis(x * other - 1, i, axis=1)

    x, other, i = numbers(ROWS, COLUMNS), numbers(*shape), labels().reshape(ROWS, 1)
    np.testing.assert_array_equal(wf.jit(f)(x, other, i).numpy(), f(x, other, i).numpy())


def test_a_reduction_over_rows_reads_along_them() -> None:
    def f(x: wf.Tensor) -> wf.Tensor:
        return wf.exp(x - x.max(axis=1, keepdims=True)).sum(axis=1)

    (launch,) = plan_program(traced(f, numbers(ROWS, COLUMNS)), CPU).launches
    rows = {value.type.shape: width for value, width in launch.by_rows.items()}
    assert rows[(ROWS, COLUMNS)] == COLUMNS


# --- whole steps ---------------------------------------------------------------------------------

TOKENS, WIDTH = 256, 64


def step_memory(vocabulary: int, *, leaves_gradients: bool) -> tuple[Any, int]:
    """What a step of a small GPT needs, and the bytes of its parameters."""
    sizes = {"width": WIDTH, "layers": 2, "heads": 2, "context": 128}
    net = wf.models.GPT(wf.models.GPTConfig(vocabulary=vocabulary, **sizes))
    optimizer = wf.optim.AdamW(net.parameters(), lr=1e-3)

    def step(tokens: wf.Tensor, following: wf.Tensor) -> wf.Tensor:
        optimizer.zero_grad()
        logits = net(tokens).reshape((TOKENS, vocabulary))
        value = loss(logits, following.reshape((TOKENS,)))
        value.backward()
        optimizer.step()
        if not leaves_gradients:
            optimizer.zero_grad()
        return value

    tokens = wf.zeros((2, 128), dtype="int64")
    with wf.settings.changed(in_place_updates=True):
        report = wf.jit(step).memory(tokens, tokens)
    return report, sum(p.size * 4 for p in net.parameters())


@pytest.mark.parametrize("leaves_gradients", [True, False])
def test_a_language_model_needs_one_table_of_logits(leaves_gradients: bool) -> None:
    small, _ = step_memory(5000, leaves_gradients=leaves_gradients)
    large, _ = step_memory(10000, leaves_gradients=leaves_gradients)
    elements = (large.arena - small.arena) / 5000 / 4  # for each further word
    assert elements <= TOKENS + WIDTH + 16  # its logits, and its row of the packed table


def test_a_step_that_leaves_gradients_holds_them_once() -> None:
    report, parameters = step_memory(5000, leaves_gradients=True)
    assert report.replaced == 0
    assert parameters <= report.outputs < parameters + 100
    assert report.donated == 3 * parameters  # parameters and both moments, in their place
