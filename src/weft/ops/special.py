"""Special functions: the error function, the gamma function and its logarithm, Bessel functions.

>>> import weft as wf
>>> wf.erf(wf.tensor([0.0, float("inf")])).tolist()
[0.0, 1.0]
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from weft.core.errors import ArgumentError, DTypeError, Unsupported
from weft.core.types import TensorType
from weft.ir import ranges
from weft.ir.derivatives import tangent
from weft.ir.dispatch import apply
from weft.ir.kinds import DEAR, Elementwise
from weft.ir.primitive import Mistake, Primitive, Sample
from weft.ir.scalar_functions import times_unless_zero
from weft.ir.tensor import Tensor
from weft.ops import special_scalars as expressions
from weft.ops import special_series as series
from weft.ops.arithmetic import abs, negative, sign, square
from weft.ops.comparison import equal, less_equal
from weft.ops.elementary import exp, log, log1p
from weft.ops.families import Function, elementwise
from weft.ops.logic import logical_and
from weft.ops.operands import DTYPE_CLASSES, as_integer, promote_operands, wrong_dtype
from weft.ops.selection import where

__all__ = [
    "digamma", "erf", "erfc", "erfinv", "i0", "i0e", "i1", "i1e", "lgamma", "polygamma", "xlog1py",
    "xlogy",
]  # fmt: skip

Array = np.ndarray[Any, Any]
_BELL = 2.0 / math.sqrt(math.pi)
_LONG_SERIES = Unsupported("the series has seventy terms, too many to write out")

# --- the error function ------------------------------------------------------------------------

erf: Function = elementwise(
    "erf",
    doc="The error function: 2/√π times the integral of exp(-t²) from 0 to each element.",
    example='[0.0, float("inf"), -10.0] -> [0.0, 1.0, -1.0]',
    kind=Elementwise(bounds=ranges.fixed_bounds(ranges.Range(-1.0, 1.0))),
    reference=series.in_double(series.erf),
    derivatives=[tangent(lambda t, out, x: t * (exp(negative(square(x))) * _BELL))],
    lower=lambda scalar, x: scalar.erf(x),
    dtypes="float",
)

erfc: Function = elementwise(
    "erfc",
    doc="1 - erf(x), accurate where that is tiny.",
    example='[0.0, float("inf"), -10.0] -> [1.0, 0.0, 2.0]',
    reference=series.in_double(series.erfc),
    derivatives=[tangent(lambda t, out, x: t * (exp(negative(square(x))) * -_BELL))],
    lower=lambda scalar, x: scalar.erfc(x),
    dtypes="float",
)

erfinv: Function = elementwise(
    "erfinv",
    doc="The number whose error function is each element, which lies between -1 and 1.",
    example="[0.0, 1.0, -1.0] -> [0.0, inf, -inf]",
    reference=series.in_double(series.erfinv),
    derivatives=[tangent(lambda t, out, x: t * (exp(square(out)) / _BELL))],
    lower=lambda scalar, x: expressions.erfinv(x),
    dtypes="float",
    domain=(-0.9, 0.9),
)

# --- the gamma function ------------------------------------------------------------------------

lgamma: Function = elementwise(
    "lgamma",
    doc="The logarithm of the absolute value of the gamma function.",
    example="[1.0, 2.0, 0.0, -1.0] -> [0.0, 0.0, inf, inf]",
    reference=series.in_double(series.lgamma),
    derivatives=[tangent(lambda t, out, x: t * digamma(x))],
    lower=lambda scalar, x: scalar.lgamma(x),
    dtypes="float",
    domain=(0.3, 4.0),
)

digamma: Function = elementwise(
    "digamma",
    doc="The derivative of lgamma.",
    example="[0.0, -1.0] -> [-inf, nan]",
    reference=series.in_double(series.digamma),
    derivatives=[tangent(lambda t, out, x: t * polygamma(1, x))],
    lower=lambda scalar, x: expressions.digamma(x),
    dtypes="float",
    domain=(0.3, 4.0),
)

_HIGHEST = 170
"""The greatest order whose factorial is a double."""


def _polygamma_type(x: TensorType, order: int) -> TensorType:
    if x.dtype not in DTYPE_CLASSES["float"]:
        raise wrong_dtype("polygamma", "float", {"x": x})
    if not 1 <= order <= _HIGHEST:
        raise ArgumentError(
            "polygamma",
            f"no derivative of order {order}",
            expected=f"an order from 0 to {_HIGHEST}",
            got={"n": order, "x": x},
            fix="pass the order first: wf.polygamma(1, x)",
        )
    return x


_polygamma: Primitive = Primitive(
    "polygamma",
    "The derivative of digamma, of an order of at least 1.",
    kind=Elementwise(),
    lower=Unsupported("the series is summed until it converges"),
    cost=DEAR,
    type_rule=_polygamma_type,
    reference=series.in_double(series.polygamma),
    derivatives=[tangent(lambda t, out, x, order: t * polygamma(order + 1, x), diagonal=True)],
    batch=lambda size, operands, axes, order: (apply(_polygamma, *operands, order=order), axes[0]),
    samples=lambda: [
        Sample((np.linspace(0.7, 4.0, 6, dtype=np.float32).reshape(2, 3),), {"order": 1}),
        Sample((np.array([-0.5, -1.3], np.float32),), {"order": 2}),
        Sample((np.float32(1.5),), {"order": 3}),
        Sample((np.zeros((0, 2), np.float32),), {"order": 1}),
    ],
    mistakes=lambda: [
        Mistake((np.ones(2, np.float32),), {"order": -1}, ArgumentError, "no derivative of order"),
        Mistake((np.ones(2, np.complex64),), {"order": 1}, DTypeError, "not defined"),
    ],
)


def polygamma(n: int, x: Any, /) -> Tensor:
    """The derivative of digamma of order n, a Python integer; digamma itself for n = 0.

    >>> import weft as wf
    >>> wf.polygamma(1, wf.tensor([1.0])).tolist()  # π²/6
    [1.644934058189392]
    """
    n = as_integer("polygamma", "n", n)
    if n == 0:
        return digamma(x)
    return apply(_polygamma, *promote_operands("polygamma", (x,), "float"), order=n)


# --- products with logarithms ------------------------------------------------------------------


def _times_log(x: Array, y: Array, logarithm: Callable[[Array], Array]) -> Array:
    product = np.asarray(x * logarithm(y))
    return np.where((x == 0) & ~np.isnan(y), x.dtype.type(0), product)


def _share(x: Any, y: Any) -> Tensor:
    """x / y, but 0 where x is."""
    zero = equal(x, 0.0)
    return where(zero, 0.0, x / where(zero, 1.0, y))


xlogy: Function = elementwise(
    "xlogy",
    doc="x1·log(x2), and 0 where x1 is 0, whatever x2 is short of NaN.",
    example="[0.0, 1.0], [0.0, 1.0] -> [0.0, 0.0]",
    reference=partial(_times_log, logarithm=np.log),
    derivatives=[
        tangent(lambda t, out, x1, x2: t * log(_with_neutral(x1, x2, 1.0, 0.0))),
        tangent(lambda t, out, x1, x2: t * _share(x1, x2)),
    ],
    lower=lambda scalar, x1, x2: times_unless_zero(x1, x2, x1 * scalar.log(x2)),
    dtypes="float",
    exact="parts",
    domain=((-2.0, 2.0), (0.3, 2.0)),
)

xlog1py: Function = elementwise(
    "xlog1py",
    doc="x1·log1p(x2), and 0 where x1 is 0, whatever x2 is short of NaN.",
    example="[0.0, 1.0], [-1.0, 0.0] -> [0.0, 0.0]",
    reference=partial(_times_log, logarithm=np.log1p),
    derivatives=[
        tangent(lambda t, out, x1, x2: t * log1p(_with_neutral(x1, x2, 0.0, -1.0))),
        tangent(lambda t, out, x1, x2: t * _share(x1, x2 + 1.0)),
    ],
    lower=lambda scalar, x1, x2: times_unless_zero(x1, x2, x1 * scalar.log1p(x2)),
    dtypes="float",
    exact="parts",
    domain=((-2.0, 2.0), (-0.5, 2.0)),
)


def _with_neutral(x: Any, y: Any, neutral: float, edge: float) -> Tensor:
    """y, but the number with logarithm 0 where x is 0 and y has no logarithm."""
    return where(logical_and(equal(x, 0.0), less_equal(y, edge)), neutral, y)


# --- modified Bessel functions -----------------------------------------------------------------

i0e: Function = elementwise(
    "i0e",
    doc="exp(-|x|)·I₀(x), the modified Bessel function of order 0, scaled.",
    example="[0.0] -> [1.0]",
    cost=DEAR,
    reference=series.in_double(partial(series.bessel_ie, order=0)),
    derivatives=[tangent(lambda t, out, x: t * (i1e(x) - sign(x) * out))],
    lower=_LONG_SERIES,
    dtypes="float",
    domain=(0.3, 4.0),
)

i1e: Function = elementwise(
    "i1e",
    doc="exp(-|x|)·I₁(x), the modified Bessel function of order 1, scaled.",
    example="[0.0] -> [0.0]",
    cost=DEAR,
    reference=series.in_double(partial(series.bessel_ie, order=1)),
    derivatives=[tangent(lambda t, out, x: t * (i0e(x) - sign(x) * out - _by_itself(out, x)))],
    lower=_LONG_SERIES,
    dtypes="float",
    domain=(0.3, 4.0),
)


def _by_itself(out: Tensor, x: Tensor) -> Tensor:
    """i1e(x) / x, which is 1/2 at 0."""
    zero = equal(x, 0.0)
    return where(zero, 0.5, out / where(zero, 1.0, x))


def i0(x: Any, /) -> Tensor:
    """The modified Bessel function of order 0.

    >>> import weft as wf
    >>> wf.i0(wf.tensor([0.0])).tolist()
    [1.0]
    """
    (x,) = promote_operands("i0", (x,), "float")
    return exp(abs(x)) * i0e(x)


def i1(x: Any, /) -> Tensor:
    """The modified Bessel function of order 1.

    >>> import weft as wf
    >>> wf.i1(wf.tensor([0.0])).tolist()
    [0.0]
    """
    (x,) = promote_operands("i1", (x,), "float")
    return exp(abs(x)) * i1e(x)
