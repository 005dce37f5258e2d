"""A language model of two LSTM layers, width 256, 65 characters: Adam on 32×64 tokens; one text."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from suite import with_jax, with_keras, with_onnx, with_torch, with_weft
from suite.task import Arrays, Step, Task, Workload, draw, linear_shapes

RATE = 1e-3


def inputs(sizes: Mapping[str, Any], rng: np.random.Generator) -> tuple[Arrays, Arrays]:
    """Weights; random tokens and what follows them."""
    width, vocabulary = sizes["width"], sizes["vocabulary"]
    shapes: dict[str, tuple[int, ...]] = {"embedding.weight": (vocabulary, width)}
    for layer in range(sizes["layers"]):
        for key in ("ih", "hh"):
            shapes[f"lstm.weight_{key}_l{layer}"] = (4 * width, width)
            shapes[f"lstm.bias_{key}_l{layer}"] = (4 * width,)
    shapes |= linear_shapes("head", width, vocabulary)
    tokens = rng.integers(0, vocabulary, (sizes["batch"], sizes["time"] + 1))
    labels = {"y": np.ascontiguousarray(tokens[:, 1:])} if sizes["train"] else {}
    return draw(shapes, rng), {"x": np.ascontiguousarray(tokens[:, :-1]), **labels}


def flops(sizes: Mapping[str, Any]) -> float:
    """Two products per layer and the head, for every token."""
    width = sizes["width"]
    token = 2.0 * (sizes["layers"] * 8 * width**2 + width * sizes["vocabulary"])
    return (3 if sizes["train"] else 1) * sizes["batch"] * sizes["time"] * token


def in_weft(task: Task) -> Step:
    """Weft."""
    import weft as wf

    sizes = [task.sizes[name] for name in ("vocabulary", "width", "layers")]
    net = with_weft.loaded(wf.models.LSTMLanguageModel(*sizes), task)
    data = with_weft.tensors(task.data)
    if not task.training:
        return with_weft.applying(task, net, data)
    optimizer = wf.optim.Adam(net.parameters(), lr=RATE)
    return with_weft.training(task, net, optimizer, with_weft.classification, data)


def in_torch(task: Task) -> Step:
    """PyTorch."""
    import torch
    from torch import nn

    width, vocabulary = task.sizes["width"], task.sizes["vocabulary"]

    class LanguageModel(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embedding = nn.Embedding(vocabulary, width)
            self.lstm = nn.LSTM(width, width, task.sizes["layers"], batch_first=True)
            self.head = nn.Linear(width, vocabulary)

        def forward(self, tokens: Any) -> Any:
            return self.head(self.lstm(self.embedding(tokens))[0])

    net = with_torch.loaded(LanguageModel(), task)
    data = with_torch.tensors(task.data)
    if not task.training:
        return with_torch.applying(task, net, data)
    optimizer = torch.optim.Adam(net.parameters(), lr=RATE, fused=True)
    return with_torch.training(task, net, optimizer, with_torch.classification, data)


def in_jax(task: Task) -> Step:
    """JAX: the products with the inputs of all steps at once, the rest in a scan."""
    import jax
    from jax import numpy as jnp

    def layer(p: Any, number: int, x: Any) -> Any:  # x [time, batch, width]
        weight = {key: p[f"lstm.weight_{key}_l{number}"].T for key in ("ih", "hh")}
        bias = p[f"lstm.bias_ih_l{number}"] + p[f"lstm.bias_hh_l{number}"]

        def cell(state: Any, given: Any) -> Any:
            h, c = state
            i, f, g, o = jnp.split(given + h @ weight["hh"], 4, axis=1)
            c = jax.nn.sigmoid(f) * c + jax.nn.sigmoid(i) * jnp.tanh(g)
            h = jax.nn.sigmoid(o) * jnp.tanh(c)
            return (h, c), h

        zeros = jnp.zeros(x.shape[1:])
        return jax.lax.scan(cell, (zeros, zeros), x @ weight["ih"] + bias)[1]

    def forward(p: Any, buffers: Any, tokens: Any) -> Any:
        x = p["embedding.weight"][tokens.T]
        for number in range(task.sizes["layers"]):
            x = layer(p, number, x)
        return with_jax.linear(p, "head", x.swapaxes(0, 1)), buffers

    if not task.training:
        return with_jax.applying(task, forward)
    return with_jax.training(task, with_jax.classification(forward), with_jax.adam(RATE))


def in_keras(task: Task) -> Step:
    """Keras: one bias, and the same order of gates."""
    import keras

    width = task.sizes["width"]
    tokens = keras.Input((task.sizes["time"],), dtype="int32")
    x = with_keras.embedding(task, "embedding")(tokens)
    for number in range(task.sizes["layers"]):
        layer = keras.layers.LSTM(width, return_sequences=True)
        x = layer(x)
        given = {key: array for key, array in task.weights.items() if key.endswith(f"l{number}")}
        bias = sum(array for key, array in given.items() if "bias" in key)
        weights = [given[f"lstm.weight_{key}_l{number}"].T for key in ("ih", "hh")]
        with_keras.assign(layer, *weights, bias)
    model = keras.Model(tokens, with_keras.linear(task, "head")(x))
    if not task.training:
        return with_keras.applying(task, model)
    optimizer = keras.optimizers.Adam(RATE, epsilon=1e-8)
    return with_keras.training(task, model, optimizer, with_keras.classification)


def in_onnx(task: Task) -> Step:
    """ONNX Runtime: its own order of gates, a direction as an axis, and time first."""
    graph = with_onnx.Builder(task)
    time, width = task.sizes["time"], task.sizes["width"]

    def gates(name: str) -> np.ndarray:
        i, f, g, o = np.split(task.weights[f"lstm.{name}"], 4)
        return np.concatenate([i, o, f, g])

    x = graph.add("Gather", "embedding.weight", graph.reshape("x", time, 1))
    for number in range(task.sizes["layers"]):
        weights = [
            graph.constant(f"{key}.{number}", gates(f"weight_{key}_l{number}")[None])
            for key in ("ih", "hh")
        ]
        both = np.concatenate([gates(f"bias_{key}_l{number}") for key in ("ih", "hh")])
        bias = graph.constant(f"bias.{number}", both[None])
        y = graph.add("LSTM", x, *weights, bias, hidden_size=width)
        x = graph.reshape(y, time, 1, width)
    return graph.running(graph.linear("head", graph.reshape(x, 1, time, width)))


SIDES = {"weft": in_weft, "torch": in_torch, "jax": in_jax, "keras": in_keras}
SIZES = {"vocabulary": 65, "width": 256, "layers": 2, "time": 64}
QUICK = {"width": 16, "time": 8}
WORKLOADS = {
    "lstm": Workload(
        title="LSTM 2 layers, width 256, batch 32×64, Adam",
        sides=SIDES,
        sizes={**SIZES, "batch": 32, "train": True},
        quick={**QUICK, "batch": 4},
        inputs=inputs,
        flops=flops,
        training=True,
        aim=0.7,
        rivals=("torch", "torch-compile"),
    ),
    "lstm-infer": Workload(
        title="LSTM, one text of 64",
        sides={**SIDES, "onnx": in_onnx},
        sizes={**SIZES, "batch": 1, "train": False},
        quick=QUICK,
        inputs=inputs,
        flops=flops,
        aim=1.0,
        rivals=("onnx",),
    ),
}
