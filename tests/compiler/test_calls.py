"""A call that is found at once computes what a fresh function would: whatever changed before it."""

from __future__ import annotations

import copy
import ctypes
import sys
import threading
import weakref
from collections.abc import Callable
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from tests.quiet import wait_for_quiet

import weft as wf
from weft import nn
from weft.compiler.targets.cpu.runtime import array_fields
from weft.nn.layout import lay_out
from weft.runtime.object_words import places

NAMES = ("argument", "closed over", "itself", "in a list", "in a dictionary")


class Net(nn.Module):
    """Parameters, a buffer, configuration of several kinds, and modules in a list."""

    def __init__(self) -> None:
        self.first = nn.Linear(3, 4)
        self.rest = [nn.Linear(4, 4), nn.ReLU()]
        self.scale, self.offset = 1.0, 0
        self.weights = [1.0, 2.0]
        self.named = {"a": 1.0, "b": 10.0}
        self.gains, self.shifts = (1, (2.0, 0.0)), {"a": wf.tensor([1.0]), "b": wf.tensor([2.0])}
        self.shift = wf.tensor([0.5])

    def forward(self, x: wf.Tensor) -> wf.Tensor:
        x = self.first(x)
        for layer in self.rest:
            x = layer(x)
        if self.training:
            x = x + 100.0
        x = x * self.scale + self.offset + self.shift
        x = x * sum((i + 1) * weight for i, weight in enumerate(self.weights))
        x = x + self.named.get("a", 0.0) - 2 * self.named.get("b", 0.0)
        for gain, (key, shift) in zip((1, 2, 3), self.shifts.items(), strict=False):
            x = x + gain * shift * len(key) + next(iter(self.named.values()))
        return wf.copysign(x, self.gains[1][1])


def compiled(net: nn.Module, name: str) -> Callable[[Any], wf.Tensor]:
    """A compiled call of the network, which is given in one way or another."""
    if name == "argument":
        step = wf.jit(lambda net, x: net(x))
        return lambda x: step(net, x)
    if name == "in a list":
        step = wf.jit(lambda nets, x: nets[0](x))
        return lambda x: step([net], x)
    if name == "in a dictionary":
        step = wf.jit(lambda x, *, nets: nets["it"](x))
        return lambda x: step(x, nets={"x": x, "it": net})
    return wf.jit(lambda x: net(x)) if name == "closed over" else wf.jit(net)


def check(net: nn.Module, call: Callable[[Any], wf.Tensor], x: wf.Tensor) -> None:
    """What the compiled call gives is what the network gives, again and again."""
    for recorded in (True, True, False, False, False):
        with wf.enable_grad() if recorded else wf.no_grad():
            got, wanted = call(x).detach().numpy(), net(x).detach().numpy()
        assert got.dtype == wanted.dtype
        np.testing.assert_allclose(got, wanted, rtol=1e-5, atol=1e-5)


def replace_parameter(net: Net) -> None:
    """Another handle."""
    net.first.weight = nn.Parameter(net.first.weight.detach() * 3)


def resize_parameters(net: Net) -> None:
    """The same modules with other sizes."""
    net.first.weight = nn.Parameter(wf.ones((7, 3)))
    net.first.bias = nn.Parameter(wf.ones(7))
    net.rest[0].weight = nn.Parameter(wf.ones((4, 7)))


def write_parameter(net: Net) -> None:
    """The same handle, another value."""
    with wf.no_grad():
        net.first.weight.copy_(net.first.weight * 2)


def set_through_dict(net: Net) -> None:
    """Past `__setattr__`."""
    net.__dict__["scale"] = 9.0


def rename_key(net: Net) -> None:
    """The same value under another name."""
    net.named["c"] = net.named.pop("b")


def move_between_lists(net: Net) -> None:
    """The same elements, one after the other, in other lists."""
    net.weights, net.more = [1.0, 2.0], [3.0]


def rename_past_setattr(net: Net) -> None:
    """The last attribute under another name."""
    net.__dict__["scale2"] = net.__dict__.pop("shift")
    net.__dict__["shift"] = net.__dict__.pop("scale")
    net.__dict__["scale"] = net.__dict__.pop("scale2")


CHANGES: dict[str, Callable[[Net], Any]] = {
    "a number": lambda net: setattr(net, "scale", 3.0),
    "the sign of a zero": lambda net: setattr(net, "offset", -0.0),
    "a number that is equal, of another type": lambda net: setattr(net, "scale", True),
    "an attribute that is added": lambda net: setattr(net, "extra", 3.0),
    "an attribute that is deleted": lambda net: delattr(net, "shift") or setattr(net, "shift", 2.0),
    "past setattr": set_through_dict,
    "names past setattr": rename_past_setattr,
    "training": lambda net: net.train(not net.training),
    "training of a part": lambda net: net.first.eval(),
    "a list that grows": lambda net: net.weights.append(5.0),
    "an element of a list": lambda net: net.weights.__setitem__(0, 4.0),
    "the order of a list": lambda net: net.weights.reverse(),
    "a value in a dictionary": lambda net: net.named.update(a=7.0),
    "a key of a dictionary": rename_key,
    "the order of a dictionary": lambda net: net.named.update(a=net.named.pop("a")),
    "the order of tensors": lambda net: net.shifts.update(a=net.shifts.pop("a")),
    "the sign of a zero in a tuple": lambda net: setattr(net, "gains", (1, (2.0, -0.0))),
    "a module in a list": lambda net: net.rest.__setitem__(1, nn.Tanh()),
    "a module behind a list": lambda net: net.rest.append(nn.Linear(4, 2)),
    "a list of another": move_between_lists,
    "another handle": replace_parameter,
    "other sizes": resize_parameters,
    "another value": write_parameter,
    "no bias": lambda net: setattr(net.first, "bias", None),
    "a buffer": lambda net: setattr(net, "shift", wf.tensor([4.0])),
    "the size of a buffer": lambda net: setattr(net, "shift", wf.ones((4,)) * 3),
    "a frozen parameter": lambda net: net.first.weight.requires_grad_(False),
    "a frozen module": lambda net: net.requires_grad_(False),
    "another dtype": lambda net: net.to("float64"),
    "tied weights": lambda net: setattr(net.rest[0], "bias", net.first.bias),
    "a hook": lambda net: net.first.register_forward_hook(lambda module, args, out: out * 2),
    "a hook before": lambda net: net.register_forward_pre_hook(lambda module, args: args[0] * 3),
    "all attributes": lambda net: setattr(net, "__dict__", dict(net.__dict__, scale=5.0)),
    "forward": lambda net: setattr(net, "forward", lambda x: x * 5),
    "roles": lambda net: net.register_buffer("shift", wf.tensor([8.0]), persistent=False),
    "merged": lambda net: setattr(net, "rest", []),
}


CASES = [("argument", change) for change in CHANGES]
CASES += [(name, change) for i, name in enumerate(NAMES[1:]) for change in [*CHANGES][i::4]]


@pytest.mark.slow
@pytest.mark.parametrize(("name", "change"), CASES)
def test_a_change_of_a_module_is_seen(name: str, change: str) -> None:
    wf.random.seed(0)
    net = Net().eval()
    call, x = compiled(net, name), wf.tensor([[1.0, -2.0, 3.0], [0.5, 0.0, 1.0]])
    check(net, call, x)
    CHANGES[change](net)
    if change == "another dtype":
        x = x.astype("float64")
    check(net, call, x)
    check(net, call, x[:1])


def test_hooks_are_taken_off() -> None:
    net = Net().eval()
    call, x = compiled(net, "argument"), wf.ones((2, 3))
    check(net, call, x)
    with net.first.register_forward_hook(lambda module, args, out: out * 2):
        check(net, call, x)
    check(net, call, x)


def test_another_instance_is_computed_with_its_own_parameters() -> None:
    nets = [Net().eval() for _ in range(3)]
    nets[2].scale = 7.0
    step = wf.jit(lambda net, x: net(x))
    x = wf.ones((2, 3))
    for net in [*nets, *nets]:
        np.testing.assert_allclose(
            step(net, x).detach().numpy(), net(x).detach().numpy(), rtol=1e-5, atol=1e-5
        )
    assert len(step.compilations) == 2


def test_a_copy_that_is_changed_is_not_the_original() -> None:
    net = nn.Sequential(nn.Linear(3, 3), nn.ReLU())
    step, x = wf.jit(lambda net, x: net(x)), wf.ones((2, 3))
    first = step(net, x).tolist()
    other = copy.deepcopy(net)
    assert step(other, x).tolist() == first
    other[1] = nn.Tanh()
    assert step(other, x).tolist() != first
    assert step(net, x).tolist() == first


def test_modes_of_gradients_are_told_apart() -> None:
    net = nn.Linear(2, 2)
    step, x = wf.jit(lambda net, x: net(x)), wf.ones((1, 2))
    for _ in range(2):
        with wf.no_grad():
            assert not step(net, x).requires_grad
        out = step(net, x)
        assert out.requires_grad
        out.sum().backward()
        assert net.bias.grad.tolist() == [1.0, 1.0]
        net.zero_grad()


def test_gradients_accumulate_where_there_are_some() -> None:
    net = nn.Linear(2, 1)
    step = wf.jit(lambda net, x: net(x).sum().backward())
    for times in (1.0, 2.0, 3.0):
        step(net, wf.ones((1, 2)))
        assert net.weight.grad.tolist() == [[times, times]]
    net.zero_grad()
    step(net, wf.ones((1, 2)))
    assert net.weight.grad.tolist() == [[1.0, 1.0]]


def test_an_optimizer_and_its_settings_are_seen() -> None:
    def trained(compiled: bool) -> list[list[float]]:
        wf.random.seed(3)
        net = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1))
        optimizer = wf.optim.SGD(net.parameters(), lr=0.1, momentum=0.5)

        def step(net: Any, optimizer: Any, x: wf.Tensor) -> wf.Tensor:
            loss = (net(x) ** 2).mean()
            optimizer.minimize(loss)
            return loss

        run = wf.jit(step) if compiled else step
        losses = []
        for number in range(8):
            if number == 3:
                optimizer.lr = 0.01
            if number == 5:
                net[1] = nn.ReLU()
            if number == 6:
                net[0].weight.requires_grad_(False)
            losses.append(run(net, optimizer, wf.ones((2, 3)) * number).item())
        return [losses, net[2].weight.detach().numpy().ravel().tolist()]

    for got, wanted in zip(trained(True), trained(False), strict=True):
        np.testing.assert_allclose(got, wanted, rtol=1e-5, atol=1e-6)


def test_handles_that_are_given_twice_are_one() -> None:
    @wf.jit
    def add(a: wf.Tensor, b: wf.Tensor) -> wf.Tensor:
        a.copy_(a + 1)
        return a + b

    a, b = wf.tensor(1.0), wf.tensor(10.0)
    assert add(a, b).item() == 12.0
    assert add(a, a).item() == 6.0
    assert add(a, b).item() == 14.0
    assert add(b, b).item() == 22.0


def test_dictionaries_in_any_order_and_numbers_of_any_type() -> None:
    f = wf.jit(lambda tree, n: tree["a"] - tree["b"] * n)
    one, two = wf.tensor(1.0), wf.tensor(2.0)
    assert f({"a": one, "b": two}, 1).item() == -1.0
    assert f({"b": two, "a": one}, 1).item() == -1.0
    assert f({"b": one, "a": two}, 1).item() == 1.0
    assert f({"b": one, "a": two}, True).item() == 1.0
    g = wf.jit(lambda x, n: x * n)
    assert np.signbit(g(one, -0.0).item())
    assert not np.signbit(g(one, 0.0).item())
    assert g(one, 0).item() == 0.0


@dataclass
class State:
    """A container with a static part."""

    x: wf.Tensor
    power: int = field(default=1, metadata={"static": True})


def test_the_static_part_of_a_container_is_seen() -> None:
    f = wf.jit(lambda state: state.x**state.power)
    state = State(wf.tensor(3.0))
    assert f(state).item() == 3.0
    state.power = 2
    assert f(state).item() == 9.0
    state.x = wf.tensor(4.0)
    assert f(state).item() == 16.0


def test_names_that_are_bound_anew_are_read_anew() -> None:
    net: Any = nn.Linear(2, 2)
    call = wf.jit(lambda x: net(x))
    x = wf.ones((1, 2))
    check(net, call, x)
    net = nn.Linear(2, 2)
    check(net, call, x)
    net = nn.Sequential(net, nn.Tanh())
    check(net, call, x)


def test_settings_rules_and_observers_hold_for_calls_that_are_known() -> None:
    net, x = nn.Linear(2, 2), wf.ones((1, 2))
    step = wf.jit(lambda net, x: wf.log(net(x) * 0 - 1))
    assert np.isnan(step(net, x).detach().numpy()).all()
    with wf.debug.nans(), pytest.raises(wf.NanError):
        step(net, x)
    with wf.settings.changed(compiler=False):
        assert np.isnan(step(net, x).detach().numpy()).all()
    assert np.isnan(step(net, x).detach().numpy()).all()


def test_a_call_inside_a_transform_is_traced() -> None:
    net = nn.Linear(2, 1)
    step = wf.jit(lambda net, x: net(x).sum())
    step(net, wf.ones((1, 2)))
    gradient = wf.grad(step)(net, wf.ones((3, 2)))
    assert gradient.weight.tolist() == [[3.0, 3.0]]
    assert wf.vmap(step, in_axes=(None, 0))(net, wf.ones((5, 2))).shape == (5,)


def test_what_cannot_be_compared_is_an_error_each_time() -> None:
    step = wf.jit(lambda x, y: x)
    for _ in range(2):
        with pytest.raises(wf.ArgumentTypeError, match="neither a tensor nor"):
            step(wf.ones(2), {1})


def test_a_compiled_function_keeps_no_module_alive() -> None:
    step, x = wf.jit(lambda net, x: net(x)), wf.ones((1, 2))
    net = nn.Linear(2, 2)
    seen, weight = weakref.ref(net), weakref.ref(net.weight)
    for _ in range(3):
        step(net, x)
    with wf.no_grad(), wf.settings.changed(fastcall=True):
        for _ in range(4):
            step(net, x)
    assert step._repeated.last is not None
    del net
    wait_for_quiet()
    assert seen() is None
    assert weight() is None


def test_a_function_keeps_no_argument_alive() -> None:
    step = wf.jit(lambda tree, x: tree["a"][0] + x)
    a = wf.ones(5)
    seen = weakref.ref(a)
    for _ in range(2):
        step({"a": [a]}, wf.ones(5))
    del a
    wait_for_quiet()
    assert seen() is None


def test_modules_changed_while_another_thread_calls() -> None:
    net, stop, failures = Net().eval(), threading.Event(), list[BaseException]()

    def change() -> None:
        try:
            number = 0
            while not stop.is_set():
                number += 1
                net.__dict__[f"extra{number % 7}"] = 1.0
                net.__dict__.pop(f"extra{(number + 3) % 7}", None)
        except BaseException as error:
            failures.append(error)

    thread = threading.Thread(target=change)
    thread.start()
    try:
        for _ in range(200):
            assert len(list(net.parameters())) == 4
    finally:
        stop.set()
        thread.join()
    assert not failures


def test_addresses_are_those_of_the_arrays() -> None:
    made = [np.ones(shape, kind) for shape in ((3,), (2, 0), ()) for kind in ("f4", "i8", "?")]
    made += [np.ones((4, 6))[::2], np.ones((3, 4)).T, np.broadcast_to(np.float32(1), (4, 2))]
    slots = np.arange(2, 2 + len(made))[::-1].copy()
    table = np.zeros(len(made) + 2, np.int64)
    for count in (0, 3, len(made)):
        given = array_fields.write_addresses(made[:count], table.ctypes.data)
        assert table[:count].tolist() == [a.__array_interface__["data"][0] for a in given]
        assert not table[count:].any()
    assert all(a.flags.c_contiguous for a in given)
    for array, same in zip(made, given, strict=True):
        assert np.array_equal(array, same)
        assert (array is same) == bool(array.flags.c_contiguous)
    given = array_fields.write_addresses(made, table.ctypes.data, slots.ctypes.data)
    assert table[slots].tolist() == [a.__array_interface__["data"][0] for a in given]


def test_what_is_no_array_is_left_to_numpy() -> None:
    table = np.zeros(2, np.int64)
    scalar: Any = np.float32(3)
    other = np.ones(3).view(np.recarray)
    given = array_fields.write_addresses([scalar, other], table.ctypes.data)
    assert table[1] == other.ctypes.data
    assert len(given) == 2


def test_places_that_are_not_found_are_not_guessed(monkeypatch: pytest.MonkeyPatch) -> None:
    made = [np.ones(3), np.ones(4), np.ones((2, 2)).T]
    assert array_fields.Fields.find_fields(made) == array_fields.fields()
    assert array_fields.Fields.find_fields([]) is None
    assert places(made, ctypes.c_int64, lambda array: 4711) == []
    monkeypatch.setattr(sys, "implementation", SimpleNamespace(name="another"))
    assert array_fields.Fields.find_fields(made) is None


@dataclass
class Configuration:
    """What a model is made of, and may be changed."""

    scale: float
    powers: list[int]


@dataclass(frozen=True, slots=True)
class Fixed:
    """What cannot be changed, but for a list inside."""

    scale: float
    powers: list[int]


class Configured(nn.Module):
    """A module that holds a record of numbers, as most models do."""

    def __init__(self, config: Any) -> None:
        self.config = config
        self.linear = nn.Linear(2, 2)

    def forward(self, x: wf.Tensor) -> wf.Tensor:
        return self.linear(x) * self.config.scale * sum(self.config.powers)


@pytest.mark.parametrize("kind", [Configuration, Fixed])
def test_a_configuration_is_looked_at_and_the_layout_remembered(kind: Any) -> None:
    net, x = Configured(kind(2.0, [1, 2])), wf.ones((1, 2))
    step = wf.jit(lambda net, x: net(x))
    assert lay_out(net) is lay_out(net)
    check(net, lambda x: step(net, x), x)
    if kind is Configuration:
        net.config.scale = 3.0
        check(net, lambda x: step(net, x), x)
    net.config.powers.append(5)
    check(net, lambda x: step(net, x), x)
    net.config = kind(7.0, [1])
    check(net, lambda x: step(net, x), x)
