"""PyTorch: eager, or with forward pass and loss through `torch.compile`; fused optimisers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from suite.task import DEVICE, Arrays, Step, Task


def loaded(net: Any, task: Task) -> Any:
    """The network with the task's weights, ready to train or to be applied."""
    import torch

    net.load_state_dict({name: torch.from_numpy(a.copy()) for name, a in task.weights.items()})
    kind = {"dtype": getattr(torch, task.sizes["dtype"])} if "dtype" in task.sizes else {}
    return net.to(DEVICE, **kind).train(task.training)


def tensors(arrays: Arrays, dtype: str = "float32") -> list[Any]:
    """The data, in their order; floats in a dtype."""
    import torch

    found = [torch.from_numpy(array).to(DEVICE) for array in arrays.values()]
    return [x.to(getattr(torch, dtype)) if x.dtype is torch.float32 else x for x in found]


def training(
    task: Task, net: Any, optimizer: Any, loss: Callable[..., Any], data: list[Any]
) -> Step:
    """One step: zero_grad, forward, backward, update."""
    import torch

    evaluate, precision = (
        compiled(task, lambda *data: loss(net, *data)),
        task.sizes.get("precision"),
    )
    narrow = getattr(torch, precision or "bfloat16")

    def step() -> Any:
        optimizer.zero_grad()
        with torch.autocast(DEVICE, narrow, enabled=precision is not None):
            value = evaluate(*data)
        value.backward()
        optimizer.step()
        return value

    return step


def applying(task: Task, net: Any, data: list[Any]) -> Step:
    """The forward pass alone."""
    return calling(task, net, *data)


def calling(task: Task, function: Callable[..., Any], *operands: Any) -> Step:
    """A function on its operands, without gradients."""
    import torch

    ready = compiled(task, function)

    def step() -> Any:
        with torch.inference_mode():
            return ready(*operands)

    return step


def compiled(task: Task, function: Callable[..., Any]) -> Callable[..., Any]:
    """The function through `torch.compile`, if the task asks for it.

    For inference its weights are frozen: folded and packed once.
    """
    if not task.compiled:
        return function
    import torch
    from torch._inductor import config

    config.freezing = not task.training
    return torch.compile(function, dynamic=False)


def classification(net: Any, x: Any, y: Any) -> Any:
    """Cross entropy of a classifier; positions of a sequence count as a batch."""
    import torch

    logits = net(x)
    return torch.nn.functional.cross_entropy(logits.reshape(-1, logits.shape[-1]), y.reshape(-1))


def as_numpy(value: Any) -> np.ndarray:
    """What a step returned."""
    return np.asarray(value.detach().cpu().double().numpy())


def wait() -> None:
    """Until the card has done all that it was given."""
    import torch

    if DEVICE != "cpu":
        torch.cuda.synchronize()


def reset_peak() -> None:
    """Count the most memory of the card from now on."""
    import torch

    torch.cuda.reset_peak_memory_stats()


def card_bytes() -> int:
    """The most memory of the card that was in use."""
    import torch

    return int(torch.cuda.max_memory_allocated())
