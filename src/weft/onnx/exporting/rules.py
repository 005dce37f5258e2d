"""The registry of rules: how each primitive is written, or why it cannot be.

A rule takes a writer, the Weft node and the names of its operands' values, and gives the names of
its results. `direct` is a rule of one operator; `program` writes a primitive as a Weft program over
others, which is traced for the types at hand and written in its place; `refuse` says why there is
no rule.

>>> from weft.onnx.exporting.rules import RULES
>>> isinstance(RULES, dict)
True
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import weft as wf
from weft.onnx.exporting.writing import Writer

__all__ = [
    "RULES", "Rule", "as_sum", "as_types", "computed_in", "direct", "in_double", "inlined_program",
    "program", "refuse", "rule", "signed_order", "summed_in", "unsigned_order",
]  # fmt: skip

Rule = Callable[..., str | Sequence[str]]
RULES: dict[str, Rule | wf.Unsupported] = {}
"""One entry for each primitive, by its name."""

FLOATS = "f16 f32 f64"
ARITHMETIC = "f16 f32 f64 i32 i64"
"""The dtypes that runtimes compute sums and products in; others are converted and back."""

MANY_TERMS = 1 << 20
"""How many terms a sum of unknown length is taken to have at most."""

_WIDER: dict[str, str] = {
    "bool": "u8 i32 i64 f32",
    "u8": "i32 i64 f32",
    "i8": "i32 i64 f32",
    "u16": "i32 i64 f32",
    "i16": "i32 i64 f32",
    "i32": "i64",
    "u32": "i64 u64",
    "u64": "i64",
    "bf16": "f32",
    "f16": "f32",
}
"""For each dtype, those that hold it whole (or, for uint64, its bits), the narrowest first."""
_BY_SHORT = {
    kind.short: kind
    for kind in (
        wf.bool, wf.int8, wf.int16, wf.int32, wf.int64, wf.uint8, wf.uint16, wf.uint32, wf.uint64,
        wf.float16, wf.bfloat16, wf.float32, wf.float64,
    )
}  # fmt: skip


Function = TypeVar("Function", bound=Rule)


def rule(primitive: str) -> Callable[[Function], Function]:
    """Register the rule of a primitive."""

    def register(function: Function) -> Function:
        RULES[primitive] = function
        return function

    return register


def refuse(primitive: str, reason: str) -> None:
    """Say why a primitive is not written."""
    RULES[primitive] = wf.Unsupported(reason)


def direct(primitive: str, operator: str, native: str = FLOATS, **attributes: Any) -> None:
    """A primitive that is one operator; operands of other dtypes than `native` are converted."""

    def write(writer: Writer, node: Any, *operands: str) -> str:
        return as_types(writer, node, operator, operands, native, **attributes)

    RULES[primitive] = write


def as_types(
    writer: Writer,
    node: Any,
    operator: str,
    operands: Sequence[str],
    native: str,
    **attributes: Any,
) -> str:
    """One operator over operands of one dtype, computed in a dtype that runtimes have it for."""
    dtype, result = node.operands[0].type.dtype, node.results[0].type.dtype
    wide = computed_in(dtype, native)
    inputs = [writer.cast(each, dtype, wide) for each in operands]
    output = writer.op(operator, *inputs, **attributes)
    return writer.cast(output, wide, result) if result is dtype else output


def computed_in(dtype: wf.DType, native: str) -> wf.DType:
    """The dtype that an operator is computed in: its own, or the narrowest that holds it."""
    kinds = native.split()
    if dtype.is_complex:
        raise wf.Unsupported("ONNX Runtime and most others have no complex numbers")
    if dtype.short in kinds or dtype in (wf.float64, wf.int64):
        return dtype
    wider = [kind for kind in _WIDER.get(dtype.short, "").split() if kind in kinds]
    if not wider:
        raise wf.Unsupported(f"there is no operator for {dtype.name}")
    return _BY_SHORT[wider[0]]


def summed_in(dtype: wf.DType, native: str, factors: int, terms: Any) -> wf.DType:
    """The dtype in which an operator for floats adds up terms, each a product of some factors.

    For integers it is a float that holds every such sum whole.

    >>> summed_in(wf.int8, FLOATS, 2, 27), summed_in(wf.int16, FLOATS, 2, 27)
    (weft.float32, weft.float64)
    """
    if dtype.is_floating or dtype.is_complex:
        return computed_in(dtype, native)
    count = terms if isinstance(terms, int) else MANY_TERMS
    bits = factors * (dtype.bits - (dtype.kind == "signed")) + max(count, 1).bit_length()
    for wide, digits in ((wf.float32, 24), (wf.float64, 53)):
        if bits <= digits:
            return wide
    raise wf.Unsupported(f"there is no operator for {dtype.name}, and floats would round it")


def as_sum(writer: Writer, value: str, wide: wf.DType, dtype: wf.DType) -> str:
    """What was added up in another dtype, in its own: an integer's last bits, as integers have."""
    if dtype.is_floating:
        return writer.cast(value, wide, dtype)
    return writer.cast(writer.op("Cast", value, to=wf.int64), wf.int64, dtype)


def signed_order(writer: Writer, value: str, dtype: wf.DType) -> tuple[str, wf.DType]:
    """A value that is ordered as it was: uint64, which runtimes do not order, as int64."""
    if dtype is not wf.uint64:
        return value, dtype
    flipped = writer.op("BitwiseXor", value, writer.number(1 << 63, wf.uint64))
    return writer.op("Cast", flipped, to=wf.int64), wf.int64


def unsigned_order(writer: Writer, value: str, dtype: wf.DType) -> str:
    """What `signed_order` has turned into int64, as it was."""
    if dtype is not wf.uint64:
        return value
    bits = writer.op("Cast", value, to=wf.uint64)
    return writer.op("BitwiseXor", bits, writer.number(1 << 63, wf.uint64))


def program(primitive: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Register the Weft program that a primitive is written as: f(*operands, **params)."""

    def register(function: Callable[..., Any]) -> Callable[..., Any]:
        RULES[primitive] = inlined_program(function)
        return function

    return register


def in_double(primitive: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Register the Weft program that a primitive is written as in float64 alone."""
    single = RULES[primitive]
    assert not isinstance(single, wf.Unsupported)

    def register(function: Callable[..., Any]) -> Callable[..., Any]:
        double = inlined_program(function)

        def write(writer: Writer, node: Any, *operands: str) -> str | Sequence[str]:
            is_double = node.operands[0].type.dtype is wf.float64
            return (double if is_double else single)(writer, node, *operands)

        RULES[primitive] = write
        return function

    return register


def inlined_program(function: Callable[..., Any]) -> Rule:
    """The rule that traces a program for the types of a node and writes it in its place."""

    def write(writer: Writer, node: Any, *operands: str) -> Sequence[str]:
        types = [operand.type for operand in node.operands]
        graph = wf.ir.trace(lambda *tensors: function(*tensors, **node.params), *types)
        return INLINE[0](writer, graph, operands)

    return write


INLINE: list[Callable[[Writer, Any, Sequence[str]], Sequence[str]]] = []
"""How a graph is written at the place of a node; filled in by `blocks`."""
