"""Copies of arrays whose axes lie in memory in another order, by squares that turn in registers.

NumPy reads such an array element by element, each from another line of cache; where lines are a
power of two apart, each is thrown out before its next element is read. Here squares as wide as a
line of cache are read and written as a whole, on all threads.

>>> import numpy as np
>>> array = np.arange(32 * 48, dtype=np.float32).reshape(32, 48)
>>> turned_form(array.T)
TurnedForm(stack=1, rows=32, columns=48, itemsize=4)
>>> turned_form(array) is None
True
"""

from __future__ import annotations

from functools import cache
from math import prod
from typing import Any

import numpy as np

from weft.compiler.targets.cpu.cache.kernels import text_addresses
from weft.compiler.targets.cpu.machine import host
from weft.compiler.targets.cpu.products.gemm import turn_vectors
from weft.compiler.targets.cpu.runtime.thread_pool import thread_pool
from weft.compiler.targets.llvm.ir_builder import KERNEL, IRBuilder, Struct, module_text
from weft.core.records import frozen
from weft.ir.eager import memory_order

Array = np.ndarray[Any, Any]
LINE = 64
"""Bytes of a line of cache."""
CHUNK = 1 << 16
"""About how many elements a thread copies at a time."""
SIZES = (4, 8)
"""Bytes of the elements that are copied so."""
_TABLE = Struct("i64 rows, i64 columns, i64 blocks, i64 count, i64 grain, ptr parallel_for")


@frozen
class TurnedForm:
    """A stack of matrices [rows, columns] that lie as such and are shown turned."""

    stack: int
    rows: int
    columns: int
    itemsize: int

    @property
    def address(self) -> int:
        """The address of the native function, which has a kernel's signature."""
        return _copy_address(self.itemsize)

    @property
    def numbers(self) -> list[int]:
        """What the native function is given."""
        edge = LINE // self.itemsize
        blocks = -(-self.columns // edge)
        grain = max(1, CHUNK // (self.rows * edge))
        count = self.stack * blocks
        return [self.rows, self.columns, blocks, count, grain, thread_pool().address]


def turned_form(array: Array) -> TurnedForm | None:
    """The form of an array whose last axes are shown before others.

    None where it is nothing of the kind, has gaps, or is smaller than a square.
    """
    order = memory_order(array)
    if order is None or array.itemsize not in SIZES or not array.flags.aligned:
        return None
    stored = array.transpose(order)
    count = len(order)
    front = next(axis for axis in range(count) if order[axis] != axis)
    moved = order[front:]
    # [stack, columns, rows] as shown: the axes behind the stack are turned round
    if moved != (*range(moved[0], count), *range(front, moved[0])) or not stored.flags.c_contiguous:
        return None
    split = front + count - moved[0]
    rows, columns = prod(stored.shape[front:split]), prod(stored.shape[split:])
    if min(rows, columns) < LINE // array.itemsize:
        return None
    return TurnedForm(prod(stored.shape[:front]), rows, columns, array.itemsize)


@cache
def _copy_address(itemsize: int) -> int:
    """The address of the native function, which has a kernel's signature."""
    blocks = _copy_blocks(itemsize)
    return text_addresses(module_text(blocks, _copy(blocks)), ["copy_turned"])["copy_turned"]


def _copy(copy_blocks: IRBuilder) -> IRBuilder:
    """`copy_turned(...)`: all blocks, divided over the threads."""
    out = IRBuilder("copy_turned", KERNEL, public=True, may_unwind=True)
    buffers, sizes, _, _ = out.parameters
    count, grain, parallel_for = out.record(_TABLE, sizes).all("count", "grain", "parallel_for")
    out.call(parallel_for, copy_blocks.symbol, buffers, sizes, count, grain)
    return out


def _copy_blocks(itemsize: int) -> IRBuilder:
    """`copy_blocks(...)`: some blocks of columns, each as wide as a line of cache.

    The last block of columns, and the last square of a block, overlap those before them.
    """
    out = IRBuilder("copy_blocks", KERNEL, may_unwind=True)
    _, sizes, begin, end = out.parameters
    source, target = out.buffer(0), out.buffer(1)
    rows, columns, blocks = out.record(_TABLE, sizes).all("rows", "columns", "blocks")
    element, edge = f"i{8 * itemsize}", LINE // itemsize
    lanes = min(edge, max(1, host().width * 4 // itemsize))
    kind = f"<{lanes} x {element}>"
    last_row, last_column = out.sub(rows, edge), out.sub(columns, edge)
    matrix = out.mul(rows, columns)
    with out.loop(begin, end) as number:
        item, block = out.div(number, blocks), out.rem(number, blocks)
        column = out.least(out.mul(block, edge), last_column)
        start = out.mul(item, matrix)
        read_from = out.at(element, source, out.add(start, column))
        write_to = out.at(element, target, out.add(start, out.mul(column, rows)))
        with out.loop(0, rows, edge) as place:
            row = out.least(place, last_row)
            for across in range(0, edge, lanes):
                for down in range(0, edge, lanes):
                    own = [out.mul(out.add(row, down + i), columns) for i in range(lanes)]
                    vectors = [
                        out.load(kind, out.at(element, read_from, out.add(at, across)), itemsize)
                        for at in own
                    ]
                    for i, vector in enumerate(turn_vectors(out, kind, vectors)):
                        there = out.add(out.mul(rows, across + i), out.add(row, down))
                        out.store(vector, out.at(element, write_to, there), align=itemsize)
    return out
