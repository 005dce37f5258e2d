"""Determinants of stacks of square matrices, and their derivatives at singular matrices too.

The derivative of the determinant is the adjugate, adj(A) = det(A) A⁻¹ where A⁻¹ exists. The
adjugate and its derivative are computed from singular values, which may be zero. Higher derivatives
would divide by differences of singular values, which may be equal; they are computed from inverses
of matrices around A.

>>> import weft as wf
>>> float(wf.linalg.det(wf.tensor([[1.0, 2.0], [3.0, 4.0]])).numpy().round(4))
-2.0
"""

from __future__ import annotations

import numpy as np

from weft.core.dtypes import complex_of, real_of
from weft.core.errors import DTypeError, ShapeError
from weft.core.types import TensorType
from weft.ir.derivatives import linear, tangent
from weft.ir.dispatch import apply, apply_multiple
from weft.ir.kinds import MatrixFunction, Opaque
from weft.ir.primitive import Mistake, Primitive, Sample
from weft.ir.tensor import Tensor
from weft.ops import sharding_rules as shardings
from weft.ops.arithmetic import conj
from weft.ops.comparison import equal
from weft.ops.factorizations import svd
from weft.ops.identity import stopped
from weft.ops.matrices import (
    BY_LAPACK,
    Array,
    batch_stacks,
    by_numpy,
    cut_last_axis,
    identity,
    imaginary_part,
    matrix_transpose,
    product,
    real_part,
    require_square,
    square_type,
    trace_of,
)
from weft.ops.movement import broadcast_to, reshape
from weft.ops.operands import convert_to
from weft.ops.reduction import reduce_sum
from weft.ops.selection import where
from weft.ops.solving import inv, solve, well_conditioned

__all__: list[str] = []


def _det_type(x: TensorType) -> TensorType:
    require_square("det", x)
    return x.with_shape(x.shape[:-2])


def _det_tangent(t: Tensor, out: Tensor, x: Tensor) -> Tensor:
    """tr(adj(A) dA), by Jacobi's formula."""
    weights = matrix_transpose(apply(adjugate, x))
    return apply(reduce_sum, t * weights, axes=(x.ndim - 2, x.ndim - 1))


def _rank_one() -> Array:
    """A singular matrix of rank 2, whose adjugate has rank 1."""
    return np.array([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0], [7.0, 8.0, 9.0]], np.float32) / 4


det: Primitive = Primitive(
    "det",
    "The determinant of each square matrix.",
    kind=MatrixFunction(lambda params: "det", may_fail=False),
    lower=BY_LAPACK,
    sharding=shardings.before_last(2),
    type_rule=_det_type,
    reference=by_numpy("det", np.linalg.det),
    derivatives=[tangent(_det_tangent)],
    batch=batch_stacks(lambda: det),
    samples=lambda: [
        Sample((well_conditioned(3, 3),)),
        Sample((_rank_one(),)),
        Sample((np.eye(3, dtype=np.float32),)),
        Sample((np.zeros((2, 2), np.float32),)),
        Sample((well_conditioned(2, 2, 2, dtype=np.complex64),)),
        Sample((np.zeros((0, 0), np.float32),)),
    ],
    mistakes=lambda: [
        Mistake((np.ones((2, 3), np.float32),), {}, ShapeError, "the matrix is not square"),
        Mistake((np.eye(2, dtype=np.int32),), {}, DTypeError, "not defined for this dtype"),
    ],
)


def _adjugate(x: Array) -> Array:
    """adj(U S Vᴴ) = det(U) det(Vᴴ) V adj(S) Uᴴ, where adj(S) holds the products of all others."""
    u, s, vh = np.linalg.svd(x)  # s: [..., n]
    ones = np.ones_like(s[..., :1])
    # The product of all others without a division, as a singular value may be zero:
    # what stands before the i-th, times what stands after it.
    before = np.cumprod(np.concatenate([ones, s[..., :-1]], -1), -1)
    after = np.cumprod(np.concatenate([ones, s[..., :0:-1]], -1), -1)[..., ::-1]
    phase = np.linalg.det(u) * np.linalg.det(vh)
    right = np.conj(np.swapaxes(u, -1, -2)) * phase[..., None, None]
    left = np.conj(np.swapaxes(vh, -1, -2)) * (before * after)[..., None, :]
    adjugates: Array = np.matmul(left, right).astype(x.dtype)
    return adjugates


adjugate: Primitive = Primitive(
    "adjugate",
    "The transposed matrix of cofactors: x @ adjugate(x) = det(x) times the identity.",
    kind=Opaque(),
    lower=BY_LAPACK,
    sharding=shardings.before_last(2),
    type_rule=square_type("adjugate"),
    reference=by_numpy("adjugate", _adjugate),
    derivatives=[tangent(lambda t, out, x: apply(adjugate_slope, x, t))],
    batch=batch_stacks(lambda: adjugate),
    samples=lambda: [
        Sample((well_conditioned(3, 3),)),
        Sample((_rank_one(),)),
        Sample((np.eye(3, dtype=np.float32),)),
        Sample((np.zeros((4, 4), np.float32),)),
        Sample((np.diag(np.array([2, 1, 1, 0, 0], np.float32)),)),
        Sample((well_conditioned(2, 2, 2, dtype=np.complex64),)),
        Sample((np.full((1, 1), 2.0, np.float32),)),
        Sample((np.zeros((0, 0), np.float32),)),
    ],
    mistakes=lambda: [
        Mistake((np.ones((2, 3), np.float32),), {}, ShapeError, "the matrix is not square")
    ],
)


# --- the derivatives of the adjugate -----------------------------------------------------------


def _slope_type(x: TensorType, t: TensorType) -> TensorType:
    require_square("adjugate_slope", x)
    if t != x:
        raise ShapeError(
            "adjugate_slope",
            "the direction is not like the matrix",
            expected="t.type == x.type",
            got={"x": x, "t": t},
            fix="give both one shape and dtype",
        )
    return x


def _slope(x: Array, t: Array) -> Array:
    """The derivative in the bases of singular vectors, where x is diagonal and minors are products.

    Let M[i, j] be the product of all singular values but the i-th and j-th, and E = Uᴴ dA V. The
    derivative is -M E off the diagonal, and M times the diagonal of E on it.
    """
    u, s, vh = np.linalg.svd(x)
    left, right = np.conj(np.swapaxes(u, -1, -2)), np.conj(np.swapaxes(vh, -1, -2))
    in_bases = np.matmul(left, np.matmul(t, right))  # E: [..., n, n]
    minors = _products_without_pairs(s)
    diagonal = np.einsum("...ii->...i", in_bases)
    inner = -minors * in_bases
    # einsum gives a view of the diagonal, which is written to.
    np.einsum("...ii->...i", inner)[...] = np.einsum("...ij,...j->...i", minors, diagonal)
    phase = np.linalg.det(u) * np.linalg.det(vh)
    slopes: Array = np.matmul(right, np.matmul(inner, left)) * phase[..., None, None]
    return slopes.astype(x.dtype)


def _products_without_pairs(s: Array) -> Array:
    """[..., i, j]: the product of all elements but the i-th and j-th; zero for i = j."""
    n = s.shape[-1]
    others = ~np.eye(n, dtype=bool)
    is_factor = others[:, None, :] & others[None, :, :]  # [i, j, k]: k is neither i nor j
    factors = np.where(is_factor, s[..., None, None, :], s.dtype.type(1))
    return np.asarray(np.where(others, factors.prod(-1), s.dtype.type(0)))


def _slope_cotangent(ct: Tensor, x: Tensor, t: Tensor) -> Tensor:
    """tr(G · slope(x, t)) is the second derivative of det along G and t, so they may be swapped."""
    base = conj(x) if x.dtype.is_complex else x
    return matrix_transpose(apply(adjugate_slope, base, matrix_transpose(ct)))


def _slope_tangent(s: Tensor, out: Tensor, x: Tensor, t: Tensor) -> Tensor:
    """The second derivative of the adjugate along s and t, at any matrix.

    It is a polynomial in the elements of the matrix, so its value at x is the mean of its values at
    x + z·R for numbers z on a circle around 0. With R = U Vᴴ, which adds to every singular value,
    the matrices on the circle have an inverse P. With Q = P s and W = P t the second derivative is
    det · ((tr Q tr W - tr QW) 1 - tr Q W - tr W Q + QW + WQ) P. The mean does not depend on R and
    the circle, so they have no derivative.
    """
    if x.shape[-1] == 0:
        return s
    around = _nearby_matrices(x)  # [count, ..., n, n]
    inverse = apply(inv, around)
    wide = around.dtype
    q, w = (product(inverse, _broadcast_like(convert_to(each, wide), around)) for each in (s, t))
    both, other = product(q, w), product(w, q)
    one = identity(x.shape[-1], wide)
    traced = _number(trace_of(q) * trace_of(w) - trace_of(both)) * one
    inner = traced - _number(trace_of(q)) * w - _number(trace_of(w)) * q + both + other
    terms = _number(apply(det, around)) * product(inner, inverse)
    mean = apply(reduce_sum, terms, axes=(0,)) / float(around.shape[0])
    return mean if x.dtype.is_complex else real_part(mean, x.dtype)


def _number(x: Tensor) -> Tensor:
    """A number for each matrix, [..., 1, 1], to multiply the matrix by."""
    return apply(reshape, x, shape=(*x.shape, 1, 1))


def _broadcast_like(x: Tensor, like: Tensor) -> Tensor:
    return apply(broadcast_to, x, shape=like.shape)


def _nearby_matrices(x: Tensor) -> Tensor:
    """Well conditioned matrices on a circle around each of x: [count, ..., n, n]."""
    wide, n = complex_of(x.dtype), int(x.shape[-1])
    u, s, vh = apply_multiple(svd, apply(stopped, x), full=True)
    # Twice the largest singular value: those on the circle are then one to three times as large.
    radius = apply(reshape, cut_last_axis(s, 0, 1), shape=(*x.shape[:-2], 1, 1)) * 2.0
    radius = where(equal(radius, 0.0), 1.0, radius)
    turn = convert_to(product(u, vh), wide) * convert_to(radius, wide)
    # The polynomial has degree n - 3, and the mean of more points than its degree is exact.
    count = max(n - 2, 1)
    angles = np.exp(2j * np.pi * np.arange(count) / count).reshape(count, *[1] * x.ndim)
    around: Tensor = convert_to(x, wide) + turn * angles.astype(wide.numpy)
    return around


adjugate_slope: Primitive = Primitive(
    "adjugate_slope",
    "The derivative of the adjugate of x along t.",
    kind=Opaque(),
    lower=BY_LAPACK,
    sharding=shardings.before_last(2),
    type_rule=_slope_type,
    reference=by_numpy("adjugate_slope", _slope),
    derivatives=[tangent(_slope_tangent), linear(_slope_cotangent)],
    batch=batch_stacks(lambda: adjugate_slope),
    samples=lambda: [
        Sample((well_conditioned(3, 3), well_conditioned(3, 3)[::-1].copy())),
        Sample((_rank_one(), well_conditioned(3, 3))),
        Sample((np.eye(4, dtype=np.float32), well_conditioned(4, 4))),
        Sample((well_conditioned(2, 2, 2), np.ones((2, 2, 2), np.float32))),
        Sample((well_conditioned(2, 2, dtype=np.complex64),) * 2),
    ],
    mistakes=lambda: [
        Mistake(
            (np.eye(2, dtype=np.float32), np.ones((3, 3), np.float32)),
            {},
            ShapeError,
            "the direction is not like",
        ),
    ],
)


def _slogdet_type(x: TensorType) -> tuple[TensorType, TensorType]:
    require_square("slogdet", x)
    stack = x.shape[:-2]
    return TensorType(x.dtype, stack), TensorType(real_of(x.dtype), stack)


def _slogdet_tangent(
    t: Tensor, out: tuple[Tensor, Tensor], x: Tensor
) -> tuple[Tensor | None, Tensor]:
    """tr(A⁻¹ dA): its real part moves the logarithm, its imaginary part turns a complex sign."""
    sign, logarithm = out
    inner = trace_of(apply(solve, x, t))
    d_sign = sign * imaginary_part(inner) if x.dtype.is_complex else None
    return d_sign, real_part(inner, logarithm.dtype)


def _slogdet(x: Array) -> tuple[Array, Array]:
    sign, logarithm = np.linalg.slogdet(x)
    return sign, logarithm


slogdet: Primitive = Primitive(
    "slogdet",
    "The sign of the determinant and the logarithm of its size; 0 and -inf for a singular matrix.",
    kind=MatrixFunction(lambda params: "slogdet", may_fail=False),
    lower=BY_LAPACK,
    sharding=shardings.before_last(2),
    type_rule=_slogdet_type,
    reference=by_numpy("slogdet", _slogdet),
    derivatives=[tangent(_slogdet_tangent)],
    batch=batch_stacks(lambda: slogdet),
    samples=lambda: [
        Sample((well_conditioned(3, 3),)),
        Sample((well_conditioned(2, 2, 2, dtype=np.complex64),)),
        Sample((np.ones((2, 2), np.float32),), derivative=False),
        Sample((np.zeros((0, 0), np.float32),)),
    ],
    mistakes=lambda: [
        Mistake((np.ones((2, 3), np.float32),), {}, ShapeError, "the matrix is not square")
    ],
    multiple=True,
)
