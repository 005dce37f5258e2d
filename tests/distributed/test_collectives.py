"""Collectives over all shards at once: under gradients, loops, other batches, and compiled."""

from __future__ import annotations

import numpy as np
import pytest

import weft as wf
from weft import distributed

WEIGHTS = np.linspace(-1, 1, 6, dtype=np.float32).reshape(2, 3)
BATCH = np.linspace(0, 2, 24, dtype=np.float32).reshape(4, 2, 3)  # [process, row, feature]


def _loss(weights: wf.Tensor, rows: wf.Tensor) -> wf.Tensor:
    return ((rows @ weights.T) ** 2).mean()


def _mean_gradient(weights: wf.Tensor, rows: wf.Tensor) -> wf.Tensor:
    """What a process of data parallel training computes."""
    return distributed.all_reduce(wf.grad(_loss)(weights, rows), "data", op="mean")


def _expected() -> np.ndarray:
    return wf.grad(_loss)(wf.tensor(WEIGHTS), wf.tensor(BATCH.reshape(8, 3))).numpy()


@pytest.mark.parametrize("compiled", [False, True])
def test_the_mean_of_all_processes_gradients_is_that_of_the_whole_batch(compiled: bool) -> None:
    f = distributed.simulate(_mean_gradient, {"data": 4})
    weights = wf.tensor(np.broadcast_to(WEIGHTS, (4, 2, 3)).copy())
    found = (wf.jit(f) if compiled else f)(weights, wf.tensor(BATCH)).numpy()
    np.testing.assert_allclose(found, np.broadcast_to(_expected(), (4, 2, 3)), rtol=1e-5)


def test_a_value_that_is_the_same_everywhere_takes_part() -> None:
    f = wf.vmap(
        lambda x: x + distributed.all_reduce(wf.ones(()), "data"), axis_name="data", axis_size=3
    )
    assert f(wf.zeros(3)).tolist() == [3.0, 3.0, 3.0]


def test_gradients_inside_are_those_of_the_sum_of_all_results() -> None:
    x = wf.tensor([1.0, 2.0, 4.0])

    def loss(x: wf.Tensor) -> wf.Tensor:
        return distributed.all_reduce(x, "data") ** 2

    inside = distributed.simulate(wf.grad(loss), {"data": 3})(x)
    outside = wf.grad(lambda x: distributed.simulate(loss, {"data": 3})(x).sum())(x)
    assert inside.tolist() == outside.tolist() == [42.0, 42.0, 42.0]


def test_backward_goes_through_collectives() -> None:
    x = wf.tensor([[1.0, 2.0], [3.0, 4.0]], requires_grad=True)
    gathered = distributed.simulate(
        lambda x: distributed.all_gather(x, "data") * (1 + distributed.axis_index("data")),
        {"data": 2},
    )(x)
    gathered.sum().backward()
    assert x.grad is not None
    assert x.grad.tolist() == [[3.0, 3.0], [3.0, 3.0]]


def test_each_axis_of_a_mesh_reduces_over_its_own_processes() -> None:
    shards = wf.tensor(np.arange(8, dtype=np.float32).reshape(2, 4))

    def both(x: wf.Tensor) -> tuple[wf.Tensor, wf.Tensor]:
        return distributed.all_reduce(x, "data"), distributed.all_reduce(x, "model", op="max")

    over_data, over_model = distributed.simulate(both, {"data": 2, "model": 4})(shards)
    assert over_data.tolist() == [[4.0, 6.0, 8.0, 10.0]] * 2
    assert over_model.tolist() == [[3.0] * 4, [7.0] * 4]


def test_collectives_run_in_a_scan_and_under_another_batch() -> None:
    def ring(x: wf.Tensor) -> wf.Tensor:
        def step(carry: wf.Tensor, _: wf.Tensor) -> tuple[wf.Tensor, wf.Tensor]:
            moved = distributed.permute(carry, "data", pairs=[(0, 1), (1, 2), (2, 0)])
            return moved, moved

        return wf.scan(step, x, wf.arange(3))[1]

    stack = wf.tensor(np.arange(6, dtype=np.float32).reshape(3, 2))
    found = distributed.simulate(wf.vmap(ring), {"data": 3})(stack)  # [process, batch, step]
    assert found[:, 0, :].tolist() == [[4.0, 2.0, 0.0], [0.0, 4.0, 2.0], [2.0, 0.0, 4.0]]


def test_an_axis_without_a_group_is_named() -> None:
    with pytest.raises(wf.ArgumentError) as caught:
        distributed.all_reduce(wf.ones(3), "data")
    assert "no group of processes is bound to the axis 'data'" in caught.value.problem


def test_a_program_for_another_number_of_processes_is_refused() -> None:
    graph = wf.vmap(lambda x: distributed.all_reduce(x, "data"), axis_name="data", axis_size=2)
    with pytest.raises(wf.ShapeError):
        graph(wf.ones(3))
