"""Products whose operands are views of one array, or made by one kernel, in every kind of kernel.

What a product reads as a whole must not be made block by block with its rows. Sizes lie on both
sides of what decides whether an operand is packed, who divides the work, and how long a block is.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

import weft as wf

Function = Callable[[wf.Tensor], wf.Tensor]

VECTOR: dict[str, Function] = {
    "axes added": lambda v: v[:, None] @ v[None, :],
    "reshaped": lambda v: v.reshape(-1, 1) @ v.reshape(1, -1),
    "the left one computed": lambda v: (v * 2)[:, None] @ v[None, :],
    "the right one computed": lambda v: v[:, None] @ (v + 1)[None, :],
    "both computed": lambda v: (v * 2)[:, None] @ (v + 1)[None, :],
    "both the same": lambda v: (v * 2)[:, None] @ (v * 2)[None, :],
    "an epilogue": lambda v: wf.abs((v * 2)[:, None] @ v[None, :] - v) * 3,
    "an epilogue of rows": lambda v: (v[:, None] @ v[None, :]) * v[:, None],
    "subscripts": lambda v: wf.einsum("i,j->ij", v * 2, v + 1),
    "flipped": lambda v: wf.flip(v)[:, None] @ v[None, :],
    "stacked": lambda v: wf.stack([v, v * 2])[:, :, None] @ wf.stack([v, v + 1])[:, None, :],
    "inner": lambda v: ((v * 2) @ (v + 1)) * 2 + 1,
}
SQUARE: dict[str, Function] = {
    "plain": lambda a: a @ a,
    "left transposed": lambda a: a.T @ a,
    "right transposed": lambda a: a @ a.T,
    "both computed": lambda a: (a * 2) @ (a + 1),
    "both computed, right transposed": lambda a: (a * 2) @ (a + 1).T,
    "both computed, left transposed": lambda a: (a * 2).T @ (a + 1),
    "an epilogue with the right one": lambda a: (a * 2) @ (a + 1) - (a + 1),
    "with a row": lambda a: (a * 2) @ a[0],
    "with a column": lambda a: (a * 2) @ (a + 1)[:, 3],
    "a row first": lambda a: (a[1] * 2) @ (a + 1),
    "few rows": lambda a: (a[:5] * 2) @ (a + 1),
    "few columns": lambda a: (a * 2) @ (a + 1)[:, :16],
    "rows of it": lambda a: a[:-3] @ a[3:].T,
    "stacked": lambda a: wf.stack([a, a * 2]) @ wf.stack([a + 1, a]),
    "twice": lambda a: wf.abs((a * 2) @ (a + 1)) @ (a * 2),
}
DTYPES = ["float32", "float64", "int32", "int64"]


def checked(f: Function, x: np.ndarray, tolerance: float) -> None:
    given = wf.tensor(x)
    with wf.settings.changed(compiler=False):
        wanted = f(given).numpy().astype(np.float64)
    found = wf.jit(f)(given).numpy().astype(np.float64)
    np.testing.assert_allclose(found, wanted, rtol=tolerance, atol=tolerance * np.abs(wanted).max())


def numbers(dtype: str, *shape: int) -> np.ndarray:
    return np.random.default_rng(7).integers(-9, 9, shape).astype(dtype)


@pytest.mark.slow
@pytest.mark.parametrize("n", [1, 16, 47, 48, 64, 304, 319, 320, 1024])
@pytest.mark.parametrize("form", VECTOR)
def test_an_outer_product_of_a_vector_with_itself(form: str, n: int) -> None:
    checked(VECTOR[form], numbers("float32", n), 1e-6)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("form", ["axes added", "both computed", "stacked"])
def test_an_outer_product_in_each_dtype(form: str, dtype: str) -> None:
    checked(VECTOR[form], numbers(dtype, 400), 1e-6)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "int8"])
def test_an_outer_product_of_short_elements(dtype: str) -> None:
    x = wf.tensor(numbers("int8", 400) % 4).astype(dtype)
    found = wf.jit(VECTOR["both computed"])(x).astype("float32").numpy()
    v = x.astype("float32").numpy()
    assert np.array_equal(found, np.outer(v * 2, v + 1))


@pytest.mark.slow
@pytest.mark.parametrize("n", [7, 48, 64, 192, 256, 272])
@pytest.mark.parametrize("form", SQUARE)
def test_a_product_of_a_matrix_with_itself(form: str, n: int) -> None:
    checked(SQUARE[form], numbers("float32", n, n), 1e-5)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("form", ["both computed", "both computed, right transposed"])
def test_a_product_of_one_kernels_results_in_each_dtype(form: str, dtype: str) -> None:
    checked(SQUARE[form], numbers(dtype, 192, 192) % 5, 1e-12 if dtype == "float64" else 1e-5)


def test_rows_of_one_array_are_multiplied() -> None:
    for n in (64, 320, 1024):
        a = numbers("float32", 3, n)
        checked(lambda a: wf.exp(a[0] * 0.1)[:, None] @ a[1][None, :] + a[2], a, 1e-6)


def test_sizes_that_change_from_call_to_call() -> None:
    f = wf.jit(lambda v: (v * 2)[:, None] @ (v + 1)[None, :])
    for n in (320, 336, 1, 0, 640):
        v = numbers("float32", n)
        np.testing.assert_array_equal(f(wf.tensor(v)).numpy(), np.outer(v * 2, v + 1))


@pytest.mark.parametrize("n", [1, 3, 100])
@pytest.mark.parametrize(
    "form",
    [
        lambda w: 0.5 * (w @ w),
        lambda w: (w @ w) / 3 + 1,
        lambda w: wf.exp((w @ w - 1) * 0.25),
        lambda w: (w @ w) * (w * 2) @ w,
        lambda w: wf.sum(w[None] @ w[:, None]) * 0.5,
        lambda w: wf.einsum("ij,ij->", w[None], w[None]) * 2,
        lambda w: 2 * wf.tensordot(w, w, axes=1) - w.sum(),
    ],
)
def test_an_inner_product_has_an_epilogue(form: Function, n: int) -> None:
    x = np.linspace(0, 0.3, n, dtype=np.float32)
    checked(form, x, 1e-6)
    checked(wf.grad(form), x, 1e-6)
