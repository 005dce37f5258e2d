"""Element-wise elementary functions: powers, exponentials, logarithms, circles and hyperbolas.

>>> import weft as wf
>>> wf.exp(wf.tensor([0.0])).tolist()
[1.0]
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from weft.core.errors import ArgumentError
from weft.core.types import TensorType
from weft.ir import numerics, ranges
from weft.ir import scalar_functions as functions
from weft.ir.derivatives import tangent
from weft.ir.dispatch import apply
from weft.ir.kinds import Elementwise
from weft.ir.primitive import Mistake, Primitive, Sample
from weft.ir.tensor import Tensor
from weft.ops.arithmetic import divide, hypot, multiply, negative, square, subtract
from weft.ops.comparison import equal, isfinite, isinf, less, less_equal
from weft.ops.families import Function, elementwise
from weft.ops.logic import logical_and, logical_not, logical_or
from weft.ops.operands import DTYPE_CLASSES, alias, wrong_dtype
from weft.ops.selection import where

__all__ = [
    "acos", "acosh", "asin", "asinh", "atan", "atan2", "atanh", "cbrt", "cos", "cosh", "exp",
    "exp2", "expm1", "log", "log1p", "log2", "log10", "logaddexp", "pow", "relu", "rsqrt",
    "sigmoid", "sin", "sinh", "sqrt", "tan", "tanh",
]  # fmt: skip

Array = np.ndarray[Any, Any]

# --- powers and roots --------------------------------------------------------------------------

sqrt: Function = elementwise(
    "sqrt",
    doc="The square root of each element; its derivative at 0 is infinite.",
    example="[4.0, 2.25] -> [2.0, 1.5]",
    kind=Elementwise(needs_positive=True, bounds=ranges.of_root),
    reference=np.sqrt,
    derivatives=[tangent(lambda t, out, x: t * 0.5 / out)],
    lower=lambda scalar, x: scalar.sqrt(x),
    domain=(0.2, 3.0),
)

rsqrt: Function = elementwise(
    "rsqrt",
    doc="The reciprocal of the square root of each element.",
    example="[4.0, 0.25] -> [0.5, 2.0]",
    kind=Elementwise(needs_positive=True),
    reference=lambda x: np.reciprocal(np.sqrt(x)),
    derivatives=[tangent(lambda t, out, x: t * (out / x * -0.5))],
    lower=lambda scalar, x: 1 / scalar.sqrt(x),
    domain=(0.2, 3.0),
)

cbrt: Function = elementwise(
    "cbrt",
    doc="The cube root of each element, which negative numbers have too.",
    example="[8.0, -1.0] -> [2.0, -1.0]",
    reference=np.cbrt,
    derivatives=[tangent(lambda t, out, x: t / (square(out) * 3.0))],
    lower=lambda scalar, x: scalar.cbrt(x),
    dtypes="float",
    domain=(0.2, 3.0),
)


def _negative_exponent(base: object, exponent: object) -> ArgumentError:
    return ArgumentError(
        "pow",
        "an integer to a negative power is not an integer",
        expected="exponents of at least 0, or a floating-point base",
        got={"x1": base, "x2": exponent},
        fix='convert the base first: x1.astype("float32") ** x2',
    )


def _power(x1: Array, x2: Array) -> Any:
    if x2.dtype.kind == "i" and (x2 < 0).any():
        raise _negative_exponent(x1, x2)
    return _inexact_power(x1, x2)


def _inexact_power(x1: Any, x2: Any) -> Any:
    """NumPy's, but for one exponent 1/2: NumPy's square root has other special cases."""
    if (type(x2) is float or x2.size == 1) and x2 == 0.5 and x1.dtype.kind == "f":
        return np.where(x1 == -np.inf, x1.dtype.type(np.inf), np.sqrt(x1) + x1.dtype.type(0))
    return np.power(x1, x2)


def _power_slope(t: Tensor, x1: Tensor, x2: Any) -> Tensor:
    """t·x2·x1^(x2 - 1), which is 0 for x2 = 0 also where x1 is 0, infinite or NaN."""
    if isinstance(x2, float):
        return multiply(t, pow(x1, x2 - 1.0) * x2 if x2 else 0.0)
    open_base = logical_or(equal(x1, 0.0), logical_not(isfinite(x1)))
    constant_one = logical_and(equal(x2, 0.0), open_base)
    return multiply(t, x2 * general_pow(x1, where(constant_one, 0.0, x2 - 1.0)))


def _exponent_slope(t: Tensor, out: Tensor, x1: Any, x2: Any) -> Tensor:
    """t·out·log(x1), and 0 where out is 0, as for 0² and ∞⁻¹, or where both operands are 0.

    Negative numbers have powers at whole exponents only, which do not move: 0 there, too, so that
    a slope by the base alone can be asked for in forward mode.
    """
    if isinstance(x1, float) and 0.0 < x1 < math.inf:
        return t * (out * math.log(x1))
    resting = logical_or(equal(out, 0.0), logical_and(equal(x1, 0.0), equal(x2, 0.0)))
    if not out.dtype.is_complex:
        resting = logical_or(resting, less(x1, 0.0))
    return t * (out * log(where(resting, 1.0, x1)))


general_pow: Function = elementwise(
    "pow",
    doc="The first to the power of the second.",
    reference=_power,
    derivatives=[
        tangent(lambda t, out, x1, x2: _power_slope(t, x1, x2)),
        tangent(lambda t, out, x1, x2: _exponent_slope(t, out, x1, x2)),
    ],
    lower=lambda scalar, x1, x2: functions.power(x1, x2),
    dtypes="number",
    exact="inexact",
    kernel=_inexact_power,
    domain=((0.5, 2.0), (-2.0, 2.0)),
    samples=lambda: _pow_samples(),
)


def _pow_samples() -> list[Sample]:
    x = np.linspace(0.5, 2.0, 6, dtype=np.float32).reshape(2, 3)
    y = np.linspace(-1.9, 2.0, 3, dtype=np.float32)
    z = (x + 0.3j).astype(np.complex64)
    return [
        Sample((x, y)),
        Sample((x[0, 0], y[0])),
        Sample((x, y[0])),
        Sample((x[:0], y)),
        Sample((z, (y + 0.5j).astype(np.complex64))),
        Sample((np.array([[2], [-3]]), np.arange(4))),
    ]


_LARGE_EXPONENT = 2**31


def _integer_power_type(x: TensorType, exponent: int) -> TensorType:
    if x.dtype not in DTYPE_CLASSES["number"]:
        raise wrong_dtype("pow", "number", {"x": x})
    if exponent < 0 and x.dtype.is_integer:
        raise _negative_exponent(x, exponent)
    if abs(exponent) >= _LARGE_EXPONENT:
        raise ArgumentError(
            "pow",
            "the exponent is too large",
            expected="a whole exponent below 2**31, or a float",
            got={"x": x, "exponent": exponent},
            fix="x ** float(exponent)",
        )
    return x


def _integer_power(x: Array, exponent: int) -> Any:
    """Small powers by products, which are quick and exact; the others by NumPy."""
    if exponent < 0:
        return np.reciprocal(_integer_power(x, -exponent))
    if x.dtype.kind in "iu" and exponent > 8:  # an exponent may be too large for the dtype
        half = _integer_power(x, exponent // 2)
        return half * half * x if exponent % 2 else half * half
    if exponent > 8 or x.dtype.itemsize == 2:
        return np.power(x, x.dtype.type(exponent)).astype(x.dtype, copy=False)
    result: Any = np.ones_like(x)
    for _ in range(exponent):
        result = result * x
    return result


def _whole_slope(x: Tensor, exponent: int) -> Any:
    return pow(x, exponent - 1) * float(exponent) if exponent else 0.0


integer_pow: Primitive = Primitive(
    "integer_pow",
    "Each element to the power of one integer.",
    kind=Elementwise(bounds=ranges.of_power),
    type_rule=_integer_power_type,
    reference=_integer_power,
    derivatives=[tangent(lambda t, out, x, exponent: t * _whole_slope(x, exponent), diagonal=True)],
    batch=lambda size, operands, axes, exponent: (
        apply(integer_pow, *operands, exponent=exponent),
        axes[0],
    ),
    samples=lambda: (
        [
            Sample(
                (np.linspace(0.5, 2.0, 6, dtype=np.float32).reshape(2, 3),), {"exponent": exponent}
            )
            for exponent in (3, -1, -2, 0, 1, 11)
        ]
        + [
            Sample((np.array([0.0, -1.5], np.float32),), {"exponent": 3}),
            Sample((np.array([1 + 1j, 2 - 1j], np.complex64),), {"exponent": -3}),
            Sample((np.array([2, -3]),), {"exponent": 5}),
            Sample((np.zeros((0, 2), np.float32),), {"exponent": 3}),
        ]
    ),
    mistakes=lambda: [
        Mistake((np.array([2]),), {"exponent": -1}, ArgumentError, "to a negative power"),
    ],
    lower=lambda scalar, x, exponent: functions.integer_power(x, exponent),
)


def pow(x1: Any, x2: Any, /) -> Tensor:
    """The first to the power of the second.

    A Python number that is whole, as in x**2, is exact and quick. Integers have no negative powers.

    >>> import weft as wf
    >>> wf.pow(wf.tensor([2.0, 3.0]), 2).tolist()
    [4.0, 9.0]
    >>> wf.pow(wf.tensor([2, 3]), wf.tensor([3, 2])).tolist()
    [8, 9]
    """
    if type(x1) is Tensor:
        kind = type(x2)
        whole = kind is int or (kind is float and x2.is_integer() and x1.dtype.is_inexact)
        if whole and -_LARGE_EXPONENT < x2 < _LARGE_EXPONENT:
            return _whole_power(x1, int(x2))
    return general_pow(x1, x2)


def _whole_power(x: Tensor, exponent: int) -> Tensor:
    if exponent == 2:
        return square(x)
    if exponent == 1 and x.dtype in DTYPE_CLASSES["number"]:
        return alias(x)
    if exponent == -1 and x.dtype.is_inexact:
        return divide(1.0, x)
    return apply(integer_pow, x, exponent=exponent)


# --- exponentials and logarithms ---------------------------------------------------------------

exp: Function = elementwise(
    "exp",
    doc="e to the power of each element.",
    example='[0.0, float("-inf")] -> [1.0, 0.0]',
    kind=Elementwise(bounds=ranges.fixed_bounds(ranges.POSITIVE)),
    reference=np.exp,
    derivatives=[tangent(lambda t, out, x: t * out)],
    lower=lambda scalar, x: scalar.exp(x),
)

exp2: Function = elementwise(
    "exp2",
    doc="2 to the power of each element.",
    example="[3.0, -1.0] -> [8.0, 0.5]",
    kind=Elementwise(bounds=ranges.fixed_bounds(ranges.POSITIVE)),
    reference=np.exp2,
    derivatives=[tangent(lambda t, out, x: t * (out * math.log(2.0)))],
    lower=lambda scalar, x: scalar.exp2(x),
)


def _expm1(x: Array) -> Any:
    """For complex numbers NumPy's expm1 loses infinities that its exp keeps, and 0 for -0 + 0j."""
    if x.dtype.kind != "c":
        return np.expm1(x)
    result = np.asarray(np.expm1(x))
    result.real += 0
    return np.where(np.isfinite(result), result, np.exp(x) - x.dtype.type(1))


expm1: Function = elementwise(
    "expm1",
    doc="e to the power of each element, less 1; accurate near 0.",
    example="[0.0, 1e-20] -> [0.0, 9.999999682655225e-21]",
    reference=_expm1,
    derivatives=[tangent(lambda t, out, x: t * (out + 1.0))],
    lower=lambda scalar, x: scalar.expm1(x),
    exact="float",
    kernel=np.expm1,
)

log: Function = elementwise(
    "log",
    doc="The natural logarithm of each element.",
    example="[1.0, 0.0] -> [0.0, -inf]",
    kind=Elementwise(needs_positive=True),
    reference=np.log,
    derivatives=[tangent(lambda t, out, x: t / x)],
    lower=lambda scalar, x: scalar.log(x),
    domain=(0.1, 3.0),
)

log1p: Function = elementwise(
    "log1p",
    doc="The natural logarithm of 1 + x; accurate near 0.",
    example="[0.0, 1e-20] -> [0.0, 9.999999682655225e-21]",
    reference=np.log1p,
    derivatives=[tangent(lambda t, out, x: t / (x + 1.0))],
    lower=lambda scalar, x: scalar.log1p(x),
    domain=(-0.8, 2.0),
)

log2: Function = elementwise(
    "log2",
    doc="The logarithm of each element to the base 2.",
    example="[8.0, 0.5] -> [3.0, -1.0]",
    kind=Elementwise(needs_positive=True),
    reference=np.log2,
    derivatives=[tangent(lambda t, out, x: t / (x * math.log(2.0)))],
    lower=lambda scalar, x: scalar.log2(x),
    domain=(0.1, 3.0),
)

log10: Function = elementwise(
    "log10",
    doc="The logarithm of each element to the base 10.",
    example="[1.0, 0.0] -> [0.0, -inf]",
    kind=Elementwise(needs_positive=True),
    reference=np.log10,
    derivatives=[tangent(lambda t, out, x: t / (x * math.log(10.0)))],
    lower=lambda scalar, x: scalar.log10(x),
    domain=(0.1, 3.0),
)


def _exponent_difference(mine: Any, other: Any) -> Tensor:
    """The difference of two exponents, 0 where both are the same infinity."""
    same = logical_and(equal(mine, other), isinf(mine))
    return where(same, 0.0, subtract(mine, other))


logaddexp: Function = elementwise(
    "logaddexp",
    doc="log(exp(x1) + exp(x2)), without overflow on the way.",
    example='[1000.0, 1.0], [0.0, float("-inf")] -> [1000.0, 1.0]',
    commutative=True,
    reference=np.logaddexp,
    derivatives=[
        tangent(lambda t, out, x1, x2: t * sigmoid(_exponent_difference(x1, x2))),
        tangent(lambda t, out, x1, x2: t * sigmoid(_exponent_difference(x2, x1))),
    ],
    lower=lambda scalar, x1, x2: functions.add_exponentials(x1, x2),
    dtypes="float",
)


def _sigmoid(x: Array) -> Any:
    """In float32 for 16-bit floats: their exponentials overflow before the result vanishes."""
    if x.dtype.itemsize == 2:
        return _sigmoid(x.astype(np.float32)).astype(x.dtype)
    return np.reciprocal(np.exp(np.negative(x)) + x.dtype.type(1))


sigmoid: Function = elementwise(
    "sigmoid",
    doc="The logistic function 1 / (1 + exp(-x)) of each element.",
    example="[0.0, 100.0, -1000.0] -> [0.5, 1.0, 0.0]",
    kind=Elementwise(bounds=ranges.fixed_bounds(ranges.Range(0.0, 1.0, reached=False))),
    reference=_sigmoid,
    derivatives=[tangent(lambda t, out, x: t * (out * (1.0 - out)))],
    lower=lambda scalar, x: 1 / (scalar.exp(-x) + 1),
    dtypes="float",
)

relu: Function = elementwise(
    "relu",
    doc="Each element where it is positive, 0 elsewhere; the derivative at 0 is 0.",
    example="[-1.0, 0.0, 2.0] -> [0.0, 0.0, 2.0]",
    kind=Elementwise(bounds=ranges.of_relu),
    reference=numerics.positive_part,
    derivatives=[tangent(lambda t, out, x: where(less_equal(out, 0.0), 0.0, t))],
    lower=lambda scalar, x: scalar.maximum(x, 0),
    dtypes="real",
)

# --- the circle --------------------------------------------------------------------------------

sin: Function = elementwise(
    "sin",
    doc="The sine of each element, in radians.",
    example="[0.0] -> [0.0]",
    kind=Elementwise(bounds=ranges.fixed_bounds(ranges.Range(-1.0, 1.0))),
    reference=np.sin,
    derivatives=[tangent(lambda t, out, x: t * cos(x))],
    lower=lambda scalar, x: scalar.sin(x),
)

cos: Function = elementwise(
    "cos",
    doc="The cosine of each element, in radians.",
    example="[0.0] -> [1.0]",
    kind=Elementwise(bounds=ranges.fixed_bounds(ranges.Range(-1.0, 1.0))),
    reference=np.cos,
    derivatives=[tangent(lambda t, out, x: negative(t) * sin(x))],
    lower=lambda scalar, x: scalar.cos(x),
)

tan: Function = elementwise(
    "tan",
    doc="The tangent of each element, in radians.",
    example="[0.0] -> [0.0]",
    reference=np.tan,
    derivatives=[tangent(lambda t, out, x: t * (square(out) + 1.0))],
    lower=lambda scalar, x: scalar.tan(x),
    domain=(-1.2, 1.2),
)

asin: Function = elementwise(
    "asin",
    doc="The angle between -π/2 and π/2 with this sine.",
    example="[0.0] -> [0.0]",
    reference=np.arcsin,
    derivatives=[tangent(lambda t, out, x: t / sqrt((1.0 - x) * (x + 1.0)))],
    lower=lambda scalar, x: scalar.asin(x),
    domain=(-0.9, 0.9),
)

acos: Function = elementwise(
    "acos",
    doc="The angle between 0 and π with this cosine.",
    example="[1.0] -> [0.0]",
    reference=np.arccos,
    derivatives=[tangent(lambda t, out, x: negative(t) / sqrt((1.0 - x) * (x + 1.0)))],
    lower=lambda scalar, x: scalar.acos(x),
    domain=(-0.9, 0.9),
)

atan: Function = elementwise(
    "atan",
    doc="The angle between -π/2 and π/2 with this tangent.",
    example="[0.0] -> [0.0]",
    reference=np.arctan,
    derivatives=[tangent(lambda t, out, x: t / (square(x) + 1.0))],
    lower=lambda scalar, x: scalar.atan(x),
)


def _angle_tangent(t: Tensor, x1: Any, x2: Any, side: Any) -> Tensor:
    """t·side / (x1² + x2²), without overflow on the way, and 0 at the origin."""
    length = hypot(x1, x2)
    length = where(equal(length, 0.0), 1.0, length)
    return multiply(t, side / length / length)


atan2: Function = elementwise(
    "atan2",
    doc="The angle between -π and π of the point with ordinate x1 and abscissa x2.",
    example="[0.0, 0.0], [1.0, 2.0] -> [0.0, 0.0]",
    reference=np.arctan2,
    derivatives=[
        tangent(lambda t, out, x1, x2: _angle_tangent(t, x1, x2, x2)),
        tangent(lambda t, out, x1, x2: negative(_angle_tangent(t, x1, x2, x1))),
    ],
    lower=lambda scalar, x1, x2: scalar.atan2(x1, x2),
    dtypes="float",
    domain=((0.3, 2.0), (-2.0, 2.0)),
)

# --- the hyperbola -----------------------------------------------------------------------------

sinh: Function = elementwise(
    "sinh",
    doc="The hyperbolic sine of each element.",
    example="[0.0] -> [0.0]",
    reference=np.sinh,
    derivatives=[tangent(lambda t, out, x: t * cosh(x))],
    lower=lambda scalar, x: scalar.sinh(x),
)

cosh: Function = elementwise(
    "cosh",
    doc="The hyperbolic cosine of each element.",
    example="[0.0] -> [1.0]",
    reference=np.cosh,
    derivatives=[tangent(lambda t, out, x: t * sinh(x))],
    lower=lambda scalar, x: scalar.cosh(x),
)


def _tanh(x: Array) -> Any:
    """±1 ± 0j far from the imaginary axis, with the operand's signs as the Array API demands."""
    if x.dtype.kind != "c":
        return np.tanh(x)
    limit = np.empty_like(x)
    limit.real, limit.imag = np.copysign(1, x.real), np.copysign(0, x.imag)
    return np.where(np.isinf(x.real), limit, np.tanh(x))


tanh: Function = elementwise(
    "tanh",
    doc="The hyperbolic tangent of each element.",
    example="[0.0, 100.0] -> [0.0, 1.0]",
    kind=Elementwise(bounds=ranges.fixed_bounds(ranges.Range(-1.0, 1.0))),
    reference=_tanh,
    derivatives=[tangent(lambda t, out, x: t * (1.0 - out * out))],
    lower=lambda scalar, x: scalar.tanh(x),
    exact="float",
    kernel=np.tanh,
)

asinh: Function = elementwise(
    "asinh",
    doc="The number with this hyperbolic sine.",
    example="[0.0] -> [0.0]",
    reference=np.arcsinh,
    derivatives=[tangent(lambda t, out, x: t / cosh(out))],
    lower=lambda scalar, x: scalar.asinh(x),
)

acosh: Function = elementwise(
    "acosh",
    doc="The number of at least 0 with this hyperbolic cosine.",
    example="[1.0] -> [0.0]",
    reference=np.arccosh,
    derivatives=[tangent(lambda t, out, x: t / sinh(out))],
    lower=lambda scalar, x: scalar.acosh(x),
    domain=(1.3, 3.0),
)

atanh: Function = elementwise(
    "atanh",
    doc="The number with this hyperbolic tangent.",
    example="[0.0, 1.0] -> [0.0, inf]",
    reference=np.arctanh,
    derivatives=[tangent(lambda t, out, x: t / ((1.0 - x) * (x + 1.0)))],
    lower=lambda scalar, x: scalar.atanh(x),
    domain=(-0.8, 0.8),
)
