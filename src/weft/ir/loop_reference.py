"""Run a kernel by NumPy, element by element: slow, and what every target must agree with.

>>> import numpy as np
>>> from weft.core.dtypes import float32
>>> from weft.ir.loops import For, Kernel, Store
>>> from weft.ir.scalars import Buffer, index, size
>>> x, y, i = Buffer("x", float32), Buffer("y", float32, "write"), index("i")
>>> double = Kernel("double", (x, y), ("n",), (For(i, size("n"), (Store(y, i, x[i] * 2),)),))
>>> source, target = np.array([1, 2], np.float32), np.zeros(2, np.float32)
>>> run_reference(double, [source, target], [2])
>>> target.tolist()
[2.0, 4.0]
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import lru_cache, partial
from itertools import count
from typing import Any

import numpy as np

from weft.core.dtypes import DType, bool_
from weft.ir.loops import (
    PARTIALS,
    Accumulate,
    For,
    Kernel,
    Let,
    Statement,
    Store,
    Update,
    has_loops,
)
from weft.ir.numerics import convert_numbers
from weft.ir.scalars import INSTRUCTIONS, Buffer, Scalar, nodes_in_order, size

Array = np.ndarray[Any, Any]


def run_reference(
    kernel: Kernel,
    buffers: Sequence[Array],
    sizes: Sequence[int],
    begin: int = 0,
    end: int | None = None,
) -> None:
    """Run the iterations from `begin` to `end` on flat arrays, writing into them."""
    with np.errstate(all="ignore"):
        _python_function(kernel)(*buffers, *sizes, begin, end)


def identity(combine: str, dtype: DType) -> Any:
    """The number that combining changes nothing with."""
    kind = dtype.numpy.type
    if combine in ("add", "or"):
        return kind(0)
    if combine == "multiply":
        return kind(1)
    if combine == "and":
        return ~kind(0)
    return _extreme(combine, dtype)


def _extreme(combine: str, dtype: DType) -> Any:
    """The greatest number for a minimum, the least for a maximum."""
    lowest = combine == "maximum"
    if dtype is bool_:
        return np.bool_(not lowest)
    if dtype.is_floating:
        return dtype.numpy.type(-np.inf if lowest else np.inf)
    limits = np.iinfo(dtype.numpy)
    return dtype.numpy.type(limits.min if lowest else limits.max)


# --- a kernel as Python --------------------------------------------------------------------------

OPERATORS = {
    "add": "{} + {}", "subtract": "{} - {}", "multiply": "{} * {}", "divide": "{} / {}",
    "floor_divide": "{} // {}", "modulo": "{} % {}", "negative": "-{}",
    "less": "{} < {}", "less_equal": "{} <= {}", "equal": "{} == {}", "not_equal": "{} != {}",
    "and": "{} & {}", "or": "{} | {}", "xor": "{} ^ {}", "not": "~{}",
    "shift_left": "{} << {}", "shift_right": "{} >> {}",
}  # fmt: skip
"""Instructions that NumPy's scalars have operators for: the bits of the reference, in less time."""
_DEEPEST = 12
"""Loops inside of each other in one function; Python has a limit of 20."""


@lru_cache(maxsize=512)
def _python_function(kernel: Kernel) -> Callable[..., None]:
    """A function of a kernel's buffers, its sizes, and the first and last iteration."""
    writer = _PythonWriter(kernel)
    exec(compile(writer.source(), f"<kernel {kernel.name}>", "exec"), writer.names)
    function: Callable[..., None] = writer.names["run"]
    return function


class _PythonWriter:
    """Writes one kernel as a Python function: a line for each node, a loop for each loop.

    Each statement computes its own expressions, and each node of them once.
    """

    def __init__(self, kernel: Kernel) -> None:
        self._kernel = kernel
        self._lines: list[str] = []
        self._indent = "    "
        self._depth = 0
        self._variables: dict[Scalar | Buffer, str] = {}
        self._known: dict[Scalar, str] = {}
        self._numbers = count()
        self.names: dict[str, Any] = {
            "checked": _checked_offset,
            "int64": np.int64,
            "zeros": np.zeros,
        }
        """What the lines use that is no variable of theirs: dtypes, constants, references."""

    def source(self) -> str:
        """The text of the function `run`."""
        kernel = self._kernel
        buffers = [self._variable(each, "buffer") for each in kernel.buffers]
        sizes = [self._variable(size(name), "size") for name in kernel.sizes]
        for name in sizes:
            self._write(f"{name} = int64({name})")
        for scratch in kernel.scratch:
            elements, dtype = self._value(scratch.count), self._name(scratch.buffer.dtype.numpy)
            buffer = self._variable(scratch.buffer, "buffer")
            self._write(f"{buffer} = zeros({elements}, {dtype})")
        self._body(kernel.body, False)
        # a loop that stands too deep is a function inside, which may set all variables
        unset = [name for each, name in self._variables.items() if _is_set_by_loops(each)]
        first = [f"    {' = '.join(unset)} = None"] if unset else []
        head = f"def run({', '.join([*buffers, *sizes, 'begin', 'end'])}):"
        text = "\n".join([head, *first, *self._lines, "    return"])
        return text.replace(_OUTER, ", ".join(unset))

    def _write(self, line: str) -> None:
        self._lines.append(self._indent + line)

    def _name(self, thing: Any) -> str:
        """A name under which the function finds a dtype, a constant or a function."""
        name = f"given{len(self.names)}"
        self.names[name] = thing
        return name

    def _variable(self, thing: Scalar | Buffer, kind: str) -> str:
        return self._variables.setdefault(thing, f"{kind}{len(self._variables)}")

    def _body(self, body: tuple[Statement, ...], in_vector: bool) -> None:
        for statement in body:
            match statement:
                case Let(variable, value):
                    text = self._value(value)
                    self._write(f"{self._variable(variable, 'local')} = {text}")
                case Store():
                    self._store(statement)
                case For():
                    self._for(statement, in_vector)
                case Accumulate():
                    self._accumulate(statement, in_vector)
            self._known = {}

    def _store(self, store: Store) -> None:
        indent = self._indent
        if store.where is not None:
            self._write(f"if {self._value(store.where)}:")
            self._indent += "    "
        offset, value = self._value(store.offset), self._value(store.value)
        self._write(f"{self._variables[store.buffer]}[checked({offset})] = {value}")
        self._indent = indent

    @contextmanager
    def _loop(self, index: Scalar, limits: str) -> Iterator[None]:
        """The lines that are written inside are a loop's."""
        self._known = {}
        indent, depth = self._indent, self._depth
        if depth == _DEEPEST:
            self._write("def inside():")
            self._indent += "    "
            self._write(f"nonlocal {_OUTER}")
            self._depth = 0
        name = self._variable(index, "index")
        self._write(f"for {name} in map(int64, range({limits})):")
        self._indent += "    "
        self._depth += 1
        yield
        self._write("pass")
        self._known = {}
        self._indent, self._depth = indent, depth
        if depth == _DEEPEST:
            self._write("inside()")

    def _for(self, loop: For, in_vector: bool) -> None:
        extent = self._value(loop.extent)
        limits = f"begin, {extent} if end is None else end" if loop.is_parallel else extent
        with self._loop(loop.index, limits):
            self._body(loop.body, in_vector or loop.is_vector)

    def _accumulate(self, loop: Accumulate, in_vector: bool) -> None:
        extent = self._value(loop.extent)
        rows = [f"rows_of_{self._variable(u.variable, 'local')}" for u in loop.updates]
        for name in rows:
            self._write(f"{name} = []")
        with self._loop(loop.index, extent):
            self._body(loop.body, in_vector)
            for name, update in zip(rows, loop.updates, strict=True):
                values = ", ".join(self._value(each) for each in update.summands)
                self._write(f"{name}.append(({values},))")
        reduce = _reduce_in_order if in_vector or has_loops(loop.body) else _reduce_in_partials
        for name, update in zip(rows, loop.updates, strict=True):
            total = f"{self._name(partial(reduce, update))}({name})"
            if update.init is not None:
                combine = self._name(partial(_combine_two, update))
                total = f"{combine}({self._value(update.init)}, {total})"
                self._known = {}
            self._write(f"{self._variables[update.variable]} = {total}")

    def _value(self, x: Scalar) -> str:
        """The name of an expression's value; lines compute what is not known yet."""
        for each in nodes_in_order(x) if x not in self._known else ():
            if each not in self._known:
                self._known[each] = self._computed_name(each)
        return self._known[x]

    def _computed_name(self, x: Scalar) -> str:
        if x.op == "const":
            return self._name(x.dtype.numpy.type(x.detail))
        if x in self._variables:
            return self._variables[x]
        name = f"value{next(self._numbers)}"
        self._write(f"{name} = {self._expression(x, [self._known[arg] for arg in x.args])}")
        return name

    def _expression(self, x: Scalar, operands: list[str]) -> str:
        if x.op in OPERATORS:
            return OPERATORS[x.op].format(*operands)
        match x.op:
            case "load":
                element = f"{self._variables[x.detail]}[checked({operands[0]})]"
                if len(operands) == 1:
                    return element
                return f"{element} if {operands[1]} else {operands[2]}"
            case "select":
                return f"{operands[1]} if {operands[0]} else {operands[2]}"
            case "cast":
                return f"{self._name(partial(convert, dtype=x.dtype))}({operands[0]})"
            case "bitcast":
                return f"{operands[0]}.view({self._name(x.dtype.numpy)})"
        reference = self._name(INSTRUCTIONS[x.op].reference)
        return f"{self._name(x.dtype.numpy.type)}({reference}({', '.join(operands)}))"


_OUTER = "<the variables of loops>"
"""Where the list of variables stands that is known at the end only."""


def _is_set_by_loops(thing: Scalar | Buffer) -> bool:
    return isinstance(thing, Scalar) and thing.op in ("index", "local")


def _checked_offset(offset: int) -> int:
    if offset < 0:
        raise IndexError(f"offset {offset} is negative")
    return offset


def convert(x: Any, dtype: DType) -> Any:
    """A NumPy scalar in another dtype, by the rules of the cast instruction.

    >>> from weft.core.dtypes import int8
    >>> [int(convert(np.float32(x), int8)) for x in (-1.9, 300.0, float("nan"))]
    [-1, 127, 0]
    """
    if dtype is bool_:
        return np.bool_(x != 0)
    return convert_numbers(x, dtype.numpy)[()]


# --- the order of accumulation -------------------------------------------------------------------


def _combine_two(update: Update, x: Any, y: Any) -> Any:
    return update.value.dtype.numpy.type(INSTRUCTIONS[update.combine].reference(x, y))


def _reduce_in_order(update: Update, values: list[Any]) -> Any:
    total = identity(update.combine, update.value.dtype)
    for value, *times in values:
        if times:
            fused = INSTRUCTIONS["fma"].reference(value, *times, total)
            total = update.value.dtype.numpy.type(fused)
        else:
            total = _combine_two(update, total, value)
    return total


def _reduce_in_partials(update: Update, values: list[Any]) -> Any:
    """64 partial results, combined as a tree; see the module `loops`."""
    parts = [_reduce_in_order(update, values[lane::PARTIALS]) for lane in range(PARTIALS)]
    while len(parts) > 1:
        half = len(parts) // 2
        parts = [_combine_two(update, parts[i], parts[i + half]) for i in range(half)]
    return parts[0]
