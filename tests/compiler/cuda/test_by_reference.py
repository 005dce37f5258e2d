"""Which primitives a card calls by reference, on copies in the host's memory."""

from __future__ import annotations

import numpy as np
import pytest

import weft as wf
from weft.compiler.plan.launch import Kind
from weft.compiler.plan.planning import plan_program
from weft.compiler.targets.cuda.target import CUDA
from weft.ir.primitive import PRIMITIVES, Primitive

LINEAR_ALGEBRA = {
    "adjugate", "adjugate_slope", "cholesky", "det", "eig", "eigh", "eigvals", "eigvalsh", "inv",
    "lu", "pinv", "qr", "slogdet", "solve", "svd", "svdvals", "triangular_solve",
}  # fmt: skip
FOURIER = {"rfft"}
SPECIAL = {
    "gamma_by_concentration", "gamma_slope", "i0e", "i1e", "nextafter", "polygamma", "pow",
}  # fmt: skip
"""Functions that the processor calls by reference, too; powers of integers among them."""
MADE_BY_PASSES = {
    "conv_last", "conv_last_input_gradient", "conv_last_weight_gradient", "dot_wide",
    "softmax_gradient",
}  # fmt: skip
"""What passes make where there are kernels for it: of sizes that no sample has, or for others."""


def _reference_calls(primitive: Primitive) -> set[str]:
    """The names of the calls by reference in plans of a primitive's samples of real numbers."""
    names = set()
    for sample in primitive.samples():
        arrays = [np.asarray(x) for x in sample.operands]
        if any(array.dtype.kind == "c" for array in arrays):
            continue

        def call(*xs: wf.Tensor, params: dict[str, object] = sample.params) -> object:
            return wf.ir.dispatch.bind(primitive, *xs, **params)

        plan = plan_program(wf.ir.trace(call, *map(wf.asarray, arrays)), CUDA)
        names |= {each.name for each in plan.every_launch() if each.kind is Kind.REFERENCE}
    return names


@pytest.mark.slow
def test_only_the_listed_primitives_are_called_by_reference() -> None:
    pure = [each for each in PRIMITIVES.values() if not each.impure]
    found = set[str]().union(*map(_reference_calls, pure))
    assert found - MADE_BY_PASSES == LINEAR_ALGEBRA | FOURIER | SPECIAL
