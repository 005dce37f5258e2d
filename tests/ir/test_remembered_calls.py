"""What a function applies is remembered by types and options; results and tape stay the same."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

import weft as wf
from weft.ir import remembered_calls
from weft.ir.eager_primitives import forms_of, known_computation
from weft.ir.primitive import PRIMITIVES
from weft.ir.remembered_calls import Remembered, remember_calls

Function = Callable[[wf.Tensor], wf.Tensor]
FUNCTIONS: dict[str, Function] = {
    "sum": lambda x: wf.sum(x),
    "sum of an axis, kept": lambda x: wf.sum(x, axis=1, keepdims=True),
    "mean": lambda x: wf.mean(x, axis=0),
    "prod": lambda x: wf.prod(x, axis=(0, 1)),
    "max": lambda x: wf.max(x, axis=-1),
    "any": lambda x: wf.any(x > 0, axis=0),
    "argmax": lambda x: wf.argmax(x, axis=1),
    "running sum": lambda x: wf.cumulative_sum(x, axis=1),
    "reshape": lambda x: wf.reshape(x, (-1,)),
    "expand": lambda x: wf.expand_dims(x, axis=1),
    "permute": lambda x: wf.permute_dims(x, (1, 0)),
    "a copy": lambda x: wf.reshape(wf.permute_dims(x, (1, 0)), (-1,)),
    "flip": lambda x: wf.flip(x, axis=0),
    "roll": lambda x: wf.roll(x, 1, axis=1),
    "tile": lambda x: wf.tile(x, (2, 1)),
    "repeat": lambda x: wf.repeat(x, 2, axis=0),
    "broadcast": lambda x: wf.broadcast_to(x, (2, *x.shape)),
    "concat": lambda x: wf.concat((x, x * 2), axis=1),
    "stack": lambda x: wf.stack([x, x], axis=1),
    "no change": lambda x: wf.reshape(x, x.shape),
}


@pytest.fixture
def hits(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The primitives that were applied because they were remembered."""
    found: list[str] = []
    inner = Remembered.__call__

    def call(self: Remembered, operands: list[wf.Tensor]) -> wf.Tensor:
        found.extend(each.primitive.name for each in self.applications)
        return inner(self, operands)

    monkeypatch.setattr(remembered_calls.Remembered, "__call__", call)
    return found


@pytest.mark.parametrize("name", FUNCTIONS)
def test_later_calls_have_the_bits_and_the_derivative_of_the_first(name: str) -> None:
    f = FUNCTIONS[name]
    rng = np.random.default_rng(3)
    for shape in ((3, 5), (40, 700)):
        value = rng.standard_normal(shape).astype("f4")
        found, slopes = [], []
        for _ in range(4):
            x = wf.tensor(value).requires_grad_()
            result = f(x)
            found.append(result.detach().numpy().tobytes())
            if result.dtype.is_inexact:
                result.backward(wf.tensor(np.arange(result.size, dtype="f4")).reshape(result.shape))
                assert x.grad is not None
                slopes.append(x.grad.numpy().tobytes())
        assert len(set(found)) == 1
        assert len(set(slopes)) <= 1


def test_the_third_call_of_a_kind_is_remembered(hits: list[str]) -> None:
    x = wf.ones((3, 11, 2))
    for _ in range(2):
        wf.sum(x, axis=1, keepdims=True)
    assert hits == []
    wf.sum(x, axis=1, keepdims=True)
    assert hits == ["reduce_sum", "reshape"]


def test_options_that_are_equal_and_not_the_same_are_told_apart() -> None:
    seen: list[Any] = []

    @remember_calls
    def look(x: wf.Tensor, option: Any) -> wf.Tensor:
        seen.append(option)
        return wf.exp(x) if option is True else wf.sin(x)

    x = wf.tensor([0.5])
    found = [look(x, option).item() for _ in range(4) for option in (True, 1, 1.0)]
    assert found[:3] * 4 == found
    assert found[0] != found[1] == found[2]
    assert seen.count(1.0) > 4  # a float makes no key


def test_a_remembered_part_is_still_a_part() -> None:
    x = wf.zeros((2, 7))
    for _ in range(4):
        part = wf.permute_dims(x, (1, 0))
        with pytest.raises(wf.ArgumentError):
            part.fill_(1.0)


def test_wrong_calls_are_refused_each_time() -> None:
    x = wf.ones((2, 9))
    for _ in range(4):
        with pytest.raises(wf.WeftError, match="axis"):
            wf.sum(x, axis=2)


def test_transforms_and_observers_see_what_a_function_does(hits: list[str]) -> None:
    x = wf.ones((4, 13))

    def total(each: wf.Tensor) -> wf.Tensor:
        return wf.sum(each, axis=0)

    for _ in range(3):
        total(x)
    hits.clear()
    assert wf.vmap(total)(wf.ones((2, 4, 13))).shape == (2, 13)
    assert wf.jit(total)(x).tolist() == [4.0] * 13
    with wf.debug.nans(), pytest.raises(wf.WeftError):
        total(wf.ones((4, 13)) * float("nan"))
    with wf.autocast("bfloat16"):
        total(x)
    assert hits == []


def test_second_derivatives_go_through_remembered_calls() -> None:
    def f(x: wf.Tensor) -> wf.Tensor:
        return (wf.stack([x, x**3]).sum(axis=0) * x).mean()

    for _ in range(4):
        x = wf.tensor([1.0, 2.0]).requires_grad_()
        f(x).backward(create_graph=True)
        first, x.grad = x.grad, None
        assert first is not None
        first.sum().backward()
        assert x.grad is not None
        assert x.grad.tolist() == [7.0, 25.0]  # of (x² + x⁴) / 2


def _total() -> Function:
    """A sum that remembers nothing yet."""
    return remember_calls(lambda x: wf.ir.dispatch.apply(PRIMITIVES["reduce_sum"], x, axes=(0, 1)))


def test_a_remembered_program_is_left_where_memory_or_settings_are_others() -> None:
    with wf.settings.changed(eager="native", eager_elements=256):
        x = wf.tensor(np.random.default_rng(5).standard_normal((300, 300)).astype("f4"))
        known = _total()
        native = {known(x).item() for _ in range(5)}
        assert len(native) == 1
        for view in (x.T, x[::-1]):  # one has a program of its own, one is done by reference
            assert known(view).item() == _total()(view).item()
        for changed in ({"eager": "reference"}, {"eager_elements": 1 << 20}, {"compiler": False}):
            with wf.settings.changed(**changed):
                assert known(x).item() == _total()(x).item() not in native
        assert known(x).item() in native


def test_a_remembered_program_is_left_where_users_have_rules() -> None:
    with wf.settings.changed(eager="native", eager_elements=256):
        x = wf.tensor(np.random.default_rng(6).standard_normal((300, 301)).astype("f4"))
        forms = forms_of(PRIMITIVES["reduce_sum"], {"axes": (0, 1)})
        assert forms is not None
        run: Any = forms.find((x,), {})[0]
        total = run([x])
        assert run.compute_known([x.numpy()])[0] == total.numpy()
        with wf.compiler.rewrite(lambda x: x * 2.0, lambda x: x + x, name="twice"):
            assert run.compute_known([x.numpy()]) is None


def test_threads_share_a_remembered_program() -> None:
    with wf.settings.changed(eager="native", eager_elements=256):
        total, values = _total(), [wf.full((200, 200), float(i)) for i in range(4)]

        def totals(x: wf.Tensor) -> set[float]:
            with wf.settings.changed(eager="native", eager_elements=256):
                return {total(x).item() for _ in range(300)}

        with ThreadPoolExecutor(4) as pool:
            assert [*pool.map(totals, values)] == [{40_000.0 * i} for i in range(4)]


def test_what_is_computed_at_once_asks_the_settings_and_leaves_errors_to_the_whole_way() -> None:
    total, x = PRIMITIVES["reduce_sum"], np.arange(5, dtype=np.float32)
    with wf.settings.changed(eager="native", eager_elements=256):
        compute = known_computation(total, [x], {"axes": (0,)})
        assert compute is not None
        assert compute([x])[0].tolist() == 10.0
        with wf.settings.changed(eager_elements=1):
            assert compute([x]) is None
        wrong = known_computation(total, [x[None]], {"axes": (3,)})
        assert wrong is not None
        assert wrong([x[None]]) is None


@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_remembered_call_follows_settings_that_change(name: str) -> None:
    f, array = FUNCTIONS[name], np.random.default_rng(3).normal(size=(24, 40)).astype(np.float32)
    expected = f(wf.tensor(array)).numpy()
    ways: list[dict[str, Any]] = [{}, {"eager": "reference"}, {"eager_elements": 1}, {}, {}]
    for changes in [*ways, *ways]:
        with wf.settings.changed(**changes):
            np.testing.assert_allclose(f(wf.tensor(array)).numpy(), expected, rtol=1e-5, atol=1e-5)
            turned = f(wf.tensor(array.T.copy()).T).numpy()
        np.testing.assert_allclose(turned, expected, rtol=1e-5, atol=1e-5)
