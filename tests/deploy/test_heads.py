"""Heads that are taken away: the network is smaller, and what was unimportant is not missed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import weft as wf
from weft import models, nn

TOKENS = wf.tensor([[1, 2, 3, 4], [4, 3, 2, 1]])


class OwnAttention(nn.Module):
    """An attention as a user writes it, by itself."""

    def __init__(self, **given: Any) -> None:
        self.attention = nn.MultiheadAttention(16, 4, batch_first=True, **given)

    def forward(self, x: wf.Tensor) -> Any:
        return self.attention(x, x, x)[0]


def other_widths() -> nn.Module:
    class Crossed(nn.Module):
        def __init__(self) -> None:
            self.attention = nn.MultiheadAttention(16, 4, kdim=6, vdim=6, batch_first=True)

        def forward(self, x: wf.Tensor) -> Any:
            return self.attention(x, x[..., :6], x[..., :6])[0]

    return Crossed()


PICTURES = wf.ones((2, 3, 8, 8))
ROWS = wf.random.normal((2, 5, 16))
NETS: dict[str, tuple[Callable[[], nn.Module], tuple[Any, ...]]] = {
    "multihead": (OwnAttention, (ROWS,)),
    "multihead without bias": (lambda: OwnAttention(bias=False), (ROWS,)),
    "multihead with shared keys": (lambda: OwnAttention(num_kv_heads=2), (ROWS,)),
    "multihead of other widths": (other_widths, (ROWS,)),
    "encoder": (lambda: nn.TransformerEncoderLayer(16, 4, 24, batch_first=True), (ROWS,)),
    "bert": (lambda: models.BERT(models.BERTConfig(30, 16, 24, 2, 4, 12)), (TOKENS,)),
    "gpt": (lambda: models.GPT(models.GPTConfig(30, 16, 2, 4, 12)), (TOKENS,)),
    "gpt2": (lambda: models.GPT2(models.GPTConfig(30, 16, 2, 4, 12)), (TOKENS,)),
    "llama": (lambda: models.Llama(models.LlamaConfig(30, 16, 24, 2, 4, 2, 12)), (TOKENS,)),
    "vit": (lambda: models.ViT(models.ViTConfig(8, 4, 3, 16, 24, 2, 4, 5)), (PICTURES,)),
}


def drop_output(net: nn.Module, names: tuple[str, ...], heads: int, head: int) -> None:
    """Set to zero what reads the output of one head, in all weights of these names."""
    for name, parameter in net.named_parameters():
        if not name.endswith(names):
            continue
        value = parameter.detach().numpy().copy()
        is_turned = name.endswith("c_proj.weight") and isinstance(net, models.GPT2)
        value = value.T.copy() if is_turned else value
        width = value.shape[1] // heads
        value[:, head * width : (head + 1) * width] = 0
        with wf.no_grad():
            parameter.copy_(wf.asarray(value.T if is_turned else value))


OUTPUTS = (
    "out_proj.weight",
    "o_proj.weight",
    "attn.c_proj.weight",
    "attention.output.dense.weight",
)


@pytest.mark.parametrize("name", NETS)
def test_a_head_that_nothing_reads_is_not_missed(name: str) -> None:
    make, inputs = NETS[name]
    wf.random.seed(1)
    net = make().eval()
    groups = 2 if "shared" in name or name == "llama" else 4
    drop_output(net, OUTPUTS, groups, 1)
    expected = net(*inputs).detach().numpy()
    sizes = sum(p.size for p in net.parameters())
    report = wf.deploy.prune_heads(net, 1 / groups)
    assert all(
        heads == tuple(h for h in range(groups) if h != 1) for heads in report.heads.values()
    )
    assert report.parameters == (sizes, sum(p.size for p in net.parameters()))
    assert report.parameters[1] < sizes
    np.testing.assert_allclose(net(*inputs).detach().numpy(), expected, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(
        wf.jit(net)(*inputs).detach().numpy(), expected, rtol=1e-4, atol=1e-5
    )


@pytest.mark.slow
def test_a_pruned_language_model_generates_with_its_smaller_cache() -> None:
    for make in (NETS["llama"][0], NETS["gpt"][0]):
        wf.random.seed(0)
        net: Any = make().eval()
        wf.deploy.prune_heads(net, 0.5)
        written = net.generate(wf.tensor([1, 2, 3]), max_new_tokens=4, temperature=0)
        whole = written[None, :-1]
        assert int(net(whole)[0, -1].argmax()) == int(written[-1])


@pytest.mark.slow
def test_pruning_tuning_and_measuring_are_told() -> None:
    wf.random.seed(0)
    net: Any = models.ViT(models.ViTConfig(8, 4, 1, 16, 24, 1, 4, 2))
    x = wf.random.normal((64, 1, 8, 8))
    labels = (x.mean((1, 2, 3)) > 0).astype("int64")

    def loss(net: nn.Module) -> float:
        return float(wf.nn.functional.cross_entropy(net(x), labels))

    def tune(net: nn.Module) -> None:
        optimizer = wf.optim.Adam(net.parameters(), lr=3e-3)
        for _ in range(15):
            optimizer.minimize(wf.nn.functional.cross_entropy(net(x), labels))

    tune(net)
    report = wf.deploy.prune_heads(net, 0.75, measure=loss, tune=tune)
    assert list(report.measured) == ["before", "pruned", "tuned"]
    assert report.measured["tuned"] < report.measured["pruned"]
    assert report.kept == {"encoder.layer.0.attention.attention": (1, 4)}
    assert "tuned" in str(report)


def test_importance_may_be_said() -> None:
    net: Any = NETS["bert"][0]()
    report = wf.deploy.prune_heads(net, 0.5, importance=lambda name, module: [1, 9, 2, 8])
    assert set(report.heads.values()) == {(1, 3)}
    with pytest.raises(wf.ShapeError, match="one number for each head"):
        wf.deploy.prune_heads(net, 0.5, importance=lambda name, module: [1.0])


def test_one_head_always_stays() -> None:
    net: Any = OwnAttention()
    assert wf.deploy.prune_heads(net, 0.99).kept == {"attention": (1, 4)}
    assert net(ROWS).shape == ROWS.shape


def test_a_network_without_attention_is_refused() -> None:
    with pytest.raises(wf.UnsupportedError, match="no attention"):
        wf.deploy.prune_heads(nn.Linear(2, 2), 0.5)
