"""Determinants of stacks of square matrices, and their derivatives at singular matrices too.

The derivative of the determinant is the adjugate, adj(A) = det(A) A⁻¹ where A⁻¹ exists. Both it
and its own derivative are computed from singular values, which no zero can spoil.

>>> import weft as wf
>>> float(wf.linalg.det(wf.tensor([[1.0, 2.0], [3.0, 4.0]])).numpy().round(4))
-2.0
"""

from __future__ import annotations

import numpy as np

from weft.core.dtypes import real_of
from weft.core.errors import DTypeError, ShapeError
from weft.core.types import TensorType
from weft.ir.derivatives import tangent
from weft.ir.dispatch import apply, apply_multiple
from weft.ir.primitive import Mistake, Primitive, Sample
from weft.ir.tensor import Tensor
from weft.ops.factorizations import svd
from weft.ops.matrices import (
    Array,
    adjoint,
    batch_stacks,
    by_numpy,
    cut,
    diagonal_matrix,
    diagonal_of,
    identity,
    imaginary_part,
    matrix_transpose,
    product,
    real_part,
    require_square,
    rows,
    square_type,
    trace_of,
)
from weft.ops.movement import pad, reshape
from weft.ops.reduction import reduce_sum
from weft.ops.solving import solve, well_conditioned

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
    u, s, vh = np.linalg.svd(x)
    ones = np.ones_like(s[..., :1])
    before = np.cumprod(np.concatenate([ones, s[..., :-1]], -1), -1)
    after = np.cumprod(np.concatenate([ones, s[..., :0:-1]], -1), -1)[..., ::-1]
    phase = np.linalg.det(u) * np.linalg.det(vh)
    right = np.conj(np.swapaxes(u, -1, -2)) * phase[..., None, None]
    left = np.conj(np.swapaxes(vh, -1, -2)) * (before * after)[..., None, :]
    adjugates: Array = np.matmul(left, right).astype(x.dtype)
    return adjugates


def _adjugate_tangent(t: Tensor, out: Tensor, x: Tensor) -> Tensor:
    """In the bases of singular vectors, where x is diagonal, so every minor is a product.

    With M the products of all singular values but two and E = Uᴴ dA V: off the diagonal -M E,
    on it M times the diagonal of E.
    """
    u, s, vh = apply_multiple(svd, x, full=True)
    moved = product(adjoint(u), product(t, adjoint(vh)))
    minors = _products_without_pairs(s)
    phase = apply(det, u) * apply(det, vh)
    diagonal = diagonal_of(moved)
    weighted = apply(reduce_sum, minors * rows(diagonal), axes=(s.ndim - 1,))
    inner = diagonal_matrix(weighted) - minors * moved
    turned = product(adjoint(vh), product(inner, adjoint(u)))
    return turned * apply(reshape, phase, shape=(*phase.shape, 1, 1))


def _products_without_pairs(s: Tensor) -> Tensor:
    """[..., i, j]: the product of all elements but the i-th and j-th; zero for i = j."""
    n = s.shape[-1]
    others = 1.0 - identity(n, s.dtype)
    kept = apply(reshape, others, shape=(n, 1, n)) * apply(reshape, others, shape=(1, n, n))
    factors = apply(reshape, s, shape=(*s.shape[:-1], 1, 1, n)) * kept + (1.0 - kept)
    return _product(factors) * others


def _product(x: Tensor) -> Tensor:
    """The product over the last axis, half by half, so that zeros keep their derivatives."""
    while x.shape[-1] > 1:
        if x.shape[-1] % 2:
            odd = (*[(0, 0, 0)] * (x.ndim - 1), (0, 1, 0))
            x = apply(pad, x, padding=odd, value=1.0)
        half = x.shape[-1] // 2
        x = cut(x, 0, half) * cut(x, half, 2 * half)
    return apply(reshape, x, shape=x.shape[:-1])


adjugate: Primitive = Primitive(
    "adjugate",
    "The transposed matrix of cofactors: x @ adjugate(x) = det(x) times the identity.",
    type_rule=square_type("adjugate"),
    reference=by_numpy("adjugate", _adjugate),
    derivatives=[tangent(_adjugate_tangent)],
    batch=batch_stacks(lambda: adjugate),
    samples=lambda: [
        Sample((well_conditioned(3, 3),)),
        Sample((_rank_one(),)),
        Sample((well_conditioned(2, 2, 2, dtype=np.complex64),)),
        Sample((np.full((1, 1), 2.0, np.float32),)),
        Sample((np.zeros((0, 0), np.float32),)),
    ],
    mistakes=lambda: [
        Mistake((np.ones((2, 3), np.float32),), {}, ShapeError, "the matrix is not square")
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
    turned = sign * imaginary_part(inner) if x.dtype.is_complex else None
    return turned, real_part(inner, logarithm.dtype)


def _slogdet(x: Array) -> tuple[Array, Array]:
    sign, logarithm = np.linalg.slogdet(x)
    return sign, logarithm


slogdet: Primitive = Primitive(
    "slogdet",
    "The sign of the determinant and the logarithm of its size; 0 and -inf for a singular matrix.",
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
