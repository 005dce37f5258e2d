"""Programs that can be named on the command line: functions that build what is trained.

`weft.models` registers its examples here; anyone else may, too.

>>> from weft.cli.registry import names, register_program
>>> register_program("nothing", lambda: {})
>>> "nothing" in names()
True
"""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from importlib.util import find_spec
from typing import Any

from weft.cli.mistakes import unknown_key

__all__ = ["names", "program_of", "register_program"]

_PROGRAMS: dict[str, Callable[..., Any]] = {}


def register_program(name: str, build: Callable[..., Any]) -> None:
    """Let `weft train NAME` train what `build(**settings)` returns; see `weft.cli.loading`."""
    _PROGRAMS[name] = build


def names() -> list[str]:
    """The names that are registered, those of `weft.models` among them."""
    if find_spec("weft.models") is not None:
        import_module("weft.models")
    return sorted(_PROGRAMS)


def program_of(name: str) -> Callable[..., Any]:
    """What is registered under a name."""
    known = names()
    if name not in known:
        raise unknown_key("program", name, known)
    return _PROGRAMS[name]
