"""Partitioned functions: what `weft.distributed` is built on.

Users reach them as `wf.distributed.partition` and so on.

>>> import weft as wf
>>> wf.distributed.shard(wf.ones(2), ("data",)).tolist()
[1.0, 1.0]
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from weft.compiler.function.arguments import Call
from weft.compiler.function.compiled_function import Compiled
from weft.compiler.function.jit import Jit
from weft.compiler.function.recording import Recording
from weft.compiler.function.value_names import Names, argument_names, names_of
from weft.core.types import TensorType
from weft.ir.dispatch import apply
from weft.ir.graph import Graph
from weft.ir.sharding import REPLICATED, Partial, Placement, Replicated, Split, local_type
from weft.ir.tensor import Tensor
from weft.ops.operands import as_tensor
from weft.ops.sharding_mark import shard_mark
from weft.transforms.sharding.costs import Costs
from weft.transforms.sharding.partition import Partitioned, partition_graph
from weft.transforms.sharding.shell import device_graph, lockstep_graph
from weft.transforms.sharding.strategies import has_rule
from weft.transforms.sharding.transfers import Transfer

__all__ = [
    "REPLICATED",
    "Costs",
    "Partial",
    "Partitioned",
    "PartitionedJit",
    "Placement",
    "Replicated",
    "Split",
    "Transfer",
    "argument_names",
    "has_rule",
    "local_type",
    "mark",
    "partition_graph",
]  # fmt: skip

Placements = Mapping[str, Sequence[Placement | None]]
PlaceValues = Callable[[Graph, Names, Sequence[int | None]], tuple[Placements, Placements]]
"""Placements of inputs and outputs for each mesh axis, given the graph of a call, its names, and
for each output the input that it is the next value of."""


class PartitionedJit(Jit):
    """A compiled function whose graph is divided among the devices of a mesh.

    Arguments and results are whole values. `mesh` are the mesh axes, with their sizes and costs.
    """

    def __init__(
        self,
        f: Callable[..., Any],
        mesh: Mapping[str, tuple[int, Costs]],
        place: PlaceValues,
        has_groups: Callable[[], bool],
    ) -> None:
        super().__init__(f)
        self._mesh, self._place, self._has_groups = mesh, place, has_groups
        self._partitioned: dict[Any, Partitioned] = {}

    def partitioned(self, *args: Any, **kwargs: Any) -> Partitioned:
        """The program of one device for a call with these arguments; nothing is run."""
        call = self._read(args, kwargs)
        self._find(call)
        return self._partitioned[call.key]

    def _compile(self, call: Call) -> Compiled:
        """A program for each size by itself: whether axes divide depends on it."""
        types = [handle.type for handle in call.handles]
        reason = "another size" if self._compiled else "first call"
        return self._compile_for(call, types, reason)

    def _make_program(
        self, call: Call, types: Sequence[TensorType], recording: Recording, reason: str
    ) -> Compiled:
        outside = [read() for read in self._outside or ()]
        names = names_of(self._f, (call.args, call.kwargs, outside), recording)
        graph = recording.graph
        inputs, outputs = self._place(graph, names, _next_values(recording))
        done = partition_graph(graph, self._mesh, inputs, outputs)
        sizes = {name: count for name, (count, _) in self._mesh.items()}
        write = device_graph if self._has_groups() else lockstep_graph
        divided = replace(recording, graph=write(done, graph, sizes))
        compiled = super()._make_program(call, types, divided, reason)
        self._partitioned[call.key] = done
        return compiled


def _next_values(recording: Recording) -> list[int | None]:
    """For each output the input that it replaces; None for what the call returns."""
    found: list[int | None] = [None] * len(recording.graph.outputs)
    for write in recording.writes:
        for place, source in enumerate(recording.sources):
            if write.output is not None and source.is_same_place(write.source):
                found[write.output] = place
    return found


def mark(x: Any, axes: tuple[tuple[str, ...], ...], whole: tuple[str, ...] | None) -> Tensor:
    """A value with a mark on it that says how it is placed on a mesh."""
    return apply(shard_mark, as_tensor("shard", x), axes=axes, whole=whole)
