"""Where everything is in the memory of an instance, and in the block of weights.

An instance is one block: a head with addresses and the error, the state, the memory of the plan,
and scratch memory of kernels at the end.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any

import numpy as np

from weft.compiler.export.program import ExportedProgram, Port, State
from weft.compiler.export.sizes import SizeRange
from weft.compiler.export.threads import pool_bytes
from weft.compiler.plan.in_place import replaceable_inputs
from weft.compiler.plan.program_plan import ProgramPlan
from weft.core.records import frozen
from weft.runtime.memory import ALIGNMENT as LINE

Array = np.ndarray[Any, Any]
WEIGHTS, SCRATCH, WHOLE, ERROR = 0, 8, 16, 24
"""Where in the head the address of the weights is, of scratch memory, what is freed, the error."""
HEAD = POOL = LINE
"""The bytes of the head; behind it is the pool of threads, if there is one."""


def in_lines(size: int) -> int:
    """A size in whole lines of cache."""
    return -(-size // LINE) * LINE


@frozen(slots=False)
class Layout:
    """The memory of one instance of a program."""

    program: ExportedProgram
    plan: ProgramPlan
    threads: int = 1

    @property
    def sizes(self) -> SizeRange:
        """The sizes that each run chooses."""
        return self.program.sizes

    @property
    def _first_place(self) -> int:
        return POOL + in_lines(pool_bytes(self.threads))

    @cached_property
    def in_place(self) -> dict[int, State]:
        """State that a run writes where it is, by output."""
        plan = self.plan
        allowed = replaceable_inputs(plan.launches, plan.graph, plan.root)
        return {
            state.port.position: state
            for state in self.program.states
            if state.read is not None and state.read in allowed.get(state.port.position, ())
        }

    @cached_property
    def states(self) -> list[int]:
        """Where each piece of state is."""
        return _places([state.port.bytes for state in self.program.states], self._first_place)[:-1]

    @cached_property
    def new_places(self) -> dict[int, int]:
        """Where the new state is written that then takes the place of the old, by output."""
        return dict(
            zip(
                [state.port.position for state in self._moved_states],
                self._places_of_new_state,
                strict=False,
            )
        )

    @property
    def arena(self) -> int:
        """Where the memory of the plan is."""
        return self._places_of_new_state[-1]

    @property
    def _moved_states(self) -> list[State]:
        return [s for s in self.program.states if s.port.position not in self.in_place]

    @cached_property
    def _places_of_new_state(self) -> list[int]:
        """The places of new state, behind those of the old, and where the last ends."""
        start = _places([state.port.bytes for state in self.program.states], self._first_place)[-1]
        return _places([state.port.bytes for state in self._moved_states], start)

    @cached_property
    def scratch(self) -> int:
        """Where scratch memory is."""
        return self.arena + in_lines(self.plan.planner.plan_for(self.sizes.largest).peak)


def _places(sizes: Sequence[int], start: int) -> list[int]:
    """Where pieces begin, one behind the other, and where the last ends."""
    found = [start]
    for size in sizes:
        found.append(found[-1] + in_lines(size))
    return found


@frozen
class Blob:
    """The arrays that a program is shipped with: weights, and state that does not begin as zeros.

    offsets: where each is, by the name of its port.
    """

    arrays: tuple[tuple[Port, Array], ...]
    offsets: Mapping[str, int]

    def data(self) -> bytes:
        """All arrays, each at its place."""
        ends = [self.offsets[port.name] + port.bytes for port, _ in self.arrays]
        whole = bytearray(max(ends, default=0))
        for port, array in self.arrays:
            at = self.offsets[port.name]
            whole[at : at + port.bytes] = array.tobytes()
        return bytes(whole)


def shipped_arrays(program: ExportedProgram) -> tuple[tuple[Port, Array], ...]:
    """What a program is shipped with."""
    begun = [(s.port, s.value) for s in program.states if s.value.tobytes().strip(b"\0")]
    return (*[(w.port, w.value) for w in program.weights], *begun)


def inside_blob(arrays: Sequence[tuple[Port, Array]]) -> Blob:
    """Arrays as they lie inside of the code: each begins a line of cache."""
    places = _places([port.bytes for port, _ in arrays], 0)
    names = [port.name for port, _ in arrays]
    return Blob(tuple(arrays), dict(zip(names, places, strict=False)))
