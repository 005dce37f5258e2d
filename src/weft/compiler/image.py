"""Images: tables of numbers and addresses as bytes that another process can use.

The tables of a program are int64 arrays. A word of theirs that is an address lies in one of the
arrays, in a constant, or is a native function; all other words are small. An image is all arrays
in a row, and where in it the addresses are. A word that is large and none of these is not
understood, and then there is no image.

>>> import numpy as np
>>> data, table = np.array([5, 6]), np.zeros(2, np.int64)
>>> table[:] = data.ctypes.data + 8, 3
>>> image = taken({0: table, 1: data}, plain=())
>>> where = image.places[0]
>>> memory = image.restored(lambda name: None)
>>> moved = memory[where : where + 2]
>>> int(moved[1]), int(moved[0]) == memory.ctypes.data + 8 * (image.places[1] + 1)
(3, True)
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from weft.compiler.origins import Origin, origin

Array = np.ndarray[Any, Any]
SMALL = 1 << 32
"""Numbers below this are no addresses."""
LINE = 8
"""Arrays begin at multiples of so many words."""


@dataclass(frozen=True, slots=True)
class Image:
    """Arrays in a row, in words of 8 bytes, and where addresses stand in them."""

    words: Array
    places: dict[Hashable, int]
    """Where each array begins."""
    inward: Array
    """Where the addresses of places in the image stand; they count bytes from its beginning."""
    outward: Array
    """Where addresses of functions stand; they count in `names`."""
    names: tuple[Origin, ...]

    def restored(self, find: Callable[[Origin], int | None]) -> Array | None:
        """The arrays in memory, with this process's addresses; None if a function is missing."""
        found = [find(name) for name in self.names]
        if None in found:
            return None
        memory = np.empty(len(self.words) + LINE, np.int64)
        skipped = -(memory.ctypes.data // 8) % LINE
        memory = memory[skipped : skipped + len(self.words)]
        memory[:] = self.words
        memory[self.inward] += memory.ctypes.data
        memory[self.outward] = np.array(found or [0], np.int64)[self.words[self.outward]]
        return memory


def taken(arrays: Mapping[Hashable, Array], plain: Iterable[Hashable]) -> Image | None:
    """The image of arrays, of which the `plain` ones hold no addresses; None if there is none."""
    places: dict[Hashable, int] = {}
    total = 0
    for key, array in arrays.items():
        places[key] = total
        total += -(-max(1, array.nbytes) // (8 * LINE)) * LINE
    words = np.zeros(total, np.int64)
    for key, array in arrays.items():
        view = words[places[key] :].view(np.uint8)
        view[: array.nbytes] = np.frombuffer(array.tobytes(), np.uint8)
    scanned = np.zeros(total, bool)
    for key in set(arrays) - set(plain):
        scanned[places[key] : places[key] + arrays[key].size] = True
    return _relocated(words, places, scanned, arrays)


def _relocated(
    words: Array, places: dict[Hashable, int], scanned: Array, arrays: Mapping[Hashable, Array]
) -> Image | None:
    """The image with addresses made relative."""
    keys = sorted(arrays, key=lambda key: arrays[key].ctypes.data)
    starts = np.array([arrays[key].ctypes.data for key in keys], np.int64)
    names: dict[Origin, int] = {}
    inward: list[int] = []
    outward: list[int] = []
    for position in np.flatnonzero(scanned & (np.abs(words) >= SMALL)).tolist():
        word = int(words[position])
        name = origin(word)
        if name is not None:
            outward.append(position)
            words[position] = names.setdefault(name, len(names))
            continue
        key = keys[int(np.searchsorted(starts, word, "right")) - 1]
        offset = word - int(arrays[key].ctypes.data)
        if not 0 <= offset < max(1, arrays[key].nbytes):
            return None
        inward.append(position)
        words[position] = 8 * places[key] + offset
    inside, outside = (np.array(each, np.int64) for each in (inward, outward))
    return Image(words, places, inside, outside, tuple(names))
