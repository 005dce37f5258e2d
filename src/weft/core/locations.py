"""Where in the user's code something happened.

A location is the innermost frame outside this package. It is taken when a graph node is recorded
and when an error is raised, never on the eager hot path.

>>> from weft.core.locations import Location
>>> print(Location("train.py", 41, "forward"))
train.py:41, in forward
"""

from __future__ import annotations

import linecache
import os
import sys
from dataclasses import field
from functools import lru_cache
from types import CodeType, FrameType

from weft.core.records import frozen
from weft.core.scopes import FORWARD, scopes

PACKAGE = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep
_LIBRARY = os.path.dirname(os.path.abspath(os.__file__)) + os.sep
_MACHINERY = (
    "<frozen", "<string>", _LIBRARY + "functools.py", _LIBRARY + "contextlib.py",
    _LIBRARY + "dataclasses.py", _LIBRARY + "copy.py", _LIBRARY + "weakref.py",
)  # fmt: skip


@frozen
class Location:
    """One place in a source file; columns are those of the expression, where Python knows them."""

    file: str
    line: int
    function: str
    column: int | None = None
    end_column: int | None = None
    module: str = field(default="", compare=False)
    """The modules that were being called, outermost first, joined by slashes."""
    phase: str = field(default=FORWARD, compare=False)

    def __str__(self) -> str:
        return f"{_short_path(self.file)}:{self.line}, in {self.function}"

    def source(self) -> str:
        """The source line with the expression underlined; empty where there is no source."""
        raw = linecache.getline(self.file, self.line).rstrip("\n")
        text = raw.lstrip()
        if not text:
            return ""
        if self.column is None or self.end_column is None:
            return text
        indent = len(raw) - len(text)
        start = max(self.column - indent, 0)
        width = max(min(self.end_column - indent, len(text)) - start, 1)
        return f"{text}\n{' ' * start}{'^' * width}"


PLACES = 8192
"""How many places are remembered: finding the columns of one takes a walk over its function."""
_places: dict[tuple[int, int, str, str], tuple[CodeType, Location]] = {}
"""Places by code, instruction and scope; the code is held, so that its identity stays its own."""


def user_location() -> Location | None:
    """Where the innermost frame outside this package is, or None when there is none."""
    frame = user_frame()
    return None if frame is None else frame_location(frame)


def node_location() -> Location | None:
    """`user_location` for a traced node; inside a scope also where all frames are internal."""
    frame = user_frame()
    if frame is None and (scopes.module or scopes.phase != FORWARD):
        frame = sys._getframe(1)
        while frame.f_back is not None:
            frame = frame.f_back
    return None if frame is None else frame_location(frame)


def user_frame() -> FrameType | None:
    """The innermost frame outside this package, or None when there is none."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and is_internal(frame.f_code.co_filename):
        frame = frame.f_back
    return frame


@lru_cache(maxsize=1024)
def is_internal(filename: str) -> bool:
    """Whether frames of this file are the framework's own and not the user's."""
    is_weft = os.path.basename(filename) == "weft"
    is_command = is_weft and os.path.abspath(filename) == os.path.abspath(sys.argv[0])
    machinery = any(part in filename for part in _MACHINERY)
    return filename.startswith(PACKAGE) or machinery or is_command  # the script that pip installs


def frame_location(frame: FrameType) -> Location:
    """The place a frame is at, with columns."""
    code = frame.f_code
    key = id(code), frame.f_lasti, scopes.module, scopes.phase
    known = _places.get(key)
    if known is None:
        if len(_places) >= PLACES:
            _places.clear()
        line, column, end_column = _position(code, frame.f_lasti)
        line = line or frame.f_lineno
        place = Location(code.co_filename, line, code.co_name, column, end_column, *key[2:])
        known = _places[key] = code, place
    return known[1]


def _position(code: CodeType, instruction: int) -> tuple[int | None, int | None, int | None]:
    for index, (line, end_line, column, end_column) in enumerate(code.co_positions()):
        if index == instruction // 2:
            return line, column, end_column if line == end_line else None
    return None, None, None


def _short_path(file: str) -> str:
    relative = os.path.relpath(file) if os.path.isabs(file) else file
    return file if relative.startswith("..") else relative
