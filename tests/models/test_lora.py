"""LoRA: nothing changes at first, only the thin matrices learn, and merging keeps the result."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import weft as wf
from weft import models
from weft.nn import functional as F  # noqa: N812

GPT = models.GPTConfig(vocabulary=11, width=16, layers=2, heads=2, context=12)
BUILDS: dict[str, Any] = {
    "GPT": (lambda: models.GPT(GPT), ("*attn*",)),
    "GPT2": (lambda: models.GPT2(GPT), ("h.*.attn.c_attn", "*mlp.c_fc")),
}


def tuned(name: str) -> tuple[Any, Any, wf.Tensor]:
    """A network before and after ten steps on one batch, only LoRA's weights learning."""
    wf.random.seed(0)
    build, targets = BUILDS[name]
    plain = build()
    tokens = wf.asarray(np.random.default_rng(0).integers(0, 11, (2, 9)))
    net = build()
    net.load_state_dict(plain.state_dict())
    models.add_lora(net, rank=2, alpha=8.0, targets=targets)
    return plain, net, tokens


@wf.jit
def step(net: Any, optimizer: Any, tokens: wf.Tensor) -> wf.Tensor:
    logits = net(tokens[:, :-1])
    loss = F.cross_entropy(wf.reshape(logits, (-1, 11)), wf.reshape(tokens[:, 1:], (-1,)))
    optimizer.minimize(loss)
    return loss


@pytest.mark.parametrize("name", BUILDS)
def test_lora_changes_nothing_until_it_learns(name: str) -> None:
    plain, net, tokens = tuned(name)
    assert (plain(tokens).detach().numpy() == net(tokens).detach().numpy()).all()


@pytest.mark.slow
@pytest.mark.parametrize("name", BUILDS)
def test_only_the_thin_matrices_learn_and_merging_keeps_what_they_do(name: str) -> None:
    plain, net, tokens = tuned(name)
    learning = [p for p in net.parameters() if p.requires_grad]
    assert len(learning) == len(models.lora_parameters(net)) > 0
    optimizer = wf.optim.Adam(learning, lr=0.02)
    losses = [step(net, optimizer, tokens).item() for _ in range(10)]
    assert losses[-1] < losses[0]
    learned = net(tokens).detach().numpy()
    frozen = {n: t for n, t in net.state_dict().items() if "lora" not in n}
    for (name_, tensor), before in zip(frozen.items(), plain.state_dict().values(), strict=True):
        assert (tensor.numpy() == before.numpy()).all(), name_
    merged = models.merge_lora(net)
    assert list(merged.state_dict()) == list(plain.state_dict())
    np.testing.assert_allclose(merged(tokens).detach().numpy(), learned, atol=1e-5)
    assert all(p.requires_grad for p in merged.parameters())


def test_what_lora_learned_is_loaded_by_itself() -> None:
    _, net, tokens = tuned("GPT")
    with wf.no_grad():
        for tensor in models.lora_parameters(net).values():
            tensor += 0.1
    _, other, _ = tuned("GPT")
    other.load_state_dict(models.lora_parameters(net), strict=False)
    assert (other(tokens).detach().numpy() == net(tokens).detach().numpy()).all()


def test_names_that_fit_no_layer_are_refused() -> None:
    with pytest.raises(wf.ArgumentError, match="no linear layer of the network fits"):
        models.add_lora(models.GPT(GPT), targets=("q_proj",))
    with pytest.raises(wf.ArgumentError, match="the rank is not positive"):
        models.LoRALinear(wf.nn.Linear(2, 2), rank=0)
