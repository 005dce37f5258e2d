"""Programs of cards that were stored: they run as those do that they were made of."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from tests.compiler.cuda.device_cases import PROGRAMS, compare, numbers, train
from tests.compiler.cuda.host_card import HostCard, host_card

import weft as wf
from weft.compiler.function import program_cache
from weft.compiler.targets.cuda import target
from weft.compiler.targets.cuda.stored_programs import (
    StoredExecutable,
    freeze_program,
    thaw_program,
)
from weft.compiler.targets.target import Executable

STORED: list[StoredExecutable] = []
COMPILED: list[str] = []
"""Digests of programs that were compiled after they had been stored."""


def store_and_find(digest: str, ordinal: int, compiled: Callable[[], Executable]) -> Executable:
    """What a second process runs: nothing of the compiled program but its bytes."""
    data = freeze_program(compiled())  # type: ignore[arg-type]
    program_cache._program.cache_clear()

    def compile_again() -> Executable:
        COMPILED.append(digest)
        return compiled()

    if data is None:
        return compiled()
    found = thaw_program(data, ordinal, compile_again)
    assert found is not None
    STORED.append(found)
    return found


@pytest.fixture
def stored(monkeypatch: pytest.MonkeyPatch) -> Iterator[HostCard]:
    STORED.clear()
    COMPILED.clear()
    with host_card(monkeypatch) as card:
        monkeypatch.setattr(target, "stored_program", store_and_find)
        program_cache._executables.clear()
        yield card
        program_cache._executables.clear()
        STORED.clear()
        card.check_fences()


KINDS = (
    "softmax of a product", "a product of odd sizes", "attention", "a gradient of attention",
    "a gradient of rows that are looked up", "a cross entropy with its gradient", "a convolution",
    "gradients of a convolution with strides", "a sort", "a long sum", "a join", "its own input",
)  # fmt: skip


@pytest.mark.parametrize("name", KINDS)
def test_a_stored_program_computes_what_it_was_stored_for(stored: HostCard, name: str) -> None:
    f, shape, _ = PROGRAMS[name]
    limit = 5e-2 if "attention" in name else 1e-4 if "convolution" in name else 1e-5
    compare(f, numbers(*shape), limit=limit)
    assert STORED
    assert not COMPILED


@pytest.mark.parametrize("name", ["a scan", "a while loop", "a choice", "a call by reference"])
def test_what_the_host_decides_is_compiled_anew(stored: HostCard, name: str) -> None:
    f, shape, _ = PROGRAMS[name]
    compare(f, numbers(*shape))


def test_a_stored_training_step_has_the_losses_of_a_compiled_one(stored: HostCard) -> None:
    found = train("cuda", 6)
    assert any(program.donations for program in STORED)
    assert not COMPILED
    np.testing.assert_allclose(found, train("cpu", 6), rtol=1e-4)


def test_constants_are_stored_with_their_dtypes(stored: HostCard) -> None:
    table = np.linspace(-1, 1, 40).astype(np.float32).reshape(10, 4)

    def f(x: wf.Tensor) -> Any:
        held = wf.asarray(table)
        return x + held[:3], held.astype("bfloat16")[1:3], wf.arange(3)

    x = numbers(3, 4)
    for _ in range(3):
        one, two, three = wf.jit(f)(wf.asarray(x).to("cuda"))
        np.testing.assert_allclose(one.numpy(), x + table[:3], rtol=1e-6)
        assert two.dtype == wf.bfloat16
        np.testing.assert_allclose(two.float().numpy(), table[1:3], atol=1e-2)
        assert three.tolist() == [0, 1, 2]
    assert STORED
    assert not COMPILED


def test_a_fault_of_a_stored_program_names_the_line(stored: HostCard) -> None:
    compiled = wf.jit(lambda x, i: wf.exp(x)[i] * 2)
    x = wf.asarray(numbers(5, 3)).to("cuda")
    np.testing.assert_allclose(
        compiled(x, wf.asarray([4, 0]).to("cuda")).numpy(), np.exp(x.numpy())[[4, 0]] * 2, rtol=1e-5
    )
    result = compiled(x, wf.asarray([1, 5]).to("cuda"))
    with pytest.raises(wf.BoundsError) as caught:
        result.numpy()
    assert STORED
    assert "test_stored_programs.py" in str(caught.value)
    assert "wf.exp(x)[i] * 2" in str(caught.value)


def test_launches_of_a_stored_program_are_watched(stored: HostCard) -> None:
    x = wf.asarray(numbers(64, 3)).to("cuda")
    compiled = wf.jit(lambda x: wf.softmax(wf.exp(x) @ x.T))
    wanted, seen = compiled(x).numpy(), []
    assert STORED
    with target.CUDA.watch(lambda plan, sizes, spans: seen.append(len(spans))):
        np.testing.assert_allclose(compiled(x).numpy(), wanted, rtol=1e-6)
    assert seen == [len(STORED[0].plan.launches)]
