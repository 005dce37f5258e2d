"""Objects of the interpreter as words of memory: where a word stands, and tables of what it is.

A table names places in memory and what each must hold, part by part, up to `END`: `WORD` is
followed by an address and the word there; `DICT` and `LIST` by the container's address, how many
items it has, and the addresses of its keys and values, or items. Native code goes through such a
table in nanoseconds; what it finds is whether all is as the table says.

>>> held = [[1], [2]]
>>> len(places(held, ctypes.c_int64, lambda items: id(type(items))))  # where a list says its class
1
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

__all__ = ["DICT", "END", "LIST", "WORD", "places"]

T = TypeVar("T")
END, WORD, DICT, LIST = 0, 1, 2, 3
"""What stands first in each part of a table: nothing more, a word, a container."""


def places(objects: Sequence[T], word: Any, wanted: Callable[[T], int]) -> list[int]:
    """How many bytes into each of some objects of a class a word has the value wanted."""
    size = ctypes.sizeof(word)
    return [
        at
        for at in range(0, type(objects[0]).__basicsize__ - size + 1, size)
        if all(word.from_address(id(x) + at).value == wanted(x) for x in objects)
    ]
