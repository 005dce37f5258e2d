"""Training steps of the usual kinds are native throughout: no call goes back into Python."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import weft as wf

pytestmark = pytest.mark.slow

F = wf.nn.functional


def _tokens() -> tuple[wf.Tensor, wf.Tensor]:
    return wf.random.randint(0, 17, (2, 8)), wf.random.randint(0, 17, (2, 8))


def _images(channels: int, size: int) -> tuple[wf.Tensor, wf.Tensor]:
    return wf.random.normal((2, channels, size, size)), wf.random.randint(0, 10, (2,))


def _next_token(scores: wf.Tensor, targets: wf.Tensor) -> wf.Tensor:
    return F.cross_entropy(scores.reshape(-1, scores.shape[-1]), targets.reshape(-1))


SMALL = wf.models.GPTConfig(vocabulary=17, width=16, layers=1, heads=2, context=8, dropout=0.1)
WORKLOADS: dict[str, Callable[[], tuple[Any, ...]]] = {
    "mlp": lambda: (
        wf.models.MLP([16, 8, 10]),
        F.cross_entropy,
        wf.random.normal((4, 16)),
        wf.random.randint(0, 10, (4,)),
    ),
    "lenet": lambda: (wf.models.LeNet(10, 28, 1), F.cross_entropy, *_images(1, 28)),
    "resnet": lambda: (wf.models.resnet18(10, small=True), F.cross_entropy, *_images(3, 32)),
    "gpt": lambda: (wf.models.GPT(SMALL), _next_token, *_tokens()),
    "lstm": lambda: (wf.models.LSTMLanguageModel(17, 16, 2), _next_token, *_tokens()),
}


@pytest.mark.parametrize("name", sorted(WORKLOADS))
def test_a_training_step_calls_nothing_by_reference(name: str) -> None:
    net, loss_of, x, y = WORKLOADS[name]()
    optimizer = wf.optim.AdamW(net.parameters(), lr=1e-3, clip_norm=1.0)

    @wf.jit
    def step(net: Any, optimizer: Any, x: wf.Tensor, y: wf.Tensor) -> wf.Tensor:
        loss = loss_of(net(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss

    assert step.explain(net, optimizer, x, y).references == []
