"""Element-wise functions made of others.

>>> import weft as wf
>>> wf.softplus(wf.tensor([1000.0])).tolist()
[1000.0]
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from weft.core.dtypes import float32
from weft.core.errors import ArgumentError
from weft.ir.eager import unit
from weft.ir.tensor import Tensor
from weft.ops.arithmetic import abs, divide, multiply, negative, square
from weft.ops.comparison import equal, isfinite, isnan, less, less_equal
from weft.ops.composed.datatypes import finfo
from weft.ops.elementary import log, log1p, logaddexp, sigmoid, sin, tanh
from weft.ops.logic import logical_and, logical_or
from weft.ops.operands import alias, as_tensor, convert_to, promote_operands, wrong_dtype
from weft.ops.selection import where
from weft.ops.special import erfc

__all__ = [
    "deg2rad", "gelu", "isclose", "isneginf", "isposinf", "lerp", "log_sigmoid", "logit",
    "nan_to_num", "rad2deg", "reciprocal", "silu", "sinc", "softplus",
]  # fmt: skip


@unit
def reciprocal(x: Any, /) -> Tensor:
    """1 divided by each element.

    >>> import weft as wf
    >>> wf.reciprocal(wf.tensor([2.0, 4.0])).tolist()
    [0.5, 0.25]
    """
    return divide(1, x)


def isposinf(x: Any, /) -> Tensor:
    """Whether each element is positive infinity.

    >>> import weft as wf
    >>> wf.isposinf(wf.tensor([1.0, float("inf"), float("-inf")])).tolist()
    [False, True, False]
    """
    return equal(*promote_operands("isposinf", (x, math.inf), "float"))


def isneginf(x: Any, /) -> Tensor:
    """Whether each element is negative infinity.

    >>> import weft as wf
    >>> wf.isneginf(wf.tensor([1.0, float("inf"), float("-inf")])).tolist()
    [False, False, True]
    """
    return equal(*promote_operands("isneginf", (x, -math.inf), "float"))


@unit
def isclose(
    x1: Any, x2: Any, /, *, rtol: float = 1e-5, atol: float = 1e-8, equal_nan: bool = False
) -> Tensor:
    """Whether |x1 - x2| is at most atol + rtol·|x2|; equal infinities are close.

    >>> import weft as wf
    >>> wf.isclose(wf.tensor([1.0, 1.0]), wf.tensor([1.000001, 1.1])).tolist()
    [True, False]
    """
    a, b = promote_operands("isclose", (x1, x2), "inexact")
    near = logical_and(less_equal(abs(a - b), abs(b) * rtol + atol), isfinite(b))
    near = logical_or(near, equal(a, b))
    return logical_or(near, logical_and(isnan(a), isnan(b))) if equal_nan else near


@unit
def nan_to_num(
    x: Any, /, nan: float = 0.0, posinf: float | None = None, neginf: float | None = None
) -> Tensor:
    """Each element, with numbers in place of NaN and, by default the largest, of infinities.

    >>> import weft as wf
    >>> wf.nan_to_num(wf.tensor([1.0, float("nan")])).tolist()
    [1.0, 0.0]
    """
    tensor = as_tensor("nan_to_num", x)
    if tensor.dtype.is_complex:
        raise wrong_dtype("nan_to_num", "real", {"x": tensor})
    if not tensor.dtype.is_floating:
        return alias(tensor)
    largest = finfo(tensor).max
    above = where(isposinf(tensor), largest if posinf is None else posinf, tensor)
    below = where(isneginf(tensor), -largest if neginf is None else neginf, above)
    return where(isnan(tensor), nan, below)


@unit(numbers=("weight",))
def lerp(start: Any, end: Any, weight: Any, /) -> Tensor:
    """Linear interpolation: start where the weight is 0, exactly end where it is 1.

    >>> import weft as wf
    >>> wf.lerp(wf.tensor([0.0, 10.0]), wf.tensor([1.0, 20.0]), 0.5).tolist()
    [0.5, 15.0]
    """
    a, b, w = promote_operands("lerp", (start, end, weight), "inexact")
    near_end = less_equal(0.5, w) if not w.dtype.is_complex else less_equal(0.5, abs(w))
    return where(near_end, b - (b - a) * (1.0 - w), a + (b - a) * w)


def deg2rad(x: Any, /) -> Tensor:
    """Angles in degrees, in radians.

    >>> import weft as wf
    >>> wf.deg2rad(wf.tensor([180.0])).tolist()
    [3.1415927410125732]
    """
    return multiply(*promote_operands("deg2rad", (x, math.pi / 180.0), "float"))


def rad2deg(x: Any, /) -> Tensor:
    """Angles in radians, in degrees.

    >>> import weft as wf
    >>> wf.rad2deg(wf.tensor([0.0, 3.1415927])).tolist()
    [0.0, 180.0]
    """
    return multiply(*promote_operands("rad2deg", (x, 180.0 / math.pi), "float"))


def _in_single(function: Callable[..., Tensor], x: Tensor) -> Tensor:
    """A function of several steps; of 16-bit floats in float32, and rounded once at the end."""
    narrow = x.dtype.is_floating and x.dtype.bits == 16
    return convert_to(function(convert_to(x, float32)), x.dtype) if narrow else function(x)


_SINC = [(-1) ** k / math.factorial(2 * k + 1) for k in range(8)]


@unit
def sinc(x: Any, /) -> Tensor:
    """sin(πx) / (πx), and 1 at 0, with all its derivatives.

    >>> import weft as wf
    >>> wf.sinc(wf.tensor([0.0, 0.5])).tolist()
    [1.0, 0.6366197466850281]
    """
    return _in_single(_sinc, *promote_operands("sinc", (x,), "inexact"))


def _sinc(x: Tensor) -> Tensor:
    angle = x * math.pi
    small = less(abs(angle), 0.5)
    away = where(small, 1.0, angle)
    squared = square(where(small, angle, 0.0))
    near = squared * _SINC[-1]
    for coefficient in _SINC[-2:0:-1]:
        near = (near + coefficient) * squared
    return where(small, near + 1.0, sin(away) / away)


@unit
def softplus(x: Any, /) -> Tensor:
    """log(1 + exp(x)), without overflow: a smooth `relu`.

    >>> import weft as wf
    >>> wf.softplus(wf.tensor([0.0, 1000.0])).tolist()
    [0.6931471824645996, 1000.0]
    """
    return logaddexp(x, 0.0)


@unit
def log_sigmoid(x: Any, /) -> Tensor:
    """log(sigmoid(x)), accurate where the sigmoid is close to 0.

    >>> import weft as wf
    >>> wf.log_sigmoid(wf.tensor([0.0, -1000.0])).tolist()
    [-0.6931471824645996, -1000.0]
    """
    return negative(logaddexp(negative(*promote_operands("log_sigmoid", (x,), "float")), 0.0))


@unit
def logit(x: Any, /) -> Tensor:
    """log(x / (1 - x)): the inverse of `sigmoid`.

    >>> import weft as wf
    >>> wf.logit(wf.tensor([0.5, 1.0])).tolist()
    [0.0, inf]
    """
    (x,) = promote_operands("logit", (x,), "float")
    return log(x) - log1p(-x)


@unit
def silu(x: Any, /) -> Tensor:
    """x·sigmoid(x), also called swish.

    >>> import weft as wf
    >>> wf.silu(wf.tensor([0.0, 100.0])).tolist()
    [0.0, 100.0]
    """
    return multiply(x, sigmoid(x))


@unit
def gelu(x: Any, /, *, approximate: str = "none") -> Tensor:
    """x·Φ(x) with the normal distribution function Φ; approximate="tanh" is the older formula.

    >>> import weft as wf
    >>> wf.gelu(wf.tensor([0.0, 100.0])).tolist()
    [0.0, 100.0]
    """
    (x,) = promote_operands("gelu", (x,), "float")
    if approximate == "none":
        return _in_single(_gelu, x)
    if approximate != "tanh":
        raise ArgumentError(
            "gelu",
            f"no approximation is called {approximate!r}",
            expected='"none" or "tanh"',
            got={"approximate": approximate},
            fix='wf.gelu(x, approximate="tanh")',
        )
    return _in_single(_gelu_by_tanh, x)


def _gelu(x: Tensor) -> Tensor:
    return multiply(x, erfc(multiply(x, -math.sqrt(0.5))) * 0.5)


def _gelu_by_tanh(x: Tensor) -> Tensor:
    inner = multiply(square(x) * 0.044715 + 1.0, x) * math.sqrt(2.0 / math.pi)
    return multiply(x, (tanh(inner) + 1.0) * 0.5)
