"""Tracebacks without the framework's own frames, unless `settings.full_tracebacks` asks for them.

One mistake that Python itself reports gets a note: `x.size()`, where `x.size` is a number.

>>> from weft.core.tracebacks import user_frames
>>> user_frames(None) is None
True
"""

from __future__ import annotations

import linecache
import sys
from types import TracebackType
from typing import Any

from weft.core.errors import WeftError
from weft.core.locations import is_internal
from weft.core.settings import settings

__all__ = ["install", "user_frames"]


def user_frames(traceback: TracebackType | None) -> TracebackType | None:
    """The traceback with only the user's frames."""
    if traceback is None:
        return None
    rest = user_frames(traceback.tb_next)
    if is_internal(traceback.tb_frame.f_code.co_filename):
        return rest
    return TracebackType(rest, traceback.tb_frame, traceback.tb_lasti, traceback.tb_lineno)


SIZE_NOTE = "in Weft x.size is the number of elements: x.shape for all sizes, x.shape[0] for one"


WHERE_NOTE = "the places where a condition holds are wf.nonzero(condition)"


def _note_where_call(error: BaseException) -> None:
    """Say what to write for `wf.where(condition)`, which gives places in NumPy and PyTorch."""
    if type(error) is TypeError and str(error).startswith("where() missing 2 required"):
        error.add_note(WHERE_NOTE)


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


def _shorten(error: BaseException, traceback: TracebackType | None) -> TracebackType | None:
    """What to show of a traceback: the user's frames of our own errors, all of any other."""
    _note_size_call(error, traceback)
    _note_where_call(error)
    if not isinstance(error, WeftError) or settings.full_tracebacks:
        return traceback
    short = user_frames(traceback)
    return traceback if short is None else short


def install() -> None:
    """Trim what Python and IPython print for uncaught errors of the framework, and nothing else."""
    before = sys.excepthook

    def hook(
        kind: type[BaseException], error: BaseException, traceback: TracebackType | None
    ) -> None:
        error.__traceback__ = short = _shorten(error, traceback)
        before(kind, error, short)

    sys.excepthook = hook
    if "IPython" in sys.modules:
        _install_in_notebook(sys.modules["IPython"].get_ipython())


def _install_in_notebook(shell: Any) -> None:
    """The same for cells, which do not ask `sys.excepthook`; a handler of the user's own stays."""
    if shell is None or shell.custom_exceptions:
        return

    def handler(shell: Any, kind: Any, error: Any, traceback: Any, tb_offset: Any = None) -> None:
        error.__traceback__ = short = _shorten(error, traceback)
        offset = tb_offset if short is traceback else 0  # the shell's own frames are gone, too
        shell.showtraceback((kind, error, short), tb_offset=offset)

    shell.set_custom_exc((WeftError, TypeError), handler)
