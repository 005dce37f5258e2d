"""Segments: sums and extremes of elements grouped by labels that are data, and labels as vectors.

Labels count from 0; one that no segment belongs to is an error.

>>> import weft as wf
>>> wf.segment_sum(wf.tensor([1.0, 2.0, 4.0]), wf.tensor([0, 1, 0])).tolist()
[5.0, 2.0]
"""

from __future__ import annotations

from typing import Any

import numpy as np

from weft.core.arrays import is_host
from weft.core.dtypes import INDEX, DType, as_dtype, float32
from weft.core.errors import ArgumentError, BoundsError, ShapeError, TraceError
from weft.core.shapes import Dimension, check_size
from weft.core.shapes import equal as equal_sizes
from weft.ir.constants import beside_operands, place_beside
from weft.ir.dispatch import apply
from weft.ir.eager import unit
from weft.ir.elsewhere import device_unit
from weft.ir.forward import has_derivative
from weft.ir.primitive import Primitive
from weft.ir.reverse import filled_tensor
from weft.ir.tensor import Tensor, host_array, wrap
from weft.ops import indexing, sorting
from weft.ops.arithmetic import divide, maximum
from weft.ops.comparison import equal
from weft.ops.composed.creation import linspace
from weft.ops.composed.gathering import index_tensor
from weft.ops.composed.manipulation import broadcast_known, cut_axis, reshape_known
from weft.ops.composed.statistics import max as greatest
from weft.ops.composed.statistics import min as least
from weft.ops.indexing import count_up
from weft.ops.operands import (
    Operand,
    as_integer,
    as_number,
    as_sequence,
    as_tensor,
    convert_to,
    promote_operands,
    room,
    widen_sums,
    wrong_dtype,
)
from weft.ops.selection import where

__all__ = [
    "bincount", "histogram", "one_hot", "segment_max", "segment_mean", "segment_min", "segment_sum",
]  # fmt: skip


def _labels(op: str, labels: Operand, name: str) -> Tensor:
    """Labels as int64; negative ones are refused where they can be seen."""
    label_tensor = convert_to(index_tensor(op, labels), INDEX)
    value = label_tensor._value
    if is_host(value) and value.size and value.min() < 0:
        raise BoundsError(
            op,
            f"{name} holds the negative number {int(value.min())}",
            expected="numbers of at least 0",
            got={name: label_tensor},
            fix=f"move them up first: {name} - {name}.min()",
        )
    return label_tensor


def _count(
    op: str, labels: Tensor, count: Dimension | None, option: str, least: int = 0
) -> Dimension:
    """The number of segments, by default one more than the greatest label."""
    if count is not None:
        return check_size(op, option, count)
    try:
        value = host_array(labels, op)
    except TraceError:
        raise TraceError(
            op,
            "the size of the result depends on values that a trace does not have",
            expected=f"{option}=, how many entries there are" if least else f"{option}= given",
            got={"labels": labels, **({"minlength": least} if least else {})},
            fix=f"{option}={least or 10}",
        ) from None
    return int(value.max()) + 1 if value.size else 0


# --- segments ----------------------------------------------------------------------------------


@unit
def segment_sum(
    data: Operand, segment_ids: Operand, num_segments: Dimension | None = None
) -> Tensor:
    """The sum of the slices of the first axis that have the same label.

    >>> import weft as wf
    >>> wf.segment_sum(wf.ones((3, 2)), wf.tensor([0, 2, 2])).tolist()
    [[1.0, 1.0], [0.0, 0.0], [2.0, 2.0]]
    """
    return _reduce_segments("segment_sum", indexing.scatter_add, data, segment_ids, num_segments, 0)


@unit
def segment_max(
    data: Operand, segment_ids: Operand, num_segments: Dimension | None = None
) -> Tensor:
    """The largest of the slices of the first axis that have the same label.

    A segment without elements has the least number of the dtype, minus infinity for floats.

    >>> import weft as wf
    >>> wf.segment_max(wf.tensor([1.0, 5.0, 2.0]), wf.tensor([0, 1, 1])).tolist()
    [1.0, 5.0]
    """
    lowest = _extreme(as_tensor("segment_max", data).dtype, -1)
    return _reduce_segments(
        "segment_max", indexing.scatter_max, data, segment_ids, num_segments, lowest
    )


@unit
def segment_min(
    data: Operand, segment_ids: Operand, num_segments: Dimension | None = None
) -> Tensor:
    """The smallest of the slices of the first axis that have the same label.

    A segment without elements has the greatest number of the dtype, infinity for floats.

    >>> import weft as wf
    >>> wf.segment_min(wf.tensor([1.0, 5.0, 2.0]), wf.tensor([0, 1, 1])).tolist()
    [1.0, 2.0]
    """
    highest = _extreme(as_tensor("segment_min", data).dtype, 1)
    return _reduce_segments(
        "segment_min", indexing.scatter_min, data, segment_ids, num_segments, highest
    )


@unit
def segment_mean(
    data: Operand, segment_ids: Operand, num_segments: Dimension | None = None
) -> Tensor:
    """The mean of the slices of the first axis that have the same label; 0 for no elements.

    >>> import weft as wf
    >>> wf.segment_mean(wf.tensor([1.0, 5.0, 2.0]), wf.tensor([0, 1, 1])).tolist()
    [1.0, 3.5]
    """
    given = as_tensor("segment_mean", data, "data")
    total = segment_sum(widen_sums(given), segment_ids, num_segments)
    labels = index_tensor("segment_mean", segment_ids)
    ones = filled_tensor(labels.shape, total.dtype, 1)
    count = maximum(segment_sum(ones, labels, total.shape[0]), filled_tensor((), total.dtype, 1))
    means = divide(total, reshape_known(count, (*count.shape, *[1] * (total.ndim - 1))))
    return convert_to(means, given.dtype) if total.dtype is not given.dtype else means


def _extreme(dtype: DType, sign: int) -> Any:
    if dtype.is_inexact:
        return sign * float("inf")
    info = np.iinfo(dtype.numpy) if dtype.is_integer else None
    return 0 if info is None else int(info.max if sign > 0 else info.min)


@beside_operands
def _reduce_segments(
    op: str,
    primitive: Primitive,
    data: Operand,
    segment_ids: Operand,
    num_segments: Dimension | None,
    start: Any,
) -> Tensor:
    x = as_tensor(op, data, "data")
    labels = _labels(op, segment_ids, "segment_ids")
    if labels.ndim != 1 or x.ndim < 1 or not equal_sizes(labels.shape[0], x.shape[0]):
        raise ShapeError(
            op,
            "not one label for each slice of data",
            expected="segment_ids.shape == data.shape[:1]",
            got={"data": x, "segment_ids": labels},
            fix="give one label for each entry of data's first axis",
        )
    count = _count(op, labels, num_segments, "num_segments")
    canvas = filled_tensor((count, *x.shape[1:]), x.dtype, start)
    return apply(primitive, canvas, x, labels, axes=(0,))


# --- labels ------------------------------------------------------------------------------------


@device_unit
def one_hot(indices: Operand, num_classes: Dimension | None = None, dtype: Any = None) -> Tensor:
    """Along a new last axis, 1 at each index and 0 elsewhere; float32 unless a dtype is given.

    Indices out of range are refused; inside a transform, where they are not known, they have zeros.

    >>> import weft as wf
    >>> wf.one_hot(wf.tensor([0, 2]), 3).tolist()
    [[1.0, 0.0, 0.0], [0.0, 0.0, 1.0]]
    """
    labels = _labels("one_hot", indices, "indices")
    count = _count("one_hot", labels, num_classes, "num_classes")
    value = labels._value
    known = is_host(value) and value.size and isinstance(count, int)
    if known and value.max() >= count:
        raise BoundsError(
            "one_hot",
            f"there is no class {int(value.max())} among {count}",
            expected=f"0 <= index < {count}",
            got={"indices": labels, "num_classes": count},
            fix=f"num_classes={int(value.max()) + 1}",
        )
    hot = equal(reshape_known(labels, (*labels.shape, 1)), count_up(count))
    return convert_to(hot, float32 if dtype is None else as_dtype(dtype))


@beside_operands
def bincount(
    x: Operand,
    /,
    *,
    weights: Operand | None = None,
    minlength: int = 0,
    length: Dimension | None = None,
) -> Tensor:
    """How often each number occurs, or the sum of the weights it occurs with.

    The result has one entry for each number up to the greatest, and at least `minlength`; inside a
    trace give the exact `length`.

    >>> import weft as wf
    >>> wf.bincount(wf.tensor([0, 2, 2]), minlength=4).tolist()
    [1, 0, 2, 0]
    """
    labels = _labels("bincount", x, "x")
    if labels.ndim != 1:
        raise ShapeError(
            "bincount",
            "the tensor is not a line",
            expected="one axis",
            got={"x": labels},
            fix="flatten it first: x.reshape(-1)",
        )
    if length is None:
        least = as_integer("bincount", "minlength", minlength)
        length = max(_count("bincount", labels, None, "length", least), least)
    one = (
        filled_tensor((), INDEX, 1)
        if weights is None
        else as_tensor("bincount", weights, "weights")
    )
    return segment_sum(broadcast_known(one, labels.shape), labels, length)


@beside_operands
def histogram(
    x: Operand,
    /,
    bins: int | Operand = 10,
    range: tuple[float, float] | None = None,
    *,
    weights: Operand | None = None,
) -> tuple[Tensor, Tensor]:
    """How many elements lie in each bin, and the edges of the bins; the last one is closed.

    `bins` are a number of equal bins over the range, by default from the least to the greatest
    element, or the edges themselves. Elements outside all bins do not count.

    >>> import weft as wf
    >>> counts, edges = wf.histogram(wf.tensor([0.5, 1.5, 2.0, 9.0]), bins=2, range=(0.0, 2.0))
    >>> counts.tolist(), edges.tolist()
    ([1, 2], [0.0, 1.0, 2.0])
    """
    line = as_tensor("histogram", x)
    line = reshape_known(line, (line.size,))
    edges, line = promote_operands("histogram", (_edges(line, bins, range), line))
    count = edges.shape[0] - 1
    after = apply(sorting.searchsorted, edges, line, side="right")
    last = equal(line, cut_axis(edges, 0, count, count + 1))
    places = where(last, count, after)  # 1 to count; 0 before the first edge, count + 1 after
    summed = bincount(places, weights=weights, length=count + 2)
    return cut_axis(summed, 0, 1, count + 1), edges


def _edges(x: Tensor, bins: Any, limits: tuple[float, float] | None) -> Tensor:
    if not isinstance(bins, int):
        edges = as_tensor("histogram", bins, "bins")
        if edges.ndim != 1 or edges.size == 0:
            raise ShapeError(
                "histogram",
                "the edges of the bins are not a line",
                expected="a number of bins, or their edges in order",
                got={"bins": edges},
                fix="bins=wf.linspace(0.0, 1.0, 11)",
            )
        return edges
    if bins < 1:
        raise ArgumentError(
            "histogram",
            "no bins",
            expected="at least one bin",
            got={"x": x, "bins": bins},
            fix="bins=10",
        )
    if x.dtype.is_complex:
        raise wrong_dtype("histogram", "ordered", {"x": x})
    low, high = _limits(x) if limits is None else _range(limits)
    apart = 0.5 if low == high else 0.0
    dtype = x.dtype if x.dtype.is_floating else float32
    check_size("histogram", "bins", bins)
    if limits is None and has_derivative(x):
        ends = (least(x) - apart, greatest(x) + apart)
        return linspace(*ends, bins + 1, dtype=dtype)
    with room("histogram", {"x": x, "bins": bins}):
        line = np.linspace(low - apart, high + apart, bins + 1).astype(dtype.numpy)
        return place_beside(wrap(line), x)


def _range(limits: Any) -> tuple[float, float]:
    ends = [as_number("histogram", "range", e) for e in as_sequence("histogram", "range", limits)]
    if len(ends) != 2 or not np.isfinite(ends).all() or ends[0] > ends[1]:
        raise ArgumentError(
            "histogram",
            "the range is not two numbers in order",
            expected="(low, high) with low <= high",
            got={"range": limits},
            fix="range=(0.0, 1.0)",
        )
    return ends[0], ends[1]


def _limits(x: Tensor) -> tuple[float, float]:
    value = host_array(x, "histogram")
    if not value.size:
        return 0.0, 1.0
    low, high = float(value.min()), float(value.max())
    if not np.isfinite([low, high]).all():
        raise ArgumentError(
            "histogram",
            "the elements have no finite range",
            expected="finite elements, or a range",
            got={"x": x},
            note=f"{low} to {high}",
            fix="range=(0.0, 1.0)",
        )
    return low, high
