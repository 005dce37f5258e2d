"""A failing program made small: fewer outputs, steps and transforms, smaller sizes, plainer inputs.

Each candidate is run in a process of its own, so that a crash is a failure like any other.
"""

from __future__ import annotations

import os
import pickle
import re
import select
import signal
import time
from collections.abc import Callable, Iterator
from dataclasses import replace

from tests.fuzz.compare import Failure, examine
from tests.fuzz.program import Input, Program, Step, names_read

SECONDS = 60.0
"""How long one candidate may run."""
Examine = Callable[[Program], Failure | None]


def isolated(program: Program, ways: tuple[str, ...], seconds: float = SECONDS) -> Failure | None:
    """The failure of a program, run in a child process: also that it crashes, or does not end."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.close(reading)
            with os.fdopen(writing, "wb") as pipe:
                pickle.dump(examine(program, ways), pipe)
        finally:
            os._exit(0)
    os.close(writing)
    with os.fdopen(reading, "rb") as pipe:
        ready, _, _ = select.select([pipe], [], [], seconds)
        if not ready:
            os.kill(child, signal.SIGKILL)
        text = pipe.read()
    _, status = os.waitpid(child, 0)
    if text:
        found: Failure | None = pickle.loads(text)
        return found
    return Failure("jit", _ending(status, bool(ready)))


def _ending(status: int, ready: bool) -> str:
    if not ready:
        return "does not end"
    return f"crashes by {signal.Signals(os.WTERMSIG(status)).name}" if status else "exits"


def minimise(program: Program, failure: Failure, find: Examine, minutes: float = 3.0) -> Program:
    """The smallest program found that fails in the same way."""
    until = time.monotonic() + 60 * minutes
    changed = True
    while changed and time.monotonic() < until:
        changed = False
        for candidate in candidates(program):
            if time.monotonic() > until:
                break
            if weight(candidate) < weight(program) and failure.is_like(find(candidate)):
                program, changed = candidate, True
                break
    return program


def weight(program: Program) -> tuple[float, ...]:
    """What is made smaller: the number of lines first, then sizes, then what is not plain."""
    lines = sum(len(step.lines) + len(step.body) for step in program.steps)
    text = sum(len(step.text) for step in program.steps)
    plain = sum(each.layout != "" for each in program.inputs) + (program.ending != "call")
    sizes = sum(size for _, size in program.sizes)
    dims = sum(len(each.shape) for each in program.inputs)
    kinds = sum(each.dtype not in ("float32", "int32") for each in program.inputs)
    whole = lines + len(program.transforms) + len(program.outputs) + len(program.inputs)
    return whole, plain, sizes + dims, kinds, text


def candidates(program: Program) -> Iterator[Program]:
    """Programs that are a little smaller, those first that are much smaller."""
    yield from _single_outputs(program)
    yield from _without_halves(program)
    yield from _without_transforms(program)
    for place in reversed(range(len(program.steps))):
        yield pruned(replace(program, steps=_without(program.steps, place)))
        yield from _bypassed(program, place)
        yield from _shorter(program, place)
    yield from _cut(program)
    yield from _smaller_sizes(program)
    yield from _plainer_inputs(program)


def pruned(program: Program) -> Program:
    """Without outputs that nothing makes, steps that nobody reads, and inputs of no use."""
    made = {step.name for step in program.steps} | {each.name for each in program.inputs}
    outputs = tuple(name for name in program.outputs if name in made)
    steps = list(program.steps)
    if program.ending != "state":
        needed = set(outputs)
        for step in reversed(program.steps):
            if step.name in needed:
                needed |= set(step.reads)
        steps = [step for step in steps if step.name in needed]
    read = names_read(steps, outputs)
    inputs = tuple(each for each in program.inputs if each.name in read) or program.inputs[:1]
    used = {name for each in inputs for name in each.shape}
    sizes = tuple(pair for pair in program.sizes if pair[0] in used)
    return replace(program, outputs=outputs, steps=tuple(steps), inputs=inputs, sizes=sizes)


def _single_outputs(program: Program) -> Iterator[Program]:
    if len(program.outputs) > 1:
        for name in program.outputs:
            yield pruned(replace(program, outputs=(name,)))
        for name in program.outputs:
            rest = tuple(other for other in program.outputs if other != name)
            yield pruned(replace(program, outputs=rest))


def _without_halves(program: Program) -> Iterator[Program]:
    """The first steps alone, with the last of them as the output."""
    for place in range(1, len(program.steps)):
        first = program.steps[:place]
        yield pruned(replace(program, steps=first, outputs=(first[-1].name,)))


def _without_transforms(program: Program) -> Iterator[Program]:
    for place in range(len(program.transforms)):
        rest = program.transforms[:place] + program.transforms[place + 1 :]
        yield replace(program, transforms=rest)
    if program.ending != "call":
        yield replace(program, ending="call")


def _without(steps: tuple[Step, ...], place: int) -> tuple[Step, ...]:
    return steps[:place] + steps[place + 1 :]


def _bypassed(program: Program, place: int) -> Iterator[Program]:
    """Without a step: what reads it reads one of its operands."""
    step = program.steps[place]
    for name in step.reads:
        renamed = tuple(_renamed(each, step.name, name) for each in program.steps)
        outputs = tuple(name if each == step.name else each for each in program.outputs)
        made = replace(program, steps=_without(renamed, place), outputs=outputs)
        yield pruned(replace(made, outputs=tuple(dict.fromkeys(outputs))))


def _renamed(step: Step, old: str, new: str) -> Step:
    def change(lines: tuple[str, ...]) -> tuple[str, ...]:
        return tuple(re.sub(rf"\b{old}\b", new, line) for line in lines)

    return replace(step, lines=change(step.lines), body=change(step.body))


def _shorter(program: Program, place: int) -> Iterator[Program]:
    """With fewer lines in one step: in the bodies of loops, or assignments."""
    step = program.steps[place]
    for number, line in enumerate(step.body):
        if line.startswith("    q = "):
            body = step.body[:number] + step.body[number + 1 :]
            old, new = "\n".join(step.body), body
            steps = tuple(
                replace(each, body=new) if "\n".join(each.body) == old else each
                for each in program.steps
            )
            yield replace(program, steps=steps)
    for number in range(1, len(step.lines)):
        if not step.lines[number].startswith(f"{step.name} = "):
            shorter = replace(step, lines=step.lines[:number] + step.lines[number + 1 :])
            steps = (*program.steps[:place], shorter, *program.steps[place + 1 :])
            yield replace(program, steps=steps)


def _cut(program: Program) -> Iterator[Program]:
    """With an input in the place of a step, of each input's shape in turn."""
    for place, step in enumerate(program.steps):
        for like in program.inputs:
            fresh = Input(step.name, like.dtype, like.shape, 1)
            made = replace(
                program, inputs=(*program.inputs, fresh), steps=_without(program.steps, place)
            )
            yield pruned(made)


def _smaller_sizes(program: Program) -> Iterator[Program]:
    for place, (name, size) in enumerate(program.sizes):
        for smaller in dict.fromkeys([1, 2, 3, 4, size // 2, size * 3 // 4, size - 8, size - 1, 0]):
            if 0 <= smaller < size:
                sizes = list(program.sizes)
                sizes[place] = (name, smaller)
                yield replace(program, sizes=tuple(sizes))
    for place, each in enumerate(program.inputs):
        for axis in range(len(each.shape)):
            shape = each.shape[:axis] + each.shape[axis + 1 :]
            yield _with_input(program, place, replace(each, shape=shape))


def _plainer_inputs(program: Program) -> Iterator[Program]:
    for place, each in enumerate(program.inputs):
        if each.layout:
            yield _with_input(program, place, replace(each, layout=""))
        if each.dtype in ("float16", "bfloat16", "float64"):
            inputs = tuple(
                replace(x, dtype="float32") if x.dtype == each.dtype else x for x in program.inputs
            )
            yield replace(program, inputs=inputs)


def _with_input(program: Program, place: int, changed: Input) -> Program:
    inputs = (*program.inputs[:place], changed, *program.inputs[place + 1 :])
    return pruned(replace(program, inputs=inputs))
