"""Eigenvalues and eigenvectors of stacks of square matrices.

The vectors of equal eigenvalues are not unique; a pair of them contributes zero to derivatives,
where the formula would divide by zero. The phase of an eigenvector is arbitrary: derivatives hold
for functions that do not depend on it.

>>> import weft as wf
>>> wf.linalg.eigvalsh(wf.tensor([[2.0, 0.0], [0.0, 1.0]])).tolist()
[1.0, 2.0]
"""

from __future__ import annotations

import numpy as np

from weft.core.dtypes import complex_of, real_of
from weft.core.errors import ArgumentError, ShapeError
from weft.core.types import TensorType
from weft.ir.derivatives import tangent
from weft.ir.dispatch import apply, apply_multiple
from weft.ir.kinds import MatrixFunction
from weft.ir.primitive import Mistake, Primitive, Sample
from weft.ir.tensor import Tensor
from weft.ops import sharding_rules as shardings
from weft.ops.arithmetic import conj
from weft.ops.conversion import convert
from weft.ops.factorizations import positive_definite
from weft.ops.matrices import (
    BY_LAPACK,
    Array,
    adjoint,
    batch_stacks,
    by_numpy,
    columns,
    diagonal_of,
    hermitian_of_lower,
    product,
    real_part,
    reciprocal_or_zero,
    require_square,
    rows,
)
from weft.ops.reduction import reduce_sum
from weft.ops.solving import solve, well_conditioned

__all__: list[str] = []

Pair = tuple[Tensor, Tensor]


def _eigvalsh_type(x: TensorType) -> TensorType:
    require_square("eigvalsh", x)
    return TensorType(real_of(x.dtype), x.shape[:-1])


def _eigh_type(x: TensorType) -> tuple[TensorType, TensorType]:
    require_square("eigh", x)
    return TensorType(real_of(x.dtype), x.shape[:-1]), x


def _eigh_tangent(t: Tensor, out: Pair, x: Tensor) -> Pair:
    """With C = Vᴴ dA V: dw = diag(C), dV = V (C / (w_j - w_i))."""
    w, v = out
    inner = product(adjoint(v), product(hermitian_of_lower(t), v))
    gap = reciprocal_or_zero(columns(w) - rows(w))
    return real_part(diagonal_of(inner), w.dtype), product(v, inner * gap)


def _eigh(x: Array) -> tuple[Array, Array]:
    w, v = np.linalg.eigh(x)
    return w, v


eigh: Primitive = Primitive(
    "eigh",
    "Eigenvalues, rising, and eigenvectors of the Hermitian matrix that x's lower triangle gives.",
    kind=MatrixFunction(lambda params: "eigh_lo"),
    lower=BY_LAPACK,
    sharding=shardings.before_last(2),
    type_rule=_eigh_type,
    reference=by_numpy("eigh", _eigh),
    derivatives=[tangent(_eigh_tangent)],
    batch=batch_stacks(lambda: eigh),
    samples=lambda: [
        Sample((positive_definite(3, 3),)),
        Sample((positive_definite(2, 2, 2),)),
        Sample((positive_definite(3, 3, dtype=np.complex64),), derivative=False),
        Sample((np.zeros((0, 0), np.float32),)),
    ],
    mistakes=lambda: [
        Mistake((np.ones((2, 3), np.float32),), {}, ShapeError, "the matrix is not square"),
    ],
    multiple=True,
)


def _eigvalsh_tangent(t: Tensor, out: Tensor, x: Tensor) -> Tensor:
    _, v = apply_multiple(eigh, x)
    inner = product(adjoint(v), product(hermitian_of_lower(t), v))
    return real_part(diagonal_of(inner), out.dtype)


eigvalsh: Primitive = Primitive(
    "eigvalsh",
    "Eigenvalues, rising, of the Hermitian matrix that x's lower triangle gives.",
    kind=MatrixFunction(lambda params: "eigvalsh_lo"),
    lower=BY_LAPACK,
    sharding=shardings.before_last(2),
    type_rule=_eigvalsh_type,
    reference=by_numpy("eigvalsh", np.linalg.eigvalsh),
    derivatives=[tangent(_eigvalsh_tangent)],
    batch=batch_stacks(lambda: eigvalsh),
    samples=lambda: [
        Sample((positive_definite(3, 3),)),
        Sample((positive_definite(2, 3, 3, dtype=np.complex64),)),
        Sample((np.zeros((0, 0), np.float32),)),
    ],
    mistakes=lambda: [Mistake((np.ones(3, np.float32),), {}, ShapeError, "not a matrix")],
)


def _eigvals_type(x: TensorType) -> TensorType:
    require_square("eigvals", x)
    return TensorType(complex_of(x.dtype), x.shape[:-1])


def _eig_type(x: TensorType) -> tuple[TensorType, TensorType]:
    require_square("eig", x)
    dtype = complex_of(x.dtype)
    return TensorType(dtype, x.shape[:-1]), x.with_dtype(dtype)


def _complex(array: Array) -> Array:
    return array.astype(np.result_type(array.dtype, np.complex64), copy=False)


def _eig(x: Array) -> tuple[Array, Array]:
    w, v = np.linalg.eig(x)
    return _complex(w), _complex(v)


def _in_eigenbasis(t: Tensor, v: Tensor) -> Tensor:
    """V⁻¹ dA V: the tangent of x in the basis of its eigenvectors."""
    tangent_of_x = t if t.dtype is v.dtype else apply(convert, t, dtype=v.dtype)
    return apply(solve, v, product(tangent_of_x, v))


def _eig_tangent(t: Tensor, out: Pair, x: Tensor) -> Pair:
    """As for eigh, with V⁻¹ for Vᴴ; the vectors keep their length and their phase."""
    w, v = out
    inner = _in_eigenbasis(t, v)
    dv = product(v, inner * reciprocal_or_zero(columns(w) - rows(w)))
    # NumPy's vectors have length 1: what lies along each vector is taken off its motion.
    along = apply(reduce_sum, conj(v) * dv, axes=(v.ndim - 2,))
    return diagonal_of(inner), dv - v * columns(along)


def _complex_samples(derivative: bool) -> list[Sample]:
    return [
        Sample((well_conditioned(3, 3),), derivative=derivative),
        Sample((np.array([[0.0, 1.0], [-1.0, 0.5]], np.float32),), derivative=derivative),
        Sample((well_conditioned(2, 2, 2, dtype=np.complex64),), derivative=derivative),
        Sample((np.zeros((0, 0), np.float32),)),
    ]


def _unsquare() -> list[Mistake]:
    return [
        Mistake((np.ones((2, 3), np.float32),), {}, ShapeError, "the matrix is not square"),
        Mistake((np.full((2, 2), np.nan),), {}, ArgumentError, "did not converge"),
    ]


eig: Primitive = Primitive(
    "eig",
    "Eigenvalues and right eigenvectors of length 1, complex, in no particular order.",
    kind=MatrixFunction(lambda params: "eig", needs_finite=True),
    lower=BY_LAPACK,
    sharding=shardings.before_last(2),
    type_rule=_eig_type,
    reference=by_numpy("eig", _eig),
    derivatives=[tangent(_eig_tangent)],
    batch=batch_stacks(lambda: eig),
    samples=lambda: _complex_samples(derivative=False),
    mistakes=_unsquare,
    multiple=True,
)


def _eigvals_tangent(t: Tensor, out: Tensor, x: Tensor) -> Tensor:
    _, v = apply_multiple(eig, x)
    return diagonal_of(_in_eigenbasis(t, v))


eigvals: Primitive = Primitive(
    "eigvals",
    "Eigenvalues, complex, in no particular order.",
    kind=MatrixFunction(lambda params: "eigvals", needs_finite=True),
    lower=BY_LAPACK,
    sharding=shardings.before_last(2),
    type_rule=_eigvals_type,
    reference=by_numpy("eigvals", lambda x: _complex(np.linalg.eigvals(x))),
    derivatives=[tangent(_eigvals_tangent)],
    batch=batch_stacks(lambda: eigvals),
    samples=lambda: _complex_samples(derivative=True),
    mistakes=_unsquare,
)
