"""Objects that are in charge while a `with` block of theirs runs: the innermost one counts.

Each class has a context variable of its own, so threads and tasks do not see each other's blocks.

>>> class Speaker(Innermost):
...     pass
>>> with Speaker() as first:
...     with Speaker() as second:
...         Speaker.innermost.get() is second
...     Speaker.innermost.get() is first
True
True
>>> Speaker.innermost.get() is None
True
"""

from __future__ import annotations

from contextvars import ContextVar, Token
from typing import Any, ClassVar, Self


class Innermost:
    """The base class of such blocks. An object may be entered again inside its own block."""

    innermost: ClassVar[ContextVar[Any]]
    """The object whose block was entered last and is not left yet, or None."""

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        cls.innermost = ContextVar(f"weft_{cls.__name__.lower()}", default=None)

    def __init__(self) -> None:
        self._tokens: list[Token[Any]] = []

    def __enter__(self) -> Self:
        self._tokens.append(self.innermost.set(self))
        return self

    def __exit__(self, *raised: object) -> None:
        self.innermost.reset(self._tokens.pop())
