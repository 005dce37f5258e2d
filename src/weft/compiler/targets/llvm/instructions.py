"""The table of the LLVM target: how each scalar instruction is written, for one lane or many.

Instructions that `mathematics` expands into others before anything is written are not here; the two
together cover the vocabulary, and a test holds that.

>>> from weft.compiler.targets.llvm.ir_builder import Function
>>> from weft.core.dtypes import float32
>>> lines = Lines(Function())
>>> TABLE["add"](lines, Type(float32, 8), "%a", "%b"), lines.text
('%v0', ['  %v0 = fadd <8 x float> %a, %b'])
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from hashlib import sha256

from weft.compiler.targets.llvm.ir_builder import IRBuilder, Lines
from weft.compiler.targets.llvm.ir_types import Type, overload, vector_text
from weft.core.dtypes import DType, bool_, float16, float32, int32

Rule = Callable[..., str]
TABLE: dict[str, Rule] = {}


def _rule(name: str) -> Callable[[Rule], Rule]:
    def register(rule: Rule) -> Rule:
        TABLE[name] = rule
        return rule

    return register


def _add_instruction(name: str, floating: str, integer: str) -> None:
    """An instruction that is one of LLVM's, for floats and for integers."""

    def rule(lines: Lines, kind: Type, *operands: str) -> str:
        word = floating if kind.dtype.is_floating else integer
        return lines.put(f"{word} {kind.text} {', '.join(operands)}")

    TABLE[name] = rule


def intrinsic(lines: Lines, name: str, kind: Type, *operands: str, more: str = "") -> str:
    """Call an intrinsic whose operands and result have one type."""
    given = ", ".join(f"{kind.text} {x}" for x in operands)
    return lines.put(f"call {kind.text} @llvm.{name}.{kind.suffix}({given}{more})")


def _intrinsic(name: str, word: str) -> None:
    TABLE[name] = lambda lines, kind, *operands: intrinsic(lines, word, kind, *operands)


_add_instruction("add", "fadd", "add")
_add_instruction("subtract", "fsub", "sub")
_add_instruction("multiply", "fmul", "mul")
_add_instruction("divide", "fdiv", "")
_add_instruction("and", "", "and")
_add_instruction("or", "", "or")
_add_instruction("xor", "", "xor")
_intrinsic("fma", "fma")
_intrinsic("sqrt", "sqrt")
_intrinsic("floor", "floor")
_intrinsic("ceil", "ceil")
_intrinsic("trunc", "trunc")
_intrinsic("rint", "roundeven")


@_rule("negative")
def _negated_value(lines: Lines, kind: Type, x: str) -> str:
    if kind.dtype.is_floating:
        return lines.put(f"fneg {kind.text} {x}")
    return lines.put(f"sub {kind.text} {kind.literal(0)}, {x}")


@_rule("absolute")
def _absolute(lines: Lines, kind: Type, x: str) -> str:
    if kind.dtype.is_floating:
        return intrinsic(lines, "fabs", kind, x)
    if kind.dtype.kind == "unsigned":
        return x
    return intrinsic(lines, "abs", kind, x, more=", i1 false")


@_rule("not")
def _not(lines: Lines, kind: Type, x: str) -> str:
    return lines.put(f"xor {kind.text} {x}, {kind.literal(kind.dtype is bool_ or -1)}")


def _extremum(name: str, integer: str, truth: str) -> None:
    """A NaN in either operand is the result; -0.0 is less than 0.0."""

    def rule(lines: Lines, kind: Type, x: str, y: str) -> str:
        if kind.dtype is bool_:
            return lines.put(f"{truth} {kind.text} {x}, {y}")
        if kind.dtype.is_integer:
            return intrinsic(lines, f"{'us'[kind.dtype.kind == 'signed']}{integer}", kind, x, y)
        return intrinsic(lines, name, kind, x, y)

    TABLE[name] = rule


_extremum("maximum", "max", "or")
_extremum("minimum", "min", "and")


def select(lines: Lines, kind: Type, condition: str, x: str, y: str) -> str:
    """x in the lanes where the condition holds, y in the others."""
    return lines.put(f"select {kind.mask} {condition}, {kind.text} {x}, {kind.text} {y}")


def _comparison(name: str, floating: str, integer: str) -> None:
    def rule(lines: Lines, kind: Type, x: str, y: str) -> str:
        if kind.dtype.is_floating:
            return lines.put(f"fcmp {floating} {kind.text} {x}, {y}")
        sign = "" if name.endswith("equal") and name != "less_equal" else _sign(kind.dtype)
        return lines.put(f"icmp {sign}{integer} {kind.text} {x}, {y}")

    TABLE[name] = rule


def _sign(dtype: DType) -> str:
    return "s" if dtype.kind == "signed" else "u"


_comparison("less", "olt", "lt")
_comparison("less_equal", "ole", "le")
_comparison("equal", "oeq", "eq")
_comparison("not_equal", "une", "ne")


# --- integers: what NumPy gives where the processor would trap or not care ------------------------


def _shift(name: str, signed: str, unsigned: str) -> None:
    """Shifts by the width or more: zeros, or copies of the sign."""

    def rule(lines: Lines, kind: Type, x: str, amount: str) -> str:
        word = signed if kind.dtype.kind == "signed" else unsigned
        if _is_literal_with(amount, lambda number: 0 <= number < kind.dtype.bits):
            return lines.put(f"{word} {kind.text} {x}, {amount}")
        bits = kind.dtype.bits
        inside = lines.put(f"icmp ult {kind.text} {amount}, {kind.literal(bits)}")
        most = bits - 1 if word == "ashr" else 0
        safe = select(lines, kind, inside, amount, kind.literal(most))
        moved = lines.put(f"{word} {kind.text} {x}, {safe}")
        return moved if word == "ashr" else select(lines, kind, inside, moved, kind.literal(0))

    TABLE[name] = rule


def _is_literal_with(operand: str, holds: Callable[[int], bool]) -> bool:
    """Whether an operand is a literal for which a condition holds."""
    number = operand.rpartition(" ")[2].rstrip(")")
    return number.lstrip("-").isdigit() and holds(int(number))


_shift("shift_left", "shl", "shl")
_shift("shift_right", "ashr", "lshr")


@_rule("floor_divide")
def _floor_divide(lines: Lines, kind: Type, x: str, y: str) -> str:
    return _divide_integers(lines, kind, x, y, _floored_quotient)


@_rule("modulo")
def _modulo(lines: Lines, kind: Type, x: str, y: str) -> str:
    return _divide_integers(lines, kind, x, y, _floored_rest)


@_rule("fmod")
def _fmod(lines: Lines, kind: Type, x: str, y: str) -> str:
    return _divide_integers(lines, kind, x, y, _cut_rest)


def _divide_integers(lines: Lines, kind: Type, x: str, y: str, by: Rule) -> str:
    """0 where the divisor is 0; and no trap where the quotient is too great by one."""
    if _is_literal_with(y, lambda number: number > 0):
        return by(lines, kind, x, y, None)
    zero = lines.put(f"icmp eq {kind.text} {y}, {kind.literal(0)}")
    least, refused = None, zero
    if kind.dtype.kind == "signed":
        least = lines.put(f"icmp eq {kind.text} {y}, {kind.literal(-1)}")
        refused = lines.put(f"or {kind.mask} {zero}, {least}")
    safe = select(lines, kind, refused, kind.literal(1), y)
    return select(lines, kind, zero, kind.literal(0), by(lines, kind, x, safe, least))


def _floored_quotient(lines: Lines, kind: Type, x: str, y: str, least: str | None) -> str:
    if kind.dtype.kind == "unsigned":
        return lines.put(f"udiv {kind.text} {x}, {y}")
    quotient = lines.put(f"sdiv {kind.text} {x}, {y}")
    product = lines.put(f"mul {kind.text} {quotient}, {y}")
    rest = lines.put(f"sub {kind.text} {x}, {product}")
    low = _is_rounded_up(lines, kind, rest, y)
    lower = lines.put(f"add {kind.text} {quotient}, {kind.literal(-1)}")
    floored = select(lines, kind, low, lower, quotient)
    return (
        floored
        if least is None
        else select(lines, kind, least, _negated_value(lines, kind, x), floored)
    )


def _floored_rest(lines: Lines, kind: Type, x: str, y: str, least: str | None) -> str:
    rest = _cut_rest(lines, kind, x, y, None)
    if kind.dtype.kind == "unsigned":
        return rest
    low = _is_rounded_up(lines, kind, rest, y)
    return select(lines, kind, low, lines.put(f"add {kind.text} {rest}, {y}"), rest)


def _cut_rest(lines: Lines, kind: Type, x: str, y: str, least: str | None) -> str:
    # the divisor stands in as 1 where it is -1, and leaves 0 too
    return lines.put(f"{_sign(kind.dtype)[0]}rem {kind.text} {x}, {y}")


def _is_rounded_up(lines: Lines, kind: Type, rest: str, y: str) -> str:
    """Whether a rest has the other sign than the divisor, so that the quotient was rounded up."""
    zero = kind.literal(0)
    uneven = lines.put(f"icmp ne {kind.text} {rest}, {zero}")
    apart = lines.put(f"icmp slt {kind.text} {lines.put(f'xor {kind.text} {rest}, {y}')}, {zero}")
    return lines.put(f"and {kind.mask} {uneven}, {apart}")


# --- casts ---------------------------------------------------------------------------------------


def cast(lines: Lines, source: Type, target: Type, x: str) -> str:
    """A number in another dtype; 16-bit floats go to and from float32 only."""
    if source.dtype is target.dtype:
        return x
    if float16 in (source.dtype, target.dtype):
        return _cast_half(lines, source, target, x)
    if target.dtype is bool_:
        word = "fcmp une" if source.dtype.is_floating else "icmp ne"
        return lines.put(f"{word} {source.text} {x}, {source.literal(0)}")
    if source.dtype.is_floating and target.dtype.is_integer:
        word = "fptosi" if target.dtype.kind == "signed" else "fptoui"
        name = f"@llvm.{word}.sat.{target.suffix}.{source.suffix}"
        return lines.put(f"call {target.text} {name}({source.text} {x})")
    word = _cast_word(source.dtype, target.dtype)
    return lines.put(f"{word} {source.text} {x} to {target.text}") if word else x


def _cast_word(source: DType, target: DType) -> str:
    if target.is_floating:
        if source.is_floating:
            return "fpext" if target.bits > source.bits else "fptrunc"
        return "sitofp" if source.kind == "signed" else "uitofp"
    if source is not bool_ and source.bits >= target.bits:
        return "trunc" if source.bits > target.bits else ""
    return "sext" if source.kind == "signed" else "zext"


def _cast_half(lines: Lines, source: Type, target: Type, x: str) -> str:
    width = source.width
    half = f"<{width} x half>" if width > 1 else "half"
    if source.dtype is float16:
        bits = lines.put(f"bitcast {source.text} {x} to {half}")
        return lines.put(f"fpext {half} {bits} to {target.text}")
    short = lines.put(f"fptrunc {source.text} {x} to {half}")
    return lines.put(f"bitcast {half} {short} to {target.text}")


def bitcast(lines: Lines, source: Type, target: Type, x: str) -> str:
    """The same bits as another type."""
    if source.text == target.text:
        return x
    return lines.put(f"bitcast {source.text} {x} to {target.text}")


# --- parts of elementary functions ---------------------------------------------------------------


def scale(lines: Lines, kind: Type, permuted: bool, x: str, whole: str) -> str:
    """x·2ʷ of float32s, rounded once, for w from -256 to 255: whole numbers, as floats."""
    if permuted and kind.width == 16:
        name = "@llvm.x86.avx512.mask.scalef.ps.512"
        given = f"{kind.text} {x}, {kind.text} {whole}, {kind.text} {x}, i16 -1, i32 4"
        return lines.put(f"call {kind.text} {name}({given})")
    whole_numbers = Type(int32, kind.width)
    cut = lines.put(f"fptosi {kind.text} {whole} to {whole_numbers.text}")
    # of a NaN it may be any number, but one; x is a NaN then
    exponent = lines.put(f"freeze {whole_numbers.text} {cut}")
    half = TABLE["shift_right"](lines, whole_numbers, exponent, whole_numbers.literal(1))
    # two factors, as one of all of these would be no normal number
    for part in (half, lines.put(f"sub {whole_numbers.text} {exponent}, {half}")):
        moved = lines.put(f"add {whole_numbers.text} {part}, {whole_numbers.literal(127)}")
        bits = lines.put(f"shl {whole_numbers.text} {moved}, {whole_numbers.literal(23)}")
        x = lines.put(f"fmul {kind.text} {x}, {bitcast(lines, whole_numbers, kind, bits)}")
    return x


def lookup(lines: Lines, places: Type, permuted: bool, table: tuple[float, ...], place: str) -> str:
    """One of 8 or 16 float32s for each lane, by the last three or four bits of an int32."""
    kind = Type(float32, places.width)
    if permuted and kind.width == 16:
        name = "@llvm.x86.avx512.permvar.sf.512"
        given = f"{kind.text} {_vector(table * (16 // len(table)))}, {places.text} {place}"
        return lines.put(f"call {kind.text} {name}({given})")
    if permuted and kind.width == 8:
        return _from_eights(lines, places, table, place)
    last = lines.put(f"and {places.text} {place}, {places.literal(len(table) - 1)}")
    name = f"@table.{sha256(repr(table).encode()).hexdigest()[:16]}"
    lines.function.tables[name] = table
    wide = vector_text("ptr", kind.width)
    pointers = lines.put(f"getelementptr float, ptr {name}, {places.text} {last}")
    if kind.width == 1:
        return lines.put(f"load float, ptr {pointers}, align 4")
    given = f"{wide} {pointers}, i32 4, {kind.mask} splat (i1 true), {kind.text} poison"
    suffix = overload("ptr", kind.width)
    return lines.put(f"call {kind.text} @llvm.masked.gather.{kind.suffix}.{suffix}({given})")


def _from_eights(lines: Lines, places: Type, table: tuple[float, ...], place: str) -> str:
    """Numbers from a table of eight; from two halves of a longer one, and then the one meant."""
    kind = Type(float32, 8)
    found = [
        lines.put(
            f"call {kind.text} @llvm.x86.avx2.permps("
            f"{kind.text} {_vector(half)}, {places.text} {place})"
        )
        for half in (table[:8], table[8:])
        if half
    ]
    if len(found) == 1:
        return found[0]
    bit = lines.put(f"and {places.text} {place}, {places.literal(8)}")
    low = lines.put(f"icmp eq {places.text} {bit}, {places.literal(0)}")
    return select(lines, kind, low, *found)


def constants(tables: Mapping[str, tuple[float, ...]]) -> list[str]:
    """What a module must say about the tables that it reads."""
    return [
        f"{name} = private unnamed_addr constant [{len(table)} x float] [{_float_list(table)}]"
        for name, table in sorted(tables.items())
    ]


def _vector(table: tuple[float, ...]) -> str:
    return f"<{_float_list(table)}>"


def _float_list(table: tuple[float, ...]) -> str:
    kind = Type(float32)
    return ", ".join(f"float {kind.literal(x)}" for x in table)


# --- functions of the C library ------------------------------------------------------------------


def call(lines: Lines, kind: Type, name: str, *operands: str) -> str:
    """Call a function of float64s, lane by lane where there are several."""
    lines.function.externals.add((name, len(operands), kind.width))
    target = name if kind.width == 1 else f"each.{name}.{kind.width}"
    given = ", ".join(f"{kind.text} {x}" for x in operands)
    return lines.put(f"call {kind.text} @{target}({given})")


def declarations(externals: set[tuple[str, int, int]]) -> list[str]:
    """What a module must say about the functions that it calls."""
    arities = {name: arity for name, arity, _ in externals}
    lines = [
        f"declare double @{name}({', '.join(['double'] * arity)}) nounwind willreturn"
        for name, arity in sorted(arities.items())
    ]
    for name, arity, width in sorted(externals):
        if width > 1:
            lines.append(_lane_function(name, arity, width))
    return lines


def _lane_function(name: str, arity: int, width: int) -> str:
    """A function that calls another for each lane."""
    vector = vector_text("double", width)
    parameters = [f"{vector} %x{i}" for i in range(arity)]
    out = IRBuilder(f"each.{name}.{width}", parameters, result=vector)
    lane, results = out.variable(0), out.variable("zeroinitializer", vector)
    with out.repeat():
        place = lane.value
        operands = [
            out.put(f"extractelement {vector} {x}, i64 {place}", "double") for x in out.parameters
        ]
        result = out.call(f"@{name}", *operands, result="double")
        results.value = out.put(
            f"insertelement {vector} {results.value}, double {result}, i64 {place}", vector
        )
        lane.value = out.add(place, 1)
        out.again_if(out.test("ult", lane.value, width))
    out.give(results.value)
    return out.definition
