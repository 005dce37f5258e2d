"""Operations so small that only their overhead counts, and one chain that is not small."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import numpy as np

from suite import with_torch, with_weft
from suite.task import Arrays, Step, Task, Workload, normal

Function = Callable[..., Any]
"""Of (library, *operands)."""


def chain(library: Any, x: Any, w: Any, b: Any) -> Any:
    """Twenty operations that each take the result of the one before."""
    for _ in range(5):
        x = library.tanh(x * w + b) - b
    return x


def layer(library: Any, x: Any, w: Any, b: Any) -> Any:
    """A scaled and shifted tanh, summed."""
    return library.sum(library.tanh(x * w + b))


def inputs(sizes: Mapping[str, Any], rng: np.random.Generator) -> tuple[Arrays, Arrays]:
    """Three vectors."""
    return {}, {name: normal(rng, sizes["elements"]) for name in "xwb"}


def in_weft(task: Task, function: Function, backward: bool) -> Step:
    """Weft."""
    import weft as wf

    return _step(wf, with_weft.tensors(task.data), function, backward)


def in_torch(task: Task, function: Function, backward: bool) -> Step:
    """PyTorch."""
    import torch

    return _step(torch, with_torch.tensors(task.data), function, backward)


def _step(library: Any, operands: list[Any], function: Function, backward: bool) -> Step:
    """For a library with `requires_grad` and `backward`; gradients of the first two operands."""
    x, w, b = operands
    if not backward:
        return lambda: function(library, x, w, b)
    leaves = [leaf.requires_grad_() for leaf in (x, w)]

    def step() -> Any:
        for leaf in leaves:
            leaf.grad = None
        library.sum(function(library, x, w, b)).backward()
        return x.grad, w.grad

    return step


def in_jax(task: Task, function: Function, backward: bool) -> Step:
    """JAX without `jit`: operation by operation, waiting for the result as the others do."""
    import jax
    from jax import numpy as jnp

    x, w, b = map(jnp.asarray, task.data.values())
    if not backward:
        return lambda: jax.block_until_ready(function(jnp, x, w, b))
    gradient = jax.grad(lambda x, w: jnp.sum(function(jnp, x, w, b)), argnums=(0, 1))
    return lambda: jax.block_until_ready(gradient(x, w))


def in_numpy(task: Task, function: Function) -> Step:
    """NumPy."""
    x, w, b = task.data.values()
    return lambda: function(np, x, w, b)


def first_elements(arrays: list[np.ndarray]) -> list[float]:
    """What is compared: some elements of each array, and the mean of their squares."""
    return [float(v) for a in arrays for v in (*a.ravel()[:16], np.mean(np.square(a)))]


def _workload(
    title: str, function: Function, elements: int, backward: bool, aim: float | None = None
) -> Workload:
    taped = {"weft": in_weft, "torch": in_torch, "jax": in_jax}
    sides: dict[str, Callable[[Task], Step]] = {
        name: partial(side, function=function, backward=backward) for name, side in taped.items()
    }
    if not backward:
        sides["numpy"] = partial(in_numpy, function=function)
    return Workload(
        title=title,
        sides=sides,
        sizes={"elements": elements},
        quick={"elements": min(elements, 1000)},
        inputs=inputs,
        tolerance=1e-4,
        aim=aim,
        rivals=("torch",),
        digest=first_elements,
    )


WORKLOADS = {
    "add-small": _workload("add, 4 elements", lambda _, x, w, b: x + w, 4, False),
    "tanh-small": _workload("tanh, 4 elements", lambda lib, x, w, b: lib.tanh(x), 4, False),
    "chain": _workload("20 operations, 4 elements", chain, 4, False, 1.0),
    "chain-backward": _workload("20 operations, 4 elements, both ways", chain, 4, True, 1.0),
    "layer-backward": _workload("sum(tanh(x w + b)), 1e6, both ways", layer, 1_000_000, True, 1.0),
}
