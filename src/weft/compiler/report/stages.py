"""What each stage did to a program, in lines: from the traced graph to the executable.

>>> import weft as wf
>>> graph = wf.ir.trace(lambda x, w: wf.exp(x @ w), *[wf.spec("float32", (64, 64))] * 2)
>>> for line in list(stage_lines(wf.explain(graph).stages))[-5:]:
...     print(line)
lowering: 2 steps -> 2 launches   kernels 1
row fusion: 2 launches -> 1 launch   fused by rows 1
schedule: 1 launch -> 1 launch
memory: 3 values -> 0 places
executable: 2 launches -> 2 pieces of code   kernels to compile 1, functions of cpu 1
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from weft.compiler.pipeline import EXECUTABLE, StageReport
from weft.compiler.plan.launch import Launch
from weft.compiler.plan.program_plan import ProgramPlan
from weft.ir.loops import Kernel


def stage_reports(plan: ProgramPlan) -> tuple[StageReport, ...]:
    """What each stage did, in order; the last is what the target makes of the plan."""
    parts = [part for part in plan.every_launch() if _has_code(part)]
    kernels = {part.identity for part in parts if isinstance(part.kernel, Kernel)}
    functions = {part.identity for part in parts} - kernels
    made = {"kernels to compile": len(kernels), f"functions of {plan.target.name}": len(functions)}
    shown = {name: count for name, count in made.items() if count}
    counts = len(parts), len(kernels | functions)
    nouns = EXECUTABLE.reads, EXECUTABLE.makes
    return (*plan.reports, StageReport(EXECUTABLE.name, *counts, shown, 0.0, nouns))


def _has_code(launch: Launch) -> bool:
    """Whether a launch runs a kernel or a function, and not launches that do."""
    return not launch.stages and not launch.members and launch.nested is None


def stage_lines(reports: Sequence[StageReport]) -> Iterator[str]:
    """All stages in order, but passes that never changed anything, which are named together."""
    passes = [report for report in reports if report.is_pass]
    busy = {report.name for report in passes if report.rewrites}
    idle = dict.fromkeys(report.name for report in passes if report.name not in busy)
    yield from [str(report) for report in passes if report.rewrites]
    if idle:
        yield f"nothing to do: {', '.join(idle)}"
    yield from [str(report) for report in reports if not report.is_pass]
