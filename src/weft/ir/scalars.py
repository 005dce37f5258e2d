"""Scalar expressions: what a kernel computes for one element.

The vocabulary is closed: `INSTRUCTIONS` names every instruction, its operands' dtypes, its result
and its NumPy reference; each target is a total table over exactly that set. A `Scalar` is an
immutable node, and equal nodes are one object, so comparing is `is` and sharing is free.

Operators make nodes, and Python numbers take the dtype of the other operand:

>>> from weft.core.dtypes import float32
>>> from weft.ir.scalars import Buffer, exp, index, load, size
>>> x = load(Buffer("x", float32), index("row") * size("columns") + index("column"))
>>> print(1 / (1 + exp(-x)))
1 / (1 + exp(-x[row * columns + column]))
>>> x + 1 is x + 1
True

Arithmetic is defined for integers, float32 and float64. 16-bit floats are storage: they are loaded,
stored, selected and cast; cast them to float32 to compute. Integer arithmetic wraps; an integer
divided by 0 gives 0. A cast to an integer cuts towards zero, saturates, and takes NaN to 0; of
extremes, -0.0 is less than 0.0. The module `numerics` says why.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from threading import Lock
from typing import Any, Literal, TypeAlias
from weakref import WeakValueDictionary

import numpy as np

from weft.core.dtypes import DTYPES, INDEX, DType, bool_, float32, float64
from weft.core.errors import DTypeError
from weft.core.forks import renew_in_children
from weft.core.records import frozen
from weft.ir import numerics

Combine = Literal["add", "multiply", "maximum", "minimum", "and", "or"]
"""The instructions that a reduction may combine elements by."""
Access = Literal["read", "write", "both", "scratch"]
Number = bool | int | float
Operand: TypeAlias = "Scalar | Number"
Reference = Callable[..., Any]

FUNCTION = 16
"""What an elementary function costs, in plain operations: as much as reading and writing it."""
INTEGERS = frozenset(d for d in DTYPES if d.is_integer)
FLOATS = frozenset({float32, float64})
NUMBERS = INTEGERS | FLOATS
BITS = INTEGERS | {bool_}
ORDERED = NUMBERS | {bool_}


@frozen
class Buffer:
    """Memory that a kernel reads or writes: elements of one dtype, addressed by one offset."""

    name: str
    dtype: DType
    access: Access = "read"

    def __str__(self) -> str:
        return f"{self.name}: {self.access} {self.dtype}"

    def __getitem__(self, offset: Scalar | int) -> Scalar:
        """The element at an offset, counted in elements: `load(self, offset)`."""
        return load(self, offset)


@frozen
class Instruction:
    """One word of the vocabulary: what it takes, what it gives, what it means."""

    name: str
    arity: int
    dtypes: frozenset[DType]
    reference: Reference
    result: Literal["same", "bool"] = "same"
    cost: int = 1
    """How dear it is on floats, in plain operations."""


class Scalar:
    """An expression of one element: an instruction, its operands, and what else it says.

    `detail` is the value of a constant, the name of an index, size or local, the buffer of a load.
    `variables` are the indices and locals, and `buffers` the memory, that the value depends on.
    """

    __slots__ = ("__weakref__", "args", "buffers", "detail", "dtype", "op", "variables")
    op: str
    dtype: DType
    args: tuple[Scalar, ...]
    detail: Any
    variables: frozenset[Scalar]
    buffers: frozenset[Buffer]

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError(f"a Scalar is a value: {name} cannot be set")

    def __reduce__(self) -> tuple[object, ...]:
        return node, (self.op, self.dtype, self.args, self.detail)

    def __repr__(self) -> str:
        return f"<{self.dtype} {self}>"

    def __str__(self) -> str:
        return render(self)

    def __add__(self, other: Operand) -> Scalar:
        return add(self, other)

    def __radd__(self, other: Number) -> Scalar:
        return add(other, self)

    def __sub__(self, other: Operand) -> Scalar:
        return subtract(self, other)

    def __rsub__(self, other: Number) -> Scalar:
        return subtract(other, self)

    def __mul__(self, other: Operand) -> Scalar:
        return multiply(self, other)

    def __rmul__(self, other: Number) -> Scalar:
        return multiply(other, self)

    def __truediv__(self, other: Operand) -> Scalar:
        return divide(self, other)

    def __rtruediv__(self, other: Number) -> Scalar:
        return divide(other, self)

    def __floordiv__(self, other: Operand) -> Scalar:
        return floor_divide(self, other)

    def __mod__(self, other: Operand) -> Scalar:
        return modulo(self, other)

    def __neg__(self) -> Scalar:
        return negative(self)

    def __and__(self, other: Operand) -> Scalar:
        return and_(self, other)

    def __or__(self, other: Operand) -> Scalar:
        return or_(self, other)

    def __xor__(self, other: Operand) -> Scalar:
        return xor(self, other)

    def __invert__(self) -> Scalar:
        return not_(self)

    def __lshift__(self, other: Operand) -> Scalar:
        return shift_left(self, other)

    def __rshift__(self, other: Operand) -> Scalar:
        return shift_right(self, other)

    def __lt__(self, other: Operand) -> Scalar:
        return less(self, other)

    def __le__(self, other: Operand) -> Scalar:
        return less_equal(self, other)

    def __gt__(self, other: Operand) -> Scalar:
        return less(other, self)

    def __ge__(self, other: Operand) -> Scalar:
        return less_equal(other, self)


# --- nodes ---------------------------------------------------------------------------------------

_NOTHING: frozenset[Any] = frozenset()
_NODES: WeakValueDictionary[tuple[Any, ...], Scalar] = WeakValueDictionary()
_LOCK = renew_in_children(Lock())
_VARIABLES = frozenset({"index", "local"})


def node(op: str, dtype: DType, args: tuple[Scalar, ...] = (), detail: Any = None) -> Scalar:
    """The one node of this form. The functions below check operands; this one does not."""
    # repr tells -0.0 from 0.0, and makes one NaN equal to itself
    key = (op, dtype, args, repr(detail) if op == "const" else detail)
    existing = _NODES.get(key)
    if existing is not None:
        return existing
    with _LOCK:  # two threads must not make two of one node
        return _NODES.setdefault(key, _new_scalar(op, dtype, args, detail))


def _new_scalar(op: str, dtype: DType, args: tuple[Scalar, ...], detail: Any) -> Scalar:
    scalar = object.__new__(Scalar)
    place = object.__setattr__
    place(scalar, "op", op)
    place(scalar, "dtype", dtype)
    place(scalar, "args", args)
    place(scalar, "detail", detail)
    own = frozenset({scalar}) if op in _VARIABLES else _NOTHING
    place(scalar, "variables", _union_of(own, [arg.variables for arg in args]))
    read = frozenset({detail}) if op == "load" else _NOTHING
    place(scalar, "buffers", _union_of(read, [arg.buffers for arg in args]))
    return scalar


def _union_of(own: frozenset[Any], parts: list[frozenset[Any]]) -> frozenset[Any]:
    """The union; an operand's own set where nothing is added, as there are many nodes."""
    for part in parts:
        if not part <= own:
            own = part if own <= part else own | part
    return own


def const(value: Number, dtype: DType) -> Scalar:
    """A number of a dtype, rounded to it.

    >>> const(0.1, float32).detail
    0.10000000149011612
    """
    if dtype is bool_:
        return node("const", dtype, (), bool(value))
    if dtype.is_integer:
        low, width = (0, dtype.bits) if dtype.kind == "unsigned" else (1, dtype.bits)
        half = low << (width - 1)
        return node("const", dtype, (), (int(value) + half) % (1 << width) - half)
    with np.errstate(all="ignore"):
        return node("const", dtype, (), float(dtype.numpy.type(value)))


def index(name: str) -> Scalar:
    """A loop's index, an int64."""
    return node("index", INDEX, (), name)


def size(name: str) -> Scalar:
    """A size that the kernel is given when it runs, an int64 that is never negative."""
    return node("size", INDEX, (), name)


def local(name: str, dtype: DType) -> Scalar:
    """A value that a Let or an accumulator defines."""
    return node("local", dtype, (), name)


def load(
    buffer: Buffer,
    offset: Scalar | int,
    where: Scalar | None = None,
    otherwise: Operand = 0,
) -> Scalar:
    """The element of a buffer at an offset; `otherwise`, and no access, where `where` is false."""
    place = offset if isinstance(offset, Scalar) else const(offset, INDEX)
    if where is None or is_const(where, True):
        return node("load", buffer.dtype, (place,), buffer)
    instead = otherwise if isinstance(otherwise, Scalar) else const(otherwise, buffer.dtype)
    return node("load", buffer.dtype, (place, where, instead), buffer)


def cast(x: Scalar, dtype: DType) -> Scalar:
    """The number in another dtype, rounded to nearest even; True is 1, and not 0 is True."""
    return x if x.dtype is dtype else node("cast", dtype, (x,))


def round_to(x: Scalar, dtype: DType) -> Scalar:
    """x in its own dtype, with no more precision than another one has."""
    return cast(cast(x, dtype), x.dtype)


def bitcast(x: Scalar, dtype: DType) -> Scalar:
    """The same bits as another dtype of the same width."""
    if x.dtype.bits != dtype.bits or bool_ in (x.dtype, dtype):
        raise _operand_error("bitcast", "dtypes of the same width", (x,))
    return x if x.dtype is dtype else node("bitcast", dtype, (x,))


def select(condition: Scalar, x: Operand, y: Operand) -> Scalar:
    """x where the condition holds, y elsewhere; both are computed."""
    x, y = _operands("select", (x, y))
    if condition.dtype is not bool_:
        raise _operand_error("select", "a bool to choose by", (condition, x, y))
    if x is y:
        return x
    return node("select", x.dtype, (condition, x, y))


# --- the vocabulary ------------------------------------------------------------------------------

INSTRUCTIONS: dict[str, Instruction] = {}


def _operands(op: str, operands: tuple[Operand, ...]) -> tuple[Scalar, ...]:
    """The operands in one dtype: that of the scalars; Python numbers are made to fit."""
    dtype = next((x.dtype for x in operands if isinstance(x, Scalar)), None)
    if dtype is None:
        raise _operand_error(op, "at least one Scalar", operands)
    scalars = tuple(x if isinstance(x, Scalar) else const(x, dtype) for x in operands)
    if any(x.dtype is not dtype for x in scalars):
        raise _operand_error(op, "operands of one dtype", scalars)
    return scalars


def _operand_error(op: str, expected: str, operands: tuple[Any, ...]) -> DTypeError:
    return DTypeError(
        op,
        "a scalar instruction does not take these operands",
        expected=expected,
        got={f"x{i}": getattr(x, "dtype", x) for i, x in enumerate(operands)},
        fix="cast the operands first: cast(x, float32)",
    )


def _define(
    name: str,
    arity: int,
    dtypes: frozenset[DType],
    reference: Reference,
    result: Literal["same", "bool"] = "same",
    cost: int = 1,
) -> Callable[..., Scalar]:
    """Add an instruction to the vocabulary; the function that makes its nodes."""
    INSTRUCTIONS[name] = Instruction(name, arity, dtypes, reference, result, cost)
    dtype_names = ", ".join(d.short for d in DTYPES if d in dtypes)

    def make(*operands: Operand) -> Scalar:
        args = _operands(name, operands)
        if args[0].dtype not in dtypes or len(args) != arity:
            raise _operand_error(name, f"{arity} of {dtype_names}", args)
        if args[0].dtype is INDEX:
            folded = _simplified_index(name, args)
            if folded is not None:
                return folded
        return node(name, args[0].dtype if result == "same" else bool_, args)

    make.__name__ = make.__qualname__ = name
    make.__doc__ = f"The instruction `{name}`, of {arity} operand{'s'[: arity > 1]}: {dtype_names}."
    return make


def _in_double(function: Callable[..., float]) -> Reference:
    """A function of Python floats, rounded to the dtype of its NumPy operands."""

    def reference(*operands: Any) -> Any:
        kind = type(operands[0])
        try:
            return kind(function(*(float(x) for x in operands)))
        except (ValueError, OverflowError):
            return kind(math.nan if any(math.isnan(x) for x in operands) else math.inf)

    return reference


def _through_double(function: Callable[..., Any]) -> Reference:
    """A NumPy function, computed in double precision and rounded to the dtype of its operands."""

    def reference(*operands: Any) -> Any:
        return function(*(np.float64(x) for x in operands)).astype(type(operands[0]))

    return reference


def _fused_multiply_add(x: Any, y: Any, z: Any) -> Any:
    """x·y + z with one rounding; in double precision only nearly so."""
    if isinstance(x, np.float32):
        exact = np.longdouble(x) * np.longdouble(y) + np.longdouble(z)
        return np.float32(exact)
    return np.float64(np.longdouble(x) * np.longdouble(y) + np.longdouble(z))


add = _define("add", 2, NUMBERS, np.add)
subtract = _define("subtract", 2, NUMBERS, np.subtract)
multiply = _define("multiply", 2, NUMBERS, np.multiply)
divide = _define("divide", 2, FLOATS, np.divide)
fmod = _define("fmod", 2, NUMBERS, np.fmod, cost=FUNCTION)
floor_divide = _define("floor_divide", 2, INTEGERS, np.floor_divide)
modulo = _define("modulo", 2, INTEGERS, np.remainder)
negative = _define("negative", 1, NUMBERS, np.negative)
absolute = _define("absolute", 1, NUMBERS, np.absolute)
minimum = _define("minimum", 2, ORDERED, numerics.minimum)
maximum = _define("maximum", 2, ORDERED, numerics.maximum)
fma = _define("fma", 3, FLOATS, _fused_multiply_add)
sqrt = _define("sqrt", 1, FLOATS, np.sqrt)
floor = _define("floor", 1, FLOATS, np.floor)
ceil = _define("ceil", 1, FLOATS, np.ceil)
trunc = _define("trunc", 1, FLOATS, np.trunc)
rint = _define("rint", 1, FLOATS, np.rint)

less = _define("less", 2, ORDERED, np.less, "bool")
less_equal = _define("less_equal", 2, ORDERED, np.less_equal, "bool")
equal = _define("equal", 2, ORDERED, np.equal, "bool")
not_equal = _define("not_equal", 2, ORDERED, np.not_equal, "bool")

and_ = _define("and", 2, BITS, np.bitwise_and)
or_ = _define("or", 2, BITS, np.bitwise_or)
xor = _define("xor", 2, BITS, np.bitwise_xor)
not_ = _define("not", 1, BITS, np.invert)
shift_left = _define("shift_left", 2, INTEGERS, np.left_shift)
shift_right = _define("shift_right", 2, INTEGERS, np.right_shift)


def _function(name: str, arity: int, reference: Reference) -> Callable[..., Scalar]:
    """Add an elementary function to the vocabulary."""
    return _define(name, arity, FLOATS, reference, cost=FUNCTION)


exp = _function("exp", 1, _through_double(np.exp))
exp2 = _function("exp2", 1, _through_double(np.exp2))
expm1 = _function("expm1", 1, _through_double(np.expm1))
log = _function("log", 1, _through_double(np.log))
log2 = _function("log2", 1, _through_double(np.log2))
log10 = _function("log10", 1, _through_double(np.log10))
log1p = _function("log1p", 1, _through_double(np.log1p))
sin = _function("sin", 1, _through_double(np.sin))
cos = _function("cos", 1, _through_double(np.cos))
tan = _function("tan", 1, _through_double(np.tan))
asin = _function("asin", 1, _through_double(np.arcsin))
acos = _function("acos", 1, _through_double(np.arccos))
atan = _function("atan", 1, _through_double(np.arctan))
atan2 = _function("atan2", 2, _through_double(np.arctan2))
sinh = _function("sinh", 1, _through_double(np.sinh))
cosh = _function("cosh", 1, _through_double(np.cosh))
tanh = _function("tanh", 1, _through_double(np.tanh))
asinh = _function("asinh", 1, _through_double(np.arcsinh))
acosh = _function("acosh", 1, _through_double(np.arccosh))
atanh = _function("atanh", 1, _through_double(np.arctanh))
cbrt = _function("cbrt", 1, _through_double(np.cbrt))
hypot = _function("hypot", 2, _through_double(np.hypot))
power = _function("power", 2, _through_double(np.power))
erf = _function("erf", 1, _in_double(math.erf))
erfc = _function("erfc", 1, _in_double(math.erfc))
lgamma = _function("lgamma", 1, _in_double(math.lgamma))


# --- integers of indices -------------------------------------------------------------------------


def _simplified_index(op: str, args: tuple[Scalar, ...]) -> Scalar | None:
    """The simpler form of index arithmetic, which is all that is folded: floats keep their bits."""
    if all(arg.op == "const" for arg in args):
        reference = INSTRUCTIONS[op].reference
        with np.errstate(all="ignore"):
            value = reference(*(np.int64(arg.detail) for arg in args))
        return const(value.item(), bool_ if isinstance(value, np.bool_) else INDEX)
    if len(args) != 2:
        return None
    x, y = args
    if op == "add" and x.op == "const" and x.detail == 0:
        return y
    if op in ("add", "subtract") and y.op == "const" and y.detail == 0:
        return x
    if op == "multiply":
        return _folded_product(x, y)
    if op in ("floor_divide", "modulo") and y.op == "const" and y.detail == 1:
        return x if op == "floor_divide" else const(0, INDEX)
    return None


def _folded_product(x: Scalar, y: Scalar) -> Scalar | None:
    for one, other in ((x, y), (y, x)):
        if one.op == "const" and one.detail in (0, 1):
            return other if one.detail else one
    return None


def coefficient(offset: Scalar, variable: Scalar) -> Scalar | None:
    """How much an offset grows when a variable grows by 1; None if it is not linear in it.

    >>> i, j, n = index("i"), index("j"), size("n")
    >>> [str(coefficient(i * n + j, v)) for v in (i, j, n)]
    ['n', '1', '0']
    >>> coefficient(j // 2, j) is None
    True
    """
    if variable not in offset.variables:
        return const(0, INDEX)
    if offset is variable:
        return const(1, INDEX)
    parts = [coefficient(arg, variable) for arg in offset.args]
    if offset.op == "add" or offset.op == "subtract":
        first, second = parts
        combined = add if offset.op == "add" else subtract
        return None if first is None or second is None else combined(first, second)
    if offset.op == "multiply":
        x, y = offset.args
        if variable in x.variables and variable in y.variables:
            return None
        part, factor = (parts[0], y) if variable in x.variables else (parts[1], x)
        return None if part is None else part * factor
    return None


def nodes_in_order(*roots: Scalar) -> list[Scalar]:
    """All nodes of expressions, each once, operands first.

    >>> [str(x) for x in nodes_in_order(index("i") * 2 + index("i"))]
    ['i', '2', 'i * 2', 'i * 2 + i']
    """
    nodes: dict[Scalar, None] = {}
    pending = list(reversed(roots))
    while pending:
        x = pending[-1]
        missing = [arg for arg in reversed(x.args) if arg not in nodes]
        if missing:
            pending += missing
        else:
            nodes[pending.pop()] = None
    return list(nodes)


def is_const(x: Scalar, value: Number) -> bool:
    """Whether a node is this constant."""
    return x.op == "const" and bool(x.detail == value)


# --- text ----------------------------------------------------------------------------------------

_INFIX = {
    "equal": ("==", 1), "not_equal": ("!=", 1), "less": ("<", 1), "less_equal": ("<=", 1),
    "or": ("|", 2), "xor": ("^", 3), "and": ("&", 4),
    "shift_left": ("<<", 5), "shift_right": (">>", 5),
    "add": ("+", 6), "subtract": ("-", 6),
    "multiply": ("*", 7), "divide": ("/", 7), "floor_divide": ("//", 7), "modulo": ("%", 7),
}  # fmt: skip
_PREFIX = {"negative": "-", "not": "~"}
_ATOM = 9


Names = Mapping["Scalar | Buffer", str]


def guard_loads(value: Scalar, holds: Scalar) -> Scalar:
    """The expression with all its loads made only where a condition holds.

    Each node is made once, however often it is used: paths through an expression are many.
    """
    guarded_nodes: dict[Scalar, Scalar] = {}
    for x in nodes_in_order(value):
        if not x.buffers:
            guarded_nodes[x] = x
        elif x.op == "load":
            place, *rest = x.args
            where = holds if not rest else and_(rest[0], holds)
            guarded_nodes[x] = load(x.detail, place, where, 0)
        else:
            guarded_nodes[x] = node(
                x.op, x.dtype, tuple(guarded_nodes[arg] for arg in x.args), x.detail
            )
    return guarded_nodes[value]


def render(x: Scalar, names: Names | None = None) -> str:
    """The expression as text; nodes and buffers in `names` appear under their names."""
    return _render(x, names or {})[0]


def _render(x: Scalar, names: Names) -> tuple[str, int]:
    """The text, and how tightly its outermost operator binds."""
    if x in names:
        return names[x], _ATOM
    if x.op == "const":
        return _number(x), _ATOM if x.detail >= 0 or math.isnan(x.detail) else 8
    if x.op in ("index", "size", "local"):
        return x.detail, _ATOM
    if x.op in _INFIX:
        return _infix(x, names)
    if x.op in _PREFIX:
        return _PREFIX[x.op] + _parenthesise(x.args[0], names, 8), 8
    parts = [render(arg, names) for arg in x.args]
    if x.op == "load":
        guard = f", where {parts[1]} else {parts[2]}" if len(parts) > 1 else ""
        return f"{names.get(x.detail, x.detail.name)}[{parts[0]}{guard}]", _ATOM
    if x.op in ("cast", "bitcast"):
        return f"{x.op}<{x.dtype}>({parts[0]})", _ATOM
    return f"{x.op}({', '.join(parts)})", _ATOM


def _infix(x: Scalar, names: Names) -> tuple[str, int]:
    symbol, binding = _INFIX[x.op]
    left = _parenthesise(x.args[0], names, binding + (binding == 1))
    return f"{left} {symbol} {_parenthesise(x.args[1], names, binding + 1)}", binding


def _parenthesise(x: Scalar, names: Names, least: int) -> str:
    text, binding = _render(x, names)
    return text if binding >= least else f"({text})"


def _number(x: Scalar) -> str:
    """A constant as Python writes it; the shortest text that its dtype reads back."""
    if x.dtype.is_floating and math.isfinite(x.detail):
        if x.detail == int(x.detail) and abs(x.detail) < 1e6 and str(x.detail) != "-0.0":
            return str(int(x.detail))
        return str(x.dtype.numpy.type(x.detail))
    return str(x.detail)
