"""The loop language: a kernel is loops over scalar expressions, loads and stores.

Kernels are immutable values that can be printed, compared by `digest`, verified (`loop_verify`),
run by reference (`loop_reference`) and compiled (`weft.compiler.targets`). Extents and offsets are
int64 expressions over indices and run-time sizes; offsets count elements.

Row softmax, one row after the other kept in cache through three passes:

>>> from weft.core.dtypes import float32
>>> from weft.ir.scalars import Buffer, exp, index, local, size
>>> x, y = Buffer("x", float32), Buffer("y", float32, "write")
>>> row, column, rows, columns = index("row"), index("column"), size("rows"), size("columns")
>>> place = row * columns + column
>>> top, total = local("top", float32), local("total", float32)
>>> risen = exp(x[place] - top)
>>> softmax = Kernel("softmax", (x, y), ("rows", "columns"), (
...     For(row, rows, (
...         Accumulate(column, columns, (Update(top, "maximum", x[place]),)),
...         Accumulate(column, columns, (Update(total, "add", risen),)),
...         For(column, columns, (Store(y, place, risen / total),), "vector"),
...     ), "parallel"),
... ))
>>> print(softmax)
kernel softmax(x: read f32, y: write f32; rows, columns)
  parallel row < rows
    accumulate column < columns
      top: f32 maximum= x[row * columns + column]
    accumulate column < columns
      total: f32 add= exp(x[row * columns + column] - top)
    vector column < columns
      y[row * columns + column] = exp(x[row * columns + column] - top) / total

**Order of accumulation.** It depends on the extent only: not on the machine, its vectors or the
threads. An accumulation that stands outside vector loops and holds no loop in its body has 64
partial results: element i goes to partial i mod 64, in ascending order. The partials are combined
as a tree: l with l+32, then with l+16, l+8, l+4, l+2, l+1. Every other accumulation goes one by
one, in ascending order, lane by lane where it stands in a vector loop. `init` is combined last.
Before that, `compiler/fusion/long_sums.py` cuts what is long into blocks: two such loops.

**Text.** A subexpression that a statement uses more than once, and that is more than a load, stands
on a line of its own under a number. So text grows with the kernel, not with the paths through it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from functools import cached_property
from typing import Literal

from weft.core.dtypes import INDEX
from weft.core.records import frozen
from weft.ir.loop_digest import digest
from weft.ir.scalars import (
    INSTRUCTIONS,
    Buffer,
    Combine,
    Scalar,
    const,
    nodes_in_order,
    render,
    size,
)

Kind = Literal["serial", "parallel", "vector", "parallel vector", "unrolled"]

PARTIALS = 64
"""The order of accumulation: how many partial results there are."""


@frozen
class Let:
    """Define a local for the statements that follow in the same body."""

    variable: Scalar
    value: Scalar


@frozen
class Store:
    """Write an element; nothing where `where` is false."""

    buffer: Buffer
    offset: Scalar
    value: Scalar
    where: Scalar | None = None


@frozen
class For:
    """Run the body for each index from 0 to the extent; a negative extent is none.

    parallel: the iterations are independent, and divided over threads; the outermost loop only.
    vector: the iterations are independent, but that a buffer may be read and written at one offset.
    unrolled: the extent is a constant, and the body is written out for each index.
    """

    index: Scalar
    extent: Scalar
    body: tuple[Statement, ...]
    kind: Kind = "serial"

    @property
    def is_parallel(self) -> bool:
        """Whether threads divide this loop."""
        return self.kind.startswith("parallel")

    @property
    def is_vector(self) -> bool:
        """Whether this loop runs in vectors."""
        return self.kind.endswith("vector")


@frozen
class Update:
    """One accumulator of a loop: a local that holds `value` of all iterations, combined.

    times: another factor of what is added; the product is not rounded before it is.
    """

    variable: Scalar
    combine: Combine
    value: Scalar
    init: Scalar | None = None
    times: Scalar | None = None

    @property
    def summands(self) -> tuple[Scalar, ...]:
        """The values that each iteration adds: a value, or two factors."""
        return (self.value,) if self.times is None else (self.value, self.times)


@frozen
class Accumulate:
    """A loop that combines values; its accumulators are locals of the statements that follow.

    The body runs before the values of each iteration are taken, which may use its locals.
    """

    index: Scalar
    extent: Scalar
    updates: tuple[Update, ...]
    body: tuple[Statement, ...] = ()


Statement = Let | Store | For | Accumulate


@frozen
class Scratch:
    """Memory of one invocation of a kernel: as many elements as the sizes say."""

    buffer: Buffer
    count: Scalar


@frozen(slots=False)
class Kernel:
    """One native function: `buffers` and `sizes` are what it is given, in order, when it runs.

    At most one loop is parallel; it is then the only loop at the outermost level, and a call runs a
    part of it. Two buffers may share memory only if each iteration touches one offset in both.
    """

    name: str
    buffers: tuple[Buffer, ...]
    sizes: tuple[str, ...]
    body: tuple[Statement, ...]
    scratch: tuple[Scratch, ...] = ()

    def __str__(self) -> str:
        return "\n".join(_Writer(self).lines())

    @property
    def parallel(self) -> For | None:
        """The loop that threads divide."""
        return next((s for s in self.body if isinstance(s, For) and s.is_parallel), None)

    @property
    def extent(self) -> Scalar:
        """The iterations that a call may be given a part of; 1 where no loop is parallel."""
        loop = self.parallel
        return const(1, INDEX) if loop is None else loop.extent

    def iterations(self, sizes: Mapping[str, int]) -> int:
        """The value of `extent` for these sizes.

        >>> from weft.ir.scalars import index, size
        >>> Kernel("k", (), ("n",), (For(index("i"), size("n"), (), "parallel"),)).iterations(
        ...     {"n": 7})
        7
        """
        return max(0, evaluate(self.extent, sizes))

    @cached_property
    def digest(self) -> str:
        """A name of what the kernel does: equal for kernels that differ in names only."""
        sizes = tuple(size(name) for name in self.sizes)
        return digest((self.buffers, sizes, self.body, self.scratch))


def evaluate(x: Scalar, sizes: Mapping[str, int]) -> int:
    """The value of an int64 expression over sizes."""
    if x.op == "const":
        return int(x.detail)
    if x.op == "size":
        return int(sizes[x.detail])
    operands = [evaluate(arg, sizes) for arg in x.args]
    if x.op == "select":
        return operands[1] if operands[0] else operands[2]
    return int(INSTRUCTIONS[x.op].reference(*operands))


def expressions(statement: Statement) -> Iterator[Scalar]:
    """The expressions of a statement itself, not of its body."""
    match statement:
        case Let(_, value):
            yield value
        case Store(_, offset, value, where):
            yield from (offset, value) if where is None else (offset, value, where)
        case For(_, extent):
            yield extent
        case Accumulate(_, extent, updates):
            yield extent
            yield from (part for u in updates for part in (*u.summands, u.init) if part is not None)


def walk(body: tuple[Statement, ...]) -> Iterator[Statement]:
    """All statements, each before those of its body."""
    for statement in body:
        yield statement
        if isinstance(statement, For | Accumulate):
            yield from walk(statement.body)


def written_buffers(body: tuple[Statement, ...]) -> frozenset[Buffer]:
    """The buffers that statements store to."""
    return frozenset(s.buffer for s in walk(body) if isinstance(s, Store))


def has_loops(body: tuple[Statement, ...]) -> bool:
    """Whether there is a loop among the statements."""
    return any(isinstance(s, For | Accumulate) for s in body)


# --- text ----------------------------------------------------------------------------------------

_LONG, _DEEP = 8, 40
"""Nodes beyond which a repeated subexpression is written once, and depth of a line's text."""


class _Writer:
    """Writes the lines of one kernel, under the names that its author gave."""

    def __init__(self, kernel: Kernel) -> None:
        self._kernel = kernel
        self._names: dict[Scalar | Buffer, str] = {}

    def lines(self) -> Iterator[str]:
        kernel = self._kernel
        buffers = ", ".join(
            f"{self._introduced_name(b)}: {b.access} {b.dtype}" for b in kernel.buffers
        )
        sizes = ", ".join(self._introduced_name(size(name)) for name in kernel.sizes)
        yield f"kernel {self._title()}({buffers}; {sizes})"
        for scratch in kernel.scratch:
            name, count = self._introduced_name(scratch.buffer), self._text(scratch.count)
            yield f"  scratch {name}: {scratch.buffer.dtype}[{count}]"
        yield from self._body(kernel.body, "  ")

    def _title(self) -> str:
        return self._kernel.name

    def _introduced_name(self, thing: Scalar | Buffer) -> str:
        """The name of a buffer or variable, where it is introduced."""
        return str(thing.name if isinstance(thing, Buffer) else thing.detail)

    def _text(self, x: Scalar) -> str:
        return render(x, self._names)

    def _body(self, body: tuple[Statement, ...], indent: str) -> Iterator[str]:
        for statement in body:
            if isinstance(statement, For | Accumulate):
                yield from self._loop(statement, indent)
            else:
                yield from self._lines_of_shared(tuple(expressions(statement)), indent)
                yield indent + self._simple_statement(statement)
                self._forget()

    def _loop(self, loop: For | Accumulate, indent: str) -> Iterator[str]:
        kind = loop.kind if isinstance(loop, For) else "accumulate"
        extent = self._text(loop.extent)
        yield f"{indent}{kind} {self._introduced_name(loop.index)} < {extent}"
        yield from self._body(loop.body, indent + "  ")
        if isinstance(loop, Accumulate):
            values = tuple(each for update in loop.updates for each in update.summands)
            yield from self._lines_of_shared(values, indent + "  ")
            for update in loop.updates:
                yield f"{indent}  {self._update(update)}"
            self._forget()

    def _update(self, update: Update) -> str:
        value = " times ".join([self._text(each) for each in update.summands])
        start = "" if update.init is None else f" from {self._text(update.init)}"
        variable = update.variable
        return (
            f"{self._introduced_name(variable)}: {variable.dtype} {update.combine}= {value}{start}"
        )

    def _simple_statement(self, statement: Let | Store) -> str:
        value = self._text(statement.value)
        if isinstance(statement, Let):
            variable = self._introduced_name(statement.variable)
            return f"let {variable}: {statement.variable.dtype} = {value}"
        guard = "" if statement.where is None else f" where {self._text(statement.where)}"
        name = self._names.get(statement.buffer, statement.buffer.name)
        return f"{name}[{self._text(statement.offset)}] = {value}{guard}"

    def _lines_of_shared(self, roots: tuple[Scalar, ...], indent: str) -> Iterator[str]:
        """Lines for long parts that occur more than once, and for the depths of deep ones."""
        for number, x in enumerate(_shared_subexpressions(roots)):
            line = f"{indent}%{number} = {self._text(x)}"
            self._names[x] = f"%{number}"
            yield line

    def _forget(self) -> None:
        self._names = {x: name for x, name in self._names.items() if name[0] != "%"}


def _shared_subexpressions(roots: tuple[Scalar, ...]) -> Iterator[Scalar]:
    """The subexpressions that get a line of their own, operands first."""
    nodes = nodes_in_order(*roots)
    uses = Counter(arg for x in nodes for arg in x.args) + Counter(roots)
    sizes: dict[Scalar, int] = {}
    depths: dict[Scalar, int] = {}
    for x in nodes:
        sizes[x] = min(1 + sum(sizes[arg] for arg in x.args), _LONG + 1)
        depths[x] = 1 + max((depths[arg] for arg in x.args), default=0)
        if (uses[x] > 1 and sizes[x] > _LONG) or depths[x] > _DEEP:
            depths[x] = 0
            yield x
