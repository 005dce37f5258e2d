"""Random numbers that compiled code draws: the same for any count, and those of the reference."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import weft as wf
from weft.ir import eager_primitives
from weft.ops import random_bits
from weft.ops.composed import random_programs

COUNTS = [1, 2, 3, 7, 16, 17, 255, 257, 4095, 4097, 16385]
SAMPLERS = [wf.random.normal, wf.random.uniform, wf.random.exponential, wf.random.gumbel]


@pytest.fixture(autouse=True)
def native() -> Any:
    with wf.settings.changed(eager="native"):
        yield


@pytest.mark.parametrize("count", [1999, 2000, 2001, 4096, 5000, 6001, 7000])
def test_words_that_compiled_code_draws_are_those_of_the_reference(
    count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """More counts than there are programs of their own for: the last ones share one."""
    monkeypatch.setattr(eager_primitives, "DRAWN", 2000)

    def draw() -> list[bytes]:
        key = wf.random.key(5)
        return [
            wf.random.uniform((count // 7, 7), key=key).numpy().tobytes(),
            wf.random.uniform((count,), dtype="float64", key=key).numpy().tobytes(),
            wf.random.bits((3, count), key=key).numpy().tobytes(),
        ]

    found = draw()
    with wf.settings.changed(eager="reference"):
        assert draw() == found


@pytest.mark.parametrize("dtype", ["float32", "float64", "float16"])
@pytest.mark.parametrize("sampler", SAMPLERS)
def test_numbers_do_not_depend_on_how_many_are_drawn(sampler: Any, dtype: str) -> None:
    key = wf.random.key(2**40 + 7)
    every = sampler((20001,), key=key, dtype=dtype)
    for count in COUNTS:
        few = sampler((count,), key=key, dtype=dtype)
        np.testing.assert_array_equal(few.numpy(), every.numpy()[:count])
    rows = sampler((3, 5, 7), key=key, dtype=dtype)
    np.testing.assert_array_equal(rows.numpy().ravel(), every.numpy()[:105])


@pytest.mark.parametrize("sampler", SAMPLERS)
def test_numbers_are_those_of_the_reference_and_of_programs(sampler: Any) -> None:
    key = wf.random.key(2**63 + 5)  # both words of the key count
    found = sampler((5001,), key=key).numpy()
    compiled = wf.jit(lambda key: sampler((5001,), key=key))(key).numpy()
    np.testing.assert_array_equal(compiled, found)
    with wf.settings.changed(eager="reference"):
        expected = sampler((5001,), key=key).numpy()
    np.testing.assert_allclose(found, expected, rtol=1e-6, atol=1e-6)


def test_draws_of_the_generator_go_on_whichever_way_they_are_computed() -> None:
    wf.random.seed(3)
    drawn = [wf.random.normal((n,)).numpy() for n in (4, 400)]
    after = wf.random.get_state().counter.item()
    wf.random.seed(3)
    with wf.settings.changed(eager="reference"):
        expected = [wf.random.normal((n,)).numpy() for n in (4, 400)]
    assert wf.random.get_state().counter.item() == after
    for found, other in zip(drawn, expected, strict=True):
        np.testing.assert_allclose(found, other, rtol=1e-6, atol=1e-6)


def test_no_numbers_and_batched_keys_are_drawn_too() -> None:
    assert wf.random.normal((0, 3)).shape == (0, 3)
    keys = wf.random.split(wf.random.key(1), 3)
    rows = wf.vmap(lambda key: wf.random.normal((40,), key=key))(keys)
    for row, key in zip(rows, keys, strict=True):
        expected = wf.random.normal((40,), key=key)
        np.testing.assert_allclose(row.numpy(), expected.numpy(), rtol=1e-6, atol=1e-6)


def test_a_draw_is_made_by_compiled_code_of_one_program_for_all_counts(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refuse(*given: object) -> None:
        raise AssertionError("drawn by reference")

    compiled = []
    monkeypatch.setattr(random_bits, "_fill_many", refuse)
    before = random_programs._program_of_words
    monkeypatch.setattr(
        random_programs,
        "_program_of_words",
        lambda *given: compiled.append(given) or before(*given),
    )
    for count in (5000, 4999, 300, 20, 2):
        assert wf.random.uniform((count,)).shape == (count,)
    assert len(compiled) <= 1
    with (
        wf.settings.changed(eager="reference"),
        pytest.raises(AssertionError, match="drawn by reference"),
    ):
        wf.random.uniform((4999,))


def test_integers_are_those_of_the_reference_whatever_their_count() -> None:
    key = wf.random.key(2**50 + 1)
    every = wf.random.randint(-7, 2**40, (5003,), key=key).numpy()
    with wf.settings.changed(eager="reference"):
        np.testing.assert_array_equal(wf.random.randint(-7, 2**40, (5003,), key=key).numpy(), every)
    for count in COUNTS[:8]:
        few = wf.random.randint(-7, 2**40, (count,), key=key)
        np.testing.assert_array_equal(few.numpy(), every[:count])
