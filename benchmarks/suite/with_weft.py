"""Weft: a module, an optimiser and one step, compiled or eager."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from suite.task import DEVICE, Arrays, Step, Task


def loaded(net: Any, task: Task) -> Any:
    """The network with the task's weights, ready to train or to be applied."""
    import weft as wf

    net.load_state_dict({name: wf.asarray(array) for name, array in task.weights.items()})
    net = net.to(DEVICE).to(task.sizes["dtype"]) if "dtype" in task.sizes else net.to(DEVICE)
    return net.train(task.training)


def tensors(arrays: Arrays, dtype: str = "float32") -> list[Any]:
    """The data, in their order; floats in a dtype."""
    import weft as wf

    found = [wf.asarray(array) for array in arrays.values()]
    return [(x.astype(dtype) if x.dtype is wf.float32 else x).to(DEVICE) for x in found]


def training(
    task: Task, net: Any, optimizer: Any, loss: Callable[..., Any], data: list[Any]
) -> Step:
    """One step: forward, backward and update; as one program if the task is compiled."""
    import weft as wf

    precision = task.sizes.get("precision")

    def step(net: Any, optimizer: Any, *data: Any) -> Any:
        with wf.autocast(precision or "bfloat16", enabled=precision is not None):
            value = loss(net, *data)
        optimizer.minimize(value)
        return value

    ready = compiled(task, step)
    return lambda: ready(net, optimizer, *data)


def applying(task: Task, net: Any, data: list[Any]) -> Step:
    """The forward pass alone."""
    return calling(task, lambda net, *data: net(*data), net, *data)


def calling(task: Task, function: Callable[..., Any], *operands: Any) -> Step:
    """A function on its operands, without gradients."""
    import weft as wf

    ready = compiled(task, function)

    def step() -> Any:
        with wf.no_grad():
            return ready(*operands)

    return step


def compiled(task: Task, function: Callable[..., Any]) -> Callable[..., Any]:
    """The function under `jit`, if the task asks for it."""
    import weft as wf

    return wf.jit(function) if task.compiled else function


def classification(net: Any, x: Any, y: Any) -> Any:
    """Cross entropy of a classifier; positions of a sequence count as a batch."""
    import weft as wf

    logits = net(x)
    flat = wf.reshape(logits, (-1, logits.shape[-1]))
    return wf.nn.functional.cross_entropy(flat, wf.reshape(y, (-1,)))


def as_numpy(value: Any) -> np.ndarray:
    """What a step returned."""
    return np.asarray(value.detach().to("cpu").astype("float64").numpy())


def wait() -> None:
    """Until the card has done all that it was given."""
    import weft as wf

    if DEVICE != "cpu":
        wf.cuda.synchronize()


def reset_peak() -> None:
    """Count the most memory of the card from now on."""
    import weft as wf

    wf.cuda.reset_peak_memory()


def card_bytes() -> int:
    """The most memory of the card that was in use."""
    import weft as wf

    return int(wf.cuda.memory_stats().peak)
