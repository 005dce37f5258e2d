"""Partitioned functions: what `weft.distributed` is built on.

Users reach them as `wf.distributed.partition` and so on.

>>> import weft as wf
>>> wf.distributed.shard(wf.ones(2), ("data",)).tolist()
[1.0, 1.0]
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from weft.compiler.function.arguments import Call
from weft.compiler.function.compiled_function import Compiled
from weft.compiler.function.jit import Jit
from weft.compiler.function.recording import Recording
from weft.compiler.function.value_names import Names, argument_names, names_of
from weft.compiler.memory_budget.search import parse_bytes
from weft.core.records import frozen
from weft.core.shapes import Unifier
from weft.core.types import TensorType
from weft.divided_graph import DividedGraph
from weft.ir.dispatch import apply
from weft.ir.graph import Graph
from weft.ir.sharding import REPLICATED, Partial, Placement, Replicated, Split, local_type
from weft.ir.tensor import Tensor, wrap
from weft.ops.composed.creation import zeros
from weft.ops.operands import as_tensor
from weft.ops.sharding_mark import shard_mark
from weft.transforms.sharding.costs import Costs
from weft.transforms.sharding.partition import Partitioned, partition_graph
from weft.transforms.sharding.shell import Kept, cut_part, gather_whole, lockstep_graph
from weft.transforms.sharding.simulation import Event, Simulated, simulate_step
from weft.transforms.sharding.strategies import has_rule
from weft.transforms.sharding.transfers import Transfer

__all__ = [
    "REPLICATED", "Costs", "Event", "KeptPart", "Partial", "Partitioned", "PartitionedJit",
    "Placement", "RecordedStep", "Replicated", "Simulated", "Split", "Transfer", "argument_names",
    "has_rule", "local_type", "mark", "parse_bytes", "partition_graph", "record_step",
    "simulate_step",
]  # fmt: skip

Placements = Mapping[str, Sequence[Placement | None]]
PlaceValues = Callable[[Graph, Names, Sequence[int | None]], tuple[Placements, Placements]]
"""Placements of inputs and outputs for each mesh axis, given the graph of a call, its names, and
for each output the input that it is the next value of."""


@frozen
class KeptPart:
    """A handle that holds this process's part of a value: the whole type, and how it is placed."""

    handle: weakref.ref[Tensor]
    kind: TensorType
    placements: Mapping[str, Placement]


class PartitionedJit(Jit):
    """A compiled function whose graph is divided among the devices of a mesh.

    Arguments and results are whole values, apart from handles that `scatter` has left the part of
    this process. `mesh` are the mesh axes, with their sizes and costs. kept: handles that
    hold parts already, by identity; several functions may share them.
    """

    def __init__(
        self,
        f: Callable[..., Any],
        mesh: Mapping[str, tuple[int, Costs]],
        place: PlaceValues,
        has_groups: Callable[[], bool],
        kept: dict[int, KeptPart] | None = None,
    ) -> None:
        super().__init__(f)
        self._mesh, self._place, self._has_groups = mesh, place, has_groups
        self._sizes = {name: count for name, (count, _) in mesh.items()}
        self._divided: dict[Any, tuple[Partitioned, Recording, Names]] = {}
        self._kept = {} if kept is None else kept

    def partitioned(self, *args: Any, **kwargs: Any) -> tuple[Partitioned, Sequence[str]]:
        """The program of one device for a call with these arguments, and its inputs' names."""
        call = self._read(args, kwargs)
        self._find(call)
        done, _, names = self._divided[call.key]
        return done, names.inputs

    def whole_inputs(self, *args: Any, **kwargs: Any) -> tuple[Graph, dict[str, Tensor]]:
        """The whole program for a call with these arguments, and its inputs that are whole here."""
        call = self._read(args, kwargs)
        self._find(call)
        _, recording, names = self._divided[call.key]
        named = zip(names.inputs, recording.sources, strict=True)
        inputs = {
            name or f"input {place}": source.read(call.handles)
            for place, (name, source) in enumerate(named)
            if self._part_of(source.owner(call.handles)) is None
        }
        return recording.graph, inputs

    # --- state of which each process keeps its part ---

    def scatter(self, *args: Any, **kwargs: Any) -> None:
        """Leave each process its part of the state that a call with these arguments updates.

        Gradients that wait for more are cut with the value that they belong to. Without processes
        all parts are here, and nothing changes.
        """
        if not self._has_groups():
            return
        call = self._read(args, kwargs)
        self._find(call)
        done, recording, _ = self._divided[call.key]
        updated = [place for place in _next_values(recording) if place is not None]
        for place in updated:
            source, placements = recording.sources[place], done.placements_of_input(place)
            handle = source.owner(call.handles)
            is_split = any(isinstance(each, Split) for each in placements.values())
            if handle is None or source.gradient or not is_split or self._part_of(handle):
                continue
            part = KeptPart(weakref.ref(handle), handle.type, placements)
            handle._value = cut_part(wrap(handle._value), placements, self._sizes)._value
            if handle._grad is not None:
                handle._grad = cut_part(handle._grad.detach(), placements, self._sizes)
            self._kept[id(handle)] = part

    def gather(self, *args: Any, **kwargs: Any) -> None:
        """Give handles in these arguments, of which processes keep parts, their whole values."""
        for handle in self._read(args, kwargs).handles:
            part = self._part_of(handle)
            if part is not None:
                local = wrap(handle._value)
                handle._value = gather_whole(local, part.placements, self._sizes)._value
                if handle._grad is not None:
                    handle._grad = gather_whole(handle._grad.detach(), part.placements, self._sizes)
                del self._kept[id(handle)]

    def forget(self, *args: Any, **kwargs: Any) -> None:
        """Give handles in these arguments, of which processes kept parts, zeros for the whole.

        What processes kept that are gone cannot be gathered any more.
        """
        for handle in self._read(args, kwargs).handles:
            part = self._part_of(handle)
            if part is not None:
                device = wrap(handle._value).device
                whole = zeros(part.kind.shape, dtype=part.kind.dtype, device=device)
                handle._value = whole._value
                handle._grad = None
                del self._kept[id(handle)]

    def _part_of(self, handle: Tensor | None) -> KeptPart | None:
        part = None if handle is None else self._kept.get(id(handle))
        return part if part is not None and part.handle() is handle else None

    # --- compilation ---

    def _compile(self, call: Call) -> Compiled:
        """A program for each size by itself: whether axes divide depends on it."""
        parts = [self._part_of(handle) for handle in call.handles]
        pairs = zip(call.handles, parts, strict=True)
        types = [handle.type if part is None else part.kind for handle, part in pairs]
        reason = "another size" if self._compiled else "first call"
        return self._compile_for(call, types, reason)

    def _make_program(
        self, call: Call, types: Sequence[TensorType], recording: Recording, reason: str
    ) -> Compiled:
        outside = self.values_outside(call.args, call.kwargs)
        names = names_of(self._f, (call.args, call.kwargs, outside), recording)
        graph = recording.graph
        next_values = _next_values(recording)
        inputs, outputs = self._place(graph, names, next_values)
        rows_in = self._rows(inputs, len(graph.inputs))
        rows_out = self._rows(outputs, len(graph.outputs))
        kept = self._kept_places(call, recording)
        for place in kept[0]:
            part = self._part_of(recording.sources[place].owner(call.handles))
            assert part is not None
            rows_in[place] = part.placements
        for place in kept[1]:
            replaced = next_values[place]
            rows_out[place] = rows_out[place] if replaced is None else rows_in[replaced]
        divided = DividedGraph(graph, self._mesh, rows_in, rows_out, kept)
        has_groups = self._has_groups()
        device = (
            divided.program
            if has_groups
            else lockstep_graph(divided.partitioned, graph, self._sizes)
        )
        compiled = super()._make_program(call, types, replace(recording, graph=device), reason)
        compiled.derivative = divided if has_groups else None
        self._divided[call.key] = divided.partitioned, recording, names
        return compiled

    def _rows(self, placements: Placements, count: int) -> list[Mapping[str, Placement | None]]:
        """Placements by value in place of by mesh axis."""
        return [{axis: placements[axis][i] for axis in self._mesh} for i in range(count)]

    def _kept_places(self, call: Call, recording: Recording) -> Kept:
        """The inputs and outputs of which this process holds its part alone."""
        sources = enumerate(recording.sources)
        inputs = [i for i, source in sources if self._part_of(source.owner(call.handles))]
        outputs = [
            write.output
            for write in recording.writes
            if write.output is not None and self._part_of(write.source.owner(call.handles))
        ]
        return frozenset(inputs), frozenset(outputs)


@frozen
class RecordedStep:
    """The graph of a call, the names of its inputs, and which input each output replaces."""

    graph: Graph
    names: tuple[str, ...]
    next_values: tuple[int | None, ...]


def record_step(f: Callable[..., Any], *args: Any, **kwargs: Any) -> RecordedStep:
    """What a call of f computes and updates; nothing is run."""
    traced = Jit(f)
    call = traced._read(args, kwargs)
    with Unifier():
        recording = traced._record_call(call, [handle.type for handle in call.handles])
    outside = traced.values_outside(args, kwargs)
    names = names_of(f, (call.args, call.kwargs, outside), recording)
    return RecordedStep(recording.graph, names.inputs, tuple(_next_values(recording)))


def _next_values(recording: Recording) -> list[int | None]:
    """For each output the input that it replaces, or is the gradient of; None for results."""
    found: list[int | None] = [None] * len(recording.graph.outputs)
    for write in recording.writes:
        if write.output is None:
            continue
        same = [i for i, s in enumerate(recording.sources) if s.is_same_place(write.source)]
        owner = (write.source.argument, write.source.handle)
        beside = [
            i for i, s in enumerate(recording.sources)
            if write.source.gradient and (s.argument, s.handle) == owner
        ]  # fmt: skip
        found[write.output] = next(iter([*same, *beside]), None)
    return found


def mark(x: Any, axes: tuple[tuple[str, ...], ...], whole: tuple[str, ...] | None) -> Tensor:
    """A value with a mark on it that says how it is placed on a mesh."""
    return apply(shard_mark, as_tensor("shard", x), axes=axes, whole=whole)
