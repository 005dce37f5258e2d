"""Programs to export, each with example arguments: one for each kind of launch and of state."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

import weft as wf
from weft import nn

Program = tuple[Callable[..., Any], list[wf.Tensor]]
PROGRAMS: dict[str, Callable[[], Program]] = {}


def numbers(*shape: int, seed: int = 0, dtype: str = "float32") -> wf.Tensor:
    return wf.tensor(np.random.default_rng(seed).normal(size=shape).astype(dtype))


def program(make: Callable[[], Program]) -> Callable[[], Program]:
    PROGRAMS[make.__name__] = make
    return make


@program
def elementary_functions() -> Program:
    def f(x: wf.Tensor, y: wf.Tensor) -> Any:
        return {"power": wf.exp(x) * y, "wave": (wf.tanh(x), wf.sin(y)), "error": wf.erf(x)}

    return f, [numbers(37), numbers(37, seed=1)]


@program
def a_perceptron() -> Program:
    wf.random.seed(0)
    return nn.Sequential(nn.Linear(20, 16), nn.ReLU(), nn.Linear(16, 4)), [numbers(3, 20)]


@program
def convolutions() -> Program:
    near, wide = numbers(8, 3, 3, 3), numbers(32, 32, 3, 3, seed=2)
    more = numbers(32, 8, 1, 1, seed=3)

    def f(x: wf.Tensor) -> wf.Tensor:
        y = wf.conv2d(wf.relu(wf.conv2d(x, near, padding=1)), more)
        return nn.functional.max_pool2d(wf.conv2d(y, wide, padding=1), 2)

    return f, [numbers(2, 3, 12, 12)]


@program
def a_turned_product() -> Program:
    return lambda a, b: a.T @ b, [numbers(70, 200), numbers(70, 90)]


@program
def orders_and_rows() -> Program:
    table = numbers(20, 8)

    def f(i: wf.Tensor, x: wf.Tensor) -> Any:
        return table[i] * 2, wf.sort(x, axis=-1), wf.argsort(x, axis=0), wf.cumsum(x, axis=1)

    return f, [wf.tensor([3, 5, 19]), numbers(9, 60)]


@program
def one_row_of_a_table() -> Program:
    """A gather whose loop is as long as its check says, and a place that is written."""
    table = numbers(9, 4)

    def f(row: wf.Tensor) -> Any:
        written = wf.dynamic_update_slice(table, table[row][None] * 2, (row, 0))
        return table[row], written, wf.take(table, row[None] - 4, axis=0)

    return f, [wf.tensor(3)]


@program
def loops() -> Program:
    w = numbers(5, 5)

    def f(n: wf.Tensor, xs: wf.Tensor) -> Any:
        h, sums = wf.scan(lambda h, x: (wf.tanh(h @ w + x), h.sum()), wf.zeros(5), xs)
        back = wf.scan(lambda h, x: (h * 0.5 + x, h), h, xs[1:], reverse=True)[1]
        _, a, b = wf.while_loop(
            lambda c: c[0] < n,
            lambda c: (c[0] + 1, c[2], c[1] + c[2]),
            (wf.tensor(0), wf.tensor(0), wf.tensor(1)),
        )
        return sums, back, a, b

    return f, [wf.tensor(11), numbers(8, 5)]


@program
def choices() -> Program:
    def f(i: wf.Tensor, x: wf.Tensor) -> Any:
        some = wf.switch(i, [lambda x: x * 2, lambda x: wf.exp(x) + x.sum(), lambda x: x @ x], x)
        return some, wf.cond(x.sum() > 0, lambda x: x + 1, lambda x: x - 1, x)

    return f, [wf.tensor(1), numbers(6, 6)]


@program
def random_numbers() -> Program:
    wf.random.seed(3)
    return lambda x: x + wf.random.normal((5,)), [numbers(5)]


@program
def state_that_changes_places() -> Program:
    a, b = numbers(4), numbers(4, seed=1)

    def f(x: wf.Tensor) -> wf.Tensor:
        old = a + 0
        a.copy_(b)
        b.copy_(old * x)
        return a - b

    return f, [numbers(4, seed=2)]


@program
def a_step_of_training() -> Program:
    wf.random.seed(1)
    net = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 2))
    optimizer = wf.optim.Adam(net.parameters(), lr=1e-2)

    def step(x: wf.Tensor, y: wf.Tensor) -> wf.Tensor:
        optimizer.zero_grad()
        loss = ((net(x) - y) ** 2).mean()
        loss.backward()
        optimizer.step()
        return loss

    return step, [numbers(16, 6), numbers(16, 2, seed=1)]


@program
def a_recurrent_layer() -> Program:
    wf.random.seed(2)
    return nn.LSTM(4, 6), [numbers(3, 7, 4)]


@program
def many_dtypes() -> Program:
    def f(a: wf.Tensor, b: wf.Tensor, c: wf.Tensor) -> Any:
        return wf.relu(a @ a.T), b @ b, c // 3, c % 5 > 2

    short = numbers(5, 7).astype("bfloat16")
    return f, [short, numbers(5, 5, dtype="float64"), wf.tensor(np.arange(-9, 9, dtype="int32"))]


@program
def results_that_are_inputs() -> Program:
    return lambda x: (x, wf.ones(3), x.reshape(2, 3), x), [numbers(6)]
