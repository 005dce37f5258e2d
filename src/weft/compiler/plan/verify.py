"""Plans, verified: order, live ranges, places and sizes, found again from the launches alone.

>>> import weft as wf
>>> from weft.compiler.plan.planning import plan_program
>>> from weft.compiler.targets.cpu.target import CPU
>>> graph = wf.ir.trace(lambda x: wf.exp(x @ x).sum(axis=0) @ x, wf.spec("float32", (64, 64)))
>>> verify_plan(plan_program(graph, CPU), {})
"""

from __future__ import annotations

from collections import Counter

import numpy as np

from weft.compiler.plan.launch import Kind, Launch, Sizes, Value, bytes_of
from weft.compiler.plan.program_plan import ProgramPlan
from weft.core.errors import MiscompiledError
from weft.ir.graph import Variable
from weft.runtime.memory import MemoryPlan


def verify_plan(program: ProgramPlan, sizes: Sizes) -> None:
    """Raise `MiscompiledError` where a launch reads what is not there, or memory is shared wrongly.

    A value lives from the launch that first touches it to the last one. What is made by the
    launches that run once, and outputs that the plan holds, live to the end.
    """
    _verify_order(program, sizes)
    plan = program.planner.plan_for(sizes)
    ranges = _live_ranges(program, plan)
    _verify_sizes(program, plan, ranges, sizes)
    _verify_places(program, plan, ranges, sizes)
    for part in (p for each in program.launches for p in each.nested_launches() if p.blocks):
        _verify_scratch(part, sizes)
    for inner in program.inner_plans:
        verify_plan(inner, sizes)


def _verify_order(program: ProgramPlan, sizes: Sizes) -> None:
    """Every value is written before it is read, and launches that run as one do not wait."""
    there: set[Value] = {program.root(variable) for variable in program.graph.inputs}
    for launch in program.launches:
        for value in _read_values(launch, program):
            if value not in there:
                raise misbehaviour(launch, f"{value.type} is read before it is written", sizes)
        writes = [{program.root(value) for value in each.writes} for each in launch.members]
        writers = Counter(value for own in writes for value in own)
        for member, own in zip(launch.members, writes, strict=True):
            if any(writers[value] > (value in own) for value in _read_values(member, program)):
                raise misbehaviour(launch, "a member reads what another one writes", sizes)
        there |= {program.root(value) for value in launch.writes}
    for atom in program.graph.outputs:
        root = program.root(atom)
        if isinstance(root, Variable) and root not in there:
            raise misbehaviour(program.launches[-1], f"{atom.type} is never written", sizes)


def _read_values(launch: Launch, program: ProgramPlan) -> set[Value]:
    """What a launch reads of others: not its results, unless it goes on with them, nor scratch."""
    own = {program.root(value) for value in launch.writes}
    own -= {program.root(value) for value in launch.updates}
    if launch.nested is not None:
        own.add(launch.nested.scratch)
    values = {*map(program.root, launch.values)} - own
    return {value for value in values if isinstance(value, Variable)}


def _live_ranges(program: ProgramPlan, plan: MemoryPlan) -> dict[Variable, tuple[int, int]]:
    """The first and the last launch that touches each planned value."""
    planned = {
        value
        for value, slot in program.slots.items()
        if str(slot) in plan.offsets and isinstance(value, Variable)
    }
    end = len(program.launches)
    ranges: dict[Variable, tuple[int, int]] = {}
    for position, launch in enumerate(program.launches):
        for value in map(program.root, launch.values):
            if isinstance(value, Variable) and value in planned:
                ranges[value] = ranges.get(value, (position, 0))[0], position
    outputs = {program.root(atom) for atom in program.graph.outputs}
    for value, (first, last) in ranges.items():
        if value in outputs or first < program.once <= last:
            ranges[value] = first, end
    return ranges


def _verify_sizes(
    program: ProgramPlan, plan: MemoryPlan, ranges: dict[Variable, tuple[int, int]], sizes: Sizes
) -> None:
    scratch = {
        launch.nested.scratch: max(
            each.planner.plan_for(sizes).peak for each in launch.nested.plans
        )
        for launch in program.launches
        if launch.nested
    }
    for value, (first, _) in ranges.items():
        name = str(program.slots[value])
        needed = max(bytes_of(value.type, sizes), scratch.get(value, 0))
        inside = plan.offsets[name] >= 0 and plan.offsets[name] + needed <= plan.peak
        if plan.sizes[name] < needed or not inside:
            launch = program.launches[first]
            raise misbehaviour(launch, f"{value.type} has {plan.sizes[name]} bytes only", sizes)


def _verify_places(
    program: ProgramPlan, plan: MemoryPlan, ranges: dict[Variable, tuple[int, int]], sizes: Sizes
) -> None:
    values = [v for v in ranges if plan.sizes[str(program.slots[v])]]
    names = [str(program.slots[v]) for v in values]
    first, last = np.array([ranges[v] for v in values], np.int64).reshape(-1, 2).T
    begin = np.array([plan.offsets[name] for name in names], np.int64)
    end = begin + np.array([plan.sizes[name] for name in names], np.int64)
    for place in range(len(values)):
        lives = (first <= last[place]) & (last >= first[place])
        meets = (begin < end[place]) & (end > begin[place])
        for other in np.flatnonzero(lives & meets).tolist():
            if other > place and not _is_replaced(program, plan, values[place], values[other]):
                launch = program.launches[max(first[place], first[other])]
                pair = f"{values[place].type} and {values[other].type}"
                raise misbehaviour(launch, f"{pair} share memory while both live", sizes)


def _verify_scratch(fused: Launch, sizes: Sizes) -> None:
    """The rows of a block, of all values that only a row fusion knows, lie side by side."""
    blocks = fused.blocks
    assert blocks is not None
    height = blocks.height(sizes)
    places, used = blocks.places(sizes, height)
    held = sorted((start, start + row * height) for start, row in places.values())
    limits = [start for start, _ in held[1:]] + [used]
    if any(end > limit for (_, end), limit in zip(held, limits, strict=False)):
        raise misbehaviour(fused, "rows of a block reach beyond their scratch memory", sizes)


def _is_replaced(program: ProgramPlan, plan: MemoryPlan, one: Variable, other: Variable) -> bool:
    """Whether one of two values takes the other's place, as the launch that makes it allows."""
    slots = program.slots
    for stored, operand in ((one, other), (other, one)):
        if plan.reused.get(str(slots[stored])) != str(slots[operand]):
            continue
        touching = [
            n for n, c in enumerate(program.launches) if stored in map(program.root, c.values)
        ]
        reading = [
            n for n, c in enumerate(program.launches) if operand in map(program.root, c.values)
        ]
        launch = program.launches[touching[0]]
        allowed = [(program.root(a), program.root(b)) for a, b in launch.in_place]
        roots = [program.root(v) for v in launch.values]
        is_alone = roots.count(stored) == 1 or launch.kind is Kind.ROW_FUSION
        is_once = is_alone and roots.count(operand) == 1
        return reading[-1] == touching[0] and (stored, operand) in allowed and is_once
    return False


def misbehaviour(launch: Launch, problem: str, sizes: Sizes) -> MiscompiledError:
    """The error of a launch that breaks the rules of memory."""
    node = launch.node or launch.checked
    return MiscompiledError(
        "check",
        f"the launch {launch.name} breaks the rules of memory: {problem}",
        expected="launches that touch what the plan gives them, and nothing else",
        got={f"value {n}": value.type for n, value in enumerate(launch.values)} | dict(sizes),
        fix="wf.settings.changed(compiler=False) runs by reference; please report this program",
        at=node.location if node is not None else None,
    )
