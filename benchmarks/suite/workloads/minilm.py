"""The MiniLM encoder of sentences: a BERT of 6 layers, width 384, 12 heads, on one sentence.

What comes out is the mean of the last layer's tokens, at length 1. Weights are drawn. Peers get the
products with queries, keys and values as one.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from suite import with_jax, with_keras, with_onnx, with_torch, with_weft
from suite.task import Arrays, Step, Task, Workload, draw, linear_shapes

EPSILON = 1e-12
PARTS = "query", "key", "value"


def shapes(sizes: Mapping[str, Any]) -> dict[str, tuple[int, ...]]:
    """Of every weight, under Hugging Face's names."""
    width, hidden = sizes["width"], sizes["hidden"]
    tables = {"word": sizes["vocabulary"], "position": sizes["context"], "token_type": 2}
    found = {f"embeddings.{n}_embeddings.weight": (rows, width) for n, rows in tables.items()}
    norms = ["embeddings.LayerNorm"]
    for at in layers(sizes):
        for part in PARTS:
            found |= linear_shapes(f"{at}.attention.self.{part}", width, width)
        found |= linear_shapes(f"{at}.attention.output.dense", width, width)
        found |= linear_shapes(f"{at}.intermediate.dense", width, hidden)
        found |= linear_shapes(f"{at}.output.dense", hidden, width)
        norms += [f"{at}.attention.output.LayerNorm", f"{at}.output.LayerNorm"]
    return found | {f"{norm}.{key}": (width,) for norm in norms for key in ("weight", "bias")}


def layers(sizes: Mapping[str, Any]) -> list[str]:
    """The beginnings of their names."""
    return [f"encoder.layer.{number}" for number in range(sizes["layers"])]


def inputs(sizes: Mapping[str, Any], rng: np.random.Generator) -> tuple[Arrays, Arrays]:
    """Weights, and one sentence."""
    return draw(shapes(sizes), rng), {"x": rng.integers(0, sizes["vocabulary"], (1, sizes["time"]))}


def flops(sizes: Mapping[str, Any]) -> float:
    """Products of every token, and with all keys."""
    width, time = sizes["width"], sizes["time"]
    layer = 8 * width**2 + 4 * width * sizes["hidden"] + 4 * width * time
    return float(sizes["layers"] * time * layer)


def least_bytes(sizes: Mapping[str, Any]) -> float:
    """All weights of the layers are read."""
    known = shapes(sizes).items()
    return 4.0 * sum(float(np.prod(shape)) for name, shape in known if "_embeddings" not in name)


def packed(task: Task) -> Task:
    """The task with one weight for queries, keys and values, and positions with types added."""
    weights = dict(task.weights)
    for at in layers(task.sizes):
        for key in ("weight", "bias"):
            parts = [weights.pop(f"{at}.attention.self.{part}.{key}") for part in PARTS]
            weights[f"{at}.attention.joint.{key}"] = np.concatenate(parts)
    kind = weights.pop("embeddings.token_type_embeddings.weight")[0]
    places = weights.pop("embeddings.position_embeddings.weight")[: task.sizes["time"]]
    weights["places"] = places + kind
    return Task(task.training, task.compiled, task.sizes, weights, task.data)


def in_weft(task: Task) -> Step:
    """Weft's own encoder."""
    import weft as wf

    names = ("vocabulary", "width", "hidden", "layers", "heads", "context")
    config = wf.models.BERTConfig(**{n: task.sizes[n] for n in names}, pooler=False)
    net = with_weft.loaded(wf.models.BERT(config), task)
    embed = lambda net, tokens: net.embed(tokens)  # noqa: E731
    return with_weft.calling(task, embed, net, *with_weft.tensors(task.data))


def in_torch(task: Task) -> Step:
    """PyTorch."""
    import torch
    from torch.nn import functional as F  # noqa: N812

    heads, width = task.sizes["heads"], task.sizes["width"]
    p = {name: torch.from_numpy(array) for name, array in packed(task).weights.items()}

    def linear(name: str, x: Any) -> Any:
        return F.linear(x, p[f"{name}.weight"], p[f"{name}.bias"])

    def norm(name: str, x: Any) -> Any:
        return F.layer_norm(x, (width,), p[f"{name}.weight"], p[f"{name}.bias"], EPSILON)

    def embed(tokens: Any) -> Any:
        x = F.embedding(tokens, p["embeddings.word_embeddings.weight"]) + p["places"]
        x = norm("embeddings.LayerNorm", x)
        for at in layers(task.sizes):
            joined = linear(f"{at}.attention.joint", x).view(1, -1, 3, heads, width // heads)
            y = F.scaled_dot_product_attention(*joined.permute(2, 0, 3, 1, 4))
            y = linear(f"{at}.attention.output.dense", y.transpose(1, 2).reshape(1, -1, width))
            x = norm(f"{at}.attention.output.LayerNorm", x + y)
            y = linear(f"{at}.output.dense", F.gelu(linear(f"{at}.intermediate.dense", x)))
            x = norm(f"{at}.output.LayerNorm", x + y)
        return F.normalize(x.mean(1), dim=-1)

    return with_torch.calling(task, embed, *with_torch.tensors(task.data))


def in_jax(task: Task) -> Step:
    """JAX."""
    import jax
    from jax import numpy as jnp

    heads = task.sizes["heads"]

    def forward(p: Any, buffers: Any, tokens: Any) -> Any:
        x = p["embeddings.word_embeddings.weight"][tokens] + p["places"]
        x = with_jax.norm(p, "embeddings.LayerNorm", x, EPSILON)
        for at in layers(task.sizes):
            joined = with_jax.linear(p, f"{at}.attention.joint", x)
            parts = jnp.split(joined.reshape(1, tokens.shape[1], 3 * heads, -1), 3, axis=2)
            y = jax.nn.dot_product_attention(*parts).reshape(x.shape)
            y = with_jax.linear(p, f"{at}.attention.output.dense", y)
            x = with_jax.norm(p, f"{at}.attention.output.LayerNorm", x + y, EPSILON)
            wide = with_jax.linear(p, f"{at}.intermediate.dense", x)
            y = with_jax.linear(p, f"{at}.output.dense", jax.nn.gelu(wide, approximate=False))
            x = with_jax.norm(p, f"{at}.output.LayerNorm", x + y, EPSILON)
        mean = jnp.mean(x, axis=1)
        return mean / jnp.linalg.norm(mean, axis=-1, keepdims=True), buffers

    return with_jax.applying(packed(task), forward)


def in_keras(task: Task) -> Step:
    """Keras."""
    import keras
    from keras import ops

    own = packed(task)
    heads, width, time = (task.sizes[name] for name in ("heads", "width", "time"))
    tokens = keras.Input((time,), dtype="int32")
    x = with_keras.embedding(own, "embeddings.word_embeddings")(tokens) + own.weights["places"]
    x = with_keras.norm(own, "embeddings.LayerNorm", EPSILON)(x)
    for at in layers(task.sizes):
        joined = with_keras.linear(own, f"{at}.attention.joint")(x)
        parts = ops.split(ops.reshape(joined, (-1, time, 3 * heads, width // heads)), 3, 2)
        y = ops.reshape(ops.dot_product_attention(*parts), (-1, time, width))
        y = with_keras.linear(own, f"{at}.attention.output.dense")(y)
        x = with_keras.norm(own, f"{at}.attention.output.LayerNorm", EPSILON)(x + y)
        wide = ops.gelu(with_keras.linear(own, f"{at}.intermediate.dense")(x), approximate=False)
        y = with_keras.linear(own, f"{at}.output.dense")(wide)
        x = with_keras.norm(own, f"{at}.output.LayerNorm", EPSILON)(x + y)
    return with_keras.applying(own, keras.Model(tokens, ops.normalize(ops.mean(x, 1), axis=-1)))


def in_onnx(task: Task) -> Step:
    """ONNX Runtime, with its own operator of attention."""
    graph = with_onnx.Builder(packed(task))
    options = {"num_heads": task.sizes["heads"], "domain": with_onnx.OWN}
    x = graph.add("Add", graph.add("Gather", "embeddings.word_embeddings.weight", "x"), "places")
    x = graph.norm("embeddings.LayerNorm", x, EPSILON)
    for at in layers(task.sizes):
        parts = graph.split(graph.linear(f"{at}.attention.joint", x), 3)
        y = graph.add("MultiHeadAttention", *parts, **options)
        y = graph.linear(f"{at}.attention.output.dense", y)
        x = graph.norm(f"{at}.attention.output.LayerNorm", graph.add("Add", x, y), EPSILON)
        wide = graph.add("Gelu", graph.linear(f"{at}.intermediate.dense", x))
        y = graph.linear(f"{at}.output.dense", wide)
        x = graph.norm(f"{at}.output.LayerNorm", graph.add("Add", x, y), EPSILON)
    mean = graph.add("ReduceMean", x, graph.constant("time", np.array([1])), keepdims=0)
    return graph.running(graph.add("LpNormalization", mean, axis=-1, p=2))


SIDES = {
    "weft": in_weft,
    "torch": in_torch,
    "jax": in_jax,
    "keras": in_keras,
    "onnx": in_onnx,
}
SIZES = {
    "vocabulary": 30522,
    "width": 384,
    "hidden": 1536,
    "layers": 6,
    "heads": 12,
    "context": 512,
}
QUICK = {"vocabulary": 100, "width": 32, "hidden": 64, "layers": 2, "heads": 2, "context": 16}
WORKLOADS = {
    f"minilm-{time}-infer": Workload(
        title=f"MiniLM encoder, {time} tokens",
        sides=SIDES,
        sizes={**SIZES, "time": time},
        quick={**QUICK, "time": min(time, 16)},
        inputs=inputs,
        flops=flops,
        bytes=least_bytes,
        aim=1.0,
        rivals=("onnx",),
    )
    for time in (12, 128)
}
