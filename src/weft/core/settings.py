"""All settings, in one place: what each does, its default, and how to change it for a while.

>>> from weft.core.settings import settings
>>> with settings.changed(full_tracebacks=True):
...     settings.full_tracebacks
True
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, fields
from typing import Any

from weft.core.errors import NameUnknownError
from weft.core.names import nearest


@dataclass(slots=True)
class Settings:
    """What can be set. Attributes may be assigned directly, or for a while with `changed`."""

    full_tracebacks: bool = False
    """Keep the framework's own frames in tracebacks."""
    print_elements: int = 1000
    """How many elements `repr` shows before it abbreviates."""
    cache_folder: str = ""
    """Where compiled kernels are kept on disk; empty for the user's cache folder."""
    compiler: bool = True
    """Compile what `jit` is given; off, it runs by reference, to find out which side is wrong."""
    tuning: bool = False
    """Measure the ways to make each product when it is first compiled; the fastest is kept."""
    print_precision: int = 4
    """How many digits after the point `repr` shows."""

    @contextmanager
    def changed(self, **values: Any) -> Iterator[Settings]:
        """Change settings inside a `with` block."""
        for name in values:
            if name not in _names():
                raise _unknown(name)
        before = {name: getattr(self, name) for name in values}
        for name, value in values.items():
            setattr(self, name, value)
        try:
            yield self
        finally:
            for name, value in before.items():
                setattr(self, name, value)

    def __setattr__(self, name: str, value: Any) -> None:
        if name not in _names():
            raise _unknown(name)
        object.__setattr__(self, name, value)

    def __getattr__(self, name: str) -> Any:
        raise _unknown(name)


def _names() -> list[str]:
    return [field.name for field in fields(Settings)]


def _unknown(name: str) -> NameUnknownError:
    return NameUnknownError(
        "settings",
        f"no setting is called {name!r}",
        expected="one of " + ", ".join(_names()),
        got={"name": name},
        fix=f"wf.settings.{nearest(name, _names()) or _names()[0]}",
    )


settings = Settings()
