"""Element-wise functions of large tensors that were called before: the same values, any way."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
from tests.threads import threads

import weft as wf
from weft.ir.eager import CHEAP

Array = np.ndarray[Any, Any]
LEAST = CHEAP * wf.settings.eager_elements
"""Elements from which sums and products are compiled."""
CALLS = 4
"""The first call compiles, the second is the first that is known."""
FUNCTIONS: list[tuple[Callable[..., Any], Callable[..., Any]]] = [
    (wf.add, np.add),
    (wf.multiply, np.multiply),
    (wf.subtract, np.subtract),
    (wf.divide, np.divide),
    (wf.maximum, np.maximum),
]


def drawn(seed: int, *shape: int, dtype: str = "float32") -> Array:
    return (np.random.default_rng(seed).standard_normal(shape) * 9 + 10).astype(dtype)


@pytest.mark.parametrize("count", [LEAST - 1, LEAST, LEAST + 3])
@pytest.mark.parametrize("dtype", ["float32", "float64", "int32"])
@pytest.mark.parametrize(("ours", "numpy"), FUNCTIONS[:3], ids=lambda f: f.__name__)
def test_every_call_has_the_bits_of_numpy(
    ours: Callable[..., Any], numpy: Callable[..., Any], dtype: str, count: int
) -> None:
    for number in range(CALLS):
        x, y = drawn(number, count, dtype=dtype), drawn(number + 9, count, dtype=dtype)
        assert ours(wf.tensor(x), wf.tensor(y)).numpy().tobytes() == numpy(x, y).tobytes()


@pytest.mark.parametrize(("ours", "numpy"), FUNCTIONS, ids=lambda f: f.__name__)
def test_special_numbers_and_numbers_of_threads_change_no_bit(
    ours: Callable[..., Any], numpy: Callable[..., Any]
) -> None:
    special = np.array([0.0, -0.0, np.inf, -np.inf, np.nan, 1e-42, 3e38, 1.0], np.float32)
    x, y = np.tile(np.repeat(special, 8), LEAST // 32), np.tile(np.tile(special, 8), LEAST // 32)
    with np.errstate(all="ignore"):
        expected = numpy(x, y)
    for count in (1, 2, 3):
        with threads(count):
            np.testing.assert_array_equal(ours(wf.tensor(x), wf.tensor(y)).numpy(), expected)


def test_a_known_call_takes_any_layout_and_the_same_tensor_twice() -> None:
    whole = drawn(1, 2 * LEAST)
    for _ in range(CALLS):
        x, y = whole[:LEAST], whole[LEAST:]
        np.testing.assert_array_equal((wf.tensor(x) + wf.tensor(y)).numpy(), x + y)
        u = wf.asarray(whole)[::2]
        np.testing.assert_array_equal((u + u).numpy(), whole[::2] * 2)
        np.testing.assert_array_equal((wf.tensor(x) * wf.tensor(x)).numpy(), x * x)
        np.testing.assert_array_equal((wf.tensor(x) + 1.5).numpy(), x + np.float32(1.5))
        np.testing.assert_array_equal((2 - wf.tensor(x)).numpy(), 2 - x)


def test_known_calls_broadcast() -> None:
    x, y = drawn(1, 300, 256), drawn(2, 256)
    for _ in range(CALLS):
        np.testing.assert_array_equal((wf.tensor(x) + wf.tensor(y)).numpy(), x + y)
        np.testing.assert_array_equal((wf.tensor(y) * wf.tensor(x)).numpy(), y * x)


def test_known_calls_have_their_gradients() -> None:
    for number in range(CALLS):
        a, b = drawn(number, LEAST), drawn(number + 5, LEAST)
        x, y = wf.tensor(a, requires_grad=True), wf.tensor(b, requires_grad=True)
        wf.relu(x * y + x).sum().backward()
        positive = (a * b + a > 0).astype(np.float32)
        np.testing.assert_allclose(x.grad.numpy(), positive * (b + 1), rtol=1e-6)  # type: ignore[union-attr]
        np.testing.assert_allclose(y.grad.numpy(), positive * a, rtol=1e-6)  # type: ignore[union-attr]
        with wf.no_grad():
            assert not (x * y).requires_grad
        assert (x * wf.tensor(b)).requires_grad


def test_known_calls_ask_the_settings_and_who_watches() -> None:
    x = wf.tensor(drawn(1, LEAST))
    expected = (x + x).numpy()
    for _ in range(CALLS):
        for changes in ({"eager": "reference"}, {"eager_elements": 1}, {"eager_elements": 1 << 20}):
            with wf.settings.changed(**changes):
                np.testing.assert_array_equal((x + x).numpy(), expected)
        np.testing.assert_array_equal(wf.jit(lambda x: x + x)(x).numpy(), expected)
        with wf.debug.nans(), pytest.raises(wf.WeftError):
            (x - x) / (x - x)
        assert not np.isfinite(((x - x) / (x - x)).numpy()).any()


def test_known_calls_inside_of_a_checkpoint_are_differentiated() -> None:
    a = drawn(3, LEAST)
    for _ in range(CALLS):
        x = wf.tensor(a, requires_grad=True)
        wf.checkpoint(lambda x: wf.relu(x * x) + x)(x).sum().backward()
        np.testing.assert_allclose(x.grad.numpy(), 2 * a + 1, rtol=1e-6, atol=1e-5)  # type: ignore[union-attr]


def test_known_calls_of_many_threads_have_results_of_their_own() -> None:
    arrays = [drawn(number, LEAST) for number in range(8)]

    def work(array: Array) -> bool:
        x = wf.tensor(array)
        return all((x + x).numpy().tobytes() == (array + array).tobytes() for _ in range(20))

    with ThreadPoolExecutor(4) as pool:
        assert all(pool.map(work, arrays))


@pytest.mark.parametrize("ask", [wf.isnan, wf.logical_not, lambda x: x > 0, lambda x: x != x])
def test_truth_values_of_large_tensors_have_no_place_on_the_tape(
    ask: Callable[[wf.Tensor], wf.Tensor],
) -> None:
    x = wf.ones(4 * LEAST).requires_grad_()
    found = [ask(x) for _ in range(CALLS)]
    assert not any(answer.requires_grad for answer in found)
    assert (2 * x).requires_grad
