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
from dataclasses import dataclass, field, replace
from functools import cached_property
from textwrap import indent
from typing import Any

from weft.compiler.function.value_names import UNNAMED, Names
from weft.compiler.fusion.costs import Sizes, bytes_of, number, operations
from weft.compiler.fusion.grouping import Group, why_stored
from weft.compiler.lowering.groups import is_lowered
from weft.compiler.pipeline import PassReport, optimize_with_report
from weft.compiler.plan.control_flow import staying
from weft.compiler.plan.in_place import is_copy
from weft.compiler.plan.launch import Call, Nested
from weft.compiler.plan.program_plan import Section
from weft.compiler.report.memory_use import MemoryReport, Recomputed, memory_report
from weft.compiler.report.text import amount, counted, place, several
from weft.compiler.targets.cpu.llvm.engine import assembly
from weft.compiler.targets.cpu.runtime.executable import Donation
from weft.compiler.targets.cpu.runtime.program import Program
from weft.core.errors import ArgumentError, ArgumentTypeError, Unsupported
from weft.core.locations import Location
from weft.core.shapes import Shape
from weft.core.types import TensorType
from weft.ir.graph import Graph, GraphNode, Variable
from weft.ir.printing import name_variables
from weft.ir.scalar_functions import why_not_lowered
from weft.runtime.arena import readable

__all__ = ["Explanation", "KernelReport", "StoredValue", "explain", "kernel_reports"]

LISTED = 200
"""How many kernels a report lists before it only counts the rest."""


@dataclass(frozen=True, slots=True)
class StoredValue:
    """A value that a kernel writes to memory: under which name in the graph, and why."""

    name: str
    type: str
    bytes: int
    reason: str
    at: Location | None


@dataclass(frozen=True, slots=True)
class KernelReport:
    """One call of a compiled program.

    kind: "kernel" for generated loops, "product", "loop" or "choice" for control flow, or
    "reference" for a call back into Python, whose `reason` says why there is no kernel. nodes: what
    was fused into it, in order. sections: what is run inside, under "body", "branch 0" and so on.
    members: the calls of an ensemble, which are run as one.
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
        costs = f"{amount(self.flops)}FLOP, {readable(self.read)} read,"
        lines = [f"{head:<52} {costs} {readable(self.written)} written"]
        if self.members:
            return "\n".join([*lines, *self._members()])
        lines += [f"    by reference: {self.reason}"] if self.reason else []
        for line, names in self.lines.items():
            lines.append(f"    {counted(names)}")
            lines += [f"        {line}"] if line else []
        for value in self.stored:
            lines.append(f"    stores {value.name}: {value.type}, {value.reason}")
        for label, kernels in self.sections:
            lines.append(f"    {label}" + ("" if kernels else ": nothing to compute"))
            lines += [indent(str(kernel), " " * 6) for kernel in kernels]
        return "\n".join(lines)

    def _members(self) -> Iterator[str]:
        """The members of an ensemble: those that compute the same on one another's sizes as one."""
        alike: dict[tuple[str, ...], list[KernelReport]] = {}
        for member in self.members:
            alike.setdefault(tuple(sorted(member.primitives)), []).append(member)
        for members in alike.values():
            first, count = members[0], len(members)
            name = first.name if count == 1 else f"{first.name} ×{count}"
            yield f"    {name}: {counted([member.space for member in members])}"
            yield f"        {counted(first.primitives)}"
            yield from [f"            {line}" for line in first.lines if line]
            yield f"        stores {counted([each.type for m in members for each in m.stored])}"


@dataclass(frozen=True)
class Explanation:
    """What a graph was compiled to; `print` it, or read its fields.

    graph: as recorded; optimized: after the passes; passes: what each run of them did.
    """

    graph: Graph
    program: Program = field(repr=False)
    passes: tuple[PassReport, ...]
    sizes: Mapping[str, int]
    donated: tuple[Donation, ...] = ()
    """Outputs that are written to an input's own array, and those inputs."""
    names: Names = UNNAMED
    """What the user calls the inputs and the state that is written, where that is known."""
    recomputed: tuple[Recomputed, ...] = ()
    """What is computed twice, so that a budget of memory is kept."""

    @property
    def optimized(self) -> Graph:
        """The graph that was cut into kernels."""
        return self.program.graph

    @cached_property
    def kernels(self) -> list[KernelReport]:
        """The calls of the program, in order."""
        return kernel_reports(self.program, self.sizes, self.donated)

    @property
    def references(self) -> list[KernelReport]:
        """The calls back into Python."""
        every = [each for kernel in self.kernels for each in (kernel, *kernel.inner)]
        return [kernel for kernel in every if kernel.kind == "reference"]

    @cached_property
    def memory(self) -> MemoryReport:
        """What it will allocate."""
        return memory_report(self.program, self.sizes, self.donated, self.recomputed)

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
        return "\n\n".join(str(lowered.kernel) for lowered in self.program.lowered)

    @cached_property
    def assembly(self) -> str:
        """The kernels in the machine's instructions."""
        kernels = [lowered.kernel for lowered in self.program.lowered]
        return assembly(kernels) if kernels else ""

    def __str__(self) -> str:
        listed = [str(kernel) for kernel in self.kernels[:LISTED]]
        rest = len(self.kernels) - len(listed)
        more = [f"and {rest} more: see .kernels"] if rest else []
        return "\n".join([*self._head(), "", *self._passes(), "", *listed, *more])

    def _head(self) -> Iterator[str]:
        kinds = [kernel.kind for kernel in self.kernels]
        counts = [several(kinds.count(k), *words) for k, words in _KINDS.items() if k in kinds]
        nodes = f"{len(self.graph.nodes)} nodes recorded, {len(self.optimized.nodes)} after passes"
        yield f"{nodes}: {', '.join(counts) or 'nothing to compute'}"
        if self.sizes:
            yield "sizes: " + ", ".join(f"{name} = {size}" for name, size in self.sizes.items())
        read, written = (sum(getattr(k, s) for k in self.kernels) for s in ("read", "written"))
        yield (
            f"{amount(self.flops)}FLOP, {readable(read)} read, {readable(written)} written; "
            f"peak memory {readable(self.memory.peak)}"
        )
        if self.recomputed:
            saved = readable(sum(value.bytes for value in self.recomputed))
            yield f"{len(self.recomputed)} values of {saved} are computed again to save memory"

    def _passes(self) -> list[str]:
        changed = [str(report) for report in self.passes if report.rewrites]
        return ["passes", *[f"  {line}" for line in changed or ["nothing to do"]]]


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
    passes
      nothing to do
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
    program = Program(graph)
    missing = [name for name in program.symbols if type(sizes.get(name)) is not int]
    if missing:
        raise ArgumentError(
            "explain",
            "the sizes of some symbols are not known",
            expected="a number for each symbol: " + ", ".join(program.symbols),
            got=dict(sizes),
            fix=f"wf.explain(graph, {missing[0]}=32)",
        )
    return _explanation(graph, program, sizes)


def explanation(
    graph: Graph,
    types: Sequence[TensorType],
    donated: Callable[[Program], Sequence[Donation]] = lambda program: (),
    names: Names = UNNAMED,
    recomputed: tuple[Recomputed, ...] = (),
    fixed: Sequence[int] = (),
) -> Explanation:
    """The same for inputs of these types; some the caller lets go of, others stay the same."""
    program = Program(graph, fixed)
    inputs: list[Any] = list(types)  # which have shapes, as arrays do
    made = _explanation(graph, program, program.read_sizes(inputs), donated(program), names)
    return replace(made, recomputed=recomputed)


def _explanation(
    graph: Graph,
    program: Program,
    sizes: Sizes,
    donated: Sequence[Donation] = (),
    names: Names = UNNAMED,
) -> Explanation:
    passes = tuple(optimize_with_report(graph)[1])
    return Explanation(graph, program, passes, dict(sizes), tuple(donated), names)


# --- kernels -----------------------------------------------------------------------------------


def kernel_reports(
    program: Section, sizes: Sizes, donated: Sequence[Donation] = ()
) -> list[KernelReport]:
    """The calls of a program with what they compute and cost, for some sizes."""
    return _Reports(program, sizes, donated).all()


class _Reports:
    """What is looked up while the calls of one program, or section of it, are described."""

    def __init__(self, program: Section, sizes: Sizes, donated: Sequence[Donation]) -> None:
        graph = program.graph
        reused = program.planner.at(sizes).reused
        self.in_place = {value for value, slot in program.slots.items() if str(slot) in reused}
        self.in_place |= {graph.outputs[output] for output, _ in donated}
        self.program, self.sizes = program, sizes
        self.names = name_variables(graph)
        self.producer = {result: node for node in graph.nodes for result in node.results}
        self.order = {node: position for position, node in enumerate(graph.nodes)}
        self.reasons = why_stored(graph, is_lowered)
        self.groups = {
            root.target[0]: step
            for step in program.steps
            if isinstance(step, Group)
            for root in step.roots
        }
        self.readers: dict[Variable, list[Call]] = {}
        self.place: dict[int, int] = {}
        for position, launch in enumerate(program.calls):
            for call in _parts(launch):
                self.place[id(call)] = position
                for value in {v for v in call.values if isinstance(v, Variable)} - {*call.writes}:
                    self.readers.setdefault(value, []).append(call)

        self.packed = {value for value in self.readers if value.type.shape != (0,)}

    def all(self) -> list[KernelReport]:
        """A report of each call."""
        return [self.report(call) for call in self.program.calls]

    def report(self, call: Call) -> KernelReport:
        """The report of one call."""
        if call.nested is not None:
            return self.control(call, call.nested)
        if call.members:
            return self.ensemble(call)
        if call.stages:
            return self.chain(call)
        if is_copy(call) or (call.updates and call.group is None):
            return self.update(call)
        nodes = self.fused(call.group) if call.group else self._single(call)
        reads = {v for v in call.values if v not in call.writes}
        writes = [v for v in call.writes if v in self.names or v in self.packed]
        return KernelReport(
            call.name,
            self.kind(call, nodes),
            self.space(call.group)
            if call.group
            else " · ".join(str(v.type) for v in call.values if v in reads),
            tuple(nodes),
            tuple(self.stored(call, value) for value in writes),
            why_by_reference(call.node) if call.node is not None else "",
            sum(bytes_of(value.type, self.sizes) for value in reads),
            sum(bytes_of(value.type, self.sizes) for value in writes),
            sum(operations(node, self.sizes) for node in nodes),
        )

    def update(self, call: Call) -> KernelReport:
        """The report of a copy, which is left out where it is there, or of what then changes it."""
        (result,), copies = call.writes, is_copy(call)
        node = self.producer[result]
        there = copies and result in self.in_place
        touched = 0 if there else bytes_of(node.operands[0 if copies else 1].type, self.sizes)
        others = [] if copies else node.operands[2:]
        return KernelReport(
            call.name,
            "kernel",
            "nothing, it is there" if there else " · ".join(str(v.type) for v in call.values[:-1]),
            () if copies else (node,),
            () if copies else (self.stored(call, result),),
            "",
            touched + sum(bytes_of(value.type, self.sizes) for value in others),
            touched,
            0 if copies else operations(node, self.sizes),
        )

    def control(self, call: Call, nested: Nested) -> KernelReport:
        """The report of a loop or a choice: what is inside, as often as it is known to be run."""
        node, name = nested.node, nested.node.primitive.name
        stay = [staying(node, nested.sections[0]), *[()] * (len(nested.sections) - 1)]
        pairs = zip(nested.sections, stay, strict=True)
        inner = [tuple(kernel_reports(part, self.sizes, donated)) for part, donated in pairs]
        steps = nested.steps(self.sizes)
        costs = [
            [_total(kernels, section.once, steps, key) for key in ("read", "written", "flops")]
            for section, kernels in zip(nested.sections, inner, strict=True)
        ]
        together = max if name == "switch" and not node.params["rows"] else sum
        read, written, flops = [together(column) for column in zip(*costs, strict=True)]
        labels = _LABELS.get(name) or [f"branch {number}" for number in range(len(inner))]
        return KernelReport(
            name,
            "choice" if name == "switch" else "loop",
            self.course(node, steps),
            (node,),
            tuple(self.stored(call, value) for value in call.writes),
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
            return several(steps, "step", "steps") + back
        if node.primitive.name == "while":
            most = node.params["max_steps"]
            return "as long as it holds" if most is None else f"at most {most} steps"
        count = len(node.params["branches"])
        return f"{count} branches, by row" if node.params["rows"] else f"one of {count} branches"

    def kind(self, call: Call, nodes: Sequence[GraphNode]) -> str:
        if call.node is not None:
            return "reference"
        names = [node.primitive.name for node in nodes]
        return "product" if names in (["dot"], ["dot_wide"]) else "kernel"

    def _single(self, call: Call) -> list[GraphNode]:
        """The node of a call; none for the packing of an operand, which is part of a product."""
        known = call.node or self.producer.get(call.writes[0])
        if call.name == "sum":  # adds up what the convolution before it has multiplied
            return []
        if call.name == "conv" and known is None:
            (reader,) = self.readers[call.writes[0]]
            known = self.producer.get(reader.writes[0])
        return [] if known is None else [known]

    def chain(self, call: Call) -> KernelReport:
        """The report of a product with what is computed on its rows, block by block."""
        parts = [self.report(stage) for stage in call.stages]
        reads = {v for v in call.values if v not in call.writes}
        return KernelReport(
            call.name,
            "product",
            " · ".join(str(v.type) for v in call.stages[0].values[:2]) + " and its rows",
            tuple(node for part in parts for node in part.nodes),
            tuple(self.stored(call, value) for value in call.writes),
            "",
            sum(bytes_of(value.type, self.sizes) for value in reads),
            sum(bytes_of(value.type, self.sizes) for value in call.writes),
            sum(part.flops for part in parts),
        )

    def ensemble(self, call: Call) -> KernelReport:
        """The report of calls that are run as one."""
        members = tuple(self.report(member) for member in call.members)
        kinds = {member.kind for member in members}
        return KernelReport(
            call.name,
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

    def fused(self, group: Group) -> list[GraphNode]:
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

    def stored(self, call: Call, value: Variable) -> StoredValue:
        """A value that is written, and why."""
        known = self.names.get(value) or ("sums" if value in self.groups else "packed")
        reason = self.reasons.get(value) or _REASONS.get(known, _LATER)
        if reason != "an output":
            apart = [self.apart(value, call, reader) for reader in self.readers.get(value, [])]
            reason = "; ".join([reason, *[why for why in apart if why]])
        node = self.producer.get(value)
        at = None if node is None else node.location
        size = bytes_of(value.type, self.sizes)
        return StoredValue(known, str(value.type), size, reason, at)

    def apart(self, value: Variable, call: Call, reader: Call) -> str:
        """Why a kernel that reads a value is not the one that computes it."""
        mine, other = self.groups.get(value), reader.group
        if mine is None or other is None or mine is other:
            return ""
        whole, whole_of_other = mine.outer + mine.inner, other.outer + other.inner
        waits = self._waits_for(value, call, reader)
        if waits is not None:
            named = self.names.get(waits, "a packed operand")
            return f"{reader.name} also needs {named}, which is made later"
        if whole_of_other != whole and whole_of_other != mine.outer:
            runs = f"{reader.name} runs over {self.shape(whole_of_other)}"
            return f"{runs}, this kernel over {self.shape(whole)}"
        if other.inner and mine.inner and other.inner != mine.inner:
            return f"{reader.name} has its rows along other axes"
        return f"{reader.name} reads it at other places than its own"

    def _waits_for(self, value: Variable, call: Call, reader: Call) -> Variable | None:
        """What a reader reads that is made after this call."""
        begin, end = self.place[id(call)], self.place[id(reader)]
        later = {v for each in self.program.calls[begin + 1 : end] for v in each.writes}
        needed = [v for v in reader.values if isinstance(v, Variable) and v is not value]
        return next((v for v in needed if v in later), None)


_LABELS = {"scan": ["body"], "while": ["body", "condition"]}
"""What the sections of a loop are called."""


def _total(kernels: Sequence[KernelReport], once: int, steps: int, key: str) -> int:
    """The sum over all steps; the first calls are made once."""
    costs: list[int] = [getattr(kernel, key) for kernel in kernels]
    return sum(costs[:once]) * min(steps, 1) + sum(costs[once:]) * steps


_LATER = "a later loop of this kernel reads it"
_REASONS = {"packed": "read by a product", "sums": "sums of a few rows each, to be added up"}


def _parts(call: Call) -> Iterator[Call]:
    """A call, or those that it runs."""
    inner = call.members or call.stages
    for each in inner:
        yield from _parts(each)
    if not call.members:
        yield call


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
    return reason or f"{node.primitive.name} has no loops for this call"
