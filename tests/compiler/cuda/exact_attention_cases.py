"""Attention of float32 on a card, real or in the host's memory, beside the CPU."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from tests.compiler.cuda.attention_cases import (
    Shape,
    added_numbers,
    attend,
    launch_names,
    seen_keys,
)
from tests.compiler.cuda.device_cases import numbers

import weft as wf

Cases = dict[str, tuple[Callable[..., Any], Shape, Shape]]


def _numbers_to_add(batch: int, heads: int, queries: int, keys: int) -> wf.Tensor:
    """Numbers, the lowest float32 and -inf among them, but in no row alone."""
    first = wf.arange(queries)[:, None] == 1
    return wf.where(first, 0.5, added_numbers(queries, keys))


def _seen(batch: int, heads: int, queries: int, keys: int) -> wf.Tensor:
    return seen_keys(queries, keys)


EXACT: Cases = {
    "several tiles, causal, shared keys": (
        attend("float32", causal=True), (1, 2, 35, 8), (1, 1, 35, 8),
    ),
    "a mask, a long head": (attend("float32", _seen), (1, 1, 17, 20), (1, 1, 18, 20)),
    "numbers that are added, aligned at the end": (
        attend("float32", _numbers_to_add, causal=True, aligned="end"), (2, 1, 16, 4),
        (2, 1, 19, 4),
    ),
    "dropout, causal, shared keys": (
        attend("float32", causal=True, dropout=0.3), (2, 2, 17, 8), (2, 1, 20, 8),
    ),
    "dropout and a mask": (attend("float32", _seen, dropout=0.5), (1, 2, 19, 4), (1, 2, 16, 4)),
}  # fmt: skip
"""Programs and the shapes of queries and of keys."""
LARGE: Cases = {
    "heads of 64, causal": (attend("float32", causal=True), (2, 3, 333, 64), (2, 3, 333, 64)),
    "heads of 128, shared": (attend("float32"), (2, 4, 150, 128), (2, 2, 257, 128)),
    "heads of 96, masked": (attend("float32", _seen), (1, 2, 200, 96), (1, 1, 301, 96)),
    "numbers, causal": (
        attend("float32", _numbers_to_add, causal=True), (1, 2, 200, 32), (1, 2, 200, 32),
    ),
    "a long cache": (
        attend("float32", lambda b, h, q, k: wf.arange(k) < 1500), (2, 8, 16, 64),
        (2, 2, 2048, 64),
    ),
    "dropout, causal": (
        attend("float32", causal=True, dropout=0.1), (2, 4, 300, 64), (2, 2, 300, 64),
    ),
    "dropout, heads of 128, numbers": (
        attend("float32", _numbers_to_add, dropout=0.4), (1, 2, 200, 128), (1, 2, 260, 128),
    ),
}  # fmt: skip
"""Sizes that take too long where there is no card."""


def check_exact(name: str) -> None:
    """Attention of float32 and its gradients are the CPU's, by kernels of their own."""
    f, *shapes = {**EXACT, **LARGE}[name]
    q, k = numbers(*shapes[0]), numbers(*shapes[1], 1)[..., 0]

    def both(q: wf.Tensor, k: wf.Tensor) -> Any:
        def loss(q: wf.Tensor, k: wf.Tensor) -> Any:
            out = f(q, k)
            return (out * wf.sin(q * 9)).sum(), out

        (_, out), found = wf.value_and_grad(loss, argnums=(0, 1), has_aux=True)(q, k)
        return out, *found

    names = launch_names(both, q, k)
    assert {"exact attention", "exact attention gradient"} <= set(names), names
    compiled = wf.jit(both)
    wanted = compiled(wf.asarray(q), wf.asarray(k))
    found = compiled(*[wf.asarray(each).to("cuda") for each in (q, k)])
    for there, here, limit in zip(found, wanted, (2e-5, 1e-4, 1e-4), strict=True):
        np.testing.assert_allclose(there.numpy(), here.numpy(), rtol=limit, atol=limit)
