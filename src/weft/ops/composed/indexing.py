"""Reading and writing by index: `x[key]` and `x[key] = value`, in all of NumPy's forms.

A key is read once, into a `Selection` (`index_keys.py`). Reading does its steps, writing undoes
them; both are made of differentiable primitives. A key without index tensors is a view: nothing is
copied.

An index out of range is an error, in traces too. A mask decides a shape by its values, so reading
through it needs concrete values; writing one number through it does not.

>>> import weft as wf
>>> x = wf.reshape(wf.arange(6), (2, 3))
>>> x[1, ::-1].tolist(), x[:, wf.tensor([0, 2])].tolist(), x[x > 3].tolist()
([5, 4, 3], [[0, 2], [3, 5]], [4, 5])
"""

from __future__ import annotations

import itertools
import operator
from collections.abc import Sequence
from typing import Any
from weakref import ref

from weft.core.arrays import CONCRETE, HostArray
from weft.core.dimensions import is_zero
from weft.core.dtypes import INDEX, bool_, result_type
from weft.core.errors import (
    DTypeError,
    ShapeError,
)
from weft.core.shapes import Shape
from weft.ir.constants import place_beside
from weft.ir.dispatch import apply
from weft.ir.eager import is_large_for_units
from weft.ir.elsewhere import device_unit
from weft.ir.number_arrays import number_array
from weft.ir.parts import as_part, living_origin
from weft.ir.tensor import Tensor, grad_mode, wrap
from weft.ops import movement
from weft.ops.composed.index_keys import (
    FULL,
    OP,
    Item,
    Selection,
    Whole,
    axes_taken,
    check_mask,
    position_of,
    read_key,
    select,
)
from weft.ops.composed.index_views import BASIC, basic_view, recorded_view
from weft.ops.composed.ingestion import ingest
from weft.ops.composed.manipulation import broadcast_known, reshape_known, transpose_known
from weft.ops.indexing import gather, scatter
from weft.ops.movement_backs import inverse
from weft.ops.operands import Operand, as_tensor, convert_to, scalar_tensor
from weft.ops.placed_movement import Bounds, select_at
from weft.ops.selection import where

__all__: list[str] = []


def getitem(x: Tensor, key: Any, /) -> Tensor:
    """The elements of x that a key selects."""
    value, items = x._value, key if type(key) is tuple else (key,)
    if type(value) not in CONCRETE:
        return _selected_elements(x, key)
    is_taped = x._node is not None and grad_mode.enabled
    view = basic_view(value, items)
    if view is not None and not is_taped:
        part = wrap(view)
        part._origin = (ref(x), key, x._origin and living_origin(x._origin))
        return part
    if type(value) is HostArray:
        recorded = None if view is None else recorded_view(x, items, view)
        if recorded is not None:
            return as_part(recorded, x, key)
        if type(key) is not Tensor or x.ndim == 0:
            placed = _with_placed_indices(x, key) if is_large_for_units(value.size) else None
            return _selected_elements(x, key) if placed is None else _select_by_program(x, placed)
        if key.dtype is bool_ and type(key._value) is HostArray and not is_taped:
            return _masked_elements(x, key)
        return _select_by_program(x, key) if key.dtype.is_integer else _selected_elements(x, key)
    if BASIC.issuperset(map(type, items)):
        selected = select_at(x, key, view, lambda: _bounds(select(x, read_key(x, key))))
        return _selected_elements(x, key) if selected is None else as_part(selected, x, key)
    if not all(map(_is_known_beside_devices, items)):
        return _selected_elements(x, key)
    if int in map(type, items):
        key = _with_placed_integers(x, read_key(x, key))
    return _select_by_program(x, key)


def _bounds(selection: Selection) -> Bounds:
    given: Any = selection  # of a device's tensor: without symbols
    places = tuple(given.starts), tuple(given.stops), tuple(given.strides)
    return Bounds(*places, tuple(given.flips), given.shape)


def _selected_elements(x: Tensor, key: Any) -> Tensor:
    selection = select(x, read_key(x, key))
    if not selection.indices:
        return as_part(_basic_view(x, selection), x, key)
    gathered = apply(gather, _basic_view(x, selection), *selection.indices, axes=selection.axes)
    return transpose_known(gathered, selection.order())


def _masked_elements(x: Tensor, mask: Tensor) -> Tensor:
    """The elements where a mask is true: of arrays of the host, which NumPy finds at once."""
    read_key(x, mask)
    check_mask(x, mask, 0)
    if mask.ndim == 0 or mask.shape != x.shape[: mask.ndim]:
        return _selected_elements(x, mask)
    return wrap(x._value[mask._value])


_select_by_program = device_unit(_selected_elements)


def _with_placed_indices(x: Tensor, key: Any) -> tuple[Any, ...] | None:
    """A key of index tensors and whole axes, which one program serves whatever the places are.

    None for other keys: those without index tensors, and those with masks or parts of axes.
    """
    items = read_key(x, key)
    tensors = [item for item in items if isinstance(item, Tensor)]
    is_part = any(isinstance(item, slice) and item != FULL for item in items)
    is_placed = tensors and not is_part and all(each.dtype is not bool_ for each in tensors)
    return _with_placed_integers(x, items) if is_placed else None


def _with_placed_integers(x: Tensor, items: Sequence[Item]) -> tuple[Any, ...]:
    """A key of index tensors with its integers as numbers of the device.

    So one program serves all of them. One out of range is refused here.
    """
    axis, placed = 0, list[Any]()
    for item in items:
        if isinstance(item, int):
            place = position_of(item, axis, x.shape[axis])
            placed.append(wrap(number_array(operator.index(place), INDEX.numpy, x.device)))
        else:
            placed.append(Ellipsis if isinstance(item, Whole) else item)
        axis += item.count if isinstance(item, Whole) else axes_taken(item)
    return tuple(placed)


def _is_known_beside_devices(item: Any) -> bool:
    """Whether an item of a key can be part of a program of a device: no values of the host."""
    return type(item) in BASIC or (type(item) is Tensor and type(item._value) is not HostArray)


def with_update(x: Tensor, key: Any, value: Operand, /) -> Tensor:
    """The tensor that x is after x[key] = value: the value is broadcast, and gets x's dtype."""
    new = place_beside(_new_value(x, value), x)
    items = read_key(x, key)
    masked = _write_masked(x, items, new)
    if masked is not None:
        return masked
    selection = select(x, items)
    if not selection.indices:
        return _write_view(x, selection, _broadcast_value(x, new, selection.shape))
    filled = _broadcast_value(x, new, selection.result_shape())
    base = _basic_view(x, selection)
    changed = apply(
        scatter,
        base,
        transpose_known(filled, inverse(selection.order())),
        *selection.indices,
        axes=selection.axes,
        unique=selection.unique,
    )
    return _write_view(x, selection, changed)


def _write_masked(x: Tensor, items: Sequence[Item], value: Tensor) -> Tensor | None:
    """x[mask] = value by `where`, for a key of one mask and a value that is one for its places."""
    tensors = [item for item in items if isinstance(item, Tensor)]
    others = [item for item in items if not isinstance(item, (Tensor, Whole)) and item != FULL]
    if others or len(tensors) != 1 or tensors[0].dtype is not bool_:
        return None
    mask = tensors[0]
    before = itertools.takewhile(lambda item: item is not mask, items)
    axis = sum(item.count if isinstance(item, Whole) else 1 for item in before)
    check_mask(x, mask, axis)
    if mask.shape != x.shape[axis : axis + mask.ndim] and 0 in mask.shape:
        return None
    after = x.ndim - axis - mask.ndim
    split = value.ndim - after  # the axes of the value that come before those after the mask
    if split > 0:
        if value.shape[split - 1] != 1 or value.ndim > axis + 1 + after:
            return None
        spread = (*value.shape[: split - 1], *[1] * mask.ndim, *value.shape[split:])
        value = reshape_known(value, spread)
    fitting = reshape_known(mask, mask.shape + (1,) * after)
    return where(fitting, _broadcast_value(x, value, x.shape), x)


# --- reading and writing -----------------------------------------------------------------------


def _basic_view(x: Tensor, selection: Selection) -> Tensor:
    """What the slices and new axes of a key select, before its indices."""
    if tuple(selection.cut) != x.shape or any(stride != 1 for stride in selection.strides):
        x = apply(
            movement.slice_,
            x,
            starts=tuple(selection.starts),
            stops=tuple(selection.stops),
            strides=tuple(selection.strides),
        )
    if selection.flips:
        x = apply(movement.flip, x, axes=tuple(selection.flips))
    return reshape_known(x, selection.shape)


def _write_view(x: Tensor, selection: Selection, value: Tensor) -> Tensor:
    """x with what `_basic_view` reads replaced."""
    value = reshape_known(value, tuple(selection.cut))
    if selection.flips:
        value = apply(movement.flip, value, axes=tuple(selection.flips))
    if tuple(selection.cut) == x.shape:
        return value
    starts, strides = tuple(selection.starts), tuple(selection.strides)
    return apply(movement.update_slice, x, value, starts=starts, strides=strides)


def _new_value(x: Tensor, value: Operand) -> Tensor:
    """The value to write, in x's dtype; refused if x could hold only part of it."""
    if isinstance(value, (list, tuple)):
        value = ingest(OP, value, x.dtype if x.dtype.is_inexact else None)[0]
    if type(value) in (bool, int) or (type(value) is float and x.dtype.is_inexact):
        return scalar_tensor(OP, value, x.dtype)
    if type(value) is complex and x.dtype.is_complex:
        return scalar_tensor(OP, value, x.dtype)
    new = as_tensor(OP, value, "value")
    kinds = ("inexact", "complex")
    if any(getattr(new.dtype, f"is_{k}") > getattr(x.dtype, f"is_{k}") for k in kinds):
        wider = result_type(OP, [x.dtype, new.dtype]).name
        raise DTypeError(
            OP,
            f"{x.dtype.name} can hold only part of a {new.dtype.kind} number",
            expected=f"values that {x.dtype.name} can hold",
            got={"x": x, "value": value},
            fix=f'convert x first: x = x.astype("{wider}")',
        )
    return convert_to(new, x.dtype)


def _broadcast_value(x: Tensor, value: Tensor, shape: Shape) -> Tensor:
    """The value broadcast to the shape of what it is written to."""
    extra = value.ndim - len(shape)
    if extra > 0 and all(is_zero(dim - 1) for dim in value.shape[:extra]):
        value = reshape_known(value, value.shape[extra:])
    try:
        return broadcast_known(value, shape)
    except ShapeError:
        raise ShapeError(
            OP,
            "the value does not broadcast to what it is written to",
            expected=f"a value that broadcasts to {list(shape)}",
            got={"x": x, "value": value},
            fix=f"give it that shape first: value.reshape({shape})",
        ) from None
