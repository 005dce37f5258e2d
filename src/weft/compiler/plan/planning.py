"""Planning: from a graph to a plan, in stages, each a function from what is known so far.

>>> import weft as wf
>>> from weft.compiler.targets.cpu.target import CPU
>>> graph = wf.ir.trace(lambda x: wf.exp(x) * 2, wf.spec("float32", (3,)))
>>> [launch.name for launch in plan_program(graph, CPU).launches]
['k0']
"""

from __future__ import annotations

from collections.abc import Collection, Hashable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

import numpy as np

from weft.compiler.fusion.aliases import aliases_of, shares_memory
from weft.compiler.fusion.grouping import Group, Step, group
from weft.compiler.lowering.divided_reductions import divided_kernels
from weft.compiler.lowering.group_reuse import Signature
from weft.compiler.lowering.groups import Lowered, context_of, is_lowered, lower
from weft.compiler.lowering.node_reuse import Repeats
from weft.compiler.pipeline import (
    FUSION,
    LOWERING,
    MEMORY,
    ROW_FUSION,
    SCHEDULE,
    VERIFYING,
    last_passes,
    optimize_with_report,
)
from weft.compiler.plan.column_sums import fuse_column_sums
from weft.compiler.plan.control_flow import control_launch
from weft.compiler.plan.horizontal_fusion import USUAL, schedule_launches
from weft.compiler.plan.in_place import choose_places, donations, places, settled_outputs
from weft.compiler.plan.index_checks import mark_repeated_checks
from weft.compiler.plan.launch import (
    Kind,
    Launch,
    Root,
    Value,
    byte_count,
    continue_joins,
    kernel_launch,
    node_kernels_in_order,
    one,
)
from weft.compiler.plan.overlap import collectives_first, overlap_collectives
from weft.compiler.plan.program_plan import ProgramPlan, root_of, symbols_of
from weft.compiler.plan.row_fusion import fuse_rows
from weft.compiler.plan.stage_log import StageLog
from weft.compiler.plan.verify import verify_plan
from weft.compiler.targets.target import Target
from weft.core.settings import settings
from weft.core.shapes import size
from weft.ir.graph import Graph, GraphNode, Literal, Variable
from weft.ir.loop_verify import verify_kernel
from weft.runtime.memory import Lifetime, Planner


@dataclass(slots=True)
class WrittenKernels:
    """The kernels of groups and nodes that were written so far; plans for one target share them."""

    groups: dict[Hashable, tuple[Lowered, Signature]] = field(default_factory=dict)
    nodes: Repeats = field(default_factory=Repeats)


@dataclass(slots=True)
class _Shared:
    """What all plans of one program share."""

    target: Target
    written: WrittenKernels
    dry: bool
    """Whether kernels are written only, which is enough to plan memory."""
    log: StageLog
    error: Literal = field(default_factory=lambda: Literal(np.zeros(1, np.int32)))
    kernels: int = 0
    """How many kernels have a name."""


def plan_program(
    graph: Graph,
    target: Target,
    fixed: Collection[int] = (),
    draft: WrittenKernels | None = None,
) -> ProgramPlan:
    """The plan of a whole program; inputs at the positions `fixed` are expected to stay the same.

    A `draft` shares what is written with others, and nothing of it is compiled ahead.
    """
    if draft is None:
        target.prepare(graph)
    optimized, reports = optimize_with_report(graph, target)
    log = StageLog(reports)
    shared = _Shared(target, draft or WrittenKernels(), draft is not None, log)
    plan = plan_graph(optimized, shared, fixed=fixed)
    donated = donations(plan.launches, plan.graph, plan.root)
    settled = settled_outputs(plan.launches, plan.graph, plan.root)
    plan = replace(plan, donations=donated, settled_outputs=settled, reports=log.reports())
    if VERIFYING:
        verify_plan(plan, dict.fromkeys(symbols_of(plan.graph), USUAL))
    return plan


def plan_graph(
    graph: Graph,
    shared: _Shared,
    *,
    held: bool = False,
    fixed: Collection[int] = (),
    step: bool = False,
) -> ProgramPlan:
    """The plan of a graph: whole, or inside a loop or a choice."""
    log, limits = shared.log, shared.target.limits
    graph = log.run_passes(last_passes(shared.target), graph)
    aliases = aliases_of(graph)
    root = partial(root_of, aliases)
    start = log.begin()
    steps = group(graph, is_lowered, limits.fusion)
    groups = [each for each in steps if isinstance(each, Group)]
    fused = {"groups": len(groups), "nodes alone": len(steps) - len(groups)}
    log.end(FUSION, start, len(graph.nodes), len(steps), fused)
    chunk = limits.plan.step_chunk_operations if step else limits.plan.chunk_operations
    start = log.begin()
    lowered, launches = _select(graph, steps, shared, chunk)
    launches = mark_repeated_checks(fuse_column_sums(launches, root, limits.plan), graph)
    log.end(LOWERING, start, len(steps), len(launches), {"kernels": len(lowered)})
    first, rest = _split_preparation(launches, graph, fixed, root)
    read_later = [value for launch in rest for value in launch.values]
    once = _order(first, graph, root, shared, read_later)
    ordered = (*once, *_order(rest, graph, root, shared))
    start = log.begin()
    slots = _number_values(ordered, graph, root)
    lives = live_ranges(ordered, len(once), graph, root, slots, held)
    planner = Planner(lives)
    replacing = sum(life.reuses is not None for life in lives)
    log.end(MEMORY, start, len(slots), len(lives), {"in another's place": replacing})
    return ProgramPlan(
        shared.target, graph, tuple(steps), tuple(lowered), ordered, len(once), tuple(fixed),
        aliases, shared.error, planner, slots,
    )  # fmt: skip


# --- launches ------------------------------------------------------------------------------------


def _select(
    graph: Graph, steps: Sequence[Step], shared: _Shared, chunk: int
) -> tuple[list[Lowered], list[Launch]]:
    """The kernels of all steps, and the launches of what they and the target's own functions do."""
    written, limits = shared.written, shared.target.limits.lowering
    context = replace(context_of(graph, limits, steps), made=written.groups)
    kernels: list[Lowered] = []
    pairs: list[tuple[Step, Sequence[Lowered]]] = []
    for step in steps:
        lowered: Sequence[Lowered]
        if isinstance(step, Group):
            whole = lower(step, context, f"k{shared.kernels}")
            lowered = divided_kernels(whole, size(step.outer + step.inner), limits)
        elif shared.target.takes(step.node):
            lowered = ()
        else:
            lowered = written.nodes.kernels(step.node, context.producer, shared.error, limits)
        shared.kernels += len(lowered)
        kernels += lowered
        if not shared.dry:
            shared.target.begin([each.kernel for each in lowered])
        pairs.append((step, lowered))
    if VERIFYING:
        for each in kernels:
            verify_kernel(each.kernel)
    launches = [
        launch for step, lowered in pairs for launch in _launches(step, lowered, shared, chunk)
    ]
    return kernels, continue_joins(launches)


def _launches(
    step: Step, lowered: Sequence[Lowered], shared: _Shared, chunk: int
) -> Sequence[Launch]:
    """The launches of one step."""
    if lowered:
        own = [kernel_launch(step, each, chunk) for each in lowered]
        return node_kernels_in_order(own, lowered)
    assert not isinstance(step, Group)
    if shares_memory(step.node):
        return []
    own_launches = shared.target.launches(step.node, shared.error)
    if own_launches is not None:
        return own_launches

    def plan_inside(graph: Graph, **options: bool | Collection[int]) -> ProgramPlan:
        return plan_graph(graph, shared, **options)  # type: ignore[arg-type]

    return [control_launch(step.node, plan_inside) or _reference(step.node, shared.error)]


def _reference(node: GraphNode, error: Literal) -> Launch:
    """A call back into Python, for a primitive without a lowering."""
    shown = (*node.operands, *node.results)
    return Launch(
        Kind.REFERENCE, node.primitive.name, ("reference",), (*shown, error), node.results,
        lambda sizes: [len(shown)], one, one, node,
    )  # fmt: skip


def _split_preparation(
    launches: Sequence[Launch], graph: Graph, fixed: Collection[int], root: Root
) -> tuple[list[Launch], list[Launch]]:
    """The launches that read nothing but fixed inputs, and the others."""
    known: set[Value] = {graph.inputs[position] for position in fixed}
    outputs = {root(v) for v in graph.outputs}
    outputs |= {root(v) for launch in launches for v in launch.updates}  # begun anew each time
    first: list[Launch] = []
    for launch in launches if fixed else ():
        writes = {root(v) for v in launch.writes}
        read = {root(v) for v in launch.values} - writes
        changes = any(isinstance(v, Variable) and v not in known for v in read)
        if not changes and outputs.isdisjoint(writes) and not launch.is_pinned:
            known |= writes
            first.append(launch)
    prepared = set(first)
    return first, [launch for launch in launches if launch not in prepared]


def _order(
    launches: Sequence[Launch],
    graph: Graph,
    root: Root,
    shared: _Shared,
    read_later: Sequence[Value] = (),
) -> list[Launch]:
    """Launches fused by rows, in the order of the schedule; others read what is read later."""
    log, limits = shared.log, shared.target.limits.plan
    start = log.begin()
    fused = continue_joins(fuse_rows(launches, (*graph.outputs, *read_later), graph, root, limits))
    together = [each for each in fused if each.kind is Kind.ROW_FUSION]
    log.end(ROW_FUSION, start, len(launches), len(fused), {"fused by rows": len(together)})
    start = log.begin()
    first, late = collectives_first(fused, graph, root) if settings.overlap else (fused, ())
    order = schedule_launches(first, graph, root, limits, late)
    grouped = [each for each in order if each.kind is Kind.GROUPED]
    begun = overlap_collectives(order, graph, root, limits) if settings.overlap else order
    done = {"groups that run as one": len(grouped), "collectives beside others": 0}
    done["collectives beside others"] = len(begun) - len(order)
    log.end(SCHEDULE, start, len(fused), len(begun), done)
    return begun


# --- memory --------------------------------------------------------------------------------------


def _number_values(launches: Sequence[Launch], graph: Graph, root: Root) -> dict[Value, int]:
    slots: dict[Value, int] = {}
    everything: list[Value] = [*graph.inputs]
    everything += [value for launch in launches for value in launch.values]
    everything += list(graph.outputs)
    for value in everything:
        slots.setdefault(root(value), len(slots))
    return slots


def live_ranges(
    launches: Sequence[Launch],
    once: int,
    graph: Graph,
    root: Root,
    slots: dict[Value, int],
    held: bool,
) -> list[Lifetime]:
    """Values in the plan's memory: neither inputs, nor constants, nor others' outputs."""
    outputs = {root(v) for v in graph.outputs}
    outside = {*graph.inputs, *(() if held else outputs)}
    prepared = {root(v) for launch in launches[:once] for v in launch.writes}
    read = {root(v) for launch in launches[once:] for v in launch.values}
    kept = outputs | (prepared & read)
    first: dict[Variable, int] = {}
    last: dict[Variable, int] = {}
    for position, launch in enumerate(launches):
        for value in map(root, launch.values):
            if isinstance(value, Variable) and value not in outside:
                first.setdefault(value, position)
                last[value] = len(launches) if value in kept else position
    scratch = {each.nested.scratch: each.nested.form.bytes for each in launches if each.nested}
    replaced = choose_places(places(launches, root), first.__contains__)
    return [
        Lifetime(
            str(slots[v]),
            scratch.get(v) or byte_count(v.type),
            first[v],
            last[v],
            str(slots[replaced[v]]) if v in replaced else None,
        )
        for v in first
    ]
