"""Sorting and searching: elements in order, and where elements are.

Orders are stable; NaN counts as greater than every number.

>>> import weft as wf
>>> wf.sort(wf.tensor([3, 1, 2])).tolist()
[1, 2, 3]
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from weft.core.dimensions import is_zero
from weft.core.dtypes import INDEX, bool_
from weft.core.errors import AxisError, ShapeError
from weft.core.shapes import normalize_axes, normalize_axis
from weft.ir.constants import beside_operands, place_beside
from weft.ir.dispatch import apply
from weft.ir.eager import unit
from weft.ir.reverse import filled_tensor
from weft.ir.tensor import Tensor, wrap
from weft.ops import sorting
from weft.ops.comparison import equal, not_equal
from weft.ops.composed.gathering import take
from weft.ops.composed.index_keys import concrete_mask
from weft.ops.composed.manipulation import reshape_known
from weft.ops.logic import logical_not
from weft.ops.operands import Operand, apply_as, as_integer, as_tensor, convert_to, promote_operands
from weft.ops.reduction import reduce_sum
from weft.ops.selection import clip

__all__ = [
    "argsort", "bucketize", "count_nonzero", "isin", "nonzero", "searchsorted", "sort", "topk",
]  # fmt: skip


class TopK(NamedTuple):
    """The first few elements in order, and where they are."""

    values: Tensor
    indices: Tensor


def _axis(op: str, x: Tensor, axis: int) -> int:
    return normalize_axis(op, axis, x.ndim, {"x": x})


def sort(x: Operand, /, *, axis: int = -1, descending: bool = False, stable: bool = True) -> Tensor:
    """The elements along an axis in order. The order is always stable.

    >>> import weft as wf
    >>> wf.sort(wf.tensor([[3, 1], [2, 4]]), axis=1, descending=True).tolist()
    [[3, 1], [4, 2]]
    """
    x = as_tensor("sort", x)
    return apply(sorting.sort, x, axis=_axis("sort", x, axis), descending=bool(descending))


def argsort(
    x: Operand, /, *, axis: int = -1, descending: bool = False, stable: bool = True
) -> Tensor:
    """The indices that put the elements along an axis in order. The order is always stable.

    >>> import weft as wf
    >>> wf.argsort(wf.tensor([30, 10, 20])).tolist()
    [1, 2, 0]
    """
    x = as_tensor("argsort", x)
    return apply(sorting.argsort, x, axis=_axis("argsort", x, axis), descending=bool(descending))


@unit
def topk(
    x: Operand, k: int, /, *, axis: int = -1, largest: bool = True, sorted: bool = True
) -> TopK:
    """The k largest or smallest elements along an axis, in order, and their indices.

    >>> import weft as wf
    >>> values, indices = wf.topk(wf.tensor([1.0, 9.0, 5.0]), 2)
    >>> values.tolist(), indices.tolist()
    ([9.0, 5.0], [1, 2])
    """
    x = as_tensor("topk", x)
    place, k = _axis("topk", x, axis), as_integer("topk", "k", k)
    return TopK(*apply_as("topk", sorting.top_k, x, k=k, axis=place, largest=bool(largest)))


def searchsorted(
    x1: Operand, x2: Operand, /, *, side: str = "left", sorter: Operand | None = None
) -> Tensor:
    """Where each value of x2 would go in the ascending line x1, before or after its equals.

    `sorter` are the indices that put x1 in order, where it is not.

    >>> import weft as wf
    >>> wf.searchsorted(wf.tensor([1, 3, 5]), wf.tensor([3, 4]), side="right").tolist()
    [2, 2]
    """
    line, values = promote_operands("searchsorted", (x1, x2))
    if line.ndim != 1:
        raise ShapeError(
            "searchsorted",
            "x1 is not a line",
            expected="x1 with one axis",
            got={"x1": line, "x2": values},
            fix="flatten and sort it first: wf.sort(x1.reshape(-1))",
        )
    if sorter is not None:
        line = take(line, sorter)
    flat = reshape_known(values, (values.size,))
    return reshape_known(apply(sorting.searchsorted, line, flat, side=side), values.shape)


@beside_operands
def bucketize(x: Operand, boundaries: Operand, *, right: bool = False) -> Tensor:
    """Which of the stretches between ascending boundaries each element of x lies in.

    An element that is a boundary belongs to the stretch below it, with `right` to that above.

    >>> import weft as wf
    >>> wf.bucketize(wf.tensor([0.5, 1.0, 9.0]), wf.tensor([1.0, 2.0])).tolist()
    [0, 0, 2]
    """
    return searchsorted(boundaries, x, side="right" if right else "left")


def isin(x1: Operand, x2: Operand, /, *, invert: bool = False) -> Tensor:
    """Whether each element of x1 is among the elements of x2, or is not, with `invert`.

    >>> import weft as wf
    >>> wf.isin(wf.tensor([1, 2, 3]), wf.tensor([3, 1])).tolist()
    [True, False, True]
    """
    x, among = promote_operands("isin", (x1, x2))
    line = sort(reshape_known(among, (among.size,)))
    if is_zero(line.shape[0]):
        return filled_tensor(x.shape, bool_, bool(invert))
    places = clip(searchsorted(line, x), 0, int(line.shape[0]) - 1)
    is_member = equal(take(line, places), x)
    return logical_not(is_member) if invert else is_member


def is_nonzero(x: Tensor) -> Tensor:
    """Whether each element is other than zero."""
    return x if x.dtype is bool_ else not_equal(x, filled_tensor((), x.dtype, 0))


def nonzero(x: Operand, /) -> tuple[Tensor, ...]:
    """The indices of all elements other than zero, one tensor for each axis; not in traces.

    >>> import weft as wf
    >>> [axis.tolist() for axis in wf.nonzero(wf.tensor([[0, 5], [6, 0]]))]
    [[0, 1], [1, 0]]
    """
    x = as_tensor("nonzero", x)
    if x.ndim == 0:
        raise AxisError(
            "nonzero",
            "the tensor has no axes",
            expected="at least one axis",
            got={"x": x},
            fix="give it one: wf.nonzero(x.reshape(1))",
        )
    truth = concrete_mask("nonzero", x)
    return tuple([place_beside(wrap(places), x) for places in np.nonzero(truth)])


def count_nonzero(
    x: Operand, /, *, axis: int | tuple[int, ...] | None = None, keepdims: bool = False
) -> Tensor:
    """How many elements along the axes are other than zero.

    >>> import weft as wf
    >>> wf.count_nonzero(wf.tensor([[0, 5], [6, 7]]), axis=1).tolist()
    [1, 2]
    """
    x = as_tensor("count_nonzero", x)
    axes = tuple(sorted(normalize_axes("count_nonzero", axis, x.ndim, {"x": x})))
    counts = apply(reduce_sum, convert_to(is_nonzero(x), INDEX), axes=axes)
    if not keepdims:
        return counts
    return reshape_known(counts, tuple([1 if i in axes else d for i, d in enumerate(x.shape)]))
