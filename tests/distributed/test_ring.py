"""Ring attention agrees with attention over the whole context, forward and backward."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import weft as wf
from weft.distributed import ring_attention
from weft.nn import functional as F  # noqa: N812


def parts(x: Any, count: int) -> Any:
    """[batch, heads, time, head] -> [count, batch, heads, time / count, head]."""
    batch, heads, time, head = x.shape
    return wf.moveaxis(x.reshape(batch, heads, count, time // count, head), 2, 0)


def joined_parts(x: Any) -> Any:
    count, batch, heads, time, head = x.shape
    return wf.moveaxis(x, 0, 2).reshape(batch, heads, count * time, head)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("count", [1, 2, 4])
def test_ring_attention_is_attention_over_the_whole_context(count: int, causal: bool) -> None:
    rng = np.random.default_rng(count)
    q, k, v = (wf.asarray(rng.normal(size=(2, 2, 8, 4)).astype(np.float32)) for _ in range(3))

    def plain(q: Any, k: Any, v: Any) -> Any:
        return F.scaled_dot_product_attention(q, k, v, causal=causal)

    def ring(q: Any, k: Any, v: Any) -> Any:
        attend = lambda q, k, v: ring_attention(q, k, v, "time", causal=causal)  # noqa: E731
        shards = [parts(x, count) for x in (q, k, v)]
        return joined_parts(wf.vmap(attend, axis_name="time")(*shards))

    weights = wf.asarray(rng.normal(size=(2, 2, 8, 4)).astype(np.float32))
    for f in (plain, ring):
        assert f(q, k, v).shape == (2, 2, 8, 4)
    np.testing.assert_allclose(ring(q, k, v).numpy(), plain(q, k, v).numpy(), rtol=1e-5, atol=1e-5)
    found, wanted = (
        wf.grad(lambda *xs, f=f: (f(*xs) * weights).sum(), argnums=(0, 1, 2))(q, k, v)
        for f in (ring, plain)
    )
    for a, b in zip(found, wanted, strict=True):
        np.testing.assert_allclose(a.numpy(), b.numpy(), rtol=1e-4, atol=1e-5)


def test_parts_of_different_lengths_are_refused() -> None:
    q, k = wf.ones((2, 1, 4, 8)), wf.ones((2, 1, 3, 8))
    with pytest.raises(wf.ShapeError, match="not parts of one length"):
        wf.vmap(lambda q, k: ring_attention(q, k, k, "time"), axis_name="time")(q, k)
