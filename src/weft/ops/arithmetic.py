"""Element-wise arithmetic: sums, products, quotients, roundings, parts of complex numbers.

Every tangent rule here multiplies by a number that depends on the operands analytically. What does
not (the absolute value and the sign of a complex number) is composed of real and imaginary parts.

>>> import weft as wf
>>> wf.multiply(wf.tensor([2.0, 3.0]), 2).tolist()
[4.0, 6.0]
"""

from __future__ import annotations

import builtins
from collections.abc import Callable
from typing import Any

import numpy as np

from weft.core.dtypes import float32
from weft.core.errors import Unsupported
from weft.ir import numerics, ranges
from weft.ir import scalar_functions as functions
from weft.ir.derivatives import additive, constant, linear, tangent
from weft.ir.kinds import Elementwise
from weft.ir.primitive import Lower
from weft.ir.reverse import filled_like
from weft.ir.tensor import Tensor
from weft.ops.comparison import equal, less
from weft.ops.families import Function, elementwise
from weft.ops.operands import alias, as_integer, convert_to, promote_operands, wrong_dtype
from weft.ops.selection import where

__all__ = [
    "abs", "add", "ceil", "conj", "copysign", "divide", "floor", "floor_divide", "fmod", "hypot",
    "imag", "maximum", "minimum", "multiply", "negative", "nextafter", "positive", "real",
    "remainder", "round", "sign", "square", "subtract", "trunc",
]  # fmt: skip

Array = np.ndarray[Any, Any]
_STEPS = constant("the result changes in steps")


def _conj(x: Any) -> Any:
    """The complex conjugate, free of charge for real operands."""
    return conj(x) if isinstance(x, Tensor) and x.dtype.is_complex else x


# --- sums and products -------------------------------------------------------------------------

add: Function = elementwise(
    "add",
    doc="The sum of two tensors.",
    example="[1.0, 2.0], [3.0, 4.0] -> [4.0, 6.0]",
    commutative=True,
    kind=Elementwise(bounds=ranges.of_sum),
    reference=np.add,
    derivatives=[additive(lambda ct, x1, x2: ct), additive(lambda ct, x1, x2: ct)],
    lower=lambda scalar, x1, x2: scalar.add(x1, x2),
    dtypes="number",
)

subtract: Function = elementwise(
    "subtract",
    doc="The difference of two tensors.",
    example="[1.0, 2.0], [3.0, 5.0] -> [-2.0, -3.0]",
    kind=Elementwise(bounds=ranges.of_difference),
    reference=np.subtract,
    derivatives=[additive(lambda ct, x1, x2: ct), additive(lambda ct, x1, x2: negative(ct))],
    lower=lambda scalar, x1, x2: scalar.subtract(x1, x2),
    dtypes="number",
)

multiply: Function = elementwise(
    "multiply",
    doc="The product of two tensors, element by element.",
    example="[1.0, 2.0], [3.0, 4.0] -> [3.0, 8.0]",
    commutative=True,
    kind=Elementwise(bounds=ranges.of_product),
    reference=np.multiply,
    derivatives=[
        linear(lambda ct, x1, x2: multiply(ct, _conj(x2))),
        linear(lambda ct, x1, x2: multiply(ct, _conj(x1))),
    ],
    lower=lambda scalar, x1, x2: scalar.multiply(x1, x2),
    dtypes="number",
)

divide: Function = elementwise(
    "divide",
    doc="The quotient of two tensors, element by element; integers give the default float.",
    example="[1.0, 3.0], [2.0, 4.0] -> [0.5, 0.75]",
    kind=Elementwise(bounds=ranges.of_quotient),
    reference=np.divide,
    derivatives=[
        linear(lambda ct, x1, x2: divide(ct, _conj(x2))),
        tangent(lambda t, out, x1, x2: negative(t) * (out / x2)),
    ],
    lower=lambda scalar, x1, x2: scalar.divide(x1, x2),
    domain=((-2.0, 2.0), (0.5, 2.0)),
)

negative: Function = elementwise(
    "negative",
    doc="The negative of each element; unsigned integers wrap around.",
    example="[1.0, -2.0] -> [-1.0, 2.0]",
    kind=Elementwise(bounds=ranges.of_opposite),
    reference=np.negative,
    derivatives=[linear(lambda ct, x: negative(ct))],
    lower=lambda scalar, x: scalar.negative(x),
    dtypes="number",
)

square: Function = elementwise(
    "square",
    doc="Each element times itself.",
    example="[3.0, -2.0] -> [9.0, 4.0]",
    kind=Elementwise(bounds=ranges.of_square),
    reference=np.square,
    derivatives=[tangent(lambda t, out, x: t * (x * 2.0))],
    lower=lambda scalar, x: x * x,
    dtypes="number",
)


def positive(x: Any, /) -> Tensor:
    """Each element as it is, with the sign it has.

    >>> import weft as wf
    >>> wf.positive(wf.tensor([1.0, -2.0])).tolist()
    [1.0, -2.0]
    """
    return alias(*promote_operands("positive", (x,), "number"))


# --- complex numbers ---------------------------------------------------------------------------


def _imag_of_real(x: Tensor) -> Tensor:
    return filled_like(x, 0)


conj: Function = elementwise(
    "conj",
    doc="The complex conjugate of each element; real numbers are their own.",
    example="[1.0 + 2.0j] -> [(1-2j)]",
    reference=np.conj,
    derivatives=[linear(lambda ct, x: conj(ct))],
    lower=lambda scalar, x: x,
    dtypes="number",
)

real: Function = elementwise(
    "real",
    doc="The real part of each element.",
    example="[1.0 + 2.0j] -> [1.0]",
    reference=lambda x: x.real.copy(),
    derivatives=[linear(lambda ct, x: convert_to(ct, x.dtype))],
    lower=functions.NO_COMPLEX,
    dtypes="complex",
    result="real",
    otherwise=alias,
)

imag: Function = elementwise(
    "imag",
    doc="The imaginary part of each element; 0 for real numbers.",
    example="[1.0 + 2.0j] -> [2.0]",
    reference=lambda x: x.imag.copy(),
    derivatives=[linear(lambda ct, x: complex_(_imag_of_real(ct), ct))],
    lower=functions.NO_COMPLEX,
    dtypes="complex",
    result="real",
    otherwise=_imag_of_real,
)


def _complex_array(x1: Array, x2: Array) -> Array:
    out = np.empty(np.broadcast_shapes(x1.shape, x2.shape), np.result_type(x1, np.complex64))
    out.real = x1
    out.imag = x2
    return out


complex_: Function = elementwise(
    "complex",
    doc="The complex numbers with these real and imaginary parts.",
    example="[1.0, 2.0], [3.0, 0.0] -> [(1+3j), (2+0j)]",
    reference=_complex_array,
    derivatives=[additive(lambda ct, x1, x2: real(ct)), additive(lambda ct, x1, x2: imag(ct))],
    lower=functions.NO_COMPLEX,
    dtypes="parts",
    result="complex",
)

hypot: Function = elementwise(
    "hypot",
    doc="The length of the hypotenuse, sqrt(x1² + x2²), without overflow on the way.",
    example="[3.0, 5.0], [4.0, 12.0] -> [5.0, 13.0]",
    commutative=True,
    reference=np.hypot,
    derivatives=[
        tangent(lambda t, out, x1, x2: t * (x1 / _nonzero(out))),
        tangent(lambda t, out, x1, x2: t * (x2 / _nonzero(out))),
    ],
    lower=lambda scalar, x1, x2: scalar.hypot(x1, x2),
    dtypes="float",
)


def _nonzero(x: Tensor) -> Tensor:
    """x with 1 in place of 0, for a quotient that is 0 there."""
    return where(equal(x, 0.0), 1.0, x)


def _complex_abs(x: Tensor) -> Tensor:
    if not x.dtype.is_complex:
        raise wrong_dtype("abs", "number", {"x": x})
    return hypot(real(x), imag(x))


abs: Function = elementwise(
    "abs",
    doc="The absolute value of each element; of a complex number, its length.",
    example="[-1.5, 2.0] -> [1.5, 2.0]",
    kind=Elementwise(bounds=ranges.of_size),
    reference=np.abs,
    derivatives=[tangent(lambda t, out, x: t * sign(x))],
    lower=lambda scalar, x: scalar.absolute(x),
    dtypes="real",
    otherwise=_complex_abs,
)


def _complex_sign(x: Tensor) -> Tensor:
    if not x.dtype.is_complex:
        raise wrong_dtype("sign", "number", {"x": x})
    length = _complex_abs(x)
    divisor = _nonzero(length)
    return where(equal(length, 0.0), 0.0, complex_(real(x) / divisor, imag(x) / divisor))


sign: Function = elementwise(
    "sign",
    doc="-1, 0 or 1 by the sign of each element; a complex number divided by its length.",
    example="[-1.5, 0.0, 2.0] -> [-1.0, 0.0, 1.0]",
    reference=numerics.sign,
    derivatives=[_STEPS],
    lower=lambda scalar, x: functions.sign(x),
    dtypes="real",
    otherwise=_complex_sign,
)

# --- the greater and the lesser ----------------------------------------------------------------


def _tangent_of_chosen(t: Tensor, lost: Tensor, mine: Any, other: Any) -> Tensor:
    """Nothing of the tangent where this operand lost; half of it where both are equal."""
    return where(equal(mine, other), t * 0.5, where(lost, 0.0, t))


maximum: Function = elementwise(
    "maximum",
    doc="The greater of two elements, NaN where one is; 0.0 is greater than -0.0.",
    example="[1.0, 4.0], [3.0, 2.0] -> [3.0, 4.0]",
    commutative=True,
    kind=Elementwise(bounds=ranges.of_maximum),
    reference=numerics.maximum,
    kernel=numerics.maximum,
    derivatives=[
        tangent(lambda t, out, x1, x2: _tangent_of_chosen(t, less(x1, x2), x1, x2)),
        tangent(lambda t, out, x1, x2: _tangent_of_chosen(t, less(x2, x1), x2, x1)),
    ],
    lower=lambda scalar, x1, x2: scalar.maximum(x1, x2),
    dtypes="ordered",
)

minimum: Function = elementwise(
    "minimum",
    doc="The lesser of two elements, NaN where one is; -0.0 is less than 0.0.",
    example="[1.0, 4.0], [3.0, 2.0] -> [1.0, 2.0]",
    commutative=True,
    kind=Elementwise(bounds=ranges.of_minimum),
    reference=numerics.minimum,
    kernel=numerics.minimum,
    derivatives=[
        tangent(lambda t, out, x1, x2: _tangent_of_chosen(t, less(x2, x1), x1, x2)),
        tangent(lambda t, out, x1, x2: _tangent_of_chosen(t, less(x1, x2), x2, x1)),
    ],
    lower=lambda scalar, x1, x2: scalar.minimum(x1, x2),
    dtypes="ordered",
)

# --- whole quotients and what remains ----------------------------------------------------------


def _floor_divide(x1: Array, x2: Array) -> Array:
    """NumPy's, but as the standard has it where an operand is infinite."""
    quotient = np.asarray(np.floor_divide(x1, x2))
    if quotient.dtype.kind in "iu":
        return quotient
    infinite = np.isinf(x1) | np.isinf(x2)
    return np.where(infinite, np.floor(np.divide(x1, x2)), quotient) if infinite.any() else quotient


floor_divide: Function = elementwise(
    "floor_divide",
    doc="The quotient rounded down to a whole number; an integer divided by 0 is 0.",
    example="[7.0, -7.0], [2.0, 2.0] -> [3.0, -4.0]",
    reference=_floor_divide,
    derivatives=[_STEPS, _STEPS],
    lower=lambda scalar, x1, x2: functions.floor_divide(x1, x2),
    dtypes="real",
    domain=((-7.0, 7.0), (0.6, 2.0)),
)

remainder: Function = elementwise(
    "remainder",
    doc="What the quotient rounded down leaves, with the divisor's sign; 0 for an integer by 0.",
    example="[7.0, -7.0], [3.0, 3.0] -> [1.0, 2.0]",
    reference=np.remainder,
    derivatives=[
        tangent(lambda t, out, x1, x2: t),
        tangent(lambda t, out, x1, x2: negative(t) * floor_divide(x1, x2)),
    ],
    lower=lambda scalar, x1, x2: functions.remainder(x1, x2),
    dtypes="real",
    domain=((-7.0, 7.0), (0.6, 2.0)),
)

fmod: Function = elementwise(
    "fmod",
    doc="What the quotient cut towards zero leaves, with the sign of the dividend, as in C.",
    example="[7.0, -7.0], [3.0, 3.0] -> [1.0, -1.0]",
    reference=np.fmod,
    derivatives=[
        tangent(lambda t, out, x1, x2: t),
        tangent(lambda t, out, x1, x2: negative(t) * trunc(x1 / x2)),
    ],
    lower=lambda scalar, x1, x2: scalar.fmod(x1, x2),
    dtypes="real",
    domain=((-7.0, 7.0), (0.6, 2.0)),
)

# --- roundings ---------------------------------------------------------------------------------


def _rounding(
    name: str,
    doc: str,
    reference: Callable[..., Any],
    lower: Lower,
    example: str,
    dtypes: str = "real",
) -> Callable[..., Tensor]:
    """A function to whole numbers, which integers are already."""
    return elementwise(
        name,
        doc=doc,
        example=example,
        reference=lambda x: x if x.dtype.kind in "iu" else reference(x),
        derivatives=[_STEPS],
        kind=Elementwise(rounds=True),
        lower=lambda scalar, x: x if x.dtype.is_integer else lower(scalar, x),
        dtypes=dtypes,
        exact="float",
        kernel=reference,
    )


floor: Function = _rounding(
    "floor",
    "The greatest whole number not above.",
    np.floor,
    lambda scalar, x: scalar.floor(x),
    "[1.5, -1.5] -> [1.0, -2.0]",
)
ceil: Function = _rounding(
    "ceil",
    "The least whole number not below.",
    np.ceil,
    lambda scalar, x: scalar.ceil(x),
    "[1.5, -1.5] -> [2.0, -1.0]",
)
trunc: Function = _rounding(
    "trunc",
    "The whole number next towards zero.",
    np.trunc,
    lambda scalar, x: scalar.trunc(x),
    "[1.5, -1.5] -> [1.0, -1.0]",
)
_round: Function = _rounding(
    "round",
    "The nearest whole number, the even one of two; parts of complex numbers each.",
    np.rint,
    lambda scalar, x: scalar.rint(x),
    "[0.5, 1.5, -1.2] -> [0.0, 2.0, -1.0]",
    dtypes="number",
)


def round(x: Any, /, *, decimals: int = 0) -> Tensor:
    """The nearest whole number, the even one of two, or the nearest multiple of 10**-decimals.

    >>> import weft as wf
    >>> wf.round(wf.tensor([0.5, 1.5, 2.6])).tolist()
    [0.0, 2.0, 3.0]
    >>> wf.round(wf.tensor([1.25, 3.75]), decimals=1).tolist() == wf.tensor([1.2, 3.8]).tolist()
    True
    """
    decimals = as_integer("round", "decimals", decimals)
    if decimals == 0:
        return _round(x)
    scale = 10.0 ** builtins.min(builtins.abs(decimals), 308)
    (x,) = promote_operands("round", (x,), "inexact")
    wide = convert_to(x, float32) if x.dtype.is_floating and x.dtype.bits == 16 else x
    rounded = divide(_round(wide * scale), scale) if decimals > 0 else _round(wide / scale) * scale
    return convert_to(rounded, x.dtype)


# --- the parts of a floating-point number ------------------------------------------------------

copysign: Function = elementwise(
    "copysign",
    doc="The size of the first with the sign of the second, which -0.0 has too.",
    example="[1.0, 2.0], [-3.0, 4.0] -> [-1.0, 2.0]",
    reference=np.copysign,
    derivatives=[
        tangent(lambda t, out, x1, x2: t * (sign(x1) * copysign(1.0, x2))),
        constant("only the sign of the second operand is used"),
    ],
    lower=lambda scalar, x1, x2: functions.copysign(x1, x2),
    dtypes="float",
)

nextafter: Function = elementwise(
    "nextafter",
    doc="The next number that the dtype can hold, from the first towards the second.",
    example="[1.0, 0.0], [0.0, 0.0] -> [0.9999999403953552, 0.0]",
    reference=np.nextafter,
    derivatives=Unsupported("nextafter walks over representable numbers: it has no derivative"),
    lower=Unsupported("16-bit floats are computed in float32, which has other next numbers"),
    arity=2,
    dtypes="float",
)
