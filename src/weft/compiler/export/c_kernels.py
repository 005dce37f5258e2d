"""Kernels of the loop language as functions in C99.

Elementary functions are the C library's. Sums keep their order (64 partial results where the loop
language says so); a product that is added may be rounded before or not, as the compiler likes.

>>> from weft.core.dtypes import float32
>>> from weft.ir.loops import For, Kernel, Store
>>> from weft.ir.scalars import Buffer, index, size
>>> x, y, i = Buffer("x", float32), Buffer("y", float32, "write"), index("i")
>>> double = Kernel("double", (x, y), ("n",), (For(i, size("n"), (Store(y, i, x[i] * 2),)),))
>>> print(c_function("double", double, set()))
static void double(const float *x, float *y, int64_t n)
{
    for (int64_t i = 0; i < n; i++) {
        y[i] = x[i] * 2.0f;
    }
}
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence

from weft.compiler.export.program import KEYWORDS
from weft.compiler.targets.llvm.elementary import LIBRARY
from weft.compiler.targets.llvm.emit import is_local
from weft.core.dtypes import INDEX, DType, bfloat16, bool_, float16, float32, float64
from weft.ir.loop_reference import identity
from weft.ir.loops import (
    PARTIALS,
    Accumulate,
    For,
    Kernel,
    Let,
    Scratch,
    Statement,
    Store,
    Update,
    expressions,
    has_loops,
    walk,
)
from weft.ir.scalars import Buffer, Scalar, nodes_in_order
from weft.ir.scalars import size as size_named

DEEPEST = 6
"""How deep an expression is nested before a part of it gets a name."""

_LIBRARY = {
    **LIBRARY, "sqrt": "sqrt", "floor": "floor", "ceil": "ceil", "trunc": "trunc", "rint": "rint",
    "fma": "fma",
}  # fmt: skip
"""The instructions on floats that are functions of the C library."""
_COMPARED = {"less": "<", "less_equal": "<=", "equal": "==", "not_equal": "!="}
_SIGNS = {"add": "+", "subtract": "-", "multiply": "*", "divide": "/"}
_BITWISE = {"and": "&", "or": "|", "xor": "^"}
_HELPED = ("floor_divide", "modulo", "fmod", "shift_left", "shift_right", "minimum", "maximum")
"""The instructions that are functions of the file's own, where C leaves cases open."""


def element_type(dtype: DType) -> str:
    """The type of an element in C; 16-bit floats are their bits, and truths are bytes.

    >>> element_type(float32), element_type(bfloat16)
    ('float', 'uint16_t')
    """
    if dtype.is_floating and dtype.bits > 16:
        return "float" if dtype is float32 else "double"
    sign = "" if dtype.kind == "signed" else "u"
    return "uint8_t" if dtype is bool_ else f"{sign}int{dtype.bits}_t"


def c_function(name: str, kernel: Kernel, helpers: set[str]) -> str:
    """A kernel as a function; `helpers` is told which functions of the file's own it calls."""
    return "\n".join(_Function(name, kernel, helpers).lines())


def kernel_parameters(kernel: Kernel) -> list[str]:
    """What a function is given behind its buffers and numbers."""
    scratch = [] if all(map(is_local, kernel.scratch)) else ["scratch"]
    return scratch + (["begin", "end"] if kernel.parallel is not None else [])


def number_text(value: float, dtype: DType) -> str:
    """A constant."""
    if dtype is bool_:
        return "1" if value else "0"
    if not dtype.is_floating:
        return _integer_text(int(value), dtype)
    if dtype in (float16, bfloat16):
        return str(int.from_bytes(dtype.numpy.type(value).tobytes(), "little"))
    if math.isnan(value):
        return "NAN"
    if math.isinf(value):
        return "INFINITY" if value > 0 else "-INFINITY"
    text = f"{value:.9g}" if dtype is float32 else repr(value)
    text = text if any(mark in text for mark in ".en") else f"{text}.0"
    return text + ("f" if dtype is float32 else "")


def _integer_text(value: int, dtype: DType) -> str:
    if dtype.bits < 64:
        return f"{value}u" if dtype.kind == "unsigned" and dtype.bits == 32 else str(value)
    if dtype.kind == "unsigned":
        return f"UINT64_C({value})"
    if value == -(1 << 63):
        return "INT64_MIN"
    return str(value) if abs(value) < 1 << 31 else f"INT64_C({value})"


class _Function:
    """Writes one function."""

    def __init__(self, name: str, kernel: Kernel, helpers: set[str]) -> None:
        self.name, self.kernel, self.helpers = name, kernel, helpers
        self.names: dict[Scalar | Buffer, str] = {}
        self.taken: Counter[str] = Counter([*KEYWORDS, "begin", "end", "scratch", "part"])
        self.text: list[str] = []
        self.indent = 1
        self.used = {
            each
            for statement in walk(kernel.body)
            for root in expressions(statement)
            for each in nodes_in_order(root)
        }
        self.places: set[Scalar] = set()
        """Locals that are made of indices and sizes alone."""

    def lines(self) -> list[str]:
        """The lines of the function."""
        kernel = self.kernel
        given = [
            f"{'const ' if b.access == 'read' else ''}{element_type(b.dtype)} *{self.new_name(b)}"
            for b in kernel.buffers
        ]
        given += [f"int64_t {self.new_name(size_named(name))}" for name in kernel.sizes]
        rest = {"scratch": "unsigned char *scratch"}
        given += [rest.get(each, f"int64_t {each}") for each in kernel_parameters(kernel)]
        for scratch in kernel.scratch:
            self.write_scratch(scratch)
        self.body(kernel.body, False)
        head = f"static void {self.name}({', '.join(given) or 'void'})"
        words = set(re.findall(r"\w+", "\n".join(self.text)))
        unused = [self.names[size_named(name)] for name in kernel.sizes]
        silenced = [f"    (void){each};" for each in unused if each not in words]
        return [head, "{", *silenced, *self.text, "}"]

    def put(self, line: str) -> None:
        """Write a line."""
        self.text.append("    " * self.indent + line)

    def new_name(self, thing: Scalar | Buffer) -> str:
        """A name for a buffer or a variable that no other has."""
        plain = str(thing.name if isinstance(thing, Buffer) else thing.detail)
        plain = "".join(each if each.isalnum() else "_" for each in plain)
        plain = plain if plain[:1].isalpha() else f"v{plain}"
        self.taken[plain] += 1
        count = self.taken[plain]
        self.names[thing] = plain if count == 1 else f"{plain}_{count}"
        return self.names[thing]

    def write_scratch(self, scratch: Scratch) -> None:
        """Memory of one call: an array, or a part of what the caller has."""
        kind, name = element_type(scratch.buffer.dtype), self.new_name(scratch.buffer)
        if is_local(scratch):
            self.put(f"{kind} {name}[{max(1, int(scratch.count.detail))}];")
            return
        count = self.inline(scratch.count)
        self.put(f"{kind} *{name} = ({kind} *)scratch;")
        self.put(f"scratch += ((size_t)({count}) * sizeof *{name} + 127) / 64 * 64;")

    # --- statements ------------------------------------------------------------------------------

    def body(self, body: Sequence[Statement], in_vector: bool) -> None:
        """Write statements."""
        for statement in body:
            match statement:
                case Let(variable, _) if variable not in self.used:
                    pass
                case Let(variable, value):
                    if self.is_place(value):
                        self.places.add(variable)
                    self.share([value])
                    kind, text = element_type(variable.dtype), self.inline(value)
                    self.put(f"const {kind} {self.new_name(variable)} = {text};")
                case Store():
                    self.store(statement)
                case For():
                    self.write_for(statement, in_vector)
                case Accumulate():
                    self.accumulate(statement, in_vector)

    def store(self, store: Store) -> None:
        """Write an element, under a condition perhaps."""
        self.share(list(expressions(store)))
        buffer, offset = self.names[store.buffer], self.inline(store.offset)
        line = f"{buffer}[{offset}] = {self.inline(store.value)};"
        self.put(line if store.where is None else f"if ({self.inline(store.where)}) {line}")

    def write_for(self, loop: For, in_vector: bool) -> None:
        """A loop; a parallel one runs the part that it is given."""
        self.share([loop.extent])
        extent = _in_parentheses(self.inline(loop.extent))
        name = self.new_name(loop.index)
        start, stop = ("begin", "end") if loop.is_parallel else ("0", extent)
        with_braces = f"for (int64_t {name} = {start}; {name} < {stop}; {name}++) {{"
        self.block(with_braces, lambda: self.body(loop.body, in_vector or loop.is_vector))

    def block(self, head: str, write: Callable[[], None]) -> None:
        """Lines inside braces; names of what they share end with them."""
        self.put(head)
        known = dict(self.names)
        self.indent += 1
        write()
        self.indent -= 1
        self.names = known
        self.put("}")

    def accumulate(self, loop: Accumulate, in_vector: bool) -> None:
        """Sums in their order: one by one, or in 64 parts that are added as a tree."""
        self.share([loop.extent, *[u.init for u in loop.updates if u.init is not None]])
        extent = _in_parentheses(self.inline(loop.extent))
        in_order = in_vector or has_loops(loop.body)
        totals = []
        for update in loop.updates:
            kind = element_type(update.variable.dtype)
            name = self.new_name(update.variable)
            start = self.identity(update)
            if in_order:
                self.put(f"{kind} {name} = {start};")
                totals.append(name)
            else:
                self.put(f"{kind} {name}_part[{PARTIALS}];")
                self.put(f"for (int k = 0; k < {PARTIALS}; k++) {name}_part[k] = {start};")
                totals.append(f"{name}_part[{{}} % {PARTIALS}]")
        index = self.new_name(loop.index)
        held = dict(self.names)

        def write() -> None:
            self.body(loop.body, in_vector)
            self.share([each for update in loop.updates for each in update.summands])
            for update, total in zip(loop.updates, totals, strict=True):
                place = total.format(index)
                self.put(f"{place} = {self.combine_update(update, place)};")

        self.block(f"for (int64_t {index} = 0; {index} < {extent}; {index}++) {{", write)
        for update in loop.updates:
            self.finish(update, held[update.variable], in_order)

    def finish(self, update: Update, name: str, in_order: bool) -> None:
        """Combine the parts of a sum, and what it begins with."""
        kind = element_type(update.variable.dtype)
        if not in_order:
            half = f"{PARTIALS // 2}"
            total = self.combine_values(update, f"{name}_part[k]", f"{name}_part[k + half]")
            self.put(f"for (int half = {half}; half > 0; half /= 2)")
            self.put(f"    for (int k = 0; k < half; k++) {name}_part[k] = {total};")
            start = f"{name}_part[0]"
            value = start if update.init is None else self.total_from_start(update, start)
            self.put(f"const {kind} {name} = {value};")
        elif update.init is not None:
            self.put(f"{name} = {self.total_from_start(update, name)};")

    def total_from_start(self, update: Update, total: str) -> str:
        """A total with what it begins with."""
        assert update.init is not None
        return self.combine_values(update, self.inline(update.init), total)

    def combine_update(self, update: Update, total: str) -> str:
        """A total with one more value, or with a product."""
        value = self.inline(update.value)
        if update.times is not None:
            return (
                f"{total} + {_in_parentheses(value)} * {_in_parentheses(self.inline(update.times))}"
            )
        return self.combine_values(update, total, value)

    def combine_values(self, update: Update, a: str, b: str) -> str:
        """Two values as a reduction combines them."""
        return self.instruction(update.combine, update.value.dtype, [a, b])

    def identity(self, update: Update) -> str:
        """What combining changes nothing with."""
        value = identity(update.combine, update.value.dtype)
        return number_text(value.item(), update.value.dtype)

    # --- expressions -----------------------------------------------------------------------------

    def share(self, roots: Sequence[Scalar]) -> None:
        """Give names to what expressions have in common, and to parts of deep ones."""
        nodes = nodes_in_order(*roots)
        uses = Counter(arg for x in nodes for arg in x.args) + Counter(roots)
        depths: dict[Scalar, int] = {}
        for x in nodes:
            depths[x] = 1 + max((depths[arg] for arg in x.args), default=0)
            if x in self.names or not x.args or x.op == "index":
                depths[x] = 0
            elif uses[x] > 1 or depths[x] > DEEPEST:
                text = self.inline(x)
                self.taken["t"] += 1
                name = f"t{self.taken['t']}"
                self.put(f"const {element_type(x.dtype)} {name} = {text};")
                self.names[x] = name
                depths[x] = 0

    def inline(self, x: Scalar) -> str:
        """An expression as text."""
        if x in self.names:
            return self.names[x]
        if x.op == "const":
            return number_text(x.detail, x.dtype)
        if x.op == "load":
            return self.load(x)
        operands = [self.inline(arg) for arg in x.args]
        if x.op == "select":
            condition, yes, no = (_in_parentheses(each) for each in operands)
            return f"{condition} ? {yes} : {no}"
        if x.op == "cast":
            return self.cast(x.args[0].dtype, x.dtype, operands[0])
        if x.op == "bitcast":
            return self.helper(f"bits_{x.dtype}_{x.args[0].dtype}", operands[0])
        if x.op in _COMPARED:
            a, b = (_in_parentheses(each) for each in operands)
            return f"{a} {_COMPARED[x.op]} {b}"
        if x.op in _SIGNS and self.is_place(x):
            a, b = (_in_parentheses(each) for each in operands)
            return f"{a} {_SIGNS[x.op]} {b}"
        return self.instruction(x.op, x.dtype, operands)

    def is_place(self, x: Scalar) -> bool:
        """Whether an integer is made of indices and sizes alone, which do not overflow."""
        leaves = [each for each in nodes_in_order(x) if not each.args]
        return x.dtype is INDEX and all(
            each.op in ("index", "size", "const") or each in self.places for each in leaves
        )

    def load(self, x: Scalar) -> str:
        """An element of a buffer, or another value where it is not to be read."""
        found = f"{self.names[x.detail]}[{self.inline(x.args[0])}]"
        if len(x.args) == 1:
            return found
        where, otherwise = (_in_parentheses(self.inline(arg)) for arg in x.args[1:])
        return f"{where} ? {found} : {otherwise}"

    def helper(self, name: str, *operands: str) -> str:
        """A call of a function of the file's own."""
        self.helpers.add(name)
        return f"{name}({', '.join(operands)})"

    def cast(self, source: DType, target: DType, x: str) -> str:
        """A number in another dtype."""
        if source in (float16, bfloat16):
            x, source = self.helper(f"f32_{source}", x), float32
            if target is float32:
                return x
        if target in (float16, bfloat16):
            if source is float64:
                x = self.helper("odd_f32", x)
            elif source is not float32:
                x = f"(float){_in_parentheses(x)}"
            return self.helper(f"{target}_f32", x)
        if target is bool_:
            return f"{_in_parentheses(x)} != 0"
        if source.is_floating and target.is_integer:
            return self.helper(f"{target}_{source}", x)
        return f"({element_type(target)}){_in_parentheses(x)}"

    def instruction(self, op: str, dtype: DType, operands: Sequence[str]) -> str:
        """An instruction on operands of a dtype."""
        given = [_in_parentheses(each) for each in operands]
        if op in _LIBRARY and dtype.is_floating:
            return f"{_LIBRARY[op]}{'f' if dtype is float32 else ''}({', '.join(operands)})"
        if op in _HELPED:
            if op == "fmod" and dtype.is_floating:
                return f"fmod{'f' if dtype is float32 else ''}({', '.join(operands)})"
            if dtype is bool_:
                return f"{given[0]} {'&' if op == 'minimum' else '|'} {given[1]}"
            return self.helper(f"{op}_{dtype}", *operands)
        if op in _BITWISE:
            return _narrow(dtype, f"{given[0]} {_BITWISE[op]} {given[1]}")
        if dtype.is_floating:
            return _on_floats(op, dtype, given, operands)
        return self.on_integers(op, dtype, given)

    def on_integers(self, op: str, dtype: DType, given: Sequence[str]) -> str:
        """Arithmetic that wraps, which C has for numbers without a sign alone."""
        if op == "not":
            return f"!{given[0]}" if dtype is bool_ else _narrow(dtype, f"~{given[0]}")
        if op == "absolute" and dtype.kind == "unsigned":
            return given[0]
        wide = "uint64_t" if dtype.bits == 64 else "uint32_t"
        own = [f"({wide}){each}" for each in given]
        if op == "negative":
            return f"({element_type(dtype)})(0 - {own[0]})"
        if op == "absolute":
            return f"{given[0]} < 0 ? ({element_type(dtype)})(0 - {own[0]}) : {given[0]}"
        return f"({element_type(dtype)})({own[0]} {_SIGNS[op]} {own[1]})"


def _on_floats(op: str, dtype: DType, given: Sequence[str], operands: Sequence[str]) -> str:
    if op == "negative":
        return f"-{given[0]}"
    if op == "absolute":
        return f"fabs{'f' if dtype is float32 else ''}({operands[0]})"
    return f"{given[0]} {_SIGNS[op]} {given[1]}"


def _narrow(dtype: DType, text: str) -> str:
    """Back to a narrow type, after arithmetic in int."""
    return f"({element_type(dtype)})({text})" if dtype.bits < 32 else text


def _in_parentheses(text: str) -> str:
    """An operand, in parentheses where it is more than a name, a number or a call."""
    depth = 0
    for place, each in enumerate(text):
        depth += (each in "([") - (each in ")]")
        if depth == 0 and (each in " ?" or (each in "-!~" and place == 0)):
            return f"({text})"
    is_cast = text.startswith("(") and not text.endswith(")")
    return f"({text})" if is_cast else text


# --- functions of the file's own -----------------------------------------------------------------


def helper_text(name: str, dtypes: Sequence[DType]) -> str:
    """The text of a function that kernels call, by its name."""
    by_short = {str(dtype): dtype for dtype in dtypes}
    op, _, short = name.rpartition("_")
    if name in _WRITTEN:
        return _WRITTEN[name]
    if op.startswith("bits_"):
        target, source = by_short[op.removeprefix("bits_")], by_short[short]
        kinds = element_type(target), element_type(source)
        if kinds[0] == kinds[1]:
            return f"static {kinds[0]} {name}({kinds[1]} x) {{ return x; }}"
        return (
            f"static {kinds[0]} {name}({kinds[1]} x)\n"
            f"{{\n    {kinds[0]} y;\n    memcpy(&y, &x, sizeof y);\n    return y;\n}}"
        )
    if op in by_short and short in by_short:
        return "\n".join(_saturating_cast(name, by_short[short], by_short[op]))
    return _arithmetic_text(name, op, by_short[short])


def _saturating_cast(name: str, source: DType, target: DType) -> Iterator[str]:
    """A cast that cuts towards zero; too large numbers become the largest, and NaN 0."""
    bits = target.bits - (target.kind == "signed")
    largest = (1 << bits) - 1
    least = -(1 << bits) if target.kind == "signed" else 0
    kind, f = element_type(target), "f" if source is float32 else ""
    yield f"static {kind} {name}({element_type(source)} x)"
    yield "{"
    yield f"    if (!(x > {float(least)!r}{f}))"
    yield f"        return x == x ? {_integer_text(least, target)} : 0;"
    yield f"    return x >= {float(1 << bits)!r}{f} ? {_integer_text(largest, target)} : ({kind})x;"
    yield "}"


def _arithmetic_text(name: str, op: str, dtype: DType) -> str:
    kind = element_type(dtype)
    head = f"static {kind} {name}({kind} x, {kind} y)\n{{\n"
    if op in ("minimum", "maximum"):
        return head + _extremum_text(op, dtype)
    unsigned = dtype.kind == "unsigned"
    if op in ("shift_left", "shift_right"):
        most = dtype.bits - 1
        wide = "uint64_t" if dtype.bits == 64 else "uint32_t"
        inside = f"y > {most}" if unsigned else f"y < 0 || y > {most}"
        if op == "shift_left":
            return f"{head}    return {inside} ? 0 : ({kind})(({wide})x << y);\n}}"
        beyond = "0" if unsigned else "x < 0 ? -1 : 0"
        return f"{head}    return {inside} ? ({beyond}) : ({kind})(x >> y);\n}}"
    if unsigned:
        return f"{head}    return y == 0 ? 0 : x {'/' if op == 'floor_divide' else '%'} y;\n}}"
    lines = "    if (y == 0)\n        return 0;\n"
    if op == "floor_divide":
        wide = "uint64_t" if dtype.bits == 64 else "uint32_t"
        lines += f"    if (y == -1)\n        return ({kind})(0 - ({wide})x);\n"
        lines += f"    return ({kind})(x / y - (x % y != 0 && (x % y < 0) != (y < 0)));\n"
    else:
        lines += "    if (y == -1)\n        return 0;\n"
        floored = " + (x % y != 0 && (x % y < 0) != (y < 0) ? y : 0)" if op == "modulo" else ""
        lines += f"    return ({kind})(x % y{floored});\n"
    return f"{head}{lines}}}"


def _extremum_text(op: str, dtype: DType) -> str:
    sign = "<" if op == "minimum" else ">"
    if not dtype.is_floating:
        return f"    return x {sign} y ? x : y;\n}}"
    zero = "signbit(x)" if op == "minimum" else "!signbit(x)"
    return (
        "    if (x != x || y != y)\n        return x != x ? x : y;\n"
        f"    return x == y ? ({zero} ? x : y) : x {sign} y ? x : y;\n}}"
    )


_WRITTEN = {
    "f32_bf16": """static float f32_bf16(uint16_t x)
{
    uint32_t bits = (uint32_t)x << 16;
    float y;
    memcpy(&y, &bits, sizeof y);
    return y;
}""",
    "bf16_f32": """static uint16_t bf16_f32(float x)
{
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    if (x != x)
        return (uint16_t)(bits >> 16 | 64);
    return (uint16_t)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}""",
    "f32_f16": """static float f32_f16(uint16_t x)
{
    int exponent = x >> 10 & 31, fraction = x & 1023;
    float y = exponent == 31 ? (fraction ? NAN : INFINITY)
        : exponent ? ldexpf((float)(fraction + 1024), exponent - 25)
        : ldexpf((float)fraction, -24);
    return x & 0x8000 ? -y : y;
}""",
    "f16_f32": """static uint16_t f16_f32(float x)
{
    uint16_t sign = signbit(x) ? 0x8000 : 0;
    int exponent;
    if (x != x)
        return (uint16_t)(sign | 0x7e00);
    x = fabsf(x);
    if (x >= 65520.0f)
        return (uint16_t)(sign | 0x7c00);
    if (x == 0.0f)
        return sign;
    frexpf(x, &exponent);
    if (exponent < -13)
        exponent = -13;
    /* Eleven bits of the fraction, rounded to even; a carry goes to the exponent. */
    return (uint16_t)(sign + ((exponent + 13) << 10) + (int)rintf(ldexpf(x, 11 - exponent)));
}""",
    "odd_f32": """static float odd_f32(double x)
{
    float near = (float)x;
    uint32_t bits;
    if (near == x || x != x)
        return near;
    memcpy(&bits, &near, sizeof bits);
    if (fabs((double)near) > fabs(x))
        bits--;
    bits |= 1;
    memcpy(&near, &bits, sizeof bits);
    return near;
}""",
}
"""The conversions of 16-bit floats, which are their bits."""
