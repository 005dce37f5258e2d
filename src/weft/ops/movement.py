"""Movement: the same elements in another arrangement.

>>> import weft as wf
>>> wf.ones((2, 3)).T.shape
(3, 2)
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from weft.core.errors import ArgumentError, AxisError, ShapeError
from weft.core.shapes import Dimension, Shape, broadcast_shapes, equal, require_equal, size
from weft.core.types import TensorType
from weft.ir.batching import move_axis, to_front
from weft.ir.derivatives import additive, constant, every, linear
from weft.ir.dispatch import apply, bind
from weft.ir.primitive import Primitive, Sample
from weft.ir.reverse import sum_to
from weft.ir.tensor import Tensor
from weft.ops.families import batch_each


def _array(*shape: int) -> np.ndarray[Any, Any]:
    count = int(np.prod(shape))
    return np.linspace(-1, 1, count, dtype=np.float32).reshape(shape)


def _transpose_type(x: TensorType, order: tuple[int, ...]) -> TensorType:
    if sorted(order) != list(range(x.ndim)):
        raise AxisError(
            "transpose",
            "order is not a permutation of the axes",
            expected=f"each of 0 to {x.ndim - 1} once",
            got={"x": x, "order": order},
            fix=f"name every axis once, for example {tuple(reversed(range(x.ndim)))}",
        )
    return x.with_shape(tuple(x.shape[axis] for axis in order))


def inverse(order: Sequence[int]) -> tuple[int, ...]:
    """The permutation that undoes a permutation."""
    return tuple(sorted(range(len(order)), key=order.__getitem__))


transpose = Primitive(
    "transpose",
    "The axes in another order: axis i of the result is axis order[i] of x.",
    type_rule=_transpose_type,
    reference=lambda x, order: np.transpose(x, order),
    derivatives=[linear(lambda ct, x, order: bind(transpose, ct, order=inverse(order)))],
    batch=batch_each(
        lambda: transpose,
        lambda size, order: {"order": (0, *[axis + 1 for axis in order])},
    ),
    samples=lambda: [
        Sample((_array(2, 3),), {"order": (1, 0)}),
        Sample((_array(2, 3, 4),), {"order": (2, 0, 1)}),
        Sample((_array(),), {"order": ()}),
    ],
)


def _reshape_type(x: TensorType, shape: Shape) -> TensorType:
    if not equal(size(x.shape), size(shape)):
        raise ShapeError(
            "reshape",
            "the number of elements differs",
            expected="shapes with the same number of elements",
            got={"x": x, "shape": list(shape)},
            note=f"{size(x.shape)} != {size(shape)}",
            fix="let one dimension be found: x.reshape(-1)",
        )
    return x.with_shape(shape)


reshape = Primitive(
    "reshape",
    "The same elements in row-major order in another shape.",
    type_rule=_reshape_type,
    reference=lambda x, shape: np.reshape(x, shape),
    derivatives=[linear(lambda ct, x, shape: bind(reshape, ct, shape=x.shape))],
    batch=batch_each(lambda: reshape, lambda size, shape: {"shape": (size, *shape)}),
    samples=lambda: [
        Sample((_array(2, 6),), {"shape": (3, 4)}),
        Sample((_array(1),), {"shape": ()}),
        Sample((_array(0, 3),), {"shape": (3, 0, 2)}),
    ],
)


def _broadcast_type(x: TensorType, shape: Shape) -> TensorType:
    found = broadcast_shapes("broadcast_to", [x.shape, shape], {"x": x, "shape": list(shape)})
    if len(found) != len(shape) or any(not equal(a, b) for a, b in zip(found, shape, strict=True)):
        raise ShapeError(
            "broadcast_to",
            "the tensor does not broadcast to the shape",
            expected="each dimension equal to the target's, or 1",
            got={"x": x, "shape": list(shape)},
            fix="reshape x so that its axes line up with the target's from the right",
        )
    return x.with_shape(shape)


def _batch_broadcast(
    size: Dimension, operands: tuple[Tensor, ...], axes: tuple[int | None, ...], shape: Shape
) -> tuple[Tensor, int]:
    assert axes[0] is not None
    front = move_axis(operands[0], axes[0], 0)
    aligned = (size, *[1] * (len(shape) - front.ndim + 1), *front.shape[1:])
    return apply(broadcast_to, bind(reshape, front, shape=aligned), shape=(size, *shape)), 0


broadcast_to = Primitive(
    "broadcast_to",
    "The tensor repeated along new axes and axes of size 1 to fill a shape.",
    type_rule=_broadcast_type,
    reference=lambda x, shape: np.broadcast_to(x, shape),
    derivatives=[linear(lambda ct, x, shape: sum_to(ct, x.shape))],
    batch=_batch_broadcast,
    samples=lambda: [
        Sample((_array(3, 1),), {"shape": (2, 3, 4)}),
        Sample((_array(),), {"shape": (2,)}),
        Sample((_array(2, 2),), {"shape": (2, 2)}),
    ],
)


def _concatenate_type(*xs: TensorType, axis: int) -> TensorType:
    first = xs[0]
    got = {f"x{index + 1}": x for index, x in enumerate(xs)}
    for x in xs[1:]:
        if x.ndim != first.ndim or x.dtype is not first.dtype:
            raise ShapeError(
                "concatenate",
                "tensors of different rank or dtype",
                expected="tensors of one rank and dtype",
                got=got,
                fix="reshape or convert them first",
            )
        for position, (a, b) in enumerate(zip(first.shape, x.shape, strict=True)):
            if position != axis:
                require_equal(
                    "concatenate",
                    a,
                    b,
                    expected=f"equal sizes on every axis but {axis}",
                    got=got,
                    fix="pad or slice the tensors to equal sizes on the other axes",
                    what=f"axis {position}",
                )
    total: Dimension = 0
    for x in xs:
        total = total + x.shape[axis]
    return first.with_shape((*first.shape[:axis], total, *first.shape[axis + 1 :]))


def _part(ct: Tensor, xs: Sequence[Tensor], index: int, axis: int) -> Tensor:
    """The stretch of a concatenation's cotangent that belongs to one operand."""
    start: Dimension = 0
    for x in xs[:index]:
        start = start + x.shape[axis]
    starts = [0] * ct.ndim
    stops = list(ct.shape)
    starts[axis] = start  # type: ignore[call-overload]
    stops[axis] = start + xs[index].shape[axis]
    return apply(
        slice_, ct, starts=tuple(starts), stops=tuple(stops), strides=(1,) * ct.ndim
    )


concatenate = Primitive(
    "concatenate",
    "Tensors joined along one of their axes.",
    type_rule=_concatenate_type,
    reference=lambda *xs, axis: np.concatenate(xs, axis),
    derivatives=every(
        lambda index: additive(lambda ct, *xs, axis: _part(ct, xs, index, axis))
    ),
    batch=lambda size, operands, axes, axis: (
        bind(
            concatenate,
            *[to_front(size, x, a) for x, a in zip(operands, axes, strict=True)],
            axis=axis + 1,
        ),
        0,
    ),
    samples=lambda: [
        Sample((_array(2, 3), _array(1, 3)), {"axis": 0}),
        Sample((_array(2, 3), _array(2, 0), _array(2, 2)), {"axis": 1}),
    ],
)


def _slice_type(x: TensorType, starts: Shape, stops: Shape, strides: Shape) -> TensorType:
    return x.with_shape(
        tuple(
            (stop - start + stride - 1) // stride
            for start, stop, stride in zip(starts, stops, strides, strict=True)
        )
    )


def _unslice(ct: Tensor, x: Tensor, starts: Shape, stops: Shape, strides: Shape) -> Tensor:
    """Zeros around and between the elements of a slice's cotangent."""
    padding = []
    for dim, start, stride, kept in zip(x.shape, starts, strides, ct.shape, strict=True):
        span = (kept - 1) * stride + 1 if kept != 0 else 0
        padding.append((start, dim - start - span, stride - 1))
    return apply(pad, ct, padding=tuple(padding), value=0.0)


slice_ = Primitive(
    "slice",
    "From each axis the elements start, start + stride, … before stop; strides are positive.",
    type_rule=_slice_type,
    reference=lambda x, starts, stops, strides: x[
        tuple(slice(*bounds) for bounds in zip(starts, stops, strides, strict=True))
    ],
    derivatives=[linear(_unslice)],
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
    ],
)

Padding = tuple[tuple[Dimension, Dimension, Dimension], ...]


def _pad_type(x: TensorType, padding: Padding, value: float) -> TensorType:
    shape = []
    for dim, (low, high, between) in zip(x.shape, padding, strict=True):
        gaps = (dim - 1) * between if dim != 0 else 0
        shape.append(low + dim + gaps + high)
    return x.with_shape(tuple(shape))


def _padded(x: Any, padding: Any, value: float) -> Any:
    shape = _pad_type(TensorType(None, x.shape), padding, value).shape  # type: ignore[arg-type]
    out = np.full(shape, value, x.dtype)
    inner = tuple(
        slice(low, low + (dim - 1) * (between + 1) + 1 if dim else low, between + 1)
        for dim, (low, _, between) in zip(x.shape, padding, strict=True)
    )
    out[inner] = x
    return out


def _unpad(ct: Tensor, x: Tensor, padding: Padding, value: float) -> Tensor:
    starts = tuple(low for low, _, _ in padding)
    strides = tuple(between + 1 for _, _, between in padding)
    stops = tuple(
        low + (dim - 1) * stride + 1 if dim != 0 else low
        for dim, low, stride in zip(x.shape, starts, strides, strict=True)
    )
    return apply(slice_, ct, starts=starts, stops=stops, strides=strides)


def _zero_padding(x: TensorType, padding: Padding, value: float) -> None:
    if any(part < 0 for sides in padding for part in sides):
        raise ArgumentError(
            "pad",
            "negative padding",
            expected="widths of at least 0",
            got={"x": x, "padding": padding},
            fix="slice the tensor to make it smaller",
        )


pad = Primitive(
    "pad",
    "A constant before, after and between the elements of each axis: (low, high, between) per axis.",
    type_rule=lambda x, padding, value: (
        _zero_padding(x, padding, value) or _pad_type(x, padding, value)  # type: ignore[func-returns-value]
    ),
    reference=_padded,
    derivatives=[linear(_unpad)],
    batch=batch_each(
        lambda: pad,
        lambda size, padding, value: {"padding": ((0, 0, 0), *padding), "value": value},
    ),
    samples=lambda: [
        Sample((_array(2, 3),), {"padding": ((1, 2, 0), (0, 1, 2)), "value": 0.0}),
        Sample((_array(0, 2),), {"padding": ((1, 1, 1), (0, 0, 0)), "value": 0.0}),
    ],
)


def _full(shape: Shape, dtype: Any, value: Any) -> np.ndarray[Any, Any]:
    return np.full(shape, value, dtype.numpy)  # type: ignore[arg-type]


full = Primitive(
    "full",
    "A tensor of one value.",
    type_rule=lambda shape, dtype, value: TensorType(dtype, shape),
    reference=_full,
    derivatives=(),
    batch=lambda size, operands, axes, **params: (bind(full, **params), None),
    samples=lambda: [],
)
_ = constant
