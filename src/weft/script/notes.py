"""What the runtime remembers about values: which tensors stand for numbers, which names have none.

>>> from weft.script.notes import numbers
>>> len(numbers) >= 0
True
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from weft.core.locations import Location, user_frame, user_location
from weft.ir.tensor import Tensor
from weft.script import mistakes
from weft.script.regions import RECORDING
from weft.script.state import CONTAINERS, replace_contents

__all__: list[str] = []


class Marks:
    """A set of tensors by identity, which does not keep them; `==` of tensors is no help here."""

    def __init__(self) -> None:
        self._known: dict[int, weakref.ref[Tensor]] = {}

    def add(self, tensor: Tensor) -> None:
        """Mark a tensor."""
        key = id(tensor)
        self._known[key] = weakref.ref(tensor, lambda _: self._known.pop(key, None))

    def __contains__(self, value: object) -> bool:
        known = self._known.get(id(value))
        return known is not None and known() is value

    def __len__(self) -> int:
        return len(self._known)


numbers = Marks()
"""Tensors that stand for Python numbers: `x += y` gives a new value there."""


class _Missing(threading.local):
    """Reasons by file and name, for as long as the outermost scripted function runs."""

    def __init__(self) -> None:
        self.reasons: dict[tuple[str, str], tuple[str, Location | None]] = {}
        self.depth = 0


_missing = _Missing()


@contextmanager
def during_call() -> Iterator[None]:
    """A block in which a scripted function runs."""
    _missing.depth += 1
    try:
        yield
    finally:
        _missing.depth -= 1
        if _missing.depth == 0:
            _missing.reasons.clear()


def note_missing(name: str, reason: str) -> None:
    """Remember why a name of the function that is running may have no value."""
    frame = user_frame()
    if frame is not None:
        _missing.reasons[frame.f_code.co_filename, name] = reason, user_location()


def reason(file: str, name: str) -> tuple[str, Location | None] | None:
    """Why a name has no value, and where that was decided; None where it is not known."""
    return _missing.reasons.get((file, name))


def touch(owner: Any) -> None:
    """Tell the region being recorded that a container or object is about to be changed."""
    if RECORDING.journals and not isinstance(owner, Tensor):
        if not isinstance(owner, CONTAINERS) and not hasattr(owner, "__dict__"):
            raise mistakes.unknown_container(owner)
        RECORDING.journals[-1].touch(owner)


def replace(owner: Any, held: Any) -> None:
    """Change a container or object, and tell the region around."""
    touch(owner)
    replace_contents(owner, held)


def mark_raised(error: BaseException) -> None:
    """Remember that a `raise` of the user's made an error while a region was recorded."""
    error.__dict__["_weft_raised"] = True


def is_raised(error: BaseException) -> bool:
    """Whether a `raise` of the user's made an error."""
    return "_weft_raised" in error.__dict__
