"""Assignments inside of compiled functions: by every kind of index, to tensors and to state."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import weft as wf
from weft.compiler.function.recording import record
from weft.core import trees
from weft.ir.tensor import Tensor

Function = Callable[..., Any]

KEYS: dict[str, Any] = {
    "all": slice(None),
    "all from 0": slice(0, None),
    "ellipsis": ...,
    "new axis": None,
    "true": True,
    "first": 0,
    "last": -1,
    "from": slice(3, None),
    "steps": slice(None, None, 2),
    "backwards": slice(None, None, -1),
    "nothing": slice(2, 2),
    "column": (slice(None), 1),
    "element": (2, -1),
    "box": (slice(1, None), slice(None, None, 2)),
    "rows": [0, 2],
    "a row twice": [1, 1],
}


def numbers(*shape: int) -> Tensor:
    return wf.asarray(np.random.default_rng(len(shape)).normal(size=shape).astype(np.float32))


def agree(f: Function, *arguments: Tensor) -> None:
    pairs = zip(trees.leaves(wf.jit(f)(*arguments)), trees.leaves(f(*arguments)), strict=True)
    for found, expected in pairs:
        assert found.type == expected.type
        np.testing.assert_allclose(found.numpy(), expected.numpy(), rtol=1e-5, atol=1e-6)


def index(name: str) -> Any:
    key = KEYS[name]
    return wf.tensor(key) if isinstance(key, list) else key


@pytest.mark.slow
@pytest.mark.parametrize("second", KEYS)
@pytest.mark.parametrize("first", ["all", "all from 0", "ellipsis", "from", "backwards"])
def test_one_assignment_after_another_is_compiled(first: str, second: str) -> None:
    w = numbers(3, 2)

    def assigned(x: Tensor) -> Tensor:
        y = x.clone()
        y[index(first)] = 0.5
        y[index(second)] = 1.0
        y[1:] = y[:-1] * x[1:]
        return y

    x = numbers(5, 3)
    agree(lambda x: (assigned(x), assigned(x) @ w), x)
    agree(wf.grad(lambda x: (assigned(x) @ w).sum()), x)
    agree(wf.vmap(assigned), wf.stack([x, -x]))
    agree(lambda x: wf.scan(lambda h, _: (assigned(h), h[0]), x, length=3), x)


@pytest.mark.parametrize("value", [2, True, "float64", "int32", "row"])
def test_what_is_assigned_is_broadcast_and_converted(value: Any) -> None:
    def f(x: Tensor) -> Tensor:
        y = x * 1
        y[:] = wf.arange(3) if value == "row" else wf.ones(3, dtype=value) if isinstance(
            value, str) else value  # fmt: skip
        y[::2] = x[::2]
        return y

    agree(f, numbers(5, 3))


WRITES: dict[str, Callable[[Tensor, Tensor], object]] = {
    "a part": lambda state, x: state.__setitem__(slice(1, None), 4.0),
    "the whole": lambda state, x: state.__setitem__(slice(None), 4.0),
    "the whole, then a part": lambda state, x: (
        state.__setitem__(..., 4.0),
        state.__setitem__(0, x[0]),
    ),
    "a constant": lambda state, x: state.copy_(wf.tensor([5.0, 6.0, 7.0])),
    "a constant, then more": lambda state, x: state.copy_(wf.tensor([5.0, 6.0, 7.0])).copy_(
        state + 1
    ),
    "a number": lambda state, x: state.fill_(3.0),
    "another tensor": lambda state, x: state.set_(wf.tensor([1.0, 2.0, 3.0])),
}


@pytest.mark.parametrize("write", WRITES)
def test_state_holds_what_was_assigned_and_reads_as_that(write: str) -> None:
    def step(state: dict[str, Tensor], x: Tensor) -> Tensor:
        WRITES[write](state["held"], x)
        return state["held"] * x

    def closed_over(held: dict[str, Tensor]) -> Function:
        return lambda x: step(held, x)

    eager, compiled, x = ({"held": numbers(3)} for _ in range(2)), {"held": numbers(3)}, numbers(3)
    known, fast = next(eager), wf.jit(closed_over(compiled))
    for _ in range(2):
        np.testing.assert_array_equal(fast(x).numpy(), step(known, x).numpy())
        np.testing.assert_array_equal(compiled["held"].numpy(), known["held"].numpy())


def test_what_a_function_makes_writes_to_and_lets_go_of_is_no_state() -> None:
    x = numbers(3)

    def f() -> Tensor:
        made = wf.tensor([1.0, 2.0, 3.0])
        made[1:] = x[1:]
        made[:] = 0.5
        made[0] = x[0]
        return made * 2

    recording = record([x], f)
    assert recording.writes == ()
    assert [source.argument for source in recording.sources] == [0]


def test_what_is_kept_from_a_call_is_made_anew_by_the_next() -> None:
    kept = []

    def f(x: Tensor) -> Tensor:
        made = wf.tensor([1.0, 2.0, 3.0])
        made += 1
        kept.append(made)
        return made * x

    fast, x = wf.jit(f), wf.ones(3)
    assert [fast(x).tolist() for _ in range(3)] == [[2.0, 3.0, 4.0]] * 3


def shifted(x: Tensor) -> Tensor:
    y = x.clone()
    y[-1] = x[-1] * 2
    y[1:] = y[:-1]
    return y


def layered(x: Tensor) -> Tensor:
    y = x.clone()
    y[:] = 0.5
    y[3:] = 1.0
    y[-1] = 7.0
    y[::2] = x[::2]
    return y


SIZED: dict[str, Function] = {
    "parts": layered,
    "a part of itself": shifted,
    "backwards": lambda x: layered(x)[::-2],
    "nothing but the size": lambda x: wf.zeros(x.shape) + x.shape[0],
    "a whole tensor of one number": lambda x: (x * 1).fill_(2.0),
    "two sizes": lambda x: (wf.ones(x.shape[0]), wf.ones(x.shape[1]) * 2),
}


@pytest.mark.parametrize("name", SIZED)
def test_assignments_are_compiled_for_all_sizes(name: str) -> None:
    fast = wf.jit(SIZED[name])
    for size in ((5, 3), (6, 3), (9, 4), (5, 7)):
        x = numbers(*size)
        expected = trees.leaves(SIZED[name](x))
        for found, known in zip(trees.leaves(fast(x)), expected, strict=True):
            np.testing.assert_array_equal(found.numpy(), known.numpy())
