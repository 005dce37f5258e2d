"""A function means the same as it is, scripted, and scripted under `jit`."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from tests.script.programs import PROGRAMS, Program

import weft as wf

CASES = [(p, call) for p in PROGRAMS for call in p.calls]
NAMES = [f"{p.name}-{index}" for p in PROGRAMS for index in range(len(p.calls))]


def tensors(call: tuple[Any, ...]) -> list[Any]:
    """Numbers and lists as tensors; bools and None are Python's."""
    return [x if x is None or isinstance(x, bool) else wf.tensor(x) for x in call]


def assert_same(a: Any, b: Any) -> None:
    xs, ys = wf.tree.leaves(a), wf.tree.leaves(b)
    assert len(xs) == len(ys)
    for x, y in zip(xs, ys, strict=True):
        np.testing.assert_allclose(
            np.asarray(wf.tensor(y).numpy()), np.asarray(wf.tensor(x).numpy()), rtol=1e-5, atol=1e-6
        )


def scripted(program: Program) -> Any:
    return wf.script(**program.options)(program.function)


@pytest.mark.slow
@pytest.mark.parametrize(("program", "call"), CASES, ids=NAMES)
def test_results_agree_as_written_scripted_and_compiled(program: Program, call: Any) -> None:
    expected = program.function(*tensors(call))
    assert_same(expected, scripted(program)(*tensors(call)))
    assert_same(expected, wf.jit(scripted(program))(*tensors(call)))


DIFFERENTIABLE = [case for case in CASES if case[0].gradient]


@pytest.mark.parametrize(
    ("program", "call"), DIFFERENTIABLE, ids=[f"{p.name}-{c[0]}" for p, c in DIFFERENTIABLE]
)
def test_gradients_agree_as_written_and_compiled(program: Program, call: Any) -> None:
    expected = wf.grad(program.function)(*tensors(call))
    assert_same(expected, wf.grad(scripted(program))(*tensors(call)))
    assert_same(expected, wf.grad(wf.jit(scripted(program)))(*tensors(call)))
    assert_same(expected, wf.jit(wf.grad(scripted(program)))(*tensors(call)))


BATCHED = ["if_else", "elif_chain", "several_returns", "doubling", "conditional_expression"]


@pytest.mark.parametrize("name", BATCHED)
def test_a_batch_takes_each_its_own_way(name: str) -> None:
    program = next(p for p in PROGRAMS if p.name == name)
    rows = wf.tensor([-5.0, -1.0, 0.5, 1.5, 4.0])
    if name == "doubling":
        rows = wf.abs(rows)
    expected = wf.stack([program.function(row) for row in rows])
    assert_same(expected, wf.vmap(scripted(program))(rows))
    assert_same(expected, wf.jit(wf.vmap(scripted(program)))(rows))
