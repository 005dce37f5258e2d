"""Copies of arrays with gaps, or with axes in another order: any form, any number of threads."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import weft as wf
from weft.compiler.targets.cpu.runtime.ordered_copies import ordered_copy
from weft.compiler.targets.cpu.runtime.row_copies import row_form
from weft.compiler.targets.cpu.runtime.transposed_copies import turned_form

Array = np.ndarray[Any, Any]


def numbers(shape: tuple[int, ...], dtype: str = "float32") -> Array:
    return (np.random.default_rng(0).normal(size=shape) * 100).astype(dtype)


def assert_copied(array: Array) -> None:
    found = ordered_copy(array)
    assert found is not None
    assert found.flags.c_contiguous
    assert found.dtype == array.dtype
    np.testing.assert_array_equal(found, array)


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
def test_a_turned_matrix_is_copied_with_its_elements_in_order(
    shape: tuple[int, ...], order: tuple[int, ...], dtype: str
) -> None:
    array = numbers(shape, dtype).transpose(order)
    assert turned_form(array) is not None
    assert_copied(array)


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
def test_what_is_no_turned_matrix_has_no_such_form(array: Array) -> None:
    assert turned_form(array) is None


HEADS = (0, 2, 1, 3)
ROWS = [
    numbers((2, 300, 8, 32)).transpose(HEADS),
    numbers((2, 8, 300, 32)).transpose(HEADS),
    numbers((3, 197, 12, 64)).transpose(HEADS),
    numbers((5, 128, 64, 8)).transpose(HEADS),
    numbers((5, 65, 7, 3)).transpose(HEADS),
    numbers((2, 3000, 5)).transpose(1, 0, 2),
    numbers((3000, 2, 5)).transpose(1, 0, 2),
    numbers((3, 4, 5, 6, 70)).transpose(3, 1, 2, 0, 4),
    numbers((40, 50, 2)).transpose(1, 0, 2),  # rows of 8 bytes, the shortest
    numbers((40, 50, 9), "int8").transpose(1, 0, 2),
    numbers((40, 50, 33), "float16").transpose(1, 0, 2),
    numbers((40, 50, 33), "float64").transpose(1, 0, 2),
    numbers((40, 50, 3), "complex128").transpose(1, 0, 2),
    numbers((40, 50, 70), "int8").astype(bool).transpose(1, 0, 2),
    numbers((500, 96))[:, 5:35],
    numbers((500, 96))[7:, :64],
    numbers((2, 20000))[:, 1:],
    numbers((6, 3, 40, 40))[:, 1:, 3:36, 4:37],
    numbers((64, 50))[::-1],
    numbers((64, 50))[::3],
    np.broadcast_to(numbers((64, 1, 50)), (64, 3, 50)),
    np.broadcast_to(numbers((300,)), (70, 2, 300)),
]


@pytest.mark.parametrize("array", ROWS, ids=lambda array: f"{array.dtype} {array.shape}")
@pytest.mark.parametrize("threads", [1, 2])
def test_rows_that_lie_whole_are_copied_in_any_order(array: Array, threads: int) -> None:
    assert row_form(array.shape, array.strides, array.itemsize) is not None
    before = wf.get_num_threads()
    wf.set_num_threads(threads)
    try:
        assert_copied(array)
        with wf.settings.changed(fastcall=False):
            assert_copied(array)
    finally:
        wf.set_num_threads(before)


def test_random_arrays_are_copied_or_left_to_numpy(rng: np.random.Generator) -> None:
    copied = 0
    for _ in range(400):
        shape = tuple(rng.integers(1, 9, rng.integers(1, 6)).tolist())
        array = numbers(shape, str(rng.choice(["float32", "float64", "float16", "int8"])))
        steps = rng.choice([1, 1, 1, 2, -1], len(shape))
        starts = rng.integers(0, 2, len(shape))
        key = tuple([slice(a, None, s) for a, s in zip(starts.tolist(), steps, strict=True)])
        array = array[key].transpose(rng.permutation(len(shape)))
        if array.size and not array.flags.c_contiguous and ordered_copy(array) is not None:
            assert_copied(array)
            copied += 1
    assert copied > 20


@pytest.mark.parametrize(
    "array",
    [
        numbers((64, 64))[:, ::2],
        numbers((16, 15)).T,
        numbers((64, 64, 1), "float64").transpose(1, 0, 2)[::2],  # rows of one element
        numbers((64, 64, 3), "int8").transpose(1, 0, 2),  # rows of 3 bytes
        np.broadcast_to(numbers((64, 1)), (64, 64)),
        numbers((2, 3, 2, 3, 2, 4)).transpose(4, 3, 2, 1, 0, 5),  # too many axes
    ],
)
def test_other_arrays_are_left_to_numpy(array: Array) -> None:
    assert ordered_copy(array) is None


@pytest.mark.parametrize("shape", [(1, 4, 8, 32), (1, 64, 8, 32), (2, 128, 8, 32)])
def test_heads_brought_to_the_front_have_the_elements_of_numpy_in_every_call(
    shape: tuple[int, ...],
) -> None:
    for number in range(4):  # the second call is traced, later ones are remembered
        array = numbers(shape) + number
        moved = wf.permute_dims(wf.asarray(array), HEADS)
        expected = array.transpose(HEADS).reshape(-1, shape[-1])
        np.testing.assert_array_equal(wf.reshape(moved, (-1, shape[-1])).numpy(), expected)
        with wf.settings.changed(eager="reference"):
            found = wf.reshape(wf.permute_dims(wf.asarray(array), HEADS), (-1, shape[-1]))
        np.testing.assert_array_equal(found.numpy(), expected)


def test_a_remembered_reshape_is_given_arrays_of_other_strides() -> None:
    whole = numbers((64, 512))
    views = [whole[:, :256], whole[:, 1:257], whole[:, ::2], whole[::-1, :256], whole.T[:64, :64]]
    for view in [*views, *views]:
        found = wf.reshape(wf.asarray(view), (-1,))
        np.testing.assert_array_equal(found.numpy(), view.reshape(-1))


def test_a_part_of_an_array_is_copied_from_where_it_begins() -> None:
    whole = numbers((100, 32))
    part = whole[30:80].T
    found = ordered_copy(part)
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
