"""`plan`: the mesh and the placements with which a training step takes least time, and fits.

Every way to lay devices out as data x model is divided by the partitioner, with the state of the
step replicated, with the optimiser's moments divided along data, and with all state divided. Each
program is simulated. Nothing is run.

>>> import weft as wf
>>> net = wf.nn.Linear(64, 64)
>>> optimizer = wf.optim.SGD(net.parameters(), lr=0.1)
>>> def step(net, optimizer, x):
...     loss = (net(x) ** 2).mean()
...     optimizer.minimize(loss)
...     return loss
>>> found = wf.distributed.plan(step, net, optimizer, wf.ones((8, 64)), devices=2)
>>> found.best.mesh.size
2
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Any, NamedTuple

import weft as wf
from weft.distributed.division import text_table
from weft.distributed.mesh import Mesh
from weft.distributed.partitioning import PartitionedFunction
from weft.distributed.placing import split
from weft.sharding import (
    REPLICATED,
    Costs,
    Placement,
    RecordedStep,
    Simulated,
    Split,
    local_type,
    parse_bytes,
    partition_graph,
    record_step,
    simulate_step,
)

__all__ = ["Choice", "Plan", "plan"]

STATES = {
    "replicated": (),
    "moments divided": ("*.state[[]*",),
    "all divided": ("*",),
}
"""Which updated values are divided along data: none, an optimiser's moments, all."""
Placements = dict[str, list[Placement | None]]


class Choice(NamedTuple):
    """One mesh with placements of a step's inputs, and what a device needs for a step."""

    mesh: Mesh
    state: str
    placements: Mapping[str, Mapping[str, Any]]
    simulated: Simulated
    verdict: str
    pipeline: Mapping[str, Any] | None = None
    """Of a pipeline: the settings of `wf.distributed.Pipeline`."""


class Plan:
    """All choices that were looked at, the best first; its text is a table that says why.

    best: the fastest that fits. `partition()` divides the step by it.
    """

    def __init__(
        self, step: Callable[..., Any], choices: Sequence[Choice], memory: float | None = None
    ) -> None:
        self._step, self._memory = step, memory
        self.choices = _ranked_choices(choices, memory)

    @property
    def best(self) -> Choice:
        """The fastest choice that fits; an error where none does."""
        first = self.choices[0]
        if first.verdict != "chosen":
            raise wf.OutOfMemoryError(
                "plan",
                "no choice fits the memory of a device",
                expected="more devices, or more memory on each",
                got={"least": f"{min(c.simulated.memory for c in self.choices):,} bytes"},
                fix="plan(..., devices=more), or a smaller batch",
            )
        return first

    def partition(self) -> PartitionedFunction:
        """The step, divided as the best choice says."""
        if self.best.pipeline is not None:
            settings = ", ".join(f"{name}={value!r}" for name, value in self.best.pipeline.items())
            raise wf.UnsupportedError(
                "plan",
                "the best choice is a pipeline, which is no compiled step",
                expected="a loop with a wf.distributed.Pipeline",
                got={"mesh": self.best.mesh, "state": self.best.state},
                fix=f"wf.distributed.Pipeline(model, loss, {settings})",
            )
        return PartitionedFunction(self._step, self.best.mesh, self.best.placements, None)

    def beside(self, other: Plan) -> Plan:
        """The choices of both plans, ranked together."""
        return Plan(self._step, [*self.choices, *other.choices], self._memory)

    def __repr__(self) -> str:
        rows = [
            (
                str(each.mesh), each.state, f"{each.simulated.seconds * 1e3:.3f}",
                f"{each.simulated.computing * 1e3:.3f}", f"{each.simulated.sending * 1e3:.3f}",
                f"{each.simulated.memory / 1e6:.1f}", each.verdict,
            )
            for each in self.choices
        ]  # fmt: skip
        titles = ("mesh", "state", "step ms", "work ms", "sent ms", "MB", "verdict")
        return text_table(titles, rows)


def plan(
    step: Callable[..., Any],
    *args: Any,
    devices: int,
    memory: str | int | None = None,
    costs: Mapping[str, Costs] | Costs | None = None,
) -> Plan:
    """Look for the mesh and the placements with which a step takes least time on so many devices.

    args: arguments of the step, as it is called; what it only reads, and whose first axis divides,
    is taken for a batch. memory: what a device has, as "80GB" or in bytes. costs: of all links, or
    of the mesh axes "data" and "model" by name; the work of a device is that of "data".
    """
    if type(devices) is not int or devices < 1:
        raise wf.ArgumentError(
            "plan",
            "this is no number of devices",
            expected="a whole number, at least 1",
            got={"devices": devices},
            fix="devices=8",
        )
    links = {"data": Costs(), "model": Costs()}
    if isinstance(costs, Costs):
        links = dict.fromkeys(links, costs)
    elif costs is not None:
        links.update(costs)
    recorded = record_step(step, *args)
    limit = None if memory is None else parse_bytes("plan", memory)
    return Plan(step, list(_choices(recorded, devices, links)), limit)


def _ranked_choices(choices: Sequence[Choice], memory: float | None) -> list[Choice]:
    """The choices by time, those that fit first, with what is to be said of each."""

    def fits(choice: Choice) -> bool:
        return memory is None or choice.simulated.memory <= memory

    ranked = sorted(choices, key=lambda each: (not fits(each), each.simulated.seconds))
    least = ranked[0].simulated.seconds
    verdicts = []
    for place, each in enumerate(ranked):
        if not fits(each):
            verdicts.append(f"needs {each.simulated.memory / (memory or 1):.2f} of the memory")
        elif place == 0:
            verdicts.append("chosen")
        else:
            verdicts.append(f"takes {each.simulated.seconds / max(least, 1e-12):.2f} of the time")
    return [each._replace(verdict=text) for each, text in zip(ranked, verdicts, strict=True)]


def _choices(recorded: RecordedStep, devices: int, links: Mapping[str, Costs]) -> Iterator[Choice]:
    for model in (size for size in range(1, devices + 1) if devices % size == 0):
        sizes = {"data": devices // model, "model": model}
        mesh = Mesh(costs=links, **sizes)
        whole: list[Placement | None] = [REPLICATED for _ in recorded.names]
        layouts = [whole, _along_model(recorded, model, links["model"])] if model > 1 else [whole]
        for state in STATES if sizes["data"] > 1 else ["replicated"]:
            for number, layout in enumerate(layouts):
                inputs = {"data": _along_data(recorded, sizes["data"], state), "model": layout}
                inputs["model"] = _without_conflicts(recorded, inputs, sizes)
                if number and inputs["model"] == whole:
                    continue
                name = f"{state}, split along model" if number else state
                yield _simulated_choice(recorded, mesh, name, inputs)


def _simulated_choice(recorded: RecordedStep, mesh: Mesh, state: str, inputs: Placements) -> Choice:
    outputs = {
        axis: [None if place is None else placed[place] for place in recorded.next_values]
        for axis, placed in inputs.items()
    }
    costs = {name: (size, mesh.costs[name]) for name, size in mesh.axes.items()}
    done = partition_graph(recorded.graph, costs, inputs, outputs)
    simulated = simulate_step(done.graph, mesh.costs, mesh.costs["data"])
    placements = {
        name: {axis: _as_spec(placed[place]) for axis, placed in inputs.items()}
        for place, name in enumerate(recorded.names)
    }
    return Choice(mesh, state, placements, simulated, "")


def _as_spec(placement: Placement | None) -> Any:
    return split(placement.axis) if isinstance(placement, Split) else placement


def _updated_places(recorded: RecordedStep) -> set[int]:
    return {place for place in recorded.next_values if place is not None}


def _along_data(recorded: RecordedStep, count: int, state: str) -> list[Placement | None]:
    """Batches split along their first axis, state as the name of a choice says."""
    updated = _updated_places(recorded)
    rows: list[Placement | None] = []
    for place, (name, kind) in enumerate(
        zip(recorded.names, recorded.graph.input_types, strict=True)
    ):
        is_split = place not in updated or any(fnmatchcase(name, p) for p in STATES[state])
        axes = range(kind.ndim if place in updated else min(kind.ndim, 1))
        fitting = [Split(a) for a in axes if local_type(kind, Split(a), count) is not None]
        rows.append(fitting[0] if is_split and fitting and count > 1 else REPLICATED)
    return rows


def _along_model(recorded: RecordedStep, count: int, costs: Costs) -> list[Placement | None]:
    """How a search places the state, where batches are replicated and state is free."""
    updated = _updated_places(recorded)
    free = [None if place in updated else REPLICATED for place in range(len(recorded.names))]
    open_outputs = {"model": [None] * len(recorded.graph.outputs)}
    done = partition_graph(recorded.graph, {"model": (count, costs)}, {"model": free}, open_outputs)
    return list(done.inputs["model"])


def _without_conflicts(
    recorded: RecordedStep, inputs: Placements, sizes: Mapping[str, int]
) -> list[Placement | None]:
    """The placements along model, replicated where an axis does not divide along both."""
    rows: list[Placement | None] = []
    kinds = zip(recorded.graph.input_types, inputs["data"], inputs["model"], strict=True)
    for kind, data, model in kinds:
        local = local_type(kind, data or REPLICATED, sizes["data"])
        fits = local is not None and local_type(local, model or REPLICATED, sizes["model"])
        rows.append(model if fits else REPLICATED)
    return rows
