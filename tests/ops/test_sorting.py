"""Sorting, searching and sets against NumPy; NaN, ties and narrow floats; mistakes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.refusals import check_refusal

import weft as wf
from weft.testing import check_grads

Array = np.ndarray[Any, Any]


def check(found: wf.Tensor, expected: Any) -> None:
    assert found.shape == np.shape(expected)
    np.testing.assert_array_equal(found.numpy(), expected)


def distinct(rng: np.random.Generator, *shape: int) -> Array:
    return rng.permutation(int(np.prod(shape))).reshape(shape) / 8


# --- sorting -----------------------------------------------------------------------------------


@given(st.lists(st.lists(st.integers(-2, 2), min_size=3, max_size=3), min_size=1, max_size=4))
def test_sorting_agrees_with_numpy_and_is_stable(rows: list[list[int]]) -> None:
    x = np.array(rows)
    for axis in (0, 1):
        check(wf.sort(wf.asarray(x), axis=axis), np.sort(x, axis))
        check(wf.argsort(wf.asarray(x), axis=axis), np.argsort(x, axis, kind="stable"))
        check(wf.sort(wf.asarray(x), axis=axis, descending=True), -np.sort(-x, axis))
        expected = np.argsort(-x, axis, kind="stable")
        check(wf.argsort(wf.asarray(x), axis=axis, descending=True), expected)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])
def test_nan_is_greater_than_every_number(dtype: str) -> None:
    x = wf.tensor([2.0, float("nan"), float("inf"), -1.0], dtype=dtype)
    assert wf.sort(x).tolist()[:3] == [-1.0, 2.0, float("inf")]
    assert wf.argsort(x).tolist() == [3, 0, 2, 1]
    assert wf.argsort(x, descending=True).tolist() == [1, 2, 0, 3]
    assert wf.topk(x, 2).indices.tolist() == [1, 2]
    assert wf.topk(x, 2, largest=False).values.tolist() == [-1.0, 2.0]
    assert wf.sort(x).dtype is x.dtype


def test_booleans_complex_numbers_and_no_elements_are_sorted() -> None:
    assert wf.sort(wf.tensor([True, False, True])).tolist() == [False, True, True]
    z = np.array([1 + 2j, 1 - 1j, -5 + 0j])
    check(wf.sort(wf.asarray(z)), np.sort(z))
    assert wf.sort(wf.zeros((2, 0))).shape == (2, 0)
    assert wf.argsort(wf.zeros((0, 2)), axis=0).dtype is wf.int64


def test_the_gradient_of_sorting_goes_back_to_the_places(rng: np.random.Generator) -> None:
    x = wf.asarray(distinct(rng, 3, 4))
    for axis in (0, 1):
        check_grads(lambda x, a=axis: wf.sort(x, axis=a, descending=True) ** 2, [x])
        check_grads(lambda x, a=axis: wf.topk(x, 2, axis=a).values ** 2, [x])
    gradient = wf.grad(lambda x: (wf.sort(x) * wf.tensor([1.0, 2.0, 3.0])).sum())
    assert gradient(wf.tensor([5.0, 1.0, 3.0])).tolist() == [3.0, 1.0, 2.0]


def test_sorting_batches(rng: np.random.Generator) -> None:
    x = distinct(rng, 2, 3, 4)
    check(
        wf.vmap(lambda x: wf.sort(x, axis=0), in_axes=1)(wf.asarray(x)),
        np.sort(x, 0).swapaxes(0, 1),
    )
    values, indices = wf.vmap(lambda x: wf.topk(x, 2))(wf.asarray(x))
    check(values, -np.sort(-x)[..., :2])
    check(indices, np.argsort(-x)[..., :2])


def test_topk_agrees_with_torch_on_distinct_numbers(rng: np.random.Generator) -> None:
    torch = pytest.importorskip("torch")
    x = distinct(rng, 3, 5)
    for axis in (0, 1):
        for largest in (True, False):
            found = wf.topk(wf.asarray(x), 2, axis=axis, largest=largest)
            expected = torch.topk(torch.asarray(x), 2, axis, largest)
            check(found.values, expected.values.numpy())
            check(found.indices, expected.indices.numpy())


# --- searching ---------------------------------------------------------------------------------


@given(
    st.lists(st.integers(-3, 3), max_size=6),
    st.lists(st.integers(-4, 4), max_size=6),
    st.sampled_from(["left", "right"]),
)
def test_searchsorted_agrees_with_numpy(line: list[int], values: list[int], side: Any) -> None:
    x, wanted = np.array(line, np.int64), np.array(values, np.int64)
    ordered = np.sort(x)
    found = wf.searchsorted(wf.asarray(ordered), wf.asarray(wanted), side=side)
    check(found, np.searchsorted(ordered, wanted, side))
    order = np.argsort(x)
    found = wf.searchsorted(wf.asarray(x), wf.asarray(wanted), side=side, sorter=wf.asarray(order))
    check(found, np.searchsorted(x, wanted, side, order))


def test_searchsorted_takes_values_of_any_shape_and_batches_over_both() -> None:
    line, values = np.array([1.0, 2.0, 4.0]), np.array([[0.0, 2.0], [3.0, 9.0]])
    check(wf.searchsorted(wf.asarray(line), wf.asarray(values)), np.searchsorted(line, values))
    lines = np.stack([line, line - 2])
    found = wf.vmap(wf.searchsorted)(wf.asarray(lines), wf.asarray(values))
    check(found, np.stack([np.searchsorted(a, v) for a, v in zip(lines, values, strict=True)]))
    found = wf.vmap(wf.searchsorted, in_axes=(None, 1))(wf.asarray(line), wf.asarray(values))
    check(found, np.searchsorted(line, values.T))


def test_nonzero_and_count_nonzero_agree_with_numpy() -> None:
    for x in (np.array([[0, 2], [3, 0]]), np.array([0.0, -0.0, np.nan]), np.array([True, False])):
        for found, expected in zip(wf.nonzero(wf.asarray(x)), np.nonzero(x), strict=True):
            check(found, expected)
        check(wf.count_nonzero(wf.asarray(x)), np.count_nonzero(x))
        check(wf.count_nonzero(wf.asarray(x), axis=-1), np.count_nonzero(x, -1))
        kept = wf.count_nonzero(wf.asarray(x), axis=0, keepdims=True)
        check(kept, np.count_nonzero(x, 0, keepdims=True))


@given(st.lists(st.integers(-3, 3), max_size=6), st.lists(st.integers(-3, 3), max_size=6))
def test_isin_agrees_with_numpy(some: list[int], others: list[int]) -> None:
    x, among = np.array(some, np.int64), np.array(others, np.int64)
    for invert in (False, True):
        found = wf.isin(wf.asarray(x), wf.asarray(among), invert=invert)
        check(found, np.isin(x, among, invert=invert))


# --- sets --------------------------------------------------------------------------------------


@given(st.lists(st.lists(st.integers(-2, 2), min_size=2, max_size=2), max_size=5))
def test_sets_agree_with_numpy(rows: list[list[int]]) -> None:
    x = np.array(rows, np.int64).reshape(-1, 2)
    expected = np.unique_all(x)
    for found, part in zip(wf.unique_all(wf.asarray(x)), expected, strict=True):
        check(found, part)
    check(wf.unique_values(wf.asarray(x)), expected.values)
    check(wf.unique_counts(wf.asarray(x)).counts, expected.counts)
    check(wf.unique_inverse(wf.asarray(x)).inverse_indices, expected.inverse_indices)


def test_every_nan_is_distinct() -> None:
    x = wf.tensor([float("nan"), 1.0, float("nan"), 1.0])
    assert wf.unique_counts(x).counts.tolist() == [2, 1, 1]


def test_distinct_values_have_a_gradient_and_keep_their_dtype() -> None:
    x = wf.tensor([3.0, 1.0, 3.0])
    assert wf.grad(lambda x: wf.unique_values(x).sum())(x).tolist() == [1.0, 1.0, 0.0]
    narrow = wf.unique_values(x.astype("bfloat16"))
    assert narrow.dtype is wf.bfloat16
    assert narrow.tolist() == [1.0, 3.0]


# --- mistakes ----------------------------------------------------------------------------------


MISTAKES: dict[str, tuple[Callable[[], object], type[wf.WeftError], str, str]] = {
    "no axes": (lambda: wf.sort(wf.tensor(1.0)), wf.AxisError, "sort", "out of range"),
    "no such axis": (
        lambda: wf.argsort(wf.ones(2), axis=1),
        wf.AxisError,
        "argsort",
        "out of range",
    ),
    "too many": (lambda: wf.topk(wf.ones(2), 3), wf.ArgumentError, "topk", "no 3 elements"),
    "a line of lines": (
        lambda: wf.searchsorted(wf.ones((2, 2)), 1.0),
        wf.ShapeError,
        "searchsorted",
        "not a line",
    ),
    "no such side": (
        lambda: wf.searchsorted(wf.ones(2), 1.0, side="middle"),
        wf.ArgumentError,
        "searchsorted",
        "unknown side",
    ),
    "nonzero of a number": (lambda: wf.nonzero(wf.tensor(1)), wf.AxisError, "nonzero", "no axes"),
    "nonzero in a trace": (
        lambda: wf.vmap(wf.nonzero)(wf.ones((2, 2))),
        wf.TraceError,
        "nonzero",
        "depends on values",
    ),
    "unique in a trace": (
        lambda: wf.vmap(wf.unique_values)(wf.ones((2, 2))),
        wf.TraceError,
        "unique_values",
        "depends on values",
    ),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_is_explained(name: str) -> None:
    check_refusal(MISTAKES[name], __file__)


# --- large tensors, which are sorted by compiled code ------------------------------------------


@pytest.mark.parametrize("shape", [(4096,), (64, 65), (3, 5000), (8191,)])
def test_large_tensors_are_sorted_as_small_ones_are(
    shape: tuple[int, ...], rng: np.random.Generator
) -> None:
    values = rng.integers(-40, 40, shape).astype("float32") / 4  # with many ties
    values.flat[::97] = np.nan
    values.flat[5::101] = np.inf
    values.flat[7::103] = -0.0
    x = wf.tensor(values)
    calls = {
        "sort": lambda: wf.sort(x),
        "sort down": lambda: wf.sort(x, descending=True),
        "argsort": lambda: wf.argsort(x),
        "argsort down": lambda: wf.argsort(x, descending=True),
        "first axis": lambda: wf.argsort(x, axis=0),
        "values": lambda: wf.topk(x, 7)[0],
        "places": lambda: wf.topk(x, 7)[1],
    }
    for name, call in calls.items():
        found = [call().numpy() for _ in range(3)]  # the second and third call go quicker ways
        with wf.settings.changed(eager="reference"):
            expected = call().numpy()
        for each in found:
            np.testing.assert_array_equal(each, expected, err_msg=name)
    order = wf.argsort(x).numpy()
    np.testing.assert_array_equal(order, np.argsort(values, axis=-1, kind="stable"))


def test_gradients_go_through_large_sorts_and_running_sums(rng: np.random.Generator) -> None:
    values = rng.permutation(6000).astype("float32")
    weights = wf.tensor(rng.standard_normal(6000).astype("float32"))
    for call in (wf.sort, lambda x: wf.cumulative_sum(x), lambda x: wf.topk(x, 6000)[0]):
        found = []
        for way in ("native", "reference"):
            with wf.settings.changed(eager=way):
                x = wf.tensor(values, requires_grad=True)
                (call(x) * weights).sum().backward()
                found.append(x.grad.numpy())
        np.testing.assert_allclose(found[0], found[1], rtol=1e-3, atol=1e-3)
