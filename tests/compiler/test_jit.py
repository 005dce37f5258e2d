"""`jit` gives what the function gives: results, state, gradients, random numbers, in any order."""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest

import weft as wf
from weft.ir.dispatch import traces


def test_a_training_step_is_one_program() -> None:
    def step(w: wf.Tensor, x: wf.Tensor) -> wf.Tensor:
        loss = ((w * x) ** 2).sum()
        loss.backward()
        with wf.no_grad():
            w -= 0.1 * w.grad
        w.grad = None
        return loss

    eager = wf.tensor([1.0, 2.0], requires_grad=True)
    compiled = wf.tensor([1.0, 2.0], requires_grad=True)
    fast = wf.jit(step)
    x = wf.tensor([1.0, 3.0])
    for _ in range(3):
        assert fast(compiled, x).item() == pytest.approx(step(eager, x).item(), rel=1e-6)
        np.testing.assert_allclose(compiled.detach().numpy(), eager.detach().numpy(), rtol=1e-6)
    assert compiled.requires_grad
    assert compiled.is_leaf
    assert compiled.grad is None
    assert len(fast.compilations) == 1


def test_gradients_accumulate_as_they_do_eagerly() -> None:
    def accumulate(w: wf.Tensor) -> wf.Tensor:
        loss = (w * w).sum()
        loss.backward()
        return loss

    w = wf.tensor([1.0, 2.0], requires_grad=True)
    fast = wf.jit(accumulate)
    fast(w)
    assert w.grad.tolist() == [2.0, 4.0]
    fast(w)
    assert w.grad.tolist() == [4.0, 8.0]


def test_state_that_is_closed_over_is_found_and_written_back() -> None:
    total = wf.tensor(1.0)

    @wf.jit
    def add(x: wf.Tensor) -> wf.Tensor:
        total.copy_(total + x)
        return total * 2

    assert add(wf.tensor(2.0)).item() == 6.0
    assert total.item() == 3.0
    total.fill_(10.0)
    assert add(wf.tensor(1.0)).item() == 22.0
    assert len(add.compilations) == 1


def test_trees_go_in_and_come_out() -> None:
    @wf.jit
    def f(tree: dict[str, list[wf.Tensor]], scale: float) -> dict[str, object]:
        return {"sum": tree["a"][0] + tree["a"][1], "scaled": (tree["b"][0] * scale, "name")}

    out = f({"a": [wf.ones(2), wf.ones(2)], "b": [wf.ones(3)]}, 2.0)
    assert out["sum"].tolist() == [2.0, 2.0]
    assert out["scaled"][0].tolist() == [2.0, 2.0, 2.0]
    assert out["scaled"][1] == "name"


@pytest.mark.parametrize("x", [0.5, 2.0])
def test_jit_composes_with_every_transform_in_both_orders(x: float) -> None:
    f = lambda x: wf.sin(x) * x  # noqa: E731
    fast = wf.jit(f)
    point = wf.tensor(x)
    slope = np.cos(x) * x + np.sin(x)
    bend = 2 * np.cos(x) - x * np.sin(x)
    assert wf.grad(fast)(point).item() == pytest.approx(slope, rel=1e-5)
    assert wf.jit(wf.grad(fast))(point).item() == pytest.approx(slope, rel=1e-5)
    assert wf.grad(wf.jit(wf.grad(fast)))(point).item() == pytest.approx(bend, rel=1e-5)
    assert wf.jvp(fast, (point,), (wf.tensor(1.0),))[1].item() == pytest.approx(slope, rel=1e-5)
    many = wf.tensor([x, x + 1])
    expected = [f(each).item() for each in many]
    assert wf.vmap(fast)(many).tolist() == pytest.approx(expected, rel=1e-5)
    assert wf.jit(wf.vmap(fast))(many).tolist() == pytest.approx(expected, rel=1e-5)
    leaf = wf.tensor(x, requires_grad=True)
    fast(leaf).backward()
    assert leaf.grad.item() == pytest.approx(slope, rel=1e-5)


def test_random_numbers_are_those_of_the_eager_function() -> None:
    draw = lambda: wf.random.normal((3,)) + wf.random.uniform((3,))  # noqa: E731
    fast = wf.jit(draw)
    wf.random.seed(7)
    expected = [draw().tolist() for _ in range(3)]
    wf.random.seed(7)
    found = [fast().tolist() for _ in range(3)]
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)
    assert len(fast.compilations) == 1


def test_a_checkpoint_with_random_numbers_leaves_the_generator_alone() -> None:
    noisy = wf.checkpoint(lambda x: wf.sin(x) * wf.random.uniform((3,)))
    gradient = lambda x: wf.grad(lambda x: noisy(x).sum())(x)  # noqa: E731
    x = wf.tensor([0.1, 0.2, 0.3])
    wf.random.seed(3)
    expected = gradient(x).tolist()
    wf.random.seed(3)
    assert wf.jit(gradient)(x).tolist() == pytest.approx(expected, rel=1e-5)
    following = wf.random.uniform((2,)).tolist()
    wf.random.seed(3)
    gradient(x)
    assert wf.random.uniform((2,)).tolist() == following


@pytest.mark.slow
def test_many_sizes_cost_two_compilations(rng: np.random.Generator) -> None:
    def f(x: wf.Tensor, w: wf.Tensor) -> wf.Tensor:
        return wf.softmax(x @ w).sum(axis=0) / x.shape[0]

    fast = wf.jit(f)
    w = wf.asarray(rng.normal(size=(5, 6)).astype(np.float32))
    for size in range(2, 202):
        x = wf.asarray(rng.normal(size=(size, 5)).astype(np.float32))
        np.testing.assert_allclose(fast(x, w).numpy(), f(x, w).numpy(), rtol=1e-4, atol=1e-6)
    assert len(fast.compilations) == 2
    assert fast.compilations[0].reason == "first call"
    assert "axis 0 of tensor 0: 2 then 3" in fast.compilations[1].reason


def test_sizes_that_changed_alike_may_differ_later(rng: np.random.Generator) -> None:
    """Square images first, and then others: one more program, for all of them."""
    pool = wf.jit(lambda x: wf.max_pool2d(x, 2).sum(axis=(2, 3)))
    shapes = ((8, 8), (12, 12), (10, 12), (8, 16), (16, 8), (12, 12), (6, 14), (5, 5))
    for shape in shapes:
        x = wf.asarray(rng.normal(size=(2, 3, *shape)).astype(np.float32))
        expected = wf.max_pool2d(x, 2).sum(axis=(2, 3)).numpy()
        np.testing.assert_allclose(pool(x).numpy(), expected, rtol=1e-5, atol=1e-5)
    assert len(pool.compilations) == 3


@pytest.mark.parametrize("transposed", [False, True])
def test_what_is_halved_and_doubled_is_one_program_for_multiples(
    transposed: bool, rng: np.random.Generator
) -> None:
    """Beside the image itself, which has the same size if its sides are multiples of 4."""
    weight = wf.asarray(rng.normal(size=(3, 3, 4, 4)).astype(np.float32))

    def doubled(x: wf.Tensor) -> wf.Tensor:
        small = wf.max_pool2d(wf.max_pool2d(x, 2), 2)
        if transposed:
            large = wf.conv_transpose2d(small, weight, stride=4)
        else:
            large = wf.interpolate(wf.interpolate(small, scale_factor=2), scale_factor=2.0)
        return wf.concat([x, large], axis=1)

    compiled = wf.jit(doubled)
    for shape in ((8, 8), (16, 16), (12, 20), (4, 8), (40, 24), (8, 8)):
        x = wf.asarray(rng.normal(size=(2, 3, *shape)).astype(np.float32))
        np.testing.assert_allclose(compiled(x).numpy(), doubled(x).numpy(), rtol=1e-5, atol=1e-5)
    assert len(compiled.compilations) == 3
    with pytest.raises(wf.ShapeError):
        compiled(wf.ones((2, 3, 8, 10)))
    assert compiled(wf.ones((2, 3, 44, 36))).shape == (2, 6, 44, 36)


def test_a_call_that_fails_does_not_end_programs_for_all_sizes() -> None:
    @wf.jit
    def total(x: wf.Tensor) -> wf.Tensor:
        if x.shape[0] == 7:
            raise ValueError("seven rows")
        return x.sum(axis=0)

    for rows in (3, 4):
        total(wf.ones((rows, 5)))
    with pytest.raises(ValueError, match="seven"):
        total(wf.ones((7, 6)))
    for columns in (6, 7, 8):
        assert total(wf.ones((9, columns))).tolist() == [9.0] * columns
    assert len(total.compilations) == 3


def test_a_function_that_needs_its_size_is_compiled_for_each() -> None:
    fast = wf.jit(lambda x: x.reshape(2, int(x.shape[0]) // 2).sum(axis=1))
    assert [fast(wf.ones(n)).tolist() for n in (4, 8, 6)] == [[2.0, 2.0], [4.0, 4.0], [3.0, 3.0]]


def test_the_function_can_run_by_reference() -> None:
    fast = wf.jit(lambda x: wf.exp(x))
    with wf.settings.changed(compiler=False):
        assert fast(wf.zeros(2)).tolist() == [1.0, 1.0]


def test_python_control_flow_on_a_traced_value_is_refused_with_the_ways_out() -> None:
    fast = wf.jit(lambda x: x if x > 0 else -x)
    x = wf.tensor(1.0)
    with pytest.raises(wf.TraceError) as caught:
        fast(x)
    assert "traced by jit" in caught.value.problem
    assert "wf.where" in caught.value.fix
    assert x.item() == 1.0
    assert traces.stack == []


def test_an_error_while_tracing_leaves_everything_as_it_was() -> None:
    w = wf.tensor([1.0, 2.0], requires_grad=True)

    @wf.jit
    def bad(w: wf.Tensor) -> wf.Tensor:
        (w * w).sum().backward()
        return w @ wf.ones((3, 3))

    with pytest.raises(wf.ShapeError):
        bad(w)
    assert w.detach().tolist() == [1.0, 2.0]
    assert w.grad is None
    assert w.is_leaf


def test_a_leaked_tensor_is_refused() -> None:
    kept: list[wf.Tensor] = []
    wf.jit(lambda x: kept.append(x * 2) or x)(wf.ones(2))
    with pytest.raises(wf.LeakError):
        kept[0] + 1


def test_an_argument_that_cannot_be_compared_is_refused() -> None:
    with pytest.raises(wf.ArgumentTypeError) as caught:
        wf.jit(lambda x: x)({1, 2})
    assert caught.value.op == "jit"


SCALE = wf.tensor(5.0)


def doubled() -> wf.Tensor:
    return SCALE * 2


def test_what_is_closed_over_is_read_at_each_call() -> None:
    w = wf.tensor(5.0)
    by_value = wf.jit(lambda x: w * 2 + x)
    by_call = wf.jit(lambda x: doubled() + x)
    assert by_value(wf.tensor(1.0)).item() == by_call(wf.tensor(1.0)).item() == 11.0
    w.fill_(100.0)
    SCALE.fill_(100.0)
    assert by_value(wf.tensor(1.0)).item() == by_call(wf.tensor(1.0)).item() == 201.0
    w = wf.tensor([1.0, 2.0])
    assert by_value(wf.tensor(1.0)).tolist() == [3.0, 5.0]


def test_objects_that_hold_tensors_are_looked_into() -> None:
    class Model:
        def __init__(self) -> None:
            self.weights = [wf.tensor(1.0), wf.tensor(2.0)]

        def __call__(self, x: wf.Tensor) -> wf.Tensor:
            return self.weights[0] * 2 + self.weights[1] * x

    model = Model()
    fast = wf.jit(model.__call__)
    assert fast(wf.tensor(3.0)).item() == 8.0
    model.weights[0] = wf.tensor(10.0)
    assert fast(wf.tensor(3.0)).item() == 26.0
    assert len(fast.compilations) == 1


def train_steps(wrap: Callable[[Callable[..., Any]], Callable[..., Any]]) -> list[float]:
    """The losses of a network that a plain object holds and passes to its step."""
    wf.random.seed(0)

    class Agent:
        def __init__(self) -> None:
            self.net = wf.nn.Linear(2, 2)
            self.optimizer = wf.optim.SGD(self.net.parameters(), lr=0.1)

    def step(agent: Agent, x: wf.Tensor) -> wf.Tensor:
        loss = (agent.net(x) ** 2).sum()
        agent.optimizer.minimize(loss)
        return loss

    step, agent = wrap(step), Agent()
    return [step(agent, wf.ones((1, 2))).item() for _ in range(4)]


def test_a_network_that_an_object_among_the_arguments_holds_is_trained() -> None:
    np.testing.assert_allclose(train_steps(wf.jit), train_steps(lambda step: step), rtol=1e-5)


def test_tensors_of_objects_and_functions_among_the_arguments_are_read_at_each_call() -> None:
    class Holder:
        pass

    holder, weights = Holder(), {"w": wf.ones(2)}
    holder.w = wf.ones(2)  # type: ignore[attr-defined]
    double = wf.jit(lambda held, x: 2 * held.w * x)
    apply = wf.jit(lambda f, x: f(x))
    scale = lambda x: weights["w"] * x  # noqa: E731
    for expected in (1.0, 2.0, 3.0):
        assert double(holder, wf.ones(2)).tolist() == [2 * expected] * 2
        assert apply(scale, wf.ones(2)).tolist() == [expected] * 2
        holder.w = holder.w + 1.0  # type: ignore[attr-defined]
        weights["w"] = weights["w"] + 1.0


def test_methods_are_compiled_and_know_their_object() -> None:
    class Scale:
        def __init__(self, factor: float) -> None:
            self.factor = wf.tensor(factor)

        @wf.jit
        def apply(self, x: wf.Tensor, *, shift: float = 0.0) -> wf.Tensor:
            return self.factor * x + shift

    double, triple, x = Scale(2.0), Scale(3.0), wf.tensor(5.0)
    assert (double.apply(x).item(), triple.apply(x, shift=1.0).item()) == (10.0, 16.0)
    double.factor = wf.tensor(4.0)
    assert double.apply(x).item() == 20.0
    assert len(double.apply.explain(x).kernels) == 1
    assert double.apply.memory(x).peak > 0
    assert len(double.apply.compilations) == 2  # one for each object


def test_forward_of_a_module_is_compiled_as_a_method() -> None:
    class Net(wf.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer, self.times = wf.nn.Linear(2, 1), 1

        @wf.jit
        def forward(self, x: wf.Tensor) -> wf.Tensor:
            return self.layer(x) * self.times

    net, x = Net(), wf.ones((1, 2))
    once = net(x).item()
    net.times = 3
    assert net(x).item() == pytest.approx(3 * once)
    net(x).sum().backward()
    assert net.layer.bias.grad is not None
    assert net.layer.bias.grad.tolist() == [3.0]


def test_a_compiled_function_inside_another_leaves_no_call() -> None:
    inner = wf.jit(lambda x: wf.sin(x) * 2)
    outer = wf.jit(lambda x: inner(x) + 1)
    assert outer(wf.tensor(0.0)).item() == 1.0
    assert [call.name for call in outer.program(wf.tensor(0.0)).plan.launches] == ["k0"]


def test_the_decorator_takes_the_options_of_the_interface() -> None:
    @wf.jit(static_argnames=("power",))
    def raised(x: wf.Tensor, power: int) -> wf.Tensor:
        return x**power

    assert raised(wf.tensor(3.0), power=2).item() == 9.0
    assert wf.jit(raised, static_argnames="power")(wf.tensor(3.0), power=2).item() == 9.0
    for names in ("exponent", ("exponent",)):
        with pytest.raises(wf.ArgumentError, match="no argument called 'exponent'"):
            wf.jit(lambda x: x, static_argnames=names)
    assert wf.jit(lambda x: x * 2, memory="8GB")(wf.tensor(3.0)).item() == 6.0
    with pytest.raises(wf.ArgumentError, match="no amount of memory"):
        wf.jit(lambda x: x, memory="much")


def test_a_step_that_clears_gradients_first_is_compiled_once() -> None:
    w = wf.tensor([1.0, 2.0], requires_grad=True)

    @wf.jit
    def step(w: wf.Tensor) -> wf.Tensor:
        w.grad = None
        loss = (w * w).sum()
        loss.backward()
        return loss

    for _ in range(3):
        step(w)
        assert w.grad.tolist() == [2.0, 4.0]
    assert len(step.compilations) == 1


def test_a_gradient_that_is_cleared_at_the_end_is_cleared_whether_or_not_there_was_one() -> None:
    @wf.jit
    def gradient(w: wf.Tensor) -> wf.Tensor:
        w.grad = None
        (w * w).sum().backward()
        found = w.grad * 1
        w.grad = None
        return found

    for before in (None, wf.ones(2)):
        w = wf.tensor([1.0, 2.0], requires_grad=True)
        w.grad = before
        assert gradient(w).tolist() == [2.0, 4.0]
        assert w.grad is None
    assert len(gradient.compilations) == 1


def test_a_step_that_accumulates_gradients_knows_whether_there_is_one() -> None:
    w = wf.tensor([1.0, 2.0], requires_grad=True)
    step = wf.jit(lambda w: (w * w).sum().backward())
    for count in (1, 2, 3):
        step(w)
        assert w.grad.tolist() == [2.0 * count, 4.0 * count]
    w.grad = None
    step(w)
    assert w.grad.tolist() == [2.0, 4.0]
    assert len(step.compilations) == 2


@pytest.mark.parametrize("zeros", [(0.0, -0.0), (-0.0, 0.0)])
def test_zeros_of_either_sign_are_different_numbers(zeros: tuple[float, float]) -> None:
    x = wf.tensor([1.0])
    written = [wf.jit(lambda x, zero=zero: wf.copysign(x, zero) * 1.625)(x) for zero in zeros]
    given = wf.jit(lambda x, zero: wf.copysign(x, zero) * 1.625)
    expected = [math.copysign(1.625, zero) for zero in zeros]
    assert [each.item() for each in written] == expected
    assert [given(x, zero).item() for zero in zeros] == expected


def test_nan_as_an_argument_is_compiled_once() -> None:
    step = wf.jit(lambda x, fill: wf.where(x > 0, x, fill))
    for _ in range(3):
        step(wf.tensor([1.0]), float("nan"))
    assert len(step.compilations) == 1


@dataclass
class Scaled:
    """A tensor with a number that is part of the structure."""

    x: wf.Tensor
    factor: Any = field(metadata={"static": True})


A, B = wf.tensor([1, 2]), wf.tensor([3, 4])
ALIKE: dict[str, tuple[Callable[..., wf.Tensor], list[tuple[tuple[Any, ...], dict[str, Any]]]]] = {
    "dictionaries": (
        lambda tree: wf.concat([*tree.values()]),
        [(({"a": A, "b": B},), {}), (({"b": B, "a": A},), {}), (({"b": A, "a": B},), {})],
    ),
    "ordered dictionaries": (
        lambda tree: wf.concat([*tree[0].values()]),
        [(([OrderedDict(a=A, b=B)],), {}), (([OrderedDict(b=B, a=A)],), {})],
    ),
    "dictionaries of numbers": (
        lambda x, tree: x * next(iter(tree.values())),
        [((A, {"a": 1, "b": 2}), {}), ((A, {"b": 2, "a": 1}), {})],
    ),
    "names": (
        lambda **tree: wf.concat([*tree.values()]),
        [((), {"a": A, "b": B}), ((), {"b": B, "a": A})],
    ),
    "keys": (
        lambda tree: next(iter(tree.values())) * next(iter(tree)),
        [(({key: A},), {}) for key in (1, 1.0, True)],
    ),
    "static fields": (
        lambda scaled: wf.copysign(scaled.x * scaled.factor, scaled.factor),
        [((Scaled(A * 1.0, factor),), {}) for factor in (1, 1.0, 0.0, -0.0)],
    ),
    "static numbers": (
        lambda scaled: scaled.x * scaled.factor,
        [((Scaled(A, factor),), {}) for factor in (1, 1.0, 1)],
    ),
}


@pytest.mark.parametrize("case", ALIKE)
def test_arguments_that_are_equal_and_not_the_same_have_programs_of_their_own(case: str) -> None:
    f, calls = ALIKE[case]
    fast = wf.jit(f)
    for _ in range(4):
        for args, named in calls:
            expected, found = f(*args, **named), fast(*args, **named)
            assert found.dtype is expected.dtype
            assert repr(found.tolist()) == repr(expected.tolist())


@pytest.mark.parametrize("form", ["argument", "closed over"])
def test_hooks_of_leaves_are_run_by_a_compiled_step(form: str) -> None:
    w = wf.tensor([1.0, 2.0], requires_grad=True)

    def step(w: wf.Tensor) -> None:
        w.grad = None
        (w * w).sum().backward()

    fast = wf.jit(step if form == "argument" else lambda: step(w))
    given = (w,) if form == "argument" else ()

    def check(factor: float) -> None:
        for _ in range(4):
            fast(*given)
            assert w.grad.tolist() == [2.0 * factor, 4.0 * factor]

    check(1.0)
    remove = w.register_hook(lambda gradient: gradient * 10)
    check(10.0)
    remove_second = w.register_hook(lambda gradient: gradient * 2)
    check(20.0)
    remove()
    check(2.0)
    remove_second()
    check(1.0)


def test_names_of_code_without_a_file_are_read_anew() -> None:
    scope = {"wf": wf, "w": wf.ones(2), "__name__": "somewhere"}
    exec("f = wf.jit(lambda x: x * w)", scope)
    found = [scope["f"](wf.ones(2)).tolist()]
    for value in (5.0, 7.0):
        scope["w"] = wf.full((2,), value)
        found.append(scope["f"](wf.ones(2)).tolist())
    assert found == [[1.0, 1.0], [5.0, 5.0], [7.0, 7.0]]
