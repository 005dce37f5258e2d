"""Attention of float32 in one pass over the keys, on a real card."""

from __future__ import annotations

import numpy as np
import pytest
from tests.compiler.cuda.exact_attention_cases import EXACT, LARGE, check_exact

import weft as wf

pytestmark = pytest.mark.skipif(not wf.cuda.is_available(), reason="there is no NVIDIA card here")


@pytest.mark.parametrize("name", [*EXACT, *LARGE])
def test_attention_of_float32_and_its_gradients_are_the_processors(name: str) -> None:
    check_exact(name)


def test_gradients_have_the_same_bits_on_every_run() -> None:
    random = np.random.default_rng(0)
    heads = [
        wf.asarray(random.normal(size=(2, 4, 500, 64)).astype(np.float32)).to("cuda")
        for _ in range(3)
    ]

    def loss(*heads: wf.Tensor) -> wf.Tensor:
        return (wf.scaled_dot_product_attention(*heads, causal=True) ** 2).sum()

    found = wf.jit(wf.grad(loss, argnums=(0, 1, 2)))
    first, second = ([each.numpy().tobytes() for each in found(*heads)] for _ in range(2))
    assert first == second
