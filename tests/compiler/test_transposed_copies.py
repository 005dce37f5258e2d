"""Copies of arrays whose axes lie in memory in another order: any form, any number of threads."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import weft as wf
from weft.compiler.targets.cpu.runtime.transposed_copies import turned_copy

Array = np.ndarray[Any, Any]


def numbers(shape: tuple[int, ...], dtype: str = "float32") -> Array:
    return (np.random.default_rng(0).normal(size=shape) * 100).astype(dtype)


@pytest.mark.parametrize("dtype", ["float32", "int32", "float64", "int64", "complex64"])
@pytest.mark.parametrize(
    ("shape", "order"),
    [
        ((16, 16), (1, 0)),
        ((17, 33), (1, 0)),
        ((300, 257), (1, 0)),
        ((3, 40, 50), (0, 2, 1)),
        ((2, 24, 5, 7), (0, 2, 3, 1)),
        ((2, 5, 7, 24), (0, 3, 1, 2)),
        ((4, 6, 24), (2, 0, 1)),
    ],
)
def test_a_copy_has_the_elements_of_the_array_in_order(
    shape: tuple[int, ...], order: tuple[int, ...], dtype: str
) -> None:
    array = numbers(shape, dtype).transpose(order)
    found = turned_copy(array)
    assert found is not None
    assert found.flags.c_contiguous
    assert found.dtype == array.dtype
    np.testing.assert_array_equal(found, array)


@pytest.mark.parametrize(
    "array",
    [
        numbers((16, 15)).T,  # smaller than a square
        numbers((4, 20, 30)).transpose(1, 0, 2),  # rows stay whole
        numbers((20, 30, 40)).transpose(2, 1, 0),  # no two parts that change places
        numbers((64, 64))[::-1].T,
        numbers((64, 64))[:, ::2].T,
        numbers((64, 64), "float16").T,
        np.broadcast_to(numbers((64, 1)), (64, 64)).T,
        numbers((64, 64)),
    ],
)
def test_what_is_no_turned_matrix_is_left_to_numpy(array: Array) -> None:
    assert turned_copy(array) is None


def test_a_part_of_an_array_is_copied_from_where_it_begins() -> None:
    whole = numbers((100, 32))
    part = whole[30:80].T
    found = turned_copy(part)
    assert found is not None
    np.testing.assert_array_equal(found, whole[30:80].T.copy())


@pytest.mark.parametrize("threads", [1, 2])
def test_a_reshape_of_a_transpose_and_its_gradient_are_those_of_numpy(threads: int) -> None:
    before = wf.get_num_threads()
    wf.set_num_threads(threads)
    try:
        array, weights = numbers((160, 224)), numbers((160 * 224,))
        x = wf.tensor(array, requires_grad=True)
        y = wf.reshape(wf.permute_dims(x, (1, 0)), (-1,))
        np.testing.assert_array_equal(y.detach().numpy(), array.T.reshape(-1))
        (y * wf.asarray(weights)).sum().backward()
        assert x.grad is not None
        np.testing.assert_array_equal(x.grad.numpy(), weights.reshape(224, 160).T)
    finally:
        wf.set_num_threads(before)


def test_a_copy_does_not_show_later_changes() -> None:
    array = numbers((160, 160))
    y = wf.reshape(wf.permute_dims(wf.asarray(array), (1, 0)), (-1,))
    expected = array.T.reshape(-1).copy()
    array[:] = 0
    np.testing.assert_array_equal(y.numpy(), expected)
