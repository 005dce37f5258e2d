"""JAX: pure functions of a dictionary of weights, the update by hand, one `jit` with donation."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from suite.task import CARD, Arrays, Step, Task

Rule = Callable[[Any, Any, Any, Any], tuple[Any, Any]]
"""(weight, gradient, its state, step number) to the new weight and state."""


def adam(lr: float, weight_decay: float = 0.0) -> tuple[Rule, int]:
    """Adam, or AdamW with weight decay; and how many arrays of state each weight has."""
    from jax import numpy as jnp

    def rule(p: Any, g: Any, state: Any, count: Any) -> tuple[Any, Any]:
        m = 0.9 * state[0] + 0.1 * g
        v = 0.999 * state[1] + 0.001 * g * g
        root = jnp.sqrt(v / (1 - 0.999**count)) + 1e-8
        return p * (1 - lr * weight_decay) - lr * (m / (1 - 0.9**count)) / root, (m, v)

    return rule, 2


def momentum(lr: float, share: float = 0.9) -> tuple[Rule, int]:
    """SGD with momentum."""

    def rule(p: Any, g: Any, state: Any, count: Any) -> tuple[Any, Any]:
        v = share * state[0] + g
        return p - lr * v, (v,)

    return rule, 1


def adagrad(lr: float) -> tuple[Rule, int]:
    """Adagrad."""
    from jax import numpy as jnp

    def rule(p: Any, g: Any, state: Any, count: Any) -> tuple[Any, Any]:
        s = state[0] + g * g
        return p - lr * g / (jnp.sqrt(s) + 1e-10), (s,)

    return rule, 1


def training(task: Task, loss: Callable[..., Any], optimizer: tuple[Rule, int]) -> Step:
    """One step as one program; `loss` gives (value, new buffers) of (weights, buffers, *data)."""
    import jax

    rule, slots = optimizer
    weights, buffers = _parted(task)
    state = jax.tree.map(lambda p: tuple(jax.numpy.zeros_like(p) for _ in range(slots)), weights)
    held = [weights, buffers, state, jax.numpy.float32(0)]
    data = tensors(task.data, task.sizes.get("dtype", "float32"))
    precise = _in_precision(loss, task.sizes.get("precision"))

    def update(weights: Any, buffers: Any, state: Any, count: Any, *data: Any) -> Any:
        found = jax.value_and_grad(precise, has_aux=True)(weights, buffers, *data)
        (value, buffers), gradients = found
        count = count + 1
        new = {n: rule(weights[n], gradients[n], state[n], count) for n in weights}
        state = {n: pair[1] for n, pair in new.items()}
        weights = {n: pair[0].astype(weights[n].dtype) for n, pair in new.items()}
        return value, [weights, buffers, state, count]

    program = jax.jit(update, donate_argnums=(0, 1, 2, 3))

    def step() -> Any:
        value, held[:] = program(*held, *data)
        _last[:] = held
        if not CARD:
            wait()
        return value

    return step


_last: list[Any] = []
"""What the last call has computed, or will have."""


def _in_precision(loss: Callable[..., Any], precision: str | None) -> Callable[..., Any]:
    """A loss of weights and data in a narrower dtype, itself in float32."""
    import jax

    if precision is None:
        return loss

    def narrow(weights: Any, buffers: Any, *data: Any) -> Any:
        cast = {name: p.astype(precision) for name, p in weights.items()}
        given = [x.astype(precision) if x.dtype == jax.numpy.float32 else x for x in data]
        return loss(cast, buffers, *given)

    return narrow


def applying(task: Task, forward: Callable[..., Any]) -> Step:
    """The forward pass alone: `forward(weights, buffers, *data)` gives (logits, buffers)."""
    weights, buffers = _parted(task)
    first = lambda *operands: forward(*operands)[0]  # noqa: E731
    return calling(first, weights, buffers, *tensors(task.data))


def calling(function: Callable[..., Any], *operands: Any) -> Step:
    """A compiled function on its operands."""
    import jax

    compiled = jax.jit(function)

    def step() -> Any:
        _last[:] = [compiled(*operands)]
        if not CARD:
            wait()
        return _last[0]

    return step


def calling_eagerly(function: Callable[..., Any], *operands: Any) -> Step:
    """A function that is called as it is."""

    def step() -> Any:
        _last[:] = [function(*operands)]
        return _last[0]

    return step


def tensors(arrays: Arrays, dtype: str = "float32") -> list[Any]:
    """The data, in their order; floats in a dtype."""
    import jax

    found = [jax.numpy.asarray(array) for array in arrays.values()]
    return [x.astype(dtype) if x.dtype == jax.numpy.float32 else x for x in found]


def linear(p: Any, name: str, x: Any) -> Any:
    """x Wᵀ + b."""
    return x @ p[f"{name}.weight"].T + p[f"{name}.bias"]


def norm(p: Any, name: str, x: Any, epsilon: float = 1e-5) -> Any:
    """Layer norm over the last axis."""
    import jax
    from jax import numpy as jnp

    centred = x - jnp.mean(x, axis=-1, keepdims=True)
    scale = jax.lax.rsqrt(jnp.mean(centred**2, axis=-1, keepdims=True) + epsilon)
    return centred * scale * p[f"{name}.weight"] + p[f"{name}.bias"]


def cross_entropy(logits: Any, y: Any) -> Any:
    """-log softmax at the labels, the mean."""
    import jax
    from jax import numpy as jnp

    flat = jax.nn.log_softmax(logits.reshape(-1, logits.shape[-1]).astype(jnp.float32))
    return -jnp.mean(jnp.take_along_axis(flat, y.reshape(-1, 1), axis=1))


def classification(forward: Callable[..., Any]) -> Callable[..., Any]:
    """The loss of a classifier, for `training`."""

    def loss(weights: Any, buffers: Any, x: Any, y: Any) -> tuple[Any, Any]:
        logits, buffers = forward(weights, buffers, x)
        return cross_entropy(logits, y), buffers

    return loss


def _parted(task: Task) -> tuple[dict[str, Any], dict[str, Any]]:
    import jax

    arrays = {name: jax.numpy.array(array) for name, array in task.weights.items()}
    if "dtype" in task.sizes:
        dtype = task.sizes["dtype"]
        arrays = {n: a.astype(dtype) if a.dtype == "float32" else a for n, a in arrays.items()}
    buffers = {n: a for n, a in arrays.items() if "running" in n or "num_batches" in n}
    return {n: a for n, a in arrays.items() if n not in buffers}, buffers


def as_numpy(value: Any) -> np.ndarray:
    """What a step returned."""
    return np.asarray(value).astype(np.float64)


def wait() -> None:
    """Until all is computed that was begun."""
    import jax

    jax.block_until_ready(_last)


def reset_peak() -> None:
    """JAX counts from the start of the process."""


def card_bytes() -> int:
    """The most memory of the card that was in use."""
    import jax

    return int((jax.devices()[0].memory_stats() or {}).get("peak_bytes_in_use", 0))
