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


class _WithoutOptions(_Activation):
    """An activation that PyTorch's users may call `inplace`, as `ReLU(True)`.

    It is taken and changes nothing: tensors are values, and a compiled program writes over what
    nobody reads again.
    """

    def __init__(self, inplace: bool = False) -> None:
        pass


class ReLU(_WithoutOptions):
    """max(x, 0).

    >>> ReLU()(wf.tensor([-1.0, 2.0])).tolist()
    [0.0, 2.0]
    """

    function = F.relu


class ReLU6(_WithoutOptions):
    """x between 0 and 6.

    >>> [round(y, 3) for y in ReLU6()(wf.tensor([-2.0, 0.0, 2.0])).tolist()]
    [0.0, 0.0, 2.0]
    """

    function = F.relu6


class LeakyReLU(_Activation):
    """x, times the slope where it is negative.

    >>> [round(y, 3) for y in LeakyReLU()(wf.tensor([-2.0, 0.0, 2.0])).tolist()]
    [-0.02, 0.0, 2.0]
    """

    function = F.leaky_relu
    names = ("negative_slope",)

    def __init__(self, negative_slope: float = 0.01, inplace: bool = False) -> None:
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
    """x, or alpha (exp(x) - 1) where it is negative.

    >>> [round(y, 3) for y in ELU()(wf.tensor([-2.0, 0.0, 2.0])).tolist()]
    [-0.865, 0.0, 2.0]
    """

    function = F.elu
    names = ("alpha",)

    def __init__(self, alpha: float = 1.0, inplace: bool = False) -> None:
        self.alpha = alpha


class CELU(ELU):
    """x, or alpha (exp(x / alpha) - 1) where it is negative.

    >>> [round(y, 3) for y in CELU()(wf.tensor([-2.0, 0.0, 2.0])).tolist()]
    [-0.865, 0.0, 2.0]
    """

    function = F.celu


class SELU(_WithoutOptions):
    """The ELU that keeps mean 0 and variance 1.

    >>> [round(y, 3) for y in SELU()(wf.tensor([-2.0, 0.0, 2.0])).tolist()]
    [-1.52, 0.0, 2.101]
    """

    function = F.selu


class GELU(_Activation):
    """x times the normal distribution's share below x; approximate="tanh" is cheaper.

    >>> [round(y, 3) for y in GELU()(wf.tensor([-2.0, 0.0, 2.0])).tolist()]
    [-0.046, 0.0, 1.954]
    """

    function = F.gelu
    names = ("approximate",)

    def __init__(self, approximate: str = "none") -> None:
        self.approximate = approximate


class SiLU(_WithoutOptions):
    """x sigmoid(x).

    >>> [round(y, 3) for y in SiLU()(wf.tensor([-2.0, 0.0, 2.0])).tolist()]
    [-0.238, 0.0, 1.762]
    """

    function = F.silu


class Mish(_WithoutOptions):
    """x tanh(softplus(x)).

    >>> [round(y, 3) for y in Mish()(wf.tensor([-2.0, 0.0, 2.0])).tolist()]
    [-0.253, 0.0, 1.944]
    """

    function = F.mish


class Sigmoid(_Activation):
    """1 / (1 + exp(-x)).

    >>> [round(y, 3) for y in Sigmoid()(wf.tensor([-2.0, 0.0, 2.0])).tolist()]
    [0.119, 0.5, 0.881]
    """

    function = F.sigmoid


class LogSigmoid(_Activation):
    """log(sigmoid(x)).

    >>> [round(y, 3) for y in LogSigmoid()(wf.tensor([-2.0, 0.0, 2.0])).tolist()]
    [-2.127, -0.693, -0.127]
    """

    function = F.log_sigmoid


class Tanh(_Activation):
    """The hyperbolic tangent.

    >>> [round(y, 3) for y in Tanh()(wf.tensor([-2.0, 0.0, 2.0])).tolist()]
    [-0.964, 0.0, 0.964]
    """

    function = F.tanh


class Tanhshrink(_Activation):
    """x - tanh(x).

    >>> [round(y, 3) for y in Tanhshrink()(wf.tensor([-2.0, 0.0, 2.0])).tolist()]
    [-1.036, 0.0, 1.036]
    """

    function = F.tanhshrink


class Softplus(_Activation):
    """log(1 + exp(beta x)) / beta.

    >>> [round(y, 3) for y in Softplus()(wf.tensor([-2.0, 0.0, 2.0])).tolist()]
    [0.127, 0.693, 2.127]
    """

    function = F.softplus
    names = ("beta", "threshold")

    def __init__(self, beta: float = 1.0, threshold: float = 20.0) -> None:
        self.beta, self.threshold = beta, threshold


class Softsign(_Activation):
    """x / (1 + |x|).

    >>> [round(y, 3) for y in Softsign()(wf.tensor([-2.0, 0.0, 2.0])).tolist()]
    [-0.667, 0.0, 0.667]
    """

    function = F.softsign


class Softshrink(_Activation):
    """x moved towards 0 by the bound.

    >>> [round(y, 3) for y in Softshrink()(wf.tensor([-2.0, 0.0, 2.0])).tolist()]
    [-1.5, 0.0, 1.5]
    """

    function = F.softshrink
    names = ("lambd",)

    def __init__(self, lambd: float = 0.5) -> None:
        self.lambd = lambd


class Hardshrink(Softshrink):
    """x, and 0 where |x| is at most the bound.

    >>> [round(y, 3) for y in Hardshrink()(wf.tensor([-2.0, 0.0, 2.0])).tolist()]
    [-2.0, 0.0, 2.0]
    """

    function = F.hardshrink


class Hardtanh(_Activation):
    """x between two bounds.

    >>> [round(y, 3) for y in Hardtanh()(wf.tensor([-2.0, 0.0, 2.0])).tolist()]
    [-1.0, 0.0, 1.0]
    """

    function = F.hardtanh
    names = ("min_val", "max_val")

    def __init__(self, min_val: float = -1.0, max_val: float = 1.0, inplace: bool = False) -> None:
        self.min_val, self.max_val = min_val, max_val


class Hardsigmoid(_WithoutOptions):
    """x / 6 + 1/2, between 0 and 1.

    >>> [round(y, 3) for y in Hardsigmoid()(wf.tensor([-2.0, 0.0, 2.0])).tolist()]
    [0.167, 0.5, 0.833]
    """

    function = F.hardsigmoid


class Hardswish(_WithoutOptions):
    """x hardsigmoid(x).

    >>> [round(y, 3) for y in Hardswish()(wf.tensor([-2.0, 0.0, 2.0])).tolist()]
    [-0.333, 0.0, 1.667]
    """

    function = F.hardswish


class Threshold(_Activation):
    """x where it is above the threshold, and the value elsewhere.

    >>> Threshold(1.0, 9.0)(wf.tensor([0.5, 2.0])).tolist()
    [9.0, 2.0]
    """

    function = F.threshold
    names = ("threshold", "value")

    def __init__(self, threshold: float, value: float, inplace: bool = False) -> None:
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
    """The logarithm of softmax.

    >>> wf.exp(LogSoftmax(axis=0)(wf.zeros(2))).tolist()
    [0.5, 0.5]
    """

    function = F.log_softmax


class Softmin(Softmax):
    """softmax of -x.

    >>> Softmin(axis=0)(wf.zeros(2)).tolist()
    [0.5, 0.5]
    """

    function = F.softmin


class GLU(Softmax):
    """The first half along an axis times the sigmoid of the second.

    >>> GLU()(wf.tensor([2.0, 0.0])).tolist()
    [1.0]
    """

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
