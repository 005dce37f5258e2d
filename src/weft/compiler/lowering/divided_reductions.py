"""Long reductions of everything, divided: a kernel for the blocks, one for their results.

`weft.compiler.fusion.long_sums` writes a long reduction as a loop over blocks. Where no loop is
around it, one thread would run all of them. Here the blocks are the iterations of a parallel loop,
which store their results, and a second kernel combines these. Where blocks begin, and the order of
everything, depends on the extent only. A reduction that needs the result of another, as a variance
needs the mean, finds it in a cell of memory.

>>> from weft.compiler.fusion.long_sums import with_blocks
>>> from weft.core.dtypes import float32
>>> from weft.ir.loops import Update
>>> from weft.ir.scalars import index, local, size
>>> x, y, i = Buffer("x", float32), Buffer("y", float32, "write"), index("i")
>>> mean, spread = local("m", float32), local("s", float32)
>>> sums = Accumulate(i, size("n"), (Update(mean, "add", x[i]),))
>>> further = Accumulate(i, size("n"), (Update(spread, "maximum", x[i] - mean),))
>>> body = with_blocks((sums, further, Store(y, const(0, INDEX), spread)), is_outermost=True)
>>> for kernel in divide_kernel(Kernel("spread", (x, y), ("n",), body)).kernels:
...     print(kernel)
kernel spread.blocks(x: read f32, part0: both f64; n)
  parallel i.block < (n + 16383) // 16384
    accumulate i < minimum(16384, n - i.block * 16384)
      m.block: f32 add= x[i.block * 16384 + i]
    part0[i.block] = cast<f64>(m.block)
kernel spread.1(part0: both f64, m.cell: both f32; n)
  accumulate i.block < (n + 16383) // 16384
    m.wide: f64 add= part0[i.block]
  let m: f32 = cast<f32>(m.wide)
  m.cell[0] = m
kernel spread.blocks2(x: read f32, m.cell: both f32, part2: both f32; n)
  let m: f32 = m.cell[0]
  parallel i.block < (n + 16383) // 16384
    accumulate i < minimum(16384, n - i.block * 16384)
      s.block: f32 maximum= x[i.block * 16384 + i] - m
    part2[i.block] = s.block
kernel spread(y: write f32, part2: both f32; n)
  accumulate i.block < (n + 16383) // 16384
    s.wide: f32 maximum= part2[i.block]
  let s: f32 = s.wide
  y[0] = s
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from weft.compiler.lowering.groups import Lowered
from weft.compiler.targets.limits import LoweringLimits
from weft.core.dimensions import symbol
from weft.core.dtypes import INDEX
from weft.core.records import frozen
from weft.core.shapes import Dimension
from weft.core.types import TensorType
from weft.ir.graph import Literal, Variable
from weft.ir.loops import (
    Accumulate,
    For,
    Kernel,
    Let,
    Statement,
    Store,
    expressions,
    has_loops,
    walk,
    written_buffers,
)
from weft.ir.scalars import Buffer, Scalar, const, nodes_in_order


@frozen(slots=False)
class Split:
    """Kernels that run one after the other, and the memory between them: buffers and counts."""

    kernels: tuple[Kernel, ...]
    between: tuple[tuple[Buffer, Scalar], ...] = ()


class BlockResults(Variable):
    """What a kernel of a divided reduction makes for the next one."""

    __slots__ = ()


def divided_kernels(lowered: Lowered, count: Dimension, limits: LoweringLimits) -> list[Lowered]:
    """A group's kernel over so many elements, with long reductions in kernels of their own.

    Where a size is not known, any may be long.
    """
    least = limits.divided_reduction_elements
    if least == 0 or (isinstance(count, int) and count < least):
        return [lowered]
    split = divide_kernel(lowered.kernel)
    if not split.between:
        return [lowered]
    values: dict[Buffer, Variable | Literal] = dict(
        zip(lowered.kernel.buffers, lowered.values, strict=True)
    )
    for buffer, extent in split.between:
        values[buffer] = BlockResults(TensorType(buffer.dtype, (_dimension(extent),)))
    made: list[Lowered] = []
    for kernel in split.kernels:
        stored = written_buffers(kernel.body)
        written = [v for b, v in values.items() if b in stored and isinstance(v, Variable)]
        own = tuple([values[buffer] for buffer in kernel.buffers])
        work = count if kernel.parallel is not None else _dimension(split.between[0][1])
        made.append(Lowered(kernel, own, tuple(written), work=work))
    return made


def _dimension(x: Scalar) -> Dimension:
    """A size of a kernel as a dimension."""
    if x.op == "const":
        return int(x.detail)
    if x.op == "size":
        return symbol(x.detail)
    first, second = map(_dimension, x.args)
    match x.op:
        case "add":
            return first + second
        case "subtract":
            return first - second
        case "multiply":
            return first * second
    assert x.op == "floor_divide", x.op
    return first // second


def divide_kernel(kernel: Kernel) -> Split:
    """A kernel with its long reductions in kernels of their own; itself alone without any."""
    if kernel.parallel is not None or kernel.scratch or not any(map(is_in_blocks, kernel.body)):
        return Split((kernel,))
    return _Division(kernel).make_split()


class _Division:
    """The state of cutting one kernel: what was cut off, and the statements since."""

    def __init__(self, kernel: Kernel) -> None:
        self._kernel, self._written = kernel, written_buffers(kernel.body)
        self._kernels: list[Kernel] = []
        self._between: list[tuple[Buffer, Scalar]] = []
        self._known: dict[Scalar, Scalar] = {}
        """What locals are in every kernel: cells of memory, or made of sizes alone."""
        self._body: list[Statement] = []

    def make_split(self) -> Split:
        """The kernels, and the memory between them."""
        statements = self._kernel.body
        for place, statement in enumerate(statements):
            if is_in_blocks(statement) and not self._written & read_buffers((statement,)):
                assert isinstance(statement, Accumulate)
                self._cut_blocks(statement, statements[place:])
            elif isinstance(statement, Let) and _is_of_sizes(statement.value):
                self._known[statement.variable] = statement.value
            else:
                self._body.append(statement)
        self._end_kernel("")
        return Split(tuple(self._kernels), tuple(self._between))

    def _cut_blocks(self, loop: Accumulate, rest: Sequence[Statement]) -> None:
        """Make blocks a kernel, behind one of the statements before, if they need these."""
        own = defined_locals(self._body)
        if not own.keys().isdisjoint(used_locals((loop,))):
            needed = used_locals(rest)
            cells = {x: Buffer(f"{x.detail}.cell", x.dtype, "both") for x in own if x in needed}
            self._body += [Store(cell, const(0, INDEX), x) for x, cell in cells.items()]
            self._between += [(cell, const(1, INDEX)) for cell in cells.values()]
            self._end_kernel(f".{len(self._kernels)}")
            self._known |= {x: cell[0] for x, cell in cells.items()}
        parts = part_buffers(loop, len(self._between))
        self._between += [(part, loop.extent) for part in parts]
        before, self._body = self._body, [parallel_blocks(loop, parts)]
        self._end_kernel(f".blocks{len(self._kernels) or ''}")
        self._body = [*before, combined_parts(loop, parts)]

    def _end_kernel(self, name: str) -> None:
        """Make the statements so far a kernel, behind the known locals that it needs."""
        needed = used_locals(self._body)
        taken = [Let(x, value) for x, value in self._known.items() if x in needed]
        body = (*taken, *self._body)
        touched = read_buffers(body) | written_buffers(body)
        memory = (*self._kernel.buffers, *[buffer for buffer, _ in self._between])
        buffers = tuple([each for each in memory if each in touched])
        named, sizes = f"{self._kernel.name}{name}", self._kernel.sizes
        self._kernels.append(Kernel(named, buffers, sizes, body))
        self._body = []


def _is_of_sizes(x: Scalar) -> bool:
    return not x.variables and not x.buffers


def is_in_blocks(statement: Statement) -> bool:
    """Whether a statement is a reduction in blocks, which may go side by side."""
    return (
        isinstance(statement, Accumulate)
        and has_loops(statement.body)
        and not statement.extent.variables
        and all(update.times is None for update in statement.updates)
    )


def part_buffers(loop: Accumulate, first: int) -> list[Buffer]:
    """Memory for the results of blocks, of each update, with names from a number on."""
    return [
        Buffer(f"part{first + place}", update.variable.dtype, "both")
        for place, update in enumerate(loop.updates)
    ]


def parallel_blocks(loop: Accumulate, parts: Sequence[Buffer]) -> For:
    """The blocks of a reduction side by side, which store their results."""
    stores = [
        Store(part, loop.index, update.value)
        for part, update in zip(parts, loop.updates, strict=True)
    ]
    return For(loop.index, loop.extent, (*loop.body, *stores), "parallel")


def combined_parts(loop: Accumulate, parts: Sequence[Buffer]) -> Accumulate:
    """The reduction of the blocks' results."""
    updates = [
        replace(update, value=part[loop.index])
        for part, update in zip(parts, loop.updates, strict=True)
    ]
    return Accumulate(loop.index, loop.extent, tuple(updates))


def defined_locals(body: Sequence[Statement]) -> dict[Scalar, None]:
    """The locals that statements define, in order."""
    found: dict[Scalar, None] = {}
    for statement in walk(tuple(body)):
        match statement:
            case Let(variable, _):
                found[variable] = None
            case Accumulate(updates=updates):
                found |= dict.fromkeys(update.variable for update in updates)
    return found


def used_locals(body: Sequence[Statement]) -> set[Scalar]:
    """The locals that statements use, and do not define."""
    used = {
        x
        for statement in walk(tuple(body))
        for root in expressions(statement)
        for x in nodes_in_order(root)
        if x.op == "local"
    }
    return used - defined_locals(body).keys()


def read_buffers(body: Sequence[Statement]) -> frozenset[Buffer]:
    """The buffers that statements read."""
    roots = [root for statement in walk(tuple(body)) for root in expressions(statement)]
    return frozenset[Buffer]().union(*[root.buffers for root in roots])
