"""Set functions: the distinct elements of a tensor.

How many there are depends on the values, so these functions need concrete ones. Values are in
ascending order, and differentiable: each is the first of its equals. NaN equals nothing, so each
NaN counts as distinct.

>>> import weft as wf
>>> wf.unique_values(wf.tensor([3, 1, 3])).tolist()
[1, 3]
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from weft.core.errors import TraceError
from weft.ir.constants import place_beside
from weft.ir.dispatch import apply
from weft.ir.tensor import Tensor, host_array, wrap
from weft.ops.composed.manipulation import reshape_known
from weft.ops.indexing import gather
from weft.ops.operands import Operand, as_tensor
from weft.ops.sorting import sortable_array

__all__ = ["unique_all", "unique_counts", "unique_inverse", "unique_values"]

Array = np.ndarray[Any, Any]


class UniqueAll(NamedTuple):
    """Distinct values, where each comes first, which one each element is, how often each occurs."""

    values: Tensor
    indices: Tensor
    inverse_indices: Tensor
    counts: Tensor


class UniqueCounts(NamedTuple):
    """Distinct values and how often each occurs."""

    values: Tensor
    counts: Tensor


class UniqueInverse(NamedTuple):
    """Distinct values and, for each element, which of them it is."""

    values: Tensor
    inverse_indices: Tensor


def _array(op: str, x: Tensor) -> Array:
    try:
        return host_array(x, op)
    except TraceError:
        raise TraceError(
            op,
            "how many distinct elements there are depends on values that a trace does not have",
            expected="a concrete tensor",
            got={"x": x},
            fix="find them outside the trace, or keep the shape: wf.sort(x)",
        ) from None


def _unique_all(op: str, x: Operand) -> UniqueAll:
    x = as_tensor(op, x)
    keys = sortable_array(_array(op, x)).reshape(-1)
    _, first, inverse, counts = np.unique(
        keys, return_index=True, return_inverse=True, return_counts=True, equal_nan=False
    )
    numbers = [wrap(found.astype(np.int64)) for found in (first, inverse, counts)]
    places = [place_beside(number, x) for number in numbers]
    values = apply(gather, reshape_known(x, (x.size,)), places[0], axes=(0,))
    return UniqueAll(values, places[0], reshape_known(places[1], x.shape), places[2])


def unique_all(x: Operand, /) -> UniqueAll:
    """Distinct values, where each comes first, which of them each element is, and their counts.

    >>> import weft as wf
    >>> [part.tolist() for part in wf.unique_all(wf.tensor([3, 1, 3]))]
    [[1, 3], [1, 0], [1, 0, 1], [1, 2]]
    """
    return _unique_all("unique_all", x)


def unique_counts(x: Operand, /) -> UniqueCounts:
    """Distinct values and how often each occurs.

    >>> import weft as wf
    >>> [part.tolist() for part in wf.unique_counts(wf.tensor([3, 1, 3]))]
    [[1, 3], [1, 2]]
    """
    unique = _unique_all("unique_counts", x)
    return UniqueCounts(unique.values, unique.counts)


def unique_inverse(x: Operand, /) -> UniqueInverse:
    """Distinct values and, for each element, which of them it is.

    >>> import weft as wf
    >>> [part.tolist() for part in wf.unique_inverse(wf.tensor([3, 1, 3]))]
    [[1, 3], [1, 0, 1]]
    """
    unique = _unique_all("unique_inverse", x)
    return UniqueInverse(unique.values, unique.inverse_indices)


def unique_values(x: Operand, /) -> Tensor:
    """Distinct values.

    >>> import weft as wf
    >>> wf.unique_values(wf.tensor([[3, 1], [1, 3]])).tolist()
    [1, 3]
    """
    return _unique_all("unique_values", x).values
