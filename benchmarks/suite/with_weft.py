"""Weft: a module, an optimiser and one step, compiled or eager."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from suite.task import Arrays, Step, Task


def loaded(net: Any, task: Task) -> Any:
    """The network with the task's weights, ready to train or to be applied."""
    import weft as wf

    net.load_state_dict({name: wf.asarray(array) for name, array in task.weights.items()})
    return net.train(task.training)


def tensors(arrays: Arrays) -> list[Any]:
    """The data, in their order."""
    import weft as wf

    return [wf.asarray(array) for array in arrays.values()]


def training(
    task: Task, net: Any, optimizer: Any, loss: Callable[..., Any], data: list[Any]
) -> Step:
    """One step: forward, backward and update; as one program if the task is compiled."""

    def step(net: Any, optimizer: Any, *data: Any) -> Any:
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
    return np.asarray(value.detach().numpy())
