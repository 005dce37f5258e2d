"""Long sums over the whole card: one launch for the blocks of a sum, one for their results.

`weft.compiler.fusion.long_sums` writes a long sum as a loop over blocks, and what else is reduced
is divided here in the same way: any order gives the same extreme. Where no loop around it is
parallel, one team would run all of them. Here the blocks are launches of their own, as on the
processor (`weft.compiler.lowering.divided_reductions`), where they need no other results.

>>> from weft.compiler.fusion.long_sums import with_blocks
>>> from weft.core.dtypes import INDEX, float32
>>> from weft.ir.loops import Store, Update
>>> from weft.ir.scalars import const, index, local
>>> x, y, i = Buffer("x", float32), Buffer("y", float32, "write"), index("i")
>>> total = local("t", float32)
>>> sums = Accumulate(i, const(100_000, INDEX), (Update(total, "add", x[i]),))
>>> body = with_blocks((sums, Store(y, const(0, INDEX), total)))
>>> for part in split_kernel(Kernel("sum", (x, y), (), body)).kernels:
...     print(part)
kernel sum.blocks(x: read f32, y: write f32, part0: both f64; )
  parallel i.block < 7
    accumulate i < minimum(16384, 100000 - i.block * 16384)
      t.block: f32 add= x[i.block * 16384 + i]
    part0[i.block] = cast<f64>(t.block)
kernel sum(x: read f32, y: write f32, part0: both f64; )
  accumulate i.block < 7
    t.wide: f64 add= part0[i.block]
  let t: f32 = cast<f32>(t.wide)
  y[0] = t
"""

from __future__ import annotations

from dataclasses import replace

from weft.compiler.fusion.long_sums import divide_into_blocks, substitute_scalars
from weft.compiler.lowering.divided_reductions import (
    Split,
    combined_parts,
    is_in_blocks,
    parallel_blocks,
    part_buffers,
    read_buffers,
    used_locals,
)
from weft.compiler.targets.cuda.merging import merge_accumulations, unroll_sums
from weft.compiler.targets.cuda.schedule import schedule
from weft.ir.loops import Accumulate, For, Kernel, Let, Statement, has_loops, written_buffers
from weft.ir.scalars import Buffer, Scalar

LONGEST_ROW = 256 * 1024
"""Terms of a sum whose error the partial results of one team keep small: at most 256 for each."""


def split_kernel(kernel: Kernel) -> Split:
    """A kernel with its long sums in launches of their own; itself alone, where it has none."""
    kernel = merge_accumulations(kernel)
    if schedule(kernel).vector is not None:
        kernel = unroll_sums(kernel)
    if kernel.parallel is not None and schedule(kernel).team > 1:
        kernel = replace(kernel, body=_with_whole_rows(kernel.body))
    if kernel.parallel is not None or kernel.scratch:
        return Split((kernel,))
    body: list[Statement] = []
    blocks: list[For] = []
    between: list[tuple[Buffer, Scalar]] = []
    for statement in _with_blocks_of_extremes(kernel.body):
        if not isinstance(statement, Accumulate) or not _is_apart(statement, kernel):
            body.append(statement)
            continue
        parts = part_buffers(statement, len(between))
        between += [(buffer, statement.extent) for buffer in parts]
        blocks.append(parallel_blocks(statement, parts))
        body.append(combined_parts(statement, parts))
    if not blocks:
        return Split((kernel,))
    buffers = (*kernel.buffers, *(buffer for buffer, _ in between))
    first = [
        Kernel(f"{kernel.name}.blocks{number or ''}", buffers, kernel.sizes, (loop,))
        for number, loop in enumerate(blocks)
    ]
    last = replace(kernel, buffers=buffers, body=tuple(body))
    return Split((*first, last), tuple(between))


def _with_blocks_of_extremes(body: tuple[Statement, ...]) -> list[Statement]:
    """Statements with every long reduction in blocks: sums are already, for their error's sake."""
    made: list[Statement] = []
    for statement in body:
        is_whole = isinstance(statement, Accumulate) and not has_loops(statement.body)
        made += divide_into_blocks(statement) if is_whole else [statement]  # type: ignore[arg-type]
    return made


def _with_whole_rows(body: tuple[Statement, ...]) -> tuple[Statement, ...]:
    """Statements with sums in blocks made whole: a team has many more partial results than a CPU.

    What a block is for, that errors do not grow with the number of terms, the partial results do.
    """
    made: list[Statement] = []
    for statement in body:
        match statement:
            case Accumulate():
                made += _whole_accumulation(statement) or [statement]
            case For():
                made.append(replace(statement, body=_with_whole_rows(statement.body)))
            case _:
                made.append(statement)
    return tuple(made)


def _whole_accumulation(loop: Accumulate) -> list[Statement] | None:
    """One accumulation in place of one over blocks; None where it is none, or too long."""
    if len(loop.body) != 1 or not isinstance(loop.body[0], Accumulate):
        return None
    inner = loop.body[0]
    if inner.body or inner.extent.op != "minimum" or loop.extent.op != "const":
        return None
    block, left = inner.extent.args
    start = loop.index * block
    if left.op != "subtract" or left.args[1] is not start or left.args[0].op != "const":
        return None
    whole, here = left.args[0], start + inner.index
    if whole.detail > LONGEST_ROW:
        return None
    updates = [
        replace(u, value=substitute_scalars(u.value, {here: inner.index})) for u in inner.updates
    ]
    moved = any(loop.index in u.value.variables or u.times or u.init for u in updates)
    if moved or any(update.init or update.times for update in loop.updates):
        return None
    ends = [Let(update.variable, update.value) for update in loop.updates]
    return [Accumulate(inner.index, whole, tuple(updates)), *ends]


def _is_apart(loop: Accumulate, kernel: Kernel) -> bool:
    """Whether a loop over blocks needs nothing that the kernel computes or writes."""
    own = (loop,)
    return (
        is_in_blocks(loop)
        and not used_locals(own)
        and not read_buffers(own) & written_buffers(kernel.body)
    )
