"""What a program makes of weights that stay the same is made once, and anew when they change."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import weft as wf
from weft.compiler.targets.cpu.machine import host
from weft.compiler.targets.cpu.runtime.preparation import Preparation
from weft.compiler.targets.cpu.target import compile_program
from weft.core import sharing
from weft.core.errors import WeftError

RNG = np.random.default_rng(11)


def normal(*shape: int) -> np.ndarray:
    return RNG.standard_normal(shape).astype(np.float32)


def layer(inputs: int = 96, outputs: int = 200) -> wf.nn.Linear:
    net = wf.nn.Linear(inputs, outputs)
    net.weight = wf.nn.Parameter(wf.tensor(normal(outputs, inputs)))
    return net


def predict(net: Any, x: wf.Tensor) -> wf.Tensor:
    return wf.relu(net(x))


def agrees(f: Any, net: Any, x: wf.Tensor) -> bool:
    """Whether a compiled call gives what the layer says now."""
    with wf.no_grad():
        found = f(net, x).numpy()
        weight, bias = net.weight.numpy(), net.bias.numpy()
    wanted = np.maximum(x.numpy() @ weight.T + bias, 0)
    return bool(np.allclose(found, wanted, atol=1e-4))


@pytest.fixture(autouse=True)
def native_launches() -> Iterator[None]:
    """Programs are started natively, which is where launches are counted."""
    with wf.settings.changed(fastcall=True):
        yield


def calls_run(f: Any, *args: Any) -> int:
    """How many calls the driver is told to run."""
    with wf.no_grad():
        f(*args)
        runner = next(iter(f._compiled.values())).program
    assert runner is not None
    given: list[int] = []
    inner = runner._launch
    assert inner is not None
    runner._launch = lambda block, *arrays: (given.append(int(block[1])), inner(block, *arrays))[1]
    try:
        with wf.no_grad():
            f(*args)
    finally:
        runner._launch = inner
    return given[0]


def test_weights_are_packed_by_the_first_call_only() -> None:
    f, net, x = wf.jit(predict), layer(), wf.tensor(normal(64, 96))
    with wf.no_grad():
        program = f.program(net, x)
    assert [call.name for call in program.plan.launches[: program.once]] == ["pack"]
    assert agrees(f, net, x)
    assert calls_run(f, net, x) == len(program.plan.launches) - 1
    for _ in range(3):
        assert agrees(f, net, wf.tensor(normal(64, 96)))


def test_a_weight_that_is_replaced_is_packed_again() -> None:
    f, net, x = wf.jit(predict), layer(), wf.tensor(normal(64, 96))
    for _ in range(3):
        assert agrees(f, net, x)
        assert agrees(f, net, x)
        with wf.no_grad():
            net.weight *= 1.5
        assert agrees(f, net, x)
        net.load_state_dict({"weight": wf.tensor(normal(200, 96)), "bias": wf.tensor(normal(200))})
        assert agrees(f, net, x)


@pytest.mark.parametrize("optimizer", [wf.optim.SGD, wf.optim.Adam])
def test_training_between_predictions_is_seen(optimizer: Any) -> None:
    """Steps write new weights to the memory of old ones, or of older ones still."""
    f, net, x = wf.jit(predict), layer(), wf.tensor(normal(64, 96))
    updates = optimizer(net.parameters(), lr=0.1)

    @wf.jit
    def step(net: Any, updates: Any, x: wf.Tensor) -> wf.Tensor:
        loss = (net(x) ** 2).mean()
        updates.minimize(loss)
        return loss

    for round_ in range(6):
        assert agrees(f, net, x)
        for _ in range(round_ % 3):
            step(net, updates, x)
        assert agrees(f, net, x)


def test_two_models_share_a_program_and_not_its_weights() -> None:
    f, x = wf.jit(predict), wf.tensor(normal(64, 96))
    one, other = layer(), layer()
    for net in (one, other, one, one, other) * 3:
        assert agrees(f, net, x)
    assert len(sharing._watched[id(one.weight._value)][1]) == 1


def test_arrays_of_others_may_change_at_any_time() -> None:
    f, net, x = wf.jit(predict), layer(), wf.tensor(normal(64, 96))
    array = normal(200, 96)
    net.weight = wf.nn.Parameter(wf.asarray(array))
    for _ in range(3):
        assert agrees(f, net, x)
        array += 1.0
    view = wf.asarray(normal(100, 192))
    net.weight = wf.nn.Parameter(view.reshape((200, 96)))
    assert agrees(f, net, x)
    np.asarray(view.numpy().base)[:] = 2.0
    assert agrees(f, net, x)


def test_sizes_that_take_turns_share_the_memory() -> None:
    f, net = wf.jit(predict), layer()
    for rows in (64, 80, 96, 64, 64, 96, 80, 80):
        assert agrees(f, net, wf.tensor(normal(rows, 96)))
    assert len(f.compilations) == 2


def test_released_memory_is_made_anew() -> None:
    f, net, x = wf.jit(predict), layer(), wf.tensor(normal(64, 96))
    assert agrees(f, net, x)
    runner = next(iter(f._compiled.values())).program
    assert runner is not None
    runner.release()
    assert agrees(f, net, x)


def test_what_is_closed_over_is_prepared_too() -> None:
    net, x = layer(), wf.tensor(normal(64, 96))
    f = wf.jit(lambda x: predict(net, x))
    with wf.no_grad():
        assert f.program(x).once == 1
        f(x)
    net.weight = wf.nn.Parameter(wf.tensor(normal(200, 96)))
    with wf.no_grad():
        wanted = predict(net, x).numpy()
        np.testing.assert_allclose(f(x).numpy(), wanted, atol=1e-4)


def test_a_training_step_prepares_nothing() -> None:
    net, x = layer(), wf.tensor(normal(64, 96))
    updates = wf.optim.SGD(net.parameters(), lr=0.1)

    @wf.jit
    def step(net: Any, updates: Any, x: wf.Tensor) -> wf.Tensor:
        loss = (net(x) ** 2).mean()
        updates.minimize(loss)
        return loss

    assert step.program(net, updates, x).once == 0


def test_a_chain_of_what_is_fixed_is_stored() -> None:
    def f(w: wf.Tensor, v: wf.Tensor, x: wf.Tensor) -> wf.Tensor:
        return x @ wf.relu(w @ v + 1.0)

    kinds = [wf.spec("float32", shape) for shape in ((80, 70), (70, 90), (64, 80))]
    program = compile_program(wf.ir.trace(f, *kinds), fixed=(0, 1))
    # without masks, columns that are no whole vectors are packed, here on both sides
    made = ["dot+k0"] if host().masked else ["pack", "dot+k0+pack"]
    assert [call.name for call in program.plan.launches[: program.once]] == made
    w, v = normal(80, 70), normal(70, 90)
    for _ in range(3):
        x = normal(64, 80)
        wanted = x @ np.maximum(w @ v + 1, 0)
        np.testing.assert_allclose(program.run([w, v, x])[0], wanted, rtol=1e-3, atol=1e-2)


def test_an_error_after_the_preparation_names_its_node() -> None:
    net = layer(96, 200)

    @wf.jit
    def f(net: Any, x: wf.Tensor, i: wf.Tensor) -> wf.Tensor:
        return wf.take(wf.relu(net(x)), i, axis=0)

    x = wf.tensor(normal(64, 96))
    with wf.no_grad():
        for bad in (99, 120):
            assert f(net, x, wf.tensor([1, 2])).shape == (2, 200)
            with pytest.raises(WeftError, match=str(bad)):
                f(net, x, wf.tensor([1, bad]))


def test_the_profiler_sees_every_call() -> None:
    f, net, x = wf.jit(predict), layer(), wf.tensor(normal(64, 96))
    with wf.no_grad():
        f(net, x)
        with wf.tools.profile() as report:
            f(net, x)
    assert "pack" in str(report)
    assert agrees(f, net, x)


def test_a_loaded_state_is_no_longer_the_memory_of_others() -> None:
    net, array = layer(), normal(200, 96)
    before = array.copy()
    net.load_state_dict({"weight": wf.asarray(array), "bias": wf.asarray(normal(200))})
    array += 1.0
    np.testing.assert_array_equal(net.weight.detach().numpy(), before)


def test_an_argument_with_gaps_leaves_what_is_prepared_as_it_is(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    f, net, x = wf.jit(predict), layer(), wf.tensor(normal(64, 96))
    noted: list[int] = []
    note = Preparation.note_run

    def counting_note(self: Preparation, *given: Any) -> None:
        noted.append(1)
        note(self, *given)

    with wf.no_grad():
        net.bias.set_(wf.broadcast_to(wf.tensor(0.5), (200,)))
    assert not net.bias._value.flags.c_contiguous
    assert agrees(f, net, x)
    monkeypatch.setattr(Preparation, "note_run", counting_note)
    assert agrees(f, net, x)
    del noted[:]
    assert agrees(f, net, x)
    assert agrees(f, net, wf.tensor(normal(96, 64)).T)
    assert not noted, "weights that are as they were are packed anew"
    with wf.no_grad():
        net.weight.copy_(wf.tensor(normal(200, 96)))
    assert agrees(f, net, x)
    assert noted
    assert agrees(f, net, x)


def test_values_of_parameters_have_no_gaps() -> None:
    net = wf.nn.LayerNorm(64)
    assert all(p._value.flags.c_contiguous for p in net.parameters())
    with wf.no_grad():
        net.weight.copy_(wf.tensor(2.0))
        net.bias.copy_(wf.tensor(normal(64))[::-1])
    assert all(p._value.flags.c_contiguous for p in net.parameters())
    assert net.weight.tolist() == [2.0] * 64
