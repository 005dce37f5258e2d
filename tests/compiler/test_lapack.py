"""Linear systems in compiled programs: native launches of LAPACK that agree with the reference."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from tests.compiler.stored_programs import check_stored
from tests.threads import same_result_for_all_threads

import weft as wf
from weft.compiler.targets.cpu import lapack
from weft.core.dtypes import float32

pytestmark = pytest.mark.skipif(
    lapack.routine_address("potrf", float32) is None, reason="NumPy's library is not found here"
)
Array = np.ndarray[Any, Any]
SHAPES = [(1, 1), (3, 3), (5, 8, 8), (2, 3, 33, 33), (130, 130), (0, 0), (0, 3, 3)]


def matrices(shape: tuple[int, ...], dtype: Any) -> Array:
    """Well-conditioned, with pivots that are not on the diagonal."""
    drawn = np.random.default_rng(3).standard_normal(shape)
    return (drawn + shape[-1] * np.roll(np.eye(shape[-1]), 1, axis=0)).astype(dtype)


def symmetric(shape: tuple[int, ...], dtype: Any) -> Array:
    drawn = np.random.default_rng(4).standard_normal(shape)
    whole = drawn @ np.swapaxes(drawn, -1, -2) + shape[-1] * np.eye(shape[-1])
    return whole.astype(dtype)


def right_sides(shape: tuple[int, ...], dtype: Any, columns: int) -> Array:
    return np.random.default_rng(5).standard_normal((*shape[:-1], columns)).astype(dtype)


def calls_back(f: Callable[..., Any], *operands: wf.Tensor) -> list[str]:
    return [each.name for each in wf.jit(f).explain(*operands).references]


def agrees(f: Callable[..., Any], *arrays: Array) -> None:
    """The compiled function gives what the reference does, and calls nothing back."""
    operands = [wf.tensor(array) for array in arrays]
    assert calls_back(f, *operands) == []
    with wf.testing.checked_memory():
        found = wf.jit(f)(*operands).numpy()
    with wf.settings.changed(compiler=False):
        wanted = wf.jit(f)(*operands).numpy()
    rough = arrays[0].dtype == np.float32
    np.testing.assert_allclose(
        found, wanted, rtol=1e-3 if rough else 1e-9, atol=1e-4 if rough else 1e-11
    )


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("shape", SHAPES)
def test_systems_agree_with_the_reference(shape: tuple[int, ...], dtype: str) -> None:
    agrees(wf.linalg.cholesky, symmetric(shape, dtype))
    agrees(wf.linalg.inv, matrices(shape, dtype))
    for columns in (0, 1, 5):
        agrees(wf.linalg.solve, matrices(shape, dtype), right_sides(shape, dtype, columns))


@pytest.mark.parametrize("unit", [False, True])
@pytest.mark.parametrize("lower", [False, True])
@pytest.mark.parametrize("shape", [(4, 4), (3, 7, 7), (0, 0)])
def test_triangles_agree_with_the_reference(
    shape: tuple[int, ...], lower: bool, unit: bool
) -> None:
    def f(a: wf.Tensor, b: wf.Tensor) -> wf.Tensor:
        return wf.linalg.solve_triangular(a, b, upper=not lower, unit_diagonal=unit)

    # the other triangle holds what must not be read
    a = symmetric(shape, "float64") / 10
    a = np.where(np.tri(shape[-1]) == (0 if lower else 1), np.nan, a)
    a[..., range(shape[-1]), range(shape[-1])] = 2.0
    agrees(f, a, right_sides(shape, "float64", 3))


def test_only_the_lower_triangle_is_decomposed() -> None:
    a = symmetric((5, 5), "float64")
    whole = wf.jit(wf.linalg.cholesky)(wf.tensor(a)).numpy()
    assert np.array_equal(np.triu(whole, 1), np.zeros((5, 5)))
    np.testing.assert_allclose(whole @ whole.T, a, rtol=1e-12)


@pytest.mark.parametrize(
    ("f", "bad", "problem"),
    [
        (wf.linalg.cholesky, -np.eye(3), "not positive definite"),
        (wf.linalg.inv, np.ones((3, 3)), "singular"),
        (lambda a: wf.linalg.solve(a, a), np.zeros((3, 3)), "singular"),
        (lambda a: wf.linalg.solve_triangular(a, a), np.tri(3, k=-1), "singular"),
    ],
)
def test_what_has_no_solution_is_refused_as_by_the_reference(
    f: Callable[..., Any], bad: Array, problem: str
) -> None:
    good = np.eye(3) * 2
    stack = wf.tensor(np.stack([good, good, bad]).astype(np.float32))
    compiled = wf.jit(f)
    with pytest.raises(wf.ArgumentError, match=problem):
        compiled(stack)
    assert compiled(wf.tensor(np.stack([good] * 3).astype(np.float32))).shape == (3, 3, 3)


def test_16_bit_floats_are_computed_in_float32() -> None:
    x = wf.tensor(np.eye(3)).astype("float16")
    assert calls_back(wf.linalg.inv, x) == []
    found = wf.jit(wf.linalg.inv)(x).numpy()
    np.testing.assert_array_equal(found, np.eye(3))


def test_derivatives_and_operands_that_are_computed() -> None:
    def loss(a: wf.Tensor, b: wf.Tensor) -> wf.Tensor:
        factor = wf.linalg.cholesky(a @ a.T + wf.eye(6) * 3)
        return (wf.linalg.solve(wf.exp(factor), b * 2) ** 2).sum() + wf.linalg.inv(factor).sum()

    a, b = wf.tensor(matrices((6, 6), "float64") / 6), wf.tensor(right_sides((6, 6), "float64", 2))
    found = wf.jit(wf.grad(loss, argnums=(0, 1)))(a, b)
    wanted = wf.grad(loss, argnums=(0, 1))(a, b)
    for one, other in zip(found, wanted, strict=True):
        np.testing.assert_allclose(one.numpy(), other.numpy(), rtol=1e-8, atol=1e-10)


def test_sizes_that_are_symbols() -> None:
    f = wf.jit(wf.linalg.solve)
    for order in (2, 3, 5, 4):
        a, b = matrices((order, order), "float64"), right_sides((order, order), "float64", 2)
        found = f(wf.tensor(a), wf.tensor(b)).numpy()
        np.testing.assert_allclose(found, np.linalg.solve(a, b), rtol=1e-9)


def test_bits_do_not_depend_on_the_number_of_threads() -> None:
    a, b = matrices((64, 24, 24), "float32"), right_sides((64, 24, 24), "float32", 24)
    same_result_for_all_threads(lambda: wf.jit(wf.linalg.solve)(wf.tensor(a), wf.tensor(b)))


@pytest.mark.slow
def test_programs_that_solve_are_stored_on_disk(tmp_path: Any) -> None:
    program = (
        "import weft as wf, numpy as np\n"
        "f = wf.jit(lambda a: wf.linalg.inv(wf.linalg.cholesky(a) + 1))\n"
        "a = wf.tensor(np.diag([4.0, 9.0, 16.0]))\n"
        "found = f(a).numpy()\n"
        "made, = f._compiled.values()\n"
        "wanted = np.linalg.inv(np.diag([2.0, 3.0, 4.0]) + 1)\n"
        "print(type(made.program).__name__, np.allclose(found, wanted))\n"
    )
    check_stored(program, tmp_path)
