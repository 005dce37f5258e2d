"""Plans: a graph as launches in order, with the memory of what they make; no address, no thread.

A plan is a value, like a graph: it can be printed, verified and compared, and a target makes it an
executable. Loops and choices hold plans inside, without memory of their own: what they need is
scratch memory of the launch they belong to.

>>> import weft as wf
>>> from weft.compiler.plan.planning import plan_program
>>> from weft.compiler.targets.cpu.target import CPU
>>> graph = wf.ir.trace(lambda x: wf.sort(wf.exp(x), axis=1) * 2, wf.spec("float32", (3, 3)))
>>> print(plan_program(graph, CPU))
plan(v0: f32[3, 3]) -> v4: f32[3, 3], 320 bytes {
  v1: f32[3, 3] @192 = loop k0(v0)
  v2: f32[3, 3] @256, v3: u8[144] @0 = sort sort(v1)
  v4 = loop k1(v2)
}
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import field
from functools import cached_property
from typing import Any

from weft.compiler.fusion.grouping import Step
from weft.compiler.graph_passes.graph_pass import StageReport
from weft.compiler.lowering.groups import Lowered
from weft.compiler.plan.launch import Launch, Sizes, Value
from weft.compiler.targets.target import Target
from weft.core.errors import ShapeError
from weft.core.records import frozen
from weft.core.shapes import Dimension, match_size
from weft.core.types import TensorType
from weft.ir.graph import Atom, Graph, Literal, Variable
from weft.ir.loops import Kernel
from weft.runtime.memory import Planner


def root_of(aliases: Mapping[Variable, Atom], value: Value) -> Value:
    """The value whose memory a value shares, by way of any others."""
    while isinstance(value, Variable) and value in aliases:
        value = aliases[value]
    return value


@frozen(slots=False, eq=False)
class ProgramPlan:
    """A graph as launches.

    Where outputs are held, they lie in the plan's own memory to the end. The inputs at the
    positions `fixed` stay the same: at each step where the plan is a step of a loop, else from run
    to run. What is made of them alone, such as a packed operand of a product, is made by the first
    `once` launches, at the start.
    """

    target: Target
    graph: Graph
    """The graph as it is planned, after the target's own passes."""
    steps: tuple[Step, ...]
    """Fusion groups, and nodes that stand alone."""
    lowered: tuple[Lowered, ...]
    """The kernels of its own, with the values they are for."""
    launches: tuple[Launch, ...]
    once: int
    fixed: tuple[int, ...]
    aliases: Mapping[Variable, Atom]
    """Values that share the memory of another: reshapes of stored values, and barriers."""
    error: Literal
    """Stands for the cell in which a launch says that its operands are wrong."""
    planner: Planner
    slots: Mapping[Value, int]
    """A number for each value that has memory."""
    donations: Mapping[int, tuple[int, ...]] = field(default_factory=dict)
    """For each output the inputs whose array it may be written to, by position."""
    settled_outputs: tuple[int, ...] = ()
    """The outputs that are first written when nothing can fail any more, by position."""
    reports: tuple[StageReport, ...] = ()
    """What each stage did, from the traced graph to this plan; of a whole program alone."""

    def root(self, value: Value) -> Value:
        """The value whose memory a value shares."""
        return root_of(self.aliases, value)

    def slot(self, value: Value) -> int:
        """The number of a value's memory."""
        return self.slots[self.root(value)]

    @cached_property
    def inner_plans(self) -> list[ProgramPlan]:
        """The plans inside: bodies of loops, branches of choices."""
        return [plan for each in self.launches if each.nested for plan in each.nested.plans]

    def every_plan(self) -> Iterator[ProgramPlan]:
        """The plan, and all inside it."""
        yield self
        for plan in self.inner_plans:
            yield from plan.every_plan()

    def every_launch(self) -> Iterator[Launch]:
        """The launches with those that they are made of, and those of the plans inside."""
        for plan in self.every_plan():
            for launch in plan.launches:
                yield from launch.nested_launches()

    @property
    def kernels(self) -> list[Kernel]:
        """The kernels that a target must compile, those of the plans inside included."""
        return [each.kernel for each in self.every_launch() if isinstance(each.kernel, Kernel)]

    @property
    def every_lowered(self) -> list[Lowered]:
        """The generated kernels with their values, those of the plans inside included."""
        return [each for plan in self.every_plan() for each in plan.lowered]

    def text(self, sizes: Sizes | None = None) -> str:
        """The plan in words, for some sizes: `@n` is a place in its memory."""
        return "\n".join(_lines(self, {} if sizes is None else sizes, ""))

    def __str__(self) -> str:
        return self.text()


def _lines(plan: ProgramPlan, sizes: Sizes, indent: str) -> Iterator[str]:
    """The lines of a plan; without sizes for its symbols it has no places and bytes."""
    bound = all(name in sizes for name in symbols_of(plan.graph))
    memory = plan.planner.plan_for(sizes) if bound else None
    seen: set[Value] = set()

    def value_name(value: Value) -> str:
        slot = plan.slot(value)
        if value in seen or isinstance(value, Literal):
            return f"v{slot}" if value in seen else f"constant {value.type}"
        seen.add(value)
        offset = None if memory is None else memory.offsets.get(str(slot))
        return f"v{slot}: {value.type}" + ("" if offset is None else f" @{offset}")

    inputs = ", ".join(map(value_name, plan.graph.inputs))
    outputs = ", ".join(map(value_name, plan.graph.outputs))
    peak = "" if memory is None else f", {memory.peak} bytes"
    yield f"{indent}plan({inputs}) -> {outputs}{peak} {{"
    for number, launch in enumerate(plan.launches):
        once = "once " if number < plan.once else ""
        given = [v for v in launch.values if v not in launch.writes or v in launch.updates]
        values, results = (
            ", ".join(map(value_name, given)),
            ", ".join(map(value_name, launch.writes)),
        )
        yield f"{indent}  {results} = {once}{launch.kind} {launch.name}({values})"
        for inside in launch.nested.plans if launch.nested else ():
            yield from _lines(inside, sizes, indent + "    ")
    yield f"{indent}}}"


def symbols_of(graph: Graph) -> list[str]:
    """The sizes of a graph's inputs that are known at run time only."""
    dims = [dim for kind in graph.input_types for dim in kind.shape if not isinstance(dim, int)]
    return sorted({name for dim in dims for name in dim.symbols()})


def read_sizes(graph: Graph, inputs: Sequence[Any]) -> dict[str, int]:
    """The sizes of a graph's symbols, given inputs, or anything that has their shapes."""
    sizes: dict[str, Dimension] = {}
    for position, (array, kind) in enumerate(zip(inputs, graph.input_types, strict=True)):
        for actual, dim in zip(array.shape, kind.shape, strict=True):
            if dim is not actual and not match_size(dim, actual, sizes):
                raise _contradiction(position, array, kind)
    return sizes  # type: ignore[return-value]


def _contradiction(position: int, array: Any, kind: TensorType) -> ShapeError:
    return ShapeError(
        "jit",
        f"input {position} has a size that contradicts the compiled program",
        expected=str(kind),
        got={"input": array},
        fix="call the function again with arguments: it is compiled for their sizes",
    )
