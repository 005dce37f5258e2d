"""A GPT of 4 layers, width 256, 8 heads, 65 characters: AdamW on 8×256 tokens, and one sequence.

The head is the table of tokens (tied), GELU is exact, there is no dropout, all layers have biases.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import numpy as np

from suite import with_jax, with_keras, with_onnx, with_torch, with_weft
from suite.task import Arrays, Step, Task, Workload, draw, linear_shapes

RATE = 1e-4
DECAY = 0.01


def shapes(sizes: Mapping[str, Any]) -> dict[str, tuple[int, ...]]:
    """Of every weight, under nanoGPT's names."""
    width = sizes["width"]
    norm = {"weight": (width,), "bias": (width,)}
    found = {"wte.weight": (sizes["vocabulary"], width), "wpe.weight": (sizes["context"], width)}
    for number in range(sizes["layers"]):
        layer = f"h.{number}"
        found |= {f"{layer}.ln_1.{key}": shape for key, shape in norm.items()}
        found |= linear_shapes(f"{layer}.attn.c_attn", width, 3 * width)
        found |= linear_shapes(f"{layer}.attn.c_proj", width, width)
        found |= {f"{layer}.ln_2.{key}": shape for key, shape in norm.items()}
        found |= linear_shapes(f"{layer}.mlp.c_fc", width, 4 * width)
        found |= linear_shapes(f"{layer}.mlp.c_proj", 4 * width, width)
    return found | {f"ln_f.{key}": shape for key, shape in norm.items()}


def inputs(sizes: Mapping[str, Any], rng: np.random.Generator) -> tuple[Arrays, Arrays]:
    """Weights; random tokens and what follows them."""
    weights = draw(shapes(sizes), rng)
    tokens = rng.integers(0, sizes["vocabulary"], (sizes["batch"], sizes["context"] + 1))
    tokens = np.ascontiguousarray(tokens)
    labels = {"y": np.ascontiguousarray(tokens[:, 1:])} if sizes["train"] else {}
    return weights, {"x": np.ascontiguousarray(tokens[:, :-1]), **labels}


def flops(sizes: Mapping[str, Any]) -> float:
    """Products of every token, and with the keys it may see: half of all."""
    width, time = sizes["width"], sizes["context"]
    token = sizes["layers"] * (24 * width**2 + 2 * width * time) + 2 * width * sizes["vocabulary"]
    return (3.0 if sizes["train"] else 1.0) * sizes["batch"] * time * token


def weft_net(task: Task) -> Any:
    """Weft's own GPT."""
    import weft as wf

    names = ("vocabulary", "width", "layers", "heads", "context")
    config = wf.models.GPTConfig(**{name: task.sizes[name] for name in names})
    return with_weft.loaded(wf.models.GPT(config), task)


def in_weft(task: Task) -> Step:
    """Weft."""
    import weft as wf

    net = weft_net(task)
    data = with_weft.tensors(task.data)
    if not task.training:
        return with_weft.applying(task, net, data)
    optimizer = wf.optim.AdamW(net.parameters(), lr=RATE, weight_decay=DECAY)
    return with_weft.training(task, net, optimizer, with_weft.classification, data)


def torch_net(task: Task) -> Any:
    """nanoGPT's modules, with a cache for generation."""
    import torch
    from torch import nn
    from torch.nn import functional as F  # noqa: N812

    width, heads = task.sizes["width"], task.sizes["heads"]

    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.ln_1, self.ln_2 = nn.LayerNorm(width), nn.LayerNorm(width)
            attention = {"c_attn": nn.Linear(width, 3 * width), "c_proj": nn.Linear(width, width)}
            wide = {"c_fc": nn.Linear(width, 4 * width), "c_proj": nn.Linear(4 * width, width)}
            self.attn, self.mlp = nn.ModuleDict(attention), nn.ModuleDict(wide)

        def forward(self, x: Any, cache: Any, position: Any) -> Any:
            batch, time, _ = x.shape
            parts = self.attn["c_attn"](self.ln_1(x)).split(width, dim=2)
            q, k, v = (p.view(batch, time, heads, -1).transpose(1, 2) for p in parts)
            if cache is None:
                y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
            else:  # cache [2, batch, heads, capacity, head]
                cache[0].index_copy_(2, position, k)
                cache[1].index_copy_(2, position, v)
                seen = torch.arange(cache.shape[3], device=position.device) <= position
                y = F.scaled_dot_product_attention(q, cache[0], cache[1], seen[None])
            x = x + self.attn["c_proj"](y.transpose(1, 2).reshape(batch, time, width))
            return x + self.mlp["c_proj"](F.gelu(self.mlp["c_fc"](self.ln_2(x))))

    class GPT(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.wte = nn.Embedding(task.sizes["vocabulary"], width)
            self.wpe = nn.Embedding(task.sizes["context"], width)
            self.h = nn.ModuleList([Block() for _ in range(task.sizes["layers"])])
            self.ln_f = nn.LayerNorm(width)

        def forward(self, tokens: Any, caches: Any = None, position: Any = None) -> Any:
            places = position
            if places is None:
                places = torch.arange(tokens.shape[1], device=tokens.device)
            x = self.wte(tokens) + self.wpe(places)
            for number, block in enumerate(self.h):
                x = block(x, None if caches is None else caches[number], position)
            return F.linear(self.ln_f(x), self.wte.weight)

    return with_torch.loaded(GPT(), task)


def in_torch(task: Task) -> Step:
    """PyTorch."""
    import torch

    net = torch_net(task)
    data = with_torch.tensors(task.data)
    if not task.training:
        return with_torch.applying(task, net, data)
    options = {"lr": RATE, "weight_decay": DECAY, "fused": True}
    optimizer = torch.optim.AdamW(net.parameters(), **options)
    return with_torch.training(task, net, optimizer, with_torch.classification, data)


def jax_forward(sizes: Mapping[str, Any]) -> Any:
    """Logits of (weights, caches, tokens, position); without caches the whole sequence at once."""
    import jax
    from jax import numpy as jnp

    norm = with_jax.norm

    def attend(q: Any, k: Any, v: Any, cache: Any, position: Any) -> Any:
        if cache is None:
            return jax.nn.dot_product_attention(q, k, v, is_causal=True), None
        put = jax.lax.dynamic_update_slice_in_dim  # cache: two of [batch, capacity, heads, head]
        cache = [put(old, new, position, 1) for old, new in zip(cache, (k, v), strict=True)]
        seen = (jnp.arange(cache[0].shape[1]) <= position)[None, None, None]
        return jax.nn.dot_product_attention(q, *cache, mask=seen), cache

    def forward(p: Any, caches: Any, tokens: Any, position: Any = 0) -> Any:
        batch, time = tokens.shape
        places = jnp.arange(time) + position
        x = p["wte.weight"][tokens] + p["wpe.weight"][places]
        after = []
        for number in range(sizes["layers"]):
            at = f"h.{number}"
            joined = with_jax.linear(p, f"{at}.attn.c_attn", norm(p, f"{at}.ln_1", x))
            parts = jnp.split(joined.reshape(batch, time, 3 * sizes["heads"], -1), 3, axis=2)
            y, cache = attend(*parts, caches[number] if caches else None, position)
            after.append(cache)
            x = x + with_jax.linear(p, f"{at}.attn.c_proj", y.reshape(batch, time, -1))
            wide = with_jax.linear(p, f"{at}.mlp.c_fc", norm(p, f"{at}.ln_2", x))
            wide = jax.nn.gelu(wide, approximate=False)
            x = x + with_jax.linear(p, f"{at}.mlp.c_proj", wide)
        return norm(p, "ln_f", x) @ p["wte.weight"].T, after

    return forward


def in_jax(task: Task) -> Step:
    """JAX."""
    whole = jax_forward(task.sizes)

    def forward(p: Any, buffers: Any, tokens: Any) -> Any:
        return whole(p, None, tokens)[0], buffers

    if not task.training:
        return with_jax.applying(task, forward)
    optimizer = with_jax.adam(RATE, DECAY)
    return with_jax.training(task, with_jax.classification(forward), optimizer)


Attend = Callable[[Any, Any, Any], Any]
"""Queries, keys and values [batch, time, heads, head] to what the queries find."""


def keras_block(task: Task, at: str) -> Callable[[Any, Attend], Any]:
    """One layer, as a function of its input and of the attention."""
    from keras import ops

    heads, width = task.sizes["heads"], task.sizes["width"]
    first, second = (with_keras.norm(task, f"{at}.{name}") for name in ("ln_1", "ln_2"))
    names = ("attn.c_attn", "attn.c_proj", "mlp.c_fc", "mlp.c_proj")
    joint, out, wide, narrow = (with_keras.linear(task, f"{at}.{name}") for name in names)

    def block(x: Any, attend: Attend) -> Any:
        time = x.shape[1]
        parts = ops.split(ops.reshape(joint(first(x)), (-1, time, 3 * heads, width // heads)), 3, 2)
        x = x + out(ops.reshape(attend(*parts), (-1, time, width)))
        return x + narrow(ops.gelu(wide(second(x)), approximate=False))

    return block


def keras_tables(task: Task) -> tuple[Any, Any]:
    """The tables of tokens, which is the head, too, and of places."""
    import keras

    table = keras.layers.ReversibleEmbedding(task.sizes["vocabulary"], task.sizes["width"])
    table.build((None,))
    with_keras.assign(table, task.weights["wte.weight"])
    return table, with_keras.embedding(task, "wpe")


def in_keras(task: Task) -> Step:
    """Keras."""
    import keras
    from keras import ops

    tokens = keras.Input((task.sizes["context"],), dtype="int32")
    table, places = keras_tables(task)
    # counted from the tokens: of a constant, Keras would keep the result and not train the layer
    x = table(tokens) + places(ops.cumsum(ops.ones_like(tokens), axis=1) - 1)
    causal = partial(ops.dot_product_attention, is_causal=True)
    for number in range(task.sizes["layers"]):
        x = keras_block(task, f"h.{number}")(x, causal)
    model = keras.Model(tokens, table(with_keras.norm(task, "ln_f")(x), reverse=True))
    if not task.training:
        return with_keras.applying(task, model)
    optimizer = keras.optimizers.AdamW(RATE, weight_decay=DECAY, epsilon=1e-8)
    return with_keras.training(task, model, optimizer, with_keras.classification)


def in_onnx(task: Task) -> Step:
    """ONNX Runtime."""
    graph = with_onnx.Builder(task)
    time, heads, width = (task.sizes[name] for name in ("context", "heads", "width"))
    mask = graph.constant("mask", np.triu(np.full((time, time), -np.inf, np.float32), 1))
    scale = graph.constant("scale", np.float32((width / heads) ** -0.5))

    def attend(joined: str) -> str:
        parts = [graph.reshape(part, 1, time, heads, -1) for part in graph.split(joined, 3)]
        orders = ([0, 2, 1, 3], [0, 2, 3, 1], [0, 2, 1, 3])
        q, k, v = (graph.add("Transpose", p, perm=o) for p, o in zip(parts, orders, strict=True))
        scores = graph.add("Add", graph.add("Mul", graph.add("MatMul", q, k), scale), mask)
        y = graph.add("MatMul", graph.add("Softmax", scores, axis=-1), v)
        return graph.reshape(graph.add("Transpose", y, perm=[0, 2, 1, 3]), 1, time, width)

    x = graph.add("Add", graph.add("Gather", "wte.weight", "x"), "wpe.weight")
    for number in range(task.sizes["layers"]):
        x = onnx_block(graph, f"h.{number}", x, attend)
    return graph.running(graph.add("MatMul", graph.norm("ln_f", x), graph.turned("wte.weight")))


def onnx_block(graph: Any, at: str, x: str, attend: Callable[[str], str]) -> str:
    """One layer; `attend` is given queries, keys and values side by side."""
    y = attend(graph.linear(f"{at}.attn.c_attn", graph.norm(f"{at}.ln_1", x)))
    x = graph.add("Add", x, graph.linear(f"{at}.attn.c_proj", y))
    wide = graph.add("Gelu", graph.linear(f"{at}.mlp.c_fc", graph.norm(f"{at}.ln_2", x)))
    return str(graph.add("Add", x, graph.linear(f"{at}.mlp.c_proj", wide)))


SIZES = {"vocabulary": 65, "width": 256, "layers": 4, "heads": 8, "context": 256}
QUICK = {"width": 32, "layers": 2, "heads": 2, "context": 16, "batch": 2}
TRAINED = {"weft": in_weft, "torch": in_torch, "jax": in_jax, "keras": in_keras}
WORKLOADS = {
    "gpt": Workload(
        title="GPT 4 layers, width 256, batch 8×256, AdamW",
        sides=TRAINED,
        sizes={**SIZES, "batch": 8, "train": True},
        quick=QUICK,
        inputs=inputs,
        flops=flops,
        training=True,
        aim=0.8,
    ),
    "gpt-infer": Workload(
        title="GPT, one sequence of 256",
        sides={**TRAINED, "onnx": in_onnx},
        sizes={**SIZES, "batch": 1, "train": False},
        quick={**QUICK, "batch": 1},
        inputs=inputs,
        flops=flops,
        aim=1.0,
        rivals=("onnx",),
    ),
}
