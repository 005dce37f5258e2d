"""A compiled program: a plan, with the machine code and the tables that run it.

>>> import numpy as np
>>> import weft as wf
>>> from weft.compiler.plan.planning import plan_program
>>> from weft.compiler.targets.cpu.target import CPU
>>> plan = plan_program(wf.ir.trace(lambda x: wf.exp(x) * 2, wf.spec("float32", (3,))), CPU)
>>> Program(plan).run([np.zeros(3, np.float32)])[0].tolist()
[2.0, 2.0, 2.0]
"""

from __future__ import annotations

from functools import cached_property
from typing import Any

import numpy as np

from weft.compiler.plan.launch import Sizes, Value
from weft.compiler.plan.program_plan import ProgramPlan
from weft.compiler.targets.cpu.runtime.executable import CpuExecutable
from weft.compiler.targets.cpu.runtime.tables import State, TableMaker, Tables, refusal
from weft.core.shapes import substitute
from weft.ir.sizes import resolve_graph
from weft.ops.control import run as run_by_reference

Array = np.ndarray[Any, Any]


class Program(CpuExecutable):
    """The executable of a plan that was made in this process."""

    def __init__(self, plan: ProgramPlan) -> None:
        """Compile the kernels of a plan."""
        super().__init__(plan.fixed if plan.once else ())
        self.plan, self.graph, self.slots = plan, plan.graph, plan.slots
        self.once, self.donations = plan.once, plan.donations
        self.settled_outputs = plan.settled_outputs
        self.state = State()
        self.maker = TableMaker(plan, self.state)

    def root(self, value: Value) -> Value:
        """See `CpuExecutable`."""
        return self.plan.root(value)

    def tables(self, sizes: Sizes) -> Tables:
        """See `CpuExecutable`."""
        return self.maker.tables(self.plan, sizes)

    @property
    def calls_blas(self) -> bool:
        """See `CpuExecutable`."""
        return any(launch.identity[0] == "blas" for launch in self.plan.every_launch())

    @cached_property
    def is_flat(self) -> bool:
        """See `CpuExecutable`."""
        launches = self.plan.every_launch()
        return all(each.nested is None and each.node is None for each in launches)

    def by_reference(self, inputs: list[Array]) -> list[Array]:
        """See `CpuExecutable`."""
        sizes = self.read_sizes(inputs)
        graph = resolve_graph(self.graph, lambda dim: substitute(dim, dict(sizes)))
        return list(run_by_reference(graph if sizes else self.graph, inputs))

    def failure(self, tables: Tables, ended: int, inputs: list[Array]) -> BaseException:
        """See `CpuExecutable`."""
        failure, self.state.failure = self.state.failure, None
        return failure or refusal(self.plan, tables, ended - 1, self.state.sizes)
