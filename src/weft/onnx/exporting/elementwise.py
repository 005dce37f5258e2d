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
direct("relu", "Relu", "f16 f32 f64 i32 i8")
direct("pow", "Pow", ARITHMETIC)
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
    return as_types(writer, node, "Sign", [x], f"{ARITHMETIC} i8 i16 u8 u16 u32 u64")


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


@rule("remainder")
def _remainder(writer: Writer, node: Any, x: str, y: str) -> str:
    if not node.results[0].type.dtype.is_floating:
        return as_types(writer, node, "Mod", [x, y], f"{ARITHMETIC} i8 i16 u8 u16 u32 u64")
    dtype = node.results[0].type.dtype
    wide = computed_in(dtype, "f32 f64")
    a, b = writer.cast(x, dtype, wide), writer.cast(y, dtype, wide)
    rest, zero = writer.op("Mod", a, b, fmod=1), writer.number(0, wide)
    apart = writer.op("Less", writer.op("Mul", writer.op("Sign", rest), writer.op("Sign", b)), zero)
    return writer.cast(writer.op("Where", apart, writer.op("Add", rest, b), rest), wide, dtype)


@rule("floor_divide")
def _floor_divide(writer: Writer, node: Any, x: str, y: str) -> str:
    """The quotient of a whole multiple: x less its remainder, divided."""
    dtype = node.results[0].type.dtype
    if dtype is wf.uint64:
        raise wf.Unsupported("runtimes do not divide uint64")
    wide = computed_in(dtype, ARITHMETIC)
    rest = writer.cast(_remainder(writer, node, x, y), dtype, wide)
    a, b = writer.cast(x, dtype, wide), writer.cast(y, dtype, wide)
    quotient = writer.op("Div", writer.op("Sub", a, rest), b)
    return writer.cast(writer.op("Round", quotient) if dtype.is_floating else quotient, wide, dtype)


@rule("fmod")
def _fmod(writer: Writer, node: Any, x: str, y: str) -> str:
    native = "f32 f64 i32 i64 i8 i16 u8 u16 u32 u64"
    return as_types(writer, node, "Mod", [x, y], native, fmod=1)


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


@program("erfc")
def _erfc(x: wf.Tensor) -> wf.Tensor:
    return 1.0 - wf.erf(x)


@program("exp2")
def _exp2(x: wf.Tensor) -> wf.Tensor:
    return wf.exp(x * math.log(2.0))


@program("expm1")
def _expm1(x: wf.Tensor) -> wf.Tensor:
    """By tanh near zero, where exp(x) - 1 would lose digits."""
    half = wf.tanh(x / 2)
    return wf.where(wf.abs(x) < 0.5, 2.0 * half / (1.0 - half), wf.exp(x) - 1.0)


@program("log1p")
def _log1p(x: wf.Tensor) -> wf.Tensor:
    """log(u) · x / (u - 1) with u = 1 + x, as it is rounded (Kahan)."""
    u = 1.0 + x
    is_plain = (wf.equal(u, 1.0)) | wf.isinf(u)
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
    return wf.sqrt(x * x + y * y)


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
    quotient = wf.atan(wf.abs(y) / wf.abs(x))
    angle = wf.where(wf.equal(y, 0), 0.0, wf.where(wf.equal(x, 0), math.pi / 2, quotient))
    return side * wf.where(_signbit(x), math.pi - angle, angle)


@program("xlogy")
def _xlogy(x: wf.Tensor, y: wf.Tensor) -> wf.Tensor:
    return wf.where(wf.equal(x, 0), 0.0, x * wf.log(wf.where(wf.equal(x, 0), 1.0, y)))


@program("xlog1py")
def _xlog1py(x: wf.Tensor, y: wf.Tensor) -> wf.Tensor:
    return wf.where(wf.equal(x, 0), 0.0, x * wf.log1p(wf.where(wf.equal(x, 0), 0.0, y)))


@program("conj")
def _conj(x: wf.Tensor) -> wf.Tensor:
    return x


@program("real")
def _real(x: wf.Tensor) -> wf.Tensor:
    return x


@program("imag")
def _imag(x: wf.Tensor) -> wf.Tensor:
    return wf.zeros_like(x)


@rule("integer_pow")
def _integer_pow(writer: Writer, node: Any, x: str) -> str:
    dtype, exponent = node.results[0].type.dtype, node.params["exponent"]
    if exponent == 2:
        return as_types(writer, node, "Mul", [x, x], ARITHMETIC)
    wide = computed_in(dtype, ARITHMETIC)
    power = writer.op("Pow", writer.cast(x, dtype, wide), writer.number(exponent, wide))
    return writer.cast(power, wide, dtype)


# --- float64, which runtimes have fewer kernels for -----------------------------------------------


@in_double("sinh")
def _sinh(x: wf.Tensor) -> wf.Tensor:
    return wf.where(wf.abs(x) < 0.5, _small_sinh(x), (wf.exp(x) - wf.exp(-x)) / 2)


def _small_sinh(x: wf.Tensor) -> wf.Tensor:
    """By tanh, which loses no digits near zero."""
    half = wf.tanh(wf.clip(x, -1.0, 1.0) / 2)
    return 2 * half / (1 - half * half)


@in_double("cosh")
def _cosh(x: wf.Tensor) -> wf.Tensor:
    return (wf.exp(x) + wf.exp(-x)) / 2


@in_double("tan")
def _tan(x: wf.Tensor) -> wf.Tensor:
    return wf.sin(x) / wf.cos(x)


@in_double("asinh")
def _asinh(x: wf.Tensor) -> wf.Tensor:
    size = wf.abs(x)
    return wf.sign(x) * wf.log1p(size + size * size / (1 + wf.sqrt(size * size + 1)))


@in_double("acosh")
def _acosh(x: wf.Tensor) -> wf.Tensor:
    return wf.log(x + wf.sqrt(x - 1) * wf.sqrt(x + 1))


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

_NO_OPERATOR = "ONNX has no operator for it, and a series of its own would be slow and less exact"
refuse("digamma", _NO_OPERATOR)
refuse("lgamma", _NO_OPERATOR)
refuse("polygamma", _NO_OPERATOR)
refuse("erfinv", _NO_OPERATOR)
refuse("i0e", _NO_OPERATOR)
refuse("i1e", _NO_OPERATOR)
refuse("gamma_slope", _NO_OPERATOR)
refuse("gamma_by_concentration", _NO_OPERATOR)
refuse("nextafter", "it needs the bits of a number, which these opsets do not give")
_NO_COMPLEX = "ONNX operators have no complex numbers"
refuse("complex", _NO_COMPLEX)
refuse("as_parts", _NO_COMPLEX)
refuse("of_parts", _NO_COMPLEX)
