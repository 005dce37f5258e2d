"""Products that do what follows them, on a card in the host's memory: values, plans, refusals."""

from __future__ import annotations

import numpy as np
import pytest
from tests.compiler.cuda.epilogue_cases import (
    PROGRAMS,
    arrays_of,
    check_epilogue,
    check_random,
    fused_launches,
)
from tests.compiler.cuda.host_card import HostCard

import weft as wf

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_product_gives_with_what_follows_it_what_references_give(
    card: HostCard, name: str
) -> None:
    check_epilogue(name, "float32" if name in ("tanh", "relu") else "bfloat16")


def test_random_epilogues_give_what_references_give(card: HostCard) -> None:
    assert sum(check_random(seed) for seed in range(12)) >= 6


def _two_layers(x: wf.Tensor, w: wf.Tensor, v: wf.Tensor) -> list[wf.Tensor]:
    gradient = wf.grad(lambda *given: (wf.relu(given[0] @ given[1]) @ given[2]).sum(), argnums=1)
    return [wf.relu(x @ w) @ v, gradient(x, w, v)]


def test_float32_is_rounded_on_its_way_to_tensor_cores_where_that_is_asked_for(
    card: HostCard,
) -> None:
    arrays = arrays_of(((256, 128), (128, 64), (64, 256)))
    found = {}
    for way in ("exact", "tfloat32"):
        with wf.settings.changed(float32_products=way):
            results = wf.jit(_two_layers)(*[wf.asarray(array).to("cuda") for array in arrays])
            found[way] = [result.numpy() for result in results]
    for exact, rounded in zip(*found.values(), strict=True):
        difference = np.abs(exact - rounded).max() / np.abs(exact).max()
        assert 0 < difference < 2e-3


def test_another_way_to_multiply_float32_is_refused() -> None:
    kinds = wf.spec("float32", (256, 256)), wf.spec("float32", (256, 256))
    with wf.settings.changed(float32_products="fast"), pytest.raises(wf.ArgumentError) as caught:
        fused_launches(lambda a, b: a @ b, *kinds)
    assert "tfloat32" in str(caught.value)
