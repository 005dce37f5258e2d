"""Averages of the weights over time, which often predict better than the weights themselves.

>>> import weft as wf
>>> w = wf.tensor([1.0], requires_grad=True)
>>> average = wf.optim.ExponentialMovingAverage([w], decay=0.75)
>>> with wf.no_grad():
...     w += 4.0
>>> average.update()
>>> with average.applied():
...     inside = w.item()
>>> inside, w.item()
(2.0, 5.0)
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import weft as wf
from weft.optim.checks import check_fraction, check_parameter
from weft.optim.groups import settings_dtype
from weft.optim.nodes import tree_node
from weft.optim.states import check_entry, check_names


class ExponentialMovingAverage:
    """A copy of the parameters that follows them: a ← d a + (1 − d) θ at each `update()`.

    `model` is a module, a dict of tensors or a collection of them. With `warmup` the decay is at
    most (1 + t) / (10 + t), so that the first weights are soon forgotten.
    """

    def __init__(self, model: Any, decay: float = 0.999, warmup: bool = False) -> None:
        check_fraction("ExponentialMovingAverage", "decay", decay)
        named = _named_parameters(model)
        for name, parameter in named.items():
            if parameter.requires_grad:  # frozen ones stay where they are, and so does their copy
                check_parameter("ExponentialMovingAverage", name, parameter)
        self.decay = decay
        self.warmup = warmup
        self.names = tuple(named)
        self.parameters = list(named.values())
        self.averages = [parameter.detach().clone() for parameter in self.parameters]
        self.updates = wf.tensor(0)

    def update(self) -> None:
        """Draw the averages towards the parameters."""
        with wf.no_grad():
            self.updates += 1
            rate = 1 - self._decay()
            for average, parameter in zip(self.averages, self.parameters, strict=True):
                average.copy_(average + rate * (parameter - average))

    def _decay(self) -> Any:
        if not self.warmup:
            return self.decay
        t = self.updates.astype(settings_dtype(self.parameters))
        return wf.minimum((1 + t) / (10 + t), self.decay)

    def swap(self) -> None:
        """Exchange the parameters and the averages; a second time puts them back."""
        with wf.no_grad():
            for average, parameter in zip(self.averages, self.parameters, strict=True):
                held = parameter.detach()
                parameter.copy_(average)
                average.copy_(held)

    @contextmanager
    def applied(self) -> Iterator[None]:
        """Inside a `with` block the parameters hold the averages."""
        self.swap()
        try:
            yield
        finally:
            self.swap()

    def state_dict(self) -> dict[str, wf.Tensor]:
        """The averages by name, and how often they were updated."""
        named = zip(self.names, self.averages, strict=True)
        averages = {f"averages.{name}": average.clone() for name, average in named}
        return {**averages, "updates": self.updates.clone()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from a `state_dict()` over the same parameters."""
        op = "ExponentialMovingAverage.load_state_dict"
        check_names(op, state, self.state_dict())
        named = zip(self.names, self.averages, strict=True)
        handles = {**{f"averages.{n}": average for n, average in named}, "updates": self.updates}
        for name, handle in handles.items():
            check_entry(op, name, handle, state[name])
        for name, handle in handles.items():
            handle.copy_(state[name])

    def __call__(self, *args: Any) -> Any:
        """Refuse a call as of PyTorch's `AveragedModel`, which holds a network of its own."""
        raise wf.ArgumentTypeError(
            "ExponentialMovingAverage",
            "averages of weights are not a network",
            expected="a call of the network that they are averages of",
            got={"arguments": args},
            fix="with average.applied(): net(x)",
        )

    def __repr__(self) -> str:
        count = len(self.parameters)
        return f"ExponentialMovingAverage(decay={self.decay}, {count} parameters)"


def _named_parameters(model: Any) -> dict[str, wf.Tensor]:
    if hasattr(model, "named_parameters"):
        return dict(model.named_parameters())
    parameters = model if isinstance(model, Mapping) else dict(enumerate(model))
    return {str(name): parameter for name, parameter in parameters.items()}


tree_node(ExponentialMovingAverage, ("parameters", "averages", "updates"))
