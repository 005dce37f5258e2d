"""GPT: causal attention and a feed-forward network, layer after layer, over learned positions.

`GPT` is nanoGPT's: small, for characters. `GPT2` has its weights transposed, as the files of GPT-2
have them, and takes Hugging Face's `model.safetensors`. The names of the weights are the same.

>>> import weft as wf
>>> from weft.models import GPT, GPTConfig
>>> net = GPT(GPTConfig(vocabulary=65, width=16, layers=2, heads=4, context=32))
>>> net(wf.tensor([[1, 2, 3]])).shape
(1, 3, 65)
"""

from __future__ import annotations

import math
from typing import Any, ClassVar

import weft as wf
from weft import nn
from weft.models.attention import Caches, attend, split_heads, start_of
from weft.models.generation import LanguageModel
from weft.models.gpt_config import GPTConfig
from weft.nn import functional as F  # noqa: N812
from weft.precision import without_float8


class TransposedLinear(nn.Module):
    """y = x W + b, with W [in, out] as GPT-2's files have it.

    >>> TransposedLinear(2, 3).weight.shape
    (2, 3)
    """

    def __init__(self, in_features: int, out_features: int, bias: bool = True) -> None:
        self.weight = nn.Parameter(wf.empty((in_features, out_features)))
        self.bias = nn.Parameter(wf.zeros(out_features)) if bias else None
        nn.init.normal_(self.weight, std=0.02)

    def forward(self, x: wf.Tensor) -> wf.Tensor:
        """[..., in] -> [..., out]."""
        return F.linear(x, self.weight.T, self.bias)


class GPTAttention(nn.Module):
    """Causal attention; queries, keys and values come from one product."""

    def __init__(self, config: GPTConfig, projection: Any) -> None:
        _check_heads(config)
        self.heads, self.p = config.heads, config.dropout
        self.c_attn = projection(config.width, 3 * config.width, config.bias)
        self.c_proj = projection(config.width, config.width, config.bias)
        self.dropout = nn.Dropout(config.dropout)

    def forward(self, x: wf.Tensor, cache: nn.KeyValueCache | None) -> Any:
        """[batch, time, width] -> the same, and the cache."""
        q, k, v = (split_heads(part, self.heads) for part in wf.split(self.c_attn(x), 3, axis=-1))
        out, cache = attend(q, k, v, cache, self.p if self.training else 0.0)
        return self.dropout(self.c_proj(out)), cache


class FeedForward(nn.Module):
    """A wider layer and back."""

    def __init__(self, config: GPTConfig, projection: Any) -> None:
        hidden = config.hidden or 4 * config.width
        self.activation = config.activation
        self.c_fc = projection(config.width, hidden, config.bias)
        self.c_proj = projection(hidden, config.width, config.bias)
        self.dropout = nn.Dropout(config.dropout)

    def forward(self, x: wf.Tensor) -> Any:
        """[..., width] -> [..., width]."""
        hidden = F.activate(self.activation, self.c_fc(x))
        return self.dropout(self.c_proj(hidden))


class Block(nn.Module):
    """Attention, then the feed-forward network, each after a norm and added to its input."""

    def __init__(self, config: GPTConfig, projection: Any) -> None:
        self.ln_1 = nn.LayerNorm(config.width, config.epsilon, bias=config.bias)
        self.attn = GPTAttention(config, projection)
        self.ln_2 = nn.LayerNorm(config.width, config.epsilon, bias=config.bias)
        self.mlp = FeedForward(config, projection)

    def forward(self, x: wf.Tensor, cache: nn.KeyValueCache | None) -> Any:
        """[batch, time, width] -> the same, and the cache."""
        attended, cache = self.attn(self.ln_1(x), cache)
        x = x + attended
        return x + self.mlp(self.ln_2(x)), cache


class GPT(LanguageModel):
    """A small language model, as nanoGPT builds it.

    >>> import weft as wf
    >>> net = GPT(GPTConfig(vocabulary=10, width=8, layers=1, heads=2, context=16))
    >>> net(wf.tensor([[1, 2, 3]])).shape  # [batch, time, vocabulary]
    (1, 3, 10)
    """

    projection: ClassVar[Any] = nn.Linear

    def __init__(self, config: GPTConfig) -> None:
        self.config, self.context = config, config.context
        self.wte = nn.Embedding(config.vocabulary, config.width)
        self.wpe = nn.Embedding(config.context, config.width)
        self.dropout = nn.Dropout(config.dropout)
        self.h = nn.ModuleList([Block(config, self.projection) for _ in range(config.layers)])
        self.ln_f = nn.LayerNorm(config.width, config.epsilon, bias=config.bias)
        self.lm_head = None if config.tied else nn.Linear(config.width, config.vocabulary, False)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw new weights: small, and smaller where they are added to what passes through."""
        shrunk = 0.02 / math.sqrt(2 * max(1, self.config.layers))
        for name, parameter in self.named_parameters():
            if parameter.ndim > 1:
                nn.init.normal_(parameter, std=shrunk if "c_proj" in name else 0.02)
            elif name.endswith("bias"):
                nn.init.zeros_(parameter)

    def forward(self, tokens: wf.Tensor, cache: Caches | None = None) -> Any:
        """tokens [batch, time] -> logits [batch, time, vocabulary]; with a cache also the next."""
        _check_time(self, tokens)
        positions = wf.arange(tokens.shape[1]) + start_of(cache)
        x = self.dropout(self.wte(tokens) + self.wpe(positions))  # [batch, time, width]
        after = []
        for number, block in enumerate(self.h):
            x, held = block(x, None if cache is None else cache[number])
            after.append(held)
        x = self.ln_f(x)
        with without_float8():
            logits = F.linear(x, (self.lm_head or self.wte).weight)
        return logits if cache is None else (logits, after)

    def new_cache(self, batch: int, capacity: int) -> Caches:
        """A cache for each layer, as wide as the weights."""
        config, weight = self.config, self.wte.weight
        kind = config.width // config.heads, weight.dtype, weight.device
        heads = [block.attn.heads for block in self.h]
        return [nn.KeyValueCache.empty(batch, count, capacity, *kind) for count in heads]


class GPT2(GPT):
    """A GPT whose `state_dict` is that of Hugging Face's GPT-2.

    >>> net = GPT2(GPTConfig(vocabulary=50, width=8, layers=1, heads=2, context=16))
    >>> net.state_dict()["h.0.attn.c_attn.weight"].shape
    (8, 24)
    """

    projection: ClassVar[Any] = TransposedLinear


def _check_heads(config: GPTConfig) -> None:
    if config.heads < 1 or config.width % config.heads:
        raise wf.ArgumentError(
            "GPT",
            "the width cannot be divided into the heads",
            expected="width % heads == 0",
            got={"width": config.width, "heads": config.heads},
            fix=f"GPTConfig(width={config.heads * 32}, heads={config.heads})",
        )


def _check_time(net: GPT, tokens: wf.Tensor) -> None:
    if tokens.ndim != 2 or (isinstance(tokens.shape[1], int) and tokens.shape[1] > net.context):
        raise wf.ShapeError(
            type(net).__name__,
            "the tokens are no batch of sequences within the context",
            expected=f"[batch, time] with time <= {net.context}",
            got={"tokens": tokens},
            fix=f"tokens[:, -{net.context}:], or a larger context",
        )
