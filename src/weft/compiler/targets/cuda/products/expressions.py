"""Scalar expressions of epilogues in PTX: the compiler's own vocabulary, in registers.

An epilogue computes what a kernel of the loop language would compute behind the product, so it is
described by the same expressions. A `local` stands for a number that the epilogue has in a
register, as a float32; it may be of a 16-bit dtype, whose numbers every float32 holds. Functions
are the card's (`mathematics`). Where all that leaves is rounded to 16 bits, exp and erfc are
shorter: their errors are near 2⁻²¹ for arguments near 1 and grow with them, as Triton's exp does.

>>> from weft.compiler.targets.cuda.ptx_writer import Kernel
>>> from weft.core.dtypes import bfloat16, float32
>>> from weft.ir.scalars import cast, local
>>> x = local("x", bfloat16)
>>> whole = cast(cast(x, float32) * 2.0, bfloat16)
>>> print(expand_expression(whole))
cast<f32>(x) * 2
>>> kernel = Kernel("example", [], threads=32)
>>> pair = [kernel.variable("f32", 1.0), kernel.variable("f32", 2.0)]
>>> [value.kind for value in write_expression(kernel, expand_expression(whole), [{"x": pair}])[0]]
['f32', 'f32']
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import Any

from weft.compiler.targets.cuda.instructions import APPROXIMATE
from weft.compiler.targets.cuda.mathematics import (
    SHORT_ERFC,
    DeviceExpander,
    angle_of_half_tanh,
)
from weft.compiler.targets.cuda.ptx_writer import Kernel, Operand, Value, float_literal
from weft.compiler.targets.cuda.warpgroup import packed_pair, unpacked_pair
from weft.compiler.targets.llvm.elementary import Function, polynomial
from weft.core.dtypes import DType, bfloat16, bool_, float16, float32, int32, int64, uint32
from weft.core.errors import Unsupported
from weft.ir.scalars import (
    INSTRUCTIONS,
    Scalar,
    absolute,
    const,
    fma,
    less,
    node,
    nodes_in_order,
    select,
)

SHORT = (bfloat16, float16)
"""The dtypes that results are rounded to, beside float32."""
_ERFC = (
    -0.05927750840783119, 0.2855934500694275, -0.48931071162223816, 0.28048408031463623,
    -0.028291819617152214, 0.2033921778202057, 0.2429254800081253, 0.2823998034000397,
    0.28208503127098083,
)  # fmt: skip
"""exp(x²)·erfc x / t in t = 1/(1 + x/2), for x from 0 to 11; within 2⁻²¹."""
_LOG2_E = 1.4426950408889634
_SHORT_CURVE = (SHORT_ERFC, 0.65)
"""The same within 2⁻¹⁶, in t = 1/(1 + 0.65·x): for what is multiplied and then rounded."""
_DEEPEST = 8
"""The products in a row that are followed from a rounding."""


_HOISTED = (2.0**-8, 2.0**8)
"""Constant factors that may be multiplied later than they stand: products stay in range."""


def _times(x: Scalar, number: float) -> Scalar:
    """x times a constant, in one instruction where x is such a product itself."""
    if x.op == "multiply" and x.args[1].op == "const":
        return x.args[0] * float(x.args[1].detail * number)
    return x * number


def _exponential(x: Scalar) -> Scalar:
    return node("power_of_two", float32, (_times(x, _LOG2_E),))


def _product(x: Scalar, y: Scalar) -> Scalar:
    """x·y with constant factors last, where they meet others and become one."""
    if y.op == "const":
        return _times(x, y.detail)
    if x.op == "const":
        return _times(y, x.detail)
    number = 1.0
    factors = []
    for each in (x, y):
        is_scaled = each.op == "multiply" and each.args[1].op == "const"
        if is_scaled and _HOISTED[0] <= abs(each.args[1].detail) <= _HOISTED[1]:
            number *= each.args[1].detail
            each = each.args[0]
        elif x is y:
            return x * y
        factors.append(each)
    product = factors[0] * factors[1]
    return product if number == 1.0 else product * number


def _erfc(
    x: Scalar,
    factor: float = 1.0,
    curve: tuple[float, ...] = _ERFC,
    slope: float = 0.5,
) -> Scalar:
    """erfc x times a factor; a constant that x is multiplied by costs nothing."""
    scale = 1.0
    if x.op == "multiply" and x.args[1].op == "const":
        x, scale = x.args[0], x.args[1].detail
    along = fma(absolute(x), const(slope * abs(scale), float32), const(1.0, float32))
    t = node("reciprocal", float32, (along,))
    power = _exponential(_times(_times(x * x, scale * scale), -1.0))
    value = polynomial(t, *(factor * each for each in curve)) * t * power
    is_negative = less(x, 0.0) if scale > 0 else less(0.0, x)
    return select(is_negative, 2.0 * factor - value, value)


FUNCTIONS: dict[str, Function] = {"exp": _exponential, "erfc": _erfc}
"""The functions of epilogues whose results are rounded to 16 bits."""


class _EpilogueExpander(DeviceExpander):
    """Writes functions out as a card computes them, in few instructions."""

    def _expand_node(self, x: Scalar) -> Scalar:
        rule = FUNCTIONS.get(x.op) if x.dtype is float32 else None
        if rule is not None:
            return rule(*(self._done[arg] for arg in x.args))
        if x.op == "negative" and x.dtype is float32:
            return _times(self._done[x.args[0]], -1.0)  # exp(-x²) of erfc and beside it are one
        if x.op == "multiply" and x.dtype is float32 and angle_of_half_tanh(x) is None:
            return self._scaled_erfc(x) or _product(*(self._done[arg] for arg in x.args))
        if x.op == "divide" and x.dtype is float32:
            return node("divide", float32, tuple(self._done[arg] for arg in x.args), "short")
        return super()._expand_node(x)

    def _shorten(self, x: Scalar, depth: int) -> Scalar:
        """What is multiplied and then rounded has the shortest functions, as in other kernels."""
        if x.dtype is not float32 or depth > _DEEPEST or angle_of_half_tanh(x) is not None:
            return self._done[x]
        if x.op == "erfc":
            return _erfc(self._done[x.args[0]], 1.0, *_SHORT_CURVE)
        if x.op == "multiply":
            scaled = self._scaled_erfc(x, *_SHORT_CURVE)
            return scaled or _product(*(self._rounded_next(arg, depth + 1) for arg in x.args))
        return self._done[x]

    def _scaled_erfc(self, x: Scalar, *curve: Any) -> Scalar | None:
        """erfc times a constant, which its coefficients take; None for other products."""
        for each, other in (x.args, reversed(x.args)):
            if each.op == "erfc" and other.op == "const":
                return _erfc(self._done[each.args[0]], other.detail, *curve)
        return None


@lru_cache(maxsize=1024)
def expand_expression(x: Scalar) -> Scalar:
    """An expression in what cards have instructions for, as a float32 that is not rounded last.

    Raises `Unsupported` where it is none, or has instructions that PTX has none for here.
    """
    rounded = x.op == "cast" and x.dtype in SHORT
    if not rounded and x.dtype is not float32:
        raise Unsupported(f"epilogues store floats, not {x.dtype}")
    expander = _EpilogueExpander() if rounded else DeviceExpander()
    expanded = expander(x)
    if expanded.op == "cast" and expanded.dtype in SHORT and expanded.args[0].dtype is float32:
        expanded = expanded.args[0]
    elif expanded.dtype in SHORT:
        expanded = node("cast", float32, (expanded,))
    for each in nodes_in_order(expanded):
        if not _is_written(each):
            raise Unsupported(f"epilogues have no {each.op} of {each.dtype}")
    return expanded


def instruction_count(x: Scalar) -> int:
    """How many instructions an expanded expression is; those of the special unit count four."""
    return sum(
        4 if each.op in APPROXIMATE or each.op in ("divide", "sqrt") else 1
        for each in nodes_in_order(x)
        if each.op not in ("const", "local")
    )


# --- the table ------------------------------------------------------------------------------------

_KINDS = {float32: "f32", int32: "s32", uint32: "u32", bool_: "pred", bfloat16: "b16",
          float16: "b16", int64: "s64"}  # fmt: skip
Rule = Callable[..., Value]


def _instruction(word: str, floating: str = "") -> Rule:
    """An instruction whose name ends in the kind of its operands."""

    def rule(kernel: Kernel, x: Scalar, *operands: Operand) -> Value:
        kind = _KINDS[x.dtype]
        return kernel.let(kind, f"{floating if kind == 'f32' and floating else word}.{kind}",
                          *operands)  # fmt: skip

    return rule


def _comparison(relation: str) -> Rule:
    def rule(kernel: Kernel, x: Scalar, *operands: Operand) -> Value:
        kind = _KINDS[x.args[0].dtype]
        return kernel.let("pred", f"setp.{relation}.{kind}", *operands)

    return rule


def _bits(word: str) -> Rule:
    def rule(kernel: Kernel, x: Scalar, *operands: Operand) -> Value:
        kind = _KINDS[x.dtype]
        return kernel.let(kind, f"{word}.{'pred' if kind == 'pred' else 'b32'}", *operands)

    return rule


def _select(kernel: Kernel, x: Scalar, condition: Operand, yes: Operand, no: Operand) -> Value:
    kind = _KINDS[x.dtype]
    return kernel.let(kind, f"selp.{'f32' if kind == 'f32' else 'b32'}", yes, no, condition)


def _divide(kernel: Kernel, x: Scalar, *operands: Operand) -> Value:
    """Rounded as it should be, or within 2 ulp in fewer instructions."""
    return kernel.let("f32", "div.full.f32" if x.detail == "short" else "div.rn.f32", *operands)


def _approximate_function(kernel: Kernel, x: Scalar, operand: Operand) -> Value:
    return kernel.let("f32", APPROXIMATE[x.op], operand)


_TABLE: dict[str, Rule] = {
    "add": _instruction("add"),
    "subtract": _instruction("sub"),
    "multiply": _instruction("mul.lo", "mul"),
    "divide": _divide,
    "negative": _instruction("neg"),
    "absolute": _instruction("abs"),
    "minimum": _instruction("min", "min.NaN"),
    "maximum": _instruction("max", "max.NaN"),
    "fma": _instruction("", "fma.rn"),
    "sqrt": _instruction("", "sqrt.rn"),
    "less": _comparison("lt"),
    "less_equal": _comparison("le"),
    "equal": _comparison("eq"),
    "and": _bits("and"),
    "or": _bits("or"),
    "xor": _bits("xor"),
    "not": _bits("not"),
    "shift_left": _bits("shl"),
    "select": _select,
    **dict.fromkeys(APPROXIMATE, _approximate_function),
}
_FLOATS_ONLY = frozenset({"divide", "fma", "sqrt"})
_COMPARISONS = frozenset({"less", "less_equal", "equal", "not_equal"})


def _not_equal(kernel: Kernel, x: Scalar, *operands: Operand) -> Value:
    """Of floats NaN differs from all, itself included."""
    kind = _KINDS[x.args[0].dtype]
    return kernel.let("pred", f"setp.{'neu' if kind == 'f32' else 'ne'}.{kind}", *operands)


_TABLE["not_equal"] = _not_equal


def _is_written(x: Scalar) -> bool:
    """Whether an instruction can be written here."""
    dtypes = [x.dtype, *(arg.dtype for arg in x.args)]
    if any(dtype not in _KINDS for dtype in dtypes):
        return False
    if x.op == "local":
        return x.dtype in (float32, int64, *SHORT)
    if x.op == "const":
        return True
    if int64 in dtypes:
        return x.op in _COMPARISONS
    if x.op == "cast":
        return _is_cast(x.args[0].dtype, x.dtype)
    if x.op == "bitcast":
        return all(dtype in (float32, int32, uint32) for dtype in dtypes)
    if x.op == "shift_left":  # by what is known to be less than the width
        return x.args[1].op == "const" and 0 <= x.args[1].detail < 32
    if any(dtype in SHORT for dtype in dtypes) or (x.op == "select" and x.dtype is bool_):
        return False
    if x.op in ("negative", "absolute") and x.dtype is uint32:
        return False
    if x.op in _COMPARISONS:
        return x.args[0].dtype is not bool_
    if x.op in _FLOATS_ONLY:
        return x.dtype is float32
    if x.dtype is bool_:
        return x.op in ("and", "or", "xor", "not")
    return x.op in _TABLE and (x.op in APPROXIMATE or x.op == "select" or x.op in INSTRUCTIONS)


def _is_cast(source: DType, target: DType) -> bool:
    known = (
        (float32, bfloat16), (float32, float16), (bfloat16, float32), (float16, float32),
        (bool_, float32),
    )  # fmt: skip
    return (source, target) in known


Pair = list[Value]
"""Registers of two neighbours in a row."""


def write_expression(kernel: Kernel, x: Scalar, pairs: Sequence[Mapping[str, Pair]]) -> list[Pair]:
    """An expanded expression of several pairs of neighbours, given those of its locals, by name.

    Instructions of one kind stand side by side, so that none waits for the one before it.
    """
    return write_expressions(kernel, [x], pairs)[0]


def write_expressions(
    kernel: Kernel, roots: Sequence[Scalar], pairs: Sequence[Mapping[str, Pair]]
) -> list[list[Pair]]:
    """Several expressions of the same locals: what they have in common is computed once.

    Where nothing is of 16 bits, `pairs` may be single numbers.
    """
    done: dict[Scalar, list[list[Operand]]] = {}
    width = len(next(iter(pairs[0].values()), (0, 1)))
    for each in nodes_in_order(*roots):
        operands = [done[arg] for arg in each.args]
        if each.op == "local":
            done[each] = [list(values[each.detail]) for values in pairs]
        elif each.op == "const":
            number = _literal(kernel, each)
            done[each] = [[number] * width for _ in pairs]
        elif each.op == "cast":
            done[each] = [_cast(kernel, each, pair) for pair in operands[0]]
        else:
            given = [list(zip(*both, strict=True)) for both in zip(*operands, strict=True)]
            done[each] = [[_write(kernel, each, one) for one in pair] for pair in given]
    return [[[_as_value(kernel, one) for one in pair] for pair in done[root]] for root in roots]


def _as_value(kernel: Kernel, operand: Operand) -> Value:
    return operand if isinstance(operand, Value) else kernel.let("f32", "mov.f32", operand)


def _write(kernel: Kernel, x: Scalar, operands: Sequence[Operand]) -> Value:
    if x.op == "bitcast":
        return kernel.let(_KINDS[x.dtype], "mov.b32", *operands)
    return _TABLE[x.op](kernel, x, *operands)


def _literal(kernel: Kernel, x: Scalar) -> Operand:
    if x.dtype is bool_:
        zero = kernel.variable("u32", 0)
        return zero.equals(0) if x.detail else zero.differs(0)
    return float_literal(x.detail) if x.dtype.is_floating else int(x.detail)


def _cast(kernel: Kernel, x: Scalar, pair: Sequence[Operand]) -> list[Operand]:
    """Both neighbours in another dtype; those of 16 bits share a register."""
    source = x.args[0]
    if source.dtype is bool_:
        one, zero = float_literal(1.0), float_literal(0.0)
        return [kernel.let("f32", "selp.f32", one, zero, each) for each in pair]
    if x.dtype in SHORT:
        low, high = (_as_value(kernel, each) for each in pair)
        packed = packed_pair(kernel, x.dtype.name, low, high)
        return [packed, packed]
    if source.op in ("local", "const"):
        return list(pair)  # they are float32 in their registers
    assert isinstance(pair[0], Value)
    return list(unpacked_pair(kernel, source.dtype.name, pair[0]))
