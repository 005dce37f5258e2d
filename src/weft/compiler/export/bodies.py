"""The bodies of a program's functions, in any form: preparation, the first state, and a run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from weft.compiler.export.layout import Blob, Layout
from weft.compiler.export.program import ExportedProgram
from weft.compiler.export.sections import Section
from weft.compiler.export.sizes import SizeRange
from weft.compiler.export.writers import Needs, Writer
from weft.compiler.plan.launch import Launch, Value
from weft.core.shapes import is_static


@dataclass(frozen=True)
class Addresses:
    """What a function calls the instance, the error, the weights, and its arguments by port."""

    model: str
    error: str
    weights: Mapping[str, str]
    """By the name of the port: where each array is that the program is shipped with."""
    ports: Mapping[str, str]


@dataclass(frozen=True)
class Bodies:
    """Writes what the functions of a program do."""

    program: ExportedProgram
    layout: Layout
    blob: Blob
    needs: Needs

    def _section(
        self, out: Writer, at: Addresses, bound: Mapping[Value, str], sizes: SizeRange
    ) -> Section:
        """What writes the program's own plan; weights are bound in it."""
        inputs = self.layout.plan.graph.inputs
        weights: dict[Value, str] = {
            inputs[w.port.position]: at.weights[w.port.name] for w in self.program.weights
        }
        memory, scratch = (
            out.place(at.model, offset) for offset in (self.layout.arena, self.layout.scratch)
        )
        plan = self.layout.plan
        values = {**weights, **bound}
        return Section(out, self.needs, plan, values, memory, (scratch, 0), at.error, sizes)

    def _check_sizes(self, out: Writer) -> None:
        """Give a status where a size is not one that the program was made for."""
        for name, most in self.layout.sizes.largest.items():
            wrong = self.needs.message(f"{name} must be from 1 to {most}")
            with out.when(out.test("uge", out.sub(out.size(name), 1), most)):
                out.give(wrong)

    def prepare(self, out: Writer, at: Addresses) -> None:
        """What is made of weights alone, once for an instance."""
        self._section(out, at, {}, self.layout.sizes).run(self._preparing_launches(of_sizes=False))

    def _preparing_launches(self, of_sizes: bool) -> list[Launch]:
        """The launches that need no inputs, whose values have sizes of the run, or known ones."""
        plan = self.layout.plan
        return [
            launch
            for launch in plan.launches[: plan.once]
            if of_sizes != self._is_of_known_sizes(launch)
        ]

    def _is_of_known_sizes(self, launch: Launch) -> bool:
        """Whether a launch is the same for all choices of sizes."""
        samples = self.layout.sizes.samples
        return all(is_static(value.type.shape) for value in launch.values) and all(
            part.numbers(at) == part.numbers(samples[0])
            and part.extent(at) == part.extent(samples[0])
            for part in launch.parts()
            for at in samples[1:]
        )

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
        section = self._section(out, at, bound, layout.sizes)
        targets = {port.position: at.ports[port.name] for port in program.outputs}
        for state, pointer in zip(program.states, states, strict=True):
            new = layout.new_places.get(state.port.position)
            targets[state.port.position] = pointer if new is None else out.place(at.model, new)
        copied = section.bind_outputs([targets[n] for n in range(len(plan.graph.outputs))])
        section.run(self._preparing_launches(of_sizes=True))
        section.run(plan.launches[plan.once :])
        section.copy_outputs(copied)
        for state, pointer in zip(program.states, states, strict=True):
            if state.port.position in layout.new_places:
                out.copy(pointer, targets[state.port.position], state.port.bytes)
