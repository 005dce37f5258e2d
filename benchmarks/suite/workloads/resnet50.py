"""ResNet-50 for 224×224 images in bfloat16: AdamW on 128 images; torchvision's network beside."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from suite import with_torch, with_weft
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


WORKLOADS = {
    "resnet50": Workload(
        title="ResNet-50, 224×224, batch 128, AdamW, bfloat16",
        sides={"weft": in_weft, "torch": in_torch},
        sizes={"batch": 128, "side": 224, "dtype": "bfloat16"},
        quick={"batch": 2, "side": 64},
        inputs=inputs,
        training=True,
        tolerance=5e-2,
        aim=1.0,
    )
}
