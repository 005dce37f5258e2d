"""Fourier transforms: values by NumPy, adjoints of half spectra, arguments and mistakes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import weft as wf
from weft.core.errors import ArgumentError, ArgumentTypeError, AxisError, DTypeError, ShapeError
from weft.testing import check_grads

REAL_ONLY = {"rfft", "ihfft", "rfftn"}
ONE_AXIS = ["fft", "ifft", "rfft", "irfft", "hfft", "ihfft"]
MANY_AXES = ["fftn", "ifftn", "rfftn", "irfftn"]
NORMS = ["backward", "ortho", "forward"]


def signal(*shape: int, dtype: Any = np.complex64) -> np.ndarray[Any, Any]:
    generator = np.random.default_rng(sum(shape))
    x = generator.normal(size=shape)
    if np.dtype(dtype).kind == "c":
        x = x + 1j * generator.normal(size=shape)
    return x.astype(dtype)


def operand(name: str, *shape: int, double: bool = False) -> np.ndarray[Any, Any]:
    kinds = ("float64", "complex128") if double else ("float32", "complex64")
    return signal(*shape, dtype=kinds[name not in REAL_ONLY])


def agree(found: Any, expected: Any) -> None:
    assert found.numpy().dtype == expected.dtype
    np.testing.assert_allclose(found.numpy(), expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("name", ONE_AXIS)
@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize(("n", "axis"), [(None, -1), (4, 0), (7, 1), (1, -1), (8, -2)])
def test_transforms_of_one_axis_are_numpys(name: str, norm: str, n: int | None, axis: int) -> None:
    x = operand(name, 5, 6)
    found = getattr(wf.fft, name)(wf.tensor(x), n=n, axis=axis, norm=norm)
    agree(found, getattr(np.fft, name)(x, n=n, axis=axis, norm=norm))


@pytest.mark.parametrize("name", MANY_AXES)
@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize(
    ("s", "axes"),
    [(None, None), ((4, 3), (0, 2)), ((2, 7), (-1, 0)), (None, (1,)), ((5, -1), (1, 2))],
)
def test_transforms_of_many_axes_are_numpys(name: str, norm: str, s: Any, axes: Any) -> None:
    x = operand(name, 3, 4, 5)
    if s is not None and -1 in s and name == "irfftn":
        s = (5, 8)
    found = getattr(wf.fft, name)(wf.tensor(x), s=s, axes=axes, norm=norm)
    agree(found, getattr(np.fft, name)(x, s=s, axes=axes, norm=norm))


@pytest.mark.parametrize("norm", NORMS)
def test_real_spectra_of_many_axes_are_those_of_one_axis_after_another(norm: str) -> None:
    x = signal(3, 4, 5)
    expected = np.fft.hfft(np.fft.fftn(x, axes=(0, 1), norm=norm), axis=2, norm=norm)
    found = wf.fft.hfftn(wf.tensor(x), norm=norm)
    agree(found, expected.astype(np.float32))
    half = wf.fft.ihfftn(found, norm=norm)
    again = wf.fft.hfftn(half, s=(3, 4, 8), norm=norm)
    np.testing.assert_allclose(again.numpy(), found.numpy(), rtol=1e-4, atol=1e-4)


def test_sizes_alone_name_the_last_axes() -> None:
    x = signal(3, 4, 5)
    agree(wf.fft.fftn(wf.tensor(x), s=(2, 6)), np.fft.fftn(x, s=(2, 6), axes=(1, 2)))


@pytest.mark.parametrize("name", ONE_AXIS + MANY_AXES)
def test_double_precision_is_kept(name: str) -> None:
    x = operand(name, 4, 6, double=True)
    agree(getattr(wf.fft, name)(wf.tensor(x)), getattr(np.fft, name)(x))


@pytest.mark.parametrize("kind", ["float16", "bfloat16", "int32", "bool"])
def test_other_dtypes_are_transformed_in_single_precision(kind: str) -> None:
    x = wf.ones((4,)).astype(kind)
    assert wf.fft.fft(x).dtype is wf.complex64
    assert wf.fft.rfft(x).tolist() == [4, 0, 0]


@pytest.mark.parametrize("name", ONE_AXIS)
@pytest.mark.parametrize("n", [None, 3, 6, 9])
def test_derivatives_survive_padding_and_cutting(name: str, n: int | None) -> None:
    x = operand(name, 2, 5, double=True)
    check_grads(lambda x: getattr(wf.fft, name)(x, n=n), [wf.tensor(x)])


@pytest.mark.parametrize("name", MANY_AXES)
def test_derivatives_of_many_axes(name: str) -> None:
    x = operand(name, 2, 3, 4, double=True)
    check_grads(lambda x: getattr(wf.fft, name)(x, norm="ortho"), [wf.tensor(x)])


def test_the_energy_of_a_signal_is_that_of_its_spectrum() -> None:
    x = wf.tensor(signal(6, dtype=np.float64))

    def energy(x: Any) -> Any:
        spectrum = wf.fft.fft(x, norm="ortho")
        return wf.real(spectrum * wf.conj(spectrum)).sum()

    np.testing.assert_allclose(wf.grad(energy)(x).numpy(), 2 * x.numpy(), atol=1e-12)


def test_batches_of_transforms_agree_with_a_stack() -> None:
    x = signal(3, 4, 5)
    found = wf.vmap(lambda x: wf.fft.fft(x, axis=0), in_axes=1)(wf.tensor(x))
    agree(found, np.fft.fft(np.moveaxis(x, 1, 0), axis=1))


@pytest.mark.parametrize("n", [1, 2, 5, 8])
@pytest.mark.parametrize("d", [1.0, 0.25])
def test_frequencies_are_numpys(n: int, d: float) -> None:
    agree(wf.fft.fftfreq(n, d=d), np.fft.fftfreq(n, d).astype(np.float32))
    agree(wf.fft.rfftfreq(n, d=d, dtype="float64"), np.fft.rfftfreq(n, d))


@pytest.mark.parametrize("axes", [None, 0, (0, 1), -1])
@pytest.mark.parametrize("shape", [(4, 5), (1, 3), (0, 2)])
def test_shifts_are_numpys_and_undo_each_other(shape: tuple[int, ...], axes: Any) -> None:
    x = np.arange(np.prod(shape)).reshape(shape)
    shifted = wf.fft.fftshift(wf.tensor(x), axes=axes)
    assert shifted.tolist() == np.fft.fftshift(x, axes).tolist()
    assert wf.fft.ifftshift(shifted, axes=axes).tolist() == x.tolist()


MISTAKES: dict[str, tuple[Callable[[], Any], type[Exception], str, str, str]] = {
    "an unknown norm": (
        lambda: wf.fft.fft(wf.ones(4), norm="max"), ArgumentError, "fft", "'ortho'", "leave it out",
    ),
    "a length of zero": (
        lambda: wf.fft.fft(wf.ones(4), n=0), ArgumentError, "fft", "at least 1", "leave n out",
    ),
    "a fractional length": (
        lambda: wf.fft.rfft(wf.ones(4), n=2.5), ArgumentTypeError, "rfft", "an integer", "int(n)",
    ),
    "an axis too far": (
        lambda: wf.fft.ifft(wf.ones(4), axis=1), AxisError, "ifft", "from -1 to 0", "axis",
    ),
    "an axis named twice": (
        lambda: wf.fft.fftn(wf.ones((4, 4)), axes=(0, -2)), AxisError, "fftn", "integer", "axis",
    ),
    "more sizes than axes": (
        lambda: wf.fft.fftn(wf.ones(4), s=(4, 4)),
        AxisError, "fftn", "at most 1", "one size per axis",
    ),
    "fewer sizes than axes": (
        lambda: wf.fft.fftn(wf.ones((4, 4)), s=(4,), axes=(0, 1)),
        ArgumentError, "fftn", "one size per axis", "one axis per size",
    ),
    "no elements": (
        lambda: wf.fft.fft(wf.ones(0)), ShapeError, "fft", "at least 1 element", "pad",
    ),
    "one frequency": (
        lambda: wf.fft.irfft(wf.ones(1)), ArgumentError, "irfft", "at least 1", "n=1",
    ),
    "complex numbers for real ones": (
        lambda: wf.fft.rfft(wf.ones(4, dtype="complex64")), DTypeError, "rfft", "float32", "x.real",
    ),
    "integer frequencies": (
        lambda: wf.fft.fftfreq(4, dtype="int32"),
        DTypeError, "fftfreq", "floating-point", "float32",
    ),
    "no axis": (
        lambda: wf.fft.rfftn(wf.ones(4), axes=()), AxisError, "rfftn", "one axis", "leave axes out",
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
