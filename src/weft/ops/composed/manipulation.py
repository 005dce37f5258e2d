"""Manipulation functions of the Array API standard: tensors put into another arrangement.

Tensors are values, so nothing here shares storage that a later write could reach. Sizes may be
symbols.

>>> import weft as wf
>>> wf.concat([wf.zeros((2, 3)), wf.ones((1, 3))]).shape
(3, 3)
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from weft.core import shapes as rules
from weft.core.arrays import CONCRETE, HostArray
from weft.core.dimensions import is_zero
from weft.core.dtypes import INDEX
from weft.core.errors import ArgumentError, ArgumentTypeError, DTypeError, ShapeError
from weft.core.shapes import (
    Dim,
    Dimension,
    Shape,
    check_shape,
    equal,
    normalize_axes,
    normalize_axis,
    size,
)
from weft.core.wrong_calls import RECALLS
from weft.ir.applications import apply_view
from weft.ir.constants import place_beside
from weft.ir.dispatch import apply
from weft.ir.eager import is_native
from weft.ir.number_arrays import number_array
from weft.ir.parts import as_part
from weft.ir.remembered_calls import remember_calls, remember_host_calls
from weft.ir.tensor import Tensor, host_array, wrap
from weft.ops import movement
from weft.ops.composed.ingestion import ingest
from weft.ops.indexing import gather
from weft.ops.operands import (
    LONGEST_LIST,
    Operand,
    alias,
    apply_as,
    as_integer,
    as_sequence,
    as_tensor,
    promote_operands,
)
from weft.ops.placed_boxes import roll_at

__all__ = [
    "broadcast_arrays", "broadcast_shapes", "broadcast_to", "concat", "expand_dims", "flip",
    "moveaxis", "permute_dims", "repeat", "reshape", "roll", "squeeze", "stack", "swapaxes", "tile",
    "transpose", "unstack",
]  # fmt: skip

Axis = int | Sequence[int]


# --- shapes ------------------------------------------------------------------------------------


def reshape_known(x: Tensor, shape: Shape) -> Tensor:
    """The tensor in a known shape; another handle on the same value where it has it already."""
    if x.shape == shape:
        return as_part(alias(x), x, "x.reshape(x.shape)")
    return apply_view(movement.reshape, x, shape=shape)


def reshape(x: Operand, /, shape: Any, *, copy: bool | None = None) -> Tensor:
    """The same elements in row-major order in another shape; one dimension may be -1: what is left.

    The result is a part of x, and not written to while x is alive; with copy=True it is a tensor of
    its own. copy=False is refused where NumPy would copy.

    >>> import weft as wf
    >>> wf.reshape(wf.arange(6), (2, -1)).tolist()
    [[0, 1, 2], [3, 4, 5]]
    """
    if copy is None:
        return _reshape(x, shape)
    x = as_tensor("reshape", x)
    target = _found_shape(x, shape)
    if copy is False and not _is_view(x._value, target):
        raise ArgumentError(
            "reshape",
            "this shape cannot be had without a copy",
            expected="elements that lie in row-major order, or copy=None",
            got={"x": x, "shape": list(target), "copy": copy},
            fix="leave copy out: wf.reshape(x, shape)",
        )
    return alias(reshape_known(x, target)) if copy else reshape_known(x, target)


@remember_calls
def _reshape(x: Operand, shape: Any) -> Tensor:
    """`reshape`, which copies where it must."""
    tensor = as_tensor("reshape", x)
    return reshape_known(tensor, _found_shape(tensor, shape))


RECALLS[reshape] = RECALLS[_reshape]  # a call without `copy` is known by the same key


def _is_view(value: Any, shape: Shape) -> bool:
    try:
        np.reshape(value, shape, copy=False)
    except ValueError:
        return False
    return True


def _found_shape(x: Tensor, shape: Any) -> Shape:
    """The shape with -1 replaced by what the number of elements leaves for it."""
    quick = _quick_shape(x._value, shape)
    if quick is not None:
        return quick
    entries = [shape] if isinstance(shape, (int, Dim)) else list(_entries(shape))
    free = [index for index, entry in enumerate(entries) if _is_free(entry)]
    known = check_shape("reshape", [e for e in entries if not _is_free(e)])
    if not free:
        return known
    rest = size(known)
    if len(free) > 1 or rest == 0:
        problem = "more than one dimension is -1" if len(free) > 1 else "-1 could be any size"
        raise ShapeError(
            "reshape",
            problem,
            expected="at most one -1, beside dimensions that are not 0",
            got={"x": x, "shape": list(entries)},
            fix="write out all dimensions but one",
        )
    shape_without_free = list(known)
    shape_without_free.insert(free[0], _share(x, rest, entries))
    return tuple(shape_without_free)


def _quick_shape(value: Any, shape: Any) -> Shape | None:
    """What `_found_shape` gives for an array of the host and a few plain sizes; None for others."""
    if type(value) is not HostArray or type(shape) is not tuple or len(shape) > 8:
        return None
    known, free = 1, None
    for place, entry in enumerate(shape):
        if type(entry) is not int:
            return None
        if entry > 0:
            known *= entry
        elif entry == -1 and free is None:
            free = place
        else:
            return None
    if free is None:
        return shape if known == value.size else None
    rest, left_over = divmod(value.size, known)
    return None if left_over else (*shape[:free], rest, *shape[free + 1 :])


def _share(x: Tensor, rest: Dimension, entries: Sequence[Any]) -> Dimension:
    """What -1 stands for: the elements divided among the other dimensions."""
    total = size(x.shape)
    if isinstance(total, int) and isinstance(rest, int) and total % rest:
        raise ShapeError(
            "reshape",
            f"{total} elements do not divide into parts of {rest}",
            expected=f"beside -1, dimensions whose product divides {total}",
            got={"x": x, "shape": list(entries)},
            note=f"{total} % {rest} == {total % rest}",
            fix=f"keep the first axis: x.reshape({x.shape[0] if x.shape else 1}, -1)",
        )
    return total // rest


def _entries(shape: Any) -> Sequence[Any]:
    return shape if isinstance(shape, (tuple, list)) else check_shape("reshape", shape)


def _is_free(entry: object) -> bool:
    return isinstance(entry, (int, np.integer)) and entry == -1


@remember_calls
def expand_dims(x: Operand, /, axis: Axis) -> Tensor:
    """The tensor with a new axis of size 1 at each given place of the result.

    >>> import weft as wf
    >>> wf.expand_dims(wf.ones((2, 3)), axis=1).shape
    (2, 1, 3)
    """
    x = as_tensor("expand_dims", x)
    count = len(axis) if isinstance(axis, Sequence) else 1
    axes = normalize_axes("expand_dims", axis, x.ndim + count, {"x": x})
    old = iter(x.shape)
    return reshape_known(x, tuple([1 if i in axes else next(old) for i in range(x.ndim + count)]))


@remember_calls
def squeeze(x: Operand, /, axis: Axis | None = None) -> Tensor:
    """The tensor without the given axes, which must have size 1; without all such axes by default.

    >>> import weft as wf
    >>> wf.squeeze(wf.ones((1, 3, 1)), axis=0).shape
    (3, 1)
    """
    x = as_tensor("squeeze", x)
    if axis is None:
        return reshape_known(
            x, tuple([dim for dim in x.shape if not is_zero(dim - 1, strict=True)])
        )
    axes = normalize_axes("squeeze", axis, x.ndim, {"x": x})
    for each in axes:
        if not is_zero(x.shape[each] - 1):
            raise ShapeError(
                "squeeze",
                f"axis {each} has size {x.shape[each]}",
                expected="axes of size 1",
                got={"x": x, "axis": axis},
                fix=f"index the axis to take one element of it: wf.take(x, 0, axis={each})",
            )
    return reshape_known(x, tuple([dim for i, dim in enumerate(x.shape) if i not in axes]))


@remember_calls
def broadcast_to(x: Operand, /, shape: Any) -> Tensor:
    """The tensor repeated along new axes and axes of size 1 to fill a shape.

    >>> import weft as wf
    >>> wf.broadcast_to(wf.tensor([1, 2]), (2, 2)).tolist()
    [[1, 2], [1, 2]]
    """
    return broadcast_known(as_tensor("broadcast_to", x), check_shape("broadcast_to", shape))


def broadcast_known(x: Tensor, shape: Shape) -> Tensor:
    """The tensor broadcast to a known shape."""
    return alias(x) if x.shape == shape else apply(movement.broadcast_to, x, shape=shape)


def broadcast_shapes(*shapes: Any) -> Shape:
    """The shape that tensors of these shapes broadcast to; of none, that of a single number.

    >>> import weft as wf
    >>> wf.broadcast_shapes((2, 1), (3,), ()), wf.broadcast_shapes()
    ((2, 3), ())
    """
    checked = [check_shape("broadcast_shapes", shape) for shape in shapes]
    got = {f"shape{i + 1}": shape for i, shape in enumerate(checked)}
    return rules.broadcast_shapes("broadcast_shapes", checked, got)


def broadcast_arrays(*arrays: Operand) -> tuple[Tensor, ...]:
    """The tensors broadcast against each other to one shape; dtypes stay as they are.

    >>> import weft as wf
    >>> [x.shape for x in wf.broadcast_arrays(wf.ones((2, 1)), wf.ones(3))]
    [(2, 3), (2, 3)]
    """
    tensors = [as_tensor("broadcast_arrays", x, f"x{i + 1}") for i, x in enumerate(arrays)]
    got = {f"x{i + 1}": tensor for i, tensor in enumerate(tensors)}
    shape = rules.broadcast_shapes("broadcast_arrays", [tensor.shape for tensor in tensors], got)
    return tuple([broadcast_known(tensor, shape) for tensor in tensors])


# --- the order of axes and of elements ---------------------------------------------------------


def transpose_known(x: Tensor, order: tuple[int, ...]) -> Tensor:
    """The axes in a known order."""
    if order == tuple(range(x.ndim)):
        return as_part(alias(x), x, "x.reshape(x.shape)")
    return apply_view(movement.transpose, x, order=order)


@remember_calls
def permute_dims(x: Operand, /, axes: Sequence[int]) -> Tensor:
    """The axes in another order: axis i of the result is axis axes[i] of x.

    >>> import weft as wf
    >>> wf.permute_dims(wf.ones((2, 3, 4)), (2, 0, 1)).shape
    (4, 2, 3)
    """
    x = as_tensor("permute_dims", x)
    listed = as_sequence("permute_dims", "axes", axes)
    order = normalize_axes("permute_dims", listed, x.ndim, {"x": x})
    permuted: Tensor = apply_as("permute_dims", movement.transpose, x, order=order)
    return permuted


def transpose(x: Operand, /, axes: Sequence[int] | None = None) -> Tensor:
    """The axes in another order, by default the opposite one.

    >>> import weft as wf
    >>> wf.transpose(wf.ones((2, 3, 4))).shape
    (4, 3, 2)
    """
    x = as_tensor("transpose", x)
    return permute_dims(x, tuple(range(x.ndim))[::-1] if axes is None else axes)


@remember_calls
def swapaxes(x: Operand, axis1: int, axis2: int, /) -> Tensor:
    """The tensor with two axes exchanged.

    >>> import weft as wf
    >>> wf.swapaxes(wf.ones((2, 3, 4)), 0, -1).shape
    (4, 3, 2)
    """
    x = as_tensor("swapaxes", x)
    first = normalize_axis("swapaxes", axis1, x.ndim, {"x": x})
    second = normalize_axis("swapaxes", axis2, x.ndim, {"x": x})
    order = list(range(x.ndim))
    order[first], order[second] = second, first
    return transpose_known(x, tuple(order))


@remember_calls
def moveaxis(x: Operand, source: Axis, destination: Axis, /) -> Tensor:
    """The tensor with axes moved to new places, the order of the others kept.

    >>> import weft as wf
    >>> wf.moveaxis(wf.ones((2, 3, 4)), 0, -1).shape
    (3, 4, 2)
    """
    x = as_tensor("moveaxis", x)
    sources = normalize_axes("moveaxis", source, x.ndim, {"x": x})
    targets = normalize_axes("moveaxis", destination, x.ndim, {"x": x})
    if len(sources) != len(targets):
        raise ArgumentError(
            "moveaxis",
            "not as many sources as destinations",
            expected="one destination for each source",
            got={"source": source, "destination": destination},
            fix="wf.moveaxis(x, 0, -1), or two tuples of one length",
        )
    order = [axis for axis in range(x.ndim) if axis not in sources]
    for target, old_place in sorted(zip(targets, sources, strict=True)):
        order.insert(target, old_place)
    return transpose_known(x, tuple(order))


@remember_calls
def flip(x: Operand, /, *, axis: Axis | None = None) -> Tensor:
    """The elements in opposite order along the axes, by default along all.

    >>> import weft as wf
    >>> wf.flip(wf.tensor([[1, 2], [3, 4]]), axis=1).tolist()
    [[2, 1], [4, 3]]
    """
    x = as_tensor("flip", x)
    return apply(movement.flip, x, axes=normalize_axes("flip", axis, x.ndim, {"x": x}))


@remember_host_calls
def roll(x: Operand, /, shift: Axis, *, axis: Axis | None = None) -> Tensor:
    """The elements moved along axes, those pushed out at one end coming in at the other.

    Without an axis the tensor is flattened, rolled and put back into its shape.

    >>> import weft as wf
    >>> wf.roll(wf.tensor([1, 2, 3, 4]), 1).tolist()
    [4, 1, 2, 3]
    """
    x = as_tensor("roll", x)
    if axis is None:
        return reshape_known(roll(reshape_known(x, (x.size,)), shift, axis=0), x.shape)
    named = axis if isinstance(axis, Sequence) else [axis]
    axes = [normalize_axis("roll", each, x.ndim, {"x": x}) for each in named]
    given = shift if isinstance(shift, (tuple, list)) else [shift] * len(axes)
    shifts = [as_integer("roll", "shift", each) for each in given]
    if len(axes) == 1:
        axes = axes * len(shifts)
    if len(shifts) != len(axes):
        raise ArgumentError(
            "roll",
            "not as many shifts as axes",
            expected="one shift for each axis, or one for all",
            got={"shift": shift, "axis": axis},
            fix="wf.roll(x, (1, 2), axis=(0, 1))",
        )
    if type(x._value) is not HostArray and type(x._value) in CONCRETE and is_native():
        return _roll_elsewhere(x, shifts, axes)
    for each, amount in zip(axes, shifts, strict=True):
        x = _roll_axis(x, amount, each)
    return alias(x)


def _roll_elsewhere(x: Tensor, shifts: Sequence[int], axes: Sequence[int]) -> Tensor:
    """The same on another device, where one program serves all shifts."""
    totals: dict[int, int] = {}
    shape: tuple[Any, ...] = x.shape  # a device's array has no symbols
    for axis, shift in zip(axes, shifts, strict=True):
        if shape[axis] > 1:
            totals[axis] = (totals.get(axis, 0) + shift) % shape[axis]
    if x.size == 0 or not any(totals.values()):
        return alias(x)
    numbers = [wrap(number_array(each, INDEX.numpy, x.device)) for each in totals.values()]
    return apply(roll_at, x, *numbers, along=tuple(totals), back=False)


def _roll_axis(x: Tensor, shift: Any, axis: int) -> Tensor:
    dim = x.shape[axis]
    if dim != 0 and not movement.is_below(abs(shift), dim):
        shift = shift % dim
    if dim == 0 or shift == 0:
        return x
    cut = dim - shift if isinstance(shift, Dim) or shift > 0 else -shift
    parts = [cut_axis(x, axis, cut, dim), cut_axis(x, axis, 0, cut)]
    return apply(movement.concatenate, *parts, axis=axis)


def cut_axis(x: Tensor, axis: int, start: Dimension, stop: Dimension) -> Tensor:
    """The stretch of one axis from start to before stop."""
    starts: list[Dimension] = [0] * x.ndim
    stops = list(x.shape)
    starts[axis], stops[axis] = start, stop
    strides = (1,) * x.ndim
    return apply_view(movement.slice_, x, starts=tuple(starts), stops=tuple(stops), strides=strides)


# --- joining and repeating ---------------------------------------------------------------------


def promoted_sequence(op: str, arrays: Any) -> tuple[Tensor, ...]:
    """Tensors of one dtype from a sequence of at least one."""
    if isinstance(arrays, (Tensor, np.ndarray)):
        arrays = unstack(arrays)
    is_long = isinstance(arrays, range) and bool(arrays[LONGEST_LIST:])
    if not isinstance(arrays, Sequence) or not arrays or is_long:
        raise ArgumentTypeError(
            op,
            "not a sequence of tensors",
            expected="a tuple or list of at least one tensor",
            got={"arrays": arrays},
            fix=f"wf.{op}([x, y])",
        )
    return promote_operands(op, arrays)


@remember_calls
def concat(arrays: Sequence[Operand], /, *, axis: int | None = 0) -> Tensor:
    """Tensors joined along an axis that all of them have; flattened first where axis is None.

    >>> import weft as wf
    >>> wf.concat([wf.tensor([1, 2]), wf.tensor([3])]).tolist()
    [1, 2, 3]
    """
    tensors = promoted_sequence("concat", arrays)
    if axis is None:
        tensors = tuple([reshape_known(x, (x.size,)) for x in tensors])
    along = 0 if axis is None else axis
    place = normalize_axis("concat", along, tensors[0].ndim, {"x1": tensors[0]})
    concatenated: Tensor = apply_as("concat", movement.concatenate, *tensors, axis=place)
    return concatenated


@remember_calls
def stack(arrays: Sequence[Operand], /, *, axis: int = 0) -> Tensor:
    """Tensors of one shape joined along a new axis.

    >>> import weft as wf
    >>> wf.stack([wf.tensor([1, 2]), wf.tensor([3, 4])], axis=1).tolist()
    [[1, 3], [2, 4]]
    """
    tensors = promoted_sequence("stack", arrays)
    place = normalize_axis("stack", axis, tensors[0].ndim + 1, {"x1": tensors[0]})
    if any(not _same_shape(x.shape, tensors[0].shape) for x in tensors):
        raise ShapeError(
            "stack",
            "the tensors have different shapes",
            expected="tensors of one shape",
            got={f"x{i + 1}": x for i, x in enumerate(tensors)},
            fix="pad or slice them to one shape, or join them along an axis: wf.concat",
        )
    parts = [expand_dims(x, axis=place) for x in tensors]
    return apply(movement.concatenate, *parts, axis=place)


def _same_shape(a: Shape, b: Shape) -> bool:
    return len(a) == len(b) and all(equal(m, n) for m, n in zip(a, b, strict=True))


def unstack(x: Operand, /, *, axis: int = 0) -> tuple[Tensor, ...]:
    """The tensors that an axis is a stack of, in a tuple.

    >>> import weft as wf
    >>> [part.tolist() for part in wf.unstack(wf.tensor([[1, 2], [3, 4]]), axis=1)]
    [[1, 3], [2, 4]]
    """
    x = as_tensor("unstack", x)
    place = normalize_axis("unstack", axis, x.ndim, {"x": x})
    shape = (*x.shape[:place], *x.shape[place + 1 :])
    count = range(int(x.shape[place]))
    return tuple([reshape_known(cut_axis(x, place, i, i + 1), shape) for i in count])


@remember_calls
def tile(x: Operand, repetitions: Any, /) -> Tensor:
    """The whole tensor repeated along each axis.

    >>> import weft as wf
    >>> wf.tile(wf.tensor([1, 2]), (2, 2)).tolist()
    [[1, 2, 1, 2], [1, 2, 1, 2]]
    """
    x = as_tensor("tile", x)
    counts = check_shape("tile", repetitions)
    rank = max(x.ndim, len(counts))
    counts = (1,) * (rank - len(counts)) + counts
    shape = (1,) * (rank - x.ndim) + x.shape
    pairs = list(zip(counts, shape, strict=True))
    apart = reshape_known(x, tuple([d for _, dim in pairs for d in (1, dim)]))
    filled = broadcast_known(apart, tuple([d for pair in pairs for d in pair]))
    return reshape_known(filled, tuple([count * dim for count, dim in pairs]))


@remember_calls
def repeat(x: Operand, repeats: Any, /, *, axis: int | None = None) -> Tensor:
    """Each element repeated, in its place; `repeats` is one number, or one for each element.

    Without an axis the tensor is flattened first.

    >>> import weft as wf
    >>> wf.repeat(wf.tensor([1, 2]), 2).tolist()
    [1, 1, 2, 2]
    >>> wf.repeat(wf.tensor([1, 2]), wf.tensor([2, 1])).tolist()
    [1, 1, 2]
    """
    x = as_tensor("repeat", x)
    if axis is None:
        x, axis = reshape_known(x, (x.size,)), 0
    place = normalize_axis("repeat", axis, x.ndim, {"x": x})
    counts = _repeats(x, repeats, place)
    if isinstance(counts, (int, Dim)):
        return _repeat_elements(x, counts, place)
    index = place_beside(wrap(np.repeat(np.arange(len(counts)), counts)), x)
    gathered = apply(gather, x, index, axes=(place,))
    return moveaxis(gathered, 0, place)


def _repeat_elements(x: Tensor, count: Dimension, axis: int) -> Tensor:
    before, dim, after = x.shape[:axis], x.shape[axis], x.shape[axis + 1 :]
    filled = broadcast_known(
        reshape_known(x, (*before, dim, 1, *after)), (*before, dim, count, *after)
    )
    return reshape_known(filled, (*before, dim * count, *after))


def _repeats(x: Tensor, repeats: Any, axis: int) -> Any:
    """One number for all elements, or an array of one for each."""
    if isinstance(repeats, Dim):
        return repeats
    if isinstance(repeats, (list, tuple)):
        repeats = ingest("repeat", repeats, None)[0]
    counts = host_array(as_tensor("repeat", repeats, "repeats"), "repeat")
    if counts.dtype.kind not in "iu":
        raise DTypeError(
            "repeat",
            "repeats are not integers",
            expected="an integer, or one for each element",
            got={"x": x, "repeats": repeats},
            fix='convert them first: repeats.astype("int64")',
        )
    fits = counts.ndim == 0 or counts.shape in ((1,), (x.shape[axis],))
    if not fits or bool((counts < 0).any()):
        raise ArgumentError(
            "repeat",
            "repeats do not fit the axis",
            expected=f"one number of at least 0, or {x.shape[axis]} of them",
            got={"x": x, "repeats": repeats, "axis": axis},
            fix="wf.repeat(x, 2, axis=0)",
        )
    return int(counts.reshape(-1)[0]) if counts.size == 1 else counts
