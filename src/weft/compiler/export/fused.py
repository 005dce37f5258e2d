"""Products that are added with one rounding, for machines that have no instruction for it.

In float32 the product is exact in float64; the sum there is rounded to odd, after which rounding it
again to float32 gives the bits of the instruction. In float64 the rounding errors of product and
sum are computed and added, which is within one unit of the last place.

>>> "define internal <4 x float>" in with_own_fma("%v = call <4 x float> @llvm.fma.v4f32(")
True
"""

from __future__ import annotations

import re

from weft.compiler.targets.llvm.ir_builder import IRBuilder
from weft.compiler.targets.llvm.ir_types import Type, vector_text
from weft.core.dtypes import float64

_CALLED = re.compile(r"@llvm\.fma\.(v(\d+))?(f32|f64)\(")
_DECLARED = re.compile(r"^declare [^\n]*@llvm\.fma\.[^\n]*\n", re.MULTILINE)
SPLIT = 134217729.0
"""What cuts a float64 into two halves: 2^27 + 1."""


def with_own_fma(text: str) -> str:
    """A module that calls functions of its own in place of LLVM's intrinsic."""
    forms = sorted({(int(m[2] or 1), m[3]) for m in _CALLED.finditer(text)})
    if not forms:
        return text
    text = _CALLED.sub(lambda m: f"@own_fma.{m[1] or ''}{m[3]}(", _DECLARED.sub("", text))
    made = [
        _single_precision_product_sum(width)
        if kind == "f32"
        else _double_precision_product_sum(width)
        for width, kind in forms
    ]
    declared = sorted({each for function in made for each in function.declared})
    missing = [each for each in declared if each not in text]
    return "\n".join([*missing, text, *[function.definition for function in made]])


def _begin(width: int, element: str, suffix: str) -> IRBuilder:
    kind = vector_text(element, width) if width > 1 else element
    given = [f"{kind} %{name}" for name in "abc"]
    name = f"own_fma.{f'v{width}' if width > 1 else ''}{suffix}"
    return IRBuilder(name, given, result=kind)


def _kinds(width: int) -> tuple[str, str, str]:
    """Vectors of float64, of integers of 64 bits, and of truths."""
    double, bits, truth = (
        vector_text(each, width) if width > 1 else each for each in ("double", "i64", "i1")
    )
    return double, bits, truth


def _single_precision_product_sum(width: int) -> IRBuilder:
    out = _begin(width, "float", "f32")
    double, bits, truth = _kinds(width)
    a, b, c = (out.convert("fpext", each, double) for each in ("%a", "%b", "%c"))
    product = out.put(f"fmul {double} {a}, {b}", double)
    total, error = _two_sum(out, double, product, c)
    # The last bit of a sum that was rounded becomes odd, on the side of the true sum.
    word = out.convert("bitcast", total, bits)
    zero, one, nothing = (_all(width, each) for each in ("i64 0", "i64 1", "double 0.0"))
    odd = out.put(f"and {bits} {word}, {one}", bits)
    is_even = out.put(f"icmp eq {bits} {odd}, {zero}", truth)
    is_rounded = out.put(f"fcmp one {double} {error}, {nothing}", truth)
    error_word = out.convert("bitcast", error, bits)
    signs = out.put(f"xor {bits} {word}, {error_word}", bits)
    is_larger = out.put(f"icmp sge {bits} {signs}, {zero}", truth)
    up = out.put(f"add {bits} {word}, {one}", bits)
    down = out.put(f"sub {bits} {word}, {one}", bits)
    near = out.put(f"select {truth} {is_larger}, {bits} {up}, {bits} {down}", bits)
    changes = out.put(f"and {truth} {is_even}, {is_rounded}", truth)
    chosen = out.put(f"select {truth} {changes}, {bits} {near}, {bits} {word}", bits)
    out.give(out.convert("fptrunc", out.convert("bitcast", chosen, double), out.result))
    return out


def _double_precision_product_sum(width: int) -> IRBuilder:
    out = _begin(width, "double", "f64")
    double, _, truth = _kinds(width)

    def combine(how: str, x: str, y: str) -> str:
        return out.put(f"{how} {double} {x}, {y}", double)

    def halves(x: str) -> tuple[str, str]:
        scaled = combine("fmul", x, _all(width, f"double {Type(float64).literal(SPLIT)}"))
        high = combine("fsub", scaled, combine("fsub", scaled, x))
        return high, combine("fsub", x, high)

    product = combine("fmul", "%a", "%b")
    (a1, a2), (b1, b2) = halves("%a"), halves("%b")
    rest = combine("fsub", combine("fmul", a1, b1), product)
    for x, y in ((a1, b2), (a2, b1), (a2, b2)):
        rest = combine("fadd", rest, combine("fmul", x, y))
    total, error = _two_sum(out, double, product, "%c")
    exact = combine("fadd", total, combine("fadd", error, rest))
    # Halves of huge numbers overflow: these are added as they are.
    is_number = out.put(f"fcmp ord {double} {exact}, {exact}", truth)
    out.give(out.put(f"select {truth} {is_number}, {double} {exact}, {double} {total}", double))
    return out


def _two_sum(out: IRBuilder, kind: str, a: str, b: str) -> tuple[str, str]:
    """A sum, and what its rounding has left out."""

    def combine(how: str, x: str, y: str) -> str:
        return out.put(f"{how} {kind} {x}, {y}", kind)

    total = combine("fadd", a, b)
    other = combine("fsub", total, a)
    first = combine("fsub", a, combine("fsub", total, other))
    return total, combine("fadd", first, combine("fsub", b, other))


def _all(width: int, constant: str) -> str:
    """A constant in each lane."""
    if width == 1:
        return constant.split()[1]
    return "<" + ", ".join([constant] * width) + ">"
