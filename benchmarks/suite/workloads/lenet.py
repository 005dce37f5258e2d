"""LeNet (20 and 50 filters of 5×5, 500 hidden): SGD with momentum on 64 images, and one image."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from suite import with_jax, with_keras, with_onnx, with_torch, with_weft
from suite.task import Arrays, Step, Task, Workload, draw, linear_shapes, normal, training_flops

RATE = 0.01
ADAM, ADAM_RATE = "Adam", 1e-3
"""The other rule that `sizes["rule"]` may name, on Weft's side and PyTorch's."""
FLAT = 50 * 4 * 4


def inputs(sizes: Mapping[str, Any], rng: np.random.Generator) -> tuple[Arrays, Arrays]:
    """Weights; images of 28×28 and labels."""
    shapes = {
        "conv1.weight": (20, 1, 5, 5),
        "conv1.bias": (20,),
        "conv2.weight": (50, 20, 5, 5),
        "conv2.bias": (50,),
        **linear_shapes("hidden", FLAT, 500),
        **linear_shapes("out", 500, 10),
    }
    batch = sizes["batch"]
    labels = {"y": rng.integers(0, 10, batch)} if sizes["train"] else {}
    return draw(shapes, rng), {"x": normal(rng, batch, 1, 28, 28), **labels}


def flops(sizes: Mapping[str, Any]) -> float:
    """Two convolutions and two layers."""
    places = [24 * 24 * 20 * 25, 8 * 8 * 50 * 20 * 25, FLAT * 500, 500 * 10]
    products = [2.0 * sizes["batch"] * count for count in places]
    return training_flops(products) if sizes["train"] else sum(products)


def in_weft(task: Task) -> Step:
    """Weft."""
    import weft as wf

    net = with_weft.loaded(wf.models.LeNet(), task)
    data = with_weft.tensors(task.data)
    if not task.training:
        return with_weft.applying(task, net, data)
    if task.sizes.get("rule") == ADAM:
        optimizer: Any = wf.optim.Adam(net.parameters(), lr=ADAM_RATE)
    else:
        optimizer = wf.optim.SGD(net.parameters(), lr=RATE, momentum=0.9)
    return with_weft.training(task, net, optimizer, with_weft.classification, data)


def in_torch(task: Task) -> Step:
    """PyTorch."""
    import torch
    from torch import nn
    from torch.nn import functional as F  # noqa: N812

    class LeNet(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv1, self.conv2 = nn.Conv2d(1, 20, 5), nn.Conv2d(20, 50, 5)
            self.hidden, self.out = nn.Linear(FLAT, 500), nn.Linear(500, 10)

        def forward(self, x: Any) -> Any:
            x = F.max_pool2d(F.relu(self.conv1(x)), 2)
            x = F.max_pool2d(F.relu(self.conv2(x)), 2)
            return self.out(F.relu(self.hidden(x.flatten(1))))

    net = with_torch.loaded(LeNet(), task)
    data = with_torch.tensors(task.data)
    if not task.training:
        return with_torch.applying(task, net, data)
    if task.sizes.get("rule") == ADAM:
        optimizer: Any = torch.optim.Adam(net.parameters(), lr=ADAM_RATE, fused=True)
    else:
        optimizer = torch.optim.SGD(net.parameters(), lr=RATE, momentum=0.9, fused=True)
    return with_torch.training(task, net, optimizer, with_torch.classification, data)


def in_jax(task: Task) -> Step:
    """JAX."""
    import jax
    from jax import lax
    from jax import numpy as jnp

    def block(p: Any, name: str, x: Any) -> Any:
        y = lax.conv_general_dilated(x, p[f"{name}.weight"], (1, 1), "VALID")
        y = jax.nn.relu(y + p[f"{name}.bias"][:, None, None])
        return lax.reduce_window(y, -jnp.inf, lax.max, (1, 1, 2, 2), (1, 1, 2, 2), "VALID")

    def forward(p: Any, buffers: Any, x: Any) -> Any:
        x = block(p, "conv2", block(p, "conv1", x))
        x = jax.nn.relu(with_jax.linear(p, "hidden", x.reshape(len(x), -1)))
        return with_jax.linear(p, "out", x), buffers

    if not task.training:
        return with_jax.applying(task, forward)
    return with_jax.training(task, with_jax.classification(forward), with_jax.momentum(RATE))


def in_keras(task: Task) -> Step:
    """Keras, with its own order of axes: channels last."""
    import keras

    x = start = keras.Input((28, 28, 1))
    for name, filters in (("conv1", 20), ("conv2", 50)):
        layer = keras.layers.Conv2D(filters, 5, activation="relu")
        x = keras.layers.MaxPooling2D(2)(layer(x))
        kernel = task.weights[f"{name}.weight"].transpose(2, 3, 1, 0)
        with_keras.assign(layer, kernel, task.weights[f"{name}.bias"])
    x = keras.layers.Flatten()(keras.layers.Permute((3, 1, 2))(x))
    x = with_keras.linear(task, "hidden", "relu")(x)
    model = keras.Model(start, with_keras.linear(task, "out")(x))
    task.data["x"] = task.data["x"].transpose(0, 2, 3, 1)
    if not task.training:
        return with_keras.applying(task, model)
    optimizer = keras.optimizers.SGD(RATE, momentum=0.9)
    return with_keras.training(task, model, optimizer, with_keras.classification)


def in_onnx(task: Task) -> Step:
    """ONNX Runtime."""
    graph = with_onnx.Builder(task)
    x = "x"
    for name in ("conv1", "conv2"):
        x = graph.add("Conv", x, f"{name}.weight", f"{name}.bias")
        x = graph.add("MaxPool", graph.add("Relu", x), kernel_shape=[2, 2], strides=[2, 2])
    x = graph.add("Relu", graph.linear("hidden", graph.add("Flatten", x)))
    return graph.running(graph.linear("out", x))


TRAINED = {"weft": in_weft, "torch": in_torch, "jax": in_jax, "keras": in_keras}
WORKLOADS = {
    "lenet": Workload(
        title="LeNet 20-50-500, batch 64, SGD with momentum",
        sides=TRAINED,
        sizes={"batch": 64, "train": True},
        quick={"batch": 4},
        inputs=inputs,
        flops=flops,
        training=True,
        aim=0.9,
    ),
    "lenet-infer": Workload(
        title="LeNet, one image",
        sides={**TRAINED, "onnx": in_onnx},
        sizes={"batch": 1, "train": False},
        quick={},
        inputs=inputs,
        flops=flops,
        aim=1.0,
        rivals=("onnx",),
    ),
}
