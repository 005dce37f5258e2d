"""Functions partitioned over random meshes, with random placements of their inputs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from weft.sharding import REPLICATED, Costs, PartitionedJit, Placement, Split, local_type

MESHES: tuple[dict[str, int], ...] = (
    {"a": 1}, {"a": 2}, {"a": 3}, {"a": 4}, {"a": 2, "b": 2}, {"a": 8}, {"a": 2, "b": 4},
    {"a": 2, "b": 2, "c": 2},
)  # fmt: skip


class RandomPlaces:
    """Places inputs at random, where their sizes divide; outputs are left as they come."""

    def __init__(self, mesh: Mapping[str, int], seed: int) -> None:
        self.mesh, self.seed = mesh, seed

    def __call__(
        self, graph: Any, names: Any, next_values: Sequence[int | None]
    ) -> tuple[dict[str, list[Placement | None]], dict[str, list[Placement | None]]]:
        rng = np.random.default_rng(self.seed)
        local, inputs = list(graph.input_types), {}
        for axis, count in self.mesh.items():
            placed = [self._choose(rng, kind, count) for kind in local]
            for place in filter(lambda place: place is not None, next_values):
                assert place is not None  # state is placed after a call as before it
                placed[place] = placed[place] or REPLICATED
            # a free input may come out split, so that later axes must not rely on its size
            local = [
                kind.with_shape((1,) * kind.ndim) if p is None else local_type(kind, p, count)
                for kind, p in zip(local, placed, strict=True)
            ]
            inputs[axis] = placed
        outputs = {
            axis: [None if place is None else inputs[axis][place] for place in next_values]
            for axis in self.mesh
        }
        return inputs, outputs

    def _choose(self, rng: np.random.Generator, kind: Any, count: int) -> Placement | None:
        splits = [Split(axis) for axis in range(kind.ndim)]
        fitting = [each for each in splits if local_type(kind, each, count) is not None]
        choices: list[Placement | None] = [None, REPLICATED, *fitting, *fitting]
        return choices[rng.integers(len(choices))]


def partition_at_random(f: Callable[..., Any], seed: int) -> Any:
    """A function, partitioned over the mesh and with the placements that a seed says.

    For every second one transfers cost next to nothing, so that as much as possible is divided.
    """
    mesh = MESHES[seed // 2 % len(MESHES)]
    costs = Costs(bandwidth=1e18, latency=0.0) if seed % 2 else Costs()
    along = {axis: (count, costs) for axis, count in mesh.items()}
    return PartitionedJit(f, along, RandomPlaces(mesh, seed), lambda: False)
