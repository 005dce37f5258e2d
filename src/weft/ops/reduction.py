"""Reductions: one operation over all elements along axes.

A reduction takes its axes as a sorted tuple of non-negative integers and drops them. Sums and
products of 16-bit floats are taken in float32. A NaN among the elements makes a NaN.

>>> import weft as wf
>>> wf.ones((2, 3)).sum(axis=0).tolist()
[2.0, 2.0, 2.0]
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

import numpy as np

from weft.core.dimensions import is_zero
from weft.core.dtypes import INDEX
from weft.core.errors import AxisError, ShapeError
from weft.core.shapes import Dimension, size
from weft.core.types import TensorType
from weft.ir import numerics
from weft.ir.batching import move_axis
from weft.ir.derivatives import OperandDerivative, constant, linear, tangent
from weft.ir.dispatch import apply
from weft.ir.kinds import Reduction, Search
from weft.ir.primitive import Lower, Mistake, Primitive, Sample
from weft.ir.scalars import Combine
from weft.ir.tensor import Tensor
from weft.ops.comparison import equal
from weft.ops.cumulative import cumulative_prod, is_narrow, shift_by_one
from weft.ops.families import batch_each
from weft.ops.movement import broadcast_to, reshape, transpose
from weft.ops.movement_backs import inverse
from weft.ops.operands import DTYPE_CLASSES, convert_to, wrong_dtype

__all__: list[str] = []

Array = np.ndarray[Any, Any]
Axes = tuple[int, ...]


def reduced_type(x: TensorType, axes: Axes) -> TensorType:
    """The type without the reduced axes."""
    return x.with_shape(tuple([dim for axis, dim in enumerate(x.shape) if axis not in axes]))


def repeat_reduced(reduced: Tensor, like: Tensor, axes: Axes) -> Tensor:
    """A reduction's result repeated along the reduced axes."""
    if not axes:
        return reduced
    leading = axes[-1] == len(axes) - 1  # what broadcasting adds by itself
    return apply(
        broadcast_to, reduced if leading else keep_reduced(reduced, like, axes), shape=like.shape
    )


def keep_reduced(reduced: Tensor, like: Tensor, axes: Axes) -> Tensor:
    """A reduction's result with the reduced axes kept, of size 1."""
    shape = tuple([1 if axis in axes else dim for axis, dim in enumerate(like.shape)])
    return apply(reshape, reduced, shape=shape) if axes else reduced


def check_axes(op: str, x: TensorType, axes: Axes) -> None:
    """Refuse axes that are not sorted, not unique or not there."""
    if axes and (axes[0] < 0 or axes[-1] >= x.ndim):
        raise _axes_error(op, "an axis is out of range", x, axes)
    if len(axes) > 1 and any(a >= b for a, b in pairwise(axes)):
        raise _axes_error(op, "axes are not in ascending order", x, axes)


def _axes_error(op: str, problem: str, x: TensorType, axes: Axes) -> AxisError:
    return AxisError(
        op,
        problem,
        expected=f"ascending axes from 0 to {x.ndim - 1}",
        got={"x": x, "axes": axes},
        fix=f"axes={tuple(sorted({axis % max(x.ndim, 1) for axis in axes}))}",
    )


def refuse_empty(op: str, x: TensorType, axes: Axes) -> None:
    """Refuse a reduction without identity over no elements."""
    if any(is_zero(x.shape[axis]) for axis in axes):
        raise ShapeError(
            op,
            "nothing to reduce: the tensor is empty along the axes",
            expected="at least one element along each reduced axis",
            got={"x": x, "axis": axes},
            fix="test x.size first, or join a default element with wf.concat",
        )


def reduction(
    name: str,
    *,
    doc: str,
    reference: Callable[..., Any],
    derivative: OperandDerivative,
    combine: Combine,
    dtypes: str,
    identity: bool,
    lower: Lower | None = None,
    more_samples: Sequence[Sample] = (),
) -> Primitive:
    """Define a primitive that reduces axes and keeps the dtype.

    combine: the instruction that two elements, or partial results, are combined by. dtypes: the
    class of dtypes it is defined for. identity: whether no elements have a result. lower: what is
    combined of an element, where that is not the element itself; see `Primitive`.
    """
    allowed = frozenset(DTYPE_CLASSES[dtypes])

    def type_rule(x: TensorType, axes: Axes) -> TensorType:
        if x.dtype not in allowed:
            raise wrong_dtype(name, dtypes, {"x": x})
        check_axes(name, x, axes)
        if not identity:
            refuse_empty(name, x, axes)
        return reduced_type(x, axes)

    primitive = Primitive(
        name,
        doc,
        kind=Reduction(combine),
        lower=lower,
        type_rule=type_rule,
        reference=reference,
        derivatives=[derivative],
        batch=batch_each(
            lambda: primitive, lambda size, axes: {"axes": tuple([axis + 1 for axis in axes])}
        ),
        samples=lambda: [*reduction_samples(dtypes, identity), *more_samples],
        mistakes=lambda: _mistakes(dtypes, identity),
    )
    return primitive


def reduction_samples(dtypes: str, identity: bool) -> list[Sample]:
    """Well separated elements in scrambled order, over each kind of axes."""
    values = (np.arange(24) * 7 % 24 / 8 - 1.45).reshape(2, 3, 4)
    cube: Array = values > 0 if dtypes == "bool" else values.astype(np.float32)
    samples = [Sample((cube,), {"axes": axes}) for axes in ((0,), (1, 2), (), (0, 1, 2))]
    samples += [Sample((cube[0, 0, 0],), {"axes": ()}), Sample((cube[:, :0],), {"axes": (0,)})]
    if identity:
        samples.append(Sample((cube[:, :0],), {"axes": (1,)}))
    return samples


def _mistakes(dtypes: str, identity: bool) -> list[Mistake]:
    cube = np.ones((2, 3, 0)).astype("bool" if dtypes == "bool" else "float32")
    mistakes = [
        Mistake((cube,), {"axes": (3,)}, AxisError, "out of range"),
        Mistake((cube,), {"axes": (1, 0)}, AxisError, "ascending"),
    ]
    if not identity:
        mistakes.append(Mistake((cube,), {"axes": (2,)}, ShapeError, "nothing to reduce"))
    return mistakes


def _wide_reduction(reduce: Callable[[Array, Axes], Any]) -> Callable[..., Any]:
    """A reduction in the operand's own dtype, or in float32 for 16-bit floats."""

    def reference(x: Array, axes: Axes) -> Any:
        if is_narrow(x.dtype):
            return np.asarray(reduce(x.astype(np.float32), axes)).astype(x.dtype)
        return reduce(x, axes)

    return reference


reduce_sum = reduction(
    "reduce_sum",
    doc="The sum over axes.",
    reference=_wide_reduction(numerics.total),
    derivative=linear(lambda ct, x, axes: repeat_reduced(ct, x, axes)),
    combine="add",
    dtypes="number",
    identity=True,
    more_samples=[Sample((np.array([[1 + 2j, 3], [0, -1j]], np.complex64),), {"axes": (1,)})],
)


def _extreme_tangent(t: Tensor, out: Tensor, x: Tensor, axes: Axes) -> Tensor:
    """The mean of the tangents of the elements that are the extreme."""
    chosen = convert_to(equal(x, repeat_reduced(out, x, axes)), t.dtype)
    total = apply(reduce_sum, t * chosen, axes=axes)
    return total / apply(reduce_sum, chosen, axes=axes)


_ORDERED = [
    Sample((np.array([[3, 1, 3], [2, 2, 2]], np.int16),), {"axes": (1,)}),
    Sample((np.array([[True, False], [False, False]]),), {"axes": (1,)}),
]

reduce_max = reduction(
    "reduce_max",
    doc="The largest element over axes; its derivative is shared evenly among equals.",
    reference=numerics.maximum_over,
    derivative=tangent(_extreme_tangent),
    combine="maximum",
    dtypes="ordered",
    identity=False,
    more_samples=_ORDERED,
)

reduce_min = reduction(
    "reduce_min",
    doc="The smallest element over axes; its derivative is shared evenly among equals.",
    reference=numerics.minimum_over,
    derivative=tangent(_extreme_tangent),
    combine="minimum",
    dtypes="ordered",
    identity=False,
    more_samples=_ORDERED,
)


def _product_of_others(x: Tensor, axes: Axes) -> Tensor:
    """For each element the product of all others along the axes, without a division.

    It is the product of what stands before and what stands after; zeros need no special case.
    """
    rest = tuple([axis for axis in range(x.ndim) if axis not in axes])
    order = (*rest, *axes)
    axes_last = apply(transpose, x, order=order)
    count = size([x.shape[axis] for axis in axes])
    line = apply(reshape, axes_last, shape=(*axes_last.shape[: len(rest)], count))
    before, after = (_product_before(line, reverse) for reverse in (False, True))
    others = apply(reshape, before * after, shape=axes_last.shape)
    return apply(transpose, others, order=inverse(order))


def _product_before(line: Tensor, reverse: bool) -> Tensor:
    """Along the last axis, the product of the elements before each, or after each."""
    axis = line.ndim - 1
    products = apply(cumulative_prod, line, axis=axis, reverse=reverse)
    return shift_by_one(products, axis, reverse, 1)


reduce_prod = reduction(
    "reduce_prod",
    doc="The product over axes.",
    reference=_wide_reduction(lambda x, axes: np.multiply.reduce(x, axis=axes, dtype=x.dtype)),
    derivative=tangent(
        lambda t, out, x, axes: apply(reduce_sum, t * _product_of_others(x, axes), axes=axes)
    ),
    combine="multiply",
    dtypes="number",
    identity=True,
    more_samples=[
        Sample((np.array([[0, 2, 3], [0, 2, 0], [0.5, 0, 1]], np.float32),), {"axes": (1,)}),
        Sample((np.array([1 + 2j, 0.5, -1j], np.complex64),), {"axes": (0,)}),
    ],
)

reduce_any = reduction(
    "reduce_any",
    doc="Whether any element along the axes is true.",
    reference=lambda x, axes: np.any(x, axis=axes),
    derivative=constant("a truth value has no derivative"),
    combine="or",
    dtypes="bool",
    identity=True,
)

reduce_all = reduction(
    "reduce_all",
    doc="Whether all elements along the axes are true.",
    reference=lambda x, axes: np.all(x, axis=axes),
    derivative=constant("a truth value has no derivative"),
    combine="and",
    dtypes="bool",
    identity=True,
)


def _position(name: str, doc: str, find: Callable[..., Any]) -> Primitive:
    """Define a primitive that gives the position of an element along one axis."""
    allowed = frozenset(DTYPE_CLASSES["ordered"])

    def type_rule(x: TensorType, axis: int) -> TensorType:
        if x.dtype not in allowed:
            raise wrong_dtype(name, "ordered", {"x": x})
        check_axes(name, x, (axis,))
        refuse_empty(name, x, (axis,))
        return reduced_type(x, (axis,)).with_dtype(INDEX)

    def reference(x: Array, axis: int) -> Any:
        return find(x.astype(np.float32) if is_narrow(x.dtype) else x, axis=axis)

    def batch(
        size: Dimension, operands: tuple[Tensor, ...], places: tuple[int, ...], /, axis: int
    ) -> tuple[Tensor, int]:
        return apply(primitive, move_axis(operands[0], places[0], 0), axis=axis + 1), 0

    square = np.array([[3, 1, 3], [0.5, 2, 2]], np.float32)
    primitive = Primitive(
        name,
        doc,
        kind=Search(),
        type_rule=type_rule,
        reference=reference,
        derivatives=[constant("a position has no derivative")],
        batch=batch,
        samples=lambda: [
            Sample((square,), {"axis": 0}, derivative=False),
            Sample((square,), {"axis": 1}, derivative=False),
            Sample((square[:, :0],), {"axis": 0}),
            Sample((square.astype(np.int8),), {"axis": 1}),
        ],
        mistakes=lambda: [
            Mistake((square,), {"axis": 2}, AxisError, "out of range"),
            Mistake((square[:0],), {"axis": 0}, ShapeError, "nothing to reduce"),
        ],
    )
    return primitive


argmax_ = _position("argmax", "The position of the first largest element on an axis.", np.argmax)
argmin_ = _position("argmin", "The position of the first smallest element on an axis.", np.argmin)
