"""Scatters over the whole card, compared with the processor's bits, and with themselves."""

from __future__ import annotations

import numpy as np
import pytest
from tests.compiler.cuda.scatter_cases import SCATTERS, check_order_of_sums, check_scatter

import weft as wf

pytestmark = pytest.mark.skipif(not wf.cuda.is_available(), reason="there is no NVIDIA card here")


@pytest.mark.parametrize("name", SCATTERS)
def test_a_scatter_gives_the_bits_of_the_processor(name: str) -> None:
    check_scatter(name, 5000)


def test_rows_of_a_table_add_up_many_updates_in_their_order() -> None:
    check_order_of_sums(5001, 90)


def test_sums_have_the_same_bits_on_every_run_and_are_close_to_exact_ones() -> None:
    random = np.random.default_rng(0)
    index = np.minimum(random.zipf(1.3, 40_000), 3000) - 1
    updates = random.normal(size=(40_000, 48)).astype(np.float32)
    add = wf.jit(lambda x, i, u: wf.index_add(x, 0, i, u))
    given = [wf.asarray(a).to("cuda") for a in (np.zeros((3000, 48), np.float32), index, updates)]
    found = [add(*given).numpy() for _ in range(3)]
    np.testing.assert_array_equal(found[1], found[0])
    np.testing.assert_array_equal(found[2], found[0])
    exact = np.zeros((3000, 48))
    np.add.at(exact, index, updates.astype(np.float64))
    np.testing.assert_allclose(found[0], exact, atol=2e-3)


def test_rows_of_a_large_table_are_trained_as_on_the_processor() -> None:
    def train(device: str) -> list[float]:
        wf.random.seed(0)
        with wf.default_device(device):
            net = wf.models.DeepFM(5, 2000, 16, 3, (16,), hashing=False)
        # without the term, the sign of what is nearly zero would decide a whole step
        optimizer = wf.optim.Adagrad(net.parameters(), lr=0.1, eps=0.01)
        random = np.random.default_rng(1)

        @wf.jit
        def step(ids: wf.Tensor, dense: wf.Tensor, clicks: wf.Tensor) -> wf.Tensor:
            loss, rows = net.loss_and_rows(ids, dense, clicks)
            optimizer.step(rows=rows)
            optimizer.zero_grad()
            return loss

        losses = []
        for _ in range(5):
            ids = random.integers(0, 200, (512, 5))
            given = ids, random.normal(size=(512, 3)), random.integers(0, 2, 512)
            arrays = [wf.asarray(a if a is ids else a.astype(np.float32)) for a in given]
            losses.append(float(step(*[array.to(device) for array in arrays])))
        return losses

    np.testing.assert_allclose(train("cuda"), train("cpu"), rtol=1e-4)
