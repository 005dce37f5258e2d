"""Rounding to 8-bit floats: to the bit as ml_dtypes has it, and never a wrong finite number."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

import weft as wf
from weft.core.errors import DTypeError
from weft.ir.dispatch import apply
from weft.ops.float8 import (
    E4M3,
    E5M2,
    FORMATS,
    codes_of,
    float8_scale,
    numbers_of,
    round_cotangent,
    round_to_float8,
)

Array = np.ndarray[Any, Any]
formats = pytest.mark.parametrize("format", FORMATS)
ways = pytest.mark.parametrize("compiled", [False, True], ids=["eager", "jit"])
LARGEST = {E4M3: 448.0, E5M2: 57344.0}


def every_short_float() -> Array:
    """Every bfloat16 and float16, and numbers between them, as float32."""
    short = np.arange(1 << 16, dtype=np.uint16)
    random = np.random.default_rng(0)
    drawn = random.normal(size=1 << 16) * np.exp2(random.integers(-20, 20, 1 << 16))
    words = random.integers(0, 1 << 32, 1 << 16, dtype=np.uint64).astype(np.uint32)
    parts = short.view(ml_dtypes.bfloat16), short.view(np.float16), drawn, words.view(np.float32)
    return np.concatenate([part.astype(np.float32) for part in parts])


def rounded(x: Array, format: str) -> Array:
    result: Array = round_to_float8(wf.tensor(x), format).astype("float32").numpy()
    return result


# Codes and numbers.


@ways
@formats
def test_codes_are_those_of_the_nearest_numbers(format: str, compiled: bool) -> None:
    x = every_short_float()
    with np.errstate(all="ignore"):
        nearest = x.astype(FORMATS[format].numpy)
    # NaN, and what is too large for a format without infinities, has one code
    wanted = np.where(np.isnan(nearest), FORMATS[format].nan_code, nearest.view(np.uint8))
    f = wf.jit(codes_of, static_argnames=("format",)) if compiled else codes_of
    np.testing.assert_array_equal(f(wf.tensor(x), wf.tensor(1.0), format).numpy(), wanted)


@ways
@formats
def test_every_code_stands_for_its_number(format: str, compiled: bool) -> None:
    codes = np.arange(256, dtype=np.uint8)
    wanted = codes.view(FORMATS[format].numpy).astype(np.float32) / 4
    f = wf.jit(numbers_of, static_argnames=("format",)) if compiled else numbers_of
    found = f(wf.tensor(codes), wf.tensor(0.25), format)
    assert found.dtype is wf.bfloat16  # which holds each of them
    np.testing.assert_array_equal(found.astype("float32").numpy(), wanted)


@ways
@formats
def test_a_scale_brings_the_highest_magnitude_just_below_the_highest_number(
    format: str, compiled: bool
) -> None:
    words = np.random.default_rng(1).integers(0, 0x7F800000, 1 << 14).astype(np.uint32)
    highest = np.concatenate([words.view(np.float32), np.float32([1.75, 1.7500001, 1.0, 448.0])])

    def scales(x: wf.Tensor) -> tuple[wf.Tensor, ...]:
        return tuple(apply(float8_scale, x, format=format, inverse=each) for each in (False, True))

    f = wf.jit(scales) if compiled else scales
    scale, inverse = (each.numpy().astype(np.float64) for each in f(wf.tensor(highest)))
    np.testing.assert_array_equal(scale * inverse, 1)
    np.testing.assert_array_equal(np.frexp(scale)[0], 0.5)
    scaled = highest * scale
    assert (scaled <= LARGEST[format]).all()
    assert ((scaled > LARGEST[format] / 2) | (scale == 2.0**100)).all()


def test_only_floats_are_rounded() -> None:
    with pytest.raises(DTypeError, match="8 bits") as caught:
        codes_of(wf.tensor([1, 2]), wf.tensor(1.0), E4M3)
    assert "float32" in caught.value.expected
    with pytest.raises(DTypeError, match="float32"):
        apply(float8_scale, wf.tensor([1]), format=E4M3, inverse=False)


# Whole tensors.


@formats
def test_numbers_are_off_by_at_most_half_a_step(format: str) -> None:
    x = np.random.default_rng(2).normal(size=4096).astype(np.float32)
    digits = FORMATS[format].digits
    error = np.abs(rounded(x, format) - x)
    # below the normal numbers steps are equal
    smallest = np.abs(x).max() / LARGEST[format] * 2.0 ** (1 - FORMATS[format].bias) * 2
    assert (error <= 2.0 ** -(digits + 1) * np.maximum(np.abs(x), smallest)).all()
    assert error.max() > 0


@formats
def test_rounding_again_and_powers_of_two_change_nothing(format: str) -> None:
    x = np.random.default_rng(3).normal(size=(64, 32)).astype(np.float32)
    once = rounded(x, format)
    np.testing.assert_array_equal(rounded(once, format), once)
    for power in (-60, -3, 5, 100):
        factor = np.float32(2.0**power)
        np.testing.assert_array_equal(rounded(x * factor, format), once * factor)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
@formats
def test_each_dtype_is_rounded_once(format: str, dtype: str) -> None:
    x = wf.tensor(np.random.default_rng(4).normal(size=999).astype(np.float32)).astype(dtype)
    wide = x.astype("float32").numpy()
    np.testing.assert_array_equal(
        round_to_float8(x, format).astype("float32").numpy(), rounded(wide, format)
    )


@ways
@formats
def test_nan_and_infinity_stay_and_touch_nothing_else(format: str, compiled: bool) -> None:
    clean = np.array([[1.0, -0.3, 3.3], [0.0, -0.0, 0.01]], np.float32)
    f = wf.jit(round_to_float8, static_argnames=("format",)) if compiled else round_to_float8
    for odd in (np.nan, np.inf, -np.inf):
        x = np.append(clean, [[odd, odd, odd]], 0).astype(np.float32)
        found = f(wf.tensor(x), format).astype("float32").numpy()
        np.testing.assert_array_equal(found[:2], rounded(clean, format))
        stays = format == E5M2 and np.isinf(odd)
        np.testing.assert_array_equal(found[2], [odd if stays else np.nan] * 3)
        alone = f(wf.tensor(x[2:]), format).astype("float32").numpy()
        np.testing.assert_array_equal(alone, found[2:])


@formats
def test_zeros_the_smallest_and_the_largest_are_not_lost(format: str) -> None:
    np.testing.assert_array_equal(rounded(np.zeros((2, 3), np.float32), format), 0)
    for size in (1e-28, 2.0**-92, 1.0, 2.0**127 * 1.75):
        x = np.float32(size) * np.array([1, -0.5, 0.25], np.float32)
        found = rounded(x, format)
        np.testing.assert_allclose(found, x, rtol=2.0 ** -(FORMATS[format].digits + 1))
    # below are steps of the highest scale, and zero
    assert (np.abs(rounded(np.float32([1e-33, -1e-38]), format)) < 1e-32).all()


def test_a_tensor_without_elements_has_no_scale() -> None:
    assert round_to_float8(wf.zeros((0, 3)), E4M3).type == wf.spec("bfloat16", (0, 3))


@ways
def test_vmap_has_a_scale_for_each_example(compiled: bool) -> None:
    x = np.random.default_rng(5).normal(size=(5, 4, 3)).astype(np.float32)
    x *= 10.0 ** np.arange(5, dtype=np.float32)[:, None, None]
    for axis in (0, 1, 2):
        f = wf.vmap(lambda each: round_to_float8(each, E4M3), in_axes=axis, out_axes=axis)
        found = (wf.jit(f) if compiled else f)(wf.tensor(x)).astype("float32").numpy()
        loop = [rounded(each, E4M3) for each in np.moveaxis(x, axis, 0)]
        np.testing.assert_array_equal(found, np.stack(loop, axis))


# Derivatives.


@ways
def test_the_derivative_is_as_if_nothing_were_rounded(compiled: bool) -> None:
    x = wf.tensor(np.random.default_rng(6).normal(size=8).astype(np.float32))
    weights = wf.arange(8.0)

    def f(x: wf.Tensor) -> wf.Tensor:
        return (round_to_float8(x, E4M3).astype("float32") * weights).sum()

    gradient = wf.jit(wf.grad(f)) if compiled else wf.grad(f)
    np.testing.assert_array_equal(gradient(x).numpy(), weights.numpy())
    _, moved = wf.jvp(lambda x: round_to_float8(x, E4M3), (x,), (weights,))
    np.testing.assert_array_equal(moved.astype("float32").numpy(), weights.numpy())


@ways
def test_a_second_derivative_is_that_of_what_surrounds_it(compiled: bool) -> None:
    def f(x: wf.Tensor) -> wf.Tensor:
        return (round_to_float8(x, E4M3).astype("float32") ** 3).sum()

    second = wf.grad(lambda x: wf.grad(f)(x).sum())
    x = wf.tensor([1.0, -0.25, 3.5])
    np.testing.assert_array_equal(
        (wf.jit(second) if compiled else second)(x).numpy(), 6 * x.numpy()
    )


@ways
def test_a_cotangent_is_rounded_where_it_passes(compiled: bool) -> None:
    weights = np.random.default_rng(7).normal(size=64).astype(np.float32)

    def f(x: wf.Tensor) -> wf.Tensor:
        return (round_cotangent(x * 2.0, E5M2) * wf.tensor(weights)).sum()

    gradient = wf.jit(wf.grad(f)) if compiled else wf.grad(f)
    np.testing.assert_array_equal(gradient(wf.ones(64)).numpy(), 2 * rounded(weights, E5M2))
    assert not np.array_equal(rounded(weights, E5M2), weights)
    _, moved = wf.jvp(lambda x: round_cotangent(x, E5M2), (wf.ones(3),), (wf.tensor(weights[:3]),))
    np.testing.assert_array_equal(moved.numpy(), weights[:3])
