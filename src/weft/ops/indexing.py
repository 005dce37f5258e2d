"""Indexing: elements read and written at places that are themselves data.

`gather` reads and the `scatter` family writes. Index tensors of one common shape address the
listed axes of `x` together; the other axes are kept whole. Where `x` is `[vocabulary, features]`,
one index of shape `[batch, time]` on axis 0 makes `[batch, time, features]`. Indices are int64 and
count from 0; one outside its axis is an error when the primitive runs, also inside a transform.
Counting from the end, broadcasting and NumPy's order of axes are the public functions' work.

>>> import weft as wf
>>> wf.tensor([10.0, 20.0, 30.0])[wf.tensor([2, 0])].tolist()
[30.0, 10.0]
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from weft.core.dtypes import INDEX
from weft.core.errors import AxisError, BoundsError, DTypeError, ShapeError
from weft.core.shapes import Dimension, Shape, require_equal, size
from weft.core.types import TensorType
from weft.ir import numerics
from weft.ir.batching import move_axis, to_front
from weft.ir.constants import beside_operands
from weft.ir.derivatives import (
    Every,
    OperandDerivative,
    additive,
    constant,
    every,
    linear,
    tangent,
)
from weft.ir.dispatch import apply, bind
from weft.ir.kinds import Gather, Scatter
from weft.ir.primitive import PRIMITIVES, Mistake, Primitive, Sample
from weft.ir.reverse import filled_tensor, zeros
from weft.ir.sharding import SUM, Partial
from weft.ir.tensor import Tensor
from weft.ops import sharding_rules as shardings
from weft.ops.arithmetic import divide, multiply
from weft.ops.comparison import equal
from weft.ops.creation import iota
from weft.ops.movement import broadcast_to, check_one_dtype, reshape
from weft.ops.movement_backs import inverse
from weft.ops.operands import DTYPE_CLASSES, convert_to, scalar_tensor, wrong_dtype
from weft.ops.selection import where

__all__: list[str] = []

Array = np.ndarray[Any, Any]
Axes = tuple[int, ...]
Write = Callable[[Array, Array, Array], None]
NO_DERIVATIVE = constant("an index is a place, not a quantity")


# --- what reading and writing share ------------------------------------------------------------


def count_up(count: Dimension) -> Tensor:
    """The integers from 0 to count - 1."""
    return apply(iota, shape=(count,), dtype=INDEX, axis=0)


def extent(dim: Dimension) -> Tensor:
    """A dimension as a tensor; a symbolic one is counted when its size is known."""
    if isinstance(dim, int):
        return scalar_tensor("index", dim, INDEX)
    return apply(PRIMITIVES["reduce_sum"], filled_tensor((dim,), INDEX, 1), axes=(0,))


def _other_axes(ndim: int, axes: Axes) -> Axes:
    return tuple([axis for axis in range(ndim) if axis not in axes])


def _operands_by_name(x: object, indices: Sequence[object]) -> dict[str, Any]:
    return {"x": x} | {f"index{i + 1}": index for i, index in enumerate(indices)}


def _kept_shape(op: str, x: TensorType, indices: Sequence[TensorType], axes: Axes) -> Shape:
    """Index shape and then the axes not indexed, or an error for indices that do not fit."""
    got = _operands_by_name(x, indices)
    if not axes or len(axes) != len(indices) or not set(axes) <= set(range(x.ndim)):
        raise AxisError(
            op,
            "indices and indexed axes do not go together",
            expected="one index for each of one or more axes of x",
            got={**got, "axes": axes},
            fix="give as many indices as axes, and axes that x has",
        )
    if len(set(axes)) != len(axes):
        raise AxisError(
            op,
            "an axis is indexed twice",
            expected="distinct axes",
            got={**got, "axes": axes},
            fix="index each axis once",
        )
    for index in indices:
        _check_index(op, indices[0], index, got)
    return indices[0].shape + tuple([x.shape[axis] for axis in _other_axes(x.ndim, axes)])


def _check_index(op: str, first: TensorType, index: TensorType, got: Mapping[str, object]) -> None:
    if index.dtype is not INDEX:
        raise DTypeError(
            op,
            f"indices must be {INDEX.name}",
            expected=INDEX.name,
            got=got,
            fix=f'convert first: index.astype("{INDEX.name}")',
        )
    if len(first.shape) != len(index.shape):
        raise ShapeError(
            op,
            "indices have different ranks",
            expected="indices of one shape",
            got=got,
            fix="broadcast first: wf.broadcast_arrays(index1, index2)",
        )
    for a, b in zip(first.shape, index.shape, strict=True):
        require_equal(
            op,
            a,
            b,
            expected="indices of one shape",
            got=got,
            fix="broadcast first: wf.broadcast_arrays(index1, index2)",
            what="indices have different shapes",
        )


def check_bounds(op: str, shape: Sequence[int], indices: Sequence[Array], axes: Axes) -> None:
    """Refuse indices outside the axes that they address."""
    for index, axis in zip(indices, axes, strict=True):
        once = index[tuple([slice(None if step else 1) for step in index.strides])]  # no repeats
        if index.size and (once.min() < 0 or once.max() >= shape[axis]):
            outside = once[(once < 0) | (once >= shape[axis])]
            raise out_of_range(op, int(outside.flat[0]), axis, shape[axis])


def out_of_range(op: str, index: int, axis: int, dim: Dimension) -> BoundsError:
    """The error for an index outside its axis."""
    if dim == 0:
        fix = f"give x elements on axis {axis} first: it has none"
    else:
        fix = f"use an index from 0 to {dim - 1}, or wf.clip(index, 0, {dim - 1})"
    return BoundsError(
        op,
        f"index {index} is out of range for axis {axis} of size {dim}",
        expected=f"{-dim} <= index < {dim}",
        got={"index": index, "axis": axis, "size": dim},
        fix=fix,
    )


# --- gather ------------------------------------------------------------------------------------


def _gather_rows(x: Array, *indices: Array, axes: Axes) -> Array:
    check_bounds("gather", x.shape, indices, axes)
    indexed_first = x.transpose(*axes, *_other_axes(x.ndim, axes))  # [*indexed axes, *rest]
    single = len(axes) == 1
    return np.take(indexed_first, indices[0], axis=0) if single else indexed_first[indices]


def _batch_gather(
    size: Dimension, operands: tuple[Tensor, ...], places: tuple[int | None, ...], /, axes: Axes
) -> tuple[Tensor, int]:
    x, *indices = operands
    shifted = axes if places[0] is None else tuple([axis + 1 for axis in axes])
    if places[0] is not None:
        x = move_axis(x, places[0], 0)
    if all(place is None for place in places[1:]):
        return apply(gather, x, *indices, axes=shifted), indices[0].ndim
    fronts = [to_front(size, i, place) for i, place in zip(indices, places[1:], strict=True)]
    if places[0] is not None:
        fronts, shifted = [along_front(fronts[0]), *fronts], (0, *shifted)
    return apply(gather, x, *fronts, axes=shifted), 0


@beside_operands
def along_front(index: Tensor) -> Tensor:
    """The index that addresses the batch axis: 0, 1, … along the front of another index."""
    count = index.shape[0]
    column = apply(reshape, count_up(count), shape=(count, *[1] * (index.ndim - 1)))
    return apply(broadcast_to, column, shape=index.shape)


def linear_in_elements(transpose: Callable[..., Tensor]) -> Every:
    """The derivatives of what reads or moves the first operand's elements by places, the others."""
    return every(lambda operand: linear(transpose) if operand == 0 else NO_DERIVATIVE)


def _ungather(ct: Tensor, x: Tensor, *indices: Tensor, axes: Axes) -> Tensor:
    return apply(scatter_add, zeros(x.type), ct, *indices, axes=axes)


def _ramp(*shape: int) -> Array:
    return np.linspace(-1, 1, int(np.prod(shape)), dtype=np.float32).reshape(shape)


def _places(*values: Any) -> Array:
    return np.array(values[0] if len(values) == 1 else values, np.int64)


def _samples_at() -> list[tuple[tuple[int, ...], tuple[Array, ...], Axes]]:
    """Shapes of x, indices and axes: repeated places, several indices, no axes, no elements."""
    return [
        ((5, 3), (_places([4, 0, 4]),), (0,)),
        ((2, 3, 4), (_places([[0, 1], [2, 2]]), _places([[1, 1], [0, 0]])), (1, 0)),
        ((4,), (_places(2),), (0,)),
        ((2, 3), (_places(1), _places(2)), (0, 1)),
        ((2, 0, 3), (np.zeros((0, 2), np.int64),), (1,)),
        ((2, 3), (_places([2, 1]),), (1,)),
    ]


gather: Primitive = Primitive(
    "gather",
    "The elements of x at index tensors that address `axes`: index shape, then the other axes.",
    kind=Gather(checked=True),
    sharding=shardings.of_gather,
    type_rule=lambda x, *indices, axes: x.with_shape(_kept_shape("gather", x, indices, axes)),
    reference=_gather_rows,
    derivatives=linear_in_elements(_ungather),
    batch=_batch_gather,
    samples=lambda: [
        Sample((_ramp(*shape), *indices), {"axes": axes}) for shape, indices, axes in _samples_at()
    ],
    mistakes=lambda: [
        Mistake((_ramp(3), _places([3])), {"axes": (0,)}, BoundsError, "out of range"),
        Mistake((_ramp(3), _places([-1])), {"axes": (0,)}, BoundsError, "out of range"),
        Mistake((_ramp(3), _places([0])), {"axes": (1,)}, AxisError, "do not go together"),
        Mistake((_ramp(3),), {"axes": ()}, AxisError, "do not go together"),
        Mistake((_ramp(3), np.array([0.0])), {"axes": (0,)}, DTypeError, "must be int64"),
        Mistake(
            (_ramp(3, 3), _places([0]), _places([0, 1])), {"axes": (0, 1)}, ShapeError, "shapes"
        ),
        Mistake((_ramp(3, 3), _places(0), _places([0])), {"axes": (0, 1)}, ShapeError, "ranks"),
        Mistake((_ramp(3, 3), _places(0), _places(0)), {"axes": (1, 1)}, AxisError, "twice"),
    ],
)


# --- the scatter family ------------------------------------------------------------------------


def _scatter_type(
    op: str, dtypes: str, x: TensorType, updates: TensorType, *indices: TensorType, axes: Axes
) -> TensorType:
    got = {"x": x, "updates": updates}
    check_one_dtype(op, got)
    if x.dtype not in DTYPE_CLASSES[dtypes]:
        raise wrong_dtype(op, dtypes, got)
    wanted = _kept_shape(op, x, indices, axes)
    expected = f"updates of shape {list(wanted)}: index shape, then the axes not indexed"
    fix = f"broadcast them first: wf.broadcast_to(updates, {wanted})"
    if len(wanted) != updates.ndim:
        raise ShapeError(op, "updates of the wrong rank", expected=expected, got=got, fix=fix)
    for a, b in zip(wanted, updates.shape, strict=True):
        what = "updates of the wrong shape"
        require_equal(op, a, b, expected=expected, got=got, fix=fix, what=what)
    return x


def _scatter_rows(
    op: str, write: Write, x: Array, updates: Array, indices: tuple[Array, ...], axes: Axes
) -> Array:
    """Write rows of updates into a copy of x, one after the other in row-major order of index."""
    check_bounds(op, x.shape, indices, axes)
    order = (*axes, *_other_axes(x.ndim, axes))
    out = np.array(x.transpose(order), order="C")  # [*indexed axes, *rest]
    heads = out.shape[: len(axes)]
    row = int(np.prod(out.shape[len(axes) :], dtype=int))
    # The indices as one number of a row, counted through all indexed axes.
    places = np.zeros(indices[0].size, np.int64)
    for dim, index in zip(heads, indices, strict=True):
        places = places * dim + index.reshape(-1)
    rows = updates.reshape(places.size, row)
    if rows.size:
        write(out.reshape(int(np.prod(heads, dtype=int)), row), places, rows)
    return out.transpose(inverse(order))


def _write_last(out: Array, places: Array, rows: Array) -> None:
    out[places] = rows


def _write_sum(out: Array, places: Array, rows: Array) -> None:
    """Add rows; those for one place are summed first, 16-bit floats in float32."""
    wide = np.float32 if out.dtype.itemsize == 2 and out.dtype.kind not in "iu" else out.dtype
    # Rows of one place stand together after sorting, in their old order, so sums are repeatable.
    order = np.argsort(places, kind="stable")
    sorted_places = places[order]
    starts = np.flatnonzero(np.diff(sorted_places, prepend=-1))
    sums = np.add.reduceat(rows[order].astype(wide, copy=False), starts, axis=0)
    touched = sorted_places[starts]
    out[touched] = (out[touched].astype(wide, copy=False) + sums).astype(out.dtype, copy=False)


def _batch_scatter(primitive_of: Callable[[], Primitive]) -> Callable[..., tuple[Tensor, int]]:
    def batch(
        size: Dimension,
        operands: tuple[Tensor, ...],
        places: tuple[int | None, ...],
        /,
        axes: Axes,
        **params: Any,
    ) -> tuple[Tensor, int]:
        shifted = tuple([axis + 1 for axis in axes])
        x, updates = [to_front(size, o, p) for o, p in zip(operands[:2], places[:2], strict=True)]
        indices = operands[2:]
        if all(place is None for place in places[2:]):
            updates = move_axis(updates, 0, indices[0].ndim)
            return apply(primitive_of(), x, updates, *indices, axes=shifted, **params), 0
        fronts = [to_front(size, i, p) for i, p in zip(indices, places[2:], strict=True)]
        indexed = [along_front(fronts[0]), *fronts]
        return apply(primitive_of(), x, updates, *indexed, axes=(0, *shifted), **params), 0

    return batch


def _scatter_samples(**params: Any) -> list[Sample]:
    samples = []
    for shape, indices, axes in _samples_at():
        rest = [shape[axis] for axis in _other_axes(len(shape), axes)]
        updates = _ramp(*indices[0].shape, *rest) * 0.7 + 0.1
        operands = (_ramp(*shape), updates.astype(np.float32), *indices)
        samples.append(Sample(operands, {"axes": axes, **params}))
    return samples


def _scatter_mistakes(**params: Any) -> list[Mistake]:
    x, at, on = _ramp(3), _places([1]), {"axes": (0,), **params}
    return [
        Mistake((x, _ramp(1), _places([3])), on, BoundsError, "out of range"),
        Mistake((x, _ramp(2), at), on, ShapeError, "updates of the wrong shape"),
        Mistake((x, _ramp(), at), on, ShapeError, "updates of the wrong rank"),
        Mistake((x, np.ones(1), at), on, DTypeError, "different dtypes"),
    ]


def _only_last(
    values: Tensor, x: Tensor, indices: tuple[Tensor, ...], axes: Axes, unique: bool
) -> Tensor:
    """The values, with zero in place of those that a later index overwrites.

    Each index writes its number to its place; the one that finds its own number there was last.
    """
    if unique or size(indices[0].shape) == 1:
        return values
    shape = indices[0].shape
    own = apply(reshape, count_up(size(shape)), shape=shape)
    heads = tuple(range(len(axes)))
    canvas = filled_tensor(tuple([x.shape[axis] for axis in axes]), INDEX, 0)
    last_numbers = apply(scatter, canvas, own, *indices, axes=heads, unique=False)
    is_last = equal(apply(gather, last_numbers, *indices, axes=heads), own)
    mask = apply(reshape, is_last, shape=shape + (1,) * (values.ndim - len(shape)))
    return where(mask, values, zeros(values.type))


def _overwrite(
    ct: Tensor, x: Tensor, updates: Tensor, *indices: Tensor, axes: Axes, unique: bool
) -> Tensor:
    return apply(scatter, ct, zeros(updates.type), *indices, axes=axes, unique=unique)


def _read_last(
    ct: Tensor, x: Tensor, updates: Tensor, *indices: Tensor, axes: Axes, unique: bool
) -> Tensor:
    return _only_last(apply(gather, ct, *indices, axes=axes), x, indices, axes, unique)


scatter: Primitive = Primitive(
    "scatter",
    "x with the elements at the indices replaced; of several for one place the last one stays. "
    "`unique` promises that no place is written twice.",
    kind=Scatter(None, checked=True),
    sharding=shardings.of_scatter(None),
    type_rule=lambda *types, axes, unique: _scatter_type("scatter", "any", *types, axes=axes),
    reference=lambda x, updates, *indices, axes, unique: _scatter_rows(
        "scatter", _write_last, x, updates, indices, axes
    ),
    derivatives=every(
        lambda operand: (additive(_overwrite), additive(_read_last), NO_DERIVATIVE)[min(operand, 2)]
    ),
    batch=_batch_scatter(lambda: scatter),
    samples=lambda: [
        *_scatter_samples(unique=False),
        Sample((_ramp(3), _ramp(2), _places([2, 0])), {"axes": (0,), "unique": True}),
        Sample((np.arange(3), np.arange(2), _places([1, 1])), {"axes": (0,), "unique": False}),
    ],
    mistakes=lambda: _scatter_mistakes(unique=False),
)

scatter_add: Primitive = Primitive(
    "scatter_add",
    "x with the updates added at the indices; all of several for one place count.",
    kind=Scatter("add", checked=True),
    sharding=shardings.of_scatter({"x": SUM, "result": SUM}),
    type_rule=lambda *types, axes: _scatter_type("scatter_add", "number", *types, axes=axes),
    reference=lambda x, updates, *indices, axes: _scatter_rows(
        "scatter_add", _write_sum, x, updates, indices, axes
    ),
    derivatives=every(
        lambda operand: (
            additive(lambda ct, x, updates, *indices, axes: ct),
            additive(lambda ct, x, updates, *indices, axes: bind(gather, ct, *indices, axes=axes)),
            NO_DERIVATIVE,
        )[min(operand, 2)]
    ),
    batch=_batch_scatter(lambda: scatter_add),
    samples=_scatter_samples,
    mistakes=_scatter_mistakes,
)


def _extreme_tangent(
    t: Tensor,
    out: Tensor,
    x: Tensor,
    updates: Tensor,
    indices: tuple[Tensor, ...],
    axes: Axes,
    of_x: bool,
) -> Tensor:
    """Shared evenly by all that are equal to the extreme, as in a maximum over an axis."""
    stays = convert_to(equal(x, out), out.dtype)
    hits = convert_to(equal(updates, bind(gather, out, *indices, axes=axes)), out.dtype)
    count = apply(scatter_add, stays, hits, *indices, axes=axes)
    if of_x:
        return multiply(t, divide(stays, count))
    weights = divide(hits, bind(gather, count, *indices, axes=axes))
    return apply(scatter_add, zeros(out.type), multiply(t, weights), *indices, axes=axes)


def _scatter_extreme(name: str, doc: str, write: Write, terms: Partial) -> Primitive:
    def derivative(operand: int) -> OperandDerivative:
        if operand > 1:
            return NO_DERIVATIVE
        return tangent(
            lambda t, out, x, updates, *indices, axes: _extreme_tangent(
                t, out, x, updates, indices, axes, operand == 0
            )
        )

    primitive = Primitive(
        name,
        doc,
        kind=Scatter(terms.combine, checked=True),
        sharding=shardings.of_scatter({"result": terms}),
        type_rule=lambda *types, axes: _scatter_type(name, "real", *types, axes=axes),
        reference=lambda x, updates, *indices, axes: _scatter_rows(
            name, write, x, updates, indices, axes
        ),
        derivatives=every(derivative),
        batch=_batch_scatter(lambda: primitive),
        samples=_scatter_samples,
        mistakes=_scatter_mistakes,
    )
    return primitive


scatter_max = _scatter_extreme(
    "scatter_max", "x with each indexed element replaced by the largest of it and its updates.",
    numerics.keep_largest, Partial("maximum"),
)  # fmt: skip
scatter_min = _scatter_extreme(
    "scatter_min", "x with each indexed element replaced by the smallest of it and its updates.",
    numerics.keep_smallest, Partial("minimum"),
)  # fmt: skip


def _other_factors(x: Tensor, updates: Tensor, indices: tuple[Tensor, ...], axes: Axes) -> Tensor:
    """For each update the product of all else that is multiplied at its place.

    Dividing the whole product by the update would fail where it is zero, so zeros are left out of
    the product and counted: a lone zero has all others as its factor, and all others have it.
    """
    is_zero = equal(updates, zeros(updates.type))
    count = apply(scatter_add, zeros(x.type), convert_to(is_zero, x.dtype), *indices, axes=axes)
    ones = filled_tensor(updates.shape, updates.dtype, 1)
    product = bind(scatter_multiply, x, where(is_zero, ones, updates), *indices, axes=axes)
    at_place = bind(gather, product, *indices, axes=axes)
    zeros_there = bind(gather, count, *indices, axes=axes)
    nothing = zeros(updates.type)
    rest = where(is_zero, at_place, divide(at_place, where(is_zero, ones, updates)))
    alone = convert_to(is_zero, updates.dtype)
    return where(equal(zeros_there, alone), rest, nothing)


def _product_tangent(
    t: Tensor, out: Tensor, x: Tensor, updates: Tensor, *indices: Tensor, axes: Axes
) -> Tensor:
    factors = _other_factors(x, updates, indices, axes)
    return apply(scatter_add, zeros(x.type), multiply(t, factors), *indices, axes=axes)


def _multiply_back(ct: Tensor, x: Tensor, updates: Tensor, *indices: Tensor, axes: Axes) -> Tensor:
    """Each element is multiplied by one factor, so the way back is the same."""
    return apply(scatter_multiply, ct, updates, *indices, axes=axes)


scatter_multiply: Primitive = Primitive(
    "scatter_multiply",
    "x with each indexed element multiplied by its updates, one after the other.",
    kind=Scatter("multiply", checked=True),
    sharding=shardings.of_scatter(None),
    type_rule=lambda *types, axes: _scatter_type("scatter_multiply", "number", *types, axes=axes),
    reference=lambda x, updates, *indices, axes: _scatter_rows(
        "scatter_multiply", np.multiply.at, x, updates, indices, axes
    ),
    derivatives=every(
        lambda operand: (linear(_multiply_back), tangent(_product_tangent), NO_DERIVATIVE)[
            min(operand, 2)
        ]
    ),
    batch=_batch_scatter(lambda: scatter_multiply),
    samples=_scatter_samples,
    mistakes=_scatter_mistakes,
)
