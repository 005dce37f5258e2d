"""Products on a card: every layout, dtype, epilogue and plan against float32, and the same bits."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")
if not torch.cuda.is_available():
    pytest.skip("there is no NVIDIA card here", allow_module_level=True)

from benchmarks.gpu.products import checked_cases, errors, wrong_results  # noqa: E402

from weft.compiler.targets.cuda.products.description import (  # noqa: E402
    Plan,
    ProductSpec,
    Sizes,
)

CASES = [
    pytest.param(spec, sizes, plan, id=f"{name} {plan}")
    for name, spec, sizes, plans in checked_cases()
    for plan in plans
]


@pytest.mark.parametrize(("spec", "sizes", "plan"), CASES)
def test_a_product_agrees_with_float32_and_has_the_same_bits_in_every_run(
    spec: ProductSpec, sizes: Sizes, plan: Plan
) -> None:
    found = errors(spec, plan, sizes)
    assert wrong_results(spec, found) == [], found
