"""Images: tables of numbers and addresses as bytes that another process can use.

The tables of a program are int64 arrays. A word of theirs that is an address lies in one of the
arrays, in a constant, or is a native function. An image is all arrays in a row, and where in it the
addresses are. A large word that is none of these is not understood, and then there is no image.

>>> import numpy as np
>>> def made():
...     data = np.array([5, 6])
...     return {0: np.array([data.ctypes.data + 8, 3]), 1: data}
>>> image = take_image(made(), made(), plain=())
>>> where = image.places[0]
>>> memory = image.restore_memory(lambda name: None)
>>> moved = memory[where : where + 2]
>>> int(moved[1]), int(moved[0]) == memory.ctypes.data + 8 * (image.places[1] + 1)
(3, True)
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from weft.compiler.targets.cpu.cache.symbols import Origin, origin
from weft.core.records import frozen

Array = np.ndarray[Any, Any]
SMALL = 1 << 32
"""Numbers below this are no addresses of functions, which are in memory that was mapped."""
LINE = 8
"""Arrays begin at multiples of so many words."""


@frozen
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

    def restore_memory(self, find: Callable[[Origin], int | None]) -> Array | None:
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


def take_image(
    arrays: Mapping[Hashable, Array], again: Mapping[Hashable, Array], plain: Iterable[Hashable]
) -> Image | None:
    """The image of arrays, of which the `plain` ones hold no addresses; None if there is none.

    `again` are the same arrays made a second time, while the first are there: what is a number is
    the same in both, what is the address of another array is not. The size of a number says
    nothing: where an interpreter is loaded at a fixed place, addresses are small.
    """
    places: dict[Hashable, int] = {}
    total = 0
    for key, array in arrays.items():
        places[key] = total
        total += -(-max(1, array.nbytes) // (8 * LINE)) * LINE
    scanned = np.zeros(total, bool)
    for key in set(arrays) - set(plain):
        scanned[places[key] : places[key] + arrays[key].size] = True
    both = [_in_a_row(each, places, total) for each in (arrays, again)]
    return _relocate_arrays(both, places, scanned, (arrays, again))


def _in_a_row(arrays: Mapping[Hashable, Array], places: dict[Hashable, int], total: int) -> Array:
    words = np.zeros(total, np.int64)
    for key, start in places.items():
        data = np.frombuffer(arrays[key].tobytes(), np.uint8)
        words[start:].view(np.uint8)[: data.size] = data
    return words


def _relocate_arrays(
    both: Sequence[Array],
    places: dict[Hashable, int],
    scanned: Array,
    arrays: Sequence[Mapping[Hashable, Array]],
) -> Image | None:
    """The image with addresses made relative; None if a word is neither known nor a number."""
    words, others = both
    first = arrays[0]
    keys = sorted(first, key=lambda key: first[key].ctypes.data)
    starts, moved = (np.array([each[key].ctypes.data for key in keys]) for each in arrays)
    sizes = np.array([max(1, first[key].nbytes) for key in keys])
    positions = np.flatnonzero(scanned & (words != 0))
    found = words[positions]
    owner = np.searchsorted(starts, found, "right") - 1
    offset = found - starts[owner]
    within = (owner >= 0) & (offset < sizes[owner])
    # in an array that was made twice, the word has moved with it; others are named by their start
    inside = within & (others[positions] - moved[owner] == offset)
    if (inside & (starts[owner] == moved[owner]) & (offset != 0)).any():
        return None
    names: dict[Origin, int] = {}
    outward: list[int] = []
    for position in positions[~inside & (np.abs(found) >= SMALL)].tolist():
        name = origin(int(words[position]))
        if name is None:
            return None
        outward.append(position)
        words[position] = names.setdefault(name, len(names))
    inward = positions[inside]
    starts_in_image = np.array([8 * places[key] for key in keys])
    words[inward] = starts_in_image[owner[inside]] + offset[inside]
    return Image(words, places, inward, np.array(outward, np.int64), tuple(names))
