"""Numbers rounded to 8-bit floats: their codes, what codes stand for, and derivatives past both.

There is no float8 dtype to compute in. A rounded tensor is the numbers that its codes stand for, as
bfloat16, which holds them exactly. So a program of them means the same on every device, and a card
that multiplies codes finds them in the program. The scale of a tensor is the power of two that
brings its highest magnitude just below the format's: scaling rounds nothing.

>>> import weft as wf
>>> round_to_float8(wf.tensor([1.0, -0.3, 1000.0]), E4M3).tolist()
[1.0, -0.3125, 1024.0]
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import ml_dtypes
import numpy as np

from weft.core.dtypes import DType, bfloat16, float16, float32, int32, uint8
from weft.core.errors import DTypeError, ShapeError
from weft.core.records import frozen
from weft.core.shapes import broadcast_shapes
from weft.core.types import TensorType
from weft.ir.batching import to_front
from weft.ir.derivatives import constant, linear, tangent
from weft.ir.dispatch import apply
from weft.ir.kinds import Elementwise
from weft.ir.primitive import Mistake, Primitive, Sample
from weft.ir.scalars import Scalar
from weft.ir.tensor import Tensor
from weft.ops.arithmetic import abs
from weft.ops.comparison import less
from weft.ops.families import batch_broadcast
from weft.ops.identity import stopped
from weft.ops.operands import convert_to
from weft.ops.reduction import reduce_max
from weft.ops.selection import where

__all__ = [
    "E4M3", "E5M2", "FORMATS", "codes_of", "float8_codes", "float8_numbers", "float8_scale",
    "numbers_of", "round_cotangent", "round_to_float8", "rounding_cotangent", "straight_through",
]  # fmt: skip

Array = np.ndarray[Any, Any]


@frozen
class Format:
    """An 8-bit float: a sign, bits of the exponent, and `digits` bits behind the point."""

    name: str
    digits: int
    bias: int
    highest: int
    """The exponent of the highest numbers; none is above 1.75 times that power of two."""
    top_code: int
    """The code that follows the highest number's: NaN, or infinity where there is one."""
    nan_code: int
    """The one code that NaN gets, without a sign; there are others."""
    numpy: np.dtype[Any]


FORMATS = {
    each.name: each
    for each in (
        Format("e4m3", 3, 7, 8, 0x7F, 0x7F, np.dtype(ml_dtypes.float8_e4m3fn)),
        Format("e5m2", 2, 15, 15, 0x7C, 0x7E, np.dtype(ml_dtypes.float8_e5m2)),
    )
}
"""The two formats: for values, and with more range and fewer digits for cotangents."""
E4M3, E5M2 = FORMATS
_HIGHEST_SCALE = 100
"""The exponent that scales end at, so that neither they nor their inverses leave float32."""
_FLOATS = (float16, bfloat16, float32)


# --- scales ---------------------------------------------------------------------------------------


def _scale_type(highest: TensorType, format: str, inverse: bool) -> TensorType:
    if highest.dtype is not float32:
        raise DTypeError(
            "float8_scale",
            "a scale is made of a magnitude of float32",
            expected="highest of float32",
            got={"highest": highest},
            fix='highest.astype("float32")',
        )
    return highest


def _scale_array(highest: Array, format: str, inverse: bool) -> Any:
    size = np.minimum(np.nan_to_num(np.abs(highest.astype(np.float64)), nan=np.inf), 2.0**128)
    fraction, exponent = np.frexp(size)  # fractions are from 1/2 to 1
    above = FORMATS[format].highest + 1 - exponent - (fraction > 0.875)
    chosen = np.where(size == 0, _HIGHEST_SCALE, np.minimum(above, _HIGHEST_SCALE))
    return np.ldexp(np.ones_like(highest), -chosen if inverse else chosen)


def _lower_scale(scalar: Any, highest: Scalar, format: str, inverse: bool) -> Scalar:
    """127 + e are the highest bits of the float32 that is 2 ** e."""
    bits = scalar.minimum(scalar.bitcast(highest, int32) & 0x7FFFFFFF, 0x7F800000)
    # What is added carries into the exponent of magnitudes above 1.75 times a power of two.
    exponent = (bits + 0x1FFFFF) >> 23
    fitting = scalar.minimum(254 + FORMATS[format].highest - exponent, 127 + _HIGHEST_SCALE)
    scale: Scalar = scalar.bitcast((254 - fitting if inverse else fitting) << 23, float32)
    return scale


_MAGNITUDES = np.array([1.75, 1.7500001, 448.0, 0.0, 1e-45, 1e-38, 3e-28, 3.4e38], np.float32)

float8_scale: Primitive = Primitive(
    "float8_scale",
    "The power of two that brings a highest magnitude just below a format's; or its inverse.",
    kind=Elementwise(),
    type_rule=_scale_type,
    reference=_scale_array,
    derivatives=[constant("powers of two do not vary smoothly")],
    batch=lambda size, operands, axes, format, inverse: (
        apply(float8_scale, *operands, format=format, inverse=inverse), axes[0],
    ),
    samples=lambda: [
        Sample((_MAGNITUDES,), {"format": E4M3, "inverse": False}, derivative=False),
        Sample((_MAGNITUDES,), {"format": E5M2, "inverse": True}, derivative=False),
        Sample((_MAGNITUDES[0],), {"format": E4M3, "inverse": True}, derivative=False),
    ],
    mistakes=lambda: [
        Mistake(
            (np.ones(2, np.float16),), {"format": E4M3, "inverse": True},
            DTypeError, "of float32",
        ),
    ],
    lower=_lower_scale,
)  # fmt: skip


# --- codes and numbers ---------------------------------------------------------------------------


def _check_operands(op: str, x: TensorType, scale: TensorType, allowed: Sequence[DType]) -> None:
    if x.dtype in allowed and scale.dtype is float32:
        return
    raise DTypeError(
        op,
        "not what is rounded to 8 bits, or its scale",
        expected=f"x of {' or '.join(d.name for d in allowed)}, and a scale of float32",
        got={"x": x, "scale": scale},
        fix='convert them first: scale.astype("float32")',
    )


def _codes_type(x: TensorType, scale: TensorType, format: str = E4M3) -> TensorType:
    _check_operands("float8_codes", x, scale, _FLOATS)
    shapes = [x.shape, scale.shape]
    return TensorType(uint8, broadcast_shapes("float8_codes", shapes, {"x": x, "scale": scale}))


def _codes_array(x: Array, scale: Array, format: str = E4M3) -> Any:
    with np.errstate(all="ignore"):
        nearest = np.asarray((x.astype(np.float32) * scale).astype(FORMATS[format].numpy))
        nan = np.uint8(FORMATS[format].nan_code)
        return np.where(np.isnan(nearest), nan, nearest.view(np.uint8))


def _lower_codes(scalar: Any, x: Scalar, scale: Scalar, format: str = E4M3) -> Scalar:
    """Rounded as integers are: the digits that are cut carry into those that stay."""
    kind = FORMATS[format]
    bits = scalar.bitcast(x * scale, int32)
    sign = (bits >> 24) & 0x80
    magnitude = bits & 0x7FFFFFFF
    cut = 23 - kind.digits
    rounded = (magnitude + ((1 << (cut - 1)) - 1) + ((magnitude >> cut) & 1)) >> cut
    normal = rounded - ((127 - kind.bias) << kind.digits)
    # Below the normal numbers steps are equal: float32 rounds to them beside a large number.
    steps_end = 23 - (kind.bias - 1 + kind.digits)
    anchor = scalar.const(2.0**steps_end, float32)
    beside = scalar.bitcast(scalar.bitcast(magnitude, float32) + anchor, int32)
    small = beside - scalar.bitcast(anchor, int32)
    is_small = magnitude < ((128 - kind.bias) << 23)
    code = scalar.minimum(scalar.select(is_small, small, normal), kind.top_code)
    code = scalar.select(magnitude > 0x7F800000, kind.nan_code, code)
    coded: Scalar = scalar.cast(scalar.select(code < kind.nan_code, code | sign, code), uint8)
    return coded


_FIXED = "a scale is held fixed"
_NO_VARIATION = "codes do not vary smoothly"


def _scaled_samples(x: Array) -> list[Sample]:
    """Operands with one scale, and with one for each row, in both formats."""
    one, rows = np.float32(2.0), np.array([[1.0], [0.25]], np.float32)
    return [
        Sample((x, one), {"format": E4M3}, derivative=False),
        Sample((x, rows), {"format": E5M2}, derivative=False),
        Sample((x[:0], one), {"format": E4M3}, derivative=False),
        Sample((x[0, 0], one), {"format": E5M2}, derivative=False),
    ]


def _codes_samples() -> list[Sample]:
    x = np.linspace(-3, 500, 12, dtype=np.float32).reshape(2, 6)
    x[1, :2] = np.inf, 1e-3
    return [*_scaled_samples(x), *_scaled_samples(x.astype(ml_dtypes.bfloat16))[:1]]


float8_codes: Primitive = Primitive(
    "float8_codes",
    "The codes of 8-bit floats nearest to each element times a scale.",
    kind=Elementwise(),
    type_rule=_codes_type,
    reference=_codes_array,
    derivatives=[constant(_NO_VARIATION), constant(_FIXED)],
    batch=lambda size, operands, axes, format: batch_broadcast(
        float8_codes, operands, axes, format=format
    ),
    samples=_codes_samples,
    mistakes=lambda: [
        Mistake((np.ones(2, np.int32), np.float32(1)), {"format": E4M3}, DTypeError, "8 bits"),
        Mistake((np.ones(2, np.float32), np.float16(1)), {"format": E4M3}, DTypeError, "8 bits"),
    ],
    lower=_lower_codes,
    broadcasts=True,
)


def _numbers_type(codes: TensorType, scale: TensorType, format: str = E4M3) -> TensorType:
    _check_operands("float8_numbers", codes, scale, (uint8,))
    got = {"codes": codes, "scale": scale}
    return TensorType(bfloat16, broadcast_shapes("float8_numbers", [codes.shape, scale.shape], got))


def _numbers_array(codes: Array, scale: Array, format: str = E4M3) -> Any:
    with np.errstate(all="ignore"):
        numbers = np.ascontiguousarray(codes).view(FORMATS[format].numpy).reshape(codes.shape)
        return np.asarray(numbers.astype(np.float32) * scale).astype(ml_dtypes.bfloat16)


def _lower_numbers(scalar: Any, codes: Scalar, scale: Scalar, format: str = E4M3) -> Scalar:
    kind = FORMATS[format]
    code = scalar.cast(codes, int32)
    magnitude = code & 0x7F
    normal = (magnitude << (23 - kind.digits)) + ((127 - kind.bias) << 23)
    step = scalar.const(2.0 ** (1 - kind.bias - kind.digits), float32)
    small = scalar.cast(magnitude, float32) * step
    number = scalar.select(magnitude < (1 << kind.digits), small, scalar.bitcast(normal, float32))
    number = scalar.select(magnitude < kind.top_code, number, scalar.const(np.inf, float32))
    is_nan = magnitude >= min(kind.nan_code, kind.top_code + 1)
    number = scalar.select(is_nan, scalar.const(np.nan, float32), number)
    scaled: Scalar = scalar.select(code < 0x80, number, -number) * scale
    return scaled


_CODES = np.array([np.arange(0, 121, 4), np.arange(128, 249, 4)], np.uint8)  # of finite numbers

float8_numbers: Primitive = Primitive(
    "float8_numbers",
    "The numbers that codes of 8-bit floats stand for, times a scale, as bfloat16.",
    kind=Elementwise(),
    type_rule=_numbers_type,
    reference=_numbers_array,
    derivatives=[constant(_NO_VARIATION), constant(_FIXED)],
    batch=lambda size, operands, axes, format: batch_broadcast(
        float8_numbers, operands, axes, format=format
    ),
    samples=lambda: _scaled_samples(_CODES),
    mistakes=lambda: [
        Mistake((np.ones(2, np.int8), np.float32(1)), {"format": E4M3}, DTypeError, "8 bits"),
    ],
    lower=_lower_numbers,
    broadcasts=True,
)


# --- derivatives past the rounding ---------------------------------------------------------------


def _straight_type(x: TensorType, y: TensorType) -> TensorType:
    if x.shape != y.shape:
        raise ShapeError(
            "straight_through",
            "one tensor does not stand for the other",
            expected="x.shape == y.shape",
            got={"x": x, "y": y},
            fix="give both one shape",
        )
    return y


_PAIR = np.array([0.5, 1.5], np.float32), np.array([0.0, 2.0], np.float32)

straight_through: Primitive = Primitive(
    "straight_through",
    "The second operand, with the derivative that the first would have.",
    kind=Elementwise(),
    type_rule=_straight_type,
    reference=lambda x, y: y,
    derivatives=[
        tangent(lambda t, out, x, y: convert_to(t, y.dtype)),
        constant("the first operand has the derivative"),
    ],
    batch=lambda size, operands, axes: (
        apply(straight_through, *map(partial(to_front, size), operands, axes)), 0,
    ),
    samples=lambda: [Sample(_PAIR, derivative=False)],
    mistakes=lambda: [
        Mistake((_PAIR[0], np.ones((2, 2), np.float32)), {}, ShapeError, "does not stand for"),
    ],
    lower=lambda scalar, x, y: y,
)  # fmt: skip

rounding_cotangent: Primitive = Primitive(
    "rounding_cotangent",
    "The same value, whose cotangent is rounded to 8-bit floats on its way back.",
    kind=Elementwise(),
    type_rule=lambda x, format: x,
    reference=lambda x, format: x,
    derivatives=[linear(lambda ct, x, format: convert_to(round_to_float8(ct, format), x.dtype))],
    batch=lambda size, operands, axes, format: (
        apply(rounding_cotangent, *operands, format=format), axes[0],
    ),
    samples=lambda: [Sample(_PAIR[:1], {"format": E5M2}, derivative=False)],
    lower=lambda scalar, x, format: x,
)  # fmt: skip


def round_cotangent(x: Tensor, format: str) -> Tensor:
    """The same value, whose cotangent is rounded to a format on its way back."""
    return apply(rounding_cotangent, x, format=format)


def codes_of(x: Tensor, scale: Tensor, format: str) -> Tensor:
    """The codes of a tensor times its scale."""
    return apply(float8_codes, x, scale, format=format)


def numbers_of(codes: Tensor, scale: Tensor, format: str) -> Tensor:
    """What codes stand for, times a scale."""
    return apply(float8_numbers, codes, scale, format=format)


def round_to_float8(x: Tensor, format: str) -> Tensor:
    """The tensor as bfloat16 rounded to an 8-bit float, with its derivative as if it were not.

    NaN stays NaN; infinity becomes NaN in e4m3, which has none, and stays in e5m2. Neither has a
    part in the scale: other elements are rounded as if it were not there.
    """
    if x.size == 0:
        return convert_to(x, bfloat16)
    value = apply(stopped, x)
    scale, inverse = _scales(value, format)
    return apply(straight_through, x, numbers_of(codes_of(value, scale, format), inverse, format))


def _scales(x: Tensor, format: str) -> tuple[Tensor, Tensor]:
    """The scale of a tensor by its highest finite magnitude, and the inverse of the scale."""
    magnitude = abs(x)
    finite = where(less(magnitude, float("inf")), magnitude, 0.0)
    highest = convert_to(apply(reduce_max, finite, axes=tuple(range(x.ndim))), float32)
    scale, inverse = (
        apply(float8_scale, highest, format=format, inverse=each) for each in (False, True)
    )
    return scale, inverse
