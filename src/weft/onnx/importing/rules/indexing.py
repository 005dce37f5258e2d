"""Operators that read and write elements by index."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

import weft as wf
from weft.onnx.importing.reading import Array
from weft.onnx.importing.registry import rule
from weft.onnx.importing.rules.movement import whole_axis
from weft.onnx.importing.running import Call

Tensor = wf.Tensor
REDUCTIONS = {"add": "sum", "max": "amax", "min": "amin"}
"""The format's words for how elements that are written twice are combined, and Weft's."""


def from_front(indices: Tensor, size: Any) -> Tensor:
    """Indices counted from the front of an axis."""
    whole = indices.astype("int64")
    return wf.where(whole < 0, whole + size, whole)


@rule("Gather", moves=True)
def gather(call: Call, x: Tensor, indices: Tensor) -> Tensor:
    """Slices of a value along an axis."""
    axis = whole_axis(call["axis"], x.ndim)
    flat = wf.take(x, from_front(indices, x.shape[axis]).reshape((-1,)), axis=axis)
    return flat.reshape((*x.shape[:axis], *indices.shape, *x.shape[axis + 1 :]))


@rule("GatherElements", moves=True)
def gather_elements(call: Call, x: Tensor, indices: Tensor) -> Tensor:
    """One element for each index, along an axis."""
    axis = whole_axis(call["axis"], x.ndim)
    return wf.gather(x, axis, from_front(indices, x.shape[axis]))


@rule("GatherND", moves=True)
def gather_nd(call: Call, x: Tensor, indices: Tensor) -> Tensor:
    """Slices of a value, each at a tuple of indices."""
    batch = call.get("batch_dims", 0)
    rows, inner = _linear_rows(x, indices, batch)
    flat = x.reshape((_row_count(x, inner), *inner))
    return wf.take(flat, rows.reshape((-1,)), axis=0).reshape((*indices.shape[:-1], *inner))


def _linear_rows(x: Tensor, indices: Tensor, batch: int) -> tuple[Tensor, tuple[Any, ...]]:
    """Tuples of indices as numbers of slices, [*indices.shape[:-1]]; and a slice's shape."""
    depth = int(indices.shape[-1])
    outer = x.shape[: batch + depth]
    rows = wf.zeros(indices.shape[:-1], dtype="int64")
    for axis in range(batch):  # the place in the batch counts as an index
        shape: list[Any] = [1] * (indices.ndim - 1)
        shape[axis] = indices.shape[axis]
        rows = rows * outer[axis] + wf.arange(indices.shape[axis]).reshape(tuple(shape))
    for place in range(depth):
        size = outer[batch + place]
        rows = rows * size + from_front(indices[..., place], size)
    return rows, tuple(x.shape[batch + depth :])


def _row_count(x: Tensor, inner: tuple[Any, ...]) -> Any:
    """How many slices a value has; a reshape to -1 could not say it of slices without elements."""
    return math.prod(x.shape[: x.ndim - len(inner)], start=1)


@rule("ScatterElements", "Scatter")
def scatter_elements(call: Call, x: Tensor, indices: Tensor, updates: Tensor) -> Tensor:
    """The value with elements written along an axis."""
    axis = whole_axis(call["axis"], x.ndim)
    places = from_front(indices, x.shape[axis])
    reduction = call.get("reduction", "none")
    if reduction == "mul":
        return _multiply_in(x, _linear_places(places, x.shape, axis), updates)
    if reduction == "none":
        return wf.scatter(x, axis, places, updates)
    return wf.scatter_reduce(x, axis, places, updates, REDUCTIONS[reduction])


def _linear_places(indices: Tensor, shape: tuple[Any, ...], axis: int) -> Tensor:
    """Indices along an axis as places in the flat value."""
    total = wf.zeros(indices.shape, dtype="int64")
    for each, size in enumerate(shape):
        line: list[Any] = [1] * len(shape)
        line[each] = indices.shape[each]
        own = wf.arange(indices.shape[each]).reshape(tuple(line))
        total = total * size + (indices if each == axis else own)
    return total


def _multiply_in(x: Tensor, places: Tensor, factors: Tensor) -> Tensor:
    """The value with elements multiplied, one after the other: a place may come up again."""

    def step(flat: Tensor, pair: tuple[Tensor, Tensor]) -> tuple[Tensor, tuple[()]]:
        place, factor = pair[0][None], pair[1][None]
        return wf.scatter(flat, 0, place, wf.take(flat, place, axis=0) * factor), ()

    pairs = places.reshape((-1,)), factors.reshape((-1,))
    out: Tensor = wf.scan(step, x.reshape((-1,)), pairs)[0]
    return out.reshape(x.shape)


@rule("ScatterND")
def scatter_nd(call: Call, x: Tensor, indices: Tensor, updates: Tensor) -> Tensor:
    """The value with slices written, each at a tuple of indices."""
    rows, inner = _linear_rows(x, indices, 0)
    width = math.prod(inner, start=1)
    flat = x.reshape((_row_count(x, inner), width))
    source = updates.reshape((math.prod(rows.shape, start=1), width))
    places = wf.broadcast_to(rows.reshape((-1, 1)), source.shape)
    reduction = call.get("reduction", "none")
    if reduction == "mul":
        return _multiply_in(x, _linear_places(places, flat.shape, 0), source)
    if reduction == "none":
        out = wf.scatter(flat, 0, places, source)
    else:
        out = wf.scatter_reduce(flat, 0, places, source, REDUCTIONS[reduction])
    return out.reshape(x.shape)


@rule("OneHot", known=(1,))
def one_hot(call: Call, indices: Tensor, depth: Array, values: Tensor) -> Tensor:
    """The second of two numbers at each index, the first one elsewhere."""
    size = int(depth.reshape(-1)[0])
    call.check_room([size, *indices.shape])
    axis = whole_axis(call["axis"], indices.ndim + 1)
    places = wf.expand_dims(from_front(indices, size), axis=axis)
    shape = [1] * (indices.ndim + 1)
    shape[axis] = size
    is_on = wf.arange(size).reshape(tuple(shape)) == places
    return wf.where(is_on, values[1], values[0])


@rule("NonZero")
def nonzero(call: Call, x: Tensor) -> Tensor:
    """The places of elements that are not zero, [axes, count]."""
    array = call.known_array(x, "the number of elements that are not zero")
    places = np.nonzero(np.atleast_1d(array))
    return wf.asarray(np.stack(places).astype(np.int64))


@rule("Compress", known=(1,))
def compress(call: Call, x: Tensor, condition: Array) -> Tensor:
    """The slices where a condition holds."""
    axis = call.get("axis")
    source = x.reshape((-1,)) if axis is None else x
    places = np.nonzero(condition.reshape(-1))[0]
    return wf.take(source, wf.asarray(places), axis=0 if axis is None else axis)


@rule("Unique")
def unique(call: Call, x: Tensor) -> tuple[Tensor, ...]:
    """The distinct elements or slices, where they stand first, which each is, and how many."""
    array = call.known_array(x, "the number of distinct elements")
    axis = call.get("axis")
    _, first, inverse, counts = np.unique(
        array, return_index=True, return_inverse=True, return_counts=True, axis=axis
    )
    inverse = inverse.reshape(-1)
    if not call["sorted"]:  # in the order of their first places
        order = np.argsort(first)
        rank = np.empty_like(order)
        rank[order] = np.arange(len(order))
        first, counts, inverse = first[order], counts[order], rank[inverse]
    source = x.reshape((-1,)) if axis is None else x
    values = wf.take(source, wf.asarray(first), axis=0 if axis is None else axis)
    return values, *[wf.asarray(each.astype(np.int64)) for each in (first, inverse, counts)]


@rule("ReverseSequence", moves=True)
def reverse_sequence(call: Call, x: Tensor, lengths: Tensor) -> Tensor:
    """The first elements of each row reversed, as many as the row is long."""
    time, batch = call["time_axis"], call["batch_axis"]
    steps = wf.arange(x.shape[time])
    count = lengths.astype("int64")
    # [time, batch]: where each step is read from.
    source = wf.where(
        steps[:, None] < count[None], count[None] - 1 - steps[:, None], steps[:, None]
    )
    source = source if time < batch else source.T
    source = source.reshape((*source.shape, *[1] * (x.ndim - 2)))
    return wf.gather(x, time, wf.broadcast_to(source, x.shape))
