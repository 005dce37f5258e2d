"""A plan as straight code: one call for each launch, loops and choices as loops and conditions.

What is written is the same for every form of a program; a `Writer` says how it looks, as LLVM's
text or as C. Where a value lies is known here: it is bound to an address from outside, or has a
place in the memory of its plan.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import cast

import numpy as np
import numpy.typing as npt

from weft.compiler.export.scratch import scratch_bytes, takes_scratch
from weft.compiler.export.sizes import Values
from weft.compiler.export.work_space import AmountWriter, PlanSpace, write_count
from weft.compiler.export.writers import Assignable, Needs, Operand, ThreadedWriter, Writer
from weft.compiler.plan.control_flow import Choice, Loop
from weft.compiler.plan.launch import (
    Kind,
    Launch,
    Sizes,
    Value,
    byte_count,
    bytes_of,
    substitute_all,
)
from weft.compiler.plan.program_plan import ProgramPlan
from weft.compiler.targets.cpu.cache.kernels import text_of
from weft.core.dtypes import bool_
from weft.core.errors import UnsupportedError
from weft.core.locations import Location
from weft.core.types import TensorType
from weft.ir.graph import GraphNode, Literal, Variable
from weft.ir.loops import Kernel


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
        space: PlanSpace,
        amounts: AmountWriter,
        kept: Mapping[str, str] | None = None,
    ) -> None:
        """bound: where values from outside are; memory: where the plan's own is.

        scratch: where scratch memory begins, and how much of it is taken already. space: where in
        its memory each value is; kept: where those are that lie elsewhere, by slot.
        """
        self.out, self.needs, self.plan, self.error = out, needs, plan, error
        self.bound, self.memory, self.scratch = dict(bound), memory, scratch
        self.space, self.amounts, self.kept = space, amounts, kept or {}
        self.sizes, self.largest = amounts.sizes, amounts.sizes.largest
        self._known_tables: dict[Launch, npt.NDArray[np.int64]] = {}

    def number(self, function: Callable[[Sizes], int]) -> Operand:
        """A number of the plan: known, or what computes it from the sizes of the call."""
        return write_count(self.out, self.sizes.count_of(function), self.sizes)

    def bytes(self, kind: TensorType) -> Operand:
        """The bytes of a value."""
        values = self.sizes.values_of(byte_count(kind))
        return write_count(self.out, self.sizes.count_of_values(values), self.sizes)

    def numbers(self, launch: Launch) -> list[Operand]:
        """What the function of a launch is given beside its buffers."""
        if not self.largest:
            return list(launch.numbers(self.largest))
        kernel = launch.kernel
        if isinstance(kernel, Kernel):
            known = launch.numbers(self.largest)
            return [
                self.out.size(name) if name in self.largest else value
                for name, value in zip(kernel.sizes, known, strict=True)
            ]
        return [
            write_count(self.out, self.sizes.count_of_values(column), self.sizes)
            for column in self._tables(launch).T
        ]

    def _tables(self, launch: Launch) -> npt.NDArray[np.int64]:
        """What the function of a launch is given beside its buffers: a row for each choice."""
        if launch not in self._known_tables:
            tables = [launch.numbers(each) for each in self.sizes.choices]
            if len({len(table) for table in tables}) > 1:
                raise refuse_sizes(launch)
            self._known_tables[launch] = np.array(tables, np.int64)
        return self._known_tables[launch]

    def address(self, value: Value) -> str:
        """Where a value is."""
        root = self.plan.root(value)
        if root in self.bound:
            return self.bound[root]
        if root is self.plan.error:
            return self.error
        if isinstance(root, Literal):
            return self.needs.constant(root)
        slot = str(self.plan.slots[root])
        if slot in self.kept:
            return self.kept[slot]
        return self.out.place(self.memory, self.amounts.write(self.space.offsets[slot]))

    def _location(self, value: Value) -> object:
        """What two values have in common that are in one place."""
        root = self.plan.root(value)
        if root in self.bound:
            return self.bound[root]
        if isinstance(root, Literal):
            return root
        slot = str(self.plan.slots[root])
        return self.kept.get(slot) or self.amounts.write(self.space.offsets[slot])

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
            self.out.copy(target, self.address(atom), self.bytes(atom.type))

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
                size = self.number(lambda sizes: launch.numbers(sizes)[0])
                self.out.copy(self.address(target), self.address(source), size)
        else:
            buffers = [self.address(value) for value in launch.values]
            extent, grain = self.number(launch.extent), max(1, launch.grain(self.largest))
            if self.needs.threads > 1 and launch.extent(self.largest) > grain:
                self._call_parallel(launch, buffers, extent, grain)
            else:
                self._call(launch, buffers, 0, extent)

    def _call_parallel(
        self, launch: Launch, buffers: Sequence[str], extent: Operand, grain: int
    ) -> None:
        """Let all threads call the function of a launch, each in scratch memory of its own."""
        function, numbers = self.needs.function(launch), self.numbers(launch)
        self._reserve(self._scratch_of(launch))
        self.needs.buffers = max(self.needs.buffers, len(buffers))
        cast(ThreadedWriter, self.out).launch_parallel(function, buffers, numbers, extent, grain)

    def _scratch_of(self, launch: Launch) -> Values:
        """The bytes of scratch memory that a launch takes, for each choice of sizes."""
        if not takes_scratch(launch, text_of):
            return np.zeros(1, np.int64)
        tables, places = np.unique(self._tables(launch), axis=0, return_inverse=True)
        needed = [scratch_bytes(launch, table, text_of) for table in tables.tolist()]
        return np.array(needed, np.int64)[places.reshape(-1)]

    def _reserve(self, needed: Values) -> None:
        base, before = self.scratch
        self.needs.take_scratch(before + needed)
        self.out.reserve(self.out.place(base, before))

    def _call(
        self, launch: Launch, buffers: Sequence[str], begin: Operand, end: Operand, taken: int = 0
    ) -> None:
        """Call the function of a launch; so much of the scratch memory is taken before."""
        function, numbers = self.needs.function(launch), self.numbers(launch)
        base, before = self.scratch
        needed = self._scratch_of(launch)
        if needed.any():
            self.needs.take_scratch(before + taken + needed)
            self.out.reserve(self.out.place(base, before + taken))
        self.needs.buffers = max(self.needs.buffers, len(buffers))
        self.out.launch(function, buffers, numbers, begin, end)

    def _row_fusion(self, launch: Launch) -> None:
        """All stages for one block of rows after the other; threads take blocks."""
        blocks = launch.blocks
        assert blocks is not None
        if self.largest:
            raise refuse_sizes(launch)
        _, used = blocks.places(self.largest, blocks.height(self.largest))
        given = [self.address(value) for value in launch.values]
        extent = launch.extent(self.largest)
        if self.needs.threads == 1 or extent <= 1:
            base = self.out.place(self.scratch[0], self.scratch[1])
            self.needs.take_scratch(np.array([self.scratch[1] + used]))
            self._row_blocks(launch, given, (base, used), (0, extent))
            return
        self.needs.row_functions += 1
        name = f"rows_{self.needs.row_functions}"
        caller = cast(ThreadedWriter, self.out)
        out = caller.row_function(name)
        own = [out.given_buffer(place) for place in range(len(given))]
        inner = Section(
            out, self.needs, self.plan, {}, "", (out.scratch, 0), self.error, self.space,
            AmountWriter(out, self.sizes),
        )  # fmt: skip
        inner._row_blocks(launch, own, (out.scratch, used), ("%begin", "%end"))
        out.give()
        self._reserve(np.array([used]))
        self.needs.buffers = max(self.needs.buffers, len(given))
        grain = max(1, launch.grain(self.largest))
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
        height, rows = blocks.height(self.largest), blocks.rows(self.largest)
        places, _ = blocks.places(self.largest, height)
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
                many, few = (substitute_all(dim, self.largest) for dim in (stage.many, stage.few))
                begin, end = (out.div(out.mul(row, many), few) for row in (first, last))
                self._call(stage.launch, buffers, begin, end, used)

    # --- loops -----------------------------------------------------------------------------------

    def _inner_section(self, plan: ProgramPlan, inputs: Sequence[str], memory: str) -> Section:
        """What writes a plan inside, whose first inputs are at these addresses."""
        bound: dict[Value, str] = dict(zip(plan.graph.inputs, inputs, strict=False))
        return Section(
            self.out, self.needs, plan, bound, memory, self.scratch, self.error,
            self.space.inner[id(plan)], self.amounts,
        )  # fmt: skip

    def _loop(self, launch: Launch, form: Loop) -> None:
        """A scan or a while loop: carries lie in two places in turns, or stay where they are."""
        assert launch.nested is not None
        out, node, limit = self.out, form.node, self.number(form.limit)
        operands = [self.address(atom) for atom in node.operands]
        results = [self.address(atom) for atom in node.results]
        memory = self.address(launch.nested.scratch)
        carries = _Carries(self, form, operands, results, memory, limit)
        constants = operands[: form.num_consts]
        starts = self.space.loops[id(form)].plan_places
        own = [out.place(memory, self.amounts.write(start)) for start in starts]
        for plan, place in zip(form.plans, own, strict=False):
            self._inner_section(plan, constants, place).run(plan.launches[: plan.once])
        xs = operands[form.num_consts + form.num_carry :]
        ys = results[form.num_carry :]
        step = out.variable(0)
        with out.repeat():
            if limit != -1:
                out.leave_unless(out.test("slt", step.value, limit))
            if len(form.plans) == 2:
                out.leave_unless(self._condition(form.plans[1], constants, carries, own[1]))
            last = limit - 1 if isinstance(limit, int) else out.sub(limit, 1)
            place = out.sub(last, step.value) if form.reverse else step.value
            body = form.plans[0]
            inputs = [*constants, *carries.places, *_rows(self, body, xs, place, form)]
            section = self._inner_section(body, inputs, own[0])
            kinds = body.graph.output_types[form.num_carry :]
            rows = [
                out.place(y, out.mul(place, self.bytes(kind)))
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
        section = self._inner_section(plan, [*constants, *carries.places], memory)
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
        rows: Operand = 1
        if form.rows:
            rows = self.number(lambda sizes: substitute_all(kind.size, sizes))
        status = self._status(node)

        def branch_of(row: Operand) -> str:
            return out.integer(kind.dtype, index, row)

        with out.loop(0, rows) as row, out.when(out.test("uge", branch_of(row), len(form.plans))):
            out.give(status)
        for number, plan in enumerate(form.plans):
            section = self._inner_section(plan, operands, memory)
            if not form.rows:
                with out.when(out.test("eq", branch_of(0), number)):
                    copied = section.bind_outputs(results)
                    section.run(plan.launches)
                    section.copy_outputs(copied)
                continue
            section.run(plan.launches)
            with out.loop(0, rows) as row, out.when(out.test("eq", branch_of(row), number)):
                for atom, result in zip(plan.graph.outputs, results, strict=True):
                    size = self.number(
                        lambda sizes, kind=kind, of=atom.type: (  # type: ignore[misc]
                            bytes_of(of, sizes) // max(1, substitute_all(kind.size, sizes))
                        )
                    )
                    skipped = out.mul(row, size)
                    source = out.place(section.address(atom), skipped)
                    out.copy(out.place(result, skipped), source, size)

    def _status(self, node: GraphNode) -> int:
        if self.needs.is_stripped:
            return self.needs.message("operands that the program refuses")
        return self.needs.message(_complaint(node))


class _Carries:
    """The carries of a loop: where each is, and where the next step writes it."""

    def __init__(
        self, section: Section, form: Loop, operands: Sequence[str], results: Sequence[str],
        memory: str, limit: Operand,
    ) -> None:  # fmt: skip
        self.out, self.form, self.results = section.out, form, results
        self.section = section
        out, spares = section.out, section.space.loops[id(form)].spare_places
        self.kinds = form.plans[0].graph.output_types[: form.num_carry]
        self.moving: dict[int, tuple[Assignable, Assignable, str]] = {}
        """For each carry that lies in two places: now, after the step, and the spare place."""
        for number, kind in enumerate(self.kinds):
            first = operands[form.num_consts + number]
            if number in form.kept_carries:
                if first != results[number]:
                    out.copy(results[number], first, section.bytes(kind))
                continue
            spare = out.place(memory, section.amounts.write(spares[number]))
            # A loop of known length ends in the place of the result.
            is_even = isinstance(limit, int) and limit >= 0 and limit % 2 == 0
            start = spare if is_even else results[number]
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
                self.out.copy(result, now.value, self.section.bytes(kind))


def _rows(
    section: Section, body: ProgramPlan, xs: Sequence[str], place: str, form: Loop
) -> list[str]:
    """Where the step's own rows of xs are."""
    kinds = body.graph.input_types[form.num_consts + form.num_carry :]
    out = section.out
    return [
        out.place(x, out.mul(place, section.bytes(kind))) for x, kind in zip(xs, kinds, strict=True)
    ]


def _complaint(node: GraphNode) -> str:
    """What a status says: the operation that refuses its operands, and the user's line."""
    return f"{node.primitive.name}: operands that it refuses{_place(node.location)}"


def _place(location: Location | None) -> str:
    return "" if location is None else f", at {location}"


def refuse_sizes(launch: Launch) -> UnsupportedError:
    """What is said of a launch that needs to know the sizes."""
    node = launch.node or launch.checked
    return UnsupportedError(
        "export",
        f"{launch.name} is cut in another way for each size",
        expected="sizes that are numbers, for this operation",
        got={"operation": launch.name},
        fix="export the function once for each size that is wanted",
        at=None if node is None else node.location,
    )


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
