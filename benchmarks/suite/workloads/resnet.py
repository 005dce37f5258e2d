"""ResNet-18 for 32×32 images: SGD with momentum on 32 images, and one image.

The stem is one 3×3 convolution; batch norm keeps running statistics in training, on every side.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np

from suite import with_jax, with_keras, with_onnx, with_torch, with_weft
from suite.task import Arrays, Step, Task, Workload, draw, linear_shapes, normal, training_flops

RATE = 0.01
EPSILON = 1e-5
SHARE = 0.1


class Convolution(NamedTuple):
    """A convolution and the norm behind it."""

    name: str
    norm: str
    before: int
    after: int
    kernel: int
    stride: int
    side: int

    @property
    def products(self) -> float:
        """Multiplications and additions for one image."""
        return 2.0 * self.side**2 * self.before * self.after * self.kernel**2


def blocks(sizes: Mapping[str, Any]) -> Iterator[tuple[str, int, int, int, int]]:
    """Name, channels before and after, stride, and the side of the result, of each block."""
    before, side = sizes["widths"][0], sizes["side"]
    for stage, width in enumerate(sizes["widths"], 1):
        for index in range(2):
            stride = 2 if stage > 1 and index == 0 else 1
            side //= stride
            yield f"layer{stage}.{index}", before, width, stride, side
            before = width


def convolutions(sizes: Mapping[str, Any]) -> Iterator[Convolution]:
    """All of them."""
    yield Convolution("conv1", "bn1", 3, sizes["widths"][0], 3, 1, sizes["side"])
    for name, before, width, stride, side in blocks(sizes):
        yield Convolution(f"{name}.conv1", f"{name}.bn1", before, width, 3, stride, side)
        yield Convolution(f"{name}.conv2", f"{name}.bn2", width, width, 3, 1, side)
        if stride != 1 or before != width:
            at = f"{name}.downsample"
            yield Convolution(f"{at}.0", f"{at}.1", before, width, 1, stride, side)


def inputs(sizes: Mapping[str, Any], rng: np.random.Generator) -> tuple[Arrays, Arrays]:
    """Weights and running statistics; images and labels."""
    shapes: dict[str, tuple[int, ...]] = {}
    counts: Arrays = {}
    for part in convolutions(sizes):
        shapes[f"{part.name}.weight"] = (part.after, part.before, part.kernel, part.kernel)
        for key in ("weight", "bias", "running_mean", "running_var"):
            shapes[f"{part.norm}.{key}"] = (part.after,)
        counts[f"{part.norm}.num_batches_tracked"] = np.array(0)
    shapes |= linear_shapes("fc", sizes["widths"][-1], 10)
    labels = {"y": rng.integers(0, 10, sizes["batch"])} if sizes["train"] else {}
    images = normal(rng, sizes["batch"], 3, sizes["side"], sizes["side"])
    return draw(shapes, rng) | counts, {"x": images, **labels}


def flops(sizes: Mapping[str, Any]) -> float:
    """Convolutions, directly computed, and the head."""
    products = [sizes["batch"] * part.products for part in convolutions(sizes)]
    products.append(2.0 * sizes["batch"] * sizes["widths"][-1] * 10)
    return training_flops(products) if sizes["train"] else sum(products)


def in_weft(task: Task) -> Step:
    """Weft."""
    import weft as wf
    from weft.models.resnet import BasicBlock

    net = wf.models.ResNet(BasicBlock, (2, 2, 2, 2), 10, small=True, widths=task.sizes["widths"])
    net = with_weft.loaded(net, task)
    data = with_weft.tensors(task.data)
    if not task.training:
        return with_weft.applying(task, net, data)
    optimizer = wf.optim.SGD(net.parameters(), lr=RATE, momentum=0.9)
    return with_weft.training(task, net, optimizer, with_weft.classification, data)


def torch_net(sizes: Mapping[str, Any]) -> Any:
    """torchvision's blocks under its names."""
    from torch import nn

    def convolution(before: int, after: int, kernel: int, stride: int) -> Any:
        return nn.Conv2d(before, after, kernel, stride, kernel // 2, bias=False)

    class Block(nn.Module):
        def __init__(self, before: int, width: int, stride: int) -> None:
            super().__init__()
            self.conv1, self.bn1 = convolution(before, width, 3, stride), nn.BatchNorm2d(width)
            self.conv2, self.bn2 = convolution(width, width, 3, 1), nn.BatchNorm2d(width)
            if stride != 1 or before != width:
                shortcut = convolution(before, width, 1, stride), nn.BatchNorm2d(width)
                self.downsample = nn.Sequential(*shortcut)
            else:
                self.downsample = nn.Identity()

        def forward(self, x: Any) -> Any:
            y = self.bn1(self.conv1(x)).relu()
            return (self.bn2(self.conv2(y)) + self.downsample(x)).relu()

    class ResNet(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            first = sizes["widths"][0]
            self.conv1, self.bn1 = convolution(3, first, 3, 1), nn.BatchNorm2d(first)
            stages: dict[str, list[Any]] = {}
            for name, before, width, stride, _ in blocks(sizes):
                stages.setdefault(name.split(".")[0], []).append(Block(before, width, stride))
            self.stages = list(stages)
            for name, parts in stages.items():
                setattr(self, name, nn.Sequential(*parts))
            self.fc = nn.Linear(sizes["widths"][-1], 10)

        def forward(self, x: Any) -> Any:
            x = self.bn1(self.conv1(x)).relu()
            for name in self.stages:
                x = getattr(self, name)(x)
            return self.fc(x.mean((2, 3)))

    return ResNet()


def in_torch(task: Task) -> Step:
    """PyTorch, channels last: its faster layout for convolutions on the CPU."""
    import torch

    net = with_torch.loaded(torch_net(task.sizes), task).to(memory_format=torch.channels_last)
    x, *labels = with_torch.tensors(task.data)
    data = [x.to(memory_format=torch.channels_last), *labels]
    if not task.training:
        return with_torch.applying(task, net, data)
    optimizer = torch.optim.SGD(net.parameters(), lr=RATE, momentum=0.9, fused=True)
    return with_torch.training(task, net, optimizer, with_torch.classification, data)


def in_jax(task: Task) -> Step:
    """JAX."""
    import jax
    from jax import numpy as jnp

    def norm(p: Any, buffers: Any, name: str, x: Any) -> Any:
        mean, variance = buffers[f"{name}.running_mean"], buffers[f"{name}.running_var"]
        if task.training:
            count = x.size // x.shape[1]
            new = jnp.mean(x, (0, 2, 3)), jnp.var(x, (0, 2, 3))
            kept = {"running_mean": (mean, new[0]),
                    "running_var": (variance, new[1] * count / (count - 1))}  # fmt: skip
            for key, (old, seen) in kept.items():
                buffers[f"{name}.{key}"] = (1 - SHARE) * old + SHARE * seen
            buffers[f"{name}.num_batches_tracked"] += 1
            mean, variance = new
        scale = p[f"{name}.weight"] * jax.lax.rsqrt(variance + EPSILON)
        return x * scale[:, None, None] + (p[f"{name}.bias"] - mean * scale)[:, None, None]

    parts = {part.name: part for part in convolutions(task.sizes)}

    def layer(p: Any, buffers: Any, name: str, x: Any) -> Any:
        part = parts[name]
        weight, padding = p[f"{name}.weight"], part.kernel // 2
        strides, paddings = (part.stride,) * 2, [(padding, padding)] * 2
        y = jax.lax.conv_general_dilated(x, weight, strides, paddings)
        return norm(p, buffers, part.norm, y)

    def forward(p: Any, buffers: Any, x: Any) -> Any:
        buffers = dict(buffers)
        x = jax.nn.relu(layer(p, buffers, "conv1", x))
        for name, *_ in blocks(task.sizes):
            y = jax.nn.relu(layer(p, buffers, f"{name}.conv1", x))
            y = layer(p, buffers, f"{name}.conv2", y)
            short = f"{name}.downsample.0"
            x = jax.nn.relu(y + (layer(p, buffers, short, x) if short in parts else x))
        return with_jax.linear(p, "fc", jnp.mean(x, (2, 3))), buffers

    if not task.training:
        return with_jax.applying(task, forward)
    return with_jax.training(task, with_jax.classification(forward), with_jax.momentum(RATE))


def in_keras(task: Task) -> Step:
    """Keras, with its own order of axes: channels last."""
    import keras

    parts = {part.name: part for part in convolutions(task.sizes)}

    def layer(name: str, x: Any) -> Any:
        part, padding = parts[name], parts[name].kernel // 2
        x = keras.layers.ZeroPadding2D(padding)(x) if part.stride > 1 and padding else x
        fit = "valid" if part.stride > 1 else "same"
        convolution = keras.layers.Conv2D(part.after, part.kernel, part.stride, fit, use_bias=False)
        norm = keras.layers.BatchNormalization(momentum=1 - SHARE, epsilon=EPSILON)
        y = norm(convolution(x))
        with_keras.assign(convolution, task.weights[f"{name}.weight"].transpose(2, 3, 1, 0))
        keys = ("weight", "bias", "running_mean", "running_var")
        with_keras.assign(norm, *(task.weights[f"{part.norm}.{key}"] for key in keys))
        return y

    relu = keras.ops.relu
    start = keras.Input((task.sizes["side"], task.sizes["side"], 3))
    x = relu(layer("conv1", start))
    for name, *_ in blocks(task.sizes):
        y = layer(f"{name}.conv2", relu(layer(f"{name}.conv1", x)))
        short = f"{name}.downsample.0"
        x = relu(y + (layer(short, x) if short in parts else x))
    x = keras.layers.GlobalAveragePooling2D()(x)
    model = keras.Model(start, with_keras.linear(task, "fc")(x))
    task.data["x"] = task.data["x"].transpose(0, 2, 3, 1)
    if not task.training:
        return with_keras.applying(task, model)
    optimizer = keras.optimizers.SGD(RATE, momentum=0.9)
    return with_keras.training(task, model, optimizer, with_keras.classification)


def in_onnx(task: Task) -> Step:
    """ONNX Runtime."""
    graph = with_onnx.Builder(task)
    parts = {part.name: part for part in convolutions(task.sizes)}

    def layer(name: str, x: str) -> Any:
        part, padding = parts[name], parts[name].kernel // 2
        options = {"pads": [padding] * 4, "strides": [part.stride] * 2}
        y = graph.add("Conv", x, f"{name}.weight", **options)
        keys = ("weight", "bias", "running_mean", "running_var")
        names = (f"{part.norm}.{key}" for key in keys)
        return graph.add("BatchNormalization", y, *names, epsilon=EPSILON)

    x = graph.add("Relu", layer("conv1", "x"))
    for name, *_ in blocks(task.sizes):
        y = layer(f"{name}.conv2", graph.add("Relu", layer(f"{name}.conv1", x)))
        short = f"{name}.downsample.0"
        x = graph.add("Relu", graph.add("Add", y, layer(short, x) if short in parts else x))
    x = graph.add("Flatten", graph.add("GlobalAveragePool", x))
    return graph.running(graph.linear("fc", x))


SIZES = {"widths": (64, 128, 256, 512), "side": 32, "batch": 32, "train": True}
QUICK = {"widths": (4, 8, 8, 16), "side": 16, "batch": 4}
TRAINED = {"weft": in_weft, "torch": in_torch, "jax": in_jax, "keras": in_keras}
WORKLOADS = {
    "resnet": Workload(
        title="ResNet-18, 32×32, batch 32, SGD with momentum",
        sides=TRAINED,
        sizes=SIZES,
        quick=QUICK,
        inputs=inputs,
        flops=flops,
        training=True,
        tolerance=5e-3,
        aim=0.9,
    ),
    "resnet-infer": Workload(
        title="ResNet-18, one image",
        sides={**TRAINED, "onnx": in_onnx},
        sizes={**SIZES, "batch": 1, "train": False},
        quick={**QUICK, "batch": 1},
        inputs=inputs,
        flops=flops,
        aim=1.0,
        rivals=("onnx",),
    ),
}
