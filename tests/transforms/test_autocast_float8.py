"""Blocks of float8 with everything that runs, keeps or differentiates a function."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import weft as wf
from weft.nn import functional as F  # noqa: N812
from weft.ops.float8 import E4M3, E5M2, round_to_float8
from weft.precision import without_float8

Array = np.ndarray[Any, Any]
both = pytest.mark.parametrize("compiled", [False, True], ids=["eager", "jit"])
draw = np.random.default_rng(0)
X, W, B, CT = (
    draw.normal(size=shape).astype(np.float32) for shape in ((24, 32), (48, 32), (48,), (24, 48))
)


def compile_if(compiled: bool, f: Callable[..., Any]) -> Callable[..., Any]:
    return wf.jit(f) if compiled else f


def rounded(x: Array, format: str = E4M3) -> Array:
    result: Array = round_to_float8(wf.tensor(x), format).astype("float32").numpy()
    return result


def short(x: Array) -> Array:
    result: Array = wf.tensor(x).astype("bfloat16").astype("float32").numpy()
    return result


def in_block(name: str, f: Callable[..., Any], *arguments: Any) -> Any:
    with wf.autocast(name):
        return f(*arguments)


# The block.


def test_a_block_of_float8_makes_tensors_of_bfloat16() -> None:
    with wf.autocast("float8"):
        assert wf.autocast_dtype() is wf.bfloat16
        assert F.linear(wf.ones((2, 16)), wf.ones((16, 16))).dtype is wf.bfloat16
        with wf.autocast("float16"):
            assert F.linear(wf.ones((2, 16)), wf.ones((16, 16))).dtype is wf.float16
        with wf.autocast(enabled=False):
            assert F.linear(wf.ones((2, 16)), wf.ones((16, 16))).dtype is wf.float32
    assert wf.autocast_dtype() is None


def test_float8_is_no_dtype_of_tensors() -> None:
    with pytest.raises(wf.DTypeError, match="unknown element type"):
        wf.ones(3, dtype="float8")
    with pytest.raises(wf.DTypeError) as caught:
        wf.autocast("int8")
    assert '"float8"' in caught.value.expected


def test_a_block_inside_may_leave_float8_alone() -> None:
    x, w = wf.tensor(X), wf.tensor(W)

    def f(x: wf.Tensor, w: wf.Tensor) -> wf.Tensor:
        with without_float8():
            return F.linear(x, w)

    assert f(x, w).dtype is wf.float32
    expected = in_block("bfloat16", F.linear, x, w).tolist()
    assert in_block("float8", f, x, w).tolist() == expected
    assert in_block("float8", F.linear, x, w).tolist() != expected


# What linear layers give.


@both
def test_a_linear_layer_is_a_product_of_rounded_numbers_both_ways(compiled: bool) -> None:
    def run(x: wf.Tensor, w: wf.Tensor, b: wf.Tensor, ct: wf.Tensor) -> Any:
        with wf.autocast("float8"):
            y, back = wf.vjp(F.linear, x, w, b)
        return y, *back(ct)

    given = [wf.tensor(each) for each in (X, W, B)]
    y, dx, dw, db = compile_if(compiled, run)(*given, wf.tensor(CT).astype("bfloat16"))
    x, w, ct = rounded(X), rounded(W), rounded(short(CT), E5M2)
    np.testing.assert_array_equal(y.astype("float32").numpy(), short(short(x @ w.T) + short(B)))
    np.testing.assert_allclose(dx.numpy(), short(ct @ w), rtol=1e-2, atol=1e-2)
    np.testing.assert_allclose(dw.numpy(), short(ct.T @ x), rtol=1e-2, atol=1e-2)
    # a bias meets no rounded number
    np.testing.assert_allclose(db.numpy(), short(CT).sum(0), rtol=1e-2, atol=1e-2)
    assert {dx.dtype, dw.dtype, db.dtype} == {wf.float32}


def test_features_that_are_no_multiple_of_16_stay_in_bfloat16() -> None:
    for out, inner in ((48, 30), (47, 32), (10, 32)):
        x, w = wf.tensor(X[:, :inner]), wf.tensor(W[:out, :inner])
        one, other = (in_block(name, F.linear, x, w).tolist() for name in ("float8", "bfloat16"))
        assert one == other


@pytest.mark.parametrize(
    ("left", "right", "result"),
    [
        ("float16", "float32", "bfloat16"),
        ("bfloat16", "float16", "bfloat16"),
        ("float64", "float32", "float64"),
        ("float32", "float64", "float64"),
        ("complex64", "float32", "complex64"),
    ],
)
def test_dtypes_of_operands_decide_as_in_other_blocks(left: str, right: str, result: str) -> None:
    x, w = wf.tensor(X).astype(left), wf.tensor(W).astype(right)
    assert in_block("float8", F.linear, x, w).dtype.name == result


def test_a_wrong_call_says_what_is_wrong() -> None:
    with wf.autocast("float8"), pytest.raises(wf.ShapeError, match="as many features"):
        F.linear(wf.ones((2, 32)), wf.ones((16, 16)))


@both
def test_nan_and_infinity_do_not_become_numbers(compiled: bool) -> None:
    f = compile_if(compiled, lambda x, w: in_block("float8", F.linear, x, w))
    clean = f(wf.tensor(X), wf.tensor(W)).astype("float32").numpy()
    for odd in (np.nan, np.inf, -np.inf):
        x = X.copy()
        x[5, 7] = odd
        found = f(wf.tensor(x), wf.tensor(W)).astype("float32").numpy()
        assert not np.isfinite(found[5]).any()
        # the others are as if that number were not there, in the scale, too
        np.testing.assert_array_equal(np.delete(found, 5, 0), np.delete(clean, 5, 0))
    zeros = f(wf.tensor(X * 0), wf.tensor(W)).astype("float32").numpy()
    np.testing.assert_array_equal(zeros, 0)


def test_an_infinite_cotangent_is_seen_in_the_gradients() -> None:
    x, w = (wf.tensor(each).requires_grad_() for each in (X, W))
    ct = CT.copy()
    ct[2, 3] = np.inf
    y = in_block("float8", F.linear, x, w)
    (y.astype("float32") * wf.tensor(ct)).sum().backward()
    assert not np.isfinite(x.grad.numpy()[2]).all()
    assert np.isfinite(np.delete(x.grad.numpy(), 2, 0)).all()
    assert not np.isfinite(w.grad.numpy()[3]).all()


# Transforms.


def loss(x: wf.Tensor, w: wf.Tensor) -> wf.Tensor:
    return (wf.tanh(F.linear(x, w)).astype("float32") ** 2).sum()


def test_a_compiled_function_has_a_program_for_each_precision() -> None:
    x, w = wf.tensor(X), wf.tensor(W)
    run = wf.jit(F.linear)
    for _ in range(3):
        results = {name: in_block(name, run, x, w).tolist()
                   for name in ("bfloat16", "float8", "float32")}  # fmt: skip
    assert len({str(each) for each in results.values()}) == 3
    for name, result in results.items():
        eager = in_block(name, F.linear, x, w).tolist()
        np.testing.assert_allclose(result, eager, rtol=1e-5 if name == "float32" else 1e-2)


def test_eager_and_compiled_gradients_have_the_same_bits() -> None:
    x, w = wf.tensor(X), wf.tensor(W)
    gradient = wf.grad(lambda *given: in_block("float8", loss, *given), argnums=(0, 1))
    for one, other in zip(gradient(x, w), wf.jit(gradient)(x, w), strict=True):
        np.testing.assert_array_equal(one.numpy(), other.numpy())


@both
def test_vmap_gives_what_a_loop_gives(compiled: bool) -> None:
    x = draw.normal(size=(3, 24, 32)).astype(np.float32) * np.float32([[[1]], [[30]], [[0.01]]])
    gradient = wf.grad(lambda *given: in_block("float8", loss, *given), argnums=(0, 1))
    batched = compile_if(compiled, wf.vmap(gradient, in_axes=(0, None)))(wf.tensor(x), wf.tensor(W))
    alone = [gradient(wf.tensor(each), wf.tensor(W)) for each in x]
    for one, others in zip(batched, zip(*alone, strict=True), strict=True):
        loop = np.stack([other.numpy() for other in others])
        np.testing.assert_allclose(one.numpy(), loop, rtol=1e-2, atol=1e-2 * np.abs(loop).max())


@both
def test_a_checkpoint_computes_the_same_again(compiled: bool) -> None:
    def gradient(f: Callable[..., Any]) -> Any:
        return wf.grad(lambda *given: in_block("float8", f, *given), argnums=(0, 1))

    x, w = wf.tensor(X), wf.tensor(W)
    plain = compile_if(compiled, gradient(loss))(x, w)
    again = compile_if(compiled, gradient(wf.checkpoint(loss)))(x, w)
    for one, other in zip(plain, again, strict=True):
        np.testing.assert_array_equal(one.numpy(), other.numpy())


def test_forward_mode_and_second_derivatives_work_inside() -> None:
    x, w = wf.tensor(X / 16), wf.tensor(W)
    with wf.autocast("float8"):
        y, moved = wf.jvp(lambda x: F.linear(x, w), (x,), (wf.ones(X.shape),))
        second = wf.grad(lambda x: (wf.grad(loss)(x, w) ** 2).sum())(x)
    assert (y.dtype, moved.dtype) == (wf.bfloat16, wf.bfloat16)
    row = rounded(W).sum(1)
    np.testing.assert_allclose(moved.astype("float32").numpy()[0], row, rtol=1e-2, atol=0.05)
    exact = wf.grad(lambda x: (wf.grad(loss)(x, w) ** 2).sum())(x).numpy()
    error = np.linalg.norm(second.numpy() - exact) / np.linalg.norm(exact)
    assert error < 0.2, error


# Training.


def network() -> wf.nn.Module:
    wf.random.seed(0)
    return wf.nn.Sequential(wf.nn.Linear(32, 64), wf.nn.GELU(), wf.nn.Linear(64, 16))


@both
def test_an_optimizer_of_float8_trains_weights_of_float32(compiled: bool) -> None:
    losses = {}
    for name in ("float32", "float8"):
        net = network()
        optimizer = wf.optim.AdamW(net.parameters(), lr=1e-2, precision=name)
        assert optimizer.scaling is None  # cotangents have scales of their own
        x, y = wf.tensor(X), wf.tensor(np.tanh(X[:, :16]))

        def step(net: Any, optimizer: Any, x: wf.Tensor, y: wf.Tensor) -> wf.Tensor:
            loss = F.mse_loss(optimizer.mixed(net)(x), y)
            optimizer.minimize(loss)
            return loss

        run = compile_if(compiled, step)
        losses[name] = [run(net, optimizer, x, y).item() for _ in range(30)]
        assert {p.dtype for p in net.parameters()} == {wf.float32}
    assert losses["float8"][-1] < 0.5 * losses["float8"][0]
    np.testing.assert_allclose(losses["float8"], losses["float32"], rtol=0.15, atol=0.01)
    assert losses["float8"] != losses["float32"]


def test_a_trainer_runs_in_float8() -> None:
    x, y = wf.tensor(X), wf.tensor(np.tanh(X[:, :16]))
    final = {}
    for name in ("bfloat16", "float8"):
        net = network()
        optimizer = wf.optim.AdamW(net.parameters(), lr=1e-2)
        trainer = wf.train.Trainer(net, "mse_loss", optimizer, precision=name, progress=False)
        final[name] = trainer.fit((x, y), epochs=10, batch_size=8)["loss"][-1]
    assert final["float8"] != final["bfloat16"]
    np.testing.assert_allclose(final["float8"], final["bfloat16"], rtol=0.1)
    with pytest.raises(wf.ArgumentError, match="unknown precision"):
        wf.train.Trainer(net, "mse_loss", optimizer, precision="float4", progress=False)
