"""Sums over rows whose chunks go over two axes: on cards, where values are large."""

from __future__ import annotations

from copy import copy
from dataclasses import replace

import numpy as np
import pytest

import weft as wf
from weft.compiler.plan.planning import plan_program
from weft.compiler.targets.cuda.target import CUDA_LIMITS
from weft.compiler.targets.plain.target import PLAIN

SHAPES = [
    (4, 6, 8, 16), (3, 7, 16, 17), (2, 2, 3, 8, 32), (8, 8, 16), (1, 9, 8, 16), (5, 1, 16, 16),
]  # fmt: skip
"""Of images with channels last: lines come out even, odd, in pairs, or there is one alone."""


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("together", [1, 48, 1 << 18])
def test_each_chunk_is_summed_once_whatever_the_lines_in_it(
    shape: tuple[int, ...], together: int
) -> None:
    card = copy(PLAIN)
    fusion = replace(CUDA_LIMITS.fusion, chunk_elements=together)
    card.limits = replace(PLAIN.limits, fusion=fusion)
    x = np.random.default_rng(0).integers(-9, 9, shape).astype(np.float32)
    axes = tuple(range(len(shape) - 1))

    def sums(x: wf.Tensor) -> list[wf.Tensor]:
        return [wf.sum(x * 2, axis=axes), wf.max(x, axis=axes), wf.sum(x * x, axis=axes)]

    plan = plan_program(wf.ir.trace(sums, wf.asarray(x)), card)
    roots = [root for each in plan.launches if each.group for root in each.group.roots]
    assert any(root.lines > 1 for root in roots) == (together < 1 << 18 and shape[-3] > 1)
    found = card.executable(plan).run([x])
    references = [2 * x.sum(axes), x.max(axes), (x * x).sum(axes)]
    for result, expected in zip(found, references, strict=True):
        np.testing.assert_array_equal(result, expected)
