"""Recommenders: hashing by its definition, pairs by their formulas, only touched rows updated."""

from __future__ import annotations

from itertools import combinations
from typing import Any

import numpy as np
import pytest

import weft as wf
from weft import models
from weft.nn import functional as F  # noqa: N812

MASK = 0xFFFFFFFF


def mixed(x: int) -> int:
    for shift, multiplier in ((16, 0x7FEB352D), (15, 0x846CA68B)):
        x = (x ^ x >> shift) * multiplier & MASK
    return x ^ x >> 16


def place(number: int, feature: int, rows: int) -> int:
    high = mixed((number >> 32 & MASK) + mixed(feature + 1) & MASK)
    return mixed((number & MASK) + high & MASK) % rows


def test_ids_are_hashed_as_by_plain_integers(rng: np.random.Generator) -> None:
    ids = rng.integers(-(1 << 62), 1 << 62, (50, 4))
    expected = [[place(int(n), f, 977) for f, n in enumerate(row)] for row in ids]
    assert models.hashed(wf.asarray(ids), 977).tolist() == expected
    assert wf.jit(models.hashed, static_argnames=("rows",))(wf.asarray(ids), rows=977).tolist() == (
        expected
    )


def test_hashed_ids_spread_over_all_rows() -> None:
    counts = np.bincount(models.hashed(wf.arange(20000)[:, None], 100).numpy().reshape(-1))
    assert len(counts) == 100
    assert abs(counts - 200).max() < 5 * np.sqrt(200)


def test_deepfm_adds_the_products_of_all_pairs(rng: np.random.Generator) -> None:
    net = models.DeepFM(4, 50, 3, hidden=(5,))
    vectors = rng.normal(size=(2, 4, 3)).astype(np.float32)
    flat = wf.asarray(vectors.reshape(2, 12))
    rest = (net.linear(flat) + net.network(flat)).detach().numpy()[:, 0]
    pairs = [sum(v[i] @ v[j] for i, j in combinations(range(4), 2)) for v in vectors]
    found = net.score(wf.asarray(vectors), None).detach().numpy()
    np.testing.assert_allclose(found, rest + pairs, rtol=1e-4)


def test_dlrm_looks_at_the_products_of_all_pairs(rng: np.random.Generator) -> None:
    net = models.DLRM(2, 50, 3, 2, (4,), (5,))
    vectors = rng.normal(size=(1, 2, 3)).astype(np.float32)
    dense = wf.asarray(rng.normal(size=(1, 2)).astype(np.float32))
    low = net.bottom(dense).detach().numpy()[0]
    a, b = vectors[0]
    joined = np.concatenate([low, [a @ low, b @ low, b @ a]]).astype(np.float32)
    expected = net.top(wf.asarray(joined[None])).item()
    assert net.score(wf.asarray(vectors), dense).item() == pytest.approx(expected, rel=1e-4)


def sparse_step(net: Any, optimizer: Any, ids: wf.Tensor, clicks: wf.Tensor) -> wf.Tensor:
    loss, rows = net.loss_and_rows(ids, None, clicks)
    optimizer.step(rows=rows)
    optimizer.zero_grad()
    return loss


def dense_step(net: Any, optimizer: Any, ids: wf.Tensor, clicks: wf.Tensor) -> wf.Tensor:
    loss = F.binary_cross_entropy_with_logits(net(ids), clicks)
    optimizer.minimize(loss)
    return loss


@pytest.mark.parametrize("rule", ["SGD", "Adagrad"])
def test_only_touched_rows_change_and_as_in_the_dense_step(
    rule: str, rng: np.random.Generator
) -> None:
    """For rules that leave a row with no gradient alone, both ways are the same."""
    ids = wf.asarray(rng.integers(0, 30, (16, 3)))
    clicks = wf.asarray((rng.uniform(size=16) > 0.5).astype(np.float32))
    tables, losses = [], []
    for stepping in (dense_step, sparse_step, wf.jit(sparse_step)):
        wf.random.seed(0)
        net = models.DeepFM(3, 1000, 4, hidden=(8,))
        before = net.table.weight.detach().numpy().copy()
        optimizer = getattr(wf.optim, rule)(net.parameters(), lr=0.1)
        losses.append([stepping(net, optimizer, ids, clicks).item() for _ in range(3)])
        tables.append(net.table.weight.detach().numpy())
        touched = np.unique(net.places(ids).numpy())
        changed = np.flatnonzero((tables[-1] != before).any(1))
        assert set(changed) <= set(touched)
        assert len(changed) == len(touched) < 60
    assert losses[0][-1] < losses[0][0]
    for other, table in zip(losses[1:], tables[1:], strict=True):
        np.testing.assert_allclose(other, losses[0], rtol=1e-4)
        np.testing.assert_allclose(table, tables[0], rtol=1e-3, atol=1e-6)
