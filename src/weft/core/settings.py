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


@dataclass(slots=True)
class Settings:
    """What can be set. Attributes may be assigned directly, or for a while with `changed`."""

    full_tracebacks: bool = False
    """Keep the framework's own frames in tracebacks."""
    print_elements: int = 1000
    """How many elements `repr` shows before it abbreviates."""
    print_precision: int = 4
    """How many digits after the point `repr` shows."""

    @contextmanager
    def changed(self, **values: Any) -> Iterator[Settings]:
        """Change settings inside a `with` block."""
        known = [field.name for field in fields(self)]
        for name in values:
            if name not in known:
                raise NameUnknownError(
                    "settings",
                    f"no setting is called {name!r}",
                    expected="one of " + ", ".join(known),
                    got={"name": name},
                    fix=f"use settings.changed({known[0]}=...)",
                )
        before = {name: getattr(self, name) for name in values}
        for name, value in values.items():
            setattr(self, name, value)
        try:
            yield self
        finally:
            for name, value in before.items():
                setattr(self, name, value)


settings = Settings()
