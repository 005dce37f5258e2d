"""Matrix products: square, tall, and in stacks."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from suite import with_jax, with_keras, with_torch, with_weft
from suite.task import Arrays, Step, Task, Workload, normal


def inputs(sizes: Mapping[str, Any], rng: np.random.Generator) -> tuple[Arrays, Arrays]:
    """Two operands: [m, k] and [k, n], in stacks if there is a count."""
    stack = (sizes["count"],) if sizes["count"] else ()
    left = normal(rng, *stack, sizes["m"], sizes["k"])
    return {}, {"left": left, "right": normal(rng, *stack, sizes["k"], sizes["n"])}


def flops(sizes: Mapping[str, Any]) -> float:
    """One multiplication and one addition for each term."""
    return 2.0 * (sizes["count"] or 1) * sizes["m"] * sizes["k"] * sizes["n"]


def product(left: Any, right: Any) -> Any:
    """The work, in everyone's words."""
    return left @ right


def in_weft(task: Task) -> Step:
    """Weft."""
    return with_weft.calling(task, product, *with_weft.tensors(task.data))


def in_torch(task: Task) -> Step:
    """PyTorch."""
    return with_torch.calling(task, product, *with_torch.tensors(task.data))


def in_jax(task: Task) -> Step:
    """JAX."""
    return with_jax.calling(product, *with_jax.tensors(task.data))


def in_keras(task: Task) -> Step:
    """TensorFlow."""
    return with_keras.calling(task, product, *task.data.values())


SIDES = {"weft": in_weft, "torch": in_torch, "jax": in_jax, "keras": in_keras}
SHAPES = {
    "matmul-256": (0, 256, 256, 256),
    "matmul-512": (0, 512, 512, 512),
    "matmul-1024": (0, 1024, 1024, 1024),
    "matmul-2048": (0, 2048, 2048, 2048),
    "matmul-tall": (0, 8192, 256, 256),
    "matmul-batched": (64, 256, 256, 64),
}
WORKLOADS = {
    name: Workload(
        title=f"product {f'{count} of ' if count else ''}{m}×{k}×{n}",
        sides=SIDES,
        sizes={"count": count, "m": m, "k": k, "n": n},
        quick={"count": min(count, 2), "m": m // 16, "k": k // 16, "n": n // 16},
        inputs=inputs,
        flops=flops,
        aim=1.0,
    )
    for name, (count, m, k, n) in SHAPES.items()
}
