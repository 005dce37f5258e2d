"""Movement: the same elements in another arrangement.

Every primitive here is linear in its operands, except `pad` with a constant other than 0. None of
them reads a value, so all of them work on symbolic sizes.

>>> import weft as wf
>>> wf.ones((2, 3)).T.shape
(3, 2)
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from weft.core.dimensions import is_positive, is_zero
from weft.core.dtypes import DType, bool_, complex64, float32, int64
from weft.core.errors import ArgumentError, AxisError, DTypeError, ShapeError
from weft.core.shapes import Dimension, Shape, equal, require_equal, size
from weft.core.types import TensorType
from weft.ir.batching import move_axis, to_front
from weft.ir.derivatives import additive, every, linear, tangent
from weft.ir.dispatch import apply, bind
from weft.ir.kinds import Movement
from weft.ir.primitive import Mistake, Primitive, Sample
from weft.ir.reverse import sum_to, zeros
from weft.ir.tensor import Tensor
from weft.ops import movement_backs as backs
from weft.ops import movement_reads as reads
from weft.ops import sharding_rules as shardings
from weft.ops.families import batch_each
from weft.ops.movement_backs import inverse

__all__: list[str] = []

Array = np.ndarray[Any, Any]
Axes = tuple[int, ...]
Padding = tuple[tuple[Dimension, Dimension, Dimension], ...]


def _array(*shape: int) -> Array:
    count = int(np.prod(shape))
    return np.linspace(-1, 1, count, dtype=np.float32).reshape(shape)


def _complex(*shape: int) -> Array:
    return (_array(*shape) + 1j * _array(*shape)[::-1]).astype(np.complex64)


def is_below(a: Dimension, b: Dimension) -> bool:
    """Whether a < b: for the sizes of a call that is traced, by a guard, else for all sizes."""
    return a < b if type(a) is int and type(b) is int else is_positive(b - a)


def check_one_dtype(op: str, got: Mapping[str, TensorType]) -> None:
    """Refuse operands of different dtypes; promotion is the public functions' work."""
    first, *rest = got.values()
    for other in rest:
        if other.dtype is not first.dtype:
            raise DTypeError(
                op,
                "operands have different dtypes",
                expected=f"{first.dtype.name} for all",
                got=got,
                fix=f'convert first: x.astype("{first.dtype.name}")',
            )


def _check_ranks(op: str, x: TensorType, params: Mapping[str, Sequence[object]]) -> None:
    """Refuse parameters that do not have one entry per axis."""
    for name, entries in params.items():
        if len(entries) != x.ndim:
            raise ArgumentError(
                op,
                f"{name} does not have one entry per axis",
                expected=f"{x.ndim} entries",
                got={"x": x, name: entries},
                fix=f"give {name} {x.ndim} entries, one for each axis of x",
            )


# --- transpose and flip ------------------------------------------------------------------------


def _transpose_type(x: TensorType, order: Axes) -> TensorType:
    if sorted(order) != list(range(x.ndim)):
        raise AxisError(
            "transpose",
            "order is not a permutation of the axes",
            expected=f"each of 0 to {x.ndim - 1} once",
            got={"x": x, "order": order},
            fix=f"name every axis once, for example {tuple(reversed(range(x.ndim)))}",
        )
    return x.with_shape(tuple([x.shape[axis] for axis in order]))


transpose: Primitive = Primitive(
    "transpose",
    "The axes in another order: axis i of the result is axis order[i] of x.",
    kind=Movement(reads.of_transpose, view=lambda x, order: x.transpose(order)),
    type_rule=_transpose_type,
    reference=lambda x, order: np.transpose(x, order),
    derivatives=[
        linear(
            lambda ct, x, order: bind(transpose, ct, order=inverse(order)),
            of_arrays=backs.of_transpose,
        )
    ],
    batch=batch_each(
        lambda: transpose,
        lambda size, order: {"order": (0, *[axis + 1 for axis in order])},
    ),
    samples=lambda: [
        Sample((_array(2, 3),), {"order": (1, 0)}),
        Sample((_array(2, 3, 4),), {"order": (2, 0, 1)}),
        Sample((_complex(2, 3),), {"order": (1, 0)}),
        Sample((_array(),), {"order": ()}),
        Sample((np.arange(6).reshape(1, 3, 2),), {"order": (1, 2, 0)}),
    ],
    part=lambda order: "x.T" if order == (1, 0) else f"wf.permute_dims(x, {order})",
    mistakes=lambda: [
        Mistake((_array(2, 3),), {"order": (0, 0)}, AxisError, "not a permutation"),
        Mistake((_array(2, 3),), {"order": (0,)}, AxisError, "not a permutation"),
    ],
)


def _flip_type(x: TensorType, axes: Axes) -> TensorType:
    if len(set(axes)) != len(axes) or not set(axes) <= set(range(x.ndim)):
        raise AxisError(
            "flip",
            "axes are not distinct axes of x",
            expected=f"each of 0 to {x.ndim - 1} at most once",
            got={"x": x, "axes": axes},
            fix="name axes that x has, each once",
        )
    return x


flip: Primitive = Primitive(
    "flip",
    "The elements in opposite order along some axes.",
    kind=Movement(reads.of_flip),
    type_rule=_flip_type,
    reference=lambda x, axes: np.flip(x, axes),
    derivatives=[linear(lambda ct, x, axes: bind(flip, ct, axes=axes))],
    batch=batch_each(lambda: flip, lambda size, axes: {"axes": tuple([a + 1 for a in axes])}),
    samples=lambda: [
        Sample((_array(2, 3),), {"axes": (1,)}),
        Sample((_array(2, 3, 2),), {"axes": (0, 2)}),
        Sample((_array(),), {"axes": ()}),
        Sample((_array(0, 2),), {"axes": (0,)}),
    ],
    part=lambda axes: f"wf.flip(x, axis={axes})",
    mistakes=lambda: [
        Mistake((_array(2, 3),), {"axes": (2,)}, AxisError, "not distinct axes"),
        Mistake((_array(2, 3),), {"axes": (1, 1)}, AxisError, "not distinct axes"),
    ],
)


# --- reshape and broadcast ---------------------------------------------------------------------


def _common_first(old: Shape, new: Shape) -> str:
    """The first dimension, where both shapes have the same."""
    return f"{old[0]}, " if old and new and old[0] == new[0] else ""


def _reshape_type(x: TensorType, shape: Shape) -> TensorType:
    if not equal(size(x.shape), size(shape)):
        raise ShapeError(
            "reshape",
            "the number of elements differs",
            expected="shapes with the same number of elements",
            got={"x": x, "shape": list(shape)},
            note=f"{size(x.shape)} != {size(shape)}",
            fix=f"let one dimension be found: x.reshape({_common_first(x.shape, shape)}-1)",
        )
    return x.with_shape(shape)


reshape: Primitive = Primitive(
    "reshape",
    "The same elements in row-major order in another shape.",
    kind=Movement(reads.of_reshape, view=lambda x, shape: x.reshape(shape)),
    sharding=shardings.of_reshape,
    type_rule=_reshape_type,
    reference=lambda x, shape: np.reshape(x, shape),
    derivatives=[
        linear(lambda ct, x, shape: bind(reshape, ct, shape=x.shape), of_arrays=backs.of_reshape)
    ],
    batch=batch_each(lambda: reshape, lambda size, shape: {"shape": (size, *shape)}),
    samples=lambda: [
        Sample((_array(2, 6),), {"shape": (3, 4)}),
        Sample((_array(2, 3, 4),), {"shape": (6, 4)}),
        Sample((_complex(4),), {"shape": (2, 2)}),
        Sample((_array(1),), {"shape": ()}),
        Sample((_array(),), {"shape": (1, 1)}),
        Sample((_array(0, 3),), {"shape": (3, 0, 2)}),
    ],
    part=lambda shape: f"x.reshape({shape})",
    mistakes=lambda: [
        Mistake((_array(2, 3),), {"shape": (4,)}, ShapeError, "number of elements differs"),
    ],
)


def _broadcast_type(x: TensorType, shape: Shape) -> TensorType:
    got = {"x": x, "shape": list(shape)}
    if x.ndim > len(shape):
        raise ShapeError(
            "broadcast_to",
            "the tensor has more axes than the shape",
            expected=f"at most {len(shape)} axes",
            got=got,
            fix="drop axes of size 1 first: wf.squeeze(x)",
        )
    for axis in range(-x.ndim, 0):
        if x.shape[axis] != 1:
            require_equal(
                "broadcast_to",
                x.shape[axis],
                shape[axis],
                expected="each dimension of x equal to the shape's from the right, or 1",
                got=got,
                fix=f"write {x.shape[axis]} for {shape[axis]} in the shape",
                what=f"the tensor does not broadcast to the shape on axis {axis}",
            )
    return x.with_shape(shape)


def _batch_broadcast(
    size: Dimension, operands: tuple[Tensor, ...], axes: tuple[int | None, ...], /, shape: Shape
) -> tuple[Tensor, int]:
    assert axes[0] is not None
    front = move_axis(operands[0], axes[0], 0)
    aligned = (size, *[1] * (len(shape) - front.ndim + 1), *front.shape[1:])
    return apply(broadcast_to, bind(reshape, front, shape=aligned), shape=(size, *shape)), 0


broadcast_to: Primitive = Primitive(
    "broadcast_to",
    "The tensor repeated along new axes and axes of size 1 to fill a shape.",
    kind=Movement(reads.of_broadcast),
    type_rule=_broadcast_type,
    reference=lambda x, shape: np.broadcast_to(x, shape),
    derivatives=[linear(lambda ct, x, shape: sum_to(ct, x.shape))],
    batch=_batch_broadcast,
    samples=lambda: [
        Sample((_array(3, 1),), {"shape": (2, 3, 4)}),
        Sample((_array(),), {"shape": (2,)}),
        Sample((_array(2, 2),), {"shape": (2, 2)}),
        Sample((_array(1, 2),), {"shape": (0, 2)}),
    ],
    mistakes=lambda: [
        Mistake((_array(2),), {"shape": (3,)}, ShapeError, "does not broadcast to the shape"),
        Mistake((_array(2, 2),), {"shape": (2,)}, ShapeError, "more axes than the shape"),
        Mistake((_array(3),), {"shape": (1,)}, ShapeError, "does not broadcast to the shape"),
    ],
)


# --- concatenate -------------------------------------------------------------------------------


def _concatenate_type(*xs: TensorType, axis: int) -> TensorType:
    got = {f"x{index + 1}": x for index, x in enumerate(xs)}
    if not xs or any(x.ndim != xs[0].ndim for x in xs) or not 0 <= axis < xs[0].ndim:
        raise ShapeError(
            "concatenate",
            "tensors of different rank, or without the axis to join",
            expected=f"at least one tensor, and all of one rank above {axis}",
            got=got,
            fix="give the smaller ones an axis first: x[None]",
        )
    check_one_dtype("concatenate", got)
    total: Dimension = 0
    for x in xs:
        total = total + x.shape[axis]
        _check_others(xs[0], x, axis, got)
    return xs[0].with_shape((*xs[0].shape[:axis], total, *xs[0].shape[axis + 1 :]))


def _check_others(first: TensorType, x: TensorType, axis: int, got: Mapping[str, object]) -> None:
    """Refuse sizes that differ on an axis that is not joined."""
    for position, (a, b) in enumerate(zip(first.shape, x.shape, strict=True)):
        if position != axis:
            require_equal(
                "concatenate",
                a,
                b,
                expected=f"equal sizes on every axis but {axis}",
                got=got,
                fix="pad or slice the tensors to equal sizes on the other axes",
                what=f"sizes differ on axis {position}",
            )


def _part(ct: Tensor, xs: Sequence[Tensor], index: int, axis: int) -> Tensor:
    """The stretch of a concatenation's cotangent that belongs to one operand."""
    start: Dimension = 0
    for x in xs[:index]:
        start = start + x.shape[axis]
    starts: list[Dimension] = [0] * ct.ndim
    stops = list(ct.shape)
    starts[axis] = start
    stops[axis] = start + xs[index].shape[axis]
    return apply(slice_, ct, starts=tuple(starts), stops=tuple(stops), strides=(1,) * ct.ndim)


def _batch_concatenate(
    size: Dimension, operands: tuple[Tensor, ...], axes: tuple[int | None, ...], /, axis: int
) -> tuple[Tensor, int]:
    fronts = [to_front(size, x, a) for x, a in zip(operands, axes, strict=True)]
    return apply(concatenate, *fronts, axis=axis + 1), 0


concatenate: Primitive = Primitive(
    "concatenate",
    "Tensors joined along one of their axes.",
    kind=Movement(reads.of_concatenate, by_place=True),
    type_rule=_concatenate_type,
    reference=lambda *xs, axis: np.concatenate(xs, axis),
    derivatives=every(lambda index: additive(lambda ct, *xs, axis: _part(ct, xs, index, axis))),
    batch=_batch_concatenate,
    samples=lambda: [
        Sample((_array(2, 3), _array(1, 3)), {"axis": 0}),
        Sample((_array(2, 3), _array(2, 0), _array(2, 2)), {"axis": 1}),
        Sample((_array(3),), {"axis": 0}),
        Sample((_complex(2), _complex(1)), {"axis": 0}),
    ],
    mistakes=lambda: [
        Mistake((_array(2), _array(2, 1)), {"axis": 0}, ShapeError, "different rank"),
        Mistake((_array(), _array()), {"axis": 0}, ShapeError, "different rank"),
        Mistake((_array(2), _complex(2)), {"axis": 0}, DTypeError, "different dtypes"),
        Mistake((_array(2, 3), _array(2, 2)), {"axis": 0}, ShapeError, "differ on axis 1"),
    ],
)


# --- slice and its opposite --------------------------------------------------------------------


def _slice_type(x: TensorType, starts: Shape, stops: Shape, strides: Shape) -> TensorType:
    _check_ranks("slice", x, {"starts": starts, "stops": stops, "strides": strides})
    for dim, start, stop, stride in zip(x.shape, starts, stops, strides, strict=True):
        if is_below(start, 0) or is_below(stop, start) or is_below(dim, stop) or stride < 1:
            raise ArgumentError(
                "slice",
                "bounds outside the tensor",
                expected="0 <= start <= stop <= size and stride >= 1 on each axis",
                got={"x": x, "starts": starts, "stops": stops, "strides": strides},
                fix="index the tensor, which cuts bounds to size: x[start:stop:stride]",
            )
    return x.with_shape(
        tuple(
            [
                (stop - start + stride - 1) // stride
                for start, stop, stride in zip(starts, stops, strides, strict=True)
            ]
        )
    )


def _unslice(ct: Tensor, x: Tensor, starts: Shape, stops: Shape, strides: Shape) -> Tensor:
    """Zeros around and between the elements of a slice's cotangent."""
    padding = tuple(
        [
            (start, dim - start - span(kept, stride), stride - 1)
            for dim, start, stride, kept in zip(x.shape, starts, strides, ct.shape, strict=True)
        ]
    )
    return apply(pad, ct, padding=padding, value=0.0)


def span(count: Dimension, stride: Dimension) -> Dimension:
    """How much of an axis a number of elements covers that stand a stride apart."""
    if stride == 1:
        return count
    return 0 if is_zero(count) else (count - 1) * stride + 1


def _slice_view(x: Array, starts: Shape, stops: Shape, strides: Shape) -> Array:
    """A slice as a view: an ellipsis keeps NumPy from reading a single element."""
    key: tuple[Any, ...] = (*map(slice, starts, stops, strides), ...)
    view: Array = x[key]
    return view


slice_: Primitive = Primitive(
    "slice",
    "From each axis the elements start, start + stride, … before stop; strides are positive.",
    kind=Movement(reads.of_slice, view=_slice_view),
    sharding=shardings.of_slice,
    type_rule=_slice_type,
    reference=lambda x, starts, stops, strides: x[
        tuple([slice(*bounds) for bounds in zip(starts, stops, strides, strict=True)])
    ],
    derivatives=[linear(_unslice, of_arrays=backs.of_slice)],
    batch=batch_each(
        lambda: slice_,
        lambda size, starts, stops, strides: {
            "starts": (0, *starts),
            "stops": (size, *stops),
            "strides": (1, *strides),
        },
    ),
    samples=lambda: [
        Sample((_array(5, 6),), {"starts": (1, 0), "stops": (4, 6), "strides": (1, 2)}),
        Sample((_array(5),), {"starts": (1,), "stops": (5,), "strides": (3,)}),
        Sample((_array(3),), {"starts": (2,), "stops": (2,), "strides": (1,)}),
        Sample((_array(),), {"starts": (), "stops": (), "strides": ()}),
    ],
    part=lambda starts, stops, strides: tuple(
        [slice(a, b, s if s != 1 else None) for a, b, s in zip(starts, stops, strides, strict=True)]
    ),
    mistakes=lambda: [
        _bad_slice((0,), (4,), (1,), "bounds outside"),
        _bad_slice((-1,), (3,), (1,), "bounds outside"),
        _bad_slice((0,), (3,), (-1,), "bounds outside"),
        _bad_slice((0, 0), (3,), (1,), "one entry per axis"),
    ],
)


def _bad_slice(starts: Shape, stops: Shape, strides: Shape, problem: str) -> Mistake:
    params = {"starts": starts, "stops": stops, "strides": strides}
    return Mistake((_array(3),), params, ArgumentError, problem)


def _update_type(x: TensorType, update: TensorType, starts: Shape, strides: Shape) -> TensorType:
    check_one_dtype("update_slice", {"x": x, "update": update})
    _check_ranks("update_slice", x, {"starts": starts, "strides": strides})
    _check_ranks("update_slice", x, {"update.shape": update.shape})
    for dim, update_dim, start, stride in zip(x.shape, update.shape, starts, strides, strict=True):
        if is_below(start, 0) or stride < 1 or is_below(dim, start + span(update_dim, stride)):
            raise ArgumentError(
                "update_slice",
                "bounds outside the tensor",
                expected="a slice of x of the update's shape",
                got={"x": x, "update": update, "starts": starts, "strides": strides},
                fix="write by index, which cuts bounds to size: x[start:stop:stride] = update",
            )
    return x


def bounds(shape: Shape, starts: Shape, strides: Shape) -> dict[str, Shape]:
    """The parameters of the slice that has a shape."""
    stops = tuple([a + span(kept, s) for kept, a, s in zip(shape, starts, strides, strict=True)])
    return {"starts": starts, "stops": stops, "strides": strides}


def _update_array(x: Array, update: Array, starts: Any, strides: Any) -> Array:
    out = np.array(x)
    cuts = bounds(update.shape, starts, strides)
    out[tuple([slice(*each) for each in zip(*cuts.values(), strict=True)])] = update
    return out


def _batch_update(
    size: Dimension, operands: tuple[Tensor, ...], axes: tuple[int | None, ...], /, **params: Shape
) -> tuple[Tensor, int]:
    x, update = [to_front(size, each, axis) for each, axis in zip(operands, axes, strict=True)]
    starts, strides = (0, *params["starts"]), (1, *params["strides"])
    return apply(update_slice, x, update, starts=starts, strides=strides), 0


update_slice: Primitive = Primitive(
    "update_slice",
    "x with the elements start, start + stride, … of each axis replaced by those of update.",
    kind=Movement(),
    sharding=shardings.of_update_slice,
    type_rule=_update_type,
    reference=_update_array,
    derivatives=[
        additive(lambda ct, x, update, **at: bind(update_slice, ct, zeros(update.type), **at)),
        additive(lambda ct, x, update, **at: bind(slice_, ct, **bounds(update.shape, **at))),
    ],
    batch=_batch_update,
    samples=lambda: [
        Sample((_array(5, 6), _array(3, 3)), {"starts": (1, 0), "strides": (1, 2)}),
        Sample((_array(4), _array(0)), {"starts": (4,), "strides": (1,)}),
        Sample((_array(), _array()), {"starts": (), "strides": ()}),
        Sample((np.arange(4), np.arange(2)), {"starts": (1,), "strides": (2,)}),
    ],
    mistakes=lambda: [
        _bad_update(_array(4), {"starts": (0,), "strides": (1,)}, ArgumentError, "bounds outside"),
        _bad_update(_array(2, 1), {"starts": (0,), "strides": (1,)}, ArgumentError, "update.shape"),
        _bad_update(_complex(2), {"starts": (0,), "strides": (1,)}, DTypeError, "different dtypes"),
    ],
)


def _bad_update(update: Array, params: dict[str, Shape], error: Any, problem: str) -> Mistake:
    return Mistake((_array(3), update), params, error, problem)


# --- pad and full ------------------------------------------------------------------------------


def _pad_type(x: TensorType, padding: Padding, value: float) -> TensorType:
    _check_ranks("pad", x, {"padding": padding})
    if any(is_below(part, 0) for sides in padding for part in sides):
        raise ArgumentError(
            "pad",
            "negative padding",
            expected="widths of at least 0",
            got={"x": x, "padding": padding},
            fix="slice the tensor to make it smaller: x[1:-1]",
        )
    return x.with_shape(_padded_shape(x.shape, padding))


def _padded_shape(shape: Shape, padding: Padding) -> Shape:
    return tuple(
        [
            low + span(dim, between + 1) + high
            for dim, (low, high, between) in zip(shape, padding, strict=True)
        ]
    )


def _slice_of_elements(shape: Shape, padding: Padding) -> dict[str, Shape]:
    """Where the elements stand in the padded tensor, as parameters of `slice`."""
    starts = tuple([low for low, _, _ in padding])
    return bounds(shape, starts, tuple([between + 1 for _, _, between in padding]))


def _pad_array(x: Array, padding: Any, value: float) -> Array:
    out = np.full(_padded_shape(x.shape, padding), value, x.dtype)
    inside = _slice_of_elements(x.shape, padding)
    out[tuple([slice(*each) for each in zip(*inside.values(), strict=True)])] = x
    return out


def _pad_tangent(t: Tensor, out: Tensor, x: Tensor, padding: Padding, value: float) -> Tensor:
    """The tangent among zeros; not `pad` itself, which is linear only for a value of 0."""
    inside = _slice_of_elements(x.shape, padding)
    del inside["stops"]
    return apply(update_slice, zeros(out.type), t, **inside)


pad: Primitive = Primitive(
    "pad",
    "A constant before, after and between the elements: (low, high, between) for each axis.",
    kind=Movement(
        reads.of_pad,
        reads_if=reads.is_padded_outside,
        fill=lambda params: params["value"],
        by_place=True,
    ),
    type_rule=_pad_type,
    reference=_pad_array,
    derivatives=[tangent(_pad_tangent)],
    batch=batch_each(
        lambda: pad,
        lambda size, padding, value: {"padding": ((0, 0, 0), *padding), "value": value},
    ),
    samples=lambda: [
        Sample((_array(2, 3),), {"padding": ((1, 2, 0), (0, 1, 2)), "value": 0.0}),
        Sample((_array(2),), {"padding": ((1, 1, 1),), "value": 2.5}),
        Sample((_array(0, 2),), {"padding": ((1, 1, 1), (0, 0, 0)), "value": 0.0}),
        Sample((_array(),), {"padding": (), "value": 0.0}),
        Sample((np.arange(3),), {"padding": ((1, 0, 0),), "value": 7}),
    ],
    mistakes=lambda: [
        Mistake((_array(2),), {"padding": ((-1, 0, 0),), "value": 0.0}, ArgumentError, "negative"),
        Mistake((_array(2),), {"padding": (), "value": 0.0}, ArgumentError, "one entry per axis"),
    ],
)


def _full_array(shape: Shape, dtype: DType, value: Any) -> Array:
    return np.full(shape, value, dtype.numpy)


full: Primitive = Primitive(
    "full",
    "A tensor of one value.",
    kind=Movement(reads.of_full, fill=lambda params: params["value"]),
    type_rule=lambda shape, dtype, value: TensorType(dtype, shape),
    reference=_full_array,
    derivatives=(),
    batch=lambda size, operands, axes, /, **params: (bind(full, **params), None),
    samples=lambda: [
        Sample((), {"shape": (2, 3), "dtype": float32, "value": 0.5}),
        Sample((), {"shape": (), "dtype": int64, "value": 7}),
        Sample((), {"shape": (0, 2), "dtype": bool_, "value": True}),
        Sample((), {"shape": (1,), "dtype": complex64, "value": 1.0}),
    ],
)
