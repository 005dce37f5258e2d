"""Long sums in blocks: rounding does not grow with the number of terms.

Each block is summed as before, and the blocks' sums are added in float64. A sum of 10⁸ float32s is
then as exact as one of a block. Where blocks begin depends on the extent only, so that threads and
vectors change nothing; sums of one block are left as they are.

>>> from weft.core.dtypes import float32
>>> from weft.ir.loops import Kernel, Store
>>> from weft.ir.scalars import Buffer, const, index, local
>>> x, y, i = Buffer("x", float32), Buffer("y", float32, "write"), index("i")
>>> total = local("t", float32)
>>> sums = Accumulate(i, const(100_000, INDEX), (Update(total, "add", x[i]),))
>>> print(Kernel("sum", (x, y), (), with_blocks((sums, Store(y, const(0, INDEX), total)))))
kernel sum(x: read f32, y: write f32; )
  accumulate i.block < 7
    accumulate i < minimum(16384, 100000 - i.block * 16384)
      t.block: f32 add= x[i.block * 16384 + i]
    t.wide: f64 add= cast<f64>(t.block)
  let t: f32 = cast<f32>(t.wide)
  y[0] = t
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from weft.core.dtypes import INDEX, float64
from weft.ir import scalars
from weft.ir.loops import Accumulate, For, Let, Statement, Store, Update, has_loops
from weft.ir.scalars import Scalar

BLOCK = 16 * 1024
"""The terms of a block that 64 partial sums share. Both blocks are a matter of rounding, and the
same on every machine, so that results are."""
SERIAL_BLOCK = 256
"""The terms of a block that are added one after the other."""


def with_blocks(
    body: tuple[Statement, ...], in_vectors: bool = False, is_outermost: bool = False
) -> tuple[Statement, ...]:
    """The statements with each long sum of floats in blocks.

    is_outermost: the same of other reductions that no loop is around, whose blocks threads divide.
    """
    made: list[Statement] = []
    for statement in body:
        match statement:
            case For():
                inside = with_blocks(statement.body, in_vectors or statement.is_vector)
                made.append(replace(statement, body=inside))
            case Accumulate():
                inside = with_blocks(statement.body, in_vectors)
                made += _in_blocks(replace(statement, body=inside), in_vectors, is_outermost)
            case _:
                made.append(statement)
    return tuple(made)


def _in_blocks(loop: Accumulate, in_vectors: bool, is_outermost: bool) -> list[Statement]:
    block = SERIAL_BLOCK if in_vectors or has_loops(loop.body) else BLOCK
    is_cut = (is_outermost and not loop.body) or any(map(_is_rounded, loop.updates))
    return divide_into_blocks(loop, block) if is_cut else [loop]


def divide_into_blocks(loop: Accumulate, block: int = BLOCK) -> list[Statement]:
    """A loop over blocks of one, and what is theirs together; itself where it has two or fewer."""
    if _is_short(loop.extent, 2 * block):
        return [loop]
    outer = scalars.index(f"{loop.index.detail}.block")
    here = outer * block + loop.index
    inner = [_block_update(update, loop.index, here) for update in loop.updates]
    # the last block may be shorter
    left = scalars.minimum(scalars.const(block, INDEX), loop.extent - outer * block)
    body = tuple(substitute_statement(each, loop.index, here) for each in loop.body)
    rows = Accumulate(loop.index, left, tuple(inner), body)
    blocks = (loop.extent + (block - 1)) // block
    totals = [_total(update, part) for update, part in zip(loop.updates, inner, strict=True)]
    ends = [
        Let(update.variable, scalars.cast(total.variable, update.variable.dtype))
        for update, total in zip(loop.updates, totals, strict=True)
    ]
    return [Accumulate(outer, blocks, tuple(totals), (rows,)), *ends]


def _is_rounded(update: Update) -> bool:
    return update.combine == "add" and update.variable.dtype.is_floating


def _is_short(extent: Scalar, limit: int) -> bool:
    """Whether a loop runs at most so often: a number, or the lesser of one and something else."""
    first = extent.args[0] if extent.op == "minimum" else extent
    return first.op == "const" and first.detail <= limit


def _block_update(update: Update, index: Scalar, here: Scalar) -> Update:
    """What a block takes: the same at its own place, without what the whole begins with."""
    variable = scalars.local(f"{update.variable.detail}.block", update.variable.dtype)
    times = None if update.times is None else substitute_scalars(update.times, {index: here})
    value = substitute_scalars(update.value, {index: here})
    return Update(variable, update.combine, value, None, times)


def _total(update: Update, part: Update) -> Update:
    """The blocks' results made one, sums in float64."""
    dtype = float64 if _is_rounded(update) else update.variable.dtype
    variable = scalars.local(f"{update.variable.detail}.wide", dtype)
    init = None if update.init is None else scalars.cast(update.init, dtype)
    return Update(variable, update.combine, scalars.cast(part.variable, dtype), init)


def substitute_statement(statement: Statement, index: Scalar, here: Scalar) -> Statement:
    """A statement with an index replaced."""
    known = {index: here}
    match statement:
        case Let():
            return replace(statement, value=substitute_scalars(statement.value, known))
        case Store():
            where = None if statement.where is None else substitute_scalars(statement.where, known)
            return Store(
                statement.buffer,
                substitute_scalars(statement.offset, known),
                substitute_scalars(statement.value, known),
                where,
            )
        case For():
            body = tuple(substitute_statement(each, index, here) for each in statement.body)
            return replace(statement, extent=substitute_scalars(statement.extent, known), body=body)
    updates = tuple(
        replace(
            update,
            value=substitute_scalars(update.value, known),
            init=None if update.init is None else substitute_scalars(update.init, known),
            times=None if update.times is None else substitute_scalars(update.times, known),
        )
        for update in statement.updates
    )
    body = tuple(substitute_statement(each, index, here) for each in statement.body)
    extent = substitute_scalars(statement.extent, known)
    return Accumulate(statement.index, extent, updates, body)


def substitute_scalars(x: Scalar, known: Mapping[Scalar, Scalar]) -> Scalar:
    """An expression with other expressions in place of variables."""
    done: dict[Scalar, Scalar] = dict(known)
    for each in scalars.nodes_in_order(x):
        if each not in done:
            args = tuple(done[arg] for arg in each.args)
            same = args == each.args
            done[each] = each if same else _with_arguments(each, args)
    return done[x]


def _with_arguments(x: Scalar, args: tuple[Scalar, ...]) -> Scalar:
    return scalars.node(x.op, x.dtype, args, x.detail)
