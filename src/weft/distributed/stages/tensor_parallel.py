"""Tensor parallel inside of the stages of a pipeline: what a plan splits along a mesh axis.

Processes along the axis "model" have the same stages, are given the same micro-batches, and hand
the same results on. Of parameters that the plan names each keeps its part; a stage's program, with
its way back, is divided around them as `wf.distributed.partition` divides a function.

>>> import weft as wf
>>> from weft.distributed import split
>>> net = wf.nn.Sequential(wf.nn.Linear(2, 4), wf.nn.Linear(4, 2))
>>> def run_rank():
...     plan = {"0.weight": split(0)}
...     pipeline = wf.distributed.Pipeline(net, wf.nn.functional.mse_loss, plan=plan)
...     shapes = [parameter.shape for parameter in pipeline.parameters()]
...     pipeline.gather_weights()
...     return shapes
>>> wf.distributed.run_threads(run_rank, 1, {"stage": 1, "model": 1})[0]
[(4, 2), (4,), (2, 4), (2,)]
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any
from weakref import ref

import weft as wf
from weft.collectives import all_gather, axis_size, broadcast, find_group, take_shard
from weft.distributed.group import Group
from weft.distributed.parameters import forget_part, is_part, note_tensor_part, part_facts
from weft.distributed.placing import match_plan, placements_of
from weft.sharding import REPLICATED, Costs, KeptPart, PartitionedJit, Placement, Split

__all__ = ["TensorParallel", "unknown_pattern"]


class TensorParallel:
    """The parameters of all stages that a plan splits, and what is computed with their parts."""

    def __init__(
        self, plan: Mapping[str, Any], mesh_axis: str, parameters: Sequence[tuple[str, wf.Tensor]]
    ) -> None:
        group = find_group("distributed.Pipeline", mesh_axis)
        assert isinstance(group, Group)
        self.group, self.mesh_axis, self.size = group, mesh_axis, axis_size(mesh_axis)
        names = [name for name, _ in parameters]
        for pattern in plan:
            if not any(match_plan({pattern: None}, name)[0] for name in names):
                raise unknown_pattern("distributed.Pipeline", pattern, names)
        axes = [self._split_axis(plan, name, parameter) for name, parameter in parameters]
        split = [
            (pair, axis) for pair, axis in zip(parameters, axes, strict=True) if axis is not None
        ]
        shown = ", ".join(f"{name} {axis}" for (name, _), axis in split)
        group.compare(f"a pipeline that splits along {mesh_axis}: {shown}")
        self._split = [(parameter, axis) for (_, parameter), axis in split if self.size > 1]
        self._kept: dict[int, KeptPart] = {}

    def _split_axis(self, plan: Mapping[str, Any], name: str, parameter: wf.Tensor) -> int | None:
        """Which axis of a parameter the plan splits, if any."""
        is_named, spec = match_plan(plan, name)
        if not is_named:
            return None
        if is_part(parameter):
            raise wf.UnsupportedError(
                "distributed.Pipeline",
                f"a plan places whole parameters, and processes have parts of {name!r}",
                expected="a model without shard_experts and shard_parameters",
                got={name: parameter, "placement": spec},
                fix=f"leave {name!r} out of the plan",
            )
        try:
            placed = placements_of(spec, parameter.type, {self.mesh_axis: self.size}, name)
        except wf.WeftError as error:
            raise error.called("distributed.Pipeline") from None
        placement = placed[self.mesh_axis]
        return placement.axis if isinstance(placement, Split) else None

    def copy_from_first(self, handles: Sequence[wf.Tensor]) -> None:
        """Make tensors those of the first process along the axis."""
        with wf.no_grad():
            for handle in handles:
                handle.copy_(broadcast(handle, self.mesh_axis))

    def scatter(self) -> None:
        """Leave this process its part of what is split; nothing where it has it already."""
        with wf.no_grad():
            for parameter, axis in self._split:
                if is_part(parameter):
                    continue
                kind = parameter.type
                parameter.set_(take_shard(parameter, self.mesh_axis, axis=axis))
                note_tensor_part(parameter, tuple(map(int, kind.shape)), self.mesh_axis, axis)
                placements: dict[str, Placement] = {self.mesh_axis: Split(axis)}
                self._kept[id(parameter)] = KeptPart(ref(parameter), kind, placements)

    def gather(self) -> None:
        """Give parameters that hold parts their whole values, on all processes."""
        with wf.no_grad():
            for parameter, axis in self._split:
                if is_part(parameter):
                    whole = all_gather(parameter.detach(), self.mesh_axis, axis=axis)
                    forget_part(parameter)
                    del self._kept[id(parameter)]
                    parameter.set_(whole)

    def share_slots(self, optimizer: Any) -> None:
        """Leave this process its part of what an optimiser keeps for split parameters."""
        axes = {id(parameter): axis for parameter, axis in self._split}
        has_split = any(id(parameter) in axes for parameter in optimizer.parameters)
        if has_split and (not optimizer.rowwise or optimizer.waiting is not None):
            raise wf.UnsupportedError(
                "distributed.Pipeline",
                f"this optimiser does not work on parts of parameters along {self.mesh_axis!r}",
                expected="a rule that treats all elements alike, without accumulate",
                got={"optimizer": type(optimizer).__name__, "accumulate": optimizer.accumulate},
                fix="AdamW; MeshStrategy, which divides any rule; a sum of gradients over steps",
            )
        with wf.no_grad():
            for parameter, slots in zip(optimizer.parameters, optimizer.state, strict=True):
                known = part_facts(parameter)
                for value in slots.values():
                    first = broadcast(value, self.mesh_axis)
                    is_whole = known is not None and tuple(value.shape) == known.shape
                    own = first
                    if is_whole and id(parameter) in axes:
                        own = take_shard(first, self.mesh_axis, axis=axes[id(parameter)])
                    value.set_(own)

    def program(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """A stage's function, compiled and divided among the processes along the axis."""
        if self.size == 1:
            compiled: Callable[..., Any] = wf.jit(function)
            return compiled
        mesh = {self.mesh_axis: (self.size, Costs())}
        return PartitionedJit(function, mesh, self._place, lambda: True, self._kept)

    def _place(self, graph: Any, names: Any, next_values: Any) -> Any:
        """All but the parts that are kept is whole: what a stage is given, and what it returns."""
        return (
            {self.mesh_axis: [REPLICATED] * len(graph.inputs)},
            {self.mesh_axis: [REPLICATED] * len(graph.outputs)},
        )

    def compare(self, batch: Any) -> None:
        """Raise an error on all processes along the axis where they are given other things."""
        leaves = [leaf for leaf in wf.tree.leaves(batch) if hasattr(leaf, "shape")]
        shapes = ", ".join(f"{leaf.dtype}{list(leaf.shape)}" for leaf in leaves)
        key = wf.random.get_state()[0].tolist()
        self.group.compare(f"a step of a pipeline along {self.mesh_axis}: {shapes}, seed {key}")


def unknown_pattern(op: str, pattern: str, names: Sequence[str]) -> wf.ArgumentError:
    """The error for a plan with a name that no parameter has."""
    return wf.ArgumentError(
        op,
        f"no parameter has a name like {pattern!r}",
        expected="patterns of the names of parameters",
        got={"names": names},
        fix='{"*.query.weight": wf.distributed.split(0, "model")}',
    )
