"""Programs with parts on the processor and on a card: one plan, with transfers between."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from tests.compiler.cuda.device_cases import numbers
from tests.compiler.cuda.host_card import HostCard

import weft as wf
from weft.core.devices import CPU


def both(x: wf.Tensor, y: wf.Tensor) -> tuple[wf.Tensor, wf.Tensor]:
    """x is on the card, y on the processor."""
    there = wf.exp(x) * 2
    here = wf.tanh(there.to("cpu") + y)
    return here.sum(axis=0), (here.to("cuda") * x).sum()


def test_parts_on_two_devices_are_one_program_that_gives_what_eager_work_gives(
    card: HostCard,
) -> None:
    x, y = wf.asarray(numbers(3, 4)).to("cuda"), wf.asarray(numbers(3, 4) + 1)
    wanted = both(x, y)
    compiled = wf.jit(both)
    for _ in range(4):
        for one, other in zip(compiled(x, y), wanted, strict=True):
            assert one.device == other.device
            np.testing.assert_allclose(one.numpy(), other.numpy(), rtol=1e-5)
    report = compiled.explain(x, y)
    assert [str(step).replace(" f32[3, 4]", "") for step in report.plan.steps] == [
        "cuda:0: 2 nodes", "transfer from cuda:0 to cpu", "cpu: 3 nodes",
        "transfer from cpu to cuda:0", "cuda:0: 2 nodes",
    ]  # fmt: skip
    assert "3 segments and 2 transfers of 96 bytes" in str(report)
    assert set(compiled.memory(x, y).peaks) == {"cpu", "cuda:0"}


class TwoDevices(wf.nn.Module):
    """A table of the processor before layers of the card, and a layer of the processor behind."""

    def __init__(self, place: str) -> None:
        super().__init__()
        self.place = place
        self.table = wf.nn.Embedding(10, 6)
        self.inner = wf.nn.Sequential(wf.nn.Linear(6, 8), wf.nn.Dropout(0.3)).to(place)
        self.last = wf.nn.Linear(8, 3)

    def forward(self, tokens: wf.Tensor) -> wf.Tensor:
        hidden = wf.gelu(self.inner(self.table(tokens).to(self.place)))
        return self.last(wf.nn.functional.dropout(hidden.to("cpu"), 0.2, training=True))


def train(place: str, compiled: bool) -> tuple[list[float], TwoDevices]:
    wf.random.seed(5)
    model = TwoDevices(place)
    optimizer = wf.optim.AdamW(model.parameters(), lr=0.05)
    tokens, wanted = wf.asarray(np.arange(12) % 10), wf.asarray(np.arange(12) % 3)

    def step(tokens: wf.Tensor, wanted: wf.Tensor) -> wf.Tensor:
        optimizer.zero_grad()
        loss = wf.nn.functional.cross_entropy(model(tokens), wanted)
        loss.backward()
        optimizer.step()
        return loss

    run = wf.jit(step) if compiled else step
    losses = [float(run(tokens, wanted)) for _ in range(6)]
    return losses, model


def test_a_network_on_two_devices_is_trained_by_one_program(card: HostCard) -> None:
    wanted, _ = train("cpu", compiled=True)
    eager, _ = train("cuda", compiled=False)
    found, model = train("cuda", compiled=True)
    np.testing.assert_allclose(found, wanted, rtol=2e-4)
    np.testing.assert_allclose(eager, wanted, rtol=2e-4)
    assert found[-1] < found[0]
    assert {str(p.device) for p in model.inner.parameters()} == {"cuda:0"}
    for each in (model.table, model.last):
        for parameter in each.parameters():
            assert (parameter.device, parameter.grad.device) == (CPU, CPU)


def test_state_on_both_devices_is_written_in_place_unless_a_later_part_may_fail(
    card: HostCard,
) -> None:
    def step(a: wf.Tensor, b: wf.Tensor, index: wf.Tensor | None) -> wf.Tensor:
        moved = (a * 2).to("cpu")
        a += 1
        b += moved if index is None else moved[index]
        return b.sum()

    for index in (None, wf.asarray([2, 0, 1])):
        a, b = wf.asarray(numbers(3)).to("cuda"), wf.asarray(numbers(3))
        compiled, start = wf.jit(step), a.numpy()
        compiled(a, b, index)
        before = a._value.pointer
        compiled(a, b, index)
        assert (a._value.pointer == before) is (index is None)
        np.testing.assert_allclose(a.numpy(), start + 2)
    with pytest.raises(wf.BoundsError):
        compiled(a, b, wf.asarray([0, 1, 3]))
    np.testing.assert_allclose(a.numpy(), start + 2)


CASES: dict[str, Any] = {
    "there and back": lambda x: (x.to("cuda") * 2).to("cpu") + x,
    "nothing but moves": lambda x: x.to("cuda").to("cpu").to("cuda"),
    "the same tensor twice": lambda x: [x.to("cuda"), x.to("cuda") @ x.to("cuda").T, x * x],
    "a derivative": wf.grad(lambda x: (wf.sin(x.to("cuda") ** 2).to("cpu") * x).sum()),
    "a second derivative": wf.grad(
        lambda x: wf.grad(lambda y: ((y.to("cuda") ** 3).to("cpu") * y).sum())(x).sum()
    ),
    "a batch": wf.vmap(lambda row: (wf.cumsum(row.to("cuda"), axis=0)).to("cpu") * row),
    "forward mode": lambda x: wf.jvp(lambda y: wf.exp(y.to("cuda")).to("cpu"), (x,), (x * 2,)),
    "a program inside": lambda x: wf.jit(lambda y: y.to("cuda") + 1)(x * 2) * 3,
    "a batch of a program": lambda x: wf.vmap(wf.jit(lambda y: (y.to("cuda") * 2).to("cpu") + y))(
        x
    ),
    "a derivative of a program": wf.grad(
        lambda x: wf.jit(lambda y, z: (y.to("cuda") * z).to("cpu"))(x, x.to("cuda") + 1).sum()
    ),
    "masks and counts": lambda x: wf.tril(x.to("cuda")).to("cpu") + wf.eye(4)[:3],
    "a tensor that is made there": lambda x: x.to("cuda") + wf.ones((3, 4), device="cuda"),
    "a number of the other device": lambda x: x.to("cuda") * x.sum() + x.to("cuda").sum(),
    "no elements": lambda x: (x[:0].to("cuda") * 2).to("cpu").sum(axis=0) + x[0],
    "a loop on each": lambda x: (
        wf.scan(lambda c, r: (c + r, c * r), x[0], x)[1]
        + wf.scan(lambda c, r: (c * r, c), x.to("cuda")[0], x.to("cuda"))[1].to("cpu")
    ),
    "constants": lambda x: [wf.zeros(3, device="cuda"), wf.ones(2), x.to("cuda").shape[0] * 1.0],
}


@pytest.mark.parametrize("name", CASES)
def test_compiled_moves_are_eager_moves(card: HostCard, name: str) -> None:
    f, x = CASES[name], wf.asarray(numbers(3, 4))
    compiled = wf.jit(f)
    wanted = wf.tree.leaves(f(x))
    for _ in range(2):
        for one, other in zip(wf.tree.leaves(compiled(x)), wanted, strict=True):
            if not isinstance(other, wf.Tensor):
                assert one == other
                continue
            assert (one.device, one.dtype, one.shape) == (other.device, other.dtype, other.shape)
            np.testing.assert_allclose(one.numpy(), other.numpy(), rtol=1e-5, atol=1e-6)


def test_sizes_of_a_program_on_two_devices_may_differ_from_call_to_call(card: HostCard) -> None:
    compiled = wf.jit(lambda x: (x.to("cuda") * 2).to("cpu") + x[:1])
    for size in (3, 4, 5, 1, 7):
        x = wf.asarray(numbers(size, 2))
        np.testing.assert_allclose(compiled(x).numpy(), x.numpy() * 2 + x.numpy()[:1], rtol=1e-6)


def test_a_compiled_call_on_two_devices_is_differentiated_later(card: HostCard) -> None:
    x = wf.asarray(numbers(3, 4)).requires_grad_()
    w = wf.asarray(numbers(4, 2)).to("cuda").requires_grad_()
    f = lambda x, w: wf.tanh(wf.exp(x).to("cuda") @ w).to("cpu") * x[:, :2]  # noqa: E731
    f(x, w).sum().backward()
    wanted = x.grad, w.grad
    x.grad = w.grad = None
    wf.jit(f)(x, w).sum().backward()
    for one, other in zip((x.grad, w.grad), wanted, strict=True):
        assert one.device == other.device
        np.testing.assert_allclose(one.numpy(), other.numpy(), rtol=1e-5, atol=1e-6)


def test_operands_on_two_devices_are_refused_where_they_meet(card: HostCard) -> None:
    x, y = wf.ones(3).to("cuda"), wf.ones(3)
    with pytest.raises(wf.DeviceError, match="different devices") as caught:
        wf.jit(lambda x, y: wf.exp(x) + y)(x, y)
    assert caught.value.op == "add"
    assert "test_devices_together.py" in str(caught.value)
    with pytest.raises(wf.DeviceError, match="different devices"):
        wf.jit(lambda x: x.to("cpu") + x)(x)
    with pytest.raises(wf.UnsupportedError, match="no part on another device here") as refused:
        wf.jit(lambda x: wf.scan(lambda c, r: (c + r.to("cpu"), r), x[0], x))(x)
    assert 'y.to("cpu")' in refused.value.fix
    with pytest.raises(wf.UnsupportedError, match="no budget of memory"):
        wf.jit(lambda x: x.to("cpu") + 1, memory="1MB")(x)


def test_a_program_on_two_devices_runs_by_reference_and_watched_for_nan(card: HostCard) -> None:
    x, y = wf.asarray(numbers(3, 4)).to("cuda"), wf.asarray(numbers(3, 4))
    wanted = both(x, y)
    with wf.settings.changed(compiler=False):
        for one, other in zip(wf.jit(both)(x, y), wanted, strict=True):
            np.testing.assert_allclose(one.numpy(), other.numpy(), rtol=1e-5)
    with wf.debug.nans():
        for one, other in zip(wf.jit(both)(x, y), wanted, strict=True):
            np.testing.assert_allclose(one.numpy(), other.numpy(), rtol=1e-5)
        with pytest.raises(wf.NanError):
            wf.jit(lambda x: wf.log(x.to("cuda") - 10).to("cpu"))(y)
