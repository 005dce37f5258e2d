"""Networks as a list of layers with a forward and a backward way, for teaching.

A `Net` goes through its layers and remembers at each how to come back: the transposed derivative,
which `wf.vjp` gives. A `Model` joins a net, a loss and an optimiser: `forward` computes the loss,
`backward` the gradients, `apply_gradients` changes the parameters.

>>> import weft as wf
>>> from weft import nn
>>> net = wf.graph.Net([nn.Linear(2, 3), wf.tanh, nn.Linear(3, 1)])
>>> net.forward(wf.ones((4, 2))).shape, len(net.backward(wf.ones((4, 1))))
((4, 1), 3)
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import weft as wf

__all__ = ["Model", "Net"]

Pull = Callable[[wf.Tensor], Any]


class Layer:
    """One layer: a module or a function, with what it needs to go back."""

    def __init__(self, function: Callable[..., wf.Tensor]) -> None:
        self.function = function
        self.parameters: list[wf.Tensor] = (
            list(function.parameters()) if isinstance(function, wf.nn.Module) else []
        )
        self._pull: Pull | None = None

    def forward(self, x: wf.Tensor) -> wf.Tensor:
        """y = f(w, x); remembers the derivative here."""
        result_and_pullback: Any = wf.vjp(self._call, [p.detach() for p in self.parameters], x)
        y: wf.Tensor = result_and_pullback[0]
        self._pull = result_and_pullback[1]
        return y

    def backward(self, dy: wf.Tensor) -> tuple[list[wf.Tensor], wf.Tensor]:
        """From dL/dy the gradients of the parameters, dL/dw, and of what came in, dL/dx."""
        if self._pull is None:
            raise _not_forward("Net.backward")
        dw, dx = self._pull(dy)
        self._pull = None
        return dw, dx

    def _call(self, parameters: list[wf.Tensor], x: wf.Tensor) -> wf.Tensor:
        if not isinstance(self.function, wf.nn.Module):
            return self.function(x)
        names = [name for name, _ in self.function.named_parameters()]
        named = dict(zip(names, parameters, strict=True))
        y: wf.Tensor = wf.functional_call(self.function, named, x)
        return y


class Net:
    """Layers one after the other: modules, or functions of one tensor."""

    def __init__(self, layers: Sequence[Callable[..., wf.Tensor]]) -> None:
        given = layers if isinstance(layers, list | tuple) else [None]
        if not all(map(callable, given)):
            raise wf.ArgumentTypeError(
                "Net",
                "a layer is not something that can be called",
                expected="a list of modules, or of functions of one tensor",
                got={"layers": layers},
                fix="Net([nn.Linear(2, 3), wf.relu])",
            )
        self.layers = [Layer(layer) for layer in layers]

    def forward(self, x: wf.Tensor) -> wf.Tensor:
        """Through all layers, from the first to the last."""
        for layer in self.layers:
            x = layer.forward(x)
        return x

    __call__ = forward

    def backward(self, dy: wf.Tensor) -> list[list[wf.Tensor]]:
        """Back through all layers: the gradients of each layer's parameters, in order."""
        gradients: list[list[wf.Tensor]] = []
        for layer in reversed(self.layers):
            dw, dy = layer.backward(dy)
            gradients.insert(0, dw)
        return gradients

    def parameters(self) -> Iterator[wf.Tensor]:
        """The parameters of all layers, in order."""
        return (parameter for layer in self.layers for parameter in layer.parameters)


class Model:
    """A net, a loss and an optimiser of the net's parameters.

    >>> import weft as wf
    >>> wf.random.seed(0)
    >>> net = Net([wf.nn.Linear(1, 1)])
    >>> model = Model(net, wf.nn.functional.mse_loss, wf.optim.SGD(net.parameters(), lr=0.1))
    >>> x = wf.tensor([[1.0], [2.0]])
    >>> for _ in range(400):
    ...     loss = model.forward(x, 3 * x)
    ...     model.apply_gradients(model.backward())
    >>> loss.item() < 1e-3
    True
    """

    def __init__(self, net: Net, loss: Callable[..., wf.Tensor], optimizer: Any) -> None:
        self.net, self.loss, self.optimizer = net, loss, optimizer
        self._pull: Pull | None = None

    def forward(self, x: wf.Tensor, target: wf.Tensor | None = None) -> wf.Tensor:
        """The loss of the net's answer to x; without a target the answer itself, for inference."""
        answer = self.net.forward(x)
        if target is None:
            return answer
        loss_and_pullback: Any = wf.vjp(lambda y: self.loss(y, target), answer)
        value: wf.Tensor = loss_and_pullback[0]
        self._pull = loss_and_pullback[1]
        return value

    def backward(self) -> list[list[wf.Tensor]]:
        """The gradients of the loss that `forward` computed last, layer by layer."""
        if self._pull is None:
            raise _not_forward("Model.backward")
        (dy,) = self._pull(wf.tensor(1.0))
        self._pull = None
        return self.net.backward(dy)

    def apply_gradients(self, gradients: Sequence[Sequence[wf.Tensor]]) -> None:
        """One step of the optimiser with these gradients."""
        flat = [gradient for layer in gradients for gradient in layer]
        for parameter, gradient in zip(self.net.parameters(), flat, strict=True):
            parameter.grad = gradient
        self.optimizer.step()
        self.optimizer.zero_grad()

    apply_grad = apply_gradients


def _not_forward(op: str) -> wf.GradientError:
    return wf.GradientError(
        op,
        "there is no way back: nothing went forward since the last time",
        expected="forward, then backward, in turn",
        got={"forward": None},
        fix="model.forward(x, y); gradients = model.backward()",
    )
