"""Tracebacks without the framework's own frames, unless `settings.full_tracebacks` asks for them.

>>> from weft.core.tracebacks import trimmed
>>> trimmed(None) is None
True
"""

from __future__ import annotations

import sys
from types import TracebackType

from weft.core.errors import WeftError
from weft.core.locations import is_internal
from weft.core.settings import settings

__all__ = ["install", "trimmed"]


def trimmed(traceback: TracebackType | None) -> TracebackType | None:
    """The traceback with only the user's frames."""
    if traceback is None:
        return None
    rest = trimmed(traceback.tb_next)
    if is_internal(traceback.tb_frame.f_code.co_filename):
        return rest
    return TracebackType(rest, traceback.tb_frame, traceback.tb_lasti, traceback.tb_lineno)


def install() -> None:
    """Trim what Python prints for an uncaught error of the framework, and of nothing else."""
    before = sys.excepthook

    def hook(
        kind: type[BaseException], error: BaseException, traceback: TracebackType | None
    ) -> None:
        if isinstance(error, WeftError) and not settings.full_tracebacks:
            short = trimmed(traceback)
            error.__traceback__ = traceback = short if short is not None else traceback
        before(kind, error, traceback)

    sys.excepthook = hook
