"""Launches: the calls of a section in the order of the schedule, ensembles as one call each.

What a launch stores may take the place of a value that it reads for the last time: in the section's
memory, and, where the caller lets go of it, in an input's own array.

>>> import weft as wf
>>> from weft.compiler.targets.cpu.runtime.program import Program
>>> kinds = wf.spec("float32", (8,)), wf.spec("float32", (9,))
>>> program = Program(wf.ir.trace(lambda x, y: (x * 2, y * 2), *kinds))
>>> [call.name for call in program.calls], program.donations
(['k0×2'], {0: (0,), 1: (1,)})
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from weft.compiler.plan.schedule import Task, schedule
from weft.compiler.targets.cpu.runtime.copies import copy_address
from weft.compiler.targets.cpu.runtime.grouped_launch import (
    Member,
    chunk_count,
    chunks_at_once,
    ensemble_address,
    table,
)
from weft.core.dimensions import symbols_in
from weft.core.shapes import size, substitute
from weft.ir.graph import Graph, Literal, Variable

if TYPE_CHECKING:
    from weft.compiler.plan.launch import Call

Value = Variable | Literal
Sizes = Mapping[str, int]
Root = Callable[[Value], Value]

USUAL = 128
"""What a size that is not known is taken for, to weigh one order against another."""


def launches(calls: Sequence[Call], graph: Graph, root: Root) -> list[Call]:
    """The calls in the order in which they run; those that run as one are one call."""
    outside = {root(value) for value in (*graph.inputs, *graph.outputs)}
    sizes = _Usual(calls)
    bytes_of: dict[Hashable, int] = {
        value: sizes.bytes(value)
        for call in calls
        for value in map(root, call.values)
        if isinstance(value, Variable) and value not in outside
    }
    inputs = set(graph.inputs)
    tasks = [_task(call, root, sizes, inputs) for call in calls]
    return [
        _joined([calls[number] for number in launch], root) for launch in schedule(tasks, bytes_of)
    ]


class _Usual:
    """Sizes for the symbols in a program's types."""

    def __init__(self, calls: Sequence[Call]) -> None:
        dims = {dim for call in calls for value in call.values for dim in value.type.shape}
        names = sorted({name for dim in dims for name in symbols_in(dim)})
        self.binding = dict.fromkeys(names, USUAL)

    def bytes(self, value: Variable) -> int:
        return int(substitute(size(value.type.shape), self.binding)) * value.type.dtype.itemsize


def _task(call: Call, root: Root, sizes: _Usual, inputs: set[Variable]) -> Task:
    writes = tuple(root(value) for value in call.writes)
    if call.nested is not None:
        writes = (*writes, call.nested.scratch)
    begun = {root(value) for value in call.updates}
    reads = tuple(
        v
        for v in map(root, call.values)
        if isinstance(v, Variable) and (v not in writes or v in begun)
    )
    work = 1.0 if call.work is None else call.work(sizes.binding)
    replaces: dict[Hashable, int] = {v: sizes.bytes(v) for _, v in call.in_place if v in inputs}
    return Task(reads, writes, work, call.work is not None, is_pinned(call), replaces)


def is_pinned(call: Call) -> bool:
    """Whether a call has an effect or may fail."""
    return call.node is not None or call.checked is not None or call.nested is not None


def is_copy(call: Call) -> bool:
    """Whether a call does nothing where its result has taken its operand's place."""
    return call.function == copy_address()


# --- ensembles -----------------------------------------------------------------------------------


def _joined(calls: Sequence[Call], root: Root) -> Call:
    """Calls that run as one; one call as it is."""
    if len(calls) == 1:
        return calls[0]

    def members(sizes: Sizes) -> list[Member]:
        return [_member(call, sizes) for call in calls]

    return replace(
        calls[0],
        name=_name(calls),
        function=ensemble_address(),
        values=tuple(value for call in calls for value in call.values),
        writes=tuple(value for call in calls for value in call.writes),
        sizes=lambda sizes: table(members(sizes)),
        extent=lambda sizes: chunk_count(members(sizes)),
        grain=lambda sizes: chunks_at_once(members(sizes)),
        in_place=tuple(pair for call in calls for pair in call.in_place),
        by_rows={},
        stages=(),
        members=tuple(calls),
    )


def _member(call: Call, sizes: Sizes) -> Member:
    return Member(
        call.function,
        len(call.values),
        tuple(call.sizes(sizes)),
        call.extent(sizes),
        max(1, call.grain(sizes)),
    )


def _name(calls: Sequence[Call]) -> str:
    """The name of the first of each kind, and how many of it there are."""
    first: dict[int, str] = {}
    for call in calls:
        first.setdefault(call.function, call.name)
    counts = Counter(call.function for call in calls)
    parts = [name if counts[f] == 1 else f"{name}×{counts[f]}" for f, name in first.items()]
    return "+".join(parts) if len(parts) <= 3 else f"{len(calls)} kernels"


# --- in place ------------------------------------------------------------------------------------


def places(calls: Sequence[Call], root: Root) -> dict[Variable, list[Variable]]:
    """For each stored value the values whose place it may take, as far as the kernels are asked.

    They are read by the call that stores it at its own place only, and by no later call.
    """
    last: dict[Value, int] = {}
    for position, call in enumerate(calls):
        for value in call.values:
            last[root(value)] = position
    found: dict[Variable, list[Variable]] = {}
    for position, call in enumerate(calls):
        for stored, operand in _free_pairs(call, root):
            if last[operand] == position:
                found.setdefault(stored, []).append(operand)
    return found


def _free_pairs(call: Call, root: Root) -> Iterator[tuple[Variable, Variable]]:
    """Pairs of a stored value and an operand that nothing else in the call reads."""
    if not call.in_place:
        return
    uses = Counter(root(value) for value in call.values)
    for stored, operand in call.in_place:
        one, other = root(stored), root(operand)
        if not isinstance(other, Variable):  # a reshaped constant, which stays
            continue
        if uses[one] == 1 and uses[other] == 1 and one is stored:
            yield stored, other


def reused(
    found: Mapping[Variable, Sequence[Variable]], within: Callable[[Variable], bool]
) -> dict[Variable, Variable]:
    """A place for each stored value that has one among the values asked for, each given once."""
    chosen: dict[Variable, Variable] = {}
    taken: set[Variable] = set()
    for stored, operands in found.items():
        free = [v for v in operands if within(v) and v not in taken]
        if within(stored) and free:
            chosen[stored] = free[0]
            taken.add(free[0])
    return chosen


def donations(calls: Sequence[Call], graph: Graph, root: Root) -> dict[int, tuple[int, ...]]:
    """For each output the inputs whose array it may be written to, by position.

    Nothing may fail once it is written.
    """
    safe = 1 + max([p for p, call in enumerate(calls) if is_pinned(call)], default=-1)
    early = {value for call in calls[:safe] if not is_copy(call) for value in call.writes}
    late = {value for call in calls[safe:] for value in call.writes} - early
    found = replacing(calls, graph, root)
    return {output: given for output, given in found.items() if graph.outputs[output] in late}


def replacing(calls: Sequence[Call], graph: Graph, root: Root) -> dict[int, tuple[int, ...]]:
    """For each output the inputs whose place it may take while the calls run, by position.

    The input must not be an output itself, and no other output may share the memory.
    """
    outputs = Counter(root(atom) for atom in graph.outputs)
    inputs = {variable: position for position, variable in enumerate(graph.inputs)}
    found = places(calls, root)
    chosen: dict[int, tuple[int, ...]] = {}
    for position, atom in enumerate(graph.outputs):
        if isinstance(atom, Variable) and outputs[atom] == 1:
            free = [v for v in found.get(atom, ()) if v in inputs and v not in outputs]
            given = tuple(inputs[v] for v in free if v.type == atom.type)
            chosen |= {position: given} if given else {}
    return chosen
