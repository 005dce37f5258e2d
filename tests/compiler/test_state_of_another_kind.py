"""Compiled calls that leave state of another kind than they were given: each call has its program.

A longer cache, another dtype, a gradient where there was none: what is told again of a call must be
the state that it was given, and not the state that it left.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from tests.compiler.cuda.host_card import host_card

import weft as wf

Call = Callable[[], Any]
Reset = Callable[[], Any]


@pytest.fixture(params=["cpu", "cuda"])
def device(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Tensors are made on the processor, or on a card that is imitated."""
    if request.param == "cpu":
        yield
        return
    with host_card(monkeypatch), wf.default_device("cuda"):
        yield


def longer_cache(compiled: bool) -> tuple[Call, Reset]:
    cache, x = wf.zeros(2), wf.ones(1)

    def step(x: wf.Tensor) -> wf.Tensor:
        cache.set_(wf.concat([cache, 2 * x]))
        return cache.sum()

    step = wf.jit(step) if compiled else step
    return lambda: (step(x).item(), cache.tolist()), lambda: cache.set_(wf.zeros(2))


def longer_argument(compiled: bool) -> tuple[Call, Reset]:
    cache, x = wf.zeros(2), wf.ones(1)

    def step(cache: wf.Tensor, x: wf.Tensor) -> wf.Tensor:
        cache.set_(wf.concat([cache, 2 * x]))
        return cache.sum()

    step = wf.jit(step) if compiled else step
    return lambda: (step(cache, x).item(), cache.tolist()), lambda: cache.set_(wf.zeros(2))


def other_dtype(compiled: bool) -> tuple[Call, Reset]:
    state, x = wf.zeros(2), wf.ones(2)

    def step(x: wf.Tensor) -> wf.Tensor:
        state.set_((state + x).astype("int32" if state.dtype is wf.float32 else "float32"))
        return state.sum()

    step = wf.jit(step) if compiled else step
    return lambda: (step(x).item(), state.dtype, state.tolist()), lambda: state.set_(wf.zeros(2))


def added_gradients(compiled: bool) -> tuple[Call, Reset]:
    net, x = wf.nn.Linear(2, 1), wf.ones((1, 2))
    net.load_state_dict({"weight": wf.ones((1, 2)), "bias": wf.zeros(1)})

    def step(x: wf.Tensor) -> wf.Tensor:
        loss: wf.Tensor = net(x).sum()
        loss.backward()
        return loss

    def reset() -> None:
        net.weight.grad = net.bias.grad = None

    step = wf.jit(step) if compiled else step
    return lambda: (step(x).item(), net.weight.grad.tolist(), net.bias.grad.tolist()), reset


def added_gradients_of_arguments(compiled: bool) -> tuple[Call, Reset]:
    w, x = wf.tensor([1.0, 2.0], requires_grad=True), wf.ones(2)

    def step(w: wf.Tensor, x: wf.Tensor) -> wf.Tensor:
        loss = (w * x).sum()
        loss.backward()
        return loss

    def reset() -> None:
        w.grad = None

    step = wf.jit(step) if compiled else step
    return lambda: (step(w, x).item(), w.grad.tolist()), reset  # type: ignore[union-attr]


def cleared_gradients(compiled: bool) -> tuple[Call, Reset]:
    w, x = wf.tensor([1.0, 2.0], requires_grad=True), wf.ones(2)

    def step(w: wf.Tensor, x: wf.Tensor) -> wf.Tensor:
        found = x.sum() if w.grad is None else 3 * x.sum()
        w.grad = None
        return found

    def reset() -> None:
        w.grad = wf.ones(2)

    step = wf.jit(step) if compiled else step
    return lambda: step(w, x).item(), reset


@pytest.mark.usefixtures("device")
@pytest.mark.parametrize(
    "program",
    [
        longer_cache,
        longer_argument,
        other_dtype,
        added_gradients,
        added_gradients_of_arguments,
        cleared_gradients,
    ],
)
def test_a_call_that_leaves_state_of_another_kind_is_not_taken_for_the_next_one(
    program: Callable[[bool], tuple[Call, Reset]],
) -> None:
    found: list[list[Any]] = []
    for compiled in (False, True):
        call, reset = program(compiled)
        found.append([])
        for _ in range(6):
            reset()
            found[-1] += [call() for _ in range(4)]
    assert found[1] == found[0]
