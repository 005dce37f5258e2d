"""The plain target: every plan can be run by it, slowly, and what it gives is what a plan means.

It has no launches of its own: products, convolutions and sorts are kernels of the loop language, or
their reference. So it shows what a target must have at least, and tests compare others with it.

>>> import numpy as np
>>> import weft as wf
>>> from weft.compiler.plan.planning import plan_program
>>> graph = wf.ir.trace(lambda x: wf.softmax(x @ x), wf.spec("float32", (2, 2)))
>>> PLAIN.executable(plan_program(graph, PLAIN)).run([np.zeros((2, 2), np.float32)])[0].tolist()
[[0.5, 0.5], [0.5, 0.5]]
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any

from weft.compiler.plan.launch import Launch
from weft.compiler.plan.program_plan import ProgramPlan
from weft.compiler.targets.limits import Limits
from weft.compiler.targets.plain.executable import PlainExecutable, watched_launches
from weft.compiler.targets.target import Array, Executable, Observer
from weft.ir.graph import Graph, GraphNode, Literal
from weft.ir.loops import Kernel


class PlainTarget:
    """A machine that knows the loop language, and nothing else."""

    name = "plain"
    limits = Limits()
    """Those of a processor: a plan for this target is then cut as its plans are."""
    passes = ()

    def target_at(self, index: int) -> PlainTarget:
        """See `Target`: there is one."""
        return self

    def environment(self) -> tuple[str, ...]:
        """See `Target`."""
        return (self.name,)

    def has_convolution(self, node: GraphNode) -> bool:
        """See `Target`."""
        return False

    def has_attention(self, node: GraphNode) -> bool:
        """See `Target`."""
        queries = node.operands[0].type.shape[-2]
        return not isinstance(queries, int) or queries >= self.limits.passes.attention_queries

    def takes(self, node: GraphNode) -> bool:
        """See `Target`."""
        return False

    def launches(self, node: GraphNode, error: Literal) -> list[Launch] | None:
        """See `Target`."""
        return None

    def start(self) -> None:
        """See `Target`: there is nothing to make ready."""

    def prepare(self, graph: Graph) -> None:
        """See `Target`: there is nothing to make ready."""

    def begin(self, kernels: Sequence[Kernel]) -> None:
        """See `Target`: kernels are run as they are."""

    def executable(self, plan: ProgramPlan) -> PlainExecutable:
        """See `Target`."""
        return PlainExecutable(plan)

    def stored_executable(self, digest: str, compiled: Callable[[], Executable]) -> Executable:
        """See `Target`: nothing is stored."""
        return compiled()

    def watch(self, observe: Observer) -> AbstractContextManager[None]:
        """See `Target`."""
        return watched_launches(observe)

    def memory_comparison(self) -> Callable[[Array], bool] | None:
        """See `Target`: nothing here is native."""
        return None

    def new_book(
        self, handle_class: type, usual: Mapping[str, Any], places: Mapping[str, int]
    ) -> None:
        """See `Target`: nothing here is native."""

    def listing(self, kernels: Sequence[Kernel]) -> str:
        """See `Target`: the kernels themselves."""
        return "\n\n".join(map(str, kernels))


PLAIN = PlainTarget()
