"""A call that is just like the last one takes a short way, and nothing else does."""

from __future__ import annotations

import gc
import itertools
import os
import subprocess
import sys
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from tests.quiet import wait_for_quiet

import weft as wf
from weft import nn
from weft.compiler.function.fastcall import memory_words
from weft.compiler.function.fastcall.held_state import HeldStep
from weft.compiler.function.fastcall.last_call import KnownCall
from weft.compiler.targets.cpu.runtime import executable
from weft.compiler.targets.cpu.runtime.entry_points import entries
from weft.compiler.targets.cpu.target import CpuTarget
from weft.core import unchanged


@pytest.fixture(autouse=True)
def without_gradients() -> Iterator[None]:
    with wf.no_grad(), wf.settings.changed(fastcall=True):
        yield


@pytest.fixture
def hits(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Whether each call since the first was known."""
    found: list[bool] = []
    inner = KnownCall.handles

    def handles(self: KnownCall, *given: Any) -> Any:
        answer = inner(self, *given)
        found.append(answer is not None)
        return answer

    inner_step = HeldStep.arrays

    def arrays(self: HeldStep, *given: Any) -> Any:
        answer = inner_step(self, *given)
        found.append(answer is not None)
        return answer

    monkeypatch.setattr(KnownCall, "handles", handles)
    monkeypatch.setattr(HeldStep, "arrays", arrays)
    return found


def apply(net: Any, x: wf.Tensor, *rest: Any) -> wf.Tensor:
    return net(x) * 2


def warm(f: Callable[..., Any], *args: Any) -> None:
    for _ in range(3):
        f(*args)


def agrees(f: Callable[..., Any], net: Any, x: wf.Tensor, *rest: Any) -> bool:
    got, wanted = f(net, x, *rest).numpy(), (net(x) * 2).numpy()
    return got.shape == wanted.shape and bool(np.allclose(got, wanted, atol=1e-5))


def test_the_third_call_is_known(hits: list[bool]) -> None:
    f, net = wf.jit(apply), nn.Linear(3, 2)
    for _ in range(5):
        assert agrees(f, net, wf.ones((4, 3)))
    assert hits == [True, True, True]


def test_closed_over_modules_and_tensors_are_known(hits: list[bool]) -> None:
    net, scale = nn.Linear(3, 2), wf.tensor(2.0)
    f = wf.jit(lambda x: net(x) * scale)
    x = wf.ones((4, 3))
    for number in range(5):
        scale = wf.tensor(float(number))
        assert np.allclose(f(x).numpy(), (net(x) * scale).numpy(), atol=1e-5)
    assert hits == [True, True, True]


def other_array(net: nn.Linear) -> None:
    net.weight.copy_(net.weight * 3)


def other_gradient(net: nn.Linear) -> None:
    net.weight.grad = wf.ones((2, 3))


def other_mark(net: nn.Linear) -> None:
    net.weight.requires_grad_(False)


@pytest.mark.parametrize("change", [other_array, other_gradient, other_mark])
def test_what_a_tensor_of_a_module_holds_is_seen(
    hits: list[bool], change: Callable[[nn.Linear], None]
) -> None:
    f, net, x = wf.jit(apply), nn.Linear(3, 2), wf.ones((4, 3))
    warm(f, net, x)
    change(net)
    hits.clear()
    for _ in range(4):
        assert agrees(f, net, x)
    assert (hits[0], hits[-1]) == (False, True)


@pytest.mark.parametrize(
    "other",
    [
        wf.ones((5, 3)),
        wf.ones((1, 3)),
        wf.ones((3,)),
        wf.ones((4, 3), dtype="float64"),
        wf.ones((4, 3), dtype="float16"),
        wf.ones((4, 3)).requires_grad_(),
    ],
    ids=str,
)
def test_another_tensor_is_looked_at(hits: list[bool], other: wf.Tensor) -> None:
    f, net, x = wf.jit(apply), nn.Linear(3, 2), wf.ones((4, 3))
    warm(f, net, x)
    hits.clear()
    got, wanted = f(net, other), net(other) * 2
    assert got.dtype == wanted.dtype
    assert np.allclose(got.numpy(), wanted.numpy(), atol=1e-2)
    assert hits == [False]


def test_another_module_is_another_call(hits: list[bool]) -> None:
    f, x = wf.jit(apply), wf.ones((4, 3))
    nets = [nn.Linear(3, 2), nn.Linear(3, 2), nn.Linear(3, 5), nn.Sequential(nn.Linear(3, 2))]
    warm(f, nets[0], x)
    for net in [*nets[1:], *nets]:
        assert agrees(f, net, x)


@pytest.mark.parametrize("pair", [(1, True), (2, 3), ("a", "b"), (None, 0), (1, 1.0)], ids=str)
def test_values_are_told_apart(pair: tuple[Any, Any]) -> None:
    seen: list[Any] = []
    f, x = wf.jit(lambda x, value: (seen.append(value), x * 1)[1]), wf.ones(2)
    warm(f, x, pair[0])
    warm(f, x, pair[1])
    assert [type(value) for value in seen] == [type(value) for value in pair]


def test_more_and_fewer_arguments() -> None:
    f, x = wf.jit(lambda *given, scale=1.0: sum(given) * scale), wf.ones(2)
    warm(f, x, x)
    warm(f, x)
    a, b, c = (wf.tensor([float(i)]) for i in range(3))
    warm(f, a, b)
    assert f(a, b, c).item() == 3.0
    assert f(b, c, scale=2.0).item() == 6.0
    assert f(b, c).item() == 3.0


def test_one_handle_in_two_places_is_one_input() -> None:
    f = wf.jit(lambda a, b: a - 2 * b)
    a, b = wf.ones(2), wf.ones(2) * 3
    warm(f, a, b)
    assert f(a, a).tolist() == [-1.0, -1.0]
    assert f(a, b).tolist() == [-5.0, -5.0]


def test_a_tensor_of_the_module_as_data() -> None:
    f, net = wf.jit(apply), nn.Linear(3, 3)
    x = net.weight.detach()
    warm(f, net, x)
    for _ in range(3):
        assert agrees(f, net, net.weight)
        assert agrees(f, net, x)


def test_an_array_in_the_place_of_another_is_not_taken_for_it() -> None:
    f, x = wf.jit(lambda held, x: (held.weight * x).sum()), wf.ones(1)
    net = nn.Module()
    net.weight = wf.ones(4)
    warm(f, net, x)
    for size in (3, 4, 5, 4, 3, 2, 4) * 4:
        net.weight.set_(wf.ones(size))
        gc.collect()
        assert f(net, x).item() == size


def test_arrays_of_others_are_read_anew() -> None:
    array = np.ones((2, 3), np.float32)
    net = nn.Linear(3, 2)
    net.weight.set_(wf.asarray(array))
    f, x = wf.jit(apply), wf.ones((4, 3))
    for factor in range(5):
        array[:] = factor
        assert agrees(f, net, x)


def test_inputs_that_are_not_contiguous_are_copied() -> None:
    f, net = wf.jit(apply), nn.Linear(96, 64)
    wide = np.arange(64 * 96, dtype=np.float32).reshape(96, 64) / 1000
    plain, turned = wf.tensor(wide.T.copy()), wf.asarray(wide.T)
    for x in (turned, plain, turned, plain, plain, plain, turned, plain):
        assert agrees(f, net, x)
    g = wf.jit(apply)
    for x in (plain, plain, plain, turned, plain):
        assert agrees(g, net, x)


def test_an_error_is_reported_and_the_next_call_is_right(hits: list[bool]) -> None:
    net = nn.Embedding(5, 2)
    f, good, bad = wf.jit(lambda net, i: net(i)), wf.tensor([1, 4]), wf.tensor([1, 7])
    warm(f, net, good)
    for _ in range(2):
        with pytest.raises(wf.WeftError):
            f(net, bad)
        assert np.array_equal(f(net, good).numpy(), net(good).numpy())
    assert all(hits)


def test_calls_in_turns_give_up_and_stay_right(hits: list[bool]) -> None:
    f, net = wf.jit(apply), nn.Linear(3, 2)
    made: list[Any] = []
    for number in range(60):
        assert agrees(f, net, wf.ones((2 + number % 2, 3)))
        made.append(f._repeated.last)
    changes = [a is not b for a, b in itertools.pairwise(made)]
    assert sum(changes[30:]) < sum(hits[30:]) / 2


def test_state_that_is_given_is_read_anew_and_written_back(hits: list[bool]) -> None:
    @wf.jit
    def step(net: Any, state: dict[str, Any], x: wf.Tensor, scale: float) -> wf.Tensor:
        state["sum"].copy_(state["sum"] + net(x) * scale)
        state["calls"][0].copy_(state["calls"][0] + 1)
        return state["sum"] * 1

    net, x = nn.Linear(3, 2), wf.ones((4, 3))
    state = {"sum": wf.zeros((4, 2)), "calls": [wf.tensor(0)]}
    for number in range(1, 7):
        found = step(net, state, x, 0.5)
        assert np.allclose(found.numpy(), net(x).numpy() * 0.5 * number, atol=1e-5)
    assert state["calls"][0].item() == 6
    assert hits == [True, True, True, True]
    step(net, state, x, 1.0)
    assert hits.pop() is False
    assert np.allclose(state["sum"].numpy(), net(x).numpy() * 4, atol=1e-5)
    for _ in range(3):
        step(net, state, x, 1.0)
    assert hits.pop() is True
    state["calls"].append(wf.tensor(1))
    step(net, state, x, 1.0)
    assert hits.pop() is False
    assert np.allclose(state["sum"].numpy(), net(x).numpy() * 8, atol=1e-5)


def test_what_a_module_holds_may_be_written_by_calls_that_are_known(hits: list[bool]) -> None:
    net = nn.BatchNorm1d(3)
    eager = nn.BatchNorm1d(3)
    f = wf.jit(lambda net, x: net(x))
    for number in range(6):
        x = wf.arange(12.0).reshape((4, 3)) * number
        assert np.allclose(f(net, x).numpy(), eager(x).numpy(), atol=1e-4)
    assert np.allclose(net.running_var.numpy(), eager.running_var.numpy(), rtol=1e-5)
    assert any(hits) or not wf.settings.in_place_updates
    f(net, x)
    held = net.running_var.numpy()  # which is not written over
    before = held.copy()
    for _ in range(3):
        f(net, x)
    assert np.array_equal(held, before)
    for _ in range(4):
        eager(x)
    assert np.allclose(net.running_var.numpy(), eager.running_var.numpy(), rtol=1e-5)


def test_arguments_that_are_not_read() -> None:
    f = wf.jit(lambda a, b, c: b * 2)
    a, b, c = wf.ones(2), wf.ones(3) * 5, wf.ones(4)
    for _ in range(5):
        assert f(a, b, c).tolist() == [10.0, 10.0, 10.0]
    g = wf.jit(lambda a, b: a * 2)
    for _ in range(5):
        assert g(b, c).tolist() == [10.0, 10.0, 10.0]


def test_random_numbers_go_on() -> None:
    f = wf.jit(lambda x: x + wf.random.uniform((2,)))
    drawn = {tuple(f(wf.zeros(2)).tolist()) for _ in range(6)}
    assert len(drawn) == 6


def test_results_of_any_form() -> None:
    net, x = nn.Linear(3, 2), wf.ones((4, 3))
    f = wf.jit(lambda net, x: {"y": net(x), "n": 3, "x": [x, net.weight]})
    for _ in range(5):
        found = f(net, x)
        assert np.allclose(found["y"].numpy(), net(x).numpy(), atol=1e-6)
        assert found["n"] == 3
        assert found["x"][1].shape == (2, 3)


def test_modes_settings_and_transforms_hold(hits: list[bool]) -> None:
    f, net, x = wf.jit(apply), nn.Linear(3, 2), wf.ones((4, 3))
    warm(f, net, x)
    with wf.enable_grad():
        assert f(net, x).requires_grad
    assert not f(net, x).requires_grad
    with wf.settings.changed(compiler=False):
        assert agrees(f, net, x)
    with wf.debug.nans(), pytest.raises(wf.NanError):
        f(net, x * float("nan"))
    assert wf.vmap(lambda x: f(net, x))(wf.ones((5, 4, 3))).shape == (5, 4, 2)
    assert agrees(f, net, x)


@pytest.mark.slow
def test_nothing_is_kept_alive() -> None:
    f, net, x = wf.jit(apply), nn.Linear(3, 2), wf.ones((4, 3))
    warm(f, net, x)
    assert f._repeated.last is not None
    seen = [weakref.ref(each) for each in (net.weight._value, x, x._value)]
    net.weight.set_(wf.ones((2, 3)))
    del x
    wait_for_quiet()
    assert all(each() is None for each in seen)


def test_places_that_are_not_found_make_no_known_calls(
    hits: list[bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(memory_words, "tensor_slots", lambda: None)
    f, net = wf.jit(apply), nn.Linear(3, 2)
    for _ in range(4):
        assert agrees(f, net, wf.ones((4, 3)))
    assert not hits


def test_without_functions_of_the_interpreters_form_all_is_as_right(
    hits: list[bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(executable, "entries", lambda: None)
    monkeypatch.setattr(CpuTarget, "memory_comparison", lambda self: None)
    monkeypatch.setattr(unchanged, "QUICKER", [])
    f, net = wf.jit(lambda net, x: (net(x) * 3.25, x, x.reshape((3, 4)), 1.0)), nn.Linear(3, 2)
    for number in range(4):
        x = wf.ones((4, 3)) * number
        y, same, turned, one = f(net, x)
        assert np.allclose(y.numpy(), net(x).numpy() * 3.25, atol=1e-5)
        assert np.array_equal(same.numpy(), x.numpy())
        assert turned.shape == (3, 4)
        assert one == 1.0
    with pytest.raises(wf.BoundsError):
        wf.jit(lambda x, i: wf.take(x, i, axis=0) * 7.5)(wf.ones((4, 3)), wf.tensor([9]))
    assert not hits


def test_off_no_call_is_recognised_and_nothing_native_is_asked(
    hits: list[bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(unchanged, "QUICKER", [])
    with wf.settings.changed(fastcall=False):
        f, net = wf.jit(apply), nn.Linear(3, 2)
        for _ in range(4):
            assert agrees(f, net, wf.ones((4, 3)))
        assert entries() is None
        assert memory_words.comparison() is None
        assert f._repeated.recognise((net, wf.ones((4, 3))), {}, ()) is None
    assert not hits
    assert not unchanged.QUICKER
    assert len(f.compilations) == 1


def test_the_setting_may_change_between_two_calls(hits: list[bool]) -> None:
    f, net = wf.jit(apply), nn.Linear(3, 2)
    for number in range(12):
        with wf.settings.changed(fastcall=number % 4 != 3):
            assert agrees(f, net, wf.ones((4, 3)) * number)
        net.weight.copy_(net.weight + 1) if number % 5 == 4 else None
    assert any(hits)
    assert len(f.compilations) == 1


def test_the_key_is_made_before_the_function_is_traced() -> None:
    """What a function changes while it is traced is not what its program was made for."""
    net = nn.Linear(3, 2)
    net.count = 0

    def counted(net: Any, x: wf.Tensor) -> wf.Tensor:
        net.count = min(net.count + 1, 2)
        return net(x) * net.count

    f, x = wf.jit(counted), wf.ones((4, 3))
    scales = [(f(net, x) / net(x)).mean().item() for _ in range(4)]
    assert np.allclose(scales, [1.0, 2.0, 2.0, 2.0], atol=1e-5)


@pytest.mark.parametrize(("given", "expected"), [("off", "False"), ("on", "True")])
def test_the_environment_sets_it(given: str, expected: str) -> None:
    program = "import weft as wf; print(wf.settings.fastcall)"
    environment = {**os.environ, "WEFT_FASTCALL": given}
    command = [sys.executable, "-c", program]
    made = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    assert made.stdout.strip() == expected


@pytest.mark.parametrize("state", ["same", "other"])
def test_outputs_that_are_inputs_constants_views_and_twice_the_same(state: str) -> None:
    def f(x: wf.Tensor, y: wf.Tensor) -> Any:
        z = x + y
        return z, x, z.reshape((6,)), wf.ones(3), z, y.reshape((3, 2))

    compiled, x, y = wf.jit(f), wf.arange(6.0).reshape((2, 3)), wf.ones((2, 3))
    for _ in range(4):
        given = y if state == "same" else y * 2
        for got, wanted in zip(compiled(x, given), f(x, given), strict=True):
            assert got.shape == wanted.shape
            assert np.array_equal(got.numpy(), wanted.numpy())
