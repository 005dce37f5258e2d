"""The bodies of a program's functions, in any form: preparation, the first state, and a run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from weft.compiler.export.layout import Blob, Layout
from weft.compiler.export.program import ExportedProgram
from weft.compiler.export.sections import Needs, Section, Writer
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
class Bodies:
    """Writes what the functions of a program do."""

    program: ExportedProgram
    layout: Layout
    blob: Blob
    needs: Needs

    def _section(self, out: Writer, at: Addresses, bound: Mapping[Value, str]) -> Section:
        """What writes the program's own plan; weights are bound in it."""
        inputs = self.layout.plan.graph.inputs
        weights: dict[Value, str] = {
            inputs[w.port.position]: at.weights[w.port.name] for w in self.program.weights
        }
        memory, scratch = (
            out.place(at.model, offset) for offset in (self.layout.arena, self.layout.scratch)
        )
        plan = self.layout.plan
        return Section(out, self.needs, plan, {**weights, **bound}, memory, (scratch, 0), at.error)

    def prepare(self, out: Writer, at: Addresses) -> None:
        """What is made of weights alone, once for an instance."""
        plan = self.layout.plan
        self._section(out, at, {}).run(plan.launches[: plan.once])

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
        states = [out.place(at.model, offset) for offset in layout.states]
        bound: dict[Value, str] = {}
        for port in program.inputs:
            bound[plan.graph.inputs[port.position]] = at.ports[port.name]
        for state, pointer in zip(program.states, states, strict=True):
            if state.read is not None:
                bound[plan.graph.inputs[state.read]] = pointer
        section = self._section(out, at, bound)
        targets = {port.position: at.ports[port.name] for port in program.outputs}
        for state, pointer in zip(program.states, states, strict=True):
            new = layout.new_places.get(state.port.position)
            targets[state.port.position] = pointer if new is None else out.place(at.model, new)
        copied = section.bind_outputs([targets[n] for n in range(len(plan.graph.outputs))])
        section.run(plan.launches[plan.once :])
        section.copy_outputs(copied)
        for state, pointer in zip(program.states, states, strict=True):
            if state.port.position in layout.new_places:
                out.copy(pointer, targets[state.port.position], state.port.bytes)
