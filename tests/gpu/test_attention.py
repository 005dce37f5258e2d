"""Attention and cross entropy on a card, against float32, with the same bits in every run."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")
if not torch.cuda.is_available():
    pytest.skip("there is no NVIDIA card here", allow_module_level=True)

from benchmarks.gpu import cross_entropy  # noqa: E402
from benchmarks.gpu.attention import CHECKED, Case, backward_errors, forward_errors  # noqa: E402

from weft.compiler.targets.cuda.attention.forward import ForwardPlan  # noqa: E402

# PyTorch says this where a thread of its own is the first to multiply beside our context.
pytestmark = pytest.mark.filterwarnings("ignore:Attempting to run cuBLAS")


@pytest.mark.parametrize("case", CHECKED, ids=str)
def test_attention_agrees_with_float32(case: Case) -> None:
    found = forward_errors(case)
    assert found["good"], found


@pytest.mark.parametrize("plan", [ForwardPlan(2, 2, turns=True), ForwardPlan(3, 2)], ids=str)
def test_every_plan_of_attention_agrees_with_float32(plan: ForwardPlan) -> None:
    found = forward_errors(Case(2, 4, 2, 333, 333), plan)
    assert found["good"], found


@pytest.mark.parametrize("case", CHECKED, ids=str)
def test_gradients_of_attention_agree_with_float32(case: Case) -> None:
    found = backward_errors(case)
    assert found["good"], found


@pytest.mark.parametrize(("rows", "columns", "dtype"), cross_entropy.CHECKED)
def test_cross_entropy_and_its_gradient_agree_with_float32(
    rows: int, columns: int, dtype: str
) -> None:
    found = cross_entropy.errors(rows, columns, dtype)
    assert found["loss"] < 1e-5
    assert found["gradient"] < 4e-3
