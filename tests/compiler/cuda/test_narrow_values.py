"""Which values are stored between kernels of a card: 16-bit floats in place of wider ones."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from tests.compiler.cuda.host_card import HostCard

import weft as wf
from weft.compiler.plan.planning import plan_program
from weft.compiler.targets.cuda.target import CUDA


def centred(x: wf.Tensor, y: wf.Tensor, w: wf.Tensor) -> tuple[wf.Tensor, ...]:
    """A residual, of which several kernels read what is left of a row without its mean."""
    total = x + y
    wide = total.astype("float32")
    middle = wide - wide.mean(axis=-1, keepdims=True)
    scaled = middle / wf.sqrt((middle * middle).mean(axis=-1, keepdims=True) + 1e-5)
    product = scaled.astype("bfloat16") @ w
    return product, (middle * product.astype("float32")).sum(axis=-1), middle.sum(axis=0)


@pytest.mark.parametrize("columns", [64, 8])
def test_rows_less_their_means_are_stored_as_16_bit_floats(columns: int) -> None:
    """A mean that serves few elements is nothing to read again: rows are stored as they are."""
    kinds = [wf.spec("bfloat16", shape) for shape in ((256, columns),) * 2 + ((columns, columns),)]
    plan = plan_program(wf.ir.trace(centred, *kinds), CUDA)
    stored = {value.type for launch in plan.launches for value in launch.writes}
    wide = any(kind.dtype is wf.float32 and kind.shape == (256, columns) for kind in stored)
    assert wide == (columns < 16)


def test_stored_narrow_values_give_the_processors_results(card: HostCard) -> None:
    generator = np.random.default_rng(0)
    shapes = [(64, 32), (64, 32), (32, 32)]
    given = [generator.normal(size=shape).astype(np.float32) for shape in shapes]

    def run(place: str) -> list[Any]:
        operands = [wf.asarray(array).astype("bfloat16").to(place) for array in given]
        return [y.astype("float32").numpy() for y in wf.jit(centred)(*operands)]

    for one, other in zip(run("cuda"), run("cpu"), strict=True):
        np.testing.assert_allclose(one, other, rtol=3e-2, atol=3e-2)
