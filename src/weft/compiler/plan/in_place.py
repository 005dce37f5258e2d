"""In place: which stored values may take the place of values that are read for the last time.

It may be a place in the plan's memory, or, where the caller lets go of it, an input's own array.

>>> import weft as wf
>>> from weft.compiler.targets.cpu.target import CPU
>>> from weft.compiler.plan.planning import plan_program
>>> kinds = wf.spec("float32", (8,)), wf.spec("float32", (9,))
>>> plan = plan_program(wf.ir.trace(lambda x, y: (x * 2, y * 2), *kinds), CPU)
>>> [launch.name for launch in plan.launches], plan.donations
(['k0×2'], {0: (0,), 1: (1,)})
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence

from weft.compiler.plan.launch import Kind, Launch, Root, Value
from weft.ir.graph import Graph, Variable


def places(launches: Sequence[Launch], root: Root) -> dict[Variable, list[Variable]]:
    """For each stored value the values whose place it may take, as far as the kernels are asked.

    They are read by the launch that stores it at its own place only, and by no later launch.
    """
    last: dict[Value, int] = {}
    for position, launch in enumerate(launches):
        for value in launch.values:
            last[root(value)] = position
    found: dict[Variable, list[Variable]] = {}
    for position, launch in enumerate(launches):
        for stored, operand in _free_pairs(launch, root):
            if last[operand] == position:
                found.setdefault(stored, []).append(operand)
    return found


def _free_pairs(launch: Launch, root: Root) -> Iterator[tuple[Variable, Variable]]:
    """Pairs of a stored value and an operand that nothing else in the launch reads."""
    if not launch.in_place:
        return
    uses = Counter(root(value) for value in launch.values)
    for stored, operand in launch.in_place:
        one, other = root(stored), root(operand)
        if not isinstance(other, Variable):  # a reshaped constant, which stays
            continue
        # later stages of a row fusion read what an earlier one has stored
        is_alone = uses[one] == 1 or (uses[one] and launch.kind is Kind.ROW_FUSION)
        if is_alone and uses[other] == 1 and one is stored:
            yield stored, other


def choose_places(
    found: Mapping[Variable, Sequence[Variable]], within: Callable[[Variable], bool]
) -> dict[Variable, Variable]:
    """A place for each stored value that has one among the values asked for, each given once."""
    chosen: dict[Variable, Variable] = {}
    taken: set[Variable] = set()
    for stored, operands in found.items():
        free = [v for v in operands if within(v) and v not in taken]
        if within(stored) and free:
            chosen[stored] = free[0]
            taken.add(free[0])
    return chosen


def donations(launches: Sequence[Launch], graph: Graph, root: Root) -> dict[int, tuple[int, ...]]:
    """For each output the inputs whose array it may be written to, by position.

    Nothing may fail once it is written.
    """
    early, late = _early_and_late_launches(launches)
    # A copy of the input whose place the output takes changes nothing.
    written_early = {v for launch in early if launch.kind is not Kind.COPY for v in launch.writes}
    written_late = {v for launch in late for v in launch.writes} - written_early
    found = replaceable_inputs(launches, graph, root)
    return {
        output: given for output, given in found.items() if graph.outputs[output] in written_late
    }


def settled_outputs(launches: Sequence[Launch], graph: Graph, root: Root) -> tuple[int, ...]:
    """The outputs that are first written when nothing can fail any more, by position.

    Each lies in memory of its own, so that it may be written to any array of its type: where the
    run fails, the array is as it was.
    """
    early, late = _early_and_late_launches(launches)
    written_early = {root(v) for launch in early for v in launch.values}
    written_late = {root(v) for launch in late for v in launch.writes}
    settled = written_late - written_early - set(graph.inputs)
    outputs = Counter(root(atom) for atom in graph.outputs)
    return tuple(
        position
        for position, atom in enumerate(graph.outputs)
        if root(atom) is atom and atom in settled and outputs[atom] == 1
    )


def _early_and_late_launches(
    launches: Sequence[Launch],
) -> tuple[Sequence[Launch], Sequence[Launch]]:
    """The launches up to the last that may fail or has an effect, and those behind it."""
    safe = 1 + max([p for p, launch in enumerate(launches) if launch.is_pinned], default=-1)
    return launches[:safe], launches[safe:]


def replaceable_inputs(
    launches: Sequence[Launch], graph: Graph, root: Root
) -> dict[int, tuple[int, ...]]:
    """For each output the inputs whose place it may take while the launches run, by position.

    The input must not be an output itself, and no other output may share the memory.
    """
    outputs = Counter(root(atom) for atom in graph.outputs)
    inputs = {variable: position for position, variable in enumerate(graph.inputs)}
    found = places(launches, root)
    chosen: dict[int, tuple[int, ...]] = {}
    for position, atom in enumerate(graph.outputs):
        if isinstance(atom, Variable) and outputs[atom] == 1:
            free = [v for v in found.get(atom, ()) if v in inputs and v not in outputs]
            given = tuple(inputs[v] for v in free if v.type == atom.type)
            chosen |= {position: given} if given else {}
    return chosen
