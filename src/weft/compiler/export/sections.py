"""A plan as straight code: one call for each launch, loops and choices as loops and conditions.

What is written is the same for every form of a program; a `Writer` says how it looks, as LLVM's
text or as C. Where a value lies is known here: it is bound to an address from outside, or has a
place in the memory of its plan.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Protocol, cast

import numpy as np

from weft.compiler.export.scratch import scratch_bytes
from weft.compiler.plan.control_flow import Choice, Loop
from weft.compiler.plan.launch import Kind, Launch, Sizes, Value, bytes_of, substitute_all
from weft.compiler.plan.program_plan import ProgramPlan
from weft.compiler.targets.cpu.cache.kernels import text_of
from weft.core.dtypes import DType, bool_
from weft.core.errors import UnsupportedError
from weft.core.locations import Location
from weft.ir.graph import GraphNode, Literal, Variable
from weft.ir.loops import Kernel

Operand = str | int
NO_SIZES: Sizes = {}


class Assignable(Protocol):
    """A value that is assigned anew along the way."""

    value: str


class Writer(Protocol):
    """Writes one function: what `IRBuilder` has, and calls of kernels."""

    def launch(
        self,
        function: str,
        buffers: Sequence[str],
        numbers: Sequence[int],
        begin: Operand,
        end: Operand,
    ) -> None:
        """Call a kernel with these buffers and numbers, for a part of its iterations."""

    def reserve(self, pointer: str) -> None:
        """Say where the scratch memory of the kernels that are called next begins."""

    def place(self, pointer: str, offset: Operand) -> str:
        """An address so many bytes further."""

    def integer(self, dtype: DType, pointer: str, place: Operand) -> str:
        """An integer in memory, as one of 64 bits."""

    def copy(self, target: str, source: str, count: Operand) -> None:
        """Copy so many bytes."""

    def clear(self, target: str, count: Operand) -> None:
        """Fill so many bytes with zeros."""

    def variable(self, start: Operand) -> Assignable:
        """A value that loops and conditions from here on may change."""

    def loop(self, start: Operand, end: Operand) -> AbstractContextManager[str]:
        """A loop from a number to below another one; gives the index."""

    def repeat(self) -> AbstractContextManager[None]:
        """A loop that `leave_unless` ends."""

    def leave_unless(self, condition: str) -> None:
        """Go on behind the innermost loop where a condition does not hold."""

    def when(self, condition: str) -> AbstractContextManager[None]:
        """What is done where a condition holds."""

    def test(self, how: str, a: Operand, b: Operand) -> str:
        """A comparison, as `slt`."""

    def select(self, condition: str, yes: Operand, no: Operand) -> str:
        """One of two values."""

    def add(self, a: Operand, b: Operand) -> str:
        """A sum."""

    def sub(self, a: Operand, b: Operand) -> str:
        """A difference."""

    def mul(self, a: Operand, b: Operand) -> str:
        """A product."""

    def div(self, a: Operand, b: Operand) -> str:
        """A quotient."""

    def give(self, value: Operand | None = None) -> None:
        """Return from the function."""

    def has_failed(self) -> str:
        """Whether a kernel has reported an error."""


class RowWriter(Writer, Protocol):
    """Writes a function in the convention of kernels, for a part of the blocks of rows."""

    scratch: str
    """Where the scratch memory of the thread begins that runs it."""

    def given(self, place: int) -> str:
        """One of the buffers that it is given."""


class ThreadedWriter(Writer, Protocol):
    """A writer whose functions several threads may run."""

    def launch_parallel(
        self, function: str, buffers: Sequence[str], numbers: Sequence[int], end: int, grain: int
    ) -> None:
        """Call a kernel by all threads, in chunks of so many iterations."""

    def row_function(self, name: str) -> RowWriter:
        """What writes a function in the convention of kernels, which this one may launch."""


@dataclass
class Needs:
    """What the code of a program needs: functions, tables, constants, memory, messages."""

    kernels: dict[str, tuple[str, Kernel]] = field(default_factory=dict)
    """By digest: a name, and the kernel."""
    texts: dict[tuple[str, ...], str] = field(default_factory=dict)
    """By symbol: the name of a function that is written by hand."""
    tables: dict[tuple[int, ...], str] = field(default_factory=dict)
    constants: dict[int, tuple[str, Literal]] = field(default_factory=dict)
    """By identity of the literal: a name, and the literal."""
    messages: list[str] = field(default_factory=list)
    scratch: int = 0
    """Bytes of scratch memory that kernels take at most."""
    buffers: int = 1
    """The most buffers of a call."""
    threads: int = 1
    row_functions: int = 0
    """How many functions there are that run row fusions for a part of their blocks."""

    def function(self, launch: Launch) -> str:
        """The name of the function that a launch calls."""
        kernel = launch.kernel
        if isinstance(kernel, Kernel):
            known = self.kernels.get(kernel.digest)
            if known is None:
                title = re.sub(r"\W+", "_", kernel.name)
                known = f"kernel_{len(self.kernels)}_{title}", kernel
                self.kernels[kernel.digest] = known
            return known[0]
        assert kernel[0] == "text", kernel
        return self.texts.setdefault(kernel, f"native_{len(self.texts)}_{kernel[2]}")

    def table(self, numbers: Sequence[int]) -> str:
        """The name of a table of numbers; an empty one is any."""
        key = tuple(int(number) for number in numbers) or (0,)
        return self.tables.setdefault(key, f"numbers_{len(self.tables)}")

    def constant(self, literal: Literal) -> str:
        """The name of a constant in memory."""
        known = self.constants.get(id(literal))
        if known is None:
            same = next((n for n, c in self.constants.values() if _is_same(c, literal)), None)
            name = same or f"constant_{len(self.constants)}"
            known = self.constants[id(literal)] = name, literal
        return known[0]

    def message(self, text: str) -> int:
        """The status that stands for an error."""
        if text not in self.messages:
            self.messages.append(text)
        return self.messages.index(text) + 1


def _is_same(one: Literal, other: Literal) -> bool:
    a, b = np.asarray(one.value), np.asarray(other.value)
    return a.dtype == b.dtype and a.shape == b.shape and a.tobytes() == b.tobytes()


class Section:
    """Writes the launches of one plan into a function, and of those inside it."""

    def __init__(
        self,
        out: Writer,
        needs: Needs,
        plan: ProgramPlan,
        bound: Mapping[Value, str],
        memory: str,
        scratch: tuple[str, int],
        error: str,
    ) -> None:
        """bound: where values from outside are; memory: where the plan's own is.

        scratch: where scratch memory begins, and how much of it is taken already.
        """
        self.out, self.needs, self.plan, self.error = out, needs, plan, error
        self.bound, self.memory, self.scratch = dict(bound), memory, scratch
        self.offsets = plan.planner.at(NO_SIZES).offsets

    def address(self, value: Value) -> str:
        """Where a value is."""
        root = self.plan.root(value)
        if root in self.bound:
            return self.bound[root]
        if root is self.plan.error:
            return self.error
        if isinstance(root, Literal):
            return self.needs.constant(root)
        return self.out.place(self.memory, self.offsets[str(self.plan.slots[root])])

    def _location(self, value: Value) -> object:
        """What two values have in common that are in one place."""
        root = self.plan.root(value)
        if root in self.bound:
            return self.bound[root]
        return root if isinstance(root, Literal) else self.offsets[str(self.plan.slots[root])]

    def run(self, launches: Sequence[Launch]) -> None:
        """Write launches in order."""
        for launch in launches:
            self._launch(launch)
            if launch.checked is not None and not launch.is_sure and launch.nested is None:
                with self.out.when(self.out.has_failed()):
                    self.out.give(self._status(launch.checked))

    def bind_outputs(self, targets: Sequence[str]) -> list[tuple[int, str]]:
        """Bind outputs that the plan makes to where they go; those that must be copied there.

        Inputs, constants and further outputs with the same value are copied afterwards.
        """
        copied: list[tuple[int, str]] = []
        taken = {self.plan.root(variable) for variable in self.plan.graph.inputs}
        for place, (atom, target) in enumerate(zip(self.plan.graph.outputs, targets, strict=True)):
            root = self.plan.root(atom)
            if isinstance(root, Variable) and root not in taken:
                taken.add(root)
                self.bound[root] = target
            else:
                copied.append((place, target))
        return copied

    def copy_outputs(self, copied: Sequence[tuple[int, str]]) -> None:
        """Write the copies of outputs that the plan does not make in their place."""
        for place, target in copied:
            atom = self.plan.graph.outputs[place]
            self.out.copy(target, self.address(atom), bytes_of(atom.type, NO_SIZES))

    # --- launches --------------------------------------------------------------------------------

    def _launch(self, launch: Launch) -> None:
        if launch.kind in (Kind.REFERENCE, Kind.LIBRARY, Kind.FACTORIZATION):
            raise refuse_launch(launch, self.plan)
        if launch.nested is not None:
            form = launch.nested.form
            if isinstance(form, Loop):
                self._loop(launch, form)
            else:
                self._choice(launch, form)
        elif launch.blocks is not None:
            self._row_fusion(launch)
        elif launch.members:
            self.run(launch.members)
        elif launch.kind is Kind.COPY:
            source, target = launch.values[:2]
            if self._location(source) != self._location(target):
                size = launch.numbers(NO_SIZES)[0]
                self.out.copy(self.address(target), self.address(source), size)
        else:
            buffers = [self.address(value) for value in launch.values]
            extent, grain = launch.extent(NO_SIZES), max(1, launch.grain(NO_SIZES))
            if self.needs.threads > 1 and extent > grain:
                self._call_parallel(launch, buffers, extent, grain)
            else:
                self._call(launch, buffers, 0, extent)

    def _call_parallel(
        self, launch: Launch, buffers: Sequence[str], extent: int, grain: int
    ) -> None:
        """Let all threads call the function of a launch, each in scratch memory of its own."""
        function, numbers = self.needs.function(launch), launch.numbers(NO_SIZES)
        self._reserve(scratch_bytes(launch, numbers, text_of))
        self.needs.buffers = max(self.needs.buffers, len(buffers))
        cast(ThreadedWriter, self.out).launch_parallel(function, buffers, numbers, extent, grain)

    def _reserve(self, needed: int) -> None:
        base, before = self.scratch
        self.needs.scratch = max(self.needs.scratch, before + needed)
        self.out.reserve(self.out.place(base, before))

    def _call(
        self, launch: Launch, buffers: Sequence[str], begin: Operand, end: Operand, taken: int = 0
    ) -> None:
        """Call the function of a launch; so much of the scratch memory is taken before."""
        function, numbers = self.needs.function(launch), launch.numbers(NO_SIZES)
        base, before = self.scratch
        needed = scratch_bytes(launch, numbers, text_of)
        if needed:
            self.needs.scratch = max(self.needs.scratch, before + taken + needed)
            self.out.reserve(self.out.place(base, before + taken))
        self.needs.buffers = max(self.needs.buffers, len(buffers))
        self.out.launch(function, buffers, numbers, begin, end)

    def _row_fusion(self, launch: Launch) -> None:
        """All stages for one block of rows after the other; threads take blocks."""
        blocks = launch.blocks
        assert blocks is not None
        height = blocks.height(NO_SIZES)
        _, used = blocks.places(NO_SIZES, height)
        given = [self.address(value) for value in launch.values]
        extent = launch.extent(NO_SIZES)
        if self.needs.threads == 1 or extent <= 1:
            base = self.out.place(self.scratch[0], self.scratch[1])
            self.needs.scratch = max(self.needs.scratch, self.scratch[1] + used)
            self._row_blocks(launch, given, (base, used), (0, extent))
            return
        self.needs.row_functions += 1
        name = f"rows_{self.needs.row_functions}"
        caller = cast(ThreadedWriter, self.out)
        out = caller.row_function(name)
        own = [out.given(place) for place in range(len(given))]
        inner = Section(out, self.needs, self.plan, {}, "", (out.scratch, 0), self.error)
        inner._row_blocks(launch, own, (out.scratch, used), ("%begin", "%end"))
        out.give()
        self._reserve(used)
        self.needs.buffers = max(self.needs.buffers, len(given))
        grain = max(1, launch.grain(NO_SIZES))
        caller.launch_parallel(name, given, (), extent, grain)

    def _row_blocks(
        self,
        launch: Launch,
        given: Sequence[str],
        scratch: tuple[str, int],
        part: tuple[Operand, Operand],
    ) -> None:
        """Blocks of rows, from one to below another; scratch: where it begins, and what is used."""
        blocks, out, (base, used) = launch.blocks, self.out, scratch
        assert blocks is not None
        height, rows = blocks.height(NO_SIZES), blocks.rows(NO_SIZES)
        places, _ = blocks.places(NO_SIZES, height)
        with out.loop(*part) as block:
            first = out.mul(block, height)
            behind = out.add(first, height)
            last = out.select(out.test("slt", behind, rows), behind, rows)
            for stage, operands in zip(blocks.stages, blocks.operands, strict=True):
                buffers: list[str] = []
                for operand in operands:
                    if isinstance(operand, int):
                        buffers.append(given[operand])
                    else:
                        # as if the whole value began before the rows that are there
                        place, width = places[operand]
                        buffers.append(out.place(base, out.sub(place, out.mul(first, width))))
                many, few = (substitute_all(dim, NO_SIZES) for dim in (stage.many, stage.few))
                begin, end = (out.div(out.mul(row, many), few) for row in (first, last))
                self._call(stage.launch, buffers, begin, end, used)

    # --- loops -----------------------------------------------------------------------------------

    def _inner(self, plan: ProgramPlan, inputs: Sequence[str], memory: str) -> Section:
        """What writes a plan inside, whose first inputs are at these addresses."""
        bound: dict[Value, str] = dict(zip(plan.graph.inputs, inputs, strict=False))
        return Section(self.out, self.needs, plan, bound, memory, self.scratch, self.error)

    def _loop(self, launch: Launch, form: Loop) -> None:
        """A scan or a while loop: carries lie in two places in turns, or stay where they are."""
        assert launch.nested is not None
        out, node, limit = self.out, form.node, form.limit(NO_SIZES)
        operands = [self.address(atom) for atom in node.operands]
        results = [self.address(atom) for atom in node.results]
        memory = self.address(launch.nested.scratch)
        carries = _Carries(self, form, operands, results, memory)
        constants = operands[: form.num_consts]
        own = [out.place(memory, start) for start in form.plan_places(NO_SIZES)]
        for plan, place in zip(form.plans, own, strict=False):
            self._inner(plan, constants, place).run(plan.launches[: plan.once])
        xs = operands[form.num_consts + form.num_carry :]
        ys = results[form.num_carry :]
        step = out.variable(0)
        with out.repeat():
            if limit >= 0:
                out.leave_unless(out.test("slt", step.value, limit))
            if len(form.plans) == 2:
                out.leave_unless(self._condition(form.plans[1], constants, carries, own[1]))
            place = out.sub(limit - 1, step.value) if form.reverse else step.value
            body = form.plans[0]
            inputs = [*constants, *carries.places, *_rows(out, body, xs, place, form)]
            section = self._inner(body, inputs, own[0])
            kinds = body.graph.output_types[form.num_carry :]
            rows = [
                out.place(y, out.mul(place, bytes_of(kind, NO_SIZES)))
                for y, kind in zip(ys, kinds, strict=True)
            ]
            copied = section.bind_outputs([*carries.next_places, *rows])
            section.run(body.launches[body.once :])
            section.copy_outputs(copied)
            carries.turn()
            step.value = out.add(step.value, 1)
        carries.settle()

    def _condition(
        self, plan: ProgramPlan, constants: Sequence[str], carries: _Carries, memory: str
    ) -> str:
        """Whether a while loop goes on."""
        section = self._inner(plan, [*constants, *carries.places], memory)
        section.run(plan.launches[plan.once :])
        answer = section.address(plan.graph.outputs[0])
        return self.out.test("ne", self.out.integer(bool_, answer, 0), 0)

    # --- choices ---------------------------------------------------------------------------------

    def _choice(self, launch: Launch, form: Choice) -> None:
        assert launch.nested is not None
        out, node = self.out, form.node
        index, *operands = [self.address(atom) for atom in node.operands]
        results = [self.address(atom) for atom in node.results]
        memory = self.address(launch.nested.scratch)
        kind = node.operands[0].type
        rows = substitute_all(kind.size, NO_SIZES) if form.rows else 1
        status = self._status(node)

        def branch_of(row: Operand) -> str:
            return out.integer(kind.dtype, index, row)

        with out.loop(0, rows) as row, out.when(out.test("uge", branch_of(row), len(form.plans))):
            out.give(status)
        for number, plan in enumerate(form.plans):
            section = self._inner(plan, operands, memory)
            if not form.rows:
                with out.when(out.test("eq", branch_of(0), number)):
                    copied = section.bind_outputs(results)
                    section.run(plan.launches)
                    section.copy_outputs(copied)
                continue
            section.run(plan.launches)
            with out.loop(0, rows) as row, out.when(out.test("eq", branch_of(row), number)):
                for atom, result in zip(plan.graph.outputs, results, strict=True):
                    size = bytes_of(atom.type, NO_SIZES) // max(1, rows)
                    skipped = out.mul(row, size)
                    source = out.place(section.address(atom), skipped)
                    out.copy(out.place(result, skipped), source, size)

    def _status(self, node: GraphNode) -> int:
        return self.needs.message(_complaint(node))


class _Carries:
    """The carries of a loop: where each is, and where the next step writes it."""

    def __init__(
        self, section: Section, form: Loop, operands: Sequence[str], results: Sequence[str],
        memory: str,
    ) -> None:  # fmt: skip
        self.out, self.form, self.results = section.out, form, results
        out, limit, spares = section.out, form.limit(NO_SIZES), form.spare_places(NO_SIZES)
        self.kinds = form.plans[0].graph.output_types[: form.num_carry]
        self.moving: dict[int, tuple[Assignable, Assignable, str]] = {}
        """For each carry that lies in two places: now, after the step, and the spare place."""
        for number, kind in enumerate(self.kinds):
            first = operands[form.num_consts + number]
            if number in form.kept_carries:
                if first != results[number]:
                    out.copy(results[number], first, bytes_of(kind, NO_SIZES))
                continue
            spare = out.place(memory, spares[number])
            # A loop of known length ends in the place of the result.
            start = spare if limit >= 0 and limit % 2 == 0 else results[number]
            self.moving[number] = out.variable(first), out.variable(start), spare

    @property
    def places(self) -> list[str]:
        """Where the carries are now."""
        return [
            self.moving[n][0].value if n in self.moving else self.results[n]
            for n in range(self.form.num_carry)
        ]

    @property
    def next_places(self) -> list[str]:
        """Where the step writes them."""
        return [
            self.moving[n][1].value if n in self.moving else self.results[n]
            for n in range(self.form.num_carry)
        ]

    def turn(self) -> None:
        """After a step: what was written is what the next one reads."""
        for number, (now, following, spare) in self.moving.items():
            result = self.results[number]
            now.value = following.value
            following.value = self.out.select(self.out.test("eq", now.value, result), spare, result)

    def settle(self) -> None:
        """After the loop: each carry is in the place of its result."""
        for number, (now, _, _) in self.moving.items():
            result, kind = self.results[number], self.kinds[number]
            with self.out.when(self.out.test("ne", now.value, result)):
                self.out.copy(result, now.value, bytes_of(kind, NO_SIZES))


def _rows(out: Writer, body: ProgramPlan, xs: Sequence[str], place: str, form: Loop) -> list[str]:
    """Where the step's own rows of xs are."""
    kinds = body.graph.input_types[form.num_consts + form.num_carry :]
    return [
        out.place(x, out.mul(place, bytes_of(kind, NO_SIZES)))
        for x, kind in zip(xs, kinds, strict=True)
    ]


def _complaint(node: GraphNode) -> str:
    """What a status says: the operation that refuses its operands, and the user's line."""
    return f"{node.primitive.name}: operands that it refuses{_place(node.location)}"


def _place(location: Location | None) -> str:
    return "" if location is None else f", at {location}"


def refuse_launch(launch: Launch, plan: ProgramPlan) -> UnsupportedError:
    """What is said of a launch that needs Python or a library of this process."""
    node, name = launch.node or launch.checked, launch.name
    types = {} if node is None else {f"operand {n}": a.type for n, a in enumerate(node.operands)}
    is_source = plan.target.name == "plain"
    return UnsupportedError(
        "export",
        f"{name} has no {'form in C' if is_source else 'code of its own'}: it calls Python",
        expected="what is compiled: no Fourier transforms, linear systems or call-backs",
        got={"operation": name, **types},
        note="sorts, too, have code in object files alone" if is_source else "",
        fix="compute this part outside of the exported function, and give it the result",
        at=None if node is None else node.location,
    )
