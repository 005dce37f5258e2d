"""Kernels that read along one axis and write along another go in tiles, and give the same."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from tests.threads import threads

import weft as wf
from weft.compiler.targets.cpu.target import compile_program

Array = np.ndarray[Any, Any]


def drawn(*shape: int, dtype: str = "float32") -> Array:
    return (np.random.default_rng(1).standard_normal(shape) * 9).astype(dtype)


def is_tiled(f: Callable[..., Any], *arrays: Array) -> bool:
    plan = compile_program(wf.ir.trace(f, *map(wf.tensor, arrays))).plan
    return any(".tile" in str(kernel) for kernel in plan.kernels)


@pytest.mark.parametrize("dtype", ["float32", "float64", "int16", "bool"])
@pytest.mark.parametrize("shape", [(64, 64), (65, 127), (1000, 33), (32, 256), (3, 70, 100)])
def test_transposes_are_those_of_numpy(shape: tuple[int, ...], dtype: str) -> None:
    x = drawn(*shape, dtype=dtype)
    wanted = np.swapaxes(x, -1, -2)

    def f(x: wf.Tensor) -> wf.Tensor:
        return wf.where(x.mT == 3, x.mT, x.mT) if dtype == "bool" else x.mT * 2 - x.mT

    assert is_tiled(f, x)
    for count in (1, 3):
        with threads(count):
            np.testing.assert_array_equal(wf.jit(f)(wf.tensor(x)).numpy(), wanted)


@pytest.mark.parametrize("shape", [(1, 4096), (16, 4096), (31, 200), (60, 60)])
def test_what_is_small_or_narrow_stays_as_it_is(shape: tuple[int, ...]) -> None:
    x = drawn(*shape)
    assert not is_tiled(lambda x: x.mT + 1, x)
    np.testing.assert_array_equal(wf.jit(lambda x: x.mT + 1)(wf.tensor(x)).numpy(), x.T + 1)


def test_what_is_read_in_order_stays_as_it_is() -> None:
    x = drawn(200, 300)
    assert not is_tiled(lambda x: x + 1, x)
    assert not is_tiled(lambda x: wf.permute_dims(x.reshape(20, 10, 300), (1, 0, 2)) * 2, x)


def test_several_operands_and_results_and_places() -> None:
    def f(x: wf.Tensor, y: wf.Tensor) -> tuple[wf.Tensor, ...]:
        return wf.tril(x.mT + y), x.mT * y, wf.sin(x).mT + y[::-1]

    x, y = drawn(120, 90), drawn(90, 120)
    found = [each.numpy() for each in wf.jit(f)(wf.tensor(x), wf.tensor(y))]
    for one, wanted in zip(found, [np.tril(x.T + y), x.T * y, np.sin(x).T + y[::-1]], strict=True):
        np.testing.assert_allclose(one, wanted, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("sizes", [(0, 50), (1, 1), (16, 17), (40, 200), (333, 64)])
def test_sizes_that_are_symbols(sizes: tuple[int, int]) -> None:
    kinds = wf.spec("float32", ("n", "m")), wf.spec("float32", ("m", "n"))
    program = compile_program(wf.ir.trace(lambda x, y: x.mT * 3 + y, *kinds))
    assert any(".tile" in str(kernel) for kernel in program.plan.kernels)
    x, y = drawn(*sizes), drawn(*sizes[::-1])
    np.testing.assert_array_equal(program.run([x, y])[0], x.T * np.float32(3) + y)


def test_axes_between_and_around_the_two_that_are_turned() -> None:
    x = drawn(3, 40, 2, 50)
    for order in ((0, 3, 2, 1), (2, 3, 0, 1), (3, 2, 1, 0), (1, 0, 3, 2)):
        found = wf.jit(lambda x, order=order: wf.permute_dims(x, order) + 1)(wf.tensor(x))
        np.testing.assert_array_equal(found.numpy(), np.transpose(x, order) + np.float32(1))


def test_a_product_before_a_transpose_and_a_sum_behind_it() -> None:
    def f(x: wf.Tensor, w: wf.Tensor) -> tuple[wf.Tensor, wf.Tensor]:
        turned = wf.tanh(x @ w).mT + 1
        return turned, turned.sum(axis=0)

    x, w = drawn(128, 20) / 50, drawn(20, 96) / 50
    with wf.testing.checked_memory():
        turned, total = (each.numpy() for each in wf.jit(f)(wf.tensor(x), wf.tensor(w)))
    wanted = np.tanh(x.astype(np.float64) @ w).T + 1
    np.testing.assert_allclose(turned, wanted, rtol=1e-5)
    np.testing.assert_allclose(total, wanted.sum(0), rtol=1e-5)
