"""`wf.autocast` with everything that runs, keeps or differentiates a function."""

from __future__ import annotations

import pickle
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import weft as wf
from weft.eager import unit
from weft.nn import functional as F  # noqa: N812

both = pytest.mark.parametrize("compiled", [False, True], ids=["eager", "jit"])


def compile_if(compiled: bool, f: Callable[..., Any]) -> Callable[..., Any]:
    return wf.jit(f) if compiled else f


def numbers(*shape: int) -> wf.Tensor:
    return wf.tensor(np.random.default_rng(1).normal(size=shape).astype(np.float32))


# The block itself.


def test_blocks_nest_and_the_innermost_counts() -> None:
    x = wf.ones((2, 2))
    with wf.autocast("bfloat16"):
        with wf.autocast("float16"):
            assert (x @ x).dtype is wf.float16
        with wf.autocast(enabled=False):
            assert (x @ x).dtype is wf.float32
            with wf.autocast(wf.bfloat16):
                assert (x @ x).dtype is wf.bfloat16
        with wf.autocast("float32"):
            assert (x @ x).dtype is wf.float32
        assert (x @ x).dtype is wf.bfloat16
    assert (x @ x).dtype is wf.float32


def test_one_block_may_be_entered_twice() -> None:
    block = wf.autocast("bfloat16")
    with block:
        with block:
            assert wf.autocast_dtype() is wf.bfloat16
        assert wf.autocast_dtype() is wf.bfloat16
    assert wf.autocast_dtype() is None


def test_an_error_ends_the_block() -> None:
    with pytest.raises(wf.ShapeError), wf.autocast("bfloat16"):
        wf.ones((2, 3)) @ wf.ones((2, 3))
    assert wf.autocast_dtype() is None
    with wf.autocast("float16"):
        with pytest.raises(wf.ShapeError):
            F.linear(wf.ones((2, 3)), wf.ones((2, 2)))
        assert wf.autocast_dtype() is wf.float16


@both
def test_a_decorated_function_casts(compiled: bool) -> None:
    @wf.autocast("bfloat16")
    def product(x: wf.Tensor, depth: int = 1) -> wf.Tensor:
        return x @ x if depth == 0 else product(x, depth - 1)

    run = compile_if(compiled, product)
    assert run(wf.ones((2, 2))).dtype is wf.bfloat16
    assert wf.autocast_dtype() is None


@pytest.mark.parametrize("dtype", ["int8", "float64", wf.complex64])
def test_other_dtypes_are_refused(dtype: Any) -> None:
    with pytest.raises(wf.DTypeError, match="not cast to this dtype") as caught:
        wf.autocast(dtype)
    assert caught.value.fix == 'wf.autocast("bfloat16")'


def test_a_block_is_that_of_its_thread() -> None:
    seen: dict[str, Any] = {}
    inside, done = threading.Event(), threading.Event()

    def other() -> None:
        seen["before"] = (wf.ones((2, 2)) @ wf.ones((2, 2))).dtype
        with wf.autocast("float16"):
            inside.set()
            done.wait(10)
            seen["inside"] = (wf.ones((2, 2)) @ wf.ones((2, 2))).dtype

    with wf.autocast("bfloat16"):
        thread = threading.Thread(target=other)
        thread.start()
        inside.wait(10)
        seen["here"] = (wf.ones((2, 2)) @ wf.ones((2, 2))).dtype
        done.set()
        thread.join()
    assert seen == {"before": wf.float32, "inside": wf.float16, "here": wf.bfloat16}


def test_a_decorated_function_is_that_of_each_thread_that_runs_it() -> None:
    first_is_in, second_is_in, first_is_out = (threading.Event() for _ in range(3))
    after: dict[str, Any] = {}

    @wf.autocast("bfloat16")
    def run(name: str) -> None:
        if name == "first":
            first_is_in.set()
            second_is_in.wait(10)
        else:
            second_is_in.set()
            first_is_out.wait(10)

    def first() -> None:
        run("first")
        after["first"] = wf.autocast_dtype()
        first_is_out.set()

    def second() -> None:
        with wf.autocast("float16"):
            first_is_in.wait(10)
            run("second")
            after["second"] = wf.autocast_dtype()

    threads = [threading.Thread(target=each) for each in (first, second)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert after == {"first": None, "second": wf.float16}


def test_a_function_that_casts_can_be_pickled() -> None:
    for function in (wf.matmul, wf.exp, wf.softmax, wf.linalg.vector_norm, F.linear, F.mse_loss):
        assert pickle.loads(pickle.dumps(function)) is function


# Programs that are kept.


def test_a_compiled_function_has_a_program_for_each_precision() -> None:
    x, w = numbers(8, 8), numbers(8, 8)
    run = wf.jit(lambda x, w: x @ w)
    expected = {
        dtype: (x.astype(dtype) @ w.astype(dtype)).numpy()
        for dtype in (wf.float32, wf.bfloat16, wf.float16)
    }
    for _ in range(3):  # the later rounds are found by the quick ways
        for dtype, value in expected.items():
            with wf.autocast(dtype):
                for _ in range(3):
                    result = run(x, w)
                    assert result.dtype is dtype
                    np.testing.assert_allclose(
                        result.astype("float32").numpy(), value.astype(np.float32), rtol=0.02
                    )
    assert len(run.compilations) == 3


def test_a_known_call_of_a_module_is_told_apart_by_the_block() -> None:
    net = wf.nn.Linear(4, 4)
    run = wf.jit(lambda net, x: net(x))
    x = wf.ones((2, 4))
    with wf.no_grad():
        for _ in range(40):  # until the call is recognised without a key
            run(net, x)
        assert run._repeated.last is not None
        with wf.autocast("bfloat16"):
            assert run(net, x).dtype is wf.bfloat16
        assert run(net, x).dtype is wf.float32


def test_other_sizes_stay_in_the_precision_of_the_block() -> None:
    run = wf.jit(lambda x, w: x @ w)
    w = wf.ones((4, 3))
    for size in (2, 5, 7):
        assert run(wf.ones((size, 4)), w).dtype is wf.float32
        with wf.autocast("bfloat16"):
            assert run(wf.ones((size, 4)), w).dtype is wf.bfloat16
    assert len(run.compilations) == 4  # first sizes and all sizes, twice


def test_a_block_inside_of_the_function_compiles_once() -> None:
    @wf.jit
    def run(x: wf.Tensor) -> tuple[wf.Tensor, wf.Tensor]:
        with wf.autocast("bfloat16"):
            low = x @ x
        return low, x @ x

    for _ in range(3):
        low, full = run(wf.ones((3, 3)))
        assert (low.dtype, full.dtype) == (wf.bfloat16, wf.float32)
    assert len(run.compilations) == 1


def test_a_function_compiled_inside_another_sees_its_block() -> None:
    inner = wf.jit(lambda x: x @ x)
    outer = wf.jit(lambda x: inner(x))
    x = wf.ones((3, 3))
    assert outer(x).dtype is wf.float32
    with wf.autocast("bfloat16"):
        assert outer(x).dtype is wf.bfloat16
    assert outer(x).dtype is wf.float32


def test_a_unit_of_the_users_is_compiled_for_each_precision() -> None:
    @unit
    def block(x: wf.Tensor, w: wf.Tensor) -> wf.Tensor:
        return wf.relu(x @ w) + 1.0

    x, w = numbers(32, 32), numbers(32, 32)
    for dtype in (wf.float32, wf.bfloat16, wf.float16, wf.float32, wf.bfloat16):
        with wf.autocast(dtype):
            assert block(x, w).dtype is dtype


def test_a_static_graph_keeps_the_precision_it_was_built_in() -> None:
    with wf.Graph() as graph:
        x = wf.placeholder("float32", (2, 2), name="x")
        with wf.autocast("bfloat16"):
            y = x @ x
    with wf.Session(graph) as session:
        assert session.run(y, {x: np.ones((2, 2), np.float32)}).dtype is wf.bfloat16


# Derivatives.


def network() -> wf.nn.Module:
    wf.random.seed(0)
    return wf.nn.Sequential(
        wf.nn.Linear(6, 32), wf.nn.GELU(), wf.nn.LayerNorm(32), wf.nn.Linear(32, 3)
    )


def loss_of(net: wf.nn.Module, x: wf.Tensor) -> wf.Tensor:
    return F.cross_entropy(net(x), wf.tensor([0, 1, 2, 1] * (int(x.shape[0]) // 4)))


def gradients(net: wf.nn.Module) -> list[Any]:
    found = [p.grad.numpy() for p in net.parameters() if p.grad is not None]
    for p in net.parameters():
        p.grad = None
    return found


@both
@pytest.mark.parametrize("inside", [False, True], ids=["after", "inside"])
def test_backward_gives_float32_wherever_it_is_called(compiled: bool, inside: bool) -> None:
    net, x = network(), numbers(16, 6)

    def step(net: Any, x: wf.Tensor) -> None:
        with wf.autocast("bfloat16"):
            loss = loss_of(net, x)
            assert loss.dtype is wf.float32
            if inside:
                loss.backward()
        if not inside:
            loss.backward()

    compile_if(compiled, step)(net, x)
    rounded = gradients(net)
    loss_of(net, x).backward()
    for a, b in zip(rounded, gradients(net), strict=True):
        assert a.dtype == np.float32
        assert 0 < np.abs(a - b).max() < 0.05 * np.abs(b).max() + 1e-3


def test_the_way_back_does_not_depend_on_the_block_it_is_called_in() -> None:
    net, x = network(), numbers(16, 6)
    with wf.autocast("bfloat16"):
        first = loss_of(net, x)
        first.backward()
    inside = gradients(net)
    with wf.autocast("bfloat16"):
        second = loss_of(net, x)
    with wf.autocast("float16"):
        second.backward()
    for a, b in zip(inside, gradients(net), strict=True):
        np.testing.assert_array_equal(a, b)


@both
def test_grad_of_a_function_gives_the_dtype_of_its_argument(compiled: bool) -> None:
    x, w = numbers(4, 4), numbers(4, 4)

    def f(w: wf.Tensor) -> wf.Tensor:
        with wf.autocast("bfloat16"):
            return wf.mean(wf.exp(wf.tanh(x @ w)))

    gradient = compile_if(compiled, wf.grad(f))(w)
    assert gradient.dtype is wf.float32
    with wf.autocast("bfloat16"):
        around = compile_if(compiled, wf.grad(lambda w: wf.mean(wf.exp(wf.tanh(x @ w)))))(w)
    np.testing.assert_array_equal(gradient.numpy(), around.numpy())
    exact = wf.grad(lambda w: wf.mean(wf.exp(wf.tanh(x @ w))))(w)
    assert 0 < np.abs(gradient.numpy() - exact.numpy()).max() < 0.02


def test_forward_mode_and_second_derivatives_work_inside() -> None:
    x = numbers(3, 3)
    f = lambda x: wf.sum(wf.exp(x @ x) * x)  # noqa: E731
    with wf.autocast("bfloat16"):
        value, tangent = wf.jvp(f, (x,), (wf.ones((3, 3)),))
        second = wf.hvp(f, (x,), (wf.ones((3, 3)),))
    assert value.dtype is tangent.dtype is second.dtype is wf.float32
    exact = wf.jvp(f, (x,), (wf.ones((3, 3)),))[1]
    assert abs(tangent.item() - exact.item()) < 0.05 * abs(exact.item())


def test_vmap_casts_as_a_loop_does() -> None:
    x, w = numbers(5, 4, 4), numbers(4, 4)

    def f(x: wf.Tensor) -> wf.Tensor:
        return wf.softmax(x @ w).sum()

    with wf.autocast("bfloat16"):
        batched = wf.vmap(f)(x)
        single = wf.stack([f(each) for each in x])
        per_example = wf.vmap(wf.grad(lambda w, x: f(x @ w)), in_axes=(None, 0))(w, x)
    assert batched.dtype is wf.float32
    np.testing.assert_allclose(batched.numpy(), single.numpy(), rtol=1e-5)
    assert (per_example.dtype, per_example.shape) == (wf.float32, (5, 4, 4))


@both
@pytest.mark.parametrize("policy", [None, "products"])
@pytest.mark.parametrize("inside", [False, True], ids=["after", "inside"])
def test_a_checkpoint_runs_again_in_the_precision_of_the_first_time(
    compiled: bool, policy: str | None, inside: bool
) -> None:
    net, x = network(), numbers(16, 6)

    def step(net: Any, x: wf.Tensor, body: Callable[..., Any]) -> None:
        with wf.autocast("bfloat16"):
            loss = loss_of(body, x)  # type: ignore[arg-type]
            if inside:
                loss.backward()
        if not inside:
            loss.backward()

    remembered = lambda net, x: step(net, x, net)  # noqa: E731
    checkpointed = lambda net, x: step(net, x, wf.checkpoint(net, policy=policy))  # noqa: E731
    compile_if(compiled, remembered)(net, x)
    expected = gradients(net)
    compile_if(compiled, checkpointed)(net, x)
    for a, b in zip(gradients(net), expected, strict=True):
        np.testing.assert_allclose(a, b, rtol=2e-2, atol=2e-3)


@pytest.mark.parametrize("mode", ["jvp", "vjp"])
def test_rules_of_the_users_run_in_the_precision_of_the_call(mode: str) -> None:
    @wf.custom_derivative
    def product(x: wf.Tensor, w: wf.Tensor) -> wf.Tensor:
        return x @ w

    if mode == "jvp":

        @product.jvp
        def push(primals: Any, tangents: Any) -> Any:
            (x, w), (t, s) = primals, tangents
            return x @ w, t @ w + x @ s
    else:

        @product.vjp
        def pull(x: wf.Tensor, w: wf.Tensor) -> Any:
            def back(ct: wf.Tensor) -> Any:
                wide = ct.astype("float32")
                return (wide @ w.T).astype("float32"), (x.T @ wide).astype("float32")

            return x @ w, back

    x, w = numbers(4, 4).requires_grad_(), numbers(4, 4).requires_grad_()
    with wf.autocast("bfloat16"):
        y = product(x, w)
        loss = y.sum()
    assert y.dtype is wf.bfloat16
    loss.backward()
    assert x.grad is not None
    assert x.grad.dtype is wf.float32
    np.testing.assert_allclose(
        x.grad.numpy(), np.ones((4, 4)) @ w.detach().numpy().T, rtol=0.02, atol=0.02
    )


@pytest.fixture
def curved() -> Any:
    """A primitive of the user's whose rules call functions that cast."""

    @wf.primitive(
        type_rule=wf.custom.elementwise("float"),
        derivatives=[wf.custom.tangent(lambda t, out, x: t * wf.exp(x) * (x**2))],
        batch=lambda size, operands, axes: (curved(wf.log(wf.exp(operands[0]))), axes[0]),
    )
    def curved(x: Any) -> Any:
        return (np.exp(x) * x).astype(x.dtype)

    yield curved
    curved.remove()


def test_rules_of_primitives_are_not_cast(curved: Any) -> None:
    x = wf.ones((3,), dtype="bfloat16").requires_grad_()
    with wf.autocast("bfloat16"):
        curved(x).backward(wf.ones((3,), dtype="bfloat16"))
        _, tangent = wf.jvp(curved, (x.detach(),), (x.detach(),))
        batched = wf.vmap(curved)(x.detach())
    assert x.grad is not None
    assert x.grad.dtype is tangent.dtype is batched.dtype is wf.bfloat16


# Loops and models.


@both
def test_a_loop_casts_inside_of_its_body(compiled: bool) -> None:
    w, x = numbers(4, 4), numbers(3, 2, 4)

    def run(w: wf.Tensor, x: wf.Tensor) -> wf.Tensor:
        def body(h: wf.Tensor, given: wf.Tensor) -> tuple[wf.Tensor, wf.Tensor]:
            product = given @ w
            return h + product, product

        with wf.autocast("bfloat16"):
            h, products = wf.scan(body, wf.zeros((2, 4)), x)
            assert products.dtype is wf.bfloat16
            return h

    assert compile_if(compiled, run)(w, x).dtype is wf.float32


@pytest.mark.parametrize("kind", ["RNN", "LSTM", "GRU"])
def test_recurrent_layers_run_and_learn_inside(kind: str) -> None:
    wf.random.seed(0)
    layer = getattr(wf.nn, kind)(3, 5)
    with wf.autocast("bfloat16"):
        y, _ = layer(numbers(4, 2, 3))
        loss = y.sum()
    loss.backward()
    assert y.dtype is wf.bfloat16
    assert {p.grad.dtype for p in layer.parameters()} == {wf.float32}


def test_batch_norm_keeps_float32_statistics() -> None:
    layer = wf.nn.Sequential(wf.nn.Conv2d(3, 4, 3), wf.nn.BatchNorm2d(4))
    with wf.autocast("float16"):
        y = layer(numbers(2, 3, 6, 6) * 100.0)
    assert y.dtype is wf.float16
    assert {buffer.dtype for _, buffer in layer.named_buffers()} <= {wf.float32, wf.int64}
    assert np.isfinite(layer[1].running_var.numpy()).all()


def perceptron(precision: str) -> list[float]:
    net, x = network(), numbers(32, 6)
    optimizer = wf.optim.AdamW(net.parameters(), lr=3e-3)

    @wf.jit
    def step(net: Any, optimizer: Any, x: wf.Tensor) -> wf.Tensor:
        with wf.autocast(precision):
            loss = loss_of(net, x)
        optimizer.minimize(loss)
        return loss

    return [step(net, optimizer, x).item() for _ in range(30)]


def gpt(precision: str) -> list[float]:
    wf.random.seed(0)
    net = wf.models.GPT(wf.models.GPTConfig(vocabulary=17, width=32, layers=2, heads=2, context=16))
    optimizer = wf.optim.AdamW(net.parameters(), lr=3e-3)
    tokens = wf.tensor(np.cumsum(np.random.default_rng(0).integers(0, 3, (8, 17)), axis=1) % 17)

    @wf.jit
    def step(net: Any, optimizer: Any, tokens: wf.Tensor) -> wf.Tensor:
        with wf.autocast(precision):
            logits = net(tokens[:, :-1])
            loss = F.cross_entropy(logits.reshape(-1, 17), tokens[:, 1:].reshape(-1))
        optimizer.minimize(loss)
        return loss

    return [step(net, optimizer, tokens).item() for _ in range(20)]


@pytest.mark.slow
@pytest.mark.parametrize("train", [perceptron, gpt])
def test_training_in_bfloat16_follows_training_in_float32(train: Callable[..., Any]) -> None:
    exact, rounded = train("float32"), train("bfloat16")
    assert exact[-1] < 0.75 * exact[0]
    assert rounded != exact
    np.testing.assert_allclose(rounded, exact, rtol=0.02)


@pytest.mark.slow
def test_training_in_float8_follows_training_in_bfloat16() -> None:
    short, rounded = gpt("bfloat16"), gpt("float8")
    assert rounded[-1] < 0.75 * rounded[0]
    assert rounded != short
    np.testing.assert_allclose(rounded, short, rtol=0.02)


@pytest.mark.slow
def test_text_is_generated_with_a_cache_inside() -> None:
    wf.random.seed(0)
    net = wf.models.GPT(wf.models.GPTConfig(vocabulary=17, width=32, layers=2, heads=2, context=16))
    with wf.autocast("bfloat16"):
        assert net.generate(wf.tensor([[1, 2, 3]]), 4).shape == (1, 7)
