"""Factorisations of stacks of matrices: Cholesky, LU, QR and singular values.

Derivatives follow from differentiating the equation that a factorisation solves. Where factors are
not unique (the phase of a singular vector, a basis of a null space) they take the smallest
motion, which is right for every function that does not depend on the choice. Equal singular
values, whose vectors are not unique, contribute zero instead of dividing by zero.

>>> import weft as wf
>>> wf.linalg.cholesky(wf.tensor([[4.0, 2.0], [2.0, 2.0]])).tolist()
[[2.0, 0.0], [1.0, 1.0]]
"""

from __future__ import annotations

from typing import Any

import numpy as np

from weft.core.dtypes import real_of
from weft.core.errors import ArgumentError, DTypeError, ShapeError, Unsupported
from weft.core.shapes import Dimension
from weft.core.types import TensorType
from weft.ir.derivatives import tangent
from weft.ir.dispatch import apply, apply_multiple
from weft.ir.kinds import MatrixFunction, Opaque
from weft.ir.primitive import Mistake, Primitive, Sample
from weft.ir.tensor import Tensor
from weft.ops import sharding_rules as shardings
from weft.ops.matrices import (
    BY_LAPACK,
    INDEFINITE,
    Array,
    adjoint,
    batch_stacks,
    by_numpy,
    columns,
    cut_last_axis,
    diagonal_matrix,
    diagonal_of,
    first_columns,
    first_rows,
    hermitian_of_lower,
    identity,
    imaginary_part,
    lower_part,
    matrix_transpose,
    product,
    real_part,
    reciprocal_or_zero,
    require_matrix,
    rows,
    smaller_side,
    square_type,
    upper_part,
)
from weft.ops.movement import concatenate, pad
from weft.ops.solving import solve_lower, solve_upper_right, triangular_solve, well_conditioned

__all__: list[str] = []

Pair = tuple[Tensor, Tensor]
Triple = tuple[Tensor, Tensor, Tensor]


def positive_definite(*shape: int, dtype: Any = np.float32) -> Array:
    """A sample stack of Hermitian matrices with eigenvalues well above zero, and far apart."""
    x = well_conditioned(*shape, dtype=dtype)
    return (x @ np.conj(np.swapaxes(x, -1, -2))).astype(dtype)


# --- Cholesky ----------------------------------------------------------------------------------


def _cholesky_tangent(t: Tensor, out: Tensor, x: Tensor) -> Tensor:
    """dL = L Φ(L⁻¹ dA L⁻ᴴ), where Φ keeps the lower triangle and halves the diagonal."""
    inner = solve_lower(out, adjoint(solve_lower(out, hermitian_of_lower(t))))
    return product(out, (lower_part(inner) + lower_part(inner, -1)) * 0.5)


cholesky: Primitive = Primitive(
    "cholesky",
    "Lower triangular L with L @ Lᴴ = x, of the Hermitian matrix that x's lower triangle gives.",
    kind=MatrixFunction(lambda params: "cholesky_lo"),
    lower=BY_LAPACK,
    sharding=shardings.before_last(2),
    type_rule=square_type("cholesky"),
    reference=by_numpy("cholesky", np.linalg.cholesky, INDEFINITE),
    derivatives=[tangent(_cholesky_tangent)],
    batch=batch_stacks(lambda: cholesky),
    samples=lambda: [
        Sample((positive_definite(3, 3),)),
        Sample((positive_definite(2, 2, 2, dtype=np.complex64),)),
        Sample((np.zeros((0, 0), np.float32),)),
    ],
    mistakes=lambda: [
        Mistake((np.ones((2, 3), np.float32),), {}, ShapeError, "the matrix is not square"),
        Mistake((-np.eye(2, dtype=np.float32),), {}, ArgumentError, "not positive definite"),
        Mistake((np.eye(2, dtype=np.int32),), {}, DTypeError, "not defined for this dtype"),
    ],
)


# --- LU ----------------------------------------------------------------------------------------


def _lu_type(x: TensorType) -> tuple[TensorType, TensorType, TensorType]:
    require_matrix("lu", x)
    *stack, m, n = x.shape
    k = smaller_side(m, n)
    shapes = (*stack, m, m), (*stack, m, k), (*stack, k, n)
    return x.with_shape(shapes[0]), x.with_shape(shapes[1]), x.with_shape(shapes[2])


def _lu(x: Array) -> tuple[Array, Array, Array]:
    """Elimination with the largest pivot of each column, on all matrices at once.

    The size of a complex pivot is the sum of the sizes of its parts, as LAPACK has it.
    """
    *stack, m, n = x.shape
    k, is_complex = min(m, n), x.dtype.kind == "c"
    work = x.reshape(int(np.prod(stack, dtype=int)), m, n).copy()  # [matrices, m, n]
    each = np.arange(len(work))
    order = np.tile(np.arange(m), (len(work), 1))  # [matrices, m]: where each row was
    for j in range(k):
        # Swap row j with the row of the largest pivot.
        column = work[:, j:, j]
        sizes = np.abs(column.real) + np.abs(column.imag) if is_complex else np.abs(column)
        pivot = j + np.argmax(sizes, axis=1)
        for table in (work, order):
            table[each, j], table[each, pivot] = table[each, pivot], table[each, j].copy()
        # The factors of L take the place of the elements that they eliminate.
        head = work[:, j, j, None]
        work[:, j + 1 :, j] = np.where(head == 0, 0, work[:, j + 1 :, j] / head)
        work[:, j + 1 :, j + 1 :] -= work[:, j + 1 :, j, None] * work[:, j, None, j + 1 :]
    permutation = np.zeros((len(work), m, m), x.dtype)
    permutation[each[:, None], order, np.arange(m)] = 1
    lower = np.tril(work[:, :, :k], -1) + np.eye(m, k, dtype=x.dtype)
    parts = permutation, lower, np.triu(work[:, :k])
    return tuple(part.reshape(*stack, *part.shape[1:]) for part in parts)  # type: ignore[return-value]


def _make_square(x: Tensor, side: Dimension) -> Tensor:
    """A matrix made square, [..., side, side]: the identity continues its diagonal."""
    height, width = x.shape[-2:]
    if height == side and width == side:
        return x
    depth = smaller_side(height, width)
    no_padding = tuple((0, 0, 0) for _ in x.shape[:-2])
    padding = (*no_padding, (0, side - height, 0), (0, side - width, 0))
    tail = apply(pad, identity(side - depth, x.dtype), padding=((depth, 0, 0),) * 2, value=0.0)
    return apply(pad, x, padding=padding, value=0.0) + tail


def _lu_tangent(t: Tensor, out: Triple, x: Tensor) -> tuple[Tensor | None, ...]:
    """With C = L⁻¹ Pᵀ dA U⁻¹: dL = L tril(C, -1), dU = triu(C) U."""
    permutation, lower, upper = out
    m, n = x.shape[-2:]
    # The formula needs inverses of L and U, so both are continued to squares.
    full_lower, full_upper = _make_square(lower, m), _make_square(upper, n)
    permuted_tangent = product(matrix_transpose(permutation), t)
    inner = apply(triangular_solve, full_lower, permuted_tangent, lower=True, unit=True)
    inner = solve_upper_right(inner, full_upper)  # C: [..., m, n]
    d_lower = product(full_lower, lower_part(inner, -1))
    d_upper = product(upper_part(inner), full_upper)
    return None, first_columns(d_lower, lower.shape[-1]), first_rows(d_upper, upper.shape[-2])


lu: Primitive = Primitive(
    "lu",
    "P, L, U with x = P @ L @ U: a permutation, a unit lower and an upper triangular matrix.",
    kind=Opaque(),
    lower=BY_LAPACK,
    sharding=shardings.before_last(2),
    type_rule=_lu_type,
    reference=by_numpy("lu", _lu),
    derivatives=[tangent(_lu_tangent)],
    batch=batch_stacks(lambda: lu),
    samples=lambda: [
        Sample((well_conditioned(3, 3)[::-1].copy(),)),
        Sample((well_conditioned(4, 2),)),
        Sample((well_conditioned(2, 4),)),
        Sample((well_conditioned(2, 2, 2, dtype=np.complex64),)),
        Sample((np.zeros((0, 2), np.float32),)),
    ],
    mistakes=lambda: [Mistake((np.ones(3, np.float32),), {}, ShapeError, "not a matrix")],
    multiple=True,
)


# --- QR ----------------------------------------------------------------------------------------


def _qr_type(x: TensorType, complete: bool) -> tuple[TensorType, TensorType]:
    require_matrix("qr", x)
    *stack, m, n = x.shape
    k = m if complete else smaller_side(m, n)
    return x.with_shape((*stack, m, k)), x.with_shape((*stack, k, n))


def _qr_tangent(t: Tensor, out: Pair, x: Tensor, complete: bool) -> Pair:
    """The leading square block of R decides Q; the columns after it are Qᴴ A."""
    q, r = out
    m, n = x.shape[-2:]
    if m != n and n < m:
        if complete:
            reason = "the derivative of a complete QR of a tall matrix is not unique"
            raise Unsupported(f"{reason}: use mode='reduced'").error("qr", "a derivative", {"x": x})
        return _tall_qr_tangent(t, q, r)
    dq, dr_square = _tall_qr_tangent(first_columns(t, m), q, first_columns(r, m))
    if m == n:
        return dq, dr_square
    dr_whole = product(adjoint(dq), x) + product(adjoint(q), t)  # of R = Qᴴ A
    return dq, apply(concatenate, dr_square, cut_last_axis(dr_whole, m, n), axis=x.ndim - 1)


def _tall_qr_tangent(t: Tensor, q: Tensor, r: Tensor) -> Pair:
    """With C = Qᴴ dA R⁻¹ = Ω + dR R⁻¹: Ω is skew-Hermitian and below the diagonal equal to C."""
    right = solve_upper_right(t, r)
    inner = product(adjoint(q), right)
    below = lower_part(inner, -1)
    skew = below - adjoint(below)
    if t.dtype.is_complex:
        skew = skew + diagonal_matrix(imaginary_part(diagonal_of(inner)))
    return right + product(q, skew - inner), product(inner - skew, r)


def _qr(x: Array, complete: bool) -> tuple[Array, Array]:
    q, r = np.linalg.qr(x, "complete" if complete else "reduced")
    return q, r


qr: Primitive = Primitive(
    "qr",
    "Q with orthonormal columns and upper triangular R with x = Q @ R; `complete`: Q is square.",
    kind=Opaque(),
    lower=BY_LAPACK,
    sharding=shardings.before_last(2),
    type_rule=_qr_type,
    reference=by_numpy("qr", _qr),
    derivatives=[tangent(_qr_tangent)],
    batch=batch_stacks(lambda: qr),
    samples=lambda: [
        Sample((well_conditioned(3, 3),), {"complete": False}),
        Sample((well_conditioned(4, 2),), {"complete": False}),
        Sample((well_conditioned(2, 4),), {"complete": False}),
        Sample((well_conditioned(2, 3, 2, dtype=np.complex64),), {"complete": False}),
        Sample((well_conditioned(2, 3, dtype=np.complex64),), {"complete": True}),
        Sample((well_conditioned(3, 2),), {"complete": True}, derivative=False),
        Sample((np.zeros((0, 2), np.float32),), {"complete": False}),
        Sample((np.zeros((2, 0), np.float32),), {"complete": True}),
    ],
    mistakes=lambda: [
        Mistake((np.ones(3, np.float32),), {"complete": False}, ShapeError, "not a matrix"),
        Mistake((np.ones((2, 2), bool),), {"complete": False}, DTypeError, "not defined"),
    ],
    multiple=True,
)


# --- singular values ---------------------------------------------------------------------------


def _svdvals_type(x: TensorType) -> TensorType:
    require_matrix("svdvals", x)
    shape = (*x.shape[:-2], smaller_side(x.shape[-2], x.shape[-1]))
    return TensorType(real_of(x.dtype), shape)


def _svd_type(x: TensorType, full: bool) -> tuple[TensorType, TensorType, TensorType]:
    require_matrix("svd", x)
    *stack, m, n = x.shape
    k = smaller_side(m, n)
    u = x.with_shape((*stack, m, m if full else k))
    vh = x.with_shape((*stack, n if full else k, n))
    return u, _svdvals_type(x), vh


def _svd_tangent(t: Tensor, out: Triple, x: Tensor, full: bool) -> Triple:
    """Townsend, Differentiating the singular value decomposition (2016), for complex matrices."""
    s = out[1]
    k = s.shape[-1]
    u, v = first_columns(out[0], k), first_columns(adjoint(out[2]), k)
    inner = product(adjoint(u), product(t, v))  # Uᴴ dA V: [..., k, k]
    # 1 / (s_j² - s_i²); zero for equal singular values, whose vectors are not unique.
    gap = reciprocal_or_zero((columns(s) + rows(s)) * (columns(s) - rows(s)))
    right, left = inner * columns(s), inner * rows(s)
    turn_u, turn_v = gap * (right + adjoint(right)), gap * (left + adjoint(left))
    inverse = columns(reciprocal_or_zero(s))
    if t.dtype.is_complex:
        # Only the difference of the phases of u and v is determined: all of it goes to u.
        phase = diagonal_matrix(imaginary_part(diagonal_of(inner)))
        turn_u = turn_u + phase * inverse
    du = _vector_tangent(product(t, v), out[0], u, turn_u, inverse)
    dv = _vector_tangent(product(adjoint(t), u), adjoint(out[2]), v, turn_v, inverse)
    ds = real_part(diagonal_of(inner), s.dtype)
    return du, ds, adjoint(dv)


def _vector_tangent(
    pushed: Tensor, every: Tensor, basis: Tensor, turn: Tensor, inverse: Tensor
) -> Tensor:
    """The tangent of singular vectors: by `turn` inside their span, and by `pushed` out of it.

    `every` are all vectors of a full decomposition. Those after the basis move only as far as they
    must to stay orthogonal to it.
    """
    d_basis = product(basis, turn)
    if basis.shape[-2] == basis.shape[-1]:
        return d_basis
    # The part of `pushed` that is orthogonal to the basis.
    d_basis = d_basis + (pushed - product(basis, product(adjoint(basis), pushed))) * inverse
    if every.shape[-1] == basis.shape[-1]:
        return d_basis
    rest = cut_last_axis(every, basis.shape[-1], every.shape[-1])
    d_rest = -product(basis, product(adjoint(d_basis), rest))
    return apply(concatenate, d_basis, d_rest, axis=d_basis.ndim - 1)


def _svd(x: Array, full: bool) -> tuple[Array, Array, Array]:
    u, s, vh = np.linalg.svd(x, full_matrices=full)
    return u, s, vh


svd: Primitive = Primitive(
    "svd",
    "U, S, Vᴴ with x = U @ diag(S) @ Vᴴ, S falling; `full`: U and Vᴴ are square.",
    kind=MatrixFunction(lambda params: "svd_f" if params["full"] else "svd_s"),
    lower=BY_LAPACK,
    sharding=shardings.before_last(2),
    type_rule=_svd_type,
    reference=by_numpy("svd", _svd),
    derivatives=[tangent(_svd_tangent)],
    batch=batch_stacks(lambda: svd),
    samples=lambda: [
        Sample((well_conditioned(3, 3),), {"full": False}),
        Sample((well_conditioned(4, 2),), {"full": False}),
        Sample((well_conditioned(2, 3),), {"full": True}),
        Sample((well_conditioned(3, 2),), {"full": True}),
        Sample((well_conditioned(2, 2, 3, dtype=np.complex64),), {"full": True}, derivative=False),
        Sample((np.zeros((0, 2), np.float32),), {"full": False}),
        Sample((np.zeros((2, 0), np.float32),), {"full": True}),
    ],
    mistakes=lambda: [
        Mistake((np.ones(3, np.float32),), {"full": True}, ShapeError, "not a matrix"),
        Mistake((np.full((2, 2), np.nan),), {"full": True}, ArgumentError, "did not converge"),
    ],
    multiple=True,
)


def _svdvals_tangent(t: Tensor, out: Tensor, x: Tensor) -> Tensor:
    u, _, vh = apply_multiple(svd, x, full=False)
    inner = diagonal_of(product(adjoint(u), product(t, adjoint(vh))))
    return real_part(inner, out.dtype)


svdvals: Primitive = Primitive(
    "svdvals",
    "The singular values of each matrix, falling.",
    kind=MatrixFunction(lambda params: "svd"),
    lower=BY_LAPACK,
    sharding=shardings.before_last(2),
    type_rule=_svdvals_type,
    reference=by_numpy("svdvals", lambda x: np.linalg.svd(x, compute_uv=False)),
    derivatives=[tangent(_svdvals_tangent)],
    batch=batch_stacks(lambda: svdvals),
    samples=lambda: [
        Sample((well_conditioned(3, 2),)),
        Sample((well_conditioned(2, 2, 3, dtype=np.complex64),)),
        Sample((np.zeros((0, 2), np.float32),)),
    ],
    mistakes=lambda: [Mistake((np.ones(3, np.float32),), {}, ShapeError, "not a matrix")],
)
