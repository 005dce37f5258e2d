"""Every second element in memory, such as the real parts of complex numbers, as vectors.

A gather takes as long as its elements one by one. Two neighbouring vectors hold what one of every
second element needs, and two such vectors are two neighbouring ones, shuffled.

>>> from weft.compiler.targets.llvm.ir_builder import Function
>>> from weft.core.dtypes import float32
>>> lines = Lines(Function())
>>> load_every_second(lines, Type(float32, 4), "%p")
'%v3'
>>> lines.text[-1].strip()
'%v3 = shufflevector <4 x float> %v0, <4 x float> %v2, <4 x i32> <i32 0, i32 2, i32 5, i32 7>'
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from weft.compiler.targets.llvm.ir_builder import Lines
from weft.compiler.targets.llvm.ir_types import Type, vector_text
from weft.ir.loops import Statement, Store
from weft.ir.scalars import Scalar, coefficient, is_const

__all__ = ["is_pair", "load_every_second", "write_pairs"]


def load_every_second(lines: Lines, kind: Type, place: str) -> str:
    """A vector of the elements at a place, two behind it, and so on; nothing behind them is read.

    The second vector begins one element early, so that it ends where the last of them is.
    """
    width = kind.width
    first = lines.put(f"load {kind.memory}, ptr {place}, align {kind.dtype.itemsize}")
    element = Type(kind.dtype).memory
    behind = lines.put(f"getelementptr {element}, ptr {place}, i64 {width - 1}")
    second = lines.put(f"load {kind.memory}, ptr {behind}, align {kind.dtype.itemsize}")
    half = width // 2
    order = [2 * k if k < half else width + 2 * k - (width - 1) for k in range(width)]
    return _shuffle(lines, kind, (first, second), order)


def write_pairs(lines: Lines, kind: Type, place: str, values: tuple[str, str]) -> None:
    """Write the elements of two vectors in turn."""
    width = kind.width
    order = [lane + width * side for lane in range(width) for side in range(2)]
    both = _shuffle(lines, kind, values, order)
    wide = Type(kind.dtype, 2 * width)
    lines.do(f"store {wide.memory} {both}, ptr {place}, align {kind.dtype.itemsize}")


def _shuffle(lines: Lines, kind: Type, values: tuple[str, str], order: Sequence[int]) -> str:
    operands = ", ".join(f"{kind.memory} {value}" for value in values)
    lanes = ", ".join(f"i32 {place}" for place in order)
    return lines.put(f"shufflevector {operands}, {vector_text('i32', len(order))} <{lanes}>")


def is_pair(first: Statement, second: Statement, index: Scalar) -> bool:
    """Whether two stores write the elements of a loop's pairs, one behind the other."""
    if not isinstance(first, Store) or not isinstance(second, Store):
        return False
    if first.buffer is not second.buffer or first.where is not None or second.where is not None:
        return False
    step = coefficient(first.offset, index)
    if step is None or not is_const(step, 2):
        return False
    (terms, constant), (other_terms, other) = _terms(first.offset), _terms(second.offset)
    return terms == other_terms and other - constant == 1


def _terms(offset: Scalar) -> tuple[Counter[Scalar], int]:
    """What an offset is the sum of, and a constant."""
    if offset.op == "const":
        return Counter(), int(offset.detail)
    if offset.op != "add":
        return Counter([offset]), 0
    (left, first), (right, second) = map(_terms, offset.args)
    return left + right, first + second
