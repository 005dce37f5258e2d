"""Gradients of some rows of a table: how an embedding is trained that is too large for dense ones.

>>> import weft as wf
>>> wf.optim.take_rows(wf.ones((5, 2)), wf.tensor([3, 1])).shape
(2, 2)
"""

from __future__ import annotations

from typing import NamedTuple

import weft as wf


class Rows(NamedTuple):
    """A gradient of some rows of a table: row `indices[i]` has the gradient `gradient[i]`."""

    table: wf.Tensor
    indices: wf.Tensor
    gradient: wf.Tensor


def take_rows(table: wf.Tensor, indices: wf.Tensor) -> wf.Tensor:
    """The rows of a table as a leaf of its own, so that their gradient is as small as they are.

    >>> import weft as wf
    >>> table = wf.ones((1000, 2)).requires_grad_()
    >>> optimizer = wf.optim.SGD([table], lr=0.5)
    >>> indices = wf.tensor([3, 7, 3])
    >>> rows = wf.optim.take_rows(table, indices)
    >>> rows.sum().backward()
    >>> optimizer.step(rows=[wf.optim.Rows(table, indices, rows.grad)])
    >>> table[3].tolist(), table[4].tolist(), table[7].tolist()
    ([0.0, 0.0], [1.0, 1.0], [0.5, 0.5])
    """
    return wf.take(table.detach(), indices, axis=0).requires_grad_(True)


def summed_by_row(indices: wf.Tensor, gradient: wf.Tensor) -> wf.Tensor:
    """At each position the sum of the gradients of all positions with the same index.

    Without a tensor as large as the table, and of a size that is known in advance: positions that
    share an index get the same sum, so that writing any of them back writes the same.
    """
    if indices.shape[0] == 0:
        return gradient  # there is no first position to count labels from
    order = wf.argsort(indices)
    ordered = wf.take(indices, order, axis=0)
    begins = wf.concat([wf.zeros((1,), dtype=wf.int64), (ordered[1:] != ordered[:-1]) + 0])
    label = wf.cumulative_sum(begins)
    sums = wf.segment_sum(wf.take(gradient, order, axis=0), label, indices.shape[0])
    return wf.take(sums, wf.take(label, wf.argsort(order), axis=0), axis=0)
