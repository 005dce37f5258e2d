"""Programs that can be named on the command line: functions that build what is trained.

Those that the package brings along are in programs.py; anyone may register others.

>>> from weft.cli.registry import names, register_program
>>> register_program("nothing", lambda: {})
>>> "nothing" in names()
True
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from weft.cli.mistakes import unknown_key
from weft.cli.programs import PROGRAMS

__all__ = ["names", "program_of", "register_program"]

_PROGRAMS: dict[str, Callable[..., Any]] = dict(PROGRAMS)


def register_program(name: str, build: Callable[..., Any]) -> None:
    """Let `weft train NAME` train what `build(**settings)` returns; see `weft.cli.loading`."""
    _PROGRAMS[name] = build


def names() -> list[str]:
    """The names that are registered."""
    return sorted(_PROGRAMS)


def program_of(name: str) -> Callable[..., Any]:
    """What is registered under a name."""
    known = names()
    if name not in known:
        raise unknown_key("program", name, known)
    return _PROGRAMS[name]
