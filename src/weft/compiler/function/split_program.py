"""What runs a program with parts on several devices: its segments in order, with moves between.

Each segment is a program of its device, compiled and stored as any other, whose memory its device
plans. Values between segments are dropped as soon as no later step reads them.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any

from weft.compiler.plan.device_plan import (
    DevicePlan,
    Located,
    Segment,
    Transfer,
    device_plan,
    may_fail,
)
from weft.compiler.targets.target import Donation, Executable, Reuse, Target, target_of
from weft.core.arrays import device_of, move
from weft.core.devices import CPU, Device
from weft.core.records import frozen
from weft.core.shapes import is_static
from weft.ir.graph import Atom, Graph, Literal, Variable
from weft.ir.sizes import specialize
from weft.ir.tensor import wrap

Array = Any
Compile = Callable[[Graph, Target], Executable]
"""What makes the program of a segment."""
KEPT = 16
"""How many sets of sizes a program is kept for: a bound on memory, on any machine."""


@frozen(eq=False)
class RunSegment:
    """A segment with its program: which values it reads, makes and is the last to read."""

    program: Executable
    inputs: tuple[Located, ...]
    outputs: tuple[Located, ...]
    last: tuple[Located, ...]
    donated: Mapping[int, tuple[Donation, ...]]
    """For outputs of the whole program: which of its own outputs takes which of its inputs."""


@frozen(eq=False)
class RunTransfer:
    """A move, and whether nothing reads the value in its first place afterwards."""

    origin: Located
    result: Located
    is_last: bool


class SizedProgram:
    """A program with parts on several devices, for one set of sizes."""

    def __init__(self, plan: DevicePlan, compile_segment: Compile) -> None:
        self.plan = plan
        self._inputs = plan.graph.inputs
        self._steps: list[RunSegment | RunTransfer] = []
        pairs = [*zip(plan.graph.inputs, plan.inputs, strict=True)]
        self._anywhere = {value for value, place in pairs if place is None}
        kept = {*plan.outputs, *[(value, place or CPU) for value, place in pairs]}
        reads = [*map(self._reads, plan.steps)]
        for number, step in enumerate(plan.steps):
            later = {each for read in reads[number + 1 :] for each in read} | kept
            last = tuple(dict.fromkeys(each for each in reads[number] if each not in later))
            if isinstance(step, Segment):
                program = compile_segment(step.graph, target_of(step.device))
                outputs = tuple((value, step.device) for value in step.graph.outputs)
                donated = self._donations(number, step, program)
                self._steps.append(RunSegment(program, reads[number], outputs, last, donated))
            else:
                result = step.value, step.device
                self._steps.append(RunTransfer(reads[number][0], result, bool(last)))

    def _reads(self, step: Segment | Transfer) -> tuple[Located, ...]:
        """What a step reads; inputs that may be anywhere are in the host's memory."""
        if isinstance(step, Transfer):
            return ((step.value, step.source),)
        return tuple(
            (value, CPU if value in self._anywhere else step.device) for value in step.graph.inputs
        )

    def _donations(
        self, number: int, segment: Segment, program: Executable
    ) -> dict[int, tuple[Donation, ...]]:
        """What a segment may write over: an input that nothing else reads, for an output.

        Nothing may fail after it, so that state is as it was where a call ends with an error.
        """
        later = [step for step in self.plan.steps[number + 1 :] if isinstance(step, Segment)]
        if any(may_fail(step.graph) for step in later):
            return {}
        others = [self._reads(step) for step in self.plan.steps if step is not segment]
        shared = {each for read in others for each in read} | {*self.plan.outputs}
        position = {each: place for place, each in enumerate(self.plan.outputs)}
        found: dict[int, tuple[Donation, ...]] = {}
        for output, inputs in program.donations.items():
            located = segment.graph.outputs[output], segment.device
            free = [
                given
                for given in inputs
                if segment.graph.inputs[given] in self._inputs
                and (segment.graph.inputs[given], segment.device) not in shared
            ]
            if self.plan.outputs.count(located) == 1 and free:
                found[position[located]] = tuple((output, given) for given in free)
        return found

    @cached_property
    def donations(self) -> dict[int, tuple[int, ...]]:
        """See `Executable`."""
        numbers: dict[Atom, int] = {value: number for number, value in enumerate(self._inputs)}
        return {
            output: tuple(numbers[step.inputs[given][0]] for _, given in pairs)
            for step in self._steps
            if isinstance(step, RunSegment)
            for output, pairs in step.donated.items()
        }

    def run(self, arrays: Sequence[Array], donated: Sequence[Donation]) -> list[Array]:
        """The outputs for these inputs."""
        values: dict[Located, Array] = {}
        for value, array, place in zip(self._inputs, arrays, self.plan.inputs, strict=True):
            values[value, place or CPU] = move(array, place or CPU)
        given = {output: self._inputs[number] for output, number in donated}
        for step in self._steps:
            if isinstance(step, RunTransfer):
                values[step.result] = move(values[step.origin], step.result[1])
                if step.is_last:
                    del values[step.origin]
                continue
            inputs = [values[each] for each in step.inputs]
            over = _written_over(step, given) if given else ()
            for each in step.last:
                del values[each]
            found = step.program.run(inputs, over)
            del inputs
            values.update(zip(step.outputs, found, strict=True))
        return [self._output(values, each) for each in self.plan.outputs]

    def _output(self, values: Mapping[Located, Array], output: Located) -> Array:
        value, device = output
        if isinstance(value, Literal):
            return move(value.value, device)
        return move(values[value, CPU], device) if value in self._anywhere else values[output]

    def every_program(self) -> list[Executable]:
        """The programs of the segments."""
        return [step.program for step in self._steps if isinstance(step, RunSegment)]


def _written_over(step: RunSegment, given: Mapping[int, Variable]) -> list[Donation]:
    """The donations of a call that are a segment's."""
    return [
        (own, number)
        for output, pairs in step.donated.items()
        for own, number in pairs
        if output in given and step.inputs[number][0] is given[output]
    ]


class SplitExecutable:
    """A program with parts on several devices; each set of sizes is compiled by itself."""

    settled_outputs: Collection[int] = ()
    """See `Executable`: gradients of the last call are not written over."""

    def __init__(
        self,
        graph: Graph,
        places: Sequence[Device | None],
        device: Device,
        compile_segment: Compile,
    ) -> None:
        self._graph, self._places, self._device = graph, tuple(places), device
        self._compile = compile_segment
        self._sized: dict[tuple[tuple[int, ...], ...], SizedProgram] = {}
        self._is_static = all(is_static(kind.shape) for kind in graph.input_types)
        self._shares_memory = False

    def plan(self, graph: Graph) -> DevicePlan:
        """The steps of the graph, or of one that has its sizes."""
        return device_plan(graph, self._places, self._device)

    def _sized_for(self, arrays: Sequence[Array]) -> SizedProgram:
        key = () if self._is_static else tuple([array.shape for array in arrays])
        known = self._sized.get(key)
        if known is None:
            graph = self._graph
            if not self._is_static:
                graph = specialize(graph, [wrap(array).type for array in arrays])
            known = SizedProgram(self.plan(graph), self._compile)
            if self._shares_memory:
                for program in known.every_program():
                    program.share_memory()
            while len(self._sized) >= KEPT:
                self._sized.pop(next(iter(self._sized)), None)
            self._sized[key] = known
        return known

    @property
    def donations(self) -> Mapping[int, tuple[int, ...]]:
        """See `Executable`; where sizes are not known, all memory is new."""
        return self._sized_for(()).donations if self._is_static else {}

    def run(
        self,
        arrays: Sequence[Array],
        donated: Sequence[Donation] = (),
        finished: list[Array] | None = None,
        reused: Sequence[Reuse] = (),
    ) -> list[Array]:
        """See `Executable`."""
        outputs = self._sized_for(arrays).run(arrays, donated)
        if finished is not None:
            finished += outputs
        return outputs

    def recycle(self, array: Array) -> None:
        """See `Executable`: memory goes back to its device."""

    def share_memory(self) -> None:
        """See `Executable`."""
        self._shares_memory = True
        for program in self._every_program():
            program.share_memory()

    def release(self) -> None:
        """See `Executable`."""
        for program in self._every_program():
            program.release()

    def _every_program(self) -> Iterator[Executable]:
        return (program for sized in self._sized.values() for program in sized.every_program())


def array_places(arrays: Sequence[Array]) -> tuple[Device | None, ...]:
    """Where arrays are; None for single numbers of the host, which are read anywhere."""
    return tuple(
        None if device_of(array) is CPU and not array.shape else device_of(array)
        for array in arrays
    )
