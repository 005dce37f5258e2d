"""What a policy keeps is not computed again, and no policy changes a number."""

from __future__ import annotations

import threading
import weakref
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
from tests.quiet import wait_for_quiet

import weft as wf
from weft.ir.dispatch import OBSERVERS
from weft.ir.tensor import traces

functional = wf.nn.functional
POLICIES: dict[str, Any] = {
    "none": None,
    "nothing": "nothing",
    "products": "products",
    "large": lambda primitive, types: types[0].size >= 512,
    "all": lambda primitive, types: True,
}


def block(x: wf.Tensor, into: wf.Tensor, out: wf.Tensor) -> wf.Tensor:
    """Normalisation, two products, an activation, dropout, and the sum with what came in."""
    inner = wf.gelu(functional.layer_norm(x, 16) @ into)
    return x + functional.dropout(inner, 0.3, training=True) @ out


def heads(x: wf.Tensor, into: wf.Tensor, out: wf.Tensor) -> wf.Tensor:
    """Attention, and a hidden layer."""
    y = x.reshape(2, 2, 8, 16)
    y = wf.scaled_dot_product_attention(y, y, y, causal=True).reshape(32, 16)
    return x + wf.tanh(y @ into) @ out


def images(x: wf.Tensor, into: wf.Tensor, out: wf.Tensor) -> wf.Tensor:
    """A convolution, pooling, and a product."""
    y = functional.conv2d(x.reshape(8, 1, 8, 8), into.reshape(64, 1, 3, 3)[:4], padding=1)
    y = functional.max_pool2d(wf.relu(y), 2)
    return x + (y.reshape(32, 16) @ out[:16, :16]) * 0.5


BLOCKS = {"block": (block, 32), "attention": (heads, 32), "images": (images, 36)}


def weights(hidden: int, depth: int = 3) -> tuple[list[Any], wf.Tensor]:
    wf.random.seed(0)
    pairs = [
        (wf.random.normal((16, hidden)) * 0.2, wf.random.normal((hidden, 16)) * 0.2)
        for _ in range(depth)
    ]
    return pairs, wf.random.normal((32, 16))


def gradients(name: str, policy: Any, checkpointed: bool = True) -> Any:
    """A function from weights and a batch to loss and gradients."""
    f = BLOCKS[name][0]
    f = wf.checkpoint(f, policy=policy) if checkpointed else f

    def loss(pairs: list[Any], x: wf.Tensor) -> wf.Tensor:
        for pair in pairs:
            x = f(x, *pair)
        return (x * x).mean()

    return wf.value_and_grad(loss, argnums=(0, 1))


def seeded(f: Any, *args: Any) -> list[np.ndarray]:
    wf.random.seed(1)
    return [leaf.numpy() for leaf in wf.tree.leaves(f(*args))]


def same(found: Any, expected: Any) -> None:
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_array_equal(one, other)


@contextmanager
def counted() -> Iterator[Counter[str]]:
    """How often each primitive is computed by reference inside."""
    counts: Counter[str] = Counter()

    def observe(primitive: Any, *_: Any) -> None:
        counts[primitive.name] += 1

    OBSERVERS.append(observe)
    try:
        yield counts
    finally:
        OBSERVERS.remove(observe)


@pytest.mark.parametrize("policy", POLICIES.values(), ids=POLICIES)
@pytest.mark.parametrize("name", BLOCKS)
def test_the_same_bits_as_without(name: str, policy: Any) -> None:
    args = weights(BLOCKS[name][1])
    expected = seeded(gradients(name, None, checkpointed=False), *args)
    same(seeded(gradients(name, policy), *args), expected)


@pytest.mark.slow
@pytest.mark.parametrize("policy", ["nothing", "products"])
@pytest.mark.parametrize("name", BLOCKS)
def test_the_same_bits_as_without_when_compiled(name: str, policy: Any) -> None:
    args = weights(BLOCKS[name][1])
    expected = seeded(wf.jit(gradients(name, None, checkpointed=False)), *args)
    same(seeded(wf.jit(gradients(name, policy)), *args), expected)


def test_products_are_in_a_graph_once() -> None:
    args = weights(32)

    def products(policy: Any, checkpointed: bool = True) -> int:
        graph = wf.jit(gradients("block", policy, checkpointed)).graph(*args)
        return sum(node.primitive.name == "dot" for node in graph.nodes)

    plain = products(None, checkpointed=False)
    assert products("products") == plain
    assert products("nothing") > plain


def test_products_are_computed_once() -> None:
    def tower(x: wf.Tensor) -> wf.Tensor:
        return wf.sin(wf.sin(x @ x) @ x)

    def computed(policy: Any) -> Counter[str]:
        with counted() as counts:
            wf.grad(lambda x: wf.checkpoint(tower, policy=policy)(x).sum())(wf.eye(3))
        return counts

    assert computed("nothing")["dot"] == computed("products")["dot"] + 2
    every = computed(lambda primitive, types: True)
    named = computed(lambda primitive, types: primitive in ("dot", "sin"))
    assert every["sin"] == named["sin"] == 2


def test_what_is_kept_stays_and_the_rest_goes() -> None:
    inside: list[weakref.ref] = []

    def f(x: wf.Tensor) -> wf.Tensor:
        y = x @ x
        z = wf.exp(y)
        inside.extend([weakref.ref(y._value), weakref.ref(z._value)])
        return wf.sin(z)

    x = wf.eye(4).requires_grad_()
    result = wf.checkpoint(f, policy="products")(x)
    wait_for_quiet()
    assert [each() is not None for each in inside] == [True, False]
    del result
    wait_for_quiet()
    assert inside[0]() is None


def test_a_policy_is_asked_with_names_and_types() -> None:
    asked: list[Any] = []

    def policy(primitive: str, types: tuple[Any, ...]) -> bool:
        asked.append((primitive, tuple(str(kind) for kind in types)))
        return False

    wf.checkpoint(lambda x: wf.tanh(x @ x), policy=policy)(wf.ones((2, 2)))
    assert asked == [("dot", ("f32[2, 2]",)), ("tanh", ("f32[2, 2]",))]


@pytest.mark.slow
@pytest.mark.parametrize("policy", POLICIES.values(), ids=POLICIES)
@pytest.mark.parametrize("inner", [None, "products"])
def test_nested(policy: Any, inner: Any) -> None:
    pairs, x = weights(32)

    def loss(pairs: Any, x: wf.Tensor, checkpointed: bool = True) -> wf.Tensor:
        small = wf.checkpoint(block, policy=inner) if checkpointed else block

        def two(x: wf.Tensor) -> wf.Tensor:
            return small(wf.tanh(small(x, *pairs[0])), *pairs[1])

        two = wf.checkpoint(two, policy=policy) if checkpointed else two
        return (two(two(x)) ** 2).mean()

    expected = seeded(wf.grad(lambda p, x: loss(p, x, checkpointed=False)), pairs, x)
    same(seeded(wf.grad(loss), pairs, x), expected)
    compiled = seeded(wf.jit(wf.grad(loss)), pairs, x)
    for one, other in zip(compiled, expected, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-6)


def smooth(x: wf.Tensor) -> wf.Tensor:
    return (wf.sin(wf.tanh(x @ x) @ x) * x).sum()


@pytest.mark.parametrize("policy", POLICIES.values(), ids=POLICIES)
def test_other_transforms(policy: Any) -> None:
    f = wf.checkpoint(smooth, policy=policy)
    wf.random.seed(3)
    x, t = (wf.random.normal((3, 3), dtype="float64") for _ in range(2))
    xs = wf.random.normal((4, 3, 3), dtype="float64")
    close = {"rtol": 1e-11, "atol": 1e-12}
    pairs = [
        (wf.jvp(f, (x,), (t,))[1], wf.jvp(smooth, (x,), (t,))[1]),
        (wf.vmap(wf.grad(f))(xs), wf.vmap(wf.grad(smooth))(xs)),
        (wf.grad(lambda x: wf.vmap(f)(x).sum())(xs), wf.vmap(wf.grad(smooth))(xs)),
        (wf.hvp(f, (x,), (t,)), wf.hvp(smooth, (x,), (t,))),
        (wf.hessian(f)(x), wf.hessian(smooth)(x)),
        (wf.grad(lambda x: (wf.grad(f)(x) ** 2).sum())(x),
         wf.grad(lambda x: (wf.grad(smooth)(x) ** 2).sum())(x)),
        (wf.jit(wf.vmap(wf.grad(f)))(xs), wf.vmap(wf.grad(smooth))(xs)),
    ]  # fmt: skip
    for found, expected in pairs:
        np.testing.assert_allclose(found.numpy(), expected.numpy(), **close)


@pytest.mark.parametrize("policy", POLICIES.values(), ids=POLICIES)
def test_transforms_inside_of_the_function(policy: Any) -> None:
    def inner(x: wf.Tensor) -> wf.Tensor:
        slope = wf.grad(lambda y: (wf.sin(y @ y)).sum())(x)
        rows = wf.vmap(lambda row: wf.tanh(x @ row))(x)
        looped = wf.fori_loop(0, 3, lambda i, y: wf.sin(y @ x), x)
        return (slope * rows + looped + wf.jit(lambda y: wf.tanh(y @ y))(x)).sum()

    wf.random.seed(3)
    x = wf.random.normal((3, 3), dtype="float64")
    expected = wf.grad(inner)(x).numpy()
    f = wf.checkpoint(inner, policy=policy)
    np.testing.assert_allclose(wf.grad(f)(x).numpy(), expected, rtol=1e-12)
    np.testing.assert_allclose(wf.jit(wf.grad(f))(x).numpy(), expected, rtol=1e-12)


def test_backward_twice_with_retain_graph() -> None:
    x = wf.eye(3).requires_grad_()
    y = wf.checkpoint(smooth, policy="products")(x)
    y.backward(retain_graph=True)
    first = x.grad.numpy().copy()
    y.backward()
    np.testing.assert_array_equal(x.grad.numpy(), 2 * first)


def test_a_chain_keeps_the_products_of_each_function() -> None:
    pairs, x = weights(32)
    functions = [lambda x, pair=pair: block(x, *pair) for pair in pairs]
    found = seeded(wf.grad(lambda x: wf.checkpoint(functions, policy="products")(x).sum()), x)

    def plain(x: wf.Tensor) -> wf.Tensor:
        for f in functions:
            x = f(x)
        return x.sum()

    same(found, seeded(wf.grad(plain), x))


@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("policy", [None, "products"])
def test_effects_happen_once(
    policy: Any, compiled: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    def f(x: wf.Tensor) -> wf.Tensor:
        y = wf.sin(x @ x)
        wf.debug.print("mean {}", y.mean())
        return (y * y).sum()

    step = wf.grad(wf.checkpoint(f, policy=policy))
    step = wf.jit(step) if compiled else step
    found = step(wf.eye(2))
    assert capsys.readouterr().out.count("mean") == 1
    np.testing.assert_allclose(found.numpy(), wf.grad(f)(wf.eye(2)).numpy(), rtol=1e-6)


@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("chained", [False, True])
@pytest.mark.parametrize("policy", [None, "products"])
def test_state_is_written_once(policy: Any, chained: bool, compiled: bool) -> None:
    def run(checkpointed: bool) -> list[Any]:
        wf.random.seed(0)
        net = wf.nn.Sequential(wf.nn.Linear(4, 4), wf.nn.BatchNorm1d(4), wf.nn.ReLU())
        f = net
        if checkpointed:
            f = wf.checkpoint([*net, wf.relu] if chained else net, policy=policy)

        def step(x: wf.Tensor) -> wf.Tensor:
            loss = (f(x) ** 2).mean()
            loss.backward()
            return loss

        step = wf.jit(step) if compiled else step
        x = wf.random.normal((8, 4))
        losses = [step(x).item(), step(x).item()]
        return [*losses, *[value.detach().numpy() for value in net.state_dict().values()]]

    same(run(True), run(False))


def test_the_second_run_finds_the_state_of_the_first() -> None:
    scale = wf.tensor(2.0)

    def f(x: wf.Tensor) -> wf.Tensor:
        y = wf.sin(x * scale)
        scale.copy_(scale * 3.0)
        return y

    x = wf.tensor(0.3, requires_grad=True)
    wf.checkpoint(f)(x).backward()
    assert x.grad.item() == pytest.approx(2.0 * np.cos(0.6), rel=1e-6)
    assert scale.item() == 6.0


def test_values_that_are_written_over_inside_are_not_kept() -> None:
    inside: list[weakref.ref] = []

    def f(x: wf.Tensor) -> wf.Tensor:
        y = wf.exp(x)
        inside.append(weakref.ref(y._value))
        y += 1.0
        return y

    x = wf.tensor([0.3, 0.4], requires_grad=True)
    result = wf.checkpoint(f)(x)
    wait_for_quiet()
    assert inside[0]() is None
    result.sum().backward()
    np.testing.assert_allclose(x.grad.numpy(), np.exp([0.3, 0.4]), rtol=1e-6)


@pytest.mark.parametrize("more", [False, True])
def test_a_function_that_does_something_else_is_found_out(more: bool) -> None:
    calls: list[int] = []

    def f(x: wf.Tensor) -> wf.Tensor:
        calls.append(1)
        twice = (len(calls) == 2) is more
        return wf.sin(x @ x @ x) if twice else wf.sin(x @ x)

    x = wf.eye(2).requires_grad_()
    y = wf.checkpoint(f, policy="products")(x).sum()
    with pytest.raises(wf.GradientError, match="something else"):
        y.backward()
    assert traces.keeper is None


def test_an_error_inside_leaves_nothing_behind() -> None:
    def f(x: wf.Tensor) -> wf.Tensor:
        raise KeyError("first run")

    with pytest.raises(KeyError):
        wf.checkpoint(f, policy=lambda primitive, types: True)(wf.tensor(1.0, requires_grad=True))
    assert traces.keeper is None


def test_threads_keep_to_themselves() -> None:
    found: list[float] = []

    def work() -> None:
        f = wf.checkpoint(smooth, policy=lambda primitive, types: True)
        found.extend(float(wf.grad(f)(wf.eye(3)).sum()) for _ in range(20))

    threads = [threading.Thread(target=work) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 60
    assert len(set(found)) == 1
    assert found[0] == float(wf.grad(smooth)(wf.eye(3)).sum())
