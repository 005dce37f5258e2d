"""The GPT of `gpt` writes 100 tokens after one, greedily, each handed to Python as it comes.

Keys and values lie in a cache with room for 128 tokens.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from suite import with_torch
from suite.task import Arrays, Step, Task, Workload, draw
from suite.workloads import gpt

CAPACITY = 128
START = 1


def inputs(sizes: Mapping[str, Any], rng: np.random.Generator) -> tuple[Arrays, Arrays]:
    """The weights alone."""
    return draw(gpt.shapes(sizes), rng), {}


def flops(sizes: Mapping[str, Any]) -> float:
    """A pass of one token, so many times; the keys are few."""
    one = {**sizes, "context": 1, "batch": 1, "train": False}
    return sizes["tokens"] * gpt.flops(one)


def least_bytes(sizes: Mapping[str, Any]) -> float:
    """All weights are read for each token."""
    return 4.0 * sizes["tokens"] * sum(float(np.prod(s)) for s in gpt.shapes(sizes).values())


def in_weft(task: Task) -> Step:
    """Weft."""
    net = gpt.weft_net(task)
    return lambda: net.generate([START], task.sizes["tokens"], temperature=0.0)


def in_torch(task: Task) -> Step:
    """PyTorch."""
    import torch

    net = gpt.torch_net(task)
    sizes = task.sizes
    shape = sizes["layers"], 2, 1, sizes["heads"], CAPACITY, sizes["width"] // sizes["heads"]
    caches = torch.zeros(shape)

    def next_token(token: Any, position: Any) -> Any:
        return torch.argmax(net(token, caches, position)[:, -1], dim=-1, keepdim=True)

    step = with_torch.compiled(task, next_token)

    def generate() -> Any:
        caches.zero_()
        token, found = torch.tensor([[START]]), [START]
        with torch.inference_mode():
            for number in range(sizes["tokens"]):
                token = step(token, torch.tensor([number]))
                found.append(int(token))
        return torch.tensor(found)

    return generate


def in_jax(task: Task) -> Step:
    """JAX."""
    import jax
    from jax import numpy as jnp

    forward = gpt.jax_forward(task.sizes)
    weights = {name: jnp.asarray(array) for name, array in task.weights.items()}
    sizes = task.sizes
    shape = 1, CAPACITY, sizes["heads"], sizes["width"] // sizes["heads"]

    def next_token(weights: Any, caches: Any, token: Any, position: Any) -> Any:
        logits, caches = forward(weights, caches, token, position)
        return jnp.argmax(logits[:, -1:], axis=-1), caches

    step = jax.jit(next_token, donate_argnums=1)

    def generate() -> Any:
        caches = [[jnp.zeros(shape), jnp.zeros(shape)] for _ in range(sizes["layers"])]
        token, found = jnp.array([[START]]), [START]
        for number in range(sizes["tokens"]):
            token, caches = step(weights, caches, token, number)
            found.append(int(token[0, 0]))
        return np.array(found)

    return generate


WORKLOADS = {
    "generation": Workload(
        title="GPT, 100 tokens with a cache",
        sides={"weft": in_weft, "torch": in_torch, "jax": in_jax},
        sizes={**gpt.SIZES, "tokens": 100},
        quick={**gpt.QUICK, "context": 128, "tokens": 10},
        inputs=inputs,
        flops=flops,
        bytes=least_bytes,
        tolerance=0.0,
        aim=1.0,
    )
}
