"""Python values that a compiled function reads from outside count as they are at each call."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import weft as wf
from weft import nn
from weft.compiler.function.changing_values import MANY

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
    calls, seen, tally = 0, [], {"traced": 0}

    def double(x: wf.Tensor) -> wf.Tensor:
        nonlocal calls
        calls += 1
        seen.append(calls)
        tally["traced"] += 1
        return x * 2

    fast = wf.jit(double)
    for _ in range(3):
        assert fast(X).tolist() == [2.0, 4.0]
    assert (calls, seen, tally, len(fast.compilations)) == (1, [1], {"traced": 1}, 1)
    assert fast(wf.ones(3)).tolist() == [2.0] * 3
    assert fast(wf.ones(4)).tolist() == fast(wf.ones(5)).tolist()[:4]
    assert len(fast.compilations) == 2


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
