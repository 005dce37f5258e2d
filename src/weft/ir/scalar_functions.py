"""Functions of one element that take several instructions, and a primitive of one element.

`lower_element` is how the compiler asks a primitive for its scalar expression. The other functions
are what the `lower` slots of several primitives share; they follow NumPy in every special case.

>>> from weft.core.dtypes import float32
>>> from weft.ir.scalars import local
>>> print(sign(local("x", float32)))
select(x == x, cast<f32>(0 < x) - cast<f32>(x < 0), x)
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

from weft.core.dtypes import DType, bool_, float32, int32, int64
from weft.core.errors import Unsupported
from weft.ir import scalars
from weft.ir.primitive import Primitive
from weft.ir.scalars import (
    Scalar,
    absolute,
    and_,
    bitcast,
    cast,
    divide,
    equal,
    exp,
    floor,
    fmod,
    less,
    local,
    log1p,
    maximum,
    nodes_in_order,
    not_equal,
    or_,
    select,
)

NO_COMPLEX = Unsupported("complex numbers are computed by reference")


def lower_element(
    primitive: Primitive, operands: Sequence[Scalar], dtype: DType, params: Mapping[str, Any]
) -> Scalar:
    """One element of a primitive's result, which has that dtype.

    16-bit floats are computed in float32, and rounded once. Raises `Unsupported` with the reason
    where the primitive has no scalar expression for these dtypes.

    >>> from weft.core.dtypes import float16
    >>> from weft.ir.primitive import find
    >>> print(lower_element(find("square"), [local("x", float16)], float16, {}))
    cast<f16>(cast<f32>(x) * cast<f32>(x))
    """
    if primitive.lower is None:
        raise Unsupported(f"{primitive.name} is no function of single elements")
    if isinstance(primitive.lower, Unsupported):
        raise Unsupported(primitive.lower.reason)
    if dtype.is_complex or any(x.dtype.is_complex for x in operands):
        raise Unsupported(NO_COMPLEX.reason)
    return cast(primitive.lower(scalars, *map(_in_computed_dtype, operands), **params), dtype)


def _in_computed_dtype(x: Scalar) -> Scalar:
    """x in a dtype that has arithmetic."""
    return cast(x, float32) if x.dtype.is_floating and x.dtype.bits == 16 else x


def why_not_lowered(
    primitive: Primitive, operands: Sequence[DType], dtype: DType, params: Mapping[str, Any]
) -> str | None:
    """The reason why there is no scalar expression for these dtypes; None where there is one.

    >>> from weft.core.dtypes import complex64
    >>> from weft.ir.primitive import find
    >>> why_not_lowered(find("exp"), [complex64], complex64, {})
    'complex numbers are computed by reference'
    """
    try:
        lower_element(primitive, [local(f"x{i}", d) for i, d in enumerate(operands)], dtype, params)
    except Unsupported as missing:
        return missing.reason
    return None


def element_cost(
    primitive: Primitive, operands: Sequence[DType], dtype: DType, params: Mapping[str, Any]
) -> int:
    """The number of operations in the scalar expression of one element.

    What the definition says comes first; what has no expression for these dtypes counts as one.

    >>> from weft.ir.primitive import find
    >>> element_cost(find("add"), [float32, float32], float32, {})
    1
    >>> element_cost(find("atan"), [float32], float32, {}) >= scalars.FUNCTION
    True
    """
    if primitive.cost is not None:
        return primitive.cost
    if params:
        return _expression_cost(primitive, operands, dtype, params)
    return _plain_cost(primitive, tuple(operands), dtype)


@lru_cache(maxsize=1024)
def _plain_cost(primitive: Primitive, operands: tuple[DType, ...], dtype: DType) -> int:
    return _expression_cost(primitive, operands, dtype, {})


def _expression_cost(
    primitive: Primitive, operands: Sequence[DType], dtype: DType, params: Mapping[str, Any]
) -> int:
    places = [local(f"x{i}", each) for i, each in enumerate(operands)]
    try:
        expression = lower_element(primitive, places, dtype, params)
    except Unsupported:
        return 1
    return sum(_instruction_cost(x) for x in nodes_in_order(expression))


def _instruction_cost(x: Scalar) -> int:
    instruction = scalars.INSTRUCTIONS.get(x.op)
    if instruction is None:  # a constant, a load, a cast: nothing beside what computes with it
        return 0
    return instruction.cost if x.args[0].dtype.is_floating else 1


# --- questions ---------------------------------------------------------------------------------


def is_true(x: Scalar) -> Scalar:
    """Whether a number is not 0; a boolean itself."""
    return x if x.dtype is bool_ else not_equal(x, 0)


def is_finite(x: Scalar) -> Scalar:
    """Whether x is neither infinite nor NaN."""
    return less(absolute(x), math.inf) if x.dtype.is_floating else equal(x, x)


def is_infinite(x: Scalar) -> Scalar:
    """Whether x is infinite, of either sign."""
    return equal(absolute(x), math.inf) if x.dtype.is_floating else not_equal(x, x)


def sign_bit(x: Scalar) -> Scalar:
    """Whether the sign bit is set, as it is in -0.0."""
    return less(_bits(x), 0) if x.dtype.is_floating else less(x, 0)


def _bits(x: Scalar) -> Scalar:
    return bitcast(x, int32 if x.dtype is float32 else int64)


# --- signs -------------------------------------------------------------------------------------


def sign(x: Scalar) -> Scalar:
    """-1, 0 or 1, and NaN of NaN."""
    steps = cast(less(0, x), x.dtype) - cast(less(x, 0), x.dtype)
    return select(equal(x, x), steps, x) if x.dtype.is_floating else steps


def copysign(x1: Scalar, x2: Scalar) -> Scalar:
    """The size of the first with the sign bit of the second."""
    highest = -1 << (x1.dtype.bits - 1)
    return bitcast(or_(and_(_bits(x1), ~highest), and_(_bits(x2), highest)), x1.dtype)


# --- whole quotients ---------------------------------------------------------------------------


def floor_divide(x1: Scalar, x2: Scalar) -> Scalar:
    """The quotient rounded down; for floats Python's divmod, and floor(x1 / x2) of infinities."""
    if x1.dtype.is_integer:
        return scalars.floor_divide(x1, x2)
    rest = fmod(x1, x2)
    quotient = (x1 - rest) / x2
    quotient = select(_is_opposed(rest, x2), quotient - 1, quotient)
    down = floor(quotient)
    whole = select(less(0.5, quotient - down), down + 1, down)
    whole = select(equal(quotient, 0), copysign(quotient, divide(x1, x2)), whole)
    infinite = or_(is_infinite(x1), is_infinite(x2))
    plain = select(infinite, floor(divide(x1, x2)), divide(x1, x2))
    return select(or_(infinite, equal(x2, 0)), plain, whole)


def remainder(x1: Scalar, x2: Scalar) -> Scalar:
    """What the quotient rounded down leaves, with the divisor's sign."""
    if x1.dtype.is_integer:
        return scalars.modulo(x1, x2)
    rest = fmod(x1, x2)
    whole = equal(rest, 0)
    return select(whole, copysign(rest, x2), select(_is_opposed(rest, x2), rest + x2, rest))


def _is_opposed(rest: Scalar, divisor: Scalar) -> Scalar:
    """Whether the remainder of a division has not the divisor's sign."""
    return and_(not_equal(rest, 0), not_equal(less(rest, 0), less(divisor, 0)))


# --- powers and logarithms ---------------------------------------------------------------------

_MOST_PRODUCTS = 8
_CHECKED = "a negative power of an integer is an error that only the reference raises"


def power(x1: Scalar, x2: Scalar) -> Scalar:
    """The first to the power of the second, for floats."""
    if x1.dtype.is_integer:
        raise Unsupported(_CHECKED)
    return scalars.power(x1, x2)


def integer_power(x: Scalar, exponent: int) -> Scalar:
    """Up to eight factors from left to right, as the reference multiplies them."""
    if exponent < 0:
        return divide(1, integer_power(x, -exponent))
    if x.dtype.is_integer:
        return _wrapped_power(x, exponent)
    if exponent > _MOST_PRODUCTS:
        return scalars.power(x, exponent)
    return _product([x] * exponent, x.dtype)


def _wrapped_power(x: Scalar, exponent: int) -> Scalar:
    """By repeated squares: the order of factors does not matter where products wrap around."""
    squares = [x]
    for _ in range(exponent.bit_length() - 1):
        squares.append(squares[-1] * squares[-1])
    return _product([s for i, s in enumerate(squares) if exponent >> i & 1], x.dtype)


def _product(factors: Sequence[Scalar], dtype: DType) -> Scalar:
    if not factors:
        return scalars.const(1, dtype)
    result = factors[0]
    for factor in factors[1:]:
        result = result * factor
    return result


def add_exponentials(x1: Scalar, x2: Scalar) -> Scalar:
    """log(exp(x1) + exp(x2)); equal operands apart, as infinities have no difference."""
    apart = maximum(x1, x2) + log1p(exp(-absolute(x1 - x2)))
    return select(equal(x1, x2), x1 + math.log(2.0), apart)


def times_unless_zero(x: Scalar, y: Scalar, product: Scalar) -> Scalar:
    """The product of x and a function of y, and 0 where x is 0, unless y is NaN."""
    return select(and_(equal(x, 0), equal(y, y)), 0, product)
