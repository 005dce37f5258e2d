"""A pass: a pure function from graphs to graphs, with what it did and how long it took.

>>> import weft as wf
>>> from weft.compiler.graph_passes.laws.arithmetic import simplify
>>> graph = wf.ir.trace(lambda x: wf.sin(-(-x)), wf.spec("float32", (3,)))
>>> graph, report = run_pass(Pass("simplify", simplify.apply, "an example"), graph)
>>> print(report)
simplify: 3 -> 1 nodes   negative_of_negative 1
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from time import perf_counter

from weft.core.records import frozen
from weft.ir.graph import Graph
from weft.ir.verify import verify
from weft.ir.walking import Tally

__all__ = ["NODES", "VERIFYING", "Noun", "Pass", "StageReport", "run_pass", "verify_in_tests"]

VERIFYING: list[bool] = []
"""Whether each stage is followed by its verifier: where anything is in the list, as in tests."""
Noun = tuple[str, str]
"""A word for one thing, and for several."""
NODES: Noun = ("node", "nodes")


@frozen
class Pass:
    """A function from graphs to graphs that counts what it does, and why it stands in the list."""

    name: str
    run: Callable[[Graph, Tally], Graph]
    reason: str


@frozen
class StageReport:
    """What one run of a pass, or another stage, did: counts before and after, and its time.

    rewrites: what it did by name, with how often. counted: what is counted before, and after.
    """

    name: str
    before: int
    after: int
    rewrites: Mapping[str, int]
    seconds: float
    counted: tuple[Noun, Noun] = (NODES, NODES)

    @property
    def is_pass(self) -> bool:
        """Whether the stage makes a graph of a graph."""
        return self.counted == (NODES, NODES)

    def __add__(self, other: StageReport) -> StageReport:
        """What a stage did in two graphs, such as a program and a loop inside it."""
        rewrites = dict(self.rewrites)
        for name, count in other.rewrites.items():
            rewrites[name] = rewrites.get(name, 0) + count
        return StageReport(
            self.name, self.before + other.before, self.after + other.after, rewrites,
            self.seconds + other.seconds, self.counted,
        )  # fmt: skip

    def __str__(self) -> str:
        names = ", ".join(f"{name} {count}" for name, count in self.rewrites.items())
        change = f"{self.before} -> {self.after} nodes"
        if not self.is_pass:
            read, made = self.counted
            change = f"{_count_text(self.before, read)} -> {_count_text(self.after, made)}"
        return f"{self.name}: {change}   {names}".rstrip()


def _count_text(count: int, noun: Noun) -> str:
    return f"{count} {noun[count != 1]}"


def verify_in_tests(graph: Graph) -> None:
    """Verify a graph where `VERIFYING` says so: the first one, and what each pass made anew."""
    if VERIFYING:
        verify(graph)


def run_pass(each: Pass, graph: Graph) -> tuple[Graph, StageReport]:
    """The graph after a pass, verified in tests where it is another one, and what the pass did."""
    tally: Tally = Counter()
    start = perf_counter()
    result = each.run(graph, tally)
    if result is not graph:
        verify_in_tests(result)
    seconds = perf_counter() - start
    sizes = len(graph.nodes), len(result.nodes)
    return result, StageReport(each.name, *sizes, dict(+tally), seconds)
