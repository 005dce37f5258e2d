"""Copies of arrays that have gaps, or whose axes lie in memory in another order, on all threads.

How an array is copied depends on its shape and strides alone, and is found once for each.

>>> import numpy as np
>>> array = np.arange(32 * 48, dtype=np.float32).reshape(32, 48)
>>> [ordered_copy(each).flags.c_contiguous for each in (array.T, array[:, 8:24])]
[True, True]
>>> bool((ordered_copy(array.T) == array.T).all()), ordered_copy(array[:, ::2]) is None
(True, True)
"""

from __future__ import annotations

from typing import Any

import numpy as np

from weft.compiler.targets.cpu.engine import call_kernel
from weft.compiler.targets.cpu.runtime.entry_points import entries
from weft.compiler.targets.cpu.runtime.row_copies import RowForm, row_form
from weft.compiler.targets.cpu.runtime.transposed_copies import TurnedForm, turned_form

Array = np.ndarray[Any, Any]
KNOWN = 1024
"""How many ways are remembered before all are forgotten."""
Way = tuple[Array, int, list[int]]
"""What the interpreter's way of calling is given: a function and its numbers; and both apart."""
_ways: dict[Any, Way | None] = {}


def ordered_copy(array: Array) -> Array | None:
    """The array with its axes in order in memory and without gaps; None where NumPy is to copy."""
    key = array.dtype, array.shape, array.strides, array.flags.aligned
    try:
        way = _ways[key]
    except KeyError:
        way = _find_way(array)
        if len(_ways) >= KNOWN:
            _ways.clear()
        _ways[key] = way
    if way is None:
        return None
    copy = np.empty(array.shape, array.dtype)
    made = entries()
    if made is not None:
        made.call(way[0], array, copy)
    else:
        call_kernel(way[1], [array, copy], way[2])
    return copy


def _find_way(array: Array) -> Way | None:
    form: TurnedForm | RowForm | None = turned_form(array)
    if form is None:
        form = row_form(array.shape, array.strides, array.itemsize)
    if form is None:
        return None
    address, numbers = form.address, form.numbers
    return np.array([address, *numbers], np.int64), address, numbers
