"""Compiled programs with axes of size 0: nothing is read, and a sum over nothing is 0.

Every axis of every operand is empty once, alone and with another one; so are those of gradients.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import chain, combinations
from typing import Any

import numpy as np
import pytest

import weft as wf
from weft.nn import functional

Function = Callable[..., Any]
SIZES = {"b": 2, "h": 3, "k": 22, "m": 48, "n": 64, "p": 5}
EACH = {
    "a product": (lambda a, b: a @ b, "nk km"),
    "two products with a function between": (lambda a, b, c: wf.exp(a @ b) @ c, "nk km mp"),
    "the second one transposed": (lambda a, b, c: wf.exp(a @ b) @ c.T, "nk km pm"),
    "bias and activation": (lambda a, b, c: wf.tanh(a @ b + c), "nk km m"),
    "the left one transposed": (lambda a, b: wf.exp(a.T @ b).sum(axis=0), "kn km"),
    "a stack": (lambda a, b: wf.softmax(a @ b), "bnk bkm"),
    "rows of a stack in one": (lambda a, b: wf.exp(a @ b).sum(axis=(1, 2)), "nhk km"),
    "two axes contracted": (lambda a, b: wf.exp(wf.einsum("nkh,khm->nm", a, b)), "nkh khm"),
    "with a vector": (lambda a, b: wf.exp(a @ b) + 1, "nk k"),
    "a vector first": (lambda a, b: wf.exp(b @ a) + 1, "kn k"),
    "an inner product": (lambda a, b: 0.5 * (a @ b) + 1, "k k"),
    "an outer product": (lambda a, b: wf.exp(a[:, None] @ b[None]), "n m"),
    "attention": (lambda q, k, v: functional.scaled_dot_product_attention(q, k, v), "bnp bmp bmp"),
    "attention by hand": (
        lambda q, k, v: wf.softmax(q @ wf.swapaxes(k, -1, -2) * 0.3) @ v,
        "bhnp bhmp bhmp",
    ),
    "sums of rows and columns": (lambda a: a.sum(axis=0).sum() + a.sum(axis=1), "nk"),
    "a mean": (lambda a: wf.tanh(a).mean(axis=1), "nk"),
    "products of elements": (lambda a: wf.prod(a, axis=0), "nk"),
    "a norm": (lambda x, w: functional.layer_norm(x, (x.shape[-1],), w, w), "nk k"),
    "a join": (lambda a, b: wf.exp(wf.concat([a * 2, b, a], axis=0)).sum(axis=1), "nk mk"),
    "a join of columns": (lambda a, b: wf.concat([a * 2, b, a], axis=1) * 2, "kn km"),
    "padding": (lambda a: wf.pad(a, ((2, 1), (0, 3))) * 2, "nk"),
    "a sum so far": (lambda a: wf.cumulative_sum(a, axis=0) + 1, "nk"),
    "sorting": (lambda a: wf.sort(a, axis=0) * 2, "nk"),
    "rows by number": (lambda a, b: a[(b[:, 0] * 0).astype("int64")] * 2, "nk mp"),
    "a loop": (lambda h, x: wf.scan(lambda h, x: (wf.tanh(h + x), h * 2), h, x), "k nk"),
    "a loop with a product": (
        lambda h, x, w: wf.scan(lambda h, x: (wf.tanh(h @ w * 0.1 + x), h * 2), h, x),
        "bk pbk kk",
    ),
    "a mapped function": (lambda x: wf.map(lambda row: wf.sin(row) * row, x), "nk"),
    "a convolution": (lambda x, w: functional.conv1d(x, w, padding=1), "bpn kp3"),
    "a convolution of images": (lambda x, w: functional.conv2d(x, w, padding=1), "bpkk mp33"),
    "a convolution with strides": (lambda x, w: functional.conv2d(x, w, stride=2), "bpkn mp33"),
    "a transposed convolution": (
        lambda x, w: functional.conv_transpose1d(x, w, stride=2),
        "bpn pk3",
    ),
    "windows": (lambda x: functional.max_pool1d(x, 2) + functional.avg_pool1d(x, 2), "bpn"),
}


def shapes(text: str, empty: tuple[str, ...]) -> list[tuple[int, ...]]:
    sizes = {**SIZES, **dict.fromkeys(empty, 0)}
    return [tuple(int(c) if c.isdigit() else sizes[c] for c in word) for word in text.split()]


def ways(text: str) -> list[tuple[str, ...]]:
    letters = sorted({c for c in text if c.isalpha()})
    return list(chain.from_iterable(combinations(letters, count) for count in (1, 2)))


def leaves(found: Any) -> list[wf.Tensor]:
    return list(found) if isinstance(found, tuple) else [found]


def total(f: Function) -> Function:
    return lambda *xs: sum(wf.tanh(x).sum() for x in leaves(f(*xs)))


def checked(f: Function, given: list[wf.Tensor]) -> None:
    """Compare with the reference, or both must refuse: a mean of nothing, a window too large."""
    try:
        with wf.settings.changed(compiler=False):
            wanted = leaves(f(*given))
    except wf.WeftError as error:
        with pytest.raises(type(error)):
            wf.jit(f)(*given)
        return
    for found, want in zip(leaves(wf.jit(f)(*given)), wanted, strict=True):
        assert found.shape == want.shape
        np.testing.assert_allclose(found.numpy(), want.numpy(), rtol=1e-4, atol=1e-4)


@pytest.fixture(autouse=True)
def _used_memory() -> None:
    """What was freed last is no zero: memory that is read before it is written then shows."""
    for count in (64, 1408, 4096, 65536):
        np.full(count, 7.0, np.float32)


@pytest.mark.slow
@pytest.mark.parametrize("form", EACH)
def test_an_empty_axis(form: str) -> None:
    f, text = EACH[form]
    rng = np.random.default_rng(1)
    for empty in ways(text):
        given = [
            wf.tensor(rng.standard_normal(shape).astype(np.float32))
            for shape in shapes(text, empty)
        ]
        checked(f, given)
        checked(wf.grad(total(f), argnums=tuple(range(len(given)))), given)


@pytest.mark.parametrize("rows", [6, 64, 300])
def test_a_gradient_that_is_a_sum_over_nothing_is_zero(rows: int) -> None:
    def f(z: wf.Tensor, w: wf.Tensor) -> wf.Tensor:
        return wf.grad(lambda z: wf.exp(z @ w).sum())(z)

    compiled = wf.jit(f)
    for _ in range(3):
        assert not compiled(wf.ones((rows, 22)), wf.zeros((22, 0))).numpy().any()


def test_a_size_that_becomes_zero_at_a_later_call() -> None:
    f = wf.jit(lambda x, w: (wf.relu(x @ w).sum(axis=0), wf.grad(lambda w: (x @ w).sum())(w)))
    w = np.random.default_rng(2).standard_normal((22, 48)).astype(np.float32)
    for rows in (5, 9, 0, 64, 1, 0):
        x = np.ones((rows, 22), np.float32)
        found, gradient = f(wf.tensor(x), wf.tensor(w))
        np.testing.assert_allclose(found.numpy(), np.maximum(x @ w, 0).sum(axis=0), rtol=1e-4)
        np.testing.assert_allclose(gradient.numpy(), np.full((22, 48), rows))


def test_a_shape_may_be_all_that_is_wanted_of_an_argument() -> None:
    f = wf.jit(lambda x, y: (wf.zeros(x.shape) + 1, wf.grad(lambda x: (x > 0).sum() * 1.0)(x), y))
    for rows in (3, 5, 0, 7):
        ones, gradient, _ = f(wf.ones((rows, 4)), wf.ones((2,)))
        assert ones.shape == gradient.shape == (rows, 4)
        assert ones.numpy().all()
        assert not gradient.numpy().any()
