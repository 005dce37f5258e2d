"""Memory plans, verified: live ranges, places and sizes, found again from the launches alone.

>>> import weft as wf
>>> from weft.compiler.targets.cpu.runtime.program import Program
>>> graph = wf.ir.trace(lambda x: wf.exp(x @ x).sum(axis=0) @ x, wf.spec("float32", (64, 64)))
>>> verify_plan(Program(graph), {})
"""

from __future__ import annotations

from typing import Any

import numpy as np

from weft.compiler.plan.launch import Call, Sizes, bytes_of
from weft.compiler.plan.program_plan import Section
from weft.compiler.targets.cpu.checking.isolated import misbehaviour
from weft.compiler.targets.cpu.runtime.row_blocks import ENTRY, STAGE
from weft.ir.graph import Variable
from weft.runtime.memory import MemoryPlan

Array = np.ndarray[Any, Any]


def verify_plan(section: Section, sizes: Sizes) -> None:
    """Raise `MiscompiledError` where values that live at once share memory, or one has too little.

    A value lives from the launch that first touches it to the last one. What is made by the
    launches that run once, and outputs that the section holds, live to the end.
    """
    plan = section.planner.at(sizes)
    ranges = _live_ranges(section, plan)
    _verify_sizes(section, plan, ranges, sizes)
    _verify_places(section, plan, ranges, sizes)
    for part in (part for call in section.calls for part in call.parts() if part.stages):
        _verify_scratch(part, sizes)
    for inner in section.inner:
        verify_plan(inner, sizes)


def _live_ranges(section: Section, plan: MemoryPlan) -> dict[Variable, tuple[int, int]]:
    """The first and the last launch that touches each planned value."""
    planned = {
        value
        for value, slot in section.slots.items()
        if str(slot) in plan.offsets and isinstance(value, Variable)
    }
    end = len(section.calls)
    ranges: dict[Variable, tuple[int, int]] = {}
    for position, call in enumerate(section.calls):
        for value in map(section.root, call.values):
            if isinstance(value, Variable) and value in planned:
                ranges[value] = ranges.get(value, (position, 0))[0], position
    outputs = {section.root(atom) for atom in section.graph.outputs}
    for value, (first, last) in ranges.items():
        if value in outputs or first < section.once <= last:
            ranges[value] = first, end
    return ranges


def _verify_sizes(
    section: Section, plan: MemoryPlan, ranges: dict[Variable, tuple[int, int]], sizes: Sizes
) -> None:
    scratch = {
        call.nested.scratch: max(each.planner.at(sizes).peak for each in call.nested.sections)
        for call in section.calls
        if call.nested
    }
    for value, (first, _) in ranges.items():
        name = str(section.slots[value])
        needed = max(bytes_of(value.type, sizes), scratch.get(value, 0))
        inside = plan.offsets[name] >= 0 and plan.offsets[name] + needed <= plan.peak
        if plan.sizes[name] < needed or not inside:
            call = section.calls[first]
            raise misbehaviour(call, f"{value.type} has {plan.sizes[name]} bytes only", sizes)


def _verify_places(
    section: Section, plan: MemoryPlan, ranges: dict[Variable, tuple[int, int]], sizes: Sizes
) -> None:
    values = [v for v in ranges if plan.sizes[str(section.slots[v])]]
    names = [str(section.slots[v]) for v in values]
    first, last = np.array([ranges[v] for v in values], np.int64).reshape(-1, 2).T
    begin = np.array([plan.offsets[name] for name in names], np.int64)
    end = begin + np.array([plan.sizes[name] for name in names], np.int64)
    for place in range(len(values)):
        lives = (first <= last[place]) & (last >= first[place])
        meets = (begin < end[place]) & (end > begin[place])
        for other in np.flatnonzero(lives & meets).tolist():
            if other > place and not _is_replaced(section, plan, values[place], values[other]):
                call = section.calls[max(first[place], first[other])]
                pair = f"{values[place].type} and {values[other].type}"
                raise misbehaviour(call, f"{pair} share memory while both live", sizes)


def _verify_scratch(chain: Call, sizes: Sizes) -> None:
    """The rows of a block, of all values that only a chain knows, lie side by side in scratch."""
    _, _, height, used, count, *rest = chain.sizes(sizes)
    entries = np.array(rest[STAGE * len(chain.stages) :][: ENTRY * count], np.int64)
    number, place, wide = entries.reshape(-1, ENTRY).T
    local = zip(number, place, wide, strict=True)
    held = sorted({(start, start + row * height) for given, start, row in local if given < 0})
    limits = [start for start, _ in held[1:]] + [used]
    if any(end > limit for (_, end), limit in zip(held, limits, strict=False)):
        raise misbehaviour(chain, "rows of a block reach beyond their scratch memory", sizes)


def _is_replaced(section: Section, plan: MemoryPlan, one: Variable, other: Variable) -> bool:
    """Whether one of two values takes the other's place, as the launch that makes it allows."""
    slots = section.slots
    for stored, operand in ((one, other), (other, one)):
        if plan.reused.get(str(slots[stored])) != str(slots[operand]):
            continue
        touching = [n for n, c in enumerate(section.calls) if stored in map(section.root, c.values)]
        reading = [n for n, c in enumerate(section.calls) if operand in map(section.root, c.values)]
        call = section.calls[touching[0]]
        allowed = [(section.root(a), section.root(b)) for a, b in call.in_place]
        roots = [section.root(v) for v in call.values]
        is_once = roots.count(stored) == roots.count(operand) == 1
        return reading[-1] == touching[0] and (stored, operand) in allowed and is_once
    return False
