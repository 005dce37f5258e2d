"""Clipping, accumulation, averages, mixed precision, L-BFGS, and what is refused."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import weft as wf

optim = wf.optim
both = pytest.mark.parametrize("compiled", [False, True], ids=["eager", "compiled"])


def array(tensor: wf.Tensor) -> Any:
    return tensor.detach().numpy()


def compile_if(compiled: bool, function: Callable[..., Any]) -> Callable[..., Any]:
    return wf.jit(function) if compiled else function


# Clipping.


def leaves() -> list[wf.Tensor]:
    draw = np.random.default_rng(1)
    found = [wf.tensor(draw.normal(size=n).astype("f4"), requires_grad=True) for n in (3, 5)]
    for leaf in found:
        (leaf**3).sum().backward()
    return found


@pytest.mark.parametrize("norm_type", [1.0, 2.0, 3.0, math.inf])
def test_the_norm_of_all_gradients_is_clipped(norm_type: float) -> None:
    parameters = leaves()
    whole = np.concatenate([p.grad.numpy() for p in parameters])
    expected = np.linalg.norm(whole, norm_type)
    norm = optim.clip_grad_norm(parameters, 0.5, norm_type)
    clipped = np.concatenate([p.grad.numpy() for p in parameters])
    assert norm.item() == pytest.approx(expected, rel=1e-5)
    np.testing.assert_allclose(clipped, whole * 0.5 / expected, rtol=1e-4)


def test_short_gradients_are_not_lengthened() -> None:
    parameters = leaves()
    before = [p.grad.numpy().copy() for p in parameters]
    optim.clip_grad_norm(parameters, 1e6)
    for p, old in zip(parameters, before, strict=True):
        np.testing.assert_array_equal(p.grad.numpy(), old)


def test_clipping_is_that_of_torch() -> None:
    torch = pytest.importorskip("torch")
    parameters = leaves()
    theirs = [torch.tensor(array(p), requires_grad=True) for p in parameters]
    for mine, other in zip(parameters, theirs, strict=True):
        other.grad = torch.tensor(mine.grad.numpy())
    expected = torch.nn.utils.clip_grad_norm_(theirs, 0.7)
    assert optim.clip_grad_norm(parameters, 0.7).item() == pytest.approx(expected.item(), rel=1e-6)
    for mine, other in zip(parameters, theirs, strict=True):
        np.testing.assert_allclose(mine.grad.numpy(), other.grad.numpy(), rtol=1e-5)


@both
@pytest.mark.parametrize("option", ["clip_norm", "clip_value"])
def test_clipping_by_the_optimizer_is_clipping_before_it(option: str, compiled: bool) -> None:
    start = np.array([3.0, -4.0, 0.1], "f4")
    a, b = (wf.tensor(start, requires_grad=True) for _ in range(2))
    clipping = optim.SGD([a], lr=0.1, **{option: 0.5})
    plain = optim.SGD([b], lr=0.1)
    clip = {"clip_norm": optim.clip_grad_norm, "clip_value": optim.clip_grad_value}[option]
    run = compile_if(compiled, lambda a, clipping: clipping.minimize((a * a).sum()))
    for _ in range(3):
        run(a, clipping)
        (b * b).sum().backward()
        clip([b], 0.5)
        plain.step()
        plain.zero_grad()
    np.testing.assert_allclose(array(a), array(b), rtol=1e-6)


# Accumulation.


@both
def test_small_batches_accumulate_to_a_large_one(compiled: bool) -> None:
    draw = np.random.default_rng(2)
    x, y = draw.normal(size=(8, 3)).astype("f4"), draw.normal(size=(8,)).astype("f4")
    start = draw.normal(size=3).astype("f4")
    large, small = (wf.tensor(start, requires_grad=True) for _ in range(2))
    whole = optim.AdamW([large], lr=0.1, clip_norm=0.5)
    parts = optim.AdamW([small], lr=0.1, clip_norm=0.5, accumulate=4)

    def step(w: wf.Tensor, optimizer: Any, x: wf.Tensor, y: wf.Tensor) -> None:
        optimizer.minimize(((x @ w - y) ** 2).mean())

    run = compile_if(compiled, step)
    for _ in range(3):
        step(large, whole, wf.tensor(x), wf.tensor(y))
        for i in range(0, 8, 2):
            before = array(small).copy()
            run(small, parts, wf.tensor(x[i : i + 2]), wf.tensor(y[i : i + 2]))
            assert np.array_equal(array(small), before) == (i < 6)
    np.testing.assert_allclose(array(small), array(large), rtol=1e-5)
    assert parts.steps.item() == 3
    if compiled:
        assert len(run.compilations) == 1  # type: ignore[attr-defined]


@both
def test_accumulation_leaves_parameters_without_gradients_alone(compiled: bool) -> None:
    w, other, rare = (wf.tensor([1.0, 2.0], requires_grad=True) for _ in range(3))
    optimizer = optim.AdamW([w, other, rare], lr=0.1, weight_decay=0.5, accumulate=2)

    def step(x: wf.Tensor, is_rare: bool) -> None:
        optimizer.minimize((w * x).sum() + ((rare * x).sum() if is_rare else 0.0))

    step = wf.jit(step) if compiled else step
    for is_rare in (True, False, False, False):  # the first half of a batch has one gradient more
        step(wf.tensor([1.0, 3.0]), is_rare)
    alone = wf.tensor([1.0, 2.0], requires_grad=True)
    once = optim.AdamW([alone], lr=0.1, weight_decay=0.5)
    once.minimize((alone * wf.tensor([0.5, 1.5])).sum())
    assert other.tolist() == [1.0, 2.0]
    np.testing.assert_allclose(rare.detach().numpy(), alone.detach().numpy(), rtol=1e-6)
    assert w.tolist() != rare.tolist()


def test_a_run_resumes_within_an_accumulated_batch() -> None:
    def make(value: float = 1.0) -> tuple[wf.Tensor, Any]:
        w = wf.tensor([value], requires_grad=True)
        return w, optim.SGD([w], lr=0.25, accumulate=2)

    w, optimizer = make()
    optimizer.minimize((w * w).sum())
    again, resumed = make()
    resumed.load_state_dict(optimizer.state_dict())
    resumed.minimize((again * again).sum() * 3)
    assert again.item() == 0.0  # 1 - 0.25 * (2 + 6) / 2


# Averages of weights.


@both
def test_an_average_follows_its_formula(compiled: bool) -> None:
    w = wf.tensor([1.0, 2.0], requires_grad=True)
    optimizer = optim.SGD([w], lr=0.1)
    average = optim.ExponentialMovingAverage([w], decay=0.8)

    def step(w: wf.Tensor, optimizer: Any, average: Any) -> None:
        optimizer.minimize((w * w).sum())
        average.update()

    run = compile_if(compiled, step)
    expected = array(w).astype("f8")
    for _ in range(5):
        run(w, optimizer, average)
        expected = 0.8 * expected + 0.2 * array(w)
    np.testing.assert_allclose(average.averages[0].numpy(), expected, rtol=1e-6)
    with average.applied():
        np.testing.assert_allclose(array(w), expected, rtol=1e-6)
        assert w.requires_grad
        assert w.is_leaf
    assert not np.allclose(array(w), expected)


def test_a_warm_average_forgets_its_beginning() -> None:
    w = wf.tensor([0.0], requires_grad=True)
    average = optim.ExponentialMovingAverage({"w": w}, decay=0.999, warmup=True)
    with wf.no_grad():
        w.fill_(1.0)
    average.update()
    assert average.averages[0].item() == pytest.approx(1 - 2 / 11, rel=1e-6)


def test_an_average_resumes() -> None:
    w = wf.tensor([1.0], requires_grad=True)
    average = optim.ExponentialMovingAverage({"w": w}, decay=0.5)
    with wf.no_grad():
        w.fill_(3.0)
    average.update()
    again = optim.ExponentialMovingAverage({"w": w}, decay=0.5)
    again.load_state_dict(average.state_dict())
    assert again.averages[0].item() == 2.0
    assert again.updates.item() == 1
    with pytest.raises(wf.ArgumentError, match="something else"):
        again.load_state_dict({"averages.v": w, "updates": wf.tensor(1)})


# Mixed precision.


def network() -> tuple[Any, wf.Tensor, wf.Tensor]:
    wf.random.seed(0)
    net = wf.nn.Sequential(wf.nn.Linear(4, 8), wf.nn.ReLU(), wf.nn.Linear(8, 1))
    x = wf.random.normal((16, 4))
    return net, x, x.sum(axis=1, keepdims=True)


@both
@pytest.mark.parametrize("precision", ["bfloat16", "float16"])
def test_mixed_precision_learns_with_float32_weights(precision: str, compiled: bool) -> None:
    net, x, y = network()
    optimizer = optim.AdamW(net.parameters(), lr=0.03, precision=precision)
    seen = []

    def step(net: Any, optimizer: Any, x: wf.Tensor, y: wf.Tensor) -> wf.Tensor:
        prediction = optimizer.mixed(net)(x)
        seen.append(prediction.dtype)
        loss = ((prediction - y) ** 2).mean()
        optimizer.minimize(loss)
        return loss

    run = compile_if(compiled, step)
    losses = [run(net, optimizer, x, y).item() for _ in range(60)]
    assert losses[-1] < 0.2 * losses[0]
    assert {p.dtype for p in net.parameters()} == {wf.float32}
    assert seen[0] is wf.float32
    if compiled:
        assert len(run.compilations) == 1  # type: ignore[attr-defined]


def test_mixed_computes_in_16_bits() -> None:
    net, x, _ = network()
    seen = []
    net[0].register_forward_hook(lambda module, args, output: seen.append(output.dtype))
    rounded = optim.mixed(net, "bfloat16")(x)
    assert seen == [wf.bfloat16]
    exact = net(x)
    assert 0 < np.abs(array(rounded - exact)).max() < 0.05
    assert optim.mixed(net, None) is net


@both
def test_overflow_in_float16_skips_the_step_and_halves_the_scale(compiled: bool) -> None:
    w = wf.tensor([1.0, 2.0], requires_grad=True)
    optimizer = optim.AdamW([w], lr=0.1, precision="float16")

    def step(w: wf.Tensor, optimizer: Any, factor: wf.Tensor) -> None:
        optimizer.minimize((w * w).sum() * factor)

    run = compile_if(compiled, step)
    run(w, optimizer, wf.tensor(1.0))
    before, state = array(w).copy(), optimizer.state_dict()
    for bad in (math.inf, math.nan):
        run(w, optimizer, wf.tensor(bad))
    assert np.array_equal(array(w), before)
    assert optimizer.steps.item() == 1
    assert optimizer.scaling.scale.item() == 65536 / 4
    np.testing.assert_array_equal(optimizer.state[0]["mean"].numpy(), state["state.0.mean"].numpy())
    run(w, optimizer, wf.tensor(1.0))
    assert optimizer.steps.item() == 2
    assert not np.array_equal(array(w), before)


def test_the_scale_grows_after_good_steps() -> None:
    w = wf.tensor([1.0], requires_grad=True)
    optimizer = optim.SGD([w], lr=0.1, precision="float16")
    optimizer.scaling.interval = 2
    for _ in range(4):
        optimizer.minimize((w * w).sum())
    assert optimizer.scaling.scale.item() == 65536 * 4
    assert w.item() == pytest.approx(0.8**4, rel=1e-6)


def test_scaled_gradients_give_the_same_step() -> None:
    a, b = (wf.tensor([1.5, -2.0], requires_grad=True) for _ in range(2))
    scaled = optim.SGD([a], lr=0.1, precision="float16", clip_norm=1.0, accumulate=2)
    plain = optim.SGD([b], lr=0.1, clip_norm=1.0, accumulate=2)
    for _ in range(4):
        scaled.minimize((a * a).sum())
        plain.minimize((b * b).sum())
    np.testing.assert_allclose(array(a), array(b), rtol=1e-6)


def test_a_loss_that_was_not_scaled_is_noticed() -> None:
    w = wf.tensor([1.0], requires_grad=True)
    optimizer = optim.SGD([w], lr=0.1, precision="float16")
    (w * w).sum().backward()
    with pytest.raises(wf.GradientError, match="not scaled"):
        optimizer.step()


# L-BFGS.


def rosenbrock(x: Any) -> Any:
    return 100 * (x[1] - x[0] ** 2) ** 2 + (1 - x[0]) ** 2


def closure_of(optimizer: Any, x: Any) -> Callable[[], Any]:
    def closure() -> Any:
        optimizer.zero_grad()
        loss = rosenbrock(x)
        loss.backward()
        return loss

    return closure


def test_lbfgs_finds_the_valley() -> None:
    x = wf.tensor([-1.2, 1.0], dtype=wf.float64, requires_grad=True)
    optimizer = optim.LBFGS([x], max_iterations=100, line_search="strong_wolfe")
    assert optimizer.step(closure_of(optimizer, x)).item() == pytest.approx(24.2)
    np.testing.assert_allclose(array(x), [1.0, 1.0], rtol=1e-4)


@pytest.mark.parametrize("search", [None, "strong_wolfe"])
def test_lbfgs_is_that_of_torch(search: str | None) -> None:
    torch = pytest.importorskip("torch")
    rate = 1.0 if search else 0.001
    x = wf.tensor([-1.2, 1.0], dtype=wf.float64, requires_grad=True)
    y = torch.tensor([-1.2, 1.0], dtype=torch.float64, requires_grad=True)
    mine = optim.LBFGS([x], lr=rate, max_iterations=4, history=3, line_search=search)
    theirs = torch.optim.LBFGS([y], lr=rate, max_iter=4, history_size=3, line_search_fn=search)
    for _ in range(5):
        mine.step(closure_of(mine, x))
        theirs.step(closure_of(theirs, y))
        np.testing.assert_allclose(array(x), y.detach().numpy(), rtol=1e-5)


def test_lbfgs_resumes_with_the_same_bits(tmp_path: Any) -> None:
    def make(start: Any) -> tuple[wf.Tensor, Any]:
        x = wf.tensor(start, dtype=wf.float64, requires_grad=True)
        return x, optim.LBFGS([x], max_iterations=3, line_search="strong_wolfe")

    x, optimizer = make([-1.2, 1.0])
    optimizer.step(closure_of(optimizer, x))
    wf.save({"x": x, "optimizer": optimizer.state_dict()}, tmp_path / "run")
    optimizer.step(closure_of(optimizer, x))
    saved = wf.load(tmp_path / "run")
    again, resumed = make(saved["x"].numpy())
    resumed.load_state_dict(saved["optimizer"])
    resumed.step(closure_of(resumed, again))
    assert np.array_equal(array(again), array(x))


def test_lbfgs_does_not_compile_and_says_why() -> None:
    x = wf.tensor([1.0, 2.0], requires_grad=True)
    optimizer = optim.LBFGS([x])

    @wf.jit
    def step(x: wf.Tensor) -> None:
        optimizer.step(closure_of(optimizer, x))

    with pytest.raises(wf.UnsupportedError, match="depends on its values"):
        step(x)
    with pytest.raises(wf.ArgumentError, match="one gradient is not enough"):
        optimizer.step()


# What is refused.


def parameter() -> wf.Tensor:
    return wf.tensor([1.0], requires_grad=True)


def twice() -> Any:
    w = parameter()
    return optim.SGD([{"params": [w]}, {"params": [w]}])


MISTAKES: list[tuple[str, Callable[[], Any], type[wf.WeftError], str, str]] = [
    ("negative lr", lambda: optim.SGD([parameter()], lr=-1.0), wf.ArgumentError, "lr", "lr="),
    ("lr is nan", lambda: optim.SGD([parameter()], lr=math.nan), wf.ArgumentError, "lr", "lr="),
    ("lr is text", lambda: optim.SGD([parameter()], lr="big"), wf.ArgumentTypeError, "lr", "lr="),
    ("betas", lambda: optim.Adam([parameter()], betas=(0.9, 1.0)), wf.ArgumentError, "betas", ""),
    ("one beta", lambda: optim.Adam([parameter()], betas=0.9), wf.ArgumentError, "betas", ""),
    ("empty", lambda: optim.SGD([]), wf.ArgumentError, "nothing to optimise", "net.parameters()"),
    ("one tensor", lambda: optim.SGD(parameter()), wf.ArgumentTypeError, "collection", ""),
    ("no leaf", lambda: optim.SGD([wf.ones(2)]), wf.GradientError, "no gradient", "requires_grad"),
    ("numbers", lambda: optim.SGD([1.0]), wf.ArgumentTypeError, "not a tensor", ""),
    ("twice", twice, wf.ArgumentError, "given twice", "leave it out"),
    (
        "unknown option",
        lambda: optim.SGD([parameter()], momentm=0.9),
        wf.ArgumentTypeError,
        "momentm",
        "momentum=",
    ),
    (
        "unknown option in a group",
        lambda: optim.Adam([{"params": [parameter()], "weight_deacy": 0.1}]),
        wf.ArgumentTypeError,
        "weight_deacy",
        "weight_decay=",
    ),
    ("nesterov", lambda: optim.SGD([parameter()], nesterov=True), wf.ArgumentError, "Nesterov", ""),
    ("clip", lambda: optim.SGD([parameter()], clip_norm=0.0), wf.ArgumentError, "clip_norm", ""),
    ("accumulate", lambda: optim.SGD([parameter()], accumulate=0), wf.ArgumentError, "accu", ""),
    (
        "precision",
        lambda: optim.SGD([parameter()], precision="int8"),
        wf.ArgumentError,
        "precision",
        "bfloat16",
    ),
    (
        "complex",
        lambda: optim.SGD([wf.tensor([1j]).requires_grad_()]),
        wf.UnsupportedError,
        "complex",
        "two parameters",
    ),
    (
        "vector for Muon",
        lambda: optim.Muon([{"params": [parameter()], "orthogonal": True}]),
        wf.ShapeError,
        "two axes",
        "orthogonal",
    ),
    (
        "setting a wrong lr later",
        lambda: setattr(optim.SGD([parameter()]), "lr", -1.0),
        wf.ArgumentError,
        "lr",
        "",
    ),
    (
        "state of another optimiser",
        lambda: optim.SGD([parameter()]).load_state_dict(optim.Adam([parameter()]).state_dict()),
        wf.ArgumentError,
        "something else",
        "same parameters",
    ),
    (
        "state of another shape",
        lambda: optim.Adam([parameter()]).load_state_dict(
            optim.Adam([wf.ones(2).requires_grad_()]).state_dict()
        ),
        wf.ShapeError,
        "state.0.mean",
        "",
    ),
]


@pytest.mark.parametrize("mistake", MISTAKES, ids=[each[0] for each in MISTAKES])
def test_a_mistake_is_refused_with_a_fix(mistake: Any) -> None:
    _, make, kind, problem, fix = mistake
    with pytest.raises(kind) as caught:
        make()
    assert problem in caught.value.problem
    assert fix in caught.value.fix
