"""Plans of pipelines: the cut, schedule and micro-batches with which a step takes least time.

The work of each module is read from the graphs of its forward pass and of its derivative; stages
are cut so that the slowest is as fast as can be. Each choice is simulated event by event, with the
results of all modules kept for the way back, and with those alone that stages begin with: then a
stage computes forward once more before it goes back.

>>> import weft as wf
>>> net = wf.nn.Sequential(*[wf.nn.Linear(64, 64) for _ in range(4)])
>>> found = plan_pipeline(net, wf.ones((32, 64)), devices=2)
>>> found.best.mesh.axes, sorted(found.best.pipeline)
({'data': 1, 'stage': 2}, ['chunks', 'cut', 'micro_batches', 'recompute', 'schedule'])
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

import weft as wf
from weft.distributed.mesh import Mesh
from weft.distributed.planning import Choice, Plan
from weft.distributed.stages.cutting import cut_with_parameters
from weft.distributed.stages.order import pipeline_order
from weft.distributed.stages.timeline import simulate_pipeline
from weft.sharding import Costs, Simulated, parse_bytes, record_step, simulate_step

__all__ = ["ModuleWork", "module_works", "plan_pipeline"]

KEPT = 4
"""The bytes that training keeps for each byte of weights: itself, its gradient, two moments."""
SCHEDULES = (("gpipe", 1), ("1f1b", 1), ("interleaved", 2))


class ModuleWork(NamedTuple):
    """What one module of a row needs for a micro-batch: seconds, and bytes."""

    forward: float
    backward: float
    parameters: int
    kept: int
    """Bytes that are kept from the forward pass for the way back."""
    sent: int
    """Bytes of the result."""
    given: int = 0
    """Bytes of the input."""


def module_works(modules: Sequence[Any], x: wf.Tensor, work: Costs) -> list[ModuleWork]:
    """The work of each module for inputs like x, of which each gives the next one's."""
    found = []
    for module in modules:
        graph = record_step(_call_module, module, x).graph
        forward = simulate_step(graph, {}, work)
        y = module(x).detach()
        both = simulate_step(record_step(_call_and_go_back, module, x, y).graph, {}, work)
        weights = _bytes_of(_parameters_of(module))
        kept = max(both.memory - 2 * weights - _bytes_of([x, y, y]), _bytes_of([y]))
        seconds = forward.computing - work.overhead
        back = both.computing - work.overhead - seconds
        sizes = (weights, kept, _bytes_of([y]), _bytes_of([x]))
        found.append(ModuleWork(seconds, max(back, 0.0), *sizes))
        x = y
    return found


def _call_module(module: Any, x: wf.Tensor) -> Any:
    return module(x)


def _call_and_go_back(module: Any, x: wf.Tensor, ct: wf.Tensor) -> Any:
    """The result, and the gradients of a module's parameters, and of its input where it has one.

    The result is among them, so that the work of both ways is, also where the way back reads
    nothing of the way there, as that of a product.
    """
    if x.dtype.is_inexact:
        result, pull = wf.vjp(_call_module, module, x)[:2]
    else:
        result, pull = wf.vjp(lambda module: module(x), module)[:2]
    gradients = wf.tree.leaves(pull(ct))
    return [result, *[leaf for leaf in gradients if isinstance(leaf, wf.Tensor)]]


def _parameters_of(module: Any) -> Sequence[wf.Tensor]:
    return list(module.parameters()) if hasattr(module, "parameters") else []


def _bytes_of(tensors: Any) -> int:
    return sum(int(tensor.size) * tensor.dtype.itemsize for tensor in tensors)


def plan_pipeline(
    model: Any,
    x: wf.Tensor,
    *,
    devices: int,
    memory: str | int | None = None,
    costs: Costs | None = None,
) -> Plan:
    """Look for the pipeline, with data parallel beside it, in which a step takes least time.

    model: a row of modules, each of which takes a tensor. x: a whole batch of its inputs.
    """
    modules, links = list(model), costs or Costs()
    limit = None if memory is None else parse_bytes("plan", memory)
    choices = list(_choices(modules, x, devices, links))
    if not choices:
        raise wf.ArgumentError(
            "plan_pipeline",
            "no pipeline fits so many devices",
            expected="a number of stages that divides the devices, with a module for each, and "
            "micro-batches that divide the batch",
            got={"devices": devices, "modules": len(modules), "rows": int(x.shape[0])},
            fix="devices=2, or a larger batch",
        )
    return Plan(_no_step, choices, limit)


def _no_step(*_: Any) -> None:
    """A pipeline has no step that is one function."""


def _choices(modules: Sequence[Any], x: wf.Tensor, devices: int, links: Costs) -> Iterator[Choice]:
    works: dict[int, list[ModuleWork]] = {}
    with_parameters = sum(_bytes_of(_parameters_of(module)) > 0 for module in modules)
    for stages in range(2, min(devices, with_parameters) + 1):
        rows, rest = divmod(int(x.shape[0]), max(devices // stages, 1))
        if devices % stages or rest:
            continue
        for micro_batches in (stages, 2 * stages, 4 * stages, 8 * stages):
            if rows % micro_batches:
                continue
            size = rows // micro_batches
            if size not in works:
                works[size] = module_works(modules, x[:size], links)
            for schedule, chunks in SCHEDULES:
                if stages * chunks <= with_parameters:
                    settings = (stages, devices // stages, micro_batches, schedule, chunks)
                    for recompute in (False, True):
                        yield simulated_choice(works[size], *settings, links, recompute)


def simulated_choice(
    works: Sequence[ModuleWork],
    stages: int,
    data: int,
    micro_batches: int,
    schedule: str,
    chunks: int,
    links: Costs,
    recompute: bool = False,
) -> Choice:
    """One pipeline in time: its step, the sum of gradients along data, and the update."""
    weights_of_modules = [work.parameters for work in works]
    seconds_of_modules = [work.forward + work.backward for work in works]
    cut = cut_with_parameters(seconds_of_modules, weights_of_modules, stages * chunks)
    bounds = [0, *cut, len(works)]
    rows = [works[start:end] for start, end in pairwise(bounds)]

    def per_stage(value: Callable[[ModuleWork], float]) -> list[float]:
        return [sum(map(value, row)) for row in rows]

    start = links.overhead
    forward = per_stage(lambda work: work.forward)
    backward = per_stage(lambda work: work.backward + (work.forward if recompute else 0.0))
    # gradients of all micro-batches but the first are added to those before: two reads, a write
    added = 3 * (micro_batches - 1) / micro_batches / links.memory
    adding = per_stage(lambda work: added * work.parameters)
    step = simulate_pipeline(
        pipeline_order(schedule, stages, micro_batches, chunks),
        [start + seconds for seconds in forward],
        [start + back + add for back, add in zip(backward, adding, strict=True)],
        [links.transfer(row[-1].sent) for row in rows],
    )
    weights, kept = per_stage(lambda w: w.parameters), per_stage(lambda w: w.kept)
    # of a micro-batch under way: all results, or the stage's input, with the rest for one at a time
    waiting = [float(row[0].given) for row in rows] if recompute else kept
    working = kept if recompute else [0.0] * len(rows)
    most = max(sum(weights[place::stages]) for place in range(stages))
    reduce = links.transfer(2 * (data - 1) / data * most)
    update = start + (KEPT + 3) * most / links.memory
    held = [
        KEPT * sum(weights[place::stages])
        + step.kept[place] * max(waiting[place::stages])
        + max(working[place::stages])
        for place in range(stages)
    ]
    seconds = step.seconds + reduce + update
    computing = step.seconds * (1 - step.idle) + update
    simulated = Simulated(seconds, computing, reduce, int(max(held)), tuple(step.timeline))
    mesh = Mesh(costs={"data": links, "stage": links}, data=data, stage=stages)
    text = f"{schedule}, {micro_batches} micro-batches" + (", recomputed" if recompute else "")
    settings = {
        "schedule": schedule, "micro_batches": micro_batches, "chunks": chunks, "cut": cut,
        "recompute": recompute,
    }  # fmt: skip
    return Choice(mesh, text, {}, simulated, "", settings)
