"""Control flow in plans: loops and choices as launches that run plans.

A scan, a while loop or a switch is one launch; how a target runs the plans inside is its own
matter. A carry lies in two places in turns, of which the last one is the result, or stays in that
one place where a step may change it there.

>>> import weft as wf
>>> from weft.compiler.plan.planning import plan_program
>>> from weft.compiler.targets.cpu.target import CPU
>>> double = lambda x: wf.map(lambda row: row * 2, x)
>>> plan = plan_program(wf.ir.trace(double, wf.spec("float32", (3,))), CPU)
>>> [str(launch.kind) for launch in plan.launches], len(plan.inner_plans)
(['control'], 1)
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Any, TypeAlias, TypeVar

from weft.compiler.plan.in_place import replaceable_inputs
from weft.compiler.plan.launch import (
    Kind,
    Launch,
    Sizes,
    bytes_of,
    no_numbers,
    one,
    substitute_all,
)
from weft.compiler.plan.program_plan import ProgramPlan
from weft.core.dtypes import uint8
from weft.core.records import frozen
from weft.core.types import TensorType
from weft.ir.graph import GraphNode, Variable
from weft.runtime.memory import ALIGNMENT

Planned = Callable[..., ProgramPlan]
"""Plans a graph inside; see `planning.plan_graph`."""
Bytes = TypeVar("Bytes", bound=Any)
"""A number of bytes, or what stands for one for all sizes."""


@frozen(slots=False)
class Loop:
    """A loop: its plans (the body, and the condition if it has one), and what goes in and out.

    Operands are constants, carry and xs; results are carry and ys; the scratch memory is last.
    """

    node: GraphNode
    plans: tuple[ProgramPlan, ...]
    num_consts: int
    num_carry: int
    limit: Callable[[Sizes], int]
    """How many steps there are; -1 where the condition alone decides."""
    steps: Callable[[Sizes], int]
    """How often the body is run, as far as that is known."""
    reverse: bool = False

    @cached_property
    def kept_carries(self) -> list[int]:
        """The carries that a step may change where they are."""
        return [number for number, _ in carries_in_place(self.node, self.plans[0])]

    @property
    def in_place(self) -> tuple[tuple[Variable, Variable], ...]:
        """Results that may take the place of what their carries begin with."""
        operands = [self.node.operands[self.num_consts + number] for number in self.kept_carries]
        pairs = zip(
            [self.node.results[number] for number in self.kept_carries], operands, strict=True
        )
        return tuple((result, atom) for result, atom in pairs if isinstance(atom, Variable))

    def bytes(self, sizes: Sizes) -> int:
        """The scratch memory: that of the plans, and the spare places of the carry."""
        return self.spare_places(sizes)[-1]

    def plan_places(self, sizes: Sizes) -> list[int]:
        """Where the memory of each plan begins in scratch memory, and where the last ends.

        What one plan has made once, before the first step, must outlive the runs of the other.
        """
        return self.stack_plans([plan.planner.plan_for(sizes).peak for plan in self.plans], 0, max)

    def stack_plans(
        self, peaks: Sequence[Bytes], start: Bytes, largest: Callable[..., Bytes]
    ) -> list[Bytes]:
        """Where plans of so many bytes, in whole lines, begin, and where the last ends."""
        if not any(plan.once for plan in self.plans):
            return [*[start for _ in peaks], largest(peaks)]
        return [sum(peaks[:number], start) for number in range(len(peaks) + 1)]

    def spare_places(self, sizes: Sizes) -> list[int]:
        """Where the spare places of carries begin in scratch memory, and where the last ends."""
        start = self.plan_places(sizes)[-1]
        return self.stack_spares(start, lambda kind: _aligned_size(bytes_of(kind, sizes)))

    def stack_spares(self, start: Bytes, size: Callable[[TensorType], Bytes]) -> list[Bytes]:
        """Where the spare places begin behind the plans; size: of a value, in whole lines."""
        places = [start]
        for number, kind in enumerate(self.plans[0].graph.output_types[: self.num_carry]):
            is_kept = number in self.kept_carries
            places.append(places[-1] if is_kept else places[-1] + size(kind))
        return places


@frozen(slots=False)
class Choice:
    """A choice of a plan by an index, which is the first operand; `rows`: for each row."""

    node: GraphNode
    plans: tuple[ProgramPlan, ...]
    rows: int
    steps: Callable[[Sizes], int] = one
    in_place: tuple[tuple[Variable, Variable], ...] = ()

    def bytes(self, sizes: Sizes) -> int:
        """The scratch memory: one branch after the other lies in it."""
        return max(plan.planner.plan_for(sizes).peak for plan in self.plans)


@frozen(eq=False)
class Nested:
    """The plans inside a launch, and the scratch memory that they share."""

    form: Loop | Choice
    scratch: Variable

    @property
    def node(self) -> GraphNode:
        """The node that holds the graphs."""
        return self.form.node

    @property
    def plans(self) -> tuple[ProgramPlan, ...]:
        """The plans of the graphs, in order."""
        return self.form.plans


Form: TypeAlias = "Callable[[GraphNode, Planned], Loop | Choice]"
_FORMS: dict[str, Form] = {}
"""How the graphs of a primitive are planned; see `control_form`."""


def control_form(name: str) -> Callable[[Form], Form]:
    """Say of which primitive a function plans the graphs."""

    def register(form: Form) -> Form:
        _FORMS[name] = form
        return form

    return register


def control_launch(node: GraphNode, plan: Planned) -> Launch | None:
    """The launch of a node that holds graphs; None for any other node."""
    form = _FORMS.get(node.primitive.name)
    if form is None:
        return None
    nested = Nested(form(node, plan), Variable(TensorType(uint8, (0,))))
    return Launch(
        Kind.CONTROL, node.primitive.name, ("control", node.primitive.name),
        (*node.operands, *node.results, nested.scratch), node.results, no_numbers, one, one,
        checked=node, nested=nested, in_place=nested.form.in_place,
    )  # fmt: skip


def carries_in_place(node: GraphNode, body: ProgramPlan) -> list[tuple[int, int]]:
    """The carries that a step of a loop may change where they are: as output and as input."""
    if node.primitive.name not in ("scan", "while"):
        return []
    first, allowed = (
        node.params["num_consts"],
        replaceable_inputs(body.launches, body.graph, body.root),
    )
    count = node.params.get("num_carry", len(node.results))
    return [(n, first + n) for n in range(count) if first + n in allowed.get(n, ())]


@control_form("scan")
def _scan(node: GraphNode, plan: Planned) -> Loop:
    params = node.params

    def length(sizes: Sizes) -> int:
        return substitute_all(params["length"], sizes)

    body = plan(params["graph"], fixed=range(params["num_consts"]), step=True)
    return Loop(
        node, (body,), params["num_consts"], params["num_carry"], length, length, params["reverse"]
    )


@control_form("while")
def _while(node: GraphNode, plan: Planned) -> Loop:
    params = node.params
    most = -1 if params["max_steps"] is None else params["max_steps"]
    fixed = range(params["num_consts"])
    plans = (
        plan(params["body"], fixed=fixed, step=True),
        plan(params["cond"], held=True, fixed=fixed, step=True),
    )
    return Loop(node, plans, params["num_consts"], len(node.results), lambda sizes: most, one)


@control_form("switch")
def _switch(node: GraphNode, plan: Planned) -> Choice:
    rows = node.params["rows"]
    return Choice(
        node, tuple(plan(branch, held=rows > 0) for branch in node.params["branches"]), rows
    )


def _aligned_size(size: int) -> int:
    return -(-size // ALIGNMENT) * ALIGNMENT
