"""Reading and writing by index: `x[key]` and `x[key] = value`, in all of NumPy's forms.

A key is read once, into a `Selection`: a slice of each axis, axes turned round, a shape with the
new axes in it and without the ones that integers removed, and index tensors that address axes of
that shape. Reading does these steps, writing undoes them; both are made of differentiable
primitives. A key without index tensors is a view: nothing is copied.

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
from dataclasses import dataclass, field
from typing import Any
from weakref import ref

import numpy as np

from weft.core.arrays import CONCRETE, HostArray, is_host
from weft.core.dimensions import is_zero
from weft.core.dtypes import INDEX, bool_, result_type
from weft.core.errors import (
    ArgumentError,
    ArgumentTypeError,
    AxisError,
    BoundsError,
    DTypeError,
    ShapeError,
    TraceError,
    short_repr,
)
from weft.core.records import frozen
from weft.core.shapes import Dim, Dimension, Shape, broadcast_shapes, equal
from weft.ir.constants import place_beside
from weft.ir.dispatch import apply
from weft.ir.elsewhere import device_unit
from weft.ir.number_arrays import number_array
from weft.ir.parts import as_part, living_origin
from weft.ir.tensor import Tensor, grad_mode, host_array, wrap
from weft.ops import movement
from weft.ops.arithmetic import add
from weft.ops.comparison import less
from weft.ops.composed.index_views import BASIC, basic_view, recorded_view
from weft.ops.composed.ingestion import ingest
from weft.ops.composed.manipulation import broadcast_known, reshape_known, transpose_known
from weft.ops.indexing import extent, gather, out_of_range, scatter
from weft.ops.movement import is_below
from weft.ops.movement_backs import inverse
from weft.ops.operands import Operand, array_tensor, as_tensor, convert_to, scalar_tensor
from weft.ops.placed_movement import Bounds, select_at
from weft.ops.selection import where

__all__: list[str] = []

OP = "index"
FULL = slice(None)


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
            return _selected_elements(x, key)
        if key.dtype is bool_ and type(key._value) is HostArray and not is_taped:
            return _masked_elements(x, key)
        return _select_by_program(x, key) if key.dtype.is_integer else _selected_elements(x, key)
    if BASIC.issuperset(map(type, items)):
        selected = select_at(x, key, view, lambda: _bounds(select(x, read_key(x, key))))
        return _selected_elements(x, key) if selected is None else as_part(selected, x, key)
    if not all(map(_is_known_beside_devices, items)):
        return _selected_elements(x, key)
    return _select_by_program(x, _with_placed_integers(x, key) if int in map(type, items) else key)


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
    _check_mask(x, mask, 0)
    if mask.ndim == 0 or mask.shape != x.shape[: mask.ndim]:
        return _selected_elements(x, mask)
    return wrap(x._value[mask._value])


_select_by_program = device_unit(_selected_elements)


def _with_placed_integers(x: Tensor, key: Any) -> tuple[Any, ...]:
    """A key of index tensors with its integers as numbers of the device.

    So one program serves all of them. One out of range is refused here.
    """
    items, axis, placed = read_key(x, key), 0, list[Any]()
    for item in items:
        if isinstance(item, int):
            place = _position(item, axis, x.shape[axis])
            placed.append(wrap(number_array(operator.index(place), INDEX.numpy, x.device)))
        else:
            placed.append(Ellipsis if isinstance(item, Whole) else item)
        axis += item.count if isinstance(item, Whole) else _rank(item)
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


# --- what a key selects ------------------------------------------------------------------------


@frozen
class Whole:
    """As many axes kept whole as an ellipsis stands for."""

    count: int


Item = int | slice | Tensor | Whole | None


@dataclass(slots=True)
class Selection:
    """What a key selects: slices, then flips, then a shape, then indices into that shape.

    `place` is where the indices' own axes stand in the result. `unique` says that no element is
    selected twice.
    """

    starts: list[Dimension] = field(default_factory=list)
    stops: list[Dimension] = field(default_factory=list)
    strides: list[Dimension] = field(default_factory=list)
    flips: list[int] = field(default_factory=list)
    cut: list[Dimension] = field(default_factory=list)
    dims: list[Dimension] = field(default_factory=list)
    indices: tuple[Tensor, ...] = ()
    axes: tuple[int, ...] = ()
    place: int = 0
    unique: bool = False

    @property
    def shape(self) -> Shape:
        """The shape that the indices address."""
        return tuple(self.dims)

    def add_slice(self, start: Dimension, stop: Dimension, stride: Dimension, flip: bool) -> None:
        """Select a stretch of the next axis of x."""
        if flip:
            self.flips.append(len(self.starts))
        self.starts.append(start)
        self.stops.append(stop)
        self.strides.append(stride)
        self.cut.append((stop - start + stride - 1) // stride)

    def order(self) -> tuple[int, ...]:
        """The axes of the result, as axes of what `gather` gives: the indices' own axes first."""
        own = self.indices[0].ndim
        others = range(own, own + len(self.dims) - len(self.axes))
        return (*others[: self.place], *range(own), *others[self.place :])

    def result_shape(self) -> Shape:
        """The shape of what is selected."""
        others = [dim for axis, dim in enumerate(self.dims) if axis not in self.axes]
        return (*others[: self.place], *self.indices[0].shape, *others[self.place :])


@frozen
class Point:
    """An index into a new axis of size 1, as which a mask without axes is read."""

    index: Tensor


def select(x: Tensor, items: Sequence[Item]) -> Selection:
    """Read the items of a key for a tensor."""
    known = _without_masks(x, items)
    advanced = any(isinstance(item, (Tensor, Point)) for item in known)
    selection = Selection(unique=_is_one_mask(items))
    index_tensors: list[Tensor] = []
    runs: set[int] = set()  # one number for each stretch of neighbouring indices
    for number, item in enumerate(known):
        if isinstance(item, (Tensor, Point)) or (advanced and isinstance(item, int)):
            index_tensors.append(_add_index(selection, x, item))
            runs.add(number - len(index_tensors))
        else:
            _add_basic(selection, x, item)
    if index_tensors:
        shape = broadcast_shapes(
            OP, [index.shape for index in index_tensors], _indices_by_name(index_tensors)
        )
        placed = [place_beside(index, x) for index in index_tensors]
        selection.indices = tuple([broadcast_known(index, shape) for index in placed])
        selection.place = selection.axes[0] if len(runs) == 1 else 0
    return selection


def _indices_by_name(indices: Sequence[Tensor]) -> dict[str, object]:
    return {f"index{i + 1}": index for i, index in enumerate(indices)}


def _add_basic(selection: Selection, x: Tensor, item: Any) -> None:
    axis = len(selection.starts)
    if item is None:
        selection.dims.append(1)
    elif isinstance(item, int):
        index = _position(item, axis, x.shape[axis])
        selection.add_slice(index, index + 1, 1, False)
    elif isinstance(item, Whole):
        for dim in x.shape[axis : axis + item.count]:
            selection.add_slice(0, dim, 1, False)
            selection.dims.append(dim)
    else:
        selection.add_slice(*_stretch(item, x.shape[axis]))
        selection.dims.append(selection.cut[-1])


def _add_index(selection: Selection, x: Tensor, item: Any) -> Tensor:
    """Keep an axis whole for an index, and give the index in the form that `gather` takes."""
    selection.axes += (len(selection.dims),)
    if isinstance(item, Point):
        selection.dims.append(1)
        return item.index
    axis = len(selection.starts)
    dim = x.shape[axis]
    selection.add_slice(0, dim, 1, False)
    selection.dims.append(dim)
    if isinstance(item, int):
        item = wrap(np.array(item))
    return from_the_front(OP, item, axis, dim)


def _position(index: int, axis: int, dim: Dimension) -> Dimension:
    if is_below(index, -dim) or is_below(dim - 1, index):
        raise out_of_range(OP, index, axis, dim)
    return index + dim if index < 0 else index


def from_the_front(op: str, index: Tensor, axis: int, dim: Dimension) -> Tensor:
    """Indices that may count from the end, as int64 that count from 0; refused where too large."""
    index = convert_to(index, INDEX)
    value = index._value
    if not is_host(value) or not isinstance(dim, int):
        return where(less(index, 0), add(index, extent(dim)), index)
    if value.size == 0:
        return index
    low, high = int(value.min()), int(value.max())
    if low < -dim or high >= dim:
        raise out_of_range(op, low if low < -dim else high, axis, dim)
    return wrap(np.where(value < 0, value + dim, value)) if low < 0 else index


def _stretch(item: slice, dim: Dimension) -> tuple[Dimension, Dimension, int, bool]:
    """Start, stop and positive stride of the elements, and whether they come in opposite order."""
    step = 1 if item.step is None else _integer_bound(item, item.step)
    if not isinstance(step, int) or step == 0:
        raise ArgumentError(
            OP,
            "a slice's step is 0 or not known",
            expected="a step other than 0",
            got={"slice": item},
            fix="x[::1] for every element, x[::-1] for the opposite order",
        )
    low, high = (0, dim) if step > 0 else (-1, dim - 1)
    start = _clamp_bound(item, item.start, dim, low, high, low if step > 0 else high)
    stop = _clamp_bound(item, item.stop, dim, low, high, high if step > 0 else low)
    if step < 0:
        count = _count(start - stop, -step)
        last = start + (count - 1) * step
        return (0, 0, 1, False) if is_zero(count) else (last, start + 1, -step, True)
    count = _count(stop - start, step)
    return (start, stop, step, False) if count != 0 else (0, 0, 1, False)


def _count(length: Dimension, step: int) -> Dimension:
    return 0 if length < 0 else (length + step - 1) // step


def _clamp_bound(
    item: slice, bound: Any, dim: Dimension, low: Dimension, high: Dimension, default: Dimension
) -> Dimension:
    """A slice's bound counted from the front and moved into the range that has elements."""
    if bound is None:
        return default
    place = _integer_bound(item, bound)
    if place < 0:
        place = place + dim
    if place < low:
        return low
    if place > high:
        return high
    return place


def _integer_bound(item: slice, bound: Any) -> Dimension:
    if isinstance(bound, (int, Dim)):
        return bound
    try:
        return operator.index(bound)
    except TypeError:
        raise ArgumentTypeError(
            OP,
            "a slice's bound is not an integer",
            expected="integers or None in slices",
            got={"slice": item},
            fix="round it down first: x[: int(n)], or x[: n // 2]",
        ) from None


# --- the items of a key ------------------------------------------------------------------------


def read_key(x: Tensor, key: Any) -> list[Item]:
    """The items of a key, with one for each axis of x, or for several that are kept whole."""
    items = [_item(each) for each in key] if isinstance(key, tuple) else [_item(key)]
    used = sum(_rank(item) for item in items)
    ellipses = [index for index, item in enumerate(items) if isinstance(item, Whole)]
    if used > x.ndim:
        raise AxisError(
            OP,
            f"{used} indices for {x.ndim} axes",
            expected=f"at most {x.ndim} indices",
            got={"x": x},
            fix=f"leave {used - x.ndim} out, or add axes first: x[..., None]",
        )
    if len(ellipses) > 1:
        raise ArgumentError(
            OP,
            "more than one ellipsis",
            expected="at most one ...",
            got={"x": x},
            fix="write the axes out: x[:, :, 0]",
        )
    whole = Whole(x.ndim - used)
    if ellipses:
        items[ellipses[0]] = whole
    elif whole.count:
        items.append(whole)
    return items


def _rank(item: Item) -> int:
    """How many axes an item takes."""
    if item is None or isinstance(item, Whole):
        return 0
    return item.ndim if isinstance(item, Tensor) and item.dtype is bool_ else 1


def _item(item: Any) -> Item:
    if item is None or isinstance(item, slice):
        return item
    if item is Ellipsis:
        return Whole(0)
    if isinstance(item, (int, np.integer)) and not isinstance(item, bool):
        return int(item)
    index = item if isinstance(item, Tensor) else _index_tensor(item)
    if index.dtype is not bool_ and not index.dtype.is_integer:
        raise DTypeError(
            OP,
            "indices are neither integers nor booleans",
            expected="integers, or a mask of booleans",
            got={"index": index},
            fix='convert first: x[index.astype("int64")]',
        )
    if index.ndim == 0 and index.dtype.is_integer and is_host(index._value):
        return int(index._value)
    return index


def _index_tensor(item: Any) -> Tensor:
    """A tensor of what stands for several indices: a list, an array, a truth value."""
    if isinstance(item, (bool, np.ndarray, np.generic, list, tuple, range)):
        try:
            array = np.asarray(item)
        except (ValueError, MemoryError, RecursionError):
            array = np.asarray(None)
        if array.size == 0 and isinstance(item, (list, tuple)):
            array = array.astype(np.int64)
        if array.dtype.kind in "biufc":
            return array_tensor(OP, array)
    raise ArgumentTypeError(
        OP,
        f"{type(item).__name__} is not an index",
        expected="integers, slices, None, ..., and tensors or lists of integers or booleans",
        got={"index": short_repr(item)},
        fix="convert it first: x[int(i)]"
        if isinstance(item, float)
        else "x[0], x[1:3], x[..., None], x[[0, 2]], x[x > 0]",
    )


# --- masks -------------------------------------------------------------------------------------


def _is_one_mask(items: Sequence[Item]) -> bool:
    tensors = [item for item in items if isinstance(item, Tensor)]
    return len(tensors) == 1 and (tensors[0].dtype is bool_ or tensors[0].size == 1)


def _without_masks(x: Tensor, items: Sequence[Item]) -> list[Any]:
    """The items with each mask replaced by the places where it is true."""
    known: list[Any] = []
    axis = 0
    for item in items:
        if isinstance(item, Tensor) and item.dtype is bool_:
            _check_mask(x, item, axis)
            known += _mask_places(item)
        else:
            known.append(item)
        axis += item.count if isinstance(item, Whole) else _rank(item)
    return known


def _check_mask(x: Tensor, mask: Tensor, axis: int) -> None:
    """Require that the mask's sizes are those of x or, as the Array API allows, 0."""
    dims = x.shape[axis : axis + mask.ndim]
    if not all(a == 0 or equal(a, b) for a, b in zip(mask.shape, dims, strict=True)):
        raise BoundsError(
            OP,
            "the mask does not have the shape of what it masks",
            expected=f"a mask of shape {list(dims)}",
            got={"x": x, "mask": mask},
            fix=f"make the mask from the same axes of x, here from axis {axis} on",
        )


def _mask_places(mask: Tensor) -> list[Any]:
    truth = concrete_mask(OP, mask)
    if truth.ndim == 0:
        return [Point(wrap(np.zeros(int(truth), np.int64)))]
    return [wrap(places) for places in np.nonzero(truth)]


def concrete_mask(op: str, mask: Tensor) -> np.ndarray[Any, Any]:
    """The values that decide how many elements there are, or why they are not to be had."""
    try:
        return host_array(mask, op)
    except TraceError:
        raise TraceError(
            op,
            "how many elements this gives depends on values that a trace does not have",
            expected="a concrete tensor, or an operation whose result has a fixed shape",
            got={"mask": mask},
            fix="keep the shape and choose by wf.where(mask, x, 0.0)",
        ) from None


def _write_masked(x: Tensor, items: Sequence[Item], value: Tensor) -> Tensor | None:
    """x[mask] = value by `where`, for a key of one mask and a value that is one for its places."""
    tensors = [item for item in items if isinstance(item, Tensor)]
    others = [item for item in items if not isinstance(item, (Tensor, Whole)) and item != FULL]
    if others or len(tensors) != 1 or tensors[0].dtype is not bool_:
        return None
    mask = tensors[0]
    before = itertools.takewhile(lambda item: item is not mask, items)
    axis = sum(item.count if isinstance(item, Whole) else 1 for item in before)
    _check_mask(x, mask, axis)
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
