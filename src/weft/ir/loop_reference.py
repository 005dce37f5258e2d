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

from collections.abc import Sequence
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
from weft.ir.scalars import INSTRUCTIONS, Buffer, Scalar, nodes_in_order

Array = np.ndarray[Any, Any]
Values = dict[Scalar, Any]


def run_reference(
    kernel: Kernel,
    buffers: Sequence[Array],
    sizes: Sequence[int],
    begin: int = 0,
    end: int | None = None,
) -> None:
    """Run the iterations from `begin` to `end` on flat arrays, writing into them."""
    with np.errstate(all="ignore"):
        _Run(kernel, buffers, sizes, begin, end).body(kernel.body, False)


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


class _Run:
    def __init__(
        self,
        kernel: Kernel,
        buffers: Sequence[Array],
        sizes: Sequence[int],
        begin: int,
        end: int | None,
    ) -> None:
        self.memory: dict[Buffer, Array] = dict(zip(kernel.buffers, buffers, strict=True))
        self.sizes = dict(zip(kernel.sizes, sizes, strict=True))
        self.range = begin, end
        self.variables: Values = {}
        for scratch in kernel.scratch:
            count = int(self.value(scratch.count, {}))
            self.memory[scratch.buffer] = np.zeros(count, scratch.buffer.dtype.numpy)

    def body(self, body: tuple[Statement, ...], in_vector: bool) -> None:
        for statement in body:
            match statement:
                case Let(variable, value):
                    self.variables[variable] = self.value(value, {})
                case Store():
                    self._store(statement)
                case For():
                    self._run_for(statement, in_vector)
                case Accumulate():
                    self._accumulate(statement, in_vector)

    def _store(self, store: Store) -> None:
        done: Values = {}
        if store.where is None or self.value(store.where, done):
            offset = int(self.value(store.offset, done))
            self.memory[store.buffer][_checked_offset(offset)] = self.value(store.value, done)

    def _run_for(self, loop: For, in_vector: bool) -> None:
        extent = int(self.value(loop.extent, {}))
        begin, end = self.range if loop.is_parallel else (0, None)
        for i in range(begin, extent if end is None else end):
            self.variables[loop.index] = np.int64(i)
            self.body(loop.body, in_vector or loop.is_vector)

    def _accumulate(self, loop: Accumulate, in_vector: bool) -> None:
        extent = max(0, int(self.value(loop.extent, {})))
        rows = [self._iteration(loop, i, in_vector) for i in range(extent)]
        in_order = in_vector or has_loops(loop.body)
        for position, update in enumerate(loop.updates):
            values = [row[position] for row in rows]
            total = _reduce_in_order(update, values) if in_order else _partial(update, values)
            if update.init is not None:
                total = _combine_two(update, self.value(update.init, {}), total)
            self.variables[update.variable] = total

    def _iteration(self, loop: Accumulate, i: int, in_vector: bool) -> list[list[Any]]:
        self.variables[loop.index] = np.int64(i)
        self.body(loop.body, in_vector)
        done: Values = {}
        return [[self.value(each, done) for each in u.summands] for u in loop.updates]

    def value(self, x: Scalar, done: Values) -> Any:
        """The value of an expression, as a NumPy scalar; `done` holds those already known."""
        for each in nodes_in_order(x) if x not in done else ():
            if each not in done:
                done[each] = self._value(each, done)
        return done[x]

    def _value(self, x: Scalar, done: Values) -> Any:
        match x.op:
            case "const":
                return x.dtype.numpy.type(x.detail)
            case "size":
                return np.int64(self.sizes[x.detail])
            case "index" | "local":
                return self.variables[x]
            case "load":
                return self._load(x, done)
        operands = [done[arg] for arg in x.args]
        match x.op:
            case "select":
                return operands[1] if operands[0] else operands[2]
            case "cast":
                return convert(operands[0], x.dtype)
            case "bitcast":
                return operands[0].view(x.dtype.numpy)
        return x.dtype.numpy.type(INSTRUCTIONS[x.op].reference(*operands))

    def _load(self, x: Scalar, done: Values) -> Any:
        if len(x.args) > 1 and not done[x.args[1]]:
            return done[x.args[2]]
        return self.memory[x.detail][_checked_offset(int(done[x.args[0]]))]


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
    return convert_numbers(np.asarray(x), dtype.numpy)[()]


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


def _partial(update: Update, values: list[Any]) -> Any:
    """64 partial results, combined as a tree; see the module `loops`."""
    parts = [_reduce_in_order(update, values[lane::PARTIALS]) for lane in range(PARTIALS)]
    while len(parts) > 1:
        half = len(parts) // 2
        parts = [_combine_two(update, parts[i], parts[i + half]) for i in range(half)]
    return parts[0]
