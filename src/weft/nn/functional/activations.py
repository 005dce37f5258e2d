"""Activations: functions of each element, and of groups along an axis.

Layers name them: `register_activation` gives one of your own a name.

>>> import weft as wf
>>> from weft.nn import functional as F
>>> F.elu(wf.tensor([0.0, 2.0])).tolist()
[0.0, 2.0]
>>> F.register_activation("cube", lambda x: x ** 3)
>>> wf.nn.Linear(2, 2, activation="cube").activation
'cube'
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import weft as wf
from weft.eager import unit
from weft.names import nearest_name
from weft.precision import follow_table

Activation = Callable[[wf.Tensor], wf.Tensor]


def relu(x: wf.Tensor) -> wf.Tensor:
    """max(x, 0).

    >>> relu(wf.tensor([-1.0, 2.0])).tolist()
    [0.0, 2.0]
    """
    return wf.relu(x)


@unit
def relu6(x: wf.Tensor) -> wf.Tensor:
    """x between 0 and 6.

    >>> relu6(wf.tensor([-1.0, 2.0, 9.0])).tolist()
    [0.0, 2.0, 6.0]
    """
    return hardtanh(x, 0.0, 6.0)


@unit(numbers=("negative_slope",))
def leaky_relu(x: wf.Tensor, negative_slope: float = 0.01) -> wf.Tensor:
    """x, times the slope where it is negative.

    >>> leaky_relu(wf.tensor([-1.0, 2.0]), 0.5).tolist()
    [-0.5, 2.0]
    """
    return wf.where(x > 0, x, negative_slope * x)


@unit(weights=("weight",))
def prelu(x: wf.Tensor, weight: wf.Tensor) -> wf.Tensor:
    """x, times a learned slope where it is negative; one slope, or one for each of axis 1.

    >>> prelu(wf.tensor([[-1.0, -2.0]]), wf.tensor([0.5, 0.25])).tolist()
    [[-0.5, -0.5]]
    """
    if weight.size == 1:
        weight = wf.reshape(weight, ())
    elif x.ndim == 0:
        raise wf.ShapeError(
            "prelu",
            "a tensor without axes has no channels",
            expected="one slope, or a tensor with channels on axis 1",
            got={"x": x, "weight": weight},
            fix="weight[0]",
        )
    elif x.ndim > 1:
        weight = wf.reshape(weight, (weight.size, *[1] * (x.ndim - 2)))
    return wf.where(x > 0, x, weight * x)


@follow_table
@unit(numbers=("alpha",))
def elu(x: wf.Tensor, alpha: float = 1.0) -> wf.Tensor:
    """x, or alpha (exp(x) - 1) where it is negative.

    >>> round(elu(wf.tensor(-1.0)).item(), 4)
    -0.6321
    """
    return wf.where(x > 0, x, alpha * wf.expm1(wf.where(x > 0, 0.0, x)))


@follow_table
@unit(numbers=("alpha",))
def celu(x: wf.Tensor, alpha: float = 1.0) -> wf.Tensor:
    """x, or alpha (exp(x / alpha) - 1) where it is negative.

    >>> round(celu(wf.tensor(-2.0), 2.0).item(), 4)
    -1.2642
    """
    return wf.where(x > 0, x, alpha * wf.expm1(wf.where(x > 0, 0.0, x) / alpha))


SELU_ALPHA = 1.6732632423543772848170429916717
SELU_SCALE = 1.0507009873554804934193349852946


@follow_table
@unit
def selu(x: wf.Tensor) -> wf.Tensor:
    """An ELU whose constants keep mean 0 and variance 1 (Klambauer et al., 2017).

    >>> round(selu(wf.tensor(1.0)).item(), 4)
    1.0507
    """
    return SELU_SCALE * elu(x, SELU_ALPHA)


def gelu(x: wf.Tensor, approximate: str = "none") -> wf.Tensor:
    """x times the normal distribution's share below x; "tanh" approximates it.

    >>> round(gelu(wf.tensor(1.0)).item(), 4)
    0.8413
    """
    return wf.gelu(x, approximate=approximate)


def silu(x: wf.Tensor) -> wf.Tensor:
    """x sigmoid(x).

    >>> round(silu(wf.tensor(1.0)).item(), 4)
    0.7311
    """
    return wf.silu(x)


@follow_table
@unit
def mish(x: wf.Tensor) -> wf.Tensor:
    """x tanh(softplus(x)).

    >>> round(mish(wf.tensor(1.0)).item(), 4)
    0.8651
    """
    return x * wf.tanh(wf.softplus(x))


def sigmoid(x: wf.Tensor) -> wf.Tensor:
    """1 / (1 + exp(-x)).

    >>> sigmoid(wf.tensor(0.0)).item()
    0.5
    """
    return wf.sigmoid(x)


def tanh(x: wf.Tensor) -> wf.Tensor:
    """The hyperbolic tangent.

    >>> tanh(wf.tensor(0.0)).item()
    0.0
    """
    return wf.tanh(x)


@unit
def softplus(x: wf.Tensor, beta: float = 1.0, threshold: float = 20.0) -> wf.Tensor:
    """log(1 + exp(beta x)) / beta, and x itself where beta x is above the threshold.

    >>> round(softplus(wf.tensor(0.0)).item(), 4)
    0.6931
    """
    scaled = beta * x
    return wf.where(scaled > threshold, x, wf.softplus(scaled) / beta)


@unit
def softsign(x: wf.Tensor) -> wf.Tensor:
    """x / (1 + |x|).

    >>> softsign(wf.tensor(1.0)).item()
    0.5
    """
    return x / (1 + wf.abs(x))


@unit
def tanhshrink(x: wf.Tensor) -> wf.Tensor:
    """x - tanh(x).

    >>> tanhshrink(wf.tensor(0.0)).item()
    0.0
    """
    narrow = x.dtype.is_floating and x.dtype.bits == 16
    wide = x.astype(wf.float32) if narrow else x  # little is left of the difference of 16 bits
    return (wide - wf.tanh(wide)).astype(x.dtype, copy=False)


@unit(numbers=("min_val", "max_val"))
def hardtanh(x: wf.Tensor, min_val: float = -1.0, max_val: float = 1.0) -> wf.Tensor:
    """x between two bounds.

    >>> hardtanh(wf.tensor([-3.0, 0.5])).tolist()
    [-1.0, 0.5]
    """
    return wf.where(x <= min_val, min_val, wf.where(x >= max_val, max_val, x))


@unit
def hardsigmoid(x: wf.Tensor) -> wf.Tensor:
    """x / 6 + 1/2, between 0 and 1.

    >>> hardsigmoid(wf.tensor([-4.0, 0.0, 4.0])).tolist()
    [0.0, 0.5, 1.0]
    """
    return wf.where(x <= -3.0, 0.0, wf.where(x >= 3.0, 1.0, (x + 3.0) / 6.0))


@unit
def hardswish(x: wf.Tensor) -> wf.Tensor:
    """x hardsigmoid(x).

    >>> hardswish(wf.tensor([0.0, 1.5, 4.0])).tolist()
    [0.0, 1.125, 4.0]
    """
    inside = wf.where(wf.abs(x) >= 3.0, 0.0, x)
    return wf.where(x <= -3.0, 0.0, wf.where(x >= 3.0, x, inside * (inside + 3.0) / 6.0))


@unit(numbers=("lambd",))
def hardshrink(x: wf.Tensor, lambd: float = 0.5) -> wf.Tensor:
    """x, and 0 where |x| is at most the bound.

    >>> hardshrink(wf.tensor([0.25, 2.0])).tolist()
    [0.0, 2.0]
    """
    return wf.where(wf.abs(x) <= lambd, 0.0, x)


@unit(numbers=("lambd",))
def softshrink(x: wf.Tensor, lambd: float = 0.5) -> wf.Tensor:
    """x moved towards 0 by the bound, and no further than 0.

    >>> softshrink(wf.tensor([-2.0, 0.25])).tolist()
    [-1.5, 0.0]
    """
    return wf.where(wf.abs(x) <= lambd, 0.0, x - wf.copysign(lambd, x))


@unit(numbers=("threshold", "value"))
def threshold(x: wf.Tensor, threshold: float, value: float) -> wf.Tensor:
    """x where it is above the threshold, and the value elsewhere.

    >>> threshold(wf.tensor([1.0, 3.0]), 2.0, -1.0).tolist()
    [-1.0, 3.0]
    """
    return wf.where(x <= threshold, value, x)


def log_sigmoid(x: wf.Tensor) -> wf.Tensor:
    """log(sigmoid(x)), exact far from zero.

    >>> log_sigmoid(wf.tensor(-1000.0)).item()
    -1000.0
    """
    return wf.log_sigmoid(x)


def softmax(x: wf.Tensor, axis: int = -1) -> wf.Tensor:
    """Positive numbers that add up to 1 along an axis.

    >>> softmax(wf.tensor([1.0, 1.0])).tolist()
    [0.5, 0.5]
    """
    return wf.softmax(x, axis=axis)


def log_softmax(x: wf.Tensor, axis: int = -1) -> wf.Tensor:
    """The logarithm of softmax.

    >>> [round(v, 4) for v in log_softmax(wf.tensor([1.0, 1.0])).tolist()]
    [-0.6931, -0.6931]
    """
    return wf.log_softmax(x, axis=axis)


def softmin(x: wf.Tensor, axis: int = -1) -> wf.Tensor:
    """softmax of -x.

    >>> softmin(wf.tensor([1.0, 1.0])).tolist()
    [0.5, 0.5]
    """
    return wf.softmin(x, axis=axis)


def glu(x: wf.Tensor, axis: int = -1) -> wf.Tensor:
    """The first half along an axis times the sigmoid of the second.

    >>> glu(wf.tensor([3.0, 0.0])).tolist()
    [1.5]
    """
    return wf.glu(x, axis=axis)


ACTIVATIONS: dict[str, Activation] = {
    function.__name__: function
    for function in (
        relu, relu6, leaky_relu, elu, celu, selu, gelu, silu, mish, sigmoid, tanh, softplus,
        softsign, tanhshrink, hardtanh, hardsigmoid, hardswish, hardshrink, softshrink,
        log_sigmoid, softmax, log_softmax, softmin, glu,
    )
}  # fmt: skip
"""What `activation="name"` means."""
ACTIVATIONS |= {
    "identity": lambda x: x,
    "swish": silu,
    "gelu_tanh": lambda x: gelu(x, "tanh"),
}


def register_activation(name: Any, function: Any) -> None:
    """Give an activation a name that layers take as `activation="name"`.

    >>> register_activation("half", lambda x: x / 2)
    >>> activate("half", wf.tensor(3.0)).item()
    1.5
    """
    if not isinstance(name, str) or not callable(function):
        raise wf.ArgumentTypeError(
            "register_activation",
            "an activation is a function with a name",
            expected="a string and a function from tensor to tensor",
            got={"name": name, "function": function},
            fix='register_activation("cube", lambda x: x ** 3)',
        )
    ACTIVATIONS[name] = function


def activation_name(op: str, name: str) -> str:
    """A name that is registered, or an error that suggests the nearest."""
    if name not in ACTIVATIONS:
        meant = nearest_name(str(name), ACTIVATIONS)
        raise wf.NameUnknownError(
            op,
            f"no activation is registered under {name!r}",
            expected="one of " + ", ".join(ACTIVATIONS),
            got={"activation": name},
            fix=f"activation={meant!r}" if meant else "nn.register_activation(name, function)",
        )
    return name


def activate(name: str, x: wf.Tensor) -> wf.Tensor:
    """The activation of a registered name.

    >>> activate("relu", wf.tensor([-1.0, 1.0])).tolist()
    [0.0, 1.0]
    """
    return ACTIVATIONS[activation_name("activate", name)](x)
