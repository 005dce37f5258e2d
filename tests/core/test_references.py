"""Counts of references: right from the first question to the last, or not given at all."""

from __future__ import annotations

import itertools
from typing import Any

import pytest

from weft.core import references
from weft.core.references import calibrate, held_beside


class Holder:
    __slots__ = ("held",)

    def __init__(self, held: object) -> None:
        self.held = held


def answers(held: list[Any]) -> list[list[int]]:
    """The places with no, one and two references beside the list's."""
    return [held_beside(held, range(len(held)), others) for others in range(3)]


def test_each_reference_beside_the_lists_own_is_counted() -> None:
    held: list[Any] = [object(), object(), object()]
    holders = [Holder(held[1]), Holder(held[2]), Holder(held[2])]
    assert answers(held) == [[0], [1], [2]]
    holders.pop()
    assert answers(held) == [[0], [1, 2], []]


def test_an_object_that_is_in_the_list_twice_is_held_elsewhere() -> None:
    held = [object()] * 2
    assert answers(held) == [[], [0, 1], []]


def test_the_answer_stays_when_the_interpreter_has_specialised_the_code() -> None:
    held: list[Any] = [object(), object()]
    holder = Holder(held[1])
    assert all(held_beside(held, (0, 1), 0) == [0] for _ in range(10_000))
    assert all(held_beside(held, (0, 1), 1) == [1] for _ in range(10_000))
    assert holder.held is held[1]


def test_counts_with_another_start_are_calibrated(monkeypatch: pytest.MonkeyPatch) -> None:
    count = references._count
    monkeypatch.setattr(references, "_own", [0])
    monkeypatch.setattr(references, "_count", lambda held: count(held) + 7)
    assert calibrate()
    held = [object(), object()]
    holder = Holder(held[0])
    assert answers(held) == [[1], [0], []]
    assert holder.held is held[0]


numbers = itertools.count(3)


@pytest.mark.parametrize(
    "count", [lambda held: 3, lambda held: 0, id, lambda held: next(numbers)], ids=range(4)
)
def test_what_does_not_count_leaves_everything_held_elsewhere(
    monkeypatch: pytest.MonkeyPatch, count: Any
) -> None:
    monkeypatch.setattr(references, "_own", [0])
    monkeypatch.setattr(references, "_count", count)
    assert not calibrate()
    held = [object(), object()]
    assert answers(held) == [[], [], []]
