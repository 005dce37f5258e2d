"""Native functions by name: how a stored program finds a function again in another process.

>>> from weft.compiler.targets.cpu.cache.symbols import found_again, origin, remember_address
>>> remember_address(4711, "a function", "f32")
4711
>>> origin(4711), found_again(("nothing of the kind",)) is None
(('a function', 'f32'), True)
"""

from __future__ import annotations

from collections.abc import Callable

Origin = tuple[str, ...]
"""A name, and what the function of that name is asked for."""

_origins: dict[int, Origin] = {}
_finders: dict[str, Callable[..., int | None]] = {}


def remember_address(address: int, *name: str) -> int:
    """The address, which from now on has a name."""
    _origins[address] = name
    return address


def forget_address(address: int, origins: dict[int, Origin] = _origins) -> None:
    """Let an address be nobody's: the function is gone, and at the end this module before it."""
    origins.pop(address, None)


def finder(name: str, find: Callable[..., int | None]) -> None:
    """Say who gives the functions of a name, given what else stands in their origin."""
    _finders[name] = find


def origin(address: int) -> Origin | None:
    """The name of a function; None if it has none."""
    return _origins.get(address)


def symbol_of(address: int) -> Origin:
    """The name of a function that has one."""
    return _origins[address]


def found_again(name: Origin) -> int | None:
    """The address of a function in this process; None if it cannot be had."""
    find = _finders.get(name[0])
    return None if find is None else find(*name[1:])
