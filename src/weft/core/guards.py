"""Guards: questions about symbolic sizes that were answered for the sizes of one call.

A function that is traced for all sizes may ask what only some sizes answer, such as `n == 7`. While
`Guards` are entered, the sizes of the call at hand give the answer, and question and answer are
kept: what was traced is right for those sizes only that give the same answers.

Code of this library compares sizes by structure, since it decides nothing by that: two sizes that
are told apart may still turn out equal. Any other code asks, because it will act upon the answer.

>>> from weft.core.dimensions import guard_holds, is_zero, symbol
>>> n = symbol("n")
>>> with Guards({"n": 7}) as guards:
...     is_zero(n - 7)
True
>>> [(str(guard.difference), guard.relation, guard.answer) for guard in guards.answers]
[('n - 7', 'zero', True)]
>>> [guard_holds(guard, {"n": size}) for guard in guards.answers for size in (6, 7)]
[False, True]
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from functools import lru_cache
from types import FrameType
from typing import TYPE_CHECKING, Literal

from weft.core.innermost import Innermost
from weft.core.records import frozen

if TYPE_CHECKING:
    from weft.core.dimensions import Dim

Relation = Literal["positive", "zero"]
INSIDE = frozenset(
    [
        "core", "runtime", "ir", "ops", "transforms", "compiler", "custom", "debug", "graph",
        "optim", "tools", "onnx.exporting", "deploy",
    ]
)  # fmt: skip
"""The parts of this library that compare sizes by structure; others ask, as users do.

Layers and models are written as users write them, and scripts compare in the name of users.
"""
_FORWARDING = frozenset(["__eq__", "__ne__", "__hash__"])
"""Methods of this library's own classes that pass a comparison on to the sizes they hold."""


@frozen
class Guard:
    """Whether a dimension is positive, or zero, for the sizes of the call that was traced."""

    difference: Dim
    relation: Relation
    answer: bool


class Guards(Innermost):
    """While entered, the sizes of a call, and the guards that were needed. The innermost counts."""

    def __init__(self, sizes: Mapping[str, int]) -> None:
        super().__init__()
        self.sizes = sizes
        self.answers: dict[Guard, None] = {}


def active_guards(names: frozenset[str] = frozenset()) -> Guards | None:
    """The guards that are entered, where they know the sizes of these symbols."""
    guards: Guards | None = Guards.innermost.get()
    return guards if guards is not None and names <= guards.sizes.keys() else None


def asked_outside() -> bool:
    """Whether the caller's caller decides something by the answer about a size."""
    frame: FrameType | None = sys._getframe(2)
    while frame is not None:
        part = _part(frame.f_globals.get("__name__", ""))
        if part not in INSIDE:
            return True
        if frame.f_code.co_name not in _FORWARDING or frame.f_globals is _dimensions():
            return False
        frame = frame.f_back
    return True


@lru_cache(maxsize=1024)
def _part(module: str) -> str:
    """The part of this library that a module belongs to; empty for any other module."""
    names = module.split(".")
    if names[0] != "weft" or len(names) == 1:
        return ""
    inner = ".".join(names[1:3])
    return inner if inner in INSIDE else names[1]


def _dimensions() -> dict[str, object] | None:
    module = sys.modules.get("weft.core.dimensions")
    return None if module is None else vars(module)
