"""Reductions, running forms and statistics: values by NumPy, hard places, arguments, mistakes."""

from __future__ import annotations

from collections.abc import Callable
from itertools import product
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import weft as wf
from weft.core.errors import ArgumentError, AxisError, DTypeError, ShapeError, WeftError
from weft.testing import check_grads

INF, NAN = float("inf"), float("nan")
CUBE = np.random.default_rng(0).normal(size=(2, 3, 4)).astype(np.float32)
NUMPY = {
    "sum": np.sum,
    "prod": np.prod,
    "max": np.max,
    "min": np.min,
    "mean": np.mean,
    "var": np.var,
    "std": np.std,
    "any": np.any,
    "all": np.all,
    "median": np.median,
    "nansum": np.nansum,
    "nanmean": np.nanmean,
}


def gradient(f: Callable[..., Any], x: Any) -> list[Any]:
    return wf.grad(lambda t: f(t).sum())(wf.asarray(np.asarray(x))).tolist()


def agree(found: Any, expected: Any) -> None:
    np.testing.assert_allclose(found.numpy(), expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", NUMPY)
@pytest.mark.parametrize("axis", [None, 0, -1, (0, 2), ()])
@pytest.mark.parametrize("keepdims", [False, True])
def test_reductions_agree_with_numpy(name: str, axis: Any, keepdims: bool) -> None:
    if name == "median" and axis == ():
        pytest.skip("NumPy does not take the median over no axes")
    found = getattr(wf, name)(wf.asarray(CUBE), axis=axis, keepdims=keepdims)
    agree(found, NUMPY[name](CUBE, axis=axis, keepdims=keepdims))


@pytest.mark.parametrize("name", ["argmax", "argmin"])
@pytest.mark.parametrize("axis", [None, 0, -1])
@pytest.mark.parametrize("keepdims", [False, True])
def test_positions_agree_with_numpy(name: str, axis: Any, keepdims: bool) -> None:
    found = getattr(wf, name)(wf.asarray(CUBE), axis=axis, keepdims=keepdims)
    expected = getattr(np, name)(CUBE, axis=axis, keepdims=keepdims)
    assert found.tolist() == expected.tolist()
    assert found.dtype is wf.int64


@pytest.mark.parametrize(
    ("given", "summed", "averaged"),
    [
        ("bool", "int64", "float32"),
        ("int8", "int64", "float32"),
        ("uint8", "uint64", "float32"),
        ("int64", "int64", "float32"),
        ("float16", "float16", "float16"),
        ("bfloat16", "bfloat16", "bfloat16"),
        ("float64", "float64", "float64"),
        ("complex64", "complex64", "complex64"),
    ],
)
def test_sums_are_made_in_64_bits_and_means_in_floats(
    given: str, summed: str, averaged: str
) -> None:
    x = wf.ones((3,)).astype(given)
    assert wf.sum(x).dtype.name == wf.prod(x).dtype.name == summed
    assert wf.cumulative_sum(x).dtype.name == summed
    assert wf.mean(x).dtype.name == averaged


def test_small_integers_do_not_overflow_in_a_sum() -> None:
    assert wf.sum(wf.asarray(np.array([200, 100], np.uint8))).item() == 300
    assert wf.sum(wf.asarray(np.array([200, 100], np.uint8)), dtype="uint8").item() == 44


def test_sixteen_bit_floats_are_added_in_float32() -> None:
    ones = wf.asarray(np.ones(4096, ml_dtypes.bfloat16))
    assert float(wf.sum(ones)) == 4096.0
    big = wf.asarray(np.full(100, 6e4, np.float16))
    assert float(wf.mean(big)) == pytest.approx(6e4, rel=1e-3)


def test_no_elements_have_a_sum_a_product_and_a_truth() -> None:
    empty = wf.zeros((0, 2))
    assert wf.sum(empty, axis=0).tolist() == [0.0, 0.0]
    assert wf.prod(empty, axis=0).tolist() == [1.0, 1.0]
    assert wf.any(empty, axis=0).tolist() == [False, False]
    assert wf.all(empty, axis=0).tolist() == [True, True]
    assert wf.logsumexp(empty, axis=0).tolist() == [-INF, -INF]
    assert np.isnan(wf.mean(empty, axis=0).numpy()).all()
    assert wf.max(empty, axis=1, keepdims=True).shape == (0, 1)


@pytest.mark.parametrize("name", ["max", "min", "argmax", "argmin", "median"])
def test_no_elements_have_no_extreme(name: str) -> None:
    with pytest.raises(ShapeError) as caught:
        getattr(wf, name)(wf.zeros((0, 2)), axis=0)
    assert caught.value.op == name
    assert caught.value.problem == "nothing to reduce: the tensor is empty along the axes"
    assert "f32[0, 2]" in caught.value.got
    assert caught.value.fix


def test_a_nan_makes_every_reduction_nan() -> None:
    x = wf.tensor([1.0, NAN, 2.0])
    for name in ("sum", "prod", "max", "min", "mean", "var", "std", "median", "logsumexp"):
        assert np.isnan(float(getattr(wf, name)(x))), name
    assert float(wf.nansum(x)) == 3.0
    assert float(wf.nanmean(x)) == 1.5


def test_truth_of_complex_numbers_looks_at_both_parts() -> None:
    assert wf.any(wf.tensor([0.0, 1j])).item() is True


def test_equal_extremes_share_the_derivative() -> None:
    assert gradient(wf.max, [1.0, 3.0, 3.0, 2.0]) == [0.0, 0.5, 0.5, 0.0]
    assert gradient(wf.min, [1.0, 3.0, 1.0, 2.0]) == [0.5, 0.0, 0.5, 0.0]


@pytest.mark.parametrize("zeros", [[], [1], [0, 2]])
def test_the_product_has_derivatives_at_zeros(zeros: list[int]) -> None:
    x = np.array([[2.0, -1.5, 0.5], [1.0, 3.0, 2.0]])
    x[0, zeros] = 0.0
    check_grads(lambda t: wf.prod(t, axis=1), [wf.asarray(x)], order=2)
    check_grads(lambda t: wf.prod(t), [wf.asarray(x)], order=2)
    check_grads(lambda t: wf.cumulative_prod(t, axis=1), [wf.asarray(x)], order=2)


def test_the_product_of_zeros_has_the_known_gradient() -> None:
    assert gradient(wf.prod, [2.0, 0.0, 3.0]) == [0.0, 6.0, 0.0]
    assert gradient(wf.prod, [2.0, 0.0, 0.0]) == [0.0, 0.0, 0.0]


def test_standard_deviation_has_a_gradient_where_nothing_varies() -> None:
    assert gradient(wf.std, [2.0, 2.0, 2.0]) == [0.0, 0.0, 0.0]
    check_grads(lambda t: wf.std(t, axis=0, correction=1), [wf.asarray(CUBE.astype(np.float64))])


def test_correction_is_taken_from_the_count() -> None:
    agree(wf.var(wf.asarray(CUBE), axis=1, correction=1), np.var(CUBE, axis=1, ddof=1))
    agree(wf.var(wf.asarray(CUBE * (1 + 2j))), np.var(CUBE * (1 + 2j)))
    assert wf.var(wf.asarray(CUBE * (1 + 2j))).dtype is wf.float32


@pytest.mark.parametrize(
    ("x", "value", "derivative"),
    [
        ([1000.0, 1000.0], 1000.6931, [0.5, 0.5]),
        ([-1000.0, -1000.0], -999.3069, [0.5, 0.5]),
        ([-INF, 0.0], 0.0, [0.0, 1.0]),
        ([-INF, -INF], -INF, [0.0, 0.0]),
    ],
)
def test_logsumexp_is_careful(x: list[float], value: float, derivative: list[float]) -> None:
    assert wf.logsumexp(wf.tensor(x)).item() == pytest.approx(value)
    assert gradient(wf.logsumexp, np.array(x)) == pytest.approx(derivative)


def test_logsumexp_of_infinity_is_infinite() -> None:
    assert wf.logsumexp(wf.tensor([INF, 1.0])).item() == INF


def test_logsumexp_has_second_derivatives() -> None:
    check_grads(lambda t: wf.logsumexp(t, axis=(0, 2)), [wf.asarray(CUBE.astype(np.float64))])


def test_running_forms_agree_with_numpy() -> None:
    x = wf.asarray(CUBE)
    agree(wf.cumulative_sum(x, axis=1), np.cumsum(CUBE, 1))
    agree(wf.cumulative_prod(x, axis=-1), np.cumprod(CUBE, -1))
    agree(wf.cumulative_logsumexp(x, axis=0), np.logaddexp.accumulate(CUBE, axis=0))
    expected = np.concatenate([np.zeros((2, 1, 4)), np.cumsum(CUBE, 1)], axis=1)
    agree(wf.cumulative_sum(x, axis=1, include_initial=True), expected)
    assert wf.cumulative_prod(wf.tensor([2, 3]), include_initial=True).tolist() == [1, 2, 6]


def test_running_extremes_give_values_and_places() -> None:
    values, places = wf.cummax(wf.tensor([1.0, 3.0, 2.0, 3.0]))
    assert (values.tolist(), places.tolist()) == ([1.0, 3.0, 3.0, 3.0], [0, 1, 1, 3])
    values, places = wf.cummin(wf.tensor([2.0, 3.0, NAN, 1.0]))
    assert places.tolist() == [0, 0, 2, 2]
    assert np.isnan(values.numpy()).tolist() == [False, False, True, True]
    assert gradient(lambda t: wf.cummax(t)[0], [1.0, 3.0, 2.0]) == [1.0, 2.0, 0.0]


def test_running_logsumexp_starts_with_nothing() -> None:
    assert wf.cumulative_logsumexp(wf.tensor([-INF, 0.0])).tolist() == [-INF, 0.0]
    assert gradient(wf.cumulative_logsumexp, [-INF, 0.0, 0.0]) == [0.0, 1.5, 0.5]


@pytest.mark.parametrize("q", [0.0, 0.3, 1.0, [0.1, 0.5, 0.9]])
@pytest.mark.parametrize("axis", [None, 1, (0, 2)])
@pytest.mark.parametrize("keepdims", [False, True])
def test_quantiles_agree_with_numpy(q: Any, axis: Any, keepdims: bool) -> None:
    found = wf.quantile(wf.asarray(CUBE), q, axis=axis, keepdims=keepdims)
    agree(found, np.quantile(CUBE, q, axis=axis, keepdims=keepdims))


def test_quantiles_of_infinities_are_infinite() -> None:
    assert wf.quantile(wf.tensor([INF, INF, 1.0]), 0.75).item() == INF
    assert wf.median(wf.tensor([1.0, INF, -INF])).item() == 1.0


def test_large_quantiles_are_those_by_reference(rng: np.random.Generator) -> None:
    """With ties, NaN and infinities; the fifth and later sizes share a program."""
    for rows in (3, 8, 9, 17, 33, 34):
        values = np.round(rng.normal(size=(rows, 40)), 1)
        values[0, 3], values[1, 5], values[2, 7] = np.nan, np.inf, -np.inf
        x = wf.tensor(values.astype(np.float32))
        calls = [
            lambda axis, x=x: wf.median(x, axis=axis),
            lambda axis, x=x: wf.quantile(x, 0.3, axis=axis, keepdims=True),
            lambda axis, x=x: wf.quantile(x, wf.tensor([0.0, 0.75, 1.0]), axis=axis),
        ]
        for call, axis in product(calls, (None, 0, 1)):
            found = call(axis).numpy()
            with wf.settings.changed(eager="reference"):
                np.testing.assert_array_equal(found, call(axis).numpy())


def test_median_has_a_gradient() -> None:
    assert gradient(wf.median, [3.0, 1.0, 2.0, 10.0]) == [0.5, 0.0, 0.5, 0.0]


def test_average_counts_by_weight() -> None:
    weights = np.array([1.0, 2.0, 0.5, 4.0], np.float32)
    found = wf.average(wf.asarray(CUBE), axis=2, weights=wf.asarray(weights))
    agree(found, np.average(CUBE, axis=2, weights=weights))
    agree(wf.average(wf.asarray(CUBE)), np.average(CUBE))


def test_differences_agree_with_numpy() -> None:
    x = wf.asarray(CUBE)
    agree(wf.diff(x), np.diff(CUBE))
    agree(wf.diff(x, axis=1, n=2), np.diff(CUBE, axis=1, n=2))
    agree(wf.diff(x, n=0), CUBE)
    ones = np.ones((2, 3, 1), np.float32)
    agree(wf.diff(x, prepend=ones, append=ones), np.diff(CUBE, prepend=ones, append=ones))
    assert wf.diff(wf.tensor([True, False, False])).tolist() == [True, False]


@pytest.mark.parametrize(
    ("call", "error", "op", "problem"),
    [
        (lambda x: wf.sum(x, axis=2), AxisError, "sum", "axis 2 is out of range"),
        (lambda x: wf.sum(x, axis=(0, -2)), AxisError, "sum", "axis 0 is named twice"),
        (lambda x: wf.max(x * 1j), DTypeError, "max", "not defined for this dtype"),
        (lambda x: wf.argmax(x, axis=9), AxisError, "argmax", "axis 9 is out of range"),
        (lambda x: wf.cumulative_sum(x), AxisError, "cumulative_sum", "axis is needed"),
        (lambda x: wf.quantile(x, 50), ArgumentError, "quantile", "outside 0 to 1"),
        (lambda x: wf.diff(x, n=-1), ArgumentError, "diff", "n is negative"),
        (lambda x: wf.mean("text"), WeftError, "mean", "x is not a tensor"),
    ],
)
def test_wrong_calls_are_refused(call: Any, error: Any, op: str, problem: str) -> None:
    with pytest.raises(error) as caught:
        call(wf.ones((2, 3)))
    assert caught.value.op == op
    assert problem in caught.value.problem
    assert caught.value.expected
    assert caught.value.got
    assert caught.value.fix


def test_softmax_is_careful() -> None:
    assert wf.softmax(wf.tensor([1000.0, 1000.0, -INF])).tolist() == [0.5, 0.5, 0.0]
    assert wf.log_softmax(wf.tensor([0.0, 1000.0])).tolist() == [-1000.0, 0.0]
    assert wf.softmax(wf.zeros((0, 3)), axis=0).shape == (0, 3)
    assert wf.softmin(wf.tensor([0.0, 1000.0])).tolist() == [1.0, 0.0]
    check_grads(lambda t: wf.softmax(t, axis=1), [wf.asarray(CUBE.astype(np.float64))])
    check_grads(lambda t: wf.log_softmax(t, axis=(0, 2)), [wf.asarray(CUBE.astype(np.float64))])


def test_normalizing_zero_gives_zero_with_a_finite_gradient() -> None:
    assert wf.normalize(wf.zeros(3)).tolist() == [0.0, 0.0, 0.0]
    assert np.isfinite(gradient(wf.normalize, np.zeros(3))).all()
    similarity = wf.cosine_similarity(wf.zeros((2, 3)), wf.ones((2, 3)), axis=1)
    assert similarity.tolist() == [0.0, 0.0]


def test_glu_needs_two_halves() -> None:
    agree(wf.glu(wf.asarray(CUBE)), CUBE[..., :2] / (1 + np.exp(-CUBE[..., 2:])))
    with pytest.raises(ShapeError, match="two halves"):
        wf.glu(wf.asarray(CUBE), axis=1)
