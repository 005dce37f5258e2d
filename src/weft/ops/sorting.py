"""Sorting: elements in order along an axis, and where they would go.

All orders are stable: of equal elements the earlier one comes first, also where the order is
descending. NaN counts as greater than every number, complex numbers are ordered by real part and
then imaginary part, both as in NumPy.

>>> import weft as wf
>>> wf.argsort(wf.tensor([2.0, 1.0, 2.0]), descending=True).tolist()
[0, 2, 1]
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from weft.core.dtypes import INDEX
from weft.core.errors import ArgumentError, AxisError, DTypeError, ShapeError, Unsupported
from weft.core.shapes import Dimension, Shape, require_equal, size
from weft.core.types import TensorType
from weft.ir.batching import move_axis, to_front
from weft.ir.constants import beside_operands
from weft.ir.derivatives import constant, tangent
from weft.ir.dispatch import apply, apply_multiple, bind
from weft.ir.kinds import Search, Sort
from weft.ir.primitive import Mistake, Primitive, Sample
from weft.ir.tensor import Tensor
from weft.ops import sharding_rules as shardings
from weft.ops.families import batch_each
from weft.ops.indexing import count_up, gather
from weft.ops.movement import broadcast_to, check_one_dtype, is_below, reshape

__all__: list[str] = []

Array = np.ndarray[Any, Any]
OF_TARGET = Unsupported("an order is no loop over elements: a target has its own code for it")
_DISCRETE = "a place in an order does not vary with small changes"


@beside_operands
def along_axis(indices: Tensor, axis: int, shape: Shape) -> list[Tensor]:
    """Indices for all axes, of which `indices` addresses one: the others are counted up.

    The shape is that of the result; `indices` has it, or 1 in places.
    """
    index_tensors = []
    for each, dim in enumerate(shape):
        if each == axis:
            index_tensors.append(bind(broadcast_to, indices, shape=shape))
        else:
            line = bind(reshape, count_up(dim), shape=(dim, *[1] * (len(shape) - each - 1)))
            index_tensors.append(bind(broadcast_to, line, shape=shape))
    return index_tensors


def take_along(x: Tensor, indices: Tensor, axis: int) -> Tensor:
    """The elements of x at indices along one axis, position by position on the others."""
    places = along_axis(indices, axis, indices.shape)
    return apply(gather, x, *places, axes=tuple(range(x.ndim)))


def _check_axis(op: str, x: TensorType, axis: int) -> None:
    if not 0 <= axis < x.ndim:
        raise AxisError(
            op,
            f"axis {axis} is out of range",
            expected=f"an axis from 0 to {x.ndim - 1}" if x.ndim else "a tensor with axes",
            got={"x": x, "axis": axis},
            fix="give x an axis to sort along: x.reshape(-1)",
        )


def sortable_array(x: Array) -> Array:
    """The array in a dtype whose order NumPy knows: bfloat16 as float32."""
    return x.astype(np.float32) if x.dtype.kind == "V" else x


def order_of(x: Array, axis: int, descending: bool) -> Array:
    """The stable order along an axis."""
    keys = sortable_array(x)
    if not descending:
        return np.argsort(keys, axis=axis, kind="stable")
    reversed_order = np.argsort(np.flip(keys, axis), axis=axis, kind="stable")
    return np.flip(x.shape[axis] - 1 - reversed_order, axis)


# --- sort and argsort --------------------------------------------------------------------------


def _sort_type(x: TensorType, axis: int, descending: bool) -> TensorType:
    _check_axis("sort", x, axis)
    return x


def _argsort_type(x: TensorType, axis: int, descending: bool) -> TensorType:
    _check_axis("argsort", x, axis)
    return x.with_dtype(INDEX)


def _sort_stable(x: Array, axis: int, descending: bool) -> Array:
    """Stable, which zeros of both signs show: turned before and after where it descends."""
    keys = np.flip(sortable_array(x), axis) if descending else sortable_array(x)
    ascending = np.sort(keys, axis=axis, kind="stable").astype(x.dtype, copy=False)
    return np.flip(ascending, axis) if descending else ascending


def _sort_tangent(t: Tensor, out: Tensor, x: Tensor, axis: int, descending: bool) -> Tensor:
    return take_along(t, bind(argsort, x, axis=axis, descending=descending), axis)


def _shift(size: Dimension, axis: int, **params: Any) -> dict[str, Any]:
    return {"axis": axis + 1, **params}


def _shuffled_sample(*shape: int) -> Array:
    """Distinct numbers far enough apart for finite differences, in no order."""
    count = int(np.prod(shape))
    order = np.random.default_rng(count).permutation(count)
    return (order.reshape(shape) * 0.25 - 1).astype(np.float32)


def _sort_samples() -> list[Sample]:
    return [
        Sample((_shuffled_sample(5),), {"axis": 0, "descending": False}),
        Sample((_shuffled_sample(3, 4),), {"axis": 1, "descending": True}),
        Sample((_shuffled_sample(3, 2, 2),), {"axis": 0, "descending": False}),
        Sample((np.array([3, 1, 3, 2]),), {"axis": 0, "descending": True}),
        Sample((np.zeros((2, 0), np.float32),), {"axis": 1, "descending": False}),
    ]


def _sort_mistakes() -> list[Mistake]:
    params = {"axis": 1, "descending": False}
    return [Mistake((_shuffled_sample(3),), params, AxisError, "out of range")]


sort: Primitive = Primitive(
    "sort",
    "The elements along one axis in ascending or descending order.",
    kind=Sort(values=True),
    lower=OF_TARGET,
    type_rule=_sort_type,
    reference=_sort_stable,
    derivatives=[tangent(_sort_tangent)],
    batch=batch_each(lambda: sort, _shift),
    samples=_sort_samples,
    mistakes=_sort_mistakes,
)

argsort: Primitive = Primitive(
    "argsort",
    "The indices that put the elements along one axis in order; equal elements keep theirs.",
    kind=Sort(values=False),
    lower=OF_TARGET,
    type_rule=_argsort_type,
    reference=order_of,
    derivatives=[constant(_DISCRETE)],
    batch=batch_each(lambda: argsort, _shift),
    samples=_sort_samples,
    mistakes=_sort_mistakes,
)


# --- the first few in order --------------------------------------------------------------------


def _top_k_type(x: TensorType, k: int, axis: int, largest: bool) -> tuple[TensorType, TensorType]:
    _check_axis("top_k", x, axis)
    if k < 0 or is_below(x.shape[axis], k):
        raise ArgumentError(
            "top_k",
            f"there are no {k} elements along axis {axis}",
            expected=f"0 <= k <= {x.shape[axis]}",
            got={"x": x, "k": k, "axis": axis},
            fix=f"take them all: k={x.shape[axis]}",
        )
    values_type = x.with_shape((*x.shape[:axis], k, *x.shape[axis + 1 :]))
    return values_type, values_type.with_dtype(INDEX)


def _top_k(x: Array, k: int, axis: int, largest: bool) -> tuple[Array, Array]:
    front = [slice(None)] * x.ndim
    front[axis] = slice(k)
    indices = order_of(x, axis, largest)[tuple(front)]
    return np.take_along_axis(x, indices, axis), indices


def _top_k_tangent(
    t: Tensor, out: tuple[Tensor, Tensor], x: Tensor, k: int, axis: int, largest: bool
) -> tuple[Tensor, None]:
    return take_along(t, out[1], axis), None


def _batch_top_k(
    size: Dimension,
    operands: tuple[Tensor, ...],
    axes: tuple[int | None, ...],
    /,
    axis: int,
    **params: Any,
) -> tuple[tuple[Tensor, ...], tuple[int, int]]:
    front = to_front(size, operands[0], axes[0])
    return apply_multiple(top_k, front, axis=axis + 1, **params), (0, 0)


top_k: Primitive = Primitive(
    "top_k",
    "The k largest or smallest elements along one axis, in order, and their indices.",
    kind=Sort(values=True),
    lower=OF_TARGET,
    type_rule=_top_k_type,
    reference=_top_k,
    derivatives=[tangent(_top_k_tangent)],
    batch=_batch_top_k,
    samples=lambda: [
        Sample((_shuffled_sample(5),), {"k": 2, "axis": 0, "largest": True}),
        Sample((_shuffled_sample(3, 4),), {"k": 3, "axis": 0, "largest": False}),
        Sample((_shuffled_sample(2, 3),), {"k": 0, "axis": 1, "largest": True}),
        Sample((np.array([1, 3, 3, 2]),), {"k": 3, "axis": 0, "largest": True}),
    ],
    mistakes=lambda: [
        Mistake(
            (_shuffled_sample(3),), {"k": 4, "axis": 0, "largest": True}, ArgumentError, "no 4"
        ),
        Mistake(
            (_shuffled_sample(3),), {"k": 1, "axis": 1, "largest": True}, AxisError, "out of range"
        ),
    ],
    multiple=True,
)


# --- searchsorted ------------------------------------------------------------------------------


def _searchsorted_type(x: TensorType, values: TensorType, side: str) -> TensorType:
    got = {"x": x, "values": values}
    check_one_dtype("searchsorted", got)
    if x.ndim < 1 or x.ndim != values.ndim:
        raise ShapeError(
            "searchsorted",
            "x and values have different ranks, or none",
            expected="x: [..., n] and values: [..., m] with equal leading axes",
            got=got,
            fix="flatten the values first: values.reshape(-1)",
        )
    if side not in ("left", "right"):
        raise ArgumentError(
            "searchsorted",
            "unknown side",
            expected='"left" or "right"',
            got={"side": repr(side)},
            fix='side="left"',
        )
    for a, b in zip(x.shape[:-1], values.shape[:-1], strict=True):
        require_equal(
            "searchsorted",
            a,
            b,
            expected="equal leading axes",
            got=got,
            fix="broadcast the leading axes first: wf.broadcast_to",
            what="leading axes differ",
        )
    return values.with_dtype(INDEX)


def _search_rows(x: Array, values: Array, side: Any) -> Array:
    keys, wanted = sortable_array(x), sortable_array(values)
    if x.ndim == 1:
        return np.searchsorted(keys, wanted, side)
    out = np.zeros(values.shape, np.int64)
    for row in np.ndindex(x.shape[:-1]):
        out[row] = np.searchsorted(keys[row], wanted[row], side)
    return out


def _batch_searchsorted(
    size_: Dimension, operands: tuple[Tensor, ...], axes: tuple[int | None, ...], /, side: str
) -> tuple[Tensor, int]:
    x, values = operands
    if axes[0] is None and x.ndim == 1:  # one line of values, in place of a line of x for each
        assert axes[1] is not None
        front = move_axis(values, axes[1], 0)
        line = apply(reshape, front, shape=(size(front.shape),))
        places_in_rows = apply(searchsorted, x, line, side=side)
        return apply(reshape, places_in_rows, shape=front.shape), 0
    fronts = [to_front(size_, o, axis) for o, axis in zip(operands, axes, strict=True)]
    return apply(searchsorted, *fronts, side=side), 0


def _search_samples() -> Sequence[Sample]:
    line = np.array([-1.0, 0.5, 0.5, 2.0], np.float32)
    wanted = np.array([0.4, -2.0, 0.5, 3.0, 0.5], np.float32)
    stacked = np.stack([line, line * 2])
    return [
        Sample((line, wanted), {"side": "left"}, derivative=False),
        Sample((line, wanted), {"side": "right"}, derivative=False),
        Sample((stacked, np.stack([wanted, wanted])), {"side": "left"}, derivative=False),
        Sample((line[:0], wanted), {"side": "left"}, derivative=False),
    ]


searchsorted: Primitive = Primitive(
    "searchsorted",
    "Where each value would go in the ascending line x: before (left) or after (right) its equals.",
    kind=Search(),
    lower=Unsupported(
        "a search in a line is no loop over elements: a target has code of its own for it"
    ),
    sharding=shardings.of_searchsorted,
    type_rule=_searchsorted_type,
    reference=_search_rows,
    derivatives=[constant(_DISCRETE), constant(_DISCRETE)],
    batch=_batch_searchsorted,
    samples=_search_samples,
    mistakes=lambda: [
        Mistake(
            (_shuffled_sample(3), _shuffled_sample(2, 2)),
            {"side": "left"},
            ShapeError,
            "different ranks",
        ),
        Mistake(
            (_shuffled_sample(3), _shuffled_sample(2)),
            {"side": "up"},
            ArgumentError,
            "unknown side",
        ),
        Mistake(
            (_shuffled_sample(3), np.zeros(2)), {"side": "left"}, DTypeError, "different dtypes"
        ),
        Mistake(
            (_shuffled_sample(2, 3), _shuffled_sample(3, 3)),
            {"side": "left"},
            ShapeError,
            "leading axes",
        ),
    ],
)
