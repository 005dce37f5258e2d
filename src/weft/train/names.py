"""Names that are not there: the error that says which was probably meant.

>>> unknown("train.Trainer", "metric", "acuracy", ["accuracy", "mse"]).fix
"write 'accuracy'"
"""

from __future__ import annotations

from collections.abc import Iterable

import weft as wf
from weft.names import nearest_name

__all__ = ["unknown"]


def unknown(
    op: str, kind: str, name: str, known: Iterable[str], meant: str = ""
) -> wf.NameUnknownError:
    """The error for a name of something (a metric, a key) that does not exist."""
    names = list(known)
    longer = [each for each in names if each.startswith(name)]
    meant = meant or (longer[0] if len(longer) == 1 else nearest_name(name, names))
    return wf.NameUnknownError(
        op,
        f"no {kind} is called {name!r}",
        expected="one of " + ", ".join(names) if names else f"no {kind}: none is known",
        got={kind: name},
        fix=f"write {meant!r}" if meant else f"choose a {kind} from this list",
    )
