"""The pipeline: the one list of all stages, from the traced graph to the executable.

First come passes, each a pure function from graphs to graphs with the reason it stands where it
stands. They are gone through until a round changes nothing; a pass is left out when nothing has
changed since it last ran. Then come, once, where parts of complex numbers lie and the target's own
passes; and the stages of planning.

>>> import weft as wf
>>> from weft.compiler.targets.target import target_named
>>> graph = wf.ir.trace(lambda x: wf.sin(-(-x)) * wf.ones(3) + wf.sin(x), wf.spec("float32", (3,)))
>>> [stage.name for stage in stages(target_named("plain"))[-6:]]
['fusion', 'lowering', 'row fusion', 'schedule', 'memory', 'executable']
>>> print(optimize(graph, target_named("cpu")))  # doctest: +ELLIPSIS
graph(a: f32[3]) {
  b: f32[3] = sin(a)...
  c: f32[3] = add(b, b)...
  return c
}
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, partial
from itertools import chain

from weft.compiler.graph_passes.attention.heads import move_heads
from weft.compiler.graph_passes.attention.recognize import recognize_attention
from weft.compiler.graph_passes.channels_last import channels_last
from weft.compiler.graph_passes.common_subexpressions import merge_common_subexpressions
from weft.compiler.graph_passes.complex_numbers.split import place_parts, split_complex
from weft.compiler.graph_passes.dead_code import remove_dead_code
from weft.compiler.graph_passes.embedding_products import multiply_tables
from weft.compiler.graph_passes.folding import fold_constants
from weft.compiler.graph_passes.graph_pass import (
    NODES,
    VERIFYING,
    Noun,
    Pass,
    StageReport,
    run_pass,
    verify_in_tests,
)
from weft.compiler.graph_passes.inlining import inline
from weft.compiler.graph_passes.laws.arithmetic import simplify
from weft.compiler.graph_passes.laws.conversions import convert_less
from weft.compiler.graph_passes.laws.fold_batch_norm import fold_scales
from weft.compiler.graph_passes.laws.movement import absorb_movement, rearrange
from weft.compiler.graph_passes.laws.reductions import divide_sums, reduce_less
from weft.compiler.graph_passes.loops.lighten import lighten_loops
from weft.compiler.graph_passes.matrix_functions import expand_matrix_functions
from weft.compiler.graph_passes.row_picks import pick_rows
from weft.compiler.graph_passes.user_rules import apply_rewrites, rewrites
from weft.compiler.targets.limits import PassLimits
from weft.compiler.targets.target import Target
from weft.core.records import frozen
from weft.ir.autocast import autocast_to
from weft.ir.graph import Graph
from weft.ir.rewriting import RuleSet

__all__ = [
    "EXECUTABLE", "FUSION", "LOWERING", "MEMORY", "PLANNING", "ROW_FUSION", "SCHEDULE", "VERIFYING",
    "Pass", "Stage", "StageReport", "last_passes", "laws", "optimize", "optimize_with_report",
    "pipeline", "stages",
]  # fmt: skip

ROUNDS = 8
"""The most times the list is gone through: a bound on the compiler's own work; programs come to
rest after two or three."""


@frozen
class Stage:
    """A stage behind the passes: what it reads, what it makes, and why it stands in the list."""

    name: str
    reads: Noun
    makes: Noun
    reason: str


LAUNCHES: Noun = ("launch", "launches")
STEPS: Noun = ("step", "steps")
FUSION = Stage("fusion", NODES, STEPS, "on the graph in its last form: what becomes one kernel")
LOWERING = Stage(
    "lowering", STEPS, LAUNCHES, "kernels of what is fused, the target's launches for the rest"
)
ROW_FUSION = Stage(
    "row fusion", LAUNCHES, LAUNCHES, "on all launches: what a product makes is read in cache"
)
SCHEDULE = Stage(
    "schedule", LAUNCHES, LAUNCHES, "order and groups of what is left: memory, and few launches"
)
MEMORY = Stage(
    "memory", ("value", "values"), ("place", "places"), "when the order says how long values live"
)
EXECUTABLE = Stage(
    "executable", LAUNCHES, ("piece of code", "pieces of code"), "the target's: machine code"
)
PLANNING = (FUSION, LOWERING, ROW_FUSION, SCHEDULE, MEMORY, EXECUTABLE)
"""The stages behind the passes, in order; see `plan.planning`."""


@cache
def laws(limits: PassLimits) -> RuleSet:
    """All rules together, so that what one of them makes is seen by the others at once."""
    reductions = chain(reduce_less, divide_sums(limits))
    return RuleSet("laws", convert_less, simplify, reductions, rearrange, fold_scales)


def pipeline(target: Target) -> tuple[Pass, ...]:
    """The passes for a target that are gone through until nothing changes, in order."""
    limits = target.limits.passes
    layout = partial(channels_last, target)
    lookups = partial(multiply_tables, limits=limits)
    loops = partial(lighten_loops, limits=limits)
    attention = partial(recognize_attention, target)
    reason = "before parts: what is left are factorisations, and numbers that are fused"
    expands = limits.expands_matrix_functions
    expand = partial(expand_matrix_functions, limits)
    matrices = [Pass("matrices", expand, reason)] if expands else []
    return (
        Pass(
            "inline", inline, "rules of derivatives have done their work; the passes see one graph"
        ),
        Pass("dead code", remove_dead_code, "before anything is done to what nobody needs"),
        Pass("fold", fold_constants, "makes the numbers that the laws look for"),
        *matrices,
        Pass("parts", split_complex, "complex numbers as real ones, which laws and fusion know"),
        Pass(
            "laws",
            laws(limits).apply,
            "fewer operations, cheaper ones, transposes inside of products",
        ),
        Pass("absorb", absorb_movement, "after the laws have taken broadcasts and joins together"),
        Pass("lookups", lookups, "before loops, which take what is left out of their steps"),
        Pass("row picks", pick_rows, "on lookups as they are now; what is left is fused"),
        Pass("loops", loops, "when steps are in their simplest form; what leaves is merged"),
        Pass("attention", attention, "on products and masks in the form the laws give them"),
        Pass("heads", move_heads, "around attention as it has become; then movement is settled"),
        Pass("layout", layout, "when movement is settled; the next round clears transposes"),
        Pass(
            "merge", merge_common_subexpressions, "last: what was written differently is now equal"
        ),
    )


def last_passes(target: Target) -> tuple[Pass, ...]:
    """The passes that come once, when nothing changes any more."""
    reason = "when laws have joined them: where parts of complex numbers lie"
    return (Pass("parts in memory", place_parts, reason), *target.passes)


def stages(target: Target) -> tuple[Pass | Stage, ...]:
    """All stages of a program for a target, in order."""
    return (*pipeline(target), *last_passes(target), *PLANNING)


REWRITES = Pass("rewrites", apply_rewrites, "on programs as users write them, before the laws")
"""The rules of users, where there are any; see user_rules.py."""


def optimize(graph: Graph, target: Target) -> Graph:
    """The graph in its simplest form."""
    return optimize_with_report(graph, target)[0]


@autocast_to(None)  # the sides of users' rules have the dtypes that they were written for
def optimize_with_report(graph: Graph, target: Target) -> tuple[Graph, list[StageReport]]:
    """The graph in its simplest form, and what each run of a pass did to it."""
    verify_in_tests(graph)
    reports: list[StageReport] = []
    settled: dict[Callable[..., Graph], Graph] = {}
    passes = pipeline(target)
    if rewrites():
        passes = (*passes[:2], REWRITES, *passes[2:])
    for _ in range(ROUNDS):
        before = graph
        for each in passes:
            if settled.get(each.run) is not graph:
                graph, report = run_pass(each, graph)
                reports.append(report)
                settled[each.run] = graph
        if graph is before:
            break
    return graph, reports
