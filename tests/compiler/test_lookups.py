"""Products of looked-up rows as products of the table."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import weft as wf
from weft.compiler.graph_passes.embedding_products import multiply_tables
from weft.compiler.pipeline import optimize
from weft.compiler.targets.cpu.target import CPU

RNG = np.random.default_rng(3)
ROWS, TOKENS = 9, (6, 5)


def normal(*shape: int) -> np.ndarray:
    return RNG.standard_normal(shape).astype(np.float32)


def data() -> list[wf.Tensor]:
    """A table, tokens that leave out its last row, a matrix, and weights of a loss."""
    tokens = wf.tensor(RNG.integers(0, ROWS - 1, TOKENS))
    return [wf.tensor(normal(ROWS, 4)), tokens, wf.tensor(normal(7, 4)), wf.tensor(normal(7))]


def loss(table: Any, tokens: Any, matrix: Any, weights: Any, order: tuple[int, ...]) -> Any:
    rows = wf.transpose(wf.take(table, tokens, axis=0), order)
    return (wf.tanh(rows @ matrix.T) * weights).sum()


def products(graph: Any) -> list[str]:
    return [str(n.results[0].type) for n in graph.nodes if n.primitive.name == "dot"]


@pytest.mark.parametrize("order", [(0, 1, 2), (1, 0, 2)])
def test_products_and_their_gradients_are_over_the_table(order: tuple[int, ...]) -> None:
    table, tokens, matrix, weights = data()

    def f(table: wf.Tensor, matrix: wf.Tensor) -> Any:
        return wf.value_and_grad(lambda t, m: loss(t, tokens, m, weights, order), (0, 1))(
            table, matrix
        )

    wanted = f(table, matrix)
    graph = optimize(
        wf.ir.trace(f, wf.spec(table.dtype, table.shape), wf.spec("float32", (7, 4))), CPU
    )
    assert sorted(products(graph)) == ["f32[7, 4]", "f32[9, 4]", "f32[9, 7]"]
    assert not [
        n for n in graph.nodes if n.primitive.name == "gather" and n.results[0].type.ndim < 3
    ]
    found = wf.jit(f)(table, matrix)
    for got, want in zip(wf.tree.leaves(found), wf.tree.leaves(wanted), strict=True):
        np.testing.assert_allclose(got.numpy(), want.numpy(), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_rows_that_nobody_asks_for_may_hold_anything(bad: float) -> None:
    table, tokens, matrix, weights = data()
    broken = wf.tensor(np.concatenate([table.numpy()[:-1], np.full((1, 4), bad, np.float32)]))
    f = wf.jit(wf.grad(lambda t, m: loss(t, tokens, m, weights, (1, 0, 2)), (0, 1)))
    for got, want in zip(f(broken, matrix), f(table, matrix), strict=True):
        np.testing.assert_array_equal(got.numpy(), want.numpy())


def test_a_matrix_with_infinities_leaves_unused_rows_alone() -> None:
    table, tokens, matrix, weights = data()
    matrix = wf.tensor(np.where(np.arange(28).reshape(7, 4) == 3, np.inf, matrix.numpy()))

    def f(table: wf.Tensor) -> wf.Tensor:
        rows: wf.Tensor = wf.take(table, tokens, axis=0)
        return (rows @ matrix.T * weights).sum()

    found = wf.jit(wf.grad(f))(table).numpy()
    assert np.array_equal(found[-1], np.zeros(4, np.float32))
    assert not np.isfinite(found[0]).all()


def test_a_table_with_many_rows_is_left_alone() -> None:
    kinds = wf.spec("float32", (20, 4)), wf.spec("int64", (30,)), wf.spec("float32", (4, 6))
    graph = wf.ir.trace(lambda t, i, w: wf.take(t, i, axis=0) @ w, *kinds)
    assert products(multiply_tables(graph, limits=CPU.limits.passes)) == ["f32[30, 6]"]


def test_an_index_outside_the_table_is_still_an_error() -> None:
    f = wf.jit(lambda t, i, w: wf.take(t, i, axis=0) @ w)
    with pytest.raises(wf.WeftError):
        f(wf.ones((3, 4)), wf.tensor([0, 1, 2, 3, 7, 1, 2, 2]), wf.ones((4, 6)))
