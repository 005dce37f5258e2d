"""Names that are not there: the error that says which was probably meant.

>>> unknown("train.Trainer", "metric", "acuracy", ["accuracy", "mse"]).fix
"write 'accuracy'"
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable

import weft as wf

__all__ = ["nearest", "unknown"]


def nearest(name: str, known: Iterable[str]) -> str:
    """The known name that a wrong one is most like, empty where none is.

    >>> nearest("epoch", ["epochs", "batch_size"])
    'epochs'
    """
    return next(iter(difflib.get_close_matches(name, list(known), 1)), "")


def unknown(op: str, kind: str, name: str, known: Iterable[str]) -> wf.NameUnknownError:
    """The error for a name of something (a metric, a key) that does not exist."""
    names = list(known)
    meant = nearest(name, names)
    return wf.NameUnknownError(
        op,
        f"no {kind} is called {name!r}",
        expected="one of " + ", ".join(names) if names else f"no {kind}: none is known",
        got={kind: name},
        fix=f"write {meant!r}" if meant else f"choose a {kind} from this list",
    )
