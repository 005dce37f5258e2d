"""Norms of vectors and matrices, with a gradient of zero where the size is zero.

>>> import weft as wf
>>> wf.linalg.vector_norm(wf.tensor([3.0, 4.0])).tolist()
5.0
"""

from __future__ import annotations

from math import inf
from typing import Any

from weft.core.dimensions import is_zero
from weft.core.dtypes import DType, float32, real_of
from weft.core.errors import ArgumentError, ShapeError
from weft.core.shapes import normalize_axes
from weft.core.types import TensorType
from weft.ir.dispatch import apply
from weft.ir.eager import unit
from weft.ir.reverse import zeros
from weft.ir.tensor import Tensor
from weft.ops.arithmetic import abs, conj
from weft.ops.comparison import equal, not_equal
from weft.ops.elementary import pow, sqrt
from weft.ops.factorizations import svdvals
from weft.ops.matrices import real_part, require_matrix
from weft.ops.movement import reshape, transpose
from weft.ops.operands import Operand, convert_to, promote_operands
from weft.ops.reduction import reduce_max, reduce_min, reduce_sum, reduced_type
from weft.ops.selection import where

__all__ = ["cdist", "matrix_norm", "norm", "vector_norm"]

Axes = tuple[int, ...]


@unit
def vector_norm(
    x: Operand,
    /,
    *,
    axis: int | tuple[int, ...] | None = None,
    keepdims: bool = False,
    ord: int | float = 2,
) -> Tensor:
    """(Σ |x|^ord)^(1/ord) over axes, all of them by default; inf and -inf: the largest, smallest.

    ord=0 counts the elements that are not zero. At zero the gradient is zero.

    >>> import weft as wf
    >>> wf.linalg.vector_norm(wf.tensor([3.0, -4.0]), ord=1).tolist()
    7.0
    """
    tensor = promote_operands("vector_norm", (x,), "inexact")[0]
    axes = tuple(sorted(normalize_axes("vector_norm", axis, tensor.ndim, {"x": tensor})))
    power = _order("vector_norm", ord)
    wide, dtype = _widen_operand(tensor)
    return _keep_dims(convert_to(_norm_over(wide, axes, power), dtype), tensor, axes, keepdims)


@unit
def cdist(x1: Operand, x2: Operand, p: float = 2.0) -> Tensor:
    """The distance of each row of x1 from each row of x2, in the norm of order p.

    Distances are norms of differences, so they are exact where rows are near; at distance zero the
    gradient is zero.

    >>> import weft as wf
    >>> wf.cdist(wf.tensor([[0.0, 0.0], [3.0, 4.0]]), wf.tensor([[0.0, 0.0]])).tolist()
    [[0.0], [5.0]]
    """
    a, b = promote_operands("cdist", (x1, x2), "inexact")
    if a.ndim < 2 or b.ndim < 2 or a.shape[-1] != b.shape[-1]:
        raise ShapeError(
            "cdist",
            "the rows are not as long as each other, or there are none",
            expected="x1: [..., m, features] and x2: [..., n, features]",
            got={"x1": a, "x2": b},
            fix="give single rows an axis: x[None]",
        )
    rows = apply(reshape, a, shape=(*a.shape[:-1], 1, a.shape[-1]))  # [..., m, 1, features]
    columns = apply(reshape, b, shape=(*b.shape[:-2], 1, *b.shape[-2:]))  # [..., 1, n, features]
    return vector_norm(rows - columns, axis=-1, ord=p)


def _widen_operand(x: Tensor) -> tuple[Tensor, DType]:
    """The tensor to work with, in float32 instead of 16-bit floats, and the result's dtype."""
    dtype = real_of(x.dtype)
    return (convert_to(x, float32) if dtype.bits == 16 else x), dtype


def _keep_dims(result: Tensor, x: Tensor, axes: Axes, keepdims: bool) -> Tensor:
    if not keepdims:
        return result
    shape = tuple(1 if axis in axes else dim for axis, dim in enumerate(x.shape))
    return apply(reshape, result, shape=shape)


def _order(op: str, ord: object) -> float:
    if isinstance(ord, bool) or not isinstance(ord, (int, float)) or ord != ord:
        raise ArgumentError(
            op,
            "unknown order",
            expected="a number, inf or -inf",
            got={"ord": repr(ord)},
            fix="leave it out for the Euclidean norm: ord=2",
        )
    return float(ord)


def _norm_over(x: Tensor, axes: Axes, power: float) -> Tensor:
    if power == 2:
        return _root(apply(reduce_sum, _squares(x), axes=axes), 0.5)
    if power == 0:
        counted = convert_to(not_equal(x, 0.0), real_of(x.dtype))
        return apply(reduce_sum, counted, axes=axes)
    sizes = abs(x)
    if power == inf and any(is_zero(x.shape[axis]) for axis in axes):
        return zeros(reduced_type(sizes.type, axes))
    if power in (inf, -inf):
        return apply(reduce_max if power > 0 else reduce_min, sizes, axes=axes)
    if power == 1:
        return apply(reduce_sum, sizes, axes=axes)
    powers = _root(sizes, power) if power > 0 else pow(sizes, power)
    total = apply(reduce_sum, powers, axes=axes)
    return _root(total, 1 / power) if power > 0 else pow(total, 1 / power)


def _squares(x: Tensor) -> Tensor:
    if x.dtype.is_complex:
        return real_part(conj(x) * x, real_of(x.dtype))
    return x * x


def _root(x: Tensor, power: float) -> Tensor:
    """x to a positive power, with derivatives of zero where x is zero."""
    nothing = equal(x, 0.0)
    safe = where(nothing, 1.0, x)
    return where(nothing, 0.0, sqrt(safe) if power == 0.5 else pow(safe, power))


def matrix_norm(
    x: Operand, /, *, keepdims: bool = False, ord: int | float | str | None = "fro"
) -> Tensor:
    """A norm of each matrix.

    "fro": the root of the sum of squares; "nuc": the sum of singular values; 2 and -2: the largest
    and smallest of them; 1 and -1: the largest and smallest column by the sum of its absolute
    values; inf and -inf: the same of rows.

    >>> import weft as wf
    >>> wf.linalg.matrix_norm(wf.tensor([[1.0, -2.0], [0.0, 3.0]]), ord=1).tolist()
    5.0
    """
    tensor = promote_operands("matrix_norm", (x,), "inexact")[0]
    require_matrix("matrix_norm", tensor.type)
    wide, dtype = _widen_operand(tensor)
    axes = (tensor.ndim - 2, tensor.ndim - 1)
    return _keep_dims(convert_to(_matrix_size(wide, ord), dtype), tensor, axes, keepdims)


def _matrix_size(x: Tensor, ord: object) -> Tensor:
    rows, columns = x.ndim - 2, x.ndim - 1
    ord = ord if ord is None or isinstance(ord, (str, int, float)) else repr(ord)
    if ord == "fro" or ord is None:
        return _norm_over(x, (rows, columns), 2)
    if ord == "nuc":
        return apply(reduce_sum, apply(svdvals, x), axes=(rows,))
    if ord in (2, -2):
        return _extreme(apply(svdvals, x), ord == 2)
    if ord in (1, -1, inf, -inf):
        summed = rows if ord in (1, -1) else columns
        return _extreme(apply(reduce_sum, abs(x), axes=(summed,)), ord in (1, inf))
    raise ArgumentError(
        "matrix_norm",
        "unknown order",
        expected="'fro', 'nuc', 1, -1, 2, -2, inf or -inf",
        got={"ord": repr(ord)},
        fix="leave it out for the Frobenius norm: ord='fro'",
    )


def _extreme(values: Tensor, largest: bool) -> Tensor:
    """The largest or smallest along the last axis; the largest of nothing is 0."""
    if largest and is_zero(values.shape[-1]):
        return zeros(TensorType(values.dtype, values.shape[:-1]))
    return apply(reduce_max if largest else reduce_min, values, axes=(values.ndim - 1,))


def norm(
    x: Operand,
    ord: int | float | str | None = None,
    axis: int | tuple[int, ...] | None = None,
    keepdims: bool = False,
) -> Tensor:
    """NumPy's norm: of a vector along one axis, of a matrix along two, of all elements by default.

    >>> import weft as wf
    >>> wf.linalg.norm(wf.tensor([[3.0, 0.0], [0.0, 4.0]])).tolist()
    5.0
    """
    tensor = promote_operands("norm", (x,), "inexact")[0]
    if axis is None and ord is None:
        return vector_norm(tensor, keepdims=keepdims)
    axes = normalize_axes("norm", axis, tensor.ndim, {"x": tensor})
    if len(axes) == 1:
        order: Any = 2 if ord is None else ord
        return vector_norm(tensor, axis=axes, keepdims=keepdims, ord=order)
    if len(axes) != 2:
        raise ShapeError(
            "norm",
            "neither a vector nor a matrix",
            expected="one or two axes",
            got={"x": tensor, "axis": axis},
            fix="name the axes: axis=-1, or axis=(-2, -1)",
        )
    others = tuple(i for i in range(tensor.ndim) if i not in axes)
    matrices_last = apply(transpose, tensor, order=(*others, *axes))
    return _keep_dims(matrix_norm(matrices_last, ord=ord), tensor, axes, keepdims)
