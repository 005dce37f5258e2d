"""State that is written in place: which arrays a call may write over, and which it may use again.

A step writes new parameters over the old ones where nobody would notice: the array is held by the
handle that gets the new value, and by nobody else. That is told by the count of references to it
(`core/references.py`), at each call and in this file only. `wf.settings.in_place_updates = False`,
or WEFT_IN_PLACE=off, has every result written to memory of its own: the numbers are the same.

>>> import numpy as np
>>> import weft as wf
>>> x, y = wf.ones(3), wf.ones(3)
>>> view = y.numpy()
>>> writable_over([x._value, y._value], {0: (0, 0), 1: (1, 1)})
[(0, 0)]
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from weft.compiler.function.recording import Recording
from weft.compiler.plan.program_plan import ProgramPlan
from weft.compiler.targets.target import Donation, Executable
from weft.core.references import held_beside
from weft.core.settings import settings
from weft.ir.graph import Graph

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
    return [
        by_input[place]
        for place in held_beside(arrays, by_input, 1)
        if arrays[place].flags.num & _PLAIN == _PLAIN
    ]


def unheld(objects: list[Any]) -> list[Any]:
    """Those objects of a list that nobody else holds, so that their memory may be used again."""
    if not settings.in_place_updates:
        return []
    return [objects[place] for place in held_beside(objects, range(len(objects)), 0)]
