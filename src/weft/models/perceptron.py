"""The multi-layer perceptron.

>>> import weft as wf
>>> from weft.models import MLP
>>> MLP([784, 512, 512, 10])(wf.ones((2, 1, 28, 28))).shape
(2, 10)
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import weft as wf
from weft import nn


class MLP(nn.Module):
    """Layers of these widths, with an activation between them; an input of any shape is flattened.

    >>> [tuple(p.shape) for p in MLP([4, 8, 1]).parameters()]
    [(8, 4), (8,), (1, 8), (1,)]
    """

    def __init__(
        self, widths: Sequence[int], activation: str = "relu", dropout: float = 0.0
    ) -> None:
        if len(widths) < 2:
            raise wf.ArgumentError(
                "MLP",
                "there is no layer",
                expected="the width of the input, of each hidden layer, and of the output",
                got={"widths": list(widths)},
                fix="MLP([784, 512, 10])",
            )
        pairs = list(pairwise(widths))
        last = nn.Linear(*pairs.pop())
        hidden = [nn.Linear(*pair, activation=activation) for pair in pairs]
        self.layers = nn.ModuleList([*hidden, last])
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: wf.Tensor) -> wf.Tensor:
        """[batch, ...] -> [batch, widths[-1]]."""
        x = wf.reshape(x, (x.shape[0], -1))
        *hidden, last = self.layers
        for layer in hidden:
            x = self.dropout(layer(x))
        y: wf.Tensor = last(x)
        return y
