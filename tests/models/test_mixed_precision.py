"""Models train inside of `wf.autocast` as outside of it, and their weights stay float32."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import weft as wf
from weft import models
from weft.models import resnet
from weft.nn import functional as F  # noqa: N812

WORDS = 17
draw = np.random.default_rng(0)
TOKENS = wf.tensor(draw.integers(1, WORDS, (4, 9)))
IMAGES = wf.tensor(draw.normal(size=(4, 3, 16, 16)).astype(np.float32))


def next_word(logits: wf.Tensor) -> wf.Tensor:
    return F.cross_entropy(logits.reshape(-1, WORDS), TOKENS[:, 1:].reshape(-1))


def llama() -> Any:
    return models.Llama(
        models.LlamaConfig(WORDS, width=32, hidden=64, layers=2, heads=4, kv_heads=2, context=16)
    )


CASES: dict[str, tuple[Callable[[], Any], Callable[[Any], wf.Tensor]]] = {
    "resnet": (
        lambda: resnet.ResNet(resnet.BasicBlock, (1, 1), 5, small=True, widths=(8, 16)),
        lambda net: F.cross_entropy(net(IMAGES), wf.arange(4)),
    ),
    "lstm": (
        lambda: models.LSTMLanguageModel(WORDS, width=16, layers=2),
        lambda net: next_word(net(TOKENS[:, :-1])),
    ),
    "llama": (llama, lambda net: next_word(net(TOKENS[:, :-1]))),
    "seq2seq": (
        lambda: models.Seq2Seq(WORDS, WORDS, width=32, layers=1),
        lambda net: next_word(net(TOKENS, TOKENS[:, :-1])),
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_a_model_trains_inside_of_autocast_as_outside(name: str) -> None:
    make, loss_of = CASES[name]

    def losses(precision: str) -> list[float]:
        wf.random.seed(0)
        net = make()
        optimizer = wf.optim.AdamW(net.parameters(), lr=3e-3)

        @wf.jit
        def step(net: Any, optimizer: Any) -> wf.Tensor:
            with wf.autocast(precision):
                loss = loss_of(net)
            optimizer.minimize(loss)
            return loss

        found = [step(net, optimizer).item() for _ in range(5)]
        assert {p.dtype for p in net.parameters()} == {wf.float32}
        return found

    exact, rounded = losses("float32"), losses("bfloat16")
    assert exact[-1] < exact[0]
    np.testing.assert_allclose(rounded, exact, rtol=0.01)


def test_the_hidden_layers_of_gpt2_are_in_16_bits() -> None:
    net = models.GPT2(models.GPTConfig(WORDS, width=32, layers=2, heads=2, context=16))
    seen: list[Any] = []
    for module in net.modules():
        if type(module).__name__ == "TransposedLinear":
            module.register_forward_hook(lambda module, args, output: seen.append(output.dtype))
    with wf.autocast("bfloat16"):
        net(TOKENS)
    assert len(seen) == 8
    assert set(seen) == {wf.bfloat16}
