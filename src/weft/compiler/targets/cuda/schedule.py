"""How a kernel's loops are laid over the threads of a card.

A kernel is a nest of loops around a body. The grid runs through the loops of the nest whose
iterations are independent. There are two kinds of bodies:

- *elements*: the innermost loop of the nest is a vector loop. A thread takes `width` neighbours of
  it, so that memory is touched 16 bytes at a time.
- *rows*: the body holds accumulations and vector loops of its own. A team of threads (one thread, a
  warp or a part of it, or a block) runs it together: each thread takes the same elements of every
  loop, so that what one loop computes is still in registers in the next.

>>> from weft.core.dtypes import bfloat16
>>> from weft.ir.scalars import Buffer, index, size
>>> x, y, i = Buffer("x", bfloat16), Buffer("y", bfloat16, "write"), index("i")
>>> copy = Kernel("copy", (x, y), ("n",), (For(i, size("n"), (Store(y, i, x[i]),),
...                                            "parallel vector"),))
>>> made = schedule(copy)
>>> made.team, made.width, made.blocks({"n": 4096 * 8})
(1, 8, 16)
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import cached_property
from math import prod

from weft.compiler.fusion.long_sums import substitute_scalars, substitute_statement
from weft.compiler.targets.cuda.machine import WARP
from weft.compiler.targets.cuda.memory_accesses import (
    accesses,
    buffers_read,
    contested_buffers,
    is_injective,
    is_team_loop,
    load_offsets,
    multiple_of,
    touches,
)
from weft.compiler.targets.llvm.values import at_zero
from weft.core.dtypes import INDEX
from weft.core.records import frozen
from weft.ir.loops import (
    Accumulate,
    For,
    Kernel,
    Let,
    Statement,
    Store,
    evaluate,
    expressions,
    has_loops,
    walk,
    written_buffers,
)
from weft.ir.scalars import Buffer, Scalar, coefficient, const, is_const, local, nodes_in_order

BLOCK = 256
"""Threads of a block that work alone."""
ROW_BLOCK = 128
"""Threads of a block of several warps, each a team."""
LARGEST_TEAM = 1024
HELD = 32
"""Elements of a row that one thread takes, before the team is made larger."""
FEW = 8
"""Rows of up to so many elements are one thread's."""
UNKNOWN_TEAM = 256
"""The team of rows whose length is known only when they run."""
ROW_BYTES, ELEMENT_BYTES = 16, 16
"""The most bytes that a thread touches at once, in rows and in other kernels."""
FEW_ELEMENTS, LONG = 16 * 1024, 128
"""Fewer elements than these, of accumulations at least so long, have teams; see `_is_row`."""
ENOUGH = 64 * 1024
"""Threads that fill a card; kernels with loops in their elements take less at once below that."""


@frozen(slots=False)
class Schedule:
    """A kernel laid out: the loops of the grid, the body, and who runs it."""

    kernel: Kernel
    grid: tuple[For, ...]
    body: tuple[Statement, ...]
    vector: For | None
    """The innermost loop of the grid, if a thread takes `width` neighbours of it."""
    team: int
    width: int
    is_across: bool = False
    """Whether a team has one thread of each warp: neighbouring lanes are neighbouring elements."""
    closing: tuple[Statement, ...] = ()
    """What all threads of a block do when its teams are done: they share some scratch memory."""

    @property
    def block(self) -> int:
        """Threads of a block: some warps, or one team of several warps."""
        if self.is_across:
            return self.team * WARP
        return self.team if self.team > WARP else ROW_BLOCK if self.team > 1 else BLOCK

    def teams(self, sizes: Mapping[str, int]) -> int:
        """How many teams there is work for."""
        extents = [max(0, evaluate(loop.extent, sizes)) for loop in self.grid]
        if self.vector is not None:
            extents[-1] = -(-extents[-1] // self.width)
        return prod(extents)

    def blocks(self, sizes: Mapping[str, int]) -> int:
        """The blocks of a launch; 0 where there is nothing to do."""
        return -(-self.teams(sizes) * self.team // self.block)

    @property
    def block_layout(self) -> Schedule:
        """How a block does what is left when its teams are done."""
        shared = tuple(each for each in self.kernel.scratch if each.buffer in self.shared_buffers)
        kernel = replace(self.kernel, scratch=shared)
        return Schedule(kernel, self.grid[:-1], self.closing, None, self.block, self.width)

    @cached_property
    def shared_buffers(self) -> frozenset[Buffer]:
        """Scratch memory that the teams of a block have together."""
        return buffers_read(self.closing) & {each.buffer for each in self.kernel.scratch}

    @cached_property
    def exchanged_buffers(self) -> frozenset[Buffer]:
        """Memory that one thread of a team may write and another read, or write anew."""
        if self.team == 1:
            return frozenset()
        seen = written_buffers(self.body) & buffers_read(self.body)
        return (seen | contested_buffers(self.body, self.grid)) - frozenset(self.registers)

    @cached_property
    def registers(self) -> dict[Buffer, Scalar]:
        """Scratch memory of which every thread sees its own elements only; by the loops' index."""
        if self.team == 1:
            return {}
        found: dict[Buffer, Scalar] = {}
        for scratch in self.kernel.scratch:
            own = _own_index(scratch.buffer, self.body, self.team, self.width)
            if own is not None:
                found[scratch.buffer] = own
        return found


def scratch_of_all(plan: Schedule, sizes: Mapping[str, int]) -> int:
    """The bytes of scratch memory of all teams of a launch."""
    each = 0
    for scratch in plan.kernel.scratch:
        count = max(0, evaluate(scratch.count, sizes))
        each += -(-count * scratch.buffer.dtype.itemsize // 16) * 16
    return each * (plan.blocks(sizes) * plan.block // plan.team)


def schedule(kernel: Kernel) -> Schedule:
    """The layout of a kernel, which depends on the kernel only."""
    kernel = _with_numbers_inside(kernel)
    grid, body = _nest(kernel)
    shared = _teams_of_block(kernel, grid, body)
    if shared is not None:
        return shared
    if grid and grid[-1].is_vector and not _is_row(grid, body):
        width = _element_width(grid, body)
        grid = _with_several_rows(grid, width)
        return Schedule(kernel, grid, grid[-1].body, grid[-1], 1, width)
    loops = list(team_loops(body))
    if grid and grid[-1].is_vector and _runs_down_columns(kernel, grid, body):
        return Schedule(kernel, grid, body, None, _team_across(loops), 1, is_across=True)
    width = _row_width(loops)
    team = _team(loops, width)
    if team == WARP:
        team = _part_of_warp(grid, body, loops, width)
    return Schedule(kernel, grid, body, None, team, width)


def _teams_of_block(
    kernel: Kernel, grid: tuple[For, ...], body: tuple[Statement, ...]
) -> Schedule | None:
    """The layout of a kernel whose iterations are a block's: a loop over its teams, and a closing.

    See `weft.compiler.plan.column_sums`. None where teams are no warps, or not as many as a block
    has: one team then runs all of it.
    """
    if len(grid) != 1 or len(body) < 2 or not isinstance(body[0], For):
        return None
    teams, *closing = body
    assert isinstance(teams, For)
    is_block = teams.kind == "serial" and is_const(teams.extent, ROW_BLOCK // WARP)
    ends = all(
        isinstance(each, For) and each.is_vector and not has_loops(each.body) for each in closing
    )
    if not is_block or not ends or grid[0].is_vector or grid[0].extent.op != "const":
        return None
    if not _is_apart(teams, grid, kernel, closing):
        return None
    loops = list(team_loops(teams.body))
    width = _row_width(loops)
    if _team(loops, width) != WARP:
        return None
    return Schedule(kernel, (*grid, teams), teams.body, None, WARP, width, closing=tuple(closing))


def _is_apart(teams: For, grid: tuple[For, ...], kernel: Kernel, closing: list[Statement]) -> bool:
    """Whether teams are independent, and touch parts of their own of what the closing reads."""
    scratch = frozenset(each.buffer for each in kernel.scratch)
    shared = buffers_read(tuple(closing))
    if shared - scratch or not _is_independent(teams, list(grid), scratch):
        return False
    loops = [each for each in walk((teams,)) if isinstance(each, For | Accumulate)]
    places = {offset for buffer, offset in accesses((teams,)) if buffer in shared}
    around = list({each.index: each for each in loops}.values())
    return len(places) == 1 and all(is_injective(place, teams, around) for place in places)


# --- the loops of the grid ----------------------------------------------------------------------


def _with_numbers_inside(kernel: Kernel) -> Kernel:
    """The kernel with what is read before its one loop, such as the start of a box, read inside.

    Beside it the loop would be no grid, and one team would do all of the work.
    """
    first = [each for each in kernel.body if isinstance(each, Let)]
    loop = kernel.body[-1] if kernel.body else None
    if not first or len(kernel.body) != len(first) + 1 or not isinstance(loop, For):
        return kernel
    if not written_buffers(kernel.body).isdisjoint(buffers_read(tuple(first))):
        return kernel
    for let in reversed(first):
        loop = substitute_statement(loop, let.variable, let.value)
    return replace(kernel, body=(loop,))


def _nest(kernel: Kernel) -> tuple[tuple[For, ...], tuple[Statement, ...]]:
    """The outer loops that nothing stands beside and whose iterations are independent."""
    grid: list[For] = []
    body = kernel.body
    scratch = frozenset(each.buffer for each in kernel.scratch)
    while len(body) == 1 and isinstance(body[0], For):
        loop = body[0]
        if not (loop.is_parallel or loop.is_vector or _is_independent(loop, grid, scratch)):
            break
        if loop.extent.variables or loop.extent.buffers:
            break
        grid.append(loop)
        body = loop.body
        if loop.is_vector:
            break
    return tuple(grid), body


def _is_independent(loop: For, outer: list[For], scratch: frozenset[Buffer]) -> bool:
    """Whether the iterations of a serial loop write different places, and read none but their own.

    Scratch memory is an iteration's own where each begins by writing it.
    """
    if not all(_begins_with_store(buffer, loop.body) for buffer in scratch):
        return False
    stores = [s for s in walk((loop,)) if isinstance(s, Store) and s.buffer not in scratch]
    places = {s.buffer: s.offset for s in stores}
    if len(places) < len(stores):
        return False
    for buffer in (written_buffers((loop,)) & buffers_read((loop,))) - scratch:
        if any(place is not places[buffer] for place in load_offsets(buffer, (loop,))):
            return False
    loops = [s for s in walk((loop,)) if isinstance(s, For | Accumulate)]
    inner = {s.index: s for s in loops}
    if any(s.extent is not inner[s.index].extent for s in loops):
        return False  # loops of one index that end at different places
    return all(is_injective(store.offset, loop, [*outer, *inner.values()]) for store in stores)


def _begins_with_store(buffer: Buffer, body: tuple[Statement, ...]) -> bool:
    """Whether the first statement that touches a buffer reads nothing of it.

    Where that is a loop over bodies of loops, each of its iterations begins so.
    """
    first = next((s for s in body if touches(buffer, (s,))), None)
    if isinstance(first, For) and has_loops(first.body):
        return _begins_with_store(buffer, first.body)
    return first is None or buffer not in buffers_read((first,))


def _is_row(grid: tuple[For, ...], body: tuple[Statement, ...]) -> bool:
    """Whether teams serve the elements of a vector loop better than a thread each.

    They do where the accumulations inside run along memory and the vector loop does not; and where
    there are so few elements that most of a card would wait for long accumulations.
    """
    vector, loops = grid[-1], list(team_loops(body))
    inside = [
        (coefficient(offset, vector.index), coefficient(offset, loop.index))
        for loop in loops
        for _, offset in accesses((loop,))
        if loop.index in offset.variables
    ]
    one = const(1, INDEX)
    if inside and all(down is one and along is not one for along, down in inside):
        return True
    extents = [each.extent for each in grid]
    longest = max([upper_bound(loop.extent) or 0 for loop in loops], default=0)
    total = prod(int(x.detail) if x.op == "const" else ENOUGH for x in extents)
    return longest >= LONG and total < FEW_ELEMENTS


def _runs_down_columns(kernel: Kernel, grid: tuple[For, ...], body: tuple[Statement, ...]) -> bool:
    """Whether a warp should take neighbouring elements, where sums go down columns of memory.

    A warp that goes down one column reads a whole sector of each row for one element of it. Warps
    are whole, so that all threads of a block meet at its barrier.
    """
    loops = list(team_loops(body))
    if kernel.scratch or any(loop.extent.op != "const" for loop in (*grid, *loops)):
        return False
    if not all(isinstance(each, Accumulate) and not each.body for each in loops):
        return False
    if any(isinstance(each, For) or (has_loops((each,)) and each not in loops) for each in body):
        return False
    vector, one = grid[-1], const(1, INDEX)
    offsets = [
        offset
        for loop in loops
        for _, offset in accesses((loop,))
        if loop.index in offset.variables
    ]
    are_columns = all(coefficient(offset, vector.index) is one for offset in offsets)
    return bool(offsets) and are_columns and int(vector.extent.detail) % WARP == 0


def _team_across(loops: list[For | Accumulate]) -> int:
    """The warps that share columns: each thread takes about 16 elements of its own."""
    longest = max(int(loop.extent.detail) for loop in loops)
    return min(WARP, max(4, 1 << (longest // 16 - 1).bit_length()))


# --- several rows for a thread -------------------------------------------------------------------

ROW_COUNTS = (4, 7, 5, 3, 2)
"""How many rows a thread may take, in the order in which they are tried."""
MOST_ROW_LOADS = 28
"""Loads of all rows of a thread together, at most: they are under way at once, in registers."""
ROW_THREADS = 4 * ENOUGH
"""Threads that are left at least."""


def _with_several_rows(grid: tuple[For, ...], width: int) -> tuple[For, ...]:
    """The grid with a few rows for each thread, where all rows share some of what they read.

    The numbers of a channel, say, are then read once for several places.
    """
    if len(grid) < 2 or any(loop.extent.op != "const" for loop in grid):
        return grid
    *outer, row, vector = grid
    if not all(isinstance(each, Let | Store) for each in vector.body):
        return grid
    offsets = {offset for _, offset in accesses(vector.body) if vector.index in offset.variables}
    own = [offset for offset in offsets if row.index in offset.variables]
    extent, total = int(row.extent.detail), prod(int(each.extent.detail) for each in grid)
    fitting = [
        count
        for count in ROW_COUNTS
        if extent % count == 0
        and count * len(own) <= MOST_ROW_LOADS
        and total // (width * count) >= ROW_THREADS
    ]
    if len(own) == len(offsets) or not fitting:
        return grid
    count = fitting[0]
    rows = replace(row, extent=const(extent // count, INDEX))
    body = [each for k in range(count) for each in _body_of_row(vector.body, row.index, count, k)]
    return (*outer, rows, replace(vector, body=tuple(body)))


def _body_of_row(
    body: tuple[Statement, ...], index: Scalar, count: int, row: int
) -> Iterator[Let | Store]:
    """The statements of one of a thread's rows, with locals of its own."""
    known: dict[Scalar, Scalar] = {index: index * count + row}
    for statement in body:
        if isinstance(statement, Let):
            value = substitute_scalars(statement.value, known)
            variable = local(f"{statement.variable.detail}.{row}", statement.variable.dtype)
            known[statement.variable] = variable
            yield Let(variable, value)
            continue
        assert isinstance(statement, Store)
        where = None if statement.where is None else substitute_scalars(statement.where, known)
        yield Store(
            statement.buffer,
            substitute_scalars(statement.offset, known),
            substitute_scalars(statement.value, known),
            where,
        )


# --- teams ---------------------------------------------------------------------------------------


def team_loops(body: tuple[Statement, ...]) -> Iterator[For | Accumulate]:
    """The loops that a team divides: vector loops, and accumulations without loops inside."""
    for statement in body:
        if isinstance(statement, For | Accumulate):
            if is_team_loop(statement):
                yield statement
            else:
                yield from team_loops(statement.body)


def _team(loops: list[For | Accumulate], width: int) -> int:
    bounds = [upper_bound(loop.extent) for loop in loops]
    known = [bound for bound in bounds if bound is not None]
    longest = max(known, default=0)
    if len(known) < len(bounds):
        return UNKNOWN_TEAM
    if longest <= FEW:
        return 1
    wanted = max(WARP, -(-longest // max(HELD, width)))
    return min(LARGEST_TEAM, 1 << (wanted - 1).bit_length())


def _part_of_warp(
    grid: tuple[For, ...], body: tuple[Statement, ...], loops: list[For | Accumulate], width: int
) -> int:
    """The threads of a short row: as many as have elements, so that several rows share a warp.

    Their threads go through the same code in step: every loop has the same extent in all rows, and
    no warp has rows that are there and others that are not. Vectors of one or two elements keep a
    warp, whose order of summation is the processor's.
    """
    extents = [each.extent for each in (*grid, *walk(body)) if isinstance(each, For | Accumulate)]
    if width <= 2 or any(extent.op != "const" for extent in extents):
        return WARP
    longest = max(int(loop.extent.detail) for loop in loops)
    team = max(2, 1 << (-(-longest // width) - 1).bit_length())
    rows = prod(int(loop.extent.detail) for loop in grid)
    return team if team < WARP and rows * team % WARP == 0 else WARP


def upper_bound(extent: Scalar) -> int | None:
    """The most that an extent can be; None where that is not known.

    >>> from weft.ir.scalars import index, minimum, size
    >>> upper_bound(minimum(const(64, INDEX), size("n") - index("i") * 64)), upper_bound(size("n"))
    (64, None)
    """
    if extent.op == "const":
        return max(0, int(extent.detail))
    bounds = [upper_bound(arg) for arg in extent.args if arg.dtype is INDEX]
    known = [bound for bound in bounds if bound is not None]
    if extent.op == "minimum":
        return min(known, default=None)
    if extent.op in ("select", "maximum") and len(known) == len(bounds):
        return max(known)
    return None


def steps_of(extent: Scalar, team: int, width: int) -> int | None:
    """How many vectors of a row each thread of a team takes; None where they are too many to hold.

    >>> steps_of(const(768, INDEX), 32, 8), steps_of(const(50304, INDEX), 1024, 4)
    (3, None)
    """
    bound = upper_bound(extent)
    if bound is None:
        return None
    steps = -(-bound // (team * width))
    return steps if steps * width <= HELD else None


def _own_index(buffer: Buffer, body: tuple[Statement, ...], team: int, width: int) -> Scalar | None:
    """The index that all accesses of a buffer are at, in loops beside each other; None if not."""
    for statement in body:
        if not isinstance(statement, For) or statement.is_vector:
            continue
        if has_loops(statement.body) and touches(buffer, (statement,)):
            others = tuple(s for s in body if s is not statement)
            inside = _own_index(buffer, statement.body, team, width)
            return None if touches(buffer, others) else inside
    indices: set[Scalar] = set()
    extents: set[Scalar] = set()
    for statement in body:
        if not touches(buffer, (statement,)):
            continue
        if not isinstance(statement, For | Accumulate) or has_loops(statement.body):
            return None
        if isinstance(statement, For) and not statement.is_vector:
            return None
        if not indices and buffer in buffers_read((statement,)):
            return None  # what an earlier iteration of a loop around has written
        if statement.extent.op != "const" or steps_of(statement.extent, team, width) is None:
            return None
        indices |= {statement.index, *_places(buffer, (statement,))}
        extents.add(statement.extent)
    return indices.pop() if len(indices) == 1 and len(extents) == 1 else None


def _places(buffer: Buffer, body: tuple[Statement, ...]) -> set[Scalar]:
    """The offsets at which a buffer is read and written; a condition makes a place of its own."""
    found: set[Scalar] = set()
    for statement in walk(body):
        if isinstance(statement, Store) and statement.buffer is buffer:
            found |= {statement.offset} if statement.where is None else {statement.where}
        for root in expressions(statement):
            for x in nodes_in_order(root):
                if x.op == "load" and x.detail is buffer:
                    found |= set(x.args)
    return found


# --- widths --------------------------------------------------------------------------------------


def _element_width(grid: tuple[For, ...], body: tuple[Statement, ...]) -> int:
    loop = grid[-1]
    outer = frozenset(each.index for each in grid[:-1])
    # What all rows share is read seldom: it may take several loads where the rest takes one.
    width = _width([loop], ELEMENT_BYTES, frozenset() if has_loops(body) else outer)
    if len(grid) > 1:  # rows begin anew, so that they must consist of whole vectors
        while not multiple_of(loop.extent, width):
            width //= 2
    total = prod(int(each.extent.detail) if each.extent.op == "const" else ENOUGH for each in grid)
    while has_loops(body) and width > 1 and total // width < ENOUGH:
        width //= 2
    return width


def _row_width(loops: list[For | Accumulate]) -> int:
    width = _width(loops, ROW_BYTES)
    while not all(multiple_of(loop.extent, width) for loop in loops):
        width //= 2
    return width


def _width(
    loops: list[For | Accumulate] | list[For], most: int, rows: frozenset[Scalar] = frozenset()
) -> int:
    """How many neighbours a thread takes: those of aligned vectors of the widest dtype.

    With `rows`, only accesses that depend on one of these indices say how wide that is.
    """
    width = most
    some = False
    for loop in loops:
        for buffer, offset in accesses((loop,)):
            step = coefficient(offset, loop.index)
            if step is None or not is_const(step, 1):
                continue
            if not rows or offset.variables & rows:
                some = True
                width = min(width, max(1, most // buffer.dtype.itemsize))
            rest = at_zero(offset, loop.index)
            while not multiple_of(rest, width):
                width //= 2
    return width if some else 1
