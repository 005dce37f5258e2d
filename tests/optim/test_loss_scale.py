"""Loss scaling inside of `wf.autocast("float16")`: steps that overflow are skipped to the bit."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import weft as wf
from weft.nn import functional as F  # noqa: N812

both = pytest.mark.parametrize("compiled", [False, True], ids=["eager", "compiled"])
OPTIMIZERS: list[Callable[..., Any]] = [
    wf.optim.SGD, wf.optim.AdamW, wf.optim.Lamb, wf.optim.Muon,
]  # fmt: skip


def network() -> Any:
    wf.random.seed(2)
    return wf.nn.Sequential(wf.nn.Linear(4, 24), wf.nn.Tanh(), wf.nn.Linear(24, 1))


def batch(factor: float = 1.0) -> tuple[wf.Tensor, wf.Tensor]:
    x = np.random.default_rng(4).normal(size=(16, 4)).astype(np.float32)
    return wf.tensor(x), wf.tensor(factor * x.sum(axis=1, keepdims=True))


def make_step(compiled: bool) -> Callable[..., Any]:
    def step(net: Any, optimizer: Any, x: wf.Tensor, y: wf.Tensor) -> wf.Tensor:
        with wf.autocast("float16"):
            loss = F.mse_loss(net(x), y)
        optimizer.minimize(loss)
        return loss

    return wf.jit(step) if compiled else step


def bits(net: Any, optimizer: Any) -> dict[str, bytes]:
    """Weights and moments, to the bit."""
    kept = {f"state.{i}.{k}": t for i, s in enumerate(optimizer.state) for k, t in s.items()}
    tensors = {**net.state_dict(), **kept, "steps": optimizer.steps}
    return {name: tensor.detach().numpy().tobytes() for name, tensor in tensors.items()}


@both
@pytest.mark.parametrize("make", OPTIMIZERS)
def test_a_gradient_that_overflows_skips_the_step_to_the_bit(
    make: Callable[..., Any], compiled: bool
) -> None:
    net = network()
    optimizer = make(net.parameters(), lr=0.01, precision="float16")
    optimizer.scaling.interval = 2
    step = make_step(compiled)
    step(net, optimizer, *batch())
    before = bits(net, optimizer)
    assert np.isfinite(step(net, optimizer, *batch(30.0)).item())  # only the gradients overflow
    assert bits(net, optimizer) == before
    assert optimizer.scaling.scale.item() == 32768.0
    assert optimizer.scaling.good_steps.item() == 0
    for _ in range(2):
        step(net, optimizer, *batch())
    assert bits(net, optimizer) != before
    assert optimizer.steps.item() == 3
    assert optimizer.scaling.scale.item() == 65536.0  # it has grown again
    if compiled:
        assert len(step.compilations) == 1  # type: ignore[attr-defined]


@both
def test_gradients_that_float16_cannot_hold_need_the_scale(compiled: bool) -> None:
    def change(precision: str | None) -> float:
        w = wf.tensor([[1.0]], requires_grad=True)
        optimizer = wf.optim.SGD([w], lr=1e6, precision=precision)

        def step(w: wf.Tensor, optimizer: Any) -> None:
            with wf.autocast("float16"):
                loss = (wf.tensor([[1.0]]) @ w).sum() * 1e-9
            optimizer.minimize(loss)

        (wf.jit(step) if compiled else step)(w, optimizer)
        return 1.0 - w.item()

    assert change(None) == 0.0
    assert change("float16") == pytest.approx(1e-3, rel=0.01)


def test_the_scale_stays_between_one_and_what_float32_holds() -> None:
    scaling = wf.optim.LossScale(wf.tensor(2.0), interval=1)
    for _ in range(5):
        scaling.update(wf.tensor(False))
    assert scaling.scale.item() == 1.0
    scaling.scale.fill_(2.0**127)
    scaling.update(wf.tensor(True))
    assert scaling.scale.item() == 2.0**127


@both
def test_gradients_can_be_seen_without_the_scale(compiled: bool) -> None:
    def run(unscale: bool) -> tuple[wf.Tensor, wf.Tensor]:
        w = wf.tensor(np.linspace(1, 2, 300).astype(np.float32), requires_grad=True)
        optimizer = wf.optim.SGD([w], lr=0.1, precision="float16")

        def step(w: wf.Tensor, optimizer: Any) -> Any:
            optimizer.scale((w * w).sum()).backward()
            if unscale:
                optimizer.unscale()
                optimizer.unscale()  # the second time there is nothing to do
            seen = w.grad
            optimizer.step()
            optimizer.zero_grad()
            return seen

        advance = wf.jit(step) if compiled else step
        first, *_ = [advance(w, optimizer) for _ in range(3)]
        return first, w

    scaled, plain = run(False)
    seen, w = run(True)
    np.testing.assert_allclose(seen.numpy() * 65536.0, scaled.numpy(), rtol=1e-6)
    np.testing.assert_array_equal(w.detach().numpy(), plain.detach().numpy())


@pytest.mark.parametrize("name", ["Muon", "Adam"])
def test_an_update_inside_of_the_block_is_that_outside(name: str) -> None:
    """Muon's rule has products, and clipping has sums: they are not cast."""
    found = []
    for inside in (False, True):
        net = network()
        optimizer = getattr(wf.optim, name)(net.parameters(), lr=0.05, clip_norm=0.1)
        x, y = batch()
        for _ in range(3):
            F.mse_loss(net(x), y).backward()
            with wf.autocast("bfloat16", enabled=inside):
                optimizer.step()
            optimizer.zero_grad()
        found.append([p.detach().numpy() for p in net.parameters()])
    for a, b in zip(*found, strict=True):
        np.testing.assert_array_equal(a, b)


def test_the_scale_goes_on_from_a_saved_state(tmp_path: Any) -> None:
    net = network()
    optimizer = wf.optim.Adam(net.parameters(), lr=0.01, precision="float16")
    step = make_step(True)
    for factor in (1.0, 30.0, 1.0, 1.0):
        step(net, optimizer, *batch(factor))
    wf.save(optimizer.state_dict(), tmp_path / "run")
    again = wf.optim.Adam(network().parameters(), lr=0.01, precision="float16")
    again.load_state_dict(wf.load(tmp_path / "run"))
    assert again.scaling.scale.item() == 32768.0
    assert again.scaling.good_steps.item() == 2
