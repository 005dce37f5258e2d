"""Containers are told apart by the objects in them, natively and in Python alike."""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
from tests.quiet import wait_for_quiet

from weft.compiler.function.fastcall.memory_words import container_check
from weft.compiler.targets.cpu.runtime.entry_points import entries
from weft.core import unchanged
from weft.core.settings import settings
from weft.core.unchanged import Contents


@pytest.fixture(params=["native", "python"])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    with settings.changed(fastcall=True):
        made = entries()
    is_native = made is not None and request.param == "native"
    native = [partial(container_check, made.same)] if is_native else []
    monkeypatch.setattr(unchanged, "QUICKER", native)
    return str(request.param)


def equal_but_another(values: list[Any]) -> None:
    """Another object that is equal to the one it replaces."""
    values[0] = float("1.5")


CHANGES: dict[str, Callable[[list[Any], dict[Any, Any]], Any]] = {
    "an element": lambda values, named: values.__setitem__(0, 2),
    "an equal element": lambda values, named: equal_but_another(values),
    "more": lambda values, named: values.append(1),
    "less": lambda values, named: values.pop(),
    "none": lambda values, named: values.clear(),
    "the order": lambda values, named: values.reverse(),
    "a value": lambda values, named: named.update(a=2),
    "a key": lambda values, named: named.update(c=named.pop("b")),
    "the order of keys": lambda values, named: named.update(a=named.pop("a")),
    "one key more": lambda values, named: named.update(c=1),
    "no keys": lambda values, named: named.clear(),
    "a key for another": lambda values, named: (named.clear(), named.update(b=1.5, a="x")),
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_change_is_seen(way: str, change: str) -> None:
    values, named = [1.5, "x"], {"a": 1.5, "b": "x"}
    contents = Contents([{}, values, [], named, []])
    assert contents.is_unchanged()
    CHANGES[change](values, named)
    assert not contents.is_unchanged()


def test_what_is_put_back_is_unchanged(way: str) -> None:
    values, held = [object(), object()], {"a": object()}
    contents = Contents([values, held])
    first, value = values[0], held["a"]
    values[0] = held["a"] = None
    assert not contents.is_unchanged()
    values[0], held["a"] = first, value
    assert contents.is_unchanged()


def test_a_container_is_added_later(way: str) -> None:
    values, more = [1.5], [2.5]
    contents = Contents([values])
    assert contents.is_unchanged()
    contents.add(more)
    assert contents.is_unchanged()
    more.append(1)
    assert not contents.is_unchanged()


def test_nothing_is_unchanged(way: str) -> None:
    assert Contents().is_unchanged()


def test_asking_leaves_no_references(way: str) -> None:
    marks = [object(), object()]
    contents = Contents([marks, dict.fromkeys("ab", marks[0])])
    before = [sys.getrefcount(each) for each in (*marks, contents)]
    for _ in range(1000):
        contents.is_unchanged()
    assert [sys.getrefcount(each) for each in (*marks, contents)] == before
    wait_for_quiet()
    assert contents.is_unchanged()


def test_large_containers(way: str) -> None:
    values = [object() for _ in range(1000)]
    named = {f"n{i}": each for i, each in enumerate(values)}
    contents = Contents([values, named])
    assert contents.is_unchanged()
    named["n999"] = object()
    assert not contents.is_unchanged()
