"""ResNet-50 for 224×224 images in bfloat16: AdamW on 128 images; torchvision's network beside."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from suite import with_jax, with_torch, with_weft
from suite.task import Arrays, Step, Task, Workload, draw, linear_shapes, normal

RATE = 1e-3
DEPTHS = (3, 4, 6, 3)
WIDTHS = (64, 128, 256, 512)
SPREAD = 4
"""How many times as many channels a block gives as its middle has."""
CLASSES = 1000


def convolutions() -> Iterator[tuple[str, str, int, int, int]]:
    """Of each convolution: its name, its norm's, channels before and after, and the kernel."""
    yield "conv1", "bn1", 3, WIDTHS[0], 7
    before = WIDTHS[0]
    for stage, (depth, width) in enumerate(zip(DEPTHS, WIDTHS, strict=True), 1):
        for index in range(depth):
            at = f"layer{stage}.{index}"
            yield f"{at}.conv1", f"{at}.bn1", before, width, 1
            yield f"{at}.conv2", f"{at}.bn2", width, width, 3
            yield f"{at}.conv3", f"{at}.bn3", width, SPREAD * width, 1
            if index == 0:
                yield f"{at}.downsample.0", f"{at}.downsample.1", before, SPREAD * width, 1
            before = SPREAD * width


def inputs(sizes: Mapping[str, Any], rng: np.random.Generator) -> tuple[Arrays, Arrays]:
    """Weights and running statistics under torchvision's names; images and labels."""
    shapes: dict[str, tuple[int, ...]] = {}
    counts: Arrays = {}
    for name, norm, before, after, kernel in convolutions():
        shapes[f"{name}.weight"] = (after, before, kernel, kernel)
        for key in ("weight", "bias", "running_mean", "running_var"):
            shapes[f"{norm}.{key}"] = (after,)
        counts[f"{norm}.num_batches_tracked"] = np.array(0)
    shapes |= linear_shapes("fc", SPREAD * WIDTHS[-1], CLASSES)
    images = normal(rng, sizes["batch"], 3, sizes["side"], sizes["side"])
    return draw(shapes, rng) | counts, {"x": images, "y": rng.integers(0, CLASSES, sizes["batch"])}


def in_weft(task: Task) -> Step:
    """Weft."""
    import weft as wf

    net = with_weft.loaded(wf.models.resnet50(), task)
    optimizer = wf.optim.AdamW(net.parameters(), lr=RATE)

    def loss(net: Any, x: Any, y: Any) -> Any:
        return wf.nn.functional.cross_entropy(net(x).astype("float32"), y)

    data = with_weft.tensors(task.data, task.sizes["dtype"])
    return with_weft.training(task, net, optimizer, loss, data)


def in_torch(task: Task) -> Step:
    """PyTorch, with channels last in memory."""
    import torch
    import torchvision
    from torch.nn import functional as F  # noqa: N812

    net = with_torch.loaded(torchvision.models.resnet50(), task)
    net = net.to(memory_format=torch.channels_last)
    optimizer = torch.optim.AdamW(net.parameters(), lr=RATE, fused=True)
    x, y = with_torch.tensors(task.data, task.sizes["dtype"])

    def loss(net: Any, x: Any, y: Any) -> Any:
        return F.cross_entropy(net(x).float(), y)

    data = [x.to(memory_format=torch.channels_last), y]
    return with_torch.training(task, net, optimizer, loss, data)


def in_jax(task: Task) -> Step:
    """JAX, with channels last and statistics in float32."""
    import jax
    from jax import numpy as jnp

    kernels = {name: (norm, kernel) for name, norm, _, _, kernel in convolutions()}

    def layer(p: Any, buffers: Any, name: str, x: Any, stride: int = 1) -> Any:
        norm, kernel = kernels[name]
        y = jax.lax.conv_general_dilated(
            x, p[f"{name}.weight"], (stride, stride), [(kernel // 2, kernel // 2)] * 2,
            dimension_numbers=("NHWC", "OIHW", "NHWC"),
        )  # fmt: skip
        wide = y.astype(jnp.float32)
        mean, variance = jnp.mean(wide, (0, 1, 2)), jnp.var(wide, (0, 1, 2))
        count = y.size // y.shape[-1]
        seen = {"running_mean": mean, "running_var": variance * count / (count - 1)}
        for key, value in seen.items():
            old = buffers[f"{norm}.{key}"]
            buffers[f"{norm}.{key}"] = (0.9 * old + 0.1 * value).astype(old.dtype)
        buffers[f"{norm}.num_batches_tracked"] += 1
        scale = p[f"{norm}.weight"] * jax.lax.rsqrt(variance + 1e-5)
        return (wide * scale + (p[f"{norm}.bias"] - mean * scale)).astype(y.dtype)

    def forward(p: Any, buffers: Any, x: Any) -> Any:
        buffers = dict(buffers)
        x = jax.nn.relu(layer(p, buffers, "conv1", x, 2))
        window, strides = (1, 3, 3, 1), (1, 2, 2, 1)
        sides = [(0, 0), (1, 1), (1, 1), (0, 0)]
        x = jax.lax.reduce_window(x, -jnp.inf, jax.lax.max, window, strides, sides)
        for stage, depth in enumerate(DEPTHS, 1):
            for index in range(depth):
                at, stride = f"layer{stage}.{index}", 2 if stage > 1 and index == 0 else 1
                y = jax.nn.relu(layer(p, buffers, f"{at}.conv1", x))
                y = jax.nn.relu(layer(p, buffers, f"{at}.conv2", y, stride))
                y = layer(p, buffers, f"{at}.conv3", y)
                short = f"{at}.downsample.0"
                x = jax.nn.relu(
                    y + (layer(p, buffers, short, x, stride) if short in kernels else x)
                )
        return with_jax.linear(p, "fc", jnp.mean(x, (1, 2))), buffers

    def loss(p: Any, buffers: Any, x: Any, y: Any) -> tuple[Any, Any]:
        logits, buffers = forward(p, buffers, jnp.transpose(x, (0, 2, 3, 1)))
        return with_jax.cross_entropy(logits, y), buffers

    return with_jax.training(task, loss, with_jax.adam(RATE, weight_decay=0.01))


WORKLOADS = {
    "resnet50": Workload(
        title="ResNet-50, 224×224, batch 128, AdamW, bfloat16",
        sides={"weft": in_weft, "torch": in_torch, "jax": in_jax},
        sizes={"batch": 128, "side": 224, "dtype": "bfloat16"},
        quick={"batch": 2, "side": 64},
        inputs=inputs,
        training=True,
        tolerance=5e-2,
        aim=1.0,
    )
}
