"""Llama-shaped language models: root-mean-square norms, rotary positions, grouped heads, SwiGLU.

The names of the weights are Hugging Face's, so that `model.safetensors` loads as it is.

>>> import weft as wf
>>> from weft.models import Llama, LlamaConfig
>>> net = Llama(LlamaConfig(vocabulary=32, width=16, hidden=24, layers=1, heads=4, kv_heads=2))
>>> net(wf.tensor([[1, 2, 3]])).shape
(1, 3, 32)
>>> list(net.state_dict())[1]
'model.layers.0.self_attn.q_proj.weight'
"""

from __future__ import annotations

from typing import Any

import weft as wf
from weft import nn
from weft.models.attention import Caches, attend, split_heads, start_of
from weft.models.generation import LanguageModel
from weft.models.llama_config import LlamaConfig, rope_frequencies
from weft.nn import functional as F  # noqa: N812
from weft.precision import without_float8


class LlamaAttention(nn.Module):
    """Causal attention with rotary positions, whose keys and values groups of heads share."""

    def __init__(self, config: LlamaConfig, window: int | None = None) -> None:
        self.heads, self.kv_heads, self.window = config.heads, config.kv_heads, window
        width, head, bias = config.width, config.head_width, config.attention_bias
        into = bias or config.input_bias
        self.q_proj = nn.Linear(width, config.heads * head, into)
        self.k_proj = nn.Linear(width, config.kv_heads * head, into)
        self.v_proj = nn.Linear(width, config.kv_heads * head, into)
        self.o_proj = nn.Linear(config.heads * head, width, bias)
        self.q_norm = nn.RMSNorm(head, config.epsilon) if config.head_norm else None
        self.k_norm = nn.RMSNorm(head, config.epsilon) if config.head_norm else None

    def forward(self, x: wf.Tensor, angles: Any, cache: nn.KeyValueCache | None) -> Any:
        """x [batch, time, width], angles two of [time, head / 2]."""
        q = split_heads(self.q_proj(x), self.heads)
        k = split_heads(self.k_proj(x), self.kv_heads)
        if self.q_norm is not None and self.k_norm is not None:
            q, k = self.q_norm(q), self.k_norm(k)
        q, k = F.apply_rotary(q, *angles), F.apply_rotary(k, *angles)
        v = split_heads(self.v_proj(x), self.kv_heads)
        out, cache = attend(q, k, v, cache, window=self.window)
        return self.o_proj(out), cache


class SwiGLU(nn.Module):
    """Two projections, one of which opens the other, and one back."""

    def __init__(self, width: int, hidden: int, bias: bool = False) -> None:
        self.gate_proj = nn.Linear(width, hidden, bias)
        self.up_proj = nn.Linear(width, hidden, bias)
        self.down_proj = nn.Linear(hidden, width, bias)

    def forward(self, x: wf.Tensor) -> Any:
        """[..., width] -> [..., width]."""
        return self.down_proj(wf.silu(self.gate_proj(x)) * self.up_proj(x))


class LlamaLayer(nn.Module):
    """Attention, then a feed-forward network, each after a norm and added to its input."""

    def __init__(self, config: LlamaConfig, window: int | None = None) -> None:
        self.self_attn = LlamaAttention(config, window)
        self.mlp = SwiGLU(config.width, config.hidden, config.mlp_bias)
        self.input_layernorm = nn.RMSNorm(config.width, config.epsilon)
        self.post_attention_layernorm = nn.RMSNorm(config.width, config.epsilon)

    def forward(self, x: wf.Tensor, angles: Any, cache: nn.KeyValueCache | None) -> Any:
        """[batch, time, width] -> the same, and the cache."""
        attended, cache = self.self_attn(self.input_layernorm(x), angles, cache)
        x = x + attended
        return x + self.mlp(self.post_attention_layernorm(x)), cache


class LlamaModel(nn.Module):
    """The layers between the tokens and the head."""

    def __init__(self, config: LlamaConfig) -> None:
        self.embed_tokens = nn.Embedding(config.vocabulary, config.width)
        nn.init.normal_(self.embed_tokens.weight, std=0.02)
        windows = config.windows or (None,) * config.layers
        self.layers = nn.ModuleList([LlamaLayer(config, window) for window in windows])
        self.norm = nn.RMSNorm(config.width, config.epsilon)
        frequencies = wf.asarray(rope_frequencies(config))
        self.register_buffer("frequencies", frequencies, persistent=False)

    def forward(self, tokens: wf.Tensor, cache: Caches | None = None) -> tuple[Any, Caches]:
        """tokens [batch, time] -> [batch, time, width]."""
        positions = wf.arange(tokens.shape[1]) + start_of(cache)
        angles = wf.expand_dims(positions.astype(wf.float32), axis=1) * self.frequencies
        turns = wf.cos(angles), wf.sin(angles)  # [time, head / 2]
        x, after = self.embed_tokens(tokens), []
        for number, layer in enumerate(self.layers):
            x, held = layer(x, turns, None if cache is None else cache[number])
            after.append(held)
        return self.norm(x), after


class Llama(LanguageModel):
    """A Llama-shaped language model, with Hugging Face's names."""

    def __init__(self, config: LlamaConfig) -> None:
        self.config, self.context = config, config.context
        self.model = LlamaModel(config)
        self.lm_head = None if config.tied else nn.Linear(config.width, config.vocabulary, False)

    def forward(self, tokens: wf.Tensor, cache: Caches | None = None) -> Any:
        """tokens [batch, time] -> logits [batch, time, vocabulary]; with a cache also the next."""
        x, after = self.model(tokens, cache)
        head = self.lm_head or self.model.embed_tokens
        with without_float8():
            logits = F.linear(x, head.weight)
        return logits if cache is None else (logits, after)

    def new_cache(self, batch: int, capacity: int) -> Caches:
        """A cache for each layer, as wide as the weights."""
        config, weight = self.config, self.model.embed_tokens.weight
        kind = config.head_width, weight.dtype, weight.device
        heads = [layer.self_attn.kv_heads for layer in self.model.layers]
        return [nn.KeyValueCache.empty(batch, count, capacity, *kind) for count in heads]
