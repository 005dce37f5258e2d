"""What a user did wrong on the command line: one line, no traceback, and the right exit code.

>>> Mistake("no such file: mine.py").code
2
"""

from __future__ import annotations

from collections.abc import Iterable

from weft.names import nearest_name

__all__ = ["Mistake", "unknown_key"]


class Mistake(Exception):
    """A mistake in the command, its files or its settings, told in the user's words."""

    code = 2


def unknown_key(kind: str, key: str, known: Iterable[str]) -> Mistake:
    """A key that nothing reads, with the nearest that is read.

    >>> str(unknown_key("setting", "learning_rat", ["learning_rate", "width"]))
    "no setting is called 'learning_rat'; did you mean 'learning_rate'?"
    """
    names = list(known)
    meant = nearest_name(key, names)
    if meant:
        return Mistake(f"no {kind} is called {key!r}; did you mean {meant!r}?")
    listed = f"there are {', '.join(names)}" if names else "there is none"
    return Mistake(f"no {kind} is called {key!r}; {listed}")
