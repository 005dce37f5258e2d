"""Slices, their opposite and rolls at places that are data, for programs that serve all places.

Eager work on other devices than the host has a program for each call (`ir/elsewhere.py`). One for
each start of a slice would make a loop over the steps of a sequence compile at every step, so these
take starts as operands. A place is an int64 tensor without axes for each axis of `along`; it must
lie inside, as who asks for the call has checked: no kernel looks. A box has `sizes`, with elements
`strides` apart; outside of the tensor that it is a part of, its elements may have any `shape`.

>>> from weft.ir.dispatch import apply
>>> import weft as wf
>>> x, start = wf.arange(6), wf.tensor(3)
>>> apply(slice_at, x, start, along=(0,), sizes=(2,), strides=(2,), shape=(2,)).tolist()
[3, 5]
>>> apply(roll_at, x, start, along=(0,), back=False).tolist()
[3, 4, 5, 0, 1, 2]
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from weft.core.dtypes import INDEX
from weft.core.errors import ArgumentError, DTypeError
from weft.core.shapes import Dimension, Shape, equal, size
from weft.core.types import TensorType
from weft.ir.batching import to_front
from weft.ir.dispatch import apply
from weft.ir.kinds import Gather, Scatter
from weft.ir.primitive import Mistake, Primitive, Sample
from weft.ir.reverse import filled_tensor
from weft.ir.tensor import Tensor
from weft.ops import sharding_rules as shardings
from weft.ops.arithmetic import add, multiply
from weft.ops.comparison import less
from weft.ops.indexing import along_front, count_up, gather, linear_in_elements, scatter
from weft.ops.movement import broadcast_to, reshape, span
from weft.ops.selection import where

__all__: list[str] = []

Array = np.ndarray[Any, Any]
Axes = tuple[int, ...]


# --- what they share -----------------------------------------------------------------------------


def _check(op: str, x: TensorType, places: Sequence[TensorType], along: Axes, fits: bool) -> None:
    got = {"x": x, **{f"place{i}": place for i, place in enumerate(places)}}
    if any(place.ndim or place.dtype is not INDEX for place in places):
        raise DTypeError(
            op,
            f"places must be {INDEX.name} without axes",
            expected=f"{INDEX.name}[] for each axis",
            got=got,
            fix=f'convert first: wf.asarray(place, dtype="{INDEX.name}")',
        )
    is_distinct = len(set(along)) == len(along) and set(along) <= set(range(x.ndim))
    if len(places) != len(along) or not is_distinct or not fits:
        raise ArgumentError(
            op,
            "places, axes and sizes do not go together",
            expected="a place for each axis of `along`, and a box that the tensor has room for",
            got={**got, "along": along},
            fix="index the tensor: x[start:stop:step]",
        )


def _fits(inner: Shape, outer: Shape, strides: Shape) -> bool:
    """Whether elements that stand strides apart fit into a shape."""
    if not len(inner) == len(outer) == len(strides) or any(stride < 1 for stride in strides):
        return False
    axes = zip(inner, outer, strides, strict=True)
    return all(span(count, stride) <= dim for count, dim, stride in axes)


def _box(places: Sequence[Array], along: Axes, sizes: Shape, strides: Shape) -> tuple[slice, ...]:
    """The slices that show the elements of a box."""
    starts = [0] * len(sizes)
    for axis, place in zip(along, places, strict=True):
        starts[axis] = int(place)
    bounds: Any = zip(starts, sizes, strides, strict=True)
    return tuple([slice(low, low + span(count, step), step) for low, count, step in bounds])


def _lines(shape: Shape) -> list[Tensor]:
    """For each axis of a shape the numbers of its elements, which broadcast to the shape."""
    return [
        apply(reshape, count_up(dim), shape=(dim, *[1] * (len(shape) - axis - 1)))
        for axis, dim in enumerate(shape)
    ]


def _indices_for_batch(
    places: Sequence[Tensor],
    along: Axes,
    shape: Shape,
    index: Callable[[Tensor, Tensor, int], Tensor],
) -> list[Tensor]:
    """Indices `[batch, *shape]` of all axes, the batch in front, of places that differ over it.

    index(place, line, axis): the index along an axis, of its place and the numbers of elements.
    """
    batch = places[0].shape[0]
    given = dict(zip(along, places, strict=True))
    indices = []
    for axis, line in enumerate(_lines(shape)):
        if axis in given:
            column = apply(reshape, given[axis], shape=(batch, *[1] * len(shape)))
            line = index(column, line, axis)
        indices.append(apply(broadcast_to, line, shape=(batch, *shape)))
    return [along_front(indices[0]), *indices]


def _all_axes(indices: Sequence[Tensor]) -> Axes:
    return tuple(range(len(indices)))


def _behind_batch(along: Axes) -> Axes:
    return tuple([axis + 1 for axis in along])


def _batched_box(count: Dimension, along: Axes, sizes: Shape, strides: Shape) -> dict[str, Shape]:
    """The parameters of a box with a batch in front."""
    return {"along": _behind_batch(along), "sizes": (count, *sizes), "strides": (1, *strides)}


def _batch_box(
    primitive: Callable[[], Primitive],
    at_indices: Callable[[Tensor, list[Tensor], Shape, Shape], Tensor],
) -> Callable[..., tuple[Tensor, int]]:
    """The batching rule of a primitive of a box: itself, where the batch shares its places.

    at_indices(x, indices, sizes, shape): the same where places differ over the batch, by the
    indices of all elements of the boxes; the batch is in front of everything.
    """

    def batch(
        count: Dimension,
        operands: tuple[Tensor, ...],
        axes: tuple[int | None, ...],
        /,
        along: Axes,
        sizes: Shape,
        strides: Shape,
        shape: Shape,
    ) -> tuple[Tensor, int]:
        x, *places = operands
        front, whole = to_front(count, x, axes[0]), (count, *shape)
        if all(axis is None for axis in axes[1:]):
            box = _batched_box(count, along, sizes, strides)
            return apply(primitive(), front, *places, **box, shape=whole), 0
        fronts = [to_front(count, s, axis) for s, axis in zip(places, axes[1:], strict=True)]

        def index(place: Tensor, line: Tensor, axis: int) -> Tensor:
            return add(place, multiply(line, strides[axis]))

        indices = _indices_for_batch(fronts, along, sizes, index)
        return at_indices(front, indices, (count, *sizes), whole), 0

    return batch


def _ramp(*shape: int) -> Array:
    return np.linspace(-1, 1, int(np.prod(shape)), dtype=np.float32).reshape(shape)


def _starts(*places: int) -> tuple[Array, ...]:
    return tuple([np.array(place, np.int64) for place in places])


# --- slices --------------------------------------------------------------------------------------


def _slice_type(
    x: TensorType, *places: TensorType, along: Axes, sizes: Shape, strides: Shape, shape: Shape
) -> TensorType:
    fits = _fits(sizes, x.shape, strides) and equal(size(shape), size(sizes))
    _check("slice_at", x, places, along, fits)
    return x.with_shape(shape)


def _gather_boxes(x: Tensor, indices: list[Tensor], sizes: Shape, shape: Shape) -> Tensor:
    found = apply(gather, x, *indices, axes=_all_axes(indices))
    return apply(reshape, found, shape=shape)


slice_at: Primitive = Primitive(
    "slice_at",
    "The elements of a slice whose starts along some axes are data.",
    kind=Gather(checked=False),
    sharding=shardings.of_placed_box,
    type_rule=_slice_type,
    reference=lambda x, *places, along, sizes, strides, shape: x[
        _box(places, along, sizes, strides)
    ].reshape(shape),
    derivatives=linear_in_elements(
        lambda ct, x, *places, shape, **box: apply(lay_at, ct, *places, **box, shape=x.shape)
    ),
    batch=_batch_box(lambda: slice_at, _gather_boxes),
    samples=lambda: [
        _box_sample((4, 6), (2, 2), (1, 3), {0: 1, 1: 2}, (2, 2)),
        _box_sample((3, 4, 5), (3, 1, 5), (1, 1, 1), {1: 3}, (3, 5)),
        _box_sample((5,), (5,), (1,), {0: 0}, (5,)),
        _box_sample((3,), (0,), (1,), {0: 1}, (0,)),
    ],
    mistakes=lambda: [
        _mistake(_starts(0), (0,), 4, ArgumentError, "do not go together"),
        _mistake(_starts(0), (1,), 2, ArgumentError, "do not go together"),
        _mistake((np.array(0.0),), (0,), 2, DTypeError, "places must be int64"),
    ],
)


def _box_sample(
    given: Shape, sizes: Shape, strides: Shape, places: dict[int, int], shape: Shape
) -> Sample:
    x: Any = _ramp(*given)  # type: ignore[arg-type]
    params = {"along": tuple(places), "sizes": sizes, "strides": strides, "shape": shape}
    return Sample((x, *_starts(*places.values())), params)


def _mistake(places: tuple[Array, ...], along: Axes, size: int, error: Any, text: str) -> Mistake:
    params = {"along": along, "sizes": (size,), "strides": (1,), "shape": (size,)}
    return Mistake((_ramp(3), *places), params, error, text)


# --- what is laid among zeros --------------------------------------------------------------------


def _lay_type(
    x: TensorType, *places: TensorType, along: Axes, sizes: Shape, strides: Shape, shape: Shape
) -> TensorType:
    whole = x.with_shape(shape)
    fits = _fits(sizes, shape, strides) and equal(size(x.shape), size(sizes))
    _check("lay_at", whole, places, along, fits)
    return whole


def _lay_array(
    x: Array, *places: Array, along: Axes, sizes: Any, strides: Shape, shape: Any
) -> Array:
    out = np.zeros(shape, x.dtype)
    out[_box(places, along, sizes, strides)] = x.reshape(sizes)
    return out


def _scatter_boxes(x: Tensor, indices: list[Tensor], sizes: Shape, shape: Shape) -> Tensor:
    canvas, boxes = filled_tensor(shape, x.dtype, 0), apply(reshape, x, shape=sizes)
    return apply(scatter, canvas, boxes, *indices, axes=_all_axes(indices), unique=True)


lay_at: Primitive = Primitive(
    "lay_at",
    "Zeros of a shape with x laid into them from places on that are data: the opposite of a slice.",
    kind=Scatter(None, checked=False),
    sharding=shardings.of_placed_box,
    type_rule=_lay_type,
    reference=_lay_array,
    derivatives=linear_in_elements(
        lambda ct, x, *places, shape, **box: apply(slice_at, ct, *places, **box, shape=x.shape)
    ),
    batch=_batch_box(lambda: lay_at, _scatter_boxes),
    samples=lambda: [
        _box_sample((2, 2), (2, 2), (1, 3), {0: 1, 1: 2}, (4, 6)),
        _box_sample((3, 5), (3, 1, 5), (1, 1, 1), {1: 3}, (3, 4, 5)),
        _box_sample((5,), (5,), (1,), {0: 0}, (5,)),
        _box_sample((0,), (0,), (1,), {0: 1}, (3,)),
    ],
    mistakes=lambda: [
        _mistake(_starts(0), (0,), 2, ArgumentError, "do not go together"),
        _mistake(_starts(0, 1), (0,), 3, ArgumentError, "do not go together"),
        _mistake((np.array(0.0),), (0,), 3, DTypeError, "places must be int64"),
    ],
)


# --- rolls ---------------------------------------------------------------------------------------


def _roll_type(x: TensorType, *places: TensorType, along: Axes, back: bool) -> TensorType:
    _check("roll_at", x, places, along, True)
    return x


def _roll_array(x: Array, *places: Array, along: Axes, back: bool) -> Array:
    return np.roll(x, [-int(place) if back else int(place) for place in places], along)


def _batch_roll(
    size: Dimension,
    operands: tuple[Tensor, ...],
    axes: tuple[int | None, ...],
    /,
    along: Axes,
    back: bool,
) -> tuple[Tensor, int]:
    x, *places = operands
    front = to_front(size, x, axes[0])
    if all(axis is None for axis in axes[1:]):
        return apply(roll_at, front, *places, along=_behind_batch(along), back=back), 0
    fronts = [to_front(size, s, axis) for s, axis in zip(places, axes[1:], strict=True)]
    shape = front.shape[1:]

    def index(place: Tensor, line: Tensor, axis: int) -> Tensor:
        dim = shape[axis]
        moved = add(line, place if back else multiply(place, -1))
        moved = where(less(moved, dim), moved, add(moved, -1 * dim))
        return where(less(moved, 0), add(moved, dim), moved)

    indices = _indices_for_batch(fronts, along, shape, index)
    return apply(gather, front, *indices, axes=_all_axes(indices)), 0


roll_at: Primitive = Primitive(
    "roll_at",
    "The elements moved along axes by numbers from 0 to below their sizes, which are data; what "
    "leaves at one end comes in at the other. `back` moves them the other way.",
    kind=Gather(checked=False),
    sharding=shardings.of_placed_box,
    type_rule=_roll_type,
    reference=_roll_array,
    derivatives=linear_in_elements(
        lambda ct, x, *places, along, back: apply(roll_at, ct, *places, along=along, back=not back)
    ),
    batch=_batch_roll,
    samples=lambda: [
        Sample((_ramp(4, 6), *_starts(1, 4)), {"along": (0, 1), "back": False}),
        Sample((_ramp(3, 4, 5), *_starts(3)), {"along": (1,), "back": True}),
        Sample((_ramp(5), *_starts(0)), {"along": (0,), "back": False}),
        Sample((_ramp(0, 2), *_starts(0)), {"along": (0,), "back": False}),
    ],
    mistakes=lambda: [
        Mistake((_ramp(3), *_starts(0)), {"along": (1,), "back": False}, ArgumentError, "together"),
        Mistake((_ramp(3), np.array(0.0)), {"along": (0,), "back": False}, DTypeError, "int64"),
    ],
)
