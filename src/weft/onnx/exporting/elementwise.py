"""Element-wise primitives: most are one operator, the others short programs.

>>> from weft.onnx.exporting.rules import RULES
>>> "sin" in RULES, "hypot" in RULES
(True, True)
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import weft as wf
from weft.onnx.exporting.rules import (
    ARITHMETIC,
    FLOATS,
    as_types,
    computed_in,
    direct,
    in_double,
    program,
    refuse,
    rule,
    signed_order,
)
from weft.onnx.exporting.writing import Writer

# --- one operator each ---------------------------------------------------------------------------

direct("add", "Add", ARITHMETIC)
direct("subtract", "Sub", ARITHMETIC)
direct("negative", "Neg", f"{ARITHMETIC} i8")
direct("acos", "Acos")
direct("acosh", "Acosh")
direct("asin", "Asin")
direct("asinh", "Asinh")
direct("atan", "Atan")
direct("atanh", "Atanh")
direct("cos", "Cos")
direct("cosh", "Cosh")
direct("sin", "Sin")
direct("sinh", "Sinh")
direct("tan", "Tan")
direct("tanh", "Tanh")
direct("exp", "Exp")
direct("log", "Log")
direct("sqrt", "Sqrt")
direct("erf", "Erf")
direct("sigmoid", "Sigmoid")
direct("divide", "Div", ARITHMETIC)


@rule("multiply")
def _multiply(writer: Writer, node: Any, *operands: str) -> str:
    if node.results[0].type.dtype is wf.bool:
        return writer.op("And", *operands)
    return as_types(writer, node, "Mul", operands, ARITHMETIC)


@rule("where")
def _where(writer: Writer, node: Any, condition: str, x: str, y: str) -> str:
    dtype = node.results[0].type.dtype
    wide = computed_in(dtype, f"{ARITHMETIC} u8")
    chosen = writer.op("Where", condition, writer.cast(x, dtype, wide), writer.cast(y, dtype, wide))
    return writer.cast(chosen, wide, dtype)


@rule("abs")
def _abs(writer: Writer, node: Any, x: str) -> str:
    if node.results[0].type.dtype.kind in ("bool", "unsigned"):
        return x
    return as_types(writer, node, "Abs", [x], "f16 f32 f64 i8 i16 i32 i64")


@rule("sign")
def _sign(writer: Writer, node: Any, x: str) -> str:
    # in float16 a runtime gives 0 for what is not a number
    return as_types(writer, node, "Sign", [x], "f32 f64 i8 i16 i32 i64 u8 u16 u32 u64")


@rule("relu")
def _relu(writer: Writer, node: Any, x: str) -> str:
    if node.results[0].type.dtype.kind in ("bool", "unsigned"):
        return x
    return as_types(writer, node, "Relu", [x], "f16 f32 f64 i8 i32")


def _rounding(primitive: str, operator: str) -> None:
    """A way to round, which leaves integers as they are."""

    def write(writer: Writer, node: Any, x: str) -> str:
        is_whole = not node.operands[0].type.dtype.is_floating
        return x if is_whole else as_types(writer, node, operator, [x], FLOATS)

    rule(primitive)(write)


_rounding("ceil", "Ceil")
_rounding("floor", "Floor")
_rounding("round", "Round")


@rule("convert")
def _convert(writer: Writer, node: Any, x: str, dtype: Any = None) -> str:
    return writer.cast(x, node.operands[0].type.dtype, node.params["dtype"])


@rule("bitcast")
def _bitcast(writer: Writer, node: Any, x: str) -> str:
    source, target = node.operands[0].type.dtype, node.params["dtype"]
    if source.is_integer and target.is_integer:
        return writer.cast(x, source, target)
    raise wf.Unsupported("the bits of a number cannot be read as another kind in these opsets")


def _extremum(primitive: str, operator: str, of_booleans: str) -> None:
    def write(writer: Writer, node: Any, *operands: str) -> str:
        if node.results[0].type.dtype is wf.bool:
            return writer.op(of_booleans, *operands)
        return as_types(writer, node, operator, operands, f"{ARITHMETIC} u32 u64")

    rule(primitive)(write)


_extremum("maximum", "Max", "Or")
_extremum("minimum", "Min", "And")


@rule("clip")
def _clip(writer: Writer, node: Any, x: str, low: str, high: str) -> str:
    if all(bound.type.ndim == 0 for bound in node.operands[1:]):
        native = "f16 f32 f64 i8 i32 i64 u8 u32 u64"
        return as_types(writer, node, "Clip", [x, low, high], native)
    dtype = node.results[0].type.dtype
    wide = computed_in(dtype, f"{ARITHMETIC} u32 u64")
    wide_x, wide_low, wide_high = (writer.cast(each, dtype, wide) for each in (x, low, high))
    inside = writer.op("Min", writer.op("Max", wide_x, wide_low), wide_high)
    return writer.cast(inside, wide, dtype)


# --- comparisons ---------------------------------------------------------------------------------


def _comparison(primitive: str, operator: str, negated: bool = False) -> None:
    def write(writer: Writer, node: Any, *operands: str) -> str:
        dtype = node.operands[0].type.dtype
        if dtype is wf.uint64 and operator != "Equal":
            holds = writer.op(operator, *[signed_order(writer, x, dtype)[0] for x in operands])
        else:
            native = f"{ARITHMETIC} bool" if operator == "Equal" else ARITHMETIC
            holds = as_types(writer, node, operator, operands, native)
        return writer.op("Not", holds) if negated else holds

    rule(primitive)(write)


_comparison("equal", "Equal")
_comparison("not_equal", "Equal", negated=True)
_comparison("less", "Less")
_comparison("less_equal", "LessOrEqual")
_comparison("greater", "Greater")
_comparison("greater_equal", "GreaterOrEqual")


def _truth(writer: Writer, node: Any, operands: Sequence[str]) -> list[str]:
    pairs = zip(operands, node.operands, strict=True)
    return [writer.cast(name, atom.type.dtype, wf.bool) for name, atom in pairs]


def _logical(primitive: str, operator: str) -> None:
    def write(writer: Writer, node: Any, *operands: str) -> str:
        return writer.op(operator, *_truth(writer, node, operands))

    rule(primitive)(write)


_logical("logical_and", "And")
_logical("logical_or", "Or")
_logical("logical_xor", "Xor")
_logical("logical_not", "Not")


def _bitwise(primitive: str, operator: str, of_booleans: str) -> None:
    def write(writer: Writer, node: Any, *operands: str) -> str:
        is_boolean = node.results[0].type.dtype is wf.bool
        return writer.op(of_booleans if is_boolean else operator, *operands)

    rule(primitive)(write)


_bitwise("bitwise_and", "BitwiseAnd", "And")
_bitwise("bitwise_or", "BitwiseOr", "Or")
_bitwise("bitwise_xor", "BitwiseXor", "Xor")
_bitwise("bitwise_invert", "BitwiseNot", "Not")


def _shift(writer: Writer, node: Any, x: str, count: str, direction: str) -> str:
    """A shift of the bits in uint64, which all runtimes have."""
    dtype = node.results[0].type.dtype
    wide = wf.uint64 if dtype is not wf.uint32 or direction == "LEFT" else wf.uint32
    inputs = [writer.cast(each, dtype, wide) for each in (x, count)]
    return writer.cast(writer.op("BitShift", *inputs, direction=direction), wide, dtype)


@rule("bitwise_left_shift")
def _left_shift(writer: Writer, node: Any, x: str, count: str) -> str:
    return _shift(writer, node, x, count, "LEFT")


@rule("bitwise_right_shift")
def _right_shift(writer: Writer, node: Any, x: str, count: str) -> str:
    dtype = node.results[0].type.dtype
    if dtype.kind == "unsigned":
        return _shift(writer, node, x, count, "RIGHT")
    # Of a negative number the complement is shifted, which has no sign.
    wide = computed_in(dtype, "i32 i64")
    number = writer.cast(x, dtype, wide)
    negative = writer.op("Less", number, writer.number(0, wide))
    magnitude = writer.op("Where", negative, writer.op("BitwiseNot", number), number)
    bits = writer.op(
        "BitShift",
        writer.op("Cast", magnitude, to=wf.uint64),
        writer.op("Cast", count, to=wf.uint64),
        direction="RIGHT",
    )
    moved = writer.op("Cast", bits, to=wide)
    return writer.cast(
        writer.op("Where", negative, writer.op("BitwiseNot", moved), moved), wide, dtype
    )


@rule("isnan")
def _isnan(writer: Writer, node: Any, x: str) -> str:
    if node.operands[0].type.dtype.is_floating:
        return as_types(writer, node, "IsNaN", [x], FLOATS)
    return writer.op("Not", as_types(writer, node, "Equal", [x, x], f"{ARITHMETIC} bool"))


@rule("isinf")
def _isinf(writer: Writer, node: Any, x: str) -> str:
    if node.operands[0].type.dtype.is_floating:
        dtype = node.operands[0].type.dtype
        wide = dtype if dtype is wf.float64 else wf.float32
        return writer.op("IsInf", writer.cast(x, dtype, wide))
    return writer.op("Not", as_types(writer, node, "Equal", [x, x], f"{ARITHMETIC} bool"))


@rule("isfinite")
def _isfinite(writer: Writer, node: Any, x: str) -> str:
    return writer.op("Not", writer.op("Or", _isnan(writer, node, x), _isinf(writer, node, x)))


# --- programs ------------------------------------------------------------------------------------


@program("square")
def _square(x: wf.Tensor) -> wf.Tensor:
    return x * x


@program("rsqrt")
def _rsqrt(x: wf.Tensor) -> wf.Tensor:
    return 1.0 / wf.sqrt(x)


@program("reciprocal_or_zero")
def _reciprocal_or_zero(x: wf.Tensor) -> wf.Tensor:
    return wf.where(wf.equal(x, 0), 0.0, 1.0 / x)


@program("trunc")
def _trunc(x: wf.Tensor) -> wf.Tensor:
    return wf.where(x < 0, wf.ceil(x), wf.floor(x)) if x.dtype.is_floating else x


@program("cbrt")
def _cbrt(x: wf.Tensor) -> wf.Tensor:
    return wf.sign(x) * wf.abs(x) ** (1 / 3)


@program("exp2")
def _exp2(x: wf.Tensor) -> wf.Tensor:
    return 2.0**x


@program("expm1")
def _expm1(x: wf.Tensor) -> wf.Tensor:
    """By tanh near zero, where exp(x) - 1 would lose digits."""
    half = wf.tanh(x / 2)
    return wf.where(wf.abs(x) < 0.5, 2.0 * half / (1.0 - half), wf.exp(x) - 1.0)


@program("log1p")
def _log1p(x: wf.Tensor) -> wf.Tensor:
    """log(u) · x / (u - 1) with u = 1 + x, as it is rounded (Kahan)."""
    u = 1.0 + x
    is_plain = (wf.equal(u, 1.0)) | (wf.equal(u, wf.inf))
    return wf.where(
        is_plain,
        wf.where(wf.equal(u, 1.0), x, u),
        wf.log(u) * (x / wf.where(is_plain, 1.0, u - 1.0)),
    )


@program("log2")
def _log2(x: wf.Tensor) -> wf.Tensor:
    return wf.log(x) * (1 / math.log(2.0))


@program("log10")
def _log10(x: wf.Tensor) -> wf.Tensor:
    return wf.log(x) * (1 / math.log(10.0))


@program("logaddexp")
def _logaddexp(x: wf.Tensor, y: wf.Tensor) -> wf.Tensor:
    apart = wf.where(x == y, 0.0, wf.abs(x - y))
    return wf.maximum(x, y) + wf.log1p(wf.exp(-apart))


@program("hypot")
def _hypot(x: wf.Tensor, y: wf.Tensor) -> wf.Tensor:
    """The longer leg times the length over it: squares of the legs may be too large, or 0."""
    x, y = wf.abs(x), wf.abs(y)
    long, short = wf.maximum(x, y), wf.minimum(x, y)
    ratio = short / wf.where(wf.equal(long, 0), 1.0, long)
    is_infinite = (wf.equal(x, wf.inf)) | (wf.equal(y, wf.inf))
    return wf.where(is_infinite, wf.inf, long * wf.sqrt(1.0 + ratio * ratio))


@program("signbit")
def _signbit(x: wf.Tensor) -> wf.Tensor:
    if not x.dtype.is_floating:
        return x < 0
    return (x < 0) | ((wf.equal(x, 0)) & (1.0 / x < 0))


@program("copysign")
def _copysign(x: wf.Tensor, y: wf.Tensor) -> wf.Tensor:
    return wf.where(_signbit(y), -wf.abs(x), wf.abs(x))


@program("atan2")
def _atan2(y: wf.Tensor, x: wf.Tensor) -> wf.Tensor:
    """The angle of a quotient, turned by π where x is negative; both zeros have a sign."""
    side = wf.where(_signbit(y), -1.0, 1.0).astype(x.dtype)
    rise, run = wf.abs(y), wf.abs(x)
    of_equals = wf.where(wf.equal(rise, 0), 0.0, 1.0).astype(x.dtype)
    angle = wf.atan(wf.where(wf.equal(rise, run), of_equals, rise / run))
    return side * wf.where(_signbit(x), math.pi - angle, angle)


@program("xlogy")
def _xlogy(x: wf.Tensor, y: wf.Tensor) -> wf.Tensor:
    return wf.where(wf.equal(x, 0) & ~wf.isnan(y), 0.0, x * wf.log(y))


@program("xlog1py")
def _xlog1py(x: wf.Tensor, y: wf.Tensor) -> wf.Tensor:
    return wf.where(wf.equal(x, 0) & ~wf.isnan(y), 0.0, x * wf.log1p(y))


@program("conj")
def _conj(x: wf.Tensor) -> wf.Tensor:
    return x


@program("real")
def _real(x: wf.Tensor) -> wf.Tensor:
    return x


@program("imag")
def _imag(x: wf.Tensor) -> wf.Tensor:
    return wf.zeros_like(x)


# --- float64, which runtimes have fewer kernels for -----------------------------------------------


@in_double("sinh")
def _sinh(x: wf.Tensor) -> wf.Tensor:
    grown, fallen = _half_exponentials(wf.abs(x))
    return wf.where(wf.abs(x) < 0.5, _small_sinh(x), wf.sign(x) * (grown - fallen))


def _small_sinh(x: wf.Tensor) -> wf.Tensor:
    """By tanh, which loses no digits near zero."""
    half = wf.tanh(wf.clip(x, -1.0, 1.0) / 2)
    return 2 * half / (1 - half * half)


@in_double("cosh")
def _cosh(x: wf.Tensor) -> wf.Tensor:
    grown, fallen = _half_exponentials(wf.abs(x))
    return grown + fallen


def _half_exponentials(size: wf.Tensor) -> tuple[wf.Tensor, wf.Tensor]:
    """Half of exp(size), which may be finite where exp(size) is not, and half of exp(-size)."""
    root = wf.exp(size / 2)
    return root / 2 * root, wf.exp(-size) / 2


@in_double("tan")
def _tan(x: wf.Tensor) -> wf.Tensor:
    return wf.sin(x) / wf.cos(x)


_SQUARE_GROWS = 1e8
"""From here on x² + 1 is x² in float64, and the square may be too large."""


@in_double("asinh")
def _asinh(x: wf.Tensor) -> wf.Tensor:
    size = wf.abs(x)
    small = wf.minimum(size, _SQUARE_GROWS)
    near = wf.log1p(small + small * small / (1 + wf.sqrt(small * small + 1)))
    return wf.sign(x) * wf.where(size > _SQUARE_GROWS, wf.log(size) + math.log(2.0), near)


@in_double("acosh")
def _acosh(x: wf.Tensor) -> wf.Tensor:
    small = wf.minimum(x, _SQUARE_GROWS)
    near = wf.log(small + wf.sqrt(small - 1) * wf.sqrt(small + 1))
    return wf.where(x > _SQUARE_GROWS, wf.log(x) + math.log(2.0), near)


@in_double("atanh")
def _atanh(x: wf.Tensor) -> wf.Tensor:
    return (wf.log1p(x) - wf.log1p(-x)) / 2


@in_double("atan")
def _atan(x: wf.Tensor) -> wf.Tensor:
    """The angle in float32, and what is left of it by the law of a difference of tangents."""
    near = wf.atan(x.astype(wf.float32)).astype(wf.float64)
    sine, cosine = wf.sin(near), wf.cos(near)
    bounded = wf.clip(x, -1e30, 1e30)
    return near + (bounded * cosine - sine) / (cosine + bounded * sine)


@in_double("asin")
def _asin(x: wf.Tensor) -> Any:
    return _atan2(x, wf.sqrt((1 - x) * (1 + x)))


@in_double("acos")
def _acos(x: wf.Tensor) -> Any:
    return _atan2(wf.sqrt((1 - x) * (1 + x)), x)


# --- no operator ---------------------------------------------------------------------------------

refuse("nextafter", "it needs the bits of a number, which these opsets do not give")
_NO_COMPLEX = "ONNX operators have no complex numbers"
refuse("complex", _NO_COMPLEX)
refuse("as_parts", _NO_COMPLEX)
refuse("of_parts", _NO_COMPLEX)
_FLOAT8 = "a block of float8 is for training: export what the model computes outside of it"
refuse("float8_codes", _FLOAT8)
refuse("float8_numbers", _FLOAT8)
refuse("float8_scale", _FLOAT8)
