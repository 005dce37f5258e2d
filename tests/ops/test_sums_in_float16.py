"""What divides a sum, or takes its logarithm, gives a number where the sum is beyond float16.

Its greatest number is 65504: a vocabulary, a batch of tokens and a window of an image have more.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import weft as wf

MANY = 70_000
functional = wf.nn.functional


def labels(count: int) -> wf.Tensor:
    return wf.zeros((count,), dtype="int64")


FUNCTIONS: dict[str, tuple[Callable[[wf.Tensor], wf.Tensor], tuple[int, ...], Any]] = {
    "softmax": (lambda x: wf.softmax(x) * 1000, (MANY,), 1000 / MANY),
    "log_softmax": (lambda x: wf.log_softmax(x, axis=0), (MANY, 1), -np.log(MANY)),
    "logsumexp": (lambda x: wf.logsumexp(x - 8), (2, MANY // 2), np.log(MANY)),
    "cross_entropy": (
        lambda x: functional.cross_entropy(x, labels(1)), (1, MANY), np.log(MANY),
    ),
    "cross_entropy of many": (
        lambda x: functional.cross_entropy(x, labels(MANY)), (MANY, 2), np.log(2),
    ),
    "smoothed": (
        lambda x: functional.cross_entropy(x, labels(1), label_smoothing=0.3),
        (1, MANY), np.log(MANY),
    ),
    "avg_pool2d": (lambda x: functional.avg_pool2d(x, 100), (1, 1, 100, 100), 8.0),
    "padded": (
        lambda x: functional.avg_pool2d(x, 100, padding=1, count_include_pad=False)[..., 0, 0],
        (1, 1, 100, 100), 8.0,
    ),
    "segment_mean": (lambda x: wf.segment_mean(x, labels(MANY), 1), (MANY,), 8.0),
    "embedding_bag": (
        lambda x: functional.embedding_bag(labels(MANY)[None], x, mode="mean"), (1, 2), 8.0,
    ),
    "nanmean": (wf.nanmean, (MANY,), 8.0),
    "average": (lambda x: wf.average(x, weights=x), (MANY,), 8.0),
}  # fmt: skip


@pytest.mark.parametrize("compiled", [False, True], ids=["eager", "compiled"])
@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_sum_beyond_float16_is_divided_all_the_same(name: str, compiled: bool) -> None:
    function, shape, expected = FUNCTIONS[name]
    result = (wf.jit(function) if compiled else function)(wf.full(shape, 8.0, dtype="float16"))
    assert result.dtype is wf.float16
    np.testing.assert_allclose(result.astype("float64").numpy(), expected, rtol=2e-3)


@pytest.mark.parametrize("compiled", [False, True], ids=["eager", "compiled"])
def test_gradients_of_a_large_vocabulary_in_float16(compiled: bool) -> None:
    gradient = wf.grad(lambda x: functional.cross_entropy(x, labels(1)) * 1000)
    found = (wf.jit(gradient) if compiled else gradient)(wf.zeros((1, MANY), dtype="float16"))
    np.testing.assert_allclose(found[0, 0].item(), 1000 / MANY - 1000, rtol=2e-3)
    np.testing.assert_allclose(found[0, 1:].astype("float64").numpy(), 1000 / MANY, rtol=2e-3)
