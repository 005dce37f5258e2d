"""State that is written in place: which arrays a call may write over, and which it may use again.

A step writes new parameters over the old ones where nobody would notice: the array is held by the
handle that gets the new value, and by nobody else. That is told by the count of references to it
(`core/references.py`), at each call and in this file only. New gradients are written over those of
the last call in the same way. `wf.settings.in_place_updates = False`, or WEFT_IN_PLACE=off, has
every result written to memory of its own: the numbers are the same.

>>> import numpy as np
>>> import weft as wf
>>> x, y = wf.ones(3), wf.ones(3)
>>> view = y.numpy()
>>> writable_over([x._value, y._value], {0: (0, 0), 1: (1, 1)})
[(0, 0)]
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from weft.compiler.function.recording import Recording, Source
from weft.compiler.plan.program_plan import ProgramPlan
from weft.compiler.targets.target import Donation, Executable, Reuse
from weft.core.arrays import is_concrete, is_host
from weft.core.references import held_beside
from weft.core.settings import settings
from weft.core.types import TensorType
from weft.ir.graph import Graph
from weft.ir.tensor import Tensor

Array = np.ndarray[Any, Any]
_PLAIN = 0x0505
"""NumPy's flags of an array that owns its memory, in row-major order, aligned and writeable:
a format, on any machine."""


def donations(recording: Recording, program: Executable | ProgramPlan) -> list[Donation]:
    """Outputs that replace the state whose array they may be written to, and those inputs.

    A run that has such outputs is not stopped by a signal. So what loops make is none, nor is
    anything where a loop may go on for ever.
    """
    found: list[Donation] = []
    lasting = _made_by_loops(recording.graph)
    if lasting is None:
        return found
    for write in recording.writes:
        source, output = write.source, write.output
        is_counter = source.argument is None and source.handle is None
        if output is None or source.gradient or is_counter or output in lasting:
            continue
        inputs = program.donations.get(output, ())
        found += [
            (output, given) for given in inputs if source.is_same_place(recording.sources[given])
        ]
    return found


def expected_donations(recording: Recording, program: Executable | ProgramPlan) -> list[Donation]:
    """The donations of a call whose state nobody else holds: none where the setting is off."""
    return donations(recording, program) if settings.in_place_updates else []


def _made_by_loops(graph: Graph) -> set[int] | None:
    """The outputs that loops make, by position; None where a loop has no known end."""
    if _may_last(graph):
        return None
    made = {v for node in graph.nodes if node.primitive.name == "scan" for v in node.results}
    return {place for place, atom in enumerate(graph.outputs) if atom in made}


def _may_last(graph: Graph) -> bool:
    return any(node.primitive.name == "while" for node in graph.nodes) or any(
        map(_may_last, graph.subgraphs())
    )


def writable_over(arrays: list[Array], by_input: Mapping[int, Donation]) -> list[Donation]:
    """Those donations whose input's array nobody holds but one handle, and this list."""
    if not settings.in_place_updates:
        return []
    return [by_input[place] for place in _writable_places(arrays, by_input)]


def _writable_places(arrays: list[Array], places: Iterable[int]) -> list[int]:
    """The places of arrays that one handle holds, with memory that nothing else shows."""
    held_once = held_beside(arrays, places, 1)
    plain = [place for place in held_once if arrays[place].flags.num & _PLAIN == _PLAIN]
    if len(plain) == len(held_once):
        return plain
    views = [place for place in held_once if _shows_whole_base(arrays[place])]
    bases = [arrays[place].base for place in views]
    return [*plain, *[views[n] for n in held_beside(bases, range(len(bases)), 1)]]


def _shows_whole_base(array: Array) -> bool:
    """Whether an array is a view of all elements of another, in their order."""
    base = array.base
    return (
        is_host(base)
        and base.flags.num & _PLAIN == _PLAIN
        and array.flags.c_contiguous
        and array.flags.aligned
        and array.nbytes == base.nbytes
    )


Renewal = tuple[Source, int]
"""A gradient that a call sets and does not read, and the output that it is set to."""


def renewals(recording: Recording, program: Executable | ProgramPlan) -> list[Renewal]:
    """The gradients whose arrays of the last call the outputs may be written to."""
    gradients = _set_gradients(recording)
    lasting = _made_by_loops(recording.graph) if gradients else None
    if lasting is None:
        return []
    return [
        (source, output)
        for source, output in gradients
        if output in program.settled_outputs and output not in lasting
    ]


def _set_gradients(recording: Recording) -> list[Renewal]:
    """The gradients that a call sets and does not read, each with its output."""
    read = [source for source in recording.sources if source.gradient]
    return [
        (write.source, write.output)
        for write in recording.writes
        if write.source.gradient
        and write.output is not None
        and not any(write.source.is_same_place(source) for source in read)
    ]


def gradients_beside(recording: Recording, program: Executable | ProgramPlan) -> list[int]:
    """The outputs that are gradients, and cannot be written over those of the last call."""
    written_over = renewals(recording, program) if settings.in_place_updates else []
    outputs = {output for _, output in written_over}
    return [output for _, output in _set_gradients(recording) if output not in outputs]


def reusable_gradients(
    renewed: Sequence[Renewal], handles: Sequence[Tensor], types: Sequence[TensorType]
) -> list[Reuse]:
    """The gradients that handles hold and nobody else does, as arrays for outputs of these types.

    A gradient that an operation of the graph reads is held by the caller, too, and is none of them.
    """
    if not settings.in_place_updates:
        return []
    owners = [source.owner(handles) for source, _ in renewed]
    gradients: list[Any] = [None if owner is None else owner._grad for owner in owners]
    free = held_beside(gradients, [n for n, x in enumerate(gradients) if x is not None], 1)
    kinds = [types[renewed[place][1]] for place in free]
    arrays = [gradients[place]._value for place in free]
    fitting = [
        n
        for n, kind in enumerate(kinds)
        if is_concrete(arrays[n])
        and arrays[n].dtype == kind.dtype.numpy
        and arrays[n].shape == kind.shape
    ]
    return [(renewed[free[n]][1], arrays[n]) for n in _writable_places(arrays, fitting)]


def objects_held_once(objects: list[Any]) -> list[Any]:
    """Those objects of a list that nobody else holds, so that their memory may be used again."""
    if not settings.in_place_updates:
        return []
    return [objects[place] for place in held_beside(objects, range(len(objects)), 0)]
