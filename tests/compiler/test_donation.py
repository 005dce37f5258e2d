"""State that is written in place: only where nobody else holds it, and not at all if it is off."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from tests.compiler.stored_programs import check_stored

import weft as wf
from weft import nn, optim
from weft.compiler.function.donation import objects_held_once, writable_over

Step = Callable[[wf.Tensor], wf.Tensor]


def a_step() -> tuple[nn.Module, Step]:
    wf.random.seed(3)
    model = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 4))
    optimizer = optim.Adam(model.parameters(), lr=0.01)

    @wf.jit
    def step(x: wf.Tensor) -> wf.Tensor:
        loss = (model(x) ** 2).mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss

    return model, step


def address(x: wf.Tensor) -> int:
    return int(x.detach().numpy().ctypes.data)


def trained(steps: int) -> list[list[Any]]:
    model, step = a_step()
    losses = [step(wf.full((2, 8), 0.5 + i)).item() for i in range(steps)]
    return [losses, *[p.tolist() for p in model.parameters()]]


def test_parameters_stay_where_they_are_when_nobody_else_holds_them() -> None:
    model, step = a_step()
    x = wf.ones((2, 8))
    with wf.settings.changed(in_place_updates=True):
        step(x)
        before = [address(p) for p in model.parameters()]
        step(x)
        assert [address(p) for p in model.parameters()] == before


def test_off_every_result_has_memory_of_its_own() -> None:
    model, step = a_step()
    x = wf.ones((2, 8))
    with wf.settings.changed(in_place_updates=False):
        step(x)
        old = [p._value for p in model.parameters()]
        copies = [array.copy() for array in old]
        step(x)
        new = [p._value for p in model.parameters()]
    assert not any(np.shares_memory(a, b) for a in old for b in new)
    assert all(np.array_equal(a, b) for a, b in zip(old, copies, strict=True))
    assert not any(np.array_equal(a, b) for a, b in zip(old, new, strict=True))


def test_results_are_the_same_on_and_off() -> None:
    found = []
    for is_on in (True, False):
        with wf.settings.changed(in_place_updates=is_on):
            found.append(trained(5))
    assert found[0] == found[1]


def test_the_setting_may_change_between_two_calls() -> None:
    expected = trained(6)
    model, step = a_step()
    losses = []
    for i in range(6):
        with wf.settings.changed(in_place_updates=i % 3 != 0):
            losses.append(step(wf.full((2, 8), 0.5 + i)).item())
    assert [losses, *[p.tolist() for p in model.parameters()]] == expected


def test_what_somebody_holds_is_not_written_over() -> None:
    model, step = a_step()
    x = wf.ones((2, 8))
    with wf.settings.changed(in_place_updates=True):
        step(x)
        views = [p.detach().numpy() for p in model.parameters()]
        handles = [p.detach() for p in model.parameters()]
        copies = [view.copy() for view in views]
        step(x)
    assert all(np.array_equal(a, b) for a, b in zip(views, copies, strict=True))
    assert [h.tolist() for h in handles] == [c.tolist() for c in copies]


def test_memory_reports_count_what_the_setting_costs() -> None:
    _, step = a_step()
    x = wf.ones((2, 8))
    with wf.settings.changed(in_place_updates=True):
        on = step.memory(x)  # type: ignore[attr-defined]
    with wf.settings.changed(in_place_updates=False):
        off = step.memory(x)  # type: ignore[attr-defined]
    assert on.donated > 0 == off.donated
    assert off.peak > on.peak


def test_only_arrays_of_one_handle_are_writable() -> None:
    handles = [wf.ones(3), wf.ones(3), wf.ones((3, 4)).T]
    second = handles[1].detach()
    with wf.settings.changed(in_place_updates=True):
        pairs = {n: (n, n) for n in range(3)}
        assert writable_over([h._value for h in handles], pairs) == [(0, 0)]
        del second
        assert writable_over([h._value for h in handles], pairs) == [(0, 0), (1, 1)]
    with wf.settings.changed(in_place_updates=False):
        assert writable_over([h._value for h in handles], pairs) == []


def test_only_what_a_list_alone_holds_is_unheld() -> None:
    arrays = [np.ones(1), np.zeros(1)]
    other = arrays[1]
    with wf.settings.changed(in_place_updates=True):
        assert [each.item() for each in objects_held_once(arrays)] == [1.0]
    with wf.settings.changed(in_place_updates=False):
        assert objects_held_once(arrays) == []
    assert other is arrays[1]


@pytest.mark.parametrize(("given", "expected"), [("off", "False"), ("on", "True"), ("", "True")])
def test_the_environment_sets_it(given: str, expected: str) -> None:
    program = "import weft as wf; print(wf.settings.in_place_updates)"
    environment = {**os.environ, "WEFT_IN_PLACE": given}
    command = [sys.executable, "-c", program]
    made = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    assert made.stdout.strip() == expected


# --- gradients -----------------------------------------------------------------------------------


def a_step_that_leaves_gradients(classes: int = 4) -> tuple[nn.Module, Any]:
    """The usual order: gradients are cleared at the start, and stay after the step."""
    wf.random.seed(3)
    model = nn.Sequential(nn.Embedding(8, 16), nn.Tanh(), nn.Linear(16, classes))
    optimizer = optim.Adam(model.parameters(), lr=0.01)

    @wf.jit
    def step(tokens: wf.Tensor) -> wf.Tensor:
        optimizer.zero_grad()
        loss = (model(tokens) ** 2).mean()
        loss.backward()
        optimizer.step()
        return loss

    return model, step


def gradients(model: nn.Module) -> list[Any]:
    found = [p.grad for p in model.parameters()]
    assert all(grad is not None for grad in found)
    return found


def test_new_gradients_are_written_over_those_of_the_last_call() -> None:
    model, step = a_step_that_leaves_gradients()
    tokens = wf.tensor([1, 2, 3])
    with wf.settings.changed(in_place_updates=True):
        step(tokens)
        before = [address(grad) for grad in gradients(model)]
        for _ in range(3):
            step(tokens)
            assert [address(grad) for grad in gradients(model)] == before


def test_gradients_are_the_same_whether_they_are_written_over_or_not() -> None:
    found = []
    for is_on in (True, False):
        with wf.settings.changed(in_place_updates=is_on):
            model, step = a_step_that_leaves_gradients()
            losses = [step(wf.tensor([1, 2, n % 8])).item() for n in range(5)]
            found.append([losses, *[grad.tolist() for grad in gradients(model)]])
    assert found[0] == found[1]


@pytest.mark.parametrize("hold", [lambda g: g, lambda g: g.numpy(), lambda g: g.detach()])
def test_a_gradient_that_somebody_holds_keeps_its_value(hold: Callable[[Any], Any]) -> None:
    model, step = a_step_that_leaves_gradients()
    with wf.settings.changed(in_place_updates=True):
        step(wf.tensor([1, 2, 3]))
        held = [hold(grad) for grad in gradients(model)]
        copies = [np.array(x.tolist()) for x in held]
        step(wf.tensor([4, 5, 6]))
        step(wf.tensor([4, 5, 7]))
        assert [np.array_equal(x.tolist(), y) for x, y in zip(held, copies, strict=True)] == [
            True,
            True,
            True,
        ]


def test_gradients_stay_as_they_are_where_a_step_fails() -> None:
    model, step = a_step_that_leaves_gradients()
    with wf.settings.changed(in_place_updates=True):
        step(wf.tensor([1, 2, 3]))
        before = [grad.tolist() for grad in gradients(model)]
        with pytest.raises(wf.WeftError):
            step(wf.tensor([1, 2, 99]))  # no row of the table
        assert [grad.tolist() for grad in gradients(model)] == before


def test_gradients_that_are_added_to_are_read_before_they_are_written() -> None:
    w = wf.tensor(np.ones(3000, np.float32), requires_grad=True)

    @wf.jit
    def add(x: wf.Tensor) -> None:
        (w * x).sum().backward()

    with wf.settings.changed(in_place_updates=True):
        for _ in range(3):
            add(wf.full(3000, 2.0))
    assert w.grad is not None
    assert w.grad.tolist() == [6.0] * 3000


def test_a_gradient_written_before_what_may_fail_has_memory_of_its_own() -> None:
    w = wf.tensor(np.ones(3000, np.float32), requires_grad=True)

    @wf.jit
    def step(x: wf.Tensor, index: wf.Tensor) -> wf.Tensor:
        w.grad = None
        (w * x).sum().backward()
        assert w.grad is not None
        return wf.take(wf.cumsum(w.grad), index)  # the lookup may fail, and reads the gradient

    x = wf.ones(3000)
    with wf.settings.changed(in_place_updates=True):
        step(x, wf.tensor([0]))
        assert step.memory(x, wf.tensor([0])).replaced == 12_000
        with pytest.raises(wf.WeftError):
            step(wf.full(3000, 2.0), wf.tensor([3000]))
    assert w.grad is not None
    assert w.grad.tolist() == [1.0] * 3000


def test_memory_counts_the_last_gradients_only_where_they_stay_beside_the_new_ones() -> None:
    model, step = a_step_that_leaves_gradients(classes=400)
    tokens = wf.tensor([1, 2, 3])
    size = sum(p.size * 4 for p in model.parameters())
    with wf.settings.changed(in_place_updates=True):
        on = step.memory(tokens)
    with wf.settings.changed(in_place_updates=False):
        off = step.memory(tokens)
    assert (on.replaced, off.replaced) == (0, size)
    assert on.outputs == off.outputs - 3 * size  # parameters and two moments
    assert step.explain(tokens).memory.replaced in (0, size)


@pytest.mark.slow
def test_programs_from_disk_write_gradients_over_as_well(tmp_path: Any) -> None:
    program = (
        "import weft as wf, numpy as np\n"
        "w = wf.tensor(np.ones(3000, np.float32), requires_grad=True)\n"
        "def step(x):\n"
        "    w.grad = None\n"
        "    (w * x).sum().backward()\n"
        "step = wf.jit(step)\n"
        "x = wf.ones(3000)\n"
        "step(x)\n"
        "first = w.grad.numpy().ctypes.data\n"
        "step(x)\n"
        "made, = step._compiled.values()\n"
        "print(type(made.program).__name__, w.grad.numpy().ctypes.data == first)\n"
    )
    check_stored(program, tmp_path, WEFT_IN_PLACE="on")


# --- views ---------------------------------------------------------------------------------------


def test_a_view_of_a_whole_array_that_nobody_else_holds_is_written_over() -> None:
    state = wf.asarray(np.ones((30, 100), np.float32).reshape(3000))

    @wf.jit
    def step() -> None:
        state.copy_(state * 2)

    with wf.settings.changed(in_place_updates=True):
        before = address(state)
        step()
        step()
        assert address(state) == before
    assert state.tolist() == [4.0] * 3000


def test_a_view_of_an_array_that_somebody_holds_is_not_written_over() -> None:
    base = np.ones((30, 100), np.float32)
    part = np.ones((2, 3000), np.float32)
    states = [wf.asarray(base.reshape(3000)), wf.asarray(part[0])]
    del part

    @wf.jit
    def step() -> None:
        for state in states:
            state.copy_(state * 2)

    with wf.settings.changed(in_place_updates=True):
        before = address(states[1])
        step()
        assert address(states[1]) != before
        step()
    assert np.array_equal(base, np.ones((30, 100)))
    assert [state.tolist() for state in states] == [[4.0] * 3000] * 2


def test_the_first_step_writes_over_parameters_as_they_were_initialised() -> None:
    wf.random.seed(1)
    model = nn.Linear(64, 64)
    nn.init.normal_(model.weight)
    optimizer = optim.SGD(model.parameters(), lr=0.1)

    @wf.jit
    def step(x: wf.Tensor) -> None:
        optimizer.minimize((model(x) ** 2).mean())

    with wf.settings.changed(in_place_updates=True):
        before = [address(p) for p in model.parameters()]
        step(wf.ones((2, 64)))
        assert [address(p) for p in model.parameters()] == before
