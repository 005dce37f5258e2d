"""The checking mode: every launch of every program, compared with the same launch in isolation.

With `WEFT_CHECK=memory`, or inside `wf.testing.checked_memory()`, a program runs launch by launch,
three times over: in two isolated runs (see `isolated`), whose memory is fenced and holds NaN in one
and numbers in the other, and as planned, in memory that holds NaN before. Before each launch, what
it reads must be what isolated launches made; after it, so must be what it wrote. So a launch is
named that

- touches memory outside of its operands and results,
- depends on memory that nobody has written, or leaves a part of its result unwritten,
- depends on how it is divided, or on being fused,
- writes over what is still needed, in the arena, in an array that was donated, or in prepared
  weights; or is given what was written over.

>>> import weft as wf
>>> with wf.testing.checked_memory():
...     wf.jit(lambda x: wf.exp(x @ x).sum())(wf.ones((3, 3))).item() > 100
True
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from weft.compiler.plan.launch import Launch, Value, bytes_of
from weft.compiler.plan.verify import misbehaviour, verify_plan
from weft.compiler.targets.cpu.checking.fences import Fences, bytes_at, noted_faults
from weft.compiler.targets.cpu.checking.isolated import (
    Answers,
    Isolated,
    Stopped,
    Way,
)
from weft.compiler.targets.cpu.runtime.driver import FIELDS, WATCHERS, Run, execute
from weft.compiler.targets.cpu.runtime.program import Program
from weft.core.errors import ArgumentError
from weft.ir.graph import Literal, Variable
from weft.ir.group_cells import without_queues

__all__ = ["VARIABLE", "checked_memory", "start"]

Array = np.ndarray[Any, Any]

VARIABLE = "WEFT_CHECK"
"""The environment variable that asks for checks: `memory`, or nothing."""
NAN = 0x7FF5
"""A pattern that is NaN in floats of 16, 32 and 64 bits, and a large index."""
NUMBER = 0x4040
"""A pattern that is a number in all floats: 3.0 in 32 bits."""


def start() -> None:
    """Check all programs of the process if the environment asks for it."""
    asked = os.environ.get(VARIABLE, "")
    if asked not in ("", "memory"):
        raise ArgumentError(
            VARIABLE,
            "there is no such check",
            expected="memory, or nothing",
            got={VARIABLE: asked},
            fix=f"{VARIABLE}=memory",
        )
    if asked:
        WATCHERS.append(_Check())


@contextmanager
def checked_memory() -> Iterator[None]:
    """Check the memory of all programs that run inside."""
    check = _Check()
    WATCHERS.append(check)
    try:
        yield
    finally:
        WATCHERS.remove(check)


class _Check:
    """Runs programs launch by launch, and compares."""

    every_launch = False

    def __call__(self, program: Program, run: Run) -> int:
        """Run a program; how many of its launches were made."""
        verify_plan(program.plan, run.sizes)
        _verify_donations(program, run)
        ways = [Fences(NAN, at_end=True), Fences(NUMBER, at_end=False)]
        try:
            with noted_faults(), without_queues():
                return _Checked(program, run, *ways).run()
        finally:
            for fences in ways:
                fences.release()


class _Checked:
    """One run of a program that is checked."""

    def __init__(self, program: Program, run: Run, first: Fences, second: Fences) -> None:
        self.program, self.given = program, run
        answers = Answers()
        self.one = Isolated(
            program.plan, program.maker, run.sizes, Way(first, answers, divided=False)
        )
        again = Answers(answers.results)
        self.two = Isolated(
            program.plan, program.maker, run.sizes, Way(second, again, divided=True)
        )
        self.skipped = len(program.plan.launches) - run.given[1]
        """The launches whose results are there from an earlier run."""
        self.made: set[Value] = {v for node in program.graph.nodes for v in node.results}
        self.shared = self.made | _shared_values(program)
        """Values that are more than the work space of one launch."""
        self.whole: set[Value] = set()
        """Values that were found to be written everywhere."""

    def run(self) -> int:
        """Run all launches."""
        program, inputs = self.program, [self.planned_bytes(v) for v in self.program.graph.inputs]
        for isolated in (self.one, self.two):
            isolated.begin(inputs)
        self.fill()
        for position, launch in enumerate(program.plan.launches):
            if position >= self.skipped:
                self.compare_read(launch)
            try:
                self.one.step(launch)
                self.two.step(launch)
            except Stopped:
                return self.confirm_error(position)
            self.compare_isolated(launch)
            if position >= self.skipped:
                self.launch(position, launch)
        for atom in program.graph.outputs:
            self.require_whole(program.plan.launches[-1] if program.plan.launches else None, atom)
        return self.given.given[1]

    def planned_bytes(self, value: Value) -> Array:
        """The bytes of a value where the plan has put it."""
        slot = self.program.plan.slot(value)
        size = bytes_of(value.type, self.given.sizes)
        address = int(self.given.tables.addresses[slot])
        return bytes_at(address, size)

    def fill(self) -> None:
        """Fill the planned memory, but for what launches that are skipped have left there."""
        program, run = self.program, self.given
        prepared = [v for launch in program.plan.launches[: self.skipped] for v in launch.writes]
        slots = set(run.tables.planned.tolist())
        held = [v for v in prepared if program.plan.slot(v) in slots]
        kept = [self.planned_bytes(v).copy() for v in held]
        arena = bytes_at(run.tables.base, run.tables.plan.peak)
        arena[:] = self.one.way.fences.pattern_bytes(arena.size)
        for value, data in zip(held, kept, strict=True):
            self.planned_bytes(value)[:] = data
        for array in run.made:
            if not any(array is given for _, given in run.written):
                flat = array.reshape(-1).view(np.uint8)
                flat[:] = self.one.way.fences.pattern_bytes(flat.size)

    def compare_read(self, launch: Launch) -> None:
        """Compare what a launch is about to read with what was made in isolation."""
        for value in self.read(launch):
            if value not in launch.updates:
                self.require_whole(launch, value)
            self.compare(launch, value, "reads", "was written over since it was made")

    def launch(self, position: int, launch: Launch) -> None:
        """Run a launch as planned; what it writes is as in isolation."""
        if launch.node is None and not _calls_python(launch):
            start, _, *rest = self.given.given
            row = start + 8 * len(FIELDS) * (position - self.skipped)
            execute()(row, 1, *rest)
        else:  # what calls back into Python has been asked already
            for value in launch.writes:
                self.planned_bytes(value)[:] = self.one.bytes_of(value)
        for value in self.shared_writes(launch):
            self.compare(launch, value, "writes", "is not what the launch makes in isolation")

    def confirm_error(self, position: int) -> int:
        """A launch has reported an error: it does as planned, too, and is asked for its reason."""
        program, (start, _, *rest) = self.program, self.given.given
        program.state.error[0] = 0
        ahead = position - self.skipped
        ended = execute()(start + 8 * len(FIELDS) * max(0, ahead), 1, *rest)
        if not program.state.error[0]:
            problem = "it reports an error in isolation only"
            raise misbehaviour(program.plan.launches[position], problem, self.given.sizes)
        return int(max(0, ahead) + ended)

    def read(self, launch: Launch) -> list[Value]:
        """What a launch reads of other launches and of inputs."""
        root = self.program.root
        scratch = launch.nested.scratch if launch.nested else None
        own = {root(value) for value in launch.writes} - {root(value) for value in launch.updates}
        values = [v for v in launch.values if isinstance(v, Variable) and v is not scratch]
        return [v for v in values if root(v) not in own]

    def shared_writes(self, launch: Launch) -> list[Variable]:
        """What a launch writes for others."""
        return [value for value in launch.writes if self.program.root(value) in self.shared]

    def compare(self, launch: Launch, value: Value, verb: str, problem: str) -> None:
        """Compare a value as planned with the one in isolation, where that is written."""
        if not self.are_equal_where_written(
            value, self.one.bytes_of(value), self.planned_bytes(value)
        ):
            place = launch.values.index(value)
            text = f"value {place} ({value.type}), which it {verb}, {problem}"
            raise misbehaviour(launch, text, self.given.sizes)

    def compare_isolated(self, launch: Launch) -> None:
        """Compare what both isolated runs have made of a launch."""
        for value in self.shared_writes(launch):
            if not self.are_equal_where_written(
                value, self.one.bytes_of(value), self.two.bytes_of(value)
            ):
                text = (
                    f"{value.type}, which it writes, depends on memory that nobody has "
                    "written, or on how the launch is divided"
                )
                raise misbehaviour(launch, text, self.given.sizes)

    def are_equal_where_written(self, value: Value, one: Array, other: Array) -> bool:
        """Whether two forms of a value are the same where it is written."""
        kind = value.type.dtype.numpy
        if _are_same_numbers(one, other, kind):
            return True
        written = ~self.unwritten_elements(value)
        return _are_same_numbers(
            _elements(one, kind)[written], _elements(other, kind)[written], kind
        )

    def unwritten_elements(self, value: Value) -> Array:
        """Which elements hold what both isolated runs had filled their memory with."""
        kind = value.type.dtype.numpy
        parts = []
        for isolated in (self.one, self.two):
            data = isolated.bytes_of(value)
            parts.append(data == isolated.way.fences.pattern_bytes(data.size))
        whole: Array = (parts[0] & parts[1]).reshape(-1, kind.itemsize).all(axis=1)
        return whole

    def require_whole(self, launch: Launch | None, value: Value) -> None:
        """Require that a value of the graph is written everywhere before it is read."""
        root = self.program.root(value)
        if isinstance(root, Literal) or root in self.whole or root not in self.made:
            return
        if launch is not None and self.unwritten_elements(root).any():
            text = f"{root.type} is read, or returned, before all of it is written"
            raise misbehaviour(launch, text, self.given.sizes)
        self.whole.add(root)


def _verify_donations(program: Program, run: Run) -> None:
    """What is written over is an array of its own, of the output's type, and given once."""
    for output, array in run.written:
        kind = program.graph.outputs[output].type
        shape = run.tables.shape(program.graph.outputs[output], run.sizes)
        allowed = program.donations.get(output, ())
        place = next((n for n in allowed if run.inputs[n] is array), None)
        others = [other for n, other in enumerate(run.inputs) if n != place]
        is_allowed = place is not None or output in program.settled_outputs
        is_own = _is_whole_memory(array)
        is_alone = not any(np.may_share_memory(array, other) for other in others)
        fits = array.shape == shape and array.dtype == kind.dtype.numpy
        if not (is_own and is_alone and fits and is_allowed):
            which = "an array" if place is None else f"input {place}"
            text = f"{which} is written over by output {output}, and may not be"
            raise misbehaviour(program.plan.launches[-1], text, run.sizes)


def _is_whole_memory(array: Array) -> bool:
    """Whether an array owns its memory, or shows the whole of one that does."""
    owner = array if array.base is None else array.base
    is_whole = array.flags.c_contiguous and array.flags.aligned
    return bool(is_whole and owner.flags.owndata and owner.flags.carray) and (
        array.nbytes == owner.nbytes
    )


def _shared_values(program: Program) -> set[Value]:
    """The values that several launches touch, or that are returned."""
    touched = Counter(
        v for launch in program.plan.launches for v in {program.root(v) for v in launch.values}
    )
    several = {value for value, count in touched.items() if count > 1}
    return several | {program.root(atom) for atom in program.graph.outputs}


def _calls_python(launch: Launch) -> bool:
    """Whether a loop or a choice calls back into Python."""
    if launch.nested is None:
        return False
    return any(each.node is not None for s in launch.nested.plans for each in s.every_launch())


def _elements(data: Array, kind: np.dtype[Any]) -> Array:
    return np.frombuffer(data.tobytes(), kind)


def _are_same_numbers(one: Array, other: Array, kind: np.dtype[Any]) -> bool:
    """Whether bytes, or elements, are the same numbers; one NaN is as good as another."""
    if np.array_equal(one.view(np.uint8), other.view(np.uint8)):
        return True
    first, second = _elements(one, kind), _elements(other, kind)
    with np.errstate(all="ignore"):
        equal = first.view(_bits(kind)) == second.view(_bits(kind))
        equal = equal.reshape(len(first), -1).all(axis=1)
        if kind.kind in "fcV" or kind.name.startswith(("bfloat", "float")):
            equal |= (first != first) & (second != second)
    return bool(equal.all())


def _bits(kind: np.dtype[Any]) -> np.dtype[Any]:
    return np.dtype(f"u{min(kind.itemsize, 8)}")
