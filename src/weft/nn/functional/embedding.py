"""Rows of a table, chosen by index.

>>> import weft as wf
>>> embedding(wf.tensor([1, 0]), wf.tensor([[1.0, 2.0], [3.0, 4.0]])).tolist()
[[3.0, 4.0], [1.0, 2.0]]
"""

from __future__ import annotations

from typing import Any

import weft as wf
from weft.eager import unit
from weft.nn.functional.checks import check_range, choose, needs_axes, values_of


@unit(weights=("weight",))
def embedding(index: wf.Tensor, weight: wf.Tensor, padding_idx: int | None = None) -> wf.Tensor:
    """The rows of weight [count, width] at index [...]: [..., width].

    The row `padding_idx` gets no gradient.

    >>> weight = wf.tensor([[1.0], [2.0]], requires_grad=True)
    >>> embedding(wf.tensor([0, 1, 1]), weight, padding_idx=1).sum().backward()
    >>> weight.grad.tolist()
    [[1.0], [0.0]]
    """
    needs_axes("embedding", 1, weight=weight)
    places = check_range("embedding", index, weight.shape[0], "index")
    rows = wf.take(weight, places, axis=0)
    if padding_idx is None:
        return rows
    is_padding = wf.expand_dims(wf.equal(places, padding_idx % weight.shape[0]), axis=-1)
    return wf.where(is_padding, wf.stop_gradient(rows), rows)


def shorten_rows(
    weight: wf.Tensor, index: wf.Tensor, max_norm: float, norm_type: float = 2.0
) -> None:
    """Scale down, in place, those rows among the chosen whose norm is above a bound."""
    wf.ir.refuse_derivative("embedding", "max_norm", max_norm)
    with wf.no_grad():
        norms = wf.linalg.vector_norm(weight, axis=1, ord=norm_type, keepdims=True)
        chosen = wf.zeros((weight.shape[0], 1), dtype=wf.bool)
        places = wf.reshape(check_range("embedding", index, weight.shape[0], "index"), (-1,))
        chosen = wf.index_copy(chosen, 0, places, wf.ones((places.shape[0], 1), dtype=wf.bool))
        scale = wf.where(chosen & (norms > max_norm), max_norm / (norms + 1e-7), 1.0)
        weight.copy_(weight * scale)


def embedding_bag(
    index: wf.Tensor,
    weight: wf.Tensor,
    offsets: wf.Tensor | None = None,
    mode: str = "mean",
    per_sample_weights: wf.Tensor | None = None,
    padding_idx: int | None = None,
    include_last_offset: bool = False,
) -> wf.Tensor:
    """The sum, mean or maximum of the rows in each bag: [bags, width].

    index is [bags, size], or [count] with the offsets [bags] at which bags begin; an empty bag
    gives zeros. per_sample_weights scale the rows, in mode "sum". Indices equal to `padding_idx`
    do not count.

    >>> weight = wf.tensor([[1.0], [2.0], [4.0]])
    >>> embedding_bag(wf.tensor([0, 1, 2]), weight, wf.tensor([0, 2]), mode="sum").tolist()
    [[3.0], [4.0]]
    """
    choose("embedding_bag", "mode", mode, ("mean", "sum", "max"))
    _check_bag(index, offsets, mode, per_sample_weights)
    bags = index.shape[0] if offsets is None else offsets.shape[0] - include_last_offset
    labels = _bag_labels(index, offsets, include_last_offset)
    places = wf.reshape(check_range("embedding_bag", index, weight.shape[0], "index"), (-1,))
    rows = embedding(places, weight, padding_idx)  # [count, width]
    if per_sample_weights is not None:
        rows = rows * wf.reshape(per_sample_weights, (-1, 1))
    counted = wf.ones_like(places, dtype=wf.bool)
    if padding_idx is not None:
        counted = wf.not_equal(places, padding_idx % weight.shape[0])
    return _reduced_bags(rows, counted, labels, bags, mode)


@unit
def _reduced_bags(
    rows: wf.Tensor, counted: wf.Tensor, labels: wf.Tensor, bags: Any, mode: str
) -> wf.Tensor:
    counted_column = wf.expand_dims(counted, axis=-1)
    wide = rows.astype(wf.float32) if mode == "mean" and rows.dtype.bits == 16 else rows
    counts = wf.segment_sum(counted.astype(wide.dtype), labels, bags)  # [bags]
    filled = wf.expand_dims(counts > 0, axis=-1)
    if mode == "max":
        largest = wf.segment_max(wf.where(counted_column, rows, -wf.inf), labels, bags)
        return wf.where(filled, largest, 0.0)
    total = wf.segment_sum(wf.where(counted_column, wide, 0.0), labels, bags)
    if mode == "sum":
        return total
    return (total / wf.expand_dims(wf.maximum(counts, 1.0), axis=-1)).astype(rows.dtype)


def _bag_labels(
    index: wf.Tensor, offsets: wf.Tensor | None, include_last_offset: bool
) -> wf.Tensor:
    """The number of the bag that each index is in."""
    if offsets is None:
        ones = wf.ones((index.shape[0], index.shape[1]), dtype=wf.int64)
        return wf.reshape(wf.expand_dims(wf.arange(index.shape[0]), axis=1) * ones, (-1,))
    starts = offsets[:-1] if include_last_offset else offsets
    positions = wf.arange(index.shape[0], dtype=offsets.dtype)
    return wf.searchsorted(starts, positions, side="right") - 1


def _check_bag(
    index: wf.Tensor, offsets: wf.Tensor | None, mode: str, weights: wf.Tensor | None
) -> None:
    if index.ndim != (2 if offsets is None else 1):
        raise wf.ShapeError(
            "embedding_bag",
            "bags are the rows of a matrix, or begin at offsets in a vector",
            expected="index [bags, size], or index [count] and offsets [bags]",
            got={"index": index, "offsets": offsets},
            fix="embedding_bag(index, weight, offsets=wf.tensor([0]))",
        )
    begins = None if offsets is None else values_of(offsets)
    if begins is not None and begins.size and (begins[0] != 0 or (begins[1:] < begins[:-1]).any()):
        raise wf.ArgumentError(
            "embedding_bag",
            "the offsets do not begin at 0, or go down",
            expected="offsets[0] == 0, and each at least the one before",
            got={"offsets": begins.tolist()},
            fix="offsets=wf.tensor([0, ...])",
        )
    if weights is not None and (mode != "sum" or weights.shape != index.shape):
        raise wf.ArgumentError(
            "embedding_bag",
            "per_sample_weights are for sums, one for each index",
            expected=f'mode="sum", per_sample_weights of shape {tuple(index.shape)}',
            got={"mode": mode, "per_sample_weights": weights},
            fix='mode="sum"',
        )
