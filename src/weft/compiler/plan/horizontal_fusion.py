"""Horizontal fusion: launches in the order of the schedule, those that wait for nothing as one.

A grouped launch has one range: the chunks of all its members, one member after the other. A chunk's
borders are those that it would have alone, so bits stay the same.

>>> import weft as wf
>>> from weft.compiler.targets.cpu.target import CPU
>>> from weft.compiler.plan.planning import plan_program
>>> kinds = wf.spec("float32", (8,)), wf.spec("float32", (9,))
>>> plan = plan_program(wf.ir.trace(lambda x, y: (x * 2, y * 2), *kinds), CPU)
>>> [member.name for member in plan.launches[0].members]
['k0', 'k1']
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Hashable, Sequence
from dataclasses import replace

from weft.compiler.plan.launch import Kind, Launch, Root, Sizes, Symbol, no_numbers
from weft.compiler.plan.schedule import Task, schedule
from weft.compiler.targets.limits import PlanLimits
from weft.core.dimensions import symbols_in
from weft.core.shapes import size, substitute
from weft.ir.graph import Graph, Variable

USUAL = 128
"""What a size that is not known is taken for, to weigh one order against another; a guess about
programs, not machines."""


def schedule_launches(
    launches: Sequence[Launch],
    graph: Graph,
    root: Root,
    limits: PlanLimits,
    late: Collection[Launch] = (),
) -> list[Launch]:
    """The launches in the order in which they run; those that run as one are one launch.

    late: those that run as one with each other only, because they wait for other processes.
    """
    outside = {root(value) for value in (*graph.inputs, *graph.outputs)}
    sizes = _UsualSizes(launches, graph)
    bytes_of: dict[Hashable, int] = {
        value: sizes.bytes(value)
        for launch in launches
        for value in map(root, launch.values)
        if isinstance(value, Variable) and value not in outside
    }
    inputs = set(graph.inputs)
    tasks = [
        replace(_task(launch, root, sizes, inputs), phase=int(launch in late))
        for launch in launches
    ]
    order = schedule(
        tasks,
        bytes_of,
        limits.filling_chunks,
        limits.filling_update_chunks,
        limits.gathered_bytes,
        limits.side_by_side,
    )
    return [_group_launches([launches[number] for number in numbers]) for numbers in order]


class _UsualSizes:
    """Sizes for the symbols in a program's types.

    Those of the graph count too: a kernel may go over values that no launch stores or reads.
    """

    def __init__(self, launches: Sequence[Launch], graph: Graph) -> None:
        values = [value for launch in launches for value in launch.values]
        values += [*graph.inputs, *(result for node in graph.nodes for result in node.results)]
        dims = {dim for value in values for dim in value.type.shape}
        names = sorted({name for dim in dims for name in symbols_in(dim)})
        self.binding = dict.fromkeys(names, USUAL)

    def bytes(self, value: Variable) -> int:
        return int(substitute(size(value.type.shape), self.binding)) * value.type.dtype.itemsize


def _task(launch: Launch, root: Root, sizes: _UsualSizes, inputs: set[Variable]) -> Task:
    writes = tuple(root(value) for value in launch.writes)
    # The scratch memory of an inner program counts as written: it is alive during the launch.
    if launch.nested is not None:
        writes = (*writes, launch.nested.scratch)
    begun = {root(value) for value in launch.updates}
    reads = tuple(
        v
        for v in map(root, launch.values)
        if isinstance(v, Variable) and (v not in writes or v in begun)
    )
    work = 1.0 if launch.work is None else launch.work(sizes.binding)
    replaces: dict[Hashable, int] = {v: sizes.bytes(v) for _, v in launch.in_place if v in inputs}
    return Task(reads, writes, work, launch.work is not None, launch.is_pinned, replaces)


def _group_launches(launches: Sequence[Launch]) -> Launch:
    """Launches that run as one; one launch as it is."""
    if len(launches) == 1:
        return launches[0]
    members = tuple(launches)
    return replace(
        launches[0],
        kind=Kind.GROUPED,
        name=_group_name(launches),
        kernel=("grouped",),
        values=tuple(value for launch in launches for value in launch.values),
        writes=tuple(value for launch in launches for value in launch.writes),
        numbers=no_numbers,
        extent=lambda sizes: sum(chunk_count(member, sizes) for member in members),
        grain=lambda sizes: _chunks_at_once(members, sizes),
        in_place=tuple(pair for launch in launches for pair in launch.in_place),
        updates=tuple(value for launch in launches for value in launch.updates),
        by_rows={},
        blocks=None,
        members=members,
    )


def chunk_size(launch: Launch, sizes: Sizes) -> int:
    """How many iterations a chunk of a launch has."""
    return max(1, launch.grain(sizes))


def chunk_count(launch: Launch, sizes: Sizes) -> int:
    """Into how many chunks the range of a launch is cut."""
    return -(-launch.extent(sizes) // chunk_size(launch, sizes))


def _chunks_at_once(members: Sequence[Launch], sizes: Sizes) -> int:
    """How many chunks a thread claims: many where they are small, all where one thread will do."""
    # `work` counts parts of chunks: many members with less than one chunk each are little work,
    # and claiming them one at a time would cost more than they do.
    work = sum(member.extent(sizes) / chunk_size(member, sizes) for member in members)
    chunks = sum(chunk_count(member, sizes) for member in members)
    return max(1, int(chunks / max(work, 1.0)))


def _group_name(launches: Sequence[Launch]) -> str:
    """The name of the first of each kind, and how many of it there are."""
    first: dict[Symbol, str] = {}
    for launch in launches:
        first.setdefault(launch.identity, launch.name)
    counts = Counter(launch.identity for launch in launches)
    parts = [name if counts[f] == 1 else f"{name}×{counts[f]}" for f, name in first.items()]
    return "+".join(parts) if len(parts) <= 3 else f"{len(launches)} kernels"
