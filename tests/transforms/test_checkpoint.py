"""`checkpoint` recomputes instead of remembering, and changes nothing else."""

from __future__ import annotations

import weakref
from typing import Any

import numpy as np
import pytest
from tests.quiet import wait_for_quiet

import weft as wf
from weft.ir.tape_order import reachable_nodes


def double(value: Any) -> wf.Tensor:
    return wf.asarray(np.asarray(value, dtype=np.float64))


def chain(x: wf.Tensor) -> wf.Tensor:
    for _ in range(10):
        x = wf.sin(x) * 1.1
    return x


def test_the_gradient_is_the_same() -> None:
    x = double([0.3, 0.6])
    f = lambda y: chain(y).sum()  # noqa: E731
    expected = wf.value_and_grad(f)(x)
    found = wf.value_and_grad(wf.checkpoint(f))(x)
    assert found[0].item() == expected[0].item()
    np.testing.assert_allclose(found[1].numpy(), expected[1].numpy(), rtol=1e-14)


def test_backward_works_too_and_twice_with_retain_graph() -> None:
    x = wf.tensor([0.3, 0.6], requires_grad=True)
    y = wf.checkpoint(chain)(x).sum()
    y.backward(retain_graph=True)
    first = x.grad.numpy().copy()
    y.backward()
    np.testing.assert_allclose(x.grad.numpy(), 2 * first, rtol=1e-6)


def test_the_tape_keeps_one_node_for_the_whole_function() -> None:
    x = wf.tensor([0.3], requires_grad=True)
    plain, kept = chain(x), wf.checkpoint(chain)(x)
    assert len(reachable_nodes([plain._node])) > 20
    assert len(reachable_nodes([kept._node])) == 3  # the result, the function, the leaf


def test_values_inside_are_not_kept() -> None:
    inside: list[weakref.ref] = []

    def f(x: wf.Tensor) -> wf.Tensor:
        y = wf.exp(x)
        inside.append(weakref.ref(y._value))
        return wf.sin(y)

    x = wf.tensor([0.3, 0.4], requires_grad=True)
    result = wf.checkpoint(f)(x)
    wait_for_quiet()
    assert inside[0]() is None
    plain = f(x)
    wait_for_quiet()
    assert inside[1]() is not None
    del plain
    result.sum().backward()
    expected = np.cos(np.exp([0.3, 0.4])) * np.exp([0.3, 0.4])
    np.testing.assert_allclose(x.grad.numpy(), expected, rtol=1e-5)


def test_the_function_runs_again_only_when_a_derivative_is_taken() -> None:
    calls: list[int] = []

    def f(x: wf.Tensor) -> wf.Tensor:
        calls.append(1)
        return x * x

    y = wf.checkpoint(f)(wf.tensor(3.0, requires_grad=True))
    assert len(calls) == 1
    y.backward()
    assert len(calls) == 2
    with wf.no_grad():
        wf.checkpoint(f)(wf.tensor(3.0, requires_grad=True))
    assert len(calls) == 3


def test_random_numbers_are_the_same_in_the_second_run() -> None:
    wf.random.seed(7)
    x = wf.ones(50, dtype="float64").requires_grad_()
    seen: list[np.ndarray] = []

    def f(y: wf.Tensor) -> wf.Tensor:
        mask = wf.random.bernoulli(0.5, (50,)).astype("float64")
        seen.append(mask.numpy())
        return (y * mask).sum()

    result = wf.checkpoint(f)(x)
    after = wf.random.normal((3,)).numpy()
    result.backward()
    np.testing.assert_array_equal(seen[0], seen[1])
    np.testing.assert_array_equal(x.grad.numpy(), seen[0])
    assert 0 < seen[0].sum() < 50
    wf.random.seed(7)
    f(x)
    np.testing.assert_array_equal(wf.random.normal((3,)).numpy(), after)


def test_the_generator_goes_on_as_if_there_had_been_no_second_run() -> None:
    def draw(differentiate: bool) -> np.ndarray:
        wf.random.seed(3)
        x = wf.tensor(1.0, requires_grad=True)
        y = wf.checkpoint(lambda z: z * wf.random.normal(()))(x)
        if differentiate:
            y.backward()
        return wf.random.normal((4,)).numpy()

    np.testing.assert_array_equal(draw(True), draw(False))


def test_closed_over_parameters_get_gradients() -> None:
    w = wf.tensor([2.0, 3.0], requires_grad=True)
    x = wf.tensor([5.0, 7.0], requires_grad=True)
    wf.checkpoint(lambda y: (y * w * w).sum())(x).backward()
    assert w.grad.tolist() == [20.0, 42.0]
    assert x.grad.tolist() == [4.0, 9.0]


def test_closed_over_arguments_of_an_outer_gradient() -> None:
    def f(w: wf.Tensor) -> wf.Tensor:
        return wf.checkpoint(lambda y: y * w * w)(w * 3.0)  # 3 w³

    assert wf.grad(f)(double(2.0)).item() == pytest.approx(36.0)
    assert wf.grad(wf.grad(f))(double(2.0)).item() == pytest.approx(36.0)


def test_an_argument_that_is_written_afterwards_is_remembered_as_it_was() -> None:
    w = wf.tensor([2.0], requires_grad=True)
    x = w * 1.0
    y = wf.checkpoint(lambda z: z * z)(x)
    x += 100.0
    y.sum().backward()
    assert w.grad.tolist() == [4.0]


def test_nested_checkpoints() -> None:
    inner = wf.checkpoint(lambda x: wf.sin(x) * x)
    f = wf.checkpoint(lambda x: inner(inner(x)) + inner(x))
    g = lambda x: wf.sin(x) * x  # noqa: E731
    plain = lambda x: g(g(x)) + g(x)  # noqa: E731
    x = double(0.7)
    for order in range(3):
        assert f(x).item() == pytest.approx(plain(x).item(), rel=1e-12), order
        f, plain = wf.grad(f), wf.grad(plain)


def test_trees_in_and_out() -> None:
    @wf.checkpoint
    def f(p: dict, scale: float, *, shift: wf.Tensor) -> dict:
        return {"y": p["w"] * scale + shift, "n": 3, "z": (p["b"], None)}

    p = {"w": wf.tensor(2.0), "b": wf.tensor(5.0)}

    def loss(p: dict) -> wf.Tensor:
        out = f(p, 10.0, shift=wf.tensor(1.0))
        assert out["n"] == 3
        assert out["z"][1] is None
        return out["y"] * out["z"][0]

    found = wf.grad(loss)(p)
    assert found["w"].item() == 50.0
    assert found["b"].item() == 21.0


def test_a_result_that_is_not_used_contributes_nothing() -> None:
    f = wf.checkpoint(lambda x: (x * x, wf.exp(x)))
    assert wf.grad(lambda x: f(x)[0])(wf.tensor(3.0)).item() == 6.0


def test_a_function_without_derivatives_inside() -> None:
    y = wf.checkpoint(lambda x: x * 2.0)(wf.tensor(3.0))
    assert not y.requires_grad
    f = wf.checkpoint(lambda z: wf.tensor(1.0))
    assert wf.grad(lambda x: f(x) * x)(wf.tensor(3.0)).item() == 1.0


@pytest.mark.parametrize("order", [1, 2, 3])
def test_higher_orders(order: int) -> None:
    f = wf.checkpoint(wf.sin)
    for _ in range(order):
        f = wf.grad(f)
    assert f(double(0.7)).item() == pytest.approx(np.sin(0.7 + order * np.pi / 2), rel=1e-12)


def test_under_jvp() -> None:
    x, t = double([0.3, 0.6]), double([1.0, -1.0])
    expected = wf.jvp(chain, (x,), (t,))
    found = wf.jvp(wf.checkpoint(chain), (x,), (t,))
    np.testing.assert_array_equal(found[1].numpy(), expected[1].numpy())
    f = lambda y: chain(y).sum()  # noqa: E731
    np.testing.assert_allclose(
        wf.hvp(wf.checkpoint(f), (x,), (t,)).numpy(), wf.hvp(f, (x,), (t,)).numpy(), rtol=1e-12
    )


def test_under_vmap_in_both_orders() -> None:
    xs = double([0.3, 0.6, 0.9])
    expected = wf.vmap(wf.grad(chain))(xs).numpy()
    np.testing.assert_allclose(wf.vmap(wf.grad(wf.checkpoint(chain)))(xs).numpy(), expected)
    summed = wf.grad(lambda x: wf.vmap(wf.checkpoint(chain))(x).sum())(xs)
    np.testing.assert_allclose(summed.numpy(), expected)
    outside = wf.grad(lambda x: wf.checkpoint(wf.vmap(chain))(x).sum())(xs)
    np.testing.assert_allclose(outside.numpy(), expected)


def test_inside_a_trace_the_second_run_is_kept_apart_by_barriers() -> None:
    f = lambda x: wf.checkpoint(chain)(x).sum()  # noqa: E731
    x = double([0.3, 0.6])
    graph = wf.grad(f).graph(x)
    assert "barrier" in str(graph)
    (found,) = wf.ir.interpret(graph, x)
    np.testing.assert_allclose(found.numpy(), wf.grad(lambda y: chain(y).sum())(x).numpy())


def test_of_a_graph_inside_grad() -> None:
    graph = wf.ir.trace(wf.checkpoint(chain), double(0.3))
    found = wf.grad(lambda x: wf.ir.interpret(graph, x)[0])(double(0.3))
    assert found.item() == pytest.approx(wf.grad(chain)(double(0.3)).item())


def test_inside_a_loop_body() -> None:
    f = lambda x: wf.fori_loop(0, 3, lambda i, y: wf.checkpoint(wf.sin)(y), x)  # noqa: E731
    plain = lambda x: wf.sin(wf.sin(wf.sin(x)))  # noqa: E731
    assert wf.grad(f)(double(0.5)).item() == pytest.approx(wf.grad(plain)(double(0.5)).item())


def test_an_exception_in_the_second_run_leaves_the_generator_alone() -> None:
    calls: list[int] = []

    def f(x: wf.Tensor) -> wf.Tensor:
        wf.random.normal(())
        calls.append(1)
        if len(calls) == 2:
            raise KeyError("second run")
        return x * x

    wf.random.seed(1)
    y = wf.checkpoint(f)(wf.tensor(1.0, requires_grad=True))
    expected = wf.random.get_state()
    with pytest.raises(KeyError):
        y.backward()
    after = wf.random.get_state()
    assert [np.asarray(s).tolist() for s in after] == [np.asarray(s).tolist() for s in expected]
    assert wf.is_grad_enabled()


def layers(count: int) -> list[Any]:
    wf.random.seed(0)
    matrices = [wf.random.normal((16, 16)) * 0.1 for _ in range(count)]
    return [lambda x, w=w: x + wf.sin(x @ w) for w in matrices]


@pytest.mark.parametrize("policy", [None, "sqrt", 1, 4, 100])
@pytest.mark.parametrize("count", [1, 2, 7, 9])
def test_a_chain_in_segments_has_the_same_gradient(policy: Any, count: int) -> None:
    functions = layers(count)
    x = wf.ones((4, 16))

    def plain(x: wf.Tensor) -> wf.Tensor:
        for f in functions:
            x = f(x)
        return x

    chained = wf.checkpoint(functions, policy=policy)
    np.testing.assert_array_equal(chained(x).numpy(), plain(x).numpy())
    expected = wf.grad(lambda x: plain(x).sum())(x).numpy()
    found = wf.grad(lambda x: chained(x).sum())
    np.testing.assert_allclose(found(x).numpy(), expected, rtol=1e-6)
    np.testing.assert_allclose(wf.jit(found)(x).numpy(), expected, rtol=1e-5, atol=1e-6)


def test_a_chain_runs_all_but_the_last_segment_again() -> None:
    calls: list[int] = []

    def f(x: wf.Tensor) -> wf.Tensor:
        calls.append(1)
        return x * x

    wf.grad(wf.checkpoint([f] * 9))(wf.tensor(1.0))
    assert len(calls) == 9 + 6
    calls.clear()
    wf.grad(wf.checkpoint([f] * 9, policy=2))(wf.tensor(1.0))
    assert len(calls) == 9 + 8


@pytest.mark.slow
def test_the_memory_of_a_chain_grows_with_the_root_of_its_length() -> None:
    def arena(count: int, checkpointed: bool) -> int:
        functions = layers(count)

        def plain(x: wf.Tensor) -> wf.Tensor:
            for f in functions:
                x = f(x)
            return x

        f = wf.checkpoint(functions) if checkpointed else plain
        step = wf.jit(wf.grad(lambda x: f(x).sum()))
        return step.memory(wf.ones((512, 16))).arena

    assert arena(64, False) > 3.5 * arena(16, False)
    assert arena(64, True) < 2.6 * arena(16, True)
    assert arena(64, True) < 0.5 * arena(64, False)


def test_a_chain_of_modules_gives_gradients_to_their_parameters() -> None:
    wf.random.seed(0)
    modules = [wf.nn.Linear(4, 4) for _ in range(5)]
    x = wf.ones((2, 4))
    wf.checkpoint(modules)(x).sum().backward()
    found = [m.weight.grad.numpy().copy() for m in modules]
    for m in modules:
        m.weight.grad = None
    y = x
    for m in modules:
        y = m(y)
    y.sum().backward()
    for m, grad in zip(modules, found, strict=True):
        np.testing.assert_allclose(grad, m.weight.grad.numpy(), rtol=1e-6)


@pytest.mark.parametrize("compiled", [False, True])
def test_hooks_of_what_is_given_are_called_once(compiled: bool) -> None:
    x = wf.tensor([1.0, 2.0], requires_grad=True)
    x.register_hook(lambda gradient: gradient * 10)

    def step(x: wf.Tensor) -> wf.Tensor:
        y = x * 1
        y.retain_grad()
        (wf.checkpoint(lambda z: (z * z).sum())(y) + wf.checkpoint(wf.sum)(x)).backward()
        return y.grad

    retained = (wf.jit(step) if compiled else step)(x)
    assert retained.tolist() == [2.0, 4.0]
    assert x.grad.tolist() == [30.0, 50.0]


@pytest.mark.parametrize("compiled", [False, True])
def test_parameters_that_are_written_before_the_way_back_count_as_they_were(compiled: bool) -> None:
    w = wf.tensor([1.0, 2.0, 3.0], requires_grad=True)
    x = wf.tensor([1.0, 1.0, 2.0], requires_grad=True)
    inner = wf.checkpoint(lambda x: (w * x * w).sum())

    def step(x: wf.Tensor) -> wf.Tensor:
        loss = wf.checkpoint(lambda x: inner(x) * 1)(x) + inner(x)
        with wf.no_grad():
            w.mul_(10.0)
        loss.backward()
        return (w * 1).sum()

    assert (wf.jit(step) if compiled else step)(x).item() == 60.0
    assert w.tolist() == [10.0, 20.0, 30.0]
    assert x.grad.tolist() == [2.0, 8.0, 18.0]
    assert w.grad.tolist() == [4.0, 8.0, 24.0]


def test_a_checkpoint_lets_go_of_parameters_after_the_way_back() -> None:
    w = wf.ones(100_000).requires_grad_()
    loss = wf.checkpoint(lambda: (w * w).sum())()
    held = weakref.ref(w._value)
    loss.backward()
    w.grad = None
    with wf.no_grad():
        w.copy_(wf.zeros(100_000))
    assert held() is None
    assert loss.item() == 100_000.0


def test_a_chain_of_nothing_is_the_identity() -> None:
    assert wf.checkpoint([])(wf.tensor(3.0)).item() == 3.0


@pytest.mark.parametrize("policy", ["cube", 0, -2, 1.5, True])
def test_no_policy_for_a_chain(policy: Any) -> None:
    with pytest.raises(wf.ArgumentError, match="no policy"):
        wf.checkpoint([wf.sin], policy=policy)


@pytest.mark.parametrize("policy", ["sqrt", "cube", 2, 1.5, True])
def test_no_policy_for_a_function(policy: Any) -> None:
    with pytest.raises(wf.ArgumentError, match="no policy") as caught:
        wf.checkpoint(wf.sin, policy=policy)
    assert caught.value.fix == 'policy="products"'


def test_what_is_no_function_in_a_chain_is_refused() -> None:
    with pytest.raises(wf.ArgumentTypeError):
        wf.checkpoint([wf.sin, 3])


def test_gradients_of_a_checkpoint_may_be_taken_inside_of_loops_and_choices() -> None:
    @wf.checkpoint
    def inner(x: wf.Tensor) -> wf.Tensor:
        return (x**3).sum()

    x, slope = wf.tensor([1.0, 2.0]), wf.grad(inner)
    assert wf.map(slope, x).tolist() == [3.0, 12.0]
    assert wf.scan(lambda c, row: (c + slope(row), row), wf.tensor(0.0), x)[0].item() == 15.0
    assert wf.cond(x.sum() > 0, slope, lambda x: x, x).tolist() == [3.0, 12.0]
    assert wf.fori_loop(0, 2, lambda _, c: 0.1 * slope(c), wf.tensor(1.0)).item() == pytest.approx(
        0.027
    )
    random = wf.checkpoint(lambda x: (wf.nn.functional.dropout(wf.ones(8), 0.5) * x).sum())
    wf.random.seed(3)
    found = wf.map(wf.grad(random), x)
    wf.random.seed(3)
    assert found.tolist() == [
        wf.nn.functional.dropout(wf.ones(8), 0.5).sum().item() for _ in range(2)
    ]
