"""What is made once is one object for all threads."""

from __future__ import annotations

import time

import pytest
from tests.hammer import at_once

from weft.core.once import made_once


def test_threads_that_ask_at_once_have_one_object() -> None:
    calls: list[int] = []
    found: list[object] = []

    @made_once
    def slow(number: int) -> object:
        calls.append(number)
        time.sleep(0.01)  # the others come meanwhile
        return object()

    at_once(*[lambda: found.append(slow(7)) for _ in range(6)])
    assert calls == [7]
    assert len(found) == 6
    assert all(each is found[0] for each in found)


def test_what_failed_is_made_again() -> None:
    calls: list[int] = []

    @made_once
    def fails_at_first() -> int:
        calls.append(1)
        if len(calls) == 1:
            raise OSError("busy")
        return 5

    with pytest.raises(OSError, match="busy"):
        fails_at_first()
    assert (fails_at_first(), fails_at_first(), len(calls)) == (5, 5, 2)


def test_it_may_be_forgotten() -> None:
    @made_once
    def made(*, size: int) -> list[int]:
        return [size]

    first = made(size=3)
    assert made(size=3) is first
    made.cache_clear()  # type: ignore[attr-defined]
    assert made(size=3) == first
    assert made(size=3) is not first


def test_one_that_asks_for_another_of_itself_does_not_wait_for_itself() -> None:
    @made_once
    def nested(depth: int) -> int:
        return depth if depth == 0 else 1 + int(nested(depth - 1))

    assert nested(3) == 3
