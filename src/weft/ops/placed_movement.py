"""Calls of movement on other devices with their places as data: one program for all of them.

A slice, a write to a slice and what is laid among zeros depend on sizes and strides; where they
begin is given to the program as numbers. Results, errors and derivatives are those of `slice`,
`update_slice` and `pad`, which is what traces and tapes hold: see `PLACED` in ir/elsewhere.py.

>>> call = slice_call((4, 6), starts=(0, 2), stops=(4, 3), strides=(1, 1))
>>> call.places, call.options
((2,), ((1,), (4, 1), (1, 1)))
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Sequence
from typing import Any

from weft.core.dtypes import INDEX
from weft.core.records import frozen
from weft.ir.call_keys import plain_key
from weft.ir.dispatch import OBSERVERS, apply
from weft.ir.eager import FORMS, Forms, is_native
from weft.ir.elsewhere import PLACED, PlacedCall
from weft.ir.number_arrays import number_array
from weft.ir.tensor import Tensor, traces, wrap
from weft.ops.boxes import dynamic_update_slice
from weft.ops.movement import flip, reshape, update_slice
from weft.ops.operands import scalar_tensor
from weft.ops.placed_boxes import lay_at, slice_at

__all__: list[str] = []

Ints = tuple[int, ...]


def slice_call(shape: Ints, *, starts: Ints, stops: Ints, strides: Ints) -> PlacedCall | None:
    """A slice of a tensor of a shape."""
    bounds = zip(starts, stops, strides, strict=True)
    counts = tuple([-(-(stop - start) // stride) for start, stop, stride in bounds])
    return _call_at(_slice_at, shape, starts, _spans(counts, strides), counts, strides)


def update_call(shape: Ints, update: Ints, *, starts: Ints, strides: Ints) -> PlacedCall | None:
    """A tensor laid over a slice of another one."""
    spans = _spans(update, strides)
    return _call_at(_update_at, shape, starts, spans, spans, strides)


def pad_call(shape: Ints, *, padding: tuple[Ints, ...], value: Any) -> PlacedCall | None:
    """A tensor among zeros; other numbers are parts of their programs, and so are places then."""
    is_zero = isinstance(value, (int, float)) and value == 0 and math.copysign(1, value) > 0
    if not is_zero:
        return None
    strides = tuple([between + 1 for _, _, between in padding])
    spans, starts = _spans(shape, strides), [low for low, _, _ in padding]
    whole = tuple([low + n + high for n, (low, high, _) in zip(spans, padding, strict=True)])
    return _call_at(_lay_at, whole, starts, spans, whole, strides)


def _spans(counts: Ints, strides: Ints) -> Ints:
    """How much of each axis elements cover that stand strides apart."""
    axes = zip(counts, strides, strict=True)
    return tuple([(count - 1) * stride + 1 if count else 0 for count, stride in axes])


def _call_at(
    function: Any, whole: Ints, starts: Sequence[int], spans: Ints, *options: Any
) -> PlacedCall | None:
    """A function of a box in a shape; None where nothing of it is a place, or it has no elements.

    An axis that the box covers has no place.
    """
    along = tuple([axis for axis, dim in enumerate(whole) if spans[axis] != dim])
    if not along or 0 in spans:
        return None
    return PlacedCall(function, tuple([starts[axis] for axis in along]), (along, *options))


def _slice_at(x: Tensor, places: list[Tensor], along: Ints, sizes: Ints, strides: Ints) -> Tensor:
    return apply(slice_at, x, *places, along=along, sizes=sizes, strides=strides, shape=sizes)


def _lay_at(x: Tensor, places: list[Tensor], along: Ints, shape: Ints, strides: Ints) -> Tensor:
    box = {"along": along, "sizes": x.shape, "strides": strides}
    return apply(lay_at, x, *places, **box, shape=shape)


def _update_at(
    x: Tensor, update: Tensor, places: list[Tensor], along: Ints, sizes: Ints, strides: Ints
) -> Tensor:
    given, zero = dict(zip(along, places, strict=True)), scalar_tensor("update_slice", 0, INDEX)
    if any(stride != 1 for stride in strides):  # the elements between are written as they are
        ones = (1,) * x.ndim
        box = _slice_at(x, places, along, sizes, ones)
        update = apply(update_slice, box, update, starts=(0,) * x.ndim, strides=strides)
    starts = [given.get(axis, zero) for axis in range(x.ndim)]
    return apply(dynamic_update_slice, x, update, *starts)


# --- whole keys ----------------------------------------------------------------------------------


@frozen
class Bounds:
    """What a key of integers, slices and new axes selects: a slice, axes turned round, a shape."""

    starts: Ints
    stops: Ints
    strides: Ints
    flips: Ints
    shape: Ints


Known = tuple[Any, list[Tensor]]
"""What runs a selection, and its places; None for one that is as written."""
_selections: dict[Hashable, Known] = {}


def select_at(x: Tensor, key: Any, view: Any, read: Callable[[], Bounds]) -> Tensor | None:
    """The elements of a device's tensor that a key selects, as one unit; None where it is none.

    view: the array of the elements where they lie one after the other, so that there is only their
    place on the tape to be found. read: what the key selects, for one that is not known.
    """
    if traces.stack or OBSERVERS or traces.keeper is not None or not is_native():
        return None
    known_by, _ = plain_key((x, key), {})
    found = None if known_by is None else _selections.get(known_by)
    if found is None:
        found = _find_selection(x, read())
        if known_by is not None:
            if len(_selections) >= FORMS:
                _selections.clear()
            _selections[known_by] = found
    run, places = found
    if run is None:
        return None
    if view is None:
        selected: Tensor = run([x, *places])
        return selected
    part = wrap(view)
    return part if run.attach([x, *places], [part]) else None


def _find_selection(x: Tensor, bounds: Bounds) -> Known:
    shape: Any = x.shape
    call = slice_call(shape, starts=bounds.starts, stops=bounds.stops, strides=bounds.strides)
    if call is None:  # nothing is a place: a program of its own, or none
        return None, []
    numbers = [wrap(number_array(place, INDEX.numpy, x.device)) for place in call.places]
    options = *call.options, bounds.flips, bounds.shape
    run: Any = _selecting.find((x, numbers, *options), {})[0]
    return (run, numbers) if hasattr(run, "attach") else (None, [])


def _selected_at(
    x: Tensor,
    places: list[Tensor],
    along: Ints,
    sizes: Ints,
    strides: Ints,
    flips: Ints,
    shape: Ints,
) -> Tensor:
    if not flips:
        box = {"along": along, "sizes": sizes, "strides": strides}
        return apply(slice_at, x, *places, **box, shape=shape)
    turned = apply(flip, _slice_at(x, places, along, sizes, strides), axes=flips)
    return apply(reshape, turned, shape=shape)


_selecting = Forms(_selected_at)


PLACED |= {"slice": slice_call, "update_slice": update_call, "pad": pad_call}
