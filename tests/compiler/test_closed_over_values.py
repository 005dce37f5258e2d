"""Python values that a compiled function reads from outside count as they are at each call."""

from __future__ import annotations

import argparse
import functools
import gc
import json
import weakref
from enum import Enum
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest

import weft as wf
from weft import nn
from weft.compiler.function.arguments import PROGRAMS
from weft.compiler.function.changing_values import MANY
from weft.compiler.function.closures import closed_over

X = wf.tensor([1.0, 2.0])
SCALE: Any = 2.0


def test_numbers_that_are_closed_over_are_read_at_each_call() -> None:
    factor: Any = 3.0
    fast = wf.jit(lambda x: x * factor)
    assert fast(X).tolist() == [3.0, 6.0]
    for factor in (4.0, 5, True, 3.0):
        assert fast(X).tolist() == (X * factor).tolist()
    assert len(fast.compilations) == 4


def test_global_numbers_are_read_at_each_call(monkeypatch: pytest.MonkeyPatch) -> None:
    def scaled(x: wf.Tensor) -> wf.Tensor:
        return x * SCALE

    fast = wf.jit(lambda x: scaled(x) + 1)
    assert fast(X).tolist() == [3.0, 5.0]
    monkeypatch.setitem(globals(), "SCALE", 10.0)
    assert fast(X).tolist() == [11.0, 21.0]
    monkeypatch.setitem(globals(), "SCALE", wf.tensor(4.0))
    assert fast(X).tolist() == [5.0, 9.0]


def test_what_was_none_may_be_a_tensor_later() -> None:
    mask = None
    fast = wf.jit(lambda x: x if mask is None else x * mask)
    assert fast(X).tolist() == [1.0, 2.0]
    mask = wf.tensor([0.0, 1.0])
    assert fast(X).tolist() == [0.0, 2.0]
    mask += 1.0
    assert fast(X).tolist() == [1.0, 4.0]
    mask = None
    assert fast(X).tolist() == [1.0, 2.0]


def test_containers_may_grow_and_change() -> None:
    terms: list[Any] = []
    options = {"scale": 1.0}
    fast = wf.jit(lambda x: sum(terms, x) * options["scale"])
    assert fast(X).tolist() == [1.0, 2.0]
    terms.append(wf.tensor(1.0))
    assert fast(X).tolist() == [2.0, 3.0]
    options["scale"] = 10.0
    assert fast(X).tolist() == [20.0, 30.0]


def test_arrays_of_numpy_may_be_others_later() -> None:
    weights = np.array([1.0, 1.0], np.float32)
    large = np.ones(1000, np.float32)
    fast = wf.jit(lambda x: x * weights + large.sum())
    assert fast(X).tolist() == [1001.0, 1002.0]
    weights[:] = 3.0
    assert fast(X).tolist() == [1003.0, 1006.0]
    large = np.zeros(1000, np.float32)
    assert fast(X).tolist() == [3.0, 6.0]


def test_what_a_function_counts_itself_is_no_argument_of_it() -> None:
    calls, seen, tally, made, held = 0, [], {"traced": 0}, list[Any](), [lambda: 0]

    def double(x: wf.Tensor) -> wf.Tensor:
        nonlocal calls
        calls += 1
        seen.append(calls)
        tally["traced"] += 1
        made.append(lambda: calls)
        held.append(lambda: calls)
        return x * 2

    fast = wf.jit(double)
    for _ in range(3):
        assert fast(X).tolist() == [2.0, 4.0]
    assert (calls, seen, tally, len(fast.compilations)) == (1, [1], {"traced": 1}, 1)
    assert fast(wf.ones(3)).tolist() == [2.0] * 3
    assert fast(wf.ones(4)).tolist() == fast(wf.ones(5)).tolist()[:4]
    assert len(fast.compilations) == 2


def test_what_a_function_counts_is_told_from_what_has_the_same_name() -> None:
    count, tally, options = 2.0, SimpleNamespace(count=0), SimpleNamespace(count=1.0)

    def scaled(x: wf.Tensor) -> wf.Tensor:
        tally.count += 1
        return x * options.count * count

    fast = wf.jit(scaled)
    for options.count, count in ((1.0, 2.0), (3.0, 2.0), (3.0, 5.0)):
        for _ in range(3):
            assert fast(X).tolist() == [options.count * count, 2 * options.count * count]
    assert len(fast.compilations) == tally.count == 3


class Scaler:
    """An object that is no tree."""

    def __init__(self) -> None:
        self.weight, self.scale, self.steps = wf.tensor([1.0, 1.0]), 2.0, 0

    @property
    def factor(self) -> float:
        return self.scale

    def scaled(self, x: wf.Tensor) -> wf.Tensor:
        return x * self.factor

    def __call__(self, x: wf.Tensor) -> wf.Tensor:
        return self.scaled(x * self.weight)

    @wf.jit
    def method(self, x: wf.Tensor) -> wf.Tensor:
        return x * self.weight * self.scale


def given(scaler: Scaler) -> Any:
    fast = wf.jit(lambda scaler, x: scaler(x))
    return lambda x: fast(scaler, x)


def given_inside(scaler: Scaler) -> Any:
    fast = wf.jit(lambda tree, x: tree["all"][0](x))
    return lambda x: fast({"all": [scaler]}, x)


FORMS = {
    "method": lambda scaler: wf.jit(scaler.__call__),
    "closure": lambda scaler: wf.jit(lambda x: scaler(x)),
    "argument": given,
    "inside": given_inside,
    "decorated": lambda scaler: scaler.method,
}


@pytest.mark.parametrize("form", FORMS.values(), ids=FORMS)
def test_objects_are_read_at_each_call(form: Any) -> None:
    scaler = Scaler()
    fast = form(scaler)
    assert fast(X).tolist() == fast(X).tolist() == [2.0, 4.0]
    scaler.scale = 3.0
    assert fast(X).tolist() == [3.0, 6.0]
    scaler.weight = wf.tensor([0.0, 1.0])
    assert fast(X).tolist() == [0.0, 6.0]
    scaler.weight += 1.0
    assert fast(X).tolist() == [3.0, 12.0]


def test_attributes_that_a_function_does_not_read_compile_nothing() -> None:
    scaler = Scaler()
    closure, given = wf.jit(lambda x: scaler(x)), wf.jit(lambda s, x: s(x))
    for step in range(4):
        scaler.steps = step
        assert closure(X).tolist() == given(scaler, X).tolist() == [2.0, 4.0]
    assert len(closure.compilations) == len(given.compilations) == 1


def test_methods_are_compiled_for_each_object() -> None:
    first, second = Scaler(), Scaler()
    second.scale = 5.0
    assert first.method(X).tolist() == [2.0, 4.0]
    assert second.method(X).tolist() == [5.0, 10.0]
    assert Scaler.method(first, X).tolist() == [2.0, 4.0]


def test_a_method_of_a_module_may_be_compiled() -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight, self.scale = nn.Parameter(wf.tensor([1.0, 2.0])), 2.0

        @wf.jit
        def forward(self, x: wf.Tensor) -> wf.Tensor:
            return x * self.weight * self.scale

    net = Net()
    assert net(X).tolist() == [2.0, 8.0]
    net.scale = 1.0
    net(X).sum().backward()
    assert net.weight.grad.tolist() == [1.0, 2.0]
    with wf.no_grad():
        net.weight += 1.0
    assert net(X).tolist() == [2.0, 6.0]


# --- other objects, functions and classes in the same places --------------------------------------

ACTIVATION: Any = wf.relu
OPTIONS: Any = SimpleNamespace(factor=1.0, inner=SimpleNamespace(factor=1.0))
KIND: Any = wf.float32


class Mode(Enum):
    SUM, MEAN = 1, 2


class Settings:
    """Its attributes are those of the class, as long as no object has its own."""

    factor = 1.0


class Slotted:
    """An object without a dictionary."""

    __slots__ = ("factor",)

    def __init__(self) -> None:
        self.factor = 1.0


class Compared:
    """An object that says itself what it equals."""

    def __init__(self) -> None:
        self.factor = 1.0

    def __eq__(self, other: object) -> bool:
        return self is other

    def __hash__(self) -> int:
        return 1


class Net(nn.Module):
    """A module that reads a global number, and an object that is no tree."""

    def __init__(self) -> None:
        super().__init__()
        self.weight, self.options = nn.Parameter(wf.tensor([1.0, 1.0])), SimpleNamespace(factor=1.0)

    def forward(self, x: wf.Tensor) -> wf.Tensor:
        return x * self.weight * self.options.factor * SCALE


def check_at_each_call(f: Any, *changes: Any, given: Any = ()) -> Any:
    """A compiled function gives what the function gives, before and after each change."""
    fast = wf.jit(f)
    for change in (lambda: None, *changes):
        change()
        for _ in range(3):
            assert fast(X, *given).tolist() == pytest.approx(f(X, *given).tolist(), rel=1e-6)
    return fast


def change_attribute(owner: Any, name: str, value: Any) -> Any:
    return lambda: setattr(owner, name, value)


def test_a_global_that_holds_a_function_a_dtype_or_an_object_may_hold_another(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def change(name: str, value: Any) -> Any:
        return lambda: monkeypatch.setitem(globals(), name, value)

    check_at_each_call(lambda x: ACTIVATION(x), change("ACTIVATION", wf.tanh))
    check_at_each_call(lambda x: ACTIVATION(x), change("ACTIVATION", lambda x: x * 3))
    check_at_each_call(lambda x: x.astype(KIND) / 3, change("KIND", wf.float64))
    check_at_each_call(lambda x: x * float(SCALE), change("SCALE", np.float64(5.0)))
    check_at_each_call(lambda x: x * SCALE, *[change("SCALE", np.float64(n)) for n in (3, 4)])
    check_at_each_call(
        lambda x: x * OPTIONS.factor * OPTIONS.inner.factor,
        change_attribute(OPTIONS.inner, "factor", 2.0),
        change_attribute(OPTIONS, "inner", SimpleNamespace(factor=3.0)),
        lambda: setattr(OPTIONS.inner, "factor", 4.0),
        change("OPTIONS", SimpleNamespace(factor=5.0, inner=Slotted())),
        lambda: setattr(OPTIONS.inner, "factor", 6.0),
    )


def test_attributes_of_classes_modules_and_objects_without_a_dictionary_are_read() -> None:
    settings, slotted, bare = Settings(), Slotted(), SimpleNamespace()
    module = ModuleType("options")
    module.factor = 1.0  # type: ignore[attr-defined]
    check_at_each_call(
        lambda x: x * settings.factor * Settings.factor,
        change_attribute(settings, "factor", 2.0),
        lambda: delattr(settings, "factor"),
        change_attribute(Settings, "factor", 3.0),
        change_attribute(Settings, "factor", 1.0),
    )
    check_at_each_call(lambda x: x * slotted.factor, change_attribute(slotted, "factor", 2.0))
    check_at_each_call(lambda x: x * module.factor, change_attribute(module, "factor", 2.0))
    check_at_each_call(
        lambda x: x * getattr(bare, "factor", 1.0),
        *[change_attribute(bare, "factor", value) for value in (2.0, 3.0)],
    )


@pytest.mark.parametrize("kind", [Compared, Slotted])
def test_arguments_that_are_objects_of_any_class_are_read(kind: Any) -> None:
    given = kind()
    check_at_each_call(
        lambda x, options: x * options.factor,
        *[change_attribute(given, "factor", value) for value in (2.0, 3.0)],
        given=(given,),
    )


def test_containers_of_objects_and_functions_are_looked_into() -> None:
    steps: Any = [lambda x: x * 2, SimpleNamespace(factor=1.0)]
    table: Any = {"f": wf.relu, "factor": 1.0}
    chosen, modes, long, wide = {1, 2}, [Mode.SUM], [1.0] * 100, {str(n): 1.0 for n in range(100)}
    check_at_each_call(
        lambda x: steps[0](x) * steps[1].factor * len(steps),
        lambda: setattr(steps[1], "factor", 3.0),
        lambda: steps.__setitem__(0, lambda x: x * 5),
        lambda: steps.append(None),
    )
    check_at_each_call(
        lambda x: table["f"](x - 1.5) * table["factor"],
        lambda: table.__setitem__("factor", 4.0),
        lambda: table.__setitem__("f", wf.tanh),
    )
    check_at_each_call(lambda x: x * len(chosen), lambda: chosen.add(3))
    check_at_each_call(
        lambda x: x.sum() if modes[0] is Mode.SUM else x.mean(),
        lambda: modes.__setitem__(0, Mode.MEAN),
    )
    check_at_each_call(lambda x: x * long[50], lambda: long.__setitem__(50, 2.0))
    check_at_each_call(lambda x: x * wide["50"], lambda: wide.__setitem__("50", 2.0))


def test_defaults_and_bound_arguments_are_read() -> None:
    def scaled(x: wf.Tensor, factors: Any = [1.0], kind: Any = OPTIONS) -> wf.Tensor:  # noqa: B006
        return x * factors[0] * kind.factor

    bound = [functools.partial(lambda x, factor: x * factor, factor=1.0)]
    check_at_each_call(
        lambda x: scaled(x),
        lambda: scaled.__defaults__[0].__setitem__(0, 2.0),  # type: ignore[index]
        change_attribute(OPTIONS, "factor", 3.0),
        change_attribute(OPTIONS, "factor", 1.0),
    )
    check_at_each_call(
        lambda x: bound[0](x),
        lambda: bound.__setitem__(0, functools.partial(lambda x, factor: x * factor, factor=2.0)),
    )


def test_modules_are_read_with_their_mode_their_globals_and_their_objects(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    net, dropout = Net(), nn.Dropout(1.0)
    changes = [
        lambda: monkeypatch.setitem(globals(), "SCALE", 5.0),
        change_attribute(net.options, "factor", 3.0),
        change_attribute(net, "options", SimpleNamespace(factor=4.0)),
        lambda: setattr(net.options, "factor", 6.0),
        lambda: monkeypatch.setitem(globals(), "SCALE", 2.0),
    ]
    check_at_each_call(net, *changes)
    check_at_each_call(lambda x: net(x), *changes)
    check_at_each_call(lambda x, net: net(x), *changes, given=(net,))
    check_at_each_call(lambda x: dropout(x), dropout.eval, dropout.train)


def test_equal_functions_and_objects_in_the_same_place_compile_nothing() -> None:
    def scaling() -> Any:
        return lambda x: x * 2

    held: Any = [scaling(), SimpleNamespace(factor=2.0), wf.grad(lambda x: (x * x).sum())]
    inside = held[2].__wrapped__
    scale, options, slope = held

    def remake() -> None:
        nonlocal scale, options, slope
        scale, options = scaling(), SimpleNamespace(factor=2.0)
        slope = wf.grad(inside)

    fast = check_at_each_call(lambda x: scale(x) * options.factor + slope(x), *[remake] * 3)
    assert len(fast.compilations) == 1


def test_libraries_are_not_looked_into() -> None:
    parser, options = argparse.ArgumentParser(), argparse.Namespace(factor=1.0)
    outside = closed_over(lambda x: (Path("."), parser, json.dumps({}), x * options.factor)[-1])
    assert (outside.values(), outside.is_valid()) == ([1.0], True)
    check_at_each_call(lambda x: x * options.factor, change_attribute(options, "factor", 2.0))


@pytest.mark.slow
def test_few_of_many_objects_that_were_arguments_are_kept_alive() -> None:
    fast = wf.jit(lambda scaler, x: scaler(x))
    made = []
    for _ in range(3 * PROGRAMS):
        scaler = Scaler()
        made.append(weakref.ref(scaler))
        fast(scaler, X)
    gc.collect()
    assert sum(each() is not None for each in made) <= PROGRAMS + 1


def test_a_module_that_was_an_argument_is_not_kept_alive() -> None:
    net = Net()
    fast = wf.jit(lambda net, x: net(x))
    fast(net, X)
    fast(net, X)
    gone = weakref.ref(net)
    del net
    gc.collect()
    assert gone() is None


# --- values that change in every call ------------------------------------------------------------


def test_the_user_is_told_once_of_a_number_that_is_new_in_every_call() -> None:
    @wf.jit
    def scaled(x: wf.Tensor, rate: float, mode: str) -> wf.Tensor:
        return x * rate

    for step in range(MANY):
        assert scaled(wf.ones(2), 0.5 * step, "sum").tolist() == [0.5 * step] * 2
    with pytest.warns(UserWarning, match="as rate had ever new values") as told:
        scaled(wf.ones(2), 8.0, "sum")
    assert "rate = wf.tensor(8.0)" in str(told[0].message)
    assert told[0].filename == __file__
    for step in range(4):  # and not again
        scaled(wf.ones(2), 9.0 + step, "sum")


def test_a_closed_over_number_that_changes_is_named_and_a_tensor_is_not() -> None:
    rate: Any = 0.0
    scaled = wf.jit(lambda x: x * rate)
    for step in range(MANY):
        rate = 0.5 * step
        assert scaled(wf.ones(2)).tolist() == [rate] * 2
    rate = 8.0
    with pytest.warns(UserWarning, match="as rate had ever new values"):
        scaled(wf.ones(2))
    compiled = len(scaled.compilations)
    for step in range(4):
        rate = wf.tensor(0.5 * step)
        assert scaled(wf.ones(2)).tolist() == [0.5 * step] * 2
    assert len(scaled.compilations) == compiled + 1


def test_other_sizes_and_dtypes_are_no_changing_values() -> None:
    double = wf.jit(lambda x, factor: x * factor)
    for dtype in ("float32", "float64", "int32", "int64"):
        for rank in range(5):
            double(wf.ones((2,) * rank, dtype=dtype), 2)
    assert len(double.compilations) > MANY


class Stepping(nn.Module):
    """A module with an attribute that is called as the compiled function below is."""

    def __init__(self) -> None:
        self.step = nn.Linear(3, 2)

    def forward(self, x: Any) -> Any:
        return self.step(x)


@wf.jit
def step(net: Any, x: Any) -> Any:
    """One call of a network."""
    return net(x)


def test_a_compiled_function_does_not_close_over_its_own_programs() -> None:
    """Its name is that of an attribute which the network reads, and is looked up with it."""
    net = Stepping()
    for rows in (3, 3, 4, 5, 6):
        step(net, wf.ones((rows, 3)))
    assert len(step.compilations) == 2
