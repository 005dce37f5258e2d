"""Programs for batches: few compilations, and bits that do not depend on what came before."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import weft as wf
from weft.train.programs import Programs


def step(batch: Any, weights: list[wf.Tensor]) -> wf.Tensor:
    x, y = batch
    outputs = wf.tanh(x @ weights[0] + weights[1]) @ weights[2]
    loss = -(wf.log_softmax(outputs, axis=-1) * wf.one_hot(y, 10)).sum(axis=1).mean()
    loss.backward()
    with wf.no_grad():
        for weight in weights:
            weight -= 0.1 * weight.grad
            weight.grad = None
    return loss


def weights() -> list[wf.Tensor]:
    shapes = [(64, 37), (37,), (37, 10)]
    drawn = [wf.random.normal(s, key=wf.random.key(i)) * 0.1 for i, s in enumerate(shapes)]
    return [w.detach().requires_grad_(True) for w in drawn]


def batch(size: int, number: int) -> tuple[wf.Tensor, wf.Tensor]:
    key = wf.random.key(100 + number)
    return wf.random.normal((size, 64), key=key), wf.random.randint(0, 10, (size,), key=key)


def bits(sizes: list[int], stops: tuple[int, ...] = ()) -> list[Any]:
    """The weights after batches of these sizes; at each stop, new programs take over."""
    programs, held = Programs(step), weights()
    for number, size in enumerate(sizes):
        if number in stops:
            first, programs = programs.first, Programs(step)
            programs.first = first
        programs(batch(size, number), held)
    return [w.detach().numpy() for w in held]


@pytest.mark.slow
@pytest.mark.parametrize("sizes", [[33, 17, 33, 17], [128, 100, 60, 128], [32, 1, 5, 32]])
def test_the_bits_do_not_depend_on_which_sizes_came_before(sizes: list[int]) -> None:
    wanted = bits(sizes)
    for stops in [(1,), (2,), (3,), (1, 2, 3)]:
        for found, want in zip(bits(sizes, stops), wanted, strict=True):
            assert np.array_equal(found, want), stops


def test_sizes_share_programs() -> None:
    programs, held = Programs(step), weights()
    for number, size in enumerate([8, 8, 5, 8, 7, 3, 2, 6, 8]):
        programs(batch(size, number), held)
    assert programs.compilations == 2
    programs(batch(1, 20), held)  # a size of one broadcasts, and has a program of its own
    assert programs.compilations == 3


def test_kinds_of_batches_have_programs_of_their_own() -> None:
    programs = Programs(lambda batch: batch["x"] * 2)
    for value in (wf.ones(3), wf.ones((2, 3)), wf.ones(3, dtype="int32"), wf.ones(3)):
        assert programs({"x": value}).dtype == value.dtype
    assert programs.compilations == 3
    assert len(programs.first) == 3


def test_uncompiled_programs_are_the_function() -> None:
    programs = Programs(lambda batch: batch + 1, compiled=False)
    assert programs(1) == 2
    assert programs.compilations == 0
