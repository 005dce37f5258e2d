"""Linear systems on stacks of matrices: solving and inverting.

Every gradient of a solution is again a solution: of the system with the adjoint matrix.

>>> import weft as wf
>>> wf.linalg.solve(wf.tensor([[2.0, 0.0], [0.0, 4.0]]), wf.tensor([2.0, 2.0])).tolist()
[1.0, 0.5]
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from weft.core.dtypes import real_of
from weft.core.errors import ArgumentError, DTypeError, ShapeError
from weft.core.shapes import Dimension
from weft.core.types import TensorType
from weft.ir.batching import move_axis, to_front
from weft.ir.derivatives import constant, linear, tangent
from weft.ir.dispatch import apply, bind
from weft.ir.kinds import MatrixFunction, Opaque
from weft.ir.primitive import Mistake, Primitive, Sample
from weft.ir.tensor import Tensor
from weft.ops import sharding_rules as shardings
from weft.ops.matrices import (
    BY_LAPACK,
    SINGULAR,
    Array,
    adjoint,
    batch_stacks,
    by_numpy,
    lower_part,
    matrix_transpose,
    product,
    require_matrix,
    require_system,
    square_type,
    upper_part,
)
from weft.ops.movement import reshape

__all__: list[str] = []


def well_conditioned(*shape: int, dtype: Any = np.float32, seed: int = 0) -> Array:
    """A sample stack of matrices with a heavy diagonal; square ones are invertible."""
    generator = np.random.default_rng(seed)
    x = generator.uniform(-1.0, 1.0, shape)
    if np.dtype(dtype).kind == "c":
        x = x + 1j * generator.uniform(-1.0, 1.0, shape)
    weights = np.diag(np.arange(2.0, 2.0 + max(shape[-2:])))[: shape[-2], : shape[-1]]
    return (x + weights).astype(dtype)


def right_side(*shape: int, dtype: Any = np.float32) -> Array:
    """A sample of the right side of a system."""
    x = np.linspace(-1.0, 1.5, int(np.prod(shape)))
    return ((x + 0.5j if np.dtype(dtype).kind == "c" else x).reshape(shape)).astype(dtype)


SYSTEMS = [
    ((3, 3), (3, 2), np.float32),
    ((2, 2, 2), (2, 2, 3), np.complex64),
    ((0, 0), (0, 2), np.float32),
    ((2, 2), (2, 0), np.float32),
]


def _batch_system(primitive_of: Callable[[], Primitive]) -> Callable[..., tuple[Tensor, int]]:
    """One matrix with many right sides is one system: the batch becomes further columns."""

    def batch(
        size: Dimension, operands: tuple[Tensor, ...], axes: tuple[int | None, ...], **params: Any
    ) -> tuple[Tensor, int]:
        (a, b), (left, right) = operands, axes
        if left is not None or right is None:
            front = to_front(size, a, left), to_front(size, b, right)
            return apply(primitive_of(), *front, **params), 0
        side = move_axis(b, right, b.ndim - 1)
        joined_shape = (*side.shape[:-2], side.shape[-2] * size)
        out = bind(primitive_of(), a, bind(reshape, side, shape=joined_shape), **params)
        return apply(reshape, out, shape=side.shape), side.ndim - 1

    return batch


def _solve_triangular(a: Array, b: Array, lower: bool, unit: bool) -> Array:
    """By back substitution: NumPy's LU leaves an upper triangle alone; a lower one is turned."""
    if lower:
        reversed_solution = _solve_triangular(a[..., ::-1, ::-1], b[..., ::-1, :], False, unit)
        return reversed_solution[..., ::-1, :]
    upper = np.triu(a, 1 if unit else 0)
    if unit:
        upper = upper + np.eye(a.shape[-1], dtype=a.dtype)
    return np.linalg.solve(upper, b)


def _triangle_read(t: Tensor, lower: bool, unit: bool) -> Tensor:
    """The elements of the matrix that a triangular system reads."""
    return lower_part(t, -1 if unit else 0) if lower else upper_part(t, 1 if unit else 0)


triangular_solve: Primitive = Primitive(
    "triangular_solve",
    "x with a @ x = b for triangular a; the other triangle, and a `unit` diagonal, is not read.",
    kind=Opaque(),
    lower=BY_LAPACK,
    sharding=shardings.before_last(2),
    type_rule=lambda a, b, lower, unit: require_system("triangular_solve", a, b),
    reference=by_numpy("triangular_solve", _solve_triangular, SINGULAR),
    derivatives=[
        tangent(
            lambda t, out, a, b, lower, unit: bind(
                triangular_solve,
                a,
                -product(_triangle_read(t, lower, unit), out),
                lower=lower,
                unit=unit,
            )
        ),
        linear(
            lambda ct, a, b, lower, unit: bind(
                triangular_solve, adjoint(a), ct, lower=not lower, unit=unit
            )
        ),
    ],
    batch=_batch_system(lambda: triangular_solve),
    samples=lambda: (
        [
            Sample(
                (well_conditioned(*a, dtype=kind), right_side(*b, dtype=kind)),
                {"lower": lower, "unit": unit},
            )
            for (a, b, kind), lower, unit in zip(
                SYSTEMS, (True, False, True, False), (False, False, False, True), strict=True
            )
        ]
        + [
            Sample((well_conditioned(3, 3), right_side(3, 2)), {"lower": lower, "unit": unit})
            for lower, unit in ((True, True), (False, False), (False, True))
        ]
    ),
    mistakes=lambda: [
        Mistake(
            (np.zeros((2, 2), np.float32), np.ones((2, 1), np.float32)),
            {"lower": True, "unit": False},
            ArgumentError,
            "the matrix is singular",
        )
    ],
)


def solve_lower(a: Tensor, b: Tensor) -> Tensor:
    """x with a @ x = b for lower triangular a."""
    return apply(triangular_solve, a, b, lower=True, unit=False)


def solve_upper_right(b: Tensor, a: Tensor) -> Tensor:
    """x with x @ a = b for upper triangular a."""
    return matrix_transpose(solve_lower(matrix_transpose(a), matrix_transpose(b)))


def _system_mistakes() -> list[Mistake]:
    def ones(*shape: int, dtype: Any = np.float32) -> Array:
        return np.ones(shape, dtype)

    return [
        Mistake((ones(2, 3), ones(2, 1)), {}, ShapeError, "the matrix is not square"),
        Mistake((ones(2, 2), ones(3, 1)), {}, ShapeError, "the number of rows differs"),
        Mistake((ones(2, 2, 2), ones(3, 2, 1)), {}, ShapeError, "the stacks differ"),
        Mistake((ones(2, 2), ones(2)), {}, ShapeError, "not a matrix"),
        Mistake((ones(1, 2, 2), ones(2, 1)), {}, ShapeError, "different numbers of axes"),
        Mistake((ones(2, 2), ones(2, 1, dtype=np.float64)), {}, DTypeError, "different dtypes"),
        Mistake((ones(2, 2, dtype=int), ones(2, 1, dtype=int)), {}, DTypeError, "not defined"),
        Mistake((ones(2, 2), ones(2, 1)), {}, ArgumentError, "the matrix is singular"),
    ]


solve: Primitive = Primitive(
    "solve",
    "x with a @ x = b, by elimination with pivots.",
    kind=MatrixFunction(lambda params: "solve"),
    lower=BY_LAPACK,
    sharding=shardings.before_last(2),
    type_rule=lambda a, b: require_system("solve", a, b),
    reference=by_numpy("solve", np.linalg.solve, SINGULAR),
    derivatives=[
        tangent(lambda t, out, a, b: bind(solve, a, -product(t, out))),
        linear(lambda ct, a, b: bind(solve, adjoint(a), ct)),
    ],
    batch=_batch_system(lambda: solve),
    samples=lambda: [
        Sample((well_conditioned(*a, dtype=kind), right_side(*b, dtype=kind)))
        for a, b, kind in SYSTEMS
    ],
    mistakes=_system_mistakes,
)

inv: Primitive = Primitive(
    "inv",
    "The inverse of each square matrix.",
    kind=MatrixFunction(lambda params: "inv"),
    lower=BY_LAPACK,
    sharding=shardings.before_last(2),
    type_rule=square_type("inv"),
    reference=by_numpy("inv", np.linalg.inv, SINGULAR),
    derivatives=[tangent(lambda t, out, x: -product(out, product(t, out)))],
    batch=batch_stacks(lambda: inv),
    samples=lambda: [
        Sample((well_conditioned(3, 3),)),
        Sample((well_conditioned(2, 2, 2, dtype=np.complex64),)),
        Sample((np.zeros((0, 0), np.float32),)),
    ],
    mistakes=lambda: [
        Mistake((np.ones((2, 3), np.float32),), {}, ShapeError, "the matrix is not square"),
        Mistake((np.ones((2, 2), np.float32),), {}, ArgumentError, "the matrix is singular"),
    ],
)


def _pinv_type(x: TensorType, rtol: TensorType) -> TensorType:
    require_matrix("pinv", x)
    wanted = TensorType(real_of(x.dtype), x.shape[:-2])
    if rtol != wanted:
        raise ShapeError(
            "pinv",
            "rtol is not one number per matrix",
            expected=f"rtol: {wanted}",
            got={"x": x, "rtol": rtol},
            fix="broadcast rtol to x.shape[:-2]",
        )
    return x.with_shape((*x.shape[:-2], x.shape[-1], x.shape[-2]))


def _pinv_tangent(t: Tensor, out: Tensor, x: Tensor, rtol: Tensor) -> Tensor:
    """Golub and Pereyra (1973): right where the rank does not change."""
    adjoint_tangent = adjoint(t)
    inner = product(product(out, adjoint(out)), adjoint_tangent)
    outer = product(adjoint_tangent, product(adjoint(out), out))
    inner = inner - product(product(inner, x), out)
    outer = outer - product(out, product(x, outer))
    return inner + outer - product(out, product(t, out))


pinv: Primitive = Primitive(
    "pinv",
    "The pseudo-inverse; singular values of at most rtol times the largest count as zero.",
    kind=Opaque(),
    lower=BY_LAPACK,
    sharding=shardings.before_last(2),
    type_rule=_pinv_type,
    reference=by_numpy("pinv", lambda x, rtol: np.linalg.pinv(x, rtol)),
    derivatives=[
        tangent(_pinv_tangent),
        constant("the threshold decides which singular values count, and nothing else"),
    ],
    batch=batch_stacks(lambda: pinv),
    samples=lambda: [
        Sample((well_conditioned(3, 2), np.array(1e-5, np.float32))),
        Sample((well_conditioned(2, 3), np.array(1e-5, np.float32))),
        Sample((well_conditioned(2, 3, 3, dtype=np.complex64), np.full(2, 1e-5, np.float32))),
        Sample((np.ones((2, 2), np.float32), np.array(1e-5, np.float32)), derivative=False),
        Sample((np.zeros((0, 2), np.float32), np.array(1e-5, np.float32))),
    ],
    mistakes=lambda: [
        Mistake((np.ones((2, 2), np.float32), np.ones(3, np.float32)), {}, ShapeError, "one number")
    ],
)
