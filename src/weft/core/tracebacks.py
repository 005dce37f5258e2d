"""Tracebacks without the framework's own frames, unless `settings.full_tracebacks` asks for them.

One mistake that Python itself reports gets a note: `x.size()`, where `x.size` is a number.

>>> from weft.core.tracebacks import trimmed
>>> trimmed(None) is None
True
"""

from __future__ import annotations

import linecache
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


SIZE_NOTE = "in Weft x.size is the number of elements: x.shape for all sizes, x.shape[0] for one"


def _note_size_call(error: BaseException, traceback: TracebackType | None) -> None:
    """Say what to write for `x.size()`, which calls a number."""
    if type(error) is not TypeError or str(error) != "'int' object is not callable":
        return
    while traceback is not None and traceback.tb_next is not None:
        traceback = traceback.tb_next
    if traceback is None:
        return
    line = linecache.getline(traceback.tb_frame.f_code.co_filename, traceback.tb_lineno)
    if ".size(" in line:
        error.add_note(SIZE_NOTE)


def install() -> None:
    """Trim what Python prints for an uncaught error of the framework, and of nothing else."""
    before = sys.excepthook

    def hook(
        kind: type[BaseException], error: BaseException, traceback: TracebackType | None
    ) -> None:
        if isinstance(error, WeftError) and not settings.full_tracebacks:
            short = trimmed(traceback)
            error.__traceback__ = traceback = short if short is not None else traceback
        _note_size_call(error, traceback)
        before(kind, error, traceback)

    sys.excepthook = hook
