"""Activations as modules, for use between other modules.

>>> import weft as wf
>>> from weft import nn
>>> nn.Sequential(nn.LeakyReLU(0.5), nn.Hardtanh())(wf.tensor([-1.0, 3.0])).tolist()
[-0.5, 1.0]
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

import weft as wf
from weft.nn import functional as F  # noqa: N812
from weft.nn.module import Module, Parameter


class _Activation(Module):
    """A function of the input and of the options in `names`, which are attributes."""

    function: ClassVar[Callable[..., wf.Tensor]]
    names: ClassVar[tuple[str, ...]] = ()

    def forward(self, x: wf.Tensor) -> wf.Tensor:
        """The activation of x; the shape stays, but for GLU."""
        return type(self).function(x, **self._options())

    def _options(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in self.names}

    def extra_repr(self) -> str:
        """See `Module`."""
        return ", ".join(f"{name}={value}" for name, value in self._options().items())


class ReLU(_Activation):
    """max(x, 0).

    >>> ReLU()(wf.tensor([-1.0, 2.0])).tolist()
    [0.0, 2.0]
    """

    function = F.relu


class ReLU6(_Activation):
    """x between 0 and 6."""

    function = F.relu6


class LeakyReLU(_Activation):
    """x, times the slope where it is negative."""

    function = F.leaky_relu
    names = ("negative_slope",)

    def __init__(self, negative_slope: float = 0.01) -> None:
        self.negative_slope = negative_slope


class PReLU(Module):
    """x, times a learned slope where it is negative; one slope, or one for each channel.

    >>> PReLU()(wf.tensor([-4.0, 2.0])).tolist()
    [-1.0, 2.0]
    """

    def __init__(self, num_parameters: int = 1, init: float = 0.25) -> None:
        self.num_parameters = num_parameters
        wf.ir.refuse_derivative("PReLU", "init", init)
        self.weight = Parameter(wf.full((num_parameters,), float(init)))

    def forward(self, x: wf.Tensor) -> wf.Tensor:
        """[batch, channels, ...] -> the same shape."""
        return F.prelu(x, self.weight)

    def extra_repr(self) -> str:
        """See `Module`."""
        return f"num_parameters={self.num_parameters}"


class ELU(_Activation):
    """x, or alpha (exp(x) - 1) where it is negative."""

    function = F.elu
    names = ("alpha",)

    def __init__(self, alpha: float = 1.0) -> None:
        self.alpha = alpha


class CELU(ELU):
    """x, or alpha (exp(x / alpha) - 1) where it is negative."""

    function = F.celu


class SELU(_Activation):
    """The ELU that keeps mean 0 and variance 1."""

    function = F.selu


class GELU(_Activation):
    """x times the normal distribution's share below x; approximate="tanh" is cheaper."""

    function = F.gelu
    names = ("approximate",)

    def __init__(self, approximate: str = "none") -> None:
        self.approximate = approximate


class SiLU(_Activation):
    """x sigmoid(x)."""

    function = F.silu


class Mish(_Activation):
    """x tanh(softplus(x))."""

    function = F.mish


class Sigmoid(_Activation):
    """1 / (1 + exp(-x))."""

    function = F.sigmoid


class LogSigmoid(_Activation):
    """log(sigmoid(x))."""

    function = F.log_sigmoid


class Tanh(_Activation):
    """The hyperbolic tangent."""

    function = F.tanh


class Tanhshrink(_Activation):
    """x - tanh(x)."""

    function = F.tanhshrink


class Softplus(_Activation):
    """log(1 + exp(beta x)) / beta."""

    function = F.softplus
    names = ("beta", "threshold")

    def __init__(self, beta: float = 1.0, threshold: float = 20.0) -> None:
        self.beta, self.threshold = beta, threshold


class Softsign(_Activation):
    """x / (1 + |x|)."""

    function = F.softsign


class Softshrink(_Activation):
    """x moved towards 0 by the bound."""

    function = F.softshrink
    names = ("lambd",)

    def __init__(self, lambd: float = 0.5) -> None:
        self.lambd = lambd


class Hardshrink(Softshrink):
    """x, and 0 where |x| is at most the bound."""

    function = F.hardshrink


class Hardtanh(_Activation):
    """x between two bounds."""

    function = F.hardtanh
    names = ("min_val", "max_val")

    def __init__(self, min_val: float = -1.0, max_val: float = 1.0) -> None:
        self.min_val, self.max_val = min_val, max_val


class Hardsigmoid(_Activation):
    """x / 6 + 1/2, between 0 and 1."""

    function = F.hardsigmoid


class Hardswish(_Activation):
    """x hardsigmoid(x)."""

    function = F.hardswish


class Threshold(_Activation):
    """x where it is above the threshold, and the value elsewhere."""

    function = F.threshold
    names = ("threshold", "value")

    def __init__(self, threshold: float, value: float) -> None:
        self.threshold, self.value = threshold, value


class Softmax(_Activation):
    """Positive numbers that add up to 1 along an axis.

    >>> Softmax(axis=0)(wf.tensor([1.0, 1.0])).tolist()
    [0.5, 0.5]
    """

    function = F.softmax
    names = ("axis",)

    def __init__(self, axis: int = -1) -> None:
        self.axis = axis


class LogSoftmax(Softmax):
    """The logarithm of softmax."""

    function = F.log_softmax


class Softmin(Softmax):
    """softmax of -x."""

    function = F.softmin


class GLU(Softmax):
    """The first half along an axis times the sigmoid of the second."""

    function = F.glu


class Activation(Module):
    """An activation by its registered name.

    >>> Activation("relu")(wf.tensor([-1.0, 2.0])).tolist()
    [0.0, 2.0]
    """

    def __init__(self, name: str) -> None:
        self.name = F.activation_name("Activation", name)

    def forward(self, x: wf.Tensor) -> wf.Tensor:
        """The activation of x."""
        return F.activate(self.name, x)

    def extra_repr(self) -> str:
        """See `Module`."""
        return repr(self.name)
