"""The log of planning: what each stage did to a program, loops and choices inside it included.

>>> log = StageLog([])
>>> for nodes, steps in ((5, 2), (3, 1)):  # a program, and a loop inside it
...     start = log.begin()
...     log.end(FUSION, start, nodes, steps, {"fused": nodes})
>>> print(log.reports()[0])
fusion: 8 nodes -> 3 steps   fused 8
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from time import perf_counter

from weft.compiler.graph_passes.graph_pass import Pass, StageReport, run_pass, verify_in_tests
from weft.compiler.pipeline import FUSION, Stage
from weft.ir.graph import Graph

__all__ = ["FUSION", "StageLog"]

Start = tuple[float, float]
"""When a stage began, and the seconds of the stages that had ended by then."""


class StageLog:
    """The reports of a program's stages, one for each stage, in order."""

    def __init__(self, passes: Sequence[StageReport]) -> None:
        self._passes = tuple(passes)
        self._stages: dict[str, StageReport] = {}
        self._counted = 0.0
        """The seconds of all stages that have ended: a loop is planned while another stage runs."""

    def begin(self) -> Start:
        """Note that a stage begins."""
        return perf_counter(), self._counted

    def end(
        self, stage: Stage, start: Start, before: int, after: int, details: Mapping[str, int]
    ) -> None:
        """Report a stage: what it read and made, and the time that no stage inside it took."""
        began, counted = start
        elapsed = perf_counter() - began
        own = elapsed - (self._counted - counted)
        self._counted = counted + elapsed
        shown = {name: count for name, count in details.items() if count}
        self._note(StageReport(stage.name, before, after, shown, own, (stage.reads, stage.makes)))

    def run_passes(self, passes: Sequence[Pass], graph: Graph) -> Graph:
        """The graph after passes, each once."""
        verify_in_tests(graph)
        for each in passes:
            graph, report = run_pass(each, graph)
            self._counted += report.seconds
            self._note(report)
        return graph

    def _note(self, report: StageReport) -> None:
        known = self._stages.get(report.name)
        self._stages[report.name] = report if known is None else known + report

    def reports(self) -> tuple[StageReport, ...]:
        """What all stages did, the passes over the whole graph first."""
        return (*self._passes, *self._stages.values())
