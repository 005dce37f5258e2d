"""Boxes: slices of a fixed size at starts that are data.

The starts are moved so that the box lies inside `x`, so that no start is an error.

>>> import weft as wf
>>> wf.dynamic_slice(wf.tensor([1.0, 2.0, 3.0]), (wf.tensor(7),), (2,)).tolist()
[2.0, 3.0]
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any

import numpy as np

from weft.core.dtypes import INDEX
from weft.core.errors import ArgumentError, DTypeError, ShapeError
from weft.core.shapes import Dimension, Shape
from weft.core.types import TensorType
from weft.ir.batching import move_axis, to_front
from weft.ir.derivatives import additive, every
from weft.ir.dispatch import apply
from weft.ir.kinds import Gather, Scatter
from weft.ir.primitive import Mistake, Primitive, Sample
from weft.ir.reverse import filled_tensor, zeros
from weft.ir.tensor import Tensor
from weft.ops import sharding_rules as shardings
from weft.ops.arithmetic import add
from weft.ops.indexing import (
    NO_DERIVATIVE,
    along_front,
    count_up,
    gather,
    linear_in_elements,
    scatter,
)
from weft.ops.movement import broadcast_to, check_one_dtype, is_below, reshape
from weft.ops.selection import clip

__all__: list[str] = []

Array = np.ndarray[Any, Any]


def _ramp(*shape: int) -> Array:
    return np.linspace(-1, 1, int(np.prod(shape)), dtype=np.float32).reshape(shape)


def _check_box(op: str, x: TensorType, starts: Sequence[TensorType], sizes: Shape) -> None:
    got = {"x": x, **{f"start{i}": start for i, start in enumerate(starts)}}
    if len(starts) != x.ndim or len(sizes) != x.ndim:
        raise ArgumentError(
            op,
            "not one start and one size per axis",
            expected=f"{x.ndim} starts and {x.ndim} sizes",
            got={**got, "sizes": sizes},
            fix="give a start and a size for each axis of x",
        )
    if any(start.ndim or start.dtype is not INDEX for start in starts):
        raise DTypeError(
            op,
            f"starts must be {INDEX.name} without axes",
            expected=f"{INDEX.name}[] for each axis",
            got=got,
            fix=f'convert first: wf.asarray(start, dtype="{INDEX.name}")',
        )
    if any(is_below(dim, part) for dim, part in zip(x.shape, sizes, strict=True)):
        raise ShapeError(
            op,
            "the box is larger than the tensor",
            expected="sizes of at most the shape of x",
            got={**got, "sizes": sizes},
            fix=f"cut the sizes to {tuple(x.shape)} at most",
        )


def _dynamic_slice_type(x: TensorType, *starts: TensorType, sizes: Shape) -> TensorType:
    _check_box("dynamic_slice", x, starts, sizes)
    return x.with_shape(sizes)


def _box(shape: Sequence[int], starts: Sequence[Array], sizes: Sequence[int]) -> tuple[slice, ...]:
    """The slices of a box, moved to lie inside a shape."""
    starts_inside = [
        max(0, min(int(start), dim - part))
        for dim, start, part in zip(shape, starts, sizes, strict=True)
    ]
    return tuple([slice(low, low + part) for low, part in zip(starts_inside, sizes, strict=True)])


def _box_indices(starts: Sequence[Tensor], shape: Shape, sizes: Shape) -> list[Tensor]:
    """Indices `[batch, *sizes]` of boxes at starts that differ over a batch, moved inside."""
    batch = starts[0].shape[0]
    indices = []
    for axis, (start, dim, part) in enumerate(zip(starts, shape, sizes, strict=True)):
        low = clip(start, 0, operator.index(dim - part))
        column = apply(reshape, low, shape=(batch, *[1] * len(sizes)))
        line = apply(reshape, count_up(part), shape=(part, *[1] * (len(sizes) - axis - 1)))
        indices.append(apply(broadcast_to, add(column, line), shape=(batch, *sizes)))
    return indices


def _batch_dynamic_slice(
    size: Dimension, operands: tuple[Tensor, ...], places: tuple[int | None, ...], /, sizes: Shape
) -> tuple[Tensor, int]:
    x, *starts = operands
    if all(place is None for place in places[1:]):
        front = to_front(size, x, places[0])
        zero = filled_tensor((), INDEX, 0)
        return apply(dynamic_slice, front, zero, *starts, sizes=(size, *sizes)), 0
    fronts = [to_front(size, s, place) for s, place in zip(starts, places[1:], strict=True)]
    if places[0] is None:
        indices = _box_indices(fronts, x.shape, sizes)
        return apply(gather, x, *indices, axes=tuple(range(len(indices)))), 0
    front = move_axis(x, places[0], 0)
    indices = _box_indices(fronts, front.shape[1:], sizes)
    indices = [along_front(indices[0]), *indices]
    return apply(gather, front, *indices, axes=tuple(range(len(indices)))), 0


def _unslice(ct: Tensor, x: Tensor, *starts: Tensor, sizes: Shape) -> Tensor:
    return apply(dynamic_update_slice, zeros(x.type), ct, *starts)


def _start_arrays(*starts: int) -> tuple[Array, ...]:
    return tuple([np.array(start, np.int64) for start in starts])


dynamic_slice: Primitive = Primitive(
    "dynamic_slice",
    "The box of a fixed size at starts that are data, moved to lie inside x.",
    kind=Gather(checked=False),
    sharding=shardings.of_dynamic_slice,
    type_rule=_dynamic_slice_type,
    reference=lambda x, *starts, sizes: x[_box(x.shape, starts, sizes)],
    derivatives=linear_in_elements(_unslice),
    batch=_batch_dynamic_slice,
    samples=lambda: [
        Sample((_ramp(4, 5), *_start_arrays(1, 2)), {"sizes": (2, 3)}),
        Sample((_ramp(4, 5), *_start_arrays(9, -3)), {"sizes": (2, 3)}),
        Sample((_ramp(3), *_start_arrays(1)), {"sizes": (0,)}),
        Sample((_ramp(),), {"sizes": ()}),
    ],
    mistakes=lambda: [
        Mistake(
            (_ramp(3), *_start_arrays(0)), {"sizes": (4,)}, ShapeError, "larger than the tensor"
        ),
        Mistake((_ramp(3),), {"sizes": (2,)}, ArgumentError, "not one start"),
        Mistake((_ramp(3), np.array(0.0)), {"sizes": (2,)}, DTypeError, "starts must be int64"),
    ],
)


def _dynamic_update_type(x: TensorType, update: TensorType, *starts: TensorType) -> TensorType:
    check_one_dtype("dynamic_update_slice", {"x": x, "update": update})
    _check_box("dynamic_update_slice", x, starts, update.shape)
    return x


def _update_box(x: Array, update: Array, *starts: Array) -> Array:
    out = np.array(x)
    out[_box(x.shape, starts, update.shape)] = update
    return out


def _batch_dynamic_update(
    size: Dimension, operands: tuple[Tensor, ...], places: tuple[int | None, ...], /
) -> tuple[Tensor, int]:
    x, update = [to_front(size, o, p) for o, p in zip(operands[:2], places[:2], strict=True)]
    starts = operands[2:]
    if all(place is None for place in places[2:]):
        return apply(dynamic_update_slice, x, update, filled_tensor((), INDEX, 0), *starts), 0
    fronts = [to_front(size, s, place) for s, place in zip(starts, places[2:], strict=True)]
    indices = _box_indices(fronts, x.shape[1:], update.shape[1:])
    indices = [along_front(indices[0]), *indices]
    return apply(scatter, x, update, *indices, axes=tuple(range(len(indices))), unique=True), 0


def _clear_box(ct: Tensor, x: Tensor, update: Tensor, *starts: Tensor) -> Tensor:
    return apply(dynamic_update_slice, ct, zeros(update.type), *starts)


def _read_box(ct: Tensor, x: Tensor, update: Tensor, *starts: Tensor) -> Tensor:
    return apply(dynamic_slice, ct, *starts, sizes=update.shape)


dynamic_update_slice: Primitive = Primitive(
    "dynamic_update_slice",
    "x with a box replaced by update, at starts that are data, moved to lie inside x.",
    kind=Scatter(None, checked=False),
    sharding=shardings.of_dynamic_update_slice,
    type_rule=_dynamic_update_type,
    reference=_update_box,
    derivatives=every(
        lambda operand: (additive(_clear_box), additive(_read_box), NO_DERIVATIVE)[min(operand, 2)]
    ),
    batch=_batch_dynamic_update,
    samples=lambda: [
        Sample((_ramp(4, 5), _ramp(2, 3), *_start_arrays(1, 2))),
        Sample((_ramp(4, 5), _ramp(2, 3), *_start_arrays(9, -3))),
        Sample((_ramp(3), _ramp(0), *_start_arrays(1))),
        Sample((_ramp(), _ramp())),
    ],
    mistakes=lambda: [
        Mistake((_ramp(3), _ramp(4), *_start_arrays(0)), {}, ShapeError, "larger than the tensor"),
        Mistake((_ramp(3), _ramp(2)), {}, ArgumentError, "not one start"),
        Mistake((_ramp(3), np.ones(2), *_start_arrays(0)), {}, DTypeError, "different dtypes"),
    ],
)
