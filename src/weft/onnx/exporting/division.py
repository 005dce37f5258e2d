"""Whole quotients, remainders and whole powers, which runtimes round or refuse in the corners.

An integer divided by 0 is 0 in Weft. In a runtime it ends the process, and so does the least
integer divided by -1; integer powers go through float64. So integers are divided by what divides
them for sure, and powers are products.

>>> from weft.onnx.exporting.rules import RULES
>>> "floor_divide" in RULES, "integer_pow" in RULES
(True, True)
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import weft as wf
from weft.onnx.exporting.rules import ARITHMETIC, as_types, computed_in, inlined_program, rule
from weft.onnx.exporting.writing import Writer

DIVIDED = "f32 f64 i32 i64"
REMAINDERS = f"{DIVIDED} i8 i16 u8 u16 u32 u64"
EXACT_EXPONENT = 2048
"""Up to here every whole number is one in float16."""


@rule("remainder")
def _remainder(writer: Writer, node: Any, x: str, y: str) -> str:
    dtype = node.results[0].type.dtype
    if not dtype.is_floating:
        return as_types(writer, node, "Mod", [x, _safe_divisor(writer, node, y)[0]], REMAINDERS)
    wide = computed_in(dtype, DIVIDED)
    a, b = writer.cast(x, dtype, wide), writer.cast(y, dtype, wide)
    rest, zero = writer.op("Mod", a, b, fmod=1), writer.number(0, wide)
    apart = writer.op("Less", writer.op("Mul", writer.op("Sign", rest), writer.op("Sign", b)), zero)
    return writer.cast(writer.op("Where", apart, writer.op("Add", rest, b), rest), wide, dtype)


@rule("fmod")
def _fmod(writer: Writer, node: Any, x: str, y: str) -> str:
    """Of integers what the quotient cut towards zero leaves: Mod would go through float64."""
    dtype = node.results[0].type.dtype
    if dtype.is_floating:
        return as_types(writer, node, "Mod", [x, y], DIVIDED, fmod=1)
    if dtype.kind == "unsigned":
        return _remainder(writer, node, x, y)
    divisor, _ = _safe_divisor(writer, node, y)
    wide = computed_in(dtype, DIVIDED)
    a, b = writer.cast(x, dtype, wide), writer.cast(divisor, dtype, wide)
    rest = writer.op("Sub", a, writer.op("Mul", writer.op("Div", a, b), b))
    return writer.cast(rest, wide, dtype)


@rule("floor_divide")
def _floor_divide(writer: Writer, node: Any, x: str, y: str) -> str:
    dtype = node.results[0].type.dtype
    if dtype is wf.uint64:
        raise wf.Unsupported("runtimes do not divide uint64")
    return (_floor_of_floats if dtype.is_floating else _floor_of_integers)(writer, node, x, y)


def _floor_of_floats(writer: Writer, node: Any, x: str, y: str) -> str:
    """x less its remainder, divided; the plain quotient where there is no remainder to take."""
    dtype = node.results[0].type.dtype
    wide = computed_in(dtype, DIVIDED)
    a, b = writer.cast(x, dtype, wide), writer.cast(y, dtype, wide)
    rest = writer.cast(_remainder(writer, node, x, y), dtype, wide)
    whole = writer.op("Round", writer.op("Div", writer.op("Sub", a, rest), b))
    is_infinite = writer.op("Or", writer.op("IsInf", a), writer.op("IsInf", b))
    is_open = writer.op("Or", is_infinite, writer.op("Equal", b, writer.number(0, wide)))
    plain = writer.op("Floor", writer.op("Div", a, b))
    return writer.cast(writer.op("Where", is_open, plain, whole), wide, dtype)


def _floor_of_integers(writer: Writer, node: Any, x: str, y: str) -> str:
    """The quotient cut towards zero, less one where the signs of rest and divisor differ."""
    dtype = node.results[0].type.dtype
    wide = computed_in(dtype, DIVIDED)
    divisor, factor = _safe_divisor(writer, node, y)
    a, b = writer.cast(x, dtype, wide), writer.cast(divisor, dtype, wide)
    quotient = writer.op("Div", a, b)
    if dtype.kind != "unsigned":
        rest = writer.op("Sub", a, writer.op("Mul", quotient, b))
        signs = writer.op("Mul", writer.op("Sign", rest), writer.op("Sign", b))
        quotient = writer.op("Add", quotient, writer.op("Min", signs, writer.number(0, wide)))
    if factor:
        quotient = writer.op("Mul", quotient, writer.cast(factor, dtype, wide))
    return writer.cast(quotient, wide, dtype)


def _safe_divisor(writer: Writer, node: Any, y: str) -> tuple[str, str]:
    """The divisor with 1 for 0 and -1, and what a quotient by it is multiplied with; "" for 1."""
    atom, dtype = node.operands[1], node.operands[1].type.dtype
    is_signed = dtype.kind != "unsigned"
    if isinstance(atom, wf.ir.Literal) and not ((atom.value == 0) | (atom.value == -1)).any():
        return y, ""
    wide = computed_in(dtype, "i32 i64")
    divisor, one = writer.cast(y, dtype, wide), writer.number(1, wide)
    is_open = writer.op("Equal", divisor, writer.number(0, wide))
    if is_signed:
        minus_one = writer.op("Equal", divisor, writer.number(-1, wide))
        is_open = writer.op("Or", is_open, minus_one)
    safe, factor = (writer.op("Where", is_open, *pair) for pair in ((one, divisor), (divisor, one)))
    return writer.cast(safe, wide, dtype), writer.cast(factor, wide, dtype)


# --- powers --------------------------------------------------------------------------------------


@rule("pow")
def _pow(writer: Writer, node: Any, x: str, y: str) -> str | Sequence[str]:
    if node.results[0].type.dtype.is_integer:
        return _power_by_squares(writer, node, x, y)
    return as_types(writer, node, "Pow", [x, y], ARITHMETIC)


@rule("integer_pow")
def _integer_pow(writer: Writer, node: Any, x: str) -> str:
    dtype, exponent = node.results[0].type.dtype, node.params["exponent"]
    if exponent == 2:
        return as_types(writer, node, "Mul", [x, x], ARITHMETIC)
    wide = computed_in(dtype, ARITHMETIC if abs(exponent) <= EXACT_EXPONENT else DIVIDED)
    base = writer.cast(x, dtype, wide)
    if dtype.is_floating:
        power = writer.op("Pow", base, writer.number(exponent, wide))
    else:
        power = _product_of_powers(writer, base, exponent, wide)
    return writer.cast(power, wide, dtype)


def _product_of_powers(writer: Writer, base: str, exponent: int, dtype: wf.DType) -> str:
    """The product of those squares of squares that the exponent's bits name."""
    if exponent == 0:
        kind = writer.op("Mul", base, writer.number(0, dtype))
        return writer.op("Add", kind, writer.number(1, dtype))
    power = ""
    while exponent:
        if exponent % 2:
            power = writer.op("Mul", power, base) if power else base
        exponent //= 2
        if exponent:
            base = writer.op("Mul", base, base)
    return power


def _power_by_squares(writer: Writer, node: Any, x: str, y: str) -> Sequence[str]:
    """Squares of the base, multiplied as long as an exponent has bits left."""
    shape = node.results[0].type.shape

    def step(carry: Any) -> tuple[wf.Tensor, ...]:
        power, base, bits = carry
        return wf.where(wf.equal(bits & 1, 1), power * base, power), base * base, bits >> 1

    def power(base: wf.Tensor, exponent: wf.Tensor) -> Any:
        spread = [wf.broadcast_to(each, shape) for each in (base, exponent)]
        start = wf.ones(shape, dtype=base.dtype), *spread
        return wf.while_loop(lambda carry: wf.any(carry[2] > 0), step, start)[0]

    return inlined_program(power)(writer, node, x, y)
