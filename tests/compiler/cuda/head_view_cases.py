"""Attention that reads heads where they lie, as programs: for a real card, or one in the host."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

import weft as wf
from weft.compiler.plan.launch import Kind
from weft.compiler.plan.planning import plan_program
from weft.compiler.targets.cuda.target import CUDA


def _block(x: wf.Tensor, w: wf.Tensor, b: wf.Tensor, v: wf.Tensor, heads: int = 2) -> wf.Tensor:
    """Attention of a transformer: a product, heads out of its columns, a product."""
    batch, places, _ = x.shape
    parts = (x @ w + b).reshape(batch, places, 3 * heads, 64)
    q, k, v3 = [
        parts[:, :, heads * n : heads * (n + 1)].transpose(0, 2, 1, 3) for n in range(3)
    ]  # fmt: skip
    y = wf.scaled_dot_product_attention(q, k, v3, causal=True)
    return y.transpose(0, 2, 1, 3).reshape(batch, places, heads * 64) @ v


def _gradients(x: wf.Tensor, w: wf.Tensor, b: wf.Tensor, v: wf.Tensor) -> Any:
    def loss(*given: wf.Tensor) -> wf.Tensor:
        return (_block(*given).astype("float32") ** 2).mean()

    return wf.value_and_grad(loss, argnums=(0, 1, 2, 3))(x, w, b, v)


def _apart(x: wf.Tensor, w: wf.Tensor, b: wf.Tensor, v: wf.Tensor) -> wf.Tensor:
    """Queries of one product, keys and values of another; the result is read in two orders."""
    q = (x @ w[:, :128]).reshape(2, 64, 2, 64).transpose(0, 2, 1, 3)
    both = (x @ w[:, 128:] + b[128:]).reshape(2, 64, 4, 64)
    k, v3 = both[:, :, :2].transpose(0, 2, 1, 3), both[:, :, 2:].transpose(0, 2, 1, 3)
    y = wf.scaled_dot_product_attention(q, k, v3)
    return y.transpose(0, 2, 1, 3).reshape(2, 64, 128) @ v + y.sum(axis=(1, 3))[:, :, None]


def _as_they_are(x: wf.Tensor, w: wf.Tensor, b: wf.Tensor, v: wf.Tensor) -> wf.Tensor:
    parts = (x @ w).reshape(2, 6, 64, 64)
    return wf.scaled_dot_product_attention(parts[:, :2], parts[:, 2:4], parts[:, 4:])


PROGRAMS: dict[str, tuple[Callable[..., Any], int]] = {
    "heads of one product": (_block, 1),
    "gradients of heads of one product": (_gradients, 2),
    "heads of two products": (_apart, 1),
    "heads that are first": (_as_they_are, 0),
}
"""Functions, and how many of their launches of attention have views."""


def check_head_views(name: str, runs: int) -> None:
    """A program gives on the card what it gives on the processor; its attention has views."""
    f, count = PROGRAMS[name]
    generator = np.random.default_rng(3)
    shapes = ((2, 64, 16), (16, 384), (384,), (128, 16))
    arrays = [generator.normal(size=shape).astype(np.float32) * 0.3 for shape in shapes]
    tensors = [wf.asarray(array).astype("bfloat16") for array in arrays]
    compiled = wf.jit(f)
    wanted = wf.tree.leaves(compiled(*tensors))
    for _ in range(runs):
        found = wf.tree.leaves(compiled(*[tensor.to("cuda") for tensor in tensors]))
        for one, other in zip(found, wanted, strict=True):
            result, reference = (x.astype("float32").numpy() for x in (one, other))
            limit = 3e-2 * np.abs(reference).max()
            np.testing.assert_allclose(result, reference, rtol=0, atol=limit)
    plan = plan_program(wf.ir.trace(f, *tensors), CUDA)
    viewed = [each for each in plan.launches if each.identity[0] == "viewed"]
    assert len(viewed) == count
    copies = [each for each in plan.launches if each.kind is Kind.LOOP and _moves(each)]
    assert not copies or not count


def _moves(launch: Any) -> bool:
    """Whether a launch writes heads, which nothing is left to move."""
    return any(value.type.ndim == 4 for value in launch.writes)
