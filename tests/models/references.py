"""Forward passes in plain NumPy, written from the papers, one token after the other where easy."""

from __future__ import annotations

from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]
Weights = dict[str, Array]


def softmax(x: Array) -> Array:
    shifted = np.exp(x - x.max(-1, keepdims=True))
    return shifted / shifted.sum(-1, keepdims=True)


def attention(q: Array, k: Array, v: Array, causal: bool, window: int | None = None) -> Array:
    """One head: q [n, d], k and v [m, d]; with a window each sees so many, its own included."""
    scores = q @ k.T / np.sqrt(q.shape[1])
    if causal:
        scores = np.where(np.tril(np.ones(scores.shape, bool)), scores, -np.inf)
    for i in range(len(q) if window else 0):
        scores[i, : max(0, i - (window or 0) + 1)] = -np.inf
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


def llama(w: Weights, tokens: Array, config: Any, windows: tuple[int | None, ...] = ()) -> Array:
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
            query, key = q[:, mine], k[:, theirs]
            if f"{at}.self_attn.q_norm.weight" in w:
                query = norm(query, f"{at}.self_attn.q_norm")
                key = norm(key, f"{at}.self_attn.k_norm")
            window = windows[i] if windows else None
            heads.append(attention(turned(query), turned(key), v[:, theirs], True, window))
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


def heads_of(
    w: Weights, x: Array, other: Array, at: str, names: str, heads: int, causal: bool
) -> Array:
    """Attention of x over other, a head at a time; names: of the four projections."""
    query, key, value, out = (f"{at}.{name}" for name in names.split())
    parts = [
        np.split(linear(source, w, name), heads, axis=1)
        for source, name in ((x, query), (other, key), (other, value))
    ]
    return linear(
        np.concatenate([attention(*each, causal) for each in zip(*parts, strict=True)], axis=1),
        w,
        out,
    )


def patches(image: Array, weight: Array) -> Array:
    """A picture [channels, height, width] as rows of products with the filters [width, ...]."""
    size = weight.shape[2]
    rows = []
    for top in range(0, image.shape[1], size):
        for left in range(0, image.shape[2], size):
            patch = image[:, top : top + size, left : left + size]
            rows.append([(patch * each).sum() for each in weight])
    return np.array(rows)


def vit(w: Weights, image: Array, config: Any) -> Array:
    """Logits [labels] of one picture."""
    w = {name: value.astype(np.float64) for name, value in w.items()}
    at = "embeddings.patch_embeddings.projection"
    rows = patches(image, w[f"{at}.weight"]) + w[f"{at}.bias"]
    x = (
        np.concatenate([w["embeddings.cls_token"][0], rows])
        + w["embeddings.position_embeddings"][0]
    )
    names = "attention.query attention.key attention.value output.dense"
    for i in range(config.layers):
        at, eps = f"encoder.layer.{i}", config.epsilon
        y = layer_norm(x, w, f"{at}.layernorm_before", eps)
        x = x + heads_of(w, y, y, f"{at}.attention", names, config.heads, False)
        y = linear(layer_norm(x, w, f"{at}.layernorm_after", eps), w, f"{at}.intermediate.dense")
        x = x + linear(gelu(y, tanh=False), w, f"{at}.output.dense")
    return linear(layer_norm(x, w, "layernorm", config.epsilon)[:1], w, "classifier")[0]


PROJECTIONS = "q_proj k_proj v_proj out_proj"


def clip_layers(w: Weights, x: Array, at: str, config: Any, causal: bool) -> Array:
    for i in range(config.layers):
        layer = f"{at}.encoder.layers.{i}"
        y = layer_norm(x, w, f"{layer}.layer_norm1", config.epsilon)
        x = x + heads_of(w, y, y, f"{layer}.self_attn", PROJECTIONS, config.heads, causal)
        y = linear(layer_norm(x, w, f"{layer}.layer_norm2", config.epsilon), w, f"{layer}.mlp.fc1")
        x = x + linear(y / (1 + np.exp(-1.702 * y)), w, f"{layer}.mlp.fc2")
    return x


def clip(w: Weights, tokens: Array, image: Array, config: Any) -> float:
    """How well one picture fits one text."""
    w = {name: np.asarray(value, np.float64) for name, value in w.items()}
    at = "text_model"
    x = w[f"{at}.embeddings.token_embedding.weight"][tokens]
    x = x + w[f"{at}.embeddings.position_embedding.weight"][: len(tokens)]
    x = clip_layers(w, x, at, config.text, True)
    x = layer_norm(x, w, f"{at}.final_layer_norm", config.text.epsilon)
    end = list(tokens).index(config.text.end) if config.text.end != 2 else int(np.argmax(tokens))
    text = w["text_projection.weight"] @ x[end]
    at = "vision_model"
    rows = patches(image, w[f"{at}.embeddings.patch_embedding.weight"])
    x = np.concatenate([w[f"{at}.embeddings.class_embedding"][None], rows])
    x = x + w[f"{at}.embeddings.position_embedding.weight"]
    x = layer_norm(x, w, f"{at}.pre_layrnorm", config.vision.epsilon)
    x = clip_layers(w, x, at, config.vision, False)
    x = layer_norm(x[:1], w, f"{at}.post_layernorm", config.vision.epsilon)[0]
    seen = w["visual_projection.weight"] @ x
    product = seen @ text / np.linalg.norm(seen) / np.linalg.norm(text)
    return float(product * np.exp(w["logit_scale"]))


def convolve(x: Array, w: Weights, name: str, stride: int) -> Array:
    """x [channels, length] by filters of three, with zeros at both ends."""
    padded = np.pad(x, ((0, 0), (1, 1)))
    steps = range(0, x.shape[1], stride)
    columns = [
        [(padded[:, step : step + 3] * each).sum() for each in w[f"{name}.weight"]]
        for step in steps
    ]
    return np.array(columns).T + w[f"{name}.bias"][:, None]


def whisper(w: Weights, spectrogram: Array, tokens: Array, config: Any) -> Array:
    """Logits [time, vocabulary] of one sound [mels, frames] and tokens [time]."""
    w = {name: value.astype(np.float64) for name, value in w.items()}

    def feed_forward(x: Array, at: str) -> Array:
        y = linear(layer_norm(x, w, f"{at}.final_layer_norm", 1e-5), w, f"{at}.fc1")
        return x + linear(gelu(y, tanh=False), w, f"{at}.fc2")

    at = "model.encoder"
    x = gelu(convolve(spectrogram, w, f"{at}.conv1", 1), tanh=False)
    x = gelu(convolve(x, w, f"{at}.conv2", 2), tanh=False).T
    x = x + w[f"{at}.embed_positions.weight"][: len(x)]
    for i in range(config.layers):
        y = layer_norm(x, w, f"{at}.layers.{i}.self_attn_layer_norm", 1e-5)
        attended = heads_of(w, y, y, f"{at}.layers.{i}.self_attn", PROJECTIONS, config.heads, False)
        x = feed_forward(x + attended, f"{at}.layers.{i}")
    sound = layer_norm(x, w, f"{at}.layer_norm", 1e-5)
    at = "model.decoder"
    x = w[f"{at}.embed_tokens.weight"][tokens] + w[f"{at}.embed_positions.weight"][: len(tokens)]
    for i in range(config.decoder_layers):
        layer, heads = f"{at}.layers.{i}", config.decoder_heads
        y = layer_norm(x, w, f"{layer}.self_attn_layer_norm", 1e-5)
        x = x + heads_of(w, y, y, f"{layer}.self_attn", PROJECTIONS, heads, True)
        y = layer_norm(x, w, f"{layer}.encoder_attn_layer_norm", 1e-5)
        x = x + heads_of(w, y, sound, f"{layer}.encoder_attn", PROJECTIONS, heads, False)
        x = feed_forward(x, layer)
    return layer_norm(x, w, f"{at}.layer_norm", 1e-5) @ w[f"{at}.embed_tokens.weight"].T
