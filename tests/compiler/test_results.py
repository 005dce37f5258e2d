"""What a compiled call returns, and what it writes to its arguments, whatever way they go."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import weft as wf
from weft.compiler.function.compiled_function import Compiled
from weft.compiler.targets.cpu.runtime.executable import CpuExecutable


def of(f: Any) -> Compiled:
    (found,) = f._compiled.values()
    assert isinstance(found, Compiled)
    return found


def test_a_tuple_of_results_is_a_tuple_of_tensors() -> None:
    f = wf.jit(lambda x: (x + 1, x * 3))
    for x in (wf.ones(2), wf.ones(2), wf.full((2,), 2.0)):
        first, second = f(x)
        assert first.tolist() == [value + 1 for value in x.tolist()]
        assert second.tolist() == [value * 3 for value in x.tolist()]
    assert of(f).tuple_places == (0, 1)


def test_results_that_are_one_value_share_their_memory() -> None:
    def twice(x: wf.Tensor) -> tuple[wf.Tensor, wf.Tensor, wf.Tensor]:
        y = x + 1
        return y, x * 2, y

    f = wf.jit(twice)
    for _ in range(3):
        first, second, third = f(wf.ones(2))
        assert first.numpy().ctypes.data == third.numpy().ctypes.data
        assert (first.tolist(), second.tolist(), third.tolist()) == ([2, 2],) * 3


@pytest.mark.parametrize(
    ("tree", "leaves"),
    [
        (lambda x: (x + 1,), 1),
        (lambda x: [x + 1, x * 3], 2),
        (lambda x: (x + 1, (x * 3, x * 4)), 3),
        (lambda x: (x + 1, 7), 1),
        (lambda x: {"a": x + 1, "b": (x * 2,)}, 2),
        (lambda x: (), 0),
    ],
)
def test_other_trees_of_results_are_built_as_they_were(tree: Any, leaves: int) -> None:
    f, x = wf.jit(tree), wf.ones(3)
    expected = wf.tree.leaves(tree(x))
    for _ in range(3):
        found = f(x)
        assert wf.tree.flatten(found)[1] == wf.tree.flatten(tree(x))[1]
        values = wf.tree.leaves(found)
        assert sum(isinstance(value, wf.Tensor) for value in values) == leaves
        for value, other in zip(values, expected, strict=True):
            assert np.array_equal(np.asarray(value), np.asarray(other))


def test_arguments_are_written_to_and_what_others_hold_stays() -> None:
    @wf.jit
    def step(state: list[wf.Tensor], x: wf.Tensor) -> tuple[wf.Tensor, wf.Tensor]:
        state[0] += x
        state[1] += state[0].sum()
        return state[1] * 2, x + 1

    state = [wf.zeros(4096), wf.zeros(())]
    assert of_writes(step, state) == [(0, 0), (1, 1)]
    held = state[0].numpy().copy()
    kept = state[0].detach()
    for number in range(4):
        doubled, _ = step(state, wf.ones(4096))
        assert state[0].tolist() == [2.0 + number] * 4096
        assert doubled.item() == 2 * state[1].item()
    assert kept.tolist() == held.tolist() == [1.0] * 4096


def of_writes(step: Any, state: list[wf.Tensor]) -> list[tuple[int, int]]:
    """Which arguments the plain way writes to, by their order and that of their outputs."""
    step(state, wf.ones(4096))
    writes = of(step).plain_writes
    assert writes is not None
    outputs = sorted(output for _, output in writes)
    return [(argument, outputs.index(output)) for argument, output in writes]


def test_only_what_nobody_holds_any_more_serves_later_runs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    freed: list[int] = []
    monkeypatch.setattr(CpuExecutable, "recycle", lambda self, array: freed.append(array.size))

    @wf.jit
    def step(x: wf.Tensor) -> wf.Tensor:
        total = x.sum()
        x += wf.flip(x) / 2  # it reads other places than it writes: not in its own place
        return total

    x = wf.ones((64, 64)) * 1
    with wf.settings.changed(in_place_updates=True):
        step(x)
        assert freed == [64 * 64]
        kept = x.detach()
        step(x)
        assert freed == [64 * 64]
        assert kept.tolist() == [[1.5] * 64] * 64
        step(x)
        assert freed == [64 * 64] * 2


def test_gradients_and_state_outside_take_the_general_way() -> None:
    outside = wf.zeros(2)
    weight = wf.ones(2).requires_grad_()

    @wf.jit
    def step(weight: wf.Tensor, x: wf.Tensor) -> wf.Tensor:
        nonlocal outside
        loss = (weight * x).sum()
        loss.backward()
        outside += x
        return loss

    for number in range(3):
        step(weight, wf.ones(2))
        assert weight.grad is not None
        assert weight.grad.tolist() == [1.0 + number] * 2
        assert outside.tolist() == [1.0 + number] * 2
    assert all(each.plain_writes is None for each in step._compiled.values())


def test_results_that_are_inputs_views_or_constants_have_their_shapes() -> None:
    def f(x: wf.Tensor) -> tuple[wf.Tensor, ...]:
        y = x * 2
        return x, x.reshape((2, 3)), y, y.reshape((3, 2)), wf.ones((2,))

    compiled, x = wf.jit(f), wf.arange(6.0)
    for _ in range(3):
        for found, expected in zip(compiled(x), f(x), strict=True):
            assert found.tolist() == expected.tolist()
