"""What a key of `x[key]` says, in all of NumPy's forms.

A key is read once, into a `Selection`: a slice of each axis, axes turned round, a shape with the
new axes in it and without the ones that integers removed, and index tensors that address axes of
that shape.

>>> import weft as wf
>>> x = wf.zeros((4, 5))
>>> select(x, read_key(x, (slice(1, None), None, [0, 2]))).result_shape()
(3, 1, 2)
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from weft.core.arrays import is_host
from weft.core.dimensions import is_zero
from weft.core.dtypes import INDEX, bool_
from weft.core.errors import (
    ArgumentError,
    ArgumentTypeError,
    AxisError,
    BoundsError,
    DTypeError,
    TraceError,
    short_repr,
)
from weft.core.records import frozen
from weft.core.shapes import Dim, Dimension, Shape, broadcast_shapes, equal
from weft.ir.constants import place_beside
from weft.ir.tensor import Tensor, host_array, wrap
from weft.ops.arithmetic import add
from weft.ops.comparison import less
from weft.ops.composed.manipulation import broadcast_known
from weft.ops.indexing import extent, out_of_range
from weft.ops.movement import is_below
from weft.ops.operands import array_tensor, convert_to
from weft.ops.selection import where

__all__: list[str] = []

OP = "index"
FULL = slice(None)


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
        index = position_of(item, axis, x.shape[axis])
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


def position_of(index: int, axis: int, dim: Dimension) -> Dimension:
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
    used = sum(axes_taken(item) for item in items)
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


def axes_taken(item: Item) -> int:
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
            check_mask(x, item, axis)
            known += _mask_places(item)
        else:
            known.append(item)
        axis += item.count if isinstance(item, Whole) else axes_taken(item)
    return known


def check_mask(x: Tensor, mask: Tensor, axis: int) -> None:
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
