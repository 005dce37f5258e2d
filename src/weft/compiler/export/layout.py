"""Where everything is in the memory of an instance, and in the block of weights.

An instance is one block: a head with addresses and the error, the state, the memory of the plan,
and scratch memory of kernels at the end. Where runs choose sizes, it ends behind what is kept from
run to run: the memory of the plan and of kernels is work space, as large as the sizes of a run make
it, which follows the block or is asked for when it does not hold a run.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any

import numpy as np

from weft.compiler.export.program import ExportedProgram, Port, State
from weft.compiler.export.sizes import SizeRange, Values
from weft.compiler.export.threads import pool_bytes
from weft.compiler.export.work_space import (
    Amounts,
    PlanSpace,
    Staircase,
    buffers_among,
    plan_space,
)
from weft.compiler.export.writers import Needs
from weft.compiler.plan.in_place import replaceable_inputs
from weft.compiler.plan.launch import Launch, Value
from weft.compiler.plan.program_plan import ProgramPlan
from weft.core.records import frozen
from weft.core.shapes import is_static
from weft.runtime.memory import ALIGNMENT as LINE
from weft.runtime.memory import MemoryPlan
from weft.runtime.memory import plan as memory_plan

Array = np.ndarray[Any, Any]
WEIGHTS, SCRATCH, WHOLE, ERROR = 0, 8, 16, 24
"""Where in the head the address of the weights is, of scratch memory, what is freed, the error."""
WORK, HELD, GROWN = 32, 40, 48
"""Where the address of work space is, how many bytes it has, and what is freed of it."""
POOL = LINE
"""Where the pool of threads is, if there is one: behind the head, which takes a line of cache."""


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

    @property
    def has_work_space(self) -> bool:
        """Whether the memory of a run is not part of an instance."""
        return bool(self.sizes.largest)

    @cached_property
    def space(self) -> PlanSpace:
        """Where values lie in the memory of the plan."""
        return plan_space(self.plan, Amounts(self.sizes), self.kept_places)

    @cached_property
    def launches_once(self) -> list[Launch]:
        """The launches that are run once for an instance."""
        plan, found, late = self.plan, list[Launch](), set[Value]()
        for launch in plan.launches[: plan.once]:
            values = {plan.root(value) for value in launch.values}
            if late.isdisjoint(values) and self._is_of_known_sizes(launch):
                found.append(launch)
            else:
                late |= {plan.root(value) for value in launch.writes}
        return found

    @cached_property
    def launches_before_run(self) -> list[Launch]:
        """The launches that need no inputs and yet are run each time, for they need the sizes."""
        known = set(self.launches_once)
        return [each for each in self.plan.launches[: self.plan.once] if each not in known]

    def _is_of_known_sizes(self, launch: Launch) -> bool:
        """Whether a launch is the same for all choices of sizes."""
        samples = self.sizes.samples
        return all(is_static(value.type.shape) for value in launch.values) and all(
            part.numbers(at) == part.numbers(samples[0])
            and part.extent(at) == part.extent(samples[0])
            for part in launch.nested_launches()
            for at in samples[1:]
        )

    @cached_property
    def _kept_plan(self) -> MemoryPlan:
        """What preparation writes before the sizes of a run are known, behind the state."""
        plan, known = self.plan, set(self.launches_once)
        touched = {plan.root(value) for launch in self.launches_once for value in launch.values}
        slots = {str(plan.slots[value]) for value in touched}
        read_by_runs = {
            str(plan.slots[plan.root(value)])
            for launch in plan.launches
            if launch not in known
            for value in launch.values
        }
        return memory_plan(
            [
                replace(each, last=len(plan.launches)) if each.name in read_by_runs else each
                for each in buffers_among(plan.planner.buffers, slots)
            ]
        )

    @cached_property
    def kept_places(self) -> dict[str, int]:
        """Where an instance with work space keeps what preparation writes, by slot."""
        if not self.has_work_space:
            return {}
        return {name: self.arena + at for name, at in self._kept_plan.offsets.items()}

    @cached_property
    def end(self) -> int:
        """Where the memory of runs ends, or begins where it is work space: scratch memory is next.

        Preparation has its own scratch memory there.
        """
        if self.has_work_space:
            return self.arena + self._kept_plan.peak
        return self.arena + int(self.space.peak.values[0])


def _places(sizes: Sequence[int], start: int) -> list[int]:
    """Where pieces begin, one behind the other, and where the last ends."""
    found = [start]
    for size in sizes:
        found.append(found[-1] + in_lines(size))
    return found


@frozen(eq=False)
class Footprint:
    """How much memory instances and runs need."""

    whole: int
    """The bytes of an instance with memory for every run."""
    instance: int
    """Those of one without work space."""
    scratch: Staircase
    """The scratch memory of one thread, by sizes."""
    work: Values
    """The work space of a run, for each choice of sizes; nothing where it is in the instance."""


def footprint(layout: Layout, needs: Needs) -> Footprint:
    """The memory of a program whose functions have been written."""
    preparing = in_lines(needs.preparing_scratch)
    scratch = Staircase.lowest_above(-(-needs.scratch // LINE) * LINE, layout.sizes)
    shared = scratch.values * layout.threads
    if not layout.has_work_space:
        whole = layout.end + max(preparing, int(shared[0]))
        return Footprint(whole, whole, scratch, np.zeros(1, np.int64))
    work = layout.space.peak.values + shared
    instance = layout.end + preparing
    return Footprint(max(instance, layout.end + int(work.max())), instance, scratch, work)


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
