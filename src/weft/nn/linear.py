"""Layers that multiply by a matrix.

>>> import weft as wf
>>> from weft import nn
>>> layer = nn.Linear(3, 2, activation="relu")
>>> layer(wf.ones((4, 3))).shape
(4, 2)
"""

from __future__ import annotations

import math
from typing import Any

import weft as wf
from weft.nn import functional as F  # noqa: N812  as everyone calls it
from weft.nn import init
from weft.nn.module import Module, Parameter, takes_device


class Linear(Module):
    """y = x Wᵀ + b, with an activation by registered name behind it where one is given.

    >>> layer = Linear(2, 1, bias=False)
    >>> layer.load_state_dict({"weight": wf.tensor([[2.0, 3.0]])}).missing
    []
    >>> layer(wf.tensor([1.0, 10.0])).tolist()
    [32.0]
    """

    @takes_device
    def __init__(
        self,
        in_features: int,
        out_features: int,
        bias: bool = True,
        activation: str | None = None,
        dtype: wf.DType | str | None = None,
        *,
        device: Any = None,
    ) -> None:
        self.in_features, self.out_features = in_features, out_features
        self.activation = None if activation is None else F.activation_name("Linear", activation)
        self.weight = Parameter(wf.empty((out_features, in_features), dtype=dtype))
        self.bias = Parameter(wf.empty((out_features,), dtype=dtype)) if bias else None
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw new parameters, uniform within 1 / √in_features."""
        init.kaiming_uniform_(self.weight, a=math.sqrt(5))
        if self.bias is not None:
            bound = 1 / math.sqrt(self.in_features) if self.in_features else 0.0
            init.uniform_(self.bias, -bound, bound)

    def forward(self, x: wf.Tensor) -> wf.Tensor:
        """[..., in] -> [..., out]."""
        y = F.linear(x, self.weight, self.bias)
        return y if self.activation is None else F.activate(self.activation, y)

    def extra_repr(self) -> str:
        """See `Module`."""
        activation = f", activation={self.activation!r}" if self.activation else ""
        sizes = f"in_features={self.in_features}, out_features={self.out_features}"
        return f"{sizes}, bias={self.bias is not None}{activation}"


class Bilinear(Module):
    """y[k] = aᵀ W[k] b + bias[k].

    >>> Bilinear(2, 3, 4)(wf.ones((5, 2)), wf.ones((5, 3))).shape
    (5, 4)
    """

    def __init__(
        self, in1_features: int, in2_features: int, out_features: int, bias: bool = True
    ) -> None:
        self.in1_features, self.in2_features = in1_features, in2_features
        self.out_features = out_features
        self.weight = Parameter(wf.empty((out_features, in1_features, in2_features)))
        self.bias = Parameter(wf.empty(out_features)) if bias else None
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw new parameters, uniform within 1 / √in1_features."""
        bound = 1 / math.sqrt(self.in1_features)
        for parameter in self.parameters():
            init.uniform_(parameter, -bound, bound)

    def forward(self, a: wf.Tensor, b: wf.Tensor) -> wf.Tensor:
        """[..., in1], [..., in2] -> [..., out]."""
        return F.bilinear(a, b, self.weight, self.bias)

    def extra_repr(self) -> str:
        """See `Module`."""
        sizes = f"in1_features={self.in1_features}, in2_features={self.in2_features}"
        return f"{sizes}, out_features={self.out_features}, bias={self.bias is not None}"
