"""Sums down columns inside of the kernel that goes over the rows: what is read is read once.

The gradient of a layer norm is a kernel over rows, and beside it the gradients of its weight and
bias are sums down columns of the same values, in chunks of rows. Here such a kernel takes a chunk
of rows, adds each row to sums in scratch memory, and stores the sums behind the last row. A chunk
is shared by a few *teams*, the iterations of a loop of their own: each adds up its rows in their
order, and the teams' sums are added as a tree. So the order depends on the sizes only.

>>> import weft as wf
>>> from weft.compiler.plan.planning import plan_program
>>> from weft.compiler.targets.cuda.target import CUDA
>>> def f(x):
...     y = x / (1.0 + (x * x).sum(axis=-1, keepdims=True))
...     return y, y.sum(axis=0)
>>> plan = plan_program(wf.ir.trace(f, wf.spec("float32", (16384, 64))), CUDA)
>>> [launch.name for launch in plan.launches]
['k0_k1', 'k2']
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from weft.compiler.fusion.long_sums import substitute_scalars, substitute_statement
from weft.compiler.plan.launch import Kind, Launch, Root, Value
from weft.compiler.targets.limits import PlanLimits
from weft.core.dtypes import INDEX, float32
from weft.core.records import frozen
from weft.ir.loops import Accumulate, For, Kernel, Let, Scratch, Statement, Store, evaluate
from weft.ir.scalars import Buffer, Scalar, coefficient, const, index, nodes_in_order

NEAR = 8
"""How many launches may lie between rows and the sums down their columns: a bound on the search."""


@frozen
class _ColumnSums:
    """A launch that sums chunks of rows, and what it sums.

    Each sum is the buffer that it is stored to, and its value in a row, by `ROW` and `COLUMN`.
    """

    launch: Launch
    chunks: int
    rows: int
    columns: int
    sums: tuple[tuple[Buffer, Scalar], ...]


ROW, COLUMN = index("row"), index("column")
"""The place of an element in the values of column sums."""


def fuse_column_sums(launches: Sequence[Launch], root: Root, limits: PlanLimits) -> list[Launch]:
    """The launches, with sums down columns made by the launches that go over the rows."""
    found = list(launches)
    for launch in launches if limits.column_sum_teams else ():
        rows = _row_loop(launch)
        if rows is None or launch not in found:
            continue
        here = found.index(launch)
        near = found[max(0, here - NEAR) : here + NEAR + 1]
        chosen: list[_ColumnSums] = []
        for other in near:
            sums = _column_sums(other) if other is not launch else None
            if sums is not None and _fits(rows, launch, [*chosen, sums], found, root, limits):
                chosen.append(sums)
        if chosen:
            place = _first_place(launch, chosen, found)
            parts = {launch, *[each.launch for each in chosen]}
            before = [each for each in found[:place] if each not in parts]
            after = [each for each in found[place:] if each not in parts]
            found = [*before, _merge(rows, launch, chosen, root, limits.column_sum_teams), *after]
    return found


def _fits(
    rows: For,
    launch: Launch,
    chosen: Sequence[_ColumnSums],
    launches: Sequence[Launch],
    root: Root,
    limits: PlanLimits,
) -> bool:
    """Whether a launch over rows can make these sums: of its rows, at the place of the first."""
    first, teams = chosen[0], limits.column_sum_teams
    columns = _columns(rows.body)
    count = sum(len(each.sums) for each in chosen)
    # [sums, teams, columns]: each team holds what it has summed of its own rows.
    if count * teams * (columns or 0) * float32.itemsize > limits.column_sum_bytes:
        return False
    touched = {root(value) for value in launch.values}
    for each in chosen:
        if (each.rows, each.columns) != (first.rows, columns) or each.rows % teams:
            return False
        # The chunks must be of the very rows that the launch goes over.
        if each.chunks * each.rows != rows.extent.detail:
            return False
        if not any(root(v) in touched and v not in each.launch.writes for v in each.launch.values):
            return False
    own = {root(value) for value in launch.writes}
    read = {root(v) for each in (launch, *[x.launch for x in chosen]) for v in _read_values(each)}
    # All run at the place of the first: nothing that they read may be written from there on.
    later = launches[_first_place(launch, chosen, launches) :]
    return (read - own).isdisjoint(root(value) for each in later for value in each.writes)


def _first_place(launch: Launch, chosen: Sequence[_ColumnSums], launches: Sequence[Launch]) -> int:
    return min(launches.index(each) for each in (launch, *[x.launch for x in chosen]))


def _read_values(launch: Launch) -> list[Value]:
    return [value for value in launch.values if value not in launch.writes]


# --- what kernels look like ----------------------------------------------------------------------


def _is_plain(launch: Launch) -> bool:
    """Whether a launch is a kernel of known sizes that nothing else is known of."""
    is_kernel = launch.kind is Kind.LOOP and isinstance(launch.kernel, Kernel)
    return is_kernel and not (launch.is_pinned or launch.updates or launch.numbers({}))


def _row_loop(launch: Launch) -> For | None:
    """The loop of a kernel over rows that accumulates along them; None where it is another."""
    kernel = launch.kernel
    if not isinstance(kernel, Kernel) or kernel.sizes or not _is_plain(launch):
        return None
    if len(kernel.body) != 1 or not isinstance(kernel.body[0], For):
        return None
    loop = kernel.body[0]
    is_rows = loop.kind == "parallel" and loop.extent.op == "const"
    return loop if is_rows and _columns(loop.body) is not None else None


def _columns(body: Sequence[Statement]) -> int | None:
    """The extent of all loops of a row, of which one accumulates; None where they differ."""
    extents: set[Scalar] = set()
    sums = False
    for each in body:
        match each:
            case Accumulate(extent=extent, body=()):
                extents.add(extent)
                sums = True
            case For(extent=extent, kind="vector", body=inner):
                if not all(isinstance(statement, Let | Store) for statement in inner):
                    return None
                extents.add(extent)
            case Let() | Store():
                pass
            case _:
                return None
    only = extents.pop() if len(extents) == 1 else None
    return int(only.detail) if sums and only is not None and only.op == "const" else None


def _column_sums(launch: Launch) -> _ColumnSums | None:
    """The sums of a kernel that sums chunks of rows of float32; None where it is another."""
    kernel = launch.kernel
    if not isinstance(kernel, Kernel) or kernel.sizes or kernel.scratch or not _is_plain(launch):
        return None
    match kernel.body:
        case (For(i, chunks, (For(j, columns, body, "vector"),), "parallel"),):
            pass
        case _:
            return None
    loops = [each for each in body if isinstance(each, Accumulate)]
    extents = {chunks, columns, *[loop.extent for loop in loops]}
    if len(extents) > 3 or any(extent.op != "const" for extent in extents):
        return None
    if not loops or len({loop.extent for loop in loops}) > 1:
        return None
    values: dict[Scalar, Scalar | None] = {}
    sums: list[tuple[Buffer, Scalar]] = []
    for each in body:
        if isinstance(each, Accumulate) and not each.body:
            for update in each.updates:
                is_sum = update.combine == "add" and update.variable.dtype is float32
                is_whole = is_sum and update.init is None and update.times is None
                value = _by_row(update.value, i, each, j) if is_whole else None
                values[update.variable] = value
        elif isinstance(each, Store):
            value = values.get(each.value)
            is_own = each.offset is j + i * int(columns.detail) and each.where is None
            if value is None or not is_own:
                return None
            sums.append((each.buffer, value))
        else:
            return None
    rows = int(loops[0].extent.detail)
    if not sums or len(sums) != len(launch.writes):
        return None
    return _ColumnSums(launch, int(chunks.detail), rows, int(columns.detail), tuple(sums))


def _by_row(value: Scalar, chunk: Scalar, loop: Accumulate, column: Scalar) -> Scalar | None:
    """What is summed, by `ROW` and `COLUMN`; None where it depends on the chunk in another way."""
    rows, known = int(loop.extent.detail), dict[Scalar, Scalar]()
    for x in nodes_in_order(value):
        if x.op != "load":
            continue
        offset = x.args[0]
        steps = [coefficient(offset, each) for each in (chunk, loop.index, column)]
        if offset.variables - {chunk, loop.index, column}:
            return None
        if any(step is None or step.op != "const" for step in steps):
            return None
        along_chunk, along_row, along_column = (int(step.detail) for step in steps if step)
        zero = const(0, INDEX)
        start = substitute_scalars(offset, {chunk: zero, loop.index: zero, column: zero})
        is_first = evaluate(start, {}) == 0
        if along_chunk != rows * along_row or along_column not in (0, 1) or not is_first:
            return None
        known[x] = x.detail[_place(along_row, along_column)]
    found = substitute_scalars(value, known)
    return None if found.variables - {ROW, COLUMN} else found


def _place(along_row: int, along_column: int) -> Scalar:
    """An offset as kernels over rows write it, so that what they have read is known again."""
    row = ROW if along_row == 1 else ROW * along_row
    if along_column == 0:
        return row if along_row else const(0, INDEX)
    return COLUMN + row if along_row else COLUMN


# --- the kernel of both --------------------------------------------------------------------------


def _merge(
    rows: For, launch: Launch, chosen: Sequence[_ColumnSums], root: Root, teams: int
) -> Launch:
    """One launch over chunks of rows, with the sums down their columns."""
    kernel = launch.kernel
    assert isinstance(kernel, Kernel)
    buffers = list(kernel.buffers)
    values = list(launch.values[: len(buffers)])
    known = {root(value): buffer for value, buffer in zip(values, buffers, strict=True)}
    sums: list[tuple[Buffer, Scalar]] = []
    for each in chosen:
        own = each.launch.kernel
        assert isinstance(own, Kernel)
        renamed: dict[Buffer, Buffer] = {}
        for value, buffer in zip(each.launch.values, own.buffers, strict=False):
            if root(value) not in known:
                known[root(value)] = replace(buffer, name=f"c{len(buffers)}")
                buffers.append(known[root(value)])
                values.append(value)
            renamed[buffer] = known[root(value)]
        sums += [(renamed[buffer], _with_buffers(x, renamed)) for buffer, x in each.sums]
    written = [value for each in chosen for value in each.launch.writes]
    read = {root(value) for each in chosen for value in _read_values(each.launch)}
    column = next(each.index for each in rows.body if isinstance(each, For | Accumulate))
    body, scratch = _chunk_body(rows, column, chosen[0], sums, teams)
    together = replace(
        kernel,
        name="_".join([kernel.name, *[each.launch.name for each in chosen]]),
        buffers=tuple(buffers),
        body=body,
        scratch=(*kernel.scratch, *scratch),
    )
    return replace(
        launch,
        name=together.name,
        kernel=together,
        values=tuple(values),
        writes=(*launch.writes, *written),
        in_place=tuple([pair for pair in launch.in_place if root(pair[1]) not in read]),
        extent=lambda sizes: chosen[0].chunks,
        by_rows={},
    )


def _with_buffers(value: Scalar, renamed: dict[Buffer, Buffer]) -> Scalar:
    loads = [x for x in nodes_in_order(value) if x.op == "load"]
    return substitute_scalars(value, {x: renamed[x.detail][x.args[0]] for x in loads})


def _chunk_body(
    rows: For,
    column: Scalar,
    first: _ColumnSums,
    sums: Sequence[tuple[Buffer, Scalar]],
    teams: int,
) -> tuple[tuple[Statement, ...], list[Scratch]]:
    """The loop over chunks, and the memory in which teams add up their rows."""
    chunk, team, turn = index("chunk"), index("team"), index("turn")
    columns, each_team = first.columns, first.rows // teams
    row = chunk * first.rows + team * each_team + turn
    width = const(columns, INDEX)
    scratch = [
        Scratch(Buffer(f"sum{number}", float32, "scratch"), const(teams * columns, INDEX))
        for number in range(len(sums))
    ]
    own = column + team * columns
    place = {ROW: row, COLUMN: column}
    begins = [Store(each.buffer, own, const(0.0, float32)) for each in scratch]
    adds = [
        Store(each.buffer, own, each.buffer[own] + substitute_scalars(value, place))
        for each, (_, value) in zip(scratch, sums, strict=True)
    ]
    of_row = [substitute_statement(statement, rows.index, row) for statement in rows.body]
    turns = For(turn, const(each_team, INDEX), (*of_row, For(column, width, tuple(adds), "vector")))
    of_team = (For(column, width, tuple(begins), "vector"), turns)
    ends = [
        Store(buffer, column + chunk * columns, _tree([each.buffer[column + k * columns]
                                                       for k in range(teams)]))
        for each, (buffer, _) in zip(scratch, sums, strict=True)
    ]  # fmt: skip
    inside = (For(team, const(teams, INDEX), of_team), For(column, width, tuple(ends), "vector"))
    return (For(chunk, const(first.chunks, INDEX), inside, "parallel"),), scratch


def _tree(terms: Sequence[Scalar]) -> Scalar:
    """The terms added up, halves first."""
    if len(terms) == 1:
        return terms[0]
    half = len(terms) // 2
    return _tree(terms[:half]) + _tree(terms[half:])
