"""Functions of matrices in compiled programs: natively, with the values of the reference."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import weft as wf
from weft.compiler.targets.cpu import lapack
from weft.core.dtypes import float32
from weft.ir.dispatch import apply
from weft.ops.determinants import adjugate, adjugate_slope

pytestmark = pytest.mark.skipif(
    lapack.routine_address("potrf", float32) is None, reason="NumPy's library is not found here"
)
Array = np.ndarray[Any, Any]
DTYPES = ["float16", "float32", "float64", "complex64", "complex128"]


def drawn(shape: tuple[int, ...], dtype: str) -> Array:
    generator = np.random.default_rng(7)
    x = generator.standard_normal(shape)
    return (x + 1j * generator.standard_normal(shape) if "complex" in dtype else x).astype(dtype)


def agrees(f: Callable[..., Any], *operands: wf.Tensor) -> None:
    """Eagerly, compiled and by reference it gives the same, and calls nothing back."""
    compiled = wf.jit(f)
    assert [each.name for each in compiled.explain(*operands).references] == []
    with wf.testing.checked_memory():
        found = compiled(*operands)
    with wf.settings.changed(eager="reference", compiler=False):
        wanted = f(*operands)
    eager = f(*operands)
    tuples = [each if isinstance(each, tuple) else (each,) for each in (found, eager, wanted)]
    for one, other, exact in zip(*tuples, strict=True):
        assert one.dtype is other.dtype is exact.dtype
        least = 1e-10 if exact.dtype.bits in (64, 128) and exact.dtype.name != "complex64" else 2e-4
        for each in (one, other):
            np.testing.assert_allclose(each.numpy(), exact.numpy(), rtol=least, atol=least)


def tensors(dtype: str, *shapes: tuple[int, ...]) -> list[wf.Tensor]:
    return [wf.tensor(drawn(shape, dtype)) for shape in shapes]


@pytest.mark.parametrize(
    ("shape", "dtype"),
    [((2, 3, 3, 5), dtype) for dtype in DTYPES]
    + [(shape, "complex64") for shape in ((1, 1), (4, 2), (0, 2), (3, 0), (0, 2, 2))],
)
def test_lu_and_pseudo_inverses(shape: tuple[int, ...], dtype: str) -> None:
    agrees(wf.linalg.lu, *tensors(dtype, shape))
    agrees(wf.linalg.pinv, *tensors(dtype, shape))


@pytest.mark.parametrize(
    ("shape", "dtype"),
    [((2, 4, 4), dtype) for dtype in DTYPES]
    + [(shape, "float32") for shape in ((1, 1), (0, 0), (0, 2, 2))],
)
def test_adjugates_and_their_slopes(shape: tuple[int, ...], dtype: str) -> None:
    agrees(lambda x: apply(adjugate, x), *tensors(dtype, shape))
    agrees(lambda x, t: apply(adjugate_slope, x, t), *tensors(dtype, shape, shape))


@pytest.mark.parametrize("unit", [False, True])
@pytest.mark.parametrize("lower", [False, True])
@pytest.mark.parametrize("shape", [(1, 1), (2, 4, 4), (0, 0)])
def test_complex_triangles(shape: tuple[int, ...], lower: bool, unit: bool) -> None:
    def f(a: wf.Tensor, b: wf.Tensor) -> wf.Tensor:
        return wf.linalg.solve_triangular(a, b, upper=not lower, unit_diagonal=unit)

    for dtype in ("complex64", "complex128"):
        a = drawn(shape, dtype) + 3 * np.eye(shape[-1], dtype=dtype)
        # the other triangle holds what must not be read
        a = np.where(np.tri(shape[-1]) == (0 if lower else 1), np.nan, a).astype(dtype)
        a[..., range(shape[-1]), range(shape[-1])] = 2.0 - 1.0j
        side = drawn((*shape[:-1], 3), dtype)
        compiled = wf.jit(f)(wf.tensor(a), wf.tensor(side)).numpy()
        np.testing.assert_allclose(compiled, f(wf.tensor(a), wf.tensor(side)).numpy(), rtol=1e-4)
        assert wf.jit(f).explain(wf.tensor(a), wf.tensor(side)).references == []


def test_a_complex_triangle_with_a_zero_on_its_diagonal_is_refused() -> None:
    f = wf.jit(lambda a, b: wf.linalg.solve_triangular(a, b))
    side = wf.tensor(np.ones((2, 1), "complex64"))
    with pytest.raises(wf.ArgumentError, match="singular"):
        f(wf.tensor(np.array([[1j, 1], [0, 0]], "complex64")), side)
    assert f(wf.tensor(np.array([[1j, 1], [0, 1j]], "complex64")), side).shape == (2, 1)


@pytest.mark.parametrize("dtype", ["float32", "complex64"])
@pytest.mark.parametrize("x", [np.zeros((3, 3)), np.ones((4, 4)), np.diag([2.0, 0.0, 1.0])])
def test_singular_matrices(x: Array, dtype: str) -> None:
    matrix = wf.tensor(x.astype(dtype))
    agrees(wf.linalg.lu, matrix)
    agrees(wf.linalg.pinv, matrix)
    agrees(lambda x: apply(adjugate, x), matrix)


def test_operands_that_are_views_or_computed() -> None:
    (x,) = tensors("float64", (2, 6, 4))
    agrees(lambda x: wf.linalg.lu(x.mT), x)
    agrees(lambda x: wf.linalg.pinv(x[:, ::2] * 2), x)
    agrees(wf.linalg.lu, x.mT)
    agrees(wf.linalg.pinv, x[:, 1::2, ::-1])


def test_factors_of_lu_make_up_the_matrix() -> None:
    for dtype in ("float64", "complex128"):
        x = drawn((3, 7, 5), dtype)
        p, lower, upper = (each.numpy() for each in wf.jit(wf.linalg.lu)(wf.tensor(x)))
        np.testing.assert_allclose(p @ lower @ upper, x, atol=1e-12)
        np.testing.assert_array_equal(np.sort(p, axis=-1)[..., -1], 1)
        assert np.abs(np.tril(lower, -1)).max() <= np.sqrt(2.0) + 1e-12


def test_what_a_pseudo_inverse_leaves_out_depends_on_its_limit() -> None:
    x = wf.tensor(np.diag([1.0, 1e-3, 0.0]))
    for rtol in (1e-5, 1e-2):
        agrees(lambda x, rtol=rtol: wf.linalg.pinv(x, rtol=rtol), x)


def test_derivatives_through_native_functions() -> None:
    (x,) = tensors("float64", (3, 3))

    def loss(x: wf.Tensor) -> wf.Tensor:
        _, lower, upper = wf.linalg.lu(x)
        return lower.sum() + (upper**2).sum() + wf.linalg.pinv(x[:2]).sum() + wf.linalg.det(x)

    compiled = wf.jit(wf.grad(loss))(x).numpy()
    np.testing.assert_allclose(compiled, wf.grad(loss)(x).numpy(), rtol=1e-8)


def test_large_adjugates_are_left_to_the_reference() -> None:
    (x, t) = tensors("float32", (70, 70), (70, 70))
    found = wf.jit(lambda x, t: apply(adjugate_slope, x, t)).explain(x, t)
    assert [each.name for each in found.references] == ["adjugate_slope"]


def test_a_decomposition_that_does_not_converge_is_refused() -> None:
    f = wf.jit(wf.linalg.pinv)
    with pytest.raises(wf.ArgumentError, match="did not converge"):
        f(wf.tensor(np.full((2, 2), np.nan)))
