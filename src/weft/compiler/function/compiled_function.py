"""One compiled form of a function: runs it, and writes back the state that the call changed.

>>> import weft as wf
>>> from weft.compiler.function.recording import record
>>> x = wf.tensor([1.0, 2.0])
>>> Compiled(record([x], lambda: x * 3))([x]).tolist()
[3.0, 6.0]
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from weft.compiler.function.donation import (
    Renewal,
    donations,
    expected_donations,
    gradients_beside,
    objects_held_once,
    renewals,
    reusable_gradients,
    writable_over,
)
from weft.compiler.function.program_cache import (
    draft,
    executable,
    forget_drafts,
    run_observed,
    split_executable,
)
from weft.compiler.function.recording import Output, Recording, Source, Write
from weft.compiler.function.taped import GraphDerivative, Taped
from weft.compiler.fusion.costs import Sizes, bytes_of
from weft.compiler.graph_passes.user_rules import Rewrites, rewrites
from weft.compiler.memory_budget.search import Fit, fit_budget
from weft.compiler.plan.device_plan import Places, device_plan
from weft.compiler.plan.planning import WrittenKernels
from weft.compiler.plan.program_plan import ProgramPlan, read_sizes
from weft.compiler.report.device_report import (
    DeviceExplanation,
    DeviceMemory,
    device_explanation,
)
from weft.compiler.report.memory_use import MemoryReport, memory_report
from weft.compiler.targets.target import Donation, Executable, Target, default_target, target_of
from weft.core.arrays import CONCRETE, to_host
from weft.core.devices import CPU, Device
from weft.core.dtypes import BY_NUMPY
from weft.core.errors import UnsupportedError
from weft.core.settings import settings
from weft.core.trees import LEAF
from weft.core.types import TensorType
from weft.ir.dispatch import OBSERVERS, apply_multiple
from weft.ir.forward import without_zero_tangents
from weft.ir.graph import Graph
from weft.ir.parts import refuse_part
from weft.ir.sizes import specialize
from weft.ir.tensor import Tensor, about_to_write, grad_mode, traces, wrap
from weft.ir.tracing import interpret
from weft.ir.walking import without_dead_nodes
from weft.ops.control import Marks, silent_graph
from weft.ops.control_call import call_graph
from weft.ops.random_bits import GENERATOR, refuse_batches

Array = np.ndarray[Any, Any]


@dataclass(slots=True)
class Compiled:
    """One compiled form of a function."""

    recording: Recording
    program: Executable | None = None
    outside: list[tuple[Source, TensorType]] = field(init=False)
    donated: dict[int, Donation] = field(default_factory=dict)
    """Outputs that may be written to an input's own array, and those inputs, by input."""
    renewed: Sequence[Renewal] = ()
    """Gradients that may be written over those of the last call."""
    rules: Rewrites = ()
    """The rules of users that the program was compiled with."""
    budget: int | None = None
    """The bytes that a run may need."""
    fixed: tuple[int, ...] = ()
    """The inputs that are likely to be the same in many calls."""
    device: Device = CPU
    """Where it is computed, but for what is moved."""
    target: Target = field(init=False)
    """What it is compiled for."""
    derivative: GraphDerivative | None = None
    """What knows the derivative, where it is not that of the graph."""
    _fit: Fit | None = None
    _taped: dict[Marks, Taped] = field(default_factory=dict)
    """Programs for calls whose derivative may be asked for, by which inputs have one."""
    places: list[int] | None = field(init=False)
    """Which arguments the inputs are, if they are nothing else."""
    is_silent: bool = field(init=False)
    """Whether a run shows nothing; a derivative would show it again, or not at all."""
    drawn: int | None = field(init=False)
    """Which input is the counter of the generator, which may be where it was last drawn from."""
    result: int | None = field(init=False)
    """Which output the call returns, if that is all."""
    tuple_places: tuple[int, ...] | None = field(init=False)
    """The outputs that the call returns as a tuple, if that is all."""
    plain_writes: Sequence[tuple[int, int]] | None = field(init=False)
    """Arguments that are written and the outputs they get, if nothing else is written."""
    written: tuple[int, ...] = field(init=False)
    """The arguments that are written, which may be parts of other tensors in the next call."""
    output_types: tuple[TensorType, ...] = field(init=False)

    def __post_init__(self) -> None:
        self.target = target_of(self.device)
        pairs = zip(self.recording.sources, self.recording.graph.input_types, strict=True)
        self.outside = [(source, kind) for source, kind in pairs if source.handle is not None]
        places = [s.argument for s in self.recording.sources if s.argument is not None]
        is_given = len(places) == len(self.recording.sources)
        self.places = places if is_given and not self._reads_gradients() else None
        result = self.recording.results[0] if self.recording.structure is LEAF else None
        drawn = [source.is_counter for source in self.recording.sources]
        self.drawn = drawn.index(True) if any(drawn) else None
        self.is_silent = silent_graph(self.recording.graph) is self.recording.graph
        self.result = result.position if isinstance(result, Output) else None
        self.tuple_places = _tuple_places(self.recording)
        self.plain_writes = _plain_writes(self.recording.writes)
        sources = [write.source for write in self.recording.writes if not write.source.gradient]
        self.written = tuple([s.argument for s in sources if s.argument is not None])
        self.output_types = self.recording.graph.output_types

    @property
    def spans_devices(self) -> bool:
        """Whether parts of it are computed on several devices."""
        return bool(self.recording.places)

    def _reads_gradients(self) -> bool:
        return any(source.gradient for source in self.recording.sources)

    @property
    def fit(self) -> Fit:
        """The graph that is compiled: as recorded, or, with a budget, one that fits it."""
        if self.budget is None:
            return Fit(self.recording.graph)
        if self.spans_devices:
            raise _no_budget(self.budget, self.recording.places)
        if self._fit is None:
            self._fit = self._fit_budget(self.budget)
        return self._fit

    def _fit_budget(self, budget: int) -> Fit:
        written, found = WrittenKernels(), None

        def judge(graph: Graph) -> MemoryReport:
            return self._draft_report(draft(graph, self.fixed, written, self.target), {})

        try:
            found = fit_budget(
                self.recording.graph, self.target, budget, judge, self._held_outside()
            )
        finally:
            forget_drafts(None if found is None else found.graph)
        return found

    def _draft_report(self, plan: ProgramPlan, sizes: Sizes) -> MemoryReport:
        donated = expected_donations(self.recording, plan)
        beside = gradients_beside(self.recording, plan)
        return memory_report(plan, sizes, donated, beside=beside)

    def _held_outside(self) -> int:
        """The bytes of arguments and results, if all state is written over in its place."""
        graph = self.recording.graph
        written = {write.output for write in self.recording.writes}
        kinds = [*graph.input_types]
        kinds += [kind for place, kind in enumerate(graph.output_types) if place not in written]
        return sum(bytes_of(kind, {}) for kind in kinds)

    def device_explanation(self, types: Sequence[TensorType]) -> DeviceExplanation:
        """What is compiled for these types, where parts are on several devices."""
        graph = specialize(self.fit.graph, types)
        return device_explanation(device_plan(graph, self.recording.places, self.device))

    def memory(self, types: Sequence[TensorType]) -> MemoryReport | DeviceMemory:
        """What a call with arguments of these types will allocate; nothing is compiled for it."""
        if self.spans_devices:
            return self.device_explanation(types).memory
        plan = draft(self.fit.graph, self.fixed, target=self.target)
        found = self._draft_report(plan, read_sizes(plan.graph, types))
        return replace(found, recomputed=self.fit.recomputed)

    def fits(self) -> bool:
        """Whether tensors from outside that no variable was found for are as they were."""
        return not self.outside or all(
            (held := source.held_tensor()) is None or _has_type(held, kind)
            for source, kind in self.outside
        )

    def __call__(self, handles: Sequence[Tensor]) -> Any:
        """Run it on the tensors in a call's arguments, and write back the state that it changed."""
        recording, places = self.recording, self.places
        for place in self.written:
            if handles[place]._origin is not None:
                refuse_part("jit", handles[place])
        if self.drawn is not None:
            refuse_batches("jit")
        if places is None:
            inputs = [source.read(handles) for source in recording.sources]
        else:
            inputs = [handles[place] for place in places]
        arrays = [x._value for x in inputs]
        if self.drawn is not None and (self.target is default_target() or self.spans_devices):
            arrays[self.drawn] = _on_host(arrays[self.drawn])
        finished: list[Array] = []
        values: Sequence[Any] = ()
        outputs: list[Tensor] | None = None
        try:
            if self._is_plain(inputs, arrays):
                values = self._run(arrays, finished, handles)
            else:
                is_taped = self._is_taped(inputs, arrays)
                taped = self.taped_for(inputs) if is_taped else None
                outputs = taped(inputs, arrays) if taped else self._traced_outputs(inputs)
                values = [output._value for output in outputs]
            del inputs, arrays
            if recording.writes:
                self._write_back(handles, values)
        except BaseException:  # a signal, after the run or between two writes: all is written
            late = values or finished
            if late:
                _write_back(recording, handles, late)
            raise
        if outputs is None:
            return self.returned_value(values)
        return outputs[self.result] if self.result is not None else recording.rebuild(outputs)

    def returned_value(self, values: Sequence[Array]) -> Any:
        """What a call returns, given the values of all outputs."""
        if self.result is not None:
            return wrap(values[self.result])
        if self.tuple_places is not None:
            return tuple([wrap(values[place]) for place in self.tuple_places])
        return self.recording.rebuild([wrap(value) for value in values])

    def apply(self, arrays: list[Array]) -> Any:
        """What a call that `is_pure` returns, given the arrays of all inputs."""
        return self.returned_value(
            self.program.run(arrays)  # type: ignore[union-attr]
            if self.is_ready()
            else self._run(arrays)
        )

    def native_run(self, arrays: Sequence[Any]) -> Any:
        """Its program as one native function of arrays of these kinds; None where it has none."""
        find = getattr(self.program, "native_run", None)
        return None if find is None or self.rules else find(arrays)

    def is_ready(self) -> bool:
        """Whether its program is there, and calls are to be run by it."""
        return (
            self.program is not None
            and settings.compiler
            and not OBSERVERS
            and self.rules is rewrites()
        )

    def is_pure(self, handles: Sequence[Tensor]) -> bool:
        """Whether a call with these tensors reads their arrays, and does nothing else."""
        if self.places is None or self.recording.writes or self.outside:
            return False
        return self.runs_plainly(handles)

    def runs_plainly(self, handles: Sequence[Tensor]) -> bool:
        """Whether a call with these tensors asks for nothing but values, and reads no gradients."""
        if self._reads_gradients():
            return False
        inputs = [source.read(handles) for source in self.recording.sources]
        return self._is_plain(inputs, [x._value for x in inputs])

    def _is_plain(self, inputs: Sequence[Tensor], arrays: Sequence[Any]) -> bool:
        """Whether nothing but the values is asked for: no transform, no later derivative."""
        if not CONCRETE.issuperset(map(type, arrays)):
            return False
        recorded = grad_mode.enabled and self.recording.differentiable
        return not recorded or all(x._node is None for x in inputs)

    def _is_taped(self, inputs: Sequence[Tensor], arrays: Sequence[Any]) -> bool:
        """Whether all that is asked for beside values is a later derivative."""
        return (
            CONCRETE.issuperset(map(type, arrays))
            and not traces.stack
            and settings.compiler
            and not OBSERVERS
            and not rewrites()
            and (self.is_silent if self.derivative is None else self.derivative.is_silent)
        )

    def _traced_outputs(self, inputs: Sequence[Tensor]) -> list[Tensor]:
        """The outputs of a call inside of a transform, as one operation.

        Where the counter that the call comes to depends on nothing traced, it is computed at once:
        `wf.ir.trace` has no counter of its own, and moves the generator as draws outside do.
        """
        graph = self.recording.graph
        if self.derivative is None:
            outputs = [*call_graph(graph, *inputs)]
        else:
            primitive, rule = self.derivative.primitive, self.derivative.params
            outputs = [*apply_multiple(primitive, *inputs, graph=graph, **rule)]
        places = [write.output for write in self.recording.writes if write.source.is_counter]
        for place in places:
            if place is None or type(outputs[place]._value) in CONCRETE:
                continue
            counted = without_dead_nodes(Graph(graph.inputs, graph.nodes, (graph.outputs[place],)))
            read = {atom for node in counted.nodes for atom in node.operands} | {*counted.outputs}
            known = dict(zip(graph.inputs, inputs, strict=True))
            used = [variable for variable in graph.inputs if variable in read]
            if CONCRETE.issuperset(type(known[variable]._value) for variable in used):
                needed = Graph(tuple(used), counted.nodes, counted.outputs)
                outputs[place] = interpret(needed, *[known[variable] for variable in used])[0]
        return outputs

    def taped_for(self, inputs: Sequence[Tensor]) -> Taped:
        """The two programs for calls in which these inputs have a place on the tape."""
        wanted = tuple([tensor._node is not None for tensor in inputs])
        known = self._taped.get(wanted)
        if known is None:
            graph, places = self.recording.graph, self.recording.places
            known = self._taped[wanted] = Taped(
                graph, wanted, self.target, places, self.device, self.derivative
            )
        return known

    def _write_back(self, handles: Sequence[Tensor], values: Sequence[Any]) -> None:
        """Write state back; arrays that nobody holds any more are memory for later runs."""
        if self.plain_writes is not None and not traces.stack:
            replaced = _write_arguments(self.plain_writes, handles, values)
        else:
            replaced = _write_back(self.recording, handles, values)
        if replaced and self.program is not None:
            for old in objects_held_once(replaced):
                self.program.recycle(old)

    def _run(
        self,
        arrays: list[Array],
        finished: list[Array] | None = None,
        handles: Sequence[Tensor] = (),
    ) -> Sequence[Array]:
        if not settings.compiler or OBSERVERS:
            return run_observed(self.recording.graph, arrays, self.target, self.recording.places)
        if self.program is None or self.rules is not rewrites():
            self._compile()
        assert self.program is not None
        if not self.donated and not self.renewed:
            return self.program.run(arrays)
        reused = (
            reusable_gradients(self.renewed, handles, self.output_types) if self.renewed else ()
        )
        return self.program.run(arrays, writable_over(arrays, self.donated), finished, reused)

    def _compile(self) -> None:
        """Make the program for the rules that hold; another thread may do the same."""
        rules = rewrites()
        self._fit = self._fit if self.rules is rules else None
        program: Executable
        if self.spans_devices:
            program = split_executable(self.fit.graph, self.recording.places, self.device)
        else:
            program = executable(self.fit.graph, self.fixed, self.target)
        self.donated = {pair[1]: pair for pair in donations(self.recording, program)}
        self.renewed = renewals(self.recording, program)
        self.program = program
        self.rules = rules  # last: who sees them runs the program that was made with them


def _no_budget(budget: int, places: Places) -> UnsupportedError:
    devices = {str(place) for place in places if place is not None}
    return UnsupportedError(
        "jit",
        "a program with parts on several devices has no budget of memory",
        expected="a program on one device",
        got={"memory": budget, "devices": ", ".join(sorted(devices))},
        fix="leave memory= out, or compile the part on each device by itself",
    )


def _has_type(tensor: Tensor, kind: TensorType) -> bool:
    """Whether a tensor is of a type, which need not be made where there is an array."""
    value = tensor._value
    if type(value) not in CONCRETE:
        return tensor.type == kind
    return BY_NUMPY[value.dtype] is kind.dtype and value.shape == kind.shape


def _on_host(value: Any) -> Any:
    return to_host(value) if type(value) in CONCRETE else value


def _tuple_places(recording: Recording) -> tuple[int, ...] | None:
    """The outputs that a call returns as a tuple; None where it returns anything else."""
    structure, results = recording.structure, recording.results
    is_flat = structure.kind is tuple and all(child is LEAF for child in structure.children)
    places = tuple([result.position for result in results if isinstance(result, Output)])
    return places if is_flat and len(places) == len(results) else None


def _plain_writes(writes: Sequence[Write]) -> list[tuple[int, int]] | None:
    """Arguments and the outputs that they get; None where a write is anything else."""
    found = [
        (write.source.argument, write.output)
        for write in writes
        if write.source.argument is not None
        and write.output is not None
        and not write.source.gradient
    ]
    return found if len(found) == len(writes) else None


def _write_arguments(
    writes: Sequence[tuple[int, int]], handles: Sequence[Tensor], values: Sequence[Any]
) -> list[Array]:
    """Write to arguments outside of traces; the arrays that were replaced.

    One that was written in its place is none of them. No variable holds an array here: whoever gets
    the list counts references.
    """
    replaced: list[Array] = []
    for argument, output in writes:
        owner = handles[argument]
        if owner._value is not values[output]:
            if type(owner._value) in CONCRETE:
                replaced.append(owner._value)
            owner._value = values[output]
    return replaced


def _write_back(
    recording: Recording, handles: Sequence[Tensor], values: Sequence[Any]
) -> list[Array]:
    """Write state back; the arrays that were replaced."""
    replaced: list[Array] = []
    gradients: list[Tensor] = []
    is_traced = bool(traces.stack)
    for write in recording.writes:
        owner = write.source.owner(handles)
        if owner is None:
            continue
        value = None if write.output is None else values[write.output]
        if write.source.is_counter:
            GENERATOR.advance(wrap(value))
            continue
        if is_traced:
            value = without_zero_tangents(value)
            about_to_write(owner)
        if write.source.gradient:
            if owner._grad is not None:
                gradients.append(owner._grad)
            owner._grad = None if value is None else wrap(value)
        else:
            if type(owner._value) in CONCRETE:
                replaced.append(owner._value)
            owner._value = value
    if gradients:
        freed = objects_held_once(gradients)
        replaced += [old._value for old in freed if type(old._value) in CONCRETE]
    return replaced
