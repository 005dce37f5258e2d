"""A compiled program: the section of a whole graph, and what runs it.

>>> import numpy as np
>>> import weft as wf
>>> program = Program(wf.ir.trace(lambda x: wf.exp(x) * 2, wf.spec("float32", (3,))))
>>> program.run([np.zeros(3, np.float32)])[0].tolist()
[2.0, 2.0, 2.0]
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import numpy as np

from weft.compiler.pipeline import optimize
from weft.compiler.plan.control_flow import control_call
from weft.compiler.plan.in_place import donations
from weft.compiler.plan.program_plan import Context, Section, Tables, Written
from weft.compiler.targets.cpu.cache.prefetch_modules import begin_modules
from weft.compiler.targets.cpu.runtime.executable import Runner
from weft.core.shapes import substitute
from weft.ir.graph import Graph
from weft.ir.sizes import resolve_graph
from weft.ops.control import run as run_by_reference

Array = np.ndarray[Any, Any]


class Program(Section, Runner):
    """A graph, compiled: a section with inputs, outputs and memory of its own."""

    def __init__(
        self, graph: Graph, fixed: Collection[int] = (), draft: Written | None = None
    ) -> None:
        """Compile a graph; inputs at the positions `fixed` are expected to stay the same.

        A `draft` shares what is written with others, and is not compiled before `finish`.
        """
        begin_modules(graph)
        context = Context(control_call, written=draft or Written(), dry=draft is not None)
        Section.__init__(self, optimize(graph), context, fixed=fixed)
        Runner.__init__(self, fixed if self.once else ())
        self.donations = donations(self.calls, self.graph, self.root)
        if draft is None:
            context.written = Written()  # which is needed no more

    def by_reference(self, inputs: list[Array]) -> list[Array]:
        """See `Runner`."""
        sizes = self.read_sizes(inputs)
        graph = resolve_graph(self.graph, lambda dim: substitute(dim, dict(sizes)))
        return list(run_by_reference(graph if sizes else self.graph, inputs))

    def failure(self, tables: Tables, ended: int, inputs: list[Array]) -> BaseException:
        """See `Runner`."""
        return self.failed(tables, ended)
