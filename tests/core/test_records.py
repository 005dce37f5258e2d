"""Frozen records behave as the dataclasses of the standard library do."""

from __future__ import annotations

import copy
import dataclasses
import inspect
import pickle
from functools import cached_property
from typing import Any

import pytest

from weft.core.records import field, frozen


def count_up() -> list[int]:
    return [1]


class Body:
    name: str
    size: int = 3
    parts: list[int] = dataclasses.field(default_factory=count_up)
    note: str = dataclasses.field(default="", compare=False, repr=False)
    total: int = dataclasses.field(init=False)
    word: str = dataclasses.field(kw_only=True)

    def __post_init__(self) -> None:
        object.__setattr__(self, "total", self.size + len(self.parts))


def both(**options: Any) -> tuple[Any, Any]:
    """The same class, made by the standard library and here."""
    space = {name: value for name, value in vars(Body).items() if not name.startswith("__dict")}
    space.pop("__weakref__", None)
    slots = options.pop("slots", True)
    theirs = dataclasses.dataclass(frozen=True, slots=slots, **options)
    ours = frozen(slots=slots, **options)
    return theirs(type("Body", (), dict(space))), ours(type("Body", (), dict(space)))


CALLS: list[tuple[tuple[Any, ...], dict[str, Any]]] = [
    (("a",), {"word": "w"}),
    (("a", 4, [1, 2]), {"word": "w", "note": "n"}),
    ((), {"name": "b", "parts": [], "word": ""}),
]


@pytest.mark.parametrize("slots", [True, False])
def test_a_record_has_the_values_text_and_equality_of_a_dataclass(slots: bool) -> None:
    theirs, ours = both(slots=slots)
    expected = [theirs(*args, **named) for args, named in CALLS]
    found = [ours(*args, **named) for args, named in CALLS]
    assert [repr(value) for value in found] == [repr(value) for value in expected]
    assert [dataclasses.asdict(value) for value in found] == [
        dataclasses.asdict(value) for value in expected
    ]
    table = [[a == b for a in found] for b in found]
    assert table == [[a == b for a in expected] for b in expected]
    assert list(inspect.signature(ours).parameters) == list(inspect.signature(theirs).parameters)
    assert hasattr(found[0], "__dict__") == hasattr(expected[0], "__dict__")


def test_wrong_arguments_are_refused() -> None:
    _, ours = both()
    for args, named in [((), {"word": ""}), (("a",), {}), (("a",), {"word": "", "total": 1})]:
        with pytest.raises(TypeError):
            ours(*args, **named)


@frozen
class Point:
    x: int
    y: int = 0


@frozen
class Point3(Point):
    z: int = 0


@frozen
class Single:
    value: str


@frozen(eq=False, repr=False)
class Identity:
    value: int


@frozen(slots=False)
class Lazy:
    value: int

    @cached_property
    def double(self) -> int:
        return 2 * self.value


class Wider(Lazy):
    """A plain subclass, which has attributes of its own."""


def test_a_record_cannot_be_changed() -> None:
    for change in (lambda p: setattr(p, "x", 1), lambda p: delattr(p, "x")):
        with pytest.raises(dataclasses.FrozenInstanceError, match="field 'x'"):
            change(Point(1))
    with pytest.raises(dataclasses.FrozenInstanceError):
        Point(1).w = 3  # type: ignore[attr-defined]
    wider: Any = Wider(1)
    wider.more = 5
    assert wider.more == 5
    with pytest.raises(dataclasses.FrozenInstanceError):
        wider.value = 5


def test_hash_and_equality_need_the_same_class() -> None:
    assert Point(1) == Point(1, 0)
    assert hash(Point(1)) == hash(Point(1, 0))
    assert Point(1) != Point3(1)
    assert Point(1) != (1, 0)
    assert len({Single("a"), Single("a"), Single("b")}) == 2
    assert Identity(1) != Identity(1)


def test_copies_pickles_replacement_and_match() -> None:
    value = Point3(1, 2, 3)
    assert copy.copy(value) == copy.deepcopy(value) == value
    assert pickle.loads(pickle.dumps(value)) == value
    assert dataclasses.replace(value, y=7) == Point3(1, 7, 3)
    match value:
        case Point3(x, y, z):
            assert (x, y, z) == (1, 2, 3)
    assert Lazy(4).double == 8


def test_a_method_of_the_class_itself_stays() -> None:
    @frozen
    class Named:
        value: int
        extra: int = field(default=0, compare=False)

        def __repr__(self) -> str:
            return "mine"

        def __hash__(self) -> int:
            return 7

    assert repr(Named(1)) == "mine"
    assert hash(Named(1)) == 7
    assert Named(1, 2) == Named(1, 3)
