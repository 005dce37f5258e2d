"""Programs with parts on the processor and on a card, tried on a card in the host's memory and on a
real one."""

from __future__ import annotations

from typing import Any

import numpy as np
from tests.compiler.cuda.device_cases import numbers

import weft as wf


def both(x: wf.Tensor, y: wf.Tensor) -> tuple[wf.Tensor, wf.Tensor]:
    """x is on the card, y on the processor."""
    there = wf.exp(x) * 2
    here = wf.tanh(there.to("cpu") + y)
    return here.sum(axis=0), (here.to("cuda") * x).sum()


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


def train_on_both(place: str, compiled: bool) -> tuple[list[float], TwoDevices]:
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


def check_moves(name: str) -> None:
    """A compiled function moves tensors as it does eagerly."""
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


def check_training() -> None:
    """One program trains a network on two devices; its parameters stay where they are."""
    wanted, _ = train_on_both("cpu", compiled=True)
    eager, _ = train_on_both("cuda", compiled=False)
    found, model = train_on_both("cuda", compiled=True)
    np.testing.assert_allclose(found, wanted, rtol=2e-4)
    np.testing.assert_allclose(eager, wanted, rtol=2e-4)
    assert found[-1] < found[0]
    assert {str(p.device) for p in model.inner.parameters()} == {"cuda:0"}
    for each in (model.table, model.last):
        for parameter in each.parameters():
            assert {str(parameter.device), str(parameter.grad.device)} == {"cpu"}
