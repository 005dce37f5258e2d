"""Matrices with their axes exchanged on a card: products read them where they lie."""

from __future__ import annotations

import gc
from collections.abc import Callable
from threading import Barrier, Thread
from typing import Any

import numpy as np
import pytest
from tests.compiler.cuda.device_cases import numbers
from tests.compiler.cuda.host_card import HostCard

import weft as wf

Array = np.ndarray[Any, Any]


def on_card(*shape: int) -> tuple[Array, wf.Tensor]:
    array = numbers(*shape)
    return array, wf.asarray(array).to("cuda")


@pytest.mark.parametrize(
    ("f", "shapes", "launches"),
    [
        (lambda x, y: x.T @ y, ((6, 8), (6, 5)), 1),
        (lambda x, y: x @ y.T, ((6, 8), (5, 8)), 1),
        (lambda x, y: x.T @ y.T, ((6, 8), (5, 6)), 1),
        (lambda x, y: x.T.T @ y, ((6, 8), (8, 5)), 1),
        (lambda x, y: x.mT @ y, ((2, 6, 8), (2, 6, 5)), 1),
        (lambda x, y: x.T @ y, ((6, 8), (6,)), 1),
        (lambda x, y: wf.tensordot(x.T, y, axes=1), ((6, 8), (6, 5)), 2),
        # two axes that are not summed: their order is that of the result, so it is a copy
        (lambda x, y: wf.tensordot(x.mT, y, axes=((0,), (0,))), ((3, 4, 5), (3, 2)), None),
        (lambda x, y: x.mT @ y, ((2, 6, 8), (6, 5)), None),
        (lambda x, y: x.T + y, ((6, 8), (8, 6)), 2),
        (lambda x, y: wf.exp(x.T)[2:5] @ y, ((6, 8), (6, 5)), None),
        (lambda x, y: x.T.reshape(6, 8) @ y, ((6, 8), (8, 5)), None),
        (lambda x, y: wf.jit(lambda a, b: a @ b)(x.T, y), ((6, 8), (6, 5)), 2),
    ],
)
def test_products_of_exchanged_axes_are_the_processors(
    card: HostCard,
    f: Callable[[Any, Any], Any],
    shapes: tuple[tuple[int, ...], tuple[int, ...]],
    launches: int | None,
) -> None:
    (a, x), (b, y) = (on_card(*shape) for shape in shapes)
    wanted = f(wf.asarray(a), wf.asarray(b)).numpy()
    for _ in range(4):
        before = card.launched
        found = f(x, y)
        made = card.launched - before
        np.testing.assert_allclose(found.numpy(), wanted, rtol=1e-5, atol=1e-5)
        assert found.shape == wanted.shape
        assert launches in (None, made)


def test_the_copy_is_made_once_and_outlives_its_source(card: HostCard) -> None:
    a, x = on_card(6, 8)
    turned = x.T
    assert not turned._value.has_memory()
    del x
    gc.collect()
    np.testing.assert_array_equal(turned.numpy(), a.T)
    before = card.launched
    np.testing.assert_array_equal(turned.numpy(), a.T)
    assert card.launched == before
    assert turned._value.base is not None, "nobody may write to it: products read its source"


def test_exchanged_axes_keep_their_numbers_when_the_source_changes(card: HostCard) -> None:
    a, _ = on_card(6, 6)
    weights = wf.nn.Parameter(wf.asarray(a).to("cuda"))
    optimizer = wf.optim.SGD([weights], lr=0.1)

    @wf.jit
    def step() -> wf.Tensor:
        optimizer.zero_grad()
        loss = (weights * weights).sum()
        loss.backward()
        optimizer.step()
        return loss

    for _ in range(3):
        step()  # state is written in place from now on
        before = weights.detach().numpy().copy()
        turned = weights.detach().T
        step()
        assert not np.array_equal(weights.detach().numpy(), before)
        np.testing.assert_allclose((turned @ turned).numpy(), before.T @ before.T, rtol=1e-5)
        np.testing.assert_array_equal(turned.numpy(), before.T)


def test_an_update_of_exchanged_axes_is_not_read_from_the_source(card: HostCard) -> None:
    a, x = on_card(6, 6)
    turned, other = x.T, x.clone()
    del x  # else it would be a part of another tensor, which is refused
    turned[0] = 7.0
    turned += 1.0
    wanted = a.T.copy()
    wanted[0] = 7.0
    wanted += 1.0
    np.testing.assert_allclose(turned.numpy(), wanted, rtol=1e-6)
    np.testing.assert_allclose((turned @ other).numpy(), wanted @ a, rtol=1e-5, atol=1e-5)


def test_a_write_to_the_source_does_not_reach_exchanged_axes(card: HostCard) -> None:
    for write in (lambda x: x.__setitem__(0, 5.0), lambda x: x.__iadd__(1.0)):
        a, x = on_card(6, 6)
        there, here = x.T, wf.asarray(a).T
        product = x.T
        write(x)
        np.testing.assert_array_equal(there.numpy(), here.numpy())
        np.testing.assert_allclose((product @ product).numpy(), a.T @ a.T, rtol=1e-5, atol=1e-5)


def test_gradients_of_products_of_exchanged_axes(card: HostCard) -> None:
    a, b = numbers(5, 8), numbers(6, 8)

    def gradients(device: str) -> list[Array]:
        w, x = (wf.asarray(each).to(device).requires_grad_() for each in (a, b))
        for _ in range(3):
            w.grad = x.grad = None
            (wf.sin(x @ w.T) ** 2).sum().backward()
        return [w.grad.numpy(), x.grad.numpy()]  # type: ignore[union-attr]

    for there, here in zip(gradients("cuda"), gradients("cpu"), strict=True):
        np.testing.assert_allclose(there, here, rtol=1e-4, atol=1e-5)


def test_threads_that_ask_for_memory_at_once_get_the_same(card: HostCard) -> None:
    a, x = on_card(6, 8)
    for _ in range(5):
        turned, gate = x.T, Barrier(4)
        found: list[tuple[int, Array]] = []

        def read(turned: wf.Tensor = turned, gate: Barrier = gate, found: Any = found) -> None:
            gate.wait()
            found.append((turned._value.pointer, (turned + 0.0).numpy()))

        threads = [Thread(target=read) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len({pointer for pointer, _ in found}) == 1
        for _, array in found:
            np.testing.assert_array_equal(array, a.T)


def test_running_out_of_memory_copies_nothing(card: HostCard) -> None:
    _, x = on_card(6, 8)
    turned = x.T
    card.results["cuMemAllocAsync"] = 2
    try:
        with pytest.raises(wf.OutOfMemoryError, match="no room"):
            wf.ones((1 << 20,), device="cuda")
    finally:
        del card.results["cuMemAllocAsync"]
    assert not turned._value.has_memory()
