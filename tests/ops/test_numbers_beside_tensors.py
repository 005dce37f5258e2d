"""A Python number beside a tensor takes the tensor's dtype at once, whatever the function.

Converted by way of the default dtype it would lose half of its digits in float64.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import weft as wf
from weft.ir.dispatch import quiet

NUMBER = 0.1
X = np.array([1.5, 2.5, 3.5])
MASK = np.array([True, False, True])
PLACE = np.array([1])


def written(write: Callable[[wf.Tensor], Any]) -> Callable[..., wf.Tensor]:
    """What a tensor holds after something was written to it."""

    def write_to_copy(x: wf.Tensor, mask: wf.Tensor, place: wf.Tensor) -> wf.Tensor:
        copied = x.clone()
        write(copied)
        return copied

    return write_to_copy


FUNCTIONS: dict[str, tuple[Callable[..., wf.Tensor], Any]] = {
    "copy_": (written(lambda y: y.copy_(NUMBER)), [0.1, 0.1, 0.1]),
    "fill_": (written(lambda y: y.fill_(NUMBER)), [0.1, 0.1, 0.1]),
    "setitem": (written(lambda y: y.__setitem__(0, NUMBER)), [0.1, 2.5, 3.5]),
    "masked_fill": (lambda x, m, i: wf.masked_fill(x, m, NUMBER), [0.1, 2.5, 0.1]),
    "masked_fill method": (lambda x, m, i: x.masked_fill(m, NUMBER), [0.1, 2.5, 0.1]),
    "where": (lambda x, m, i: wf.where(m, NUMBER, x), [0.1, 2.5, 0.1]),
    "scatter": (lambda x, m, i: wf.scatter(x, 0, i, NUMBER), [1.5, 0.1, 3.5]),
    "scatter_add": (lambda x, m, i: wf.scatter_add(x, 0, i, NUMBER), [1.5, 2.6, 3.5]),
    "put_along_axis": (lambda x, m, i: wf.put_along_axis(x, i, NUMBER, axis=0), [1.5, 0.1, 3.5]),
    "index_put": (lambda x, m, i: wf.index_put(x, (i,), NUMBER), [1.5, 0.1, 3.5]),
    "index_put and add": (
        lambda x, m, i: wf.index_put(x, (i,), NUMBER, accumulate=True),
        [1.5, 2.6, 3.5],
    ),
    "index_copy": (lambda x, m, i: wf.index_copy(x, 0, i, NUMBER), [1.5, 0.1, 3.5]),
    "index_add": (lambda x, m, i: wf.index_add(x, 0, i, NUMBER), [1.5, 2.6, 3.5]),
    "full_like": (lambda x, m, i: wf.full_like(x, NUMBER), [0.1, 0.1, 0.1]),
    "clip": (lambda x, m, i: wf.clip(x * 0, NUMBER, 0.7), [0.1, 0.1, 0.1]),
    "pad": (lambda x, m, i: wf.pad(x[:2], ((1, 0),), constant_values=NUMBER), [0.1, 1.5, 2.5]),
    "tensor": (lambda x, m, i: wf.tensor([NUMBER, x[1], x[2]]), [0.1, 2.5, 3.5]),
    "asarray": (
        lambda x, m, i: wf.asarray([NUMBER, x[1], x[2].astype("float32")], dtype=x.dtype),
        [0.1, 2.5, 3.5],
    ),
    "nan_to_num": (lambda x, m, i: wf.nan_to_num(x * wf.nan, nan=NUMBER), [0.1, 0.1, 0.1]),
}


@pytest.mark.parametrize("compiled", [False, True], ids=["eager", "compiled"])
@pytest.mark.parametrize("name", FUNCTIONS)
@pytest.mark.parametrize("dtype", ["float64", "complex128", "float32"])
def test_a_number_is_rounded_once(name: str, compiled: bool, dtype: str) -> None:
    if dtype == "complex128" and name in ("clip", "nan_to_num", "asarray"):
        pytest.skip("not defined for complex numbers")
    function, expected = FUNCTIONS[name]
    run = wf.jit(function) if compiled else function
    result = run(wf.tensor(X.astype(dtype)), wf.tensor(MASK), wf.tensor(PLACE)).numpy()
    assert result.dtype == dtype
    assert result.tolist() == np.array(expected, dtype).tolist()


@pytest.mark.parametrize("compiled", [False, True], ids=["eager", "compiled"])
def test_a_number_that_a_loop_begins_with_is_rounded_once(compiled: bool) -> None:
    def loops(x: wf.Tensor) -> list[wf.Tensor]:
        return [
            wf.scan(lambda c, each: (c + each * 0, c), NUMBER, x)[0],
            wf.fori_loop(0, 2, lambda i, c: c + x[0] * 0, NUMBER),
            wf.while_loop(lambda c: c < 1, lambda c: c + x[0] * 0 + 1, NUMBER),
        ]

    results = (wf.jit(loops) if compiled else loops)(wf.tensor(X))
    assert [each.item() for each in results] == [0.1, 0.1, 1.1]


@pytest.mark.parametrize("compiled", [False, True], ids=["eager", "compiled"])
def test_a_number_that_all_elements_of_a_batch_share_is_not_rounded(compiled: bool) -> None:
    def scale(x: wf.Tensor, number: Any, options: dict[str, Any]) -> wf.Tensor:
        return x * number + options["shift"]

    batched = wf.vmap(scale, in_axes=(0, None, {"shift": None}))
    result = (wf.jit(batched) if compiled else batched)(wf.tensor(X), NUMBER, {"shift": 0.7})
    assert result.tolist() == (X * NUMBER + 0.7).tolist()


def test_a_complex_number_is_rounded_once() -> None:
    x = wf.tensor(np.zeros(2, np.complex128))
    assert x.clone().copy_(0.1 + 0.7j).tolist() == [0.1 + 0.7j] * 2
    assert wf.masked_fill(x, wf.tensor([True, False]), 0.1 + 0.7j).tolist() == [0.1 + 0.7j, 0]


def test_bounds_of_random_numbers_in_float64_are_not_rounded_to_float32() -> None:
    bounds = {"low": 0.1 - 1e-10, "high": 0.1}
    drawn = wf.random.truncated_normal((500,), **bounds, key=wf.random.key(3), dtype="float64")
    assert float(drawn.max()) <= bounds["high"]
    assert float(drawn.min()) >= bounds["low"]


@pytest.mark.parametrize("count", [3, 1 << 19])
@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_numbers_beyond_a_dtype_are_infinite_without_a_warning(dtype: str, count: int) -> None:
    x = wf.ones(count, dtype=dtype)  # warnings are errors here
    for function in (
        lambda x: x * 1e300,
        lambda x: 1e300 / x,
        lambda x: wf.where(x > 0, 1e300, x),
        lambda x: wf.maximum(x, 1e300),
    ):
        assert np.isposinf(function(x).numpy()).all()
        inside = quiet(lambda function=function: function(x).numpy())  # as in two threads at once
        assert np.isposinf(inside).all()
