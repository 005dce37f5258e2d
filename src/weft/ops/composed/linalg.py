"""Linear algebra on stacks of matrices: the public namespace `wf.linalg`.

Leading axes are batch axes. Integers are computed in the default float, 16-bit floats in float32.
Matrices that a function takes for Hermitian are read as (x + xᴴ) / 2, so that gradients are
Hermitian too.

>>> import weft as wf
>>> wf.linalg.inv(wf.tensor([[2.0, 0.0], [0.0, 4.0]])).tolist()
[[0.5, 0.0], [0.0, 0.25]]
"""

from __future__ import annotations

from typing import Any, NamedTuple

from weft.core.dimensions import is_zero
from weft.core.dtypes import DEFAULT_INTEGER, real_of
from weft.core.errors import ArgumentError, ShapeError
from weft.core.names import missing_from
from weft.core.shapes import Shape, broadcast_shapes, normalize_axis
from weft.core.types import TensorType
from weft.core.wrong_calls import explain_all
from weft.ir.dispatch import apply, apply_multiple
from weft.ir.eager import unit
from weft.ir.reverse import zeros
from weft.ir.tensor import Tensor
from weft.ops import determinants, eigen, factorizations, solving
from weft.ops.arithmetic import abs, square
from weft.ops.comparison import greater, less
from weft.ops.composed.matrix_functions import matrix_exp, matrix_power
from weft.ops.composed.precision import (
    follow_table,
    matmul,
    matrix_norm,
    multi_dot,
    norm,
    tensordot,
    vecdot,
    vector_norm,
)
from weft.ops.composed.products import matrix_transpose, outer
from weft.ops.composed.statistics import sum
from weft.ops.elementary import log
from weft.ops.matrices import (
    adjoint,
    diagonal_of,
    product,
    require_matrix,
    require_square,
)
from weft.ops.movement import broadcast_to, concatenate, reshape, slice_
from weft.ops.operands import (
    Operand,
    as_integer,
    as_tensor,
    as_tensor_in,
    convert_to,
    promote_operands,
)
from weft.ops.reduction import keep_reduced, reduce_max, reduce_sum
from weft.ops.selection import where

__all__ = [
    "EigResult", "EighResult", "LUResult", "LstsqResult", "QRResult", "SVDResult", "SlogdetResult",
    "cholesky", "cross", "det", "diagonal", "eig", "eigh", "eigvals", "eigvalsh", "inv", "logdet",
    "lstsq", "lu", "matmul", "matrix_exp", "matrix_norm", "matrix_power", "matrix_rank",
    "matrix_transpose", "multi_dot", "norm", "outer", "pinv", "qr", "slogdet", "solve",
    "solve_triangular", "svd", "svdvals", "tensordot", "trace", "vecdot", "vector_norm",
]  # fmt: skip


class EigResult(NamedTuple):
    """Eigenvalues and eigenvectors of a general matrix."""

    eigenvalues: Tensor
    eigenvectors: Tensor


class EighResult(NamedTuple):
    """Eigenvalues and eigenvectors of a Hermitian matrix."""

    eigenvalues: Tensor
    eigenvectors: Tensor


class LUResult(NamedTuple):
    """A permutation, a unit lower triangular and an upper triangular factor."""

    P: Tensor
    L: Tensor
    U: Tensor


class LstsqResult(NamedTuple):
    """The solution of a least-squares problem and what was learned on the way."""

    solution: Tensor
    residuals: Tensor
    rank: Tensor
    singular_values: Tensor


class QRResult(NamedTuple):
    """An orthonormal and an upper triangular factor."""

    Q: Tensor
    R: Tensor


class SlogdetResult(NamedTuple):
    """The sign of a determinant and the logarithm of its absolute value."""

    sign: Tensor
    logabsdet: Tensor


class SVDResult(NamedTuple):
    """Left singular vectors, singular values, and right singular vectors as rows."""

    U: Tensor
    S: Tensor
    Vh: Tensor


# --- factorisations ----------------------------------------------------------------------------


def _inexact_operand(op: str, x: Operand) -> Tensor:
    return promote_operands(op, (x,), "inexact")[0]


def _hermitian(op: str, x: Operand) -> Tensor:
    """(x + xᴴ) / 2, the nearest Hermitian matrix."""
    tensor = _inexact_operand(op, x)
    require_square(op, tensor.type)
    return (tensor + adjoint(tensor)) * 0.5


@unit
def cholesky(x: Operand, /, *, upper: bool = False) -> Tensor:
    """The triangular L with x = L @ Lᴴ of a positive definite matrix, or U = Lᴴ.

    >>> import weft as wf
    >>> wf.linalg.cholesky(wf.tensor([[4.0, 2.0], [2.0, 2.0]]), upper=True).tolist()
    [[2.0, 1.0], [0.0, 1.0]]
    """
    lower = apply(factorizations.cholesky, _hermitian("cholesky", x))
    return adjoint(lower) if upper else lower


def lu(x: Operand, /) -> LUResult:
    """P, L, U with x = P @ L @ U, by elimination with pivots.

    >>> import weft as wf
    >>> wf.linalg.lu(wf.tensor([[1.0, 2.0], [4.0, 4.0]])).U.tolist()
    [[4.0, 4.0], [0.0, 1.0]]
    """
    return LUResult(*apply_multiple(factorizations.lu, _inexact_operand("lu", x)))


@unit
def qr(x: Operand, /, *, mode: str = "reduced") -> QRResult:
    """Q with orthonormal columns and upper triangular R with x = Q @ R.

    In mode "complete" Q is square; of a tall matrix that has no derivative.

    >>> import weft as wf
    >>> q, r = wf.linalg.qr(wf.tensor([[3.0], [4.0]]))
    >>> abs(r).tolist()
    [[5.0]]
    """
    if mode not in ("reduced", "complete"):
        raise ArgumentError(
            "qr",
            "unknown mode",
            expected="'reduced' or 'complete'",
            got={"mode": repr(mode)},
            fix="leave it out for the reduced factors: wf.linalg.qr(x)",
        )
    return QRResult(
        *apply_multiple(factorizations.qr, _inexact_operand("qr", x), complete=mode != "reduced")
    )


@unit
def svd(x: Operand, /, *, full_matrices: bool = True) -> SVDResult:
    """U, S, Vh with x = U @ diag(S) @ Vh; the singular values S fall.

    Derivatives are those of functions that do not depend on the free choices: phases, and the
    basis of what `full_matrices` adds. Equal singular values give no NaN, but the derivative of
    their vectors does not exist.

    >>> import weft as wf
    >>> wf.linalg.svd(wf.tensor([[0.0, 2.0], [1.0, 0.0]])).S.tolist()
    [2.0, 1.0]
    """
    return SVDResult(
        *apply_multiple(factorizations.svd, _inexact_operand("svd", x), full=bool(full_matrices))
    )


@unit
def svdvals(x: Operand, /) -> Tensor:
    """The singular values, falling.

    >>> import weft as wf
    >>> wf.linalg.svdvals(wf.tensor([[0.0, 2.0], [1.0, 0.0]])).tolist()
    [2.0, 1.0]
    """
    return apply(factorizations.svdvals, _inexact_operand("svdvals", x))


@unit
def eigh(x: Operand, /) -> EighResult:
    """Eigenvalues, rising, and eigenvectors (columns) of a Hermitian matrix.

    >>> import weft as wf
    >>> wf.linalg.eigh(wf.tensor([[2.0, 0.0], [0.0, 1.0]])).eigenvalues.tolist()
    [1.0, 2.0]
    """
    return EighResult(*apply_multiple(eigen.eigh, _hermitian("eigh", x)))


@unit
def eigvalsh(x: Operand, /) -> Tensor:
    """Eigenvalues, rising, of a Hermitian matrix.

    >>> import weft as wf
    >>> wf.linalg.eigvalsh(wf.tensor([[2.0, 0.0], [0.0, 1.0]])).tolist()
    [1.0, 2.0]
    """
    return apply(eigen.eigvalsh, _hermitian("eigvalsh", x))


def eig(x: Operand, /) -> EigResult:
    """Eigenvalues and eigenvectors (columns of length 1), complex, in no particular order.

    >>> import weft as wf
    >>> wf.linalg.eig(wf.tensor([[1.0, 0.0], [0.0, 2.0]])).eigenvalues.tolist()
    [(1+0j), (2+0j)]
    """
    return EigResult(*apply_multiple(eigen.eig, _inexact_operand("eig", x)))


def eigvals(x: Operand, /) -> Tensor:
    """Eigenvalues, complex, in no particular order.

    >>> import weft as wf
    >>> wf.linalg.eigvals(wf.tensor([[1.0, 0.0], [0.0, 2.0]])).tolist()
    [(1+0j), (2+0j)]
    """
    return apply(eigen.eigvals, _inexact_operand("eigvals", x))


# --- systems, inverses, determinants -----------------------------------------------------------


def _system(op: str, x1: Operand, x2: Operand) -> tuple[Tensor, Tensor, bool]:
    """Both sides with equal leading axes, and whether the right one was a single vector."""
    a, b = promote_operands(op, (x1, x2), "inexact")
    require_matrix(op, a.type, "x1")
    vector = b.ndim == 1
    if vector:
        b = apply(reshape, b, shape=(*b.shape, 1))
    require_matrix(op, b.type, "x2")
    got = {"x1": a, "x2": b}
    stack = broadcast_shapes(op, [a.shape[:-2], b.shape[:-2]], got)
    return _broadcast_stack(a, stack), _broadcast_stack(b, stack), vector


def _broadcast_stack(x: Tensor, stack: Shape) -> Tensor:
    shape = (*stack, *x.shape[-2:])
    return x if x.shape == shape else apply(broadcast_to, x, shape=shape)


def _drop_last_axis(x: Tensor, vector: bool) -> Tensor:
    return apply(reshape, x, shape=x.shape[:-1]) if vector else x


@unit
def solve(x1: Operand, x2: Operand, /) -> Tensor:
    """x with x1 @ x = x2. Leading axes broadcast; x2 is one vector if it has exactly one axis.

    >>> import weft as wf
    >>> wf.linalg.solve(wf.tensor([[2.0, 0.0], [0.0, 4.0]]), wf.tensor([2.0, 2.0])).tolist()
    [1.0, 0.5]
    """
    a, b, vector = _system("solve", x1, x2)
    return _drop_last_axis(apply(solving.solve, a, b), vector)


@unit
def solve_triangular(
    x1: Operand, x2: Operand, /, *, upper: bool = False, unit_diagonal: bool = False
) -> Tensor:
    """x with x1 @ x = x2 for triangular x1, whose other triangle is not read.

    >>> import weft as wf
    >>> a = wf.tensor([[2.0, 9.0], [1.0, 1.0]])
    >>> wf.linalg.solve_triangular(a, wf.tensor([2.0, 3.0])).tolist()
    [1.0, 2.0]
    """
    a, b, vector = _system("solve_triangular", x1, x2)
    out = apply(solving.triangular_solve, a, b, lower=not upper, unit=bool(unit_diagonal))
    return _drop_last_axis(out, vector)


@unit
def inv(x: Operand, /) -> Tensor:
    """The inverse of each square matrix. To multiply with it, `solve` is faster and better.

    >>> import weft as wf
    >>> wf.linalg.inv(wf.tensor([[2.0, 0.0], [0.0, 4.0]])).tolist()
    [[0.5, 0.0], [0.0, 0.25]]
    """
    return apply(solving.inv, _inexact_operand("inv", x))


_EPSILON_BITS = {"float16": 10, "bfloat16": 7, "float32": 23, "float64": 52}


def _threshold(op: str, x: Tensor, rtol: Operand | None) -> Tensor:
    """One tolerance per matrix: given, or the larger side times the dtype's precision."""
    dtype = real_of(x.dtype)
    if rtol is None:
        height, width = x.shape[-2:]
        larger = height if height == width or height > width else width
        rtol = float(larger) * 2.0 ** -_EPSILON_BITS[dtype.name]
    given = as_tensor_in(op, rtol, dtype, "rtol")
    return apply(broadcast_to, given, shape=x.shape[:-2])


@unit
def pinv(x: Operand, /, *, rtol: Operand | None = None) -> Tensor:
    """The pseudo-inverse. Singular values of at most rtol times the largest count as zero.

    >>> import weft as wf
    >>> wf.linalg.pinv(wf.tensor([[2.0, 0.0], [0.0, 0.0]])).tolist()
    [[0.5, 0.0], [0.0, 0.0]]
    """
    tensor = _inexact_operand("pinv", x)
    require_matrix("pinv", tensor.type)
    return apply(solving.pinv, tensor, _threshold("pinv", tensor, rtol))


@unit
def det(x: Operand, /) -> Tensor:
    """The determinant of each square matrix; its gradient is right for singular ones too.

    >>> import weft as wf
    >>> wf.linalg.det(wf.tensor([[2.0, 0.0], [0.0, 3.0]])).tolist()
    6.0
    """
    return apply(determinants.det, _inexact_operand("det", x))


@unit
def slogdet(x: Operand, /) -> SlogdetResult:
    """The sign of the determinant and the logarithm of its absolute value, safe from overflow.

    >>> import weft as wf
    >>> wf.linalg.slogdet(wf.tensor([[0.0, 1.0], [1.0, 0.0]])).sign.tolist()
    -1.0
    """
    return SlogdetResult(*apply_multiple(determinants.slogdet, _inexact_operand("slogdet", x)))


@unit
def logdet(x: Operand, /) -> Tensor:
    """The logarithm of the determinant: -inf where it is zero, and NaN where it is negative.

    >>> import weft as wf
    >>> round(wf.linalg.logdet(wf.tensor([[2.0, 0.0], [0.0, 3.0]])).item(), 4)
    1.7918
    """
    sign, logarithm = slogdet(x)
    if sign.dtype.is_complex:
        return logarithm + log(sign)
    return where(less(sign, 0.0), float("nan"), logarithm)


def matrix_rank(x: Operand, /, *, rtol: Operand | None = None) -> Tensor:
    """How many singular values are above rtol times the largest one.

    >>> import weft as wf
    >>> wf.linalg.matrix_rank(wf.ones((3, 3))).tolist()
    1
    """
    tensor = _inexact_operand("matrix_rank", x)
    require_matrix("matrix_rank", tensor.type)
    return _rank(svdvals(tensor), _threshold("matrix_rank", tensor, rtol))


def _rank(values: Tensor, rtol: Tensor) -> Tensor:
    stack = values.shape[:-1]
    if is_zero(values.shape[-1]):
        return zeros(TensorType(DEFAULT_INTEGER, stack))
    axes = (values.ndim - 1,)
    limit = apply(reduce_max, values, axes=axes) * rtol
    above = greater(values, keep_reduced(limit, values, axes))
    return apply(reduce_sum, convert_to(above, DEFAULT_INTEGER), axes=axes)


def lstsq(x1: Operand, x2: Operand, /, *, rtol: Operand | None = None) -> LstsqResult:
    """The shortest x that makes the squared size of x1 @ x - x2 smallest.

    `residuals` are those squared sizes, one per column, whatever the rank.

    >>> import weft as wf
    >>> a, b = wf.tensor([[1.0], [1.0]]), wf.tensor([1.0, 3.0])
    >>> wf.linalg.lstsq(a, b).residuals.tolist()
    2.0
    """
    a, b, vector = _system("lstsq", x1, x2)
    threshold = _threshold("lstsq", a, rtol)
    solution = product(apply(solving.pinv, a, threshold), b)
    misfit = square(abs(product(a, solution) - b))
    residuals = apply(reduce_sum, misfit, axes=(misfit.ndim - 2,))
    values = svdvals(a)
    return LstsqResult(
        _drop_last_axis(solution, vector),
        _drop_last_axis(residuals, vector),
        _rank(values, threshold),
        values,
    )


# --- vectors and diagonals ---------------------------------------------------------------------


def cross(x1: Operand, x2: Operand, /, *, axis: int = -1) -> Tensor:
    """The cross product of vectors of three elements along an axis.

    >>> import weft as wf
    >>> wf.linalg.cross(wf.tensor([1.0, 0.0, 0.0]), wf.tensor([0.0, 1.0, 0.0])).tolist()
    [0.0, 0.0, 1.0]
    """
    a, b = promote_operands("cross", (x1, x2), "number")
    got = {"x1": a, "x2": b}
    for x in (a, b):
        position = normalize_axis("cross", axis, x.ndim, got)
        if x.shape[position] != 3:
            raise ShapeError(
                "cross",
                "the vectors do not have three elements",
                expected=f"x1.shape[{axis}] == x2.shape[{axis}] == 3",
                got=got,
                fix="pass the axis that holds the vectors: axis=...",
            )
    shape = broadcast_shapes("cross", [a.shape, b.shape], got)
    a, b = (apply(broadcast_to, x, shape=shape) for x in (a, b))
    at = normalize_axis("cross", axis, len(shape), got)
    return _rotate_three(a, 1, at) * _rotate_three(b, 2, at) - _rotate_three(
        a, 2, at
    ) * _rotate_three(b, 1, at)


def _rotate_three(x: Tensor, count: int, axis: int) -> Tensor:
    """The three elements along an axis, moved round by `count`."""

    def stretch(start: int, stop: int) -> Tensor:
        starts, stops = [0] * x.ndim, list(x.shape)
        starts[axis], stops[axis] = start, stop
        return apply(slice_, x, starts=tuple(starts), stops=tuple(stops), strides=(1,) * x.ndim)

    return apply(concatenate, stretch(count, 3), stretch(0, count), axis=axis)


def diagonal(x: Operand, /, *, offset: int = 0) -> Tensor:
    """A diagonal of each matrix: the main one, or `offset` places above it.

    >>> import weft as wf
    >>> wf.linalg.diagonal(wf.tensor([[1, 2], [3, 4]]), offset=1).tolist()
    [2]
    """
    tensor = as_tensor("diagonal", x)
    require_matrix("diagonal", tensor.type, allowed="any")
    return diagonal_of(tensor, as_integer("diagonal", "offset", offset))


@follow_table
def trace(x: Operand, /, *, offset: int = 0, dtype: Any = None) -> Tensor:
    """The sum of a diagonal of each matrix; small integers are added in a wide integer dtype.

    >>> import weft as wf
    >>> wf.linalg.trace(wf.tensor([[1, 2], [3, 4]])).tolist()
    5
    """
    return sum(diagonal(x, offset=offset), axis=-1, dtype=dtype)


explain_all(globals(), __all__)
__getattr__ = missing_from("wf.linalg", __all__)
