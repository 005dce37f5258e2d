"""Programs of graphs: compiled once each, found again, and run.

>>> import numpy as np
>>> import weft as wf
>>> graph = wf.ir.trace(lambda x: x * 2, wf.spec("float32", (2,)))
>>> evaluate(graph, [np.ones(2, np.float32)])[0].tolist(), executable(graph) is executable(graph)
([2.0, 2.0], True)
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from functools import lru_cache, partial
from typing import Any

import numpy as np

from weft.compiler.function.split_program import SplitExecutable, array_places
from weft.compiler.graph_passes.user_rules import Rewrites, only_these_rules, rewrites
from weft.compiler.plan.device_plan import Places, spans_devices, without_transfers
from weft.compiler.plan.planning import WrittenKernels, plan_program
from weft.compiler.plan.program_plan import ProgramPlan
from weft.compiler.targets.target import Executable, Target, default_target, target_of
from weft.core.arrays import device_of, is_host, to_host
from weft.core.devices import CPU, Device
from weft.core.errors import NanError
from weft.core.settings import settings
from weft.ir.dispatch import OBSERVERS
from weft.ir.graph import Graph, is_local
from weft.ir.sizes import specialize
from weft.ir.tensor import wrap
from weft.ir.walking import has_collectives
from weft.ops.control import run, silent_graph
from weft.ops.control_call import EVALUATOR
from weft.ops.debugging import has_nan
from weft.runtime.threads import get_num_threads

KEPT = 256
"""How many programs are kept for all functions together: a bound on memory, on any machine."""
DRAFTS = 8
"""How many programs are kept that have not been compiled; likewise."""
Array = np.ndarray[Any, Any]
Fixed = tuple[int, ...]
"""Positions of inputs that are expected to stay the same from run to run."""


Ways = tuple[bool, str]
"""The settings that a program depends on: tuning, and how float32 is multiplied."""
EXACT = "exact"


def _current_ways() -> Ways:
    return settings.tuning, settings.float32_products


def program(graph: Graph, fixed: Fixed = (), target: Target | None = None) -> Executable:
    """The compiled form of a graph, with all that can be asked of it."""
    return _program(graph, rewrites(), fixed, _current_ways(), target or default_target())


@lru_cache(maxsize=KEPT)
def _program(graph: Graph, rules: Rewrites, fixed: Fixed, ways: Ways, target: Target) -> Executable:
    with only_these_rules(rules), settings.changed(tuning=ways[0], float32_products=ways[1]):
        known = _drafts.pop((id(graph), rules, fixed, ways, target), None)
        plan = plan_program(graph, target, fixed) if known is None else known[1]
        return target.executable(plan)


def draft(
    graph: Graph,
    fixed: Fixed = (),
    written: WrittenKernels | None = None,
    target: Target | None = None,
) -> ProgramPlan:
    """A plan whose kernels are not compiled: all that is needed to know its memory.

    What is `written` for it is shared with other drafts. Who asks for the program of the same graph
    gets that of this plan.
    """
    target = target or default_target()
    key = id(graph), rewrites(), fixed, _current_ways(), target
    known = _drafts.get(key)
    if known is None:
        plan = plan_program(graph, target, fixed, written or WrittenKernels())
        known = _drafts[key] = graph, plan
        for old in list(_drafts)[:-DRAFTS]:
            _drafts.pop(old, None)
    return known[1]


def forget_drafts(but: Graph | None) -> None:
    """Let go of all drafts, but for that of a graph."""
    for key in [key for key, (graph, _) in list(_drafts.items()) if graph is not but]:
        _drafts.pop(key, None)


_drafts: OrderedDict[tuple[int, Rewrites, Fixed, Ways, Target], tuple[Graph, ProgramPlan]] = (
    OrderedDict()
)
"""Drafts with their graphs, by identity: each graph is there as long as its draft."""


def executable(graph: Graph, fixed: Fixed = (), target: Target | None = None) -> Executable:
    """What runs a graph; equal graphs are compiled once, and found on disk by later processes."""
    rules, ways, target = rewrites(), _current_ways(), target or default_target()
    # as programs on disk are found by: settings that are the usual ones add nothing
    way = f" tuned for {get_num_threads()} threads" if ways[0] else ""
    way += "" if ways[1] == EXACT else f" {ways[1]}"
    key = graph.digest() + way + "".join(f" {position}" for position in fixed), rules, target
    known = _executables.get(key)
    if known is None:
        # rules of users, callbacks and groups of processes mean nothing to another process
        is_known_here_only = rules or any(map(is_local, graph.nodes)) or has_collectives(graph)
        compiled = partial(_program, graph, rules, fixed, ways, target)
        known = compiled() if is_known_here_only else target.stored_executable(key[0], compiled)
        _executables[key] = known
        if len(_executables) > KEPT:
            _executables.popitem(last=False)
    return known


_executables: OrderedDict[tuple[str, Rewrites, Target], Executable] = OrderedDict()


def split_executable(graph: Graph, places: Places, device: Device) -> SplitExecutable:
    """What runs a graph with parts on several devices, given where its inputs are."""
    return SplitExecutable(graph, places, device, lambda part, target: executable(part, (), target))


def evaluate(graph: Graph, arrays: Sequence[Array]) -> Sequence[Array]:
    """The outputs of a graph, compiled; by reference where `settings.compiler` is off."""
    placed = next((device_of(array) for array in arrays if not is_host(array)), CPU)
    places, target = array_places(arrays), target_of(placed)
    placed_elsewhere = places if spans_devices(graph, places, placed) else ()
    if not settings.compiler or OBSERVERS:
        return run_observed(graph, arrays, target, placed_elsewhere)
    if placed_elsewhere:
        return split_executable(graph, places, placed).run(arrays)
    return executable(graph, target=target).run(arrays)


def run_observed(
    graph: Graph,
    arrays: Sequence[Array],
    target: Target | None = None,
    places: Places = (),
) -> Sequence[Array]:
    """The outputs by reference, or compiled under observation.

    Where compiled outputs hold NaN, the reference is run too, for its observers to find the node.
    """
    if not settings.compiler:
        return by_reference(graph, [to_host(array) for array in arrays])
    copies = [array.copy() for array in arrays]
    if places:
        device = next((each for each in places if each not in (None, CPU)), CPU)
        outputs = split_executable(graph, places, device).run(copies)
    else:
        outputs = executable(graph, target=target).run(copies)
    if any(has_nan(to_host(output)) for output in outputs):
        by_reference(silent_graph(graph), [to_host(array) for array in arrays])
        raise _only_compiled(outputs)
    return outputs


def _only_compiled(outputs: Sequence[Array]) -> NanError:
    """NaN that the reference does not make: rounding beside an edge, or a mistake of ours."""
    return NanError(
        "jit",
        "the compiled program gives NaN, and the reference does not",
        expected="numbers only, inside wf.debug.nans()",
        got={f"output {i}": wrap(out) for i, out in enumerate(outputs) if has_nan(to_host(out))},
        fix="run by reference: with wf.settings.changed(compiler=False)",
    )


def by_reference(graph: Graph, arrays: Sequence[Array]) -> Sequence[Array]:
    """The outputs of a graph, each node by its reference."""
    types = [wrap(array).type for array in arrays]
    return run(specialize(without_transfers(graph), types), arrays)


EVALUATOR.append(evaluate)
