"""What a call costs: a compiled function of one addition on four elements."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from suite import with_jax, with_keras, with_onnx, with_torch
from suite.task import Arrays, Step, Task, Workload, normal


def inputs(sizes: Mapping[str, Any], rng: np.random.Generator) -> tuple[Arrays, Arrays]:
    """Four numbers."""
    return {}, {"x": normal(rng, sizes["elements"])}


def addition(x: Any) -> Any:
    """The work, in everyone's words."""
    return x + 1.0


def in_weft(task: Task) -> Step:
    """Weft."""
    import weft as wf

    call, x = wf.jit(addition), wf.asarray(task.data["x"])
    return lambda: call(x)


def in_torch(task: Task) -> Step:
    """PyTorch."""
    import torch

    call, x = with_torch.compiled(task, addition), torch.from_numpy(task.data["x"])
    return lambda: call(x)


def in_jax(task: Task) -> Step:
    """JAX."""
    return with_jax.calling(addition, *with_jax.tensors(task.data))


def in_keras(task: Task) -> Step:
    """TensorFlow."""
    return with_keras.calling(task, addition, *task.data.values())


def in_onnx(task: Task) -> Step:
    """ONNX Runtime."""
    graph = with_onnx.Builder(task)
    return graph.running(graph.add("Add", "x", graph.constant("one", np.float32(1))))


SIDES = {
    "weft": in_weft,
    "torch": in_torch,
    "jax": in_jax,
    "keras": in_keras,
    "onnx": in_onnx,
}
WORKLOADS = {
    "overhead": Workload(
        title="a call: one addition, 4 elements",
        sides=SIDES,
        sizes={"elements": 4},
        quick={},
        inputs=inputs,
    )
}
