"""A perceptron 784-512-512-10: training with Adam on 128 images, and one image."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise
from typing import Any

import numpy as np

from suite import with_jax, with_keras, with_onnx, with_torch, with_weft
from suite.task import Arrays, Step, Task, Workload, draw, linear_shapes, normal, training_flops

RATE = 1e-4


def inputs(sizes: Mapping[str, Any], rng: np.random.Generator) -> tuple[Arrays, Arrays]:
    """Weights of each layer; rows and labels."""
    shapes: dict[str, tuple[int, ...]] = {}
    for number, (before, after) in enumerate(pairwise(sizes["widths"])):
        shapes |= linear_shapes(f"layers.{number}", before, after)
    x = normal(rng, sizes["batch"], sizes["widths"][0])
    labels = {"y": rng.integers(0, sizes["widths"][-1], sizes["batch"])} if sizes["train"] else {}
    return draw(shapes, rng), {"x": x, **labels}


def flops(sizes: Mapping[str, Any]) -> float:
    """The products of all layers."""
    products = [2.0 * sizes["batch"] * a * b for a, b in pairwise(sizes["widths"])]
    return training_flops(products) if sizes["train"] else sum(products)


def in_weft(task: Task) -> Step:
    """Weft."""
    import weft as wf

    net = with_weft.loaded(wf.models.MLP(task.sizes["widths"]), task)
    data = with_weft.tensors(task.data)
    if not task.training:
        return with_weft.applying(task, net, data)
    optimizer = wf.optim.Adam(net.parameters(), lr=RATE)
    return with_weft.training(task, net, optimizer, with_weft.classification, data)


def in_torch(task: Task) -> Step:
    """PyTorch."""
    import torch
    from torch import nn

    class MLP(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            pairs = pairwise(task.sizes["widths"])
            self.layers = nn.ModuleList([nn.Linear(*pair) for pair in pairs])

        def forward(self, x: Any) -> Any:
            *hidden, last = self.layers
            for layer in hidden:
                x = torch.relu(layer(x))
            return last(x)

    net = with_torch.loaded(MLP(), task)
    data = with_torch.tensors(task.data)
    if not task.training:
        return with_torch.applying(task, net, data)
    optimizer = torch.optim.Adam(net.parameters(), lr=RATE, fused=True)
    return with_torch.training(task, net, optimizer, with_torch.classification, data)


def in_jax(task: Task) -> Step:
    """JAX."""
    import jax

    last = len(task.sizes["widths"]) - 2

    def forward(p: Any, buffers: Any, x: Any) -> Any:
        for number in range(last):
            x = jax.nn.relu(with_jax.linear(p, f"layers.{number}", x))
        return with_jax.linear(p, f"layers.{last}", x), buffers

    if not task.training:
        return with_jax.applying(task, forward)
    return with_jax.training(task, with_jax.classification(forward), with_jax.adam(RATE))


def in_keras(task: Task) -> Step:
    """Keras."""
    import keras

    last = len(task.sizes["widths"]) - 2
    hidden = [with_keras.linear(task, f"layers.{i}", "relu") for i in range(last)]
    model = keras.Sequential([*hidden, with_keras.linear(task, f"layers.{last}")])
    model.build((None, task.sizes["widths"][0]))
    if not task.training:
        return with_keras.applying(task, model)
    optimizer = keras.optimizers.Adam(RATE, epsilon=1e-8)
    return with_keras.training(task, model, optimizer, with_keras.classification)


def in_onnx(task: Task) -> Step:
    """ONNX Runtime."""
    graph = with_onnx.Builder(task)
    last = len(task.sizes["widths"]) - 2
    x = "x"
    for number in range(last):
        x = graph.add("Relu", graph.linear(f"layers.{number}", x))
    return graph.running(graph.linear(f"layers.{last}", x))


SIZES = {"widths": [784, 512, 512, 10], "batch": 128, "train": True}
QUICK = {"widths": [20, 16, 16, 10], "batch": 8}
TRAINED = {"weft": in_weft, "torch": in_torch, "jax": in_jax, "keras": in_keras}
WORKLOADS = {
    "mlp": Workload(
        title="MLP 784-512-512-10, batch 128, Adam",
        sides=TRAINED,
        sizes=SIZES,
        quick=QUICK,
        inputs=inputs,
        flops=flops,
        training=True,
        aim=0.9,
    ),
    "mlp-infer": Workload(
        title="MLP, one image",
        sides={**TRAINED, "onnx": in_onnx},
        sizes={**SIZES, "batch": 1, "train": False},
        quick={**QUICK, "batch": 1},
        inputs=inputs,
        flops=flops,
        bytes=lambda sizes: 4.0 * sum(a * b for a, b in pairwise(sizes["widths"])),
        aim=1.0,
        rivals=("onnx",),
    ),
}
