"""Programs of every kind in the checking mode: none touches what is not its own."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import weft as wf
from weft.nn import functional

pytestmark = pytest.mark.slow

Array = np.ndarray[Any, Any]
Function = Callable[..., Any]
Case = tuple[Function, tuple[tuple[int, ...], ...]]


def joined(h: wf.Tensor) -> wf.Tensor:
    """A value, itself turned round, and its first row."""
    return wf.concat([h, wf.flip(h, axis=0) * 2, h[:1]], axis=0)


def squared(f: Function, count: int) -> Function:
    """The gradient of the sum of the squares of what a function returns."""
    return wf.grad(lambda *xs: (f(*xs) ** 2).sum(), argnums=tuple(range(count)))


JOINS: list[Case] = [
    (lambda a: joined(joined(a)) @ joined(joined(a)).T, ((143, 48),)),
    (lambda a: joined(joined(a)).sum(axis=0), ((64, 64),)),
    (lambda a: wf.concat([a * 2, a], axis=0).sum(), ((64, 64),)),
    (lambda a: wf.concat([a, wf.exp(a), a[:, :3]], axis=1).max(axis=1), ((33, 31),)),
    (lambda a: wf.flip(wf.concat([a, a * 3], axis=1), axis=1) * 2, ((20, 30),)),
    (lambda a, b: wf.concat([a, b], axis=0)[5:90] + 1, ((64, 32), (64, 32))),
    (lambda a, b: wf.where(wf.concat([a, b], axis=0) > 0, 1.0, 2.0), ((7, 5), (9, 5))),
    (lambda a: wf.concat([wf.concat([a, a * 2], axis=0) * 3, a], axis=0)[::3], ((16, 64),)),
    (lambda a: wf.stack([a, a * 2, wf.flip(a, axis=0)], axis=1).sum(axis=0), ((40, 24),)),
    (lambda a: wf.roll(a, 3, axis=0) * 2, ((64, 16),)),
    (lambda a: wf.pad(wf.concat([a, a], axis=0), ((3, 2), (1, 0))) + 1, ((31, 33),)),
    (lambda a: wf.scan(lambda h, r: (h + r, h * r), a[0], joined(a))[1], ((34, 21),)),
]
PRODUCTS: list[Case] = [
    (f, shapes)
    for n, k, m in [(64, 64, 64), (7, 5, 3), (33, 100, 17), (300, 1, 16)]
    for f, shapes in [
        (lambda a, b: wf.relu(a @ b) + 1, ((n, k), (k, m))),
        (lambda a, b: wf.relu(a.T @ b) + 1, ((k, n), (k, m))),
        (lambda a, b: wf.relu(a @ b.T) + 1, ((n, k), (m, k))),
        (lambda a, b: wf.softmax(a @ b), ((2, n, k), (2, k, m))),
        (lambda a, b: a @ b * 2, ((n, k), (k,))),
        (lambda a, b: b @ a * 2, ((k, n), (k,))),
        (lambda a, b: a[:, None] @ b[None], ((n,), (m,))),
    ]
]
ROWS: list[Case] = [
    (f, (shape,))
    for shape in [(64, 64), (33, 17), (1, 31)]
    for f in [
        lambda a: wf.softmax(a) * 2,
        lambda a: functional.layer_norm(a, (a.shape[-1],)),
        lambda a: a.sum(axis=0) * a.max(axis=0),
        lambda a: wf.cumulative_sum(a, axis=1),
        lambda a: wf.sort(a, axis=0),
        lambda a: wf.flip(a, axis=1)[1:, ::2].sum(axis=1),
        lambda a: a.T.sum(axis=1) + a[0],
        lambda a: wf.take(a, wf.tensor([0, a.shape[0] - 1]), axis=0),
        lambda a: wf.pad(a, ((2, 1), (0, 3))).sum(axis=0),
    ]
]
WINDOWS: list[Case] = [
    (lambda x, w: functional.conv2d(x, w, padding=1), ((2, 3, 16, 16), (4, 3, 3, 3))),
    (lambda x, w: functional.conv2d(x, w, padding=1), ((2, 32, 16, 16), (32, 32, 3, 3))),
    (lambda x, w: functional.conv2d(x, w, stride=2), ((2, 5, 9, 11), (7, 5, 3, 2))),
    (lambda x, w: functional.conv2d(x, w, padding=1, groups=8), ((2, 8, 9, 9), (8, 1, 3, 3))),
    (lambda x, w: functional.conv1d(x, w, padding=2, dilation=2), ((3, 4, 31), (5, 4, 3))),
    (lambda x, w: functional.conv_transpose2d(x, w, stride=2), ((2, 4, 7, 7), (4, 3, 3, 3))),
    (lambda x: functional.max_pool2d(x, 2), ((2, 3, 9, 11),)),
    (lambda x: functional.avg_pool2d(x, 3, stride=2, padding=1), ((2, 3, 9, 11),)),
]
ATTENTION: list[Case] = [
    (
        lambda q, k, v: functional.scaled_dot_product_attention(q, k, v),
        ((2, n, d), (2, m, d), (2, m, d)),
    )
    for n, m, d in [(64, 64, 32), (5, 7, 3), (33, 17, 20)]
]
KINDS = {
    "joins": JOINS,
    "products": PRODUCTS,
    "rows": ROWS,
    "windows": WINDOWS,
    "attention": ATTENTION,
}


@pytest.mark.parametrize(
    ("kind", "dtype"), [*[(k, "float32") for k in KINDS], ("joins", "float64")]
)
def test_programs_and_their_gradients_keep_to_their_memory(kind: str, dtype: str) -> None:
    for f, shapes in KINDS[kind]:
        check(f, shapes, dtype)
        check(squared(f, len(shapes)), shapes, dtype)


def check(f: Function, shapes: tuple[tuple[int, ...], ...], dtype: str) -> None:
    rng = np.random.default_rng(3)
    arguments = [wf.asarray(rng.standard_normal(shape).astype(dtype)) for shape in shapes]
    with wf.settings.changed(compiler=False):
        wanted = f(*arguments)
    with wf.testing.checked_memory():
        found = wf.jit(f)(*arguments)
    for got, want in zip(leaves(found), leaves(wanted), strict=True):
        largest = np.abs(want).max(initial=1.0)  # sums of that size may cancel
        np.testing.assert_allclose(got, want, rtol=1e-3, atol=max(1e-3, 1e-5 * largest))


def leaves(found: Any) -> list[Array]:
    return [x.numpy() for x in (found if isinstance(found, tuple) else (found,))]
