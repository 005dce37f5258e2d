"""Arrangements that NumPy and PyTorch have beyond the Array API: parts, diagonals, windows.

>>> import weft as wf
>>> [part.tolist() for part in wf.split(wf.arange(4), 2, axis=0)]
[[0, 1], [2, 3]]
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import wraps
from typing import Any

import numpy as np

from weft.core.errors import ArgumentError, ShapeError
from weft.core.shapes import Dimension, normalize_axes, normalize_axis
from weft.ir.constants import beside_operands
from weft.ir.dispatch import apply
from weft.ir.eager import unit, view_unit
from weft.ir.parts import as_part
from weft.ir.remembered_calls import remember_calls, remember_host_calls
from weft.ir.reverse import filled_tensor
from weft.ir.tensor import Tensor
from weft.ops.arithmetic import add, multiply
from weft.ops.composed.manipulation import (
    concat,
    cut_axis,
    flip,
    moveaxis,
    promoted_sequence,
    reshape_known,
    transpose_known,
)
from weft.ops.indexing import count_up, gather, scatter
from weft.ops.movement import is_below
from weft.ops.operands import Operand, alias, as_integer, as_sequence, as_tensor

__all__ = [
    "as_windows", "atleast_1d", "atleast_2d", "atleast_3d", "chunk", "diag", "diag_embed",
    "diagonal", "flatten", "hstack", "narrow", "ravel", "rot90", "split", "unfold", "vstack",
]  # fmt: skip


# --- shapes ------------------------------------------------------------------------------------


@remember_calls
def flatten(x: Operand, start_axis: int = 0, end_axis: int = -1) -> Tensor:
    """The axes from the first to the last named one joined into one, by default all.

    >>> import weft as wf
    >>> wf.flatten(wf.ones((2, 3, 4)), 1).shape
    (2, 12)
    """
    x = as_tensor("flatten", x)
    if x.ndim == 0:
        return reshape_known(x, (1,))
    first = normalize_axis("flatten", start_axis, x.ndim, {"x": x})
    last = normalize_axis("flatten", end_axis, x.ndim, {"x": x})
    if first > last:
        raise ArgumentError(
            "flatten",
            "the first axis comes after the last",
            expected="start_axis <= end_axis",
            got={"x": x, "start_axis": start_axis, "end_axis": end_axis},
            fix=f"wf.flatten(x, {last}, {first})",
        )
    joint: Dimension = 1
    for dim in x.shape[first : last + 1]:
        joint = joint * dim
    return reshape_known(x, (*x.shape[:first], joint, *x.shape[last + 1 :]))


@remember_calls
def ravel(x: Operand, /) -> Tensor:
    """All elements in row-major order along one axis.

    >>> import weft as wf
    >>> wf.ravel(wf.tensor([[1, 2], [3, 4]])).tolist()
    [1, 2, 3, 4]
    """
    return flatten(x)


def atleast_1d(x: Operand, /) -> Tensor:
    """The tensor with at least one axis.

    >>> import weft as wf
    >>> wf.atleast_1d(wf.tensor(1.0)).shape
    (1,)
    """
    x = as_tensor("atleast_1d", x)
    return reshape_known(x, (1,)) if x.ndim == 0 else alias(x)


def atleast_2d(x: Operand, /) -> Tensor:
    """The tensor with at least two axes; a line becomes a row.

    >>> import weft as wf
    >>> wf.atleast_2d(wf.ones(3)).shape
    (1, 3)
    """
    x = as_tensor("atleast_2d", x)
    return alias(x) if x.ndim > 1 else reshape_known(x, (1,) * (2 - x.ndim) + x.shape)


def atleast_3d(x: Operand, /) -> Tensor:
    """The tensor with at least three axes; new ones come last, and around a line.

    >>> import weft as wf
    >>> wf.atleast_3d(wf.ones(3)).shape, wf.atleast_3d(wf.ones((2, 3))).shape
    ((1, 3, 1), (2, 3, 1))
    """
    x = as_tensor("atleast_3d", x)
    if x.ndim > 2:
        return alias(x)
    return reshape_known(x, (*x.shape, 1) if x.ndim == 2 else (*atleast_2d(x).shape, 1))


@remember_calls
def hstack(arrays: Sequence[Operand], /) -> Tensor:
    """Tensors joined along the second axis, lines along their only one.

    >>> import weft as wf
    >>> wf.hstack([wf.ones((2, 1)), wf.zeros((2, 1))]).tolist()
    [[1.0, 0.0], [1.0, 0.0]]
    """
    tensors = [atleast_1d(x) for x in promoted_sequence("hstack", arrays)]
    return concat(tensors, axis=0 if tensors[0].ndim == 1 else 1)


@remember_calls
def vstack(arrays: Sequence[Operand], /) -> Tensor:
    """Tensors joined along the first axis, lines as rows.

    >>> import weft as wf
    >>> wf.vstack([wf.ones(2), wf.zeros(2)]).tolist()
    [[1.0, 1.0], [0.0, 0.0]]
    """
    return concat([atleast_2d(x) for x in promoted_sequence("vstack", arrays)], axis=0)


def rot90(x: Operand, k: int = 1, axes: tuple[int, int] = (0, 1)) -> Tensor:
    """The tensor turned k times by 90 degrees in a plane, from the first axis towards the second.

    >>> import weft as wf
    >>> wf.rot90(wf.tensor([[1, 2], [3, 4]])).tolist()
    [[2, 4], [1, 3]]
    """
    x = as_tensor("rot90", x)
    plane = normalize_axes("rot90", as_sequence("rot90", "axes", axes), x.ndim, {"x": x})
    if len(plane) != 2:
        raise ArgumentError(
            "rot90",
            "a plane has two axes",
            expected="two different axes",
            got={"x": x, "axes": axes},
            fix="axes=(0, 1)",
        )
    first, second = plane
    turns = as_integer("rot90", "k", k) % 4
    if turns in (0, 2):
        return flip(x, axis=(first, second)) if turns else alias(x)
    order = list(range(x.ndim))
    order[first], order[second] = second, first
    if turns == 1:
        return transpose_known(flip(x, axis=second), tuple(order))
    return flip(transpose_known(x, tuple(order)), axis=second)


# --- parts -------------------------------------------------------------------------------------


@remember_host_calls
def narrow(x: Operand, axis: int, start: int, length: int) -> Tensor:
    """The stretch of an axis that begins at `start` and has a length.

    >>> import weft as wf
    >>> wf.narrow(wf.arange(5), 0, 1, 3).tolist()
    [1, 2, 3]
    """
    x = as_tensor("narrow", x)
    start, length = as_integer("narrow", "start", start), as_integer("narrow", "length", length)
    place = normalize_axis("narrow", axis, x.ndim, {"x": x})
    low: Dimension = start + x.shape[place] if start < 0 else start
    if is_below(low, 0) or length < 0 or is_below(x.shape[place], low + length):
        raise ArgumentError(
            "narrow",
            "the stretch is not inside the axis",
            expected=f"0 <= start <= start + length <= {x.shape[place]}",
            got={"x": x, "axis": axis, "start": start, "length": length},
            fix=f"wf.narrow(x, {axis}, 0, {x.shape[place]})",
        )
    return cut_axis(x, place, low, low + length)


def _refuse_doubt(f: Callable[..., list[Tensor]]) -> Callable[..., list[Tensor]]:
    """Refuse what means one thing in PyTorch and another in NumPy, unless an axis is named.

    The axis has a name of its own in each of them, so one who writes `axis=` means NumPy's.
    """

    @wraps(f)
    def check_and_split(*args: Any, **kwargs: Any) -> list[Tensor]:
        if len(args) > 1 and "axis" not in kwargs:
            parts, axis = args[1], args[2] if len(args) > 2 else kwargs.get("dim", 0)
            sizes = isinstance(parts, (list, tuple)) and len(parts) > 1
            x = as_tensor("split", args[0])
            place = normalize_axis("split", axis, x.ndim, {"x": x})
            if isinstance(parts, int) or (sizes and sum(parts) == x.shape[place]):
                raise _doubtful_split(x, parts, axis)
        return f(*args, **kwargs)

    return check_and_split


def _doubtful_split(x: Tensor, parts: Any, axis: int) -> ArgumentError:
    if isinstance(parts, int):
        either = f"wf.split(x, {parts}, axis={axis}) for {parts} parts"
        other = f"wf.split(x, size={parts}, axis={axis}) for parts of size {parts}"
    else:
        either = f"wf.split(x, {parts}, axis={axis}) to cut at these places"
        places = [sum(parts[: i + 1]) for i in range(len(parts) - 1)]
        other = f"wf.split(x, {places}, axis={axis}) for parts of these sizes"
    return ArgumentError(
        "split",
        "this means one thing in PyTorch and another in NumPy",
        expected="an axis by name, or the size of the parts",
        got={"x": x, "indices_or_sections": parts},
        fix=f"{either}, {other}",
    )


@_refuse_doubt
@view_unit
def split(
    x: Operand,
    indices_or_sections: int | Sequence[int] | None = None,
    axis: int = 0,
    *,
    size: int | None = None,
) -> list[Tensor]:
    """So many parts of equal size, the parts between given places, or parts of one `size`.

    PyTorch's `x.split(2)` and NumPy's differ, so a number of parts is given with its axis.

    >>> import weft as wf
    >>> [part.tolist() for part in wf.split(wf.arange(5), [1, 3])]
    [[0], [1, 2], [3, 4]]
    >>> [part.tolist() for part in wf.split(wf.arange(4), 2, axis=0)]
    [[0, 1], [2, 3]]
    >>> [part.tolist() for part in wf.split(wf.arange(5), size=2)]
    [[0, 1], [2, 3], [4]]
    """
    x = as_tensor("split", x)
    place = normalize_axis("split", axis, x.ndim, {"x": x})
    dim = x.shape[place]
    if (size is None) == (indices_or_sections is None):
        raise ArgumentError(
            "split",
            "the parts are not said, or twice",
            expected="a number of parts, places to cut at, or the size of a part",
            got={"indices_or_sections": indices_or_sections, "size": size},
            fix="wf.split(x, 2, axis=0)",
        )
    if size is not None:
        part = as_integer("split", "size", size)
        indices_or_sections = list(range(part, int(dim), part)) if part > 0 else []
    if not isinstance(indices_or_sections, (tuple, list, Tensor, np.ndarray)):
        count = as_integer("split", "indices_or_sections", indices_or_sections)
        return _equal_parts(x, count, place)
    listed = as_sequence("split", "indices_or_sections", indices_or_sections)
    places = [as_integer("split", "indices_or_sections", each) for each in listed]
    cuts = [slice(None, each).indices(int(dim))[1] for each in places]
    edges = list(zip([0, *cuts], [*cuts, dim], strict=True))
    return [cut_axis(x, place, low, max(low, int(high))) for low, high in edges]


def _equal_parts(x: Tensor, count: int, axis: int) -> list[Tensor]:
    dim = x.shape[axis]
    if not 1 <= count < 2**31 or dim % count != 0:
        raise ArgumentError(
            "split",
            f"{dim} elements do not make {count} equal parts",
            expected="a number that divides the size of the axis",
            got={"x": x, "indices_or_sections": count, "axis": axis},
            fix=f"allow a smaller last part: wf.chunk(x, {max(count, 1)}, axis={axis})",
        )
    part = dim // count
    return [cut_axis(x, axis, i * part, (i + 1) * part) for i in range(count)]


@view_unit
def chunk(x: Operand, chunks: int, axis: int = 0) -> list[Tensor]:
    """At most that many parts of equal size, the last one smaller where it does not come out even.

    >>> import weft as wf
    >>> [part.tolist() for part in wf.chunk(wf.arange(5), 2)]
    [[0, 1, 2], [3, 4]]
    """
    x = as_tensor("chunk", x)
    place = normalize_axis("chunk", axis, x.ndim, {"x": x})
    chunks = as_integer("chunk", "chunks", chunks)
    if chunks < 1:
        raise ArgumentError(
            "chunk",
            "no parts",
            expected="chunks of at least 1",
            got={"x": x, "chunks": chunks},
            fix="chunks=1",
        )
    dim = int(x.shape[place])
    part = max(-(-dim // chunks), 1)
    starts = range(0, dim, part) if dim else range(1)
    return [cut_axis(x, place, low, min(low + part, dim)) for low in starts]


# --- diagonals and windows ---------------------------------------------------------------------


@beside_operands
def diagonal(x: Operand, offset: int = 0, axis1: int = 0, axis2: int = 1) -> Tensor:
    """The elements whose second index is the first plus offset, along a new last axis.

    >>> import weft as wf
    >>> wf.diagonal(wf.tensor([[1, 2], [3, 4]])).tolist()
    [1, 4]
    """
    x = as_tensor("diagonal", x)
    if x.ndim < 2:
        raise _needs_axes("diagonal", x, 2)
    first, second = normalize_axes("diagonal", (axis1, axis2), x.ndim, {"x": x})
    offset = as_integer("diagonal", "offset", offset)
    down, right = max(-offset, 0), max(offset, 0)
    count = _smaller_size(x.shape[first] - down, x.shape[second] - right)
    rows, columns = _diagonal_places(count, down, right)
    diagonal_elements = moveaxis(apply(gather, x, rows, columns, axes=(first, second)), 0, -1)
    return as_part(diagonal_elements, x, "wf.diagonal(x)")


def _smaller_size(a: Dimension, b: Dimension) -> Dimension:
    least = a if a == b or a < b else b
    return 0 if is_below(least, 0) else least


def _diagonal_places(count: Dimension, down: int, right: int) -> tuple[Tensor, Tensor]:
    line = count_up(count)
    return add(line, down), add(line, right)


def _needs_axes(op: str, x: Tensor, count: int) -> ShapeError:
    return ShapeError(
        op,
        f"the tensor has {x.ndim} axes",
        expected=f"at least {count} axes",
        got={"x": x},
        fix="wf.diag(x) makes a matrix of a line",
    )


@unit
def diag(x: Operand, offset: int = 0) -> Tensor:
    """The matrix with a line on its diagonal, or the diagonal of a matrix.

    >>> import weft as wf
    >>> wf.diag(wf.tensor([1, 2])).tolist()
    [[1, 0], [0, 2]]
    """
    x, offset = as_tensor("diag", x), as_integer("diag", "offset", offset)
    if x.ndim == 2:
        return diagonal(x, offset)
    if x.ndim != 1:
        raise ShapeError(
            "diag",
            f"the tensor has {x.ndim} axes",
            expected="a line or a matrix",
            got={"x": x},
            fix="wf.diagonal(x, axis1=-2, axis2=-1) for stacks of matrices",
        )
    rows, columns = _diagonal_places(x.shape[0], max(-offset, 0), max(offset, 0))
    side = x.shape[0] + abs(offset)
    canvas = filled_tensor((side, side), x.dtype, 0)
    return apply(scatter, canvas, x, rows, columns, axes=(0, 1), unique=True)


@unit
def diag_embed(x: Operand, offset: int = 0, axis1: int = -2, axis2: int = -1) -> Tensor:
    """Matrices with the last axis of x on their diagonals; two axes of the result hold them.

    >>> import weft as wf
    >>> wf.diag_embed(wf.tensor([[1, 2], [3, 4]])).tolist()
    [[[1, 0], [0, 2]], [[3, 0], [0, 4]]]
    """
    x, offset = as_tensor("diag_embed", x), as_integer("diag_embed", "offset", offset)
    if x.ndim == 0:
        raise _needs_axes("diag_embed", x, 1)
    first, second = normalize_axes("diag_embed", (axis1, axis2), x.ndim + 1, {"x": x})
    rows, columns = _diagonal_places(x.shape[-1], max(-offset, 0), max(offset, 0))
    side = x.shape[-1] + abs(offset)
    canvas = filled_tensor((*x.shape[:-1], side, side), x.dtype, 0)
    places = (x.ndim - 1, x.ndim)
    updates = moveaxis(x, -1, 0)  # [diagonal, *batch]
    matrices = apply(scatter, canvas, updates, rows, columns, axes=places, unique=True)
    return moveaxis(matrices, (-2, -1), (first, second))


@unit
def unfold(x: Operand, axis: int, size: int, step: int = 1) -> Tensor:
    """Windows of a size that start every `step` elements of an axis, along a new last axis.

    >>> import weft as wf
    >>> wf.unfold(wf.arange(4), 0, 2).tolist()
    [[0, 1], [1, 2], [2, 3]]
    """
    x = as_tensor("unfold", x)
    place = normalize_axis("unfold", axis, x.ndim, {"x": x})
    dim = x.shape[place]
    size, step = as_integer("unfold", "size", size), as_integer("unfold", "step", step)
    if size < 0 or step < 1 or is_below(dim, size):
        raise ArgumentError(
            "unfold",
            "windows that do not fit the axis",
            expected=f"0 <= size <= {dim} and step >= 1",
            got={"x": x, "axis": axis, "size": size, "step": step},
            fix=f"wf.unfold(x, {axis}, size={dim}, step=1)",
        )
    count = (dim - size) // step + 1
    starts = reshape_known(multiply(count_up(count), step), (count, 1))
    gathered = apply(gather, x, add(starts, count_up(size)), axes=(place,))  # [count, size, others]
    windows = moveaxis(moveaxis(gathered, 1, -1), 0, place)
    return as_part(windows, x, "wf.unfold(x, axis, size, step)")


def as_windows(
    x: Operand, shape: int | Sequence[int], axis: Any = None, step: int | Sequence[int] = 1
) -> Tensor:
    """Sliding windows over several axes, by default all; the windows' own axes come last.

    >>> import weft as wf
    >>> wf.as_windows(wf.ones((4, 5)), (2, 3)).shape
    (3, 3, 2, 3)
    """
    x = as_tensor("as_windows", x)
    axes = normalize_axes("as_windows", axis, x.ndim, {"x": x})
    op = "as_windows"
    sizes = [shape] * len(axes) if isinstance(shape, int) else as_sequence(op, "shape", shape)
    steps = [step] * len(axes) if isinstance(step, int) else as_sequence(op, "step", step)
    if not len(sizes) == len(steps) == len(axes):
        raise ArgumentError(
            "as_windows",
            "not one size and step for each axis",
            expected=f"{len(axes)} sizes and {len(axes)} steps",
            got={"x": x, "shape": shape, "axis": axis, "step": step},
            fix=f"shape={(2,) * len(axes)}, axis={axes}",
        )
    for place, size, each in zip(axes, sizes, steps, strict=True):
        x = unfold(x, place, size, each)
    return alias(x)
