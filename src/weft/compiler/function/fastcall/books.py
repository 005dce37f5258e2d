"""What native code is told to know eager calls again by: tensors, and what makes a call unusual.

>>> import weft as wf
>>> book = new_book()
>>> book is None or book.recall(wf.ones(3)) is None  # nothing is known yet
True
"""

from __future__ import annotations

import ctypes
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

import numpy as np

from weft.compiler.function.fastcall.memory_words import VALUES, tensor_slots
from weft.compiler.graph_passes import user_rules
from weft.compiler.targets.target import default_target
from weft.core.settings import Settings, settings
from weft.ir.autocast import AUTOCAST
from weft.ir.dispatch import OBSERVERS
from weft.ir.tensor import Tensor, grad_mode, traces, wrap
from weft.runtime.object_words import places

_SETTINGS = {
    "compiler": "compiler", "fastcall": "fastcall", "eager": "eager", "elements": "eager_elements",
}  # fmt: skip
"""What native code calls the settings that it looks at."""


def new_book() -> Any:
    """What knows the calls of one function, with none yet; None where native code has no books."""
    found = _places()
    if found is None or not settings.fastcall:
        return None
    return default_target().new_book(Tensor, _usual_objects(), found)


def _usual_objects() -> Mapping[str, Any]:
    """The objects by which it is told whether somebody traces, observes, casts or rewrites."""
    names = ("stack", "keeper", "device", "by_reference", "enabled")
    return {
        "handle_class": Tensor, "settings": settings, "settings_class": Settings,
        "native": "native", "observers": OBSERVERS, "rules": user_rules.STANDING,
        "no_rules": (), "only_rules": user_rules.ONLY, "autocast": AUTOCAST, "False": False,
        "traces": traces, "grad_mode": grad_mode, **{name: name for name in names},
    }  # fmt: skip


@cache
def _places() -> Mapping[str, int] | None:
    """How many bytes into tensors and settings attributes stand, if that is found."""
    slots = tensor_slots()
    made = [wrap(np.zeros(n)) for n in range(3)]
    for x in made:
        x._origin = object()
    chosen = [
        Settings(**{field: object() for field in _SETTINGS.values()})  # type: ignore[arg-type]
        for _ in range(3)
    ]
    origin = _places_of(made, "_origin")
    found = {name: _places_of(chosen, field) for name, field in _SETTINGS.items()}
    if slots is None or len(origin) != 1 or any(len(each) != 1 for each in found.values()):
        return None
    known = dict(zip(VALUES[1:], slots[1:], strict=True))
    return {**known, "origin": origin[0]} | {name: each[0] for name, each in found.items()}


def _places_of(objects: Sequence[Any], name: str) -> list[int]:
    return places(objects, ctypes.c_int64, lambda x: id(getattr(x, name)))
