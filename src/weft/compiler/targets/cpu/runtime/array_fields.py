"""Where arrays lie in memory, and where in an array object that is said.

NumPy's way to say it makes a dictionary for each array, which takes longer than a small kernel. So
native functions (`entry_points.py`) read the address from the objects themselves. Where in an
object it stands is not assumed but looked up: in some arrays whose addresses are known.

>>> import numpy as np
>>> table, x = np.zeros(2, np.int64), np.ones(3)
>>> given = write_addresses([x, x[::2]], table.ctypes.data)
>>> bool(table[0] == x.ctypes.data), given[0] is x, given[1].flags.c_contiguous
(True, True, True)
"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Sequence
from functools import cache
from typing import Any

import numpy as np

from weft.core.records import frozen
from weft.runtime.object_words import places

Array = np.ndarray[Any, Any]


@frozen
class Fields:
    """How many bytes into an array object its class, data, flags and the rest stand.

    sizes: where the address of its sizes is, a word behind that of its elements and the number of
    axes, as in all versions of NumPy.
    """

    kind: int
    data: int
    flags: int
    dtype: int
    axes: int

    @property
    def sizes(self) -> int:
        """Where the address of an array's sizes stands."""
        return self.data + 2 * ctypes.sizeof(ctypes.c_void_p)

    @staticmethod
    def find_fields(arrays: Sequence[Array]) -> Fields | None:
        """The places that fit all these arrays, if there is one of each."""
        if sys.implementation.name != "cpython" or not arrays:
            return None
        kind = places(arrays, ctypes.c_int64, lambda array: id(type(array)))
        data = places(arrays, ctypes.c_int64, lambda array: array.ctypes.data)
        flags = places(arrays, ctypes.c_int32, lambda array: array.flags.num)
        dtype = places(arrays, ctypes.c_int64, lambda array: id(array.dtype))
        axes = places(arrays, ctypes.c_int32, lambda array: array.ndim)
        found = kind, data, flags, dtype, axes
        if any(len(each) != 1 for each in found):
            return None
        made = Fields(*[each[0] for each in found])
        return made if made.axes == made.data + ctypes.sizeof(ctypes.c_void_p) else None


def _words_at(address: int, count: int) -> list[int]:
    return list((ctypes.c_int64 * count).from_address(address))


@cache
def fields() -> Fields | None:
    """The places in this process; None where they cannot be told."""
    plain = [np.zeros(shape, kind) for shape in ((3,), (2, 5), ()) for kind in ("f4", "i8")]
    return Fields.find_fields([*plain, np.zeros((4, 6))[::2], np.zeros((3, 4)).T, plain[1][1:]])


def write_addresses(arrays: Sequence[Array], table: int, slots: int = 0) -> list[Array]:
    """Write the arrays' addresses to a table; the arrays, copied where they are not contiguous.

    slots: where the numbers are that say which address stands where; 0: one after the other.
    """
    given = [np.ascontiguousarray(a) if not a.flags.c_contiguous else a for a in arrays]
    order = _words_at(slots, len(given)) if slots else range(len(given))
    for place, array in zip(order, given, strict=True):
        ctypes.c_int64.from_address(table + 8 * place).value = array.__array_interface__["data"][0]
    return given
