"""The program of one device from whole values to whole values, and all devices in lockstep.

A device cuts its part from each input, runs its program, and gathers the outputs. So a partitioned
graph can stand wherever the plain one stood. In one process, all devices of a mesh run in
lockstep: a batch with the name of each mesh axis (`ir/batching.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial

from weft.ir.batching import vmap
from weft.ir.dispatch import apply
from weft.ir.graph import Graph
from weft.ir.sharding import Part, Placement, Split
from weft.ir.tensor import Tensor
from weft.ir.tracing import interpret, trace
from weft.ops.collectives import gather_shards, shard_index
from weft.ops.movement import reshape, slice_
from weft.ops.sharding_mark import shard_mark
from weft.ops.sharding_rules import slice_part
from weft.transforms.sharding.partition import Partitioned

Sizes = Mapping[str, int]
Program = Callable[..., Sequence[Tensor]]
Kept = tuple[frozenset[int], frozenset[int]]
NOTHING: Kept = (frozenset(), frozenset())


def device_graph(done: Partitioned, whole: Graph, mesh: Sizes, kept: Kept = NOTHING) -> Graph:
    """One device's program between whole values, with collectives over the mesh axes.

    kept: the inputs and outputs, by position, of which a device has its part alone.
    """
    kinds = [
        local.type if place in kept[0] else kind
        for place, (kind, local) in enumerate(
            zip(whole.input_types, done.graph.inputs, strict=True)
        )
    ]
    return trace(partial(_run_on_device, done, mesh, kept), kinds).closed_graph()


def lockstep_graph(done: Partitioned, whole: Graph, mesh: Sizes) -> Graph:
    """The programs of all devices in one: whole values to those of the first device."""
    program: Program = partial(_run_on_device, done, mesh, NOTHING)
    for name, count in reversed(list(mesh.items())):
        program = partial(_first_of_all, program, name, count)
    return trace(program, whole.input_types).closed_graph()


def _run_on_device(done: Partitioned, mesh: Sizes, kept: Kept, *inputs: Tensor) -> list[Tensor]:
    cut = [
        x if place in kept[0] else cut_part(x, done.placements_of_input(place), mesh)
        for place, x in enumerate(inputs)
    ]
    return [
        x if place in kept[1] else gather_whole(x, done.placements_of_output(place), mesh)
        for place, x in enumerate(interpret(done.graph, *cut))
    ]


def cut_part(x: Tensor, placements: Mapping[str, Placement], mesh: Sizes) -> Tensor:
    """One device's part of a whole value."""
    for name, count in mesh.items():
        placement = placements[name]
        if isinstance(placement, Split):
            index = partial(apply, shard_index, mesh_axis=name, size=count, stacked=False)
            x = slice_part(Part(shard_mark, count, index), x, placement.axis)
    return x


def gather_whole(x: Tensor, placements: Mapping[str, Placement], mesh: Sizes) -> Tensor:
    """The whole value, from the parts of all devices."""
    for name, count in reversed(list(mesh.items())):
        placement = placements[name]
        if isinstance(placement, Split):
            params = {"mesh_axis": name, "size": count, "stacked": False}
            x = apply(gather_shards, x, axis=placement.axis, **params)
    return x


def _first_of_all(program: Program, name: str, count: int, *inputs: Tensor) -> list[Tensor]:
    """What the first device along a mesh axis gives, when all of them run."""
    results = vmap(program, count, inputs, [None] * len(inputs), name)
    return [x if axis is None else _first_along(x, axis) for x, axis in results]


def _first_along(x: Tensor, axis: int) -> Tensor:
    starts, strides = (0,) * x.ndim, (1,) * x.ndim
    stops = (*x.shape[:axis], 1, *x.shape[axis + 1 :])
    first = apply(slice_, x, starts=starts, stops=stops, strides=strides)
    return apply(reshape, first, shape=(*x.shape[:axis], *x.shape[axis + 1 :]))
