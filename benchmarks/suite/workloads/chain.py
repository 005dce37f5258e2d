"""Layer norm, GELU, softmax: bound by memory, so one pass over it is the aim."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from suite import with_jax, with_keras, with_onnx, with_torch, with_weft
from suite.task import Arrays, Step, Task, Workload, draw, normal


def inputs(sizes: Mapping[str, Any], rng: np.random.Generator) -> tuple[Arrays, Arrays]:
    """A matrix, and the scale and shift of its norm."""
    columns = sizes["columns"]
    weights = draw({"weight": (columns,), "bias": (columns,)}, rng)
    return {}, {"x": normal(rng, sizes["rows"], columns), **weights}


def in_weft(task: Task) -> Step:
    """Weft."""
    from weft.nn import functional as F  # noqa: N812

    def chain(x: Any, weight: Any, bias: Any) -> Any:
        return F.softmax(F.gelu(F.layer_norm(x, x.shape[-1], weight, bias)), axis=-1)

    return with_weft.calling(task, chain, *with_weft.tensors(task.data))


def in_torch(task: Task) -> Step:
    """PyTorch."""
    from torch.nn import functional as F  # noqa: N812

    def chain(x: Any, weight: Any, bias: Any) -> Any:
        return F.softmax(F.gelu(F.layer_norm(x, x.shape[-1:], weight, bias)), dim=-1)

    return with_torch.calling(task, chain, *with_torch.tensors(task.data))


def in_jax(task: Task) -> Step:
    """JAX."""
    import jax
    from jax import numpy as jnp

    def chain(x: Any, weight: Any, bias: Any) -> Any:
        centred = x - jnp.mean(x, axis=-1, keepdims=True)
        scale = jax.lax.rsqrt(jnp.mean(centred**2, axis=-1, keepdims=True) + 1e-5)
        return jax.nn.softmax(jax.nn.gelu(centred * scale * weight + bias, approximate=False))

    return with_jax.calling(chain, *with_jax.tensors(task.data))


def in_keras(task: Task) -> Step:
    """Keras."""
    from keras import ops

    def chain(x: Any, weight: Any, bias: Any) -> Any:
        mean, variance = ops.moments(x, axes=-1, keepdims=True)
        norm = (x - mean) * ops.rsqrt(variance + 1e-5) * weight + bias
        return ops.softmax(ops.gelu(norm, approximate=False))

    return with_keras.calling(task, chain, *task.data.values())


def in_onnx(task: Task) -> Step:
    """ONNX Runtime."""
    graph = with_onnx.Builder(task)
    norm = graph.add("LayerNormalization", *task.data, axis=-1, epsilon=1e-5)
    return graph.running(graph.add("Softmax", graph.add("Gelu", norm), axis=-1))


SIDES = {
    "weft": in_weft,
    "torch": in_torch,
    "jax": in_jax,
    "keras": in_keras,
    "onnx": in_onnx,
}
WORKLOADS = {
    "chain": Workload(
        title="layer norm, GELU, softmax on 4096×1024",
        sides=SIDES,
        sizes={"rows": 4096, "columns": 1024},
        quick={"rows": 64, "columns": 64},
        inputs=inputs,
        bytes=lambda sizes: 8.0 * sizes["rows"] * sizes["columns"],
        aim=0.7,
    )
}
