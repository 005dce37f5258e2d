"""Control flow step by step in Python, on bytes: for targets that have nothing of their own for it.

>>> import numpy as np
>>> import weft as wf
>>> from weft.compiler.plan.planning import plan_program
>>> from weft.compiler.targets.target import target_named
>>> doubled = wf.ir.trace(lambda x: wf.map(lambda row: row * 2, x), wf.spec("float32", (3,)))
>>> target = target_named("plain")
>>> target.executable(plan_program(doubled, target)).run([np.ones(3, np.float32)])[0].tolist()
[2.0, 2.0, 2.0]
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from weft.compiler.plan.control_flow import Choice, Loop
from weft.compiler.plan.launch import Sizes, bytes_of

Bytes = np.ndarray[Any, np.dtype[np.uint8]]
Run = Callable[[int, list[Bytes]], list[Bytes]]
"""Runs one of the plans inside, by number, on the bytes of its inputs; the bytes of its outputs."""


class NoSuchBranch(Exception):
    """An index of a choice that no branch has."""


def run_control(
    form: Loop | Choice, operands: Sequence[Bytes], sizes: Sizes, run: Run
) -> list[Bytes]:
    """The bytes of the results of a loop or a choice, given those of its operands."""
    if isinstance(form, Choice):
        return _run_choice(form, operands, sizes, run)
    constants = list(operands[: form.num_consts])
    carry = list(operands[form.num_consts : form.num_consts + form.num_carry])
    if len(form.plans) == 2:
        return _run_while(form.limit(sizes), constants, carry, run)
    xs = operands[form.num_consts + form.num_carry :]
    return _run_scan(form, constants, carry, xs, sizes, run)


def _run_scan(
    loop: Loop,
    constants: list[Bytes],
    carry: list[Bytes],
    xs: Sequence[Bytes],
    sizes: Sizes,
    run: Run,
) -> list[Bytes]:
    """A loop of known length: each step takes a row of xs and makes a row of ys."""
    length = loop.limit(sizes)
    kinds = [result.type for result in loop.node.results[loop.num_carry :]]
    ys = [np.zeros((length, bytes_of(kind, sizes) // max(1, length)), np.uint8) for kind in kinds]
    rows = [x.reshape(length, -1) if length else x for x in xs]
    steps = range(length)
    for step in reversed(steps) if loop.reverse else steps:
        outputs = run(0, [*constants, *carry, *[row[step] for row in rows]])
        carry = outputs[: loop.num_carry]
        for y, row in zip(ys, outputs[loop.num_carry :], strict=True):
            y[step] = row
    return [*carry, *[y.reshape(-1) for y in ys]]


def _run_while(most: int, constants: list[Bytes], carry: list[Bytes], run: Run) -> list[Bytes]:
    """A loop that asks before each step."""
    step = 0
    while step != most and run(1, [*constants, *carry])[0][0]:
        carry = run(0, [*constants, *carry])
        step += 1
    return carry


def _run_choice(choice: Choice, operands: Sequence[Bytes], sizes: Sizes, run: Run) -> list[Bytes]:
    """One branch, or one for each row."""
    index, *given = operands
    numbers = index.view(choice.node.operands[0].type.dtype.numpy).reshape(-1).astype(np.int64)
    if np.any((numbers < 0) | (numbers >= len(choice.plans))):
        raise NoSuchBranch
    if not choice.rows:
        return run(int(numbers[0]), given)
    results = [np.zeros(bytes_of(each.type, sizes), np.uint8) for each in choice.node.results]
    for number in range(len(choice.plans)):
        rows = np.flatnonzero(numbers == number)
        count = max(1, len(numbers))
        for result, data in zip(results, run(number, given), strict=True):
            result.reshape(count, -1)[rows] = data.reshape(count, -1)[rows]
    return results
