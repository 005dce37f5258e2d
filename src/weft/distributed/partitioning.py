"""`partition`: a function over whole values, divided among the devices of a mesh.

>>> import weft as wf
>>> mesh = wf.distributed.Mesh(data=2)
>>> mean = wf.distributed.partition(lambda x: (x * x).mean(), mesh, in_placements=[("data", None)])
>>> mean(wf.ones((4, 3))).item()
1.0
>>> print(mean.explain(wf.ones((4, 3))))  # doctest: +ELLIPSIS
1 transfer on Mesh(data=2), 4 bytes sent by each device
...
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any
from weakref import WeakSet

import weft as wf
from weft.collectives import find_group
from weft.distributed.division import Division
from weft.distributed.group import Group
from weft.distributed.mesh import Mesh
from weft.distributed.placing import match_plan, placements_of
from weft.distributed.process_group import is_initialized, world, world_size
from weft.sharding import REPLICATED, PartitionedJit, Placement, argument_names

__all__ = ["PartitionedFunction", "digest_of_numbers", "partition"]

Along = dict[str, Placement | None]


def partition(
    f: Callable[..., Any],
    mesh: Mesh,
    in_placements: Sequence[Any] | Mapping[str, Any] | None = None,
    out_placements: Any = None,
) -> PartitionedFunction:
    """A function that computes what f does, with the work divided among the devices of a mesh.

    f is traced whole, as by `wf.jit`: gradients that it takes, and state that it updates (a module,
    an optimiser), are part of the one program that is divided. Arguments and results are whole
    values. Where processes run that fit the mesh, each computes its part; else all parts are
    computed in lockstep in this process.

    in_placements: one placement for each positional argument (see `shard`; None leaves it open),
    or a plan, in which patterns name values: `{"net.*.query.weight": split(0, "model")}`. An entry
    for an argument that is a tree may be a plan of its own, of the names inside. What a call
    updates is placed after it as before it, and is replicated where nothing else is said.
    out_placements: one placement for all results that are returned; None leaves them as they come.

    >>> import weft as wf
    >>> product = partition(wf.matmul, Mesh(model=2), [(None, "model"), ("model", None)])
    >>> product(wf.ones((2, 4)), wf.ones((4, 3))).tolist()
    [[4.0, 4.0, 4.0], [4.0, 4.0, 4.0]]
    """
    return PartitionedFunction(f, mesh, in_placements, out_placements)


class PartitionedFunction:
    """A function whose work is divided among the devices of a mesh; see `partition`."""

    def __init__(
        self,
        f: Callable[..., Any],
        mesh: Mesh,
        in_placements: Sequence[Any] | Mapping[str, Any] | None,
        out_placements: Any,
    ) -> None:
        self.mesh = mesh
        self._in, self._out = in_placements, out_placements
        self._sizes = dict(mesh.axes)
        self._compared: WeakSet[Group] = WeakSet()
        """The groups whose processes have compared what they call it with."""
        costs = {name: (size, mesh.costs[name]) for name, size in mesh.axes.items()}
        self._jit = PartitionedJit(f, costs, self._place, self._has_groups)
        self.__wrapped__ = f
        self.__name__ = getattr(f, "__name__", "partitioned")

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run all parts of the function; values and results are whole."""
        self._check_count(args)
        self._compare_once(args, kwargs)
        return self._jit(*args, **kwargs)

    def _compare_once(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
        """Refuse, before the first call, what is not the same on all processes.

        Each computes a part of one program over one set of values: of two, as of models from other
        seeds, the result would be a mixture, and the weights would drift apart.
        """
        if not is_initialized() or world_size() == 1 or world() in self._compared:
            return
        if wf.ir.is_tracing() or not self._has_groups():
            return
        self._compared.add(world())
        graph, inputs = self._jit.whole_inputs(*args, **kwargs)
        numbers = [f"{name}: {digest_of_numbers(value)}" for name, value in inputs.items()]
        facts = {"the program": str(graph), "the numbers that it is given": "\n".join(numbers)}
        world().compare_facts("partition", facts)

    def _check_count(self, args: Sequence[Any]) -> None:
        is_listed = self._in is not None and not isinstance(self._in, Mapping)
        if is_listed and len(self._in or ()) != len(args):
            raise wf.ArgumentError(
                "partition",
                "in_placements does not have one entry for each positional argument",
                expected=f"{len(args)} entries",
                got={"in_placements": self._in},
                fix="give None for an argument whose placement is open",
            )

    def explain(self, *args: Any, **kwargs: Any) -> Division:
        """How a call with these arguments is divided, and what is sent; nothing is run."""
        self._check_count(args)
        return Division(self.mesh, *self._jit.partitioned(*args, **kwargs))

    def graph(self, *args: Any, **kwargs: Any) -> Any:
        """The program of one device: local sizes, and collectives."""
        self._check_count(args)
        return self._jit.partitioned(*args, **kwargs)[0].graph

    def scatter(self, *args: Any, **kwargs: Any) -> None:
        """Leave each process its part of the state that a call with these arguments updates.

        Tensors of modules and optimisers that the plan splits then hold parts, until `gather` is
        called with them, and only this function may be called with them. Without processes
        nothing changes.
        """
        self._check_count(args)
        self._compare_once(args, kwargs)
        self._jit.scatter(*args, **kwargs)

    def gather(self, *args: Any, **kwargs: Any) -> None:
        """Give tensors that hold parts their whole values; all processes must call it."""
        self._jit.gather(*args, **kwargs)

    def forget(self, *args: Any, **kwargs: Any) -> None:
        """Give tensors that hold parts zeros of the whole's shape, before other values are put in.

        What processes had that are lost cannot be gathered; no process needs to call it.
        """
        self._jit.forget(*args, **kwargs)

    def _has_groups(self) -> bool:
        """Whether processes stand behind every axis of the mesh; else all run in lockstep here.

        Processes that do not fit the mesh are an error: each would compute all of it.
        """
        try:
            groups = {name: find_group("partition", name) for name in self.mesh.axes}
        except wf.ArgumentError:
            groups = {}
        if {name: group.size for name, group in groups.items()} == self.mesh.axes:
            return True
        if is_initialized() and world_size() > 1:
            self.mesh.check_world(world_size())
            raise wf.ArgumentError(
                "partition",
                "the processes are laid out as another mesh",
                expected=f"the axes {self.mesh.axes}",
                got={name: group.size for name, group in groups.items()} or {"axes": "others"},
                fix="wf.distributed.bind_axes(mesh.axes)",
            )
        return False

    # --- placements of a call's values ---

    def _place(
        self, graph: Any, names: Any, next_values: Sequence[int | None]
    ) -> tuple[dict[str, list[Placement | None]], dict[str, list[Placement | None]]]:
        updated = {place for place in next_values if place is not None}
        inputs = [
            self._of_input(name or f"input {place}", kind, place in updated)
            for place, (name, kind) in enumerate(zip(names.inputs, graph.input_types, strict=True))
        ]
        outputs = [
            inputs[place]
            if place is not None
            else placements_of(self._out, kind, self._sizes, "the result")
            for place, kind in zip(next_values, graph.output_types, strict=True)
        ]
        return self._by_axis(inputs), self._by_axis(outputs)

    def _by_axis(self, rows: Sequence[Along]) -> dict[str, list[Placement | None]]:
        return {axis: [row[axis] for row in rows] for axis in self._sizes}

    def _of_input(self, name: str, kind: wf.TensorType, is_updated: bool) -> Along:
        spec = self._spec_for(name.removesuffix(".grad"))
        if name == "random counter":
            spec = REPLICATED
        along = placements_of(spec, kind, self._sizes, name)
        if not is_updated:
            return along
        return {axis: placement or REPLICATED for axis, placement in along.items()}

    def _spec_for(self, name: str) -> Any:
        if self._in is None:
            return None
        if isinstance(self._in, Mapping):
            return match_plan(self._in, name)[1]
        arguments = argument_names(self.__wrapped__, len(self._in))
        for argument, spec in zip(arguments, self._in, strict=False):
            inside = name.removeprefix(argument)
            if inside == name or (inside and inside[0] not in ".["):
                continue
            is_plan = isinstance(spec, Mapping) and not set(spec) <= set(self._sizes)
            return match_plan(spec, inside.lstrip("."))[1] if is_plan else spec
        return None


SAMPLE = 1 << 16
"""About how many elements of a tensor processes compare."""


def digest_of_numbers(value: wf.Tensor) -> str:
    """A short text that stands for some of a tensor's elements."""
    flat = value.detach().reshape(-1)
    some = flat[:: max(int(flat.size) // SAMPLE, 1)].numpy()
    return hashlib.blake2b(some.tobytes(), digest_size=6).hexdigest()
