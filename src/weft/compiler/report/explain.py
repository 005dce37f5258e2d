"""What became of a program: passes, kernels, what was fused and what was not, costs, memory.

Everything is read off the compiled program, so a report cannot say anything but what runs.

>>> import weft as wf
>>> graph = wf.ir.trace(lambda x: wf.softmax(x * 2), wf.spec("float32", (4, 8)))
>>> report = wf.explain(graph)
>>> [kernel.primitives for kernel in report.kernels]
[['multiply', 'reduce_max', 'reshape', 'subtract', 'exp', 'reduce_sum', 'reshape', 'divide']]
>>> report.kernels[0].written, report.memory.outputs
(128, 128)
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import field, replace
from functools import cached_property
from textwrap import indent
from typing import Any

from weft.compiler.function.value_names import UNNAMED, Names
from weft.compiler.fusion.costs import Sizes, bytes_of, number, operations
from weft.compiler.fusion.grouping import Group, why_stored
from weft.compiler.lowering.divided_reductions import BlockResults
from weft.compiler.lowering.groups import is_lowered
from weft.compiler.pipeline import StageReport
from weft.compiler.plan.control_flow import Nested, carries_in_place
from weft.compiler.plan.launch import Kind, Launch
from weft.compiler.plan.planning import plan_program
from weft.compiler.plan.program_plan import ProgramPlan, read_sizes, symbols_of
from weft.compiler.report.memory_use import MemoryReport, Recomputed, memory_report
from weft.compiler.report.notebook import explanation_html
from weft.compiler.report.stages import stage_lines, stage_reports
from weft.compiler.report.text import amount, count_text, names_with_counts, place
from weft.compiler.targets.target import Donation, Target, default_target
from weft.core.errors import ArgumentError, ArgumentTypeError, Unsupported
from weft.core.locations import Location
from weft.core.records import frozen
from weft.core.shapes import Shape
from weft.core.types import TensorType
from weft.ir.graph import Graph, GraphNode, Variable
from weft.ir.printing import name_variables
from weft.ir.scalar_functions import why_not_lowered
from weft.runtime.arena import readable_size

__all__ = ["Explanation", "KernelReport", "StoredValue", "explain", "kernel_reports"]

LISTED = 200
"""How many kernels a report lists before it only counts the rest; for readers, on any machine."""


@frozen
class StoredValue:
    """A value that a kernel writes to memory: under which name in the graph, and why."""

    name: str
    type: str
    bytes: int
    reason: str
    at: Location | None


@frozen
class KernelReport:
    """One launch of a compiled program.

    kind: "kernel" for generated loops, "product", "loop" or "choice" for control flow, or
    "reference" for a call back into Python, whose `reason` says why there is no kernel. nodes: what
    was fused into it, in order. sections: what is run inside, under "body", "branch 0" and so on.
    members: the launches of a grouped one, which are run as one.
    """

    name: str
    kind: str
    space: str
    nodes: tuple[GraphNode, ...]
    stored: tuple[StoredValue, ...]
    reason: str
    read: int
    written: int
    flops: int
    sections: tuple[tuple[str, tuple[KernelReport, ...]], ...] = ()
    members: tuple[KernelReport, ...] = ()

    @property
    def inner(self) -> Iterator[KernelReport]:
        """The calls inside, and those inside of them."""
        for _, kernels in self.sections:
            for kernel in kernels:
                yield kernel
                yield from kernel.inner

    @property
    def primitives(self) -> list[str]:
        """The names of what was fused into it."""
        return [node.primitive.name for node in self.nodes]

    @property
    def lines(self) -> dict[str, list[str]]:
        """The user's lines that it computes, each with the primitives that come from there."""
        found: dict[str, list[str]] = {}
        for node in self.nodes:
            found.setdefault(place(node.location), []).append(node.primitive.name)
        return found

    def __str__(self) -> str:
        head = f"{self.name:<12} {self.kind:<10} {self.space}"
        costs = f"{amount(self.flops)}FLOP, {readable_size(self.read)} read,"
        lines = [f"{head:<52} {costs} {readable_size(self.written)} written"]
        if self.members:
            return "\n".join([*lines, *self._members()])
        lines += [f"    by reference: {self.reason}"] if self.reason else []
        for line, names in self.lines.items():
            lines.append(f"    {names_with_counts(names)}")
            lines += [f"        {line}"] if line else []
        for value in self.stored:
            lines.append(f"    stores {value.name}: {value.type}, {value.reason}")
        for label, kernels in self.sections:
            lines.append(f"    {label}" + ("" if kernels else ": nothing to compute"))
            lines += [indent(str(kernel), " " * 6) for kernel in kernels]
        return "\n".join(lines)

    def _members(self) -> Iterator[str]:
        """The members of a grouped launch, a line for all that compute the same."""
        alike: dict[tuple[str, ...], list[KernelReport]] = {}
        for member in self.members:
            alike.setdefault(tuple(sorted(member.primitives)), []).append(member)
        for members in alike.values():
            first, count = members[0], len(members)
            name = first.name if count == 1 else f"{first.name} ×{count}"
            yield f"    {name}: {names_with_counts([member.space for member in members])}"
            yield f"        {names_with_counts(first.primitives)}"
            yield from [f"            {line}" for line in first.lines if line]
            stored_types = [each.type for member in members for each in member.stored]
            yield f"        stores {names_with_counts(stored_types)}"


@frozen(slots=False)
class Explanation:
    """What a graph was compiled to; `print` it, or read its fields.

    graph: as recorded; optimized: after the passes.
    """

    graph: Graph
    plan: ProgramPlan = field(repr=False)
    sizes: Mapping[str, int]
    donated: tuple[Donation, ...] = ()
    """Outputs that are written to an input's own array, and those inputs."""
    names: Names = UNNAMED
    """What the user calls the inputs and the state that is written, where that is known."""
    recomputed: tuple[Recomputed, ...] = ()
    """What is computed twice, so that a budget of memory is kept."""
    beside: tuple[int, ...] = ()
    """Outputs that replace what an earlier call has left, which lives until they are there."""

    @property
    def optimized(self) -> Graph:
        """The graph that was cut into kernels."""
        return self.plan.graph

    @cached_property
    def stages(self) -> tuple[StageReport, ...]:
        """What each stage did, from the graph as recorded to the executable, in order."""
        return stage_reports(self.plan)

    @property
    def passes(self) -> tuple[StageReport, ...]:
        """What each run of a pass did, those of the target included."""
        return tuple(report for report in self.stages if report.is_pass)

    @cached_property
    def kernels(self) -> list[KernelReport]:
        """The calls of the program, in order."""
        return kernel_reports(self.plan, self.sizes, self.donated)

    @property
    def references(self) -> list[KernelReport]:
        """The calls back into Python."""
        every = [each for kernel in self.kernels for each in (kernel, *kernel.inner)]
        return [kernel for kernel in every if kernel.kind == "reference"]

    @cached_property
    def memory(self) -> MemoryReport:
        """What it will allocate."""
        return memory_report(self.plan, self.sizes, self.donated, self.recomputed, self.beside)

    @property
    def flops(self) -> int:
        """The floating-point operations of all kernels."""
        return sum(kernel.flops for kernel in self.kernels)

    @property
    def bytes(self) -> int:
        """The bytes that all kernels read and write."""
        return sum(kernel.read + kernel.written for kernel in self.kernels)

    @property
    def loops(self) -> str:
        """The kernels in the loop language."""
        return "\n\n".join(str(lowered.kernel) for lowered in self.plan.every_lowered)

    @cached_property
    def assembly(self) -> str:
        """The kernels in the machine's instructions."""
        kernels = [lowered.kernel for lowered in self.plan.every_lowered]
        return self.plan.target.listing(kernels) if kernels else ""

    def __str__(self) -> str:
        listed = [str(kernel) for kernel in self.kernels[:LISTED]]
        rest = len(self.kernels) - len(listed)
        more = [f"and {rest} more: see .kernels"] if rest else []
        stages = [f"  {line}" for line in stage_lines(self.stages)]
        return "\n".join([*self.head_lines(), "", "stages", *stages, "", *listed, *more])

    def _repr_html_(self) -> str:
        return explanation_html(self)

    def head_lines(self) -> Iterator[str]:
        """What is told first: counts, sizes, work and memory."""
        kinds = [kernel.kind for kernel in self.kernels]
        counts = [count_text(kinds.count(k), *words) for k, words in _KINDS.items() if k in kinds]
        nodes = f"{len(self.graph.nodes)} nodes recorded, {len(self.optimized.nodes)} after passes"
        yield f"{nodes}: {', '.join(counts) or 'nothing to compute'}"
        if self.sizes:
            yield "sizes: " + ", ".join(f"{name} = {size}" for name, size in self.sizes.items())
        read, written = (sum(getattr(k, s) for k in self.kernels) for s in ("read", "written"))
        yield (
            f"{amount(self.flops)}FLOP, {readable_size(read)} read, "
            f"{readable_size(written)} written; peak memory {readable_size(self.memory.peak)}"
        )
        if self.recomputed:
            saved = readable_size(sum(value.bytes for value in self.recomputed))
            yield f"{len(self.recomputed)} values of {saved} are computed again to save memory"


_KINDS = {
    "kernel": ("kernel", "kernels"),
    "product": ("product", "products"),
    "loop": ("loop", "loops"),
    "choice": ("choice", "choices"),
    "reference": ("call by reference", "calls by reference"),
}


def explain(graph: Graph, /, **sizes: int) -> Explanation:
    """Compile a graph and say what became of it; sizes of its symbols are given by name.

    >>> import weft as wf
    >>> graph = wf.ir.trace(lambda x: x * 2 + 1, wf.spec("float32", ("n",)))
    >>> print(explain(graph, n=1000))  # doctest: +ELLIPSIS
    2 nodes recorded, 2 after passes: 1 kernel
    sizes: n = 1000
    2.0 kFLOP, 4.0 kB read, 4.0 kB written; peak memory 8.0 kB
    <BLANKLINE>
    stages
      nothing to do: inline, dead code, fold, matrices, parts, laws, ...
      fusion: 2 nodes -> 1 step   groups 1
      lowering: 1 step -> 1 launch   kernels 1
      row fusion: 1 launch -> 1 launch
      schedule: 1 launch -> 1 launch
      memory: 2 values -> 0 places
      executable: 1 launch -> 1 piece of code   kernels to compile 1
    <BLANKLINE>
    k0           kernel     over [1000]                  2.0 kFLOP, 4.0 kB read, 4.0 kB written
        multiply, add
            ...
        stores c: f32[n], an output
    """
    if not isinstance(graph, Graph):
        raise ArgumentTypeError(
            "explain",
            "this is not a graph",
            expected="a graph, such as wf.ir.trace(f, x) gives",
            got={"graph": graph},
            fix="wf.explain(wf.ir.trace(f, x)), or of a compiled function: step.explain(x)",
        )
    plan = plan_program(graph, default_target())
    symbols = symbols_of(graph)
    missing = [name for name in symbols if type(sizes.get(name)) is not int]
    if missing:
        raise ArgumentError(
            "explain",
            "the sizes of some symbols are not known",
            expected="a number for each symbol: " + ", ".join(symbols),
            got=dict(sizes),
            fix=f"wf.explain(graph, {missing[0]}=32)",
        )
    return _explanation(graph, plan, sizes)


def explanation(
    graph: Graph,
    types: Sequence[TensorType],
    target: Target,
    donated: Callable[[ProgramPlan], Sequence[Donation]] = lambda plan: (),
    names: Names = UNNAMED,
    recomputed: tuple[Recomputed, ...] = (),
    fixed: Sequence[int] = (),
) -> Explanation:
    """The same for inputs of these types; some the caller lets go of, others stay the same."""
    plan = plan_program(graph, target, fixed)
    inputs: list[Any] = list(types)  # which have shapes, as arrays do
    made = _explanation(graph, plan, read_sizes(graph, inputs), donated(plan), names)
    return replace(made, recomputed=recomputed)


def _explanation(
    graph: Graph,
    plan: ProgramPlan,
    sizes: Sizes,
    donated: Sequence[Donation] = (),
    names: Names = UNNAMED,
) -> Explanation:
    return Explanation(graph, plan, dict(sizes), tuple(donated), names)


# --- kernels -----------------------------------------------------------------------------------


def kernel_reports(
    plan: ProgramPlan, sizes: Sizes, donated: Sequence[Donation] = ()
) -> list[KernelReport]:
    """The calls of a program with what they compute and cost, for some sizes."""
    return _Reports(plan, sizes, donated).all()


class _Reports:
    """What is looked up while the calls of one program, or section of it, are described."""

    def __init__(self, plan: ProgramPlan, sizes: Sizes, donated: Sequence[Donation]) -> None:
        graph = plan.graph
        reused = plan.planner.plan_for(sizes).reused
        self.in_place = {value for value, slot in plan.slots.items() if str(slot) in reused}
        self.in_place |= {graph.outputs[output] for output, _ in donated}
        self.plan, self.sizes = plan, sizes
        self.names = name_variables(graph)
        self.producer = {result: node for node in graph.nodes for result in node.results}
        self.order = {node: position for position, node in enumerate(graph.nodes)}
        self.reasons = why_stored(graph, is_lowered, plan.target.limits.fusion)
        self.groups = {
            root.target[0]: step
            for step in plan.steps
            if isinstance(step, Group)
            for root in step.roots
        }
        self.readers: dict[Variable, list[Launch]] = {}
        self.place: dict[int, int] = {}
        for position, launch in enumerate(plan.launches):
            for part in _launches_run(launch):
                self.place[id(part)] = position
                for value in {v for v in part.values if isinstance(v, Variable)} - {*part.writes}:
                    self.readers.setdefault(value, []).append(part)

        self.packed = {value for value in self.readers if value.type.shape != (0,)}

    def all(self) -> list[KernelReport]:
        """A report of each launch."""
        return [self.report(launch) for launch in self.plan.launches]

    def report(self, launch: Launch) -> KernelReport:
        """The report of one launch."""
        if launch.nested is not None:
            return self.control(launch, launch.nested)
        if launch.members:
            return self.grouped_launch(launch)
        if launch.stages:
            return self.row_fusion(launch)
        is_update = launch.updates and launch.group is None and launch.kind is not Kind.COLLECTIVE
        if launch.kind is Kind.COPY or is_update:
            return self.update(launch)
        nodes = self.fused_nodes(launch.group) if launch.group else self._node_of_launch(launch)
        reads = {v for v in launch.values if v not in launch.writes}
        writes = [v for v in launch.writes if v in self.names or v in self.packed]
        is_end = any(isinstance(v, BlockResults) for v in reads)  # its operations are counted
        return KernelReport(
            launch.name,
            self.kind(launch, nodes),
            self.space(launch.group)
            if launch.group
            else " · ".join(str(v.type) for v in launch.values if v in reads),
            tuple(nodes),
            tuple(self.stored_value(launch, value) for value in writes),
            why_by_reference(launch.node) if launch.node is not None else "",
            sum(bytes_of(value.type, self.sizes) for value in reads),
            sum(bytes_of(value.type, self.sizes) for value in writes),
            sum(operations(node, self.sizes) for node in ([] if is_end else nodes)),
        )

    def update(self, launch: Launch) -> KernelReport:
        """The report of a copy, which is left out where it is there, or of what then changes it."""
        (result,), copies = launch.writes, launch.kind is Kind.COPY
        node = self.producer[result]
        there = copies and result in self.in_place
        touched = 0 if there else bytes_of(node.operands[0 if copies else 1].type, self.sizes)
        others = [] if copies else node.operands[2:]
        return KernelReport(
            launch.name,
            "kernel",
            "nothing, it is there"
            if there
            else " · ".join(str(v.type) for v in launch.values[:-1]),
            () if copies else (node,),
            () if copies else (self.stored_value(launch, result),),
            "",
            touched + sum(bytes_of(value.type, self.sizes) for value in others),
            touched,
            0 if copies else operations(node, self.sizes),
        )

    def control(self, launch: Launch, nested: Nested) -> KernelReport:
        """The report of a loop or a choice: what is inside, as often as it is known to be run."""
        node, name = nested.node, nested.node.primitive.name
        stay = [carries_in_place(node, nested.plans[0]), *[()] * (len(nested.plans) - 1)]
        pairs = zip(nested.plans, stay, strict=True)
        inner = [tuple(kernel_reports(part, self.sizes, donated)) for part, donated in pairs]
        steps = nested.form.steps(self.sizes)
        costs = [
            [_total(kernels, plan.once, steps, key) for key in ("read", "written", "flops")]
            for plan, kernels in zip(nested.plans, inner, strict=True)
        ]
        together = max if name == "switch" and not node.params["rows"] else sum
        read, written, flops = [together(column) for column in zip(*costs, strict=True)]
        labels = _LABELS.get(name) or [f"branch {number}" for number in range(len(inner))]
        return KernelReport(
            name,
            "choice" if name == "switch" else "loop",
            self.course(node, steps),
            (node,),
            tuple(self.stored_value(launch, value) for value in launch.writes),
            "",
            read,
            written,
            flops,
            tuple(zip(labels, inner, strict=False)),
        )

    def course(self, node: GraphNode, steps: int) -> str:
        """How often what is inside a node is run."""
        if node.primitive.name == "scan":
            back = ", the last first" if node.params["reverse"] else ""
            return count_text(steps, "step", "steps") + back
        if node.primitive.name == "while":
            most = node.params["max_steps"]
            return "as long as it holds" if most is None else f"at most {most} steps"
        count = len(node.params["branches"])
        return f"{count} branches, by row" if node.params["rows"] else f"one of {count} branches"

    def kind(self, launch: Launch, nodes: Sequence[GraphNode]) -> str:
        if launch.node is not None:
            return "reference"
        names = [node.primitive.name for node in nodes]
        return "product" if names in (["dot"], ["dot_wide"]) else "kernel"

    def _node_of_launch(self, launch: Launch) -> list[GraphNode]:
        """The node of a launch; none for the packing of an operand, which is part of a product."""
        known = launch.node or self.producer.get(launch.writes[0])
        if launch.kind is Kind.SUM:  # adds up what the convolution before it has multiplied
            return []
        if launch.kind is Kind.CONVOLUTION and known is None:
            (reader,) = self.readers[launch.writes[0]]
            known = self.producer.get(reader.writes[0])
        return [] if known is None else [known]

    def row_fusion(self, launch: Launch) -> KernelReport:
        """The report of a product with what is computed on its rows, block by block."""
        parts = [self.report(stage) for stage in launch.stages]
        reads = {v for v in launch.values if v not in launch.writes}
        return KernelReport(
            launch.name,
            "product",
            " · ".join(str(v.type) for v in launch.stages[0].values[:2]) + " and its rows",
            tuple(node for part in parts for node in part.nodes),
            tuple(self.stored_value(launch, value) for value in launch.writes),
            "",
            sum(bytes_of(value.type, self.sizes) for value in reads),
            sum(bytes_of(value.type, self.sizes) for value in launch.writes),
            sum(part.flops for part in parts),
        )

    def grouped_launch(self, launch: Launch) -> KernelReport:
        """The report of calls that are run as one."""
        members = tuple(self.report(member) for member in launch.members)
        kinds = {member.kind for member in members}
        return KernelReport(
            launch.name,
            kinds.pop() if len(kinds) == 1 else "kernel",
            f"{len(members)} at once",
            tuple(node for member in members for node in member.nodes),
            tuple(value for member in members for value in member.stored),
            "",
            sum(member.read for member in members),
            sum(member.written for member in members),
            sum(member.flops for member in members),
            members=members,
        )

    def space(self, group: Group) -> str:
        """The loops of a kernel: rows, and what lies in a row."""
        inner = f", in each row {self.shape(group.inner)}" if group.inner else ""
        return f"over {self.shape(group.outer)}{inner}"

    def shape(self, shape: Shape) -> str:
        return str([number(dim, self.sizes) for dim in shape])

    def fused_nodes(self, group: Group) -> list[GraphNode]:
        """The nodes that are computed in a kernel, in the order of the graph."""
        stack = [root.node for root in group.roots]
        members = {root.variable for root in group.roots}
        given = {atom for root in group.roots for atom, _ in root.reads} - members
        found = {self.producer[root.part.whole]: None for root in group.roots if root.part}
        while stack:
            node = stack.pop()
            if node not in found:
                found[node] = None
                inner = [a for a in node.operands if isinstance(a, Variable) and a not in given]
                stack += [self.producer[atom] for atom in inner if atom in self.producer]
        return sorted(filter(self.order.__contains__, found), key=self.order.__getitem__)

    def stored_value(self, launch: Launch, value: Variable) -> StoredValue:
        """A value that is written, and why."""
        unnamed = "parts" if isinstance(value, BlockResults) else "packed"
        known = self.names.get(value) or ("sums" if value in self.groups else unnamed)
        reason = self.reasons.get(value) or _REASONS.get(known, _LATER)
        if reason != "an output":
            readers = self.readers.get(value, [])
            apart = [self.reason_apart(value, launch, reader) for reader in readers]
            reason = "; ".join([reason, *[why for why in apart if why]])
        node = self.producer.get(value)
        at = None if node is None else node.location
        size = bytes_of(value.type, self.sizes)
        return StoredValue(known, str(value.type), size, reason, at)

    def reason_apart(self, value: Variable, launch: Launch, reader: Launch) -> str:
        """Why a kernel that reads a value is not the one that computes it."""
        mine, other = self.groups.get(value), reader.group
        if mine is None or other is None or mine is other:
            return ""
        whole, whole_of_other = mine.outer + mine.inner, other.outer + other.inner
        waits = self._waits_for(value, launch, reader)
        if waits is not None:
            named = self.names.get(waits, "a packed operand")
            return f"{reader.name} also needs {named}, which is made later"
        if whole_of_other != whole and whole_of_other != mine.outer:
            runs = f"{reader.name} runs over {self.shape(whole_of_other)}"
            return f"{runs}, this kernel over {self.shape(whole)}"
        if other.inner and mine.inner and other.inner != mine.inner:
            return f"{reader.name} has its rows along other axes"
        return f"{reader.name} reads it at other places than its own"

    def _waits_for(self, value: Variable, launch: Launch, reader: Launch) -> Variable | None:
        """What a reader reads that is made after this launch."""
        begin, end = self.place[id(launch)], self.place[id(reader)]
        later = {v for each in self.plan.launches[begin + 1 : end] for v in each.writes}
        needed = [v for v in reader.values if isinstance(v, Variable) and v is not value]
        return next((v for v in needed if v in later), None)


_LABELS = {"scan": ["body"], "while": ["body", "condition"]}
"""What the sections of a loop are called."""


def _total(kernels: Sequence[KernelReport], once: int, steps: int, key: str) -> int:
    """The sum over all steps; the first calls are made once."""
    costs: list[int] = [getattr(kernel, key) for kernel in kernels]
    return sum(costs[:once]) * min(steps, 1) + sum(costs[once:]) * steps


_LATER = "a later loop of this kernel reads it"
_REASONS = {
    "packed": "read by a product",
    "sums": "sums of a few rows each, to be added up",
    "parts": "results of blocks of a reduction",
}


def _launches_run(launch: Launch) -> Iterator[Launch]:
    """A launch, or those that it runs."""
    inner = launch.members or launch.stages
    for each in inner:
        yield from _launches_run(each)
    if not launch.members:
        yield launch


def why_by_reference(node: GraphNode) -> str:
    """The reason why a node is computed by its reference."""
    kinds = [atom.type.dtype for atom in (*node.operands, *node.results)]
    if any(kind.is_complex for kind in kinds):
        return "complex numbers are computed by reference"
    if node.primitive.impure:
        return "it has an effect"
    lower = node.primitive.lower
    if isinstance(lower, Unsupported):
        return lower.reason
    if lower is None:
        return f"{node.primitive.name} has no loops for this call"
    reason = why_not_lowered(node.primitive, kinds[:-1], kinds[-1], node.params)
    return reason or f"{node.primitive.name} has no loops for this launch"
