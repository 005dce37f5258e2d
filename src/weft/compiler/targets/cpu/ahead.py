"""The processor of another machine as a target: plans are made for it, and nothing is loaded here.

>>> import weft as wf
>>> from weft.compiler.plan.planning import plan_program
>>> from weft.compiler.targets.cpu.machine import host
>>> graph = wf.ir.trace(lambda a, b: a @ b, *[wf.spec("float32", (512, 512))] * 2)
>>> [launch.name for launch in plan_program(graph, AheadTarget(host())).launches]
['pack', 'dot']
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from weft.compiler.plan.launch import Launch
from weft.compiler.targets.cpu.target import CpuTarget
from weft.compiler.targets.llvm.machine import Machine
from weft.ir.graph import Graph, GraphNode, Literal
from weft.ir.loops import Kernel


class AheadTarget(CpuTarget):
    """A processor that programs are made for ahead of time; libraries of this process are none."""

    def __init__(self, machine: Machine, fixed_sizes: bool = True) -> None:
        """fixed_sizes: without, no launches are fused that each size cuts in its own way."""
        self._machine = machine
        if not fixed_sizes:
            self.limits = replace(self.limits, plan=replace(self.limits.plan, fused_launches=False))

    @property
    def machine(self) -> Machine:
        """See `CpuTarget`."""
        return self._machine

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, AheadTarget):
            return False
        return other.machine == self.machine and other.limits == self.limits

    def __hash__(self) -> int:
        return hash(self._machine)

    def environment(self) -> tuple[str, ...]:
        """See `Target`."""
        machine = self._machine
        return (machine.triple, machine.processor, machine.features, str(machine.width))

    def launches(self, node: GraphNode, error: Literal) -> list[Launch] | None:
        """See `Target`: those alone whose functions are generated."""
        return self.generated_launches(node)

    def start(self) -> None:
        """See `Target`: nothing runs here."""

    def prepare(self, graph: Graph) -> None:
        """See `Target`: nothing is compiled ahead."""

    def begin(self, kernels: Sequence[Kernel]) -> None:
        """See `Target`: nothing is compiled ahead."""
