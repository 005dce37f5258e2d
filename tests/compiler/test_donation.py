"""State that is written in place: only where nobody else holds it, and not at all if it is off."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import weft as wf
from weft import nn, optim
from weft.compiler.function.donation import unheld, writable_over

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
        assert [each.item() for each in unheld(arrays)] == [1.0]
    with wf.settings.changed(in_place_updates=False):
        assert unheld(arrays) == []
    assert other is arrays[1]


@pytest.mark.parametrize(("given", "expected"), [("off", "False"), ("on", "True"), ("", "True")])
def test_the_environment_sets_it(given: str, expected: str) -> None:
    program = "import weft as wf; print(wf.settings.in_place_updates)"
    environment = {**os.environ, "WEFT_IN_PLACE": given}
    command = [sys.executable, "-c", program]
    made = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    assert made.stdout.strip() == expected
