"""Factorisations and Fourier transforms in compiled programs: NumPy's loops, called natively."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from tests.compiler.stored_programs import check_stored
from tests.threads import same_result_for_all_threads

import weft as wf
from weft.compiler.targets.cpu import numpy_loops

LINALG, FOURIER = "numpy.linalg._umath_linalg", "numpy.fft._pocketfft_umath"
pytestmark = pytest.mark.skipif(
    numpy_loops.inner_loop(LINALG, "svd_s", "d->ddd") is None
    or numpy_loops.inner_loop(FOURIER, "fft", "Dd->D") is None,
    reason="NumPy's loops are not found here",
)
Array = np.ndarray[Any, Any]
Function = Callable[..., Any]
DTYPES = ["float32", "float64", "complex64", "complex128"]


def numbers(shape: tuple[int, ...], dtype: str, seed: int = 7) -> Array:
    generator = np.random.default_rng(seed)
    real = generator.standard_normal(shape)
    imaginary = generator.standard_normal(shape) if np.dtype(dtype).kind == "c" else 0
    return (real + 1j * imaginary if np.dtype(dtype).kind == "c" else real).astype(dtype)


def arrays_of(results: Any) -> list[Array]:
    return [each.numpy() for each in (results if isinstance(results, tuple) else (results,))]


def compiled_and_eager(f: Function, x: Array) -> tuple[list[Array], list[Array]]:
    """What the compiled function gives in checked memory, without calls back, and the eager one."""
    operand = wf.tensor(x)
    assert wf.jit(f).explain(operand).references == []
    with wf.testing.checked_memory():
        found = arrays_of(wf.jit(f)(operand))
    return found, arrays_of(f(operand))


def has_the_same_bits(f: Function, x: Array) -> None:
    for found, wanted in zip(*compiled_and_eager(f, x), strict=True):
        assert found.dtype == wanted.dtype
        np.testing.assert_array_equal(found, wanted)


# --- factorisations ------------------------------------------------------------------------------

OF_ANY = {
    "qr": wf.linalg.qr,
    "complete qr": lambda x: wf.linalg.qr(x, mode="complete"),
    "svd": lambda x: wf.linalg.svd(x, full_matrices=False),
    "full svd": wf.linalg.svd,
    "singular values": wf.linalg.svdvals,
}
OF_SQUARES = {
    "eig": wf.linalg.eig,
    "eigvals": wf.linalg.eigvals,
    "det": wf.linalg.det,
    "slogdet": wf.linalg.slogdet,
}


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", OF_ANY)
def test_factors_have_the_bits_of_the_reference(name: str, dtype: str) -> None:
    for shape in [(3, 3), (4, 2), (2, 3, 2, 4), (0, 2), (2, 0), (0, 3, 2)]:
        has_the_same_bits(OF_ANY[name], numbers(shape, dtype))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", OF_SQUARES)
def test_eigenvalues_and_determinants_have_the_bits_of_the_reference(name: str, dtype: str) -> None:
    for shape in [(3, 3), (5, 8, 8), (1, 1), (0, 0), (0, 3, 3)]:
        has_the_same_bits(OF_SQUARES[name], numbers(shape, dtype))


@pytest.mark.parametrize("dtype", DTYPES)
def test_hermitian_eigenvalues_agree_with_the_reference(dtype: str) -> None:
    for f in (wf.linalg.eigh, wf.linalg.eigvalsh):
        x = numbers((2, 5, 5), dtype)
        x = x + np.conj(np.swapaxes(x, -1, -2))
        found, wanted = compiled_and_eager(f, x)
        for one, other in zip(found, wanted, strict=True):
            np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("dtype", ["complex64", "complex128"])
def test_complex_systems_have_the_bits_of_the_reference(dtype: str) -> None:
    b = wf.tensor(numbers((2, 4, 3), dtype, seed=2))
    for f in (wf.linalg.inv, lambda a: wf.linalg.solve(a, b)):
        has_the_same_bits(f, numbers((2, 4, 4), dtype))


@pytest.mark.parametrize(
    ("f", "bad", "problem"),
    [
        (wf.linalg.svd, np.nan, "did not converge"),
        (wf.linalg.eig, np.nan, "did not converge"),
        (wf.linalg.eigvals, np.inf, "did not converge"),
    ],
)
@pytest.mark.parametrize("dtype", ["float32", "complex128"])
def test_what_does_not_converge_is_refused_as_by_the_reference(
    f: Function, bad: float, problem: str, dtype: str
) -> None:
    good = numbers((3, 3, 3), dtype)
    wrong = good.copy()
    wrong[1, 2, 0] = bad
    compiled = wf.jit(f)
    for _ in range(2):
        with pytest.raises(wf.ArgumentError, match=problem) as caught:
            compiled(wf.tensor(wrong))
        with pytest.raises(wf.ArgumentError) as eager:
            f(wf.tensor(wrong))
        assert str(caught.value).split("  at")[0] == str(eager.value).split("  at")[0]
        assert arrays_of(compiled(wf.tensor(good)))[0].shape[0] == 3


def test_singular_complex_matrices_are_refused_as_by_the_reference() -> None:
    with pytest.raises(wf.ArgumentError, match="singular"):
        wf.jit(wf.linalg.inv)(wf.ones((2, 2), dtype=wf.complex64))
    with pytest.raises(wf.ArgumentError, match="not positive definite"):
        wf.jit(wf.linalg.cholesky)(-wf.eye(2, dtype=wf.complex64))


def test_determinants_of_what_is_not_finite_are_those_of_the_reference() -> None:
    x = numbers((2, 3, 3), "float32")
    x[1, 1, 1] = np.nan
    has_the_same_bits(wf.linalg.slogdet, x)
    has_the_same_bits(wf.linalg.det, np.zeros((2, 2), np.float32))


# --- transforms ----------------------------------------------------------------------------------


def transforms(axis: int, length: int, norm: str) -> dict[str, tuple[Function, str]]:
    options = {"axis": axis, "norm": norm}
    return {
        "fft": (lambda x: wf.fft.fft(x, **options), "c"),
        "ifft": (lambda x: wf.fft.ifft(x, **options), "c"),
        "rfft": (lambda x: wf.fft.rfft(x, **options), "f"),
        "irfft": (lambda x: wf.fft.irfft(x, n=length, **options), "half"),
    }


@pytest.mark.parametrize("width", [32, 64])
@pytest.mark.parametrize("name", ["fft", "ifft", "rfft", "irfft"])
def test_transforms_agree_with_a_reference_in_double_precision(name: str, width: int) -> None:
    cases = [((1,), 0), ((9,), 0), ((3, 4), 1), ((3, 4), 0), ((2, 7, 3), 1), ((70, 97), 1)]
    cases += [((0, 4), 1), ((4, 0, 3), 0), ((1009,), 0), ((16, 240), 0)]
    for (shape, axis), norm in zip(cases, ["backward", "ortho", "forward"] * 4, strict=False):
        f, kind = transforms(axis, shape[axis], norm)[name]
        dtype = f"float{width}" if kind == "f" else f"complex{2 * width}"
        x = numbers(shape, dtype)
        if kind == "half":
            whole = numbers(shape, f"float{width}")
            x = np.fft.rfft(whole, axis=axis).astype(dtype)
        (found,), _ = compiled_and_eager(f, x)
        exact = f(wf.tensor(x.astype("float64" if kind == "f" else "complex128"))).numpy()
        assert found.dtype.itemsize * 8 == (width if name == "irfft" else 2 * width)
        rough = (2e-6 if width == 32 else 4e-15) * np.abs(exact).max(initial=1)
        np.testing.assert_allclose(found, exact, rtol=0, atol=rough)


def test_transforms_along_several_axes_have_the_bits_of_the_reference() -> None:
    x = numbers((3, 4, 5), "complex128")
    has_the_same_bits(wf.fft.fftn, x)
    has_the_same_bits(lambda z: wf.fft.ifftn(z, axes=(2, 0), norm="ortho"), x)


def test_half_of_a_spectrum_of_sizes_that_are_symbols() -> None:
    there_and_back = wf.jit(lambda x: wf.fft.irfft(wf.fft.rfft(x) * 2, n=x.shape[-1]))
    for length in (6, 7, 8, 5, 12):
        x = numbers((2, length), "float64")
        np.testing.assert_allclose(there_and_back(wf.tensor(x)).numpy(), 2 * x, rtol=1e-12)


# --- programs ------------------------------------------------------------------------------------


def test_bits_do_not_depend_on_the_number_of_threads() -> None:
    x = wf.tensor(numbers((64, 24, 24), "float32"))
    same_result_for_all_threads(
        lambda: wf.jit(lambda x: (wf.linalg.svd(x), wf.fft.rfft(x, axis=1)))(x)
    )


def test_derivatives_and_batches_agree_with_eager_ones() -> None:
    def loss(x: wf.Tensor) -> wf.Tensor:
        q, r = wf.linalg.qr(x)
        s = wf.linalg.svdvals(x @ q)
        return (r * r).sum() + wf.log(s).sum() + wf.linalg.slogdet(x)[1] + wf.linalg.det(q @ x)

    for f in (wf.grad(loss), lambda x: wf.vmap(loss)(wf.stack([x, x + 1]))):
        x = wf.tensor(numbers((4, 4), "float64"))
        np.testing.assert_allclose(wf.jit(f)(x).numpy(), f(x).numpy(), rtol=1e-8)


@pytest.mark.slow
def test_programs_that_factorise_and_transform_are_stored_on_disk(tmp_path: Any) -> None:
    program = (
        "import weft as wf, numpy as np\n"
        "f = wf.jit(lambda a: (wf.linalg.svdvals(a), wf.fft.rfft(a), wf.linalg.qr(a)[1]))\n"
        "a = wf.tensor(np.diag([4.0, 9.0, 16.0]))\n"
        "values, half, r = f(a)\n"
        "made, = f._compiled.values()\n"
        "right = np.allclose(half.numpy(), np.fft.rfft(a.numpy())) and values.tolist()[0] == 16\n"
        "print(type(made.program).__name__, right)\n"
    )
    check_stored(program, tmp_path)


def test_what_is_not_there_is_not_found() -> None:
    assert numpy_loops.inner_loop("numpy.no_such_module", "fft", "Dd->D") is None
    assert numpy_loops.inner_loop(FOURIER, "no_such_function", "Dd->D") is None
    assert numpy_loops.inner_loop(FOURIER, "fft", "ii->i") is None
