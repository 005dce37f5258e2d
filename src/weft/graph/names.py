"""Names of operations: unique in their graph, in scopes that are divided by slashes.

>>> from weft.graph.names import Names
>>> names = Names()
>>> with names.scope("layer1"):
...     names.unique("w"), names.unique("w")
('layer1/w', 'layer1/w_1')
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import weft as wf

_FORM = re.compile(r"[A-Za-z0-9_.][A-Za-z0-9_.\-/]*")


class Names:
    """The names of a graph that are taken, and the scope that new ones are in."""

    def __init__(self) -> None:
        self._taken: set[str] = set()
        self._prefix = ""

    def unique(self, name: str) -> str:
        """The name in the present scope, numbered where it is taken."""
        wanted = f"{self._prefix}{name}"
        candidate, number = wanted, 0
        while candidate in self._taken:
            number += 1
            candidate = f"{wanted}_{number}"
        self._taken.add(candidate)
        return candidate

    @contextmanager
    def scope(self, name: str) -> Iterator[str]:
        """Put names made inside under another one, which is made unique too."""
        before = self._prefix
        inner = self.unique(checked_name("name_scope", name))
        self._prefix = f"{inner}/"
        try:
            yield inner
        finally:
            self._prefix = before


def checked_name(op: str, name: Any) -> str:
    """A name that can be written, and found again."""
    if not isinstance(name, str) or not _FORM.fullmatch(name):
        raise wf.ArgumentError(
            op,
            "this is not a name for an operation",
            expected="letters, digits, '_', '.', '-' and '/', the first none of the last two",
            got={"name": name if isinstance(name, str) and name else repr(name)},
            fix='name="layer1"',
        )
    return name
