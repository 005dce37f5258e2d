"""Taking, putting and adding elements along an axis, at places that are data.

`take` and the `*_along_axis` functions are NumPy's; `gather`, `scatter` and `index_add` follow
PyTorch, with `axis` for `dim`. Nothing is changed in place: what PyTorch writes into a tensor is
written into a new one. Indices may count from the end; one out of range is an error.

>>> import weft as wf
>>> wf.take(wf.tensor([[1, 2], [3, 4]]), wf.tensor([1, 1]), axis=1).tolist()
[[2, 2], [4, 4]]
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from weft.core.dtypes import INDEX, bool_
from weft.core.errors import ArgumentError, ArgumentTypeError, AxisError, DTypeError, ShapeError
from weft.core.shapes import Shape, broadcast_shapes, check_shape, normalize_axis
from weft.ir.constants import beside_operands, place_beside
from weft.ir.dispatch import apply
from weft.ir.eager import unit
from weft.ir.elsewhere import device_unit
from weft.ir.primitive import Primitive
from weft.ir.tensor import Tensor
from weft.ops import boxes, indexing
from weft.ops.arithmetic import divide, multiply
from weft.ops.composed.index_keys import from_the_front
from weft.ops.composed.indexing import getitem, with_update
from weft.ops.composed.ingestion import ingest
from weft.ops.composed.manipulation import broadcast_known, moveaxis, reshape_known, transpose_known
from weft.ops.movement import is_below, slice_
from weft.ops.operands import (
    Operand,
    as_sequence,
    as_tensor,
    as_tensor_in,
    convert_to,
    scalar_tensor,
)
from weft.ops.selection import extremes, where
from weft.ops.sorting import along_axis

__all__ = [
    "dynamic_slice", "dynamic_update_slice", "gather", "index_add", "index_copy", "index_put",
    "masked_fill", "masked_select", "put_along_axis", "scatter", "scatter_add", "scatter_reduce",
    "take", "take_along_axis",
]  # fmt: skip


def index_tensor(op: str, index: Any) -> Tensor:
    """A tensor of integers from what was passed as an index."""
    if isinstance(index, (list, tuple)):
        index = ingest(op, index, None)[0]
        index = index if index.size else convert_to(index, INDEX)
    tensor = as_tensor(op, index, "indices")
    if not tensor.dtype.is_integer:
        raise DTypeError(
            op,
            "indices are not integers",
            expected="an integer dtype",
            got={"indices": tensor},
            fix='convert first: indices.astype("int64")',
        )
    return tensor


# --- along one axis, the others whole ----------------------------------------------------------


@device_unit
def take(x: Operand, indices: Operand, /, *, axis: int | None = None) -> Tensor:
    """The slices of an axis at the indices, whose own axes take its place.

    Without an axis the tensor is flattened first.

    >>> import weft as wf
    >>> wf.take(wf.tensor([10, 20, 30]), wf.tensor([[0, -1]])).tolist()
    [[10, 30]]
    """
    x = as_tensor("take", x)
    if axis is None:
        x, axis = reshape_known(x, (x.size,)), 0
    place = normalize_axis("take", axis, x.ndim, {"x": x})
    index = from_the_front("take", index_tensor("take", indices), place, x.shape[place])
    index = place_beside(index, x)
    gathered = apply(indexing.gather, x, index, axes=(place,))
    others = range(index.ndim, gathered.ndim)
    return transpose_known(gathered, (*others[:place], *range(index.ndim), *others[place:]))


@unit
def index_add(
    x: Operand, axis: int, index: Operand, source: Operand, *, alpha: float = 1
) -> Tensor:
    """x with slices of `source`, times alpha, added to the slices of an axis at the indices.

    >>> import weft as wf
    >>> wf.index_add(wf.zeros(3), 0, wf.tensor([1, 1]), wf.ones(2)).tolist()
    [0.0, 2.0, 0.0]
    """
    return _write_slices("index_add", indexing.scatter_add, x, axis, index, source, alpha)


@unit
def index_copy(x: Operand, axis: int, index: Operand, source: Operand) -> Tensor:
    """x with the slices of an axis at the indices replaced by those of `source`; the last stays.

    >>> import weft as wf
    >>> wf.index_copy(wf.zeros(3), 0, wf.tensor([2]), wf.ones(1)).tolist()
    [0.0, 0.0, 1.0]
    """
    return _write_slices("index_copy", indexing.scatter, x, axis, index, source, 1, unique=False)


@beside_operands
def _write_slices(
    op: str,
    primitive: Primitive,
    x: Operand,
    axis: int,
    index: Operand,
    source: Operand,
    alpha: float,
    **params: bool,
) -> Tensor:
    x = as_tensor(op, x)
    place = normalize_axis(op, axis, x.ndim, {"x": x})
    places = from_the_front(op, index_tensor(op, index), place, x.shape[place])
    if places.ndim != 1:
        raise ShapeError(
            op,
            "the index is not a line",
            expected="an index with one axis",
            got={"x": x, "index": places},
            fix="flatten it first: index.reshape(-1)",
        )
    shape = (*x.shape[:place], places.shape[0], *x.shape[place + 1 :])
    updates = _broadcast_source(op, as_tensor_in(op, source, x.dtype, "source"), shape)
    if alpha != 1:
        updates = multiply(updates, alpha)
    return apply(primitive, x, moveaxis(updates, place, 0), places, axes=(place,), **params)


# --- along one axis, position by position on the others ----------------------------------------


@unit
def take_along_axis(x: Operand, indices: Operand, /, *, axis: int = -1) -> Tensor:
    """The elements at indices along an axis, position by position on the other axes.

    x and the indices are broadcast against each other on those.

    >>> import weft as wf
    >>> wf.take_along_axis(wf.tensor([[1, 2], [3, 4]]), wf.tensor([[1], [0]]), axis=1).tolist()
    [[2], [3]]
    """
    x, places, place = _broadcast_index("take_along_axis", x, indices, axis)
    return apply(indexing.gather, x, *along_axis(places, place, places.shape), axes=_all(x))


@unit
def put_along_axis(x: Operand, indices: Operand, values: Operand, /, *, axis: int = -1) -> Tensor:
    """x with values put at indices along an axis, position by position on the other axes.

    Of several values for one place the last one stays.

    >>> import weft as wf
    >>> wf.put_along_axis(wf.zeros((2, 2)), wf.tensor([[1], [0]]), 5.0, axis=1).tolist()
    [[0.0, 5.0], [5.0, 0.0]]
    """
    x = as_tensor("put_along_axis", x)
    base, places, place = _broadcast_index("put_along_axis", x, indices, axis)
    if base.shape != x.shape:
        raise ShapeError(
            "put_along_axis",
            "the indices have more positions than x",
            expected="indices that broadcast to x on the other axes",
            got={"x": x, "indices": places},
            fix="broadcast x first: wf.broadcast_to",
        )
    new = place_beside(as_tensor_in("put_along_axis", values, x.dtype, "values"), x)
    updates = _broadcast_source("put_along_axis", new, places.shape)
    everywhere = along_axis(places, place, places.shape)
    return apply(indexing.scatter, x, updates, *everywhere, axes=_all(x), unique=False)


def _broadcast_index(
    op: str, x: Operand, indices: Operand, axis: int
) -> tuple[Tensor, Tensor, int]:
    """x and indices broadcast against each other on all axes but one."""
    x = as_tensor(op, x)
    places = index_tensor(op, indices)
    place = normalize_axis(op, axis, x.ndim, {"x": x})
    _check_rank(op, x, places)
    places = from_the_front(op, places, place, x.shape[place])
    hidden = [(*t.shape[:place], 1, *t.shape[place + 1 :]) for t in (x, places)]
    shape = broadcast_shapes(op, hidden, {"x": x, "indices": places})
    both = [
        broadcast_known(t, (*shape[:place], t.shape[place], *shape[place + 1 :]))
        for t in (x, places)
    ]
    return both[0], both[1], place


def _check_rank(op: str, x: Tensor, index: Tensor) -> None:
    if x.ndim != index.ndim or x.ndim == 0:
        raise AxisError(
            op,
            "x and the indices have different ranks, or none",
            expected=f"indices with {max(x.ndim, 1)} axes",
            got={"x": x, "indices": index},
            fix="give the indices the axis they lack: indices[..., None]"
            if 0 < index.ndim < x.ndim
            else "use wf.take(x, indices, axis=0) for one index for all positions",
        )


def _all(x: Tensor) -> tuple[int, ...]:
    return tuple(range(x.ndim))


# --- in PyTorch's manner -----------------------------------------------------------------------


@unit
def gather(x: Operand, axis: int, index: Operand) -> Tensor:
    """The elements at an index along an axis; on other axes the index may be shorter than x.

    >>> import weft as wf
    >>> wf.gather(wf.tensor([[1, 2], [3, 4]]), 1, wf.tensor([[0, 0], [1, 0]])).tolist()
    [[1, 1], [4, 3]]
    """
    x, places, place = _check_index("gather", x, axis, index)
    return apply(indexing.gather, x, *along_axis(places, place, places.shape), axes=_all(x))


@unit
def scatter(x: Operand, axis: int, index: Operand, src: Operand) -> Tensor:
    """x with elements of `src` put at an index along an axis; of several the last one stays.

    >>> import weft as wf
    >>> wf.scatter(wf.zeros(3), 0, wf.tensor([2, 0]), wf.tensor([5.0, 6.0])).tolist()
    [6.0, 0.0, 5.0]
    """
    return _scatter_along("scatter", indexing.scatter, x, axis, index, src, unique=False)


@unit
def scatter_add(x: Operand, axis: int, index: Operand, src: Operand) -> Tensor:
    """x with elements of `src` added at an index along an axis; all of several count.

    >>> import weft as wf
    >>> wf.scatter_add(wf.zeros(3), 0, wf.tensor([1, 1]), wf.tensor([5.0, 6.0])).tolist()
    [0.0, 11.0, 0.0]
    """
    return _scatter_along("scatter_add", indexing.scatter_add, x, axis, index, src)


@unit
def scatter_reduce(
    x: Operand,
    axis: int,
    index: Operand,
    src: Operand,
    reduce: str = "sum",
    *,
    include_self: bool = True,
) -> Tensor:
    """x with elements of `src` joined in at an index: "sum", "prod", "mean", "amax" or "amin".

    With include_self=False the elements of x that something is joined to do not count themselves.

    >>> import weft as wf
    >>> wf.scatter_reduce(wf.zeros(2), 0, wf.tensor([1, 1]), wf.tensor([5.0, 6.0]), "amax").tolist()
    [0.0, 6.0]
    """
    op = "scatter_reduce"
    by = {
        "amax": indexing.scatter_max,
        "amin": indexing.scatter_min,
        "prod": indexing.scatter_multiply,
        "sum": indexing.scatter_add,
    }
    chosen = by.get("sum" if reduce == "mean" else str(reduce))
    if chosen is None:
        raise ArgumentError(
            op,
            "unknown reduction",
            expected='"sum", "prod", "mean", "amax" or "amin"',
            got={"reduce": repr(reduce)},
            fix='reduce="sum"',
        )
    start = as_tensor(op, x)
    if not include_self:
        is_extreme = reduce in ("amax", "amin")
        lowest, highest = extremes(start.dtype) if is_extreme else (0, 0)
        neutral = {"prod": 1, "amax": lowest, "amin": highest}.get(reduce, 0)
        start = scatter(start, axis, index, scalar_tensor(op, neutral, start.dtype))
    total = _scatter_along(op, chosen, start, axis, index, src)
    if reduce != "mean":
        return total
    ones = scalar_tensor(op, 1, total.dtype)
    counts = broadcast_known(ones, total.shape)
    if not include_self:
        counts = scatter(counts, axis, index, scalar_tensor(op, 0, total.dtype))
    return divide(total, scatter_add(counts, axis, index, ones))


def _check_index(op: str, x: Operand, axis: int, index: Operand) -> tuple[Tensor, Tensor, int]:
    """An index that addresses one axis and is no longer than x on the others."""
    x = as_tensor(op, x)
    places = index_tensor(op, index)
    place = normalize_axis(op, axis, x.ndim, {"x": x})
    _check_rank(op, x, places)
    pairs = zip(x.shape, places.shape, strict=True)
    if any(is_below(a, b) for i, (a, b) in enumerate(pairs) if i != place):
        raise ShapeError(
            op,
            "the index is longer than x",
            expected=f"at most {list(x.shape)}, on every axis but {place}",
            got={"x": x, "index": places},
            fix="broadcast x first, or shorten the index",
        )
    return x, from_the_front(op, places, place, x.shape[place]), place


def _scatter_along(
    op: str, primitive: Primitive, x: Operand, axis: int, index: Operand, src: Operand,
    **params: bool,
) -> Tensor:  # fmt: skip
    x, places, place = _check_index(op, x, axis, index)
    updates = _fit_source(op, as_tensor_in(op, src, x.dtype, "src"), places.shape)
    everywhere = along_axis(places, place, places.shape)
    return apply(primitive, x, updates, *everywhere, axes=_all(x), **params)


def _fit_source(op: str, src: Tensor, shape: Shape) -> Tensor:
    """The elements of src that an index of that shape uses: src may be longer."""
    longer = src.ndim == len(shape) and not any(
        is_below(a, b) for a, b in zip(src.shape, shape, strict=True)
    )
    if not longer or src.shape == shape:
        return _broadcast_source(op, src, shape)
    ones = (1,) * src.ndim
    return apply(slice_, src, starts=(0,) * src.ndim, stops=shape, strides=ones)


def _broadcast_source(op: str, source: Tensor, shape: Shape) -> Tensor:
    """The source, broadcast to the places it is written to."""
    try:
        return broadcast_known(source, shape)
    except ShapeError as error:
        raise ShapeError(
            op,
            "the source does not fit the places it is written to",
            expected=f"a source of shape {list(shape)}, or one that broadcasts to it",
            got={"source": source},
            note=error.note,
            fix="give one element, or one slice, for each index",
        ) from None


def index_put(
    x: Operand, indices: Sequence[Operand], values: Operand, *, accumulate: bool = False
) -> Tensor:
    """x with values at places that are given by one index for each of the first axes.

    The indices are broadcast against each other, as in `x[i, j] = values`; of several values for
    one place the last one stays, and with `accumulate` all are added to what is there.

    >>> import weft as wf
    >>> places = (wf.tensor([0, 1, 1]), wf.tensor([1, 0, 0]))
    >>> wf.index_put(wf.zeros((2, 2)), places, wf.ones(3), accumulate=True).tolist()
    [[0.0, 1.0], [2.0, 0.0]]
    """
    x = as_tensor("index_put", x)
    if not isinstance(indices, (list, tuple)):
        raise ArgumentTypeError(
            "index_put",
            "the indices are no sequence",
            expected="one index for each of the first axes, in a list or tuple",
            got={"indices": indices},
            fix="indices=(i,)",
        )
    key = tuple(index_tensor("index_put", index) for index in indices)
    if not accumulate:
        return with_update(x, key, values)
    shape = broadcast_shapes("index_put", [index.shape for index in key], {"x": x})
    places = [
        from_the_front("index_put", broadcast_known(index, shape), axis, x.shape[axis])
        for axis, index in enumerate(key)
    ]
    new = as_tensor_in("index_put", values, x.dtype, "values")
    updates = _broadcast_source("index_put", new, (*shape, *x.shape[len(key) :]))
    return apply(indexing.scatter_add, x, updates, *places, axes=tuple(range(len(key))))


def masked_fill(x: Operand, mask: Operand, value: Operand) -> Tensor:
    """x with a value in all places where the mask, broadcast to x, is true.

    >>> import weft as wf
    >>> wf.masked_fill(wf.tensor([1.0, 2.0]), wf.tensor([True, False]), 0.0).tolist()
    [0.0, 2.0]
    """
    x = as_tensor("masked_fill", x)
    return where(mask, as_tensor_in("masked_fill", value, x.dtype, "value"), x)


def masked_select(x: Operand, mask: Operand) -> Tensor:
    """The elements of x in the places where the mask is true, along one axis; not in traces.

    >>> import weft as wf
    >>> wf.masked_select(wf.tensor([1, 2, 3]), wf.tensor([True, False, True])).tolist()
    [1, 3]
    """
    x = as_tensor("masked_select", x)
    chosen = as_tensor("masked_select", mask, "mask")
    if chosen.dtype is not bool_:
        raise DTypeError(
            "masked_select",
            "the mask is not boolean",
            expected="bool",
            got={"x": x, "mask": chosen},
            fix="compare first: mask != 0",
        )
    shape = broadcast_shapes("masked_select", [x.shape, chosen.shape], {"x": x, "mask": chosen})
    return getitem(broadcast_known(x, shape), broadcast_known(chosen, shape))


# --- boxes -------------------------------------------------------------------------------------


def _starts(op: str, starts: Sequence[Operand]) -> list[Tensor]:
    listed = as_sequence(op, "starts", starts)
    return [convert_to(index_tensor(op, start), INDEX) for start in listed]


def dynamic_slice(x: Operand, starts: Sequence[Operand], sizes: Sequence[int]) -> Tensor:
    """The box of fixed sizes at starts that may be traced; it is moved to lie inside x.

    >>> import weft as wf
    >>> wf.dynamic_slice(wf.arange(5), (wf.tensor(4),), (2,)).tolist()
    [3, 4]
    """
    x = as_tensor("dynamic_slice", x)
    shape = check_shape("dynamic_slice", sizes)
    return apply(boxes.dynamic_slice, x, *_starts("dynamic_slice", starts), sizes=shape)


def dynamic_update_slice(x: Operand, update: Operand, starts: Sequence[Operand]) -> Tensor:
    """x with a box replaced, at starts that may be traced; it is moved to lie inside x.

    >>> import weft as wf
    >>> wf.dynamic_update_slice(wf.zeros(3), wf.ones(2), (wf.tensor(0),)).tolist()
    [1.0, 1.0, 0.0]
    """
    x = as_tensor("dynamic_update_slice", x)
    new = as_tensor_in("dynamic_update_slice", update, x.dtype, "update")
    places = _starts("dynamic_update_slice", starts)
    return apply(boxes.dynamic_update_slice, x, new, *places)
