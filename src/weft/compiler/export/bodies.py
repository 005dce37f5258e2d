"""The bodies of a program's functions, in any form: preparation, the first state, and a run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import cast

from weft.compiler.export.layout import Blob, Layout
from weft.compiler.export.program import ExportedProgram
from weft.compiler.export.sections import Section
from weft.compiler.export.sizes import LargestSizes
from weft.compiler.export.work_space import AmountWriter
from weft.compiler.export.writers import Needs, Operand, ThreadedWriter, Writer
from weft.compiler.plan.launch import Value


@dataclass(frozen=True)
class Addresses:
    """What a function calls the instance, the error, the weights, and its arguments by port."""

    model: str
    error: str
    weights: Mapping[str, str]
    """By the name of the port: where each array is that the program is shipped with."""
    ports: Mapping[str, str]


@dataclass(frozen=True)
class Memory:
    """Where the memory of the plan is, and scratch memory."""

    plan: str
    scratch: str


@dataclass(frozen=True)
class Bodies:
    """Writes what the functions of a program do."""

    program: ExportedProgram
    layout: Layout
    blob: Blob
    needs: Needs

    def _section(
        self, out: Writer, at: Addresses, bound: Mapping[Value, str], amounts: AmountWriter,
        memory: Memory,
    ) -> Section:  # fmt: skip
        """What writes the program's own plan; weights are bound in it."""
        layout, plan = self.layout, self.layout.plan
        values: dict[Value, str] = {
            plan.graph.inputs[w.port.position]: at.weights[w.port.name]
            for w in self.program.weights
        }
        kept = {slot: out.place(at.model, offset) for slot, offset in layout.kept_places.items()}
        return Section(
            out, self.needs, plan, {**values, **bound}, memory.plan, (memory.scratch, 0),
            at.error, layout.space, amounts, kept,
        )  # fmt: skip

    def _check_sizes(self, out: Writer) -> None:
        """Give a status where a size is not one that the program was made for."""
        for name, most in self.layout.sizes.largest.items():
            wrong = self.needs.message(f"{name} must be from 1 to {most}")
            with out.when(out.test("uge", out.sub(out.size(name), 1), most)):
                out.give(wrong)

    def prepare(self, out: Writer, at: Addresses) -> None:
        """What is made of weights alone, once for an instance."""
        layout, needs = self.layout, self.needs
        for_runs, needs.scratch = needs.scratch, needs.scratch * 0
        amounts = AmountWriter(out, LargestSizes(layout.sizes.largest))
        section = self._section(out, at, {}, amounts, self._instance_memory(out, at))
        section.run(layout.launches_once)
        needs.scratch, needs.preparing_scratch = for_runs, int(needs.scratch.max())

    def _instance_memory(self, out: Writer, at: Addresses) -> Memory:
        """The memory that is part of an instance."""
        return Memory(out.place(at.model, self.layout.arena), out.place(at.model, self.layout.end))

    def _run_memory(self, out: Writer, amounts: AmountWriter) -> Memory:
        """The memory of a run that has chosen its sizes: work space that holds it, or a status."""
        refused = self.needs.message("there is no memory for a run of these sizes")
        for amount in self.layout.space.every_amount():
            amounts.write(amount)
        peak, own, needed = self._bytes_needed(out, amounts)
        work = out.work_space(needed)
        with out.when(out.is_missing(work)):
            out.give(refused)
        scratch = out.place(work, peak)
        if self.layout.threads > 1:
            cast(ThreadedWriter, out).place_workers(scratch, own)
        return Memory(work, scratch)

    def bytes_of_run(self, out: Writer) -> Operand:
        """The bytes of work space for a run of some sizes; none are given where it is refused."""
        for name, most in self.layout.sizes.largest.items():
            with out.when(out.test("uge", out.sub(out.size(name), 1), most)):
                out.give(0)
        return self._bytes_needed(out, AmountWriter(out, self.layout.sizes))[-1]

    def _bytes_needed(self, out: Writer, amounts: AmountWriter) -> tuple[Operand, Operand, Operand]:
        """The bytes of the plan's memory, of scratch memory of one thread, and of all."""
        layout = self.layout
        peak, own = amounts.write(layout.space.peak), out.scratch_bytes(layout.sizes)
        shared = own if layout.threads == 1 else out.mul(own, layout.threads)
        return peak, own, out.add(peak, shared)

    def reset(self, out: Writer, at: Addresses) -> None:
        """The state as it is at first."""
        for state, offset in zip(self.program.states, self.layout.states, strict=True):
            target, source = out.place(at.model, offset), at.weights.get(state.port.name)
            if source is None:
                out.clear(target, state.port.bytes)
            else:
                out.copy(target, source, state.port.bytes)

    def run(self, out: Writer, at: Addresses) -> None:
        """One run: inputs and state in, outputs and new state out."""
        program, layout, plan = self.program, self.layout, self.layout.plan
        self._check_sizes(out)
        states = [out.place(at.model, offset) for offset in layout.states]
        bound: dict[Value, str] = {}
        for port in program.inputs:
            bound[plan.graph.inputs[port.position]] = at.ports[port.name]
        for state, pointer in zip(program.states, states, strict=True):
            if state.read is not None:
                bound[plan.graph.inputs[state.read]] = pointer
        amounts = AmountWriter(out, layout.sizes)
        memory = (
            self._run_memory(out, amounts)
            if layout.has_work_space
            else self._instance_memory(out, at)
        )
        section = self._section(out, at, bound, amounts, memory)
        targets = {port.position: at.ports[port.name] for port in program.outputs}
        for state, pointer in zip(program.states, states, strict=True):
            new = layout.new_places.get(state.port.position)
            targets[state.port.position] = pointer if new is None else out.place(at.model, new)
        copied = section.bind_outputs([targets[n] for n in range(len(plan.graph.outputs))])
        section.run(layout.launches_before_run)
        section.run(plan.launches[plan.once :])
        section.copy_outputs(copied)
        for state, pointer in zip(program.states, states, strict=True):
            if state.port.position in layout.new_places:
                out.copy(pointer, targets[state.port.position], state.port.bytes)
