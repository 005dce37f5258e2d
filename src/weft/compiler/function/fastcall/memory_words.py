"""Tables of memory words: whether tensors and containers hold what they held, in one native call.

A table names places in memory and what each must hold (`weft.runtime.object_words`). A function of
the target's goes through it in nanoseconds. Where in a tensor its array, node and gradient stand is
not assumed but looked up.

>>> import weft as wf
>>> x, same = wf.ones(3), comparison()
>>> table = tensor_words([x])
>>> before = same(table)
>>> other = x.copy_(wf.zeros(3))
>>> before, same(table)
(True, False)
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from functools import cache, partial
from typing import Any

import numpy as np

from weft.compiler.targets.target import default_target
from weft.core.unchanged import QUICKER, ChangeCount, Held
from weft.ir.tensor import Tensor, wrap
from weft.runtime.object_words import DICT, END, LIST, WORD, places

Array = np.ndarray[Any, Any]


VALUES = ("class", "value", "node", "gradient")
"""What a table of tensors has words for, in order, three of the table each."""


def comparison() -> Callable[[Array], bool] | None:
    """The function that goes through a table; None where there is none, or fastcall is off.

    From then on containers of modules are compared by it, too.
    """
    same = default_target().memory_comparison()
    if same is None or tensor_slots() is None:
        return None
    if not QUICKER:
        QUICKER.append(partial(container_check, same))
    return same


def container_check(same: Callable[[Array], bool], held: Sequence[Held]) -> Callable[[], bool]:
    """A native check of whether these containers hold these objects, which must stay alive."""
    return partial(same, np.array([*container_words(held), END], np.int64))


def container_words(held: Sequence[Held]) -> list[int]:
    """The words, without an end, of what these containers hold."""
    words: list[int] = []
    for container, objects in held:
        is_dict = isinstance(container, dict)
        count = len(objects) // 2 if is_dict else len(objects)
        words += (DICT if is_dict else LIST, id(container), count, *map(id, objects))
    return words


def count_words(changes: ChangeCount, number: int) -> list[int]:
    """The words, without an end, of a count of changes: while it is this very object.

    That must stay alive, or another number may come to lie where it is.
    """
    return [WORD, id(changes) + _count_place(), id(number)]


@cache
def _count_place() -> int:
    made = [ChangeCount() for _ in range(3)]
    for n, each in enumerate(made):
        each.count = 1 << 40 + n  # whose object nothing else holds
    return places(made, ctypes.c_int64, lambda each: id(each.count))[0]


def tensor_words(handles: Sequence[Tensor]) -> Array:
    """The table of what these tensors hold: array, place on the tape, and gradient.

    Their class comes first: while one stands for something else in some thread, its own attributes
    say nothing (`ir/lifting.py`).
    """
    slots = tensor_slots()
    assert slots is not None
    words: list[int] = []
    for x in handles:
        for place, held in zip(slots, (Tensor, x._value, x._node, x._grad), strict=True):
            words += (WORD, id(x) + place, id(held))
    return np.array([*words, END], np.int64)


@cache
def tensor_slots() -> tuple[int, ...] | None:
    """How many bytes into a tensor class, array, node and gradient stand, if that is found."""
    made = [wrap(np.zeros(n), object()) for n in range(3)]
    for x in made:
        x._grad = wrap(None)
    kind = places(made, ctypes.c_int64, lambda x: id(type(x)))
    value = places(made, ctypes.c_int64, lambda x: id(x._value))
    node = places(made, ctypes.c_int64, lambda x: id(x._node))
    gradient = places(made, ctypes.c_int64, lambda x: id(x._grad))
    found = kind, value, node, gradient
    return tuple(each[0] for each in found) if all(len(each) == 1 for each in found) else None
