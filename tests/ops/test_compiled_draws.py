"""Random words that compiled code draws."""

from __future__ import annotations

import pytest

import weft as wf
from weft.ir import eager_primitives
from weft.ops import random_bits


@pytest.mark.parametrize("count", [1999, 2000, 2001, 4096, 5000, 6001, 7000])
def test_words_that_compiled_code_draws_are_those_of_the_reference(
    count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """More counts than there are programs of their own for: the last ones share one."""
    monkeypatch.setattr(eager_primitives, "DRAWN", 2000)

    def draw() -> list[bytes]:
        key = wf.random.key(5)
        return [
            wf.random.normal((count,), key=key).numpy().tobytes(),
            wf.random.uniform((count // 7, 7), key=key).numpy().tobytes(),
            wf.random.normal((count,), dtype="float64", key=key).numpy().tobytes(),
            wf.random.bits((3, count), key=key).numpy().tobytes(),
        ]

    found = draw()
    with wf.settings.changed(eager="reference"):
        assert draw() == found


def test_a_large_draw_is_made_by_compiled_code(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*given: object) -> None:
        raise AssertionError("drawn by reference")

    monkeypatch.setattr(random_bits, "_fill_many", refuse)
    monkeypatch.setattr(eager_primitives, "DRAWN", 5000)
    assert wf.random.uniform((5000,)).shape == (5000,)
    with pytest.raises(AssertionError, match="drawn by reference"):
        wf.random.uniform((4999,))
