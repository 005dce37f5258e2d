"""Linear algebra: values by NumPy, factors multiplied out, derivatives of what is unique."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import weft as wf
from weft.core.errors import (
    ArgumentError,
    ArgumentTypeError,
    AxisError,
    DTypeError,
    ShapeError,
    Unsupported,
)
from weft.ir.tracing import trace
from weft.ops.factorizations import positive_definite
from weft.ops.matrices import reciprocal_or_zero
from weft.ops.solving import well_conditioned
from weft.testing import check_grads

linalg = wf.linalg
KINDS = ["float32", "float64", "complex64", "complex128"]


def general(*shape: int, dtype: Any = np.float64, seed: int = 1) -> np.ndarray[Any, Any]:
    return well_conditioned(*shape, dtype=dtype, seed=seed)


def close(found: Any, expected: Any, tolerance: float = 1e-4) -> None:
    assert found.numpy().dtype == np.asarray(expected).dtype
    np.testing.assert_allclose(found.numpy(), expected, rtol=tolerance, atol=tolerance)


def adjoint(x: Any) -> Any:
    return np.conj(np.swapaxes(x, -1, -2))


# --- values ------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", ["inv", "det", "pinv", "svdvals"])
def test_values_of_general_matrices_are_numpys(name: str, kind: str) -> None:
    x = general(2, 3, 3, dtype=kind)
    close(getattr(linalg, name)(wf.tensor(x)), getattr(np.linalg, name)(x))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", ["cholesky", "eigvalsh"])
def test_values_of_hermitian_matrices_are_numpys(name: str, kind: str) -> None:
    x = positive_definite(2, 3, 3, dtype=kind)
    close(getattr(linalg, name)(wf.tensor(x)), getattr(np.linalg, name)(x))


@pytest.mark.parametrize("kind", KINDS)
def test_slogdet_has_numpys_values(kind: str) -> None:
    x = general(2, 3, 3, dtype=kind)
    sign, logabsdet = linalg.slogdet(wf.tensor(x))
    close(sign, np.linalg.slogdet(x).sign)
    close(logabsdet, np.linalg.slogdet(x).logabsdet)


def test_slogdet_of_a_singular_matrix_is_zero_and_minus_infinity() -> None:
    sign, logabsdet = linalg.slogdet(wf.ones((2, 2)))
    assert sign.tolist() == 0.0
    assert logabsdet.tolist() == -np.inf


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("shape", [(3, 3), (2, 4, 2), (2, 4), (0, 3), (3, 0)])
@pytest.mark.parametrize("whole", [False, True])
def test_factors_multiply_to_the_matrix(shape: tuple[int, ...], kind: str, whole: bool) -> None:
    x = general(*shape, dtype=kind)
    q, r = linalg.qr(wf.tensor(x), mode="complete" if whole else "reduced")
    np.testing.assert_allclose(q.numpy() @ r.numpy(), x, atol=1e-4)
    np.testing.assert_allclose(np.triu(r.numpy()), r.numpy())
    u, s, vh = (part.numpy() for part in linalg.svd(wf.tensor(x), full_matrices=whole))
    k = s.shape[-1]
    np.testing.assert_allclose((u[..., :k] * s[..., None, :]) @ vh[..., :k, :], x, atol=1e-4)
    p, low, up = (part.numpy() for part in linalg.lu(wf.tensor(x)))
    np.testing.assert_allclose(p @ low @ up, x, atol=1e-4)
    for part, square in ((u, u.shape[-1]), (adjoint(vh), vh.shape[-2]), (q.numpy(), q.shape[-1])):
        one = np.broadcast_to(np.eye(square), (*shape[:-2], square, square))
        np.testing.assert_allclose(adjoint(part) @ part, one, atol=1e-4)


@pytest.mark.parametrize("kind", KINDS)
def test_eigenvectors_are_only_stretched(kind: str) -> None:
    x = positive_definite(2, 3, 3, dtype=kind)
    w, v = (part.numpy() for part in linalg.eigh(wf.tensor(x)))
    np.testing.assert_allclose(x @ v, v * w[..., None, :], rtol=1e-3, atol=1e-3)
    y = general(2, 3, 3, dtype=kind)
    w, v = (part.numpy() for part in linalg.eig(wf.tensor(y)))
    np.testing.assert_allclose(y @ v, v * w[..., None, :], rtol=1e-3, atol=1e-3)
    np.testing.assert_allclose(linalg.eigvals(wf.tensor(y)).numpy(), w, rtol=1e-3)


def test_an_upper_cholesky_factor_is_the_adjoint_of_the_lower_one() -> None:
    x = wf.tensor(positive_definite(3, 3, dtype=np.complex128))
    np.testing.assert_allclose(
        linalg.cholesky(x, upper=True).numpy(), adjoint(linalg.cholesky(x).numpy())
    )


def test_results_have_names() -> None:
    x = wf.tensor(positive_definite(2, 2))
    assert linalg.eigh(x)._fields == ("eigenvalues", "eigenvectors")
    assert linalg.qr(x)._fields == ("Q", "R")
    assert linalg.slogdet(x)._fields == ("sign", "logabsdet")
    assert linalg.svd(x)._fields == ("U", "S", "Vh")


@pytest.mark.parametrize("kind", ["float16", "bfloat16"])
def test_narrow_floats_are_computed_in_float32_and_keep_their_dtype(kind: str) -> None:
    x = wf.tensor(positive_definite(3, 3)).astype(kind)
    for f in (linalg.cholesky, linalg.inv, linalg.det, linalg.svdvals, linalg.pinv):
        assert f(x).dtype.name == kind
    for part in (*linalg.eigh(x), *linalg.qr(x), *linalg.svd(x), *linalg.slogdet(x)):
        assert part.dtype.name == kind
    assert linalg.vector_norm(x).dtype.name == kind
    assert linalg.eigvals(x).dtype is wf.complex64


def test_integers_are_promoted_to_the_default_float() -> None:
    found = linalg.inv(wf.tensor([[2, 0], [0, 4]]))
    assert found.dtype is wf.float32
    assert found.tolist() == [[0.5, 0.0], [0.0, 0.25]]


def test_empty_matrices_have_numpys_results() -> None:
    empty = wf.zeros((0, 0))
    assert linalg.det(empty).tolist() == 1.0
    assert linalg.slogdet(empty).logabsdet.tolist() == 0.0
    assert linalg.inv(empty).shape == linalg.cholesky(empty).shape == (0, 0)
    assert linalg.matrix_exp(empty).shape == (0, 0)
    assert linalg.pinv(wf.zeros((0, 3))).shape == (3, 0)
    assert linalg.matrix_rank(wf.zeros((2, 0, 3))).tolist() == [0, 0]
    assert linalg.matrix_norm(wf.zeros((0, 3)), ord=2).tolist() == 0.0
    assert linalg.vector_norm(wf.zeros((0,))).tolist() == 0.0
    assert linalg.diagonal(wf.zeros((0, 3))).shape == (0,)


# --- systems -----------------------------------------------------------------------------------


def test_the_right_side_is_a_vector_only_if_it_has_one_axis() -> None:
    a, b = general(2, 3, 3), general(2, 3, 3)[..., 0]
    close(linalg.solve(wf.tensor(a), wf.tensor(b[0])), np.linalg.solve(a, b[0]))
    with pytest.raises(ShapeError, match="number of rows differs"):
        linalg.solve(wf.tensor(a), wf.tensor(b))


def test_stacks_of_systems_broadcast() -> None:
    a, b = general(2, 1, 3, 3), general(4, 3, 2)
    close(linalg.solve(wf.tensor(a), wf.tensor(b)), np.linalg.solve(a, b))


def test_triangular_systems_read_one_triangle() -> None:
    a, b = general(3, 3), general(3, 2)
    upper = linalg.solve_triangular(wf.tensor(a), wf.tensor(b), upper=True)
    close(upper, np.linalg.solve(np.triu(a), b))
    unit = linalg.solve_triangular(wf.tensor(a), wf.tensor(b), unit_diagonal=True)
    close(unit, np.linalg.solve(np.tril(a, -1) + np.eye(3), b))


def test_triangular_systems_are_solved_to_the_last_bit_by_substitution() -> None:
    """Eliminating with pivots would lose the small elements of this matrix."""
    a = np.array([[1e-20, 0.0], [1.0, 1e-20]])
    found = linalg.solve_triangular(wf.tensor(a), wf.tensor(np.array([1e-20, 2.0])))
    assert found.tolist() == [1.0, 1e20]


@pytest.mark.parametrize("rtol", [None, 0.3, np.array([0.3, 0.01])])
def test_a_pseudo_inverse_takes_a_tolerance_per_matrix(rtol: Any) -> None:
    x = general(2, 4, 3)
    expected = np.linalg.pinv(x, rtol=rtol)
    close(linalg.pinv(wf.tensor(x), rtol=rtol), expected)
    rank = linalg.matrix_rank(wf.tensor(x), rtol=rtol)
    assert rank.tolist() == np.linalg.matrix_rank(x, rtol=rtol).tolist()


def test_least_squares_agrees_with_numpy() -> None:
    a, b = general(5, 3), general(5, 2)
    found = linalg.lstsq(wf.tensor(a), wf.tensor(b))
    solution, residuals, rank, values = np.linalg.lstsq(a, b)
    close(found.solution, solution)
    close(found.residuals, residuals)
    close(found.singular_values, values)
    assert found.rank.tolist() == rank


# --- powers, products, diagonals ---------------------------------------------------------------


@pytest.mark.parametrize("n", [-3, -1, 0, 1, 2, 7])
def test_matrix_powers_are_numpys(n: int) -> None:
    x = general(2, 3, 3)
    close(linalg.matrix_power(wf.tensor(x), n), np.linalg.matrix_power(x, n), 1e-6)


def test_integer_matrices_have_integer_powers() -> None:
    assert linalg.matrix_power(wf.tensor([[1, 1], [0, 1]]), 5).tolist() == [[1, 5], [0, 1]]


@pytest.mark.parametrize("scale", [0.0, 0.1, 3.0, 40.0])
def test_the_matrix_exponential_of_a_rotation_is_exact(scale: float) -> None:
    x = wf.tensor(np.array([[0.0, -scale], [scale, 0.0]]))
    expected = [[np.cos(scale), -np.sin(scale)], [np.sin(scale), np.cos(scale)]]
    np.testing.assert_allclose(linalg.matrix_exp(x).numpy(), expected, atol=1e-12)


def test_the_matrix_exponential_refuses_what_it_cannot_scale() -> None:
    huge = wf.tensor(np.array([[-1e7, 0.0], [0.0, 1.0]]))
    assert np.isnan(linalg.matrix_exp(huge).numpy()).all()


def test_multi_dot_multiplies_in_any_number() -> None:
    x = [general(3, 4), general(4, 2), general(2, 5), general(5, 3)]
    close(linalg.multi_dot([wf.tensor(each) for each in x]), np.linalg.multi_dot(x))


def test_cross_products_are_numpys() -> None:
    a, b = general(4, 3), general(2, 4, 3)
    close(linalg.cross(wf.tensor(a), wf.tensor(b)), np.linalg.cross(*np.broadcast_arrays(a, b)))
    a, b = general(3, 4), general(3, 4, seed=2)
    close(linalg.cross(wf.tensor(a), wf.tensor(b), axis=0), np.linalg.cross(a, b, axis=0))


@pytest.mark.parametrize("offset", range(-4, 5))
@pytest.mark.parametrize("shape", [(3, 3), (2, 3, 4), (4, 2)])
def test_diagonals_and_traces_are_numpys(shape: tuple[int, ...], offset: int) -> None:
    x = np.arange(np.prod(shape)).reshape(shape)
    expected = np.linalg.diagonal(x, offset=offset)
    assert linalg.diagonal(wf.tensor(x), offset=offset).tolist() == expected.tolist()
    found = linalg.trace(wf.tensor(x), offset=offset)
    assert found.tolist() == np.linalg.trace(x, offset=offset).tolist()


# --- norms -------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("order", [0, 1, 2, 3, 0.5, -1, -2, np.inf, -np.inf])
@pytest.mark.parametrize("axis", [None, 0, (0, 2)])
def test_vector_norms_are_numpys(order: float, kind: str, axis: Any) -> None:
    x = general(2, 3, 4, dtype=kind)
    found = linalg.vector_norm(wf.tensor(x), ord=order, axis=axis, keepdims=True)
    expected = np.linalg.vector_norm(x, ord=order, axis=axis, keepdims=True)
    close(found, expected.astype(found.numpy().dtype))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("order", ["fro", "nuc", 1, -1, 2, -2, np.inf, -np.inf])
def test_matrix_norms_are_numpys(order: Any, kind: str) -> None:
    x = general(2, 3, 4, dtype=kind)
    close(linalg.matrix_norm(wf.tensor(x), ord=order), np.linalg.matrix_norm(x, ord=order))
    turned = linalg.norm(wf.tensor(x), order, axis=(2, 0), keepdims=True)
    close(turned, np.linalg.norm(x, order, axis=(2, 0), keepdims=True))


def test_a_norm_without_order_is_that_of_all_elements() -> None:
    x = general(2, 3, 4)
    close(linalg.norm(wf.tensor(x)), np.linalg.norm(x))
    close(linalg.norm(wf.tensor(x), axis=1), np.linalg.norm(x, axis=1))


@pytest.mark.parametrize("kind", ["float32", "complex64"])
@pytest.mark.parametrize("order", [0.5, 1, 1.5, 2, 3, np.inf])
def test_norms_have_a_zero_gradient_at_zero(order: float, kind: str) -> None:
    x = wf.zeros((3,), dtype=kind)

    def size(x: Any) -> Any:
        return linalg.vector_norm(x, ord=order)

    assert wf.grad(size)(x).tolist() == [0, 0, 0]
    curved = wf.grad(lambda x: wf.real(wf.grad(size)(x) * x).sum())(x)
    assert np.isfinite(curved.numpy()).all()


def test_a_norm_of_rows_has_a_gradient_beside_a_zero_row() -> None:
    x = wf.tensor([[3.0, 4.0], [0.0, 0.0]])
    gradient = wf.grad(lambda x: linalg.vector_norm(x, axis=1).sum())(x)
    np.testing.assert_allclose(gradient.numpy(), [[0.6, 0.8], [0.0, 0.0]], rtol=1e-6)


# --- derivatives -------------------------------------------------------------------------------


def _projector(x: Any) -> Any:
    """The projector on all eigenvectors but the first."""
    v = linalg.eigh(x).eigenvectors[..., 1:]
    return v @ wf.conj(v.mT)


def _rotation(x: Any) -> Any:
    u, _, vh = linalg.svd(x, full_matrices=False)
    return u @ vh


def _null_space(x: Any) -> Any:
    u = linalg.svd(x).U
    rest = u[..., 2:]
    return rest @ wf.conj(rest.mT)


def _squared_svd(x: Any) -> Any:
    u, s, _ = linalg.svd(x)
    return (u * (s * s)) @ wf.conj(u.mT)


def _sized_eigenvectors(x: Any) -> Any:
    w, v = linalg.eig(x)
    return wf.real(w * w), wf.abs(v)


CHOICE_FREE: dict[str, tuple[Callable[..., Any], tuple[int, ...]]] = {
    "eigenprojectors": (_projector, (3, 3)),
    "the nearest rotation": (_rotation, (3, 3)),
    "the nearest isometry of a tall matrix": (_rotation, (4, 2)),
    "the nearest isometry of a wide matrix": (_rotation, (2, 3)),
    "the projector on a null space": (_null_space, (4, 2)),
    "the square root of a Gram matrix": (_squared_svd, (3, 3)),
    "sizes of eigenvectors": (_sized_eigenvectors, (3, 3)),
    "eigenvalues": (lambda x: linalg.eigvalsh(x), (3, 3)),
    "a Cholesky factor": (lambda x: linalg.cholesky(x @ wf.conj(x.mT)), (3, 3)),
    "a matrix exponential": (lambda x: linalg.matrix_exp(x * 0.3), (2, 3, 3)),
    "a power": (lambda x: linalg.matrix_power(x, -3), (2, 2)),
    "least squares": (lambda x: linalg.lstsq(x, x @ x.mT).solution, (4, 2)),
    "the nuclear norm": (lambda x: linalg.matrix_norm(x, ord="nuc"), (3, 2)),
    "the spectral norm": (lambda x: linalg.matrix_norm(x, ord=2), (3, 2)),
    "the Frobenius norm": (lambda x: linalg.matrix_norm(x), (3, 2)),
    "the 3-norm": (lambda x: linalg.vector_norm(x, ord=3, axis=0), (3, 2)),
    "cross products": (lambda x: linalg.cross(x, x * x), (2, 3)),
    "a trace": (lambda x: linalg.trace(x @ x, offset=1), (3, 3)),
}


@pytest.mark.parametrize("kind", ["float64", "complex128"])
@pytest.mark.parametrize("name", CHOICE_FREE)
def test_functions_that_depend_on_no_choice_have_derivatives(name: str, kind: str) -> None:
    f, shape = CHOICE_FREE[name]
    check_grads(f, [wf.tensor(general(*shape, dtype=kind))], tolerance=2e-5)


@pytest.mark.parametrize("kind", ["float64", "complex128"])
def test_the_gradient_of_a_hermitian_function_is_hermitian(kind: str) -> None:
    x = wf.tensor(positive_definite(3, 3, dtype=kind))
    for f in (linalg.cholesky, linalg.eigvalsh):
        gradient = wf.grad(lambda x, f=f: wf.real(f(x) * f(x)).sum())(x).numpy()
        np.testing.assert_allclose(gradient, adjoint(gradient), atol=1e-10)


def test_equal_eigenvalues_give_no_nan() -> None:
    one = wf.tensor(np.eye(3))
    for f in (lambda x: linalg.eigh(x).eigenvectors, lambda x: linalg.svd(x).U, linalg.svdvals):
        gradient = wf.grad(lambda x, f=f: (f(x) * f(x)).sum())(one)
        assert np.isfinite(gradient.numpy()).all()


def test_the_reciprocal_of_zero_is_zero_and_does_not_move() -> None:
    x = wf.tensor([0.0, 2.0])
    assert reciprocal_or_zero(x).tolist() == [0.0, 0.5]
    assert wf.grad(lambda x: reciprocal_or_zero(x).sum())(x).tolist() == [0.0, -0.25]


def test_the_gradient_of_a_determinant_is_the_matrix_of_cofactors() -> None:
    x = wf.tensor([[1.0, 2.0], [2.0, 4.0]])
    np.testing.assert_allclose(wf.grad(linalg.det)(x).numpy(), [[4, -2], [-2, 1]], atol=1e-5)
    nothing = wf.zeros((1, 1))
    assert wf.grad(linalg.det)(nothing).tolist() == [[1.0]]


@pytest.mark.parametrize("rank", [0, 1, 2, 3])
def test_second_derivatives_of_a_determinant_survive_any_rank(rank: int) -> None:
    x = general(3, rank) @ general(rank, 3)
    check_grads(linalg.det, [wf.tensor(x)])
    check_grads(linalg.det, [wf.tensor(np.eye(3) * rank)])


def test_a_complete_qr_of_a_tall_matrix_says_why_it_has_no_derivative() -> None:
    x = wf.tensor(general(3, 2))
    with pytest.raises(Unsupported, match="not unique"):
        wf.grad(lambda x: linalg.qr(x, mode="complete").Q.sum())(x)


def test_one_matrix_with_a_batch_of_right_sides_is_factorised_once() -> None:
    a, b = general(3, 3), general(5, 3, 2)
    batched = wf.vmap(lambda b: linalg.solve(wf.tensor(a), b))
    close(batched(wf.tensor(b)), np.linalg.solve(a, b))
    graph = trace(lambda b: [batched(b)], [wf.tensor(b).type]).graph
    systems = [node for node in graph.nodes if node.primitive.name == "solve"]
    assert [node.operands[0].type.shape for node in systems] == [(3, 3)]


# --- mistakes ----------------------------------------------------------------------------------

WIDE = np.ones((2, 3), np.float32)
MISTAKES: dict[str, tuple[Callable[[], Any], type[Exception], str, str, str]] = {
    "an indefinite matrix": (
        lambda: linalg.cholesky(wf.tensor([[1.0, 2.0], [2.0, 1.0]])),
        ArgumentError, "cholesky", "a positive definite matrix", "wf.eye",
    ),
    "a singular matrix": (
        lambda: linalg.solve(wf.ones((2, 2)), wf.ones(2)),
        ArgumentError, "solve", "independent columns", "pinv",
    ),
    "a singular inverse": (
        lambda: linalg.inv(wf.ones((2, 2))), ArgumentError, "inv", "independent columns", "pinv",
    ),
    "a wide matrix": (
        lambda: linalg.det(wf.tensor(WIDE)), ShapeError, "det", "shape[-2] == ", "x.mT @ x",
    ),
    "a wide Hermitian matrix": (
        lambda: linalg.eigh(wf.tensor(WIDE)), ShapeError, "eigh", "shape[-2] == ", "x.mT @ x",
    ),
    "a vector": (
        lambda: linalg.qr(wf.ones(3)), ShapeError, "qr", "at least 2 axes", "reshape(1, -1)",
    ),
    "rows that differ": (
        lambda: linalg.solve(wf.tensor(np.eye(2)), wf.tensor(np.ones((3, 1)))),
        ShapeError, "solve", "a.shape[0] == b.shape[0]", "rows",
    ),
    "an unknown mode": (
        lambda: linalg.qr(wf.tensor(WIDE), mode="r"),
        ArgumentError, "qr", "'reduced'", "wf.linalg.qr",
    ),
    "an unknown norm": (
        lambda: linalg.matrix_norm(wf.tensor(WIDE), ord=3),
        ArgumentError, "matrix_norm", "'nuc'", "fro",
    ),
    "a norm by name": (
        lambda: linalg.vector_norm(wf.ones(3), ord="fro"),
        ArgumentError, "vector_norm", "a number", "ord=2",
    ),
    "a norm over three axes": (
        lambda: linalg.norm(wf.ones((2, 2, 2)), 2), ShapeError, "norm", "one or two axes", "axis=",
    ),
    "an axis too far": (
        lambda: linalg.vector_norm(wf.ones(3), axis=1),
        AxisError, "vector_norm", "from -1 to 0", "axis",
    ),
    "a fractional power": (
        lambda: linalg.matrix_power(wf.ones((2, 2)), 0.5),
        ArgumentTypeError, "matrix_power", "an integer", "int(n)",
    ),
    "vectors of four elements": (
        lambda: linalg.cross(wf.ones(4), wf.ones(4)), ShapeError, "cross", "== 3", "axis=",
    ),
    "boolean matrices": (
        lambda: linalg.matrix_power(wf.tensor(np.eye(2, dtype=bool)), 2),
        DTypeError, "matrix_power", "int8", "astype",
    ),
    "not a number": (
        lambda: linalg.svd(wf.tensor([[np.nan, 1.0], [1.0, 1.0]])),
        ArgumentError, "svd", "finite elements", "isfinite",
    ),
    "one matrix to multiply": (
        lambda: linalg.multi_dot([wf.ones((2, 2))]),
        ArgumentError, "multi_dot", "at least two", "[a, b, c]",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", MISTAKES)
def test_mistakes_are_answered_with_what_to_do(name: str) -> None:
    call, kind, op, expected, fix = MISTAKES[name]
    with pytest.raises(kind) as caught:
        call()
    error: Any = caught.value
    assert error.op == op
    assert expected in error.expected
    assert fix in error.fix
    assert error.got


@pytest.mark.parametrize(
    "matrix",
    [np.eye(3), np.zeros((3, 3)), np.diag([1.0, 1.0, 2.0]), np.ones((5, 5)), np.zeros((6, 6)),
     np.diag([1.0, 0.0, 0.0])],
    ids=["one", "zero", "equal", "rank 1", "large zero", "equal zeros"],
)  # fmt: skip
@pytest.mark.parametrize("order", [1, 2, 3, 4])
def test_every_derivative_of_a_determinant_is_right_at_equal_singular_values(
    matrix: np.ndarray, order: int
) -> None:
    size = len(matrix)
    direction = np.random.default_rng(size).standard_normal((size, size))
    line = np.linspace(-1, 1, size + 1)
    values = [np.linalg.det(matrix + t * direction) for t in line]
    coefficients = np.append(np.polynomial.polynomial.polyfit(line, values, size), [0.0] * 4)
    f = lambda t: wf.linalg.det(wf.tensor(matrix) + t * wf.tensor(direction))  # noqa: E731
    for _ in range(order):
        f = wf.grad(f)
    expected = coefficients[order] * math.factorial(order)
    assert f(wf.tensor(0.0, dtype="float64")).item() == pytest.approx(expected, abs=1e-8)
