"""Views by basic keys: integers, slices, new axes and an ellipsis, which NumPy itself reads.

Most reading by index is of this kind, so it is done without a `Selection` (`indexing.py`), which is
for messages and for everything else.

>>> import numpy as np
>>> basic_view(np.arange(6).reshape(2, 3), (1, slice(None, None, 2))).tolist()
[3, 5]
"""

from __future__ import annotations

from types import EllipsisType
from typing import Any

from weft.core.arrays import HostArray
from weft.ir.dispatch import OBSERVERS
from weft.ir.tape import record
from weft.ir.tensor import Tensor, traces, wrap
from weft.ops import movement
from weft.ops.composed.manipulation import reshape_known

BASIC = frozenset([int, slice, type(None), EllipsisType])


def basic_view(value: Any, key: tuple[Any, ...]) -> Any:
    """The view of an array that a basic key selects; None for any other key, and for wrong ones.

    On other devices a view is what lies there one element after the other.
    """
    if not BASIC.issuperset(map(type, key)):
        return None
    is_host_array = type(value) is HostArray
    if not is_host_array and not hasattr(value, "part"):
        return None
    layout = value if is_host_array else value.kind.layout
    try:
        shown = layout[key if Ellipsis in key else (*key, ...)]
    except (IndexError, TypeError, ValueError, OverflowError):
        return None
    return shown if is_host_array else value.part(shown)


def recorded_view(x: Tensor, items: tuple[Any, ...], view: Any) -> Tensor | None:
    """A view of a tensor of the host with its place on the tape; None where steps are negative.

    The key was read by NumPy, so that what `select` finds out for messages is left out here.
    """
    if traces.keeper is not None or OBSERVERS:
        return None
    value, bounds = x._value, list[tuple[int, int, int]]()
    for item in items:
        if item is Ellipsis:
            skipped = value.ndim - sum(each is not None for each in items) + 1
            bounds += [(0, dim, 1) for dim in value.shape[len(bounds) : len(bounds) + skipped]]
        elif item is not None:
            dim = value.shape[len(bounds)]
            if type(item) is int:
                place = item + dim if item < 0 else item
                bounds.append((place, place + 1, 1))
            else:
                start, stop, step = item.indices(dim)
                if step < 0:
                    return None
                bounds.append((start, stop, step) if start < stop else (0, 0, 1))
    bounds += [(0, dim, 1) for dim in value.shape[len(bounds) :]]
    part = x
    if bounds:
        starts, stops, strides = zip(*bounds, strict=True)
        part = wrap(value[tuple([slice(*each) for each in bounds])])
        if part.shape == x.shape:
            part = x
        else:
            params = {"starts": starts, "stops": stops, "strides": strides}
            record(movement.slice_, params, (x,), part)
    if view.shape != part.shape:
        reshaped = wrap(view)
        record(movement.reshape, {"shape": view.shape}, (part,), reshaped)
        return reshaped
    return reshape_known(x, x.shape) if part is x else part
