"""Forward passes in plain NumPy, written from the papers, one token after the other where easy."""

from __future__ import annotations

from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]
Weights = dict[str, Array]


def softmax(x: Array) -> Array:
    shifted = np.exp(x - x.max(-1, keepdims=True))
    return shifted / shifted.sum(-1, keepdims=True)


def attention(q: Array, k: Array, v: Array, causal: bool) -> Array:
    """One head: q [n, d], k and v [m, d]."""
    scores = q @ k.T / np.sqrt(q.shape[1])
    if causal:
        scores = np.where(np.tril(np.ones(scores.shape, bool)), scores, -np.inf)
    return softmax(scores) @ v


def layer_norm(x: Array, w: Weights, name: str, eps: float) -> Array:
    normal = (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + eps)
    return normal * w[f"{name}.weight"] + w[f"{name}.bias"]


def gelu(x: Array, tanh: bool) -> Array:
    if tanh:
        return 0.5 * x * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3)))
    from math import erf

    return 0.5 * x * (1 + np.vectorize(erf)(x / np.sqrt(2)))


def linear(x: Array, w: Weights, name: str) -> Array:
    return x @ w[f"{name}.weight"].T + w.get(f"{name}.bias", 0.0)


def llama(w: Weights, tokens: Array, config: Any) -> Array:
    """Logits [time, vocabulary] of tokens [time]; complex numbers turn the pairs."""
    w = {name: value.astype(np.float64) for name, value in w.items()}
    head, half = config.width // config.heads, config.width // config.heads // 2
    turn = np.exp(
        1j * np.outer(np.arange(len(tokens)), config.rope_base ** (-np.arange(half) * 2 / head))
    )

    def norm(x: Array, name: str) -> Array:
        return x / np.sqrt((x**2).mean(-1, keepdims=True) + config.epsilon) * w[name + ".weight"]

    def turned(x: Array) -> Array:
        pairs = (x[:, :half] + 1j * x[:, half:]) * turn
        return np.concatenate([pairs.real, pairs.imag], axis=1)

    x = w["model.embed_tokens.weight"][tokens]
    for i in range(config.layers):
        at = f"model.layers.{i}"
        y = norm(x, f"{at}.input_layernorm")
        q, k, v = (linear(y, w, f"{at}.self_attn.{n}_proj") for n in "qkv")
        heads = []
        for h in range(config.heads):
            shared = h * config.kv_heads // config.heads
            mine, theirs = (
                slice(h * head, (h + 1) * head),
                slice(shared * head, (shared + 1) * head),
            )
            heads.append(attention(turned(q[:, mine]), turned(k[:, theirs]), v[:, theirs], True))
        x = x + linear(np.concatenate(heads, axis=1), w, f"{at}.self_attn.o_proj")
        y = norm(x, f"{at}.post_attention_layernorm")
        gate = linear(y, w, f"{at}.mlp.gate_proj")
        opened = gate / (1 + np.exp(-gate)) * linear(y, w, f"{at}.mlp.up_proj")
        x = x + linear(opened, w, f"{at}.mlp.down_proj")
    table = w.get("lm_head.weight", w["model.embed_tokens.weight"])
    return norm(x, "model.norm") @ table.T


def gpt2(w: Weights, tokens: Array, config: Any) -> Array:
    """Logits [time, vocabulary] of tokens [time]; weights are [in, out]."""
    w = {name: value.astype(np.float64) for name, value in w.items()}

    def product(x: Array, name: str) -> Array:
        return x @ w[f"{name}.weight"] + w[f"{name}.bias"]

    x = w["wte.weight"][tokens] + w["wpe.weight"][: len(tokens)]
    for i in range(config.layers):
        joint = product(layer_norm(x, w, f"h.{i}.ln_1", config.epsilon), f"h.{i}.attn.c_attn")
        q, k, v = (np.split(part, config.heads, axis=1) for part in np.split(joint, 3, axis=1))
        heads = [attention(*each, True) for each in zip(q, k, v, strict=True)]
        x = x + product(np.concatenate(heads, axis=1), f"h.{i}.attn.c_proj")
        y = product(layer_norm(x, w, f"h.{i}.ln_2", config.epsilon), f"h.{i}.mlp.c_fc")
        x = x + product(gelu(y, tanh=True), f"h.{i}.mlp.c_proj")
    return layer_norm(x, w, "ln_f", config.epsilon) @ w["wte.weight"].T


def bert(w: Weights, tokens: Array, types: Array, config: Any) -> Array:
    """Hidden states [time, width] of tokens [time]."""
    w = {name: value.astype(np.float64) for name, value in w.items()}
    eps = config.epsilon
    x = w["embeddings.word_embeddings.weight"][tokens]
    x = x + w["embeddings.position_embeddings.weight"][: len(tokens)]
    x = x + w["embeddings.token_type_embeddings.weight"][types]
    x = layer_norm(x, w, "embeddings.LayerNorm", eps)
    for i in range(config.layers):
        at = f"encoder.layer.{i}"
        parts = [
            np.split(linear(x, w, f"{at}.attention.self.{n}"), config.heads, axis=1)
            for n in ("query", "key", "value")
        ]
        heads = [attention(*each, False) for each in zip(*parts, strict=True)]
        y = linear(np.concatenate(heads, axis=1), w, f"{at}.attention.output.dense")
        x = layer_norm(x + y, w, f"{at}.attention.output.LayerNorm", eps)
        y = gelu(linear(x, w, f"{at}.intermediate.dense"), tanh=False)
        x = layer_norm(x + linear(y, w, f"{at}.output.dense"), w, f"{at}.output.LayerNorm", eps)
    return x
