"""Frozen dataclasses that import quickly.

`dataclasses` compiles six methods for each frozen class, about half a millisecond of importing;
`frozen` compiles one. What it makes is a dataclass in every other way: `fields`, `replace`,
`match`, copies and pickles work on it. A program that starts loads some fifty of these classes,
and its first compiled function two hundred.

>>> @frozen
... class Span:
...     start: int
...     stop: int = 9
>>> Span(3), Span(3) == Span(3, 9), hash(Span(1)) == hash(Span(1))
(Span(start=3, stop=9), True, True)
>>> Span(1).stop = 4
Traceback (most recent call last):
    ...
dataclasses.FrozenInstanceError: cannot assign to field 'stop'
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import MISSING, Field, FrozenInstanceError, dataclass, field, fields
from operator import attrgetter
from types import FunctionType
from typing import Any, TypeVar, dataclass_transform, overload

__all__ = ["field", "frozen"]

Class = TypeVar("Class")


@overload
def frozen(cls: type[Class]) -> type[Class]: ...
@overload
def frozen(
    *, slots: bool = ..., eq: bool = ..., repr: bool = ..., weakref_slot: bool = ...
) -> Callable[[type[Class]], type[Class]]: ...


@dataclass_transform(frozen_default=True, field_specifiers=(Field, field))
def frozen(
    cls: Any = None,
    *,
    slots: bool = True,
    eq: bool = True,
    repr: bool = True,
    weakref_slot: bool = False,
) -> Any:
    """Make a class a frozen dataclass, as `dataclass(frozen=True, slots=True)` does."""

    def make(cls: Any) -> Any:
        own = set(vars(cls))
        cls = dataclass(init=False, repr=False, eq=False, slots=slots, weakref_slot=weakref_slot)(
            cls
        )
        every = fields(cls)
        methods = {"__init__": _initialiser(cls, every), **_guards(cls, {f.name for f in every})}
        if slots:
            methods |= _state_methods(tuple(f.name for f in every))
        if repr:
            methods["__repr__"] = _repr_method([f.name for f in every if f.repr])
        if eq:
            methods |= _comparison(cls, [f.name for f in every if f.compare])
        for name, method in methods.items():
            if name not in own:
                method.__qualname__ = f"{cls.__qualname__}.{name}"
                setattr(cls, name, method)
        return cls

    return make if cls is None else make(cls)


def _initialiser(cls: Any, every: tuple[Field[Any], ...]) -> Any:
    """`__init__`, the one method that is compiled: its signature is the class's own."""
    names: dict[str, Any] = {"_set": object.__setattr__, "_missing": MISSING}
    lines: list[str] = []
    required: list[str] = []
    optional: list[str] = []
    keywords: list[str] = []
    for each in every:
        value = each.name
        if each.default_factory is not MISSING:
            names[f"_make_{value}"] = each.default_factory
            default, made = "_missing", f"_make_{value}()"
            lines += [f"if {value} is _missing: {value} = {made}"] if each.init else []
        elif each.default is not MISSING:
            names[f"_default_{value}"] = each.default
            default = made = f"_default_{value}"
        else:
            default = made = ""
        if each.init:
            group = keywords if each.kw_only else optional if default else required
            group.append(f"{value}={default}" if default else value)
            lines.append(f"_set(self, {value!r}, {value})")
        elif made:
            lines.append(f"_set(self, {value!r}, {made})")
    if hasattr(cls, "__post_init__"):
        lines.append("self.__post_init__()")
    signature = ", ".join(["self", *required, *optional, *(["*", *keywords] if keywords else [])])
    exec(f"def __init__({signature}):\n  " + "\n  ".join(lines or ["pass"]), names)
    made_method = names["__init__"]
    made_method.__annotations__ = {each.name: each.type for each in every if each.init}
    return made_method


def _guards(cls: Any, names: set[str]) -> dict[str, Any]:
    """The methods that refuse to change a value; a subclass may have attributes of its own."""

    def __setattr__(self: Any, name: str, value: Any) -> None:  # noqa: N807
        if type(self) is cls or name in names:
            raise FrozenInstanceError(f"cannot assign to field {name!r}")
        super(cls, self).__setattr__(name, value)

    def __delattr__(self: Any, name: str) -> None:  # noqa: N807
        if type(self) is cls or name in names:
            raise FrozenInstanceError(f"cannot delete field {name!r}")
        super(cls, self).__delattr__(name)

    return {"__setattr__": __setattr__, "__delattr__": __delattr__}


def _state_methods(names: tuple[str, ...]) -> dict[str, Any]:
    """State for copies and pickles of a class with slots."""

    def __getstate__(self: Any) -> list[Any]:  # noqa: N807
        return [getattr(self, name) for name in names]

    def __setstate__(self: Any, state: list[Any]) -> None:  # noqa: N807
        for name, value in zip(names, state, strict=True):
            object.__setattr__(self, name, value)

    return {"__getstate__": __getstate__, "__setstate__": __setstate__}


def _repr_method(names: list[str]) -> Any:
    def __repr__(self: Any) -> str:  # noqa: N807
        parts = ", ".join(f"{name}={getattr(self, name)!r}" for name in names)
        return f"{type(self).__qualname__}({parts})"

    return __repr__


def _comparison(cls: Any, names: list[str]) -> dict[str, Any]:
    """Equality and hash, of all the fields that count as one tuple.

    They belong to the module of the class, as those of `dataclasses` do: sizes ask who compares
    them (`core/guards.py`), and this module would answer for all.
    """
    values: Any = attrgetter(*names) if len(names) > 1 else _tuple_of(names)

    def __eq__(self: Any, other: object) -> Any:  # noqa: N807
        if other.__class__ is self.__class__:
            return values(self) == values(other)
        return NotImplemented

    def __hash__(self: Any) -> int:  # noqa: N807
        return hash(values(self))

    space = vars(sys.modules[cls.__module__])
    return {
        method.__name__: FunctionType(method.__code__, space, None, None, method.__closure__)
        for method in (__eq__, __hash__)
    }


def _tuple_of(names: list[str]) -> Callable[[Any], tuple[Any, ...]]:
    return lambda value: tuple(getattr(value, name) for name in names)
